//! A real source tree: unpacked, looked at by git, and cloned.
//!
//! The tree is cargo's registry, the sources of the crates that this workspace depends on: whole crates in the order of their
//! names until the size is reached. The archives and the repository to clone are made once a run, on the plain disk.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Change, Group, Turn, change};
use crate::RunArgs;
use crate::report::{Aim, Row, Unit};

const TREE_MIB: u64 = 160;
const TREE_TAR: &str = "tree.tar";
const GIT_TAR: &str = "git.tar";
const BARE: &str = "tree.git";
/// A folder of its own: the root of a mount of JuiceFS holds files that git would see.
const WORK_TREE: &str = "tree";

static UNTAR: Change = change(
    ["untar, the calls alone", "untar + syncfs of the mount", "untar + clean unmount + syncfs of the disk"],
    Aim::Gocryptfs(1.0),
);
static CLONE_ROWS: Change = change(
    [
        "git clone, the command alone",
        "git clone + syncfs of the mount",
        "git clone + clean unmount + syncfs of the disk",
    ],
    Aim::Host(0.5),
);
static STATUS_COLD: Row = Row { name: "git status, cold", unit: Unit::Seconds, aim: Aim::Gocryptfs(1.0) };
static STATUS_WARM: Row = Row { name: "git status, warm", unit: Unit::Seconds, aim: Aim::Gocryptfs(1.0) };

/// A source tree of many crates. Owners are not restored: the official stack cannot.
pub const TREE: Group = Group {
    name: "tree",
    about: |args| {
        format!(
            "`tar -xf` of {} MiB of crate sources (cargo's registry, in the order of names), then `git status` in a repository \
             of it; the first status, which fills the index, is not timed.",
            args.scaled(TREE_MIB)
        )
    },
    takes: |side| side.keeps(),
    once: false,
    on_request: false,
    prepare,
    script,
};

/// A clone of that tree over git's own transport, as from a server: packs, not links.
pub const CLONE: Group = Group {
    name: "git-clone",
    about: |args| {
        format!(
            "`git clone --no-local` of a repository with {} MiB of crate sources in one commit.",
            args.scaled(TREE_MIB)
        )
    },
    takes: |side| side.keeps(),
    once: false,
    on_request: false,
    prepare: prepare_clone,
    script: clone,
};

fn clone(turn: &mut Turn<'_>) -> Result<()> {
    let bare = turn.dir.join(BARE);
    let mounted = turn.mount_cold()?;
    turn.change(&CLONE_ROWS, mounted, |root| {
        run(git(root).args(["clone", "--quiet", "--no-local"]).arg(&bare).arg(WORK_TREE))
    })?;
    let mounted = turn.mount_cold()?;
    status(&mounted.root().join(WORK_TREE))?;
    turn.unmount(mounted)
}

fn script(turn: &mut Turn<'_>) -> Result<()> {
    let (tree, git) = (turn.dir.join(TREE_TAR), turn.dir.join(GIT_TAR));
    let mounted = turn.mount_cold()?;
    let root = mounted.root().join(WORK_TREE);
    fs::create_dir(&root)?;
    turn.change(&UNTAR, mounted, |_| untar(&tree, &root))?;

    let mounted = turn.mount_cold()?;
    untar(&git, &root)?;
    // The index names the inodes of another file system, so the first status reads everything.
    status(&root)?;
    turn.unmount(mounted)?;

    let mounted = turn.mount_cold()?;
    turn.seconds(&STATUS_COLD, || status(&root))?;
    turn.seconds(&STATUS_WARM, || status(&root))?;
    turn.unmount(mounted)
}

pub(super) fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().next().unwrap_or_default();
    ensure!(output.status.success(), "{command:?} failed ({}): {first}", output.status);
    Ok(())
}

pub(super) fn untar(archive: &Path, root: &Path) -> Result<()> {
    run(Command::new("tar").args(["--no-same-owner", "-xf"]).arg(archive).arg("-C").arg(root))
}

fn git(root: &Path) -> Command {
    let mut git = Command::new("git");
    // Nobody's settings.
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    git.args(["-c", "safe.directory=*", "-c", "core.autocrlf=false", "-C"]).arg(root);
    git
}

fn status(root: &Path) -> Result<()> {
    let output = git(root).args(["status", "--porcelain"]).output()?;
    ensure!(output.status.success(), "git status failed: {}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.stdout.is_empty(), "git sees changes: {}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

fn prepare(args: &RunArgs, dir: &Path) -> Result<()> {
    let source = make_repository(args, dir)?;
    let tar = || {
        let mut tar = Command::new("tar");
        tar.arg("--sort=name").arg("-cf");
        tar
    };
    run(tar().arg(dir.join(GIT_TAR)).arg("-C").arg(&source).arg(".git"))?;
    run(tar().arg(dir.join(TREE_TAR)).arg("-C").arg(&source).arg("--exclude=./.git").arg("."))?;
    fs::remove_dir_all(&source).context("cannot remove the source tree")
}

fn prepare_clone(args: &RunArgs, dir: &Path) -> Result<()> {
    let source = make_repository(args, dir)?;
    fs::rename(source.join(".git"), dir.join(BARE))?;
    run(git(&dir.join(BARE)).args(["config", "core.bare", "true"]))?;
    fs::remove_dir_all(&source).context("cannot remove the source tree")
}

/// A folder with crates' sources in a repository, committed and packed.
fn make_repository(args: &RunArgs, dir: &Path) -> Result<PathBuf> {
    let source = dir.join("source");
    fs::create_dir_all(&source)?;
    let mut left = args.scaled(TREE_MIB) << 20;
    for crate_dir in crates()? {
        if left == 0 {
            break;
        }
        let size = size_of(&crate_dir)?;
        run(Command::new("cp").arg("-r").arg("--").arg(&crate_dir).arg(&source))?;
        left = left.saturating_sub(size);
    }
    run(git(&source).args(["init", "-q"]))?;
    run(git(&source).args(["add", "--force", "--all"]))?;
    run(git(&source)
        .args(["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"])
        .args(["commit", "-q", "-m", "tree"]))?;
    run(git(&source).args(["repack", "-q", "-a", "-d", "--depth=1", "--window=1"]))?;
    Ok(source)
}

/// The folders of all crates in cargo's registry, in the order of their names.
fn crates() -> Result<Vec<PathBuf>> {
    let home = match env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => Path::new(&env::var_os("HOME").context("HOME is not set")?).join(".cargo"),
    };
    let mut crates = Vec::new();
    for registry in fs::read_dir(home.join("registry/src")).context("cargo has no registry sources")? {
        for entry in fs::read_dir(registry?.path())? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                crates.push(entry.path());
            }
        }
    }
    crates.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    Ok(crates)
}

fn size_of(dir: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let found = entry.metadata()?;
        size += if found.is_dir() { size_of(&entry.path())? } else { found.len() };
    }
    Ok(size)
}
