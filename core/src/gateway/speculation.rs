//! Blocks of routed prompts that no event has announced yet.
//!
//! Siblings of a prompt arrive while the first is still queued; without this they would scatter. A routed prompt's
//! blocks count as present on its replica from routing until a TTL after its first token; by then the engine's own
//! event has come. They are reference counted by request and withdrawn with the last one that fails.
//!
//! Invariant: a guess is in `guesses` exactly as long as a request holds it or its time has not come; every guess has
//! one place in `due` per expiry that was set, so nothing stays for ever. Bounded: at most [`MAX_GUESSES`] guesses.
//! Cost: O(holders of the block) each; expiry O(what is due).

use crate::hash::BlockHash;
use crate::replica::{ReplicaId, ScopeId};
use hashbrown::HashMap;
use std::collections::VecDeque;

const MAX_GUESSES: usize = 1 << 17;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Speculation {
    guesses: HashMap<(ScopeId, BlockHash), Vec<Guess>>,
    due: VecDeque<(u64, ScopeId, BlockHash)>,
    count: usize,
}

#[derive(Debug)]
struct Guess {
    replica: ReplicaId,
    /// Requests that may still bring the block about.
    requests: u32,
    /// Counts until then, milliseconds, even without a request.
    until: u64,
}

impl Guess {
    fn counts(&self, now: u64) -> bool {
        self.requests > 0 || self.until > now
    }
}

impl Speculation {
    /// A request for these blocks was sent to `replica`. False if there is no room.
    pub(super) fn begin(&mut self, scope: ScopeId, hash: BlockHash, replica: ReplicaId) -> bool {
        if self.count >= MAX_GUESSES || self.guesses.try_reserve(1).is_err() {
            return false;
        }
        let guesses = self.guesses.entry((scope, hash)).or_default();
        match guesses.iter_mut().find(|guess| guess.replica == replica) {
            Some(guess) => guess.requests += 1,
            None => {
                guesses.push(Guess { replica, requests: 1, until: 0 });
                self.count += 1;
            }
        }
        true
    }

    /// The request has its first token: the block counts until `until` and then only by its event.
    pub(super) fn settle(&mut self, scope: ScopeId, hash: BlockHash, replica: ReplicaId, until: u64) {
        let Some(guess) = self.guess(scope, hash, replica) else { return };
        guess.requests = guess.requests.saturating_sub(1);
        guess.until = guess.until.max(until);
        self.due.push_back((until, scope, hash));
    }

    /// The request failed: the block may be nowhere.
    pub(super) fn withdraw(&mut self, scope: ScopeId, hash: BlockHash, replica: ReplicaId, now: u64) {
        if let Some(guess) = self.guess(scope, hash, replica) {
            guess.requests = guess.requests.saturating_sub(1);
        }
        self.sweep(scope, hash, now);
    }

    /// The replicas that are expected to have the block.
    pub(super) fn holders(
        &self,
        scope: ScopeId,
        hash: BlockHash,
        now: u64,
    ) -> impl Iterator<Item = ReplicaId> {
        let guesses = self.guesses.get(&(scope, hash)).map(Vec::as_slice).unwrap_or_default();
        guesses.iter().filter(move |guess| guess.counts(now)).map(|guess| guess.replica)
    }

    /// Drops what is due, at most `limit` guesses.
    pub(super) fn expire(&mut self, now: u64, limit: usize) {
        for _ in 0..limit {
            match self.due.front() {
                Some(&(until, scope, hash)) if until <= now => {
                    self.due.pop_front();
                    self.sweep(scope, hash, now);
                }
                _ => return,
            }
        }
    }

    /// Scope numbers mean nothing in a new epoch of the directory.
    pub(super) fn clear(&mut self) {
        *self = Speculation::default();
    }

    fn guess(&mut self, scope: ScopeId, hash: BlockHash, replica: ReplicaId) -> Option<&mut Guess> {
        self.guesses.get_mut(&(scope, hash))?.iter_mut().find(|guess| guess.replica == replica)
    }

    fn sweep(&mut self, scope: ScopeId, hash: BlockHash, now: u64) {
        let Some(guesses) = self.guesses.get_mut(&(scope, hash)) else { return };
        let before = guesses.len();
        guesses.retain(|guess| guess.counts(now));
        self.count -= before - guesses.len();
        if guesses.is_empty() {
            self.guesses.remove(&(scope, hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const SCOPE: ScopeId = ScopeId(1);
    const HASH: BlockHash = BlockHash(7);
    const A: ReplicaId = ReplicaId(1);

    fn held(speculation: &Speculation, now: u64) -> bool {
        speculation.holders(SCOPE, HASH, now).any(|replica| replica == A)
    }

    #[test]
    fn counts_while_in_flight_and_a_while_after() {
        let mut speculation = Speculation::default();
        assert!(speculation.begin(SCOPE, HASH, A));
        assert!(held(&speculation, 1_000_000));
        speculation.settle(SCOPE, HASH, A, 1_002_000);
        assert!(held(&speculation, 1_001_999));
        assert!(!held(&speculation, 1_002_000));
        speculation.expire(1_002_000, 10);
        assert_eq!((speculation.count, speculation.guesses.len(), speculation.due.len()), (0, 0, 0));
    }

    #[test]
    fn one_failure_of_two_leaves_the_other() {
        let mut speculation = Speculation::default();
        speculation.begin(SCOPE, HASH, A);
        speculation.begin(SCOPE, HASH, A);
        speculation.withdraw(SCOPE, HASH, A, 0);
        assert!(held(&speculation, 0));
        speculation.withdraw(SCOPE, HASH, A, 0);
        assert!(!held(&speculation, 0));
        assert_eq!(speculation.count, 0);
    }

    #[test]
    fn a_failure_does_not_take_back_what_another_request_settled() {
        let mut speculation = Speculation::default();
        speculation.begin(SCOPE, HASH, A);
        speculation.begin(SCOPE, HASH, A);
        speculation.settle(SCOPE, HASH, A, 50);
        speculation.withdraw(SCOPE, HASH, A, 10);
        assert!(held(&speculation, 10));
        speculation.expire(50, 10);
        assert_eq!(speculation.count, 0);
    }

    #[test]
    fn the_number_is_bounded() {
        let mut speculation = Speculation::default();
        let stored =
            (0..MAX_GUESSES as u64 + 9).filter(|&n| speculation.begin(SCOPE, BlockHash(n), A)).count();
        assert_eq!(stored, MAX_GUESSES);
    }
}
