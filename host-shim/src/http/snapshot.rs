//! `/snapshot`: the reference's shape, plus `engines`, `sources` and `replication`.
//!
//! A row of `replicas` is what is known of a replica for one tenant. Its statistics are the newest that producers
//! reported or that were scraped; what the newest does not say is filled from the other. Times are milliseconds since
//! the Unix epoch.

use crate::ingest::SourceStatus;
use crate::producers::Stats;
use crate::stats::{Board, Reported, Scraped, Sleep};
use crate::writer::{HolderView, View};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Snapshot {
    replicas: Vec<Replica>,
    tenants: Vec<Tenant>,
    total_prefixes: usize,
    hot_prefixes: usize,
    engines: Vec<Engine>,
    sources: Vec<Source>,
    replication: Replication,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Replica {
    replica_id: String,
    tenant: String,
    cache_memory_bytes: i64,
    hit_rate: f64,
    pressure: f64,
    /// Of the statistics.
    last_update: Option<u64>,
    prefix_count: usize,
    /// When events or a producer last told of it.
    last_event_at: Option<u64>,
    /// Whether there are statistics; without, the figures are 0.
    stats_reported: bool,
    /// Whether they are too old to be relied on.
    stats_stale: bool,
    t2_hit_tokens: i64,
    t2_query_tokens: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tenant {
    tenant_id: String,
    index_entries: usize,
    hit_rate: f64,
    hit_rate_reported: bool,
    memory_used: i64,
}

/// One rank of a replica, as its metrics page says.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Engine {
    replica_id: String,
    rank: u32,
    cache_usage: Option<f64>,
    hit_rate: Option<f64>,
    lifetime_hit_rate: Option<f64>,
    running_requests: Option<f64>,
    waiting_requests: Option<f64>,
    sleep: Option<&'static str>,
    block_size: Option<u32>,
    blocks: Option<u64>,
    hash_algorithm: Option<String>,
    prefix_caching: Option<bool>,
    scraped_at: Option<u64>,
    age_ms: u64,
    stale: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    replica_id: String,
    rank: u32,
    connected: bool,
    state: &'static str,
    epoch: u64,
    last_seq: Option<u64>,
    lag_seconds: Option<f64>,
    bytes: u64,
    blocks: usize,
    waiting_blocks: usize,
    gaps: u64,
    missed_batches: u64,
    late_batches: u64,
    shed_messages: u64,
    losses: u64,
    /// How the engine hashes, as far as its hashes could be recomputed.
    engine_hash_recipe: Option<&'static str>,
    engine_hash_reproducible: Option<bool>,
    engine_hash_mismatches: u64,
    /// Why it cannot help: `inferencecache_source_warning`.
    warnings: BTreeSet<&'static str>,
    decode_errors: BTreeMap<&'static str, u64>,
    /// The first error of each reason, described without its values.
    decode_error_samples: BTreeMap<&'static str, String>,
    skipped_events: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Replication {
    /// Hexadecimal: JSON numbers do not hold 64 bits.
    epoch: String,
    seq: u64,
    subscribers: usize,
    storage_entries: usize,
}

impl Snapshot {
    pub(super) fn new(view: &View, statuses: &[SourceStatus], board: &Board) -> Snapshot {
        let scraped = board.scraped();
        let replicas = Rows::new(view, statuses, board, &scraped).all();
        Snapshot {
            tenants: tenants(view, &replicas),
            replicas,
            total_prefixes: view.keys.values().sum(),
            hot_prefixes: 0,
            engines: scraped
                .iter()
                .map(|((replica, rank), scraped)| Engine::new(replica, *rank, scraped))
                .collect(),
            sources: statuses.iter().map(Source::new).collect(),
            replication: Replication {
                epoch: format!("{:016x}", view.epoch),
                seq: view.seq,
                subscribers: view.subscribers,
                storage_entries: view.entries,
            },
        }
    }
}

/// What the rows are made of.
struct Rows<'a> {
    view: &'a View,
    statuses: &'a [SourceStatus],
    /// By (replica, tenant): when it was last heard of, and the newest statistics of any model.
    reported: BTreeMap<(String, String), Reported>,
    scraped: &'a BTreeMap<(String, u32), Scraped>,
}

impl<'a> Rows<'a> {
    fn new(
        view: &'a View,
        statuses: &'a [SourceStatus],
        board: &Board,
        scraped: &'a BTreeMap<(String, u32), Scraped>,
    ) -> Rows<'a> {
        let mut reported = BTreeMap::<_, Reported>::new();
        for (subject, told) in board.reported() {
            let never = Reported { heard_at: UNIX_EPOCH, stats: None };
            let held = reported.entry((subject.replica, subject.tenant)).or_insert(never);
            held.heard_at = held.heard_at.max(told.heard_at);
            if told.stats.as_ref().map(|(_, at)| at) > held.stats.as_ref().map(|(_, at)| at) {
                held.stats = told.stats;
            }
        }
        Rows { view, statuses, reported, scraped }
    }

    /// Those of the configuration, then those that only producers know.
    fn all(&self) -> Vec<Replica> {
        // The ranks of a replica stand beside each other.
        let holders = &self.view.holders;
        let configured = holders.chunk_by(|one, other| one.holder.replica.id == other.holder.replica.id);
        let mut known = BTreeSet::new();
        let mut rows = Vec::new();
        for ranks in configured {
            let Some(replica) = ranks.first().map(|rank| &rank.holder.replica) else { continue };
            let key = (replica.id.clone(), replica.tenant.clone());
            rows.push(self.row(&key, ranks));
            known.insert(key);
        }
        let others: BTreeSet<_> = self.view.replicas.keys().chain(self.reported.keys()).collect();
        rows.extend(others.into_iter().filter(|key| !known.contains(*key)).map(|key| self.row(key, &[])));
        rows
    }

    fn row(&self, key: &(String, String), ranks: &[HolderView]) -> Replica {
        let reported = self.reported.get(key);
        let scraped = if ranks.is_empty() { None } else { Figures::scraped(self.ranks_of(&key.0)) };
        let figures = match (reported.and_then(|told| told.stats.as_ref()).map(Figures::reported), scraped) {
            (Some(one), Some(other)) if one.at > other.at => Some(one.or(&other)),
            (Some(one), Some(other)) => Some(other.or(&one)),
            (one, other) => one.or(other),
        };
        let is_of_it = |status: &&SourceStatus| ranks.iter().any(|rank| rank.id == status.id);
        let last_event =
            self.statuses.iter().filter(is_of_it).filter_map(|status| status.last_event_at).max();
        let heard = reported.map(|told| told.heard_at);
        let figure = |pick: fn(&Figures) -> Option<f64>| figures.as_ref().and_then(pick).unwrap_or(0.0);
        let count = |pick: fn(&Figures) -> Option<i64>| figures.as_ref().and_then(pick).unwrap_or(0);
        Replica {
            replica_id: key.0.clone(),
            tenant: key.1.clone(),
            cache_memory_bytes: count(|figures| figures.cache_memory_bytes),
            hit_rate: figure(|figures| figures.hit_rate),
            pressure: figure(|figures| figures.pressure),
            last_update: figures.as_ref().and_then(|figures| millis(figures.at)),
            prefix_count: self.view.replicas.get(key).copied().unwrap_or(0),
            last_event_at: last_event.max(heard).and_then(millis),
            stats_reported: figures.is_some(),
            stats_stale: figures.as_ref().is_some_and(|figures| figures.stale),
            t2_hit_tokens: count(|figures| figures.t2_hit_tokens),
            t2_query_tokens: count(|figures| figures.t2_query_tokens),
        }
    }

    fn ranks_of(&self, replica: &str) -> impl Iterator<Item = &Scraped> + Clone {
        self.scraped.iter().filter(move |((of, _), _)| of == replica).map(|(_, scraped)| scraped)
    }
}

/// Statistics of a replica.
struct Figures {
    cache_memory_bytes: Option<i64>,
    hit_rate: Option<f64>,
    pressure: Option<f64>,
    t2_hit_tokens: Option<i64>,
    t2_query_tokens: Option<i64>,
    at: SystemTime,
    stale: bool,
}

impl Figures {
    fn reported((stats, at): &(Stats, SystemTime)) -> Figures {
        Figures {
            cache_memory_bytes: Some(stats.cache_memory_bytes),
            hit_rate: Some(stats.hit_rate.into()),
            pressure: Some(stats.pressure.into()),
            t2_hit_tokens: Some(stats.t2_hit_tokens),
            t2_query_tokens: Some(stats.t2_query_tokens),
            at: *at,
            // Older ones than the TTL are not kept.
            stale: false,
        }
    }

    /// Of all ranks together: sums, the mean hit rate, and the pressure of the fullest.
    fn scraped<'a>(ranks: impl Iterator<Item = &'a Scraped> + Clone) -> Option<Figures> {
        let at = ranks.clone().map(|rank| rank.at).max()?;
        let all = |pick: fn(&Scraped) -> Option<f64>| ranks.clone().filter_map(pick).collect::<Vec<_>>();
        let sum = |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() as i64);
        let hit_rates = all(|rank| rank.hit_rate);
        Some(Figures {
            cache_memory_bytes: sum(all(|rank| rank.reading.cache.memory_bytes.map(|bytes| bytes as f64))),
            hit_rate: (!hit_rates.is_empty()).then(|| hit_rates.iter().sum::<f64>() / hit_rates.len() as f64),
            pressure: all(|rank| rank.reading.cache_usage).into_iter().reduce(f64::max),
            t2_hit_tokens: sum(all(|rank| rank.reading.t2_hit_tokens)),
            t2_query_tokens: sum(all(|rank| rank.reading.t2_queried_tokens)),
            at,
            stale: ranks.clone().any(Scraped::is_stale),
        })
    }

    /// What this does not say is taken from the other.
    fn or(self, other: &Figures) -> Figures {
        Figures {
            cache_memory_bytes: self.cache_memory_bytes.or(other.cache_memory_bytes),
            hit_rate: self.hit_rate.or(other.hit_rate),
            pressure: self.pressure.or(other.pressure),
            t2_hit_tokens: self.t2_hit_tokens.or(other.t2_hit_tokens),
            t2_query_tokens: self.t2_query_tokens.or(other.t2_query_tokens),
            ..self
        }
    }
}

/// Those of the configuration and of the index; the hit rate is the mean of the tenant's replicas that report one.
fn tenants(view: &View, replicas: &[Replica]) -> Vec<Tenant> {
    let mut keys: BTreeMap<&str, usize> =
        replicas.iter().map(|replica| (replica.tenant.as_str(), 0)).collect();
    for ((tenant, _), count) in &view.keys {
        *keys.entry(tenant).or_default() += count;
    }
    keys.into_iter()
        .map(|(tenant, index_entries)| {
            let of_it = replicas.iter().filter(|replica| replica.tenant == tenant && replica.stats_reported);
            let rates: Vec<_> = of_it.map(|replica| replica.hit_rate).collect();
            Tenant {
                tenant_id: tenant.to_owned(),
                index_entries,
                hit_rate: if rates.is_empty() { 0.0 } else { rates.iter().sum::<f64>() / rates.len() as f64 },
                hit_rate_reported: !rates.is_empty(),
                memory_used: 0,
            }
        })
        .collect()
}

impl Engine {
    fn new(replica: &str, rank: u32, scraped: &Scraped) -> Engine {
        let reading = &scraped.reading;
        Engine {
            replica_id: replica.to_owned(),
            rank,
            cache_usage: reading.cache_usage,
            hit_rate: scraped.hit_rate,
            lifetime_hit_rate: reading.lifetime_hit_rate(),
            running_requests: reading.running,
            waiting_requests: reading.waiting,
            sleep: reading.sleep.map(Sleep::as_str),
            block_size: reading.cache.block_size,
            blocks: reading.cache.blocks,
            hash_algorithm: reading.cache.hash_algorithm.clone(),
            prefix_caching: reading.cache.prefix_caching,
            scraped_at: millis(scraped.at),
            age_ms: u64::try_from(scraped.age().as_millis()).unwrap_or(u64::MAX),
            stale: scraped.is_stale(),
        }
    }
}

impl Source {
    fn new(status: &SourceStatus) -> Source {
        Source {
            replica_id: status.replica.clone(),
            rank: status.rank,
            connected: status.connected,
            state: status.state.as_str(),
            epoch: status.epoch,
            last_seq: status.last_seq,
            lag_seconds: status.lag_s,
            bytes: status.stats.bytes,
            blocks: status.blocks,
            waiting_blocks: status.waiting_blocks,
            gaps: status.stats.gaps,
            missed_batches: status.stats.missed_batches,
            late_batches: status.stats.late,
            shed_messages: status.shed,
            losses: status.losses,
            engine_hash_recipe: status.engine_hashes.recipe.map(|recipe| recipe.name()),
            engine_hash_reproducible: status.engine_hashes.reproducible,
            engine_hash_mismatches: status.engine_hashes.mismatched,
            warnings: status.warnings.clone(),
            decode_errors: status.stats.decode_errors.clone(),
            decode_error_samples: status.stats.samples.clone(),
            skipped_events: status.stats.skipped.clone(),
        }
    }
}

fn millis(at: SystemTime) -> Option<u64> {
    u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}
