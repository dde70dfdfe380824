//! Pages that are smaller than our blocks (SGLang's default is one token): what is known of the block that they are part
//! of, until its last page comes.
//!
//! A block is indexed with its last page and leaves with it. Radix caches evict leaves first, so the last page is the
//! first to go. A page in the middle is kept here: its tokens and the page before it, so that a page announced later, on
//! its own, finds the tokens of the whole block by walking back. `p` tokens cost `16 + 4 p` bytes a page beside its slot
//! in [`super::copies`].

use crate::events::EngineHash;
use crate::hash::BlockHash;

#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Tokens of a page; 0 until the first is stored.
    page_tokens: usize,
    /// `page_tokens` for each page.
    tokens: Vec<u32>,
    links: Vec<Link>,
    free: Vec<u32>,
}

/// What a page comes after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// It is the first of its block, whose parent is this one.
    Block(Option<BlockHash>),
    /// Another page of the same block.
    Page(EngineHash),
}

impl Pages {
    /// Keeps a page; its number. `Err`: pages of two sizes, or too many.
    pub(super) fn add(&mut self, link: Link, tokens: &[u32]) -> Result<u32, &'static str> {
        if self.links.len() == self.free.len() {
            *self = Pages { page_tokens: tokens.len(), ..Pages::default() };
        }
        if self.page_tokens != tokens.len() {
            return Err("page_size");
        }
        if let Some(id) = self.free.pop() {
            let at = id as usize * self.page_tokens;
            if let (Some(slot), Some(old)) =
                (self.links.get_mut(id as usize), self.tokens.get_mut(at..at + self.page_tokens))
            {
                *slot = link;
                old.copy_from_slice(tokens);
            }
            return Ok(id);
        }
        let id = u32::try_from(self.links.len()).map_err(|_| "too_many_blocks")?;
        self.links.try_reserve(1).map_err(|_| "out_of_memory")?;
        self.tokens.try_reserve(tokens.len()).map_err(|_| "out_of_memory")?;
        self.links.push(link);
        self.tokens.extend_from_slice(tokens);
        Ok(id)
    }

    /// The page's tokens and what it comes after.
    pub(super) fn get(&self, id: u32) -> Option<(Link, &[u32])> {
        let at = id as usize * self.page_tokens;
        Some((*self.links.get(id as usize)?, self.tokens.get(at..at + self.page_tokens)?))
    }

    /// Forgets a page; its number will be another's.
    pub(super) fn remove(&mut self, id: u32) {
        self.free.push(id);
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.tokens.capacity() * 4 + self.links.capacity() * size_of::<Link>() + self.free.capacity() * 4
    }
}
