//! `cargo xtask demo`: a tour on the real thing, for someone who has just cloned the repository.
//!
//! Every step runs the release build of `adit` as a user would, and checks what it shows: the tour fails if a byte
//! comes back different or if a plaintext name or content is found in the vault's folder. Then the same with a volume, and with a manifest; and indexes of them are asked.

mod index;
mod manifest;
mod proof;
mod tree;
mod volume;

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::mounted::Workbench;
use crate::{apt, process, workplace};

/// The limit of one call of adit.
const STEP_LIMIT: Duration = Duration::from_secs(120);
/// A name that only the demo uses, with characters beyond ASCII.
const SECRET_DIR: &str = "my-secret-plans-ümlaut";

/// Runs the tour; the vault, the mount and the copies are removed at its end, also after a failure or an interrupt.
pub fn run() -> Result<()> {
    println!(
        "adit: an encrypted vault, from nothing to proof; a volume, there and back; a manifest, from a tree to its store; and indexes of them\n"
    );
    let mut tour = Tour::new();

    tour.step("Look for what the demo needs");
    if !Path::new("/dev/fuse").exists() {
        bail!("there is no /dev/fuse; run: modprobe fuse (in a container: --device /dev/fuse --cap-add SYS_ADMIN)");
    }
    apt::ensure([&apt::FUSE])?;
    tour.done("FUSE is there");

    tour.step("Build adit in release mode (minutes the first time)");
    let adit = Adit { program: build_release()? };
    tour.done("built");

    let bench = Workbench::new("demo")?;
    let vault = bench.vault();
    tour.step("Create a vault; its password lies in a file that only you can read");
    adit.with_password(&bench, &["vault".as_ref(), "init".as_ref(), vault.as_os_str()])?;
    tour.done("an empty vault of format 8");

    tour.step("Mount it");
    adit.mount(&bench)?;
    tour.done("the mount serves from the background");

    let plain = bench.dir.join("plain");
    copy_in(&mut tour, &bench, &plain)?;
    edit_both(&mut tour, &bench, &plain)?;

    tour.step("Unmount and mount again, so that every byte now comes out of the vault");
    adit.umount(&bench)?;
    adit.mount(&bench)?;
    tour.done("mounted again");

    list_and_compare(&mut tour, &bench, &plain)?;

    tour.step("Ask the mount for its statistics");
    adit.run(Command::new(&adit.program).arg("stats").arg(bench.mountpoint()))?;
    tour.done("answered by the running mount");

    tour.step("Unmount");
    adit.umount(&bench)?;
    tour.done("unmounted");

    tour.step("Read one file without a mount");
    let note = format!("/tree/{SECRET_DIR}/note.txt");
    adit.with_password(&bench, &["cat".as_ref(), vault.as_os_str(), note.as_ref()])?;
    tour.done("read");

    search_for_plaintext(&mut tour, &bench, &plain)?;
    volume::tour(&mut tour, &adit, &plain)?;
    manifest::tour(&mut tour, &adit, &plain)?;
    index::tour(&mut tour, &adit, &plain)?;
    println!(
        "The tour took {:.1} s. For a store of your own, see the quick start in README.md.",
        tour.began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Numbers and times the steps.
struct Tour {
    step: u32,
    began: Instant,
    step_began: Instant,
}

impl Tour {
    fn new() -> Self {
        let now = Instant::now();
        Self { step: 0, began: now, step_began: now }
    }

    fn step(&mut self, what: &str) {
        self.step += 1;
        self.step_began = Instant::now();
        println!("{:>2}. {what}", self.step);
    }

    fn done(&self, what: &str) {
        println!("    {what} ({:.2} s)\n", self.step_began.elapsed().as_secs_f64());
    }
}

/// The built program; each call is printed as one would type it.
struct Adit {
    program: PathBuf,
}

impl Adit {
    /// Runs a verb that opens the vault.
    fn with_password(&self, bench: &Workbench, arguments: &[&OsStr]) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--password-file").arg(bench.password_file());
        self.run(&mut command)
    }

    fn mount(&self, bench: &Workbench) -> Result<()> {
        let (vault, mountpoint) = (bench.vault(), bench.mountpoint());
        self.with_password(bench, &["mount".as_ref(), vault.as_os_str(), mountpoint.as_os_str()])?;
        ensure!(bench.is_mounted(), "adit mount returned, but nothing is mounted on {}", mountpoint.display());
        Ok(())
    }

    fn umount(&self, bench: &Workbench) -> Result<()> {
        self.run(Command::new(&self.program).arg("umount").arg(bench.mountpoint()))?;
        ensure!(!bench.is_mounted(), "adit umount returned, but {} is still mounted", bench.mountpoint().display());
        Ok(())
    }

    fn run(&self, command: &mut Command) -> Result<()> {
        println!("    $ {}", process::shown(command));
        let status = process::status(command, STEP_LIMIT)?;
        ensure!(status.success(), "`{}` failed: {status}", process::shown(command));
        Ok(())
    }
}

fn build_release() -> Result<PathBuf> {
    let mut build = workplace::cargo();
    build.args(["build", "--release", "--locked", "--package", "adit"]);
    process::run(&mut build, Duration::from_secs(3600))?;
    Ok(workplace::target_dir()?.join("release/adit"))
}

fn copy_in(tour: &mut Tour, bench: &Workbench, plain: &Path) -> Result<()> {
    tour.step("Copy a real source tree in: this repository, and crates from cargo's registry");
    let sources = tree::sources()?;
    // The same tree beside the vault, in the clear, is what everything is compared with.
    tree::copy_all(&sources, plain)?;
    let started = Instant::now();
    let copied = tree::copy(plain, &bench.mountpoint().join("tree"))?;
    let seconds = started.elapsed().as_secs_f64();
    tour.done(&format!(
        "{} files, {} folders, {:.1} MiB into the vault: {:.0} files/s, {:.1} MiB/s",
        copied.files,
        copied.dirs,
        copied.mebibytes(),
        copied.files as f64 / seconds,
        copied.mebibytes() / seconds,
    ));
    Ok(())
}

/// Makes the same edits in the vault and in the copy beside it.
fn edit_both(tour: &mut Tour, bench: &Workbench, plain: &Path) -> Result<()> {
    tour.step(
        "Edit: append, overwrite in the middle, truncate, rename a folder, link, delete, long and non-ASCII names",
    );
    for root in [bench.mountpoint().join("tree"), plain.to_path_buf()] {
        edit(&root).with_context(|| format!("cannot edit under {}", root.display()))?;
    }
    tour.done("the same edits were made in the copy beside the vault");
    Ok(())
}

fn edit(root: &Path) -> Result<()> {
    let own = root.join("adit");
    let mut readme = OpenOptions::new().append(true).open(own.join("README.md"))?;
    writeln!(readme, "\nA line that the demo appended.")?;
    drop(readme);

    let secret = root.join(SECRET_DIR);
    fs::create_dir(&secret)?;
    fs::write(secret.join("note.txt"), "Attack at dawn, and bring sandwiches.\n")?;
    fs::write(secret.join("empty file"), "")?;
    // 245 bytes: longer than the vault's shortening threshold once encrypted.
    fs::write(secret.join(format!("{}.txt", "long-name-".repeat(24))), "the vault shortens this name\n")?;
    symlink("note.txt", secret.join("link-to-note"))?;

    // Three mebibytes, then a piece in the middle that crosses the border of two 32 KiB chunks.
    let large = secret.join("large-file.bin");
    fs::write(&large, "sixteen bytes...".repeat(3 << 16))?;
    let mut file = OpenOptions::new().read(true).write(true).open(&large)?;
    file.seek(SeekFrom::Start(32 * 1024 * 7 - 11))?;
    file.write_all(b"overwritten across a border of chunks")?;
    file.set_len((2 << 20) + 5)?;
    file.sync_all()?;

    fs::rename(own.join("docs"), own.join("documents-renamed"))?;
    fs::remove_file(own.join("CHANGELOG.md"))?;
    fs::rename(secret.join("empty file"), own.join("empty file moved"))?;
    Ok(())
}

fn list_and_compare(tour: &mut Tour, bench: &Workbench, plain: &Path) -> Result<()> {
    let inside = bench.mountpoint().join("tree");
    tour.step("List everything with its attributes (what `ls -lR` does)");
    let listed = tree::list(&inside)?;
    tour.done(&format!("{} entries", listed.len()));

    tour.step("Read everything back and compare it with the copy beside the vault");
    let expected = tree::list(plain)?;
    let compared = tree::compare(plain, &expected, &inside, &listed, tree::Modes::All)?;
    tour.done(&format!(
        "{} files and {} folders are the same: names, modes, links and all {:.1} MiB",
        compared.files,
        compared.dirs,
        compared.mebibytes()
    ));
    Ok(())
}

fn search_for_plaintext(tour: &mut Tour, bench: &Workbench, plain: &Path) -> Result<()> {
    tour.step("Search the vault's folder for every name and for a sample of every file");
    let wanted = proof::Wanted::from_tree(plain)?;
    let control = wanted.search(plain)?;
    println!(
        "    control: in the copy in the clear, the same search finds {} of {} names and {} of {} samples",
        control.names,
        wanted.names(),
        control.samples,
        wanted.samples()
    );
    ensure!(
        control.names == wanted.names() && control.samples == wanted.samples(),
        "the search itself is broken: it misses what lies in the clear"
    );
    let found = wanted.search(&bench.vault())?;
    if let Some(first) = found.first {
        bail!("plaintext in the vault's folder: {first}");
    }
    tour.done(&format!("none of them is in the {} files of the vault", found.files));
    Ok(())
}
