//! The directory: replicas, scopes and models, and the routes that follow from them.
//!
//! A route answers (tenant, requested model name): which scope to look in, with which block sizes and tokenizer, and
//! which replicas may take the request. Routes are computed once per directory, so that a request costs two map
//! look-ups. Entries of the wire that cannot be used (an address that is not `ip:port`, a name that cannot stand in a
//! header, id 0, an unknown block size) are left out and counted in [`Directory::refused`].

use super::{EngineScheme, proto};
use crate::hash::{self, BlockSize};
use crate::pick;
use crate::replica::{ReplicaId, ScopeId};
use hashbrown::HashMap;
use std::net::SocketAddr;

const MAX_NAME: usize = 256;

/// What a gateway knows besides the entries.
#[derive(Debug, Default)]
pub struct Directory {
    replicas: HashMap<ReplicaId, ReplicaInfo>,
    models: HashMap<String, ModelInfo>,
    scopes: HashMap<ScopeId, ()>,
    /// tenant -> requested model name -> route
    routes: HashMap<String, HashMap<String, Route>>,
    ttl_s: u32,
    refused: usize,
}

/// An engine replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// For people, metrics and rendezvous hashing: visible ASCII, 1 to 256 bytes.
    pub name: String,
    /// `ip:port`.
    pub address: String,
    /// Which data-parallel rank of `address` this is; every rank is a replica of its own, of the same name. `None`: it has
    /// one rank.
    pub rank: Option<u32>,
    /// [`pick::name_hash`] of the name and the rank.
    pub name_hash: u64,
    /// Gets nothing new.
    pub draining: bool,
}

/// A served model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// SHA-256 of its artifact, if text can be tokenized in the gateway.
    pub artifact: Option<[u8; 32]>,
    /// Bytes of the artifact.
    pub artifact_size: u64,
    /// Tokens per block that its replicas announce, most common first; empty before the first event.
    pub block_sizes: Vec<BlockSize>,
    /// Schemes in which its engines' hashes may be reported.
    pub engine_schemes: Vec<EngineScheme>,
}

/// Where requests of one tenant for one model name may go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The base model.
    pub model: String,
    /// The scope of its block hashes, if anybody announced any.
    pub scope: Option<ScopeId>,
    /// Scopes of the engines' own hashes, each with the index of its scheme in [`ModelInfo::engine_schemes`].
    pub engine_scopes: Vec<(ScopeId, usize)>,
    /// Replicas that serve it, in order of their ids, draining ones included.
    pub replicas: Vec<ReplicaId>,
}

/// Why there is no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unroutable {
    /// Nobody serves the tenant.
    Tenant,
    /// Nobody serves the model for this tenant.
    Model,
}

impl Directory {
    /// Reads a directory from the wire.
    pub fn from_proto(wire: &proto::Directory) -> Directory {
        let mut directory = Directory { ttl_s: wire.ttl_s, ..Directory::default() };
        for model in &wire.models {
            directory.add_model(model);
        }
        for replica in &wire.replicas {
            directory.add_replica(replica);
        }
        for scope in &wire.scopes {
            directory.add_scope(scope);
        }
        for name_to_route in directory.routes.values_mut() {
            name_to_route.values_mut().for_each(|route| route.replicas.sort_unstable());
        }
        directory
    }

    /// The route of a request.
    pub fn route(&self, tenant: &str, model: &str) -> Result<&Route, Unroutable> {
        self.routes.get(tenant).ok_or(Unroutable::Tenant)?.get(model).ok_or(Unroutable::Model)
    }

    /// The tenant's only model, if it has just one.
    pub fn only_model(&self, tenant: &str) -> Option<&str> {
        let mut models = self.routes.get(tenant)?.keys();
        let first = models.next()?;
        models.next().is_none().then_some(first)
    }

    /// The replica with this id.
    pub fn replica(&self, id: ReplicaId) -> Option<&ReplicaInfo> {
        self.replicas.get(&id)
    }

    /// Ids of all replicas.
    pub fn replica_ids(&self) -> impl Iterator<Item = ReplicaId> {
        self.replicas.keys().copied()
    }

    /// The model of this (base) name.
    pub fn model(&self, name: &str) -> Option<&ModelInfo> {
        self.models.get(name)
    }

    /// Every model.
    pub fn models(&self) -> impl Iterator<Item = &ModelInfo> {
        self.models.values()
    }

    /// Whether the scope is known.
    pub fn has_scope(&self, id: ScopeId) -> bool {
        self.scopes.contains_key(&id)
    }

    /// Seconds after which an entry no longer counts; `None` for never.
    pub fn ttl_s(&self) -> Option<u32> {
        (self.ttl_s > 0).then_some(self.ttl_s)
    }

    /// Entries of the wire that could not be used.
    pub fn refused(&self) -> usize {
        self.refused
    }

    fn add_model(&mut self, wire: &proto::Model) {
        let artifact = wire.artifact_digest.as_slice().try_into().ok();
        if wire.name.is_empty() || (artifact.is_none() && !wire.artifact_digest.is_empty()) {
            self.refused += 1;
            return;
        }
        let block_sizes = wire.block_sizes.iter().filter_map(|&tokens| BlockSize::new(tokens)).collect();
        let engine_schemes: Vec<_> =
            wire.engine_schemes.iter().filter_map(EngineScheme::from_proto).collect();
        self.refused += wire.engine_schemes.len() - engine_schemes.len();
        let info = ModelInfo { artifact, artifact_size: wire.artifact_size, block_sizes, engine_schemes };
        self.models.insert(wire.name.clone(), info);
    }

    fn add_replica(&mut self, wire: &proto::Replica) {
        let id = ReplicaId(wire.id);
        let named =
            (1..=MAX_NAME).contains(&wire.name.len()) && wire.name.bytes().all(|b| b.is_ascii_graphic());
        if wire.id == 0 || !named || wire.address.parse::<SocketAddr>().is_err() {
            self.refused += 1;
            return;
        }
        let info = ReplicaInfo {
            name: wire.name.clone(),
            address: wire.address.clone(),
            rank: wire.data_parallel_rank,
            name_hash: match wire.data_parallel_rank {
                None => pick::name_hash(&wire.name),
                Some(rank) => pick::name_hash(&format!("{}#{rank}", wire.name)),
            },
            draining: wire.draining,
        };
        if self.replicas.insert(id, info).is_some() {
            self.refused += 1;
            return;
        }
        for name in std::iter::once(&wire.model).chain(&wire.adapters) {
            self.route_mut(&wire.tenant, name, &wire.model).replicas.push(id);
        }
    }

    fn add_scope(&mut self, wire: &proto::Scope) {
        let id = ScopeId(wire.id);
        if wire.id == 0 {
            self.refused += 1;
            return;
        }
        self.scopes.insert(id, ());
        let name = if wire.adapter.is_empty() { &wire.model } else { &wire.adapter };
        if wire.hash_scheme == hash::SCHEME {
            self.route_mut(&wire.tenant, name, &wire.model).scope = Some(id);
            return;
        }
        let schemes = self.models.get(&wire.model).map(|info| info.engine_schemes.as_slice());
        let scheme = schemes.unwrap_or_default().iter().position(|scheme| {
            scheme.name == wire.hash_scheme && (wire.adapter.is_empty() || scheme.knows_adapters())
        });
        if let Some(scheme) = scheme {
            self.route_mut(&wire.tenant, name, &wire.model).engine_scopes.push((id, scheme));
        }
    }

    fn route_mut(&mut self, tenant: &str, name: &str, model: &str) -> &mut Route {
        let names = self.routes.entry_ref(tenant).or_default();
        let route = names.entry_ref(name).or_default();
        if route.model.is_empty() {
            route.model = model.to_owned();
        }
        route
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn replica(id: u32, name: &str, address: &str, tenant: &str, adapters: &[&str]) -> proto::Replica {
        proto::Replica {
            id,
            name: name.into(),
            address: address.into(),
            tenant: tenant.into(),
            model: "base".into(),
            adapters: adapters.iter().map(|&name| name.into()).collect(),
            ..Default::default()
        }
    }

    fn scope(id: u32, tenant: &str, hash_scheme: &str, adapter: &str) -> proto::Scope {
        proto::Scope {
            id,
            tenant: tenant.into(),
            model: "base".into(),
            hash_scheme: hash_scheme.into(),
            adapter: adapter.into(),
        }
    }

    fn directory() -> Directory {
        Directory::from_proto(&proto::Directory {
            replicas: vec![
                replica(2, "b", "127.0.0.1:2", "t", &["lora"]),
                replica(1, "a", "127.0.0.1:1", "t", &[]),
                replica(3, "c", "[::1]:3", "other", &[]),
                replica(4, "d", "localhost:4", "t", &[]),
                replica(0, "e", "127.0.0.1:5", "t", &[]),
                replica(6, "x\r\ny", "127.0.0.1:6", "t", &[]),
            ],
            scopes: vec![
                scope(1, "t", hash::SCHEME, ""),
                scope(2, "t", hash::SCHEME, "lora"),
                scope(3, "t", "vllm", ""),
            ],
            models: vec![proto::Model {
                name: "base".into(),
                block_sizes: vec![16, 0, 1 << 20],
                ..Default::default()
            }],
            ttl_s: 60,
        })
    }

    #[test]
    fn routes_by_tenant_model_and_adapter() {
        let directory = directory();
        let base = directory.route("t", "base").unwrap();
        assert_eq!(
            (base.scope, base.replicas.as_slice()),
            (Some(ScopeId(1)), [ReplicaId(1), ReplicaId(2)].as_slice())
        );
        let lora = directory.route("t", "lora").unwrap();
        assert_eq!((lora.model.as_str(), lora.scope), ("base", Some(ScopeId(2))));
        assert_eq!(lora.replicas, [ReplicaId(2)]);
        assert_eq!(directory.route("other", "base").unwrap().scope, None);
        assert_eq!(directory.route("nobody", "base"), Err(Unroutable::Tenant));
        assert_eq!(directory.route("other", "lora"), Err(Unroutable::Model));
        assert_eq!((directory.only_model("other"), directory.only_model("t")), (Some("base"), None));
    }

    #[test]
    fn scopes_of_engine_schemes_are_found_where_they_can_be_computed() {
        let scheme = |name: &str, algorithm: &str, tagged_extra_keys| proto::EngineScheme {
            name: name.into(),
            algorithm: algorithm.into(),
            seed: "0".into(),
            tagged_extra_keys,
            block_size: 16,
        };
        let schemes = vec![
            scheme(hash::SCHEME, "sha256_cbor", false),
            scheme("unknown", "md5", false),
            scheme("old", "sha256_cbor", false),
            scheme("new", "sha256", true),
        ];
        let directory = Directory::from_proto(&proto::Directory {
            replicas: vec![replica(1, "a", "127.0.0.1:1", "t", &["lora"])],
            scopes: vec![
                scope(1, "t", "new", ""),
                scope(2, "t", "old", ""),
                scope(3, "t", "unknown", ""),
                scope(4, "t", "new", "lora"),
                scope(5, "t", "old", "lora"),
            ],
            models: vec![proto::Model { name: "base".into(), engine_schemes: schemes, ..Default::default() }],
            ttl_s: 0,
        });
        assert_eq!(directory.refused(), 2);
        let scopes = |name| directory.route("t", name).unwrap().engine_scopes.clone();
        assert_eq!(scopes("base"), [(ScopeId(1), 1), (ScopeId(2), 0)]);
        assert_eq!(scopes("lora"), [(ScopeId(5), 0)]);
    }

    #[test]
    fn what_cannot_be_used_is_left_out() {
        let directory = directory();
        assert_eq!(directory.refused(), 3);
        assert_eq!(directory.replica_ids().count(), 3);
        assert_eq!(directory.model("base").unwrap().block_sizes, [BlockSize::new(16).unwrap()]);
    }
}
