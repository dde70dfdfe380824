//! The task that scrapes one replica.

use super::rates::Rates;
use super::{Board, page};
use crate::config::MetricsConfig;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Bytes of a page.
const MAX_PAGE: usize = 8 << 20;
/// A page that takes longer is given up.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Starts to scrape a replica, now and then every interval.
pub(crate) fn start(tasks: &mut JoinSet<()>, replica: String, metrics: MetricsConfig, board: Board) {
    tasks.spawn(run(replica, metrics, board));
}

async fn run(replica: String, metrics: MetricsConfig, board: Board) {
    let client = reqwest::Client::builder()
        .timeout(TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .pool_max_idle_per_host(1)
        .build();
    let client = match client {
        Ok(client) => client,
        Err(error) => return tracing::error!(replica, %error, "no HTTP client: statistics are not scraped"),
    };
    let mut rates = Rates::default();
    let jitter = RandomState::new();
    let mut warned = Warned::default();
    for turn in 0_u64.. {
        match fetch(&client, &metrics.url).await {
            Ok(text) => {
                let page = page::read(&text);
                if page.ranks.is_empty() {
                    board.failed(&replica, "no_engine");
                }
                warned.look(&replica, &page);
                board.publish(&replica, metrics.interval, page, &mut rates);
            }
            Err(reason) => board.failed(&replica, reason),
        }
        // Engines that were started together must not be asked together: 90 to 110 percent of the interval.
        let percent = 90 + u32::try_from(jitter.hash_one(turn) % 21).unwrap_or(0);
        sleep(metrics.interval * percent / 100).await;
    }
}

/// The page, or a reason for the counter.
async fn fetch(client: &reqwest::Client, url: &str) -> Result<String, &'static str> {
    let reason = |error: reqwest::Error| match () {
        () if error.is_timeout() => "timeout",
        () if error.is_connect() => "connect",
        () => "http",
    };
    let mut response = client.get(url).send().await.map_err(reason)?;
    if !response.status().is_success() {
        return Err("status");
    }
    let mut page = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(reason)? {
        if page.len() + chunk.len() > MAX_PAGE {
            return Err("too_large");
        }
        page.extend_from_slice(&chunk);
    }
    String::from_utf8(page).map_err(|_| "not_text")
}

/// Says once what makes every lookup miss.
#[derive(Debug, Default)]
struct Warned {
    prefix_caching: bool,
}

impl Warned {
    fn look(&mut self, replica: &str, page: &page::Page) {
        let off = page.ranks.values().any(|reading| reading.cache.prefix_caching == Some(false));
        if off && !self.prefix_caching {
            tracing::warn!(
                replica,
                "the engine runs with prefix caching off: nothing of it will ever match (vLLM: --enable-prefix-caching)"
            );
        }
        self.prefix_caching = off;
    }
}
