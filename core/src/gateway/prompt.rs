//! From a request to its tokens, produced as they are asked for.

use super::models::Model;
use crate::openai::{Prompt, Request};
use crate::tokenize::{EncodeError, Encoder};

/// Tokens fetched from the encoder at a time: a few blocks.
const CHUNK: usize = 256;

/// Why a request has no tokens. Each is a label for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoTokens {
    NoTokenizer,
    NoTemplate,
    Template,
    Word,
    Memory,
}

impl NoTokens {
    pub(super) fn label(self) -> &'static str {
        match self {
            NoTokens::NoTokenizer => "no_tokenizer",
            NoTokens::NoTemplate => "no_template",
            NoTokens::Template => "template",
            NoTokens::Word => "long_word",
            NoTokens::Memory => "memory",
        }
    }
}

impl From<EncodeError> for NoTokens {
    fn from(error: EncodeError) -> NoTokens {
        match error {
            EncodeError::WordTooLong => NoTokens::Word,
            EncodeError::OutOfMemory => NoTokens::Memory,
        }
    }
}

/// The text to encode, or the tokens that came in its place.
#[derive(Debug)]
pub(super) enum Source {
    Text { text: String, add_special_tokens: bool },
    Tokens(Vec<u32>),
}

/// Renders and prepares what the engine would encode.
pub(super) fn source(request: Request, model: Option<&Model>, now_ms: u64) -> Result<Source, NoTokens> {
    match request.prompt {
        Prompt::Tokens(tokens) => Ok(Source::Tokens(tokens)),
        // vLLM adds special tokens to completions and leaves them to the template in chats.
        Prompt::Text(text) => {
            Ok(Source::Text { text, add_special_tokens: request.add_special_tokens.unwrap_or(true) })
        }
        Prompt::Chat(chat) => {
            let model = model.ok_or(NoTokens::NoTokenizer)?;
            let template = model.template.as_ref().ok_or(NoTokens::NoTemplate)?;
            let text = template.render(&chat, now_ms).map_err(|_| NoTokens::Template)?;
            Ok(Source::Text { text, add_special_tokens: request.add_special_tokens.unwrap_or(false) })
        }
    }
}

/// The tokens of a prompt, as far as they were asked for.
pub(super) struct Tokens<'a> {
    known: Vec<u32>,
    encoder: Option<Encoder<'a>>,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(source: &'a mut Source, model: Option<&'a Model>) -> Result<Tokens<'a>, NoTokens> {
        match source {
            Source::Tokens(tokens) => Ok(Tokens { known: std::mem::take(tokens), encoder: None }),
            Source::Text { text, add_special_tokens } => {
                let model = model.ok_or(NoTokens::NoTokenizer)?;
                let encoder = model.tokenizer.encode(text, *add_special_tokens);
                Ok(Tokens { known: Vec::new(), encoder: Some(encoder) })
            }
        }
    }

    /// The `index`th token; none behind the last.
    #[inline]
    pub(super) fn get(&mut self, index: usize) -> Result<Option<u32>, NoTokens> {
        loop {
            if let Some(&token) = self.known.get(index) {
                return Ok(Some(token));
            }
            let Some(encoder) = &mut self.encoder else { return Ok(None) };
            self.known.try_reserve(CHUNK).map_err(|_| NoTokens::Memory)?;
            if !encoder.fill(&mut self.known, CHUNK)? {
                self.encoder = None;
            }
        }
    }
}
