//! What the index holds, names spelled out: for views, tests and debugging.

use super::Writer;
use crate::directory::ScopeKey;
use crate::index::{self, ReplicaId, ScopeId};
use inference_cache_core::hash::BlockHash;
use inference_cache_core::ingest::Tier;
use std::collections::{BTreeMap, HashMap};

/// Every entry that gateways hear of, sorted: what a subscriber must end up with.
pub type Dump = Vec<Held>;

/// An entry as gateways know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// Of the replica.
    pub tenant: String,
    /// Of the replica.
    pub model: String,
    /// "" for the base model.
    pub adapter: String,
    /// Name of the replica.
    pub replica: String,
    /// Its data-parallel rank.
    pub rank: u32,
    /// The block.
    pub hash: BlockHash,
}

/// One entry, everything about it but its age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose.
    pub tenant: String,
    /// Base model.
    pub model: String,
    /// Hash scheme.
    pub scheme: String,
    /// "" for the base model.
    pub adapter: String,
    /// Name of the replica.
    pub replica: String,
    /// Its data-parallel rank, if the configuration knows it and it has several.
    pub rank: Option<u32>,
    /// The key.
    pub hash: BlockHash,
    /// Where it is.
    pub tier: Tier,
    /// Tokens of the prefix up to there; 0 if nobody said.
    pub tokens: u32,
}

impl Writer {
    /// Every entry, sorted by its names and hash.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let names = self.names();
        let mut entries = Vec::with_capacity(self.index.entries());
        for (scope, holder, table) in self.index.tables() {
            let (Some(scope), Some(&(replica, rank))) =
                (names.scopes.get(&scope), names.replicas.get(&holder))
            else {
                continue;
            };
            entries.extend(table.iter().map(|(&hash, &index::Entry { tier, tokens, .. })| Entry {
                tenant: scope.tenant.clone(),
                model: scope.model.clone(),
                scheme: scope.scheme.clone(),
                adapter: scope.adapter.clone(),
                replica: replica.to_owned(),
                rank,
                hash,
                tier,
                tokens,
            }));
        }
        entries.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
        entries
    }

    pub(super) fn dump(&self) -> Dump {
        let names = self.names();
        let mut dump = Dump::new();
        for (scope, holder, table) in self.index.tables() {
            let (Some(names), Some(holder_of)) = (names.scopes.get(&scope), self.directory.holder(holder))
            else {
                continue;
            };
            if self.directory.is_told(scope, holder) {
                dump.extend(table.keys().map(|&hash| Held {
                    tenant: names.tenant.clone(),
                    model: names.model.clone(),
                    adapter: names.adapter.clone(),
                    replica: holder_of.replica.id.clone(),
                    rank: holder_of.rank,
                    hash,
                }));
            }
        }
        dump.sort();
        dump
    }

    /// Storage entries by (replica, tenant).
    pub(super) fn entries_by_replica(&self) -> BTreeMap<(String, String), usize> {
        let names = self.names();
        let mut counts = BTreeMap::new();
        for (scope, holder, table) in self.index.tables() {
            if let (Some(scope), Some(&(replica, _))) =
                (names.scopes.get(&scope), names.replicas.get(&holder))
            {
                *counts.entry((replica.to_owned(), scope.tenant.clone())).or_default() += table.len();
            }
        }
        counts
    }

    fn names(&self) -> Names<'_> {
        let configured = self
            .directory
            .holders()
            .map(|(id, holder)| (id, (holder.replica.id.as_str(), holder.data_parallel_rank())));
        Names {
            scopes: self.directory.scopes().map(|(names, id)| (id, names)).collect(),
            replicas: configured
                .chain(self.directory.reporters().map(|(name, id)| (id, (name, None))))
                .collect(),
        }
    }
}

struct Names<'a> {
    scopes: HashMap<ScopeId, &'a ScopeKey>,
    replicas: HashMap<ReplicaId, (&'a str, Option<u32>)>,
}

fn sort_key(entry: &Entry) -> (&str, &str, &str, &str, &str, Option<u32>, BlockHash) {
    let Entry { tenant, model, scheme, adapter, replica, rank, hash, .. } = entry;
    (tenant, model, scheme, adapter, replica, *rank, *hash)
}
