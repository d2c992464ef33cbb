#!/usr/bin/env python3
"""Freezes the engine core of one of two real replicas and sends streams to a route with `hedge`: nobody may wait for it.

    tests/real_fleet/hedging.py --gateway target/release/tokenway --pids 101,102 http://127.0.0.1:8001 http://127.0.0.1:8002

The pids are those of `vllm serve`, in the order of the urls; both replicas run on afterwards. Prints a row for the same requests while
both are well, while the first is frozen (with and without `hedge`), and what its engine still works on when it goes on: nothing.
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


def core(pid, sent):
    for child, name in processes(pid).items():
        if "EngineC" in name:
            os.kill(child, sent)


def body(args, number):
    return {"model": args.model, "messages": [{"role": "user", "content": wire.words(30, f"hedge {number}")}], "max_tokens": 24,
            "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


class Gateway:
    """One gateway over both replicas with these lines in its route."""

    def __init__(self, args, lines):
        self.data, admin = checks.free_ports(2)
        self.admin, self.out = f"http://127.0.0.1:{admin}", tempfile.mkdtemp(prefix="tokenway-hedging.")
        urls = ", ".join(f'"{url}"' for url in args.replicas)
        with open(f"{self.out}/gateway.toml", "w") as file:
            # The frozen one must stay a candidate: its HTTP server answers probes, and a completion as a probe would show it.
            file.write(f'[server]\nlisten = "127.0.0.1:{self.data}"\n[admin]\nlisten = "127.0.0.1:{admin}"\n[telemetry]\naccess_log = "{self.out}/access.jsonl"\n'
                       f'[[pool]]\nname = "p"\nreplicas = [{urls}]\n[[route]]\nmodel = "{args.model}"\npolicy = "round_robin"\n{lines}\n'
                       f'[route.timeouts]\nfirst_token = "8s"\n')
        self.process = subprocess.Popen([args.gateway, "serve", "--config", f"{self.out}/gateway.toml"], stderr=open(f"{self.out}/gateway.log", "w"))
        for _ in range(300):
            try:
                if sum(r["state"] == "ready" for r in json.loads(wire.get(f"{self.admin}/api/fleet"))["replicas"]) == 2:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise TimeoutError("two replicas are not ready")

    def hedges(self):
        page = wire.get(self.admin + "/metrics")
        return " ".join(line.split("{", 1)[1] for line in page.splitlines() if line.startswith("tokenway_hedges_total{"))

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


async def round_of(gateway, args, name, wanted):
    answers = []
    for number in range(args.requests):
        answers.append(await stream.ask(f"http://127.0.0.1:{gateway.data}", "/v1/chat/completions", body(args, number)))
    same = sum(a.status == 200 and a.is_complete and not a.error and (a.text, a.usage.get("completion_tokens")) == want
               for a, want in zip(answers, wanted))
    ttft = [a.ttft or float("inf") for a in answers]
    print(f"| {name} | {same} of {len(answers)} | {stream.percentile(ttft, .5):.2f} / {max(ttft):.2f} s | {gateway.hedges() or '-'} |", flush=True)
    for a in answers:
        if a.error:
            print(f"    {a.status} {a.head.get('x-tokenway-replica')} {a.error}", flush=True)
    return same == len(answers), max(ttft)


def at_work(url):
    """Requests that the engine runs or keeps waiting."""
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.rsplit(" ", 1)[1]) for line in wire.get(url + "/metrics").splitlines() if line.startswith(names))


async def run(args):
    frozen, pid = args.replicas[0], int(args.pids.split(",")[0])
    wholes = [await stream.ask(args.replicas[1], "/v1/chat/completions", body(args, number)) for number in range(args.requests)]
    wanted = [(a.text, a.usage.get("completion_tokens")) for a in wholes]
    assert all(tokens == 24 for _, tokens in wanted), [a.error for a in wholes]
    print("| round | answers as straight | TTFT p50 / longest | hedges |\n|---|---|---|---|")
    good = True
    for lines in ('hedge = { after = "1s", budget = 1.0 }', ""):
        gateway = Gateway(args, lines)
        name = "hedge after 1 s" if lines else "no hedge"
        try:
            good &= (await round_of(gateway, args, f"{name}, both well", wanted))[0]
            core(pid, signal.SIGSTOP)
            try:
                is_same, longest = await round_of(gateway, args, f"{name}, one frozen", wanted)
            finally:
                core(pid, signal.SIGCONT)
            # Without, whoever meets it first waits for `first_token`: that row is there to compare with.
            good &= not lines or (is_same and longest < 4)
            end = time.monotonic() + 20
            while at_work(frozen) and time.monotonic() < end:
                await asyncio.sleep(0.5)
            left = at_work(frozen)
            print(f"    at the frozen engine when it goes on: {left:.0f} requests", flush=True)
            good &= left == 0
        finally:
            gateway.stop()
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replicas", nargs=2)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--pids", required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--requests", type=int, default=12)
    sys.exit(not asyncio.run(run(parser.parse_args())))


main()
