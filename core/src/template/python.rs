//! Values as Python prints them: `str`, `repr`, `json.dumps`, `str.strip`.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write as _;

/// Deepest nesting that is printed; a value from a request has less.
const MAX_DEPTH: usize = 200;

/// `str(value)`
pub(super) fn str(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => {
            let mut text = String::new();
            repr(value, &mut text, 0)?;
            Ok(text)
        }
    }
}

/// How `json.dumps` writes.
#[derive(Debug)]
pub(super) struct Json {
    /// The text of one level of indentation; none: all in one line.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
}

impl Json {
    /// `json.dumps(value)`
    pub(super) fn write(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.value(value, &mut out, 0)?;
        Ok(out)
    }

    fn value(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        check(depth)?;
        if let Some(text) = value.as_str() {
            self.string(text, out);
            return Ok(());
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => number(value, out, ["NaN", "Infinity", "-Infinity"]),
            ValueKind::Seq | ValueKind::Iterable => {
                self.items(out, depth, ['[', ']'], value.try_iter()?, |out, item| {
                    self.value(&item, out, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.items(out, depth, ['{', '}'], keys.into_iter(), |out, key| {
                    self.string(&key_text(&key)?, out);
                    out.push_str(&self.key_separator);
                    self.value(&value.get_item(&key)?, out, depth + 1)
                })?;
            }
            ValueKind::Plain => write_plain(value, out),
            _ => return Err(Error::new(ErrorKind::BadSerialization, "not JSON serializable")),
        }
        Ok(())
    }

    fn items(
        &self,
        out: &mut String,
        depth: usize,
        [open, close]: [char; 2],
        items: impl Iterator<Item = Value>,
        mut each: impl FnMut(&mut String, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let mut first = true;
        for item in items {
            if !first {
                out.push_str(&self.item_separator);
            }
            first = false;
            self.line(out, depth + 1);
            each(out, item)?;
        }
        if !first {
            self.line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        let mut rest = text;
        let is_special =
            |c: char| matches!(c, '"' | '\\' | '\0'..='\x1f') || (self.ensure_ascii && !c.is_ascii());
        while let Some(place) = rest.find(is_special) {
            let (plain, special) = rest.split_at(place);
            out.push_str(plain);
            let mut characters = special.chars();
            match characters.next() {
                Some('"') => out.push_str("\\\""),
                Some('\\') => out.push_str("\\\\"),
                Some('\n') => out.push_str("\\n"),
                Some('\r') => out.push_str("\\r"),
                Some('\t') => out.push_str("\\t"),
                Some('\u{8}') => out.push_str("\\b"),
                Some('\u{c}') => out.push_str("\\f"),
                Some(other) => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                None => {}
            }
            rest = characters.as_str();
        }
        out.push_str(rest);
        out.push('"');
    }
}

/// White space to Python: Unicode's, and the four separators below U+0020.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\x1c'..='\x1f')
}

/// `text.strip()`
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `text.lstrip()`
pub(super) fn strip_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// `text.rstrip()`
pub(super) fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    check(depth)?;
    if let Some(text) = value.as_str() {
        repr_text(text, out);
        return Ok(());
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out, ["nan", "inf", "-inf"]),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (place, item) in value.try_iter()?.enumerate() {
                if place > 0 {
                    out.push_str(", ");
                }
                repr(&item, out, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (place, key) in value.try_iter()?.enumerate() {
                if place > 0 {
                    out.push_str(", ");
                }
                repr(&key, out, depth + 1)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => write_plain(value, out),
    }
    Ok(())
}

fn check(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply"));
    }
    Ok(())
}

fn write_plain(value: &Value, out: &mut String) {
    let _ = write!(out, "{value}");
}

/// A key of a JSON object: what is no text is written as a value.
fn key_text(key: &Value) -> Result<String, Error> {
    let mut text = String::new();
    match (key.as_str(), key.kind()) {
        (Some(key), _) => text.push_str(key),
        (None, ValueKind::None) => text.push_str("null"),
        (None, ValueKind::Bool) => text.push_str(if key.is_true() { "true" } else { "false" }),
        (None, ValueKind::Number) => number(key, &mut text, ["NaN", "Infinity", "-Infinity"]),
        _ => return Err(Error::new(ErrorKind::BadSerialization, "key is no text")),
    }
    Ok(text)
}

fn number(value: &Value, out: &mut String, [nan, infinity, negative]: [&str; 3]) {
    let float = match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float,
        _ => return write_plain(value, out),
    };
    if float.is_nan() {
        out.push_str(nan);
    } else if float.is_infinite() {
        out.push_str(if float > 0.0 { infinity } else { negative });
    } else {
        write_float(float, out);
    }
}

/// `repr(float)`: the shortest digits that read back, with an exponent below 1e-4 and from 1e16.
fn write_float(float: f64, out: &mut String) {
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let _ = if (-4..16).contains(&exponent) {
        write!(out, "{float:?}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{mantissa}e{sign}{:02}", exponent.abs())
    };
}

fn repr_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        let _ = match character {
            '\\' => write!(out, "\\\\"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            _ if character == quote => write!(out, "\\{character}"),
            _ if is_printable(character) => write!(out, "{character}"),
            _ => match u32::from(character) {
                code @ 0..=0xff => write!(out, "\\x{code:02x}"),
                code @ 0x100..=0xffff => write!(out, "\\u{code:04x}"),
                code => write!(out, "\\U{code:08x}"),
            },
        };
    }
    out.push(quote);
}

/// `str.isprintable`: the standard library's table for `Debug` leaves out the same categories. It also escapes
/// combining characters, but only at the start of a text.
fn is_printable(character: char) -> bool {
    match character {
        '\'' | '"' => true,
        _ => !format!(" {character}").escape_debug().skip(1).eq(character.escape_unicode()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    // Expected: Python 3.11 repr().
    #[test]
    fn floats_print_as_in_python() {
        for (float, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (2.0, "2.0"),
            (1e-7, "1e-07"),
            (0.0001, "0.0001"),
            (0.000012, "1.2e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.1 + 0.2, "0.30000000000000004"),
            (-1.5e300, "-1.5e+300"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(str(&Value::from(float)).unwrap(), expected);
        }
    }

    #[test]
    fn text_is_quoted_as_in_python() {
        let text = Value::from(vec![
            "it's",
            "\"",
            "'\"",
            "\\ \n\t\u{1}\u{7f}\u{85}\u{a0}\u{ad}é\u{301}😀\u{2028}\u{e000}\u{10ffff}",
        ]);
        let expected = r#"["it's", '"', '\'"', '\\ \n\t\x01\x7f\x85\xa0\xadé́😀\u2028\ue000\U0010ffff']"#;
        assert_eq!(str(&text).unwrap(), expected);
    }

    #[test]
    fn strips_what_python_strips() {
        assert_eq!(strip("\u{1c}\u{1f}\u{85}\u{a0}\u{3000} a \u{200b}\n"), "a \u{200b}");
    }
}
