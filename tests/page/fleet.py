"""Simulated replicas, gateways before them and traffic, on free loopback ports; what an incident does to them."""

import asyncio
import hashlib
import json
import pathlib
import random
import signal
import subprocess
import sys
import time
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_ports

TOKENS = {"short": 200, "long": 6000}
TENANTS = ("acme", "flood")


def start(binary, *arguments):
    return subprocess.Popen([binary, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Fleet:
    """Replicas r1, r2, … and gateways; the last replica may be a canary that joins later."""

    def __init__(self, binary, folder, incident, gateways):
        self.binary, self.folder, self.incident = binary, folder, incident
        self.ports = free_ports(len(incident.replicas))
        self.data, self.admin = free_ports(gateways), free_ports(gateways)
        self.has_canary = False
        self.replicas = [self.replica(n, options) for n, options in enumerate(incident.replicas)]
        self.gateways = []

    def replica(self, n, options):
        flags = [x for key, value in options.items() for x in (f"--{key}", value)]
        return start(self.binary, "sim", "--replicas", 1, "--port", self.ports[n], *flags)

    def file(self, gateway):
        return f"{self.folder}/gateway-{gateway + 1}.toml"

    def write(self):
        for gateway in range(len(self.data)):
            with open(self.file(gateway), "w", encoding="utf-8") as file:
                file.write(self.config(gateway))

    def config(self, gateway):
        listed = [f'{{ name = "r{n + 1}", url = "http://127.0.0.1:{port}" }}' for n, port in enumerate(self.ports)]
        pools = {"v1": listed}
        if self.incident.canary:
            pools = {"v1": listed[:-1], "v2": listed[-1:]} if self.has_canary else {"v1": listed[:-1]}
        text = f'[server]\nlisten = "127.0.0.1:{self.data[gateway]}"\n[admin]\nlisten = "127.0.0.1:{self.admin[gateway]}"\n'
        text += '[telemetry]\naccess_log = "off"\n[drift]\nstate = false\n[slo.interactive]\nttft = { base = "1s" }\ntpot = "80ms"\n'
        for revision, replicas in pools.items():
            text += f'[[pool]]\nname = "{revision}"\nrevision = "{revision}"\nscrape_interval = "500ms"\nreplicas = [{", ".join(replicas)}]\n'
        used = ", ".join(f'{{ name = "{name}", weight = {3 if name == "v1" else 1} }}' for name in pools)
        text += f'[[route]]\nname = "chat"\nmodel = "sim"\nslo = "interactive"\npools = [{used}]\n{self.incident.route}\n'
        for tenant in TENANTS:
            digest = hashlib.sha256(f"key-{tenant}".encode()).hexdigest()
            text += f'[[tenant]]\nname = "{tenant}"\nkey_sha256 = ["{digest}"]\n'
        return text

    def start_gateways(self):
        self.write()
        self.gateways = [start(self.binary, "serve", "--config", self.file(n)) for n in range(len(self.data))]

    async def restart_gateways(self):
        """All of them at once, without any drain: the worst moment to be asked."""
        for gateway in self.gateways:
            gateway.kill()
            gateway.wait()
        self.start_gateways()
        await asyncio.sleep(1)

    async def ready(self, limit=30):
        """Until every gateway has every replica ready."""
        until, n = time.monotonic() + limit, len(self.ports) - (self.incident.canary and not self.has_canary)
        while time.monotonic() < until:
            found = [await asyncio.to_thread(read, admin, "slo") for admin in self.admin]
            if all(slo and slo["replicas"]["ready"] == n for slo in found):
                return True
            await asyncio.sleep(0.5)
        return False

    async def stop(self):
        for process in [*self.replicas, *self.gateways]:
            process.kill()
            process.wait()

    # What goes wrong.

    def fault(self, n, kind, **more):
        """A fault of the simulated engine of replica `n`; its process goes on."""
        body = json.dumps({"kind": kind, **more}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[n]}/sim/fault", body, {"content-type": "application/json"})
        urllib.request.urlopen(request, timeout=5).close()

    def crash(self, n):
        self.replicas[n].kill()

    def deploy_canary(self):
        self.has_canary = True
        self.write()
        for gateway in self.gateways:
            gateway.send_signal(signal.SIGHUP)


def read(admin, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/api/v1/{path}", timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return None


class Traffic:
    """Streams of two tenants, spread over the gateways; `load` is changed while it runs."""

    def __init__(self, ports, load):
        self.ports, self.load, self.running, self.task = ports, dict(load), set(), None

    def start(self):
        self.task = asyncio.create_task(self.send_all())

    async def send_all(self):
        n = 0
        while True:
            n += 1
            if len(self.running) < MAX_RUNNING:
                task = asyncio.create_task(self.send(self.ports[n % len(self.ports)]))
                self.running.add(task)
                task.add_done_callback(self.running.discard)
            await asyncio.sleep(random.expovariate(self.load["rate"]))

    async def send(self, port):
        tokens = TOKENS["long" if random.random() < self.load["long"] else "short"]
        tenant = "flood" if random.random() < self.load["flood"] else "acme"
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

    async def stop(self):
        all_of_it = [self.task, *self.running]
        for task in all_of_it:
            task.cancel()
        await asyncio.gather(*all_of_it, return_exceptions=True)


MAX_RUNNING = 400
