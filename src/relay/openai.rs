//! Chunks of `/v1/chat/completions` and `/v1/completions`.
//!
//! Every field is read leniently: engines differ in what they leave out, send as null or add. A chunk that is no
//! JSON object of this shape tells nothing. Nothing is unescaped or allocated for an ordinary chunk.

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::relay::classify::{Counts, Event, Leaves, Plain, Reading};
use crate::relay::usage::Usage;
use crate::units::Tokens;

pub(super) fn read<'a>(
    reading: &mut Reading,
    data: &'a [u8],
    tell: &mut dyn FnMut(Event),
) -> Option<Plain<'a>> {
    let Ok(chunk) = serde_json::from_slice::<Chunk<'a>>(data) else {
        tell(Event::Other);
        return None;
    };
    if let Some(error) = chunk.error {
        reading.error(error, tell);
        return None;
    }
    reading.answer.note_id(chunk.id);
    reading.answer.note_model(chunk.model);
    reading.answer.note_engine_times(chunk.metrics);

    let choices = chunk.choices.map(|c| c.0).unwrap_or_default();
    let is_plain = choices.len() == 1 && chunk.usage.is_none();
    let running = chunk.usage.filter(|_| choices.len() == 1).and_then(Usage::of).and_then(|u| u.output());
    let mut has_told = false;
    let mut plain = None;
    for choice in &choices {
        let told = read_choice(reading, choice, running, tell);
        has_told |= told.is_content || told.is_finish;
        plain = told.plain.filter(|_| is_plain);
    }
    if chunk.usage.is_some() {
        reading.answer.note_usage(chunk.usage);
        if choices.is_empty() {
            tell(Event::Usage);
            has_told = true;
        } else if running.is_some() {
            // The engine counts by choice here; the chunk that closes the stream counts them all.
            reading.answer.tokens.output = Some(Tokens(reading.running_total()));
        }
    }
    if !has_told {
        tell(Event::Other);
    }
    plain
}

struct Told<'a> {
    is_content: bool,
    is_finish: bool,
    plain: Option<Plain<'a>>,
}

fn read_choice<'a>(
    reading: &mut Reading,
    choice: &Choice<'a>,
    running: Option<u64>,
    tell: &mut dyn FnMut(Event),
) -> Told<'a> {
    let index = choice.index.and_then(|raw| raw.get().parse().ok()).unwrap_or(0);
    let counts = Counts { ids: choice.token_ids.and_then(array_len), usage: running };
    let leaves = choice.leaves();
    let mut is_content = leaves.is_content();
    let mut tokens = None;
    if let Some(state) = reading.choice(index) {
        state.count(counts);
        is_content = is_content && state.is_generated(&leaves);
        if is_content {
            tokens = state.take_tokens(counts);
        }
    }
    if is_content {
        tell(Event::Content { choice: index, tokens });
    }
    let finish = choice.finish_reason.filter(|reason| reason.get() != "\"\"");
    if let Some(reason) = finish {
        reading.finish(index, reason, tell);
    }
    let is_plain = is_content && tokens.is_none() && finish.is_none();
    let plain = leaves.only_string().filter(|_| is_plain).map(|string| Plain { string, choice: index });
    Told { is_content, is_finish: finish.is_some(), plain }
}

impl<'a> Choice<'a> {
    fn leaves(&self) -> Leaves<'a> {
        let mut leaves = Leaves::default();
        leaves.add(self.text);
        if let Some(delta) = &self.delta {
            leaves.add(delta.content);
            leaves.add(delta.reasoning);
            leaves.add(delta.reasoning_content);
            leaves.add(delta.refusal);
            let called = delta.function_call.and_then(|raw| Function::deserialize(raw).ok());
            let calls = delta.tool_calls.and_then(|raw| Many::<ToolCall<'a>>::deserialize(raw).ok());
            let functions = calls.iter().flat_map(|c| &c.0).filter_map(|call| call.function.as_ref());
            for function in functions.chain(&called) {
                leaves.add(function.name);
                leaves.add(function.arguments);
            }
        }
        leaves
    }
}

/// Length of a JSON array of numbers.
fn array_len(raw: &RawValue) -> Option<u64> {
    let inner = raw.get().strip_prefix('[')?.strip_suffix(']')?.trim_ascii();
    let commas = memchr::memchr_iter(b',', inner.as_bytes()).count();
    Some(if inner.is_empty() { 0 } else { u64::try_from(commas).ok()?.saturating_add(1) })
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<Many<Choice<'a>>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    metrics: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    index: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    token_ids: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow)]
    function_call: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow)]
    function: Option<Function<'a>>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// An array, kept on the stack where it has one element.
struct Many<T>(SmallVec<[T; 1]>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ManyVisitor(std::marker::PhantomData))
    }
}

struct ManyVisitor<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
    type Value = Many<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Many<T>, A::Error> {
        let mut all = SmallVec::new();
        while let Some(next) = seq.next_element()? {
            all.push(next);
        }
        Ok(Many(all))
    }
}
