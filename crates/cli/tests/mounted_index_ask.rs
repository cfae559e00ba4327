//! Mounts beside index files: the same questions with the same answers, and what only one of them knows.

mod common;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/mounts.rs"]
mod mounts;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use common::Ran;
use manifests::Job;
use mounts::Mounts;
use serde_json::{Value, json};

/// Entries by path, and without what the two may tell in other ways: the times of directories, and where links lead.
fn entries(ran: Ran) -> Vec<Value> {
    let mut told = ran.expect(0).json().as_array().unwrap().clone();
    for entry in &mut told {
        let is_dir = entry["kind"] == "directory";
        let entry = entry.as_object_mut().unwrap();
        entry.remove("target");
        if is_dir {
            entry.remove("mtime_ns");
        }
    }
    told.sort_by_key(|entry| entry["path"].as_str().unwrap().to_owned());
    told
}

fn set_time(path: &std::path::Path, secs: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// `work` with two equal files, one of the same size, and some more.
fn fill(job: &Job) {
    for (name, content) in [("a/one", "same"), ("b/deep/two", "same"), ("b/other", "diff"), ("unique", "longer")] {
        job.write(name, content.as_bytes());
        set_time(&job.path("work").join(name), 1_600_000_000);
    }
    symlink("unique", job.path("work/link")).unwrap();
}

#[test]
fn the_index_of_a_manifest_is_what_it_is_mounted_from() {
    for format in ["v2023", "v2025"] {
        let Some(w) = Job::new(&["mnt"]) else { return };
        fill(&w);
        w.snapshot("job", format);
        w.mount(&["-o", "index"]).expect(0);
        w.run(&["index", "build", "job", "-o", "file.idx"]).expect(0);
        let of_mount = entries(w.run(&["index", "find", "mnt", "--json"]));
        assert_eq!(of_mount, entries(w.run(&["index", "find", "file.idx", "--json"])), "{format}");
        let one = of_mount.iter().find(|entry| entry["path"] == "/a/one").unwrap();
        assert_eq!((&one["size"], one["hash"].as_str().map(str::len)), (&json!(4), Some(32)), "{one}");
        for question in [["--newer", "2020-01-01"], ["--below", "/b"], ["--glob", "**/t*"], ["--ext", "x"]] {
            let ask = |index: &str| {
                entries(w.run(&["index", "find", index, "--type", "file", "--json", question[0], question[1]]))
            };
            assert_eq!(ask("mnt"), ask("file.idx"), "{question:?}");
        }
        // As the mount tells it to everybody.
        let time = fs::metadata(w.at("b")).unwrap().modified().unwrap();
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as i64;
        let dirs = w.run(&["index", "find", "mnt", "--json", "--type", "directory", "--newer", "2020-01-01"]);
        let dirs = dirs.expect(0).json();
        assert!(
            !dirs.as_array().unwrap().is_empty() && dirs.as_array().unwrap().iter().all(|dir| dir["mtime_ns"] == since)
        );
        // Nothing was walked for it, and nothing of it lies twice.
        let info = w.run(&["index", "info", "mnt", "--json"]).expect(0).json();
        assert_eq!(
            (&info["mapped"], &info["walks"], &info["memory_bytes"]),
            (&json!(true), &json!(0), &json!(0)),
            "{info}"
        );
        let stats = w.run(&["stats", "mnt", "--json"]).expect(0).json();
        assert_eq!(
            (&stats["operations"]["opendirs"], &stats["operations"]["readdirs"]),
            (&json!(0), &json!(0)),
            "{stats}"
        );
        assert_eq!(w.run(&["index", "update", "mnt", "--json"]).expect(0).json()["walks"], 0);
        w.umount();
    }
}

#[test]
fn equal_files_of_a_mount_are_told_by_their_content() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::create_dir_all(m.at("b/deep")).unwrap();
    for (name, content) in [("one", "same"), ("b/deep/two", "same"), ("b/other", "diff"), ("unique", "longer")] {
        fs::write(m.at(name), content).unwrap();
    }
    let index = |args: &[&str]| m.bench.run([&["index", "dupes", "mnt"], args].concat());
    let told = index(&[]).expect(0);
    assert_eq!(told.text(), "/one\n/b/deep/two\n\n");
    assert!(told.stderr.contains("reads 3 files"), "{}", told.stderr);
    assert_eq!(index(&["-0"]).expect(0).stdout, b"/one\0/b/deep/two\0\0");
    let json = index(&["--json"]).expect(0).json();
    let group = &json["groups"][0];
    assert_eq!((&json["count"], &json["hashed"], &json["unhashed"]), (&json!(1), &json!(3), &json!(0)), "{json}");
    // Each file is one of those: the one that is left has a size of its own.
    assert_eq!(json["unique_size"], 1, "{json}");
    assert_eq!(
        (&group["size"], &group["wasted_bytes"], &group["files"][0]["path"]),
        (&json!(4), &json!(4), &json!("/one"))
    );
    assert_eq!(index(&["--below", "b"]).expect(0).text(), "");
    assert_eq!(index(&["--min-size", "5"]).expect(0).text(), "");
    assert_eq!(index(&["-n", "0"]).expect(0).text(), "");
    // The same hash as that of a file that was read for an index.
    m.bench.run(["index", "build", "mnt", "-o", "file.idx", "--hash"]).expect(0);
    let of_file = m.bench.run(["index", "dupes", "file.idx", "--json"]).expect(0).json();
    assert_eq!(of_file["groups"], json["groups"], "as of a file, in the same order");
    assert_eq!((&of_file["hashed"], &of_file["unique_size"]), (&json!(4), &json!(0)), "{of_file}");
    m.umount();
}

#[test]
fn equal_files_of_a_manifest_are_told_without_reading_them() {
    let Some(w) = Job::new(&["mnt"]) else { return };
    fill(&w);
    w.snapshot("job", "v2025");
    w.mount(&[]).expect(0);
    let told = w.run(&["index", "dupes", "mnt"]).expect(0);
    assert_eq!(told.text(), "/a/one\n/b/deep/two\n\n");
    assert_eq!(told.stderr, "", "nothing was read");
    assert_eq!(w.stats()["fetches"], 0);
    w.umount();
}

/// A writable mount of a manifest: what nobody changed has the manifest's hash, under whatever name.
#[test]
fn only_what_was_changed_on_a_manifest_is_read() {
    for index_first in [false, true] {
        let Some(w) = Job::new(&["mnt"]) else { return };
        fill(&w);
        w.write("long", &[7; 100_000]);
        w.snapshot("job", "v2025");
        w.run(&["index", "build", "job", "-o", "before.idx"]).expect(0);
        w.mount(&["--writable"]).expect(0);
        let dupes = |read: u64| {
            let told = w.run(&["index", "dupes", "mnt"]).expect(0);
            let says = told.stderr.split_whitespace().skip_while(|word| *word != "reads").nth(1);
            assert_eq!(says.map_or(0, |files| files.parse().unwrap()), read, "{}", told.stderr);
            told.text()
        };
        let renames = || {
            let told = w.run(&["index", "diff", "before.idx", "mnt"]).expect(0).text();
            let mut lines: Vec<String> = told.lines().filter(|line| !line.ends_with('/')).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        if index_first {
            assert_eq!(dupes(0), "/a/one\n/b/deep/two\n\n");
            assert_eq!(renames(), [""; 0]);
        }
        // Names and permissions are no content.
        fs::rename(w.at("a/one"), w.at("moved")).unwrap();
        fs::rename(w.at("b"), w.at("c")).unwrap();
        fs::set_permissions(w.at("c/deep/two"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(w.at("long"), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(dupes(0), "/moved\n/c/deep/two\n\n");
        assert_eq!(
            renames(),
            ["renamed  /a/one -> /moved", "renamed  /b/deep/two -> /c/deep/two", "renamed  /b/other -> /c/other",]
        );
        let found = entries(w.run(&["index", "find", "mnt", "--type", "file", "--json"]));
        assert!(found.iter().all(|file| file["hash"].is_string()), "{found:?}");
        assert_eq!(w.stats()["fetches"], 0, "nothing was read");
        // Another content behind the old time, and the old one once more: both are read, and only they.
        fs::write(w.at("moved"), "SAME").unwrap();
        set_time(&w.at("moved"), 1_600_000_000);
        assert_eq!(dupes(1), "");
        assert_eq!(renames().iter().filter(|line| line.contains("/moved")).collect::<Vec<_>>(), ["added    /moved"]);
        fs::write(w.at("moved"), "same").unwrap();
        assert_eq!(dupes(1), "/moved\n/c/deep/two\n\n");
        // Cut and as long as before: not what it was.
        File::options().write(true).open(w.at("long")).unwrap().set_len(12 * 4096).unwrap();
        File::options().write(true).open(w.at("long")).unwrap().set_len(100_000).unwrap();
        let found = entries(w.run(&["index", "find", "mnt", "--type", "file", "--json"]));
        let hashed = |path: &str| found.iter().find(|file| file["path"] == path).unwrap()["hash"].is_string();
        assert_eq!(["/long", "/moved", "/c/deep/two", "/unique"].map(hashed), [false, false, true, true], "{found:?}");
        assert_eq!(w.stats()["fetches"], 0, "nothing of the store was read");
        w.umount();
    }
}

#[test]
fn what_differs_between_mounts_and_files_is_told() {
    let Some(w) = Job::new(&["mnt"]) else { return };
    fill(&w);
    w.snapshot("job", "v2025");
    w.mount(&[]).expect(0);
    w.run(&["index", "build", "job", "-o", "before.idx"]).expect(0);
    let diff = |one: &str, other: &str| {
        let mut lines: Vec<String> =
            w.run(&["index", "diff", one, other]).expect(0).text().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(diff("before.idx", "mnt"), [""; 0]);
    assert_eq!(diff("mnt", "before.idx"), [""; 0]);
    // The folder that the manifest was made of, by size and time: the one has nanoseconds, the other microseconds.
    let odd = std::time::UNIX_EPOCH + std::time::Duration::new(1_700_000_000, 123_456_789);
    fs::File::options().write(true).open(w.path("work/unique")).unwrap().set_modified(odd).unwrap();
    w.umount();
    w.snapshot("job", "v2025");
    w.run(&["index", "build", "job", "-o", "before.idx"]).expect(0);
    w.run(&["index", "build", "work", "-o", "folder.idx"]).expect(0);
    let is_file = |line: &String| !line.ends_with('/');
    for options in [&[][..], &["--writable"]] {
        w.mount(options).expect(0);
        for manifest in ["before.idx", "mnt"] {
            let told = [diff("folder.idx", manifest), diff(manifest, "folder.idx")].concat();
            assert!(!told.iter().any(is_file), "{manifest} {options:?}: {told:?}");
        }
        w.umount();
    }
    w.mount(&[]).expect(0);
    let later = odd + std::time::Duration::from_micros(1);
    fs::File::options().write(true).open(w.path("work/unique")).unwrap().set_modified(later).unwrap();
    w.run(&["index", "build", "work", "-o", "folder.idx"]).expect(0);
    assert!(diff("folder.idx", "mnt").contains(&"changed  /unique".to_owned()), "a microsecond is a change");
    fs::rename(w.path("work/a/one"), w.path("work/a/moved")).unwrap();
    fs::write(w.path("work/unique"), "another").unwrap();
    fs::remove_file(w.path("work/b/other")).unwrap();
    w.write("new", b"new one");
    w.run(&["index", "build", "work", "-o", "after.idx", "--hash"]).expect(0);
    let files = |lines: Vec<String>| lines.into_iter().filter(|line| !line.ends_with('/')).collect::<Vec<_>>();
    let told = files(diff("mnt", "after.idx"));
    assert_eq!(told, files(diff("before.idx", "after.idx")), "as of a file");
    for line in ["added    /new", "changed  /unique", "removed  /b/other", "renamed  /a/one -> /a/moved"] {
        assert!(told.iter().any(|told| told == line), "{line}: {told:?}");
    }
    let told = w.run(&["index", "diff", "mnt", "after.idx", "--json"]).expect(0).json();
    assert!(told.as_array().unwrap().iter().any(|change| change["from"] == "/a/one"), "{told}");
    w.umount();
    // A mount that changes, without hashes: by size and time.
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    fs::create_dir(m.at("d")).unwrap();
    for name in ["d/stays", "d/changes", "d/goes"] {
        fs::write(m.at(name), "1").unwrap();
    }
    m.bench.run(["index", "build", "mnt", "-o", "before.idx"]).expect(0);
    fs::write(m.at("d/changes"), "22").unwrap();
    fs::rename(m.at("d/goes"), m.at("d/comes")).unwrap();
    let told = m.bench.run(["index", "diff", "before.idx", "mnt"]).expect(0).text();
    let mut lines: Vec<&str> = told.lines().filter(|line| !line.ends_with('/')).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["added    /d/comes", "changed  /d/changes", "removed  /d/goes"]);
    assert_eq!(m.bench.run(["index", "diff", "mnt", "mnt"]).expect(0).text(), "");
    m.umount();
}

#[test]
fn a_miss_of_a_mount_is_told_as_that_of_a_file() {
    let Some(w) = Job::new(&["mnt"]) else { return };
    fill(&w);
    w.snapshot("job", "v2025");
    w.mount(&[]).expect(0);
    w.run(&["index", "build", "job", "-o", "file.idx"]).expect(0);
    let paths = [
        "/a/b/none",
        "a//none/",
        "unique/x",
        "unique/",
        "link/x",
        "link",
        "",
        "./b/../b/deep/none/x",
        "/",
        "b/deep",
        "..",
        "none",
    ];
    for more in [&["--json"][..], &[], &["--start", "b"], &["--start", "b", "--json"]] {
        let ask = |index: &str| {
            let ran = w.run(&[&["index", "resolve", index], more, &["--"], &paths].concat()).expect(1);
            let told = match more.contains(&"--json") {
                true => {
                    let mut told = ran.json();
                    for answer in told.as_array_mut().unwrap() {
                        let answer = answer.as_object_mut().unwrap();
                        answer.remove("mtime_ns");
                        answer.remove("target");
                    }
                    told.to_string()
                }
                false => ran.text(),
            };
            (told, ran.stderr)
        };
        assert_eq!(ask("mnt"), ask("file.idx"), "{more:?}");
    }
    w.run(&["index", "resolve", "mnt", "/a/b"]).expect(1).says("not found: /a has no b");
    w.umount();
}

/// The content of a folder of a vault is gone: what was in it is not told as absent, neither by a mount nor by an index file.
#[test]
fn what_a_mount_could_not_read_is_not_known() {
    let Some(m) = Mounts::new() else { return };
    let folders = || -> BTreeSet<std::path::PathBuf> {
        let below = |dir: std::path::PathBuf| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        below(m.bench.vault().join("d")).flat_map(below).collect()
    };
    m.mount(&[]).expect(0);
    fs::create_dir(m.at("whole")).unwrap();
    fs::write(m.at("whole/gone"), "1").unwrap();
    let before = folders();
    fs::create_dir(m.at("dd")).unwrap();
    fs::write(m.at("dd/f"), "12345").unwrap();
    let lost: Vec<_> = folders().difference(&before).cloned().collect();
    let in_vault = |args: &[&str]| {
        m.bench.run([&["index"], args, &["--vault", "vault", "--password-file", m.bench.password_str()]].concat())
    };
    let build = |file: &str| {
        let args = ["index", "build", "vault", "-o", file, "--keep-going", "--password-file"];
        m.bench.run(args.into_iter().chain([m.bench.password_str()]))
    };
    build("whole.idx").expect(0);
    fs::remove_file(m.at("whole/gone")).unwrap();
    m.umount();
    assert_eq!(lost.len(), 1);
    fs::remove_dir_all(&lost[0]).unwrap();
    build("damaged.idx").expect(4);
    m.mount(&[]).expect(0);
    for json in [&[][..], &["--json"]] {
        let diff = |one: &str, other: &str| {
            in_vault(&[&["diff", one, other], json].concat()).expect(1).says("not whole").text()
        };
        let told = diff("whole.idx", "mnt");
        assert!(told.contains("unknown") && told.contains("/dd/f"), "{told}");
        assert!(told.contains("removed") && told.contains("/whole/gone") && !told.contains("added"), "{told}");
        assert_eq!(told, diff("whole.idx", "damaged.idx"), "as of a file");
        assert_eq!(diff("mnt", "whole.idx"), diff("damaged.idx", "whole.idx"), "as of a file");
    }
    let paths = ["dd/f", "dd/deep/er", "dd/../dd/f/", "whole/none"];
    let resolve = |of: &str, args: &[&str]| in_vault(&[&["resolve", of], args, &paths].concat()).expect(1);
    let told = resolve("mnt", &["--json"]).json();
    assert_eq!((&told[0]["why"], &told[3]["why"]), (&json!("not-known"), &json!("not-found")), "{told}");
    assert_eq!(told, resolve("damaged.idx", &["--json"]).json());
    // However often it is looked at.
    let unread = || m.bench.run(["index", "info", "mnt", "--json"]).expect(0).json()["unread"].clone();
    let before = unread();
    let _ = (fs::read_dir(m.mnt()).map(Iterator::count), resolve("mnt", &[]), fs::metadata(m.at("dd")));
    resolve("mnt", &[]);
    assert_eq!((unread(), &before), (json!(1), &json!(1)));
    let told = resolve("mnt", &[]).stderr;
    assert!(told.contains("dd/f: not known: / could not be read when the index was made"), "{told}");
    for args in [&["find", "mnt", "x", "--below", "dd/f"][..], &["du", "mnt", "dd/f"]] {
        m.bench.run([&["index"], args].concat()).expect(1).says("not known: / could not be read");
    }
    m.umount();
}

/// A question to a mount travels as a line, which has a limit; batches have none.
#[test]
fn long_questions_to_a_mount_are_answered() {
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    fs::create_dir(m.at("d")).unwrap();
    fs::write(m.at("d/f"), "1").unwrap();
    m.bench.run(["index", "build", "mnt", "-o", "file.idx"]).expect(0);
    let resolve = |of: &str, paths: &[String]| {
        let mut run = m.bench.command();
        run.args(["index", "resolve", of]).args(paths);
        let ran = common::run(run, b"");
        (ran.stdout.clone(), ran.stderr.clone(), ran)
    };
    let long = |len: usize| format!("{}d/f", "./".repeat(len / 2));
    // Controls are what JSON makes longest.
    let odd = |len: usize| format!("d/{}", "\u{1}".repeat(len));
    let found: Vec<String> = (0..256).map(|n| long(1500 + 2 * n)).collect();
    let mixed: Vec<String> =
        (0..8).flat_map(|n| [long(100_000), odd(60_000), long(n), String::new(), "none".to_owned()]).collect();
    let (text, _, ran) = resolve("mnt", &found);
    ran.expect(0);
    assert_eq!(String::from_utf8(text).unwrap(), "/d/f\n".repeat(256));
    let (text, said, ran) = resolve("mnt", &mixed);
    ran.expect(1);
    let (text_of_file, said_of_file, _) = resolve("file.idx", &mixed);
    assert_eq!((text, &said), (text_of_file, &said_of_file));
    assert!(said.lines().all(|line| line.len() < 500), "a message shows no more of a path than is read");
    // Patterns of nearly the longest length.
    let glob = |n: usize| format!("{n}{}", "x".repeat(60_000));
    let mut find = m.bench.command();
    find.args(["index", "find", "mnt", "f"]).args((0..20).flat_map(|n| ["-E".to_owned(), glob(n)]));
    assert_eq!(common::run(find, b"").expect(0).text(), "/d/f\n");
    // And very many of them.
    let find_any = |patterns: &str| {
        let mut find = m.bench.command();
        find.args(["index", "find", "mnt", "--patterns-from", "-"]);
        common::run(find, patterns.as_bytes()).expect(0).text()
    };
    let many: String = (0..20_000).map(|n| format!("name_{n:07}\n")).collect();
    assert_eq!(find_any(&format!("{many}f\n")), "/d/f\n");
    assert_eq!((find_any(&many), find_any("\n")), (String::new(), String::new()));
    m.umount();
}

/// One line that is too long is a miss like others; those before and behind it are answered.
#[test]
fn a_path_that_is_too_long_is_a_miss_of_its_own() {
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    fs::create_dir(m.at("d")).unwrap();
    fs::write(m.at("d/f"), "1").unwrap();
    m.bench.run(["index", "build", "mnt", "-o", "file.idx"]).expect(0);
    let whole = format!("{}d/f", "./".repeat((1 << 19) - 2));
    let (long, longer) = (format!("x{whole}"), format!("d/{}", "x".repeat(3 << 20)));
    assert!(whole.len() < 1 << 20 && long.len() == 1 << 20);
    let input = ["d", &whole, &longer, "d/f", &long, &format!("{longer}/d/f"), "", "d"].join("\n");
    fs::write(m.bench.path("questions"), &input).unwrap();
    for of in ["mnt", "file.idx"] {
        let ran = m.bench.run_with(["index", "resolve", of], input.as_bytes()).expect(1);
        assert_eq!(ran.text(), "/d\n/d/f\n/d/f\n/d\n", "{of}");
        assert_eq!(ran.stderr.matches("too long: paths of more than 1048576 bytes").count(), 2, "{of}: {}", ran.stderr);
        assert!(ran.stderr.len() < 2000, "{of}: {}", ran.stderr);
        // Its answers are longer than a pipe takes before all was asked.
        let mut run = m.bench.command();
        let answers = File::create(m.bench.path("answers")).unwrap();
        run.args(["index", "resolve", of, "--json"]).stdin(File::open(m.bench.path("questions")).unwrap());
        assert_eq!(run.stdout(answers).status().unwrap().code(), Some(1));
        let told: Value = serde_json::from_slice(&fs::read(m.bench.path("answers")).unwrap()).unwrap();
        let told = told.as_array().unwrap();
        assert_eq!(told.len(), 8, "{of}");
        let asked = |n: usize| told[n]["asked"].as_str().unwrap();
        assert!(asked(1) == whole && asked(4) == long, "all of what was looked up is told");
        assert_eq!((&told[2]["why"], &told[2]["asked_bytes"]), (&json!("too-long"), &json!((3 << 20) + 2)), "{of}");
        assert_eq!((&told[2]["reached"], asked(2).len()), (&json!("/"), 1 << 20), "{of}");
        assert_eq!((&told[5]["why"], &told[6]["why"]), (&json!("too-long"), &json!("empty")), "{of}");
    }
    m.umount();
}

/// The host takes less than 4 KiB of a path at once; what lies deeper is compared all the same.
#[test]
fn what_lies_deep_in_a_mount_is_compared() {
    use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, mkdirat, openat, symlinkat, unlinkat, utimensat};
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    let (name, flags) = ("n".repeat(200), OFlags::DIRECTORY | OFlags::CLOEXEC);
    let mut at = openat(rustix::fs::CWD, m.mnt(), flags, Mode::empty()).unwrap();
    for _ in 0..30 {
        mkdirat(&at, &*name, Mode::from_raw_mode(0o755)).unwrap();
        at = openat(&at, &*name, flags, Mode::empty()).unwrap();
    }
    for (name, content) in [("one", b"same"), ("two", b"same"), ("other", b"diff")] {
        let made = openat(&at, name, OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o644)).unwrap();
        rustix::io::write(made, content).unwrap();
    }
    let link = |to: &str| {
        symlinkat(to, &at, "link").unwrap();
        let time = Timespec { tv_sec: 1_600_000_000, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(&at, "link", &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    };
    link("a");
    m.bench.run(["index", "build", "mnt", "-o", "before.idx", "--hash"]).expect(0);
    // Of the same length and time.
    unlinkat(&at, "link", AtFlags::empty()).unwrap();
    link("b");
    m.bench.run(["index", "build", "mnt", "-o", "after.idx", "--hash"]).expect(0);
    let told = |one: &str, other: &str| {
        let told = m.bench.run(["index", "diff", one, other]).expect(0).text();
        told.lines().filter(|line| !line.ends_with('/')).map(str::to_owned).collect::<Vec<_>>()
    };
    let of_files = told("before.idx", "after.idx");
    assert!(
        of_files.len() == 1 && of_files[0].starts_with("changed ") && of_files[0].ends_with("/link"),
        "{of_files:?}"
    );
    assert_eq!(told("before.idx", "mnt"), of_files);
    assert_eq!(told("after.idx", "mnt"), [""; 0]);
    let of_mount = m.bench.run(["index", "dupes", "mnt"]).expect(0);
    assert!(!of_mount.stderr.contains("not compared"), "{}", of_mount.stderr);
    assert_eq!(of_mount.text(), m.bench.run(["index", "dupes", "after.idx"]).expect(0).text());
    assert_eq!(of_mount.text().lines().count(), 3);
    drop(at);
    m.umount();
}

/// A link whose target cannot be read may lead where it led, or elsewhere.
#[test]
fn a_link_that_cannot_be_read_is_not_known() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::write(m.at("f"), "1").unwrap();
    symlink("somewhere", m.at("link")).unwrap();
    m.bench.run(["index", "build", "mnt", "-o", "before.idx"]).expect(0);
    m.umount();
    let mut folders = vec![m.bench.vault()];
    let mut harmed = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if entry.file_name() == "symlink.c9r" {
                let mut bytes = fs::read(entry.path()).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::write(entry.path(), bytes).unwrap();
                harmed += 1;
            }
        }
    }
    assert_eq!(harmed, 1);
    m.mount(&[]).expect(0);
    for args in [["before.idx", "mnt"], ["mnt", "before.idx"], ["mnt", "mnt"]] {
        let told = m.bench.run(["index", "diff", args[0], args[1]]).expect(1).says("/link: ").says("not whole");
        assert_eq!(told.text(), "unknown  /link\n", "{args:?}");
    }
    m.umount();
}

/// The entries that `info` and `stats` tell are those that there are, and not those of a base that was made some time ago.
#[test]
fn info_of_a_mount_counts_what_is_there_now() {
    let Some(m) = Mounts::volume(&[]) else { return };
    m.mount(&[]).expect(0);
    fs::create_dir_all(m.at("a/deep")).unwrap();
    for n in 0..10 {
        fs::write(m.at(&format!("a/deep/{n}")), "1").unwrap();
    }
    let count = || {
        let found: u64 = m.bench.run(["index", "find", "mnt", "-c"]).expect(0).text().trim().parse().unwrap();
        let info = m.bench.run(["index", "info", "mnt", "--json"]).expect(0).json();
        assert_eq!(m.stats()["index"]["entries"], info["entries"]);
        m.bench.run(["index", "build", "mnt", "-o", "now.idx"]).expect(0);
        let of_file = m.bench.run(["index", "info", "now.idx", "--json"]).expect(0).json();
        assert_eq!(of_file["entries"], info["entries"], "as of a file");
        assert_eq!(info["entries"], found + 1, "with the root");
        found
    };
    assert_eq!(count(), 12);
    fs::rename(m.at("a/deep"), m.at("deep")).unwrap();
    fs::write(m.at("deep/new"), "1").unwrap();
    assert_eq!(count(), 13);
    fs::remove_file(m.at("deep/3")).unwrap();
    fs::rename(m.at("deep/4"), m.at("a/4")).unwrap();
    assert_eq!(count(), 12);
    fs::remove_dir_all(m.at("deep")).unwrap();
    assert_eq!(count(), 2);
    assert_eq!(m.bench.run(["index", "info", "mnt", "--json"]).expect(0).json()["walks"], 1);
    m.umount();
}
