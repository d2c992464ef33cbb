//! What an engine publishes of its KV cache, as vLLM encodes it: MessagePack, `[ts, events, dp_rank]`. Pure.
//!
//! Events are maps with a `type` (vLLM 0.32) or arrays that begin with it (before); block hashes are 64-bit integers or bytes.
//! Fields that are missing or new do no harm, events of unknown kinds are skipped and counted. A publisher may send anything: frames
//! are bounded before they are read, and so is the depth of what is in them.

use rmpv::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Blocks became part of the cache.
    Stored(Stored),
    /// Blocks were copied to a tier that publishes nothing of them but their hashes.
    Copied { hashes: Vec<u64> },
    /// Blocks were evicted.
    Removed { hashes: Vec<u64>, medium: Medium },
    /// The whole cache was emptied.
    Cleared,
}

/// A run of blocks, each the next one's parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// The engine's hash of the block before the run; none where it begins a prompt.
    pub(super) parent: Option<u64>,
    pub(super) medium: Medium,
    pub(super) block_tokens: u32,
    pub(super) blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The engine's own name for it.
    pub(super) hash: u64,
    /// The same for the same content on every engine: tokens, LoRA adapter, images, `cache_salt`.
    pub(super) content: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Medium {
    /// Where the engine computes.
    #[default]
    Gpu,
    /// A tier behind it, from which it is loaded.
    Other,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Batch {
    /// When it was stored: seconds of the engine's clock.
    pub(super) ts: Option<f64>,
    pub(super) events: Vec<Event>,
    /// Events of unknown kinds, or of groups of layers that are not counted.
    pub(super) skipped: u64,
    /// Events that do not hold what their kind has.
    pub(super) unreadable: u64,
}

/// A payload that is no batch.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoBatch {
    #[error("not MessagePack")]
    NotMessagePack,
    #[error("not a list of a time and events")]
    OtherShape,
}

pub(super) fn read(mut payload: &[u8]) -> Result<Batch, NoBatch> {
    let value = rmpv::decode::read_value_with_max_depth(&mut payload, MAX_DEPTH)
        .map_err(|_| NoBatch::NotMessagePack)?;
    let Value::Array(batch) = value else { return Err(NoBatch::OtherShape) };
    let Some(Value::Array(events)) = batch.get(1) else { return Err(NoBatch::OtherShape) };
    let ts = batch.first().and_then(Value::as_f64).filter(|ts| ts.is_finite());
    let mut read = Batch { ts, ..Batch::default() };
    for event in events {
        match Fields::of(event).map(|fields| fields.event()) {
            Some(Ok(Some(event))) => read.events.push(event),
            Some(Ok(None)) => read.skipped += 1,
            Some(Err(Unreadable)) | None => read.unreadable += 1,
        }
    }
    Ok(read)
}

struct Unreadable;

/// The fields of an event, however they are encoded.
enum Fields<'v> {
    Named(&'v [(Value, Value)]),
    InOrder(&'v [Value]),
}

impl<'v> Fields<'v> {
    fn of(event: &'v Value) -> Option<Self> {
        match event {
            Value::Map(fields) => Some(Self::Named(fields)),
            Value::Array(fields) => Some(Self::InOrder(fields)),
            _ => None,
        }
    }

    /// `at` is its place behind the kind in the array form.
    fn get(&self, name: &str, at: usize) -> Option<&'v Value> {
        let value = match self {
            Self::Named(fields) => {
                fields.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
            }
            Self::InOrder(fields) => fields.get(at),
        };
        value.filter(|value| !value.is_nil())
    }

    /// `None` of what is not counted.
    fn event(&self) -> Result<Option<Event>, Unreadable> {
        let kind = self.get("type", 0).and_then(Value::as_str).ok_or(Unreadable)?;
        match kind {
            "AllBlocksCleared" => Ok(Some(Event::Cleared)),
            "BlockRemoved" => {
                if self.is_of_other_group(3) {
                    return Ok(None);
                }
                let hashes = self.hashes()?;
                Ok(Some(Event::Removed { hashes, medium: self.medium(2) }))
            }
            "BlockStored" => {
                if self.is_of_other_group(9) || self.get("kv_cache_spec_sliding_window", 11).is_some() {
                    return Ok(None);
                }
                self.stored()
            }
            _ => Ok(None),
        }
    }

    /// Of models with several kinds of attention the first group of layers is counted.
    fn is_of_other_group(&self, at: usize) -> bool {
        self.get("group_idx", at).and_then(Value::as_u64).is_some_and(|group| group > 0)
    }

    fn hashes(&self) -> Result<Vec<u64>, Unreadable> {
        let hashes = self.get("block_hashes", 1).and_then(Value::as_array).ok_or(Unreadable)?;
        hashes.iter().map(|hash| hash_of(hash).ok_or(Unreadable)).collect()
    }

    fn medium(&self, at: usize) -> Medium {
        match self.get("medium", at).and_then(Value::as_str) {
            None | Some("GPU") => Medium::Gpu,
            Some(_) => Medium::Other,
        }
    }

    fn stored(&self) -> Result<Option<Event>, Unreadable> {
        let hashes = self.hashes()?;
        if hashes.is_empty() {
            return Ok(None);
        }
        let (tokens, medium) = (self.get("token_ids", 3), self.medium(6));
        let tokens = tokens.and_then(Value::as_array).ok_or(Unreadable)?;
        if tokens.is_empty() && medium == Medium::Other {
            return Ok(Some(Event::Copied { hashes }));
        }
        let size = self.get("block_size", 4).and_then(Value::as_u64).filter(|size| *size > 0);
        let size = size.and_then(|size| usize::try_from(size).ok()).ok_or(Unreadable)?;
        let parent =
            self.get("parent_block_hash", 2).map(|hash| hash_of(hash).ok_or(Unreadable)).transpose()?;
        if hashes.len().checked_mul(size) != Some(tokens.len()) {
            // Some layers keep only some blocks of a run.
            return if hashes.len() < tokens.len() { Ok(None) } else { Err(Unreadable) };
        }
        let adapter = self.get("lora_name", 7).or_else(|| self.get("lora_id", 5));
        let adapter = adapter.map_or(0, hash_value);
        let keys = self.get("extra_keys", 8).and_then(Value::as_array);
        let mut block = Vec::new();
        let mut blocks = Vec::with_capacity(hashes.len());
        for (at, (hash, tokens)) in hashes.into_iter().zip(tokens.chunks(size)).enumerate() {
            block.clear();
            for token in tokens {
                let token = token.as_u64().and_then(|token| u32::try_from(token).ok()).ok_or(Unreadable)?;
                block.extend_from_slice(&token.to_le_bytes());
            }
            let own = keys.and_then(|keys| keys.get(at)).filter(|keys| !keys.is_nil()).map_or(0, hash_value);
            blocks.push(Block { hash, content: xxh3_64_with_seed(&block, adapter ^ own.rotate_left(1)) });
        }
        let block_tokens = u32::try_from(size).map_err(|_| Unreadable)?;
        Ok(Some(Event::Stored(Stored { parent, medium, block_tokens, blocks })))
    }
}

fn hash_of(value: &Value) -> Option<u64> {
    match value {
        Value::Integer(number) => number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned)),
        Value::Binary(bytes) => Some(xxh3_64(bytes)),
        _ => None,
    }
}

fn hash_value(value: &Value) -> u64 {
    let mut bytes = Vec::new();
    // Into memory: it cannot fail.
    let _ = rmpv::encode::write_value(&mut bytes, value);
    xxh3_64(&bytes)
}

/// Levels of a payload: batch, events, event, keys of blocks, keys of one, one with its offset.
const MAX_DEPTH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(value: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, value).unwrap();
        bytes
    }

    fn list(values: impl IntoIterator<Item = Value>) -> Value {
        Value::Array(values.into_iter().collect())
    }

    fn numbers(values: impl IntoIterator<Item = u64>) -> Value {
        list(values.into_iter().map(Value::from))
    }

    fn batch(events: Vec<Value>) -> Vec<u8> {
        packed(&list([Value::from(1.5), list(events), Value::Nil]))
    }

    fn stored_in_order(hashes: Value, parent: Value, tokens: u64) -> Value {
        list([Value::from("BlockStored"), hashes, parent, numbers(0..tokens), Value::from(16)])
    }

    #[test]
    fn events_are_the_same_as_maps_and_as_arrays() {
        let named: Vec<(Value, Value)> = [
            ("type", Value::from("BlockStored")),
            ("block_hashes", numbers([7, u64::MAX])),
            ("parent_block_hash", Value::from(3)),
            ("token_ids", numbers(0..32)),
            ("block_size", Value::from(16)),
            ("medium", Value::from("GPU")),
            ("of_tomorrow", Value::from(1)),
        ]
        .into_iter()
        .map(|(name, value)| (Value::from(name), value))
        .collect();
        let in_order = stored_in_order(numbers([7, u64::MAX]), Value::from(3), 32);
        let read = read(&batch(vec![Value::Map(named), in_order])).unwrap();
        assert_eq!((read.events.len(), read.skipped, read.unreadable), (2, 0, 0));
        assert_eq!(read.events[0], read.events[1]);
        let Event::Stored(stored) = &read.events[0] else { panic!("{read:?}") };
        assert_eq!((stored.parent, stored.block_tokens, stored.medium), (Some(3), 16, Medium::Gpu));
        assert_ne!(stored.blocks[0].content, stored.blocks[1].content);
    }

    #[test]
    fn hashes_are_integers_or_bytes_and_content_is_that_of_the_tokens() {
        let bytes = list([Value::Binary(vec![1; 32])]);
        let events = vec![
            stored_in_order(bytes, Value::Binary(vec![2; 32]), 16),
            stored_in_order(numbers([9]), Value::Nil, 16),
            list([Value::from("BlockRemoved"), list([Value::from(-1)]), Value::from("CPU")]),
        ];
        let read = read(&batch(events)).unwrap();
        let [Event::Stored(one), Event::Stored(other), Event::Removed { hashes, medium }] = &read.events[..]
        else {
            panic!("{read:?}")
        };
        assert_eq!(one.blocks[0].content, other.blocks[0].content);
        assert!(one.parent.is_some() && other.parent.is_none());
        assert_eq!((hashes.as_slice(), *medium), ([u64::MAX].as_slice(), Medium::Other));
    }

    #[test]
    fn a_tier_may_publish_nothing_but_hashes() {
        let in_medium = |medium: &str| {
            let nothing = [Value::Nil, list([]), Value::from(0), Value::Nil, Value::from(medium)];
            list([Value::from("BlockStored"), numbers([7])].into_iter().chain(nothing))
        };
        let read = read(&batch(vec![in_medium("CPU"), in_medium("GPU")])).unwrap();
        assert_eq!(read.events, [Event::Copied { hashes: vec![7] }]);
        assert_eq!((read.skipped, read.unreadable), (0, 1));
    }

    #[test]
    fn what_is_unknown_is_skipped_and_what_lies_is_unreadable() {
        let events = vec![
            list([Value::from("BlockMoved"), numbers([1])]),
            Value::from(5),
            list([Value::from("BlockStored"), numbers([1])]),
            stored_in_order(numbers([1, 2, 3]), Value::Nil, 16),
            stored_in_order(numbers([1]), Value::from("x"), 16),
            // Of no blocks, each of which needs more memory than there is.
            list([
                Value::from("BlockStored"),
                numbers([]),
                Value::Nil,
                numbers([]),
                Value::from(1_u64 << 46),
            ]),
            list([Value::from("AllBlocksCleared")]),
        ];
        let read_one = read(&batch(events)).unwrap();
        assert_eq!(read_one.events, [Event::Cleared]);
        assert_eq!((read_one.skipped, read_one.unreadable), (3, 3));
        for garbage in [&b""[..], b"\xc1", b"\xdd\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", &[0x91; 500]] {
            assert!(read(garbage).is_err());
        }
    }
}
