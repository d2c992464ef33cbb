#!/usr/bin/env python3
"""Writes made-up request traces in Mooncake's format, one kind of traffic each, for `tokenway replay`.

    python3 benches/routing/traffic.py FOLDER [--kinds chat,rag] [--rate 2] [--minutes 10] [--seed 1]

The kinds differ in what matters to routing: how much of a prompt is shared and with whom, how long answers and sessions are,
how arrivals come. Shapes and constants are made up, not measured, and no policy was tuned on them. Lengths are tokens, times
seconds, rates requests/s on four replicas (`replay` gives larger fleets one copy of the trace for every four replicas).
"""
import argparse
import dataclasses
import inspect
import itertools
import json
import math
import pathlib
import random
import typing

BLOCK = 512
# Sessions begin this long before the trace does, so that its first minute has old sessions too.
WARM_UP_S = 300.0


class Trace:
    """The requests of `span` seconds; equal block ids are equal prefixes up to and including that block."""

    def __init__(self, rate, span, dice, spread=1.0):
        self.rate, self.span, self.dice, self.spread = rate, span, dice, spread
        self.lines, self.next_id = [], 0

    def blocks(self, tokens):
        """Ids of the blocks of new text, the last one possibly partial."""
        count = -(-tokens // BLOCK)
        self.next_id += count
        return list(range(self.next_id - count, self.next_id))

    def ask(self, at, shared, own_tokens, output):
        """A request that begins with the shared blocks; returns its full blocks, for those that continue it."""
        ids = shared + self.blocks(own_tokens)
        if 0 <= at < self.span:
            length = len(shared) * BLOCK + own_tokens
            self.lines.append({"timestamp": int(at * 1000), "input_length": length, "output_length": output, "hash_ids": ids})
        return ids[:-1]

    def sized(self, median, sigma, largest):
        """Log-normal: most near the median, few much longer."""
        return max(1, min(largest, round(math.exp(self.dice.gauss(math.log(median), self.spread * sigma)))))

    def arrivals(self, rate=None, begin=0.0, shape=lambda share: 1.0):
        """Poisson arrivals; `shape` scales the rate, at most 1, over the share of the trace that has passed."""
        at = begin
        while (at := at + self.dice.expovariate(rate or self.rate)) < self.span:
            if self.dice.random() < shape(at / self.span):
                yield at

    def zipf(self, items, exponent):
        """Draws of the items, the first most often."""
        weights = list(itertools.accumulate((rank + 1) ** -exponent for rank in range(len(items))))
        while True:
            yield self.dice.choices(items, cum_weights=weights)[0]

    def apps(self, count, shortest, longest):
        """System prompts."""
        return [self.blocks(BLOCK * self.dice.randint(shortest, longest)) for _ in range(count)]


def chat(trace):
    """Questions behind one system prompt of 4k, long answers."""
    system = trace.blocks(4096)
    for at in trace.arrivals():
        trace.ask(at, system, trace.sized(100, 0.5, 400), trace.sized(1500, 0.3, 5000))


def short_chat(trace):
    """Questions behind one system prompt of 1k, answers of 300."""
    system = trace.blocks(1024)
    for at in trace.arrivals():
        trace.ask(at, system, trace.sized(100, 0.5, 400), trace.sized(300, 0.3, 1000))


def tenants(trace):
    """300 tenants, each with a system prompt of 1k to 7k: together more than one cache holds, a few of them most of the load."""
    systems = trace.zipf(trace.apps(300, 2, 14), 1.0)
    for at in trace.arrivals():
        trace.ask(at, next(systems), trace.sized(300, 0.8, 4000), trace.sized(250, 0.6, 2000))


def rag(trace):
    """2k of instructions that all share, 600 retrieved for each question, answers of 400."""
    system = trace.blocks(2048)
    for at in trace.arrivals():
        trace.ask(at, system, trace.sized(600, 0.2, 2000), trace.sized(400, 0.3, 1500))


def reasoning(trace):
    """Short prompts that think for thousands of tokens."""
    for at in trace.arrivals():
        trace.ask(at, [], trace.sized(200, 0.8, 2000), trace.sized(3000, 0.7, 12_000))


def agents(trace):
    """Agents of seven sorts that take ten to sixty steps: each sends all before it and what the last tool said."""
    steps = range(10, 61)
    sorts = trace.apps(7, 3, 14)
    for begin in trace.arrivals(trace.rate / (sum(steps) / len(steps)), begin=-WARM_UP_S):
        at, context = begin, trace.dice.choice(sorts)
        for _ in range(trace.dice.choice(steps)):
            output = trace.sized(70, 0.8, 2000)
            context = trace.ask(at, context, trace.sized(700, 0.9, 12_000), output)
            # The answer takes its time, then the tool does.
            at += 0.3 + 0.03 * output + trace.sized(900, 1.0, 60_000) / 1000
            if len(context) * BLOCK > 60_000:
                break


def documents(trace):
    """Questions about 400 documents of 5k to 50k: three times what four caches of 800k hold."""
    library = trace.zipf(trace.apps(400, 10, 100), 0.8)
    for at in trace.arrivals():
        trace.ask(at, next(library), trace.sized(150, 0.5, 1000), trace.sized(200, 0.6, 1000))


def completion(trace):
    """Code completion: short prompts, 5 to 30 tokens back, and for every second user half of the prompt again at the next pause."""
    for begin in trace.arrivals(trace.rate / 8, begin=-WARM_UP_S):
        at, file = begin, trace.blocks(BLOCK * trace.dice.randint(0, 1))
        for _ in range(trace.dice.randint(1, 15)):
            trace.ask(at, file, trace.sized(300, 0.5, 1000), trace.dice.randint(5, 30))
            at += 1 + trace.dice.expovariate(1 / 8)


def embeddings(trace):
    """Chats beside texts to embed, which have an output of one token: half of the requests each."""
    system = trace.blocks(1024)
    for at in trace.arrivals():
        if trace.dice.random() < 0.5:
            trace.ask(at, [], trace.sized(400, 0.6, 4000), 1)
        else:
            trace.ask(at, system, trace.sized(200, 0.8, 3000), trace.sized(300, 0.6, 1500))


def flash(trace):
    """Chats of twenty apps, and for two minutes as many questions again about one text of 6k that nobody had asked about."""
    apps, text = trace.zipf(trace.apps(20, 1, 4), 0.7), trace.blocks(6144)
    begin = trace.span / 2
    crowd = trace.arrivals(begin=begin, shape=lambda share: float(share * trace.span < begin + 120))
    for at in crowd:
        trace.ask(at, text, trace.sized(60, 0.5, 300), trace.sized(300, 0.5, 1500))
    for at in trace.arrivals():
        trace.ask(at, next(apps), trace.sized(300, 0.8, 4000), trace.sized(300, 0.5, 1500))


def ramp(trace):
    """Chats of twenty apps at half the rate, which doubles over an eighth of the trace, stays for half of it and goes back."""
    apps = trace.zipf(trace.apps(20, 1, 4), 0.7)
    for at in trace.arrivals(shape=lambda share: max(0.5, min(1.0, 2 - 4 * abs(share - 0.5)))):
        trace.ask(at, next(apps), trace.sized(300, 0.8, 4000), trace.sized(300, 0.5, 1500))


def unshared(trace):
    """Prompts of all sizes that share nothing."""
    for at in trace.arrivals():
        trace.ask(at, [], trace.sized(900, 1.0, 20_000), trace.sized(250, 0.7, 2500))


def bursts(trace):
    """Chats that grow, most of whose users come within 24 seconds of every two minutes."""
    dice, systems = trace.dice, trace.apps(40, 1, 4)
    for begin in trace.arrivals(trace.rate / 1.9, begin=-WARM_UP_S):
        if begin % 120 >= 24 and dice.random() > 0.2:
            continue
        at, context = begin, dice.choice(systems)
        for _ in range(1 + int(dice.expovariate(1 / 5))):
            output = trace.sized(260, 0.8, 3000)
            context = trace.ask(at, context, trace.sized(900, 1.1, 20_000), output)
            at += 1 + 0.03 * output + dice.expovariate(1 / 25)


def books(trace):
    """Short prompts that share nothing, and one in twenty that is a book."""
    for at in trace.arrivals():
        own = trace.sized(30_000, 0.5, 90_000) if trace.dice.random() < 0.05 else trace.sized(700, 0.8, 8_000)
        trace.ask(at, [], own, trace.sized(200, 0.9, 2500))


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of traffic."""

    make: typing.Callable
    # Requests/s that keep four replicas of the default engine about 70 % busy.
    rate: float
    # The shortest trace that shows what the kind is about.
    minutes: float = 5
    # Whether its load is that of its busiest two minutes.
    has_peak: bool = False


KINDS = {kind.make.__name__: kind for kind in (
    Kind(chat, 6),
    Kind(short_chat, 50, minutes=3),
    Kind(tenants, 23),
    Kind(rag, 21),
    Kind(reasoning, 3, minutes=8),
    Kind(agents, 15, minutes=8),
    Kind(documents, 2.2),
    Kind(completion, 90, minutes=3),
    Kind(embeddings, 50, minutes=3),
    Kind(flash, 13, minutes=8, has_peak=True),
    Kind(ramp, 30, minutes=8, has_peak=True),
    Kind(unshared, 19),
    Kind(bursts, 6, minutes=8, has_peak=True),
    Kind(books, 10),
)}


def requests(name, rate, minutes, seed, spread=1.0):
    """The lines of a trace in the order of arrival; with a spread of zero all lengths are medians."""
    trace = Trace(rate, 60 * minutes, random.Random(f"{name}-{seed}"), spread)
    KINDS[name].make(trace)
    return sorted(trace.lines, key=lambda line: line["timestamp"])


def source(name):
    """What the requests of a kind depend on, for the keys of caches."""
    return "".join(inspect.getsource(part) for part in (Trace, KINDS[name].make, requests)) + repr((BLOCK, WARM_UP_S))


def text(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rate", type=float, help="requests/s on four replicas [default: the kind's own]")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.kinds.split(","):
        if name not in KINDS:
            parser.error(f"no kind \"{name}\"; there are {', '.join(KINDS)}")
        lines = requests(name, args.rate or KINDS[name].rate, args.minutes, args.seed)
        path = args.folder / f"{name}.jsonl"
        path.write_text(text(lines))
        mean = lambda field: sum(line[field] for line in lines) / max(1, len(lines))
        print(f"{path}: {len(lines)} requests, {len(lines) / 60 / args.minutes:.2f}/s, "
              f"mean {mean('input_length'):.0f} prompt tokens, {mean('output_length'):.0f} of answer")


if __name__ == "__main__":
    main()
