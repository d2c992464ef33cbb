//! What one SSE event means: reads it by the wire shape of its dialect.
//!
//! The shapes are in `openai` (chat, completions, audio) and `typed` (messages, responses). Keys are read at their place in the
//! JSON, never searched for in model output.

use crate::relay::stream_state::{Event, PlainContent, StreamState};
use crate::relay::{openai, typed};
use crate::request::dialect::Dialect;

/// Reads one whole event and emits its facts. Returns the content string where that is its only fact, so that a template
/// can be learned from it.
pub(super) fn read<'a>(
    state: &mut StreamState,
    name: &'a [u8],
    data: &'a str,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    if data == "[DONE]" {
        // The typed streams have an end of their own; this one says nothing there.
        if !matches!(state.dialect(), Dialect::Messages | Dialect::Responses) {
            state.done(emit);
        }
        return None;
    }
    match state.dialect() {
        Dialect::Chat | Dialect::Completions | Dialect::Audio => openai::read(state, data, emit),
        Dialect::Messages | Dialect::Responses => typed::read(state, name, data, emit),
        _ => {
            emit(Event::Other);
            None
        }
    }
}
