//! From the file's text to values; every refusal names its field.

use super::{
    Config, ConfigError, Endpoint, Engine, EngineSchemeConfig, EventsConfig, EventsMode, IndexConfig, Listen,
    MetricsConfig, ModelConfig, ProducersConfig, ReplicaConfig, ReportMode, raw,
};
use inference_cache_core::hash::vllm::{Algorithm, DEFAULT_SEED, ExtraKeysFormat};
use inference_cache_core::hash::{self, BlockSize};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Most data-parallel ranks of a replica.
const MAX_RANKS: u32 = 1024;
/// Longest name; names stand in headers and metrics.
const MAX_NAME: usize = 256;

pub(super) fn config(raw: raw::Root) -> Result<Config, ConfigError> {
    let listen = listen(&raw.listen)?;
    let index = index(&raw.index)?;
    let mut models: Vec<ModelConfig> = Vec::new();
    let mut names = Unique::default();
    for (at, model) in raw.models.into_iter().enumerate() {
        let field = |name: &str| format!("models[{at}].{name}");
        names.add(field("name"), &model.name)?;
        if model.path.is_empty() {
            return refuse(field("path"), "must not be empty");
        }
        let engine_schemes = engine_schemes(&field("engineSchemes"), model.engine_schemes)?;
        models.push(ModelConfig { name: model.name, path: model.path.into(), engine_schemes });
    }
    let mut parser = Replicas { models: &models, ..Replicas::default() };
    let replicas = raw
        .replicas
        .into_iter()
        .enumerate()
        .map(|(at, replica)| parser.parse(at, replica))
        .collect::<Result<_, _>>()?;
    let producers = ProducersConfig {
        max_entries: raw.producers.max_entries,
        stream_idle: duration("producers.streamIdle".into(), &raw.producers.stream_idle)?,
    };
    Ok(Config { listen, index, models, replicas, producers })
}

fn engine_schemes(list: &str, raw: Vec<raw::EngineScheme>) -> Result<Vec<EngineSchemeConfig>, ConfigError> {
    let mut names = Unique::default();
    let parse = |(at, raw): (usize, raw::EngineScheme)| {
        let field = |name: &str| format!("{list}[{at}].{name}");
        names.add(field("name"), &raw.name)?;
        if raw.name == hash::SCHEME {
            return refuse(field("name"), "is the name of the index's own scheme");
        }
        let Some(algorithm) = Algorithm::named(&raw.algorithm) else {
            let problem = format!("{:?} is not sha256, sha256_cbor, xxhash or xxhash_cbor", raw.algorithm);
            return refuse(field("algorithm"), problem);
        };
        let extra_keys = match raw.extra_keys.as_str() {
            "tagged" => ExtraKeysFormat::Tagged,
            "untagged" => ExtraKeysFormat::Untagged,
            other => {
                let problem = format!("{other:?} is neither \"tagged\" nor \"untagged\"");
                return refuse(field("extraKeys"), problem);
            }
        };
        let Some(block_size) = BlockSize::new(raw.block_size) else {
            return refuse(field("blockSize"), "must be 1 to 65535");
        };
        let seed = match (raw.seed, algorithm) {
            (Some(seed), _) => seed,
            (None, Algorithm::Sha256 | Algorithm::Sha256Cbor) => DEFAULT_SEED.to_owned(),
            (None, Algorithm::Xxhash | Algorithm::XxhashCbor) => {
                return refuse(
                    field("seed"),
                    "is required: without PYTHONHASHSEED, this algorithm's is random",
                );
            }
        };
        Ok(EngineSchemeConfig { name: raw.name, algorithm, seed, extra_keys, block_size })
    };
    raw.into_iter().enumerate().map(parse).collect()
}

fn listen(raw: &raw::Listen) -> Result<Listen, ConfigError> {
    let listen = Listen {
        grpc: address("listen.grpc".into(), &raw.grpc)?,
        http: address("listen.http".into(), &raw.http)?,
        snapshot: address("listen.snapshot".into(), &raw.snapshot)?,
    };
    if !listen.snapshot.ip().is_loopback() && !raw.allow_unauthenticated {
        return refuse(
            "listen.snapshot".into(),
            "is not a loopback address and has no authentication: set listen.allowUnauthenticated to accept that",
        );
    }
    Ok(listen)
}

fn index(raw: &raw::Index) -> Result<IndexConfig, ConfigError> {
    let ttl = duration("index.ttl".into(), &raw.ttl)?;
    if ttl < Duration::from_secs(1) {
        return refuse("index.ttl".into(), "must be at least 1s");
    }
    let sweep_interval = duration("index.sweepInterval".into(), &raw.sweep_interval)?;
    if sweep_interval < Duration::from_millis(10) {
        return refuse("index.sweepInterval".into(), "must be at least 10ms");
    }
    Ok(IndexConfig { ttl, sweep_interval })
}

#[derive(Default)]
struct Replicas<'a> {
    models: &'a [ModelConfig],
    ids: Unique,
    addresses: Unique,
    endpoints: Unique,
}

impl Replicas<'_> {
    fn parse(&mut self, at: usize, raw: raw::Replica) -> Result<ReplicaConfig, ConfigError> {
        let field = |name: &str| format!("replicas[{at}].{name}");
        self.ids.add(field("id"), &raw.id)?;
        let address = address(field("address"), &raw.address)?;
        if address.port() == 0 {
            return refuse(field("address"), "port must not be 0");
        }
        self.addresses.add(field("address"), &address.to_string())?;
        if !self.models.iter().any(|model| model.name == raw.model) {
            return refuse(field("model"), format!("{:?} is not one of the models", raw.model));
        }
        check_name(field("tenant"), &raw.tenant)?;
        let mut adapters = Unique::default();
        for (nth, adapter) in raw.adapters.iter().enumerate() {
            adapters.add(field(&format!("adapters[{nth}]")), adapter)?;
            if self.models.iter().any(|model| model.name == *adapter) {
                return refuse(field(&format!("adapters[{nth}]")), "has the name of a model");
            }
        }
        let engine =
            choice(field("engine"), &raw.engine, [("vllm", Engine::Vllm), ("sglang", Engine::Sglang)])?;
        let events = self.events(&field, raw.events)?;
        let metrics = metrics(&field, address, raw.metrics)?;
        Ok(ReplicaConfig {
            id: raw.id,
            address,
            model: raw.model,
            tenant: raw.tenant,
            adapters: raw.adapters,
            engine,
            events,
            metrics,
        })
    }

    fn events(
        &mut self,
        field: &impl Fn(&str) -> String,
        raw: raw::Events,
    ) -> Result<EventsConfig, ConfigError> {
        let mode = choice(
            field("events.mode"),
            &raw.mode,
            [("connect", EventsMode::Connect), ("bind", EventsMode::Bind)],
        )?;
        if raw.discover && mode == EventsMode::Bind {
            return refuse(field("events.discover"), "is for mode connect: in mode bind the engine connects");
        }
        if !(1..=MAX_RANKS).contains(&raw.ranks) {
            return refuse(field("events.ranks"), format!("must be 1 to {MAX_RANKS}"));
        }
        let endpoint = self.endpoint(field("events.endpoint"), &raw.endpoint, raw.ranks)?;
        let replay =
            raw.replay.map(|replay| self.endpoint(field("events.replay"), &replay, raw.ranks)).transpose()?;
        let group_to = BlockSize::new(raw.group_to);
        if raw.group_to != 0 && group_to.is_none() {
            return refuse(field("events.groupTo"), "is no block size");
        }
        let report_mode = choice(
            field("events.reportMode"),
            &raw.report_mode,
            [("default", ReportMode::Default), ("full", ReportMode::Full)],
        )?;
        let lost_after = duration(field("events.lostAfter"), &raw.lost_after)?;
        Ok(EventsConfig {
            endpoint,
            mode,
            replay,
            discover: raw.discover,
            ranks: raw.ranks,
            lost_after,
            group_to,
            report_mode,
        })
    }

    /// An endpoint whose ports, one per rank, nobody else has.
    fn endpoint(&mut self, field: String, text: &str, ranks: u32) -> Result<Endpoint, ConfigError> {
        let Ok(endpoint) = text.parse::<Endpoint>() else {
            return refuse(field, format!("{text:?} is not tcp://host:port or ipc://path"));
        };
        for rank in 0..ranks {
            let Some(endpoint) = endpoint.of_rank(rank) else {
                return refuse(field, format!("has no port for rank {rank}"));
            };
            self.endpoints.add(field.clone(), &endpoint.to_string())?;
        }
        Ok(endpoint)
    }
}

fn metrics(
    field: &impl Fn(&str) -> String,
    address: SocketAddr,
    raw: raw::Metrics,
) -> Result<Option<MetricsConfig>, ConfigError> {
    let interval = duration(field("metrics.interval"), &raw.interval)?;
    if interval < Duration::from_millis(100) {
        return refuse(field("metrics.interval"), "must be at least 100ms");
    }
    let url = raw.url.unwrap_or_else(|| format!("http://{address}/metrics"));
    let parsed = reqwest::Url::parse(&url).ok();
    if !parsed.is_some_and(|parsed| parsed.scheme() == "http" && parsed.has_host()) {
        return refuse(field("metrics.url"), format!("{url:?} is not http://host:port/path"));
    }
    Ok(raw.enabled.then_some(MetricsConfig { url, interval }))
}

/// Names seen so far and where.
#[derive(Default)]
struct Unique(HashMap<String, String>);

impl Unique {
    fn add(&mut self, field: String, name: &str) -> Result<(), ConfigError> {
        check_name(field.clone(), name)?;
        match self.0.insert(name.to_owned(), field.clone()) {
            Some(first) => refuse(field, format!("{name:?} is already at {first}")),
            None => Ok(()),
        }
    }
}

fn check_name(field: String, name: &str) -> Result<(), ConfigError> {
    let fits = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(()) } else { refuse(field, "must be 1 to 256 visible ASCII characters") }
}

fn address(field: String, text: &str) -> Result<SocketAddr, ConfigError> {
    text.parse().or_else(|_| refuse(field, format!("{text:?} is not ip:port")))
}

/// One of two words.
fn choice<T>(field: String, text: &str, words: [(&str, T); 2]) -> Result<T, ConfigError> {
    let [(first, _), (second, _)] = words;
    match words.into_iter().find(|(word, _)| *word == text) {
        Some((_, value)) => Ok(value),
        None => refuse(field, format!("{text:?} is neither {first:?} nor {second:?}")),
    }
}

/// A number and a unit: `250ms`, `10s`, `30m`, `2h`.
fn duration(field: String, text: &str) -> Result<Duration, ConfigError> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis)) {
        // `ttl_s` on the wire has 32 bits.
        Some(millis) if millis > 0 && millis / 1000 <= u64::from(u32::MAX) => {
            Ok(Duration::from_millis(millis))
        }
        _ => refuse(field, format!("{text:?} is not a duration such as 250ms, 10s, 30m or 2h")),
    }
}

fn refuse<T>(field: String, problem: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Field { field, problem: problem.into() })
}
