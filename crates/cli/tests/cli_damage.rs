//! Damaged vaults without a mount: what is told, with which code, and what a check and a repair make of it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{Bench, Killed, PASSWORD};

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
    let lines = listed.stderr.lines().count();
    assert_eq!((listed.text().as_str(), lines), ("f\nf (conflict)\n", 1), "{}", listed.stderr);
    assert!(listed.stderr.starts_with("adit: 1 warning: -v shows"), "{}", listed.stderr);
    let told = bench.open("ls", &["-v"]).expect(0).stderr;
    assert!(told.contains("WARN") && told.contains("a second version of an entry"), "{told}");
    assert_eq!(bench.open("ls", &["-q"]).expect(0).stderr, "");
    let check = ["vault", "check", bench.vault_str(), "--password-file", bench.password_str()];
    assert!(bench.run(check).expect(0).text().contains("a second version of /f,"));
}

#[test]
fn cli_conflicts_are_listed_and_one_version_is_kept() {
    let bench = Bench::new();
    let of = |verb: &[&str]| {
        let first = ["vault", "conflicts", bench.vault_str(), "--password-file", bench.password_str()];
        bench.run(first.iter().chain(verb))
    };
    for (content, kept) in [("first", "/f.txt"), ("other", "/f (conflict).txt")] {
        fs::write(bench.path("f.txt"), "first").unwrap();
        bench.open("put", &["f.txt", "/"]).expect(0);
        let good = bench.content_files().into_iter().max_by_key(|file| fs::metadata(file).unwrap().modified().unwrap());
        let good = good.unwrap();
        let second = good.to_str().unwrap().replace(".c9r", " (conflict).c9r");
        fs::copy(&good, &second).unwrap();
        fs::write(bench.path("f (conflict).txt"), "other").unwrap();
        bench.open("put", &["f (conflict).txt", "/"]).expect(0);
        assert_eq!(bench.open("cat", &["/f (conflict).txt"]).expect(0).text(), "other");
        let listed = of(&["--json"]).expect(0).json();
        let told = (&listed["conflicts"][0]["path"], &listed["conflicts"][0]["version"]);
        assert_eq!(told, (&"/f.txt".into(), &"/f (conflict).txt".into()), "{listed}");
        assert!(of(&[]).expect(0).text().ends_with("1 second version\n"));
        of(&["--keep", "/other"]).expect(1).says("no two versions");
        let done = of(&["--keep", kept]).expect(0).text();
        assert!(done.contains("/lost+found/") && done.ends_with("no second versions\n"), "{done}");
        assert_eq!(bench.open("cat", &["/f.txt"]).expect(0).text(), content);
        assert_eq!(bench.open("ls", &[]).expect(0).text(), "f.txt\nlost+found\n");
        bench.check(&[]).expect(0);
        bench.open("rm", &["-ry", "/f.txt", "/lost+found"]).expect(0);
    }
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
fn cli_a_vault_without_both_its_files_is_a_damaged_one() {
    let bench = Bench::new();
    bench.run(["vault", "info", "run"]).expect(10).says("not a vault: it has no file vault.cryptomator");
    for name in ["vault.cryptomator", "masterkey.cryptomator"] {
        fs::remove_file(bench.vault().join(name)).unwrap();
        let info = bench.run(["vault", "info", bench.vault_str()]).expect(4).says("vault.cryptomator: corrupt data");
        assert!(info.says("the file is missing").text().contains("vault"));
    }
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
