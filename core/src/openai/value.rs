//! JSON values as a chat template sees them: what Python's `json.loads` would give.
//!
//! Integers of any size stay exact, `2.0` stays a float, objects keep the order of their keys and the last of equal
//! keys wins. Clones are cheap: text, arrays and objects are shared, so a template reads a prompt where the parser
//! left it.

use super::{BodyError, json};
use hashbrown::HashMap;
use std::sync::Arc;

/// Objects with more keys than this find them by hash: a linear search over many keys that a client sends is quadratic.
const LINEAR: usize = 16;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(Number),
    /// Text.
    String(Arc<str>),
    /// An array.
    Array(Arc<Vec<Value>>),
    /// An object.
    Object(Arc<Object>),
}

/// A number, as Python tells them apart.
#[derive(Clone, Debug, PartialEq)]
pub enum Number {
    /// An integer.
    Int(i64),
    /// An integer that does not fit: its decimal digits, with a sign if negative.
    Big(Arc<str>),
    /// A number with a fraction or an exponent; may be infinite or NaN, as Python's parser allows.
    Float(f64),
}

/// A JSON object: unique keys in the order of their first appearance.
#[derive(Clone, Debug, Default)]
pub struct Object {
    entries: Vec<(Arc<str>, Value)>,
    /// Place of each key in `entries`; only for objects above `LINEAR` keys.
    places: HashMap<Arc<str>, usize>,
}

impl Value {
    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The object, if it is one.
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The elements of an array.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }
}

impl std::str::FromStr for Value {
    type Err = BodyError;

    /// Reads a whole JSON document, as the body's parser does.
    fn from_str(text: &str) -> Result<Value, BodyError> {
        json::parse(text).map_err(BodyError::from)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(Arc::from(text))
    }
}

impl From<Vec<Value>> for Value {
    fn from(items: Vec<Value>) -> Value {
        Value::Array(Arc::new(items))
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Value {
        Value::Object(Arc::new(object))
    }
}

impl Object {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.place(key).and_then(|place| self.entries.get(place)).map(|(_, value)| value)
    }

    /// The value of `key`, unless it is `null`.
    pub fn get_some(&self, key: &str) -> Option<&Value> {
        self.get(key).filter(|value| **value != Value::Null)
    }

    /// Adds `key` at the end, or replaces its value where it is.
    pub fn insert(&mut self, key: impl Into<Arc<str>>, value: Value) {
        let key = key.into();
        match self.place(&key).and_then(|place| self.entries.get_mut(place)) {
            Some((_, old)) => *old = value,
            None => {
                self.entries.push((key, value));
                self.index();
            }
        }
    }

    /// Keys and values, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Value)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// The entry at `place`.
    pub fn at(&self, place: usize) -> Option<(&Arc<str>, &Value)> {
        self.entries.get(place).map(|(key, value)| (key, value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn place(&self, key: &str) -> Option<usize> {
        if self.places.is_empty() {
            self.entries.iter().position(|(known, _)| **known == *key)
        } else {
            self.places.get(key).copied()
        }
    }

    fn index(&mut self) {
        let known = self.places.len();
        if self.entries.len() > LINEAR {
            self.places.extend(
                self.entries.iter().enumerate().skip(known).map(|(place, (key, _))| (Arc::clone(key), place)),
            );
        }
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Object) -> bool {
        self.entries == other.entries
    }
}

impl<K: Into<Arc<str>>> FromIterator<(K, Value)> for Object {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(entries: I) -> Object {
        let mut object = Object::default();
        entries.into_iter().for_each(|(key, value)| object.insert(key, value));
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn the_last_of_equal_keys_wins_at_the_place_of_the_first() {
        for keys in [3, 100] {
            let mut object: Object = (0..keys).map(|i| (format!("k{i}"), Value::Null)).collect();
            object.insert("k1", Value::Bool(true));
            assert_eq!(object.len(), keys);
            assert_eq!(object.at(1).map(|(_, value)| value.clone()), Some(Value::Bool(true)));
            assert_eq!(object.get("k1"), Some(&Value::Bool(true)));
            assert_eq!(object.get("absent"), None);
            assert_eq!(object.get_some("k0"), None);
        }
    }
}
