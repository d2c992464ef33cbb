#!/usr/bin/env python3
"""What four replicas can do of a kind of traffic, from the engine model alone; the matrix's loads are shares of it.

    python3 benches/routing/capacity.py BINARY [KIND:ENGINE ...]     checks the estimate by bisection

A step takes `t = step + W t + (D per_seq + C context) t` where, for each second of traffic at one replica, W seconds are
spent on uncached prompt tokens U, D tokens are decoded, and C tokens of context read for them; n = D t sequences decode at a
time. The fleet keeps up while that has a solution with n within the batch limit and the KV cache, and n + U t within the
step's token budget. Cached is what one LRU cache finds that is CACHE_SHARE of the fleet's. The check raises the rate until
none of three policies keeps the p90 of TTFT within ten seconds and that of a prefill with nothing cached.
"""
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

import traffic

FOLDER = pathlib.Path(__file__).parent
ENGINES = {path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "engines").glob("*.json"))}
REPLICAS = 4
# Of the fleet's KV cache: the rest is held by running requests, or holds what other replicas hold too.
CACHE_SHARE = 0.35
# No run of the matrix has this seed.
SEED = 1000
PEAK_MS = 120_000
# Where the best policy's prompts queue instead of being late now and then, seconds.
QUEUED_S = 10
CHECKED_BY = ["round_robin", "prefix", "oracle"]


def uncached(lines, capacity):
    """Prompt tokens of each request that one LRU cache of so many blocks does not have."""
    cache = collections.OrderedDict()
    for line in lines:
        ids, hits = line["hash_ids"], 0
        # The last token is always computed, and only full blocks are kept.
        full = (line["input_length"] - 1) // traffic.BLOCK
        for id in ids[:full]:
            if id not in cache:
                break
            hits += 1
        for id in reversed(ids[:full]):
            cache[id] = None
            cache.move_to_end(id)
        while len(cache) > capacity:
            cache.popitem(last=False)
        yield line["input_length"] - hits * traffic.BLOCK


def busiest(lines, weights):
    """The requests of the two minutes with the largest sum of weights."""
    best, first, sum_now, found = 0.0, 0, 0.0, (0, 0)
    for last, line in enumerate(lines):
        sum_now += weights[last]
        while line["timestamp"] - lines[first]["timestamp"] > PEAK_MS:
            sum_now -= weights[first]
            first += 1
        if sum_now > best:
            best, found = sum_now, (first, last + 1)
    return range(*found)


def rate(kind, engine):
    """Requests/s of a kind that four replicas of an engine can just do, as the kind counts its rate."""
    usual = traffic.KINDS[kind].rate
    return highest(lambda at: keeps_up(kind, engine, at), usual / 16, usual * 8, 0.02)


def keeps_up(kind, engine, at):
    """Whether four replicas can do this rate. It is tried on traffic of this rate: faster sessions overlap more in the caches."""
    own = traffic.KINDS[kind]
    lines = traffic.requests(kind, at, own.minutes, SEED)
    new = list(uncached(lines, int(CACHE_SHARE * REPLICAS * engine["kv_tokens"] / traffic.BLOCK)))
    work = [prefill(engine, line["input_length"], u) for line, u in zip(lines, new)]
    decode = engine["step_per_seq_s"] + engine["step_s"] / engine["max_num_seqs"]
    weights = [w + line["output_length"] * decode for w, line in zip(work, lines)]
    part = busiest(lines, weights) if own.has_peak else range(len(lines))
    seconds = PEAK_MS / 1000 if own.has_peak else 60 * own.minutes
    per_second = lambda value: sum(value(at) for at in part) / seconds / REPLICAS
    output = lambda at: lines[at]["output_length"] - 1
    decoded = per_second(output)
    read = per_second(lambda at: output(at) * (lines[at]["input_length"] + output(at) / 2))
    held = per_second(lambda at: output(at) * (new[at] + output(at) / 2 + traffic.BLOCK)) / max(decoded, 1e-9)
    rest = 1 - per_second(lambda at: work[at]) - decoded * engine["step_per_seq_s"] - read * engine["context_token_s"]
    if rest <= 0:
        return False
    step = engine["step_s"] / rest
    running = decoded * step
    prompt = per_second(lambda at: new[at]) * step
    return running <= min(engine["max_num_seqs"], engine["kv_tokens"] / max(held, 1)) and running + prompt <= engine["max_batched_tokens"]


def prefill(engine, prompt, new):
    """Seconds to compute the last `new` tokens of a prompt."""
    return new * engine["prompt_token_s"] + engine["attention_pair_s"] * new * (prompt - new / 2)


def highest(holds, low, high, precision):
    """The highest number for which `holds`, by bisection of ratios."""
    while high / low > 1 + precision:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def measured(binary, kind, engine, estimate):
    """The rate that the best of three policies keeps up with."""
    minutes = max(traffic.KINDS[kind].minutes, 5)

    def is_prompt(times):
        lines = traffic.requests(kind, times * estimate, minutes, SEED)
        lone = sorted(prefill(ENGINES[engine], line["input_length"], line["input_length"]) for line in lines)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write(traffic.text(lines))
            file.flush()
            command = [binary, "--log-level", "off", "replay", file.name, "--policies", ",".join(CHECKED_BY), "--json",
                       "--replicas", str(REPLICAS), "--threads", "1", "--engine", str(FOLDER / f"engines/{engine}.json")]
            runs = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        return min(run["ttft_p90_s"] for run in runs) < QUEUED_S + lone[len(lone) * 9 // 10]

    return estimate * highest(is_prompt, 0.5, 2, 0.05)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    cells = sys.argv[2:] or [f"{kind}:{engine}" for kind in traffic.KINDS for engine in ENGINES]
    for kind, engine in (cell.split(":") for cell in cells):
        estimate = rate(kind, ENGINES[engine])
        found = measured(sys.argv[1], kind, engine, estimate)
        print(f"{kind:12} {engine:4} estimate {estimate:7.2f}/s, measured {found:7.2f}/s ({found / estimate:.2f})", flush=True)


if __name__ == "__main__":
    main()
