//! `/v1/responses`: typed, numbered events without `[DONE]`, and the whole answer.

use bytes::Bytes;

use super::generation::{Choice, Generation, Render, Token, quote};

#[derive(Debug, Default)]
pub(super) struct ResponseRender {
    sequence: u64,
}

impl ResponseRender {
    /// One event: `fields` are those that sort before `sequence_number`, `rest` those after it.
    fn event(&mut self, name: &str, fields: &str, rest: &str) -> Bytes {
        let sequence = self.sequence;
        self.sequence += 1;
        Bytes::from(format!(
            "event: {name}\ndata: {{{fields},\"sequence_number\":{sequence}{rest},\"type\":\"{name}\"}}\n\n"
        ))
    }

    fn open(&mut self, generation: &Generation, out: &mut Vec<Bytes>) {
        let response = format!(r#""response":{}"#, response(generation, None));
        out.push(self.event("response.created", &response, ""));
        out.push(self.event("response.in_progress", &response, ""));
        let item = format!(
            r#""item":{{"id":"{}","content":[],"role":"assistant","status":"in_progress","type":"message","phase":null}},"output_index":0"#,
            item_id(generation)
        );
        out.push(self.event("response.output_item.added", &item, ""));
        let part = format!(
            r#""content_index":0,"item_id":"{}","output_index":0,"part":{{"annotations":[],"text":"","type":"output_text","logprobs":[]}}"#,
            item_id(generation)
        );
        out.push(self.event("response.content_part.added", &part, ""));
    }
}

impl Render for ResponseRender {
    fn token(&mut self, generation: &Generation, token: Token, out: &mut Vec<Bytes>) {
        if self.sequence == 0 {
            self.open(generation, out);
        }
        let Some(choice) = generation.choices.get(token.choice) else { return };
        let delta = format!(
            r#""content_index":0,"delta":{},"item_id":"{}","logprobs":[],"output_index":0"#,
            quote(&choice.piece(token.index)),
            item_id(generation)
        );
        out.push(self.event("response.output_text.delta", &delta, ""));
    }

    fn close(&mut self, generation: &Generation, out: &mut Vec<Bytes>) {
        let Some(choice) = generation.choices.first() else { return };
        let (id, text) = (item_id(generation), quote(&choice.text()));
        let done = format!(r#""content_index":0,"item_id":"{id}","logprobs":[],"output_index":0"#);
        out.push(self.event("response.output_text.done", &done, &format!(r#","text":{text}"#)));
        let part =
            format!(r#""content_index":0,"item_id":"{id}","output_index":0,"part":{}"#, output_text(choice));
        out.push(self.event("response.content_part.done", &part, ""));
        let item = format!(r#""item":{},"output_index":0"#, item(generation, choice));
        out.push(self.event("response.output_item.done", &item, ""));
        let response = format!(r#""response":{}"#, response(generation, Some(choice)));
        out.push(self.event("response.completed", &response, ""));
    }

    fn whole(&self, generation: &Generation) -> String {
        response(generation, generation.choices.first())
    }
}

/// The response object: in progress without a finished choice.
fn response(generation: &Generation, finished: Option<&Choice>) -> String {
    let is_cut = finished.is_some_and(|choice| choice.finish == "length");
    let status = match finished {
        None => "in_progress",
        Some(_) if is_cut => "incomplete",
        Some(_) => "completed",
    };
    let incomplete = if is_cut { r#"{"reason":"max_output_tokens"}"# } else { "null" };
    let output = finished.map_or_else(String::new, |choice| item(generation, choice));
    let limit = generation.ask.max_tokens.map_or_else(|| "null".to_owned(), |limit| limit.to_string());
    let usage = finished.map_or_else(|| "null".to_owned(), |_| usage(generation));
    format!(
        "{{\"id\":{},\"created_at\":{},\"incomplete_details\":{incomplete},\"instructions\":null,\"metadata\":null,\
         \"model\":{},\"object\":\"response\",\"output\":[{output}],\"parallel_tool_calls\":true,\"temperature\":0.0,\
         \"tool_choice\":\"none\",\"tools\":[],\"top_p\":1.0,\"background\":false,\"max_output_tokens\":{limit},\
         \"max_tool_calls\":null,\"previous_response_id\":null,\"prompt\":null,\"reasoning\":null,\
         \"service_tier\":\"auto\",\"status\":\"{status}\",\"text\":null,\"top_logprobs\":null,\
         \"truncation\":\"disabled\",\"usage\":{usage},\"user\":null,\"presence_penalty\":0.0,\
         \"frequency_penalty\":0.0,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\
         \"input_messages\":null,\"output_messages\":null}}",
        quote(&generation.id),
        generation.created,
        quote(&generation.ask.model),
    )
}

fn item(generation: &Generation, choice: &Choice) -> String {
    format!(
        "{{\"id\":\"{}\",\"content\":[{}],\"role\":\"assistant\",\"status\":\"completed\",\"type\":\"message\",\
         \"phase\":null}}",
        item_id(generation),
        output_text(choice)
    )
}

fn output_text(choice: &Choice) -> String {
    format!(r#"{{"annotations":[],"text":{},"type":"output_text","logprobs":null}}"#, quote(&choice.text()))
}

fn usage(generation: &Generation) -> String {
    let (input, output) = (generation.ask.prompt_tokens(), generation.completion_tokens());
    format!(
        "{{\"input_tokens\":{input},\"input_tokens_details\":{{\"cached_tokens\":{},\"cache_write_tokens\":{},\
         \"input_tokens_per_turn\":[],\"cached_tokens_per_turn\":[]}},\"output_tokens\":{output},\
         \"output_tokens_details\":{{\"reasoning_tokens\":0,\"tool_output_tokens\":0,\"output_tokens_per_turn\":[],\
         \"tool_output_tokens_per_turn\":[]}},\"total_tokens\":{}}}",
        generation.cached,
        generation.cache_written(),
        input + output,
    )
}

fn item_id(generation: &Generation) -> String {
    format!("msg_{:016x}", generation.ask.root.rotate_left(17) ^ generation.created)
}
