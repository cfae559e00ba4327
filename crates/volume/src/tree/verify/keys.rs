//! All keys: each is one, each record can be read, each version is there for somebody, and is listed where lists are kept.

use adit_core::Result;

use super::stream::{Group, Raw, groups, is_tombstone};
use super::{Checked, Fault, Ids, births};
use crate::format::keys::{self, Id, Key, Parts, space};
use crate::format::records::{self, Entry, Inode, Malformed, Orphan, Window};
use crate::table::{KEY_LEN_MAX_BYTES, OWN_PREFIX};
use crate::tree::topology::{FIRST_ID, Topology};
use crate::tree::{Tree, WINDOWS_MAX, is_ino, meta};

/// The spaces of versioned keys.
const VERSIONED: [u8; 6] = [space::INODE, space::XATTR, space::ENTRY, space::NAME, space::WINDOW, space::ORPHAN];

/// The other first bytes of keys.
const OTHERS: [u8; 4] = [space::SNAPSHOT, space::TOUCHED, space::META, OWN_PREFIX];

/// Notes that are looked up at once.
const NOTES_AT_ONCE: usize = 256;

/// Checks all keys.
pub(super) fn check(tree: &Tree, ids: &Ids, checked: &mut Checked) -> Result<()> {
    let topology = tree.topology.read();
    let mut used = 0;
    for space in VERSIONED {
        let mut bad = Vec::new();
        let mut beyond = Vec::new();
        groups(&*tree.table, space, &mut |key| note_bad(&mut bad, key), &mut |group| {
            if !is_possible(&group.key) {
                note_bad(&mut beyond, group.key.as_bytes());
                return Ok(());
            }
            if let Some(Parts::Inode(ino)) = group.key.parts() {
                used = ino.max(used);
                let there = group.versions.iter().filter(|(_, value)| !is_tombstone(value));
                checked.inodes += there.count() as u64;
            }
            check_records(group, checked);
            check_versions(&topology, ids, group, checked);
            births::check(&topology, ids, group, checked);
            check_listed(tree, &topology, ids, group, checked)
        })?;
        bad.into_iter().chain(beyond).for_each(|key| checked.add(None, Fault::BadKey(key)));
    }
    check_others(tree, checked)?;
    // As it is stored, for that is what the next opening goes by.
    let counter = tree.table.get(&keys::meta(meta::NEXT_INO))?;
    if counter.and_then(|value| records::decode_meta(&value).ok()).is_none_or(|next| used >= next) {
        checked.add(None, Fault::Numbers { used });
    }
    check_notes(tree, ids, checked)
}

/// Keeps some of them, to be told.
fn note_bad(bad: &mut Vec<Vec<u8>>, key: &[u8]) {
    if bad.len() < super::OTHERS_MAX {
        bad.push(key.to_vec());
    }
}

/// Whether there can be what it is about.
fn is_possible(key: &Key) -> bool {
    match key.parts() {
        Some(Parts::Window(ino, index)) => is_ino(ino) && index < WINDOWS_MAX,
        Some(
            Parts::Inode(ino) | Parts::Xattr(ino, _) | Parts::Entry(ino, _) | Parts::Name(ino, ..) | Parts::Orphan(ino),
        ) => is_ino(ino),
        None => false,
    }
}

/// Counters that nobody knows, and keys that begin with what no key begins with.
fn check_others(tree: &Tree, checked: &mut Checked) -> Result<()> {
    let mut known: Vec<u8> = VERSIONED.into_iter().chain(OTHERS).collect();
    known.sort_unstable();
    let mut start = Vec::new();
    for space in known {
        bad_between(tree, std::mem::replace(&mut start, vec![space + 1]), vec![space], checked)?;
    }
    bad_between(tree, start, vec![u8::MAX; KEY_LEN_MAX_BYTES + 1], checked)?;
    let counters = [keys::meta(meta::NEXT_INO), keys::meta(meta::FORMAT)];
    let mut all = Raw::new(&*tree.table, space::META);
    while let Some((key, _)) = all.next()? {
        if !counters.contains(&key) {
            checked.add(None, Fault::BadKey(key));
        }
    }
    Ok(())
}

fn bad_between(tree: &Tree, start: Vec<u8>, end: Vec<u8>, checked: &mut Checked) -> Result<()> {
    if start >= end {
        return Ok(());
    }
    let mut raw = Raw::between(&*tree.table, start, end);
    while let Some((key, _)) = raw.next()? {
        checked.add(None, Fault::BadKey(key));
    }
    Ok(())
}

fn check_records(group: &Group, checked: &mut Checked) {
    for (id, value) in group.versions.iter().filter(|(_, value)| !is_tombstone(value)) {
        if let Err(Malformed(why)) = decode(&group.key, value) {
            checked.add(None, Fault::Damaged { key: group.key.clone(), id: *id, why });
        }
    }
}

fn decode(key: &Key, value: &[u8]) -> std::result::Result<(), Malformed> {
    match key.parts() {
        Some(Parts::Inode(_)) => Inode::decode(value).map(drop),
        Some(Parts::Xattr(..)) => records::decode_xattr(value).map(drop),
        Some(Parts::Entry(..)) => Entry::decode(value).and_then(|entry| match is_ino(entry.ino) {
            true => Ok(()),
            false => Err(Malformed("inode number")),
        }),
        Some(Parts::Name(..)) => records::decode_name(value),
        Some(Parts::Window(..)) => Window::decode(value).map(drop),
        Some(Parts::Orphan(_)) => Orphan::decode(value).map(drop),
        None => Ok(()),
    }
}

/// Each version is there for somebody, and each tombstone hides something.
fn check_versions(topology: &Topology, ids: &Ids, group: &Group, checked: &mut Checked) {
    let Group { key, versions } = group;
    for (id, _) in versions.iter().filter(|(id, _)| topology.node(*id).is_err()) {
        checked.add(None, Fault::NoOwner { key: key.clone(), id: *id });
    }
    if !ids.collected {
        return;
    }
    let sees = |v: Id, w: Id| topology.sees(v, w);
    // One that is alone is the nearest to all who see it.
    let is_needed = |id: Id| match versions.as_slice() {
        [_] => ids.needed.contains(&id),
        versions => ids.shown.iter().any(|(v, _)| {
            let nearest = versions.iter().find(|(w, _)| sees(*v, *w));
            nearest.is_some_and(|(nearest, _)| *nearest == id)
        }),
    };
    for (id, value) in versions.iter().filter(|(id, _)| topology.node(*id).is_ok()) {
        let is_seen = is_needed(*id) || ids.forked.contains(id);
        let parent = topology.node(*id).map_or(0, |node| node.record.parent);
        let beyond = || versions.iter().find(|(w, _)| sees(parent, *w));
        let hides_nothing = is_tombstone(value) && beyond().is_none_or(|(_, v)| is_tombstone(v));
        if !is_seen || hides_nothing {
            checked.add(None, Fault::Unseen { key: key.clone(), id: *id });
        }
    }
}

/// Who has a list of what it wrote has the key in it.
fn check_listed(tree: &Tree, topology: &Topology, ids: &Ids, group: &Group, checked: &mut Checked) -> Result<()> {
    let writers = group.versions.iter().map(|(id, _)| *id).filter(|id| topology.node(*id).is_ok());
    let listed: Vec<Id> = writers.filter(|id| !ids.topmost.contains(id)).collect();
    if listed.is_empty() {
        return Ok(());
    }
    let notes: Vec<Vec<u8>> = listed.iter().map(|id| keys::touched(*id, group.key.as_bytes())).collect();
    let notes: Vec<&[u8]> = notes.iter().map(Vec::as_slice).collect();
    for (id, note) in listed.into_iter().zip(tree.table.get_many(&notes)?) {
        if note.is_none() {
            checked.add(None, Fault::NotListed { key: group.key.clone(), id });
        }
    }
    Ok(())
}

/// What lists say was written.
fn check_notes(tree: &Tree, ids: &Ids, checked: &mut Checked) -> Result<()> {
    let mut notes = Raw::new(&*tree.table, space::TOUCHED);
    let mut some: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    loop {
        let next = notes.next()?;
        let is_last = next.is_none();
        match next.map(|(note, _)| (version_of(&note), note)) {
            Some((Some(key), note)) => some.push((key, note)),
            Some((None, note)) => checked.add(None, Fault::NeedlessNote(note)),
            None => {}
        }
        if some.len() == NOTES_AT_ONCE || is_last {
            let keys: Vec<&[u8]> = some.iter().map(|(key, _)| key.as_slice()).collect();
            let versions = tree.table.get_many(&keys)?;
            for ((_, note), version) in std::mem::take(&mut some).into_iter().zip(versions) {
                // While something is dropped or merged, notes may stay longer than what they are about.
                if version.is_none() && ids.collected {
                    checked.add(None, Fault::NeedlessNote(note));
                }
            }
        }
        if is_last {
            return Ok(());
        }
    }
}

/// The key of the version that a note is about.
fn version_of(note: &[u8]) -> Option<Vec<u8>> {
    let (id, logical) = keys::parse_touched(note)?;
    Some(Key::from_logical(logical)?.at(id)).filter(|_| id >= FIRST_ID)
}
