//! Who gets which slot, and which journals come with it.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn each_process_has_a_slot_and_dead_ones_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (base, root) = (dir.path().join("state"), dir.path().join("vault"));
    fs::create_dir(&root).unwrap();
    let first = StateDir::acquire(&base, &[1; 16], &root).unwrap();
    let second = StateDir::acquire(&base, &[1; 16], &root).unwrap();
    assert_ne!(first.path, second.path);
    assert!(second.abandoned.is_empty(), "a living process's slot is its own");
    assert!(first.others.is_empty());
    assert_eq!(second.others, [Some(ProcessNumber::own())], "and it is told who lives");
    let dead = first.path.clone();
    drop(first);
    let third = StateDir::acquire(&base, &[1; 16], &root).unwrap();
    assert_eq!(third.path, dead);
    drop((second, third));
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    let other = StateDir::acquire(&base, &[1; 16], &copy).unwrap();
    assert!(other.abandoned.is_empty(), "a copy of the vault leaves the original's journals alone");
    drop(other);
    let moved = dir.path().join("moved");
    fs::rename(&root, &moved).unwrap();
    let fourth = StateDir::acquire(&base, &[1; 16], &moved).unwrap();
    assert_eq!(fourth.abandoned.len(), 2, "the slots of the old path are adopted");
}

#[test]
fn a_journal_waits_for_its_folder_when_a_copy_takes_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let (base, root, broken) = (dir.path().join("state"), dir.path().join("vault"), dir.path().join("broken"));
    let make = |root: &Path| {
        fs::create_dir(root).unwrap();
        fs::write(root.join(CONFIG_FILE_NAME), "").unwrap();
    };
    make(&root);
    let dead = StateDir::acquire(&base, &[1; 16], &root).unwrap().path;
    fs::rename(&root, &broken).unwrap();
    // Another folder: made later, under another inode number.
    while FolderId::of(&broken).unwrap().made.is_some_and(|made| {
        fs::create_dir(&root).unwrap();
        let again = FolderId::of(&root).unwrap().made == Some(made);
        fs::remove_dir(&root).unwrap();
        again
    }) {}
    make(&root);
    if FolderId::of(&root).unwrap().made.is_none() {
        return; // the host does not know, so nothing is told apart
    }
    let empty = StateDir::acquire(&base, &[1; 16], &root).unwrap();
    assert_eq!((&empty.path, empty.strange.len()), (&dead, 0), "without a journal there is nothing to wait for");
    drop(empty);
    fs::write(dead.join(FOLDER_FILE), FolderId::of(&broken).unwrap().to_string()).unwrap();
    fs::write(dead.join("journal-0000000000000001"), "").unwrap();
    for _ in 0..2 {
        let copy = StateDir::acquire(&base, &[1; 16], &root).unwrap();
        assert_ne!(copy.path, dead);
        assert!(copy.abandoned.is_empty() && !copy.has_journals());
        assert_eq!(copy.strange, std::slice::from_ref(&dead), "and it is told");
    }
    let original = StateDir::acquire(&base, &[1; 16], &broken).unwrap();
    assert!(original.abandoned.contains(&dead) && original.has_journals());
    drop(original);
    // Put back, it is recovered from its own slot again.
    fs::rename(&root, dir.path().join("backup")).unwrap();
    fs::rename(&broken, &root).unwrap();
    let back = StateDir::acquire(&base, &[1; 16], &root).unwrap();
    assert_eq!((&back.path, back.has_journals(), back.strange.len()), (&dead, true, 0));
}

#[test]
fn a_folder_that_may_be_the_same_is() {
    let then = FolderId { device: 1, inode: 2, made: Some(3) };
    let after = |change: fn(&mut FolderId)| {
        let mut now = then;
        change(&mut now);
        now
    };
    assert!(!then.is_another(&after(|now| now.device = 9)), "the next boot");
    assert!(!then.is_another(&after(|now| now.inode = 9)), "inodes are numbered anew");
    assert!(!then.is_another(&after(|now| (now.inode, now.made) = (9, None))), "nothing is known");
    assert!(then.is_another(&after(|now| (now.inode, now.made) = (9, Some(9)))));
    assert!(then.is_same(&then) && !then.is_same(&after(|now| now.made = Some(9))));
}

#[test]
fn a_slot_that_others_can_write_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let (base, root) = (dir.path().join("state"), dir.path().join("vault"));
    fs::create_dir(&root).unwrap();
    let slot = StateDir::acquire(&base, &[1; 16], &root).unwrap().path;
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for open in [0o720, 0o702] {
        mode(&slot, open);
        let e = StateDir::acquire(&base, &[1; 16], &root).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotPermitted, "{e}");
    }
    mode(&slot, 0o700);
    fs::rename(&slot, dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &slot).unwrap();
    assert_eq!(StateDir::acquire(&base, &[1; 16], &root).unwrap_err().kind(), ErrorKind::NotPermitted);
    // Whoever can write what is above could put another folder in its place.
    fs::remove_file(&slot).unwrap();
    mode(slot.parent().unwrap(), 0o777);
    assert_eq!(StateDir::acquire(&base, &[1; 16], &root).unwrap_err().kind(), ErrorKind::NotPermitted);
}

#[test]
fn a_folder_is_shared_or_somebodys_alone() {
    let dir = tempfile::tempdir().unwrap();
    FolderLock::take_to_change(dir.path(), true).expect("a vault without contents has nothing to lock");
    fs::create_dir(dir.path().join(CONTENT_FOLDER)).unwrap();
    for take in [FolderLock::take, FolderLock::take_to_change] {
        let first = take(dir.path(), false).unwrap();
        let second = take(dir.path(), false).unwrap();
        assert_eq!(take(dir.path(), true).unwrap_err().kind(), ErrorKind::Busy);
        drop((first, second));
        let alone = take(dir.path(), true).unwrap();
        assert_eq!(take(dir.path(), false).unwrap_err().kind(), ErrorKind::Busy);
        drop(alone);
        take(dir.path(), false).unwrap();
    }
    let _reader = FolderLock::take(dir.path(), false).unwrap();
    FolderLock::take_to_change(dir.path(), true).expect("whoever only reads may stay");
}
