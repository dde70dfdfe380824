//! Waiting, always with an end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

/// How long anything may take to start on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Polls `condition` every 20 ms until it yields a value; an error naming `what` after `limit`.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return Ok(value);
        }
        if began.elapsed() > limit {
            bail!("after {} s still waiting for {what}", limit.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs `work` until it ends or this process is told to stop (Ctrl-C, SIGTERM), which is an error. Either way the future
/// is dropped, and with it all that it started.
pub async fn unless_stopped(work: impl Future<Output = Result<()>>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    tokio::select! {
        outcome = work => outcome,
        _ = terminate.recv() => bail!("terminated"),
        _ = interrupt.recv() => bail!("interrupted"),
    }
}
