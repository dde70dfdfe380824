//! The index replica and its lookup against a naive model: a set of (scope, hash, replica) with a time each.
#![cfg(not(target_arch = "wasm32"))]

use inference_cache_core::hash::BlockHash;
use inference_cache_core::replica::{IndexReplica, ReplicaId, ScopeId, Walk};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Op {
    Store { scope: u32, hash: u64, replica: u32, seen: u32 },
    Remove { scope: u32, hash: u64, replica: u32 },
    Clear { replica: u32, scope: Option<u32> },
}

type Model = BTreeMap<(u32, u64, u32), u32>;

const BUDGET: usize = 40;

fn op() -> impl Strategy<Value = Op> {
    let (scope, hash, replica) = (1..3u32, 0..12u64, 1..6u32);
    prop_oneof![
        6 => (scope.clone(), hash.clone(), replica.clone(), 0..20u32)
            .prop_map(|(scope, hash, replica, seen)| Op::Store { scope, hash, replica, seen }),
        3 => (scope.clone(), hash, replica.clone())
            .prop_map(|(scope, hash, replica)| Op::Remove { scope, hash, replica }),
        1 => (replica, proptest::option::of(scope)).prop_map(|(replica, scope)| Op::Clear { replica, scope }),
    ]
}

fn apply(index: &mut IndexReplica, model: &mut Model, op: &Op) {
    match *op {
        Op::Store { scope, hash, replica, seen } => {
            let fits = model.contains_key(&(scope, hash, replica)) || model.len() < BUDGET;
            let stored = index.store(ScopeId(scope), ReplicaId(replica), BlockHash(hash), seen).is_ok();
            assert_eq!(stored, fits);
            if fits {
                model.insert((scope, hash, replica), seen);
            }
        }
        Op::Remove { scope, hash, replica } => {
            index.remove(ScopeId(scope), ReplicaId(replica), BlockHash(hash));
            model.remove(&(scope, hash, replica));
        }
        Op::Clear { replica, scope } => {
            index.clear(ReplicaId(replica), scope.map(ScopeId));
            model.retain(|key, _| key.2 != replica || scope.is_some_and(|scope| scope != key.0));
        }
    }
}

fn runs(index: &IndexReplica, scope: u32, chain: &[u64], oldest: u32) -> BTreeMap<u32, u32> {
    let mut walk = Walk::default();
    for &hash in chain {
        let holders: Vec<_> = index.holders(ScopeId(scope), BlockHash(hash), oldest).collect();
        if !walk.advance(&holders) {
            break;
        }
    }
    walk.into_runs().into_iter().map(|run| (run.replica.0, run.blocks)).collect()
}

fn naive_runs(model: &Model, scope: u32, chain: &[u64], oldest: u32) -> BTreeMap<u32, u32> {
    let holds = |hash, replica| model.get(&(scope, hash, replica)).is_some_and(|&seen| seen >= oldest);
    let run = |replica| chain.iter().take_while(|&&hash| holds(hash, replica)).count() as u32;
    (1..6).map(|replica| (replica, run(replica))).filter(|&(_, blocks)| blocks > 0).collect()
}

proptest! {
    #[test]
    fn equals_the_model(
        ops in proptest::collection::vec(op(), 0..200),
        chain in proptest::collection::vec(0..12u64, 0..8),
        oldest in 0..20u32,
    ) {
        let (mut index, mut model) = (IndexReplica::new(BUDGET), Model::new());
        for op in &ops {
            apply(&mut index, &mut model, op);
            prop_assert_eq!(index.entries(), model.len());
        }
        let mut held: Vec<_> = index.iter().map(|(scope, hash, replica)| (scope.0, hash.0, replica.0)).collect();
        held.sort_unstable();
        prop_assert_eq!(held, model.keys().copied().collect::<Vec<_>>());
        for scope in 1..3 {
            prop_assert_eq!(runs(&index, scope, &chain, oldest), naive_runs(&model, scope, &chain, oldest));
        }
    }
}
