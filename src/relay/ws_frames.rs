//! Where the frames of a WebSocket end (RFC 6455 §5.2).
//!
//! A tunnel relays bytes; it only follows the headers of frames, to know whether a Close frame of its own may be written
//! and whether one was seen. Nothing is unmasked, buffered or changed.

/// Follows one direction of a WebSocket.
#[derive(Debug, Default)]
pub struct Frames {
    header: [u8; MAX_HEADER],
    have: usize,
    payload_left: u64,
    is_closing: bool,
}

impl Frames {
    /// Takes the next bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let skipped = usize::try_from(self.payload_left).unwrap_or(usize::MAX).min(bytes.len());
                self.payload_left -= skipped as u64;
                bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            let (Some((byte, rest)), Some(slot)) = (bytes.split_first(), self.header.get_mut(self.have))
            else {
                return;
            };
            *slot = *byte;
            self.have += 1;
            bytes = rest;
            if self.have == self.header_len() {
                self.is_closing |= self.header[0] & 0x0F == CLOSE;
                self.payload_left = self.payload_len();
                self.have = 0;
            }
        }
    }

    /// Whether the bytes so far end with a frame.
    pub fn is_between(&self) -> bool {
        self.have == 0 && self.payload_left == 0
    }

    /// Whether a Close frame was begun.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Length of the header, as far as it is known.
    fn header_len(&self) -> usize {
        if self.have < 2 {
            return 2;
        }
        let [_, second, ..] = self.header;
        let extended = match second & 0x7F {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        2 + extended + if second & 0x80 != 0 { 4 } else { 0 }
    }

    fn payload_len(&self) -> u64 {
        let [_, second, extended @ ..] = &self.header;
        let big_endian =
            |n: usize| extended.iter().take(n).fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
        match second & 0x7F {
            126 => big_endian(2),
            127 => big_endian(8),
            short => u64::from(short),
        }
    }
}

/// A Close frame of a server: never masked. The reason is cut to what a control frame holds.
pub fn close(code: u16, reason: &str) -> Vec<u8> {
    let reason = reason.as_bytes().get(..MAX_REASON.min(reason.len())).unwrap_or_default();
    // Bounded by MAX_REASON.
    let length = u8::try_from(2 + reason.len()).unwrap_or(2);
    [&[0x80 | CLOSE, length][..], &code.to_be_bytes(), reason].concat()
}

const CLOSE: u8 = 8;
const MAX_HEADER: usize = 14;
const MAX_REASON: usize = 123;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_end_where_their_headers_say_however_they_are_cut() {
        let frames = [
            vec![0x81, 2, b'h', b'i'],
            [vec![0x82, 0x80 | 126, 1, 0, 9, 9, 9, 9], vec![7; 256]].concat(),
            [vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0], vec![7; 65_536]].concat(),
            vec![0x89, 0],
        ];
        let all = frames.concat();
        let ends: Vec<usize> = frames
            .iter()
            .scan(0, |at, frame| {
                Some({
                    *at += frame.len();
                    *at
                })
            })
            .collect();
        for size in [1, 3, 1000, all.len()] {
            let (mut follower, mut at) = (Frames::default(), 0);
            for piece in all.chunks(size) {
                follower.feed(piece);
                at += piece.len();
                assert_eq!(follower.is_between(), ends.contains(&at), "at {at} by {size}");
            }
            assert!(!follower.is_closing());
            follower.feed(&close(1001, "bye"));
            assert!(follower.is_closing() && follower.is_between());
        }
    }

    #[test]
    fn a_close_frame_is_one_control_frame() {
        assert_eq!(close(1001, "bye"), [0x88, 5, 0x03, 0xE9, b'b', b'y', b'e']);
        assert_eq!(close(1000, &"x".repeat(200)).len(), 127);
    }
}
