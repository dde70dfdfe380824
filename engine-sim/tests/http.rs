//! The HTTP server: what a client, a router and a dashboard see.

mod support;

use engine_sim::{EngineSim, StartError};
use serde_json::{Value, json};
use support::{ask, config, post, text};

#[tokio::test]
async fn the_next_turn_of_a_chat_finds_prompt_and_answer() {
    let engine = EngineSim::start(config()).await.unwrap();
    let system = json!({"role": "system", "content": "You are a guide. ".repeat(8)});
    let question = json!({"role": "user", "content": "Where is the harbour?"});
    let first = chat(&engine, &[&system, &question]).await;
    let prompt = first["prompt_token_ids"].as_array().unwrap();
    let answer = first["choices"][0]["token_ids"].as_array().unwrap();
    assert_eq!(first["usage"]["prompt_tokens"], prompt.len());
    assert_eq!(first["usage"]["completion_tokens"], answer.len());
    assert_eq!(cached_tokens(&first), 0);
    assert_eq!(first["choices"][0]["finish_reason"], "stop");
    assert_eq!(first["usage"]["prompt_tokens_details"]["created_cache_tokens"], prompt.len() / 16 * 16);

    let reply = json!({"role": "assistant", "content": first["choices"][0]["message"]["content"]});
    let more = json!({"role": "user", "content": "And the lighthouse?"});
    let second = chat(&engine, &[&system, &question, &reply, &more]).await;
    let known = [prompt.as_slice(), answer.as_slice()].concat();
    assert_eq!(second["prompt_token_ids"].as_array().unwrap()[..known.len()], known);
    // The end token was answered but never computed.
    assert_eq!(cached_tokens(&second), ((known.len() - 1) / 16 * 16) as u64);
}

#[tokio::test]
async fn a_prompt_of_full_blocks_computes_its_last_block_again() {
    let engine = EngineSim::start(config()).await.unwrap();
    let prompt: Vec<u32> = (100..164).collect();
    let body = json!({"model": "demo", "prompt": prompt, "max_tokens": 3, "ignore_eos": true});
    let first = ask(&engine, "/v1/completions", body.clone()).await;
    let second = ask(&engine, "/v1/completions", body).await;
    assert_eq!((cached_tokens(&first), cached_tokens(&second)), (0, 48));
    assert_eq!(first["choices"], second["choices"]);
    assert_eq!(first["usage"]["completion_tokens"], 3);
    assert_eq!(first["choices"][0]["finish_reason"], "length");

    let page = text(&engine, "/metrics").await;
    assert!(
        page.contains("\nvllm:prefix_cache_queries_total{engine=\"0\",model_name=\"demo\"} 128.0\n"),
        "{page}"
    );
    assert!(page.contains("\nvllm:prefix_cache_hits_total{engine=\"0\",model_name=\"demo\"} 48.0\n"));
    assert!(page.contains("\nvllm:num_requests_running{engine=\"0\",model_name=\"demo\"} 0.0\n"));
    assert!(page.contains("block_size=\"16\"") && page.contains("num_gpu_blocks=\"512\""));
}

#[tokio::test]
async fn salts_and_adapters_have_caches_of_their_own() {
    let engine = EngineSim::start(config()).await.unwrap();
    let prompt: Vec<u32> = (100..140).collect();
    let requests = [
        json!({"model": "demo", "prompt": prompt}),
        json!({"model": "poet", "prompt": prompt}),
        json!({"model": "demo", "prompt": prompt, "cache_salt": "a"}),
    ];
    for request in &requests {
        let first = ask(&engine, "/v1/completions", request.clone()).await;
        let second = ask(&engine, "/v1/completions", request.clone()).await;
        assert_eq!((cached_tokens(&first), cached_tokens(&second)), (0, 32), "{request}");
        assert_eq!(second["model"], request["model"]);
    }
    let reset = ask(&engine, "/reset_prefix_cache", Value::Null).await;
    assert_eq!(reset, json!({"success": true}));
    for request in requests {
        assert_eq!(cached_tokens(&ask(&engine, "/v1/completions", request).await), 0);
    }
}

#[tokio::test]
async fn a_stream_says_the_same_as_the_whole() {
    let engine = EngineSim::start(config()).await.unwrap();
    for (path, prompt) in [
        ("/v1/completions", json!({"prompt": ["the harbour", "the lighthouse"]})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "the harbour"}]})),
    ] {
        let mut body = prompt;
        body["return_token_ids"] = json!(true);
        let whole = ask(&engine, path, body.clone()).await;
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let response = reqwest::Client::new()
            .post(format!("http://{}{path}", engine.http()))
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let stream = response.text().await.unwrap();
        let mut events: Vec<&str> = stream
            .split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| &event["data: ".len()..])
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        let chunks: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
        let usage = &chunks.last().unwrap()["usage"];
        assert_eq!(usage["total_tokens"], whole["usage"]["total_tokens"]);
        for choice in whole["choices"].as_array().unwrap() {
            let parts = || {
                let choices = chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
                choices.filter(|part| part["index"] == choice["index"])
            };
            let piece =
                |part: &Value| part["text"].as_str().or(part["delta"]["content"].as_str()).map(str::to_owned);
            let said = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
            assert_eq!(parts().filter_map(piece).collect::<String>(), said);
            let ids = |part: &Value| part["token_ids"].as_array().cloned().unwrap_or_default();
            assert_eq!(Value::Array(parts().flat_map(ids).collect()), choice["token_ids"]);
            let prompt = chunks.iter().find_map(|chunk| {
                let part = chunk["choices"].get(0)?;
                let prompt = chunk.get("prompt_token_ids").or(part.get("prompt_token_ids"))?;
                (part["index"] == choice["index"]).then_some(prompt)
            });
            assert_eq!(prompt, Some(choice.get("prompt_token_ids").unwrap_or(&whole["prompt_token_ids"])));
        }
    }
}

#[tokio::test]
async fn tokenize_agrees_with_the_completion() {
    let engine = EngineSim::start(config()).await.unwrap();
    let messages = json!({"messages": [{"role": "user", "content": "the harbour"}]});
    let tokens = ask(&engine, "/tokenize", messages.clone()).await;
    let mut body = messages;
    body["return_token_ids"] = json!(true);
    let answer = ask(&engine, "/v1/chat/completions", body).await;
    assert_eq!(tokens["tokens"], answer["prompt_token_ids"]);
    assert_eq!(tokens["max_model_len"], 8192);
    let text = ask(&engine, "/tokenize", json!({"prompt": "the harbour"})).await;
    assert_eq!(text["count"], text["tokens"].as_array().unwrap().len());
}

#[tokio::test]
async fn bad_requests_get_vllms_errors() {
    let engine = EngineSim::start(config()).await.unwrap();
    let user = |content: &str| json!([{"role": "user", "content": content}]);
    let long = "harbour ".repeat(20_000);
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    for (path, body, status) in [
        ("/v1/completions", "{".to_owned(), 400),
        ("/v1/completions", "[]".to_owned(), 400),
        ("/v1/completions", deep, 400),
        ("/v1/completions", json!({"model": "other", "prompt": "x"}).to_string(), 404),
        ("/v1/completions", json!({"prompt": ""}).to_string(), 400),
        ("/v1/completions", json!({"prompt": [[]]}).to_string(), 400),
        ("/v1/completions", json!({"prompt": [1, -1]}).to_string(), 400),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 0}).to_string(), 400),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 9000}).to_string(), 400),
        ("/v1/completions", json!({"prompt": long}).to_string(), 400),
        ("/v1/completions", json!({"prompt": "x".repeat(10_000_000)}).to_string(), 400),
        ("/v1/completions", json!({"prompt": "x", "cache_salt": ""}).to_string(), 400),
        ("/v1/chat/completions", json!({"model": "demo", "messages": []}).to_string(), 400),
        ("/v1/chat/completions", json!({"model": "nobody", "messages": user("x")}).to_string(), 404),
        ("/v1/chat/completions", json!({"model": "demo", "messages": user(&long)}).to_string(), 400),
    ] {
        let start = body[..body.len().min(60)].to_owned();
        let (found, answer) = post(&engine, path, body).await;
        assert_eq!(found, status, "{start}: {answer}");
        assert_eq!(answer["error"]["code"], status);
        assert!(answer["error"]["message"].is_string() && answer["error"]["type"].is_string());
    }
}

#[tokio::test]
async fn the_rest_of_the_endpoints() {
    let engine = EngineSim::start(config()).await.unwrap();
    assert_eq!(text(&engine, "/health").await, "");
    let models: Value = serde_json::from_str(&text(&engine, "/v1/models").await).unwrap();
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&json!("demo"), &json!("poet")));
    let sources: Value = serde_json::from_str(&text(&engine, "/kv_event_sources").await).unwrap();
    assert_eq!(sources["0"]["endpoint"], engine.endpoints().unwrap().events);
    let (_, echo) = post(&engine, "/echo", "abc").await;
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(echo, json!({"length": 3, "sha256": digest}));
}

#[tokio::test]
async fn a_port_in_use_is_named_with_its_flag() {
    let first = EngineSim::start(config()).await.unwrap();
    let taken = first.http();
    let mut second = config();
    second.http = taken;
    let error = EngineSim::start(second).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { flag: "--http", .. }));
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
    let mut third = config();
    third.events.as_mut().unwrap().replay_endpoint = first.endpoints().unwrap().replay.clone();
    let error = EngineSim::start(third).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { flag: "--replay", .. }));
    first.stop().await;
}

async fn chat(engine: &EngineSim, messages: &[&Value]) -> Value {
    let body = json!({"model": "demo", "messages": messages, "return_token_ids": true});
    ask(engine, "/v1/chat/completions", body).await
}

fn cached_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}
