//! Who holds how much of a prompt.

use super::prompt::{NoTokens, Tokens};
use super::speculation::Speculation;
use super::{ASSUMED_BLOCK_SIZE, BlockHash, BlockSize, Namespace, ReplicaId, ScopeId, Seconds};
use crate::hash::{ChainHasher, vllm};
use crate::replica::{IndexReplica, Walk};

/// A view of what is held in one scope at one time.
#[derive(Clone, Copy)]
pub(super) struct Lookup<'a> {
    pub(super) index: &'a IndexReplica,
    pub(super) speculation: &'a Speculation,
    pub(super) scope: Option<ScopeId>,
    pub(super) oldest: Seconds,
    pub(super) now_ms: u64,
}

/// What a lookup found.
#[derive(Debug)]
pub(super) struct Matches {
    /// Tokens that each replica holds from the start, without a hole; only replicas with at least one block.
    matched_tokens: Vec<(ReplicaId, u32)>,
    /// The prompt's chain as far as it was computed.
    pub(super) chain: Vec<BlockHash>,
    /// Of `chain`.
    pub(super) block_size: BlockSize,
    /// Where the chain's blocks are announced.
    pub(super) scope: Option<ScopeId>,
    /// Whether the chain's blocks can be expected to appear as they are: the block size is the engines' own.
    pub(super) speculate: bool,
}

impl Lookup<'_> {
    /// Looks the prompt up with each block size that replicas announce (usually one), most common first.
    pub(super) fn over_sizes(
        &self,
        tokens: &mut Tokens<'_>,
        announced: &[BlockSize],
        namespace: &Namespace,
        max_speculative_tokens: u32,
    ) -> Result<Matches, NoTokens> {
        let main = announced.first().copied().unwrap_or(ASSUMED_BLOCK_SIZE);
        let mut matches = self.walk_own(tokens, main, namespace, max_speculative_tokens)?;
        matches.speculate = !announced.is_empty() && max_speculative_tokens > 0;
        for &block_size in announced.iter().skip(1) {
            matches.merge(self.walk_own(tokens, block_size, namespace, 0)?);
        }
        Ok(matches)
    }

    /// Looks the prompt up among the engines' own hashes, in a scope of them.
    pub(super) fn engine_chain(
        &self,
        tokens: &mut Tokens<'_>,
        scope: ScopeId,
        block_size: BlockSize,
        mut hasher: vllm::ChainHasher,
        max_speculative_tokens: u32,
    ) -> Result<Matches, NoTokens> {
        let lookup = Lookup { scope: Some(scope), ..*self };
        let push = |token| hasher.push(token).map(|digest| BlockHash(digest.low64()));
        let mut matches = lookup.walk(tokens, block_size, push, max_speculative_tokens)?;
        matches.speculate = max_speculative_tokens > 0;
        Ok(matches)
    }

    /// Looks up a chain that somebody else computed.
    pub(super) fn along(&self, chain: Vec<BlockHash>, block_size: BlockSize) -> Matches {
        let mut walk = Walk::default();
        let mut holders = Vec::new();
        for &hash in &chain {
            self.holders(hash, &mut holders);
            if !walk.advance(&holders) {
                break;
            }
        }
        Matches::new(walk, chain, block_size, self.scope, u32::MAX)
    }

    fn walk_own(
        &self,
        tokens: &mut Tokens<'_>,
        block_size: BlockSize,
        namespace: &Namespace,
        max_speculative_tokens: u32,
    ) -> Result<Matches, NoTokens> {
        let mut hasher = ChainHasher::new(block_size, namespace);
        self.walk(tokens, block_size, |token| hasher.push(token), max_speculative_tokens)
    }

    /// `push` takes the tokens and gives the hash of each block with its last.
    fn walk(
        &self,
        tokens: &mut Tokens<'_>,
        block_size: BlockSize,
        mut push: impl FnMut(u32) -> Option<BlockHash>,
        max_speculative_tokens: u32,
    ) -> Result<Matches, NoTokens> {
        let mut chain = Vec::new();
        let mut walk = Walk::default();
        let mut holders = Vec::new();
        let mut beyond = max_speculative_tokens / block_size.tokens();
        let mut length = 0;
        let mut usable_blocks = u32::MAX;
        loop {
            let Some(token) = tokens.get(length)? else {
                // The engine computes the prompt's last token, and with it that token's block, in any case.
                usable_blocks = length.saturating_sub(1) as u32 / block_size.tokens();
                break;
            };
            length += 1;
            let Some(hash) = push(token) else { continue };
            chain.try_reserve(1).map_err(|_| NoTokens::Memory)?;
            chain.push(hash);
            if walk.is_alive() {
                self.holders(hash, &mut holders);
                walk.advance(&holders);
            }
            if !walk.is_alive() {
                if beyond == 0 {
                    break;
                }
                beyond -= 1;
            }
        }
        Ok(Matches::new(walk, chain, block_size, self.scope, usable_blocks))
    }

    fn holders(&self, hash: BlockHash, holders: &mut Vec<ReplicaId>) {
        holders.clear();
        let Some(scope) = self.scope else { return };
        holders.extend(self.index.holders(scope, hash, self.oldest));
        holders.extend(self.speculation.holders(scope, hash, self.now_ms));
    }
}

impl Matches {
    fn new(
        walk: Walk,
        chain: Vec<BlockHash>,
        block_size: BlockSize,
        scope: Option<ScopeId>,
        usable_blocks: u32,
    ) -> Matches {
        let tokens = |blocks: u32| blocks.min(usable_blocks).saturating_mul(block_size.tokens());
        let runs = walk.into_runs().into_iter().map(|run| (run.replica, tokens(run.blocks)));
        Matches { matched_tokens: runs.collect(), chain, block_size, scope, speculate: false }
    }

    /// The prompt has no block that could be held, in no scheme.
    pub(super) fn is_empty(&self) -> bool {
        self.chain.is_empty() && self.matched_tokens.is_empty()
    }

    /// Tokens that `replica` holds.
    pub(super) fn tokens_of(&self, replica: ReplicaId) -> u32 {
        self.matched_tokens.iter().find(|(holder, _)| *holder == replica).map_or(0, |&(_, tokens)| tokens)
    }

    /// Identifies the prompt for ties: its first block that nobody holds, or its last. Prompts that differ only
    /// behind what is cached spread; the same prompt always gives the same key.
    pub(super) fn tie_key(&self) -> u64 {
        let best = self.matched_tokens.iter().map(|&(_, tokens)| tokens).max().unwrap_or(0);
        let first_unheld = (best / self.block_size.tokens()) as usize;
        self.chain.get(first_unheld).or(self.chain.last()).map_or(0, |hash| hash.0)
    }

    /// Takes from `other` what it found more of.
    pub(super) fn merge(&mut self, other: Matches) {
        for (replica, tokens) in other.matched_tokens {
            match self.matched_tokens.iter_mut().find(|(holder, _)| *holder == replica) {
                Some((_, held)) => *held = (*held).max(tokens),
                None => self.matched_tokens.push((replica, tokens)),
            }
        }
    }
}

/// Reads `x-inference-cache-chain`: hexadecimal block hashes of 16 digits, separated by commas and optional spaces. At
/// most `max` are read. `None` if the text is anything else.
pub(super) fn parse_chain(text: &[u8], max: usize) -> Option<Vec<BlockHash>> {
    let text = std::str::from_utf8(text).ok()?;
    let hash = |digits: &str| {
        let digits = digits.trim();
        let valid = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        valid.then(|| u64::from_str_radix(digits, 16).ok().map(BlockHash)).flatten()
    };
    text.split(',').take(max).map(hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn chains_of_headers() {
        let hashes = |text: &str, max| parse_chain(text.as_bytes(), max).map(|chain| chain.len());
        assert_eq!(
            parse_chain(b"00000000000000ff, 0123456789ABCDEF", 9),
            Some(vec![BlockHash(255), BlockHash(0x0123_4567_89ab_cdef)])
        );
        assert_eq!(hashes("00000000000000ff,00000000000000fe,00000000000000fd", 2), Some(2));
        for bad in ["", "ff", "+0000000000000ff", "00000000000000ff,", "00000000000000fg", "é0000000000000f"]
        {
            assert_eq!(hashes(bad, 9), None, "{bad}");
        }
        assert_eq!(parse_chain(b"\xff\xfe", 9), None);
    }
}
