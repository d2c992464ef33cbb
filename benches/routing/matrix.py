#!/usr/bin/env python3
"""Judges the routing policies on every kind of traffic, three noisy engines, four fleets, three loads and two SLO classes.

    python3 benches/routing/matrix.py BINARY                     all of it, to target/matrix.md
    python3 benches/routing/matrix.py BINARY --quick             the known weak spots and some strong ones
    python3 benches/routing/matrix.py BINARY --kinds chat,rag    also --engines, --fleets, --classes
    python3 benches/routing/matrix.py BINARY --sample 64 --first-seed 91    cells and traces that nothing was chosen on
    python3 benches/routing/matrix.py BINARY --first-table       how evenly chats behind one system prompt are spread

A cell is one kind, engine, fleet, load and class; all policies run it under the same seeds, each seed with a trace of its
own. Loads are shares of what the fleet can do (capacity.py), slow replicas counted for what they do. Signals are a second
old. The bounds are those of judge.py. Finished runs are kept under target/matrix by binary, traffic and parameters, so that
an interrupted matrix goes on where it was; --peers-of takes other projects' policies from runs of another binary.
The whole matrix takes some hours on two cores, --quick six minutes on one. Parts are printed unless --out names a file.
"""
import argparse
import collections
import concurrent.futures
import datetime
import functools
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import typing

import capacity
import judge
import traffic

FOLDER = pathlib.Path(__file__).parent
CACHE = FOLDER.parents[1] / "target/matrix"
RESULTS = FOLDER.parents[1] / "target/matrix.md"
OURS = ["latency", "prefix", "least_loaded", "round_robin"]
PEERS = ["power_of_two", "chwbl", "chwbl_3_blocks", "sglang_cache_aware", "llm_d", "llm_d_token_load", "dynamo", "dynamo_prefill_4",
         "smetric"]
CLASSES = ["standard", "interactive"]
LOADS = [0.35, 0.7, 0.95]
# Replicas of a fleet, and by how much some of them are slower.
FLEETS = {"4": (4, {}), "4-one-slow": (4, {3: 2}), "8-half-slow": (8, {4: 4, 5: 4, 6: 4, 7: 4}), "32": (32, {})}
# A trace is as long as its kind asks for, and longer, up to this, where rates are low: a p99 needs this many requests.
MIN_REQUESTS, MAX_MINUTES = 2000, 20

# kind, engine, fleet, load, class; * stands for all loads or classes.
QUICK = [
    ("chat", "32b", "4", "*", "*"),
    ("chat", "8b", "4", 0.35, "standard"),
    ("chat", "70b", "4", 0.7, "*"),
    ("chat", "32b", "32", 0.35, "standard"),
    ("short_chat", "32b", "4", 0.35, "*"),
    ("short_chat", "70b", "4", 0.7, "standard"),
    ("rag", "32b", "4", 0.35, "*"),
    ("rag", "8b", "4", 0.7, "standard"),
    ("rag", "32b", "4-one-slow", 0.7, "standard"),
    ("flash", "32b", "4", 0.7, "standard"),
    ("flash", "32b", "4", 0.95, "standard"),
    ("flash", "70b", "4", 0.95, "standard"),
    ("documents", "32b", "4", 0.7, "standard"),
    ("documents", "32b", "4", 0.95, "standard"),
    ("documents", "70b", "4", 0.7, "standard"),
    ("completion", "32b", "4", 0.7, "*"),
    ("completion", "8b", "4", 0.95, "standard"),
    ("embeddings", "32b", "4", 0.95, "*"),
    ("embeddings", "70b", "4", 0.95, "standard"),
    ("tenants", "32b", "4", 0.7, "standard"),
    ("tenants", "8b", "8-half-slow", 0.7, "standard"),
    ("ramp", "32b", "4", 0.95, "standard"),
    ("ramp", "70b", "4-one-slow", 0.7, "interactive"),
    ("agents", "32b", "4", 0.7, "*"),
    ("agents", "70b", "8-half-slow", 0.35, "standard"),
    ("reasoning", "70b", "4", 0.35, "standard"),
    ("unshared", "32b", "4", 0.7, "interactive"),
    ("unshared", "8b", "8-half-slow", 0.7, "standard"),
    ("bursts", "32b", "4", 0.7, "standard"),
    ("books", "32b", "4-one-slow", 0.7, "standard"),
]


class Cell(typing.NamedTuple):
    """One cell of the matrix."""

    kind: str
    engine: str
    fleet: str
    load: float
    slo: str

    def __str__(self):
        return f"{self.kind} · {self.engine} · {self.fleet} · {100 * self.load:g} % · {self.slo}"


def cells(args):
    """The cells that were asked for, those of one trace side by side."""
    kinds, engines, fleets = args.kinds or list(traffic.KINDS), args.engines or list(capacity.ENGINES), args.fleets or list(FLEETS)
    every = [Cell(kind, engine, fleet, load, slo)
             for kind in kinds for engine in engines for fleet in fleets for load in LOADS for slo in args.classes or CLASSES]
    is_quick = lambda cell: any(all(want in ("*", have) for want, have in zip(row, cell)) for row in QUICK)
    if args.quick:
        return [cell for cell in every if is_quick(cell)]
    if args.sample:
        return random.Random(args.first_seed).sample([cell for cell in every if not is_quick(cell)], args.sample)
    return every


def digest(*parts):
    return hashlib.sha256(b"\0".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)).hexdigest()[:24]


@functools.cache
def content(path):
    """What a file is, for the keys of the cache."""
    return digest(pathlib.Path(path).read_bytes())


def cached(key, make):
    """The JSON of a key, made only where it is not there yet."""
    path = CACHE / f"{key}.json"
    if path.exists():
        return json.loads(path.read_text())
    value = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(value))
    part.replace(path)
    return value


def rate(kind, engine):
    """Requests/s at which four equal replicas are at their limit."""
    key = digest("rate", kind, traffic.source(kind), traffic.KINDS[kind].minutes, content(FOLDER / "capacity.py"),
                 content(engine_file(engine)))
    return cached(key, lambda: capacity.rate(kind, capacity.ENGINES[engine]))


def engine_file(engine):
    return FOLDER / f"engines/{engine}.json"


def run(cell, seed, binaries, tuned=()):
    """The runs of all policies in one cell under one seed: {policy: figures}; `tuned`: pairs for the environment."""
    replicas, slow = FLEETS[cell.fleet]
    full = rate(cell.kind, cell.engine)
    at = round(cell.load * full * (replicas - sum(1 - 1 / factor for factor in slow.values())) / replicas, 3)
    copies = replicas / capacity.REPLICAS
    minutes = round(max(traffic.KINDS[cell.kind].minutes, min(MAX_MINUTES, MIN_REQUESTS / at / copies / 60)), 2)
    flags = ["--replicas", str(replicas), "--seeds", str(seed), "--signals-age", "1s", "--threads", "1", "--json"]
    for replica, factor in slow.items():
        flags += ["--slow", f"{replica}={factor}"]
    files = ["--engine", str(engine_file(cell.engine)), "--config", str(FOLDER / f"{cell.slo}.toml")]
    keys = {policy: digest(content(binary), traffic.source(cell.kind), cell.kind, at, minutes, seed, *flags,
                           *(content(file) for file in files[1::2]), policy, *map(str, tuned)) for policy, binary in binaries.items()}
    missing = [policy for policy in binaries if not (CACHE / f"{keys[policy]}.json").exists()]
    found = {}
    if missing:
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=CACHE, prefix=f"{cell.kind}-", suffix=".jsonl") as file:
            file.write(traffic.text(traffic.requests(cell.kind, at, minutes, seed)))
            file.flush()
            for binary in sorted(set(binaries[policy] for policy in missing)):
                policies = [policy for policy in missing if binaries[policy] == binary]
                found |= replay(binary, file.name, policies, flags + files, tuned)
    return {policy: cached(keys[policy], lambda: found[policy]) for policy in binaries}


def replay(binary, trace, policies, flags, tuned=()):
    """The runs of one command: {policy: figures}."""
    # The configuration's own policy, latency, runs whatever else is asked for.
    others = [policy for policy in policies if policy != "latency"]
    command = [binary, "--log-level", "off", "replay", trace, *(["--policies", ",".join(others)] if others else []), *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | dict(tuned))
    return {line["policy"]: line for line in json.loads(done.stdout)}


def run_all(wanted, args):
    """Every cell with the runs of all seeds: {cell: {policy: [run of each seed]}}."""
    binaries = {policy: args.binary for policy in OURS} | {policy: args.peers_of or args.binary for policy in PEERS}
    found = {cell: {policy: [] for policy in binaries} for cell in wanted}
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        pairs = sorted({(cell.kind, cell.engine) for cell in wanted})
        list(pool.map(rate, *zip(*pairs)))
        jobs = [(cell, seed) for cell in wanted for seed in range(args.first_seed, args.first_seed + args.seeds)]
        results = pool.map(run, *zip(*jobs), [binaries] * len(jobs))
        for count, ((cell, seed), runs) in enumerate(zip(jobs, results), 1):
            if count % 10 == 0 or count == len(jobs):
                print(f"{count} of {len(jobs)} runs: {cell}, seed {seed}", file=sys.stderr, flush=True)
            for policy, figures in runs.items():
                found[cell][policy].append(figures)
    return found


def milliseconds(seconds):
    return f"{1000 * seconds:.0f}" if seconds < 10 else f"{seconds:.0f} s"


def figures(runs):
    """Violations, TTFT and TPOT as they stand in a cell of the table."""
    times = [milliseconds(judge.mean(runs, figure)) for figure in judge.TIMES]
    return f"{100 * judge.mean(runs, 'violations'):.2f} · {' / '.join(times[:3])} · {times[3]}"


def miss(missed):
    show = (lambda share: f"{100 * share:.2f} %") if missed.figure == "violations" else lambda seconds: milliseconds(seconds) + " ms"
    name = missed.figure.removesuffix("_s").replace("_", " ")
    return f"{name} {show(missed.value)} > {show(missed.bound)} ({missed.of})".replace(" s ms", " s")


def table(heading, rows):
    line = lambda cells: "| " + " | ".join(str(cell) for cell in cells) + " |"
    return [line(heading), "|---" * len(heading) + "|", *map(line, rows), ""]


def share(held):
    held = list(held)
    return f"{100 * sum(held) / len(held):.0f} % of {len(held)}" if held else "–"


def report(found, args):
    """The matrix as markdown."""
    judged = {cell: judge.misses(runs) for cell, runs in found.items()}
    mildly = {cell: judge.misses(runs, is_mild=True) for cell, runs in found.items()}
    held = lambda policy, of=lambda cell: True, by=judged: share(not by[cell][policy] for cell in by if of(cell))
    keeps = lambda policy: share(not any(miss.figure == "violations" for miss in judged[cell][policy]) for cell in judged)
    failed = [cell for cell in judged if judged[cell]["latency"]]
    better = {cell: judge.as_good(found[cell], "latency") for cell in failed}
    lines = ["# Routing on every kind of traffic", "",
             "Generated by `benches/routing/matrix.py`; do not edit. Traffic: `traffic.py`, loads: `capacity.py`, bounds: `judge.py`.", "",
             f"Measured {datetime.date.today()}, {len(found)} cells, {args.seeds} seeds, binary {content(args.binary)[:12]}.", "",
             "## Cells held", "",
             "Mildly: against the one policy that is best over all times, not against the best in each.", ""]
    classes = [slo for slo in CLASSES if any(cell.slo == slo for cell in found)]
    lines += table(["policy", *classes, "all", "all, mildly", "all, violations alone"], [
        [f"**{policy}**" if policy == "latency" else policy,
         *(held(policy, lambda cell, slo=slo: cell.slo == slo) for slo in classes),
         held(policy), held(policy, by=mildly), keeps(policy)] for policy in OURS + PEERS])
    lines += [f"Of the {len(failed)} cells that `latency` does not hold, another policy is as good or better in every figure in "
              f"{sum(bool(others) for others in better.values())}, round robin in {sum('round_robin' in o for o in better.values())}.", ""]
    for part in ("kind", "engine", "fleet", "load"):
        values = list(dict.fromkeys(getattr(cell, part) for cell in found))
        lines += table([part, "held by `latency`"],
                       [[value, held("latency", lambda cell: getattr(cell, part) == value)] for value in values])
    missed = collections.Counter(figure for cell in failed for figure in {miss.figure for miss in judged[cell]["latency"]})
    lines += table(["figure", "cells in which `latency` misses its bound"], missed.most_common())
    heading = "violations, % · TTFT p50 / p90 / p99 · TPOT p99, ms"
    lines += ["## Cells that `latency` does not hold", "", heading + "; bounds include the noise.", ""]
    lines += table(["cell", "`latency`", "round robin", "missed", "as good in everything"], [
        [cell, figures(found[cell]["latency"]), figures(found[cell]["round_robin"]),
         "; ".join(miss(missed) for missed in judged[cell]["latency"]), ", ".join(better[cell]) or "–"] for cell in failed])
    lines += ["## All cells", "", heading + ". The best rival is the one with the fewest missed bounds, then violations.", ""]
    rows = []
    for cell, runs in found.items():
        best = min((policy for policy in runs if policy != "latency"),
                   key=lambda policy: (len(judged[cell][policy]), judge.mean(runs[policy], "violations")))
        rows.append([cell, figures(runs["latency"]), f"{best}: {figures(runs[best])}", figures(runs["round_robin"]),
                     "–" if judged[cell]["latency"] else "held"])
    lines += table(["cell", "`latency`", "best rival", "round robin", ""], rows)
    return "\n".join(lines)


# Traffic, requests/s, class: chats behind one prompt, on the exact engine and with lengths that do not vary.
FIRST_TABLE = [("chat", 2, "standard"), ("short_chat", 6, "standard"), ("rag", 10, "standard"), ("chat", 6.4, "interactive")]


def first_table(args):
    """How evenly the policies spread chats behind one system prompt, as markdown."""
    columns = {}
    for kind, at, slo in FIRST_TABLE:
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace, tempfile.NamedTemporaryFile("w", suffix=".json") as exact:
            trace.write(traffic.text(traffic.requests(kind, at, 15, 1, spread=0)))
            exact.write('{"jitter": 0}')
            trace.flush(), exact.flush()
            flags = ["--config", str(FOLDER / f"{slo}.toml"), "--engine", exact.name, "--replicas", "4", "--signals-age", "50ms", "--json"]
            columns[f"{kind}, {at}/s, {slo}"] = replay(args.binary, trace.name, OURS + PEERS, flags)
    # Prompt work, where an older replay does not say requests.
    busiest = lambda run: run.get("requests_spread", run["load_spread"])
    show = lambda run: (f"{busiest(run):.2f} · {milliseconds(run['ttft_p50_s'])} / {milliseconds(run['ttft_p99_s'])} · "
                        f"{milliseconds(run['tpot_p99_s'])} · {100 * run['violations']:.1f} %")
    rows = [[policy, *(show(runs[policy]) for runs in columns.values())] for policy in OURS + PEERS]
    return "\n".join(["Busiest replica over mean · TTFT p50 / p99, ms · TPOT p99, ms · violations.", "",
                      *table(["policy", *columns], rows)])


def main():
    names = lambda known: lambda text: [known[known.index(name)] for name in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--first-table", action="store_true")
    parser.add_argument("--kinds", type=names(list(traffic.KINDS)))
    parser.add_argument("--engines", type=names(list(capacity.ENGINES)))
    parser.add_argument("--fleets", type=names(list(FLEETS)))
    parser.add_argument("--classes", type=names(CLASSES))
    parser.add_argument("--sample", type=int, metavar="N", help="so many cells, drawn from those that --quick has not")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=1, help="of the traces, and of the draw")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--peers-of", metavar="BINARY", help="run other projects' policies with this binary")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    if args.first_table:
        text = first_table(args)
    else:
        text = report(run_all(cells(args), args), args)
    is_whole = not (args.first_table or args.quick or args.sample or args.kinds or args.engines or args.fleets or args.classes)
    out = args.out or (RESULTS if is_whole else None)
    if out:
        out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
