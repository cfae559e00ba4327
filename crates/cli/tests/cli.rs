//! The program without a mount: what it does, what it prints, and with which code it ends.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{Bench, Killed, PASSWORD, facts, make_tree, run};

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
fn cli_nothing_of_the_content_is_in_the_vault() {
    let bench = Bench::new();
    fs::write(bench.path("secret-name.txt"), "secret content").unwrap();
    bench.open("put", &["secret-name.txt", "/"]).expect(0);
    let mut todo = vec![bench.vault(), bench.path("state")];
    while let Some(path) = todo.pop() {
        assert!(!path.file_name().unwrap().to_str().unwrap().contains("secret"));
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else {
            let bytes = fs::read(&path).unwrap();
            assert!(!bytes.windows(6).any(|w| w == b"secret"), "{}", path.display());
        }
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
    bench.open("cat", &["/l"]).expect(1).says("leads out of the store");
    bench.open("ls", &["/../.."]).expect(1).says("leads out of the store");
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
fn cli_human_listings() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("d/sub")).unwrap();
    fs::write(bench.path("d/sub/f"), "x").unwrap();
    fs::write(bench.path("d/z\x1b[1m"), "x").unwrap();
    bench.open("put", &["d", "/"]).expect(0);
    assert_eq!(bench.open("ls", &["-R", "/d"]).expect(0).text(), "sub\nsub/f\nz?[1m\n");
    let tree = bench.open("tree", &["/"]).expect(0).text();
    assert!(tree.contains("└── d\n    ├── sub\n    │   └── f\n    └── z?[1m\n"), "{tree}");
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
    bench.run(["ls", "s3://bucket/x"]).expect(10);
    bench.run(["ls", "manifest:x"]).expect(10);
    bench.run(["ls", "volume:x"]).expect(1).says("no such file");
    bench.run(["ls", "volume:password"]).expect(1).says("not a volume");
    bench.run(["vault", "check", "."]).expect(10).says("not a vault");
    bench.run(["ls", "missing"]).expect(1).says("missing");
    bench.open("cat", &["/missing"]).expect(1).says("/missing");
    bench.run(["--help"]).expect(0);
    bench.run(["--version"]).expect(0);
}

#[test]
fn cli_passwords_come_from_everywhere_but_arguments() {
    let bench = Bench::new();
    let vault = bench.vault_str();
    bench.run_with(["ls", vault, "--password-stdin"], PASSWORD.as_bytes()).expect(0);
    bench.run_with(["ls", vault, "--password-stdin"], format!("{PASSWORD}\n").as_bytes()).expect(0);
    bench.run_with(["ls", vault, "--password-stdin"], format!("{PASSWORD}\n\n").as_bytes()).expect(3);
    bench.run(["ls", vault, "--password-command", "cat password"]).expect(0);
    // Where there is nothing to read is a matter of the command line, wherever it was to come from.
    for nothing in [["--password-command", "exit 9"], ["--password-env", "UNSET"], ["--password-file", "missing"]] {
        bench.run(["ls", vault].into_iter().chain(nothing)).expect(2).says("no password: ");
        bench.run(["mount", vault, "run"].into_iter().chain(nothing)).expect(2).says("no password: ");
    }
    let mut command = bench.command();
    command.args(["ls", vault, "--password-env", "P"]).env("P", PASSWORD);
    run(command, b"").expect(0);
    bench.run(["ls", vault, "--password", PASSWORD]).expect(2);
    // An empty password is one; an existing vault may have it.
    fs::write(bench.path("empty"), "\n").unwrap();
    for empty in [&["--password-stdin"][..], &["--password-command", "true"], &["--password-file", "empty"]] {
        bench.run(["ls", vault].iter().chain(empty)).expect(3).says("the password that was given is empty");
        bench.run(["vault", "init", "new"].iter().chain(empty)).expect(2).says("empty");
    }
    bench.run_with(["vault", "init", "new", "--password-stdin"], b"\n").expect(2).says("empty");
}

#[test]
fn cli_passwd_changes_the_password_and_keeps_a_backup() {
    let bench = Bench::new();
    let vault = bench.vault_str();
    let key_file = fs::read(bench.vault().join("masterkey.cryptomator")).unwrap();
    let change = ["vault", "passwd", vault, "--password-stdin", "--new-password-stdin"];
    bench.run_with(change, b"wrong\nanother one\n").expect(3);
    bench.run_with(change, b"no second line").expect(2);
    assert_eq!(fs::read(bench.vault().join("masterkey.cryptomator")).unwrap(), key_file);
    bench.run_with(change, format!("{PASSWORD}\nanother one\n").as_bytes()).expect(0).says(".bkup");
    bench.open("ls", &[]).expect(3);
    bench.run_with(["ls", vault, "--password-stdin"], b"another one").expect(0);
    let names: Vec<String> = fs::read_dir(bench.vault())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.starts_with("masterkey.cryptomator.") && n.ends_with(".bkup"))
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(names[0].len(), "masterkey.cryptomator.".len() + 8 + ".bkup".len());
    assert_eq!(fs::read(bench.vault().join(&names[0])).unwrap(), key_file);
    // One variable for both: the key file is made anew for the same password.
    let mut same = bench.command();
    same.args(["vault", "passwd", vault, "--password-env", "PW", "--new-password-env", "PW"]);
    same.env("PW", "another one");
    common::run(same, b"").expect(0);
    bench.run_with(["ls", vault, "--password-stdin"], b"another one").expect(0);
}

#[test]
fn cli_init_overwrites_nothing() {
    let bench = Bench::new();
    let again = ["vault", "init", bench.vault_str(), "--password-file", bench.password_str()];
    bench.run(again).expect(1).says("a vault already");
    fs::create_dir(bench.path("full")).unwrap();
    fs::write(bench.path("full/file"), "x").unwrap();
    bench.run(["vault", "init", "full", "--password-file", "password"]).expect(1).says("not empty");
    assert_eq!(fs::read_dir(bench.path("full")).unwrap().count(), 1);
    bench.run(["vault", "init", "new"]).expect(2);
    assert!(!bench.path("new").exists(), "a failed attempt leaves no folder");
    bench.run_with(["vault", "init", "short", "--password-stdin"], b"short\n").expect(0).says("fewer than 8");
}

#[test]
fn cli_corruption_is_4_and_hides_nothing_else() {
    let bench = Bench::new();
    fs::create_dir(bench.path("d")).unwrap();
    fs::write(bench.path("d/bad"), "x".repeat(100_000)).unwrap();
    bench.open("put", &["d", "/"]).expect(0);
    let bad = bench.content_files().pop().unwrap();
    let mut bytes = fs::read(&bad).unwrap();
    bytes[40_000] ^= 1;
    fs::write(&bad, bytes).unwrap();
    fs::write(bench.path("good"), "good").unwrap();
    bench.open("put", &["good", "/d"]).expect(0);
    bench.open("cat", &["/d/bad"]).expect(4).says("corrupt");
    assert_eq!(bench.open("cat", &["/d/bad", "/d/good"]).expect(4).text().chars().last(), Some('d'));
    bench.open("get", &["/d", "out"]).expect(4).says("/d/bad");
    assert_eq!(fs::read_to_string(bench.path("out/good")).unwrap(), "good");
    assert!(!bench.path("out/bad").exists(), "no part of it appears under its name");
    assert_eq!(fs::read_dir(bench.path("out")).unwrap().count(), 1, "and no temporary stays");
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
fn cli_a_missing_key_file_is_damage_and_a_copy_of_it_is_named() {
    let bench = Bench::new();
    let vault = bench.vault_str();
    let change = ["vault", "passwd", vault, "--password-stdin", "--new-password-stdin"];
    bench.run_with(change, format!("{PASSWORD}\n{PASSWORD}\n").as_bytes()).expect(0);
    let key = bench.vault().join("masterkey.cryptomator");
    let kept = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    let check = ["vault", "check", vault, "--password-file", bench.password_str()];
    // Also without a password: none could help.
    for ran in [bench.open("ls", &[]), bench.run(["ls", vault]), bench.run(check), bench.run(["vault", "info", vault])]
    {
        let ran = ran.expect(4).says("masterkey.cryptomator: corrupt data: the file is missing").says("cp '");
        assert!(!ran.stderr.contains("vault check"), "no check can help: {}", ran.stderr);
    }
    let told = bench.open("ls", &[]).stderr;
    let command = told.lines().find_map(|line| Some(&line[line.find("cp '")?..line.find("';")? + 1])).unwrap();
    let copied = std::process::Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(copied.success(), "{command}");
    bench.open("ls", &[]).expect(0);
    // Damaged, and without a copy.
    for name in fs::read_dir(bench.vault()).unwrap().map(|e| e.unwrap().path()) {
        if name.extension().is_some_and(|e| e == "bkup") {
            fs::remove_file(name).unwrap();
        }
    }
    fs::write(&key, &kept[..40]).unwrap();
    bench.open("ls", &[]).expect(4).says("masterkey.cryptomator").says("restore masterkey.cryptomator from a backup");
    fs::remove_file(bench.vault().join("vault.cryptomator")).unwrap();
    bench.run(check).expect(4).says("restore vault.cryptomator from a backup");
}

#[test]
fn cli_vaults_of_other_kinds_are_named() {
    for (name, says, code) in [
        ("config-format-7", "vault format 7 is not supported", 10),
        ("config-format-9", "vault format 9 is not supported", 10),
        ("config-hub", "this is a Cryptomator Hub vault", 10),
        ("config-unknown-cipher", "cipher combination", 10),
        ("masterkey-cut", "masterkey file is malformed", 4),
        ("config-missing", "vault.cryptomator: corrupt data: the file is missing", 4),
    ] {
        let bench = fixture(&format!("vault-broken/{name}")).expect("the fixture is there");
        let info = bench.run(["vault", "info", bench.vault_str(), "--json"]).expect(code).says(says);
        assert!(info.json()["path"].is_string(), "{name}: it is described all the same");
        assert_eq!(info.json()["key"].is_string(), name != "config-missing", "{name}");
        // No password is asked for that could not help.
        bench.run(["ls", bench.vault_str()]).expect(code).says(says);
        bench.run(["mount", bench.vault_str(), "run"]).expect(code).says(says);
    }
}

/// A vault from before format 8 has a key file that says its format, and no configuration.
#[test]
fn cli_vaults_of_old_formats_are_named_with_their_format() {
    for format in [3, 5, 6, 7] {
        let bench = Bench::new();
        fs::remove_file(bench.vault().join("vault.cryptomator")).unwrap();
        let key = bench.vault().join("masterkey.cryptomator");
        let json = fs::read_to_string(&key).unwrap().replace("\"version\": 999", &format!("\"version\": {format}"));
        fs::write(&key, json).unwrap();
        let says = format!("the vault has format {format}; upgrade it to format 8 with Cryptomator first");
        // No password is asked for that could not help.
        for verb in [
            &["ls", bench.vault_str()][..],
            &["mount", bench.vault_str(), "run"],
            &["vault", "info", bench.vault_str()],
        ] {
            bench.run(verb).expect(10).says(&says);
        }
        let check = ["vault", "check", bench.vault_str(), "--password-file", bench.password_str()];
        bench.run(check).expect(10).says(&says);
    }
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
fn cli_a_link_that_cannot_be_read_is_4_also_in_listings() {
    let bench = Bench::new();
    fs::create_dir(bench.path("t")).unwrap();
    std::os::unix::fs::symlink("target", bench.path("t/link")).unwrap();
    bench.open("put", &["t", "/"]).expect(0);
    let mut todo = vec![bench.vault().join("d")];
    while let Some(path) = todo.pop() {
        todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()));
        let link = path.join("symlink.c9r");
        if let Ok(mut bytes) = fs::read(&link) {
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(&link, bytes).unwrap();
        }
    }
    for verb in [&["/t", "-l"][..], &["/t/link", "-l"], &["/t", "--json"]] {
        bench.open("ls", verb).expect(4).says("/t/link");
    }
    bench.open("tree", &["/"]).expect(4).says("/t/link");
    assert_eq!(bench.open("ls", &["/t"]).expect(0).text(), "link\n");
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
fn cli_entries_with_damaged_names_are_4_and_not_just_absent() {
    let bench = Bench::new();
    let (long_dir, long_file) = ("d".repeat(200), "f".repeat(200));
    fs::create_dir_all(bench.path("t/sub").join(&long_dir)).unwrap();
    fs::write(bench.path("t/sub").join(&long_file), "content").unwrap();
    fs::write(bench.path("t/short"), "short").unwrap();
    bench.open("put", &["t", "/"]).expect(0);
    bench.open("ls", &["/t", "-R"]).expect(0);
    let mut names = Vec::new();
    let mut todo = vec![bench.vault().join("d")];
    while let Some(path) = todo.pop() {
        todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()));
        names.extend(Some(path.join("name.c9s")).filter(|p| p.exists()));
    }
    assert_eq!(names.len(), 2);
    fs::remove_file(&names[0]).unwrap();
    fs::write(&names[1], "another name").unwrap();

    let told = |run: &common::Ran| run.stderr.matches("/t/sub: corrupt data: an entry is left out").count();
    let listed = bench.open("ls", &["/t/sub"]).expect(4);
    assert_eq!((listed.text().as_str(), told(&listed)), ("", 2), "{}", listed.stderr);
    bench.open("ls", &["/t"]).expect(0);
    assert_eq!(told(&bench.open("tree", &["/"]).expect(4)), 2);
    assert_eq!(told(&bench.open("get", &["/", "out"]).expect(4)), 2);
    assert_eq!(fs::read_to_string(bench.path("out/t/short")).unwrap(), "short");
    // The log, which may be shared to ask for help, names no folder.
    let logged = bench.open("ls", &["/t/sub", "-v"]).expect(4).stderr;
    assert!(logged.lines().filter(|line| line.contains("WARN")).all(|line| !line.contains("sub")), "{logged}");
}

/// It looks empty, and is not: nothing is deleted that could still be told.
#[test]
fn cli_a_folder_with_a_damaged_name_goes_after_a_repair() {
    let bench = Bench::new();
    bench.put_tree(&[("folder/entry", "content")]);
    let content = bench.content_files().pop().unwrap();
    fs::rename(&content, content.with_file_name("bm90IGEgbmFtZSBvZiB0aGlz.c9r")).unwrap();
    bench.open("ls", &["/folder"]).expect(4);
    bench.open("rm", &["-ry", "/folder"]).expect(4);
    bench.check(&["--repair", "--yes"]).expect(0);
    assert_eq!(bench.open("ls", &["/folder"]).expect(0).text(), "");
    bench.open("rm", &["-ry", "/folder"]).expect(0);
    let files = bench.content_files();
    assert!(files.iter().any(|file| fs::metadata(file).unwrap().len() > 90), "its content is kept: {files:?}");
}

#[test]
fn cli_is_quiet_about_what_it_logs_and_says_that_there_is_more() {
    let bench = Bench::new();
    fs::write(bench.path("f"), "f").unwrap();
    bench.open("put", &["f", "/"]).expect(0);
    assert_eq!(bench.open("ls", &[]).expect(0).stderr, "");
    let good = bench.content_files().pop().unwrap();
    let copy = good.to_str().unwrap().replace(".c9r", " (conflict).c9r");
    fs::copy(&good, &copy).unwrap();
    let listed = bench.open("ls", &[]).expect(0);
    assert_eq!((listed.text().as_str(), listed.stderr.lines().count()), ("f\n", 1), "{}", listed.stderr);
    assert!(listed.stderr.starts_with("adit: 1 warning about the vault: -v shows"), "{}", listed.stderr);
    let told = bench.open("ls", &["-v"]).expect(0).stderr;
    assert!(told.contains("WARN") && told.contains("left out of its directory"), "{told}");
    assert_eq!(bench.open("ls", &["-q"]).expect(0).stderr, "");
    let check = ["vault", "check", bench.vault_str(), "--password-file", bench.password_str()];
    assert!(bench.run(check).expect(0).text().contains("a second version of /f,"));
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
    bench.run(["man", "nonsense"]).expect(2);
    bench.run(["man", "--dir", "pages"]).expect(0);
    for name in ["adit.1", "adit-mount.1", "adit-vault-init.1"] {
        assert!(bench.path("pages").join(name).exists(), "{name}");
    }
    assert!(!bench.path("pages/adit-help.1").exists());
}

#[test]
fn cli_check_finds_damage_and_repairs_what_it_can() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("d/sub")).unwrap();
    fs::write(bench.path("d/f"), "x".repeat(50_000)).unwrap();
    bench.open("put", &["d", "/"]).expect(0);
    let check = |more: &[&str]| {
        let mut line = vec!["vault", "check", bench.vault_str(), "--password-file", bench.password_str()];
        line.extend_from_slice(more);
        bench.run(line)
    };
    let clean = check(&["--json"]).expect(0).json();
    assert_eq!(clean["problems"], serde_json::json!([]));
    assert_eq!((clean["files"].as_u64(), clean["directories"].as_u64()), (Some(1), Some(3)));
    assert!(check(&[]).expect(0).text().ends_with("no problems\n"));

    let bad = bench.content_files().pop().unwrap();
    let mut bytes = fs::read(&bad).unwrap();
    bytes[40_000] ^= 1;
    fs::write(&bad, bytes).unwrap();
    let found = check(&["--json"]).expect(5).json();
    let problem = &found["problems"][0];
    assert_eq!((problem["kind"].as_str(), problem["path"].as_str()), (Some("unreadable-chunk"), Some("/d/f")));
    assert!(bad.to_str().unwrap().ends_with(problem["ciphertext_path"].as_str().unwrap()));
    assert!(check(&[]).expect(5).text().contains("unreadable-chunk: /d/f"));
    check(&["--no-contents"]).expect(0);
    // What no repair can bring back stays where it is, and stays reported.
    check(&["--repair"]).expect(2).says("--yes");
    check(&["--repair", "--yes", "--json"]).expect(5);
    assert!(bad.exists());
    bench.open("rm", &["--yes", "/d/f"]).expect(0);

    // Every directory's id file goes, and comes back.
    let mut todo = vec![bench.vault().join("d")];
    let mut removed = 0;
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(path).unwrap().map(|e| e.unwrap()) {
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path());
            } else if entry.file_name() == "dirid.c9r" {
                fs::remove_file(entry.path()).unwrap();
                removed += 1;
            }
        }
    }
    let found = check(&["--json"]).expect(5).json();
    assert_eq!(found["problems"].as_array().unwrap().len(), removed);
    let repaired = check(&["--repair", "--yes", "--json"]).expect(0).json();
    assert_eq!(repaired["repaired"].as_array().unwrap().len(), removed);
    assert_eq!(repaired["problems"], serde_json::json!([]));
    check(&[]).expect(0);
}

/// Starts a command that has the vault open until it is dropped: it stops once the pipe that nobody reads is full.
fn start_holder(mut command: std::process::Command) -> Killed {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // The first byte says that the vault is open.
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    Killed(child)
}

#[test]
fn cli_repair_is_alone_with_the_vault() {
    let bench = Bench::new();
    fs::write(bench.path("big"), vec![b'x'; 8 << 20]).unwrap();
    bench.open("put", &["big", "/"]).expect(0);
    let check = ["vault", "check", bench.vault_str(), "--password-file", bench.password_str()];
    let repair = [&check[..], &["--repair", "--yes"]].concat();
    // A reader with a state directory and a runtime directory of its own: only the vault itself can tell of it.
    let mut reader = bench.command();
    reader.args(["cat", bench.vault_str(), "/big", "--password-file", bench.password_str()]);
    reader.env("XDG_STATE_HOME", bench.path("other")).env_remove("XDG_RUNTIME_DIR");
    let reader = start_holder(reader);
    bench.run(&repair).expect(7).says("has it open");
    bench.run(check).expect(0).says("another process has it open");
    drop(reader);
    bench.run(&repair).expect(0);
    // A `put` that goes on is named by its process.
    fs::File::create(bench.path("long")).unwrap().set_len(8 << 30).unwrap();
    let before = bench.content_files().len();
    let mut writer = bench.command();
    writer.args(["put", bench.vault_str(), "long", "/", "--password-file", bench.password_str()]);
    let mut writer = Killed(writer.stderr(Stdio::null()).spawn().unwrap());
    common::eventually("it has begun", || bench.content_files().len() > before);
    bench.run(&repair).expect(7).says(&format!("process {}", writer.0.id()));
    // SAFETY: a plain system call; the process is our child.
    assert_eq!(unsafe { libc::kill(writer.0.id() as i32, libc::SIGINT) }, 0);
    writer.0.wait().unwrap();
    bench.run(&repair).expect(0);
}

/// The folder below the state directory with the slots of a vault that holds a journal, and the journal.
fn journal(state: &Path) -> Option<(PathBuf, PathBuf)> {
    let folders = |dir: &Path| fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    let slots =
        folders(&state.join("vault")).flat_map(|family| folders(&family).map(move |slot| (family.clone(), slot)));
    let files = slots.flat_map(|(family, slot)| folders(&slot).map(move |file| (family.clone(), file)));
    let is_journal = |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with("journal-");
    files.into_iter().find(|(_, file)| is_journal(file))
}

/// A journal that never recovers (here, another vault's) keeps a repair away, which would take apart what it tells of; the
/// message says how to give it up.
#[test]
fn cli_repair_waits_for_a_journal_until_that_is_given_up() {
    let bench = Bench::new();
    let state = bench.path("state/adit");
    let other = bench.str("other");
    bench.run(["vault", "init", &other, "--password-file", bench.password_str()]).expect(0);
    fs::File::create(bench.path("long")).unwrap().set_len(8 << 30).unwrap();
    let mut writer = bench.command();
    writer.args(["put", &other, "long", "/", "--password-file", bench.password_str()]);
    let writer = Killed(writer.stderr(Stdio::null()).spawn().unwrap());
    common::eventually("it has begun", || journal(&state).is_some());
    drop(writer); // killed
    let (_, foreign) = journal(&state).unwrap();
    let bytes = fs::read(&foreign).unwrap();
    fs::remove_file(&foreign).unwrap();

    fs::write(bench.path("small"), "x").unwrap();
    bench.open("put", &["small", "/"]).expect(0);
    let mut slots = Vec::new();
    for family in fs::read_dir(state.join("vault")).unwrap() {
        let slot = fs::read_dir(family.unwrap().path()).unwrap().next().unwrap().unwrap().path();
        slots.extend((fs::read(slot.join("vault-path")).unwrap() == bench.vault_str().as_bytes()).then_some(slot));
    }
    fs::write(slots[0].join(foreign.file_name().unwrap()), bytes).unwrap();
    let check = ["vault", "check", bench.vault_str(), "--password-file", bench.password_str()];
    let repair = [&check[..], &["--repair", "--yes"]].concat();
    let family = slots[0].parent().unwrap().to_owned();
    let given_up = family.with_extension("given-up");
    bench.run(&repair).expect(4).says("another vault").says(&format!("stays in {}", family.display()));
    bench.open("rm", &["/small", "--yes"]).expect(4).says("move that folder away");
    bench.open("cat", &["/small"]).expect(0).says("read-only");
    fs::rename(family, given_up).unwrap();
    bench.run(&repair).expect(0);
    bench.open("rm", &["/small", "--yes"]).expect(0);
}

#[test]
fn cli_check_names_the_folder_of_what_has_lost_its_name() {
    let bench = Bench::new();
    bench.put_tree(&[(&format!("d4/{}", "n".repeat(200)), "x")]);
    let contents = bench.content_files().pop().unwrap();
    fs::remove_file(contents.with_file_name("name.c9s")).unwrap();
    let check = ["vault", "check", bench.vault_str(), "--password-file", bench.password_str()];
    let json = [&check[..], &["--json"]].concat();
    let problem = &bench.run(json.clone()).expect(5).json()["problems"][0];
    assert_eq!((&problem["path"], &problem["name_known"]), (&"/d4/".into(), &false.into()));
    let text = bench.run(check).expect(5).text();
    assert!(text.contains("broken-long-name: /d4/<name unknown> (d/"), "{text}");
    let repaired = bench.run([&check[..], &["--repair", "--yes"]].concat()).expect(0).text();
    assert!(repaired.contains("repaired: broken-long-name: /d4/<name unknown> (d/"), "{repaired}");
    let found = bench.open("ls", &["/lost+found"]).expect(0).text();
    assert!(found.trim_end().ends_with(" (from d4)"), "{found}");
}

#[test]
fn cli_check_does_not_forget_lost_content() {
    let bench = Bench::new();
    bench.put_tree(&[("photos/2024/a", "x")]);
    let content = bench.content_files().pop().unwrap().parent().unwrap().to_path_buf();
    fs::rename(&content, bench.path("taken")).unwrap();
    let check = ["vault", "check", bench.vault_str(), "--password-file", bench.password_str(), "--json"];
    let found = bench.run(check).expect(5).json();
    assert_eq!(found["problems"][0]["kind"], "missing-content-dir");
    let repaired = bench.run([&check[..], &["--repair", "--yes"]].concat()).expect(5).json();
    assert_eq!(repaired["problems"], serde_json::json!([]));
    assert_eq!(repaired["lost"][0]["path"], "/photos/2024");
    let again = bench.run(check).expect(5).json();
    assert_eq!(again["lost"], repaired["lost"]);
    let note = again["lost"][0]["note"].as_str().unwrap();
    assert!(bench.run(&check[..5]).expect(5).text().contains("content lost: /photos/2024"));
    assert!(bench.open("cat", &[note]).expect(0).text().starts_with("/photos/2024\n"));
    bench.open("rm", &["--yes", note]).expect(0);
    bench.run(check).expect(0);
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

/// A copy of a frozen vault of the official library, in place of the bench's own.
fn fixture(name: &str) -> Option<Bench> {
    let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name).join("vault");
    let bench = Bench::bare();
    let copied = std::process::Command::new("cp").arg("-r").arg(from).arg(bench.vault()).status().unwrap();
    copied.success().then_some(bench)
}

#[test]
fn cli_reads_vaults_of_the_official_library() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/vault");
    let passwords: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("PASSWORDS.json")).unwrap()).unwrap();
    for (name, password) in passwords.as_object().unwrap() {
        let bench = fixture(&format!("vault/{name}")).expect("the fixture is there");
        let password = password.as_str().unwrap();
        let list = ["ls", bench.vault_str(), "-R", "--json", "--password-stdin"];
        let listed = bench.run_with(list, password.as_bytes()).expect(0).json();
        let mut found: Vec<String> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|e| {
                let (path, kind) = (e["path"].as_str().unwrap(), e["kind"].as_str().unwrap());
                let size = if kind == "file" { e["size"].as_u64() } else { None };
                format!("{path} {kind} {size:?} {:?}", e["target"].as_str())
            })
            .collect();
        let expected = fs::read_to_string(folder.join(name).join("expected.jsonl")).unwrap();
        let mut expected: Vec<String> = expected
            .lines()
            .map(|line| {
                let e: serde_json::Value = serde_json::from_str(line).unwrap();
                let kind = match e["kind"].as_str().unwrap() {
                    "dir" => "directory",
                    "link" => "symlink",
                    other => other,
                };
                format!("{} {kind} {:?} {:?}", e["path"].as_str().unwrap(), e["size"].as_u64(), e["target"].as_str())
            })
            .collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{name}");
        fs::write(bench.path("password"), password).unwrap();
        bench.run(["vault", "check", bench.vault_str(), "--password-file", bench.password_str()]).expect(0);
        bench.open("get", &["/", "out"]).expect(0);
    }
}

#[test]
fn cli_a_vault_without_both_its_files_is_a_damaged_one() {
    let bench = Bench::new();
    bench.run(["vault", "info", "run"]).expect(10).says("not a vault: it has no file vault.cryptomator");
    for name in ["vault.cryptomator", "masterkey.cryptomator"] {
        fs::remove_file(bench.vault().join(name)).unwrap();
        let info = bench.run(["vault", "info", bench.vault_str()]).expect(4).says("vault.cryptomator: corrupt data");
        assert!(info.says("the file is missing").text().contains("vault"));
    }
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
    assert_eq!(put.stderr, "", "the copies have the same owner");
    let get = bench.open("get", &["/d", "back"]).expect(0);
    assert_eq!(get.stderr, "");
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
    let put = put.says("put: /d/f: without its set-id bits, for its copy has another owner and group");
    put.says("put: /d: without its set-group-id bit, for its copy has another group");
    let listed = bench.open("ls", &["/d", "--json"]).expect(0).json();
    assert_eq!((listed[0]["mode"].as_u64(), listed[1]["mode"].as_u64()), (Some(0o755), Some(0o1640)));
}

/// Two names for one directory: everything in it would be copied twice, and one of the two is not what it was.
#[test]
fn cli_a_directory_id_that_two_names_have_is_damage() {
    let bench = Bench::new();
    bench.put_tree(&[("a/f", "of a"), ("b/g", "of b")]);
    let mut ids = Vec::new();
    let mut todo = vec![bench.vault().join("d")];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path());
            } else if entry.file_name() == "dir.c9r" {
                ids.push(entry.path());
            }
        }
    }
    assert_eq!(ids.len(), 2);
    fs::copy(&ids[0], &ids[1]).unwrap();
    let damaged = "/b: corrupt data";
    bench.open("get", &["/", "out"]).expect(4).says(damaged).says("it is the same directory as /a");
    assert_eq!(fs::read_dir(bench.path("out/a")).unwrap().count(), 1);
    assert!(!bench.path("out/b").exists());
    bench.open("ls", &["-R"]).expect(4).says(damaged);
    bench.open("rm", &["--yes", "-r", "/b", "/a"]).expect(4);
}
