//! A vault's mount: the password, what else is asked before anything is mounted, and the one mount of the process.

use std::path::Path;
use std::time::Duration;

use adit_mount::daemon::Readiness;
use adit_mount::{Signals, Until};
use rustix::io::Errno;

use super::serve::{self, About};
use super::{Plan, start, tell_ready};
use crate::args::low::GlobalArgs;
use crate::args::mount_options::Part;
use crate::failure::{Failure, Result};
use crate::live;
use crate::open::{self, Opened, Purpose};
use crate::process::Inherited;
use crate::secrets::{self, Origin, Password, Role};

/// How long names and attributes are believed when nobody else changes the vault.
const EXCLUSIVE_TTL: Duration = Duration::from_secs(3600);

/// Mounts the vault that `plan` names.
pub(super) fn mount(plan: Plan, global: &GlobalArgs, inherited: Inherited) -> Result<()> {
    let dir = plan.source.path().to_owned();
    let request = &plan.request;
    if request.part != Part::Live || request.durability.is_some() {
        return Err(Failure::usage(format!("{}: a vault has no snapshots, branches or durability", dir.display())));
    }
    live::respect_mounts(&dir, request.exclusive)?;
    open::vault::check_openable(&dir)?;
    if request.fake {
        return Ok(());
    }
    let password = match request.password {
        // Whoever sits at the terminal may try again; the keys are made anew in the process that needs them.
        Origin::Ask => open::vault::password(&dir, &Origin::Ask)?.0,
        ref origin => secrets::read(origin, Role::Current, &dir.display().to_string())?,
    };
    start(plan, global, inherited, |plan, readiness| serve(&plan, &dir, password, readiness))
}

/// Opens the vault, mounts it, and serves until it is unmounted. Takes the readiness once the mount is usable.
fn serve(plan: &Plan, dir: &Path, password: Password, readiness: Option<&mut Option<Readiness>>) -> Result<()> {
    let signals = Signals::install().map_err(|e| Failure::io("signals", &e))?;
    let request = &plan.request;
    let mut options = request.options.clone();
    let why = why_read_only(dir, request.rw).filter(|_| !options.read_only);
    if let Some(why) = &why {
        options.read_only = true;
        open::remark(&format!("{}: mounted read-only: {why}", dir.display()));
    }
    let purpose = match options.read_only {
        true => Purpose::Read,
        // Whoever names the place wants it used.
        false if request.state_dir.is_some() => Purpose::Write,
        false => Purpose::WriteIfPossible,
    };
    let state = plan.state.clone().ok_or_else(|| Failure::usage("no state directory is known"));
    say_shared(dir, request.exclusive);
    // Checked at the beginning as well, when nobody had typed a password; but others may have come since.
    let vault = open::vault::open(dir, password, state, purpose, request.exclusive)?;
    let why = why.or(vault.why_read_only.clone());
    let opened: Opened = vault.into();
    // What was refused may be gone by now: a password is read into more than it needs.
    adit_vault::memory::lock_again();
    if !adit_vault::memory::is_locked() {
        tracing::warn!(
            "keys could be swapped to disk: the limit of locked memory is too low; `adit doctor` tells more"
        );
    }
    options.read_only |= opened.read_only;
    let ttl = request.exclusive.then_some(EXCLUSIVE_TTL);
    let mut engine = serve::engine_options(&request.timeouts, request.memory_bytes, &options, ttl);
    engine.kernel_writeback = request.exclusive && !options.read_only;
    let about = About { exclusive: request.exclusive, why_read_only: why, ..plan.about(dir) };
    let served = serve::serve(opened.store.clone(), &plan.mountpoint, &options, engine, about, None)?;
    tell_ready(readiness)?;
    served.wait(Until { signals: Some(signals), idle: request.idle }, || ())
}

/// Says what does not reach from one mount of a vault to another, if there is one already. To the kernel they are two filesystems.
fn say_shared(dir: &Path, exclusive: bool) {
    let mounts = live::of_source(dir).into_iter().filter(|mount| !mount.hidden);
    let places: Vec<String> = mounts.map(|mount| mount.mountpoint).collect();
    if exclusive || (places.is_empty() && !open::vault::is_in_use(dir)) {
        return;
    }
    let by = match places.is_empty() {
        true => "another process of this machine has it open".to_owned(),
        false => format!("it is mounted on {} already", places.join(", ")),
    };
    open::remark(&format!(
        "{}: {by}; file locks and change notices do not reach from one mount to another. Use a database, or what else locks files, \
         through one of them only; a bind mount of the first one shares both",
        dir.display()
    ));
}

/// Why nothing can be changed in the vault in `dir`, whatever is asked for; None if it can.
///
/// New folders and all that is in them need write permission on its folder `d`. Who lacks that may still be allowed to
/// write below, in a vault that several users share: `-o rw` says so.
fn why_read_only(dir: &Path, rw: bool) -> Option<String> {
    use rustix::fs::{Access, AtFlags, CWD};
    let data = dir.join("d");
    match rustix::fs::accessat(CWD, &data, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Err(Errno::ROFS) => Some("it lies on a read-only filesystem".to_owned()),
        Err(Errno::ACCESS) if !rw => {
            Some(format!("you have no permission to write to {}; -o rw tries all the same", data.display()))
        }
        _ => None,
    }
}
