#!/usr/bin/env python3
"""Sends the gateway's spans to receivers that others wrote, and an engine's spans through the gateway.

    python3 tests/real_fleet/receivers.py --gateway target/release/tokenway [--only rotel-http,rotel-grpc,links,mlflow]
    python3 tests/real_fleet/receivers.py --gateway … --engine http://127.0.0.1:8001 --spans 4319

Needs, in the interpreter's environment, the packages rotel (an OpenTelemetry agent), mlflow, opentelemetry-sdk,
opentelemetry-proto and opentelemetry-exporter-otlp-proto-grpc; what is missing is skipped, and the table says so. The engine
here is a stand-in that answers like vLLM and exports the span that vLLM exports, with the exporter that vLLM uses. A real vLLM
that serves the name `tiny` takes its place with --engine; start it with --otlp-traces-endpoint http://127.0.0.1:4319.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from checks import free_ports

HERE = pathlib.Path(__file__).resolve().parent
REQUESTS = 5
ROWS = []
ENGINE = {}  # of a real one: its url, and the port to which it exports its spans


def row(check, verdict, detail=""):
    ROWS.append((check, verdict, detail))


def wait_for(what, holds, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            value = holds()
            if value:
                return value
        except OSError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"{what}: not within {seconds} s")


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


class Engine(BaseHTTPRequestHandler):
    """Answers like vLLM; after each answer a span `llm_request` goes out below the caller's."""

    protocol_version = "HTTP/1.1"
    tracer = None

    def do_GET(self):
        body = {"/v1/models": b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'}.get(self.path, b"")
        self.answer("application/json" if body else "text/plain", body)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        queue, prefill, gap = 0.05, 0.1, 0.01
        time.sleep(queue + prefill)
        usage = {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17}
        if asked.get("stream"):
            texts = [{"choices": [{"index": 0, "delta": {"content": f"w{n} "}, "finish_reason": None}]} for n in range(8)]
            texts[-1]["choices"][0]["finish_reason"] = "length"
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for chunk in [*texts, {"choices": [], "usage": usage}, None]:
                event = b"data: " + (b"[DONE]" if chunk is None else json.dumps({"id": "c-1", "model": "tiny"} | chunk).encode()) + b"\n\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.flush()
                time.sleep(gap)
            self.wfile.write(b"0\r\n\r\n")
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": "w"}, "finish_reason": "length"}
            self.answer("application/json", json.dumps({"id": "c-1", "model": "tiny", "choices": [choice], "usage": usage}).encode())
        self.export({"time_in_queue": queue, "time_in_model_prefill": prefill, "time_to_first_token": queue + prefill + 0.005})

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def export(self, seconds):
        found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01", self.headers.get("traceparent", ""))
        if not found or self.tracer is None:
            return
        from opentelemetry import trace
        parent = trace.SpanContext(int(found[1], 16), int(found[2], 16), True, trace.TraceFlags(1))
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        with self.tracer.start_as_current_span("llm_request", context=context, kind=trace.SpanKind.SERVER) as span:
            for key, value in seconds.items():
                span.set_attribute(f"gen_ai.latency.{key}", value)

    def log_message(self, *_):
        pass


def start_engine(port, spans_port):
    if importlib.util.find_spec("opentelemetry.exporter.otlp.proto.grpc"):
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        provider = TracerProvider()
        exporter = OTLPSpanExporter(endpoint=f"http://127.0.0.1:{spans_port}", insecure=True)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
        Engine.tracer = provider.get_tracer("stand-in")
    server = ThreadingHTTPServer(("127.0.0.1", port), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Run:
    """One gateway in front of the engine, exporting to one receiver."""

    def __init__(self, binary, name, otlp, directory):
        self.name = name
        self.data, self.admin, self.spans, engine = free_ports(4)
        self.engine, self.server = ENGINE.get("url", f"http://127.0.0.1:{engine}"), None
        if ENGINE:
            self.spans = ENGINE["spans"]
        else:
            self.server = start_engine(engine, self.spans)
        self.directory = directory
        config = directory / f"{name}.toml"
        config.write_text(f"""
[server]
listen = "127.0.0.1:{self.data}"
[admin]
listen = "127.0.0.1:{self.admin}"
[[pool]]
name = "stand-in"
replicas = ["{self.engine}"]
[[route]]
model = "tiny"
[telemetry]
access_log = "{directory}/{name}-access.jsonl"
[telemetry.engine_spans]
listen = "127.0.0.1:{self.spans}"
[telemetry.sampling]
routine = 1.0
{otlp}
""")
        log = open(directory / f"{name}-gateway.log", "w")
        self.process = subprocess.Popen([binary, "serve", "--config", str(config)], stderr=log, stdout=log)

    def ask(self):
        wait_for("the gateway is ready", lambda: get(f"http://127.0.0.1:{self.admin}/readyz"))
        ask = {"model": "tiny", "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": "hi " * 200}]}
        body = json.dumps(ask).encode()
        for _ in range(REQUESTS):
            url = f"http://127.0.0.1:{self.data}/v1/chat/completions"
            ask = urllib.request.Request(url, body, {"content-type": "application/json"})
            with urllib.request.urlopen(ask, timeout=30) as answer:
                assert b"[DONE]" in answer.read()
        return wait_for("the engine's spans are joined", lambda: self.metric('tokenway_engine_spans_total{result="joined"}') >= REQUESTS, 30)

    def metric(self, series):
        page = get(f"http://127.0.0.1:{self.admin}/metrics").decode()
        return next((float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(series + " ")), 0.0)

    def dropped(self):
        return sum(self.metric(f'tokenway_spans_dropped_total{{reason="{r}"}}') for r in ("queue_full", "export_failed"))

    def stop(self):
        self.process.send_signal(2)
        self.process.wait(timeout=30)
        if self.server:
            self.server.shutdown()

    def measured(self):
        """Mean milliseconds of the stages that the engine's spans told. (The access log does not wait for spans.)"""
        page = get(f"http://127.0.0.1:{self.admin}/metrics").decode()
        total = lambda part, stage: sum(
            float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
            if line.startswith(f"tokenway_stage_duration_seconds_{part}{{") and f'stage="{stage}"' in line and 'source="measured"' in line)
        stages = ("engine_queue", "prefill", "engine_other")
        return {stage: round(1e3 * total("sum", stage) / total("count", stage), 2) for stage in stages if total("count", stage)}


def rotel(binary, protocol, directory):
    """Gateway -> rotel -> a sink that decodes what arrives."""
    name = f"rotel-{protocol}"
    agent = next(iter(pathlib.Path(importlib.util.find_spec("rotel").origin).parent.glob("rotel-agent")))
    grpc, http, sink = free_ports(3)
    out = directory / f"{name}.jsonl"
    started = [
        subprocess.Popen([sys.executable, HERE / "otlp_sink.py", "--port", str(sink), "--out", str(out)]),
        subprocess.Popen(
            [agent, "start", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--otlp-http-endpoint", f"127.0.0.1:{http}",
             "--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", f"http://127.0.0.1:{sink}"],
            stdout=open(directory / f"{name}-agent.log", "w"), stderr=subprocess.STDOUT),
    ]
    port = grpc if protocol == "grpc" else http
    otlp = f'[telemetry.otlp]\nendpoint = "http://127.0.0.1:{port}"\nprotocol = "{protocol}"\nmetrics = true\nmetrics_interval = "1s"\n'
    run = Run(binary, name, otlp, directory)
    try:
        run.ask()
        traces = lambda: {t for line in out.read_text().splitlines() for t in json.loads(line)["traces"]}
        names = lambda: {n for line in out.read_text().splitlines() for n in json.loads(line)["names"]}
        want = {"tokenway.ttft", "tokenway.stage.engine_queue", "gen_ai.latency.time_in_queue", "gen_ai.usage.output_tokens"}
        wait_for("traces in the sink", lambda: len(traces()) >= REQUESTS and want <= names())
        counted = lambda: {k: v for line in out.read_text().splitlines() for k, v in json.loads(line).get("metrics", {}).items()}
        ttft = wait_for("metrics in the sink", lambda: (counted().get("gen_ai.server.time_to_first_token") or [None, 0])[1] >= REQUESTS and counted())
        stages = run.measured()
        verdict = "ok" if {"engine_queue", "prefill"} <= set(stages) else "FAIL"
        row(name, verdict, f"{len(traces())} traces, {REQUESTS} asked; ours and the engine's spans; measured, mean ms: {stages}; dropped {run.dropped():.0f}; "
            f"{len(ttft)} metrics, ttft {ttft['gen_ai.server.time_to_first_token']}, itl {ttft['tokenway.inter_token_latency']}")
    finally:
        run.stop()
        for process in started:
            process.terminate()
            process.wait()


def links(binary, directory):
    """Gateway with a shadow step -> rotel -> a sink: the root span of every copy links to its original's."""
    agent = next(iter(pathlib.Path(importlib.util.find_spec("rotel").origin).parent.glob("rotel-agent")))
    data, admin, old, new, http, sink = free_ports(6)
    out, config = directory / "links.jsonl", directory / "links.toml"
    config.write_text(f"""
[server]
listen = "127.0.0.1:{data}"
[admin]
listen = "127.0.0.1:{admin}"
[[pool]]
name = "old"
replicas = ["http://127.0.0.1:{old}"]
[[pool]]
name = "new"
replicas = ["http://127.0.0.1:{new}"]
[[route]]
model = "tiny"
pools = ["old"]
[route.canary]
pool = "new"
shadow = {{ weight = 100, soak = "1h" }}
steps = [{{ weight = 10, soak = "1h" }}]
[telemetry.sampling]
routine = 1.0
keep = ["canary"]
[telemetry.otlp]
endpoint = "http://127.0.0.1:{http}"
protocol = "http"
""")
    engines = [ThreadingHTTPServer(("127.0.0.1", port), Engine) for port in (old, new)]
    for engine in engines:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
    log = open(directory / "links-gateway.log", "w")
    started = [
        subprocess.Popen([sys.executable, HERE / "otlp_sink.py", "--port", str(sink), "--out", str(out)]),
        subprocess.Popen([agent, "start", "--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_ports(1)[0]}",
                          "--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", f"http://127.0.0.1:{sink}"],
                         stdout=open(directory / "links-agent.log", "w"), stderr=subprocess.STDOUT),
        subprocess.Popen([binary, "serve", "--config", str(config)], stderr=log, stdout=log),
    ]
    try:
        ready = lambda: get(f"http://127.0.0.1:{admin}/api/fleet").count(b'"state":"ready"') == 2 and get(f"http://127.0.0.1:{admin}/readyz")
        wait_for("both are ready", ready)
        copies = lambda: json.loads(get(f"http://127.0.0.1:{admin}/api/canaries"))["canaries"][0]
        wait_for("the shadow step has begun", lambda: copies()["shadow_weight"])
        body = json.dumps({"model": "tiny", "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}).encode()
        for _ in range(REQUESTS):
            ask = urllib.request.Request(f"http://127.0.0.1:{data}/v1/chat/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(ask, timeout=30) as answer:
                assert b"[DONE]" in answer.read()
        roots = lambda: {(t, s): [tuple(link) for link in to] for line in out.read_text().splitlines() for t, s, to in json.loads(line)["roots"]}
        found = wait_for("originals and copies in the sink", lambda: len(roots()) >= 2 * REQUESTS and roots())
        linked = {root: to for root, to in found.items() if to}
        good = len(linked) == REQUESTS and all(len(to) == 1 and to[0] in found and not found[to[0]] for to in linked.values())
        row("links", "ok" if good else "FAIL", f"{len(found)} root spans of {REQUESTS} requests; {len(linked)} link to another's, each to one of its own: {good}")
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()
        for engine in engines:
            engine.shutdown()


def mlflow(binary, directory):
    """Gateway -> MLflow tracking server, read back through its own client."""
    import mlflow as client
    (port,) = free_ports(1)
    uri = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
         "--backend-store-uri", f"sqlite:///{directory}/mlflow.db", "--artifacts-destination", str(directory / "artifacts")],
        stdout=open(directory / "mlflow-server.log", "w"), stderr=subprocess.STDOUT, env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"})
    run = None
    try:
        wait_for("MLflow answers", lambda: get(f"{uri}/health"), 300)
        client.set_tracking_uri(uri)
        experiment = client.create_experiment("gateway")
        otlp = f'[telemetry.otlp]\nendpoint = "{uri}"\nheaders = {{ "x-mlflow-experiment-id" = "{experiment}" }}\ntimeout = "60s"\n'
        run = Run(binary, "mlflow", otlp, directory)
        run.ask()
        search = lambda: client.search_traces(locations=[experiment], return_type="list", max_results=50)
        # The root comes a second after the engine's span: until then a trace has no tokens.
        whole = lambda: [t for t in search() if any(s.name == "chat tiny" for s in t.data.spans)]
        traces = wait_for("traces in MLflow", lambda: whole() if len(whole()) >= REQUESTS else None, 120)
        spans = sorted(s.name for s in traces[0].data.spans)
        root = next(s for s in traces[0].data.spans if s.name == "chat tiny")
        stages = {k.removeprefix("tokenway.stage."): v for k, v in root.attributes.items() if k.startswith("tokenway.stage.")}
        verdict = "ok" if {"chat tiny", "attempt", "llm_request"} <= set(spans) and traces[0].info.token_usage else "FAIL"
        row("mlflow", verdict, f"{len(traces)} traces; spans {spans}; tokens {traces[0].info.token_usage}; stages {stages}; dropped {run.dropped():.0f}")
    finally:
        if run:
            run.stop()
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--only", default="rotel-http,rotel-grpc,links,mlflow")
    parser.add_argument("--engine", help="a real replica in place of the stand-in")
    parser.add_argument("--spans", type=int, default=4319, help="port to which that replica exports its spans")
    args = parser.parse_args()
    if args.engine:
        ENGINE.update(url=args.engine, spans=args.spans)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="tokenway-receivers."))
    checks = {
        "rotel-http": ("rotel", lambda: rotel(args.gateway, "http", directory)),
        "rotel-grpc": ("rotel", lambda: rotel(args.gateway, "grpc", directory)),
        "links": ("rotel", lambda: links(args.gateway, directory)),
        "mlflow": ("mlflow", lambda: mlflow(args.gateway, directory)),
    }
    for name in args.only.split(","):
        package, check = checks[name]
        if not importlib.util.find_spec(package):
            row(name, "skipped", f"{package} is not installed")
            continue
        try:
            check()
        except Exception as error:  # a check that breaks is a row, not the end of the others
            row(name, "FAIL", f"{type(error).__name__}: {error}")
    for name, verdict, detail in ROWS:
        print(f"{name:12} {verdict:8} {detail}")
    print(f"logs: {directory}")
    sys.exit(any(verdict == "FAIL" for _, verdict, _ in ROWS))


main()
