#!/usr/bin/env bash
# The served OpenAPI document against a validator: `pip install openapi-spec-validator`, then `tests/page/openapi.sh ADMIN_URL`.
set -euo pipefail
file=$(mktemp --suffix .json)
trap 'rm -f "$file"' EXIT
curl -fsS "${1:?URL of an admin port}/api/v1/openapi.json" >"$file"
python3 -m openapi_spec_validator "$file"
