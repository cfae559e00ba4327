//! A live mount: from the attached device to the last flush.
//!
//! [`Session::mount`] returns when the mountpoint answers. [`Session::wait`] returns when the mount has ended, whoever
//! ended it: `umount`, a signal, idleness, [`SessionHandle::unmount`]. However it ends, the engine is shut down, and so
//! flushed, exactly once, after the last request; that is the invariant here.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use adit_core::engine::{Engine, Notifier};
use adit_core::types::{FileName, Ino};
use adit_core::{ErrorKind, FsError};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::activity::{Activity, IdleWatch};
use crate::announcements::{self, Announced, Announcements, Became};
use crate::caller;
use crate::control::Doorplate;
use crate::descriptors::Reserve;
use crate::errno::ErrorCount;
use crate::fuse::Front;
use crate::mountpoint::{self, MountError};
use crate::nodes::Nodes;
use crate::options::MountOptions;
use crate::sightings::{self, Inside, View};
use crate::signals::{self, Signals};

/// After a lazy detach on a signal: how long open files may go on before the process ends.
const GRACE: Duration = Duration::from_secs(10);
/// Threads of a mount besides those that serve requests: the session's, of signals, of the sockets and of who asks there, and those that unmount.
const OTHER_THREADS: usize = 9;
/// What a thread that serves requests takes for them, in bytes: the buffer of `fuser`.
const REQUEST_LEN_BYTES: usize = (16 << 20) + 4096;
/// Of a thread, in bytes: what the standard library asks for.
const STACK_LEN_BYTES: usize = 2 << 20;
/// Memory of a mount besides all that, in bytes: what the store knows, and what the allocator keeps for each thread.
const OTHER_MEMORY_BYTES: usize = 64 << 20;
/// Descriptors of a mount besides one for each thread that serves requests: the connection, its folder, a socket, and some for what comes.
const OTHER_DESCRIPTORS: usize = 9;
/// How long requests in progress are waited for when a mount is ended by force.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// How a mount came to its end. In both cases all that was acknowledged has been flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The kernel closed the connection: it was unmounted, and its last file closed.
    Unmounted,
    /// It was detached while files were open, and their users were not waited for. The connection closes when this
    /// process ends, which it should do now.
    Forced,
}

/// What ends a mount besides an unmount from outside.
#[derive(Debug, Default)]
pub struct Until {
    /// Signals that ask for it.
    pub signals: Option<Signals>,
    /// Unmount after this long without a request and without an open file.
    pub idle: Option<Duration>,
}

/// A mounted engine. Dropping it detaches the mount lazily and flushes.
pub struct Session {
    handle: SessionHandle,
    engine: Arc<Engine>,
    events: Receiver<Event>,
    serving: Option<JoinHandle<()>>,
    kernel_writeback: bool,
    _kernel: Arc<Kernel>,
}

/// Ends a [`Session`] from another thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SessionHandle {
    mountpoint: PathBuf,
    /// `major:minor` of its device, by which it is known: another mount may come to its place once it is detached.
    device: String,
    activity: Arc<Activity>,
    outcome: Arc<Outcome>,
    events: Sender<Event>,
    doorplate: Doorplate,
    /// Weak: it holds the connection open.
    kernel: Weak<Kernel>,
}

/// The way to tell the kernel something. The engine tells it from a thread that serves no requests.
#[derive(Clone, Debug)]
struct Kernel {
    notifier: fuser::Notifier,
    nodes: Arc<Nodes>,
    announcements: Arc<Announcements>,
}

/// Numbers that the kernel has for inodes that were [renewed](SessionHandle::renew).
#[derive(Debug)]
#[must_use = "the kernel still has what these were"]
pub struct Former(Vec<fuser::INodeNo>);

/// How the session ended, once it has, for those who asked for it. An error is kept as kind and message.
#[derive(Debug, Default)]
struct Outcome {
    ended: Mutex<Option<Result<Ended, (ErrorKind, String)>>>,
    set: Condvar,
    /// The kernel asks nothing more, or is not waited for any more; what is left is the last flush.
    is_over: AtomicBool,
}

#[derive(Debug)]
enum Event {
    /// The kernel closed the connection, or the transport failed.
    Ended(io::Result<()>),
    Signal(i32),
    Detached(Result<(), MountError>),
}

impl Session {
    /// Mounts `engine` at `mountpoint` and starts to serve; returns when the root answers.
    ///
    /// # Errors
    /// What [`MountError`] says. On an error nothing stays mounted.
    pub fn mount(engine: Arc<Engine>, mountpoint: &Path, options: &MountOptions) -> Result<Session, MountError> {
        let mountpoint = mountpoint::resolve(mountpoint)
            .map_err(|source| MountError::Mountpoint { path: mountpoint.into(), source })?;
        let mut options = options.clone();
        options.read_only |= engine.options().read_only || engine.store().capabilities().read_only;
        let threads = options.threads.get() + OTHER_THREADS;
        expect_threads(threads).map_err(|e| MountError::Refused {
            path: mountpoint.clone(),
            reason: format!("the threads that serve a mount cannot be had: {e}"),
        })?;
        let memory = engine.options().memory_bytes as usize + options.threads.get() * REQUEST_LEN_BYTES;
        let memory = memory + threads * STACK_LEN_BYTES + OTHER_MEMORY_BYTES;
        expect_address_space(memory).map_err(|e| MountError::Refused {
            path: mountpoint.clone(),
            reason: format!(
                "a mount needs {} MiB more of address space than it may have ({e}): raise the limit (ulimit -v), or give it less memory (--memory)",
                memory >> 20
            ),
        })?;
        expect_descriptors(options.threads.get() + OTHER_DESCRIPTORS).map_err(|e| MountError::Refused {
            path: mountpoint.clone(),
            reason: format!("the descriptors that a mount needs cannot be had: {e}"),
        })?;
        let device = mountpoint::attach(&mountpoint, &options)?;
        let unusable = |source| {
            // The mount is ours and nobody uses it yet; that it may be gone already is no error.
            let _ = mountpoint::detach(&mountpoint, true);
            MountError::Unusable { path: mountpoint.clone(), source }
        };
        let activity = Arc::new(Activity::default());
        let front = Front::new(engine.clone(), activity.clone(), &options);
        let (kernel, nodes, begin, doorplate) = (front.kernel(), front.nodes(), front.begin(), front.doorplate());
        let announcements = front.announcements();
        let mut config = fuser::Config::default();
        config.n_threads = Some(options.threads.get());
        config.clone_fd = true;
        // The kernel keeps other users out unless `allow_other`; fuser's second check would refuse what the kernel does
        // on its own account, such as write-back.
        let session = fuser::Session::from_fd(front, device, fuser::SessionACL::All, config).map_err(unusable)?;
        let teller = Arc::new(Kernel { notifier: session.notifier(), nodes, announcements });
        engine.set_notifier(Box::new(Kernel::clone(&teller)));
        let _ = kernel.set(session.notifier());

        let (events, received) = channel();
        let ended = events.clone();
        let early = EarlyEnd { mountpoint: mountpoint.clone(), is_ready: Arc::default() };
        let is_ready = early.is_ready.clone();
        let serving = Builder::new()
            .name("adit-session".into())
            .spawn(move || {
                let _early = early;
                let result = session.run().or_else(as_an_end);
                // Nobody listens any more after a forced end.
                let _ = ended.send(Event::Ended(result));
            })
            .map_err(unusable)?;
        probe(&mountpoint).map_err(unusable)?;
        is_ready.store(true, Ordering::SeqCst);
        let kernel_writeback = engine.options().kernel_writeback;
        mountpoint::tune_backing_device(&mountpoint, kernel_writeback);
        let device = mountpoint::find(&mountpoint).map(|entry| entry.device).unwrap_or_default();
        let (outcome, kernel) = (Arc::default(), Arc::downgrade(&teller));
        let handle = SessionHandle { mountpoint, device, activity, outcome, events, doorplate, kernel };
        let mounted = handle.clone();
        let _ = begin.set(Box::new(move || mounted.sync_kernel().unwrap_or(false)));
        Ok(Session { handle, engine, events: received, serving: Some(serving), kernel_writeback, _kernel: teller })
    }

    /// A handle that other threads may use.
    pub fn handle(&self) -> SessionHandle {
        self.handle.clone()
    }

    /// Where it is mounted, absolute.
    pub fn mountpoint(&self) -> &Path {
        &self.handle.mountpoint
    }

    /// Serves until the mount ends, then flushes everything and stops the engine.
    ///
    /// A signal unmounts. If files are open, it detaches lazily, so that nothing new enters, and gives their users ten
    /// seconds; a second signal ends it at once. What was acknowledged is flushed in either case, unless a third signal
    /// kills the process.
    ///
    /// # Errors
    /// What the last flush says, else what the transport said.
    pub fn wait(self, until: Until) -> Result<Ended, FsError> {
        if let Some(signals) = until.signals {
            self.forward(signals).map_err(FsError::from)?;
        }
        let mut idle = until.idle.map(IdleWatch::new);
        let mut ending = Ending::default();
        let transport = loop {
            match self.next_event(&ending, idle.as_ref()) {
                Next::Event(Event::Ended(result)) => break Some(result),
                Next::Event(Event::Signal(signal)) if ending.asked => {
                    tracing::warn!(
                        "{} again: flushing and ending without waiting for open files; one more kills",
                        signals::name(signal)
                    );
                    signals::let_them_kill();
                    break None;
                }
                Next::Event(Event::Signal(signal)) => {
                    tracing::info!("{}: unmounting", signals::name(signal));
                    ending.asked = true;
                    self.detach_from_a_thread(false);
                }
                Next::Event(Event::Detached(result)) => self.detached(result, &mut ending, idle.as_mut()),
                Next::Deadline => break None,
                Next::Tick => {
                    let expired = idle.as_mut().is_some_and(|w| w.expired(&self.handle.activity, Instant::now()));
                    if expired && !ending.asked && !ending.idle {
                        ending.idle = true;
                        self.detach_from_a_thread(false);
                    }
                }
            }
        };
        let outcome = self.handle.outcome.clone();
        outcome.is_over.store(true, Ordering::SeqCst);
        let ended = self.finish(transport);
        *outcome.ended.lock() = Some(ended.as_ref().copied().map_err(|e| (e.kind(), e.to_string())));
        outcome.set.notify_all();
        ended
    }

    /// Flushes, stops the engine, and says how it ended. `transport` is `None` when the kernel still holds on.
    fn finish(mut self, transport: Option<io::Result<()>>) -> Result<Ended, FsError> {
        let _reserve = Reserve::open();
        let ended = if transport.is_some() { Ended::Unmounted } else { Ended::Forced };
        if ended == Ended::Forced {
            self.engine.store().wind_up();
        }
        if !self.handle.activity.close(LAST_REQUESTS) {
            tracing::warn!("requests still in progress did not end in time");
        }
        let flushed = self.engine.shutdown();
        match (ended, self.serving.take()) {
            (Ended::Unmounted, Some(serving)) => {
                // It sent the end as its last act.
                let _ = serving.join();
            }
            _ => {
                // It waits for a connection that only the end of this process closes.
                let _ = self.handle.unmount(true);
            }
        }
        flushed?;
        match transport {
            Some(Err(e)) => Err(FsError::from(e).on("serve", self.handle.mountpoint.display())),
            Some(Ok(())) | None => Ok(ended),
        }
    }

    fn next_event(&self, ending: &Ending, idle: Option<&IdleWatch>) -> Next {
        let now = Instant::now();
        let deadline = ending.deadline.map(|at| at.saturating_duration_since(now));
        let received = match (deadline, idle.map(IdleWatch::pause)) {
            (None, None) => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (Some(d), None) | (None, Some(d)) => self.events.recv_timeout(d),
            (Some(a), Some(b)) => self.events.recv_timeout(a.min(b)),
        };
        match received {
            Ok(event) => Next::Event(event),
            // `self.handle` holds a sender, so the channel cannot be disconnected; ending is the safe answer to it.
            Err(RecvTimeoutError::Disconnected) => Next::Deadline,
            Err(RecvTimeoutError::Timeout) => match ending.deadline {
                Some(at) if at <= Instant::now() => Next::Deadline,
                _ => Next::Tick,
            },
        }
    }

    /// Decides after an attempt to unmount on a signal, on idleness, or on request of another thread.
    fn detached(&self, result: Result<(), MountError>, ending: &mut Ending, idle: Option<&mut IdleWatch>) {
        let on_idle = std::mem::take(&mut ending.idle);
        match result {
            // The kernel closes the connection once the last file is closed and no other mount namespace holds a copy;
            // a process that was told to end does not wait for that for ever.
            Ok(()) if ending.asked => ending.deadline = Some(Instant::now() + GRACE),
            // After idleness there is no second attempt: `idle` stays set.
            Ok(()) => {
                ending.idle = on_idle;
                let copies = sightings::of(&self.handle.device).seen;
                if on_idle && !copies.is_empty() {
                    tracing::warn!(?copies, "unmounted after it was not used; goes on for where it is still mounted");
                }
            }
            Err(MountError::Busy(_)) if ending.asked && !ending.lazy => {
                tracing::warn!(
                    "busy ({} open): detached for new users; waiting {} s for open files, a second signal ends it now",
                    self.handle.activity.handles(),
                    GRACE.as_secs()
                );
                ending.lazy = true;
                self.detach_from_a_thread(true);
            }
            // Someone works in it without an open file; look again after another idle time.
            Err(MountError::Busy(_)) if on_idle => {
                if let Some(watch) = idle {
                    watch.restart(Instant::now());
                }
            }
            Err(MountError::NotAMount(_)) if ending.asked => ending.deadline = Some(Instant::now() + GRACE),
            Err(e) => {
                tracing::error!("unmount: {e}");
                if ending.asked {
                    ending.deadline = Some(Instant::now() + GRACE);
                }
            }
        }
    }

    /// Detaches from a thread of its own, because umount(2) waits for requests, and signals must be heard meanwhile.
    fn detach_from_a_thread(&self, lazy: bool) {
        let handle = self.handle.clone();
        let writeback = self.kernel_writeback;
        let spawned = Builder::new().name("adit-umount".into()).spawn(move || {
            let _reserve = Reserve::open();
            if lazy && writeback {
                handle.flush_cache();
            }
            // The receiver is gone only after a forced end.
            let _ = handle.events.send(Event::Detached(handle.unmount(lazy)));
        });
        if let Err(e) = spawned {
            let refused = MountError::Refused { path: self.handle.mountpoint.clone(), reason: e.to_string() };
            let _ = self.handle.events.send(Event::Detached(Err(refused)));
        }
    }

    fn forward(&self, mut signals: Signals) -> io::Result<()> {
        let events = self.handle.events.clone();
        Builder::new().name("adit-signals".into()).spawn(move || {
            while let Ok(signal) = signals.wait() {
                if events.send(Event::Signal(signal)).is_err() {
                    break;
                }
            }
        })?;
        Ok(())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.serving.take().is_none() {
            return;
        }
        // Nobody waited; nothing must stay mounted whose server is about to go, and nothing acknowledged be lost.
        let _ = self.handle.unmount(true);
        self.handle.activity.close(LAST_REQUESTS);
        if let Err(e) = self.engine.shutdown() {
            tracing::error!("last flush of {}: {e}", self.handle.mountpoint.display());
        }
    }
}

impl SessionHandle {
    /// Where it is mounted, absolute.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Where the mount tells the door to its process.
    pub(crate) fn doorplate(&self) -> &Doorplate {
        &self.doorplate
    }

    /// Open files and directories.
    pub fn open_handles(&self) -> u64 {
        self.activity.handles()
    }

    /// Requests of the kernel since the start, without those that forget inodes.
    pub fn requests(&self) -> u64 {
        self.activity.requests()
    }

    /// Requests of the kernel by kind: their name in the protocol, and how many. Kinds that were never asked are left out.
    pub fn requests_by_kind(&self) -> Vec<(&'static str, u64)> {
        self.activity.kinds()
    }

    /// How many files were opened so far that the kernel reads by itself ([`MountOptions::passthrough`]).
    pub fn passed_opens(&self) -> u64 {
        self.activity.passed_opens()
    }

    /// The errors that requests met last and the errno hides, with their counts, the latest at the end.
    pub fn errors(&self) -> Vec<ErrorCount> {
        self.activity.errors.met()
    }

    /// How many requests met damaged data, or another error that its number hides, so far.
    pub fn damage_count(&self) -> u64 {
        self.activity.damage.count()
    }

    /// What a request about one of `inodes` met after the first `count` that met such a thing, and its kind. The latest few inodes are
    /// remembered.
    pub fn damage_since(&self, count: u64, inodes: &[Ino]) -> Option<(ErrorKind, String)> {
        self.activity.damage.since(count, inodes)
    }

    /// Unmounts; [`Session::wait`] then flushes and returns. `lazy` detaches at once while open files live on.
    ///
    /// # Errors
    /// `Busy` if files are open and not `lazy`, or another mount covers it; `NotAMount` if it is not there any more, though it may be mounted
    /// elsewhere. Nothing has changed then.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        match self.is_in_place() {
            true => mountpoint::detach(&self.mountpoint, lazy),
            // Under another one.
            false if mountpoint::is_attached(&self.device, &self.mountpoint) => {
                Err(MountError::Busy(self.mountpoint.clone()))
            }
            false => Err(MountError::NotAMount(self.mountpoint.clone())),
        }
    }

    /// Whether it is in its place, as far as this process sees.
    fn is_in_place(&self) -> bool {
        // Where the table of mounts cannot be read, nothing is known of it.
        self.device.is_empty()
            || mountpoint::look(&self.mountpoint)
                .map_or(true, |found| found.is_some_and(|entry| entry.device == self.device))
    }

    /// Has the kernel begin to write what it holds of this mount, and its times. False if it cannot be told.
    fn sync_kernel(&self) -> io::Result<bool> {
        // A mount that was detached has no place by which it could be named. What is open there is told apart.
        let is_in_place = self.is_in_place();
        if is_in_place {
            let root = CString::new(self.mountpoint.as_os_str().as_bytes())?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let synced = caller::ask(None, || {
                let root = rustix::fs::open(&*root, flags, Mode::empty())?;
                rustix::fs::syncfs(&root)
            });
            match synced {
                // A root that its own user may not list says nothing of what the kernel holds.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
                synced => synced?,
            }
        }
        Ok(is_in_place)
    }

    /// Makes the kernel write its dirty pages to us, before a lazy detach takes the tree away.
    fn flush_cache(&self) {
        if let Err(e) = self.sync_kernel() {
            tracing::error!("kernel cache not flushed: {e}");
        }
    }

    /// True as long as the kernel holds the filesystem: it is mounted, here or elsewhere (see [`sightings`]), or files are open.
    pub fn is_held(&self) -> bool {
        !self.outcome.is_over.load(Ordering::SeqCst)
    }

    /// True if the kernel refuses changes of the filesystem by now: it was mounted so, or `mount -o remount,ro` has made it so.
    pub fn is_read_only(&self) -> bool {
        mountpoint::ours().iter().any(|entry| entry.device == self.device && entry.read_only)
    }

    /// `major:minor` of its device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// How [`Session::wait`] ended, the last flush included; waits for it at most `patience`. `None` if it goes on.
    ///
    /// So an unmount can report what the last flush said, although another thread did it.
    pub fn outcome(&self, patience: Duration) -> Option<Result<Ended, FsError>> {
        let mut ended = self.outcome.ended.lock();
        if ended.is_none() {
            self.outcome.set.wait_while_for(&mut ended, |ended| ended.is_none(), patience);
        }
        let ended = ended.as_ref()?;
        Some(ended.as_ref().copied().map_err(|(kind, message)| FsError::new(*kind).because(message.clone())))
    }

    /// Has the kernel write what it holds of this mount: all that was written before the call has reached the store when it
    /// returns. `written` are the inodes that are open for writing; of others it holds nothing. Not from a thread that serves
    /// requests. Once the mount was detached, times of what is open may come later.
    ///
    /// # Errors
    /// What the kernel says: not all may have been written.
    pub fn flush_kernel(&self, written: &[Ino]) -> io::Result<()> {
        // Starts everything at once, and writes times as well; but the kernel does not wait for pages of FUSE.
        let Some(kernel) = self.kernel.upgrade() else { return Ok(()) };
        self.sync_kernel()?;
        for &ino in written {
            // Waits for each page, or writes it.
            match kernel.notifier.inval_inode(kernel.nodes.number(ino), 0, 0) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        // The times of what was written since the first.
        self.sync_kernel().map(drop)
    }

    /// Has the kernel forget an entry, with what it knows below it, and its directory's listing. Not from a thread that serves
    /// requests. What the kernel does not know needs no forgetting.
    pub fn forget_entry(&self, parent: Ino, name: FileName<'_>) {
        let Some(kernel) = self.kernel.upgrade() else { return };
        kernel.inval_entry(parent, name);
        kernel.inval_inode(parent, 0, 0);
    }

    /// Runs `work` while no request is served: those in progress have ended, new ones wait. `None`, and `work` does not run,
    /// if they do not end within seconds. `work` must ask nothing of this mount, and tell the kernel nothing, for either
    /// may wait for a request.
    pub fn apart<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let _hold = self.activity.hold(LAST_REQUESTS)?;
        Some(work())
    }

    /// Has the kernel take `inodes` for ones that it never saw: those of which it would keep what it knows, whatever it is told (size and
    /// times of a regular file under write-back; that a directory was removed). None of them may be open. From here on whoever still has
    /// one by what it was gets `ESTALE`, and finds it by its path. Within [`SessionHandle::apart`]; what it returns is for
    /// [`SessionHandle::forget_former`] after that.
    pub fn renew(&self, inodes: impl IntoIterator<Item = Ino>) -> Former {
        Former(self.kernel.upgrade().map_or_else(Vec::new, |kernel| kernel.nodes.renew(inodes)))
    }

    /// Has the kernel forget attributes and pages of what was renewed. Not from a thread that serves requests, nor within
    /// [`SessionHandle::apart`].
    pub fn forget_former(&self, former: &Former) {
        let Some(kernel) = self.kernel.upgrade() else { return };
        for &node in &former.0 {
            if let Err(e) = kernel.notifier.inval_inode(node, 0, 0) {
                tracing::debug!(?node, "invalidation not delivered: {e}");
            }
        }
    }

    /// Has watchers get an event for each of `changes` in the directory to which `names` lead, before the kernel is told to forget these.
    /// Not from a thread that serves requests, nor within [`SessionHandle::apart`].
    ///
    /// # Errors
    /// That of the first change of which the kernel would not tell; the others are announced.
    pub fn announce(&self, names: &[Vec<u8>], changes: &[Announced<'_>]) -> io::Result<()> {
        let Some(kernel) = self.kernel.upgrade() else { return Ok(()) };
        let dir = announcements::Directory::open(&self.mountpoint, &self.device, names)?;
        let announced: Vec<_> = changes.iter().map(|change| dir.announce(&kernel.announcements, *change)).collect();
        announced.into_iter().collect()
    }

    /// Has watchers of a directory see the files among `changes` closed that were open for writing, as far as they may be opened so. After the
    /// kernel was told what to forget.
    pub fn announce_content(&self, names: &[Vec<u8>], changes: &[Announced<'_>]) {
        let Ok(dir) = announcements::Directory::open(&self.mountpoint, &self.device, names) else { return };
        for change in changes.iter().filter(|change| change.became == Became::Different) {
            if let Err(e) = dir.announce_content(change.name) {
                tracing::debug!("no event for its content: {e}");
            }
        }
    }

    /// What other filesystems cover of this one, in whatever namespace.
    pub fn mounted_inside(&self) -> View<Inside> {
        sightings::inside(&self.device)
    }

    /// Has the kernel forget attributes, ACLs and pages of an inode. Not from a thread that serves requests.
    pub fn forget_inode(&self, ino: Ino) {
        if let Some(kernel) = self.kernel.upgrade() {
            kernel.inval_inode(ino, 0, 0);
        }
    }

    /// Ends the mount as a signal would: unmount, and if it is busy detach lazily and give open files ten seconds.
    pub fn end(&self) {
        // The receiver is gone only after the end.
        let _ = self.events.send(Event::Signal(libc::SIGTERM));
    }
}

/// How far an end that was asked for has come.
#[derive(Debug, Default)]
struct Ending {
    /// By a signal or [`SessionHandle::end`].
    asked: bool,
    /// An attempt because of idleness is under way.
    idle: bool,
    /// A lazy detach was ordered.
    lazy: bool,
    /// When patience ends.
    deadline: Option<Instant>,
}

enum Next {
    Event(Event),
    Tick,
    Deadline,
}

/// The kernel ends a connection with ENODEV, but with ECONNABORTED for a worker that took a request (a late RELEASE) in
/// that very moment. Both are ends; what the request would have flushed, the shutdown flushes.
fn as_an_end(error: io::Error) -> io::Result<()> {
    match Errno::from_io_error(&error) {
        Some(Errno::CONNABORTED | Errno::NODEV) => Ok(()),
        _ => Err(error),
    }
}

/// Ends the connection if its requests are served no longer before the mount is ready. The notifiers keep the connection open, so the first request
/// would wait for ever.
struct EarlyEnd {
    mountpoint: PathBuf,
    is_ready: Arc<AtomicBool>,
}

impl Drop for EarlyEnd {
    fn drop(&mut self) {
        if !self.is_ready.load(Ordering::SeqCst) {
            mountpoint::abort(&self.mountpoint);
        }
    }
}

/// Has as many threads as a mount needs, at once and for a moment. Without room for them it would end soon after it began: that is better known before
/// anything is mounted.
fn expect_threads(count: usize) -> io::Result<()> {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let wait = |_| {
        let gate = gate.clone();
        Builder::new().spawn(move || drop(gate.lock()))
    };
    let threads: io::Result<Vec<JoinHandle<()>>> = (0..count).map(wait).collect();
    drop(closed);
    threads?.into_iter().for_each(|thread| drop(thread.join()));
    Ok(())
}

/// Has as many bytes of address space as a mount may come to use, for a moment, as [`expect_threads`] has threads. An allocation that fails later ends the
/// process.
fn expect_address_space(len: usize) -> io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags};
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at a place that the kernel chooses, which nobody else knows of, goes again at once.
    unsafe {
        let mapped = rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags)?;
        rustix::mm::munmap(mapped, len)?;
    }
    Ok(())
}

/// Has as many descriptors as a mount needs, at once and for a moment, as [`expect_threads`] has threads.
fn expect_descriptors(count: usize) -> io::Result<()> {
    let first = std::fs::File::open("/dev/null")?;
    let all: io::Result<Vec<std::fs::File>> = (1..count).map(|_| first.try_clone()).collect();
    all.map(drop)
}

/// The first requests through the mount: what a user's `ls` would do.
fn probe(mountpoint: &Path) -> io::Result<()> {
    let mountpoint = CString::new(mountpoint.as_os_str().as_bytes())?;
    caller::ask(None, || {
        rustix::fs::stat(&*mountpoint)?;
        rustix::fs::statvfs(&*mountpoint).map(drop)
    })
}

impl Notifier for Kernel {
    fn inval_inode(&self, ino: Ino, offset: i64, len: i64) {
        if let Err(e) = self.notifier.inval_inode(self.nodes.number(ino), offset, len) {
            tracing::debug!(?ino, "invalidation not delivered: {e}");
        }
    }

    fn inval_entry(&self, parent: Ino, name: FileName<'_>) {
        let name = std::os::unix::ffi::OsStrExt::from_bytes(name.as_bytes());
        if let Err(e) = self.notifier.inval_entry(self.nodes.number(parent), name) {
            tracing::debug!(?parent, "invalidation not delivered: {e}");
        }
    }
}
