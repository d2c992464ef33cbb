#!/usr/bin/env python3
"""`tokenway bench` beside `vllm bench serve` and aiperf: the same prompts at the same times to the same simulated engine.

    tests/real_fleet/bench_agrees.py target/release/tokenway --tokenizer MODEL_DIR [--vllm VENV/bin/vllm] [--aiperf VENV/bin/aiperf]
                                     [--reps 3]

vLLM's virtual environment needs pandas and datasets (`pip install vllm[bench]`). Prompts are those that `tokenway bench --trace` sends to a
server that keeps them; the others get them as a data set, at the same even rate. Each run has an engine of its own (`tokenway sim`), so
that no cache is warm, and they take turns. aiperf's "inter token latency" is a request's mean, TPOT here; of single gaps it has none.
Prints the medians of the percentiles and how far they are from ours; exit code 1 beyond 2 %.
"""
import argparse
import http.server
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading

BOUND = 0.02
FIGURES = ["ttft", "tpot", "itl"]
PERCENTILES = [50, 90, 99]


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenway", type=pathlib.Path)
    parser.add_argument("--vllm", type=pathlib.Path)
    parser.add_argument("--aiperf", type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True, help="any that they load; the engine's figures count")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--prefill-rate", default="20000", help="of the engine, tokens a second: near its limit small differences grow")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Sim:
    """An engine that has seen nothing."""

    def __init__(self, args):
        command = [args.tokenway, "sim", "--replicas", "1", "--port", "0", "--prefill-rate", args.prefill_rate]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if "url=" in line:
                self.url = line.split("url=")[1].split()[0]
            if line.startswith("ready"):
                return
        sys.exit("the engine did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def prompts_of(args, trace):
    """What `tokenway bench` sends for the trace, in its order."""
    kept = []

    class Keeper(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            kept.append((body["messages"][0]["content"], body["max_tokens"]))
            events = ['{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}', "[DONE]"]
            answer = "".join(f"data: {event}\n\n" for event in events).encode()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keeper)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    command = [args.tokenway, "bench", url, "--model", "sim", "--trace", trace]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server.shutdown()
    return kept


def ours(args, trace):
    with Sim(args) as sim:
        command = [args.tokenway, "bench", sim.url, "--trace", trace, "--json"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)[0]
    figures = {f"{name}_p{p}": found["figures"][f"{name}_p{p}_s"] for name in ("ttft", "tpot") for p in PERCENTILES}
    return figures | {f"itl_p{p}": found["itl"][f"p{p}_s"] for p in PERCENTILES} | {"answers": found["figures"]["requests"]}


def vllm(args, data, folder):
    command = [
        args.vllm, "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
        "--model", "sim", "--tokenizer", args.tokenizer, "--dataset-name", "custom", "--dataset-path", data,
        "--custom-output-len", "-1", "--skip-chat-template", "--disable-shuffle", "--no-oversample", "--num-prompts", str(args.requests),
        "--request-rate", str(args.rate), "--burstiness", "inf", "--ignore-eos", "--ready-check-timeout-sec", "0",
        "--percentile-metrics", ",".join(FIGURES), "--metric-percentiles", ",".join(map(str, PERCENTILES)),
        "--save-result", "--result-dir", folder, "--result-filename", "result.json", "--disable-tqdm",
    ]  # fmt: skip
    with Sim(args) as sim:
        finished(command + ["--base-url", sim.url])
    found = json.loads((pathlib.Path(folder) / "result.json").read_text())
    figures = {f"{name}_p{p}": found[f"p{p}_{name}_ms"] / 1e3 for name in FIGURES for p in PERCENTILES}
    return figures | {"answers": found["completed"]}


def aiperf(args, data, folder):
    command = [
        args.aiperf, "profile", "--model", "sim", "--tokenizer", args.tokenizer, "--endpoint-type", "chat", "--streaming",
        "--input-file", data, "--custom-dataset-type", "single_turn", "--fixed-schedule", "--use-server-token-count",
        "--extra-inputs", "ignore_eos:true", "--artifact-dir", folder, "--ui", "none",
    ]  # fmt: skip
    with Sim(args) as sim:
        finished(command + ["--url", sim.url])
    (path,) = pathlib.Path(folder).glob("**/profile_export_aiperf.json")
    found = json.loads(path.read_text())
    names = {"ttft": "time_to_first_token", "tpot": "inter_token_latency"}
    figures = {f"{ours}_p{p}": found[theirs][f"p{p}"] / 1e3 for ours, theirs in names.items() for p in PERCENTILES}
    return figures | {"answers": found["request_count"]["avg"]}


def finished(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def main():
    args = options()
    others = [measure for measure, path in ((vllm, args.vllm), (aiperf, args.aiperf)) if path]
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        trace = f"{folder}/trace.jsonl"
        times = [round(1e3 * n / args.rate) for n in range(args.requests)]
        with open(trace, "w") as file:
            for at in times:
                # Milliseconds, as in Mooncake's traces.
                request = {"timestamp": at, "input_length": draw.randint(200, 1200), "output_length": draw.randint(16, 96)}
                file.write(json.dumps(request | {"hash_ids": []}) + "\n")
        kept = prompts_of(args, trace)
        with open(f"{folder}/vllm.jsonl", "w") as file:
            for prompt, tokens in kept:
                file.write(json.dumps({"prompt": prompt, "output_tokens": tokens}) + "\n")
        with open(f"{folder}/aiperf.jsonl", "w") as file:
            for at, (prompt, tokens) in zip(times, kept):
                file.write(json.dumps({"timestamp": at, "text": prompt, "output_length": tokens}) + "\n")
        runs = {name: [] for name in ["bench"] + [measure.__name__ for measure in others]}
        for _ in range(args.reps):
            runs["bench"].append(ours(args, trace))
            for measure in list(others):
                try:
                    with tempfile.TemporaryDirectory() as out:
                        runs[measure.__name__].append(measure(args, f"{folder}/{measure.__name__}.jsonl", out))
                except RuntimeError as error:
                    print(f"{measure.__name__} failed and is left out:\n{error}", file=sys.stderr)
                    others.remove(measure)
    print(f"{args.requests} requests, {args.rate}/s, {args.reps} runs each, medians, ms")
    worst = 0.0
    for measure in others:
        name = measure.__name__
        print(f"| figure | `tokenway bench` | {name} | apart |\n|---|---|---|---|")
        for figure in runs[name][0]:
            a, b = (statistics.median(run[figure] for run in runs[who]) for who in ("bench", name))
            if figure == "answers":
                print(f"| answers | {a:.0f} | {b:.0f} | |")
                continue
            apart = abs(a - b) / b
            worst = max(worst, apart)
            print(f"| {figure.replace('_', ' ').upper().replace(' P', ' p')} | {1e3 * a:.2f} | {1e3 * b:.2f} | {100 * apart:.1f} % |")
    return 1 if worst > BOUND or not others else 0


if __name__ == "__main__":
    sys.exit(main())
