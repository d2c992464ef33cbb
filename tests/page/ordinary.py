"""What a fleet lives through while nothing is wrong: nights and weekends, a busy noon, reloads, deploys, gateways that are replaced."""

import asyncio
import signal

from engine import Engine
from fleet import free_ports, read, start

# Seconds that each part of a day has at least, and after which a load balancer has seen that a gateway is not ready.
PART = 240
NOTICED = 2


async def days(setup, part=PART):
    """Day after day until it is cancelled; `setup.day` says what goes on, for whoever asks what was said then."""
    usual = setup.rate
    while True:
        for name, rate, change in (("night", 0.1, None), ("morning", 1.0, None), ("reload", 1.0, reload), ("noon", 1.7, None), ("deploy", 1.0, deploy),
                                   ("gateways replaced", 1.0, replace), ("weekend", 0.3, None), ("reload at night", 0.1, reload)):
            setup.day, setup.rate = name, usual * rate
            rest = asyncio.create_task(asyncio.sleep(part))
            if change:
                await change(setup)
            await rest


async def reload(setup):
    """Another bound of a route, as an edit by hand would have it, and back after a minute."""
    for bound in ("820ms", "800ms"):
        for n, process in enumerate(setup.processes):
            with open(setup.file(n), encoding="utf-8") as file:
                text = file.read()
            other = "820ms" if bound == "800ms" else "800ms"
            with open(setup.file(n), "w", encoding="utf-8") as file:
                file.write(text.replace(f'base = "{other}"', f'base = "{bound}"'))
            process.send_signal(signal.SIGHUP)
        await asyncio.sleep(60)


async def deploy(setup):
    """A rolling deploy, as Kubernetes makes it: a new replica at a new address is listed, an old one leaves the list and ends when it is idle."""
    for at, old in enumerate(list(setup.engines)):
        new = Engine(free_ports(1)[0])
        await new.start()
        setup.engines[at] = new
        setup.source([engine.port for engine in (*setup.engines, old)])
        await ready(setup, 4)
        setup.source([engine.port for engine in setup.engines])
        await asyncio.sleep(30)
        old.die()


async def replace(setup):
    """Each gateway drains and is started again; a load balancer sends its clients to the next one meanwhile."""
    for n, process in enumerate(setup.processes):
        process.terminate()
        await asyncio.sleep(NOTICED)
        setup.away = setup.data[n]
        await asyncio.to_thread(process.wait)
        setup.processes[n] = start(setup.binary, "serve", "--config", setup.file(n))
        await ready(setup, 3)
        setup.away = None


async def ready(setup, count, limit=60):
    for _ in range(limit * 2):
        found = [await asyncio.to_thread(read, admin, "slo") for admin in setup.admin]
        if all(slo and slo["replicas"]["ready"] >= count for slo in found):
            return
        await asyncio.sleep(0.5)
