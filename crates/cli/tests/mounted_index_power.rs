//! An index and power cuts: what is on the disk of a filesystem of the host at some moment, mounted again.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use adit_index::Segment;
use adit_testkit::{Rng, scaled, seeds};

use common::{Bench, Start, is_root};

const DISK_LEN_BYTES: u64 = 32 << 20;

/// An ext4 in the file `disk` of a bench, mounted at `mnt`. It writes by itself only every few minutes, and a rename is no reason for it to
/// write a file's content: whatever is on the disk was synced.
struct Disk<'b> {
    bench: &'b Bench,
    file: PathBuf,
    mountpoint: PathBuf,
}

impl<'b> Disk<'b> {
    fn new(bench: &'b Bench) -> Disk<'b> {
        let file = bench.path("disk");
        fs::File::create(&file).unwrap().set_len(DISK_LEN_BYTES).unwrap();
        // All of it now, and nothing by a thread of the kernel later.
        let at_once = "lazy_itable_init=0,lazy_journal_init=0";
        run(Command::new("mkfs.ext4").args(["-q", "-E", at_once]).arg(&file));
        Disk::mounted(bench, file, bench.path("mnt"), "loop,noauto_da_alloc,commit=300")
    }

    fn mounted(bench: &'b Bench, file: PathBuf, mountpoint: PathBuf, options: &str) -> Disk<'b> {
        fs::create_dir_all(&mountpoint).unwrap();
        run(Command::new("mount").args(["-t", "ext4", "-o", options]).args([&file, &mountpoint]));
        Disk { bench, file, mountpoint }
    }

    /// What a power cut leaves now, if nobody is in the middle of a sync.
    fn cut(&self) -> Disk<'b> {
        let copy = self.bench.path("copy");
        fs::copy(&self.file, &copy).unwrap();
        Disk::mounted(self.bench, copy, self.bench.path("survivor"), "loop")
    }

    /// How many there are in the index, all of which is compared with its checksums.
    fn entries(&self) -> u32 {
        let index = self.mountpoint.join("i");
        self.bench.run(["index".as_ref(), "check".as_ref(), index.as_os_str()]).expect(0);
        Segment::open(&index).unwrap().len()
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg(&self.mountpoint).start_and_wait();
        if !std::thread::panicking() {
            assert!(ended.unwrap().success(), "{}", self.mountpoint.display());
        }
    }
}

fn run(command: &mut Command) {
    let ended = command.start_and_read().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

fn make_work(bench: &Bench) {
    for n in 0..2000 {
        let dir = bench.path(&format!("work/{}", n % 20));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("{n}")), "").unwrap();
    }
}

/// Stops a process, and waits until it is in no call, or has ended.
fn stop(child: &std::process::Child) {
    let id = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: a signal to our child, whose end nobody has waited for yet.
    assert_eq!(unsafe { libc::kill(id, libc::SIGSTOP) }, 0);
    common::eventually("it stands still", || {
        let stats = fs::read_dir(format!("/proc/{id}/task")).unwrap().flatten();
        let mut states = stats.filter_map(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).ok()?;
            stat.rsplit_once(") ")?.1.chars().next()
        });
        states.all(|state| matches!(state, 'T' | 'Z' | 'X'))
    });
}

/// When `build` or `update` has said that it is done, a power cut loses nothing.
#[test]
fn an_index_that_is_done_outlives_a_power_cut() {
    if !is_root("a filesystem of its own") {
        return;
    }
    let bench = Bench::bare();
    make_work(&bench);
    let disk = Disk::new(&bench);
    for line in [&["index", "build", "work", "-o", "mnt/i"][..], &["index", "update", "mnt/i"]] {
        bench.run(line).expect(0);
        let written = fs::read(disk.mountpoint.join("i")).unwrap();
        let survivor = disk.cut();
        assert!(fs::read(survivor.mountpoint.join("i")).unwrap() == written, "{line:?}");
        survivor.entries();
        drop(survivor);
        fs::write(bench.path("work/new"), "").unwrap();
    }
}

/// At any moment of an update it leaves the old index or the new one, whole, and nothing that stays.
#[test]
fn a_power_cut_while_it_is_updated_leaves_the_old_one_or_the_new_one() {
    if !is_root("a filesystem of its own") {
        return;
    }
    let bench = Bench::bare();
    make_work(&bench);
    let disk = Disk::new(&bench);
    bench.run(["index", "build", "work", "-o", "mnt/i"]).expect(0);
    let old = disk.entries();
    let seed = seeds(1).next().expect("one");
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let (mut olds, mut news) = (0, 0);
    for _ in 0..scaled(12) {
        fs::write(bench.path("work/new"), "").unwrap();
        let mut command = bench.command();
        command.args(["index", "update", "mnt/i", "--memory", "2M", "--quiet"]);
        let mut child = command.start().unwrap();
        std::thread::sleep(Duration::from_micros(rng.below(80_000)));
        stop(&child);
        let survivor = disk.cut();
        let _ = child.kill();
        child.wait().unwrap();
        match survivor.entries() {
            found if found == old => olds += 1,
            found => {
                assert_eq!(found, old + 1);
                news += 1;
            }
        }
        bench.run(["index", "update", "survivor/i"]).expect(0);
        let mut names: Vec<_> = fs::read_dir(&survivor.mountpoint).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["i", "lost+found"]);
        drop(survivor);
        // Once more from the beginning.
        fs::remove_file(bench.path("work/new")).unwrap();
        bench.run(["index", "update", "mnt/i"]).expect(0);
        assert_eq!(disk.entries(), old);
    }
    println!("{olds} old, {news} new");
}
