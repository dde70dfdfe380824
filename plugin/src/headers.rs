//! A header map as the host serializes it, read in place.
//!
//! Layout (proxy-wasm ABI 0.2.1, all `u32` little endian): count, then (name size, value size) per pair, then per pair
//! name, NUL, value, NUL. Names arrive in lower case. Values are bytes: clients may send any. Whatever does not fit the
//! layout ends the iteration; nothing panics.

/// A serialized header map.
#[derive(Debug, Default)]
pub struct Headers {
    bytes: Vec<u8>,
}

impl Headers {
    /// Takes the bytes that the host returned.
    pub fn new(bytes: Vec<u8>) -> Headers {
        Headers { bytes }
    }

    /// The first value of `name` (lower case).
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(key, _)| *key == name.as_bytes()).map(|(_, value)| value)
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let count = read_u32(&self.bytes, 0).unwrap_or(0);
        let first = count.checked_mul(8).and_then(|sizes| sizes.checked_add(4));
        Pairs { bytes: &self.bytes, left: count, sizes: 4, data: first.unwrap_or(usize::MAX) }
    }
}

struct Pairs<'a> {
    bytes: &'a [u8],
    left: usize,
    sizes: usize,
    data: usize,
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let name_size = read_u32(self.bytes, self.sizes)?;
        let value_size = read_u32(self.bytes, self.sizes.checked_add(4)?)?;
        self.sizes = self.sizes.checked_add(8)?;
        let name = self.take(name_size)?;
        let value = self.take(value_size)?;
        Some((name, value))
    }
}

impl<'a> Pairs<'a> {
    /// `size` bytes and the NUL after them.
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let end = self.data.checked_add(size)?;
        let bytes = self.bytes.get(self.data..end)?;
        self.data = end.checked_add(1)?;
        Some(bytes)
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    usize::try_from(u32::from_le_bytes(four.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serialized(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut out = (pairs.len() as u32).to_le_bytes().to_vec();
        for (name, value) in pairs {
            out.extend((name.len() as u32).to_le_bytes());
            out.extend((value.len() as u32).to_le_bytes());
        }
        for (name, value) in pairs {
            out.extend_from_slice(name);
            out.push(0);
            out.extend_from_slice(value);
            out.push(0);
        }
        out
    }

    #[test]
    fn reads_pairs_with_any_bytes() {
        let headers =
            Headers::new(serialized(&[(b":path", b"/v1"), (b"x", b"\xff\xfe"), (b"x", b"2"), (b"e", b"")]));
        assert_eq!(headers.get(":path"), Some(&b"/v1"[..]));
        assert_eq!(headers.get("x"), Some(&b"\xff\xfe"[..]));
        assert_eq!(headers.get("e"), Some(&b""[..]));
        assert_eq!(headers.get("none"), None);
        assert_eq!(headers.iter().count(), 4);
    }

    #[test]
    fn cut_or_lying_maps_end_early() {
        let whole = serialized(&[(b"a", b"1"), (b"b", b"2")]);
        for cut in 0..whole.len() {
            assert!(Headers::new(whole[..cut].to_vec()).iter().count() <= 2);
        }
        for lie in [u32::MAX, u32::MAX / 8, 1_000] {
            let mut bytes = whole.clone();
            bytes[..4].copy_from_slice(&lie.to_le_bytes());
            assert!(Headers::new(bytes.clone()).iter().count() <= 2);
            bytes[..4].copy_from_slice(&2u32.to_le_bytes());
            bytes[4..8].copy_from_slice(&lie.to_le_bytes());
            assert_eq!(Headers::new(bytes).iter().count(), 0);
        }
    }
}
