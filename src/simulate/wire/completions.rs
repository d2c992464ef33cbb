//! `/v1/completions`: chunks and the whole answer, key for key as recorded. No role chunk; `echo` puts the
//! prompt before the first token.

use bytes::Bytes;

use super::answer::{Answer, Choice, DONE, FINGERPRINT, Render, Token, ids_or_null, quote, quote_or_null};

/// The chunks of one stream.
#[derive(Debug)]
pub(super) struct CompletionStream {
    /// Up to the opening bracket of `choices`.
    head: String,
}

impl CompletionStream {
    pub(super) fn new(answer: &Answer) -> Self {
        let (id, model) = (quote(&answer.id), quote(&answer.ask.model));
        let created = answer.created;
        let head = format!(
            r#"data: {{"id":{id},"object":"text_completion","created":{created},"model":{model},"choices":["#
        );
        Self { head }
    }
}

impl Render for CompletionStream {
    fn token(&mut self, answer: &Answer, token: Token, out: &mut Vec<Bytes>) {
        let Some(choice) = answer.choices.get(token.choice) else { return };
        let mut text = choice.piece(token.index);
        let mut prompt_ids = "null".to_owned();
        if token.index == 0 {
            text.insert_str(0, echoed(answer, choice));
            prompt_ids = ids_or_null(answer.ask.return_token_ids, prompt_tokens(answer, choice));
        }
        let id = usize::try_from(token.index).ok().and_then(|index| choice.output.get(index));
        let ids = ids_or_null(answer.ask.return_token_ids, id.map_or(&[], std::slice::from_ref));
        let (finish, stop) = if token.is_last {
            (quote(choice.finish), quote_or_null(choice.stop.as_deref()))
        } else {
            ("null".into(), "null".into())
        };
        let fingerprint = if token.is_last && !answer.ask.include_usage { FINGERPRINT_FIELD } else { "" };
        out.push(Bytes::from(format!(
            "{}{{\"index\":{},\"text\":{},\"logprobs\":null,\"finish_reason\":{finish},\"stop_reason\":{stop},\
             \"prompt_token_ids\":{prompt_ids},\"token_ids\":{ids}}}]{}{fingerprint}}}\n\n",
            self.head,
            token.choice,
            quote(&text),
            continuous_usage(answer, choice, token.index + 1),
        )));
    }

    fn close(&mut self, answer: &Answer, out: &mut Vec<Bytes>) {
        if answer.ask.include_usage {
            let (prompt, output) = (answer.ask.prompt_tokens(), answer.completion_tokens());
            out.push(Bytes::from(format!(
                "{}],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{output},\
                 \"prompt_tokens_details\":{{\"cached_tokens\":{}}}}}{FINGERPRINT_FIELD}}}\n\n",
                self.head,
                prompt + output,
                answer.cached,
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
    format!(
        "{{\"id\":{},\"object\":\"text_completion\",\"created\":{},\"model\":{},\"choices\":[{}],\
         \"service_tier\":null,\"system_fingerprint\":\"{FINGERPRINT}\",\"usage\":{{\"prompt_tokens\":{prompt},\
         \"total_tokens\":{},\"completion_tokens\":{output},\"prompt_tokens_details\":{{\"cached_tokens\":{},\
         \"created_cache_tokens\":null,\"multimodal_tokens\":null}},\"completion_tokens_details\":null}},\
         \"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}}",
        quote(&answer.id),
        answer.created,
        quote(&answer.ask.model),
        choices.join(","),
        prompt + output,
        answer.cached,
    )
}

fn unary_choice(answer: &Answer, index: usize, choice: &Choice) -> String {
    let text = quote(&format!("{}{}", echoed(answer, choice), choice.text()));
    let asked = answer.ask.return_token_ids;
    format!(
        "{{\"index\":{index},\"text\":{text},\"logprobs\":null,\"finish_reason\":\"{}\",\"stop_reason\":{},\
         \"token_ids\":{},\"prompt_logprobs\":null,\"prompt_token_ids\":{},\"routed_experts\":null}}",
        choice.finish,
        quote_or_null(choice.stop.as_deref()),
        ids_or_null(asked, &choice.output),
        ids_or_null(asked, prompt_tokens(answer, choice)),
    )
}

fn echoed<'a>(answer: &'a Answer, choice: &Choice) -> &'a str {
    let prompt = answer.ask.prompts.get(choice.prompt).filter(|_| answer.ask.echo);
    prompt.map_or("", |p| p.text.as_str())
}

fn prompt_tokens<'a>(answer: &'a Answer, choice: &Choice) -> &'a [u32] {
    answer.ask.prompts.get(choice.prompt).map_or(&[][..], |p| &p.tokens)
}

fn continuous_usage(answer: &Answer, choice: &Choice, output: u64) -> String {
    if !answer.ask.continuous_usage {
        return String::new();
    }
    let prompt = prompt_tokens(answer, choice).len() as u64;
    let total = prompt + output;
    format!(
        r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{output},"completion_tokens_details":null}}"#
    )
}

const FINGERPRINT_FIELD: &str = r#","system_fingerprint":"vllm-0.32.0-0f84c043""#;
