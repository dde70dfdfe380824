//! What an engine's metrics page says of each of its data-parallel ranks.
//!
//! | | vLLM (with and without `_total`) | SGLang |
//! | --- | --- | --- |
//! | rank | label `engine` | label `dp_rank` |
//! | cache usage | `kv_cache_usage_perc`, once `gpu_cache_usage_perc` | `token_usage` |
//! | prefix cache, tokens | `prefix_cache_{queries,hits}`, once `gpu_prefix_cache_*` | `prompt_tokens`, `cached_tokens` |
//! | hit rate | - | `cache_hit_rate`, of the last batch |
//! | requests | `num_requests_{running,waiting}` | `num_running_reqs`, `num_queue_reqs` |
//! | sleep | `engine_sleep_state{sleep_state}` | - |
//! | lower tiers, tokens | `external_prefix_cache_{queries,hits}`, `prompt_tokens_cached_by_source{source}` | `cached_tokens{cache_source}` |
//! | cache | `cache_config_info{block_size,num_gpu_blocks,…}` | `cache_config_info{page_size,num_pages}` |
//!
//! LMCache within vLLM adds `lmcache:num_{hit,requested}_tokens`. Everything is optional. A page without rank labels
//! speaks of rank 0; of SGLang's tensor-parallel ranks only the first counts, as they say the same.

use super::prometheus::{Sample, samples};
use std::collections::BTreeMap;

/// Ranks of a page that are looked at; others are ignored.
pub const MAX_RANKS: usize = 256;
const MAX_TEXT: usize = 64;

/// A page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// `process_start_time_seconds`: Unix time at which the process started, seconds.
    pub process_started_s: Option<f64>,
    /// By data-parallel rank.
    pub ranks: BTreeMap<u32, Reading>,
}

/// One rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Fraction of the KV cache that running requests use, 0 to 1.
    pub cache_usage: Option<f64>,
    /// Requests that run.
    pub running: Option<f64>,
    /// Requests that wait.
    pub waiting: Option<f64>,
    /// Prompt tokens looked up in the prefix cache, since the engine's start.
    pub queried_tokens: Option<f64>,
    /// Of those, tokens that were cached.
    pub hit_tokens: Option<f64>,
    /// Hit rate that the engine computed itself, 0 to 1.
    pub reported_hit_rate: Option<f64>,
    /// Whether the engine sleeps, and how deep.
    pub sleep: Option<Sleep>,
    /// Prompt tokens looked up in lower tiers, since the engine's start.
    pub t2_queried_tokens: Option<f64>,
    /// Of those, tokens found there.
    pub t2_hit_tokens: Option<f64>,
    /// The cache's shape.
    pub cache: CacheInfo,
}

impl Reading {
    /// Fraction of the prompt tokens that were cached, since the engine's start.
    pub fn lifetime_hit_rate(&self) -> Option<f64> {
        let (queried, hits) = self.queried_tokens.zip(self.hit_tokens)?;
        (queried > 0.0).then(|| (hits / queried).clamp(0.0, 1.0))
    }
}

/// How deep an engine sleeps (vLLM's sleep levels).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Awake.
    Awake,
    /// Level 1: the weights are offloaded, the cache is gone.
    WeightsOffloaded,
    /// Level 2: weights and cache are gone.
    DiscardAll,
}

impl Sleep {
    /// vLLM's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Sleep::Awake => "awake",
            Sleep::WeightsOffloaded => "weights_offloaded",
            Sleep::DiscardAll => "discard_all",
        }
    }
}

/// The KV cache as the engine is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheInfo {
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// Blocks of the device.
    pub blocks: Option<u64>,
    /// Bytes of the device's memory that it takes.
    pub memory_bytes: Option<i64>,
    /// Name of the engine's block hash.
    pub hash_algorithm: Option<String>,
    /// Whether prefixes are cached at all.
    pub prefix_caching: Option<bool>,
}

/// Reads a page; what it does not say is `None`.
pub fn read(text: &str) -> Page {
    let mut page = Page::default();
    let mut tiers = BTreeMap::new();
    for sample in samples(text) {
        if sample.name == "process_start_time_seconds" {
            page.process_started_s = finite(sample.value);
        } else if let Some((engine, name)) = sample.name.split_once(':')
            && let Some(rank) = rank(&sample)
            && (page.ranks.contains_key(&rank) || page.ranks.len() < MAX_RANKS)
        {
            let name = name.strip_suffix("_total").unwrap_or(name);
            let tier: &mut LowerTiers = tiers.entry(rank).or_default();
            let mut take = |reading: &mut Reading| match engine {
                "vllm" => vllm(name, &sample, reading, tier),
                "sglang" => sglang(name, &sample, reading, tier),
                "lmcache" => lmcache(name, &sample, tier),
                _ => false,
            };
            match page.ranks.get_mut(&rank) {
                Some(reading) => drop(take(reading)),
                None => {
                    let mut reading = Reading::default();
                    if take(&mut reading) {
                        page.ranks.insert(rank, reading);
                    }
                }
            }
        }
    }
    for (rank, reading) in &mut page.ranks {
        if let Some(tier) = tiers.remove(rank) {
            tier.finish(reading);
        }
    }
    page
}

/// Everything that is said of lower tiers; the sources overlap, so one of them is chosen at the end.
#[derive(Default)]
struct LowerTiers {
    by_source: Option<f64>,
    external: [Option<f64>; 2],
    lmcache: [Option<f64>; 2],
}

impl LowerTiers {
    fn finish(self, reading: &mut Reading) {
        let [external_hits, external_queries] = self.external;
        let [lmcache_hits, lmcache_queries] = self.lmcache;
        let candidates = [self.by_source, external_hits, lmcache_hits];
        let some = |value: &f64| *value > 0.0;
        reading.t2_hit_tokens =
            candidates.into_iter().flatten().find(some).or(candidates.into_iter().flatten().next());
        // What the first tier did not have is looked up below.
        let missed = reading.queried_tokens.zip(reading.hit_tokens).map(|(queries, hits)| {
            let below = reading.t2_hit_tokens.unwrap_or(0.0);
            (queries - hits).max(below)
        });
        let candidates = [external_queries, lmcache_queries];
        let lower = candidates.into_iter().flatten().find(some).or(candidates.into_iter().flatten().next());
        reading.t2_queried_tokens = match (lower, reading.t2_hit_tokens) {
            (Some(queries), hits) if queries >= hits.unwrap_or(0.0) => Some(queries),
            (_, Some(_)) => missed,
            (lower, None) => lower,
        };
    }
}

/// Whether the sample says something of the engine.
fn vllm(name: &str, sample: &Sample<'_>, reading: &mut Reading, tier: &mut LowerTiers) -> bool {
    let value = sample.value;
    match name {
        "kv_cache_usage_perc" | "gpu_cache_usage_perc" => highest(&mut reading.cache_usage, value),
        "num_requests_running" => add(&mut reading.running, value),
        "num_requests_waiting" => add(&mut reading.waiting, value),
        "prefix_cache_queries" | "gpu_prefix_cache_queries" => add(&mut reading.queried_tokens, value),
        "prefix_cache_hits" | "gpu_prefix_cache_hits" => add(&mut reading.hit_tokens, value),
        "gpu_prefix_cache_hit_rate" => highest(&mut reading.reported_hit_rate, value),
        "external_prefix_cache_queries" => add(&mut tier.external[1], value),
        "external_prefix_cache_hits" => add(&mut tier.external[0], value),
        "prompt_tokens_cached_by_source" => {
            if sample.labels.get("source").is_some_and(|source| source != "device") {
                add(&mut tier.by_source, value);
            }
        }
        "engine_sleep_state" => {
            if value > 0.0 {
                reading.sleep = match sample.labels.get("sleep_state").as_deref() {
                    Some("awake") => Some(Sleep::Awake),
                    Some("weights_offloaded") => Some(Sleep::WeightsOffloaded),
                    Some("discard_all") => Some(Sleep::DiscardAll),
                    _ => reading.sleep,
                };
            }
        }
        "cache_config_info" => {
            reading.cache = CacheInfo {
                block_size: number(sample, "block_size"),
                blocks: number(sample, "num_gpu_blocks"),
                memory_bytes: number(sample, "kv_cache_memory_bytes"),
                hash_algorithm: sample
                    .labels
                    .get("prefix_caching_hash_algo")
                    .filter(|name| name.len() <= MAX_TEXT && name != "None")
                    .map(|name| name.into_owned()),
                prefix_caching: match sample.labels.get("enable_prefix_caching").as_deref() {
                    Some("True" | "true") => Some(true),
                    Some("False" | "false") => Some(false),
                    _ => None,
                },
            };
        }
        _ => return false,
    }
    true
}

fn sglang(name: &str, sample: &Sample<'_>, reading: &mut Reading, tier: &mut LowerTiers) -> bool {
    let value = sample.value;
    match name {
        "token_usage" => highest(&mut reading.cache_usage, value),
        "num_running_reqs" => add(&mut reading.running, value),
        "num_queue_reqs" => add(&mut reading.waiting, value),
        "prompt_tokens" => add(&mut reading.queried_tokens, value),
        "cached_tokens" => match sample.labels.get("cache_source").as_deref() {
            // Since the sources are told apart, `total` repeats their sum.
            Some("total") => {}
            None | Some("device") => add(&mut reading.hit_tokens, value),
            Some(_) => {
                add(&mut reading.hit_tokens, value);
                add(&mut tier.by_source, value);
            }
        },
        "cache_hit_rate" => highest(&mut reading.reported_hit_rate, value),
        "cache_config_info" => {
            reading.cache.block_size = number(sample, "page_size");
            reading.cache.blocks = number(sample, "num_pages");
        }
        _ => return false,
    }
    true
}

fn lmcache(name: &str, sample: &Sample<'_>, tier: &mut LowerTiers) -> bool {
    match name {
        "num_hit_tokens" => add(&mut tier.lmcache[0], sample.value),
        "num_requested_tokens" => add(&mut tier.lmcache[1], sample.value),
        _ => {}
    }
    // An engine's own names must say that there is a rank.
    false
}

/// `None` for a sample that repeats another rank's.
fn rank(sample: &Sample<'_>) -> Option<u32> {
    if sample.labels.get("tp_rank").is_some_and(|rank| rank != "0") {
        return None;
    }
    match sample.labels.get("engine").or_else(|| sample.labels.get("dp_rank")) {
        // SGLang without data parallelism may leave the rank empty.
        Some(rank) if !rank.is_empty() && rank != "None" => rank.parse().ok(),
        _ => Some(0),
    }
}

fn number<T: std::str::FromStr>(sample: &Sample<'_>, label: &str) -> Option<T> {
    sample.labels.get(label)?.parse().ok()
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn add(to: &mut Option<f64>, value: f64) {
    if value.is_finite() && value >= 0.0 {
        *to = Some(to.unwrap_or(0.0) + value);
    }
}

fn highest(to: &mut Option<f64>, value: f64) {
    if value.is_finite() {
        *to = Some(to.map_or(value, |held| held.max(value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from vLLM for CPU; see tests-data/kv-events/README.md.
    macro_rules! recorded {
        ($session:literal) => {
            include_str!(concat!("../../../tests-data/kv-events/", $session, "/metrics.prom"))
        };
    }

    #[test]
    fn recorded_pages_of_vllm() {
        for (text, block_size, blocks, hits) in [
            (recorded!("vllm-0.22.1/v022-cbor-bs16-seed0-bytes"), 16, 96, 368.0),
            (recorded!("vllm-0.32.0/cbor-bs32-seed0-bytes"), 32, 48, 256.0),
        ] {
            let page = read(text);
            assert!(page.process_started_s.is_some_and(|unix_s| unix_s > 1.79e9));
            assert_eq!(page.ranks.len(), 1);
            let expected = Reading {
                cache_usage: Some(0.0),
                running: Some(0.0),
                waiting: Some(0.0),
                queried_tokens: Some(2521.0),
                hit_tokens: Some(hits),
                reported_hit_rate: None,
                sleep: Some(Sleep::Awake),
                t2_queried_tokens: Some(0.0),
                t2_hit_tokens: Some(0.0),
                cache: CacheInfo {
                    block_size: Some(block_size),
                    blocks: Some(blocks),
                    memory_bytes: Some(1 << 30),
                    hash_algorithm: Some("sha256_cbor".into()),
                    prefix_caching: Some(true),
                },
            };
            assert_eq!(page.ranks[&0], expected);
        }
    }

    #[test]
    fn several_engines_on_one_page() {
        let page = read(recorded!("vllm-0.32.0/dp2-cbor-bs32"));
        let counters = |rank: u32| page.ranks[&rank].queried_tokens.zip(page.ranks[&rank].hit_tokens);
        assert_eq!(page.ranks.len(), 2);
        assert_eq!((counters(0), counters(1)), (Some((392.0, 64.0)), Some((298.0, 32.0))));
    }

    #[test]
    fn names_of_older_vllm_releases() {
        let page = read(
            "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\nvllm:gpu_prefix_cache_queries{model_name=\"m\"} 10\n\
             vllm:gpu_prefix_cache_hits_total{model_name=\"m\"} 5\n",
        );
        let reading = &page.ranks[&0];
        assert_eq!(reading.cache_usage, Some(0.5));
        assert_eq!((reading.queried_tokens, reading.hit_tokens), (Some(10.0), Some(5.0)));
    }

    /// Names and labels of SGLang 0.5.x's `metrics_collector.py`; values ours.
    #[test]
    fn sglang_with_two_ranks_and_repeating_tensor_ranks() {
        let mut text = String::from("process_start_time_seconds 5\n");
        for (dp, tp, scale) in [(0, 0, 1), (0, 1, 1), (1, 0, 2), (1, 1, 2)] {
            let labels =
                format!("dp_rank=\"{dp}\",engine_type=\"unified\",model_name=\"m\",tp_rank=\"{tp}\"");
            for (name, value) in [
                ("token_usage", 0.25),
                ("cache_hit_rate", 0.5),
                ("num_running_reqs", 3.0),
                ("num_queue_reqs", 1.0),
            ] {
                text += &format!("sglang:{name}{{{labels}}} {}\n", value * f64::from(scale));
            }
            text += &format!("sglang:prompt_tokens_total{{{labels}}} 100\n");
            for (source, tokens) in [("total", 60), ("device", 40), ("host", 20)] {
                text +=
                    &format!("sglang:cached_tokens_total{{cache_source=\"{source}\",{labels}}} {tokens}\n");
            }
            text += &format!("sglang:cache_config_info{{num_pages=\"8\",page_size=\"64\",{labels}}} 1\n");
        }
        let page = read(&text);
        assert_eq!((page.process_started_s, page.ranks.len()), (Some(5.0), 2));
        let reading = &page.ranks[&1];
        assert_eq!(
            (reading.cache_usage, reading.running, reading.waiting),
            (Some(0.5), Some(6.0), Some(2.0))
        );
        assert_eq!((reading.queried_tokens, reading.hit_tokens), (Some(100.0), Some(60.0)));
        assert_eq!((reading.t2_hit_tokens, reading.t2_queried_tokens), (Some(20.0), Some(40.0)));
        assert_eq!((reading.cache.block_size, reading.cache.blocks), (Some(64), Some(8)));
    }

    #[test]
    fn one_source_of_lower_tiers_counts() {
        let vllm = "vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total 10\n";
        let t2 = |more: &str| {
            let page = read(&format!("{vllm}{more}"));
            (page.ranks[&0].t2_hit_tokens, page.ranks[&0].t2_queried_tokens)
        };
        assert_eq!(t2(""), (None, None));
        let external = "vllm:external_prefix_cache_queries 90\nvllm:external_prefix_cache_hits 30\n";
        assert_eq!(t2(external), (Some(30.0), Some(90.0)));
        let by_source = "vllm:prompt_tokens_cached_by_source_total{source=\"host\"} 7\n";
        assert_eq!(t2(by_source), (Some(7.0), Some(90.0)));
        let lmcache = "lmcache:num_hit_tokens_total 4\nlmcache:num_requested_tokens_total 8\n";
        assert_eq!(t2(lmcache), (Some(4.0), Some(8.0)));
        assert_eq!(t2(&format!("{external}{by_source}{lmcache}")), (Some(7.0), Some(90.0)));
    }

    #[test]
    fn ranks_are_bounded_and_nonsense_says_nothing() {
        let many: String =
            (0..1000).map(|n| format!("vllm:num_requests_running{{engine=\"{n}\"}} 1\n")).collect();
        assert_eq!(read(&many).ranks.len(), MAX_RANKS);
        let nonsense = "vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running{engine=\"x\"} 1\nother:thing 1\n\
                        vllm:prefix_cache_hits_total -4\nlmcache:num_hit_tokens 1\n";
        let page = read(nonsense);
        assert_eq!(
            page.ranks.get(&0).cloned().unwrap_or_default(),
            Reading { t2_hit_tokens: Some(1.0), t2_queried_tokens: None, ..Reading::default() }
        );
    }
}
