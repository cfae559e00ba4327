//! Media that fail: a [`FaultyDir`] wraps any [`HostDir`], a [`FaultyBlockFile`] any [`BlockFile`], and makes chosen calls fail.
//!
//! [`Faults`] is the switch and counter, shared by all directories and files that it wraps. [`each_fault`] runs a test
//! with the fault at the first call, the second, and so on, until the test gets through without meeting it.
//!
//! A fault comes instead of the call, except [`Fault::Short`], which writes a prefix first.

mod block;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use adit_core::media::{BlockFile, HostDir, HostEntry, HostFile, NewFile, SyncTarget};
use adit_core::types::{Access, Attr, Caller, Kind, RenameFlags, SetAttr, StatFs};
use parking_lot::Mutex;

pub use block::FaultyBlockFile;

/// A kind of call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum CallClass {
    /// `HostDir::open`.
    Open,
    /// `HostDir::publish`.
    Publish,
    /// `stat` of a path or file, and `statfs`.
    Stat,
    /// `set_attr` of a path or file.
    SetAttr,
    /// `HostDir::list`.
    List,
    /// `HostDir::make_dir`.
    MakeDir,
    /// `HostDir::remove`.
    Remove,
    /// `HostDir::rename`.
    Rename,
    /// `sync` of a file, a directory or everything.
    Sync,
    /// `HostFile::read_at`.
    Read,
    /// `HostFile::write_at`.
    Write,
    /// `HostFile::set_len`.
    SetLen,
}

impl CallClass {
    /// All of them.
    pub const ALL: [CallClass; 12] = [
        CallClass::Open,
        CallClass::Publish,
        CallClass::Stat,
        CallClass::SetAttr,
        CallClass::List,
        CallClass::MakeDir,
        CallClass::Remove,
        CallClass::Rename,
        CallClass::Sync,
        CallClass::Read,
        CallClass::Write,
        CallClass::SetLen,
    ];

    /// Those that need space.
    pub const GROWING: [CallClass; 6] = [
        CallClass::Publish,
        CallClass::MakeDir,
        CallClass::Rename,
        CallClass::Sync,
        CallClass::Write,
        CallClass::SetLen,
    ];

    /// Those that change or sync something.
    pub const CHANGING: [CallClass; 8] = [
        CallClass::Publish,
        CallClass::SetAttr,
        CallClass::MakeDir,
        CallClass::Remove,
        CallClass::Rename,
        CallClass::Sync,
        CallClass::Write,
        CallClass::SetLen,
    ];
}

/// How a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// With this errno, and nothing done.
    Errno(i32),
    /// A write leaves this many of 256 parts of its bytes and gives this errno; any other call, as `Errno`.
    Short(u8, i32),
}

impl Fault {
    /// No space left.
    pub const NO_SPACE: Fault = Fault::Errno(libc::ENOSPC);
    /// The medium failed.
    pub const IO: Fault = Fault::Errno(libc::EIO);
    /// A signal came. The seam's files handle it themselves, so a store that sees it need not try again.
    pub const INTERRUPTED: Fault = Fault::Errno(libc::EINTR);
    /// Half of a write, then no space left.
    pub const HALF: Fault = Fault::Short(128, libc::ENOSPC);

    fn error(self) -> io::Error {
        let (Fault::Errno(errno) | Fault::Short(_, errno)) = self;
        io::Error::from_raw_os_error(errno)
    }
}

/// Which calls fail.
#[derive(Clone, Debug)]
struct Plan {
    fault: Fault,
    classes: Vec<CallClass>,
    /// Calls of these classes to let through first.
    skip: u64,
    /// Calls to fail then.
    times: u64,
    /// Only calls on this path.
    path: Option<String>,
}

#[derive(Default)]
struct State {
    plan: Option<Plan>,
    fired: Vec<String>,
    calls: u64,
}

/// The switch of the faults of all that it wraps. Clones are the same switch.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

impl Faults {
    /// A switch that is off.
    pub fn new() -> Self {
        Faults::default()
    }

    /// `inner` with the faults of this switch.
    pub fn wrap(&self, inner: impl HostDir + 'static) -> FaultyDir {
        FaultyDir { inner: Box::new(inner), faults: self.clone() }
    }

    /// The single file `inner` with the faults of this switch.
    pub fn wrap_block(&self, inner: Arc<dyn BlockFile>) -> FaultyBlockFile {
        FaultyBlockFile { inner, faults: self.clone() }
    }

    /// From now on, of the calls of `classes`, lets `skip` through and fails the next `times` with `fault`.
    pub fn arm(&self, fault: Fault, classes: &[CallClass], skip: u64, times: u64) {
        let mut state = self.state.lock();
        state.plan = Some(Plan { fault, classes: classes.to_vec(), skip, times, path: None });
        state.fired.clear();
    }

    /// From now on, all calls of `classes` on `path`, on its open files too, fail with `fault`.
    pub fn arm_at(&self, path: &str, fault: Fault, classes: &[CallClass]) {
        self.arm(fault, classes, 0, u64::MAX);
        if let Some(plan) = &mut self.state.lock().plan {
            plan.path = Some(path.to_owned());
        }
    }

    /// No call fails any more.
    pub fn disarm(&self) {
        self.state.lock().plan = None;
    }

    /// Calls that failed since [`arm`](Faults::arm), each as a line.
    pub fn fired(&self) -> Vec<String> {
        self.state.lock().fired.clone()
    }

    /// Calls of every class so far.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    fn next(&self, class: CallClass, subject: &dyn Fn() -> String) -> Option<Fault> {
        let mut state = self.state.lock();
        state.calls += 1;
        let plan = state.plan.as_mut().filter(|plan| plan.classes.contains(&class) && plan.times > 0)?;
        if plan.path.as_ref().is_some_and(|path| !subject().split(' ').any(|word| word == path)) {
            return None;
        }
        if plan.skip > 0 {
            plan.skip -= 1;
            return None;
        }
        plan.times -= 1;
        let fault = plan.fault;
        state.fired.push(format!("{class:?} {} {fault:?}", subject()));
        Some(fault)
    }

    fn pass(&self, class: CallClass, subject: &dyn Fn() -> String) -> io::Result<()> {
        self.next(class, subject).map_or(Ok(()), |fault| Err(fault.error()))
    }

    /// Hands what is to be written to `write`, perhaps a part of it only.
    fn write(
        &self,
        subject: &dyn Fn() -> String,
        bytes: &[u8],
        write: impl FnOnce(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.next(CallClass::Write, subject) {
            None => write(bytes),
            Some(fault) => {
                if let Fault::Short(parts, _) = fault {
                    write(&bytes[..bytes.len() * usize::from(parts) / 256])?;
                }
                Err(fault.error())
            }
        }
    }
}

/// Runs `test` with `fault` at the first call of `classes`, at the second, and so on, until it gets through without
/// meeting one. `test` makes its own medium, wraps it with the switch that it gets, and calls
/// [`arm`](Armed::arm) when its preparations are done. Returns how many faults there were.
pub fn each_fault(fault: Fault, classes: &[CallClass], times: u64, mut test: impl FnMut(&Armed)) -> u64 {
    for skip in 0.. {
        let armed = Armed { faults: Faults::new(), fault, classes: classes.to_vec(), skip, times };
        test(&armed);
        if armed.faults.fired().is_empty() {
            return skip;
        }
    }
    unreachable!("a test makes a finite number of calls")
}

/// One round of [`each_fault`].
pub struct Armed {
    /// The switch to wrap media with.
    pub faults: Faults,
    fault: Fault,
    classes: Vec<CallClass>,
    /// Calls that are let through.
    pub skip: u64,
    times: u64,
}

impl Armed {
    /// Switches the round's fault on.
    pub fn arm(&self) {
        self.faults.arm(self.fault, &self.classes, self.skip, self.times);
    }
}

/// A [`HostDir`] some calls of which fail; so do those of its files.
pub struct FaultyDir {
    inner: Box<dyn HostDir>,
    faults: Faults,
}

impl FaultyDir {
    fn pass(&self, class: CallClass, path: &Path) -> io::Result<()> {
        self.faults.pass(class, &|| path.display().to_string())
    }

    fn file(&self, inner: Box<dyn HostFile>, path: &Path) -> Box<dyn HostFile> {
        Box::new(FaultyFile { inner, faults: self.faults.clone(), path: path.display().to_string() })
    }
}

impl HostDir for FaultyDir {
    fn umask(&self) -> u16 {
        self.inner.umask()
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn HostFile>> {
        self.pass(CallClass::Open, path)?;
        Ok(self.file(self.inner.open(path, access)?, path))
    }

    fn publish(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Box<dyn HostFile>> {
        self.pass(CallClass::Publish, path)?;
        Ok(self.file(self.inner.publish(path, new)?, path))
    }

    fn stat(&self, path: &Path) -> io::Result<Attr> {
        self.pass(CallClass::Stat, path)?;
        self.inner.stat(path)
    }

    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()> {
        self.pass(CallClass::SetAttr, path)?;
        self.inner.set_attr(path, set)
    }

    fn make_link(&self, path: &Path, target: &[u8]) -> io::Result<()> {
        self.pass(CallClass::Publish, path)?;
        self.inner.make_link(path, target)
    }

    fn read_link(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.pass(CallClass::Stat, path)?;
        self.inner.read_link(path)
    }

    fn list(&self, path: &Path, sink: &mut dyn FnMut(HostEntry<'_>)) -> io::Result<()> {
        self.pass(CallClass::List, path)?;
        self.inner.list(path, sink)
    }

    fn make_dir(&self, path: &Path, perm: u16, owner: Option<Caller>) -> io::Result<()> {
        self.pass(CallClass::MakeDir, path)?;
        self.inner.make_dir(path, perm, owner)
    }

    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        self.pass(CallClass::Remove, path)?;
        self.inner.remove(path, kind)
    }

    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        self.faults.pass(CallClass::Rename, &|| format!("{} to {}", from.display(), to.display()))?;
        self.inner.rename(from, to, flags)
    }

    fn sync(&self, target: SyncTarget<'_>) -> io::Result<()> {
        self.faults.pass(CallClass::Sync, &|| format!("{target:?}"))?;
        self.inner.sync(target)
    }

    fn statfs(&self) -> io::Result<StatFs> {
        self.pass(CallClass::Stat, Path::new(""))?;
        self.inner.statfs()
    }

    fn incarnation(&self) -> Option<[u8; 16]> {
        self.inner.incarnation()
    }
}

struct FaultyFile {
    inner: Box<dyn HostFile>,
    faults: Faults,
    path: String,
}

impl FaultyFile {
    fn pass(&self, class: CallClass) -> io::Result<()> {
        self.faults.pass(class, &|| self.path.clone())
    }
}

impl HostFile for FaultyFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.pass(CallClass::Read)?;
        self.inner.read_at(offset, buf)
    }

    fn hold_others(&self) {
        self.inner.hold_others();
    }

    fn admit_others(&self) {
        self.inner.admit_others();
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let subject = || format!("{} at {offset}, {} bytes", self.path, bytes.len());
        self.faults.write(&subject, bytes, |bytes| self.inner.write_at(offset, bytes))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.pass(CallClass::SetLen)?;
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Attr> {
        self.pass(CallClass::Stat)?;
        self.inner.stat()
    }

    fn set_attr(&self, set: &SetAttr) -> io::Result<()> {
        self.pass(CallClass::SetAttr)?;
        self.inner.set_attr(set)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.pass(CallClass::Sync)?;
        self.inner.sync(data_only)
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        self.inner.start_writeback(offset, len);
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pass(CallClass::Write)?;
        self.inner.punch(offset, len)
    }

    fn try_lock(&self, alone: bool) -> io::Result<bool> {
        self.inner.try_lock(alone)
    }

    fn try_lock_range(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.inner.try_lock_range(offset, len)
    }

    fn unlock_range(&self, offset: u64, len: u64) {
        self.inner.unlock_range(offset, len);
    }

    fn descriptor(&self) -> io::Result<OwnedFd> {
        self.inner.descriptor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::{CrashWorld, Mode};

    fn publish(dir: &dyn HostDir, path: &str, content: &[u8]) -> io::Result<Box<dyn HostFile>> {
        dir.publish(Path::new(path), &NewFile { content, perm: 0o644, owner: None, durable: false })
    }

    fn work(dir: &dyn HostDir) -> io::Result<()> {
        let file = publish(dir, "f", b"1234")?;
        file.write_at(4, b"5678")?;
        file.set_len(6)?;
        file.sync(true)?;
        dir.rename(Path::new("f"), Path::new("g"), RenameFlags::empty())
    }

    #[test]
    fn a_fault_comes_at_each_call_in_turn() {
        let mut seen = Vec::new();
        let count = each_fault(Fault::NO_SPACE, &CallClass::GROWING, 1, |round| {
            let dir = round.faults.wrap(CrashWorld::new(Mode::Kill).dir("v"));
            dir.make_dir(Path::new("d"), 0o755, None).unwrap();
            round.arm();
            let result = work(&dir);
            assert_eq!(result.is_err(), !round.faults.fired().is_empty());
            assert!(result.err().is_none_or(|e| e.kind() == io::ErrorKind::StorageFull));
            seen.extend(round.faults.fired().iter().map(|s| s.split(' ').next().unwrap().to_owned()));
            round.faults.disarm();
            publish(&dir, "later", b"").unwrap();
        });
        assert_eq!((count, seen.join(" ").as_str()), (5, "Publish Write SetLen Sync Rename"));
    }

    #[test]
    fn only_chosen_classes_count_and_fail() {
        let faults = Faults::new();
        let dir = faults.wrap(CrashWorld::new(Mode::Kill).dir("v"));
        faults.arm(Fault::IO, &[CallClass::Read], 1, 2);
        let file = publish(&dir, "f", b"12").unwrap();
        let mut buf = [0; 2];
        let results: Vec<bool> = (0..4).map(|_| file.read_at(0, &mut buf).is_ok()).collect();
        assert_eq!(results, [true, false, false, true]);
        assert_eq!((faults.fired().len(), faults.calls()), (2, 5));
    }

    #[test]
    fn a_short_write_leaves_a_prefix() {
        let faults = Faults::new();
        let dir = faults.wrap(CrashWorld::new(Mode::Kill).dir("v"));
        let file = publish(&dir, "f", b"----").unwrap();
        faults.arm(Fault::HALF, &CallClass::ALL, 0, 1);
        assert_eq!(file.write_at(0, b"abcd").unwrap_err().kind(), io::ErrorKind::StorageFull);
        let mut buf = [0; 4];
        assert_eq!((file.read_at(0, &mut buf).unwrap(), &buf), (4, b"ab--"));
    }
}
