//! Making room: the objects that were used least lately go first, those that somebody in this process has open last.
//!
//! When an object was used is the time of change of its map, or of its file if it is kept as a whole: what is written to it sets
//! that, and its use does, once a minute. So it holds among processes and over restarts. Only names are removed: whoever has an
//! object open reads on, and its space is free when the last has let go.

use std::collections::{BTreeSet, BinaryHeap};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use adit_core::media::{HostDir, HostEntry};
use adit_core::types::{Attr, Kind, Timestamp};

use super::Inner;
use super::generation::remove_file;
use super::id::{Name, OBJECTS, QUARANTINE, SHARDS, shard_name, shard_path};
use super::stats::add;

/// The file that whoever makes room holds.
const EVICTOR: &str = "evictor";
/// Most objects that one look at the folder remembers, the oldest: about 100 bytes each.
const CANDIDATES_MAX: usize = 16 << 10;
/// Looks at the folder until enough is removed.
const LOOKS_MAX: usize = 64;
/// How long another process may take to make room, for somebody who waits for it.
const OTHER_MAX: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);
/// Age from which files that belong to nothing are removed. Whoever makes an object makes its data first.
const ORPHAN_SECS: i64 = 600;

/// How much is to be left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// What the limit allows, with some way to go.
    Limit,
    /// The same, with room for so many bytes.
    RoomFor(u64),
    /// The disk is full for somebody else, who needs so many bytes.
    ForOthers(u64),
    /// Less than now, for the host is full.
    LessByAnEighth,
}

/// An object in the folder. The order is that in which they go.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Candidate {
    is_in_use: bool,
    used: Timestamp,
    files: Vec<Name>,
    bytes: u64,
}

/// What a look at the folder found.
#[derive(Default)]
pub(super) struct Seen {
    /// Of all objects.
    pub bytes: u64,
    pub objects: u64,
    /// The oldest.
    oldest: BinaryHeap<Candidate>,
    quarantined: Vec<PathBuf>,
}

impl Inner {
    /// Makes room in the folder and counts what is left. Whether there is more than before, by this or another one's doing.
    pub(super) fn make_room(&self, goal: Goal) -> bool {
        let rounds = self.space.rounds.load(Ordering::Acquire);
        let _turn = self.space.making_room.lock();
        if self.space.rounds.load(Ordering::Acquire) != rounds && goal != Goal::Limit {
            return true;
        }
        let made = self.try_make_room(goal);
        if !matches!(made, Ok(false)) {
            self.space.rounds.fetch_add(1, Ordering::AcqRel);
        }
        made.unwrap_or_else(|e| {
            self.note_of_folder("make room", &e);
            false
        })
    }

    fn try_make_room(&self, goal: Goal) -> io::Result<bool> {
        let turn = self.named_file(EVICTOR)?;
        let deadline = Instant::now() + OTHER_MAX;
        while !turn.try_lock(true)? {
            if goal == Goal::Limit || Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(PAUSE);
        }
        let mut is_less = false;
        for _ in 0..LOOKS_MAX {
            let mut seen = self.look_through()?;
            // What there is counts anew, and with it what the disk leaves.
            self.set_usage(seen.bytes);
            self.look_at_disk();
            let goal_bytes = match goal {
                Goal::Limit if seen.bytes <= self.space.high() => seen.bytes,
                Goal::Limit => self.space.low(),
                Goal::RoomFor(bytes) => self.space.low().saturating_sub(bytes),
                Goal::ForOthers(_) if is_less => seen.bytes,
                // Also if the disk tells of room: a quota does not show there.
                Goal::ForOthers(bytes) => self.space.low().saturating_sub(bytes).min(seen.bytes - seen.bytes / 8),
                Goal::LessByAnEighth if is_less => seen.bytes,
                Goal::LessByAnEighth => seen.bytes - seen.bytes / 8,
            };
            let is_partial = seen.oldest.len() < seen.objects as usize;
            is_less |= self.remove_oldest(&mut seen, goal_bytes);
            self.set_usage(seen.bytes);
            if seen.bytes <= goal_bytes || !is_partial {
                break;
            }
        }
        Ok(is_less)
    }

    /// Removes objects until no more than `goal` bytes are left. Whether there were any.
    fn remove_oldest(&self, seen: &mut Seen, goal: u64) -> bool {
        let mut is_less = false;
        if seen.bytes > goal {
            for path in std::mem::take(&mut seen.quarantined) {
                let bytes = self.host.stat(&path).map_or(0, |attr| space_of(&attr));
                if self.host.remove(&path, Kind::File).is_ok() {
                    seen.bytes = seen.bytes.saturating_sub(bytes);
                    is_less = true;
                }
            }
        }
        for candidate in std::mem::take(&mut seen.oldest).into_sorted_vec() {
            if seen.bytes <= goal {
                break;
            }
            let removed: io::Result<()> = candidate.files.iter().try_for_each(|name| remove_file(&*self.host, name));
            if let Some(live) = candidate.files.first().and_then(|name| self.live(name.id())) {
                live.removed();
            }
            match removed {
                Ok(()) => {
                    seen.bytes = seen.bytes.saturating_sub(candidate.bytes);
                    is_less = true;
                    add(&self.counters.evictions, 1);
                    add(&self.counters.evicted_bytes, candidate.bytes);
                }
                Err(e) => self.note_of_folder("remove an object", &e),
            }
        }
        is_less
    }

    /// Looks at every object. Sweeps what belongs to none.
    fn look_through(&self) -> io::Result<Seen> {
        let mut seen = Seen::default();
        let now = Timestamp::now().secs;
        for shard in shards_of(&*self.host)? {
            let (objects, foreign) = objects_of(&*self.host, shard)?;
            for files in objects {
                self.see(&mut seen, &files, now);
            }
            for path in foreign.iter().filter(|path| is_temporary(path)) {
                if self.host.stat(path).is_ok_and(|attr| now - attr.mtime.secs > ORPHAN_SECS) {
                    // Another process may be at it too.
                    let _ = self.host.remove(path, Kind::File);
                }
            }
        }
        each_entry(&*self.host, QUARANTINE.as_ref(), |entry| {
            if let Some(name) = Name::parse(entry) {
                seen.quarantined.push(PathBuf::from(QUARANTINE).join(name.file_name()));
            }
        })?;
        let aside = seen.quarantined.iter().filter_map(|path| self.host.stat(path).ok());
        seen.bytes += aside.map(|attr| space_of(&attr)).sum::<u64>();
        Ok(seen)
    }

    /// Notes the object that `files` are of.
    fn see(&self, seen: &mut Seen, files: &[Name], now: i64) {
        let (mut bytes, mut used) = (0, None);
        let mut newest = i64::MIN;
        for name in files {
            // Whoever removed it meanwhile has made room.
            let Ok(attr) = self.host.stat(&name.path()) else { continue };
            bytes += space_of(&attr);
            newest = newest.max(attr.mtime.secs);
            if !matches!(name, Name::Data(..)) {
                used = used.max(Some(attr.mtime));
            }
        }
        let Some(id) = files.first().map(Name::id) else { return };
        let Some(used) = used else {
            // Data without a map: of somebody who makes it now, or who died meanwhile.
            let is_old = newest != i64::MIN && now - newest > ORPHAN_SECS;
            if is_old && files.iter().try_for_each(|name| remove_file(&*self.host, name)).is_ok() {
                return;
            }
            seen.bytes += bytes;
            return;
        };
        seen.bytes += bytes;
        seen.objects += 1;
        let candidate = Candidate { is_in_use: self.is_in_use(id), used, files: files.to_vec(), bytes };
        seen.oldest.push(candidate);
        if seen.oldest.len() > CANDIDATES_MAX {
            seen.oldest.pop();
        }
    }
}

/// What a file takes on the host.
fn space_of(attr: &Attr) -> u64 {
    attr.blocks.saturating_mul(512)
}

/// Whether it is what a kill left of a file that was being made, on a host without unnamed files.
fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
    name.starts_with(b".adit-") && name.ends_with(b".tmp")
}

/// Hands each name in a folder to `sink`, if there is such a folder.
fn each_entry(host: &dyn HostDir, folder: &Path, mut sink: impl FnMut(&[u8])) -> io::Result<()> {
    match host.list(folder, &mut |entry: HostEntry<'_>| sink(entry.name)) {
        Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Err(e),
        _ => Ok(()),
    }
}

/// The folders of objects that there are, by number, in order.
pub(super) fn shards_of(host: &dyn HostDir) -> io::Result<Vec<u32>> {
    let mut names = BTreeSet::new();
    each_entry(host, OBJECTS.as_ref(), |entry| names.extend([entry.to_vec()]))?;
    Ok((0..SHARDS).filter(|shard| names.contains(shard_name(*shard).as_bytes())).collect())
}

/// The files of each object in one of the folders, and the paths of what is none.
pub(super) fn objects_of(host: &dyn HostDir, shard: u32) -> io::Result<(Vec<Vec<Name>>, Vec<PathBuf>)> {
    let (mut names, mut foreign) = (Vec::new(), Vec::new());
    let folder = shard_path(shard);
    each_entry(host, &folder, |entry| match Name::parse(entry) {
        Some(name) if name.shard() == shard => names.push(name),
        _ => foreign.push(folder.join(OsStr::from_bytes(entry))),
    })?;
    names.sort_unstable_by_key(|name| (name.id(), *name));
    Ok((names.chunk_by(|a, b| a.id() == b.id()).map(<[Name]>::to_vec).collect(), foreign))
}
