#!/usr/bin/env python3
"""The official Python SDKs through the gateway; those that are not installed are skipped."""
import argparse
import asyncio
import time

ASK = [{"role": "user", "content": "Say something about streams."}]


def openai_checks(url, model):
    import openai

    one = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    many = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    chat = {"model": model, "messages": ASK, "max_tokens": 8, "extra_body": {"ignore_eos": True}}

    def models():
        listed = list(one.models.list())
        assert model in [m.id for m in listed] and listed[0].root, "vllm bench serve reads the root of the first"

    def fingerprint():
        whole = one.chat.completions.create(**chat).system_fingerprint
        chunks = list(one.chat.completions.create(**chat, stream=True))
        assert chunks[-1].system_fingerprint == whole, f"{chunks[-1].system_fingerprint} for {whole}"

    def no_model():
        assert one.chat.completions.create(**{**chat, "model": ""}).choices

    def stored_response():
        made = one.responses.create(model=model, input="hi", max_output_tokens=8)
        assert one.responses.retrieve(made.id).id == made.id
        more = one.responses.create(model=model, input="more", previous_response_id=made.id, max_output_tokens=8)
        assert more.previous_response_id == made.id

    def background_response():
        made = one.responses.create(model=model, input="hi", max_output_tokens=8, background=True)
        for _ in range(100):
            if one.responses.retrieve(made.id).status not in ("queued", "in_progress"):
                return
            time.sleep(0.1)
        raise AssertionError("it never ended")

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

    return [models, fingerprint, no_model, stored_response, background_response, unary, stream, stream_usage, completions_stream, unknown_model, asynchronous]


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


def langchain_checks(url, model):
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=url + "/v1", api_key="none", model=model, max_tokens=8, max_retries=0)

    def langchain_invoke():
        assert chat.invoke("hi").response_metadata["token_usage"]["completion_tokens"] > 0

    def langchain_stream():
        assert list(chat.stream("hi"))

    def langchain_batch():
        assert len(chat.batch(["a", "b"])) == 2

    return [langchain_invoke, langchain_stream, langchain_batch]


def llama_index_checks(url, model):
    from llama_index.llms.openai import OpenAI

    class Any(OpenAI):  # it knows the context sizes of OpenAI's own models only
        @property
        def metadata(self):
            from llama_index.core.base.llms.types import LLMMetadata
            return LLMMetadata(context_window=4096, num_output=8, is_chat_model=True, model_name=self.model)

    llm = Any(api_base=url + "/v1", api_key="none", model=model, max_tokens=8, max_retries=0)

    def llama_index_complete():
        assert llm.complete("hi").raw

    def llama_index_stream():
        assert list(llm.stream_complete("hi"))

    return [llama_index_complete, llama_index_stream]


def llm_checks(url, model):
    from llm.default_plugins.openai_models import Chat

    chat = Chat(model, model_name=model, api_base=url + "/v1")
    chat.needs_key = None

    def llm_prompt():
        chat.prompt("hi", max_tokens=8, stream=False).text()

    def llm_stream():
        assert list(chat.prompt("hi", max_tokens=8))

    return [llm_prompt, llm_stream]


ALL = (("openai", openai_checks), ("anthropic", anthropic_checks), ("langchain", langchain_checks),
       ("llama-index", llama_index_checks), ("llm", llm_checks))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("url", "model", "results"):
        parser.add_argument("--" + name, required=True)
    args = parser.parse_args()
    with open(args.results, "a") as results:
        for name, make in ALL:
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
