//! One event of `/v1/chat/completions` or `/v1/completions`, read in one pass: the members that its readers want, as spans.
//!
//! Scanner, usage filter and transcript read this view. Every member is read leniently: engines differ in what they leave out,
//! send as null or add. Nothing is unescaped, and nothing allocated for a chunk of one choice.

use std::ops::Range;

use smallvec::SmallVec;

use crate::relay::frame::{SseFields, range_within, without_bom};
use crate::relay::stream_state::ContentValues;
use crate::relay::usage::{CONTENT, FLAT_ERROR};
use crate::request::json::{Cursor, JsonError, JsonKind, Raw};

/// A chunk; members are `None` where absent or `null`.
#[derive(Default)]
pub(super) struct ChunkView<'a> {
    pub data: &'a str,
    /// Where the data begins in its event; `None` where its lines were joined.
    data_start: Option<usize>,
    pub id: Option<Raw<'a>>,
    pub created: Option<Raw<'a>>,
    pub model: Option<Raw<'a>>,
    pub usage: Option<Raw<'a>>,
    /// Where the key of `usage` begins.
    pub usage_key: usize,
    pub error: Option<Raw<'a>>,
    pub metrics: Option<Raw<'a>>,
    pub prompt_token_ids: Option<Raw<'a>>,
    /// Entries of `choices` that are not null; `None` where it is no list.
    pub choice_count: Option<u32>,
    /// Those that are objects.
    pub choices: SmallVec<[ChoiceView<'a>; 1]>,
}

#[derive(Default)]
pub(super) struct ChoiceView<'a> {
    index: Option<Raw<'a>>,
    pub text: Option<Raw<'a>>,
    pub delta: Option<DeltaView<'a>>,
    finish_reason: Option<Raw<'a>>,
    pub logprobs: Option<Raw<'a>>,
    pub token_ids: Option<Raw<'a>>,
    pub prompt_token_ids: Option<Raw<'a>>,
}

#[derive(Default)]
pub(super) struct DeltaView<'a> {
    /// The member `role`, from its key to the end of its value.
    pub role: Option<Range<usize>>,
    /// Whether members follow the role.
    pub has_more_than_role: bool,
    /// In the order of [`CONTENT`].
    pub content: [Option<Raw<'a>>; CONTENT.len()],
}

impl<'a> ChunkView<'a> {
    /// Reads a whole event. `joined` is scratch space, as for [`SseFields::of`].
    pub(super) fn of_event(raw: &'a [u8], joined: &'a mut Vec<u8>) -> Option<Self> {
        let data = SseFields::of(without_bom(raw), joined).data?;
        let mut chunk = Self::read(std::str::from_utf8(data).ok()?).ok()?;
        chunk.data_start = range_within(raw, data).map(|range| range.start);
        Some(chunk)
    }

    /// Reads the data of an event.
    pub(super) fn read(data: &'a str) -> Result<Self, JsonError> {
        let mut chunk = Self { data, ..Self::default() };
        chunk.fill().map(|()| chunk)
    }

    /// Reads the beginning of a chunk that was cut: what stands before the fault is no less true.
    pub(super) fn of_head(data: &'a str) -> Self {
        let mut chunk = Self { data, ..Self::default() };
        let _cut = chunk.fill();
        chunk
    }

    fn fill(&mut self) -> Result<(), JsonError> {
        let mut cursor = Cursor::new(self.data);
        let mut is_error = false;
        cursor.object(|key, value| {
            let slot = match key.escaped().unwrap_or_default() {
                "id" => &mut self.id,
                "created" => &mut self.created,
                "model" => &mut self.model,
                "usage" => {
                    self.usage_key = key.span().start;
                    &mut self.usage
                }
                "error" => &mut self.error,
                "metrics" => &mut self.metrics,
                "prompt_token_ids" => &mut self.prompt_token_ids,
                "object" => {
                    is_error = value.value()?.text() == FLAT_ERROR;
                    return Ok(());
                }
                "choices" if value.ahead() == JsonKind::Array => return self.read_choices(value),
                _ => return Ok(()),
            };
            *slot = value.value()?.non_null();
            Ok::<_, JsonError>(())
        })?;
        if is_error && self.error.is_none() {
            self.error = Cursor::new(self.data).value().ok();
        }
        cursor.end()
    }

    fn read_choices(&mut self, list: &mut Cursor<'a>) -> Result<(), JsonError> {
        self.choices.clear();
        let count = self.choice_count.insert(0);
        list.array(|choice| {
            *count += u32::from(choice.ahead() != JsonKind::Null);
            if choice.ahead() != JsonKind::Object {
                return Ok(());
            }
            self.choices.push(ChoiceView::default());
            self.choices.last_mut().map_or(Ok(()), |last| last.read(choice))
        })
    }

    pub(super) fn has_choices(&self) -> bool {
        self.choice_count.is_some_and(|count| count > 0)
    }

    /// A range of the data as one of the event; `None` where the data of several lines was joined.
    pub(super) fn in_event(&self, range: &Range<usize>) -> Option<Range<usize>> {
        self.data_start.map(|start| range.start + start..range.end + start)
    }
}

impl<'a> ChoiceView<'a> {
    fn read(&mut self, cursor: &mut Cursor<'a>) -> Result<(), JsonError> {
        cursor.object(|key, value| {
            let slot = match key.escaped().unwrap_or_default() {
                "index" => &mut self.index,
                "text" => &mut self.text,
                "finish_reason" => &mut self.finish_reason,
                "logprobs" => &mut self.logprobs,
                "token_ids" => &mut self.token_ids,
                "prompt_token_ids" => &mut self.prompt_token_ids,
                "delta" if value.ahead() == JsonKind::Object => {
                    self.delta = Some(DeltaView::read(value)?);
                    return Ok(());
                }
                _ => return Ok(()),
            };
            *slot = value.value()?.non_null();
            Ok(())
        })
    }

    /// 0 where it has none.
    pub(super) fn index(&self) -> u32 {
        self.index.and_then(|index| index.text().parse().ok()).unwrap_or(0)
    }

    /// Its finish reason; an empty one is none.
    pub(super) fn finish_reason(&self) -> Option<Raw<'a>> {
        self.finish_reason.filter(|reason| reason.text() != "\"\"")
    }

    /// The text of a completion, the content of a chat.
    pub(super) fn text_or_content(&self) -> Option<Raw<'a>> {
        self.text.or_else(|| {
            let [content, ..] = self.delta.as_ref()?.content;
            content
        })
    }

    /// The values that may carry generated content.
    pub(super) fn values(&self) -> ContentValues<'a> {
        let mut values = ContentValues::default();
        values.add(self.text);
        let Some(delta) = &self.delta else { return values };
        let [
            content,
            reasoning,
            reasoning_content,
            thinking,
            refusal,
            tool_calls,
            function_call,
            audio,
            images,
        ] = delta.content;
        for value in [content, reasoning, reasoning_content, refusal, thinking, audio, images] {
            values.add(value);
        }
        if let Some(calls) = tool_calls {
            // A fault means that it is no array of objects: then it carries nothing.
            let _ = calls.cursor().array(|call| {
                let [function] = call.members(["function"])?;
                add_function(&mut values, function);
                Ok::<_, JsonError>(())
            });
        }
        add_function(&mut values, function_call);
        values
    }
}

impl<'a> DeltaView<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, JsonError> {
        let mut delta = Self::default();
        cursor.object(|key, value| {
            delta.has_more_than_role = delta.role.is_some();
            let name = key.escaped().unwrap_or_default();
            let mut slots = CONTENT.iter().zip(&mut delta.content);
            if name == "role" {
                delta.role = Some(key.span().start..value.value()?.span().end);
            } else if let Some((_, slot)) = slots.find(|(known, _)| **known == name) {
                *slot = value.value()?.non_null();
            }
            Ok::<_, JsonError>(())
        })?;
        Ok(delta)
    }
}

fn add_function<'a>(values: &mut ContentValues<'a>, function: Option<Raw<'a>>) {
    for value in function.map_or([None; 2], |function| function.members(["name", "arguments"])) {
        values.add(value);
    }
}
