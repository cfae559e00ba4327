//! Calls that change something, and those that tell of the store.

use adit_core::error::ErrorKind;
use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, AllocateMode, Caller, Ino, Kind, RenameFlags, SetAttr, XattrName, XattrSet};
use adit_manifest::store::STATE_XATTR;

use crate::support::*;

#[test]
fn nothing_can_be_changed() {
    let mut world = World::new();
    world.add("d/f", 100);
    let store = world.mount();
    assert!(store.capabilities().read_only);
    let (root, dir, file) = (Ino::ROOT, find(&store, b"d").unwrap().ino, find(&store, b"d/f").unwrap().ino);
    let caller = Caller { uid: 0, gid: 0 };
    let new = NewNode { perm: 0o600, umask: 0, caller };
    let x = name(b"x");
    let attribute = XattrName::new(b"user.x").unwrap();
    let refused = [
        kind(store.setattr(file, &SetAttr { size: Some(0), ..SetAttr::default() })),
        kind(store.create(root, x, &new)),
        kind(store.mkdir(root, x, &new)),
        kind(store.mknod(root, x, Kind::Fifo, 0, &new)),
        kind(store.symlink(root, x, b"y", caller)),
        kind(store.link(file, root, x)),
        kind(store.unlink(dir, name(b"f"))),
        kind(store.rmdir(root, name(b"d"))),
        kind(store.rename(dir, name(b"f"), root, x, RenameFlags::empty())),
        kind(store.set_xattr(file, attribute, b"", XattrSet::Either)),
        kind(store.remove_xattr(file, attribute)),
        kind(store.open(file, Access::Write)),
    ];
    assert_eq!(refused, [ErrorKind::ReadOnly; 12]);
    let open = store.open(file, Access::Read).unwrap();
    let refused =
        [kind(open.write_at(&[(0, b"x")])), kind(open.set_len(0)), kind(open.allocate(0, 1, AllocateMode::Extend))];
    assert_eq!(refused, [ErrorKind::ReadOnly; 3]);
    open.sync(false).unwrap();
    store.sync_all().unwrap();
    store.sync_dir(dir).unwrap();
    assert_eq!(kind(store.sync_dir(file)), ErrorKind::NotDirectory);
    assert_eq!(open.len().unwrap(), 100);
}

#[test]
fn an_attribute_tells_where_the_content_is() {
    let mut world = World::new();
    world.add("small", 100);
    world.add("large", 3 * BLOCK as usize);
    world.add("empty", 0);
    let store = world.mount();
    let state = |path: &str| {
        let value =
            store.xattr(find(&store, path.as_bytes()).unwrap().ino, XattrName::new(STATE_XATTR.as_bytes()).unwrap());
        String::from_utf8(value.unwrap()).unwrap()
    };
    assert_eq!([state("small"), state("large"), state("empty")], ["remote", "remote", "cached"]);
    read(&*open(&store, "small"), 0, 1).unwrap();
    read(&*open(&store, "large"), 0, 1).unwrap();
    assert_eq!([state("small"), state("large")], ["cached", "remote"]);
    read(&*open(&store, "large"), 0, 1 << 20).unwrap();
    assert_eq!(state("large"), "cached");
    // It is not listed, so copies leave it.
    let ino = find(&store, b"small").unwrap().ino;
    assert_eq!(store.xattr_names(ino).unwrap(), b"");
    assert_eq!(kind(store.xattr(ino, XattrName::new(b"user.other").unwrap())), ErrorKind::NoAttribute);
    assert_eq!(kind(store.xattr(Ino::ROOT, XattrName::new(STATE_XATTR.as_bytes()).unwrap())), ErrorKind::NoAttribute);
}

#[test]
fn size_and_counters_are_told() {
    let mut world = World::new();
    world.add("a", 5000);
    world.add("b", 1);
    let store = world.mount();
    let statfs = store.statfs().unwrap();
    assert_eq!((statfs.blocks * u64::from(statfs.block_size), statfs.blocks_free, statfs.files), (8192, 0, 3));
    read(&*open(&store, "a"), 0, 5000).unwrap();
    let counters = store.counters();
    let of = |name: &str| counters.iter().find(|(other, _)| *other == name).unwrap().1;
    assert_eq!((of("fetched_bytes"), of("objects_verified")), (5000, 1));
}
