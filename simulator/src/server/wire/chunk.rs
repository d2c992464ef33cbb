//! What the chunks of chat and completions streams have in common.

use bytes::Bytes;

use super::generation::{Generation, quote};

/// The end of a stream.
pub(super) const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// A chunk up to the opening bracket of `choices`.
pub(super) fn head(object: &str, generation: &Generation) -> String {
    let (id, model) = (quote(&generation.id), quote(&generation.ask.model));
    let created = generation.created;
    format!(r#"data: {{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":["#)
}

/// The usage so far, of every chunk under `continuous_usage_stats`.
pub(super) fn continuous_usage(generation: &Generation, prompt: u64, output: u64) -> String {
    if !generation.ask.continuous_usage {
        return String::new();
    }
    let total = prompt + output;
    format!(
        r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{output},"completion_tokens_details":null}}"#
    )
}

/// The fingerprint, in the last chunk of a choice where no usage chunk will carry it.
pub(super) fn fingerprint(generation: &Generation, is_last: bool) -> &'static str {
    if is_last && !generation.ask.include_usage { FINGERPRINT_FIELD } else { "" }
}

/// The usage chunk under `include_usage`, and the end of the stream. `cache_details` follow `cached_tokens`.
pub(super) fn close(head: &str, generation: &Generation, cache_details: &str, out: &mut Vec<Bytes>) {
    if generation.ask.include_usage {
        let (prompt, output) = (generation.ask.prompt_tokens(), generation.completion_tokens());
        out.push(Bytes::from(format!(
            "{head}],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{output},\
             \"prompt_tokens_details\":{{\"cached_tokens\":{}{cache_details}}}}}{FINGERPRINT_FIELD}}}\n\n",
            prompt + output,
            generation.cached,
        )));
    }
    out.push(DONE);
}

/// A whole answer of `choices`. `written` are the tokens it put into the prefix cache, `prompt` is what is shown of the prompt.
pub(super) fn whole(
    object: &str,
    generation: &Generation,
    choices: &[String],
    written: &str,
    prompt: &str,
) -> String {
    let (input, output) = (generation.ask.prompt_tokens(), generation.completion_tokens());
    format!(
        "{{\"id\":{},\"object\":\"{object}\",\"created\":{},\"model\":{},\"choices\":[{}],\
         \"service_tier\":null{FINGERPRINT_FIELD},\"usage\":{{\"prompt_tokens\":{input},\
         \"total_tokens\":{},\"completion_tokens\":{output},\"prompt_tokens_details\":{{\"cached_tokens\":{},\
         \"created_cache_tokens\":{written},\"multimodal_tokens\":null}},\"completion_tokens_details\":null}},\
         {prompt}\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}}",
        quote(&generation.id),
        generation.created,
        quote(&generation.ask.model),
        choices.join(","),
        input + output,
        generation.cached,
    )
}

/// As in the recordings.
const FINGERPRINT_FIELD: &str = r#","system_fingerprint":"vllm-0.32.0-0f84c043""#;
