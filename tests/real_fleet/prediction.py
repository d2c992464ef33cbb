#!/usr/bin/env python3
"""How well TTFT is predicted on real replicas, by how busy they are: what `x-tokenway-decision` promised beside the client's stopwatch.

    tests/real_fleet/prediction.py --gateway target/release/tokenway --rate 0 --rate 0.5 --rate 0.9 http://127.0.0.1:8001 …

Prompts of all sizes with nothing in common, so that the caches play no part. A rate is arrivals a second, at random and whatever
was answered so far; 0 sends one after another. The first requests only teach the gateway and are not counted. Prefix caches are
emptied first where the engine can (VLLM_SERVER_DEV_MODE=1): the same seed has the same prompts.
"""
import argparse
import asyncio
import json
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error

import checks
import wire
from stream import ask, percentile


def start(args, folder):
    """The gateway, ready; its addresses go to `args`."""
    config = pathlib.Path(folder, "gateway.toml")
    addresses = [f"127.0.0.1:{port}" for port in checks.free_ports(2)]
    args.listen, args.admin = (f"http://{address}" for address in addresses)
    listen, admin = map(json.dumps, addresses)
    config.write_text(f"[server]\nlisten = {listen}\n[admin]\nlisten = {admin}\n[telemetry]\naccess_log = \"off\"\n"
                      f"[[pool]]\nname = \"main\"\nreplicas = {json.dumps(args.replicas)}\n[[route]]\nmodel = \"*\"\nslo = {json.dumps(args.slo)}\n")
    gateway = subprocess.Popen([args.gateway, "--log-level", "warn", "serve", "--config", str(config)])
    until = time.monotonic() + 60
    while True:
        try:
            wire.get(f"{args.admin}/readyz")
            return gateway
        except (OSError, urllib.error.URLError):
            if gateway.poll() is not None or time.monotonic() > until:
                gateway.kill()
                sys.exit("the gateway did not become ready")
            time.sleep(0.2)


async def one(args, model, text):
    """Predicted and seen seconds, or nothing."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": args.output, "temperature": 0,
            "ignore_eos": True, "stream": True, **args.words_only}
    answer = await ask(args.listen, "/v1/chat/completions", body)
    predicted = re.search(r"predicted_ttft_ms=(\d+)", answer.head.get("x-tokenway-decision", ""))
    return (int(predicted[1]) / 1e3, answer.ttft) if predicted and answer.ttft else None


async def run(args, model, rate, count, draw):
    texts = [wire.words(draw.randint(*args.words), f"{draw.random()}") for _ in range(count)]
    if not rate:
        return [await one(args, model, text) for text in texts]
    asked = []
    for text in texts:
        asked.append(asyncio.create_task(one(args, model, text)))
        await asyncio.sleep(draw.expovariate(rate))
    return await asyncio.gather(*asked)


async def measure(args):
    draw = random.Random(args.seed)
    model = json.loads(wire.get(f"{args.listen}/v1/models"))["data"][0]["id"]
    args.words_only = wire.whole_words(args.replicas[0], model)
    await run(args, model, 0, args.teach, draw)
    print("arrivals a second | first tokens | TTFT p50, ms | median error | p90 | predicted / actual, p50")
    for rate in args.rate or [0.0]:
        pairs = [pair for pair in await run(args, model, rate, args.requests, draw) if pair]
        if not pairs:
            sys.exit("no answer had a prediction and a first token")
        errors = [abs(predicted / seen - 1) for predicted, seen in pairs]
        print(f"{rate or 'one after another'} | {len(pairs)} of {args.requests} | {1e3 * statistics.median(s for _, s in pairs):.0f} | "
              f"{statistics.median(errors):.1%} | {percentile(errors, 0.9):.1%} | {statistics.median(p / s for p, s in pairs):.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replicas", nargs="+", metavar="URL")
    parser.add_argument("--gateway", required=True, metavar="BINARY")
    parser.add_argument("--rate", type=float, action="append", help="arrivals a second; may be given more than once")
    parser.add_argument("--requests", type=int, default=80, help="for each rate")
    parser.add_argument("--teach", type=int, default=20, help="requests before anything counts")
    parser.add_argument("--words", type=int, nargs=2, default=(20, 450), metavar=("LEAST", "MOST"))
    parser.add_argument("--output", type=int, default=16, help="tokens of each answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slo", default="interactive", help="the route's SLO class: requests are held for the sake of running streams only where it bounds TPOT")
    args = parser.parse_args()
    for replica in args.replicas:
        try:
            wire.empty_cache(replica)
        except urllib.error.HTTPError:
            print(f"{replica} does not empty its prefix cache: prompts of an earlier run with this seed are found there", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        gateway = start(args, folder)
        try:
            asyncio.run(measure(args))
        finally:
            gateway.send_signal(signal.SIGTERM)
            gateway.wait(timeout=60)


if __name__ == "__main__":
    main()
