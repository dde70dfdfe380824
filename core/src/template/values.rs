//! JSON values as minijinja sees them: shared, converted where a template looks.

use crate::openai::{Number, Object, Value};
use minijinja::value::{Enumerator, Object as Dynamic, ObjectRepr, Value as Any};
use std::fmt;
use std::sync::Arc;

/// `json` for a template. Text, arrays and objects are not copied.
pub(super) fn value(json: &Value) -> Any {
    match json {
        Value::Null => Any::from(()),
        Value::Bool(value) => Any::from(*value),
        Value::Number(Number::Int(value)) => Any::from(*value),
        Value::Number(Number::Float(value)) => Any::from(*value),
        Value::Number(Number::Big(digits)) => match digits.parse::<i128>() {
            Ok(value) => Any::from(value),
            Err(_) => Any::from_object(Digits(Arc::clone(digits))),
        },
        Value::String(value) => text(value),
        Value::Array(items) => Any::from_object(List(Arc::clone(items))),
        Value::Object(object) => Any::from_object(Map(Arc::clone(object))),
    }
}

/// Shared text.
pub(super) fn text(text: &Arc<str>) -> Any {
    Any::from(Arc::clone(text))
}

/// An integer that no machine type holds: it prints, and does not compute.
#[derive(Debug)]
pub(super) struct Digits(Arc<str>);

#[derive(Debug)]
struct List(Arc<Vec<Value>>);

#[derive(Debug)]
struct Map(Arc<Object>);

impl Dynamic for Digits {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Dynamic for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, place: &Any) -> Option<Any> {
        self.0.get(place.as_usize()?).map(value)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

impl Dynamic for Map {
    fn get_value(self: &Arc<Self>, key: &Any) -> Option<Any> {
        self.0.get(key.as_str()?).map(value)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        // Keys are shared text, so the list costs one allocation.
        Enumerator::Values(self.0.iter().map(|(key, _)| text(key)).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}
