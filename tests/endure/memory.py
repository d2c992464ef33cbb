#!/usr/bin/env python3
"""What one of everything takes: resident memory of the gateway for each connection, stream, byte of a body and tenant.

    memory.py BINARY [--only connections,streams,…] [--write docs/results.md]

Scripted replicas and the gateway run on loopback, with the standard library and openssl. Each run prints a row; the exit code is 1 if one
takes much more than when this was written, or if anything is left behind. What a cached block takes is asserted by a unit test of the index.
"""

import asyncio
import hashlib
import ssl
import subprocess
import sys

import rows
from endure import KEY, ask, request
from everyday import chat, fleet, gateway

KIB, MIB = 1 << 10, 1 << 20


async def settled(one):
    """Resident bytes when they stay."""
    before = 0
    while abs((now := one.rss()) - before) > MIB // 4:
        before = now
        await asyncio.sleep(1)
    return now


async def ended(one):
    left = await asyncio.to_thread(one.left_behind)
    code = await asyncio.to_thread(one.stop)
    return f"left behind: {left or 'nothing'}", not left and code == 0


async def opened(port, count, tls=None):
    """Connections that had an answer and are kept."""
    kept = []
    for start in range(0, count, 100):
        for reader, writer in await asyncio.gather(*(
                asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=4096) for _ in range(min(100, count - start)))):
            writer.write(b"GET /version HTTP/1.1\r\nhost: memory\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            kept.append(writer)
    return kept


async def connections(options):
    """Idle connections of clients."""
    folder = options.folder
    pem, key = f"{folder}/cert.pem", f"{folder}/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-keyout", key, "-out", pem], check=True, capture_output=True)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    for name, tls, server, most in (("clear text", None, "", 32), ("TLS", trusting, f'tls = {{ cert = "{pem}", key = "{key}" }}\n', 48)):
        one = await gateway(options, await fleet(1), server='keep_alive = "300s"\n' + server)
        before, count = await settled(one), options.count
        kept = await opened(one.data, count, tls)
        each = (await settled(one) - before) / count / KIB
        for writer in kept:
            writer.close()
        text, good = await ended(one)
        yield f"idle connection of a client, {name}", f"{each:.1f} KiB ({count:,} at once); {text}", good and each <= most


async def streams(options):
    """Streams that say nothing for a while: a client's connection, a replica's, and what is in between."""
    one = await gateway(options, await fleet(2))
    before, count = await settled(one), options.count
    running = []
    for start in range(0, count, 250):
        running += [asyncio.create_task(ask(one.data, chat(start + n, max_tokens=2, gap=20))) for n in range(250)]
        await asyncio.sleep(0.5)
    async with asyncio.timeout(30):
        while one.metric("tokenway_requests_inflight") < count:
            await asyncio.sleep(0.5)
    each = (await settled(one) - before) / count / KIB
    whole = sum([status == 200 and bool(done) for status, _, done, _ in await asyncio.gather(*running)])
    text, good = await ended(one)
    yield "stream, with both of its connections and a prompt of 3 kB", f"{each:.1f} KiB ({count:,} at once, {whole:,} whole); {text}", good and whole == count and each <= 70


async def bodies(options):
    """Requests whose bodies wait for the engine's first byte."""
    one = await gateway(options, await fleet(2), rest="", server="")
    before, count, size = await settled(one), 128, MIB
    text = "word " * (size // 5)
    running = [asyncio.create_task(ask(one.data, {**chat(n, max_tokens=2, gap=20), "messages": [{"role": "user", "content": f"{n} {text}"}]})) for n in range(count)]
    async with asyncio.timeout(60):
        while one.metric("tokenway_requests_inflight") < count:
            await asyncio.sleep(0.5)
    each = (await settled(one) - before) / (count * size)
    whole = sum([status == 200 and bool(done) for status, _, done, _ in await asyncio.gather(*running)])
    left, good = await ended(one)
    yield "byte of a body that is kept until its answer begins, copies included", f"{each:.2f} bytes ({count} of 1 MiB, {whole} whole); {left}", good and whole == count and each <= 3


async def tenants(options):
    """Tenants that have each used a route: series of metrics, and percentiles beside them."""
    count = 150
    digest = lambda n: hashlib.sha256(f"key-{n}-of-a-tenant".encode()).hexdigest()
    text = "".join(f'[[tenant]]\nname = "tenant-{n}"\nkey_sha256 = ["{digest(n)}"]\n' for n in range(count))
    one = await gateway(options, await fleet(2), rest=text)

    async def told(n):
        reader, writer = await asyncio.open_connection("127.0.0.1", one.data)
        body = request(chat(n, max_tokens=2, stream=False)).replace(KEY.encode(), f"key-{n}-of-a-tenant".encode())
        writer.write(body)
        status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
        writer.close()
        return status

    lines = lambda page: sum(line[:1] not in ("", "#") for line in page.splitlines())
    statuses = [await told(0)]
    await asyncio.to_thread(one.get, "/metrics")
    before, first = await settled(one), lines((await asyncio.to_thread(one.get, "/metrics"))[1])
    statuses += [await told(n) for n in range(1, count)]
    more = lines((await asyncio.to_thread(one.get, "/metrics"))[1]) - first
    each = (await settled(one) - before) / (count - 1) / KIB
    text, good = await ended(one)
    yield "tenant that has used a route, with its percentiles and series", f"{each:.0f} KiB ({count - 1} tenants, {more:,} lines of `/metrics`); {text}", good and set(statuses) == {200} and each <= 64


async def many_tenants(options):
    """Ten thousand tenants with two budgets each, which have all sent a request: most of them without series of their own."""
    count, digest = 10_000, lambda n: hashlib.sha256(f"key-{n}-of-a-tenant".encode()).hexdigest()
    budgets = '[[tenant.budget]]\nwindow = "day"\nrequests = 99999\n[[tenant.budget]]\nwindow = "month"\ntokens = 99999999\n'
    text = "".join(f'[[tenant]]\nname = "tenant-{n}"\nkey_sha256 = ["{digest(n)}"]\n{budgets}' for n in range(count))
    one = await gateway(options, await fleet(2), rest=text)
    statuses = set()

    async def told(numbers, tenant=lambda n: n):
        reader, writer = await asyncio.open_connection("127.0.0.1", one.data)
        for n in numbers:
            writer.write(request(chat(n, max_tokens=2, stream=False)).replace(KEY.encode(), f"key-{tenant(n)}-of-a-tenant".encode()))
            head = await reader.readuntil(b"\r\n\r\n")
            statuses.add(int(head.split()[1]))
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.close()

    # As many requests of one tenant, so that prompts, decisions and connections are there.
    await asyncio.gather(*(told(range(count + start, 2 * count, 8), lambda _: 0) for start in range(8)))
    await asyncio.to_thread(one.get, "/metrics")
    before = await settled(one)
    await asyncio.gather(*(told(range(1 + start, count, 8)) for start in range(8)))
    await asyncio.to_thread(one.get, "/metrics")
    each = (await settled(one) - before) / count
    text, good = await ended(one)
    yield "tenant of 10,000 that are active, with two budgets", f"{each:,.0f} bytes (goal 2,000); {text}", good and statuses == {200} and each <= 2_048


RUNS = {run.__name__: run for run in (connections, streams, bodies, tenants, many_tenants)}


if __name__ == "__main__":
    sys.exit(rows.main(RUNS, "memory", __doc__, [("count", 4000, "connections and streams at once")]))
