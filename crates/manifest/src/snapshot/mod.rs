//! A manifest of a tree as it is: every file of a [`Store`] hashed, in parallel, or known from before.
//!
//! Whatever store it is (a folder of the host, a vault, a snapshot of a volume), it is walked by name in one thread; others
//! read and hash. A file is in the manifest with the size, time and hash of one moment: what changed while it was read is
//! read again, and what changes on and on is a failure.

mod filter;
mod hashing;
mod sizes;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::path::{Last, Node, Step, Tree, Visit};
use adit_core::types::{Access, Attr, Ino, Kind, Timestamp};

pub use self::filter::Filter;
use self::hashing::{End, Hashed, Hashers, Reading};
pub use self::sizes::bytes_of;
use crate::format::limits::CHUNK_LEN_BYTES;
use crate::format::{
    Body, Content, ContentHash, Entry, EntryPath, File, Format, FormatError, Header, LinkTarget, Manifest,
};
use crate::hash_cache::Layout;

/// How often a file is read that changes while it is read.
const READ_AGAIN: u32 = 3;

/// What of a tree goes into the manifest, and how.
pub struct Options<'a> {
    /// The version to make it for. That of 2023 knows files only, each with one hash: symbolic links are followed, where they stay
    /// inside.
    pub format: Format,
    /// Which paths.
    pub filter: &'a Filter,
    /// Threads that read and hash, at least one.
    pub threads: usize,
    /// What was hashed before, if the attributes of the store can be trusted for that.
    pub known: Option<&'a dyn Known>,
    /// How its names are written, if not as those of a host.
    pub names: Option<&'a dyn Names>,
}

/// What the names of a tree are in a manifest.
pub trait Names {
    /// The path that is listed as `listing`, below the root and without a leading slash.
    ///
    /// # Errors
    /// The rule that forbids it.
    fn path(&self, listing: &[u8]) -> std::result::Result<EntryPath<'static>, FormatError>;
}

/// What is known of the content of files without reading it.
pub trait Known {
    /// The hashes of the file at `path` that are known, one for each of the layout's [objects](Layout::objects); empty if none is.
    ///
    /// # Errors
    /// Ends the whole.
    fn find(&self, path: &[u8], attr: &Attr, layout: Layout) -> Result<Vec<Option<ContentHash>>>;

    /// The file at `path` had `attr` before and after it was read, and these hashes. `began` was before that. Told only of a file whose
    /// times [tell](adit_core::store::StoreFile::times_tell) of what is written later.
    fn note(&self, path: &[u8], attr: &Attr, began: Timestamp, hashes: &[ContentHash]);
}

/// What happens on the way.
pub enum Event<'a> {
    /// A file is in the manifest.
    File {
        /// Where.
        path: &'a EntryPath<'static>,
        /// Its length.
        len_bytes: u64,
        /// Whether its hash was known from before.
        known: bool,
        /// How much of it was read for that.
        read_bytes: u64,
    },
    /// So many bytes more were read and hashed; none, where there is nothing else to tell.
    Bytes(u64),
    /// Something is not in the manifest, which has no place for it.
    LeftOut {
        /// Its path below the root.
        path: &'a [u8],
        /// Why.
        why: &'a str,
    },
    /// Something should be in the manifest, and could not be read.
    Failed {
        /// Its path in the tree, without a leading slash.
        path: &'a [u8],
        /// Why.
        error: &'a FsError,
    },
}

/// Hears what happens, and may end it.
pub type Tell<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// What became of a tree.
pub struct Snapshot {
    /// The manifest: of all that could be read.
    pub manifest: Manifest,
    /// How many entries could not be read. With one of them the manifest is not what was asked for.
    pub failed: u64,
    /// In the version of 2023: folders with nothing in them that it could hold, of which it keeps nothing.
    pub empty_folders: u64,
    /// In the version of 2023: symbolic links that were followed, and are what they lead to.
    pub followed: u64,
}

/// Makes a manifest of what lies below the directory `root` of `tree`.
///
/// # Errors
/// `Interrupted` if `tell` breaks; `NotDirectory`; those of `root` itself. What goes wrong below is told, and the rest goes on.
pub fn snapshot(tree: &Tree<'_>, root: &[u8], options: &Options<'_>, tell: &mut Tell<'_>) -> Result<Snapshot> {
    let start = tree.resolve(root, Last::Follow)?;
    if start.kind() != Kind::Directory {
        return Err(FsError::new(ErrorKind::NotDirectory).on("make a manifest of", adit_core::path::show(start.path())));
    }
    walked(tree, options, tell, |walk| {
        let mut chain = vec![start.ino()];
        let cut = start.path().len();
        walk.directory(start, cut, &[], &mut chain)
    })
}

/// Makes a manifest of what lies at `paths`, and below those that are directories. They are below the root of `tree`, without a
/// leading slash; none lies below another one. Where nothing is, there is no entry.
///
/// # Errors
/// As [`snapshot`].
pub fn snapshot_of(tree: &Tree<'_>, paths: &[Vec<u8>], options: &Options<'_>, tell: &mut Tell<'_>) -> Result<Snapshot> {
    walked(tree, options, tell, |walk| paths.iter().try_for_each(|path| walk.at(path)))
}

/// A manifest of what `work` walks through.
fn walked<'a, 's, 'h>(
    tree: &'a Tree<'s>,
    options: &'a Options<'a>,
    tell: &'a mut Tell<'h>,
    work: impl FnOnce(&mut Walk<'a, 's, 'h>) -> Result<()>,
) -> Result<Snapshot> {
    std::thread::scope(|scope| {
        let reading = Arc::<Reading>::default();
        // Those at work end at the next piece, however this ends.
        let _end = End(reading.clone());
        let mut walk = Walk {
            tree,
            options,
            tell,
            hashers: hashing::start(scope, options.threads, &reading),
            reading,
            told_bytes: 0,
            waiting: HashMap::new(),
            next: 0,
            manifest: Manifest::new(Header::snapshot(options.format)),
            failed: 0,
            folders: Vec::new(),
            followed: 0,
        };
        work(&mut walk)?;
        walk.rest()?;
        let Walk { manifest, failed, folders, followed, .. } = walk;
        let empty_folders = folders.iter().filter(|path| manifest.below(path).next().is_none()).count() as u64;
        Ok(Snapshot { manifest, failed, empty_folders, followed })
    })
}

/// A file that is being hashed.
struct Waiting {
    path: EntryPath<'static>,
    /// Its path in the store: another one below a link that was followed.
    found_at: Vec<u8>,
    attr: Attr,
    /// Before it was opened.
    began: Timestamp,
    tries: u32,
}

struct Walk<'a, 's, 'h> {
    tree: &'a Tree<'s>,
    options: &'a Options<'a>,
    tell: &'a mut Tell<'h>,
    hashers: Hashers,
    reading: Arc<Reading>,
    /// What was told of what was read.
    told_bytes: u64,
    waiting: HashMap<u64, Waiting>,
    next: u64,
    manifest: Manifest,
    failed: u64,
    /// Folders that the version has no place for.
    folders: Vec<EntryPath<'static>>,
    followed: u64,
}

impl<'a> Walk<'a, '_, '_> {
    /// Takes in what lies at `path`, if something does.
    fn at(&mut self, path: &[u8]) -> Result<()> {
        let tree = self.tree;
        let mut at = tree.root()?;
        let mut chain = vec![at.ino()];
        let mut names = path.split(|&byte| byte == b'/').peekable();
        while let Some(name) = names.next() {
            at = match tree.child(&at, name) {
                Ok(child) => child,
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => return Ok(()),
                Err(e) => return self.fail(path, &e),
            };
            match (at.kind(), names.peek().is_some()) {
                (Kind::Directory, true) => chain.push(at.ino()),
                // What lies below something else is not there.
                (_, true) => return Ok(()),
                (_, false) => {}
            }
        }
        if self.entry(&at, path, &mut chain)? == Step::Into {
            chain.push(at.ino());
            let cut = at.path().len();
            self.directory(at, cut, path, &mut chain)?;
        }
        Ok(())
    }

    /// Takes in what lies below `start`, whose path in the manifest is `prefix`; its path in the store has `cut` bytes. `chain` has the
    /// directories on the way to it.
    fn directory(&mut self, start: Node<'a>, cut: usize, prefix: &[u8], chain: &mut Vec<Ino>) -> Result<()> {
        let tree = self.tree;
        let depth_before = chain.len();
        let path_of = |path: &[u8]| below(prefix, path.get(cut..).unwrap_or_default());
        let walk = RefCell::new(self);
        let mut is_wanted = |path: &[u8], kind| walk.borrow_mut().is_wanted(path, &path_of(path), kind);
        tree.walk_where(start, Some(&mut is_wanted), &mut |visit| match visit {
            Visit::Entry { depth: 0, .. } => Ok(Step::Into),
            Visit::Entry { node, depth, .. } => {
                chain.truncate(depth_before + depth - 1);
                let step = walk.borrow_mut().entry(node, &path_of(node.path()), chain)?;
                if step == Step::Into {
                    chain.push(node.ino());
                }
                Ok(step)
            }
            Visit::Leave { .. } => Ok(Step::Past),
            Visit::Failed { error, path } => walk.borrow_mut().fail(path, &error).map(|()| Step::Past),
        })?;
        chain.truncate(depth_before);
        Ok(())
    }

    /// Whether an entry that a listing tells is to be looked up. A directory of which only itself is wanted needs no look.
    fn is_wanted(&mut self, found_at: &[u8], path: &[u8], kind: Kind) -> Result<bool> {
        let filter = self.options.filter;
        if !filter.reaches(path) {
            return Ok(false);
        }
        if kind != Kind::Directory || !filter.empties(path) {
            return Ok(true);
        }
        if filter.includes(path)
            && let Some(entry) = self.entry_path(found_at, path)?
        {
            self.empty_directory(entry)?;
        }
        Ok(false)
    }

    /// The path of an entry in the manifest; `None`, and told, if it can have none.
    fn entry_path(&mut self, found_at: &[u8], path: &[u8]) -> Result<Option<EntryPath<'static>>> {
        let entry = match self.options.names {
            Some(names) => names.path(path),
            None => EntryPath::from_host(path).map(EntryPath::into_owned),
        };
        match entry {
            Ok(entry) => Ok(Some(entry)),
            Err(e) => {
                let cannot = FsError::new(ErrorKind::NotSupported).because(e);
                self.fail(found_at, &cannot.on("write to a manifest", adit_core::path::show(path)))?;
                Ok(None)
            }
        }
    }

    /// Takes in a directory itself.
    fn empty_directory(&mut self, entry: EntryPath<'static>) -> Result<()> {
        match self.keeps_directories() {
            true => self.insert(entry, Body::Directory),
            false => {
                self.folders.push(entry);
                Ok(())
            }
        }
    }

    fn entry(&mut self, node: &Node<'a>, path: &[u8], chain: &mut Vec<Ino>) -> Result<Step> {
        let is_directory = node.kind() == Kind::Directory;
        if self.options.filter.excludes(path) {
            return Ok(Step::Past);
        }
        // What is in a directory may be asked for where the directory itself is not; what a link leads to has the link's path.
        let wanted = self.options.filter.includes(path);
        if !wanted && !is_directory && !self.follows(node) {
            return Ok(Step::Past);
        }
        let Some(entry) = self.entry_path(node.path(), path)? else { return Ok(Step::Past) };
        match node.kind() {
            Kind::Directory => {
                if wanted {
                    self.empty_directory(entry)?;
                }
                return Ok(Step::Into);
            }
            Kind::File => self.file(entry, node.path().to_vec(), *node.attr(), 0)?,
            Kind::Symlink => self.link(node, entry, wanted, chain)?,
            Kind::Fifo | Kind::Socket | Kind::BlockDevice | Kind::CharDevice => {
                self.leave_out(path, "no file, folder or link")?;
            }
        }
        Ok(Step::Past)
    }

    fn keeps_directories(&self) -> bool {
        matches!(self.options.format, Format::V2025(_))
    }

    fn follows(&self, node: &Node<'_>) -> bool {
        node.kind() == Kind::Symlink && self.options.format == Format::V2023
    }

    fn link(&mut self, node: &Node<'a>, entry: EntryPath<'static>, wanted: bool, chain: &mut Vec<Ino>) -> Result<()> {
        if !self.follows(node) {
            let target = match self.tree.read_link(node) {
                Ok(target) => target,
                Err(e) => return self.fail(node.path(), &e),
            };
            return match LinkTarget::from_host(&target, &entry) {
                Ok(target) => self.insert(entry, Body::Symlink(target.into_owned())),
                Err(e) => self.leave_out(&entry.to_listing(), &e.to_string()),
            };
        }
        // What is in a folder that it leads to may be asked for; itself, where it leads to none, only if it is.
        let left_out = |walk: &mut Self, entry: &EntryPath<'_>, why: &str| match wanted {
            true => walk.leave_out(&entry.to_listing(), why),
            false => Ok(()),
        };
        let target = match self.tree.resolve(node.path(), Last::Follow) {
            Ok(target) => target,
            Err(e) => {
                return left_out(self, &entry, &format!("a link that leads to no file in there: {e}"));
            }
        };
        match target.kind() {
            Kind::File if wanted => {
                self.followed += 1;
                self.file(entry, target.path().to_vec(), *target.attr(), 0)
            }
            Kind::File => Ok(()),
            Kind::Directory if chain.contains(&target.ino()) => {
                left_out(self, &entry, "a link to a folder that it lies in itself")
            }
            Kind::Directory => {
                self.followed += u64::from(wanted);
                let (cut, prefix) = (target.path().len(), entry.to_listing().into_owned());
                let depth = chain.len();
                chain.push(target.ino());
                let walked = self.directory(target, cut, &prefix, chain);
                chain.truncate(depth);
                walked
            }
            _ => left_out(self, &entry, "a link to no file and no folder"),
        }
    }

    /// Takes in a file, or has it hashed first. The caller has a node of it, so that the store knows it.
    fn file(&mut self, path: EntryPath<'static>, found_at: Vec<u8>, attr: Attr, tries: u32) -> Result<()> {
        let layout = layout(self.options.format, attr.size);
        let known = self.options.known.map_or_else(|| Ok(Vec::new()), |known| known.find(&found_at, &attr, layout))?;
        if !known.is_empty()
            && let Some(hashes) = known.iter().copied().collect()
        {
            return self.hashed(path, &attr, hashes, None);
        }
        let began = Timestamp::now();
        let file = match self.tree.store().open(attr.ino, Access::Read) {
            Ok(file) => file,
            Err(e) => return self.fail(&found_at, &reading(e, &found_at)),
        };
        let id = self.next;
        self.next += 1;
        self.waiting.insert(id, Waiting { path, found_at, attr, began, tries });
        // Waits while all have enough to do; what they have done meanwhile is taken in first.
        let mut job = hashing::Job { id, file, layout, len_bytes: attr.size, known };
        while let Err(back) = self.hashers.hand(job) {
            job = back;
            self.wait()?;
        }
        while let Some(done) = self.hashers.poll() {
            self.take(done)?;
        }
        Ok(())
    }

    /// Takes in what the others are still at.
    fn rest(&mut self) -> Result<()> {
        while !self.waiting.is_empty() {
            self.wait()?;
        }
        Ok(())
    }

    /// Waits until something is done, or for a moment: a large file takes long.
    fn wait(&mut self) -> Result<()> {
        match self.hashers.wait()? {
            Some(done) => self.take(done),
            None => self.tell_read(),
        }
    }

    fn tell_read(&mut self) -> Result<()> {
        let read = self.reading.bytes();
        let more = read.saturating_sub(std::mem::replace(&mut self.told_bytes, read));
        self.tell(Event::Bytes(more))
    }

    fn take(&mut self, done: Hashed) -> Result<()> {
        let Some(Waiting { path, found_at, attr, began, tries }) = self.waiting.remove(&done.id) else { return Ok(()) };
        let hashes = match done.hashes {
            Ok(hashes) => hashes,
            Err(e) => return self.fail(&found_at, &reading(e, &found_at)),
        };
        self.tell_read()?;
        let node = match self.tree.resolve(&found_at, Last::Keep) {
            Ok(node) => node,
            Err(e) => return self.fail(&found_at, &e),
        };
        let now = *node.attr();
        let same = |a: &Attr| (a.ino, a.size, a.mtime, a.ctime, a.kind);
        if same(&now) == same(&attr)
            && let Some(hashes) = hashes
        {
            if let Some(known) = self.options.known.filter(|_| done.times_tell) {
                known.note(&found_at, &attr, began, &hashes);
            }
            return self.hashed(path, &attr, hashes, Some(done.read_bytes));
        }
        if now.kind != Kind::File || tries >= READ_AGAIN {
            let changing = FsError::new(ErrorKind::Stale).on("read", adit_core::path::show(&found_at));
            return self
                .fail(&found_at, &changing.because("it changes while it is read; try again when nobody writes to it"));
        }
        self.file(path, found_at, now, tries + 1)
    }

    /// Takes in a file with its hashes, for which so much was read; none, if they were known.
    fn hashed(
        &mut self,
        path: EntryPath<'static>,
        attr: &Attr,
        hashes: Vec<ContentHash>,
        read: Option<u64>,
    ) -> Result<()> {
        let content = match <[ContentHash; 1]>::try_from(hashes) {
            Ok([hash]) => Content::Whole(hash),
            Err(hashes) => Content::chunks(hashes.into(), attr.size)?,
        };
        let mtime_micros = i64::try_from(attr.mtime.as_nanos().div_euclid(1000)).unwrap_or(i64::MAX);
        let runnable = attr.perm & 0o111 != 0;
        let (known, read_bytes) = (read.is_none(), read.unwrap_or(0));
        self.tell(Event::File { path: &path, len_bytes: attr.size, known, read_bytes })?;
        self.insert(path, Body::File(File { size_bytes: attr.size, mtime_micros, runnable, content }))
    }

    /// A refusal is of this entry alone: two names of a folder can be one text, and a link to a folder can lead below a file's name.
    fn insert(&mut self, path: EntryPath<'static>, body: Body<'static>) -> Result<()> {
        let at = path.to_listing().into_owned();
        match self.manifest.insert(Entry { path, body }) {
            Ok(()) => Ok(()),
            Err(e) => self.fail(&at, &e.into()),
        }
    }

    fn fail(&mut self, path: &[u8], error: &FsError) -> Result<()> {
        self.failed += 1;
        self.tell(Event::Failed { path, error })
    }

    fn leave_out(&mut self, path: &[u8], why: &str) -> Result<()> {
        self.tell(Event::LeftOut { path, why })
    }

    fn tell(&mut self, event: Event<'_>) -> Result<()> {
        match (self.tell)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ErrorKind::Interrupted.into()),
        }
    }
}

/// A path of the manifest: `rest`, which may begin with a slash, below `prefix`.
fn below(prefix: &[u8], rest: &[u8]) -> Vec<u8> {
    let rest = rest.strip_prefix(b"/").unwrap_or(rest);
    if prefix.is_empty() { rest.to_vec() } else { [prefix, b"/", rest].concat() }
}

/// Which hashes a file of this length has in the manifest.
fn layout(format: Format, len_bytes: u64) -> Layout {
    match format {
        Format::V2025(_) if len_bytes > CHUNK_LEN_BYTES => Layout::Chunks,
        _ => Layout::Whole,
    }
}

/// The error of reading the file at `path`, under its path: a store that was asked by number may have named that, or an object.
pub(crate) fn reading(e: FsError, path: &[u8]) -> FsError {
    let path = adit_core::path::show(path);
    match e.subject() {
        Some(subject) if subject != path => FsError::new(e.kind()).on("read", path).because(e),
        _ => e.on("read", path),
    }
}

#[cfg(test)]
mod tests;
