#!/usr/bin/env python3
"""What each constant of the latency policy does: halved and doubled, on cells of the matrix.

    python3 benches/routing/sensitivity.py [--binary TUNABLE] [--seeds 2]

The product has no knobs for this. A copy of the sources under target/sensitivity gets each constant of CONSTANTS replaced by a value
read from the environment and is built once; nothing in the checkout changes. Printed are the geometric means over the cells of
each time against the constant as it is, the violations in points, and the worst cell's largest time.
"""
import argparse
import math
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import judge
import matrix
import traffic

ROOT = pathlib.Path(__file__).parents[2]
COPY = ROOT / "target/sensitivity"
# File under src/routing: the constants in it.
CONSTANTS = {
    "score.rs": ["DECODE", "UNNOTICED", "MISS_AT", "MISS_WITHIN"],
    "backlog.rs": ["MOST_OF_ONE", "OTHERS_WAIT", "OTHERS_IN_QUEUE", "MISS", "MISSED_ANYWAY", "FEW"],
    "standing.rs": ["HALF_A_WINDOW", "RISING", "FALLING"],
    "policies/latency.rs": ["NEAR", "ERROR"],
    "predictor/estimate.rs": ["LATE_FROM", "LATE_AFTER", "MOST_LAG"],
    "predictor/replica.rs": ["ALIKE", "HALF_TRUST"],
    "prefix_index/shared.rs": ["MEMORY"],
    "verdict.rs": ["PATIENCE", "TOLERATED_HARM"],
    "foreign.rs": ["HALF_TRUST"],
}
# Kinds, engines, fleets, loads and classes in which each constant has something to do.
CELLS = [matrix.Cell(*cell) for cell in [
    ("chat", "32b", "4", 0.7, "standard"),
    ("rag", "32b", "4-one-slow", 0.7, "standard"),
    ("tenants", "32b", "4", 0.95, "standard"),
    ("documents", "32b", "4", 0.95, "standard"),
    ("completion", "70b", "8-half-slow", 0.95, "standard"),
    ("flash", "32b", "4", 0.95, "standard"),
    ("agents", "32b", "4", 0.7, "interactive"),
    ("unshared", "70b", "4", 0.7, "interactive"),
    ("bursts", "32b", "4", 0.7, "standard"),
    ("embeddings", "8b", "4-one-slow", 0.7, "interactive"),
]]


def key(file, name):
    return f"TUNE_{file.removesuffix('.rs').replace('/', '_')}_{name}".upper()


def tunable(source, file, name):
    """The source with the constant read from the environment, and the constant's value."""
    found = re.search(rf"^((?:pub(?:\([a-z]+\))? )?)const {name}: (f64|Duration) = ([^;]+);", source, re.M)
    how, kind, value = found.groups()
    span = re.match(r"Duration::from_(secs|millis)\((\d+)\)", value)
    number = float(value) if not span else float(span[2]) / (1000 if span[1] == "millis" else 1)
    wrap = "Duration::from_secs_f64" if span else ""
    read = (f"#[allow(non_snake_case)]\n{how}fn {name}() -> {kind} {{\n    static CELL: std::sync::OnceLock<{kind}> = "
            f"std::sync::OnceLock::new();\n    *CELL.get_or_init(|| {wrap}(std::env::var(\"{key(file, name)}\").ok()"
            f".and_then(|text| text.parse().ok()).unwrap_or({number!r})))\n}}")
    source = source.replace(found[0], read)
    return re.sub(rf"(?<![A-Za-z_\"`\[]){name}(?![A-Za-z_(\"`\]])", f"{name}()", source), number


def constants(folder, write):
    """Every constant with its value: {(file, name): value}; with `write`, made tunable in the folder."""
    found = {}
    for file, names in CONSTANTS.items():
        path = folder / "src/routing" / file
        source = path.read_text()
        for name in names:
            source, found[file, name] = tunable(source, file, name)
        if write:
            path.write_text(source)
    return found


def build():
    """The binary of a tunable copy."""
    shutil.rmtree(COPY, ignore_errors=True)
    COPY.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "x"], cwd=COPY, input=archive, check=True)
    constants(COPY, write=True)
    # Used by their names from another file.
    path = COPY / "src/routing/dispatcher.rs"
    path.write_text(re.sub(r"\bPATIENCE }", "PATIENCE() }", path.read_text()))
    subprocess.run(["cargo", "build", "--release", "--bin", "tokenway"], cwd=COPY, check=True)
    return COPY / "target/release/tokenway"


def runs(binary, traces, seeds):
    """The figures of every cell under every seed, with the environment as it is."""
    found = {}
    for cell in CELLS:
        replicas, slow = matrix.FLEETS[cell.fleet]
        flags = ["--replicas", str(replicas), "--signals-age", "1s", "--threads", "1", "--json", "--engine",
                 str(matrix.engine_file(cell.engine)), "--config", str(matrix.FOLDER / f"{cell.slo}.toml")]
        for replica, factor in slow.items():
            flags += ["--slow", f"{replica}={factor}"]
        found[cell] = [matrix.replay(binary, traces[cell, seed], ["latency"], [*flags, "--seeds", str(seed)])["latency"]
                       for seed in range(1, seeds + 1)]
    return found


def made_traces(folder, seeds):
    """The trace of each cell and seed, as the matrix would have it."""
    made = {}
    for cell in CELLS:
        replicas, slow = matrix.FLEETS[cell.fleet]
        equal = replicas - sum(1 - 1 / factor for factor in slow.values())
        at = round(cell.load * matrix.rate(cell.kind, cell.engine) * equal / replicas, 3)
        for seed in range(1, seeds + 1):
            made[cell, seed] = str(pathlib.Path(folder) / f"{cell.kind}-{seed}.jsonl")
            text = traffic.text(traffic.requests(cell.kind, at, traffic.KINDS[cell.kind].minutes, seed))
            pathlib.Path(made[cell, seed]).write_text(text)
    return made


def row(name, value, factor, found, usual):
    """One line of the table: the change against `usual`."""
    ratio = lambda cell, figure: judge.mean(found[cell], figure) / max(judge.mean(usual[cell], figure), 1e-9)
    change = lambda ratio: f"{100 * (ratio - 1):+.1f}"
    means = [math.exp(sum(math.log(ratio(cell, figure)) for cell in CELLS) / len(CELLS)) for figure in judge.TIMES]
    points = [100 * (judge.mean(found[cell], "violations") - judge.mean(usual[cell], "violations")) for cell in CELLS]
    worst, figure = max(((cell, figure) for cell in CELLS for figure in judge.TIMES), key=lambda at: ratio(*at))
    largest = max(range(len(CELLS)), key=lambda at: points[at])
    return [f"`{name}`", f"{value * factor:g}", *map(change, means), f"{sum(points) / len(points):+.2f}",
            f"{CELLS[largest].kind} {points[largest]:+.2f}", f"{worst.kind} {figure[:-2].replace('_', ' ')} {change(ratio(worst, figure))}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="a tunable copy that was built before")
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    binary = args.binary or str(build())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        traces = made_traces(folder, args.seeds)
        usual = runs(binary, traces, args.seeds)
        for (file, name), value in constants(ROOT, write=False).items():
            for factor in (0.5, 2):
                os.environ[key(file, name)] = repr(value * factor)
                rows.append(row(f"{file} {name}", value, factor, runs(binary, traces, args.seeds), usual))
            del os.environ[key(file, name)]
    print("\n".join(matrix.table(["constant", "is", "TTFT p50, %", "p90, %", "p99, %", "TPOT p99, %", "violations, points",
                                   "most violations", "worst time, %"], rows)))


if __name__ == "__main__":
    main()
