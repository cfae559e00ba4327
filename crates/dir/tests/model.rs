//! Random operations on a folder, compared with the naive model.

use adit_core::store::Store;
use adit_dir::DirStore;
use adit_testkit::model::Limits;
use adit_testkit::ops::{Plan, check_store, fuzz};

#[test]
fn random_operations_do_what_the_model_does() {
    let limits = Limits { unit_len_bytes: 4096, buffer_writes: false, shared: true, ..Limits::default() };
    let plan = Plan { seeds: 40, ops: 300, limits };
    fuzz(&plan, |ops| {
        let folder = tempfile::tempdir().expect("a folder");
        let store = DirStore::open(folder.path(), false).expect("opens");
        assert!(store.capabilities().acls, "run this where the host keeps ACLs");
        check_store(&store, ops, &plan.limits)
    });
}
