//! Without `allow_on_headers_stop_iteration`, as in a plain Istio WasmPlugin: the plugin finds out by itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use e2e::manifest::Variant;
use e2e::stack::MODEL;
use e2e::{Options, Stack, load};
use serde_json::json;

/// No request may wait longer than this for the plugin.
const HELD_AT_MOST: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_finds_out_and_pins_conversations() {
    let mut stack = Stack::start(&Options {
        variant: Variant::FlagLeftOut,
        // Answers take next to no time: what is left is waiting.
        engine_arguments: ["--prefill-tokens-per-s", "10000000", "--decode-ms", "0"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    })
    .await
    .unwrap();

    // From the very first request on, which is the one that is held in vain.
    let mut longest = Duration::ZERO;
    let mut replicas: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for round in 0..6 {
        for conversation in 0..8 {
            let name = format!("conversation {conversation}");
            let body = json!({"model": MODEL, "max_tokens": 1, "prompt": load::words(conversation * 10 + round, 50)});
            let began = Instant::now();
            let headers = [("x-conversation-id", name.as_str()), ("x-inference-cache-model", MODEL)];
            let answer = stack.client.send("/v1/completions", &body, &headers).await.unwrap();
            longest = longest.max(began.elapsed());
            assert_eq!(answer.status, 200, "{answer:?}");
            if round > 0 {
                assert_eq!(answer.hint.mode.as_deref(), Some("header"), "{answer:?}");
                assert_eq!(answer.hint.reason.as_deref(), Some("AFFINITY_HINT"), "{answer:?}");
                replicas.entry(name).or_default().push(answer.hint.replica.unwrap());
            }
        }
    }
    for (name, replicas) in &replicas {
        assert!(replicas.iter().all(|replica| *replica == replicas[0]), "{name} moved: {replicas:?}");
    }
    let mut used: Vec<&String> = replicas.values().flatten().collect();
    used.sort_unstable();
    used.dedup();
    assert!(used.len() > 1, "all conversations on {used:?}");
    // The whole exchange on a loaded machine; without the way out it would be Envoy's 300 s.
    assert!(longest < 10 * HELD_AT_MOST, "a request took {longest:?}");

    assert!(stack.envoy.plugin_metric("mode_total.mode.header").await.unwrap() > 0);
    assert!(stack.envoy.plugin_metric("mode_changes_total.mode.header").await.unwrap() > 0);
    assert_eq!(stack.envoy.vm_reloads().await.unwrap(), 0);
    stack.check().unwrap();
}
