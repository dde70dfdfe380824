//! Text to tokens, as many as are asked for.
//!
//! ```text
//! text ── source: pieces, normalized windows ── qwen2: words ── words: one token? ── cache ── merge
//! ```
//! Cost: O(text that is read); memory: a window, see [`super::source`], and one word.

use super::cache::WordCache;
use super::merge::{self, LongWords, MAX_WORD};
use super::source::Source;
use super::words::{NO_TOKEN, word_hash};
use super::{EncodeError, Parts, Tokenizer, qwen2};

/// Encodes one text, lazily. Made by [`Tokenizer::encode`].
#[derive(Debug)]
pub struct Encoder<'t> {
    tokenizer: &'t Tokenizer,
    parts: Parts<'t>,
    source: Source<'t>,
    cache: WordCache,
    has_cache: bool,
    long: LongWords,
}

impl<'t> Encoder<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, parts: Parts<'t>, text: &'t str) -> Encoder<'t> {
        let cache = tokenizer.cache.take();
        let has_cache = cache.is_some();
        let (source, cache, long) = (Source::new(text), cache.unwrap_or_default(), LongWords::default());
        Encoder { tokenizer, parts, source, cache, has_cache, long }
    }

    /// Appends at least `at_least` tokens to `out`, fewer only at the end of the text. `Ok(true)`: there are more.
    ///
    /// # Errors
    /// The tokens in `out` are right; those behind them are not to be had.
    pub fn fill(&mut self, out: &mut Vec<u32>, at_least: usize) -> Result<bool, EncodeError> {
        let enough = out.len().saturating_add(at_least);
        loop {
            self.words(out, enough)?;
            let closed = self.source.closed();
            if self.source.window().is_empty() && closed {
                let Some(id) = self.source.next_piece() else { return Ok(false) };
                out.try_reserve(1).map_err(|_| EncodeError::OutOfMemory)?;
                out.push(id);
            } else if out.len() >= enough {
                return Ok(true);
            } else {
                self.source.grow(&self.parts)?;
            }
        }
    }

    /// Encodes the words of the window until there are enough tokens.
    fn words(&mut self, out: &mut Vec<u32>, enough: usize) -> Result<(), EncodeError> {
        let (window, closed) = (self.source.window(), self.source.closed());
        let mut at = 0;
        while at < window.len() && out.len() < enough {
            let cut = qwen2::cut(&self.parts.classes, window, at);
            if cut.open && !closed {
                if window.len() - at > MAX_WORD {
                    return Err(EncodeError::WordTooLong);
                }
                break;
            }
            let word = window.get(at..cut.end).unwrap_or_default();
            let hash = word_hash(word);
            let token = self.parts.words.find(word, hash);
            if token != NO_TOKEN {
                out.try_reserve(1).map_err(|_| EncodeError::OutOfMemory)?;
                out.push(token);
            } else if let Some(tokens) = self.cache.get(word, hash) {
                out.try_reserve(tokens.len()).map_err(|_| EncodeError::OutOfMemory)?;
                out.extend_from_slice(tokens);
            } else {
                let before = out.len();
                merge::merge(self.parts.bytes, &self.parts.pairs, &mut self.long, word, out)?;
                self.cache.put(word, hash, out.get(before..).unwrap_or_default());
            }
            at = cut.end;
        }
        self.source.consume(at);
        Ok(())
    }
}

impl Drop for Encoder<'_> {
    fn drop(&mut self) {
        if self.has_cache {
            self.tokenizer.cache.put_back(std::mem::take(&mut self.cache));
        }
    }
}
