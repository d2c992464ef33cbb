#!/usr/bin/env python3
"""The page in a real browser, before scripted incidents: does its first screen name route, stage and replica?

    pip install playwright            # its driver; the browser is Debian's: apt-get install chromium
    cargo build
    python3 tests/page/incidents.py target/debug/tokenway [--only NAME] [--shots DIR]

Each incident starts simulated replicas, a gateway and traffic on free loopback ports, opens the page at 1440 x 900, and waits
until the verdict's words are there. It fails on an error in the console, on a request to any other host, and where the first
paint takes longer than 200 ms. Not in CI: it needs Chromium, and each incident takes half a minute.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

from playwright.async_api import async_playwright

PROMPT = {"short": 200, "long": 6000}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Incident:
    """What the fleet is, what goes wrong after `calm` seconds, and the words that the first screen has to show."""

    def __init__(self, name, words, replicas=({}, {}, {}), during=None, rate=6.0, traffic=None, route="", calm=12):
        self.name, self.words, self.replicas, self.during = name, words, replicas, during
        self.rate, self.traffic, self.route, self.calm = rate, traffic, route, calm


SLOW = {"prefill-rate": 300, "step-ms": 40}


def freeze(fleet):
    fleet[1].send_signal(signal.SIGSTOP)


def kill(fleet):
    fleet[1].kill()


INCIDENTS = [
    Incident("slow replica", ["chat", "r2", "prefill|engine_queue"], ({}, SLOW, {}), route='policy = "round_robin"'),
    Incident("sick replica", ["chat", "r2"], ({}, {"api-key": "wrong"}, {})),
    Incident("dead replica", ["chat", "r2", "unreachable|ejected|failed attempts"], during=kill),
    Incident("frozen replica", ["chat", "r2"], during=freeze),
    Incident(
        "engine queue",
        ["chat", "engine_queue", "2 replicas|stands out"],
        ({"max-num-seqs": 2}, {"max-num-seqs": 2}),
        traffic=lambda calm: {"rate": 3.0 if calm else 25.0},
    ),
    Incident(
        "long prompts",
        ["chat", "engine_queue|prefill", "prompts are"],
        ({}, {}),
        traffic=lambda calm: {"rate": 5.0, "long": 0.02 if calm else 0.7},
    ),
    Incident(
        "one tenant's flood",
        ["chat", "engine_queue|prefill|admit", "tenant flood"],
        ({"max-num-seqs": 4}, {"max-num-seqs": 4}),
        traffic=lambda calm: {"rate": 4.0 if calm else 25.0, "flood": 0.2 if calm else 0.9},
    ),
    Incident("slow canary", ["chat", "r3", "v2"], ({}, {}, {**SLOW, "canary": True}), rate=8.0),
    Incident(
        "gateway queue full",
        ["chat", "refused", "admit"],
        ({"max-num-seqs": 2}, {"max-num-seqs": 2}),
        route="[route.queue]\nmax_requests = 4\nmax_wait = \"1s\"",
        traffic=lambda calm: {"rate": 3.0 if calm else 30.0},
    ),
    Incident("slow decoding", ["chat", "decode", "r2"], ({}, {"step-ms": 150}, {}), route='policy = "round_robin"'),
]


def config(incident, ports, data, admin):
    pools = {"v1": [], "v2": []}
    for n, (options, port) in enumerate(zip(incident.replicas, ports)):
        pools["v2" if options.get("canary") else "v1"].append(f'{{ name = "r{n + 1}", url = "http://127.0.0.1:{port}" }}')
    text = f'[server]\nlisten = "127.0.0.1:{data}"\n[admin]\nlisten = "127.0.0.1:{admin}"\n[telemetry]\naccess_log = "off"\n'
    text += '[slo.interactive]\nttft = { base = "1s" }\ntpot = "80ms"\n'
    for revision, replicas in pools.items():
        if replicas:
            listed = ", ".join(replicas)
            text += f'[[pool]]\nname = "{revision}"\nrevision = "{revision}"\nscrape_interval = "500ms"\nreplicas = [{listed}]\n'
    used = [f'{{ name = "{name}", weight = {3 if name == "v1" else 1} }}' for name, r in pools.items() if r]
    text += f'[[route]]\nname = "chat"\nmodel = "sim"\nslo = "interactive"\npools = [{", ".join(used)}]\n{incident.route}\n'
    for tenant in ("acme", "flood"):
        digest = hashlib.sha256(f"key-{tenant}".encode()).hexdigest()
        text += f'[[tenant]]\nname = "{tenant}"\nkey_sha256 = ["{digest}"]\n'
    return text


async def send(port, tokens, tenant):
    body = json.dumps({
        "model": "sim", "stream": True, "max_tokens": random.randint(20, 60),
        "messages": [{"role": "user", "content": " ".join(f"w{random.randint(0, 99999)}" for _ in range(tokens // 2))}],
    }).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key-{tenant}\r\ncontent-type: application/json\r\n"
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        while await asyncio.wait_for(reader.read(65536), 60):
            pass
        writer.close()
    except (OSError, asyncio.TimeoutError):
        pass


async def traffic(incident, port, started, stop):
    running = set()
    while not stop.is_set():
        calm = time.monotonic() - started < incident.calm
        load = {"rate": incident.rate, "long": 0.0, "flood": 0.2, **(incident.traffic(calm) if incident.traffic else {})}
        tokens = PROMPT["long" if random.random() < load["long"] else "short"]
        task = asyncio.create_task(send(port, tokens, "flood" if random.random() < load["flood"] else "acme"))
        if len(running) < 400:
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.sleep(random.expovariate(load["rate"]))
    for task in running:
        task.cancel()


def start(binary, *arguments):
    return subprocess.Popen([binary, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def look(page, incident, limit):
    """Waits for the words; returns the sentence, and whether they came."""
    sentence, until = "", time.monotonic() + limit
    while time.monotonic() < until:
        sentence = await page.inner_text("#sentence")
        if all(any(word in sentence for word in choice.split("|")) for choice in incident.words):
            return sentence, True
        await asyncio.sleep(1)
    return sentence, False


async def watch(browser, address, incident, shots):
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    errors, outside = [], []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("request", lambda r: outside.append(r.url) if not r.url.startswith((address, "data:")) else None)
    await page.goto(address)
    sentence, found = await look(page, incident, incident.calm + 75)
    paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
    box = await page.locator("#sentence").bounding_box()
    on_first_screen = box["y"] + box["height"] <= 900
    if shots:
        await screenshots(page, shots, incident.name.replace(" ", "-").replace("'", ""))
    await context.close()
    return {"sentence": sentence, "found": found and on_first_screen, "errors": errors, "outside": outside, "paint": paint}


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


async def run(binary, browser, incident, shots):
    ports, data, admin = [free_port() for _ in incident.replicas], free_port(), free_port()
    fleet, stop = [], asyncio.Event()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(config(incident, ports, data, admin))
        file.flush()
        gateway = None
        try:
            for options, port in zip(incident.replicas, ports):
                flags = [x for key, value in options.items() if key != "canary" for x in (f"--{key}", value)]
                fleet.append(start(binary, "sim", "--replicas", 1, "--port", port, *flags))
            await asyncio.sleep(1)
            gateway = start(binary, "serve", "--config", file.name)
            await asyncio.sleep(3)
            if gateway.poll() is not None:
                subprocess.run([binary, "check", file.name], check=False)
                sys.exit("the gateway did not start")
            load = asyncio.create_task(traffic(incident, data, time.monotonic(), stop))
            watching = asyncio.create_task(watch(browser, f"http://127.0.0.1:{admin}", incident, shots))
            if incident.during:
                await asyncio.sleep(incident.calm)
                incident.during(fleet)
            result = await watching
            stop.set()
            await load
            return result
        finally:
            for process in [*fleet, gateway]:
                if process:
                    process.kill()
                    process.wait()


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--only")
    parser.add_argument("--shots")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    failed = 0
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
        for incident in INCIDENTS:
            if arguments.only and arguments.only not in incident.name:
                continue
            result = await run(arguments.binary, browser, incident, arguments.shots)
            good = result["found"] and not result["errors"] and not result["outside"] and result["paint"] <= 200
            failed += not good
            print(f"{'ok  ' if good else 'FAIL'} {incident.name}: {result['sentence']} (first paint {result['paint']:.0f} ms)", flush=True)
            for problem in result["errors"] + result["outside"]:
                print(f"     {problem}")
        await browser.close()
    total = len([i for i in INCIDENTS if not arguments.only or arguments.only in i.name])
    print(f"{total - failed} passed, {failed} failed")
    sys.exit(failed > 0)


asyncio.run(main())
