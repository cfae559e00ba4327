//! `mount`: from a request to a served mount, in the foreground or in a background process that reports how it went.
//!
//! Order in the background: the password is read, then the process forks (before any thread), and the child unlocks,
//! mounts and says that it is ready. Every failure up to there is the parent's message and exit code. What a kind of source
//! does in the child is in [`vault`], [`volume`], [`manifest`], [`dir`] and [`overlay`], what all do in [`serve`].

mod dir;
pub mod indexed;
mod manifest;
pub mod overlay;
mod privilege;
pub mod serve;
mod vault;
pub mod volume;
mod wrong;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use adit_core::process::ProcessNumber;
use adit_mount::MountError;
use adit_mount::control::ControlError;
use adit_mount::daemon::{self, Readiness, Side, StartFailure};
use adit_mount::mountpoint::{self, MountEntry};

use self::serve::About;
use crate::args::low::{GlobalArgs, MountArgs};
use crate::args::mount_options::MountRequest;
use crate::exit_code::{Code, ENDING};
use crate::failure::{Failure, Result};
use crate::process::{self, Inherited};
use crate::source::{self, Source};
use crate::{live, logging, open, output, state_dir};

/// A mount that is fully described; only the password is apart.
struct Plan {
    request: MountRequest,
    source: Source,
    mountpoint: PathBuf,
    state: Option<PathBuf>,
}

impl Plan {
    /// The log of mounts in the background, unless another one was named.
    fn log(&self) -> Option<PathBuf> {
        self.request.log_file.clone().or_else(|| Some(self.state.as_ref()?.join("log")))
    }

    /// Where warnings of this mount can be read: in the foreground that is standard error, and the file that was named.
    fn shown_log(&self) -> Option<PathBuf> {
        if self.request.foreground { self.request.log_file.clone() } else { self.log() }
    }

    /// What is known of a whole source at `place`, mounted now.
    fn about(&self, place: &Path) -> About {
        About {
            source: place.display().to_string(),
            exclusive: false,
            why_read_only: None,
            log: self.shown_log(),
            began: Instant::now(),
            part: None,
            upper: None,
            content: matches!(self.source, Source::Manifest(_)).then(|| self.request.cas.clone()),
            hidden: false,
            namespace: None,
            contents: None,
        }
    }
}

/// `adit mount`. What the caller had open (`inherited`) is closed in the background; in the foreground it is the caller's
/// business.
pub fn mount(args: MountArgs, global: &GlobalArgs, inherited: Inherited) -> Result<()> {
    if privilege::is_remount(&args) {
        return privilege::remount(&args);
    }
    process::hand_back_large_pieces();
    let mut request = MountRequest::new(args)?;
    // Relative paths mean something only before the daemon leaves its folder.
    request.log_file =
        request.log_file.map(std::path::absolute).transpose().map_err(|e| Failure::io("--log-file", &e))?;
    let log_file = request.log_file.clone();
    let mounted = mount_requested(request, global, inherited);
    match (&mounted, &log_file) {
        // What was said is there already.
        (Err(failure), Some(file)) if !failure.text().is_empty() => logging::note_failure(file, failure),
        _ => {}
    }
    mounted
}

fn mount_requested(mut request: MountRequest, global: &GlobalArgs, inherited: Inherited) -> Result<()> {
    let global = &request.global(global);
    open::be_quiet(global.quiet);
    let source = Source::recognise(&request.source)?;
    request.options.kind = source.kind().to_owned();
    request.options.place_raw = output::raw(source.path().as_os_str().as_bytes());
    if let (Source::Dir(_), Some(upper), Some(_)) = (&source, &request.upper, &request.data) {
        let what = format!("--data is the data folder of {}, which is a folder itself", source.path().display());
        return Err(Failure::usage(what).hint(format!(
            "to say where the one of {0} is now: adit volume check {0} --data DIR --repair",
            upper.display()
        )));
    }
    open::no_data(&source, request.data.as_deref())?;
    open::no_cas(&source, &request.cas)?;
    if request.source == OsStr::new(&request.options.source)
        && Path::new(source::without_prefix(&request.source)).is_relative()
    {
        // What the kernel's table shows is read by others, and when this process's folder is long forgotten.
        request.options.source = source.path().display().to_string();
    }
    privilege::respect_host(&mut request, source.path());
    let mountpoint = check_mountpoint(&request, &source)?;
    let given = request.state_dir.as_deref().or(global.state_dir.as_deref());
    // Relative paths mean something only before the daemon leaves its folder.
    let state = state_dir::locate(given).ok();
    request.data = request.data.map(std::path::absolute).transpose().map_err(|e| Failure::io("--data", &e))?;
    let plan = Plan { request, source, mountpoint, state };
    if plan.request.is_overlay() {
        return overlay::mount(plan, global, inherited);
    }
    match plan.source {
        Source::Vault(_) => vault::mount(plan, global, inherited),
        Source::Volume(_) => volume::mount(plan, global, inherited),
        Source::Manifest(_) => manifest::mount(plan, global, inherited),
        Source::Dir(_) => dir::mount(plan, global, inherited),
    }
}

/// Tells the parent, which waits for it in the terminal, that the mount is usable.
fn tell_ready(readiness: Option<&mut Option<Readiness>>) -> Result<()> {
    match readiness.and_then(Option::take) {
        Some(waiting) => waiting.ready().map_err(|e| Failure::io("daemon", &e)),
        None => Ok(()),
    }
}

/// Goes to the background, unless the foreground was asked for, and has `serve` do the rest there. `serve` takes the
/// readiness once the mount is usable.
fn start(
    plan: Plan,
    global: &GlobalArgs,
    inherited: Inherited,
    serve: impl FnOnce(Plan, Option<&mut Option<Readiness>>) -> Result<()>,
) -> Result<()> {
    if plan.request.foreground {
        logging::of_foreground(global, plan.request.log_file.as_deref())?;
        return serve(plan, None);
    }
    match daemon::daemonize().map_err(|e| Failure::io("mount", &e))? {
        Side::Parent(word) => word.map_err(|f| {
            clear_dead(&plan.mountpoint, |_| true);
            Failure::new(Code::from_number(f.exit_code), f.message)
        }),
        Side::Child(readiness) => {
            // Not earlier: the password may have come from one of them.
            inherited.close();
            adit_vault::memory::lock_again();
            if let Some(Err(failure)) =
                plan.log().map(|path| logging::to_file(global, &path, plan.request.log_file.is_some()))
            {
                eprintln!("adit: no log: {}; name another file with --log-file FILE", failure.text());
            }
            let mut readiness = Some(readiness);
            let served = serve(plan, Some(&mut readiness));
            in_background(served, readiness)
        }
    }
}

/// Takes away what is mounted at the resolved `mountpoint` by a process that is gone, if it is one that `is_it` says. What keeps it from being taken away
/// is told by the next mount there.
fn clear_dead(mountpoint: &Path, is_it: impl Fn(&MountEntry) -> bool) {
    while mountpoint::find_dead(mountpoint).is_some_and(|dead| is_it(&dead)) {
        if let Err(e) = mountpoint::umount(mountpoint, true) {
            open::remark(&e.to_string());
            return;
        }
        open::remark(&format!("{}: taken away what a process that is gone had mounted there", mountpoint.display()));
    }
}

/// The end of the background process: to its parent if that still waits, else to the log.
fn in_background(served: Result<()>, readiness: Option<Readiness>) -> Result<()> {
    let Err(failure) = served else { return Ok(()) };
    let code = failure.code();
    match readiness {
        Some(waiting) => {
            let word = StartFailure { exit_code: code as u8, message: failure.text() };
            // If the parent is gone, nobody is left to tell.
            let _ = waiting.failed(word);
        }
        None => tracing::error!("{}", failure.text()),
    }
    Err(Failure::said(code))
}

/// The absolute mountpoint; refuses what cannot end well. What a process that was killed had mounted there of the same source is taken away, so that a
/// service starts again.
fn check_mountpoint(request: &MountRequest, source: &Source) -> Result<PathBuf> {
    let (path, nonempty) = (request.mountpoint.as_path(), request.nonempty);
    // What is mounted there itself, is said below.
    if let Some(above) = std::path::absolute(path).ok().as_deref().and_then(Path::parent) {
        live::expect_answers(above)?;
    }
    if !request.fake
        && let Ok(place) = mountpoint::resolve(path)
    {
        // The same words, or others that name the same.
        clear_dead(&place, |dead| {
            *dead.source == *request.options.source
                || Source::recognise(OsStr::new(&dead.source)).is_ok_and(|dead| dead == *source)
        });
    }
    if let Some(dead) = mountpoint::resolve(path).ok().and_then(|path| mountpoint::find_dead(&path)) {
        return Err(mount_failure(&MountError::Stale(dead.mountpoint)));
    }
    let absolute = mountpoint::resolve(path).map_err(|e| Failure::io(path.display(), &e).on("mountpoint"))?;
    // Before anything asks what is mounted there, for that may hang.
    if mountpoint::find(&absolute).is_some_and(|entry| entry.fs_type == mountpoint::FS_TYPE) {
        let what = format!("mountpoint {}: something is mounted there already", absolute.display());
        return Err(Failure::new(Code::Busy, what).hint("`adit mounts` lists what; `adit umount` ends it"));
    }
    let meta = std::fs::metadata(path).map_err(|e| Failure::io(path.display(), &e).on("mountpoint"))?;
    if !meta.is_dir() {
        return Err(Failure::new(Code::Failure, format!("mountpoint: {}: not a folder", path.display())));
    }
    let source = source.path();
    if absolute.starts_with(source) || source.starts_with(&absolute) {
        let what = format!("mountpoint {}: it overlaps {}", absolute.display(), source.display());
        return Err(Failure::usage(what).hint("mount it on a folder beside that"));
    }
    // A folder that may not be listed may hold anything; nobody who may not look there will miss it.
    let holds_something = std::fs::read_dir(&absolute).is_ok_and(|mut entries| entries.next().is_some());
    if holds_something && !nonempty {
        let what =
            format!("mountpoint {}: the folder is not empty, and a mount would hide what it holds", path.display());
        return Err(Failure::new(Code::Failure, what).hint("mount on an empty folder, or say -o nonempty"));
    }
    Ok(absolute)
}

/// What a failed mount or unmount is to the user.
pub fn mount_failure(error: &MountError) -> Failure {
    let code = match error {
        MountError::AnotherUsers { path, user } => {
            let what = format!("{}: mounted by another user ({})", path.display(), user_name(*user));
            return Failure::new(Code::of(error.kind()), what).hint("only that user and root can unmount it");
        }
        MountError::NotAMount(_) => Code::NotAMount,
        other => Code::of(other.kind()),
    };
    let failure = Failure::new(code, error);
    match error.advice() {
        Some(advice) => failure.hint(advice),
        None => failure,
    }
}

/// The name that the machine's own table of users has for a number; else the number.
fn user_name(uid: u32) -> String {
    let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| format!("uid {uid}"))
}

/// What to do about a mount whose process does not answer.
pub fn how_to_go_on(mountpoint: &Path, process: Option<ProcessNumber>) -> String {
    let at = mountpoint.display();
    let Some(process) = process else {
        return format!(
            "if it is only stopped, let it go on; else end it, then adit umount {at} (what was closed or synced is there after the next mount)"
        );
    };
    let (go_on, end) = (process.kill_line(Some("CONT")), process.kill_line(Some("KILL")));
    format!(
        "if it is only stopped, let it go on: {go_on}; else end it: {end}, then adit umount {at} (what was closed or synced is there after the next mount)"
    )
}

/// What a failed request to a mount's process is to the user.
pub fn answered(error: &ControlError) -> Failure {
    let code = match error {
        ControlError::NotAMount(path) => {
            match mountpoint::find(path).filter(|entry| entry.fs_type == mountpoint::FS_TYPE) {
                // Requests of another user, root included, are refused by the kernel unless the mount has `allow_other`.
                Some(MountEntry { user: Some(user), .. }) if user != rustix::process::getuid().as_raw() => {
                    let what = format!("{}: mounted by another user ({})", path.display(), user_name(user));
                    return Failure::new(Code::NotAMount, what)
                    .hint("only that user can ask for it, and root if it is mounted with -o allow_other; root can unmount it");
                }
                _ => Code::NotAMount,
            }
        }
        ControlError::Dead(dead) => return mount_failure(dead),
        ControlError::Silent { mountpoint, process } => {
            return Failure::new(Code::Failure, error).hint(how_to_go_on(mountpoint, *process));
        }
        ControlError::Part { mountpoint, .. } => {
            return Failure::usage(error.to_string()).hint(format!("name all of it: {mountpoint}"));
        }
        ControlError::Answered { kind, .. } => Code::of_word(kind),
        ControlError::UnsafeDirectory { .. } | ControlError::OutOfSight(_) => Code::Failure,
        ControlError::Io { source, .. } => Code::of(adit_core::error::kind_of_io(source)),
    };
    let failure = Failure::new(code, error);
    match error {
        ControlError::Answered { kind, .. } if kind == ENDING => failure.passing(),
        _ => failure,
    }
}
