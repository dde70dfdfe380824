"""Reduces recorded sessions of a real vLLM engine to what engine-sim's tests replay.

    python3 extract.py RECORDINGS

RECORDINGS holds <engine>/<scenario>/{frames.jsonl,session.json}. Writes one <engine>_<scenario>.json beside this file:
the engine's settings, the requests (prompt and generated token ids, as the engine saw them) and every published batch
(sequence number, payload in base64), gaps filled from the recorded replay.
"""

import base64
import json
import pathlib
import sys

SCENARIOS = [
    "vllm-0.32.0/cbor-bs32-seed0-int",
    "vllm-0.32.0/cbor-bs32-seed0-bytes",
    "vllm-0.32.0/cbor-bs64-seedunset-default",
    "vllm-0.32.0/gap-chunked-cbor-bs32",
    "vllm-0.32.0/restart-cbor-bs32",
    "vllm-0.32.0/lora-cbor-bs32",
    "vllm-0.32.0/report-full-cbor-bs32",
    "vllm-0.22.1/v022-cbor-bs16-seed0-int",
    "vllm-0.22.1/v022-cbor-bs16-seed0-bytes",
]


def request(step):
    body = step["body"]
    details = step["usage"].get("prompt_tokens_details")
    out = {
        "label": step["label"],
        "prompt": step.get("engine_prompt_token_ids") or step["prompt_token_ids"],
        "generated": step["generated_token_ids"],
        "max_tokens": body["max_tokens"],
        "cached_tokens": details["cached_tokens"] if details else 0,
    }
    if body["model"] != "tiny":
        out["lora"] = body["model"]
    if "cache_salt" in body:
        out["cache_salt"] = body["cache_salt"]
    if body.get("vllm_xargs", {}).get("kv_cache_report_mode") == "full":
        out["report_full"] = True
    return out


def steps(session):
    for step in session["steps"]:
        kind = step["kind"]
        if kind in ("completion", "chat"):
            yield {"request": request(step)}
        elif kind == "concurrent":
            yield {"concurrent": [request(inner) for inner in step["steps"]]}
        elif kind == "restart":
            yield {"restart": True}
        elif step.get("path") == "/reset_prefix_cache":
            yield {"reset": True}


def batches(lines):
    """Live batches in arrival order; a gap is filled from the replay that follows."""
    live, replayed = [], {}
    for line in lines:
        record = json.loads(line)
        frames = record["frames"]
        if record["src"] == "sub":
            seq = int.from_bytes(base64.b64decode(frames[1]), "big")
            if live and seq > live[-1][0]:
                live += [(missing, None) for missing in range(live[-1][0] + 1, seq)]
            live.append((seq, frames[2]))
        elif record["src"] == "replay_reply" and frames[-1]:
            replayed[int.from_bytes(base64.b64decode(frames[-2]), "big")] = frames[-1]
    return [{"seq": seq, "payload": payload or replayed[seq]} for seq, payload in live]


def extract(root, scenario):
    folder = root / scenario
    session = json.loads((folder / "session.json").read_text())
    argv = session["argv"]
    option = lambda name, default=None: argv[argv.index(name) + 1] if name in argv else default
    out = {
        "scenario": scenario,
        "about": session["about"],
        "packages": session["packages"],
        "block_size": session["block_size"],
        "num_blocks": int(option("--num-gpu-blocks-override")),
        "max_num_seqs": int(option("--max-num-seqs")),
        "max_num_batched_tokens": int(option("--max-num-batched-tokens", 2048)),
        "hash_seed": session["env"].get("PYTHONHASHSEED"),
        "block_hashes": "bytes" if session["env"].get("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES") == "0" else "int",
        "lora_modules": (option("--lora-modules") or "").replace("$ROOT", "/models"),
        "steps": list(steps(session)),
        "batches": batches((folder / "frames.jsonl").read_text().splitlines()),
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in out.items() if not isinstance(value, list)]
    for key in ("steps", "batches"):
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in out[key])
        lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
    name = scenario.replace("/", "_") + ".json"
    (pathlib.Path(__file__).parent / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    for scenario in SCENARIOS:
        extract(pathlib.Path(sys.argv[1]), scenario)
