#!/usr/bin/env python3
"""Scales a real vLLM to zero under clients that wait, and degrades from one real model to another.

    tests/real_fleet/zero_and_degrade.py --gateway target/release/tokenway --pid 101 --start 'COMMAND' --other small URL OTHER_URL

URL serves the model `tiny` and has the pid; COMMAND starts it anew on its port and may go on running. OTHER_URL serves `small`. Of zero: the
replica is ended, clients ask while there is none, it is started, and every one of them must be answered, with heartbeats while it
waited. Of degrading: a few clients get their own model; many at once are served by the other as well, and none fails; a few
again, after `min_dwell`, get their own.
"""
import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import stream
import wire
from fleet_life import Gateway


class Heard(stream.Stream):
    """Counts SSE comments, and says which model answered."""

    def __init__(self):
        super().__init__()
        self.comments, self.model = 0, None

    def take(self, line, at):
        self.comments += line.startswith(b":")
        if line.startswith(b"data: {"):
            self.model = json.loads(line[6:]).get("model") or self.model
        super().take(line, at)


async def ask(gateway, args, name, tokens=20):
    body = {"model": args.model, "messages": [{"role": "user", "content": wire.words(30, name)}], "max_tokens": tokens, "ignore_eos": True,
            "stream": True}
    return await stream.ask(f"http://127.0.0.1:{gateway.data}", "/v1/chat/completions", body, answer=Heard())


def is_good(answer):
    return answer.is_complete and answer.is_whole and not answer.error


async def zero(args):
    pool = (f'[[pool]]\nname = "p"\nreplicas = ["{args.url}"]\n[pool.probe]\ninterval = "1s"\n[pool.scale]\nmin_replicas = 0\nmax_replicas = 1\n'
            'idle_after = "10s"\n[pool.scale.wait]\nheartbeat = "5s"\n')
    gateway = Gateway(args, pool, "")
    here = args.url.removeprefix("http://")

    def wanted():
        try:
            return json.loads(wire.get(f"{gateway.admin}/api/v1/pools/p/scale"))["desired_replicas"]
        except OSError:  # before the first look
            return None

    try:
        await gateway.until("it is ready", lambda: gateway.states().get(here) == "ready")
        warm = await ask(gateway, args, "warm")
        warm = await ask(gateway, args, "warm again")
        at = time.monotonic()
        await gateway.until("nothing is asked for", lambda: wanted() == 0, 60)
        idle = time.monotonic() - at
        os.kill(args.pid, signal.SIGTERM)
        await gateway.until("it is gone", lambda: gateway.states().get(here) != "ready" and not os.path.exists(f"/proc/{args.pid}"), 60)
        at = time.monotonic()
        clients = [asyncio.create_task(ask(gateway, args, f"waits {number}")) for number in range(12)]
        await gateway.until("one is asked for", lambda: wanted() == 1, 10)
        noticed = time.monotonic() - at
        subprocess.Popen(args.start, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        answers = await asyncio.gather(*clients)
    finally:
        gateway.stop()
    ttfts = sorted(answer.ttft or 0 for answer in answers)
    good = [answer for answer in answers if is_good(answer)]
    print(f"zero: 0 asked for {idle:.0f} s after the last request, 1 within {noticed:.1f} s of the first; {len(good)} of {len(answers)} that waited answered, "
          f"TTFT {ttfts[0]:.1f} to {ttfts[-1]:.1f} s (warm {warm.ttft:.2f} s), {min(answer.comments for answer in answers)} heartbeats at least")
    for answer in answers:
        if not is_good(answer):
            print("   ", answer.status, str(answer.error)[:150])
    return len(good) == len(answers) and min(answer.comments for answer in answers) > 0


async def degrade(args):
    pools = (f'[slo.quick]\nttft = "{args.bound}"\n[[pool]]\nname = "large"\nreplicas = ["{args.url}"]\n[[pool]]\nname = "small"\nreplicas = ["{args.other_url}"]\n')
    route = ('pools = ["large"]\nslo = "quick"\n[route.degrade]\nto = "small"\nwhen = { predicted_ttft_over_slo = 1.5 }\n'
             f'until = {{ predicted_ttft_over_slo = 1.0 }}\nmin_dwell = "5s"\n[[route]]\nmodel = "{args.other}"\npools = ["small"]\n')
    gateway = Gateway(args, pools, route)
    good = True

    async def phase(name, clients, seconds):
        nonlocal good
        end, answers = time.monotonic() + seconds, []

        async def client(number):
            turn = 0
            while time.monotonic() < end:
                turn += 1
                answers.append(await ask(gateway, args, f"{name} {number} {turn}", 40))

        await asyncio.gather(*(client(number) for number in range(clients)))
        failed = [answer for answer in answers if not is_good(answer)]
        degraded = [answer for answer in answers if answer.head.get("x-tokenway-degraded-from")]
        own = [answer for answer in answers if answer not in degraded]
        # What the head says is what answered.
        good = good and not failed and all(answer.model == args.other for answer in degraded) and all(answer.model == args.model for answer in own)
        p = lambda some: stream.percentile([answer.ttft for answer in some if answer.ttft], 0.9)
        print(f"degrade, {name}: {clients} clients, {len(answers)} answers, {len(degraded)} of the other model, {len(failed)} failed; "
              f"p90 of TTFT {p(own) or 0:.2f} s own, {p(degraded) or 0:.2f} s other")
        return len(degraded) / max(1, len(answers))

    try:
        await gateway.until("both ready", lambda: list(gateway.states().values()) == ["ready"] * 2)
        calm = await phase("calm", 2, 15)
        rush = await phase("rush", 24, 25)
        await asyncio.sleep(6)
        again = await phase("calm again", 2, 15)
    finally:
        gateway.stop()
    return good and calm < 0.1 and rush > 0.1 and again < 0.1


async def run(args):
    shown = [await show(args) for name, show in (("degrade", degrade), ("zero", zero)) if args.only in (None, name)]
    return all(shown)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("other_url")
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--start", required=True)
    parser.add_argument("--only", choices=["degrade", "zero"])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--other", default="small")
    parser.add_argument("--bound", default="500ms", help="on TTFT: above it times 1.5 requests degrade")
    sys.exit(not asyncio.run(run(parser.parse_args())))


main()
