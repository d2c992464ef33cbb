#!/usr/bin/env python3
"""What a gateway predicts after a restart in front of vLLM replicas whose caches are warm.

    tests/real_fleet/warm_restart.py --gateway target/release/tokenway http://127.0.0.1:8001 http://127.0.0.1:8002

Replicas as for routers.py. A gateway serves conversations with long system prompts of their own, is stopped, and starts anew without its memory:
the same conversations come again, found in caches of which it does not know, and then as many with prompts that nobody has seen. Printed is
actual over predicted TTFT of these: 1 where the engines' speed was learned, more where caches were taken for it.
"""
import argparse
import asyncio
import time

import routers
import stream
import wire


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replicas", nargs="+")
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rep", type=int, default=1, help="other texts")
    args = parser.parse_args(namespace=argparse.Namespace(
        router=[], only="latency", slo="standard", seed=1, sessions=40, span=12, turns=2, think=1, groups=40, system=600, user=30, output=16))
    args.words_only = wire.whole_words(args.replicas[0], args.model)
    for replica in args.replicas:
        wire.empty_cache(replica)
    url, found = routers.commands(args)
    command, ready = found["latency"]
    with routers.running(command, ready):
        asyncio.run(routers.sessions(url, args, "known"))
    with routers.running(command, ready) as (_, access):
        asyncio.run(routers.sessions(url, args, "known"))
        time.sleep(1.2)  # `since` has whole seconds.
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        fresh = argparse.Namespace(**vars(args) | {"turns": 1})
        asyncio.run(routers.sessions(url, fresh, "fresh"))
        time.sleep(1.5)  # The access log is written behind the answers.
    ratios = [pair["actual"] / pair["predicted"] for pair in routers.predictions(access, since)]
    print(f"{len(ratios)} first tokens, actual over predicted: p50 {stream.percentile(ratios, 0.5):.2f}, p90 {stream.percentile(ratios, 0.9):.2f}; "
          f"the first ten {', '.join(f'{ratio:.2f}' for ratio in ratios[:10])}")


if __name__ == "__main__":
    main()
