//! `cargo xtask e2e-vllm`: real vLLM engines (CPU, real Qwen3 tokenizer, random weights) behind the real Envoy.
//!
//! For every request, all as text, three things must hold:
//! * the matched tokens that the plugin predicted are the `cached_tokens` that vLLM reports;
//! * the tokens that the gateway hashes are the engine's own prompt ids (`return_token_ids`);
//! * a conversation stays on its replica, as long as that keeps what it holds.
//!
//! First with a load of multi-turn chats and completions. Then after everything that makes an index wrong: a LoRA
//! adapter with the base model's prompts, evictions, `/reset_prefix_cache`, an engine killed and started again, host-shim
//! killed and started again; at last with an engine of two data-parallel ranks. After each, the prompts so far are asked
//! again ([`Probes`]): the index must be what the engines really hold.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod checks;
mod probes;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use checks::Checks;
use e2e::client::Client;
use e2e::engine::Engine;
use e2e::host_shim::{HostShim, Replica};
use e2e::load::{self, Script, Totals};
use e2e::process::path_from;
use e2e::shadow::Shadow;
use e2e::wait::until;
use e2e::{Options, Stack, Workdir, lora, unless_stopped};
use probes::Probes;
use serde_json::{Value, json};

/// The name that `real-engine/serve.sh` serves the model under.
const MODEL: &str = "qwen3";
const ADAPTER: &str = "ad";
const ENGINES: usize = 2;
/// Importing torch and compiling kernels, two at a time on two cores.
const START: Duration = Duration::from_secs(400);
/// host-shim hears of an engine again: its publisher's reconnect and a replay.
const RECONNECT: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() {
    if let Err(error) = unless_stopped(run()).await {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}

async fn run() -> Result<()> {
    println!("compiling the tokenizer ...");
    let setup = path_from("INFERENCE_CACHE_REAL_ENGINE")?;
    let tokenizer = path_from("INFERENCE_CACHE_TOKENIZERS")?.join(MODEL);
    let mut checks = Checks::new(Shadow::load(&tokenizer)?);
    two_engines(&setup, &tokenizer, &mut checks).await?;
    two_ranks(&setup, &tokenizer, &mut checks).await?;
    if !checks.failures.is_empty() {
        bail!("{} checks failed:\n{}", checks.failures.len(), checks.failures.join("\n"));
    }
    println!(
        "\n{} requests: every prediction equals vLLM's cached_tokens, every prompt its token ids, every conversation \
         stayed in place",
        checks.requests
    );
    Ok(())
}

async fn two_engines(setup: &Path, tokenizer: &Path, checks: &mut Checks) -> Result<()> {
    let dir = Workdir::new()?;
    let adapter = lora::write(dir.path(), ADAPTER)?;
    let arguments = [
        "--enable-lora".to_owned(),
        "--max-lora-rank".to_owned(),
        lora::RANK.to_string(),
        "--lora-modules".to_owned(),
        format!("{ADAPTER}={}", adapter.display()),
    ];
    let replicas = (0..ENGINES)
        .map(|_| Ok(Replica { adapters: vec![ADAPTER.to_owned()], ..Engine::ports(true)? }))
        .collect::<Result<Vec<_>>>()?;
    println!("starting host-shim, {ENGINES} vLLM engines (a minute or two) and Envoy ...");
    let mut stack = start(&replicas, &arguments, setup, tokenizer, dir).await?;

    checks.title("a load of conversations");
    let script = script();
    let settled = async || stack.settle().await;
    let played = load::play(&script, &stack.client, settled, |one| checks.check(one)).await?;
    let totals = Totals::of(&played);
    println!(
        "{} requests, {} prompt tokens, {} found in vLLM's caches ({:.1} %)",
        totals.requests,
        totals.prompt_tokens,
        totals.cached_tokens,
        totals.hit_rate() * 1e2
    );
    ensure!(totals.cached_tokens > 0, "nothing was ever found in a cache: the load proves nothing");
    let mut probes = Probes::of(&played);

    checks.title("the same prompts for a LoRA adapter");
    let adapted = probes.with_model(ADAPTER).first(4);
    let found = adapted.clone().first(1).ask(&stack, checks).await?;
    ensure!(found == 0, "the adapter found {found} tokens of the base model");
    ensure!(adapted.ask(&stack, checks).await? > 0, "the adapter never found anything");
    probes.extend(adapted);

    checks.title("evictions");
    // Two caches of 512 blocks of 32 tokens, prompts of 1,500 tokens and more.
    let removed = async || stack.host_shim.metric("inferencecache_source_removed_blocks_total").await;
    let mut flood = 0;
    while removed().await? < 400.0 {
        ensure!(flood < 80, "{flood} long prompts and nothing much was evicted");
        let prompt = load::words(900_000 + flood, 1100);
        let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0, "return_token_ids": true});
        flood += 1;
        Probes::one(format!("flood {flood}"), body.clone()).ask(&stack, checks).await?;
        if flood % 8 == 0 {
            probes.extend(Probes::one(format!("flood {flood}"), body));
        }
    }
    probes.ask(&stack, checks).await?;

    checks.title("/reset_prefix_cache of engine-0");
    checks.may_move();
    let engine = Client::new(format!("http://{}", stack.engines[0].address()))?;
    let answer = engine.request(reqwest::Method::POST, "/reset_prefix_cache").send().await?;
    ensure!(answer.status().is_success(), "/reset_prefix_cache: {}", answer.status());
    // vLLM tells of it in its next step only.
    engine.completion(&json!({"model": MODEL, "prompt": "a", "max_tokens": 1})).await?;
    stack.settle().await;
    ensure!(blocks(&stack, 0).await? == 0.0, "engine-0 holds nothing, and its source says otherwise");
    probes.ask(&stack, checks).await?;

    checks.title("engine-0 killed and started again");
    checks.may_move();
    stack.engines[0].kill();
    stack.engines[0] = Engine::start_vllm(&replicas[0], 0, &arguments, setup, stack.dir().path())?;
    stack.engines[0].ready(START).await?;
    let gone = until("the dead process's blocks to go", RECONNECT, async || {
        blocks(&stack, 0).await.ok().filter(|&blocks| blocks == 0.0)
    });
    gone.await?;
    stack.settle().await;
    probes.ask(&stack, checks).await?;

    checks.title("host-shim killed and started again");
    let before = [blocks(&stack, 0).await?, blocks(&stack, 1).await?];
    stack.host_shim.kill();
    stack.host_shim.start().await?;
    let back = until("the engines' blocks to come back by replay", RECONNECT, async || {
        let now = [blocks(&stack, 0).await.ok()?, blocks(&stack, 1).await.ok()?];
        (now == before).then_some(())
    });
    back.await?;
    stack.settle().await;
    probes.ask(&stack, checks).await?;
    finish(&mut stack).await
}

async fn two_ranks(setup: &Path, tokenizer: &Path, checks: &mut Checks) -> Result<()> {
    const RANKS: u16 = 2;
    println!("\nstarting an engine of {RANKS} data-parallel ranks (a minute or two) ...");
    let replicas = [Engine::ports_of_ranks(true, RANKS)?];
    let arguments = ["--data-parallel-size".to_owned(), RANKS.to_string()];
    let mut stack = start(&replicas, &arguments, setup, tokenizer, Workdir::new()?).await?;

    checks.title("conversations on two ranks of one engine");
    checks.may_move();
    let script = Script { conversations_per_application: 2, turns: 2, unshared: 2, ..script() };
    let settled = async || stack.settle().await;
    let played = load::play(&script, &stack.client, settled, |one| checks.check(one)).await?;
    ensure!(Totals::of(&played).cached_tokens > 0, "nothing was ever found in a cache");
    for rank in 0..RANKS {
        let label = format!("rank=\"{rank}\"");
        let stored = stack.host_shim.metric_with("inferencecache_source_stored_blocks_total", &label).await?;
        ensure!(stored > 0.0, "rank {rank} never stored a block");
    }
    Probes::of(&played).ask(&stack, checks).await?;
    finish(&mut stack).await
}

async fn start(
    replicas: &[Replica],
    arguments: &[String],
    setup: &Path,
    tokenizer: &Path,
    dir: Workdir,
) -> Result<Stack> {
    // The engines' publishers connect, so host-shim must be there first.
    let mut host_shim = HostShim::new(MODEL, tokenizer, replicas, &dir)?;
    host_shim.start().await?;
    let start = |(index, replica)| Engine::start_vllm(replica, index, arguments, setup, dir.path());
    let mut engines = replicas.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
    for engine in &mut engines {
        engine.ready(START).await?;
    }
    let options = Options { engines: replicas.len(), host_shim: false, ..Options::default() };
    let mut stack = Stack::assemble(&options, engines, host_shim, dir).await?;
    stack.ready(MODEL).await?;
    Ok(stack)
}

async fn finish(stack: &mut Stack) -> Result<()> {
    stack.check()?;
    let decode_errors = stack.host_shim.metric("inferencecache_source_decode_errors_total").await?;
    ensure!(decode_errors == 0.0, "{decode_errors} events could not be read");
    ensure!(stack.envoy.vm_reloads().await? == 0, "a VM of the plugin trapped");
    Ok(())
}

/// Blocks that host-shim thinks an engine holds.
async fn blocks(stack: &Stack, engine: usize) -> Result<f64> {
    let label = format!("replica=\"engine-{engine}\"");
    stack.host_shim.metric_with("inferencecache_source_blocks", &label).await
}

fn script() -> Script {
    Script {
        model: MODEL.to_owned(),
        applications: vec!["support", "contracts", "travel"],
        conversations_per_application: 3,
        turns: 4,
        unshared: 4,
        // The model's context is 2,048 tokens.
        system_words: 400,
        turn_words: 50,
        max_tokens: 24,
        // Not streamed: then the ids come with the answer of both endpoints.
        extra: extra(),
    }
}

fn extra() -> Value {
    json!({"temperature": 0, "stream": false, "stream_options": null, "return_token_ids": true})
}
