//! Prints the speed, the load time and the size of a compiled tokenizer.
//!
//! ```sh
//! cargo run --release -p host-shim --example tokenizer_speed -- DIR TEXT_FILE
//! ```
//! The text is encoded in calls of 32 KiB by one tokenizer, as a gateway does; best of 5 passes.
#![allow(clippy::print_stdout)]

use inference_cache_core::tokenize::Tokenizer;
use std::path::Path;
use std::time::Instant;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(dir), Some(text)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: tokenizer_speed DIR TEXT_FILE");
    };
    let started = Instant::now();
    let artifact = host_shim::tokenizer::compile(Path::new(&dir))?;
    println!("compile    {:>9.1} ms", started.elapsed().as_secs_f64() * 1e3);
    println!("artifact   {:>9} bytes", artifact.len());
    if let Some(file) = arguments.next() {
        std::fs::write(file, &artifact)?;
    }
    let started = Instant::now();
    let tokenizer = Tokenizer::load(artifact)?;
    println!("load       {:>9.2} ms", started.elapsed().as_secs_f64() * 1e3);

    let text = std::fs::read_to_string(text)?;
    let pieces = pieces(&text, 32 * 1024);
    let mut best = f64::INFINITY;
    let mut tokens = Vec::new();
    for _ in 0..5 {
        let started = Instant::now();
        let mut count = 0;
        for piece in &pieces {
            tokens.clear();
            tokenizer.encode(piece, false).fill(&mut tokens, usize::MAX)?;
            count += tokens.len();
        }
        best = best.min(started.elapsed().as_secs_f64());
        println!("pass       {:>9.1} MB/s, {count} tokens", text.len() as f64 / 1e6 / started.elapsed().as_secs_f64());
    }
    println!("best       {:>9.1} MB/s of {} bytes", text.len() as f64 / 1e6 / best, text.len());
    Ok(())
}

fn pieces(text: &str, size: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.floor_char_boundary(size));
        pieces.push(piece);
        rest = behind;
    }
    pieces
}
