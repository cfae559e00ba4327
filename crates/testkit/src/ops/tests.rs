//! The operations are tested against the one filesystem that is known to be right, this machine's, and on faulty ones.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use adit_core::Result;
use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{Access, Attr, Caller, FileName, Ino, RenameFlags, SetAttr, StatFs, XattrName};

use super::*;
use crate::model::MemoryStore;

fn plan(seeds: usize) -> Plan {
    Plan { seeds, ops: 250, limits: Limits::default() }
}

#[test]
fn the_model_agrees_with_itself_and_drops_all_references() {
    fuzz_store(&plan(5), || ((), MemoryStore::default()));
    let store = MemoryStore::default();
    let ops = generate(7, 400, &Limits::default());
    check_store(&store, &ops, &Limits::default()).unwrap();
    assert_eq!((store.known_count(), store.open_count(), store.stray_forgets()), (0, 0, 0));
    assert_eq!(ops, generate(7, 400, &Limits::default()), "a seed always gives the same operations");
}

#[test]
fn the_model_agrees_with_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    fuzz_path(&plan(40), dir.path());
}

#[test]
fn generated_operations_mostly_succeed_and_cover_all_kinds() {
    let mut kinds = std::collections::BTreeMap::<String, (u32, u32)>::new();
    for seed in 0..20 {
        let store = MemoryStore::default();
        let mut subject = StoreSubject::new(&store);
        for op in generate(seed, 300, &Limits::default()) {
            let name = format!("{op:?}").split('(').next().unwrap().to_owned();
            let failed = matches!(subject.run(&op), Outcome::Failed(_) | Outcome::Skipped);
            let counts = kinds.entry(name).or_default();
            if failed { counts.1 += 1 } else { counts.0 += 1 }
        }
    }
    assert_eq!(kinds.len(), 27, "{kinds:?}");
    for (kind, (good, bad)) in kinds {
        assert!(good >= 10, "{kind}: {good} succeed, {bad} fail");
    }
}

/// A memory store with a fault.
struct Faulty {
    inner: MemoryStore,
    /// Renames over an existing name fail.
    refuse_replace: bool,
    /// Reads past the first unit return zeros.
    forget_tail: bool,
}

struct FaultyFile(Arc<dyn StoreFile>);

impl StoreFile for FaultyFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = self.0.read_at(offset, buf)?;
        if offset >= 32 << 10 {
            buf[..len].fill(0);
        }
        Ok(len)
    }
    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.0.write_at(pieces)
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }
    fn len(&self) -> Result<u64> {
        self.0.len()
    }
    fn sync(&self, data_only: bool) -> Result<()> {
        self.0.sync(data_only)
    }
    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        self.0.allocate(offset, len, mode)
    }
}

impl Store for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.inner.lookup(parent, name)
    }
    fn forget(&self, ino: Ino) {
        self.inner.forget(ino)
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.inner.getattr(ino)
    }
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.inner.setattr(ino, set)
    }
    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        self.inner.read_dir(dir, start, sink)
    }
    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        self.inner.create(parent, name, new)
    }
    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.inner.mkdir(parent, name, new)
    }
    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.inner.symlink(parent, name, target, caller)
    }
    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        self.inner.mknod(parent, name, kind, rdev, new)
    }
    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.inner.link(ino, parent, name)
    }
    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.inner.xattr(ino, name)
    }
    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.xattr_names(ino)
    }
    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.inner.set_xattr(ino, name, value, set)
    }
    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.inner.remove_xattr(ino, name)
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.readlink(ino)
    }
    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.inner.unlink(parent, name)
    }
    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.inner.rmdir(parent, name)
    }
    fn rename(&self, dir: Ino, name: FileName<'_>, to: Ino, new: FileName<'_>, flags: RenameFlags) -> Result<()> {
        let flags = if self.refuse_replace && flags.is_empty() { RenameFlags::NOREPLACE } else { flags };
        self.inner.rename(dir, name, to, new, flags)
    }
    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        let file = self.inner.open(ino, access)?;
        Ok(if self.forget_tail { Arc::new(FaultyFile(file)) } else { file })
    }
    fn sync_dir(&self, dir: Ino) -> Result<()> {
        self.inner.sync_dir(dir)
    }
    fn sync_all(&self) -> Result<()> {
        self.inner.sync_all()
    }
    fn statfs(&self) -> Result<StatFs> {
        self.inner.statfs()
    }
}

/// Seeds whose sequences kept renames, links, directories or slots in the way of an earlier shrinking.
const HARD_SEEDS: [u64; 7] = [1151431999, 292210342, 464498547, 90573182, 4251431130, 2587751189, 1379888140];

#[test]
fn faults_are_found_and_shrunk() {
    for (refuse_replace, forget_tail, len_max) in [(true, false, 5), (false, true, 6)] {
        let mut found = 0;
        for seed in (1..=25).chain(HARD_SEEDS) {
            let limits = Limits::default();
            let mut check = |ops: &[Op]| {
                check_store(&Faulty { inner: MemoryStore::default(), refuse_replace, forget_tail }, ops, &limits)
            };
            let ops = generate(seed, 300, &limits);
            let Err(first) = check(&ops) else { continue };
            found += 1;
            let (ops, mismatch) = shrink::shrink(ops, first, &mut check);
            assert_eq!(ops.len(), mismatch.step + 1, "seed {seed}: {ops:?}");
            assert!(ops.len() <= len_max, "seed {seed}: {ops:?}");
        }
        assert!(found >= 15, "the fault shows in {found} sequences only");
    }
}

#[test]
fn a_failure_names_its_seed_and_sequence() {
    let found = catch_unwind(AssertUnwindSafe(|| {
        fuzz_store(&plan(50), || {
            ((), Faulty { inner: MemoryStore::default(), refuse_replace: true, forget_tail: false })
        });
    }));
    let panic = found.expect_err("the fault shows");
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.starts_with("ADIT_TEST_SEED="), "{message}");
    assert!(message.lines().count() > 1, "{message}");
}
