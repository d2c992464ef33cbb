#!/usr/bin/env python3
"""Compares prompts computed apart (`[route.prefill]`) with prompts computed where they are decoded, in simulated time.

    python3 benches/routing/apart.py BINARY TRACES                            all of it, to standard output
    python3 benches/routing/apart.py BINARY TRACES --only documents --seeds 5    also --lost 0.05: share of lost transfers

Eight replicas: all alike (`together`), or four that compute prompts beside four that decode, with `when` never, always and auto.
TRACES has mooncake_conversation.jsonl, toolagent_synth.jsonl and azure_conv_2023.csv; `documents` are made here: chats of the
matrix, and texts of 5k to 50k among them, with a bound on ITL. The engine is the matrix's 32B on two H100 with steps that vary by 30 %, signals are a
second old, KV takes 10 ms and 10 µs a token (262 kB over 200 Gbit/s), a second more between two replicas that have not met. ± is
two standard errors over the seeds. A goal that is missed is printed below the table, and the exit code is 1.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import traffic

FOLDER = pathlib.Path(__file__).parent
SLO = """[slo.apart]
ttft = { base = "1s", per_prompt_token = "0.15ms" }
tpot = "100ms"
"""
# Beside documents: a stall of a fifth of a second is seen.
ITL = 'itl = { p99 = "200ms" }\n'
WHOLE = """[[pool]]
name = "all"
replicas = ["http://127.0.0.1:1"]
[[route]]
model = "m"
pools = ["all"]
slo = "apart"
"""
APART = """[[pool]]
name = "p"
role = "prefill"
revision = "r"
replicas = ["http://127.0.0.1:1"]
[[pool]]
name = "d"
role = "decode"
revision = "r"
replicas = ["http://127.0.0.1:2"]
[[route]]
model = "m"
pools = ["d"]
slo = "apart"
prefill = { pool = "p", when = "WHEN" }
"""
WAYS = ["together", "never", "always", "auto"]
CONFIGS = {way: WHOLE if way == "together" else APART.replace("WHEN", way) for way in WAYS}
REPLICAS = 8
# Traffic and speeds of it: 1 is a trace's own pace for every four replicas.
CELLS = {
    "mooncake": ("mooncake_conversation.jsonl", [0.3, 0.5, 0.7]),
    "toolagent": ("toolagent_synth.jsonl", [0.5, 0.8, 1.1]),
    "azure": ("azure_conv_2023.csv", [1, 3]),
    "documents": (None, [0.5, 0.8, 1.1]),
}
# Requests/s on four replicas at speed 1: chats behind one prompt of 1k, and questions about 400 documents.
CHATS, DOCUMENTS, MINUTES = 12, 1.2, 6
MISSES, TIMES = "violations", ["ttft_p50_s", "ttft_p90_s", "ttft_p99_s"]
# Goals: as good as the better of both ways but for this share of it, with what no seed could tell apart let pass.
WORSE, POINTS, HALF = 1.03, 0.001, 0.5


def mixed(seed):
    """Chats, and documents among them."""
    chats = traffic.requests("short_chat", CHATS, MINUTES, seed)
    documents = traffic.requests("documents", DOCUMENTS, MINUTES, seed)
    apart = 1 + max(id for line in chats for id in line["hash_ids"])
    for line in documents:
        line["hash_ids"] = [id + apart for id in line["hash_ids"]]
    return sorted(chats + documents, key=lambda line: line["timestamp"])


def run(job):
    """The runs of all ways in one cell under one seed: {way: figures}."""
    args, kind, load, seed = job
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        trace = CELLS[kind][0]
        path = args.traces / trace if trace else folder / "documents.jsonl"
        if not trace:
            path.write_text(traffic.text(mixed(seed)))
        command = [args.binary, "--log-level", "off", "replay", str(path)]
        for way in args.ways:
            (folder / f"{way}.toml").write_text(SLO + ("" if trace else ITL) + CONFIGS[way])
            command += ["--config", str(folder / f"{way}.toml")]
        command += ["--replicas", str(REPLICAS), "--prefill-replicas", str(args.prefill), "--load", str(load), "--seeds", str(seed),
                    "--engine", str(FOLDER / "engines/32b.json"), "--kv-lost", str(args.lost), "--threads", "1", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return {pathlib.Path(line["config"]).stem: line for line in json.loads(done.stdout)}


def mean(values):
    return sum(values) / len(values)


def spread(values):
    """Two standard errors."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return 2 * math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values))


def of(runs, figure):
    return [run[figure] for run in runs]


def percent(values):
    return f"{100 * mean(values):.2f} ± {100 * spread(values):.2f}"


def seconds(runs):
    return " / ".join(f"{mean(of(runs, figure)):.2f}" for figure in TIMES)


def missed(cell, has_itl):
    """What `auto` misses of the goals in a cell: {way: [run of each seed]}."""
    auto, best = cell["auto"], [cell[way] for way in ("together", "always")]
    faults = []
    for figure in [MISSES, *TIMES]:
        # Seed by seed: the traffic is the same in both.
        other = min(best, key=lambda runs: mean(of(runs, figure)))
        bound = WORSE * mean(of(other, figure)) + (POINTS if figure == MISSES else 0)
        noise = spread([a - b for a, b in zip(of(auto, figure), of(other, figure))])
        if mean(of(auto, figure)) > bound + noise:
            faults.append(f"{figure} {mean(of(auto, figure)):.4f} > {bound:.4f}")
    late, allowed = mean(of(auto, "itl_violations")), HALF * mean(of(cell["together"], "itl_violations"))
    if has_itl and late > max(allowed, POINTS):
        faults.append(f"itl_violations {late:.4f} > {allowed:.4f}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("traces", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(CELLS))
    parser.add_argument("--loads", help="instead of each traffic's own")
    parser.add_argument("--ways", default=",".join(WAYS), type=lambda text: text.split(","))
    parser.add_argument("--prefill", type=int, default=4, help="replicas of the eight that compute prompts")
    parser.add_argument("--lost", type=float, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    wanted = [(kind, load) for kind in args.only.split(",")
              for load in (map(float, args.loads.split(",")) if args.loads else CELLS[kind][1])]
    jobs = [(args, *cell, seed) for cell in wanted for seed in range(args.first_seed, args.first_seed + args.seeds)]
    found = {cell: {way: [] for way in args.ways} for cell in wanted}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for (_, kind, load, _), runs in zip(jobs, pool.map(run, jobs)):
            for way, line in runs.items():
                found[kind, load][way].append(line)
    print("| traffic, speed | way | SLO missed, % | ITL bound missed, % | TTFT p50 / p90 / p99, s | apart, % |")
    print("|---|---|---|---|---|---|")
    faults = []
    for (kind, load), cell in found.items():
        for way, runs in cell.items():
            itl = "" if CELLS[kind][0] else percent(of(runs, "itl_violations"))
            print(f"| {kind}, {load:g} | {way} | {percent(of(runs, MISSES))} | {itl} | "
                  f"{seconds(runs)} | {100 * mean(of(runs, 'apart')):.0f} |")
        if {"together", "always", "auto"} <= set(args.ways):
            faults += [f"{kind}, {load:g}: {fault}" for fault in missed(cell, has_itl=not CELLS[kind][0])]
    print("\n".join(["", *faults]) if faults else "")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
