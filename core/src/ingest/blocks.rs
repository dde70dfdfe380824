//! What one engine holds: engine hashes, their own keys, and how many copies are where.
//!
//! vLLM announces every physical copy of a block and removes each once, per medium and KV-cache group, so copies are
//! counted per (engine hash, tier, group). Different engine hashes can have the same own key (an adapter loaded from
//! another path), so a second count per own key says when the key appears, moves to another tier, or goes.
//!
//! Invariants
//! * `present[key]` at a tier is the sum of the copies at that tier of all engine hashes with that key, and never 0 at
//!   all tiers; the sink's view of the source equals the keys of `present` with their best tiers.
//! * An engine hash keeps its key as long as it has a copy.
//!
//! Cost: O(blocks touched).

use super::chain::{Placeholder, Run};
use super::{Sink, Stats, Stored, Tier};
use crate::events::{BlockRemoved, EngineHash};
use crate::hash::{BlockHash, BlockSize};
use hashbrown::HashMap;

/// A number for an adapter's name.
type AdapterId = u16;
type Key = (AdapterId, BlockHash);

#[derive(Debug)]
pub(super) struct Blocks {
    by_engine_hash: HashMap<EngineHash, Block>,
    present: HashMap<Key, [u32; 3]>,
    /// Names by id; id 0 is "".
    adapters: Vec<String>,
    limit: usize,
}

/// A block by its engine hash.
#[derive(Debug)]
struct Block {
    key: Key,
    block_size: BlockSize,
    copies: Vec<Copies>,
}

#[derive(Debug)]
struct Copies {
    tier: Tier,
    group: Option<u32>,
    count: u32,
}

/// The block before a run.
pub(super) enum Parent {
    /// The run starts a prompt.
    Root,
    /// Its own hash.
    Known(BlockHash),
    /// Not announced, or not yet.
    Unknown,
}

impl Blocks {
    pub(super) fn new(limit: usize) -> Blocks {
        Blocks {
            by_engine_hash: HashMap::new(),
            present: HashMap::new(),
            adapters: vec![String::new()],
            limit,
        }
    }

    /// Distinct own keys held.
    pub(super) fn len(&self) -> usize {
        self.present.len()
    }

    /// The block before `run`. A parent under another adapter is not this run's parent.
    pub(super) fn parent_of(&self, run: &Run) -> Parent {
        let Some(parent) = run.parent else { return Parent::Root };
        match self.by_engine_hash.get(&parent) {
            Some(block) if self.adapter(block.key.0) == run.adapter => Parent::Known(block.key.1),
            _ => Parent::Unknown,
        }
    }

    /// Adds one copy of each block of `run`, which follows `parent`.
    pub(super) fn store(
        &mut self,
        run: &Run,
        parent: Option<BlockHash>,
        stats: &mut Stats,
        sink: &mut impl Sink,
    ) {
        let Some(adapter) = self.adapter_id(&run.adapter) else { return stats.skip("too_many_adapters") };
        let mut announce = Announce::new(run.block_size);
        let mut namespaces = run.namespaces.iter().peekable();
        let mut parent = parent;
        for (at, (&hash, tokens)) in
            run.hashes.iter().zip(run.tokens.chunks_exact(run.block_size.tokens() as usize)).enumerate()
        {
            while let Some((_, namespace)) = namespaces.next_if(|&&(block, _)| block == at) {
                parent = namespace.apply(parent);
            }
            let own = BlockHash::of_block(parent, tokens);
            parent = Some(own);
            let Some(hash) = hash else { continue };
            match self.add_copy(hash, Some(((adapter, own), run.block_size)), run.tier, run.group) {
                Ok((key, tier, _)) => {
                    stats.stored_blocks += 1;
                    announce.push(key, tier, &self.adapters, sink);
                }
                Err(reason) => stats.skip(reason),
            }
        }
        announce.flush(&self.adapters, sink);
    }

    /// Adds one copy at another tier of each block that is known.
    pub(super) fn store_placeholder(
        &mut self,
        placeholder: &Placeholder,
        stats: &mut Stats,
        sink: &mut impl Sink,
    ) {
        for &hash in &placeholder.hashes {
            match self.add_copy(hash, None, placeholder.tier, placeholder.group) {
                Ok((key, tier, block_size)) => {
                    stats.stored_blocks += 1;
                    let mut announce = Announce::new(block_size);
                    announce.push(key, tier, &self.adapters, sink);
                    announce.flush(&self.adapters, sink);
                }
                Err(reason) => stats.skip(reason),
            }
        }
    }

    /// Takes one copy of each block away; `unknown` gets the hashes that have none there.
    pub(super) fn remove(
        &mut self,
        event: &BlockRemoved<'_>,
        stats: &mut Stats,
        sink: &mut impl Sink,
        mut unknown: impl FnMut(EngineHash, Tier),
    ) {
        let tier = Tier::of_medium(event.medium);
        for &hash in &event.hashes {
            match self.remove_copy(hash, tier, event.group) {
                Some(removal) => {
                    stats.removed_blocks += 1;
                    self.report(removal, sink);
                }
                None => unknown(hash, tier),
            }
        }
    }

    /// Forgets everything; adapters keep their numbers.
    pub(super) fn clear(&mut self) {
        self.by_engine_hash = HashMap::new();
        self.present = HashMap::new();
    }

    /// Counts a copy; the block's key, its best tier and its size. A new engine hash needs `identity`.
    fn add_copy(
        &mut self,
        hash: EngineHash,
        identity: Option<(Key, BlockSize)>,
        tier: Tier,
        group: Option<u32>,
    ) -> Result<(Key, Tier, BlockSize), &'static str> {
        if !self.by_engine_hash.contains_key(&hash) {
            let (key, block_size) = identity.ok_or("unknown_placeholder")?;
            if self.by_engine_hash.len() >= self.limit {
                return Err("too_many_blocks");
            }
            self.by_engine_hash.try_reserve(1).map_err(|_| "out_of_memory")?;
            self.present.try_reserve(1).map_err(|_| "out_of_memory")?;
            self.by_engine_hash.insert(hash, Block { key, block_size, copies: Vec::new() });
        }
        let block = self.by_engine_hash.get_mut(&hash).ok_or("unknown_placeholder")?;
        if identity.is_some_and(|(key, _)| key != block.key) {
            // The engine gives two contents one hash (SGLang does for adapters that are not registered by name).
            return Err("ambiguous_hash");
        }
        match block.copies.iter_mut().find(|copies| copies.tier == tier && copies.group == group) {
            Some(copies) => copies.count = copies.count.saturating_add(1),
            None => block.copies.push(Copies { tier, group, count: 1 }),
        }
        let counts = self.present.entry(block.key).or_default();
        bump(counts, tier, |count| count.saturating_add(1));
        Ok((block.key, best(counts).unwrap_or(tier), block.block_size))
    }

    fn remove_copy(&mut self, hash: EngineHash, tier: Tier, group: Option<u32>) -> Option<Removal> {
        let block = self.by_engine_hash.get_mut(&hash)?;
        let at = block.copies.iter().position(|copies| copies.tier == tier && copies.group == group)?;
        let copies = block.copies.get_mut(at)?;
        copies.count -= 1;
        if copies.count == 0 {
            block.copies.swap_remove(at);
        }
        let (key, block_size) = (block.key, block.block_size);
        if block.copies.is_empty() {
            self.by_engine_hash.remove(&hash);
        }
        let counts = self.present.get_mut(&key)?;
        let before = best(counts);
        bump(counts, tier, |count| count.saturating_sub(1));
        let after = best(counts);
        if after.is_none() {
            self.present.remove(&key);
        }
        Some(Removal { key, block_size, before, after })
    }

    fn report(&self, removal: Removal, sink: &mut impl Sink) {
        let Removal { key: (adapter, hash), block_size, before, after } = removal;
        let adapter = self.adapter(adapter);
        match after {
            None => sink.removed(adapter, &[hash]),
            // What leaves the engine's memory but stays on a lower tier is a demotion, not a loss.
            Some(tier) if after != before => {
                sink.stored(Stored { adapter, tier, block_size, hashes: &[hash] })
            }
            Some(_) => {}
        }
    }

    fn adapter(&self, id: AdapterId) -> &str {
        self.adapters.get(usize::from(id)).map_or("", String::as_str)
    }

    fn adapter_id(&mut self, name: &str) -> Option<AdapterId> {
        if let Some(at) = self.adapters.iter().position(|known| known == name) {
            return AdapterId::try_from(at).ok();
        }
        const MOST: usize = 4096;
        if self.adapters.len() >= MOST {
            return None;
        }
        self.adapters.push(name.to_owned());
        AdapterId::try_from(self.adapters.len() - 1).ok()
    }
}

/// What the removal of a copy did to the presence of its key.
struct Removal {
    key: Key,
    block_size: BlockSize,
    before: Option<Tier>,
    after: Option<Tier>,
}

/// Gathers blocks that are stored alike into one operation.
struct Announce {
    block_size: BlockSize,
    alike: Option<(AdapterId, Tier)>,
    hashes: Vec<BlockHash>,
}

impl Announce {
    fn new(block_size: BlockSize) -> Announce {
        Announce { block_size, alike: None, hashes: Vec::new() }
    }

    fn push(&mut self, (adapter, hash): Key, tier: Tier, adapters: &[String], sink: &mut impl Sink) {
        if self.alike != Some((adapter, tier)) {
            self.flush(adapters, sink);
            self.alike = Some((adapter, tier));
        }
        self.hashes.push(hash);
    }

    fn flush(&mut self, adapters: &[String], sink: &mut impl Sink) {
        if let (Some((adapter, tier)), false) = (self.alike, self.hashes.is_empty()) {
            let adapter = adapters.get(usize::from(adapter)).map_or("", String::as_str);
            sink.stored(Stored { adapter, tier, block_size: self.block_size, hashes: &self.hashes });
        }
        self.hashes.clear();
    }
}

fn best(counts: &[u32; 3]) -> Option<Tier> {
    Tier::ALL.into_iter().zip(counts).find(|&(_, &count)| count > 0).map(|(tier, _)| tier)
}

fn bump(counts: &mut [u32; 3], tier: Tier, change: impl Fn(u32) -> u32) {
    if let Some(count) = counts.get_mut(tier as usize) {
        *count = change(*count);
    }
}
