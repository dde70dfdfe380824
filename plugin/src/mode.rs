//! Body mode or header mode: finds out whether the proxy lets the plugin hold headers until the body is there.
//!
//! Without `allow_on_headers_stop_iteration` a held request gets no body callback and hangs; no configuration says
//! whether the flag is set. So, until one of the two is proven, held requests are watched:
//! * a body callback on a request that is still held proves **body mode**; from then on nothing is timed out, however
//!   slow a body is;
//! * a held request that waited [`PATIENCE_MS`] without one means **header mode**: it and all others held are let go.
//!
//! A slow client looks like a missing flag, so header mode is doubted: after 30 s one request is held again as a probe,
//! then after twice that, up to 10 min. The verdict is written where all VMs of the process read it, so that one of
//! them pays. Pure: time is an argument, a request is an id. O(1) per request, O(watched) per tick.

/// A watched request is let go at the first tick after so long, milliseconds. With a tick each 20 ms: within 60 ms;
/// stalls of 30 ms of a busy worker stay below 100 ms.
pub const PATIENCE_MS: u64 = 40;

const FIRST_PROBE_MS: u64 = 30_000;
const LAST_PROBE_MS: u64 = 600_000;

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing yet.
    Unknown,
    /// Held requests get their bodies.
    Body,
    /// They do not. To be tried again at `probe_at`, and if that fails `interval` later.
    Header {
        /// Milliseconds, monotonic clock.
        probe_at: u64,
        /// Milliseconds.
        interval: u64,
    },
}

/// The state machine of one filter in one VM.
#[derive(Debug)]
pub struct Detector {
    verdict: Verdict,
    fixed: bool,
    /// Held requests and since when.
    watched: Vec<(u32, u64)>,
}

/// What to do with a request that has a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Hold it and read the body.
    Hold,
    /// Hold it to see whether bodies come after all. The caller may first claim the probe for its VM.
    Probe,
    /// Decide by its headers.
    HeadersOnly,
}

impl Detector {
    /// Does not know yet.
    pub fn detecting() -> Detector {
        Detector { verdict: Verdict::Unknown, fixed: false, watched: Vec::new() }
    }

    /// Was told; never changes.
    pub fn fixed(verdict: Verdict) -> Detector {
        Detector { verdict, fixed: true, watched: Vec::new() }
    }

    /// What is known.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether the verdict is to be shared with other VMs.
    pub fn is_detecting(&self) -> bool {
        !self.fixed
    }

    /// How to treat a request now.
    pub fn plan(&self, now: u64) -> Plan {
        match self.verdict {
            Verdict::Unknown | Verdict::Body => Plan::Hold,
            Verdict::Header { probe_at, .. } if !self.fixed && now >= probe_at && self.watched.is_empty() => {
                Plan::Probe
            }
            Verdict::Header { .. } => Plan::HeadersOnly,
        }
    }

    /// The request is held from now on. False if that cannot be watched: do not hold it.
    pub fn held(&mut self, request: u32, now: u64) -> bool {
        if self.verdict == Verdict::Body {
            return true;
        }
        if self.watched.try_reserve(1).is_err() {
            return false;
        }
        self.watched.push((request, now));
        true
    }

    /// A body callback came while the request was still held. True if that changed the verdict.
    pub fn body_came(&mut self) -> bool {
        self.watched.clear();
        let news = self.verdict != Verdict::Body && !self.fixed;
        if news {
            self.verdict = Verdict::Body;
        }
        news
    }

    /// The request is gone or goes on by itself.
    pub fn forget(&mut self, request: u32) {
        self.watched.retain(|(watched, _)| *watched != request);
    }

    /// The requests to let go now; not empty means that the verdict is header mode.
    pub fn tick(&mut self, now: u64) -> Vec<u32> {
        let late = |(_, since): &(u32, u64)| now.saturating_sub(*since) >= PATIENCE_MS;
        if !self.watched.iter().any(late) {
            return Vec::new();
        }
        let interval = match self.verdict {
            Verdict::Header { interval, .. } => interval.saturating_mul(2).min(LAST_PROBE_MS),
            Verdict::Unknown | Verdict::Body => FIRST_PROBE_MS,
        };
        self.verdict = Verdict::Header { probe_at: now.saturating_add(interval), interval };
        std::mem::take(&mut self.watched).into_iter().map(|(request, _)| request).collect()
    }

    /// Another VM of the process found out. Header mode and later probes are believed. Body mode is not, only taken as
    /// a reason to look again: what is shared outlives the listener that it was true of, and a request held in vain
    /// hangs.
    pub fn adopt(&mut self, verdict: Verdict) {
        match (self.verdict, verdict) {
            _ if self.fixed => {}
            (Verdict::Unknown, Verdict::Header { .. }) => self.verdict = verdict,
            (Verdict::Header { .. }, Verdict::Body) => self.verdict = Verdict::Unknown,
            (Verdict::Header { probe_at: mine, .. }, Verdict::Header { probe_at, .. }) if probe_at > mine => {
                self.verdict = verdict;
            }
            _ => {}
        }
    }
}

impl Verdict {
    /// The label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Unknown => "unknown",
            Verdict::Body => "body",
            Verdict::Header { .. } => "header",
        }
    }

    /// The same verdict with the probe put off by its interval: what a VM writes to claim the probe for itself.
    pub fn probe_claimed(self, now: u64) -> Verdict {
        match self {
            Verdict::Header { interval, .. } => {
                Verdict::Header { probe_at: now.saturating_add(interval), interval }
            }
            other => other,
        }
    }

    /// As shared with other VMs: tag, `probe_at`, `interval`, little endian.
    pub fn encode(self) -> [u8; 17] {
        let (tag, probe_at, interval) = match self {
            Verdict::Unknown => (0, 0, 0),
            Verdict::Body => (1, 0, 0),
            Verdict::Header { probe_at, interval } => (2, probe_at, interval),
        };
        let mut bytes = [tag; 17];
        let fields = probe_at.to_le_bytes().into_iter().chain(interval.to_le_bytes());
        bytes.iter_mut().skip(1).zip(fields).for_each(|(to, from)| *to = from);
        bytes
    }

    /// The inverse of [`Verdict::encode`]; anything else is unknown.
    pub fn decode(bytes: &[u8]) -> Verdict {
        let field = |at: usize| {
            let bytes = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        match (bytes.first(), field(1), field(9)) {
            (Some(1), ..) => Verdict::Body,
            (Some(2), Some(probe_at), Some(interval)) => {
                Verdict::Header { probe_at, interval: interval.clamp(FIRST_PROBE_MS, LAST_PROBE_MS) }
            }
            _ => Verdict::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_on_a_held_request_proves_body_mode() {
        let mut detector = Detector::detecting();
        assert_eq!(detector.plan(0), Plan::Hold);
        assert!(detector.held(1, 0));
        assert!(detector.held(2, 0));
        assert!(detector.body_came());
        assert!(!detector.body_came());
        // The second body is slow: it is waited for.
        assert_eq!(detector.tick(10_000), Vec::<u32>::new());
        assert!(detector.held(3, 20_000));
        assert_eq!(detector.tick(900_000), Vec::<u32>::new());
        assert_eq!(detector.verdict(), Verdict::Body);
    }

    #[test]
    fn no_body_means_header_mode_and_all_held_go() {
        let mut detector = Detector::detecting();
        detector.held(1, 100);
        detector.held(2, 130);
        assert_eq!(detector.tick(100 + PATIENCE_MS - 1), Vec::<u32>::new());
        assert_eq!(detector.tick(100 + PATIENCE_MS), vec![1, 2]);
        assert_eq!(detector.plan(200), Plan::HeadersOnly);
    }

    #[test]
    fn header_mode_is_doubted_ever_less_often() {
        let mut detector = Detector::detecting();
        detector.held(1, 0);
        let (mut now, mut intervals) = (PATIENCE_MS, Vec::new());
        detector.tick(now);
        for request in 2..9 {
            let Verdict::Header { probe_at, interval } = detector.verdict() else { panic!("header mode") };
            assert_eq!(detector.plan(probe_at - 1), Plan::HeadersOnly);
            assert_eq!(detector.plan(probe_at), Plan::Probe);
            intervals.push(interval / 1_000);
            detector.held(request, probe_at);
            assert_eq!(detector.plan(probe_at + 1), Plan::HeadersOnly, "one probe at a time");
            now = probe_at + PATIENCE_MS;
            assert_eq!(detector.tick(now), vec![request]);
        }
        assert_eq!(intervals, [30, 60, 120, 240, 480, 600, 600]);
    }

    #[test]
    fn a_probe_that_gets_its_body_ends_header_mode() {
        let mut detector = Detector::detecting();
        detector.held(1, 0);
        detector.tick(PATIENCE_MS);
        detector.held(2, 40_000);
        assert!(detector.body_came());
        assert_eq!(detector.plan(40_001), Plan::Hold);
    }

    #[test]
    fn a_client_that_leaves_proves_nothing() {
        let mut detector = Detector::detecting();
        detector.held(1, 0);
        detector.forget(1);
        assert_eq!(detector.tick(1_000), Vec::<u32>::new());
        assert_eq!(detector.verdict(), Verdict::Unknown);
    }

    #[test]
    fn a_fixed_mode_never_changes() {
        let mut detector = Detector::fixed(Verdict::Header { probe_at: 0, interval: 0 });
        assert_eq!(detector.plan(u64::MAX), Plan::HeadersOnly);
        assert!(!detector.body_came());
        detector.adopt(Verdict::Body);
        assert_eq!(detector.plan(0), Plan::HeadersOnly);
        let mut detector = Detector::fixed(Verdict::Body);
        detector.held(1, 0);
        assert_eq!(detector.tick(u64::MAX), Vec::<u32>::new());
    }

    #[test]
    fn header_mode_of_other_vms_is_believed_body_mode_is_looked_into() {
        let header = |probe_at| Verdict::Header { probe_at, interval: 30_000 };
        let mut detector = Detector::detecting();
        detector.adopt(Verdict::Body);
        assert_eq!(detector.verdict(), Verdict::Unknown);
        detector.adopt(header(5));
        detector.adopt(header(9));
        detector.adopt(header(7));
        assert_eq!(detector.verdict(), header(9));
        detector.adopt(Verdict::Body);
        assert_eq!(detector.verdict(), Verdict::Unknown);
        detector.body_came();
        detector.adopt(header(99));
        assert_eq!(detector.verdict(), Verdict::Body, "proved here");
    }

    #[test]
    fn shared_verdicts_round_trip_and_garbage_is_unknown() {
        for verdict in
            [Verdict::Unknown, Verdict::Body, Verdict::Header { probe_at: u64::MAX - 1, interval: 60_000 }]
        {
            assert_eq!(Verdict::decode(&verdict.encode()), verdict);
        }
        assert_eq!(Verdict::decode(b""), Verdict::Unknown);
        assert_eq!(Verdict::decode(&[2; 16]), Verdict::Unknown);
        assert_eq!(Verdict::decode(&[9; 40]), Verdict::Unknown);
    }
}
