//! What a store over a folder does when others change that, and what it never does.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, XattrName, XattrSet};
use adit_core::{ErrorKind, Result};
use adit_dir::DirStore;
use tempfile::TempDir;

const ROOT: Ino = Ino::ROOT;

fn world() -> (TempDir, DirStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = DirStore::open(folder.path(), false).unwrap();
    (folder, store)
}

fn name(name: &str) -> FileName<'_> {
    FileName::new(name.as_bytes()).unwrap()
}

fn new(perm: u16) -> NewNode {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    NewNode { perm, umask: 0, caller: Caller { uid, gid } }
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("fails").kind()
}

fn listed(store: &DirStore, dir: Ino) -> BTreeSet<(String, u64)> {
    let mut seen = BTreeSet::new();
    store
        .read_dir(dir, 0, &mut |entry| {
            assert!(seen.insert((entry.name.display().into_owned(), entry.ino.0)));
            ControlFlow::Continue(())
        })
        .unwrap();
    seen
}

fn content(store: &DirStore, ino: Ino) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 100];
    let len = store.open(ino, Access::Read)?.read_at(0, &mut buffer)?;
    buffer.truncate(len);
    Ok(buffer)
}

#[test]
fn numbers_are_the_hosts_and_agree_with_listings() {
    let (folder, store) = world();
    fs::create_dir(folder.path().join("d")).unwrap();
    fs::write(folder.path().join("d/f"), "x").unwrap();
    let dir = store.lookup(ROOT, name("d")).unwrap();
    let file = store.lookup(dir.ino, name("f")).unwrap();
    assert_eq!(file.ino.0, fs::metadata(folder.path().join("d/f")).unwrap().ino());
    assert_eq!(store.getattr(ROOT).unwrap().ino, ROOT);
    let of = |dir| listed(&store, dir).into_iter().collect::<Vec<_>>();
    assert_eq!(of(ROOT), [("d".to_owned(), dir.ino.0)]);
    assert_eq!(of(dir.ino), [("f".to_owned(), file.ino.0)]);
    assert_eq!(store.path_of(file.ino).as_deref(), Some("/d/f"));
    assert_eq!(store.name_of(file.ino), Some((dir.ino, b"f".to_vec())));
}

#[test]
fn no_link_leads_out_of_the_folder() {
    let (folder, store) = world();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    symlink(outside.path(), folder.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
    let out = store.lookup(ROOT, name("out")).unwrap();
    assert_eq!(out.kind, Kind::Symlink);
    assert_eq!(kind(store.lookup(out.ino, name("secret"))), ErrorKind::NotDirectory);
    let file = store.lookup(ROOT, name("file")).unwrap();
    assert!(store.open(file.ino, Access::Read).is_err());
    assert_eq!(store.readlink(file.ino).unwrap(), outside.path().join("secret").into_os_string().into_encoded_bytes());
    // Also where a link takes the place of what was looked up as something else.
    fs::create_dir(folder.path().join("d")).unwrap();
    fs::write(folder.path().join("d/secret"), "inside").unwrap();
    fs::write(folder.path().join("f"), "inside").unwrap();
    let (dir, f) = (store.lookup(ROOT, name("d")).unwrap().ino, store.lookup(ROOT, name("f")).unwrap().ino);
    let below = store.lookup(dir, name("secret")).unwrap().ino;
    fs::rename(folder.path().join("d"), folder.path().join("moved")).unwrap();
    symlink(outside.path(), folder.path().join("d")).unwrap();
    fs::remove_file(folder.path().join("f")).unwrap();
    symlink(outside.path().join("secret"), folder.path().join("f")).unwrap();
    assert_eq!(kind(store.open(f, Access::Read)), ErrorKind::Stale);
    // The directory that was looked up is followed, and not its name.
    assert_eq!(content(&store, below).unwrap(), b"inside");
}

#[test]
fn what_others_replaced_is_stale_until_it_is_looked_up_again() {
    let (folder, store) = world();
    let path = folder.path().join("f");
    fs::write(&path, "old").unwrap();
    let old = store.lookup(ROOT, name("f")).unwrap().ino;
    // Kept, so that its number is not given to the next one.
    fs::rename(&path, folder.path().join("kept")).unwrap();
    fs::write(&path, "new").unwrap();
    let error = store.getattr(old).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale);
    assert!(error.to_string().contains("/f"), "{error}");
    assert_eq!(kind(store.open(old, Access::Read)), ErrorKind::Stale);
    let now = store.lookup(ROOT, name("f")).unwrap().ino;
    assert_eq!(content(&store, now).unwrap(), b"new");
    assert_eq!(store.lookup(ROOT, name("kept")).unwrap().ino, old);
    assert_eq!(content(&store, old).unwrap(), b"old");
}

#[test]
fn what_was_moved_or_linked_here_is_found_under_its_other_names() {
    let (folder, store) = world();
    let dir = store.mkdir(ROOT, name("d"), &new(0o755)).unwrap().ino;
    let (file, open) = store.create(ROOT, name("a"), &new(0o644)).unwrap();
    open.write_at(&[(0, b"bytes")]).unwrap();
    drop(open);
    assert_eq!(store.link(file.ino, dir, name("b")).unwrap().nlink, 2);
    store.unlink(ROOT, name("a")).unwrap();
    store.rename(ROOT, name("d"), ROOT, name("e"), RenameFlags::empty()).unwrap();
    assert_eq!(content(&store, file.ino).unwrap(), b"bytes");
    assert_eq!(fs::read(folder.path().join("e/b")).unwrap(), b"bytes");
    // One name of two in place of the other: nothing happens, and both stay.
    store.link(file.ino, ROOT, name("c")).unwrap();
    store.rename(ROOT, name("c"), dir, name("b"), RenameFlags::empty()).unwrap();
    store.unlink(dir, name("b")).unwrap();
    assert_eq!(store.getattr(file.ino).unwrap().nlink, 1);
}

#[test]
fn an_open_file_outlives_its_name() {
    let (_folder, store) = world();
    let (file, open) = store.create(ROOT, name("a"), &new(0o600)).unwrap();
    open.write_at(&[(0, b"bytes")]).unwrap();
    drop(open);
    let reader = store.open(file.ino, Access::Read).unwrap();
    store.unlink(ROOT, name("a")).unwrap();
    assert_eq!(store.getattr(file.ino).unwrap().nlink, 0);
    let writer = store.open(file.ino, Access::Write).unwrap();
    writer.write_at(&[(5, b" more")]).unwrap();
    assert_eq!(store.setattr(file.ino, &SetAttr { size: Some(8), ..SetAttr::default() }).unwrap().size, 8);
    let mut buffer = [0; 20];
    assert_eq!(reader.read_at(0, &mut buffer).unwrap(), 8);
    assert_eq!(kind(store.link(file.ino, ROOT, name("b"))), ErrorKind::NotFound);
    drop((reader, writer));
    assert_eq!(kind(store.getattr(file.ino)), ErrorKind::Stale);
    store.forget(file.ino);
}

#[test]
fn a_deep_path_is_walked_step_by_step() {
    let (_folder, store) = world();
    // Longer than the host takes in one call.
    let long = "n".repeat(200);
    let mut at = ROOT;
    let mut way = Vec::new();
    for _ in 0..150 {
        at = store.mkdir(at, name(&long), &new(0o755)).unwrap().ino;
        way.push(at);
    }
    let (file, _) = store.create(at, name("f"), &new(0o644)).unwrap();
    for dir in &way {
        store.forget(*dir);
    }
    // More directories than are held open have been used since.
    assert_eq!(store.getattr(file.ino).unwrap().kind, Kind::File);
    assert!(store.path_of(file.ino).unwrap().len() > 150 * 200);
    // Removed from within, because other means do not reach so far.
    store.unlink(at, name("f")).unwrap();
    store.forget(file.ino);
}

#[test]
fn another_filesystem_below_is_not_entered() {
    // What every machine has mounted: a folder with a mount in it that is not the folder's own.
    let store = DirStore::open(Path::new("/"), true).unwrap();
    let error = store.lookup(ROOT, name("proc")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CrossDevice);
    assert!(error.to_string().contains("/proc"), "{error}");
    assert!(listed(&store, ROOT).iter().any(|(name, _)| name == "proc"), "its name is there");
}

#[test]
fn read_only_refuses_every_change_and_leaves_access_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    fs::write(&path, "x").unwrap();
    fs::create_dir(folder.path().join("d")).unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    fs::File::open(&path).unwrap().set_times(fs::FileTimes::new().set_accessed(long_ago)).unwrap();
    let store = DirStore::open(folder.path(), true).unwrap();
    assert!(store.capabilities().read_only);
    let file = store.lookup(ROOT, name("f")).unwrap();
    let read_only = |result: Result<()>| assert_eq!(kind(result), ErrorKind::ReadOnly);
    read_only(store.create(ROOT, name("n"), &new(0o644)).map(drop));
    read_only(store.mkdir(ROOT, name("n"), &new(0o755)).map(drop));
    read_only(store.symlink(ROOT, name("n"), b"t", new(0).caller).map(drop));
    read_only(store.mknod(ROOT, name("n"), Kind::Fifo, 0, &new(0o644)).map(drop));
    read_only(store.link(file.ino, ROOT, name("n")).map(drop));
    read_only(store.unlink(ROOT, name("f")));
    read_only(store.rmdir(ROOT, name("d")));
    read_only(store.rename(ROOT, name("f"), ROOT, name("n"), RenameFlags::empty()));
    read_only(store.setattr(file.ino, &SetAttr { perm: Some(0), ..SetAttr::default() }).map(drop));
    read_only(store.open(file.ino, Access::Write).map(drop));
    let attribute = XattrName::new(b"user.a").unwrap();
    read_only(store.set_xattr(file.ino, attribute, b"v", XattrSet::Either));
    read_only(store.remove_xattr(file.ino, attribute));
    assert_eq!(content(&store, file.ino).unwrap(), b"x");
    assert_eq!(fs::metadata(&path).unwrap().accessed().unwrap(), long_ago);
    assert_eq!(listed(&store, ROOT).len(), 2);
}

#[test]
fn a_default_acl_takes_the_place_of_the_umask() {
    let (_folder, store) = world();
    let dir = store.mkdir(ROOT, name("d"), &new(0o755)).unwrap().ino;
    let plain = NewNode { umask: 0o077, ..new(0o666) };
    assert_eq!(store.create(dir, name("plain"), &plain).unwrap().0.perm, 0o600);
    // Version 2; entries for owner (rwx), a user (rwx), group (r-x), mask (rwx), others (r-x).
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 7u16, u32::MAX), (2, 7, 4321), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)]
    {
        acl.extend(tag.to_le_bytes().into_iter().chain(perm.to_le_bytes()).chain(id.to_le_bytes()));
    }
    store.set_xattr(dir, XattrName::ACL_DEFAULT, &acl, XattrSet::Either).unwrap();
    let made = store.create(dir, name("f"), &plain).unwrap().0;
    assert_eq!(made.perm, 0o664, "the mask of the ACL shows as the group's permissions");
    assert!(store.xattr(made.ino, XattrName::ACL_ACCESS).is_ok());
    let below = store.mkdir(dir, name("below"), &NewNode { umask: 0o077, ..new(0o777) }).unwrap();
    assert_eq!(store.xattr(below.ino, XattrName::ACL_DEFAULT).unwrap(), acl);
}

#[test]
fn a_directory_that_hands_on_its_group_does() {
    let (folder, store) = world();
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "only root can give something to another group");
        eprintln!("left out: only root can give something to another group");
        return;
    }
    let dir = store.mkdir(ROOT, name("d"), &new(0o755)).unwrap().ino;
    store.setattr(dir, &SetAttr { gid: Some(4321), ..SetAttr::default() }).unwrap();
    store.setattr(dir, &SetAttr { perm: Some(0o2755), ..SetAttr::default() }).unwrap();
    let other = NewNode { caller: Caller { uid: 1234, gid: 1234 }, ..new(0o700) };
    let below = store.mkdir(dir, name("below"), &other).unwrap();
    assert_eq!((below.perm, below.uid, below.gid), (0o2700, 1234, 4321));
    let meta = fs::metadata(folder.path().join("d/below")).unwrap();
    assert_eq!((meta.permissions().mode() & 0o7777, meta.uid(), meta.gid()), (0o2700, 1234, 4321));
    assert_eq!(store.mkdir(ROOT, name("plain"), &other).unwrap().gid, 1234);
}
