//! `/metrics`: read from the writer's view and the sources' statuses at scrape time; nothing is counted twice.
//!
//! Names of the reference contract where they apply (`inferencecache_server_up`, `inferencecache_index_entries{model}`,
//! `inferencecache_index_evictions_total{algorithm,reason}`); `inferencecache_source_*` per event source,
//! `inferencecache_replica_*` per engine's metrics page, `inferencecache_producer_*` for what producers report.

use crate::ingest::SourceStatus;
use crate::producers::Counters;
use crate::reload::Reloads;
use crate::stats::Scraped;
use crate::writer::View;
use inference_cache_core::ingest::State;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// All that a scrape tells.
#[derive(Debug)]
pub(crate) struct Scrape {
    pub(crate) view: View,
    pub(crate) sources: Vec<SourceStatus>,
    pub(crate) engines: BTreeMap<(String, u32), Scraped>,
    pub(crate) scrape_failures: BTreeMap<(String, &'static str), u64>,
    pub(crate) models: Vec<String>,
    pub(crate) reloads: Arc<Reloads>,
    pub(crate) producers: Arc<Counters>,
}

/// The text of a scrape.
pub(crate) fn render(scrape: Scrape) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let encoder = &mut encoder;
        let view = &self.view;
        gauge(encoder, "server_up", "1 while the server runs", [([], 1.0)])?;
        gauge(encoder, "server_grpc_tls_enabled", "whether gRPC is served over TLS", [([], 0.0)])?;
        gauge(
            encoder,
            "index_entries",
            "distinct prefix keys",
            self.models.iter().map(|model| {
                let keys =
                    view.keys.iter().filter(|((_, of), _)| of == model).map(|(_, keys)| keys).sum::<usize>();
                ([("model", model.as_str())], keys as f64)
            }),
        )?;
        gauge(encoder, "index_storage_entries", "(prefix key, replica) pairs", [([], view.entries as f64)])?;
        counter(
            encoder,
            "index_evictions",
            "storage entries evicted",
            [([("algorithm", "LRU"), ("reason", "ttl")], view.expired)],
        )?;
        gauge(
            encoder,
            "replication_seq",
            "sequence number of the replicated state",
            [([], view.seq as f64)],
        )?;
        gauge(encoder, "replication_subscribers", "open streams", [([], view.subscribers as f64)])?;
        counter(
            encoder,
            "late_operations",
            "operations of sources that had gone, dropped",
            [([], view.late_operations)],
        )?;
        counter(
            encoder,
            "config_reloads",
            "configuration files read while running",
            [
                ([("result", "applied")], self.reloads.applied()),
                ([("result", "refused")], self.reloads.refused()),
            ],
        )?;
        self.sources(encoder)?;
        self.engines(encoder)?;
        self.producers(encoder)
    }
}

impl Scrape {
    fn sources(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let sources: Vec<_> = self.sources.iter().map(|status| (status.rank.to_string(), status)).collect();
        type Read = fn(&SourceStatus) -> u64;
        let counters: [(&str, &str, Read); 17] = [
            ("source_batches", "batches received live", |s| s.stats.batches),
            ("source_replayed_batches", "batches received by replay", |s| s.stats.replayed),
            ("source_duplicate_batches", "batches that were there already", |s| s.stats.duplicates),
            ("source_late_batches", "batches of a process that had gone", |s| s.stats.late),
            ("source_bytes", "bytes of payloads, live and by replay", |s| s.stats.bytes),
            ("source_events", "events applied", |s| s.stats.events),
            ("source_stored_blocks", "blocks announced", |s| s.stats.stored_blocks),
            ("source_removed_blocks", "copies removed", |s| s.stats.removed_blocks),
            ("source_gaps", "times that batches were missing", |s| s.stats.gaps),
            ("source_missed_batches", "batches never seen", |s| s.stats.missed_batches),
            ("source_replays", "replays asked for", |s| s.stats.replays),
            ("source_orphans", "blocks that waited for their parent", |s| s.stats.orphans),
            ("source_orphans_dropped", "of those, dropped", |s| s.stats.orphans_dropped),
            ("source_shed_messages", "messages dropped by a full queue", |s| s.shed),
            ("source_engine_hash_checks", "engine hashes recomputed", |s| s.engine_hashes.checked),
            ("source_engine_hash_mismatches", "of those, different", |s| s.engine_hashes.mismatched),
            ("source_losses", "times that the publisher was away for too long", |s| s.losses),
        ];
        for (name, help, read) in counters {
            let values = sources.iter().map(|(rank, source)| (labels(rank, source), read(source)));
            counter(encoder, name, help, values)?;
        }
        let by_reason = |pick: fn(&SourceStatus) -> &BTreeMap<&'static str, u64>| {
            sources.iter().flat_map(move |(rank, source)| {
                let [replica, rank] = labels(rank, source);
                pick(source).iter().map(move |(&reason, &count)| ([replica, rank, ("reason", reason)], count))
            })
        };
        let errors = by_reason(|source| &source.stats.decode_errors);
        counter(encoder, "source_decode_errors", "messages and events that could not be read", errors)?;
        let skipped = by_reason(|source| &source.stats.skipped);
        counter(encoder, "source_skipped_events", "events that are not indexed", skipped)?;
        let states = sources.iter().flat_map(|(rank, source)| {
            [State::Synced, State::Gap, State::Replaying, State::Degraded].map(|state| {
                let is = f64::from(u8::from(source.state == state));
                let [replica, rank] = labels(rank, source);
                ([replica, rank, ("state", state.as_str())], is)
            })
        });
        let warnings = sources.iter().flat_map(|(rank, source)| {
            let [replica, rank] = labels(rank, source);
            source.warnings.iter().map(move |&cause| ([replica, rank, ("cause", cause)], 1.0))
        });
        gauge(encoder, "source_warning", "1 while nothing can match, by cause", warnings)?;
        let reproducible = sources.iter().filter_map(|(rank, source)| {
            let [replica, rank] = labels(rank, source);
            let recipe = source.engine_hashes.recipe.map_or("none", |recipe| recipe.name());
            let is = f64::from(u8::from(source.engine_hashes.reproducible?));
            Some(([replica, rank, ("recipe", recipe)], is))
        });
        gauge(
            encoder,
            "source_engine_hash_reproducible",
            "whether the engine's own hashes can be recomputed, and how",
            reproducible,
        )?;
        gauge(encoder, "source_state", "1 for the state that the source is in", states)?;
        type ReadGauge = fn(&SourceStatus) -> Option<f64>;
        let gauges: [(&str, &str, ReadGauge); 6] = [
            ("source_connected", "whether the publisher is connected", |s| {
                Some(f64::from(u8::from(s.connected)))
            }),
            ("source_epoch", "engine processes seen", |s| Some(s.epoch as f64)),
            ("source_last_seq", "number of the last batch applied", |s| s.last_seq.map(|seq| seq as f64)),
            ("source_blocks", "distinct blocks held by the engine", |s| Some(s.blocks as f64)),
            ("source_waiting_blocks", "blocks that wait for their parent", |s| Some(s.waiting_blocks as f64)),
            ("source_lag_seconds", "from publishing to applying, last live batch", |s| s.lag_s),
        ];
        for (name, help, read) in gauges {
            let values =
                sources.iter().filter_map(|(rank, source)| Some((labels(rank, source), read(source)?)));
            gauge(encoder, name, help, values)?;
        }
        Ok(())
    }
}

impl Scrape {
    fn engines(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let engines: Vec<_> = self
            .engines
            .iter()
            .map(|((replica, rank), scraped)| (replica.as_str(), rank.to_string(), scraped))
            .collect();
        type Read = fn(&Scraped) -> Option<f64>;
        let gauges: [(&str, &str, Read); 12] = [
            ("replica_cache_usage", "fraction of the KV cache in use", |s| s.reading.cache_usage),
            ("replica_hit_rate", "cached fraction of the prompt tokens, between scrapes", |s| s.hit_rate),
            ("replica_running_requests", "requests that run", |s| s.reading.running),
            ("replica_waiting_requests", "requests that wait", |s| s.reading.waiting),
            ("replica_sleep_level", "0 awake, 1 weights offloaded, 2 all discarded", |s| {
                s.reading.sleep.map(|sleep| f64::from(sleep as u8))
            }),
            ("replica_t2_hit_tokens", "prompt tokens found in lower tiers, since the engine's start", |s| {
                s.reading.t2_hit_tokens
            }),
            ("replica_t2_query_tokens", "prompt tokens looked up there", |s| s.reading.t2_queried_tokens),
            ("replica_block_size", "tokens per block, as the engine says", |s| {
                s.reading.cache.block_size.map(f64::from)
            }),
            ("replica_blocks", "blocks of the device, as the engine says", |s| {
                s.reading.cache.blocks.map(|blocks| blocks as f64)
            }),
            ("replica_cache_memory_bytes", "memory of the KV cache, as the engine says", |s| {
                s.reading.cache.memory_bytes.map(|bytes| bytes as f64)
            }),
            ("replica_stats_age_seconds", "since the last scrape that succeeded", |s| {
                Some(s.age().as_secs_f64())
            }),
            ("replica_stats_stale", "1 if that is three intervals ago", |s| {
                Some(f64::from(u8::from(s.is_stale())))
            }),
        ];
        for (name, help, read) in gauges {
            let values = engines.iter().filter_map(|(replica, rank, scraped)| {
                Some(([("replica", *replica), ("rank", rank.as_str())], read(scraped)?))
            });
            gauge(encoder, name, help, values)?;
        }
        let failures = self
            .scrape_failures
            .iter()
            .map(|((replica, reason), &count)| ([("replica", replica.as_str()), ("reason", *reason)], count));
        counter(encoder, "replica_scrape_failures", "metrics pages that were not read", failures)
    }

    fn producers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counters = &self.producers;
        counter(encoder, "producer_updates", "updates received", [([], counters.updates())])?;
        counter(encoder, "producer_events", "events received", [([], counters.events())])?;
        let refused = counters.refused();
        let refused = refused.iter().map(|(&reason, &count)| ([("reason", reason)], count));
        counter(encoder, "producer_refused", "messages and parts of them that were left out", refused)?;
        let view = &self.view;
        gauge(
            encoder,
            "producer_entries",
            "storage entries made by producers",
            [([], view.reported as f64)],
        )?;
        gauge(
            encoder,
            "producer_replicas",
            "replicas that only producers know",
            [([], view.reporters as f64)],
        )?;
        gauge(
            encoder,
            "index_scopes",
            "(tenant, model, hash scheme, adapter) known",
            [([], view.scopes as f64)],
        )
    }
}

fn labels<'a>(rank: &'a str, source: &'a SourceStatus) -> [(&'a str, &'a str); 2] {
    [("replica", source.replica.as_str()), ("rank", rank)]
}

fn gauge<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'a str, &'a str); N], f64)>,
) -> Result<(), fmt::Error> {
    family(encoder, name, help, values.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value))))
}

fn counter<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'a str, &'a str); N], u64)>,
) -> Result<(), fmt::Error> {
    family(encoder, name, help, values.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value))))
}

fn family<'a, const N: usize, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = ([(&'a str, &'a str); N], M)>,
) -> Result<(), fmt::Error> {
    let mut values = values.peekable();
    let Some((_, first)) = values.peek() else { return Ok(()) };
    let kind = first.metric_type();
    let name = format!("inferencecache_{name}");
    if N == 0 {
        return values
            .try_for_each(|(_, value)| value.encode(encoder.encode_descriptor(&name, help, None, kind)?));
    }
    let mut metric = encoder.encode_descriptor(&name, help, None, kind)?;
    values.try_for_each(|(labels, value)| value.encode(metric.encode_family(&labels)?))
}
