//! What a block's hash covers besides its parent and tokens.

use super::cbor::Cbor;
use super::pickle::Pickle;
use super::{Algorithm, Serializer};

/// What separates a block from another with the same tokens and parent, in vLLM's order: LoRA, multimodal, salt,
/// embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// In every block of a request to an adapter. `path` only counts in [`ExtraKeysFormat::Tagged`].
    Lora {
        /// Name under which the adapter is served.
        name: &'a str,
        /// Where the engine loaded it from. It is not on the wire.
        path: &'a str,
    },
    /// In every block that the content overlaps.
    Multimodal {
        /// Content hash of the processor, or the client's uuid.
        identifier: &'a str,
        /// First token of the content, relative to the block's first; negative if it starts earlier.
        offset: i64,
    },
    /// In the first block only.
    CacheSalt(&'a str),
    /// SHA-256 of the block's embeddings.
    PromptEmbeds(&'a [u8]),
}

/// How extra keys enter the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtraKeysFormat {
    /// vLLM 0.19 to 0.30 (without multimodal content from 0.11.1): bare values.
    Untagged,
    /// vLLM 0.31 and later: tuples that start with the kind.
    Tagged,
}

/// The extra keys as the third value of a block: to be written behind the two objects of the others.
pub(super) fn encode(
    algorithm: Algorithm,
    format: ExtraKeysFormat,
    keys: &[ExtraKey<'_>],
    out: &mut Vec<u8>,
) {
    out.clear();
    if algorithm.is_pickle() {
        write(&mut Pickle::part(out, 2), format, keys);
    } else {
        write(&mut Cbor(out), format, keys);
    }
}

fn write(out: &mut impl Serializer, format: ExtraKeysFormat, keys: &[ExtraKey<'_>]) {
    if keys.is_empty() {
        return out.none();
    }
    out.begin_tuple(keys.len());
    for key in keys {
        match format {
            ExtraKeysFormat::Untagged => write_untagged(out, key),
            ExtraKeysFormat::Tagged => write_tagged(out, key),
        }
    }
    out.end_tuple(keys.len());
}

fn write_untagged(out: &mut impl Serializer, key: &ExtraKey<'_>) {
    match *key {
        ExtraKey::Lora { name, .. } => out.text(name),
        ExtraKey::Multimodal { identifier, offset } => {
            out.begin_tuple(2);
            out.text(identifier);
            out.int(offset);
            out.end_tuple(2);
        }
        ExtraKey::CacheSalt(salt) => out.text(salt),
        ExtraKey::PromptEmbeds(digest) => out.bytes(digest),
    }
}

fn write_tagged(out: &mut impl Serializer, key: &ExtraKey<'_>) {
    let (tag, len) = match key {
        ExtraKey::Lora { .. } => ("lora", 3),
        ExtraKey::Multimodal { .. } => ("mm", 3),
        ExtraKey::CacheSalt(_) => ("cache_salt", 2),
        ExtraKey::PromptEmbeds(_) => ("prompt_embeds", 2),
    };
    out.begin_tuple(len);
    out.literal(tag);
    match *key {
        ExtraKey::Lora { name, path } => {
            out.text(name);
            out.text(path);
        }
        ExtraKey::Multimodal { identifier, offset } => {
            out.text(identifier);
            out.int(offset);
        }
        ExtraKey::CacheSalt(salt) => out.text(salt),
        ExtraKey::PromptEmbeds(digest) => out.bytes(digest),
    }
    out.end_tuple(len);
}
