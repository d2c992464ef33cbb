//! `/v1/messages` (Anthropic): typed events without `[DONE]`, and the whole answer.
//!
//! `input_tokens` leaves out tokens from the prefix cache; `cache_read_input_tokens` has them.

use bytes::Bytes;

use super::generation::{Choice, Generation, Render, Token, quote, quote_or_null};

#[derive(Debug, Default)]
pub(super) struct MessageRender {
    is_open: bool,
}

impl Render for MessageRender {
    fn token(&mut self, generation: &Generation, token: Token, out: &mut Vec<Bytes>) {
        if !self.is_open {
            self.is_open = true;
            out.push(message_start(generation));
            let block =
                r#"{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}"#;
            out.push(event("content_block_start", block));
        }
        let Some(choice) = generation.choices.get(token.choice) else { return };
        let piece = quote(&choice.piece(token.index));
        let delta = format!(
            r#"{{"type":"content_block_delta","delta":{{"type":"text_delta","text":{piece}}},"index":0}}"#
        );
        out.push(event("content_block_delta", &delta));
    }

    fn close(&mut self, generation: &Generation, out: &mut Vec<Bytes>) {
        let Some(choice) = generation.choices.first() else { return };
        out.push(event("content_block_stop", r#"{"type":"content_block_stop","index":0}"#));
        let delta = format!(
            r#"{{"type":"message_delta","delta":{{"stop_reason":"{}","stop_sequence":{}}},"usage":{}}}"#,
            stop_reason(choice),
            quote_or_null(choice.stop.as_deref()),
            usage(generation),
        );
        out.push(event("message_delta", &delta));
        out.push(event("message_stop", r#"{"type":"message_stop"}"#));
    }

    fn whole(&self, generation: &Generation) -> String {
        let Some(choice) = generation.choices.first() else { return "{}".into() };
        format!(
            "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"content\":[{{\"type\":\"text\",\"text\":{}}}],\
             \"model\":{},\"stop_reason\":\"{}\",\"usage\":{}}}",
            quote(&generation.id),
            quote(&choice.text()),
            quote(&generation.ask.model),
            stop_reason(choice),
            usage(generation),
        )
    }
}

fn message_start(generation: &Generation) -> Bytes {
    let start = format!(
        "{{\"type\":\"message_start\",\"message\":{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\
         \"content\":[],\"model\":{},\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{{\"input_tokens\":{},\
         \"output_tokens\":0}}}}}}",
        quote(&generation.id),
        quote(&generation.ask.model),
        generation.ask.prompt_tokens(),
    );
    event("message_start", &start)
}

fn usage(generation: &Generation) -> String {
    format!(
        "{{\"input_tokens\":{},\"output_tokens\":{},\"cache_creation_input_tokens\":0,\
         \"cache_read_input_tokens\":{}}}",
        generation.ask.prompt_tokens().saturating_sub(generation.cached),
        generation.completion_tokens(),
        generation.cached,
    )
}

fn stop_reason(choice: &Choice) -> &'static str {
    match (choice.finish, &choice.stop) {
        ("length", _) => "max_tokens",
        (_, Some(_)) => "stop_sequence",
        _ => "end_turn",
    }
}

fn event(name: &str, data: &str) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}
