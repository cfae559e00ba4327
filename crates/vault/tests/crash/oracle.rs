//! What a vault may hold after a crash: what the operations that were under way, done and synced allow.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::Result;
use adit_core::media::HostDir;
use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr};
use adit_testkit::crash::CrashWorld;
use adit_vault::{OpenOptions, RecoveryReport, Unlocked, VaultStore};

use super::script::{self, CHUNK, Object, Op, Script, parent};

pub const CALLER: Caller = Caller { uid: 0, gid: 0 };

pub fn open(world: &CrashWorld, keys: &Unlocked) -> Result<(VaultStore, RecoveryReport)> {
    open_with(world, keys, false)
}

pub fn open_with(world: &CrashWorld, keys: &Unlocked, background: bool) -> Result<(VaultStore, RecoveryReport)> {
    open_slot(world, keys, "state", &[], background)
}

pub fn open_slot(
    world: &CrashWorld,
    keys: &Unlocked,
    slot: &str,
    abandoned: &[&str],
    background: bool,
) -> Result<(VaultStore, RecoveryReport)> {
    let dir = |name: &str| -> Arc<dyn HostDir> { Arc::new(world.dir(name)) };
    VaultStore::open(OpenOptions {
        root: dir("vault"),
        state: Some(dir(slot)),
        abandoned: abandoned.iter().map(|name| dir(name)).collect(),
        masterkey: &keys.masterkey,
        config: &keys.config,
        background,
    })
}

pub fn walk(store: &VaultStore, path: &str) -> Result<Attr> {
    let root = store.getattr(Ino::ROOT)?;
    path.split('/')
        .filter(|c| !c.is_empty())
        .try_fold(root, |dir, name| store.lookup(dir.ino, FileName::new(name.as_bytes())?))
}

pub fn base_name(path: &str) -> FileName<'_> {
    FileName::new(path.rsplit('/').next().unwrap().as_bytes()).unwrap()
}

pub fn run(store: &VaultStore, op: &Op, now: usize, script: &Script) -> Result<()> {
    let dir = |path: &str| walk(store, parent(path)).map(|a| a.ino);
    let new = NewNode { perm: 0o700, umask: 0, caller: CALLER };
    match op {
        Op::Create(path) => store.create(dir(path)?, base_name(path), &new).map(drop),
        Op::Mkdir(path) => store.mkdir(dir(path)?, base_name(path), &new).map(drop),
        Op::Symlink(path) => {
            store.symlink(dir(path)?, base_name(path), format!("target {now}").as_bytes(), CALLER).map(drop)
        }
        Op::Write { path, offset, len } => {
            let Object::File(id) = script.trees[now - 1][path] else { panic!("a file") };
            let file = store.open(walk(store, path)?.ino, Access::Write)?;
            file.write_at(&[(*offset as u64, &script::bytes(id, now, *len))])
        }
        Op::Truncate { path, len } => {
            let set = SetAttr { size: Some(*len as u64), ..SetAttr::default() };
            store.setattr(walk(store, path)?.ino, &set).map(drop)
        }
        Op::Sync(path) => store.open(walk(store, path)?.ino, Access::Read)?.sync(false),
        Op::SyncDir(path) => store.sync_dir(walk(store, path)?.ino),
        Op::SyncAll => store.sync_all(),
        Op::Rename { from, to } => {
            store.rename(dir(from)?, base_name(from), dir(to)?, base_name(to), RenameFlags::empty())
        }
        Op::Exchange(a, b) => store.rename(dir(a)?, base_name(a), dir(b)?, base_name(b), RenameFlags::EXCHANGE),
        Op::Unlink(path) => store.unlink(dir(path)?, base_name(path)),
        Op::Rmdir(path) => store.rmdir(dir(path)?, base_name(path)),
    }
}

#[derive(Debug)]
pub enum Seen {
    File(Vec<u8>),
    Directory,
    Symlink(String),
}

/// Reads everything; anything unreadable is an error.
pub fn read_tree(store: &VaultStore) -> Result<BTreeMap<String, Seen>> {
    let (mut tree, mut queue) = (BTreeMap::new(), vec![(String::new(), Ino::ROOT)]);
    while let Some((path, ino)) = queue.pop() {
        let mut names = Vec::new();
        store.read_dir(ino, 0, &mut |e| {
            names.push(e.name.as_bytes().to_vec());
            ControlFlow::Continue(())
        })?;
        for name in names {
            let text = String::from_utf8(name.clone()).unwrap();
            let path = if path.is_empty() { text } else { format!("{path}/{text}") };
            let attr = store.lookup(ino, FileName::new(&name)?).map_err(|e| e.on("look up", &path))?;
            let seen = match attr.kind {
                Kind::Directory => {
                    queue.push((path.clone(), attr.ino));
                    Seen::Directory
                }
                Kind::Symlink => Seen::Symlink(String::from_utf8(store.readlink(attr.ino)?).unwrap()),
                _ => {
                    let mut bytes = vec![0; attr.size as usize + 1];
                    let n = store.open(attr.ino, Access::Read)?.read_at(0, &mut bytes)?;
                    assert_eq!(n as u64, attr.size, "{path}: size and content differ");
                    bytes.truncate(n);
                    Seen::File(bytes)
                }
            };
            tree.insert(path, seen);
        }
    }
    Ok(tree)
}

pub fn chunk(content: &[u8], n: usize) -> &[u8] {
    let start = (n * CHUNK).min(content.len());
    &content[start..(start + CHUNK).min(content.len())]
}

/// Whether `content` is made of chunks of these versions, with a length between theirs.
pub fn made_of(content: &[u8], versions: &[&Vec<u8>]) -> bool {
    let longest = versions.iter().map(|v| v.len()).max().unwrap_or(0);
    let shortest = versions.iter().map(|v| v.len()).min().unwrap_or(0);
    (shortest..=longest).contains(&content.len())
        && (0..content.len().div_ceil(CHUNK)).all(|n| versions.iter().any(|v| chunk(v, n) == chunk(content, n)))
}

pub struct Oracle<'a> {
    pub script: &'a Script,
    pub base: usize,
    pub done: usize,
}

impl Oracle<'_> {
    /// The versions of a file that a crash may show: since it was last made durable.
    pub fn versions(&self, id: usize, exact: bool) -> Vec<&Vec<u8>> {
        let synced = self.script.files[id].synced.iter().copied().filter(|&at| at <= self.done).max().unwrap_or(0);
        self.versions_since(id, if exact { self.done } else { synced })
    }

    /// The version that the file had after `since` operations, and those that came later.
    pub fn versions_since(&self, id: usize, since: usize) -> Vec<&Vec<u8>> {
        let file = &self.script.files[id];
        let first = file.versions.iter().rposition(|(at, _)| *at <= since).unwrap_or(0);
        file.versions[first..].iter().filter(|(at, _)| *at <= self.done + 1).map(|(_, v)| v).collect()
    }

    pub fn after_kill(&self, tree: &BTreeMap<String, Seen>) -> Result<(), String> {
        let before = &self.script.trees[self.done];
        let after = self.script.trees.get(self.done + 1).unwrap_or(before);
        let fits = |expected: &script::Tree| {
            expected.keys().eq(tree.keys())
                && expected.iter().all(|(path, object)| match (object, &tree[path]) {
                    (Object::Directory, Seen::Directory) => true,
                    (Object::Symlink(a), Seen::Symlink(b)) => a == b,
                    (Object::File(id), Seen::File(content)) => made_of(content, &self.versions(*id, true)),
                    _ => false,
                })
        };
        if fits(before) || fits(after) {
            Ok(())
        } else {
            Err("the tree is not that of before or after the call".into())
        }
    }

    pub fn after_power_cut(&self, tree: &BTreeMap<String, Seen>) -> Result<(), String> {
        let last = (self.done + 1).min(self.script.trees.len() - 1);
        // Whatever is there is something that was there.
        for (path, seen) in tree {
            let plausible = self.script.trees[self.base..=last].iter().any(|t| match (t.get(path), seen) {
                (Some(Object::Directory), Seen::Directory) => true,
                (Some(Object::Symlink(a)), Seen::Symlink(b)) => a == b,
                (Some(Object::File(id)), Seen::File(content)) => made_of(content, &self.versions(*id, false)),
                _ => self.below_moved(path),
            });
            if !plausible {
                return Err(format!("{path:?} is nothing that was there since"));
            }
        }
        // Whatever was durable is still there, under a name that it had since.
        for id in 0..self.script.files.len() {
            let Some(synced) = self.script.files[id].synced.iter().copied().filter(|&at| at <= self.done).max() else {
                continue;
            };
            let alive = |t: &script::Tree| t.values().any(|o| *o == Object::File(id));
            if !self.script.trees[synced..=last].iter().all(alive) {
                continue;
            }
            let paths = self.script.paths(id, synced, last);
            let versions = self.versions(id, false);
            let found = paths.iter().any(|p| matches!(tree.get(*p), Some(Seen::File(c)) if made_of(c, &versions)));
            // A directory above it may have moved to a place where, with others, it makes a path of its own.
            let anywhere = || tree.values().any(|s| matches!(s, Seen::File(c) if made_of(c, &versions)));
            if !found && !anywhere() {
                return Err(format!("durable file {id} is gone from {paths:?}"));
            }
        }
        self.synced_entries_are_there(tree, last)?;
        self.nothing_is_replaced_by_less(tree, last)
    }

    /// What was in a directory when it was synced, and was not moved or removed since, is there, and of its kind.
    pub fn synced_entries_are_there(&self, tree: &BTreeMap<String, Seen>, last: usize) -> Result<(), String> {
        for (at, dir) in self.script.synced_dirs.iter().filter(|(at, _)| *at <= self.done) {
            let entries = self.script.trees[*at].iter().filter(|(path, _)| parent(path) == dir);
            for (path, object) in entries {
                if !self.script.trees[*at..=last].iter().all(|t| t.get(path) == Some(object)) {
                    continue;
                }
                let there = match (object, tree.get(path)) {
                    (Object::Directory, Some(Seen::Directory)) | (Object::File(_), Some(Seen::File(_))) => true,
                    (Object::Symlink(wanted), Some(Seen::Symlink(found))) => wanted == found,
                    _ => false,
                };
                if !there {
                    let found = tree.get(path);
                    return Err(format!("{path:?} ({object:?}) of synced directory {dir:?} is gone, or {found:?}"));
                }
            }
        }
        Ok(())
    }

    /// Where a file took the name of a durable one, the one is there or the other, with what it held then or later.
    pub fn nothing_is_replaced_by_less(&self, tree: &BTreeMap<String, Seen>, last: usize) -> Result<(), String> {
        for &(now, old, new) in self.script.replaced.iter().filter(|(now, ..)| (self.base + 1..=last).contains(now)) {
            let was_durable = self.script.files[old].synced.iter().any(|&at| at < now && at <= self.done);
            let alive = |t: &script::Tree| t.values().any(|o| *o == Object::File(new));
            if !was_durable || !self.script.trees[now..=last].iter().all(alive) {
                continue;
            }
            let (before, after) = (self.versions(old, false), self.versions_since(new, now.min(self.done)));
            let kept = |s: &Seen| matches!(s, Seen::File(c) if made_of(c, &before) || made_of(c, &after));
            if !tree.values().any(kept) {
                return Err(format!("file {new} replaced durable file {old} in step {now}, and neither is whole"));
            }
        }
        Ok(())
    }

    /// Moves of directories persist one by one, so a path can be a mixture that was never seen.
    pub fn below_moved(&self, path: &str) -> bool {
        let moves_dirs = |(n, op): (usize, &Op)| match op {
            Op::Rename { from, .. } => self.script.trees[n][from] == Object::Directory,
            Op::Exchange(a, b) => {
                self.script.trees[n][a] == Object::Directory || self.script.trees[n][b] == Object::Directory
            }
            _ => false,
        };
        path.contains('/') && self.script.ops.iter().enumerate().take(self.done + 1).skip(self.base).any(moves_dirs)
    }
}
