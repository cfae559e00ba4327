//! What changed between two manifests, and several of them as one.

use std::borrow::Cow;

use adit_core::error::{ErrorKind, FsError, Result};

use super::entry::{Body, Content, Format, Header, Kind, Removed};
use super::hash::ContentHash;
use super::manifest::Manifest;
use super::path::EntryPath;

/// Times that differ by no more are the same: the official download restores them that exactly.
pub const MTIME_TOLERANCE_MICROS: u64 = 1;

impl Manifest {
    /// What changed from `parent`, whose bytes have the hash `parent_hash`, to `self`: a diff in the format of `self`.
    ///
    /// Whatever is new or different is there as it is now; whatever is gone is deleted, below a deleted directory as well. A
    /// directory is deleted if it was listed and nothing lies in it any more, or if something else took its place. Of one that
    /// was only implied by what lay in it, nothing is said.
    ///
    /// # Errors
    /// `InvalidInput` if one of both is a diff, or one has absolute paths and the other relative ones.
    pub fn diff(&self, parent: &Manifest, parent_hash: ContentHash) -> Result<Manifest> {
        let same_style = self.header.style == parent.header.style;
        if self.header.is_diff() || parent.header.is_diff() || !same_style {
            return Err(FsError::new(ErrorKind::InvalidInput)
                .on("compare", "two manifests")
                .because("both have to be snapshots, with relative paths or with absolute ones"));
        }
        let mut diff = Manifest::new(Header { kind: Kind::Diff { parent: parent_hash }, ..self.header });
        for (path, body) in &self.entries {
            if parent.entries.get(path).is_none_or(|before| differ(before, body)) {
                diff.entries.insert(path.clone(), body.clone());
            }
        }
        for (path, body) in &parent.entries {
            let removed = match body {
                Body::Directory => Removed::Directory,
                _ => Removed::File,
            };
            let stays = match self.entries.get(path) {
                Some(Body::Directory) => removed == Removed::Directory,
                Some(_) => removed == Removed::File,
                None => removed == Removed::Directory && self.below(path).next().is_some(),
            };
            if !stays {
                diff.deletions.insert(path.clone(), removed);
            }
            // A directory that was not listed, and in whose place is something else.
            if let Some(file) = self.file_above(path) {
                diff.deletions.entry(file).or_insert(Removed::Directory);
            }
        }
        Ok(diff)
    }

    /// Two manifests as far as they can be compared: as they are, or, where only one of them is of version 2023-03-03, without what that one
    /// cannot hold: of the other one no directories, links and exec bits, and of itself not what it has at the links, which it followed.
    #[must_use]
    pub fn comparable<'m>(one: &'m Manifest, other: &'m Manifest) -> (Cow<'m, Manifest>, Cow<'m, Manifest>) {
        let is_old = |manifest: &Manifest| manifest.header.format == Format::V2023;
        match (is_old(one), is_old(other)) {
            (true, false) => (one.without_links_of(other), other.files_only()),
            (false, true) => (one.files_only(), other.without_links_of(one)),
            _ => (Cow::Borrowed(one), Cow::Borrowed(other)),
        }
    }

    fn files_only(&self) -> Cow<'_, Manifest> {
        let mut files = self.clone();
        files.entries.retain(|_, body| match body {
            Body::File(file) => {
                file.runnable = false;
                true
            }
            _ => false,
        });
        Cow::Owned(files)
    }

    fn without_links_of(&self, other: &Manifest) -> Cow<'_, Manifest> {
        let mut rest = self.clone();
        for (link, _) in other.entries.iter().filter(|(_, body)| matches!(body, Body::Symlink(_))) {
            rest.entries.remove(link);
            rest.remove_below(link);
        }
        Cow::Owned(rest)
    }

    /// Several manifests as one, each over those before it: the last wins, path by path. A diff's deletions are applied before
    /// what it adds. Something that is no directory takes the place of all that lay below its path; what lies below a path takes
    /// the place of something that is no directory.
    ///
    /// The result has the header of the first one. If that is a diff, so is the result: what has to go from the same parent,
    /// and what is added to it. That a diff belongs to what is before it is for the caller to check: its parent is named by
    /// hash.
    ///
    /// # Errors
    /// `InvalidInput` for none at all, or for absolute paths together with relative ones; `NotSupported` for a diff that makes
    /// an empty directory anew which a diff before it deletes: no diff can say both.
    pub fn merge<'m>(manifests: impl IntoIterator<Item = &'m Manifest>) -> Result<Manifest> {
        let mut manifests = manifests.into_iter();
        let refuse = |why: &'static str| FsError::new(ErrorKind::InvalidInput).on("merge", "manifests").because(why);
        let mut merged = manifests.next().ok_or_else(|| refuse("there is none"))?.clone();
        for next in manifests {
            if next.header.style != merged.header.style {
                return Err(refuse("some have absolute paths, others relative ones"));
            }
            merged.apply(next);
        }
        merged.settle()?;
        Ok(merged)
    }

    /// Puts `next` over this one.
    fn apply(&mut self, next: &Manifest) {
        for (path, removed) in &next.deletions {
            self.remove(path, *removed);
        }
        for (path, body) in &next.entries {
            self.put(path, body);
        }
    }

    /// Removes a file, or a directory with all that is in it; where a diff before made a directory of a file, both.
    fn remove(&mut self, path: &EntryPath<'static>, removed: Removed) {
        let is_directory = removed == Removed::Directory;
        if is_directory {
            self.remove_below(path);
        }
        if self.entries.get(path).is_some_and(|body| is_directory || *body != Body::Directory) {
            self.entries.remove(path);
        }
        if self.header.is_diff() {
            let wider = self.deletions.entry(path.clone()).or_insert(removed);
            if is_directory {
                *wider = removed;
            }
        }
    }

    fn put(&mut self, path: &EntryPath<'static>, body: &Body<'static>) {
        while let Some(file) = self.file_above(path) {
            self.entries.remove(&file);
            self.note_gone(file, Removed::File);
        }
        match (self.entries.get(path), body) {
            (Some(Body::Directory), Body::Directory) => {}
            (Some(Body::Directory), _) => self.note_gone(path.clone(), Removed::Directory),
            (Some(_), Body::Directory) => self.note_gone(path.clone(), Removed::File),
            (Some(_), _) => {}
            (None, Body::Directory) => {}
            (None, _) if self.below(path).next().is_some() => self.note_gone(path.clone(), Removed::Directory),
            (None, _) => {}
        }
        if *body != Body::Directory {
            self.remove_below(path);
            if self.deletions.get(path) == Some(&Removed::File) {
                self.deletions.remove(path);
            }
        }
        self.entries.insert(path.clone(), body.clone());
    }

    /// A directory that is both deleted and made: what lies in it says that it is there, if something does.
    fn settle(&mut self) -> Result<()> {
        let is_both = |(path, removed): &(&EntryPath<'static>, &Removed)| {
            **removed == Removed::Directory && self.entries.get(*path) == Some(&Body::Directory)
        };
        let both: Vec<_> = self.deletions.iter().filter(is_both).map(|(path, _)| path.clone()).collect();
        for path in both {
            if self.below(&path).next().is_none() {
                return Err(FsError::new(ErrorKind::NotSupported)
                    .on("merge manifests with", path)
                    .because("the empty directory is deleted and made again: merge onto a snapshot"));
            }
            self.entries.remove(&path);
        }
        Ok(())
    }

    /// In a diff, what took the place of something has to say so: the parent may have it too.
    fn note_gone(&mut self, path: EntryPath<'static>, removed: Removed) {
        if self.header.is_diff() {
            self.deletions.entry(path).or_insert(removed);
        }
    }

    fn remove_below(&mut self, path: &EntryPath<'_>) {
        let below: Vec<_> = self.below(path).map(|(path, _)| path.clone()).collect();
        below.iter().for_each(|path| {
            self.entries.remove(path);
        });
    }
}

/// Whether an entry is another one than before.
fn differ(before: &Body<'_>, now: &Body<'_>) -> bool {
    match (before, now) {
        (Body::File(before), Body::File(now)) => {
            (before.size_bytes, before.runnable) != (now.size_bytes, now.runnable)
                || differ_in_content(&before.content, &now.content)
                || before.mtime_micros.abs_diff(now.mtime_micros) > MTIME_TOLERANCE_MICROS
        }
        _ => before != now,
    }
}

/// Whether the contents of two files of one length are known to be others. A hash of the whole says nothing of hashes of chunks.
fn differ_in_content(before: &Content<'_>, now: &Content<'_>) -> bool {
    std::mem::discriminant(before) == std::mem::discriminant(now) && before != now
}
