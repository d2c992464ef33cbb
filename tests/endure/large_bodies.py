"""The longest gap of streams while clients upload large prompts of token ids.

    python3 tests/endure/large_bodies.py --gateway 127.0.0.1:8080 --bodies 3

Prints the longest gap between two reads of four streams without and with the uploads; ends with 1 when it more than doubles and
is over 100 ms.
"""

import argparse
import http.client
import json
import socket
import sys
import threading
import time


def main() -> int:
    args = argparse.ArgumentParser()
    args.add_argument("--gateway", default="127.0.0.1:8080")
    args.add_argument("--bodies", type=int, default=3)
    args.add_argument("--mib", type=int, default=31)
    args.add_argument("--model", default="sim")
    args.add_argument("--seconds", type=float, default=14)
    args = args.parse_args()
    host, port = args.gateway.rsplit(":", 1)
    ids = ",".join(str(100_000 + i % 50_000) for i in range(args.mib * (1 << 20) // 7))
    body = ('{"model":"%s","max_tokens":1,"prompt":[' % args.model + ids + "]}").encode()
    gaps: list[tuple[float, float]] = []
    end = time.time() + args.seconds

    def stream(n: int) -> None:
        client = http.client.HTTPConnection(host, int(port))
        ask = {"model": args.model, "stream": True, "max_tokens": 2000, "prompt": f"hello {n}"}
        client.request("POST", "/v1/completions", json.dumps(ask), {"content-type": "application/json"})
        reply, last = client.getresponse(), None
        while time.time() < end and reply.read1(65536):
            now = time.time()
            if last:
                gaps.append((now, now - last))
            last = now

    def upload() -> None:
        client = socket.create_connection((host, int(port)))
        head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        client.sendall((head % len(body)).encode() + body)
        answers.append(client.recv(100)[9:12].decode())

    answers: list[str] = []
    streams = [threading.Thread(target=stream, args=(n,)) for n in range(4)]
    uploads = [threading.Thread(target=upload) for _ in range(args.bodies)]
    for thread in streams:
        thread.start()
    time.sleep(args.seconds / 3)
    begin = time.time()
    for thread in uploads:
        thread.start()
    for thread in uploads:
        thread.join()
    over = time.time()
    for thread in streams:
        thread.join()
    without = max(gap for at, gap in gaps if at < begin)
    during = max((gap for at, gap in gaps if begin <= at < over + 0.3), default=0.0)
    print(
        f"{args.bodies} bodies of {args.mib} MiB, answers {answers}, {over - begin:.2f} s: "
        f"longest gap {without * 1000:.0f} ms without, {during * 1000:.0f} ms with them"
    )
    return int(during > 2 * without and during > 0.1)


if __name__ == "__main__":
    sys.exit(main())
