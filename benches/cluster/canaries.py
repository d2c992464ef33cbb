#!/usr/bin/env python3
"""A canary before two gateways of a [cluster], under load: what both decide, when, and whether a client noticed.

    python3 benches/cluster/canaries.py target/release/tokenway --seeds 3
    python3 benches/cluster/canaries.py target/release/tokenway --only slow-restart --broker valkey-server

Starts four replicas of `tokenway sim`, the broker and two gateways on free ports, anew for every run, and ends them. Two of the replicas
are the canary, with half of the traffic: the same engine, which has to be promoted, or one whose tokens take twice as long, which has to
be rolled back. In four of the six one gateway is terminated and started again while clients ask the other one, or the broker is killed
for 20 s, with all that it knew: each judges alone then. Exits 1 if a verdict is wrong, the gateways disagree two seconds later (two
seconds after the broker's return where it was away), or a request fails.
"""
import argparse, asyncio, collections, json, random, statistics, sys, time

from processes import Processes, free_ports, get, wait

CONFIG = """
[routing]
seed = "one seed for both of these gateways"
[cluster]
url = "redis://127.0.0.1:{broker}"
[[pool]]
name = "r1"
replicas = [{baseline}]
[[pool]]
name = "r2"
revision = "r2"
replicas = [{canary}]
[[route]]
model = "sim"
pools = ["r1"]
[route.canary]
pool = "r2"
steps = [{{ weight = 50, soak = "40s" }}]
state = "{folder}/canary-{at}.json"
"""
RATE = 30  # requests a second
AWAY = 20  # seconds without the broker
AGREED = 2  # seconds
# What is the matter with the canary, what else happens (after so many seconds), and the verdict.
RUNS = {
    "same": (False, None, "promoted"), "same-restart": (False, ("restart", 20), "promoted"), "same-broker": (False, ("broker", 15), "promoted"),
    "slow": (True, None, "rolled_back"), "slow-restart": (True, ("restart", 3), "rolled_back"), "slow-broker": (True, ("broker", 3), "rolled_back"),
}


class Run(Processes):
    def __init__(self, args, is_slow, seed):
        super().__init__(args)
        self.random, engines = random.Random(seed), free_ports(4)
        for at, port in enumerate(engines):
            slowness = ["--step-ms", "24"] if is_slow and at > 1 else []
            self.start(args.binary, "sim", "--replicas", "1", "--port", str(port), "--seed", str(10 * seed + at), *slowness)
        self.start_broker()
        urls = [f'"http://127.0.0.1:{port}"' for port in engines]
        for port in engines:
            wait(f"http://127.0.0.1:{port}/health")
        for at in range(2):
            self.start_gateway(CONFIG.format(folder=self.files.name, at=at, broker=self.broker_port,
                                             baseline=", ".join(urls[:2]), canary=", ".join(urls[2:])))
        self.wait_for_gateways()
        # Clients go where they are let in.
        self.open, self.statuses, self.is_over = [0, 1], collections.Counter(), False

    async def ask(self, number):
        content = f"{number} " + "word " * self.random.randrange(20, 400)
        body = json.dumps({"model": "sim", "stream": True, "ignore_eos": True, "max_tokens": self.random.choice([16, 32, 64]),
                           "messages": [{"role": "user", "content": content}]}).encode()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.data[self.random.choice(self.open)])
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
                         b"content-length: %d\r\n\r\n" % len(body) + body)
            answer = await asyncio.wait_for(reader.read(-1), 60)
            writer.close()
            self.statuses["whole" if b" 200 " in answer[:16] and b"[DONE]" in answer else repr(answer[:200])] += 1
        except (OSError, TimeoutError) as error:
            self.statuses[repr(error)] += 1

    async def load(self):
        async with asyncio.TaskGroup() as requests:
            number = 0
            while not self.is_over:
                requests.create_task(self.ask(number))
                number += 1
                await asyncio.sleep(self.random.expovariate(RATE))

    async def disturb(self, event):
        what, after = event or ("nothing", 0)
        await asyncio.sleep(after)
        if what == "restart":
            self.open = [1]
            await self.restart_gateway(0)
            self.open = [0, 1]
        elif what == "broker":
            await self.without_broker(AWAY)

    def state(self, at):
        try:
            return json.loads(get(f"http://127.0.0.1:{self.admin[at]}/api/canaries"))["canaries"][0]["state"]
        except OSError:
            return "away"

    async def watch(self):
        """Seconds until the first and until both have an end, and the ends."""
        begin, ends, after = time.perf_counter(), {}, []
        while time.perf_counter() - begin < 200 and len(ends) < 2:
            for at in (0, 1):
                state = await asyncio.to_thread(self.state, at)
                if state not in ("running", "away") and at not in ends:
                    ends[at] = state
                    after.append(time.perf_counter() - begin)
            await asyncio.sleep(0.1)
        self.is_over = True
        return ends, after

    async def go(self, event):
        (ends, after), _, _ = await asyncio.gather(self.watch(), self.load(), self.disturb(event))
        return ends, after


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=RUNS)
    parser.add_argument("--broker", default="redis-server")
    args = parser.parse_args()
    is_well = True
    print("| canary | verdict after, s | the other gateway, s later | requests | failed |\n|---|---|---|---|---|")
    for name, (is_slow, event, verdict) in RUNS.items():
        if args.only not in (None, name):
            continue
        afters, requests, failed = [], 0, 0
        for seed in range(1, args.seeds + 1):
            run = Run(args, is_slow, seed)
            try:
                ends, after = asyncio.run(run.go(event))
            finally:
                run.end()
            bad = {status: count for status, count in run.statuses.items() if status != "whole"}
            back = event[1] + AWAY if event and event[0] == "broker" else 0
            is_right = list(ends.values()) == [verdict] * 2 and after[1] <= max(after[0], back) + AGREED
            if bad or not is_right:
                print(f"{name}, seed {seed}: {ends} after {after}, {bad}", file=sys.stderr)
            is_well &= is_right and not bad
            afters.append(after)
            requests, failed = requests + run.statuses.total(), failed + sum(bad.values())
        first = [after[0] for after in afters if after]
        later = max((after[-1] - after[0] for after in afters if after), default=0)
        spread = f"{statistics.mean(first):.0f} ± {statistics.pstdev(first):.0f}" if first else "none"
        print(f"| {name}: {verdict} | {spread} | ≤ {later:.1f} | {requests} | {failed} |", flush=True)
    sys.exit(not is_well)


main()
