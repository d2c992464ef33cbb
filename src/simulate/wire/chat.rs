//! `/v1/chat/completions`: chunks and the whole answer, key for key as recorded.

use bytes::Bytes;

use super::answer::{Answer, Choice, DONE, FINGERPRINT, Render, Token, ids_or_null, quote, quote_or_null};

/// The chunks of one stream.
#[derive(Debug)]
pub(super) struct ChatStream {
    /// Up to the opening bracket of `choices`.
    head: String,
    is_open: bool,
}

impl ChatStream {
    pub(super) fn new(answer: &Answer) -> Self {
        let (id, model) = (quote(&answer.id), quote(&answer.ask.model));
        let created = answer.created;
        let head = format!(
            r#"data: {{"id":{id},"object":"chat.completion.chunk","created":{created},"model":{model},"choices":["#
        );
        Self { head, is_open: false }
    }

    /// The role-only chunks: no token, and sent together with the first one.
    fn open(&mut self, answer: &Answer, out: &mut Vec<Bytes>) {
        self.is_open = true;
        let usage = continuous_usage(answer, 0);
        for (index, choice) in answer.choices.iter().enumerate() {
            let prompt = answer.ask.prompts.get(choice.prompt).map_or(&[][..], |p| &p.tokens);
            let ids = ids_or_null(answer.ask.return_token_ids, prompt);
            out.push(Bytes::from(format!(
                "{}{{\"index\":{index},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\
                 \"finish_reason\":null}}]{usage},\"prompt_token_ids\":{ids},\"prompt_text\":null}}\n\n",
                self.head
            )));
        }
    }

    fn chunk(&self, answer: &Answer, token: Token, delta: &str) -> Option<Bytes> {
        let choice = answer.choices.get(token.choice)?;
        let finish = if token.is_last { finish(choice) } else { r#""finish_reason":null"#.into() };
        let id = usize::try_from(token.index).ok().and_then(|index| choice.output.get(index));
        let ids = ids_or_null(answer.ask.return_token_ids, id.map_or(&[], std::slice::from_ref));
        let usage = continuous_usage(answer, token.index + 1);
        let fingerprint = if token.is_last && !answer.ask.include_usage { FINGERPRINT_FIELD } else { "" };
        Some(Bytes::from(format!(
            "{}{{\"index\":{},\"delta\":{delta},\"logprobs\":null,{finish},\"token_ids\":{ids}}}]{usage}\
             {fingerprint}}}\n\n",
            self.head, token.choice
        )))
    }
}

impl Render for ChatStream {
    fn token(&mut self, answer: &Answer, token: Token, out: &mut Vec<Bytes>) {
        if !self.is_open {
            self.open(answer, out);
        }
        let Some(choice) = answer.choices.get(token.choice) else { return };
        let piece = quote(&choice.piece(token.index));
        let delta = match &answer.ask.tool {
            None => format!(r#"{{"content":{piece}}}"#),
            Some(name) if token.index == 0 => {
                let (id, name) = (quote(&call_id(answer, token.choice)), quote(name));
                format!(
                    r#"{{"tool_calls":[{{"id":{id},"type":"function","index":0,"function":{{"name":{name},"arguments":{piece}}}}}]}}"#
                )
            }
            Some(_) => format!(r#"{{"tool_calls":[{{"index":0,"function":{{"arguments":{piece}}}}}]}}"#),
        };
        out.extend(self.chunk(answer, token, &delta));
    }

    fn close(&mut self, answer: &Answer, out: &mut Vec<Bytes>) {
        if answer.ask.include_usage {
            let (prompt, output) = (answer.ask.prompt_tokens(), answer.completion_tokens());
            out.push(Bytes::from(format!(
                "{}],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{output},\
                 \"prompt_tokens_details\":{{\"cached_tokens\":{},\"created_cache_tokens\":{}}}}}{FINGERPRINT_FIELD}}}\n\n",
                self.head,
                prompt + output,
                answer.cached,
                answer.cache_written(),
            )));
        }
        out.push(DONE);
    }
}

/// The whole answer of a request without `stream`.
pub(super) fn unary(answer: &Answer) -> String {
    let choices: Vec<String> = answer
        .choices
        .iter()
        .enumerate()
        .map(|(index, choice)| unary_choice(answer, index, choice))
        .collect();
    let (prompt, output) = (answer.ask.prompt_tokens(), answer.completion_tokens());
    let ids = answer.ask.prompts.first().map_or(&[][..], |p| &p.tokens);
    format!(
        "{{\"id\":{},\"object\":\"chat.completion\",\"created\":{},\"model\":{},\"choices\":[{}],\
         \"service_tier\":null,\"system_fingerprint\":\"{FINGERPRINT}\",\"usage\":{{\"prompt_tokens\":{prompt},\
         \"total_tokens\":{},\"completion_tokens\":{output},\"prompt_tokens_details\":{{\"cached_tokens\":{},\
         \"created_cache_tokens\":{},\"multimodal_tokens\":null}},\"completion_tokens_details\":null}},\
         \"prompt_logprobs\":null,\"prompt_token_ids\":{},\"prompt_text\":null,\"kv_transfer_params\":null,\
         \"ec_transfer_params\":null,\"metrics\":null}}",
        quote(&answer.id),
        answer.created,
        quote(&answer.ask.model),
        choices.join(","),
        prompt + output,
        answer.cached,
        answer.cache_written(),
        ids_or_null(answer.ask.return_token_ids, ids),
    )
}

fn unary_choice(answer: &Answer, index: usize, choice: &Choice) -> String {
    let text = quote(&choice.text());
    let (content, calls) = match &answer.ask.tool {
        None => (text, String::new()),
        Some(name) => {
            let (id, name) = (quote(&call_id(answer, index)), quote(name));
            let call = format!(
                r#","tool_calls":[{{"id":{id},"type":"function","function":{{"name":{name},"arguments":{text}}}}}]"#
            );
            ("null".to_owned(), call)
        }
    };
    let ids = ids_or_null(answer.ask.return_token_ids, &choice.output);
    format!(
        "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":{content},\"refusal\":null,\
         \"annotations\":null,\"audio\":null,\"function_call\":null{calls},\"reasoning\":null}},\"logprobs\":null,\
         {},\"token_ids\":{ids},\"routed_experts\":null}}",
        finish(choice),
    )
}

fn finish(choice: &Choice) -> String {
    let stop = quote_or_null(choice.stop.as_deref());
    format!(r#""finish_reason":"{}","stop_reason":{stop}"#, choice.finish)
}

fn call_id(answer: &Answer, choice: usize) -> String {
    format!("chatcmpl-tool-{:016x}", answer.ask.root.wrapping_add(answer.created + choice as u64))
}

/// Usage so far, in every chunk, where `continuous_usage_stats` asks for it.
fn continuous_usage(answer: &Answer, output: u64) -> String {
    if !answer.ask.continuous_usage {
        return String::new();
    }
    let prompt = answer.ask.prompt_tokens();
    let total = prompt + output;
    format!(
        r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{output},"completion_tokens_details":null}}"#
    )
}

const FINGERPRINT_FIELD: &str = r#","system_fingerprint":"vllm-0.32.0-0f84c043""#;
