//! The request path of one VM, without the hostcalls.
//!
//! A [`Gateway`] owns what a VM knows: the replica of the index with its directory ([`crate::replication`]), the
//! models, the requests in flight and what they are expected to bring about. [`Gateway::decide`] takes a request
//! through parse, render, tokenize, hash, look up, pick; each failure on the way is a [`Decision`] without a hint and
//! with its cause, never an error that the request would notice.
//!
//! Laziness: tokens are made and hashed only as far as they can matter. Once no replica holds the chain so far, the
//! walk goes on for at most `max_speculative_tokens`, which then count as present on the chosen replica.
//!
//! Time is milliseconds of the Unix clock, an argument everywhere.

mod decision;
mod in_flight;
mod lookup;
mod models;
mod prompt;
mod settings;
mod speculation;
#[cfg(test)]
mod tests;

pub use decision::{Decision, Destination, HeaderQuery, Outcome, Query, Reason, Ticket};
pub use models::{Digest, Model};
pub use settings::{Settings, SettingsError};

use crate::hash::{BlockHash, BlockSize, Namespace};
use crate::openai;
use crate::pick::{self, Candidate};
use crate::replica::{ReplicaId, ScopeId, Seconds};
use crate::replication::{
    Follower, PROTOCOL_VERSION, Position, Progress, ReplicationError, Route, Unroutable, proto,
};
use in_flight::{InFlight, Request};
use lookup::{Lookup, Matches};
use models::Models;
use prompt::{NoTokens, Tokens};
use prost::Message;
use speculation::Speculation;
use xxhash_rust::xxh3::xxh3_64;

/// Steps of housekeeping per call of [`Gateway::expire`].
const EXPIRE_LIMIT: usize = 4096;

/// Used for ties while no replica has announced a block size yet.
const ASSUMED_BLOCK_SIZE: BlockSize = BlockSize::SIXTEEN;

/// See the module.
#[derive(Debug)]
pub struct Gateway {
    settings: Settings,
    follower: Follower,
    models: Models,
    in_flight: InFlight,
    speculation: Speculation,
}

/// What a gateway holds: for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Storage entries in the index replica.
    pub entries: usize,
    /// Entries that did not fit or named nothing known, since the start.
    pub dropped: u64,
    /// Engine replicas in the directory.
    pub replicas: usize,
    /// Models whose artifact is loaded.
    pub models: usize,
    /// Requests that were given a hint and have not ended.
    pub in_flight: usize,
    /// The replicated state that serves; epoch 0 before the first snapshot.
    pub position: Position,
}

impl Gateway {
    /// A gateway that knows nothing yet. `settings` must be valid.
    pub fn new(settings: Settings) -> Gateway {
        Gateway {
            follower: Follower::new(settings.max_index_entries),
            settings,
            models: Models::default(),
            in_flight: InFlight::default(),
            speculation: Speculation::default(),
        }
    }

    /// The message that opens the replication stream: from where it broke off, or from the start.
    pub fn subscribe_request(&self, subscriber: &str) -> Vec<u8> {
        let Position { epoch, seq } = self.follower.position();
        let subscriber = subscriber.to_owned();
        proto::SubscribeRequest {
            protocol_version: PROTOCOL_VERSION,
            subscriber,
            models: Vec::new(),
            epoch,
            seq,
        }
        .encode_to_vec()
    }

    /// Takes a message of the replication stream; [`Gateway::work`] applies it.
    pub fn frame(&mut self, bytes: Vec<u8>) -> Result<(), ReplicationError> {
        self.follower.receive(bytes)
    }

    /// Applies up to `max_entries` entries of what was received. On an error the caller closes the stream and opens
    /// another, with backoff.
    pub fn work(&mut self, max_entries: usize, now_ms: u64) -> Result<Progress, ReplicationError> {
        let before = self.follower.position().epoch;
        let progress = self.follower.work(max_entries, seconds(now_ms));
        if self.follower.position().epoch != before {
            // Ids of another epoch mean other things.
            self.speculation.clear();
            self.in_flight.forget_replicas();
        }
        if progress == Ok(Progress::Idle) {
            self.models.retain(self.follower.directory());
        }
        progress
    }

    /// The replication stream is gone; what is held goes on serving.
    pub fn stream_closed(&mut self) {
        self.follower.disconnected();
    }

    /// The artifact to fetch next; none if all are there or one is on its way.
    pub fn wanted_artifact(&self) -> Option<Digest> {
        self.models.wanted(self.follower.directory())
    }

    /// The message that opens an artifact stream; the download counts as begun.
    pub fn fetch_request(&mut self, digest: &Digest) -> Vec<u8> {
        self.models.begin(*digest);
        proto::FetchArtifactRequest { digest: digest.to_vec() }.encode_to_vec()
    }

    /// Takes a message of the artifact stream.
    pub fn artifact_chunk(&mut self, message: &[u8]) -> Result<(), ReplicationError> {
        self.models.chunk(message)
    }

    /// The artifact stream ended, in good order if `complete`.
    pub fn artifact_end(&mut self, complete: bool) -> Result<(), ReplicationError> {
        self.models.end(complete)
    }

    /// Housekeeping, to be called every second or more often. Bounded work.
    pub fn expire(&mut self, now_ms: u64) {
        self.speculation.expire(now_ms, EXPIRE_LIMIT);
        while let Some(ticket) = self.in_flight.overdue(now_ms, EXPIRE_LIMIT) {
            self.finished(ticket, Outcome::Failed, now_ms);
        }
    }

    /// What is held.
    pub fn summary(&self) -> Summary {
        Summary {
            entries: self.follower.index().entries(),
            dropped: self.follower.dropped(),
            replicas: self.follower.directory().replica_ids().count(),
            models: self.models.count(),
            in_flight: self.in_flight.total(),
            position: self.follower.position(),
        }
    }

    /// Decides on a request by its body.
    pub fn decide(&mut self, query: &Query<'_>, now_ms: u64) -> Decision {
        self.try_decide(query, now_ms).unwrap_or_else(|decision| decision)
    }

    /// Decides on a request by its headers.
    pub fn decide_by_headers(&mut self, query: &HeaderQuery<'_>, now_ms: u64) -> Decision {
        self.try_decide_by_headers(query, now_ms).unwrap_or_else(|decision| decision)
    }

    /// A hinted request made progress or ended. Unknown tickets are ignored.
    pub fn finished(&mut self, ticket: Ticket, outcome: Outcome, now_ms: u64) {
        match outcome {
            Outcome::FirstToken => {
                let open = self.in_flight.get_mut(ticket).map(|open| (open.replica, open.speculative.take()));
                if let Some((replica, speculative)) = open {
                    self.settle(replica, speculative, now_ms);
                }
            }
            Outcome::Ended => {
                if let Some(Request { replica, speculative }) = self.in_flight.end(ticket) {
                    self.settle(replica, speculative, now_ms);
                }
            }
            Outcome::Failed => {
                if let Some(request) = self.in_flight.end(ticket) {
                    self.withdraw(request, now_ms);
                }
            }
        }
    }

    fn try_decide(&mut self, query: &Query<'_>, now_ms: u64) -> Result<Decision, Decision> {
        let no_hint = |detail| Decision::without_hint(Reason::NoHint, detail);
        let request = openai::parse(query.endpoint, query.body, query.complete)
            .map_err(|error| no_hint(error.reason()))?;
        let route = self.route(query.tenant, &request.model)?.clone();
        let matches = self.matches(&route, request, now_ms).map_err(|error| no_hint(error.label()))?;
        if matches.is_empty() {
            // Nothing can be cached of a prompt shorter than a block.
            return Err(no_hint("short_prompt"));
        }
        Ok(self.choose(&route, matches, now_ms))
    }

    fn try_decide_by_headers(&mut self, query: &HeaderQuery<'_>, now_ms: u64) -> Result<Decision, Decision> {
        let no_hint = |detail| Decision::without_hint(Reason::NoHint, detail);
        let model = match query.model {
            Some(model) => model,
            None => self
                .follower
                .directory()
                .only_model(query.tenant)
                .ok_or_else(|| no_hint("no_model_header"))?,
        };
        let route = self.route(query.tenant, model)?.clone();
        let block_size = self.block_size(&route);
        let chain = query.chain.map(|text| lookup::parse_chain(text, self.settings.max_chain_blocks));
        match (chain, query.conversation) {
            (Some(None), _) => Err(no_hint("bad_chain")),
            (Some(Some(chain)), _) => {
                let matches = self.lookup(&route, now_ms).along(chain, block_size);
                Ok(self.choose(&route, matches, now_ms))
            }
            (None, Some(conversation)) => Ok(self.pin(&route, xxh3_64(conversation), now_ms)),
            (None, None) => Err(no_hint("no_conversation")),
        }
    }

    fn matches(&self, route: &Route, request: openai::Request, now_ms: u64) -> Result<Matches, NoTokens> {
        let info = self.follower.directory().model(&route.model);
        let model = info.and_then(|info| info.artifact).and_then(|digest| self.models.get(&digest));
        let block_sizes = info.map(|info| info.block_sizes.as_slice()).unwrap_or_default();
        let namespace = match &request.cache_salt {
            Some(salt) => Namespace::empty().with_cache_salt(salt),
            None => Namespace::empty(),
        };
        let (name, cache_salt) = (request.model.clone(), request.cache_salt.clone());
        let adapter = (name != route.model).then_some(name.as_str());
        let mut source = prompt::source(request, model, now_ms)?;
        let mut tokens = Tokens::new(&mut source, model)?;
        let lookup = self.lookup(route, now_ms);
        let ahead = self.settings.max_speculative_tokens;
        let schemes = info.map(|info| info.engine_schemes.as_slice()).unwrap_or_default();
        let engines = route.engine_scopes.iter();
        let mut engines = engines.filter_map(|&(scope, at)| Some((scope, schemes.get(at)?))).peekable();
        // Blocks are expected in one scope only: that of our own chain, if there is one.
        let mut matches = match engines.next_if(|_| route.scope.is_none()) {
            Some((scope, scheme)) => {
                let hasher = scheme.chain_hasher(adapter, cache_salt.as_deref());
                lookup.engine_chain(&mut tokens, scope, scheme.block_size, hasher, ahead)?
            }
            None => lookup.over_sizes(&mut tokens, block_sizes, &namespace, ahead)?,
        };
        for (scope, scheme) in engines {
            let hasher = scheme.chain_hasher(adapter, cache_salt.as_deref());
            matches.merge(lookup.engine_chain(&mut tokens, scope, scheme.block_size, hasher, 0)?);
        }
        Ok(matches)
    }

    fn route(&self, tenant: &str, model: &str) -> Result<&Route, Decision> {
        if self.follower.position().epoch == 0 {
            return Err(Decision::without_hint(Reason::NoHint, "not_ready"));
        }
        let route =
            self.follower.directory().route(tenant, model).map_err(|unroutable| match unroutable {
                Unroutable::Tenant => Decision::without_hint(Reason::UnknownTenant, ""),
                Unroutable::Model => Decision::without_hint(Reason::UnknownModel, ""),
            })?;
        if route.replicas.is_empty() {
            return Err(Decision::without_hint(Reason::UnknownModel, ""));
        }
        Ok(route)
    }

    fn lookup(&self, route: &Route, now_ms: u64) -> Lookup<'_> {
        Lookup {
            index: self.follower.index(),
            speculation: &self.speculation,
            scope: route.scope,
            oldest: self.oldest(now_ms),
            now_ms,
        }
    }

    /// Entries seen before have aged out.
    fn oldest(&self, now_ms: u64) -> Seconds {
        self.follower.directory().ttl_s().map_or(0, |ttl| seconds(now_ms).saturating_sub(ttl))
    }

    /// Tokens per block that the model's replicas announce most.
    fn block_size(&self, route: &Route) -> BlockSize {
        let announced =
            self.follower.directory().model(&route.model).and_then(|info| info.block_sizes.first());
        announced.copied().unwrap_or(ASSUMED_BLOCK_SIZE)
    }

    fn choose(&mut self, route: &Route, matches: Matches, now_ms: u64) -> Decision {
        let block_size = matches.block_size.tokens();
        let mut candidates = self.candidates(route);
        for candidate in &mut candidates {
            candidate.matched_tokens = matches.tokens_of(candidate.replica);
        }
        pick::rank(&mut candidates, matches.tie_key(), block_size);
        let Some(best) = candidates.first().copied() else {
            return Decision::without_hint(Reason::NoHint, "no_replica");
        };
        let speculative = matches.scope.filter(|_| matches.speculate).map(|scope| {
            let matched = (best.matched_tokens / block_size) as usize;
            // What only other requests in flight promise so far, this one promises too.
            let known = matches.chain.get(..matched).unwrap_or_default();
            let promised = known
                .iter()
                .rev()
                .take_while(|&&hash| !self.is_announced(scope, best.replica, hash, now_ms))
                .count();
            let hashes = matches.chain.get(known.len() - promised..).unwrap_or_default();
            (scope, self.speculate(scope, best.replica, hashes))
        });
        let reason = if best.matched_tokens > 0 { Reason::PrefixMatch } else { Reason::AffinityHint };
        let hashed = (matches.chain.len() as u32).saturating_mul(block_size);
        self.decision(reason, &candidates, hashed, speculative, now_ms)
    }

    /// The owner of `key` among the replicas that are not loaded far above the others.
    fn pin(&mut self, route: &Route, key: u64, now_ms: u64) -> Decision {
        let mut candidates = self.candidates(route);
        let total: u32 = candidates.iter().map(|candidate| candidate.in_flight).sum();
        let limit = 2 * total / (candidates.len().max(1) as u32) + 4;
        candidates.sort_unstable_by_key(|candidate| {
            let weight = pick::rendezvous_weight(key, candidate.name_hash);
            (candidate.in_flight > limit, std::cmp::Reverse(weight))
        });
        if candidates.is_empty() {
            return Decision::without_hint(Reason::NoHint, "no_replica");
        }
        self.decision(Reason::AffinityHint, &candidates, 0, None, now_ms)
    }

    fn candidates(&self, route: &Route) -> Vec<Candidate> {
        let directory = self.follower.directory();
        let serving = route.replicas.iter().filter_map(|&id| Some((id, directory.replica(id)?)));
        serving
            .filter(|(_, info)| !info.draining)
            .map(|(replica, info)| Candidate {
                replica,
                matched_tokens: 0,
                in_flight: self.in_flight.count(replica),
                name_hash: info.name_hash,
            })
            .collect()
    }

    fn is_announced(&self, scope: ScopeId, replica: ReplicaId, hash: BlockHash, now_ms: u64) -> bool {
        self.follower.index().holders(scope, hash, self.oldest(now_ms)).any(|holder| holder == replica)
    }

    fn speculate(&mut self, scope: ScopeId, replica: ReplicaId, hashes: &[BlockHash]) -> Box<[BlockHash]> {
        let room = hashes.iter().take_while(|&&hash| self.speculation.begin(scope, hash, replica)).count();
        hashes.get(..room).unwrap_or_default().into()
    }

    fn decision(
        &mut self,
        reason: Reason,
        candidates: &[Candidate],
        hashed_tokens: u32,
        speculative: Option<(ScopeId, Box<[BlockHash]>)>,
        now_ms: u64,
    ) -> Decision {
        let best = candidates.first();
        let destinations = self.destinations(candidates);
        Decision {
            reason,
            detail: "",
            destinations,
            matched_tokens: best.map_or(0, |candidate| candidate.matched_tokens),
            hashed_tokens,
            ticket: best.and_then(|best| self.begin(Request { replica: best.replica, speculative }, now_ms)),
        }
    }

    /// The best of each address. A request names one rank, wherever it ends up: only replicas that have the best one's.
    fn destinations(&self, candidates: &[Candidate]) -> Vec<Destination> {
        let directory = self.follower.directory();
        let mut named = candidates.iter().filter_map(|candidate| directory.replica(candidate.replica));
        let rank = named.clone().next().and_then(|best| best.rank);
        let mut destinations: Vec<Destination> = Vec::new();
        while destinations.len() < self.settings.fallbacks
            && let Some(info) = named.next()
        {
            let is_new = !destinations.iter().any(|destination| destination.address == info.address);
            if is_new && (rank.is_none() || info.rank == rank) {
                let (name, address) = (info.name.clone(), info.address.clone());
                destinations.push(Destination { name, address, rank });
            }
        }
        destinations
    }

    fn begin(&mut self, request: Request, now_ms: u64) -> Option<Ticket> {
        self.in_flight.begin(request, now_ms).map_err(|request| self.withdraw(request, now_ms)).ok()
    }

    fn withdraw(&mut self, request: Request, now_ms: u64) {
        let Some((scope, hashes)) = request.speculative else { return };
        hashes.iter().for_each(|&hash| self.speculation.withdraw(scope, hash, request.replica, now_ms));
    }

    fn settle(&mut self, replica: ReplicaId, speculative: Option<(ScopeId, Box<[BlockHash]>)>, now_ms: u64) {
        let Some((scope, hashes)) = speculative else { return };
        let until = now_ms.saturating_add(u64::from(self.settings.speculative_ttl_ms));
        hashes.iter().for_each(|&hash| self.speculation.settle(scope, hash, replica, until));
    }
}

fn seconds(now_ms: u64) -> Seconds {
    Seconds::try_from(now_ms / 1000).unwrap_or(Seconds::MAX)
}
