//! From runs and removals to index operations: own keys, and when they appear, move to another tier, or go.
//!
//! [`Copies`] knows each engine hash's key and copies. Where the engine's hash covers more than ours does (an adapter's
//! path, tokens ahead), several hashes share a key; for these a second count, per key, says when the key goes. Where it
//! does not, a key has one hash, and no second table is needed.
//!
//! Invariants
//! * The sink's view of the source equals the keys that have a copy, each with its best tier. (Not after an engine gave
//!   one key two hashes for a reason that the wire does not tell, such as cache salts before vLLM 0.17: then the key goes
//!   with the first of them, which costs a cache miss.)
//! * `keys` is the number of keys in the sink's view.
//!
//! Cost: O(blocks touched).

use super::chain::Run;
use super::copies::{AdapterId, Copies, Held, Kind, Profile, ProfileId};
use super::pages::{Link, Pages};
use super::{Limits, Sink, Stats, Stored, Tier};
use crate::events::{BlockRemoved, BlockStored, EngineHash};
use crate::hash::{BlockHash, BlockSize, Namespace};
use hashbrown::HashMap;

type Key = (AdapterId, BlockHash);

#[derive(Debug)]
pub(super) struct Blocks {
    copies: Copies,
    pages: Pages,
    /// Copies by tier of the keys that several engine hashes may have.
    aliases: HashMap<Key, [u32; 3]>,
    keys: usize,
    group_to: Option<BlockSize>,
    scratch: Scratch,
}

/// Memory that is used again.
#[derive(Debug, Default)]
struct Scratch {
    hashes: Vec<BlockHash>,
    bytes: Vec<u8>,
}

/// Where a run begins.
#[derive(Debug)]
pub(super) struct Start {
    /// Own key of the last whole block before it.
    base: Option<BlockHash>,
    /// If it begins inside of a block: the block's tokens so far.
    tokens: Vec<u32>,
}

impl Blocks {
    pub(super) fn new(limits: &Limits) -> Blocks {
        Blocks {
            copies: Copies::new(limits.seed, limits.blocks, limits.max_copies),
            pages: Pages::default(),
            aliases: HashMap::new(),
            keys: 0,
            group_to: limits.group_to,
            scratch: Scratch::default(),
        }
    }

    /// Distinct own keys held.
    pub(super) fn len(&self) -> usize {
        self.keys
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.copies.bytes()
            + self.pages.bytes()
            + self.aliases.capacity() * (size_of::<(Key, [u32; 3])>() + 1)
    }

    /// Where `run` begins, if the block before it is known. A parent under another adapter is not this run's parent.
    pub(super) fn start_of(&self, run: &Run<'_>) -> Option<Start> {
        let Some(parent) = run.parent else { return Some(Start { base: None, tokens: Vec::new() }) };
        let held = self.copies.get(parent)?;
        if self.copies.adapter(held.profile.adapter) != run.adapter {
            return None;
        }
        if held.profile.kind == Kind::Page { self.walk_back(held) } else { Some(Start::after(held)) }
    }

    /// Adds one copy of each block of `run`.
    pub(super) fn store(&mut self, run: &Run<'_>, start: Start, stats: &mut Stats, sink: &mut impl Sink) {
        let stored = match self.group_to.filter(|&to| groups(run.block_size, to)) {
            Some(block_size) => self.store_pages(run, start, block_size, stats, sink),
            None => self.store_blocks(run, start.base, stats, sink),
        };
        if let Err(reason) = stored {
            stats.skip(reason);
        }
    }

    /// Adds one copy at another tier of each block that is known.
    pub(super) fn store_placeholder(
        &mut self,
        event: &BlockStored<'_>,
        stats: &mut Stats,
        sink: &mut impl Sink,
    ) {
        for &hash in &event.hashes {
            let Some(held) = self.copies.get(hash) else {
                stats.skip("unknown_placeholder");
                continue;
            };
            let profile = Profile { tier: Tier::of_medium(event.medium), group: event.group, ..held.profile };
            let added = self.copies.profile_id(profile).and_then(|id| self.add(hash, held.key, profile, id));
            match added {
                Ok(tier) => {
                    stats.stored_blocks += 1;
                    if held.profile.kind != Kind::Page {
                        self.tell(BlockHash(held.key), profile, tier, sink);
                    }
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
            if self.remove_copy(hash, tier, event.group, sink) {
                stats.removed_blocks += 1;
            } else {
                unknown(hash, tier);
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.copies.clear();
        self.pages = Pages::default();
        self.aliases = HashMap::new();
        self.keys = 0;
    }

    fn store_blocks(
        &mut self,
        run: &Run<'_>,
        base: Option<BlockHash>,
        stats: &mut Stats,
        sink: &mut impl Sink,
    ) -> Result<(), &'static str> {
        let (profile, id) = self.profile_of(run, run.block_size)?;
        self.copies.warm(run.hashes);
        let mut parent = base;
        let mut told = Tier::T1;
        for (at, hash, tokens, namespace) in blocks_of(run) {
            parent = namespace.map_or(parent, |namespace| namespace.apply(parent));
            let own = BlockHash::of_block(parent, tokens, &mut self.scratch.bytes);
            parent = Some(own);
            if run.gone.contains(&at) {
                continue;
            }
            match self.add(hash, own.0, profile, id) {
                Ok(tier) => {
                    stats.stored_blocks += 1;
                    if tier != told {
                        self.flush(profile, told, sink);
                        told = tier;
                    }
                    self.scratch.hashes.push(own);
                }
                Err(reason) => stats.skip(reason),
            }
        }
        self.flush(profile, told, sink);
        Ok(())
    }

    /// As `store_blocks` for pages of which several make a block of ours.
    fn store_pages(
        &mut self,
        run: &Run<'_>,
        start: Start,
        block_size: BlockSize,
        stats: &mut Stats,
        sink: &mut impl Sink,
    ) -> Result<(), &'static str> {
        let (profile, id) = self.profile_of(run, block_size)?;
        let page = Profile { kind: Kind::Page, ..profile };
        let page_id = self.copies.profile_id(page)?;
        let Start { mut base, mut tokens } = start;
        let mut before = run.parent;
        for (at, hash, page_tokens, namespace) in blocks_of(run) {
            match namespace {
                None => {}
                Some(namespace) if before.is_none() => base = namespace.apply(base),
                // Nobody looks for such blocks in halves.
                Some(_) => return Err("grouped_content"),
            }
            let link = match before {
                Some(page) if !tokens.is_empty() => Link::Page(page),
                _ => Link::Block(base),
            };
            tokens.extend_from_slice(page_tokens);
            before = Some(hash);
            let is_whole = tokens.len() >= block_size.tokens() as usize;
            let added = if is_whole {
                let own = BlockHash::of_block(base, &tokens, &mut self.scratch.bytes);
                base = Some(own);
                tokens.clear();
                if run.gone.contains(&at) {
                    continue;
                }
                self.add(hash, own.0, profile, id).map(|tier| self.tell(own, profile, tier, sink))
            } else if run.gone.contains(&at) {
                continue;
            } else {
                self.add_page(hash, link, page_tokens, page, page_id)
            };
            match added {
                Ok(()) => stats.stored_blocks += 1,
                Err(reason) => stats.skip(reason),
            }
        }
        Ok(())
    }

    fn add_page(
        &mut self,
        hash: EngineHash,
        link: Link,
        tokens: &[u32],
        profile: Profile,
        id: ProfileId,
    ) -> Result<(), &'static str> {
        if let Some(held) = self.copies.get(hash).filter(|held| held.profile.kind == Kind::Page) {
            return self.add(hash, held.key, profile, id).map(drop);
        }
        let number = self.pages.add(link, tokens)?;
        self.add(hash, number.into(), profile, id).map(drop).inspect_err(|_| self.pages.remove(number))
    }

    /// Adds a copy; the best tier of its key.
    fn add(
        &mut self,
        hash: EngineHash,
        key: u64,
        profile: Profile,
        id: ProfileId,
    ) -> Result<Tier, &'static str> {
        if profile.kind == Kind::Aliased {
            self.aliases.try_reserve(1).map_err(|_| "out_of_memory")?;
        }
        let added = self.copies.add(hash, key, id)?;
        match profile.kind {
            Kind::Page => {}
            Kind::Plain => self.keys += usize::from(added.before.is_none()),
            Kind::Aliased => {
                let counts = self.aliases.entry((profile.adapter, BlockHash(key))).or_insert_with(|| {
                    self.keys += 1;
                    [0; 3]
                });
                if added.counted {
                    bump(counts, profile.tier, |count| count.saturating_add(1));
                }
                return Ok(best(counts).unwrap_or(added.after));
            }
        }
        Ok(added.after)
    }

    fn remove_copy(
        &mut self,
        hash: EngineHash,
        tier: Tier,
        group: Option<u32>,
        sink: &mut impl Sink,
    ) -> bool {
        let Some(removed) = self.copies.remove(hash, tier, group) else { return false };
        let Held { key, profile } = removed.held;
        let (mut before, mut after) = (Some(removed.before), removed.after);
        match profile.kind {
            Kind::Page => {
                if let (None, Ok(number)) = (after, u32::try_from(key)) {
                    self.pages.remove(number);
                }
                return true;
            }
            Kind::Plain => {}
            Kind::Aliased => {
                let alias = (profile.adapter, BlockHash(key));
                if let Some(counts) = self.aliases.get_mut(&alias) {
                    before = best(counts);
                    bump(counts, tier, |count| count.saturating_sub(1));
                    after = best(counts);
                    if after.is_none() {
                        self.aliases.remove(&alias);
                    }
                }
            }
        }
        match after {
            None => {
                self.keys = self.keys.saturating_sub(1);
                sink.removed(self.copies.adapter(profile.adapter), &[BlockHash(key)]);
            }
            // What leaves the engine's memory but stays on a lower tier is a demotion, not a loss.
            Some(tier) if after != before => self.tell(BlockHash(key), profile, tier, sink),
            Some(_) => {}
        }
        true
    }

    /// From a page inside of a block to the block's start.
    fn walk_back(&self, page: Held) -> Option<Start> {
        let longest = page.profile.block_size.tokens() as usize;
        let mut pages = Vec::new();
        let mut held = page;
        loop {
            let (link, tokens) = self.pages.get(u32::try_from(held.key).ok()?)?;
            pages.push(tokens);
            match link {
                Link::Block(base) => {
                    let tokens: Vec<u32> = pages.into_iter().rev().flatten().copied().collect();
                    return (tokens.len() < longest).then_some(Start { base, tokens });
                }
                Link::Page(before) if pages.len() < longest => {
                    held = self.copies.get(before).filter(|held| held.profile.kind == Kind::Page)?;
                }
                Link::Page(_) => return None,
            }
        }
    }

    fn profile_of(
        &mut self,
        run: &Run<'_>,
        block_size: BlockSize,
    ) -> Result<(Profile, ProfileId), &'static str> {
        let adapter = self.copies.adapter_id(run.adapter)?;
        let kind = if run.aliased { Kind::Aliased } else { Kind::Plain };
        let profile = Profile { adapter, block_size, tier: run.tier, group: run.group, kind };
        Ok((profile, self.copies.profile_id(profile)?))
    }

    fn tell(&self, hash: BlockHash, profile: Profile, tier: Tier, sink: &mut impl Sink) {
        let adapter = self.copies.adapter(profile.adapter);
        sink.stored(Stored { adapter, tier, block_size: profile.block_size, hashes: &[hash] });
    }

    /// Tells of the blocks gathered so far, which are stored alike.
    fn flush(&mut self, profile: Profile, tier: Tier, sink: &mut impl Sink) {
        let hashes = &mut self.scratch.hashes;
        if !hashes.is_empty() {
            let adapter = self.copies.adapter(profile.adapter);
            sink.stored(Stored { adapter, tier, block_size: profile.block_size, hashes });
            hashes.clear();
        }
    }
}

impl Start {
    fn after(held: Held) -> Start {
        Start { base: Some(BlockHash(held.key)), tokens: Vec::new() }
    }
}

/// Index, engine hash, tokens and namespace of each block of a run.
fn blocks_of<'a>(
    run: &Run<'a>,
) -> impl Iterator<Item = (u32, EngineHash, &'a [u32], Option<&'a Namespace>)> + use<'a> {
    let tokens = run.tokens.chunks_exact(run.block_size.tokens() as usize);
    let mut namespaces = run.namespaces.iter().peekable();
    (0..).zip(run.hashes.iter().zip(tokens)).map(move |(at, (&hash, tokens))| {
        let namespace = namespaces.next_if(|(block, _)| *block == at).map(|(_, namespace)| namespace);
        (at, hash, tokens, namespace)
    })
}

/// Whether pages of `page` tokens are gathered to blocks of `block_size`.
fn groups(page: BlockSize, block_size: BlockSize) -> bool {
    page < block_size && block_size.tokens().is_multiple_of(page.tokens())
}

fn best(counts: &[u32; 3]) -> Option<Tier> {
    Tier::ALL.into_iter().zip(counts).find(|&(_, &count)| count > 0).map(|(tier, _)| tier)
}

fn bump(counts: &mut [u32; 3], tier: Tier, change: impl Fn(u32) -> u32) {
    if let Some(count) = counts.get_mut(tier as usize) {
        *count = change(*count);
    }
}
