//! What producers tell, applied to the index; the rules are in [`crate::producers`].
//!
//! Cost: O(entries) for an update; O(scopes of the tenant's model) to remove a prefix; O(entries of the replica there)
//! to clear.

use super::Writer;
use crate::directory::ScopeKey;
use crate::index::Report;
use crate::producers::{Prefixes, Subject, Told};
use crate::replication::Change;
use inference_cache_core::hash;
use std::collections::BTreeMap;

/// What did not fit, by reason.
pub(crate) type Refused = BTreeMap<&'static str, u64>;

impl Writer {
    pub(super) fn told(&mut self, told: Told) -> Refused {
        let mut refused = Refused::new();
        match told {
            Told::Held { subject, prefixes } => self.held(&subject, prefixes, &mut refused),
            Told::Evicted { subject, adapter, key, own_scheme } => {
                let Some(replica) = self.directory.reporter(&subject.replica) else { return refused };
                for (names, scope) in self.directory.scopes_in(&subject.tenant, &subject.model) {
                    let in_scheme = own_scheme || names.scheme != hash::SCHEME;
                    let in_adapter = adapter.as_ref().is_none_or(|adapter| *adapter == names.adapter);
                    if in_scheme
                        && in_adapter
                        && self.index.remove(scope, replica, key)
                        && self.directory.is_told(scope, replica)
                    {
                        self.hub.change(Change::Removed { scope, replica, hash: key });
                    }
                }
            }
            Told::Cleared { subject } => {
                let Some(replica) = self.directory.reporter(&subject.replica) else { return refused };
                for (_, scope) in self.directory.scopes_in(&subject.tenant, &subject.model) {
                    if self.index.clear_scope(scope, replica) && self.directory.is_told(scope, replica) {
                        self.hub.change(Change::Cleared { replica, scope });
                    }
                }
            }
        }
        refused
    }

    fn held(&mut self, subject: &Subject, prefixes: Vec<Prefixes>, refused: &mut Refused) {
        let now_s = self.now_s();
        let Some(replica) = self.directory.enroll_reporter(&subject.replica, now_s) else {
            let entries = prefixes.iter().map(|prefixes| prefixes.entries.len() as u64).sum();
            refused.insert("too_many_replicas", entries);
            return;
        };
        for Prefixes { scheme, adapter, tier, block_size, entries } in prefixes {
            let own_scheme = scheme == hash::SCHEME;
            let names =
                ScopeKey { tenant: subject.tenant.clone(), model: subject.model.clone(), scheme, adapter };
            let Some(scope) = self.directory.reported_scope(names.clone()) else {
                *refused.entry("too_many_scopes").or_default() += entries.len() as u64;
                continue;
            };
            let mut changed = self.directory.tell_reported(&names, scope, replica);
            let is_told = self.directory.is_told(scope, replica);
            // What the engine's own events say of its blocks is the better word.
            if let Some(tokens) =
                block_size.filter(|_| own_scheme && is_told && self.directory.block_size(replica).is_none())
            {
                changed |= self.directory.note_block_size(replica, tokens);
            }
            if changed {
                self.hub.directory(self.directory.to_proto());
            }
            for (hash, tokens) in entries {
                match self.index.report(
                    scope,
                    replica,
                    hash,
                    Report { tier, tokens },
                    now_s,
                    self.max_reported,
                ) {
                    Ok(true) if is_told => self.hub.change(Change::Stored { scope, replica, tier, hash }),
                    Ok(_) => {}
                    Err(_) => *refused.entry("too_many_entries").or_default() += 1,
                }
            }
        }
    }

    /// Forgets the replicas and scopes of producers that hold nothing any more.
    pub(super) fn expire_reports(&mut self) {
        let now_s = self.now_s();
        let index = &self.index;
        self.directory.expire_reporters(now_s, |replica| index.replica_entries(replica) > 0);
        if self.directory.expire_scopes(|scope| index.has_scope(scope)) {
            self.hub.directory(self.directory.to_proto());
        }
    }
}
