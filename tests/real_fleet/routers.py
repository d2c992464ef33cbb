#!/usr/bin/env python3
"""The same conversations through several routers, one after another, in front of vLLM replicas that you have running.

    tests/real_fleet/routers.py --gateway target/release/tokenway --out runs.jsonl \
      --router vllm-router=VENV/bin/vllm-router --router sglang-router=VENV/bin/sglang-router \
      http://127.0.0.1:8001 http://127.0.0.1:8002
    tests/real_fleet/routers.py --table runs.jsonl

Start the replicas with --enable-prompt-tokens-details and VLLM_SERVER_DEV_MODE=1: their prefix caches are emptied directly
(/reset_prefix_cache) before each run. Sessions share system prompts by groups, grow turn by turn and think in between; all of
it comes from --seed, so every router of one repetition gets the same arrivals and the same texts. Each router starts fresh,
gets some requests that do not count (other texts) and then the sessions. One JSON line per run goes to --out; the order of the
routers rotates with --rep. With --pids (one of each replica: its process group) the share of one core that a replica used is told.
"""
import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request

import checks
import stream
import wire

CLOCK_TICK = os.sysconf("SC_CLK_TCK")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replicas", nargs="*")
    parser.add_argument("--gateway")
    parser.add_argument("--router", action="append", default=[], help="vllm-router=PATH or sglang-router=PATH")
    parser.add_argument("--only", help="names of routers, with semicolons")
    parser.add_argument("--out")
    parser.add_argument("--table", help="print the table of a file made by --out, and do nothing else")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rep", type=int, default=0, help="number of this repetition: order and seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--span", type=float, default=30, help="seconds over which sessions begin")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--think", type=float, default=3, help="mean seconds between an answer and the next turn")
    parser.add_argument("--groups", type=int, default=6, help="different system prompts")
    parser.add_argument("--system", type=int, default=250, help="words of a system prompt")
    parser.add_argument("--user", type=int, default=50, help="mean words of a turn")
    parser.add_argument("--output", type=int, default=16, help="mean tokens of an answer")
    parser.add_argument("--slo", default="standard", help="the gateway's SLO class, also what `within` counts")
    parser.add_argument("--quiet", type=float, default=9, help="a run in which others used more cores than this is repeated, twice at most")
    parser.add_argument("--pids", default="", help="process groups of the replicas, with commas")
    return parser.parse_args()


def commands(args):
    """Each router at its defaults, but for ports, upstreams and, for the gateway, the SLO class."""
    port, admin = checks.free_ports(2)
    listen, upstreams = f"127.0.0.1:{port}", [part for url in args.replicas for part in ("--upstream", url)]
    given = dict(item.split("=", 1) for item in args.router)
    found = {}
    own = {"round_robin": ("round_robin", args.slo), "latency": ("latency", args.slo), "latency, no TPOT bound": ("latency", "first")}
    for name, (policy, slo) in own.items():
        config = tempfile.NamedTemporaryFile("w", suffix=".toml", prefix="routers.", delete=False)
        replicas = json.dumps(args.replicas)
        config.write(f'[server]\nlisten = "{listen}"\n[admin]\nlisten = "127.0.0.1:{admin}"\n[[pool]]\nname = "fleet"\n'
                     f'replicas = {replicas}\n[[route]]\nmodel = "*"\npolicy = "{policy}"\nslo = "{slo}"\n'
                     '[slo.first]\nttft = { base = "2s", per_prompt_token = "0.15ms" }\n')
        config.close()
        found[name] = ([args.gateway, "serve", "--config", config.name], f"http://127.0.0.1:{admin}/readyz")
    common = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", *args.replicas, "--policy", "cache_aware",
              "--prometheus-host", "127.0.0.1", "--prometheus-port", str(admin)]
    ready = f"http://127.0.0.1:{port}/v1/models"
    if path := given.get("vllm-router"):
        found["vllm-router"] = ([path, *common, "--log-level", "warning", "--worker-startup-check-interval", "1"], ready)
    if path := given.get("sglang-router"):
        found["sglang-router"] = ([path, "launch", *common, "--log-level", "warn"], ready)
        # With four to eight requests a replica the default threshold of 64 never acts; this is the same with one that does.
        tuned = ["--balance-abs-threshold", "2", "--balance-rel-threshold", "1.2"]
        found["sglang-router tuned"] = ([path, "launch", *common, "--log-level", "warn", *tuned], ready)
    return f"http://{listen}", {name: found[name] for name in found if not args.only or name in args.only.split(";")}


def conversations(args, salt):
    """Per session: when it begins, its system prompt, and for each turn the think time, the words and the output tokens."""
    dice = random.Random(f"{args.seed}-{args.rep}-{salt}")
    for number in range(args.sessions):
        group = dice.randrange(args.groups)
        turns = [(dice.expovariate(1 / args.think) if turn else 0.0, max(8, int(dice.gauss(args.user, args.user / 3))),
                  max(4, int(dice.expovariate(1 / args.output)))) for turn in range(args.turns)]
        yield dice.uniform(0, args.span), wire.words(args.system, f"{args.seed}-{args.rep}-{salt}-{group}"), turns, f"{salt}-{number}"


async def converse(url, args, began, conversation, seen):
    begin, system, turns, name = conversation
    messages = [{"role": "system", "content": system}]
    await asyncio.sleep(max(0.0, began + begin - time.monotonic()))
    for turn, (think, words, output) in enumerate(turns):
        await asyncio.sleep(think)
        messages.append({"role": "user", "content": wire.words(words, f"{args.seed}-{args.rep}-{name}-{turn}")})
        body = {"model": args.model, "messages": messages, "max_tokens": output, "temperature": 0, "ignore_eos": True,
                "stream": True, "stream_options": {"include_usage": True}, **args.words_only}
        answer = await stream.ask(url, "/v1/chat/completions", body)
        seen.append({"turn": turn, "at": round(answer.started - began, 3), "ttft": answer.ttft, "tpot": answer.tpot,
                     "prompt": answer.usage.get("prompt_tokens", 0), "cached": answer.cached_tokens,
                     "error": answer.error if answer.error or answer.ttft is None or not answer.is_complete else None})
        messages.append({"role": "assistant", "content": answer.text})


async def sessions(url, args, salt):
    began, seen = time.monotonic(), []
    await asyncio.gather(*(converse(url, args, began, c, seen) for c in conversations(args, salt)))
    return time.monotonic() - began, seen


def machine_seconds():
    """CPU time of everything on this machine so far."""
    fields = [int(field) for field in open("/proc/stat").readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / CLOCK_TICK  # idle and waiting for a disk


def cpu_seconds(groups):
    """CPU time of all processes of each process group so far."""
    total = dict.fromkeys(groups, 0.0)
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) in total:
            total[int(fields[2])] += (int(fields[11]) + int(fields[12])) / CLOCK_TICK
    return list(total.values())


def start(command, ready):
    # Nothing may be looked up outside: model hubs are pointed at a closed port.
    offline = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9", "TRANSFORMERS_OFFLINE": "1"}
    access, log = tempfile.NamedTemporaryFile("w+", delete=False), tempfile.NamedTemporaryFile("w+", delete=False)
    process = subprocess.Popen(command, stdout=access, stderr=log, env=os.environ | offline, process_group=0)
    for _ in range(300):
        try:
            with urllib.request.urlopen(ready, timeout=5):
                return process, access.name
        except OSError:
            time.sleep(0.2)
        if process.poll() is not None:
            break
    process.kill()
    sys.exit(f"{command[0]} is not ready; its log is {log.name}")


@contextlib.contextmanager
def running(command, ready):
    """The process and the file of its access log; it is stopped at the end, whatever happens."""
    process, access = start(command, ready)
    try:
        yield process, access
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()


def predictions(access, since):
    """Pairs of predicted and actual TTFT, of requests that were read after `since`."""
    pairs = []
    for line in open(access):
        try:
            record = json.loads(line)
            predicted, ttft = record["tokenway.decision.predicted_ttft"], record["tokenway.ttft"]
        except (ValueError, KeyError):
            continue
        if record["time"] >= since:
            stages = {k.rsplit(".", 1)[1]: v for k, v in record.items() if k.startswith("tokenway.stage.")}
            pairs.append({"predicted": predicted, "stages": stages, "actual": ttft,
                          "replica": record["tokenway.replica"], "prompt": record.get("gen_ai.usage.input_tokens"),
                          "cached": record.get("gen_ai.usage.cache_read.input_tokens"), "time": record["time"]})
    return pairs


def one(name, command, ready, url, args):
    for replica in args.replicas:
        wire.empty_cache(replica)
    with running(command, ready) as (process, access):
        warm = argparse.Namespace(**vars(args) | {"sessions": 8, "span": 4, "turns": 2, "think": 1})
        asyncio.run(sessions(url, warm, "warm"))
        groups = [int(pid) for pid in args.pids.split(",") if pid]
        ours = [*groups, process.pid, os.getpgid(0)]  # a router leads its own group, this process has one too
        read = lambda metric: sum(wire.metric(replica, metric) for replica in args.replicas)
        counters = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        before, cpu, machine = [read(c) for c in counters], cpu_seconds(ours), machine_seconds()
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time()))
        took, seen = asyncio.run(sessions(url, args, "run"))
        busy = [round((b - a) / took, 3) for a, b in zip(cpu, cpu_seconds(ours))]
        others = round((machine_seconds() - machine) / took - sum(busy), 3)
        asked, hit = (read(c) - b for c, b in zip(counters, before))
        time.sleep(1.5)  # The access log is written behind the answers.
    pairs = predictions(access, since) if name.startswith("latency") else []
    return {"router": name, "rep": args.rep, "replicas": len(args.replicas), "took": round(took, 2), "busy": busy[:len(groups)], "router_cpu": busy[-2], "others": others,
            "engine_asked": asked, "engine_hit": hit, "requests": seen, "predictions": pairs}


def blocks(runs):
    """First tokens of each router by repetition and ten seconds of it: what came close together was slow for the same reasons."""
    found = {}
    for run in runs:
        for request in run["requests"]:
            if not request["error"]:
                block = found.setdefault((run["rep"], int(request["at"] // 10)), {})
                block.setdefault(run["router"], []).append(request["ttft"])
    return found


def ratios(runs):
    """TTFT of `latency` over each other router's in the repetitions that both have, with 95 % intervals: a thousand resamples of blocks."""
    dice, all_blocks = random.Random(1), blocks(runs).values()
    for name in dict.fromkeys(run["router"] for run in runs if run["router"] != "latency"):
        both = [block for block in all_blocks if name in block and "latency" in block]
        if not both:
            continue

        def ratio(chosen, share):
            ours, theirs = ([ttft for block in chosen for ttft in block[router]] for router in ("latency", name))
            return stream.percentile(ours, share) / stream.percentile(theirs, share)

        told = []
        for share in (0.5, 0.9, 0.99):
            again = [ratio(dice.choices(both, k=len(both)), share) for _ in range(1000)]
            low, high = stream.percentile(again, 0.025), stream.percentile(again, 0.975)
            told.append(f"p{100 * share:.0f} {ratio(both, share):.2f} ({low:.2f} to {high:.2f})")
        print(f"\n`latency` over {name}: TTFT {', '.join(told)}; blocks of ten seconds: {len(both)}")


def table(path):
    runs = [json.loads(line) for line in open(path)]
    ms = lambda values, share: f"{1e3 * stream.percentile(values, share):.0f}" if values else "-"
    print("| router | runs | requests | failed | hit tokens, engines | by usage | TTFT p50 | p90 | p99, ms | p99 of each run | in SLO | cores: a replica | router | others |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(run["router"] for run in runs):
        mine = [run for run in runs if run["router"] == name]
        asked = [r for run in mine for r in run["requests"]]
        good = [r for r in asked if not r["error"]]
        ttft = [r["ttft"] for r in good]
        within = sum(r["ttft"] <= 2 + 0.00015 * r["prompt"] and (r["tpot"] or 0) <= 0.1 for r in good)
        each = " / ".join(ms([r["ttft"] for r in run["requests"] if not r["error"]], 0.99) for run in mine)
        hit = checks.share(sum(run["engine_hit"] for run in mine), sum(run["engine_asked"] for run in mine))
        usage = checks.share(sum(r["cached"] for r in good), sum(r["prompt"] for r in good))
        mean = lambda values: f"{sum(values) / len(values):.2f}" if values else "-"
        cores = [mean([b for run in mine for b in run["busy"]]), mean([run["router_cpu"] for run in mine]), mean([run["others"] for run in mine])]
        print(f"| {name} | {len(mine)} | {len(asked)} | {len(asked) - len(good)} | {hit} | {usage} | {ms(ttft, .5)} | {ms(ttft, .9)} | {ms(ttft, .99)} | {each} "
              f"| {checks.share(within, len(asked))} | {' | '.join(cores)} |")
    ratios(runs)
    pairs = [p for run in runs if run["router"] == "latency" for p in run["predictions"]]
    error = [abs(p["predicted"] - p["actual"]) / p["actual"] for p in pairs]
    if error:
        print(f"\nprediction error of {len(pairs)} first tokens: median {100 * stream.percentile(error, .5):.0f} %, p90 {100 * stream.percentile(error, .9):.0f} %")


def main():
    args = options()
    if args.table:
        return table(args.table)
    args.words_only = wire.whole_words(args.replicas[0], args.model)
    url, routers = commands(args)
    names = list(routers)
    for name in names[args.rep % len(names):] + names[:args.rep % len(names)]:
        for _ in range(3):
            run = one(name, *routers[name], url, args)
            if run["others"] <= args.quiet:
                break
            print(f"{name}: others used {run['others']} cores", flush=True)
        with open(args.out, "a") as out:
            out.write(json.dumps(run) + "\n")
        failed = [r["error"] for r in run["requests"] if r["error"]]
        print(f"{name}: {len(run['requests'])} requests in {run['took']} s, busy {run['busy']}, others {run['others']}, {len(failed)} failed {failed[:1]}", flush=True)


if __name__ == "__main__":
    main()
