//! How an index is opened: [`IndexOptions`].

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use adit_core::error::Result;

use super::Index;
use crate::progress::Report;
use crate::resolve::ResolverOptions;
#[cfg(feature = "sealed")]
use crate::sealed::{self, SealKey};
use crate::segment::Segment;

/// Memory for paths that had to be walked, in bytes, if nobody says how much: some 25,000 of them.
const CACHE_SIZE_BYTES: u64 = 4 << 20;
/// Paths that one thread takes at once, if nobody says how many: half a millisecond's work.
const BATCH_SIZE: usize = 1 << 12;

/// How an [`Index`] is opened, and how it answers. All of it has a default that is meant to be left alone.
///
/// ```no_run
/// # fn main() -> adit_core::Result<()> {
/// use adit_index::Index;
///
/// let index = Index::options().large_pages(true).verify(true).threads(4).open("work.idx".as_ref())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct IndexOptions<'k> {
    pub(super) cache_size_bytes: u64,
    pub(super) cache_known: bool,
    pub(super) batch_size: usize,
    pub(super) resolver: ResolverOptions,
    large_pages: bool,
    verify: bool,
    #[cfg(feature = "sealed")]
    key: Option<&'k SealKey>,
    #[cfg(not(feature = "sealed"))]
    key: std::marker::PhantomData<&'k ()>,
}

impl Default for IndexOptions<'_> {
    fn default() -> Self {
        IndexOptions {
            cache_size_bytes: CACHE_SIZE_BYTES,
            cache_known: false,
            batch_size: BATCH_SIZE,
            resolver: ResolverOptions::default(),
            large_pages: false,
            verify: false,
            key: Default::default(),
        }
    }
}

impl<'k> IndexOptions<'k> {
    /// Memory for paths that had to be walked name by name, in bytes; 0 for none. Paths that a table knows take some only with
    /// [`cache_known`](Self::cache_known). 4 MiB by default.
    #[must_use]
    pub fn cache_size(mut self, bytes: u64) -> Self {
        self.cache_size_bytes = bytes;
        self
    }

    /// Keep paths that a table knows as well, for who asks for few of very many again and again: of a large index a table's answer lies in eight
    /// places all over the file, that of the cache in two. Paths that come once are answered later by it. No by default.
    #[must_use]
    pub fn cache_known(mut self, yes: bool) -> Self {
        self.cache_known = yes;
        self
    }

    /// How many paths of a batch one thread takes at once: fewer are shared more evenly, and each share costs a lock.
    /// 4096 by default, and 1 at least.
    #[must_use]
    pub fn batch_size(mut self, paths: usize) -> Self {
        self.batch_size = paths.max(1);
        self
    }

    /// Most threads that a batch or a search takes, and that all batches under way take together; 0, the default, for as
    /// many as there are processors. The answers are the same.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.resolver.threads = threads;
        self
    }

    /// Read all of the file into memory of this process, in large pages where the host has them: lookups all over a large
    /// index then wait less, and nothing that happens to the file is felt any more. Takes the file's length. No by default. (An
    /// encrypted index is in memory anyway, and once more then.)
    #[must_use]
    pub fn large_pages(mut self, yes: bool) -> Self {
        self.large_pages = yes;
        self
    }

    /// Look at all of it first: each byte, and whether what they say fits together ([`Segment::verify`]). Without, each block is
    /// compared with its checksum when it is first needed. No by default.
    #[must_use]
    pub fn verify(mut self, yes: bool) -> Self {
        self.verify = yes;
        self
    }

    /// As [`ResolverOptions::make_tables`]: for many questions to an index that was built without tables. No by default.
    #[must_use]
    pub fn make_tables(mut self, yes: bool) -> Self {
        self.resolver.make_tables = yes;
        self
    }

    /// The key with which an encrypted index is opened. One that is not encrypted does not need it.
    #[cfg(feature = "sealed")]
    #[must_use]
    pub fn key<'n>(self, key: &'n SealKey) -> IndexOptions<'n>
    where
        'k: 'n,
    {
        IndexOptions { key: Some(key), ..self }
    }

    /// Opens the index in the file at `path`.
    ///
    /// # Errors
    /// `Corrupt` or `NotSupported` with a [`Damage`](crate::Damage) as the cause; of an encrypted one `WrongPassword` without its key, or
    /// what [`sealed::open`](crate::sealed) says; what the host says.
    pub fn open(&self, path: &Path) -> Result<Index> {
        self.open_reporting(path, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`IndexOptions::open`]. `report` is told how far it is, where it takes long, and can end it (`Interrupted`).
    ///
    /// # Errors
    /// As there.
    pub fn open_reporting(&self, path: &Path, report: &mut Report<'_>) -> Result<Index> {
        let mut segment = self.segment(path, report)?;
        if self.large_pages {
            segment = segment.into_memory()?;
        }
        self.over_reporting(Arc::new(segment), report)
    }

    /// Over a segment that is open.
    ///
    /// # Errors
    /// `Corrupt`, if it is to be verified.
    pub fn over(&self, segment: Arc<Segment>) -> Result<Index> {
        self.over_reporting(segment, &mut |_| ControlFlow::Continue(()))
    }

    fn over_reporting(&self, segment: Arc<Segment>, report: &mut Report<'_>) -> Result<Index> {
        if self.verify {
            segment.verify(report)?;
        }
        Ok(Index::new(segment, self))
    }

    /// What an open index keeps of them.
    pub(super) fn without_key(&self) -> IndexOptions<'static> {
        IndexOptions { key: Default::default(), ..*self }
    }

    #[cfg(feature = "sealed")]
    fn segment(&self, path: &Path, report: &mut Report<'_>) -> Result<Segment> {
        use adit_core::error::{ErrorKind, FsError};

        let failed = |e: FsError| e.on("read index", path.display());
        match (sealed::is_sealed(path).map_err(|e| failed(e.into()))?, self.key) {
            (false, _) => Segment::open(path),
            (true, Some(key)) => sealed::open(path, key, report),
            (true, None) => {
                let why = "it is encrypted; open it with the key of its vault's indexes";
                Err(failed(FsError::new(ErrorKind::WrongPassword).because(why)))
            }
        }
    }

    #[cfg(not(feature = "sealed"))]
    fn segment(&self, path: &Path, _: &mut Report<'_>) -> Result<Segment> {
        Segment::open(path)
    }
}
