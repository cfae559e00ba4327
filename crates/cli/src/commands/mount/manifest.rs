//! The mount of a manifest, to read.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use adit_core::engine::Engine;
use adit_manifest::cache::{ObjectId, Watch};
use adit_manifest::store::ManifestStore;
use adit_mount::daemon::Readiness;
use adit_mount::{SessionHandle, Signals, Until};
use parking_lot::Mutex;

use super::serve;
use super::{Plan, start, tell_ready};
use crate::args::low::GlobalArgs;
use crate::args::mount_options::{MountRequest, Part};
use crate::failure::{Failure, Result};
use crate::open::{self, manifest};
use crate::process::Inherited;

/// How long the kernel believes what it knows: nothing of a manifest changes.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// Mounts the manifest that `plan` names.
pub(super) fn mount(mut plan: Plan, global: &GlobalArgs, inherited: Inherited) -> Result<()> {
    let file = plan.source.path().to_owned();
    let request = &mut plan.request;
    open::no_password(&plan.source, &request.password)?;
    if request.part != Part::Live || request.durability.is_some() || request.exclusive {
        let what =
            format!("{}: a manifest has no snapshots, branches or durability, and is not exclusive", file.display());
        return Err(Failure::usage(what));
    }
    if request.rw {
        return Err(Failure::usage(format!("{}: a manifest is mounted to be read", file.display())));
    }
    request.options.read_only = true;
    prepare(request, &file, global)?;
    if request.fake {
        return Ok(());
    }
    start(plan, global, inherited, |plan, readiness| serve(&plan, &file, readiness))
}

/// What is done before the background begins, for who waits at the terminal: the index of the manifest is built if there is none.
/// What the background needs later means the same there. It returns the hash of the manifest.
///
/// # Errors
/// Usage, if nothing says where the content lies; those of the manifest.
pub(super) fn prepare(request: &mut MountRequest, file: &Path, global: &GlobalArgs) -> Result<String> {
    request.cas = manifest::settled(&request.cas, file)?;
    if request.cas.cas.is_none() {
        return Err(Failure::usage(format!("{}: where the content of its files lies is not known", file.display()))
            .hint("name the store with --cas: the folder above Data/"));
    }
    manifest::index_apart(file, &request.cas, global)
}

/// Mounts it, and serves until it is unmounted. Takes the readiness once the mount is usable.
fn serve(plan: &Plan, file: &Path, readiness: Option<&mut Option<Readiness>>) -> Result<()> {
    let signals = Signals::install().map_err(|e| Failure::io("signals", &e))?;
    let request = &plan.request;
    let (watch, wrong) = Wrong::channel();
    let store = manifest::watched_store(file, &request.cas, true, Some(watch.clone()))?;
    manifest::expect_answers(&request.cas, &store)?;
    // What is read comes from the disk cache. The other half is for what is on its way, and for who waits for it.
    let memory_bytes = request.memory_bytes / 2;
    let engine = serve::engine_options(&request.timeouts, memory_bytes, &request.options, Some(TTL));
    let about = plan.about(file);
    let shown = store.clone();
    let served = serve::serve(Arc::new(store), &plan.mountpoint, &request.options, engine, about, None)?;
    let (session, engine) = (served.handle(), served.engine());
    let spawned = std::thread::Builder::new().name("adit-wrong".into()).spawn(move || {
        for object in wrong {
            drop_pages(&shown, &object, &session, &engine);
        }
    });
    if let Err(e) = spawned {
        tracing::warn!(error = %e, "what was read of objects that are wrong stays in the kernel's cache");
    }
    tell_ready(readiness)?;
    served.wait(Until { signals: Some(signals), idle: request.idle }, || watch.end())
}

/// Hears of objects with other content than their hash says. What the kernel was given of them has to go, which must not be
/// done by a thread that serves it: so another one gets them.
struct Wrong(Mutex<Option<Sender<ObjectId>>>);

impl Wrong {
    fn channel() -> (Arc<Wrong>, Receiver<ObjectId>) {
        let (sender, receiver) = channel();
        (Arc::new(Wrong(Mutex::new(Some(sender)))), receiver)
    }

    /// Ends the thread, which holds the store that holds this.
    fn end(&self) {
        self.0.lock().take();
    }
}

impl Watch for Wrong {
    fn quarantined(&self, object: &ObjectId) {
        if let Some(sender) = &*self.0.lock() {
            // Nobody is there any more at the end.
            let _ = sender.send(*object);
        }
    }
}

/// Has the kernel and the engine drop what they keep of the files with this object.
fn drop_pages(store: &ManifestStore, object: &ObjectId, session: &SessionHandle, engine: &Weak<Engine>) {
    let files = store.files_of(object).unwrap_or_else(|e| {
        tracing::warn!(error = %e, "the files of an object that is wrong are not known");
        Vec::new()
    });
    for ino in files {
        if let Some(engine) = engine.upgrade() {
            engine.inode_changed_below(ino);
        }
        session.forget_inode(ino);
    }
}
