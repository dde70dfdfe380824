//! An upstream that answers every request with the request's own body: the witness that bodies pass unchanged.
//!
//! It also reports the request's headers that matter: `x-echo-destination` repeats a destination header that should
//! never arrive, `x-echo-framing` says how the body came ("length" or "chunked").

use std::future::IntoFuture;

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, HeaderValue, header};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::ports;

const DESTINATION: &str = "x-gateway-destination-endpoint";

/// A server in this process; ends on drop.
#[derive(Debug)]
pub struct Echo {
    port: u16,
    task: JoinHandle<std::io::Result<()>>,
}

impl Echo {
    pub async fn start() -> Result<Echo> {
        let port = ports::free()?;
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let router = Router::new().fallback(echo).layer(DefaultBodyLimit::max(64 << 20));
        Ok(Echo { port, task: tokio::spawn(axum::serve(listener, router).into_future()) })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn echo(headers: HeaderMap, body: Bytes) -> (HeaderMap, Bytes) {
    let mut answer = HeaderMap::new();
    if let Some(destination) = headers.get(DESTINATION) {
        answer.insert("x-echo-destination", destination.clone());
    }
    let framing = if headers.contains_key(header::CONTENT_LENGTH) { "length" } else { "chunked" };
    answer.insert("x-echo-framing", HeaderValue::from_static(framing));
    (answer, body)
}
