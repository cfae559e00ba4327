//! The mount of a manifest, to read.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_index::live::Namespace;
use adit_mount::daemon::Readiness;
use adit_mount::{Signals, Until};

use super::serve::{self, About};
use super::wrong::Wrong;
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
    let wrong = Arc::new(Wrong::default());
    let store = manifest::watched_store(file, &request.cas, true, request.memory_bytes, Some(wrong.clone()))?;
    manifest::expect_answers(file, &request.cas, &store, false)?;
    // What is read comes from the disk cache. The other half is for what is on its way, and for who waits for it.
    let memory_bytes = request.memory_bytes / 2;
    let engine = serve::engine_options(&request.timeouts, memory_bytes, &request.options, Some(TTL));
    let namespace =
        Namespace { segment: store.segment().clone(), directories_mtime_ns: store.identity().newest_mtime_ns };
    let about = About { namespace: Some(namespace), ..plan.about(file) };
    let shown = store.clone();
    let served = serve::serve(Arc::new(store), &plan.mountpoint, &request.options, engine, about, None)?;
    let watching = wrong.watch(move |object| shown.files_of(object), served.handle(), served.engine());
    tell_ready(readiness)?;
    served.wait(Until { signals: Some(signals), idle: request.idle }, || drop(watching))
}
