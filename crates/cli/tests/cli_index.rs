//! `adit index build|update|info|check`: of each kind of source, with everything that can be in its way.

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use adit_core::types::Kind;
use adit_index::{NodeId, Segment};
use common::{Bench, Ran, Start};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

/// A folder `work` with files, links and names that nobody likes.
fn bench() -> Bench {
    let bench = Bench::bare();
    make_work(&bench);
    bench
}

fn make_work(bench: &Bench) {
    let at = |name: &[u8]| bench.path("work").join(OsStr::from_bytes(name));
    fs::create_dir_all(at(b"sub/empty")).unwrap();
    for name in [&b"a"[..], b"sub/b", b"sub/\xff\xfe", b"sub/new\nline", b"sub/-rf *?["] {
        fs::write(at(name), name).unwrap();
    }
    fs::set_permissions(at(b"sub/b"), PermissionsExt::from_mode(0o4755)).unwrap();
    symlink("sub/b", at(b"link")).unwrap();
    let past = SystemTime::now() - Duration::from_secs(86_400);
    for name in [&b"a"[..], b"sub/b"] {
        File::open(at(name)).unwrap().set_modified(past).unwrap();
    }
}

fn index(bench: &Bench, line: &str) -> Ran {
    bench.run(["index"].into_iter().chain(line.split(' ')))
}

/// The same in the vault, with its password.
fn in_vault(bench: &Bench, line: &str) -> Ran {
    index(bench, &format!("{line} --password-file {}", bench.password_str()))
}

/// The paths in an index, in the order of its nodes.
fn paths(bench: &Bench, name: &str) -> Vec<String> {
    let segment = Segment::open(&bench.path(name)).unwrap();
    (0..segment.len()).map(|id| segment.path(NodeId(id)).unwrap().escape_ascii().to_string()).collect()
}

fn find(segment: &Segment, path: &str) -> NodeId {
    path.split('/').fold(NodeId::ROOT, |dir, name| segment.lookup(dir, name.as_bytes()).unwrap().expect(path))
}

fn names_in(bench: &Bench, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(bench.path(dir)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const WORK: [&str; 10] =
    ["", "a", "link", "sub", "sub/-rf *?[", "sub/b", "sub/empty", "sub/new\\nline", "sub/\\xff\\xfe", ""];

#[test]
fn a_folder_is_indexed_with_everything_in_it() {
    let bench = bench();
    fs::create_dir(bench.path("out")).unwrap();
    index(&bench, "build work -o out/i").expect(0).says("9 entries");
    assert_eq!(paths(&bench, "out/i"), WORK[..9]);
    let told = index(&bench, "build work -o out/i --hash --json").expect(0).json();
    for (field, value) in [("entries", 9), ("files", 5), ("directories", 3), ("symlinks", 1), ("hashed_files", 5)] {
        assert_eq!(told[field], value, "{field}");
    }
    assert_eq!((&told["kind"], &told["encrypted"], &told["unreadable"]), (&"dir".into(), &false.into(), &0.into()));
    let segment = Segment::open(&bench.path("out/i")).unwrap();
    let b = segment.node(find(&segment, "sub/b")).unwrap();
    assert_eq!((b.kind, b.perm, b.size), (Kind::File, 0o4755, 5));
    assert_eq!(segment.hash(b.id).unwrap(), Some(xxh3_128(b"sub/b").to_be_bytes()));
    assert_eq!(segment.extra(find(&segment, "link")).unwrap(), b"sub/b");
    // A part of it, and nothing but the index is left.
    index(&bench, "build work -o out/part --path /sub").expect(0);
    assert_eq!(paths(&bench, "out/part"), ["", "-rf *?[", "b", "empty", "new\\nline", "\\xff\\xfe"]);
    assert_eq!(names_in(&bench, "out"), ["i", "part"]);
}

#[test]
fn the_index_in_the_tree_is_not_in_itself() {
    let bench = bench();
    for _ in 0..2 {
        index(&bench, "build work -o work/sub/i").expect(0).says("9 entries");
        assert_eq!(paths(&bench, "work/sub/i"), WORK[..9]);
        index(&bench, "update work/sub/i").expect(0).says("0 added, 0 changed, 0 removed");
    }
}

#[test]
fn what_is_no_index_is_not_replaced() {
    let bench = bench();
    for (what, line) in [
        ("no index", "build work -o work/a"),
        ("a folder", "build work -o work"),
        ("none", "build work -o none/i"),
        ("a folder", "build work -o work/sub/empty"),
    ] {
        assert!(index(&bench, line).says(what).code > Some(0), "{line}");
    }
    assert_eq!(fs::read(bench.path("work/a")).unwrap(), b"a");
    fs::write(bench.path("i"), "").unwrap();
    index(&bench, "build work -o i").expect(0);
    index(&bench, "build work -o i").expect(0);
    index(&bench, "build none -o i").expect(1).says("none");
    index(&bench, "build work -o j --snapshot monday").expect(10).says("no snapshots");
    index(&bench, "build work -o j --path ../x").expect(2);
    index(&bench, "build work -o j --path /a").expect(1);
    index(&bench, "build work -o j --password-env X").expect(2);
    assert!(!bench.path("j").exists());
    // Nobody means a file of that name: it is standard output elsewhere.
    for line in ["build work -o -", "build work -o - --json"] {
        index(&bench, line).expect(2).says("standard output").says("./-");
    }
    assert!(!bench.path("-").exists());
    index(&bench, "build work -o ./-").expect(0);
    assert!(bench.path("-").exists());
}

#[test]
fn an_index_stays_as_open_as_it_was() {
    let bench = bench();
    let mode = |name: &str| bench.path(name).metadata().unwrap().permissions().mode() & 0o7777;
    let open = |name: &str| fs::set_permissions(bench.path(name), PermissionsExt::from_mode(0o640)).unwrap();
    index(&bench, "build work -o i").expect(0);
    assert_eq!(mode("i"), 0o600, "names are the owner's business until he says otherwise");
    open("i");
    for line in ["update i", "build work -o i", "update i --hash"] {
        index(&bench, line).expect(0);
        assert_eq!(mode("i"), 0o640, "{line}");
    }
    symlink("i", bench.path("by another name")).unwrap();
    bench.run(["index", "update", "by another name"]).expect(0);
    assert_eq!(mode("i"), 0o640);
}

/// Where a mount was indexed and is gone, an empty folder is left.
#[test]
fn an_update_does_not_take_an_empty_folder_for_what_was_there() {
    let bench = bench();
    index(&bench, "build work -o i").expect(0);
    fs::rename(bench.path("work"), bench.path("away")).unwrap();
    fs::create_dir(bench.path("work")).unwrap();
    let before = fs::read(bench.path("i")).unwrap();
    index(&bench, "update i").expect(1).says("it is empty").says("mount it first");
    assert!(fs::read(bench.path("i")).unwrap() == before);
    // Whoever names it means it, and one that was empty already may be.
    index(&bench, "update i work").expect(0);
    assert_eq!(paths(&bench, "i"), [""]);
    index(&bench, "update i").expect(0);
}

#[test]
fn an_update_tells_what_has_changed_and_keeps_what_has_not() {
    let bench = bench();
    index(&bench, "build work -o i --hash").expect(0);
    // The inodes were changed a moment ago: what this index says of them is believed by one that is made later.
    let first = index(&bench, "update i --json").expect(0).json();
    assert_eq!((&first["updated"], &first["added"], &first["removed"]), (&true.into(), &0.into(), &0.into()));
    fs::write(bench.path("work/a"), "another").unwrap();
    fs::write(bench.path("work/sub/added"), "").unwrap();
    fs::remove_file(bench.path("work/link")).unwrap();
    fs::rename(bench.path("work/sub/b"), bench.path("work/b")).unwrap();
    let told = index(&bench, "update work -o i --json").expect(0).json();
    assert_eq!((&told["added"], &told["changed"], &told["removed"]), (&2.into(), &1.into(), &2.into()));
    assert_eq!(paths(&bench, "i")[..3], ["", "a", "b"]);
    let segment = Segment::open(&bench.path("i")).unwrap();
    assert_eq!(segment.hash(find(&segment, "a")).unwrap(), Some(xxh3_128(b"another").to_be_bytes()));
    // Where the source has moved, it is named.
    fs::rename(bench.path("work"), bench.path("moved")).unwrap();
    index(&bench, "update i").expect(1).says("work");
    index(&bench, "update i moved").expect(0).says("0 added, 0 changed, 0 removed");
    index(&bench, "update i").expect(0);
    index(&bench, "update moved/a").expect(10).says("not an index: it does not begin as an index does");
    // What was made without hashes gets them from now on.
    index(&bench, "build moved -o plain").expect(0);
    assert_eq!(index(&bench, "update plain --json").expect(0).json()["hashed_files"], 0);
    for line in ["update plain --hash --json", "update plain --json"] {
        assert_eq!(index(&bench, line).expect(0).json()["hashed_files"], 6, "{line}");
    }
}

#[test]
fn content_is_read_once() {
    let bench = bench();
    for n in 0..50 {
        fs::write(bench.path(&format!("work/{n}")), vec![n; 10_000]).unwrap();
    }
    index(&bench, "build work -o i --hash").expect(0);
    // What an index says is believed of inodes that are three seconds older than it.
    common::eventually("inodes that are older than an index", || {
        let told = index(&bench, "update i --json").expect(0).json();
        told["read_bytes"] == 0 && told["hashed_files"] == 55
    });
}

#[test]
fn what_cannot_be_read_ends_it_or_is_told() {
    let bench = bench();
    let deep: std::path::PathBuf = std::iter::repeat_n("d", 4100).collect();
    // Deeper than an index goes: made from within, for no path is as long.
    let mut at = File::open(bench.path("work/sub/empty")).unwrap();
    for name in deep.iter() {
        rustix::fs::mkdirat(&at, name, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        at = rustix::fs::openat(&at, name, flags, rustix::fs::Mode::empty()).unwrap().into();
    }
    index(&bench, "build work -o i").expect(1).says("4096").says("--keep-going");
    assert!(!bench.path("i").exists());
    let told = index(&bench, "build work -o i --keep-going --json").says("4096");
    assert_eq!(told.code, Some(1));
    let told = told.json();
    let lost = told["unreadable"].as_u64().unwrap();
    assert!(lost > 0 && lost < 20, "{lost}");
    assert_eq!(told["entries"].as_u64(), Some(9 + 4100 - lost));
    let info = index(&bench, "info i --json").expect(0).json();
    assert_eq!(info["unreadable"], lost);
    index(&bench, "check i").expect(0);
    index(&bench, "update i").expect(1).says("4096");
    assert_eq!(index(&bench, "info i --json").expect(0).json()["entries"], 9 + 4100 - lost);
}

#[test]
fn an_index_is_described_and_checked() {
    let bench = bench();
    index(&bench, "build work -o i --hash").expect(0);
    let info = index(&bench, "info i --json").expect(0).json();
    for (field, value) in [("entries", 9), ("unreadable", 0)] {
        assert_eq!(info[field], value, "{field}");
    }
    let kinds = &info["kinds"];
    assert_eq!((&kinds["files"], &kinds["directories"], &kinds["hashes"]), (&5.into(), &3.into(), &5.into()));
    let per_entry = info["columns"]["per_entry"].as_f64().unwrap();
    assert!(per_entry <= 24.5, "{per_entry}");
    assert!(info["tables"]["size_bytes"].is_u64() && info["source"].as_str().unwrap().ends_with("/work"));
    assert_eq!((&info["encrypted"], &info["hashed"], &info["root"]), (&false.into(), &true.into(), &"/".into()));
    let text = index(&bench, "info i").expect(0).text();
    assert!(text.contains("per entry") && text.contains("source"), "{text}");
    let checked = index(&bench, "check i --json").expect(0).json();
    assert_eq!((&checked["problems"], &checked["entries"]), (&Value::Array(Vec::new()), &9.into()));
    // Of a block that nobody asked for yet, it is a check that finds it.
    let bytes = fs::read(bench.path("i")).unwrap();
    let name = bytes.windows(5).position(|window| window == b"empty").unwrap();
    let mut harmed = bytes.clone();
    harmed[name] ^= 1;
    fs::write(bench.path("harmed"), &harmed).unwrap();
    let found = index(&bench, "check harmed --json").expect(5).json();
    assert_eq!(found["problems"][0]["kind"], "damaged-index");
    assert!(index(&bench, "check harmed").expect(5).text().contains("the names"));
    // What cannot be opened at all is damage.
    for (harm, len) in [(0, bytes.len()), (40, bytes.len()), (0, 100), (0, bytes.len() - 1)] {
        let mut harmed = bytes[..len].to_vec();
        harmed[harm] ^= u8::from(len == bytes.len());
        fs::write(bench.path("harmed"), &harmed).unwrap();
        for verb in ["check", "info"] {
            index(&bench, &format!("{verb} harmed")).expect(4).says("harmed").says("build the index again");
        }
    }
    // What never was an index is not a damaged one.
    fs::write(bench.path("empty"), "").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        bench.path("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    bench.run(["volume", "init", "box"]).expect(0);
    for (file, why) in [
        ("work/a", "does not begin as an index does"),
        ("empty", "it is empty"),
        ("pipe", "it is no file"),
        ("/dev/null", "it is no file"),
        ("box", "it is a volume"),
    ] {
        for verb in ["check", "info", "update", "find", "resolve", "dupes", "du", "top", "measure"] {
            index(&bench, &format!("{verb} {file}")).expect(10).says(why).says("adit index build");
        }
        index(&bench, &format!("diff i {file}")).expect(10).says(&format!("{file}: not an index: "));
    }
    index(&bench, "check none").expect(1).says("none");
    index(&bench, "check work").expect(6).says("neither an index nor a mountpoint").says("adit index build work");
}

#[test]
fn a_volume_and_its_snapshots_are_indexed() {
    let bench = bench();
    bench.run(["volume", "init", "box", "--capacity", "256M"]).expect(0);
    bench.run(["put", "box", "work", "/"]).expect(0);
    bench.run(["snapshot", "create", "box", "monday"]).expect(0);
    bench.run(["rm", "box", "/work/a", "--yes"]).expect(0);
    let told = index(&bench, "build box -o i --hash --json").expect(0).json();
    assert_eq!((&told["kind"], &told["entries"], &told["hashed_files"]), (&"volume".into(), &9.into(), &4.into()));
    index(&bench, "build box -o monday --snapshot monday --hash --json").expect(0);
    assert_eq!(paths(&bench, "monday")[..4], ["", "work", "work/a", "work/link"]);
    index(&bench, "build box -o part --snapshot monday --path /work").expect(0);
    assert_eq!(paths(&bench, "part"), WORK[..9]);
    index(&bench, "build box -o none --snapshot tuesday").expect(1).says("tuesday");
    let info = index(&bench, "info monday --json").expect(0).json();
    assert_eq!((&info["snapshot"], &info["kind"]), (&"monday".into(), &"volume".into()));
    // A snapshot does not change; one that was made anew under its name is another.
    let same = index(&bench, "update monday --json").expect(0).json();
    assert_eq!(same["updated"], false);
    index(&bench, "update monday").expect(0).says("nothing to do");
    bench.run(["snapshot", "delete", "box", "monday", "--yes"]).expect(0);
    index(&bench, "update monday").expect(1).says("monday");
    bench.run(["snapshot", "create", "box", "monday"]).expect(0);
    index(&bench, "update monday").expect(0).says("1 removed");
    bench.run(["rm", "box", "/work/link", "--yes"]).expect(0);
    index(&bench, "update i").expect(0).says("0 added, 0 changed, 1 removed");
    let refused = index(&bench, "build work -o box");
    assert!(refused.code > Some(0) && bench.run(["ls", "box"]).code == Some(0));
}

#[test]
fn a_manifest_is_indexed_with_its_hashes() {
    let bench = Bench::bare();
    fs::create_dir_all(bench.path("work/sub/empty")).unwrap();
    for name in ["a", "sub/b", "sub/c"] {
        fs::write(bench.path("work").join(name), name).unwrap();
    }
    symlink("sub/b", bench.path("work/link")).unwrap();
    let cache = bench.str("cache");
    let snapshot = |out: &str| {
        bench.run(["manifest", "snapshot", "work", "-o", out, "--format", "v2025", "--cache-dir", &cache]).expect(0)
    };
    snapshot("m");
    let line = |line: &str| index(&bench, &format!("{line} --cache-dir {cache}"));
    let told = line("build m -o i --json").expect(0).json();
    assert_eq!((&told["kind"], &told["hashed_files"], &told["symlinks"]), (&"manifest".into(), &3.into(), &1.into()));
    // As everybody else counts them.
    let info = index(&bench, "info i --json").expect(0).json();
    assert_eq!((&told["entries"], &told["directories"]), (&info["entries"], &info["kinds"]["directories"]), "{info}");
    let expected = ["", "a", "link", "sub", "sub/b", "sub/c", "sub/empty"];
    assert_eq!(paths(&bench, "i"), expected);
    let segment = Segment::open(&bench.path("i")).unwrap();
    assert_eq!(segment.extra(find(&segment, "link")).unwrap(), b"sub/b");
    assert_eq!(segment.hash(find(&segment, "sub/b")).unwrap(), Some(xxh3_128(b"sub/b").to_be_bytes()));
    line("update i").expect(0).says("nothing to do: the manifest is the same");
    // One that lies elsewhere now is found there by the next update.
    fs::rename(bench.path("m"), bench.path("moved")).unwrap();
    line("update i").expect(1).says("if it lies elsewhere now: adit index update").says("SOURCE");
    line("update i moved").expect(0);
    line("update i").expect(0).says("nothing to do: the manifest is the same");
    fs::rename(bench.path("moved"), bench.path("m")).unwrap();
    line("update i m").expect(0);
    line("build m -o part --path /sub").expect(0);
    assert_eq!(paths(&bench, "part"), ["", "b", "c", "empty"]);
    line("build m -o part --path /none").expect(1);
    fs::write(bench.path("work/sub/c"), "other").unwrap();
    fs::remove_file(bench.path("work/a")).unwrap();
    fs::write(bench.path("work/new"), "").unwrap();
    snapshot("m");
    line("update i").expect(0).says("1 added, 1 changed, 1 removed");
    assert_eq!(paths(&bench, "i"), ["", "link", "new", "sub", "sub/b", "sub/c", "sub/empty"]);
    // What a library has made says nothing of where it comes from.
    let builder = adit_index::Builder::new(bench.dir.path(), 0);
    builder.finish(&bench.path("own"), &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    assert_eq!(index(&bench, "info own --json").expect(0).json()["kind"], Value::Null);
    index(&bench, "update own").expect(10).says("build it again");
}

#[test]
fn the_index_of_a_vault_is_for_who_has_its_password() {
    let bench = Bench::new();
    make_work(&bench);
    // A vault has no such name.
    fs::remove_file(bench.path("work/sub").join(OsStr::from_bytes(b"\xff\xfe"))).unwrap();
    bench.open("put", &["work", "/"]).expect(0);
    let told = in_vault(&bench, "build vault -o i --hash --json").expect(0).json();
    assert_eq!((&told["kind"], &told["encrypted"], &told["entries"]), (&"vault".into(), &true.into(), &9.into()));
    let bytes = fs::read(bench.path("i")).unwrap();
    for secret in [&b"empty"[..], b"sub/b", b"link", b"work", b"ADITSCAN"] {
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{}", secret.escape_ascii());
    }
    index(&bench, "info i").expect(2).says("--vault");
    let info = in_vault(&bench, "info i --json --vault vault").expect(0).json();
    assert_eq!((&info["encrypted"], &info["entries"], &info["kind"]), (&true.into(), &9.into(), &"vault".into()));
    assert_eq!(info["kinds"]["hashes"], 4);
    in_vault(&bench, "check i --vault vault").expect(0);
    fs::write(bench.path("wrong"), "another").unwrap();
    index(&bench, "info i --vault vault --password-file wrong").expect(3);
    let other = bench.str("other");
    bench.run(["vault", "init", &other, "--password-file", bench.password_str()]).expect(0);
    in_vault(&bench, &format!("info i --vault {other}")).expect(3).says("another vault");
    index(&bench, "info i --vault work").expect(10);
    // After a change of password it is the same key.
    fs::write(bench.path("next"), "next").unwrap();
    let passwd = ["vault", "passwd", "vault", "--password-file", "password", "--new-password-file", "next"];
    bench.run(passwd).expect(0);
    fs::rename(bench.path("next"), bench.path("password")).unwrap();
    in_vault(&bench, "info i --vault vault").expect(0);
    bench.open("rm", &["/work/link", "--yes"]).expect(0);
    in_vault(&bench, "update i --vault vault").expect(0).says("0 added, 0 changed, 1 removed");
    in_vault(&bench, "update vault -o i").expect(0).says("0 added, 0 changed, 0 removed");
    in_vault(&bench, "update work -o i --vault vault").expect(2).says("a dir has no password");
    let mut harmed = bytes.clone();
    let at = harmed.len() / 2;
    harmed[at] ^= 1;
    fs::write(bench.path("harmed"), harmed).unwrap();
    in_vault(&bench, "check harmed --vault vault").expect(4).says("block 0");
    fs::write(bench.path("harmed"), &bytes[..bytes.len() - 1]).unwrap();
    in_vault(&bench, "info harmed --vault vault").expect(4).says("should have");
    let mut harmed = bytes.clone();
    harmed[7] ^= 1;
    fs::write(bench.path("harmed"), &harmed).unwrap();
    in_vault(&bench, "info harmed --vault vault").expect(4).says("does not begin as an encrypted index does");
}

/// Two that are made at once end in any order: the later look at the source stays, and who made the other one hears of it.
#[test]
fn an_index_of_an_earlier_look_does_not_replace_a_later_one() {
    let bench = Bench::new();
    make_work(&bench);
    fs::remove_file(bench.path("work/sub").join(OsStr::from_bytes(b"\xff\xfe"))).unwrap();
    bench.open("put", &["work", "/"]).expect(0);
    fs::create_dir(bench.path("out")).unwrap();
    let password = ["--password-file", bench.password_str()];
    for (source, secret) in [("work", &[][..]), ("vault", &password)] {
        let build = |to: &str| {
            bench.run(["index", "build", source, "-o", to].iter().chain(secret)).expect(0);
        };
        // What is published in a folder waits while somebody has it locked: there it ends after what is put there meanwhile.
        let beside = |first: &dyn Fn(), meanwhile: &dyn Fn(), line: &[&str]| {
            first();
            let folder = File::open(bench.path("out")).unwrap();
            rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).unwrap();
            let mut command = bench.command();
            command.args(line).args(secret).stderr(std::process::Stdio::piped());
            let child = command.start().unwrap();
            common::eventually("an index that is written", || {
                names_in(&bench, "out").iter().any(|n| n.ends_with(".tmp"))
            });
            meanwhile();
            drop(folder);
            let ended = child.wait_with_output().unwrap();
            let index = fs::metadata(bench.path("out/i")).unwrap();
            (ended.status.code(), String::from_utf8(ended.stderr).unwrap(), index.ino())
        };
        let put = || fs::rename(bench.path("later"), bench.path("out/i")).unwrap();
        let update = ["index", "update", source, "-o", "out/i"];
        build("out/i");
        let (code, said, stays) = beside(
            &|| (),
            &|| {
                build("later");
                put();
            },
            &update,
        );
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("was not written") && said.contains("index update"), "{said}");
        // One of an earlier look, which came later.
        let (code, said, ino) = beside(&|| build("later"), &put, &update);
        assert!(code == Some(0) && ino != stays, "{said}");
        // Likewise where there was nothing.
        fs::remove_file(bench.path("out/i")).unwrap();
        let line = ["index", "build", source, "-o", "out/i"];
        let (code, said, _) = beside(
            &|| (),
            &|| {
                build("later");
                put();
            },
            &line,
        );
        assert!(code == Some(1) && said.contains("was not written"), "{said}");
        assert_eq!(names_in(&bench, "out"), ["i"]);
        fs::remove_file(bench.path("out/i")).unwrap();
    }
}

/// A kill at any moment leaves the old index or the new one, and nothing that stays.
#[test]
fn a_kill_while_it_is_updated_leaves_the_old_one_or_the_new_one() {
    let bench = Bench::bare();
    fs::create_dir_all(bench.path("out")).unwrap();
    for n in 0..2000 {
        let dir = bench.path(&format!("work/{}", n % 20));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("{n}")), "").unwrap();
    }
    index(&bench, "build work -o out/i").expect(0);
    let old = paths(&bench, "out/i").len();
    fs::write(bench.path("work/new"), "").unwrap();
    // What a kill between the link and the rename leaves, on hosts that have files without a name.
    fs::write(bench.path("out/.adit-index-0123456789abcdef.tmp"), "left").unwrap();
    let (mut olds, mut news) = (0, 0);
    // The first kill comes at once. The last updates are not killed: so both are seen, however slow the machine is.
    const STEPS: u64 = 40;
    for step in 0..STEPS {
        let mut command = bench.command();
        command.args(["index", "update", "out/i", "--memory", "2M", "--quiet"]);
        let mut child = command.start().unwrap();
        if step < STEPS - 2 {
            std::thread::sleep(Duration::from_millis(step * 2));
            let _ = child.kill();
        }
        child.wait().unwrap();
        let found = paths(&bench, "out/i").len();
        index(&bench, "check out/i").expect(0);
        match found {
            found if found == old => olds += 1,
            found => {
                assert_eq!(found, old + 1);
                news += 1;
                // Once more from the beginning.
                fs::remove_file(bench.path("work/new")).unwrap();
                index(&bench, "update out/i").expect(0).says("1 removed");
                fs::write(bench.path("work/new"), "").unwrap();
            }
        }
    }
    println!("{olds} old, {news} new");
    assert!(olds > 0 && news > 0, "{olds} old, {news} new");
    index(&bench, "update out/i").expect(0);
    assert_eq!(names_in(&bench, "out"), ["i"]);
}
