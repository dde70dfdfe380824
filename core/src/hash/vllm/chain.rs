//! The chain of a prompt: full blocks out of a stream of tokens.

use super::cbor::Cbor;
use super::pickle::Pickle;
use super::{Algorithm, Digest, ExtraKey, ExtraKeysFormat, Serializer, extra_keys};
use crate::hash::BlockSize;

/// The hashes of one prompt's blocks, token by token.
#[derive(Clone, Debug)]
pub struct ChainHasher {
    algorithm: Algorithm,
    format: ExtraKeysFormat,
    block_size: BlockSize,
    /// The unfinished block, serialized: parent, tokens so far.
    block: Vec<u8>,
    /// Of pickle's open frame in it.
    frame: usize,
    tokens: u32,
    /// Extra keys of the next block and of those after it, serialized.
    next_extra: Vec<u8>,
    later_extra: Vec<u8>,
}

impl ChainHasher {
    /// A chain that starts at `root` ([`Digest::none_hash`]), of blocks without extra keys.
    pub fn new(
        algorithm: Algorithm,
        format: ExtraKeysFormat,
        block_size: BlockSize,
        root: Digest,
    ) -> ChainHasher {
        let mut hasher = ChainHasher {
            algorithm,
            format,
            block_size,
            block: Vec::new(),
            frame: 0,
            tokens: 0,
            next_extra: Vec::new(),
            later_extra: Vec::new(),
        };
        hasher.start(root);
        hasher.with_extra_keys(&[], &[])
    }

    /// `first` are the extra keys of the first block, `later` those of all others (the adapter without the salt).
    #[must_use]
    pub fn with_extra_keys(mut self, first: &[ExtraKey<'_>], later: &[ExtraKey<'_>]) -> ChainHasher {
        self.set_extra_keys(first);
        extra_keys::encode(self.algorithm, self.format, later, &mut self.later_extra);
        self
    }

    /// What hashes.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How extra keys enter.
    pub fn extra_keys_format(&self) -> ExtraKeysFormat {
        self.format
    }

    /// Replaces the extra keys of the unfinished block: those that are in some blocks only.
    pub fn set_extra_keys(&mut self, keys: &[ExtraKey<'_>]) {
        extra_keys::encode(self.algorithm, self.format, keys, &mut self.next_extra);
    }

    /// Adds a token; the block's hash if it is the block's last.
    #[inline]
    pub fn push(&mut self, token: u32) -> Option<Digest> {
        if self.algorithm.is_pickle() {
            let mut pickle = Pickle::resume(&mut self.block, self.frame);
            pickle.int(token.into());
            self.frame = pickle.frame();
        } else {
            Cbor(&mut self.block).int(token.into());
        }
        self.tokens += 1;
        (self.tokens >= self.block_size.tokens()).then(|| self.finish())
    }

    fn start(&mut self, parent: Digest) {
        self.tokens = 0;
        let len = self.block_size.tokens() as usize;
        if self.algorithm.is_pickle() {
            let mut pickle = Pickle::begin(&mut self.block);
            self.frame = head(&mut pickle, parent, len).frame();
        } else {
            self.block.clear();
            head(&mut Cbor(&mut self.block), parent, len);
        }
    }

    fn finish(&mut self) -> Digest {
        if self.algorithm.is_pickle() {
            let mut pickle = Pickle::resume(&mut self.block, self.frame);
            pickle.end_tuple(self.block_size.tokens() as usize);
            pickle.append(&self.next_extra);
            pickle.end_tuple(3);
            pickle.end();
        } else {
            self.block.extend_from_slice(&self.next_extra);
        }
        let digest = self.algorithm.digest(&self.block);
        self.next_extra.clone_from(&self.later_extra);
        self.start(digest);
        digest
    }
}

/// What stands before a block's tokens.
fn head<S: Serializer>(out: &mut S, parent: Digest, tokens: usize) -> &mut S {
    out.begin_tuple(3);
    out.bytes(parent.as_bytes());
    out.begin_tuple(tokens);
    out
}
