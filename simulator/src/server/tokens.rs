//! A tokenizer without a vocabulary: a token is four bytes of text, its id is those bytes.
//!
//! It has about the density of a real one, is deterministic and reversible, and a longer text keeps the tokens of its
//! prefix, which is all that a prefix cache needs. Generated words have four bytes each, so that an answer sent back as
//! history has the tokens that were generated.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Marks the start of a message, in place of a chat template's role header: no UTF-8 text has this byte.
const ROLE: u8 = 0xfe;

/// Appends the tokens of `text`.
pub(super) fn encode(text: &str, out: &mut Vec<u32>) {
    out.extend(text.as_bytes().chunks(4).map(|chunk| {
        let mut bytes = [0; 4];
        for (to, from) in bytes.iter_mut().zip(chunk) {
            *to = *from;
        }
        u32::from_le_bytes(bytes)
    }));
}

/// The text of tokens; special ones and foreign ids show as replacement characters.
pub(super) fn decode(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).filter(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The token that opens a message of `role`.
pub(super) fn role(role: &str) -> u32 {
    let named = xxh3_64_with_seed(role.as_bytes(), 0).to_le_bytes();
    u32::from_le_bytes([ROLE, named[0] | 1, named[1] | 1, ROLE])
}

/// Whether a token opens a message.
pub(super) fn is_role(token: u32) -> bool {
    let [first, .., last] = token.to_le_bytes();
    first == ROLE && last == ROLE
}

/// The tokens of an answer: each follows from all before it, those of the prompt included. So an answer that is continued from
/// any of its tokens is the same answer.
pub(super) fn output(prompt: &[u32], seed: u64, choice: u64, length: usize) -> Vec<u32> {
    let follow = |state: u64, token: u32| (state ^ u64::from(token)).wrapping_mul(ODD).rotate_left(23);
    let mut state = prompt.iter().fold(seed.wrapping_mul(ODD) ^ choice, |state, token| follow(state, *token));
    let next = |_| {
        let token = u32::from_le_bytes(*WORDS[usize::try_from(state >> 59).unwrap_or_default()]);
        state = follow(state, token);
        token
    };
    (0..length).map(next).collect()
}

/// How long an answer is when nothing limits it.
pub(super) fn natural_length(prompt: &[u32], seed: u64) -> u64 {
    24 + prompt_seed(prompt, seed) % 200
}

fn prompt_seed(prompt: &[u32], seed: u64) -> u64 {
    let bytes: Vec<u8> = prompt.iter().flat_map(|t| t.to_le_bytes()).collect();
    xxh3_64_with_seed(&bytes, seed)
}

/// The 64-bit fraction of the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Four bytes each; no character of JSON that needs an escape.
const WORDS: [&[u8; 4]; 32] = [
    b" the", b" and", b" for", b" was", b" not", b" are", b" but", b" had", b" one", b" our", b" out",
    b" day", b" get", b" has", b" how", b" man", b" new", b" now", b" old", b" see", b" two", b" way",
    b" who", b" let", b" say", b" she", b" too", b" use", b" sun", b" sea", b" air", b" ice",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        encode(text, &mut out);
        out
    }

    #[test]
    fn decoding_gives_the_text_back() {
        for text in ["", "a", "four", "größer 日本語", "a longer text, of many tokens"] {
            assert_eq!(decode(&tokens(text)), text);
        }
    }

    #[test]
    fn an_answer_is_a_function_of_prompt_seed_and_choice_and_survives_as_history() {
        let prompt = tokens("what is the sea");
        let first = output(&prompt, 1, 0, 12);
        assert_eq!(first, output(&prompt, 1, 0, 12));
        assert_ne!(first, output(&prompt, 2, 0, 12));
        assert_ne!(first, output(&prompt, 1, 1, 12));
        assert_eq!(tokens(&decode(&first)), first);
        let longer = [&prompt[..], &first[..5]].concat();
        assert_eq!(output(&longer, 1, 0, 7), first[5..], "it goes on where it was broken");
    }

    #[test]
    fn roles_are_no_text() {
        assert_ne!(role("user"), role("assistant"));
        assert!(String::from_utf8(role("user").to_le_bytes().to_vec()).is_err());
    }
}
