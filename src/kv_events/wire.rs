//! The frames of ZeroMQ on TCP, as far as a subscriber needs them: ZMTP 3.0 without security (RFC 23), PUB and ROUTER as peers.
//!
//! A message is read whole and bounded: a frame that claims more than [`MAX_MESSAGE`] ends the connection before a byte of it is
//! kept.

use std::io;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Socket {
    /// Subscribes to everything that a PUB sends.
    Sub,
    /// Asks a ROUTER.
    Dealer,
}

impl Socket {
    fn name(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
        }
    }

    fn peers(self) -> &'static [&'static [u8]] {
        match self {
            Self::Sub => &[b"PUB", b"XPUB"],
            Self::Dealer => &[b"ROUTER", b"REP", b"DEALER"],
        }
    }
}

/// Why a peer is not understood.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the peer does not speak ZMTP 3 without security")]
    NotZmtp,
    #[error("the peer is no publisher of events")]
    OtherSocket,
    #[error("a message of more than {MAX_MESSAGE} bytes or {MAX_FRAMES} frames")]
    TooLong,
}

#[derive(Debug)]
pub(super) struct Wire<S> {
    stream: S,
    read: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Shakes hands; as a subscriber asks for every topic.
    pub(super) async fn open(stream: S, own: Socket) -> Result<Self, WireError> {
        let mut wire = Self { stream, read: BytesMut::new() };
        let mut greeting = [0u8; GREETING];
        greeting[..10].copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f]);
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        wire.stream.write_all(&greeting).await?;
        wire.fill(GREETING).await?;
        let theirs = wire.read.split_to(GREETING);
        let is_zmtp =
            theirs[0] == 0xff && theirs[9] == 0x7f && theirs[10] >= 3 && theirs[12..].starts_with(b"NULL\0");
        if !is_zmtp {
            return Err(WireError::NotZmtp);
        }
        wire.send(COMMAND, &ready(own)).await?;
        let command = wire.frame(MAX_COMMAND).await?;
        let peer = socket_type(&command).ok_or(WireError::NotZmtp)?;
        if !own.peers().contains(&peer) {
            return Err(WireError::OtherSocket);
        }
        if own == Socket::Sub {
            wire.send(0, &[SUBSCRIBE]).await?;
        }
        Ok(wire)
    }

    /// Sends a message of two frames: an empty one, and this.
    pub(super) async fn ask(&mut self, body: &[u8]) -> Result<(), WireError> {
        self.send(MORE, &[]).await?;
        self.send(0, body).await
    }

    /// The next message. Cancel-safe: what was read stays.
    pub(super) async fn message(&mut self) -> Result<Vec<BytesMut>, WireError> {
        loop {
            if let Some(length) = whole_message(&self.read)? {
                let mut message = self.read.split_to(length);
                let mut frames = Vec::new();
                while let Some(head) = Head::of(&message)? {
                    message.advance(head.length);
                    let body = message.split_to(head.body);
                    if head.flags & COMMAND == 0 {
                        frames.push(body);
                    }
                }
                // Of commands only.
                if frames.is_empty() {
                    continue;
                }
                return Ok(frames);
            }
            self.more().await?;
        }
    }

    /// The body of the next frame.
    async fn frame(&mut self, most: usize) -> Result<BytesMut, WireError> {
        loop {
            if let Some(head) = Head::of(&self.read)? {
                if head.body > most {
                    return Err(WireError::NotZmtp);
                }
                self.fill(head.length + head.body).await?;
                self.read.advance(head.length);
                return Ok(self.read.split_to(head.body));
            }
            self.more().await?;
        }
    }

    async fn fill(&mut self, length: usize) -> Result<(), WireError> {
        while self.read.len() < length {
            self.more().await?;
        }
        Ok(())
    }

    async fn more(&mut self) -> Result<(), WireError> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ => Ok(()),
        }
    }

    async fn send(&mut self, flags: u8, body: &[u8]) -> Result<(), WireError> {
        let mut frame = BytesMut::with_capacity(body.len() + 2);
        frame.put_u8(flags);
        frame.put_u8(u8::try_from(body.len()).map_err(|_| WireError::TooLong)?);
        frame.put_slice(body);
        Ok(self.stream.write_all(&frame).await?)
    }
}

/// What stands before a frame's body.
struct Head {
    flags: u8,
    length: usize,
    body: usize,
}

impl Head {
    /// `None` while it is not whole.
    fn of(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        let Some((&flags, rest)) = bytes.split_first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(WireError::NotZmtp);
        }
        let (length, body) = if flags & LONG == 0 {
            let Some(&size) = rest.first() else { return Ok(None) };
            (2, usize::from(size))
        } else {
            let Some(size) = rest.first_chunk() else { return Ok(None) };
            (9, usize::try_from(u64::from_be_bytes(*size)).unwrap_or(usize::MAX))
        };
        if body > MAX_MESSAGE {
            return Err(WireError::TooLong);
        }
        Ok(Some(Self { flags, length, body }))
    }
}

/// Bytes of the first message in a buffer; `None` while it is not whole.
fn whole_message(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let mut end = 0;
    for _ in 0..MAX_FRAMES {
        let Some(head) = Head::of(bytes.get(end..).unwrap_or_default())? else { return Ok(None) };
        end += head.length + head.body;
        if end > MAX_MESSAGE {
            return Err(WireError::TooLong);
        }
        if bytes.len() < end {
            return Ok(None);
        }
        if head.flags & MORE == 0 {
            return Ok(Some(end));
        }
    }
    Err(WireError::TooLong)
}

fn ready(own: Socket) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    property(&mut body, b"Socket-Type", own.name().as_bytes());
    property(&mut body, b"Identity", b"");
    body
}

fn property(body: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    body.extend(u8::try_from(name.len()));
    body.extend_from_slice(name);
    body.extend_from_slice(&u32::try_from(value.len()).unwrap_or_default().to_be_bytes());
    body.extend_from_slice(value);
}

/// `Socket-Type` of a READY command.
fn socket_type(body: &[u8]) -> Option<&[u8]> {
    let mut rest = body.strip_prefix(b"\x05READY")?;
    while let Some((&length, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked(usize::from(length))?;
        let (size, after) = after.split_first_chunk()?;
        let (value, after) = after.split_at_checked(u32::from_be_bytes(*size) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        rest = after;
    }
    None
}

const GREETING: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const SUBSCRIBE: u8 = 1;
/// Bytes of the peer's READY.
const MAX_COMMAND: usize = 4096;
/// A step stores some ten thousand tokens, in up to five bytes each. Decoded, a message takes up to 32 times its length.
pub(super) const MAX_MESSAGE: usize = 2 << 20;
/// Topic, number and payload, and an address before them.
const MAX_FRAMES: usize = 8;
