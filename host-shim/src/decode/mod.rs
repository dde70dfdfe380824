//! `host-shim decode`: a stream of KV events, readable.
//!
//! One line per event, a summary at the end. Hashes, counts and adapter names are shown; cache salts never, tokens only
//! if asked for: they are the users' prompts. What cannot be read is shown with the reason and its shape.

mod source;

pub use source::{DecodeError, Replay, Stop, file, live};

use inference_cache_core::events::{
    Batch, BlockRemoved, BlockStored, EngineHash, Event, FrameError, live_frames, shape,
};
use inference_cache_core::ingest::HashCheck;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Hashes shown of a list.
const HASHES: usize = 4;

/// Writes events as lines.
#[derive(Debug)]
pub struct Printer<W> {
    out: W,
    tokens: bool,
    summary: Summary,
    hash_check: HashCheck,
}

#[derive(Debug, Default)]
struct Summary {
    batches: u64,
    events: BTreeMap<&'static str, u64>,
    errors: BTreeMap<&'static str, u64>,
    stored: usize,
    removed: usize,
    /// Tokens per block, and blocks of that size.
    block_sizes: BTreeMap<u32, usize>,
    last_seq: Option<u64>,
    missing: u64,
    backwards: u64,
}

impl<W: Write> Printer<W> {
    /// Prints to `out`; token ids, too, if `tokens`.
    pub fn new(out: W, tokens: bool) -> Printer<W> {
        Printer { out, tokens, summary: Summary::default(), hash_check: HashCheck::new(&[]) }
    }

    /// A live message: topic, number, payload. `now_s`: the time by which its age is told, Unix seconds.
    pub fn message<F: AsRef<[u8]>>(&mut self, frames: &[F], now_s: Option<f64>) -> io::Result<()> {
        match live_frames(frames) {
            Ok((seq, payload)) => self.batch(Some(seq), payload, now_s),
            Err(error) => self.bad_frames(&error),
        }
    }

    /// A payload and its number, if it has one.
    pub fn batch(&mut self, seq: Option<u64>, payload: &[u8], now_s: Option<f64>) -> io::Result<()> {
        self.summary.batches += 1;
        if let Some(seq) = seq {
            self.summary.number(seq);
        }
        let seq = seq.map_or("-".to_owned(), |seq| seq.to_string());
        let batch = match Batch::decode(payload) {
            Ok(batch) => batch,
            Err(error) => {
                *self.summary.errors.entry(error.reason()).or_default() += 1;
                return writeln!(self.out, "seq={seq} refused: {error}: {}", shape(payload));
            }
        };
        let rank = batch.rank().map_or("-".to_owned(), |rank| rank.to_string());
        let age = now_s.map_or("-".to_owned(), |now_s| format!("{:.3}s", now_s - batch.ts));
        let head = format!("seq={seq} rank={rank} age={age}");
        let mut events = batch.events();
        loop {
            let rest = events.bytes();
            let line = match events.next() {
                None => return Ok(()),
                Some(Ok(event)) => self.event(&event),
                Some(Err(error)) => {
                    *self.summary.errors.entry(error.reason()).or_default() += 1;
                    format!("refused: {error}: {}", shape(rest))
                }
            };
            writeln!(self.out, "{head} {line}")?;
        }
    }

    /// A message whose frames are not those of a batch.
    pub fn bad_frames(&mut self, error: &FrameError) -> io::Result<()> {
        *self.summary.errors.entry(error.reason()).or_default() += 1;
        writeln!(self.out, "refused: {error}")
    }

    /// Says what was seen, all together.
    pub fn finish(mut self) -> io::Result<()> {
        let summary = &self.summary;
        let counts = |counts: &BTreeMap<&'static str, u64>| {
            let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
        };
        let sizes: Vec<_> =
            summary.block_sizes.iter().map(|(size, n)| format!("{size} ({n} blocks)")).collect();
        writeln!(self.out, "batches:     {}", summary.batches)?;
        writeln!(self.out, "events:      {}", counts(&summary.events))?;
        writeln!(self.out, "blocks:      {} stored, {} removed", summary.stored, summary.removed)?;
        writeln!(
            self.out,
            "block sizes: {}",
            if sizes.is_empty() { "none".into() } else { sizes.join(", ") }
        )?;
        writeln!(
            self.out,
            "numbers:     {} missing, {} times backwards",
            summary.missing, summary.backwards
        )?;
        writeln!(self.out, "refused:     {}", counts(&summary.errors))?;
        let hashes = self.hash_check.report();
        let verdict = match (hashes.recipe, hashes.reproducible) {
            (Some(recipe), Some(true)) => recipe.name(),
            (_, Some(false)) => "by no known recipe",
            _ => "not known",
        };
        writeln!(self.out, "hashes:      {verdict}, {} of {} recomputed", hashes.matched, hashes.checked)?;
        self.out.flush()
    }

    fn event(&mut self, event: &Event<'_>) -> String {
        let (tag, line) = match event {
            Event::Stored(stored) => ("BlockStored", self.stored(stored)),
            Event::Removed(removed) => ("BlockRemoved", self.removed(removed)),
            Event::Cleared => ("AllBlocksCleared", String::new()),
            Event::Unknown => ("unknown", String::new()),
        };
        *self.summary.events.entry(tag).or_default() += 1;
        format!("{tag}{line}")
    }

    fn stored(&mut self, stored: &BlockStored<'_>) -> String {
        self.summary.stored += stored.hashes.len();
        if stored.hashes.len().checked_mul(stored.block_size as usize) == Some(stored.tokens.len()) {
            self.hash_check.observe(stored);
        }
        *self.summary.block_sizes.entry(stored.block_size).or_default() += stored.hashes.len();
        let mut line = format!(
            " blocks={} block_size={} tokens={} hashes={} parent={} medium={} group={} kind={} adapter={}",
            stored.hashes.len(),
            stored.block_size,
            stored.tokens.len(),
            hashes(&stored.hashes),
            stored.parent.map_or("-".to_owned(), |parent| hashes(&[parent])),
            text(stored.medium),
            number(stored.group),
            text(stored.spec_kind),
            text(stored.lora_name),
        );
        if stored.cache_salt.is_some() {
            line.push_str(" salted");
        }
        if !stored.extra_keys.is_empty() {
            let _ = write!(line, " extra_keys={}", stored.extra_keys.len());
        }
        if self.tokens {
            let _ = write!(line, " token_ids={:?}", stored.tokens);
        }
        line
    }

    fn removed(&mut self, removed: &BlockRemoved<'_>) -> String {
        self.summary.removed += removed.hashes.len();
        format!(
            " blocks={} hashes={} medium={} group={}",
            removed.hashes.len(),
            hashes(&removed.hashes),
            text(removed.medium),
            number(removed.group),
        )
    }
}

impl Summary {
    fn number(&mut self, seq: u64) {
        match self.last_seq {
            Some(last) if seq <= last => self.backwards += 1,
            Some(last) => self.missing += seq - last - 1,
            None => {}
        }
        self.last_seq = Some(seq);
    }
}

fn hashes(hashes: &[EngineHash]) -> String {
    let mut shown: Vec<_> = hashes.iter().take(HASHES).map(|hash| format!("{:016x}", hash.0)).collect();
    if hashes.len() > HASHES {
        shown.push("…".to_owned());
    }
    if shown.is_empty() { "-".to_owned() } else { shown.join(",") }
}

/// Text of the stream, without what could control a terminal.
fn text(text: Option<&str>) -> String {
    text.map_or("-".to_owned(), |text| text.escape_debug().to_string())
}

fn number(number: Option<u32>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}
