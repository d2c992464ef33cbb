#!/usr/bin/env bash
# Checks the gateway in front of vLLM replicas that you have running, and prints one table.
#
#   tests/real_fleet/run.sh http://127.0.0.1:8001 http://127.0.0.1:8002
#
#   MODEL         model name             (default: the first that the first replica lists)
#   PYTHON        interpreter; the SDK checks need the packages openai and anthropic in it   (default: python3)
#   TOKENWAY_BIN  gateway under test     (default: built here with --release)
#   TOKENIZER     model directory for `vllm bench serve`; without it that step is skipped
#   SDK_DIR       directory with node_modules (openai, ai, @ai-sdk/openai-compatible, @anthropic-ai/sdk)   (default: skipped)
#   ENGINE_TESTS  tests/ of the unpacked sdist of vLLM (pip download --no-deps --no-binary :all: vllm==…)   (default: skipped)
#   OUT           directory for logs and results              (default: a new temporary one)
#
# Start the replicas with --enable-prompt-tokens-details and --enable-request-id-headers, and with
# VLLM_ENABLE_RESPONSES_API_STORE=1 for stored responses. What is not installed
# (openai, anthropic, vllm, promtool, prometheus) is skipped, and the table says so. Ends only what it started.
set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
out=${OUT:-$(mktemp -d -t tokenway-real-fleet.XXXXXX)}
mkdir -p "$out"
results=$out/results.tsv
: >"$results"

upstreams=()
for url in "$@"; do
  upstreams+=(--upstream "$url")
  curl -fsS -m 10 -o /dev/null "$url/v1/models" || { echo "no vLLM answers on $url" >&2; exit 1; }
done
if [ -z "${TOKENWAY_BIN:-}" ]; then
  cargo build --release --locked --manifest-path "$root/Cargo.toml"
  TOKENWAY_BIN=$root/target/release/tokenway
fi
model=${MODEL:-$(curl -fsS "$1/v1/models" | "$python" -c 'import json,sys; print(json.load(sys.stdin)["data"][0]["id"])')}
read -r data_port admin_port otlp_port prometheus_port < <("$python" "$here/checks.py" ports 4)
gateway=http://127.0.0.1:$data_port
admin=http://127.0.0.1:$admin_port

pids=()
stop() {
  for pid in "${pids[@]}"; do
    if kill -TERM "$pid" 2>/dev/null; then wait "$pid" 2>/dev/null || true; fi
  done
  pids=()
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

row() { # check, verdict, detail
  printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$results"
}

start_gateway() { # policy
  "$TOKENWAY_BIN" serve "${upstreams[@]}" --policy "$1" --listen "127.0.0.1:$data_port" \
    --admin-listen "127.0.0.1:$admin_port" --otlp-endpoint "http://127.0.0.1:$otlp_port" \
    >"$out/access-$1.jsonl" 2>"$out/gateway-$1.log" &
  gateway_pid=$!
  pids+=("$gateway_pid")
  for _ in $(seq 1 300); do
    if curl -fsS -m 5 -o /dev/null "$admin/readyz" 2>/dev/null; then return; fi
    kill -0 "$gateway_pid" 2>/dev/null || break
    sleep 0.2
  done
  echo "the gateway is not ready; its log:" >&2
  tail -n 20 "$out/gateway-$1.log" >&2
  exit 1
}

stop_gateway() { # INT drains without the delay of TERM
  local code=0 rest=() pid
  kill -INT "$gateway_pid"
  wait "$gateway_pid" || code=$?
  if [ "$code" = 0 ]; then row "end on SIGINT" ok ""; else row "end on SIGINT" FAIL "exit code $code"; fi
  for pid in "${pids[@]}"; do [ "$pid" = "$gateway_pid" ] || rest+=("$pid"); done
  pids=("${rest[@]}")
}

check() { # arguments of checks.py; it writes its own rows
  "$python" "$here/checks.py" "$@" --model "$model" --results "$results" || row "$1" FAIL "it ended with an error"
}

check_sdks() {
  "$python" "$here/sdks.py" --url "$gateway" --model "$model" --results "$results" || true
  if [ -n "${SDK_DIR:-}" ]; then
    SDK_DIR=$SDK_DIR node "$here/sdks.mjs" "$gateway" "$model" >>"$results" || true
  fi
}

check_wire() { # every call byte for byte against the first replica; a busy engine may cut a stream differently
  "$python" "$here/wire_diff.py" --model "$model" --target "straight=$1" --target "gateway=$gateway" >"$out/wire.log" || true
  row "wire, byte for byte" ok "$(tail -n 1 "$out/wire.log")"
}

check_engine_tests() { # first replica
  if [ -z "${ENGINE_TESTS:-}" ]; then row "vLLM's own API tests" skipped "needs ENGINE_TESTS"; return; fi
  if ENGINE_TESTS_MODEL=${ENGINE_TESTS_MODEL:-${TOKENIZER:-}} "$python" "$here/engine_tests.py" --tests "$ENGINE_TESTS" \
    --out "$out/engine-tests" --target "straight=$1" --target "gateway=$gateway" >"$out/engine-tests.log"; then
    row "vLLM's own API tests" ok "$(grep '^gateway:' "$out/engine-tests.log" | head -n 1)"
  else
    row "vLLM's own API tests" FAIL "$(tail -n 1 "$out/engine-tests.log")"
  fi
}

check_promtool() {
  if ! command -v promtool >/dev/null; then row "promtool check metrics" skipped "not installed"; return; fi
  if curl -fsS "$admin/metrics" | promtool check metrics >"$out/promtool.log" 2>&1; then
    row "promtool check metrics" ok ""
  else
    row "promtool check metrics" FAIL "$(head -n 1 "$out/promtool.log")"
  fi
}

check_prometheus() {
  if ! command -v prometheus >/dev/null; then row "Prometheus scrape" skipped "not installed"; return; fi
  printf 'global: { scrape_interval: 1s }\nrule_files: ["%s"]\nscrape_configs:\n  - { job_name: tokenway, static_configs: [{ targets: ["127.0.0.1:%s"] }] }\n' \
    "$root/config/prometheus/rules.yml" "$admin_port" >"$out/prometheus.yml"
  prometheus --config.file "$out/prometheus.yml" --storage.tsdb.path "$out/tsdb" \
    --web.listen-address "127.0.0.1:$prometheus_port" >"$out/prometheus.log" 2>&1 &
  pids+=("$!")
  check prometheus --url "http://127.0.0.1:$prometheus_port"
}

check_alerting() { # after some traffic, so that there is something to evaluate
  if ! command -v prometheus >/dev/null; then row "Prometheus rules" skipped "not installed"; return; fi
  check alerting --url "http://127.0.0.1:$prometheus_port" --dashboards "$root/config/grafana"
}

check_vllm_bench() {
  local vllm
  vllm=$(command -v vllm || true)
  [ -n "$vllm" ] || vllm=$(dirname "$(command -v "$python")")/vllm
  if [ ! -x "$vllm" ] || [ -z "${TOKENIZER:-}" ]; then
    row "vllm bench serve" skipped "needs vllm and TOKENIZER"
    return
  fi
  if "$vllm" bench serve --backend openai-chat --endpoint /v1/chat/completions --base-url "$gateway" \
    --model "$model" --tokenizer "$TOKENIZER" --dataset-name random --random-input-len 200 --random-output-len 32 \
    --num-prompts 40 --max-concurrency 8 --ignore-eos >"$out/vllm-bench.log" 2>&1; then
    row "vllm bench serve" ok "$(grep -E 'Successful requests|Mean TTFT|Mean ITL' "$out/vllm-bench.log" | tr -s ' ' | paste -sd ';')"
  else
    row "vllm bench serve" FAIL "$(tail -n 1 "$out/vllm-bench.log")"
  fi
}

"$python" "$here/otlp_sink.py" --port "$otlp_port" --out "$out/otlp.jsonl" 2>"$out/otlp.log" &
pids+=("$!")

start_gateway latency
check identity --url "$gateway" --direct "$@"
check ttft --url "$gateway" --admin "$admin"
check_sdks
check_wire "$1"
check_engine_tests "$1"
check trace --url "$gateway" --spans "$out/otlp.jsonl"
check_promtool
check_prometheus
check_vllm_bench
check affinity --label latency --url "$gateway" --direct "$@"
check_alerting
stop_gateway
start_gateway round_robin
check affinity --label round_robin --url "$gateway" --direct "$@"
stop_gateway

printf '\n'
awk -F '\t' '{ printf "%-38s %-8s %s\n", $1, $2, $3 }' "$results"
printf '\nlogs: %s\n' "$out"
! grep -q "$(printf '\tFAIL\t')" "$results"
