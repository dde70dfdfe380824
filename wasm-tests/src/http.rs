//! One HTTP exchange as the filter chain sees it.

/// Names in lower case and values, in order; any bytes.
pub type Headers = Vec<(Vec<u8>, Vec<u8>)>;

/// Where a request stands, and what went on to the upstream.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// As the filter sees and changes them.
    pub request_headers: Headers,
    /// As the filter sees and changes them.
    pub response_headers: Headers,
    /// The headers as they went on; `None` while they are held.
    pub upstream_headers: Option<Headers>,
    /// The body as it went on.
    pub upstream_body: Vec<u8>,
    /// The end of the request went on.
    pub upstream_complete: bool,
    /// The proxy answered 413: a held body outgrew its buffer.
    pub too_large: bool,
    pub(crate) held: Held,
    /// What a body callback sees, and what is kept for the next one.
    pub(crate) buffer: Vec<u8>,
    pub(crate) ended: bool,
    /// The filter called for the stream to go on; done when its callback has returned.
    pub(crate) resume: bool,
}

/// What the filter holds back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Held {
    #[default]
    Nothing,
    /// Headers, and body callbacks come: with `allow_on_headers_stop_iteration`.
    Headers,
    /// Headers, and no callback comes until the filter resumes: without.
    Everything,
    /// The body, to be buffered.
    Body,
}

impl Exchange {
    /// A header of what went on to the upstream.
    pub fn upstream_header(&self, name: &str) -> Option<&[u8]> {
        get(self.upstream_headers.as_ref()?, name.as_bytes())
    }

    /// A header of the response.
    pub fn response_header(&self, name: &str) -> Option<&[u8]> {
        get(&self.response_headers, name.as_bytes())
    }

    /// Whether the request waits for the filter.
    pub fn is_held(&self) -> bool {
        self.held != Held::Nothing
    }
}

/// The first value.
pub(crate) fn get<'a>(headers: &'a Headers, name: &[u8]) -> Option<&'a [u8]> {
    headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_slice())
}

/// Sets to one value, at the place of the first.
pub(crate) fn replace(headers: &mut Headers, name: &[u8], value: &[u8]) {
    match headers.iter_mut().find(|(key, _)| key == name) {
        Some((_, held)) => *held = value.to_vec(),
        None => headers.push((name.to_vec(), value.to_vec())),
    }
}
