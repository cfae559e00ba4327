//! [`Base`]: the table and the extents of a volume file.
//!
//! What is applied is in the log and in memory; a checkpoint moves it into the key-value store, and the log begins anew.
//! Locks, in this order: `checkpointing`, `writer`, `tables`, then the container's. Readers take `tables` alone, shared.

mod seams;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use adit_core::media::BlockFile;
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::{Condvar, Mutex, RwLock};

use super::background::Work;
use super::checkpoint::Unfinished;
use super::log::Log;
use super::memory::Tables;
use super::room::{FoundFull, Share};
use super::{
    Allocation, BATCH_LEN_LEAST_BYTES, BATCH_LEN_MOST_BYTES, Batch, Info, KEY_LEN_MAX_BYTES, NewVolume, OWN_PREFIX,
    Options, Run, SHORT_VALUE_LEN_MAX_BYTES, Seq, Table, VALUE_LEN_MAX_BYTES,
};
use crate::container::{Container, Folder};
use crate::format::container::{
    DataLocation, Durability, FEATURE_LONG, KV_RUNS_MAX, SEGMENT_LEN_MAX_BYTES, SEGMENT_LEN_MIN_BYTES, SEGMENTS_MAX,
    SLOT_LEN_BYTES, Superblock,
};
use crate::format::log::{Draft, Seed};
use crate::kv::{Kv, Redb, View};

/// Smallest volume, in bytes.
pub const CAPACITY_MIN_BYTES: u64 = 4 << 20;
/// Most capacity, in bytes: as many of the largest segments as there may be.
pub const CAPACITY_MAX_BYTES: u64 = SEGMENTS_MAX as u64 * SEGMENT_LEN_MAX_BYTES as u64;

/// Log that a checkpoint is made at, unless the volume is small.
const LOG_MAX_BYTES: u64 = 32 << 20;

/// Memory that a checkpoint is made at, unless the volume is small.
const MEMORY_MAX_BYTES: u64 = 16 << 20;

pub(super) struct Shared {
    pub container: Arc<Container>,
    pub kv: Redb,
    pub durability: Durability,
    pub options: Options,
    pub log_bytes_max: u64,
    pub batch_len_max: usize,
    pub memory_bytes_max: usize,
    pub kv_runs_max: u64,
    pub replayed: usize,
    pub writer: Mutex<Log>,
    pub tables: RwLock<Tables>,
    /// What the last checkpoint could not end, as the host has no space.
    pub checkpointing: Mutex<Option<Unfinished>>,
    /// Whether the last checkpoint found no space on the host.
    pub host_full: AtomicBool,
    /// Whether something was freed since free blocks were given back because the host had no space for content, or may have been.
    pub freed: AtomicBool,
    /// Held by whoever gives them back: others who find no room wait for that.
    pub giving: Mutex<()>,
    pub found_full: Mutex<FoundFull>,
    /// With `writer`: a checkpoint ended.
    pub room: Condvar,
    pub reviving: Mutex<()>,
    pub work: Mutex<Work>,
    pub wake: Condvar,
}

/// An open volume file. Dropping it makes a checkpoint; [`Base::close`] says whether that worked.
pub struct Base {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| FsError::new(ErrorKind::Io).because(e.to_string()))?;
    Ok(bytes)
}

fn lock(file: &dyn BlockFile, name: &str) -> Result<()> {
    match file.try_lock() {
        Ok(true) => Ok(()),
        Ok(false) => Err(FsError::new(ErrorKind::Busy)
            .on("open", name)
            .because("another process, or mount, has this volume open")),
        Err(e) => Err(FsError::from(e).on("lock", name)),
    }
}

/// Gives the folder that the blocks of a volume's files are in, by the volume's id and the path in its superblock.
pub type FindFolder<'a> = dyn Fn([u8; 16], &[u8]) -> Result<Folder> + 'a;

/// Makes a folder for the blocks of a volume's files, by the volume's id, with a label.
pub type MakeFolder<'a> = dyn Fn([u8; 16], &[u8]) -> Result<Folder> + 'a;

/// What to make a folder for the blocks of a volume's files with.
pub struct NewFolder<'a> {
    /// Its path for the superblock, not empty.
    pub path: Vec<u8>,
    /// How.
    pub make: &'a MakeFolder<'a>,
}

fn no_folder(_: [u8; 16], _: &[u8]) -> Result<Folder> {
    Err(FsError::new(ErrorKind::InvalidInput).because("its data lies in a folder, and none was given"))
}

impl Base {
    /// Makes `file`, which is empty, a volume, and opens it. `name` is for messages.
    pub fn create(file: Arc<dyn BlockFile>, name: &str, new: &NewVolume, options: Options) -> Result<Base> {
        Base::create_with(file, name, new, None, options)
    }

    /// As [`Base::create`], with the blocks of files in a folder if one is given.
    pub fn create_with(
        file: Arc<dyn BlockFile>,
        name: &str,
        new: &NewVolume,
        folder: Option<NewFolder<'_>>,
        options: Options,
    ) -> Result<Base> {
        let invalid = |why: &'static str| Err(FsError::new(ErrorKind::InvalidInput).on("create", name).because(why));
        if new.capacity < CAPACITY_MIN_BYTES {
            return invalid("a volume needs at least 4 MiB");
        }
        let segment_len = new.segment_len.unwrap_or_else(|| {
            let len = (new.capacity / 256).clamp(SEGMENT_LEN_MIN_BYTES.into(), SEGMENT_LEN_MAX_BYTES.into());
            1 << len.ilog2()
        });
        let superblock = Superblock {
            features: 0,
            generation: 1,
            epoch: 0,
            uuid: random()?,
            secret: random()?,
            segment_len,
            capacity: new.capacity,
            durability: new.durability,
            data: if folder.is_some() { DataLocation::External } else { DataLocation::Inline },
            data_path: folder.as_ref().map_or(Vec::new(), |folder| folder.path.clone()),
            log_segment: 1,
            log_seq: 1,
            kv_len: 0,
            kv_segments: Vec::new(),
            kv_head: Vec::new(),
        };
        let bytes = superblock.encode();
        if !bytes.is_some_and(|bytes| bytes.len() <= SLOT_LEN_BYTES && Superblock::decode(&bytes).is_ok()) {
            return invalid("no volume can have this capacity, segment length, and path of its data folder");
        }
        lock(&*file, name)?;
        if file.len().map_err(|e| FsError::from(e).on("create", name))? > 0 {
            return Err(FsError::new(ErrorKind::Exists).on("create", name).because("the file is not empty"));
        }
        // Before the file is a volume, so that there is none without its folder.
        let label = Folder::label(&superblock, superblock.epoch, false).encode();
        let folder = folder.map(|folder| (folder.make)(superblock.uuid, &label)).transpose()?;
        Container::init(&*file, name, &superblock)?;
        Base::open_locked(file, name, options, &superblock, folder)
    }

    /// Opens the volume in `file`, and brings it to a consistent state if it was not closed. `name` is for messages.
    ///
    /// # Errors
    /// `Busy` if another handle has it; `InvalidInput` if it is not a volume, or the blocks of its files lie in a folder;
    /// `NotSupported` if it is one of a later version; `Corrupt`.
    pub fn open(file: Arc<dyn BlockFile>, name: &str, options: Options) -> Result<Base> {
        Base::open_with(file, name, &no_folder, options)
    }

    /// As [`Base::open`], with `find` for the folder that the blocks of files lie in, if they do.
    ///
    /// # Errors
    /// Also what `find` says, and, of the folder, `Busy`, `Corrupt`, `InvalidInput` (it is another volume's) and `Stale` (it goes
    /// with an earlier or later state of the file).
    pub fn open_with(file: Arc<dyn BlockFile>, name: &str, find: &FindFolder<'_>, options: Options) -> Result<Base> {
        lock(&*file, name)?;
        let superblock = Container::read_superblock(&*file, name)?;
        let folder = match superblock.data {
            DataLocation::Inline => None,
            DataLocation::External => Some(find(superblock.uuid, &superblock.data_path)?),
        };
        Base::open_locked(file, name, options, &superblock, folder)
    }

    fn open_locked(
        file: Arc<dyn BlockFile>,
        name: &str,
        options: Options,
        superblock: &Superblock,
        folder: Option<Folder>,
    ) -> Result<Base> {
        let log_bytes_max = options.log_bytes_max.unwrap_or(LOG_MAX_BYTES.min(superblock.capacity / 8)).max(1);
        let memory = MEMORY_MAX_BYTES.min(superblock.capacity / 16) as usize;
        let log_segments = (log_bytes_max / u64::from(superblock.segment_len)).min(64) as u32 + 3;
        let container = Arc::new(Container::open(file, folder, name, options.read_only, log_segments)?);
        let kv = Redb::open(container.clone(), options.cache_bytes)?;
        let mut found = super::recovery::find(&container, &*kv.view()?)?;
        container.set_appended(found.seq);
        let replayed = found.batches;
        let tables = Tables { active: std::mem::take(&mut found.table), frozen: None, view: kv.view()? };
        let log = Log::new(Seed::of(superblock), superblock.log_segment, found.seq);
        let shared = Shared {
            durability: options.durability.unwrap_or(superblock.durability),
            log_bytes_max,
            batch_len_max: Log::segment_room(&container).max(
                usize::try_from(log_bytes_max / 2)
                    .unwrap_or(usize::MAX)
                    .clamp(BATCH_LEN_LEAST_BYTES, BATCH_LEN_MOST_BYTES),
            ),
            memory_bytes_max: options.memory_bytes_max.unwrap_or(memory).max(1),
            kv_runs_max: options.kv_runs_max.unwrap_or(KV_RUNS_MAX) as u64,
            replayed,
            writer: Mutex::new(log),
            tables: RwLock::new(tables),
            checkpointing: Mutex::default(),
            host_full: AtomicBool::new(false),
            found_full: Mutex::default(),
            freed: AtomicBool::new(true),
            giving: Mutex::default(),
            room: Condvar::new(),
            reviving: Mutex::default(),
            work: Mutex::default(),
            wake: Condvar::new(),
            container,
            kv,
            options,
        };
        if !options.read_only {
            shared.write_again(&found)?;
            shared.begin_epoch(found.seq, &found.log)?;
        }
        let shared = Arc::new(shared);
        let worker = (options.background && !options.read_only).then(|| {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name("adit-volume".into());
            thread.spawn(move || shared.work()).map_err(|e| FsError::from(e).on("open", name))
        });
        Ok(Base { shared, worker: Mutex::new(worker.transpose()?) })
    }

    /// Why nothing more is written, if an error ended that.
    pub fn failure(&self) -> Option<&str> {
        self.shared.container.failure()
    }

    /// What the volume is.
    pub fn info(&self) -> Info {
        let superblock = self.shared.container.superblock();
        Info {
            uuid: superblock.uuid,
            secret: superblock.secret,
            capacity: superblock.capacity,
            segment_len: superblock.segment_len,
            durability: superblock.durability,
            data: superblock.data,
            data_path: superblock.data_path,
            epoch: superblock.epoch,
            replayed: self.shared.replayed,
            kv_segments: superblock.kv_segments.iter().filter(|run| run.start > 0).map(|run| run.count).sum(),
        }
    }

    /// The blocks that belong to the tree, ascending.
    pub fn allocated(&self) -> Vec<Run> {
        self.shared.container.space().allocated()
    }

    /// The places in the file where a copy of the superblock is to be and is not: when it was opened, and now.
    pub fn damaged_superblocks(&self) -> (&[u64], Vec<u64>) {
        self.shared.container.damaged_slots()
    }

    /// Reads every page of the key-value store. Returns the numbers of the damaged ones.
    pub fn damaged_pages(&self) -> Vec<u64> {
        let _no_commit = self.shared.checkpointing.lock();
        self.shared.kv.verify()
    }

    /// Gives space back: checkpoints, packs the key-value store, punches what is free, and cuts off what is free at the end.
    pub fn gc(&self) -> Result<()> {
        self.checkpoint()?;
        self.shared.pack_patiently()?;
        // A checkpoint frees the segments of content in which nothing is left, and at the next one the log goes on in the first of them, and no longer
        // in one that waits for it at the end of the file.
        for _ in 0..2 {
            self.shared.shrink_log();
            self.checkpoint()?;
        }
        self.shared.shrink_log();
        // Held, so that nobody takes what is punched.
        let mut space = self.shared.container.space();
        for run in space.free_runs() {
            self.shared.container.punch_blocks(run);
        }
        space.note_given();
        self.shared.container.drop_stray_objects(&space)?;
        self.shared.container.shorten(&space)
    }

    /// Changes the capacity, durably. `InvalidInput` if no volume can have it, `NoSpace` if what is there would not fit.
    pub fn set_capacity(&self, capacity: u64) -> Result<()> {
        if capacity < CAPACITY_MIN_BYTES {
            return Err(FsError::new(ErrorKind::InvalidInput).on("resize", self.shared.container.name()));
        }
        self.shared.container.set_capacity(capacity)
    }

    /// Changes the path of the folder that the blocks of files are in, durably. `InvalidInput` if it is too long, or there is
    /// no such folder.
    pub fn set_data_path(&self, path: &[u8]) -> Result<()> {
        let container = &self.shared.container;
        let wanted = Superblock { data_path: path.to_vec(), ..container.superblock() };
        if wanted.encode().is_none_or(|bytes| Superblock::decode(&bytes).is_err()) {
            return Err(FsError::new(ErrorKind::InvalidInput).on("name the data folder of", container.name()));
        }
        container.flip(|superblock| superblock.data_path = path.to_vec())
    }

    /// Makes a checkpoint and ends the background thread. What is left in the log after an error is there at the next opening;
    /// so it is if the host has no space for the checkpoint, which is no error.
    pub fn close(self) -> Result<()> {
        self.stop();
        if self.shared.options.read_only { Ok(()) } else { self.shared.end() }
    }

    /// Goes as a killed process would: writes nothing more.
    #[cfg(any(test, feature = "testing"))]
    pub fn abandon(self) {
        self.shared.container.abandon();
    }

    /// Makes a checkpoint, or at least all durable where the host has no space for one; and gives back what was kept in advance.
    pub fn settle(&self) -> Result<()> {
        self.shared.end()
    }

    fn stop(&self) {
        let Some(worker) = self.worker.lock().take() else { return };
        self.shared.work.lock().stop = true;
        self.shared.wake.notify_all();
        if worker.join().is_err() {
            tracing::error!(file = self.shared.container.name(), "the background thread of the volume died");
        }
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        self.stop();
        if self.shared.container.check_writable().is_ok()
            && let Err(e) = self.shared.end()
        {
            tracing::error!("{e}");
        }
    }
}

impl Shared {
    /// After an error of `view`: opens the store anew, unless someone did already. Returns whether someone did: then the error may
    /// only tell that the view was closed.
    pub(super) fn revive(&self, view: &Arc<dyn View>) -> bool {
        let _one_at_a_time = self.reviving.lock();
        if !Arc::ptr_eq(view, &self.tables.read().view) {
            return true;
        }
        let result = self.kv.revive().and_then(|()| {
            // Locked first: a checkpoint that ends meanwhile must not get an older view over its own.
            let mut tables = self.tables.write();
            tables.view = self.kv.view()?;
            Ok(())
        });
        if let Err(e) = result {
            tracing::error!("{e}");
        }
        false
    }

    /// Reads from the store; an error comes with the view that it is of. Another reader's is no reason to fail, nor that the store was
    /// opened anew meanwhile, as each checkpoint does that finds no space.
    fn read<T>(&self, read: impl Fn() -> std::result::Result<T, (Arc<dyn View>, FsError)>) -> Result<T> {
        let mut tries_left = 1;
        loop {
            let (view, e) = match read() {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            let was_replaced = self.revive(&view);
            if e.kind() == ErrorKind::Corrupt || (tries_left == 0 && !was_replaced) {
                return Err(e);
            }
            tries_left -= u32::from(!was_replaced);
        }
    }

    fn check_batch(&self, batch: &Batch, draft: &Draft) -> Result<()> {
        let invalid = |why: &'static str| FsError::new(ErrorKind::InvalidInput).on("apply a batch", why);
        for (key, value) in &batch.writes {
            let value_len = value.as_ref().map_or(0, Vec::len);
            if key.is_empty() || key.len() > KEY_LEN_MAX_BYTES || value_len > VALUE_LEN_MAX_BYTES {
                return Err(invalid("a key or value is too long"));
            }
            if key.first() == Some(&OWN_PREFIX) {
                return Err(invalid("a key that the base keeps for itself"));
            }
        }
        if batch.allocated.iter().any(|(run, sums)| run.count as usize != sums.len()) {
            return Err(invalid("a block without a checksum"));
        }
        let mut runs = batch.allocated.iter().map(|(run, _)| run).chain(&batch.freed);
        if runs.any(|run| run.count == 0 || run.start.checked_add(run.count.into()).is_none()) {
            return Err(invalid("a run without blocks"));
        }
        if draft.record_len() > self.batch_len_max {
            return Err(invalid("more than the volume takes at once"));
        }
        Ok(())
    }

    /// Says in the superblock that there are batches in parts, or long values, before there are: an earlier version of adit would
    /// take the first for the end of the log.
    fn declare_long(&self, batch: &Batch, draft: &Draft) -> Result<()> {
        let is_long = |value: &Option<Vec<u8>>| value.as_ref().is_some_and(|v| v.len() > SHORT_VALUE_LEN_MAX_BYTES);
        let needed = draft.record_len() > Log::segment_room(&self.container)
            || batch.writes.iter().any(|(_, value)| is_long(value));
        if needed && self.container.superblock().features & FEATURE_LONG == 0 {
            self.container.flip(|superblock| superblock.features |= FEATURE_LONG)?;
        }
        Ok(())
    }

    fn apply(&self, batch: Batch) -> Result<Seq> {
        self.container.check_writable()?;
        let draft = Draft::new(&batch);
        self.check_batch(&batch, &draft)?;
        self.check_room(&batch)?;
        self.declare_long(&batch, &draft)?;
        let share = Share::of(&batch);
        if share == Share::None {
            self.retry_checkpoint()?;
        }
        let allocated: Vec<Run> = batch.allocated.iter().map(|(run, _)| *run).collect();
        let mut log = self.writer.lock();
        while self.is_full(&log, 100) {
            if self.options.background && !self.host_is_full() {
                self.ask(|work| &mut work.checkpoint);
                // As long as the log has room and there is no more than one table to be moved, nobody waits for that.
                if self.tables.read().frozen.is_none() {
                    break;
                }
                self.room.wait(&mut log);
            } else if self.rests() && !self.is_full(&log, share.percent_max()) {
                break;
            } else {
                drop(log);
                let result = self.checkpoint();
                log = self.writer.lock();
                match result {
                    Err(e)
                        if e.kind().is_refusal()
                            && share != Share::None
                            && !self.is_full(&log, share.percent_max()) =>
                    {
                        break;
                    }
                    result => result?,
                }
            }
            self.container.check_writable()?;
        }
        let mut log = self.prepare(log, draft.record_len().min(Log::segment_room(&self.container)), share)?;
        if !self.container.space().admits(&allocated, &batch.freed) {
            let why = "blocks that are not reserved, or not allocated";
            return Err(FsError::new(ErrorKind::InvalidInput).on("apply a batch", why));
        }
        let seq = log.append(&self.container, draft)?;
        self.container.space().apply(allocated.into_iter(), &batch.freed, seq);
        if !batch.freed.is_empty() {
            self.note_freed();
        }
        let mut tables = self.tables.write();
        for (key, value) in batch.writes {
            tables.active.insert(key, value);
        }
        drop(tables);
        let wants_spare = self.options.background && log.wants_spare(&self.container);
        drop(log);
        if wants_spare {
            self.ask(|work| &mut work.prepare);
        }
        match self.durability {
            Durability::Sync => self.container.sync_up_to(seq)?,
            Durability::Fsync => {}
        }
        if self.options.background {
            self.note_unsynced();
        }
        Ok(Seq(seq))
    }
}

impl Allocation for Base {
    fn end(&self) -> u64 {
        self.shared.container.space().end()
    }

    fn allocated_from(&self, block: u64) -> Option<Run> {
        self.shared.container.space().allocated_from(block)
    }

    fn reserve_at(&self, block: u64) -> Result<bool> {
        let container = &self.shared.container;
        container.check_writable()?;
        let durable = container.durable();
        let mut space = container.space();
        space.settle(durable);
        Ok(space.reserve_at(block))
    }

    fn is_reserved(&self, block: u64) -> bool {
        let durable = self.shared.container.durable();
        let mut space = self.shared.container.space();
        space.settle(durable);
        space.is_reserved(block)
    }
}
