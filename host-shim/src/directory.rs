//! The directory: holders of entries, scopes, models.
//!
//! A **holder** is one data-parallel rank of one replica, because each has a cache and an event stream of its own: what
//! one of them removes or clears never touches another's entries. Holders come and go; an id is given once in an epoch,
//! so whatever still comes under the id of a holder that has gone is known as late.
//!
//! Producers may tell of replicas that the configuration does not know: see [`reporters`]. A gateway is told of a scope
//! once a holder that it can route to has entries there that it can look up; such pairs are `told`.

mod reporters;

use crate::config::{EngineSchemeConfig, ReplicaConfig};
use crate::index::{ReplicaId, ScopeId};
use crate::models::Model;
use inference_cache_core::hash;
use inference_cache_core::hash::vllm::ExtraKeysFormat;
use inference_cache_core::replication::proto;
use reporters::Reporter;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Scopes at a time; adapters are named by engines, and nobody bounds their number.
const MAX_SCOPES: usize = 16_384;

/// One rank of a replica.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The replica.
    pub replica: Arc<ReplicaConfig>,
    /// Data-parallel rank, from 0.
    pub rank: u32,
}

/// What a scope is called. The order lets those of one (tenant, model) stand together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScopeKey {
    pub(crate) tenant: String,
    pub(crate) model: String,
    pub(crate) scheme: String,
    /// "" for the base model.
    pub(crate) adapter: String,
}

#[derive(Debug)]
struct Scope {
    id: ScopeId,
    /// Made by a producer, and nobody else uses it.
    reported: bool,
}

pub(crate) struct Directory {
    holders: BTreeMap<ReplicaId, Holder>,
    /// The newest id given.
    last_id: ReplicaId,
    models: Arc<[Model]>,
    scopes: BTreeMap<ScopeKey, Scope>,
    /// The newest id given.
    last_scope: ScopeId,
    /// What gateways hear of.
    told: BTreeSet<(ScopeId, ReplicaId)>,
    /// Replicas that only producers know, by name.
    reporters: BTreeMap<String, Reporter>,
    /// Newest block size of each holder.
    block_sizes: BTreeMap<ReplicaId, u32>,
    ttl_s: u32,
}

impl Holder {
    /// The rank, if the replica has several.
    pub fn data_parallel_rank(&self) -> Option<u32> {
        (self.replica.events.ranks > 1).then_some(self.rank)
    }

    /// Whether requests for an adapter, or with "" for the base model, may be sent to it.
    pub fn serves(&self, adapter: &str) -> bool {
        adapter.is_empty() || self.replica.adapters.iter().any(|own| own == adapter)
    }
}

impl Directory {
    pub(crate) fn new(models: Arc<[Model]>, ttl_s: u32) -> Directory {
        Directory {
            holders: BTreeMap::new(),
            last_id: 0,
            models,
            scopes: BTreeMap::new(),
            last_scope: 0,
            told: BTreeSet::new(),
            reporters: BTreeMap::new(),
            block_sizes: BTreeMap::new(),
            ttl_s,
        }
    }

    /// Adds a holder under an id that nobody had.
    pub(crate) fn enroll(&mut self, holder: Holder) -> ReplicaId {
        self.last_id += 1;
        self.holders.insert(self.last_id, holder);
        self.last_id
    }

    /// Replaces what is known of a holder; whether there is one.
    pub(crate) fn update(&mut self, id: ReplicaId, holder: Holder) -> bool {
        self.holders.get_mut(&id).map(|held| *held = holder).is_some()
    }

    /// Forgets a holder; whether there was one.
    pub(crate) fn retire(&mut self, id: ReplicaId) -> bool {
        self.block_sizes.remove(&id);
        self.told.retain(|(_, of)| *of != id);
        self.holders.remove(&id).is_some()
    }

    pub(crate) fn holder(&self, id: ReplicaId) -> Option<&Holder> {
        self.holders.get(&id)
    }

    /// By id.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (ReplicaId, &Holder)> {
        self.holders.iter().map(|(&id, holder)| (id, holder))
    }

    /// Names and ids.
    pub(crate) fn scopes(&self) -> impl Iterator<Item = (&ScopeKey, ScopeId)> {
        self.scopes.iter().map(|(names, scope)| (names, scope.id))
    }

    /// Whether gateways hear of the holder's entries in the scope.
    pub(crate) fn is_told(&self, scope: ScopeId, id: ReplicaId) -> bool {
        self.told.contains(&(scope, id))
    }

    /// The scope of a holder's adapter, and whether gateways have not heard of it. `None`: no such holder, or too many
    /// scopes.
    pub(crate) fn scope_of(&mut self, id: ReplicaId, adapter: String) -> Option<(ScopeId, bool)> {
        let replica = &self.holders.get(&id)?.replica;
        let names = ScopeKey {
            tenant: replica.tenant.clone(),
            model: replica.model.clone(),
            scheme: hash::SCHEME.to_owned(),
            adapter,
        };
        let scope = match self.scopes.get_mut(&names) {
            Some(scope) => {
                scope.reported = false;
                scope.id
            }
            None => self.add_scope(names, false)?,
        };
        Some((scope, self.tell(scope, id)))
    }

    /// Whether the block size is another than before.
    pub(crate) fn note_block_size(&mut self, id: ReplicaId, tokens: u32) -> bool {
        self.block_sizes.insert(id, tokens) != Some(tokens)
    }

    pub(crate) fn block_size(&self, id: ReplicaId) -> Option<u32> {
        self.block_sizes.get(&id).copied()
    }

    pub(crate) fn to_proto(&self) -> proto::Directory {
        let replicas = self.holders().map(|(id, holder)| proto::Replica {
            id,
            name: holder.replica.id.clone(),
            address: holder.replica.address.to_string(),
            tenant: holder.replica.tenant.clone(),
            model: holder.replica.model.clone(),
            adapters: holder.replica.adapters.clone(),
            data_parallel_rank: holder.data_parallel_rank(),
            ..proto::Replica::default()
        });
        let told = self.scopes().filter(|&(_, id)| self.is_listed(id));
        let scopes = told.map(|(ScopeKey { tenant, model, scheme, adapter }, id)| proto::Scope {
            id,
            tenant: tenant.clone(),
            model: model.clone(),
            hash_scheme: scheme.clone(),
            adapter: adapter.clone(),
        });
        let models = self.models.iter().map(|model| proto::Model {
            name: model.name.clone(),
            artifact_digest: model.digest.to_vec(),
            artifact_size: model.artifact.len() as u64,
            block_sizes: self.block_sizes_of(&model.name),
            engine_schemes: model.engine_schemes.iter().map(engine_scheme).collect(),
        });
        proto::Directory {
            replicas: replicas.collect(),
            scopes: scopes.collect(),
            models: models.collect(),
            ttl_s: self.ttl_s,
        }
    }

    fn add_scope(&mut self, names: ScopeKey, reported: bool) -> Option<ScopeId> {
        if self.scopes.len() >= MAX_SCOPES {
            return None;
        }
        self.last_scope += 1;
        self.scopes.insert(names, Scope { id: self.last_scope, reported });
        Some(self.last_scope)
    }

    /// Gateways hear of these entries from now on; whether they must hear of the scope first.
    fn tell(&mut self, scope: ScopeId, id: ReplicaId) -> bool {
        let is_listed = self.is_listed(scope);
        self.told.insert((scope, id)) && !is_listed
    }

    fn is_listed(&self, scope: ScopeId) -> bool {
        self.told.range((scope, 0)..=(scope, ReplicaId::MAX)).next().is_some()
    }

    /// Without repeats, most common first.
    fn block_sizes_of(&self, model: &str) -> Vec<u32> {
        let mut counts = BTreeMap::<u32, usize>::new();
        for (id, tokens) in &self.block_sizes {
            if self.holders.get(id).is_some_and(|holder| holder.replica.model == model) {
                *counts.entry(*tokens).or_default() += 1;
            }
        }
        let mut sizes: Vec<_> = counts.into_iter().collect();
        sizes.sort_by_key(|&(tokens, count)| (std::cmp::Reverse(count), tokens));
        sizes.into_iter().map(|(tokens, _)| tokens).collect()
    }
}

fn engine_scheme(config: &EngineSchemeConfig) -> proto::EngineScheme {
    proto::EngineScheme {
        name: config.name.clone(),
        algorithm: config.algorithm.name().to_owned(),
        seed: config.seed.clone(),
        tagged_extra_keys: config.extra_keys == ExtraKeysFormat::Tagged,
        block_size: config.block_size.tokens(),
    }
}
