#!/usr/bin/env python3
"""Restarts a real replica under load, and rolls a throttled revision out, through the gateway.

    tests/real_fleet/fleet_life.py --gateway target/release/tokenway --pid 101 --restart 'COMMAND' URL URL [URL …]

The pid is that of the first url's `vllm serve`; COMMAND starts it anew on its port and may go on running. Of the restart: no request
may fail, and the replica may get none before the gateway calls it ready. Of the rollout: the first replica is a new revision whose
engine core is stopped half of the time (SIGSTOP, SIGCONT); it must be rolled back and get no new request afterwards.
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


class Gateway:
    def __init__(self, args, pools, route):
        self.data, admin = checks.free_ports(2)
        self.admin, self.out = f"http://127.0.0.1:{admin}", tempfile.mkdtemp(prefix="tokenway-life.")
        with open(f"{self.out}/gateway.toml", "w") as file:
            file.write(f'[server]\nlisten = "127.0.0.1:{self.data}"\n[admin]\nlisten = "127.0.0.1:{admin}"\n'
                       f'[telemetry]\naccess_log = "{self.out}/access.jsonl"\n{pools}[[route]]\nmodel = "{args.model}"\n{route}')
        self.process = subprocess.Popen([args.gateway, "serve", "--config", f"{self.out}/gateway.toml"], stderr=open(f"{self.out}/gateway.log", "w"))

    def states(self):
        try:
            return {r["url"].removeprefix("http://"): r["state"] for r in json.loads(wire.get(f"{self.admin}/api/fleet"))["replicas"]}
        except (OSError, ValueError):
            return {}

    async def until(self, what, holds, seconds=600):
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: {self.states()}")
            await asyncio.sleep(0.2)

    def log(self, name):
        with open(f"{self.out}/{name}") as file:
            return [json.loads(line) for line in file if line.startswith("{")]

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


class Load:
    """Clients that ask one streamed request after the other, until stopped."""

    def __init__(self, gateway, args, clients):
        self.url, self.args, self.is_over = f"http://127.0.0.1:{gateway.data}", args, False
        self.whole, self.failed = 0, []
        self.tasks = [asyncio.create_task(self.client(number)) for number in range(clients)]

    async def client(self, number):
        turn = 0
        while not self.is_over:
            turn += 1
            body = {"model": self.args.model, "messages": [{"role": "user", "content": wire.words(30, f"life {number} {turn}")}],
                    "max_tokens": 40, "ignore_eos": True, "stream": True}
            answer = await stream.ask(self.url, "/v1/chat/completions", body)
            if answer.is_complete and answer.is_whole and not answer.error:
                self.whole += 1
            else:
                self.failed.append((answer.status, str(answer.error)[:120]))

    async def stop(self):
        self.is_over = True
        await asyncio.gather(*self.tasks)


async def restart(args):
    urls = ", ".join(f'"{url}"' for url in args.replicas)
    gateway = Gateway(args, f'[[pool]]\nname = "p"\nreplicas = [{urls}]\n', "migrate = true\n")
    victim, started = args.replicas[0].removeprefix("http://"), None
    try:
        await gateway.until("all ready", lambda: list(gateway.states().values()) == ["ready"] * len(args.replicas))
        load = Load(gateway, args, 6)
        await asyncio.sleep(5)
        os.kill(args.pid, signal.SIGTERM)
        await gateway.until("it is gone", lambda: gateway.states().get(victim) != "ready", 60)
        while os.path.exists(f"/proc/{args.pid}"):
            await asyncio.sleep(0.2)
        started = subprocess.Popen(args.restart, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        at = time.monotonic()
        await gateway.until("it is back", lambda: gateway.states().get(victim) == "ready")
        took = time.monotonic() - at
        await asyncio.sleep(60)
        await load.stop()
    finally:
        gateway.stop()
    changes = [line for line in gateway.log("gateway.log") if line.get("replica") == victim and line.get("message") == "replica changed state"]
    ready = [line["timestamp"] for line in changes if line["to"] == "ready"][-1]
    left = next(line["timestamp"] for line in changes if line["from"] == "ready")
    # `time` is the end of a request: what ended there in between began before, or broke with it.
    there = [line for line in gateway.log("access.jsonl") if line.get("tokenway.replicas", [line.get("tokenway.replica")])[-1] == victim]
    early = [line for line in there if left < line["time"] < ready and line.get("tokenway.outcome") == "ok" and after(line) > left]
    late = [line for line in there if line["time"] > ready]
    print(f"restart: {load.whole} whole, {len(load.failed)} failed; back after {took:.0f} s; begun there meanwhile {len(early)}, since {len(late)}")
    shares = [sum(plus(ready, at) <= after(line) < plus(ready, at + 10) for line in late) for at in range(0, 60, 10)]
    print(f"  of these came in each ten seconds since: {shares}")
    print("  " + " → ".join(f"{line['to']} ({line['reason']})" for line in changes[-8:]))
    for failure in load.failed[:5]:
        print("   ", *failure)
    return not load.failed and not early and late, started


def plus(at, seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.mktime(time.strptime(at[:19], "%Y-%m-%dT%H:%M:%S")) + seconds))


def after(line):
    """When the request came, as the log writes times."""
    end = time.mktime(time.strptime(line["time"][:19], "%Y-%m-%dT%H:%M:%S"))
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(end - line["tokenway.duration"]))


async def throttle(pid):
    cores = [child for child, name in processes(pid).items() if "EngineC" in name]
    try:
        while True:
            for sent in (signal.SIGSTOP, signal.SIGCONT):
                for core in cores:
                    os.kill(core, sent)
                await asyncio.sleep(0.1)
    finally:
        for core in cores:
            os.kill(core, signal.SIGCONT)


async def rollout(args, pid):
    others = ", ".join(f'"{url}"' for url in args.replicas[1:])
    pools = (f'[[pool]]\nname = "r1"\nreplicas = [{others}]\n'
             f'[[pool]]\nname = "r2"\nrevision = "r2"\nreplicas = ["{args.replicas[0]}"]\n')
    route = 'pools = ["r1"]\n[route.canary]\npool = "r2"\nsteps = [{ weight = 30, soak = "10m" }]\n'
    gateway = Gateway(args, pools, route)
    canary = lambda: json.loads(wire.get(f"{gateway.admin}/api/canaries"))["canaries"][0]
    slow = None
    try:
        await gateway.until("all ready", lambda: list(gateway.states().values()) == ["ready"] * len(args.replicas))
        load = Load(gateway, args, 6)
        await asyncio.sleep(10)
        before, slow, at = canary(), asyncio.create_task(throttle(pid)), time.monotonic()
        await gateway.until("it is rolled back", lambda: canary()["state"] == "rolled_back", 400)
        took, stopped = time.monotonic() - at, canary()
        await asyncio.sleep(3)
        there = canary()["requests"]
        await asyncio.sleep(5)
        still = canary()["requests"]
        await load.stop()
    finally:
        if slow:
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
        gateway.stop()
    print(f"rollout: {before['state']} before it was slow; rolled back {took:.0f} s after, by {stopped['reason']}; requests {stopped['requests']}, "
          f"3 s later {there}, 8 s later {still}; {load.whole} whole, {len(load.failed)} failed")
    return before["state"] == "running" and not load.failed and still["canary"] == there["canary"]


async def run(args):
    good, started = await restart(args)
    pid = next(p for p in listeners_at(args.replicas[0]) if p) if args.pid_after is None else args.pid_after
    good = await rollout(args, pid) and good
    if started:
        print(f"the restarted replica runs on, pid {pid}")
    return good


def listeners_at(url):
    """The process that listens at a url."""
    port = f"{int(url.rsplit(':', 1)[1]):04X}"
    with open("/proc/net/tcp") as file:
        inodes = {line.split()[9] for line in file if line.split()[1].endswith(":" + port) and line.split()[3] == "0A"}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if any(os.readlink(f"/proc/{pid}/fd/{fd}") in {f"socket:[{inode}]" for inode in inodes} for fd in os.listdir(f"/proc/{pid}/fd")):
                yield int(pid)
        except OSError:
            continue


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replicas", nargs="+")
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--restart", required=True)
    parser.add_argument("--pid-after", type=int, help="default: who listens at the first url's port")
    parser.add_argument("--model", default="tiny")
    sys.exit(not asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
