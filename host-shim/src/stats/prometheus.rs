//! The Prometheus text format, as engines write it: `name{label="value",…} number [timestamp]`, one sample per line.
//!
//! Tolerant: comments, blank lines and lines that are no sample are passed over, so that one odd family of an engine
//! never costs the page. Nothing is copied until a label is asked for. It reads classic and OpenMetrics text; exemplars
//! and histograms' buckets are lines like others.
//!
//! Cost: O(bytes of the page).

use std::borrow::Cow;

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Name of the metric, suffix included.
    pub name: &'a str,
    /// Its labels.
    pub labels: Labels<'a>,
    /// Its value; may be NaN or infinite.
    pub value: f64,
}

/// The text between the braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labels<'a>(&'a str);

/// The samples of a page, in order.
pub fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter_map(sample)
}

impl<'a> Labels<'a> {
    /// The value of a label; escapes are undone.
    pub fn get(self, name: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.0;
        while let Some((label, after)) = rest.split_once('=') {
            let (value, after) = quoted(after.trim_start())?;
            if label.trim() == name {
                return Some(unescape(value));
            }
            rest = after.trim_start().strip_prefix(',').unwrap_or(after);
        }
        None
    }
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() {
        return None;
    }
    let (labels, rest) = match rest.trim_start().strip_prefix('{') {
        Some(rest) => braces(rest)?,
        None => ("", rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels: Labels(labels), value })
}

/// Splits after the closing brace, which may also stand within a quoted value.
fn braces(text: &str) -> Option<(&str, &str)> {
    let (mut in_quotes, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_quotes => escaped = true,
            b'"' => in_quotes = !in_quotes,
            b'}' if !in_quotes => return Some((text.get(..at)?, text.get(at + 1..)?)),
            _ => {}
        }
    }
    None
}

/// The inside of a quoted string, escapes and all, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('"')?;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some((text.get(..at)?, text.get(at + 1..)?)),
            _ => {}
        }
    }
    None
}

fn unescape(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => {}
            },
            c => plain.push(c),
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn samples_are_read_and_the_rest_is_passed_over() {
        let page = "# HELP a b\n# TYPE a gauge\n\na 1\n  b{} +Inf 1700000000\nc{x=\"}\\\"\\\\\\n,=\" , y=\"2\",} 3e2 # {e=\"1\"} 2\n\
                    {x=\"1\"} 1\nd{x=\"1\" 2\ne{x=1} 2\nf\ng one\nh{x=\"1\"}4\n";
        let read: Vec<_> = samples(page).map(|sample| (sample.name, sample.value)).collect();
        assert_eq!(read, [("a", 1.0), ("b", f64::INFINITY), ("c", 300.0), ("e", 2.0), ("h", 4.0)]);
        let c = samples(page).nth(2).unwrap();
        assert_eq!(c.labels.get("x").unwrap(), "}\"\\\n,=");
        assert_eq!(c.labels.get("y").unwrap(), "2");
        assert_eq!(c.labels.get("z"), None);
        assert_eq!(samples(page).nth(3).unwrap().labels.get("x"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(page in "\\PC*") {
            for sample in samples(&page) {
                let _ = sample.labels.get("engine");
            }
        }

        #[test]
        fn what_is_written_is_read(
            name in "[a-z_:][a-z0-9_:]{0,12}",
            labels in prop::collection::btree_map("[a-z_]{1,6}", "\\PC{0,12}|[\\\\\"\n{}=,]{0,6}", 0..4),
            value: f64,
        ) {
            let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let inside: Vec<_> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escape(v))).collect();
            let line = format!("# x\n{name}{{{}}} {value:?}\n", inside.join(","));
            // Other line ends within a value are not escaped by the format.
            prop_assume!(line.lines().count() == 2);
            let read: Vec<_> = samples(&line).collect();
            prop_assert_eq!(read.len(), 1);
            prop_assert_eq!(read[0].name, name);
            prop_assert!(read[0].value == value || value.is_nan());
            for (label, text) in &labels {
                let read = read[0].labels.get(label);
                prop_assert_eq!(read.as_deref(), Some(text.as_str()));
            }
        }
    }
}
