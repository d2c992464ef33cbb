#!/usr/bin/env python3
"""CPU per relayed event with telemetry on against off: the bench `relay`, run in turns over gateways that differ only in it.

    cargo build --release --locked; cargo bench --locked --bench relay --no-run     # prints the bench's path
    python3 benches/relay/telemetry.py --bench target/release/deps/relay-… --gateway target/release/tokenway [--reps 7]

`off` has no access log and exports nothing; metrics, windows and drift cannot be switched off and are in all of them. `on` writes the
access log to a file, keeps drift's baselines in a file and exports spans at the default sampling; `all` exports every
request's spans. The order turns around with each repetition; a ratio is taken within one repetition, then its median.
"""
import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VARIANTS = {
    "off": '[telemetry]\naccess_log = "off"\n',
    "on": '[telemetry]\naccess_log = "{directory}/access.jsonl"\n[telemetry.otlp]\nendpoint = "{sink}"\n[drift]\nstate = "{directory}/drift.json"\n',
    "all": '[telemetry]\naccess_log = "{directory}/access.jsonl"\n[telemetry.otlp]\nendpoint = "{sink}"\n[telemetry.sampling]\nroutine = 1.0\n'
           '[drift]\nstate = "{directory}/drift.json"\n',
}
# What the bench starts as its gateway: turns `--upstream` into a file, for `--config` and `--upstream` exclude each other.
WRAPPER = """#!/bin/bash
replicas=() rest=()
while [ $# -gt 0 ]; do
  case $1 in
    --upstream) replicas+=("\\"$2\\"") && shift 2 ;;
    serve) shift ;;
    *) rest+=("$1") && shift ;;
  esac
done
{{ printf '[[pool]]\\nname = "default"\\nreplicas = [%s]\\n' "$(IFS=,; echo "${{replicas[*]}}")"; cat {settings}; }} >{directory}/{name}.toml
exec {gateway} serve --config {directory}/{name}.toml "${{rest[@]}}"
"""


class Sink(BaseHTTPRequestHandler):
    """Takes exports and counts their bytes."""

    protocol_version, taken = "HTTP/1.1", [0, 0]

    def do_POST(self):
        Sink.taken[0] += 1
        Sink.taken[1] += len(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--gateway", required=True, type=pathlib.Path)
    parser.add_argument("--reps", type=int, default=7)
    args = parser.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="tokenway-telemetry."))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, text in VARIANTS.items():
        (directory / f"{name}.settings").write_text(text.format(directory=directory, sink=f"http://127.0.0.1:{server.server_port}"))
        wrapper = directory / name
        wrapper.write_text(WRAPPER.format(settings=directory / f"{name}.settings", directory=directory, name=name, gateway=args.gateway.resolve()))
        wrapper.chmod(0o755)
    found = {name: [] for name in VARIANTS}
    for repetition in range(args.reps):
        for name in list(VARIANTS)[::-1 if repetition % 2 else 1]:
            done = subprocess.run([args.bench, "--bench", "--only", "gateway", "--reps", "1", "--workloads", "streams", "--gateway", directory / name],
                                  capture_output=True, text=True)
            # Without a floor the table's only number in that line is the gateway's.
            number = re.search(r"^streams +CPU per event[^\n]*?([0-9.]+) (?:us|µs)", done.stdout, re.M)
            if not number:
                sys.exit(f"the bench said no figure:\n{done.stdout}{done.stderr}")
            found[name].append(float(number[1]))
    print("| telemetry | CPU per event, median | each | ratio to off, median (range) |\n|---|---|---|---|")
    for name, values in found.items():
        ratios = [value / off for value, off in zip(values, found["off"])]
        print(f"| {name} | {statistics.median(values):.1f} µs | {', '.join(f'{v:.1f}' for v in values)} "
              f"| {statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f}) |")
    print(f"\nexports taken: {Sink.taken[0]}, {Sink.taken[1]} bytes; access log of `on` and `all`: "
          f"{sum(1 for _ in open(directory / 'access.jsonl'))} lines")


main()
