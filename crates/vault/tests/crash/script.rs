//! Random operation scripts that always succeed, and what the tree is after each operation.

use std::collections::{BTreeMap, BTreeSet};

use adit_testkit::Rng;

pub const CHUNK: usize = 32 * 1024;

#[derive(Clone, Debug)]
pub enum Op {
    Create(String),
    Write {
        path: String,
        offset: usize,
        len: usize,
    },
    Truncate {
        path: String,
        len: usize,
    },
    Sync(String),
    /// Of a directory; the empty path is the root.
    SyncDir(String),
    SyncAll,
    Rename {
        from: String,
        to: String,
    },
    Exchange(String, String),
    Unlink(String),
    Mkdir(String),
    Rmdir(String),
    Symlink(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Object {
    File(usize),
    Directory,
    Symlink(String),
}

/// The tree after some number of operations.
pub type Tree = BTreeMap<String, Object>;

/// What is known of one file over time.
#[derive(Clone, Default, Debug)]
pub struct File {
    /// Contents, with the number of operations after which each one holds. The first is its creation.
    pub versions: Vec<(usize, Vec<u8>)>,
    /// Operation counts at which content and name were made durable.
    pub synced: Vec<usize>,
}

#[derive(Clone, Debug)]
pub struct Script {
    pub ops: Vec<Op>,
    /// `trees[k]`: after the first `k` operations.
    pub trees: Vec<Tree>,
    pub files: Vec<File>,
    /// Files that took the name of another: after how many operations, the other one, and the one that took it.
    pub replaced: Vec<(usize, usize, usize)>,
    /// Directories that were made durable: after how many operations, and where they were then.
    pub synced_dirs: Vec<(usize, String)>,
    /// How many of 100 random operations sync a directory.
    sync_dirs_percent: u64,
    /// Whether random operations only change and sync files that are there.
    contents_only: bool,
}

pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

/// Moves `from`, and what lies below it, to `to`.
fn moved(tree: &Tree, from: &str, to: &str) -> Tree {
    let rename = |path: &String| match path.strip_prefix(from) {
        Some("") => to.to_owned(),
        Some(rest) if rest.starts_with('/') => format!("{to}{rest}"),
        _ => path.clone(),
    };
    tree.iter().map(|(path, object)| (rename(path), object.clone())).collect()
}

impl Script {
    /// A script whose first `base` operations are meant to be durable before the test begins.
    pub fn random(rng: &mut Rng, base: usize, len: usize) -> Script {
        Script::random_with(rng, base, len, 0)
    }

    /// As [`Script::random`]; behind the base, this many of 100 operations sync a directory.
    pub fn random_with(rng: &mut Rng, base: usize, len: usize, sync_dirs_percent: u64) -> Script {
        let mut script = Script::empty();
        while script.ops.len() < base {
            script.step(rng);
        }
        for file in &mut script.files {
            file.synced.push(base);
        }
        script.sync_dirs_percent = sync_dirs_percent;
        if rng.percent(50) {
            // What a new directory needs to be durable is seldom asked for by chance.
            let path = "new/file".to_owned();
            let write = Op::Write { path: path.clone(), offset: 0, len: 10 };
            for op in [Op::Mkdir("new".into()), Op::Create(path.clone()), write, Op::Sync(path)] {
                script.apply(op);
            }
        }
        while script.ops.len() < base + len {
            script.step(rng);
        }
        script
    }

    /// A script that writes, cuts and syncs two files, which are durable before the test begins, and nothing else.
    pub fn random_contents(rng: &mut Rng, len: usize) -> Script {
        let file = |path: &str| {
            let write = Op::Write { path: path.to_owned(), offset: 0, len: 3 * CHUNK + 500 };
            [Op::Create(path.to_owned()), write]
        };
        let mut script = Script::fixed(4, [file("a"), file("b")].concat());
        script.contents_only = true;
        while script.ops.len() < 4 + len {
            script.step(rng);
        }
        script
    }

    /// The script of these operations, the first `base` of which are meant to be durable before the test begins.
    pub fn fixed(base: usize, ops: Vec<Op>) -> Script {
        let mut script = Script::empty();
        for (n, op) in ops.into_iter().enumerate() {
            script.apply(op);
            assert_eq!(script.ops.len(), n + 1, "an operation that cannot be made");
            if n + 1 == base {
                script.files.iter_mut().for_each(|file| file.synced.push(base));
            }
        }
        script
    }

    fn empty() -> Script {
        Script {
            ops: Vec::new(),
            trees: vec![Tree::new()],
            files: Vec::new(),
            replaced: Vec::new(),
            synced_dirs: Vec::new(),
            sync_dirs_percent: 0,
            contents_only: false,
        }
    }

    fn tree(&self) -> &Tree {
        self.trees.last().unwrap()
    }

    fn pick(&self, rng: &mut Rng, want: impl Fn(&Object) -> bool) -> Option<String> {
        let paths: Vec<_> = self.tree().iter().filter(|(_, o)| want(o)).map(|(p, _)| p.clone()).collect();
        (!paths.is_empty()).then(|| rng.pick(&paths).clone())
    }

    fn new_path(&self, rng: &mut Rng) -> String {
        let long = "long name ".repeat(16);
        let names = ["a", "b", "c", "d", &long, &format!("{long}2")].map(str::to_owned);
        let mut dirs: Vec<_> =
            self.tree().iter().filter(|(_, o)| **o == Object::Directory).map(|(p, _)| p.clone()).collect();
        dirs.retain(|d| d.matches('/').count() < 2);
        dirs.push(String::new());
        match rng.pick(&dirs).as_str() {
            "" => rng.pick(&names).clone(),
            dir => format!("{dir}/{}", rng.pick(&names)),
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let is_file = |o: &Object| matches!(o, Object::File(_));
        if self.sync_dirs_percent > 0 && rng.percent(self.sync_dirs_percent) {
            let dir = if rng.percent(40) { None } else { self.pick(rng, |o| *o == Object::Directory) };
            return self.apply(Op::SyncDir(dir.unwrap_or_default()));
        }
        let kind = if self.contents_only { 3 + rng.below(9) } else { rng.below(20) };
        let op = match kind {
            0..=2 => Some(Op::Create(self.new_path(rng))),
            3..=7 => self.pick(rng, is_file).map(|path| {
                let len = self.content(&path).len();
                let offset = match rng.below(4) {
                    0 => len,
                    1 => len + rng.below(50_000) as usize,
                    _ => rng.below(len as u64 + 1) as usize,
                };
                let len = if rng.percent(20) { 2 * CHUNK + 5 } else { 1 + rng.below(20_000) as usize };
                Op::Write { path, offset: offset.min(5 * CHUNK), len }
            }),
            8..=9 => self.pick(rng, is_file).map(|path| {
                let len = self.content(&path).len();
                let to = *rng.pick(&[0, len / 2, len / CHUNK * CHUNK, len.saturating_sub(1), len + 3, len + CHUNK]);
                Op::Truncate { path, len: to.min(6 * CHUNK) }
            }),
            10..=11 => self.pick(rng, is_file).map(Op::Sync),
            12 if rng.percent(30) => Some(Op::SyncAll),
            12..=14 => self.pick(rng, |_| true).map(|from| Op::Rename { from, to: self.new_path(rng) }),
            15 => match (self.pick(rng, |_| true), self.pick(rng, |_| true)) {
                (Some(a), Some(b)) => Some(Op::Exchange(a, b)),
                _ => None,
            },
            16 => self.pick(rng, |o| *o != Object::Directory).map(Op::Unlink),
            17 => Some(Op::Mkdir(self.new_path(rng))),
            18 => self.pick(rng, |o| *o == Object::Directory).map(Op::Rmdir),
            _ => Some(Op::Symlink(self.new_path(rng))),
        };
        if let Some(op) = op {
            self.apply(op);
        }
    }

    fn content(&self, path: &str) -> &Vec<u8> {
        let Object::File(id) = self.tree()[path] else { panic!("{path} is a file") };
        &self.files[id].versions.last().unwrap().1
    }

    fn is_empty_dir(&self, path: &str) -> bool {
        self.tree()[path] == Object::Directory && !self.tree().keys().any(|p| below(p, path))
    }

    /// Applies an operation if it is one that succeeds.
    fn apply(&mut self, op: Op) {
        let now = self.ops.len() + 1;
        let mut tree = self.tree().clone();
        match &op {
            Op::Create(path) | Op::Mkdir(path) | Op::Symlink(path) => {
                if tree.contains_key(path) {
                    return;
                }
                let object = match &op {
                    Op::Create(_) => {
                        self.files.push(File { versions: vec![(now, Vec::new())], synced: Vec::new() });
                        Object::File(self.files.len() - 1)
                    }
                    Op::Mkdir(_) => Object::Directory,
                    _ => Object::Symlink(format!("target {now}")),
                };
                tree.insert(path.clone(), object);
            }
            Op::Write { path, offset, len } => {
                let Object::File(id) = tree[path] else { return };
                let mut content = self.content(path).clone();
                if content.len() < *offset {
                    content.resize(*offset, 0);
                    self.files[id].versions.push((now, content.clone()));
                }
                let end = offset + len;
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset..end].copy_from_slice(&bytes(id, now, *len));
                self.files[id].versions.push((now, content));
            }
            Op::Truncate { path, len } => {
                let Object::File(id) = tree[path] else { return };
                let mut content = self.content(path).clone();
                content.resize(*len, 0);
                self.files[id].versions.push((now, content));
            }
            Op::Sync(path) => {
                let Object::File(id) = tree[path] else { return };
                self.files[id].synced.push(now);
            }
            Op::SyncDir(path) => self.synced_dirs.push((now, path.clone())),
            Op::SyncAll => {
                for object in tree.values() {
                    if let Object::File(id) = object {
                        self.files[*id].synced.push(now);
                    }
                }
            }
            Op::Rename { from, to } => {
                if from == to || below(to, from) || !self.can_replace(from, to) {
                    return;
                }
                if let (Some(Object::File(old)), Object::File(new)) = (tree.remove(to), &tree[from]) {
                    self.replaced.push((now, old, *new));
                }
                tree = moved(&tree, from, to);
            }
            Op::Exchange(a, b) => {
                if a == b || below(a, b) || below(b, a) {
                    return;
                }
                tree = moved(&tree, a, "\0aside");
                tree = moved(&tree, b, a);
                tree = moved(&tree, "\0aside", b);
            }
            Op::Unlink(path) => {
                tree.remove(path);
            }
            Op::Rmdir(path) => {
                if !self.is_empty_dir(path) {
                    return;
                }
                tree.remove(path);
            }
        }
        self.ops.push(op);
        self.trees.push(tree);
    }

    fn can_replace(&self, from: &str, to: &str) -> bool {
        match self.tree().get(to) {
            None => true,
            Some(Object::Directory) => self.tree()[from] == Object::Directory && self.is_empty_dir(to),
            Some(_) => self.tree()[from] != Object::Directory,
        }
    }

    /// The paths that file `id` had after `from..=to` operations.
    pub fn paths(&self, id: usize, from: usize, to: usize) -> BTreeSet<&str> {
        let trees = &self.trees[from..=to.min(self.trees.len() - 1)];
        let here = |tree: &'_ Tree| tree.iter().find(|(_, o)| **o == Object::File(id)).map(|(p, _)| p.clone());
        let all: BTreeSet<String> = trees.iter().filter_map(here).collect();
        trees.iter().flat_map(|t| t.keys()).filter(|p| all.contains(*p)).map(String::as_str).collect()
    }
}

/// What operation number `now` writes into file `id`.
pub fn bytes(id: usize, now: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Rng::new((id * 1000 + now) as u64).fill(&mut out);
    out
}
