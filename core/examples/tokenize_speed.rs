//! Prints load time, size and speed of a compiled tokenizer, natively or in V8.
//!
//! ```sh
//! host-shim tokenizer compile DIR -o tokenizer.icart
//! cargo run --release -p inference-cache-core --example tokenize_speed -- tokenizer.icart TEXT_FILE
//! cargo build --release -p inference-cache-core --example tokenize_speed --target wasm32-wasip1
//! node -e 'const { WASI } = require("wasi"), fs = require("fs"), [file, ...args] = process.argv.slice(1);
//!     const wasi = new WASI({ version: "preview1", args: [file, ...args], preopens: { "/": "/" } });
//!     WebAssembly.instantiate(fs.readFileSync(file), wasi.getImportObject()).then(({ instance }) => wasi.start(instance))' \
//!     tokenize_speed.wasm /tokenizer.icart /TEXT_FILE
//! ```
//! The text is encoded in calls of 32 KiB by one tokenizer, as a gateway does.
#![allow(clippy::print_stdout)]

use inference_cache_core::tokenize::Tokenizer;
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(artifact), Some(text)) = (arguments.next(), arguments.next()) else {
        return Err("usage: tokenize_speed ARTIFACT TEXT_FILE".into());
    };
    let (artifact, text) = (std::fs::read(artifact)?, std::fs::read_to_string(text)?);
    let megabytes = text.len() as f64 / 1e6;
    println!("artifact {} bytes, text {} bytes", artifact.len(), text.len());
    for _ in 0..3 {
        let copy = artifact.clone();
        let started = Instant::now();
        let tokenizer = Tokenizer::load(copy)?;
        println!("load {:.2} ms", started.elapsed().as_secs_f64() * 1e3);
        drop(tokenizer);
    }
    let tokenizer = Tokenizer::load(artifact)?;
    let mut tokens = Vec::new();
    for pass in 1..=6 {
        let started = Instant::now();
        let (mut count, mut rest) = (0, &text[..]);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(32 * 1024));
            tokens.clear();
            tokenizer.encode(piece, false).fill(&mut tokens, usize::MAX)?;
            (count, rest) = (count + tokens.len(), behind);
        }
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "pass {pass}: {:.1} MB/s, {count} tokens, {:.1} ns/token",
            megabytes / seconds,
            seconds * 1e9 / count as f64
        );
    }
    Ok(())
}
