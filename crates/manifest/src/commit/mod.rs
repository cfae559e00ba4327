//! What was changed on top of a manifest, as a manifest of its own; and what of it a store has.
//!
//! The tree is one that does not change (a snapshot of an overlay's upper, shown), and whoever asks knows the paths at which it may
//! differ. Both sides are looked at there alone, so it costs what was changed, whatever the manifest has. Of a file that was copied up,
//! only the objects with bytes that are [fresh](adit_core::overlay::Fresh) are read: the hashes of the others are the parent's.
//!
//! `docs/decisions/0021-commit.md` has why.

mod look;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;

use adit_core::error::Result;
use adit_core::overlay::{Fresh, Overlay};
use adit_core::path::Tree;
use adit_core::types::{Attr, Ino, Timestamp};
use adit_index::Segment;

pub use look::{Looked, TryEvent, look, try_lacking};

use crate::format::limits::CHUNK_LEN_BYTES;
use crate::format::{Body, Content, ContentHash, Entry, EntryPath, File, Format, Header, Kind, Manifest, PathStyle};
use crate::hash_cache::{Layout, Scope};
use crate::snapshot::{Filter, Known, Options, Tell, snapshot_of};
use crate::store::{Identity, ListedNames, Lower, entries_at, file_at, files};

/// Where a tree may differ from its manifest.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    /// Paths below the root, without a leading slash: as they were in the manifest, or as they are now. What lies below them is
    /// looked at, too.
    pub paths: Vec<Vec<u8>>,
    /// The files that were copied up. What has a number of the lower and is not among them is as it was.
    pub copies: Vec<Fresh>,
    /// Before the state of the tree that is looked at.
    pub began: Timestamp,
}

/// What differs.
pub struct Changed {
    /// A diff of the manifest, in its format, but that dialect L is read only. Version 2023-03-03 keeps files alone, and has no place for
    /// the deletions that are told here.
    pub manifest: Manifest,
    /// How many entries could not be read. With one of them the manifest is not whole.
    pub failed: u64,
    /// Files with an exec bit, of which version 2023-03-03 keeps none; of another one 0.
    pub exec_bits: u64,
}

/// How it is looked.
pub struct ChangedOptions<'a> {
    /// Threads that read and hash, at least one.
    pub threads: usize,
    /// What was hashed before of this tree, whose times and numbers nobody else sets.
    pub cache: Option<&'a Scope<'a>>,
}

/// How `tree` differs from the manifest behind `segment`, on which it is an overlay.
///
/// # Errors
/// `Interrupted` if `tell` breaks; `Corrupt` for a damaged segment. What cannot be read of the tree is told, and the rest goes on.
pub fn changed(
    segment: &Segment,
    tree: &Tree<'_>,
    touched: &Touched,
    options: &ChangedOptions<'_>,
    tell: &mut Tell<'_>,
) -> Result<Changed> {
    let (header, hash) = (Identity::of(segment)?.header, canonical_hash(segment)?);
    let paths = topmost(&touched.paths);
    let relative = Header { style: PathStyle::Relative, kind: Kind::Snapshot, ..header };
    let mut before = Manifest::new(relative);
    for path in &paths {
        entries_at(segment, path, &mut before)?;
    }
    let copies = touched.copies.iter().map(|copy| (copy.ino, &copy.ranges[..])).collect();
    let known = OfParent { segment, copies, cache: options.cache, began: touched.began };
    let (filter, names) = (Filter::default(), ListedNames::new(segment));
    let of = Options {
        format: header.format,
        filter: &filter,
        threads: options.threads,
        known: Some(&known),
        names: Some(&names),
    };
    let now = snapshot_of(tree, &paths, &of, tell)?;
    let (after, exec_bits) = match header.format {
        Format::V2023 => files_of_2023(&now.manifest)?,
        Format::V2025(_) => (now.manifest, 0),
    };
    let diff = after.diff(&before, hash)?;
    let manifest = diff.with_header(Header { kind: Kind::Diff { parent: hash }, ..header });
    Ok(Changed { manifest, failed: now.failed, exec_bits })
}

/// The whole manifest behind `segment` with `changed` put over it.
///
/// # Errors
/// `Corrupt` for a damaged segment.
pub fn whole(segment: &Segment, changed: &Manifest) -> Result<Manifest> {
    Manifest::merge([&behind(segment)?, changed])
}

/// The manifest behind `segment`, all of it in memory.
fn behind(segment: &Segment) -> Result<Manifest> {
    let mut manifest = Manifest::new(Identity::of(segment)?.header);
    entries_at(segment, b"", &mut manifest)?;
    Ok(manifest)
}

/// xxh128 of the canonical form of the manifest behind `segment`, by which a diff of it names it. Where its bytes have another form, this
/// takes memory for all of it.
///
/// # Errors
/// `Corrupt` for a damaged segment.
pub fn canonical_hash(segment: &Segment) -> Result<ContentHash> {
    let Identity { header, hash, is_recoded, .. } = Identity::of(segment)?;
    if is_recoded { Ok(behind(segment)?.encode(header.format, io::sink())?.hash) } else { Ok(hash) }
}

/// What version 2023-03-03 can say where nothing is left of what was told `earlier`: it has no manifest without files. These are the files that
/// were told and are as they were in the manifest behind `segment` again, and if that is none of them, one that is. `changed` is a diff of that
/// manifest, in which no file was added or changed. Without entries if nothing of the manifest is left.
///
/// # Errors
/// `Corrupt` for a damaged segment.
pub fn as_it_was(segment: &Segment, changed: &Manifest, earlier: &[Manifest]) -> Result<Manifest> {
    let gone: BTreeSet<&EntryPath<'_>> = changed.deletions().map(|(path, _)| path).collect();
    let mut same = Manifest::new(*changed.header());
    for (path, _) in earlier.iter().flat_map(Manifest::entries) {
        if !gone.contains(path)
            && same.get(path).is_none()
            && let Some(file) = file_at(segment, &path.to_listing())?
        {
            same.insert(file)?;
        }
    }
    if same.entries().next().is_none() {
        let is_left = |file: &Result<Entry<'static>>| file.as_ref().map_or(true, |file| !gone.contains(&file.path));
        if let Some(file) = files(segment).find(is_left) {
            same.insert(file?)?;
        }
    }
    Ok(same)
}

/// The paths that do not lie below another one, each once.
pub fn topmost(paths: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let sorted: BTreeSet<&[u8]> = paths.iter().map(|path| &path[..]).filter(|path| !path.is_empty()).collect();
    let is_below = |path: &[u8]| {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.filter_map(|end| path.get(..end)).any(|above| sorted.contains(above))
    };
    sorted.iter().filter(|path| !is_below(path)).map(|path| path.to_vec()).collect()
}

/// As version 2023-03-03 has it: nothing is executable. With how many were.
fn files_of_2023(manifest: &Manifest) -> Result<(Manifest, u64)> {
    let (mut files, mut exec_bits) = (Manifest::new(*manifest.header()), 0);
    for (path, body) in manifest.entries() {
        if let Body::File(file) = body {
            exec_bits += u64::from(file.runnable);
            let body = Body::File(File { runnable: false, ..file.clone() });
            files.insert(Entry { path: path.clone(), body })?;
        }
    }
    Ok((files, exec_bits))
}

/// Hashes that the parent knows, and those of an earlier look.
struct OfParent<'a> {
    segment: &'a Segment,
    copies: HashMap<Ino, &'a [Range<u64>]>,
    cache: Option<&'a Scope<'a>>,
    began: Timestamp,
}

impl Known for OfParent<'_> {
    fn find(&self, path: &[u8], attr: &Attr, layout: Layout) -> Result<Vec<Option<ContentHash>>> {
        let mut known = Vec::new();
        if let Some(lower) = Overlay::lower_ino(attr.ino)
            && let Some(lower) = Lower::of_ino(self.segment, lower)?
        {
            known = kept(&lower, self.copies.get(&attr.ino).copied().unwrap_or_default(), attr.size, layout);
        }
        if (known.is_empty() || known.iter().any(Option::is_none))
            && let Some(found) = self.cache.and_then(|cache| cache.find(path, attr, layout))
        {
            known = found.into_iter().map(Some).collect();
        }
        Ok(known)
    }

    fn note(&self, path: &[u8], attr: &Attr, _: Timestamp, hashes: &[ContentHash]) {
        if let Some(cache) = self.cache {
            // The tree stands still, but that of which it is a state went on from there.
            cache.note(path, attr, self.began, hashes);
        }
    }
}

/// Which hashes of a file of `size_bytes` are still those of `lower`: of objects without a byte of `fresh` that lie where they lay.
fn kept(lower: &Lower, fresh: &[Range<u64>], size_bytes: u64, layout: Layout) -> Vec<Option<ContentHash>> {
    let was = match lower.content {
        Content::Whole(_) => Layout::Whole,
        Content::Chunks(_) => Layout::Chunks,
    };
    let hashes = lower.content.hashes();
    let one = |object: Range<u64>| {
        // All but the last begin at a multiple of their length.
        let number = usize::try_from(object.start / CHUNK_LEN_BYTES).ok()?;
        let before = if was == Layout::Whole { (object.start == 0).then_some(0)? } else { number };
        let same = was.objects(lower.size_bytes).nth(before)? == object;
        let touched = fresh.partition_point(|range| range.end <= object.start);
        let is_fresh = fresh.get(touched).is_some_and(|range| range.start < object.end);
        hashes.get(before).copied().filter(|_| same && !is_fresh)
    };
    layout.objects(size_bytes).map(one).collect()
}

#[cfg(test)]
mod tests;
