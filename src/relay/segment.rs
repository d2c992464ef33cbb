//! The part of an answer that a later engine gives, and the edits that make its chunks fit those of the first.

use std::ops::Range;

use crate::relay::chunk::{ChoiceView, ChunkView};
use crate::request::json::Raw;
use crate::request::splice::Edit;

/// The part of the answer that the present engine gives.
#[derive(Debug)]
pub(super) struct Segment {
    /// Tokens of the parts before it.
    pub carried_over: u64,
    /// The end of the delivered text that it generates again.
    pub repeats: String,
}

/// What every event of one stream has in common, as the first engine wrote it.
#[derive(Debug)]
pub(super) struct Head {
    id: Option<Box<str>>,
    created: Option<Box<str>>,
    model: Option<Box<str>>,
}

impl Segment {
    /// The part of `text` that the client does not have. What an engine says instead of a repetition is all new.
    pub(super) fn unrepeated<'t>(&mut self, text: &'t str) -> &'t str {
        let repeated = self.repeats.chars().zip(text.chars()).take_while(|(a, b)| a == b);
        let common: usize = repeated.map(|(a, _)| a.len_utf8()).sum();
        let fresh = text.get(common..).unwrap_or_default();
        if fresh.is_empty() {
            self.repeats.drain(..common);
        } else {
            self.repeats.clear();
        }
        fresh
    }

    /// The client's prompt, where the present engine counted `of_segment`, `known` by the first one.
    pub(super) fn prompt_tokens(&self, known: Option<u64>, of_segment: u64) -> u64 {
        known.unwrap_or(of_segment.saturating_sub(self.carried_over))
    }

    /// Makes the counts of one engine those of the whole answer.
    pub(super) fn add_up(&self, usage: Raw<'_>, known_prompt: Option<u64>, edits: &mut Vec<Edit>) {
        let [prompt, completion, total, details] =
            usage.members(["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"]);
        let number = |raw: Option<Raw<'_>>| raw.and_then(|raw| raw.text().parse::<u64>().ok());
        let Some(of_segment) = number(prompt) else { return };
        let input = self.prompt_tokens(known_prompt, of_segment);
        let output = number(completion).unwrap_or(0).saturating_add(self.carried_over);
        let mut put = |raw: Option<Raw<'_>>, value: u64| {
            if let Some(raw) = raw {
                edits.push(Edit::replace(raw.span(), &value.to_string()));
            }
        };
        put(prompt, input);
        put(completion, output);
        put(total, input.saturating_add(output));
        let [cached] = details.map_or([None], |details| details.members(["cached_tokens"]));
        if number(cached).is_some_and(|cached| cached > input) {
            put(cached, input);
        }
    }
}

impl Head {
    pub(super) fn of(chunk: &ChunkView<'_>) -> Self {
        let own = |raw: Option<Raw<'_>>| raw.map(|raw| raw.text().into());
        Self { id: own(chunk.id), created: own(chunk.created), model: own(chunk.model) }
    }

    /// Its members as JSON, each with a comma behind it.
    pub(super) fn members(&self) -> String {
        let members = [("id", &self.id), ("created", &self.created), ("model", &self.model)];
        let set = members.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        set.flat_map(|(name, value)| ["\"", name, "\":", value, ","]).collect()
    }

    fn edits(&self, chunk: &ChunkView<'_>) -> impl Iterator<Item = Edit> {
        let members = [(chunk.id, &self.id), (chunk.created, &self.created), (chunk.model, &self.model)];
        members.into_iter().filter_map(|(raw, first)| Some(Edit::replace(raw?.span(), first.as_deref()?)))
    }
}

/// Makes a chunk of a later engine one of the first; `text` is that of the choice, where part of it is known.
pub(super) fn fit(chunk: &ChunkView<'_>, head: Option<&Head>, text: Option<&str>) -> Vec<Edit> {
    let mut edits = Vec::with_capacity(6);
    edits.extend(head.into_iter().flat_map(|head| head.edits(chunk)));
    let choice = chunk.choices.last();
    let prompt_ids = chunk.prompt_token_ids.or_else(|| choice?.prompt_token_ids);
    edits.extend(prompt_ids.map(|ids| Edit::replace(ids.span(), "null")));
    let delta = choice.and_then(|choice| choice.delta.as_ref()).filter(|delta| delta.has_more_than_role);
    if let Some(role) = delta.and_then(|delta| delta.role.clone()) {
        let comma = chunk.data.get(role.end..).and_then(|rest| rest.find(','));
        edits.extend(comma.map(|comma| Edit::replace(role.start..role.end + comma + 1, "")));
    }
    if let (Some(text), Some(own)) = (text, choice.and_then(ChoiceView::text_or_content)) {
        edits.push(Edit::replace(own.span(), &serde_json::to_string(text).unwrap_or_default()));
    }
    edits
}

/// The running usage of a chunk with choices, with the comma that goes with it.
pub(super) fn running_usage(chunk: &ChunkView<'_>) -> Option<Range<usize>> {
    let (start, end) = (chunk.usage_key, chunk.usage?.span().end);
    if !chunk.has_choices() {
        return None;
    }
    let before = chunk.data.get(..start)?.trim_end();
    if before.ends_with(',') {
        return Some(before.len() - 1..end);
    }
    let rest = chunk.data.get(end..)?;
    let comma = rest.find(|c: char| !c.is_ascii_whitespace()).filter(|at| rest[*at..].starts_with(','));
    Some(start..comma.map_or(end, |at| end + at + 1))
}
