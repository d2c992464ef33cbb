#!/usr/bin/env python3
"""Computes prompts at one real engine and decodes them at another (NIXL), and takes either away.

    FLEET_DECODE=2 ../shared/fleet/start-pd.sh     one that prefills, two that decode; its lines give urls and pids
    tests/real_fleet/pd.py --gateway target/release/tokenway --prefill http://127.0.0.1:8701 --pid 101 \\
        --decode http://127.0.0.1:8702 http://127.0.0.1:8703 --decode-pids 102 103

The pids are those of `vllm serve`. It is the end of the prefill engine and of one decoding one. Every text is greedy and was
taken from a decoding engine alone before: whatever happens, the gateway must answer with the same one, whole, on all four paths,
streamed and not. Prints one line for each check and exits with 1 if one failed. --only TEXT runs the checks that have it in
their name; `identity`, `auto` and `transfer` leave all engines alive.
"""
import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error

import checks
import wire
from processes import processes

PATHS = {
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 24},
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 24},
    "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 24},
    "/v1/responses": lambda text: {"input": text, "max_output_tokens": 24, "store": False},
}
# Words of a prompt: about as many tokens, some of them more.
LONG = 900
CONFIG = """[server]
listen = "127.0.0.1:{data}"
[admin]
listen = "127.0.0.1:{admin}"
[telemetry]
access_log = "{out}/access.jsonl"
[slo.pd]
ttft = "20s"
tpot = "400ms"
[[pool]]
name = "prefill"
role = "prefill"
revision = "tiny"
scrape_interval = "1s"
replicas = ["{prefill}"]
[[pool]]
name = "decode"
role = "decode"
revision = "tiny"
scrape_interval = "1s"
replicas = [{decode}]
[pool.ejection]
max_share = 0.8
[[route]]
model = "{model}"
pools = ["decode"]
policy = "latency"
slo = "pd"
[route.timeouts]
first_token = "120s"
[route.prefill]
pool = "prefill"
when = "{when}"
"""


class Gateway:
    """The gateway before the engines."""

    def __init__(self, args, when):
        data, admin = checks.free_ports(2)
        self.prefill, self.decode = args.prefill, args.decode
        self.out = tempfile.mkdtemp(prefix="tokenway-pd.")
        self.url, self.admin = f"http://127.0.0.1:{data}", f"http://127.0.0.1:{admin}"
        decode = ", ".join(f'"{url}"' for url in args.decode)
        text = CONFIG.format(data=data, admin=admin, out=self.out, prefill=args.prefill, decode=decode, model=args.model, when=when)
        with open(f"{self.out}/gateway.toml", "w") as file:
            file.write(text)
        command = [args.gateway, "serve", "--config", f"{self.out}/gateway.toml"]
        self.process = subprocess.Popen(command, stderr=open(f"{self.out}/gateway.log", "w"))

    def __enter__(self):
        alive = sum(answers(url) for url in (self.prefill, *self.decode))
        wait(lambda: self.ready() == alive, f"not all of {alive} engines are ready")
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def ready(self):
        return sum(replica["state"] == "ready" for replica in json.loads(wire.get(f"{self.admin}/api/fleet"))["replicas"])

    def series(self, name):
        """Series of a family with their values."""
        lines = [line.rsplit(" ", 1) for line in wire.get(f"{self.admin}/metrics").splitlines() if line.startswith(name + "{")]
        return {labels: float(value) for labels, value in lines}

    def count(self, name, *parts):
        return sum(value for labels, value in self.series(name).items() if all(part in labels for part in parts))


def answers(url):
    try:
        wire.get(f"{url}/health")
        return True
    except OSError:
        return False


def wait(is_so, what, seconds=60):
    for _ in range(seconds * 5):
        try:
            if is_so():
                return
        except (OSError, urllib.error.URLError, KeyError):
            pass
        time.sleep(0.2)
    sys.exit(what)


def body(args, path, text, stream, tokens=None):
    made = {"model": args.model, "temperature": 0, "stream": stream, **PATHS[path](text)}
    if tokens:
        made |= {"max_tokens": tokens, "ignore_eos": True}
    return made


def text_of(answer):
    """The text of an answer, streamed or not, on any path; and whether it is whole."""
    if b"data: " not in answer.body:
        whole = json.loads(answer.body)
        if "choices" in whole:
            return "".join(choice.get("text") or choice["message"]["content"] or "" for choice in whole["choices"]), True
        parts = whole["content"] if "content" in whole else [part for item in whole["output"] for part in item["content"]]
        return "".join(part["text"] for part in parts), True
    text, is_whole = "", b"data: [DONE]" in answer.body
    for event in answer.events():
        if "error" in event:
            return f"error event: {event['error']}", False
        for choice in event.get("choices", []):
            text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        if event.get("type") == "content_block_delta":
            text += event["delta"].get("text", "")
        if event.get("type") == "response.output_text.delta":
            text += event["delta"]
        is_whole |= event.get("type") in ("message_stop", "response.completed")
    return text, is_whole


def ask(args, url, path, text, stream, tokens=None):
    answer = wire.post(url, path, body(args, path, text, stream, tokens), may_break=True)
    found, is_whole = text_of(answer) if answer.status == 200 else (answer.body.decode(), False)
    return answer, found, is_whole


class Rows:
    def __init__(self):
        self.failed = 0

    def add(self, name, is_ok, detail):
        self.failed += not is_ok
        print(f"{'ok  ' if is_ok else 'FAIL'} {name}: {detail}", flush=True)


def identity(args, rows):
    """Four paths, streamed and not: the text of one engine alone."""
    with Gateway(args, "always") as gateway:
        for path in PATHS:
            for stream in (True, False):
                text = wire.words(LONG, f"identity {path} {stream}")
                _, expected, _ = ask(args, args.decode[-1], path, text, stream)
                apart = gateway.count("tokenway_prefill_requests_total", 'way="apart"')
                answer, found, is_whole = ask(args, gateway.url, path, text, stream)
                went = gateway.count("tokenway_prefill_requests_total", 'way="apart"') - apart
                is_same = found == expected and is_whole and answer.status == 200
                rows.add(f"identity {path} {'stream' if stream else 'unary'}", is_same and went == 1,
                         f"{len(found)} bytes, {'the same' if is_same else f'{found[:80]!r} for {expected[:80]!r}'}, apart {went:g}")
        print("    bytes by the engines:", gateway.series("tokenway_replica_kv_transfer_bytes_total"))


def auto(args, rows):
    """Short prompts stay where they are; documents beside streams go where that costs less, and every text is right."""
    path, documents = "/v1/chat/completions", [wire.words(3 * LONG, f"document {n}") for n in range(6)]
    expected = [ask(args, args.decode[-1], path, text, True)[1] for text in documents]
    with Gateway(args, "auto") as gateway, concurrent.futures.ThreadPoolExecutor(12) as pool:
        for number in range(6):
            ask(args, gateway.url, path, wire.words(20, f"short {number}"), True)
        short = gateway.count("tokenway_prefill_requests_total", 'way="apart"')
        streams = [pool.submit(ask, args, gateway.url, path, wire.words(20, f"chat {n}"), True, 400) for n in range(4)]
        time.sleep(2)
        found = [pool.submit(ask, args, gateway.url, path, text, True) for text in documents]
        same = sum(future.result()[1] == text for future, text in zip(found, expected))
        whole = sum(future.result()[2] for future in streams)
        ways = gateway.series("tokenway_prefill_requests_total")
        rows.add("auto", short == 0 and same == len(documents) and whole == len(streams),
                 f"{same} of {len(documents)} documents the same, {whole} of {len(streams)} chats whole, short ones apart {short:g}; {ways}")


def transfer(args, rows):
    """A lost transfer: the object names an engine that is not there. The decoding engine finds out after some seconds."""
    with Gateway(args, "always") as gateway:
        path, text = "/v1/chat/completions", wire.words(LONG, "lost")
        _, expected, _ = ask(args, args.decode[-1], path, text, True)
        ask(args, gateway.url, path, wire.words(LONG, "before"), True)
        # Frozen after its answer: the handshake is done, and its KV is served no more.
        frozen = [pid for pid, name in processes(args.pid).items() if "EngineC" in name or "Worker" in name]
        def freeze():
            for is_so in (True, False):
                while asked(gateway) != is_so:
                    time.sleep(0.01)
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)

        freezing = threading.Thread(target=freeze)
        freezing.start()
        started = time.monotonic()
        answer, found, is_whole = ask(args, gateway.url, path, text, True)
        freezing.join()
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        worked, failed = (gateway.count("tokenway_kv_transfers_total", f'result="{result}"') for result in ("worked", "failed"))
        ways = gateway.series("tokenway_prefill_requests_total")
        rows.add("transfer lost", found == expected and is_whole and answer.status == 200,
                 f"the text after {time.monotonic() - started:.1f} s, transfers {worked:g} worked, {failed:g} failed; {ways}")


def asked(gateway):
    """Whether a request is at a prefill replica."""
    return gateway.count("tokenway_replica_inflight", 'pool="prefill"') > 0


def decode_killed(args, rows):
    """The decoding engine dies in the middle of its answers: the other one has both legs anew, or the stream ends with an error."""
    path = "/v1/chat/completions"
    with Gateway(args, "always") as gateway, concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = [wire.words(LONG, f"killed {n}") for n in range(4)]
        expected = [ask(args, args.decode[-1], path, text, True, 200)[1] for text in texts]
        found = [pool.submit(ask, args, gateway.url, path, text, True, 200) for text in texts]
        victim = args.decode[0].removeprefix("http://")
        wait(lambda: gateway.count("tokenway_replica_inflight", victim) > 0, "nothing went to the first decoding engine", 60)
        time.sleep(1)
        kill(args.decode_pids[0])
        results = [future.result() for future in found]
        same = sum(text == one and is_whole for (_, text, is_whole), one in zip(results, expected))
        # What had begun breaks off where it was: a prefix of the text, with an error event, and never another text.
        broken = sum(not is_whole for _, _, is_whole in results)
        rows.add("decode engine killed", same + broken == len(texts) and same > 0, f"{same} whole and the same, {broken} ended with an error event")
        _, again, is_whole = ask(args, gateway.url, path, texts[0], True, 200)
        rows.add("after it", again == expected[0] and is_whole, f"{gateway.series('tokenway_prefill_requests_total')}")


def prefill_killed(args, rows):
    """The prefill engine dies while it computes: the decoding one does it, and the route works on without it."""
    path, text = "/v1/chat/completions", wire.words(3 * LONG, "prefill killed")
    decode = args.decode[-1]
    _, expected, is_whole = ask(args, decode, path, text, True)
    rows.add("the engine alone", is_whole, f"{len(expected)} bytes")
    with Gateway(args, "always") as gateway, concurrent.futures.ThreadPoolExecutor(1) as pool:
        ask(args, gateway.url, path, wire.words(LONG, "warm"), True)
        found = pool.submit(ask, args, gateway.url, path, text, True)
        # Its prompt is computed in seconds.
        while not found.done() and not asked(gateway):
            time.sleep(0.02)
        if found.done():
            rows.add("prefill engine killed", False, f"no prefill began: {found.result()[1][:300]!r}, {gateway.series('tokenway_prefill_requests_total')}")
            return
        kill(args.pid)
        answer, first, is_whole = found.result()
        is_same = first == expected and is_whole and answer.status == 200
        rows.add("prefill engine killed", is_same, f"{len(first)} bytes{'' if is_same else f', {first[:300]!r} for {expected[:80]!r}'}")
        answer, again, is_whole = ask(args, gateway.url, path, text, True)
        is_same, ways = again == expected and is_whole, gateway.series("tokenway_prefill_requests_total")
        rows.add("without a prefill engine", is_same, f"{ways}{'' if is_same else f', {again[:300]!r}'}")


def kill(pid):
    for child in [*processes(pid), pid]:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass


def starter_of(pid):
    """start-pd.sh, which ends all of them as soon as one has died: it is stopped meanwhile, and goes on afterwards."""
    try:
        parent = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
        return parent if "start-pd" in open(f"/proc/{parent}/cmdline").read() else None
    except (OSError, TypeError):
        return None


CHECKS = {"identity": identity, "auto": auto, "transfer": transfer, "decode": decode_killed, "prefill": prefill_killed}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--prefill", required=True, help="url")
    parser.add_argument("--pid", type=int, help="of the prefill engine")
    parser.add_argument("--decode", nargs="+", required=True, help="urls; the last one is asked for the texts, and lives")
    parser.add_argument("--decode-pids", nargs="*", type=int, default=[])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    rows, starter = Rows(), starter_of(args.pid)
    for name, check in CHECKS.items():
        if args.only not in name or (name == "decode" and len(args.decode) < 2) or (name in ("transfer", "prefill") and not args.pid):
            continue
        if starter and name in ("decode", "prefill"):
            os.kill(starter, signal.SIGSTOP)
        try:
            check(args, rows)
        finally:
            if starter:
                os.kill(starter, signal.SIGCONT)
    sys.exit(rows.failed > 0)


if __name__ == "__main__":
    main()
