//! The program with real mounts. Each test has a guard that unmounts whatever happens, and a watchdog against hangs.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Bench, Killed, PASSWORD, Start, eventually, facts, make_tree, run};
use mounts::{Mounts, OrdinaryUser, SmallDisk, force_off, is_root, mount_line};

fn is_mounted(path: &Path) -> bool {
    mount_line(path).is_some()
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: a plain system call; the process is one that this test started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

#[test]
fn mounted_round_trip() {
    let Some(m) = Mounts::new() else { return };
    let tree = m.bench.path("tree");
    make_tree(&tree);
    m.mount(&[]).expect(0);
    assert!(is_mounted(&m.mnt()));
    let copied = Command::new("cp").arg("-a").arg(&tree).arg(m.mnt()).start_and_wait().unwrap();
    assert!(copied.success());
    assert_eq!(facts(&tree), facts(&m.mnt().join("tree")));
    m.umount_with(&[]).expect(0);
    assert!(!is_mounted(&m.mnt()));
    assert_eq!(fs::read_dir(m.mnt()).unwrap().count(), 0);
    m.bench.open("get", &["/tree", "back"]).expect(0);
    assert_eq!(facts(&tree), facts(&m.bench.path("back")));
    m.mount(&["--read-only"]).expect(0);
    assert_eq!(facts(&tree), facts(&m.mnt().join("tree")));
    m.umount_with(&[]).expect(0);
    m.umount_with(&[]).expect(6);
    assert_eq!(fs::read_dir(m.bench.path("run/adit")).unwrap().count(), 0, "nothing stays in the registry");
}

#[test]
fn mounted_is_listed_and_counted() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&["-o", "noauto,_netdev,attr_timeout=2.5"]).expect(0);
    let mount = &m.bench.mounts()[0];
    assert_eq!(mount["mountpoint"].as_str(), m.mnt().canonicalize().unwrap().to_str());
    assert_eq!(mount["source"].as_str(), m.bench.vault().canonicalize().unwrap().to_str());
    assert_eq!((mount["kind"].as_str(), mount["read_only"].as_bool()), (Some("vault"), Some(false)));
    assert!(mount["pid"].is_u64() && mount["state"] == "mounted", "{mount}");
    let started = mount["started"].as_str().expect("a time");
    assert!(started.len() == 20 && started.contains('T') && started.ends_with('Z'), "{started}");
    let listed = m.bench.run(["mounts"]).expect(0).text();
    assert!(listed.contains("read-write") && listed.contains(" UTC, ") && listed.contains(" ago)"), "{listed}");
    fs::write(m.mnt().join("f"), "content").unwrap();
    assert_eq!(fs::read_to_string(m.mnt().join("f")).unwrap(), "content");
    let stats = m.bench.run(["stats", "mnt", "--json"]).expect(0).json();
    assert!(stats["inodes"].as_u64().unwrap() >= 2 && stats["rss_bytes"].as_u64().unwrap() > 0, "{stats}");
    for cache in stats["caches"].as_object().unwrap().values() {
        assert!(cache["hits"].is_u64() && cache["misses"].is_u64() && cache["size"].is_u64(), "{stats}");
        assert!(cache["max_bytes"].as_u64().unwrap() > 0, "{stats}");
        let rate =
            cache["hits"].as_f64().unwrap() / (cache["hits"].as_f64().unwrap() + cache["misses"].as_f64().unwrap());
        assert!(cache["hit_rate"].as_f64().is_none_or(|told| (told - rate).abs() < 1e-3), "{stats}");
    }
    let status = m.bench.run(["status", "mnt", "--json"]).expect(0).json();
    assert_eq!(status["attr_timeout_secs"].as_f64(), Some(2.5));
    assert_eq!(status["pid"], mount["pid"]);
    // For people each row of a cache has a name of its own.
    let told = m.bench.run(["stats", "mnt"]).expect(0).text();
    let rows: Vec<&str> = told.lines().skip_while(|line| *line != "  content").skip(1).take(6).collect();
    let labels: Vec<&str> = rows.iter().filter_map(|row| row.split_whitespace().next()).collect();
    assert_eq!(labels, ["hit", "hits", "max", "misses", "entries", "size"], "{told}");
    m.bench.run(["status", "mnt"]).expect(0);
    let mut watched = m.bench.command();
    watched.args(["stats", "mnt", "--json", "--watch"]).stdout(Stdio::piped());
    let mut watched = Killed(watched.start().unwrap());
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watched.0.stdout.take().unwrap()));
    for _ in 0..2 {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(line["inodes"].is_u64());
    }
    drop(watched);
    m.umount_with(&[]).expect(0);
}

#[test]
fn mounted_failures_in_the_background_have_exit_codes() {
    let Some(m) = Mounts::new() else { return };
    let (vault, mnt) = (m.bench.vault_str(), m.bench.str("mnt"));
    m.bench.run_with(["mount", vault, &mnt, "--password-stdin"], b"wrong").expect(3).says("wrong password");
    m.bench.run(["mount", vault, &mnt]).expect(2).says("--password-file");
    m.bench.run(["mount", vault, "missing", "--password-file", "password"]).expect(1).says("missing");
    m.bench.run(["mount", vault, "password", "--password-file", "password"]).expect(1).says("not a folder");
    m.bench.run(["mount", vault, ".", "--password-file", "password"]).expect(2).says("overlaps");
    m.bench.run(["mount", vault, vault, "--password-file", "password"]).expect(2).says("overlaps");
    m.bench.run(["mount", ".", &mnt, "--read-only"]).expect(2).says("overlaps");
    m.bench.run(["mount", "vault/d", &mnt]).expect(2).says("--read-only");
    m.mount(&["-o", "nonsense"]).expect(2);
    fs::rename(m.bench.vault().join("d"), m.bench.vault().join("e")).unwrap();
    m.mount(&[]).expect(4).says("root directory");
    fs::rename(m.bench.vault().join("e"), m.bench.vault().join("d")).unwrap();
    assert!(!is_mounted(&m.mnt()));
    m.mount(&[]).expect(0);
    m.mount(&[]).expect(7).says("already");
    m.umount_with(&[]).expect(0);
}

#[test]
fn mounted_busy_is_7_and_lazy_detaches() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::write(m.mnt().join("f"), "before").unwrap();
    let open = fs::File::open(m.mnt().join("f")).unwrap();
    m.umount_with(&[]).expect(7).says("busy");
    assert!(is_mounted(&m.mnt()));
    let pid = m.pid();
    m.umount_with(&["--lazy"]).expect(0);
    assert!(!is_mounted(&m.mnt()));
    m.bench.await_detached();
    assert!(m.bench.run(["mounts"]).expect(0).text().contains("detached: it ends when its last file is closed"));
    assert_eq!(std::io::read_to_string(&open).unwrap(), "before", "an open file goes on");
    drop(open);
    eventually("the process ends with its last file", || !Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(m.bench.open("cat", &["/f"]).expect(0).text(), "before");
}

/// Between its detachment and its end the mountpoint is an ordinary folder: nobody is told to work there.
#[test]
fn mounted_detached_is_told_with_what_holds_it() {
    let Some(m) = Mounts::new() else { return };
    let me = format!("process {} (", std::process::id());
    let told = |ran: common::Ran| {
        let ran =
            ran.expect(7).says("was detached and is still ending").says("is not encrypted").says(&me).says("kill ");
        assert!(!ran.stderr.contains("work in"), "{}", ran.stderr);
    };
    let second = Second { at: m.bench.path("second") };
    fs::create_dir(&second.at).unwrap();
    let mount_second = |more: &[&str]| {
        let line = ["mount", m.bench.vault_str(), "second", "--password-file", m.bench.password_str()];
        m.bench.run(line.iter().chain(more))
    };
    let detach = |how: &[&str]| {
        m.mount(how).expect(0);
        fs::write(m.mnt().join("f"), "f").unwrap();
        let open = fs::File::open(m.mnt().join("f")).unwrap();
        let pid = m.pid();
        m.umount_with(&["--lazy"]).expect(0);
        m.bench.await_detached();
        (open, pid)
    };
    let (open, pid) = detach(&[]);
    told(mount_second(&["-o", "exclusive"]));
    told(m.bench.check(&["--repair", "--yes"]));
    told(m.umount_with(&[]));
    told(m.umount_with(&["--lazy"]));
    let status = m.bench.run(["status", "mnt", "--json"]).expect(0).json();
    assert_eq!((status["state"].as_str(), status["pid"].as_i64()), (Some("detached"), Some(pid.into())), "{status}");
    assert_eq!(status["held_by"][0]["pid"].as_u64(), Some(std::process::id().into()), "{status}");
    let status = m.bench.run(["status", "mnt"]).expect(0).text();
    assert!(status.contains("detached") && status.contains(&me), "{status}");
    // Who asks is not told of, even with a file open there: it is gone in a moment.
    let mut asks = m.bench.command();
    asks.args(["status", "mnt", "--json"]).stdin(open.try_clone().unwrap()).stdout(std::process::Stdio::piped());
    let said = asks.start().unwrap().wait_with_output().unwrap();
    // It has the file open as well.
    drop(asks);
    let status: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(status["held_by"].as_array().unwrap().len(), 1, "{status}");
    // What is mounted in its place meanwhile is what the verbs mean by the mountpoint.
    m.mount(&[]).expect(0);
    let status = m.bench.run(["status", "mnt", "--json"]).expect(0).json();
    assert!(status["state"] == "mounted" && status["pid"].as_i64() != Some(pid.into()), "{status}");
    m.umount_with(&[]).expect(0);
    drop(open);
    eventually("it ends with its last file", || m.bench.mounts().is_empty());
    // One that had promised to be alone still is.
    let (open, _) = detach(&["-o", "exclusive"]);
    told(mount_second(&[]));
    told(m.bench.open("mkdir", &["/d"]));
    m.umount_with(&["--no-flush", "--yes"]).expect(0);
    assert!(m.bench.mounts().is_empty());
    drop(open);
    m.bench.open("mkdir", &["/d"]).expect(0);
}

/// Segments of journals below the state directory.
fn journals(state: &Path) -> usize {
    let entries = fs::read_dir(state).unwrap().map(|e| e.unwrap());
    let count = |entry: fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => journals(&entry.path()),
        false => usize::from(entry.file_name().to_str().unwrap().starts_with("journal-")),
    };
    entries.map(count).sum()
}

#[test]
fn mounted_that_died_is_cleared() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::write(m.mnt().join("f"), "closed before the kill").unwrap();
    let pid = m.pid();
    kill(pid, libc::SIGKILL);
    eventually("the kernel notices", || fs::metadata(m.mnt()).is_err());
    let dead = &m.bench.mounts()[0];
    assert_eq!((dead["state"].as_str(), dead["pid"].is_null()), (Some("dead"), true), "{dead}");
    assert_eq!(dead["source"].as_str(), m.bench.vault().canonicalize().unwrap().to_str());
    let told = m.bench.run(["mounts"]).expect(0).text();
    assert!(
        told.contains(&format!("DEAD: its process is gone; clear it with: adit umount {}", m.mnt().display())),
        "{told}"
    );
    m.bench.run(["doctor"]).expect(0);
    m.bench.run(["vault", "init", "other", "--password-file", m.bench.password_str()]).expect(0);
    let mnt = m.bench.str("mnt");
    m.bench.run(["mount", "other", &mnt, "--password-file", m.bench.password_str()]).expect(1).says("umount");
    m.umount_with(&[]).expect(0);
    assert!(!is_mounted(&m.mnt()) && m.bench.mounts().is_empty());
    // A verb that reads recovers the journal first.
    assert_eq!(journals(&m.bench.path("state")), 1);
    assert_eq!(m.bench.open("cat", &["/f"]).expect(0).text(), "closed before the kill");
    assert_eq!(journals(&m.bench.path("state")), 0);
    m.mount(&[]).expect(0);
    assert_eq!(fs::read_to_string(m.mnt().join("f")).unwrap(), "closed before the kill");
    // And the same by request.
    m.umount_with(&["--no-flush"]).expect(2).says("--yes");
    m.umount_with(&["--no-flush", "--yes"]).expect(0);
    assert!(!is_mounted(&m.mnt()));
    assert_eq!(m.bench.open("cat", &["/f"]).expect(0).text(), "closed before the kill");
}

/// A mount whose process was killed is known at once, also while the kernel keeps the root's attributes for an hour, and
/// each verb says the same of it.
#[test]
fn mounted_that_died_is_told_by_every_verb() {
    let Some(m) = Mounts::new() else { return };
    // By a relative path, which must not be what is left of it.
    m.bench.run(["mount", "vault", "mnt", "-o", "exclusive", "--password-file", "password"]).expect(0);
    fs::write(m.mnt().join("f"), "f").unwrap();
    fs::metadata(m.mnt()).unwrap();
    m.kill_and_leave();
    assert!(fs::metadata(m.mnt()).is_ok(), "the kernel does not ask for attributes that it has");
    let dead = &m.bench.mounts()[0];
    assert_eq!(dead["state"], "dead");
    assert_eq!(dead["source"].as_str(), m.bench.vault().canonicalize().unwrap().to_str());
    let mnt = m.mnt().canonicalize().unwrap();
    let what_to_do = format!("its process is gone; clear it with: adit umount {}", mnt.display());
    for verb in [&["mounts"][..], &["doctor"]] {
        let told = m.bench.run(verb).text();
        assert!(told.contains(&what_to_do), "{verb:?}: {told}");
    }
    let says = format!("{}: a dead mount: {what_to_do}", mnt.display());
    for verb in ["status", "stats"] {
        m.bench.run([verb, "mnt"]).expect(1).says(&says);
    }
    m.bench.run(["vault", "init", "other", "--password-file", "password"]).expect(0);
    m.bench.run(["mount", "other", "mnt", "--password-file", "password"]).expect(1).says(&says);
    fs::write(m.bench.path("host"), "").unwrap();
    fs::create_dir(m.bench.path("folder")).unwrap();
    std::os::unix::fs::symlink("../mnt/f", m.bench.path("folder/link")).unwrap();
    let verbs = [
        &["ls", "mnt"][..],
        &["ls", "dir:mnt"],
        &["tree", "mnt"],
        &["cat", "mnt", "/f"],
        &["get", "mnt", "/f", "copy"],
        &["get", "folder", "/", "mnt"],
        &["get", "folder", "/link", "mnt/deep/er"],
        &["put", "mnt", "host", "/"],
        &["put", "folder", "mnt", "/"],
        &["put", "folder", "folder/link/x", "/"],
        &["mkdir", "mnt", "/d"],
        &["volume", "info", "mnt"],
        &["volume", "init", "mnt/volume"],
        &["snapshot", "list", "mnt"],
        &["manifest", "snapshot", "mnt", "-o", "m"],
        &["manifest", "snapshot", "folder", "-o", "mnt/m"],
        &["manifest", "diff", "mnt/m", "folder"],
    ];
    for verb in verbs {
        m.bench.run(verb).expect(1).says(&says);
    }
    m.bench.run(["ls", "vault", "--password-file", "mnt/f"]).expect(2).says(&says);
    // Also where it is met below what was named.
    m.bench.run(["put", "folder", ".", "/all"]).expect(1).says(&says);
    // It does not keep others from working in the vault, and goes as it says.
    m.bench.open("mkdir", &["/d"]).expect(0);
    m.umount_with(&[]).expect(0);
    assert!(m.bench.mounts().is_empty());
}

/// A service that starts again mounts what it had mounted, wherever a kill left the mount of before.
#[test]
fn mounted_again_after_a_kill_takes_the_dead_mount_away() {
    for m in [Mounts::new(), Mounts::volume(&[])] {
        let Some(m) = m else { return };
        m.mount(&[]).expect(0);
        fs::write(m.mnt().join("f"), "f").unwrap();
        m.kill_and_leave();
        // A fake mount changes nothing.
        m.mount(&["--fake"]).expect(1);
        m.mount(&[]).expect(0).says("taken away what a process that is gone had mounted there");
        assert_eq!(fs::read_to_string(m.mnt().join("f")).unwrap(), "f");
        m.umount();
        assert!(mount_line(&m.mnt()).is_none(), "nothing is left below it");
    }
    let Some(user) = OrdinaryUser::new() else { return };
    let script = "trap './adit umount --no-flush --yes mnt 2>/dev/null || true' EXIT
        ./adit vault init vault --password-file password
        ./adit mount vault mnt --password-file password && echo f > mnt/f
        kill -KILL $(./adit mounts --json | grep -A 1 \"$PWD/mnt\\\"\" | grep -o '\"pid\": *[0-9]*' | grep -o '[0-9]*')
        while stat -f mnt 2>/dev/null; do sleep 0.1; done
        ./adit mount vault mnt --password-file password
        test \"$(cat mnt/f)\" = f && ./adit umount mnt";
    user.run(script).expect(0).says("taken away");
}

/// However its source is spelled.
#[test]
fn mounted_again_by_another_spelling_takes_the_dead_mount_away() {
    let Some(m) = Mounts::volume(&[]) else { return };
    let folder = m.bench.path("").canonicalize().unwrap();
    let absolute = folder.join("box").display().to_string();
    let around = folder.join("..").join(folder.file_name().unwrap()).join("box").display().to_string();
    let forced = format!("volume:{absolute}");
    for (first, second) in
        [("box", forced.as_str()), ("volume:box", "box"), (&forced, "./box"), ("box", &around), (&around, "volume:box")]
    {
        m.bench.run(["mount", first, "mnt"]).expect(0);
        m.kill_and_leave();
        m.bench.run(["mount", second, "mnt"]).expect(0).says("taken away");
        m.umount();
        assert!(mount_line(&m.mnt()).is_none(), "nothing is left below it");
    }
    // Another source is another one.
    m.bench.run(["volume", "init", "other"]).expect(0);
    m.bench.run(["mount", "box", "mnt"]).expect(0);
    m.kill_and_leave();
    m.bench.run(["mount", "other", "mnt"]).expect(1).says("a dead mount");
    m.bench.run(["umount", "mnt"]).expect(0);
}

/// The folder that holds a segment.
fn journal_folder(below: &Path) -> Option<std::path::PathBuf> {
    let entries = fs::read_dir(below).unwrap().map(|e| e.unwrap());
    entries.into_iter().find_map(|entry| match entry.file_type().unwrap().is_dir() {
        true => journal_folder(&entry.path()),
        false => entry.file_name().to_str()?.starts_with("journal-").then(|| below.to_owned()),
    })
}

/// A dead mount's journal cannot be recovered: who only reads is told once and reads, a mount is read-only, whoever must
/// write is told what to do. Once the cause is gone, the next opening recovers it.
#[test]
fn mounted_with_a_journal_that_cannot_be_recovered_reads() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::write(m.mnt().join("f"), "before the kill").unwrap();
    m.kill();
    let folder = journal_folder(&m.bench.path("state")).unwrap();
    let bad = folder.join("journal-00000000000000aa");
    fs::create_dir(&bad).unwrap();
    for how in [&["cat", "/f"][..], &["ls", "/"]] {
        let ran = m.bench.open(how[0], &how[1..]).expect(0).says("read-only").says("its journal stays");
        let told = ran.says("journal-00000000000000aa");
        assert!(how[0] == "ls" || told.text() == "before the kill");
    }
    fs::write(m.bench.path("g"), "g").unwrap();
    m.bench.open("put", &["g", "/"]).expect(1).says("nothing is lost").says("try again");
    for how in [&["--read-only"][..], &[]] {
        m.mount(how).expect(0).says("read-only").says("its journal stays");
        assert_eq!(fs::read_to_string(m.mnt().join("f")).unwrap(), "before the kill");
        assert_eq!(fs::write(m.mnt().join("g"), "g").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        m.umount_with(&[]).expect(0);
    }
    assert_eq!(journals(&m.bench.path("state")), 1, "and what it tells is still there");
    fs::remove_dir(&bad).unwrap();
    m.bench.open("put", &["g", "/"]).expect(0);
    assert_eq!(journals(&m.bench.path("state")), 0);
    assert_eq!(m.bench.open("cat", &["/f"]).expect(0).text(), "before the kill");
}

/// The way out where the cause stays: what the message says, and nothing but that journal is given up.
#[test]
fn mounted_with_a_journal_that_is_given_up_goes_on() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::write(m.mnt().join("f"), "before the kill").unwrap();
    m.kill();
    let folder = journal_folder(&m.bench.path("state")).unwrap();
    fs::create_dir(folder.join("journal-00000000000000aa")).unwrap();
    fs::write(m.bench.path("g"), "g").unwrap();
    let repair =
        ["vault", "check", "--repair", "--yes", m.bench.vault_str(), "--password-file", m.bench.password_str()];
    let place = folder.parent().unwrap();
    for told in [m.bench.open("put", &["g", "/"]), m.bench.run(repair)] {
        told.expect(1).says(&format!("stays in {}", place.display())).says("move that folder away");
    }
    assert_eq!(journals(&m.bench.path("state")), 1);
    fs::rename(place, m.bench.path("given-up")).unwrap();
    m.bench.run(repair).expect(0);
    m.bench.open("put", &["g", "/"]).expect(0);
    m.mount(&[]).expect(0);
    assert_eq!(fs::read_to_string(m.mnt().join("f")).unwrap(), "before the kill");
    fs::write(m.mnt().join("h"), "h").unwrap();
    m.umount();
}

#[test]
fn mounted_in_the_foreground_ends_on_a_signal() {
    let Some(m) = Mounts::new() else { return };
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut command = m.bench.command();
        command.args(["mount", m.bench.vault_str(), "mnt", "--foreground", "--password-file", "password"]);
        let mut child = Killed(command.stderr(Stdio::piped()).start().unwrap());
        eventually("it is mounted", || is_mounted(&m.mnt()));
        fs::write(m.mnt().join(format!("f{signal}")), "written").unwrap();
        kill(child.0.id() as i32, signal);
        let status = child.0.wait().unwrap();
        assert_eq!(status.code(), Some(0), "signal {signal}");
        assert!(!is_mounted(&m.mnt()));
        assert_eq!(m.bench.open("cat", &[&format!("/f{signal}")]).expect(0).text(), "written");
    }
}

#[test]
fn mounted_read_only_refuses_changes() {
    let Some(m) = Mounts::new() else { return };
    fs::write(m.bench.path("f"), "f").unwrap();
    m.bench.open("put", &["f", "/"]).expect(0);
    for how in [&["--read-only"][..], &["-o", "ro"]] {
        m.mount(how).expect(0);
        let error = fs::write(m.mnt().join("g"), "g").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert_eq!(fs::read_to_string(m.mnt().join("f")).unwrap(), "f");
        assert_eq!(m.bench.mounts()[0]["read_only"], true);
        m.umount_with(&[]).expect(0);
    }
    // No place for a journal: read-only as well, and it says so.
    m.mount(&["--state-dir", "password"]).expect(0).says("read-only");
    assert!(fs::write(m.mnt().join("g"), "g").is_err());
    m.umount_with(&[]).expect(0);
}

/// A vault that cannot be written is mounted read-only, says so, and why.
#[test]
fn mounted_on_a_medium_that_cannot_be_written() {
    let Some(user) = OrdinaryUser::new() else { return };
    let script = "set -x
        trap './adit umount --no-flush --yes mnt 2>/dev/null || true' EXIT
        is_read_only() {
            ./adit status mnt > status
            grep -q 'read only  *yes' status && grep -q \"read only because  *.*$1\" status
            grep -q \"mounted read-only: .*$1\" said
            grep ' fuse.adit ' /proc/self/mountinfo | grep -q \" $PWD/mnt ro,\"
            ! touch mnt/g 2>/dev/null
            test \"$(cat mnt/f)\" = content
            ./adit umount mnt
        }
        ./adit vault init vault --password-file password
        echo content > f && ./adit put vault f / --password-file password
        chmod 555 vault/d
        ./adit mount vault mnt --password-file password 2> said
        is_read_only 'no permission to write'
        # Below, it may be allowed all the same; who asked for no more is not told.
        ./adit mount vault mnt -o rw --password-file password 2> said && test ! -s said
        echo more > mnt/g && test \"$(cat mnt/g)\" = more && rm mnt/g && ./adit umount mnt
        ./adit mount vault mnt --read-only --password-file password 2> said && test ! -s said
        ./adit status mnt | grep -q 'read only because  *-$' && ./adit umount mnt
        chmod 755 vault/d
        ./adit mount frozen mnt -o rw --password-file password 2> said
        is_read_only 'read-only filesystem'";
    // The same vault on a read-only filesystem; it is made only later.
    let prepare = "mkdir -m 755 vault frozen && chown 65534:65534 vault
        mount --bind vault frozen && mount -o remount,bind,ro frozen";
    run(user.command(prepare, script), b"").expect(0);
}

/// A refusal by the host of a vault is an errno that says nothing: the log and `status` name the object, and count it.
#[test]
fn mounted_on_a_host_that_refuses_says_what() {
    let Some(user) = OrdinaryUser::new() else { return };
    let shards =
        || -> Vec<_> { fs::read_dir(user.path("vault/d")).unwrap().map(|entry| entry.unwrap().path()).collect() };
    user.run("./adit vault init vault --password-file password").expect(0);
    let of_root = shards();
    let script = "mkdir sub && echo content > sub/f && echo content > f
        ./adit put vault sub / --password-file password
        ./adit put vault f / --password-file password";
    user.run(script).expect(0);
    // Another user's, where the folder's content lies.
    for shard in shards().into_iter().filter(|shard| !of_root.contains(shard)) {
        std::os::unix::fs::chown(&shard, Some(0), Some(0)).unwrap();
        fs::set_permissions(&shard, PermissionsExt::from_mode(0o700)).unwrap();
    }
    let script = "trap './adit umount --no-flush --yes mnt 2>/dev/null || true' EXIT
        ./adit mount vault mnt --password-file password --log-file log
        test \"$(cat mnt/f)\" = content
        for n in 1 2 3 4 5; do ! cat mnt/sub/f 2>/dev/null; done
        ./adit status mnt --json > told
        grep -q 'permission denied' log
        ./adit umount mnt";
    user.run(script).expect(0);
    let told: serde_json::Value = serde_json::from_slice(&fs::read(user.path("told")).unwrap()).unwrap();
    let errors = told["errors"].as_array().unwrap();
    let refused = errors.iter().find(|met| met["error"].as_str().unwrap().ends_with("permission denied"));
    let refused = refused.unwrap_or_else(|| panic!("{told}"));
    assert!(refused["count"].as_u64() >= Some(5) && refused["error"].as_str().unwrap().contains("d/"), "{refused}");
    assert!(told["warnings"].as_u64() > Some(0), "{told}");
}

#[test]
fn mounted_over_something_must_be_meant() {
    let Some(m) = Mounts::new() else { return };
    fs::write(m.mnt().join("hidden"), "x").unwrap();
    m.mount(&[]).expect(1).says("is not empty").says("-o nonempty");
    assert!(!is_mounted(&m.mnt()));
    m.mount(&["-o", "nonempty"]).expect(0);
    assert_eq!(fs::read_dir(m.mnt()).unwrap().count(), 0);
    m.umount_with(&[]).expect(0);
    assert_eq!(fs::read_to_string(m.mnt().join("hidden")).unwrap(), "x");
}

/// fusermount3 says what it does not like; what to do about it is said as well.
#[test]
fn mounted_by_a_helper_that_refuses_says_what_to_do() {
    let Some(user) = OrdinaryUser::new() else { return };
    let script = "./adit vault init vault --password-file password
        ./adit mount vault roots --password-file password";
    let failed = run(user.command("mkdir -m 755 roots", script), b"").expect(1);
    failed.says("roots: cannot be mounted for you: fusermount3: ").says("mount on a folder of your own");
    let script = "./adit mount vault mnt --allow-other --password-file password";
    user.run(script).expect(1).says("cannot be mounted for you: ").says("leave out allow_other, or have root add");
}

/// Nobody but root and its user can end a mount; the message says whose it is.
#[test]
fn mounted_by_another_user_says_so() {
    let Some(user) = OrdinaryUser::new() else { return };
    let prepare = "mkdir -m 700 run && export XDG_RUNTIME_DIR=$PWD/run
        ./adit vault init roots --password-file password
        ./adit mount roots mnt -o allow_other --password-file password
        ./adit mounts --json | grep -A 1 \"$PWD/mnt\\\"\" | grep -o '\"pid\": *[0-9]*' | grep -o '[0-9]*' > pid";
    let script = "./adit umount mnt 2> said && exit 90 || code=$?
        test $code = 1 && grep -q 'mnt: mounted by another user (root)' said
        ./adit umount --lazy mnt 2> said && exit 91 || code=$?
        test $code = 1 && grep -q 'only that user and root can unmount it' said
        ./adit status mnt 2> said && exit 92 || code=$?
        test $code = 6 && grep -q 'mnt: mounted by another user (root)' said";
    let ran = run(user.command(prepare, script), b"");
    // In its namespace nobody is left who could unmount it.
    let pid = fs::read_to_string(user.path("pid")).unwrap().trim().parse().unwrap();
    kill(pid, libc::SIGTERM);
    eventually("it ends", || !Path::new(&format!("/proc/{pid}")).exists());
    ran.expect(0);
}

#[test]
fn mounted_process_shows_no_password() {
    let Some(m) = Mounts::new() else { return };
    let mut command = m.bench.command();
    command.args(["mount", m.bench.vault_str(), "mnt", "--password-env", "VAULT_PASSWORD"]);
    command.env("VAULT_PASSWORD", PASSWORD).env("KEPT", "kept");
    run(command, b"").expect(0);
    let pid = m.pid();
    for file in ["environ", "cmdline"] {
        // Not dumpable: only root may read it at all.
        let Ok(bytes) = fs::read(format!("/proc/{pid}/{file}")) else { continue };
        assert!(!bytes.windows(PASSWORD.len()).any(|w| w == PASSWORD.as_bytes()), "{file}");
        assert!(file != "environ" || bytes.windows(4).any(|w| w == b"KEPT"));
    }
    assert_eq!(fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid(), 0);
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert!(core.split_ascii_whitespace().nth(4) == Some("0"), "{core}");
    let log = fs::read_to_string(m.bench.path("state/adit/log")).unwrap();
    assert!(!log.contains(PASSWORD));
    m.umount_with(&[]).expect(0);
}

#[test]
fn mounted_status_counts_what_was_warned_of() {
    let Some(m) = Mounts::new() else { return };
    fs::write(m.bench.path("f"), "f").unwrap();
    m.bench.open("put", &["f", "/"]).expect(0);
    let good = m.bench.content_files().pop().unwrap();
    // A second version, as sync programs make them.
    fs::copy(&good, good.to_str().unwrap().replace(".c9r", " (conflict).c9r")).unwrap();
    m.mount(&[]).expect(0);
    let status = || m.bench.run(["status", "mnt", "--json"]).expect(0).json();
    assert_eq!(status()["warnings"], 0);
    assert_eq!(fs::read_dir(m.mnt()).unwrap().count(), 2);
    assert_eq!(fs::read(m.mnt().join("f (conflict)")).unwrap(), b"f");
    let status = status();
    assert!(status["warnings"].as_u64().unwrap() >= 1, "{status}");
    let log = fs::read_to_string(status["log"].as_str().unwrap()).unwrap();
    assert!(log.contains("(conflict).c9r: a second version of an entry"), "{log}");
    assert!(m.bench.run(["status", "mnt"]).expect(0).text().contains("UTC"));
    m.umount();
}

#[test]
fn mounted_folder_with_a_damaged_name_does_not_pass_for_whole() {
    let Some(m) = Mounts::new() else { return };
    m.bench.put_tree(&[("folder/good", "good"), ("folder/bad", "bad"), ("other/f", "f")]);
    let bad = m.bench.content_files().into_iter().find(|path| {
        // 68 bytes of header, 28 around the content.
        fs::metadata(path).unwrap().len() == 68 + 28 + 3
    });
    let bad = bad.unwrap();
    fs::rename(&bad, bad.with_file_name("bm90IGEgbmFtZSBvZiB0aGlz.c9r")).unwrap();
    m.mount(&[]).expect(0);
    for _ in 0..2 {
        let listed: Vec<_> = fs::read_dir(m.mnt().join("folder")).unwrap().collect();
        let [Ok(good), Err(told)] = &listed[..] else { panic!("{listed:?}") };
        assert_eq!((good.file_name().to_str(), told.raw_os_error()), (Some("good"), Some(libc::EIO)));
    }
    assert_eq!(fs::read(m.mnt().join("folder/good")).unwrap(), b"good");
    assert_eq!(fs::read_dir(m.mnt().join("other")).unwrap().filter(Result::is_ok).count(), 1);
    m.umount();
}

#[test]
fn mounted_several_are_unmounted_in_one_call() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    let second = Second { at: m.bench.path("second") };
    fs::create_dir(&second.at).unwrap();
    let line = ["mount", m.bench.vault_str(), "second", "--password-file", m.bench.password_str()];
    m.bench.run(line).expect(0);
    assert_eq!(m.bench.mounts().len(), 2);
    m.bench.run(["umount", "mnt", "missing", "second"]).expect(6).says("missing");
    assert!(m.bench.mounts().is_empty() && !is_mounted(&m.mnt()) && !is_mounted(&second.at));
    // The worst code wins, whatever the order.
    m.mount(&[]).expect(0);
    fs::write(m.mnt().join("f"), "f").unwrap();
    let open = fs::File::open(m.mnt().join("f")).unwrap();
    for order in [["missing", "mnt"], ["mnt", "missing"]] {
        m.bench.run(["umount"].iter().chain(&order)).expect(7).says("missing").says("busy");
    }
    drop(open);
    m.umount_with(&[]).expect(0);
}

/// A further mountpoint that is cleared whatever happens.
struct Second {
    at: PathBuf,
}

impl Drop for Second {
    fn drop(&mut self) {
        force_off(&self.at);
    }
}

#[test]
fn mounted_goes_when_idle() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&["--idle", "300ms"]).expect(0);
    eventually("it unmounts itself", || !is_mounted(&m.mnt()));
}

#[test]
fn mounted_and_mountless_verbs_share_a_vault() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&["-o", "attr_timeout=0,entry_timeout=0,negative_timeout=0"]).expect(0);
    fs::write(m.mnt().join("inside"), "by the mount").unwrap();
    assert_eq!(m.bench.open("cat", &["/inside"]).expect(0).text(), "by the mount");
    fs::write(m.bench.path("outside"), "by the verb").unwrap();
    let check = ["vault", "check", m.bench.vault_str(), "--password-file", m.bench.password_str()];
    m.bench.run(check).expect(0).says("mounted on");
    m.bench.run(check.into_iter().chain(["--repair", "--yes"])).expect(7).says("adit umount");
    // Every mount of it is named.
    let second = Second { at: m.bench.path("second") };
    fs::create_dir(&second.at).unwrap();
    m.bench.run(["mount", m.bench.vault_str(), "second", "--password-file", m.bench.password_str()]).expect(0);
    let (one, other) = (m.bench.str("mnt"), m.bench.str("second"));
    m.bench.run(check).expect(0).says(&one).says(&other);
    let refused = m.bench.run(check.into_iter().chain(["--repair", "--yes"])).expect(7);
    refused.says(&format!("adit umount {one}")).says(&format!("adit umount {other}"));
    m.bench.run(["umount", "second"]).expect(0);
    // A mount that this user's registry does not show, as one of another user: the vault itself tells of it.
    let mut elsewhere = m.bench.command();
    elsewhere.args(check.into_iter().chain(["--repair", "--yes"])).env("XDG_RUNTIME_DIR", m.bench.path("none"));
    run(elsewhere, b"").expect(7).says(&format!("process {} has it open", m.pid()));
    m.bench.open("put", &["outside", "/"]).expect(0);
    assert_eq!(fs::read_to_string(m.mnt().join("outside")).unwrap(), "by the verb");
    m.umount_with(&[]).expect(0);
}

#[test]
fn mounted_exclusively_is_mounted_alone() {
    let Some(m) = Mounts::new() else { return };
    fs::create_dir_all(m.bench.path("second")).unwrap();
    fs::write(m.bench.path("f"), "x").unwrap();
    let second = |more: &[&str]| {
        let (vault, at) = (m.bench.vault_str().to_owned(), m.bench.str("second"));
        let mut args = vec!["mount".to_owned(), vault, at, "--password-file".into(), m.bench.password_str().to_owned()];
        args.extend(more.iter().map(|&a| a.to_owned()));
        m.bench.run(args)
    };
    m.mount(&["-o", "exclusive"]).expect(0);
    second(&[]).expect(7).says("exclusively");
    m.bench.open("put", &[&m.bench.str("f"), "/"]).expect(7).says("adit umount");
    m.bench.open("ls", &["/"]).expect(0);
    m.umount_with(&[]).expect(0);
    m.mount(&[]).expect(0);
    second(&["-o", "exclusive"]).expect(7).says("already");
    m.bench.open("put", &[&m.bench.str("f"), "/"]).expect(0);
    m.umount_with(&[]).expect(0);
}

/// All of them look for mounts before any of them is one.
#[test]
fn mounted_exclusively_by_one_of_several_that_start_at_once() {
    let Some(m) = Mounts::new() else { return };
    let places = ["one", "two", "three", "four"].map(|name| m.bench.path(name));
    places.iter().for_each(|place| fs::create_dir_all(place).unwrap());
    let starts = places.each_ref().map(|place| {
        let mut start = m.bench.command();
        start.args(["mount", m.bench.vault_str(), place.to_str().unwrap(), "-o", "exclusive"]);
        start.args(["--password-file", m.bench.password_str()]);
        start.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).start().unwrap()
    });
    let ends = starts.map(|mut start| start.wait().unwrap().code().unwrap());
    for (place, code) in places.iter().zip(ends) {
        if code == 0 {
            m.bench.run(["umount", place.to_str().unwrap()]).expect(0);
        }
    }
    let mut sorted = ends;
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 7, 7, 7]);
}

/// As an ordinary user: through fusermount3, from a process that is not dumpable.
#[test]
fn mounted_by_an_ordinary_user() {
    let Some(user) = OrdinaryUser::new() else { return };
    let as_user = "./adit vault init vault --password-file password
        ./adit mount vault mnt --password-file password
        trap './adit umount --no-flush --yes mnt 2>/dev/null || true' EXIT
        echo content > mnt/file
        test \"$(cat mnt/file)\" = content
        test \"$(stat -c %u mnt/file)\" = 65534
        ./adit mounts --json | grep -q vault
        ./adit umount mnt
        test \"$(./adit cat vault /file --password-file password)\" = content
        # After a kill, recovery meets what its owner may not write.
        ./adit mount vault mnt --password-file password
        mkdir mnt/dir mnt/dir/sub
        echo read > mnt/dir/read && chmod 444 mnt/dir/read
        echo none > mnt/dir/none && chmod 000 mnt/dir/none
        echo below > mnt/dir/sub/file && chmod 555 mnt/dir/sub
        kill -9 $(./adit mounts --json | grep -o '\"pid\": *[0-9]*' | grep -o '[0-9]*')
        while stat mnt/file > stat.txt 2>&1; do sleep 0.1; done
        ./adit umount mnt
        test \"$(./adit cat vault /dir/read --password-file password)\" = read
        test \"$(./adit cat vault /dir/none --password-file password)\" = none
        test \"$(./adit cat vault /dir/sub/file --password-file password)\" = below";
    user.run(as_user).expect(0);
}

/// The link that an installation makes, for the time of a test. What was there before comes back, from the next run if
/// this one is killed.
struct HelperLink {
    link: PathBuf,
    saved: PathBuf,
}

impl HelperLink {
    fn make() -> HelperLink {
        let made = HelperLink { link: "/sbin/mount.fuse.adit".into(), saved: "/sbin/mount.fuse.adit.saved".into() };
        if made.saved.symlink_metadata().is_err() && made.link.symlink_metadata().is_ok() {
            fs::rename(&made.link, &made.saved).unwrap();
        }
        let _ = fs::remove_file(&made.link);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_adit"), &made.link).unwrap();
        made
    }
}

impl Drop for HelperLink {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.link);
        let _ = fs::rename(&self.saved, &self.link);
    }
}

#[test]
fn mounted_by_mount_8() {
    let Some(m) = Mounts::new() else { return };
    if !is_root("mount(8), and to install its link,") {
        return;
    }
    let _link = HelperLink::make();
    let mount = |options: String| {
        let mut command = Command::new("mount");
        command.env("XDG_RUNTIME_DIR", m.bench.path("run")).env("XDG_STATE_HOME", m.bench.path("state"));
        command.args(["-t", "fuse.adit", m.bench.vault_str(), &m.bench.str("mnt"), "-o", &options]);
        run(command, b"")
    };
    let password = m.bench.password_str();
    mount(format!("noauto,nofail,x-test,password_file={password}")).expect(0);
    assert!(is_mounted(&m.mnt()));
    assert!(mount_line(&m.mnt()).is_some_and(|line| line.contains("fuse.adit")));
    let umount = Command::new("umount").arg(m.mnt()).start_and_wait().unwrap();
    assert!(umount.success());
    eventually("its process ends", || m.bench.mounts().is_empty());
    // A fake mount asks nothing and mounts nothing, also with other letters in the same word.
    for fake in ["-f", "-fv", "-sfnv"] {
        let mut command = Command::new("/sbin/mount.fuse.adit");
        command
            .args([m.bench.vault_str(), &m.bench.str("mnt"), fake, "-o", "rw"])
            .envs(m.bench.command().get_envs().filter_map(|(k, v)| Some((k, v?))));
        run(command, b"").expect(0);
        assert!(!is_mounted(&m.mnt()), "{fake}");
    }
    fs::write(m.bench.path("wrong"), "wrong").unwrap();
    let failed = mount(format!("password_file={}", m.bench.str("wrong")));
    assert_ne!(failed.code, Some(0));
    assert!(failed.stderr.contains("wrong password"), "{}", failed.stderr);
    has_what_root_gives_and_is_remounted(&m.bench);
}

/// Device nodes and set-id programs, which mount(8) does not name; and `remount`.
fn has_what_root_gives_and_is_remounted(bench: &Bench) {
    let mount8 = |args: &[&str]| {
        let mut command = Command::new("mount");
        command.env("XDG_RUNTIME_DIR", bench.path("run")).env("XDG_STATE_HOME", bench.path("state")).args(args);
        run(command, b"")
    };
    let flags = |mnt: &str| -> Vec<String> {
        let line = mount_line(Path::new(mnt)).unwrap();
        line.split(' ').nth(5).unwrap().split(',').map(str::to_owned).collect()
    };
    let has = |mnt: &str, flag: &str| flags(mnt).iter().any(|found| found == flag);
    let disk = SmallDisk::mount(bench.path("disk"), "64M");
    let user_disk = SmallDisk::mount(bench.path("user-disk"), "64M,nosuid,nodev");
    for (disk, is_safe) in [(&disk, false), (&user_disk, true)] {
        let (volume, mnt) = (disk.0.join("box"), bench.str("mnt"));
        let volume = volume.to_str().unwrap();
        bench.run(["volume", "init", volume, "--capacity", "32M"]).expect(0);
        mount8(&["-t", "fuse.adit", "-o", "dev,suid", volume, &mnt]).expect(0);
        assert_eq!((has(&mnt, "nosuid"), has(&mnt, "nodev")), (is_safe, is_safe), "{:?}", flags(&mnt));
        bench.run(["umount", &mnt]).expect(0);
    }
    let (volume, mnt) = (bench.str("disk/box"), bench.str("mnt"));
    let at = |name: &str| Path::new(&mnt).join(name);
    mount8(&["-t", "fuse.adit", "-o", "nodev", &volume, &mnt]).expect(0);
    assert!(has(&mnt, "nodev") && !has(&mnt, "nosuid"), "{:?}", flags(&mnt));
    fs::write(at("f"), "before").unwrap();
    bench.run(["snapshot", "create", &volume, "s"]).expect(0);
    // By the table of mounts, and with nothing but the words.
    let ways = [&["-o", "remount,ro", &mnt][..], &["-t", "fuse.adit", "-o", "remount,ro", &volume, &mnt]];
    for way in ways {
        mount8(way).expect(0);
        assert!(has(&mnt, "ro") && has(&mnt, "nodev") && !has(&mnt, "nosuid"), "{:?}", flags(&mnt));
        let refused = fs::write(at("f"), "after").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        assert_eq!(bench.run(["status", &mnt, "--json"]).expect(0).json()["read_only"], true);
        for verb in [&["create", &volume, "t"][..], &["restore", &volume, "s", "-y"], &["delete", &volume, "s", "-y"]] {
            bench.run(["snapshot"].iter().chain(verb)).expect(1).says("mounted read-only").says("remount,rw");
        }
        bench.run(["volume", "gc", &volume]).expect(1).says("mounted read-only");
        bench.run(["snapshot", "list", &volume]).expect(0);
        mount8(&["-o", "remount,rw", &mnt]).expect(0);
        assert!(has(&mnt, "rw") && has(&mnt, "nodev") && !has(&mnt, "nosuid"), "{:?}", flags(&mnt));
        fs::write(at("f"), "after").unwrap();
    }
    bench.run(["snapshot", "create", &volume, "t"]).expect(0);
    bench.run(["umount", &mnt]).expect(0);
    // What was opened to be read cannot be written.
    mount8(&["-t", "fuse.adit", "-o", "ro", &volume, &mnt]).expect(0);
    assert!(mount8(&["-o", "remount,rw", &mnt]).says("was opened to be read").code != Some(0));
    assert!(has(&mnt, "ro"));
    bench.run(["umount", &mnt]).expect(0);
    assert!(
        mount8(&["-t", "fuse.adit", "-o", "remount,ro", &volume, &mnt]).code != Some(0),
        "nothing is mounted there"
    );
}
