#!/usr/bin/env python3
"""Runs the comparison of docs/routing.md and prints its tables as Markdown.

    python3 benches/routing/tables.py target/release/tokenway TRACES [SECTION ...] > tables.md

TRACES is a directory with mooncake_conversation.jsonl and toolagent_synth.jsonl, and for `unseen` with what unseen.py writes.
Without sections all are run, which takes about an hour on two cores; `goals` alone takes some minutes.
"""

import json
import pathlib
import shlex
import subprocess
import sys

# As a route without a queue places requests, and as one with a queue admits them: both settled beforehand.
CONFIGS = {"benches/routing/goal.toml": "latency", "benches/routing/queue.toml": "latency, with a queue"}
CONVERSATION, TOOLS = "mooncake_conversation.jsonl", "toolagent_synth.jsonl"
UNSEEN = ["documents.jsonl", "agents.jsonl", "bursts.jsonl", "mixed.jsonl"]
SIMPLE = ["round_robin", "least_loaded", "power_of_two", "chwbl", "chwbl_3_blocks"]
PEERS = ["sglang_cache_aware", "llm_d", "llm_d_token_load", "dynamo", "dynamo_prefill_4", "smetric"]
ALL = SIMPLE + ["prefix"] + PEERS + ["oracle"]
UNALIKE = ["sglang_cache_aware", "llm_d_token_load", "dynamo_prefill_4", "smetric"]
BEST = ["least_loaded", "llm_d_token_load", "dynamo_prefill_4", "smetric", "oracle"]


def by(*names):
    words = {"slow": slow, "signals_age_s": lambda run: f"signals {run['signals_age_s']:g} s old"}
    return lambda run: ", ".join(words.get(name, lambda run: f"{name} {run[name]:g}")(run) for name in names)


def slow(run):
    return "one 2x slower" if run["slow"] else "all alike"


# section: title, what is common, (trace, policies, flags) of each run, column of a run
SECTIONS = {
    "goals": ("8 replicas, fresh signals", [
        (CONVERSATION, ALL, ["--replicas", "8", "--load", "0.6,0.7", "--seeds", "1,2,3"]),
        (TOOLS, ALL, ["--replicas", "8", "--load", "1,1.3", "--seeds", "1,2,3"]),
    ], by("load")),
    "slow": ("8 replicas, one of them 2 x slower, and nobody told the router", [
        (CONVERSATION, ALL, ["--replicas", "8", "--load", "0.6", "--seeds", "1,2,3", "--slow", "7=2"]),
        (TOOLS, ALL, ["--replicas", "8", "--load", "0.8", "--seeds", "1,2,3", "--slow", "7=2"]),
    ], by("load", "slow")),
    "load": ("8 replicas, from light load to overload", [
        (CONVERSATION, ALL, ["--replicas", "8", "--load", "0.35,0.5,0.6,0.7,0.75,0.8,0.85"]),
        (TOOLS, ALL, ["--replicas", "8", "--load", "0.5,0.75,0.9,1,1.1,1.2,1.3"]),
    ], by("load")),
    "stale": ("8 replicas, signals 2 s old", [
        (CONVERSATION, ALL, ["--replicas", "8", "--load", "0.6", "--signals-age", "50ms,2s"]),
        (TOOLS, ALL, ["--replicas", "8", "--load", "1", "--signals-age", "50ms,2s"]),
    ], by("load", "signals_age_s")),
    "size": ("4 to 64 replicas", [
        (CONVERSATION, BEST, ["--replicas", "4,8,16,64", "--load", "0.6"]),
        (TOOLS, BEST, ["--replicas", "4,8,16,64", "--load", "1"]),
    ], by("replicas", "load")),
    "unseen": ("8 replicas, made-up traces", [
        (trace, UNALIKE, ["--replicas", "8", "--load", "0.8,1"]) for trace in UNSEEN
    ], by("load")),
}


def mean(runs, figure):
    values = [figure(run) for run in runs]
    return sum(values) / len(values)


CELLS = {
    "SLO violations, %": lambda runs: f"{100 * mean(runs, lambda r: r['violations']):.2f}",
    "goodput, requests/s": lambda runs: f"{mean(runs, lambda r: r['goodput_per_second']):.2f}",
    "TTFT p50 / p90 / p99, s": lambda runs: " / ".join(
        f"{mean(runs, lambda r: r[f'ttft_p{q}_s']):.2f}" for q in (50, 90, 99)),
    "TPOT p99, ms": lambda runs: f"{1000 * mean(runs, lambda r: r['tpot_p99_s']):.0f}",
    "hit rate": lambda runs: f"{mean(runs, lambda r: r['hit_rate']):.3f}",
    "refused, %": lambda runs: f"{100 * mean(runs, lambda r: r['refused']):.2f}",
    "load spread": lambda runs: f"{mean(runs, lambda r: r['load_spread']):.2f}",
}
# What is shown over a range of loads or sizes.
RANGE = ["SLO violations, %", "goodput, requests/s", "TTFT p50 / p90 / p99, s"]


def run(binary, traces, trace, policies, flags):
    configs = [word for config in CONFIGS for word in ("--config", config)]
    command = ["replay", str(traces / trace), *configs, "--policies", ",".join(policies), *flags]
    shown = ["tokenway", "replay", trace, *command[2:]]
    print("```sh\n" + shlex.join(shown) + "\n```\n", flush=True)
    done = subprocess.run([binary, "--log-level", "off", *command, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def row(run):
    return f"**{CONFIGS[run['config']]}**" if "config" in run else run["policy"]


def show(runs, column):
    """One table for one or two columns, each figure with a cell for both; for a range one table a figure."""
    columns = list(dict.fromkeys(column(r) for r in runs))
    rows = list(dict.fromkeys(row(r) for r in runs))
    value = {(title, name, of): cell([r for r in runs if row(r) == name and column(r) == of])
             for title, cell in CELLS.items() for name in rows for of in columns}
    if len(columns) <= 2:
        heading([" · ".join(columns), *CELLS])
        for name in rows:
            line([name, *(" · ".join(value[title, name, of] for of in columns) for title in CELLS)])
        print()
        return
    for title in RANGE:
        heading([title, *columns])
        for name in rows:
            line([name, *(value[title, name, of] for of in columns)])
        print()


def heading(cells):
    line(cells)
    print("|---" * len(cells) + "|")


def line(cells):
    print("| " + " | ".join(cells) + " |")


def main():
    if len(sys.argv) < 3 or any(section not in SECTIONS for section in sys.argv[3:]):
        sys.exit(__doc__ + "\nSections: " + ", ".join(SECTIONS))
    binary, traces = sys.argv[1], pathlib.Path(sys.argv[2])
    for section in sys.argv[3:] or SECTIONS:
        title, parts, column = SECTIONS[section]
        print(f"### {title[0].upper()}{title[1:]}\n")
        for trace, policies, flags in parts:
            runs = run(binary, traces, trace, policies, flags)
            show(runs, column)


if __name__ == "__main__":
    main()
