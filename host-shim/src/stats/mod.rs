//! Statistics of the engines: scraped from their metrics pages, and reported by producers.
//!
//! [`Board`] is where they stand: the newest per (replica, rank) of what was scraped, the newest per (replica, tenant,
//! model) of what producers reported. Every value says how old it is; a scrape that is older than three intervals is
//! `stale` and says so everywhere.
//!
//! **Engine processes**: a changed `process_start_time_seconds` means that another engine process answers, whose cache
//! began empty, even if its event stream looks as if it went on. Whoever follows the events of a rank takes
//! [`Board::process_started`] and treats each change (after the first value) as a new epoch:
//!
//! ```ignore
//! let mut started = board.process_started("engine-0", 0);
//! loop {
//!     tokio::select! {
//!         Ok(()) = started.changed() => {
//!             if let Some(unix_s) = *started.borrow_and_update() { source.process_started(unix_s, &mut sink); }
//!         }
//!         …
//!     }
//! }
//! ```
//!
//! Bounds: a page has at most 8 MiB and 256 ranks; what is reported is bounded by the producers' limits.

pub mod page;
pub mod prometheus;
mod rates;
mod scrape;

pub use page::{CacheInfo, Reading, Sleep};
pub(crate) use scrape::start;

use crate::producers::{self, Subject};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// Scrapes older than so many intervals are stale.
const STALE_INTERVALS: u32 = 3;

/// The newest statistics, shared.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    ranks: BTreeMap<(String, u32), Slot>,
    reported: BTreeMap<Subject, Reported>,
    failures: BTreeMap<(String, &'static str), u64>,
}

#[derive(Debug)]
struct Slot {
    scraped: Option<Scraped>,
    process_started: watch::Sender<Option<f64>>,
}

/// One rank of a replica, as last scraped.
#[derive(Clone, Debug)]
pub struct Scraped {
    /// What the page said.
    pub reading: Reading,
    /// Fraction of the prompt tokens that were cached, between the last two scrapes in which there were any; since the
    /// engine's start in the first.
    pub hit_rate: Option<f64>,
    /// When.
    pub at: SystemTime,
    taken: Instant,
    interval: Duration,
}

/// What producers said of a replica in (tenant, model).
#[derive(Clone, Debug, PartialEq)]
pub struct Reported {
    /// When one of them was last heard of it.
    pub heard_at: SystemTime,
    /// The newest statistics, and when they came.
    pub stats: Option<(producers::Stats, SystemTime)>,
}

impl Scraped {
    /// Time since the scrape.
    pub fn age(&self) -> Duration {
        self.taken.elapsed()
    }

    /// Whether it is too old to be relied on.
    pub fn is_stale(&self) -> bool {
        self.age() > self.interval * STALE_INTERVALS
    }
}

impl Board {
    /// Follows the start time of the engine process behind a rank: Unix seconds, `None` until the engine says it.
    pub fn process_started(&self, replica: &str, rank: u32) -> watch::Receiver<Option<f64>> {
        self.lock().slot(replica, rank).process_started.subscribe()
    }

    /// All scraped ranks, by (replica, rank).
    pub fn scraped(&self) -> BTreeMap<(String, u32), Scraped> {
        let state = self.lock();
        state.ranks.iter().filter_map(|(key, slot)| Some((key.clone(), slot.scraped.clone()?))).collect()
    }

    /// All reports.
    pub fn reported(&self) -> BTreeMap<Subject, Reported> {
        self.lock().reported.clone()
    }

    /// Scrapes that failed, by (replica, reason).
    pub fn failures(&self) -> BTreeMap<(String, &'static str), u64> {
        self.lock().failures.clone()
    }

    /// A replica is gone: nothing of it is kept. Those who follow its process see their channel end.
    pub fn forget(&self, replica: &str) {
        let mut state = self.lock();
        state.ranks.retain(|(of, _), _| of != replica);
        state.failures.retain(|(of, _), _| of != replica);
    }

    /// A producer was heard, perhaps with statistics. `false`: there are [`producers::limits::SUBJECTS`] already.
    pub(crate) fn heard(&self, subject: &Subject, stats: Option<producers::Stats>) -> bool {
        let now = SystemTime::now();
        let stats = stats.map(|stats| (stats, now));
        let mut state = self.lock();
        if let Some(reported) = state.reported.get_mut(subject) {
            reported.heard_at = now;
            reported.stats = stats.or(reported.stats.take());
            return true;
        }
        let fits = state.reported.len() < producers::limits::SUBJECTS;
        if fits {
            state.reported.insert(subject.clone(), Reported { heard_at: now, stats });
        }
        fits
    }

    /// A replica lives: of those that are known, and the age of their statistics stays.
    pub(crate) fn alive(&self, subject: &Subject) {
        if let Some(reported) = self.lock().reported.get_mut(subject) {
            reported.heard_at = SystemTime::now();
        }
    }

    /// Drops the statistics of a replica in (tenant, model).
    pub(crate) fn drop_stats(&self, subject: &Subject) {
        if let Some(reported) = self.lock().reported.get_mut(subject) {
            *reported = Reported { heard_at: SystemTime::now(), stats: None };
        }
    }

    /// Forgets what is older than `ttl`.
    pub(crate) fn expire(&self, ttl: Duration) {
        let is_young = |at: &SystemTime| at.elapsed().map_or(true, |age| age < ttl);
        self.lock().reported.retain(|_, reported| {
            reported.stats.take_if(|(_, at)| !is_young(at));
            is_young(&reported.heard_at)
        });
    }

    fn publish(&self, replica: &str, interval: Duration, page: page::Page, rates: &mut rates::Rates) {
        let (at, taken) = (SystemTime::now(), Instant::now());
        let mut state = self.lock();
        for (rank, reading) in page.ranks {
            let hit_rate = rates.hit_rate(rank, &reading);
            let slot = state.slot(replica, rank);
            slot.scraped = Some(Scraped { reading, hit_rate, at, taken, interval });
        }
        // The page is one process', whatever its ranks are.
        if page.process_started_s.is_some() {
            for ((of, _), slot) in &mut state.ranks {
                if of == replica {
                    slot.process_started.send_if_modified(|held| {
                        let is_new = *held != page.process_started_s;
                        *held = page.process_started_s;
                        is_new
                    });
                }
            }
        }
    }

    fn failed(&self, replica: &str, reason: &'static str) {
        *self.lock().failures.entry((replica.to_owned(), reason)).or_default() += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn slot(&mut self, replica: &str, rank: u32) -> &mut Slot {
        self.ranks
            .entry((replica.to_owned(), rank))
            .or_insert_with(|| Slot { scraped: None, process_started: watch::Sender::new(None) })
    }
}
