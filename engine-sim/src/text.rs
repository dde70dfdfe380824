//! Text to tokens and back, with Hugging Face's own encoder: independent of the one in `core` on purpose, so that equal
//! tokens on both sides prove something. The chat template is rendered by `core`.
//!
//! Answers are pseudo words of the vocabulary. Each is a token of its own also when the answer comes back in the next
//! turn of a chat, so generated blocks are found again. The same prompt has the same answer.

use inference_cache_core::openai::{self, Endpoint, Prompt};
use inference_cache_core::template::{ChatTemplate, TemplateError, TemplateSettings};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// Words that are enough for answers that look different.
const MAX_WORDS: usize = 2000;
const MIN_WORDS: usize = 16;
/// Length of an answer that ends by itself, in tokens without the end token.
const ANSWER_TOKENS: std::ops::Range<u64> = 16..64;

/// Why the model's folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file is missing or not what it should be.
    #[error("--model: {path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// No answers can be made.
    #[error("--model: {path}: only {found} plain words in the vocabulary, {MIN_WORDS} are needed")]
    TooFewWords {
        /// The file.
        path: PathBuf,
        /// How many there are.
        found: usize,
    },
}

/// Why a prompt has no tokens.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PromptError {
    #[error("the model has no chat template")]
    NoTemplate,
    #[error(transparent)]
    Body(#[from] openai::BodyError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error("the tokenizer failed on the text")]
    Encode,
    /// Too long whatever its tokens are.
    #[error("the text has {bytes} bytes")]
    TooLong { bytes: usize },
}

/// Tokenizer, chat template and vocabulary of answers.
pub(crate) struct Text {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    end: u32,
    /// First words of answers, and words with a space in front.
    openers: Vec<u32>,
    words: Vec<u32>,
    texts: HashMap<u32, String>,
    longest_token: usize,
}

impl Text {
    /// Reads `tokenizer.json`, `tokenizer_config.json` and, if it is there, `chat_template.jinja` in `folder`.
    pub(crate) fn load(folder: &Path) -> Result<Text, TextError> {
        let path = folder.join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&path).map_err(|error| file_error(&path, error))?;
        let config_path = folder.join("tokenizer_config.json");
        let config = std::fs::read(&config_path).map_err(|error| file_error(&config_path, error))?;
        let config: Value =
            serde_json::from_slice(&config).map_err(|error| file_error(&config_path, error))?;
        let special_tokens = special_tokens(&config);
        let end = special_tokens.iter().find(|(name, _)| name == "eos_token");
        let end = end.and_then(|(_, text)| tokenizer.token_to_id(text));
        let end =
            end.ok_or_else(|| file_error(&config_path, "eos_token is missing or not in the vocabulary"))?;
        let template = chat_template(folder, &config)
            .map(|source| {
                ChatTemplate::compile(&source, TemplateSettings { special_tokens, ..Default::default() })
            })
            .transpose()
            .map_err(|error| file_error(&config_path, error))?;
        let mut text = Text {
            tokenizer,
            template,
            end,
            openers: Vec::new(),
            words: Vec::new(),
            texts: HashMap::new(),
            longest_token: 1,
        };
        text.choose_words();
        match text.words.len().min(text.openers.len()) {
            found if found < MIN_WORDS => Err(TextError::TooFewWords { path, found }),
            _ => Ok(text),
        }
    }

    /// Tokens of `text`; at most `limit` tokens are of use.
    pub(crate) fn encode(&self, text: &str, special: bool, limit: u32) -> Result<Vec<u32>, PromptError> {
        if text.len() > self.longest_token.saturating_mul(limit as usize) {
            return Err(PromptError::TooLong { bytes: text.len() });
        }
        let encoding = self.tokenizer.encode_fast(text, special).map_err(|_| PromptError::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Tokens of the chat in `body`, as the template renders it.
    pub(crate) fn encode_chat(
        &self,
        body: &[u8],
        now_unix_ms: u64,
        limit: u32,
    ) -> Result<Vec<u32>, PromptError> {
        let template = self.template.as_ref().ok_or(PromptError::NoTemplate)?;
        let request = openai::parse(Endpoint::ChatCompletions, body, true)?;
        let Prompt::Chat(chat) = &request.prompt else { return Err(openai::BodyError::NoMessages.into()) };
        let text = template.render(chat, now_unix_ms)?;
        self.encode(&text, request.add_special_tokens.unwrap_or(false), limit)
    }

    /// The answer to `prompt`: `max_tokens` at most, with the end token if it ends before. `endless` never ends.
    pub(crate) fn answer(&self, prompt: &[u32], max_tokens: usize, endless: bool) -> Vec<u32> {
        let mut random = Random::seeded(prompt);
        let length = ANSWER_TOKENS.start + random.below(ANSWER_TOKENS.end - ANSWER_TOKENS.start);
        let length = if endless { max_tokens } else { length as usize };
        let mut answer: Vec<u32> = (0..length.min(max_tokens))
            .map(|position| {
                let words = if position == 0 { &self.openers } else { &self.words };
                words[random.below(words.len() as u64) as usize]
            })
            .collect();
        if answer.len() < max_tokens {
            answer.push(self.end);
        }
        answer
    }

    /// Text of one token of an answer; the end token has none.
    pub(crate) fn text_of(&self, token: u32) -> &str {
        self.texts.get(&token).map_or("", String::as_str)
    }

    /// Whether `token` ends an answer.
    pub(crate) fn is_end(&self, token: u32) -> bool {
        token == self.end
    }

    /// The lowest ids whose text is a plain word and that the encoder gives back for that text.
    fn choose_words(&mut self) {
        let mut vocabulary: Vec<(u32, String)> =
            self.tokenizer.get_vocab(true).into_iter().map(|(piece, id)| (id, piece)).collect();
        vocabulary.sort_unstable();
        self.longest_token = vocabulary.iter().map(|(_, piece)| piece.len()).max().unwrap_or(1);
        for (id, piece) in vocabulary {
            if self.words.len().min(self.openers.len()) >= MAX_WORDS {
                return;
            }
            // The mark of a leading space in byte-level and in sentencepiece vocabularies.
            let spaced = piece.strip_prefix(['Ġ', '▁']);
            let word = spaced.unwrap_or(&piece);
            if !(3..=10).contains(&word.len()) || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
                continue;
            }
            let text = if spaced.is_some() { format!(" {word}") } else { word.to_owned() };
            let encoded = self.tokenizer.encode_fast(text.as_str(), false);
            if !encoded.is_ok_and(|encoding| encoding.get_ids() == [id]) {
                continue;
            }
            match spaced {
                Some(_) => self.words.push(id),
                None => self.openers.push(id),
            }
            self.texts.insert(id, text);
        }
    }
}

/// Small generator (splitmix64) over a hash of the prompt (FNV-1a).
struct Random(u64);

impl Random {
    fn seeded(prompt: &[u32]) -> Random {
        let step = |hash: u64, &token: &u32| (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3);
        Random(prompt.iter().fold(0xcbf2_9ce4_8422_2325, step))
    }

    /// 0 to `bound` - 1.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}

/// `*_token` entries: text, or an object with the text as `content`.
fn special_tokens(config: &Value) -> Vec<(String, String)> {
    let entries = config.as_object().into_iter().flatten();
    entries
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| {
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((name.clone(), text.to_owned()))
        })
        .collect()
}

fn chat_template(folder: &Path, config: &Value) -> Option<String> {
    let file = std::fs::read_to_string(folder.join("chat_template.jinja")).ok();
    file.or_else(|| config.get("chat_template")?.as_str().map(str::to_owned))
}

fn file_error(path: &Path, reason: impl ToString) -> TextError {
    TextError::File { path: path.to_owned(), reason: reason.to_string() }
}
