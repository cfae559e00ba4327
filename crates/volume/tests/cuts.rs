//! A cut that takes several batches and stops half way: what was cut never comes back, and what is written afterwards stays,
//! whatever snapshots, branches and restores do meanwhile.

#[path = "support/tree.rs"]
mod support;

use std::sync::Arc;

use adit_core::store::{Store, StoreFile};
use adit_core::types::{Access, Ino};
use adit_volume::tree::MAIN;
use adit_volume::{Source, Tree, VolumeStore};

use support::{Failing, World, name, new};

const MIB: u64 = 1 << 20;

/// Where the cut leaves more windows than one batch takes.
const CUT_LEN_BYTES: u64 = 5 * MIB;

/// A tree with a file of 1200 windows; all of it on media that can fail.
struct Scene {
    world: World,
    media: Arc<Failing>,
    tree: Arc<Tree>,
    ino: Ino,
}

impl Scene {
    fn new() -> Scene {
        let world = World::new();
        let store = world.main();
        let (attr, file) = store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap();
        for at in 0..1200 {
            file.write_at(&[(at * MIB, b"old")]).unwrap();
        }
        drop((file, store));
        let media = Failing::new(world.base.clone(), usize::MAX);
        Scene { tree: media.tree(), media, world, ino: attr.ino }
    }

    fn mount(&self, branch: &str) -> VolumeStore {
        VolumeStore::open(&self.tree, Source::Branch(branch.to_owned())).unwrap()
    }

    /// Cuts the file, of which only the first batch gets through.
    fn cut_half(&self, file: &dyn StoreFile) {
        self.media.set_left(1);
        file.set_len(CUT_LEN_BYTES).unwrap_err();
        self.media.set_left(usize::MAX);
        assert_eq!(file.len().unwrap(), CUT_LEN_BYTES);
    }

    fn check(&self) {
        let report = self.tree.verify().unwrap();
        assert_eq!(report.problems, [""; 0]);
        assert_eq!(report.blocks, self.world.base.state().allocated);
    }
}

/// Makes the file long again, and looks at what was cut.
fn check_grown(file: &dyn StoreFile) {
    file.set_len(2000 * MIB).unwrap();
    for at in (5..2000).filter(|at| *at != 6) {
        let mut buf = [1; 3];
        file.read_at(at * MIB, &mut buf).unwrap();
        assert_eq!(buf, [0; 3], "what was cut, at {at} MiB");
    }
}

fn check_written(file: &dyn StoreFile) {
    let mut buf = [0; 3];
    file.read_at(6 * MIB, &mut buf).unwrap();
    assert_eq!(buf, *b"new");
}

#[test]
fn a_restore_of_a_mounted_branch_keeps_what_is_written_next() {
    let scene = Scene::new();
    let store = scene.mount(MAIN);
    scene.cut_half(&*store.open(scene.ino, Access::Write).unwrap());
    drop(store);
    scene.tree.snapshot(MAIN, "s").unwrap();
    let store = scene.mount(MAIN);
    let file = store.open(scene.ino, Access::Write).unwrap();
    // Whatever a restore does beyond the first batch fails.
    scene.media.set_left(1);
    let _ = scene.tree.restore(MAIN, "s", Default::default());
    scene.media.set_left(usize::MAX);
    file.write_at(&[(6 * MIB, b"new")]).unwrap();
    drop((file, store));
    let store = scene.mount(MAIN);
    let file = store.open(scene.ino, Access::Write).unwrap();
    check_written(&*file);
    check_grown(&*file);
    scene.tree.collect().unwrap();
    scene.check();
}

#[test]
fn each_branch_has_its_own_rest_of_a_cut() {
    let scene = Scene::new();
    let store = scene.mount(MAIN);
    let file = store.open(scene.ino, Access::Write).unwrap();
    scene.cut_half(&*file);
    scene.tree.snapshot(MAIN, "s").unwrap();
    scene.tree.branch("s", "b").unwrap();
    let branch = scene.mount("b");
    check_grown(&*branch.open(scene.ino, Access::Write).unwrap());
    check_grown(&*file);
    scene.check();
}

#[test]
fn a_file_that_loses_its_name_keeps_the_rest_of_a_cut() {
    let scene = Scene::new();
    let store = scene.mount(MAIN);
    let file = store.open(scene.ino, Access::Write).unwrap();
    scene.cut_half(&*file);
    store.unlink(Ino::ROOT, name("f")).unwrap();
    file.write_at(&[(6 * MIB, b"new")]).unwrap();
    check_written(&*file);
    check_grown(&*file);
    drop(file);
    store.forget(scene.ino);
    scene.check();
    assert_eq!(scene.world.base.state().allocated.len(), 0);
}

#[test]
fn a_path_is_restored_without_what_was_cut() {
    let scene = Scene::new();
    let store = scene.mount(MAIN);
    scene.cut_half(&*store.open(scene.ino, Access::Write).unwrap());
    scene.tree.snapshot(MAIN, "s").unwrap();
    store.unlink(Ino::ROOT, name("f")).unwrap();
    store.forget(scene.ino);
    store.restore_path("s", &[b"f"], Default::default()).unwrap();
    scene.check();
    let file = store.open(scene.ino, Access::Write).unwrap();
    file.write_at(&[(6 * MIB, b"new")]).unwrap();
    check_grown(&*file);
    check_written(&*file);
    scene.tree.collect().unwrap();
    scene.check();
}
