//! Operation sequences from a seed, guided by a model that runs along: most operations meet something that exists.

use std::ops::ControlFlow;

use adit_core::store::Store;
use adit_core::types::{AllocateMode, Ino, Kind, RenameFlags, Timestamp, XattrSet};

use super::{Op, Place, Shown, StoreSubject, Subject, Target};
use crate::model::{Limits, MemoryStore};
use crate::rng::Rng;

/// Slots for open files.
const SLOTS: u64 = 5;
/// Longest file, in units.
const UNITS_MAX: u64 = 5;
/// Entries above which creating gets rare.
const ENTRIES_MAX: usize = 60;

/// `count` operations of `seed` for a store with `limits`.
pub fn generate(seed: u64, count: usize, limits: &Limits) -> Vec<Op> {
    let store = MemoryStore::new(*limits);
    let mut model = StoreSubject::new(&store);
    let (live, xattrs) = (Vec::new(), Vec::new());
    let mut generator = Generator { rng: Rng::new(seed), limits: *limits, names: names(limits), live, xattrs };
    (0..count)
        .map(|_| {
            generator.live.clear();
            collect(&store, Ino::ROOT, &mut Vec::new(), &mut generator.live);
            let op = generator.op();
            model.run(&op);
            op
        })
        .collect()
}

/// Few names, so that they meet again; long ones at each border; and some that only a few stores take.
fn names(limits: &Limits) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> =
        ["a", "b", "c", "d", "file.txt", "with space", "-r", "é", "日本語", "...", "~$x", "CON"]
            .iter()
            .map(|s| s.as_bytes().to_vec())
            .collect();
    for len in [limits.name_len_max, limits.name_len_max - 1, limits.name_len_max + 1, 140, 146, 160, 200] {
        if len <= 255 {
            names.push(vec![b'L'; len]);
        }
    }
    names.push(vec![0xff, 0xfe, b'x']);
    names
}

/// Appends all paths below `dir` with their kinds.
fn collect(store: &dyn Store, dir: Ino, at: &mut Place, live: &mut Vec<(Place, Kind)>) {
    let mut entries = Vec::new();
    let listed = store.read_dir(dir, 0, &mut |e| {
        entries.push((e.name.as_bytes().to_vec(), e.kind));
        ControlFlow::Continue(())
    });
    listed.expect("the model lists what it holds");
    for (name, kind) in entries {
        at.push(name.clone());
        live.push((at.clone(), kind));
        if kind == Kind::Directory {
            let name = adit_core::types::FileName::new(&name).expect("a listed name");
            let ino = store.lookup(dir, name).expect("a listed name").ino;
            collect(store, ino, at, live);
        }
        at.pop();
    }
}

struct Generator {
    rng: Rng,
    limits: Limits,
    names: Vec<Vec<u8>>,
    live: Vec<(Place, Kind)>,
    /// Extended attributes that were set, or tried to.
    xattrs: Vec<(Shown, Vec<u8>)>,
}

impl Generator {
    fn op(&mut self) -> Op {
        let crowded = self.live.len() > ENTRIES_MAX;
        match self.rng.below(100) {
            0..12 if !crowded => Op::Create(self.vacant(), self.perm(false)),
            12..19 if !crowded => Op::Mkdir(self.vacant(), self.perm(true)),
            19..22 if !crowded => Op::Symlink(self.vacant(), self.link_target()),
            22..24 if !crowded => Op::Link(self.any(), self.vacant()),
            24 if !crowded => Op::Mknod(self.vacant(), *self.rng.pick(&[Kind::Fifo, Kind::Socket]), self.perm(false)),
            0..28 => Op::Unlink(self.mostly(Kind::File)),
            28..31 => Op::Rmdir(self.mostly(Kind::Directory)),
            31..41 => self.rename(),
            41..58 => Op::Write(self.target(), self.pieces(), self.rng.next_u64()),
            60 => Op::ReadSparse(self.target()),
            61..66 => Op::Read(self.target(), self.offset(), self.len()),
            66..72 => Op::Truncate(self.target(), self.offset(), self.rng.percent(50)),
            72..75 => Op::Allocate(self.target(), self.offset(), self.len() as u64, self.allocate_mode()),
            58..60 | 75..78 => self.xattr(),
            78..80 => Op::Sync(self.target(), self.rng.percent(50)),
            80..85 => Op::Open(self.rng.below(SLOTS) as u8, self.mostly(Kind::File)),
            85..87 => Op::Close(self.rng.below(SLOTS) as u8),
            87..90 => Op::List(self.mostly(Kind::Directory)),
            90..93 => Op::Stat(self.any()),
            93..94 => Op::ReadLink(self.mostly(Kind::Symlink)),
            94..96 => self.chmod(),
            96..98 => Op::SetTimes(self.any(), self.time(), self.time()),
            98..99 => Op::SyncDir(self.mostly(Kind::Directory)),
            _ => Op::SyncAll,
        }
    }

    /// Few names, so that they meet again, and values that fit into any store together.
    fn xattr(&mut self) -> Op {
        let place = match self.rng.below(3) {
            0 => Shown(Place::new()),
            1 => self.mostly(Kind::Directory),
            _ => self.mostly(Kind::File),
        };
        let name = self.rng.pick(&[&b"user.a"[..], b"user.\xff"]).to_vec();
        // One that was set before, most of the time.
        let set_before = self.xattrs.get(self.rng.below(self.xattrs.len() as u64 + 1) as usize).cloned();
        let (old_place, old_name) = set_before.unwrap_or_else(|| (place.clone(), name.clone()));
        match self.rng.below(8) {
            0 => Op::RemoveXattr(old_place, old_name),
            1 => Op::ListXattrs(old_place),
            2 | 3 => Op::GetXattr(old_place, old_name),
            _ => {
                self.xattrs.push((place.clone(), name.clone()));
                let len = *self.rng.pick(&[0, 1, 30, 300, 900]);
                let set = *self.rng.pick(&[XattrSet::Either, XattrSet::Either, XattrSet::Create, XattrSet::Replace]);
                Op::SetXattr(place, name, (len, self.rng.next_u64()), set)
            }
        }
    }

    fn rename(&mut self) -> Op {
        let mut flags = *self.rng.pick(&[
            RenameFlags::empty(),
            RenameFlags::empty(),
            RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE,
            RenameFlags::EXCHANGE,
        ]);
        if self.limits.whiteouts && !flags.contains(RenameFlags::EXCHANGE) && self.rng.percent(20) {
            flags |= RenameFlags::WHITEOUT;
        }
        let from = self.any();
        let to = match self.rng.below(10) {
            // Into its own subtree, or over a directory above it.
            0 => {
                let mut below = from.0.clone();
                below.push(self.name());
                Shown(below)
            }
            1 => Shown(from.0[..from.0.len().saturating_sub(1)].to_vec()),
            2..6 => self.any(),
            _ => self.vacant(),
        };
        // The root has no name that could change.
        if to.0.is_empty() || from.0.is_empty() { Op::SyncAll } else { Op::Rename(from, to, flags) }
    }

    fn chmod(&mut self) -> Op {
        let directory = self.rng.percent(30);
        let place = self.mostly(if directory { Kind::Directory } else { Kind::File });
        let is_directory = self.live.iter().any(|(p, k)| *p == place.0 && *k == Kind::Directory);
        Op::Chmod(place, self.perm(is_directory))
    }

    /// Always enough for the owner to go on.
    fn perm(&mut self, directory: bool) -> u16 {
        if directory { *self.rng.pick(&[0o755, 0o700, 0o750]) } else { *self.rng.pick(&[0o644, 0o600, 0o755, 0o640]) }
    }

    fn link_target(&mut self) -> Vec<u8> {
        let len = *self.rng.pick(&[1, 20, 100, 1000, 4000]);
        // Dangling, so that what lies behind it needs no thought.
        let mut target = b"./no-such-target".to_vec();
        target.resize(target.len().max(len), b'/');
        target
    }

    fn name(&mut self) -> Vec<u8> {
        // The first, short ones most of the time.
        let among = if self.rng.percent(75) { 6 } else { self.names.len() };
        self.names[self.rng.below(among as u64) as usize].clone()
    }

    /// A name in an existing directory (or, seldom, below something else), taken or not.
    fn vacant(&mut self) -> Shown {
        let want = if self.rng.percent(97) { Kind::Directory } else { Kind::File };
        let parents: Vec<&Place> =
            self.live.iter().filter(|(p, k)| *k == want && p.len() < 5).map(|(p, _)| p).collect();
        // The root counts as three directories.
        let at = self.rng.below(parents.len() as u64 + 3) as usize;
        let mut place = parents.get(at).map_or_else(Vec::new, |p| (*p).clone());
        place.push(self.name());
        Shown(place)
    }

    /// Something that exists, most of the time.
    fn any(&mut self) -> Shown {
        if self.live.is_empty() || self.rng.percent(8) {
            return self.vacant();
        }
        Shown(self.rng.pick(&self.live).0.clone())
    }

    /// Something of `kind`, most of the time.
    fn mostly(&mut self, kind: Kind) -> Shown {
        let fitting: Vec<&Place> = self.live.iter().filter(|(_, k)| *k == kind).map(|(p, _)| p).collect();
        if fitting.is_empty() || self.rng.percent(10) {
            return self.any();
        }
        Shown((*self.rng.pick(&fitting)).clone())
    }

    fn target(&mut self) -> Target {
        if self.rng.percent(40) {
            return Target::Slot(self.rng.below(SLOTS) as u8);
        }
        Target::At(self.mostly(Kind::File).0)
    }

    /// An offset or length: on a border of units, beside one, or anywhere.
    fn offset(&mut self) -> u64 {
        let unit = u64::from(self.limits.unit_len_bytes);
        let border = self.rng.below(UNITS_MAX) * unit;
        match self.rng.below(6) {
            0 => 0,
            1 => border,
            2 => border + 1,
            3 => border.saturating_sub(1),
            4 => self.rng.below(300),
            _ => self.rng.below(UNITS_MAX * unit),
        }
    }

    /// A length of at least 1.
    fn len(&mut self) -> usize {
        let unit = u64::from(self.limits.unit_len_bytes);
        let len = match self.rng.below(7) {
            0 => 1,
            1 => unit,
            2 => unit - 1,
            3 => unit + 1,
            4 => 1 + self.rng.below(2 * unit),
            _ => 1 + self.rng.below(500),
        };
        len as usize
    }

    /// One piece most of the time; else some that ascend and do not overlap.
    fn pieces(&mut self) -> Vec<(u64, usize)> {
        let mut pieces = vec![(self.offset(), self.len())];
        while self.rng.percent(20) && pieces.len() < 4 {
            let &(offset, len) = pieces.last().expect("one is there");
            pieces.push((offset + len as u64 + self.rng.below(3) * self.rng.below(9000), self.len()));
        }
        pieces
    }

    fn allocate_mode(&mut self) -> AllocateMode {
        *self.rng.pick(&[
            AllocateMode::Extend,
            AllocateMode::KeepSize,
            AllocateMode::PunchHole,
            AllocateMode::Zero { keep_size: true },
            AllocateMode::Zero { keep_size: false },
        ])
    }

    fn time(&mut self) -> Timestamp {
        // Whole range of what every host filesystem keeps to the nanosecond.
        Timestamp { secs: self.rng.below(1 << 31) as i64, nanos: self.rng.below(1_000_000_000) as u32 }
    }
}
