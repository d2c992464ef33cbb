//! Identity and size of a prompt, before the engine has seen it.
//!
//! The prefix chain says which replica may have the prompt's beginning in its cache; the size says how much work the
//! rest is. Both come from one walk over the parsed fields (`canonical`), made once per request.
//!
//! There is no tokenizer here: sizes are estimates unless the client sent token ids.

use crate::request::canonical::PromptWalk;
use crate::request::chain::{ChainSeed, PrefixChain, Root};
use crate::request::dialect::Dialect;
use crate::request::fields::Fields;
use crate::request::prompt_size::PromptSize;

/// Identity and size of a request's prompt.
#[derive(Clone, Debug, Default)]
pub struct RequestPrompt {
    /// Hashes of its blocks, for the prefix index.
    pub chain: PrefixChain,
    /// How long it is.
    pub size: PromptSize,
    /// The same number for every turn of a conversation: the chain up to the first answer of the assistant. `None` of what has no
    /// turns, as completions and plain inputs.
    pub conversation: Option<u64>,
    /// The whole hash of the prompt that the assistant's last answer in it is to, where that was asked for.
    pub continues: Option<u64>,
    /// A part of its content has a `uuid`, the name under which an engine keeps what it made of a picture, sound or film.
    pub names_media: bool,
}

impl RequestPrompt {
    /// Reads the prompt of a request; `model` is the engine's name of the model or LoRA adapter, `salt` stands for the body's own
    /// `cache_salt`; `continues` is found where `tells_turns`. Dialects whose bodies are unknown have an empty one.
    pub fn read(
        dialect: Dialect,
        fields: &Fields<'_>,
        model: &str,
        salt: Option<&str>,
        seed: &ChainSeed,
        tells_turns: bool,
    ) -> Self {
        let own = fields.cache_salt.and_then(|raw| raw.string());
        let root = Root {
            model,
            cache_salt: salt.or(own.as_deref()).unwrap_or_default(),
            template: template(dialect, fields),
        };
        let given = &fields.prompt;
        let longest = [given.messages, given.prompt, given.input];
        let room = longest.iter().flatten().map(|raw| raw.text().len()).sum();
        let mut walk = PromptWalk::new(seed, root, room, tells_turns);
        // The fields were validated when they were parsed: a walk over them cannot meet a fault.
        let _never_faults = walk.request(dialect, fields);
        let (chain, size, conversation, continues, names_media) = walk.finish();
        Self { chain, size, conversation, continues, names_media }
    }
}

/// Requests that the engine renders differently share no prefix.
fn template(dialect: Dialect, fields: &Fields<'_>) -> u8 {
    match dialect {
        Dialect::Chat | Dialect::Responses | Dialect::Messages | Dialect::CountTokens => 1,
        Dialect::Tokenize if fields.prompt.messages.is_some() => 1,
        Dialect::Completions | Dialect::Tokenize => 2,
        Dialect::Embeddings | Dialect::Classify | Dialect::Pooling => 3,
        Dialect::Rerank | Dialect::Score | Dialect::GenerativeScoring => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Secret;
    use crate::request::fields::parse;
    use crate::request::ratio::TokenRatio;
    use crate::units::Tokens;

    fn of(dialect: Dialect, body: &str, model: &str, tells_turns: bool) -> RequestPrompt {
        let fields = parse(dialect, body.as_bytes()).unwrap();
        RequestPrompt::read(dialect, &fields, model, None, &ChainSeed::new(&Secret::new("s")), tells_turns)
    }

    fn read_as(model: &str, dialect: Dialect, body: &Value) -> RequestPrompt {
        of(dialect, &body.to_string(), model, true)
    }

    fn read(dialect: Dialect, body: &Value) -> RequestPrompt {
        read_as("m", dialect, body)
    }

    fn chat(messages: &Value) -> RequestPrompt {
        read(Dialect::Chat, &json!({ "messages": messages }))
    }

    fn long(word: &str) -> String {
        format!("{word} ").repeat(200)
    }

    #[test]
    fn every_turn_of_a_conversation_has_its_number_and_others_have_not() {
        let chat = |turns: &[Value]| chat(&json!(turns)).conversation;
        let message = |role: &str, text: &str| json!({ "role": role, "content": text });
        let opening = [message("system", "be kind"), message("user", "hi")];
        let grown = [&opening[..], &[message("assistant", "hello"), message("user", "so")]].concat();
        assert!(chat(&opening).is_some());
        assert_eq!(chat(&opening), chat(&grown));
        assert_ne!(chat(&opening), chat(&[message("system", "be kind"), message("user", "ho")]));
        assert_eq!(chat(&[message("assistant", "hello")]), None);
        assert_eq!(chat(&[]), None);
    }

    #[test]
    fn the_prompt_that_a_turn_continues_is_told_where_that_is_asked_for() {
        let read = |turns: &[&str], tells_turns| {
            let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
            let messages: Vec<Value> = turns
                .iter()
                .enumerate()
                .map(|(at, text)| json!({ "role": role(at), "content": text }))
                .collect();
            of(Dialect::Chat, &json!({ "messages": messages }).to_string(), "m", tells_turns)
        };
        let all = ["hi", "hello", "so", "and", "more"];
        let third = read(&all, true);
        assert_eq!(third.continues, Some(read(&all[..3], true).chain.whole()));
        assert_eq!(read(&all[..3], true).continues, Some(read(&all[..1], true).chain.whole()));
        let unasked = read(&all, false);
        assert_eq!((unasked.continues, unasked.conversation), (None, third.conversation));
    }

    #[test]
    fn items_of_responses_are_turns_and_inputs_of_embeddings_are_none() {
        let of = |dialect, input: &Value| read(dialect, &json!({ "input": input })).conversation;
        let asked = json!({ "role": "user", "content": "hi" });
        let call = json!({ "type": "function_call", "name": "f", "arguments": "{}", "call_id": "1" });
        assert!(of(Dialect::Responses, &json!([asked])).is_some());
        assert_eq!(of(Dialect::Responses, &json!([asked])), of(Dialect::Responses, &json!([asked, call])));
        assert_eq!(of(Dialect::Embeddings, &json!(["a", "b"])), None);
        assert_eq!(read(Dialect::Completions, &json!({ "prompt": "a" })).conversation, None);
    }

    /// Every shape of content, as a conversation that grows.
    fn turns() -> Vec<Value> {
        vec![
            json!({"role":"system","content":long("system")}),
            json!({"role":"user","content":[{"type":"text","text":long("look")},
                {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},
                {"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}},
                {"type":"file","file":{"file_data":"AAAA"}}]}),
            json!({"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"c1","type":"function",
                "function":{"name":"f","arguments":long("{}")}}]}),
            json!({"role":"tool","tool_call_id":"c1","name":"f","content":long("result\n\"quoted\"")}),
            json!({"role":"assistant","refusal":long("no")}),
            json!({"role":"user","content":long("and then")}),
        ]
    }

    #[test]
    fn a_conversation_keeps_its_chain_when_it_grows() {
        let turns = turns();
        let chains: Vec<_> = (1..=turns.len()).map(|n| chat(&json!(turns[..n])).chain).collect();
        for pair in chains.windows(2) {
            assert!(pair[1].hashes().starts_with(pair[0].hashes()));
            assert!(pair[1].hashes().len() > pair[0].hashes().len());
        }
    }

    #[test]
    fn every_member_of_a_message_counts() {
        let base = chat(&json!(turns())).chain;
        for (turn, pointer) in [
            (0, "/role"),
            (1, "/content/0/text"),
            (1, "/content/1/image_url/url"),
            (1, "/content/2/input_audio/data"),
            (1, "/content/3/file/file_data"),
            (2, "/tool_calls/0/function/arguments"),
            (3, "/tool_call_id"),
            (3, "/name"),
            (3, "/content"),
            (4, "/refusal"),
        ] {
            let mut turns = turns();
            *turns[turn].pointer_mut(pointer).unwrap() = json!("changed");
            assert_ne!(chat(&json!(turns)).chain.whole(), base.whole(), "{turn} {pointer}");
        }
    }

    #[test]
    fn what_never_reaches_the_prompt_does_not_count() {
        let plain = chat(&json!([{"role":"user","content":long("hello")}])).chain;
        for same in [
            json!([{"role":"user","content":[{"type":"text","text":long("hello")}]}]),
            json!([{"role":"user","name":null,"audio":null,"content":[{"type":"text","text":long("hello"),
                "cache_control":{"type":"ephemeral"}}]}]),
        ] {
            assert_eq!(chat(&same).chain, plain, "{same}");
        }
    }

    #[test]
    fn dialects_that_render_alike_share_their_chain() {
        let hello = long("hello");
        let user = format!(r#"{{"role":"user","content":"{hello}"}}"#);
        let system = r#"{"role":"system","content":"s"}"#;
        let text = |dialect, body: String| of(dialect, &body, "m", true).chain;
        let chat = text(Dialect::Chat, format!(r#"{{"messages":[{system},{user}]}}"#));
        for (dialect, body) in [
            (Dialect::Chat, format!(r#"{{ "messages" : [ {system} , {user} ] }}"#)),
            (Dialect::Messages, format!(r#"{{"system":"s","messages":[{user}]}}"#)),
            (
                Dialect::Messages,
                format!(r#"{{"messages":[{user}],"system":[{{"type":"text","text":"s"}}]}}"#),
            ),
            (Dialect::Responses, format!(r#"{{"instructions":"s","input":"{hello}"}}"#)),
            (Dialect::Responses, format!(r#"{{"instructions":"s","input":[{user}]}}"#)),
            (Dialect::Tokenize, format!(r#"{{"messages":[{system},{user}]}}"#)),
        ] {
            assert_eq!(text(dialect, body.clone()), chat, "{body}");
        }
    }

    #[test]
    fn roots_share_nothing() {
        let body = json!({"messages":turns(),"prompt":long("x"),"input":long("x")});
        let base = read(Dialect::Chat, &body).chain;
        let mut salted = body.clone();
        salted["cache_salt"] = json!("salt");
        let mut tooled = body.clone();
        tooled["tools"] = json!([{"type":"function"}]);
        let mut informed = body.clone();
        informed["documents"] = json!([{"text":"d"}]);
        for other in [
            read_as("lora", Dialect::Chat, &body),
            read(Dialect::Chat, &salted),
            read(Dialect::Chat, &tooled),
            read(Dialect::Chat, &informed),
            read(Dialect::Completions, &body),
            read(Dialect::Embeddings, &body),
        ] {
            assert!(base.hashes().iter().zip(other.chain.hashes()).all(|(a, b)| a != b));
        }
    }

    #[test]
    fn the_line_that_claude_code_puts_first_is_no_part_of_a_prompt() {
        let of = |system: Value| {
            let body = json!({"system": system, "messages": turns()});
            read(Dialect::Messages, &body).chain
        };
        let rules = json!({"type": "text", "text": long("rules")});
        let line = json!({"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f"});
        assert_eq!(of(json!([line, rules])).hashes(), of(json!([rules])).hashes());
        assert_ne!(of(json!([rules, rules])).hashes(), of(json!([rules])).hashes());
    }

    #[test]
    fn token_ids_are_counted_exactly() {
        let ids: Vec<u32> = (0..200).collect();
        for (prompt, exact, blocks) in [
            (json!(ids), Some(200), 3),
            (json!([ids]), Some(200), 3),
            (json!([ids, [1, 2]]), Some(202), 3),
            (json!(long("hello")), None, 4),
            (json!([long("hello"), "x"]), None, 4),
            (json!([1, "x"]), None, 0),
            (json!([-1, 1.5]), None, 0),
            (json!([]), None, 0),
        ] {
            let read = read(Dialect::Completions, &json!({ "prompt": prompt }));
            assert_eq!(read.size.exact_tokens, exact.map(Tokens), "{prompt}");
            assert_eq!(read.chain.hashes().len(), blocks, "{prompt}");
        }
        let chat = json!({"messages":[{"role":"user","content":"hi"}],"kv_transfer_params":{"prompt_token_ids":ids}});
        assert_eq!(
            read(Dialect::Chat, &chat).size.exact_tokens,
            Some(Tokens(200)),
            "vLLM leaves the messages out"
        );
    }

    #[test]
    fn media_count_the_same_whatever_their_length() {
        let image = |data: &str| {
            chat(&json!([{"role":"user","content":[{"type":"image_url","image_url":{"url":data}}]}])).size
        };
        let size = image(&"A".repeat(100_000));
        assert_eq!((size, size.media), (image("A"), 1));
        let ratio = TokenRatio::default();
        size.teach(&ratio, Tokens(576));
        assert!((ratio.bytes_per_token() - 4.0).abs() < f64::EPSILON);
        let document = json!([{"role":"user","content":[{"type":"document",
            "source":{"type":"text","data":"d".repeat(50_000)}}]}]);
        let document = read(Dialect::Messages, &json!({ "messages": document })).size;
        assert!(document.bytes > 50_000 && document.media == 0);
    }

    #[test]
    fn other_dialects_have_a_chain_too() {
        let x = long("x");
        for (dialect, body) in [
            (Dialect::Embeddings, json!({"input":[x]})),
            (Dialect::Classify, json!({"input":x})),
            (Dialect::Pooling, json!({"messages":[{"role":"user","content":x}]})),
            (Dialect::Rerank, json!({"query":x,"documents":["a",{"text":"b"}]})),
            (Dialect::Score, json!({"text_1":x,"text_2":["a","b"]})),
            (Dialect::Score, json!({"queries":"a","documents":["a",{"content":[{"type":"text","text":x}]}]})),
            (Dialect::Score, json!({"queries":x,"items":["a","b"]})),
            (Dialect::Score, json!({"data_2":x,"data_1":"a","text_1":"decoy","text_2":"decoy"})),
            (Dialect::Pooling, json!({"data":{"of":[x]},"task":"plugin"})),
            (Dialect::Tokenize, json!({"prompt":x})),
            (Dialect::Detokenize, json!({"tokens":(0..100).collect::<Vec<_>>()})),
        ] {
            assert!(!read(dialect, &body).chain.hashes().is_empty(), "{dialect:?}");
        }
        assert_eq!(read(Dialect::Extra, &json!({"prompt":x})).size, PromptSize::default());
    }

    fn dialects() -> impl Strategy<Value = Dialect> {
        prop::sample::select(vec![
            Dialect::Chat,
            Dialect::Completions,
            Dialect::Responses,
            Dialect::Messages,
            Dialect::Embeddings,
            Dialect::Rerank,
            Dialect::Score,
            Dialect::Tokenize,
            Dialect::Detokenize,
            Dialect::Extra,
        ])
    }

    proptest! {
        #[test]
        fn a_longer_last_turn_and_more_turns_keep_the_chain(
            texts in prop::collection::vec(".{0,400}", 1..6), more in ".{0,400}",
        ) {
            let turn = |text: &String| json!({"role":"user","content":text});
            let turns: Vec<Value> = texts.iter().map(turn).collect();
            let chain = chat(&json!(turns)).chain;
            let grown: Vec<Value> = turns.iter().cloned().chain([turn(&more)]).collect();
            prop_assert!(chat(&json!(grown)).chain.hashes().starts_with(chain.hashes()));
        }

        #[test]
        fn no_body_panics(
            dialect in dialects(),
            tokens in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"messages\"", "\"prompt\"", "\"input\"", "\"content\"", "\"text\"",
                "\"source\"", "\"tools\"", "\"image_url\"", "\"type\"", "\"\\u00e9\"", "1", "-1.5", "null", "true", " ",
            ]), 0..40),
            wrap in any::<bool>(),
        ) {
            let text = tokens.concat();
            let text = if wrap { format!("{{\"messages\":[{{{text}}}],\"prompt\":[{text}]}}") } else { text };
            if let Ok(fields) = parse(dialect, text.as_bytes()) {
                let _ = RequestPrompt::read(dialect, &fields, "m", None, &ChainSeed::new(&Secret::new("s")), true);
            }
        }
    }
}
