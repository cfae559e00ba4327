//! What the process behind a mount shows and keeps: its log, its keys, its password, its memory, and what is left when it
//! has ended.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use adit_testkit::{Rng, scaled, seeds};

use common::{PASSWORD, Ran, Start, eventually, pattern, run};
use mounts::{Copied, Mounts, Off, OrdinaryUser, is_root, is_running, status};

const MIB: u64 = 1 << 20;

fn log(m: &Mounts) -> String {
    fs::read_to_string(m.bench.path("state/adit/log")).unwrap()
}

/// Mounts with the password from there.
fn mount_with(m: &Mounts, more: &[&str], variable: Option<&str>, stdin: &str) -> Ran {
    let mut command = m.bench.command();
    command.args(["--log", "trace", "mount", m.bench.vault_str(), "mnt"]).args(more);
    if let Some(name) = variable {
        command.env(name, PASSWORD);
    }
    run(command, stdin.as_bytes())
}

#[test]
fn a_process_all_of_whose_descriptors_are_in_use_says_so_and_can_be_asked_and_ended() {
    let Some(m) = Mounts::new() else { return };
    let mut command = m.bench.command_of("sh");
    let script = "ulimit -n 256; exec \"$@\"";
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_adit"), "mount", m.bench.vault_str(), "mnt"]);
    command.args(["--password-file", m.bench.password_str()]);
    run(command, b"").expect(0);
    let mut open = Vec::new();
    let refused = loop {
        match File::create(m.at(&format!("f{}", open.len()))) {
            Ok(file) => open.push(file),
            Err(e) => break e,
        }
        assert!(open.len() < 300, "there is a limit");
    };
    assert_eq!(refused.raw_os_error(), Some(libc::ENFILE), "{refused}, with {} open", open.len());
    m.bench.run(["status", "mnt"]).expect(0);
    m.umount_with(&[]).expect(7).says("busy");
    m.umount_with(&["--lazy"]).expect(0);
    drop(open);
    eventually("its last close is its end", || m.bench.mounts().is_empty());
    m.expect_sound();
}

#[test]
fn the_log_names_the_file_that_is_damaged() {
    let Some(m) = Mounts::new() else { return };
    let long = format!("also-secret{}", "-long".repeat(40));
    m.mount(&[]).expect(0);
    for name in ["secret-name", &long] {
        fs::write(m.at(name), pattern(100_000)).unwrap();
    }
    fs::write(m.at("sound"), "sound").unwrap();
    m.umount();
    let big = |path: &std::path::PathBuf| fs::metadata(path).unwrap().len() > 90_000;
    let damaged: Vec<_> = m.bench.content_files().into_iter().filter(big).collect();
    assert_eq!(damaged.len(), 2);
    for path in &damaged {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 70_000).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 70_000).unwrap();
    }
    m.mount(&[]).expect(0);
    for name in ["secret-name", &long] {
        let error = fs::read(m.at(name)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
        let mut start = vec![0; 60_000];
        File::open(m.at(name)).unwrap().read_exact_at(&mut start, 0).unwrap();
        assert!(start == pattern(100_000)[..60_000], "the chunks before it are readable");
    }
    assert_eq!(fs::read_to_string(m.at("sound")).unwrap(), "sound");
    m.umount();
    let log = log(&m);
    for path in &damaged {
        let path = path.strip_prefix(m.bench.vault()).unwrap().to_str().unwrap();
        let line = log.lines().find(|line| line.contains(path));
        assert!(line.is_some_and(|line| line.contains("ERROR")), "{path} is not in: {log}");
    }
    assert!(!log.contains("secret"), "a cleartext name is in the log: {log}");
    // Which file that is tells the check, to whom has the password.
    let checked = m.bench.run(["vault", "check", m.bench.vault_str(), "--password-file", m.bench.password_str()]);
    let said = format!("{}{}", checked.text(), checked.stderr);
    assert!(said.contains("/secret-name") && said.contains(&long), "{said}");
}

#[test]
fn keys_are_locked_and_in_no_dump() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::write(m.at("f"), "f").unwrap();
    let limits = fs::read_to_string(format!("/proc/{}/limits", m.pid())).unwrap();
    let core: Vec<_> = limits.lines().filter(|line| line.starts_with("Max core file size")).collect();
    assert!(core.len() == 1 && core[0].split_ascii_whitespace().skip(4).take(2).eq(["0", "0"]), "{core:?}");
    if is_root("reading the map of a process that is not dumpable") {
        // One line of flags for each part of the map: `lo` is locked, `dd` is left out of dumps.
        let map = fs::read_to_string(format!("/proc/{}/smaps", m.pid())).unwrap();
        let flags: Vec<Vec<&str>> = map
            .lines()
            .filter_map(|line| line.strip_prefix("VmFlags:"))
            .map(|flags| flags.split_ascii_whitespace().collect())
            .collect();
        let locked = flags.iter().filter(|flags| flags.contains(&"lo")).count();
        assert!(locked > 0, "no page is locked: {flags:?}");
        assert!(flags.iter().all(|flags| !flags.contains(&"lo") || flags.contains(&"dd")), "{flags:?}");
    }
    // The keys of open files as well, which are the crypto library's to keep.
    let before = status(m.pid(), "VmLck");
    let open: Vec<File> = (0..200).map(|n| File::create(m.at(&format!("f{n}"))).unwrap()).collect();
    let more = status(m.pid(), "VmLck") - before;
    assert!((100_000..MIB).contains(&more), "{more} bytes for the keys of 200 files");
    drop(open);
    m.umount();
}

#[test]
fn a_password_from_anywhere_is_nowhere() {
    let Some(m) = Mounts::new() else { return };
    let password = m.bench.password_str();
    let command = format!("cat {password}");
    let ways: [(&[&str], Option<&str>, &str); 4] = [
        (&["--password-file", password], None, ""),
        (&["--password-stdin"], None, PASSWORD),
        (&["--password-command", &command], None, ""),
        (&["--password-env", "VAULT_PASSWORD"], Some("VAULT_PASSWORD"), ""),
    ];
    for (how, variable, stdin) in ways {
        mount_with(&m, how, variable, stdin).expect(0);
        fs::write(m.at("f"), "f").unwrap();
        let proc = format!("/proc/{}", m.pid());
        for file in ["cmdline", "environ"] {
            // Not dumpable: only root may read the environment.
            let Ok(bytes) = fs::read(format!("{proc}/{file}")) else { continue };
            assert!(!contains(&bytes, PASSWORD), "{how:?}: {file}");
        }
        m.umount();
        assert!(log(&m).contains("is mounted on") && !log(&m).contains(PASSWORD), "{how:?}");
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// An ordinary user's mount calls `fusermount3`: what that is started with goes into a file.
#[test]
fn a_helper_is_told_no_password() {
    let Some(user) = OrdinaryUser::new() else { return };
    let at = |name: &str| user.path(name);
    fs::create_dir(at("bin")).unwrap();
    let helper = "#!/bin/sh\n{ echo \"called with $*\"; env; } >> seen\nexec /usr/bin/fusermount3 \"$@\"\n";
    fs::write(at("bin/fusermount3"), helper).unwrap();
    fs::set_permissions(at("bin/fusermount3"), fs::Permissions::from_mode(0o755)).unwrap();
    let as_user = "./adit vault init vault --password-env VAULT_PASSWORD
        ./adit mount vault mnt --password-env VAULT_PASSWORD
        trap './adit umount --no-flush --yes mnt 2>/dev/null || true' EXIT
        pid=$(./adit mounts --json | grep -o '\"pid\": *[0-9]*' | grep -o '[0-9]*')
        # It is root's, though the process is not: nobody may dump or read it.
        test \"$(stat -c %u /proc/$pid/environ)\" = 0
        ./adit umount mnt
        log=.local/state/adit/log
        ! grep 'could be swapped' $log
        # Where nothing may be locked it is said, and all works.
        ulimit -l 0
        ./adit mount vault mnt --password-env VAULT_PASSWORD
        echo content > mnt/file
        test \"$(cat mnt/file)\" = content
        ./adit umount mnt
        grep -q 'could be swapped' $log";
    let mut command = user.command("", as_user);
    command.env("PATH", format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap()));
    command.env("VAULT_PASSWORD", PASSWORD).env("KEPT", "kept");
    run(command, b"").expect(0);
    let seen = fs::read_to_string(at("seen")).unwrap();
    assert!(seen.contains("called with") && seen.contains("KEPT=kept"), "{seen}");
    assert!(!seen.contains(PASSWORD) && !seen.contains("VAULT_PASSWORD"), "{seen}");
}

/// The peak of the process's own memory while a file of four times the budget is overwritten at random places.
#[test]
fn memory_stays_within_the_budget() {
    const BUDGET: u64 = 64 * MIB;
    const PIECE: usize = 48 << 10;
    let Some(m) = Mounts::new() else { return };
    if !is_root("starting the count of another process's peak anew") {
        return;
    }
    let len = 4 * BUDGET;
    m.mount(&["-o", "memory=64M"]).expect(0);
    let pid = m.pid();
    // The key derivation took its memory before the mount stood, and has given it back.
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    let file = File::create_new(m.at("large")).unwrap();
    file.set_len(len).unwrap();
    let seed = seeds(1).next().expect("one seed");
    let mut rng = Rng::new(seed);
    let mut piece = vec![0; PIECE];
    let mut offsets = Vec::new();
    for n in 0..scaled((len as usize / 2) / PIECE) {
        rng.fill(&mut piece[..64]);
        let at = rng.below(len - PIECE as u64);
        file.write_all_at(&piece, at).unwrap_or_else(|e| panic!("ADIT_TEST_SEED={seed}: piece {n}: {e}"));
        offsets.push((at, piece[..64].to_vec()));
    }
    file.sync_all().unwrap();
    let mut back = vec![0; PIECE];
    for (at, head) in offsets.iter().rev().take(200) {
        file.read_exact_at(&mut back, *at).unwrap();
        let overwritten = offsets.iter().any(|(other, _)| *other != *at && other.abs_diff(*at) < PIECE as u64);
        assert!(overwritten || back[..64] == head[..], "ADIT_TEST_SEED={seed}: at {at}");
    }
    // The peak counts pages of the program's file as well, which are no memory of its own.
    let (peak, program) = (status(pid, "VmHWM"), status(pid, "RssFile"));
    eprintln!("peak {} KiB, of that the program's file {} KiB", peak >> 10, program >> 10);
    assert!(peak - program <= BUDGET, "ADIT_TEST_SEED={seed}: {peak} - {program} bytes");
    drop(file);
    m.umount();
}

fn journals(state: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![state.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path());
            } else if name.starts_with("journal-") {
                found.push(name);
            }
        }
    }
    found
}

/// A background server keeps none of its caller's locks and pipes; the password may come through one of them.
#[test]
fn a_mount_in_the_background_keeps_nothing_that_its_caller_had_open() {
    let Some(m) = Mounts::new() else { return };
    let adit = env!("CARGO_BIN_EXE_adit");
    let ways = [
        format!("exec 9>lock; flock 9; {adit} mount vault mnt --password-file password"),
        // Its end is that of `cat`, which waits for everybody who could still write.
        format!("{{ {adit} mount vault mnt --password-file password 3>&1 >/dev/null; }} | cat"),
        format!("{adit} mount vault mnt --password-file <(cat password)"),
        format!("exec 7<password; {adit} mount vault mnt --password-file /dev/fd/7"),
    ];
    for way in ways {
        let mut command = m.bench.command_of("bash");
        command.args(["-euc", &way]);
        run(command, b"").expect(0);
        fs::write(m.at("f"), "f").unwrap();
        let lock = File::create(m.bench.path("lock")).unwrap();
        assert!(lock.try_lock().is_ok(), "{way}");
        m.umount();
    }
    // In the foreground it is the caller's business: the lock is held for as long as it is mounted.
    let mut command = m.bench.command_of("bash");
    let line = format!("exec 9>lock; flock 9; exec {adit} mount vault mnt --foreground --password-file password");
    let mut server = command.args(["-euc", &line]).stderr(std::process::Stdio::null()).start().unwrap();
    eventually("it is mounted", || !m.bench.mounts().is_empty());
    assert!(File::create(m.bench.path("lock")).unwrap().try_lock().is_err());
    m.umount();
    assert!(server.wait().unwrap().success());
}

/// A stopped process answers nobody; no verb waits for it, each says so and how to go on, and `--lazy` needs it for nothing.
#[test]
fn a_process_that_does_not_answer_is_told_and_detached_without_it() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::write(m.at("f"), "content").unwrap();
    let pid = m.pid();
    let signal = |signal| {
        // SAFETY: a plain system call; the process is one that this test started, and is not reaped by another.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    };
    signal(libc::SIGSTOP);
    let (mnt, silent) = (m.bench.str("mnt"), format!("process {pid} does not answer"));
    for verb in ["status", "stats", "umount"] {
        let ran = m.bench.run([verb, "mnt"]).expect(1);
        ran.says(&format!("{mnt}: {silent}")).says(&format!("kill -KILL {pid}, then adit umount {mnt}"));
    }
    for verb in ["find", "info"] {
        let more = (verb == "find").then_some("name");
        m.bench.run(["index", verb, "mnt"].into_iter().chain(more)).expect(1).says(&silent);
    }
    let mounts = m.bench.run(["mounts"]).expect(0).text();
    assert!(mounts.contains(&format!("{silent}: ")) && mounts.contains(&mnt), "{mounts}");
    assert_eq!(m.bench.mounts()[0]["answers"], false);
    let doctor = m.bench.run(["doctor"]).text();
    assert!(doctor.contains(&silent), "{doctor}");
    // Also where no registry tells of it, and only the kernel could be asked.
    let mut elsewhere = m.bench.command();
    elsewhere.env("XDG_RUNTIME_DIR", m.bench.path("none")).args(["mount", m.bench.vault_str(), "mnt"]);
    elsewhere.args(["--password-file", m.bench.password_str()]);
    run(elsewhere, b"").expect(7).says("mounted there already");
    m.umount_with(&["--lazy"]).expect(0).says(&silent);
    assert!(mounts::mount_line(&m.mnt()).is_none());
    // It goes on, and ends as one that was detached does.
    signal(libc::SIGCONT);
    eventually("it ends", || m.bench.mounts().is_empty());
    assert_eq!(m.bench.open("cat", &["/f"]).expect(0).text(), "content");
    // Killed as the message says.
    m.mount(&[]).expect(0);
    let pid = m.pid();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
    m.kill_and_leave();
    m.umount();
}

/// The journal goes last, when the whole vault is durable; while it is there, the next mount would recover.
#[test]
fn an_unmount_that_returned_leaves_nothing_to_do() {
    let Some(m) = Mounts::new() else { return };
    for options in [&[][..], &["-o", "exclusive"]] {
        m.mount(options).expect(0);
        assert_eq!(journals(&m.bench.path("state")).len(), 1);
        for n in 0..20 {
            fs::write(m.at(&format!("f{n}")), pattern(40_000)).unwrap();
        }
        m.umount();
        assert_eq!(journals(&m.bench.path("state")), Vec::<String>::new());
        for n in 0..20 {
            let got = m.bench.open("cat", &[&format!("/f{n}")]).expect(0);
            assert!(got.stdout == pattern(40_000), "f{n}");
        }
    }
}

/// A copy of a mount goes on where it is. The unmount does not wait for that: it says where, and that everything is written.
#[test]
fn an_unmount_does_not_wait_for_where_the_mount_is_elsewhere() {
    if !is_root("bind mounts") {
        return;
    }
    for m in [Mounts::new(), Mounts::volume(&[])] {
        let Some(m) = m else { return };
        let bound = Off(m.bench.path("bound"));
        let at = bound.0.to_str().unwrap().to_owned();
        fs::create_dir(&bound.0).unwrap();
        m.mount(&[]).expect(0);
        let pid = m.pid();
        fs::create_dir(m.at("d")).unwrap();
        fs::write(m.at("d/f"), "f").unwrap();
        assert!(
            std::process::Command::new("mount")
                .arg("--bind")
                .args([m.at("d"), bound.0.clone()])
                .start_and_wait()
                .unwrap()
                .success()
        );
        m.umount_with(&[]).expect(0).says("everything is written").says(&format!("still mounted on {at}"));
        let told = &m.bench.mounts()[0];
        assert_eq!(
            (told["state"].as_str(), told["seen"][0]["mountpoint"].as_str()),
            (Some("elsewhere"), Some(&*at)),
            "{told}"
        );
        assert!(told["seen"][0]["pid"].is_null(), "{told}");
        assert!(m.bench.run(["mounts"]).expect(0).text().contains(&format!("still mounted on {at}")));
        let status = m.bench.run(["status", "mnt"]).expect(0).text();
        assert!(status.contains("elsewhere") && status.contains(&at), "{status}");
        for how in [&[][..], &["--lazy"]] {
            m.umount_with(how).expect(7).says(&format!("still mounted on {at}"));
        }
        fs::write(bound.0.join("g"), "g").unwrap();
        m.bench.run(["umount", "bound"]).expect(0);
        eventually("nothing is mounted, and its process has ended", || !is_running(pid));

        m.mount(&[]).expect(0);
        let pid = m.pid();
        let copied = Copied::of(&m.mnt());
        let holder = format!("on {} in the mount namespace of process {} (sleep)", m.mnt().display(), copied.pid());
        // Not even what is open for writing there is waited for.
        let mut there = std::process::Command::new("nsenter");
        let write = "exec 9> d/open; echo written >&9; touch ready; exec sleep 600";
        there.args(["-t", &copied.pid().to_string(), "-m", "sh", "-c", &format!("cd {}; {write}", m.mnt().display())]);
        let there = common::Killed(there.start().unwrap());
        eventually("it is written", || m.at("ready").exists());
        m.umount_with(&[]).expect(0).says("everything is written").says(&holder);
        let told = &m.bench.mounts()[0];
        let pids: Vec<u64> = told["seen"].as_array().unwrap().iter().filter_map(|seen| seen["pid"].as_u64()).collect();
        assert!(told["state"] == "elsewhere" && pids.contains(&copied.pid().into()), "{told}");
        // What was written before the unmount survives the process.
        let killed = m.pid();
        // SAFETY: a plain system call; the process is one that this test started.
        assert_eq!(unsafe { libc::kill(killed, libc::SIGKILL) }, 0);
        eventually("it is gone", || !is_running(pid));
        drop((there, copied));
        m.mount(&[]).expect(0);
        let read = |name: &str| fs::read_to_string(m.at(name)).unwrap();
        assert_eq!((read("d/f"), read("d/g"), read("d/open")), ("f".into(), "g".into(), "written\n".into()));
        m.umount();
    }
}

/// A limit of file sizes (`ulimit -f`, `LimitFSIZE=`) holds for the files behind a mount, too, and is told to whoever writes.
#[test]
fn a_limit_of_file_sizes_is_an_error_and_not_the_end() {
    for (m, is_volume) in [(Mounts::new(), false), (Mounts::volume(&[]), true)] {
        let Some(m) = m else { return };
        let mut command = m.bench.command_of("sh");
        // In units of 512 or 1024 bytes.
        command.args(["-euc", "ulimit -f 60000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_adit"), "mount"]);
        match is_volume {
            true => command.args([&m.bench.str("box"), "mnt"]),
            false => command.args([m.bench.vault_str(), "mnt", "--password-file", m.bench.password_str()]),
        };
        run(command, b"").expect(0);
        fs::write(m.at("f"), "f").unwrap();
        let write = |number: u64| {
            // A file of the host is what becomes too long: that of the volume, or that of the one file.
            let (name, at) = if is_volume { (format!("big{number}"), 0) } else { ("big".to_owned(), number << 20) };
            let file = File::options().create(true).truncate(false).write(true).open(m.at(&name))?;
            file.write_all_at(&pattern(1 << 20), at)?;
            file.sync_all()
        };
        let errors: Vec<_> = (0..90).filter_map(|number| write(number).err()).take(3).collect();
        let told = [libc::EFBIG, libc::EIO, libc::ENOSPC, libc::EROFS].map(Some);
        assert!(errors.len() == 3 && errors.iter().all(|e| told.contains(&e.raw_os_error())), "{errors:?}");
        assert_eq!(fs::read_to_string(m.at("f")).unwrap(), "f", "the mount lives on");
        m.bench.run(["umount", "mnt"]);
        eventually("it is unmounted", || mounts::mount_line(&m.mnt()).is_none());
        m.expect_sound();
    }
}

/// A process that does not get the descriptors that a mount needs leaves nothing at the mountpoint.
#[test]
fn a_mount_that_lacks_what_it_needs_leaves_nothing() {
    let Some(m) = Mounts::new() else { return };
    let memory = ["-v 80000", "-v 120000", "-v 150000", "-v 180000", "-v 220000", "-v 260000", "-v 400000"];
    for limit in memory.into_iter().chain(["-n 8", "-n 16", "-n 24", "-n 32"]) {
        let mut command = m.bench.command_of("sh");
        let script = format!("ulimit {limit}; exec \"$0\" \"$@\"");
        command.args(["-euc", &script, env!("CARGO_BIN_EXE_adit"), "mount", m.bench.vault_str(), "mnt"]);
        command.args(["--password-file", m.bench.password_str()]);
        let ran = run(command, b"");
        if ran.code == Some(0) {
            // Without memory for what comes later it may be at its end all the same.
            m.umount_with(&[]);
        }
        assert!(mounts::mount_line(&m.mnt()).is_none(), "{limit}: {}", ran.stderr);
    }
}

/// Whoever makes a mount on demand (`x-systemd.automount`) waits for nobody of the process group that was asked to: so all of the command belongs to
/// it until the mount is usable.
#[test]
fn a_mount_is_made_in_the_process_group_of_its_caller() {
    let Some(m) = Mounts::volume(&[]) else { return };
    // Parent, process group and session.
    let relatives = |pid: u32| -> Option<[u32; 3]> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace().skip(1).map(|field| field.parse().ok());
        Some([fields.next()??, fields.next()??, fields.next()??])
    };
    let child_of = |parent: u32| {
        let pids =
            fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.into_iter().find(|pid| relatives(*pid).is_some_and(|[of, ..]| of == parent))
    };
    let held = File::options().read(true).write(true).open(m.bench.path("box")).unwrap();
    rustix::fs::fcntl_lock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut command = m.bench.command();
    let mut caller = command.args(["mount", "box", "mnt"]).start().unwrap();
    let mut serving = None;
    eventually("it has gone to the background, and waits for the file", || {
        serving = child_of(caller.id());
        serving.is_some()
    });
    let serving = serving.unwrap();
    let [_, group, session] = relatives(serving).unwrap();
    let [_, of_caller, session_of_caller] = relatives(caller.id()).unwrap();
    assert_eq!((group, session), (of_caller, session_of_caller));
    drop(held);
    assert!(caller.wait().unwrap().success());
    let [_, group, session] = relatives(serving).unwrap();
    assert_eq!((group, session), (serving, serving), "a key of the terminal does not reach it");
    m.umount();
}

/// A mount whose process lives in a pid namespace of its own. Inside, its number is that of the process `victim` here.
struct Foreign {
    _namespace: common::Killed,
}

impl Foreign {
    fn mount(m: &Mounts, victim: u32) -> Foreign {
        let script = format!("echo {} > /proc/sys/kernel/ns_last_pid; \"$@\" && exec sleep 600", victim - 2);
        let mut command = m.bench.command_of("unshare");
        command.args(["-pf", "--kill-child", "sh", "-euc", &script, "sh", env!("CARGO_BIN_EXE_adit"), "mount"]);
        command.args([m.bench.str("box"), m.bench.str("mnt")]).stdout(std::process::Stdio::null());
        let foreign = Foreign { _namespace: common::Killed(command.start().unwrap()) };
        eventually("it is mounted", || mounts::mount_line(&m.mnt()).is_some() && !m.bench.mounts().is_empty());
        foreign
    }
}

/// The number that a process has in its own namespace is another process's here: that one is neither named, nor waited for, nor killed.
#[test]
fn a_process_of_another_pid_namespace_is_not_taken_for_one_here() {
    let Some(m) = Mounts::volume(&[]) else { return };
    if !is_root("a pid namespace, and the numbers in it") {
        return;
    }
    let victim = common::Killed(std::process::Command::new("sleep").arg("150").start().unwrap());
    let pid = victim.0.id();
    for how in [&[][..], &["--no-flush", "--yes"]] {
        let foreign = Foreign::mount(&m, pid);
        let told = m.bench.run(["mounts"]).expect(0).text();
        assert!(told.contains(&format!("another pid namespace ({pid} there)")), "the numbers are the same: {told}");
        assert!(!told.contains(&format!("process {pid}")), "{told}");
        let [listed] = &m.bench.mounts()[..] else { panic!("one mount") };
        assert!(listed["pid"].is_null() && listed["answers"] == true, "{listed}");
        assert!(m.bench.run(["status", "mnt", "--json"]).expect(0).json()["pid"].is_null());
        fs::write(m.at(&format!("f{}", how.len())), "content").unwrap();
        m.umount_with(how).expect(0);
        assert!(mounts::mount_line(&m.mnt()).is_none() && m.bench.mounts().is_empty());
        // It has ended: its volume can be opened.
        m.bench.run(["volume", "check", &m.bench.str("box")]).expect(0);
        assert!(is_running(pid as i32), "somebody else was killed, or was waited for until its end");
        drop(foreign);
    }
    m.mount(&[]).expect(0);
    assert_eq!(fs::read(m.at("f0")).unwrap(), b"content");
}

/// Has nothing of the machine written to but this folder: neither `/run` nor `/tmp`, where mounts are announced.
const ANNOUNCE_NOWHERE: &str = "
    mount --bind \"$PWD\" \"$PWD\"
    mount --rbind /tmp /tmp && mount -o remount,bind,ro /tmp
    mount --rbind /run /run && mount -o remount,bind,ro /run
    cd \"$PWD\"
    unset XDG_RUNTIME_DIR
";

/// What every verb that is asked for a mount finds it by, where it could be announced in no folder.
const ASK_EVERY_VERB: &str = "
    ./adit volume init box > log 2>&1
    ./adit mount box mnt --log-file mount.log
    grep -q 'announced in no folder' mount.log || { echo 'it is announced'; exit 1; }
    ./adit status mnt && ./adit mounts | grep \"$PWD/mnt\" && ./adit stats mnt > /dev/null
    echo content > mnt/f && ./adit snapshot create mnt one && ./adit snapshot list box | grep one
    ./adit umount mnt
    ./adit volume check box
    ! ./adit status mnt
";

#[test]
fn a_mount_that_is_announced_nowhere_is_found_by_every_verb() {
    let Some(user) = OrdinaryUser::new() else { return };
    run(user.command(ANNOUNCE_NOWHERE, ASK_EVERY_VERB), b"").expect(0);
    // As root, which the helper is not needed for; and with a process in another network namespace, whom only the mount leads to.
    let Some(m) = Mounts::volume(&[]) else { return };
    fs::remove_file(m.bench.path("box")).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_adit"), m.bench.path("adit")).unwrap();
    let mut command = m.bench.command_of("unshare");
    let script = format!("{}\n{ANNOUNCE_NOWHERE}\n{ASK_EVERY_VERB}", mounts::LET_GO_OF_COPIES);
    command.args(["-m", "sh", "-euc", &script]).env("XDG_RUNTIME_DIR", "");
    run(command, b"").expect(0);
    let apart = ASK_EVERY_VERB.replace("./adit mount ", "unshare -n ./adit mount ");
    let index =
        "rm -f box mount.log; mkdir -p many; for i in $(seq 2000); do echo > many/a-file-with-a-long-name-$i; done";
    let apart = apart.replace(
        "echo content",
        "cp -r many mnt/ && test $(./adit index find mnt long-name | wc -l) = 2000 && echo content",
    );
    let mut command = m.bench.command_of("unshare");
    let script = format!("{}\n{ANNOUNCE_NOWHERE}\n{index}\n{apart}", mounts::LET_GO_OF_COPIES);
    command.args(["-m", "sh", "-euc", &script]).env("XDG_RUNTIME_DIR", "");
    run(command, b"").expect(0).says("another network namespace");
}

/// As a container or the publish step of a storage driver has it.
#[test]
fn a_mount_is_found_at_every_place() {
    let Some(m) = Mounts::volume(&[]) else { return };
    if !is_root("bind mounts") {
        return;
    }
    m.mount(&[]).expect(0);
    fs::create_dir(m.at("d")).unwrap();
    fs::write(m.at("d/f"), "content").unwrap();
    let bind = |what: &Path, at: &str| {
        let bound = Off(m.bench.path(at));
        fs::create_dir(&bound.0).unwrap();
        let mut command = std::process::Command::new("mount");
        command.arg("--bind").args([what, &bound.0]);
        assert!(command.start_and_wait().unwrap().success());
        bound
    };
    let (whole, part) = (bind(&m.mnt(), "whole"), bind(&m.at("d"), "part"));
    for place in ["whole", "part"] {
        let told = m.bench.run(["status", place, "--json"]).expect(0).json();
        assert_eq!(told["mountpoint"].as_str(), m.mnt().canonicalize().unwrap().to_str());
        let seen: Vec<_> = told["seen"].as_array().unwrap().iter().map(|seen| seen["mountpoint"].as_str()).collect();
        let places = [&whole, &part].map(|bound| bound.0.canonicalize().unwrap());
        assert_eq!(seen, places.each_ref().map(|place| place.to_str()), "{told}");
        m.bench.run(["stats", place]).expect(0);
    }
    m.bench.run(["snapshot", "create", "whole", "one"]).expect(0);
    // What is about all of it does not take a part for that.
    for verb in [&["create", "part", "two"][..], &["restore", "part", "one", "--yes"]] {
        m.bench.run(["snapshot"].iter().chain(verb)).expect(2).says(m.bench.str("mnt").as_str());
    }
    assert_eq!(
        m.bench.run(["index", "find", "part", "f"]).expect(0).text(),
        m.bench.run(["index", "find", "mnt/d", "f"]).expect(0).text()
    );
    // A place alone is unmounted, and the mount lives on; what was written there is stored.
    let mut kept = File::create(m.at("d/g")).unwrap();
    std::io::Write::write_all(&mut kept, &[b'g'; 3 << 20]).unwrap();
    m.bench.run(["umount", "part"]).expect(0).says("everything is written");
    let dirty = m.bench.run(["status", "mnt", "--json"]).expect(0).json();
    assert_eq!(dirty["dirty_bytes"], 0, "{dirty}");
    assert!(fs::metadata(m.bench.path("box")).unwrap().blocks() * 512 > 3 << 20, "the kernel held it");
    drop(kept);
    m.bench.run(["status", "mnt"]).expect(0);
    // Whoever looks for it where it is not announced asks the mount itself.
    let elsewhere = |args: &[&str]| {
        let mut command = m.bench.command();
        command.env("XDG_RUNTIME_DIR", m.bench.path("none")).args(args);
        run(command, b"")
    };
    elsewhere(&["status", "whole"]).expect(0);
    let listed = elsewhere(&["mounts"]).expect(0).text();
    assert!(listed.contains(&m.bench.str("mnt")), "{listed}");
    // In a namespace of its own it is the copy there that goes.
    let mut copied = m.bench.command_of("unshare");
    copied.args(["-m", "--propagation", "private", env!("CARGO_BIN_EXE_adit"), "umount", "mnt"]);
    run(copied, b"").expect(0).says("still mounted on");
    assert!(mounts::mount_line(&m.mnt()).is_some());
    // In a chroot, where its file has another path, nobody takes it for one that was removed.
    let mut inside = m.bench.command_of("unshare");
    let script = format!(
        "{}
        for folder in proc usr lib lib64 bin; do test -e /$folder || continue; mkdir root/$folder; mount --rbind /$folder root/$folder; done
        cp {} root/adit && mount --bind mnt root/mnt
        chroot root /adit status /mnt && chroot root /adit mounts && chroot root /adit snapshot create /mnt two",
        mounts::LET_GO_OF_COPIES,
        env!("CARGO_BIN_EXE_adit")
    );
    fs::create_dir_all(m.bench.path("root/mnt")).unwrap();
    inside.args(["-m", "--propagation", "private", "sh", "-euc", &script]).env("KEEP", m.bench.path("mnt"));
    let told = run(inside, b"").expect(0).text();
    assert!(!told.contains("removed"), "{told}");
    elsewhere(&["umount", "mnt"]).expect(0).says("still mounted on");
    elsewhere(&["umount", "whole"]).expect(0);
    m.bench.run(["volume", "check", &m.bench.str("box")]).expect(0);
    drop((whole, part));
}
