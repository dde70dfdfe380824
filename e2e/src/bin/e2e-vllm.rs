//! `cargo xtask e2e-vllm`: two real vLLM engines (CPU, real Qwen3 tokenizer, random weights) behind the real Envoy.
//!
//! For every request of a load of multi-turn chats and completions, all as text, three things must hold:
//! * the matched tokens that the plugin predicted are the `cached_tokens` that vLLM reports;
//! * the tokens that the gateway hashes are the engine's own prompt ids (`return_token_ids`);
//! * a conversation stays on its replica.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::engine::Engine;
use e2e::host_shim::HostShim;
use e2e::load::{self, Played, Script, Totals};
use e2e::process::path_from;
use e2e::shadow::Shadow;
use e2e::{Options, Stack, Workdir, unless_stopped};
use inference_cache_core::openai::Endpoint;
use serde_json::json;

/// The name that `real-engine/serve.sh` serves the model under.
const MODEL: &str = "qwen3";
const ENGINES: usize = 2;
/// Importing torch and compiling kernels, two at a time on two cores.
const START: Duration = Duration::from_secs(400);

#[tokio::main]
async fn main() {
    if let Err(error) = unless_stopped(run()).await {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}

async fn run() -> Result<()> {
    let setup = path_from("INFERENCE_CACHE_REAL_ENGINE")?;
    let tokenizer = path_from("INFERENCE_CACHE_TOKENIZERS")?.join(MODEL);
    println!("compiling the tokenizer ...");
    let shadow = Shadow::load(&tokenizer)?;

    let dir = Workdir::new()?;
    let replicas = (0..ENGINES).map(|_| Engine::ports(true)).collect::<Result<Vec<_>>>()?;
    println!("starting host-shim, {ENGINES} vLLM engines (a minute or two) and Envoy ...");
    // The engines' publishers connect, so host-shim must be there first.
    let mut host_shim = HostShim::new(MODEL, &tokenizer, &replicas, &dir)?;
    host_shim.start().await?;
    let start = |(index, replica)| Engine::start_vllm(replica, index, &setup, dir.path());
    let mut engines = replicas.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
    for engine in &mut engines {
        engine.ready(START).await?;
    }
    let options = Options { engines: ENGINES, host_shim: false, ..Options::default() };
    let mut stack = Stack::assemble(&options, engines, host_shim, dir).await?;
    stack.ready(MODEL).await?;

    println!(
        "\n  # request                replica  reason        prompt  predicted  cached  tokens\n\
         --- ---------------------- -------- ------------- ------ ---------- ------- ------"
    );
    let mut checks = Checks { shadow, replicas: BTreeMap::new(), failures: Vec::new() };
    let script = script();
    let played =
        load::play(&script, &stack.client, async || stack.settle().await, |one| checks.check(one)).await?;
    stack.check()?;
    ensure!(stack.envoy.vm_reloads().await? == 0, "a VM of the plugin trapped");

    let totals = Totals::of(&played);
    println!(
        "\n{} requests, {} prompt tokens, {} found in vLLM's caches ({:.1} %)",
        totals.requests,
        totals.prompt_tokens,
        totals.cached_tokens,
        totals.hit_rate() * 1e2
    );
    ensure!(totals.cached_tokens > 0, "nothing was ever found in a cache: the load proves nothing");
    if !checks.failures.is_empty() {
        bail!("{} checks failed:\n{}", checks.failures.len(), checks.failures.join("\n"));
    }
    println!(
        "every prediction equals vLLM's cached_tokens, every prompt its token ids, every conversation stayed in place"
    );
    Ok(())
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
        extra: json!({"temperature": 0, "stream": false, "stream_options": null, "return_token_ids": true}),
    }
}

struct Checks {
    shadow: Shadow,
    /// Of each conversation.
    replicas: BTreeMap<String, String>,
    failures: Vec<String>,
}

impl Checks {
    fn check(&mut self, played: &Played) {
        let failed = self.violations(played).unwrap_or_else(|error| vec![format!("{error:#}")]);
        let Played { number, title, answer, .. } = played;
        println!(
            "{number:3} {title:22} {:8} {:13} {:6} {:10} {:7} {}",
            answer.hint.replica.as_deref().unwrap_or("-"),
            answer.hint.reason.as_deref().unwrap_or("-"),
            answer.prompt_tokens.unwrap_or(0),
            answer.hint.matched_tokens.unwrap_or(0),
            played.cached(),
            if failed.is_empty() { "equal" } else { "FAILED" }
        );
        self.failures.extend(failed.into_iter().map(|problem| format!("{title}: {problem}")));
    }

    fn violations(&mut self, played: &Played) -> Result<Vec<String>> {
        let answer = &played.answer;
        let mut violations = Vec::new();
        if !played.predicted_right() {
            let predicted = answer.hint.matched_tokens;
            violations.push(format!("predicted {predicted:?}, vLLM reports {:?}", answer.cached_tokens));
        }

        let is_chat = played.body.get("messages").is_some();
        let endpoint = if is_chat { Endpoint::ChatCompletions } else { Endpoint::Completions };
        let ours = self.shadow.tokens(endpoint, &played.body)?;
        let theirs = answer.prompt_token_ids.as_ref().context("vLLM returned no token ids")?;
        if ours != *theirs {
            let at = ours.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
            let (ours, theirs) = (ours.len(), theirs.len());
            violations.push(format!("token {at} differs ({ours} tokens here, {theirs} in vLLM)"));
        }

        let replica = answer.hint.replica.clone().context("no replica was named")?;
        if let Some(conversation) = &played.conversation {
            let first = self.replicas.entry(conversation.clone()).or_insert_with(|| replica.clone());
            if *first != replica {
                violations.push(format!("moved from {first} to {replica}"));
            }
        }
        Ok(violations)
    }
}
