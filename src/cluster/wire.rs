//! Notices as bytes: a batch of one gateway's, with who sends it and what it is made by. Pure.
//!
//! ```text
//! batch       "TW" version:u8 sender:u64 sequence:u32 seed:u32, then events
//! event       kind:u8 size:u8 id:u32 age:u16, then by kind:
//! placed      1 place tail held fork:u64 prompt uncached:u32 added tpot:u16 flags:u8 landmark:u64   61 bytes in all
//! first token 2                                                                        8 bytes
//! ended       3 flags:u8 prompt cached:u32                                             17 bytes
//! left        4 place:u64 flags:u8                                                     17 bytes
//! died        5 place:u64 request:u64                                                  24 bytes
//! ```
//!
//! Little-endian; ages and bounds are tenths of a millisecond, so that clocks need not agree. `size` counts what follows it: a
//! kind, or a field at the end of one, that only newer gateways know is skipped.

use std::time::Duration;

use crate::clock::Stamp;
use crate::routing::notice::{Died, Event, Left, Notice, Placed, Prefix, Usage};
use crate::units::Tokens;

/// Who sends a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Random number of the gateway's process.
    pub(super) sender: u64,
    /// One more with each batch.
    pub(super) sequence: u32,
    /// What its hashes are made with.
    pub(super) seed: u32,
}

/// Why a message is no batch that can be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub(super) enum Unreadable {
    /// It is not of a gateway.
    #[error("a message that is not a gateway's")]
    Foreign,
    /// It is of another version.
    #[error("a gateway whose notices have version {0}")]
    Version(u8),
    /// It ends in the middle, or has events that do not exist.
    #[error("a gateway whose notices are damaged")]
    Damaged,
}

/// Begins a batch.
pub(super) fn begin(head: &Head, batch: &mut Vec<u8>) {
    batch.clear();
    batch.extend_from_slice(MAGIC);
    batch.push(VERSION);
    batch.extend_from_slice(&head.sender.to_le_bytes());
    batch.extend_from_slice(&head.sequence.to_le_bytes());
    batch.extend_from_slice(&head.seed.to_le_bytes());
}

/// Adds a notice.
pub(super) fn push(notice: &Notice, now: Stamp, batch: &mut Vec<u8>) {
    let begin = batch.len();
    batch.extend_from_slice(&[0, 0]);
    batch.extend_from_slice(&notice.id.to_le_bytes());
    batch.extend_from_slice(&tenths(now.since(notice.at)).to_le_bytes());
    let kind = match &notice.event {
        Event::Placed(placed) => {
            let Prefix { tail, held, fork, landmark, added } = placed.prefix;
            for word in [placed.place, tail, held, fork] {
                batch.extend_from_slice(&word.to_le_bytes());
            }
            batch.extend_from_slice(&short(placed.prompt).to_le_bytes());
            batch.extend_from_slice(&short(placed.uncached).to_le_bytes());
            batch.extend_from_slice(&u16::try_from(added).unwrap_or(u16::MAX).to_le_bytes());
            batch.extend_from_slice(&placed.tpot.map_or(0, |tpot| tenths(tpot).max(1)).to_le_bytes());
            batch.push(flag(placed.is_stream, IS_STREAM) | flag(placed.is_elsewhere, IS_ELSEWHERE));
            batch.extend_from_slice(&landmark.to_le_bytes());
            PLACED
        }
        Event::FirstToken => FIRST_TOKEN,
        Event::Ended(usage) => {
            let flags = flag(usage.prompt.is_some(), HAS_PROMPT) | flag(usage.cached.is_some(), HAS_CACHED);
            batch.push(flags);
            batch.extend_from_slice(&short(usage.prompt.unwrap_or_default()).to_le_bytes());
            batch.extend_from_slice(&short(usage.cached.unwrap_or_default()).to_le_bytes());
            ENDED
        }
        Event::Left(left) => {
            batch.extend_from_slice(&left.place.to_le_bytes());
            batch.push(flag(left.is_failing, IS_FAILING));
            LEFT
        }
        Event::Died(died) => {
            batch.extend_from_slice(&died.place.to_le_bytes());
            batch.extend_from_slice(&died.request.to_le_bytes());
            DIED
        }
    };
    let size = batch.len() - begin - 2;
    if let Some([kind_at, size_at, ..]) = batch.get_mut(begin..) {
        (*kind_at, *size_at) = (kind, u8::try_from(size).unwrap_or(u8::MAX));
    }
}

/// A batch that came just now.
#[derive(Debug)]
pub(super) struct Batch<'b> {
    pub(super) head: Head,
    /// Events so far of kinds that only newer gateways know.
    pub(super) skipped: u64,
    rest: &'b [u8],
    now: Stamp,
}

/// Reads the head of a batch.
pub(super) fn open(bytes: &[u8], now: Stamp) -> Result<Batch<'_>, Unreadable> {
    let mut rest = bytes.strip_prefix(MAGIC).ok_or(Unreadable::Foreign)?;
    let [version] = take(&mut rest).ok_or(Unreadable::Foreign)?;
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let head = (|| {
        Some(Head {
            sender: u64::from_le_bytes(take(&mut rest)?),
            sequence: u32::from_le_bytes(take(&mut rest)?),
            seed: u32::from_le_bytes(take(&mut rest)?),
        })
    })();
    Ok(Batch { head: head.ok_or(Unreadable::Damaged)?, skipped: 0, rest, now })
}

impl Batch<'_> {
    /// The next notice.
    ///
    /// # Errors
    /// [`Unreadable::Damaged`]; the batch ends there.
    pub(super) fn next(&mut self) -> Result<Option<Notice>, Unreadable> {
        while !self.rest.is_empty() {
            match self.read() {
                Some(Some(notice)) => return Ok(Some(notice)),
                Some(None) => self.skipped += 1,
                None => {
                    self.rest = &[];
                    return Err(Unreadable::Damaged);
                }
            }
        }
        Ok(None)
    }

    /// `None` where it is damaged, `Some(None)` where it is of an unknown kind.
    fn read(&mut self) -> Option<Option<Notice>> {
        let [kind, size] = take(&mut self.rest)?;
        let (mut event, after) = self.rest.split_at_checked(size.into())?;
        self.rest = after;
        let rest = &mut event;
        if !(PLACED..=DIED).contains(&kind) {
            return Some(None);
        }
        let id = u32::from_le_bytes(take(rest)?);
        let age = TENTH * u32::from(u16::from_le_bytes(take(rest)?));
        let at = Stamp::from_nanos(self.now.as_nanos().saturating_sub(age.as_nanos() as u64));
        let event = match kind {
            PLACED => Event::Placed(placed(rest)?),
            FIRST_TOKEN => Event::FirstToken,
            ENDED => {
                let [flags] = take(rest)?;
                let [prompt, cached] = [tokens(rest)?, tokens(rest)?];
                Event::Ended(Usage {
                    prompt: (flags & HAS_PROMPT != 0).then_some(prompt),
                    cached: (flags & HAS_CACHED != 0).then_some(cached),
                })
            }
            LEFT => {
                let place = u64::from_le_bytes(take(rest)?);
                let [flags] = take(rest)?;
                Event::Left(Left { place, is_failing: flags & IS_FAILING != 0 })
            }
            DIED => {
                let [place, request] = [take(rest)?, take(rest)?].map(u64::from_le_bytes);
                Event::Died(Died { place, request })
            }
            _ => return Some(None),
        };
        Some(Some(Notice { id, at, event }))
    }
}

fn placed(rest: &mut &[u8]) -> Option<Placed> {
    let mut word = || Some(u64::from_le_bytes(take(rest)?));
    let [place, tail, held, fork] = [word()?, word()?, word()?, word()?];
    let [prompt, uncached] = [tokens(rest)?, tokens(rest)?];
    let added = u16::from_le_bytes(take(rest)?).into();
    let tpot = u16::from_le_bytes(take(rest)?);
    let [flags] = take(rest)?;
    let landmark = u64::from_le_bytes(take(rest)?);
    Some(Placed {
        place,
        prefix: Prefix { tail, held, fork, landmark, added },
        prompt,
        uncached,
        tpot: (tpot > 0).then(|| TENTH * u32::from(tpot)),
        is_stream: flags & IS_STREAM != 0,
        is_elsewhere: flags & IS_ELSEWHERE != 0,
    })
}

fn tokens(rest: &mut &[u8]) -> Option<Tokens> {
    Some(Tokens(u32::from_le_bytes(take(rest)?).into()))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

fn flag(is_set: bool, bit: u8) -> u8 {
    if is_set { bit } else { 0 }
}

fn tenths(span: Duration) -> u16 {
    u16::try_from(span.as_micros() / TENTH.as_micros()).unwrap_or(u16::MAX)
}

fn short(tokens: Tokens) -> u32 {
    u32::try_from(tokens.0).unwrap_or(u32::MAX)
}

/// Bytes of the largest event.
#[cfg(test)]
const MAX_EVENT: usize = 64;
const MAGIC: &[u8] = b"TW";
const VERSION: u8 = 2;
const PLACED: u8 = 1;
const FIRST_TOKEN: u8 = 2;
const ENDED: u8 = 3;
const LEFT: u8 = 4;
const DIED: u8 = 5;
const IS_STREAM: u8 = 1;
const IS_ELSEWHERE: u8 = 2;
const HAS_PROMPT: u8 = 1;
const HAS_CACHED: u8 = 2;
const IS_FAILING: u8 = 1;
const TENTH: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::seconds as at;

    const HEAD: Head = Head { sender: 7, sequence: 8, seed: 9 };

    fn some() -> Vec<Notice> {
        let prefix = Prefix { tail: 1, held: 2, fork: 3, landmark: 10, added: 4 };
        let placed = Placed {
            place: 5,
            prefix,
            prompt: Tokens(6000),
            uncached: Tokens(1000),
            tpot: Some(Duration::from_millis(50)),
            is_stream: true,
            is_elsewhere: false,
        };
        let usage = Usage { prompt: Some(Tokens(6000)), cached: None };
        let left = Left { place: 5, is_failing: true };
        let died = Died { place: 5, request: 11 };
        let replicas = [Event::Left(left), Event::Died(died)];
        let events = [Event::Placed(placed), Event::FirstToken, Event::Ended(usage)];
        events.into_iter().chain(replicas).map(|event| Notice { id: 70_000, at: at(9), event }).collect()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Notice>, Unreadable> {
        let mut batch = open(bytes, at(10))?;
        let mut all = Vec::new();
        while let Some(notice) = batch.next()? {
            all.push(notice);
        }
        Ok(all)
    }

    #[test]
    fn a_batch_is_read_as_it_was_written_and_a_decision_takes_at_most_64_bytes() {
        let mut batch = Vec::new();
        begin(&HEAD, &mut batch);
        for notice in some() {
            let before = batch.len();
            push(&notice, at(10), &mut batch);
            assert!(batch.len() - before <= MAX_EVENT);
        }
        assert_eq!(open(&batch, at(10)).unwrap().head, HEAD);
        assert_eq!(read(&batch).unwrap(), some());
    }

    #[test]
    fn what_is_of_others_or_of_another_version_is_known_as_such() {
        let mut batch = Vec::new();
        begin(&HEAD, &mut batch);
        batch[2] = 9;
        for (bytes, fault) in [
            (&b""[..], Unreadable::Foreign),
            (b"{\"job\":1}", Unreadable::Foreign),
            (&batch, Unreadable::Version(9)),
            (b"TW\x02short", Unreadable::Damaged),
        ] {
            assert_eq!(read(bytes), Err(fault));
        }
    }

    #[test]
    fn kinds_and_fields_of_a_newer_gateway_are_skipped() {
        let mut batch = Vec::new();
        begin(&HEAD, &mut batch);
        let head = batch.len();
        push(&some()[0], at(10), &mut batch);
        batch.extend_from_slice(&[200, 3, 1, 2, 3, 201, 0]);
        let longer = batch.len();
        push(&some()[2], at(10), &mut batch);
        batch[longer + 1] += 2;
        batch.extend_from_slice(&[7, 7]);
        push(&some()[1], at(10), &mut batch);
        assert_eq!(read(&batch).unwrap(), [some()[0], some()[2], some()[1]]);
        let mut seen = open(&batch, at(10)).unwrap();
        while seen.next().unwrap().is_some() {}
        assert_eq!(seen.skipped, 2);
        // A known kind that is too short is no newer one.
        batch.truncate(head);
        batch.extend_from_slice(&[1, 3, 1, 2, 3]);
        assert_eq!(read(&batch), Err(Unreadable::Damaged));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            let mut batch = Vec::new();
            begin(&HEAD, &mut batch);
            some().iter().for_each(|notice| push(notice, at(10), &mut batch));
            batch.truncate(cut);
            batch.extend_from_slice(&bytes);
            let _ = read(&batch);
        }
    }
}
