#!/usr/bin/env python3
"""Everyday faults over sockets: what a client sees of one bad replica, a shortage of descriptors, a reload, a restart.

    everyday.py BINARY [--only sick,silent,…] [--write docs/results.md]

Scripted replicas and the gateway run on loopback, with the standard library. Each run prints a row; the exit code is 1 if one failed.
Run it on a machine that has nothing else to do: failures are counted, and a starved client counts as one.
"""

import asyncio
import contextlib
import json
import pathlib
import random
import signal
import sys
import time

import rows
from endure import CHAT, PROMPT, Gateway, ask, free_ports

RATE = 60  # requests a second
BEFORE, AROUND, AFTER = 5, 10, 12  # seconds
TTFT, GAP, TOKENS = 0.03, 0.005, 20


class Scripted:
    """A replica that answers as its `mode` says; `serves` counts the chats that reached it."""

    def __init__(self, port):
        self.port, self.mode, self.factor, self.serves = port, "well", 1.0, 0
        self.server, self.writers = None, set()

    async def start(self):
        self.server = await asyncio.start_server(self.connection, "127.0.0.1", self.port, backlog=8192)

    def die(self):
        """As by SIGKILL: nobody listens, every connection is reset."""
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()

    async def connection(self, reader, writer):
        self.writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                await self.answer(writer, method, path, json.loads(body or "{}"), "x-tokenway-probe" in fields)
        self.writers.discard(writer)
        writer.close()

    async def answer(self, writer, method, path, body, is_probe):
        if self.mode == "503 on everything":
            return self.whole(writer, 503, {"error": {"message": "restarting", "code": 503}})
        if path == "/v1/models":
            return self.whole(writer, 200, {"object": "list", "data": [{"id": "sim", "object": "model"}]})
        if method != "POST":
            return self.whole(writer, 404 if path == "/metrics" else 200, {})
        if not is_probe:
            self.serves += 1
            if self.mode == "chat 500":
                return self.whole(writer, 500, {"error": {"message": "CUDA error", "type": "InternalServerError", "code": 500}})
            if self.mode == "chat 404":
                return self.whole(writer, 404, {"error": {"message": "The model `sim` does not exist.", "type": "NotFoundError", "code": 404}})
            if self.mode == "HTML page":
                return self.whole(writer, 200, "<html>welcome</html>", "text/html")
        if self.mode == "full" and is_probe:
            return self.whole(writer, 503, {"error": {"message": "queue is full", "code": 503}})
        tokens = min(body.get("max_tokens", TOKENS), 4000)
        if not body.get("stream"):
            await asyncio.sleep((TTFT + GAP * tokens) * (1 if is_probe else self.factor))
            return self.whole(writer, 200, {"object": "chat.completion", "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "w " * tokens}}],
                "usage": {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}})
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await asyncio.sleep(TTFT * self.factor)
        if self.mode == "error event":
            self.event(writer, {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}})
        else:
            for number in range(tokens):
                self.event(writer, {"choices": [{"index": 0, "delta": {"content": "w "}, "finish_reason": None}]})
                await writer.drain()
                await asyncio.sleep(body.get("gap", GAP) * self.factor)
            self.event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        data = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
        await writer.drain()

    @staticmethod
    def event(writer, value):
        data = f"data: {json.dumps(value)}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    @staticmethod
    def whole(writer, status, value, kind="application/json"):
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (status, kind.encode(), len(data), data))


async def fleet(count):
    replicas = [Scripted(port) for port in free_ports(count)]
    for replica in replicas:
        await replica.start()
    return replicas


def launcher(options, *lines):
    """A script that starts the binary after some shell lines."""
    path = pathlib.Path(options.folder) / f"launch-{random.getrandbits(32):08x}.sh"
    path.write_text("\n".join(["#!/bin/sh", *lines]) + f'\nexec {options.binary} "$@"\n')
    path.chmod(0o755)
    return str(path)


async def gateway(options, replicas, rest="", server="", launcher=None, **more):
    """Started in a thread: the replicas of this process have to answer its probes meanwhile."""
    return await asyncio.to_thread(Gateway, launcher or options.binary, replicas, server, rest, **more)


def chat(number, **more):
    """Each twelve chats share one prompt, behind one system prompt for all."""
    return {"model": "sim", "stream": True, "max_tokens": TOKENS, "messages": [
        {"role": "system", "content": PROMPT + " be brief" * 300}, {"role": "user", "content": f"question {number // 12}"}], **more}


async def outcome(port, body):
    """Whether it was answered whole, and its seconds."""
    began = time.monotonic()
    try:
        status, _, is_whole, has_error = await asyncio.wait_for(ask(port, body), 60)
        return status == 200 and bool(is_whole) and not has_error, time.monotonic() - began
    except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
        return False, time.monotonic() - began


async def paced(port, seconds, tasks, first=0):
    """Requests at RATE, as they come and not as they are answered."""
    began, number = time.monotonic(), first
    while (now := time.monotonic() - began) < seconds:
        while number - first < now * RATE:
            tasks.append(asyncio.create_task(outcome(port, chat(number))))
            number += 1
        await asyncio.sleep(0.005)
    return number


# ---- runs: each yields (event, result, whether it is well) --------------------------------------------

async def sick(options):
    """Some of four replicas go bad under load."""
    cases = [(mode, 1, policy) for policy in ("latency", "round_robin", "least_loaded")
             for mode in ("chat 500", "chat 404", "503 on everything", "HTML page", "error event")]
    cases += [("chat 500", 2, "latency"), ("chat 500", 2, "round_robin")]
    for mode, count, policy in cases:
        replicas = await fleet(4)
        one = await gateway(options, replicas, f'policy = "{policy}"\n')
        before, around, after = [], [], []
        number = await paced(one.data, BEFORE, before)
        for replica in replicas[:count]:
            replica.mode = mode
        number = await paced(one.data, AROUND, around, number)
        await paced(one.data, AFTER, after, number)
        failed = [sum(not good for good, _ in await asyncio.gather(*tasks)) for tasks in (before, around, after)]
        well = failed[0] == 0 and failed[1] <= 0.03 * len(around) * count and failed[2] <= 0.01 * len(after) * count
        code = await asyncio.to_thread(one.stop)
        yield (f"{count} of 4: {mode}, `{policy}`", f"{failed[1]} of {len(around)} failed, then {failed[2]} of {len(after)}", well and code == 0)


async def slow(options):
    """One of four answers ten times slower."""
    for policy in ("latency", "round_robin", "least_loaded"):
        replicas = await fleet(4)
        one = await gateway(options, replicas, f'policy = "{policy}"\n')
        before, around, after = [], [], []
        number = await paced(one.data, BEFORE, before)
        replicas[0].factor = 10.0
        number = await paced(one.data, AROUND, around, number)
        had = replicas[0].serves, sum(replica.serves for replica in replicas)
        await paced(one.data, AFTER, after, number)
        results = [await asyncio.gather(*tasks) for tasks in (before, around, after)]
        share = (replicas[0].serves - had[0]) / (sum(replica.serves for replica in replicas) - had[1])
        late = [sum(seconds > 5 * (TTFT + GAP * TOKENS) for _, seconds in part) for part in results]
        failed = sum(not good for part in results for good, _ in part)
        await asyncio.to_thread(one.stop)
        yield (f"1 of 4 ten times slower, `{policy}`", f"{failed} failed; slow answers {late[1]} of {len(around)}, then {late[2]} of {len(after)}; "
               f"its share is then {share:.1%}", failed == 0 and share < 0.1)


async def prefill(options):
    """Two idle replicas, 25 s before the first token, default timeouts."""
    replicas = await fleet(2)
    one = await gateway(options, replicas)
    for replica in replicas:
        replica.factor = 25 / TTFT
    tasks = [outcome(one.data, chat(number, max_tokens=1, gap=0, stream=stream)) for number, stream in ((0, True), (99, False))]
    for replica in replicas:
        replica.factor = 25 / (TTFT + GAP)
    answers = await asyncio.gather(*tasks)
    calls = sum(replica.serves for replica in replicas)
    await asyncio.to_thread(one.stop)
    yield ("a stream and a unary answer after 25 s of silence", f"{sum(good for good, _ in answers)} of 2 whole, {calls} requests at the replicas",
           all(good for good, _ in answers) and calls == 2)


async def streams(options):
    """Many quiet streams on two replicas, the default configuration."""
    replicas = await fleet(2)
    one = await gateway(options, replicas)
    began = time.monotonic()
    body = chat(0, max_tokens=4, gap=5)
    tasks = []
    for _ in range(options.streams):
        tasks.append(asyncio.create_task(outcome(one.data, body)))
        if len(tasks) % 50 == 0:
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    rss = one.rss()
    answers = await asyncio.gather(*tasks)
    whole = sum(good for good, _ in answers)
    left = await asyncio.to_thread(one.left_behind)
    await asyncio.to_thread(one.stop)
    yield (f"{options.streams:,} streams at once on two replicas", f"{whole} whole in {time.monotonic() - began:.0f} s; RSS {rss / 2**20:.0f} MiB; left behind: {left or 'nothing'}",
           whole == options.streams and not left)


async def descriptors(options):
    """128 descriptors, 200 clients."""
    replicas = await fleet(2)
    # The gateway itself raises a soft limit: this takes the hard one away.
    one = await gateway(options, replicas, launcher=launcher(options, "ulimit -n 128"))
    began, used = time.monotonic(), one.cpu()
    answers = await asyncio.gather(*(outcome(one.data, chat(number, gap=0.05)) for number in range(200)))
    used = (one.cpu() - used) / (time.monotonic() - began)
    page = await asyncio.to_thread(one.get, "/metrics")
    states = one.metric("tokenway_replica_state", page[1], state="ready")
    later = await asyncio.gather(*(outcome(one.data, chat(number)) for number in range(20)))
    lines = len(one.file.with_suffix(".log").read_bytes().splitlines())
    await asyncio.to_thread(one.stop)
    yield ("128 descriptors, 200 clients at once", f"{sum(good for good, _ in answers)} of 200 whole, {states:.0f} of 2 replicas ready, then {sum(good for good, _ in later)} of 20 whole; "
           f"{lines} log lines, {used:.0%} of a core", states == 2 and all(good for good, _ in later) and lines < 40 and used < 0.2)


async def reload(options):
    """The file names the replicas, then changes their revision, under load."""
    replicas = await fleet(2)
    one = await gateway(options, replicas)
    tasks = []
    traffic = asyncio.create_task(paced(one.data, 8, tasks))
    for turn in range(6):
        await asyncio.sleep(1.2)
        named = ", ".join(f'{{ url = "http://127.0.0.1:{replica.port}", name = "gpu-{turn}-{number}" }}' for number, replica in enumerate(replicas))
        head, _, tail = one.text.partition("replicas = [")
        one.file.write_text(f'{head}revision = "r{turn}"\nreplicas = [{named}{tail[tail.index("]"):]}')
        one.process.send_signal(signal.SIGHUP)
    await traffic
    failed = sum(not good for good, _ in await asyncio.gather(*tasks))
    page = (await asyncio.to_thread(one.get, "/metrics"))[1]
    reloads = one.metric("tokenway_config_reloads_total", page, result="ok") or one.metric("tokenway_config_reloads_total", page)
    await asyncio.to_thread(one.stop)
    yield ("six reloads that rename replicas and change the revision", f"{failed} of {len(tasks)} failed, {reloads:.0f} reloads", failed == 0 and reloads >= 6)


async def full(options):
    """Every engine's queue is full: probes get 503 while streams move."""
    replicas = await fleet(2)
    one = await gateway(options, replicas)
    running = [asyncio.create_task(outcome(one.data, chat(number, max_tokens=900, gap=0.02))) for number in range(20)]
    await asyncio.sleep(1)
    for replica in replicas:
        replica.mode = "full"
    tasks = []
    await paced(one.data, 12, tasks)
    page = (await asyncio.to_thread(one.get, "/metrics"))[1]
    ready = one.metric("tokenway_replica_state", page, state="ready")
    failed = sum(not good for good, _ in await asyncio.gather(*tasks, *running))
    await asyncio.to_thread(one.stop)
    yield ("probes of both replicas get 503 while streams move", f"{failed} of {len(tasks) + 20} failed, {ready:.0f} of 2 ready", failed == 0 and ready == 2)


async def restarts(options):
    """Three replicas die and come back in turn under one popular prompt."""
    replicas = await fleet(3)
    one = await gateway(options, replicas)
    stop, answers = asyncio.Event(), []

    async def popular():
        while not stop.is_set():
            answers.append(await ask_status(one.data, chat(0, max_tokens=40)))
    clients = [asyncio.create_task(popular()) for _ in range(12)]
    for replica in replicas:
        await asyncio.sleep(2)
        replica.die()
        await asyncio.sleep(1.5)
        await replica.start()
        await asyncio.sleep(2.5)
    stop.set()
    await asyncio.gather(*clients)
    later = [await ask_status(one.data, chat(0)) for _ in range(10)]
    await asyncio.to_thread(one.stop)
    refused, broken = answers.count("suspected_poison"), len(answers) - answers.count("ok")
    yield ("three replicas restarted in turn under one prompt", f"{broken} of {len(answers)} broken by a death, {refused} refused as poison, then {later.count('ok')} of 10 whole",
           refused == 0 and later.count("ok") == 10)


async def ask_status(port, body):
    try:
        status, text, is_whole, has_error = await asyncio.wait_for(ask(port, body), 30)
    except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
        return "no answer"
    if "suspected_poison" in str(text):
        return "suspected_poison"
    return "ok" if status == 200 and is_whole and not has_error else f"failed {status}"


async def bodies(options):
    """32 connections declare 32 MiB and send one byte."""
    replicas = await fleet(2)
    one = await gateway(options, replicas)
    uploads = []
    for _ in range(32):
        _, writer = await asyncio.open_connection("127.0.0.1", one.data)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {32 << 20}\r\n\r\n{{".encode())
        uploads.append(writer)
    tasks = []
    await paced(one.data, 8, tasks)
    answers = await asyncio.gather(*tasks)
    longest = max(seconds for _, seconds in answers)
    for writer in uploads:
        writer.close()
    await asyncio.to_thread(one.stop)
    failed = sum(not good for good, _ in answers)
    yield ("32 uploads of 32 MiB that send one byte", f"{failed} of {len(answers)} others failed, the slowest took {longest:.2f} s", failed == 0 and longest < 2)


RUNS = {run.__name__: run for run in (sick, slow, prefill, streams, descriptors, reload, full, restarts, bodies)}


if __name__ == "__main__":
    sys.exit(rows.main(RUNS, "everyday", __doc__, [("streams", 5000, "streams at once; each takes a descriptor here and two in the gateway")]))
