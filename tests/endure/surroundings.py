#!/usr/bin/env python3
"""What the machine around does to the gateway: clocks that jump, little memory, connections closed under it, signals, handshakes.

    surroundings.py BINARY [--only reuse,drain,…] [--write docs/results.md]

Scripted replicas and the gateway run on loopback, with the standard library; faketime's library, openssl, sslscan and testssl.sh are used
where they are installed, `memory` needs a cgroup (v1 or v2) that it may write to, and `vanish` the right to make network namespaces. Each run prints a row; the exit code is 1 if one failed.
"""

import asyncio
import contextlib
import datetime
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import rows
from endure import PROMPT, Gateway, Replica, ask, free_ports, wait
from everyday import Scripted, chat, fleet, gateway, launcher, outcome, paced

LIBFAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


class Closing(Scripted):
    """Closes a connection that was idle for `patience` seconds, as uvicorn does after five."""

    def __init__(self, port, patience):
        super().__init__(port)
        self.patience, self.closed = patience, 0

    async def connection(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            while True:
                try:
                    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self.patience)).decode("latin-1")
                except asyncio.TimeoutError:
                    self.closed += 1
                    break
                method, path, _ = head.split(" ", 2)
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                await self.answer(writer, method, path, json.loads(body or "{}"), "x-tokenway-probe" in fields)
        writer.close()


async def reuse(options):
    """Requests that meet the moment at which the engine closes an idle connection."""
    # vLLM's five seconds, and engines that close earlier than the gateway lets go.
    for patience in (5.0, 2.0, 0.5):
        replicas = [Closing(port, patience) for port in free_ports(2)]
        for replica in replicas:
            await replica.start()
        one = await gateway(options, replicas, 'policy = "round_robin"\n')
        pace, answers = random.Random(int(patience * 10)), []

        async def lane(number, turns):
            for turn in range(turns):
                answers.append((await outcome(one.data, chat(number, max_tokens=1, gap=0, stream=turn % 2 == 0)))[0])
                # All lanes leave their connections at about the same time and come back when they are being closed.
                await asyncio.sleep(patience + pace.uniform(-0.1, 0.1) - 0.03)
        turns = max(options.requests // 400, 1)
        await asyncio.gather(*(lane(number, turns) for number in range(400)))
        page = (await asyncio.to_thread(one.get, "/metrics"))[1]
        retries = one.metric("tokenway_retries_total", page)
        left = await asyncio.to_thread(one.left_behind)
        code = await asyncio.to_thread(one.stop)
        failed, closed = answers.count(False), sum(replica.closed for replica in replicas)
        yield (f"idle connections closed by the engine after {patience:g} s, {len(answers):,} requests {patience - 0.1:g} to {patience + 0.1:g} s apart",
               f"{failed} failed, {retries:.0f} sent again; the engine closed {closed:,} connections; left behind: {left or 'nothing'}",
               failed == 0 and not left and code == 0)


async def retries(options):
    """Half of the replicas fail: how much more do all of them get?"""
    for mode in ("cut before an answer", "chat 500", "chat 503"):
        replicas = await fleet(4)
        for replica in replicas:
            replica.answer = answering(replica)
        one = await gateway(options, replicas, 'policy = "round_robin"\n')
        tasks = []
        number = await paced(one.data, 5, tasks)
        for replica in replicas[:2]:
            replica.mode = mode
        before, tasks = sum(replica.serves for replica in replicas), []
        await paced(one.data, 20, tasks, number)
        failed = sum(not good for good, _ in await asyncio.gather(*tasks))
        extra = (sum(replica.serves for replica in replicas) - before) / len(tasks) - 1
        await asyncio.to_thread(one.stop)
        yield (f"2 of 4 replicas: {mode}, `round_robin`", f"{failed} of {len(tasks)} failed; requests at the replicas {extra:+.1%}", extra <= 0.2)


def answering(replica):
    """The answers of a scripted replica, and two faults more."""
    usual = replica.answer

    async def answer(writer, method, path, body, is_probe):
        is_chat = method == "POST" and not is_probe
        if is_chat and replica.mode == "cut before an answer":
            replica.serves += 1
            writer.transport.abort()
        elif is_chat and replica.mode == "chat 503":
            replica.serves += 1
            replica.whole(writer, 503, {"error": {"message": "overloaded", "code": 503}})
        else:
            await usual(writer, method, path, body, is_probe)
    return answer


async def drain(options):
    """SIGTERM while a thousand streams run."""
    replicas = await fleet(2)
    one = await gateway(options, replicas, server='drain_timeout = "60s"\n')
    running = [asyncio.create_task(outcome(one.data, chat(number, max_tokens=30, gap=0.4))) for number in range(options.streams)]
    while sum(replica.serves for replica in replicas) < options.streams:
        await asyncio.sleep(0.1)
    one.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    refused = False
    while not refused and time.monotonic() - began < 5:
        await asyncio.sleep(0.1)
        refused = not (await outcome(one.data, chat(0, max_tokens=1)))[0]
    whole = sum(good for good, _ in await asyncio.gather(*running))
    code = await asyncio.to_thread(one.process.wait, 30)
    yield (f"SIGTERM with {options.streams:,} live streams", f"{whole:,} came whole; new connections were {'refused' if refused else 'taken'} meanwhile; exit {code} "
           f"after {time.monotonic() - began:.1f} s", whole == options.streams and refused and code == 0)


async def clock(options):
    """The wall clock jumps under load."""
    if not os.path.exists(LIBFAKETIME):
        return
    now = pathlib.Path(options.folder) / "time"
    log = pathlib.Path(options.folder) / "access.jsonl"
    now.write_text("+0")
    start = launcher(options, f"export LD_PRELOAD={LIBFAKETIME} FAKETIME_TIMESTAMP_FILE={now} FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1")
    replicas = await fleet(2)
    one = await gateway(options, replicas, launcher=start, rest='slo = "near"\n[slo.near]\nttft = "2s"\n', telemetry=f'access_log = "{log}"')
    tasks, number = [], 0
    for jump in ("+0", "+1d", "-1d", "+0", "+1h", "-1h", "+30d", "+0"):
        now.write_text(jump)
        # The gateway compares its wall time with the machine's every ten seconds.
        number = await paced(one.data, 12, tasks, number)
    failed = sum(not good for good, _ in await asyncio.gather(*tasks))
    page = (await asyncio.to_thread(one.get, "/metrics"))[1]
    findings = json.loads((await asyncio.to_thread(one.get, "/api/drift"))[1] or "{}")
    outcomes = one.metric("tokenway_requests_total", page, outcome="ok")
    missed = one.metric("tokenway_slo_missed_total", page)
    code = await asyncio.to_thread(one.stop)
    lines = [json.loads(line) for line in log.read_text().splitlines() if '"http.route"' in line or '"request_id"' in line]
    times = [datetime.datetime.fromisoformat(line["time"]) for line in lines]
    days = (max(times) - min(times)).days
    backwards = sum(b < a - datetime.timedelta(seconds=5) for a, b in zip(times, times[1:]))
    longest = max(value for line in lines for key, value in line.items() if key == "tokenway.duration" or key.startswith("tokenway.stage.") and not isinstance(value, str))
    active = findings.get("active", findings.get("findings", []))
    yield ("the wall clock jumps by days, ahead and back, under 60 requests/s", f"{failed} of {len(tasks)} failed, {outcomes:.0f} counted `ok`, {missed:.0f} late; the access log spans {days} days, "
           f"{backwards} lines go back in time, its longest stage or request took {longest:.1f} s; findings of drift: {len(active)}",
           failed == 0 and missed == 0 and longest < 10 and outcomes == len(tasks) and days >= 29 and backwards == 0 and not active and code == 0)


def memory_group(limit):
    """A cgroup of `limit` bytes: (file for pids, function that tells its peak and kills); None where there is none to be had."""
    name = f"tokenway-{os.getpid()}"
    with contextlib.suppress(OSError):
        v1, v2 = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")
        if (v1 / "memory.limit_in_bytes").exists():
            group = v1 / name
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(limit))
            with contextlib.suppress(OSError):
                (group / "memory.memsw.limit_in_bytes").write_text(str(limit))

            def told():
                kills = re.search(r"oom_kill (\d+)", (group / "memory.oom_control").read_text())
                return int((group / "memory.max_usage_in_bytes").read_text()), int(kills[1]) if kills else 0
            return group, told
        if (v2 / "cgroup.controllers").exists():
            group = v2 / name
            group.mkdir()
            (group / "memory.max").write_text(str(limit))
            with contextlib.suppress(OSError):
                (group / "memory.swap.max").write_text("0")

            def told():
                kills = re.search(r"oom_kill (\d+)", (group / "memory.events").read_text())
                return int((group / "memory.peak").read_text()), int(kills[1]) if kills else 0
            return group, told
    return None


async def memory(options):
    """A gateway that may use 256 MiB: three times the load that its fleet can do, then large uploads."""
    group = memory_group(options.memory << 20)
    if group is None:
        print("memory: not run, there is no cgroup that may be written to", flush=True)
        return
    group, told = group
    start = launcher(options, f"echo $$ > {group}/cgroup.procs")
    engines = [Replica(options.binary, port, "--max-num-seqs", "4", "--step-ms", "12") for port in free_ports(2)]
    for engine in engines:
        engine.start()
    one = await asyncio.to_thread(Gateway, start, engines, "", 'slo = "near"\n[route.queue]\nmax_wait = "2s"\n[slo.near]\nttft = "600ms"\n')
    answers = {}

    async def client(number, text):
        try:
            status = (await asyncio.wait_for(ask(one.data, {**chat(number, max_tokens=8), "messages": [{"role": "user", "content": text}]}), 60))[0]
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
            status = type(error).__name__
        answers[status] = answers.get(status, 0) + 1

    tasks, began = [], time.monotonic()
    while time.monotonic() - began < 15:
        tasks.append(asyncio.create_task(client(len(tasks), f"{PROMPT} {len(tasks)} " * 40)))
        await asyncio.sleep(0.008)
    await asyncio.gather(*tasks)
    overload, answers = dict(answers), {}
    # 40 uploads of 8 MiB at once are more than the limit; what has no room waits or is refused.
    large = "word " * (8 * (1 << 20) // 5)
    await asyncio.gather(*(client(number, f"{number} {large}") for number in range(40)))
    uploads, answers = dict(answers), {}
    await asyncio.gather(*(client(number, "once more") for number in range(10)))
    peak, kills = told()
    left = await asyncio.to_thread(one.left_behind)
    code = await asyncio.to_thread(one.stop)
    for engine in engines:
        engine.kill()
    with contextlib.suppress(OSError):
        group.rmdir()
    show = lambda counts: ", ".join(f"{count} x {status}" for status, count in sorted(counts.items(), key=str))
    yield (f"a cgroup of {options.memory} MiB: 125 requests/s for a fleet that does about 40, then 40 uploads of 8 MiB at once",
           f"{show(overload)}; uploads {show(uploads)}; then {show(answers)}; peak {peak / 2**20:.0f} MiB, killed {kills} times; left behind: {left or 'nothing'}",
           kills == 0 and answers == {200: 10} and not left and code == 0)


class Far:
    """A simulated replica on a host of its own: a network namespace at the end of a cable."""

    host, port = "10.77.0.2", 8001

    def __init__(self, binary):
        self.name = f"tw{os.getpid()}"
        near, far, inside = f"{self.name}a", f"{self.name}b", f"ip netns exec {self.name} "
        self.pulled = f"{inside}ip link set {far} down"
        for line in (f"ip netns add {self.name}", f"ip link add {near} type veth peer name {far}", f"ip link set {far} netns {self.name}",
                     f"ip addr add 10.77.0.1/24 dev {near}", f"ip link set {near} up", f"{inside}ip addr add {self.host}/24 dev {far}",
                     f"{inside}ip link set {far} up"):
            subprocess.run(line.split(), check=True, capture_output=True)
        self.process = subprocess.Popen([*inside.split(), binary, "sim", "--replicas", "1", "--host", self.host, "--port", str(self.port)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def pull(self):
        subprocess.run(self.pulled.split(), check=True)

    def stop(self):
        self.process.kill()
        self.process.wait()
        for line in (f"ip link del {self.name}a", f"ip netns del {self.name}"):
            subprocess.run(line.split(), check=True)


async def vanish(options):
    """A host that is cut off while whole answers wait there: nothing refuses, nothing is closed."""
    event = "the cable of one of two replicas' hosts is pulled, whole answers, ten requests/s"
    try:
        far = Far(options.binary)
    except (OSError, subprocess.CalledProcessError) as error:
        yield event, f"skipped: {error}", True
        return
    [near] = await fleet(1)
    one = await gateway(options, [near, far], 'policy = "round_robin"\n')
    await asyncio.to_thread(wait, lambda: json.loads(one.get("/api/v1/slo")[1])["replicas"]["ready"] == 2, "both are ready")
    tasks = []
    for number in range(300):
        if number == 60:
            await asyncio.to_thread(far.pull)
        tasks.append(asyncio.create_task(outcome(one.data, chat(12 * number, stream=False))))
        await asyncio.sleep(0.1)
    ended = await asyncio.gather(*tasks)
    code = await asyncio.to_thread(one.stop)
    far.stop()
    failed, longest = sum(not is_whole for is_whole, _ in ended), max(seconds for _, seconds in ended)
    waited = sum(seconds > 2 for _, seconds in ended)
    yield event, f"{failed} of {len(ended)} failed, {waited} waited over 2 s, the longest {longest:.1f} s", failed == 0 and longest < 20 and code == 0


async def handshakes(options):
    """What two scanners say of a TLS port."""
    folder = options.folder
    pem, key = f"{folder}/cert.pem", f"{folder}/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", pem], check=True, capture_output=True)
    replicas = await fleet(1)
    one = await gateway(options, replicas, server=f'tls = {{ cert = "{pem}", key = "{key}" }}\n')
    if tool := shutil.which("sslscan"):
        run = await asyncio.to_thread(subprocess.run, [tool, "--no-colour", f"127.0.0.1:{one.data}"], capture_output=True, text=True)
        enabled = re.findall(r"^(\S+)\s+enabled$", run.stdout, re.M)
        ciphers = re.findall(r"^(?:Preferred|Accepted)\s+(\S+)\s+\d+ bits\s+(\S+)", run.stdout, re.M)
        weak = [name for _, name in ciphers if not re.search("GCM|CHACHA20|CCM", name)]
        yield ("sslscan", f"{', '.join(enabled)}; {len(ciphers)} cipher suites, {len(weak)} of them not AEAD; Heartbleed, compression, insecure renegotiation: "
               f"{'none' if 'vulnerable to' not in run.stdout.replace('not vulnerable to', '') else 'found'}",
               set(enabled) == {"TLSv1.2", "TLSv1.3"} and not weak and len(ciphers) > 3)
    if tool := shutil.which("testssl") or shutil.which("testssl.sh"):
        report = pathlib.Path(folder) / "testssl.json"
        await asyncio.to_thread(subprocess.run, [tool, "--quiet", "--color", "0", "--jsonfile", str(report), "-p", "-s", "-f", "-U", "--ip", "127.0.0.1", f"localhost:{one.data}"],
                                capture_output=True, text=True, timeout=420)
        rows = json.loads(report.read_text())
        # The certificate signs itself: what scanners say of that is not about the gateway.
        bad = [f"{row['id']}: {row['finding']}" for row in rows if row["severity"] in ("LOW", "MEDIUM", "HIGH", "CRITICAL")]
        yield ("testssl: protocols, ciphers, forward secrecy, known vulnerabilities", f"{len(rows)} checks, {len(bad)} complaints{': ' if bad else ''}{'; '.join(bad)}", not bad and len(rows) > 30)
    code = await asyncio.to_thread(one.stop)
    assert code == 0


RUNS = {run.__name__: run for run in (reuse, retries, drain, clock, memory, vanish, handshakes)}


if __name__ == "__main__":
    sys.exit(rows.main(RUNS, "surroundings", __doc__, [
        ("requests", 10_000, "requests of each row of `reuse`"),
        ("streams", 1000, "live streams at SIGTERM"),
        ("memory", 256, "MiB of the cgroup"),
    ]))
