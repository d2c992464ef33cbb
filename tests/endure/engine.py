"""A scripted vLLM: chat, completions, messages, embeddings, stored responses and forms; its answers follow from the prompt, its faults from `mode`.

A prompt that has `of WORD number N tokens K` is answered by K tokens `WORD.N.i@MODEL`, also where a continuation gives the first of them. One that
begins with `!` asks for an odd answer, as an engine's input can. Like vLLM it knows no tenants, takes a body's `request_id` as the response's id,
reads JSON as Python does, and of a form's parameters the last.
"""

import asyncio
import contextlib
import hashlib
import json
import re
import time
import urllib.parse
import uuid

TTFT, GAP = 0.02, 0.01
ORDER = re.compile(r"of (\S+) number (\d+) tokens (\d+) ")


def tokens_of(text):
    """About what a tokenizer makes of a text."""
    plain = sum(character.isascii() for character in text)
    return plain // 4 + 2 * (len(text) - plain) + 1
# An answer of 480 KB, made once: hundreds of them would stop the script, and with it all engines and clients, for seconds.
LARGE = json.dumps({"object": "list", "model": "sim", "data": [{"object": "embedding", "index": 0, "embedding": [0.125] * 60_000}],
                    "usage": {"prompt_tokens": 3, "total_tokens": 3}})


def words(text, model):
    """The answer to a prompt, token by token."""
    order = ORDER.search(text)
    word, number, count = order.groups() if order else ("plain", "0", "3")
    return [f"{word}.{number}.{at}@{model} " for at in range(int(count))]


def vector(text):
    return [byte / 256 for byte in hashlib.sha256(text.encode()).digest()[:8]]


def text_of(content):
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content or [] if isinstance(part, dict))


class Engine:
    """One replica. `mode`: well, 500, html, 404, empty or hang, to requests of clients, and to probes where `lies_to_probes` is not set."""

    def __init__(self, port, models):
        self.port, self.models, self.mode, self.lies_to_probes = port, models, "well", True
        self.own_models = models
        self.server, self.tasks, self.stored = None, set(), {}
        self.born = self.running = self.preflights = 0

    async def start(self):
        self.stored, self.born, self.mode = {}, time.time(), "well"
        self.server = await asyncio.start_server(self.connection, "127.0.0.1", self.port, backlog=4096, limit=2**26)

    def die(self):
        """As by SIGKILL: nobody listens, every connection is reset, what was stored is lost."""
        self.server.close()
        for task, writer in list(self.tasks):
            writer.transport.abort()
            task.cancel()

    async def connection(self, reader, writer):
        entry = (asyncio.current_task(), writer)
        self.tasks.add(entry)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.split(" ", 2)
                fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)}
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                self.running += 1
                try:
                    await self.answer(writer, method, target, fields, body)
                finally:
                    self.running -= 1
                await writer.drain()
        self.tasks.discard(entry)
        writer.close()

    async def answer(self, writer, method, target, fields, body):
        path, _, query = target.partition("?")
        if method == "OPTIONS":
            self.preflights += 1
            return self.whole(writer, 200, "OK")
        if path == "/metrics":
            return self.whole(writer, 200, self.page(), "text/plain")
        if path == "/v1/models":
            return self.whole(writer, 200, {"object": "list", "data": [{"id": model, "object": "model"} for model in self.models]})
        if path in ("/health", "/version"):
            return self.whole(writer, 200, {"version": "0.32.0"})
        is_probe = "x-tokenway-probe" in fields
        if self.mode != "well" and not (is_probe and self.lies_to_probes):
            return await self.fail(writer)
        if path.startswith("/v1/responses/"):
            return self.stored_response(writer, method, path.split("/")[3])
        if path == "/v1/realtime":
            return self.error(writer, 400, f"no audio model @{urllib.parse.parse_qs(query).get('model', ['none'])[-1]}")
        kind = fields.get("content-type", "")
        try:
            asked = self.form(body) if kind.startswith("multipart/") else json.loads(body)
        except ValueError as error:
            return self.error(writer, 400, f"not to be read: {error}")
        if not isinstance(asked, dict):
            return self.error(writer, 400, "no object")
        model = asked.get("model", self.models[0])
        if model not in self.models:
            return self.error(writer, 404, f"The model `{model}` does not exist.", "NotFoundError")
        await self.generate(writer, path, asked, model)

    async def generate(self, writer, path, asked, model):
        if path == "/v1/chat/completions":
            messages = asked.get("messages") or [{"role": "user", "content": ""}]
            prompt = text_of(next((one.get("content") for one in reversed(messages) if one.get("role") == "user"), ""))
            begun = text_of(messages[-1].get("content")) if messages[-1].get("role") == "assistant" else ""
        elif path == "/v1/completions":
            prompt, _, begun = str(asked.get("prompt", "")).partition(" END ")
        else:
            prompt, begun = text_of(asked.get("input") or asked.get("prompt") or next(iter(asked.get("messages", [{}])), {}).get("content", "")), ""
        odd, _, quoted = prompt[1:].partition(" ") if prompt.startswith("!") else ("", "", "")
        if odd == "400":
            return self.error(writer, 400, quoted)
        if odd == "500":
            return self.error(writer, 500, quoted, "InternalServerError")
        answer = "".join(words(prompt, model))[len(begun):]
        if odd == "quote":
            answer = quoted + " "
        pieces = re.findall(r"\S*\s+|\S+$", answer)
        usage = {"prompt_tokens": tokens_of(prompt + begun), "completion_tokens": len(pieces), "total_tokens": tokens_of(prompt) + len(pieces)}
        if path == "/v1/embeddings":
            return self.whole(writer, 200, LARGE if odd == "large" else {
                "object": "list", "model": model, "data": [{"object": "embedding", "index": 0, "embedding": vector(prompt)}], "usage": usage})
        if path == "/v1/messages":
            content = [{"type": "tool_use", "id": "t", "name": "f", "input": json.loads(quoted)}] if odd == "tool" else [{"type": "text", "text": answer}]
            return self.whole(writer, 200, {"id": "m", "type": "message", "role": "assistant", "model": model, "content": content,
                                            "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 3}})
        if path == "/v1/responses":
            return await self.response(writer, asked, model, prompt, pieces)
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return self.whole(writer, 200, {"text": f"read as @{model}"})
        name = "chat.completion" if path == "/v1/chat/completions" else "text_completion"
        if not asked.get("stream"):
            await asyncio.sleep(TTFT + GAP * len(pieces))
            choice = {"message": {"role": "assistant", "content": answer}} if name == "chat.completion" else {"text": answer}
            return self.whole(writer, 200, {"id": "c", "object": name, "model": model, "usage": usage, "choices": [{"index": 0, "finish_reason": "stop", **choice}]})
        self.head(writer)
        if odd == "error":
            await self.event(writer, {"error": {"message": quoted, "type": "BadRequestError", "code": 400}})
            return await self.end(writer)
        await asyncio.sleep(TTFT)
        for at, piece in enumerate(pieces):
            last = at == len(pieces) - 1
            delta = {"delta": {"content": piece}} if name == "chat.completion" else {"text": piece}
            await self.event(writer, {"id": "c", "object": name, "model": model, "choices": [{"index": 0, **delta, "finish_reason": "stop" if last else None}]})
            await asyncio.sleep(GAP)
        if odd == "finish":
            await asyncio.sleep(9)
        if (asked.get("stream_options") or {}).get("include_usage"):
            await self.event(writer, {"id": "c", "object": name, "model": model, "choices": [], "usage": usage})
        await self.end(writer, silence=9 if odd == "done" else 0)

    async def response(self, writer, asked, model, prompt, pieces):
        before = asked.get("previous_response_id")
        if before and before not in self.stored:
            return self.error(writer, 404, f"Response with id '{before}' not found.", "NotFoundError")
        if before:
            pieces = [f"after.{text_of(self.stored[before]['output'][0]['content']).split()[0]} ", *pieces]
        text = "".join(pieces)
        name = asked.get("request_id") or f"resp_{uuid.uuid4().hex}"
        value = {"id": name, "object": "response", "model": model, "status": "completed", "metadata": asked.get("metadata"), "tools": asked.get("tools", []),
                 "output": [{"id": "m", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}],
                 "usage": {"input_tokens": tokens_of(prompt), "output_tokens": len(pieces), "total_tokens": tokens_of(prompt) + len(pieces)}}
        if not asked.get("stream"):
            await asyncio.sleep(TTFT + GAP * len(pieces))
            self.stored[name] = value
            return self.whole(writer, 200, value)
        self.head(writer)
        number = 0
        begun = {**value, "status": "in_progress", "output": []}
        for kind, more in [("created", {"response": begun}), *(("output_text.delta", {"delta": piece, "item_id": "m"}) for piece in pieces), ("completed", {"response": value})]:
            if kind == "completed":
                self.stored[name] = value
            await self.event(writer, {"type": f"response.{kind}", "sequence_number": number, **more}, f"response.{kind}")
            number += 1
            await asyncio.sleep(GAP)
        writer.write(b"0\r\n\r\n")

    def stored_response(self, writer, method, name):
        if name not in self.stored:
            return self.error(writer, 404, f"Response with id '{name}' not found.", "NotFoundError")
        if method == "DELETE":
            del self.stored[name]
            return self.whole(writer, 200, {"id": name, "object": "response", "deleted": True})
        return self.whole(writer, 200, self.stored[name])

    async def fail(self, writer):
        if self.mode == "hang":
            await asyncio.sleep(3600)
        if self.mode == "500":
            return self.error(writer, 500, "CUDA error: an illegal memory access was encountered", "InternalServerError")
        if self.mode == "404":
            return self.error(writer, 404, "The model does not exist.", "NotFoundError")
        if self.mode == "html":
            return self.whole(writer, 200, "<html><body>welcome</body></html>", "text/html")
        self.whole(writer, 200, "")

    def page(self):
        series = {"num_requests_running": self.running, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.1, "prefix_cache_queries_total": 0, "prefix_cache_hits_total": 0}
        lines = [f'vllm:{name}{{engine="0",model_name="{self.models[0]}"}} {value}' for name, value in series.items()]
        lines.append('vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="20000"} 1.0')
        return "\n".join([*lines, f"process_start_time_seconds {self.born}", ""])

    @staticmethod
    def form(body):
        """The fields of a form, as python-multipart reads them: of two parameters of one name the last."""
        asked = {}
        for part in body.split(b"\r\n--")[0:]:
            head, _, value = part.partition(b"\r\n\r\n")
            names = re.findall(rb'; *name="([^"]*)"', head)
            if names:
                asked[names[-1].decode("latin-1")] = value.decode("latin-1")
        return asked

    @staticmethod
    def head(writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")

    @staticmethod
    async def event(writer, value, name=None):
        data = (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(value)}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()

    @staticmethod
    async def end(writer, silence=0):
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n")
        await writer.drain()
        await asyncio.sleep(silence)
        writer.write(b"0\r\n\r\n")

    def error(self, writer, status, message, kind="BadRequestError"):
        self.whole(writer, status, {"error": {"message": message, "type": kind, "param": None, "code": status}})

    @staticmethod
    def whole(writer, status, value, kind="application/json"):
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (status, kind.encode(), len(data), data))
