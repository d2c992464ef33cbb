"""A stopwatch for streams: one request on a connection of its own, each event stamped as its bytes arrive.

Standard library only, and no HTTP client in between: what it adds to a figure is one system call and a search for a newline.
"""
import asyncio
import json
import time
from urllib.parse import urlsplit


class Stream:
    """What one answer was and when its parts came, in seconds after the last byte of the request was written."""

    def __init__(self):
        self.status, self.head, self.stamps, self.text, self.usage, self.error = 0, {}, [], "", {}, None
        self.is_complete = False  # [DONE] came
        self.is_whole = False  # the last chunk came: the body was not cut
        self.started = self.ended = 0.0

    @property
    def ttft(self):
        return self.stamps[0] if self.stamps else None

    @property
    def gaps(self):
        return [later - earlier for earlier, later in zip(self.stamps, self.stamps[1:])]

    @property
    def tpot(self):
        tokens = self.usage.get("completion_tokens", len(self.stamps))
        return (self.stamps[-1] - self.stamps[0]) / (tokens - 1) if self.stamps and tokens > 1 else None

    @property
    def cached_tokens(self):
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def take(self, line, at):
        if line.startswith(b"data: [DONE]"):
            self.is_complete = True
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[6:])
        self.usage = event.get("usage") or self.usage
        self.error = event.get("error") or self.error
        for choice in event.get("choices", []):
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if piece:
                self.text += piece
                self.stamps.append(at)


async def ask(url, path, body, headers=(), answer=None):
    """Posts JSON, reads the whole stream; an answer that is not 200 is in `error`. Give an `answer` to watch it grow."""
    target, data, answer = urlsplit(url), json.dumps(body).encode(), answer or Stream()
    reader, writer = await asyncio.open_connection(target.hostname, target.port, limit=1 << 20)
    head = [f"POST {path} HTTP/1.1", f"host: {target.netloc}", "content-type: application/json", "connection: close",
            f"content-length: {len(data)}", *headers]
    try:
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)
        await writer.drain()
        answer.started = time.monotonic()
        answer.status = int((await reader.readline()).split()[1])
        if answer.status != 200:
            answer.error = (await reader.read(2000)).decode(errors="replace")
            return answer
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            answer.head[name.lower()] = value.strip()
        raw, rest, tail = b"", b"", b""
        while piece := await reader.read(1 << 16):
            at = time.monotonic() - answer.started
            tail = (tail + piece)[-5:]
            body, raw = unchunked(raw + piece)
            *lines, rest = (rest + body).split(b"\n")
            for line in lines:
                answer.take(line, at)
        answer.is_whole = tail == b"0\r\n\r\n"
    except (OSError, asyncio.IncompleteReadError, IndexError, ValueError) as error:
        answer.error = answer.error or f"{type(error).__name__}: {error}"
    finally:
        answer.ended = time.monotonic() - answer.started
        writer.close()
    return answer


def unchunked(raw):
    """What whole chunks there are, their framing removed, and what is left over. A chunk may end inside an event."""
    body = b""
    while (end := raw.find(b"\r\n")) >= 0:
        size = int(raw[:end].split(b";")[0], 16)
        if len(raw) < end + 2 + size + 2:
            break
        body, raw = body + raw[end + 2:end + 2 + size], raw[end + 2 + size + 2:]
    return body, raw


def percentile(values, share):
    """By nearest rank; none of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))] if ordered else None
