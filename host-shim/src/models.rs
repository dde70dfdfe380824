//! Model artifacts: compiled at start, or read from an `.icart` file; served by digest.

use crate::config::{EngineSchemeConfig, ModelConfig};
use crate::tokenizer;
use bytes::Bytes;
use inference_cache_core::tokenize::Tokenizer;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

/// A model and its artifact.
#[derive(Clone, Debug)]
pub struct Model {
    /// Name in requests.
    pub name: String,
    /// SHA-256 of the artifact.
    pub digest: [u8; 32],
    /// The artifact.
    pub artifact: Bytes,
    /// Schemes in which its engines' own hashes may be reported.
    pub engine_schemes: Vec<EngineSchemeConfig>,
}

/// Why a model cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The artifact's file cannot be read.
    #[error("model {name}: {path}: {error}")]
    Read {
        /// The model.
        name: String,
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The folder cannot be compiled.
    #[error("model {name}: {error}")]
    Compile {
        /// The model.
        name: String,
        /// Why.
        error: tokenizer::CompileError,
    },
    /// The file is no artifact.
    #[error("model {name}: {path} is not a usable artifact: {problem}")]
    Artifact {
        /// The model.
        name: String,
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
}

/// Loads a model; reads files and computes, so not for an async thread.
pub fn load(config: &ModelConfig) -> Result<Model, ModelError> {
    let name = config.name.clone();
    let artifact = if config.path.is_dir() {
        tokenizer::compile(&config.path).map_err(|error| ModelError::Compile { name: name.clone(), error })?
    } else {
        let path = config.path.clone();
        let bytes =
            std::fs::read(&path).map_err(|error| ModelError::Read { name: name.clone(), path, error })?;
        if let Err(error) = Tokenizer::load(bytes.clone()) {
            let problem = error.to_string();
            return Err(ModelError::Artifact { name, path: config.path.clone(), problem });
        }
        bytes
    };
    let engine_schemes = config.engine_schemes.clone();
    Ok(Model { name, digest: Sha256::digest(&artifact).into(), artifact: artifact.into(), engine_schemes })
}
