"""A pytest plugin for vLLM's own API tests: their server is one that runs already, at ENGINE_TESTS_URL.

The tests start `vllm serve` through `tests.utils.RemoteOpenAIServer`; here that class stands for the running server, whatever
arguments it is given, and every model, adapter and tokenizer of the hub is the directory ENGINE_TESTS_MODEL. A test
that needs another server or model than the one that runs fails straight at the engine as well, and says nothing of a gateway.
"""
import os
from urllib.parse import urlsplit

import huggingface_hub
import pytest
import transformers

MODEL = os.environ["ENGINE_TESTS_MODEL"]


def of_directory(load):
    def loaded(_name, *_, **__):
        return load(MODEL)

    return loaded


huggingface_hub.snapshot_download = lambda *_, **__: MODEL
transformers.AutoTokenizer.from_pretrained = of_directory(transformers.AutoTokenizer.from_pretrained)

import vllm.tokenizers  # noqa: E402

vllm.tokenizers.get_tokenizer = of_directory(vllm.tokenizers.get_tokenizer)

import tests.utils as utils  # noqa: E402


class Running(utils.RemoteOpenAIServer):
    def __init__(self, *_, **__):
        target = urlsplit(os.environ["ENGINE_TESTS_URL"])
        self.uds, self.host, self.port, self.proc = None, target.hostname, target.port, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


utils.RemoteOpenAIServer = Running
utils.RemoteOpenAIServerCustom = Running


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.timeout(60))
