//! The fields of `BlockStored` and `BlockRemoved`.
//!
//! One reader per field serves both encodings: positions and names only decide which field a value belongs to.
//! Layouts: vLLM 0.9.2 to 0.33, SGLang 0.4.9 to 0.5.23.

use super::msgpack::{Reader, Value};
use super::{EngineHash, EventError, Fields};

/// Consecutive full blocks of one request became reusable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockStored<'a> {
    /// One per block, in prompt order.
    pub hashes: Vec<EngineHash>,
    /// The block before the first; `None` at the start of a prompt.
    pub parent: Option<EngineHash>,
    /// The blocks' tokens, concatenated.
    pub tokens: Vec<u32>,
    /// In SGLang's bigram mode (EAGLE), which sends a pair `[token, next]` per token: the last `next`. The others are
    /// the tokens themselves.
    pub bigram_end: Option<u32>,
    /// Tokens per block; 0 in placeholders of offload connectors.
    pub block_size: u32,
    /// Deprecated number of the LoRA adapter; the only trace of it before vLLM 0.14.
    pub lora_id: Option<i64>,
    /// Name of the LoRA adapter.
    pub lora_name: Option<&'a str>,
    /// Where the blocks are: `"GPU"`, `"CPU"`, `"CPU_PINNED"`, `"DISK"`, `"STORAGE"`, …
    pub medium: Option<&'a str>,
    /// Cache salt in a field of its own (SGLang).
    pub cache_salt: Option<&'a str>,
    /// What else went into the blocks' hashes (vLLM): `(index of the block, key)`, by rising index.
    pub extra_keys: Vec<(u32, ExtraKey<'a>)>,
    /// KV-cache group of a hybrid model.
    pub group: Option<u32>,
    /// Kind of that group: `"full_attention"`, `"sliding_window"`, `"mamba"`, …
    pub spec_kind: Option<&'a str>,
    /// The blocks' hashes also cover tokens behind them (speculative decoding in vLLM 0.33 and later).
    pub looks_ahead: bool,
}

/// Something besides tokens that tells one block from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// A LoRA name, a cache salt or (up to vLLM 0.18) a multimodal identifier: the wire does not say which.
    Text(&'a str),
    /// Anything else, as its msgpack bytes: `[identifier, offset]` of multimodal content, a digest of embeddings.
    Content(&'a [u8]),
}

impl<'a> ExtraKey<'a> {
    /// Identifier and offset (from the block's first token) of multimodal content, as vLLM 0.19 and later sends it.
    pub fn multimodal(&self) -> Option<(&'a str, i64)> {
        let ExtraKey::Content(bytes) = self else { return None };
        let mut reader = Reader::new(bytes);
        match (reader.read().ok()?, reader.read().ok()?, reader.read().ok()?) {
            (Value::Array(2), Value::Str(identifier), Value::Int(offset)) => {
                Some((str::from_utf8(identifier).ok()?, offset.bits.cast_signed()))
            }
            _ => None,
        }
    }

    /// SHA-256 of prompt embeddings.
    pub fn embeds(&self) -> Option<&'a [u8]> {
        let ExtraKey::Content(bytes) = self else { return None };
        match Reader::new(bytes).read().ok()? {
            Value::Bin(digest) => Some(digest),
            _ => None,
        }
    }
}

/// One copy of each block went away.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockRemoved<'a> {
    /// The blocks, children before parents.
    pub hashes: Vec<EngineHash>,
    /// Where they were.
    pub medium: Option<&'a str>,
    /// KV-cache group of a hybrid model.
    pub group: Option<u32>,
}

#[derive(Clone, Copy)]
enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    SpecKind,
    CacheSalt,
    Lookahead,
}

const STORED_SLOTS: [Field; 10] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::SpecKind,
];
const REMOVED_SLOTS: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];

impl Field {
    fn named(name: &[u8]) -> Option<Field> {
        Some(match name {
            b"block_hashes" => Field::Hashes,
            b"parent_block_hash" => Field::Parent,
            b"token_ids" => Field::Tokens,
            b"block_size" => Field::BlockSize,
            b"lora_id" => Field::LoraId,
            b"medium" => Field::Medium,
            b"lora_name" => Field::LoraName,
            b"extra_keys" => Field::ExtraKeys,
            b"group_idx" => Field::Group,
            b"kv_cache_spec_kind" => Field::SpecKind,
            b"cache_salt" => Field::CacheSalt,
            b"lookahead_token_ids" => Field::Lookahead,
            _ => return None,
        })
    }
}

impl<'a> BlockStored<'a> {
    pub(super) fn decode(event: &mut Reader<'a>, fields: Fields) -> Result<BlockStored<'a>, EventError> {
        let mut stored = BlockStored::default();
        let (mut hashes, mut tokens, mut block_size) = (false, false, false);
        each_field(event, fields, &STORED_SLOTS, |field, event| {
            match field {
                Field::Hashes => stored.hashes = read_hashes(event)?,
                Field::Parent => stored.parent = read_parent(event)?,
                Field::Tokens => (stored.tokens, stored.bigram_end) = read_tokens(event)?,
                Field::BlockSize => {
                    stored.block_size =
                        read_u32(event, "block_size")?.ok_or(EventError::Field("block_size"))?;
                }
                Field::LoraId => stored.lora_id = read_i64(event)?,
                Field::Medium => stored.medium = read_str(event, "medium")?,
                Field::LoraName => match event.read()? {
                    // SGLang 0.5.18 and 0.5.19 put a map with the salt where vLLM has the name.
                    Value::Map(pairs) => stored.cache_salt = read_salt_map(event, pairs)?,
                    other => stored.lora_name = as_str(other, "lora_name")?,
                },
                Field::ExtraKeys => stored.extra_keys = read_extra_keys(event)?,
                Field::Group => stored.group = read_u32(event, "group_idx")?,
                Field::SpecKind => stored.spec_kind = read_str(event, "kv_cache_spec_kind")?,
                Field::CacheSalt => stored.cache_salt = read_str(event, "cache_salt")?,
                Field::Lookahead => stored.looks_ahead = read_presence(event)?,
            }
            hashes |= matches!(field, Field::Hashes);
            tokens |= matches!(field, Field::Tokens);
            block_size |= matches!(field, Field::BlockSize);
            Ok(())
        })?;
        for (present, field) in [(hashes, "block_hashes"), (tokens, "token_ids"), (block_size, "block_size")]
        {
            if !present {
                return Err(EventError::Missing(field));
            }
        }
        Ok(stored)
    }
}

impl<'a> BlockRemoved<'a> {
    pub(super) fn decode(event: &mut Reader<'a>, fields: Fields) -> Result<BlockRemoved<'a>, EventError> {
        let mut removed = BlockRemoved::default();
        let mut hashes = false;
        each_field(event, fields, &REMOVED_SLOTS, |field, event| {
            match field {
                Field::Hashes => {
                    removed.hashes = read_hashes(event)?;
                    hashes = true;
                }
                Field::Medium => removed.medium = read_str(event, "medium")?,
                Field::Group => removed.group = read_u32(event, "group_idx")?,
                _ => event.skip()?,
            }
            Ok(())
        })?;
        if hashes { Ok(removed) } else { Err(EventError::Missing("block_hashes")) }
    }
}

/// Calls `set` at the value of every field that is known, and steps over the others.
fn each_field<'a>(
    event: &mut Reader<'a>,
    fields: Fields,
    slots: &[Field],
    mut set: impl FnMut(Field, &mut Reader<'a>) -> Result<(), EventError>,
) -> Result<(), EventError> {
    match fields {
        Fields::Slots(count) => {
            slots.iter().take(count as usize).try_for_each(|&slot| set(slot, event))?;
            (slots.len() as u32..count).try_for_each(|_| Ok(event.skip()?))
        }
        Fields::Pairs(count) => (0..count).try_for_each(|_| match event.read_key()?.and_then(Field::named) {
            Some(field) => set(field, event),
            None => Ok(event.skip()?),
        }),
    }
}

fn read_hashes(event: &mut Reader<'_>) -> Result<Vec<EngineHash>, EventError> {
    let len = array_len(event, "block_hashes")?;
    let mut hashes = sized(len, "block_hashes")?;
    for _ in 0..len {
        hashes.push(match event.wide_uint() {
            Some(hash) => EngineHash(hash),
            None => as_hash(event.read()?, "block_hashes")?,
        });
    }
    Ok(hashes)
}

fn read_parent(event: &mut Reader<'_>) -> Result<Option<EngineHash>, EventError> {
    match event.read()? {
        Value::Nil => Ok(None),
        value => as_hash(value, "parent_block_hash").map(Some),
    }
}

fn as_hash(value: Value<'_>, field: &'static str) -> Result<EngineHash, EventError> {
    match value {
        Value::Int(int) => Ok(EngineHash(int.bits)),
        Value::Bin(bytes) => match bytes.last_chunk() {
            Some(last) => Ok(EngineHash(u64::from_be_bytes(*last))),
            None => Err(EventError::Field(field)),
        },
        _ => Err(EventError::Field(field)),
    }
}

/// The tokens, and what follows the last of them if they come in pairs.
fn read_tokens(event: &mut Reader<'_>) -> Result<(Vec<u32>, Option<u32>), EventError> {
    const FIELD: &str = "token_ids";
    let len = array_len(event, FIELD)?;
    let mut tokens = sized(len, FIELD)?;
    let mut next = None;
    let mut left = len;
    loop {
        left -= event.small_uints(left, &mut tokens);
        if left == 0 {
            return Ok((tokens, next));
        }
        let (token, follower) = read_token(event)?;
        next = follower;
        tokens.push(token);
        left -= 1;
    }
}

/// A token, or a pair of tokens.
fn read_token(event: &mut Reader<'_>) -> Result<(u32, Option<u32>), EventError> {
    let token = |value| match value {
        Value::Int(token) => token.as_u32().ok_or(EventError::Field("token_ids")),
        _ => Err(EventError::Field("token_ids")),
    };
    match event.read()? {
        Value::Array(2) => Ok((token(event.read()?)?, Some(token(event.read()?)?))),
        value => Ok((token(value)?, None)),
    }
}

/// Whether a value is there and says anything.
fn read_presence(event: &mut Reader<'_>) -> Result<bool, EventError> {
    let mut head = *event;
    event.skip()?;
    Ok(!matches!(head.read()?, Value::Nil | Value::Array(0)))
}

fn read_extra_keys<'a>(event: &mut Reader<'a>) -> Result<Vec<(u32, ExtraKey<'a>)>, EventError> {
    const FIELD: &str = "extra_keys";
    let mut keys = Vec::new();
    let blocks = match event.read()? {
        Value::Nil => 0,
        Value::Array(blocks) => blocks,
        _ => return Err(EventError::Field(FIELD)),
    };
    for block in 0..blocks {
        let len = match event.read()? {
            Value::Nil => 0,
            Value::Array(len) => len,
            _ => return Err(EventError::Field(FIELD)),
        };
        for _ in 0..len {
            let value = event.take_value()?;
            keys.try_reserve(1).map_err(|_| EventError::Field(FIELD))?;
            keys.push((block, as_extra_key(value)));
        }
    }
    Ok(keys)
}

fn as_extra_key(value: Reader<'_>) -> ExtraKey<'_> {
    let mut head = value;
    match head.read() {
        Ok(Value::Str(text)) => str::from_utf8(text).map_or(ExtraKey::Content(value.bytes()), ExtraKey::Text),
        _ => ExtraKey::Content(value.bytes()),
    }
}

fn read_salt_map<'a>(event: &mut Reader<'a>, pairs: u32) -> Result<Option<&'a str>, EventError> {
    let mut salt = None;
    for _ in 0..pairs {
        match event.read_key()? {
            Some(b"cache_salt") => salt = read_str(event, "cache_salt")?,
            _ => event.skip()?,
        }
    }
    Ok(salt)
}

fn read_str<'a>(event: &mut Reader<'a>, field: &'static str) -> Result<Option<&'a str>, EventError> {
    as_str(event.read()?, field)
}

fn as_str<'a>(value: Value<'a>, field: &'static str) -> Result<Option<&'a str>, EventError> {
    match value {
        Value::Nil => Ok(None),
        Value::Str(text) => str::from_utf8(text).map(Some).map_err(|_| EventError::Field(field)),
        _ => Err(EventError::Field(field)),
    }
}

fn read_u32(event: &mut Reader<'_>, field: &'static str) -> Result<Option<u32>, EventError> {
    match event.read()? {
        Value::Nil => Ok(None),
        Value::Int(int) => int.as_u32().map(Some).ok_or(EventError::Field(field)),
        _ => Err(EventError::Field(field)),
    }
}

fn read_i64(event: &mut Reader<'_>) -> Result<Option<i64>, EventError> {
    match event.read()? {
        Value::Nil => Ok(None),
        Value::Int(int) => Ok(Some(int.bits.cast_signed())),
        _ => Err(EventError::Field("lora_id")),
    }
}

fn array_len(event: &mut Reader<'_>, field: &'static str) -> Result<u32, EventError> {
    match event.read()? {
        Value::Array(len) => Ok(len),
        _ => Err(EventError::Field(field)),
    }
}

/// Room for `len` values; `len` is at most the bytes of the event.
fn sized<T>(len: u32, field: &'static str) -> Result<Vec<T>, EventError> {
    let mut values = Vec::new();
    values.try_reserve_exact(len as usize).map_err(|_| EventError::Field(field))?;
    Ok(values)
}
