//! A LoRA adapter for the tiny Qwen3 of `real-engine/`: weights that change what it says, and nothing about how it caches.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, json};

/// The rank of the adapter's matrices.
pub const RANK: usize = 8;

/// `real-engine/config.json`.
const LAYERS: usize = 2;
const HIDDEN: usize = 64;
/// Projections with their output sizes.
const PROJECTIONS: [(&str, usize); 2] = [("q_proj", 128), ("v_proj", 64)];

/// Writes the adapter's two files to `dir/name`; the folder.
pub fn write(dir: &Path, name: &str) -> Result<PathBuf> {
    let folder = dir.join(name);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": PROJECTIONS.map(|(name, _)| name),
        "base_model_name_or_path": "model",
    });
    std::fs::write(folder.join("adapter_config.json"), config.to_string())?;
    std::fs::write(folder.join("adapter_model.safetensors"), weights())?;
    Ok(folder)
}

/// The safetensors format: length of a JSON header, the header, the tensors.
fn weights() -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for layer in 0..LAYERS {
        for (projection, out) in PROJECTIONS {
            for (matrix, shape) in [("lora_A", [RANK, HIDDEN]), ("lora_B", [out, RANK])] {
                let begin = data.len();
                for at in 0..shape[0] * shape[1] {
                    let value = ((at * 7919 + layer * 31) % 97) as f32 / 970.0 - 0.05;
                    data.extend_from_slice(&value.to_le_bytes());
                }
                let name =
                    format!("base_model.model.model.layers.{layer}.self_attn.{projection}.{matrix}.weight");
                header.insert(
                    name,
                    json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]}),
                );
            }
        }
    }
    let header = serde_json::Value::Object(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
