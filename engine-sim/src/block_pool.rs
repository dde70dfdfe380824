//! vLLM's paged prefix cache: a pool of blocks, of which the unused ones keep their content until they are needed.
//!
//! A block is *cached* if it has a hash. Blocks without references wait in the free queue, in eviction order, cached or
//! not; taking one from the queue's front for new content removes its hash and announces that. The same hash may sit
//! in several blocks: vLLM never merges duplicates, and each is announced and removed for itself. Block 0 is the null
//! block and never used.
//!
//! Order of the free queue, front first: [`FreeOrder`]. Source: `BlockPool` and `FreeKVCacheBlockQueue` of vLLM.
//!
//! Cost: O(1) per block taken, touched or freed; O(copies) to find or forget one of several copies.

use crate::events::Event;
use inference_cache_core::hash::vllm::Digest;
use std::collections::HashMap;

/// Index of a block in the pool.
pub type BlockId = u32;

/// Where freed blocks enter the free queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeOrder {
    /// vLLM up to 0.23: all at the back.
    Back,
    /// vLLM 0.24 and later: cached ones at the back, the others at the front, to be reused first.
    UncachedFirst,
}

/// The pool.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    /// Blocks of a hash, oldest first: the first is the one that a lookup finds.
    cached: HashMap<Digest, Vec<BlockId>>,
    free: FreeQueue,
    free_order: FreeOrder,
    /// What happened since [`BlockPool::take_events`], in order.
    events: Vec<Event>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    references: u32,
    hash: Option<Digest>,
}

impl BlockPool {
    /// A pool of `num_blocks` blocks (at least 2), the null block included.
    pub fn new(num_blocks: u32, free_order: FreeOrder) -> BlockPool {
        let mut free = FreeQueue::new(num_blocks);
        (1..num_blocks).for_each(|id| free.push_back(id));
        BlockPool {
            blocks: vec![Block::default(); num_blocks as usize],
            cached: HashMap::new(),
            free,
            free_order,
            events: Vec::new(),
        }
    }

    /// Blocks that can be taken.
    pub fn free_blocks(&self) -> u32 {
        self.free.len
    }

    /// Blocks without the null block.
    pub fn usable_blocks(&self) -> u32 {
        self.blocks.len() as u32 - 1
    }

    /// Share of the usable blocks that requests hold, 0 to 1.
    pub fn usage(&self) -> f64 {
        1.0 - f64::from(self.free.len) / f64::from(self.usable_blocks())
    }

    /// The blocks that hold the longest cached start of `hashes`.
    pub fn find(&self, hashes: &[Digest]) -> Vec<BlockId> {
        hashes.iter().map_while(|hash| self.cached.get(hash)?.first().copied()).collect()
    }

    /// How many of `blocks` would leave the free queue if they were touched.
    pub fn unreferenced(&self, blocks: &[BlockId]) -> u32 {
        blocks.iter().filter(|&&id| self.blocks[id as usize].references == 0).count() as u32
    }

    /// Adds a reference to each of `blocks`, so that they cannot be evicted.
    pub fn touch(&mut self, blocks: &[BlockId]) {
        for &id in blocks {
            let block = &mut self.blocks[id as usize];
            if block.references == 0 {
                self.free.remove(id);
            }
            block.references += 1;
        }
    }

    /// Takes `count` blocks for new content; their old content is evicted and announced. `count` must not exceed
    /// [`BlockPool::free_blocks`].
    pub fn take(&mut self, count: u32) -> Vec<BlockId> {
        assert!(count <= self.free.len, "the caller checks what is free");
        let blocks: Vec<BlockId> = (0..count).map_while(|_| self.free.pop_front()).collect();
        blocks.iter().for_each(|&id| self.reuse(id));
        blocks
    }

    /// Gives `id` its content's `hash`: from now on it can be found.
    pub fn cache(&mut self, id: BlockId, hash: Digest) {
        let block = &mut self.blocks[id as usize];
        debug_assert!(block.hash.is_none() && block.references > 0);
        block.hash = Some(hash);
        self.cached.entry(hash).or_default().push(id);
    }

    /// Drops one reference of each of a request's `blocks`, given in the order of its tokens: the tail is evicted first.
    pub fn release(&mut self, blocks: &[BlockId]) {
        let mut first = Vec::new();
        for &id in blocks.iter().rev() {
            let block = &mut self.blocks[id as usize];
            block.references -= 1;
            if block.references > 0 {
                continue;
            }
            match (self.free_order, block.hash) {
                (FreeOrder::UncachedFirst, None) => first.push(id),
                _ => self.free.push_back(id),
            }
        }
        first.into_iter().rev().for_each(|id| self.free.push_front(id));
    }

    /// Forgets every hash. `false`, and nothing happens, while requests hold blocks.
    pub fn reset(&mut self) -> bool {
        if self.free.len < self.usable_blocks() {
            return false;
        }
        self.blocks.iter_mut().for_each(|block| block.hash = None);
        self.cached.clear();
        self.events.push(Event::AllBlocksCleared);
        true
    }

    /// Adds an event that the pool does not see itself.
    pub fn announce(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The events since the last call, in order.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// How many blocks hold each hash.
    pub fn copies(&self) -> impl Iterator<Item = (Digest, usize)> + '_ {
        self.cached.iter().map(|(&hash, blocks)| (hash, blocks.len()))
    }

    fn reuse(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        block.references = 1;
        let Some(hash) = block.hash.take() else { return };
        if let Some(copies) = self.cached.get_mut(&hash) {
            copies.retain(|&copy| copy != id);
            if copies.is_empty() {
                self.cached.remove(&hash);
            }
        }
        self.events.push(Event::BlockRemoved(hash));
    }
}

/// Doubly linked list over block ids: O(1) at both ends and in the middle.
#[derive(Debug)]
struct FreeQueue {
    /// `(previous, next)` of each block; the last entry is the sentinel that closes the ring.
    links: Vec<(BlockId, BlockId)>,
    len: u32,
}

impl FreeQueue {
    fn new(num_blocks: u32) -> FreeQueue {
        FreeQueue { links: vec![(num_blocks, num_blocks); num_blocks as usize + 1], len: 0 }
    }

    fn sentinel(&self) -> BlockId {
        self.links.len() as BlockId - 1
    }

    fn push_back(&mut self, id: BlockId) {
        let sentinel = self.sentinel();
        self.insert_between(self.links[sentinel as usize].0, id, sentinel);
    }

    fn push_front(&mut self, id: BlockId) {
        let sentinel = self.sentinel();
        self.insert_between(sentinel, id, self.links[sentinel as usize].1);
    }

    fn pop_front(&mut self) -> Option<BlockId> {
        let sentinel = self.sentinel();
        let first = self.links[sentinel as usize].1;
        (first != sentinel).then(|| {
            self.remove(first);
            first
        })
    }

    fn remove(&mut self, id: BlockId) {
        let (previous, next) = self.links[id as usize];
        self.links[previous as usize].1 = next;
        self.links[next as usize].0 = previous;
        self.len -= 1;
    }

    fn insert_between(&mut self, previous: BlockId, id: BlockId, next: BlockId) {
        self.links[id as usize] = (previous, next);
        self.links[previous as usize].1 = id;
        self.links[next as usize].0 = id;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(byte: u8) -> Digest {
        Digest::Sha256([byte; 32])
    }

    fn removed(pool: &mut BlockPool) -> Vec<u8> {
        let hash = |event| match event {
            Event::BlockRemoved(Digest::Sha256([byte, ..])) => byte,
            other => panic!("{other:?}"),
        };
        pool.take_events().into_iter().map(hash).collect()
    }

    #[test]
    fn the_null_block_is_never_handed_out() {
        let mut pool = BlockPool::new(4, FreeOrder::UncachedFirst);
        assert_eq!(pool.take(3), [1, 2, 3]);
        assert_eq!(pool.free_blocks(), 0);
        assert_eq!(pool.usage(), 1.0);
    }

    #[test]
    fn the_tail_is_evicted_first_and_uncached_blocks_before_it() {
        let mut pool = BlockPool::new(4, FreeOrder::UncachedFirst);
        let blocks = pool.take(3);
        pool.cache(blocks[0], digest(1));
        pool.cache(blocks[1], digest(2));
        pool.release(&blocks);
        assert_eq!(pool.take(1), [blocks[2]]);
        assert_eq!(pool.take(2), [blocks[1], blocks[0]]);
        assert_eq!(removed(&mut pool), [2, 1]);
    }

    #[test]
    fn before_0_24_all_freed_blocks_go_to_the_back() {
        let mut pool = BlockPool::new(5, FreeOrder::Back);
        let blocks = pool.take(2);
        pool.cache(blocks[0], digest(1));
        pool.release(&blocks);
        assert_eq!(pool.take(4), [3, 4, blocks[1], blocks[0]]);
        assert_eq!(removed(&mut pool), [1]);
    }

    #[test]
    fn copies_are_removed_one_by_one() {
        let mut pool = BlockPool::new(3, FreeOrder::UncachedFirst);
        let (a, b) = (pool.take(1), pool.take(1));
        pool.cache(a[0], digest(7));
        pool.cache(b[0], digest(7));
        assert_eq!(pool.find(&[digest(7)]), a);
        pool.release(&a);
        pool.release(&b);
        assert_eq!(pool.take(1), a);
        assert_eq!(pool.find(&[digest(7)]), b);
        assert_eq!(pool.take(1), b);
        assert!(pool.find(&[digest(7)]).is_empty());
        assert_eq!(removed(&mut pool), [7, 7]);
    }

    #[test]
    fn touched_blocks_are_kept_and_a_reset_waits_for_them() {
        let mut pool = BlockPool::new(3, FreeOrder::UncachedFirst);
        let blocks = pool.take(1);
        pool.cache(blocks[0], digest(1));
        pool.release(&blocks);
        assert_eq!(pool.unreferenced(&blocks), 1);
        pool.touch(&blocks);
        assert_eq!((pool.free_blocks(), pool.unreferenced(&blocks)), (1, 0));
        assert!(!pool.reset());
        pool.release(&blocks);
        assert!(pool.reset());
        assert_eq!(pool.copies().count(), 0);
        assert_eq!(pool.take_events(), [Event::AllBlocksCleared]);
    }
}
