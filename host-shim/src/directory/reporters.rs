//! Replicas and scopes that producers tell of.
//!
//! A producer names a replica as a whole. If the configuration knows it and it has one rank, what is told of it lies with
//! what its events say. Otherwise it gets an id of its own: no gateway can route there, so gateways never hear of it.
//! When the configuration comes to know such a replica, what was told before is dropped and told again in time.
//!
//! Both are bounded, and forgotten when they hold nothing.

use super::{Directory, ScopeKey};
use crate::index::{ReplicaId, ScopeId};
use crate::models::Model;
use crate::producers::limits;
use inference_cache_core::hash;
use std::ops::Bound;

/// A replica that only producers know.
#[derive(Debug)]
pub(super) struct Reporter {
    id: ReplicaId,
    heard_s: u32,
}

impl Directory {
    /// The id under which entries of a producer's replica lie, if there is one.
    pub(crate) fn reporter(&self, name: &str) -> Option<ReplicaId> {
        let configured = self
            .holders()
            .find(|(_, holder)| holder.replica.id == name && holder.data_parallel_rank().is_none())
            .map(|(id, _)| id);
        configured.or_else(|| self.reporters.get(name).map(|reporter| reporter.id))
    }

    /// As [`Directory::reporter`]; gives an id if there is none. `None`: too many.
    pub(crate) fn enroll_reporter(&mut self, name: &str, now_s: u32) -> Option<ReplicaId> {
        if let Some(reporter) = self.reporters.get_mut(name) {
            reporter.heard_s = now_s;
            return Some(reporter.id);
        }
        if let Some(id) = self.reporter(name) {
            return Some(id);
        }
        if self.reporters.len() >= limits::REPLICAS {
            return None;
        }
        self.last_id += 1;
        self.reporters.insert(name.to_owned(), Reporter { id: self.last_id, heard_s: now_s });
        Some(self.last_id)
    }

    /// Forgets a reporter, whose id is returned: the configuration knows its replica now.
    pub(crate) fn retire_reporter(&mut self, name: &str) -> Option<ReplicaId> {
        self.reporters.remove(name).map(|reporter| reporter.id)
    }

    /// Name and id.
    pub(crate) fn reporters(&self) -> impl Iterator<Item = (&str, ReplicaId)> {
        self.reporters.iter().map(|(name, reporter)| (name.as_str(), reporter.id))
    }

    /// Forgets the reporters that were not heard for a TTL and hold nothing.
    pub(crate) fn expire_reporters(&mut self, now_s: u32, holds: impl Fn(ReplicaId) -> bool) {
        let ttl_s = self.ttl_s;
        self.reporters
            .retain(|_, reporter| now_s.saturating_sub(reporter.heard_s) < ttl_s || holds(reporter.id));
    }

    /// The scope of this name, made if need be. `None`: too many.
    pub(crate) fn reported_scope(&mut self, names: ScopeKey) -> Option<ScopeId> {
        if let Some(scope) = self.scopes.get(&names) {
            return Some(scope.id);
        }
        // Counting is O(scopes), but only a new scope pays for it.
        if self.scopes.values().filter(|scope| scope.reported).count() >= limits::SCOPES {
            return None;
        }
        self.add_scope(names, true)
    }

    /// The scopes of all schemes and adapters.
    pub(crate) fn scopes_in(&self, tenant: &str, model: &str) -> impl Iterator<Item = (&ScopeKey, ScopeId)> {
        let first = ScopeKey {
            tenant: tenant.to_owned(),
            model: model.to_owned(),
            scheme: String::new(),
            adapter: String::new(),
        };
        self.scopes
            .range((Bound::Included(first.clone()), Bound::Unbounded))
            .take_while(move |(names, _)| names.tenant == first.tenant && names.model == first.model)
            .map(|(names, scope)| (names, scope.id))
    }

    /// Whether gateways must hear of the scope, as a replica that they know now has entries there.
    pub(crate) fn tell_reported(&mut self, names: &ScopeKey, scope: ScopeId, id: ReplicaId) -> bool {
        let routable = self.holder(id).is_some_and(|holder| {
            holder.replica.tenant == names.tenant && holder.replica.model == names.model
        });
        routable && self.is_computed(names) && self.tell(scope, id)
    }

    /// Whether gateways can compute hashes of this scheme.
    fn is_computed(&self, names: &ScopeKey) -> bool {
        let declares = |model: &Model| model.engine_schemes.iter().any(|scheme| scheme.name == names.scheme);
        names.scheme == hash::SCHEME
            || self.models.iter().any(|model| model.name == names.model && declares(model))
    }

    /// Forgets the scopes of producers that are empty; whether gateways knew one of them.
    pub(crate) fn expire_scopes(&mut self, holds: impl Fn(ScopeId) -> bool) -> bool {
        let mut gone = Vec::new();
        self.scopes.retain(|_, scope| {
            let stays = !scope.reported || holds(scope.id);
            if !stays {
                gone.push(scope.id);
            }
            stays
        });
        let told = self.told.len();
        self.told.retain(|(scope, _)| !gone.contains(scope));
        self.told.len() < told
    }
}
