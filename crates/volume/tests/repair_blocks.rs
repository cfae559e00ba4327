//! What a check finds and a repair mends of blocks: those that are free and a file's, those that are nobody's, and what they hold.

#[path = "support/faults.rs"]
mod faults;
#[path = "support/plant.rs"]
mod plant;
#[path = "support/tree.rs"]
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use adit_core::Result;
use adit_core::store::Store;
use adit_core::types::{Access, Ino};
use adit_volume::format::keys::{self, Key};
use adit_volume::format::records::{self, Window};
use adit_volume::table::{Allocation, BLOCK_LEN_BYTES, Run};
use adit_volume::testing::MemBase;
use adit_volume::{Batch, Bytes, Extents, Seq, Sink, Table, Tree};

use faults::{MEMORY, assert_sound, planter, world};
use plant::{checked, lines, shown};
use support::{Failing, World, hash, name};

#[test]
fn blocks_that_are_free_and_a_files_are_the_files_again() {
    let (world, inodes) = world();
    let before = shown(&world.main());
    let window = planter(&world).found(&Key::window(inodes["/big"], 0)).unwrap().1;
    let blocks: Vec<u64> = Window::decode(&window).unwrap().iter().map(|(_, block)| block.at).collect();
    let freed: Vec<Run> = blocks.iter().step_by(3).map(|&start| Run { start, count: 1 }).collect();
    world.base.apply(Batch { freed: freed.clone(), ..Batch::default() }).unwrap();
    // They are not overwritten, though they could be by now.
    let mut state = world.base.state();
    state.freed.clear();
    world.base.restore(state);
    let found = checked(&world.tree, &*world.base, false, MEMORY).unwrap();
    assert!(lines(&found.problems)[0].starts_with("free-blocks: /big in main"), "{:?}", lines(&found.problems));
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(lines(&mended.problems), [""; 0]);
    assert_sound(&world, "free blocks");
    assert_eq!(shown(&world.main()), before);
    // One that was given to somebody else, and overwritten, is damage.
    world.base.apply(Batch { freed: vec![freed[0]], ..Batch::default() }).unwrap();
    let mut state = world.base.state();
    state.freed.clear();
    world.base.restore(state);
    let runs = world.base.reserve(1, Some(freed[0].start), false).unwrap();
    assert_eq!(runs, [freed[0]]);
    let bytes = vec![9; BLOCK_LEN_BYTES];
    world.base.write(runs[0].start, &bytes).unwrap();
    world.base.apply(Batch { allocated: vec![(runs[0], vec![crc32c::crc32c(&bytes)])], ..Batch::default() }).unwrap();
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(mended.repaired.len(), 0);
    assert!(lines(&mended.problems)[0].starts_with("damaged-content: /big in main"), "{:?}", lines(&mended.problems));
}

/// A table that takes no batch while one of `blocks` is free: what the batch needs in the file could be given that place.
struct Watching {
    base: Arc<MemBase>,
    blocks: BTreeSet<u64>,
    batches: AtomicUsize,
}

impl Table for Watching {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.base.get(key)
    }
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.base.get_many(keys)
    }
    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        self.base.scan(start, end, sink)
    }
    fn apply(&self, batch: Batch) -> Result<Seq> {
        let number = self.batches.fetch_add(1, Relaxed);
        for &block in &self.blocks {
            let is_allocated = self.base.allocated_from(block).is_some_and(|run| run.start == block);
            assert!(is_allocated || self.base.is_reserved(block), "block {block} is free at batch {number}");
        }
        self.base.apply(batch)
    }
    fn batch_len_max_bytes(&self) -> usize {
        self.base.batch_len_max_bytes()
    }
    fn sync(&self) -> Result<()> {
        self.base.sync()
    }
    fn checkpoint(&self) -> Result<()> {
        self.base.checkpoint()
    }
}

/// Frees some blocks of a file, and has them free for anybody.
fn free_some(world: &World, ino: u64, step: usize) -> BTreeSet<u64> {
    let window = planter(world).found(&Key::window(ino, 0)).unwrap().1;
    let blocks: BTreeSet<u64> = Window::decode(&window).unwrap().iter().step_by(step).map(|(_, b)| b.at).collect();
    let freed = blocks.iter().map(|&start| Run { start, count: 1 }).collect();
    world.base.apply(Batch { freed, ..Batch::default() }).unwrap();
    let mut state = world.base.state();
    state.freed.clear();
    world.base.restore(state);
    blocks
}

#[test]
fn free_blocks_of_files_are_reserved_before_anything_is_changed() {
    // The second time there are so many other faults that the first check does not tell of these blocks.
    for others in [0, 17_000_u64] {
        let (world, inodes) = world();
        let before = shown(&world.main());
        let mut blocks = free_some(&world, inodes["/big"], 20);
        blocks.extend(free_some(&world, inodes["/with"], 1));
        let planter = planter(&world);
        planter.edit(inodes["/a"], |inode| inode.nlink = 7);
        planter.edit(inodes["/d"], |inode| inode.size = 40);
        let notes: Vec<u64> = (0..others).collect();
        for some in notes.chunks(500) {
            let note = |n: &u64| keys::touched(2, Key::inode((1 << 40) + n).as_bytes());
            planter.apply(some.iter().map(|n| (note(n), Some(records::TOUCHED.to_vec()))).collect());
        }
        let batches = AtomicUsize::new(0);
        let table = Arc::new(Watching { base: world.base.clone(), blocks, batches });
        let tree = Tree::open(table.clone(), world.base.clone(), hash(64)).unwrap();
        let first = tree.check(&*world.base, MEMORY).unwrap();
        assert_eq!(first.omitted > 0, others > 0);
        let mended = checked(&tree, &*world.base, true, MEMORY).unwrap();
        assert_eq!(lines(&mended.problems), [""; 0]);
        assert!(table.batches.load(Relaxed) > others as usize);
        assert_sound(&world, "free blocks");
        assert_eq!(shown(&world.main()), before);
    }
}

#[test]
fn what_could_not_be_taken_back_is_not_kept_from_others() {
    let (world, inodes) = world();
    let blocks = free_some(&world, inodes["/with"], 1);
    planter(&world).edit(inodes["/a"], |inode| inode.nlink = 7);
    let start = world.base.state();
    for batches in 0..2 {
        world.base.restore(start.clone());
        let failing = Failing::new(world.base.clone(), batches);
        checked(&failing.tree(), &*world.base, true, MEMORY).unwrap_err();
        let state = world.base.state();
        assert_eq!((state.reserved.len(), state.allocated.is_superset(&blocks)), (0, batches > 0));
    }
}

#[test]
fn lost_blocks_are_given_back_but_not_while_a_record_is_damaged() {
    let (world, inodes) = world();
    let before = shown(&world.main());
    let free = world.base.space().free;
    let runs = world.base.reserve(5, Some(5000), false).unwrap();
    let bytes = vec![7; BLOCK_LEN_BYTES];
    let runs: Vec<(Run, Vec<u32>)> = runs
        .into_iter()
        .map(|run| {
            run.blocks().for_each(|block| world.base.write(block, &bytes).unwrap());
            (run, vec![crc32c::crc32c(&bytes); run.count as usize])
        })
        .collect();
    world.base.apply(Batch { allocated: runs, ..Batch::default() }).unwrap();
    let damaged = {
        let planter = planter(&world);
        let key = Key::window(inodes["/with"], 0);
        let (id, value) = planter.found(&key).unwrap();
        planter.apply(vec![(key.at(id), Some(value[..value.len() - 1].to_vec()))]);
        (key.at(id), value)
    };
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    let told = lines(&mended.problems);
    assert_eq!(mended.repaired.len(), 0, "{:?}", lines(&mended.repaired));
    assert!(told.iter().any(|line| line.starts_with("damaged-record: /with in main")), "{told:?}");
    assert!(told.iter().any(|line| line.contains("blocks are not free and belong to nobody")), "{told:?}");
    world.base.apply(Batch { writes: vec![(damaged.0, Some(damaged.1))], ..Batch::default() }).unwrap();
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(lines(&mended.problems), [""; 0]);
    assert_eq!(lines(&mended.repaired), ["lost-blocks: - in -: 5 blocks are not free and belong to nobody"]);
    assert_sound(&world, "lost blocks");
    assert_eq!((world.base.space().free, shown(&world.main())), (free, before));
}

#[test]
fn versions_that_disagree_about_the_sum_of_a_block_are_both_compared() {
    let (world, inodes) = world();
    let key = Key::window(inodes["/big"], 0);
    let (_, value) = planter(&world).found(&key).unwrap();
    let mut window = Window::decode(&value).unwrap();
    let block = window.get(0).unwrap();
    window.set(0, Some(records::Block { sum: !block.sum, ..block }));
    planter(&world).apply(vec![(key.at(1), Some(window.encode()))]);
    let found = checked(&world.tree, &*world.base, false, MEMORY).unwrap();
    let told = lines(&found.problems);
    assert!(told.iter().any(|line| line.starts_with("damaged-content: /big")), "{told:#?}");
}

#[test]
fn removed_files_that_are_not_dropped_yet_are_no_fault_and_go_with_a_repair() {
    let (world, inodes) = world();
    let store = world.main();
    let open = store.open(Ino(inodes["/d/f"]), Access::Write).unwrap();
    store.unlink(Ino(inodes["/d"]), name("f")).unwrap();
    // As after a kill.
    let killed = World { base: std::sync::Arc::new(world.base.reopen()), tree: world.tree.clone(), hash_bits: 64 };
    let killed = killed.reopen();
    drop((open, store));
    let free = killed.base.space().free;
    let mended = checked(&killed.tree, &*killed.base, true, MEMORY).unwrap();
    assert_eq!((lines(&mended.problems), lines(&mended.repaired)), (vec![], vec![]));
    assert_eq!(killed.base.space().free, free + 2);
    assert_sound(&killed, "removed files");
}
