"""N clients that read their streams slowly, or not at all: does the gateway's memory stay flat?

    python3 tests/endure/slow_readers.py --gateway 127.0.0.1:8080 --pid PID --readers 2000 --seconds 60

The gateway's client_stall should be above --seconds. Prints resident memory before, at the peak and after, per reader, and
ends with 1 when memory grows by more than --growth between the first and the last quarter of the run.
"""

import argparse
import selectors
import socket
import sys
import time


def resident(pid: int) -> int:
    """Bytes of anonymous and file memory in RAM."""
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def request(model: str) -> bytes:
    body = (
        '{"model":"%s","stream":true,"max_tokens":4000,"messages":[{"role":"user","content":"count"}]}' % model
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return (head % len(body)).encode() + body


def main() -> int:
    args = argparse.ArgumentParser()
    args.add_argument("--gateway", default="127.0.0.1:8080")
    args.add_argument("--pid", type=int, required=True)
    args.add_argument("--readers", type=int, default=2000)
    args.add_argument("--seconds", type=float, default=60)
    args.add_argument("--bytes-per-second", type=int, default=256, help="0: take nothing after the head")
    args.add_argument("--model", default="sim")
    args.add_argument("--growth", type=float, default=0.1)
    args = args.parse_args()
    host, port = args.gateway.rsplit(":", 1)
    before = resident(args.pid)
    sockets = []
    for _ in range(args.readers):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.sendall(request(args.model))
        sockets.append(client)
    selector = selectors.DefaultSelector()
    for client in sockets:
        client.setblocking(False)
        selector.register(client, selectors.EVENT_READ)
    end, samples, closed = time.time() + args.seconds, [], 0
    while time.time() < end:
        tick = time.time()
        for key, _ in selector.select(0) if args.bytes_per_second else []:
            try:
                if not key.fileobj.recv(args.bytes_per_second):
                    raise ConnectionResetError
            except BlockingIOError:
                pass
            except OSError:
                selector.unregister(key.fileobj)
                closed += 1
        samples.append(resident(args.pid))
        time.sleep(max(0.0, 1 - (time.time() - tick)))
    for client in sockets:
        client.close()
    time.sleep(5)
    after = resident(args.pid)
    quarter = max(1, len(samples) // 4)
    early, late = max(samples[:quarter * 2][quarter:] or samples), max(samples[-quarter:])
    mib = 1 << 20
    print(
        f"readers {args.readers}, closed meanwhile {closed}: resident {before / mib:.0f} MiB before, "
        f"{max(samples) / mib:.0f} at the peak ({(max(samples) - before) / args.readers / 1024:.0f} KiB a reader), "
        f"{early / mib:.0f} in the second quarter, {late / mib:.0f} in the last, {after / mib:.0f} 5 s after"
    )
    return int(late > early * (1 + args.growth))


if __name__ == "__main__":
    sys.exit(main())
