//! The program without a mount: what it does, what it prints, and with which code it ends.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use common::{Bench, PASSWORD, facts, make_tree};

#[test]
fn cli_round_trip_keeps_everything() {
    for cipher in ["siv-gcm", "siv-ctrmac"] {
        let bench = Bench::bare();
        let init = ["vault", "init", bench.vault_str(), "--cipher", cipher, "--password-file", bench.password_str()];
        bench.run(init).expect(0);
        let tree = bench.path("tree");
        make_tree(&tree);
        bench.open("put", &["tree", "/"]).expect(0);
        bench.open("get", &["/tree", "back"]).expect(0);
        assert_eq!(facts(&tree), facts(&bench.path("back")), "{cipher}");
        // Into a folder that exists, and everything at once.
        fs::create_dir(bench.path("all")).unwrap();
        bench.open("get", &["/", "all"]).expect(0);
        bench.open("get", &["/tree/deep", "all"]).expect(0);
        assert_eq!(facts(&tree), facts(&bench.path("all/tree")), "{cipher}");
        assert_eq!(facts(&tree.join("deep")), facts(&bench.path("all/deep")), "{cipher}");
        // Again over itself: the same.
        bench.open("put", &["tree", "/"]).expect(0);
        bench.open("get", &["/tree", "again"]).expect(0);
        assert_eq!(facts(&tree), facts(&bench.path("again")), "{cipher}");
    }
}

#[test]
fn cli_put_names_a_file_or_fills_a_folder() {
    let bench = Bench::new();
    fs::write(bench.path("a"), "a").unwrap();
    fs::write(bench.path("b"), "b").unwrap();
    bench.open("put", &["a", "/renamed"]).expect(0);
    bench.open("put", &["a", "b", "/nowhere"]).expect(1).says("mkdir");
    bench.open("mkdir", &["/dir"]).expect(0);
    bench.open("put", &["a", "b", "/dir"]).expect(0);
    bench.open("put", &["a", "/dir/none/x"]).expect(1);
    bench.open("put", &["--no-replace", "b", "/renamed"]).expect(1);
    assert_eq!(bench.open("cat", &["/renamed", "/dir/a", "/dir/b"]).expect(0).text(), "aab");
    bench.open("put", &["missing", "a", "/dir"]).expect(1).says("missing");
    // The folder that holds the vault goes in without the vault.
    bench.open("put", &[".", "/everything"]).expect(0).says("the store itself");
    let listed = bench.open("ls", &["/everything"]).expect(0).text();
    assert!(listed.contains("password") && !listed.contains("vault"), "{listed}");
}

/// A vault has one name where the host has two. The first stays, the second is told, and all else is copied.
#[test]
fn cli_put_keeps_the_first_of_two_names_that_are_one() {
    let bench = Bench::new();
    let (composed, apart) = ("caf\u{e9}", "cafe\u{301}");
    for (path, content) in [
        (format!("files/{apart}"), "first"),
        (format!("files/{composed}"), "second"),
        ("files/other".to_owned(), "other"),
        (format!("folders/{apart}/a"), "a"),
        (format!("folders/{composed}/b"), "b"),
    ] {
        let path = bench.path(&path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    for _again in 0..2 {
        let put = bench.open("put", &["files", "folders", "/"]).expect(1);
        let put = put.says(&format!("/files/{composed}: exists already")).says(&format!("/folders/{composed}: exists"));
        put.says(&format!("the same there as {apart}, which was copied before"));
        let content = bench.open("cat", &[&format!("/files/{composed}"), "/files/other"]).expect(0).text();
        assert_eq!(content, "firstother");
        assert_eq!(bench.open("ls", &[&format!("/folders/{composed}")]).expect(0).text(), "a\n");
    }
    // Given one by one, and of one spelling.
    let (first, second) = (format!("files/{composed}"), format!("files/{apart}"));
    bench.open("put", &[&first, &second, "/"]).expect(1).says("the same there as");
    assert_eq!(bench.open("cat", &[&format!("/{apart}")]).expect(0).text(), "second");
    fs::write(bench.path("other"), "another").unwrap();
    bench.open("put", &["other", "files/other", "/"]).expect(1).says("another one of that name");
    assert_eq!(bench.open("cat", &["/other"]).expect(0).text(), "another");
}

#[test]
fn cli_get_writes_through_no_link() {
    let bench = Bench::new();
    bench.put_tree(&[("t/d/f", "theirs")]);
    fs::create_dir_all(bench.path("dest/t")).unwrap();
    fs::create_dir(bench.path("outside")).unwrap();
    std::os::unix::fs::symlink(bench.path("outside"), bench.path("dest/t/d")).unwrap();
    bench.open("get", &["/t", "dest"]).expect(1).says("symbolic link");
    assert!(fs::read_dir(bench.path("outside")).unwrap().next().is_none());
}

#[test]
fn cli_links_do_not_leave_the_vault() {
    let bench = Bench::new();
    std::os::unix::fs::symlink("/etc/passwd", bench.path("l")).unwrap();
    bench.open("put", &["l", "/"]).expect(0);
    bench.open("cat", &["/l"]).expect(1).says("leads out of the tree");
    bench.open("ls", &["/../.."]).expect(1).says("leads out of the tree");
}

#[test]
fn cli_json_shapes() {
    let bench = Bench::new();
    fs::create_dir(bench.path("d")).unwrap();
    fs::write(bench.path("d/f"), "12345").unwrap();
    fs::set_permissions(bench.path("d/f"), PermissionsExt::from_mode(0o604)).unwrap();
    std::os::unix::fs::symlink("f", bench.path("d/l")).unwrap();
    bench.open("put", &["d", "/"]).expect(0);
    let listed = bench.open("ls", &["/d", "--json"]).expect(0).json();
    let mtime = fs::metadata(bench.path("d/f")).unwrap();
    let file = &listed[0];
    assert_eq!((file["path"].as_str(), file["kind"].as_str()), (Some("/d/f"), Some("file")));
    assert_eq!((file["size"].as_u64(), file["mode"].as_u64()), (Some(5), Some(0o604)));
    assert_eq!(file["mtime_ns"].as_i64(), Some(mtime.mtime() * 1_000_000_000 + mtime.mtime_nsec()));
    assert_eq!((listed[1]["kind"].as_str(), listed[1]["target"].as_str()), (Some("symlink"), Some("f")));
    let tree = bench.open("tree", &["--json"]).expect(0).json();
    let paths: Vec<_> = tree.as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/d", "/d/f", "/d/l"]);
    assert_eq!(bench.open("ls", &["/d/f", "--json"]).expect(0).json()[0]["path"], "/d/f");
    let empty = Bench::new();
    assert_eq!(empty.open("ls", &["--json"]).expect(0).json(), serde_json::json!([]));

    let info = bench.run(["vault", "info", bench.vault_str(), "--json"]).expect(0).json();
    assert_eq!((info["format"].as_u64(), info["cipher"].as_str()), (Some(8), Some("SIV_GCM")));
    assert_eq!(info["shortening_threshold"].as_u64(), Some(220));
    assert!(bench.mounts().is_empty());
    let doctor = bench.run(["doctor", "--json"]).json();
    assert!(doctor["checks"].as_array().unwrap().iter().all(|c| c["name"].is_string() && c["state"].is_string()));
}

#[test]
fn cli_copies_are_told_as_a_whole() {
    let bench = Bench::new();
    bench.put_tree(&[("d/f", "four"), ("d/g", "five!")]);
    let put = bench.open("put", &["d", "/"]).expect(0);
    assert!(put.stderr.starts_with("adit: put: 3 entries, 9 B"), "{}", put.stderr);
    assert_eq!(put.remarks(), "");
    let get = bench.open("get", &["/d", "back"]).expect(0);
    assert!(get.stderr.starts_with("adit: get: 3 entries, 9 B"), "{}", get.stderr);
    assert_eq!(bench.open("get", &["/d/f", "-"]).expect(0).stderr, "");
    assert_eq!(bench.open("put", &["-q", "d", "/"]).expect(0).stderr, "");
}

#[test]
fn cli_human_listings() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("d/sub")).unwrap();
    fs::write(bench.path("d/sub/f"), "x").unwrap();
    fs::write(bench.path("d/z\x1b[1m"), "x").unwrap();
    fs::write(bench.path("d/\u{202e}fdp.exe"), "x").unwrap();
    bench.open("put", &["d", "/"]).expect(0);
    // Failures and JSON name them as well, and give no orders either.
    bench.open("ls", &["/\u{202e}\x1b[1m"]).expect(1).says("\\u202e\\u001b[1m");
    let json = bench.open("ls", &["--json", "/d"]).expect(0);
    assert!(!json.text().contains('\u{202e}'));
    assert!(json.json().as_array().unwrap().iter().any(|entry| entry["path"] == "/d/\u{202e}fdp.exe"));
    fs::remove_file(bench.path("d/\u{202e}fdp.exe")).unwrap();
    bench.open("rm", &["--yes", "/d/\u{202e}fdp.exe"]).expect(0);
    assert_eq!(bench.open("ls", &["-R", "/d"]).expect(0).text(), "sub\nsub/f\nz\\u001b[1m\n");
    let tree = bench.open("tree", &["/"]).expect(0).text();
    assert!(tree.contains("└── d\n    ├── sub\n    │   └── f\n    └── z\\u001b[1m\n"), "{tree}");
    assert_eq!(bench.open("tree", &["-L", "1"]).expect(0).text(), "/\n└── d\n\n1 folder, 0 files, 0 links\n");
    // A link to a folder is gone into, any other is shown itself.
    for (name, target) in [("to-f", "d/sub/f"), ("to-sub", "d/sub"), ("to-nothing", "nothing")] {
        std::os::unix::fs::symlink(target, bench.path(name)).unwrap();
        bench.open("put", &[name, "/"]).expect(0);
    }
    assert_eq!(bench.open("ls", &["/to-f"]).expect(0).text(), "to-f\n");
    assert!(bench.open("ls", &["-l", "/to-f"]).expect(0).text().ends_with(" to-f -> d/sub/f\n"));
    assert_eq!(bench.open("ls", &["/to-f", "--json"]).expect(0).json()[0]["target"], "d/sub/f");
    assert_eq!(bench.open("ls", &["/to-nothing"]).expect(0).text(), "to-nothing\n");
    assert_eq!(bench.open("ls", &["/to-sub"]).expect(0).text(), "f\n");
    let long = bench.open("ls", &["--long", "/d/sub"]).expect(0).text();
    assert!(long.starts_with("-rw-") && long.ends_with(" f\n"), "{long}");
}

#[test]
fn cli_exit_codes() {
    let bench = Bench::new();
    let vault = bench.vault_str();
    bench.run_with(["ls", vault, "--password-stdin"], b"wrong\n").expect(3).says("wrong password");
    bench.run(["ls"]).expect(2);
    bench.run(["nonsense"]).expect(2);
    bench.run(["ls", vault]).expect(2).says("--password-stdin");
    bench.run(["diff", "x"]).expect(6);
    bench.run(["umount", "."]).expect(6).says("not a mount");
    bench.run(["umount", "missing"]).expect(6);
    bench.run(["stats", "."]).expect(6);
    bench.run(["status", "."]).expect(6);
    bench.run(["ls", "s3://b/x"]).expect(2).says("bucket");
    bench.run(["ls", "ftp://host/x"]).expect(10).says("s3://");
    bench.run(["ls", "manifest:x"]).expect(1).says("no such file");
    bench.run(["ls", "volume:x"]).expect(1).says("no such file");
    bench.run(["ls", "volume:password"]).expect(1).says("not a volume");
    bench.run(["vault", "check", "."]).expect(10).says("not a vault");
    bench.run(["ls", "missing"]).expect(1).says("missing");
    bench.open("cat", &["/missing"]).expect(1).says("/missing");
    bench.run(["--help"]).expect(0);
    bench.run(["--version"]).expect(0);
}

#[test]
fn cli_destructive_verbs_ask_or_take_yes() {
    let bench = Bench::new();
    fs::write(bench.path("f"), "f").unwrap();
    fs::write(bench.path("g"), "g").unwrap();
    bench.open("mkdir", &["--parents", "/a/b/c"]).expect(0);
    bench.open("mkdir", &["/a"]).expect(1);
    bench.open("put", &["f", "g", "/a"]).expect(0);
    bench.open("rm", &["/a/f"]).expect(2).says("--yes");
    bench.open("rm", &["--yes", "/a"]).expect(1).says("--recursive");
    bench.open("mv", &["/a/f", "/a/g"]).expect(2);
    bench.open("mv", &["--no-replace", "/a/f", "/a/g"]).expect(1);
    bench.open("mv", &["--yes", "/a/f", "/a/g"]).expect(0);
    assert_eq!(bench.open("cat", &["/a/g"]).expect(0).text(), "f");
    bench.open("mv", &["/a/g", "/a/b"]).expect(0);
    assert_eq!(bench.open("ls", &["/a/b"]).expect(0).text(), "c\ng\n");
    bench.open("mv", &["/a", "/a/b/inside"]).expect(1);
    bench.open("rm", &["--yes", "--recursive", "/a"]).expect(0);
    assert_eq!(bench.open("ls", &[]).expect(0).text(), "");
    bench.open("rm", &["--yes", "/a"]).expect(1);
}

#[test]
fn cli_several_paths_go_on_after_one_that_fails() {
    let bench = Bench::new();
    bench.open("mkdir", &["/a", "/none/b", "/a", "/c"]).expect(1).says("/none").says("/a: exists already");
    assert_eq!(bench.open("ls", &[]).expect(0).text(), "a\nc\n");
    fs::write(bench.path("f"), "f").unwrap();
    bench.open("put", &["f", "/f"]).expect(0);
    bench.open("rm", &["--yes", "/missing", "/a", "/f", "/nor/this"]).expect(1).says("/missing").says("--recursive");
    assert_eq!(bench.open("ls", &[]).expect(0).text(), "a\nc\n");
    bench.open("rm", &["--yes", "--recursive", "/a", "/missing", "/c"]).expect(1);
    assert_eq!(bench.open("ls", &[]).expect(0).text(), "");
    // What is not there is told, and nobody is asked about it.
    let failed = bench.open("rm", &["/missing"]).expect(1).says("/missing");
    assert!(!failed.stderr.contains("--yes"), "{}", failed.stderr);
    bench.run(["umount", "vault", "missing"]).expect(6).says("vault: not a mount").says("missing");
}

#[test]
fn cli_errors_name_what_they_are_about() {
    let bench = Bench::new();
    fs::write(bench.path("f"), "f").unwrap();
    bench.open("put", &["f", "/"]).expect(0);
    bench.open("mkdir", &["/d"]).expect(0);
    let says = |ran: common::Ran, code: i32, what: &str| {
        let ran = ran.expect(code).says(what);
        assert!(!ran.stderr.contains("os error") && !ran.stderr.contains("File exists"), "{}", ran.stderr);
    };
    says(bench.open("mkdir", &["/"]), 1, "mkdir /: exists already");
    says(bench.open("mkdir", &["/d"]), 1, "mkdir /d: exists already");
    says(bench.open("put", &["missing", "/"]), 1, "put: read missing: not found");
    says(bench.open("put", &["missing", "/d"]), 1, "put: read missing: not found");
    says(bench.open("put", &["f", "/none/x"]), 1, "vault: open /none: not found");
    says(bench.open("put", &["--no-replace", "f", "/"]), 1, "put: copy /f: exists already");
    says(bench.open("get", &["/f", "none/x"]), 1, "get: open none: not found\n  the folder for the copy");
    fs::create_dir(bench.path("f.d")).unwrap();
    fs::write(bench.path("f.d/f"), "there").unwrap();
    says(bench.open("get", &["--no-replace", "/f", "f.d"]), 1, "get: write the copy of /f: exists already");
    says(bench.open("rm", &["--yes", "/"]), 1, "it is the root");
    says(bench.open("mv", &["/", "/d"]), 1, "it is the root");
    says(bench.open("mv", &["/d", "/d/e"]), 1, "a folder cannot be moved into itself");
}

#[test]
fn cli_special_files_are_refused() {
    let bench = Bench::new();
    let made = std::process::Command::new("mkfifo").arg(bench.path("fifo")).status().unwrap();
    assert!(made.success());
    bench.open("put", &["fifo", "/"]).expect(10).says("put: read fifo: not supported");
    bench.open("put", &["/dev/null", "/"]).expect(10).says("/dev/null");
    assert_eq!(bench.open("ls", &[]).expect(0).text(), "");
    fs::create_dir(bench.path("d")).unwrap();
    fs::write(bench.path("d/f"), "f").unwrap();
    fs::rename(bench.path("fifo"), bench.path("d/fifo")).unwrap();
    bench.open("put", &["d", "/"]).expect(0).says("left out: /d/fifo");
    assert_eq!(bench.open("ls", &["/d"]).expect(0).text(), "f\n");
}

#[test]
fn cli_streams_in_and_out() {
    let bench = Bench::new();
    let content = common::pattern(100_000);
    let put = ["put", bench.vault_str(), "-", "/stream", "--password-file", bench.password_str()];
    bench.run_with(put, &content).expect(0);
    assert_eq!(bench.open("get", &["/stream", "-"]).expect(0).stdout, content);
    bench.run_with(put, b"").expect(0);
    assert_eq!(bench.open("get", &["/stream", "-"]).expect(0).stdout, b"");
    bench.run_with([&put[..], &["--no-replace"]].concat(), b"x").expect(1).says("exists already");
    bench.open("mkdir", &["/d"]).expect(0);
    bench.open("put", &["-", "/d"]).expect(1).says("no name");
    bench.open("put", &["-", "password", "/d"]).expect(2).says("./-");
    bench.open("get", &["/d", "-"]).expect(1).says("/d");
    bench.open("get", &["/missing", "-"]).expect(1).says("/missing");
    bench.run_with(["put", bench.vault_str(), "-", "/x", "--password-stdin"], PASSWORD.as_bytes()).expect(2);
    // A file with that name.
    fs::write(bench.path("-"), "dash").unwrap();
    bench.open("put", &["./-", "/dash"]).expect(0);
    assert_eq!(bench.open("cat", &["/dash"]).expect(0).text(), "dash");
    assert_eq!(bench.open("ls", &[]).expect(0).text(), "d\ndash\nstream\n", "nothing unfinished is left");
}

#[test]
fn cli_a_stream_that_is_interrupted_leaves_nothing() {
    let bench = Bench::new();
    let mut command = bench.command();
    command.args(["put", bench.vault_str(), "-", "/stream", "--password-file", bench.password_str()]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, &vec![7; 3 << 20]).unwrap();
    common::eventually("content arrives", || {
        bench.content_files().iter().any(|path| fs::metadata(path).is_ok_and(|meta| meta.len() > 1 << 20))
    });
    // It waits for more, which does not come.
    // SAFETY: a plain system call; the process is our child.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGINT));
    assert_eq!(bench.content_files(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn cli_get_takes_no_place_of_a_device_or_fifo() {
    let bench = Bench::new();
    bench.put_tree(&[("f", "content")]);
    let fifo = bench.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    std::os::unix::fs::symlink("fifo", bench.path("link")).unwrap();
    fs::write(bench.path("file"), "old").unwrap();
    std::os::unix::fs::symlink("file", bench.path("to-file")).unwrap();
    for place in ["fifo", "link"] {
        bench.open("get", &["/f", place]).expect(10).says("a device, FIFO or socket is in its place");
        assert!(!fs::metadata(bench.path(place)).unwrap().is_file(), "{place}");
    }
    bench.open("get", &["/f", "to-file"]).expect(0);
    assert_eq!(fs::read_to_string(bench.path("to-file")).unwrap(), "content");
    assert_eq!(fs::read_to_string(bench.path("file")).unwrap(), "old", "the link was replaced");
}

#[test]
fn cli_help_that_finds_no_room_is_a_failure() {
    let bench = Bench::new();
    for verb in [&["--help"][..], &["ls", "--help"], &["--version"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = bench.command().args(verb).stdout(full).stderr(std::process::Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(8), "{verb:?}");
    }
}

#[test]
fn cli_a_reader_that_leaves_ends_it_quietly() {
    let bench = Bench::new();
    fs::write(bench.path("big"), vec![b'x'; 4 << 20]).unwrap();
    bench.open("put", &["big", "/"]).expect(0);
    let mut command = bench.command();
    command.args(["cat", bench.vault_str(), "/big", "--password-file", bench.password_str()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(13), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn cli_needs_no_state_directory_to_read_and_says_so_to_write() {
    let bench = Bench::new();
    fs::write(bench.path("not-a-folder"), "").unwrap();
    bench.open("ls", &["--state-dir", "not-a-folder"]).expect(0);
    bench.open("mkdir", &["/d", "--state-dir", "not-a-folder"]).expect(1).says("--state-dir");
}

#[test]
fn cli_manual_and_completions() {
    let bench = Bench::bare();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(bench.run(["completions", shell]).expect(0).text().contains("umount"), "{shell}");
    }
    let page = bench.run(["man"]).expect(0).text();
    for part in ["SH NAME", "SH EXAMPLES", "EXIT STATUS", "adit mount"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    let page = bench.run(["man", "mount"]).expect(0).text();
    for part in [".SH NOTES", ".SH \"MOUNT OPTIONS\"", ".SH \"IN /ETC/FSTAB\"", ".SH \"EXIT STATUS\""] {
        assert_eq!(page.matches(part).count(), 1, "{part}: {page}");
    }
    assert!(bench.run(["man", "vault", "passwd"]).expect(0).text().contains("bkup"));
    let (page, quoted) =
        (bench.run(["man", "volume", "check"]).expect(0), bench.run(["man", "volume check"]).expect(0));
    assert_eq!(page.text(), quoted.text());
    bench.run(["man", "nonsense"]).expect(2);
    bench.run(["man", "--dir", "pages"]).expect(0);
    for name in ["adit.1", "adit-mount.1", "adit-vault-init.1"] {
        assert!(bench.path("pages").join(name).exists(), "{name}");
    }
    assert!(!bench.path("pages/adit-help.1").exists());
}

#[test]
fn cli_an_interrupted_put_leaves_nothing_unfinished() {
    let bench = Bench::new();
    fs::create_dir(bench.path("d")).unwrap();
    // Sparse: quick to make, long to copy.
    fs::File::create(bench.path("d/big")).unwrap().set_len(8 << 30).unwrap();
    let mut command = bench.command();
    command.args(["put", bench.vault_str(), "d", "/", "--password-file", bench.password_str()]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    common::eventually("content arrives", || {
        bench.content_files().iter().any(|path| fs::metadata(path).is_ok_and(|meta| meta.len() > 1 << 20))
    });
    // SAFETY: a plain system call; the process is our child.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGINT));
    assert_eq!(bench.content_files(), Vec::<std::path::PathBuf>::new());
    assert_eq!(bench.open("ls", &["/d"]).expect(0).text(), "");
}

#[test]
fn cli_set_id_bits_stay_with_their_owner_or_it_is_told() {
    let bench = Bench::new();
    let mode = |path: &str, mode| fs::set_permissions(bench.path(path), PermissionsExt::from_mode(mode)).unwrap();
    bench.put_tree(&[("d/f", "f"), ("d/g", "g")]);
    mode("d/f", 0o6755);
    mode("d/g", 0o1640);
    mode("d", 0o2770);
    let put = bench.open("put", &["d", "/"]).expect(0);
    assert_eq!(put.remarks(), "", "the copies have the same owner");
    let get = bench.open("get", &["/d", "back"]).expect(0);
    assert_eq!(get.remarks(), "");
    assert_eq!(facts(&bench.path("d")), facts(&bench.path("back")));
    if !common::is_root("giving files away") {
        return;
    }
    for path in ["d", "d/f"] {
        std::os::unix::fs::chown(bench.path(path), Some(65_534), Some(65_534)).unwrap();
    }
    mode("d/f", 0o6755);
    mode("d", 0o2770);
    let put = bench.open("put", &["d", "/"]).expect(0);
    assert_eq!(put.remarks(), "", "root's copies keep the owner, and so the bits");
    let get = bench.open("get", &["/d", "again"]).expect(0);
    let get = get.says("get: /d/f: without its set-id bits, for its copy has another owner and group");
    get.says("get: /d: without its set-group-id bit, for its copy has another group");
    let modes = ["again/f", "again/g", "again"].map(|path| fs::metadata(bench.path(path)).unwrap().mode() & 0o7777);
    assert_eq!(modes, [0o755, 0o1640, 0o770]);
}

#[test]
fn put_keeps_owners_for_root_or_says_that_it_does_not() {
    if !common::is_root("giving files away") {
        return;
    }
    let bench = Bench::new();
    bench.put_tree(&[("d/f", "f"), ("d/sub/g", "g")]);
    std::os::unix::fs::symlink("f", bench.path("d/link")).unwrap();
    bench.run(["volume", "init", "v.adit"]).expect(0);
    let owners =
        [("d", 1001, 1002), ("d/f", 1001, 1003), ("d/link", 1004, 1004), ("d/sub", 0, 7), ("d/sub/g", 65_534, 0)];
    for (path, uid, gid) in owners {
        std::os::unix::fs::lchown(bench.path(path), Some(uid), Some(gid)).unwrap();
    }
    let put = bench.run(["put", "v.adit", "d", "/"]).expect(0);
    assert_eq!(put.remarks(), "");
    let options = adit_volume::volume::OpenOptions::new(adit_core::types::Access::Read);
    let volume = std::sync::Arc::new(adit_volume::Volume::open(&bench.path("v.adit"), &options).unwrap());
    let volume = adit_volume::Fs::live(&volume, adit_volume::FsOptions::default()).unwrap();
    for (path, uid, gid) in owners {
        let found = volume.lstat(path).unwrap();
        assert_eq!((found.uid, found.gid), (uid, gid), "{path}");
    }
    drop(volume);
    // An ordinary user's copies are that user's, and a line says so, once.
    fs::set_permissions(bench.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let as_user = |args: &[&str]| {
        let mut command = bench.command();
        command.env("XDG_STATE_HOME", bench.path("u/state")).env("XDG_RUNTIME_DIR", bench.path("u/run"));
        std::os::unix::process::CommandExt::uid(&mut command, 65_534);
        command.args(args);
        common::run(command, b"").expect(0)
    };
    as_user(&["volume", "init", "u.adit"]);
    let remarks = as_user(&["put", "u.adit", "d", "/"]).remarks();
    assert_eq!(remarks.matches("owners are left out").count(), 1, "{remarks}");
}
