#!/usr/bin/env bash
# Installs the tested combination into the active Python environment: torch first, CPU build where one is at hand.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=".[train,data,store,publish,quantize,plot,rewards,mcp,deepspeed,docs,contract,dev]"
export DS_BUILD_OPS=0  # DeepSpeed builds its kernels when they are first used, not now
if python -m uv --version >/dev/null 2>&1 || pip install -q uv; then
  if [ -n "${PIP_FIND_LINKS:-}" ]; then
    python -m uv pip install -q --python "$(command -v python)" --find-links "$PIP_FIND_LINKS" \
      --constraint constraints.txt "torch==2.13.0+cpu" -e "$extras"
  else
    python -m uv pip install -q --python "$(command -v python)" --constraint constraints.txt torch==2.13.0 -e "$extras"
  fi
else
  pip install -q torch==2.13.0
  pip install -q --constraint constraints.txt -e "$extras"
fi
