//! Producers over real gRPC: every rule of the contract, at the index, at subscribers, in `/snapshot`.

mod harness;

use harness::{Follower, PATIENCE, client, request, until};
use host_shim::producers::proto::cache_event::Type;
use host_shim::producers::proto::inference_cache_client::InferenceCacheClient;
use host_shim::producers::proto::{
    Ack, CacheEvent, CacheStateUpdate, CacheTier, LookupRouteRequest, PrefixEntry, ReplicaStats,
};
use host_shim::producers::{Subject, limits};
use host_shim::writer::Entry;
use host_shim::{Config, HostShim};
use inference_cache_core::ingest::Tier;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tonic::Code;
use tonic::transport::Channel;

type Client = InferenceCacheClient<Channel>;

const OWN: &str = "xxh3-1337";

/// A service whose configuration knows `engine-0`, and `engine-dp` of two ranks; nothing listens there.
async fn start(more: &str) -> (HostShim, Client) {
    start_with("", more).await
}

/// The same; `model` are further fields of the model.
async fn start_with(model: &str, more: &str) -> (HostShim, Client) {
    let config = harness::config("{ endpoint: tcp://127.0.0.1:9 }");
    let yaml = format!(
        "listen: {{ grpc: 127.0.0.1:0, http: 127.0.0.1:0, snapshot: 127.0.0.1:0 }}\n\
         models: [{{ name: tiny, path: {}{model} }}]\n\
         replicas:\n\
         - {{ id: engine-0, address: 127.0.0.1:8000, model: tiny, adapters: [ad-a], metrics: {{ enabled: false }},\n\
              events: {{ endpoint: \"tcp://127.0.0.1:9\" }} }}\n\
         - {{ id: engine-dp, address: 127.0.0.1:8001, model: tiny, metrics: {{ enabled: false }},\n\
              events: {{ endpoint: \"tcp://127.0.0.1:11\", ranks: 2 }} }}\n\
         {more}\n",
        config.models[0].path.display()
    );
    let shim = HostShim::start(Config::from_yaml(&yaml).unwrap()).await.unwrap();
    let client = InferenceCacheClient::connect(format!("http://{}", shim.grpc_addr())).await.unwrap();
    (shim, client)
}

async fn report(client: &mut Client, updates: Vec<CacheStateUpdate>) -> Ack {
    client.report_cache_state(tokio_stream::iter(updates)).await.unwrap().into_inner()
}

async fn publish(client: &mut Client, event: CacheEvent) -> Ack {
    client.publish_event(event).await.unwrap().into_inner()
}

fn accepted(reason: &str) -> Ack {
    Ack { accepted: true, reason_code: reason.into() }
}

fn update(replica: &str, scheme: &str, prefixes: Vec<PrefixEntry>) -> CacheStateUpdate {
    CacheStateUpdate {
        replica_id: replica.into(),
        model_id: "tiny".into(),
        tenant_id: "default".into(),
        hash_scheme: scheme.into(),
        prefixes,
        ..Default::default()
    }
}

fn event(kind: Type, replica: &str, hash: u64, adapter: &str) -> CacheEvent {
    CacheEvent {
        r#type: kind.into(),
        replica_id: replica.into(),
        model_id: "tiny".into(),
        tenant_id: "default".into(),
        prefix_hash: if hash == 0 { Vec::new() } else { hash.to_be_bytes().to_vec() },
        adapter_id: adapter.into(),
        ..Default::default()
    }
}

fn single(hash: u64, tokens: i32) -> PrefixEntry {
    PrefixEntry { prefix_hash: hash.to_be_bytes().to_vec(), token_count: tokens, ..Default::default() }
}

fn chain(hashes: &[u64], counts: &[i32]) -> PrefixEntry {
    PrefixEntry {
        block_hashes: hashes.iter().map(|hash| hash.to_be_bytes().to_vec()).collect(),
        block_token_counts: counts.to_vec(),
        ..Default::default()
    }
}

fn adapted(adapter: &str, entry: PrefixEntry) -> PrefixEntry {
    PrefixEntry { adapter_id: adapter.into(), ..entry }
}

/// (replica, scheme, adapter, hash, tokens) of everything.
async fn held(shim: &HostShim) -> Vec<(String, String, String, u64, u32)> {
    let entries = shim.entries().await.unwrap();
    entries.into_iter().map(|e| (e.replica, e.scheme, e.adapter, e.hash.0, e.tokens)).collect()
}

fn row(
    replica: &str,
    scheme: &str,
    adapter: &str,
    hash: u64,
    tokens: u32,
) -> (String, String, String, u64, u32) {
    (replica.into(), scheme.into(), adapter.into(), hash, tokens)
}

async fn snapshot(shim: &HostShim) -> serde_json::Value {
    reqwest::get(format!("http://{}/snapshot", shim.snapshot_addr())).await.unwrap().json().await.unwrap()
}

async fn metrics(shim: &HostShim) -> String {
    reqwest::get(format!("http://{}/metrics", shim.http_addr())).await.unwrap().text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_add_and_absence_does_not_remove() {
    let (shim, mut client) = start("").await;
    let both = PrefixEntry {
        prefix_hash: 9_u64.to_be_bytes().to_vec(),
        token_count: 40,
        ..chain(&[1, 2], &[16, 24])
    };
    let first = update("r", "vllm", vec![both, adapted("ad", single(3, 8))]);
    assert_eq!(report(&mut client, vec![first.clone(), first]).await, accepted(""));
    let all = [
        row("r", "vllm", "", 1, 16),
        row("r", "vllm", "", 2, 40),
        row("r", "vllm", "", 9, 40),
        row("r", "vllm", "ad", 3, 8),
    ];
    assert_eq!(held(&shim).await, all);
    // Another update; and the same hash in another scheme is another entry.
    report(&mut client, vec![update("r", "other", vec![single(1, 5)]), update("r", "vllm", vec![])]).await;
    assert_eq!(held(&shim).await, [&[row("r", "other", "", 1, 5)], &all[..]].concat());
    // The last word wins.
    let moved = PrefixEntry { tier: CacheTier::T2.into(), ..single(1, 17) };
    report(&mut client, vec![update("r", "vllm", vec![moved])]).await;
    let entries = shim.entries().await.unwrap();
    let one = entries.iter().find(|entry| entry.scheme == "vllm" && entry.hash.0 == 1).unwrap();
    assert_eq!((one.tier, one.tokens), (Tier::T2, 17));
    report(&mut client, vec![update("r", "vllm", vec![single(1, 17)])]).await;
    assert_eq!(shim.entries().await.unwrap().iter().filter(|entry| entry.tier == Tier::T2).count(), 0);
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_a_rule_is_left_out_named_and_counted() {
    let (shim, mut client) = start("").await;
    let no_scheme = update("r", "", vec![single(1, 16)]);
    assert_eq!(report(&mut client, vec![no_scheme]).await, accepted("no_hash_scheme"));
    let broken = PrefixEntry { prefix_hash: vec![1; 8], ..chain(&[1, 2], &[16]) };
    assert_eq!(
        report(&mut client, vec![update("r", "s", vec![broken, single(2, 16)])]).await,
        accepted("chain_length")
    );
    assert_eq!(held(&shim).await, [row("r", "s", "", 2, 16)]);
    let wide = PrefixEntry { prefix_hash: vec![1; 32], ..Default::default() };
    assert_eq!(report(&mut client, vec![update("r", OWN, vec![wide])]).await, accepted("hash_length"));
    let nameless = Ack { accepted: false, reason_code: "replica_name".into() };
    assert_eq!(report(&mut client, vec![update("", "s", vec![single(3, 16)])]).await, nameless);
    let unspecified = event(Type::Unspecified, "r", 2, "");
    assert_eq!(
        publish(&mut client, unspecified).await,
        Ack { accepted: false, reason_code: "event_type".into() }
    );
    let text = metrics(&shim).await;
    for reason in ["no_hash_scheme", "chain_length", "hash_length", "replica_name", "event_type"] {
        assert!(
            text.contains(&format!("inferencecache_producer_refused_total{{reason=\"{reason}\"}} 1\n")),
            "{text}"
        );
    }
    assert!(text.contains("inferencecache_producer_updates_total 4\n"), "{text}");
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_evict_clear_and_keep_alive() {
    let (shim, mut client) = start("").await;
    let prefixes =
        || vec![single(1, 16), single(2, 32), adapted("ad", single(1, 16)), adapted("ad-b", single(1, 16))];
    let stats =
        ReplicaStats { hit_rate: 0.5, pressure: f32::NAN, cache_memory_bytes: 7, ..Default::default() };
    let with_stats = CacheStateUpdate { stats: Some(stats), ..update("r", "s", prefixes()) };
    report(&mut client, vec![with_stats, update("r", "s2", prefixes()), update("r2", "s", prefixes())]).await;
    assert_eq!(held(&shim).await.len(), 12);
    // With an adapter only there, in every scheme.
    assert_eq!(publish(&mut client, event(Type::PrefixEvicted, "r", 1, "ad")).await, accepted(""));
    let count = |rows: &[(String, String, String, u64, u32)], hash, adapter: &str| {
        rows.iter().filter(|row| row.0 == "r" && row.2 == adapter && row.3 == hash).count()
    };
    let rows = held(&shim).await;
    assert_eq!((rows.len(), count(&rows, 1, "ad"), count(&rows, 1, "")), (10, 0, 2));
    // Without one in all.
    publish(&mut client, event(Type::PrefixEvicted, "r", 1, "")).await;
    let rows = held(&shim).await;
    assert_eq!((rows.len(), count(&rows, 1, ""), count(&rows, 1, "ad-b"), count(&rows, 2, "")), (6, 0, 0, 2));
    // No operations.
    publish(&mut client, event(Type::PrefixAdded, "r", 1, "")).await;
    publish(&mut client, event(Type::PrefixAdded, "r9", 1, "")).await;
    publish(&mut client, event(Type::PrefixEvicted, "r9", 1, "")).await;
    assert_eq!(held(&shim).await, rows);
    // Liveness, and not the age of the statistics.
    let subject = Subject { replica: "r".into(), tenant: "default".into(), model: "tiny".into() };
    let before = shim.stats().reported()[&subject].clone();
    publish(&mut client, event(Type::ReplicaUpdated, "r", 0, "")).await;
    let after = shim.stats().reported()[&subject].clone();
    assert!(after.heard_at > before.heard_at);
    assert_eq!(after.stats, before.stats);
    assert_eq!(after.stats.map(|(stats, _)| (stats.hit_rate, stats.pressure)), Some((0.5, 0.0)));
    // Another tenant's clear does not touch this one's.
    let elsewhere = CacheEvent { tenant_id: "other".into(), ..event(Type::AllCleared, "r", 0, "") };
    publish(&mut client, elsewhere).await;
    assert_eq!(held(&shim).await, rows);
    publish(&mut client, event(Type::AllCleared, "r", 0, "")).await;
    assert_eq!(held(&shim).await.iter().filter(|row| row.0 == "r").count(), 0);
    assert_eq!(held(&shim).await.len(), 4);
    assert_eq!(shim.stats().reported()[&subject].stats, None);
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_hear_of_what_they_can_route_to_and_compute() {
    let (shim, mut client) = start("").await;
    let mut stream = client_stream(&shim).await;
    let mut follower = Follower::default();
    let own =
        |replica: &str| update(replica, OWN, vec![chain(&[1, 2], &[16, 16]), adapted("ad-a", single(3, 16))]);
    let elsewhere = CacheStateUpdate { tenant_id: "other".into(), ..own("engine-0") };
    let updates = vec![
        own("engine-0"),
        elsewhere,
        own("engine-dp"),
        own("unknown"),
        update("engine-0", "opaque", vec![single(4, 16)]),
    ];
    assert_eq!(report(&mut client, updates).await, accepted(""));
    assert_eq!(shim.entries().await.unwrap().len(), 13);
    follower.catch_up(&mut stream, &shim).await;
    let known: Vec<_> =
        follower.dump().into_iter().map(|held| (held.replica, held.adapter, held.hash.0)).collect();
    let expected =
        [("", 1), ("", 2), ("ad-a", 3)].map(|(adapter, hash)| ("engine-0".into(), adapter.into(), hash));
    assert_eq!(known, expected);
    assert_eq!(follower.directory.models[0].block_sizes, [16]);
    assert_eq!(follower.directory.scopes.len(), 2);
    publish(&mut client, event(Type::PrefixEvicted, "engine-0", 1, "")).await;
    follower.catch_up(&mut stream, &shim).await;
    assert_eq!(follower.dump().len(), 2);
    // A new subscriber is told the same.
    let mut late = Follower::default();
    late.catch_up(&mut client_stream(&shim).await, &shim).await;
    assert_eq!(late.dump(), follower.dump());
    publish(&mut client, event(Type::AllCleared, "engine-0", 0, "")).await;
    follower.catch_up(&mut stream, &shim).await;
    assert_eq!(follower.dump(), []);
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_hear_of_the_schemes_that_a_model_declares() {
    let scheme =
        ", engineSchemes: [{ name: vllm, algorithm: sha256_cbor, extraKeys: tagged, blockSize: 16 }]";
    let (shim, mut client) = start_with(scheme, "").await;
    let mut stream = client_stream(&shim).await;
    let mut follower = Follower::default();
    let updates = vec![
        update("engine-0", "vllm", vec![chain(&[1, 2], &[16, 16])]),
        update("engine-0", "opaque", vec![single(3, 16)]),
        update("engine-0", OWN, vec![single(4, 16)]),
    ];
    assert_eq!(report(&mut client, updates).await, accepted(""));
    follower.catch_up(&mut stream, &shim).await;
    let scope_of = |scheme: &str| {
        let found = follower.directory.scopes.iter().find(|scope| scope.hash_scheme == scheme);
        found.map(|scope| scope.id)
    };
    let mut held: Vec<(u32, u64)> = follower.entries.iter().map(|&(scope, _, hash)| (scope, hash)).collect();
    held.sort_unstable();
    let (vllm, own) = (scope_of("vllm").unwrap(), scope_of(OWN).unwrap());
    let mut expected = vec![(vllm, 1), (vllm, 2), (own, 4)];
    expected.sort_unstable();
    assert_eq!((held, scope_of("opaque")), (expected, None));
    shim.shutdown().await;
}

async fn client_stream(shim: &HostShim) -> tonic::Streaming<inference_cache_core::replication::proto::Frame> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let name = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    client(shim).await.subscribe(request(&format!("vm-{name}"))).await.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_snapshot_has_what_is_reported() {
    let (shim, mut client) = start("").await;
    let stats = ReplicaStats {
        hit_rate: 0.5,
        pressure: 0.25,
        cache_memory_bytes: 1 << 40,
        t2_hit_tokens: 3,
        t2_query_tokens: 4,
        ..Default::default()
    };
    let updates = vec![
        CacheStateUpdate { stats: Some(stats.clone()), ..update("engine-0", "s", vec![single(1, 16)]) },
        CacheStateUpdate { tenant_id: "t2".into(), stats: Some(stats), ..update("r", "", vec![]) },
        CacheStateUpdate { tenant_id: "t2".into(), ..update("r", "s", vec![single(1, 16), single(2, 16)]) },
    ];
    report(&mut client, updates).await;
    let snapshot = snapshot(&shim).await;
    let rows: Vec<_> = snapshot["replicas"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let number = |name: &str| row[name].as_f64().unwrap();
            let stats =
                [number("hitRate"), number("pressure"), number("t2HitTokens"), number("t2QueryTokens")];
            let names = [row["replicaId"].as_str().unwrap(), row["tenant"].as_str().unwrap()];
            (names, row["prefixCount"].as_u64().unwrap(), row["statsReported"].as_bool().unwrap(), stats)
        })
        .collect();
    assert_eq!(
        rows,
        [
            (["engine-0", "default"], 1, true, [0.5, 0.25, 3.0, 4.0]),
            (["engine-dp", "default"], 0, false, [0.0; 4]),
            (["r", "t2"], 2, true, [0.5, 0.25, 3.0, 4.0]),
        ]
    );
    assert_eq!(snapshot["totalPrefixes"], 3);
    let tenants: Vec<_> = snapshot["tenants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["tenantId"].as_str().unwrap(),
                row["indexEntries"].as_u64().unwrap(),
                row["hitRate"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(tenants, [("default", 1, 0.5), ("t2", 2, 0.5)]);
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_bounded_whoever_reports() {
    let (shim, mut client) = start("producers: { maxEntries: 10 }").await;
    let many: Vec<_> = (1..=20).map(|hash| single(hash, 16)).collect();
    assert_eq!(report(&mut client, vec![update("r", "s", many)]).await, accepted("too_many_entries"));
    assert_eq!(shim.entries().await.unwrap().len(), 10);
    let replicas =
        (0..=limits::REPLICAS).map(|n| update(&format!("r{n}"), "s", vec![single(1, 16)])).collect();
    // The entries are used up, the replicas are counted all the same.
    assert_eq!(report(&mut client, replicas).await, accepted("too_many_entries"));
    let text = metrics(&shim).await;
    assert!(
        text.contains("inferencecache_producer_refused_total{reason=\"too_many_replicas\"} 2\n"),
        "{text}"
    );
    let subjects = (0..=limits::SUBJECTS)
        .map(|n| CacheStateUpdate { tenant_id: format!("t{n}"), ..update("r", "s", vec![]) })
        .collect();
    let refused = report(&mut client, subjects).await;
    assert_eq!(refused, Ack { accepted: false, reason_code: "too_many_subjects".into() });
    assert_eq!(shim.stats().reported().len(), limits::SUBJECTS);
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_messages_end_their_stream_and_nothing_else() {
    let (shim, mut client) = start("producers: { streamIdle: 300ms }").await;
    let unfolding = update("r", "s", vec![PrefixEntry::default(); limits::ENTRIES + 1]);
    let status = client.report_cache_state(tokio_stream::iter([unfolding])).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let large = CacheStateUpdate { replica_id: "x".repeat(limits::MESSAGE_BYTES), ..Default::default() };
    let status = client.report_cache_state(tokio_stream::iter([large])).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let silent = client.report_cache_state(tokio_stream::pending()).await.unwrap_err();
    assert_eq!(silent.code(), Code::DeadlineExceeded, "{silent}");
    assert_eq!(raw(&shim, b"\x0a\xff\xff\xff\xff\x0f").await, Some("3".into()), "INVALID_ARGUMENT");
    // Not a replica of the first release's fields only, as bytes.
    assert_eq!(
        raw(&shim, b"\x0a\x01o\x12\x01m\x1a\x01t\x22\x01s\x32\x0c\x0a\x08\0\0\0\0\0\0\0\x05\x10\x20").await,
        None
    );
    assert_eq!(held(&shim).await, [row("o", "s", "", 5, 32)]);
    let status = client.lookup_route(LookupRouteRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(report(&mut client, vec![update("r", "s", vec![single(1, 16)])]).await, accepted(""));
    shim.shutdown().await;
}

/// Sends one message of these bytes to `ReportCacheState`; the status, if the call failed before it was answered.
async fn raw(shim: &HostShim, message: &[u8]) -> Option<String> {
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend(message);
    let http = reqwest::Client::builder().http2_prior_knowledge().timeout(PATIENCE).build().unwrap();
    let url = format!("http://{}/inferencecache.v1alpha1.InferenceCache/ReportCacheState", shim.grpc_addr());
    let call = http.post(url).header("content-type", "application/grpc").header("te", "trailers").body(body);
    let response = call.send().await.unwrap();
    let status = response.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned());
    response.bytes().await.unwrap();
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_age_out_with_their_replicas_and_scopes() {
    let (shim, mut client) = start("index: { ttl: 1s, sweepInterval: 50ms }").await;
    let stats = Some(ReplicaStats::default());
    let updates = vec![
        CacheStateUpdate { stats, ..update("r", "s", vec![single(1, 16)]) },
        update("engine-0", OWN, vec![single(2, 16)]),
    ];
    report(&mut client, updates).await;
    assert_eq!(shim.entries().await.unwrap().len(), 2);
    until("everything aged out", async || {
        let view = shim.view().await.unwrap();
        view.entries == 0 && view.reporters == 0 && view.scopes == 0 && shim.stats().reported().is_empty()
    })
    .await;
    assert_eq!(report(&mut client, vec![update("r", "s", vec![single(1, 16)])]).await, accepted(""));
    shim.shutdown().await;
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Update(CacheStateUpdate),
    Event(CacheEvent),
}

/// (tenant, model, scheme, adapter, replica, key)
type Key = (String, String, String, String, String, u64);

/// The rules once more, as plainly as possible.
#[derive(Debug, Default)]
struct Model {
    /// (tier, tokens)
    entries: BTreeMap<Key, (i32, u32)>,
    /// (replica, tenant, model) -> hit rate
    hit_rates: BTreeMap<(String, String, String), f32>,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Update(update) => self.update(update),
            Step::Event(event) => self.event(event),
        }
    }

    fn update(&mut self, update: &CacheStateUpdate) {
        if update.replica_id.is_empty() || update.model_id.is_empty() {
            return;
        }
        if let Some(stats) = &update.stats {
            let rate = if stats.hit_rate.is_finite() { stats.hit_rate } else { 0.0 };
            let subject = (update.replica_id.clone(), update.tenant_id.clone(), update.model_id.clone());
            self.hit_rates.insert(subject, rate);
        }
        for prefix in &update.prefixes {
            if update.hash_scheme.is_empty() || prefix.block_hashes.len() != prefix.block_token_counts.len() {
                continue;
            }
            let mut hashes = prefix.block_hashes.clone();
            let mut tokens: Vec<i32> =
                (0..hashes.len()).map(|n| prefix.block_token_counts[..=n].iter().sum()).collect();
            if !prefix.prefix_hash.is_empty() {
                hashes.push(prefix.prefix_hash.clone());
                tokens.push(prefix.token_count);
            }
            let lengths: &[usize] = if update.hash_scheme == OWN { &[8] } else { &[8, 16, 32] };
            if !hashes.iter().all(|hash| lengths.contains(&hash.len())) {
                continue;
            }
            let adapter = if prefix.adapter_id.is_empty() { &update.adapter_id } else { &prefix.adapter_id };
            for (hash, tokens) in hashes.iter().zip(tokens) {
                let key = (
                    update.tenant_id.clone(),
                    update.model_id.clone(),
                    update.hash_scheme.clone(),
                    adapter.clone(),
                    update.replica_id.clone(),
                    low_64(hash),
                );
                self.entries.insert(key, (prefix.tier.max(1), tokens as u32));
            }
        }
    }

    fn event(&mut self, event: &CacheEvent) {
        let of = |tenant: &str, model: &str, replica: &str| {
            tenant == event.tenant_id && model == event.model_id && replica == event.replica_id
        };
        match event.r#type() {
            Type::PrefixEvicted if [8, 16, 32].contains(&event.prefix_hash.len()) => {
                let gone = low_64(&event.prefix_hash);
                self.entries.retain(|(tenant, model, scheme, adapter, replica, key), _| {
                    let possible = scheme != OWN || event.prefix_hash.len() == 8;
                    let adapter = event.adapter_id.is_empty() || event.adapter_id == *adapter;
                    !(of(tenant, model, replica) && possible && adapter && *key == gone)
                });
            }
            Type::AllCleared => {
                self.entries.retain(|(tenant, model, _, _, replica, _), _| !of(tenant, model, replica));
                self.hit_rates.retain(|(replica, tenant, model), _| !of(tenant, model, replica));
            }
            _ => {}
        }
    }
}

fn low_64(hash: &[u8]) -> u64 {
    hash.iter().rev().take(8).rev().fold(0, |key, &byte| key << 8 | u64::from(byte))
}

fn hash() -> impl Strategy<Value = Vec<u8>> {
    // Few keys, so that histories meet; sometimes of a length that no hash has.
    (0_u8..4, prop_oneof![6 => Just(8), 2 => Just(16), 2 => Just(32), 1 => Just(0), 1 => Just(7)]).prop_map(
        |(key, length)| {
            let mut hash = vec![key / 2; length];
            hash.last_mut().into_iter().for_each(|last| *last = key);
            hash
        },
    )
}

fn adapter() -> impl Strategy<Value = String> {
    prop_oneof![3 => Just(String::new()), 1 => Just("ad-a".into()), 1 => Just("ad-b".into())]
}

fn replica() -> impl Strategy<Value = String> {
    prop_oneof![4 => "r[01]", 2 => Just("engine-0".into()), 1 => Just("engine-dp".into()), 1 => Just(String::new())]
}

prop_compose! {
    fn prefix()(
        prefix_hash in hash(),
        token_count in 0..100,
        chain in prop::collection::vec((hash(), 0..20), 0..4),
        cut in prop::bool::weighted(0.1),
        tier in 0..4,
        adapter_id in adapter(),
    ) -> PrefixEntry {
        let (block_hashes, mut block_token_counts): (Vec<_>, Vec<_>) = chain.into_iter().unzip();
        if cut {
            block_token_counts.pop();
        }
        PrefixEntry { prefix_hash, token_count, block_hashes, block_token_counts, tier, adapter_id }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let scheme = prop_oneof![3 => Just("vllm".to_owned()), 2 => Just(OWN.into()), 1 => Just(String::new())];
    let rate = prop_oneof![Just(None), Just(Some(0.5_f32)), Just(Some(0.25)), Just(Some(f32::NAN))];
    let update = (replica(), "[ab]", scheme, prop::collection::vec(prefix(), 0..5), adapter(), rate)
        .prop_map(|(replica_id, tenant_id, hash_scheme, prefixes, adapter_id, rate)| {
            let stats = rate.map(|hit_rate| ReplicaStats { hit_rate, ..Default::default() });
            let model_id = "tiny".into();
            Step::Update(CacheStateUpdate {
                replica_id,
                model_id,
                tenant_id,
                hash_scheme,
                prefixes,
                stats,
                adapter_id,
                ..Default::default()
            })
        });
    let event = (1..5, replica(), "[ab]", hash(), adapter()).prop_map(
        |(kind, replica_id, tenant_id, prefix_hash, adapter_id)| {
            let model_id = "tiny".into();
            Step::Event(CacheEvent {
                r#type: kind,
                replica_id,
                model_id,
                tenant_id,
                prefix_hash,
                adapter_id,
                ..Default::default()
            })
        },
    );
    prop_oneof![3 => update, 2 => event]
}

/// Every history leaves what the naive model holds; histories do not see each other, as each has its own tenants.
#[test]
fn any_history_leaves_what_the_rules_say() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (shim, client) = runtime.block_on(start(""));
    let case = std::cell::Cell::new(0);
    proptest!(|(history in prop::collection::vec(step(), 1..20), order: bool)| {
        case.set(case.get() + 1);
        let mut model = Model::default();
        let mut client = client.clone();
        let prefix = format!("{}-", case.get());
        let (entries, rates) = runtime.block_on(async {
            let mut stream = Vec::new();
            for step in history {
                let step = match step {
                    Step::Update(u) => Step::Update(CacheStateUpdate { tenant_id: prefix.clone() + &u.tenant_id, ..u }),
                    Step::Event(e) => Step::Event(CacheEvent { tenant_id: prefix.clone() + &e.tenant_id, ..e }),
                };
                model.apply(&step);
                match step {
                    Step::Update(update) => stream.push(update),
                    Step::Event(event) => {
                        report(&mut client, std::mem::take(&mut stream)).await;
                        publish(&mut client, event).await;
                    }
                }
                if order {
                    report(&mut client, std::mem::take(&mut stream)).await;
                }
            }
            report(&mut client, stream).await;
            (shim.entries().await.unwrap(), shim.stats().reported())
        });
        let tier = |tier| match tier { Tier::T1 => 1, Tier::T2 => 2, Tier::T3 => 3 };
        let held: BTreeMap<_, _> = entries
            .into_iter()
            .filter(|entry| entry.tenant.starts_with(&prefix))
            .map(|Entry { tenant, model, scheme, adapter, replica, hash, tier: of, tokens, .. }| {
                ((tenant, model, scheme, adapter, replica, hash.0), (tier(of), tokens))
            })
            .collect();
        prop_assert_eq!(held, model.entries);
        let rates: BTreeMap<_, _> = rates
            .into_iter()
            .filter(|(subject, _)| subject.tenant.starts_with(&prefix))
            .filter_map(|(of, told)| Some(((of.replica, of.tenant, of.model), told.stats?.0.hit_rate)))
            .collect();
        prop_assert_eq!(rates, model.hit_rates);
    });
    runtime.block_on(shim.shutdown());
}
