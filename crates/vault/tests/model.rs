//! Random operations on a vault, compared with the naive model: on both cipher combinations, with few and with nearly
//! all names shortened, unmounted and mounted again every now and then.
//!
//! `ADIT_TEST_SEED` runs one seed; `ADIT_TEST_SCALE` multiplies their number.

#[path = "support/vault.rs"]
mod vault;

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{Access, AllocateMode, Attr, Caller, FileName, Ino, RenameFlags, SetAttr, StatFs};
use adit_core::{ErrorKind, Result};
use adit_testkit::model::Limits;
use adit_testkit::ops::{Op, Plan, check_store, fuzz};
use adit_vault::VaultStore;
use adit_vault::format::CipherCombo;
use parking_lot::RwLock;

use vault::{Vault, name, new};

/// What a vault cannot hold.
const LIMITS: Limits = Limits {
    hard_links: false,
    special_nodes: false,
    holes: true,
    reserves: true,
    any_bytes: false,
    name_len_max: 255,
    unit_len_bytes: vault::CHUNK as u32,
    buffer_writes: true,
    shared: true,
    xattrs: false,
    acls: false,
    whiteouts: false,
    stable_cookies: false,
    slow_names: true,
};

/// A vault that is unmounted and mounted again at each `sync_all`.
struct Remounting {
    vault: Vault,
    store: RwLock<Option<VaultStore>>,
}

impl Remounting {
    fn new(vault: Vault) -> Self {
        let store = vault.open();
        Remounting { vault, store: RwLock::new(Some(store)) }
    }

    fn with<R>(&self, act: impl FnOnce(&VaultStore) -> R) -> R {
        act(self.store.read().as_ref().expect("it is open between remounts"))
    }
}

impl Store for Remounting {
    fn capabilities(&self) -> Capabilities {
        self.with(|s| s.capabilities())
    }
    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.with(|s| s.lookup(parent, name))
    }
    fn forget(&self, ino: Ino) {
        self.with(|s| s.forget(ino));
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.with(|s| s.getattr(ino))
    }
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.with(|s| s.setattr(ino, set))
    }
    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        self.with(|s| s.read_dir(dir, start, sink))
    }
    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        self.with(|s| s.create(parent, name, new))
    }
    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.with(|s| s.mkdir(parent, name, new))
    }
    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.with(|s| s.symlink(parent, name, target, caller))
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.with(|s| s.readlink(ino))
    }
    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.with(|s| s.unlink(parent, name))
    }
    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.with(|s| s.rmdir(parent, name))
    }
    fn rename(&self, dir: Ino, name: FileName<'_>, to: Ino, new: FileName<'_>, flags: RenameFlags) -> Result<()> {
        self.with(|s| s.rename(dir, name, to, new, flags))
    }
    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        self.with(|s| s.open(ino, access))
    }
    fn sync_dir(&self, dir: Ino) -> Result<()> {
        self.with(|s| s.sync_dir(dir))
    }
    fn sync_all(&self) -> Result<()> {
        let mut store = self.store.write();
        drop(store.take());
        assert_eq!(self.vault.state_path.read_dir().unwrap().count(), 0, "a clean end leaves no journal");
        *store = Some(self.vault.open());
        Ok(())
    }
    fn statfs(&self) -> Result<StatFs> {
        self.with(|s| s.statfs())
    }
}

/// Without what the format cannot do (see [`holes_are_not_supported`]), and nothing open at a remount.
fn fit(ops: &[Op], remount: bool) -> Vec<Op> {
    let mut fitting = Vec::new();
    for op in ops {
        match op {
            Op::Allocate(.., AllocateMode::PunchHole | AllocateMode::KeepSize) => continue,
            Op::SyncAll if remount => fitting.extend((0..5).map(Op::Close)),
            _ => {}
        }
        fitting.push(op.clone());
    }
    fitting
}

fn run(combo: CipherCombo, threshold: u32) {
    let plan = Plan { seeds: 8, ops: 250, limits: LIMITS };
    fuzz(&plan, |ops| {
        let vault = Vault::create(combo, threshold);
        let store = vault.open();
        check_store(&store, &fit(ops, false), &LIMITS)
    });
    let plan = Plan { seeds: 8, ops: 350, limits: LIMITS };
    fuzz(&plan, |ops| {
        let store = Remounting::new(Vault::create(combo, threshold));
        // The last thing that is compared is the tree after a remount.
        let mut ops = fit(ops, true);
        ops.extend((0..5).map(Op::Close).chain([Op::SyncAll]));
        check_store(&store, &ops, &LIMITS)
    });
}

#[test]
fn gcm_with_few_long_names() {
    run(CipherCombo::SivGcm, 220);
}

#[test]
fn gcm_with_nearly_all_names_long() {
    run(CipherCombo::SivGcm, 40);
}

#[test]
fn ctrmac_with_few_long_names() {
    run(CipherCombo::SivCtrmac, 220);
}

#[test]
fn ctrmac_with_nearly_all_names_long() {
    run(CipherCombo::SivCtrmac, 40);
}

#[test]
fn holes_are_not_supported() {
    let vault = Vault::create(CipherCombo::SivGcm, 220);
    let store = vault.open();
    let (_, file) = store.create(Ino::ROOT, name("f"), &new(0o600)).unwrap();
    file.write_at(&[(0, b"content")]).unwrap();
    for (mode, end) in [(AllocateMode::PunchHole, 3), (AllocateMode::KeepSize, 100_000)] {
        assert_eq!(file.allocate(0, end, mode).unwrap_err().kind(), ErrorKind::NotSupported);
    }
    file.allocate(0, 7, AllocateMode::KeepSize).unwrap();
    let mut buf = [0; 10];
    assert_eq!(file.read_at(0, &mut buf).unwrap(), 7);
    assert_eq!(&buf[..7], b"content");
}
