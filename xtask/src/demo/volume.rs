//! The tour's second part: a volume, with a snapshot that is compared, mounted beside the live tree, and gone back to; and an
//! overlay.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::tree::{self, Modes};
use super::{Adit, Tour};
use crate::mounted::Workbench;

/// Makes a volume, fills it with `plain`, and proves that a snapshot holds what was there.
pub fn tour(tour: &mut Tour, adit: &Adit, plain: &Path) -> Result<()> {
    let bench = Workbench::new("demo-volume")?;
    let (file, mountpoint) = (bench.volume(), bench.mountpoint());
    let snapshot_at = bench.dir.join("snapshot");
    fs::create_dir(&snapshot_at)?;
    let verb = |words: &[&str]| {
        let mut command = Command::new(&adit.program);
        command.args(words);
        command
    };

    tour.step("Create a volume, a filesystem in one file, and mount it");
    adit.run(verb(&["volume", "init"]).arg(&file))?;
    adit.run(verb(&["mount"]).arg(&file).arg(&mountpoint))?;
    tour.done("mounted");

    tour.step("Copy the same tree in, and keep it as it is");
    let inside = mountpoint.join("tree");
    let copied = tree::copy(plain, &inside)?;
    adit.run(verb(&["snapshot", "create"]).arg(&mountpoint).arg("before"))?;
    tour.done(&format!("{} files, {:.1} MiB, and a snapshot of them", copied.files, copied.mebibytes()));

    tour.step("Ruin it: remove a folder, overwrite a file, add another");
    fs::remove_dir_all(inside.join("adit/crates"))?;
    fs::write(inside.join("adit/README.md"), "all gone\n")?;
    fs::write(inside.join("new"), "new\n")?;
    adit.run(
        verb(&["snapshot", "diff"]).arg(&mountpoint).args(["before", "--json"]).stdout(std::process::Stdio::null()),
    )?;
    tour.done("`snapshot diff` tells each path");

    tour.step("Mount the snapshot beside it, read-only, and compare that with the copy in the clear");
    adit.run(verb(&["mount", "--snapshot", "before"]).arg(&file).arg(&snapshot_at))?;
    let expected = tree::list(plain)?;
    let held = snapshot_at.join("tree");
    let compared = tree::compare(plain, &expected, &held, &tree::list(&held)?, Modes::All)?;
    adit.run(verb(&["umount"]).arg(&snapshot_at))?;
    tour.done(&format!("{} files and {} folders are the same", compared.files, compared.dirs));

    tour.step("Set everything back in one step, and compare the live tree");
    adit.run(verb(&["snapshot", "restore", "--yes"]).arg(&mountpoint).arg("before"))?;
    tree::compare(plain, &expected, &inside, &tree::list(&inside)?, Modes::All)?;
    tour.done("it is what it was");

    tour.step("Unmount, and check the volume");
    adit.run(verb(&["umount"]).arg(&mountpoint))?;
    ensure!(!bench.is_mounted(), "adit umount returned, but {} is still mounted", mountpoint.display());
    adit.run(verb(&["volume", "check"]).arg(&file))?;
    tour.done("no problems");

    tour.step("Mount the tree itself with a volume on top, and ruin that");
    let upper = bench.dir.join("upper");
    adit.run(verb(&["mount", "--quiet", "--upper"]).arg(&upper).arg(plain).arg(&mountpoint))?;
    fs::remove_dir_all(mountpoint.join("adit/crates"))?;
    fs::write(mountpoint.join("adit/README.md"), "all gone\n")?;
    adit.run(verb(&["diff", "--json"]).arg(&mountpoint).stdout(std::process::Stdio::null()))?;
    adit.run(verb(&["umount"]).arg(&mountpoint))?;
    tree::compare(plain, &expected, plain, &tree::list(plain)?, Modes::All)?;
    tour.done("the tree is what it was: the volume holds the changes");
    Ok(())
}
