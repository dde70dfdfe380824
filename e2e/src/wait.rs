//! Bounded waiting for something that another process does.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

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
