#!/usr/bin/env python3
"""Records a run against one vLLM replica, for `tokenway replay --fit`.

    python3 tests/real_fleet/record.py http://127.0.0.1:8000 --requests 200 --rate 2 > recording.jsonl
    tokenway replay --fit recording.jsonl > engine.json

Sends completions with prompts of random token ids at random times (Poisson), some of them with a beginning that was
sent before, and writes one JSON line a request: token counts by the engine's own usage, times in seconds from the start.
Start the engine with --enable-prompt-tokens-details, else its cached tokens are taken for zero and the fit is off; then
use --shared 0. A tenth of the requests comes one by one first, so that the idle engine is in the recording too.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the replica, such as http://127.0.0.1:8000")
    parser.add_argument("--model", help="its model (default: the first that it lists)")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--prompt", type=int, nargs=2, default=(32, 1024), metavar=("LOW", "HIGH"))
    parser.add_argument("--output", type=int, nargs=2, default=(4, 128), metavar=("LOW", "HIGH"))
    parser.add_argument("--shared", type=float, default=0.5, help="share of prompts that begin like an earlier one")
    parser.add_argument("--tokens", type=int, nargs=2, default=(1000, 20000), help="range of token ids")
    parser.add_argument("--key", help="bearer key")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Replica:
    def __init__(self, args):
        self.url = urllib.parse.urlsplit(args.url)
        self.headers = {"content-type": "application/json"}
        if args.key:
            self.headers["authorization"] = f"Bearer {args.key}"
        self.model = args.model or self.first_model()

    def connect(self):
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        return kind(self.url.hostname, self.url.port, timeout=600)

    def first_model(self):
        connection = self.connect()
        connection.request("GET", self.url.path + "/v1/models", headers=self.headers)
        return json.load(connection.getresponse())["data"][0]["id"]

    def complete(self, prompt, output, start):
        """Sends one request and returns its line; times are arrivals of events at this process."""
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": output, "min_tokens": output, "ignore_eos": True,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        }
        connection = self.connect()
        connection.connect()
        sent = time.monotonic() - start
        connection.request("POST", self.url.path + "/v1/completions", json.dumps(body), self.headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read(500)!r}")
        first = last = usage = None
        for line in response:
            now = time.monotonic() - start
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if event.get("choices"):
                first = now if first is None else first
                last = now
        details = usage.get("prompt_tokens_details") or {}
        return {
            "prompt_tokens": usage["prompt_tokens"], "cached_tokens": details.get("cached_tokens") or 0,
            "output_tokens": usage["completion_tokens"],
            "sent": round(sent, 6), "first_token": round(first, 6), "end": round(last, 6),
        }


def prompts(args, dice):
    """Prompts of random tokens; some continue an earlier one, as the next turn of a conversation does."""
    earlier = []
    for _ in range(args.requests):
        prompt = [dice.randint(*args.tokens) for _ in range(dice.randint(*args.prompt))]
        if earlier and dice.random() < args.shared:
            head = dice.choice(earlier)
            prompt = (head + prompt)[: max(args.prompt[1], len(head) + 8)]
        earlier = (earlier + [prompt])[-16:]
        yield prompt, dice.randint(*args.output)


def main():
    args = options()
    dice = random.Random(args.seed)
    replica = Replica(args)
    start = time.monotonic()
    printing, failures, threads = threading.Lock(), [], []

    def one(prompt, output):
        try:
            line = json.dumps(replica.complete(prompt, output, start))
        except Exception as error:  # one lost request must not lose the recording
            failures.append(error)
            print(f"record.py: {error}", file=sys.stderr)
            return
        with printing:
            print(line, flush=True)

    for at, (prompt, output) in enumerate(prompts(args, dice)):
        if at < args.requests // 10:
            one(prompt, output)
            continue
        time.sleep(dice.expovariate(args.rate))
        threads.append(threading.Thread(target=one, args=(prompt, output)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
