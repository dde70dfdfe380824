//! Vocabulary and merges of a byte-level BPE: from texts to ids, pruned to the merges that are ever used.

use super::CompileError;
use super::source::{Source, unsupported};
use std::collections::HashMap;

/// Ready for the artifact.
pub(super) struct Bpe {
    /// The token of each byte.
    pub(super) bytes: [u32; 256],
    /// (left, right, merged) in order of rank, which is the order of `merged`.
    pub(super) merges: Vec<(u32, u32, u32)>,
    /// Bytes of each token, by id; `None` for an id that is not the text of bytes.
    tokens: Vec<Option<Vec<u8>>>,
    /// Whether the bytes of a token, alone, are encoded as that token.
    is_word: Vec<bool>,
}

/// (left, right) to (rank, merged).
type Ranks = HashMap<(u32, u32), (usize, u32)>;

impl Bpe {
    pub(super) fn new(source: &Source) -> Result<Bpe, CompileError> {
        let tokens = tokens(source);
        let bytes = byte_symbols(&tokens)?;
        let ranks = ranks(source)?;
        let mut merges = Vec::new();
        let mut is_word = vec![false; tokens.len()];
        for (id, token) in tokens.iter().enumerate() {
            let Some(token) = token else { continue };
            let (symbols, last) = encode(&bytes, &ranks, token);
            if symbols != [id as u32] {
                continue;
            }
            is_word[id] = true;
            // The last merge of a token's own encoding is the only one that ever makes it: every other pair of parts
            // would have been merged across before. The rest of the merges are never used.
            if let Some((rank, left, right)) = last {
                merges.push((rank, left, right, id as u32));
            }
        }
        merges.sort_unstable();
        if let Some(pair) = merges.windows(2).find(|pair| pair[0].3 >= pair[1].3) {
            return Err(unsupported(
                format!("model.merges[{}]", pair[1].0),
                "ids do not ascend with the rank",
            ));
        }
        let merges = merges.into_iter().map(|(_, left, right, merged)| (left, right, merged)).collect();
        Ok(Bpe { bytes, merges, tokens, is_word })
    }

    /// Sections `TokenOffsets` and `TokenBytes`.
    pub(super) fn token_bytes(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut offsets, mut bytes) = (vec![0; 4], Vec::new());
        for token in &self.tokens {
            bytes.extend_from_slice(token.as_deref().unwrap_or_default());
            offsets.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        }
        (offsets, bytes)
    }

    /// Tokens that are found by their bytes: frequent ones, which have low ids, first.
    pub(super) fn words(&self) -> Vec<(&[u8], u32)> {
        let tokens = self.tokens.iter().zip(&self.is_word).zip(0..);
        tokens
            .filter_map(|((token, is_word), id)| Some((token.as_deref().filter(|_| *is_word)?, id)))
            .collect()
    }
}

fn tokens(source: &Source) -> Vec<Option<Vec<u8>>> {
    let count = source.vocab.values().max().map_or(0, |id| *id as usize + 1).min(1 << 20);
    let mut tokens = vec![None; count];
    let bytes: HashMap<char, u8> = byte_characters().zip(0..=255).collect();
    for (text, id) in &source.vocab {
        // A text with other characters is made of no bytes, so no merge leads to it.
        let token: Option<Vec<u8>> = text.chars().map(|character| bytes.get(&character).copied()).collect();
        if let Some(place) = tokens.get_mut(*id as usize) {
            *place = token.filter(|token| !token.is_empty());
        }
    }
    tokens
}

fn byte_symbols(tokens: &[Option<Vec<u8>>]) -> Result<[u32; 256], CompileError> {
    let mut symbols = [None; 256];
    for (token, id) in tokens.iter().zip(0..) {
        if let Some([byte]) = token.as_deref() {
            symbols[usize::from(*byte)] = Some(id);
        }
    }
    // Without its token, the reference drops a byte.
    match symbols.iter().position(Option::is_none) {
        Some(byte) => Err(unsupported("model.vocab", format!("no token for byte {byte:#04x}"))),
        None => Ok(symbols.map(Option::unwrap_or_default)),
    }
}

fn ranks(source: &Source) -> Result<Ranks, CompileError> {
    let mut ranks = Ranks::with_capacity(source.merges.len());
    for (rank, (left, right)) in source.merges.iter().enumerate() {
        let id = |text: &str| {
            let unknown =
                || unsupported(format!("model.merges[{rank}]"), format!("{text:?} is not in the vocabulary"));
            source.vocab.get(text).copied().ok_or_else(unknown)
        };
        ranks.insert((id(left)?, id(right)?), (rank, id(&format!("{left}{right}"))?));
    }
    Ok(ranks)
}

/// The tokens of `word` and the last merge (rank, left, right) by the definition of BPE.
fn encode(bytes: &[u32; 256], ranks: &Ranks, word: &[u8]) -> (Vec<u32>, Option<(usize, u32, u32)>) {
    let mut symbols: Vec<u32> = word.iter().map(|byte| bytes[usize::from(*byte)]).collect();
    let mut last = None;
    loop {
        let merge = |pair: &[u32]| ranks.get(&(pair[0], pair[1])).copied();
        let candidates = symbols.windows(2).enumerate().filter_map(|(at, pair)| Some((merge(pair)?, at)));
        let Some(((rank, merged), at)) = candidates.min_by_key(|((rank, _), at)| (*rank, *at)) else {
            return (symbols, last);
        };
        last = Some((rank, symbols[at], symbols[at + 1]));
        symbols.splice(at..at + 2, [merged]);
    }
}

/// The characters that stand for the bytes 0 to 255 in a byte-level vocabulary (GPT-2's `bytes_to_unicode`).
fn byte_characters() -> impl Iterator<Item = char> {
    let mut next = 0x100;
    (0u8..=255).map(move |byte| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or_default()
        }
    })
}
