//! `mount`: from a request to a served mount, in the foreground or in a background process that reports how it went.
//!
//! Order in the background: the password is read, then the process forks (before any thread), and the child unlocks,
//! mounts and says that it is ready. Every failure up to there is the parent's message and exit code.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use adit_core::ErrorKind;
use adit_core::engine::{CacheStats, Engine, EngineOptions};
use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_mount::daemon::{self, Readiness, Side, StartFailure};
use adit_mount::{MountError, Session, SessionHandle, Signals, Until, mountpoint};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use crate::args::low::{GlobalArgs, MountArgs};
use crate::args::mount_options::MountRequest;
use crate::exit_code::{Code, NOT_A_MOUNT};
use crate::failure::{Failure, Result};
use crate::open::{self, Opened, Purpose};
use crate::process::Inherited;
use crate::secrets::{self, Origin, Password, Role};
use crate::source::{self, Source};
use crate::{live, logging, output, state_dir};

/// Memory of each serving thread that is not in the engine's budget: its receive buffer and stack, in bytes.
const THREAD_LEN_BYTES: u64 = 2 << 20;
/// Memory of the process besides budget and threads, in bytes.
const BASE_LEN_BYTES: u64 = 12 << 20;
/// How long names and attributes are believed when nobody else changes the vault.
const EXCLUSIVE_TTL: Duration = Duration::from_secs(3600);

/// How long an answer about the end of the mount is waited for; whoever asked then waits for the process's end.
const OUTCOME_PATIENCE: Duration = Duration::from_secs(90);

/// A mount that is fully described; only the password is apart.
struct Plan {
    request: MountRequest,
    source: Source,
    mountpoint: PathBuf,
    state: Option<PathBuf>,
}

impl Plan {
    /// The log of mounts in the background.
    fn log(&self) -> Option<PathBuf> {
        Some(self.state.as_ref()?.join("log"))
    }
}

/// `adit mount`. What the caller had open (`inherited`) is closed in the background; in the foreground it is the caller's
/// business.
pub fn mount(args: MountArgs, global: &GlobalArgs, inherited: Inherited) -> Result<()> {
    let mut request = MountRequest::new(args)?;
    let global = &request.global(global);
    let source = Source::recognise(&request.source)?;
    let Source::Vault(vault) = &source;
    request.options.kind = source.kind().to_owned();
    if source::without_prefix(&request.source) == OsStr::new(&request.options.source)
        && Path::new(&request.options.source).is_relative()
    {
        // What the kernel's table shows is read by others, and when this process's folder is long forgotten.
        request.options.source = source.path().display().to_string();
    }
    let mountpoint = check_mountpoint(&request.mountpoint, source.path(), request.nonempty)?;
    live::respect_mounts(vault, request.exclusive)?;
    let given = request.state_dir.as_deref().or(global.state_dir.as_deref());
    // Relative paths mean something only before the daemon leaves its folder.
    let state = state_dir::locate(given).ok();
    open::vault::check_openable(vault)?;
    if request.fake {
        return Ok(());
    }
    let password = match request.password {
        // Whoever sits at the terminal may try again; the keys are made anew in the process that needs them.
        Origin::Ask => open::vault::password(vault, &Origin::Ask)?.0,
        ref origin => secrets::read(origin, Role::Current, &vault.display().to_string())?,
    };
    let plan = Plan { request, source, mountpoint, state };
    if plan.request.foreground {
        logging::of_foreground(global)?;
        return serve(plan, password, None);
    }
    match daemon::daemonize().map_err(|e| Failure::io("mount", &e))? {
        Side::Parent(word) => word.map_err(|f| Failure::new(Code::from_number(f.exit_code), f.message)),
        Side::Child(readiness) => {
            // Not earlier: the password may have come from one of them.
            inherited.close();
            adit_vault::memory::lock_again();
            if let Some(Err(failure)) = plan.log().map(|path| logging::to_file(global, &path)) {
                eprintln!("adit: no log: {}", failure.text());
            }
            let mut readiness = Some(readiness);
            let served = serve(plan, password, Some(&mut readiness));
            in_background(served, readiness)
        }
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

/// The absolute mountpoint; refuses what cannot end well.
fn check_mountpoint(path: &Path, source: &Path, nonempty: bool) -> Result<PathBuf> {
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

/// Opens the vault, mounts it, and serves until it is unmounted. Takes the readiness once the mount is usable.
fn serve(plan: Plan, password: Password, readiness: Option<&mut Option<Readiness>>) -> Result<()> {
    let signals = Signals::install().map_err(|e| Failure::io("signals", &e))?;
    let mut options = plan.request.options.clone();
    let Source::Vault(vault) = &plan.source;
    let why = why_read_only(vault, plan.request.rw).filter(|_| !options.read_only);
    if let Some(why) = &why {
        options.read_only = true;
        open::remark(&format!("{}: mounted read-only: {why}", plan.source.path().display()));
    }
    let purpose = match options.read_only {
        true => Purpose::Read,
        // Whoever names the place wants it used.
        false if plan.request.state_dir.is_some() => Purpose::Write,
        false => Purpose::WriteIfPossible,
    };
    let state = plan.state.clone().ok_or_else(|| Failure::usage("no state directory is known"));
    // Checked at the beginning as well, when nobody had typed a password; but others may have come since.
    let opened: Opened = open::vault::open(vault, password, state, purpose, plan.request.exclusive)?.into();
    // What was refused may be gone by now: a password is read into more than it needs.
    adit_vault::memory::lock_again();
    if !adit_vault::memory::is_locked() {
        tracing::warn!(
            "keys could be swapped to disk: the limit of locked memory is too low; `adit doctor` tells more"
        );
    }
    options.read_only |= opened.read_only;
    let engine = Engine::new(opened.store.clone(), engine_options(&plan.request, options.read_only));
    let session = Session::mount(engine.clone(), &plan.mountpoint, &options).map_err(|e| mount_failure(&e))?;
    let info = MountInfo::new(
        &plan.source.path().display().to_string(),
        &options.kind,
        session.mountpoint(),
        options.read_only,
    );
    let verbs = Verbs {
        // Weak: the control thread lives as long as the process, and must not keep the vault open.
        engine: Arc::downgrade(&engine),
        session: session.handle(),
        info: info.clone(),
        exclusive: plan.request.exclusive,
        why_read_only: why,
        log: plan.log().filter(|_| !plan.request.foreground),
        began: Instant::now(),
    };
    let registered = Registry::of_this_user().register(&info, move |verb: &str, args: &Value| verbs.call(verb, args));
    if let Err(e) = &registered {
        // The mount works without; it can be ended with umount(8) or fusermount3.
        tracing::warn!("`adit mounts` will not show this mount: {e}");
    }
    tracing::info!("{} is mounted on {}", plan.source.path().display(), session.mountpoint().display());
    if let Some(waiting) = readiness.and_then(Option::take) {
        waiting.ready().map_err(|e| Failure::io("daemon", &e))?;
    }
    let ended = session.wait(Until { signals: Some(signals), idle: plan.request.idle });
    drop(engine);
    // Waits until those who asked for the end have their answer.
    drop(registered);
    let ended = ended.map_err(|e| Failure::fs(plan.mountpoint.display(), &e))?;
    tracing::info!("{} is unmounted ({ended:?})", plan.mountpoint.display());
    Ok(())
}

fn engine_options(request: &MountRequest, read_only: bool) -> EngineOptions {
    let defaults = EngineOptions::default();
    let ttl = |given: Option<Duration>, default| match given {
        Some(given) => given,
        None if request.exclusive => EXCLUSIVE_TTL,
        None => default,
    };
    let threads = request.options.threads.get() as u64;
    let others = BASE_LEN_BYTES + threads * THREAD_LEN_BYTES;
    EngineOptions {
        attr_ttl: ttl(request.timeouts.attr, defaults.attr_ttl),
        entry_ttl: ttl(request.timeouts.entry, defaults.entry_ttl),
        negative_ttl: ttl(request.timeouts.negative, defaults.negative_ttl),
        // The process as a whole is to stay within what was asked for; caches get at least half of it.
        memory_bytes: request.memory_bytes.saturating_sub(others).max(request.memory_bytes / 2),
        read_only,
        kernel_writeback: request.exclusive && !read_only,
    }
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

/// What a mount's process answers on its socket.
struct Verbs {
    engine: Weak<Engine>,
    session: SessionHandle,
    info: MountInfo,
    exclusive: bool,
    /// Why nothing can be changed, where nobody asked for that.
    why_read_only: Option<String>,
    /// Where warnings are; none in the foreground.
    log: Option<PathBuf>,
    began: Instant,
}

impl Verbs {
    fn call(&self, verb: &str, args: &Value) -> Option<Result<Value, ControlError>> {
        match verb {
            "stats" => Some(self.stats()),
            "status" => Some(self.status()),
            "umount" => Some(self.umount(args["lazy"].as_bool().unwrap_or(false))),
            _ => None,
        }
    }

    fn engine(&self) -> Result<Arc<Engine>, ControlError> {
        self.engine.upgrade().ok_or_else(|| ControlError::answer(ErrorKind::Stale, "the mount is ending"))
    }

    fn stats(&self) -> Result<Value, ControlError> {
        let stats = self.engine()?.stats();
        let cache =
            |c: CacheStats| json!({"hits": c.hits, "misses": c.misses, "size": c.entries, "size_bytes": c.bytes});
        let named = |pairs: &mut dyn Iterator<Item = (&'static str, u64)>| {
            Value::Object(pairs.map(|(name, value)| (name.to_owned(), json!(value))).collect::<Map<_, _>>())
        };
        Ok(json!({
            "inodes": stats.inodes,
            "inode_bytes": stats.inode_bytes,
            "rss_bytes": rss_bytes(),
            "budget_bytes": stats.budget_bytes,
            "used_bytes": stats.used_bytes,
            "dirty_bytes": stats.dirty_bytes,
            "open_files": stats.open_files,
            "open_dirs": stats.open_dirs,
            "caches": {
                "attributes": cache(stats.attrs),
                "dentries": cache(stats.dentries),
                "negative": cache(stats.negatives),
                "listings": cache(stats.listings),
                "content": cache(stats.units),
            },
            "operations": named(&mut stats.ops.iter()),
            "store": named(&mut stats.store.iter().copied()),
        }))
    }

    fn status(&self) -> Result<Value, ControlError> {
        let engine = self.engine()?;
        let (stats, options) = (engine.stats(), engine.options());
        Ok(json!({
            "source": self.info.source,
            "kind": self.info.kind,
            "mountpoint": self.info.mountpoint,
            "pid": self.info.pid,
            "state": if self.info.is_attached() { "mounted" } else { "detached" },
            "read_only": self.info.read_only,
            "read_only_because": self.why_read_only,
            "started": output::iso_text(self.info.started),
            "uptime_secs": self.began.elapsed().as_secs(),
            "exclusive": self.exclusive,
            "attr_timeout_secs": options.attr_ttl.as_secs_f64(),
            "entry_timeout_secs": options.entry_ttl.as_secs_f64(),
            "negative_timeout_secs": options.negative_ttl.as_secs_f64(),
            "open_files": stats.open_files,
            "dirty_bytes": stats.dirty_bytes,
            // Among them: entries that are left out of their folders, such as conflict copies of sync programs.
            "warnings": logging::warnings(),
            "log": self.log.as_ref().map(|log| log.to_string_lossy()),
        }))
    }

    /// Unmounts. Unless `lazy`, it answers when everything is written back, or why that failed.
    fn umount(&self, lazy: bool) -> Result<Value, ControlError> {
        let engine = self.engine()?;
        // What is detached is written back when it ends, and before that as always; nobody waits for it.
        let synced = if self.info.read_only || lazy { Ok(()) } else { engine.store().sync_all() };
        drop(engine);
        if let Err(e) = &synced
            && can_be_mended(e.kind())
        {
            return Err(ControlError::answer(e.kind(), format!("{e}; it stays mounted, so that you can make room")));
        }
        self.session.unmount(lazy).map_err(|e| match e {
            MountError::NotAMount(_) => ControlError::Answered { kind: NOT_A_MOUNT.to_owned(), message: e.to_string() },
            other => ControlError::answer(other.kind(), &other),
        })?;
        if let Some(Err(e)) = (!lazy).then(|| self.session.outcome(OUTCOME_PATIENCE)).flatten() {
            return Err(ControlError::answer(e.kind(), &e));
        }
        let what =
            "it is unmounted, but not all of it may be on the disk; the next mount recovers what is in the journal";
        synced.map(|()| json!({})).map_err(|e| ControlError::answer(e.kind(), format!("{e}; {what}")))
    }
}

/// Whether an unmount that meets this failure is better refused, because its user can do something while the mount lives.
/// After a failed sync nothing gets better by staying.
fn can_be_mended(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NoSpace | ErrorKind::QuotaExceeded)
}

/// Memory that is this process's own (RssAnon + RssShmem of proc(5)), in bytes; 0 if the system does not tell.
fn rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    1024 * (kib("RssAnon:").unwrap_or(0) + kib("RssShmem:").unwrap_or(0))
}

/// A mount whose process lives and says nothing, and how to go on.
fn silent(mountpoint: &Path, pid: u32) -> Failure {
    Failure::new(Code::Failure, format!("{}: process {pid} does not answer", mountpoint.display()))
        .hint(how_to_go_on(mountpoint, pid))
}

/// What to do about a mount whose process does not answer.
pub fn how_to_go_on(mountpoint: &Path, pid: u32) -> String {
    let at = mountpoint.display();
    format!(
        "if it is only stopped, let it go on: kill -CONT {pid}; else end it: kill -KILL {pid}, then adit umount {at} (what was closed or synced is there after the next mount)"
    )
}

/// What a failed request to a mount's process is to the user.
pub fn answered(error: &ControlError) -> Failure {
    let code = match error {
        ControlError::NotAMount(_) => Code::NotAMount,
        ControlError::Dead(dead) => return mount_failure(dead),
        ControlError::Silent { mountpoint, pid } => return silent(mountpoint, *pid),
        ControlError::Answered { kind, .. } => Code::of_word(kind),
        ControlError::UnsafeDirectory { .. } => Code::Failure,
        ControlError::Io { source, .. } => Code::of(adit_core::error::kind_of_io(source)),
    };
    Failure::new(code, error)
}
