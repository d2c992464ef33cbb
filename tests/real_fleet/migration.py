#!/usr/bin/env python3
"""Kills, ends and freezes real replicas in the middle of streams on a route with `migrate`, and compares what official clients got.

    tests/real_fleet/migration.py --gateway target/release/tokenway --pids 101,102,103,104 http://127.0.0.1:8001 … (four)

The pids are those of `vllm serve`, in the order of the urls; needs the package openai. It is the end of three of these replicas. Every
stream is greedy over a fixed set of whole words, and was taken from an undisturbed replica before: it must come out of the gateway
as the same text, with one id, one role, its finish reason and the same token counts, whatever happened meanwhile.
"""
import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import openai

import checks
import wire
from processes import processes

TOKENS = 4000


def below(pid, sent):
    """Signals the engine's processes below an API server."""
    for child, name in processes(pid).items():
        if "EngineC" in name or "Worker" in name:
            os.kill(child, sent)


# name, what is done to the replica, what is undone afterwards, which replica
FAULTS = [
    ("core frozen (SIGSTOP)", lambda pid: below(pid, signal.SIGSTOP), lambda pid: below(pid, signal.SIGCONT), 0),
    ("engine core, SIGKILL", lambda pid: below(pid, signal.SIGKILL), None, 0),
    ("API server, SIGKILL", lambda pid: os.kill(pid, signal.SIGKILL), None, 1),
    ("API server, SIGTERM", lambda pid: os.kill(pid, signal.SIGTERM), None, 2),
]


class Answer:
    def __init__(self):
        self.text, self.ids, self.roles, self.finish, self.usage, self.error, self.longest = "", set(), 0, None, None, None, 0.0
        self.pieces, self.ended, self.replica = 0, None, None

    def same_as(self, other):
        return (self.error is None and self.text == other.text and len(self.ids) == 1 and self.roles == other.roles and self.finish == other.finish
                and self.usage == other.usage)


def asked(args, words, number):
    fixed = {"model": args.model, "max_tokens": TOKENS, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
             "extra_body": {"allowed_token_ids": words, "ignore_eos": True}}
    prompt = wire.words(40, f"migration {number}")
    if number % 4 == 3:
        return "completions", {**fixed, "prompt": prompt}
    return "chat", {**fixed, "messages": [{"role": "user", "content": prompt}]}


async def ask(client, kind, body, answer):
    last = None
    try:
        api = client.completions if kind == "completions" else client.chat.completions
        raw = await api.with_raw_response.create(**body)
        answer.replica = raw.headers.get("x-tokenway-replica")
        async for chunk in raw.parse():
            now = time.monotonic()
            answer.longest = max(answer.longest, now - (last or now))
            last = now
            answer.ids.add(chunk.id)
            if chunk.usage:
                answer.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
            for choice in chunk.choices:
                if kind == "chat":
                    answer.roles += choice.delta.role is not None
                    answer.text += choice.delta.content or ""
                else:
                    answer.text += choice.text
                answer.finish = choice.finish_reason or answer.finish
                answer.pieces += 1
    except openai.OpenAIError as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.ended = time.monotonic()
    return answer


def migrations(admin):
    return int(wire.metric(admin, "tokenway_migrations_total"))


def inflight(admin, host):
    page = wire.get(admin + "/metrics")
    mine = [line for line in page.splitlines() if line.startswith("tokenway_replica_inflight{") and host in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in mine)


async def one(args, ports, client, unbroken, fault):
    name, strike, undo, victim = fault
    admin = f"http://127.0.0.1:{ports[1]}"
    url, pid = args.replicas[victim], int(args.pids.split(",")[victim])
    before = migrations(admin)
    answers = [Answer() for _ in unbroken]
    tasks = [asyncio.create_task(ask(client, kind, body, answer)) for (kind, body, _), answer in zip(unbroken, answers)]
    # Others may have ended before the last one begins: what counts is that those at the victim are in their middle.
    host = url.removeprefix("http://")
    while not (mine := [answer for answer in answers if answer.replica == host]) or min(answer.pieces for answer in mine) < 12:
        if all(task.done() for task in tasks):
            sys.exit(f"{name}: no stream came to {host}")
        await asyncio.sleep(0.01)
    there = int(inflight(admin, host))
    at = time.monotonic()
    strike(pid)
    await asyncio.gather(*tasks)
    if undo:
        undo(pid)
    same = sum(answer.same_as(whole) for answer, (_, _, whole) in zip(answers, unbroken))
    moved = migrations(admin) - before
    longest = max(answer.longest for answer in answers)
    print(f"| {name} | {there} of {len(answers)} | {moved} | {same} of {len(answers)} | {longest:.1f} s |", flush=True)
    for number, (answer, (kind, _, whole)) in enumerate(zip(answers, unbroken)):
        if not answer.same_as(whole):
            at_fault = next((i for i, (a, b) in enumerate(zip(answer.text, whole.text)) if a != b), min(len(answer.text), len(whole.text)))
            print(f"    {number} {kind}: {answer.error} ids={len(answer.ids)} roles={answer.roles}/{whole.roles} finish={answer.finish}/{whole.finish} "
                  f"usage={answer.usage}/{whole.usage} texts of {len(answer.text)}/{len(whole.text)} differ from {at_fault}: "
                  f"{answer.text[at_fault - 20:at_fault + 20]!r} / {whole.text[at_fault - 20:at_fault + 20]!r}", flush=True)
    return same == len(answers) and moved >= min(there, 1), at


async def ready(admin, count):
    for _ in range(300):
        try:
            replicas = json.loads(wire.get(f"{admin}/api/fleet"))["replicas"]
            if sum(replica["state"] == "ready" for replica in replicas) >= count:
                return
        except OSError:
            pass
        await asyncio.sleep(0.2)
    raise TimeoutError(f"fewer than {count} replicas are ready")


async def run(args, ports, words):
    admin = f"http://127.0.0.1:{ports[1]}"
    await ready(admin, len(args.replicas))
    direct = openai.AsyncOpenAI(base_url=args.replicas[-1] + "/v1", api_key="none", max_retries=0, timeout=300)
    through = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{ports[0]}/v1", api_key="none", max_retries=0, timeout=300)
    requests = [asked(args, words, number) for number in range(args.streams)]
    wholes = await asyncio.gather(*(ask(direct, kind, body, Answer()) for kind, body in requests))
    unbroken = [(kind, body, whole) for (kind, body), whole in zip(requests, wholes)]
    assert all(whole.usage and whole.usage[1] == TOKENS and whole.error is None for whole in wholes), [w.error for w in wholes]
    print("| fault | streams there | continued | as the unbroken ones | longest pause |\n|---|---|---|---|---|")
    good, left = True, len(args.replicas)
    for fault in FAULTS:
        if args.faults and not any(word in fault[0] for word in args.faults.split(",")):
            continue
        good &= (await one(args, ports, through, unbroken, fault))[0]
        left -= fault[2] is None
        await ready(admin, left)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replicas", nargs="+")
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--pids", required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--faults", default="", help="only those whose name has one of these words")
    args = parser.parse_args()
    words = set()
    for word in wire.WORDS:
        found = json.loads(wire.post(args.replicas[0], "/tokenize", {"model": args.model, "prompt": " " + word, "add_special_tokens": False}).body)["tokens"]
        if len(found) == 1:
            words.add(found[0])
    assert len(words) > 3, "the model's vocabulary has too few of the words"
    ports = checks.free_ports(2)
    out = tempfile.mkdtemp(prefix="tokenway-migration.")
    urls = ", ".join(f'"{url}"' for url in args.replicas)
    with open(f"{out}/gateway.toml", "w") as file:
        file.write(f'[server]\nlisten = "127.0.0.1:{ports[0]}"\n[admin]\nlisten = "127.0.0.1:{ports[1]}"\n[telemetry]\naccess_log = "{out}/access.jsonl"\n'
                   f'[[pool]]\nname = "p"\nreplicas = [{urls}]\n[pool.ejection]\nmax_share = 0.8\n'
                   f'[[route]]\nmodel = "{args.model}"\npolicy = "round_robin"\nmigrate = true\n[route.timeouts]\ninter_token = "12s"\n')
    process = subprocess.Popen([args.gateway, "serve", "--config", f"{out}/gateway.toml"], stderr=open(f"{out}/gateway.log", "w"))
    try:
        good = asyncio.run(run(args, ports, sorted(words)))
        page = wire.get(f"http://127.0.0.1:{ports[1]}/metrics")
        print("\n".join(line for line in page.splitlines() if line.startswith(("tokenway_requests_total", "tokenway_migrations_total", "tokenway_retries_total"))))
        print(f"logs: {out}")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    sys.exit(not good)


main()
