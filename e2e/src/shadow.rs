//! The gateway's own text-to-token path, run natively beside it: what the plugin hashed, to compare with what the
//! engine says it computed (`return_token_ids`).

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use inference_cache_core::gateway::Model;
use inference_cache_core::openai::{self, Endpoint, Prompt};
use serde_json::Value;

/// A model's tokenizer and chat template, compiled as host-shim compiles them for the plugin.
#[derive(Debug)]
pub struct Shadow(Model);

impl Shadow {
    /// Compiles the folder's `tokenizer.json` and `tokenizer_config.json`.
    pub fn load(dir: &Path) -> Result<Shadow> {
        let artifact = host_shim::tokenizer::compile(dir)?;
        Ok(Shadow(Model::load(artifact)?))
    }

    /// All tokens of a request's prompt.
    pub fn tokens(&self, endpoint: Endpoint, body: &Value) -> Result<Vec<u32>> {
        let request = openai::parse(endpoint, body.to_string().as_bytes(), true)?;
        let text = match request.prompt {
            Prompt::Tokens(tokens) => return Ok(tokens),
            Prompt::Text(text) => text,
            Prompt::Chat(chat) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
                self.0.template.as_ref().context("the model has no chat template")?.render(&chat, now)?
            }
        };
        let special = request.add_special_tokens.unwrap_or(endpoint == Endpoint::Completions);
        let mut tokens = Vec::new();
        if self.0.tokenizer.encode(&text, special).fill(&mut tokens, usize::MAX)? {
            bail!("the encoder stopped early");
        }
        Ok(tokens)
    }
}
