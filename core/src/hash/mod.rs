//! Identity of a block: the `xxh3-1337` chain.
//!
//! ```text
//! local[i] = xxh3_64(tokens of block i as u32 LE, seed 1337)
//! hash[0]  = local[0]                                  empty namespace
//! hash[0]  = xxh3_64(namespace LE || local[0] LE)      otherwise
//! hash[i]  = xxh3_64(hash[i-1] LE || local[i] LE, seed 1337)
//! ```
//!
//! This is the fingerprint that SMG, Dynamo's router and the reference inference-cache use, so indexes interoperate.
//! A partial last block has no hash. A hash identifies the whole prefix up to and including its block.
//!
//! A [`Namespace`] separates chains that must never match although their tokens are equal (cache salt, multimodal
//! content). XXH3 is not collision resistant: tenancy never rests on it, every scope has its own table.
//!
//! Cost: one XXH3 of `4 * block_size` bytes and one of 16 bytes per block; no allocation after [`ChainHasher::new`].

pub mod vllm;

use std::num::NonZeroU16;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Name of the scheme in `hash_scheme` fields.
pub const SCHEME: &str = "xxh3-1337";

const SEED: u64 = 1337;

/// Chained fingerprint of a prefix that ends at a block boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u64);

impl BlockHash {
    /// The hash of the block with these `tokens` that follows `parent`; `None` is the start of a plain prompt.
    pub fn of_block(parent: Option<BlockHash>, tokens: &[u32]) -> BlockHash {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        BlockHash::link(parent, &bytes)
    }

    fn link(parent: Option<BlockHash>, token_bytes: &[u8]) -> BlockHash {
        let local = xxh3_64_with_seed(token_bytes, SEED);
        match parent {
            None => BlockHash(local),
            Some(BlockHash(parent)) => BlockHash(pair(parent, local)),
        }
    }
}

/// Tokens per block: 1 to 65,535.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockSize(NonZeroU16);

impl BlockSize {
    /// `None` if `tokens` is 0 or above 65,535.
    pub fn new(tokens: u32) -> Option<BlockSize> {
        u16::try_from(tokens).ok().and_then(NonZeroU16::new).map(BlockSize)
    }

    /// Tokens per block.
    pub fn tokens(self) -> u32 {
        u32::from(self.0.get())
    }
}

/// What keeps a chain apart from others with the same tokens. The empty namespace is the plain formula.
///
/// Fields are type-tagged and length-prefixed, so no two different lists of fields have the same encoding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    encoded: Vec<u8>,
}

impl Namespace {
    const CACHE_SALT: u8 = 1;
    const CONTENT: u8 = 2;

    /// The namespace of plain prompts.
    pub fn empty() -> Namespace {
        Namespace::default()
    }

    /// Adds the `cache_salt` of the request.
    #[must_use]
    pub fn with_cache_salt(self, salt: &str) -> Namespace {
        self.with(Namespace::CACHE_SALT, salt.as_bytes())
    }

    /// Adds content that is not in the tokens (multimodal identifiers, prompt embeddings), in the engine's encoding.
    #[must_use]
    pub fn with_content(self, content: &[u8]) -> Namespace {
        self.with(Namespace::CONTENT, content)
    }

    /// Whether chains in this namespace follow the plain formula.
    pub fn is_empty(&self) -> bool {
        self.encoded.is_empty()
    }

    /// The parent of a block that this namespace applies to: the root of a chain (`parent` is `None`), or a block in
    /// its middle whose content the tokens do not tell.
    pub fn apply(&self, parent: Option<BlockHash>) -> Option<BlockHash> {
        if self.is_empty() {
            return parent;
        }
        let own = xxh3_64_with_seed(&self.encoded, SEED);
        Some(BlockHash(parent.map_or(own, |BlockHash(parent)| pair(parent, own))))
    }

    fn with(mut self, tag: u8, value: &[u8]) -> Namespace {
        self.encoded.push(tag);
        self.encoded.extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.encoded.extend_from_slice(value);
        self
    }
}

/// Turns a stream of tokens into the chain of its full blocks.
#[derive(Clone, Debug)]
pub struct ChainHasher {
    parent: Option<BlockHash>,
    /// Little-endian bytes of the tokens of the unfinished block; never reallocates.
    pending: Vec<u8>,
    block_bytes: usize,
}

impl ChainHasher {
    /// A chain of blocks of `block_size` tokens in `namespace`.
    pub fn new(block_size: BlockSize, namespace: &Namespace) -> ChainHasher {
        let block_bytes = block_size.tokens() as usize * 4;
        ChainHasher { parent: namespace.apply(None), pending: Vec::with_capacity(block_bytes), block_bytes }
    }

    /// Adds a token; the block's hash if it is the block's last.
    #[inline]
    pub fn push(&mut self, token: u32) -> Option<BlockHash> {
        self.pending.extend_from_slice(&token.to_le_bytes());
        if self.pending.len() < self.block_bytes {
            return None;
        }
        let hash = BlockHash::link(self.parent, &self.pending);
        self.pending.clear();
        self.parent = Some(hash);
        Some(hash)
    }
}

/// The hashes of the full blocks of `tokens`.
pub fn chain(tokens: &[u32], block_size: BlockSize, namespace: &Namespace) -> Vec<BlockHash> {
    let mut hasher = ChainHasher::new(block_size, namespace);
    tokens.iter().filter_map(|&token| hasher.push(token)).collect()
}

fn pair(a: u64, b: u64) -> u64 {
    let mut bytes = [0; 16];
    let (left, right) = bytes.split_at_mut(8);
    left.copy_from_slice(&a.to_le_bytes());
    right.copy_from_slice(&b.to_le_bytes());
    xxh3_64_with_seed(&bytes, SEED)
}
