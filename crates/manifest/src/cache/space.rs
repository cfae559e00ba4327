//! How much the folder holds, and how much it may.
//!
//! Processes tell each other in the file `usage` what they added; whoever makes room counts anew and corrects it. So the limit is
//! kept up to what the processes have not told yet ([`TELL_STEP_MAX`] each). Whoever reaches it makes room first, and if
//! there is none to be made, keeps nothing.
//!
//! The disk is a limit as well: some of it is left to others ([`keep_free`]), first of all to the volume of a writable mount, which often lies on
//! the same one. What others take of it is seen when something is to be added, and every two seconds.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_core::media::{HostFile, NewFile};
use adit_core::types::Access;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Inner;
use super::generation::FILE_PERM;
use super::id::ObjectId;
use super::scan::Goal;
use super::work::Job;
use crate::format::ContentHash;

const USAGE: &str = "usage";
const USAGE_LEN: usize = 16;
/// For the mark of the number in the file.
const USAGE_SEED: u64 = u64::from_le_bytes(*b"ADITUSED");

/// Most bytes that a process adds before it tells.
const TELL_STEP_MAX: u64 = 8 << 20;
/// Most bytes of one fetch of several blocks.
const RUN_LEN_MAX: u64 = 1 << 30;
/// What is left of the disk to others, in bytes: a part of it, but no less than the least, and no more than the most.
const KEEP_FREE_PART: u64 = 20;
/// The segments and the log of a volume that begins, and what a program writes before anybody looks.
const KEEP_FREE_MIN: u64 = 64 << 20;
/// Most that the least may be of a small disk.
const KEEP_FREE_PART_MAX: u64 = 4;
const KEEP_FREE_MAX: u64 = 1 << 30;
/// What a short file takes on most hosts.
pub(super) const UNIT_LEN: u64 = 4096;
/// How long nothing is kept after there was no room to be made.
const FULL_FOR: Duration = Duration::from_secs(1);

/// The accounts of one process.
pub(super) struct Space {
    /// What it was given.
    given: u64,
    /// What the disk leaves, as of the last look.
    ceiling: AtomicU64,
    /// What is left of the disk to others, as of the last look.
    kept_free: AtomicU64,
    /// What all processes told, as of the last look.
    told: AtomicU64,
    /// What this one added since.
    untold: AtomicI64,
    /// What it is about to add.
    reserved: AtomicU64,
    /// Nothing is kept before then.
    full_until: Mutex<Option<Instant>>,
    /// Held by who makes room in this process.
    pub(super) making_room: Mutex<()>,
    /// How often room was made.
    pub(super) rounds: AtomicU64,
    /// Held by who reads and writes the file.
    telling: Mutex<()>,
    /// Whether a thread is to make room.
    pub(super) is_scheduled: AtomicBool,
}

impl Space {
    pub fn new(given: u64) -> Self {
        Space {
            given,
            ceiling: AtomicU64::new(u64::MAX),
            kept_free: AtomicU64::new(0),
            told: AtomicU64::new(0),
            untold: AtomicI64::new(0),
            reserved: AtomicU64::new(0),
            full_until: Mutex::new(None),
            making_room: Mutex::new(()),
            rounds: AtomicU64::new(0),
            telling: Mutex::new(()),
            is_scheduled: AtomicBool::new(false),
        }
    }

    /// Bytes that all objects take, with what is being fetched.
    pub fn estimate(&self) -> u64 {
        self.written().saturating_add(self.reserved.load(Ordering::Relaxed))
    }

    /// The same, without what is being fetched.
    fn written(&self) -> u64 {
        self.told.load(Ordering::Relaxed).saturating_add_signed(self.untold.load(Ordering::Relaxed))
    }

    /// Most bytes that all objects may take now.
    pub fn limit(&self) -> u64 {
        self.given.min(self.ceiling.load(Ordering::Relaxed))
    }

    /// Bytes of the disk that are left to others.
    pub fn kept_free(&self) -> u64 {
        self.kept_free.load(Ordering::Relaxed)
    }

    /// From here on room is made in the background.
    pub fn high(&self) -> u64 {
        let limit = self.limit();
        limit - limit / 16
    }

    /// How much is left when room was made.
    pub fn low(&self) -> u64 {
        let limit = self.limit();
        limit - limit / 8
    }

    /// Most bytes that are fetched in one call.
    pub fn run_max(&self) -> u64 {
        (self.limit() / 8).min(RUN_LEN_MAX)
    }

    /// How much may be added before it is told.
    fn step(&self) -> u64 {
        (self.limit() / 256).min(TELL_STEP_MAX)
    }

    /// Whether there could be room for so much at all.
    pub fn fits(&self, bytes: u64) -> bool {
        bytes <= self.low()
    }

    /// Notes that so much was added without a reservation.
    pub fn added(&self, bytes: u64) {
        self.untold.fetch_add(bytes.cast_signed(), Ordering::Relaxed);
    }

    fn is_full(&self) -> bool {
        let full_until = &mut *self.full_until.lock();
        full_until.take_if(|until| *until <= Instant::now());
        full_until.is_some()
    }

    fn set_full(&self) {
        *self.full_until.lock() = Some(Instant::now() + FULL_FOR);
    }
}

/// Room that its holder may fill.
pub(super) struct Reservation<'a> {
    inner: &'a Inner,
    left: u64,
}

impl Reservation<'_> {
    /// Notes that so much of it was filled.
    pub fn take(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        self.inner.space.reserved.fetch_sub(bytes, Ordering::Relaxed);
        self.inner.space.added(bytes);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let space = &self.inner.space;
        space.reserved.fetch_sub(self.left, Ordering::Relaxed);
        if space.untold.load(Ordering::Relaxed).unsigned_abs() > space.step() {
            self.inner.tell_usage();
        }
    }
}

/// Whether an error says that the host has no space.
pub(super) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What is left to others of a disk of so many bytes.
fn keep_free(disk_len: u64) -> u64 {
    let least = KEEP_FREE_MIN.min(disk_len / KEEP_FREE_PART_MAX);
    (disk_len / KEEP_FREE_PART).max(least).min(KEEP_FREE_MAX)
}

/// Nobody's id, for messages about the folder as a whole.
const NO_OBJECT: ObjectId = ObjectId { hash: ContentHash([0; 16]), len: 0 };

impl Inner {
    /// Learns how much there is.
    pub(super) fn open_space(&self) {
        self.tell_usage();
        if self.queue.is_inline() {
            self.make_room(Goal::Limit);
        } else {
            self.queue.submit(Job::MakeRoom);
        }
    }

    /// Room for `bytes` more, if there is any or it can be made.
    pub(super) fn reserve(&self, bytes: u64) -> Option<Reservation<'_>> {
        let space = &self.space;
        if space.is_full() {
            return None;
        }
        let is_over = self.look_at_disk();
        if !space.fits(bytes) {
            // Others need what is here, or there is too much of it from before.
            if is_over && self.queue.is_inline() {
                self.make_room(Goal::Limit);
            } else if is_over && !space.is_scheduled.swap(true, Ordering::AcqRel) {
                self.queue.submit(Job::MakeRoom);
            }
            return None;
        }
        space.reserved.fetch_add(bytes, Ordering::Relaxed);
        let room = Reservation { inner: self, left: bytes };
        let used = space.estimate();
        if used > space.high() && !self.queue.is_inline() && !space.is_scheduled.swap(true, Ordering::AcqRel) {
            self.queue.submit(Job::MakeRoom);
        }
        if used > space.limit() {
            self.make_room(Goal::RoomFor(bytes));
            self.look_at_disk();
            if space.estimate() > space.limit() {
                space.set_full();
                return None;
            }
        }
        Some(room)
    }

    /// Learns what the disk leaves for objects. Whether there is more than that.
    pub(super) fn look_at_disk(&self) -> bool {
        let space = &self.space;
        let (kept_free, ceiling) = match self.host.statfs() {
            // Some filesystems tell nothing.
            Ok(disk) if disk.blocks > 0 => {
                let bytes = |blocks: u64| blocks.saturating_mul(disk.block_size.into());
                let kept_free = self.options.keep_free_bytes.unwrap_or_else(|| keep_free(bytes(disk.blocks)));
                let all = space.written().saturating_add(bytes(disk.blocks_available));
                (kept_free, all.saturating_sub(kept_free))
            }
            Ok(_) => (0, u64::MAX),
            Err(e) => {
                self.note_of_folder("ask for the room on the disk", &e);
                (0, u64::MAX)
            }
        };
        space.kept_free.store(kept_free, Ordering::Relaxed);
        space.ceiling.store(ceiling, Ordering::Relaxed);
        space.written() > space.limit()
    }

    /// What to do about an error of the folder: if the host is full, room is made. Whether it is worth another try.
    pub(super) fn look_for_room(&self, e: &io::Error) -> bool {
        if !is_full(e) {
            return false;
        }
        let made = self.make_room(Goal::LessByAnEighth);
        if !made {
            self.space.set_full();
        }
        made
    }

    /// Tells what was added, and learns what others added.
    pub(super) fn tell_usage(&self) {
        let _turn = self.space.telling.lock();
        let added = self.space.untold.swap(0, Ordering::Relaxed);
        let told = self.space.told.load(Ordering::Relaxed);
        let all = self.change_usage(|all| all.unwrap_or(told).saturating_add_signed(added)).unwrap_or_else(|e| {
            self.note("tell what was added", &NO_OBJECT, &e);
            told.saturating_add_signed(added)
        });
        self.space.told.store(all, Ordering::Relaxed);
    }

    /// Corrects what was told, by a count.
    pub(super) fn set_usage(&self, bytes: u64) {
        let _turn = self.space.telling.lock();
        self.space.untold.store(0, Ordering::Relaxed);
        self.space.told.store(bytes, Ordering::Relaxed);
        if let Err(e) = self.change_usage(|_| bytes) {
            self.note("tell what there is", &NO_OBJECT, &e);
        }
    }

    fn change_usage(&self, change: impl FnOnce(Option<u64>) -> u64) -> io::Result<u64> {
        let file = self.named_file(USAGE)?;
        file.hold_others();
        let changed = (|| {
            let mut bytes = [0; USAGE_LEN];
            let len = file.read_at(0, &mut bytes)?;
            let old = bytes.get(..len).and_then(usage_in);
            let new = change(old);
            if old != Some(new) {
                file.write_at(0, &usage(new))?;
            }
            Ok(new)
        })();
        file.admit_others();
        changed
    }

    /// A file in the folder itself, which is made if there is none.
    pub(super) fn named_file(&self, name: &str) -> io::Result<Box<dyn HostFile>> {
        let path = Path::new(name);
        let new = NewFile { content: &[], perm: FILE_PERM, owner: None, durable: false };
        match self.host.open(path, Access::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => match self.host.publish(path, &new) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.host.open(path, Access::Write),
                result => result,
            },
            result => result,
        }
    }

    /// Counts an error of the folder that is of no single object.
    pub(super) fn note_of_folder(&self, doing: &str, e: &io::Error) {
        self.note(doing, &NO_OBJECT, e);
    }
}

fn usage(bytes: u64) -> [u8; USAGE_LEN] {
    let mut record = [0; USAGE_LEN];
    record[..8].copy_from_slice(&bytes.to_le_bytes());
    let mark = xxh3_64_with_seed(&record[..8], USAGE_SEED);
    record[8..].copy_from_slice(&mark.to_le_bytes());
    record
}

fn usage_in(record: &[u8]) -> Option<u64> {
    let bytes = u64::from_le_bytes(*record.first_chunk()?);
    (record == usage(bytes)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_number_is_believed() {
        let record = usage(12345);
        assert_eq!(usage_in(&record), Some(12345));
        assert_eq!(usage_in(&[0; USAGE_LEN]), None);
        for bit in 0..USAGE_LEN * 8 {
            let mut record = record;
            record[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(usage_in(&record), None, "bit {bit}");
        }
        for len in 0..USAGE_LEN {
            assert_eq!(usage_in(&record[..len]), None, "{len}");
        }
    }

    #[test]
    fn a_part_of_each_disk_is_left_to_others() {
        let kept = [0, 40 << 20, 220 << 20, 1 << 30, 10 << 30, 1 << 40].map(keep_free);
        assert_eq!(kept, [0, 10 << 20, 55 << 20, 64 << 20, 512 << 20, 1 << 30]);
    }

    #[test]
    fn the_marks_are_in_order() {
        for limit in [0, 1, 7, 1 << 20, u64::MAX] {
            let space = Space::new(limit);
            assert!(space.low() <= space.high() && space.high() <= limit);
        }
    }
}
