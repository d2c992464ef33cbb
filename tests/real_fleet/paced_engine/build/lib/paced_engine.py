"""A vLLM plugin that makes every step take as long as a step of another engine would.

Replicas on one machine share its cores, and each is slower while others compute: no GPU fleet does that, and no router can know
of it. With a model that computes next to nothing and the rest of each step slept, replicas have a processor of their own each.
Scheduler, chunked prefill, prefix cache, tokenizer, HTTP server and metrics stay vLLM's.

    pip install tests/real_fleet/paced_engine      (into vLLM's environment)
    PACED_ENGINE='{"step_s": 0.03, "prompt_token_s": 0.00025}' vllm serve …

PACED_ENGINE has the prices of `tokenway replay --engine` (seconds), those left out are zero: `step_s`, `step_per_seq_s`,
`prompt_token_s`, `attention_pair_s` (a prompt token and one before it) and `context_token_s` (read by decoding). Without it nothing is changed.
A step that computes longer than its price takes what it takes.
"""
import functools
import json
import os
import time

PRICES = ("step_s", "step_per_seq_s", "prompt_token_s", "attention_pair_s", "context_token_s")


def sequences(scheduled):
    """(tokens in this step, tokens before it) of each sequence of a vLLM `SchedulerOutput`."""
    cached = scheduled.scheduled_cached_reqs
    before = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
    before |= zip(cached.req_ids, cached.num_computed_tokens)
    return [(tokens, before.get(request, 0)) for request, tokens in scheduled.num_scheduled_tokens.items()]


def price(prices, sequences):
    """Seconds of a step."""
    seconds = prices["step_s"] + prices["step_per_seq_s"] * len(sequences)
    for tokens, before in sequences:
        if tokens == 1:
            seconds += prices["context_token_s"] * before
        else:
            seconds += tokens * (prices["prompt_token_s"] + prices["attention_pair_s"] * (before + tokens / 2))
    return seconds


def register():
    if not (given := os.environ.get("PACED_ENGINE")):
        return
    given = json.loads(given)
    if unknown := given.keys() - set(PRICES):
        raise ValueError(f"PACED_ENGINE: unknown {sorted(unknown)}; known are {', '.join(PRICES)}")
    prices = dict.fromkeys(PRICES, 0.0) | given

    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # that of CPUs inherits from it

    compute = GPUModelRunner.execute_model
    if hasattr(compute, "paced"):
        return

    @functools.wraps(compute)
    def paced(self, scheduler_output, *args, **kwargs):
        began = time.monotonic()
        result = compute(self, scheduler_output, *args, **kwargs)
        if scheduler_output.total_num_scheduled_tokens:
            time.sleep(max(0.0, began + price(prices, sequences(scheduler_output)) - time.monotonic()))
        return result

    paced.paced = True
    GPUModelRunner.execute_model = paced
