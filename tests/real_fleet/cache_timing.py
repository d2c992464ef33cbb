#!/usr/bin/env python3
"""Whether a tenant can tell by timing which prompts another tenant has sent (CVE-2025-46570), with isolation off and on.

    tests/real_fleet/cache_timing.py --gateway target/release/tokenway [http://127.0.0.1:8001 ...]

Without URLs it starts two simulated replicas. Of each kind 200 probes: tenant a sends a new prompt or, by a coin, does not; then
tenant b sends the same prompt and looks at what it can see: its TTFT, `usage`'s cached tokens and the gateway's predicted TTFT. The
area under the ROC curve is 0.5 for a guess and 1 for certainty. Exits 1 unless every AUC is at most 0.55 with isolation on and that of
TTFT at least 0.9 with it off. Ends only what it started.
"""
import argparse
import hashlib
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
import time

import checks
import wire

CONFIG = """
[server]
listen = "127.0.0.1:{data}"
[admin]
listen = "127.0.0.1:{admin}"
[routing]
cache_isolation = {isolation}
seed = "timing"
[drift]
state = "off"
[[pool]]
name = "engines"
replicas = [{replicas}]
[[route]]
model = "{model}"
pools = ["engines"]
ask_usage = true
[[tenant]]
name = "a"
key_sha256 = ["{a}"]
[[tenant]]
name = "b"
key_sha256 = ["{b}"]
"""


def ask(port, model, key, prompt):
    """TTFT in seconds, cached tokens, predicted TTFT in milliseconds: all that the client sees."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"model": model, "stream": True, "max_tokens": 1, "messages": [{"role": "user", "content": prompt}],
            "stream_options": {"include_usage": True}}
    begin = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body),
                       {"content-type": "application/json", "authorization": f"Bearer {key}"})
    response = connection.getresponse()
    first, usage = None, {}
    for line in response:
        if first is None and line.startswith(b"data: "):
            first = time.perf_counter() - begin
        if b'"usage":{' in line.replace(b" ", b""):
            usage = json.loads(line[6:]).get("usage") or usage
    if response.status != 200:
        raise RuntimeError(f"status {response.status}")
    predicted = re.search(r"predicted_ttft_ms=(\d+)", response.headers.get("x-tokenway-decision", ""))
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    connection.close()
    return {"TTFT": -first, "cached tokens": cached, "predicted TTFT": -int(predicted[1]) if predicted else 0}


def auc(with_it, without):
    """The share of pairs that b orders rightly, a tie being half of one."""
    wins = sum((x > y) + 0.5 * (x == y) for x in with_it for y in without)
    return wins / (len(with_it) * len(without))


def wait_ready(admin, count):
    for _ in range(600):
        try:
            fleet = json.loads(wire.get(f"http://127.0.0.1:{admin}/api/fleet"))["replicas"]
            if sum(replica["state"] == "ready" for replica in fleet) == count:
                return
        except (OSError, KeyError):
            pass
        time.sleep(0.2)
    sys.exit("the replicas do not become ready")


def experiment(args, urls, isolation):
    data, admin = checks.free_ports(2)
    folder = tempfile.mkdtemp(prefix="tokenway-timing.")
    keys = {name: hashlib.sha256(f"key-{name}".encode()).hexdigest() for name in "ab"}
    with open(f"{folder}/gateway.toml", "w") as file:
        file.write(CONFIG.format(data=data, admin=admin, isolation=str(isolation).lower(), model=args.model,
                                 replicas=", ".join(f'"{url}"' for url in urls), **keys))
    gateway = subprocess.Popen([args.gateway, "serve", "--config", f"{folder}/gateway.toml"],
                               stdout=open(f"{folder}/access.jsonl", "w"), stderr=open(f"{folder}/gateway.log", "w"))
    try:
        wait_ready(admin, len(urls))
        coin, seen = random.Random(args.seed), {True: [], False: []}
        left = {True: args.probes, False: args.probes}
        while any(left.values()):
            is_sent = coin.random() < left[True] / (left[True] + left[False])
            left[is_sent] -= 1
            n = f"{args.seed}-{isolation}-{left}"
            prompt = wire.words(args.words, n)
            # Somebody always asks something just before, so that only the prompt differs.
            ask(data, args.model, "key-a", prompt if is_sent else wire.words(args.words, f"other {n}"))
            seen[is_sent].append(ask(data, args.model, "key-b", prompt))
    finally:
        gateway.terminate()
        gateway.wait(60)
    return {what: auc([s[what] for s in seen[True]], [s[what] for s in seen[False]]) for what in seen[True][0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="*")
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--model", default="sim")
    parser.add_argument("--probes", type=int, default=200, help="of each kind")
    parser.add_argument("--words", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    urls, engines = args.urls, None
    if not urls:
        ports = checks.free_ports(2)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        engines = [subprocess.Popen([args.gateway, "sim", "--replicas", "1", "--port", str(port)],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for port in ports]
    good = True
    try:
        for isolation in (False, True):
            found = experiment(args, urls, isolation)
            held = all(value <= 0.55 for value in found.values()) if isolation else found["TTFT"] >= 0.9
            good &= held
            figures = ", ".join(f"{what} {value:.3f}" for what, value in found.items())
            # Hanley and McNeil, for a guess.
            error = ((2 * args.probes + 1) / (12 * args.probes**2)) ** 0.5
            print(f"{'ok  ' if held else 'FAIL'} isolation {'on ' if isolation else 'off'}: AUC by {figures} (standard error of a guess {error:.3f})", flush=True)
    finally:
        for engine in engines or []:
            engine.terminate()
            engine.wait(20)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
