//! Mending what a check found, one fault at a time, each as one batch.
//!
//! A mend looks again whether the fault is there, so doing it twice does nothing, and what an earlier one of the same round
//! changed is left to the next check. Counts are changed by the difference that was found, so that mends of one directory
//! do not undo each other. Nothing that a file holds is dropped: what has no place is put into [`lost`]. What is about blocks is
//! in [`blocks`]. Nobody uses the volume meanwhile.

use adit_core::types::{Caller, Kind};
use adit_core::{ErrorKind, Result};

use super::change::{Change, Spot};
use super::draft::Draft;
use super::verify::{Fault, Finding};
use super::{INOS_AT_ONCE, INOS_MAX, ROOT_INO, Source, Tree, meta};
use crate::format::keys::{self, Id, Key};
use crate::format::records::{self, Entry, Inode, Orphan, Place};
use crate::table::{Allocation, Batch};

mod blocks;
pub(super) mod lost;

/// An entry, and who wrote it.
struct Found {
    owner: Id,
    kind: Kind,
    name: Vec<u8>,
}

/// What was done, in words; `None`: nothing, for it is not as it was found.
type Done = Option<String>;

fn done(what: impl Into<String>) -> Result<Done> {
    Ok(Some(what.into()))
}

impl Tree {
    /// Mends what a check found. Tells what was done; `None` if it is not there any more, or cannot be done now.
    ///
    /// # Errors
    /// What keeps everything from being mended: `NoSpace`, `ReadOnly`, and failures of the medium.
    pub fn mend(&self, allocation: &dyn Allocation, finding: &Finding) -> Result<Option<String>> {
        if !finding.is_mendable() {
            return Ok(None);
        }
        let result = match finding.part {
            None => self.mend_whole(allocation, &finding.fault),
            Some(id) => self.mend_shown(id, &finding.fault),
        };
        match result {
            // Something near it is damaged, or was changed by another mend.
            Err(e) if !e.kind().is_refusal() && !matches!(e.kind(), ErrorKind::ReadOnly | ErrorKind::Io) => {
                tracing::warn!("not mended: {}: {e}", finding.fault);
                Ok(None)
            }
            result => result,
        }
    }

    fn mend_whole(&self, allocation: &dyn Allocation, fault: &Fault) -> Result<Done> {
        match fault {
            Fault::Unseen { key, id } => {
                let _numbers = self.numbers.lock();
                let Some(value) = self.table.get(&key.at(*id))? else { return Ok(None) };
                let mut draft = Draft::new(self);
                draft.uses_reserve = true;
                draft.drop_versions(key, &[(*id, value.to_vec())])?;
                draft.apply()?;
                done("dropped")
            }
            Fault::NotListed { key, id } => {
                if self.table.get(&key.at(*id))?.is_none() {
                    return Ok(None);
                }
                self.write(vec![(keys::touched(*id, key.as_bytes()), Some(records::TOUCHED.to_vec()))])?;
                done("listed")
            }
            Fault::NeedlessNote(note) => {
                self.write(vec![(note.clone(), None)])?;
                done("removed from the list")
            }
            Fault::Numbers { used } => {
                let mut numbers = self.numbers.lock();
                let next = used.saturating_add(1).max(numbers.next);
                if next > INOS_MAX - INOS_AT_ONCE {
                    return Ok(None);
                }
                self.write(vec![(keys::meta(meta::NEXT_INO), Some(records::encode_meta(next)))])?;
                (numbers.next, numbers.limit) = (next, next);
                done(format!("the next one is {next}"))
            }
            Fault::FreeBlocks { run, .. } => self.take_back(allocation, *run),
            _ => Ok(None),
        }
    }

    fn write(&self, writes: Vec<(Vec<u8>, Option<Vec<u8>>)>) -> Result<()> {
        self.table.apply(Batch { writes, uses_reserve: true, ..Batch::default() }).map(drop)
    }

    fn mend_shown(&self, id: Id, fault: &Fault) -> Result<Done> {
        let name = self.topology.read().node(id)?.record.name.clone();
        let view = self.view(&Source::Branch(name))?;
        self.change(&view, |change| {
            change.draft.uses_reserve = true;
            change.mend(fault)
        })
    }
}

impl Change<'_, '_> {
    fn mend(&mut self, fault: &Fault) -> Result<Done> {
        match fault {
            Fault::DanglingEntry { place, ino } if !self.has_inode(*ino)? => self.drop_entry(*place, *ino),
            Fault::FurtherParent { place, ino } => {
                let dropped = self.drop_entry(*place, *ino)?;
                if dropped.is_some() {
                    self.forget_name(*ino, *place)?;
                }
                Ok(dropped)
            }
            Fault::EntryKind { place, ino, kind } => self.mend_kind(*place, *ino, *kind),
            Fault::HiddenEntry { place, ino } => self.move_hidden(*place, *ino),
            Fault::Loop { ino } => self.break_loop(*ino),
            Fault::Unreachable { ino, recorded, counted, .. } => self.mend_unreachable(*ino, *recorded, *counted),
            Fault::Headless { ino, kind, links, size, blocks, place, has_xattrs } if !self.has_inode(*ino)? => {
                let found = Inode {
                    kind: *kind,
                    nlink: u32::try_from(*links).unwrap_or(u32::MAX),
                    size: *size,
                    blocks: *blocks,
                    in_windows: *kind == Kind::File,
                    has_xattrs: *has_xattrs,
                    ..self.blank()?
                };
                self.remake(*ino, found, *place)
            }
            Fault::LinkCount { ino, recorded, counted, .. } => {
                self.shift_links(*ino, difference(u64::from(*recorded), *counted))?;
                done("counted anew")
            }
            Fault::EntryCount { ino, recorded, counted } => {
                self.shift_entries(*ino, difference(*recorded, *counted), 0)?;
                done("counted anew")
            }
            Fault::BlockCount { ino, recorded, counted } => {
                let inode = self.edit(*ino)?;
                inode.blocks = inode.blocks.saturating_add_signed(difference(*recorded, *counted));
                done("counted anew")
            }
            Fault::FirstName { ino, right, .. } => self.mend_place(*ino, *right),
            Fault::NameNotKnown { ino, place } => {
                if !self.leads_to(*place, *ino)? {
                    return Ok(None);
                }
                self.add_name(*ino, *place)?;
                done("noted")
            }
            Fault::NeedlessName { ino, place } => {
                let was_known = self.find(&Key::name(*ino, place.dir, place.cookie))?.value.is_some();
                self.forget_name(*ino, *place)?;
                Ok(was_known.then(|| "forgotten".to_owned()))
            }
            Fault::NeedlessOrphan { ino } => self.mend_orphan(*ino),
            Fault::CutNotNoted { ino } => {
                let removed = self.inode(*ino)?.nlink == 0;
                self.put_orphan(*ino, Some(Orphan { removed }))?;
                done("noted")
            }
            Fault::XattrFlag { ino } => {
                self.edit(*ino)?.has_xattrs = true;
                done("noted")
            }
            Fault::StrayXattrs { ino } if !self.has_inode(*ino)? => self.drop_stray_xattrs(*ino),
            Fault::LateBirth { ino, window, .. } => self.mend_births(*ino, *window),
            _ => Ok(None),
        }
    }

    fn has_inode(&self, ino: u64) -> Result<bool> {
        Ok(self.find(&Key::inode(ino))?.value.is_some())
    }

    /// The entry at a place, if it leads to `ino`.
    fn entry_of(&self, place: Place, ino: u64) -> Result<Option<Found>> {
        let found = self.find(&Key::entry(place.dir, place.cookie))?;
        let (Some(owner), Some(value)) = (found.owner, found.value) else { return Ok(None) };
        let entry = Entry::decode(&value).map_err(|why| super::view::corrupt_inode(place.dir, why))?;
        let found = Found { owner, kind: entry.kind, name: entry.name.to_vec() };
        Ok((entry.ino == ino).then_some(found))
    }

    fn leads_to(&self, place: Place, ino: u64) -> Result<bool> {
        Ok(self.entry_of(place, ino)?.is_some())
    }

    /// Removes an entry that leads to `ino`, and no more than the entry.
    fn drop_entry(&mut self, place: Place, ino: u64) -> Result<Done> {
        let Some(Found { owner, kind, name }) = self.entry_of(place, ino)? else { return Ok(None) };
        self.delete_entry(place, owner, &name)?;
        if self.has_inode(place.dir)? {
            self.shift_entries(place.dir, -1, -i64::from(kind == Kind::Directory))?;
            self.note_change(place.dir)?;
        }
        done(format!("the entry {} is removed", String::from_utf8_lossy(&name)))
    }

    /// Changes how many entries a directory counts, and how many directories are among them.
    fn shift_entries(&mut self, dir: u64, entries: i64, directories: i64) -> Result<()> {
        let inode = self.edit(dir)?;
        if inode.kind == Kind::Directory {
            inode.size = inode.size.saturating_add_signed(entries);
        }
        if directories == 0 { Ok(()) } else { self.shift_links(dir, directories) }
    }

    fn shift_links(&mut self, ino: u64, links: i64) -> Result<()> {
        let inode = self.edit(ino)?;
        let nlink = i64::from(inode.nlink).saturating_add(links);
        inode.nlink = nlink.clamp(0, i64::from(u32::MAX)) as u32;
        Ok(())
    }

    fn note_change(&mut self, dir: u64) -> Result<()> {
        let now = self.now;
        let inode = self.edit(dir)?;
        (inode.mtime, inode.ctime) = (now, now);
        Ok(())
    }

    fn forget_name(&mut self, ino: u64, place: Place) -> Result<()> {
        let key = Key::name(ino, place.dir, place.cookie);
        let owner = self.find(&key)?.owner;
        self.delete(&key, owner)
    }

    fn mend_kind(&mut self, place: Place, ino: u64, kind: Kind) -> Result<Done> {
        let Some(Found { owner, kind: old, name }) = self.entry_of(place, ino)?.filter(|found| found.kind != kind)
        else {
            return Ok(None);
        };
        self.put_entry(place.dir, place.cookie, Some(owner), &Entry { ino, kind, name: &name });
        if self.has_inode(place.dir)? {
            let directories = i64::from(kind == Kind::Directory) - i64::from(old == Kind::Directory);
            self.shift_entries(place.dir, 0, directories)?;
        }
        done(format!("the entry says that it is a {}", kind.as_str()))
    }

    /// Puts an entry where it is found by its name; where another one has that, it goes, and what it leads to is without it.
    fn move_hidden(&mut self, place: Place, ino: u64) -> Result<Done> {
        let Some(Found { owner, kind, name }) = self.entry_of(place, ino)? else { return Ok(None) };
        self.delete_entry(place, owner, &name)?;
        let dir = place.dir;
        let (cookie, owner) = match self.spot(dir, &name)? {
            Spot::Free { cookie, owner } => (cookie, owner),
            Spot::Taken { .. } => {
                self.shift_entries(dir, -1, -i64::from(kind == Kind::Directory))?;
                return done("another entry has this name, and this one is removed");
            }
        };
        self.put_entry(dir, cookie, owner, &Entry { ino, kind, name: &name });
        if self.has_inode(ino)? {
            let to = Place { dir, cookie };
            let inode = self.edit(ino)?;
            if inode.place == place {
                inode.place = to;
            } else {
                self.forget_name(ino, place)?;
                self.add_name(ino, to)?;
            }
        }
        done("moved to where its name is looked for")
    }

    fn break_loop(&mut self, ino: u64) -> Result<Done> {
        let place = self.inode(ino)?.place;
        if !self.leads_to(place, ino)? {
            return Ok(None);
        }
        self.drop_entry(place, ino)?;
        let path = self.put_lost(ino, Kind::Directory)?;
        done(format!("moved to {path}"))
    }

    fn mend_unreachable(&mut self, ino: u64, recorded: u32, counted: u64) -> Result<Done> {
        let inode = self.inode(ino)?;
        let (kind, is_cut) = (inode.kind, inode.is_cut);
        self.shift_links(ino, difference(u64::from(recorded), counted))?;
        if self.orphan(ino)?.is_some_and(|orphan| orphan.removed) {
            self.put_orphan(ino, is_cut.then_some(Orphan { removed: false }))?;
        }
        let path = self.put_lost(ino, kind)?;
        done(format!("moved to {path}"))
    }

    /// An inode's record as far as nothing is known of it.
    fn blank(&mut self) -> Result<Inode> {
        let root = match self.has_inode(ROOT_INO)? {
            true => Some(self.inode(ROOT_INO)?.clone()),
            false => None,
        };
        let owner = root.map_or(Caller { uid: 0, gid: 0 }, |root| Caller { uid: root.uid, gid: root.gid });
        Ok(Inode::new(Kind::File, 0o600, owner, self.now))
    }

    /// Makes a record again, under the name that is left of it or in lost+found.
    fn remake(&mut self, ino: u64, mut found: Inode, place: Option<Place>) -> Result<Done> {
        let kind = found.kind;
        if kind == Kind::Directory {
            found.perm = if ino == ROOT_INO { 0o755 } else { 0o700 };
        }
        let owner = self.find(&Key::inode(ino))?.owner;
        let place = match place.filter(|_| ino != ROOT_INO) {
            Some(place) if self.leads_to(place, ino)? => Some(place),
            _ => None,
        };
        found.place = place.unwrap_or_default();
        let size = found.size;
        self.set_inode(ino, owner, found);
        let where_to = match place {
            Some(_) => "under its name".to_owned(),
            None if ino == ROOT_INO => "as the root".to_owned(),
            None => format!("as {}", self.put_lost(ino, kind)?),
        };
        match kind {
            Kind::Directory => done(format!("made again {where_to}, with the permissions of its owner alone")),
            _ => done(format!("made again {where_to}, {size} bytes long: whole blocks, for its length is not known")),
        }
    }

    fn mend_place(&mut self, ino: u64, right: Option<Place>) -> Result<Done> {
        if let Some(place) = right {
            if !self.leads_to(place, ino)? {
                return Ok(None);
            }
            self.forget_name(ino, place)?;
        }
        self.edit(ino)?.place = right.unwrap_or_default();
        done("noted")
    }

    fn orphan(&self, ino: u64) -> Result<Option<Orphan>> {
        Ok(self.find(&Key::orphan(ino))?.value.and_then(|value| Orphan::decode(&value).ok()))
    }

    fn put_orphan(&mut self, ino: u64, orphan: Option<Orphan>) -> Result<()> {
        let key = Key::orphan(ino);
        let owner = self.find(&key)?.owner;
        match orphan {
            Some(orphan) => self.put(&key, owner, orphan.encode()),
            None => self.delete(&key, owner)?,
        }
        Ok(())
    }

    fn mend_orphan(&mut self, ino: u64) -> Result<Done> {
        if self.find(&Key::orphan(ino))?.value.is_none() {
            return Ok(None);
        }
        let is_cut = self.has_inode(ino)? && self.inode(ino)?.is_cut;
        self.put_orphan(ino, is_cut.then_some(Orphan { removed: false }))?;
        done("it stays")
    }

    /// Drops attributes of what is not there, as many as one batch takes.
    fn drop_stray_xattrs(&mut self, ino: u64) -> Result<Done> {
        let (start, end) = keys::range_of(keys::space::XATTR, ino);
        let mut names = Vec::new();
        for (logical, owner, value) in self.seen(&start, &end)? {
            if self.draft.is_full() {
                break;
            }
            let Some(key) = Key::from_logical(&logical).filter(|_| value.is_some()) else { continue };
            if let Some(keys::Parts::Xattr(_, name)) = key.parts() {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
            self.delete(&key, Some(owner))?;
        }
        if names.is_empty() { Ok(None) } else { done(format!("removed: {}", names.join(", "))) }
    }
}

fn difference(recorded: u64, counted: u64) -> i64 {
    let difference = i128::from(counted) - i128::from(recorded);
    difference.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}
