//! System packages: installed with apt-get as root, otherwise the exact command is printed and the task stops.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{process, workplace};

/// How long apt-get may take, download included.
const APT_LIMIT: Duration = Duration::from_secs(600);

/// Something that a Debian or Ubuntu package brings.
pub struct Need {
    /// The package's name.
    pub package: &'static str,
    /// How to see that it is there.
    pub proof: Proof,
}

/// How to see that a package's content is there, whoever installed it.
pub enum Proof {
    /// A program on the PATH.
    Program(&'static str),
    /// A file or folder.
    File(&'static str),
    /// Something in a folder whose name begins so.
    Any(&'static str, &'static str),
}

/// What mounting needs: `fusermount3` serves users without root, and lazy unmounts.
pub const FUSE: Need = Need { package: "fuse3", proof: Proof::Program("fusermount3") };
/// What a worker's own code mounts with.
pub const SUDO: Need = Need { package: "sudo", proof: Proof::Program("sudo") };
/// The I/O tester of the fio stage.
pub const FIO: Need = Need { package: "fio", proof: Proof::Program("fio") };
/// A server on WebDAV, without a service that starts by itself.
pub const APACHE: Need = Need { package: "apache2-bin", proof: Proof::File("/usr/sbin/apache2") };
/// What pjdfstest links against and calls.
pub const ACL: &[Need] = &[
    Need { package: "libacl1-dev", proof: Proof::File("/usr/include/sys/acl.h") },
    Need { package: "acl", proof: Proof::Program("setfacl") },
];

/// A device that is a program, and what finds it.
pub const VULKAN: &[Need] = &[
    Need { package: "mesa-vulkan-drivers", proof: Proof::Any("/usr/share/vulkan/icd.d", "lvp_icd") },
    Need { package: "libvulkan1", proof: Proof::Any(LIBRARIES, "libvulkan.so.1") },
];
/// Where Debian has the libraries of this machine's own kind.
#[cfg(target_arch = "aarch64")]
const LIBRARIES: &str = "/usr/lib/aarch64-linux-gnu";
#[cfg(not(target_arch = "aarch64"))]
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// Sees to it that every need is met, installing what is missing.
pub fn ensure<'a>(needs: impl IntoIterator<Item = &'a Need>) -> Result<()> {
    let missing: Vec<&str> = needs.into_iter().filter(|need| !is_met(need)).map(|need| need.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !workplace::is_root() {
        bail!("a system package is missing; run: sudo apt-get install -y {packages}");
    }
    if !on_path("apt-get") {
        bail!("this system has no apt-get; install what Debian calls: {packages}");
    }
    static UPDATED: Once = Once::new();
    // Stale lists may still do, so a failed update is not the end.
    UPDATED.call_once(|| {
        let _ = process::run(Command::new("apt-get").args(["update", "-qq"]), APT_LIMIT);
    });
    process::run(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(&missing)
            .stdout(Stdio::null()),
        APT_LIMIT,
    )
    .with_context(|| format!("cannot install {packages}"))
}

fn is_met(need: &Need) -> bool {
    match need.proof {
        Proof::Program(name) => on_path(name),
        Proof::File(path) => Path::new(path).exists(),
        Proof::Any(dir, begin) => std::fs::read_dir(dir)
            .is_ok_and(|found| found.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(begin))),
    }
}

/// True if a program of that name lies on the PATH.
pub fn on_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(name).is_file())
}
