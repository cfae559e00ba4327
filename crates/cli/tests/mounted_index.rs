//! The index of a mount: what was done in the mount before a question is in its answer, moved directories included.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use adit_mount::control::{ControlError, Registry};
use adit_testkit::scaled;
use common::{Bench, eventually};
use mounts::{Mounts, Points, status};
use serde_json::{Value, json};

/// Asks the index of the mount at `mnt`; all pieces of one kind together, and what comes last.
fn ask(bench: &Bench, mnt: &str, question: &Value, piece: &str) -> (Vec<Value>, Value) {
    for _ in 0..100 {
        match try_ask(bench, mnt, question, piece) {
            // All places for clients may be taken for a moment.
            Err(ControlError::Io { .. }) => std::thread::sleep(std::time::Duration::from_millis(20)),
            answer => return answer.unwrap(),
        }
    }
    panic!("nobody answers");
}

fn try_ask(bench: &Bench, mnt: &str, question: &Value, piece: &str) -> Result<(Vec<Value>, Value), ControlError> {
    let registry = Registry::at(bench.path("run/adit"));
    let mount = registry.find(&bench.path(mnt))?;
    let mut pieces = Vec::new();
    let mut each = |mut part: Value| {
        if let Some(Value::Array(items)) = part.get_mut(piece).map(Value::take) {
            pieces.extend(items);
        }
        Ok(())
    };
    let end = registry.call_streaming(&mount, "index", question, &mut each, &mut || Ok(()))?;
    Ok((pieces, end))
}

/// The paths that a substring of the name finds.
fn find(bench: &Bench, mnt: &str, text: &str) -> BTreeSet<String> {
    let pattern = json!({"syntax": "substring", "text": text.as_bytes(), "ignore_case": false, "full_path": false});
    let (hits, end) = ask(bench, mnt, &json!({"find": {"patterns": [pattern]}}), "hits");
    assert_eq!(end["count"], hits.len());
    hits.iter().map(|hit| hit["path"].as_str().unwrap().to_owned()).collect()
}

fn set<const N: usize>(paths: [&str; N]) -> BTreeSet<String> {
    paths.map(str::to_owned).into()
}

fn info(bench: &Bench, mnt: &str) -> Value {
    ask(bench, mnt, &json!("info"), "").1
}

fn one(bench: &Bench, mnt: &str, path: &str) -> Value {
    let question = json!({"resolve": {"start": [], "paths": [path.as_bytes()]}});
    ask(bench, mnt, &question, "answers").0.remove(0)
}

fn exchange(one: &Path, other: &Path) {
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, flags).unwrap();
}

/// All that changes, on whatever is mounted there writable, seen by `find` right after.
fn follows(bench: &Bench, mnt: &str) {
    let at = |path: &str| bench.path(mnt).join(path);
    assert_eq!(info(bench, mnt)["ready"], false, "nothing is kept before somebody asks");
    fs::create_dir_all(at("a/inner")).unwrap();
    fs::write(at("a/inner/needle.txt"), "1234").unwrap();
    assert_eq!(find(bench, mnt, "needle"), set(["a/inner/needle.txt"]));
    assert_eq!(info(bench, mnt)["ready"], true);
    fs::write(at("needle 2"), "").unwrap();
    assert_eq!(find(bench, mnt, "needle"), set(["a/inner/needle.txt", "needle 2"]));
    fs::rename(at("needle 2"), at("a/pin")).unwrap();
    fs::rename(at("a"), at("b")).unwrap();
    assert_eq!(find(bench, mnt, "needle"), set(["b/inner/needle.txt"]));
    assert_eq!(find(bench, mnt, "pin"), set(["b/pin"]));
    // Size and time of what is written are there when it is closed.
    let mut file = File::options().append(true).open(at("b/inner/needle.txt")).unwrap();
    file.write_all(b"56789").unwrap();
    drop(file);
    assert_eq!(one(bench, mnt, "b/inner/needle.txt")["found"]["size"], 9);
    fs::set_permissions(at("b/inner/needle.txt"), fs::Permissions::from_mode(0o640)).unwrap();
    File::options().write(true).open(at("b/pin")).unwrap().set_len(1 << 20).unwrap();
    let facts = one(bench, mnt, "b/../b/./inner/needle.txt");
    assert_eq!((&facts["found"]["path"], &facts["found"]["kind"]), (&json!("b/inner/needle.txt"), &json!("file")));
    assert_eq!(one(bench, mnt, "b/pin")["found"]["size"], 1 << 20);
    assert_eq!(one(bench, mnt, "a/inner")["missing"], json!({"deepest": "", "component": 0}));
    assert_eq!(one(bench, mnt, "b/pin/x")["not-directory"], json!({"at": "b/pin", "component": 1}));

    fs::create_dir(at("c")).unwrap();
    std::os::unix::fs::symlink("../b", at("c/needle link")).unwrap();
    exchange(&at("b"), &at("c"));
    assert_eq!(find(bench, mnt, "needle"), set(["b/needle link", "c/inner/needle.txt"]));
    // A path that goes through what moved is another one.
    let path = json!({"syntax": "glob", "text": b"c/*/needle*", "ignore_case": false, "full_path": true});
    let (hits, _) = ask(bench, mnt, &json!({"find": {"patterns": [path], "kinds": ["file"]}}), "hits");
    assert_eq!(hits.len(), 1, "{hits:?}");
    fs::rename(at("c/inner/needle.txt"), at("b/needle link")).unwrap();
    assert_eq!(find(bench, mnt, "needle"), set(["b/needle link"]));
    let (sums, total) = ask(bench, mnt, &json!({"du": {"path": []}}), "sums");
    assert_eq!((sums.len(), &total["bytes"]), (2, &json!((1 << 20) + 9)), "{sums:?}");
    let (sums, _) = ask(bench, mnt, &json!({"top": {"path": [], "count": 1}}), "sums");
    assert_eq!((&sums[0]["path"], &sums[1]["path"]), (&json!("c/pin"), &json!("c")), "{sums:?}");
    fs::remove_dir_all(at("c")).unwrap();
    fs::remove_file(at("b/needle link")).unwrap();
    assert_eq!(find(bench, mnt, "e"), set([]));
    let (all, _) = ask(bench, mnt, &json!({"find": {}}), "hits");
    assert_eq!((all.len(), &all[0]["path"]), (1, &json!("b")));
    assert_eq!(info(bench, mnt)["walks"], 1, "the tree was walked once");
}

#[test]
fn a_volume_is_followed() {
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    fs::write(m.at("f"), "").unwrap();
    m.bench.run(["snapshot", "create", &m.bench.str("mnt"), "needle-snapshot"]).expect(0);
    fs::remove_file(m.at("f")).unwrap();
    follows(&m.bench, "mnt");
    m.umount();
    m.expect_sound();
}

#[test]
fn a_vault_is_followed_and_its_names_reach_no_disk() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    follows(&m.bench, "mnt");
    assert_eq!(info(&m.bench, "mnt")["in_memory"], true);
    fs::write(m.at("a name that is nobody's business"), "").unwrap();
    find(&m.bench, "mnt", "x");
    // No file that this process has open holds it, but those in memory.
    for entry in fs::read_dir(format!("/proc/{}/fd", m.pid())).unwrap() {
        let entry = entry.unwrap().path();
        let target = fs::read_link(&entry).unwrap_or_default();
        let target_text = target.to_string_lossy();
        // Journal and ciphertext of the vault are not the index's.
        let is_vaults = ["state", "vault"].iter().any(|dir| target.starts_with(m.bench.path(dir)));
        let is_scratch = target_text.contains("(deleted)") && !target_text.starts_with("/memfd:") && !is_vaults;
        assert!(!is_scratch, "{}", target.display());
    }
    m.umount();
    m.expect_sound();
}

/// A daemon at boot has no home, and what lies in memory needs none.
#[test]
fn an_index_in_memory_needs_no_folder() {
    let Some(m) = Mounts::new() else { return };
    let mut mount = m.bench.command();
    mount.env("HOME", "no absolute path").args(["mount", m.bench.vault_str(), "mnt"]);
    mount.args(["--password-file", m.bench.password_str()]);
    common::run(mount, b"").expect(0);
    fs::write(m.at("needle"), "").unwrap();
    assert_eq!(m.bench.run(["index", "find", "mnt", "needle"]).expect(0).text(), "/needle\n");
    m.umount();
    let Some(m) = Mounts::volume(&[]) else { return };
    let mut mount = m.bench.command();
    mount.env("HOME", "no absolute path").args(["mount", &m.bench.str("box"), "mnt"]);
    common::run(mount, b"").expect(0);
    m.bench.run(["index", "find", "mnt", "needle"]).expect(1).says("XDG_CACHE_HOME");
    m.umount();
}

#[test]
fn what_a_mount_could_not_read_is_told() {
    let Some(m) = Mounts::new() else { return };
    let folders = || -> BTreeSet<std::path::PathBuf> {
        let below = |dir: std::path::PathBuf| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        below(m.bench.vault().join("d")).flat_map(below).collect()
    };
    m.mount(&[]).expect(0);
    fs::write(m.at("needle"), "12345").unwrap();
    let before = folders();
    fs::create_dir(m.at("lost")).unwrap();
    m.umount();
    for lost in folders().difference(&before) {
        fs::remove_dir_all(lost).unwrap();
    }
    m.mount(&[]).expect(0);
    for (args, text) in [
        (&["find", "mnt", "needle"][..], "/needle\n"),
        (&["find", "mnt", "-c", "needle"], "1\n"),
        (&["dupes", "mnt"], ""),
        (&["resolve", "mnt", "needle", "lost/x"], "/needle\n"),
    ] {
        let ran = m.bench.run(["index"].iter().chain(args)).expect(1).says("adit index update");
        assert_eq!(ran.stderr.matches("not whole: 1 thing could not be read").count(), 1, "{args:?}: {}", ran.stderr);
        assert_eq!(ran.text(), text, "{args:?}");
    }
    for verb in ["du", "top"] {
        m.bench.run(["index", verb, "mnt"]).expect(1).says("not whole");
    }
    m.bench.run(["index", "diff", "mnt", "mnt"]).expect(1).says("not whole");
    m.bench.run(["index", "resolve", "mnt", "needle"]).expect(0);
    m.umount();
}

#[test]
fn an_overlay_on_a_manifest_is_followed() {
    let Some(p) = Points::new(&["mnt"]) else { return };
    let bench = &p.bench;
    for (path, content) in [("tree/lower/needle-lower", "1"), ("tree/lower/x", "22")] {
        fs::create_dir_all(bench.path(path).parent().unwrap()).unwrap();
        fs::write(bench.path(path), content).unwrap();
    }
    fs::create_dir(bench.path("cas")).unwrap();
    bench.run(["manifest", "snapshot", "tree", "-o", "job", "--cas", "cas", "--cache-dir", "cache"]).expect(0);
    bench.run(["mount", "job", "mnt", "--writable", "--cas", "cas", "--cache-dir", "cache"]).expect(0);
    assert_eq!(find(bench, "mnt", "needle"), set(["lower/needle-lower"]));
    fs::rename(bench.path("mnt/lower"), bench.path("mnt/moved")).unwrap();
    fs::write(bench.path("mnt/moved/needle-upper"), "").unwrap();
    assert_eq!(find(bench, "mnt", "needle"), set(["moved/needle-lower", "moved/needle-upper"]));
    fs::remove_file(bench.path("mnt/moved/needle-lower")).unwrap();
    assert_eq!(find(bench, "mnt", "needle"), set(["moved/needle-upper"]));
    bench.run(["umount", "mnt"]).expect(0);
}

/// 100,000 entries move at once; a million with a scale of 10.
#[test]
fn a_large_directory_that_moves_is_found_at_once() {
    let Some(m) = Mounts::volume(&["--capacity", "8G"]) else { return };
    m.mount(&["-o", "index"]).expect(0);
    let count = scaled(100_000);
    fs::create_dir_all(m.at("large/deep")).unwrap();
    for n in 0..count {
        File::create(m.at(&format!("large/deep/{n:07}"))).unwrap();
    }
    fs::write(m.at("large/deep/needle"), "x").unwrap();
    assert_eq!(find(&m.bench, "mnt", "needle"), set(["large/deep/needle"]));
    let before = info(&m.bench, "mnt");
    let began = Instant::now();
    fs::rename(m.at("large"), m.at("elsewhere")).unwrap();
    assert_eq!(find(&m.bench, "mnt", "needle"), set(["elsewhere/deep/needle"]));
    println!("{count} entries: {:?} from the rename to the answer", began.elapsed());
    assert_eq!(find(&m.bench, "mnt", "0099999"), set(["elsewhere/deep/0099999"]));
    let after = info(&m.bench, "mnt");
    assert_eq!(after["walks"], before["walks"]);
    assert!(after["memory_bytes"].as_u64().unwrap() < 256 << 20, "{after}");
    // What it takes is a part of the mount's memory.
    let rss = status(m.pid(), "RssAnon") + status(m.pid(), "RssShmem");
    assert!(rss < 256 << 20, "{rss} bytes");
    m.umount();
}

#[test]
fn questions_and_changes_go_on_beside_each_other() {
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    fs::create_dir_all(m.at("a/moving/deep")).unwrap();
    fs::create_dir(m.at("b")).unwrap();
    (0..200).for_each(|n| drop(File::create(m.at(&format!("a/moving/deep/needle {n}"))).unwrap()));
    assert_eq!(find(&m.bench, "mnt", "needle").len(), 200);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..300 {
                let (from, to) = if n % 2 == 0 { ("a/moving", "b/moving") } else { ("b/moving", "a/moving") };
                fs::rename(m.at(from), m.at(to)).unwrap();
            }
            is_over.store(true, Relaxed);
        });
        scope.spawn(|| {
            for n in 0.. {
                if is_over.load(Relaxed) {
                    break;
                }
                let name = format!("other {n}");
                fs::write(m.at(&name), "x").unwrap();
                assert_eq!(find(&m.bench, "mnt", &name), set([&name]));
                fs::remove_file(m.at(&name)).unwrap();
                assert_eq!(find(&m.bench, "mnt", &name), set([]));
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let found = find(&m.bench, "mnt", "needle");
                    let below: BTreeSet<&str> = found.iter().map(|path| &path[..1]).collect();
                    assert_eq!((found.len(), below.len()), (200, 1), "half a rename was seen");
                }
            });
        }
    });
    m.umount();
    m.expect_sound();
}

#[test]
fn who_goes_away_ends_the_search_and_the_mount_ends_an_index_that_is_made() {
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    for n in 0..3000 {
        File::create(m.at(&format!("{n}"))).unwrap();
    }
    let registry = Registry::at(m.bench.path("run/adit"));
    let mount = registry.find(&m.mnt()).unwrap();
    // Hung up after the first piece, a hundred times: more than there are places for clients.
    for _ in 0..100 {
        let enough = || ControlError::NotAMount(m.mnt());
        let found = registry.call_streaming(
            &mount,
            "index",
            &json!({"find": {}}),
            &mut |part| {
                if part.get("hits").is_some() { Err(enough()) } else { Ok(()) }
            },
            &mut || Ok(()),
        );
        // All places may be taken for a moment.
        drop(found);
    }
    eventually("it answers others", || try_ask(&m.bench, "mnt", &json!("info"), "").is_ok());
    assert_eq!(find(&m.bench, "mnt", "2999"), set(["2999"]));
    let bad =
        json!({"find": {"patterns": [{"syntax": "regex", "text": b"(", "ignore_case": false, "full_path": false}]}});
    match try_ask(&m.bench, "mnt", &bad, "hits") {
        Err(ControlError::Answered { kind, .. }) => assert_eq!(kind, "InvalidInput"),
        other => panic!("{other:?}"),
    }
    // While it is walked again, the mount ends at once.
    let _ = try_ask(&m.bench, "mnt", &json!("update"), "");
    m.umount();
    m.expect_sound();
}

#[test]
fn who_asks_nothing_pays_nothing() {
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    fs::write(m.at("f"), "x").unwrap();
    let threads = || fs::read_dir(format!("/proc/{}/task", m.pid())).unwrap().flatten();
    let is_index = |task: fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("adit-index"))
    };
    assert!(!threads().any(is_index) && m.stats().get("index").is_none());
    info(&m.bench, "mnt");
    assert!(!threads().any(is_index), "to ask how it is does not make it");
    assert_eq!(find(&m.bench, "mnt", "f"), set(["f"]));
    assert!(threads().any(is_index));
    assert_eq!(m.stats()["index"]["walks"], 1);
    m.umount();
}

/// Why nothing of a listed directory is fetched ahead: its attributes come with its names.
#[test]
fn a_listing_with_attributes_asks_for_no_entry_by_itself() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::create_dir(m.at("d")).unwrap();
    (0..500).for_each(|n| fs::write(m.at(&format!("d/{n}")), "x").unwrap());
    m.remount(&[]);
    let entries = fs::read_dir(m.at("d")).unwrap();
    let bytes: u64 = entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(bytes, 500);
    let stats = m.stats();
    let asked = |kind: &str| stats["requests"][kind].as_u64().unwrap_or(0);
    println!(
        "500 entries: {} readdirplus, {} lookup, {} getattr",
        asked("readdirplus"),
        asked("lookup"),
        asked("getattr")
    );
    // That of the directory itself, and what the test's own looks at the mount take.
    assert!(asked("readdirplus") > 0 && asked("lookup") + asked("getattr") < 50, "{stats}");
    m.umount();
}

#[test]
fn a_user_asks_where_it_is_mounted() {
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    fs::create_dir_all(m.at("a/deep")).unwrap();
    fs::write(m.at("a/deep/needle.txt"), "12345").unwrap();
    fs::write(m.at("odd\nneedle"), "").unwrap();
    let mnt = m.bench.str("mnt");
    let index = |args: &[&str]| {
        let (verb, rest) = args.split_first().unwrap();
        m.bench.run([&["index", verb, &mnt], rest].concat())
    };
    assert_eq!(index(&["find", "needle.t"]).expect(0).text(), "/a/deep/needle.txt\n");
    fs::rename(m.at("a"), m.at("b")).unwrap();
    let found = index(&["find", "*.txt", "--glob", "--json"]).expect(0).json();
    let found = &found.as_array().unwrap()[0];
    assert_eq!(
        (&found["path"], &found["size"], &found["kind"]),
        (&json!("/b/deep/needle.txt"), &json!(5), &json!("file"))
    );
    assert_eq!(index(&["find", "needle", "-c"]).expect(0).text(), "2\n");
    assert_eq!(
        index(&["find", "needle", "-0", "--sort", "path"]).expect(0).text(),
        "/b/deep/needle.txt\0/odd\nneedle\0"
    );
    assert_eq!(index(&["find", "(", "--regex"]).expect(2).text(), "");
    assert_eq!(index(&["find", "--below", "/b", "--type", "directory"]).expect(0).text(), "/b/deep\n");
    assert_eq!(
        index(&["resolve", "/b/../b/deep", "b/deep/needle.txt"]).expect(0).text(),
        "/b/deep\n/b/deep/needle.txt\n"
    );
    let missed = index(&["resolve", "a/deep", "b/deep", "--json"]).expect(1).json();
    assert_eq!(
        (&missed[0]["found"], &missed[0]["reached"], &missed[1]["found"]),
        (&json!(false), &json!("/"), &json!(true))
    );
    let asked = m.bench.run_with(["index", "resolve", &mnt, "-0"], b"b\0b/deep/needle.txt\0").expect(0);
    assert_eq!(asked.text(), "/b\0/b/deep/needle.txt\0");
    let used = index(&["du", "b", "--json"]).expect(0).json();
    assert_eq!(
        (&used["size"], &used["files"], &used["children"][0]["path"]),
        (&json!(5), &json!(1), &json!("/b/deep"))
    );
    let used = index(&["du", "-s", "b/deep", "none", "b", "--json"]).expect(1).says("none").json();
    assert_eq!(used.as_array().unwrap().iter().map(|sum| &sum["path"]).collect::<Vec<_>>(), ["/b/deep", "/b"]);
    let used = m.bench.run_with(["index", "du", &mnt, "-0", "-s", "--paths-from", "-"], b"b\0b/deep\0").expect(0);
    assert_eq!(used.text(), "5 /b\x005 /b/deep\0");
    let top = index(&["top", "-n", "1", "--json"]).expect(0).json();
    assert_eq!(
        (&top["files"][0]["path"], &top["directories"][0]["path"]),
        (&json!("/b/deep/needle.txt"), &json!("/b"))
    );
    let counts = |told: &Value| [told["files"].clone(), told["directories"].clone(), told["size"].clone()];
    assert_eq!(counts(&top["files"][0]), [1, 0, 5].map(|count| json!(count)));
    assert_eq!(counts(&top["directories"][0]), [1, 1, 5].map(|count| json!(count)));
    for ask in [&["du", "/nope"][..], &["top", "--below", "/nope"], &["find", "--below", "/nope", "x"]] {
        assert!(index(ask).expect(1).says("/nope").stderr.find("//nope").is_none(), "{ask:?}");
    }
    assert_eq!(index(&["info", "--json"]).expect(0).json()["walks"], 1);
    assert_eq!(index(&["update", "--json"]).expect(0).json()["walks"], 2);
    fs::create_dir(m.bench.path("plain")).unwrap();
    m.bench.run(["index", "find", "plain", "x"]).expect(6).says("neither an index nor a mountpoint");
    // Its process has the processor alone, whatever the environment prefers.
    index(&["find", "needle", "--device", "gpu"]).expect(10).says("answers with the processor");
    index(&["resolve", "b", "--explain"]).expect(0).says("with the processor");
    let mut find = m.bench.command();
    find.env("ADIT_DEVICE", "gpu").args(["index", "find", &mnt, "needle", "-c"]);
    let found = common::run(find, b"").expect(0).says("ADIT_DEVICE=gpu is not heeded");
    assert_eq!(found.text(), "2\n");
    m.umount();
}

#[test]
fn a_folder_in_a_mount_is_that_part_of_it() {
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    fs::create_dir_all(m.at("a/deep")).unwrap();
    fs::create_dir_all(m.at("b")).unwrap();
    for name in ["a/deep/needle", "a/needle", "b/needle"] {
        fs::write(m.at(name), "12345").unwrap();
    }
    std::os::unix::fs::symlink("mnt/a", m.bench.path("way")).unwrap();
    for folder in ["mnt/a", "way", "mnt/b/../a/"] {
        let index = |args: &[&str]| {
            let (verb, rest) = args.split_first().unwrap();
            m.bench.run([&["index", verb, folder], rest].concat())
        };
        let both = "/a/deep/needle\n/a/needle\n";
        assert_eq!(index(&["find", "needle", "--sort", "path"]).expect(0).text(), both, "{folder}");
        assert_eq!(index(&["find", "needle", "--below", "/deep"]).expect(0).text(), "/a/deep/needle\n");
        assert_eq!(index(&["resolve", "deep/needle", "/b"]).expect(0).text(), "/a/deep/needle\n/b\n");
        assert_eq!(index(&["resolve", "needle", "--start", "deep"]).expect(0).text(), "/a/deep/needle\n");
        assert_eq!(index(&["du", "--json"]).expect(0).json()["path"], "/a");
        assert_eq!(index(&["du", "deep", "--json"]).expect(0).json()["size"], 5);
        assert_eq!(index(&["top", "-n", "9", "--json"]).expect(0).json()["files"].as_array().unwrap().len(), 2);
        assert_eq!(index(&["dupes"]).expect(0).text(), "/a/needle\n/a/deep/needle\n\n");
        // What is asked of a whole index says which mount that is.
        let whole = m.bench.str("mnt");
        index(&["info"]).expect(6).says(&whole);
        index(&["update"]).expect(6).says(&whole);
        m.bench.run(["index", "diff", folder, folder]).expect(6).says(&whole);
    }
    m.umount();
}
