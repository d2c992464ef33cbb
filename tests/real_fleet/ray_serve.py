#!/usr/bin/env python3
"""Puts the gateway in front of a real Ray Serve application, with the profile `ray_serve`.

    python3 -m venv ray && ray/bin/pip install 'ray[serve]'
    ray/bin/python tests/real_fleet/ray_serve.py --gateway target/release/tokenway

Starts Ray on this machine, deploys ray_app.py (two replicas behind Serve's proxy), and shows: health and model list are read, a replica is ready
after a completion of its own, streams and whole answers pass, load is read from Ray's metrics page while requests run, and a request for
another model is Ray's 404. Ends what it started.
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

import ray
from ray import serve

import checks
import stream
import wire


def deploy(port, metrics):
    ray.init(num_cpus=2, include_dashboard=True, _metrics_export_port=metrics, logging_level="ERROR", log_to_driver=False,
             object_store_memory=100 << 20, runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}})
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    import ray_app
    serve.run(ray_app.app, name="words", route_prefix="/")


class Gateway:
    def __init__(self, binary, url, metrics):
        self.data, admin = checks.free_ports(2)
        self.admin, out = f"http://127.0.0.1:{admin}", tempfile.mkdtemp(prefix="tokenway-ray.")
        with open(f"{out}/gateway.toml", "w") as file:
            file.write(f'[server]\nlisten = "127.0.0.1:{self.data}"\n[admin]\nlisten = "127.0.0.1:{admin}"\n[[pool]]\nname = "ray"\n'
                       f'engine = "ray_serve"\nreplicas = ["{url}"]\n[pool.engine_profile]\nmetrics_port = {metrics}\n')
        self.out = out
        self.process = subprocess.Popen([binary, "serve", "--config", f"{out}/gateway.toml"], stderr=open(f"{out}/gateway.log", "w"),
                                        stdout=subprocess.DEVNULL)

    def replica(self):
        return json.loads(wire.get(f"{self.admin}/api/fleet"))["replicas"][0]


def until(what, find, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = find()
        except (OSError, ValueError, KeyError, IndexError):
            found = None
        if found:
            return found
        time.sleep(0.2)
    raise TimeoutError(what)


async def ask(gateway, number, **more):
    body = {"model": "ray-words", "messages": [{"role": "user", "content": f"request {number}"}], "max_tokens": 100, **more}
    return await stream.ask(f"http://127.0.0.1:{gateway.data}", "/v1/chat/completions", body)


async def show(gateway, metrics, keep):
    bad = []

    def said(what, is_good, detail):
        print(f"{'ok  ' if is_good else 'FAIL'} {what}: {detail}")
        bad.extend([] if is_good else [what])

    replica = until("the replica is ready", lambda: (one := gateway.replica())["state"] == "ready" and one)
    said("ready", True, f"{replica.get('models')}, {replica.get('life')}")
    models = json.loads(wire.get(f"http://127.0.0.1:{gateway.data}/v1/models"))
    said("model list", [model["id"] for model in models["data"]] == ["ray-words"], [model["id"] for model in models["data"]])
    one = await ask(gateway, 0, stream=True)
    said("a stream", one.is_complete and one.is_whole and not one.error, f"status {one.status}")
    other = await stream.ask(f"http://127.0.0.1:{gateway.data}", "/v1/chat/completions", {"model": "other", "messages": [], "max_tokens": 1})
    said("another model", other.status == 404, f"status {other.status}")

    # Ray exports its gauges every few seconds: requests run until the page shows them.
    is_over, whole, failed, most = False, 0, [], {}

    async def client(number):
        nonlocal whole
        turn = 0
        while not is_over:
            turn += 1
            answer = await ask(gateway, f"{number} {turn}", stream=True)
            if answer.is_complete and answer.is_whole and not answer.error:
                whole += 1
            else:
                failed.append((answer.status, str(answer.error)[:100]))

    clients = [asyncio.create_task(client(number)) for number in range(24)]
    end = time.monotonic() + 45
    while time.monotonic() < end:
        await asyncio.sleep(0.5)
        engine = gateway.replica().get("signals") or {}
        for key in ("running", "waiting"):
            if engine.get(key) is not None:
                most[key] = max(most.get(key, 0), engine[key])
    if keep:
        with open(keep, "w") as file:
            file.write(wire.get(f"http://127.0.0.1:{metrics}/metrics"))
    is_over = True
    await asyncio.gather(*clients)
    said("load", not failed and whole > 20, f"{whole} whole, {len(failed)} failed {failed[:3]}")
    said("metrics read", most.get("running", 0) > 0 and most.get("waiting", 0) > 0, f"highest {most}, 24 clients at two replicas of eight requests each")
    said("state", gateway.replica()["state"] == "ready", gateway.replica()["state"])
    return not bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--keep-page", help="file for Ray's metrics page under load")
    args = parser.parse_args()
    port, metrics = checks.free_ports(2)
    gateway = None
    try:
        deploy(port, metrics)
        print("ray", ray.__version__)
        gateway = Gateway(args.gateway, f"http://127.0.0.1:{port}", metrics)
        good = asyncio.run(show(gateway, metrics, args.keep_page))
    finally:
        if gateway:
            gateway.process.send_signal(signal.SIGINT)
            gateway.process.wait()
        serve.shutdown()
        ray.shutdown()
    sys.exit(not good)


main()
