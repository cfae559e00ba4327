//! What a segment says of the manifest that it was made of. `docs/formats/manifest-index.md` has the table.

use adit_core::error::{ErrorKind, FsError, Result};
use adit_index::Segment;

use crate::format::{ContentHash, Dialect, Format, Header, Kind, PathStyle, Totals};

const MAGIC: [u8; 8] = *b"ADITMFST";
/// Changes whenever the same manifest makes another segment.
const VERSION: u8 = 3;
const LEN: usize = 84;

/// The manifest behind a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// What holds for all of it. Of a whole tree, always.
    pub header: Header,
    /// xxh128 of its bytes.
    pub hash: ContentHash,
    /// Their number.
    pub len_bytes: u64,
    /// What it has.
    pub totals: Totals,
    /// The latest time of all files, in nanoseconds since 1970: what directories show, for which a manifest has none.
    pub newest_mtime_ns: i64,
    /// The length of its longest file.
    pub longest_bytes: u64,
    /// Whether the path of some file has no bytes on a host, so that it is refused when it is opened.
    pub has_unopenable: bool,
    /// Whether its bytes are not the canonical form of what it says, of a version that is written here. Of one that lists more directories
    /// than there was memory for while the segment was built it is not known, and taken for canonical.
    pub is_recoded: bool,
}

impl Identity {
    /// The manifest that `segment` was made of.
    ///
    /// # Errors
    /// `NotSupported` if the segment is of something else, or of another version: it is to be built again.
    pub fn of(segment: &Segment) -> Result<Identity> {
        Identity::decode(segment.identity()).ok_or_else(|| {
            FsError::new(ErrorKind::NotSupported)
                .on("open index", segment.file_path().display())
                .because("it is not of a manifest, or of another version of adit; build it again")
        })
    }

    pub(super) fn encode(&self) -> [u8; LEN] {
        let format = match self.header.format {
            Format::V2023 => 0,
            Format::V2025(Dialect::L) => 1,
            Format::V2025(Dialect::G) => 2,
        };
        let Totals { files, directories, symlinks, size_bytes, .. } = self.totals;
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        let style = u8::from(self.header.style == PathStyle::Absolute);
        let flags = u8::from(self.has_unopenable) | u8::from(self.is_recoded) << 1;
        bytes[8..12].copy_from_slice(&[VERSION, format, style, flags]);
        bytes[12..28].copy_from_slice(&self.hash.0);
        let newest = self.newest_mtime_ns.cast_unsigned();
        let numbers = [self.len_bytes, files, directories, symlinks, size_bytes, newest, self.longest_bytes];
        for (place, number) in bytes[28..LEN].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// `None` for the identity of something else, or of another version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Identity> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let format = match bytes[9] {
            0 => Format::V2023,
            1 => Format::V2025(Dialect::L),
            2 => Format::V2025(Dialect::G),
            _ => return None,
        };
        let style = if bytes[10] == 0 { PathStyle::Relative } else { PathStyle::Absolute };
        let number = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|b| u64::from_le_bytes(*b));
        let identity = Identity {
            header: Header { format, style, kind: Kind::Snapshot },
            hash: ContentHash(*bytes.get(12..)?.first_chunk()?),
            len_bytes: number(28)?,
            totals: Totals {
                files: number(36)?,
                directories: number(44)?,
                symlinks: number(52)?,
                size_bytes: number(60)?,
                ..Totals::default()
            },
            newest_mtime_ns: number(68)?.cast_signed(),
            longest_bytes: number(76)?,
            has_unopenable: bytes[11] & 1 != 0,
            is_recoded: bytes[11] & 2 != 0,
        };
        // Whatever is not said so is not ours.
        (identity.encode() == *bytes).then_some(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_reads_as_it_was_written_and_nothing_else_is_one() {
        for (format, style) in [
            (Format::V2023, PathStyle::Relative),
            (Format::V2025(Dialect::L), PathStyle::Relative),
            (Format::V2025(Dialect::G), PathStyle::Absolute),
        ] {
            let identity = Identity {
                header: Header { format, style, kind: Kind::Snapshot },
                hash: ContentHash::of(b"x"),
                len_bytes: 1,
                totals: Totals { files: 2, directories: 3, symlinks: 4, size_bytes: 5, ..Totals::default() },
                newest_mtime_ns: -6,
                longest_bytes: 7,
                has_unopenable: style == PathStyle::Absolute,
                is_recoded: format == Format::V2023,
            };
            let bytes = identity.encode();
            assert_eq!(Identity::decode(&bytes), Some(identity));
            for len in 0..LEN {
                assert_eq!(Identity::decode(&bytes[..len]), None);
            }
            for at in 0..12 {
                let mut bytes = bytes;
                bytes[at] ^= 0x80;
                assert_eq!(Identity::decode(&bytes), None, "{at}");
            }
        }
    }
}
