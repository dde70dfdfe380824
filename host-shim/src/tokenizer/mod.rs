//! The tokenizer compiler: tokenizer.json and tokenizer_config.json to the artifact that gateways read in place.
//!
//! Contract: an artifact that comes out encodes every text as Hugging Face `tokenizers` 0.23 does, or the folder is
//! refused with the field named. Whatever in the files is not known exactly is refused: there is no best effort. Before
//! it returns, the compiler encodes a built-in corpus with the artifact and with the reference, and compares.
//!
//! Steps: [`source`] reads the files, `bpe` prunes the merges and finds whole words, `unicode` copies the tables of the
//! reference's regex engine and normalizer, `check` compares. The layout is `inference_cache_core::tokenize`'s own.
//!
//! Cost: a few seconds for a vocabulary of 150,000 tokens, most of it the reference loading the file; 0.5 GB.
//! What it is not: a downloader. The format of the artifact is described in `inference_cache_core::tokenize::artifact`.

mod bpe;
mod check;
mod source;
mod unicode;

use inference_cache_core::tokenize::artifact::{self, Section};
use inference_cache_core::tokenize::{ArtifactError, Settings, added, pairs, special, words};
use sha2::{Digest, Sha256};
use source::Source;
use std::path::{Path, PathBuf};

/// Why a folder cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// A file cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        error: std::io::Error,
    },
    /// A file is not JSON of the known shape; `error` names the field.
    #[error("{file}: {error}")]
    Json {
        /// Name of the file.
        file: &'static str,
        /// What and where.
        error: serde_json::Error,
    },
    /// A field has a value whose effect on tokens is not implemented.
    #[error("{file}: {field}: not supported: {value}")]
    Unsupported {
        /// Name of the file.
        file: &'static str,
        /// Path of the field.
        field: String,
        /// Its value, shortened.
        value: String,
    },
    /// The reference itself does not load the file.
    #[error("tokenizer.json: refused by the reference tokenizer: {0}")]
    Reference(String),
    /// The artifact does not load: a defect of the compiler.
    #[error("the compiled artifact does not load: {0}")]
    Artifact(#[from] ArtifactError),
    /// The artifact gives other tokens than the reference: a defect of the compiler.
    #[error("self-check: tokens differ from the reference for {text:?}")]
    Differs {
        /// The text of the built-in corpus.
        text: String,
    },
}

/// Compiles the tokenizer.json, tokenizer_config.json and (if there) chat_template.jinja of a folder.
///
/// # Errors
/// See [`CompileError`].
pub fn compile(dir: &Path) -> Result<Vec<u8>, CompileError> {
    let source = Source::read(dir)?;
    let artifact = assemble(&source)?;
    check::check(&source, artifact.clone())?;
    Ok(artifact)
}

fn assemble(source: &Source) -> Result<Vec<u8>, CompileError> {
    let bpe = bpe::Bpe::new(source)?;
    let classes = unicode::classes(source.nfc);
    let nfc = if source.nfc { unicode::nfc_tables() } else { unicode::NfcTables::default() };
    let (offsets, bytes) = bpe.token_bytes();
    let too_many = || source::unsupported("model.vocab", "more than 2^20 - 1 tokens");
    let mut sections = vec![
        (Section::Source, source.digests.iter().flatten().copied().collect()),
        (Section::Settings, Settings { nfc: source.nfc }.to_section()),
        (Section::ByteSymbols, bpe.bytes.iter().flat_map(|id| id.to_le_bytes()).collect()),
        (Section::TokenOffsets, offsets),
        (Section::TokenBytes, bytes),
        (Section::Pairs, pairs::build(&bpe.merges).ok_or_else(too_many)?),
        (Section::Words, words::build(&bpe.words()).ok_or_else(too_many)?),
        (Section::ClassIndex, classes.0),
        (Section::ClassBlocks, classes.1),
        (Section::Decompositions, nfc.decompositions),
        (Section::Compositions, nfc.compositions),
        (Section::CombiningClasses, nfc.combining_classes),
    ];
    let added_tokens = source.added.iter().map(|token| (token.content.as_bytes(), token.id)).collect();
    sections.push((Section::AddedTokens, added::build(added_tokens)));
    if let Some(template) = &source.chat_template {
        sections.push((Section::ChatTemplate, template.clone().into_bytes()));
    }
    let special_tokens = source.special.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    sections.push((Section::SpecialTokens, special::build(special_tokens)));
    Ok(artifact::seal(&sections))
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
