#!/usr/bin/env python3
"""30 scripted incidents: does the page's first screen name route, stage and replica, and does an alert fire?

    pip install playwright            # its driver; browser and Prometheus are Debian's: apt-get install chromium prometheus
    cargo build
    python3 tests/page/incidents.py target/debug/tokenway [--only KIND] [--gateways N] [--shots DIR] [--paint MILLISECONDS]

Ten kinds, each before one, two and three gateways; in half of them the gateways are restarted in mid-incident and have learned
nothing of the time before. Replicas are simulated, traffic is real, the browser opens the first gateway's page at 1440 x 900, the
others are asked for the sentence that their pages show. Prometheus evaluates the shipped rules (alerts.py says how its time runs).

An incident passes when every gateway's sentence has the words, it stands on the first screen, the list of missed requests is not
empty beside it, one of the alerts that the kind should raise fires, and none fired in the calm before. Then the runbook is followed
(runbook.py): what its queries answer names the cause as well. It also fails on an error in the console, on a request to any other
host, and where the first paint takes longer than 200 ms. Half an hour; not in CI.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time

from alerts import Prometheus
from fleet import Fleet, Traffic, free_ports, read
from playwright.async_api import async_playwright
from runbook import Either, Look, State


class Incident:
    """What the fleet is, what goes wrong (`fault` to the fleet, `load` of the traffic), what is to be said and which alerts are due.

    A choice of words or alerts is written `one|other`. `memory` are words that only a gateway can say that has seen the calm. `looks` are
    those of the runbook that name the cause.
    """

    def __init__(self, kind, words, alerts, looks, replicas=({}, {}, {}), fault=None, load=None, memory=(), rate=6.0, long=0.0, route="", canary=False):
        self.kind, self.words, self.alerts, self.looks, self.replicas = kind, words, alerts, looks, replicas
        self.fault, self.load, self.memory, self.rate = fault, load or {}, memory, rate
        self.long, self.route, self.canary = long, route, canary


NARROW = {"max-num-seqs": 2}
SLOW = {"prefill-rate": 300, "step-ms": 40}
TTFT, TPOT, DOWN, DEMOTED, DRAGS = "TtftP99OverSlo", "TpotOverSlo", "ReplicaDown", "ReplicaDemoted", "ReplicaSlow"
MISSES, TOKEN_MEAN, REVISIONS = "slo_missed_by_stage_total[15m]", "inter_token_latency_seconds_sum[5m]", "(route, revision, le)"
DEPTH = "max by (pool, replica) (tokenway_replica_queue_depth)"

INCIDENTS = [
    Incident(
        "slow replica", ["chat", "engine_queue|prefill|decode|for a token|times as slow", "replica r2 stands out"], f"{TTFT}|{TPOT}|{DEMOTED}|{DRAGS}|{DOWN}",
        [Look(MISSES, {"route": "chat", "stage": "engine_queue|prefill|decode"}), Look(TOKEN_MEAN, {"replica": "r2"})], ({"max-num-seqs": 4},) * 3,
        fault=lambda fleet: fleet.fault(1, "slow", factor=15), route='policy = "round_robin"',
    ),
    Incident(
        "slow decoding", ["chat", "decode|for a token|times as slow", "replica r2 stands out"], f"{TPOT}|{DEMOTED}|{DRAGS}|{DOWN}",
        [Look('{reason=~"tpot|itl"}[15m]', {"route": "chat", "stage": "decode"}), Look(TOKEN_MEAN, {"replica": "r2"})],
        fault=lambda fleet: fleet.fault(1, "slow", factor=9), route='policy = "round_robin"',
    ),
    # Of a replica that is out, its state and the reason for it stand where the stage of the misses would.
    Incident(
        "dead replica", ["chat", "r2 stands out", "unreachable|ejected|probing|starting"], DOWN,
        [State("r2", "(unreachable|ejected|probing|starting): .*refused")], fault=lambda fleet: fleet.crash(1),
    ),
    Incident(
        "frozen engine", ["chat", "r2 stands out", "is ejected|is probing|nothing came of it"], DOWN,
        [State("r2", "ejected|probing")], fault=lambda fleet: fleet.fault(1, "freeze"),
    ),
    Incident(
        "sick replica", ["chat", "r2 stands out", "failed|answered 500|ejected"], f"{DOWN}|{DEMOTED}|ReplicaFailing",
        # A gateway that was restarted may have sent it none: it fails its probes too.
        [Either(Look("sum by (pool, replica, outcome)", {"replica": "r2"}, {"outcome": "failed"}), State("r2", "(ejected|probing): .*500"))],
        fault=lambda fleet: fleet.fault(1, "error_500", probability=0.6),
    ),
    Incident(
        "engine queue", ["chat", "engine_queue", "2 replicas|stands out"], TTFT,
        [Look(MISSES, {"route": "chat", "stage": "engine_queue"}), Look(DEPTH, {"replica": "r1|r2"})], (NARROW, NARROW), rate=3.0, load={"rate": 25.0},
    ),
    Incident(
        "long prompts", ["chat", "engine_queue|prefill", "2 replicas|stands out"], TTFT,
        [Look(MISSES, {"route": "chat", "stage": "engine_queue|prefill"}), Look("sum by (route, class)", {"class": "medium|long"})], ({}, {}), rate=5.0, long=0.02,
        load={"long": 0.7}, memory=["prompts are"],
    ),
    Incident(
        "one tenant's flood", ["chat", "engine_queue|prefill|admit", "2 replicas|stands out"], TTFT,
        [Look(MISSES, {"route": "chat", "stage": "engine_queue|prefill|admit"}), Look("sum by (route, tenant)", {"tenant": "flood"})],
        ({"max-num-seqs": 4},) * 2, rate=4.0, load={"rate": 25.0, "flood": 0.9}, memory=["tenant flood"],
    ),
    Incident(
        "slow canary", ["chat", "r3", "revision v2"], f"{TTFT}|{TPOT}",
        [Look(REVISIONS, {"route": "chat", "revision": "v2"}), Look(TOKEN_MEAN, {"replica": "r3"})], ({}, {}, SLOW), rate=8.0,
        fault=lambda fleet: fleet.deploy_canary(), canary=True,
    ),
    Incident(
        "gateway queue full", ["chat", "refused", "admit"], "GoodputLow|ErrorBudgetBurnFast",
        [Look("(increase(tokenway_slo_missed_requests_total[15m])", {"route": "chat", "reason": "refused"}),
         Look("sum by (decision, reason)", {"reason": "max_requests|max_wait|ttft"}, {"decision": "refuse"})],
        (NARROW, NARROW), rate=3.0, load={"rate": 30.0}, route='[route.queue]\nmax_requests = 4\nmax_wait = "1s"',
    ),
]


def has(text, words):
    return all(any(word in text for word in choice.split("|")) for choice in words)


class Run:
    """One incident before some gateways."""

    def __init__(self, arguments, browser, incident, gateways, is_restarted):
        self.arguments, self.browser, self.incident, self.is_restarted = arguments, browser, incident, is_restarted
        self.gateways, self.problems = gateways, []
        self.words = [*incident.words, *(() if is_restarted else incident.memory)]

    @property
    def name(self):
        return f"{self.incident.kind}, {self.gateways} gateway{'s' if self.gateways > 1 else ''}, {'just restarted' if self.is_restarted else 'warm'}"

    async def whole(self):
        with tempfile.TemporaryDirectory() as folder:
            fleet = Fleet(self.arguments.binary, folder, self.incident, self.gateways)
            traffic = Traffic(fleet.data, {"rate": self.incident.rate, "long": self.incident.long, "flood": 0.2})
            prometheus = Prometheus(folder, *free_ports(1), fleet.admin)
            try:
                await asyncio.sleep(1)
                fleet.start_gateways()
                if not await fleet.ready():
                    self.problems.append("the fleet did not get ready")
                    return ""
                traffic.start()
                return await self.happens(fleet, traffic, prometheus)
            finally:
                await traffic.stop()
                await fleet.stop()
                prometheus.stop()

    async def happens(self, fleet, traffic, prometheus):
        page = None if self.is_restarted else await self.open(fleet.admin[0])
        await asyncio.sleep(CALM)
        self.problems += [f"{alert} fired in the calm" for alert in await prometheus.firing()]
        self.problems += [f"named in the calm: {s}" for s in await sentences(fleet) if "stands out" in s]
        began = time.monotonic()
        traffic.load.update(self.incident.load)
        if self.incident.fault:
            self.incident.fault(fleet)
        if self.is_restarted:
            await asyncio.sleep(BEFORE_RESTART)
            await fleet.restart_gateways()
            page = await self.open(fleet.admin[0])
            began = time.monotonic()
        said = await self.wait(page, fleet, prometheus, began)
        self.problems += prometheus.broken()
        await self.look(page)
        return said

    async def wait(self, page, fleet, prometheus, began):
        """Until every gateway says it and the alert fires; returns the page's sentence."""
        alerts, named, fired = set(), None, None
        while time.monotonic() - began < LIMIT and (named is None or fired is None):
            said = await page.inner_text("#sentence")
            is_named = all(has(sentence, self.words) for sentence in [said, *await sentences(fleet)])
            alerts |= await prometheus.firing()
            now = time.monotonic() - began
            named = named or (now if is_named else None)
            fired = fired or (now if alerts & set(self.incident.alerts.split("|")) else None)
            if named is None or fired is None:
                await asyncio.sleep(0.5)
        if named is not None and fired is not None and not await self.still(page):
            self.problems.append(f"no longer named {time.monotonic() - began:.0f} s later")
        self.problems += [f"runbook: {wrong}" for wrong in await self.follow(fleet, prometheus)]
        if named is None:
            self.problems.append(f"not named: {await sentences(fleet)}")
        if fired is None:
            self.problems.append(f"no {self.incident.alerts}")
        after = lambda seconds: "never" if seconds is None else f"after {seconds:.0f} s"
        return f"named {after(named)}, alert {after(fired)} ({', '.join(sorted(alerts)) or 'none'})\n     {said}"

    async def follow(self, fleet, prometheus):
        """What the looks of the runbook do not name, within a few scrapes."""
        wrong = []
        for _ in range(10):
            wrong = [await asyncio.to_thread(look.wrong, prometheus, fleet) for look in self.incident.looks]
            wrong = [one for one in wrong if one is not None]
            if not wrong:
                break
            await asyncio.sleep(0.5)
        return wrong

    async def still(self, page):
        """Whether the page says it at some time of the next seconds: while the incident lasts it has to go on saying it."""
        for _ in range(10):
            if has(await page.inner_text("#sentence"), self.words):
                return True
            await asyncio.sleep(0.5)
        return False

    async def open(self, admin):
        context = await self.browser.new_context(viewport={"width": 1440, "height": 900})
        page, address = await context.new_page(), f"http://127.0.0.1:{admin}"
        page.on("console", lambda m: self.problems.append(f"console: {m.text}") if m.type == "error" else None)
        page.on("pageerror", lambda e: self.problems.append(f"console: {e}"))
        page.on("request", lambda r: None if r.url.startswith((address, "data:")) else self.problems.append(f"asked {r.url}"))
        await page.goto(address)
        return page

    async def look(self, page):
        """What stands on the first screen, and beside a missed SLO."""
        box = await page.locator("#sentence").bounding_box()
        if box["y"] + box["height"] > 900:
            self.problems.append("the sentence is below the first screen")
        if await page.get_attribute("#verdict", "data-status") == "bad":
            await asyncio.sleep(1.5)
            if "none in the last hour" in await page.inner_text("#request-rows"):
                self.problems.append("no missed request is listed beside a missed SLO")
            if await page.locator("svg[aria-label='Misses by stage: none']").count() > 0:
                self.problems.append("no miss is drawn beside a missed SLO")
        paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
        if paint > self.arguments.paint:
            self.problems.append(f"first paint after {paint:.0f} ms")
        if self.arguments.shots:
            await screenshots(page, self.arguments.shots, self.name.replace(",", "").replace(" ", "-").replace("'", ""))
        await page.context.close()


async def sentences(fleet):
    found = [await asyncio.to_thread(read, admin, "slo") for admin in fleet.admin]
    return [slo["sentence"] if slo else "" for slo in found]


async def screenshots(page, folder, name):
    os.makedirs(folder, exist_ok=True)
    for width in (1440, 390):
        for scheme in ("light", "dark"):
            await page.set_viewport_size({"width": width, "height": 900})
            await page.emulate_media(color_scheme=scheme)
            await page.evaluate("scrollTo(0, 0)")
            wide = await page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                print(f"  {name}: the page is {wide} wide at {width}")
            await page.screenshot(path=f"{folder}/{name}-{width}-{scheme}.png", full_page=True)


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--only", default="")
    parser.add_argument("--gateways", type=int, choices=(1, 2, 3))
    parser.add_argument("--shots")
    parser.add_argument("--paint", type=float, default=200.0)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    random.seed(1)
    every = [(incident, gateways, (n + gateways) % 2 == 1) for gateways in (1, 2, 3) for n, incident in enumerate(INCIDENTS)]
    chosen = [of for of in every if arguments.only in of[0].kind and arguments.gateways in (None, of[1])]
    failed = 0
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
        for incident, gateways, is_restarted in chosen:
            run = Run(arguments, browser, incident, gateways, is_restarted)
            said = await run.whole()
            failed += bool(run.problems)
            print(f"{'FAIL' if run.problems else 'ok  '} {run.name}: {said}", flush=True)
            for problem in run.problems:
                print(f"     ! {problem}", flush=True)
        await browser.close()
    print(f"{len(chosen) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


# Seconds.
CALM = 20
BEFORE_RESTART = 8
LIMIT = 90

asyncio.run(main())
