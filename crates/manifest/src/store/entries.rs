//! From a segment back to the entries of its manifest.

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::{Ino, Kind};
use adit_index::{NodeId, Segment};

use super::extra::{Content as Made, Extra};
use crate::format::{Body, Content, ContentHash, Entry, EntryPath, File, LinkTarget, Manifest, PathStyle};

/// A file of the manifest, as an overlay on it has to know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lower {
    /// Its length in bytes.
    pub size_bytes: u64,
    /// What it is made of.
    pub content: Content<'static>,
}

impl Lower {
    /// The file of which a [`ManifestStore`](super::ManifestStore) on `segment` says that its inode number is `ino`; `None` if it is no
    /// file, or none at all.
    ///
    /// # Errors
    /// `Corrupt` if the segment is damaged.
    pub fn of_ino(segment: &Segment, ino: Ino) -> Result<Option<Lower>> {
        let number = ino.0.checked_sub(Ino::ROOT.0).and_then(|number| u32::try_from(number).ok());
        let Some(id) = number.filter(|number| *number < segment.len()).map(NodeId) else { return Ok(None) };
        let node = segment.node(id)?;
        if node.kind != Kind::File {
            return Ok(None);
        }
        let content = content(segment, id, node.size, &extra(segment, id)?)?;
        Ok(Some(Lower { size_bytes: node.size, content }))
    }
}

/// Adds to `manifest` what lies at `path`, which is below the root and has no leading slash, and all that is below it; of the root, if
/// it is empty, what is in it. Directories that the manifest does not list are not added.
///
/// # Errors
/// `Corrupt` if the segment is damaged; as [`Manifest::insert`], of what is there already.
pub fn entries_at(segment: &Segment, path: &[u8], manifest: &mut Manifest) -> Result<()> {
    let mut at = NodeId::ROOT;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        if segment.kind(at)? != Kind::Directory {
            return Ok(());
        }
        let Some(found) = segment.lookup(at, name)? else { return Ok(()) };
        at = found;
    }
    let mut todo = vec![at];
    while let Some(id) = todo.pop() {
        let node = segment.node(id)?;
        if node.kind == Kind::Directory {
            todo.extend(segment.child_range(id)?.map(NodeId));
        }
        if id != NodeId::ROOT && !node.implied {
            manifest.insert(entry(segment, id)?)?;
        }
    }
    Ok(())
}

/// What the manifest says of a node, which is not the root.
fn entry(segment: &Segment, id: NodeId) -> Result<Entry<'static>> {
    let node = segment.node(id)?;
    let extra = extra(segment, id)?;
    let listing;
    let path = match extra.text {
        Some(text) => EntryPath::parse(text, PathStyle::Relative)?,
        None => {
            listing = segment.path(id)?;
            EntryPath::from_host(&listing)?
        }
    };
    let path = path.into_owned();
    let body = match (node.kind, extra.content) {
        (Kind::Directory, _) => Body::Directory,
        (Kind::Symlink, Made::Target(target)) => Body::Symlink(LinkTarget::parse(target, &path)?.into_owned()),
        (Kind::File, _) => Body::File(File {
            size_bytes: node.size,
            mtime_micros: extra.mtime_micros.unwrap_or_else(|| node.mtime_ns.div_euclid(1000)),
            runnable: node.perm & 0o111 != 0,
            content: content(segment, id, node.size, &extra)?,
        }),
        _ => return Err(damaged(segment, id)),
    };
    Ok(Entry { path, body })
}

fn content(segment: &Segment, id: NodeId, size_bytes: u64, extra: &Extra<'_>) -> Result<Content<'static>> {
    match (segment.hash(id)?, extra.content) {
        (Some(hash), Made::Plain) => Ok(Content::Whole(ContentHash(hash))),
        (None, Made::Chunks(hashes)) => {
            let hashes: Vec<ContentHash> = hashes.iter().copied().map(ContentHash).collect();
            Ok(Content::chunks(hashes.into(), size_bytes)?)
        }
        _ => Err(damaged(segment, id)),
    }
}

fn extra(segment: &Segment, id: NodeId) -> Result<Extra<'_>> {
    Extra::decode(segment.extra(id)?).ok_or_else(|| damaged(segment, id))
}

fn damaged(segment: &Segment, id: NodeId) -> FsError {
    let why = format!("node {} is none of a manifest's; mount the manifest again, which builds the index again", id.0);
    FsError::new(ErrorKind::Corrupt).on("read index", segment.file_path().display()).because(why)
}
