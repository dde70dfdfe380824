//! `cargo xtask bench ingest`: from a publisher's frames to the index, on one core, without sockets.
//!
//! Workload: one vLLM 0.32 engine (map events, integer hashes, blocks of 16 tokens of a vocabulary of 151,936) fills its
//! cache with chains of 512 blocks, published in events of 64 blocks, or of one, a batch each. A frame goes through
//! framing, decoder, state machine, hashing, the map of the engine's hashes and into host-shim's index. `--json FILE`
//! also writes the figures there.
#![allow(clippy::print_stdout, reason = "a benchmark")]

use anyhow::{Context, Result, bail};
use host_shim::index::Index;
use inference_cache_core::events::{Batch, live_frames};
use inference_cache_core::hash::BlockHash;
use inference_cache_core::ingest::{Limits, Sink, Source, State, Stored};
use rmp::encode as msg;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::path::PathBuf;

const BLOCKS: usize = 1 << 20;
const CHAIN: usize = 512;
const BLOCK_SIZE: usize = 16;
const VOCABULARY: u64 = 151_936;
const RUNS: usize = 5;
const REPLAY_BATCHES: usize = 10_000;
/// Blocks of each event of the replay: the steps of a busy engine, prefill and decode.
const REPLAY_BLOCKS: usize = 8;

fn main() -> Result<()> {
    let json = json_argument()?;
    let mut figures = Vec::new();
    println!(
        "one core, {BLOCKS} blocks of {BLOCK_SIZE} tokens in chains of {CHAIN}; medians of {RUNS} runs, processor time\n"
    );
    for event_blocks in [64, 1] {
        let frames = publish(BLOCKS, event_blocks);
        let bytes: usize = frames.iter().map(|[_, _, payload]| payload.len()).sum();
        println!("events of {event_blocks}: {} batches, {:.1} MB", frames.len(), bytes as f64 / 1e6);
        let decoded = median(|| decode(&frames));
        figures.push(Figure::rate(&format!("decode_blocks_per_s_{event_blocks}"), decoded));
        let mapped = median(|| fill(&frames, &mut Nothing).0);
        figures.push(Figure::rate(&format!("source_blocks_per_s_{event_blocks}"), mapped));
        let mut map_bytes = 0.0;
        let indexed = median(|| {
            let (seconds, source) = fill(&frames, &mut Indexed(Index::new(1800)));
            map_bytes = source.map_bytes() as f64 / source.blocks() as f64;
            seconds
        });
        figures.push(Figure::rate(&format!("blocks_per_s_{event_blocks}"), indexed));
        if event_blocks == 64 {
            figures.push(Figure { name: "engine_map_bytes_per_block".into(), value: map_bytes, unit: "B" });
        }
    }
    let replayed = publish(REPLAY_BATCHES * REPLAY_BLOCKS, REPLAY_BLOCKS);
    let seconds = median(|| replay(&replayed));
    figures.push(Figure { name: "replay_10k_ms".into(), value: seconds * 1e3, unit: "ms" });

    println!();
    for Figure { name, value, unit } in &figures {
        println!("{name:32} {value:>14.1} {unit}");
    }
    if let Some(path) = json {
        let figures: Vec<_> = figures
            .iter()
            .map(
                |figure| serde_json::json!({"name": figure.name, "value": figure.value, "unit": figure.unit}),
            )
            .collect();
        let text = serde_json::json!({"bench": "ingest", "figures": figures}).to_string();
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
}

impl Figure {
    fn rate(name: &str, seconds: f64) -> Figure {
        Figure { name: name.to_owned(), value: BLOCKS as f64 / seconds, unit: "blocks/s" }
    }
}

type Frames = [Vec<u8>; 3];

fn decode(frames: &[Frames]) -> f64 {
    let start = cpu_seconds();
    for frames in frames {
        let Ok((_, payload)) = live_frames(frames) else { continue };
        let Ok(batch) = Batch::decode(payload) else { continue };
        batch.events().for_each(|event| drop(black_box(event)));
    }
    cpu_seconds() - start
}

fn fill(frames: &[Frames], sink: &mut impl Sink) -> (f64, Source) {
    let start = cpu_seconds();
    let mut source = Source::new(false, Limits::default());
    for frames in frames {
        if let Ok((seq, payload)) = live_frames(frames) {
            source.batch(seq, payload, 0, sink);
        }
    }
    let seconds = cpu_seconds() - start;
    assert_eq!(source.blocks(), BLOCKS);
    (seconds, source)
}

/// The index joins late: one live batch, then everything by replay.
fn replay(frames: &[Frames]) -> f64 {
    let mut sink = Indexed(Index::new(1800));
    let mut source = Source::new(true, Limits::default());
    let start = cpu_seconds();
    source.connected();
    let Some(request) = source.replay_request(0) else { return f64::NAN };
    for (seq, [_, _, payload]) in (0..).zip(frames) {
        if seq + 1 == frames.len() as u64 {
            source.batch(seq, payload, 0, &mut sink);
        }
        source.replayed(request.ticket, seq, payload, 0, &mut sink);
    }
    source.replay_ended(request.ticket, true, 0, &mut sink);
    let seconds = cpu_seconds() - start;
    assert_eq!((source.state(), sink.0.entries()), (State::Synced, REPLAY_BATCHES * REPLAY_BLOCKS));
    seconds
}

struct Nothing;

impl Sink for Nothing {
    fn stored(&mut self, stored: Stored<'_>) {
        black_box(stored);
    }
    fn removed(&mut self, _: &str, _: &[BlockHash]) {}
    fn cleared(&mut self) {}
}

/// As host-shim's writer applies operations of one replica.
struct Indexed(Index);

impl Sink for Indexed {
    fn stored(&mut self, stored: Stored<'_>) {
        for &hash in stored.hashes {
            black_box(self.0.store(1, 1, hash, stored.tier, 1));
        }
    }
    fn removed(&mut self, _: &str, hashes: &[BlockHash]) {
        for &hash in hashes {
            black_box(self.0.remove(1, 1, hash));
        }
    }
    fn cleared(&mut self) {
        self.0.clear(1);
    }
}

/// Processor time of this thread: what others do on the machine is not ours.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn median(mut run: impl FnMut() -> f64) -> f64 {
    let mut seconds: Vec<f64> = (0..RUNS).map(|_| run()).collect();
    seconds.sort_by(f64::total_cmp);
    seconds.get(RUNS / 2).copied().unwrap_or(f64::NAN)
}

/// The frames of an engine that fills `blocks` blocks.
fn publish(blocks: usize, event_blocks: usize) -> Vec<Frames> {
    let mut numbers = Numbers(1);
    let mut frames = Vec::new();
    let mut parent = None;
    for first in (0..blocks).step_by(event_blocks) {
        let hashes: Vec<u64> = (0..event_blocks).map(|_| numbers.next()).collect();
        let mut payload = Vec::new();
        let parent_hash = parent.filter(|_| first % CHAIN != 0);
        parent = hashes.last().copied();
        write_batch(&mut payload, &hashes, parent_hash, &mut numbers).expect("a vector takes everything");
        frames.push([Vec::new(), (frames.len() as u64).to_be_bytes().to_vec(), payload]);
    }
    frames
}

fn write_batch(
    out: &mut Vec<u8>,
    hashes: &[u64],
    parent: Option<u64>,
    numbers: &mut Numbers,
) -> Result<(), Box<dyn std::error::Error>> {
    msg::write_array_len(out, 3)?;
    msg::write_f64(out, 1_700_000_000.25)?;
    msg::write_array_len(out, 1)?;
    msg::write_map_len(out, 10)?;
    msg::write_str(out, "type")?;
    msg::write_str(out, "BlockStored")?;
    msg::write_str(out, "block_hashes")?;
    msg::write_array_len(out, hashes.len() as u32)?;
    for &hash in hashes {
        msg::write_uint(out, hash)?;
    }
    msg::write_str(out, "parent_block_hash")?;
    match parent {
        Some(parent) => drop(msg::write_uint(out, parent)?),
        None => msg::write_nil(out)?,
    }
    msg::write_str(out, "token_ids")?;
    msg::write_array_len(out, (hashes.len() * BLOCK_SIZE) as u32)?;
    for _ in 0..hashes.len() * BLOCK_SIZE {
        // Texts are made of common tokens for the most part.
        let token = numbers.next() % VOCABULARY;
        msg::write_uint(out, if numbers.next().is_multiple_of(4) { token } else { token % 8192 })?;
    }
    msg::write_str(out, "block_size")?;
    msg::write_uint(out, BLOCK_SIZE as u64)?;
    for absent in ["lora_id", "lora_name"] {
        msg::write_str(out, absent)?;
        msg::write_nil(out)?;
    }
    msg::write_str(out, "medium")?;
    msg::write_str(out, "GPU")?;
    msg::write_str(out, "group_idx")?;
    msg::write_uint(out, 0)?;
    msg::write_str(out, "kv_cache_spec_kind")?;
    msg::write_str(out, "full_attention")?;
    msg::write_uint(out, 0)?;
    Ok(())
}

/// SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn json_argument() -> Result<Option<PathBuf>> {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next(), arguments.next()) {
        (None, ..) => Ok(None),
        (Some(flag), Some(path), None) if flag == "--json" => Ok(Some(path.into())),
        _ => bail!("usage: bench_ingest [--json FILE]"),
    }
}
