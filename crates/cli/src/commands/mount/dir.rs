//! The mount of a folder of this machine, to read.

use std::path::Path;
use std::sync::Arc;

use adit_dir::DirStore;
use adit_mount::daemon::Readiness;
use adit_mount::{Signals, Until};

use super::serve;
use super::{Plan, start, tell_ready};
use crate::args::low::GlobalArgs;
use crate::args::mount_options::Part;
use crate::failure::{Failure, Result};
use crate::open;
use crate::process::Inherited;

/// Mounts the folder that `plan` names.
pub(super) fn mount(plan: Plan, global: &GlobalArgs, inherited: Inherited) -> Result<()> {
    let dir = plan.source.path().to_owned();
    let request = &plan.request;
    open::no_password(&plan.source, &request.password)?;
    if request.part != Part::Live || request.durability.is_some() || request.exclusive {
        let what =
            format!("{}: a folder has no snapshots, branches or durability, and is not exclusive", dir.display());
        return Err(Failure::usage(what));
    }
    if !request.options.read_only {
        let what =
            format!("{}: a folder of this machine is mounted to be read, or with a volume on top", dir.display());
        return Err(Failure::usage(what).hint(
            "say --read-only; or --upper VOLUME or --writable, and the folder stays as it is, whatever is changed",
        ));
    }
    if request.fake {
        return Ok(());
    }
    start(plan, global, inherited, |plan, readiness| serve(&plan, &dir, readiness))
}

/// Mounts the folder, and serves until it is unmounted. Takes the readiness once the mount is usable.
fn serve(plan: &Plan, dir: &Path, readiness: Option<&mut Option<Readiness>>) -> Result<()> {
    let signals = Signals::install().map_err(|e| Failure::io("signals", &e))?;
    let request = &plan.request;
    let store = DirStore::open_lasting(dir).map(Arc::new).map_err(|e| Failure::fs(dir.display(), &e))?;
    let engine = serve::engine_options(&request.timeouts, request.memory_bytes, &request.options, None);
    let about = plan.about(dir);
    let served = serve::serve(store, &plan.mountpoint, &request.options, engine, about, None)?;
    tell_ready(readiness)?;
    served.wait(Until { signals: Some(signals), idle: request.idle }, || ())
}
