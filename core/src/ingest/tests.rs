#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::*;
use crate::hash::{BlockHash, BlockSize, Namespace, chain};
use publisher::{batch, cleared, removed, stored, with_number, with_text};
use std::collections::BTreeMap;

#[path = "../../tests/publisher/mod.rs"]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod publisher;

#[derive(Default)]
struct Index(BTreeMap<(String, BlockHash), Tier>);

impl Sink for Index {
    fn stored(&mut self, stored: Stored<'_>) {
        for &hash in stored.hashes {
            self.0.insert((stored.adapter.to_owned(), hash), stored.tier);
        }
    }

    fn removed(&mut self, adapter: &str, hashes: &[BlockHash]) {
        for &hash in hashes {
            assert!(self.0.remove(&(adapter.to_owned(), hash)).is_some(), "removed what was not stored");
        }
    }

    fn cleared(&mut self) {
        self.0.clear();
    }
}

impl Index {
    fn base(&self) -> Vec<BlockHash> {
        self.0.keys().filter(|(adapter, _)| adapter.is_empty()).map(|&(_, hash)| hash).collect()
    }

    fn tier(&self, hash: BlockHash) -> Option<Tier> {
        self.0.get(&(String::new(), hash)).copied()
    }
}

const TOKENS: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn own(tokens: &[u32]) -> Vec<BlockHash> {
    own_in(tokens, &Namespace::empty())
}

fn own_in(tokens: &[u32], namespace: &Namespace) -> Vec<BlockHash> {
    chain(tokens, BlockSize::new(4).unwrap(), namespace)
}

fn sorted(mut hashes: Vec<BlockHash>) -> Vec<BlockHash> {
    hashes.sort();
    hashes
}

/// A source without replay that got one batch with these events.
fn after(events: &[Vec<u8>]) -> (Source, Index) {
    let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
    source.batch(0, &batch(1.0, events), 0, &mut index);
    (source, index)
}

#[test]
fn copies_are_counted() {
    let twice = [stored(&[10], None, &TOKENS[..4], 4), stored(&[10], None, &TOKENS[..4], 4), removed(&[10])];
    let (mut source, mut index) = after(&twice);
    assert_eq!(index.base(), own(&TOKENS[..4]));
    source.batch(1, &batch(2.0, &[removed(&[10]), removed(&[10])]), 0, &mut index);
    assert_eq!(index.base(), []);
    assert_eq!(source.stats().unknown_removals, 1);
    assert_eq!(source.blocks(), 0);
}

#[test]
fn a_copy_of_another_group_is_another_copy() {
    let event = with_number(stored(&[10], None, &TOKENS[..4], 4), "group_idx", 1);
    let (mut source, mut index) = after(&[event]);
    source.batch(1, &batch(2.0, &[with_number(removed(&[10]), "group_idx", 0)]), 0, &mut index);
    assert_eq!(index.base().len(), 1);
    source.batch(2, &batch(3.0, &[with_number(removed(&[10]), "group_idx", 1)]), 0, &mut index);
    assert_eq!(index.base(), []);
}

#[test]
fn leaving_the_gpu_is_a_demotion_while_the_host_has_a_copy() {
    let hash = own(&TOKENS[..4])[0];
    let placeholder = with_text(stored(&[10], None, &[], 0), "medium", "CPU");
    let (mut source, mut index) = after(&[stored(&[10], None, &TOKENS[..4], 4), placeholder]);
    assert_eq!(index.tier(hash), Some(Tier::T1));
    source.batch(1, &batch(2.0, &[with_text(removed(&[10]), "medium", "GPU")]), 0, &mut index);
    assert_eq!(index.tier(hash), Some(Tier::T2));
    source.batch(2, &batch(3.0, &[with_text(removed(&[10]), "medium", "CPU")]), 0, &mut index);
    assert_eq!(index.tier(hash), None);
}

#[test]
fn what_cannot_be_placed_is_not_indexed() {
    let (source, index) = after(&[
        with_text(stored(&[10], None, &TOKENS[..4], 4), "kv_cache_spec_kind", "sliding_window"),
        stored(&[10], None, &TOKENS, 4), // two blocks of tokens, one hash
        stored(&[10, 11, 12], None, &TOKENS, 4), // the reverse
        stored(&[10], None, &TOKENS[..4], 0), // no block size
        with_number(stored(&[10], None, &TOKENS[..4], 4), "lora_id", 3), // an adapter, but which
        with_text(stored(&[10], None, &[], 0), "medium", "CPU"), // a copy of an unknown block
    ]);
    assert_eq!(index.base(), []);
    let skipped: Vec<_> = source.stats().skipped.iter().map(|(&reason, &count)| (reason, count)).collect();
    assert_eq!(
        skipped,
        [
            ("block_size", 1),
            ("nameless_adapter", 1),
            ("sparse_group", 1),
            ("sparse_positions", 2),
            ("unknown_placeholder", 1),
        ]
    );
}

#[test]
fn a_partial_last_block_is_dropped() {
    let (_, index) = after(&[stored(&[10, 11], None, &TOKENS[..6], 4)]);
    assert_eq!(index.base(), own(&TOKENS[..4]));
}

#[test]
fn adapters_and_salts_separate() {
    let salted = with_text(stored(&[11], None, &TOKENS[..4], 4), "cache_salt", "s");
    let adapted = with_text(stored(&[12], None, &TOKENS[..4], 4), "lora_name", "ad");
    let (_, index) = after(&[salted, adapted]);
    let salt = own_in(&TOKENS[..4], &Namespace::empty().with_cache_salt("s"))[0];
    let keys: Vec<_> = index.0.keys().cloned().collect();
    assert_eq!(keys, [(String::new(), salt), ("ad".to_owned(), own(&TOKENS[..4])[0])]);
}

#[test]
fn orphans_wait_for_their_parent_and_are_never_a_root() {
    let grandchild = stored(&[12], Some(11), &[9, 9, 9, 9], 4);
    let child = stored(&[11], Some(10), &TOKENS[4..], 4);
    let (mut source, mut index) = after(&[grandchild, child]);
    assert_eq!(index.base(), []);
    assert_eq!(source.waiting_blocks(), 2);
    source.batch(1, &batch(2.0, &[removed(&[11]), stored(&[10], None, &TOKENS[..4], 4)]), 0, &mut index);
    // The middle block is gone, and with it the anchor of the last one.
    assert_eq!(index.base(), own(&TOKENS[..4]));
    source.batch(2, &batch(3.0, &[stored(&[11], Some(10), &TOKENS[4..], 4)]), 0, &mut index);
    let whole = [&TOKENS[..], &[9, 9, 9, 9]].concat();
    assert_eq!(index.base(), sorted(own(&whole)));
    assert_eq!(source.waiting_blocks(), 0);
}

#[test]
fn orphans_expire_and_are_bounded() {
    let limits = Limits { orphans: 2, ..Limits::default() };
    let ttl = limits.orphan_ttl_ms;
    let (mut source, mut index) = (Source::new(false, limits), Index::default());
    for seq in 0..5 {
        let event = stored(&[100 + seq], Some(50 + seq), &TOKENS[..4], 4);
        source.batch(seq, &batch(seq as f64, &[event]), 0, &mut index);
    }
    assert_eq!((source.waiting_blocks(), source.stats().orphans_dropped), (2, 3));
    source.tick(ttl);
    assert_eq!((source.waiting_blocks(), source.stats().orphans_dropped), (0, 5));
    assert_eq!(index.base(), []);
}

#[test]
fn bad_events_and_payloads_are_counted_and_skipped() {
    let mut broken = stored(&[10], None, &TOKENS[..4], 4);
    broken[0] -= 1; // the block size is missing, and its bytes are two values too many
    let (mut source, mut index) = after(&[stored(&[10], None, &TOKENS[..4], 4)]);
    source.batch(1, b"\xc1", 0, &mut index);
    source.batch(2, &batch(1.0, &[vec![0xc0], removed(&[10])]), 0, &mut index);
    assert_eq!(index.base(), []);
    let errors: Vec<_> =
        source.stats().decode_errors.iter().map(|(&reason, &count)| (reason, count)).collect();
    assert_eq!(errors, [("malformed", 1), ("no_tag", 1)]);
    assert_eq!(source.last_seq(), Some(2));
}

/// Batches 0.. of a publisher that stores one more block each.
fn log() -> Vec<Vec<u8>> {
    let mut engine = publisher::Engine::new(1);
    for length in 1..=10 {
        engine.serve(&(0..length * 4).collect::<Vec<u32>>(), false);
    }
    engine.log
}

fn whole_log() -> Vec<BlockHash> {
    sorted(own(&(0..40).collect::<Vec<u32>>()))
}

fn replay(source: &mut Source, log: &[Vec<u8>], complete: bool, index: &mut Index) -> u64 {
    let request = source.replay_request(0).unwrap();
    for seq in request.from..log.len() as u64 {
        source.replayed(request.ticket, seq, &log[seq as usize], 0, index);
    }
    source.replay_ended(request.ticket, complete, 0, index);
    request.from
}

#[test]
fn a_late_start_asks_for_the_whole_ring() {
    let log = log();
    let (mut source, mut index) = (Source::new(true, Limits::default()), Index::default());
    source.connected();
    assert_eq!(source.state(), State::Gap);
    let request = source.replay_request(0).unwrap();
    assert_eq!((request.from, source.state()), (0, State::Replaying));
    source.batch(8, &log[8], 0, &mut index);
    source.batch(9, &log[9], 0, &mut index);
    assert_eq!(index.base(), []);
    for seq in 0..9 {
        source.replayed(request.ticket, seq, &log[seq as usize], 0, &mut index);
    }
    source.replay_ended(request.ticket, true, 0, &mut index);
    assert_eq!(index.base(), whole_log());
    assert_eq!((source.state(), source.last_seq()), (State::Synced, Some(9)));
    assert_eq!((source.stats().gaps, source.stats().missed_batches), (0, 0));
}

#[test]
fn a_gap_is_replayed_from_the_last_batch_applied() {
    let log = log();
    let (mut source, mut index) = (Source::new(true, Limits::default()), Index::default());
    (0..4).for_each(|seq| source.batch(seq, &log[seq as usize], 0, &mut index));
    source.batch(9, &log[9], 0, &mut index);
    assert_eq!((source.state(), source.stats().gaps), (State::Gap, 1));
    assert_eq!(replay(&mut source, &log, true, &mut index), 3);
    assert_eq!(index.base(), whole_log());
    assert_eq!(source.state(), State::Synced);
}

#[test]
fn a_replay_that_loses_batches_is_repeated_and_then_given_up() {
    let log = log();
    let (mut source, mut index) = (Source::new(true, Limits::default()), Index::default());
    source.batch(0, &log[0], 0, &mut index);
    source.batch(9, &log[9], 0, &mut index);
    let mut now = 0;
    for _ in 0..3 {
        now += 10_000;
        let request = source.replay_request(now).unwrap();
        for seq in [0, 1, 2, 4, 5, 6, 7, 8, 9] {
            source.replayed(request.ticket, seq, &log[seq as usize], now, &mut index);
        }
        source.replay_ended(request.ticket, true, now, &mut index);
    }
    assert_eq!((source.state(), source.last_seq()), (State::Degraded, Some(9)));
    assert_eq!(source.stats().missed_batches, 1);
    assert_eq!(index.base().len(), 3);
    assert_eq!(source.replay_request(now), None);
    source.connected();
    assert_eq!(replay(&mut source, &log, true, &mut index), 9);
}

#[test]
fn without_a_ring_a_gap_is_jumped_over() {
    let log = log();
    let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
    source.batch(0, &log[0], 0, &mut index);
    source.batch(2, &log[2], 0, &mut index);
    assert_eq!((source.state(), source.stats().missed_batches), (State::Degraded, 1));
    assert_eq!(index.base(), own(&(0..4).collect::<Vec<u32>>()));
}

#[test]
fn numbers_that_go_back_are_a_new_process() {
    let (mut source, mut index) = after(&[stored(&[10], None, &TOKENS[..4], 4)]);
    source.batch(1, &batch(2.0, &[stored(&[11], Some(10), &TOKENS[4..], 4)]), 0, &mut index);
    source.batch(0, &batch(9.0, &[cleared(), stored(&[12], None, &TOKENS[4..], 4)]), 0, &mut index);
    assert_eq!(index.base(), own(&TOKENS[4..]));
    assert_eq!((source.epoch(), source.last_seq()), (2, Some(0)));
    // Heard twice is not gone back.
    source.batch(0, &batch(9.0, &[cleared(), stored(&[12], None, &TOKENS[4..], 4)]), 0, &mut index);
    assert_eq!((source.epoch(), source.stats().duplicates), (2, 1));
}

#[test]
fn a_restart_that_overtook_the_last_number_shows_in_the_replay() {
    let log = log();
    let mut other = publisher::Engine::new(2);
    (1..=12).for_each(|length| other.serve(&(500..500 + length * 4).collect::<Vec<u32>>(), false));
    let (mut source, mut index) = (Source::new(true, Limits::default()), Index::default());
    (0..4).for_each(|seq| source.batch(seq, &log[seq as usize], 0, &mut index));
    source.connected();
    source.batch(11, &other.log[11], 0, &mut index);
    let request = source.replay_request(0).unwrap();
    source.replayed(request.ticket, 3, &other.log[3], 0, &mut index);
    assert_eq!((index.base(), source.epoch()), (vec![], 2));
    // What the abandoned replay still brings is ignored.
    source.replayed(request.ticket, 4, &other.log[4], 0, &mut index);
    assert_eq!(replay(&mut source, &other.log, true, &mut index), 0);
    let held = other.held().map(|prefix| own(prefix)[prefix.len() / 4 - 1]).collect();
    assert_eq!(index.base(), sorted(held));
    assert_eq!(source.state(), State::Synced);
}

#[test]
fn an_empty_ring_behind_applied_batches_is_a_new_process() {
    let log = log();
    let (mut source, mut index) = (Source::new(true, Limits::default()), Index::default());
    (0..4).for_each(|seq| source.batch(seq, &log[seq as usize], 0, &mut index));
    source.connected();
    let request = source.replay_request(0).unwrap();
    source.replay_ended(request.ticket, true, 0, &mut index);
    assert_eq!((index.base(), source.epoch()), (vec![], 2));
    let request = source.replay_request(0).unwrap();
    assert_eq!(request.from, 0);
    source.replay_ended(request.ticket, true, 0, &mut index);
    assert_eq!(source.state(), State::Synced);
}

#[test]
fn what_is_held_is_bounded() {
    let log = log();
    let limits = Limits { held_batches: 3, ..Limits::default() };
    let (mut source, mut index) = (Source::new(true, limits), Index::default());
    source.batch(0, &log[0], 0, &mut index);
    (2..6).for_each(|seq| source.batch(seq, &log[seq as usize], 0, &mut index));
    assert_eq!((source.state(), source.last_seq()), (State::Degraded, Some(5)));
}

/// Pages of one token, four to a block.
fn grouped() -> (Source, Index) {
    let limits = Limits { group_to: BlockSize::new(4), ..Limits::default() };
    (Source::new(false, limits), Index::default())
}

fn pages(first: u64, count: u64, parent: Option<u64>, tokens: &[u32]) -> Vec<u8> {
    stored(&(first..first + count).collect::<Vec<_>>(), parent, tokens, 1)
}

#[test]
fn pages_are_gathered_to_blocks() {
    let (mut source, mut index) = grouped();
    // Six pages: a block and a half.
    source.batch(0, &batch(1.0, &[pages(100, 6, None, &TOKENS[..6])]), 0, &mut index);
    assert_eq!((index.base(), source.blocks()), (own(&TOKENS[..4]), 1));
    // The rest of the second block in two events, the last one before the one that it follows.
    let events = [pages(107, 1, Some(106), &TOKENS[7..8]), pages(106, 1, Some(105), &TOKENS[6..7])];
    source.batch(1, &batch(2.0, &events), 0, &mut index);
    assert_eq!(index.base(), sorted(own(&TOKENS)));
    // Another branch from inside of the second block.
    source.batch(2, &batch(3.0, &[pages(200, 2, Some(105), &[70, 80])]), 0, &mut index);
    let branch = [&TOKENS[..6], &[70, 80]].concat();
    assert_eq!(index.base(), sorted([own(&TOKENS), own(&branch)[1..].to_vec()].concat()));
    // Leaves go first; a block goes with its last page.
    source.batch(3, &batch(4.0, &[removed(&[107, 106]), removed(&[201])]), 0, &mut index);
    assert_eq!(index.base(), own(&TOKENS[..4]));
    source.batch(4, &batch(5.0, &[removed(&[200, 105, 104, 103, 102, 101, 100])]), 0, &mut index);
    assert_eq!((index.base(), source.blocks(), source.stats().unknown_removals), (vec![], 0, 0));
}

#[test]
fn blocks_that_do_not_divide_are_not_gathered() {
    let (mut source, mut index) = grouped();
    source.batch(0, &batch(1.0, &[stored(&[1], None, &TOKENS[..3], 3)]), 0, &mut index);
    let three = chain(&TOKENS[..3], BlockSize::new(3).unwrap(), &Namespace::empty());
    assert_eq!(index.base(), three);
}

#[test]
fn a_key_of_two_engine_hashes_goes_with_the_last() {
    let adapted = |hash| with_text(stored(&[hash], None, &TOKENS[..4], 4), "lora_name", "ad");
    let (mut source, mut index) = after(&[adapted(10), adapted(11)]);
    let held = |index: &Index| index.0.keys().cloned().collect::<Vec<_>>();
    let key = vec![("ad".to_owned(), own(&TOKENS[..4])[0])];
    assert_eq!((held(&index), source.blocks()), (key.clone(), 1));
    source.batch(1, &batch(2.0, &[removed(&[10])]), 0, &mut index);
    assert_eq!(held(&index), key);
    source.batch(2, &batch(3.0, &[removed(&[11])]), 0, &mut index);
    assert_eq!((held(&index), source.blocks()), (vec![], 0));
}

#[test]
fn one_engine_hash_of_two_contents_has_two_places() {
    let (mut source, mut index) =
        after(&[stored(&[10], None, &TOKENS[..4], 4), stored(&[10], None, &TOKENS[4..], 4)]);
    assert_eq!(index.base(), sorted([own(&TOKENS[..4]), own(&TOKENS[4..])].concat()));
    source.batch(1, &batch(2.0, &[stored(&[10], None, &[9; 4], 4), removed(&[10])]), 0, &mut index);
    assert_eq!((index.base(), source.stats().skipped["ambiguous_hash"]), (own(&TOKENS[..4]), 1));
    source.batch(2, &batch(3.0, &[removed(&[10])]), 0, &mut index);
    assert_eq!((index.base(), source.blocks()), (vec![], 0));
}

#[test]
fn copies_are_counted_up_to_the_cap() {
    let block = || stored(&[10], None, &TOKENS[..4], 4);
    for (max_copies, removals) in [(1, 1), (3, 3)] {
        let limits = Limits { max_copies, ..Limits::default() };
        let (mut source, mut index) = (Source::new(false, limits), Index::default());
        source.batch(0, &batch(1.0, &vec![block(); 9]), 0, &mut index);
        for nth in 1..=removals {
            assert_eq!(index.base().len(), 1, "cap {max_copies}, removal {nth}");
            source.batch(nth, &batch(2.0, &[removed(&[10])]), 0, &mut index);
        }
        assert_eq!((index.base(), source.blocks()), (vec![], 0));
    }
}

#[test]
fn repeats_and_stragglers_are_not_another_process() {
    let log = log();
    let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
    (0..6).for_each(|seq| source.batch(seq, &log[seq as usize], 0, &mut index));
    // Heard before, and not the newest.
    source.batch(2, &log[2], 0, &mut index);
    assert_eq!((source.epoch(), source.stats().duplicates), (1, 1));
    // Later ones overtook it: what it says is older than what is known.
    source.batch(7, &log[7], 0, &mut index);
    source.batch(6, &log[6], 0, &mut index);
    assert_eq!((source.epoch(), source.stats().late, source.state()), (1, 1, State::Degraded));
}

#[test]
fn a_straggler_fills_its_hole_if_the_replay_has_not() {
    let log = log();
    let (mut source, mut index) = (Source::new(true, Limits::default()), Index::default());
    (0..4).for_each(|seq| source.batch(seq, &log[seq as usize], 0, &mut index));
    source.batch(9, &log[9], 0, &mut index);
    (4..9).rev().for_each(|seq| source.batch(seq, &log[seq as usize], 0, &mut index));
    let request = source.replay_request(0).unwrap();
    source.replay_ended(request.ticket, false, 0, &mut index);
    assert_eq!((index.base(), source.epoch(), source.stats().missed_batches), (whole_log(), 1, 0));
}

#[test]
fn the_last_words_of_a_dead_process_are_dropped() {
    let (mut old, mut new) = (publisher::Engine::new(1), publisher::Engine::new(100));
    (1..=10).for_each(|length| old.serve(&(0..length * 4).collect::<Vec<u32>>(), false));
    (1..=4).for_each(|length| new.serve(&(500..500 + length * 4).collect::<Vec<u32>>(), false));
    let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
    (0..9).for_each(|seq| source.batch(seq, &old.log[seq as usize], 0, &mut index));
    (0..2).for_each(|seq| source.batch(seq, &new.log[seq as usize], 0, &mut index));
    source.batch(9, &old.log[9], 0, &mut index);
    (2..4).for_each(|seq| source.batch(seq, &new.log[seq as usize], 0, &mut index));
    let whole = own(&(500..516).collect::<Vec<u32>>());
    assert_eq!((index.base(), source.epoch(), source.stats().late), (sorted(whole), 2, 1));
}

#[test]
fn a_new_start_time_is_a_new_process_unless_its_batches_came_first() {
    let log = log();
    let (mut source, mut index) = (Source::new(true, Limits::default()), Index::default());
    // The engine's clock says 1.0 and a little at these.
    (0..4).for_each(|seq| source.batch(seq, &log[seq as usize], 0, &mut index));
    source.process_started(-100.0, &mut index);
    source.process_started(-100.2, &mut index);
    assert_eq!((source.epoch(), index.base().len()), (1, 4));
    source.process_started(50.0, &mut index);
    assert_eq!((source.epoch(), index.base(), source.state()), (2, vec![], State::Gap));
    let mut other = publisher::Engine::new(60);
    other.serve(&TOKENS, false);
    source.batch(0, &other.log[0], 0, &mut index);
    replay(&mut source, &other.log, true, &mut index);
    source.process_started(59.5, &mut index);
    source.process_started(f64::NAN, &mut index);
    assert_eq!((source.epoch(), index.base()), (2, sorted(own(&TOKENS))));
}

#[test]
fn a_lost_source_starts_anew() {
    let log = log();
    let (mut source, mut index) = (Source::new(true, Limits::default()), Index::default());
    source.lost(&mut index);
    assert_eq!(source.epoch(), 1);
    (0..4).for_each(|seq| source.batch(seq, &log[seq as usize], 0, &mut index));
    source.lost(&mut index);
    assert_eq!((source.epoch(), index.base(), source.blocks()), (2, vec![], 0));
    source.connected();
    assert_eq!(replay(&mut source, &log, true, &mut index), 0);
    assert_eq!((index.base(), source.state()), (whole_log(), State::Synced));
}

#[test]
fn what_was_before_a_late_join_is_missing_until_everything_is_cleared() {
    let log = log();
    let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
    source.batch(3, &log[3], 0, &mut index);
    assert_eq!((source.state(), source.stats().gaps, source.stats().missed_batches), (State::Degraded, 0, 3));
    source.batch(4, &batch(9.0, &[cleared()]), 0, &mut index);
    assert_eq!(source.state(), State::Synced);
}

#[test]
fn the_first_refused_event_of_a_kind_is_described_without_its_values() {
    let secret = with_text(stored(&[10], None, &TOKENS[..4], 4), "medium", "GPU");
    let at = secret.windows(3).position(|bytes| bytes == b"GPU").unwrap();
    let mut broken = secret.clone();
    broken[at - 1] = 0x93; // an array of three numbers
    let (source, _) = after(&[broken, secret]);
    let samples = &source.stats().samples;
    assert_eq!(samples.keys().collect::<Vec<_>>(), [&"wrong_field"]);
    let sample = &samples["wrong_field"];
    assert!(
        sample.contains("\"token_ids\": [int ×4]") && sample.contains("\"medium\": [int ×3]"),
        "{sample}"
    );
}
