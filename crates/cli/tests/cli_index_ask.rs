//! `adit index find|resolve|dupes|diff|du|top`: questions to index files, as a user asks them.

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use common::{Bench, Ran};
use serde_json::Value;

/// A folder `work`, and its index `i` with hashes.
fn bench() -> Bench {
    let bench = Bench::bare();
    let at = |name: &[u8]| bench.path("work").join(OsStr::from_bytes(name));
    fs::create_dir_all(at(b"Photos/2024")).unwrap();
    fs::create_dir_all(at(b"empty")).unwrap();
    for (name, len) in [
        (&b"Photos/2024/one.JPG"[..], 3000),
        (b"Photos/2024/two.jpg", 2000),
        (b"Photos/again.jpg", 3000),
        (b"notes.txt", 10),
        (b"new\nline", 1),
        (b"\xff\xfe", 0),
    ] {
        fs::write(at(name), vec![7; len]).unwrap();
    }
    symlink("notes.txt", at(b"link")).unwrap();
    let past = SystemTime::now() - Duration::from_secs(90 * 86_400);
    File::open(at(b"notes.txt")).unwrap().set_modified(past).unwrap();
    index(&bench, &["build", "work", "-o", "i", "--hash"]).expect(0);
    bench
}

fn index(bench: &Bench, args: &[&str]) -> Ran {
    bench.run(["index"].iter().chain(args))
}

/// The lines that were printed.
fn lines(ran: Ran) -> Vec<String> {
    ran.expect(0).text().lines().map(str::to_owned).collect()
}

fn sorted(ran: Ran) -> Vec<String> {
    let mut lines = lines(ran);
    lines.sort();
    lines
}

fn field<'v>(list: &'v Value, name: &str) -> Vec<&'v str> {
    list.as_array().unwrap().iter().map(|one| one[name].as_str().unwrap()).collect()
}

#[test]
fn newer_and_older_part_the_tree() {
    let bench = bench();
    let day = Duration::from_secs(1_740_873_600);
    let notes = bench.path("work/notes.txt");
    File::open(notes).unwrap().set_modified(SystemTime::UNIX_EPOCH + day).unwrap();
    index(&bench, &["build", "work", "-o", "j"]).expect(0);
    let found = |args: &[&str]| sorted(index(&bench, &[&["find", "j"], args].concat()));
    let all = found(&[]).len();
    for time in ["2025-03-02", "2025-03-02T00:00:00Z", "2025-03-02T01:30:00+01:30", "2025-03-01T19:00:00-0500"] {
        let (newer, older) = (found(&["--newer", time]), found(&["--older", time]));
        assert!(newer.contains(&"/notes.txt".to_owned()), "{time}: {newer:?}");
        assert_eq!(newer.len() + older.len(), all, "{time}");
    }
    assert_eq!(found(&["--older", "2025-03-02T00:00:01Z"]), ["/notes.txt"]);
    for bad in ["2025-02-31", "2025-03-02T00:00:00+1", "2025-03-02T00:00:00"] {
        index(&bench, &["find", "j", "--newer", bad]).expect(2);
    }
}

/// Of many patterns, wherever they come from; and of none.
#[test]
fn patterns_are_read_from_a_file_or_standard_input() {
    let bench = bench();
    let given = |args: &[&str], input: &[u8]| {
        let args = [&["index", "find", "i", "--patterns-from"], args].concat();
        sorted(bench.run_with(args, input))
    };
    let both = ["/Photos/2024/two.jpg", "/notes.txt"];
    assert_eq!(given(&["-"], b"two\n\nnote"), both);
    assert_eq!(given(&["-", "-i"], b"TWO\nNOTES\n"), both);
    assert_eq!(given(&["-", "--glob"], b"t*.jpg\n*.txt\n"), both);
    assert_eq!(given(&["-", "--regex"], b"^two\ntxt$\n"), both);
    // One with a slash, and one for names.
    assert_eq!(given(&["-"], b"2024/two\nnotes\n"), both);
    assert_eq!(given(&["-", "--ext", "jpg"], b"two\nnotes\n"), both[..1]);
    assert_eq!(given(&["-"], b""), [""; 0]);
    assert_eq!(given(&["-", "--count"], b"two\nnote\nnotes"), ["2"]);
    let zero = ["index", "find", "i", "--patterns-from", "-", "-0"];
    assert_eq!(bench.run_with(zero, b"new\nline\0\xff\0").expect(0).stdout, b"/new\nline\0/\xff\xfe\0");
    fs::write(bench.path("list"), "two\nnote\n").unwrap();
    assert_eq!(given(&["list"], b""), both);
    index(&bench, &["find", "i", "--patterns-from", "none"]).expect(1).says("none: no such file");
    index(&bench, &["find", "i", "x", "--patterns-from", "list"]).expect(2);
    let mixed = ["index", "find", "i", "--patterns-from", "-", "--regex"];
    bench.run_with(mixed, b"a/b\nc\n").expect(2).says("have a slash, and some do not");
}

#[test]
fn names_and_paths_are_found() {
    let bench = bench();
    let find = |args: &[&str]| index(&bench, &[&["find", "i"], args].concat());
    assert_eq!(sorted(find(&["jpg"])), ["/Photos/2024/two.jpg", "/Photos/again.jpg"]);
    assert_eq!(find(&["jpg", "-i", "--count"]).expect(0).text(), "3\n");
    assert_eq!(find(&["jpg", "-i", "--count", "--json"]).expect(0).json()["count"], 3);
    assert_eq!(sorted(find(&["--glob", "*.jpg"])), ["/Photos/2024/two.jpg", "/Photos/again.jpg"]);
    assert_eq!(sorted(find(&["--glob", "Photos/*.jpg"])), ["/Photos/again.jpg"]);
    assert_eq!(sorted(find(&["--glob", "Photos/**/*.jpg"])), ["/Photos/2024/two.jpg", "/Photos/again.jpg"]);
    assert_eq!(sorted(find(&["--regex", "^(one|two)\\."])), ["/Photos/2024/one.JPG", "/Photos/2024/two.jpg"]);
    assert_eq!(sorted(find(&["2024/t"])), ["/Photos/2024/two.jpg"]);
    assert_eq!(sorted(find(&["2024", "-p", "-t", "file"])), ["/Photos/2024/one.JPG", "/Photos/2024/two.jpg"]);
    assert_eq!(sorted(find(&["--ext", "jpg", "--min-size", "2500"])), ["/Photos/2024/one.JPG", "/Photos/again.jpg"]);
    assert_eq!(sorted(find(&["--max-size", "0", "-t", "f"])), ["/\u{fffd}\u{fffd}"]);
    assert_eq!(sorted(find(&["-t", "directory"])), ["/Photos", "/Photos/2024", "/empty"]);
    assert_eq!(sorted(find(&["--older", "30d", "-t", "file"])), ["/notes.txt"]);
    assert_eq!(sorted(find(&["--newer", "30d", "--ext", "txt"])), [""; 0]);
    assert_eq!(sorted(find(&["--older", "2000-01-01"])), [""; 0]);
    assert_eq!(
        lines(find(&["--below", "/Photos", "--max-depth", "1", "--sort", "name"])),
        ["/Photos/2024", "/Photos/again.jpg"]
    );
    let largest = ["-t", "file", "--sort", "size", "--reverse", "-n", "2"];
    assert_eq!(sorted(find(&largest)), ["/Photos/2024/one.JPG", "/Photos/again.jpg"]);
    assert_eq!(sorted(find(&["--exclude", "Photos", "-t", "file", "--ext", "jpg"])), [""; 0]);
    // As they are, names of any bytes.
    let raw = find(&["-t", "file", "--max-size", "1", "-0", "--sort", "name"]).expect(0).stdout;
    assert_eq!(raw, b"/new\nline\0/\xff\xfe\0");
    assert_eq!(sorted(find(&["new"])), ["/new\\nline"]);
    for (args, says) in [
        (&["--regex", "(", ""][..2], "pattern"),
        (&["--glob", "--regex", "x"], "cannot be used"),
        (&["--newer", "tomorrow"], "tomorrow"),
        (&["--min-size", "x"], "not a size"),
    ] {
        find(args).expect(2).says(says);
    }
    find(&["--below", "/none"]).expect(1).says("/none: not found");
    find(&["--below", "/notes.txt"]).expect(1).says("not a folder");
}

#[test]
fn hits_are_objects_as_those_of_ls() {
    let bench = bench();
    let hits = index(&bench, &["find", "i", "--json", "--sort", "path"]).expect(0).json();
    let expected =
        ["/Photos", "/Photos/2024", "/Photos/2024/one.JPG", "/Photos/2024/two.jpg", "/Photos/again.jpg", "/empty"];
    assert_eq!(field(&hits, "path")[..6], expected);
    let of = |path: &str| hits.as_array().unwrap().iter().find(|hit| hit["path"] == path).unwrap();
    let notes = of("/notes.txt");
    assert_eq!((&notes["kind"], &notes["size"], &notes["mode"]), (&"file".into(), &10.into(), &0o644.into()));
    assert!(notes["mtime_ns"].is_i64() && notes["hash"].as_str().unwrap().len() == 32);
    assert_eq!((&of("/link")["kind"], &of("/link")["target"]), (&"symlink".into(), &"notes.txt".into()));
    let raw = of("/\u{fffd}\u{fffd}")["path_raw"].as_array().unwrap();
    assert_eq!(raw, &[0x2f, 0xff, 0xfe].map(Value::from));
    let listed = bench.run(["ls", "work", "--json", "-R"]).expect(0).json();
    let mut paths = (field(&hits, "path"), field(&listed, "path"));
    paths.0.sort();
    paths.1.sort();
    assert_eq!(paths.0, paths.1);
}

#[test]
fn paths_are_resolved_with_a_precise_miss() {
    let bench = bench();
    let resolve = |args: &[&str]| index(&bench, &[&["resolve", "i"], args].concat());
    assert_eq!(
        resolve(&["/notes.txt", "Photos//2024/../again.jpg"]).expect(0).text(),
        "/notes.txt\n/Photos/again.jpg\n"
    );
    assert_eq!(resolve(&["--start", "Photos", "2024", "..", "/"]).expect(0).text(), "/Photos/2024\n/\n/\n");
    let ran = resolve(&["/notes.txt", "Photos/2023/x", "notes.txt/x", "link/x", "Photos/"]).expect(1);
    assert_eq!(ran.text(), "/notes.txt\n/Photos\n");
    ran.says("Photos/2023/x: not found: /Photos has no 2023")
        .says("notes.txt/x: /notes.txt is not a folder")
        .says("link/x: /link is a link");
    let told = resolve(&["--json", "notes.txt", "Photos/2023/x", "link/x"]).expect(1).json();
    assert_eq!(
        (&told[0]["found"], &told[0]["path"], &told[0]["size"]),
        (&true.into(), &"/notes.txt".into(), &10.into())
    );
    assert_eq!(told[0]["asked"], "notes.txt");
    let miss = &told[1];
    assert_eq!(
        (&miss["found"], &miss["why"], &miss["asked"]),
        (&false.into(), &"not-found".into(), &"Photos/2023/x".into())
    );
    assert_eq!((&miss["reached"], &miss["missing"]), (&"/Photos".into(), &"2023/x".into()));
    assert_eq!(told[2]["why"], "link");
    resolve(&["--start", "none", "x"]).expect(1).says("none");
    // Bulk, from standard input: lines, or any bytes.
    let from = |args: &[&str], input: &[u8]| bench.run_with([&["index", "resolve", "i"], args].concat(), input);
    let lines = (0..60_000).map(|_| "notes.txt\nPhotos/again.jpg\n").collect::<String>();
    let ran = from(&[], lines.as_bytes()).expect(0);
    assert_eq!(ran.stdout.len(), 60_000 * "/notes.txt\n/Photos/again.jpg\n".len());
    assert_eq!(from(&["-0"], b"\xff\xfe\0new\nline\0").expect(0).stdout, b"/\xff\xfe\0/new\nline\0");
    assert_eq!(from(&["-0"], b"notes.txt").expect(0).stdout, b"/notes.txt\0");
    assert_eq!(from(&[], b"").expect(0).text(), "");
    // An empty line is no path, and the root has a name.
    let ran = from(&[], b"notes.txt\n\n/\n").expect(1).says("an empty path");
    assert_eq!(ran.text(), "/notes.txt\n/\n");
    assert_eq!(from(&["-0"], b"\0/\0").expect(1).says("an empty path").stdout, b"/\0");
    let told = from(&["--json", "--start", "Photos"], b"\nagain.jpg\n").expect(1).json();
    assert_eq!(
        (&told[0]["why"], &told[0]["asked"], &told[0]["reached"]),
        (&"empty".into(), &"".into(), &"/Photos".into())
    );
    assert_eq!((&told[1]["found"], &told[1]["path"]), (&true.into(), &"/Photos/again.jpg".into()));
    resolve(&[""]).expect(1).says("an empty path");
    from(&["--json"], b"none\n").expect(1);
    assert_eq!(from(&["--json"], b"").expect(0).json(), Value::Array(Vec::new()));
}

#[test]
fn what_could_not_be_read_is_not_known() {
    let bench = bench();
    if !common::is_root("a folder that nobody may read") {
        return;
    }
    fs::set_permissions(bench.path("work/empty"), PermissionsExt::from_mode(0o000)).unwrap();
    // Root may read everything: another user builds it.
    let mut command = bench.command();
    fs::set_permissions(bench.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    std::os::unix::process::CommandExt::uid(&mut command, 65_534);
    command.args(["index", "build", "work", "-o", "part", "--keep-going"]);
    common::run(command, b"").expect(1).says("empty").says("not whole: 1 thing could not be read");
    let part = bench.str("part");
    index(&bench, &["resolve", &part, "empty/x"]).expect(1).says("not known: /empty could not be read");
    let told = index(&bench, &["resolve", &part, "empty/x", "none", "--json"]).expect(1).json();
    assert_eq!(field(&told, "why"), ["not-known", "not-found"]);
    // What is missing need not be absent: an answer that may lack something is not a success, and says so once.
    for args in [
        &["find", &part, "notes"][..],
        &["find", &part, "notes", "--json"],
        &["find", &part, "notes", "--count"],
        &["find", &part, "notes", "--quiet"],
        &["dupes", &part],
        &["du", &part],
        &["du", &part, "no such folder", "Photos"],
        &["top", &part],
    ] {
        let ran = index(&bench, args).expect(1).says("index update");
        assert_eq!(ran.stderr.matches("not whole: 1 thing could not be read").count(), 1, "{args:?}: {}", ran.stderr);
    }
    assert_eq!(index(&bench, &["find", &part, "notes"]).text(), "/notes.txt\n");
    // What is there is there.
    index(&bench, &["resolve", &part, "notes.txt"]).expect(0);
    // What is in a folder that was not read is neither added nor removed.
    fs::write(bench.path("work/empty/new"), "").unwrap();
    fs::write(bench.path("work/new"), "").unwrap();
    index(&bench, &["build", "work", "-o", "all"]).expect(0);
    let differ = |before: &str, after: &str| {
        let ran = index(&bench, &["diff", before, after]).expect(1).says("not whole");
        ran.text().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(differ(&part, "all"), ["unknown  /empty/new", "added    /new"]);
    assert_eq!(differ("all", &part), ["unknown  /empty/new", "removed  /new"]);
    let told = index(&bench, &["diff", "all", &part, "--json"]).expect(1).json();
    assert_eq!(field(&told, "change"), ["unknown", "removed"]);
    let mut command = bench.command();
    std::os::unix::process::CommandExt::uid(&mut command, 65_534);
    command.args(["index", "build", "work", "-o", "none"]);
    common::run(command, b"").expect(1).says("empty").says("--keep-going");
    assert!(!bench.path("none").exists());
}

/// A file that nobody may read is known by its name: only what compares contents is not whole.
#[test]
fn a_file_without_its_content_is_a_file() {
    let bench = bench();
    if !common::is_root("a file that nobody may read") {
        return;
    }
    fs::set_permissions(bench.path("work/notes.txt"), PermissionsExt::from_mode(0o000)).unwrap();
    fs::set_permissions(bench.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let by_another = |args: &[&str]| {
        let mut command = bench.command();
        std::os::unix::process::CommandExt::uid(&mut command, 65_534);
        command.arg("index").args(args);
        common::run(command, b"")
    };
    by_another(&["build", "work", "-o", "part", "--hash"]).expect(1).says("notes.txt").says("--keep-going");
    assert!(!bench.path("part").exists());
    let ran =
        by_another(&["build", "work", "-o", "part", "--hash", "--keep-going", "--json"]).expect(1).says("notes.txt");
    let told = ran.json();
    assert_eq!((&told["unreadable"], &told["unread_contents"]), (&0.into(), &1.into()));
    by_another(&["update", "part", "--keep-going"])
        .expect(1)
        .says("the content of 1 file could not be read for its hash");
    let part = bench.str("part");
    let info = index(&bench, &["info", &part, "--json"]).expect(0).json();
    assert_eq!((&info["unreadable"], &info["unread_contents"]), (&0.into(), &1.into()));
    assert_eq!(index(&bench, &["find", &part, "notes"]).expect(0).text(), "/notes.txt\n");
    for args in [&["du", &part][..], &["top", &part], &["resolve", &part, "notes.txt"]] {
        index(&bench, args).expect(0);
    }
    index(&bench, &["resolve", &part, "none"]).expect(1).says("not found");
    for args in [&["dupes", &part][..], &["diff", &part, "i"], &["diff", "i", &part, "--quiet"]] {
        let ran = index(&bench, args).expect(1).says("update").says("--keep-going");
        assert_eq!(ran.stderr.matches("the content of 1 file could not be read").count(), 1, "{}", ran.stderr);
        assert!(!ran.stderr.contains("no hash"), "{}", ran.stderr);
    }
    index(&bench, &["diff", &part, "i", "--content", "size"]).expect(0);
    // Who may read it completes it.
    index(&bench, &["update", &part]).expect(0);
    index(&bench, &["dupes", &part]).expect(0);
}

#[test]
fn equal_content_is_told() {
    let bench = bench();
    let groups: Vec<String> = lines(index(&bench, &["dupes", "i"]));
    assert_eq!(groups, ["/Photos/again.jpg", "/Photos/2024/one.JPG", ""]);
    let told = index(&bench, &["dupes", "i", "--json"]).expect(0).json();
    let group = &told["groups"][0];
    assert_eq!((&group["size"], &group["wasted_bytes"]), (&3000.into(), &3000.into()));
    assert_eq!(field(&group["files"], "path"), ["/Photos/again.jpg", "/Photos/2024/one.JPG"]);
    assert_eq!((&told["count"], &told["unhashed"], &told["wasted_bytes"]), (&1.into(), &0.into(), &3000.into()));
    assert_eq!(lines(index(&bench, &["dupes", "i", "--min-size", "4K"])), [""; 0]);
    assert_eq!(lines(index(&bench, &["dupes", "i", "--below", "/Photos/2024"])), [""; 0]);
    assert_eq!(index(&bench, &["dupes", "i", "-0"]).expect(0).stdout, b"/Photos/again.jpg\0/Photos/2024/one.JPG\0\0");
    index(&bench, &["build", "work", "-o", "plain"]).expect(0);
    index(&bench, &["dupes", "plain"]).expect(0).says("5 files").says("--hash");
    assert_eq!(index(&bench, &["dupes", "plain", "--json"]).expect(0).json()["unhashed"], 5);
}

#[test]
fn differences_are_told() {
    let bench = bench();
    let (at, diff) =
        (|name: &str| bench.path("work").join(name), |args: &[&str]| index(&bench, &[&["diff"], args].concat()));
    assert_eq!(lines(diff(&["i", "i"])), [""; 0]);
    fs::rename(at("Photos/2024/two.jpg"), at("two.jpg")).unwrap();
    fs::write(at("notes.txt"), "longer than before").unwrap();
    fs::remove_dir(at("empty")).unwrap();
    fs::write(at("added"), "").unwrap();
    fs::set_permissions(at("Photos/again.jpg"), PermissionsExt::from_mode(0o600)).unwrap();
    index(&bench, &["build", "work", "-o", "j", "--hash"]).expect(0);
    let expected =
        ["added    /added", "changed  /notes.txt", "removed  /empty/", "renamed  /Photos/2024/two.jpg -> /two.jpg"];
    let of_files = |ran: Ran| -> Vec<String> {
        // The times of folders change with what is in them.
        sorted(ran).into_iter().filter(|line| !(line.starts_with("changed") && line.ends_with('/'))).collect()
    };
    assert_eq!(of_files(diff(&["i", "j"])), expected);
    assert!(sorted(diff(&["i", "j", "--perm"])).contains(&"attributes /Photos/again.jpg".to_owned()));
    let told = diff(&["i", "j", "--json"]).expect(0).json();
    let renamed = told.as_array().unwrap().iter().find(|one| one["change"] == "renamed").unwrap();
    assert_eq!((&renamed["from"], &renamed["path"]), (&"/Photos/2024/two.jpg".into(), &"/two.jpg".into()));
    let apart = sorted(diff(&["i", "j", "--no-renames"]));
    assert!(apart.contains(&"added    /two.jpg".to_owned()), "{apart:?}");
    let raw = diff(&["i", "j", "-0"]).expect(0).stdout;
    let renamed = b"renamed /Photos/2024/two.jpg\0/two.jpg\0";
    assert!(raw.windows(renamed.len()).any(|part| part == renamed));
    diff(&["i", "none"]).expect(1).says("none");
    diff(&["i", "work/notes.txt"]).expect(10).says("not an index");
    diff(&["i", "work"]).expect(6).says("neither an index nor a mountpoint");
}

/// Of many folders, wherever they come from; one that is not there is passed over.
#[test]
fn sizes_of_many_folders_are_added_up() {
    let bench = bench();
    let told = index(&bench, &["du", "i", "-s", "Photos/2024", "Photos", "--json"]).expect(0).json();
    assert_eq!(field(&told, "path"), ["/Photos/2024", "/Photos"]);
    assert_eq!((&told[0]["size"], &told[1]["size"], told[1].get("children")), (&5000.into(), &8000.into(), None));
    let given =
        |args: &[&str], input: &[u8]| bench.run_with([&["index", "du", "i", "--paths-from"], args].concat(), input);
    let text = lines(given(&["-"], b"Photos\n\nempty\n"));
    let ends = ["/Photos/2024/", "/Photos/again.jpg", "/Photos/", "/empty/"];
    assert!(text.len() == 4 && text.iter().zip(ends).all(|(line, end)| line.ends_with(end)), "{text:?}");
    assert_eq!(given(&["-", "-s", "-0"], b"Photos\0new\nline").expect(0).stdout, b"8000 /Photos\x001 /new\nline\0");
    assert_eq!(given(&["-", "--json"], b"").expect(0).json(), serde_json::json!([]));
    let told = given(&["-", "--json"], b"empty").expect(0).json();
    assert_eq!((&told[0]["path"], &told[0]["children"]), (&"/empty".into(), &serde_json::json!([])));
    fs::write(bench.path("list"), "Photos/none\nempty\n").unwrap();
    let told = given(&["list", "--json"], b"").expect(1).says("Photos/none: not found").json();
    assert_eq!(field(&told, "path"), ["/empty"]);
    let long = [&[b'x'; (1 << 20) + 1][..], b"\nempty\n"].concat();
    let told = given(&["-", "--json"], &long).expect(1).says("a path of 1048577 bytes").json();
    assert_eq!(field(&told, "path"), ["/empty"]);
    index(&bench, &["du", "i", "Photos", "none", "-s"]).expect(1).says("none: not found");
    given(&["none"], b"").expect(1).says("none: no such file");
    given(&["list", "Photos"], b"").expect(2);
}

#[test]
fn sizes_are_added_up() {
    let bench = bench();
    let told = index(&bench, &["du", "i", "--json"]).expect(0).json();
    let target = "notes.txt".len();
    assert_eq!((&told["path"], &told["size"]), (&"/".into(), &(3000 + 2000 + 3000 + 10 + 1 + target).into()));
    assert_eq!((&told["files"], &told["directories"], &told["others"]), (&6.into(), &3.into(), &1.into()));
    let photos = &told["children"][0];
    assert_eq!((&photos["path"], &photos["size"], &photos["files"]), (&"/Photos".into(), &8000.into(), &3.into()));
    let text = lines(index(&bench, &["du", "i", "Photos"]));
    assert_eq!(text.len(), 3);
    assert!(text[0].ends_with("/Photos/2024/") && text[2].contains("7.8 KiB"), "{text:?}");
    index(&bench, &["du", "i", "none"]).expect(1).says("not found");
    let told = index(&bench, &["top", "i", "--json", "-n", "2"]).expect(0).json();
    assert_eq!(field(&told["directories"], "path"), ["/Photos", "/Photos/2024"]);
    let mut files = field(&told["files"], "path");
    files.sort();
    assert_eq!(files, ["/Photos/2024/one.JPG", "/Photos/again.jpg"]);
    assert_eq!(lines(index(&bench, &["top", "i", "-n", "1"])).len(), 2);
    assert_eq!(
        index(&bench, &["top", "i", "-n", "1", "--below", "/Photos/2024", "-0"]).expect(0).stdout,
        b"3000 /Photos/2024/one.JPG\0"
    );
}

#[test]
fn an_encrypted_index_answers_who_has_the_password() {
    let bench = Bench::new();
    bench.put_tree(&[("in/a/secret name", "x"), ("in/b", "x")]);
    let with =
        |args: &[&str]| index(&bench, &[args, &["--vault", "vault", "--password-file", bench.password_str()]].concat());
    index(&bench, &["build", "vault", "-o", "i", "--hash", "--password-file", bench.password_str()]).expect(0);
    assert_eq!(lines(with(&["find", "i", "secret"])), ["/in/a/secret name"]);
    assert_eq!(lines(with(&["resolve", "i", "in/b"])), ["/in/b"]);
    assert_eq!(lines(with(&["dupes", "i"])).len(), 3);
    assert_eq!(lines(with(&["diff", "i", "i"])), [""; 0]);
    assert_eq!(with(&["du", "i", "--json"]).expect(0).json()["size"], 2);
    for args in
        [&["find", "i"][..], &["resolve", "i", "x"], &["dupes", "i"], &["diff", "i", "i"], &["du", "i"], &["top", "i"]]
    {
        index(&bench, args).expect(2).says("--vault");
    }
    fs::write(bench.path("wrong"), "no").unwrap();
    index(&bench, &["find", "i", "--vault", "vault", "--password-file", "wrong"]).expect(3);
}

#[test]
fn links_and_hidden_files_are_entries_like_others() {
    let bench = Bench::bare();
    let at = |name: &str| bench.path("work").join(name);
    fs::create_dir_all(at(".hidden/.deep")).unwrap();
    fs::write(at(".hidden/.deep/.file"), vec![1; 100]).unwrap();
    fs::hard_link(at(".hidden/.deep/.file"), at("another name")).unwrap();
    symlink(".hidden", at("link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    index(&bench, &["build", "work", "-o", "i", "--hash"]).expect(0);
    // Nothing is left out, and on each level of the tree hits come by path.
    let all = ["/.hidden", "/another name", "/dangling", "/link", "/.hidden/.deep", "/.hidden/.deep/.file"];
    assert_eq!(lines(index(&bench, &["find", "i"])), all);
    assert_eq!(lines(index(&bench, &["find", "i", "-t", "symlink"])), ["/dangling", "/link"]);
    // A link is an entry, and no way.
    assert_eq!(lines(index(&bench, &["resolve", "i", "link"])), ["/link"]);
    let told = index(&bench, &["resolve", "i", "--json", "link/.deep", "dangling/x"]).expect(1).json();
    assert_eq!(field(&told, "why"), ["link", "link"]);
    // A file of two names has two entries; that they are one file no index knows.
    assert_eq!(lines(index(&bench, &["dupes", "i"])), ["/another name", "/.hidden/.deep/.file", ""]);
    let total = index(&bench, &["du", "i", "--json"]).expect(0).json();
    assert_eq!((&total["files"], &total["directories"], &total["others"]), (&2.into(), &2.into(), &2.into()));
    // To find nothing is an answer, and so is that there is no difference; a path that is missing, or a pattern that is none, is not.
    assert_eq!(lines(index(&bench, &["find", "i", "no such name"])), [""; 0]);
    assert_eq!(lines(index(&bench, &["dupes", "i", "--min-size", "1M"])), [""; 0]);
    assert_eq!(lines(index(&bench, &["diff", "i", "i"])), [""; 0]);
    index(&bench, &["resolve", "i", "no such name"]).expect(1).says("has no no such name");
    index(&bench, &["find", "i", "--regex", "("]).expect(2);
    index(&bench, &["du", "i", "no such name"]).expect(1);
    fs::remove_file(at("link")).unwrap();
    symlink("elsewhere", at("link")).unwrap();
    index(&bench, &["build", "work", "-o", "j", "--hash"]).expect(0);
    assert!(lines(index(&bench, &["diff", "i", "j"])).contains(&"changed  /link".to_owned()));
}
