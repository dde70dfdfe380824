//! One request: hold, read, decide, name the destination, watch the response.
//!
//! Invariants
//! * A destination header that a client sent never goes on, whatever else fails.
//! * A request is held only where a body follows and the mode allows it, and goes on from inside the body callback:
//!   an asynchronous resume before a filter that streams bodies could lose a frame.
//! * A ticket is given back exactly once.
//! * `x-data-parallel-rank` tells the engine which of its data-parallel ranks holds the prefix. It is the engine's API and
//!   no routing header of ours: one that a client sent is replaced where a rank was chosen, and goes on where none was.

use inference_cache_core::gateway::{Decision, Gateway, HeaderQuery, Outcome, Query, Reason, Ticket};
use inference_cache_core::openai::Endpoint;

use crate::config::{Config, TenantSource};
use crate::headers::Headers;
use crate::host::{self, Buffer, Map};
use crate::metrics::{self, Metrics};
use crate::mode::Plan;
use crate::root::Root;
use crate::vm::{Action, Now};

/// What a callback may use, all of one root context.
#[derive(Debug)]
pub struct Env<'a> {
    /// The root context.
    pub root: &'a mut Root,
    /// The source that the root context's configuration names.
    pub gateway: &'a mut Gateway,
    /// Of the VM.
    pub metrics: &'a mut Metrics,
    /// When the callback began.
    pub now: Now,
}

/// See the module.
#[derive(Debug)]
pub struct Request {
    /// The root context it belongs to.
    pub root: u32,
    held: Option<Held>,
    decided: Option<Decided>,
}

#[derive(Debug)]
struct Held {
    endpoint: Endpoint,
    tenant: String,
    /// Bytes of the body so far.
    size: usize,
}

/// What is left to do once the request goes on.
#[derive(Debug)]
struct Decided {
    ticket: Option<Ticket>,
    mode: &'static str,
    reason: Reason,
    replica: String,
    matched_tokens: u32,
    hashed_tokens: u32,
    response: Response,
}

#[derive(Debug, PartialEq, Eq)]
enum Response {
    Awaited,
    /// Headers came, with a success status.
    Started,
    /// Something of its body came.
    Flowing,
    Complete,
    /// An error status.
    Failed,
}

/// vLLM's and SGLang's request header for the data-parallel rank.
const RANK: &str = "x-data-parallel-rank";

const BODY: &str = "body";
const HEADER: &str = "header";

impl Request {
    /// A request of which nothing is known.
    pub fn new(root: u32) -> Request {
        Request { root, held: None, decided: None }
    }

    /// Request headers: strips what a client must not send; holds, decides or lets pass.
    pub fn on_request_headers(&mut self, id: u32, end_of_stream: bool, env: &mut Env<'_>) -> Action {
        let config = env.root.config.clone();
        let Ok(headers) = host::headers(Map::Request) else {
            strip(&config, config.headers.destination.as_bytes(), env.metrics);
            env.metrics.count(metrics::HOSTCALL_ERRORS, "request_headers");
            return Action::Continue;
        };
        for (name, _) in headers.iter().filter(|(name, _)| config.strips(name)) {
            strip(&config, name, env.metrics);
        }
        let Some(endpoint) = endpoint(&config, &headers) else { return Action::Continue };
        let tenant = match tenant(&config, &headers) {
            Ok(tenant) => tenant,
            Err(cause) => return self.no_hint(Reason::UnknownTenant, cause, HEADER, env),
        };
        if end_of_stream {
            return self.no_hint(Reason::NoHint, "no_body", HEADER, env);
        }
        let plan = env.root.plan(env.now.ms);
        if plan == Plan::HeadersOnly {
            return self.decide_by_headers(&tenant, &headers, env);
        }
        if is_encoded(&headers) {
            return self.no_hint(Reason::NoHint, "encoded", BODY, env);
        }
        if !env.root.held(id, env.now.ms) {
            return self.decide_by_headers(&tenant, &headers, env);
        }
        self.held = Some(Held { endpoint, tenant, size: 0 });
        Action::Pause
    }

    /// Some of the body is there; `size` counts from its beginning.
    pub fn on_request_body(&mut self, size: usize, end_of_stream: bool, env: &mut Env<'_>) -> Action {
        let Some(held) = &mut self.held else { return Action::Continue };
        env.root.body_came(env.metrics);
        held.size = size;
        if !end_of_stream && size < env.root.config.max_body_bytes {
            return Action::Pause;
        }
        self.decide_by_body(end_of_stream, env)
    }

    /// Trailers end the body.
    pub fn on_request_trailers(&mut self, id: u32, env: &mut Env<'_>) -> Action {
        env.root.forget(id);
        self.decide_by_body(true, env)
    }

    /// The request was held in vain: decides by its headers. The caller made it the effective context and resumes it.
    /// False if it is not held.
    pub fn let_go(&mut self, env: &mut Env<'_>) -> bool {
        let Some(held) = self.held.take() else { return false };
        match host::headers(Map::Request) {
            Ok(headers) => self.decide_by_headers(&held.tenant, &headers, env),
            Err(_) => {
                env.metrics.count(metrics::HOSTCALL_ERRORS, "request_headers");
                self.no_hint(Reason::NoHint, "hostcall", HEADER, env)
            }
        };
        true
    }

    /// Response headers.
    pub fn on_response_headers(&mut self, end_of_stream: bool, env: &mut Env<'_>) {
        let Some(decided) = &mut self.decided else { return };
        if decided.ticket.is_some() {
            let status = host::header(Map::Response, ":status").ok().flatten();
            decided.response = match status {
                Some(status) if !status.starts_with(b"2") => Response::Failed,
                _ if end_of_stream => Response::Complete,
                _ => Response::Started,
            };
        }
        if env.root.config.debug_headers && decided.write_debug_headers().is_err() {
            env.metrics.count(metrics::HOSTCALL_ERRORS, "debug_headers");
        }
    }

    /// Some of the response's body is there, or its trailers (`size` 0).
    pub fn on_response_body(&mut self, size: usize, end_of_stream: bool, env: &mut Env<'_>) {
        let Some(decided) = &mut self.decided else { return };
        let Some(ticket) = decided.ticket else { return };
        if decided.response == Response::Started && size > 0 {
            decided.response = Response::Flowing;
            env.gateway.finished(ticket, Outcome::FirstToken, env.now.unix_ms);
        }
        if end_of_stream && matches!(decided.response, Response::Started | Response::Flowing) {
            decided.response = Response::Complete;
        }
    }

    /// The request is over, one way or another.
    pub fn on_end(&mut self, id: u32, env: &mut Env<'_>) {
        if self.held.take().is_some() {
            env.root.forget(id);
        }
        let Some(decided) = &mut self.decided else { return };
        let Some(ticket) = decided.ticket.take() else { return };
        let outcome = match decided.response {
            Response::Complete => Outcome::Ended,
            Response::Awaited | Response::Started | Response::Flowing | Response::Failed => Outcome::Failed,
        };
        env.gateway.finished(ticket, outcome, env.now.unix_ms);
    }

    fn decide_by_body(&mut self, ended: bool, env: &mut Env<'_>) -> Action {
        let Some(Held { endpoint, tenant, size }) = self.held.take() else { return Action::Continue };
        let Ok(body) = host::buffer(Buffer::RequestBody, env.root.config.max_body_bytes) else {
            env.metrics.count(metrics::HOSTCALL_ERRORS, "request_body");
            return self.no_hint(Reason::NoHint, "hostcall", BODY, env);
        };
        if body.is_empty() {
            return self.no_hint(Reason::NoHint, "no_body", BODY, env);
        }
        let complete = ended && body.len() >= size;
        let query = Query { endpoint, tenant: &tenant, body: &body, complete };
        let decision = env.gateway.decide(&query, env.now.unix_ms);
        self.go(decision, BODY, env)
    }

    fn decide_by_headers(&mut self, tenant: &str, headers: &Headers, env: &mut Env<'_>) -> Action {
        let names = &env.root.config.headers;
        let query = HeaderQuery {
            tenant,
            model: headers.get(&names.model).and_then(|model| std::str::from_utf8(model).ok()),
            conversation: headers.get(&names.conversation),
            chain: headers.get(&names.chain),
        };
        let decision = env.gateway.decide_by_headers(&query, env.now.unix_ms);
        self.go(decision, HEADER, env)
    }

    fn no_hint(
        &mut self,
        reason: Reason,
        cause: &'static str,
        mode: &'static str,
        env: &mut Env<'_>,
    ) -> Action {
        let decision = Decision {
            reason,
            detail: cause,
            destinations: Vec::new(),
            matched_tokens: 0,
            hashed_tokens: 0,
            ticket: None,
        };
        self.go(decision, mode, env)
    }

    /// Carries a decision out. Always continues.
    fn go(&mut self, decision: Decision, mode: &'static str, env: &mut Env<'_>) -> Action {
        let Decision { reason, detail, destinations, matched_tokens, hashed_tokens, mut ticket } = decision;
        let mut value = Vec::new();
        for destination in destinations.iter().filter(|destination| is_header_safe(&destination.address)) {
            if !value.is_empty() {
                value.push(b',');
            }
            value.extend_from_slice(destination.address.as_bytes());
        }
        let mut cause = detail;
        if !value.is_empty()
            && host::set_header(Map::Request, &env.root.config.headers.destination, &value).is_err()
        {
            env.metrics.count(metrics::HOSTCALL_ERRORS, "destination");
            value.clear();
            cause = "hostcall";
        }
        env.metrics.count(metrics::REQUESTS, reason.as_str());
        env.metrics.count(metrics::MODE, mode);
        if value.is_empty() {
            env.metrics.count(metrics::NO_HINT, if cause.is_empty() { no_hint_label(reason) } else { cause });
            if let Some(ticket) = ticket.take() {
                env.gateway.finished(ticket, Outcome::Failed, env.now.unix_ms);
            }
        } else {
            env.metrics.count_by(metrics::MATCHED_TOKENS, u64::from(matched_tokens));
            let rank = destinations.first().and_then(|first| first.rank);
            if let Some(rank) = rank
                && host::set_header(Map::Request, RANK, rank.to_string().as_bytes()).is_err()
            {
                // The engine chooses a rank by itself.
                env.metrics.count(metrics::HOSTCALL_ERRORS, "rank");
            }
        }
        let replica = destinations.into_iter().next().map(|first| first.name).unwrap_or_default();
        let response = Response::Awaited;
        self.decided =
            Some(Decided { ticket, mode, reason, replica, matched_tokens, hashed_tokens, response });
        Action::Continue
    }
}

impl Decided {
    fn write_debug_headers(&self) -> host::Outcome<()> {
        let set = |name, value: &str| host::set_header(Map::Response, name, value.as_bytes());
        if self.replica.is_empty() {
            host::remove_header(Map::Response, b"x-inference-cache-replica")?;
        } else {
            let name: String = self.replica.chars().filter(char::is_ascii_graphic).collect();
            set("x-inference-cache-replica", &name)?;
        }
        set("x-inference-cache-reason", self.reason.as_str())?;
        set("x-inference-cache-mode", self.mode)?;
        set("x-inference-cache-matched-tokens", &self.matched_tokens.to_string())?;
        set("x-inference-cache-hashed-tokens", &self.hashed_tokens.to_string())
    }
}

/// Which API a request calls, if it is an LLM request.
fn endpoint(config: &Config, headers: &Headers) -> Option<Endpoint> {
    if headers.get(":method")? != b"POST" {
        return None;
    }
    let path = headers.get(":path")?.split(|byte| *byte == b'?').next()?;
    let among = |paths: &[String]| paths.iter().any(|known| known.as_bytes() == path);
    let endpoint = if among(&config.paths.chat_completions) {
        Endpoint::ChatCompletions
    } else if among(&config.paths.completions) {
        Endpoint::Completions
    } else {
        return None;
    };
    headers.get("content-type").is_none_or(is_json).then_some(endpoint)
}

fn is_json(content_type: &[u8]) -> bool {
    let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let suffix = media_type.len().checked_sub(5).and_then(|at| media_type.get(at..));
    media_type.eq_ignore_ascii_case(b"application/json")
        || suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case(b"+json"))
}

fn is_encoded(headers: &Headers) -> bool {
    let encoding = headers.get("content-encoding").unwrap_or_default().trim_ascii();
    !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity")
}

/// The tenant, or why there is none.
fn tenant(config: &Config, headers: &Headers) -> Result<String, &'static str> {
    let bytes = match &config.tenant {
        TenantSource::Fixed(tenant) => return Ok(tenant.clone()),
        TenantSource::Header(name) => headers.get(name).map(<[u8]>::to_vec),
        TenantSource::Property(path) => host::property(path.join("\0").as_bytes()).map_err(|_| "hostcall")?,
    };
    let tenant = bytes.filter(|tenant| !tenant.is_empty()).ok_or("no_tenant")?;
    String::from_utf8(tenant).map_err(|_| "tenant_not_text")
}

/// Removes a request header; if that fails, the destination at least becomes one that no host has.
fn strip(config: &Config, name: &[u8], metrics: &mut Metrics) {
    if host::remove_header(Map::Request, name).is_ok() {
        return;
    }
    metrics.count(metrics::HOSTCALL_ERRORS, "strip");
    if name == config.headers.destination.as_bytes() {
        let _ = host::set_header(Map::Request, &config.headers.destination, b"none");
    }
}

fn is_header_safe(address: &str) -> bool {
    !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

fn no_hint_label(reason: Reason) -> &'static str {
    match reason {
        Reason::UnknownTenant => "unknown_tenant",
        Reason::UnknownModel => "unknown_model",
        _ => "no_destination",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let mut bytes = (pairs.len() as u32).to_le_bytes().to_vec();
        for (name, value) in pairs {
            bytes.extend((name.len() as u32).to_le_bytes());
            bytes.extend((value.len() as u32).to_le_bytes());
        }
        for (name, value) in pairs {
            bytes.extend(format!("{name}\0{value}\0").bytes());
        }
        Headers::new(bytes)
    }

    fn is_llm(method: &str, path: &str, content_type: Option<&str>) -> bool {
        let config = Config::parse(br#"{"hostShim": {"cluster": "c"}}"#).expect("valid");
        let mut pairs = vec![(":method", method), (":path", path)];
        pairs.extend(content_type.map(|value| ("content-type", value)));
        endpoint(&config, &headers(&pairs)).is_some()
    }

    #[test]
    fn llm_requests_are_known_by_method_path_and_type() {
        assert!(is_llm("POST", "/v1/chat/completions", None));
        assert!(is_llm("POST", "/v1/completions?a=b", Some("Application/JSON; charset=utf-8")));
        assert!(is_llm("POST", "/v1/completions", Some("application/vnd.x+json")));
        assert!(!is_llm("GET", "/v1/completions", None));
        assert!(!is_llm("POST", "/v1/completions/", None));
        assert!(!is_llm("POST", "/v1/completions", Some("multipart/form-data")));
        assert!(!is_llm("POST", "/v1/completions", Some("")));
    }

    #[test]
    fn encodings_other_than_identity_are_seen() {
        assert!(is_encoded(&headers(&[("content-encoding", "gzip")])));
        assert!(!is_encoded(&headers(&[("content-encoding", "Identity")])));
        assert!(!is_encoded(&headers(&[])));
    }

    #[test]
    fn a_tenant_header_must_be_there_and_text() {
        let config = Config::parse(br#"{"hostShim": {"cluster": "c"}, "tenant": {"header": "x-tenant"}}"#)
            .expect("valid");
        assert_eq!(tenant(&config, &headers(&[("x-tenant", "a")])), Ok("a".to_owned()));
        assert_eq!(tenant(&config, &headers(&[("x-tenant", "")])), Err("no_tenant"));
        assert_eq!(tenant(&config, &headers(&[])), Err("no_tenant"));
    }

    #[test]
    fn addresses_cannot_smuggle() {
        assert!(is_header_safe("10.0.0.1:8000") && is_header_safe("[::1]:80"));
        assert!(!is_header_safe("") && !is_header_safe("a,b") && !is_header_safe("a\r\nb: c"));
    }
}
