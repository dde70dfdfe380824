//! One request on its way through the scheduler.

use crate::block_pool::BlockId;
use crate::config::CacheConfig;
use crate::events::{BlockStored, Lora};
use inference_cache_core::hash::vllm::{ChainHasher, Digest};
use std::ops::Range;
use std::sync::Arc;

/// What the scheduler is asked for.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens that the model will answer with, the end token included if it ends by itself.
    pub answer: Vec<u32>,
    /// Adapter.
    pub lora: Option<Arc<Lora>>,
    /// Keeps the request's blocks apart from others with the same tokens.
    pub cache_salt: Option<Arc<str>>,
    /// Announce reused blocks again (`kv_cache_report_mode=full`).
    pub report_full: bool,
}

/// Identifies a request from [`crate::scheduler::Scheduler::add`] to its end.
pub type RequestId = u64;

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) request: Request,
    /// Prompt and what was answered so far.
    pub(crate) tokens: Vec<u32>,
    /// Tokens whose KV is in `blocks`.
    pub(crate) computed: usize,
    /// The request's blocks, in the order of its tokens.
    pub(crate) blocks: Vec<BlockId>,
    /// Blocks at the start that have their hash.
    pub(crate) cached_blocks: usize,
    /// Prompt tokens that were found when it was first scheduled.
    pub(crate) cached_tokens: Option<u32>,
    /// Hashes of the full blocks of `tokens`.
    pub(crate) hashes: Vec<Digest>,
    hasher: ChainHasher,
    prompt_tokens: usize,
    block_size: usize,
}

impl Sequence {
    pub(crate) fn new(mut request: Request, config: &CacheConfig) -> Sequence {
        let mut hasher = config.chain_hasher(request.lora.as_deref(), request.cache_salt.as_deref());
        let tokens = std::mem::take(&mut request.prompt);
        let prompt_tokens = tokens.len();
        let hashes = tokens.iter().filter_map(|&token| hasher.push(token)).collect();
        Sequence {
            request,
            tokens,
            computed: 0,
            blocks: Vec::new(),
            cached_blocks: 0,
            cached_tokens: None,
            hashes,
            hasher,
            prompt_tokens,
            block_size: config.block_size.tokens() as usize,
        }
    }

    /// Hashes that may be looked up: the block with the last token is always computed, it yields the next token.
    pub(crate) fn reusable_hashes(&self) -> &[Digest] {
        &self.hashes[..(self.tokens.len() - 1) / self.block_size]
    }

    /// Tokens of the answer so far.
    pub(crate) fn answered(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// Whether all that is left to compute is the newest token of the answer.
    pub(crate) fn is_decode(&self) -> bool {
        self.answered() > 0 && self.computed + 1 == self.tokens.len()
    }

    /// Adds the next token of the answer; the token and whether it was the last.
    pub(crate) fn sample(&mut self) -> (u32, bool) {
        let token = self.request.answer[self.answered()];
        self.tokens.push(token);
        self.hashes.extend(self.hasher.push(token));
        (token, self.answered() == self.request.answer.len())
    }

    /// The announcement of the `blocks`.
    pub(crate) fn stored(&self, blocks: Range<usize>) -> BlockStored {
        BlockStored {
            block_hashes: self.hashes[blocks.clone()].to_vec(),
            parent: blocks.start.checked_sub(1).map(|parent| self.hashes[parent]),
            token_ids: self.tokens[blocks.start * self.block_size..blocks.end * self.block_size].to_vec(),
            lora: self.request.lora.clone(),
            cache_salt: self.request.cache_salt.clone().filter(|_| blocks.start == 0),
        }
    }
}
