//! Exact tokenization over a compiled artifact: the token ids that the engine will compute, before it does.
//!
//! Contract: for every text, [`Encoder`] gives the ids that Hugging Face `tokenizers` 0.23 gives for the tokenizer.json
//! the artifact was compiled from, or an error; never other ids. What the compiler does not know exactly it refuses, so
//! an artifact that loads is one of: byte-level BPE, the Qwen2 pre-tokenizer, NFC or no normalizer, plain added tokens,
//! no post-processing (`add_special_tokens` changes nothing for these models).
//!
//! The artifact is kept as it came and read in place; [`artifact`] describes it. The types that read a section also
//! build it, so the native compiler and this reader cannot drift apart.
//!
//! Cost: loading is a checksum pass; encoding reads the text once, about one hash table look-up per word. A tokenizer
//! holds the artifact (5 MiB for 150,000 tokens) and 512 KiB of cache. Limits: a word of more than [`MAX_WORD`] bytes
//! and a run of more than [`nfc::MAX_STRETCH`] marks are refused, because real text has neither and the memory of a VM
//! never shrinks.
//!
//! What it is not: a decoder, or a parser of tokenizer.json.

pub mod added;
pub mod artifact;
mod cache;
pub mod classes;
mod encoder;
mod merge;
pub mod nfc;
pub mod pairs;
pub mod qwen2;
mod source;
pub mod special;
pub mod words;

pub use artifact::ArtifactError;
pub use encoder::Encoder;
pub use merge::MAX_WORD;

use crate::template::TemplateSettings;
use added::{AddedTokens, AddedView};
use artifact::{Directory, Section, read_u32};
use cache::CacheSlot;
use classes::Classes;
use nfc::Nfc;
use pairs::PairTable;
use words::WordTable;

/// A model's tokenizer and chat template.
#[derive(Debug)]
pub struct Tokenizer {
    file: Vec<u8>,
    directory: Directory,
    added: AddedTokens,
    cache: CacheSlot,
}

/// Why a text, or the rest of it, has no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Longer than [`MAX_WORD`] bytes without a word boundary, or [`nfc::MAX_STRETCH`] marks on one character.
    #[error("a word is too long to encode")]
    WordTooLong,
    /// The tokens or a long word did not fit.
    #[error("out of memory")]
    OutOfMemory,
}

/// The fixed choices of a model, in section `Settings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether text is normalized to NFC first; otherwise not at all.
    pub nfc: bool,
}

impl Settings {
    /// The section: the pattern ([`qwen2::ID`], the only one of this version) and the normalizer (0 none, 1 NFC).
    pub fn to_section(self) -> Vec<u8> {
        [qwen2::ID.to_le_bytes(), u32::from(self.nfc).to_le_bytes()].concat()
    }

    fn read(section: &[u8]) -> Result<Settings, ArtifactError> {
        let bad = |problem| ArtifactError::Section { section: Section::Settings, problem };
        if section.len() != 8 {
            return Err(bad("length is not 8"));
        }
        if read_u32(section, 0) != qwen2::ID {
            return Err(bad("unknown pre-tokenizer"));
        }
        match read_u32(section, 4) {
            normalizer @ (0 | 1) => Ok(Settings { nfc: normalizer == 1 }),
            _ => Err(bad("unknown normalizer")),
        }
    }
}

impl Tokenizer {
    /// Takes an artifact over.
    ///
    /// # Errors
    /// See [`ArtifactError`]. Bytes from anywhere may be passed.
    pub fn load(artifact: Vec<u8>) -> Result<Tokenizer, ArtifactError> {
        let directory = artifact::open(&artifact)?;
        let added = AddedTokens::read(directory.section(&artifact, Section::AddedTokens))?;
        let tokenizer = Tokenizer { file: artifact, directory, added, cache: CacheSlot::new() };
        Parts::read(&tokenizer)?;
        tokenizer.read_strings()?;
        Ok(tokenizer)
    }

    /// Starts to encode `text`. Added tokens in it are recognized, as engines do.
    ///
    /// `add_special_tokens` is what the endpoint asks for; the models of this format version add none.
    pub fn encode<'t>(&'t self, text: &'t str, add_special_tokens: bool) -> Encoder<'t> {
        let _ = add_special_tokens;
        // Reading cannot fail: `load` has read the same bytes.
        Encoder::new(self, Parts::read(self).unwrap_or_default(), text)
    }

    /// Source of the model's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        let template = self.directory.section(&self.file, Section::ChatTemplate);
        std::str::from_utf8(template).ok().filter(|template| !template.is_empty())
    }

    /// What the chat template takes from the model: the special tokens by name; the rest as engines have it by default.
    pub fn template_settings(&self) -> TemplateSettings {
        let owned = |(name, text): (&str, &str)| (name.to_owned(), text.to_owned());
        let named = special::read(self.directory.section(&self.file, Section::SpecialTokens));
        let special_tokens = named.filter_map(Result::ok).map(owned).collect();
        TemplateSettings { special_tokens, ..TemplateSettings::default() }
    }

    fn read_strings(&self) -> Result<(), ArtifactError> {
        let template = self.directory.section(&self.file, Section::ChatTemplate);
        let problem = "not UTF-8";
        std::str::from_utf8(template)
            .map_err(|_| ArtifactError::Section { section: Section::ChatTemplate, problem })?;
        special::read(self.directory.section(&self.file, Section::SpecialTokens))
            .try_for_each(|pair| pair.map(|_| ()))
    }
}

/// The sections of an artifact, ready for look-ups: slices, made anew for each encoder.
#[derive(Debug, Default)]
struct Parts<'t> {
    bytes: merge::ByteSymbols<'t>,
    pairs: PairTable<'t>,
    words: WordTable<'t>,
    classes: Classes<'t>,
    nfc: Option<Nfc<'t>>,
    added: AddedView<'t>,
}

impl<'t> Parts<'t> {
    fn read(tokenizer: &'t Tokenizer) -> Result<Parts<'t>, ArtifactError> {
        let (file, directory) = (&tokenizer.file[..], &tokenizer.directory);
        let settings = Settings::read(directory.section(file, Section::Settings))?;
        let bytes = directory.records(file, Section::ByteSymbols)?;
        if bytes.len() != 256 {
            let problem = "not 256 tokens";
            return Err(ArtifactError::Section { section: Section::ByteSymbols, problem });
        }
        Ok(Parts {
            bytes,
            pairs: PairTable::new(directory.records(file, Section::Pairs)?)?,
            words: WordTable::new(
                directory.records(file, Section::Words)?,
                directory.records(file, Section::TokenOffsets)?,
                directory.section(file, Section::TokenBytes),
            )?,
            classes: Classes::new(
                directory.records(file, Section::ClassIndex)?,
                directory.records(file, Section::ClassBlocks)?,
            )?,
            nfc: if settings.nfc { Some(Nfc::new(directory, file)?) } else { None },
            added: tokenizer.added.view(directory.section(file, Section::AddedTokens)),
        })
    }
}
