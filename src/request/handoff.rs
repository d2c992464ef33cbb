//! The two bodies of a request whose prompt is computed by one engine and decoded by another (`kv_transfer_params`).
//!
//! As everywhere, splices on the raw bytes. The prefill request is the client's with one token, unary and without usage options,
//! and asks the engine to keep the KV; the decoding one is the client's with the object that the first answer brought. A body that
//! brings an object of its own, or asks for what cannot be had from moved KV, is sent as it is to one engine.

use std::ops::Range;

use bytes::Bytes;

use crate::request::dialect::Dialect;
use crate::request::fields::{KV_MEMBERS, truth, whole_number};
use crate::request::json::{Cursor, JsonError, JsonKind, Raw};
use crate::request::splice::{Edit, apply, in_order, open_of};

/// Both requests of one body.
#[derive(Debug)]
pub struct Handoff {
    body: Bytes,
    /// One token, unary, nothing stored.
    of_one_token: Vec<Edit>,
    /// A budget of thinking is to be below the limit of tokens, but in a request whose KV is kept: without one, the prompt is the same.
    without_budget: Vec<Edit>,
    /// Behind the brace that opens the body.
    open: usize,
    /// Values by name that others take the place of; a member without any goes behind the brace that opens the body.
    given: Vec<(&'static str, Range<usize>)>,
}

impl Handoff {
    /// Reads a body.
    ///
    /// # Errors
    /// Why its prompt is to be computed where it is decoded, as the label `reason`.
    pub fn of(dialect: Dialect, body: &Bytes) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(body).map_err(|_| UNREADABLE)?;
        let open = open_of(body).ok_or(UNREADABLE)?;
        let limits = if dialect.generates() { dialect.answer_limits() } else { return Err("dialect") };
        let mut handoff = Self {
            body: body.clone(),
            of_one_token: Vec::new(),
            without_budget: Vec::new(),
            open,
            given: Vec::new(),
        };
        let (mut has_limit, mut has_store, mut refused) = (false, false, None);
        Cursor::new(text)
            .object(|key, value| {
                let value = value.value()?;
                let Some(key) = key.string() else { return Ok(()) };
                has_limit |= limits.contains(&&*key);
                has_store |= key == "store";
                refused = refused.or(handoff.member(&key, value, limits));
                Ok::<_, JsonError>(())
            })
            .map_err(|_| UNREADABLE)?;
        if let Some(reason) = refused {
            return Err(reason);
        }
        let limit = limits.first().filter(|_| !has_limit).map(|limit| (*limit, "1"));
        let store = (dialect == Dialect::Responses && !has_store).then_some(("store", "false"));
        let added = limit.into_iter().chain(store).map(|(key, value)| Edit::put(open, None, key, value));
        handoff.of_one_token.extend(added);
        Ok(handoff)
    }

    fn member(&mut self, key: &str, value: Raw<'_>, limits: &[&str]) -> Option<&'static str> {
        let is_null = value.kind() == JsonKind::Null;
        if let Some(known) = KV_MEMBERS.into_iter().chain([SALT]).find(|known| *known == key) {
            self.given.push((known, value.span()));
            return (known != SALT && !is_null).then_some(OWN_PARAMS);
        }
        if key == "thinking" && names_budget(value) {
            self.without_budget.push(Edit::replace(value.span(), r#"{"type":"adaptive"}"#));
            return None;
        }
        let one = match key {
            "stream" | "store" => "false",
            "stream_options" => "null",
            "min_tokens" => "0",
            key if limits.contains(&key) => "1",
            "prompt_logprobs" if !is_null => return Some("logprobs"),
            "use_beam_search" if !is_null && truth(&value) != Some(false) => return Some("choices"),
            "best_of" if !is_null && whole_number(&value) != Some(1) => return Some("choices"),
            _ => return None,
        };
        self.of_one_token.push(Edit::replace(value.span(), one));
        None
    }

    /// The request that computes the prompt; `ask` is the object that makes the engine keep its KV, if it takes one.
    pub fn prefill(&self, ask: Option<&str>) -> Bytes {
        match ask {
            Some(_) => self.edited(self.params(ask), &self.of_one_token),
            None => self.of_one_token(Vec::new()),
        }
    }

    /// The client's request with the object of the prefill answer.
    pub fn decode(&self, params: Option<&str>) -> Bytes {
        self.edited(self.params(params), &[])
    }

    /// The request of one token that fetches the KV of the prefill answer and throws it away. An engine may have let that KV go, and
    /// hold another prompt there: under a salt of its own, what is read serves no later request.
    pub fn release(&self, params: &str) -> Bytes {
        let salt = format!("\"{:032x}\"", fastrand::u128(..));
        let mut edits = self.params(Some(params));
        edits.extend(self.put(SALT, &salt));
        self.of_one_token(edits)
    }

    /// Both requests of engines that meet in a room: the one that computes the prompt, and the client's.
    pub fn at_once(&self, room: &Room<'_>) -> [Bytes; 2] {
        let Room { host, port, number } = room;
        let (host, port, number) = (format!("\"{host}\""), port.to_string(), number.to_string());
        let members = [("bootstrap_host", host), ("bootstrap_port", port), ("bootstrap_room", number)];
        let meet = || members.iter().flat_map(|(key, value)| self.put(key, value)).collect();
        [self.of_one_token(meet()), self.edited(meet(), &[])]
    }

    fn params(&self, params: Option<&str>) -> Vec<Edit> {
        params.map_or_else(Vec::new, |params| self.put("kv_transfer_params", params))
    }

    /// A member in place of all that are given, else one more.
    fn put(&self, key: &str, value: &str) -> Vec<Edit> {
        let put = |at: Option<Range<usize>>| Edit::put(self.open, at, key, value);
        let given = self.given.iter().filter(|(name, _)| *name == key).map(|(_, at)| at.clone());
        let edits: Vec<Edit> = given.map(Some).map(put).collect();
        if edits.is_empty() { vec![put(None)] } else { edits }
    }

    fn of_one_token(&self, mut edits: Vec<Edit>) -> Bytes {
        edits.extend_from_slice(&self.without_budget);
        self.edited(edits, &self.of_one_token)
    }

    fn edited(&self, mut edits: Vec<Edit>, more: &[Edit]) -> Bytes {
        edits.extend_from_slice(more);
        if edits.is_empty() {
            return self.body.clone();
        }
        in_order(&mut edits);
        apply(&self.body, &edits)
    }
}

fn names_budget(thinking: Raw<'_>) -> bool {
    let budget = Cursor::new(thinking.text()).members(["budget_tokens"]);
    budget.is_ok_and(|[budget]| budget.is_some())
}

/// Where two engines of SGLang meet for the KV of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room<'a> {
    host: &'a str,
    port: u16,
    number: u64,
}

impl<'a> Room<'a> {
    /// A new one at the prefill engine's bootstrap server.
    pub fn of(host: &'a str, port: u16) -> Self {
        // A signed number there.
        Self { host, port, number: fastrand::u64(..) >> 1 }
    }
}

/// The object of a prefill answer, as it stands there; `None` where the answer has none or is no JSON.
pub fn params_of(answer: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(answer).ok()?;
    let mut cursor = Cursor::new(text);
    let [params] = cursor.members(["kv_transfer_params"]).ok()?;
    cursor.end().ok()?;
    Some(params.filter(|params| params.kind() == JsonKind::Object)?.text())
}

/// Asks vLLM to keep the KV of a prompt for another engine.
pub const KEEP_KV: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;
const SALT: &str = "cache_salt";
const UNREADABLE: &str = "unreadable";
/// The client arranges for its KV itself.
const OWN_PARAMS: &str = "own_params";
/// Bytes: block ids of a prompt of a million tokens. What is longer is not sent on.
pub const MAX_PARAMS: usize = 1 << 19;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn both(dialect: Dialect, body: &str) -> Result<(Value, String), &'static str> {
        let handoff = Handoff::of(dialect, &Bytes::copy_from_slice(body.as_bytes()))?;
        let prefill = serde_json::from_slice(&handoff.prefill(Some(KEEP_KV))).unwrap();
        let decode = handoff.decode(Some(r#"{"remote_port":5600}"#));
        Ok((prefill, String::from_utf8(decode.to_vec()).unwrap()))
    }

    #[test]
    fn the_prefill_request_has_one_token_and_the_decoding_one_is_the_client_s() {
        let keep: Value = serde_json::from_str(KEEP_KV).unwrap();
        for (dialect, body, one) in [
            (
                Dialect::Chat,
                r#" {"model":"m", "stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":9,"min_tokens":4}"#,
                json!({"model":"m","stream":false,"stream_options":null,"max_completion_tokens":1,"min_tokens":0}),
            ),
            (Dialect::Chat, r#"{"messages":[]}"#, json!({"messages":[],"max_tokens":1})),
            (
                Dialect::Completions,
                r#"{"prompt":"x","max_tokens":null}"#,
                json!({"prompt":"x","max_tokens":1}),
            ),
            (Dialect::Messages, r#"{"max_tokens":64,"stream":true}"#, json!({"max_tokens":1,"stream":false})),
            (
                Dialect::Responses,
                r#"{"input":"x","max_output_tokens":30}"#,
                json!({"input":"x","max_output_tokens":1,"store":false}),
            ),
            (Dialect::Responses, r#"{"store":true}"#, json!({"max_output_tokens":1,"store":false})),
        ] {
            let (prefill, decode) = both(dialect, body).unwrap();
            let mut expected = one;
            expected["kv_transfer_params"] = keep.clone();
            assert_eq!(prefill, expected, "{body}");
            let open = body.find('{').unwrap() + 1;
            let (before, after) = body.split_at(open);
            assert_eq!(decode, format!(r#"{before}"kv_transfer_params":{{"remote_port":5600}},{after}"#));
        }
    }

    #[test]
    fn a_null_object_is_replaced_where_it_stands() {
        let body = r#"{"kv_transfer_params":null,"max_tokens":2}"#;
        let (prefill, decode) = both(Dialect::Chat, body).unwrap();
        assert_eq!(prefill["kv_transfer_params"]["do_remote_decode"], true);
        assert_eq!(decode, r#"{"kv_transfer_params":{"remote_port":5600},"max_tokens":2}"#);
        let handoff = Handoff::of(Dialect::Chat, &Bytes::from_static(body.as_bytes())).unwrap();
        assert_eq!(handoff.decode(None), body, "a shared store needs no object");
    }

    #[test]
    fn kv_that_is_thrown_away_is_fetched_under_a_salt_that_nobody_has() {
        let mut seen = Vec::new();
        for body in [r#"{"max_tokens":2}"#, r#"{"cache_salt":"own","max_tokens":2}"#] {
            let handoff = Handoff::of(Dialect::Chat, &Bytes::from_static(body.as_bytes())).unwrap();
            let released: Value =
                serde_json::from_slice(&handoff.release(r#"{"remote_port":5600}"#)).unwrap();
            let salt = released["cache_salt"].as_str().unwrap().to_owned();
            let (params, one) = (json!({"remote_port":5600}), 1);
            assert_eq!(released, json!({"cache_salt":salt,"kv_transfer_params":params,"max_tokens":one}));
            assert!(handoff.decode(None) == body && salt.len() == 32 && !seen.contains(&salt));
            seen.push(salt);
        }
    }

    #[test]
    fn engines_that_meet_in_a_room_get_it_in_both_requests() {
        let body = r#"{"model":"m","stream":true,"max_tokens":9,"bootstrap_room":null}"#;
        let handoff = Handoff::of(Dialect::Chat, &Bytes::from_static(body.as_bytes())).unwrap();
        let room = Room::of("gpu-1", 8998);
        let [prefill, decode] = handoff.at_once(&room);
        let head = r#"{"bootstrap_host":"gpu-1","bootstrap_port":8998,"#;
        let one = format!(r#""model":"m","stream":false,"max_tokens":1,"bootstrap_room":{}}}"#, room.number);
        assert_eq!(
            decode,
            format!(r#"{head}"model":"m","stream":true,"max_tokens":9,"bootstrap_room":{}}}"#, room.number)
        );
        assert_eq!(prefill, format!("{head}{one}"), "a null of its own would take the room's place");
        assert!(room.number <= i64::MAX as u64 && room != Room::of("gpu-1", 8998));
    }

    #[test]
    fn a_budget_of_thinking_is_left_where_one_token_may_have_it() {
        let body = r#"{"max_tokens":4096,"thinking":{"type":"enabled","budget_tokens":2048}}"#;
        let handoff = Handoff::of(Dialect::Messages, &Bytes::from_static(body.as_bytes())).unwrap();
        let thinking = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["thinking"].to_string();
        let budget = r#"{"budget_tokens":2048,"type":"enabled"}"#;
        assert_eq!(
            [handoff.prefill(Some("{}")), handoff.decode(Some("{}"))].map(|body| thinking(&body)),
            [budget; 2]
        );
        let [computed, answered] = handoff.at_once(&Room::of("gpu-1", 8998));
        assert_eq!(thinking(&answered), budget);
        let without = [handoff.prefill(None), handoff.release("{}"), computed];
        assert_eq!(without.map(|body| thinking(&body)), [r#"{"type":"adaptive"}"#; 3]);
    }

    #[test]
    fn what_one_engine_has_to_answer_is_left_alone() {
        for (dialect, body, reason) in [
            (Dialect::Chat, r#"{"kv_transfer_params":{"a":1}}"#, "own_params"),
            (Dialect::Chat, r#"{"bootstrap_room":7}"#, "own_params"),
            (Dialect::Completions, r#"{"prompt_logprobs":1}"#, "logprobs"),
            (Dialect::Completions, r#"{"use_beam_search":true}"#, "choices"),
            (Dialect::Completions, r#"{"best_of":2}"#, "choices"),
            (Dialect::Embeddings, r#"{"input":"x"}"#, "dialect"),
            (Dialect::Chat, "[]", "unreadable"),
        ] {
            assert_eq!(both(dialect, body).unwrap_err(), reason, "{body}");
        }
    }

    #[test]
    fn the_object_is_taken_as_it_stands_or_not_at_all() {
        for (answer, expected) in [
            (r#"{"id":"a","kv_transfer_params":{"a": [1]} }"#, Some(r#"{"a": [1]}"#)),
            (r#"{"kv_transfer_params":null}"#, None),
            (r#"{"kv_transfer_params":"x"}"#, None),
            (r#"{"id":"a"}"#, None),
            (r#"{"kv_transfer_params":{"a":1}"#, None),
            ("data: {}", None),
            ("", None),
        ] {
            assert_eq!(params_of(answer.as_bytes()), expected, "{answer}");
        }
    }
}
