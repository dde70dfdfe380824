//! A source against a naive engine: after any lossy delivery and a complete replay, the index holds what the engine
//! holds; without loss it does so after every batch.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod publisher;

use inference_cache_core::hash::{BlockHash, BlockSize, Namespace, chain};
use inference_cache_core::ingest::{Limits, Sink, Source, State, Stored};
use proptest::prelude::*;
use publisher::{BLOCK, Engine};
use std::collections::BTreeSet;

#[derive(Default)]
struct Index(BTreeSet<BlockHash>);

impl Sink for Index {
    fn stored(&mut self, stored: Stored<'_>) {
        self.0.extend(stored.hashes);
    }

    fn removed(&mut self, _adapter: &str, hashes: &[BlockHash]) {
        hashes.iter().for_each(|hash| assert!(self.0.remove(hash)));
    }

    fn cleared(&mut self) {
        self.0.clear();
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Prompts over few tokens share prefixes.
    Serve(Vec<u32>, bool),
    Evict(usize),
    Reset,
    /// The process dies and another takes its place, numbers from 0.
    Restart,
}

/// What happens to the live copy of one batch.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    ArrivesTwice,
    Lost,
    /// Lost, and the connection with it.
    Reconnects,
}

fn steps() -> impl Strategy<Value = Vec<(Step, Fate)>> {
    let step = prop_oneof![
        12 => (prop::collection::vec(0_u32..2, 0..24), any::<bool>()).prop_map(|(prompt, copies)| Step::Serve(prompt, copies)),
        8 => (0_usize..16).prop_map(Step::Evict),
        1 => Just(Step::Reset),
        1 => Just(Step::Restart),
    ];
    let fate = prop_oneof![
        8 => Just(Fate::Arrives),
        1 => Just(Fate::ArrivesTwice),
        2 => Just(Fate::Lost),
        1 => Just(Fate::Reconnects),
    ];
    prop::collection::vec((step, fate), 1..60)
}

fn act(engine: &mut Engine, step: &Step) {
    match step {
        Step::Serve(prompt, copies) => engine.serve(prompt, *copies),
        Step::Evict(nth) => engine.evict(*nth),
        Step::Reset => engine.reset(),
        Step::Restart => {}
    }
}

fn truth(engine: &Engine) -> BTreeSet<BlockHash> {
    let size = BlockSize::new(BLOCK as u32).unwrap();
    engine.held().map(|prefix| *chain(prefix, size, &Namespace::empty()).last().unwrap()).collect()
}

fn replay(source: &mut Source, engine: &Engine, index: &mut Index, now: u64) -> bool {
    let Some(request) = source.replay_request(now) else { return false };
    for (seq, payload) in engine.log.iter().enumerate().skip(request.from as usize) {
        source.replayed(request.ticket, seq as u64, payload, now, index);
    }
    source.replay_ended(request.ticket, true, now, index);
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_loss_the_index_is_what_the_engine_holds(steps in steps()) {
        let mut engine = Engine::new(1);
        let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
        let mut sent = 0;
        for (step, _) in &steps {
            act(&mut engine, step);
            for seq in sent..engine.log.len() {
                source.batch(seq as u64, &engine.log[seq], 0, &mut index);
            }
            sent = engine.log.len();
            prop_assert_eq!(&index.0, &truth(&engine));
        }
        prop_assert_eq!(source.blocks(), index.0.len());
        prop_assert_eq!((source.stats().unknown_removals, source.stats().orphans), (0, 0));
    }

    #[test]
    fn after_loss_a_replay_restores_it(steps in steps()) {
        let mut engine = Engine::new(1);
        let (mut source, mut index) = (Source::new(true, Limits::default()), Index::default());
        let mut seed = 1;
        let mut sent = 0;
        let mut now = 0;
        source.connected();
        for (step, fate) in &steps {
            now += 60_000;
            if matches!(step, Step::Restart) {
                seed += 1;
                engine = Engine::new(seed);
                sent = 0;
                // The process took the connection with it.
                source.connected();
            }
            act(&mut engine, step);
            for seq in sent..engine.log.len() {
                let mut deliver = || source.batch(seq as u64, &engine.log[seq], now, &mut index);
                match fate {
                    Fate::Arrives => deliver(),
                    Fate::ArrivesTwice => {
                        deliver();
                        deliver();
                    }
                    Fate::Lost => {}
                    Fate::Reconnects => source.connected(),
                }
            }
            sent = engine.log.len();
            // Every other step finds the replay socket answering.
            if now % 120_000 == 0 {
                replay(&mut source, &engine, &mut index, now);
            }
        }
        source.connected();
        for _ in 0..4 {
            now += 60_000;
            replay(&mut source, &engine, &mut index, now);
        }
        prop_assert_eq!(source.state(), State::Synced);
        prop_assert_eq!(&index.0, &truth(&engine));
        prop_assert_eq!(source.blocks(), index.0.len());
    }
}
