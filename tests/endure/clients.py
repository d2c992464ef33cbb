#!/usr/bin/env python3
"""Clients that do it wrong, over sockets: what each is told, what the replica saw of it, what is left behind.

    clients.py BINARY [--only bodies,heads,…] [--write docs/results.md]

A recording replica and the gateway run on loopback, in its default configuration, with the standard library. The exit code is 1 if a
row came out other than it says.
"""

import argparse
import asyncio
import contextlib
import datetime
import gzip
import json
import os
import pathlib
import re
import resource
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

from endure import CHAT, PROMPT, Gateway, chunks, free_ports, frame

GOOD = {"model": "sim", "max_tokens": 3, "messages": [{"role": "user", "content": PROMPT}]}
LAX_TRUE = (True, 1, "yes", "true", "on", "1", "t", "y", "True")  # What pydantic takes for true, and so vLLM.


class Engine:
    """Answers as vLLM would, and keeps what reached it; `cut` counts its answers whose reader left."""

    def __init__(self, port):
        self.port, self.seen, self.cut = port, [], 0

    async def start(self):
        await asyncio.start_server(self.connection, "127.0.0.1", self.port, backlog=4096, limit=2**26)

    async def connection(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                if "transfer-encoding" in fields:
                    body = b"".join([part async for part in chunks(reader)])
                else:
                    body = await reader.readexactly(int(fields.get("content-length", 0)))
                method, path, _ = head.split(" ", 2)
                if "x-tokenway-probe" not in fields and path not in ("/v1/models", "/metrics", "/version"):
                    self.seen.append((method, path, head, body))
                await self.answer(reader, writer, method, path, body)
        writer.close()

    async def answer(self, reader, writer, method, path, body):
        if path == "/v1/models":
            return self.whole(writer, 200, {"object": "list", "data": [{"id": "sim", "object": "model"}]})
        if method != "POST":
            return self.whole(writer, 405 if path.startswith("/v1") else 200, {"detail": "Method Not Allowed"}, method)
        try:
            asked = json.loads(body)
        except ValueError:
            return self.whole(writer, 400, {"error": {"message": "the replica could not read this", "code": 400}})
        if asked.get("max_tokens", 1) is not None and asked.get("max_tokens", 1) < 1:
            return self.whole(writer, 400, {"error": {"message": "max_tokens must be at least 1", "type": "BadRequestError", "code": 400}})
        if asked.get("stream") not in LAX_TRUE:
            await self.wait(reader, asked.get("wait", 0))
            return self.whole(writer, 200, {"object": "chat.completion", "choices": [
                {"index": index, "finish_reason": "stop", "message": {"role": "assistant", "content": "w"}} for index in range(asked.get("n", 1))]})
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await self.wait(reader, asked.get("wait", 0))
        try:
            for _ in range(asked.get("max_tokens", 3)):
                data = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "w" * asked.get("fat", 1)}}]}).encode() + b"\n\n"
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                await writer.drain()
                await asyncio.sleep(asked.get("gap", 0))
                if reader.at_eof():
                    raise ConnectionError
        except ConnectionError:
            self.cut += 1
            raise
        end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end))
        await writer.drain()

    async def wait(self, reader, seconds):
        """That long, or until the sender leaves: an error then."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if reader.at_eof():
                self.cut += 1
                raise ConnectionError
            await asyncio.sleep(0.05)

    @staticmethod
    def whole(writer, status, value, method="POST"):
        data = json.dumps(value).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), b"" if method == "HEAD" else data))


class Answer:
    """What came back on a connection: every status in order, the last body, and whether the connection ended."""

    def __init__(self, raw, is_closed):
        self.raw, self.is_closed = raw, is_closed
        heads = list(re.finditer(rb"HTTP/1\.[01] (\d{3})", raw))
        self.statuses = [int(match[1]) for match in heads]
        self.body = raw[heads[-1].start():].partition(b"\r\n\r\n")[2] if heads else raw
        match = re.search(rb"\{.*\}", self.body, re.S)
        try:
            self.error = json.loads(match[0])["error"] if match else {}
        except (ValueError, KeyError, TypeError):
            self.error = {}

    def told(self):
        message = self.error.get("message", "")
        ends = "closed" if self.is_closed else "kept"
        return f"{' '.join(map(str, self.statuses)) or 'nothing'}, {ends}" + (f": {self.error.get('code')}, \"{message[:110]}\"" if message else "")


async def send(port, *parts, half_close=False, patience=3.0, quiet=0.3, tls=None):
    """Sends parts (a number is a pause) and reads until nothing comes for `quiet` seconds after the first answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
    raw, is_closed = b"", False
    try:
        for part in parts:
            if isinstance(part, (int, float)):
                await asyncio.sleep(part)
            else:
                writer.write(part)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(writer.drain(), 1)
        if half_close:
            writer.write_eof()
        while True:
            data = await asyncio.wait_for(reader.read(2**20), quiet if re.search(rb"HTTP/1\.. [2-5]", raw) else patience)
            if not data:
                is_closed = True
                break
            raw += data
    except asyncio.TimeoutError:
        pass
    except OSError:
        is_closed = True
    writer.transport.abort()
    return Answer(raw, is_closed)


def post(body, extra="", version="1.1", path=CHAT, method="POST"):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/{version}\r\nhost: a\r\ncontent-type: application/json\r\n{extra}content-length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def get(path, method="GET", extra="host: a\r\n", version="1.1"):
    return f"{method} {path} HTTP/{version}\r\n{extra}\r\n".encode("latin-1")


def chunked(*parts, trailer=b"", extra=b""):
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n".encode() + extra + b"\r\n"
    return head + b"".join(parts) + trailer


JSON = json.dumps(GOOD).encode()


def good(**more):
    return {**GOOD, **more}


def raw_post(fields, body=b""):
    return f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{fields}\r\n".encode() + body


def one(data, extension=b""):
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


END = b"0\r\n\r\n"
SOCKET = "host: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"


def text(value):
    return post(b'{"model":"sim","messages":[],' + value + b"}")


# Each: name, what is sent, the statuses, the error's code, how many requests reach the replica.
HEADS = [
    ("HTTP/0.9", [b"GET /v1/models\r\n\r\n"], 400, "malformed_head", 0),
    ("HTTP/2.0 in a request line", [get("/v1/models", version="2.0")], 400, "malformed_head", 0),
    ("a header of 100 kB", [get("/v1/models", extra=f"host: a\r\nx: {'y' * 100_000}\r\n")], 431, "head_too_large", 0),
    ("200 headers", [get("/v1/models", extra="host: a\r\n" + "x: 1\r\n" * 200)], 431, "head_too_large", 0),
    ("a target of 70 kB", [get("/v1/models?" + "y" * 70_000)], 431, "head_too_large", 0),
    ("no host", [get("/v1/models", extra="")], 400, "invalid_request", 0),
    ("two hosts", [post(JSON, "host: b\r\n")], 400, "invalid_request", 0),
    ("a space before the colon", [get("/v1/models", extra="host: a\r\nx : 1\r\n")], 400, "malformed_head", 0),
    ("no colon", [get("/v1/models", extra="host: a\r\nxyz\r\n")], 400, "malformed_head", 0),
    ("a folded line", [get("/v1/models", extra="host: a\r\nx: 1\r\n 2\r\n")], 400, "malformed_head", 0),
    ("NUL in a value", [get("/v1/models", extra="host: a\r\nx: 1\x002\r\n")], 400, "malformed_head", 0),
    ("a bare CR", [get("/v1/models", extra="host: a\r\nx: 1\r2\r\n")], 400, "malformed_head", 0),
    ("binary", [b"\x00\x01\x02\r\n\r\n"], 400, "malformed_head", 0),
    ("a TLS hello on the HTTP port", [bytes.fromhex("16030100c8010000c403") + bytes(200)], 400, "malformed_head", 0),
    ("SSH", [b"SSH-2.0-OpenSSH_9\r\n\r\n"], 400, "malformed_head", 0),
    ("the PROXY protocol", [b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + get("/v1/models")], 400, "malformed_head", 0),
    ("content-length: host named by connection", [post(JSON, "connection: content-length, host\r\n")], 200, None, 1),
]
FRAMING = [
    *((f"content-length: {value}", [raw_post(f"content-length: {value}\r\n", b"12345")], 400, "malformed_head", 0)
      for value in ("abc", "-1", "+5", "5, 5", "9" * 30)),
    ("content-length: 1 TB", [raw_post(f"content-length: {10**12}\r\n", b"12345")], 413, "body_limit", 0),
    ("two content-lengths", [raw_post("content-length: 5\r\ncontent-length: 6\r\n", b"12345")], 400, "malformed_head", 0),
    ("content-length and chunked", [chunked(one(JSON), END, extra=b"content-length: 5\r\n")], 400, "ambiguous_framing", 0),
    ("content-length too small: the rest is a bad request", [raw_post("content-length: 2\r\n", b"{] extra\r\n\r\n")], (400, 400), "malformed_head", 0),
    ("gzip, chunked", [chunked(one(JSON), END).replace(b"chunked", b"gzip, chunked", 1)], 400, "invalid_request", 0),
    ("xchunked", [chunked(one(JSON), END).replace(b"chunked", b"xchunked", 1)], 400, "malformed_head", 0),
    ("chunked", [chunked(one(JSON[:9]), one(JSON[9:], b";a=b"), END)], 200, None, 1),
    ("trailers", [chunked(one(JSON), b"0\r\n", trailer=b"x-evil: 1\r\n\r\n")], 200, None, 1),
    ("trailers of 1 MB", [chunked(one(JSON), b"0\r\n", trailer=b"x: " + b"y" * 2**20 + b"\r\n\r\n")], 400, "invalid_request", 0),
    ("a chunk extension of 1 MB", [chunked(one(JSON, b";" + b"a" * 2**20), END)], 400, "invalid_request", 0),
    ("a chunk of size zz", [chunked(b"zz\r\n", JSON)], 400, "invalid_request", 0),
    ("a chunk size over 64 bits", [chunked(b"f" * 17 + b"\r\n", JSON)], 400, "invalid_request", 0),
    ("expect: 100-continue", [post(JSON, "expect: 100-continue\r\n")[:-len(JSON)], 0.1, JSON], (100, 200), None, 1),
    ("expect: cake", [post(JSON, "expect: cake\r\n")], 417, "expectation_failed", 0),
    ("three requests at once", [post(JSON) * 3], (200, 200, 200), None, 3),
    ("HTTP/1.0", [post(JSON, version="1.0")], 200, None, 1),
    ("HTTP/1.0, a stream", [post(good(stream=True), version="1.0")], 200, None, 1),
]
BODIES = [
    ("no UTF-8", [text(b'"x":"\xff"')], 400, "invalid_request", 0),
    ("UTF-16", [post(JSON.decode().encode("utf-16"))], 400, "invalid_request", 0),
    ("a byte order mark", [post(b"\xef\xbb\xbf" + JSON)], 400, "invalid_request", 0),
    ("half an object", [post(JSON[:-3])], 400, "invalid_request", 0),
    ("two objects", [post(JSON * 2)], 400, "invalid_request", 0),
    *((f"the body {body.decode()}", [post(body)], 400, "invalid_request", 0) for body in (b"[]", b'"x"', b"null", b"5")),
    ("no body", [post(b"")], 400, 400, 1),
    ("a form", [post(b"model=sim")], 400, "invalid_request", 0),
    ("100,000 levels", [text(b'"x":' + b"[" * 100_000 + b"]" * 100_000)], 400, "invalid_request", 0),
    ("100 levels", [text(b'"x":' + b"[" * 100 + b"]" * 100)], 200, None, 1),
    ("model twice, once escaped", [text(b'"mod\\u0065l":"x"')], 400, "invalid_request", 0),
    ("stream twice", [text(b'"stream":true,"stream":false')], 400, "invalid_request", 0),
    ("temperature twice", [text(b'"temperature":1,"temperature":0')], 200, None, 1),
    ("NaN", [text(b'"temperature":NaN')], 400, "invalid_request", 0),
    ("-Infinity", [text(b'"temperature":-Infinity')], 400, "invalid_request", 0),
    ("01", [text(b'"temperature":01')], 400, "invalid_request", 0),
    ("1e999", [text(b'"temperature":1e999')], 200, None, 1),
    ("a lone surrogate", [text(b'"x":"\\ud800"')], 200, None, 1),
    ("100,000 messages", [post(good(messages=GOOD["messages"] * 100_000))], 200, None, 1),
    ("n = 128", [post(good(n=128))], 200, None, 1),
    ("max_tokens = -1", [post(good(max_tokens=-1))], 400, 400, 1),
    *((f"stream: {value!r}", [post(good(stream=value))], 200, None, 1) for value in ("yes", 1, "no", None)),
    ("stream: 'maybe'", [post(good(stream="maybe"))], 400, "invalid_request", 0),
    ("model: 5", [post(good(model=5))], 400, "invalid_request", 0),
    ("an unknown model of 1 MB", [post(good(model="x" * 2**20))], 404, "model_not_found", 0),
    ("gzip", [post(gzip.compress(JSON), "content-encoding: gzip\r\n")], 415, "unsupported_encoding", 0),
]
TARGETS = [
    *((f"{method} chat", [get(CHAT, method=method)], 405, "method_not_allowed", 0) for method in ("DELETE", "PUT", "PATCH", "TRACE", "BREW", "get", "CONNECT")),
    *((f"{method} chat", [get(CHAT, method=method)], 405, None, 1) for method in ("GET", "HEAD", "OPTIONS")),
    *((f"GET {path}", [get(path)], 404, "unknown_path", 0) for path in (
        "/nope", "/", "*", "//v1/models", "/v1//models", "/v1/models/", "/v1/%6dodels", "/v1%2Fmodels", "/v1/./models", "/v1/x/../models",
        "/%2e%2e/metrics", "/metrics", "/sleep", "/V1/models", "/v1/models;x", "/v1/models%00")),
    *((f"POST {path}", [post(JSON, path=path)], 404, "unknown_path", 0) for path in ("/v1/chat%2fcompletions", "/v1/responses/../chat/completions", "/v1/responses/%2e%2e/cancel")),
    ("an absolute target", [get("http://other/v1/models", extra="host: other\r\n")], 200, None, 0),
    ("an absolute target of another host", [post(JSON, path=f"http://other{CHAT}")], 400, "invalid_request", 0),
    ("CONNECT a:443", [b"CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n"], 404, "unknown_path", 0),
    ("a space in the target", [get("/v1/models x")], 400, "malformed_head", 0),
    ("upgrade: h2c", [post(JSON, "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n")], 200, None, 1),
    ("a WebSocket on chat", [get(CHAT, extra=SOCKET)], 400, "upgrade_not_supported", 0),
    ("/v1/realtime without an upgrade", [get("/v1/realtime")], 426, "upgrade_required", 0),
]


async def table(port, engine, rows):
    """Each row on a connection of its own: how many came out as they say, and those that did not."""
    missed = []
    for name, parts, statuses, code, seen in rows:
        engine.seen.clear()
        answer = await send(port, *parts)
        statuses = [statuses] if isinstance(statuses, int) else list(statuses)
        has_trailer = any("x-evil" in head for _, _, head, _ in engine.seen)
        if answer.statuses != statuses or answer.error.get("code") != code or len(engine.seen) != seen or has_trailer:
            missed.append(f"{name}: {answer.told()}, {len(engine.seen)} at the replica")
        elif code and not (answer.error.get("message") and "param" in answer.error or code == 400):
            missed.append(f"{name}: no reason")
    return missed


async def tables(port, engine, gateway):
    for what, rows in (("heads", HEADS), ("framing", FRAMING), ("bodies", BODIES), ("methods, targets, upgrades", TARGETS)):
        missed = await table(port, engine, rows)
        yield f"{what}: {len(rows)} requests that are wrong or odd", "; ".join(missed) or "each answered as told, with its reason", not missed


async def leaving(port, engine, gateway):
    """Clients that leave in each phase, by FIN and by RST."""
    stream, slow = post(good(stream=True, max_tokens=2000, gap=0.02)), post(good(wait=30))
    phases = [("in the head", stream[:20], False, 0), ("in the body", stream[:-10], False, 0), ("before the answer", slow, False, 1),
              ("in the stream", stream, True, 1), ("with three streams pipelined", stream * 3, True, 1),
              ("after 100-continue", post(JSON, "expect: 100-continue\r\n")[:-len(JSON)], False, 0)]
    missed = []
    for name, data, is_read, started in phases:
        for is_reset in (False, True):
            engine.seen.clear()
            cut = engine.cut
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            await writer.drain()
            if is_read:
                await reader.readuntil(b"data: ")
            await asyncio.sleep(0.2)
            if is_reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()
            end = time.monotonic() + 3
            while engine.cut - cut < started and time.monotonic() < end:
                await asyncio.sleep(0.02)
            if (len(engine.seen), engine.cut - cut) != (started, started):
                missed.append(f"{name}: {len(engine.seen)} at the replica, {engine.cut - cut} ended")
    yield (f"clients that leave {', '.join(name for name, *_ in phases)}, by FIN and by RST", "; ".join(missed) or "the replica's work ended each time", not missed)


async def churn(port, engine, gateway):
    """Thousands that come and go, and readers of a byte a second."""
    before, began = await asyncio.to_thread(gateway.rss), time.monotonic()
    for first in (b"", b"P", post(GOOD)[:60]):
        for number in range(2000):
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", number % 2, 0))
            client.send(first)
            client.close()
            if number % 50 == 0:
                await asyncio.sleep(0)
    took = time.monotonic() - began
    readers = []
    for _ in range(50):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.send(post(good(stream=True, max_tokens=500, fat=20_000)))
        client.setblocking(False)
        readers.append(client)
    for _ in range(5):
        await asyncio.sleep(1)
        for client in readers:
            with contextlib.suppress(BlockingIOError):
                client.recv(1)
    grown = (await asyncio.to_thread(gateway.rss) - before) / 2**20
    for client in readers:
        client.close()
    answer = await send(port, post(GOOD))
    yield ("6,000 connections that leave at once, by FIN and by RST, with nothing, a byte or half a head; 50 readers of a byte a second of 10 MB each",
           f"the 6,000 in {took:.1f} s; RSS {grown:+.0f} MiB with the readers; then {answer.told()}", answer.statuses == [200] and grown < 64)


async def tls_say(port, data, *protocols):
    """What is answered to `data` over TLS with these ALPN protocols."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(2000), 3)
        writer.close()
        return answer
    except (OSError, asyncio.TimeoutError):
        return b"refused"


async def tls(port, engine, gateway):
    """`port` speaks TLS."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)
    clear, binary = await send(port, get("/v1/models"), quiet=3), await send(port, bytes(500))
    checks = {
        "clear text is told https://": clear.statuses == [400] and clear.error.get("code") == "tls_required" and clear.is_closed,
        "binary is closed": not binary.statuses and binary.is_closed,
        "HTTP/1.1 without ALPN is served": (await tls_say(port, get("/v1/models"))).startswith(b"HTTP/1.1 200"),
        "HTTP/2 without ALPN is served": (await tls_say(port, preface))[3:4] == b"\x04",
        "HTTP/1.1 where ALPN chose h2 is closed": await tls_say(port, get("/v1/models"), "h2") == b"",
        "an unknown protocol is refused": await tls_say(port, b"", "spdy/3") == b"refused",
    }
    missed = [name for name, holds in checks.items() if not holds]
    yield (f"{len(checks)} on a TLS port: {', '.join(checks)}", f"not so: {', '.join(missed)}" if missed else "all so", not missed)


RUNS = {"tables": tables, "leaving": leaving, "churn": churn, "tls": tls}


async def run_all(options):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cert, key = f"{folder}/cert.pem", f"{folder}/key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", cert],
                       check=True, capture_output=True)
        for name in options.only.split(","):
            engine = Engine(free_ports(1)[0])
            await engine.start()
            secure = f'tls = {{ cert = "{cert}", key = "{key}" }}\n' if name == "tls" else ""
            gateway = await asyncio.to_thread(Gateway, options.binary, [engine], secure)
            async for what, came, is_well in RUNS[name](gateway.data, engine, gateway):
                left = await asyncio.to_thread(gateway.left_behind)
                is_well &= not left
                rows.append((what, came + (f"; left behind: {left}" if left else ""), is_well))
                print(f"{'ok  ' if is_well else 'FAIL'} {what}: {rows[-1][1]}", flush=True)
            code = await asyncio.to_thread(gateway.stop)
            if code != 0:
                rows.append((name, f"exit {code}", False))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--only", default=",".join(RUNS), help=f"of {', '.join(RUNS)}")
    parser.add_argument("--write", metavar="FILE", help="replaces the rows between the `clients` marks of this file")
    options = parser.parse_args()
    options.binary = os.path.abspath(options.binary)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows = asyncio.run(run_all(options))
    if options.write:
        page = pathlib.Path(options.write)
        table_rows = "\n".join(f"| {what} | {came if is_well else f'**missed**: {came}'} |" for what, came, is_well in rows)
        block = f"<!-- clients -->\n{datetime.date.today().isoformat()}, `just clients`:\n\n| clients | result |\n|---|---|\n{table_rows}\n<!-- /clients -->"
        page.write_text(re.sub(r"<!-- clients -->.*<!-- /clients -->", lambda _: block, page.read_text(), flags=re.S))
    return 0 if all(is_well for _, _, is_well in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
