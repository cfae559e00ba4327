//! The one hash of manifests: xxh3 with 128 bits.

use std::{fmt, io};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The hash algorithm's name in manifests, and the suffix of keys.
pub const ALGORITHM: &str = "xxh128";

/// What is taken out of a stream at once, in bytes.
const PIECE_LEN_BYTES: usize = 256 << 10;

/// Hash of a file's or a chunk's content, or of a manifest's bytes: xxh3 with 128 bits, big-endian, as its text is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(pub [u8; 16]);

impl ContentHash {
    /// Of content that is in memory.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        ContentHash(xxh3_128(content).to_be_bytes())
    }

    /// Of all that comes out of a stream.
    ///
    /// # Errors
    /// Of the stream.
    pub fn of_stream(mut stream: impl io::Read) -> io::Result<Self> {
        let (mut hasher, mut piece) = (Hasher::default(), vec![0; PIECE_LEN_BYTES]);
        loop {
            match stream.read(&mut piece) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(len) => hasher.update(&piece[..len]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// From 32 lower-case hexadecimal digits. Objects have the text in their keys, and keys tell case, so that no other text is
    /// the same hash.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let text: &[u8; 32] = text.try_into().ok()?;
        let mut hash = [0; 16];
        for (byte, pair) in hash.iter_mut().zip(text.as_chunks::<2>().0) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(ContentHash(hash))
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hashes content as it comes.
#[derive(Default)]
pub(crate) struct Hasher(Xxh3);

impl Hasher {
    pub(crate) fn update(&mut self, content: &[u8]) {
        self.0.update(content);
    }

    pub(crate) fn finish(&self) -> ContentHash {
        ContentHash(self.0.digest128().to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of the empty file, as the official package writes it.
    const EMPTY: &str = "99aa06d3014798d86001c324468d497f";

    #[test]
    fn the_empty_file_has_the_known_hash() {
        assert_eq!(ContentHash::of(b"").to_string(), EMPTY);
        assert_eq!(ContentHash::parse(EMPTY.as_bytes()), Some(ContentHash::of(b"")));
        assert_eq!(Hasher::default().finish(), ContentHash::of(b""));
    }

    #[test]
    fn zeros_in_front_stay() {
        let hash = ContentHash([0; 16]);
        assert_eq!(hash.to_string(), "0".repeat(32));
        assert_eq!(ContentHash::parse(hash.to_string().as_bytes()), Some(hash));
    }

    #[test]
    fn other_texts_are_none() {
        for text in ["", "99aa06d3014798d86001c324468d497", "99aa06d3014798d86001c324468d497f0", &EMPTY.to_uppercase()]
        {
            assert_eq!(ContentHash::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(ContentHash::parse("99aa06d3014798d86001c324468d497g".as_bytes()), None);
        assert_eq!(ContentHash::parse("+9aa06d3014798d86001c324468d497f".as_bytes()), None);
    }

    #[test]
    fn in_pieces_it_is_the_same() {
        let content: Vec<u8> = (0..10_000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let mut hasher = Hasher::default();
        content.chunks(977).for_each(|piece| hasher.update(piece));
        assert_eq!(hasher.finish(), ContentHash::of(&content));
    }
}
