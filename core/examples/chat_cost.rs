//! Cost of a chat before tokenization: parse of the body and render of the template, for bodies of 2, 16 and 128 KiB.
//!
//! `cargo run --release -p inference-cache-core --example chat_cost [TEMPLATE]` (default: Qwen3). Prints medians.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing
)]

use inference_cache_core::openai::{self, Endpoint, Prompt};
use inference_cache_core::template::{ChatTemplate, TemplateSettings};
use std::time::Instant;

const QWEN3: &str = include_str!("../../tests-data/templates/qwen3.jinja");
/// Prose and code with an escape every 60 bytes or so, as chats have.
const TEXT: &str =
    "The quick brown fox jumps over the lazy dog; \\\"quoted\\\" text.\\nfn main() { let x = 1; }\\n";
const ROUNDS: usize = 501;

fn main() {
    let source = std::env::args().nth(1).map(|path| std::fs::read_to_string(path).unwrap());
    let source = source.as_deref().unwrap_or(QWEN3);
    let started = Instant::now();
    let template = ChatTemplate::compile(source, TemplateSettings::default()).unwrap();
    println!("compile {:.2} ms", started.elapsed().as_secs_f64() * 1e3);
    for kib in [2, 16, 128] {
        let body = body(kib * 1024);
        let parse = || openai::parse(Endpoint::ChatCompletions, body.as_bytes(), true).unwrap();
        let Prompt::Chat(chat) = parse().prompt else { panic!("a chat") };
        println!(
            "body {:6} B, {:2} messages: parse {:6.1} us, render {:6.1} us",
            body.len(),
            chat.messages.len(),
            median_us(parse),
            median_us(|| template.render(&chat, 0).unwrap()),
        );
    }
}

/// A chat of turns of 1 to 8 KiB.
fn body(size: usize) -> String {
    let turn = TEXT.repeat((size / 16).clamp(1024, 8192) / TEXT.len());
    let mut body =
        r#"{"model":"m","temperature":0.7,"stream":true,"messages":[{"role":"system","content":"You help."}"#
            .to_owned();
    for role in ["user", "assistant"].into_iter().cycle() {
        if body.len() + turn.len() > size && role == "assistant" {
            break;
        }
        body.push_str(&format!(r#",{{"role":"{role}","content":"{turn}"}}"#));
    }
    body + "]}"
}

fn median_us<T>(mut work: impl FnMut() -> T) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            std::hint::black_box(work());
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}
