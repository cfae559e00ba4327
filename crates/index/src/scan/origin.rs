//! What an index says of where it comes from: the identity of its segment. `docs/formats/index.md` has the table.

use crate::layout::IDENTITY_LEN_MAX_BYTES;

const MAGIC: [u8; 8] = *b"ADITSCAN";
const VERSION: u8 = 1;
/// Before the texts.
const FIXED_LEN: usize = 48;
const HASHED: u8 = 1;
const ONE_FILE_SYSTEM: u8 = 2;
const NO_TABLES: u8 = 4;
const ALL_FLAGS: u8 = HASHED | ONE_FILE_SYSTEM | NO_TABLES;

/// What was indexed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceKind {
    /// A folder of a machine.
    Folder,
    /// A vault.
    Vault,
    /// A volume, or a snapshot in it.
    Volume,
    /// A manifest.
    Manifest,
}

impl SourceKind {
    const ALL: [SourceKind; 4] = [SourceKind::Folder, SourceKind::Vault, SourceKind::Volume, SourceKind::Manifest];

    /// As `adit mounts` prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            SourceKind::Folder => "dir",
            SourceKind::Vault => "vault",
            SourceKind::Volume => "volume",
            SourceKind::Manifest => "manifest",
        }
    }
}

/// Where an index comes from, and how it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// What was indexed.
    pub kind: SourceKind,
    /// Whether files were hashed by reading them.
    pub hashed: bool,
    /// Whether other filesystems were left out.
    pub one_file_system: bool,
    /// Whether it was made without tables.
    pub no_tables: bool,
    /// When the making was begun, in nanoseconds since 1970.
    pub begun_ns: i64,
    /// How much could not be read, but for contents: what is missing in the index may be there.
    pub unreadable: u32,
    /// Of how many files the content could not be read: they are in the index, without a hash.
    pub unread_contents: u32,
    /// What tells that the source is as it was, where something does: the hash of a manifest, a snapshot. Zeros otherwise.
    pub state: [u8; 16],
    /// Where the source is: an absolute path, or a URL. Empty if there was no room for it.
    pub source: Vec<u8>,
    /// The directory in it that is the root, from its own root with a slash in front.
    pub path: Vec<u8>,
    /// The snapshot of it; empty for what is live.
    pub snapshot: Vec<u8>,
}

impl Origin {
    /// The bytes. Texts that there is no room for are left out, the longest first.
    pub fn encode(&self) -> Vec<u8> {
        let mut texts = [&self.source[..], &self.path, &self.snapshot];
        while FIXED_LEN + texts.iter().map(|text| 2 + text.len()).sum::<usize>() > IDENTITY_LEN_MAX_BYTES {
            let longest = texts.iter_mut().max_by_key(|text| text.len()).expect("there are three");
            *longest = b"";
        }
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags =
            flag(self.hashed, HASHED) | flag(self.one_file_system, ONE_FILE_SYSTEM) | flag(self.no_tables, NO_TABLES);
        let mut out = MAGIC.to_vec();
        out.extend([VERSION, self.kind as u8, flags, 0]);
        out.extend(self.unreadable.to_le_bytes());
        out.extend(self.begun_ns.to_le_bytes());
        out.extend(self.state);
        out.extend(self.unread_contents.to_le_bytes());
        out.extend([0; 4]);
        for text in texts {
            out.extend((text.len() as u16).to_le_bytes());
            out.extend(text);
        }
        out
    }

    /// `None` for the identity of something else, or of another version.
    pub fn decode(bytes: &[u8]) -> Option<Origin> {
        let (fixed, mut rest) = bytes.split_first_chunk::<FIXED_LEN>()?;
        let mut text = || {
            let (len, after) = rest.split_first_chunk()?;
            let (text, after) = after.split_at_checked(u16::from_le_bytes(*len).into())?;
            rest = after;
            Some(text.to_vec())
        };
        let (source, path, snapshot) = (text()?, text()?, text()?);
        let flags = fixed[10];
        let origin = Origin {
            kind: *SourceKind::ALL.get(usize::from(fixed[9]))?,
            hashed: flags & HASHED != 0,
            one_file_system: flags & ONE_FILE_SYSTEM != 0,
            no_tables: flags & NO_TABLES != 0,
            unreadable: u32::from_le_bytes(*fixed[12..].first_chunk()?),
            begun_ns: i64::from_le_bytes(*fixed[16..].first_chunk()?),
            state: *fixed[24..].first_chunk()?,
            unread_contents: u32::from_le_bytes(*fixed[40..].first_chunk()?),
            source,
            path,
            snapshot,
        };
        // Whatever is not said so is not ours.
        (flags & !ALL_FLAGS == 0 && origin.encode() == bytes).then_some(origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin {
            kind: SourceKind::Volume,
            hashed: true,
            one_file_system: false,
            no_tables: true,
            begun_ns: -5,
            unreadable: 7,
            unread_contents: 8,
            state: [3; 16],
            source: b"/srv/\xff".to_vec(),
            path: b"/".to_vec(),
            snapshot: b"monday".to_vec(),
        }
    }

    #[test]
    fn an_origin_reads_as_it_was_written_and_nothing_else_is_one() {
        for kind in SourceKind::ALL {
            let origin = Origin { kind, ..origin() };
            let bytes = origin.encode();
            assert_eq!(Origin::decode(&bytes), Some(origin));
            for len in 0..bytes.len() {
                assert_eq!(Origin::decode(&bytes[..len]), None, "{len}");
            }
            for at in (0..9).chain([11]).chain(44..FIXED_LEN) {
                let mut bytes = bytes.clone();
                bytes[at] ^= 0x80;
                assert_eq!(Origin::decode(&bytes), None, "{at}");
            }
        }
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let long = Origin { source: vec![b's'; 900], path: vec![b'p'; 500], ..origin() };
        let bytes = long.encode();
        assert!(bytes.len() <= IDENTITY_LEN_MAX_BYTES);
        let found = Origin::decode(&bytes).unwrap();
        assert_eq!(found, Origin { source: Vec::new(), ..long });
    }
}
