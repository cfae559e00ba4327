//! What an object is known by, and the names of its files in the folder. `docs/formats/manifest-cache.md` has the names.

use std::fmt;
use std::path::PathBuf;

use crate::format::ContentHash;

/// The folder of all objects; below it one for each first byte of a hash.
pub(super) const OBJECTS: &str = "objects";
/// The folder of what came with other content than its hash says.
pub(super) const QUARANTINE: &str = "quarantine";
/// How many folders [`OBJECTS`] has at most.
pub(super) const SHARDS: u32 = 256;

/// An object of a content-addressed store: a whole file, or a chunk of one.
///
/// The length is a part of it, so that a manifest that lies about one finds nothing of what another one fetched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ObjectId {
    /// xxh128 of its content.
    pub hash: ContentHash,
    /// Length in bytes.
    pub len: u64,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.hash, f)
    }
}

/// A file of an object. In the order in which they are removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Name {
    /// Which blocks of it are there.
    Map(ObjectId),
    /// Its bytes, of the map with this nonce.
    Data(ObjectId, u64),
    /// All of a small one.
    Whole(ObjectId),
}

impl Name {
    pub fn id(&self) -> ObjectId {
        let (Name::Map(id) | Name::Data(id, _) | Name::Whole(id)) = self;
        *id
    }

    /// The name alone.
    pub fn file_name(&self) -> String {
        let ObjectId { hash, len } = self.id();
        match self {
            Name::Map(_) => format!("{hash}-{len}.map"),
            Name::Data(_, nonce) => format!("{hash}-{len}.{nonce:016x}.data"),
            Name::Whole(_) => format!("{hash}-{len}.whole"),
        }
    }

    /// Where it lies.
    pub fn path(&self) -> PathBuf {
        shard_path(self.shard()).join(self.file_name())
    }

    /// The folder that it lies in, by number.
    pub fn shard(&self) -> u32 {
        self.id().hash.0[0].into()
    }

    /// Whose file a name is; `None` for one that is not ours, however little is different.
    pub fn parse(name: &[u8]) -> Option<Name> {
        let text = std::str::from_utf8(name).ok()?;
        let (stem, kind) = text.split_once('.')?;
        let (hash, len) = stem.split_once('-')?;
        let id = ObjectId { hash: ContentHash::parse(hash.as_bytes())?, len: len.parse().ok()? };
        let parsed = match kind.split_once('.') {
            None if kind == "map" => Name::Map(id),
            None if kind == "whole" => Name::Whole(id),
            Some((nonce, "data")) => Name::Data(id, u64::from_str_radix(nonce, 16).ok()?),
            _ => return None,
        };
        // Numbers have several spellings, and names only one.
        (parsed.file_name() == text).then_some(parsed)
    }
}

/// The folder with this number.
pub(super) fn shard_path(shard: u32) -> PathBuf {
    PathBuf::from(OBJECTS).join(shard_name(shard))
}

/// Its name.
pub(super) fn shard_name(shard: u32) -> String {
    format!("{shard:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_no_others_are() {
        let id = ObjectId { hash: ContentHash::of(b"x"), len: 1 << 40 };
        for name in [Name::Map(id), Name::Whole(id), Name::Data(id, 0), Name::Data(id, u64::MAX)] {
            assert_eq!(Name::parse(name.file_name().as_bytes()), Some(name));
            assert!(name.path().starts_with(shard_path(name.shard())));
        }
        let hash = id.hash;
        let foreign = [
            format!("{hash}-01.map"),
            format!("{hash}-+1.map"),
            format!("{hash}-1.mapx"),
            format!("{hash}-1.map.data"),
            format!("{hash}-1.1.data"),
            format!("{hash}-1.+000000000000001.data"),
            format!("{hash}.map"),
            format!("{}-1.map", hash.to_string().to_uppercase()),
            format!("{hash}-99999999999999999999.map"),
            String::new(),
            "../../etc/passwd".to_owned(),
        ];
        for name in foreign {
            assert_eq!(Name::parse(name.as_bytes()), None, "{name}");
        }
    }
}
