//! `100 Continue` over HTTP/2 (RFC 9110 §10.1.1), which hyper does not send.
//!
//! Without it a client that sent `Expect` waits out its own timer before it uploads (curl: 1 s). The frame goes into the
//! connection's output between two frames of hyper's; its field is a literal without indexing, so HPACK's state is not
//! touched. hyper does not reveal which stream a request came on: every stream gets it that has sent its head only and has no
//! response yet. An interim response may come unasked (RFC 9110 §15.2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, BytesMut};
use tokio::sync::Notify;

/// Makes a connection send `100 Continue`; an extension of HTTP/2 requests with an `Expect`.
#[derive(Clone, Debug, Default)]
pub struct ContinueSignal(Arc<Signal>);

#[derive(Debug, Default)]
struct Signal {
    is_wanted: AtomicBool,
    changed: Notify,
}

impl ContinueSignal {
    /// The request will be read: the client may send its body.
    pub fn send(&self) {
        self.0.is_wanted.store(true, Ordering::Release);
        self.0.changed.notify_one();
    }

    pub(super) async fn wanted(&self) {
        self.0.changed.notified().await;
    }
}

/// The streams of one HTTP/2 connection, as far as its frames show.
#[derive(Debug)]
pub(super) struct Continues {
    signal: ContinueSignal,
    inbound: FrameHeads,
    outbound: FrameHeads,
    /// Streams that have sent their head only, and nothing was sent on.
    waiting: Vec<u32>,
    /// A header block continues in CONTINUATION frames, which nothing may interrupt.
    is_in_header_block: bool,
    /// What was added; hyper's next frame comes after it.
    pub(super) unwritten: BytesMut,
}

impl Continues {
    pub(super) fn new(signal: ContinueSignal) -> Self {
        Self {
            signal,
            inbound: FrameHeads::after(PREFACE_LENGTH),
            outbound: FrameHeads::default(),
            waiting: Vec::new(),
            is_in_header_block: false,
            unwritten: BytesMut::new(),
        }
    }

    /// Bytes from the client, its preface included.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        let Self { inbound, waiting, .. } = self;
        inbound.take(bytes, |head| match head.kind {
            HEADERS if head.flags & END_STREAM == 0 => {
                // A trailer's stream waits no longer.
                let is_trailer = forget(waiting, head.stream);
                if !is_trailer && waiting.len() < MAX_WAITING {
                    waiting.push(head.stream);
                }
            }
            HEADERS | DATA | RST_STREAM => {
                forget(waiting, head.stream);
            }
            _ => {}
        });
    }

    /// Bytes that hyper wrote.
    pub(super) fn wrote(&mut self, bytes: &[u8]) {
        let Self { outbound, waiting, is_in_header_block, .. } = self;
        outbound.take(bytes, |head| {
            if matches!(head.kind, HEADERS | CONTINUATION) {
                *is_in_header_block = head.flags & END_HEADERS == 0;
            }
            if matches!(head.kind, HEADERS | DATA | RST_STREAM) {
                forget(waiting, head.stream);
            }
        });
    }

    /// Adds the frames that are wanted, where hyper's output is between two frames.
    pub(super) fn queue(&mut self) {
        if !self.outbound.is_between() || self.is_in_header_block {
            return;
        }
        if self.signal.0.is_wanted.swap(false, Ordering::AcqRel) {
            for stream in self.waiting.drain(..) {
                self.unwritten.put_slice(&[0, 0, 5, HEADERS, END_HEADERS]);
                self.unwritten.put_u32(stream);
                self.unwritten.put_slice(STATUS_100);
            }
        }
    }
}

fn forget(waiting: &mut Vec<u32>, stream: u32) -> bool {
    let at = waiting.iter().position(|id| *id == stream);
    at.map(|at| waiting.swap_remove(at)).is_some()
}

/// Finds the frame heads (RFC 9113 §4.1) in one direction of a connection.
#[derive(Debug, Default)]
struct FrameHeads {
    head: [u8; FRAME_HEAD],
    known: usize,
    skip: usize,
}

#[derive(Clone, Copy)]
struct FrameHead {
    kind: u8,
    flags: u8,
    stream: u32,
}

impl FrameHeads {
    fn after(skip: usize) -> Self {
        Self { skip, ..Self::default() }
    }

    fn is_between(&self) -> bool {
        self.known == 0 && self.skip == 0
    }

    fn take(&mut self, mut bytes: &[u8], mut found: impl FnMut(FrameHead)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let Some((first, rest)) = bytes.split_first() else { return };
            bytes = rest;
            if let Some(slot) = self.head.get_mut(self.known) {
                *slot = *first;
            }
            self.known += 1;
            if self.known == FRAME_HEAD {
                let [a, b, c, kind, flags, stream @ ..] = self.head;
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                self.known = 0;
                found(FrameHead { kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff });
            }
        }
    }
}

const FRAME_HEAD: usize = 9;
const PREFACE_LENGTH: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 100`, a literal without indexing whose name is entry 8 of HPACK's static table.
const STATUS_100: &[u8] = b"\x08\x03100";
/// As many as the listener allows at a time.
const MAX_WAITING: usize = super::MAX_STREAMS as usize;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(vec![0; length.into()]);
        frame
    }

    fn streams(continues: &mut Continues) -> Vec<u32> {
        continues.signal.send();
        continues.queue();
        let added = std::mem::take(&mut continues.unwritten);
        added.chunks(14).map(|frame| u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]])).collect()
    }

    #[test]
    fn only_streams_that_wait_with_their_body_are_told_to_go_on() {
        for size in [1, 3, 1000] {
            let mut continues = Continues::new(ContinueSignal::default());
            let mut inbound = vec![0; PREFACE_LENGTH];
            for (kind, flags, stream, length) in [
                (4, 0, 0, 6),
                (HEADERS, END_HEADERS, 1, 30),
                (HEADERS, END_HEADERS, 3, 3),
                (DATA, 0, 3, 5),
                (HEADERS, END_HEADERS | END_STREAM, 5, 3),
                (HEADERS, END_HEADERS, 7, 3),
                (RST_STREAM, 0, 7, 4),
                (HEADERS, END_HEADERS, 9, 3),
                (HEADERS, END_HEADERS, 11, 0),
            ] {
                inbound.extend(frame(kind, flags, stream, length));
            }
            inbound.chunks(size).for_each(|piece| continues.read(piece));
            frame(HEADERS, END_HEADERS, 9, 8).chunks(size).for_each(|piece| continues.wrote(piece));
            assert_eq!(streams(&mut continues), [1, 11], "pieces of {size}");
            assert_eq!(streams(&mut continues), [0_u32; 0]);
        }
    }

    #[test]
    fn nothing_comes_between_the_parts_of_a_frame_or_of_a_header_block() {
        let mut continues = Continues::new(ContinueSignal::default());
        continues.read(&[&[0; PREFACE_LENGTH][..], &frame(HEADERS, END_HEADERS, 1, 2)].concat());
        let data = frame(DATA, 0, 3, 8);
        let (head, rest) = data.split_at(11);
        continues.wrote(head);
        assert_eq!(streams(&mut continues), [0_u32; 0]);
        continues.wrote(rest);
        continues.wrote(&frame(HEADERS, 0, 3, 2));
        assert_eq!(streams(&mut continues), [0_u32; 0]);
        continues.wrote(&frame(CONTINUATION, END_HEADERS, 3, 2));
        assert_eq!(streams(&mut continues), [1]);
    }
}
