//! From a `BlockStored` event to a run of blocks that can be hashed: what is checked once, before any state is touched.

use super::Tier;
use crate::events::{BlockStored, EngineHash, ExtraKey};
use crate::hash::{BlockSize, Namespace};

/// Consecutive full blocks of one prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    /// One per block.
    pub(super) hashes: &'a [EngineHash],
    /// Blocks of the run, by rising index, whose copy was removed while the run waited for its parent.
    pub(super) gone: &'a [u32],
    /// Block before the first.
    pub(super) parent: Option<EngineHash>,
    /// At least `hashes.len() * block_size`.
    pub(super) tokens: &'a [u32],
    pub(super) block_size: BlockSize,
    pub(super) adapter: &'a str,
    pub(super) tier: Tier,
    pub(super) group: Option<u32>,
    /// Namespaces of the blocks that have one, by rising index, one each.
    pub(super) namespaces: &'a [(u32, Namespace)],
    /// The engine's hashes cover more than ours.
    pub(super) aliased: bool,
}

/// What an event announces.
#[derive(Debug)]
pub(super) enum Announcement {
    /// Blocks; the event's first so many hashes.
    Blocks { count: usize, block_size: BlockSize, namespaces: Vec<(u32, Namespace)> },
    /// Copies of known blocks on another tier (offload connectors without self-describing events).
    Placeholder,
}

/// Checks an event; `Err` is why it cannot be indexed, as a bounded label.
pub(super) fn announcement(event: &BlockStored<'_>) -> Result<Announcement, &'static str> {
    // Only a group that attends to everything says that a prefix can be reused: the others hold sparse positions.
    if !matches!(event.spec_kind, None | Some("full_attention" | "mla_attention" | "sink_full_attention")) {
        return Err("sparse_group");
    }
    if event.tokens.is_empty() && event.block_size == 0 {
        return Ok(Announcement::Placeholder);
    }
    if event.lora_id.is_some() && event.lora_name.is_none() {
        return Err("nameless_adapter");
    }
    let block_size = BlockSize::new(event.block_size).ok_or("block_size")?;
    let count = full_blocks(event.tokens.len(), event.hashes.len(), block_size).ok_or("sparse_positions")?;
    Ok(Announcement::Blocks { count, block_size, namespaces: namespaces(event) })
}

impl<'a> Run<'a> {
    /// The first `count` blocks of an event.
    pub(super) fn new(
        event: &'a BlockStored<'a>,
        count: usize,
        block_size: BlockSize,
        namespaces: &'a [(u32, Namespace)],
    ) -> Run<'a> {
        let adapter = event.lora_name.unwrap_or_default();
        Run {
            hashes: event.hashes.get(..count).unwrap_or_default(),
            gone: &[],
            parent: event.parent,
            tokens: &event.tokens,
            block_size,
            adapter,
            tier: Tier::of_medium(event.medium),
            group: event.group,
            namespaces,
            // An adapter's path is in vLLM's hash and not on the wire.
            aliased: !adapter.is_empty() || event.looks_ahead || event.bigram_end.is_some(),
        }
    }
}

/// How many of the hashes stand for full blocks: all, or all but a partial last one. `None`: the tokens do not belong
/// to the hashes one to one (hybrid models announce the whole span and the few hashes that they keep).
fn full_blocks(tokens: usize, hashes: usize, block_size: BlockSize) -> Option<usize> {
    let full = tokens / block_size.tokens() as usize;
    let partial = usize::from(!tokens.is_multiple_of(block_size.tokens() as usize));
    (full + partial == hashes).then_some(full)
}

/// vLLM lists extra keys per block in the order LoRA name, multimodal content, cache salt (first block of a prompt
/// only), embeddings, without saying which is which; SGLang has a field for the salt.
fn namespaces(event: &BlockStored<'_>) -> Vec<(u32, Namespace)> {
    let mut namespaces: Vec<(u32, Namespace)> = Vec::new();
    let is_root = event.parent.is_none();
    if let (true, Some(salt)) = (is_root, event.cache_salt) {
        namespaces.push((0, Namespace::empty().with_cache_salt(salt)));
    }
    for keys in event.extra_keys.chunk_by(|(left, _), (right, _)| left == right) {
        let Some(&(block, first)) = keys.first() else { continue };
        let is_adapter = event.lora_name.is_some_and(|name| first == ExtraKey::Text(name));
        let keys = keys.get(usize::from(is_adapter)..).unwrap_or_default();
        let salt = if is_root && block == 0 {
            keys.iter().rposition(|(_, key)| matches!(key, ExtraKey::Text(_)))
        } else {
            None
        };
        let salted = namespaces.pop_if(|(at, _)| *at == block).map(|(_, namespace)| namespace);
        let mut namespace = salted.unwrap_or_default();
        if let Some(&(_, ExtraKey::Text(text))) = salt.and_then(|at| keys.get(at)) {
            namespace = namespace.with_cache_salt(text);
        }
        for (at, (_, key)) in keys.iter().enumerate() {
            if Some(at) != salt {
                namespace = match key {
                    ExtraKey::Text(text) => namespace.with_content(text.as_bytes()),
                    ExtraKey::Content(content) => namespace.with_content(content),
                };
            }
        }
        if !namespace.is_empty() {
            namespaces.push((block, namespace));
        }
    }
    namespaces
}
