#!/usr/bin/env python3
"""The checks of run.sh that need only the standard library. Each writes rows `check<TAB>verdict<TAB>detail`."""
import argparse
import json
import pathlib
import re
import statistics
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import wire
from ports import free_ports


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=["ports", *CHECKS])
    parser.add_argument("count", type=int, nargs="?")
    parser.add_argument("--url")
    parser.add_argument("--admin")
    parser.add_argument("--direct", nargs="+", default=[])
    parser.add_argument("--model")
    parser.add_argument("--label", default="")
    parser.add_argument("--spans")
    parser.add_argument("--dashboards")
    parser.add_argument("--results")
    args = parser.parse_args()
    if args.check == "ports":
        print(*free_ports(args.count))
        return
    CHECKS[args.check](args, Rows(args.results))


class Rows:
    def __init__(self, path):
        self.path = path

    def add(self, check, is_ok, detail=""):
        with open(self.path, "a") as file:
            file.write(f"{check}\t{'ok' if is_ok else 'FAIL'}\t{detail}\n")


def identity(args, rows):
    """The same request to a replica and through the gateway: the same bytes, the clock's field aside."""
    chat = {"messages": [{"role": "user", "content": "Say something about streams: \u00e4\u20ac\U0001f600"}]}
    common = {"model": args.model, "max_tokens": 24, "temperature": 0, "seed": 7, "ignore_eos": True}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    continuous = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    completion = {"prompt": "Say something about streams."}
    cases = {
        "chat": ("/v1/chat/completions", chat),
        "chat stream": ("/v1/chat/completions", {**chat, "stream": True}),
        "chat stream, usage asked": ("/v1/chat/completions", {**chat, **usage}),
        "chat stream, continuous usage": ("/v1/chat/completions", {**chat, **continuous}),
        "chat stream, n = 2": ("/v1/chat/completions", {**chat, "stream": True, "n": 2, "temperature": 0.7}),
        "chat stream, logprobs": ("/v1/chat/completions", {**chat, "stream": True, "logprobs": True, "top_logprobs": 2}),
        "chat, bad parameter": ("/v1/chat/completions", {**chat, "temperature": -1}),
        "completion": ("/v1/completions", completion),
        "completion stream": ("/v1/completions", {**completion, "stream": True}),
        "tokenize": ("/tokenize", completion),
    }
    for name, (path, body) in cases.items():
        body = {**common, **body} if path != "/tokenize" else {"model": args.model, **body}
        header = {"x-request-id": "identity-" + uuid.uuid4().hex[:8]}
        # Every replica gets its cache warm first, so that `cached_tokens` is the same wherever the request goes.
        for _ in range(2):
            for url in args.direct:
                wire.post(url, path, body, header)
        # A busy engine puts two tokens into one event now and then: its own answers differ then, so try again.
        for attempt in range(1, 7):
            direct = wire.post(args.direct[0], path, body, header)
            through = wire.post(args.url, path, body, header)
            ours, theirs = masked(through.body), masked(direct.body)
            if "n" in body:  # The engine emits its choices in no fixed order.
                ours, theirs = (b"\n\n".join(sorted(text.split(b"\n\n"))) for text in (ours, theirs))
            same = direct.status == through.status and ours == theirs
            if same:
                break
        detail = f"{len(through.body)} bytes, status {through.status}, attempt {attempt}"
        if not same:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            start = max(at - 20, 0)
            detail += f"; differs at {at}: {theirs[start:at + 40]!r} became {ours[start:at + 40]!r}"
        rows.add("bytes: " + name, same, detail)


def masked(body):
    return re.sub(rb'"created":\s*\d+', b'"created":0', body)


def ttft(args, rows):
    """Our histogram's mean beside the client's own stopwatch."""
    name = "tokenway_time_to_first_token_seconds"
    read = lambda: (wire.metric(args.admin, name + "_count"), wire.metric(args.admin, name + "_sum"))
    count, total = read()
    seen = []
    for turn in range(20):
        body = {"model": args.model, "prompt": wire.words(400, f"{uuid.uuid4()}"), "max_tokens": 4, "stream": True}
        seen.append(wire.post(args.url, "/v1/completions", body).first_token)
    time.sleep(1)  # Records are merged at least once a second.
    later, sum_later = read()
    ours, theirs = (sum_later - total) / max(later - count, 1), statistics.mean(seen)
    # Only what a stopwatch cannot be wrong about: the client cannot see a token before the gateway did.
    is_ok = later - count == len(seen) and ours <= theirs + 0.002
    rows.add("TTFT: histogram and stopwatch", is_ok,
             f"mean {1e3 * ours:.1f} ms in the histogram, {1e3 * theirs:.1f} ms at the client, {later - count:.0f} of {len(seen)}")


def affinity(args, rows):
    """Conversations of four turns, four at a time: how much of each prompt was in some replica's cache."""
    salt = uuid.uuid4().hex
    queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
    read = lambda name: sum(wire.metric(url, name) for url in args.direct)
    before = read(queries), read(hits)

    def conversation(number):
        messages, seen = [{"role": "system", "content": wire.words(500, f"{salt}{number}")}], []
        for turn in range(4):
            messages.append({"role": "user", "content": wire.words(80, f"{salt}{number}-{turn}")})
            body = {"model": args.model, "messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True,
                    "stream": True, "stream_options": {"include_usage": True}}
            answer = wire.post(args.url, "/v1/chat/completions", body)
            usage = answer.usage()
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            seen.append((turn, answer.first_token, usage.get("prompt_tokens", 0), cached))
            text = "".join(c["delta"].get("content") or "" for e in answer.events() for c in e.get("choices", []))
            messages.append({"role": "assistant", "content": text})
        return seen

    with ThreadPoolExecutor(4) as pool:
        turns = [turn for seen in pool.map(conversation, range(16)) for turn in seen]
    failed = sum(first is None for _, first, _, _ in turns)
    asked, cached = (sum(t[i] for t in turns) for i in (2, 3))
    told = read(queries) - before[0], read(hits) - before[1]
    later = sorted(first for turn, first, _, _ in turns if turn > 0 and first is not None)
    detail = (f"cached {share(cached, asked)} by usage, {share(told[1], told[0])} by the engines; TTFT of later turns "
              f"p50 {1e3 * later[len(later) // 2]:.0f} ms, p90 {1e3 * later[len(later) * 9 // 10]:.0f} ms; {failed} failed") if later else "no answers"
    rows.add(f"prefix reuse: {args.label}", failed == 0, detail)


def share(part, whole):
    return f"{100 * part / whole:.0f} %" if whole else "unknown"


def trace(args, rows):
    """A sampled trace arrives at the collector, with the caller's trace id."""
    trace_id = uuid.uuid4().hex
    header = {"traceparent": f"00-{trace_id}-{uuid.uuid4().hex[:16]}-01"}
    body = {"model": args.model, "messages": [{"role": "user", "content": "trace me"}], "max_tokens": 4, "stream": True}
    wire.post(args.url, "/v1/chat/completions", body, header)
    for _ in range(100):
        time.sleep(0.2)
        found = [json.loads(line) for line in open(args.spans)]
        found = [line for line in found if trace_id in line["traces"]]
        if found:
            missing = [name for name in ("gen_ai.operation.name", "tokenway.ttft") if name not in found[0]["names"]]
            return rows.add("OTLP export", not missing, f"missing: {missing}" if missing else "trace id and attributes found")
    rows.add("OTLP export", False, "the trace did not arrive within 20 s")


def prometheus(args, rows):
    """A real Prometheus has scraped us."""
    for _ in range(60):
        time.sleep(0.5)
        try:
            answer = json.loads(wire.get(args.url + "/api/v1/query?query=sum(tokenway_requests_total)"))
        except OSError:
            continue
        if answer["data"]["result"]:
            return rows.add("Prometheus scrape", True, f"tokenway_requests_total = {answer['data']['result'][0]['value'][1]}")
    rows.add("Prometheus scrape", False, "no sample within 30 s")


def alerting(args, rows):
    """The rules are evaluated by the Prometheus that scrapes us, and the dashboards' queries answer on what it has."""
    read = lambda path: json.loads(wire.get(args.url + path))["data"]
    # Groups begin at an offset of their own within the interval of a minute.
    for _ in range(160):
        rules = [rule for group in read("/api/v1/rules")["groups"] for rule in group["rules"]]
        if rules and all(rule["health"] != "unknown" for rule in rules):
            break
        time.sleep(0.5)
    bad = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]
    firing = sorted({rule["name"] for rule in rules if rule.get("state") == "firing"})
    rows.add("Prometheus rules", bool(rules) and not bad, "; ".join(bad) or f"{len(rules)} evaluated without error; firing: {', '.join(firing) or 'none'}")
    asked, empty, failed = 0, [], []
    for file in sorted(pathlib.Path(args.dashboards).glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", []):
                # What Grafana would put in: every value of a variable, and a range of some scrapes.
                query = re.sub(r"\$(job|route|revision|pool|replica)", ".*", target["expr"].replace("$__rate_interval", "30s").replace("$__range", "5m"))
                asked += 1
                try:
                    if not read("/api/v1/query?query=" + quote(query))["result"]:
                        empty.append(f"{file.stem}/{panel['title']}")
                except OSError as error:
                    failed.append(f"{file.stem}/{panel['title']}: {error}")
    detail = f"{asked - len(empty) - len(failed)} of {asked} queries have data; without: {', '.join(dict.fromkeys(empty)) or 'none'}"
    rows.add("dashboards", asked > 0 and not failed, "; ".join([*failed, detail]))


CHECKS = {"alerting": alerting, "identity": identity, "ttft": ttft, "affinity": affinity, "trace": trace, "prometheus": prometheus}

if __name__ == "__main__":
    sys.exit(main())
