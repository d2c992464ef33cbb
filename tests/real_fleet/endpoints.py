#!/usr/bin/env python3
"""Every endpoint of the installed vLLM with its methods, as JSON: tests/fixtures/vllm/endpoints.json.

Two sources, because routers depend on model and flags: the application's own /openapi.json with every task, development mode and
runtime LoRA on, and the decorators in the sources. A test holds the list against the gateway's paths, so that an endpoint of
a new vLLM fails a test before it could become reachable. Needs no model and starts no engine.
"""
import json
import os
import pathlib
import re
import sys

os.environ.update(VLLM_SERVER_DEV_MODE="1", VLLM_ALLOW_RUNTIME_LORA_UPDATING="1", VLLM_TARGET_DEVICE="cpu",
                  HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")

import vllm  # noqa: E402
from vllm.entrypoints.launchers.app import build_app  # noqa: E402
from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

TASKS = ("generate", "transcription", "realtime", "embed", "classify", "token_embed", "token_classify", "render")
FLAGS = ["--enable-lora", "--enable-scale-out", "--profiler-config", '{"profiler":"torch","torch_profiler_dir":"/tmp"}']
DECORATOR = re.compile(r"@(?:router|app)\.(get|post|put|delete|patch|head|options|websocket)\(\s*\"([^\"]+)\"")


def main():
    found = {}
    app = build_app(make_arg_parser(FlexibleArgumentParser()).parse_args(FLAGS), TASKS)
    for path, methods in app.openapi()["paths"].items():
        found.setdefault(path, set()).update(method.upper() for method in methods)
    for route in app.routes:
        found.setdefault(route.path, set()).update(getattr(route, "methods", None) or ["MOUNT"])
    # Supervisors and preloaders serve ports of their own.
    elsewhere = {"dp_supervisor.py", "preload.py"}
    for source in (pathlib.Path(vllm.__file__).parent / "entrypoints").rglob("*.py"):
        if source.name not in elsewhere:
            for method, path in DECORATOR.findall(source.read_text()):
                found.setdefault(path, set()).add(method.upper())
    listed = {path: sorted(methods) for path, methods in sorted(found.items())}
    json.dump({"vllm": vllm.__version__.split("+")[0], "endpoints": listed}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
