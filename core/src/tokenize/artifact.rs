//! The container of a compiled tokenizer, format version 1.
//!
//! What it is for: parsing tokenizer.json takes seconds and up to 230 MiB; this file is read where it lies. A native
//! compiler writes it once, host-shim delivers it by SHA-256, every VM keeps its bytes and looks things up in them.
//!
//! ```text
//! offset  0  magic               8 bytes  "ICART\0\r\n"
//!         8  format version      u32      1
//!        12  number of sections  u32
//!        16  checksum            u64      XXH3-64, seed = format version, of everything from offset 24
//!        24  directory           one {section u32, offset u32, length u32} per section, sections ascending
//!         …  sections            each at a multiple of 8, zeros between
//! ```
//! All integers are little-endian and are read with `from_le_bytes`, so nothing rests on the alignment of the buffer.
//!
//! | section | content |
//! | --- | --- |
//! | `Source` | SHA-256 of tokenizer.json, tokenizer_config.json and chat_template.jinja; zeros for a file that is absent |
//! | `Settings` | u32 pattern of the pre-tokenizer, u32 normalizer (see [`super::Settings`]) |
//! | `ByteSymbols` | 256 u32: the token of each single byte |
//! | `TokenOffsets`, `TokenBytes` | n + 1 u32, and the bytes of token i at `offsets[i]..offsets[i + 1]` |
//! | `Pairs` | hash table of merges, see [`super::pairs`] |
//! | `Words` | hash table of whole words, see [`super::words`] |
//! | `ClassIndex`, `ClassBlocks` | classes of code points, see [`super::classes`] |
//! | `Decompositions`, `Compositions`, `CombiningClasses` | normalization, see [`super::nfc`] |
//! | `AddedTokens` | see [`super::added`] |
//! | `ChatTemplate` | UTF-8; absent if the model has none |
//! | `SpecialTokens` | pairs of length-prefixed strings: `bos_token`, … and its text |
//!
//! Invariants that [`open`] checks: magic, version, checksum, every section known, once, in order and inside the file.
//! Invariants of a section's content are checked by the type that reads it. All loops over content are bounded by
//! construction, so that a file that lies costs wrong tokens at worst, never a panic or a hang. Ids have 20 bits.
//!
//! Cost: one XXH3 pass over the file. What it is not: compressed, or a means to get tokenizer.json back.

use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Version of the format that this build reads and writes.
pub const VERSION: u32 = 1;

/// Token ids are below this.
pub const MAX_TOKENS: usize = (1 << 20) - 1;

const MAGIC: [u8; 8] = *b"ICART\0\r\n";
const HEADER: usize = 24;
const ENTRY: usize = 12;

/// What a part of the file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // The table in the module's documentation.
pub enum Section {
    Source = 1,
    Settings = 2,
    ByteSymbols = 3,
    TokenOffsets = 4,
    TokenBytes = 5,
    Pairs = 6,
    Words = 7,
    ClassIndex = 8,
    ClassBlocks = 9,
    Decompositions = 10,
    Compositions = 11,
    CombiningClasses = 12,
    AddedTokens = 13,
    ChatTemplate = 14,
    SpecialTokens = 15,
}

/// Why bytes are not a usable artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    /// The magic is missing or the file is cut off before its directory.
    #[error("not a tokenizer artifact")]
    NotAnArtifact,
    /// Written by another release.
    #[error("tokenizer artifact has format version {0}, this build reads version {VERSION}")]
    Version(u32),
    /// Damaged on its way.
    #[error("tokenizer artifact has a wrong checksum")]
    Checksum,
    /// The directory names an unknown section, or one twice, or one outside the file.
    #[error("tokenizer artifact has a bad directory at entry {0}")]
    Directory(u32),
    /// A section is absent or its content breaks an invariant.
    #[error("tokenizer artifact, section {section:?}: {problem}")]
    Section {
        /// Which one.
        section: Section,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// No memory for the small part that is kept outside of the file.
    #[error("out of memory")]
    OutOfMemory,
}

/// Where each section lies in the file.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    places: [Option<Range<usize>>; 16],
}

impl Directory {
    /// The bytes of a section; an absent one is empty.
    pub fn section<'a>(&self, file: &'a [u8], section: Section) -> &'a [u8] {
        let place = self.places.get(section as usize).cloned().flatten().unwrap_or_default();
        file.get(place).unwrap_or_default()
    }

    /// A section as an array of fixed-size records.
    ///
    /// # Errors
    /// The length is not a multiple of the record's.
    pub fn records<'a, const N: usize>(
        &self,
        file: &'a [u8],
        section: Section,
    ) -> Result<&'a [[u8; N]], ArtifactError> {
        match self.section(file, section).as_chunks::<N>() {
            (records, []) => Ok(records),
            _ => Err(ArtifactError::Section { section, problem: "length is not a multiple of the record" }),
        }
    }
}

/// Checks the container and finds its sections.
///
/// # Errors
/// See [`ArtifactError`].
pub fn open(file: &[u8]) -> Result<Directory, ArtifactError> {
    let (magic, rest) = file.split_first_chunk::<8>().ok_or(ArtifactError::NotAnArtifact)?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(ArtifactError::NotAnArtifact)?;
    let (count, rest) = rest.split_first_chunk::<4>().ok_or(ArtifactError::NotAnArtifact)?;
    let (checksum, body) = rest.split_first_chunk::<8>().ok_or(ArtifactError::NotAnArtifact)?;
    if *magic != MAGIC {
        return Err(ArtifactError::NotAnArtifact);
    }
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(ArtifactError::Version(version));
    }
    if xxh3_64_with_seed(body, u64::from(version)) != u64::from_le_bytes(*checksum) {
        return Err(ArtifactError::Checksum);
    }
    let mut directory = Directory::default();
    let mut lowest = 1;
    let (entries, _) = body.as_chunks::<ENTRY>();
    for index in 0..u32::from_le_bytes(*count) {
        let bad = || ArtifactError::Directory(index);
        let entry = entries.get(index as usize).ok_or_else(bad)?;
        let [id, offset, length] = [0, 4, 8].map(|at| read_u32(entry, at) as usize);
        let end = offset.checked_add(length).filter(|end| *end <= file.len()).ok_or_else(bad)?;
        if id < lowest {
            return Err(bad());
        }
        *directory.places.get_mut(id).ok_or_else(bad)? = Some(offset..end);
        lowest = id + 1;
    }
    Ok(directory)
}

/// Writes a file; the inverse of [`open`]. `sections` ascend, and their total stays below 4 GiB.
pub fn seal(sections: &[(Section, Vec<u8>)]) -> Vec<u8> {
    let mut directory = Vec::new();
    let mut content = Vec::new();
    let start = HEADER + ENTRY * sections.len();
    for (section, bytes) in sections {
        while !(start + content.len()).is_multiple_of(8) {
            content.push(0);
        }
        for field in [*section as usize, start + content.len(), bytes.len()] {
            directory.extend_from_slice(&(field as u32).to_le_bytes());
        }
        content.extend_from_slice(bytes);
    }
    let body = [directory, content].concat();
    let checksum = xxh3_64_with_seed(&body, u64::from(VERSION));
    let count = sections.len() as u32;
    [&MAGIC[..], &VERSION.to_le_bytes(), &count.to_le_bytes(), &checksum.to_le_bytes(), &body].concat()
}

/// Little-endian u32 at `at`; 0 beyond the end.
pub(super) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

/// Splits off a string of bytes behind its u32 length. `None` if `bytes` ends before the string does.
pub(super) fn take_string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (string, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *bytes = rest;
    Some(string)
}

/// Appends what [`take_string`] splits off.
pub(super) fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    out.extend_from_slice(&(string.len() as u32).to_le_bytes());
    out.extend_from_slice(string);
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn example() -> Vec<u8> {
        seal(&[
            (Section::Settings, vec![1, 2, 3]),
            (Section::Words, vec![]),
            (Section::ChatTemplate, vec![4; 9]),
        ])
    }

    #[test]
    fn sections_come_back() {
        let file = example();
        let directory = open(&file).unwrap();
        assert_eq!(directory.section(&file, Section::Settings), [1, 2, 3]);
        assert!(directory.section(&file, Section::Words).is_empty());
        assert_eq!(directory.section(&file, Section::ChatTemplate), [4; 9]);
        assert!(directory.section(&file, Section::Pairs).is_empty());
        assert!(directory.records::<4>(&file, Section::ChatTemplate).is_err());
        assert_eq!(directory.records::<3>(&file, Section::ChatTemplate).unwrap().len(), 3);
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_an_error() {
        let file = example();
        for cut in 0..file.len() {
            assert!(open(&file[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0x41;
            assert!(open(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_directory_that_lies_is_an_error() {
        for (at, value) in [(24, 0u32), (24, 16), (24, 7), (28, u32::MAX), (32, 1 << 20)] {
            let mut file = example();
            file[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let checksum = xxh3_64_with_seed(&file[HEADER..], u64::from(VERSION));
            file[16..24].copy_from_slice(&checksum.to_le_bytes());
            let lie = open(&file).map(|_| ()).unwrap_err();
            assert!(matches!(lie, ArtifactError::Directory(_)), "{at} {value}: {lie:?}");
        }
    }
}
