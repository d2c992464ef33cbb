//! Requests and answers of every dialect as messages of OpenTelemetry's conventions for GenAI. Pure.
//!
//! What the conventions have no form for keeps its own: a part of its `type`, or the whole body as one text. Nothing is left out.

use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};

/// `gen_ai.system_instructions`: what stands beside the messages of a request.
pub(super) fn instructions(request: &Json) -> Vec<Json> {
    let given = ["system", "instructions"].into_iter().find_map(|name| request.get(name));
    given.map(parts).unwrap_or_default()
}

/// `gen_ai.input.messages`: the messages of a request.
pub(super) fn input(request: &Json) -> Vec<Json> {
    if request.is_null() {
        return Vec::new();
    }
    let given = ["messages", "input", "prompt"].into_iter().find_map(|name| request.get(name));
    match given {
        Some(Json::Array(list)) if list.iter().all(Json::is_object) => list.iter().map(message).collect(),
        Some(given @ (Json::String(_) | Json::Array(_))) => vec![of("user", parts(given))],
        _ => vec![of("user", vec![text(&shown(request))])],
    }
}

/// `gen_ai.output.messages`: one for each choice. `reasons` are those of the whole answer, for a stream.
pub(super) fn output(answer: &Json, reasons: &[Box<str>]) -> Vec<Json> {
    let finished = |mut message: Json, reason: Option<&str>| {
        message["finish_reason"] = reason.unwrap_or("error").into();
        message
    };
    let list = |name: &str| answer.get(name).and_then(Json::as_array);
    match answer {
        Json::Null => Vec::new(),
        Json::Array(choices) => {
            let reason = |at: usize| reasons.get(at).or(reasons.last()).map(|reason| &**reason);
            let all = choices.iter().enumerate();
            all.map(|(at, choice)| finished(of("assistant", streamed(choice)), reason(at))).collect()
        }
        _ => {
            let reason_of = |it: &Json, name: &str| it.get(name).and_then(Json::as_str).map(str::to_owned);
            if let Some(choices) = list("choices") {
                let of_choice = |choice: &Json| {
                    let content = choice.get("message").map_or_else(|| message(choice), message);
                    finished(content, reason_of(choice, "finish_reason").as_deref())
                };
                return choices.iter().map(of_choice).collect();
            }
            let content = list("content").or_else(|| list("output"));
            let parts = match content {
                Some(list) => parts(&list.clone().into()),
                None => vec![text(&shown(answer))],
            };
            let reason =
                reason_of(answer, "stop_reason").or_else(|| reasons.first().map(|it| (**it).to_owned()));
            vec![finished(of("assistant", parts), reason.as_deref())]
        }
    }
}

fn of(role: &str, parts: Vec<Json>) -> Json {
    json!({ "role": role, "parts": parts })
}

/// A message of a chat, a text of completions, an item of Responses.
fn message(given: &Json) -> Json {
    let role = given.get("role").and_then(Json::as_str);
    let content = given.get("content").or_else(|| given.get("text"));
    if let Some(id) = given.get("tool_call_id") {
        let part = json!({ "type": "tool_call_response", "id": id, "response": content });
        return of(role.unwrap_or("tool"), vec![part]);
    }
    let mut all = match content {
        Some(content) => parts(content),
        None if role.is_none() => vec![generic(given)],
        None => Vec::new(),
    };
    for name in ["reasoning", "reasoning_content"] {
        if let Some(Json::String(thought)) = given.get(name) {
            all.push(json!({ "type": "reasoning", "content": thought }));
        }
    }
    let calls = given.get("tool_calls").and_then(Json::as_array);
    all.extend(calls.into_iter().flatten().map(|call| {
        let function = call.get("function").unwrap_or(call);
        json!({
            "type": "tool_call",
            "id": call.get("id"),
            "name": function.get("name"),
            "arguments": function.get("arguments"),
        })
    }));
    let default = if given.get("text").is_some() || calls.is_some() { "assistant" } else { "user" };
    of(role.unwrap_or(default), all)
}

/// The parts of a content: a text, or a list.
fn parts(content: &Json) -> Vec<Json> {
    match content {
        Json::Null => Vec::new(),
        Json::Array(list) => list.iter().flat_map(part).collect(),
        other => vec![text(&shown(other))],
    }
}

fn part(given: &Json) -> Vec<Json> {
    match (given, given.get("text"), given.get("content")) {
        (Json::Object(_), Some(Json::String(words)), _) => vec![text(words)],
        // An item of Responses' output.
        (Json::Object(_), None, Some(list @ Json::Array(_))) => parts(list),
        (Json::Object(_), ..) => vec![generic(given)],
        _ => vec![text(&shown(given))],
    }
}

/// What has a type keeps its form.
fn generic(given: &Json) -> Json {
    let mut part = given.clone();
    if let Json::Object(members) = &mut part {
        members.entry("type").or_insert_with(|| "other".into());
    }
    part
}

/// What was put together of a stream, by kind.
fn streamed(choice: &Json) -> Vec<Json> {
    let none = Map::new();
    let kinds = choice.as_object().unwrap_or(&none);
    let part = |(kind, words): (&String, &Json)| {
        let kind = match kind.as_str() {
            "content" | "text" => "text",
            "reasoning" | "reasoning_content" | "thinking" => "reasoning",
            kind => kind,
        };
        json!({ "type": kind, "content": words })
    };
    kinds.iter().map(part).collect()
}

fn text(words: &str) -> Json {
    json!({ "type": "text", "content": words })
}

fn shown(given: &Json) -> Cow<'_, str> {
    match given {
        Json::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_message(role: &str, parts: &Json) -> Json {
        json!({ "role": role, "parts": parts })
    }

    #[test]
    fn requests_of_every_dialect_become_messages() {
        let text = |words: &str| json!([{ "type": "text", "content": words }]);
        let image = json!({ "type": "image_url", "image_url": { "url": "http://x" } });
        let call = json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } });
        for (request, expected) in [
            (
                json!({ "messages": [{ "role": "system", "content": "s" }, { "role": "user", "content": "u" }] }),
                vec![a_message("system", &text("s")), a_message("user", &text("u"))],
            ),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "u" }, image] }] }),
                vec![a_message("user", &json!([{ "type": "text", "content": "u" }, image]))],
            ),
            (
                json!({ "messages": [{ "role": "assistant", "content": null, "tool_calls": [call] }, { "role": "tool", "tool_call_id": "1", "content": "r" }] }),
                vec![
                    a_message(
                        "assistant",
                        &json!([{ "type": "tool_call", "id": "1", "name": "f", "arguments": "{}" }]),
                    ),
                    a_message("tool", &json!([{ "type": "tool_call_response", "id": "1", "response": "r" }])),
                ],
            ),
            (json!({ "prompt": ["a", "b"] }), vec![a_message("user", &json!([text("a")[0], text("b")[0]]))]),
            (json!({ "input": "i", "instructions": "x" }), vec![a_message("user", &text("i"))]),
            (
                json!({ "input": [{ "type": "function_call_output", "output": "o" }] }),
                vec![a_message("user", &json!([{ "type": "function_call_output", "output": "o" }]))],
            ),
            (json!({ "query": "q" }), vec![a_message("user", &text(r#"{"query":"q"}"#))]),
            (json!("{\"messages\":[{\"con"), vec![a_message("user", &text("{\"messages\":[{\"con"))]),
            (Json::Null, vec![]),
        ] {
            assert_eq!(input(&request), expected, "{request}");
        }
        assert_eq!(
            instructions(&json!({ "system": [{ "type": "text", "text": "s" }] })),
            [text("s")[0].clone()]
        );
        assert!(instructions(&json!("cut")).is_empty());
    }

    #[test]
    fn answers_of_every_dialect_become_one_message_a_choice() {
        let whole = |parts: Json, reason: &str| json!({ "role": "assistant", "parts": parts, "finish_reason": reason });
        let text = |words: &str| json!([{ "type": "text", "content": words }]);
        for (answer, expected) in [
            (
                json!([{ "content": "a", "reasoning": "r" }, { "content": "b" }]),
                vec![
                    whole(
                        json!([{ "type": "text", "content": "a" }, { "type": "reasoning", "content": "r" }]),
                        "stop",
                    ),
                    whole(text("b"), "length"),
                ],
            ),
            (
                json!({ "choices": [{ "message": { "role": "assistant", "content": "a" }, "finish_reason": "tool" }] }),
                vec![whole(text("a"), "tool")],
            ),
            (json!({ "choices": [{ "text": "a", "finish_reason": null }] }), vec![whole(text("a"), "error")]),
            (
                json!({ "role": "assistant", "content": [{ "type": "text", "text": "m" }], "stop_reason": "end_turn" }),
                vec![whole(text("m"), "end_turn")],
            ),
            (
                json!({ "output": [{ "type": "message", "content": [{ "type": "output_text", "text": "o" }] }] }),
                vec![whole(text("o"), "stop")],
            ),
            (json!("half {"), vec![whole(text("half {"), "stop")]),
            (Json::Null, vec![]),
        ] {
            assert_eq!(output(&answer, &["stop".into(), "length".into()]), expected, "{answer}");
        }
    }
}
