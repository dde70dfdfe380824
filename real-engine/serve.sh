#!/bin/bash
# serve.sh HTTP_PORT EVENTS_PORT REPLAY_PORT [more vLLM arguments]: one engine on loopback (25-75 s until ready, 2.3 GiB).
#
# The engine's PUB socket *connects* to EVENTS_PORT (vLLM binds only for a wildcard address, which would be open to the
# network): the subscriber binds it, `events.mode: bind` in host-shim. This build wants block sizes in multiples of 32.
set -euo pipefail
cd "$(dirname "$0")"
HTTP=$1 EVENTS=$2 REPLAY=$3
shift 3
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1
export VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo VLLM_SERVER_DEV_MODE=1
exec venv/bin/python -m vllm.entrypoints.openai.api_server \
  --model model --served-model-name qwen3 --host 127.0.0.1 --port "$HTTP" \
  --load-format dummy --dtype bfloat16 --max-model-len 2048 --enforce-eager \
  --enable-prefix-caching --prefix-caching-hash-algo sha256_cbor --block-size 32 --num-gpu-blocks-override 512 \
  --max-num-seqs 4 --enable-prompt-tokens-details --distributed-executor-backend uni \
  --kv-events-config "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \"tcp://127.0.0.1:$EVENTS\", \"replay_endpoint\": \"tcp://127.0.0.1:$REPLAY\", \"topic\": \"kv@127.0.0.1:$HTTP@qwen3\"}" \
  "$@"
