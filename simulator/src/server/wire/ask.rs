//! The fields of a generating request, checked as vLLM checks them; those that vLLM ignores are ignored.

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::api::Api;
use crate::server::config::SimConfig;

use super::error::ApiError;
use super::prompt::{self, Prompt};

/// A checked request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) model: String,
    pub(super) prompts: Vec<Prompt>,
    /// Choices for each prompt.
    pub(super) n: usize,
    /// Limit of the output; `None` leaves it to the model.
    pub(super) max_tokens: Option<u64>,
    pub(super) is_stream: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) return_token_ids: bool,
    pub(super) echo: bool,
    /// The function that must be called.
    pub(super) tool: Option<String>,
    pub(super) stops: Vec<String>,
    /// Root of the prefix chain.
    pub(super) root: u64,
}

impl Ask {
    pub(super) fn parse(api: Api, body: &Map<String, Value>, config: &SimConfig) -> Result<Self, ApiError> {
        let model = model(body, config)?;
        let prompts = prompt::prompts(api, body)?;
        let is_stream = boolean(body, "stream");
        let options = body.get("stream_options").and_then(Value::as_object);
        if options.is_some() && !is_stream {
            let message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
            return Err(ApiError::bad_request(message, "stream_options"));
        }
        if boolean(body, "continue_final_message") && boolean(body, "add_generation_prompt") {
            let message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
            return Err(ApiError::bad_request(message, "continue_final_message"));
        }
        temperature(body)?;
        let max_tokens = max_tokens(api, body, config)?;
        context(&prompts, config)?;
        let salt = body.get("cache_salt").and_then(Value::as_str).unwrap_or_default();
        Ok(Self {
            root: xxh3_64(format!("{model}\0{salt}").as_bytes()),
            model,
            prompts,
            n: usize::try_from(integer(body, "n")?.unwrap_or(1).clamp(1, 128)).unwrap_or(1),
            max_tokens,
            is_stream,
            include_usage: options.is_some_and(|o| boolean(o, "include_usage")),
            continuous_usage: options.is_some_and(|o| boolean(o, "continuous_usage_stats")),
            return_token_ids: boolean(body, "return_token_ids"),
            echo: api == Api::Completions && boolean(body, "echo"),
            tool: if api == Api::Chat { tool(body) } else { None },
            stops: stops(body),
        })
    }

    pub(super) fn prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|p| p.tokens.len() as u64).sum()
    }
}

/// The model's name, which must be served here; without one the served model is meant.
pub(super) fn model(body: &Map<String, Value>, config: &SimConfig) -> Result<String, ApiError> {
    match body.get("model") {
        None | Some(Value::Null) => Ok(config.model.clone()),
        Some(Value::String(name)) if *name == config.model || config.adapters.contains(name) => {
            Ok(name.clone())
        }
        Some(Value::String(name)) => Err(ApiError::unknown_model(name, &config.model)),
        Some(_) => {
            let detail =
                "{'type': 'string_type', 'loc': 'body.model', 'msg': 'Input should be a valid string'}";
            Err(ApiError::schema(detail, Some("body.model".into())))
        }
    }
}

fn max_tokens(api: Api, body: &Map<String, Value>, config: &SimConfig) -> Result<Option<u64>, ApiError> {
    let limit = match api {
        Api::Responses => integer(body, "max_output_tokens")?,
        Api::Messages => {
            let limit = integer(body, "max_tokens")?;
            Some(limit.ok_or_else(|| ApiError::missing("max_tokens", body.len()))?)
        }
        _ => match integer(body, "max_completion_tokens")? {
            Some(limit) => Some(limit),
            None => integer(body, "max_tokens")?,
        },
    };
    // The old completions API has a default of its own.
    let limit = limit.or((api == Api::Completions).then_some(16));
    let longest = config.context_length();
    match limit {
        Some(0) => {
            let message = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)";
            Err(ApiError::bad_request(message, "max_tokens"))
        }
        Some(asked) if asked > longest => {
            let message = format!(
                "max_tokens={asked} cannot be greater than max_model_len={longest}. \
                 Please request fewer output tokens. (parameter=max_tokens, value={asked})"
            );
            Err(ApiError::bad_request(message, "max_tokens"))
        }
        limit => Ok(limit),
    }
}

/// Refuses prompts that leave no room for one output token.
pub(super) fn context(prompts: &[Prompt], config: &SimConfig) -> Result<(), ApiError> {
    let longest = config.context_length();
    if prompts.iter().all(|p| (p.tokens.len() as u64) < longest) {
        return Ok(());
    }
    let min_length = longest + 1;
    let message = format!(
        "This model's maximum context length is {longest} tokens. However, your prompt contains at least {min_length} \
         input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
         input prompt. (parameter=input_tokens, value={min_length})"
    );
    Err(ApiError::bad_request(message, "input_tokens"))
}

fn temperature(body: &Map<String, Value>) -> Result<(), ApiError> {
    match body.get("temperature").and_then(Value::as_f64) {
        Some(t) if t < 0.0 => {
            let message =
                format!("temperature must be non-negative, got {t:?}. (parameter=temperature, value={t:?})");
            Err(ApiError::bad_request(message, "temperature"))
        }
        _ => Ok(()),
    }
}

fn boolean(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn integer(body: &Map<String, Value>, key: &str) -> Result<Option<u64>, ApiError> {
    let value = match body.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value,
    };
    let number = value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
    number.map(Some).ok_or_else(|| {
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let detail = format!(
            "{{'type': 'int_parsing', 'loc': 'body.{key}', 'msg': 'Input should be a valid integer, unable to \
             parse string as an integer', 'input': '{shown}'}}"
        );
        ApiError::schema(&detail, Some(format!("body.{key}")))
    })
}

fn stops(body: &Map<String, Value>) -> Vec<String> {
    let stops = match body.get("stop").or_else(|| body.get("stop_sequences")) {
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => stops.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    stops.into_iter().filter(|stop| !stop.is_empty()).collect()
}

/// The function that `tool_choice` forces: a named one, or the first.
fn tool(body: &Map<String, Value>) -> Option<String> {
    let name = |tool: &Value| Some(tool.get("function")?.get("name")?.as_str()?.to_owned());
    match body.get("tool_choice")? {
        Value::String(choice) if choice == "required" => {
            body.get("tools")?.as_array()?.first().and_then(name)
        }
        named @ Value::Object(_) => name(named),
        _ => None,
    }
}
