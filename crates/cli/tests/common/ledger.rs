//! Writers that keep a ledger of what a mount promised them, and the comparison after it was killed.

#![allow(dead_code, missing_docs, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use adit_testkit::Rng;

/// Files of each writer.
const FILES: u64 = 10;
/// Longest file: some five chunks.
const LEN_MAX: u64 = 160 << 10;

/// A file's content; `None` where there is no file.
type Content = Option<Vec<u8>>;

/// A path that an operation under way changes.
struct Doubt {
    path: PathBuf,
    before: Content,
    after: Content,
    between: Between,
}

/// What an operation under way may show besides old and new.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    /// Nothing.
    Nothing,
    /// Each byte old or new, or zero where nothing was before; and a length between the two.
    InPlace,
    /// The same, of a file that was emptied first: then nothing was before.
    Emptied,
}

/// What a writer was promised.
#[derive(Default)]
pub struct Ledger {
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// Of the one operation that did not return; empty between operations.
    doubts: Vec<Doubt>,
    pub operations: u64,
}

impl Ledger {
    fn content(&self, path: &Path) -> Content {
        self.files.get(path).cloned()
    }

    /// Runs an operation that makes these paths these; while it runs they are in doubt.
    fn run(
        &mut self,
        changes: &[(&Path, Content)],
        between: Between,
        act: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let doubt = |(path, after): &(&Path, Content)| Doubt {
            path: path.to_path_buf(),
            before: self.content(path),
            after: after.clone(),
            between,
        };
        self.doubts = changes.iter().map(doubt).collect();
        act()?;
        for doubt in self.doubts.drain(..) {
            match doubt.after {
                Some(content) => self.files.insert(doubt.path, content),
                None => self.files.remove(&doubt.path),
            };
        }
        self.operations += 1;
        Ok(())
    }
}

/// `close(2)`, whose result [`File`] does not tell.
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is open, and nobody else has it.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One thread that changes files in a folder of its own.
pub struct Writer<'a> {
    pub root: PathBuf,
    pub ledger: &'a mut Ledger,
    pub rng: Rng,
}

impl Writer<'_> {
    /// Works until the mount dies.
    pub fn work(mut self, done: &AtomicU64) -> io::Error {
        loop {
            if let Err(e) = self.step() {
                return e;
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One of its names; every third is long, and they lie in two directories.
    fn name(&mut self) -> PathBuf {
        let number = self.rng.below(FILES);
        let dir = if number.is_multiple_of(2) { "a" } else { "b" };
        let long = if number.is_multiple_of(3) { "-long".repeat(36) } else { String::new() };
        self.root.join(dir).join(format!("file-{number}{long}"))
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn step(&mut self) -> io::Result<()> {
        let path = self.name();
        let before = self.ledger.content(&path);
        match (self.rng.below(10), before) {
            (0..=1, None) | (0, Some(_)) => self.write_whole(&path),
            (2..=3, Some(before)) => self.overwrite(&path, before),
            (4..=5, Some(before)) => self.append(&path, before),
            (6, _) => self.save_by_rename(&path),
            (7, Some(before)) => self.rename(&path, before),
            (8, Some(_)) => self.ledger.run(&[(&path, None)], Between::Nothing, || fs::remove_file(&path)),
            (_, None) => self.write_whole(&path),
            (_, Some(before)) => self.truncate(&path, before),
        }
    }

    /// Creates or truncates, writes in pieces, closes.
    fn write_whole(&mut self, path: &Path) -> io::Result<()> {
        let len = self.rng.below(LEN_MAX);
        let (content, piece) = (self.bytes(len), 1 + self.rng.below(LEN_MAX) as usize);
        self.ledger.run(&[(path, Some(content.clone()))], Between::Emptied, || {
            let mut file = File::create(path)?;
            content.chunks(piece).try_for_each(|part| file.write_all(part))?;
            close(file)
        })
    }

    /// Changes up to three ranges of an existing file, perhaps beyond its end.
    fn overwrite(&mut self, path: &Path, mut content: Vec<u8>) -> io::Result<()> {
        let mut writes = Vec::new();
        for _ in 0..=self.rng.below(3) {
            let (at, len) = (self.rng.below(content.len() as u64 + 1), 1 + self.rng.below(40 << 10));
            let bytes = self.bytes(len);
            let end = at as usize + bytes.len();
            content.resize(content.len().max(end), 0);
            content[at as usize..end].copy_from_slice(&bytes);
            writes.push((at, bytes));
        }
        self.ledger.run(&[(path, Some(content))], Between::InPlace, || {
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            writes.iter().try_for_each(|(at, bytes)| file.write_all_at(bytes, *at))?;
            close(file)
        })
    }

    fn append(&mut self, path: &Path, mut content: Vec<u8>) -> io::Result<()> {
        let len = 1 + self.rng.below(50_000);
        let more = self.bytes(len);
        content.extend_from_slice(&more);
        content.truncate(2 * LEN_MAX as usize);
        let more = &more[..more.len().min(content.len())];
        if content.len() == 2 * LEN_MAX as usize {
            return self.write_whole(path);
        }
        self.ledger.run(&[(path, Some(content.clone()))], Between::InPlace, || {
            let mut file = OpenOptions::new().append(true).open(path)?;
            file.write_all(more)?;
            close(file)
        })
    }

    fn truncate(&mut self, path: &Path, mut content: Vec<u8>) -> io::Result<()> {
        let len = self.rng.below(LEN_MAX);
        content.resize(len as usize, 0);
        self.ledger.run(&[(path, Some(content))], Between::InPlace, || {
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(len)?;
            close(file)
        })
    }

    /// As editors save: a temporary file, then over the old one.
    fn save_by_rename(&mut self, path: &Path) -> io::Result<()> {
        let temporary = self.root.join("temporary");
        self.write_whole(&temporary)?;
        let content = self.ledger.content(&temporary);
        self.ledger.run(&[(path, content), (&temporary, None)], Between::Nothing, || fs::rename(&temporary, path))
    }

    fn rename(&mut self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let to = self.name();
        if to == path {
            return Ok(());
        }
        self.ledger.run(&[(&to, Some(content)), (path, None)], Between::Nothing, || fs::rename(path, &to))
    }
}

/// Compares what is below a writer's folder with its ledger, and settles what was in doubt.
pub fn compare(root: &Path, ledger: &mut Ledger) {
    let mut found = BTreeMap::new();
    for dir in [root.to_path_buf(), root.join("a"), root.join("b")] {
        for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("list {}: {e}", dir.display())) {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("stat {}: {e}", path.display()));
            if meta.is_file() {
                let content = fs::read(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
                assert_eq!(content.len() as u64, meta.len(), "{}: its length", path.display());
                found.insert(path, content);
            }
        }
    }
    let doubts = std::mem::take(&mut ledger.doubts);
    for doubt in &doubts {
        let got = found.remove(&doubt.path);
        if let Err(what) = settle(doubt, got.as_deref()) {
            panic!("{} was being changed: {what}", doubt.path.display());
        }
        match got {
            Some(content) => ledger.files.insert(doubt.path.clone(), content),
            None => ledger.files.remove(&doubt.path),
        };
    }
    if let [Doubt { path: to, after: Some(moved), .. }, Doubt { path: from, after: None, .. }] = &doubts[..] {
        let is_there = [to, from].iter().any(|path| ledger.files.get(*path) == Some(moved));
        assert!(is_there, "{} was lost on its way to {}", from.display(), to.display());
    }
    for (path, content) in &ledger.files {
        let doubted = doubts.iter().any(|doubt| doubt.path == *path);
        let got = if doubted { Some(content.clone()) } else { found.remove(path) };
        let got = got.unwrap_or_else(|| panic!("{} was closed, and is gone", path.display()));
        if let Some(at) = first_difference(content, &got) {
            panic!("{}: {} bytes, closed with {}, differ from byte {at} on", path.display(), got.len(), content.len());
        }
    }
    assert!(found.is_empty(), "nobody made these: {:?}", found.keys());
}

fn settle(doubt: &Doubt, got: Option<&[u8]>) -> Result<(), String> {
    let (before, after) = (doubt.before.as_deref(), doubt.after.as_deref());
    if got == before || got == after {
        return Ok(());
    }
    let before = match doubt.between {
        Between::Nothing => return Err(format!("{:?} bytes, neither old nor new", got.map(<[u8]>::len))),
        Between::InPlace => before.unwrap_or_default(),
        Between::Emptied => &[],
    };
    let Some(got) = got else { return Err("it is gone".to_owned()) };
    let after = after.unwrap_or_default();
    let lens = before.len().min(after.len())..=before.len().max(after.len());
    if !lens.contains(&got.len()) {
        return Err(format!("{} bytes, {} before and {} after", got.len(), before.len(), after.len()));
    }
    let fits = |(i, byte): (usize, &u8)| {
        before.get(i).or((*byte == 0).then_some(&0)) == Some(byte) || after.get(i) == Some(byte)
    };
    match got.iter().enumerate().position(|at| !fits(at)) {
        Some(i) => {
            let (was, will) = (before.get(i), after.get(i));
            Err(format!("byte {i} of {} is {}, and was {was:?} and becomes {will:?}", got.len(), got[i]))
        }
        None => Ok(()),
    }
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    let at = a.iter().zip(b).position(|(x, y)| x != y);
    at.or_else(|| (a.len() != b.len()).then(|| a.len().min(b.len())))
}
