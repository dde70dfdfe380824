//! Choice of the replica: longest run first, fewer requests in flight among near-equals, rendezvous hash on a tie.
//!
//! Near-equal means: at most one block or 1/16 of the best run behind it, and never "nothing" against "something".
//! So a conversation stays where its history is, while replicas that hold practically the same share the load.
//! With nothing matched anywhere, the fewest in flight decide, and equals are spread by rendezvous hashing on the
//! prompt: the same new prompt goes to the same replica through every gateway, and a changed replica set moves only
//! its share.
//!
//! Cost: O(n log n) in the number of candidates, with one hash of eight bytes per comparison; no allocation.

use crate::replica::ReplicaId;
use std::cmp::Reverse;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What is known of a replica that may take the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Who.
    pub replica: ReplicaId,
    /// Prompt tokens that it holds.
    pub matched_tokens: u32,
    /// Requests sent to it that have not ended.
    pub in_flight: u32,
    /// From [`name_hash`].
    pub name_hash: u64,
}

/// Sorts `candidates` by preference, best first. `key` identifies the prompt for ties; `block_size` is in tokens.
pub fn rank(candidates: &mut [Candidate], key: u64, block_size: u32) {
    let best = candidates.iter().map(|candidate| candidate.matched_tokens).max().unwrap_or(0);
    let band = best.saturating_sub((best / 16).max(block_size)).max(1);
    candidates.sort_unstable_by_key(|candidate| {
        let near_best = candidate.matched_tokens >= band;
        // Behind the band, what is matched decides before the load.
        let group = if near_best { u32::MAX } else { candidate.matched_tokens };
        let weight = rendezvous_weight(key, candidate.name_hash);
        (Reverse(group), candidate.in_flight, Reverse(candidate.matched_tokens), Reverse(weight))
    });
}

/// Identity of a replica for rendezvous hashing: from its name, so that it survives restarts of host-shim.
pub fn name_hash(name: &str) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), 0)
}

/// Highest random weight: the replica with the greatest weight owns the key.
pub fn rendezvous_weight(key: u64, name_hash: u64) -> u64 {
    xxh3_64_with_seed(&key.to_le_bytes(), name_hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn ranked(candidates: &[(u32, u32, u32)], key: u64) -> Vec<u32> {
        let mut candidates: Vec<_> = candidates
            .iter()
            .map(|&(id, matched_tokens, in_flight)| Candidate {
                replica: ReplicaId(id),
                matched_tokens,
                in_flight,
                name_hash: name_hash(&format!("engine-{id}")),
            })
            .collect();
        rank(&mut candidates, key, 16);
        candidates.iter().map(|candidate| candidate.replica.0).collect()
    }

    #[test]
    fn the_longest_run_wins_over_load() {
        assert_eq!(ranked(&[(1, 0, 0), (2, 160, 5), (3, 320, 9)], 7), [3, 2, 1]);
    }

    #[test]
    fn near_equals_go_by_load_and_then_by_match() {
        assert_eq!(ranked(&[(1, 1600, 4), (2, 1504, 1), (3, 1488, 0)], 7), [2, 1, 3]);
        assert_eq!(ranked(&[(1, 304, 1), (2, 320, 1)], 7), [2, 1]);
    }

    #[test]
    fn nothing_is_never_near_something() {
        assert_eq!(ranked(&[(1, 0, 0), (2, 16, 30)], 7), [2, 1]);
    }

    #[test]
    fn without_a_match_load_decides_and_ties_spread() {
        assert_eq!(ranked(&[(1, 0, 2), (2, 0, 1)], 7), [2, 1]);
        let mut firsts = [0; 3];
        for key in 0..3000 {
            let order = ranked(&[(0, 0, 0), (1, 0, 0), (2, 0, 0)], key);
            firsts[order[0] as usize] += 1;
        }
        assert!(firsts.iter().all(|&count| (850..1150).contains(&count)), "{firsts:?}");
    }

    #[test]
    fn a_lost_replica_moves_only_its_own_keys() {
        for key in 0..500 {
            let before = ranked(&[(0, 0, 0), (1, 0, 0), (2, 0, 0)], key);
            let after = ranked(&[(0, 0, 0), (2, 0, 0)], key);
            if before[0] != 1 {
                assert_eq!(before[0], after[0]);
            }
        }
    }
}
