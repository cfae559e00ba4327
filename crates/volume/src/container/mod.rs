//! The file as a whole: superblocks, syncs, and the space.
//!
//! [`Container`] writes a superblock only by [`Container::flip`], which syncs one slot while the other one stays whole. After a
//! failed sync, or a failed write of anything but a file's data, nothing more is written: what is known then is what the next
//! opening finds. That the host has no space ends only what was to be written, unless something durable leads to it.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_core::media::BlockFile;
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

use self::host::Refusal;
use crate::format::container::{
    DataLocation, SEGMENTS_MAX, SLOT_LEN_BYTES, SLOT_OFFSETS, SegmentRun, Superblock, SuperblockError, newest,
};
use crate::table::{BLOCK_LEN_BYTES, CapacityUsed, Run};

pub(crate) mod bitmap;
pub(crate) mod folder;
mod host;
pub(crate) mod space;

pub use folder::Folder;
pub(crate) use space::{Geometry, Space};

/// Least space kept back for deletes, gc and commits, unless the volume is small.
const KEPT_BACK_MIN_BYTES: u64 = 16 << 20;

/// How many objects a data folder may lack at its end.
const OBJECTS_MISSING_MAX: u32 = 1 << 16;

/// How syncs stand. A caller waits for one that began after its call.
#[derive(Default)]
struct Syncs {
    started: u64,
    finished: u64,
    running: bool,
    /// Batches up to this one are durable.
    durable: u64,
}

/// An open volume file. Locking: `superblock` before `space`; neither is held while waiting for a sync, but `superblock`
/// for its own.
pub(crate) struct Container {
    file: Arc<dyn BlockFile>,
    /// Where the blocks of files are, if not in the file.
    folder: Option<Folder>,
    name: String,
    segment_len: u32,
    superblock: Mutex<Superblock>,
    space: Mutex<Space>,
    syncs: Mutex<Syncs>,
    synced: Condvar,
    /// The number of the last batch that is in the log.
    appended: AtomicU64,
    failure: OnceLock<String>,
    /// Whether nothing may be written at all.
    read_only: bool,
    /// The slots that were damaged when it was opened, by their places in the file.
    found_damaged: Vec<u64>,
    punches: AtomicBool,
    allocates: AtomicBool,
    /// How the host said last that it has no space.
    refusal: Mutex<ErrorKind>,
    /// The room that was left when it said so, for the file and for the folder.
    file_refusal: Refusal,
    folder_refusal: Refusal,
    /// How many bytes of both slots have space.
    slots_allocated: AtomicU64,
    /// Of the file, in bytes.
    len: Mutex<u64>,
}

/// The geometry that `superblock` implies, with so many segments for the log.
fn geometry(superblock: &Superblock, log_segments: u32) -> Geometry {
    let segments = (superblock.capacity / u64::from(superblock.segment_len)).min(u64::from(SEGMENTS_MAX)) as u32;
    let kept_back = KEPT_BACK_MIN_BYTES.max(superblock.capacity / 100).min(superblock.capacity / 8);
    Geometry {
        segments,
        blocks: superblock.segment_len / BLOCK_LEN_BYTES as u32,
        log_segments,
        kept_back: kept_back.div_ceil(u64::from(superblock.segment_len)) as u32,
    }
}

/// The least capacity, in bytes, that has room for what is in use in `space`, and for what must stay free.
fn capacity_least(superblock: &Superblock, space: &Space) -> u64 {
    let segment_len = u64::from(superblock.segment_len);
    let mut segments = space.used();
    loop {
        let capacity = segments.saturating_mul(segment_len);
        let kept_back = geometry(&Superblock { capacity, ..superblock.clone() }, 0).kept_back;
        // More capacity keeps more back, but an eighth of it at most: this comes to an end.
        match space.used().saturating_add(u64::from(kept_back)) {
            needed if needed <= segments => return capacity,
            needed => segments = needed,
        }
    }
}

impl Container {
    /// Writes the first superblock of a volume to both slots, durably.
    pub fn init(file: &dyn BlockFile, name: &str, superblock: &Superblock) -> Result<()> {
        let failed = |e: std::io::Error| FsError::from(e).on("write", name);
        let bytes = superblock.encode().ok_or_else(|| FsError::new(ErrorKind::InvalidInput).on("format", name))?;
        file.set_len(2 * u64::from(superblock.segment_len)).map_err(failed)?;
        // What a superblock names lies within the file: its length first.
        file.sync().map_err(failed)?;
        for offset in SLOT_OFFSETS {
            file.write_at(offset, &bytes).map_err(failed)?;
        }
        file.sync().map_err(failed)
    }

    /// What the superblocks of `file` say. `InvalidInput` if it is not a volume.
    pub fn read_superblock(file: &dyn BlockFile, name: &str) -> Result<Superblock> {
        // One that cannot be read is as good as a damaged one.
        let slots = match SLOT_OFFSETS.map(|offset| read_slot(file, offset)) {
            [Err(e), Err(_)] => return Err(FsError::from(e).on("read", name)),
            slots => slots.map(|slot| slot.unwrap_or(Err(SuperblockError::Damaged))),
        };
        newest(slots).map_err(|e| {
            use SuperblockError as E;
            let kind = match e {
                E::NotAVolume => ErrorKind::InvalidInput,
                E::Damaged => ErrorKind::Corrupt,
                E::Version(_) | E::Features(_) => ErrorKind::NotSupported,
            };
            FsError::new(kind).on("open", name).because(e)
        })
    }

    /// Opens `file`, whose lock the caller has, with the folder that its superblock names, if it does. `log_segments`: how many
    /// the log may take.
    pub fn open(
        file: Arc<dyn BlockFile>,
        folder: Option<Folder>,
        name: &str,
        read_only: bool,
        log_segments: u32,
    ) -> Result<Container> {
        let superblock = Container::read_superblock(&*file, name)?;
        let found_damaged = damaged_slots(&*file);
        let slots_allocated = SLOT_OFFSETS.map(|offset| slot_space(&*file, offset)).into_iter().min().unwrap_or(0);
        if (superblock.data == DataLocation::External) != folder.is_some() {
            let why = "the blocks of its files are elsewhere";
            return Err(FsError::new(ErrorKind::InvalidInput).on("open", name).because(why));
        }
        let len = file.len().map_err(|e| FsError::from(e).on("open", name))?;
        let limit = len.div_ceil(u64::from(superblock.segment_len)).min(u64::from(SEGMENTS_MAX)) as u32;
        let geometry = geometry(&superblock, log_segments);
        let space = match &folder {
            None => Space::new(geometry, limit),
            Some(folder) => {
                folder.claim(&superblock, read_only)?;
                // The last ones may be missing, which costs what they held and no more; but a number that was made up would
                // cost memory for all before it.
                let end = folder.end()?;
                let objects = end.max(geometry.segments.min(end.saturating_add(OBJECTS_MISSING_MAX)));
                Space::with_folder(geometry, limit, objects)
            }
        };
        Ok(Container {
            file,
            folder,
            name: name.to_owned(),
            segment_len: superblock.segment_len,
            space: Mutex::new(space),
            superblock: Mutex::new(superblock),
            syncs: Mutex::default(),
            synced: Condvar::new(),
            appended: AtomicU64::new(0),
            failure: OnceLock::new(),
            read_only,
            found_damaged,
            punches: AtomicBool::new(true),
            allocates: AtomicBool::new(true),
            refusal: Mutex::new(ErrorKind::NoSpace),
            file_refusal: Refusal::default(),
            folder_refusal: Refusal::default(),
            slots_allocated: AtomicU64::new(slots_allocated),
            len: Mutex::new(len),
        })
    }

    /// The file's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file's length in bytes.
    pub fn len(&self) -> u64 {
        *self.len.lock()
    }

    pub fn segment_len(&self) -> u32 {
        self.segment_len
    }

    /// A copy of the superblock as it is on disk.
    pub fn superblock(&self) -> Superblock {
        self.superblock.lock().clone()
    }

    /// The slots that do not hold a superblock, by their places in the file: those that did not when it was opened, and those
    /// that do not now. An opening for writing writes both again.
    pub fn damaged_slots(&self) -> (&[u64], Vec<u64>) {
        // Nobody writes one meanwhile.
        let _superblock = self.superblock.lock();
        (&self.found_damaged, damaged_slots(&*self.file))
    }

    /// In how many runs of segments the key-value store is.
    pub fn kv_runs(&self) -> usize {
        self.superblock.lock().kv_segments.len()
    }

    pub fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock()
    }

    /// Where a segment begins in the file.
    pub fn segment_offset(&self, segment: u32) -> u64 {
        u64::from(segment) * u64::from(self.segment_len)
    }

    /// `Corrupt`, naming the file.
    pub fn corrupt(&self, what: impl std::fmt::Display) -> FsError {
        FsError::new(ErrorKind::Corrupt).on("read", &self.name).because(what.to_string())
    }

    /// Ends all writing, for good. Gives the error for who found it: `Io`, since what was applied stays applied.
    pub fn fail(&self, what: &'static str, e: std::io::Error) -> FsError {
        let text = format!("{what} failed ({e}); nothing more is written to it, reopen it to go on");
        let _ = self.failure.set(text.clone());
        tracing::error!(file = self.name, "{text}");
        FsError::new(ErrorKind::Io).on(what, &self.name).because(text)
    }

    /// Ends all writing, quietly.
    #[cfg(any(test, feature = "testing"))]
    pub fn abandon(&self) {
        let _ = self.failure.set("abandoned".into());
    }

    /// Whether writing ended.
    pub fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// Why writing ended, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// `ReadOnly` if nothing may be written, or writing ended.
    pub fn check_writable(&self) -> Result<()> {
        if let Some(text) = self.failure.get() {
            return Err(FsError::new(ErrorKind::ReadOnly).on("write", &self.name).because(text.clone()));
        }
        if self.read_only {
            return Err(FsError::new(ErrorKind::ReadOnly).on("write", &self.name));
        }
        Ok(())
    }

    /// Reads blocks of files. What is not there is zeros; returns how many bytes there were.
    pub fn read_blocks(&self, block: u64, buf: &mut [u8]) -> Result<usize> {
        let offset = offset_of(block)?;
        let Some(folder) = &self.folder else { return self.read(offset, buf) };
        let len = folder.read(self.segment_len, offset, buf)?;
        buf.get_mut(len..).unwrap_or_default().fill(0);
        Ok(len)
    }

    /// Writes blocks of files that nobody refers to yet; a failure is the caller's.
    pub fn write_blocks(&self, block: u64, bytes: &[u8]) -> Result<()> {
        self.check_writable()?;
        let offset = offset_of(block)?;
        match &self.folder {
            None => {
                let written = self.with_file(bytes.len() as u64, || self.file.write_at(offset, bytes));
                written.map_err(|e| FsError::from(e).on("write", &self.name))?;
            }
            Some(folder) => {
                let written = folder.write(self.segment_len, offset, bytes);
                self.folder_refusal.heed(bytes.len() as u64, &written, || folder.objects.host_room_bytes());
                return written.map_err(|e| FsError::from(e).on("write", &folder.name));
            }
        }
        // Early, so that a sync finds little to do.
        const WRITEBACK_MIN_LEN: usize = 256 << 10;
        if bytes.len() >= WRITEBACK_MIN_LEN {
            self.start_writeback(offset, bytes.len() as u64);
        }
        Ok(())
    }

    /// Writes blocks of files that somebody refers to, with what is in them already; a failure ends all writing.
    pub fn write_blocks_again(&self, block: u64, bytes: &[u8]) -> Result<()> {
        let offset = offset_of(block)?;
        match &self.folder {
            None => self.write(offset, bytes),
            Some(folder) => {
                self.check_writable()?;
                folder.write(self.segment_len, offset, bytes).map_err(|e| self.fail("write", e))
            }
        }
    }

    /// The blocks up to `end` of files are about to be written.
    pub fn extend_to_block(&self, end: u64) -> Result<()> {
        let per_segment = u64::from(self.segment_len) / BLOCK_LEN_BYTES as u64;
        match self.folder {
            None if end > 0 => self.try_extend_to(((end - 1) / per_segment) as u32),
            _ => Ok(()),
        }
    }

    /// What to say of a block that is not there.
    pub fn missing_block(&self, block: u64) -> FsError {
        let Some(folder) = &self.folder else {
            return self.corrupt(format!("block {block} lies beyond the end of the file"));
        };
        let why = format!("block {block} is missing");
        FsError::new(ErrorKind::Corrupt).on("read", &folder.name).because(why)
    }

    /// The label of the folder, if there is one, says that a superblock of `epoch` is about to be written, or has been.
    pub fn label_folder(&self, epoch: u64, opening: bool) -> Result<()> {
        self.check_writable()?;
        match &self.folder {
            Some(folder) => folder.set_epoch(&self.superblock(), epoch, opening),
            None => Ok(()),
        }
    }

    /// As [`Container::punch_segment`], for free blocks of files, all in one segment.
    pub fn punch_blocks(&self, run: Run) {
        let block_len = BLOCK_LEN_BYTES as u64;
        let (offset, len) = (run.start * block_len, u64::from(run.count) * block_len);
        match &self.folder {
            None => self.punch(offset, len),
            Some(folder) => {
                let (object, at) = (offset / u64::from(self.segment_len), offset % u64::from(self.segment_len));
                self.punch_with(|| folder.objects.punch(object as u32, at, len));
            }
        }
    }

    /// As [`Container::punch_segment`], for a segment without blocks of files.
    pub fn drop_data_segment(&self, segment: u32) {
        match &self.folder {
            None => self.punch_segment(segment),
            Some(folder) => self.remove_object(folder, segment),
        }
    }

    fn remove_object(&self, folder: &Folder, object: u32) {
        if let Err(e) = folder.objects.remove(object) {
            tracing::warn!(folder = folder.name, "object {object:08x} could not be removed: {e}");
        }
    }

    /// Removes the objects of the folder that a crash left without an owner. Nobody binds a segment meanwhile: the caller has
    /// `space`.
    pub fn drop_stray_objects(&self, space: &Space) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let objects = folder.objects.list().map_err(|e| FsError::from(e).on("list", &folder.name))?;
        for object in objects.into_iter().filter(|object| !space.has_data(*object)) {
            self.remove_object(folder, object);
        }
        Ok(())
    }

    /// Changes the capacity. `InvalidInput` if no volume can have it, `NoSpace` if what is there would not fit.
    pub fn set_capacity(&self, capacity: u64) -> Result<()> {
        let wanted = Superblock { capacity, ..self.superblock() };
        if wanted.encode().is_none_or(|bytes| Superblock::decode(&bytes).is_err()) {
            let most = u64::from(SEGMENTS_MAX).saturating_mul(wanted.segment_len.into()) >> 40;
            let why =
                format!("made as small as it was, it can have {most} TiB: make a larger one, and copy what it holds");
            return Err(FsError::new(ErrorKind::InvalidInput).on("resize", &self.name).because(why));
        }
        let old = {
            let mut space = self.space.lock();
            let old = space.geometry();
            if !space.resize(geometry(&wanted, old.log_segments)) {
                let least = capacity_least(&wanted, &space).div_ceil(1 << 20);
                let why = format!("what it holds needs at least {least} MiB");
                return Err(FsError::new(ErrorKind::NoSpace).on("resize", &self.name).because(CapacityUsed::new(why)));
            }
            old
        };
        self.flip(|superblock| superblock.capacity = capacity).inspect_err(|_| {
            self.space.lock().resize(old);
        })
    }

    /// The log holds batch `seq` now.
    pub fn set_appended(&self, seq: u64) {
        self.appended.store(seq, Ordering::Release);
    }

    /// The number of the last batch in the log.
    pub fn appended(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    /// Batches up to this one are known to be durable.
    pub fn durable(&self) -> u64 {
        self.syncs.lock().durable
    }

    /// Waits until batch `seq` is durable, with what was written before it.
    pub fn sync_up_to(&self, seq: u64) -> Result<()> {
        if self.durable() >= seq {
            return Ok(());
        }
        self.sync()
    }

    /// Makes everything durable that was written before the call. One sync serves all who wait for one.
    pub fn sync(&self) -> Result<()> {
        let mut syncs = self.syncs.lock();
        let wanted = syncs.started + 1;
        loop {
            if let Some(text) = self.failure.get() {
                return Err(FsError::new(ErrorKind::Io).on("sync", &self.name).because(text.clone()));
            }
            if self.read_only || syncs.finished >= wanted {
                return Ok(());
            }
            if !syncs.running {
                break;
            }
            self.synced.wait(&mut syncs);
        }
        syncs.running = true;
        syncs.started += 1;
        let number = syncs.started;
        drop(syncs);
        let covered = self.appended();
        // Blocks first: a record or a page is not durable before what it refers to.
        let blocks = self.folder.as_ref().map_or(Ok(()), |folder| folder.objects.sync());
        let result = blocks.and_then(|()| self.file.sync());
        // Before the others look.
        let result = result.map_err(|e| self.fail("sync", e));
        let mut syncs = self.syncs.lock();
        syncs.running = false;
        syncs.finished = number;
        if result.is_ok() {
            syncs.durable = syncs.durable.max(covered);
        }
        self.synced.notify_all();
        result
    }

    /// Writes the superblock that counts to its own slot again, and syncs. What was read may be in the host's cache alone after a
    /// kill, or come from the copy; the first flip of an opening overwrites the other slot.
    pub fn secure_superblock(&self) -> Result<()> {
        self.check_writable()?;
        let current = self.superblock.lock();
        let bytes = current.encode().ok_or_else(|| self.corrupt("the superblock is too long"))?;
        self.write(slot_offset(current.generation), &bytes)?;
        self.sync()
    }

    /// Writes a changed superblock over the one slot, syncs it, and then copies it to the other slot, so that a slot which
    /// goes bad later costs nothing. What it refers to is durable already.
    ///
    /// The next flip overwrites that copy: until it has synced, the slot of this one stays as it is. A longer one than before may
    /// find no space: `NoSpace` has changed nothing.
    pub fn flip(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        self.check_writable()?;
        let mut current = self.superblock.lock();
        let mut new = current.clone();
        change(&mut new);
        new.generation = current.generation.wrapping_add(1);
        let too_long = || std::io::Error::new(std::io::ErrorKind::StorageFull, "the superblock has no more room");
        let bytes = new.encode().ok_or_else(|| self.fail("write", too_long()))?;
        // Not what has space already: some hosts want it twice.
        let allocated = (bytes.len() as u64).next_multiple_of(BLOCK_LEN_BYTES as u64);
        if allocated > self.slots_allocated.load(Ordering::Relaxed) {
            SLOT_OFFSETS.into_iter().try_for_each(|offset| self.allocate(offset, allocated))?;
            self.slots_allocated.store(allocated, Ordering::Relaxed);
        }
        self.write(slot_offset(new.generation), &bytes)?;
        self.sync()?;
        let other = slot_offset(new.generation.wrapping_add(1));
        *current = new;
        self.write(other, &bytes)
    }
}

/// What the slot at `offset` says.
fn read_slot(file: &dyn BlockFile, offset: u64) -> std::io::Result<Result<Superblock, SuperblockError>> {
    let mut bytes = vec![0; SLOT_LEN_BYTES];
    let len = file.read_at(offset, &mut bytes)?;
    Ok(Superblock::decode(bytes.get(..len).unwrap_or_default()))
}

/// How many bytes of the slot at `offset` have space for sure: those of the superblock there, in whole blocks.
fn slot_space(file: &dyn BlockFile, offset: u64) -> u64 {
    match read_slot(file, offset) {
        Ok(Ok(superblock)) => {
            superblock.encode().map_or(0, |bytes| (bytes.len() as u64).next_multiple_of(BLOCK_LEN_BYTES as u64))
        }
        _ => 0,
    }
}

/// The slots that do not hold a superblock, or cannot be read, by their places.
fn damaged_slots(file: &dyn BlockFile) -> Vec<u64> {
    SLOT_OFFSETS.into_iter().filter(|&offset| !matches!(read_slot(file, offset), Ok(Ok(_)))).collect()
}

/// Where the superblock of a generation is written first.
fn slot_offset(generation: u64) -> u64 {
    if generation.is_multiple_of(2) { SLOT_OFFSETS[0] } else { SLOT_OFFSETS[1] }
}

/// Where a block of a file is in the space that has it.
fn offset_of(block: u64) -> Result<u64> {
    block.checked_mul(BLOCK_LEN_BYTES as u64).ok_or_else(|| ErrorKind::InvalidInput.into())
}

/// The runs of a list of segments, 0 for a hole.
pub(crate) fn runs_of(segments: impl Iterator<Item = u32>) -> Vec<SegmentRun> {
    let mut runs: Vec<SegmentRun> = Vec::new();
    for start in segments {
        match runs.last_mut() {
            Some(last) if last.start == 0 && start == 0 => last.count += 1,
            Some(last) if last.start != 0 && last.start.checked_add(last.count) == Some(start) => last.count += 1,
            _ => runs.push(SegmentRun { start, count: 1 }),
        }
    }
    runs
}
