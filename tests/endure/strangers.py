#!/usr/bin/env python3
"""Honest traffic of three tenants beside a hostile fourth one and a fleet that fails: nobody honest may notice.

    strangers.py BINARY [--minutes 60] [--rate 30] [--seed 1] [--write docs/results.md]

Scripted replicas (engine.py) and the gateway run on loopback, with the standard library. Attacks and faults of the fleet are drawn at random, a few
seconds each, side by side. Every prompt and answer has a word of its tenant, and every answer is checked whole. The exit code is 1 if a goal is missed.
"""

import asyncio
import collections
import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import sys
import time

import rows
from endure import CHAT, KEY, PROMPT, Broken, chunks, frame, free_ports, literal
from engine import Engine, vector, words
from everyday import gateway

HONEST, STRANGER = ("corp", "shop", "lab"), "stranger"
KEYS = {tenant: f"{KEY}-{tenant}" for tenant in (*HONEST, STRANGER)}
WORDS = {tenant: f"{tenant}-secret-{hashlib.sha256(tenant.encode()).hexdigest()[:8]}" for tenant in KEYS}
OTHERS = {tenant: re.compile("|".join(word for owner, word in WORDS.items() if owner != tenant).encode()) for tenant in KEYS}
FORBIDDEN = b"@gold"  # the model that only corp may ask for: so its answers begin
FILLER = "the quick brown fox jumps over the lazy dog and runs on. "
FAILED_AT_MOST = 0.001
MEMORY_AT_MOST = 1536  # MiB: server.body_memory, and what the rest may take
PATIENCE = 90  # seconds, for one answer

CONFIG = """pools = ["p"]
migrate = true
{hedge}
[[route]]
model = "gold"
pools = ["p"]
[[pool]]
name = "q"
file = "{targets}"
[pool.probe]
interval = "1s"
[[route]]
model = "beta"
pools = ["q"]
migrate = true
{hedge}
[timeouts]
first_token = "20s"
inter_token = "5s"
client_stall = "10s"
total = "60s"
{tenants}"""


def tenants():
    text = ""
    for tenant, key in KEYS.items():
        rest = "" if tenant == "corp" else 'routes = ["sim", "beta"]\n'
        # Three times what its traffic is; a flood of another script must not make it too little.
        rest += "" if tenant == STRANGER else "limits = { tokens_per_minute = 300000 }\n"
        text += f'[[tenant]]\nname = "{tenant}"\nkey_sha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n{rest}'
    return text


# ---- a client -----------------------------------------------------------------------------------------------------

class Answer:
    def __init__(self, status=0, head=b"", raw=b"", is_whole=False):
        self.status, self.raw, self.is_whole = status, raw, is_whole
        self.replica = (re.search(rb"x-tokenway-replica: ([^\r]+)", head) or [b"", b""])[1].decode()

    def json(self):
        return json.loads(self.raw)

    def events(self):
        return [json.loads(line[6:]) for line in self.raw.split(b"\n") if line.startswith(b"data: {")]

    def told(self):
        code = re.search(rb'"code": ?"?(\w+)', self.raw)
        return f"{self.status}{' ' + code[1].decode() if code else ''}{'' if self.is_whole else ' broken'}"


async def call(port, tenant, method, path, body=None, headers=(), leave_after=None):
    """One request on a connection of its own; `leave_after` so many chunks its client goes."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: strangers", f"content-length: {len(data)}", *headers]
    lines += [f"authorization: Bearer {KEYS[tenant]}"] if tenant else []
    lines += [] if any(line.startswith("content-type") for line in headers) else ["content-type: application/json"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head = await reader.readuntil(b"\r\n\r\n")
        answer = Answer(int(head.split(b" ", 2)[1]), head)
        with contextlib.suppress(Broken, asyncio.IncompleteReadError, ConnectionError):
            if b"transfer-encoding: chunked" in head.lower():
                count = 0
                async for part in chunks(reader):
                    answer.raw += part
                    count += 1
                    if leave_after is not None and count >= leave_after:
                        return answer
            else:
                length = re.search(rb"content-length: (\d+)", head.lower())
                answer.raw = await reader.readexactly(int(length[1])) if length else b""
            answer.is_whole = True
        return answer
    finally:
        writer.close()


# ---- the run ------------------------------------------------------------------------------------------------------

class Field:
    """Fleet, gateway, and what has been counted."""

    def __init__(self, options, gate, pools, targets):
        self.options, self.gate, self.pools, self.targets = options, gate, pools, targets
        self.rng = random.Random(options.seed)
        self.end = time.monotonic() + 60 * options.minutes
        self.sent, self.ok, self.apart = collections.Counter(), collections.Counter(), collections.Counter()
        self.failed, self.drawn, self.notes = collections.Counter(), collections.Counter(), collections.defaultdict(list)
        self.by_tenant, self.crossed, self.misses = collections.Counter(), [], []
        self.stored = {}  # id -> tenant, its text, replica, when it was made
        self.broken = []  # (port, from, to) in which a replica lost work that may not be repeated
        self.number = 0
        self.rss, self.descriptors, self.ejected, self.unfair = [], [], {}, []
        self.stalls = []  # seconds by which the script's own loop was late
        self.hurt, self.now = [], {}  # (port, from, to) of every fault; what runs now, by lane

    def engines(self):
        return [engine for pool in self.pools.values() for engine in pool]

    def cross(self, tenant, answer, what):
        """Counts words of others, and of a model that this tenant may not ask for."""
        others = OTHERS.get(tenant) or re.compile("|".join(WORDS.values()).encode())
        if found := others.search(answer.raw):
            self.crossed.append(f"{what}: {tenant} reads {found[0].decode()}")
        if tenant == STRANGER and FORBIDDEN in answer.raw:
            self.crossed.append(f"{what}: {tenant} is answered by gold")

    async def hostile(self, what, method, path, body=None, headers=(), tenant=STRANGER, **more):
        """A stranger's request: its answer is nobody's concern, but for the words in it."""
        try:
            answer = await asyncio.wait_for(call(self.gate.data, tenant, method, path, body, headers, **more), 40)
        except (OSError, EOFError, asyncio.TimeoutError, ValueError, asyncio.LimitOverrunError):
            return Answer()
        self.cross(tenant, answer, what)
        return answer

    def say(self, line):
        print(f"  {self.options.minutes * 60 - self.end + time.monotonic():5.0f} s  {line}", file=sys.stderr, flush=True)

    def prompt(self, tenant, count, long=False):
        self.number += 1
        return f"{PROMPT} of {WORDS[tenant]} number {self.number} tokens {count} " + FILLER * (110 if long else self.rng.randrange(2, 12)) + "END "

    async def honest(self, kind, tenant, method, path, body, right, replica=""):
        """An honest request: whole, right, and without a word of others. The answer, where it was so. `replica`: the only one that has what it asks for."""
        name = f"{kind}, {'stream' if (body or {}).get('stream') else 'unary'}" if method == "POST" else kind
        began = time.time()
        self.sent[name] += 1
        self.by_tenant[tenant] += 1
        try:
            answer = await asyncio.wait_for(call(self.gate.data, tenant, method, path, body), PATIENCE)
        except (OSError, EOFError) as error:
            return self.fail(name, f"no answer: {type(error).__name__}", began, replica)
        except asyncio.TimeoutError:
            return self.fail(name, f"no answer in {PATIENCE} s", began, replica)
        self.cross(tenant, answer, name)
        reason = None
        if answer.status != 200 or not answer.is_whole:
            reason = answer.told()
        else:
            try:
                said = right(answer)
                reason = None if said is True else f"200, {said}"
            except (ValueError, KeyError, IndexError, TypeError) as error:
                reason = f"200, cannot be read: {type(error).__name__}"
        if reason:
            return self.fail(name, reason, began, replica or answer.replica)
        self.ok[name] += 1
        return answer

    def fail(self, name, reason, began, replica):
        # Work that is stored may not be sent twice: what a dying replica had of it is lost with it.
        is_lost = name.startswith("response") and any(
            start - 1 <= time.time() and began <= end and (not replica or replica.endswith(str(port))) for port, start, end in self.broken)
        (self.apart if is_lost else self.failed)[f"{name}: {reason}"] += 1
        if not is_lost and self.failed[f"{name}: {reason}"] <= 3:
            self.say(f"failed: {name} at {replica or 'no replica'}: {reason}, beside {self.now}")

    # -- honest traffic

    async def one(self):
        tenant, draw = self.rng.choice(HONEST), self.rng.random()
        model = self.rng.choice(["sim", "beta"])
        count = self.rng.choice([5, 12, 20, 150 if self.rng.random() < 0.1 else 30])
        prompt = self.prompt(tenant, count, long=self.rng.random() < 0.03)
        text, stream = "".join(words(prompt, model)), self.rng.random() < 0.7
        if draw < 0.12:
            body = {"model": model, "input": prompt}
            await self.honest("embeddings", tenant, "POST", "/v1/embeddings", body,
                              lambda answer: answer.json()["data"][0]["embedding"] == vector(prompt) or "another vector")
        elif draw < 0.27:
            await self.completion(tenant, model, prompt, text, stream)
        elif draw < 0.4:
            await self.stored_answers(tenant, model, prompt, text, stream)
        else:
            body = {"model": model, "stream": stream, "max_tokens": count, "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": prompt}]}
            await self.honest("chat", tenant, "POST", CHAT, body, lambda answer: self.is_right(answer, stream, text, lambda choice: (choice.get("delta") or choice.get("message"))["content"]))

    async def completion(self, tenant, model, prompt, text, stream):
        body = {"model": model, "stream": stream, "max_tokens": 200, "prompt": prompt}
        await self.honest("completions", tenant, "POST", "/v1/completions", body, lambda answer: self.is_right(answer, stream, text, lambda choice: choice["text"]))

    @staticmethod
    def is_right(answer, stream, text, of):
        if not stream:
            return of(answer.json()["choices"][0]) == text or "another text"
        choices = [choice for event in answer.events() for choice in event.get("choices", [])]
        if not answer.raw.endswith(b"data: [DONE]\n\n") or answer.raw.count(b"[DONE]") != 1:
            return "not ended by [DONE]"
        if choices[-1].get("finish_reason") != "stop":
            return "no finish reason"
        return "".join(of(choice) for choice in choices) == text or "another text"

    async def stored_answers(self, tenant, model, prompt, text, stream):
        """Makes a response, and some seconds later reads it, continues it, and deletes one of four."""
        made = await self.response(tenant, model, prompt, text, stream)
        if made is None:
            return
        await asyncio.sleep(self.rng.uniform(0.5, 20))
        if await self.read_back(made) and self.rng.random() < 0.5 and self.is_kept(made):
            prompt = self.prompt(tenant, 6)
            await self.response(tenant, model, prompt, f"after.{text.split()[0]} " + "".join(words(prompt, model)), stream, made)
        if self.rng.random() < 0.25 and self.is_kept(made) and made in self.stored:
            _, _, replica, _ = self.stored.pop(made)
            await self.honest("response deleted", tenant, "DELETE", f"/v1/responses/{made}", None, lambda answer: answer.json().get("deleted") or "not deleted", replica)

    async def response(self, tenant, model, prompt, text, stream, before=None):
        body = {"model": model, "input": prompt, "stream": stream, "metadata": {"of": WORDS[tenant]}, **({"previous_response_id": before} if before else {})}
        if self.rng.random() < 0.1:
            body["request_id"] = f"{tenant}-own-{self.number}"

        def value(answer):
            return answer.events()[-1]["response"] if stream else answer.json()
        answer = await self.honest("response continued" if before else "response", tenant, "POST", "/v1/responses", body,
                                   lambda answer: value(answer)["output"][0]["content"][0]["text"] == text or "another text",
                                   self.stored[before][2] if before in self.stored else "")
        if answer is None:
            return None
        self.stored[value(answer)["id"]] = tenant, text, answer.replica, time.time()
        return value(answer)["id"]

    def is_kept(self, name):
        """Whether the replica that made a response still has it."""
        _, _, replica, made = self.stored.get(name, (None, None, "", 0))
        return any(replica.endswith(str(engine.port)) and engine.born < made and engine.server for engine in self.engines()) \
            and not any(replica.endswith(str(port)) and end > time.time() for port, _, end in self.broken)

    async def read_back(self, name):
        if name not in self.stored or not self.is_kept(name):
            return False
        tenant, text, replica, _ = self.stored[name]
        answer = await self.honest("response read", tenant, "GET", f"/v1/responses/{name}", None,
                                   lambda answer: answer.json()["output"][0]["content"][0]["text"] == text or "another text", replica)
        return answer is not None

    async def traffic(self):
        running = set()
        began, count = time.monotonic(), 0
        while time.monotonic() < self.end:
            while count < (time.monotonic() - began) * self.options.rate:
                task = asyncio.create_task(self.one())
                running.add(task)
                task.add_done_callback(running.discard)
                count += 1
            await asyncio.sleep(0.01)
        await asyncio.gather(*running)

    # -- what is drawn

    async def lane(self, name, kinds, pause):
        deck = []
        while time.monotonic() < self.end - 15:
            if not deck:
                deck = self.rng.sample(list(kinds), len(kinds))
            kind = deck.pop()
            self.drawn[kind.__name__] += 1
            self.now[name] = kind.__name__
            try:
                note = await asyncio.wait_for(kind(self), 120)
            except Exception as error:  # pylint: disable=broad-except
                note = f"the script failed: {error!r}"
                self.misses.append(f"{kind.__name__}: {note}")
            if note:
                self.notes[kind.__name__].append(note)
                self.say(f"{kind.__name__}: {note}")
            await asyncio.sleep(self.rng.uniform(*pause))

    async def watch_itself(self):
        """How long engines and clients, which share a process, stood still: what fails then is no gateway's fault."""
        while time.monotonic() < self.end:
            began = time.monotonic()
            await asyncio.sleep(0.1)
            self.stalls.append(time.monotonic() - began - 0.1)

    async def watch(self):
        while time.monotonic() < self.end:
            self.rss.append(self.gate.rss() / 2**20)
            self.descriptors.append(self.gate.descriptors())
            await self.look()
            await asyncio.sleep(1)

    async def look(self):
        """Counts ejections, and those of replicas that nothing was done to in the last half minute."""
        status, text = await asyncio.to_thread(self.gate.get, "/api/v1/fleet")
        if status != 200:
            return []
        replicas = json.loads(text)["replicas"]
        for one in replicas:
            port, entered = int(one["url"].rsplit(":", 1)[1]), one["life"]["entered"]["ejected"]
            if entered > self.ejected.get(port, 0):
                if not any(hurt == port and start <= time.time() <= end + 30 for hurt, start, end in self.hurt):
                    self.unfair.append(f"{one['replica']} ({one['state']}: {one['reason']}) beside {self.now}")
                    self.say(f"ejected: {self.unfair[-1]}")
                self.ejected[port] = entered
        return replicas

    async def all_ready(self, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ready = [one for one in await self.look() if one["state"] == "ready"]
            if len(ready) == len(self.engines()):
                return True
            await asyncio.sleep(0.5)
        return False


# ---- attacks: each some seconds of a stranger; the result is a note, or nothing ---------------------------------------

ABORT = {"finish_reason": "abort"}
DYING = ["the pool is draining", "EngineDeadError", "EngineCore encountered an issue, shutting down", "cannot schedule new futures after shutdown"]


async def quoted_aborts(field):
    """Words of a death in metadata, tools, tool input and text."""
    for _ in range(10):
        word = field.rng.choice(DYING)
        await asyncio.gather(
            field.hostile("abort", "POST", "/v1/responses", {"model": "sim", "input": "hi", "metadata": ABORT}),
            field.hostile("abort", "POST", "/v1/responses", {"model": "beta", "input": "hi", "tools": [{"type": "function", "name": "f", "parameters": ABORT}]}),
            field.hostile("abort", "POST", "/v1/messages", {"model": "sim", "max_tokens": 9, "messages": [{"role": "user", "content": "!tool " + json.dumps(ABORT)}]}),
            field.hostile("abort", "POST", CHAT, {"model": "sim", "stream": field.rng.random() < 0.5, "messages": [{"role": "user", "content": f'!quote "finish_reason":"abort" {word}'}]}))


async def quoted_deaths(field):
    """Error events, 400s and 500s that quote the client."""
    for _ in range(8):
        tasks = []
        for odd in ("error", "400", "500"):
            content = f"!{odd} Invalid grammar: {field.rng.choice(DYING)}"
            tasks.append(field.hostile(odd, "POST", CHAT, {"model": field.rng.choice(["sim", "beta"]), "stream": odd == "error", "messages": [{"role": "user", "content": content}]}))
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.2)


async def chosen_ids(field):
    """Reads, continues, overwrites and deletes the stored responses of others."""
    names = field.rng.sample(list(field.stored), min(12, len(field.stored)))
    taken = 0
    for name in names:
        for answer in await asyncio.gather(
                field.hostile("overwrite", "POST", "/v1/responses", {"model": "sim", "input": f"of {WORDS[STRANGER]} number 1 tokens 9 ", "request_id": name}),
                field.hostile("overwrite", "POST", "/v1/responses", {"model": "beta", "input": "hi", "stream": True, "request_id": name}, leave_after=1)):
            taken += answer.status == 200
        await field.hostile("read", "GET", f"/v1/responses/{name}")
        await field.hostile("continue", "POST", "/v1/responses", {"model": "sim", "input": "hi", "previous_response_id": name})
        await field.hostile("delete", "DELETE", f"/v1/responses/{name}")
    return f"{taken} of {2 * len(names)} POSTs with another's id were answered"


async def twin_parameters(field):
    """Forms and targets whose model two parsers read differently."""
    for name in ('name="x"; name="model"', 'name="model"; name="x"', 'name="model"; name="model"', "name=x; name=\"model\""):
        parts = [("name=\"model\"", "sim"), (name, "gold"), ('name="file"; filename="a.wav"', "RIFF")]
        body = "".join(f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n" for head, value in parts) + "--b--\r\n"
        for first in (body, body.replace('form-data; name="model"\r\n\r\nsim', 'form-data; name="n"\r\n\r\nsim')):
            await field.hostile("form", "POST", "/v1/audio/transcriptions", first.encode(), ["content-type: multipart/form-data; boundary=b"])
    for query in ("model=sim&%6dodel=gold", "%6dodel=gold&model=sim", "model=sim&model=gold"):
        await field.hostile("realtime", "GET", f"/v1/realtime?{query}", None, ["upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="])


async def odd_bodies(field):
    """Bodies that Python reads and a strict parser does not."""
    gold = json.dumps({"model": "gold", "prompt": "hi", "messages": [{"role": "user", "content": "hi"}]})
    bodies = [b"\xef\xbb\xbf" + gold.encode(), gold.encode("utf-16"), gold.encode("utf-16-le"), gold.replace("{", '{"x": NaN, ', 1).encode(),
              gold.replace("{", '{"x": ' + "[" * 200 + "]" * 200 + ", ", 1).encode(), gold.replace('"model"', '"model": "sim", "model"').encode(), b"\xff" + gold.encode()]
    for path in ("/v1/custom", CHAT, "/v1/completions", "/v1/embeddings"):
        for body in bodies:
            for kind in ("application/json", "application/x-www-form-urlencoded"):
                await field.hostile(f"odd body, {path}", "POST", path, body, [f"content-type: {kind}"])


async def failing_pins(field):
    """An input that fails everywhere, aimed at one replica after the other."""
    aims = {}
    for _ in range(40):
        answer = await field.hostile("pin", "POST", "/v1/responses", {"model": "sim", "input": "hi"})
        with contextlib.suppress(ValueError, KeyError):
            aims.setdefault(answer.replica, answer.json()["id"])
        if len(aims) == len(field.pools["p"]):
            break
    for name in aims.values():
        await asyncio.gather(*(field.hostile("aimed", "POST", "/v1/responses", {"model": "sim", "input": "!500 CUDA error", "previous_response_id": name}) for _ in range(12)))
    return f"12 failures at each of {len(aims)}"


async def pin_flood(field):
    """Thousands of stored responses of one tenant."""
    async def one():
        for _ in range(150):
            await field.hostile("flood", "POST", "/v1/responses", {"model": "sim", "input": "of x number 1 tokens 0 "})
    await asyncio.gather(*(one() for _ in range(16)))


async def silent_admin(field):
    """Connections to the admin port that say nothing."""
    connections = [await asyncio.open_connection("127.0.0.1", field.gate.admin) for _ in range(100)]
    began, status = time.monotonic(), 0
    while status != 200 and time.monotonic() < began + 30:
        status, _ = await asyncio.to_thread(field.gate.get, "/healthz")
    took = time.monotonic() - began
    for _, writer in connections:
        writer.close()
    if took > 12:
        field.misses.append(f"/healthz answered {status} after {took:.0f} s beside silent connections")
    return f"/healthz {status} after {took:.1f} s"


async def twin_headers(field):
    """A trusted header and a key, each given twice."""
    for headers in (["x-tenant: corp", "x-tenant: stranger"], ["x-tenant: stranger", "x-tenant: corp"]):
        answer = await field.hostile("header", "POST", CHAT, {"model": "gold", "messages": [{"role": "user", "content": "hi"}]}, headers)
        if answer.status == 200:
            field.misses.append("a trusted header given twice was taken")
    await field.hostile("key", "POST", CHAT, {"model": "gold", "messages": []}, [f"authorization: Bearer {KEYS['shop']}x"])


async def paused_uploads(field):
    """30 uploads of 31 MiB that stop a byte before the end of 32."""
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEYS[STRANGER]}\r\ncontent-type: application/json\r\ncontent-length: {32 << 20}\r\n\r\n".encode()
    piece = b" " * (1 << 18)

    async def upload():
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            _, writer = await asyncio.open_connection("127.0.0.1", field.gate.data)
            try:
                writer.write(head)
                for _ in range(124):
                    writer.write(piece)
                    await asyncio.wait_for(writer.drain(), 10)
                await asyncio.sleep(10)
            finally:
                writer.transport.abort()
    await asyncio.gather(*(upload() for _ in range(30)))


async def closed_windows(field):
    """HTTP/2: requests for large answers that nobody takes."""
    fields = b"".join(literal(name, value) for name, value in [
        (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/v1/embeddings"), (b"content-type", b"application/json"),
        (b"authorization", b"Bearer " + KEYS[STRANGER].encode())])
    body = json.dumps({"model": "sim", "input": "!large"}).encode()
    writers = []
    for _ in range(3):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", field.gate.data)
            writers.append(writer)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"\0\4\0\0\0\0") + frame(4, 1, 0))
            for stream in range(1, 160, 2):
                writer.write(frame(1, 4, stream, fields) + frame(0, 1, stream, body))
    await asyncio.sleep(8)
    held = field.gate.rss() / 2**20
    for writer in writers:
        writer.transport.abort()
    return f"RSS {held:.0f} MiB beside 240 answers of 480 KB that nobody takes"


async def preflights(field):
    """Preflights without a key, with cookies."""
    before = sum(engine.preflights for engine in field.engines())
    headers = ["origin: https://evil.example", "access-control-request-method: POST", "cookie: session=1"]
    for _ in range(50):
        await asyncio.gather(*(field.hostile("preflight", "OPTIONS", path, None, headers, tenant=None) for path in [CHAT, "/v1/models", "/health", "/v1/embeddings"] * 2))
    return f"{sum(engine.preflights for engine in field.engines()) - before} of 400 reached an engine"


async def emoji(field):
    """Prompts of another script, and then of digits."""
    for text in ("😀" * 800, "漢字" * 900, "1234567890" * 300):
        await asyncio.gather(*(field.hostile("emoji", "POST", CHAT, {"model": model, "messages": [{"role": "user", "content": text}]}) for model in ("sim", "beta") * 10))


async def silent_ends(field):
    """[DONE], or the finishing chunk, and then silence for longer than inter_token."""
    async def one(odd, model):
        text = f"of {WORDS[STRANGER]} number 7 tokens 5 "
        answer = await field.hostile("silent end", "POST", CHAT, {"model": model, "stream": True, "messages": [{"role": "user", "content": f"!{odd} {text}"}]})
        said = "".join(choice["delta"].get("content", "") for event in answer.events() for choice in event.get("choices", []))
        _, done, behind = answer.raw.partition(b"data: [DONE]\n\n")
        # At a replica that is made to answer nonsense there is no such stream.
        if said and said != "".join(words(text, model)):
            field.misses.append(f"a stream that fell silent after its {odd} lost text")
        if done and behind:
            field.misses.append(f"something followed [DONE]: {behind[:40]!r}")
    await asyncio.gather(*(one(odd, model) for odd in ("done", "finish") for model in ("sim", "beta")))


async def leaving(field):
    """Clients that leave in an upload, before an answer, in a stream, with more requests behind the first."""
    body = {"model": "sim", "stream": True, "messages": [{"role": "user", "content": f"of {WORDS[STRANGER]} number 2 tokens 40 "}]}
    raw = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEYS[STRANGER]}\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode()

    async def cut(data, after):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", field.gate.data)
            writer.write(data)
            await asyncio.sleep(after)
            writer.transport.abort() if field.rng.random() < 0.5 else writer.close()
    whole = head + raw
    for _ in range(15):
        await asyncio.gather(cut(whole[:-9], 0.05), cut(whole, 0.005), cut(whole, 0.1), cut(whole * 3, 0.1), cut(whole + head[:30], 0.2), cut(head[:40], 0.01),
                             field.hostile("leaves", "POST", CHAT, body, leave_after=field.rng.randrange(1, 9)))


async def unknown_names(field):
    """Models, sessions and agents that nobody has heard of."""
    for at in range(40):
        await asyncio.gather(*(field.hostile("names", "POST", CHAT, {"model": f"nobody-{field.rng.random()}", "messages": []}, [f"user-agent: a{at}", f"x-session-id: {at}", f"x-request-id: r{at}"])
                               for _ in range(5)))


async def stopped_gateway(field):
    """The gateway stands still, as a virtual machine that is paused; longer than inter_token now and then."""
    seconds = field.rng.choice([2, 4, 8])
    field.gate.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        field.gate.process.send_signal(signal.SIGCONT)
    return f"{seconds} s"


async def reloads(field):
    """The file changes, and is broken once."""
    for turn in range(4):
        text = field.gate.text.replace('total = "60s"', f'total = "{60 + turn % 3}s"') if turn != 2 else "broken ["
        new = field.gate.file.with_suffix(".new")
        new.write_text(text)
        new.rename(field.gate.file)
        field.gate.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(1)


ATTACKS = [quoted_aborts, quoted_deaths, chosen_ids, twin_parameters, odd_bodies, failing_pins, pin_flood, silent_admin, twin_headers, paused_uploads, closed_windows, preflights,
           emoji, silent_ends, leaving, unknown_names, stopped_gateway, reloads]


# ---- faults of the fleet: one at a time, mended at its end --------------------------------------------------------------

async def hurt(field, engines, seconds, undo, note=None, kills=True):
    """Lets a fault of these engines last, undoes it, and waits for the fleet. `kills`: whether work that is stored is lost by it."""
    began = time.time()
    entries = [[engine.port, began, began + 3600] for engine in engines]
    field.hurt += entries
    field.broken += entries if kills else []
    try:
        await asyncio.sleep(seconds)
    finally:
        await undo()
        came_back = await field.all_ready()
        for entry in entries:
            entry[2] = time.time()
    if not came_back:
        return f"{note or ''} not all replicas were ready a minute after it: " + "; ".join(f"{one['replica']} {one['state']}, {one['reason']}" for one in await field.look() if one["state"] != "ready")
    return note


def one_of(field):
    return field.rng.choice(field.engines())


def mode(name):
    async def fault(field):
        engine = one_of(field)
        engine.mode, engine.lies_to_probes = name, field.rng.random() < 0.5

        async def undo():
            if name == "hang":
                # What hangs is replaced by its supervisor.
                engine.die()
                await engine.start()
            engine.mode = "well"
        return await hurt(field, [engine], field.rng.uniform(4, 9), undo, f"{'clients only' if engine.lies_to_probes else 'probes as well'}")
    fault.__name__ = f"replica_answers_{name}" if name != "hang" else "replica_hangs"
    return fault


async def replica_killed(field):
    engine = one_of(field)
    engine.die()
    return await hurt(field, [engine], field.rng.uniform(0.5, 4), engine.start)


async def another_model(field):
    """The address now belongs to an engine of another model."""
    engine = one_of(field)
    engine.die()
    engine.models = ["intruder"]
    await engine.start()

    async def undo():
        engine.die()
        engine.models = engine.own_models
        await engine.start()
    return await hurt(field, [engine], field.rng.uniform(5, 9), undo)


def listing(name, lines):
    async def fault(field):
        field.targets.write_text(json.dumps(lines))

        async def undo():
            list_targets(field.targets, field.pools["q"])
        return await hurt(field, field.pools["q"], field.rng.uniform(4, 9), undo, kills=False)
    fault.__name__ = name
    return fault


def list_targets(path, engines):
    new = path.with_suffix(".new")
    new.write_text(json.dumps([{"targets": [f"127.0.0.1:{engine.port}" for engine in engines]}]))
    new.rename(path)


FAULTS = [*(mode(name) for name in ("500", "html", "404", "empty", "hang")), replica_killed, replica_killed, replica_killed, another_model,
          listing("discovery_lists_nothing", []), listing("discovery_lists_a_dead_address", [{"targets": ["127.0.0.1:1"]}])]


# ---- rows -------------------------------------------------------------------------------------------------------------

def tally(counter, limit=12):
    told = ", ".join(f"{name} {count:,}" for name, count in counter.most_common(limit))
    return told or "none"


async def soak(options):
    ports = free_ports(7)
    pools = {"p": [Engine(port, ["sim", "gold"]) for port in ports[:4]], "q": [Engine(port, ["beta"]) for port in ports[4:]]}
    for engine in (*pools["p"], *pools["q"]):
        await engine.start()
    targets = pathlib.Path(options.folder) / "targets.json"
    list_targets(targets, pools["q"])
    rest = CONFIG.format(targets=targets, tenants=tenants(), hedge='hedge = { after = "3s", budget = 0.1 }')
    server = 'trust_headers = ["x-tenant"]\nextra_paths = ["/v1/custom"]\nroute_info_headers = true\n'
    gate = await gateway(options, pools["p"], rest, server, telemetry='access_log = "off"')
    field = Field(options, gate, pools, targets)
    await field.all_ready()
    field.rss, field.descriptors = [gate.rss() / 2**20], [gate.descriptors()]
    await asyncio.gather(field.traffic(), field.lane("attack", ATTACKS, (0.5, 2)), field.lane("fault", FAULTS, (1, 4)), field.watch(),
                         field.watch_itself())
    is_ready = await field.all_ready()
    names = [name for name in field.stored if field.is_kept(name)]
    for at in range(0, len(names), 20):
        await asyncio.gather(*(field.read_back(name) for name in names[at:at + 20]))
    left = await asyncio.to_thread(gate.left_behind)
    page = (await asyncio.to_thread(gate.get, "/metrics"))[1]
    counted = {tenant: int(gate.metric("tokenway_requests_total", page, tenant=tenant)) for tenant in HONEST}
    field.rss.append(gate.rss() / 2**20)
    field.descriptors.append(gate.descriptors())
    state = " ".join(f"{one['replica']} {one['state']}" for one in await field.look() if one["state"] != "ready")
    code = await asyncio.to_thread(gate.stop)
    sent, failed, apart = (sum(counter.values()) for counter in (field.sent, field.failed, field.apart))

    yield "drawn", f"{options.minutes} minutes: {tally(field.drawn, 99)}", True
    late = [stall for stall in field.stalls if stall > 1]
    yield "the script itself was late", f"{len(late)} times by more than a second, {max(field.stalls):.1f} s at most", True
    yield "honest requests by kind", f"{sent:,}: {tally(field.sent, 99)}", True
    yield "honest requests failed", f"{failed} of {sent:,} ({failed / sent:.3%}): {tally(field.failed)}", failed <= FAILED_AT_MOST * sent
    yield "stored work that was at a replica as it died or answered nonsense, sent once, counted apart", f"{apart}: {tally(field.apart)}", True
    lost = {tenant: f"{field.by_tenant[tenant]} sent, {counted[tenant]} counted" for tenant in HONEST if counted[tenant] != field.by_tenant[tenant]}
    yield "nothing is lost", f"{len(names):,} stored responses read again at the end; counted as sent: {lost or 'all'}; left behind: {left or 'nothing'}; exit {code}", \
        not lost and not left and code == 0
    crossed = collections.Counter(field.crossed)
    yield "words of one tenant, or of a forbidden model, in another's answer", f"{len(field.crossed)}{': ' + tally(crossed) if crossed else ''}", not crossed
    misses = collections.Counter(field.misses)
    yield "what a stranger or a probe was told", tally(misses) if misses else "as it should be", not misses
    yield "replicas", (f"{sum(field.ejected.values())} ejections, {len(field.unfair)} of replicas that nothing was done to"
                       f"{': ' + tally(collections.Counter(field.unfair), 5) if field.unfair else ''}; at the end {'all ready' if is_ready else state}"), is_ready and not field.unfair
    yield "memory and descriptors of the gateway", (f"RSS {field.rss[0]:.0f} MiB at the start, {max(field.rss):.0f} at most, {field.rss[-1]:.0f} at the end; "
                                                    f"{field.descriptors[0]}, {max(field.descriptors)}, {field.descriptors[-1]} descriptors"), max(field.rss) <= MEMORY_AT_MOST


if __name__ == "__main__":
    sys.exit(rows.main({"soak": soak}, "strangers", __doc__, [("minutes", 60, "length of the run"), ("rate", 30, "honest requests a second"), ("seed", 1, "of what is drawn")]))
