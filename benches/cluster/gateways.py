#!/usr/bin/env python3
"""Conversations that change their gateway with every turn: one gateway, two that know nothing of each other, and two in a [cluster].

    python3 benches/cluster/gateways.py target/release/tokenway --seeds 5
    python3 benches/cluster/gateways.py target/release/tokenway --kill-broker 30 --broker valkey-server

Starts `tokenway sim` with three replicas, redis-server and the gateways on free ports, anew for every run, and ends them. Each
conversation asks again when its answer is there and it has thought; gateways take turns at random. Hits are the engines'
cached_tokens over prompt tokens, TTFT is the client's. With --kill-broker the two in a cluster lose their broker under load for so
long, with all that it knew: no request may fail, and they have to follow each other within 5 s of its return.
"""
import argparse, asyncio, json, random, re, statistics, sys, time

from processes import Processes, free_ports, get, wait


class Run(Processes):
    def __init__(self, args, gateways, clustered, seed):
        super().__init__(args)
        [base] = free_ports(1)
        self.start(args.binary, "sim", "--replicas", "3", "--port", str(base), "--seed", str(seed), "--blocks", str(args.blocks))
        replicas = [f"http://127.0.0.1:{base + i}" for i in range(3)]
        for url in replicas:
            wait(url + "/health")
        cluster = ""
        if clustered:
            self.start_broker()
            cluster = f'[cluster]\nurl = "redis://127.0.0.1:{self.broker_port}"\n'
        for _ in range(gateways):
            self.start_gateway(f'{cluster}[[pool]]\nname = "p"\nreplicas = {json.dumps(replicas)}\n[[route]]\nmodel = "sim"\npools = ["p"]\n')
        self.wait_for_gateways()
        time.sleep(1.5)

    def metrics(self, admin):
        return get(f"http://127.0.0.1:{admin}/metrics")

    async def lose_broker(self, after, away):
        """Seconds from the broker's return until all gateways follow each other."""
        await asyncio.sleep(after)
        await self.without_broker(away)
        back, wanted = time.perf_counter(), f"tokenway_cluster_peers{{cluster=\"tokenway\"}} {len(self.admin) - 1}\n"
        while time.perf_counter() - back < 30:
            pages = [await asyncio.to_thread(self.metrics, admin) for admin in self.admin]
            if all(wanted in page for page in pages):
                break
            await asyncio.sleep(0.05)
        return time.perf_counter() - back


async def ask(port, messages, tokens):
    """TTFT, prompt tokens, cached ones, text."""
    body = json.dumps({"model": "sim", "stream": True, "messages": messages, "max_tokens": tokens, "ignore_eos": True,
                       "stream_options": {"include_usage": True}}).encode()
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
                 b"content-length: %d\r\n\r\n" % len(body) + body)
    ttft, usage, text, status = None, None, [], await reader.readline()
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:], strict=False)
        delta = event["choices"][0]["delta"].get("content") if event.get("choices") else None
        if delta:
            ttft = ttft or time.perf_counter() - begin
            text.append(delta)
        usage = event.get("usage") or usage
    writer.close()
    if ttft is None or usage is None:
        raise RuntimeError(status)
    details = usage.get("prompt_tokens_details") or {}
    return ttft, usage["prompt_tokens"], details.get("cached_tokens") or 0, "".join(text)


async def conversations(args, ports, seed):
    choose, words = random.Random(seed), "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima".split()
    systems = [" ".join(choose.choices(words, k=400)) for _ in range(6)]
    samples, failed, until = [], 0, time.perf_counter() + args.warm_up + args.seconds
    begin = time.perf_counter() + args.warm_up

    async def one(number):
        nonlocal failed
        dice = random.Random(seed * 1000 + number)
        await asyncio.sleep(dice.uniform(0, args.think))
        messages = []
        while time.perf_counter() < until:
            if not messages or len(messages) > 2 * dice.randint(6, 14):
                messages = [{"role": "system", "content": dice.choice(systems)}]
            messages.append({"role": "user", "content": " ".join(dice.choices(words, k=dice.randint(30, 400)))})
            asked = time.perf_counter()
            try:
                ttft, prompt, cached, text = await ask(dice.choice(ports), messages, dice.randint(20, 120))
            except (RuntimeError, OSError, ValueError) as error:
                print(f"failed: {error!r}", file=sys.stderr)
                failed, messages = failed + 1, []
                continue
            messages.append({"role": "assistant", "content": text})
            if begin <= asked < until:
                samples.append((ttft, prompt, cached))
            await asyncio.sleep(dice.expovariate(1 / args.think))

    await asyncio.gather(*(one(number) for number in range(args.conversations)))
    return samples, failed


def lose_broker(args):
    args.seconds = max(args.seconds, args.kill_broker + 20)
    run = Run(args, 2, True, 1)

    async def both():
        return await asyncio.gather(conversations(args, run.data, 1), run.lose_broker(args.warm_up + 5, args.kill_broker))

    try:
        (samples, failed), back = asyncio.run(both())
    finally:
        run.end()
    print(f"{args.broker} away for {args.kill_broker:g} s: {len(samples)} requests, {failed} failed, shared again {back:.1f} s after its return")
    sys.exit(failed > 0 or back > 5 or not samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--conversations", type=int, default=48)
    parser.add_argument("--think", type=float, default=1.5)
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--warm-up", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--broker", default="redis-server")
    parser.add_argument("--kill-broker", type=float, default=0, metavar="SECONDS")
    args = parser.parse_args()
    if args.kill_broker:
        return lose_broker(args)
    ways = {"one gateway": (1, False), "two alone": (2, False), "two in a cluster": (2, True)}
    rows = {way: [] for way in ways}
    for seed in range(1, args.seeds + 1):
        for way, (gateways, clustered) in ways.items():
            run = Run(args, gateways, clustered, seed)
            try:
                samples, failed = asyncio.run(conversations(args, run.data, seed))
                if clustered:
                    page = run.metrics(run.admin[-1])
                    print("\n".join(re.findall(r"^tokenway_cluster.*", page, re.M)), file=sys.stderr)
            finally:
                run.end()
            ttfts = sorted(ttft * 1000 for ttft, _, _ in samples)
            hits = 100 * sum(cached for _, _, cached in samples) / sum(prompt for _, prompt, _ in samples)
            at = lambda q: ttfts[int(q * (len(ttfts) - 1))]
            row = (hits, at(0.5), at(0.95), at(0.99), len(samples), failed)
            rows[way].append(row)
            print(f"seed {seed} {way:17} hits {hits:.1f} %  TTFT p50 {row[1]:.0f} p95 {row[2]:.0f} p99 {row[3]:.0f} ms  "
                  f"{row[4]} requests, {failed} failed", flush=True)
    print("\n| | hits | TTFT p50, ms | p95 | p99 | requests | failed |\n|---|---|---|---|---|---|---|")
    for way, runs in rows.items():
        figure = lambda i, digits: f"{statistics.mean(r[i] for r in runs):.{digits}f} ± {statistics.pstdev(r[i] for r in runs):.{digits}f}"
        print(f"| {way} | {figure(0, 1)} % | {figure(1, 0)} | {figure(2, 0)} | {figure(3, 0)} | "
              f"{sum(r[4] for r in runs)} | {sum(r[5] for r in runs)} |")


main()
