//! Requests that were given a hint and have not ended.
//!
//! Counts come from the set of open tickets, so they cannot go negative, and a ticket that is never given back (the
//! host lost the request) is dropped after [`MAX_AGE_MS`], so they cannot leak. Cost: O(1) each; expiry O(what is due).

use super::decision::Ticket;
use crate::hash::BlockHash;
use crate::replica::{ReplicaId, ScopeId};
use hashbrown::HashMap;
use std::collections::VecDeque;

const MAX_AGE_MS: u64 = 30 * 60 * 1000;

/// A request on its way.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) replica: ReplicaId,
    /// Its speculative blocks, until they are settled or withdrawn.
    pub(super) speculative: Option<(ScopeId, Box<[BlockHash]>)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    requests: HashMap<Ticket, Request>,
    per_replica: HashMap<ReplicaId, u32>,
    by_age: VecDeque<(u64, Ticket)>,
    next: u64,
}

impl InFlight {
    /// Gives the request back if there is no memory for it.
    pub(super) fn begin(&mut self, request: Request, now: u64) -> Result<Ticket, Request> {
        if self.requests.try_reserve(1).is_err() || self.by_age.try_reserve(1).is_err() {
            return Err(request);
        }
        self.next += 1;
        let ticket = Ticket(self.next);
        *self.per_replica.entry(request.replica).or_default() += 1;
        self.requests.insert(ticket, request);
        self.by_age.push_back((now.saturating_add(MAX_AGE_MS), ticket));
        Ok(ticket)
    }

    pub(super) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Request> {
        self.requests.get_mut(&ticket)
    }

    pub(super) fn end(&mut self, ticket: Ticket) -> Option<Request> {
        let request = self.requests.remove(&ticket)?;
        if let Some(count) = self.per_replica.get_mut(&request.replica) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.per_replica.remove(&request.replica);
            }
        }
        Some(request)
    }

    /// The next ticket that is too old, or closes the queue's head if its request has ended. At most `limit` steps.
    pub(super) fn overdue(&mut self, now: u64, limit: usize) -> Option<Ticket> {
        for _ in 0..limit {
            let &(due, ticket) = self.by_age.front()?;
            let open = self.requests.contains_key(&ticket);
            if open && due > now {
                return None;
            }
            self.by_age.pop_front();
            if open {
                return Some(ticket);
            }
        }
        None
    }

    /// Requests in flight to `replica`.
    pub(super) fn count(&self, replica: ReplicaId) -> u32 {
        self.per_replica.get(&replica).copied().unwrap_or(0)
    }

    /// Requests in flight.
    pub(super) fn total(&self) -> usize {
        self.requests.len()
    }

    /// The requests go on, but what they refer to is gone: a new epoch of the directory.
    pub(super) fn forget_replicas(&mut self) {
        self.requests.clear();
        self.per_replica.clear();
        self.by_age.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const A: ReplicaId = ReplicaId(1);

    fn request() -> Request {
        Request { replica: A, speculative: None }
    }

    #[test]
    fn ending_twice_counts_once() {
        let mut in_flight = InFlight::default();
        let first = in_flight.begin(request(), 0).unwrap();
        in_flight.begin(request(), 0).unwrap();
        assert_eq!(in_flight.count(A), 2);
        assert!(in_flight.end(first).is_some());
        assert!(in_flight.end(first).is_none());
        assert_eq!((in_flight.count(A), in_flight.total()), (1, 1));
    }

    #[test]
    fn a_ticket_that_never_comes_back_is_overdue_in_the_end() {
        let mut in_flight = InFlight::default();
        let ended = in_flight.begin(request(), 0).unwrap();
        let lost = in_flight.begin(request(), 0).unwrap();
        in_flight.end(ended);
        assert_eq!(in_flight.overdue(MAX_AGE_MS - 1, 10), None);
        assert_eq!(in_flight.overdue(MAX_AGE_MS, 10), Some(lost));
        in_flight.end(lost);
        assert_eq!((in_flight.overdue(MAX_AGE_MS, 10), in_flight.by_age.len()), (None, 0));
    }
}
