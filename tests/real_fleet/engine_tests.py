#!/usr/bin/env python3
"""vLLM's own API tests, straight at an engine and through gateways, and a table of what differs.

    ENGINE_TESTS_MODEL=DIR engine_tests.py --tests SDIST/tests \\
        --target straight=http://127.0.0.1:8001 --target one=http://127.0.0.1:8080 [FILE ...]

`SDIST` is `pip download --no-deps --no-binary :all: vllm==0.32.0`, unpacked; it is not kept here. The interpreter needs vllm,
pytest, pytest-asyncio, pytest-timeout and tblib. The first target is the measure: every test that passes there has to
pass at each other. Start the engines with every model name that the tests use (`--names` prints them).
"""
import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys

from wire import empty_cache

HERE = pathlib.Path(__file__).parent

# The tests of the listed paths that speak to a server.
FILES = """
anthropic/test_messages.py
openai/chat_completion/test_batched_chat_completions.py
openai/chat_completion/test_chat.py
openai/chat_completion/test_chat_completion.py
openai/chat_completion/test_completion_with_function_calling.py
openai/chat_completion/test_non_object_body_validation.py
openai/completion/test_completion.py
openai/completion/test_prompt_validation.py
openai/completion/test_token_in_token_out.py
openai/models/test_models.py
openai/responses/test_basic.py
openai/responses/test_errors.py
openai/responses/test_simple.py
openai/responses/test_stateful.py
openai/responses/test_structured_output.py
openai/test_return_token_ids.py
openai/test_session_id.py
openai/test_stop_token_ids.py
openai/test_tool_choice_content_none.py
serve/middleware/test_cors_middleware.py
serve/tokenize/test_tokenization.py
generate/generative_scoring
""".split()


def names(tests):
    """Every model name that the files use, for --served-model-name."""
    found = {"claude-3-7-sonnet-latest", "zephyr-lora"}
    for file in sources(tests):
        found.update(re.findall(r'^(?:MODEL_NAME|MODEL)\s*=\s*"([^"]+)"', file.read_text(), re.M))
    return sorted(found)


def sources(tests):
    for name in FILES:
        path = tests / "entrypoints" / name
        yield from sorted(path.glob("test_*.py")) if path.is_dir() else ([path] if path.exists() else [])


def run(tests, target, cases, out, limit):
    """Results by test; a run that takes too long is cut, and what it did not reach is absent."""
    name, url = target
    environment = {**os.environ, "ENGINE_TESTS_URL": url,
                   "PYTHONPATH": os.pathsep.join([str(HERE), str(tests.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "pytest", "-p", "engine_tests_plugin", "-v", "--tb=short", "--no-header", "--color=no",
               "-W", "ignore", "--rootdir", str(tests.parent), *cases]
    path = out / f"{name}.log"
    with open(path, "w") as log:
        process = subprocess.Popen(command, cwd=tests.parent, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    return dict(re.findall(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", path.read_text(), re.M))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", required=True, type=pathlib.Path)
    parser.add_argument("--target", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--engine", action="append", default=[], metavar="URL",
                        help="empty its prefix cache before each target (it needs VLLM_SERVER_DEV_MODE=1): some tests count cached tokens")
    parser.add_argument("--limit", type=float, default=900, help="seconds for each target")
    parser.add_argument("--names", action="store_true")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    tests = args.tests.resolve()
    if args.names:
        return print("\n".join(names(tests)))
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    cases = args.files or [str(path) for path in sources(tests)]
    all_results = {}
    for target in (target.split("=", 1) for target in args.target):
        for engine in args.engine:
            empty_cache(engine)
        results = all_results[target[0]] = run(tests, target, cases, out, args.limit)
        failed = [test for test, status in results.items() if status in ("FAILED", "ERROR")]
        if len(all_results) > 1 and failed:
            # A model of random weights does not say the same twice: what fails once is tried once more.
            for engine in args.engine:
                empty_cache(engine)
            results.update(run(tests, (f"{target[0]}-again", target[1]), failed, out, args.limit))
        passed = [test for test, status in results.items() if status == "PASSED"]
        print(f"{target[0]}: {len(passed)} of {len(results)} passed", flush=True)
        if len(all_results) == 1:
            # What fails at the engine itself says nothing of a gateway.
            cases = passed
    measure, *others = all_results
    if "PASSED" not in all_results[measure].values():
        print(f"{measure}: nothing passes, so nothing is compared: see {out / measure}.log")
        return 1
    is_same = True
    for test, status in all_results[measure].items():
        for other in others:
            there = all_results[other].get(test, "not reached")
            if status == "PASSED" and there != "PASSED":
                is_same = False
                print(f"{other}: {test}: {there}")
    print("every test that passes straight passes elsewhere" if is_same else "tests differ")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
