//! The tour's third part: a manifest whose content lies in a store. It is mounted, changed, committed, and downloaded by somebody else.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::tree::{self, Modes};
use super::{Adit, Tour};
use crate::mounted::Workbench;

/// Brings `plain` to a store, works on a mount of it, and proves that what was committed is what others get.
pub fn tour(tour: &mut Tour, adit: &Adit, plain: &Path) -> Result<()> {
    let bench = Workbench::new("demo-manifest")?;
    let mountpoint = bench.mountpoint();
    let [store, cache, job] = ["store", "cache", "job.manifest"].map(|name| bench.dir.join(name));
    let [changes, result, downloaded] =
        ["changes.manifest", "result.manifest", "downloaded"].map(|n| bench.dir.join(n));
    let verb = |words: &[&str]| {
        let mut command = Command::new(&adit.program);
        command.args(words);
        command
    };
    let place = |command: &mut Command| {
        command.arg("--cas").arg(&store).arg("--cache-dir").arg(&cache);
    };
    let with_store = |mut command: Command| {
        place(&mut command);
        adit.run(&mut command)
    };
    let same = |expected: &Path, found: &Path| -> Result<String> {
        let (wanted, listed) = (tree::list(expected)?, tree::list(found)?);
        let sum = tree::compare(expected, &wanted, found, &listed, Modes::Runnable)?;
        Ok(format!("{} files and {} folders are the same", sum.files, sum.dirs))
    };

    tour.step(
        "Describe the tree by a manifest, and bring its content to a store: here a folder, elsewhere a bucket of S3",
    );
    fs::create_dir(&store)?;
    let mut snapshot = verb(&["manifest", "snapshot", "--format", "v2025", "-o"]);
    snapshot.arg(&job).arg(plain);
    with_store(snapshot)?;
    tour.done("one object for each content, under its hash");

    tour.step("Mount the manifest; content comes when it is read, and is compared with its hash");
    let mount = |manifest: &Path, words: &[&str]| {
        let mut mount = verb(&["mount"]);
        mount.args(words).arg(manifest).arg(&mountpoint);
        with_store(mount)
    };
    mount(&job, &["--strict"])?;
    let compared = same(plain, &mountpoint)?;
    adit.run(verb(&["umount"]).arg(&mountpoint))?;
    tour.done(&compared);

    tour.step("Mount it writable, and work there as in any folder");
    let expected = bench.dir.join("expected");
    tree::copy(plain, &expected)?;
    mount(&job, &["--quiet", "--writable"])?;
    for root in [&expected, &mountpoint] {
        edit(root)?;
    }
    adit.run(verb(&["diff", "--json"]).arg(&mountpoint).stdout(std::process::Stdio::null()))?;
    tour.done("the same edits were made in a copy beside it");

    tour.step("Commit: what changed goes to the store, and then a manifest of it is written");
    adit.run(verb(&["manifest", "commit"]).arg(&mountpoint).arg("-o").arg(&changes))?;
    adit.run(verb(&["umount"]).arg(&mountpoint))?;
    tour.done("a diff of the manifest that was mounted");

    tour.step("Somebody else puts both together, and downloads it");
    adit.run(verb(&["manifest", "merge"]).arg(&job).arg(&changes).arg("-o").arg(&result))?;
    let mut download = verb(&["manifest", "download"]);
    download.arg(&result).arg(&downloaded);
    with_store(download)?;
    tour.done(&same(&expected, &downloaded)?);
    Ok(())
}

/// Saves by rename, writes in the middle, makes runnable, moves, removes.
fn edit(root: &Path) -> Result<()> {
    let own = root.join("adit");
    fs::write(own.join("README.new"), "saved as editors do\n")?;
    fs::rename(own.join("README.new"), own.join("README.md"))?;
    let mut lock = File::options().write(true).open(own.join("Cargo.lock"))?;
    lock.seek(SeekFrom::Start(100))?;
    lock.write_all(b"a few bytes")?;
    fs::rename(own.join("xtask"), own.join("tasks"))?;
    fs::remove_dir_all(own.join("bench"))?;
    fs::create_dir(own.join("results"))?;
    fs::write(own.join("results/frame-0001"), [1; 100_000])?;
    Ok(())
}
