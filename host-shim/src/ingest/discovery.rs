//! Asks an engine where its event sockets are.
//!
//! vLLM 0.31 and later: `GET /kv_event_sources` says `{RANK: {"endpoint", "replay_endpoint", …}}`. SGLang:
//! `GET /server_info` has `kv_events: {"endpoint_host", "endpoint_port_base", …}`, one port per rank. A wildcard host
//! means the host that was asked.

use crate::config::{Endpoint, Engine};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of an answer.
const MAX_ANSWER: usize = 1 << 20;

/// Where the sockets of one source are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sockets {
    pub(super) events: Endpoint,
    pub(super) replay: Option<Endpoint>,
}

/// Asks for the sockets of one rank.
#[derive(Debug)]
pub(super) struct Discovery {
    address: SocketAddr,
    engine: Engine,
    rank: u32,
    client: reqwest::Client,
}

/// Why an engine gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiscoveryError {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("the answer is longer than {MAX_ANSWER} bytes")]
    Length,
    #[error("the answer is not as expected: {0}")]
    Shape(#[from] serde_json::Error),
    #[error("the answer has no socket for rank {0}")]
    Rank(u32),
    #[error("the answer has an endpoint that cannot be connected to")]
    Endpoint,
}

impl Discovery {
    pub(super) fn new(address: SocketAddr, engine: Engine, rank: u32) -> Result<Discovery, DiscoveryError> {
        let client = reqwest::Client::builder().timeout(TIMEOUT).no_proxy();
        let client = client.redirect(reqwest::redirect::Policy::none()).build()?;
        Ok(Discovery { address, engine, rank, client })
    }

    pub(super) async fn ask(&self) -> Result<Sockets, DiscoveryError> {
        let path = match self.engine {
            Engine::Vllm => "kv_event_sources",
            Engine::Sglang => "server_info",
        };
        let request = self.client.get(format!("http://{}/{path}", self.address));
        let mut response = request.send().await?.error_for_status()?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(DiscoveryError::Length);
            }
            body.extend_from_slice(&chunk);
        }
        let sockets = match self.engine {
            Engine::Vllm => vllm(&body, self.rank)?,
            Engine::Sglang => sglang(&body, self.rank)?,
        };
        Ok(Sockets {
            events: self.reachable(sockets.events),
            replay: sockets.replay.map(|replay| self.reachable(replay)),
        })
    }

    fn reachable(&self, endpoint: Endpoint) -> Endpoint {
        match endpoint {
            Endpoint::Tcp { host, port } if matches!(host.as_str(), "*" | "0.0.0.0" | "::") => {
                Endpoint::Tcp { host: self.address.ip().to_string(), port }
            }
            other => other,
        }
    }
}

fn vllm(body: &[u8], rank: u32) -> Result<Sockets, DiscoveryError> {
    #[derive(Deserialize)]
    struct Source {
        endpoint: String,
        replay_endpoint: Option<String>,
    }
    let mut sources: BTreeMap<String, Source> = serde_json::from_slice(body)?;
    let source = sources.remove(&rank.to_string()).ok_or(DiscoveryError::Rank(rank))?;
    let parse = |text: &str| text.parse::<Endpoint>().map_err(|_| DiscoveryError::Endpoint);
    Ok(Sockets {
        events: parse(&source.endpoint)?,
        replay: source.replay_endpoint.as_deref().map(parse).transpose()?,
    })
}

fn sglang(body: &[u8], rank: u32) -> Result<Sockets, DiscoveryError> {
    #[derive(Deserialize)]
    struct Info {
        kv_events: Option<Events>,
    }
    #[derive(Deserialize)]
    struct Events {
        endpoint_host: String,
        endpoint_port_base: u16,
        dp_size: Option<u32>,
    }
    let info: Info = serde_json::from_slice(body)?;
    let events = info.kv_events.ok_or(DiscoveryError::Rank(rank))?;
    if events.dp_size.is_some_and(|ranks| rank >= ranks.max(1)) {
        return Err(DiscoveryError::Rank(rank));
    }
    let base = Endpoint::Tcp { host: events.endpoint_host, port: events.endpoint_port_base };
    // It does not say where its replay socket is.
    Ok(Sockets { events: base.of_rank(rank).ok_or(DiscoveryError::Rank(rank))?, replay: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;

    const VLLM: &str = r#"{"0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "", "hwm": 1},
        "1": {"endpoint": "tcp://10.0.0.7:41001", "replay_endpoint": null, "buffer_steps": 10000}}"#;
    const SGLANG: &str = r#"{"version": "0.5.23", "kv_events": {"endpoint_host": "*", "endpoint_port_base": 5557,
        "topic": "", "block_size": 16, "dp_size": 2}}"#;

    async fn serve(path: &'static str, answer: &'static str) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route(path, get(move || async move { answer }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    async fn ask(address: SocketAddr, engine: Engine, rank: u32) -> Result<(String, Option<String>), String> {
        let sockets =
            Discovery::new(address, engine, rank).unwrap().ask().await.map_err(|e| e.to_string())?;
        Ok((sockets.events.to_string(), sockets.replay.map(|replay| replay.to_string())))
    }

    #[tokio::test]
    async fn engines_say_where_their_sockets_are() {
        let vllm = serve("/kv_event_sources", VLLM).await;
        let first = ("tcp://127.0.0.1:5557".to_owned(), Some("tcp://127.0.0.1:5558".to_owned()));
        assert_eq!(ask(vllm, Engine::Vllm, 0).await.unwrap(), first);
        assert_eq!(ask(vllm, Engine::Vllm, 1).await.unwrap(), ("tcp://10.0.0.7:41001".to_owned(), None));
        assert!(ask(vllm, Engine::Vllm, 2).await.unwrap_err().contains("rank 2"));
        let sglang = serve("/server_info", SGLANG).await;
        assert_eq!(ask(sglang, Engine::Sglang, 1).await.unwrap(), ("tcp://127.0.0.1:5558".to_owned(), None));
        assert!(ask(sglang, Engine::Sglang, 2).await.unwrap_err().contains("rank 2"));
        // Another engine, an engine without events, garbage.
        assert!(ask(sglang, Engine::Vllm, 0).await.unwrap_err().contains("404"));
        let silent = serve("/server_info", "{}").await;
        assert!(ask(silent, Engine::Sglang, 0).await.is_err());
        let garbage = serve("/kv_event_sources", "[7]").await;
        assert!(ask(garbage, Engine::Vllm, 0).await.unwrap_err().contains("not as expected"));
    }
}
