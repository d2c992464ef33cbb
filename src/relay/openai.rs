//! The facts of a chunk of `/v1/chat/completions`, `/v1/completions` or a transcription.
//!
//! A chunk that is no JSON object of this shape is [`Event::Other`].

use crate::relay::chunk::{ChoiceView, ChunkView};
use crate::relay::stream_state::{Counts, Event, PlainContent, StreamState};
use crate::relay::typed;
use crate::relay::usage::Usage;
use crate::request::dialect::Dialect;
use crate::request::json::Raw;
use crate::units::Tokens;

pub(super) fn read<'a>(
    state: &mut StreamState,
    data: &'a str,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    let Ok(chunk) = ChunkView::read(data) else {
        if state.dialect() == Dialect::Audio {
            return typed::segment(state, emit);
        }
        emit(Event::Other);
        return None;
    };
    if chunk.error.is_some() {
        state.error(chunk.error, emit);
        return None;
    }
    if chunk.choice_count.is_none() && state.dialect() == Dialect::Audio {
        // vLLM sends chunks, OpenAI events that name their type.
        return typed::read(state, b"", data, emit);
    }
    state.answer.note_id(chunk.id);
    state.answer.note_model(chunk.model);
    state.answer.note_engine_times(chunk.metrics);

    let choices = chunk.choices;
    let is_plain = choices.len() == 1 && chunk.usage.is_none();
    let running = chunk.usage.filter(|_| choices.len() == 1).and_then(Usage::of).and_then(|u| u.output());
    let mut has_emitted = false;
    let mut emit_one = |event| {
        has_emitted = true;
        emit(event);
    };
    let mut plain = None;
    for choice in &choices {
        plain = read_choice(state, choice, running, &mut emit_one).filter(|_| is_plain);
    }
    if chunk.usage.is_some() {
        state.answer.note_usage(chunk.usage);
        if running.is_some() {
            // The engine counts by choice here; the chunk that closes the stream counts them all.
            state.answer.tokens.output = Some(Tokens(state.running_total()));
        }
    }
    if !has_emitted {
        emit(Event::Other);
    }
    plain
}

/// Emits the facts of a choice; returns its content where that is all.
fn read_choice<'a>(
    state: &mut StreamState,
    choice: &ChoiceView<'a>,
    running: Option<u64>,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    let index = choice.index();
    let counts = Counts { ids: choice.token_ids.and_then(array_len), usage: running };
    if let Some(ids) = counts.ids.filter(|ids| *ids > 0) {
        // Until the engine's own count comes: its client may leave before.
        let known = state.answer.tokens.output.unwrap_or_default();
        state.answer.tokens.output = Some(Tokens(known.0.saturating_add(ids)));
    }
    let values = choice.values();
    let mut is_content = values.is_content();
    let (mut tokens, mut has_tokens) = (None, choice.logprobs.and_then(|it| it.non_null()).is_some());
    if let Some(choice_state) = state.choice(index) {
        has_tokens |= choice_state.count(counts);
        is_content = is_content && choice_state.is_generated(&values);
        if is_content {
            tokens = choice_state.take_tokens(counts);
        }
    }
    if is_content {
        state.text_bytes += values.bytes();
        emit(Event::Content { choice: index, tokens });
    } else if has_tokens {
        emit(Event::HeldBack);
    }
    let finish = choice.finish_reason();
    if let Some(reason) = finish {
        state.finish(index, reason, emit);
    }
    let is_plain = is_content && tokens.is_none() && finish.is_none();
    values.only_string().filter(|_| is_plain).map(|string| PlainContent { string, choice: index })
}

/// Length of a JSON array of numbers.
fn array_len(array: Raw<'_>) -> Option<u64> {
    let inner = array.text().strip_prefix('[')?.strip_suffix(']')?.trim_ascii();
    let commas = memchr::memchr_iter(b',', inner.as_bytes()).count();
    Some(if inner.is_empty() { 0 } else { u64::try_from(commas).ok()?.saturating_add(1) })
}
