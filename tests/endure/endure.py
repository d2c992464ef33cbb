#!/usr/bin/env python3
"""Longer runs against a release binary and simulated replicas: what a test of seconds cannot show.

    endure.py BINARY [--minutes M] [--only soak,readers,…] [--write docs/results.md]

Everything runs on loopback with the standard library; h2load, slowhttptest and h2spec are used where they are installed
(H2SPEC names one that is not on the PATH). Each run prints a row; the exit code is 1 if one failed.
"""

import argparse
import asyncio
import datetime
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_ports

CHAT = "/v1/chat/completions"
# What every client of these runs sends, and no page, log line or file of the gateway may tell.
KEY, PROMPT = "sk-canary-of-a-client", "canary of a prompt"
CANARIES = (KEY, PROMPT)


# ---- processes ----------------------------------------------------------------------------------------------------

class Replica:
    """One simulated replica in a process of its own, so that it can be killed."""

    def __init__(self, binary, port, *flags):
        self.command = [binary, "sim", "--replicas", "1", "--port", str(port), *flags]
        self.port = port
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def fault(self, **fault):
        """Injects a fault, or clears all where none is named."""
        body, method = (json.dumps(fault).encode(), "POST") if fault else (None, "DELETE")
        url, kind = f"http://127.0.0.1:{self.port}/sim/fault", {"content-type": "application/json"}
        try:
            urllib.request.urlopen(urllib.request.Request(url, body, kind, method=method), timeout=2).read()
        except OSError:
            pass  # It is down: that is a fault as well.


class Gateway:
    """The gateway under test with a file of its own."""

    def __init__(self, binary, replicas, server="", rest="", telemetry=None):
        self.data, self.admin = free_ports(2)
        self.folder = tempfile.TemporaryDirectory(prefix="endure-")
        self.file = pathlib.Path(self.folder.name) / "gateway.toml"
        telemetry = telemetry or f'access_log = "{self.folder.name}/access.jsonl"'
        urls = ", ".join(f'"http://{getattr(replica, "host", "127.0.0.1")}:{replica.port}"' for replica in replicas)
        self.text = f"""[server]
listen = "127.0.0.1:{self.data}"
drain_delay = "0s"
{server}
[admin]
listen = "127.0.0.1:{self.admin}"
[telemetry]
{telemetry}
[[pool]]
name = "p"
replicas = [{urls}]
[pool.probe]
interval = "1s"
[[route]]
model = "sim"
{rest}"""
        self.file.write_text(self.text)
        self.log = open(self.file.with_suffix(".log"), "wb")
        self.process = subprocess.Popen([binary, "serve", "--config", str(self.file)], stdout=self.log, stderr=self.log)
        wait(lambda: self.get("/readyz")[0] == 200, "the gateway is ready")

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    def metric(self, name, page=None, **labels):
        """Sum of a family over the series with these labels."""
        total = 0.0
        for line in (page or self.get("/metrics")[1]).splitlines():
            match = re.match(rf"{name}(?:\{{(.*)\}})? ([^ ]+)", line)
            if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
                total += float(match[2])
        return total

    def rss(self):
        """Resident bytes."""
        pages = pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def left_behind(self):
        """Counts of running work that should be zero, and are not after ten seconds."""
        counts = ["tokenway_requests_inflight", "tokenway_replica_inflight", "tokenway_queue_requests", "tokenway_queue_bytes",
                  "tokenway_open_connections"]
        end = time.monotonic() + 10
        while True:
            page = self.get("/metrics")[1] or "no answer 1"
            left = {name: value for name in counts if (value := self.metric(name, page)) != 0}
            left.update({"/metrics": "no answer"} if page == "no answer 1" else {})
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.2)

    def told(self):
        """Those of CANARIES that a page of the admin port, a log line or a file of the gateway's tells."""
        paths = [path for path in json.loads(self.get("/api/v1/openapi.json")[1] or '{"paths":{}}')["paths"] if "{" not in path and "events" not in path]
        pages = {path: self.get(path)[1].encode() for path in ["/metrics", "/", *paths]}
        files = {path.name: path.read_bytes() for path in pathlib.Path(self.folder.name).iterdir() if path.is_file() and path != self.file}
        return {f"{canary} in {place}" for place, text in {**pages, **files}.items() for canary in CANARIES if canary.encode() in text}

    def stop(self):
        """Ends it by SIGTERM; the exit code. Raises where it told what is nobody's business."""
        told = self.told()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(40)
            if told := told | self.told():
                raise RuntimeError(f"the gateway told {', '.join(sorted(told))}")
            return code
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "no exit"
        finally:
            self.log.close()
            self.folder.cleanup()


def wait(holds, what, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"still not so after {seconds} s: {what}")
        time.sleep(0.05)


# ---- clients ------------------------------------------------------------------------------------------------------

def request(body, version="1.1", path=CHAT):
    body = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: endure\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Broken(Exception):
    """The connection ended before the answer did."""


async def chunks(reader):
    """The data of a chunked body; raises where it is cut."""
    while True:
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise Broken
        size = int(line, 16)
        data = await reader.readexactly(size + 2)
        if size == 0:
            return
        yield data[:-2]


async def read_head(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), head.lower()


async def ask(port, body, pace=0.0, leave_after=None):
    """One request: status, text, whether it was complete, whether an error event came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(body))
        await writer.drain()
        status, head = await read_head(reader)
        text, raw, count = "", b"", 0
        try:
            if b"transfer-encoding: chunked" not in head:
                length = int(re.search(rb"content-length: (\d+)", head)[1])
                raw = await reader.readexactly(length)
            else:
                async for data in chunks(reader):
                    raw += data
                    count += 1
                    if leave_after is not None and count > leave_after:
                        return status, None, False, False
                    if pace:
                        await asyncio.sleep(pace)
            is_whole = True
        except (Broken, asyncio.IncompleteReadError, ConnectionError):
            is_whole = False
        if status != 200:
            return status, raw.decode(), is_whole, True
        has_error, is_done = False, False
        if not body.get("stream"):
            answer = json.loads(raw) if is_whole else {"choices": [{"message": {"content": ""}}]}
            return status, answer["choices"][0]["message"]["content"], is_whole, False
        for event in raw.decode(errors="replace").split("\n\n"):
            data = event.removeprefix("data: ")
            if data == "[DONE]":
                is_done = True
            elif event.startswith("data: ") and event.endswith("}"):
                event = json.loads(data)
                has_error |= "error" in event
                for choice in event.get("choices", []):
                    text += choice["delta"].get("content") or ""
        # Complete only with both ends; one without the other must not exist.
        if is_done != is_whole and not has_error:
            return status, f"[DONE] {is_done}, framing {is_whole}", None, has_error
        return status, text, is_done, has_error
    finally:
        writer.close()


class Bystander:
    """An unsuspicious client beside a run: how long its small requests take."""

    def __init__(self, gateway):
        self.gateway, self.times, self.failed, self.task = gateway, [], 0, None

    async def __aenter__(self):
        self.task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()

    async def run(self):
        while True:
            began = time.monotonic()
            try:
                reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self.gateway.data), 5)
                writer.write(b"GET /v1/models HTTP/1.1\r\nhost: endure\r\nconnection: close\r\n\r\n")
                answer = await asyncio.wait_for(reader.read(), 5)
                writer.close()
                self.failed += not answer.startswith(b"HTTP/1.1 200")
            except (OSError, asyncio.TimeoutError):
                self.failed += 1
            self.times.append(time.monotonic() - began)
            await asyncio.sleep(0.02)

    def told(self):
        p99 = statistics.quantiles(self.times, n=100)[98] * 1000 if len(self.times) > 1 else 0
        return f"bystander {len(self.times)} requests, {self.failed} failed, p99 {p99:.0f} ms"


# ---- runs: each returns (what ran, result, whether it is well) -------------------------------------------

async def soak(options):
    """Random faults under mixed traffic."""
    minutes, clients = options.minutes, options.clients
    replicas = [Replica(options.binary, port, "--step-ms", "4") for port in free_ports(4)]
    for replica in replicas:
        replica.start()
    gateway = Gateway(options.binary, replicas, 'keep_alive = "5s"\n', """[route.timeouts]
first_token = "15s"
inter_token = "4s"
total = "40s"
client_stall = "5s"
""")
    prompts = [{"model": "sim", "max_tokens": 8 + number % 57, "messages": [
        {"role": "user", "content": f"{PROMPT} {number} " + "word " * (number * 7 % 400)}]} for number in range(40)]
    # The replicas' seeds are the same: a prompt has one right answer.
    right = [(await ask(replicas[0].port, prompt))[1] for prompt in prompts]
    tally = dict(ok=0, left=0, failed=0, broken=0, refused=0, wrong=0, sent=0)
    wrong, end = [], time.monotonic() + minutes * 60

    async def client(rng):
        while time.monotonic() < end:
            number = rng.randrange(len(prompts))
            body = dict(prompts[number], stream=rng.random() < 0.8)
            manner = rng.random()
            leave_after = rng.randrange(6) if body["stream"] and manner < 0.15 else None
            pace = 0.02 if 0.15 <= manner < 0.25 else 0.0
            try:
                if 0.25 <= manner < 0.28:
                    # Half an upload: its head was accepted, so it counts.
                    tally["sent"] += 1
                    _, writer = await asyncio.open_connection("127.0.0.1", gateway.data)
                    writer.write(request(body)[:-20])
                    await writer.drain()
                    await asyncio.sleep(0.05)
                    writer.close()
                    tally["left"] += 1
                    continue
                tally["sent"] += 1
                status, text, is_whole, has_error = await ask(gateway.data, body, pace, leave_after)
            except (OSError, asyncio.IncompleteReadError) as error:
                wrong.append(f"no answer: {error!r}")
                continue
            if text is None:
                tally["left"] += 1
            elif status in (429, 503):
                tally["refused"] += 1
                await asyncio.sleep(0.5)  # As `retry-after` asks.
            elif status != 200:
                tally["failed"] += 1
            elif is_whole and not has_error:
                is_right = text == right[number]
                tally["ok" if is_right else "wrong"] += 1
                if not is_right:
                    wrong.append(f"prompt {number}: {text[:60]!r} for {right[number][:60]!r}")
            elif is_whole is None or not right[number].startswith(text):
                tally["wrong"] += 1
                wrong.append(f"prompt {number}: broken with {text[:60]!r}")
            else:
                tally["broken"] += 1

    faults = dict(killed=0, injected=0, reloads=0)

    async def trouble(rng):
        kinds = ["cut", "reset_before_head", "error_500", "error_503", "slow", "stall", "hang", "freeze", "engine_death", "refuse"]
        reloaded = 0
        while time.monotonic() < end - 5:
            await asyncio.sleep(rng.uniform(0.5, 2.0))
            replica, what = rng.choice(replicas), rng.random()
            if what < 0.2:
                replica.kill()
                faults["killed"] += 1
                await asyncio.sleep(rng.uniform(0.2, 2.0))
                replica.start()
            elif what < 0.8:
                kind = rng.choice(kinds)
                fault = dict(kind=kind, after_events=rng.randrange(8), probability=0.5, duration_ms=rng.randrange(200, 2500))
                await asyncio.to_thread(replica.fault, **fault)
                faults["injected"] += 1
                if kind == "engine_death":
                    # A dead core stays dead: its process is replaced, as its supervisor would.
                    await asyncio.sleep(rng.uniform(0.5, 2.0))
                    replica.kill()
                    replica.start()
            else:
                # By SIGHUP and by the file's change in turn; the file is replaced, as editors do.
                reloaded += 1
                new = gateway.file.with_suffix(".new")
                new.write_text(gateway.text.replace('"40s"', f'"{40 + reloaded % 3}s"'))
                new.rename(gateway.file)
                if reloaded % 2:
                    gateway.process.send_signal(signal.SIGHUP)
                faults["reloads"] += 1
        for replica in replicas:
            if replica.process.poll() is not None:
                replica.start()
            await asyncio.to_thread(replica.fault)

    rss = []

    async def sample():
        while time.monotonic() < end:
            rss.append(gateway.rss())
            await asyncio.sleep(5)

    rng = random.Random(options.seed)
    workers = [client(random.Random(rng.random())) for _ in range(clients)]
    await asyncio.gather(*workers, trouble(rng), sample())
    left = gateway.left_behind()
    counted = gateway.metric("tokenway_requests_total")
    # Once caches are filled and pools have grown, memory stays.
    later = rss[len(rss) // 3:] or [gateway.rss()]
    growth = (statistics.mean(later[-len(later) // 3 or -1:]) - statistics.mean(later[:len(later) // 3 or 1])) / 2**20
    descriptors = gateway.descriptors()
    code = gateway.stop()
    for replica in replicas:
        replica.kill()
    for line in wrong[:5]:
        print("  wrong:", line, file=sys.stderr)
    has_served = tally["ok"] > 10 * (tally["failed"] + tally["refused"])
    is_well = has_served and not wrong and not left and counted == tally["sent"] and growth < 16 and code == 0
    return (
        f"{minutes:g} minutes, {clients} clients, 4 replicas; {faults['killed']} kills, {faults['injected']} faults, {faults['reloads']} reloads",
        f"{tally['sent']} requests: {tally['ok']} whole, {tally['left']} left by their client, {tally['broken']} broken and said so, "
        f"{tally['failed'] + tally['refused']} errors; **{len(wrong)} wrong**; counted {counted:.0f}; left behind: {left or 'nothing'}; "
        f"RSS {rss[0] / 2**20:.0f} → {rss[-1] / 2**20:.0f} MiB, in the last two thirds {growth:+.1f}; {descriptors} descriptors; exit {code}",
        is_well)


async def readers(options):
    """Streams whose clients hardly read."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Two descriptors a stream in the gateway, and its reserve.
    count = min(options.readers, (soft - 500) * 45 // 100)
    replicas = [Replica(options.binary, port, "--max-num-seqs", "20000", "--blocks", "4000000", "--step-ms", "200") for port in free_ports(2)]
    for replica in replicas:
        replica.start()
    gateway = Gateway(options.binary, replicas, "max_connections = 20000\n", '[route.timeouts]\nclient_stall = "20s"\nfirst_token = "120s"\n')
    before, opened, ended = gateway.rss(), 0, 0
    peak, answered = before, 0
    # Each reader asks for a stream that its buffers cannot hold; `n` makes an event large.
    body = {"model": "sim", "stream": True, "max_tokens": 4000, "messages": [{"role": "user", "content": f"{PROMPT}: read slowly"}]}
    sockets = []
    async with Bystander(gateway) as bystander:
        for at in range(count):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.setblocking(False)
            try:
                await asyncio.wait_for(asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", gateway.data)), 5)
                await asyncio.get_running_loop().sock_sendall(one, request(body))
            except (OSError, asyncio.TimeoutError):
                continue
            sockets.append(one)
            opened += 1
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for one in sockets:
                try:
                    answered += len(one.recv(1)) > 0
                except (BlockingIOError, ConnectionError):
                    pass
            peak = max(peak, gateway.rss())
            await asyncio.sleep(1)
    ended = gateway.metric("tokenway_timeouts_total", timer="client_stall")
    inflight = gateway.metric("tokenway_requests_inflight")
    for one in sockets:
        one.close()
    left = gateway.left_behind()
    after = gateway.rss()
    code = gateway.stop()
    for replica in replicas:
        replica.kill()
    per_reader = (peak - before) / max(opened, 1) / 1024
    return (
        f"{opened} clients that read one byte a second for 60 s (RLIMIT_NOFILE {soft}), window 4 KiB",
        f"{per_reader:.0f} KiB each at the peak, RSS {before / 2**20:.0f} → {peak / 2**20:.0f} → {after / 2**20:.0f} MiB; {inflight:.0f} still open, "
        f"{ended:.0f} ended by client_stall; {bystander.told()}; left behind: {left or 'nothing'}; exit {code}",
        not left and code == 0 and per_reader < 200 and bystander.failed == 0)


async def slow_loris(options):
    """Heads and bodies that never end."""
    replica = Replica(options.binary, free_ports(1)[0])
    replica.start()
    gateway = Gateway(options.binary, [replica], 'header_timeout = "5s"\n', '[route.timeouts]\nclient_stall = "8s"\n')
    results = []
    is_well = True
    for name, start in [("heads", b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx: "),
                        ("bodies", b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 30000000\r\n\r\n{")]:
        closed = []

        async def drip():
            began = time.monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data)
            writer.write(start)
            try:
                while True:
                    try:
                        if await asyncio.wait_for(reader.read(65536), 1) == b"":
                            break
                    except asyncio.TimeoutError:
                        writer.write(b"a")
                        await writer.drain()
            except ConnectionError:
                pass
            closed.append(time.monotonic() - began)
            writer.close()

        async with Bystander(gateway) as bystander:
            tasks = [asyncio.create_task(drip()) for _ in range(1000)]
            await asyncio.wait(tasks, timeout=40)
            for task in tasks:
                task.cancel()
        last = max(closed, default=0)
        results.append(f"{name}: {len(closed)} of 1000 closed, the last after {last:.1f} s; {bystander.told()}")
        is_well &= bystander.failed == 0 and len(closed) == 1000
    left = gateway.left_behind()
    code = gateway.stop()
    replica.kill()
    return ("1,000 connections, a byte a second, for 40 s each: first in the head (header_timeout 5 s), then in the body",
            "; ".join(results) + f"; left behind: {left or 'nothing'}", is_well and not left and code == 0)


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


async def floods(options):
    """HTTP/2 floods."""
    replica = Replica(options.binary, free_ports(1)[0])
    replica.start()
    gateway = Gateway(options.binary, [replica])
    fields = literal(b":method", b"POST") + literal(b":scheme", b"http") + literal(b":authority", b"a") + literal(b":path", CHAT.encode())
    kinds = {
        "rapid reset": lambda n: frame(1, 4, n, fields) + frame(3, 0, n, b"\0\0\0\x08"),
        "PING": lambda n: frame(6, 0, 0, b"12345678"),
        "PING ACK": lambda n: frame(6, 1, 0, b"12345678"),
        "SETTINGS": lambda n: frame(4, 0, 0, b"\0\4\0\1\0\0"),
        "CONTINUATION": lambda n: frame(1, 0, 1, fields) if n == 1 else frame(9, 0, 1, literal(b"x-a", b"1") * 500),
        "empty DATA": lambda n: frame(1, 4, 1, fields) if n == 1 else frame(0, 0, 1),
        "PRIORITY": lambda n: frame(2, 0, n, b"\0\0\0\0\x10"),
        "WINDOW_UPDATE 0": lambda n: frame(8, 0, 0, b"\0\0\0\0"),
    }
    before, sent = gateway.rss(), {}
    async with Bystander(gateway) as bystander:
        for name, one in kinds.items():
            end, count = time.monotonic() + options.flood_seconds, 0
            while time.monotonic() < end:
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data)
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
                try:
                    for start in range(1, 200_000, 400):
                        writer.write(b"".join(one(n) for n in range(start, start + 400, 2)))
                        await asyncio.wait_for(writer.drain(), 2)
                        count += 200
                        if time.monotonic() > end:
                            break
                except (OSError, asyncio.TimeoutError):
                    pass
                writer.transport.abort()
            sent[name] = count
    left = gateway.left_behind()
    growth = (gateway.rss() - before) / 2**20
    code = gateway.stop()
    replica.kill()
    told = ", ".join(f"{name} {count}" for name, count in sent.items())
    return (f"{options.flood_seconds} s of each flood, one connection after the other", f"frames sent: {told}; {bystander.told()}; RSS {growth:+.0f} MiB; "
            f"left behind: {left or 'nothing'}; exit {code}", not left and code == 0 and bystander.failed == 0 and growth < 64)


def tool(name):
    return os.environ.get(name.upper()) or shutil.which(name)


async def conformance(options):
    """h2spec, if it is there."""
    if not tool("h2spec"):
        return None
    replica = Replica(options.binary, free_ports(1)[0])
    replica.start()
    folder = tempfile.TemporaryDirectory()
    pem, key = f"{folder.name}/cert.pem", f"{folder.name}/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", pem],
                   check=True, capture_output=True)
    gateway = Gateway(options.binary, [replica], f'tls = {{ cert = "{pem}", key = "{key}" }}\n')
    run = subprocess.run([tool("h2spec"), "-p", str(gateway.data), "-t", "-k", "-P", CHAT, "-o", "5"], capture_output=True, text=True)
    summary = re.findall(r"(\d+) tests?, (\d+) passed, (\d+) skipped, (\d+) failed", run.stdout)
    code = gateway.stop()
    replica.kill()
    total, passed, skipped, failed = map(int, summary[-1]) if summary else (0, 0, 0, 1)
    if failed:
        print(run.stdout[-3000:], file=sys.stderr)
    return "h2spec over TLS", f"{passed} of {total} passed, {skipped} skipped, {failed} failed", failed == 0 and code == 0


async def large_bodies(options):
    """Streams of one engine while another one's clients upload prompts of token ids."""
    engine, other = (Replica(options.binary, port) for port in free_ports(2))
    other.command += ["--model", "uploads"]
    engine.start()
    other.start()
    pools = f'pools = ["p"]\n[[pool]]\nname = "u"\nreplicas = ["http://127.0.0.1:{other.port}"]\n[[route]]\nmodel = "uploads"\npools = ["u"]\n'
    gateway = Gateway(options.binary, [engine], rest=pools)
    folder = tempfile.TemporaryDirectory()
    body = pathlib.Path(folder.name) / "body"
    ids = ",".join(str(100_000 + at % 50_000) for at in range(31 * (1 << 20) // 7))
    body.write_text('{"model":"uploads","max_tokens":1,"prompt":[' + ids + "]}")

    async def gap(port):
        """Longest wait of four streams between two reads, in seconds."""
        async def stream(at):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request({"model": "sim", "stream": True, "max_tokens": 300, "messages": [{"role": "user", "content": f"{PROMPT}: hello {at}"}]}))
            await read_head(reader)
            last, longest = time.monotonic(), 0.0
            async for _ in chunks(reader):
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
            writer.close()
            return longest
        return max(await asyncio.gather(*(stream(at) for at in range(4))))

    def upload(port):
        url = f"http://127.0.0.1:{port}/v1/completions"
        return subprocess.Popen([sys.executable, "-c", UPLOAD, url, str(body)], stdout=subprocess.PIPE, text=True)

    figures, statuses = {}, []
    for name, streams, uploads in [("gateway", gateway.data, gateway.data), ("straight", engine.port, other.port)]:
        for with_uploads in (False, True):
            longest = []
            for _ in range(options.rounds):
                processes = [upload(uploads) for _ in range(3)] if with_uploads else []
                longest.append(await gap(streams) * 1000)
                statuses += [process.communicate()[0] for process in processes]
            figures[name, with_uploads] = sorted(longest)
    code = gateway.stop()
    engine.kill()
    other.kill()
    without, beside = (statistics.median(figures["gateway", key]) for key in (False, True))
    # Engines, clients and uploads share the machine's cores: what they cost each other without a gateway is not its doing.
    others = statistics.median(figures["straight", True])
    told = "; ".join(
        f"{name}{' beside the uploads' if key else ''} {statistics.median(longest):.0f} ({longest[0]:.0f} to {longest[-1]:.0f}) ms"
        for (name, key), longest in figures.items())
    return (f"four streams beside three bodies of 31 MiB of token ids for another engine, {options.rounds} rounds",
            f"longest gap, median: {told}; answers {sorted(set(statuses))}; exit {code}",
            beside <= max(2 * without, 1.25 * others) and code == 0)


# A process of its own: what an upload costs its client must not look like a gap. 400 is "too long": the engine has read it.
UPLOAD = """import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], open(sys.argv[2], "rb").read(), {"content-type": "application/json"})
try:
    print(urllib.request.urlopen(request, timeout=60).status, end="")
except urllib.error.HTTPError as error:
    print(error.code, end="")
"""


async def load(options):
    """h2load, if it is there."""
    if not tool("h2load"):
        return None
    replica = Replica(options.binary, free_ports(1)[0])
    replica.start()
    gateway = Gateway(options.binary, [replica])
    url = f"http://127.0.0.1:{gateway.data}/v1/models"
    run = await asyncio.to_thread(subprocess.run, [tool("h2load"), "-n100000", "-c100", "-m100", url], capture_output=True, text=True)
    done = re.search(r"requests: (.*)", run.stdout)
    rate = re.search(r"finished in (.*)", run.stdout)
    left = gateway.left_behind()
    code = gateway.stop()
    replica.kill()
    return ("h2load -n100000 -c100 -m100 /v1/models", f"{done and done[1]}; {rate and rate[1]}; left behind: {left or 'nothing'}",
            " 100000 succeeded" in run.stdout and not left and code == 0)


RUNS = {"conformance": conformance, "load": load, "bodies": large_bodies, "floods": floods, "loris": slow_loris, "readers": readers, "soak": soak}


def write(path, command, rows):
    """Puts the rows between the marks of a Markdown file."""
    text = pathlib.Path(path).read_text()
    date = datetime.date.today().isoformat()
    table = "\n".join(f"| {name} | {what} | {came} | {'well' if is_well else '**failed**'} |" for name, what, came, is_well in rows)
    block = f"<!-- endure -->\n{date}, `{command}`:\n\n| run | what ran | result | |\n|---|---|---|---|\n{table}\n<!-- /endure -->"
    pathlib.Path(path).write_text(re.sub(r"<!-- endure -->.*<!-- /endure -->", lambda _: block, text, flags=re.S))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="a release build of tokenway")
    parser.add_argument("--minutes", type=float, default=30, help="length of the soak")
    parser.add_argument("--clients", type=int, default=48, help="concurrent clients of the soak")
    parser.add_argument("--readers", type=int, default=10_000, help="slow readers, as far as RLIMIT_NOFILE allows")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of the large bodies")
    parser.add_argument("--flood-seconds", type=int, default=5, help="length of each flood")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="comma-separated: " + ", ".join(RUNS))
    parser.add_argument("--write", metavar="FILE", help="put the table into this Markdown file")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows = []
    for name in options.only.split(",") if options.only else RUNS:
        row = asyncio.run(RUNS[name](options))
        if row is None:
            print(f"{name}: not run, its tool is not installed", flush=True)
            continue
        rows.append((name, *row))
        print(f"{name}: {'well' if row[2] else 'FAILED'}\n  {row[0]}\n  {row[1]}", flush=True)
    if options.write:
        given = [argument for argument in sys.argv[2:] if argument != options.write and argument != "--write"]
        write(options.write, " ".join(["just endure", *given]), rows)
    sys.exit(0 if all(row[3] for row in rows) else 1)


if __name__ == "__main__":
    main()
