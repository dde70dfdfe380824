//! What goes into and comes out of a decision.

use crate::openai::Endpoint;

/// A request whose body was read.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// Which API it calls.
    pub endpoint: Endpoint,
    /// From the trusted source.
    pub tenant: &'a str,
    /// The body or its beginning.
    pub body: &'a [u8],
    /// Whether `body` is the whole body.
    pub complete: bool,
}

/// A request of which only the headers are known.
#[derive(Clone, Copy, Debug)]
pub struct HeaderQuery<'a> {
    /// From the trusted source.
    pub tenant: &'a str,
    /// The model that a header names; `None`: the tenant's only model.
    pub model: Option<&'a str>,
    /// What identifies the conversation.
    pub conversation: Option<&'a [u8]>,
    /// Block hashes computed by the client or an earlier hop: 16 hexadecimal digits each, separated by commas.
    pub chain: Option<&'a [u8]>,
}

/// Where to send the request, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The reason code.
    pub reason: Reason,
    /// More about it, from a fixed set: a label for metrics. Empty if the reason says it all.
    pub detail: &'static str,
    /// Best first; empty means no hint.
    pub destinations: Vec<Destination>,
    /// Prompt tokens that the first destination is expected to find in its cache. The engine always computes the block
    /// of the prompt's last token, so that one is never counted.
    pub matched_tokens: u32,
    /// Tokens whose block hashes were computed.
    pub hashed_tokens: u32,
    /// To be given back when the request makes progress or ends; none if there is no hint.
    pub ticket: Option<Ticket>,
}

/// A replica that a request may go to. Addresses do not repeat in a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The replica's name.
    pub name: String,
    /// `ip:port`.
    pub address: String,
    /// The data-parallel rank that is to take it; the same, or none, for all destinations of a decision. If the first
    /// has none, the engine that gets the request chooses.
    pub rank: Option<u32>,
}

/// Stands for a request that was given a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub(super) u64);

/// How a hinted request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its response began: the prompt is computed. The request is still in flight.
    FirstToken,
    /// It ended well.
    Ended,
    /// It was refused, reset or answered with an error: its prompt may be nowhere.
    Failed,
}

/// The reason codes of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A replica holds a prefix of the prompt.
    PrefixMatch,
    /// Nobody does; the replica was chosen by load and by a stable hash.
    AffinityHint,
    /// Nothing can be said; `detail` says why.
    NoHint,
    /// Nobody serves this tenant.
    UnknownTenant,
    /// Nobody serves this model for the tenant.
    UnknownModel,
}

impl Reason {
    /// Every reason: for registering metrics.
    pub const ALL: [Reason; 5] = [
        Reason::PrefixMatch,
        Reason::AffinityHint,
        Reason::NoHint,
        Reason::UnknownTenant,
        Reason::UnknownModel,
    ];

    /// The code.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::PrefixMatch => "PREFIX_MATCH",
            Reason::AffinityHint => "AFFINITY_HINT",
            Reason::NoHint => "NO_HINT",
            Reason::UnknownTenant => "UNKNOWN_TENANT",
            Reason::UnknownModel => "UNKNOWN_MODEL",
        }
    }
}

impl Decision {
    pub(super) fn without_hint(reason: Reason, detail: &'static str) -> Decision {
        Decision {
            reason,
            detail,
            destinations: Vec::new(),
            matched_tokens: 0,
            hashed_tokens: 0,
            ticket: None,
        }
    }
}
