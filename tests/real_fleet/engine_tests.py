#!/usr/bin/env python3
"""vLLM's own API tests, straight at an engine and through gateways, and a table of what differs.

    engine_tests.py --tests SDIST/tests --target straight=http://127.0.0.1:8001 --target one=http://127.0.0.1:8080 [FILE ...]

`SDIST` is `pip download --no-deps --no-binary :all: vllm==0.32.0`, unpacked; it is not kept here. The interpreter needs vllm,
pytest, pytest-asyncio and pytest-timeout. The first target is the measure: every test that passes there has to
pass at each other. Start the engines with every model name that the tests use (`--names` prints them).
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).parent

# The tests of the listed paths that speak to a server.
FILES = """
anthropic/test_messages.py
openai/chat_completion/test_batched_chat_completions.py
openai/chat_completion/test_chat.py
openai/chat_completion/test_chat_completion.py
openai/chat_completion/test_chat_echo.py
openai/chat_completion/test_chat_logit_bias_validation.py
openai/chat_completion/test_completion_with_function_calling.py
openai/chat_completion/test_enable_force_include_usage.py
openai/chat_completion/test_include_reasoning.py
openai/chat_completion/test_logprob_token_ids.py
openai/chat_completion/test_non_object_body_validation.py
openai/chat_completion/test_root_path.py
openai/completion/test_completion.py
openai/completion/test_completion_text_offset.py
openai/completion/test_prompt_validation.py
openai/completion/test_token_in_token_out.py
openai/models/test_models.py
openai/responses/test_basic.py
openai/responses/test_errors.py
openai/responses/test_simple.py
openai/responses/test_stateful.py
openai/responses/test_structured_output.py
openai/test_chunked_prompt.py
openai/test_return_token_ids.py
openai/test_return_tokens_as_ids.py
openai/test_session_id.py
openai/test_stop_token_ids.py
openai/test_tool_calls_serialization.py
openai/test_tool_choice_content_none.py
serve/instrumentator/test_orca_metrics.py
serve/middleware/test_cors_middleware.py
serve/tokenize/test_tokenization.py
generate/generative_scoring
""".split()


def names(tests):
    """Every model name that the files use, for --served-model-name."""
    found = set()
    for file in sources(tests):
        found.update(re.findall(r'^(?:MODEL_NAME|MODEL)\s*=\s*"([^"]+)"', file.read_text(), re.M))
    return sorted(found)


def sources(tests):
    for name in FILES:
        path = tests / "entrypoints" / name
        yield from sorted(path.glob("test_*.py")) if path.is_dir() else ([path] if path.exists() else [])


def run(tests, url, files, report):
    environment = {**os.environ, "ENGINE_TESTS_URL": url,
                   "PYTHONPATH": os.pathsep.join([str(HERE), str(tests.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "pytest", "-p", "engine_tests_plugin", "-q",
               "--no-header", "-W", "ignore", "--rootdir", str(tests.parent), f"--junit-xml={report}", *files]
    with open(report.with_suffix(".log"), "w") as log:
        subprocess.run(command, cwd=tests.parent, env=environment, stdout=log, stderr=log, timeout=900)
    results = {}
    for case in xml.parse(report).iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        message = " ".join((bad[0].get("message") or "").split())[:160] if bad else ""
        name = f"{case.get('classname', '').removeprefix('tests.entrypoints.')}::{case.get('name')}"
        results[name] = (bad[0].tag if bad else "passed", message)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", required=True, type=pathlib.Path)
    parser.add_argument("--target", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--names", action="store_true")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    tests = args.tests.resolve()
    if args.names:
        return print("\n".join(names(tests)))
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    files = args.files or [str(path) for path in sources(tests)]
    all_results = {}
    for target in args.target:
        name, url = target.split("=", 1)
        all_results[name] = run(tests, url, files, out / f"{name}.xml")
        passed = sum(status == "passed" for status, _ in all_results[name].values())
        print(f"{name}: {passed} of {len(all_results[name])} passed", flush=True)
    measure, *others = all_results
    is_same = True
    for test, (status, _) in all_results[measure].items():
        for other in others:
            there, message = all_results[other].get(test, ("missing", ""))
            if status == "passed" and there != "passed":
                is_same = False
                print(f"{other}: {test}: {there}: {message}")
    print("every test that passes straight passes elsewhere" if is_same else "tests differ")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
