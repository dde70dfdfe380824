//! From a `BlockStored` event to a run of blocks that can be hashed: what is checked once, before any state is touched.

use super::Tier;
use crate::events::{BlockStored, EngineHash, ExtraKey};
use crate::hash::{BlockSize, Namespace};

/// Consecutive full blocks of one prompt.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// One per block; `None` where the copy was removed while the run waited for its parent.
    pub(super) hashes: Vec<Option<EngineHash>>,
    /// Block before the first.
    pub(super) parent: Option<EngineHash>,
    /// At least `hashes.len() * block_size`.
    pub(super) tokens: Vec<u32>,
    pub(super) block_size: BlockSize,
    pub(super) adapter: String,
    pub(super) tier: Tier,
    pub(super) group: Option<u32>,
    /// Namespaces of the blocks that have one, by rising index.
    pub(super) namespaces: Vec<(usize, Namespace)>,
}

/// Copies on another tier of blocks that are known already (offload connectors without self-describing events).
#[derive(Clone, Debug)]
pub(super) struct Placeholder {
    pub(super) hashes: Vec<EngineHash>,
    pub(super) tier: Tier,
    pub(super) group: Option<u32>,
}

pub(super) enum Announcement {
    Run(Run),
    Placeholder(Placeholder),
}

/// Checks an event; `Err` is why it cannot be indexed, as a bounded label.
pub(super) fn announcement(event: BlockStored<'_>) -> Result<Announcement, &'static str> {
    // Only a group that attends to everything says that a prefix can be reused: the others hold sparse positions.
    if !matches!(event.spec_kind, None | Some("full_attention" | "mla_attention" | "sink_full_attention")) {
        return Err("sparse_group");
    }
    let tier = Tier::of_medium(event.medium);
    if event.tokens.is_empty() && event.block_size == 0 {
        return Ok(Announcement::Placeholder(Placeholder { hashes: event.hashes, tier, group: event.group }));
    }
    if event.lora_id.is_some() && event.lora_name.is_none() {
        return Err("nameless_adapter");
    }
    let block_size = BlockSize::new(event.block_size).ok_or("block_size")?;
    let blocks = full_blocks(event.tokens.len(), event.hashes.len(), block_size).ok_or("sparse_positions")?;
    let namespaces = namespaces(&event);
    let mut hashes: Vec<_> = event.hashes.into_iter().map(Some).collect();
    hashes.truncate(blocks);
    Ok(Announcement::Run(Run {
        hashes,
        parent: event.parent,
        tokens: event.tokens,
        block_size,
        adapter: event.lora_name.unwrap_or_default().to_owned(),
        tier,
        group: event.group,
        namespaces,
    }))
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
fn namespaces(event: &BlockStored<'_>) -> Vec<(usize, Namespace)> {
    let mut namespaces: Vec<(usize, Namespace)> = Vec::new();
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
        let mut namespace = Namespace::empty();
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
            namespaces.push((block as usize, namespace));
        }
    }
    namespaces
}
