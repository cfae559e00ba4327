//! The way in for programs: [`Index`], an index that is open and answers.
//!
//! It is a [`Segment`] with what answering takes: options, tables that were made for it, a cache of paths that no table knows, and threads
//! for batches that nobody waits for yet. Everything that it does can be had by itself: [`Resolver`] for paths, [`crate::query`] for
//! the rest. Here it is put together, once.
//!
//! The invariant: what the options say changes how long an answer takes, never the answer.

mod answers;
mod batch;
mod cache;
mod options;
mod pool;
mod search;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use adit_core::error::Result;

use crate::progress::Report;
use crate::query::{self, Change, Diff, DiffSummary, Du, Dupes, DupesSummary, Group, Paths, Query};
use crate::resolve::{Miss, Prepared, Resolver};
use crate::scan::Origin;
use crate::segment::{Node, NodeId, Segment};

pub use answers::Answers;
pub use batch::Batch;
pub use cache::PathCacheStats;
pub use options::IndexOptions;
pub use search::Search;

use cache::PathCache;
use pool::Pool;

/// An index that is open. Cheap to clone, and to be asked from any number of threads; clones share everything.
///
/// ```
/// # fn main() -> adit_core::Result<()> {
/// use adit_index::query::{Pattern, Query};
/// use adit_index::{Batch, Index};
///
/// # let dir = tempfile::tempdir().unwrap();
/// # let file = dir.path().join("work.idx");
/// # let mut builder = adit_index::Builder::new(dir.path(), 0);
/// # for (path, size) in [("README.md", 7), ("src/lib.rs", 120), ("src/gpu/mod.rs", 80)] {
/// #     let kind = adit_core::types::Kind::File;
/// #     let entry = adit_index::Entry { path: path.as_bytes(), kind, perm: 0o644, size, mtime_ns: 0, hash: None, stamp: None, extra: b"" };
/// #     builder.add(&entry)?;
/// # }
/// # builder.finish(&file, &mut |_| std::ops::ControlFlow::Continue(()))?;
/// let index = Index::open(&file)?;
///
/// // One path: the node, or how far it leads.
/// let node = index.resolve("src/lib.rs")?.expect("it is there");
/// assert_eq!(index.node(node)?.size, 120);
/// let miss = index.resolve("src/lost/lib.rs")?.unwrap_err();
/// assert_eq!(index.path(miss.reached)?, b"src");
///
/// // Many paths at once; this thread waits, or it goes on with something else meanwhile.
/// let batch: Batch = ["README.md", "no such file"].into_iter().collect();
/// assert!(index.resolve_batch(&batch)?[0].is_ok());
/// let answers = index.lookup_async(batch);
/// assert_eq!(answers.wait()?[1], None);
///
/// // What matches.
/// let query = Query::new().pattern(Pattern::glob("src/**/*.rs")?).size(100..=u64::MAX);
/// assert_eq!(index.paths(&query)?, [b"src/lib.rs"]);
/// assert_eq!(index.count_async(&query).wait()?, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Index(Arc<Shared>);

struct Shared {
    segment: Arc<Segment>,
    options: IndexOptions<'static>,
    /// Made at the first path that is asked for.
    prepared: OnceLock<Prepared>,
    preparing: Mutex<()>,
    cache: Option<PathCache>,
    pool: Arc<Pool>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("segment", &self.0.segment).finish_non_exhaustive()
    }
}

/// Something that a search found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Found<'a> {
    /// Which node.
    pub node: NodeId,
    /// Its path below the root, without a slash in front.
    pub path: &'a [u8],
}

impl Index {
    /// Opens the index in the file at `path`. Takes as long for ten million entries as for ten: what an answer needs is read, and compared
    /// with its checksum, when it is first needed.
    ///
    /// # Errors
    /// As [`IndexOptions::open`].
    pub fn open(path: &Path) -> Result<Index> {
        Self::options().open(path)
    }

    /// How else it can be opened.
    pub fn options() -> IndexOptions<'static> {
        IndexOptions::default()
    }

    fn new(segment: Arc<Segment>, options: &IndexOptions<'_>) -> Index {
        let threads = match options.resolver.threads {
            0 => crate::cores::cores(),
            threads => threads,
        };
        let cache = (options.cache_size_bytes > 0).then(|| PathCache::new(options.cache_size_bytes));
        Index(Arc::new(Shared {
            segment,
            options: options.without_key(),
            prepared: OnceLock::new(),
            preparing: Mutex::default(),
            cache,
            pool: Arc::new(Pool::new(threads)),
        }))
    }

    /// The tree, for everything that is not asked here.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.0.segment
    }

    /// Questions in bulk that a graphics processor may answer, with the same answers: whoever was measured to be faster does. As
    /// [`Session::new`](crate::session::Session::new), over this index; nothing of its options and caches is shared.
    #[cfg(feature = "gpu")]
    pub fn session(&self, options: crate::session::SessionOptions) -> crate::session::Session {
        crate::session::Session::new(self.0.segment.clone(), options)
    }

    /// Where it comes from; `None` if it was not made of a folder or a store by [`crate::scan`].
    pub fn origin(&self) -> Option<Origin> {
        Origin::decode(self.0.segment.identity())
    }

    /// What is known of a node. See [`Segment::node`].
    ///
    /// # Errors
    /// As there.
    pub fn node(&self, node: NodeId) -> Result<Node> {
        self.0.segment.node(node)
    }

    /// The path of a node. See [`Segment::path`].
    ///
    /// # Errors
    /// As there.
    pub fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        self.0.segment.path(node)
    }

    /// Looks at all of it. See [`Segment::verify`].
    ///
    /// # Errors
    /// As there.
    pub fn verify(&self, report: &mut Report<'_>) -> Result<()> {
        self.0.segment.verify(report)
    }

    fn is_prepared(&self) -> bool {
        self.0.prepared.get().is_some()
    }

    fn prepared(&self) -> Result<&Prepared> {
        let Shared { segment, options, prepared, preparing, .. } = &*self.0;
        if let Some(prepared) = prepared.get() {
            return Ok(prepared);
        }
        // Once, for tables in memory take a while, and room.
        let _turn = preparing.lock().unwrap_or_else(PoisonError::into_inner);
        match prepared.get() {
            Some(prepared) => Ok(prepared),
            None => {
                let made = Prepared::new(segment, options.resolver)?;
                Ok(prepared.get_or_init(|| made))
            }
        }
    }

    /// What finds paths in it: for who asks for many, one after the other. The first one compares the columns with their checksums, later ones
    /// cost nothing.
    ///
    /// # Errors
    /// As [`Resolver::new`].
    pub fn resolver(&self) -> Result<Resolver<'_>> {
        Ok(self.prepared()?.resolver(&self.0.segment))
    }

    fn batch_size(&self) -> usize {
        self.0.options.batch_size
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.0.pool
    }

    /// The node at a path that begins at the root, with or without a slash in front; else how far it leads.
    ///
    /// # Errors
    /// As [`Resolver::resolve`].
    pub fn resolve(&self, path: impl AsRef<[u8]>) -> Result<std::result::Result<NodeId, Miss>> {
        self.resolve_from(NodeId::ROOT, path)
    }

    /// As [`Index::resolve`], of a path that begins in the directory `start` if there is no slash in front. See [`Resolver::resolve`] for what
    /// `.`, `..` and links mean.
    ///
    /// # Errors
    /// As there.
    pub fn resolve_from(&self, start: NodeId, path: impl AsRef<[u8]>) -> Result<std::result::Result<NodeId, Miss>> {
        let path = path.as_ref();
        // That of a path from the root says nothing, and would tell equal paths apart.
        let start = if path.first() == Some(&b'/') { NodeId::ROOT } else { start };
        let resolver = self.resolver()?;
        match &self.0.cache {
            Some(cache) if self.0.options.cache_known || resolver.walks(path) => {
                if let Some(answer) = cache.get(start, path) {
                    return Ok(answer);
                }
                let answer = resolver.resolve(start, path)?;
                cache.keep(start, path, answer);
                Ok(answer)
            }
            _ => resolver.resolve(start, path),
        }
    }

    /// As [`Index::resolve_from`] of each path of a batch, in their order, by all threads that there are.
    ///
    /// # Errors
    /// As there, the first one.
    pub fn resolve_batch(&self, batch: &Batch) -> Result<Vec<std::result::Result<NodeId, Miss>>> {
        self.resolver()?.resolve_batch(&batch.questions())
    }

    /// As [`Index::resolve_batch`], without saying why: what is missing costs less then.
    ///
    /// # Errors
    /// As there.
    pub fn lookup_batch(&self, batch: &Batch) -> Result<Vec<Option<NodeId>>> {
        self.resolver()?.find_batch(&batch.questions())
    }

    /// As [`Index::resolve_batch`], while this thread does something else.
    pub fn resolve_async(&self, batch: Batch) -> Answers<std::result::Result<NodeId, Miss>> {
        Answers::begin(self, batch, |resolver, questions| resolver.resolve_batch(questions))
    }

    /// As [`Index::lookup_batch`], while this thread does something else.
    pub fn lookup_async(&self, batch: Batch) -> Answers<Option<NodeId>> {
        Answers::begin(self, batch, |resolver, questions| resolver.find_batch(questions))
    }

    /// Gives what a search finds to `sink`, with its path. [`ControlFlow::Break`] ends it. How many were given.
    ///
    /// # Errors
    /// As [`Query::run`].
    pub fn find(&self, query: &Query, sink: &mut dyn FnMut(Found<'_>) -> ControlFlow<()>) -> Result<u64> {
        let segment = &*self.0.segment;
        let mut paths = Paths::new(segment);
        let mut failed = Ok(());
        let given = self.with_threads(query).run(segment, &mut |hit| match paths.of(hit.node) {
            Ok(path) => sink(Found { node: hit.node, path }),
            Err(e) => {
                failed = Err(e);
                ControlFlow::Break(())
            }
        })?;
        failed.map(|()| given)
    }

    /// The paths of all that a search finds, in its order.
    ///
    /// # Errors
    /// As [`Query::run`].
    pub fn paths(&self, query: &Query) -> Result<Vec<Vec<u8>>> {
        let mut paths = Vec::new();
        self.find(query, &mut |found| {
            paths.push(found.path.to_owned());
            ControlFlow::Continue(())
        })?;
        Ok(paths)
    }

    /// How many a search finds.
    ///
    /// # Errors
    /// As [`Query::count`].
    pub fn count(&self, query: &Query) -> Result<u64> {
        self.with_threads(query).count(&self.0.segment)
    }

    /// The nodes that a search finds, in its order, while this thread does something else: [`Index::path`] has the path of each. It is one piece of
    /// work for a thread of the index, and takes as many threads meanwhile as [`Index::find`] does, for which [`Query::threads`] says how many.
    pub fn find_async(&self, query: &Query) -> Search<Vec<NodeId>> {
        Search::begin(self, query, |index, query| index.with_threads(query).collect(&index.0.segment))
    }

    /// As [`Index::count`], while this thread does something else.
    pub fn count_async(&self, query: &Query) -> Search<u64> {
        Search::begin(self, query, |index, query| index.count(query))
    }

    fn with_threads(&self, query: &Query) -> Query {
        query.clone().threads_or(self.0.options.resolver.threads)
    }

    /// Files of equal content. See [`Dupes::run`].
    ///
    /// # Errors
    /// As there.
    pub fn dupes(&self, dupes: &Dupes, sink: &mut dyn FnMut(&Group) -> ControlFlow<()>) -> Result<DupesSummary> {
        dupes.run(&self.0.segment, sink)
    }

    /// What is different in `after`. See [`Diff::run`].
    ///
    /// # Errors
    /// As there.
    pub fn diff(
        &self,
        after: &Index,
        diff: &Diff,
        sink: &mut dyn FnMut(Change) -> ControlFlow<()>,
    ) -> Result<DiffSummary> {
        diff.run(&self.0.segment, &after.0.segment, sink)
    }

    /// What is below a directory, added up. See [`query::du()`].
    ///
    /// # Errors
    /// As there.
    pub fn du(&self, dir: NodeId) -> Result<Du> {
        query::du(&self.0.segment, dir)
    }

    /// The largest files and directories below a directory. See [`query::top()`].
    ///
    /// # Errors
    /// As there.
    pub fn top(&self, dir: NodeId, count: usize) -> Result<query::Top> {
        query::top(&self.0.segment, dir, count)
    }

    /// What the cache of paths has done so far. All zeros if there is none.
    pub fn cache_stats(&self) -> PathCacheStats {
        self.0.cache.as_ref().map(PathCache::stats).unwrap_or_default()
    }
}
