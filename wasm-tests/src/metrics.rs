//! Metrics of the process, by name.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    names: Vec<String>,
    values: BTreeMap<String, i64>,
}

impl Metrics {
    pub(crate) fn define(&mut self, name: String) -> u32 {
        let id = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.values.insert(name.clone(), 0);
            self.names.push(name);
            self.names.len() - 1
        });
        id as u32
    }

    pub(crate) fn increment(&mut self, id: u32, by: i64) -> bool {
        self.value(id).map(|value| *value += by).is_some()
    }

    pub(crate) fn record(&mut self, id: u32, to: u64) -> bool {
        self.value(id).map(|value| *value = to as i64).is_some()
    }

    pub(crate) fn get(&self, name: &str) -> i64 {
        self.values.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn all(&self) -> BTreeMap<String, i64> {
        self.values.clone()
    }

    fn value(&mut self, id: u32) -> Option<&mut i64> {
        self.values.get_mut(self.names.get(id as usize)?)
    }
}
