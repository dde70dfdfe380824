//! host-shim may be absent, die and come back: no request fails, and hints return by themselves.

use std::time::Duration;

use e2e::stack::MODEL;
use e2e::{Options, Stack, load, until};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_without_host_shim() {
    let mut stack = Stack::start(&Options { host_shim: false, ..Options::default() }).await.unwrap();
    // Down at Envoy's start.
    for seed in 0..10 {
        let answer = stack.client.completion(&prompt(seed)).await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.hint.reason.as_deref(), Some("NO_HINT"), "{answer:?}");
    }
    // It comes.
    stack.host_shim.start().await.unwrap();
    stack.ready(MODEL).await.unwrap();
    warm(&stack, 100).await;

    // It dies while requests run: what is held goes on giving hints.
    let client = stack.client.clone();
    let traffic = tokio::spawn(async move {
        for seed in 200..260 {
            let answer = client.completion(&prompt(seed)).await.unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    });
    stack.host_shim.kill();
    traffic.await.unwrap();
    let held = stack.client.completion(&prompt(100)).await.unwrap();
    assert_eq!(held.hint.reason.as_deref(), Some("PREFIX_MATCH"), "{held:?}");
    assert_eq!(held.hint.matched_tokens, held.cached_tokens);

    // It comes back, with an empty index of its own: what engines publish from now on gives hints again.
    stack.host_shim.start().await.unwrap();
    let seed = std::cell::Cell::new(300);
    until("hints after the restart", Duration::from_secs(30), async || {
        seed.set(seed.get() + 1);
        let body = prompt(seed.get());
        let first = stack.client.completion(&body).await.unwrap();
        assert_eq!(first.status, 200, "{first:?}");
        // Beyond the lifetime of what the plugin merely supposes.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        let second = stack.client.completion(&body).await.unwrap();
        assert_eq!(second.status, 200, "{second:?}");
        let hint = second.hint.reason.as_deref() == Some("PREFIX_MATCH");
        (hint && second.hint.matched_tokens == second.cached_tokens).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(stack.envoy.vm_reloads().await.unwrap(), 0);
    stack.check().unwrap();
}

/// Sends a prompt and sees to it that the plugin finds it from then on.
async fn warm(stack: &Stack, seed: u64) {
    stack.client.completion(&prompt(seed)).await.unwrap();
    stack.settle().await;
    let again = stack.client.completion(&prompt(seed)).await.unwrap();
    assert_eq!(again.hint.reason.as_deref(), Some("PREFIX_MATCH"), "{again:?}");
}

fn prompt(seed: u64) -> Value {
    json!({"model": MODEL, "max_tokens": 2, "prompt": load::words(seed, 120)})
}
