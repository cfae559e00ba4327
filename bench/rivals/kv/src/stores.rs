//! The stores: redb, fjall and LMDB, each as it comes.

use std::fs;
use std::ops::Bound;
use std::path::Path;

use adit_volume::{Bytes, Sink};
use anyhow::Result;
use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode};
use heed::{CommitOrAbort, EnvOpenOptions};
use parking_lot::RwLock;
use redb::{Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition};

use crate::grouped::{Backend, Change};

const TABLE: TableDefinition<'static, &'static [u8], &'static [u8]> = TableDefinition::new("volume");

/// redb in a file of its own, with its own way to the file.
pub struct Redb {
    // Before the database, which outlives its readers.
    view: RwLock<ReadOnlyTable<&'static [u8], &'static [u8]>>,
    database: Database,
}

impl Redb {
    /// Opens the store in `dir`, or makes one.
    pub fn open(dir: &Path, cache_bytes: usize) -> Result<Redb> {
        let database = Builder::new().set_cache_size(cache_bytes).create(dir.join("redb"))?;
        let transaction = database.begin_write()?;
        drop(transaction.open_table(TABLE)?);
        transaction.commit()?;
        let view = RwLock::new(database.begin_read()?.open_table(TABLE)?);
        Ok(Redb { view, database })
    }
}

impl Backend for Redb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.view.read().get(key)?.map(|value| value.value().into()))
    }

    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        for entry in self.view.read().range::<&[u8]>(start..end)? {
            let (key, value) = entry?;
            if sink(key.value(), value.value()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, changes: Vec<Change>) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        // As the volume commits.
        transaction.set_two_phase_commit(true);
        transaction.set_quick_repair(true);
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in &changes {
                match value {
                    Some(value) => drop(table.insert(key.as_slice(), &value[..])?),
                    None => drop(table.remove(key.as_slice())?),
                }
            }
        }
        transaction.commit()?;
        *self.view.write() = self.database.begin_read()?.open_table(TABLE)?;
        Ok(())
    }
}

/// How large LMDB's file may become: its map is of fixed size.
const MAP_BYTES: usize = 64 << 30;

/// A log-structured store in a folder.
pub struct Fjall {
    database: fjall::Database,
    keyspace: Keyspace,
}

impl Fjall {
    /// Opens the store in `dir`, or makes one.
    pub fn open(dir: &Path, cache_bytes: usize) -> Result<Fjall> {
        let database = fjall::Database::builder(dir.join("fjall")).cache_size(cache_bytes as u64).open()?;
        let keyspace = database.keyspace("volume", KeyspaceCreateOptions::default)?;
        Ok(Fjall { database, keyspace })
    }
}

impl Backend for Fjall {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.keyspace.get(key)?.map(|value| value[..].into()))
    }

    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        for entry in self.keyspace.range(start..end) {
            let (key, value) = entry.into_inner()?;
            if sink(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, changes: Vec<Change>) -> Result<()> {
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncAll));
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(&self.keyspace, key, &value[..]),
                None => batch.remove(&self.keyspace, key),
            }
        }
        Ok(batch.commit()?)
    }
}

/// LMDB: a tree in a file that is mapped.
pub struct Lmdb {
    env: heed::Env,
    database: heed::Database<'static, heed::types::Bytes, heed::types::Bytes>,
}

impl Lmdb {
    /// Opens the store in `dir`, or makes one.
    pub fn open(dir: &Path) -> Result<Lmdb> {
        let dir = dir.join("lmdb");
        fs::create_dir_all(&dir)?;
        // SAFETY: the folder is this run's own; nothing else changes its files while they are mapped.
        let env = unsafe { EnvOpenOptions::new().map_size(MAP_BYTES).open(&dir)? };
        let transaction = env.write_txn()?;
        let database = env
            .create_databases_and_commit(transaction, |opener, transaction| {
                opener.create_database(transaction, None).map(CommitOrAbort::<_, ()>::Commit)
            })?
            .unwrap_commit();
        Ok(Lmdb { env, database })
    }
}

impl Backend for Lmdb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let transaction = self.env.read_txn()?;
        Ok(self.database.get(&transaction, key)?.map(Into::into))
    }

    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        let transaction = self.env.read_txn()?;
        for entry in self.database.range(&transaction, &(Bound::Included(start), Bound::Excluded(end)))? {
            let (key, value) = entry?;
            if sink(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, changes: Vec<Change>) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in &changes {
            match value {
                Some(value) => self.database.put(&mut transaction, key, value)?,
                None => drop(self.database.delete(&mut transaction, key)?),
            }
        }
        Ok(transaction.commit()?)
    }
}
