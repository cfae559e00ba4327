//! The files of a manifest, brought from a content-addressed store into a folder of the host.
//!
//! A file is written under a [temporary name](draft) beside its own, hashed as it is written, and gets its name when its content
//! is what the manifest says: so nothing wrong and nothing in part is ever under a name of the manifest. What is there already
//! with the right content is not fetched again, so a download that was interrupted goes on when it is started again.
//!
//! Everything goes through a [`HostDir`], which follows no link: nothing is written outside of the folder, whatever lies in it. Nothing
//! in it is removed but what an earlier download left under temporary names.
//!
//! One thread walks the manifest, makes directories and links, and looks at what is there; others fetch. Memory is bounded, whatever the
//! sizes: small objects are whole in memory, one for each thread, and of large ones [`LARGE_AT_ONCE`] are at work with some MiB each.

mod claims;
mod draft;
mod place;
mod work;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::HostDir;
use adit_core::path::show;
use adit_core::types::{Attr, Kind, Timestamp};

use self::claims::Claims;
use self::work::{Job, Shared};
use crate::cache::Fetch;
use crate::crew::Crew;
use crate::format::{Body, ContentHash, EntryPath, File, Format, LinkTarget, Manifest};
use crate::hash_cache::{Layout, Scope};
use crate::snapshot::Filter;
use crate::turns::Turns;

/// Objects of more than a request that are fetched at a time, each by several requests.
const LARGE_AT_ONCE: u32 = 4;

/// What is done where something else is in the place of a file or link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conflict {
    /// It stays, and nothing is fetched.
    Skip,
    /// A file or link is replaced; a directory never is.
    Overwrite,
    /// It stays, and the file comes as `name (1).ext`, or the next number that is free, or has its content.
    Copy,
}

/// What is downloaded, and how.
pub struct DownloadOptions<'a> {
    /// Where the content lies.
    pub source: &'a dyn Fetch,
    /// Where it goes; none for a folder that is not there, and with `dry_run` only.
    pub host: Option<&'a dyn HostDir>,
    /// What is done where something else is.
    pub conflict: Conflict,
    /// Which paths.
    pub filter: &'a Filter,
    /// Threads that fetch, at least one.
    pub threads: usize,
    /// What was hashed before of the folder, by paths below it.
    pub known: Option<&'a Scope<'a>>,
    /// Permission bits that new files and directories do not get.
    pub umask: u16,
    /// Nothing is fetched and nothing changed: what would be done is told.
    pub dry_run: bool,
}

/// What became of an entry, or would.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing was in its place.
    New,
    /// Something else was there, and is no more.
    Replaced,
    /// Something else is there; it is under this name beside it, the host's bytes.
    Copied(Vec<u8>),
    /// It was there, under this name if that is not its own.
    Present(Option<Vec<u8>>),
    /// Something else is there, and stays.
    Skipped,
}

/// What happens on the way.
pub enum DownloadEvent<'a> {
    /// An entry is through.
    Entry {
        /// Its path in the manifest.
        path: &'a EntryPath<'static>,
        /// The host's bytes of its path below the folder.
        host: &'a [u8],
        /// Its length; that of a directory or a link is 0.
        len_bytes: u64,
        /// What became of it.
        outcome: &'a Outcome,
    },
    /// A file is through, and has the time of now: that of the manifest is none.
    Untimed {
        /// The host's bytes of its path below the folder.
        host: &'a [u8],
    },
    /// An entry failed, and others go on. It is not there, or as it was.
    Failed {
        /// Its path in the manifest.
        path: &'a EntryPath<'static>,
        /// Its length.
        len_bytes: u64,
        /// Why; it names the file and, where it is to blame, the object.
        error: &'a FsError,
    },
    /// So many bytes of content were fetched up to now, those of files that are not complete included.
    Fetched(u64),
}

/// What became of a download.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Downloaded {
    /// Files and links that were not there, or are in the place of others, or beside them.
    pub written: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Files and links that were there.
    pub present: u64,
    /// Files and links in whose place something else stays.
    pub skipped: u64,
    /// Directories that the manifest lists, and that were made.
    pub directories: u64,
    /// Directories that the manifest lists, and that were there.
    pub directories_present: u64,
    /// Entries that failed.
    pub failed: u64,
    /// Temporary files of downloads that were killed, which were removed.
    pub swept: u64,
}

/// Hears what happens, and may end it.
pub type Tell<'a> = dyn FnMut(DownloadEvent<'_>) -> ControlFlow<()> + 'a;

/// The bytes of all files of `manifest` that `filter` wants.
#[must_use]
pub fn wanted_bytes(manifest: &Manifest, filter: &Filter) -> u64 {
    let wanted = manifest.entries().filter(|(path, _)| filter.wants(&path.to_listing()));
    wanted.map(|(_, body)| body.size_bytes()).fold(0, u64::saturating_add)
}

/// Brings what `manifest` has into the folder. What it deletes, if it is a diff, is not touched.
///
/// # Errors
/// What would meet all further entries as well: no space, a store that cannot be reached or refuses everything. `Interrupted` if
/// `tell` breaks. What was complete then stays. What is wrong with one entry is told, and the rest goes on.
pub fn download(manifest: &Manifest, options: &DownloadOptions<'_>, tell: &mut Tell<'_>) -> Result<Downloaded> {
    let fetched = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let (large, claims) = (Turns::new(LARGE_AT_ONCE), Claims::default());
    let shared = Shared {
        manifest,
        source: options.source,
        host: options.host,
        conflict: options.conflict,
        umask: options.umask,
        keeps_exec: manifest.header().format != Format::V2023,
        dry_run: options.dry_run,
        fetched: &fetched,
        is_over: &is_over,
        large: &large,
        claims: &claims,
    };
    std::thread::scope(|scope| {
        // Those at work end at the next piece, however this ends.
        let _end = End(&is_over);
        let shared = &shared;
        let crew = Crew::start(scope, "fetch", (options.threads, 2), || move |job: Job| job.done(shared));
        let mut walk = Walk {
            manifest,
            options,
            shared,
            crew,
            last_dir: Vec::new(),
            made: HashSet::new(),
            swept: HashSet::new(),
            downloaded: Downloaded::default(),
            fetched: &fetched,
            tell,
        };
        for (path, body) in manifest.entries() {
            walk.entry(path, body)?;
        }
        while walk.crew.is_at_work() {
            walk.wait()?;
        }
        Ok(walk.downloaded)
    })
}

/// Ends the work of all threads when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What became of a [`Job`].
struct Done {
    path: EntryPath<'static>,
    host: Vec<u8>,
    len_bytes: u64,
    outcome: Result<Outcome, Fault>,
    /// What was read of the file that was there: what it was like, before it was read, and its hashes.
    hashed: Option<(Attr, Timestamp, Vec<ContentHash>)>,
}

/// Who is to blame.
#[derive(Debug)]
enum Fault {
    /// The entry, or what is in its place: others go on.
    Entry(FsError),
    /// The store or the host, and so all entries.
    All(FsError),
}

impl Fault {
    /// An error of the host.
    fn of_host(path: &[u8], e: impl Into<FsError>) -> Fault {
        use ErrorKind::*;
        let e = e.into();
        let is_final = matches!(e.kind(), NoSpace | QuotaExceeded | ReadOnly | Interrupted | Exhausted | TooManyFiles);
        let e = e.on("write", show(path));
        if is_final { Fault::All(e) } else { Fault::Entry(e) }
    }
}

struct Walk<'a, 'h> {
    manifest: &'a Manifest,
    options: &'a DownloadOptions<'a>,
    shared: &'a Shared<'a>,
    crew: Crew<Job, Done>,
    /// The directory that was made sure of last.
    last_dir: Vec<u8>,
    /// Directories that were made here, and so hold nothing of others.
    made: HashSet<Vec<u8>>,
    /// Directories in which what others have left was looked for.
    swept: HashSet<Vec<u8>>,
    downloaded: Downloaded,
    fetched: &'a AtomicU64,
    tell: &'a mut Tell<'h>,
}

impl Walk<'_, '_> {
    fn entry(&mut self, path: &EntryPath<'static>, body: &Body<'static>) -> Result<()> {
        if !self.options.filter.wants(&path.to_listing()) {
            return Ok(());
        }
        let host = match self.host_path(path) {
            Ok(host) => host,
            Err(e) => return self.failed(path, body.size_bytes(), &e),
        };
        let outcome = match body {
            Body::Deleted(_) => return Ok(()),
            Body::Directory => self.directory(&host),
            Body::Symlink(target) => self.link(&host, target),
            Body::File(file) => match self.parent(&host) {
                Ok(()) => return self.file(path, host, file),
                Err(e) => Err(e),
            },
        };
        self.take(Done { path: path.clone(), host, len_bytes: body.size_bytes(), outcome, hashed: None })
    }

    /// The bytes that a path has on the host.
    fn host_path(&self, path: &EntryPath<'static>) -> Result<Vec<u8>> {
        let host = path.to_host()?.into_owned();
        // The other text is the one that these bytes give.
        if !path.comes_back()
            && let Ok(other) = EntryPath::from_host(&host)
            && self.manifest.get(&other).is_some()
        {
            return Err(FsError::new(ErrorKind::Exists)
                .on("write", path)
                .because("another entry of the manifest has the same name on a host"));
        }
        Ok(host)
    }

    /// Makes sure of the directory that an entry lies in.
    fn parent(&mut self, path: &[u8]) -> Result<(), Fault> {
        let dir = path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |slash| &path[..slash]);
        if !dir.is_empty() {
            self.directories(dir, path)?;
        }
        self.sweep(dir);
        Ok(())
    }

    fn directory(&mut self, path: &[u8]) -> Result<Outcome, Fault> {
        let Some(host) = self.options.host else { return Ok(Outcome::New) };
        // What was made for an entry in it was not there before.
        let is_ours = self.made.contains(path);
        let was_there = !is_ours && host.stat(&on_host(path)).is_ok_and(|attr| attr.kind == Kind::Directory);
        self.directories(path, path)?;
        Ok(if was_there { Outcome::Present(None) } else { Outcome::New })
    }

    /// Makes sure of a directory and those that it lies in, for an entry. A link is none, wherever it leads.
    fn directories(&mut self, path: &[u8], entry: &[u8]) -> Result<(), Fault> {
        let Some(host) = self.options.host else { return Ok(()) };
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            let dir = &path[..end];
            let is_known = self.last_dir.strip_prefix(dir).is_some_and(|rest| rest.first().is_none_or(|b| *b == b'/'));
            if is_known {
                continue;
            }
            match host.stat(&on_host(dir)) {
                Ok(attr) if attr.kind == Kind::Directory => self.shared.found(host, &attr, dir)?,
                Ok(_) => {
                    let why = "something else, or a symbolic link, is in the place of a folder; move it away";
                    return Err(Fault::Entry(FsError::new(ErrorKind::NotDirectory).on("write", show(entry)).because(
                        match dir == entry {
                            true => why.to_owned(),
                            false => format!("{}: {why}", show(dir)),
                        },
                    )));
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound && self.options.dry_run => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    match host.make_dir(&on_host(dir), 0o777 & !self.options.umask, None) {
                        Ok(()) => {
                            self.made.insert(dir.to_vec());
                            let made = host.stat(&on_host(dir)).map_err(|e| Fault::of_host(dir, e))?;
                            self.shared.found(host, &made, dir)?;
                        }
                        // Somebody else was faster; what it is shows when something is made in it.
                        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                        Err(e) => return Err(Fault::of_host(dir, e)),
                    }
                }
                Err(e) => return Err(Fault::of_host(dir, e)),
            }
        }
        self.last_dir = path.to_vec();
        Ok(())
    }

    /// Removes what downloads that were killed have left in a directory.
    fn sweep(&mut self, dir: &[u8]) {
        let Some(host) = self.options.host.filter(|_| !self.options.dry_run) else { return };
        if self.made.contains(dir) || !self.swept.insert(dir.to_vec()) {
            return;
        }
        let manifest = self.manifest;
        let wanted = |path: &Path| {
            EntryPath::from_host(path.as_os_str().as_bytes()).is_ok_and(|path| manifest.get(&path).is_some())
        };
        self.downloaded.swept += draft::sweep(host, &on_host(dir), &wanted);
    }

    fn link(&mut self, path: &[u8], target: &LinkTarget<'_>) -> Result<Outcome, Fault> {
        let target = target.to_host().map_err(Fault::Entry)?;
        self.parent(path)?;
        place::link(self.shared, path, &target)
    }

    /// Hands a file over to those who fetch.
    fn file(&mut self, path: &EntryPath<'static>, host: Vec<u8>, file: &File<'static>) -> Result<()> {
        let there = self.options.host.map(|dir| dir.stat(&on_host(&host)));
        let there = match there {
            None => None,
            Some(Ok(attr)) => Some(attr),
            Some(Err(e)) if e.kind() == io::ErrorKind::NotFound => None,
            Some(Err(e)) => {
                let (outcome, len_bytes) = (Err(Fault::of_host(&host, e)), file.size_bytes);
                return self.take(Done { path: path.clone(), host, len_bytes, outcome, hashed: None });
            }
        };
        let layout = if file.content.hashes().len() == 1 { Layout::Whole } else { Layout::Chunks };
        let known = there.as_ref().filter(|attr| attr.kind == Kind::File && attr.size == file.size_bytes);
        let known = known.and_then(|attr| self.options.known?.find(&host, attr, layout));
        let mut job = Job { path: path.clone(), host, file: file.clone(), there, known };
        // Waits while all have enough to do; what they have done meanwhile is taken in first.
        while let Err(back) = self.crew.hand(job) {
            job = back;
            self.wait()?;
        }
        while let Some(done) = self.crew.poll() {
            self.take(done)?;
        }
        Ok(())
    }

    /// Waits for something to be done, or for a moment.
    fn wait(&mut self) -> Result<()> {
        match self.crew.wait()? {
            Some(done) => self.take(done),
            None => self.tell_fetched(),
        }
    }

    fn take(&mut self, done: Done) -> Result<()> {
        if let (Some(known), Some((attr, began, hashes))) = (self.options.known, &done.hashed) {
            known.note(&done.host, attr, *began, hashes);
        }
        let outcome = match done.outcome {
            Ok(outcome) => outcome,
            Err(Fault::Entry(e)) => return self.failed(&done.path, done.len_bytes, &e),
            Err(Fault::All(e)) => return Err(e),
        };
        let is_directory = self.manifest.get(&done.path) == Some(&Body::Directory);
        match &outcome {
            Outcome::Present(_) if is_directory => self.downloaded.directories_present += 1,
            Outcome::Present(_) => self.downloaded.present += 1,
            Outcome::Skipped => self.downloaded.skipped += 1,
            _ if is_directory => self.downloaded.directories += 1,
            _ => {
                self.downloaded.written += 1;
                self.downloaded.written_bytes += done.len_bytes;
            }
        }
        self.tell(DownloadEvent::Entry {
            path: &done.path,
            host: &done.host,
            len_bytes: done.len_bytes,
            outcome: &outcome,
        })?;
        let is_new = !matches!(outcome, Outcome::Present(_) | Outcome::Skipped);
        if let Some(Body::File(file)) = self.manifest.get(&done.path)
            && is_new
            && work::time_of(file.mtime_micros).is_none()
        {
            self.tell(DownloadEvent::Untimed { host: &done.host })?;
        }
        self.tell_fetched()
    }

    fn failed(&mut self, path: &EntryPath<'static>, len_bytes: u64, error: &FsError) -> Result<()> {
        self.downloaded.failed += 1;
        self.tell(DownloadEvent::Failed { path, len_bytes, error })
    }

    fn tell_fetched(&mut self) -> Result<()> {
        let fetched = self.fetched.load(Ordering::Relaxed);
        self.tell(DownloadEvent::Fetched(fetched))
    }

    fn tell(&mut self, event: DownloadEvent<'_>) -> Result<()> {
        match (self.tell)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ErrorKind::Interrupted.into()),
        }
    }
}

/// A path of bytes on the host.
fn on_host(path: &[u8]) -> PathBuf {
    Path::new(OsStr::from_bytes(path)).to_owned()
}

#[cfg(test)]
mod tests;
