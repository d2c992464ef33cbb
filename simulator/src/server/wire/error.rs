//! Errors in vLLM's words and shapes.
//!
//! vLLM has two families: schema errors (`Bad Request`, with a `loc`) and errors of its own checks (`BadRequestError`,
//! with a parameter). Both have another shape on `/v1/messages`.

use super::api::ErrorShape;

use super::generation::quote;

/// A refusal or failure, ready to be written.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: u16,
    kind: &'static str,
    message: String,
    param: Option<String>,
}

impl ApiError {
    /// One of vLLM's own checks failed.
    pub(super) fn bad_request(message: impl Into<String>, param: &str) -> Self {
        Self { status: 400, kind: "BadRequestError", message: message.into(), param: Some(param.into()) }
    }

    /// The request does not fit the schema; `detail` is what vLLM prints for the one offending field.
    pub(super) fn schema(detail: &str, param: Option<String>) -> Self {
        let message = format!("1 validation error:\n  {detail}");
        Self { status: 400, kind: "Bad Request", message, param }
    }

    /// A required field is missing.
    pub(super) fn missing(field: &str, fields: usize) -> Self {
        let detail = format!(
            "{{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required', 'input': '<dict of {fields} items>'}}"
        );
        Self::schema(&detail, Some(format!("body.{field}")))
    }

    /// The model is not served here.
    pub(super) fn unknown_model(model: &str, served: &str) -> Self {
        let message = format!("The model `{model}` does not exist. Valid aliases: {served}.");
        Self { status: 404, kind: "NotFoundError", message, param: Some("model".into()) }
    }

    /// `--max-num-queued-reqs` is reached. vLLM sends no `retry-after`.
    pub(super) fn busy() -> Self {
        let message = "The engine is currently busy and cannot accept new requests. \
                       Please try again later or on a different instance.";
        Self { status: 503, kind: "Service Unavailable", message: message.into(), param: None }
    }

    /// The engine core is gone.
    pub(super) fn engine_dead() -> Self {
        Self::internal("EngineCore encountered an issue. See stack trace (above) for the root cause.")
    }

    /// The process drains after SIGTERM.
    pub(super) fn shutting_down() -> Self {
        Self::internal("cannot schedule new futures after shutdown")
    }

    /// Any other failure of the server.
    pub(super) fn internal(message: &str) -> Self {
        Self { status: 500, kind: "InternalServerError", message: message.into(), param: None }
    }

    /// The body of the response.
    pub(super) fn body(&self, shape: ErrorShape) -> String {
        let (kind, message) = (quote(self.kind), quote(&self.message));
        match shape {
            ErrorShape::OpenAi => {
                let param = self.param.as_deref().map_or("null".to_owned(), quote);
                let code = self.status;
                format!(r#"{{"error":{{"message":{message},"type":{kind},"param":{param},"code":{code}}}}}"#)
            }
            ErrorShape::Anthropic => {
                format!(r#"{{"type":"error","error":{{"type":{kind},"message":{message}}}}}"#)
            }
        }
    }

    /// The event that a dying engine puts into a stream; written by another serializer than the chunks.
    pub(super) fn event(&self) -> String {
        format!(
            "data: {{\"error\": {{\"message\": {}, \"type\": {}, \"param\": null, \"code\": {}}}}}\n\n",
            quote(&self.message),
            quote(self.kind),
            self.status
        )
    }
}
