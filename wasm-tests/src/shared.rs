//! Shared data and shared queues, as proxy-wasm-cpp-host has them.

use std::collections::{BTreeMap, VecDeque};

/// Key, value, version. There is no delete and no enumeration.
#[derive(Debug, Default)]
pub(crate) struct SharedData {
    values: BTreeMap<Vec<u8>, (Vec<u8>, u32)>,
    last_cas: u32,
}

impl SharedData {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&(Vec<u8>, u32)> {
        self.values.get(key)
    }

    /// False on a mismatch. `cas` 0 writes unconditionally, and a key that does not exist is created whatever `cas` is.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8], cas: u32) -> bool {
        if let Some((_, held)) = self.values.get(key)
            && cas != 0
            && cas != *held
        {
            return false;
        }
        self.last_cas = self.last_cas.wrapping_add(1).max(1);
        self.values.insert(key.to_vec(), (value.to_vec(), self.last_cas));
        true
    }

    pub(crate) fn overwrite(&mut self, prefix: &[u8], value: &[u8]) {
        let keys: Vec<Vec<u8>> = self.values.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        keys.iter().for_each(|key| _ = self.set(key, value, 0));
    }
}

/// Queues by name. An entry goes to one dequeuer; the last registrant of the name is told.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    queues: Vec<Queue>,
    /// (vm, root context, queue) to call back.
    pub(crate) ready: VecDeque<(usize, u32, u32)>,
}

#[derive(Debug)]
struct Queue {
    name: Vec<u8>,
    registrant: (usize, u32),
    entries: VecDeque<Vec<u8>>,
}

impl Queues {
    pub(crate) fn register(&mut self, name: &[u8], vm: usize, context: u32) -> u32 {
        let registrant = (vm, context);
        if let Some(at) = self.queues.iter().position(|queue| queue.name == name) {
            self.queues[at].registrant = registrant;
            return at as u32 + 1;
        }
        self.queues.push(Queue { name: name.to_vec(), registrant, entries: VecDeque::new() });
        self.queues.len() as u32
    }

    pub(crate) fn enqueue(&mut self, id: u32, value: Vec<u8>) -> bool {
        let Some(queue) = self.queue(id) else { return false };
        queue.entries.push_back(value);
        let (vm, context) = queue.registrant;
        self.ready.push_back((vm, context, id));
        true
    }

    /// `None`: no such queue; `Some(None)`: empty.
    pub(crate) fn dequeue(&mut self, id: u32) -> Option<Option<Vec<u8>>> {
        Some(self.queue(id)?.entries.pop_front())
    }

    fn queue(&mut self, id: u32) -> Option<&mut Queue> {
        self.queues.get_mut(id.checked_sub(1)? as usize)
    }
}
