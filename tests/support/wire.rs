//! Bytes as an engine writes them, and the little HTTP that raw sockets need.

use super::replica::{Gate, Step};

pub const MODELS: &str =
    r#"{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"vllm","root":"/models/tiny"}]}"#;

pub const METRICS: &str = "vllm:num_requests_running{engine=\"0\"} 0.0\n\
    vllm:num_requests_waiting{engine=\"0\"} 0.0\n\
    vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"1000\"} 1.0\n";

pub const ROLE: &str = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"model\":\"tiny\",\"choices\":[{\"index\":0,\
    \"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";

pub const FINISH: &str = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"model\":\"tiny\",\"choices\":[{\"index\":0,\
    \"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

pub const USAGE: &str = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"model\":\"tiny\",\"choices\":[],\
    \"usage\":{\"prompt_tokens\":9,\"total_tokens\":11,\"completion_tokens\":2}}\n\n";

pub const DONE: &str = "data: [DONE]\n\n";

/// vLLM's last event when it shuts down.
pub const ABORTED: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"abort\"}]}\n\n";

/// The engine core died: reported by an event, with status 200 and a `[DONE]`.
pub const ENGINE_DEAD: &str = "data: {\"error\":{\"message\":\"EngineCore encountered an issue. See stack trace (above) for the \
    root cause.\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\n";

pub const ENGINE_ERROR: &str = "data: {\"error\":{\"message\":\"the sampler said no\",\"type\":\"InternalServerError\",\
    \"param\":null,\"code\":500}}\n\n";

/// The same as vLLM before 0.10, SGLang and LMDeploy write it.
pub const FLAT_ERROR: &str = "data: {\"object\":\"error\",\"message\":\"out of memory\",\"type\":\"InternalServerError\",\"code\":500}\n\n";

pub const SHUTTING_DOWN: &str = r#"{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}"#;

/// A content event of a chat stream.
pub fn content(text: &str) -> String {
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"model\":\"tiny\",\"choices\":[{{\"index\":0,\
         \"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\n\n"
    )
}

/// The head of an event stream.
pub fn sse_head() -> Step {
    Step::Raw(
        b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
          x-tokenway-replica: forged\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec(),
    )
}

/// One chunk.
pub fn event(text: impl AsRef<[u8]>) -> Step {
    Step::Chunk(text.as_ref().to_vec())
}

/// Head, role and one content event: a stream that has begun.
pub fn begun(text: &str) -> Vec<Step> {
    vec![sse_head(), event(ROLE), event(content(text))]
}

/// A stream that has begun, and what comes then.
pub fn begun_then(text: &str, then: impl IntoIterator<Item = Step>) -> Vec<Step> {
    begun(text).into_iter().chain(then).collect()
}

/// A stream of these chunks, complete.
pub fn stream<T: AsRef<[u8]>>(chunks: impl IntoIterator<Item = T>) -> Vec<Step> {
    let mut script = vec![sse_head()];
    script.extend(chunks.into_iter().map(event));
    script.push(Step::End);
    script
}

/// A complete chat stream of these texts.
pub fn chat_stream(texts: &[&str]) -> Vec<Step> {
    stream(chat_events(texts))
}

/// The events of a complete chat stream.
pub fn chat_events(texts: &[&str]) -> Vec<String> {
    let mut events = vec![ROLE.to_owned()];
    events.extend(texts.iter().map(|text| content(text)));
    events.extend([FINISH.to_owned(), DONE.to_owned()]);
    events
}

/// These steps once the gate is opened.
pub fn behind(gate: &Gate, steps: Vec<Step>) -> Vec<Step> {
    [vec![Step::Wait(gate.clone())], steps].concat()
}

/// This event, the protocol's end and the body's.
pub fn ending(event: impl AsRef<[u8]>) -> Vec<Step> {
    vec![self::event(event), self::event(DONE), Step::End]
}

/// A whole answer with a length.
pub fn json(status: u16, body: &str) -> Vec<Step> {
    vec![Step::Raw(whole(status, "application/json", body))]
}

pub fn whole(status: u16, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Whatever\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// Where a head's blank line ends.
pub fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Every value of a header in a head.
pub fn values<'h>(head: &'h str, name: &str) -> Vec<&'h str> {
    head.lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
        .collect()
}
