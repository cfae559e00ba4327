//! What the mounted tests share: a store in memory, a mount that always comes off again, and a watchdog.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod manifest;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_core::FsError;
use adit_core::engine::{Engine, EngineOptions};
use adit_core::store::Store;
use adit_mount::{Ended, MountError, MountOptions, Session, SessionHandle, Until};
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

pub use store::MemStore;

/// Long enough for every test here on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether FUSE can be used here. Under CI it must be; elsewhere the reason is printed and the test passes.
pub fn fuse_usable(test: &str) -> bool {
    let reason = if !Path::new("/dev/fuse").exists() {
        "there is no /dev/fuse"
    } else if !is_root() && !Path::new("/usr/bin/fusermount3").exists() {
        "neither root nor fusermount3"
    } else {
        return true;
    };
    refuse_under_ci(test, reason);
    false
}

/// Says why `test` cannot run; a failure under CI.
pub fn refuse_under_ci(test: &str, reason: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{test} cannot run: {reason}");
    eprintln!("{test} not run: {reason}");
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A mounted engine over a store, served by threads of this process.
pub struct Mounted<S = MemStore> {
    pub store: Arc<S>,
    pub engine: Arc<Engine>,
    pub handle: SessionHandle,
    serving: Option<JoinHandle<Result<Ended, FsError>>>,
    folder: Option<TempDir>,
    _watchdog: Watchdog,
}

impl<S: Store + 'static> Mounted<S> {
    pub fn new(store: S) -> Self {
        Mounted::with(store, EngineOptions::default(), Until::default())
    }

    pub fn with(store: S, options: EngineOptions, until: Until) -> Self {
        let mount = MountOptions { source: "memory, test".into(), ..MountOptions::default() };
        Mounted::attached(store, options, until, &mount)
    }

    pub fn attached(store: S, options: EngineOptions, until: Until, mount: &MountOptions) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let watchdog = Watchdog::start(folder.path());
        let store = Arc::new(store);
        let engine = Engine::new(store.clone(), options);
        let session = Session::mount(engine.clone(), folder.path(), mount).expect("mounts");
        let handle = session.handle();
        let serving = std::thread::spawn(move || session.wait(until));
        Mounted { store, engine, handle, serving: Some(serving), folder: Some(folder), _watchdog: watchdog }
    }
}

impl<S> Mounted<S> {
    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.handle.mountpoint().join(name)
    }

    pub fn root(&self) -> &Path {
        self.handle.mountpoint()
    }

    /// Unmounts, once those who were in it have left, and returns how it ended.
    pub fn end(mut self) -> Ended {
        self.unmount();
        self.ended()
    }

    /// Unmounts, once those who were in it have left.
    pub fn unmount(&self) {
        await_that("unmount", || match self.handle.unmount(false) {
            Ok(()) => true,
            Err(MountError::Busy(_)) => false,
            Err(e) => panic!("unmount: {e}"),
        });
    }

    /// Waits for an end that came from elsewhere.
    pub fn ended(&mut self) -> Ended {
        self.outcome().expect("last flush")
    }

    /// Likewise, with what the last flush said.
    pub fn outcome(&mut self) -> Result<Ended, FsError> {
        self.serving.take().expect("ended once").join().expect("session thread")
    }
}

impl<S> Drop for Mounted<S> {
    fn drop(&mut self) {
        take_off(self.handle.mountpoint());
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
        if let Some(folder) = self.folder.take() {
            remove_folder(folder);
        }
    }
}

/// Removes the temporary folder only if nothing is mounted on it: never delete through a mount.
pub fn remove_folder(folder: TempDir) {
    if std::fs::remove_dir(folder.path()).is_err() {
        eprintln!("{} left behind", folder.keep().display());
    }
}

/// Ends whatever is mounted at `mountpoint`, by force.
pub fn take_off(mountpoint: &Path) {
    for _ in 0..4 {
        if adit_mount::mountpoint::find(mountpoint).is_none() {
            return;
        }
        let forced = rustix::mount::unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH);
        if forced.is_err() && adit_mount::umount(mountpoint, true).is_err() {
            return;
        }
    }
}

/// Waits until `done`, or fails. It polls: the kernel tells nobody when it has forgotten an inode or ended a mount.
#[track_caller]
pub fn await_that(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within 60 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Ends the process, and the mount with it, if a test hangs.
pub struct Watchdog(Sender<()>);

impl Watchdog {
    pub fn start(mountpoint: &Path) -> Watchdog {
        let mountpoint = mountpoint.to_owned();
        let (alive, dropped) = channel::<()>();
        std::thread::spawn(move || {
            if dropped.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("watchdog: {} hangs", mountpoint.display());
                take_off(&mountpoint);
                std::process::exit(99);
            }
        });
        Watchdog(alive)
    }
}
