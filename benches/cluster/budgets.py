#!/usr/bin/env python3
"""A budget that two gateways share through a real broker, under load: what all its requests took, beside its limit.

    python3 benches/cluster/budgets.py target/release/tokenway --seeds 3
    python3 benches/cluster/budgets.py target/release/tokenway --kill-broker 30 --on-loss closed
    python3 benches/cluster/budgets.py target/release/tokenway --restart kill --broker valkey-server

Starts `tokenway sim`, the broker and two gateways on free ports, anew for every run, and ends them. Requests come at --rate, by turns to
both gateways, until half as many again were asked as the budget has. With --kill-broker the broker is killed, with all that it knew,
when a quarter of the budget is used, and comes back after so long; with --restart one gateway is terminated or killed at half of it and
started again. Exits 1 if what was answered 200 differs from the limit by more than 2 %.
"""
import argparse, asyncio, hashlib, json, statistics, sys, time

from processes import Processes, free_ports, get, wait

CONFIG = """
[cluster]
url = "redis://127.0.0.1:{broker}"
on_loss = "{on_loss}"
[[pool]]
name = "p"
replicas = [{replicas}]
[[route]]
model = "sim"
pools = ["p"]
[[tenant]]
name = "a"
key_sha256 = ["{digest}"]
[[tenant.budget]]
window = "month"
{kind} = {limit}
"""
BODY = json.dumps({"model": "sim", "max_tokens": 1, "ignore_eos": True, "messages": [{"role": "user", "content": "hello there"}]}).encode()
REQUEST = (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key-a\r\ncontent-type: application/json\r\n"
           b"content-length: %d\r\n\r\n" % len(BODY) + BODY)


class Run(Processes):
    def __init__(self, args, seed):
        super().__init__(args)
        [engines] = free_ports(1)
        self.start(args.binary, "sim", "--replicas", "1", "--port", str(engines), "--seed", str(seed), *args.sim.split())
        wait(f"http://127.0.0.1:{engines}/health")
        self.start_broker()
        for _ in range(2):
            self.start_gateway(CONFIG.format(broker=self.broker_port, on_loss=args.on_loss, replicas=f'"http://127.0.0.1:{engines}"',
                                             kind=args.kind, limit=args.limit, digest=hashlib.sha256(b"key-a").hexdigest()))
        self.wait_for_peers()

    def wait_for_peers(self):
        self.wait_for_gateways()
        for admin in self.admin:
            wait(f"http://127.0.0.1:{admin}/metrics", 'tokenway_cluster_peers{cluster="tokenway"} 1\n')

    async def lose_broker(self, load):
        await load.reaches(0.25)
        before = load.taken
        await self.without_broker(self.args.kill_broker)
        print(f"  {load.taken - before} taken while the broker was away", flush=True)

    async def restart(self, load):
        await load.reaches(0.5)
        load.ports = self.data[:1]
        await asyncio.sleep(0.3)
        await self.restart_gateway(1, is_killed=self.args.restart == "kill")
        load.ports = self.data


class Connection(asyncio.Protocol):
    """Answers one request at a time."""

    def __init__(self, load):
        self.load, self.buffer, self.is_busy = load, b"", True

    def connection_made(self, transport):
        self.transport = transport
        transport.write(REQUEST)

    def data_received(self, data):
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if len(body) < length:
            return
        self.load.answered(int(head[9:12]), body)
        self.buffer, self.is_busy = b"", False

    def connection_lost(self, _error):
        if self.is_busy:
            self.load.statuses["lost"] = self.load.statuses.get("lost", 0) + 1
        self.load.drop(self)


class Load:
    """An open loop of requests."""

    def __init__(self, args, ports):
        self.args, self.ports, self.statuses, self.taken, self.asked = args, ports, {}, 0, 0
        self.free = {port: [] for port in ports}

    def answered(self, status, body):
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == 200:
            self.taken += 1 if self.args.kind == "requests" else json.loads(body, strict=False)["usage"]["total_tokens"]

    def drop(self, connection):
        for idle in self.free.values():
            if connection in idle:
                idle.remove(connection)

    async def reaches(self, share):
        while self.taken < share * self.args.limit:
            await asyncio.sleep(0.01)

    async def one(self, port):
        idle = self.free[port]
        connection = next((c for c in reversed(idle) if not c.is_busy), None)
        if connection:
            connection.is_busy = True
            connection.transport.write(REQUEST)
            return
        try:
            _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(self), "127.0.0.1", port)
            idle.append(connection)
        except OSError:
            self.statuses["refused"] = self.statuses.get("refused", 0) + 1

    async def run(self, until):
        begin = time.perf_counter()
        while not until():
            due = int((time.perf_counter() - begin) * self.args.rate)
            while self.asked < due:
                await self.one(self.ports[self.asked % len(self.ports)])
                self.asked += 1
            await asyncio.sleep(0.002)
        self.seconds = time.perf_counter() - begin
        for _ in range(500):
            if not any(c.is_busy for idle in self.free.values() for c in idle):
                break
            await asyncio.sleep(0.02)
        for idle in self.free.values():
            for connection in list(idle):
                connection.transport.close()


async def measure(args, run):
    load = Load(args, run.data)
    changes = [run.lose_broker(load)] if args.kill_broker else []
    changes += [run.restart(load)] if args.restart else []
    changing = asyncio.gather(*changes)
    each = 1 if args.kind == "requests" else 14
    wanted = 1.5 * args.limit / each

    def is_over():
        return load.asked >= wanted and changing.done() and load.statuses.get(429, 0) > 0.2 * args.limit / each

    await load.run(is_over)
    await changing
    return load


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--limit", type=int, default=20000)
    parser.add_argument("--kind", default="requests", choices=("requests", "tokens"))
    parser.add_argument("--broker", default="redis-server")
    parser.add_argument("--kill-broker", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--on-loss", default="open", choices=("open", "closed"))
    parser.add_argument("--restart", choices=("term", "kill"))
    parser.add_argument("--sim", default="--prefill-rate 1000000 --step-ms 2 --max-num-seqs 512", help="arguments of tokenway sim")
    args = parser.parse_args()
    off = []
    for seed in range(1, args.seeds + 1):
        run = Run(args, seed)
        try:
            load = asyncio.run(measure(args, run))
        finally:
            run.end()
        off.append(100 * (load.taken / args.limit - 1))
        print(f"seed {seed}: {load.taken} {args.kind} of {args.limit} ({off[-1]:+.2f} %), {load.asked / load.seconds:.0f} requests/s, "
              f"by status {load.statuses}", flush=True)
    print(f"off by {statistics.mean(off):+.2f} ± {statistics.pstdev(off):.2f} %, largest {max(off, key=abs):+.2f} %")
    sys.exit(max(map(abs, off)) > 2)


main()
