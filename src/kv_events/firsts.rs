//! Which block of tokens a text begins with. Pure.
//!
//! A run that was stored while a prompt ran need not be its own: counts alone may fit another's. Whose text is known to begin with
//! another block is another prompt. What is known may be wrong, or true no more (a template with the date in it): where prompts keep
//! finding the same other block, that one counts.

use hashlink::LinkedHashMap;

/// Names of first blocks by text.
#[derive(Debug, Default)]
pub(super) struct Firsts(LinkedHashMap<u64, First>);

#[derive(Clone, Copy, Debug)]
struct First {
    name: u64,
    /// Another block that was found instead, and how often in a row.
    other: u64,
    times: u8,
}

impl Firsts {
    /// Whether a prompt with this text may begin with this block.
    pub(super) fn fits(&self, text: u64, name: u64) -> bool {
        self.0.get(&text).is_none_or(|first| first.name == name)
    }

    /// A prompt with this text was found to begin with this block.
    pub(super) fn note(&mut self, text: u64, name: u64) {
        self.0.remove(&text);
        self.0.insert(text, First { name, other: 0, times: 0 });
        if self.0.len() > MAX_FIRSTS {
            self.0.pop_front();
        }
    }

    /// All that was found for a prompt begins with this other block. Returns whether that is to be believed.
    pub(super) fn contradict(&mut self, text: u64, name: u64) -> bool {
        let Some(first) = self.0.get_mut(&text) else { return true };
        first.times = if first.other == name { first.times.saturating_add(1) } else { 1 };
        first.other = name;
        first.times >= BELIEVED_AFTER
    }
}

/// Texts; some 50 bytes each.
const MAX_FIRSTS: usize = 1 << 17;
const BELIEVED_AFTER: u8 = 3;
