//! KV-cache events and their bytes on the wire, as vLLM's msgspec writes them.
//!
//! A batch is the array `[ts, events, data_parallel_rank]`. An event is a map that starts with its `type`
//! ([`Release::V0_32`]; fields that equal their default are left out) or an array that starts with it
//! ([`Release::V0_22`]; always full length). Integers take the fewest bytes.

use crate::config::{BlockHashForm, Release};
use inference_cache_core::hash::vllm::Digest;
use rmp::encode::{self, ValueWriteError};
use std::sync::Arc;

/// A LoRA adapter that is served under its own name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lora {
    /// Number of the adapter, from 1.
    pub id: u32,
    /// Name of the model in requests and events.
    pub name: String,
    /// Where the engine would have loaded it from: part of the block hash in newer releases.
    pub path: String,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Consecutive full blocks of a request got their hashes.
    BlockStored(BlockStored),
    /// A block that held this hash was taken for other content.
    BlockRemoved(Digest),
    /// The whole cache was reset.
    AllBlocksCleared,
}

/// See [`Event::BlockStored`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockStored {
    /// One per block, in the order of the tokens.
    pub block_hashes: Vec<Digest>,
    /// Hash of the block before the first; `None` at the start of a prompt.
    pub parent: Option<Digest>,
    /// `block_hashes.len() * block_size` tokens.
    pub token_ids: Vec<u32>,
    /// Adapter of the request.
    pub lora: Option<Arc<Lora>>,
    /// Salt of the request, if the first of the blocks is the prompt's first.
    pub cache_salt: Option<Arc<str>>,
}

/// Writes batches.
#[derive(Clone, Copy, Debug)]
pub struct BatchEncoder {
    /// Whose layout.
    pub release: Release,
    /// Whether hashes are whole digests or their low 64 bits.
    pub hash_form: BlockHashForm,
    /// Tokens per block.
    pub block_size: u32,
}

/// Rank in the batch: the sim has one.
const DATA_PARALLEL_RANK: u64 = 0;
/// Index of the only group of layers.
const GROUP: u64 = 0;
const MEDIUM: &str = "GPU";
const SPEC_KIND: &str = "full_attention";

impl BatchEncoder {
    /// The bytes of a batch; `timestamp` in seconds since the epoch.
    pub fn encode(&self, timestamp: f64, events: &[Event]) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(256));
        out.array(3);
        out.float(timestamp);
        out.array(events.len());
        events.iter().for_each(|event| self.event(&mut out, event));
        out.uint(DATA_PARALLEL_RANK);
        out.0
    }

    fn event(&self, out: &mut Writer, event: &Event) {
        match (self.release, event) {
            (Release::V0_22, Event::BlockStored(stored)) => self.stored_array(out, stored),
            (Release::V0_22, Event::BlockRemoved(hash)) => {
                out.array(4);
                out.text("BlockRemoved");
                self.hashes(out, std::slice::from_ref(hash));
                out.text(MEDIUM);
                out.uint(GROUP);
            }
            (Release::V0_22, Event::AllBlocksCleared) => {
                out.array(1);
                out.text("AllBlocksCleared");
            }
            (Release::V0_32, Event::BlockStored(stored)) => self.stored_map(out, stored),
            (Release::V0_32, Event::BlockRemoved(hash)) => {
                out.map(4);
                out.field("type").text("BlockRemoved");
                self.hashes(out.field("block_hashes"), std::slice::from_ref(hash));
                out.field("medium").text(MEDIUM);
                out.field("group_idx").uint(GROUP);
            }
            (Release::V0_32, Event::AllBlocksCleared) => {
                out.map(1);
                out.field("type").text("AllBlocksCleared");
            }
        }
    }

    fn stored_array(&self, out: &mut Writer, stored: &BlockStored) {
        out.array(12);
        out.text("BlockStored");
        self.hashes(out, &stored.block_hashes);
        self.parent(out, stored);
        out.uints(&stored.token_ids);
        out.uint(u64::from(self.block_size));
        lora_id(out, stored);
        out.text(MEDIUM);
        lora_name(out, stored);
        extra_keys(out, stored);
        out.uint(GROUP);
        out.text(SPEC_KIND);
        out.nil();
    }

    fn stored_map(&self, out: &mut Writer, stored: &BlockStored) {
        out.map(11);
        out.field("type").text("BlockStored");
        self.hashes(out.field("block_hashes"), &stored.block_hashes);
        self.parent(out.field("parent_block_hash"), stored);
        out.field("token_ids").uints(&stored.token_ids);
        out.field("block_size").uint(u64::from(self.block_size));
        lora_id(out.field("lora_id"), stored);
        out.field("medium").text(MEDIUM);
        lora_name(out.field("lora_name"), stored);
        extra_keys(out.field("extra_keys"), stored);
        out.field("group_idx").uint(GROUP);
        out.field("kv_cache_spec_kind").text(SPEC_KIND);
    }

    fn hashes(&self, out: &mut Writer, hashes: &[Digest]) {
        out.array(hashes.len());
        hashes.iter().for_each(|hash| self.hash(out, hash));
    }

    fn parent(&self, out: &mut Writer, stored: &BlockStored) {
        match &stored.parent {
            Some(hash) => self.hash(out, hash),
            None => out.nil(),
        }
    }

    fn hash(&self, out: &mut Writer, hash: &Digest) {
        match self.hash_form {
            BlockHashForm::Int => out.uint(hash.low64()),
            BlockHashForm::Bytes => out.bytes(hash.as_bytes()),
        }
    }
}

fn lora_id(out: &mut Writer, stored: &BlockStored) {
    match &stored.lora {
        Some(lora) => out.uint(u64::from(lora.id)),
        None => out.nil(),
    }
}

fn lora_name(out: &mut Writer, stored: &BlockStored) {
    match &stored.lora {
        Some(lora) => out.text(&lora.name),
        None => out.nil(),
    }
}

/// Bare values on the wire in both releases: the adapter's name in every block, the salt in the prompt's first.
fn extra_keys(out: &mut Writer, stored: &BlockStored) {
    out.array(stored.block_hashes.len());
    for index in 0..stored.block_hashes.len() {
        let salt = stored.cache_salt.as_deref().filter(|_| index == 0);
        let lora = stored.lora.as_ref().map(|lora| lora.name.as_str());
        match usize::from(lora.is_some()) + usize::from(salt.is_some()) {
            0 => out.nil(),
            keys => {
                out.array(keys);
                lora.into_iter().chain(salt).for_each(|key| out.text(key));
            }
        }
    }
}

/// msgpack into memory.
struct Writer(Vec<u8>);

impl Writer {
    fn array(&mut self, length: usize) {
        written(encode::write_array_len(&mut self.0, length as u32));
    }

    fn map(&mut self, length: usize) {
        written(encode::write_map_len(&mut self.0, length as u32));
    }

    fn field(&mut self, name: &str) -> &mut Writer {
        self.text(name);
        self
    }

    fn text(&mut self, value: &str) {
        written(encode::write_str(&mut self.0, value));
    }

    fn bytes(&mut self, value: &[u8]) {
        written(encode::write_bin(&mut self.0, value));
    }

    fn uint(&mut self, value: u64) {
        written(encode::write_uint(&mut self.0, value));
    }

    fn uints(&mut self, values: &[u32]) {
        self.array(values.len());
        values.iter().for_each(|&value| self.uint(u64::from(value)));
    }

    fn float(&mut self, value: f64) {
        written(encode::write_f64(&mut self.0, value));
    }

    fn nil(&mut self) {
        encode::write_nil(&mut self.0).expect("memory can be written");
    }
}

fn written<T>(result: Result<T, ValueWriteError>) {
    result.expect("memory can be written");
}
