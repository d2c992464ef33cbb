#!/usr/bin/env python3
"""Two tenants who do not trust each other in front of real replicas: what one of them says, names or sends reaches nobody else.

    tests/real_fleet/tenants.py --gateway target/release/tokenway http://127.0.0.1:8001 http://127.0.0.1:8002

Start the replicas with VLLM_ENABLE_RESPONSES_API_STORE=1. Prints one line a check and exits 1 when one fails. After each check all
replicas must still be ready. Ends only the gateway that it started.
"""
import argparse
import hashlib
import http.client
import json
import subprocess
import sys
import tempfile
import time

import checks
import wire

CONFIG = """
[server]
listen = "127.0.0.1:{data}"
[admin]
listen = "127.0.0.1:{admin}"
[[pool]]
name = "engines"
replicas = [{replicas}]
[[route]]
name = "chat"
model = "{model}"
pools = ["engines"]
[[tenant]]
name = "a"
key_sha256 = ["{a}"]
limits = {{ tokens_per_minute = 200000 }}
[[tenant]]
name = "b"
key_sha256 = ["{b}"]
"""


class Tenant:
    def __init__(self, args, port, name):
        self.model, self.port, self.key = args.model, port, f"key-of-tenant-{name}"

    def ask(self, method, path, body=None, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = None if body is None else json.dumps({"model": self.model, **body})
            connection.request(method, path, data, {"content-type": "application/json", "authorization": f"Bearer {self.key}", **dict(headers)})
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def leave_after_first_event(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, json.dumps({"model": self.model, **body}),
                           {"content-type": "application/json", "authorization": f"Bearer {self.key}"})
        response = connection.getresponse()
        response.read1(4096)
        connection.close()
        return response.status


def words_of_a_client(a, b):
    """An answer that echoes what a client wrote is a good answer, and an error that quotes it is that client's."""
    function = {"type": "function", "name": "f", "description": '"finish_reason":"abort"', "parameters": {"type": "object", "properties": {}}}
    bodies = [
        ("/v1/responses", {"input": "hi", "max_output_tokens": 8, "metadata": {"finish_reason": "abort"}}, 200),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 8, "tools": [function]}, 200),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4,
                                  "structured_outputs": {"grammar": "EngineDeadError: the pool is draining, shutting down"}}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stream": True,
                                  "structured_outputs": {"grammar": "EngineDeadError: the pool is draining, shutting down"}}, 200),
    ]
    for _ in range(4):
        for path, body, wanted in bodies:
            status, text = b.ask("POST", path, body)
            # A stream's head is the engine's 200; the error is an event in the engine's own words.
            is_good = status == wanted and (not body.get("stream") or '"code": 400' in text or '"code":400' in text)
            yield is_good, f"{path} {status} {'' if is_good else text[:120]}"


def a_chosen_response_id(a, b):
    """Whatever id one tenant chooses, the stored answer of another stays its own."""
    secret = f"secret-{time.time_ns()}"
    status, text = a.ask("POST", "/v1/responses", {"input": secret, "store": True, "max_output_tokens": 8})
    stored = json.loads(text)["id"]
    yield status == 200, f"a stores {stored}: {status}"
    for chosen in (stored, stored.removeprefix("resp_")):
        b.leave_after_first_event("/v1/responses", {"input": "x", "store": True, "stream": True, "request_id": chosen, "max_output_tokens": 8})
        b.ask("POST", "/v1/responses", {"input": "x", "store": True, "request_id": chosen, "max_output_tokens": 8})
        b.ask("POST", "/v1/responses", {"input": "x", "store": True, "max_output_tokens": 8}, [("x-request-id", chosen)])
    status, text = b.ask("GET", f"/v1/responses/{stored}")
    yield status == 404, f"b reads it: {status} {text[:80]}"
    status, text = b.ask("POST", "/v1/responses", {"input": "go on", "previous_response_id": stored, "max_output_tokens": 8})
    yield status == 404, f"b continues it: {status} {text[:80]}"
    status, text = b.ask("POST", f"/v1/responses/{stored}/cancel")
    yield status == 404, f"b cancels it: {status} {text[:80]}"
    status, text = a.ask("GET", f"/v1/responses/{stored}")
    yield status == 200 and json.loads(text)["id"] == stored, f"a reads it: {status} {text[:80]}"
    status, _ = a.ask("POST", "/v1/responses", {"input": "go on", "previous_response_id": stored, "max_output_tokens": 8})
    yield status == 200, f"a continues it: {status}"


def scripts_of_others(a, b):
    """What one tenant writes in does not change how another's prompt is counted."""
    for n in range(60):
        b.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": f"{n} " + "\U0001f600\U0001f680" * 40}], "max_tokens": 1})
    status, text = a.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": wire.words(600, "english")}], "max_tokens": 1})
    yield status == 200, f"an English prompt: {status} {text[:160] if status != 200 else ''}"


def trust_in_heads(a, b):
    """Requests that two parsers could read differently are refused."""
    status, text = b.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}, [("x-api-key", a.key)])
    yield status in (200, 401), f"two keys: {status}"
    connection = http.client.HTTPConnection("127.0.0.1", a.port, timeout=30)
    text = json.dumps({"model": a.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    # A byte order mark is not sent on: the engine reads the same as the gateway.
    for encoding, due in (("utf-8-sig", 200), ("utf-16", 400)):
        connection.request("POST", "/v1/chat/completions", text.encode(encoding), {"content-type": "application/json", "authorization": f"Bearer {b.key}"})
        response = connection.getresponse()
        answer = response.read()
        yield response.status == due, f"body in {encoding}: {response.status} {answer[:80]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replicas", nargs="+")
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--model", default="tiny")
    args = parser.parse_args()
    data, admin = checks.free_ports(2)
    out = tempfile.mkdtemp(prefix="tokenway-tenants.")
    with open(f"{out}/gateway.toml", "w") as file:
        keys = {name: hashlib.sha256(f"key-of-tenant-{name}".encode()).hexdigest() for name in "ab"}
        replicas = ", ".join(f'"{url}"' for url in args.replicas)
        file.write(CONFIG.format(data=data, admin=admin, model=args.model, replicas=replicas, **keys))
    process = subprocess.Popen([args.gateway, "serve", "--config", f"{out}/gateway.toml"],
                               stdout=open(f"{out}/access.jsonl", "w"), stderr=open(f"{out}/gateway.log", "w"))

    def ready():
        return sum(replica["state"] == "ready" for replica in json.loads(wire.get(f"http://127.0.0.1:{admin}/api/fleet"))["replicas"])

    good = True
    try:
        for _ in range(300):
            try:
                if ready() == len(args.replicas):
                    break
            except OSError:
                pass
            time.sleep(0.2)
        a, b = Tenant(args, data, "a"), Tenant(args, data, "b")
        for check in (words_of_a_client, a_chosen_response_id, scripts_of_others, trust_in_heads):
            print(f"{check.__name__.replace('_', ' ')}: {check.__doc__}")
            for is_good, detail in check(a, b):
                good &= is_good
                print(f"  {'ok  ' if is_good else 'FAIL'} {detail}", flush=True)
            left = ready()
            good &= left == len(args.replicas)
            print(f"  {'ok  ' if left == len(args.replicas) else 'FAIL'} {left} of {len(args.replicas)} ready", flush=True)
    finally:
        process.terminate()
        process.wait(60)
        print(f"logs in {out}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
