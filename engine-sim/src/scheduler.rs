//! vLLM's scheduler without a clock: first come, first served, chunked prefill, preemption of the newest.
//!
//! A step has two halves: [`Scheduler::schedule`] decides what is computed, takes blocks and gives full ones their
//! hashes (so requests of the same step already share them); [`Scheduler::finish`] yields the answer tokens and the
//! events of the step. The time between the halves is the caller's. Events that arise without a step, such as a reset,
//! leave with the next step: an idle engine stays silent.
//!
//! Rules, from vLLM 0.22.1 and 0.32.0 (its synchronous scheduler):
//! * Running requests come before waiting ones; all share `max_num_batched_tokens` per step.
//! * A waiting request starts when the blocks of all its tokens fit, and none starts in a step that preempted one.
//! * The block of the last token is computed even if it is cached, and announced once more as a copy.
//! * A request's blocks are freed in the half that yields its last token; that token is never computed.
//!
//! Not here: speculative decoding, priorities, several layer groups, KV connectors.

use crate::block_pool::BlockPool;
use crate::config::CacheConfig;
use crate::events::Event;
use crate::sequence::{Request, RequestId, Sequence};
use std::collections::{HashMap, VecDeque};

/// The scheduler and its cache.
#[derive(Debug)]
pub struct Scheduler {
    config: CacheConfig,
    pool: BlockPool,
    sequences: HashMap<RequestId, Sequence>,
    waiting: VecDeque<RequestId>,
    /// In the order of their start.
    running: Vec<RequestId>,
    next_id: RequestId,
    totals: Totals,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tokens that were looked up in the cache.
    pub queried_tokens: u64,
    /// Tokens that were found.
    pub hit_tokens: u64,
    /// Tokens of prompts that were prefilled or found.
    pub prompt_tokens: u64,
    /// Answered tokens.
    pub generation_tokens: u64,
    /// Times a running request lost its blocks.
    pub preemptions: u64,
}

/// What a step computes: the measure of its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Tokens computed beyond the newest of each request.
    pub prefill_tokens: u32,
    /// Requests that compute their newest token only.
    pub decodes: u32,
    work: Vec<(RequestId, usize)>,
}

/// What a step yields.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// One per request that came to the end of its tokens.
    pub tokens: Vec<Sampled>,
    /// Everything that happened to the cache, in order.
    pub events: Vec<Event>,
}

/// One answer token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Whose.
    pub request: RequestId,
    /// The token.
    pub token: u32,
    /// Whether it is the request's last.
    pub last: bool,
    /// Prompt tokens that came out of the cache.
    pub cached_tokens: u32,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No tokens to compute or to answer.
    #[error("the prompt or the answer has no tokens")]
    Empty,
    /// More tokens than [`CacheConfig::context_limit`].
    #[error("{tokens} tokens exceed the limit of {limit}")]
    TooLong {
        /// Prompt and answer.
        tokens: usize,
        /// What fits.
        limit: u32,
    },
}

impl Scheduler {
    /// An idle scheduler with an empty cache.
    pub fn new(config: CacheConfig) -> Scheduler {
        Scheduler {
            pool: BlockPool::new(config.num_blocks, config.release.free_order()),
            config,
            sequences: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            next_id: 0,
            totals: Totals::default(),
        }
    }

    /// Queues a request.
    pub fn add(&mut self, request: Request) -> Result<RequestId, Refused> {
        let tokens = request.prompt.len() + request.answer.len();
        let limit = self.config.context_limit();
        if request.prompt.is_empty() || request.answer.is_empty() {
            return Err(Refused::Empty);
        }
        if tokens > limit as usize {
            return Err(Refused::TooLong { tokens, limit });
        }
        let id = self.next_id;
        self.next_id += 1;
        self.sequences.insert(id, Sequence::new(request, &self.config));
        self.waiting.push_back(id);
        Ok(id)
    }

    /// Drops a request and frees its blocks. Not between the halves of a step.
    pub fn abort(&mut self, id: RequestId) {
        self.waiting.retain(|&waiting| waiting != id);
        self.running.retain(|&running| running != id);
        if let Some(sequence) = self.sequences.remove(&id) {
            self.pool.release(&sequence.blocks);
        }
    }

    /// Empties the cache unless requests hold blocks; whether it did.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.reset()
    }

    /// First half of a step; `None` if there is nothing to do.
    pub fn schedule(&mut self) -> Option<Step> {
        let mut step = Step::default();
        let mut budget = self.config.max_num_batched_tokens as usize;
        let preemptions = self.totals.preemptions;
        self.schedule_running(&mut step, &mut budget);
        if preemptions == self.totals.preemptions {
            self.schedule_waiting(&mut step, &mut budget);
        }
        (!step.work.is_empty()).then_some(step)
    }

    /// Second half of a step.
    pub fn finish(&mut self, step: Step) -> StepOutput {
        let mut tokens = Vec::new();
        for (id, count) in step.work {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            sequence.computed += count;
            if sequence.computed < sequence.tokens.len() {
                continue;
            }
            let first = sequence.answered() == 0;
            let (token, last) = sequence.sample();
            let cached_tokens = sequence.cached_tokens.unwrap_or(0);
            self.totals.generation_tokens += 1;
            if first {
                self.totals.prompt_tokens += sequence.computed as u64;
            }
            tokens.push(Sampled { request: id, token, last, cached_tokens });
            if last {
                self.abort(id);
            }
        }
        StepOutput { tokens, events: self.pool.take_events() }
    }

    /// Requests that hold blocks.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that do not.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Counters since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The cache.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    fn schedule_running(&mut self, step: &mut Step, budget: &mut usize) {
        let mut next = 0;
        while let Some(&id) = self.running.get(next) {
            let sequence = &self.sequences[&id];
            let count = (sequence.tokens.len() - sequence.computed).min(*budget);
            if count == 0 {
                return;
            }
            if !self.grow(id, count) {
                let newest = self.running.len() - 1;
                self.preempt(newest);
                if newest == next {
                    return;
                }
                continue;
            }
            step.add(id, count, &self.sequences[&id]);
            *budget -= count;
            next += 1;
        }
    }

    fn schedule_waiting(&mut self, step: &mut Step, budget: &mut usize) {
        while *budget > 0 && self.running.len() < self.config.max_num_seqs {
            let Some(&id) = self.waiting.front() else { return };
            let Some(count) = self.start(id, *budget) else { return };
            self.waiting.pop_front();
            self.running.push(id);
            step.add(id, count, &self.sequences[&id]);
            *budget -= count;
        }
    }

    /// Gives a waiting request its cached blocks and room for its first tokens; how many it computes, `None` if the
    /// whole request does not fit.
    fn start(&mut self, id: RequestId, budget: usize) -> Option<usize> {
        let block_size = self.config.block_size.tokens() as usize;
        let sequence = self.sequences.get_mut(&id)?;
        let found = self.pool.find(sequence.reusable_hashes());
        if sequence.request.report_full && !found.is_empty() {
            self.pool.announce(Event::BlockStored(sequence.stored(0..found.len())));
        }
        let needed = sequence.tokens.len().div_ceil(block_size) - found.len();
        if needed as u32 + self.pool.unreferenced(&found) > self.pool.free_blocks() {
            return None;
        }
        let computed = found.len() * block_size;
        self.totals.queried_tokens += sequence.tokens.len() as u64;
        self.totals.hit_tokens += computed as u64;
        self.pool.touch(&found);
        sequence.cached_tokens.get_or_insert(computed as u32);
        sequence.computed = computed;
        sequence.cached_blocks = found.len();
        sequence.blocks = found;
        let count = (sequence.tokens.len() - computed).min(budget);
        self.grow(id, count).then_some(count)
    }

    /// Takes the blocks for `count` more tokens and gives those that they fill their hashes; `false` if there is no room.
    fn grow(&mut self, id: RequestId, count: usize) -> bool {
        let block_size = self.config.block_size.tokens() as usize;
        let Some(sequence) = self.sequences.get_mut(&id) else { return false };
        let end = sequence.computed + count;
        let missing = end.div_ceil(block_size).saturating_sub(sequence.blocks.len()) as u32;
        if missing > self.pool.free_blocks() {
            return false;
        }
        sequence.blocks.extend(self.pool.take(missing));
        let full = sequence.cached_blocks..end / block_size;
        if !full.is_empty() {
            for index in full.clone() {
                self.pool.cache(sequence.blocks[index], sequence.hashes[index]);
            }
            self.pool.announce(Event::BlockStored(sequence.stored(full.clone())));
            sequence.cached_blocks = full.end;
        }
        true
    }

    /// Takes the blocks of the running request at `index` away and puts it in front of the waiting ones. It had no
    /// turn in this step yet: turns go from the oldest to the newest.
    fn preempt(&mut self, index: usize) {
        let id = self.running.remove(index);
        if let Some(sequence) = self.sequences.get_mut(&id) {
            self.pool.release(&std::mem::take(&mut sequence.blocks));
            sequence.computed = 0;
            sequence.cached_blocks = 0;
        }
        self.waiting.push_front(id);
        self.totals.preemptions += 1;
    }
}

impl Step {
    fn add(&mut self, id: RequestId, count: usize, sequence: &Sequence) {
        match sequence.is_decode() {
            true => self.decodes += 1,
            false => self.prefill_tokens += count as u32,
        }
        self.work.push((id, count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inference_cache_core::hash::BlockSize;

    fn scheduler(num_blocks: u32, max_num_batched_tokens: u32) -> Scheduler {
        let block_size = BlockSize::new(4).unwrap();
        let base = CacheConfig::default();
        Scheduler::new(CacheConfig { block_size, num_blocks, max_num_batched_tokens, ..base })
    }

    fn request(prompt: std::ops::Range<u32>, answer: u32) -> Request {
        Request { prompt: prompt.collect(), answer: (900..900 + answer).collect(), ..Request::default() }
    }

    fn step(scheduler: &mut Scheduler) -> (u32, u32, StepOutput) {
        let step = scheduler.schedule().unwrap();
        (step.prefill_tokens, step.decodes, scheduler.finish(step))
    }

    #[test]
    fn long_prompts_are_prefilled_in_chunks_beside_decodes() {
        let mut scheduler = scheduler(64, 10);
        scheduler.add(request(0..4, 3)).unwrap();
        let (prefill, decodes, output) = step(&mut scheduler);
        assert_eq!((prefill, decodes, output.tokens.len()), (4, 0, 1));
        scheduler.add(request(100..112, 1)).unwrap();
        let (prefill, decodes, output) = step(&mut scheduler);
        assert_eq!((prefill, decodes, output.tokens.len()), (9, 1, 1));
        let (prefill, decodes, output) = step(&mut scheduler);
        assert_eq!((prefill, decodes, output.tokens.len()), (3, 1, 2));
        assert!(output.tokens.iter().all(|sampled| sampled.last));
        assert!(scheduler.schedule().is_none());
    }

    #[test]
    fn the_newest_request_gives_way_and_comes_back() {
        let mut scheduler = scheduler(5, 100);
        let old = scheduler.add(request(0..8, 6)).unwrap();
        let new = scheduler.add(request(100..107, 6)).unwrap();
        let mut order = Vec::new();
        while let Some(step) = scheduler.schedule() {
            order.extend(scheduler.finish(step).tokens.iter().map(|sampled| (sampled.request, sampled.last)));
        }
        assert_eq!(scheduler.totals().preemptions, 1);
        let ends: Vec<RequestId> = order.iter().filter(|(_, last)| *last).map(|&(id, _)| id).collect();
        assert_eq!(ends, [old, new]);
        assert_eq!(order.len(), 12);
    }

    #[test]
    fn what_never_fits_is_refused() {
        let mut scheduler = scheduler(5, 100);
        assert_eq!(scheduler.add(request(0..12, 5)), Err(Refused::TooLong { tokens: 17, limit: 16 }));
        assert_eq!(scheduler.add(request(0..0, 5)), Err(Refused::Empty));
        assert_eq!(scheduler.add(request(0..5, 0)), Err(Refused::Empty));
        assert!(scheduler.add(request(0..12, 4)).is_ok());
    }
}
