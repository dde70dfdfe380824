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

pub mod sglang;
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
    /// The hash of the block with these `tokens` that follows `parent`; `None` is the start of a plain prompt. `scratch`
    /// is memory that is used again; what it holds does not matter.
    pub fn of_block(parent: Option<BlockHash>, tokens: &[u32], scratch: &mut Vec<u8>) -> BlockHash {
        scratch.resize(tokens.len() * 4, 0);
        let bytes = scratch.as_chunks_mut::<4>().0;
        bytes.iter_mut().zip(tokens).for_each(|(bytes, token)| *bytes = token.to_le_bytes());
        BlockHash::link(parent, scratch)
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
    /// vLLM's default on GPUs.
    pub const SIXTEEN: BlockSize = match NonZeroU16::new(16) {
        Some(tokens) => BlockSize(tokens),
        None => BlockSize(NonZeroU16::MIN),
    };

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

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Known answers: python-xxhash 4.1.0 (libxxhash 0.8.x) over the formula of the module, token i = (7919 i² + 13)
    /// mod 151,936.
    const GOLDEN: [(u32, usize, &[u64]); 4] = [
        (4, 10, &[0x5085_e528_d420_6fdc, 0x4abb_d0a0_e0c8_d248]),
        (16, 40, &[0xaaae_37fe_6593_1381, 0xccc4_6ff4_94fc_900e]),
        (64, 200, &[0x4a61_8e16_bf99_966e, 0x2620_77bc_182f_0ce9, 0x1779_064f_be9f_71f3]),
        (1, 2, &[0x569d_c0c4_6605_193b, 0x76fc_7b01_5982_226b]),
    ];

    fn tokens(count: usize) -> Vec<u32> {
        (0..count as u32).map(|i| (i * i * 7919 + 13) % 151_936).collect()
    }

    #[test]
    fn known_answers() {
        for (block_size, count, hashes) in GOLDEN {
            let chain = chain(&tokens(count), BlockSize::new(block_size).unwrap(), &Namespace::empty());
            assert_eq!(
                chain,
                hashes.iter().copied().map(BlockHash).collect::<Vec<_>>(),
                "block size {block_size}"
            );
        }
    }

    #[test]
    fn a_block_by_itself_is_the_chain_s_block() {
        let (tokens, size) = (tokens(40), BlockSize::SIXTEEN);
        let chain = chain(&tokens, size, &Namespace::empty());
        assert_eq!(BlockHash::of_block(None, &tokens[..16], &mut vec![7; 99]), chain[0]);
        assert_eq!(BlockHash::of_block(Some(chain[0]), &tokens[16..32], &mut Vec::new()), chain[1]);
    }

    #[test]
    fn namespaces_separate_chains() {
        let salt = Namespace::empty().with_cache_salt("salt");
        let four = BlockSize::new(4).unwrap();
        // Known answers as above, namespace = 01 | length as u64 LE | "salt".
        assert_eq!(salt.apply(None), Some(BlockHash(0xaa2d_e0b2_cf31_af10)));
        assert_eq!(chain(&[1, 2, 3, 4], four, &salt), [BlockHash(0xac1f_17eb_2815_b86e)]);

        let others = [
            Namespace::empty(),
            Namespace::empty().with_cache_salt("sal"),
            Namespace::empty().with_content(b"salt"),
            Namespace::empty().with_cache_salt("sa").with_cache_salt("lt"),
        ];
        for other in others {
            assert_ne!(chain(&[1, 2, 3, 4], four, &other), chain(&[1, 2, 3, 4], four, &salt));
        }
        assert_eq!(Namespace::empty().apply(Some(BlockHash(9))), Some(BlockHash(9)));
    }

    #[test]
    fn block_sizes_have_a_range() {
        assert_eq!(BlockSize::new(0), None);
        assert_eq!(BlockSize::new(65_536), None);
        assert_eq!(BlockSize::new(65_535).map(BlockSize::tokens), Some(65_535));
    }
}
