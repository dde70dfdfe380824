//! A request reaches the replica that holds its prefix, and the engine confirms what was predicted.

use e2e::load::{self, Script};
use e2e::stack::MODEL;
use e2e::{Answer, Options, Stack};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_is_found_for_chats_and_completions() {
    let mut stack = Stack::start(&Options::default()).await.unwrap();
    let prose = load::words(1, 300);
    let chat = json!({"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": prose}]});
    let parts = json!({"model": MODEL, "max_tokens": 4,
        "messages": [{"role": "user", "content": [{"type": "text", "text": prose}]}]});
    let completion = json!({"model": MODEL, "max_tokens": 4, "prompt": prose});
    let list = json!({"model": MODEL, "max_tokens": 4, "prompt": [prose]});

    // The second body of a pair says the same prompt in another way, so the first one's replica holds it.
    for (path, first, second) in
        [("/v1/chat/completions", &chat, &parts), ("/v1/completions", &completion, &list)]
    {
        let cold = stack.client.send(path, first, &[]).await.unwrap();
        assert_right(&cold);
        assert_eq!(cold.cached_tokens, Some(0), "{path}");
        assert_eq!(cold.hint.reason.as_deref(), Some("AFFINITY_HINT"), "{path}");
        stack.settle().await;
        for body in [first, second] {
            let before = stack.envoy.upstream_requests().await.unwrap();
            let warm = stack.client.send(path, body, &[]).await.unwrap();
            assert_right(&warm);
            assert!(warm.cached_tokens > Some(100), "{path}: {warm:?}");
            assert_eq!(warm.hint.reason.as_deref(), Some("PREFIX_MATCH"), "{path}");
            assert_eq!(warm.hint.replica, cold.hint.replica, "{path}");
            // And it really went there, not only said so.
            let after = stack.envoy.upstream_requests().await.unwrap();
            let named = cold.hint.replica.as_deref().unwrap();
            let index: usize = named.trim_start_matches("engine-").parse().unwrap();
            let address = stack.engines[index].address();
            assert_eq!(after[&address], before[&address] + 1, "{path}: {after:?}");
        }
    }
    assert_eq!(stack.envoy.vm_reloads().await.unwrap(), 0);
    stack.check().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_load_is_predicted_to_the_token() {
    let stack = Stack::start(&Options {
        // Small caches: predictions must survive evictions too.
        engine_arguments: ["--num-blocks", "320", "--prefill-tokens-per-s", "100000"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    })
    .await
    .unwrap();
    let script = Script { conversations_per_application: 2, max_tokens: 20, ..Script::demo(MODEL) };
    let played = load::play(&script, &stack.client, async || stack.settle().await, |_| ()).await.unwrap();
    for one in &played {
        assert!(one.predicted_right(), "{}: {:?}, engine says {}", one.title, one.answer.hint, one.cached());
    }
    assert!(played.iter().filter(|one| one.cached() > 0).count() > played.len() / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_replica_costs_no_request() {
    let mut stack = Stack::start(&Options { concurrency: 1, ..Options::default() }).await.unwrap();
    let body = json!({"model": MODEL, "max_tokens": 4, "prompt": load::words(2, 300)});
    let first = stack.client.completion(&body).await.unwrap();
    stack.settle().await;
    let index: usize = first.hint.replica.as_deref().unwrap().trim_start_matches("engine-").parse().unwrap();
    stack.engines[index].kill();
    for attempt in 0..10 {
        let answer = stack.client.completion(&body).await.unwrap();
        assert_eq!(answer.status, 200, "attempt {attempt}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_destination_stays_inside_the_gateway() {
    let stack = Stack::start(&Options::default()).await.unwrap();
    let body: Value = json!({"model": MODEL, "max_tokens": 1, "prompt": "a"});
    let response =
        stack.client.request(reqwest::Method::POST, "/v1/completions").json(&body).send().await.unwrap();
    assert!(response.headers().keys().all(|name| !name.as_str().contains("destination")), "{response:?}");
}

fn assert_right(answer: &Answer) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.hint.mode.as_deref(), Some("body"), "{answer:?}");
    assert_eq!(answer.hint.matched_tokens, answer.cached_tokens, "{answer:?}");
}
