//! redb as the key-value store.
//!
//! Commits are two-phase with quick repair: the durable state is always a whole commit, and opening after a crash reads no
//! more than the allocator's state. An error of any I/O latches a redb database; [`Redb::revive`] opens it anew over the same
//! [`Pages`].

use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_core::{ErrorKind, FsError, Result};
use parking_lot::RwLock;
use redb::{Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, StorageBackend, TableDefinition};

use super::look::Look;
use super::pages::Pages;
use super::{Change, Kv, View};
use crate::container::Container;
use crate::table::{Bytes, Sink};

/// The one table.
const TABLE: TableDefinition<'static, &'static [u8], &'static [u8]> = TableDefinition::new("volume");

/// What one redb database does its I/O with.
struct Backend {
    pages: Arc<Pages>,
    /// Whether another one has taken its place.
    closed: Arc<AtomicBool>,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backend")
    }
}

impl Backend {
    fn open(&self) -> io::Result<&Pages> {
        match self.closed.load(Ordering::Acquire) {
            false => Ok(&self.pages),
            true => Err(io::Error::other("closed")),
        }
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.open()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.open()?.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.open()?.set_len(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.open()?.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.open()?.write(offset, data)
    }
}

/// A backend that changes nothing.
struct Looking(Arc<Look>);

impl fmt::Debug for Looking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Looking")
    }
}

impl StorageBackend for Looking {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

struct Opened {
    /// None while it is opened anew.
    database: Option<Database>,
    closed: Arc<AtomicBool>,
}

/// A redb database in a container.
pub(crate) struct Redb {
    container: Arc<Container>,
    pages: Arc<Pages>,
    cache_bytes: usize,
    opened: RwLock<Opened>,
    /// See [`Kv::slack`].
    slack: AtomicU64,
    was_packed: AtomicBool,
}

/// Bytes of entries that came and went with a commit.
#[derive(Default)]
struct Turnover {
    came: u64,
    went: u64,
}

impl Redb {
    /// Opens the store that the superblock describes, or makes one if that has none yet. Until [`Redb::go_live`], changes
    /// go to memory: nobody knows yet which segments are free.
    pub fn open(container: Arc<Container>, cache_bytes: usize) -> Result<Redb> {
        let pages = Arc::new(Pages::open(container.clone())?);
        let opened = RwLock::new(Opened { database: None, closed: Arc::default() });
        let (slack, was_packed) = (AtomicU64::new(0), AtomicBool::new(false));
        let redb = Redb { container, pages, cache_bytes, opened, slack, was_packed };
        redb.reopen(|| ())?;
        Ok(redb)
    }

    /// Writes to the file from now on.
    pub fn go_live(&self) -> Result<()> {
        self.reopen(|| self.pages.go_live()).map_err(|e| self.told(e))
    }

    /// Whether changes go to the file, and not to memory because its host had no space.
    pub fn is_live(&self) -> bool {
        self.pages.is_live()
    }

    /// Says that the host had no space where it had none: redb does not always hand on what it heard first.
    fn told(&self, e: FsError) -> FsError {
        if !self.pages.is_full() || self.container.has_failed() {
            return e;
        }
        self.container.refused("write")
    }

    /// Opens it anew, after `prepare` ran while none was open.
    fn reopen(&self, prepare: impl FnOnce()) -> Result<()> {
        let mut opened = self.opened.write();
        // Whoever still reads with the old one gets errors, and it writes nothing on its way out.
        opened.closed.store(true, Ordering::Release);
        let old = opened.database.take();
        self.give_up(old);
        prepare();
        let closed = Arc::new(AtomicBool::new(false));
        let backend = Backend { pages: self.pages.clone(), closed: closed.clone() };
        let database = self.guarded(|| {
            let database = Builder::new().set_cache_size(self.cache_bytes).create_with_backend(backend)?;
            ensure_table(&database)?;
            Ok(database)
        })?;
        *opened = Opened { database: Some(database), closed };
        Ok(())
    }

    fn with<T>(&self, run: impl FnOnce(&Database) -> std::result::Result<T, redb::Error>) -> Result<T> {
        let opened = self.opened.read();
        let database = opened.database.as_ref().ok_or_else(|| FsError::new(ErrorKind::Io))?;
        self.guarded(|| run(database))
    }

    /// Closes a database; what goes wrong with that is for the next one to find.
    fn give_up(&self, database: Option<Database>) {
        let _ = self.guarded(|| {
            drop(database);
            Ok(())
        });
    }

    fn guarded<T>(&self, run: impl FnOnce() -> std::result::Result<T, redb::Error>) -> Result<T> {
        guarded(self.container.name(), run)
    }

    /// The numbers of the damaged pages; no commit runs meanwhile. A page that nothing leads to is none: a crash leaves some of
    /// which half was written. Where one is damaged that something leads to, all are told that do not have their checksums, for the
    /// damage hides what the others belong to.
    pub fn verify(&self) -> Vec<u64> {
        let suspects = self.pages.verify();
        if suspects.is_empty() {
            return suspects;
        }
        let look = Arc::new(Look::new(self.pages.clone()));
        let sound = self.guarded(|| {
            let backend = Looking(look.clone());
            // It walks all that the header leads to, the store's own tables as well.
            let mut database = Builder::new().set_cache_size(self.cache_bytes).create_with_backend(backend)?;
            Ok(database.check_integrity()?)
        });
        if look.met_damage() || !matches!(sound, Ok(true)) { suspects } else { Vec::new() }
    }
}

impl Drop for Redb {
    fn drop(&mut self) {
        let database = self.opened.get_mut().database.take();
        self.give_up(database);
    }
}

/// redb asserts what it expects of pages. Ours are as they were written, but a file that somebody made up can hold anything.
fn guarded<T>(name: &str, run: impl FnOnce() -> std::result::Result<T, redb::Error>) -> Result<T> {
    // A database that panicked is given up: its caller opens it anew.
    match std::panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| error(name, e)),
        Err(_) => {
            let what = "the key-value store contradicts itself";
            Err(FsError::new(ErrorKind::Corrupt).on("read the key-value store of", name).because(what))
        }
    }
}

fn error(name: &str, e: redb::Error) -> FsError {
    let kind = match &e {
        redb::Error::Io(e) if e.kind() == io::ErrorKind::InvalidData => ErrorKind::Corrupt,
        redb::Error::Io(e) => adit_core::error::kind_of_io(e),
        redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) | redb::Error::RepairAborted => ErrorKind::Corrupt,
        _ => ErrorKind::Io,
    };
    FsError::new(kind).on("read the key-value store of", name).because(e)
}

fn ensure_table(database: &Database) -> std::result::Result<(), redb::Error> {
    match database.begin_read()?.open_table(TABLE) {
        Ok(_) => Ok(()),
        Err(redb::TableError::TableDoesNotExist(_)) => commit(database, &mut std::iter::empty()).map(drop),
        Err(e) => Err(e.into()),
    }
}

fn commit(
    database: &Database,
    changes: &mut dyn Iterator<Item = Change<'_>>,
) -> std::result::Result<Turnover, redb::Error> {
    let mut turnover = Turnover::default();
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_quick_repair(true);
    {
        let mut table = transaction.open_table(TABLE)?;
        for (key, value) in changes {
            let old = match value {
                Some(value) => table.insert(key, value)?,
                None => table.remove(key)?,
            };
            turnover.came += value.map_or(0, |value| (key.len() + value.len()) as u64);
            turnover.went += old.map_or(0, |old| (key.len() + old.value().len()) as u64);
        }
    }
    transaction.commit()?;
    Ok(turnover)
}

impl Kv for Redb {
    fn view(&self) -> Result<Arc<dyn View>> {
        let table = self.with(|database| Ok(database.begin_read()?.open_table(TABLE)?))?;
        Ok(Arc::new(RedbView { table, name: self.container.name().to_owned() }))
    }

    fn commit(&self, changes: &mut dyn Iterator<Item = Change<'_>>) -> Result<()> {
        let Turnover { came, went } = self.with(|database| commit(database, changes)).map_err(|e| self.told(e))?;
        self.pages.commit_ended();
        // Commits come one at a time.
        let slack = self.slack().saturating_sub(came).saturating_add(went);
        self.slack.store(slack, Ordering::Relaxed);
        Ok(())
    }

    fn revive(&self) -> Result<()> {
        self.reopen(|| self.pages.go_back())
    }

    fn compact(&self) -> Result<bool> {
        let compacted = {
            let mut opened = self.opened.write();
            let database = opened.database.as_mut().ok_or_else(|| FsError::new(ErrorKind::Io))?;
            self.guarded(|| match database.compact() {
                Ok(_) => Ok(true),
                Err(redb::CompactionError::TransactionInProgress) => Ok(false),
                Err(e) => Err(e.into()),
            })
        };
        let compacted = compacted.map_err(|e| self.told(e));
        match &compacted {
            Ok(false) => return Ok(false),
            Err(e) if e.kind().is_refusal() => {}
            // Where it fails for damage, it would do so each time.
            _ => {
                self.slack.store(0, Ordering::Relaxed);
                self.was_packed.store(true, Ordering::Relaxed);
            }
        }
        compacted?;
        // It was made shorter after its last sync, and without what makes the next opening quick.
        self.commit(&mut std::iter::empty()).map(|()| true)
    }

    fn slack(&self) -> u64 {
        self.slack.load(Ordering::Relaxed)
    }

    fn was_packed(&self) -> bool {
        self.was_packed.load(Ordering::Relaxed)
    }
}

struct RedbView {
    table: ReadOnlyTable<&'static [u8], &'static [u8]>,
    name: String,
}

impl View for RedbView {
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        guarded(&self.name, || {
            let get = |key: &&[u8]| Ok(self.table.get(*key)?.map(|value| Bytes::from(value.value())));
            keys.iter().map(get).collect()
        })
    }

    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        guarded(&self.name, || {
            for entry in self.table.range::<&[u8]>(start..end)? {
                let (key, value) = entry?;
                if sink(key.value(), value.value()).is_break() {
                    break;
                }
            }
            Ok(())
        })
    }
}
