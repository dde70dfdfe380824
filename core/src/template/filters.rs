//! Filters, functions and methods of the environment that transformers gives to templates.

use super::python::{self, Json};
use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use std::fmt;

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.set_formatter(print);
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: Value| python::str(&value));
    environment.add_filter("trim", trim);
    environment.add_function("raise_exception", raise);
}

/// Whether the template itself refused, by `raise_exception`.
pub(super) fn is_refusal(error: &Error) -> bool {
    std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source())
        .any(|error| error.is::<Refusal>())
}

/// The message is dropped: templates quote the chat in it.
#[derive(Debug)]
struct Refusal;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the template refuses the chat")
    }
}

impl std::error::Error for Refusal {}

/// `{{ value }}`
fn print(out: &mut Output<'_>, _state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&python::str(value)?),
    }
    .map_err(Error::from)
}

fn raise(_message: Rest<Value>) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Refusal))
}

/// `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
fn tojson(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(args.get(place).cloned().or(named).filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match argument(1, "indent")? {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(64)),
        }),
    };
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;
    let (item_separator, key_separator) = match separators {
        Some(pair) => (python::str(&pair.get_item_by_index(0)?)?, python::str(&pair.get_item_by_index(1)?)?),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let json = Json { indent, item_separator, key_separator, ensure_ascii, sort_keys };
    json.write(&value).map(Value::from)
}

fn trim(value: Value, characters: Option<&str>) -> Result<Value, Error> {
    let text = python::str(&value)?;
    Ok(Value::from(match characters {
        Some(characters) => text.trim_matches(|c| characters.contains(c)),
        None => python::strip(&text),
    }))
}

/// Methods of Python's own types. White space is what Python takes for it; the rest is minijinja-contrib's.
fn method(state: &State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let no_argument = args.iter().all(Value::is_none);
    match (value.as_str(), name) {
        (Some(text), "strip") if no_argument => Ok(Value::from(python::strip(text))),
        (Some(text), "lstrip") if no_argument => Ok(Value::from(python::strip_start(text))),
        (Some(text), "rstrip") if no_argument => Ok(Value::from(python::strip_end(text))),
        (Some(text), "split") if no_argument => {
            Ok(text.split(python::is_space).filter(|word| !word.is_empty()).map(Value::from).collect())
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}
