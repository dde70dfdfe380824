//! Random loads: whoever follows the events knows the cache, and so what the next request will find.

use engine_sim::Request;
use engine_sim::config::{CacheConfig, Release};
use engine_sim::events::Event;
use engine_sim::scheduler::Scheduler;
use inference_cache_core::hash::BlockSize;
use inference_cache_core::hash::vllm::Digest;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

const BLOCK: u32 = 4;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Requests one after the other, with resets and a pool that is too small for all of them.
    #[test]
    fn a_follower_predicts_cached_tokens(load in load(), release in release()) {
        let config = config(release);
        let mut scheduler = Scheduler::new(config.clone());
        let mut follower = Follower::default();
        for action in load {
            let Action::Request(request) = action else {
                prop_assert!(scheduler.reset_prefix_cache());
                continue;
            };
            // A reset is announced with the next step, so its request finds nothing although the follower still hopes.
            let reset = scheduler.pool().copies().count() == 0;
            let predicted = if reset { 0 } else { follower.predict(&request, &config) };
            let mut answer = Vec::new();
            scheduler.add(request.clone()).unwrap();
            while let Some(step) = scheduler.schedule() {
                let output = scheduler.finish(step);
                follower.apply(&output.events);
                for sampled in output.tokens {
                    prop_assert_eq!(sampled.cached_tokens, predicted);
                    answer.push(sampled.token);
                }
                prop_assert_eq!(follower.copies(), pool_copies(&scheduler));
            }
            prop_assert_eq!(answer, request.answer);
        }
    }

    /// Requests at the same time, some given up: the pool never loses a block, and the follower knows what is in it.
    #[test]
    fn concurrent_requests_and_preemptions(load in load(), release in release(), abort in 0u64..40) {
        let mut scheduler = Scheduler::new(config(release));
        let mut follower = Follower::default();
        let mut expected = HashMap::new();
        for action in load {
            if let Action::Request(request) = action {
                let answer = request.answer.clone();
                expected.insert(scheduler.add(request).unwrap(), answer);
            }
        }
        if expected.remove(&abort).is_some() {
            scheduler.schedule().map(|step| scheduler.finish(step)).into_iter().for_each(|output| {
                follower.apply(&output.events);
                output.tokens.iter().filter(|token| token.request != abort).for_each(|token| {
                    expected.get_mut(&token.request).unwrap().remove(0);
                });
            });
            scheduler.abort(abort);
        }
        let mut steps = 0;
        while let Some(step) = scheduler.schedule() {
            steps += 1;
            prop_assert!(steps < 10_000, "no progress");
            let output = scheduler.finish(step);
            follower.apply(&output.events);
            for sampled in output.tokens {
                let answer = expected.get_mut(&sampled.request).unwrap();
                prop_assert_eq!(sampled.token, answer.remove(0));
                prop_assert_eq!(sampled.last, answer.is_empty());
            }
            prop_assert_eq!(follower.copies(), pool_copies(&scheduler));
        }
        prop_assert!(expected.values().all(Vec::is_empty));
        prop_assert_eq!(scheduler.pool().free_blocks(), scheduler.pool().usable_blocks());
    }
}

#[derive(Clone, Debug)]
enum Action {
    Request(Request),
    Reset,
}

/// What a router would keep: how many copies of each hash the engine announced and did not remove.
#[derive(Default)]
struct Follower {
    copies: HashMap<Digest, usize>,
}

impl Follower {
    fn apply(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::BlockStored(stored) => {
                    stored.block_hashes.iter().for_each(|&hash| *self.copies.entry(hash).or_default() += 1);
                }
                Event::BlockRemoved(hash) => {
                    let copies = self.copies.get_mut(hash).expect("removed only what was stored");
                    *copies -= 1;
                    if *copies == 0 {
                        self.copies.remove(hash);
                    }
                }
                Event::AllBlocksCleared => self.copies.clear(),
            }
        }
    }

    /// Run of known blocks, without the block of the prompt's last token.
    fn predict(&self, request: &Request, config: &CacheConfig) -> u32 {
        let mut hasher = config.chain_hasher(request.lora.as_deref(), request.cache_salt.as_deref());
        let hashes = request.prompt.iter().filter_map(|&token| hasher.push(token));
        let run = hashes.take_while(|hash| self.copies.contains_key(hash)).count() as u32;
        run.min((request.prompt.len() as u32 - 1) / BLOCK) * BLOCK
    }

    fn copies(&self) -> HashMap<Digest, usize> {
        self.copies.clone()
    }
}

fn pool_copies(scheduler: &Scheduler) -> HashMap<Digest, usize> {
    scheduler.pool().copies().collect()
}

fn config(release: Release) -> CacheConfig {
    CacheConfig {
        release,
        block_size: BlockSize::new(BLOCK).unwrap(),
        num_blocks: 16,
        max_num_seqs: 3,
        max_num_batched_tokens: 10,
        ..CacheConfig::default()
    }
}

fn release() -> impl Strategy<Value = Release> {
    prop_oneof![Just(Release::V0_22), Just(Release::V0_32)]
}

/// Prompts out of few tokens, so that many share a start.
fn load() -> impl Strategy<Value = Vec<Action>> {
    let tokens = |length| prop::collection::vec(0u32..2, length);
    let request = (tokens(1..30usize), tokens(1..20usize), prop::option::of("[ab]")).prop_map(
        |(prompt, answer, salt)| {
            Action::Request(Request { prompt, answer, cache_salt: salt.map(Arc::from), ..Request::default() })
        },
    );
    prop::collection::vec(prop_oneof![12 => request, 1 => Just(Action::Reset)], 1..30)
}
