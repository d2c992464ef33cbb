#!/usr/bin/env python3
"""What each constant of the latency policy does: halved and doubled, on cells of the matrix.

    python3 benches/routing/sensitivity.py [--binary TUNABLE] [--seeds 1] [--files score.rs,backlog.rs]      to target/sensitivity.md

The product has no knobs for this. A copy of the sources under target/sensitivity gets each constant of CONSTANTS multiplied by a
factor read from the environment and is built once, without optimisation across crates; nothing in the checkout changes. Written are
the geometric means over the cells of each time against the constant as it is, the violations in points, and the worst cells.
Where a share of the past is kept at each observation (`kept`), what is forgotten is halved and doubled.
"""
import argparse
import concurrent.futures
import datetime
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import judge
import matrix
import traffic

ROOT = pathlib.Path(__file__).parents[2]
COPY = ROOT / "target/sensitivity"
RESULTS = ROOT / "target/sensitivity.md"
# File under src/routing: the constants in it. Not here are sizes of tables, limits on nonsense, and what only the other policies use.
CONSTANTS = {
    "score.rs": ["DECODE", "UNNOTICED", "MISS"],
    "bound.rs": ["LATE_AT", "LATE_WITHIN", "LATER", "SLOW_AT", "SLOW_WITHIN", "SLOWER"],
    "backlog.rs": ["RISING", "FALLING", "OTHERS_WAIT", "OTHERS_IN_QUEUE", "FEW"],
    "policies/latency.rs": ["NEAR", "ERROR"],
    "verdict.rs": ["PATIENCE", "TOLERATED_HARM"],
    "foreign.rs": ["HALF_TRUST"],
    "work.rs": ["STEP_TOKENS"],
    "batch_limit.rs": ["FULL", "ENOUGH"],
    "predictor/estimate.rs": ["LATE_FROM", "LATE_AFTER"],
    "predictor/fit.rs": ["SCALE_WEIGHT", "FREE_OBSERVATIONS", "JITTER", "OUTLIER", "CHANGE"],
    "predictor/pool.rs": ["UNSEEN_RATES", "UNSEEN_UNCACHED", "SHAPE", "ALIKE_AT_FIRST", "PUBLISH_EVERY"],
    "predictor/replica.rs": ["SPEED", "STEPS", "LEARNED", "HALF_TRUST", "ALIKE"],
    "prefix_index/allowance.rs": ["EXACT", "SLACK", "SHRINK", "TOLERATED", "LEAST_SHARE", "BELIEVED", "LEARNED"],
    "prefix_index/beyond.rs": ["STEP", "MOST"],
    "prefix_index/shared.rs": ["MEMORY"],
    "load/concurrency.rs": ["ENOUGH", "TRIED_EVERY"],
    "load/books.rs": ["ONE_STEP", "PACE_OVER", "TOLD_WITHIN"],
    "hazard/lengths.rs": ["REMEMBERED", "PRIOR_ANSWERS", "PRIOR_MEAN"],
}
# Constants that other files read as well.
READERS = {"PATIENCE": ["dispatcher.rs"], "LEARNED": ["predictor/pool.rs"],
           "STEP_TOKENS": ["load/books.rs", "predictor/estimate.rs"]}
# Kinds, engines, fleets, loads and classes in which each constant has something to do, and how many requests a run has at least.
CELLS = [matrix.Cell(*cell) for cell in [
    ("rag", "32b", "4-one-slow", 0.7, "standard"),
    ("tenants", "32b", "4", 0.95, "standard"),
    ("documents", "32b", "4", 0.95, "standard"),
    ("books", "32b", "4-one-slow", 0.7, "standard"),
    ("unshared", "70b", "4", 0.7, "interactive"),
]]
REQUESTS, MIN_MINUTES = 1000, 1


def key(file, name):
    return f"TUNE_{file.removesuffix('.rs').replace('/', '_')}_{name.replace('.', '_')}".upper()


def factor(file, name):
    return f'std::env::var("{key(file, name)}").ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or(1.0)'


def scaled(file, name, kind, value):
    """The constant's value times its factor, as an expression."""
    own = factor(file, name)
    if kind == "f64":
        return f"({value}) * {own}"
    if kind == "Duration":
        return f"({value}).mul_f64({own})"
    if kind.startswith("["):
        return f"({value}).map(|each| each * {own})"
    if kind == "Memory":
        fields = [f"{field}: {memory(file, name, field, number)}" for field, number in re.findall(r"(\w+): ([\w.:]+)", value)]
        return f"Memory {{ {', '.join(fields)} }}"
    rounded = "" if kind == "f32" else ".round()"
    return f"(f64::from({value}_{kind}) * {own}){rounded} as {kind}" if kind in ("f32", "u32") else f"(({value}) as f64 * {own}).round() as {kind}"


def memory(file, name, field, number):
    own = factor(file, f"{name}.{field}")
    if field == "kept":
        return f"{number} + (1.0 - {number}) * (1.0 - {own})"
    return f"({number} * {own})"


def without_imports(source, change):
    """The source with everything changed but its imports, its comments and its tests."""
    body, tests, rest = source.partition("#[cfg(test)]\nmod tests")
    parts = re.split(r"(^(?:pub(?:\([a-z:]+\))? )?use [^;]+;|^\s*//.*$)", body, flags=re.M)
    return "".join(part if at % 2 else change(part) for at, part in enumerate(parts)) + tests + rest


def called(source, name):
    return without_imports(source, lambda part: re.sub(rf"(?<!\w){name}(?![\w(])", f"{name}()", part))


def tunable(source, file, name):
    """The source with the constant times its factor, and what can be tuned of it: {name: value as it is written}."""
    found = re.search(rf"^((?:pub(?:\([a-z:]+\))? )?)const {name}: ([^=]+) = ([^;]+);", source, re.M)
    how, kind, value = found.groups()
    source = called(source.replace(found[0], "\0"), name)
    read = (f"#[allow(non_snake_case, missing_docs)]\n{how}fn {name}() -> {kind} {{\n    static CELL: std::sync::OnceLock<{kind}> = "
            f"std::sync::OnceLock::new();\n    *CELL.get_or_init(|| {scaled(file, name, kind, value)})\n}}")
    fields = re.findall(r"(\w+): ([\w.:]+)", value) if kind == "Memory" else []
    values = {f"{name}.{field}": number for field, number in fields} or {name: value}
    return source.replace("\0", read), values


def constants(folder, write):
    """Every constant with its value: {(file, name): value}; with `write`, made tunable in the folder."""
    found = {}
    sources = {}
    read = lambda file: sources.setdefault(file, (folder / "src/routing" / file).read_text())
    for file, names in CONSTANTS.items():
        for name in names:
            sources[file], values = tunable(read(file), file, name)
            found |= {(file, part): value for part, value in values.items()}
    for name, files in READERS.items():
        for file in files:
            sources[file] = called(read(file), name)
    if write:
        for file, source in sources.items():
            (folder / "src/routing" / file).write_text(source)
    return found


def build():
    """The binary of a tunable copy."""
    shutil.rmtree(COPY, ignore_errors=True)
    COPY.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "x"], cwd=COPY, input=archive, check=True)
    constants(COPY, write=True)
    quick = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
    subprocess.run(["cargo", "build", "--release", "--bin", "tokenway"], cwd=COPY, env=os.environ | quick, check=True)
    return COPY / "target/release/tokenway"


def traced(folder, cell, seed):
    """A trace of one cell in a file."""
    replicas, slow = matrix.FLEETS[cell.fleet]
    at = round(cell.load * matrix.rate(cell.kind, cell.engine) * (replicas - sum(1 - 1 / by for by in slow.values())) / replicas, 3)
    minutes = max(MIN_MINUTES, min(traffic.KINDS[cell.kind].minutes, REQUESTS / at / 60))
    path = pathlib.Path(folder) / f"{cell.kind}-{seed}.jsonl"
    path.write_text(traffic.text(traffic.requests(cell.kind, at, minutes, seed)))
    return str(path)


def run(binary, trace, cell, seed, tuned):
    """The figures of one cell with these factors: {key: factor}."""
    replicas, slow = matrix.FLEETS[cell.fleet]
    flags = ["--replicas", str(replicas), "--seeds", str(seed), "--signals-age", "1s", "--threads", "1", "--json",
             "--engine", str(matrix.engine_file(cell.engine)), "--config", str(matrix.FOLDER / f"{cell.slo}.toml")]
    for replica, by in slow.items():
        flags += ["--slow", f"{replica}={by}"]
    os.environ.update(tuned)
    try:
        return matrix.replay(binary, trace, ["latency"], flags)["latency"]
    finally:
        for name in tuned:
            del os.environ[name]


def row(name, value, by, found, usual):
    """One line of the table: the change against `usual`."""
    ratio = lambda cell, figure: judge.mean(found[cell], figure) / max(judge.mean(usual[cell], figure), 1e-9)
    change = lambda ratio: f"{100 * (ratio - 1):+.1f}"
    means = [math.exp(sum(math.log(ratio(cell, figure)) for cell in CELLS) / len(CELLS)) for figure in judge.TIMES]
    points = {cell: 100 * (judge.mean(found[cell], "violations") - judge.mean(usual[cell], "violations")) for cell in CELLS}
    if all(found[cell] == usual[cell] for cell in CELLS):
        return [f"`{name}`", value, by, "nothing", *[""] * 6]
    worst, figure = max(((cell, figure) for cell in CELLS for figure in judge.TIMES), key=lambda at: ratio(*at))
    most = max(CELLS, key=points.get)
    return [f"`{name}`", value, by, *map(change, means), f"{sum(points.values()) / len(points):+.2f}",
            f"{most.kind} {points[most]:+.2f}", f"{worst.kind} {figure[:-2].replace('_', ' ')} {change(ratio(worst, figure))}"]


def report(rows, args):
    cells = "; ".join(str(cell) for cell in CELLS)
    files = "" if args.files == list(CONSTANTS) else f" --files {','.join(args.files)}"
    head = ["constant", "is", "times", "TTFT p50, %", "p90, %", "p99, %", "TPOT p99, %", "violations, points", "most violations",
            "worst time, %"]
    return "\n".join([
        "# What each constant of `latency` does", "", "Generated by `benches/routing/sensitivity.py`; do not edit.", "",
        f"Measured {datetime.date.today()} with `python3 benches/routing/sensitivity.py --seeds {args.seeds}{files}`: "
        f"geometric means over {len(CELLS)} cells against the constant as it is, {args.seeds} seed{'s' * (args.seeds > 1)}. Units and reasons "
        "stand at the constants.", "",
        f"Cells: {cells}.", "", *matrix.table(head, rows)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="a tunable copy that was built before")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--files", type=lambda text: text.split(","), default=list(CONSTANTS), help="those of src/routing to be tuned")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    binary = args.binary or str(build())
    known = constants(ROOT, write=False)
    tunings = [((file, name), by) for file, name in known if file in args.files for by in ("0.5", "2")]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        cells = [(cell, seed) for cell in CELLS for seed in range(1, args.seeds + 1)]
        traces = list(pool.map(traced, [folder] * len(cells), *zip(*cells)))
        jobs = [(binary, trace, *cell, {key(*at): by} if at else {})
                for at, by in [(None, "1"), *tunings] for trace, cell in zip(traces, cells)]
        done = []
        for figures in pool.map(run, *zip(*jobs)):
            done.append({name: value for name, value in figures.items() if name in ("violations", *judge.TIMES)})
            if len(done) % (20 * len(cells)) == 0:
                print(f"{len(done)} of {len(jobs)} runs", file=sys.stderr, flush=True)
    each = lambda at: {cell: done[at * len(cells):][i * args.seeds:(i + 1) * args.seeds] for i, cell in enumerate(CELLS)}
    usual = each(0)
    rows = [row(f"{file} {name}", known[file, name], by, each(at), usual) for at, ((file, name), by) in enumerate(tunings, 1)]
    args.out.write_text(report(rows, args))


if __name__ == "__main__":
    main()
