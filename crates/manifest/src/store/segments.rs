//! Segments of manifests in a folder of this machine: each is built once, and mapped from then on.
//!
//! A segment is found by the *origin* of its manifest: of a file, what the host says of it (device, inode, length, times), or its content where
//! that may be made up; of anything else, whatever its owner knows to change with it. So a mount reads nothing of a manifest that was mounted before. The folder is a cache: all
//! of it may be deleted at any time, and a segment that cannot be read is built again.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, FileTimes, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::host;
use adit_index::Segment;

use super::build::{BuildPlace, BuildReport, Building, build_segment};
use super::identity::Identity;
use crate::format::{ContentHash, Source};

const SEGMENT: &str = "segment";
const LOCK: &str = "lock";
/// Which segment a place had last.
const LAST: &str = "last";
/// A segment that belongs to this process alone.
const OWN: &str = "own";
/// Age from which what a kill left of another process is removed.
const LEFT_FOR: Duration = Duration::from_hours(24);
/// Between two looks at whether another process has built a segment.
const PAUSE: Duration = Duration::from_millis(20);

/// How a folder of segments is used.
#[derive(Clone, Copy, Debug)]
pub struct SegmentsOptions {
    /// Segments that are kept, those that were used last. Default 16.
    pub kept_max: usize,
    /// How long a file has to be as it is before its times tell whether it was changed: those of hosts go in steps, on FAT of two
    /// seconds. Default 3 s.
    pub settled_after: Duration,
    /// How long another process that builds a segment is waited for, before it is built a second time: that one may have been
    /// stopped. Default 120 s.
    pub patience: Duration,
    /// Memory for building in bytes. Default 64 MiB.
    pub memory_limit_bytes: u64,
}

impl Default for SegmentsOptions {
    fn default() -> Self {
        SegmentsOptions {
            kept_max: 16,
            settled_after: Duration::from_secs(3),
            patience: Duration::from_secs(120),
            memory_limit_bytes: 64 << 20,
        }
    }
}

/// A folder of segments, which several processes may use at once.
#[derive(Clone, Debug)]
pub struct Segments {
    folder: PathBuf,
    options: SegmentsOptions,
}

impl Segments {
    /// The folder `folder`, which is made for this user alone (0700) if it is not there; the one that it lies in is there.
    pub fn open(folder: &Path, options: SegmentsOptions) -> Result<Segments> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                Err(FsError::from(e).on("make folder of indexes", folder.display()))
            }
            _ => Ok(Segments { folder: folder.to_owned(), options }),
        }
    }

    /// The segment of the manifest in a file, built if there is none yet.
    ///
    /// # Errors
    /// Those of [`build_segment`]; `Stale` if the file changed meanwhile.
    pub fn of_file(&self, manifest: &File, report: &mut BuildReport<'_>) -> Result<Segment> {
        let origin = Origin::of(&manifest.metadata()?);
        let is_settled = origin.changed_before(self.options.settled_after);
        let segment = match (is_settled, host::filesystem(manifest).map_err(io::Error::from)?) {
            (false, _) => self.build_own(manifest, report)?,
            (true, Some(_)) => self.of_origin(&origin.bytes(), manifest, report)?,
            // Another file may have the same number and times.
            (true, None) => {
                let content = ContentHash::of_stream(Source::open(manifest)?)?;
                self.of_origin(&[&b"content"[..], &content.0].concat(), manifest, report)?
            }
        };
        // A mapping of the old content would be as good, but nobody could tell it from the new one.
        if Origin::of(&manifest.metadata()?) == origin {
            return Ok(segment);
        }
        let _ = fs::remove_file(segment.file_path());
        Err(FsError::new(ErrorKind::Stale).because("the manifest changed while it was read; try again"))
    }

    /// The segment of the manifest with this origin: any bytes that are others when the manifest is another. Built from `source`, which
    /// is not read otherwise. If another process builds it at this moment, that one is waited for, within the [patience](SegmentsOptions::patience),
    /// and `report` is told [`Building::Elsewhere`] meanwhile.
    ///
    /// # Errors
    /// Those of [`build_segment`], and of the folder.
    pub fn of_origin(
        &self,
        origin: &[u8],
        source: &(impl Source + ?Sized),
        report: &mut BuildReport<'_>,
    ) -> Result<Segment> {
        let name = ContentHash::of(origin).to_string();
        let out = self.folder.join(format!("{name}.{SEGMENT}"));
        if let Some(segment) = self.usable(&out) {
            return Ok(segment);
        }
        let deadline = Instant::now() + self.options.patience;
        let lock = loop {
            if let Some(lock) = BuildLock::take(out.with_extension(LOCK))? {
                break lock;
            }
            if Instant::now() >= deadline {
                tracing::info!("another process takes long to build the index of the manifest; it is built once more");
                return self.build_own(source, report);
            }
            if report(Building::Elsewhere).is_break() {
                return Err(ErrorKind::Interrupted.into());
            }
            sleep(PAUSE);
        };
        if let Some(segment) = self.usable(&out) {
            return Ok(segment);
        }
        let (file, own) = self.build(source, report)?;
        if let Err(e) = fs::rename(&own, &out) {
            let _ = fs::remove_file(own);
            return Err(FsError::from(e).on("keep index", out.display()));
        }
        drop(lock);
        self.sweep(Some(&out));
        Segment::from_file(file, &out)
    }

    /// Notes that the manifest with this origin is what lay at `place`, any bytes, when that was looked at last: [`last_at`](Self::last_at)
    /// finds it. It is only for when it cannot be looked at, so a folder that cannot be written is no error.
    pub fn note_last(&self, place: &[u8], origin: &[u8]) {
        let note = self.folder.join(format!("{}.{LAST}", ContentHash::of(place)));
        let name = ContentHash::of(origin).to_string();
        if fs::read(&note).is_ok_and(|noted| noted == name.as_bytes()) {
            return;
        }
        let own = self.own_name();
        let written = fs::write(&own, name).and_then(|()| fs::rename(&own, &note));
        if let Err(e) = written {
            let _ = fs::remove_file(own);
            tracing::debug!(error = %e, "which manifest this was will not be known when its store is away");
        }
    }

    /// The segment of the manifest that was noted last for `place`, if it is there still.
    pub fn last_at(&self, place: &[u8]) -> Option<Segment> {
        let noted = fs::read(self.folder.join(format!("{}.{LAST}", ContentHash::of(place)))).ok()?;
        let name = ContentHash::parse(&noted)?;
        self.usable(&self.folder.join(format!("{name}.{SEGMENT}")))
    }

    /// The segment of a manifest of which nothing tells whether it was changed: built each time, and gone with its mapping.
    ///
    /// # Errors
    /// Those of [`build_segment`], and of the folder.
    pub fn build_own(&self, source: &(impl Source + ?Sized), report: &mut BuildReport<'_>) -> Result<Segment> {
        let (file, own) = self.build(source, report)?;
        let _ = fs::remove_file(&own);
        self.sweep(None);
        Segment::from_file(file, &own)
    }

    /// A segment that `write` puts into a new file of this path: gone with its mapping.
    ///
    /// # Errors
    /// Those of `write`, and of the folder; `Corrupt` or `NotSupported` if it is no whole segment.
    pub fn of_copy(&self, write: impl FnOnce(&Path) -> Result<()>) -> Result<Segment> {
        let own = self.own_name();
        let failed = |e: io::Error| FsError::from(e).on("keep index", own.display());
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&own).map_err(failed)?;
        let written = write(&own);
        let _ = fs::remove_file(&own);
        written?;
        Segment::from_file(file, &own)
    }

    /// Builds a segment under a name that nobody else knows, so that nobody takes it away before it is open.
    fn build(&self, source: &(impl Source + ?Sized), report: &mut BuildReport<'_>) -> Result<(File, PathBuf)> {
        let own = self.own_name();
        let memory_limit_bytes = self.options.memory_limit_bytes;
        let place = BuildPlace { out: &own, scratch_dir: &self.folder, memory_limit_bytes };
        build_segment(source, place, report)?;
        let file = File::open(&own).map_err(|e| FsError::from(e).on("open index", own.display()))?;
        Ok((file, own))
    }

    /// A name that nobody else gives.
    fn own_name(&self) -> PathBuf {
        use std::hash::BuildHasher;
        let number = std::hash::RandomState::new().hash_one(std::process::id());
        self.folder.join(format!("{number:016x}.{OWN}"))
    }

    /// The segment in `path`, if it is there and of this version.
    fn usable(&self, path: &Path) -> Option<Segment> {
        match Segment::open(path) {
            Ok(segment) if Identity::decode(segment.identity()).is_some() => {
                // For whoever chooses which to keep. A folder that cannot be written can be read.
                let now = FileTimes::new().set_modified(SystemTime::now());
                let _ = File::open(path).and_then(|file| file.set_times(now));
                Some(segment)
            }
            Ok(_) => None,
            Err(e) if e.is_not_found() => None,
            Err(e) => {
                tracing::warn!(error = %e, "an index cannot be used; it is built again");
                None
            }
        }
    }

    /// Removes the segments that were not used lately, but never `just_built`, and what kills left. Whoever has one mapped keeps it.
    fn sweep(&self, just_built: Option<&Path>) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let (mut segments, mut lasts) = (Vec::new(), Vec::new());
        for entry in entries.flatten() {
            let path = entry.path();
            let Some(modified) = entry.metadata().ok().and_then(|metadata| metadata.modified().ok()) else { continue };
            match path.extension().and_then(OsStr::to_str) {
                Some(SEGMENT) if just_built != Some(&*path) => segments.push((modified, path)),
                Some(LOCK) => drop(BuildLock::take(path)),
                Some(LAST) => lasts.push(path),
                Some(OWN | "tmp") if modified.elapsed().is_ok_and(|age| age > LEFT_FOR) => {
                    let _ = fs::remove_file(path);
                }
                _ => {}
            }
        }
        segments.sort();
        let surplus = (segments.len() + usize::from(just_built.is_some())).saturating_sub(self.options.kept_max.max(1));
        for (_, path) in segments.into_iter().take(surplus) {
            // Not one that somebody builds anew.
            if let Ok(Some(_lock)) = BuildLock::take(path.with_extension(LOCK)) {
                let _ = fs::remove_file(path);
            }
        }
        for note in lasts {
            let noted = fs::read(&note).ok().and_then(|noted| ContentHash::parse(&noted));
            if noted.is_none_or(|name| !self.folder.join(format!("{name}.{SEGMENT}")).exists()) {
                let _ = fs::remove_file(note);
            }
        }
    }
}

/// A lock against all others that would build a segment: a file, which is there as long as somebody has it. What is left of a
/// process that was killed is locked by nobody.
struct BuildLock {
    /// Closed after the name was removed.
    _file: File,
    path: PathBuf,
}

impl BuildLock {
    /// Takes the lock; `None` if somebody has it.
    fn take(path: PathBuf) -> Result<Option<BuildLock>> {
        let on_lock = |e: io::Error| FsError::from(e).on("lock index", path.display());
        loop {
            let mut options = File::options();
            let file = options.create(true).write(true).truncate(false).mode(0o600).open(&path).map_err(on_lock)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) => return Err(on_lock(e)),
            }
            // Who had it may have removed it since it was opened here; then it keeps out nobody.
            let number = |metadata: Metadata| (metadata.dev(), metadata.ino());
            let own = file.metadata().map(number).map_err(on_lock)?;
            match fs::metadata(&path).map(number) {
                Ok(found) if found == own => return Ok(Some(BuildLock { _file: file, path })),
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(on_lock(e)),
                _ => {}
            }
        }
    }
}

impl Drop for BuildLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What the host says of a manifest's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Origin {
    dev: u64,
    ino: u64,
    len: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Origin {
    fn of(metadata: &Metadata) -> Origin {
        Origin {
            dev: metadata.dev(),
            ino: metadata.ino(),
            len: metadata.len(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let numbers = [self.mtime.0, self.mtime.1, self.ctime.0, self.ctime.1].map(i64::cast_unsigned);
        let all = [self.dev, self.ino, self.len].into_iter().chain(numbers);
        b"file".iter().copied().chain(all.flat_map(u64::to_le_bytes)).collect()
    }

    /// Whether the last change was so long ago that another one would have another time.
    fn changed_before(&self, age: Duration) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::new(self.ctime.0.try_into().unwrap_or(0), self.ctime.1.try_into().unwrap_or(0));
        now.checked_sub(changed).is_some_and(|since| since >= age)
    }
}
