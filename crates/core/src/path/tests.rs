//! Paths, trees and copies over a strict store in memory. Every test ends with nothing known.

pub(crate) mod mem;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use self::mem::MemStore;
use super::transfer::{Copied, CopyOptions, Event, HostPlace, Kept, Outward, copy_in, copy_out, open_dir};
use super::*;

const NEW: NewNode = NewNode { perm: 0o755, umask: 0, caller: Caller { uid: 0, gid: 0 } };

/// Runs `work` on a tree of `store` and checks that every reference was given back.
fn with_tree<T>(store: &MemStore, work: impl FnOnce(&Tree<'_>) -> T) -> T {
    let tree = Tree::new(store);
    let result = work(&tree);
    assert_eq!(tree.known_inodes(), 0);
    assert_eq!(store.known(), 0);
    result
}

fn write(tree: &Tree<'_>, path: &str, content: &[u8]) {
    let (dir, name) = tree.resolve_parent(path.as_bytes()).unwrap();
    let (attr, file) = tree.store().create(dir.ino(), FileName::new(&name).unwrap(), &NEW).unwrap();
    let _node = tree.node(attr, dir.join(&name));
    file.write_at(&[(0, content)]).unwrap();
}

fn link(tree: &Tree<'_>, path: &str, target: &str) {
    let (dir, name) = tree.resolve_parent(path.as_bytes()).unwrap();
    let caller = Caller { uid: 0, gid: 0 };
    let attr = tree.store().symlink(dir.ino(), FileName::new(&name).unwrap(), target.as_bytes(), caller).unwrap();
    drop(tree.node(attr, dir.join(&name)));
}

fn read(tree: &Tree<'_>, path: &str) -> Vec<u8> {
    let node = tree.resolve(path.as_bytes(), Last::Follow).unwrap();
    let mut bytes = vec![0; node.attr().size as usize];
    let file = tree.store().open(node.ino(), crate::types::Access::Read).unwrap();
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn kind_of<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("it must fail").kind()
}

fn paths(tree: &Tree<'_>, start: &str) -> Vec<String> {
    let mut seen = Vec::new();
    let start = tree.resolve(start.as_bytes(), Last::Keep).unwrap();
    tree.walk(start, &mut |visit| {
        match visit {
            Visit::Entry { node, .. } => seen.push(show(node.path())),
            Visit::Leave { node, .. } => seen.push(format!("{}/", show(node.path()))),
            Visit::Failed { path, error } => seen.push(format!("{}: {:?}", show(path), error.kind())),
        }
        Ok(Step::Into)
    })
    .unwrap();
    seen
}

fn put(tree: &Tree<'_>, from: &Path, to: &str, options: &CopyOptions) -> Result<(Copied, Vec<ErrorKind>)> {
    let place = HostPlace::of(from).unwrap();
    let (dir, name) = tree.resolve_parent(to.as_bytes())?;
    let mut failures = Vec::new();
    let copied = copy_in(tree, &place, &dir, &name, options, &mut Kept::default(), &mut |event| {
        if let Event::Failed(e) = event {
            failures.push(e.kind());
        }
        ControlFlow::Continue(())
    })?;
    Ok((copied, failures))
}

fn get(tree: &Tree<'_>, from: &str, to: Outward) -> Result<(Copied, Vec<ErrorKind>)> {
    let node = tree.resolve(from.as_bytes(), Last::Keep)?;
    let mut failures = Vec::new();
    let copied = copy_out(tree, node, to, &CopyOptions::default(), &mut |event| {
        if let Event::Failed(e) = event {
            failures.push(e.kind());
        }
        ControlFlow::Continue(())
    })?;
    Ok((copied, failures))
}

fn as_new(path: &Path) -> Outward {
    Outward::As(HostPlace::of(path).unwrap())
}

#[test]
fn paths_resolve_as_in_a_mount() {
    with_tree(&MemStore::new(), |tree| {
        drop(tree.mkdir_all(b"a/b/c", &NEW).unwrap());
        write(tree, "a/b/f", b"x");
        link(tree, "a/to-c", "b/c");
        link(tree, "a/b/c/up", "../../b/f");
        for good in ["/a/b/f", "a//b/./f", "/a/b/c/../f", "/a/to-c/../f", "/a/to-c/up", "a/b/c/up"] {
            assert_eq!(tree.resolve(good.as_bytes(), Last::Follow).unwrap().path(), b"a/b/f", "{good}");
        }
        assert_eq!(tree.resolve(b"", Last::Follow).unwrap().ino(), Ino::ROOT);
        assert_eq!(tree.resolve(b"a/..", Last::Follow).unwrap().ino(), Ino::ROOT);
        assert_eq!(tree.resolve(b"a/to-c", Last::Keep).unwrap().kind(), Kind::Symlink);
        assert_eq!(tree.resolve(b"a/to-c/", Last::Keep).unwrap().path(), b"a/b/c");
        assert_eq!(kind_of(tree.resolve(b"a/b/f/", Last::Follow)), ErrorKind::NotDirectory);
        assert_eq!(kind_of(tree.resolve(b"a/b/f/..", Last::Follow)), ErrorKind::NotDirectory);
        assert_eq!(kind_of(tree.resolve(b"a/none/..", Last::Follow)), ErrorKind::NotFound);
    });
}

#[test]
fn nothing_leads_out_of_the_store() {
    with_tree(&MemStore::new(), |tree| {
        drop(tree.mkdir_all(b"a/b", &NEW).unwrap());
        link(tree, "a/b/root", "../..");
        link(tree, "a/b/out", "../../..");
        link(tree, "a/b/late", "../../a/../../x");
        link(tree, "a/b/absolute", "/etc/passwd");
        assert_eq!(tree.resolve(b"a/b/root", Last::Follow).unwrap().ino(), Ino::ROOT);
        assert_eq!(kind_of(tree.resolve(b"..", Last::Follow)), ErrorKind::InvalidInput);
        assert_eq!(kind_of(tree.resolve(b"a/../../a", Last::Follow)), ErrorKind::InvalidInput);
        assert_eq!(kind_of(tree.resolve(b"a/b/out", Last::Follow)), ErrorKind::NotPermitted);
        assert_eq!(kind_of(tree.resolve(b"a/b/late", Last::Follow)), ErrorKind::InvalidInput);
        let error = tree.resolve(b"a/b/absolute", Last::Follow).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        assert!(error.to_string().contains("leads out of the tree"), "{error}");
    });
}

#[test]
fn link_loops_end() {
    with_tree(&MemStore::new(), |tree| {
        link(tree, "self", "self");
        link(tree, "ping", "pong/x");
        link(tree, "pong", "ping");
        assert_eq!(kind_of(tree.resolve(b"self", Last::Follow)), ErrorKind::Loop);
        assert_eq!(kind_of(tree.resolve(b"ping", Last::Follow)), ErrorKind::Loop);
        write(tree, "l0", b"end");
        for n in 1..=41 {
            link(tree, &format!("l{n}"), &format!("l{}", n - 1));
        }
        assert!(tree.resolve(b"l40", Last::Follow).is_ok());
        assert_eq!(kind_of(tree.resolve(b"l41", Last::Follow)), ErrorKind::Loop);
    });
}

#[test]
fn walks_are_sorted_and_survive_a_bad_entry() {
    let store = MemStore::new();
    with_tree(&store, |tree| {
        drop(tree.mkdir_all(b"d/e", &NEW).unwrap());
        write(tree, "d/e/f", b"");
        write(tree, "d/a", b"");
        write(tree, "d/bad", b"");
        link(tree, "d/z", "e");
        store.break_name(b"bad");
        assert_eq!(paths(tree, "d"), ["/d", "/d/a", "/d/bad: Corrupt", "/d/e", "/d/e/f", "/d/e/", "/d/z", "/d/"]);
    });
}

#[test]
fn a_walk_needs_no_stack_for_depth() {
    with_tree(&MemStore::new(), |tree| {
        let mut dir = tree.root().unwrap();
        for _ in 0..2_000 {
            dir = tree.mkdir_in(&dir, b"d", &NEW).unwrap();
        }
        drop(dir);
        assert_eq!(paths(tree, "/").len(), 2 * 2_001);
        assert!(tree.remove_all(b"d", &mut |_| {}, &mut |e| panic!("{e}")).unwrap());
        assert_eq!(paths(tree, "/"), ["/", "//"]);
    });
}

#[test]
fn mkdir_all_goes_through_links_and_stops_at_files() {
    with_tree(&MemStore::new(), |tree| {
        drop(tree.mkdir(b"a", &NEW).unwrap());
        link(tree, "l", "a");
        assert_eq!(tree.mkdir_all(b"/l/x//y/", &NEW).unwrap().path(), b"a/x/y");
        drop(tree.mkdir_all(b"l/x/y", &NEW).unwrap());
        assert_eq!(kind_of(tree.mkdir(b"a/x", &NEW)), ErrorKind::Exists);
        write(tree, "f", b"");
        assert_eq!(kind_of(tree.mkdir_all(b"f/x", &NEW)), ErrorKind::NotDirectory);
        // The root is there, has no name to be removed or moved by, and holds itself.
        assert_eq!(kind_of(tree.mkdir(b"/", &NEW)), ErrorKind::Exists);
        assert_eq!(kind_of(tree.mkdir(b"", &NEW)), ErrorKind::InvalidInput);
        assert_eq!(kind_of(tree.remove(b"//")), ErrorKind::NotPermitted);
        assert_eq!(kind_of(tree.rename(b"/", b"x", RenameFlags::empty())), ErrorKind::NotPermitted);
        assert_eq!(kind_of(tree.rename(b"a", b"a/x/in", RenameFlags::empty())), ErrorKind::InvalidInput);
    });
}

#[test]
fn remove_all_keeps_what_fails_and_removes_links_themselves() {
    let store = MemStore::new();
    with_tree(&store, |tree| {
        drop(tree.mkdir_all(b"d/sub/deep", &NEW).unwrap());
        drop(tree.mkdir_all(b"kept", &NEW).unwrap());
        write(tree, "kept/f", b"");
        write(tree, "d/sub/deep/bad", b"");
        write(tree, "d/x", b"");
        link(tree, "d/l", "../kept");
        store.break_name(b"bad");
        let mut failures = Vec::new();
        assert!(!tree.remove_all(b"d", &mut |_| {}, &mut |e| failures.push(e.kind())).unwrap());
        assert_eq!(failures, [ErrorKind::Corrupt]);
        assert_eq!(tree.list(&tree.resolve(b"d", Last::Keep).unwrap()).unwrap().len(), 1);
        assert!(tree.resolve(b"kept/f", Last::Keep).is_ok());
        tree.remove(b"kept/f").unwrap();
        tree.remove(b"kept").unwrap();
        assert_eq!(tree.remove(b"d/sub").unwrap_err().kind(), ErrorKind::NotEmpty);
    });
}

#[test]
fn rename_moves_into_directories() {
    with_tree(&MemStore::new(), |tree| {
        drop(tree.mkdir(b"d", &NEW).unwrap());
        write(tree, "f", b"1");
        write(tree, "g", b"2");
        assert_eq!(tree.rename(b"f", b"d", RenameFlags::empty()).unwrap(), b"d/f");
        assert_eq!(tree.rename(b"d/f", b"h", RenameFlags::empty()).unwrap(), b"h");
        let kept = tree.rename(b"h", b"g", RenameFlags::NOREPLACE).unwrap_err();
        assert_eq!(kept.kind(), ErrorKind::Exists);
        tree.rename(b"h", b"g", RenameFlags::empty()).unwrap();
        assert_eq!(read(tree, "g"), b"1");
    });
}

/// A host tree with modes, times, links and sizes around the copy's buffer.
fn host_tree(root: &Path) {
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    for (name, len) in [("none", 0), ("one", 1), ("sub/exact", 1 << 20), ("sub/more", (1 << 20) + 1)] {
        fs::write(root.join(name), (0..len).map(|n| (n % 251) as u8).collect::<Vec<_>>()).unwrap();
    }
    fs::set_permissions(root.join("one"), fs::Permissions::from_mode(0o4640)).unwrap();
    symlink("../one", root.join("sub/link")).unwrap();
    symlink("/nowhere", root.join("dangling")).unwrap();
    for name in ["one", "sub/link", "sub", "sub/empty"] {
        let place = HostPlace::of(&root.join(name)).unwrap();
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            last_modification: rustix::fs::Timespec { tv_sec: 1_000_000_007, tv_nsec: 123_456_789 },
        };
        let dir = open_dir(root.join(name).parent().unwrap()).unwrap();
        rustix::fs::utimensat(dir, place.name(), &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    fs::set_permissions(root.join("sub/empty"), fs::Permissions::from_mode(0o500)).unwrap();
}

/// Everything of a host tree that a copy keeps.
fn facts(root: &Path) -> Vec<String> {
    let mut facts = Vec::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            String::new()
        } else if meta.is_symlink() {
            fs::read_link(&path).unwrap().display().to_string()
        } else {
            let bytes = fs::read(&path).unwrap();
            format!("{} {}", bytes.len(), bytes.iter().map(|&b| u64::from(b)).sum::<u64>())
        };
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let perm = meta.mode() & 0o1777;
        facts.push(format!("{name} {perm:o} {}.{:09} {content}", meta.mtime(), meta.mtime_nsec()));
    }
    facts.sort();
    facts
}

#[test]
fn a_tree_goes_in_and_comes_out_the_same() {
    let host = tempfile::tempdir().unwrap();
    let (from, to) = (host.path().join("from"), host.path().join("to"));
    host_tree(&from);
    with_tree(&MemStore::new(), |tree| {
        let (copied, failures) = put(tree, &from, "t", &CopyOptions::default()).unwrap();
        assert!(failures.is_empty());
        let expected = Copied { files: 4, directories: 3, symlinks: 2, bytes: (2 << 20) + 2, ..Copied::default() };
        assert_eq!(copied, expected);
        assert_eq!(get(tree, "t", as_new(&to)).unwrap(), (expected, Vec::new()));
        assert_eq!(facts(&from), facts(&to));
        // Again over what is there: nothing changes, and no temporary name is left.
        put(tree, &from, "t", &CopyOptions::default()).unwrap();
        fs::set_permissions(to.join("sub/empty"), fs::Permissions::from_mode(0o700)).unwrap();
        get(tree, "t", as_new(&to)).unwrap();
        assert_eq!(facts(&from), facts(&to));
    });
}

#[test]
fn get_never_writes_through_a_link() {
    let host = tempfile::tempdir().unwrap();
    let (to, outside) = (host.path().join("to"), host.path().join("outside"));
    fs::create_dir_all(&to).unwrap();
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("file"), "mine").unwrap();
    symlink(&outside, to.join("d")).unwrap();
    symlink(outside.join("file"), to.join("f")).unwrap();
    with_tree(&MemStore::new(), |tree| {
        drop(tree.mkdir(b"d", &NEW).unwrap());
        write(tree, "d/file", b"theirs");
        write(tree, "f", b"theirs");
        let (copied, failures) = get(tree, "/", Outward::Into(open_dir(&to).unwrap())).unwrap();
        assert_eq!(failures, [ErrorKind::NotDirectory]);
        assert_eq!((copied.files, copied.failed), (1, 1));
    });
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "mine");
    assert!(!fs::symlink_metadata(to.join("f")).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(to.join("f")).unwrap(), "theirs");
}

#[test]
fn one_bad_file_does_not_stop_a_get() {
    let host = tempfile::tempdir().unwrap();
    let store = MemStore::new();
    with_tree(&store, |tree| {
        for name in ["a", "bad", "c"] {
            write(tree, name, b"x");
        }
        store.break_name(b"bad");
        let (copied, failures) = get(tree, "/", as_new(&host.path().join("to"))).unwrap();
        assert_eq!(failures, [ErrorKind::Corrupt]);
        assert_eq!((copied.files, copied.failed), (2, 1));
    });
}

#[test]
fn a_full_store_ends_a_put_and_keeps_the_old_file() {
    let host = tempfile::tempdir().unwrap();
    fs::create_dir(host.path().join("d")).unwrap();
    fs::write(host.path().join("d/f"), [7; 100]).unwrap();
    fs::write(host.path().join("d/g"), [7; 100]).unwrap();
    let store = MemStore::new();
    with_tree(&store, |tree| {
        drop(tree.mkdir(b"d", &NEW).unwrap());
        write(tree, "d/f", b"old");
        store.limit(50);
        let error = put(tree, &host.path().join("d"), "d", &CopyOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(error.subject(), Some("/d/f"));
        assert_eq!(read(tree, "d/f"), b"old");
        assert_eq!(paths(tree, "d"), ["/d", "/d/f", "/d/"]);
    });
}

#[test]
fn options_keep_files_and_leave_out_the_store_itself() {
    let host = tempfile::tempdir().unwrap();
    fs::create_dir_all(host.path().join("d/vault/inside")).unwrap();
    fs::write(host.path().join("d/f"), "new").unwrap();
    let meta = fs::metadata(host.path().join("d/vault")).unwrap();
    let options = CopyOptions { replace: false, leave_out: Some((meta.dev(), meta.ino())) };
    with_tree(&MemStore::new(), |tree| {
        drop(tree.mkdir(b"d", &NEW).unwrap());
        write(tree, "d/f", b"old");
        let (copied, failures) = put(tree, &host.path().join("d"), "d", &options).unwrap();
        assert_eq!(failures, [ErrorKind::Exists]);
        assert_eq!((copied.left_out, copied.failed, copied.directories), (1, 1, 1));
        assert_eq!(paths(tree, "/"), ["/", "/d", "/d/f", "/d/", "//"]);
        assert_eq!(read(tree, "d/f"), b"old");
    });
}

#[test]
fn a_caller_can_stop_a_copy() {
    let host = tempfile::tempdir().unwrap();
    host_tree(&host.path().join("t"));
    with_tree(&MemStore::new(), |tree| {
        let place = HostPlace::of(&host.path().join("t")).unwrap();
        let root = tree.root().unwrap();
        let stopped =
            copy_in(
                tree,
                &place,
                &root,
                b"t",
                &CopyOptions::default(),
                &mut Kept::default(),
                &mut |event| match event {
                    Event::Bytes(_) => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                },
            );
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
        assert!(!paths(tree, "/").iter().any(|p| p.contains(".part")));
    });
}

#[test]
fn folders_of_a_copy_that_ended_early_have_their_modes() {
    let host = tempfile::tempdir().unwrap();
    let (from, out) = (host.path().join("t"), host.path().join("out"));
    fs::create_dir_all(from.join("deep/er")).unwrap();
    fs::write(from.join("deep/er/file"), "content").unwrap();
    let folders = [("", 0o751), ("/deep", 0o700), ("/deep/er", 0o2775)];
    for (name, mode) in folders {
        fs::set_permissions(format!("{}{name}", from.display()), PermissionsExt::from_mode(mode)).unwrap();
    }
    let mut stop = |event: Event<'_>| match event {
        Event::Bytes(_) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    with_tree(&MemStore::new(), |tree| {
        let root = tree.root().unwrap();
        // One that was there keeps its own until it is finished.
        tree.mkdir_in(&root, b"t", &NEW).unwrap();
        tree.mkdir_in(&tree.resolve(b"/t", Last::Keep).unwrap(), b"deep", &NEW).unwrap();
        let place = HostPlace::of(&from).unwrap();
        let options = CopyOptions::default();
        let stopped = copy_in(tree, &place, &root, b"t", &options, &mut Kept::default(), &mut stop);
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
        let perm = |path: &str| tree.resolve(path.as_bytes(), Last::Keep).unwrap().attr().perm;
        assert_eq!(["/t", "/t/deep", "/t/deep/er"].map(perm), [0o755, 0o755, 0o2775]);
    });
    with_tree(&MemStore::new(), |tree| {
        put(tree, &from, "/t", &CopyOptions::default()).unwrap();
        fs::create_dir_all(out.join("deep")).unwrap();
        let before = fs::metadata(&out).unwrap().mode();
        let start = tree.resolve(b"/t", Last::Keep).unwrap();
        let stopped = copy_out(tree, start, as_new(&out), &CopyOptions::default(), &mut stop);
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
        let mode = |name: &str| fs::metadata(format!("{}{name}", out.display())).unwrap().mode();
        assert_eq!(["", "/deep", "/deep/er"].map(mode), [before, before, 0o42775]);
    });
}

#[test]
fn a_directory_that_two_names_lead_to_is_shown_once_and_told() {
    let store = MemStore::new();
    with_tree(&store, |tree| {
        drop(tree.mkdir_all(b"a/b", &NEW).unwrap());
        write(tree, "a/b/f", b"x");
        let (a, b) = (tree.resolve(b"a", Last::Keep).unwrap().ino(), tree.resolve(b"a/b", Last::Keep).unwrap().ino());
        store.enter_again(b, Ino::ROOT, b"c");
        // And one that holds itself.
        store.enter_again(a, b, b"itself");
        let shown = ["/", "/a", "/a/b", "/a/b/f", "/a/b/itself: Corrupt", "/a/b/", "/a/", "/c: Corrupt", "//"];
        assert_eq!(paths(tree, "/"), shown);
        let dest = tempfile::tempdir().unwrap();
        let (copied, failures) = get(tree, "/", as_new(&dest.path().join("copy"))).unwrap();
        assert_eq!((copied.files, copied.failed), (1, 2));
        assert_eq!(failures, [ErrorKind::Corrupt, ErrorKind::Corrupt]);
        let mut told = String::new();
        let root = tree.root().unwrap();
        tree.walk(root, &mut |visit| {
            if let Visit::Failed { path: b"c", error } = visit {
                told = error.to_string();
            }
            Ok(Step::Into)
        })
        .unwrap();
        assert!(told.contains("/c: ") && told.contains("the same directory as /a/b"), "{told}");
    });
}
