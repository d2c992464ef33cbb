#!/usr/bin/env python3
"""Runs the comparison of routing policies: all tables to target/routing-tables.md, missed SLOs of `goals` to docs/results.md.

    python3 benches/routing/tables.py target/release/tokenway TRACES [SECTION ...]

TRACES is a directory with mooncake_conversation.jsonl and toolagent_synth.jsonl, the traces that the policy was made on; other
traffic is matrix.py's. Without sections all are run, which takes about an hour on two cores; `goals` alone takes some minutes.
Sections that are not run stay as they are in the file, each with the date and the commit of its own measurement.
"""

import datetime
import json
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "target/routing-tables.md", ROOT / "docs/results.md"
# As a route without a queue places requests, and as one with a queue admits them: both settled beforehand.
CONFIGS = {"benches/routing/goal.toml": "latency", "benches/routing/queue.toml": "latency, with a queue"}
CONVERSATION, TOOLS = "mooncake_conversation.jsonl", "toolagent_synth.jsonl"
SIMPLE = ["round_robin", "least_loaded", "power_of_two", "chwbl", "chwbl_3_blocks"]
PEERS = ["sglang_cache_aware", "llm_d", "llm_d_token_load", "dynamo", "dynamo_prefill_4", "smetric"]
ALL = SIMPLE + ["prefix"] + PEERS + ["oracle"]
BEST = ["least_loaded", "llm_d_token_load", "dynamo_prefill_4", "smetric", "oracle"]


def by(*names):
    words = {"slow": slow, "signals_age_s": lambda run: f"signals {run['signals_age_s']:g} s old"}
    return lambda run: ", ".join(words.get(name, lambda run: f"{name} {run[name]:g}")(run) for name in names)


def slow(run):
    return "one 2x slower" if run["slow"] else "all alike"


# As the published figures were taken: an engine without noise, fresh signals where nothing else is said.
EXACT = ["--jitter", "0"]
FRESH = ["--signals-age", "50ms"]

# section: title, what is common, (trace, policies, flags) of each run, column of a run
SECTIONS = {
    "goals": ("8 replicas, fresh signals", [
        (CONVERSATION, ALL, ["--replicas", "8", "--load", "0.6,0.7", "--seeds", "1,2,3"]),
        (TOOLS, ALL, ["--replicas", "8", "--load", "1,1.3", "--seeds", "1,2,3"]),
    ], by("load")),
    "load": ("8 replicas, from light load to overload", [
        (CONVERSATION, ALL, ["--replicas", "8", "--load", "0.35,0.5,0.6,0.7,0.75,0.8,0.85"]),
        (TOOLS, ALL, ["--replicas", "8", "--load", "0.5,0.75,0.9,1,1.1,1.2,1.3"]),
    ], by("load")),
    "size": ("4 to 64 replicas", [
        (CONVERSATION, BEST, ["--replicas", "4,8,16,64", "--load", "0.6"]),
        (TOOLS, BEST, ["--replicas", "4,8,16,64", "--load", "1"]),
    ], by("replicas", "load")),
    "slow": ("8 replicas, one of them 2 x slower, unknown to the router", [
        (CONVERSATION, ALL, ["--replicas", "8", "--load", "0.6", "--seeds", "1,2,3", "--slow", "7=2"]),
        (TOOLS, ALL, ["--replicas", "8", "--load", "0.8", "--seeds", "1,2,3", "--slow", "7=2"]),
    ], by("load", "slow")),
    "stale": ("8 replicas, signals 2 s old", [
        (CONVERSATION, ALL, ["--replicas", "8", "--load", "0.6", "--signals-age", "50ms,2s"]),
        (TOOLS, ALL, ["--replicas", "8", "--load", "1", "--signals-age", "50ms,2s"]),
    ], by("load", "signals_age_s")),
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
    """The runs of one command, and the command as a reader would type it."""
    configs = [word for config in CONFIGS for word in ("--config", config)]
    fresh = [] if "--signals-age" in flags else FRESH
    command = ["replay", str(traces / trace), *configs, "--policies", ",".join(policies), *flags, *EXACT, *fresh]
    shown = ["tokenway", "replay", trace, *command[2:]]
    done = subprocess.run([binary, "--log-level", "off", *command, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout), ["```sh", shlex.join(shown), "```", ""]


def row(run):
    return f"**{CONFIGS[run['config']]}**" if "config" in run else run["policy"]


def tables(runs, column):
    """One table for one or two columns, each figure with a cell for both; for a range one table a figure."""
    columns = list(dict.fromkeys(column(r) for r in runs))
    rows = list(dict.fromkeys(row(r) for r in runs))
    value = {(title, name, of): cell([r for r in runs if row(r) == name and column(r) == of])
             for title, cell in CELLS.items() for name in rows for of in columns}
    if len(columns) <= 2:
        return table([" · ".join(columns), *CELLS],
                     [[name, *(" · ".join(value[title, name, of] for of in columns) for title in CELLS)] for name in rows])
    return [line for title in RANGE
            for line in table([title, *columns], [[name, *(value[title, name, of] for of in columns)] for name in rows])]


def table(heading, rows):
    line = lambda cells: "| " + " | ".join(cells) + " |"
    return [line(heading), "|---" * len(heading) + "|", *map(line, rows), ""]


def measured():
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True, check=True)
    return f"Measured {datetime.date.today()} at {commit.stdout.strip()}."


def main():
    if len(sys.argv) < 3 or any(section not in SECTIONS for section in sys.argv[3:]):
        sys.exit(__doc__ + "\nSections: " + ", ".join(SECTIONS))
    binary, traces = sys.argv[1], pathlib.Path(sys.argv[2])
    for section in sys.argv[3:] or SECTIONS:
        title, parts, column = SECTIONS[section]
        lines, found = [f"## {title}", "", measured(), ""], []
        for part in parts:
            runs, command = run(binary, traces, *part)
            lines += command + tables(runs, column)
            found.append((part[0].partition("_")[0].removesuffix(".jsonl"), runs))
        replace(f"## {title}\n", "\n".join(lines))
        if section == "goals":
            publish(missed(found, column))


def replace(heading, section):
    """Puts a section in the place of the one with this heading, or at the end."""
    text = RESULTS.read_text() if RESULTS.exists() else "# Routing in simulated time\n"
    head, *sections = ("\n" + text).split("\n## ")
    sections = ["## " + section.strip("\n") + "\n" for section in sections]
    at = next((at for at, old in enumerate(sections) if old.startswith(heading)), len(sections))
    sections[at:at + 1] = [section.strip("\n") + "\n"]
    RESULTS.write_text("\n".join([head.strip("\n") + "\n", *sections]))


def missed(found, column):
    """Missed SLOs of several commands in one table: their traces and loads are its columns."""
    cell = CELLS["SLO violations, %"]
    columns = [(f"{name}, {of}", [r for r in runs if column(r) == of])
               for name, runs in found for of in dict.fromkeys(column(r) for r in runs)]
    rows = dict.fromkeys(row(r) for _, runs in columns for r in runs)
    return table(["policy", *(title for title, _ in columns)],
                 [[name, *(cell([r for r in runs if row(r) == name]) for _, runs in columns)] for name in rows])


def publish(lines):
    """Puts a table between the marks of the results page."""
    head, _, rest = PAGE.read_text().partition("<!-- routing -->\n")
    _, _, tail = rest.partition("<!-- /routing -->")
    PAGE.write_text("\n".join([f"{head}<!-- routing -->", measured(), "", *lines[:-1], f"<!-- /routing -->{tail}"]))


if __name__ == "__main__":
    main()
