//! `/v1/chat/completions`: chunks and the whole answer, key for key as recorded.

use bytes::Bytes;

use super::chunk;
use super::generation::{Choice, Generation, Render, Token, ids_or_null, quote, quote_or_null};

#[derive(Debug)]
pub(super) struct ChatRender {
    head: String,
    is_open: bool,
}

impl ChatRender {
    pub(super) fn new(generation: &Generation) -> Self {
        Self { head: chunk::head("chat.completion.chunk", generation), is_open: false }
    }

    /// The role-only chunks: no token, and sent together with the first one.
    fn open(&mut self, generation: &Generation, out: &mut Vec<Bytes>) {
        self.is_open = true;
        let usage = chunk::continuous_usage(generation, generation.ask.prompt_tokens(), 0);
        for (index, choice) in generation.choices.iter().enumerate() {
            let prompt = generation.ask.prompts.get(choice.prompt).map_or(&[][..], |p| &p.tokens);
            let ids = ids_or_null(generation.ask.return_token_ids, prompt);
            out.push(Bytes::from(format!(
                "{}{{\"index\":{index},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\
                 \"finish_reason\":null}}]{usage},\"prompt_token_ids\":{ids},\"prompt_text\":null}}\n\n",
                self.head
            )));
        }
    }

    fn chunk(&self, generation: &Generation, token: Token, delta: &str) -> Option<Bytes> {
        let choice = generation.choices.get(token.choice)?;
        let finish = if token.is_last { finish(choice) } else { r#""finish_reason":null"#.into() };
        let id = usize::try_from(token.index).ok().and_then(|index| choice.output.get(index));
        let ids = ids_or_null(generation.ask.return_token_ids, id.map_or(&[], std::slice::from_ref));
        let usage = chunk::continuous_usage(generation, generation.ask.prompt_tokens(), token.index + 1);
        let fingerprint = chunk::fingerprint(generation, token.is_last);
        Some(Bytes::from(format!(
            "{}{{\"index\":{},\"delta\":{delta},\"logprobs\":null,{finish},\"token_ids\":{ids}}}]{usage}\
             {fingerprint}}}\n\n",
            self.head, token.choice
        )))
    }
}

impl Render for ChatRender {
    fn token(&mut self, generation: &Generation, token: Token, out: &mut Vec<Bytes>) {
        if !self.is_open {
            self.open(generation, out);
        }
        let Some(choice) = generation.choices.get(token.choice) else { return };
        let piece = quote(&choice.piece(token.index));
        let delta = match &generation.ask.tool {
            None => format!(r#"{{"content":{piece}}}"#),
            Some(name) if token.index == 0 => {
                let (id, name) = (quote(&call_id(generation, token.choice)), quote(name));
                format!(
                    r#"{{"tool_calls":[{{"id":{id},"type":"function","index":0,"function":{{"name":{name},"arguments":{piece}}}}}]}}"#
                )
            }
            Some(_) => format!(r#"{{"tool_calls":[{{"index":0,"function":{{"arguments":{piece}}}}}]}}"#),
        };
        out.extend(self.chunk(generation, token, &delta));
    }

    fn close(&mut self, generation: &Generation, out: &mut Vec<Bytes>) {
        let written = format!(",\"created_cache_tokens\":{}", generation.cache_written());
        chunk::close(&self.head, generation, &written, out);
    }

    fn whole(&self, generation: &Generation) -> String {
        let choices = generation.choices.iter().enumerate();
        let choices: Vec<String> =
            choices.map(|(index, choice)| whole_choice(generation, index, choice)).collect();
        let ids = generation.ask.prompts.first().map_or(&[][..], |p| &p.tokens);
        let ids = ids_or_null(generation.ask.return_token_ids, ids);
        let prompt = format!("\"prompt_logprobs\":null,\"prompt_token_ids\":{ids},\"prompt_text\":null,");
        let written = generation.cache_written().to_string();
        chunk::whole("chat.completion", generation, &choices, &written, &prompt)
    }
}

fn whole_choice(generation: &Generation, index: usize, choice: &Choice) -> String {
    let text = quote(&choice.text());
    let (content, calls) = match &generation.ask.tool {
        None => (text, String::new()),
        Some(name) => {
            let (id, name) = (quote(&call_id(generation, index)), quote(name));
            let call = format!(
                r#","tool_calls":[{{"id":{id},"type":"function","function":{{"name":{name},"arguments":{text}}}}}]"#
            );
            ("null".to_owned(), call)
        }
    };
    let ids = ids_or_null(generation.ask.return_token_ids, &choice.output);
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

fn call_id(generation: &Generation, choice: usize) -> String {
    format!("chatcmpl-tool-{:016x}", generation.ask.root.wrapping_add(generation.created + choice as u64))
}
