//! `doctor`: looks for what could keep mounts from working here, and says what to do about it; and which devices could answer questions
//! to an index.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;

use adit_mount::MountError;
use adit_mount::control::Registry;
use serde::Serialize;

use super::mount::how_to_go_on;
use crate::args::low::{GlobalArgs, JsonArgs};
use crate::args::units::show_size;
use crate::devices;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::state_dir;

/// Locked memory that keys need at least, in bytes: a few pages for each open vault.
const MLOCK_MIN_BYTES: u64 = 64 * 1024;
/// The oldest kernel that has what mounts use (openat2, 5.6).
const KERNEL_MIN: (u32, u32) = (5, 6);

/// How a check came out.
#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warning,
    Failed,
}

/// One thing that was looked at.
#[derive(Serialize)]
struct Check {
    name: &'static str,
    state: State,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Check {
        Check { name, state: State::Ok, detail: detail.into(), hint: None }
    }

    fn warning(name: &'static str, detail: impl Into<String>, hint: &'static str) -> Check {
        Check { name, state: State::Warning, detail: detail.into(), hint: Some(hint) }
    }

    fn failed(name: &'static str, detail: impl Into<String>, hint: &'static str) -> Check {
        Check { name, state: State::Failed, detail: detail.into(), hint: Some(hint) }
    }
}

/// `adit doctor`
pub fn doctor(args: &JsonArgs, global: &GlobalArgs) -> Result<()> {
    let checks = [
        device(),
        helper(),
        kernel(),
        allow_other(),
        aes(),
        state(global),
        locked_memory(),
        dead_mounts(),
        silent_mounts(),
    ];
    let found = devices::Found::ask();
    let mut out = Output::new();
    if args.json {
        out.json(&serde_json::json!({ "checks": checks, "index_devices": found.json() }))?;
    } else {
        for check in &checks {
            let mark = match check.state {
                State::Ok => "ok      ",
                State::Warning => "warning ",
                State::Failed => "FAILED  ",
            };
            out.line(format_args!("{mark}{}: {}", check.name, check.detail))?;
            if let Some(hint) = check.hint {
                out.line(format_args!("          {hint}"))?;
            }
        }
        // None of them is needed.
        out.line(format_args!("ok      devices for an index: {}", found.summary()))?;
        found.lines().iter().try_for_each(|line| out.line(format_args!("          {line}")))?;
    }
    out.finish()?;
    match checks.iter().any(|check| check.state == State::Failed) {
        true => Err(Failure::said(Code::ProblemsFound)),
        false => Ok(()),
    }
}

fn device() -> Check {
    const NAME: &str = "fuse device";
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Check::ok(NAME, "/dev/fuse can be opened"),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Check::failed(
            NAME,
            "/dev/fuse is not there",
            "load the kernel module (modprobe fuse); in a container pass --device /dev/fuse",
        ),
        // fusermount3 opens it with the rights of the user, so it cannot help.
        Err(e) => Check::failed(NAME, Failure::io("/dev/fuse", &e).text(), "root can give access: chmod 666 /dev/fuse"),
    }
}

fn helper() -> Check {
    const NAME: &str = "fusermount3";
    let run = Command::new("fusermount3").arg("--version").output();
    match run {
        Ok(output) => Check::ok(NAME, String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        Err(_) if rustix::process::geteuid().is_root() => {
            Check::warning(NAME, "not installed", "only root can mount without it (apt install fuse3)")
        }
        Err(_) => Check::failed(NAME, "not installed", "install it (apt install fuse3)"),
    }
}

fn kernel() -> Check {
    const NAME: &str = "kernel";
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= KERNEL_MIN {
        return Check::ok(NAME, format!("Linux {release}"));
    }
    Check::warning(NAME, format!("Linux {release}"), "older than 5.6: not tested")
}

/// Whether users without privilege may use `allow_other`.
pub fn users_may_allow_others() -> bool {
    let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    conf.lines().any(|line| line.trim() == "user_allow_other")
}

fn allow_other() -> Check {
    const NAME: &str = "allow_other";
    if rustix::process::geteuid().is_root() {
        return Check::ok(NAME, "root may use it");
    }
    match users_may_allow_others() {
        true => Check::ok(NAME, "user_allow_other is in /etc/fuse.conf"),
        false => Check::warning(
            NAME,
            "user_allow_other is not in /etc/fuse.conf",
            "only matters for --allow-other: root can add the line user_allow_other",
        ),
    }
}

fn aes() -> Check {
    const NAME: &str = "AES in hardware";
    #[cfg(target_arch = "x86_64")]
    let present = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let present = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let present = false;
    match present {
        true => Check::ok(NAME, "present"),
        false => Check::warning(NAME, "not found", "encryption will be slow"),
    }
}

fn state(global: &GlobalArgs) -> Check {
    const NAME: &str = "state directory";
    const HINT: &str = "without it vaults open read-only; name another with --state-dir";
    let dir = match state_dir::locate(global.state_dir.as_deref()) {
        Ok(dir) => dir,
        Err(failure) => return Check::failed(NAME, failure.text(), HINT),
    };
    match writable(&dir) {
        Ok(()) => Check::ok(NAME, format!("{} is writable", dir.display())),
        Err(failure) => Check::failed(NAME, failure.text(), HINT),
    }
}

/// Creates the directory if need be, and a file in it.
fn writable(dir: &Path) -> Result<()> {
    state_dir::create(dir)?;
    let probe = dir.join(format!(".doctor-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&probe).map_err(|e| Failure::io(probe.display(), &e))?;
    std::fs::remove_file(&probe).map_err(|e| Failure::io(probe.display(), &e))
}

fn locked_memory() -> Check {
    const NAME: &str = "locked memory";
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match limit {
        None => Check::ok(NAME, "no limit"),
        Some(bytes) if bytes >= MLOCK_MIN_BYTES => Check::ok(NAME, show_size(bytes)),
        Some(bytes) => Check::warning(NAME, show_size(bytes), "keys could be swapped: raise `ulimit -l` to 64 or more"),
    }
}

fn dead_mounts() -> Check {
    const NAME: &str = "dead mounts";
    let dead: Vec<String> = super::mounts::dead_mounts(&Registry::of_this_user().list_all())
        .into_iter()
        .map(|entry| MountError::Stale(entry.mountpoint).to_string())
        .collect();
    match dead.is_empty() {
        true => Check::ok(NAME, "none"),
        false => Check::warning(NAME, dead.join("; "), "what was closed or synced is there after the next mount"),
    }
}

fn silent_mounts() -> Check {
    const NAME: &str = "mounts that hang";
    let silent: Vec<String> = super::mounts::silent_mounts(&Registry::of_this_user().list())
        .into_iter()
        .map(|mount| {
            let at = Path::new(&mount.mountpoint);
            format!("{}: {}", mount.silent(), how_to_go_on(at, Some(mount.process())))
        })
        .collect();
    match silent.is_empty() {
        true => Check::ok(NAME, "none"),
        false => Check::warning(NAME, silent.join("; "), "such a process is stopped, or waits for a disk or a server"),
    }
}
