//! The digests of the newest batches, to tell a batch that is heard again from another process's batch with its number.

/// Batches remembered. A publisher's ring holds 10,000; what comes again by itself comes at once.
const WINDOW: usize = 1024;

/// See the module. Cost: O(1); 16 KiB from the first batch on.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Number and digest at `number % WINDOW`.
    slots: Vec<Option<(u64, u64)>>,
}

/// What is known of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The batch was this one.
    Same,
    /// The batch was another.
    Other,
    /// Never heard, or too long ago.
    Unknown,
}

impl Recent {
    pub(super) fn note(&mut self, seq: u64, digest: u64) {
        if self.slots.is_empty() {
            self.slots.resize(WINDOW, None);
        }
        if let Some(slot) = self.slots.get_mut(place(seq)) {
            *slot = Some((seq, digest));
        }
    }

    pub(super) fn seen(&self, seq: u64, digest: u64) -> Seen {
        match self.slots.get(place(seq)) {
            Some(&Some((of, known))) if of == seq => {
                if known == digest {
                    Seen::Same
                } else {
                    Seen::Other
                }
            }
            _ => Seen::Unknown,
        }
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }
}

fn place(seq: u64) -> usize {
    (seq % WINDOW as u64) as usize
}
