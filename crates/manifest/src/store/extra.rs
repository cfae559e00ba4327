//! What a node has beside the columns of the segment. `docs/formats/manifest-index.md` has the table.

use crate::format::ContentHash;

const TEXT: u8 = 1;
const MTIME: u8 = 2;
const CHUNKS: u8 = 4;
const TARGET: u8 = 8;

/// What only some nodes have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Extra<'a> {
    /// The path in the manifest as WTF-8, of an entry that the host's bytes of it do not give back.
    pub text: Option<&'a [u8]>,
    /// The time in microseconds since 1970, where it is no number of nanoseconds.
    pub mtime_micros: Option<i64>,
    /// What the content is made of, where that is not one hash.
    pub content: Content<'a>,
}

/// What a node is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Content<'a> {
    /// Of the object with the node's hash, or of nothing.
    #[default]
    Plain,
    /// Of chunks: their hashes, 16 bytes each.
    Chunks(&'a [[u8; 16]]),
    /// It is a link to this target, as WTF-8.
    Target(&'a [u8]),
}

impl<'a> Extra<'a> {
    /// Puts its bytes into `out`: none for what has nothing.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        if *self == Extra::default() {
            return;
        }
        let mut flags = 0;
        out.push(0);
        if let Some(text) = self.text {
            flags |= TEXT;
            // Twice the longest path at most: `EntryPath` has seen to that.
            out.extend((text.len() as u16).to_le_bytes());
            out.extend(text);
        }
        if let Some(micros) = self.mtime_micros {
            flags |= MTIME;
            out.extend(micros.to_le_bytes());
        }
        match self.content {
            Content::Plain => {}
            Content::Chunks(hashes) => {
                flags |= CHUNKS;
                out.extend(hashes.as_flattened());
            }
            Content::Target(target) => {
                flags |= TARGET;
                out.extend(target);
            }
        }
        out[0] = flags;
    }

    /// `None` for bytes that are not of this kind.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let Some((&flags, mut rest)) = bytes.split_first() else { return Some(Extra::default()) };
        let mut take = |len: usize| {
            let (taken, left) = rest.split_at_checked(len)?;
            rest = left;
            Some(taken)
        };
        let mut extra = Extra::default();
        if flags & TEXT != 0 {
            let len = u16::from_le_bytes(*take(2)?.first_chunk()?);
            extra.text = Some(take(len.into())?);
        }
        if flags & MTIME != 0 {
            extra.mtime_micros = Some(i64::from_le_bytes(*take(8)?.first_chunk()?));
        }
        extra.content = match flags & !(TEXT | MTIME) {
            0 if rest.is_empty() => Content::Plain,
            TARGET => Content::Target(rest),
            CHUNKS => match rest.as_chunks() {
                (hashes, []) => Content::Chunks(hashes),
                _ => return None,
            },
            _ => return None,
        };
        Some(extra)
    }
}

/// The bytes of hashes.
pub(super) fn raw(hashes: &[ContentHash]) -> Vec<[u8; 16]> {
    hashes.iter().map(|hash| hash.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_nothing_takes_nothing() {
        let mut bytes = vec![1];
        Extra::default().encode(&mut bytes);
        assert!(bytes.is_empty());
        assert_eq!(Extra::decode(&[]), Some(Extra::default()));
    }

    #[test]
    fn the_examples_of_the_page_are_so() {
        let mut bytes = Vec::new();
        Extra { content: Content::Target(b"../a"), ..Extra::default() }.encode(&mut bytes);
        assert_eq!(bytes, b"\x08../a");
        let text = Some(&b"\xed\xa0\x80"[..]);
        Extra { text, mtime_micros: Some(-2), content: Content::Plain }.encode(&mut bytes);
        assert_eq!(bytes, b"\x03\x03\x00\xed\xa0\x80\xfe\xff\xff\xff\xff\xff\xff\xff");
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [&b"\0x"[..], b"\x01", b"\x01\x02\0a", b"\x02\0\0\0", b"\x04abc", b"\x0c", b"\x10"] {
            assert_eq!(Extra::decode(bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            text in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..50)),
            mtime_micros in any::<Option<i64>>(),
            hashes in proptest::collection::vec(any::<[u8; 16]>(), 0..5),
            target in proptest::collection::vec(any::<u8>(), 0..50),
            kind in 0..3,
        ) {
            let content = match kind {
                0 => Content::Plain,
                1 => Content::Chunks(&hashes),
                _ => Content::Target(&target),
            };
            let extra = Extra { text: text.as_deref(), mtime_micros, content };
            let mut bytes = Vec::new();
            extra.encode(&mut bytes);
            prop_assert_eq!(Extra::decode(&bytes), Some(extra));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(extra) = Extra::decode(&bytes) {
                let mut again = Vec::new();
                extra.encode(&mut again);
                // A set of flags alone says nothing, and takes a byte.
                prop_assert!(again == bytes || extra == Extra::default());
            }
        }
    }
}
