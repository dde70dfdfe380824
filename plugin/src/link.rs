//! The life of one outgoing gRPC stream: closed, open, closed again, with backoff between.
//!
//! Pure: time and randomness are arguments. Delays double from 100 ms to 5 s and are drawn from the upper half of each
//! step, so that the VMs of a fleet do not come back together. A stream that carried something good resets the delay;
//! one that is silent for longer than its limit is dead, however open it looks.

/// One stream.
#[derive(Debug)]
pub struct Link {
    state: State,
    failures: u32,
    silence_limit_ms: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Closed { retry_at: u64 },
    Open { token: u32, heard_at: u64 },
}

const FIRST_DELAY_MS: u64 = 100;
const LAST_DELAY_MS: u64 = 5_000;

impl Link {
    /// Closed and due at once. `silence_limit_ms`: an open stream that brings nothing for so long is dead.
    pub fn new(silence_limit_ms: u64) -> Link {
        Link { state: State::Closed { retry_at: 0 }, failures: 0, silence_limit_ms }
    }

    /// Whether to open it now.
    pub fn is_due(&self, now: u64) -> bool {
        matches!(self.state, State::Closed { retry_at } if now >= retry_at)
    }

    /// Whether `token` is this stream's.
    pub fn is(&self, token: u32) -> bool {
        self.token() == Some(token)
    }

    /// The token of the open stream.
    pub fn token(&self) -> Option<u32> {
        match self.state {
            State::Open { token, .. } => Some(token),
            State::Closed { .. } => None,
        }
    }

    /// It was opened.
    pub fn opened(&mut self, token: u32, now: u64) {
        self.state = State::Open { token, heard_at: now };
    }

    /// It brought something.
    pub fn heard(&mut self, now: u64) {
        if let State::Open { heard_at, .. } = &mut self.state {
            *heard_at = now;
        }
    }

    /// What it brought was good: the next failure is a first one.
    pub fn proved(&mut self) {
        self.failures = 0;
    }

    /// Whether the open stream has been silent for too long.
    pub fn is_dead(&self, now: u64) -> bool {
        matches!(self.state, State::Open { heard_at, .. } if now.saturating_sub(heard_at) > self.silence_limit_ms)
    }

    /// It could not be opened, was closed or is given up: try again later. `random`: any value.
    pub fn failed(&mut self, now: u64, random: u64) {
        let step = (FIRST_DELAY_MS << self.failures.min(16)).min(LAST_DELAY_MS);
        self.failures = self.failures.saturating_add(1);
        let delay = step / 2 + random % (step / 2 + 1);
        self.state = State::Closed { retry_at: now.saturating_add(delay) };
    }

    /// It ended as it should: the next one may be opened at once.
    pub fn finished(&mut self, now: u64) {
        self.failures = 0;
        self.state = State::Closed { retry_at: now };
    }
}

/// `GrpcService{envoy_grpc: {cluster_name, authority}}` in protobuf: the only safe way to name an upstream. The
/// proxy first parses what it is given as this message, and some bare cluster names happen to parse.
pub fn grpc_service(cluster: &str, authority: &str) -> Vec<u8> {
    let mut envoy_grpc = Vec::new();
    field(&mut envoy_grpc, 1, cluster.as_bytes());
    if !authority.is_empty() {
        field(&mut envoy_grpc, 2, authority.as_bytes());
    }
    let mut service = Vec::new();
    field(&mut service, 1, &envoy_grpc);
    service
}

fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    const LENGTH_DELIMITED: u8 = 2;
    out.push(number << 3 | LENGTH_DELIMITED);
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
}

/// Randomness good enough for spreading retries: xorshift64.
#[derive(Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Any seed, such as a clock mixed with an address.
    pub fn new(seed: u64) -> Jitter {
        Jitter(seed | 1)
    }

    /// The next value.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_with_jitter_up_to_a_limit() {
        let mut link = Link::new(5_000);
        assert!(link.is_due(0));
        for step in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            link.failed(0, 0);
            assert!(!link.is_due(step / 2 - 1) && link.is_due(step / 2));
            link.failures -= 1;
            link.failed(0, step / 2);
            assert!(!link.is_due(step - 1) && link.is_due(step));
        }
    }

    #[test]
    fn good_content_resets_the_delay_opening_does_not() {
        let mut link = Link::new(5_000);
        (0..5).for_each(|_| link.failed(0, 0));
        link.opened(7, 1_000);
        assert!(link.is(7) && !link.is(8) && !link.is_due(10_000));
        link.failed(1_000, 0);
        assert!(!link.is_due(2_000));
        link.opened(8, 9_000);
        link.proved();
        link.failed(9_002, 0);
        assert!(link.is_due(9_052));
    }

    #[test]
    fn silence_is_death() {
        let mut link = Link::new(5_000);
        assert!(!link.is_dead(u64::MAX));
        link.opened(1, 10);
        assert!(!link.is_dead(5_010));
        assert!(link.is_dead(5_011));
        link.heard(5_000);
        assert!(!link.is_dead(5_011));
    }

    #[test]
    fn the_service_is_a_protobuf_message() {
        assert_eq!(grpc_service("ab", "c"), [0x0a, 7, 0x0a, 2, b'a', b'b', 0x12, 1, b'c']);
        assert_eq!(grpc_service("ab", ""), [0x0a, 4, 0x0a, 2, b'a', b'b']);
        let long = grpc_service(&"x".repeat(300), "");
        assert_eq!(long[..6], [0x0a, 0xaf, 0x02, 0x0a, 0xac, 0x02]);
        assert_eq!(long.len(), 3 + 3 + 300);
    }

    #[test]
    fn jitter_differs() {
        let mut jitter = Jitter::new(0);
        assert_ne!(jitter.draw() % 101, jitter.draw() % 101);
    }
}
