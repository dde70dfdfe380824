//! Requests that no HTTP client would send: bytes straight into a socket.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends `bytes` on a fresh connection and returns all that comes back until the other side closes or says nothing
/// for `silence`. A request with `connection: close` therefore returns at once when it is answered.
pub async fn exchange(address: &str, bytes: &[u8], silence: Duration) -> Result<Vec<u8>> {
    let mut socket =
        TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    socket.write_all(bytes).await?;
    let mut answer = Vec::new();
    while let Ok(Ok(1..)) = tokio::time::timeout(silence, socket.read_buf(&mut answer)).await {}
    Ok(answer)
}

/// Sends `bytes` and closes the connection without reading an answer: a client that gives up.
pub async fn abandon(address: &str, bytes: &[u8]) -> Result<()> {
    let mut socket =
        TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    socket.write_all(bytes).await?;
    // Let the bytes reach the filter chain before the connection breaks.
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(())
}

/// The status code of a raw HTTP/1.1 answer.
pub fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(line).ok()?.split(' ').nth(1)?.parse().ok()
}
