#!/usr/bin/env python3
"""The incidents of an operator's night, played: what is true, what the page says, which alert fires.

    python3 tests/page/night.py target/release/tokenway [--only NUMBER,…] [--gateways N] [--at-once N] [--quiet MINUTES] [--later]
                                                           [--drawn N --seed S]

Engines are scripted (engine.py), gateways and Prometheus (alerts.py says how its time runs) are real; no browser. Each incident follows
a calm minute of traffic in which 60 % of the prompts share one of twelve prefixes. The sentence is taken after 30 s, or after what the incident
needs, from every gateway, and the calm and the time to that must have no false word. `--later` asks again after four minutes. `--quiet` plays
ordinary days alone (ordinary.py: nights, reloads, deploys, gateways replaced), in which no answer may be lost, `--drawn` incidents by chance. One line an incident: number, truth, right or wrong, seconds until it was named, alerts, and the sentence. Exit code 1 if one is wrong.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time

from alerts import SLOW_SPEED, SPEED, Prometheus
from engine import Engine
from fleet import free_ports, read, start
from ordinary import days

# Seconds.
CALM = 75
LIMIT = 60
LIMIT_OF_TICKETS = 300
TENANTS = ("acme", "umbrella", "flood")
PREFIXES = ["".join(random.Random(n).choices("abcdefgh ", k=1600)) for n in range(12)]


class Setup:
    """Gateways, engines and traffic of one incident."""

    def __init__(self, binary, folder, incident, gateways):
        self.binary, self.folder, self.incident = binary, folder, incident
        self.engines = [Engine(port) for port in free_ports(3)]
        self.data, self.admin = free_ports(gateways), free_ports(gateways)
        self.rate, self.flood, self.long, self.reads, self.caught = 4.0, 0.1, 0.0, 0.0, []
        self.processes, self.running, self.tasks = [], set(), []
        self.asked = self.textless = 0
        # What goes on, and the gateway that is replaced.
        self.day, self.away = "calm", None

    def file(self, n):
        return f"{self.folder}/gateway-{n}.toml"

    def source(self, ports):
        path = f"{self.folder}/replicas.json"
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump([{"targets": [f"127.0.0.1:{port}"]} for port in ports], file)
        os.replace(path + ".new", path)

    def pools(self):
        listed = [f'{{ name = "r{n + 1}", url = "http://127.0.0.1:{engine.port}" }}' for n, engine in enumerate(self.engines)]
        if self.incident.is_discovered:
            self.source([engine.port for engine in self.engines])
            return f'[[pool]]\nname = "v1"\nrevision = "v1"\nscrape_interval = "1s"\nfile = "{self.folder}/replicas.json"\n', '[{ name = "v1" }]'
        if self.incident.revisions:
            text = "".join(f'[[pool]]\nname = "{name}"\nrevision = "{name}"\nscrape_interval = "1s"\nreplicas = [{", ".join(which)}]\n'
                           for name, which in (("v1", listed[:2]), ("v2", listed[2:])))
            return text, '[{ name = "v1", weight = 2 }, { name = "v2", weight = 1 }]'
        return f'[[pool]]\nname = "v1"\nrevision = "v1"\nscrape_interval = "1s"\nreplicas = [{", ".join(listed)}]\n', '[{ name = "v1" }]'

    def write(self):
        pools, used = self.pools()
        for n, (data, admin) in enumerate(zip(self.data, self.admin)):
            text = f'[server]\nlisten = "127.0.0.1:{data}"\n[admin]\nlisten = "127.0.0.1:{admin}"\n[telemetry]\naccess_log = "off"\n'
            text += '[drift]\nstate = false\n[slo.interactive]\nttft = { base = "800ms", per_prompt_token = "0.2ms" }\ntpot = "80ms"\n' + pools
            text += f'[[route]]\nname = "chat"\nmodel = "sim"\nslo = "interactive"\npools = {used}\n'
            for tenant in TENANTS:
                text += f'[[tenant]]\nname = "{tenant}"\nkey_sha256 = ["{hashlib.sha256(f"key-{tenant}".encode()).hexdigest()}"]\n'
            with open(self.file(n), "w", encoding="utf-8") as file:
                file.write(text)

    async def begin(self):
        for engine in self.engines:
            await engine.start()
        self.write()
        self.processes = [start(self.binary, "serve", "--config", self.file(n)) for n in range(len(self.data))]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found = [await asyncio.to_thread(read, admin, "slo") for admin in self.admin]
            if all(slo and slo["replicas"]["ready"] == 3 for slo in found):
                self.tasks.append(asyncio.create_task(self.send_all()))
                return True
            await asyncio.sleep(0.5)
        return False

    async def send_all(self):
        n = 0
        while True:
            n += 1
            if len(self.running) < 300:
                task = asyncio.create_task(self.send(self.data[n % len(self.data)]))
                self.running.add(task)
                task.add_done_callback(self.running.discard)
            await asyncio.sleep(random.expovariate(self.rate))

    async def send(self, port):
        tenant = "flood" if random.random() < self.flood else random.choice(TENANTS[:2])
        words = " ".join(f"w{random.randint(0, 99999)}" for _ in range(random.randint(10, 120)))
        text = f"{random.choice(PREFIXES)} {words}" if random.random() < 0.6 else words + words
        if random.random() < self.long:
            text = " ".join(f"w{random.randint(0, 99999)}" for _ in range(2000))
        body = json.dumps({"model": "sim", "stream": True, "max_tokens": random.randint(20, 60), "messages": [{"role": "user", "content": text}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key-{tenant}\r\ncontent-type: application/json\r\n"
        answer = b""
        try:
            reader, writer = await self.connect(port)
            writer.write(head.encode() + f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            slow = random.random() < self.reads
            while more := await asyncio.wait_for(reader.read(256 if slow else 65536), 90):
                answer += more
                if slow:
                    await asyncio.sleep(0.3)
            writer.close()
        except (OSError, asyncio.TimeoutError):
            pass
        self.asked, self.textless = self.asked + 1, self.textless + (b"word " not in answer)
        if self.incident.number == 0 and b"word " not in answer:
            print(f"          no text in the {self.day}: {answer[:300]!r}", file=sys.stderr, flush=True)

    async def connect(self, port):
        """To this gateway, or to the next one while it is replaced."""
        if port == self.away:
            port = self.data[(self.data.index(port) + 1) % len(self.data)]
        return await asyncio.open_connection("127.0.0.1", port)

    def all(self, **values):
        for engine in self.engines:
            vars(engine).update(values)

    def one(self, **values):
        vars(self.engines[1]).update(values)

    def later(self, task):
        self.tasks.append(asyncio.create_task(task))

    async def stop(self):
        every = [*self.tasks, *self.running]
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        for engine in self.engines:
            engine.die()


async def starve(setup):
    """The gateway gets one part of ten of a CPU."""
    while True:
        for signal_, seconds in ((signal.SIGSTOP, 0.27), (signal.SIGCONT, 0.03)):
            for process in setup.processes:
                process.send_signal(signal_)
            await asyncio.sleep(seconds)


async def crash_loop(setup):
    while True:
        setup.engines[1].die()
        await asyncio.sleep(3)
        await setup.engines[1].start()
        await asyncio.sleep(4)


class Incident:
    """`words` are regular expressions that the sentence must have, `not_words` those it must not; `alerts` of which one is due, none where empty.
    `named_by` is in seconds."""

    def __init__(self, number, truth, fault, words=(), not_words=(), alerts="", named_by=30, revisions=False, is_discovered=False, textless=None, is_slow=False, gateways=None):
        self.number, self.truth, self.fault, self.words, self.not_words = number, truth, fault, words, not_words
        # A ticket is due within half an hour, and rests on what a replica does in minutes.
        self.speed, self.limit = (SLOW_SPEED, LIMIT_OF_TICKETS) if is_slow else (SPEED, LIMIT)
        self.alerts, self.judges_alerts = set((alerts or "").split()), alerts is not None
        self.named_by, self.revisions, self.is_discovered, self.textless, self.gateways = named_by, revisions, is_discovered, textless, gateways


def flood(setup):
    setup.rate, setup.flood = 40.0, 0.9


def longer(setup):
    setup.rate, setup.long = 9.0, 0.8


QUIET = ("keeps its SLO|within their SLO",)
ANYBODY = ("stands out", "tenant ", "prompts are")
OTHERS = ("replica r1 stands out", "replica r3 stands out", "all at replica r1", "all at replica r3")
INCIDENTS = [
    Incident(1, "queue in every engine: batch limit 4 to 1", lambda s: (s.all(batch=1), setattr(s, "rate", 7.0)), ["engine_queue|admit", "shared by all 3"], ["stands out"], "TtftP99OverSlo"),
    Incident(2, "one tenant floods", flood, ["engine_queue|prefill|admit", "tenant flood"], ["replica r\\d stands out"], "TtftP99OverSlo"),
    Incident(3, "prompts ten times as long, unique", longer, ["engine_queue|prefill|admit", "(medium|long) prompts are"], ["replica r\\d stands out"], "TtftP99OverSlo RequestsOverdue GoodputLost"),
    Incident(4, "KV caches full, preemptions", lambda s: s.all(is_kv_full=True), ["KV caches", "preemptions"], ["replica r\\d stands out"], "Preempting KvCacheFull TpotOverSlo"),
    Incident(5, "prefill of r2 32 times slower", lambda s: s.one(prefill=250.0), ["r2|keeps its SLO"], OTHERS, ""),
    Incident(6, "tokens of r2 ten times slower", lambda s: s.one(step=0.12), ["replica r2 stands out|all at replica r2|keeps its SLO"], OTHERS, "TpotOverSlo ReplicaSlow"),
    Incident(7, "network to r2 150 ms each way", lambda s: s.one(way=0.15), ["network.*r2|keeps its SLO"], OTHERS + ("in engine_queue",), ""),
    Incident(71, "network to all 600 ms each way", lambda s: s.all(way=0.6), ["in network"], ["stands out", "in engine_queue"], "TtftP99OverSlo"),
    Incident(8, "gateway starved of CPU", lambda s: s.later(starve(s)), ["gateway itself waits for CPU"], ["stands out"], "GatewayStarved"),
    Incident(9, "revision v2 twice as slow a token, within the SLO", lambda s: vars(s.engines[2]).update(step=0.024), QUIET, ANYBODY, "", revisions=True),
    Incident(10, "r2 answers 200 with broken SSE", lambda s: s.one(answer="garbage"), ["replica r2 stands out"], OTHERS, "ReplicaFlapping ReplicaDown ReplicaFailing", is_slow=True),
    Incident(11, "r2 answers 200, stop and no text", lambda s: s.one(answer="empty"), ["replica r2 stands out", "no text"], OTHERS, "ReplicaFlapping ReplicaDown ReplicaFailing", textless=0.05, is_slow=True),
    Incident(111, "all answer 200, stop and no text", lambda s: s.all(answer="empty"), ["have no text|got no text", "shared by all"], ["stands out"], "AnswersEmpty"),
    Incident(12, "generation of r2 hangs, probes are fine", lambda s: s.one(answer="hang"), ["replica r2 stands out"], OTHERS, "RequestsOverdue GoodputLost ReplicaDown ReplicaFailing ReplicaHangs TtftP99OverSlo", is_slow=True),
    Incident(13, "all hang, health green", lambda s: s.all(answer="hang"), ["still wait"], QUIET + OTHERS, "RequestsOverdue", named_by=12),
    Incident(14, "20 % answer 500 everywhere", lambda s: s.all(error_share=0.2), ["CUDA error", "shared by all 3"], ["stands out"], "ErrorBudgetBurnFast"),
    Incident(15, "discovery fails", lambda s: os.remove(f"{s.folder}/replicas.json"), QUIET, ANYBODY, "DiscoveryFailing", is_discovered=True),
    Incident(16, "discovery names one dead address", lambda s: s.source(free_ports(1)), QUIET, (), "DiscoveryNamesNobodyReady", is_discovered=True),
    Incident(17, "half of the clients read slowly", lambda s: setattr(s, "reads", 0.5), QUIET, ANYBODY, ""),
    Incident(18, "prefix cache useless, within the SLO", lambda s: s.all(caches=False), QUIET, ANYBODY, ""),
    Incident(19, "all tokens twice as slow, within the SLO", lambda s: s.all(step=0.024), QUIET, ANYBODY, ""),
    Incident(20, "/metrics hangs everywhere", lambda s: s.all(hides_metrics=True), QUIET, ANYBODY, "ScrapeStale"),
    Incident(21, "r2 crash-loops: 3 s down, 4 s up", lambda s: s.later(crash_loop(s)), ["r2 stands out"], OTHERS, "ReplicaFlapping ReplicaDown"),
    Incident(22, "streams of r2 stall", lambda s: s.one(answer="stall"), ["replica r2 stands out"], OTHERS, "ReplicaDown ReplicaFailing ReplicaFlapping ReplicaDemoted TpotOverSlo GoodputLow GoodputLost ErrorBudgetBurnFast", is_slow=True),
]
# What may happen to one replica or to all: the fault, and what the sentence must have where it is one's (R is its name) and where it is shared.
FAULTS = [
    ("prefill 60 times slower", {"prefill": 130.0}, "R stands out|keeps its SLO", "prefill|engine_queue|admit"),
    ("tokens ten times slower", {"step": 0.12}, "R stands out|keeps its SLO", "decode|ITL|admit|engine_queue"),
    ("network 600 ms each way", {"way": 0.6}, "network.*R|keeps its SLO", "in network|in admit"),
    ("hangs", {"answer": "hang"}, "R stands out", "still wait"),
    ("answers without text", {"answer": "empty"}, "R stands out", "no text"),
    ("broken SSE", {"answer": "garbage"}, "R stands out", "failed"),
    ("three of ten answers are a 500", {"error_share": 0.3}, "R stands out|keeps its SLO", "CUDA error"),
    ("KV cache full", {"is_kv_full": True}, "KV cache|R stands out|keeps its SLO", "KV caches"),
    ("a batch of one", {"batch": 1}, "R stands out|keeps its SLO|engine_queue|admit", "engine_queue|admit|keeps its SLO"),
]


def drawn(count, seed):
    """Incidents by chance: a fault, a place, and one to three gateways. Alerts are not asked for."""
    chance = random.Random(seed)
    for number in range(count):
        what, fault, of_one, of_all = chance.choice(FAULTS)
        replica, gateways = chance.choice([None, 0, 1, 2]), chance.randint(1, 3)
        name, where = (f"r{replica + 1}", f"r{replica + 1}") if replica is not None else (None, "all")
        others = [f"replica r{n} stands out" for n in (1, 2, 3) if n - 1 != replica] if name else ["stands out"]
        words = [of_one.replace("R", f"replica {name}") if name else of_all]
        happens = (lambda s, at=replica, fault=fault: vars(s.engines[at]).update(fault)) if name else (lambda s, fault=fault: s.all(**fault))
        yield Incident(900 + number, f"{what}, {where}, {gateways} gateways", happens, words, others, None, gateways=gateways)


# Of degradations that routing hides, alerts are tickets.
TRUE_IF_BUSY = {"OverheadHigh", "GatewayStarved", "TpotOverSlo", "TtftP99OverSlo", "TtftP95OverSlo", "GoodputLow"}
TICKETS = {"ReplicaFlapping", "ReplicaDown", "ReplicaFailing", "ReplicaDemoted", "ReplicaSlow", "RetriesHigh", "QueueDeep", "KvCacheFull", "Preempting", "Drift"}


class Played:
    """What came of one incident."""

    def __init__(self, incident):
        self.incident, self.problems, self.named, self.fired, self.sentence = incident, [], None, set(), ""
        self.calm, self.wrong = set(), set()

    def line(self):
        named = "never" if self.named is None else f"{self.named:.0f} s"
        verdict = "WRONG" if self.problems else "right"
        alerts = ", ".join(sorted(self.fired)) or "none"
        lines = [f"{verdict} {self.incident.number:>3} {self.incident.truth}: named {named}; alerts {alerts}", f"          {self.sentence}"]
        return "\n".join([*lines, *(f"          ! {problem}" for problem in self.problems)])


async def sentences(setup):
    found = [await asyncio.to_thread(read, admin, "slo") for admin in setup.admin]
    return [slo["sentence"] if slo else "no answer" for slo in found]


async def play(arguments, incident):
    played = Played(incident)
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(arguments.binary, folder, incident, incident.gateways or arguments.gateways)
        prometheus = Prometheus(folder, *free_ports(1), setup.admin, incident.speed)
        try:
            if not await setup.begin():
                played.problems.append("the fleet did not get ready")
                return played
            if arguments.quiet:
                setup.later(days(setup))
            await calm(setup, prometheus, played, CALM)
            if arguments.quiet:
                played.sentence = f"{setup.textless} of {setup.asked} clients got no text"
                played.problems += [played.sentence] * (setup.textless > 0)
                return played
            setup.asked = setup.textless = 0
            incident.fault(setup)
            await happens(arguments, setup, prometheus, played)
        finally:
            await setup.stop()
            prometheus.stop()
    return played


async def calm(setup, prometheus, played, seconds):
    """No word that names anybody, and no alert."""
    began, told = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        for sentence in await sentences(setup):
            # Misses of a busy machine are true, and so is that the gateway waits for CPU: it is wrong to name anybody else for them.
            if "stands out" in sentence and f"named in the {setup.day}:" not in str(played.problems):
                played.problems.append(f"named in the {setup.day}: {sentence}")
        fired = await prometheus.firing() - TRUE_IF_BUSY - played.calm
        played.calm |= fired
        played.problems += [f"in the {setup.day}: alert {alert}" for alert in fired]
        for problem in played.problems[told:]:
            print(f"          {time.monotonic() - began:.0f} s: {problem}", file=sys.stderr, flush=True)
        told = len(played.problems)
        await asyncio.sleep(2)


async def happens(arguments, setup, prometheus, played):
    incident, began = played.incident, time.monotonic()

    def is_named(said):
        return all(re.search(word, sentence) for word in incident.words for sentence in said)

    while (passed := time.monotonic() - began) < incident.limit:
        said = await sentences(setup)
        if is_named(said) and played.named is None:
            played.named = passed
        if passed >= incident.named_by and not played.sentence:
            played.sentence = said[0]
            # It may flicker while it is judged anew, but not be away.
            for _ in range(6):
                if is_named(said):
                    break
                await asyncio.sleep(1)
                said = await sentences(setup)
            else:
                played.problems += [f"{word!r} is not said" for word in incident.words if not all(re.search(word, s) for s in said)]
        if passed >= 10:
            wrong = {word: sentence for word in incident.not_words for sentence in said if re.search(word, sentence) and word not in played.wrong}
            played.wrong |= set(wrong)
            played.problems += [f"{word!r} is said after {passed:.0f} s: {sentence}" for word, sentence in sorted(wrong.items())]
        played.fired |= await prometheus.firing()
        if played.sentence and (played.fired & incident.alerts or not incident.alerts):
            break
        await asyncio.sleep(1)
    if incident.alerts and not played.fired & incident.alerts:
        played.problems.append(f"none of {', '.join(sorted(incident.alerts))} within {incident.limit} s")
    if incident.judges_alerts and not incident.alerts and (played.fired - TICKETS):
        played.problems.append(f"alert {', '.join(sorted(played.fired - TICKETS))}")
    if incident.textless is not None and setup.textless > incident.textless * setup.asked:
        played.problems.append(f"{setup.textless} of {setup.asked} clients got no text")
    if arguments.later and incident.words:
        await asyncio.sleep(max(0.0, 240 - (time.monotonic() - began)))
        said = await sentences(setup)
        if not is_named(said):
            played.problems.append(f"after four minutes: {said[0]}")


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--only", default="")
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--quiet", type=float)
    parser.add_argument("--later", action="store_true")
    parser.add_argument("--drawn", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    only = {int(number) for number in arguments.only.split(",") if number}
    chosen = list(drawn(arguments.drawn, arguments.seed)) if arguments.drawn else INCIDENTS
    chosen = [incident for incident in chosen if not only or incident.number in only]
    if arguments.quiet:
        chosen = [Incident(0, f"{arguments.quiet:g} minutes of ordinary days", lambda s: None, is_discovered=True)]
        globals()["CALM"] = arguments.quiet * 60
    places, wrong = asyncio.Semaphore(arguments.at_once), 0

    async def one(incident):
        nonlocal wrong
        async with places:
            played = await play(arguments, incident)
        wrong += bool(played.problems)
        print(played.line(), flush=True)

    await asyncio.gather(*(one(incident) for incident in chosen))
    print(f"{len(chosen) - wrong} right, {wrong} wrong")
    sys.exit(wrong > 0)


asyncio.run(main())
