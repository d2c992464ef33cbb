//! The first bytes of a connection, which show whether it is HTTP/2 or HTTP/1.1.
//!
//! hyper-util asks for them by themselves and hands on what it got before the rest is read. hyper's buffer, then all but empty,
//! doubles to 16 KiB, which an HTTP/1.1 connection keeps for as long as it lives. Here they are kept back: a read that brings
//! nothing means HTTP/1.1 to hyper-util, and the next one gets them together with what followed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

#[derive(Debug, Default)]
pub(super) struct FirstBytes {
    kept: [u8; PREFACE.len()],
    count: usize,
    is_known: bool,
}

impl FirstBytes {
    /// Reads on; the first read brings the whole preface of HTTP/2, or nothing.
    pub(super) fn poll_read<S: AsyncRead>(
        &mut self,
        mut stream: Pin<&mut S>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_known {
            let is_http2 = ready!(self.poll_kind(stream, cx))?;
            self.is_known = true;
            if is_http2 {
                self.hand_over(buf);
            }
            return Poll::Ready(Ok(()));
        }
        if self.count == 0 {
            return stream.poll_read(cx, buf);
        }
        self.hand_over(buf);
        if self.count == 0 && buf.remaining() > 0 {
            // Whatever it comes to: bytes were read. An end or an error is found again by the next read.
            let _ = stream.as_mut().poll_read(cx, buf);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_kind<S: AsyncRead>(
        &mut self,
        mut stream: Pin<&mut S>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        loop {
            let mut read = ReadBuf::new(self.kept.get_mut(self.count..).unwrap_or_default());
            ready!(stream.as_mut().poll_read(cx, &mut read))?;
            let more = read.filled().len();
            self.count += more;
            let is_preface = PREFACE.starts_with(self.kept.get(..self.count).unwrap_or_default());
            if more == 0 || !is_preface || self.count == PREFACE.len() {
                return Poll::Ready(Ok(more > 0 && is_preface));
            }
        }
    }

    fn hand_over(&mut self, buf: &mut ReadBuf<'_>) {
        let now = self.count.min(buf.remaining());
        buf.put_slice(self.kept.get(..now).unwrap_or_default());
        self.kept.copy_within(now..self.count, 0);
        self.count -= now;
    }
}

/// HTTP/2 client preface (RFC 9113 §3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// What the reads of a connection bring: of its version, then of a buffer.
    fn reads(parts: &[&str]) -> (String, String) {
        let mut wire = wire(parts);
        let (mut first, mut cx) = (FirstBytes::default(), Context::from_waker(Waker::noop()));
        let mut read = |first: &mut FirstBytes, size: usize| {
            let mut room = vec![0; size];
            let mut buf = ReadBuf::new(&mut room);
            while first.poll_read(Pin::new(&mut wire), &mut cx, &mut buf).is_pending() {}
            String::from_utf8(buf.filled().to_vec()).unwrap()
        };
        (read(&mut first, PREFACE.len()), read(&mut first, 8192))
    }

    /// Brings a part a read, and is pending between two.
    fn wire(parts: &[&str]) -> Parts {
        Parts { parts: parts.iter().rev().map(|part| part.as_bytes().to_vec()).collect(), waits: false }
    }

    struct Parts {
        parts: Vec<Vec<u8>>,
        waits: bool,
    }

    impl AsyncRead for Parts {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.waits = !self.waits;
            if self.waits {
                return Poll::Pending;
            }
            let Some(mut part) = self.parts.pop() else { return Poll::Ready(Ok(())) };
            let rest = part.split_off(part.len().min(buf.remaining()));
            buf.put_slice(&part);
            if !rest.is_empty() {
                self.parts.push(rest);
            }
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn http1_comes_in_one_read_and_a_preface_whole() {
        let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        for (parts, version, then) in [
            (&["GET / HTTP/1.1\r\n\r\n"][..], "", "GET / HTTP/1.1\r\n\r\n"),
            (&["PRI", " * HTTP/1.1\r\n\r\n"], "", "PRI * HTTP/1.1\r\n\r\n"),
            (&["P"], "", "P"),
            (&[], "", ""),
            (&[preface, "frames"], preface, "frames"),
            (&["PRI * HTTP", "/2.0\r\n\r\nSM\r\n\r\nframes"], preface, "frames"),
        ] {
            assert_eq!(reads(parts), (version.to_owned(), then.to_owned()), "{parts:?}");
        }
    }
}
