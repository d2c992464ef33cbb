"""A pytest plugin for vLLM's own API tests: their server is one that runs already, at ENGINE_TESTS_URL.

The tests start `vllm serve` through `tests.utils.RemoteOpenAIServer`; here that class stands for the running server, whatever
arguments it is given. A test that needs another server than the one that runs fails straight at the engine as well, and
says nothing of a gateway.
"""
import os
from urllib.parse import urlsplit

import pytest
import tests.utils as utils


class Running(utils.RemoteOpenAIServer):
    def __init__(self, model, vllm_serve_args=(), *_, **__):
        target = urlsplit(os.environ["ENGINE_TESTS_URL"])
        self.uds, self.host, self.port, self.proc = None, target.hostname, target.port, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


utils.RemoteOpenAIServer = Running
utils.RemoteOpenAIServerCustom = Running


def pytest_configure(config):
    config.option.asyncio_mode = "auto"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.timeout(60))
