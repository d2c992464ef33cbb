#!/usr/bin/env python3
"""The official Python SDKs through the gateway; those that are not installed are skipped."""
import argparse
import asyncio

ASK = [{"role": "user", "content": "Say something about streams."}]


def openai_checks(url, model):
    import openai

    one = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    many = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    chat = {"model": model, "messages": ASK, "max_tokens": 8, "extra_body": {"ignore_eos": True}}

    def models():
        assert model in [m.id for m in one.models.list()]

    def unary():
        assert one.chat.completions.create(**chat).usage.completion_tokens == 8

    def stream():
        chunks = list(one.chat.completions.create(**chat, stream=True))
        assert chunks[-1].choices[0].finish_reason == "length", "a chunk too many, or the last one is missing"

    def stream_usage():
        chunks = list(one.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].usage.completion_tokens == 8 and not chunks[-1].choices

    def completions_stream():
        assert list(one.completions.create(model=model, prompt="abc", max_tokens=5, stream=True))

    def unknown_model():
        try:
            one.chat.completions.create(model="no-such-model", messages=ASK)
        except openai.NotFoundError as error:
            assert error.body["message"]
        else:
            raise AssertionError("no 404")

    async def parallel_streams():
        async def read():
            return [c async for c in await many.chat.completions.create(**chat, stream=True)]
        answers = await asyncio.gather(*(read() for _ in range(6)))
        assert all(answer[-1].choices[0].finish_reason == "length" for answer in answers)

    async def leave_early():
        answer = await many.chat.completions.create(**{**chat, "max_tokens": 2000}, stream=True)
        async for _ in answer:
            break
        await answer.close()

    async def parallel_then_leave():
        await parallel_streams()
        await leave_early()

    def asynchronous():
        asyncio.run(parallel_then_leave())

    return [models, unary, stream, stream_usage, completions_stream, unknown_model, asynchronous]


def anthropic_checks(url, model):
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)

    def messages():
        assert client.messages.create(model=model, max_tokens=5, messages=ASK).usage.output_tokens > 0

    def messages_stream():
        with client.messages.stream(model=model, max_tokens=8, messages=ASK) as answer:
            for _ in answer.text_stream:
                pass
            assert answer.get_final_message().stop_reason

    return [messages, messages_stream]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("url", "model", "results"):
        parser.add_argument("--" + name, required=True)
    args = parser.parse_args()
    with open(args.results, "a") as results:
        for name, make in (("openai", openai_checks), ("anthropic", anthropic_checks)):
            try:
                checks = make(args.url, args.model)
            except ImportError:
                results.write(f"SDK {name}\tskipped\tnot installed\n")
                continue
            for check in checks:
                try:
                    check()
                    results.write(f"SDK {name}: {check.__name__}\tok\t\n")
                except Exception as error:  # whatever an SDK raises is the finding
                    text = " ".join(str(error).split())[:200]
                    results.write(f"SDK {name}: {check.__name__}\tFAIL\t{type(error).__name__}: {text}\n")


main()
