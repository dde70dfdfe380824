//! `cargo xtask demo`: a conversation load through a real Envoy, with the plugin and through plain least_request.
//!
//! Prints a line per request as it is answered: where it went and why, how many prompt tokens the gateway said the
//! engine would find in its cache, and how many the engine then reported.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use clap::Parser;
use e2e::load::{self, Played, Script, Totals};
use e2e::manifest::Variant;
use e2e::stack::MODEL;
use e2e::{Options, Stack, ports, unless_stopped};

#[derive(Parser)]
struct Cli {
    /// Exit when the comparison is done.
    #[arg(long)]
    once: bool,
    #[arg(long, default_value_t = 3)]
    engines: usize,
    #[arg(long, default_value_t = 10000)]
    envoy_port: u16,
}

#[tokio::main]
async fn main() {
    let cli = Cli::parse();
    if let Err(error) = unless_stopped(run(&cli)).await {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}

async fn run(cli: &Cli) -> Result<()> {
    ensure!(
        ports::is_free(cli.envoy_port),
        "port {} on 127.0.0.1 is taken; choose another with --envoy-port",
        cli.envoy_port
    );
    let script = Script::demo(MODEL);
    println!("starting host-shim, {} engines and Envoy ...", cli.engines);
    let with_plugin = options(cli, Some(cli.envoy_port), Variant::Body);
    let mut stack = Stack::start(&with_plugin).await?;
    println!("\nThrough the plugin:\n");
    let routed = play_with_table(&stack, &script).await?;
    stack.check()?;

    println!("\nThe same load through plain least_request, with engines that have just started ...");
    let plain = {
        let mut stack = Stack::start(&options(cli, None, Variant::NoPlugin)).await?;
        let plain = load::play(&script, &stack.client, async || stack.settle().await, |_| ()).await?;
        stack.check()?;
        plain
    };
    let verdict = compare(&routed, &plain);
    if cli.once {
        return verdict;
    }
    if let Err(error) = verdict {
        println!("\n{error:#}");
    }
    stay_up(cli, &stack).await
}

fn options(cli: &Cli, envoy_port: Option<u16>, variant: Variant) -> Options {
    let arguments = ["--num-blocks", "4096", "--prefill-tokens-per-s", "10000"];
    Options {
        engines: cli.engines,
        engine_arguments: arguments.map(str::to_owned).to_vec(),
        envoy_port,
        variant,
        ..Options::default()
    }
}

async fn play_with_table(stack: &Stack, script: &Script) -> Result<Vec<Played>> {
    println!(
        "  # request                 replica    reason         prompt  predicted  cached  first byte\n\
         --- ----------------------- ---------- -------------- ------ ---------- ------- -----------"
    );
    load::play(script, &stack.client, async || stack.settle().await, print_row).await
}

fn print_row(played: &Played) {
    let Played { number, title, answer, .. } = played;
    let hint = &answer.hint;
    println!(
        "{number:3} {title:23} {:10} {:14} {:6} {:10} {:7} {:8.1} ms{}",
        hint.replica.as_deref().unwrap_or("-"),
        hint.reason.as_deref().unwrap_or("-"),
        answer.prompt_tokens.unwrap_or(0),
        hint.matched_tokens.unwrap_or(0),
        played.cached(),
        answer.first_byte.as_secs_f64() * 1e3,
        if played.predicted_right() { "" } else { "  WRONG" },
    );
}

/// Prints the two runs side by side; an error if a prediction was wrong or the plugin brought nothing.
fn compare(routed: &[Played], plain: &[Played]) -> Result<()> {
    let (with, without) = (Totals::of(routed), Totals::of(plain));
    let wrong = routed.iter().filter(|played| !played.predicted_right()).count();
    let mut per_replica: BTreeMap<&str, usize> = BTreeMap::new();
    for played in routed {
        *per_replica.entry(played.answer.hint.replica.as_deref().unwrap_or("none")).or_default() += 1;
    }
    let spread: Vec<String> =
        per_replica.iter().map(|(replica, count)| format!("{replica} {count}")).collect();

    println!("\n                              inference-cache  least_request");
    println!("requests                      {:15}  {:13}", with.requests, without.requests);
    println!("prompt tokens                 {:15}  {:13}", with.prompt_tokens, without.prompt_tokens);
    println!("found in the engines' caches  {:15}  {:13}", with.cached_tokens, without.cached_tokens);
    println!(
        "hit rate                      {:13.1} %  {:11.1} %",
        with.hit_rate() * 1e2,
        without.hit_rate() * 1e2
    );
    let milliseconds = |totals: &Totals| totals.mean_first_byte.as_secs_f64() * 1e3;
    println!(
        "mean time to first byte       {:12.1} ms  {:10.1} ms",
        milliseconds(&with),
        milliseconds(&without)
    );
    println!(
        "predictions right             {:>15}",
        format!("{} of {}", with.requests - wrong, with.requests)
    );
    println!("requests per replica          {}", spread.join(", "));

    ensure!(wrong == 0, "{wrong} of {} predictions were wrong", with.requests);
    ensure!(with.hit_rate() > without.hit_rate(), "the hit rate is not better than least_request's");
    Ok(())
}

async fn stay_up(cli: &Cli, stack: &Stack) -> Result<()> {
    println!(
        "\nStill running, Envoy on 127.0.0.1:{}. Send a request (twice, and watch x-inference-cache-*):\n\n\
         curl -si http://127.0.0.1:{}/v1/chat/completions -H 'content-type: application/json' -d '{{\"model\": \
         \"{MODEL}\", \"max_tokens\": 8, \"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}]}}'\n\n\
         Logs and configuration: {}\nCtrl-C ends everything.",
        cli.envoy_port,
        cli.envoy_port,
        load::words(7, 40),
        stack.dir().path().display()
    );
    std::future::pending().await
}
