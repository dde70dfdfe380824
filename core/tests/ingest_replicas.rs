//! Several replicas, each with copies on tiers and in groups, adapters, duplicate stores, losses, restarts and removals:
//! whatever happens to one, the index of each equals what its engine holds.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod publisher;

use inference_cache_core::hash::{BlockHash, BlockSize, Namespace, chain};
use inference_cache_core::ingest::{Limits, Sink, Source, State, Stored, Tier};
use proptest::prelude::*;
use publisher::{BLOCK, batch, cleared, removed, stored, with_number, with_text};
use std::collections::BTreeMap;

const REPLICAS: usize = 3;
const MEDIA: [&str; 3] = ["GPU", "CPU", "STORAGE"];

type Held = BTreeMap<(String, BlockHash), Tier>;

/// One index for all replicas.
#[derive(Default)]
struct Index([Held; REPLICAS]);

struct Of<'a>(&'a mut Index, usize);

impl Sink for Of<'_> {
    fn stored(&mut self, stored: Stored<'_>) {
        for &hash in stored.hashes {
            self.0.0[self.1].insert((stored.adapter.to_owned(), hash), stored.tier);
        }
    }

    fn removed(&mut self, adapter: &str, hashes: &[BlockHash]) {
        for &hash in hashes {
            assert!(self.0.0[self.1].remove(&(adapter.to_owned(), hash)).is_some());
        }
    }

    fn cleared(&mut self) {
        self.0.0[self.1].clear();
    }
}

/// A naive engine: a list of copies.
#[derive(Default)]
struct Engine {
    copies: Vec<Copy>,
    process: u64,
    log: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq)]
struct Copy {
    prefix: Vec<u32>,
    /// An adapter's path is in the engine's hash, and not on the wire.
    adapter: Option<u8>,
    medium: usize,
    group: u64,
}

impl Copy {
    fn hash(&self, process: u64) -> u64 {
        let start = process ^ u64::from(self.adapter.map_or(0, |path| path + 1)) << 40;
        self.prefix.iter().fold(start, |hash, &token| {
            (hash ^ u64::from(token + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        })
    }
}

impl Engine {
    fn new(process: u64) -> Engine {
        Engine { process, ..Engine::default() }
    }

    fn serve(&mut self, prompt: &[u32], adapter: Option<u8>, group: u64, again: bool) {
        let full = prompt.len() / BLOCK;
        let copy =
            |block: usize| Copy { prefix: prompt[..(block + 1) * BLOCK].to_vec(), adapter, medium: 0, group };
        let holds = |block: &usize| self.copies.contains(&copy(*block));
        let first = if again { 0 } else { (0..full).take_while(holds).count() };
        if first == full {
            return;
        }
        let hashes: Vec<u64> = (first..full).map(|block| copy(block).hash(self.process)).collect();
        let parent = first.checked_sub(1).map(|block| copy(block).hash(self.process));
        let mut event = stored(&hashes, parent, &prompt[first * BLOCK..full * BLOCK], BLOCK as u32);
        event = with_number(with_text(event, "medium", MEDIA[0]), "group_idx", group);
        if adapter.is_some() {
            event = with_text(event, "lora_name", "ad");
        }
        self.copies.extend((first..full).map(copy));
        self.publish(&[event]);
    }

    /// Another copy of the `nth` on a lower tier, told without its tokens.
    fn offload(&mut self, nth: usize, medium: usize) {
        let Some(copy) = self.copies.get(nth % self.copies.len().max(1)).cloned() else { return };
        let copy = Copy { medium, ..copy };
        let event = with_text(stored(&[copy.hash(self.process)], None, &[], 0), "medium", MEDIA[medium]);
        let event = with_number(event, "group_idx", copy.group);
        self.copies.push(copy);
        self.publish(&[event]);
    }

    fn evict(&mut self, nth: usize) {
        if self.copies.is_empty() {
            return;
        }
        let copy = self.copies.remove(nth % self.copies.len());
        let event = with_text(removed(&[copy.hash(self.process)]), "medium", MEDIA[copy.medium]);
        self.publish(&[with_number(event, "group_idx", copy.group)]);
    }

    fn reset(&mut self) {
        self.copies.clear();
        self.publish(&[cleared()]);
    }

    fn publish(&mut self, events: &[Vec<u8>]) {
        self.log.push(batch(self.process as f64 + self.log.len() as f64 / 1000.0, events));
    }

    fn truth(&self) -> Held {
        let mut held = Held::new();
        for copy in &self.copies {
            let size = BlockSize::new(BLOCK as u32).unwrap();
            let hash = *chain(&copy.prefix, size, &Namespace::empty()).last().unwrap();
            let adapter = if copy.adapter.is_some() { "ad" } else { "" };
            let tier = Tier::ALL[copy.medium];
            held.entry((adapter.to_owned(), hash))
                .and_modify(|known| *known = tier.min(*known))
                .or_insert(tier);
        }
        held
    }
}

#[derive(Clone, Debug)]
enum Step {
    Serve {
        prompt: Vec<u32>,
        adapter: Option<u8>,
        group: u64,
        again: bool,
    },
    Offload(usize, usize),
    Evict(usize),
    Reset,
    Restart,
    /// The replica is removed, and comes back as it was.
    Remove,
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step, bool)>> {
    let serve = (
        prop::collection::vec(0_u32..2, 0..20),
        prop::option::weighted(0.3, 0_u8..2),
        0_u64..2,
        any::<bool>(),
    );
    let step = prop_oneof![
        12 => serve.prop_map(|(prompt, adapter, group, again)| Step::Serve { prompt, adapter, group, again }),
        4 => (0_usize..32, 1_usize..3).prop_map(|(nth, medium)| Step::Offload(nth, medium)),
        10 => (0_usize..32).prop_map(Step::Evict),
        1 => Just(Step::Reset),
        1 => Just(Step::Restart),
        1 => Just(Step::Remove),
    ];
    prop::collection::vec((0..REPLICAS, step, prop::bool::weighted(0.15)), 1..80)
}

struct Replica {
    engine: Engine,
    source: Source,
    sent: usize,
}

impl Replica {
    fn replay(&mut self, now: u64, sink: &mut impl Sink) {
        let Some(request) = self.source.replay_request(now) else { return };
        for (seq, payload) in self.engine.log.iter().enumerate().skip(request.from as usize) {
            self.source.replayed(request.ticket, seq as u64, payload, now, sink);
        }
        self.source.replay_ended(request.ticket, true, now, sink);
    }
}

fn run(steps: &[(usize, Step, bool)], lossy: bool) -> Result<(), TestCaseError> {
    let mut index = Index::default();
    let mut replicas: Vec<Replica> = (0..REPLICAS as u64)
        .map(|at| {
            let mut source = Source::new(true, Limits { max_copies: u16::MAX, ..Limits::default() });
            source.connected();
            Replica { engine: Engine::new(1000 * (at + 1)), source, sent: 0 }
        })
        .collect();
    let mut now = 0;
    for (at, step, lost) in steps {
        now += 60_000;
        let others: Vec<Held> = index.0.clone().into();
        let replica = &mut replicas[*at];
        let sink = &mut Of(&mut index, *at);
        match step {
            Step::Serve { prompt, adapter, group, again } => {
                replica.engine.serve(prompt, *adapter, *group, *again)
            }
            Step::Offload(nth, medium) => replica.engine.offload(*nth, *medium),
            Step::Evict(nth) => replica.engine.evict(*nth),
            Step::Reset => replica.engine.reset(),
            Step::Restart => {
                replica.engine = Engine::new(replica.engine.process + 100);
                replica.sent = 0;
                replica.source.process_started(replica.engine.process as f64 - 10.0, sink);
                replica.source.connected();
            }
            Step::Remove => {
                replica.source.lost(sink);
                prop_assert!(sink.0.0[*at].is_empty());
                replica.source.connected();
            }
        }
        for seq in replica.sent..replica.engine.log.len() {
            if !(lossy && *lost) {
                replica.source.batch(seq as u64, &replica.engine.log[seq], now, sink);
            }
        }
        replica.sent = replica.engine.log.len();
        if !lossy || now % 180_000 == 0 {
            replica.replay(now, sink);
        }
        for (other, before) in others.iter().enumerate().filter(|(other, _)| other != at) {
            prop_assert_eq!(before, &index.0[other]);
        }
        if !lossy {
            prop_assert_eq!(&index.0[*at], &replicas[*at].engine.truth());
        }
    }
    for (at, replica) in replicas.iter_mut().enumerate() {
        let sink = &mut Of(&mut index, at);
        replica.source.connected();
        for _ in 0..4 {
            now += 60_000;
            replica.replay(now, sink);
        }
        prop_assert_eq!(replica.source.state(), State::Synced);
        prop_assert_eq!(&index.0[at], &replica.engine.truth());
        prop_assert_eq!(replica.source.blocks(), index.0[at].len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_replica_has_what_its_engine_holds_after_every_step(steps in steps()) {
        run(&steps, false)?;
    }

    #[test]
    fn each_replica_has_what_its_engine_holds_once_replays_have_run(steps in steps()) {
        run(&steps, true)?;
    }
}
