"""A scripted vLLM with slots, serial prefill, a prefix cache, a KV cache and its own metrics, and what can go wrong with it."""

import asyncio
import contextlib
import json
import random
import time


class Engine:
    """One replica in this process; its attributes are changed while it runs."""

    def __init__(self, port, model="sim"):
        self.port, self.model = port, model
        self.batch, self.prefill, self.step = 4, 8000.0, 0.012
        # Seconds of each way of the network; share of answers that are a 500; what an answer is: well, empty, garbage, hang or stall.
        self.way, self.error_share, self.answer = 0.0, 0.0, "well"
        self.caches, self.is_kv_full, self.hides_metrics = True, False, False
        self.server, self.tasks = None, set()
        self.restart()

    def restart(self):
        self.born, self.running, self.waiting, self.cache = time.time(), 0, 0, {}
        self.generated = self.preemptions = self.ttft_sum = self.ttft_count = self.queries = self.hits = self.requests = 0
        self.computing = asyncio.Lock()

    async def start(self):
        self.restart()
        self.server = await asyncio.start_server(self.connection, "127.0.0.1", self.port, backlog=512)

    def die(self):
        """As by SIGKILL."""
        if self.server:
            self.server.close()
            self.server = None
        for task, writer in list(self.tasks):
            writer.transport.abort()
            task.cancel()

    async def connection(self, reader, writer):
        entry = (asyncio.current_task(), writer)
        self.tasks.add(entry)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.split(" ", 2)
                fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)}
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                await self.respond(writer, target.partition("?")[0], fields, body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ValueError):
            pass
        finally:
            self.tasks.discard(entry)
            with contextlib.suppress(OSError):
                writer.close()

    async def respond(self, writer, path, fields, body):
        if path == "/metrics":
            if self.hides_metrics:
                await asyncio.sleep(3600)
            return whole(writer, 200, self.page(), "text/plain")
        if path == "/v1/models":
            return whole(writer, 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        if path in ("/health", "/version"):
            return whole(writer, 200, {"version": "0.32.0"})
        asked = json.loads(body)
        if "x-tokenway-probe" in fields:
            choice = {"text": "a", "message": {"role": "assistant", "content": "a"}, "index": 0, "finish_reason": "length"}
            return whole(writer, 200, {"id": "c", "model": self.model, "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        await self.generate(Way(writer, self.way) if self.way else writer, asked)

    async def generate(self, writer, asked):
        self.requests += 1
        await asyncio.sleep(self.way)
        began = time.monotonic()
        if random.random() < self.error_share:
            message = "CUDA error: device-side assert triggered"
            return whole(writer, 500, {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        if self.answer == "hang":
            await asyncio.sleep(3600)
        if self.answer == "garbage":
            writer.write(b"6\r\ndata: \r\n")
            await asyncio.sleep(0.01)
            raise OSError
        if self.answer == "empty":
            await event(writer, chunk({"role": "assistant", "content": ""}))
            await event(writer, chunk({}, "stop"))
            return end(writer)
        text = asked["messages"][0]["content"]
        tokens, prefix = len(text) // 4, text[:1600]
        self.waiting += 1
        try:
            while self.running >= self.batch:
                await asyncio.sleep(0.005)
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            await self.stream(writer, asked, tokens, prefix, began)
        finally:
            self.running -= 1

    async def stream(self, writer, asked, tokens, prefix, began):
        hit = min(tokens, len(prefix) // 4) if self.caches and prefix in self.cache else 0
        self.queries, self.hits = self.queries + tokens, self.hits + hit
        self.cache[prefix] = True
        async with self.computing:
            await asyncio.sleep((tokens - hit) / self.prefill + self.step)
        self.ttft_sum, self.ttft_count = self.ttft_sum + time.monotonic() - began, self.ttft_count + 1
        count = asked.get("max_tokens", 40)
        for at in range(count):
            await event(writer, chunk({"content": "word "}, "stop" if at == count - 1 else None))
            self.generated += 1
            if self.answer == "stall" and at == 3:
                await asyncio.sleep(3600)
            if self.is_kv_full and random.random() < 0.03:
                self.preemptions += 1
                await asyncio.sleep(random.uniform(1, 3))
            await asyncio.sleep(self.step)
        usage = {"prompt_tokens": tokens, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": hit}}
        await event(writer, {"id": "c", "object": "chat.completion.chunk", "model": self.model, "choices": [], "usage": usage})
        end(writer)

    def page(self):
        usage = 0.995 if self.is_kv_full else min(0.9, 0.05 * (self.running + 1))
        series = {
            "num_requests_running": self.running, "num_requests_waiting": self.waiting, "kv_cache_usage_perc": usage,
            "prefix_cache_queries_total": self.queries, "prefix_cache_hits_total": self.hits, "num_preemptions_total": self.preemptions,
            "generation_tokens_total": self.generated, "time_to_first_token_seconds_sum": self.ttft_sum,
            "time_to_first_token_seconds_count": self.ttft_count,
        }
        lines = [f'vllm:{name}{{engine="0",model_name="{self.model}"}} {value}' for name, value in series.items()]
        lines.append('vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="20000"} 1.0')
        return "\n".join([*lines, f"process_start_time_seconds {self.born}", ""])


class Way:
    """The way back: what is written arrives so many seconds later. The engine's place is free by then."""

    def __init__(self, writer, seconds):
        self.writer, self.seconds = writer, seconds

    def write(self, data):
        asyncio.get_running_loop().call_later(self.seconds, self.arrive, data)

    def arrive(self, data):
        if not self.writer.is_closing():
            self.writer.write(data)

    async def drain(self):
        await asyncio.sleep(0)


def chunk(delta, reason=None):
    return {"id": "c", "object": "chat.completion.chunk", "model": "sim", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


async def event(writer, value):
    data = f"data: {json.dumps(value)}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


def end(writer):
    writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def whole(writer, status, value, kind="application/json"):
    data = (value if isinstance(value, str) else json.dumps(value)).encode()
    writer.write(b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (status, kind.encode(), len(data), data))
