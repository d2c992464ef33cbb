#!/usr/bin/env python3
"""Tells what moves the figures of `latency` from the noise of their seeds.

    python3 benches/routing/sensitivity.py BINARY                    figures, each with its standard error
    python3 benches/routing/sensitivity.py BINARY CHANGED            and what changed, by pairs of runs of one seed
    python3 benches/routing/sensitivity.py --constants [NAME,...]    every constant of src/routing/tuning off, halved and doubled

    [--traces DIR] [--cells N] [--seeds 5] [--out FILE]

Workloads are cells of the matrix, and the public traces where DIR has them. Those of which more than a tenth misses its bounds
are left out: what nobody can keep says nothing of a router. For --constants a copy of the sources under target/sensitivity gets
each constant times a factor from the environment; nothing in the checkout changes. Off is a price of nothing, a memory of
everything (a thousand times as long), a prior that counts for nothing. A change is called one from twice its standard error on.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess

import matrix

ROOT = pathlib.Path(__file__).parents[2]
COPY = ROOT / "target/sensitivity"
TUNING = "src/routing/tuning"
OFF = {"prices.rs": "0", "memories.rs": "1000", "priors.rs": "0.001"}
CELLS = [matrix.Cell(*cell) for cell in [
    ("rag", "32b", "4-one-slow", 0.7, "standard"),
    ("tenants", "32b", "4", 0.95, "standard"),
    ("agents", "32b", "4", 0.7, "interactive"),
    ("documents", "32b", "4", 0.7, "standard"),
    ("flash", "32b", "4", 0.7, "standard"),
    ("chat", "8b", "8-half-slow", 0.7, "standard"),
    ("completion", "32b", "4", 0.7, "standard"),
    ("bursts", "70b", "4", 0.7, "interactive"),
]]
# Trace, load, engine noise; as `benches/routing/tables.py goals`.
TRACES = [(name, load, jitter) for jitter in ("0", None)
          for name, load in [("mooncake_conversation", "0.6"), ("mooncake_conversation", "0.7"), ("toolagent_synth", "1")]]
KEPT = 0.1
TIMES = ("ttft_p50_s", "ttft_p99_s", "tpot_p99_s")


def run(binary, workload, seed, traces, tuned=()):
    """The figures of one workload under one seed."""
    if isinstance(workload, matrix.Cell):
        return matrix.run(workload, seed, {"latency": binary}, tuned)["latency"]
    name, load, jitter = workload
    flags = ["--config", str(matrix.FOLDER / "goal.toml"), "--replicas", "8", "--load", load, "--seeds", str(seed),
             "--threads", "1", "--json", *(["--jitter", jitter] if jitter else [])]
    key = matrix.digest(matrix.content(binary), name, *flags, *map(str, tuned))
    file = str(traces / f"{name}.jsonl")
    return matrix.cached(key, lambda: matrix.replay(binary, file, ["latency"], flags, tuned)["latency"])


def all_runs(pool, args, binary, tuned=()):
    """Every workload by seed: {workload: [figures]}."""
    workloads = CELLS[:args.cells] + (TRACES if args.traces else [])
    jobs = {(workload, seed): pool.submit(run, binary, workload, seed, args.traces, tuned)
            for workload in workloads for seed in range(1, args.seeds + 1)}
    return {workload: [jobs[workload, seed].result() for seed in range(1, args.seeds + 1)] for workload in workloads}


def spread(values):
    """Mean and standard error."""
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def change(before, after, figure):
    """Points of requests, or per cent of a time, by pairs of runs of one seed: mean and standard error."""
    if figure == "violations":
        return spread([100 * (b[figure] - a[figure]) for a, b in zip(before, after)])
    return spread([100 * math.log(max(b[figure], 1e-9) / max(a[figure], 1e-9)) for a, b in zip(before, after)])


def together(changes):
    """Of several workloads."""
    return statistics.fmean(mean for mean, _ in changes), math.sqrt(sum(error ** 2 for _, error in changes)) / len(changes)


def shown(found):
    mean, error = found
    return f"{'**' if abs(mean) > 2 * error + 1e-9 else ''}{mean:+.2f} ± {error:.2f}{'**' if abs(mean) > 2 * error + 1e-9 else ''}"


def kept(runs):
    return {workload: each for workload, each in runs.items() if statistics.fmean(run["violations"] for run in each) <= KEPT}


def name_of(workload):
    return str(workload) if isinstance(workload, matrix.Cell) else " ".join(filter(None, (workload[0], workload[1], workload[2] and "exact")))


def figures(runs):
    """One row a workload."""
    row = lambda each: [f"{100 * mean:.2f} ± {100 * error:.2f}" for mean, error in [spread([run["violations"] for run in each])]] + [
        f"{1000 * mean:.0f} ± {1000 * error:.0f}" for mean, error in (spread([run[figure] for run in each]) for figure in TIMES)]
    rows = [[name_of(workload), *row(each), "" if workload in kept(runs) else "left out"] for workload, each in runs.items()]
    return matrix.table(["workload", "missed, %", "TTFT p50, ms", "p99", "TPOT p99", ""], rows)


def changes(before, after):
    """One row a workload, and all together."""
    by = {workload: [change(each, after[workload], figure) for figure in ("violations", *TIMES)] for workload, each in kept(before).items()}
    rows = [[name_of(workload), *map(shown, each)] for workload, each in by.items()]
    rows.append(["**all**", *(shown(together(column)) for column in zip(*by.values()))])
    return matrix.table(["workload", "missed, points", "TTFT p50, %", "p99, %", "TPOT p99, %"], rows)


def constants(folder):
    """The constants: {(file, name): value}; makes them tunable in the folder."""
    found = {}
    for file in OFF:
        path = folder / TUNING / file
        source = path.read_text()
        for whole, name, kind, value in re.findall(r"^(pub\(crate\) const (\w+): (f64|u64|u32|i32|usize|Duration) = ([^;]+);)", source, re.M):
            found[file, name] = value
            times = f'std::env::var("TUNE_{name}").ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or(1.0)'
            scaled = {"f64": f"({value}) * by", "Duration": f"({value}).mul_f64(by)"}.get(kind, f"(({value}) as f64 * by).round() as {kind}")
            source = source.replace(whole, f"#[allow(non_snake_case)]\npub(crate) fn {name}() -> {kind} {{ static CELL: std::sync::OnceLock<{kind}> = "
                                           f"std::sync::OnceLock::new(); *CELL.get_or_init(|| {{ let by = {times}; {scaled} }}) }}")
        path.write_text(source)
    names = "|".join(name for _, name in found)
    # What is made of them at compile time has to be a function as well.
    made = re.compile(r"^( *)(pub(?:\([^)]*\))? )?const (\w+): ([^=]+?)\s*=\s*([^;]*(?:prices|memories|priors)::\w+\(\)[^;]*);", re.M)
    for path in (folder / "src").rglob("*.rs"):
        if path.parent.name != "tuning":
            text = re.sub(rf"\b((?:prices|memories|priors)::(?:{names}))\b(?!\()", r"\1()", path.read_text())
            calls = [r"MissCurve::(?:TTFT|TPOT)", *(derived[3] for derived in made.finditer(text))]
            text = made.sub(r"\1#[allow(non_snake_case)]\n\1\2fn \3() -> \4 { \5 }", text)
            path.write_text(re.sub(rf"(?<!fn )(?<![`\w])({'|'.join(calls)})\b(?!\()", r"\1()", text))
    return found


def build():
    """The binary of a tunable copy, and its constants."""
    for path in COPY.glob("*"):
        if path.name != "target":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    COPY.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "x"], cwd=COPY, input=archive, check=True)
    found = constants(COPY)
    quick = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16", "CARGO_PROFILE_RELEASE_DEBUG": "0"}
    subprocess.run(["cargo", "build", "--release", "--locked", "--bin", "tokenway"], cwd=COPY, env=os.environ | quick, check=True)
    return str(COPY / "target/release/tokenway"), found


def each_constant(pool, args):
    """One row a constant and factor: all workloads together."""
    binary, known = build()
    before = all_runs(pool, args, binary)
    lines = figures(before)
    rows = []
    for (file, name), value in known.items():
        if args.constants and name not in args.constants:
            continue
        for by in (OFF[file], "0.5", "2"):
            after = all_runs(pool, args, binary, ((f"TUNE_{name}", by),))
            columns = zip(*([change(each, after[workload], figure) for figure in ("violations", *TIMES)] for workload, each in kept(before).items()))
            rows.append([f"`{name}`", value, "off" if by == OFF[file] else f"× {by}", *(shown(together(column)) for column in columns)])
            print(*rows[-1], sep=" | ", flush=True)
    return lines + matrix.table(["constant", "is", "change", "missed, points", "TTFT p50, %", "p99, %", "TPOT p99, %"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", nargs="*")
    parser.add_argument("--constants", nargs="?", const="", type=lambda text: text.split(",") if text else [])
    parser.add_argument("--traces", type=pathlib.Path)
    parser.add_argument("--cells", type=int, default=len(CELLS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        if args.constants is not None:
            lines = each_constant(pool, args)
        else:
            runs = [all_runs(pool, args, binary) for binary in args.binaries]
            lines = figures(runs[-1]) + (changes(*runs) if len(runs) == 2 else [])
    text = f"{args.seeds} seeds; mean ± standard error; bold: more than twice that.\n\n" + "\n".join(lines)
    args.out.write_text(text) if args.out else print(text)


if __name__ == "__main__":
    main()
