//! Messages to typed updates and events; what breaks a rule is left out and counted by reason.

use super::proto::{CacheEvent, CacheStateUpdate, CacheTier, PrefixEntry, ReplicaStats, cache_event};
use super::{PROBE_TENANT, limits};
use inference_cache_core::hash::{self, BlockHash};
use inference_cache_core::ingest::Tier;
use std::collections::BTreeMap;

/// Of whom something is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The replica's name.
    pub replica: String,
    /// Identity of its user; may be empty, which is an identity as well.
    pub tenant: String,
    /// The base model.
    pub model: String,
}

/// A checked `CacheStateUpdate`.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// Of whom; or why nothing of the update is taken.
    pub subject: Result<Subject, &'static str>,
    /// What is held, in order.
    pub prefixes: Vec<Prefixes>,
    /// Statistics.
    pub stats: Option<Stats>,
    /// Prefixes left out, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

/// Entries of one scope that share their tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Hash scheme, never empty.
    pub scheme: String,
    /// LoRA adapter; "" for the base model.
    pub adapter: String,
    /// Where they are.
    pub tier: Tier,
    /// Tokens per block, if a chain tells.
    pub block_size: Option<u32>,
    /// Keys and the tokens of the prefix up to there; 0 if the producer did not say.
    pub entries: Vec<(BlockHash, u32)>,
}

/// Checked `ReplicaStats`.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Bytes of KV cache.
    pub cache_memory_bytes: i64,
    /// Prefix-cache hit rate; finite.
    pub hit_rate: f32,
    /// Memory pressure; finite.
    pub pressure: f32,
    /// The producer's version; "" if it is longer than a name may be.
    pub client_version: String,
    /// Tokens found in lower tiers.
    pub t2_hit_tokens: i64,
    /// Tokens looked up there.
    pub t2_query_tokens: i64,
}

/// A checked `CacheEvent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Of whom.
    pub subject: Subject,
    /// What happened.
    pub change: Change,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A prefix was added; the event says too little to index it.
    Added,
    /// The replica lives; nothing else.
    Alive,
    /// A prefix is gone.
    Evicted {
        /// Only this adapter's; `None` for all.
        adapter: Option<String>,
        /// Its key.
        key: BlockHash,
        /// Whether it may be a hash of the server's own scheme.
        own_scheme: bool,
    },
    /// Everything is gone.
    Cleared,
}

/// Checks an update.
pub fn update(message: CacheStateUpdate) -> Update {
    let CacheStateUpdate {
        replica_id, model_id, tenant_id, hash_scheme, prefixes, stats, adapter_id, ..
    } = message;
    let mut update = Update {
        subject: subject(replica_id, tenant_id, model_id),
        prefixes: Vec::new(),
        stats: None,
        refused: BTreeMap::new(),
    };
    if update.subject.is_err() {
        return update;
    }
    update.stats = stats.map(checked_stats);
    if hash_scheme.is_empty() {
        update.refuse("no_hash_scheme", prefixes.len());
    } else if hash_scheme.len() > limits::NAME_BYTES {
        update.refuse("hash_scheme_name", prefixes.len());
    } else {
        for entry in prefixes {
            if let Err(reason) = update.entry(&hash_scheme, &adapter_id, entry) {
                update.refuse(reason, 1);
            }
        }
    }
    update
}

/// Checks an event, or says why nothing of it is taken.
pub fn event(message: CacheEvent) -> Result<Event, &'static str> {
    let kind = message.r#type();
    let subject = subject(message.replica_id, message.tenant_id, message.model_id)?;
    let change = match kind {
        cache_event::Type::PrefixAdded => Change::Added,
        cache_event::Type::ReplicaUpdated => Change::Alive,
        cache_event::Type::AllCleared => Change::Cleared,
        cache_event::Type::PrefixEvicted => {
            let adapter = message.adapter_id;
            if adapter.len() > limits::NAME_BYTES {
                return Err("adapter_name");
            }
            Change::Evicted {
                adapter: (!adapter.is_empty()).then_some(adapter),
                key: key("", &message.prefix_hash).ok_or("hash_length")?,
                own_scheme: key(hash::SCHEME, &message.prefix_hash).is_some(),
            }
        }
        cache_event::Type::Unspecified => return Err("event_type"),
    };
    Ok(Event { subject, change })
}

impl Update {
    fn refuse(&mut self, reason: &'static str, count: usize) {
        if count > 0 {
            *self.refused.entry(reason).or_default() += count as u64;
        }
    }

    /// Takes an entry whole, or nothing of it.
    fn entry(&mut self, scheme: &str, adapter: &str, entry: PrefixEntry) -> Result<(), &'static str> {
        let adapter = if entry.adapter_id.is_empty() { adapter } else { &entry.adapter_id };
        if adapter.len() > limits::NAME_BYTES {
            return Err("adapter_name");
        }
        let tier = match CacheTier::try_from(entry.tier) {
            Ok(CacheTier::Unspecified | CacheTier::T1) => Tier::T1,
            Ok(CacheTier::T2) => Tier::T2,
            Ok(CacheTier::T3) | Err(_) => Tier::T3,
        };
        let (hashes, counts) = (&entry.block_hashes, &entry.block_token_counts);
        if hashes.len() != counts.len() {
            return Err("chain_length");
        }
        let mut entries = Vec::with_capacity(hashes.len() + 1);
        let mut tokens = 0_u32;
        for (bytes, &count) in hashes.iter().zip(counts) {
            let count = u32::try_from(count).map_err(|_| "token_count")?;
            tokens = tokens.checked_add(count).ok_or("token_count")?;
            entries.push((key(scheme, bytes).ok_or("hash_length")?, tokens));
        }
        if !entry.prefix_hash.is_empty() {
            let tokens = u32::try_from(entry.token_count).map_err(|_| "token_count")?;
            entries.push((key(scheme, &entry.prefix_hash).ok_or("hash_length")?, tokens));
        }
        if entries.is_empty() {
            return Err("empty");
        }
        let block_size = counts
            .first()
            .filter(|first| counts.iter().all(|count| count == *first))
            .and_then(|&size| u32::try_from(size).ok())
            .filter(|&size| size > 0);
        match self.prefixes.last_mut() {
            Some(last)
                if last.adapter == adapter
                    && last.tier == tier
                    && (last.block_size == block_size || block_size.is_none()) =>
            {
                last.entries.append(&mut entries);
            }
            _ => self.prefixes.push(Prefixes {
                scheme: scheme.to_owned(),
                adapter: adapter.to_owned(),
                tier,
                block_size,
                entries,
            }),
        }
        Ok(())
    }
}

fn subject(replica: String, tenant: String, model: String) -> Result<Subject, &'static str> {
    let fits = |name: &str| name.len() <= limits::NAME_BYTES;
    // Replica names stand in headers, as the configuration's do.
    if replica.is_empty() || !fits(&replica) || !replica.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("replica_name");
    }
    if model.is_empty() || !fits(&model) {
        return Err("model_name");
    }
    if !fits(&tenant) {
        return Err("tenant_name");
    }
    if tenant == PROBE_TENANT {
        return Err("reserved_tenant");
    }
    Ok(Subject { replica, tenant, model })
}

/// The key of an opaque hash within its scheme; `None` for a length that the scheme does not have.
fn key(scheme: &str, bytes: &[u8]) -> Option<BlockHash> {
    let fits = match bytes.len() {
        8 => true,
        16 | 32 => scheme != hash::SCHEME,
        _ => false,
    };
    let last = bytes.last_chunk::<8>().filter(|_| fits)?;
    Some(BlockHash(u64::from_be_bytes(*last)))
}

fn checked_stats(stats: ReplicaStats) -> Stats {
    let finite = |rate: f32| if rate.is_finite() { rate } else { 0.0 };
    let mut client_version = stats.client_version;
    if client_version.len() > limits::NAME_BYTES {
        client_version.clear();
    }
    Stats {
        cache_memory_bytes: stats.cache_memory_bytes,
        hit_rate: finite(stats.hit_rate),
        pressure: finite(stats.pressure),
        client_version,
        t2_hit_tokens: stats.t2_hit_tokens,
        t2_query_tokens: stats.t2_query_tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(prefixes: Vec<PrefixEntry>) -> CacheStateUpdate {
        CacheStateUpdate {
            replica_id: "r".into(),
            model_id: "m".into(),
            tenant_id: "t".into(),
            hash_scheme: "vllm".into(),
            adapter_id: "update's".into(),
            prefixes,
            ..Default::default()
        }
    }

    fn single(hash: &[u8]) -> PrefixEntry {
        PrefixEntry { prefix_hash: hash.to_vec(), token_count: 48, ..Default::default() }
    }

    fn chain(hashes: &[u64], counts: &[i32]) -> PrefixEntry {
        PrefixEntry {
            block_hashes: hashes.iter().map(|hash| hash.to_be_bytes().to_vec()).collect(),
            block_token_counts: counts.to_vec(),
            ..Default::default()
        }
    }

    fn entries(update: &Update) -> Vec<(u64, u32)> {
        update
            .prefixes
            .iter()
            .flat_map(|prefixes| &prefixes.entries)
            .map(|&(BlockHash(key), tokens)| (key, tokens))
            .collect()
    }

    #[test]
    fn hashes_of_8_16_and_32_bytes_are_their_last_8_big_endian() {
        let mut digest = [7; 32];
        digest[24..].copy_from_slice(&0x0102_0304_0506_0708_u64.to_be_bytes());
        let prefixes = vec![single(&digest), single(&digest[16..]), single(&digest[24..])];
        let taken = update(message(prefixes));
        assert_eq!(entries(&taken), [(0x0102_0304_0506_0708, 48); 3]);
        let prefixes = [0, 7, 9, 31, 33, 64].map(|length| single(&vec![1; length])).to_vec();
        let taken = update(message(prefixes));
        assert_eq!((entries(&taken).len(), taken.refused), (0, [("empty", 1), ("hash_length", 5)].into()));
        let own = CacheStateUpdate {
            hash_scheme: hash::SCHEME.into(),
            ..message(vec![single(&digest), single(&digest[16..]), single(&digest[24..])])
        };
        let taken = update(own);
        assert_eq!((entries(&taken).len(), taken.refused), (1, [("hash_length", 2)].into()));
    }

    #[test]
    fn chains_accumulate_and_a_prefix_hash_is_one_more() {
        let both =
            PrefixEntry { prefix_hash: vec![0; 8], token_count: 40, ..chain(&[1, 2, 3], &[16, 16, 8]) };
        let taken = update(message(vec![both.clone()]));
        assert_eq!(entries(&taken), [(1, 16), (2, 32), (3, 40), (0, 40)]);
        assert_eq!(taken.prefixes[0].block_size, None);
        assert_eq!(update(message(vec![chain(&[1, 2], &[16, 16])])).prefixes[0].block_size, Some(16));
        // Dropped whole, not downgraded to its prefix hash.
        let broken = PrefixEntry { block_token_counts: vec![16, 16], ..both };
        let taken = update(message(vec![broken, single(&[9; 8])]));
        assert_eq!((entries(&taken).len(), taken.refused), (1, [("chain_length", 1)].into()));
        let taken = update(message(vec![chain(&[1], &[-1]), chain(&[1, 2, 3], &[i32::MAX; 3])]));
        assert_eq!((entries(&taken).len(), taken.refused), (0, [("token_count", 2)].into()));
    }

    #[test]
    fn adapters_and_tiers_come_from_the_entry_first() {
        let entry =
            |adapter: &str, tier: i32| PrefixEntry { adapter_id: adapter.into(), tier, ..single(&[1; 8]) };
        let taken = update(message(vec![
            entry("", 0),
            entry("", 1),
            entry("own", 2),
            entry("own", 3),
            entry("own", 9),
        ]));
        let held: Vec<_> =
            taken.prefixes.iter().map(|h| (h.adapter.as_str(), h.tier, h.entries.len())).collect();
        assert_eq!(held, [("update's", Tier::T1, 2), ("own", Tier::T2, 1), ("own", Tier::T3, 2)]);
    }

    #[test]
    fn without_a_scheme_statistics_only() {
        let stats = ReplicaStats {
            hit_rate: f32::NAN,
            pressure: f32::INFINITY,
            cache_memory_bytes: 5,
            ..Default::default()
        };
        let taken = update(CacheStateUpdate {
            hash_scheme: String::new(),
            stats: Some(stats),
            ..message(vec![single(&[1; 8])])
        });
        assert_eq!((taken.prefixes.len(), &taken.refused), (0, &[("no_hash_scheme", 1)].into()));
        let stats = taken.stats.unwrap();
        assert_eq!((stats.hit_rate, stats.pressure, stats.cache_memory_bytes), (0.0, 0.0, 5));
    }

    #[test]
    fn names_have_bounds() {
        let long = "x".repeat(limits::NAME_BYTES + 1);
        let subject = |replica: &str, tenant: &str, model: &str| {
            super::subject(replica.into(), tenant.into(), model.into()).map(|_| ())
        };
        assert_eq!(subject("r", "", "m"), Ok(()));
        assert_eq!(subject("", "t", "m"), Err("replica_name"));
        assert_eq!(subject("a\nb", "t", "m"), Err("replica_name"));
        assert_eq!(subject("r", "t", ""), Err("model_name"));
        assert_eq!(subject("r", &long, "m"), Err("tenant_name"));
        assert_eq!(subject("r", PROBE_TENANT, "m"), Err("reserved_tenant"));
        let taken = update(CacheStateUpdate { adapter_id: long.clone(), ..message(vec![single(&[1; 8])]) });
        assert_eq!(taken.refused, [("adapter_name", 1)].into());
        let taken = update(CacheStateUpdate { hash_scheme: long, ..message(vec![single(&[1; 8])]) });
        assert_eq!(taken.refused, [("hash_scheme_name", 1)].into());
    }

    #[test]
    fn events() {
        let event = |kind: i32, hash: &[u8], adapter: &str| {
            super::event(CacheEvent {
                r#type: kind,
                replica_id: "r".into(),
                model_id: "m".into(),
                prefix_hash: hash.to_vec(),
                adapter_id: adapter.into(),
                ..Default::default()
            })
            .map(|event| event.change)
        };
        let evicted = |adapter: Option<&str>, own_scheme| Change::Evicted {
            adapter: adapter.map(str::to_owned),
            key: BlockHash(0x0101_0101_0101_0101),
            own_scheme,
        };
        assert_eq!(event(2, &[1; 8], ""), Ok(evicted(None, true)));
        assert_eq!(event(2, &[1; 32], "a"), Ok(evicted(Some("a"), false)));
        assert_eq!(event(2, &[1; 5], ""), Err("hash_length"));
        assert_eq!((event(1, &[], ""), event(3, &[], "")), (Ok(Change::Added), Ok(Change::Alive)));
        assert_eq!(event(4, &[], ""), Ok(Change::Cleared));
        assert_eq!((event(0, &[], ""), event(77, &[], "")), (Err("event_type"), Err("event_type")));
    }
}
