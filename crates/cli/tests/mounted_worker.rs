//! The exact line with which a worker of AWS Deadline Cloud mounts job attachments, and the one with which it ends that.
//!
//! `interop_worker` has the official library call them.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/s3.rs"]
mod s3;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Killed, Start, eventually, pattern, run};
use mounts::{NOBODY, OrdinaryUser, mount_line};
use s3::Bucket;

/// Longer than a block of the cache.
const LARGE_LEN: usize = (2 << 20) + 7;

/// An installed folder, a bucket, and a folder `session` as a worker makes it.
struct World(Bucket);

impl World {
    fn new() -> Option<World> {
        let w = World(Bucket::new(&["mnt", "session", "session/root", "session/other"])?);
        w.0.write("in/large", &pattern(LARGE_LEN));
        w.0.write("in/small", b"input");
        w.0.write("out/before", b"was there");
        w.0.run(&["worker", "install", "vfs"]).expect(0);
        for dir in [".vfs_object_cache", ".vfs_logs", ".vfs_manifests"] {
            fs::create_dir(w.at(dir)).unwrap();
        }
        w.manifest("first");
        // What lies below a mountpoint is no obstacle to libfuse.
        fs::write(w.at("root/hidden"), "").unwrap();
        Some(w)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path("session").join(name)
    }

    fn manifest(&self, name: &str) {
        self.0.snapshot(&format!("session/.vfs_manifests/{name}"), "v2023");
    }

    /// What the library runs behind `sudo -E`, in the folder of the session.
    fn line(&self, mountpoint: &str, manifest: &str) -> Command {
        let script = self.0.path("vfs/scripts/production/al2/run_deadline_vfs_al2.sh");
        let mut command = self.0.command_of(script.to_str().unwrap());
        command.arg(self.at(mountpoint)).args(["-f", "--clienttype=deadline", "--bucket=bucket"]);
        command.arg(format!("--manifest={}", self.at(&format!(".vfs_manifests/{manifest}")).display()));
        command.args(["--region=us-west-2", "-oallow_other", "--casprefix=Queue/Data"]);
        command.arg(format!("--cachedir={}", self.at(".vfs_object_cache").display()));
        command.env("LD_LIBRARY_PATH", self.0.path("vfs/lib")).env("PATH", self.search_path());
        command.current_dir(self.at("")).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// The folder of links comes first.
    fn search_path(&self) -> String {
        format!("{}:{}", self.0.path("vfs/link").display(), std::env::var("PATH").unwrap())
    }

    /// Starts it, and waits as the library does.
    fn mount(&self, mountpoint: &str, manifest: &str) -> Killed {
        let log = fs::File::create(self.0.path("stderr")).unwrap();
        let mut daemon = Killed(self.line(mountpoint, manifest).stderr(log).start().unwrap());
        let at = self.at(mountpoint);
        eventually("it is mounted", || {
            assert!(daemon.0.try_wait().unwrap().is_none(), "{}", fs::read_to_string(self.0.path("stderr")).unwrap());
            Command::new("findmnt").arg(&at).stdout(Stdio::null()).start_and_wait().unwrap().success()
        });
        daemon
    }

    /// As the library ends it, with the little that `sudo` leaves of the environment.
    fn unmount(&self, mountpoint: &str, mut daemon: Killed) {
        let mut command = Command::new(self.0.path("vfs/link/fusermount3"));
        command.env_clear().env("PATH", self.search_path()).arg("-u").arg(self.at(mountpoint));
        run(command, b"").expect(0);
        assert!(mount_line(&self.at(mountpoint)).is_none());
        let ended = daemon.0.wait().unwrap();
        assert!(ended.success(), "{ended}: {}", fs::read_to_string(self.0.path("stderr")).unwrap());
    }
}

/// The contract as a whole: the manifest's files are there, what a task writes is there for the walk of the worker, the end is told by
/// exit code 0 and leaves nothing mounted, and the session's folder has the log.
#[test]
fn the_line_of_a_worker_mounts_a_session_that_is_written_to_and_ended() {
    let Some(w) = World::new() else { return };
    let daemon = w.mount("root", "first");
    assert!(fs::read(w.at("root/in/large")).unwrap() == pattern(LARGE_LEN));
    assert!(!w.at("root/hidden").exists());
    // The worker notes the times of all inputs, and looks for what is newer or was not there.
    let time = |name: &str| w.at(name).metadata().unwrap().modified().unwrap();
    let (small, before) = (time("root/in/small"), time("root/out/before"));
    fs::write(w.at("root/out/frame.exr"), pattern(100_000)).unwrap();
    fs::write(w.at("root/out/before"), "is another").unwrap();
    fs::create_dir_all(w.at("root/out/deep/er")).unwrap();
    fs::write(w.at("root/out/deep/er/x"), "x").unwrap();
    let names = |dir: &str| -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(w.at(dir)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(
        (names("root"), names("root/out")),
        (vec!["in".to_owned(), "out".to_owned()], ["before", "deep", "frame.exr"].map(str::to_owned).to_vec())
    );
    assert!(time("root/out/before") > before && time("root/in/small") == small);
    // Another root of the session with the same manifest is a world of its own.
    let other = w.mount("other", "first");
    assert_eq!(names("other/out"), ["before"]);
    fs::write(w.at("other/out/mine"), "").unwrap();
    assert!(!w.at("root/out/mine").exists());
    w.unmount("other", other);
    w.unmount("root", daemon);
    let log = w.at(".vfs_logs/vfs_log.txt");
    assert!(fs::read_to_string(&log).unwrap().contains("is mounted on"));
    // The worker that reads it is another user.
    assert_eq!(log.metadata().unwrap().permissions().mode() & 0o044, 0o044);

    // Started again with the same manifest, it goes on.
    let daemon = w.mount("root", "first");
    assert!(fs::read(w.at("root/out/frame.exr")).unwrap() == pattern(100_000));
    assert_eq!(fs::read(w.at("root/out/deep/er/x")).unwrap(), b"x");
    // SIGTERM ends it as well.
    // SAFETY: a plain system call; the process is this test's child.
    assert_eq!(unsafe { libc::kill(daemon.0.id() as i32, libc::SIGTERM) }, 0);
    let mut daemon = daemon;
    assert!(daemon.0.wait().unwrap().success());
    assert!(mount_line(&w.at("root")).is_none());

    // A kill loses nothing that was closed, and the dead mount is cleared by the worker's own means.
    let mut daemon = w.mount("root", "first");
    fs::write(w.at("root/out/closed"), "closed").unwrap();
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();
    let clear = || {
        let mut command = Command::new(w.0.path("vfs/link/fusermount3"));
        command.env("PATH", w.search_path()).arg("-u").arg(w.at("root"));
        run(command, b"")
    };
    clear().expect(0);
    let daemon = w.mount("root", "first");
    assert_eq!(fs::read(w.at("root/out/closed")).unwrap(), b"closed");
    w.unmount("root", daemon);
    // Who mounts the same manifest in an ordinary way finds nothing of the session.
    let manifest = w.at(".vfs_manifests/first");
    let ordinary = ["mount", manifest.to_str().unwrap(), "mnt", "--writable", "--cas", s3::STORE];
    w.0.run(&[&ordinary[..], &["--cache-dir", "session/.vfs_object_cache"]].concat()).expect(0);
    let found = fs::read_dir(w.0.path("mnt/out")).unwrap().count();
    w.0.run(&["umount", "mnt"]).expect(0);
    assert_eq!(found, 1);

    // A step that depends on another one has another manifest: it shows that one as it is, and what was written is kept aside.
    w.0.write("out/frame.exr", b"from another worker");
    w.manifest("second");
    let daemon = w.mount("root", "second");
    assert_eq!(fs::read(w.at("root/out/frame.exr")).unwrap(), b"from another worker");
    assert_eq!(fs::read(w.at("root/out/before")).unwrap(), b"was there");
    assert!(fs::read_to_string(w.0.path("stderr")).unwrap().contains("is not shown"));
    w.unmount("root", daemon);
}

/// Whoever looks into the log, or at the output, learns why there is no mount; and nothing is left behind.
#[test]
fn what_keeps_a_worker_from_mounting_is_told_in_its_log() {
    let Some(w) = World::new() else { return };
    let log = || fs::read_to_string(w.at(".vfs_logs/vfs_log.txt")).unwrap();
    run(w.line("root", "none"), b"").expect(1).says("none");
    assert!(log().contains("/none"));
    fs::write(w.at(".vfs_manifests/hostile"), r#"{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":[{"hash":"99aa06d3014798d86001c324468d497f","mtime":1,"path":"../x","size":0}],"totalSize":0}"#).unwrap();
    run(w.line("root", "hostile"), b"").expect(4).says("hostile");
    assert!(log().contains("hostile"));
    w.0.server.expire_key("access");
    run(w.line("root", "first"), b"").expect(1).says("s3://bucket/Queue");
    assert!(log().contains("s3://bucket/Queue"));
    let mut bad = w.line("root", "first");
    bad.arg("--casprefix=Elsewhere");
    run(bad, b"").expect(2);
    assert!(mount_line(&w.at("root")).is_none());
}

/// Jobs run as users without privilege. The folder of links is first on their `PATH`, so the mount's own helper must not be found there.
#[test]
fn a_user_without_privilege_mounts_and_unmounts_through_the_links() {
    let Some(user) = OrdinaryUser::new() else { return };
    let Some(bucket) = Bucket::new(&["mnt"]) else { return };
    bucket.write("a", b"input");
    bucket.snapshot("job", "v2023");
    for (from, to) in [("job", "job"), ("work", "session")] {
        match from == "job" {
            true => drop(fs::copy(bucket.path(from), user.path(to)).unwrap()),
            false => fs::create_dir(user.path(to)).unwrap(),
        }
        std::os::unix::fs::chown(user.path(to), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    bucket.run(&["worker", "install", user.path("vfs").to_str().unwrap(), "--copy"]).expect(0);
    let variables: String =
        bucket.variables().iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let script = format!(
        "{variables}
        here=$PWD
        export PATH=\"$here/vfs/link:$PATH\"
        cd session
        \"$here/vfs/scripts/production/al2/run_deadline_vfs_al2.sh\" \"$here/mnt\" -f --clienttype=deadline --bucket=bucket \\
            --manifest=\"$here/job\" --region=us-west-2 -oallow_other --casprefix=Queue/Data &
        n=0
        until findmnt \"$here/mnt\" >/dev/null; do n=$((n + 1)); test $n -lt 200; sleep 0.05; done
        cat \"$here/mnt/a\"
        echo out >\"$here/mnt/b\"
        \"$here/vfs/link/fusermount3\" -u \"$here/mnt\"
        wait $!
        ! findmnt \"$here/mnt\" >/dev/null
        test -d .vfs_object_cache/mountpoints && echo ended"
    );
    let prepare = "echo user_allow_other >fuse.conf && mount --bind fuse.conf /etc/fuse.conf";
    let ran = run(user.command(prepare, &script), b"").expect(0);
    assert!(ran.text().starts_with("input") && ran.text().ends_with("ended\n"), "{ran:?}");
    assert_eq!(user.path("session/.vfs_object_cache").metadata().unwrap().uid(), NOBODY);
}
