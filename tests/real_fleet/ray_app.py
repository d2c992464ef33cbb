"""A Ray Serve application that speaks enough of OpenAI's API for the gateway: models, chats and completions, streamed or whole.

It generates nothing: every word takes PACE seconds. Deployed by ray_serve.py.
"""
import asyncio
import json
import os
import time

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve

PACE = float(os.environ.get("PACE", "0.02"))
MODEL = "ray-words"
api = FastAPI()


@serve.deployment(num_replicas=2, max_ongoing_requests=8, ray_actor_options={"num_cpus": 0.2})
@serve.ingress(api)
class Words:
    @api.get("/v1/models")
    def models(self):
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "tests"}]}

    @api.post("/v1/chat/completions")
    async def chat(self, request: Request):
        return await self.answer(request, "chat.completion", lambda word: {"delta": {"role": "assistant", "content": word}},
                                 lambda text: {"message": {"role": "assistant", "content": text}})

    @api.post("/v1/completions")
    async def completions(self, request: Request):
        return await self.answer(request, "text_completion", lambda word: {"text": word}, lambda text: {"text": text})

    async def answer(self, request, kind, piece, whole):
        asked = await request.json()
        if asked.get("model") != MODEL:
            return JSONResponse({"error": {"message": "no such model", "type": "NotFoundError", "code": 404}}, 404)
        count = int(asked.get("max_tokens") or asked.get("max_completion_tokens") or 16)
        head = {"id": f"ray-{time.monotonic_ns()}", "created": int(time.time()), "model": MODEL}
        usage = {"prompt_tokens": 8, "completion_tokens": count, "total_tokens": count + 8}
        if not asked.get("stream"):
            await asyncio.sleep(PACE * count)
            choice = {"index": 0, "finish_reason": "length", **whole("word " * count)}
            return {**head, "object": kind, "choices": [choice], "usage": usage}

        async def events():
            for n in range(count):
                await asyncio.sleep(PACE)
                choice = {"index": 0, "finish_reason": "length" if n == count - 1 else None, **piece("word ")}
                yield f"data: {json.dumps({**head, 'object': kind + '.chunk', 'choices': [choice]})}\n\n"
            if (asked.get("stream_options") or {}).get("include_usage"):
                yield f"data: {json.dumps({**head, 'object': kind + '.chunk', 'choices': [], 'usage': usage})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


app = Words.bind()
