//! A naive engine: a paged prefix cache that announces what it does, in vLLM's map encoding.
#![allow(dead_code)]

use rmp::encode as msg;
use std::collections::BTreeMap;

pub(crate) const BLOCK: usize = 4;

/// Blocks by engine hash: the tokens from the prompt's start to the block's end, and the number of copies.
#[derive(Default)]
pub(crate) struct Engine {
    blocks: BTreeMap<u64, (Vec<u32>, u32)>,
    seed: u64,
    pub(crate) log: Vec<Vec<u8>>,
}

impl Engine {
    /// A process whose engine hashes and payloads differ from those of other seeds.
    pub(crate) fn new(seed: u64) -> Engine {
        Engine { seed, ..Engine::default() }
    }

    pub(crate) fn engine_hash(&self, prefix: &[u32]) -> u64 {
        prefix.iter().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, |hash, &token| {
            (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// Serves a prompt: announces its full blocks from the first missing one on, or all of them again as copies.
    pub(crate) fn serve(&mut self, prompt: &[u32], copies: bool) {
        let full = prompt.len() / BLOCK;
        let hashes: Vec<u64> = (1..=full).map(|n| self.engine_hash(&prompt[..n * BLOCK])).collect();
        let first =
            if copies { 0 } else { hashes.iter().take_while(|hash| self.blocks.contains_key(hash)).count() };
        if first == full {
            return;
        }
        for block in first..full {
            let entry =
                self.blocks.entry(hashes[block]).or_insert((prompt[..(block + 1) * BLOCK].to_vec(), 0));
            entry.1 += 1;
        }
        let parent = first.checked_sub(1).map(|at| hashes[at]);
        let event = stored(&hashes[first..], parent, &prompt[first * BLOCK..full * BLOCK], BLOCK as u32);
        self.publish(&[event]);
    }

    /// Removes one copy of the `nth` block that no other held block follows.
    pub(crate) fn evict(&mut self, nth: usize) {
        let leaves: Vec<u64> = self
            .blocks
            .iter()
            .filter(|(_, (prefix, _))| {
                !self
                    .blocks
                    .values()
                    .any(|(other, _)| other.len() > prefix.len() && other.starts_with(prefix))
            })
            .map(|(&hash, _)| hash)
            .collect();
        let Some(&hash) = leaves.get(nth % leaves.len().max(1)) else { return };
        let entry = self.blocks.get_mut(&hash).unwrap();
        entry.1 -= 1;
        if entry.1 == 0 {
            self.blocks.remove(&hash);
        }
        self.publish(&[removed(&[hash])]);
    }

    pub(crate) fn reset(&mut self) {
        self.blocks.clear();
        self.publish(&[cleared()]);
    }

    /// The prefixes held, from the prompt's start to the end of a block.
    pub(crate) fn held(&self) -> impl Iterator<Item = &[u32]> {
        self.blocks.values().map(|(prefix, _)| prefix.as_slice())
    }

    fn publish(&mut self, events: &[Vec<u8>]) {
        self.log.push(batch(self.seed as f64 + self.log.len() as f64 / 1000.0, events));
    }
}

pub(crate) fn batch(ts: f64, events: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    msg::write_array_len(&mut out, 3).unwrap();
    msg::write_f64(&mut out, ts).unwrap();
    msg::write_array_len(&mut out, events.len() as u32).unwrap();
    events.iter().for_each(|event| out.extend_from_slice(event));
    msg::write_uint(&mut out, 0).unwrap();
    out
}

pub(crate) fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u32], block_size: u32) -> Vec<u8> {
    let mut out = Vec::new();
    msg::write_map_len(&mut out, 5).unwrap();
    tag(&mut out, "BlockStored");
    write_hashes(&mut out, hashes);
    msg::write_str(&mut out, "parent_block_hash").unwrap();
    match parent {
        Some(parent) => {
            msg::write_uint(&mut out, parent).unwrap();
        }
        None => msg::write_nil(&mut out).unwrap(),
    }
    msg::write_str(&mut out, "token_ids").unwrap();
    msg::write_array_len(&mut out, tokens.len() as u32).unwrap();
    for &token in tokens {
        msg::write_uint(&mut out, token.into()).unwrap();
    }
    msg::write_str(&mut out, "block_size").unwrap();
    msg::write_uint(&mut out, block_size.into()).unwrap();
    out
}

pub(crate) fn removed(hashes: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    msg::write_map_len(&mut out, 2).unwrap();
    tag(&mut out, "BlockRemoved");
    write_hashes(&mut out, hashes);
    out
}

/// Adds `name: text` to a map event.
pub(crate) fn with_text(mut event: Vec<u8>, name: &str, text: &str) -> Vec<u8> {
    assert!(event[0] & 0xf0 == 0x80, "a short map");
    event[0] += 1;
    msg::write_str(&mut event, name).unwrap();
    msg::write_str(&mut event, text).unwrap();
    event
}

/// Adds `name: number` to a map event.
pub(crate) fn with_number(mut event: Vec<u8>, name: &str, number: u64) -> Vec<u8> {
    assert!(event[0] & 0xf0 == 0x80, "a short map");
    event[0] += 1;
    msg::write_str(&mut event, name).unwrap();
    msg::write_uint(&mut event, number).unwrap();
    event
}

pub(crate) fn cleared() -> Vec<u8> {
    let mut out = Vec::new();
    msg::write_map_len(&mut out, 1).unwrap();
    tag(&mut out, "AllBlocksCleared");
    out
}

fn tag(out: &mut Vec<u8>, tag: &str) {
    msg::write_str(out, "type").unwrap();
    msg::write_str(out, tag).unwrap();
}

fn write_hashes(out: &mut Vec<u8>, hashes: &[u64]) {
    msg::write_str(out, "block_hashes").unwrap();
    msg::write_array_len(out, hashes.len() as u32).unwrap();
    for &hash in hashes {
        msg::write_uint(out, hash).unwrap();
    }
}
