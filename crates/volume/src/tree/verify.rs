//! Whether a tree is what its rules say: for tests, and for whoever checks a volume. Reads everything, several times.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use adit_core::Result;
use adit_core::types::Kind;

use super::topology::{FIRST_ID, Topology};
use super::view::{Lines, View, corrupt_key};
use super::{ROOT_INO, Tree};
use crate::format::keys::{self, Id, Key, Parts, cookie};
use crate::format::records::{self, Entry, Inode, Orphan, Place, State, WINDOW_LEN_BLOCKS, Window};
use crate::table::BLOCK_LEN_BYTES;

/// All versions of all keys.
type Versions = BTreeMap<Key, Vec<(Id, Vec<u8>)>>;

/// The spaces of versioned keys.
const VERSIONED: [u8; 6] = [
    keys::space::INODE,
    keys::space::XATTR,
    keys::space::ENTRY,
    keys::space::NAME,
    keys::space::WINDOW,
    keys::space::ORPHAN,
];

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// What is wrong, in words.
    pub problems: Vec<String>,
    /// All blocks that some version of some window refers to.
    pub blocks: BTreeSet<u64>,
}

impl Tree {
    /// Checks versions, touched lists, references to blocks, and what each snapshot and branch shows.
    pub fn verify(&self) -> Result<Report> {
        let topology = self.topology.read();
        let mut report = Report::default();
        let versions = self.all_versions(&mut report)?;
        let to_go = |state| matches!(state, State::Merging | State::Dropping | State::Staging);
        let collected = !topology.nodes().any(|(_, n)| to_go(n.record.state));
        for (key, versions) in &versions {
            check_versions(&topology, key, versions, collected, &mut report);
        }
        self.check_touched(&topology, &versions, collected, &mut report)?;
        check_blocks(&versions, &mut report);
        let shown = |(id, node): (Id, &super::topology::Node)| {
            matches!(node.record.state, State::Live | State::Frozen).then_some(id)
        };
        let ids: Vec<Id> = topology.nodes().filter_map(shown).collect();
        drop(topology);
        for id in ids {
            let view = View { tree: self, topology: Lines::Shared(self.topology.read()), id, chain: None, cache: None };
            check_view(&view, &mut report)?;
        }
        Ok(report)
    }

    fn all_versions(&self, report: &mut Report) -> Result<Versions> {
        let mut versions = Versions::new();
        for space in VERSIONED {
            self.table.scan(&[space], &[space + 1], &mut |bytes, value| {
                match keys::split(bytes).and_then(|(logical, id)| Some((Key::from_logical(logical)?, id))) {
                    Some((key, id)) => versions.entry(key).or_default().push((id, value.to_vec())),
                    None => report.problems.push(corrupt_key(bytes, "it is no key").to_string()),
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(versions)
    }

    fn check_touched(
        &self,
        topology: &Topology,
        versions: &Versions,
        collected: bool,
        report: &mut Report,
    ) -> Result<()> {
        let mut touched = BTreeSet::new();
        self.table.scan(&[keys::space::TOUCHED], &[keys::space::TOUCHED + 1], &mut |bytes, _| {
            if let Some((id, logical)) = keys::parse_touched(bytes) {
                let there = Key::from_logical(logical)
                    .and_then(|key| versions.get(&key))
                    .is_some_and(|versions| versions.iter().any(|(owner, _)| *owner == id));
                if collected && !there {
                    report.problems.push(format!("id {id} says that it touched {}", logical.escape_ascii()));
                }
                touched.insert((id, logical.to_vec()));
            }
            ControlFlow::Continue(())
        })?;
        let below_top = |id: Id| {
            let chain = topology.nodes().find(|(_, n)| n.record.parent == 0).map(|(first, _)| first);
            id != FIRST_ID && chain.is_some() && !in_topmost(topology, id)
        };
        for (key, versions) in versions {
            for (id, _) in versions.iter().filter(|(id, _)| below_top(*id)) {
                if !touched.contains(&(*id, key.as_bytes().to_vec())) {
                    report.problems.push(format!("id {id} has {key:?} and does not say so"));
                }
            }
        }
        Ok(())
    }
}

/// Whether an id belongs to the chain that begins with the first one.
fn in_topmost(topology: &Topology, id: Id) -> bool {
    let mut at = FIRST_ID;
    loop {
        if at == id {
            return true;
        }
        match topology.node(at) {
            Ok(node) if matches!(node.record.state, State::Nameless | State::Merging) && node.children.len() == 1 => {
                at = node.children[0];
            }
            _ => return false,
        }
    }
}

/// Whether an id's chain ends with a nameless id from which several descend. What such a chain wrote stays until one is left,
/// also where each of them hides it.
fn ends_in_fork(topology: &Topology, id: Id) -> bool {
    let end = topology.chain_end_below(id).unwrap_or(id);
    let forks = |id: Id| topology.node(id).is_ok_and(|n| n.record.state == State::Nameless && n.children.len() > 1);
    forks(id) || (forks(end) && topology.chain_of(end).contains(id))
}

/// Each version is there for somebody, and each tombstone hides something.
fn check_versions(topology: &Topology, key: &Key, versions: &[(Id, Vec<u8>)], collected: bool, report: &mut Report) {
    for (id, _) in versions {
        if topology.node(*id).is_err() {
            report.problems.push(format!("{key:?} has a version of {id}, which does not exist"));
        }
    }
    if !collected {
        return;
    }
    let nearest = |v: Id| versions.iter().find(|(w, _)| topology.sees(v, *w)).map(|(w, _)| *w);
    let shown = topology.nodes().filter(|(_, n)| matches!(n.record.state, State::Live | State::Frozen));
    let needed: BTreeSet<Id> = shown.filter_map(|(id, _)| nearest(id)).collect();
    for (id, value) in versions {
        if !needed.contains(id) && !ends_in_fork(topology, *id) {
            report.problems.push(format!("{key:?} has a version of {id} that nobody sees"));
        }
        let parent = topology.node(*id).map_or(0, |node| node.record.parent);
        let beyond = versions.iter().find(|(w, _)| topology.sees(parent, *w));
        if records::is_tombstone(value) && beyond.is_none_or(|(_, v)| records::is_tombstone(v)) {
            report.problems.push(format!("{key:?} has a tombstone of {id} that hides nothing"));
        }
    }
}

/// No block belongs to two windows.
fn check_blocks(versions: &Versions, report: &mut Report) {
    for (key, versions) in versions.iter().filter(|(key, _)| matches!(key.parts(), Some(Parts::Window(..)))) {
        let mut own = BTreeSet::new();
        for (id, value) in versions.iter().filter(|(_, value)| !records::is_tombstone(value)) {
            match Window::decode(value) {
                Ok(window) => own.extend(window.iter().map(|(_, block)| block.at)),
                Err(why) => report.problems.push(format!("{key:?} of {id}: {why}")),
            }
        }
        for block in own {
            if !report.blocks.insert(block) {
                report.problems.push(format!("block {block} belongs to {key:?} and to another window"));
            }
        }
    }
}

/// What one snapshot or branch shows.
#[derive(Default)]
struct Shown {
    inodes: BTreeMap<u64, Inode>,
    entries: BTreeMap<u64, Vec<(Place, u64, Kind)>>,
    names: BTreeSet<(u64, Place)>,
    blocks: BTreeMap<u64, u64>,
    behind: BTreeMap<u64, u64>,
    orphans: BTreeMap<u64, Orphan>,
    with_xattrs: BTreeSet<u64>,
}

fn gather(view: &View<'_>, report: &mut Report) -> Result<Shown> {
    let mut shown = Shown::default();
    let mut take = |key: &[u8], value: &[u8]| {
        let Some(parts) = Key::from_logical(key) else { return Ok(ControlFlow::Continue(())) };
        let bad = match parts.parts() {
            Some(Parts::Inode(ino)) => Inode::decode(value).map(|inode| drop(shown.inodes.insert(ino, inode))).err(),
            Some(Parts::Entry(dir, cookie)) => Entry::decode(value)
                .map(|entry| {
                    let first = view.tree.hash.cookie(entry.name);
                    if !(first..first + cookie::SLOTS).contains(&cookie) {
                        report.problems.push(format!("{}: an entry of {dir} is at the wrong place", view.id));
                    }
                    shown.entries.entry(dir).or_default().push((Place { dir, cookie }, entry.ino, entry.kind));
                })
                .err(),
            Some(Parts::Name(ino, dir, cookie)) => {
                shown.names.insert((ino, Place { dir, cookie }));
                records::decode_name(value).err()
            }
            Some(Parts::Window(ino, index)) => Window::decode(value)
                .map(|window| {
                    *shown.blocks.entry(ino).or_default() += window.count();
                    let last = window.iter().last().map_or(0, |(at, _)| at);
                    shown.behind.insert(ino, index * WINDOW_LEN_BLOCKS as u64 + last as u64);
                })
                .err(),
            Some(Parts::Orphan(ino)) => match Orphan::decode(value) {
                Ok(orphan) => {
                    shown.orphans.insert(ino, orphan);
                    None
                }
                Err(why) => Some(why),
            },
            Some(Parts::Xattr(ino, _)) => {
                shown.with_xattrs.insert(ino);
                records::decode_xattr(value).err()
            }
            None => None,
        };
        report.problems.extend(bad.map(|why| format!("{}: {parts:?}: {why}", view.id)));
        Ok(ControlFlow::Continue(()))
    };
    for space in VERSIONED {
        view.scan(&[space], &[space + 1], &mut take)?;
    }
    Ok(shown)
}

fn check_view(view: &View<'_>, report: &mut Report) -> Result<()> {
    let shown = gather(view, report)?;
    let mut say = |what: String| report.problems.push(format!("id {}: {what}", view.id));
    let mut names: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
    for (dir, entries) in &shown.entries {
        match shown.inodes.get(dir) {
            Some(inode) if inode.kind == Kind::Directory => {
                if inode.size != entries.len() as u64 {
                    say(format!("directory {dir} counts {} entries and has {}", inode.size, entries.len()));
                }
            }
            _ => say(format!("{dir} has entries and is no directory")),
        }
        for &(place, ino, kind) in entries {
            names.entry(ino).or_default().push(place);
            if shown.inodes.get(&ino).map(|inode| inode.kind) != Some(kind) {
                say(format!("an entry of {dir} leads to {ino}, which is not a {kind:?}"));
            }
        }
    }
    for (&ino, inode) in &shown.inodes {
        let places = names.remove(&ino).unwrap_or_default();
        let subdirs = shown.entries.get(&ino).into_iter().flatten().filter(|(_, _, k)| *k == Kind::Directory).count();
        let nlink = match inode.kind {
            Kind::Directory if ino == ROOT_INO || !places.is_empty() => 2 + subdirs,
            _ => places.len(),
        };
        if inode.nlink as usize != nlink {
            say(format!("{ino} counts {} names and has {nlink}", inode.nlink));
        }
        if inode.kind == Kind::Directory && inode.size > 0 && !shown.entries.contains_key(&ino) {
            say(format!("directory {ino} counts entries and has none"));
        }
        let orphan = shown.orphans.get(&ino);
        if (nlink == 0) != orphan.is_some_and(|o| o.removed) {
            say(format!("{ino} has {nlink} names, and as an orphan is {orphan:?}"));
        }
        for place in &places {
            if inode.place != *place && !shown.names.contains(&(ino, *place)) {
                say(format!("{ino} does not know its name {place:?}"));
            }
        }
        let further = shown.names.range((ino, Place::default())..).take_while(|(i, _)| *i == ino).count();
        if places.is_empty() && inode.place != Place::default() || further + 1 != places.len().max(1) {
            say(format!("{ino} knows of names that it has not"));
        }
        if inode.blocks != shown.blocks.get(&ino).copied().unwrap_or(0) {
            say(format!("{ino} counts {} blocks and has {:?}", inode.blocks, shown.blocks.get(&ino)));
        }
        let end = inode.size.div_ceil(BLOCK_LEN_BYTES as u64);
        if shown.behind.get(&ino).is_some_and(|&last| last >= end) && !(inode.is_cut && orphan.is_some()) {
            say(format!("{ino} has blocks behind its end"));
        }
        if shown.with_xattrs.contains(&ino) && !inode.has_xattrs {
            say(format!("{ino} has attributes and does not say so"));
        }
    }
    for ino in names.keys().chain(shown.blocks.keys()).chain(&shown.with_xattrs).chain(shown.orphans.keys()) {
        if !shown.inodes.contains_key(ino) {
            say(format!("{ino} is referred to and is not there"));
        }
    }
    Ok(())
}
