//! From paths to nodes: [`Resolver`], one at a time or many at once.
//!
//! A path that is clean (no `.`, no `..`, one slash between names) is found by the hash of all of it, in one bucket of the
//! table, and then compared byte by byte with the node's name and its directory's path. Any other path is made clean first,
//! or walked where it has `..` in it. What no table knows is walked: [`Segment::lookup`] from the start, name by name.
//!
//! Links are not followed: an index knows no target. What is below a link is a miss that names the link.

mod batch;
mod path;
mod table;
mod walk;

use adit_core::error::Result;
use adit_core::types::Kind;

use crate::layout::PATH_LEN_MAX_BYTES;
use crate::segment::{Columns, NodeId, Segment};
use path::Clean;
use table::{Found, Table};

pub use batch::Question;
pub use walk::{find_batch, resolve_batch, walk};

/// Why a path leads to no node, and how far it led.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Miss {
    /// The last node that is there.
    pub reached: NodeId,
    /// Where in the path the name begins that led no further, in bytes; the path's length if it ends where a directory has to be.
    pub at: usize,
    /// Why it led no further.
    pub why: MissKind,
}

/// Why a path leads no further.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MissKind {
    /// The directory that was reached has no such name.
    NotFound,
    /// What was reached is no directory, and the path goes on, or ends with a slash.
    NotDirectory,
    /// What was reached is a symbolic link, and the path goes on.
    Link,
}

impl MissKind {
    /// Of a path that goes on behind what is of this kind.
    fn of(reached: Kind) -> MissKind {
        match reached {
            Kind::Directory => MissKind::NotFound,
            Kind::Symlink => MissKind::Link,
            _ => MissKind::NotDirectory,
        }
    }
}

/// Finds nodes by their paths.
///
/// Opening one compares the columns with their checksums; asking is free of locks, allocations and system calls, and any number of
/// threads may ask at once.
pub struct Resolver<'a> {
    columns: Columns<'a>,
    table: Option<Table<'a>>,
    /// Most threads that a batch takes.
    threads: usize,
}

impl std::fmt::Debug for Resolver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("columns", &self.columns).field("table", &self.table.is_some()).finish()
    }
}

/// How a [`Resolver`] works; [`Resolver::new`] is with what is set here by default.
///
/// ```no_run
/// # fn main() -> adit_core::Result<()> {
/// use adit_index::{Question, Resolver, ResolverOptions, Segment};
///
/// let segment = Segment::open("work.idx".as_ref())?;
/// let resolver = Resolver::with(&segment, ResolverOptions::default().make_tables(true).threads(4))?;
/// let found = resolver.find_batch(&[Question::from(&b"src/lib.rs"[..])])?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ResolverOptions {
    /// Make the tables in memory where the segment has none: for many questions. They take up to 15 bytes a node, and as
    /// much again while they are made. No by default.
    pub make_tables: bool,
    /// Ignore the tables that there are. No by default.
    pub walk: bool,
    /// Most threads that a batch takes; 0, the default: as many as there are processors.
    pub threads: usize,
}

impl ResolverOptions {
    /// Make the tables in memory where the segment has none: see [`make_tables`](field@Self::make_tables). No by default.
    #[must_use]
    pub fn make_tables(self, yes: bool) -> Self {
        ResolverOptions { make_tables: yes, ..self }
    }

    /// Ignore the tables that there are: every path is walked name by name. No by default.
    #[must_use]
    pub fn walk(self, yes: bool) -> Self {
        ResolverOptions { walk: yes, ..self }
    }

    /// Most threads that a batch takes; 0, the default: as many as there are processors.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        ResolverOptions { threads, ..self }
    }
}

/// With which tables paths are found.
enum Tables {
    /// Without any: name by name.
    None,
    /// Those of the segment, compared with their checksums.
    Own,
    /// Those that were made in memory.
    Made(Table<'static>),
}

/// All that a resolver is made of beside the segment: for who keeps both, and makes a resolver for each question.
pub(crate) struct Prepared {
    tables: Tables,
    threads: usize,
}

impl Prepared {
    /// Compares with checksums, and makes, what [`Resolver::with`] does.
    ///
    /// # Errors
    /// As there.
    pub fn new(segment: &Segment, options: ResolverOptions) -> Result<Prepared> {
        let columns = segment.columns()?;
        let tables = match Table::of(segment)? {
            _ if options.walk => Tables::None,
            Some(_) => Tables::Own,
            None if options.make_tables => Tables::Made(Table::made(&columns)?),
            None => Tables::None,
        };
        let threads = match options.threads {
            0 => crate::cores::cores(),
            threads => threads,
        };
        Ok(Prepared { tables, threads })
    }

    /// A resolver of the segment that this was made for. Nothing is looked at again.
    pub fn resolver<'a>(&'a self, segment: &'a Segment) -> Resolver<'a> {
        let table = match &self.tables {
            Tables::None => None,
            Tables::Own => Some(Table::unchecked(segment)),
            Tables::Made(table) => Some(table.lent()),
        };
        Resolver { columns: segment.columns_unchecked(), table, threads: self.threads }
    }
}

impl<'a> Resolver<'a> {
    /// Of a segment, with its tables if it has them.
    ///
    /// # Errors
    /// `Corrupt` where a block does not match its checksum; what the host says where it cannot be read.
    pub fn new(segment: &'a Segment) -> Result<Resolver<'a>> {
        Self::with(segment, ResolverOptions::default())
    }

    /// As [`Resolver::new`], in another way.
    pub fn with(segment: &'a Segment, options: ResolverOptions) -> Result<Resolver<'a>> {
        let Prepared { tables, threads } = Prepared::new(segment, options)?;
        let table = match tables {
            Tables::None => None,
            Tables::Own => Some(Table::unchecked(segment)),
            Tables::Made(table) => Some(table),
        };
        Ok(Resolver { columns: segment.columns_unchecked(), table, threads })
    }

    /// The columns in which it looks.
    pub fn columns(&self) -> &Columns<'a> {
        &self.columns
    }

    /// Whether it has tables; all paths are walked otherwise.
    pub fn has_tables(&self) -> bool {
        self.table.is_some()
    }

    /// The node at a path. One that begins with a slash begins at the root, any other at `start`. `..` of the root is the root;
    /// `a/..` needs a directory `a`, as a kernel does. The empty path is `start`; one that ends with a slash is a directory.
    ///
    /// # Errors
    /// `InvalidInput` if there is no node `start`, `NotDirectory` if it is none, `Corrupt` where something is wrong.
    pub fn resolve(&self, start: NodeId, path: &[u8]) -> Result<std::result::Result<NodeId, Miss>> {
        match self.find(start, path)? {
            Some(node) => Ok(Ok(node)),
            None => self.explain(start, path),
        }
    }

    /// How far a path leads that leads to no node. By the table: nearly always all but the last name is there.
    fn explain(&self, start: NodeId, path: &[u8]) -> Result<std::result::Result<NodeId, Miss>> {
        let (Some(table), Clean::Whole(rest)) = (&self.table, path::clean(path)) else { return self.walk(start, path) };
        let front = path.len() - rest.len();
        if front == 0 && start != NodeId::ROOT {
            return self.walk(start, path);
        }
        // Nothing has a longer path, and what is above something that is there is there: so halving finds the last directory of the way.
        let within = &rest[..rest.len().min(PATH_LEN_MAX_BYTES + 1)];
        let slashes: Vec<usize> = memchr::memchr_iter(b'/', within).collect();
        let (mut known, mut unknown) = (0, slashes.len());
        let (mut reached, mut at) = (NodeId::ROOT, front);
        let mut next = slashes.len().saturating_sub(1);
        while known < unknown {
            match table.find(&self.columns, &rest[..slashes[next]]) {
                Found::Node(node) => {
                    (reached, at) = (NodeId(node), front + slashes[next] + 1);
                    known = next + 1;
                }
                Found::Nothing => unknown = next,
                Found::Unknown => return self.walk(start, path),
            }
            next = known + (unknown - known) / 2;
        }
        let stopped = self.stopped(reached, at)?;
        self.columns.segment().expect_whole()?;
        Ok(Err(stopped))
    }

    /// Why a path leads no further than to `reached`, whose next name is at a place of it.
    fn stopped(&self, reached: NodeId, at: usize) -> Result<Miss> {
        Ok(Miss { reached, at, why: MissKind::of(self.kind(reached)?) })
    }

    /// The same for one thread, which is one of those that share the work.
    pub(crate) fn on_one_thread(self) -> Resolver<'a> {
        Resolver { threads: 1, ..self }
    }

    /// Whether a path is answered name by name, because no table knows paths like it.
    pub(crate) fn walks(&self, path: &[u8]) -> bool {
        self.table.is_none() || path::clean(path) == Clean::Walk
    }

    /// As [`Resolver::resolve`], without saying why.
    #[inline]
    pub fn find(&self, start: NodeId, path: &[u8]) -> Result<Option<NodeId>> {
        let rest = match path.split_first() {
            Some((b'/', rest)) => rest,
            _ if start == NodeId::ROOT => path,
            _ => return self.look_closer(start, path),
        };
        // What is found is the path byte by byte, so it was a clean one: nobody has to look before.
        let found = match self.table.as_ref().map(|table| table.find(&self.columns, rest)) {
            Some(Found::Node(node)) => Some(NodeId(node)),
            Some(Found::Nothing) if path::is_plain(rest) && !rest.is_empty() => None,
            _ => self.look_closer(start, path)?,
        };
        self.columns.segment().expect_whole()?;
        Ok(found)
    }

    /// A path that is not in the table as it stands.
    #[cold]
    fn look_closer(&self, start: NodeId, path: &[u8]) -> Result<Option<NodeId>> {
        match (&self.table, path::clean(path)) {
            (Some(table), Clean::Whole(_)) if start != NodeId::ROOT => self.joined(table, start, path),
            (Some(table), Clean::Squeeze) => self.joined(table, start, path),
            _ => Ok(self.walk(start, path)?.ok()),
        }
    }

    /// A path that has to be made clean, or that begins elsewhere: a copy of it is looked up.
    fn joined(&self, table: &Table<'_>, start: NodeId, path: &[u8]) -> Result<Option<NodeId>> {
        let mut whole = Vec::with_capacity(path.len() + 64);
        if path.first() != Some(&b'/') {
            self.check_start(start)?;
            self.columns.path_into(start.0, &mut whole).ok_or_else(|| self.columns.damaged(start.0))?;
        }
        let is_dir = path::join(path, &mut whole);
        let found = match table.find(&self.columns, &whole) {
            _ if whole.is_empty() => Some(NodeId::ROOT),
            Found::Node(node) => Some(NodeId(node)),
            Found::Nothing => None,
            Found::Unknown => self.walk(NodeId::ROOT, &whole)?.ok(),
        };
        match found {
            Some(node) if is_dir && self.kind(node)? != Kind::Directory => Ok(None),
            found => Ok(found),
        }
    }

    fn kind(&self, node: NodeId) -> Result<Kind> {
        Ok(self.columns.mode(node.0).ok_or_else(|| self.columns.damaged(node.0))?.kind())
    }

    fn check_start(&self, start: NodeId) -> Result<()> {
        walk::check_start(self.columns.segment(), start)
    }

    /// As [`walk`].
    ///
    /// # Errors
    /// As there.
    pub fn walk(&self, start: NodeId, path: &[u8]) -> Result<std::result::Result<NodeId, Miss>> {
        walk(self.columns.segment(), start, path)
    }
}
