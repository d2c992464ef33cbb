#!/usr/bin/env python3
"""TTFT and ITL as the gateway tells them beside those of three independent stopwatches, in one run on real replicas.

    PYTHON tests/real_fleet/stopwatches.py --gateway target/release/tokenway --tokenizer MODEL_DIR http://127.0.0.1:8001 …

PYTHON is an interpreter with the packages openai and vllm. The stopwatches are the kernel (arrival times of a bare socket,
SO_TIMESTAMPNS: no client's time is in them), the OpenAI SDK and `vllm bench serve`. One gateway serves them one after another, each by a
route of its own, so that /api/latency has a series for each. What the kernel's stopwatch saw is compared request by request too.
"""
import argparse
import datetime
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import checks
import wire
from stream import Stream, percentile, unchunked

SO_TIMESTAMPNS = 35
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Seen:
    """What a stopwatch noted: one TTFT per request, all gaps, and pairs with the gateway's own TTFT of the same request."""

    def __init__(self):
        self.ttft, self.gaps, self.by_id = [], [], {}


def prompt(name, number, words):
    return [{"role": "user", "content": wire.words(words, f"{name}-{number}")}]


def body(name, number, args):
    return {"model": name, "messages": prompt(name, number, args.words), "max_tokens": args.output, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}}


def kernel(name, gateway, args):
    """A socket without a client library: the request in one write, each arrival as the kernel dated it."""
    seen, lock = Seen(), threading.Lock()
    host, port = gateway.removeprefix("http://").split(":")

    def one(number):
        data = json.dumps(body(name, number, args) | {"ignore_eos": True}).encode()
        request_id = f"stopwatch-{uuid.uuid4().hex[:12]}"
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\nconnection: close\r\n"
                f"x-request-id: {request_id}\r\ncontent-length: {len(data)}\r\n\r\n").encode()
        answer, raw, rest = Stream(), b"", b""
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            sent = time.time_ns()
            connection.sendall(head + data)
            in_head = True
            while True:
                piece, extra, _, _ = connection.recvmsg(65536, 64)
                now = time.time_ns()
                if not piece:
                    break
                for level, kind, value in extra:
                    if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                        seconds, nanos = struct.unpack("qq", value)
                        now = seconds * 10**9 + nanos
                raw += piece
                if in_head:
                    if b"\r\n\r\n" not in raw:
                        continue
                    raw, in_head = raw.split(b"\r\n\r\n", 1)[1], False
                events, raw = unchunked(raw)
                *lines, rest = (rest + events).split(b"\n")
                for line in lines:
                    answer.take(line, (now - sent) / 1e9)
        assert answer.is_complete and answer.stamps, answer.error
        with lock:
            seen.ttft.append(answer.ttft)
            seen.gaps += answer.gaps
            seen.by_id[request_id] = answer.ttft, sent / 1e9

    with ThreadPoolExecutor(args.concurrency) as pool:
        list(pool.map(one, range(args.requests)))
    return seen


def sdk(name, gateway, args):
    """The OpenAI SDK, synchronous: from the call to the first chunk with content, gaps of chunks with content."""
    import openai
    seen, lock = Seen(), threading.Lock()
    client = openai.OpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0)

    def one(number):
        stamps, start = [], time.perf_counter()
        for chunk in client.chat.completions.create(**body(name, number, args), extra_body={"ignore_eos": True}):
            if chunk.choices and chunk.choices[0].delta.content:
                stamps.append(time.perf_counter() - start)
        with lock:
            seen.ttft.append(stamps[0])
            seen.gaps += [b - a for a, b in zip(stamps, stamps[1:])]

    with ThreadPoolExecutor(args.concurrency) as pool:
        list(pool.map(one, range(args.requests)))
    return seen


def bench(name, gateway, args):
    """`vllm bench serve`: its own TTFT and gaps as it saves them. The first gap of each request is that from the role-only chunk to
    the first content, which is no gap between tokens: `bench, first gap left out` has the rest."""
    vllm = pathlib.Path(sys.executable).with_name("vllm")
    saved = args.out / "bench.json"
    done = subprocess.run(
        [vllm, "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", gateway, "--model", name,
         "--tokenizer", args.tokenizer, "--dataset-name", "random", "--random-input-len", str(2 * args.words), "--random-output-len",
         str(args.output), "--num-prompts", str(args.requests), "--max-concurrency", str(args.concurrency), "--ignore-eos",
         "--ready-check-timeout-sec", "0", "--save-result", "--save-detailed", "--result-dir", args.out, "--result-filename", saved.name],
        stdout=open(args.out / "bench.log", "w"), stderr=subprocess.STDOUT, env=os.environ | {"VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        sys.exit(f"vllm bench serve failed; its log is {args.out}/bench.log")
    result, seen = json.loads(saved.read_text()), Seen()
    seen.ttft = result["ttfts"]
    seen.gaps = [gap for gaps in result["itls"] for gap in gaps]
    seen.without_first = [gap for gaps in result["itls"] for gap in gaps[1:]]
    return seen


def serve(args):
    data, admin = checks.free_ports(2)
    config = args.out / "gateway.toml"
    routes = "".join(f'[[route]]\nname = "{name}"\nmodel = "{name}"\nupstream_model = "{args.model}"\nslo = "standard"\n' for name in STOPWATCHES)
    config.write_text(f'[server]\nlisten = "127.0.0.1:{data}"\n[admin]\nlisten = "127.0.0.1:{admin}"\n[telemetry]\naccess_log = "{args.out}/access.jsonl"\n'
                      f'[[pool]]\nname = "fleet"\nreplicas = {json.dumps(args.replicas)}\n{routes}')
    process = subprocess.Popen([args.gateway, "serve", "--config", config], stderr=open(args.out / "gateway.log", "w"), stdout=subprocess.DEVNULL)
    for _ in range(300):
        try:
            wire.get(f"http://127.0.0.1:{admin}/readyz")
            return process, f"http://127.0.0.1:{data}", f"http://127.0.0.1:{admin}"
        except OSError:
            time.sleep(0.2)
    process.kill()
    sys.exit("the gateway is not ready")


def row(stopwatch, figure, theirs, ours):
    """One line of the table: each percentile of both, and whether the difference is within 1 ms or 2 %."""
    cells = []
    for label, share in SHARES.items():
        a, b = percentile(theirs, share), ours[label]
        mark = "" if abs(a - b) <= max(0.001, 0.02 * a) else " !"
        cells.append(f"{1e3 * a:.2f} / {1e3 * b:.2f} ({1e3 * (b - a):+.2f}){mark}")
    print(f"| {stopwatch} | {figure} | {len(theirs)} / {ours['count']} | {' | '.join(cells)} |", flush=True)


def compare(name, seen, admin):
    time.sleep(1.5)  # Gaps are merged at least once a second.
    series = json.loads(wire.get(admin + "/api/latency?window=5m"))["series"]
    ours = next(s for s in series if s["route"] == name)
    row(name, "TTFT", seen.ttft, ours["ttft"])
    row(name, "ITL", seen.gaps, ours["itl"])
    if hasattr(seen, "without_first"):
        row(f"{name}, first gap left out", "ITL", seen.without_first, ours["itl"])
    return {"theirs": {"ttft": seen.ttft, "gaps": seen.gaps}, "ours": ours}


def one_by_one(seen, access):
    ours = {r["request_id"]: r for r in map(json.loads, open(access)) if "tokenway.ttft" in r}
    pairs = [(theirs, sent, ours[i]) for i, (theirs, sent) in seen.by_id.items() if i in ours]
    # From the client's write to the parsed head: accepting the connection and waiting for a core. Nobody behind the socket can see it.
    before = [1e3 * (datetime.datetime.fromisoformat(r["time"]).timestamp() - sent) for _, sent, r in pairs]
    all_of_it = [1e3 * (theirs - r["tokenway.ttft"]) for theirs, _, r in pairs]
    after = [whole - part for whole, part in zip(all_of_it, before)]
    show = lambda values: ", ".join(f"p{100 * share:.0f} {percentile(values, share):.3f}" for share in (0.01, 0.5, 0.9, 0.99)) + f", max {max(values):.3f}"
    print(f"\nTTFT of the kernel less the gateway's, request by request, ms: n {len(pairs)}, {show(all_of_it)}\n"
          f"of which before the gateway had the head: {show(before)}\nthe rest: {show(after)}")


STOPWATCHES = {"kernel": kernel, "sdk": sdk, "bench": bench}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replicas", nargs="+")
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--model", default="tiny", help="as the replicas call it")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=3)
    parser.add_argument("--words", type=int, default=100, help="words of a prompt")
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--only", default=",".join(STOPWATCHES))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(tempfile.mkdtemp(prefix="tokenway-stopwatches.")))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    process, gateway, admin = serve(args)
    try:
        print("| stopwatch | figure | n, its / ours | p50, its / ours, ms | p90 | p99 |\n|---|---|---|---|---|---|")
        found = {}
        for name in args.only.split(","):
            seen = STOPWATCHES[name](name, gateway, args)
            found[name] = compare(name, seen, admin)
            if seen.by_id:
                by_id = seen
        if "kernel" in found:
            one_by_one(by_id, args.out / "access.jsonl")
        (args.out / "stopwatches.json").write_text(json.dumps(found))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


main()
