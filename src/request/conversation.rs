//! Which conversation a request belongs to, where its client does not say: the part of its messages that every turn repeats.
//!
//! That is all before the first answer of the assistant: system prompt and first question. Turns of one conversation have it in
//! common, other conversations do not, although they share the system prompt. Completions and plain inputs have no turns.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::fields::Fields;
use super::json::{JsonError, JsonKind, Raw};

/// The same number for every turn of a conversation; `None` for what is none.
#[must_use]
pub fn conversation(fields: &Fields<'_>) -> Option<u64> {
    let turns = fields.prompt.messages.or(fields.prompt.input.filter(|_| is_of_responses(fields)))?;
    if turns.kind() != JsonKind::Array {
        return None;
    }
    let (mut hash, mut asked) = (0, false);
    let walked = turns.cursor().array(|turns| {
        let (turn, [role]) = turns.value_with(["role"])?;
        if turn.kind() == JsonKind::Object && is_of_assistant(role) {
            return Err(Stop::Answered);
        }
        hash = xxh3_64_with_seed(turn.text().as_bytes(), hash);
        asked = true;
        Ok(())
    });
    (!matches!(walked, Err(Stop::Malformed)) && asked).then_some(hash)
}

/// Why the walk over the turns stopped: what comes after the first answer may be long.
enum Stop {
    Answered,
    Malformed,
}

impl From<JsonError> for Stop {
    fn from(_: JsonError) -> Self {
        Self::Malformed
    }
}

/// Inputs of embeddings and poolers are no turns.
fn is_of_responses(fields: &Fields<'_>) -> bool {
    let is_items = |input: &Raw<'_>| {
        let mut first = None;
        let walked = input.cursor().array(|items| {
            let item = items.value()?;
            first.get_or_insert(item.kind());
            Ok::<_, JsonError>(())
        });
        walked.is_ok() && first == Some(JsonKind::Object)
    };
    fields.prompt.input.as_ref().is_some_and(|input| input.kind() == JsonKind::Array && is_items(input))
}

/// A message of the assistant, or what it did: an item of responses without a role is a call of a tool, or its thoughts.
fn is_of_assistant(role: Option<Raw<'_>>) -> bool {
    role.is_none_or(|role| role.text() == "\"assistant\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::dialect::Dialect;
    use crate::request::fields::parse;

    fn of(dialect: Dialect, body: &str) -> Option<u64> {
        conversation(&parse(dialect, body.as_bytes()).unwrap())
    }

    #[test]
    fn every_turn_of_a_conversation_is_the_same_and_others_are_not() {
        let chat = |turns: &str| of(Dialect::Chat, &format!("{{\"model\":\"m\",\"messages\":[{turns}]}}"));
        let system = r#"{"role":"system","content":"be kind"}"#;
        let first = chat(&format!(r#"{system},{{"role":"user","content":"hi"}}"#));
        let second = chat(&format!(
            r#"{system},{{"role":"user","content":"hi"}} , {{"role":"assistant","content":"hello"}},{{"role":"user","content":"so"}}"#
        ));
        assert!(first.is_some());
        assert_eq!(first, second);
        assert_ne!(first, chat(&format!(r#"{system},{{"role":"user","content":"ho"}}"#)));
        assert_eq!(chat(r#"{"role":"assistant","content":"hello"}"#), None);
        assert_eq!(chat(""), None);
    }

    #[test]
    fn items_of_responses_are_turns_and_inputs_of_embeddings_are_none() {
        let items = |more: &str| {
            let body = format!(r#"{{"model":"m","input":[{{"role":"user","content":"hi"}}{more}]}}"#);
            of(Dialect::Responses, &body)
        };
        let call = r#",{"type":"function_call","name":"f","arguments":"{}","call_id":"1"}"#;
        assert!(items("").is_some());
        assert_eq!(items(""), items(call));
        assert_eq!(of(Dialect::Embeddings, r#"{"model":"m","input":["a","b"]}"#), None);
        assert_eq!(of(Dialect::Completions, r#"{"model":"m","prompt":"a"}"#), None);
    }
}
