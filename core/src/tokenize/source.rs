//! Text on its way to the encoder: cut at added tokens, normalized, in windows that grow only as they are read.
//!
//! A *piece* is the text between two added tokens. Its window is a part of the raw text while that needs no
//! normalization, which is nearly always; from the first character that does, the rest of the piece is normalized into
//! a buffer. Text behind the window has not been looked at, so the cost of a prompt is that of the part that is read.
//!
//! Invariant: a window that is not closed may go on with any text, so its last word must not be used until it has
//! grown ([`super::qwen2::Cut::open`]).

use super::added::Match;
use super::nfc::{Scratch, TooLong};
use super::{EncodeError, Parts};

/// Bytes that a window grows by, at least; it doubles, so that a long word is not read again and again.
const STEP: usize = 4096;

#[derive(Debug)]
pub(super) struct Source<'t> {
    text: &'t str,
    /// Where the text that is in no window yet, or in the raw window, starts.
    at: usize,
    /// No added token starts in `text[at..known]`.
    known: usize,
    /// The piece ends at `known`: an added token starts there, or the text ends.
    ends: bool,
    /// The added token that the piece ends with.
    next: Option<Match>,
    view: View,
    scratch: Scratch,
}

#[derive(Debug)]
enum View {
    /// The window is `text[at..end]`. `blocked`: what follows in the piece needs normalization.
    Raw { end: usize, blocked: bool },
    /// The window is `buffer[from..]`, and `text[at..]` is not normalized yet.
    Normalized { buffer: String, from: usize },
}

impl<'t> Source<'t> {
    pub(super) fn new(text: &'t str) -> Source<'t> {
        let view = View::Raw { end: 0, blocked: false };
        Source { text, at: 0, known: 0, ends: text.is_empty(), next: None, view, scratch: Scratch::default() }
    }

    /// The text to cut into words now.
    pub(super) fn window(&self) -> &[u8] {
        match &self.view {
            View::Raw { end, .. } => self.text.as_bytes().get(self.at..*end).unwrap_or_default(),
            View::Normalized { buffer, from } => buffer.as_bytes().get(*from..).unwrap_or_default(),
        }
    }

    /// Whether the window reaches the end of its piece.
    pub(super) fn closed(&self) -> bool {
        self.ends
            && match &self.view {
                View::Raw { end, .. } => *end == self.known,
                View::Normalized { .. } => self.at == self.known,
            }
    }

    /// Drops the first `bytes` of the window.
    pub(super) fn consume(&mut self, bytes: usize) {
        match &mut self.view {
            View::Raw { .. } => self.at += bytes,
            View::Normalized { from, .. } => *from += bytes,
        }
    }

    /// Goes behind the added token at the end of a piece whose window is used up, and says its id.
    /// `None` at the end of the text.
    pub(super) fn next_piece(&mut self) -> Option<u32> {
        let found = self.next.take()?;
        self.at = found.place.end;
        self.known = self.at;
        self.ends = self.at == self.text.len();
        self.view = View::Raw { end: self.at, blocked: false };
        Some(found.id)
    }

    /// Makes a window that is not closed longer.
    pub(super) fn grow(&mut self, parts: &Parts<'_>) -> Result<(), EncodeError> {
        let step = STEP.max(self.window().len());
        let end = match &self.view {
            View::Raw { end, blocked: false } => *end,
            View::Raw { blocked: true, .. } => {
                self.view = View::Normalized { buffer: String::new(), from: 0 };
                return self.grow_normalized(parts, step);
            }
            View::Normalized { .. } => return self.grow_normalized(parts, step),
        };
        self.look_ahead(parts, step);
        let bytes = self.text.as_bytes();
        let unstable = match parts.nfc {
            Some(_) => parts.classes.first_unstable(bytes, end, self.known),
            None => self.known,
        };
        // The character before an unstable one may change too.
        let blocked = unstable < self.known;
        let end = if blocked { previous(bytes, self.at, unstable) } else { unstable };
        self.view = View::Raw { end, blocked };
        Ok(())
    }

    fn grow_normalized(&mut self, parts: &Parts<'_>, step: usize) -> Result<(), EncodeError> {
        let start = self.at;
        let end = loop {
            if self.known < start + step {
                self.look_ahead(parts, step);
            }
            if let Some(end) = self.stable_boundary(parts, start + step.min(self.known - start)) {
                break end;
            }
            if self.known - start > super::nfc::MAX_STRETCH * 4 + step {
                return Err(EncodeError::WordTooLong);
            }
            self.look_ahead(parts, step);
        };
        let View::Normalized { buffer, from } = &mut self.view else { return Ok(()) };
        buffer.drain(..*from);
        *from = 0;
        let raw = self.text.get(start..end).unwrap_or_default();
        self.at = end;
        let Some(nfc) = &parts.nfc else { return Ok(()) };
        nfc.normalize(raw, &parts.classes, &mut self.scratch, buffer)
            .map_err(|TooLong| EncodeError::WordTooLong)
    }

    /// The first place at or behind `from` where the piece may be cut for normalization. `None` if it is not known yet.
    fn stable_boundary(&self, parts: &Parts<'_>, from: usize) -> Option<usize> {
        let from = boundary(self.text, from);
        let rest = self.text.get(from..self.known)?;
        let stable = rest.char_indices().find(|(_, character)| !parts.classes.is_unstable(*character));
        match stable {
            Some((skipped, _)) => Some(from + skipped),
            None => self.ends.then_some(self.known),
        }
    }

    /// Looks for the end of the piece `step` bytes further.
    fn look_ahead(&mut self, parts: &Parts<'_>, step: usize) {
        if self.ends {
            return;
        }
        let until = boundary(self.text, self.known.saturating_add(step));
        self.next = parts.added.find(self.text.as_bytes(), self.known..until);
        self.known = self.next.as_ref().map_or(until, |found| found.place.start);
        self.ends = self.next.is_some() || until == self.text.len();
    }
}

/// The first character boundary at or behind `at`.
fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

/// Where the character before `at` starts; `from` if there is none.
fn previous(text: &[u8], from: usize, at: usize) -> usize {
    let is_start = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0xc0 != 0x80);
    (from..at).rev().find(is_start).unwrap_or(from)
}
