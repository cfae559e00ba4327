//! What one snapshot or branch shows, joined inode by inode: its record, its names, its content, and what is in it.
//!
//! Six spaces are read in the order of inode numbers, one beside the other; entries are also needed in the order of the inodes
//! that they lead to, which [`Names`] gives.

use adit_core::Result;
use adit_core::types::Kind;

use super::stream::{Name, Names, Stream};
use super::{Checked, Fault};
use crate::format::keys::{Id, Parts, cookie, space};
use crate::format::records::{Entry, Inode, Orphan, Place, WINDOW_LEN_BLOCKS, Window};
use crate::table::BLOCK_LEN_BYTES;
use crate::tree::view::View;
use crate::tree::{FILE_LEN_MAX_BYTES, ROOT_INO, WINDOWS_MAX, is_ino};

/// Names of one directory that are looked at. Where there are more, a repair finds the others when these are gone.
const PARENTS_MAX: usize = 64;

/// Directories whose place is not to be trusted that are kept.
const ODD_MAX: usize = 64 << 10;

/// Checks what a view shows. Gives directories that are known not to be where they say, ascending; `None` if they are too many.
pub(super) fn check(
    view: &View<'_>,
    part: (Id, bool),
    memory_bytes: usize,
    checked: &mut Checked,
) -> Result<Option<Vec<u64>>> {
    let stream = |space| Stream::new(view, space);
    let mut walk = Walk {
        view,
        part,
        checked,
        inodes: stream(space::INODE),
        entries: stream(space::ENTRY),
        further: stream(space::NAME),
        windows: stream(space::WINDOW),
        orphans: stream(space::ORPHAN),
        xattrs: stream(space::XATTR),
        names: Names::new(view, memory_bytes),
        odd: Some(Vec::new()),
    };
    // Also a root of which there is nothing is missing.
    let mut is_root_done = false;
    while let Some(ino) = walk.next()? {
        if ino > ROOT_INO && !is_root_done {
            walk.inode(ROOT_INO)?;
        }
        is_root_done |= ino >= ROOT_INO;
        walk.inode(ino)?;
    }
    if !is_root_done {
        walk.inode(ROOT_INO)?;
    }
    let (passes, odd) = (walk.names.passes, walk.odd);
    checked.passes.entries += passes;
    Ok(odd)
}

struct Walk<'v, 't, 'c> {
    view: &'v View<'t>,
    part: (Id, bool),
    checked: &'c mut Checked,
    inodes: Stream<'v, 't>,
    entries: Stream<'v, 't>,
    further: Stream<'v, 't>,
    windows: Stream<'v, 't>,
    orphans: Stream<'v, 't>,
    xattrs: Stream<'v, 't>,
    names: Names<'v, 't>,
    odd: Option<Vec<u64>>,
}

/// What an inode has, but for its record.
#[derive(Default)]
struct Parted {
    /// Entries in it, those of them that lead to directories, and those that cannot be read.
    entries: u64,
    directories: u64,
    unreadable: u64,
    /// Blocks of its content, the last one, whether there are windows, and whether one cannot be read.
    blocks: u64,
    last: Option<u64>,
    has_windows: bool,
    is_damaged: bool,
    orphan: Option<Orphan>,
    has_xattrs: bool,
}

/// The names that lead to an inode.
#[derive(Default)]
struct Named {
    count: u64,
    /// Whether one of them is where the record says.
    has_first: bool,
    /// Another one, the lowest, and whether the inode knows it.
    other: Option<(Place, bool)>,
}

impl Walk<'_, '_, '_> {
    fn add(&mut self, fault: Fault) {
        self.checked.add(Some(self.part), fault);
    }

    /// The least inode that something is left of.
    fn next(&mut self) -> Result<Option<u64>> {
        let all = [
            self.inodes.ino()?,
            self.entries.ino()?,
            self.further.ino()?,
            self.windows.ino()?,
            self.orphans.ino()?,
            self.xattrs.ino()?,
            self.names.ino()?,
        ];
        Ok(all.into_iter().flatten().min())
    }

    fn note_odd(&mut self, ino: u64) {
        self.odd = self.odd.take().filter(|odd| odd.len() < ODD_MAX);
        if let Some(odd) = &mut self.odd {
            odd.push(ino);
        }
    }

    fn inode(&mut self, ino: u64) -> Result<()> {
        let record = self.inodes.next_of(ino)?.map(|record| Inode::decode(&record.value));
        let is_file = matches!(&record, Some(Ok(inode)) if inode.kind != Kind::Directory);
        let parted = self.parted(ino, is_file)?;
        // Where entries are in what is no directory, the record is more likely to be wrong than they are.
        let is_odd = is_file && parted.entries > 0;
        // And where all that is left is damaged, its names stay.
        let is_left = record.is_none() && parted.is_damaged && parted.entries == 0 && parted.blocks == 0;
        let is_clear = is_ino(ino) && !is_odd && !is_left;
        match record {
            None if is_clear => self.absent(ino, &parted),
            Some(Ok(inode)) if is_clear => self.present(ino, &inode, &parted),
            // Told with the damaged records, or with the entries. Nobody knows what it was.
            record => {
                if let Some(Ok(inode)) = record {
                    self.check_root(ino, &inode);
                }
                while self.names.next_of(ino)?.is_some() || self.further.next_of(ino)?.is_some() {}
                Ok(())
            }
        }
    }

    fn check_root(&mut self, ino: u64, inode: &Inode) {
        if ino == ROOT_INO && inode.kind != Kind::Directory {
            self.add(Fault::Root { kind: inode.kind });
        }
    }

    /// Takes all that belongs to an inode but its record and its names.
    fn parted(&mut self, ino: u64, is_file: bool) -> Result<Parted> {
        let mut parted = Parted::default();
        self.list(ino, is_file, &mut parted)?;
        while let Some(record) = self.windows.next_of(ino)? {
            parted.has_windows = true;
            let (Some(Parts::Window(_, index)), Ok(window)) = (record.key.parts(), Window::decode(&record.value))
            else {
                parted.is_damaged = true;
                continue;
            };
            if index >= WINDOWS_MAX {
                parted.is_damaged = true;
                continue;
            }
            parted.blocks = parted.blocks.saturating_add(window.count());
            let last = window.iter().last().map(|(at, _)| at as u64);
            let first = index.saturating_mul(WINDOW_LEN_BLOCKS as u64);
            parted.last = last.map(|last| first.saturating_add(last)).or(parted.last);
        }
        while let Some(record) = self.orphans.next_of(ino)? {
            parted.orphan = Orphan::decode(&record.value).ok();
            self.checked.has_orphans = true;
        }
        while self.xattrs.next_of(ino)?.is_some() {
            parted.has_xattrs = true;
        }
        Ok(parted)
    }

    /// Takes the entries in it.
    fn list(&mut self, dir: u64, is_file: bool, parted: &mut Parted) -> Result<()> {
        // Names that have one hash are neighbours.
        let (mut hash, mut names): (u64, Vec<Vec<u8>>) = (0, Vec::new());
        while let Some(record) = self.entries.next_of(dir)? {
            parted.entries += 1;
            let (Some(Parts::Entry(_, at)), Ok(entry)) = (record.key.parts(), Entry::decode(&record.value)) else {
                parted.unreadable += 1;
                continue;
            };
            if !is_ino(dir) || !is_ino(entry.ino) {
                parted.unreadable += 1;
                continue;
            }
            parted.directories += u64::from(entry.kind == Kind::Directory);
            let place = Place { dir, cookie: at };
            if is_file {
                self.add(Fault::EntryOfFile { place, ino: entry.ino });
                continue;
            }
            let first = self.view.tree.hash.cookie(entry.name);
            if first != hash {
                names.clear();
                hash = first;
            }
            let is_found = (first..first + cookie::SLOTS).contains(&at) && !names.iter().any(|name| name == entry.name);
            if is_found {
                names.push(entry.name.to_vec());
            } else {
                self.add(Fault::HiddenEntry { place, ino: entry.ino });
            }
        }
        Ok(())
    }

    /// There is no record of it.
    fn absent(&mut self, ino: u64, parted: &Parted) -> Result<()> {
        let kind = match (parted.entries, parted.blocks) {
            _ if ino == ROOT_INO => Some(Kind::Directory),
            (1.., _) => Some(Kind::Directory),
            (0, 1..) => Some(Kind::File),
            (0, 0) => None,
        };
        let (mut links, mut place) = (0, None);
        while let Some(name) = self.names.next_of(ino)? {
            (links, place) = (links + 1, place.or(Some(name.place)));
            if kind.is_none() {
                self.add(Fault::DanglingEntry { place: name.place, ino });
            }
        }
        while let Some(record) = self.further.next_of(ino)? {
            if let Some(Parts::Name(_, dir, cookie)) = record.key.parts() {
                self.add(Fault::NeedlessName { ino, place: Place { dir, cookie } });
            }
        }
        if parted.orphan.is_some() {
            self.add(Fault::NeedlessOrphan { ino });
        }
        let Some(kind) = kind else {
            if parted.has_xattrs {
                self.add(Fault::StrayXattrs { ino });
            }
            return Ok(());
        };
        self.note_odd(ino);
        let has_xattrs = parted.has_xattrs;
        let fault = if kind == Kind::Directory {
            let (links, size) = (2 + parted.directories, parted.entries);
            Fault::Headless { ino, kind, links, size, blocks: parted.blocks, place, has_xattrs }
        } else {
            let size = parted.last.map_or(0, |last| last.saturating_add(1)).saturating_mul(BLOCK_LEN_BYTES as u64);
            let size = size.min(FILE_LEN_MAX_BYTES);
            Fault::Headless { ino, kind, links: links.max(1), size, blocks: parted.blocks, place, has_xattrs }
        };
        self.add(fault);
        Ok(())
    }

    fn present(&mut self, ino: u64, inode: &Inode, parted: &Parted) -> Result<()> {
        let is_dir = inode.kind == Kind::Directory;
        self.check_root(ino, inode);
        let named = if is_dir { self.directory_names(ino, inode)? } else { self.file_names(ino, inode)? };
        // What is removed has no links, and no place.
        let has_rest = inode.nlink > 0 && inode.place != Place::default();
        let is_removed = parted.orphan.is_some_and(|orphan| orphan.removed);
        let is_root = ino == ROOT_INO;
        // A directory with entries is never removed.
        if named.count == 0 && !is_root && (!is_removed || has_rest || (is_dir && parted.entries > 0)) {
            let counted = if is_dir { 2 + parted.directories } else { 1 };
            self.add(Fault::Unreachable { ino, kind: inode.kind, recorded: inode.nlink, counted });
            self.note_odd(ino);
        } else {
            self.check_place(ino, inode, &named);
            self.check_links(ino, inode, &named, parted);
            if is_removed && (named.count > 0 || is_root) {
                self.add(Fault::NeedlessOrphan { ino });
            }
        }
        if is_dir && inode.size != parted.entries {
            self.add(Fault::EntryCount { ino, recorded: inode.size, counted: parted.entries });
        }
        self.check_content(ino, inode, parted);
        if parted.has_xattrs && !inode.has_xattrs {
            self.add(Fault::XattrFlag { ino });
        }
        Ok(())
    }

    /// Takes the names of what may have several, and compares them with those that it knows.
    fn file_names(&mut self, ino: u64, inode: &Inode) -> Result<Named> {
        let mut named = Named::default();
        let mut known = self.known(ino)?;
        while let Some(name) = self.names.next_of(ino)? {
            while let Some(place) = known.filter(|known| *known < name.place) {
                self.add(Fault::NeedlessName { ino, place });
                known = self.known(ino)?;
            }
            let is_known = known == Some(name.place);
            if is_known {
                known = self.known(ino)?;
            }
            self.check_kind(&name, inode.kind);
            named.count += 1;
            let place = name.place;
            match (place == inode.place, named.other) {
                (true, _) => {
                    named.has_first = true;
                    if is_known {
                        self.add(Fault::NeedlessName { ino, place });
                    }
                }
                (false, None) => named.other = Some((place, is_known)),
                (false, Some(_)) if !is_known => self.add(Fault::NameNotKnown { ino, place }),
                (false, Some(_)) => {}
            }
        }
        while let Some(place) = known {
            self.add(Fault::NeedlessName { ino, place });
            known = self.known(ino)?;
        }
        Ok(named)
    }

    /// The next further name that the inode knows.
    fn known(&mut self, ino: u64) -> Result<Option<Place>> {
        let record = self.further.next_of(ino)?;
        Ok(record.and_then(|record| match record.key.parts() {
            Some(Parts::Name(_, dir, cookie)) => Some(Place { dir, cookie }),
            _ => None,
        }))
    }

    fn check_kind(&mut self, name: &Name, kind: Kind) {
        if name.kind != kind {
            self.add(Fault::EntryKind { place: name.place, ino: name.ino, kind });
        }
    }

    /// Takes the names of a directory, which has one, or none if it is the root.
    fn directory_names(&mut self, ino: u64, inode: &Inode) -> Result<Named> {
        let mut places = Vec::new();
        while let Some(name) = self.names.next_of(ino)? {
            self.check_kind(&name, Kind::Directory);
            if places.len() < PARENTS_MAX {
                places.push(name.place);
            } else {
                self.checked.omitted += 1;
            }
        }
        while let Some(place) = self.known(ino)? {
            self.add(Fault::NeedlessName { ino, place });
        }
        let has_first = places.contains(&inode.place);
        let kept = if has_first { Some(inode.place) } else { places.first().copied() }.filter(|_| ino != ROOT_INO);
        for &place in places.iter().filter(|place| Some(**place) != kept) {
            self.add(Fault::FurtherParent { place, ino });
        }
        if places.len() > 1 || !has_first && ino != ROOT_INO {
            self.note_odd(ino);
        }
        let is_root = ino == ROOT_INO;
        Ok(Named {
            count: if is_root { 0 } else { places.len() as u64 },
            has_first: has_first && !is_root,
            other: kept.filter(|_| !has_first).map(|place| (place, true)),
        })
    }

    /// What the inode says of its first name.
    fn check_place(&mut self, ino: u64, inode: &Inode, named: &Named) {
        match (named.has_first, named.other) {
            (true, Some((place, false))) => self.add(Fault::NameNotKnown { ino, place }),
            (true, _) => {}
            (false, None) if inode.place == Place::default() => {}
            (false, other) => {
                let right = other.map(|(place, _)| place);
                self.add(Fault::FirstName { ino, kind: inode.kind, right });
            }
        }
    }

    fn check_links(&mut self, ino: u64, inode: &Inode, named: &Named, parted: &Parted) {
        let recorded = u64::from(inode.nlink);
        let (counted, unsure) = match inode.kind {
            // An entry that cannot be read may lead to a directory.
            Kind::Directory if ino == ROOT_INO || named.count > 0 => (2 + parted.directories, parted.unreadable),
            Kind::Directory => (0, 0),
            _ => (named.count, 0),
        };
        if !(counted..=counted + unsure).contains(&recorded) {
            self.add(Fault::LinkCount { ino, kind: inode.kind, recorded: inode.nlink, counted });
        }
    }

    fn check_content(&mut self, ino: u64, inode: &Inode, parted: &Parted) {
        if parted.has_windows && inode.kind != Kind::File {
            self.add(Fault::NoContent { ino });
        }
        if parted.is_damaged {
            return; // Nobody knows what it has.
        }
        if inode.blocks != parted.blocks {
            self.add(Fault::BlockCount { ino, recorded: inode.blocks, counted: parted.blocks });
        }
        let end = inode.size.div_ceil(BLOCK_LEN_BYTES as u64);
        let is_behind = inode.kind == Kind::File && parted.last.is_some_and(|last| last >= end);
        match (is_behind, inode.is_cut, parted.orphan) {
            (true, true, None) => self.add(Fault::CutNotNoted { ino }),
            (true, false, _) => self.add(Fault::BehindEnd { ino }),
            _ => {}
        }
    }
}
