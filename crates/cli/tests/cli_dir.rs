//! Folders of this machine as a source, and what copies keep.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use common::{Bench, facts, make_tree, pattern};
use serde_json::Value;

#[test]
fn the_verbs_work_in_a_folder() {
    let bench = Bench::bare();
    fs::create_dir(bench.path("folder")).unwrap();
    make_tree(&bench.path("tree"));
    let run = |verb: &str, args: &[&str]| bench.run([verb, &bench.str("folder")].iter().chain(args));
    run("put", &["tree", "/"]).expect(0);
    assert_eq!(facts(&bench.path("tree")), facts(&bench.path("folder/tree")));
    run("get", &["/tree", "out"]).expect(0);
    assert_eq!(facts(&bench.path("tree")), facts(&bench.path("out")));
    run("mkdir", &["-p", "/a/b"]).expect(0);
    bench.run_with(["put", "dir:folder", "-", "/a/f"], b"text").expect(0);
    run("mv", &["/a/f", "/a/b/g"]).expect(0);
    assert_eq!(run("cat", &["/a/b/g"]).expect(0).text(), "text");
    let listed = run("ls", &["/a", "-R", "--json"]).expect(0).json();
    let paths: Vec<&str> = listed.as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/a/b", "/a/b/g"]);
    assert!(run("tree", &["/a"]).expect(0).text().contains("└── b\n    └── g"));
    run("rm", &["-ry", "/a"]).expect(0);
    assert!(!bench.path("folder/a").exists());
    run("cat", &["/none"]).expect(1).says("/none");
    // A link in the middle of a path leads only to what is in the folder.
    std::os::unix::fs::symlink(bench.path("tree"), bench.path("folder/out")).unwrap();
    assert_ne!(run("ls", &["/out/"]).code, Some(0));
    bench.run(["ls", "folder", "/", "--password-env", "X"]).expect(2).says("no password");
}

/// As an unset variable gives them; the root is `/`.
#[test]
fn an_empty_path_is_a_mistake() {
    let bench = Bench::bare();
    fs::create_dir(bench.path("folder")).unwrap();
    fs::write(bench.path("folder/f"), "f").unwrap();
    fs::write(bench.path("one"), "one").unwrap();
    bench.run(["volume", "init", "box"]).expect(0);
    for line in [
        &["ls", "folder", ""][..],
        &["tree", "folder", ""],
        &["cat", "folder", ""],
        &["cat", "folder", "/f", ""],
        &["get", "folder", "", "out"],
        &["get", "folder", "/f", ""],
        &["put", "folder", "one", ""],
        &["put", "folder", "", "/"],
        &["mkdir", "folder", ""],
        &["mv", "folder", "", "/g"],
        &["mv", "folder", "/f", ""],
        &["rm", "folder", "-ry", ""],
        &["ls", ""],
        &["snapshot", "list", ""],
        &["snapshot", "create", "", "s"],
        &["snapshot", "create", "box", ""],
        &["clone", "list", ""],
        &["volume", "info", ""],
        &["volume", "check", ""],
        &["volume", "gc", ""],
        &["volume", "resize", "", "1G"],
        &["mount", "", "folder"],
    ] {
        let ran = bench.run(line);
        assert_eq!((ran.code, ran.text().as_str()), (Some(2), ""), "{line:?}: {}", ran.stderr);
    }
    assert!(bench.path("folder/f").exists() && !bench.path("out").exists());
    bench.run(["ls", "folder", ""]).expect(2).says("the path is empty");
}

#[test]
fn a_folder_is_mounted_to_be_read_alone() {
    let bench = Bench::bare();
    fs::create_dir(bench.path("folder")).unwrap();
    fs::create_dir(bench.path("mnt")).unwrap();
    bench.run(["mount", "folder", "mnt"]).expect(2).says("--read-only");
    bench.run(["mount", "folder", "mnt", "--read-only", "--snapshot", "s"]).expect(2).says("no snapshots");
    bench.run(["mount", "folder", "mnt", "--fake", "--read-only"]).expect(0);
    bench.run(["vault", "info", "folder"]).expect(10).says("vault.cryptomator");
    bench.run(["volume", "info", "folder"]).expect(6).says("not a mount");
}

#[test]
fn what_get_leaves_out_is_told_and_makes_it_fail() {
    let bench = Bench::bare();
    fs::create_dir_all(bench.path("folder/sub")).unwrap();
    fs::write(bench.path("folder/sub/f"), "f").unwrap();
    let node = |name: &str, kind| {
        rustix::fs::mknodat(rustix::fs::CWD, bench.path("folder/sub").join(name), kind, 0o600.into(), 0).unwrap();
    };
    node("fifo", rustix::fs::FileType::Fifo);
    node("socket", rustix::fs::FileType::Socket);
    bench.run(["get", "folder", "/", "out"]).expect(1).says("left out: /sub/fifo").says("left out: /sub/socket");
    assert_eq!(fs::read_to_string(bench.path("out/sub/f")).unwrap(), "f", "the rest is copied");
    bench.run(["get", "folder", "/sub/f", "g", "--quiet"]).expect(0);
    bench.run(["get", "folder", "/sub", "again", "--quiet"]).expect(1).says("left out: /sub/fifo");
}

/// A tree with holes, names of one file in several folders, extended attributes and an ACL.
fn special_tree(root: &Path) {
    fs::create_dir_all(root.join("sub")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&pattern(70_000), 40 << 20).unwrap();
    sparse.set_len(200 << 20).unwrap();
    File::create(root.join("hole")).unwrap().set_len(100 << 20).unwrap();
    fs::write(root.join("one"), "linked").unwrap();
    fs::hard_link(root.join("one"), root.join("sub/two")).unwrap();
    fs::hard_link(root.join("one"), root.join("three")).unwrap();
    set_xattr(&root.join("one"), "user.of.file", "value");
    set_xattr(&root.join("sub"), "user.of.dir", "folder");
    fs::set_permissions(root.join("one"), fs::Permissions::from_mode(0o640)).unwrap();
}

fn set_xattr(path: &Path, name: &str, value: &str) {
    rustix::fs::setxattr(path, name, value.as_bytes(), rustix::fs::XattrFlags::empty()).unwrap();
}

fn xattr(path: &Path, name: &str) -> String {
    let mut value = [0; 100];
    let len = rustix::fs::getxattr(path, name, &mut value[..]).unwrap();
    String::from_utf8_lossy(&value[..len]).into_owned()
}

#[track_caller]
fn expect_special(root: &Path) {
    let meta = |path: &str| fs::metadata(root.join(path)).unwrap();
    assert_eq!((meta("sparse").len(), meta("hole").len()), (200 << 20, 100 << 20));
    let used = (meta("sparse").blocks() + meta("hole").blocks()) * 512;
    assert!(used < 1 << 20, "{used} bytes for 70,000 of data");
    let mut data = vec![0; 70_000];
    File::open(root.join("sparse")).unwrap().read_exact_at(&mut data, 40 << 20).unwrap();
    assert_eq!(data, pattern(70_000));
    let one = meta("one");
    assert_eq!((one.nlink(), one.mode() & 0o7777), (3, 0o640));
    assert_eq!([meta("sub/two").ino(), meta("three").ino()], [one.ino(); 2]);
    assert_eq!(xattr(&root.join("three"), "user.of.file"), "value");
    assert_eq!(xattr(&root.join("sub"), "user.of.dir"), "folder");
}

#[test]
fn copies_keep_holes_links_and_attributes() {
    let bench = Bench::bare();
    special_tree(&bench.path("tree"));
    bench.run(["volume", "init", "box"]).expect(0);
    fs::create_dir(bench.path("folder")).unwrap();
    for (source, out) in [("box", "from-box"), ("folder", "from-folder")] {
        let put = bench.run(["put", source, "tree", "/"]).expect(0);
        assert_eq!(put.remarks(), "");
        // Once more over what is there, and into another name.
        bench.run(["put", source, "tree", "/"]).expect(0);
        let got = bench.run(["get", source, "/tree", out]).expect(0);
        assert_eq!(got.remarks(), "");
        expect_special(&bench.path(out));
        bench.run(["get", source, "/tree", out]).expect(0);
        expect_special(&bench.path(&format!("{out}/tree")));
    }
    expect_special(&bench.path("folder/tree"));
    let size = fs::metadata(bench.path("box")).unwrap().blocks() * 512;
    assert!(size < 64 << 20, "{size} bytes for a volume with 70,000 of data");
    // Several things that are named: what they share they share in the copy.
    bench.run(["mkdir", "box", "/both"]).expect(0);
    bench.run(["put", "box", "tree/one", "tree/three", "/both"]).expect(0);
    bench.run(["get", "box", "/both", "both"]).expect(0);
    assert_eq!(fs::metadata(bench.path("both/one")).unwrap().nlink(), 2);
}

#[test]
fn a_further_name_never_takes_the_place_of_a_fifo() {
    let bench = Bench::bare();
    fs::create_dir_all(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/one"), "linked").unwrap();
    fs::hard_link(bench.path("tree/one"), bench.path("tree/two")).unwrap();
    bench.run(["volume", "init", "box"]).expect(0);
    bench.run(["put", "box", "tree", "/"]).expect(0);
    fs::create_dir_all(bench.path("out/tree")).unwrap();
    let fifo = bench.path("out/tree/two");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let got = bench.run(["get", "box", "/tree", "out"]);
    assert_ne!(got.code, Some(0));
    got.says("FIFO");
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&fs::symlink_metadata(&fifo).unwrap().file_type()));
    assert_eq!(fs::read(bench.path("out/tree/one")).unwrap(), b"linked");
}

#[test]
fn what_a_vault_cannot_keep_is_told_once() {
    let bench = Bench::new();
    special_tree(&bench.path("tree"));
    fs::remove_file(bench.path("tree/sparse")).unwrap();
    fs::remove_file(bench.path("tree/hole")).unwrap();
    let put = bench.open("put", &["tree", "/"]).expect(0);
    assert_eq!(put.stderr.matches("hard links").count(), 1, "{}", put.stderr);
    assert_eq!(put.stderr.matches("extended attributes").count(), 1, "{}", put.stderr);
    // And the summary.
    assert_eq!(put.stderr.lines().count(), 3, "{}", put.stderr);
    assert_eq!(bench.open("cat", &["/tree/sub/two"]).expect(0).text(), "linked");
}

/// Version 2; owner rw-, a user rw-, group ---, mask rw-, others ---.
fn acl() -> Vec<u8> {
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 6u16, u32::MAX), (2, 6, 4321), (4, 0, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)]
    {
        acl.extend(tag.to_le_bytes().into_iter().chain(perm.to_le_bytes()).chain(id.to_le_bytes()));
    }
    acl
}

#[test]
fn a_copy_has_no_acl_that_its_original_lacks() {
    let bench = Bench::bare();
    fs::create_dir_all(bench.path("tree/d")).unwrap();
    fs::write(bench.path("tree/d/f"), "x").unwrap();
    fs::set_permissions(bench.path("tree/d/f"), fs::Permissions::from_mode(0o640)).unwrap();
    bench.run(["volume", "init", "box"]).expect(0);
    bench.run(["put", "box", "tree", "/"]).expect(0);
    for place in ["out", "folder"] {
        fs::create_dir(bench.path(place)).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(bench.path(place), "system.posix_acl_default", &acl(), flags).unwrap();
    }
    bench.run(["get", "box", "/tree", "out"]).expect(0);
    bench.run(["put", "folder", "tree", "/"]).expect(0);
    for place in ["out/tree", "folder/tree"] {
        for path in ["", "d", "d/f"] {
            let path = bench.path(place).join(path);
            let mut names = [0; 400];
            let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
            assert!(!String::from_utf8_lossy(&names[..len]).contains("posix_acl"), "{}", path.display());
        }
        assert_eq!(fs::metadata(bench.path(place).join("d/f")).unwrap().mode() & 0o777, 0o640);
    }
}

#[test]
fn acls_are_kept_where_they_can_be() {
    let bench = Bench::bare();
    fs::create_dir(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/f"), "x").unwrap();
    let acl = acl();
    let name = "system.posix_acl_access";
    rustix::fs::setxattr(bench.path("tree/f"), name, &acl, rustix::fs::XattrFlags::empty()).unwrap();
    bench.run(["volume", "init", "box"]).expect(0);
    bench.run(["put", "box", "tree", "/"]).expect(0);
    bench.run(["get", "box", "/tree", "out"]).expect(0);
    let mut found = [0; 200];
    let len = rustix::fs::getxattr(bench.path("out/f"), name, &mut found[..]).unwrap();
    assert_eq!(&found[..len], &acl[..]);
    assert_eq!(fs::metadata(bench.path("out/f")).unwrap().mode() & 0o777, 0o660);
}

#[test]
fn a_copy_of_many_small_files_is_what_cp_makes() {
    let bench = Bench::bare();
    make_tree(&bench.path("tree"));
    bench.run(["volume", "init", "box"]).expect(0);
    bench.run(["put", "box", "tree", "/"]).expect(0);
    bench.run(["get", "box", "/tree", "ours"]).expect(0);
    assert!(Command::new("cp").arg("-a").arg(bench.path("tree")).arg(bench.path("theirs")).status().unwrap().success());
    assert_eq!(facts(&bench.path("ours")), facts(&bench.path("theirs")));
    let listed = |source: &str| -> Vec<Value> {
        let listed = bench.run(["ls", source, "-R", "--json"]).expect(0).json();
        listed.as_array().unwrap().iter().map(|entry| entry["path"].clone()).collect()
    };
    assert_eq!(listed("ours"), listed("theirs"));
}
