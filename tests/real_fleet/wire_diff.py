#!/usr/bin/env python3
"""The same calls straight at an engine and through gateways, compared byte by byte.

    wire_diff.py --model tiny --target straight=http://127.0.0.1:8001 --target one=http://127.0.0.1:8080

What may differ is replaced before the comparison: ids, times, and of the headers `date` and those that the gateway adds
(docs/compatibility.md). Everything else is printed as a difference. Answers are greedy, so that two engines say the same.
"""
import argparse
import http.client
import json
import re
import sys
from urllib.parse import urlsplit

ASK = [{"role": "user", "content": "Say something about streams."}]
OWN_HEADERS = {"date", "x-request-id", "server-timing", "x-accel-buffering", "cache-control", "content-length",
               "transfer-encoding", "connection", "keep-alive", "x-tokenway-replica", "x-tokenway-revision", "x-tokenway-decision"}
WEB = {"origin": "https://app.example"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}


def calls(model):
    chat = {"model": model, "messages": ASK, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    text = {"model": model, "prompt": "abc", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    stream = {"stream": True}
    usage = {"stream_options": {"include_usage": True}}
    yield from (("POST", "/v1/chat/completions", {**chat, **more}) for more in (
        {}, stream, {**stream, **usage}, {**stream, "stream_options": None}, {**stream, "stream_options": {}},
        {**stream, "stream_options": {"include_usage": False}},
        {**stream, "stream_options": {"continuous_usage_stats": True}},
        {**stream, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {**stream, "n": 2, "seed": 1}, {"n": 2, "seed": 1}, {**stream, "max_tokens": 1}, {"logprobs": True, "top_logprobs": 2},
        {**stream, "logprobs": True}, {**stream, "return_token_ids": True}, {"tools": [TOOL]}, {**stream, "tools": [TOOL]},
        {"stop": ["a"]}, {**stream, "stop": ["a"]}, {"seed": 1}, {"response_format": {"type": "json_object"}, "ignore_eos": False},
        {"request_id": "mine-1"}, {"max_tokens": -1}, {"messages": []}, {"temperature": "hot"}, {"model": ""},
        {"logit_bias": {"99999999": 1}}))
    without = {key: value for key, value in chat.items() if key != "model"}
    yield "POST", "/v1/chat/completions", without
    yield from (("POST", "/v1/completions", {**text, **more}) for more in (
        {}, stream, {**stream, **usage}, {"echo": True}, {**stream, "echo": True}, {"prompt": ["a", "b"]},
        {**stream, "prompt": ["a", "b"]}, {"prompt": [1, 2, 3]}, {"n": 2, "seed": 1}, {**stream, "n": 2, "seed": 1}, {"prompt": 7}))
    yield "POST", "/v1/chat/completions/batch", {**chat, "messages": [ASK, ASK]}
    for more in ({}, stream):
        yield "POST", "/v1/responses", {"model": model, "input": "hi", "max_output_tokens": 8, "temperature": 0, **more}
        yield "POST", "/v1/messages", {"model": model, "messages": ASK, "max_tokens": 8, "temperature": 0, **more}
    yield "POST", "/v1/messages/count_tokens", {"model": model, "messages": ASK}
    yield "POST", "/tokenize", {"model": model, "prompt": "abc"}
    yield "POST", "/tokenize", {"prompt": "abc"}
    yield "POST", "/detokenize", {"model": model, "tokens": [1, 2, 3]}
    yield "POST", "/generative_scoring", {"model": model, "query": "a", "items": ["b", "c"], "label_token_ids": [1, 2]}
    for path in ("/v1/embeddings", "/v2/embed", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/classify", "/pooling"):
        yield "POST", path, {"model": model, "input": "a", "query": "a", "documents": ["b"]}
    yield "GET", "/v1/models", None
    yield "GET", "/tokenizer_info", None
    yield "GET", "/v1/chat/completions", None
    yield "POST", "/v1/chat/completions", b"{"
    yield "POST", "/v1/chat/completions", b"[]"
    yield "POST", "/v1/audio/transcriptions", b"--B\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--B--\r\n"
    yield "POST", "/v1/chat/completions", {**chat, "model": "nobody"}
    yield "OPTIONS", "/v1/chat/completions", None


def answer(url, method, path, body):
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname, target.port, timeout=120)
    headers = dict(WEB)
    if method == "OPTIONS":
        headers |= {"access-control-request-method": "POST"}
    if isinstance(body, bytes):
        headers["content-type"] = "multipart/form-data; boundary=B" if "/audio/" in path else "application/json"
    elif body is not None:
        headers["content-type"], body = "application/json", json.dumps(body)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        kept = {k.lower(): v for k, v in response.getheaders() if k.lower() not in OWN_HEADERS}
        return response.status, kept, normal(response.read().decode())
    except OSError as error:
        return 0, {}, f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def normal(body):
    body = re.sub(r"\b(chatcmpl|cmpl|resp|msg|rs|fc|call|modelperm|generative-scoring|score|embd|pool|rerank|chatcmpl-tool|tokenize)[-_][0-9A-Za-z_.-]+", r"\1-ID", body)
    body = re.sub(r'"(created|created_at|completed_at)":[0-9.]+', r'"\1":T', body)
    return re.sub(r'"(id|item_id)":"[0-9a-f]{8,}"', r'"\1":"ID"', body)


def shown(method, path, body):
    if isinstance(body, dict):
        body = {k: v for k, v in body.items() if k not in ("messages", "max_tokens", "temperature", "ignore_eos", "tools") or (k == "messages" and not v)}
    return f"{method} {path} {json.dumps(body) if not isinstance(body, bytes) else body[:20]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--target", action="append", required=True, metavar="NAME=URL")
    args = parser.parse_args()
    (_, straight), *others = (target.split("=", 1) for target in args.target)
    counts = {name: [0, 0] for name, _ in others}
    for call in calls(args.model):
        for name, url in others:
            # A busy engine puts several tokens into one chunk, and interleaves choices as it likes: what differs once is
            # asked again.
            for _ in range(4):
                direct, there = answer(straight, *call), answer(url, *call)
                if there == direct:
                    break
            counts[name][0] += 1
            if there == direct:
                continue
            counts[name][1] += 1
            print(f"{name}: {shown(*call)}")
            for what, a, b in zip(("status", "headers", "body"), direct, there):
                if a != b:
                    at = next((i for i, (x, y) in enumerate(zip(str(a), str(b))) if x != y), min(len(str(a)), len(str(b))))
                    start = max(0, at - 60)
                    print(f"    {what}: {str(a)[start:at + 140]!r}\n      here: {str(b)[start:at + 140]!r}")
    for name, (total, different) in counts.items():
        print(f"{name}: {different} of {total} calls differ")
    return any(different for _, different in counts.values())


if __name__ == "__main__":
    sys.exit(main())
