#!/usr/bin/env python3
"""Writes made-up request traces, unlike the public ones, in Mooncake's format, for `tokenway replay`.

    python3 benches/routing/unseen.py FOLDER [--seed 1]

Four sorts of traffic that differ from the public traces in what matters to routing: how much prompts share and with whom, how
long sessions grow, how arrivals come, how much sizes differ. Shapes and constants are made up, not measured.
"""
import argparse
import itertools
import json
import math
import pathlib
import random

BLOCK = 512
HOUR = 3600.0


class Trace:
    """Requests in the order of their arrival; equal ids are equal prefixes up to and including that block."""

    def __init__(self, dice):
        self.dice, self.lines, self.next_id = dice, [], 0

    def blocks(self, tokens):
        """Ids for new text that fills so many tokens, a begun block included."""
        count = -(-tokens // BLOCK)
        self.next_id += count
        return list(range(self.next_id - count, self.next_id))

    def ask(self, at, shared, own_tokens, output):
        """A request that begins with the shared blocks; returns its whole blocks, for those that continue it."""
        ids = shared + self.blocks(own_tokens)
        if at < HOUR:
            length = len(shared) * BLOCK + own_tokens
            self.lines.append({"timestamp": int(at * 1000), "input_length": length, "output_length": max(1, output), "hash_ids": ids})
        return ids[:-1]

    def sized(self, median, sigma, most):
        return max(1, min(most, int(math.exp(self.dice.gauss(math.log(median), sigma)))))

    def arrivals(self, rate):
        at = self.dice.expovariate(rate)
        while at < HOUR:
            yield at
            at += self.dice.expovariate(rate)


def documents(trace, rate=8.5):
    """Questions about documents behind one system prompt: a few documents are asked about all the time, most seldom."""
    dice, system = trace.dice, trace.blocks(2 * BLOCK)
    library = [system + trace.blocks(BLOCK * dice.randint(4, 30)) for _ in range(600)]
    popularity = list(itertools.accumulate(1.0 / (rank + 3) ** 0.9 for rank in range(len(library))))
    for at in trace.arrivals(rate):
        [document] = dice.choices(library, cum_weights=popularity)
        trace.ask(at, document, trace.sized(180, 0.5, 2000), trace.sized(160, 0.7, 1500))


def agents(trace, rate=0.3):
    """Agents that take ten to sixty steps each: every step sends all before it, and what the last tool said."""
    dice = trace.dice
    kinds = [trace.blocks(BLOCK * dice.randint(3, 14)) for _ in range(7)]
    for begin in trace.arrivals(rate):
        at, context = begin, dice.choice(kinds)
        for _ in range(dice.randint(10, 60)):
            output = trace.sized(70, 0.8, 2000)
            context = trace.ask(at, context, trace.sized(700, 0.9, 12_000), output)
            # The answer takes its time, then the tool does.
            at += 0.3 + 0.03 * output + trace.sized(900, 1.0, 60_000) / 1000
            if len(context) * BLOCK > 60_000:
                break


def bursts(trace, rate=2.5):
    """Chats whose users come five at a time, within seconds, every two minutes, and few between."""
    dice = trace.dice
    systems = [trace.blocks(BLOCK * dice.randint(1, 4)) for _ in range(40)]
    for begin in trace.arrivals(rate * 3):
        is_burst = begin % 120 < 24
        if not is_burst and dice.random() > 0.2:
            continue
        at, context = begin, dice.choice(systems)
        for _ in range(1 + int(dice.expovariate(1 / 4))):
            output = trace.sized(260, 0.8, 3000)
            context = trace.ask(at, context, trace.sized(900, 1.1, 20_000), output)
            at += 1 + 0.03 * output + dice.expovariate(1 / 25)


def mixed(trace, rate=9.75):
    """Short prompts that share nothing, and one in twenty that is a book."""
    dice = trace.dice
    for at in trace.arrivals(rate):
        tokens = trace.sized(30_000, 0.5, 90_000) if dice.random() < 0.05 else trace.sized(700, 0.8, 8_000)
        trace.ask(at, [], tokens, trace.sized(200, 0.9, 2500))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for kind in (documents, agents, bursts, mixed):
        trace = Trace(random.Random(f"{kind.__name__}-{args.seed}"))
        kind(trace)
        trace.lines.sort(key=lambda line: line["timestamp"])
        path = args.folder / f"{kind.__name__}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in trace.lines))
        tokens = [line["input_length"] for line in trace.lines]
        print(f"{path}: {len(tokens)} requests, mean {sum(tokens) / len(tokens):.0f} prompt tokens, "
              f"{sum(line['output_length'] for line in trace.lines) / len(tokens):.0f} of answer")


if __name__ == "__main__":
    main()
