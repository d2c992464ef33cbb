//! Token counts of a whole answer by its first and last bytes: in between are vectors, documents or text, which are not read.
//!
//! vLLM writes `usage` at the end, but in a rerank before its results; `/v2/embed` has Cohere's `meta`, at the end.

use super::oversized::{EVENT, member_of, value_of};
use super::usage::Usage;
use crate::record::TokenCounts;

/// The token counts of a whole answer.
pub fn tokens(body: &[u8]) -> TokenCounts {
    let head = body.get(..END).unwrap_or(body);
    let tail = body.len().checked_sub(END).and_then(|from| body.get(from..)).unwrap_or(body);
    tokens_of(head, tail)
}

/// The ends of an answer that is relayed as it comes.
#[derive(Debug, Default)]
pub struct AnswerEnds {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl AnswerEnds {
    /// The next piece of the answer.
    pub fn take(&mut self, piece: &[u8]) {
        let left = END.saturating_sub(self.head.len()).min(piece.len());
        self.head.extend(piece.iter().take(left));
        let last = piece.get(piece.len().saturating_sub(END)..).unwrap_or(piece);
        let over = (self.tail.len() + last.len()).saturating_sub(END);
        self.tail.drain(..over.min(self.tail.len()));
        self.tail.extend_from_slice(last);
    }

    /// Its `id`, where that is among the first bytes that came.
    pub fn id(&self) -> Option<String> {
        let head = String::from_utf8_lossy(&self.head);
        Some(member_of("id", &head)?.string()?.into_owned())
    }

    /// The token counts of the answer, once it is whole.
    pub fn tokens(&self) -> TokenCounts {
        tokens_of(&self.head, &self.tail)
    }
}

fn tokens_of(head: &[u8], tail: &[u8]) -> TokenCounts {
    let [head, tail] = [head, tail].map(String::from_utf8_lossy);
    let value = |name| value_of(name, EVENT, &tail).or_else(|| member_of(name, &head));
    let usage = value("usage").or_else(|| {
        let [tokens, billed] = value("meta")?.members(["tokens", "billed_units"]);
        tokens.or(billed)
    });
    usage.and_then(Usage::of).map(|usage| usage.counts()).unwrap_or_default()
}

/// Bytes of each end: a `usage` with its details has some 200.
const END: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Tokens;

    #[test]
    fn usage_is_found_at_either_end_however_the_answer_comes() {
        let usage = r#"{"prompt_tokens":7,"total_tokens":7,"prompt_tokens_details":null}"#;
        let filler =
            r#"{"usage":{"prompt_tokens":1},"text":"\"usage\":{\"prompt_tokens\":2}}"},"#.repeat(200);
        let data = format!("[{}0]", filler);
        for (answer, expected) in [
            (format!(r#"{{"data":{data},"usage":{usage}}}"#), Some(7)),
            (format!("{{\"data\": {data},\n \"usage\" : {usage}\n}}\n"), Some(7)),
            (format!(r#"{{"id":"r","usage":{usage},"results":{data}}}"#), Some(7)),
            (format!(r#"{{"data":{data},"meta":{{"tokens":{{"input_tokens":7}}}}}}"#), Some(7)),
            (format!(r#"{{"data":{data},"meta":{{"billed_units":{{"input_tokens":7}}}}}}"#), Some(7)),
            (format!(r#"{{"data":{data},"usage":{{"total_tokens":9,"completion_tokens":2}}}}"#), Some(7)),
            (format!(r#"{{"data":{data},"usage":null}}"#), None),
            (format!(r#"{{"data":{data}}}"#), None),
            ("[[1]]".to_owned(), None),
            (String::new(), None),
        ] {
            let found = |tokens: TokenCounts| tokens.input.map(|Tokens(n)| n);
            assert_eq!(found(tokens(answer.as_bytes())), expected, "{answer:.80}");
            for size in [1, 7, 4095, 4096, 4097, 10_000] {
                let mut ends = AnswerEnds::default();
                answer.as_bytes().chunks(size).for_each(|piece| ends.take(piece));
                assert_eq!(found(ends.tokens()), expected, "{answer:.80} by {size}");
            }
        }
    }
}
