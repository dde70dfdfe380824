//! Rates from counters: what happened between two scrapes.

use super::Reading;
use std::collections::BTreeMap;

/// The counters of the scrape before, by rank.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<u32, Held>);

#[derive(Debug)]
struct Held {
    queried: f64,
    hits: f64,
    rate: Option<f64>,
}

impl Rates {
    /// Fraction of the prompt tokens that were cached: since the last scrape; if there were none, as it was then; since
    /// the engine's start if this is its first scrape. Without counters, what the engine says itself.
    pub(super) fn hit_rate(&mut self, rank: u32, reading: &Reading) -> Option<f64> {
        let Some((queried, hits)) = reading.queried_tokens.zip(reading.hit_tokens) else {
            return reading.reported_hit_rate;
        };
        let held = self.0.entry(rank).or_insert(Held { queried: 0.0, hits: 0.0, rate: None });
        if queried < held.queried || hits < held.hits {
            // Counters that go back are another process'.
            *held = Held { queried: 0.0, hits: 0.0, rate: None };
        }
        if queried > held.queried {
            held.rate = Some(((hits - held.hits) / (queried - held.queried)).clamp(0.0, 1.0));
        }
        (held.queried, held.hits) = (queried, hits);
        held.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_the_start_then_between_scrapes_then_as_it_was() {
        let mut rates = Rates::default();
        let mut rate = |queried: f64, hits: f64| {
            let (queried_tokens, hit_tokens) = (Some(queried), Some(hits));
            rates.hit_rate(0, &Reading { queried_tokens, hit_tokens, ..Reading::default() })
        };
        assert_eq!(rate(0.0, 0.0), None);
        assert_eq!(rate(100.0, 50.0), Some(0.5));
        assert_eq!(rate(200.0, 150.0), Some(1.0));
        assert_eq!(rate(200.0, 150.0), Some(1.0));
        // Another process.
        assert_eq!(rate(40.0, 10.0), Some(0.25));
    }

    #[test]
    fn ranks_are_apart_and_the_engine_s_own_rate_is_the_last_resort() {
        let mut rates = Rates::default();
        let reading = |queried: f64| Reading {
            queried_tokens: Some(queried),
            hit_tokens: Some(1.0),
            ..Reading::default()
        };
        assert_eq!(rates.hit_rate(0, &reading(2.0)), Some(0.5));
        assert_eq!(rates.hit_rate(1, &reading(4.0)), Some(0.25));
        let own = Reading { reported_hit_rate: Some(0.7), ..Reading::default() };
        assert_eq!(rates.hit_rate(2, &own), Some(0.7));
    }
}
