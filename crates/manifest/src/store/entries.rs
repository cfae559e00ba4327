//! From a segment back to the entries of its manifest.

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::{Ino, Kind};
use adit_index::{NodeId, Segment};

use super::extra::{Content as Made, Extra};
use crate::format::wtf8;
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
    let Some(at) = node_at(segment, path)? else { return Ok(()) };
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

/// The file at `path`, as of [`entries_at`]; `None` if nothing or something else is there.
///
/// # Errors
/// `Corrupt` if the segment is damaged.
pub fn file_at(segment: &Segment, path: &[u8]) -> Result<Option<Entry<'static>>> {
    match node_at(segment, path)? {
        Some(id) if segment.kind(id)? == Kind::File => entry(segment, id).map(Some),
        _ => Ok(None),
    }
}

/// The files of the manifest, each when it is asked for.
///
/// # Errors
/// `Corrupt` if the segment is damaged.
pub fn files(segment: &Segment) -> impl Iterator<Item = Result<Entry<'static>>> {
    let file = move |id| match segment.kind(id) {
        Ok(Kind::File) => Some(entry(segment, id)),
        Ok(_) => None,
        Err(e) => Some(Err(e)),
    };
    (0..segment.len()).map(NodeId).filter_map(file)
}

/// What lies at `path`, if something does.
fn node_at(segment: &Segment, path: &[u8]) -> Result<Option<NodeId>> {
    let mut at = NodeId::ROOT;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        if segment.kind(at)? != Kind::Directory {
            return Ok(None);
        }
        let Some(found) = segment.lookup(at, name)? else { return Ok(None) };
        at = found;
    }
    Ok(Some(at))
}

/// Hands to `sink` all that is below the directory at `path` (as of [`entries_at`]), the directory itself included, with paths from there: as the entries of
/// another index, with the bytes of a host. The extra bytes of a link are its target. Directories that the manifest does not list are not among them.
///
/// # Errors
/// `NotFound` and `NotDirectory`, of `path`; `Corrupt` if the segment is damaged; what `sink` says.
pub fn each_entry(
    segment: &Segment,
    path: &[u8],
    sink: &mut dyn FnMut(&adit_index::Entry<'_>) -> Result<()>,
) -> Result<()> {
    let mut at = NodeId::ROOT;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        at = segment.lookup(at, name)?.ok_or(ErrorKind::NotFound)?;
        segment.child_range(at)?;
    }
    // Ranges of children, and the paths that they are in.
    let mut todo = vec![(at.0..at.0 + 1, Vec::new())];
    while let Some((range, dir)) = todo.last_mut() {
        let Some(id) = range.next().map(NodeId) else {
            todo.pop();
            continue;
        };
        let path = match id == at {
            true => Vec::new(),
            false if dir.is_empty() => segment.name(id)?.to_vec(),
            false => [dir, &b"/"[..], segment.name(id)?].concat(),
        };
        let node = segment.node(id)?;
        if node.kind == Kind::Directory {
            todo.push((segment.child_range(id)?, path.clone()));
        }
        if node.implied {
            continue;
        }
        let extra = extra(segment, id)?;
        let target = match extra.content {
            // One that has no bytes on a host is shown as it is written.
            Made::Target(target) => wtf8::to_host(target).unwrap_or(target.into()),
            _ => Vec::new().into(),
        };
        sink(&adit_index::Entry {
            path: &path,
            kind: node.kind,
            perm: node.perm,
            size: node.size,
            mtime_ns: node.mtime_ns,
            hash: segment.hash(id)?,
            stamp: None,
            extra: &target,
        })?;
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
