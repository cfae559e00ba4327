//! A writer and the process of its mount in one control group with little memory, as in a container or a unit with `MemoryMax`.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Ran, left_out, run};
use mounts::{Points, is_root};

/// A control group with a limit of memory, and without swap. Dropping it ends what is left in it.
struct Group {
    folder: PathBuf,
    events: &'static str,
}

impl Group {
    /// `None` where there can be none.
    fn new(limit_mib: u64) -> Option<Group> {
        if !is_root("a control group") {
            return None;
        }
        let root = Path::new("/sys/fs/cgroup");
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("adit-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let limit = (limit_mib << 20).to_string();
        let kinds = [
            (
                root.join("memory"),
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                limit.as_str(),
                "memory.oom_control",
            ),
            (root.to_owned(), "memory.max", "memory.swap.max", "0", "memory.events"),
        ];
        for (tree, file, swap, swap_limit, events) in kinds {
            // A folder that is none of control groups has no such file by itself.
            let folder = tree.join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            if !folder.join(file).exists() {
                fs::remove_dir(&folder).unwrap();
                continue;
            }
            let group = Group { folder, events };
            fs::write(group.folder.join(file), &limit).unwrap();
            if group.folder.join(swap).exists() {
                fs::write(group.folder.join(swap), swap_limit).unwrap();
            }
            return Some(group);
        }
        left_out("a control group with a limit of memory");
        None
    }

    /// Runs a script in it.
    fn run(&self, points: &Points, script: &str) -> Ran {
        let mut command = points.bench.command_of("sh");
        let procs = self.folder.join("cgroup.procs");
        command.args(["-euc", &format!("echo $$ > {}\nexec 2>&1\n{script}", procs.display())]);
        command.env("ADIT", env!("CARGO_BIN_EXE_adit"));
        run(command, b"")
    }

    fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.events)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")).map_or(0, |count| count.parse().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        common::eventually("nobody is in it any more", || {
            let pids = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
            for pid in pids.lines().filter_map(|pid| pid.parse().ok()) {
                // SAFETY: a plain system call; what is in this group this test has started.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            fs::remove_dir(&self.folder).is_ok() || !self.folder.exists()
        });
    }
}

/// Twice what the group may have, and more, is written and read. Were the kernel to hold as much of it as there is memory, everybody would wait for ever.
fn writes_and_reads(limit_mib: u64, make: &str, mount: &str) {
    let Some(points) = Points::new(&["mnt"]) else { return };
    let Some(group) = Group::new(limit_mib) else { return };
    points
        .bench
        .run(["vault", "init", points.bench.vault_str(), "--password-file", points.bench.password_str()])
        .expect(0);
    fs::create_dir(points.bench.path("lower")).unwrap();
    fs::write(points.bench.path("lower/l"), "lower").unwrap();
    let blocks = limit_mib * 3;
    let script = format!(
        "{make}
        $ADIT mount {mount} mnt
        dd if=/dev/zero of=mnt/f bs=1M count={blocks} status=none
        test $(cat mnt/f | wc -c) = $(({blocks} << 20))
        for i in 1 2 3 4; do dd if=/dev/zero of=mnt/f$i bs=64k count=400 status=none & done
        wait
        for i in 1 2 3 4; do test $(stat -c %s mnt/f$i) = $((25 << 20)); done
        $ADIT umount mnt"
    );
    group.run(&points, &script).expect(0);
    assert_eq!(group.kills(), 0, "somebody was killed for memory");
}

#[test]
fn a_volume_and_its_writer_share_64_mib() {
    writes_and_reads(64, "$ADIT volume init -q box --capacity 4G", "box");
}

#[test]
fn a_volume_and_its_writer_share_256_mib() {
    writes_and_reads(256, "$ADIT volume init -q box --capacity 4G", "box");
}

#[test]
fn an_overlay_and_its_writer_share_64_mib() {
    writes_and_reads(64, "$ADIT volume init -q upper --capacity 4G", "lower --upper upper");
}

#[test]
fn a_vault_and_its_writer_share_64_mib() {
    writes_and_reads(64, "", "vault --password-file password");
}

#[test]
fn a_vault_of_one_user_and_its_writer_share_64_mib() {
    writes_and_reads(64, "", "vault --password-file password -o exclusive");
}

/// Each mount has its share of what the kernel may hold.
#[test]
fn four_volumes_and_their_writers_share_128_mib() {
    let names = ["m1", "m2", "m3", "m4"];
    let Some(points) = Points::new(&names) else { return };
    let Some(group) = Group::new(128) else { return };
    let script = "
        for i in 1 2 3 4; do $ADIT volume init -q box$i --capacity 4G; $ADIT mount box$i m$i; done
        for i in 1 2 3 4; do dd if=/dev/zero of=m$i/f bs=1M count=200 status=none & done
        wait
        for i in 1 2 3 4; do test $(stat -c %s m$i/f) = $((200 << 20)); $ADIT umount m$i; done";
    group.run(&points, script).expect(0);
    assert_eq!(group.kills(), 0, "somebody was killed for memory");
}
