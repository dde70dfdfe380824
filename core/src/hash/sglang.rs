//! SGLang's own page hashes (0.5.6 and later): a check, never our key.
//!
//! ```text
//! digest[0] = sha256(root || page)                root: nothing, or of the cache salt
//! digest[i] = sha256(digest[i-1] || page)
//! root      = sha256("sglang-cache-salt-v1" 00 || salt)
//! page      = its ids as u32 LE; if one of them needs more: ff || its ids as u64 LE
//! wire      = the first 8 bytes, big-endian, signed
//! ```
//!
//! In bigram mode (EAGLE) the ids of a page are those of its pairs: a token and the one after it, for every token.
//!
//! With `format: dynamo`, and for adapters that are registered by name, what is published is hashed once more with its
//! namespace ([`EventNamespace`]); chains still go through the digests.
//!
//! Sources: `hash_binding.cpp`, `mem_cache/utils.py` and `disaggregation/kv_events.py` of SGLang 0.5.23; checked
//! against recordings of its radix cache. Before 0.5.6 hashes were CPython's `hash` of a page alone: not here.
//!
//! Cost: one SHA-256 of `32 + 4 * page_size` bytes per page, no allocation after the first page.

use super::BlockSize;
use sha2::{Digest as _, Sha256};

/// SHA-256 of a page and, through its parent, of everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageDigest(pub [u8; 32]);

impl PageDigest {
    /// What stands before the first page of a prompt with a cache salt.
    pub fn of_salt(salt: &str) -> PageDigest {
        PageDigest(Sha256::new().chain_update(b"sglang-cache-salt-v1\0").chain_update(salt).finalize().into())
    }

    /// What SGLang publishes.
    pub fn wire(&self) -> i64 {
        first64(&self.0)
    }
}

/// The namespace that some published hashes are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventNamespace([u8; 32]);

impl EventNamespace {
    /// Of a request's `extra_key` and cache salt; `None` if it has neither. Without `format: dynamo`, only the extra key
    /// of an adapter counts, and never the salt.
    pub fn new(extra_key: Option<&str>, cache_salt: Option<&str>) -> Option<EventNamespace> {
        if extra_key.is_none() && cache_salt.is_none() {
            return None;
        }
        let mut hasher = Sha256::new_with_prefix(b"sglang-kv-event-namespace-v1");
        for part in [extra_key, cache_salt] {
            match part {
                None => hasher.update([0]),
                Some(part) => {
                    hasher.update([1]);
                    hasher.update((part.len() as u64).to_le_bytes());
                    hasher.update(part);
                }
            }
        }
        Some(EventNamespace(hasher.finalize().into()))
    }

    /// What is published in place of `wire`.
    pub fn apply(&self, wire: i64) -> i64 {
        let digest = Sha256::new().chain_update(self.0).chain_update(wire.to_be_bytes()).finalize();
        first64(&digest.into())
    }
}

/// The digests of one prompt's pages, token by token.
#[derive(Clone, Debug)]
pub struct ChainHasher {
    parent: Option<PageDigest>,
    page_size: u32,
    tokens: u32,
    page: Page,
}

/// The unfinished page.
#[derive(Clone, Debug, Default)]
struct Page {
    ids: Vec<u64>,
    /// Scratch.
    bytes: Vec<u8>,
}

impl ChainHasher {
    /// A chain of pages of `page_size` tokens behind `root` ([`PageDigest::of_salt`]), if there is one.
    pub fn new(page_size: BlockSize, root: Option<PageDigest>) -> ChainHasher {
        ChainHasher { parent: root, page_size: page_size.tokens(), tokens: 0, page: Page::default() }
    }

    /// Adds a token, 0 to 2⁶³ - 1; the page's digest if it is the page's last.
    pub fn push(&mut self, token: u64) -> Option<PageDigest> {
        self.page.ids.push(token);
        self.advance()
    }

    /// The same in bigram mode, with the token that follows.
    pub fn push_bigram(&mut self, token: u64, next: u64) -> Option<PageDigest> {
        self.page.ids.extend_from_slice(&[token, next]);
        self.advance()
    }

    fn advance(&mut self) -> Option<PageDigest> {
        self.tokens += 1;
        if self.tokens < self.page_size {
            return None;
        }
        self.tokens = 0;
        let mut hasher = Sha256::new();
        if let Some(PageDigest(parent)) = &self.parent {
            hasher.update(parent);
        }
        hasher.update(self.page.encode());
        let digest = PageDigest(hasher.finalize().into());
        self.page.ids.clear();
        self.parent = Some(digest);
        Some(digest)
    }
}

impl Page {
    fn encode(&mut self) -> &[u8] {
        /// An odd number of bytes: no page of narrow ids has it.
        const WIDE: u8 = 0xff;
        self.bytes.clear();
        if self.ids.iter().any(|&id| id > u64::from(u32::MAX)) {
            self.bytes.push(WIDE);
            self.bytes.extend(self.ids.iter().flat_map(|id| id.to_le_bytes()));
        } else {
            self.bytes.extend(self.ids.iter().flat_map(|&id| (id as u32).to_le_bytes()));
        }
        &self.bytes
    }
}

fn first64(digest: &[u8; 32]) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    // Known answers: CPython's hashlib over the formulas of the module. Recorded sessions: `core/tests/engine_hashes.rs`.

    fn chain(tokens: &[u64], root: Option<PageDigest>) -> Vec<i64> {
        let mut hasher = ChainHasher::new(BlockSize::new(2).unwrap(), root);
        tokens.iter().filter_map(|&token| hasher.push(token)).map(|digest| digest.wire()).collect()
    }

    #[test]
    fn pages_chain_from_nothing_or_from_the_salt() {
        assert_eq!(chain(&[1, 2, 7, 8, 9], None), [3_817_746_824_117_602_890, 863_173_374_788_446_151]);
        assert_eq!(
            chain(&[1, 2, 7, 8], Some(PageDigest::of_salt("tenant-a"))),
            [31_502_315_585_564_397, 4_743_673_046_050_733_608]
        );
    }

    #[test]
    fn a_wide_id_widens_its_page_only() {
        assert_eq!(
            chain(&[1, 1 << 32, (1 << 32) - 1, 8], None),
            [7_399_184_533_875_189_360, -5_644_364_337_923_989_224]
        );
    }

    #[test]
    fn bigrams_overlap() {
        let mut hasher = ChainHasher::new(BlockSize::new(2).unwrap(), None);
        let pairs = [(1, 2), (2, 7), (7, 8), (8, 9)];
        let pages: Vec<i64> = pairs
            .into_iter()
            .filter_map(|(token, next)| hasher.push_bigram(token, next))
            .map(|digest| digest.wire())
            .collect();
        assert_eq!(pages, [2_151_291_265_354_842_297, 6_819_927_358_036_504_043]);
    }

    #[test]
    fn namespaces_tell_absent_from_empty() {
        let apply =
            |extra_key, salt, wire| EventNamespace::new(extra_key, salt).map(|space| space.apply(wire));
        assert_eq!(apply(None, None, 7), None);
        assert_eq!(apply(None, Some("tenant-a"), 31_502_315_585_564_397), Some(552_704_225_747_113_539));
        assert_eq!(apply(Some("key"), None, -5), Some(-863_137_630_340_002_206));
        assert_eq!(apply(Some("key"), Some(""), -5), Some(7_097_083_929_332_265_072));
    }
}
