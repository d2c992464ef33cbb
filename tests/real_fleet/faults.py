#!/usr/bin/env python3
"""Kills parts of three real replicas in the middle of streams, and tells what a client of the gateway saw.

    tests/real_fleet/faults.py --gateway target/release/tokenway --pids 101,102,103 http://127.0.0.1:8001 … (three)

The pids are those of `vllm serve`, in the order of the urls. It is the end of these replicas: start others afterwards. The first
loses its engine core (SIGKILL), the second its API server (SIGKILL), the third its API server by SIGTERM, at which vLLM ends streams
as if they were complete, or leaves them silent with their sockets open. Of each: a stream that had begun must end with an error event and a cut body, soon; a request
that still waited for its first token must be answered by another replica; and others must not notice.
"""
import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import checks
import stream
import wire
from processes import processes


FAULTS = {
    "engine core, SIGKILL": lambda pid: os.kill(next(p for p, name in processes(pid).items() if "EngineC" in name), signal.SIGKILL),
    "API server, SIGKILL": lambda pid: os.kill(pid, signal.SIGKILL),
    "API server, SIGTERM": lambda pid: os.kill(pid, signal.SIGTERM),
}


def body(args, salt, words, tokens):
    return {"model": args.model, "messages": [{"role": "user", "content": wire.words(words, f"{time.time()} {salt}")}], "max_tokens": tokens,
            "temperature": 0, "ignore_eos": True, "stream": True}


async def begun(answers, host):
    """Waits until the streams at `host` have tokens."""
    for _ in range(600):
        mine = [a for a in answers if a.head.get("x-tokenway-replica") == host and len(a.stamps) > 3]
        if mine:
            return mine
        await asyncio.sleep(0.05)
    raise TimeoutError(f"no stream at {host}")


async def one(gateway, args, url, pid, name):
    host, path = url.removeprefix("http://"), "/v1/chat/completions"
    answers = [stream.Stream() for _ in range(6)]
    tasks = [asyncio.create_task(stream.ask(gateway, path, body(args, f"{name} {n}", 60, 400), answer=a)) for n, a in enumerate(answers)]
    await begun(answers, host)
    # Prompts of seconds: those that went to the victim have no first token yet when it dies.
    late = [asyncio.create_task(stream.ask(gateway, path, body(args, f"late {name} {n}", 700, 8))) for n in range(4)]
    await asyncio.sleep(0.3)
    at = time.monotonic()
    FAULTS[name](pid)
    await asyncio.gather(*tasks)
    late = await asyncio.gather(*late)
    # Those that had begun there; whoever was still waiting there has been answered by another one since.
    mine = [a for a in answers if a.head.get("x-tokenway-replica") == host and a.stamps and a.started + a.stamps[0] < at]
    others = [a for a in answers if a not in mine]
    cut = [a for a in mine if a.error and not a.is_complete and not a.is_whole]
    told = max((a.started + a.ended - at for a in mine), default=0)
    whole = sum(a.is_complete and not a.error for a in others)
    retried = sum(a.status == 200 and a.is_complete and not a.error for a in late)
    kinds = {json.dumps((a.error or {}).get("code")) if isinstance(a.error, dict) else str(a.error)[:60] for a in mine}
    print(f"| {name} | {len(cut)} of {len(mine)} with an error event and a cut body, {told:.1f} s after it: {', '.join(sorted(kinds))} "
          f"| {retried} of {len(late)} | {whole} of {len(others)} |", flush=True)
    for a in [*others, *late]:
        if a.error:
            print(f"    {a.status} {a.head.get('x-tokenway-replica')} {a.error}", flush=True)
    return len(cut) == len(mine) and retried == len(late) and whole == len(others)


async def run(gateway, args):
    print("| fault | streams that had begun there | waiting requests answered | streams elsewhere that ended well |\n|---|---|---|---|")
    good = True
    for number, (name, url) in enumerate(zip(FAULTS, args.replicas)):
        good &= await one(gateway, args, url, int(args.pids.split(",")[number]), name)
        if number == 1:
            break  # the third has nobody left to take its work over
    url, pid = args.replicas[2], int(args.pids.split(",")[2])
    answer = stream.Stream()
    task = asyncio.create_task(stream.ask(gateway, "/v1/chat/completions", body(args, "last", 60, 400), answer=answer))
    await begun([answer], url.removeprefix("http://"))
    at = time.monotonic()
    FAULTS["API server, SIGTERM"](pid)
    await task
    cut = bool(answer.error) and not answer.is_complete and not answer.is_whole
    print(f"| API server, SIGTERM | {int(cut)} of 1 with an error event and a cut body, {answer.started + answer.ended - at:.1f} s after it: {answer.error} | | |")
    refused = await stream.ask(gateway, "/v1/chat/completions", body(args, "nobody", 20, 4))
    print(f"\nwith no replica left: {refused.status} {refused.error}")
    return good and cut and refused.status == 503


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replicas", nargs=3)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--pids", required=True)
    parser.add_argument("--model", default="tiny")
    args = parser.parse_args()
    data, admin = checks.free_ports(2)
    upstreams = [part for url in args.replicas for part in ("--upstream", url)]
    out = tempfile.mkdtemp(prefix="tokenway-faults.")
    process = subprocess.Popen([args.gateway, "serve", *upstreams, "--policy", "round_robin", "--listen", f"127.0.0.1:{data}", "--admin-listen", f"127.0.0.1:{admin}"],
                               stdout=open(f"{out}/access.jsonl", "w"), stderr=open(f"{out}/gateway.log", "w"))
    try:
        for _ in range(300):
            try:
                if len([r for r in json.loads(wire.get(f"http://127.0.0.1:{admin}/api/fleet"))["replicas"] if r["state"] == "ready"]) == 3:
                    break
            except OSError:
                pass
            time.sleep(0.2)
        good = asyncio.run(run(f"http://127.0.0.1:{data}", args))
        page = wire.get(f"http://127.0.0.1:{admin}/metrics")
        print("\n".join(line for line in page.splitlines() if line.startswith(("tokenway_requests_total", "tokenway_retries_total", "tokenway_timeouts_total"))))
        print(f"logs: {out}")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    sys.exit(not good)


main()
