//! A JSON parser for request bodies, with the rules of Python's `json.loads`.
//!
//! serde_json is not enough here: it cannot tell what a body that was cut anywhere holds, and Python accepts `NaN` and
//! `Infinity`, keeps integers of any size and reads `1e999` as infinity.
//!
//! In a body that is a prefix, the end of the input ends everything that is open: [`Parser::is_cut`] turns true, an
//! open string holds what came before the cut, and values of which nothing certain is known (a number, a literal, an
//! escape, a key without its value) are dropped.
//!
//! Cost: one pass, one copy of each string that is kept, none of what is skipped. Strings are scanned eight bytes at a
//! time. Nesting is limited to [`MAX_DEPTH`], so the stack is bounded.

use super::value::{Number, Object, Value};
use std::borrow::Cow;
use std::sync::Arc;

/// Deepest nesting of arrays and objects. Python's own limit is near 1,000.
pub(super) const MAX_DEPTH: usize = 128;
/// Python refuses to read longer integers.
const MAX_DIGITS: usize = 4300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JsonError {
    Syntax,
    TooDeep,
    /// A `\ud800` without its other half: no text.
    LoneSurrogate,
    Memory,
}

type Result<T> = std::result::Result<T, JsonError>;

#[derive(Debug)]
pub(super) struct Parser<'a> {
    text: &'a str,
    at: usize,
    prefix: bool,
    cut: bool,
}

/// Parses a whole document.
pub(super) fn parse(text: &str) -> Result<Value> {
    let mut parser = Parser::new(text, false);
    let value = parser.value()?.ok_or(JsonError::Syntax)?;
    parser.end()?;
    Ok(value)
}

impl<'a> Parser<'a> {
    /// `prefix`: `text` may end anywhere.
    pub(super) fn new(text: &'a str, prefix: bool) -> Parser<'a> {
        Parser { text, at: 0, prefix, cut: false }
    }

    /// Whether the end of the input came before the end of the document.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Enters an object; false if the document is something else.
    pub(super) fn enter_object(&mut self) -> Result<bool> {
        self.space();
        match self.peek() {
            Some(b'{') => {
                self.at += 1;
                Ok(true)
            }
            Some(_) => Ok(false),
            None => self.cut().map(|()| false),
        }
    }

    /// The next key of the entered object, placed before its value; none at its end.
    pub(super) fn key(&mut self, first: bool) -> Result<Option<Cow<'a, str>>> {
        if !self.another(b'}', first)? {
            return Ok(None);
        }
        self.space();
        match self.peek() {
            Some(b'"') => self.at += 1,
            Some(_) => return Err(JsonError::Syntax),
            None => return self.cut().map(|()| None),
        }
        let key = self.string()?;
        self.space();
        match self.peek() {
            Some(b':') => self.at += 1,
            Some(_) => return Err(JsonError::Syntax),
            None => return self.cut().map(|()| None),
        }
        Ok(Some(key))
    }

    /// The value here; none if it was cut before anything certain.
    pub(super) fn value(&mut self) -> Result<Option<Value>> {
        self.nested(0)
    }

    /// Passes over the value here. Only its extent is checked.
    pub(super) fn skip(&mut self) -> Result<()> {
        self.space();
        let mut depth = 0usize;
        loop {
            let Some(byte) = self.peek() else { return self.cut() };
            match byte {
                b'"' => {
                    self.at += 1;
                    self.skip_string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    if depth > MAX_DEPTH {
                        return Err(JsonError::TooDeep);
                    }
                    continue;
                }
                b'}' | b']' | b',' if depth == 0 => return Err(JsonError::Syntax),
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.word();
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Nothing but space may follow.
    pub(super) fn end(&mut self) -> Result<()> {
        self.space();
        if self.cut || self.peek().is_none() { Ok(()) } else { Err(JsonError::Syntax) }
    }

    fn nested(&mut self, depth: usize) -> Result<Option<Value>> {
        if depth > MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        self.space();
        let Some(byte) = self.peek() else { return self.cut().map(|()| None) };
        match byte {
            b'"' => {
                self.at += 1;
                self.string().map(|text| Some(Value::String(Arc::from(text))))
            }
            b'{' => {
                self.at += 1;
                self.object(depth).map(|object| Some(Value::Object(Arc::new(object))))
            }
            b'[' => {
                self.at += 1;
                self.array(depth).map(|items| Some(Value::Array(Arc::new(items))))
            }
            _ => self.scalar(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Object> {
        let mut object = Object::default();
        while !self.cut
            && let Some(key) = self.key(object.is_empty())?
        {
            if let Some(value) = self.nested(depth + 1)? {
                object.insert(key, value);
            }
        }
        Ok(object)
    }

    fn array(&mut self, depth: usize) -> Result<Vec<Value>> {
        let mut items = Vec::new();
        while !self.cut && self.another(b']', items.is_empty())? {
            if let Some(value) = self.nested(depth + 1)? {
                items.try_reserve(1).map_err(|_| JsonError::Memory)?;
                items.push(value);
            }
        }
        Ok(items)
    }

    /// Whether another element follows before `close`; passes the comma or the bracket.
    fn another(&mut self, close: u8, first: bool) -> Result<bool> {
        self.space();
        match self.peek() {
            None => self.cut().map(|()| false),
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            Some(b',') if !first => {
                self.at += 1;
                self.space();
                // No comma before the bracket.
                if self.peek() == Some(close) { Err(JsonError::Syntax) } else { Ok(true) }
            }
            Some(_) if first => Ok(true),
            Some(_) => Err(JsonError::Syntax),
        }
    }

    fn scalar(&mut self) -> Result<Option<Value>> {
        let word = self.word();
        if self.prefix && self.at == self.text.len() {
            // `12` may be the start of `123`.
            return self.cut().map(|()| None);
        }
        let value = match word {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            "NaN" => Value::Number(Number::Float(f64::NAN)),
            "Infinity" => Value::Number(Number::Float(f64::INFINITY)),
            "-Infinity" => Value::Number(Number::Float(f64::NEG_INFINITY)),
            _ => Value::Number(number(word).ok_or(JsonError::Syntax)?),
        };
        Ok(Some(value))
    }

    /// The characters up to the next that cannot be part of a number or literal.
    fn word(&mut self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let is_end = |byte: u8| {
            matches!(byte, b',' | b':' | b'"' | b'[' | b']' | b'{' | b'}' | b' ' | b'\t' | b'\n' | b'\r')
        };
        let length = rest.bytes().position(is_end).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    /// The string whose opening quote was passed.
    fn string(&mut self) -> Result<Cow<'a, str>> {
        let plain = self.run();
        match self.peek() {
            Some(b'"') => {
                self.at += 1;
                Ok(Cow::Borrowed(plain))
            }
            None => self.cut().map(|()| Cow::Borrowed(plain)),
            Some(_) => self.escaped(plain).map(Cow::Owned),
        }
    }

    fn escaped(&mut self, start: &str) -> Result<String> {
        let mut text = String::new();
        append(&mut text, start)?;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => match self.escape()? {
                    Some(character) => {
                        let run = self.run();
                        text.try_reserve(4 + run.len()).map_err(|_| JsonError::Memory)?;
                        text.push(character);
                        text.push_str(run);
                    }
                    None => return Ok(text),
                },
                Some(_) => return Err(JsonError::Syntax),
                None => return self.cut().map(|()| text),
            }
        }
    }

    /// The character of the escape here; none if the input ends in it.
    #[inline]
    fn escape(&mut self) -> Result<Option<char>> {
        let Some(&byte) = self.text.as_bytes().get(self.at + 1) else { return self.cut().map(|()| None) };
        self.at += 2;
        let character = match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let Some(high) = self.hex()? else { return Ok(None) };
                let mut code = high;
                if (0xd800..0xdc00).contains(&high) {
                    let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
                    if self.prefix && b"\\u".starts_with(rest) {
                        return self.cut().map(|()| None);
                    }
                    if !rest.starts_with(b"\\u") {
                        return Err(JsonError::LoneSurrogate);
                    }
                    self.at += 2;
                    let Some(low) = self.hex()? else { return Ok(None) };
                    if !(0xdc00..0xe000).contains(&low) {
                        return Err(JsonError::LoneSurrogate);
                    }
                    code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                }
                char::from_u32(code).ok_or(JsonError::LoneSurrogate)?
            }
            _ => return Err(JsonError::Syntax),
        };
        Ok(Some(character))
    }

    fn hex(&mut self) -> Result<Option<u32>> {
        let Some(digits) = self.text.as_bytes().get(self.at..self.at + 4) else {
            return self.cut().map(|()| None);
        };
        self.at += 4;
        digits
            .iter()
            .try_fold(0, |code, &digit| Some(code * 16 + char::from(digit).to_digit(16)?))
            .map(Some)
            .ok_or(JsonError::Syntax)
    }

    fn skip_string(&mut self) -> Result<()> {
        loop {
            self.run();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.at = (self.at + 2).min(self.text.len()),
                Some(_) => return Err(JsonError::Syntax),
                None => return self.cut(),
            }
        }
    }

    /// The characters up to the next quote, backslash or control character. All are ASCII, so the place is always
    /// between characters.
    fn run(&mut self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = plain(rest.as_bytes());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The input ended inside the document.
    fn cut(&mut self) -> Result<()> {
        if !self.prefix {
            return Err(JsonError::Syntax);
        }
        self.at = self.text.len();
        self.cut = true;
        Ok(())
    }
}

/// Length of the start of `bytes` without quote, backslash and control characters.
fn plain(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // The lowest high bit that is set marks the first byte below `limit`; those above it may be wrong.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGHS;
    let (words, _) = bytes.as_chunks::<8>();
    for (place, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let special = below(word, 0x20)
            | below(word ^ (ONES * u64::from(b'"')), 1)
            | below(word ^ (ONES * u64::from(b'\\')), 1);
        if special != 0 {
            return place * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let tail = words.len() * 8;
    let rest = bytes.get(tail..).unwrap_or_default();
    tail + rest.iter().position(|&byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len())
}

fn append(text: &mut String, more: &str) -> Result<()> {
    text.try_reserve(more.len()).map_err(|_| JsonError::Memory)?;
    text.push_str(more);
    Ok(())
}

/// JSON's grammar: `-? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?`
fn number(word: &str) -> Option<Number> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = match word.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (word, None),
    };
    let (integer, fraction) = match mantissa.split_once('.') {
        Some((integer, fraction)) => (integer, Some(fraction)),
        None => (mantissa, None),
    };
    let magnitude = integer.strip_prefix('-').unwrap_or(integer);
    let is_number = digits(magnitude)
        && (magnitude == "0" || !magnitude.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(digits);
    if !is_number {
        return None;
    }
    if fraction.is_some() || exponent.is_some() {
        return word.parse().ok().map(Number::Float);
    }
    match word.parse() {
        Ok(small) => Some(Number::Int(small)),
        Err(_) => (magnitude.len() <= MAX_DIGITS).then(|| Number::Big(Arc::from(word))),
    }
}

#[cfg(test)]
mod tests;
