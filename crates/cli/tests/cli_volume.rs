//! Volumes without a mount: making, filling, comparing, setting back, checking.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Bench, Ran, facts, make_tree, pattern};
use serde_json::Value;

/// A bench with a volume.
struct Boxed {
    bench: Bench,
}

impl Boxed {
    fn new(init: &[&str]) -> Boxed {
        let bench = Bench::bare();
        let file = bench.str("box");
        bench.run(["volume", "init", &file].iter().chain(init)).expect(0);
        Boxed { bench }
    }

    fn file(&self) -> PathBuf {
        self.bench.path("box")
    }

    /// `do_it("ls", &["/"])` is `adit ls BOX /`.
    fn run(&self, verb: &str, args: &[&str]) -> Ran {
        self.bench.run([verb, &self.bench.str("box")].iter().chain(args))
    }

    /// `of("snapshot create", &["s"])` is `adit snapshot create BOX s`.
    fn of(&self, verbs: &str, args: &[&str]) -> Ran {
        let file = self.bench.str("box");
        let mut line: Vec<&str> = verbs.split(' ').collect();
        line.push(&file);
        line.extend_from_slice(args);
        self.bench.run(line)
    }

    fn write(&self, path: &str, content: &str) {
        self.bench.run_with(["put", &self.bench.str("box"), "-", path], content.as_bytes()).expect(0);
    }

    fn read(&self, path: &str) -> String {
        self.run("cat", &[path]).expect(0).text()
    }

    /// The paths that `diff` tells, with how they differ.
    fn diff(&self, args: &[&str]) -> Vec<(String, String)> {
        let found = self.of("snapshot diff", &[args, &["--json"]].concat()).expect(0).json();
        let text = |difference: &Value, key: &str| difference[key].as_str().unwrap().to_owned();
        found.as_array().unwrap().iter().map(|d| (text(d, "change"), text(d, "path"))).collect()
    }
}

fn told(change: &str, path: &str) -> (String, String) {
    (change.to_owned(), path.to_owned())
}

#[test]
fn a_volume_that_would_be_too_large_is_refused_with_the_most() {
    let boxed = Boxed::new(&["--capacity", "4M"]);
    boxed.bench.run(["volume", "init", "large", "--capacity", "900P"]).expect(2).says("less than 8.0 PiB");
    assert!(!boxed.bench.path("large").exists());
    boxed.bench.run(["volume", "init", "large", "--capacity", "7P"]).expect(0);
    boxed.of("volume resize", &["900P"]).expect(2).says("less than 8.0 PiB");
    assert_eq!(boxed.of("volume resize", &["1T", "--json"]).expect(0).json()["capacity_bytes"], 1_u64 << 40);
    boxed.of("snapshot create", &["s"]).expect(0);
    let made = boxed.of("clone create", &["s", "b", "--json"]).expect(0).json();
    assert_eq!((made["name"].as_str(), made["origin"].as_str()), (Some("b"), Some("s")), "{made}");
    boxed.of("volume resize", &["7P"]).expect(1).says("TiB: make a larger one");
}

#[test]
fn several_snapshots_are_deleted_at_once() {
    let boxed = Boxed::new(&[]);
    for name in ["a", "b", "c"] {
        boxed.of("snapshot create", &[name]).expect(0);
    }
    boxed.of("snapshot delete", &[]).expect(2);
    boxed.of("snapshot delete", &["a", "b"]).expect(2).says("Delete snapshots a, b of").says("--yes");
    // One that fails does not keep the others.
    boxed.of("snapshot delete", &["a", "none", "b", "-y"]).expect(1).says("none");
    let left = boxed.of("snapshot list", &["--json"]).expect(0).json();
    assert_eq!((left.as_array().unwrap().len(), left[0]["name"].as_str()), (1, Some("c")));
}

#[test]
fn a_tree_goes_in_and_comes_out_as_it_was() {
    let boxed = Boxed::new(&[]);
    let tree = boxed.bench.path("tree");
    make_tree(&tree);
    boxed.run("put", &[tree.to_str().unwrap(), "/"]).expect(0);
    boxed.run("get", &["/tree", &boxed.bench.str("out")]).expect(0);
    assert_eq!(facts(&tree), facts(&boxed.bench.path("out")));

    // A copy of a volume that nobody has open is a backup.
    fs::copy(boxed.file(), boxed.bench.path("backup")).unwrap();
    boxed.run("rm", &["-ry", "/tree"]).expect(0);
    boxed.bench.run(["get", &boxed.bench.str("backup"), "/tree", &boxed.bench.str("again")]).expect(0);
    assert_eq!(facts(&tree), facts(&boxed.bench.path("again")));

    boxed.run("mkdir", &["-p", "/a/b"]).expect(0);
    boxed.write("/a/f", "text");
    boxed.run("mv", &["/a/f", "/a/b/g"]).expect(0);
    let listed = boxed.run("ls", &["-R", "--json"]).expect(0).json();
    let paths: Vec<&str> = listed.as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/a", "/a/b", "/a/b/g"]);
    boxed.of("volume check", &[]).expect(0);
}

#[test]
fn a_volume_is_what_was_asked_for() {
    let boxed = Boxed::new(&["--capacity", "64M", "--durability", "sync"]);
    let info = boxed.of("volume info", &["--json"]).expect(0).json();
    assert_eq!(info["kind"], "volume");
    assert_eq!((info["capacity_bytes"].as_u64(), info["durability"].as_str()), (Some(64 << 20), Some("sync")));
    assert_eq!((info["snapshots"].as_u64(), info["branches"].as_u64()), (Some(0), Some(1)));
    assert!(info["allocated_bytes"].as_u64().unwrap() < 8 << 20, "{info}");
    assert_eq!(info["mountpoint"], Value::Null);
    // What is there is never overwritten.
    let before = fs::read(boxed.file()).unwrap();
    boxed.of("volume init", &[]).expect(1).says("exists already");
    assert!(before == fs::read(boxed.file()).unwrap());
    // Reading leaves the file as it is.
    boxed.run("ls", &[]).expect(0);
    boxed.of("volume check", &[]).expect(0);
    assert!(before == fs::read(boxed.file()).unwrap());
}

#[test]
fn what_only_vaults_have_is_refused() {
    let boxed = Boxed::new(&[]);
    boxed.run("ls", &["--password-stdin"]).expect(2).says("has no password");
    boxed.of("vault info", &[]).expect(10).says("a volume, and not a vault");
    let vault = Bench::new();
    vault.run(["volume", "info", vault.vault_str()]).expect(10);
    vault.run(["volume", "info", &vault.str("run")]).expect(6);
    vault.run(["volume", "check", vault.vault_str()]).expect(10).says("a vault, and not a volume");
    vault.run(["snapshot", "list", &vault.str("password")]).expect(10);
    // A volume whose first bytes are lost is one all the same: the second superblock has the rest.
    let mut bytes = fs::read(boxed.file()).unwrap();
    bytes[..512].fill(0);
    fs::write(boxed.file(), bytes).unwrap();
    boxed.run("ls", &[]).expect(0);
    boxed.bench.run(["ls", &format!("volume:{}", boxed.bench.str("box"))]).expect(0);
}

#[test]
fn a_full_volume_says_so_and_can_be_emptied() {
    let boxed = Boxed::new(&["--capacity", "16M"]);
    fs::write(boxed.bench.path("big"), pattern(4 << 20)).unwrap();
    let big = boxed.bench.str("big");
    let full = (0..8).map(|n| boxed.run("put", &[&big, &format!("/{n}")])).find(|ran| ran.code != Some(0));
    full.expect("it gets full").expect(8);
    boxed.of("volume check", &[]).expect(0);
    boxed.run("rm", &["-y", "/0"]).expect(0);
    boxed.of("volume gc", &[]).expect(0);
    boxed.run("put", &[&big, "/again"]).expect(0);
}

#[test]
fn space_is_given_back() {
    let boxed = Boxed::new(&[]);
    fs::write(boxed.bench.path("big"), pattern(32 << 20)).unwrap();
    boxed.run("put", &[&boxed.bench.str("big"), "/big"]).expect(0);
    let taken = || fs::metadata(boxed.file()).unwrap().blocks() * 512;
    assert!(taken() >= 32 << 20);
    boxed.of("snapshot create", &["s"]).expect(0);
    boxed.run("rm", &["-y", "/big"]).expect(0);
    boxed.of("volume gc", &[]).expect(0);
    assert!(taken() >= 32 << 20, "the snapshot has it");
    boxed.of("snapshot delete", &["s", "-y"]).expect(0);
    let report = boxed.of("volume gc", &["--json"]).expect(0).json();
    assert!(taken() < 16 << 20, "{} {report}", taken());
}

#[test]
fn snapshots_keep_differ_and_are_set_back() {
    let boxed = Boxed::new(&[]);
    boxed.run("mkdir", &["/d", "/e"]).expect(0);
    for (path, content) in [("/d/same", "1"), ("/d/changed", "old"), ("/d/gone", "2"), ("/e/moved", "3")] {
        boxed.write(path, content);
    }
    let made = boxed.of("snapshot create", &["one", "--json"]).expect(0).json();
    assert_eq!((made["name"].as_str(), made["branch"].as_str()), (Some("one"), Some("main")));
    assert!(made["store_secs"].as_f64().is_some() && made["flush_secs"].as_f64().is_some());
    assert_eq!(boxed.diff(&["one"]), []);
    boxed.of("snapshot create", &["one"]).expect(1).says("exists already");

    boxed.write("/d/changed", "new");
    boxed.write("/d/added", "4");
    boxed.run("rm", &["-y", "/d/gone"]).expect(0);
    boxed.run("mv", &["/e", "/f"]).expect(0);
    let expected =
        [told("added", "/d/added"), told("changed", "/d/changed"), told("removed", "/d/gone"), told("renamed", "/f")];
    assert_eq!(boxed.diff(&["one"]), expected);
    boxed.of("snapshot create", &["two"]).expect(0);
    assert_eq!(boxed.diff(&["one", "two"]), expected);
    let text = boxed.of("snapshot diff", &["one"]).expect(0).text();
    assert!(text.contains("renamed  /e/ -> /f/"), "{text}");

    // As an unset variable gives it.
    boxed.of("snapshot restore", &["one", "", "-y"]).expect(2).says("the path is empty");
    // One file, then everything.
    boxed.of("snapshot restore", &["one", "/d/gone"]).expect(2).says("no terminal");
    boxed.of("snapshot restore", &["one", "/d/gone", "-y"]).expect(0);
    assert_eq!(boxed.read("/d/gone"), "2");
    assert_eq!(boxed.read("/d/changed"), "new");
    boxed.of("snapshot restore", &["one", "-y"]).expect(0);
    assert_eq!(boxed.diff(&["one"]), []);
    assert_eq!((boxed.read("/d/changed"), boxed.read("/e/moved")), ("old".to_owned(), "3".to_owned()));
    boxed.of("snapshot restore", &["two", "-y"]).expect(0);
    assert_eq!(boxed.read("/d/changed"), "new");

    let list = boxed.of("snapshot list", &["--json"]).expect(0).json();
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["one", "two"]);
    boxed.of("snapshot delete", &["one", "-y"]).expect(0);
    boxed.of("snapshot delete", &["none", "-y"]).expect(1);
    boxed.of("volume check", &[]).expect(0);
}

#[test]
fn what_is_missing_is_named_and_no_data_folder_is_blamed() {
    let boxed = Boxed::new(&[]);
    boxed.run("mkdir", &["-p", "/a/b"]).expect(0);
    boxed.write("/a/b/f", "text");
    boxed.of("snapshot create", &["s"]).expect(0);
    boxed.run("rm", &["--yes", "--recursive", "/a"]).expect(0);
    let missing = |args: &[&str], what: &str| {
        let ran = boxed.of("snapshot restore", &[args, &["-y"]].concat()).expect(1).says(what);
        assert!(!ran.stderr.contains("--data"), "{}", ran.stderr);
    };
    missing(&["s", "/a/b/f"], "restore /a: not found");
    boxed.run("mkdir", &["/a"]).expect(0);
    missing(&["s", "/a/b/f"], "restore /a/b: not found");
    missing(&["s", "/none"], "restore /none: not found");
    missing(&["none"], "none: not found");
    boxed.of("snapshot restore", &["s", "/a/b", "-y"]).expect(0);
    assert_eq!(boxed.read("/a/b/f"), "text");
}

#[test]
fn what_no_volume_can_have_is_a_mistake_of_the_command_line() {
    let boxed = Boxed::new(&[]);
    boxed
        .bench
        .run(["volume", "init", &boxed.bench.str("small"), "--capacity", "1K"])
        .expect(2)
        .says("at least 4.0 MiB");
    assert!(!boxed.bench.path("small").exists());
    boxed.of("volume resize", &["0"]).expect(2).says("at least 4.0 MiB");
    boxed.of("snapshot create", &["s"]).expect(0);
    for (name, why) in [("a/b", "no '/'"), ("..", "no '/'"), ("", "at least one character")] {
        boxed.of("snapshot create", &[name]).expect(2).says(why);
        boxed.of("clone create", &["s", name]).expect(2).says(why);
    }
}

#[test]
fn branches_go_their_own_ways() {
    let boxed = Boxed::new(&[]);
    boxed.write("/f", "base");
    boxed.of("snapshot create", &["s"]).expect(0);
    boxed.of("clone create", &["s", "b"]).expect(0);
    boxed.of("clone create", &["s", "b"]).expect(1);
    boxed.of("clone create", &["none", "c"]).expect(1);
    boxed.write("/f", "main");
    assert_eq!(boxed.diff(&["b", "main"]), [told("changed", "/f")]);
    let list = boxed.of("clone list", &["--json"]).expect(0).json();
    assert_eq!(list[1]["name"], "b");
    assert_eq!(list[1]["origin"], "s");
    assert!(boxed.of("clone list", &[]).expect(0).text().contains(", from s"));
    boxed.of("snapshot create", &["of-b", "--branch", "b"]).expect(0);
    boxed.of("clone delete", &["main", "-y"]).expect(1);
    boxed.of("clone delete", &["b", "-y"]).expect(0);
    assert_eq!(boxed.diff(&["s", "of-b"]), []);
    boxed.of("volume check", &[]).expect(0);
}

#[test]
fn a_flipped_bit_is_found_and_named() {
    let boxed = Boxed::new(&[]);
    let content = pattern(256 << 10);
    fs::create_dir(boxed.bench.path("d")).unwrap();
    fs::write(boxed.bench.path("d/f"), &content).unwrap();
    boxed.run("put", &[&boxed.bench.str("d"), "/"]).expect(0);
    let mut bytes = fs::read(boxed.file()).unwrap();
    let block = &content[128 << 10..][..4096];
    let at = bytes.chunks(4096).position(|chunk| chunk == block).expect("it lies as it is") * 4096;
    bytes[at + 1234] ^= 0x10;
    fs::write(boxed.file(), bytes).unwrap();
    let found = boxed.of("volume check", &["--json"]).expect(5).json();
    let problem = &found["problems"][0];
    assert_eq!((problem["kind"].as_str(), problem["path"].as_str()), (Some("damaged-content"), Some("/d/f")));
    assert_eq!((&problem["in"], &problem["also_in"]), (&"main".into(), &serde_json::json!([])), "{found}");
    boxed.of("volume check", &["--no-contents"]).expect(0);
    let advice = format!("`adit volume check {}`", boxed.file().display());
    for to in [boxed.bench.str("back"), "-".to_owned()] {
        boxed.run("get", &["/d/f", &to]).expect(4).says(&advice);
    }
    boxed.run("get", &["/d", &boxed.bench.str("all")]).expect(4).says(&advice);
    let ran = boxed.run("cat", &["/d/f"]).expect(4).says(&advice);
    assert!(content.starts_with(&ran.stdout), "damage is never returned as data");
    boxed.of("volume check", &["--repair", "-y"]).expect(5);
}

/// Whoever has the damaged block is told: other names, snapshots and branches; not those that have another one.
#[test]
fn all_that_have_a_damaged_block_are_told() {
    let boxed = Boxed::new(&[]);
    let content = pattern(64 << 10);
    let odd = boxed.bench.path("d").join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    fs::create_dir(boxed.bench.path("d")).unwrap();
    fs::write(&odd, "before").unwrap();
    boxed.run("put", &[&boxed.bench.str("d"), "/"]).expect(0);
    boxed.of("snapshot create", &["before"]).expect(0);
    fs::write(&odd, &content).unwrap();
    fs::hard_link(&odd, boxed.bench.path("d/name")).unwrap();
    boxed.run("put", &[&boxed.bench.str("d"), "/"]).expect(0);
    for name in ["s", "t"] {
        boxed.of("snapshot create", &[name]).expect(0);
    }
    boxed.of("clone create", &["s", "b"]).expect(0);
    boxed.run("rm", &["-r", "-y", "/d"]).expect(0);
    let mut bytes = fs::read(boxed.file()).unwrap();
    let block = &content[32 << 10..][..4096];
    let at = bytes.chunks(4096).position(|chunk| chunk == block).expect("it lies as it is") * 4096;
    bytes[at + 1234] ^= 0x10;
    fs::write(boxed.file(), bytes).unwrap();
    let found = boxed.of("volume check", &["--json"]).expect(5).json();
    let [problem] = found["problems"].as_array().unwrap().as_slice() else { panic!("{found}") };
    let mut parts: Vec<&str> = problem["also_in"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    parts.extend(problem["in"].as_str());
    parts.sort_unstable();
    assert_eq!(parts, ["b", "s", "t"], "{found}");
    let told = problem["detail"].as_str().unwrap();
    assert!(told.contains("it has 1 name more") && told.contains("2 more have the same"), "{told}");
    let raw = problem["path_raw"].as_array().map(|raw| raw.iter().map(|byte| byte.as_u64().unwrap() as u8).collect());
    let path: Vec<u8> = raw.unwrap_or_else(|| problem["path"].as_str().unwrap().into());
    assert!([&b"/d/odd\xff"[..], b"/d/name"].contains(&path.as_slice()), "{problem}");
}

#[test]
fn a_volume_with_a_data_folder() {
    let bench = Bench::bare();
    let (file, data, moved) = (bench.str("box"), bench.str("box.data"), bench.str("moved"));
    bench.run(["volume", "init", &file, "--capacity", "256M", "--data", &data]).expect(0);
    fs::write(bench.path("big"), pattern(20 << 20)).unwrap();
    bench.run(["put", &file, &bench.str("big"), "/big"]).expect(0);
    bench.run(["snapshot", "create", &file, "s"]).expect(0);
    assert!(fs::metadata(&file).unwrap().blocks() * 512 < 16 << 20);
    let info = bench.run(["volume", "info", &file, "--json"]).expect(0).json();
    assert_eq!(info["data"], "folder");
    assert!(info["data_dir"].as_str().unwrap().starts_with(&data), "{info}");
    assert!(info["allocated_bytes"].as_u64().unwrap() >= 20 << 20, "{info}");
    bench.run(["volume", "check", &file]).expect(0);
    bench.run(["rm", &file, "-y", "/big"]).expect(0);
    bench.run(["snapshot", "delete", &file, "s", "-y"]).expect(0);
    let report = bench.run(["volume", "gc", &file, "--json"]).expect(0).json();
    assert!(report["allocated_bytes"].as_u64().unwrap() < 8 << 20, "{report}");
    // A folder that is missing is told, and where it is can be said.
    fs::rename(&data, &moved).unwrap();
    bench.run(["ls", &file]).expect(1).says("--data DIR");
    bench.run(["volume", "check", &file, "--data", &moved]).expect(0);
    bench.run(["ls", &file]).expect(1);
    bench.run(["volume", "check", &file, "--data", &moved, "--repair", "-y"]).expect(0);
    bench.run(["ls", &file]).expect(0);
    // Nothing is left of one that could not be made.
    bench.run(["volume", "init", &bench.str("second"), "--data", &bench.str("no/such/folder")]).expect(1);
    assert!(!bench.path("second").exists());
}

#[test]
fn a_volume_does_not_swallow_itself() {
    let boxed = Boxed::new(&[]);
    fs::create_dir(boxed.bench.path("folder")).unwrap();
    fs::rename(boxed.file(), boxed.bench.path("folder/box")).unwrap();
    fs::write(boxed.bench.path("folder/other"), "x").unwrap();
    let (file, folder) = (boxed.bench.str("folder/box"), boxed.bench.str("folder"));
    boxed.bench.run(["put", &file, &folder, "/"]).expect(0);
    let listed = boxed.bench.run(["ls", &file, "/folder"]).expect(0).text();
    assert_eq!(listed, "other\n");
}

#[test]
fn commands_at_once_wait_for_each_other() {
    let b = Boxed::new(&["--capacity", "1G"]);
    b.write("/f", "text");
    b.of("snapshot create", &["s"]).expect(0);
    // Whose turn comes next is chance: who waited for as long as is promised, and was refused, comes again.
    let in_turn = |command: &dyn Fn() -> Ran| loop {
        let began = Instant::now();
        match command() {
            refused if refused.code == Some(7) => {
                assert!(began.elapsed() >= Duration::from_secs(10), "{}", refused.stderr)
            }
            done => break done.expect(0),
        }
    };
    let one_after_another = |name: &str| {
        let file = b.bench.str("box");
        in_turn(&|| b.bench.run_with(["put", &file, "-", &format!("/{name}")], name.as_bytes()));
        in_turn(&|| b.run("mkdir", &[&format!("/dir-{name}")]));
        in_turn(&|| b.of("snapshot create", &[name]));
        in_turn(&|| b.of("volume check", &[]));
        in_turn(&|| b.of("volume gc", &[]));
        assert_eq!(in_turn(&|| b.run("cat", &["/f"])).text(), "text");
        in_turn(&|| b.of("snapshot list", &[]));
    };
    let names = ["a", "b", "c", "d"];
    std::thread::scope(|scope| {
        for name in names {
            scope.spawn(|| one_after_another(name));
        }
    });
    for name in names {
        assert_eq!(b.read(&format!("/{name}")), name);
    }
    assert_eq!(b.of("snapshot list", &["--json"]).expect(0).json().as_array().unwrap().len(), 1 + names.len());
}

#[test]
fn a_resize_that_is_refused_tells_the_least_size() {
    let b = Boxed::new(&["--capacity", "1G"]);
    fs::write(b.bench.path("big"), pattern(70 << 20)).unwrap();
    b.run("put", &[&b.bench.str("big"), "/big"]).expect(0);
    let told = b.of("volume resize", &["64M"]).expect(8).stderr;
    assert_eq!(told.lines().count(), 2, "one hint: {told}");
    let least = told.split(" MiB").next().and_then(|before| before.rsplit(' ').next()).unwrap();
    let least: u64 = least.parse().unwrap_or_else(|e| panic!("{e}: {told}"));
    assert!(least > 70, "{told}");
    b.of("volume resize", &[&format!("{}M", least - 1)]).expect(8).says(&format!("at least {least} MiB"));
    b.of("volume resize", &[&format!("{least}M")]).expect(0);
    b.of("volume check", &[]).expect(0);
}

#[test]
fn names_that_are_no_text_are_told_with_their_bytes() {
    let b = Boxed::new(&["--capacity", "1G"]);
    let name = |bytes: &[u8]| std::ffi::OsStr::from_bytes(bytes).to_owned();
    fs::create_dir(b.bench.path("top")).unwrap();
    // Told as the same text.
    for bytes in [&b"n\xfe"[..], b"n\xff", "n\u{fffd}".as_bytes()] {
        fs::write(b.bench.path("top").join(name(bytes)), bytes).unwrap();
    }
    std::os::unix::fs::symlink(name(b"to\xff"), b.bench.path("top/link")).unwrap();
    b.run("put", &[&b.bench.str("top"), "/"]).expect(0);
    let bytes_of = |entry: &Value, field: &str| match &entry[format!("{field}_raw")] {
        Value::Null => entry[field].as_str().unwrap().as_bytes().to_vec(),
        raw => raw.as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8).collect::<Vec<u8>>(),
    };
    for verb in ["ls", "tree"] {
        let listed = b.run(verb, &["/top", "--json"]).expect(0).json();
        let paths: Vec<_> = listed.as_array().unwrap().iter().map(|entry| bytes_of(entry, "path")).collect();
        let all = [&b"/top/link"[..], b"/top/n\xef\xbf\xbd", b"/top/n\xfe", b"/top/n\xff"];
        assert!(all.iter().all(|path| paths.iter().any(|found| found == path)), "{listed}");
        let link = listed.as_array().unwrap().iter().find(|entry| entry["kind"] == "symlink").unwrap();
        assert_eq!(bytes_of(link, "target"), b"to\xff", "{listed}");
        assert_eq!(link["path_raw"], Value::Null, "only where the text is not all: {listed}");
    }
    b.of("snapshot create", &["s"]).expect(0);
    let file = b.bench.path("box");
    let moved = [name(b"mv"), file.into(), name(b"/top/n\xfe"), name(b"/top/m\xfe")];
    b.bench.run(moved).expect(0);
    let found = b.of("snapshot diff", &["s", "--json"]).expect(0).json();
    let renamed = found.as_array().unwrap().iter().find(|found| found["change"] == "renamed").unwrap();
    assert_eq!(
        (bytes_of(renamed, "path"), bytes_of(renamed, "from")),
        (b"/top/m\xfe".to_vec(), b"/top/n\xfe".to_vec())
    );
    fs::rename(b.bench.path("box"), b.bench.path("").join(name(b"box\xff"))).unwrap();
    let info = b.bench.run([name(b"volume"), name(b"info"), name(b"box\xff"), name(b"--json")]).expect(0).json();
    assert!(bytes_of(&info, "path").ends_with(b"/box\xff"), "{info}");
    let text = b.bench.run([name(b"volume"), name(b"info"), name(b"box\xff")]).expect(0).text();
    assert!(!text.contains("raw"), "{text}");
}

/// `--quiet`: nothing but failures on standard error.
#[test]
fn whoever_wants_no_remarks_gets_none() {
    let b = Boxed::new(&["-q"]);
    let folder = b.bench.path("folder");
    fs::create_dir(&folder).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(folder.join("fifo")).status().unwrap();
    assert!(fifo.success());
    b.run("put", &[folder.to_str().unwrap(), "/"]).expect(0).says("left out");
    for line in [
        &["put", "box", "folder", "/", "-q"][..],
        &["volume", "resize", "box", "2G", "-q"],
        &["volume", "gc", "box", "-q"],
        &["manifest", "snapshot", "folder", "--format", "v2025", "-o", "m", "-q"],
    ] {
        assert_eq!(b.bench.run(line).expect(0).stderr, "", "{line:?}");
    }
}
