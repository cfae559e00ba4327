//! Making a vault and changing its password, while the disk fails and the power goes: there is always a password that
//! opens what is there, and what is no vault says so.

#[path = "support/vault.rs"]
mod vault;

use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::sync::Arc;

use adit_core::media::{HostDir, HostEntry};
use adit_core::types::Ino;
use adit_core::{ErrorKind, Result};
use adit_testkit::crash::{CrashPlan, CrashWorld, Mode, crash_everywhere};
use adit_testkit::faults::{CallClass, Fault, each_fault};
use adit_testkit::{Rng, own_caller, scaled, seeds};
use adit_vault::format::{CipherCombo, ScryptParams};
use adit_vault::{CreateOptions, change_password, create, unlock};

use vault::{PASSWORD, Vault, list, open_with};

const NEW: &str = "another pässword";
const SCRYPT: ScryptParams = ScryptParams { cost: 1 << 2, block_size: 8 };
const KEY_FILE: &str = "masterkey.cryptomator";

fn options() -> CreateOptions {
    CreateOptions { cipher_combo: CipherCombo::SivGcm, shortening_threshold: 220, scrypt: SCRYPT }
}

/// Opens the vault and lists its root, which must be empty.
fn assert_whole(world: &CrashWorld, password: &str, what: &str) {
    let root = world.dir("vault");
    let keys = unlock(&root, password).unwrap_or_else(|e| panic!("{what}: {e}"));
    let store = open_with(&keys, Arc::new(root), Some(Arc::new(world.dir("state")))).unwrap();
    assert!(list(&store, Ino::ROOT).unwrap().is_empty(), "{what}");
    drop(store);
    let report = adit_vault::check::check(&world.dir("vault"), &keys, Default::default(), &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{what}: {report:?}");
}

fn names_in(root: &dyn HostDir) -> Vec<String> {
    let mut names = Vec::new();
    root.list(Path::new(""), &mut |e: HostEntry<'_>| names.push(String::from_utf8_lossy(e.name).into_owned())).unwrap();
    names.sort();
    names
}

#[test]
fn a_crash_leaves_a_whole_vault_or_none() {
    for mode in [Mode::Kill, Mode::Journalled, Mode::Adversarial] {
        for seed in seeds(scaled(2)) {
            let (base, mut rng) = (CrashWorld::new(mode), Rng::new(seed));
            base.dir("vault");
            base.dir("state");
            let plan = CrashPlan { points_max: 64, randoms: 6 };
            let work = |world: &CrashWorld| create(&world.dir("vault"), PASSWORD, &options());
            crash_everywhere(&base, &plan, &mut rng, work, |made: &Result<()>, point, world| {
                let what = format!("{mode:?}, seed {seed}, {point:?}");
                let root = world.dir("vault");
                let Err(e) = unlock(&root, PASSWORD).map(drop) else { return assert_whole(&world, PASSWORD, &what) };
                assert!(made.is_err(), "{what}: it was promised, and is not there: {e}");
                // No vault, or a damaged one, and which file is missing: never a wrong password.
                assert!(matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt), "{what}: {e}");
                assert!(e.subject().is_some(), "{what}: {e}");
                let remains = !names_in(&root).iter().all(|n| n.ends_with(".tmp"));
                match create(&root, PASSWORD, &options()) {
                    Ok(()) => assert_whole(&world, PASSWORD, &what),
                    Err(again) => assert!(remains && again.kind() == ErrorKind::Exists, "{what}: {again}"),
                }
            });
        }
    }
}

#[test]
fn a_vault_that_could_not_be_made_leaves_nothing() {
    for fault in [Fault::NO_SPACE, Fault::IO] {
        let count = each_fault(fault, &CallClass::ALL, 1, |armed| {
            let world = CrashWorld::new(Mode::Kill);
            let root = armed.faults.wrap(world.dir("vault"));
            world.dir("state");
            armed.arm();
            let made = create(&root, PASSWORD, &options());
            armed.faults.disarm();
            let fired = armed.faults.fired();
            let last_sync = names_in(&root).iter().any(|n| n == "vault.cryptomator");
            if made.is_ok() || last_sync {
                return assert_whole(&world, PASSWORD, &format!("{fired:?}"));
            }
            assert_eq!(names_in(&root), [""; 0], "{fired:?}");
            create(&root, PASSWORD, &options()).unwrap();
            assert_whole(&world, PASSWORD, &format!("again, after {fired:?}"));
        });
        assert!(count > 10, "{count}");
    }
}

fn locked(mode: Mode) -> CrashWorld {
    let world = CrashWorld::new(mode);
    create(&world.dir("vault"), PASSWORD, &options()).unwrap();
    world.dir("state");
    world.settle();
    world
}

#[test]
fn after_a_crash_one_of_the_two_passwords_opens_the_vault() {
    for mode in [Mode::Kill, Mode::Journalled, Mode::Adversarial] {
        for seed in seeds(scaled(2)) {
            let (base, mut rng) = (locked(mode), Rng::new(seed));
            let plan = CrashPlan { points_max: 64, randoms: 6 };
            let work = |world: &CrashWorld| change_password(&world.dir("vault"), PASSWORD, NEW, SCRYPT);
            crash_everywhere(&base, &plan, &mut rng, work, |changed, point, world| {
                let what = format!("{mode:?}, seed {seed}, {point:?}");
                let root = world.dir("vault");
                let (old, new) = (unlock(&root, PASSWORD).is_ok(), unlock(&root, NEW).is_ok());
                assert!(old != new, "{what}: old {old}, new {new}, {:?}", names_in(&root));
                assert!(new || changed.is_err(), "{what}: the change was promised");
                let (password, other) = if new { (NEW, PASSWORD) } else { (PASSWORD, NEW) };
                change_password(&root, password, other, SCRYPT).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_whole(&world, other, &what);
            });
        }
    }
}

#[test]
fn an_error_tells_which_password_holds() {
    for fault in [Fault::NO_SPACE, Fault::IO] {
        let count = each_fault(fault, &CallClass::ALL, 1, |armed| {
            let world = locked(Mode::Kill);
            let root = armed.faults.wrap(world.dir("vault"));
            armed.arm();
            let changed = change_password(&root, PASSWORD, NEW, SCRYPT);
            armed.faults.disarm();
            let fired = armed.faults.fired();
            let told_new = match &changed {
                Ok(backup) => root.stat(Path::new(backup)).is_ok(),
                Err(e) => e.to_string().contains("the new password holds"),
            };
            let password = if told_new { NEW } else { PASSWORD };
            assert_whole(&world, password, &format!("{fired:?}: {changed:?}"));
            assert!(!names_in(&root).iter().any(|n| n.ends_with(".tmp")), "{fired:?}");
            change_password(&root, password, "a third", SCRYPT).unwrap();
        });
        assert!(count > 8, "{count}");
    }
}

#[test]
fn the_key_file_keeps_its_owner_group_and_mode() {
    let is_root = own_caller().uid == 0;
    let (uid, gid) = if is_root { (1000, 1001) } else { (own_caller().uid, own_caller().gid) };
    for mode in [0o600, 0o640, 0o644, 0o400] {
        let vault = Vault::create(CipherCombo::SivGcm, 220);
        let key_file = vault.path.join(KEY_FILE);
        lchown(&key_file, Some(uid), Some(gid)).unwrap();
        std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(mode)).unwrap();
        let backup = change_password(&*vault.root(), PASSWORD, NEW, SCRYPT).unwrap();
        for file in [KEY_FILE, &backup] {
            let meta = vault.path.join(file).metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (uid, gid, mode), "{file}");
        }
        unlock(&*vault.root(), NEW).unwrap();
    }
}

#[test]
fn a_copy_that_is_another_file_is_not_taken_for_one() {
    let vault = Vault::create(CipherCombo::SivGcm, 220);
    let root = vault.root();
    let backup = change_password(&*root, PASSWORD, NEW, SCRYPT).unwrap();
    let old = std::fs::read(vault.path.join(&backup)).unwrap();
    std::fs::write(vault.path.join(KEY_FILE), &old).unwrap();
    std::fs::write(vault.path.join(&backup), &old[..old.len() / 2]).unwrap();
    assert_eq!(change_password(&*root, PASSWORD, NEW, SCRYPT).unwrap_err().kind(), ErrorKind::Exists);
    unlock(&*root, PASSWORD).unwrap();
    std::fs::write(vault.path.join(&backup), &old).unwrap();
    assert_eq!(change_password(&*root, PASSWORD, NEW, SCRYPT).unwrap(), backup);
}
