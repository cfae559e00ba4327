//! Random faults in trees with snapshots, branches and hard links, in memory, in a file and with a data folder: the check finds
//! the same whatever memory it has, a repair leaves nothing that it could mend, and no content is lost by it. And repairs that a
//! crash cuts off, and of a full volume.

#[path = "support/mod.rs"]
mod base;
#[path = "support/plant.rs"]
mod plant;
#[path = "support/tree.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::types::{Ino, Kind};
use adit_testkit::crash::{CrashPlan, CrashWorld, Mode, crash_everywhere};
use adit_testkit::model::Limits;
use adit_testkit::ops::{StoreSubject, Subject, generate};
use adit_testkit::{Rng, own_caller, seeds};
use adit_volume::check::{ProblemKind, Report};
use adit_volume::format::keys::{self, Key, NameHash, Parts, space};
use adit_volume::format::records::{self, Block, Entry, Inode, Place, Window};
use adit_volume::table::{Allocation, BLOCK_LEN_BYTES};
use adit_volume::tree::MAIN;
use adit_volume::{Base, Batch, Extents, Run, Source, Table, Tree, VolumeStore};

use base::{Data, create_in, open_in, options};
use plant::{Planter, checked, lines, sample, shown};
use support::World;

const MEMORY: usize = 64 << 20;

/// A tree, and what it lies on.
struct Grown {
    table: Arc<dyn Table>,
    extents: Arc<dyn Extents>,
    allocation: Arc<dyn Allocation>,
    hash: NameHash,
    tree: Arc<Tree>,
}

impl Grown {
    /// Empty, in memory.
    fn in_memory() -> Grown {
        let World { base, tree, hash_bits } = World::with(support::BLOCKS, 64);
        Grown { table: base.clone(), extents: base.clone(), allocation: base, hash: support::hash(hash_bits), tree }
    }

    /// Empty, in a file.
    fn in_file(data: Data) -> Grown {
        let base = create_in(&CrashWorld::new(Mode::Kill), data, options()).unwrap();
        Tree::format(&base, own_caller(), 0o755).unwrap();
        let base = Arc::new(base);
        let (tree, hash) = (tree_of(&base), NameHash::new(base.info().secret));
        Grown { table: base.clone(), extents: base.clone(), allocation: base, hash, tree }
    }

    fn reopen(self) -> Grown {
        let tree = Arc::new(Tree::open(self.table.clone(), self.extents.clone(), self.hash).unwrap());
        Grown { tree, ..self }
    }

    fn branch(&self, name: &str) -> VolumeStore {
        VolumeStore::open(&self.tree, Source::Branch(name.to_owned())).unwrap()
    }

    fn check(&self, repair: bool) -> Report {
        checked(&self.tree, &*self.allocation, repair, MEMORY).unwrap()
    }

    /// The blocks that are not free.
    fn used(&self) -> BTreeSet<u64> {
        let (mut used, mut at) = (BTreeSet::new(), 0);
        while let Some(run) = self.allocation.allocated_from(at) {
            used.extend(run.blocks());
            at = run.end();
        }
        used
    }

    /// Lets it grow with snapshots and hard links, of which some and some branches are left.
    fn grow(self, rng: &mut Rng) -> Grown {
        let tree = &self.tree;
        sample(&self.branch(MAIN));
        let limits = Limits {
            unit_len_bytes: 3000,
            buffer_writes: false,
            reserves: false,
            whiteouts: true,
            ..Limits::default()
        };
        for round in 0..4 {
            let names: Vec<String> = tree.snapshots().into_iter().filter(|i| i.is_branch).map(|i| i.name).collect();
            let branch = rng.pick(&names).clone();
            let store = self.branch(&branch);
            let mut subject = StoreSubject::new(&store);
            generate(rng.next_u64(), 60, &limits).iter().for_each(|op| drop(subject.run(op)));
            drop(subject);
            drop(store);
            tree.snapshot(&branch, &format!("s{round}")).unwrap();
            if rng.percent(60) {
                tree.branch(&format!("s{round}"), &format!("b{round}")).unwrap();
            }
            if rng.percent(30) {
                tree.delete_snapshot(&format!("s{round}")).unwrap();
            }
        }
        tree.reap_unused().unwrap();
        tree.collect().unwrap();
        self
    }
}

/// Content by inode, of the files that a branch leads to.
fn contents(world: &Grown, branch: &str) -> BTreeMap<u64, String> {
    let all = shown(&world.branch(branch)).into_values().filter(|(kind, ..)| *kind == Kind::File);
    // Without permissions and links.
    let content = |what: String| what.split(" links, ").nth(1).unwrap_or_default().to_owned();
    all.map(|(_, ino, what)| (ino, content(what))).collect()
}

/// Writes one random fault to a random version of something. Inodes of which it takes away the record or an attribute.
fn plant(world: &Grown, rng: &mut Rng) -> BTreeSet<u64> {
    let map = base::scan_all(&*world.table).unwrap();
    let versioned =
        |key: &&Vec<u8>| keys::split(key).is_some() && matches!(key[0], b'I' | b'D' | b'L' | b'X' | b'E' | b'T');
    let all: Vec<&Vec<u8>> = map.keys().filter(versioned).collect();
    let inodes: Vec<&Vec<u8>> = all.iter().copied().filter(|key| key[0] == space::INODE).collect();
    let key = (*rng.pick(&all)).clone();
    let (logical, id) = keys::split(&key).unwrap();
    let other = *rng.pick(&inodes);
    let other_ino = u64::from_be_bytes(other[1..9].try_into().unwrap());
    let parsed = Key::from_logical(logical).unwrap();
    let planter = Planter { table: &*world.table, hash: world.hash, ids: vec![id] };
    let mut excused = BTreeSet::new();
    let value = map[&key].clone();
    if records::is_tombstone(&value) {
        return excused;
    }
    match parsed.parts() {
        Some(Parts::Inode(ino)) => {
            let mut inode = Inode::decode(&value).unwrap();
            match rng.below(6) {
                0 => inode.nlink = rng.below(5) as u32,
                1 => inode.place = Place { dir: other_ino, cookie: 256 * (1 + rng.below(1 << 40)) },
                2 => inode.place = Place::default(),
                3 => inode.blocks += 1 + rng.below(9),
                4 if inode.kind == Kind::Directory => inode.size = rng.below(9),
                5 => {
                    excused.insert(ino);
                    planter.apply(vec![(key, None)]);
                    return excused;
                }
                _ => inode.has_xattrs = false,
            }
            planter.apply(vec![(key, Some(inode.encode()))]);
        }
        Some(Parts::Entry(dir, _)) => {
            let entry = Entry::decode(&value).unwrap();
            match rng.below(4) {
                0 => planter.apply(vec![(key, None)]),
                1 => planter.apply(vec![(key, Some(Entry { ino: other_ino, ..entry }.encode()))]),
                2 => {
                    let kind = *rng.pick(&[Kind::File, Kind::Directory, Kind::Fifo]);
                    planter.apply(vec![(key, Some(Entry { kind, ..entry }.encode()))]);
                }
                _ => {
                    let kind = Inode::decode(&map[other]).map_or(Kind::File, |inode| inode.kind);
                    let name = format!("planted{}", rng.below(1000));
                    planter.link(dir, &name, other_ino, kind);
                }
            }
        }
        Some(Parts::Window(..)) => {
            let (mut window, birth) = (Window::decode(&value).unwrap(), 1 + rng.below(12) as u32);
            let blocks: Vec<_> = window.iter().collect();
            for (at, block) in blocks.into_iter().filter(|_| rng.percent(70)) {
                window.set(at, Some(Block { birth, ..block }));
            }
            planter.apply(vec![(key, Some(window.encode()))]);
        }
        Some(Parts::Name(..)) => planter.apply(vec![(key, None)]),
        Some(Parts::Xattr(ino, _)) => {
            excused.insert(ino);
            planter.apply(vec![(key, None)]);
        }
        _ => {}
    }
    if rng.percent(20) {
        planter.apply(vec![(keys::touched(id, Key::inode(1 << 40).as_bytes()), Some(records::TOUCHED.to_vec()))]);
    }
    excused
}

#[test]
fn random_faults_are_mended_and_no_content_is_lost() {
    for seed in seeds(40) {
        let mut rng = Rng::new(seed);
        let world = match rng.below(3) {
            0 => Grown::in_file(Data::Inline),
            1 => Grown::in_file(Data::Folder),
            _ => Grown::in_memory(),
        };
        let world = world.grow(&mut rng);
        let branches: Vec<String> =
            world.tree.snapshots().into_iter().filter(|i| i.is_branch).map(|i| i.name).collect();
        let before: BTreeMap<&String, _> = branches.iter().map(|name| (name, contents(&world, name))).collect();
        let mut excused = BTreeSet::new();
        for _ in 0..1 + rng.below(12) {
            excused.extend(plant(&world, &mut rng));
        }
        let world = world.reopen();
        let what = format!("ADIT_TEST_SEED={seed}");
        let mended = world.check(true);
        for problem in &mended.problems {
            let is_frozen = problem.detail.contains("nothing is changed in a snapshot");
            // An older record of an inode may not fit its content.
            let is_excused = excused.iter().any(|ino| problem.detail.starts_with(&format!("inode {ino} ")));
            let is_known = is_frozen || (problem.kind == ProblemKind::Tree && is_excused);
            assert!(is_known && !problem.is_repairable, "{:#?} {what}", lines(&mended.problems));
        }
        let again = world.check(true);
        assert_eq!((lines(&again.problems), lines(&again.repaired)), (lines(&mended.problems), vec![]), "{what}");
        assert_eq!(world.tree.verify().unwrap().blocks, world.used(), "{what}");
        for name in &branches {
            let after = contents(&world, name);
            for (ino, content) in before[name].iter().filter(|(ino, _)| !excused.contains(*ino)) {
                assert_eq!(
                    after.get(ino),
                    Some(content),
                    "inode {ino} in {name}: {what}: {:#?}",
                    lines(&mended.repaired)
                );
            }
        }
    }
}

#[test]
fn many_passes_find_what_one_finds() {
    for seed in seeds(12) {
        let mut rng = Rng::new(seed);
        let world = Grown::in_memory().grow(&mut rng);
        // More than are ever held at once.
        for n in 0..40 {
            world.branch(MAIN).create(Ino::ROOT, plant::name(&format!("more {n}")), &support::new(0o644)).unwrap();
        }
        // Not of those that are lost: they are to stay that.
        let some: Vec<u64> = world.used().into_iter().step_by(50).collect();
        let lost = world.extents.reserve(3, None, false).unwrap();
        for run in lost {
            let bytes = vec![1; run.count as usize * BLOCK_LEN_BYTES];
            world.extents.write(run.start, &bytes).unwrap();
            let sums = bytes.chunks(BLOCK_LEN_BYTES).map(crc32c::crc32c).collect();
            world.table.apply(Batch { allocated: vec![(run, sums)], ..Batch::default() }).unwrap();
        }
        let freed = some.iter().map(|&start| Run { start, count: 1 }).collect();
        world.table.apply(Batch { freed, ..Batch::default() }).unwrap();
        for _ in 0..20 {
            plant(&world, &mut rng);
        }
        let world = world.reopen();
        let one = world.tree.check(&*world.allocation, MEMORY).unwrap();
        let views = world.tree.snapshots().len() as u64;
        assert_eq!((one.passes.entries, one.passes.windows), (views, 1));
        assert!(one.findings.len() > 5 && one.lost_blocks >= 3);
        for memory in [0, 700, 5000] {
            let many = world.tree.check(&*world.allocation, memory).unwrap();
            assert_eq!(many.findings, one.findings, "ADIT_TEST_SEED={seed}");
            assert_eq!((many.lost, many.lost_blocks, many.omitted), (one.lost.clone(), one.lost_blocks, 0));
            assert_eq!((many.inodes, many.blocks), (one.inodes, one.blocks));
            if memory == 0 {
                assert!(many.passes.entries > views && many.passes.windows > 100, "{:?}", many.passes);
            }
        }
    }
}

/// Flips bits of values, cuts them, and moves them to other keys.
#[test]
fn garbage_makes_no_check_and_no_repair_panic() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let world = Grown::in_memory().grow(&mut rng);
        // What is in windows could have the strict media of the tests take a block back that was never given out.
        let repair = rng.percent(70);
        let mut map = base::scan_all(&*world.table).unwrap();
        let may_be_hit = |key: &&Vec<u8>| match key[0] {
            b'I' | b'D' | b'L' | b'X' | b'O' | b'T' => true,
            b'E' => !repair,
            _ => false,
        };
        let all: Vec<Vec<u8>> = map.keys().filter(may_be_hit).cloned().collect();
        for _ in 0..1 + rng.below(30) {
            let mut key = rng.pick(&all).clone();
            let Some(value) = map.get(&key) else { continue };
            let mut value = value.clone();
            if value.is_empty() {
                continue;
            }
            if rng.percent(30) {
                let at = 1 + rng.below(key.len() as u64 - 1) as usize;
                key[at] ^= 1 << rng.below(8);
            } else if rng.percent(20) {
                value.truncate(rng.below(value.len() as u64) as usize);
            } else {
                let at = rng.below(value.len() as u64) as usize;
                value[at] ^= 1 << rng.below(8);
            }
            if may_be_hit(&&key) {
                map.insert(key.clone(), value.clone());
                let writes = vec![(key, Some(value))];
                world.table.apply(Batch { writes, ..Batch::default() }).unwrap();
            }
        }
        let world = world.reopen();
        let report = world.check(repair);
        if repair {
            let again = world.check(true);
            let told = (lines(&again.problems), lines(&again.repaired));
            assert_eq!(told, (lines(&report.problems), vec![]), "ADIT_TEST_SEED={seed}");
        }
    }
}

fn tree_of(base: &Arc<Base>) -> Arc<Tree> {
    Arc::new(Tree::open(base.clone(), base.clone(), NameHash::new(base.info().secret)).unwrap())
}

fn main_of(tree: &Arc<Tree>) -> VolumeStore {
    VolumeStore::open(tree, Source::Branch(MAIN.to_owned())).unwrap()
}

/// A closed volume with a tree, a snapshot of it, and faults of each kind in what came after. What it shows without them.
fn damaged(world: &CrashWorld, data: Data) -> BTreeMap<String, (Kind, u64, String)> {
    let base = create_in(world, data, options()).unwrap();
    Tree::format(&base, own_caller(), 0o755).unwrap();
    let base = Arc::new(base);
    let tree = tree_of(&base);
    tree.snapshot(MAIN, "before").unwrap();
    let inodes = sample(&main_of(&tree));
    let before = shown(&main_of(&tree));
    let planter = Planter { table: &*base, hash: NameHash::new(base.info().secret), ids: vec![2, 1] };
    planter.edit(inodes["/a"], |inode| inode.nlink = 5);
    planter.unlink(inodes["/d"], "f");
    planter.unlink(1, "d");
    planter.link(inodes["/empty"], "ghost", 4242, Kind::File);
    planter.edit(inodes["/with"], |inode| inode.blocks = 0);
    let round = planter.link(inodes["/d/e/deep"], "round", inodes["/d/e"], Kind::Directory);
    planter.unlink(inodes["/d"], "e");
    planter.edit(inodes["/d/e"], |inode| inode.place = round);
    let lost = base.reserve(2, None, false).unwrap();
    for run in lost {
        let bytes = vec![3; run.count as usize * BLOCK_LEN_BYTES];
        base.write(run.start, &bytes).unwrap();
        let sums = bytes.chunks(BLOCK_LEN_BYTES).map(crc32c::crc32c).collect();
        base.apply(Batch { allocated: vec![(run, sums)], ..Batch::default() }).unwrap();
    }
    let window = planter.found(&Key::window(inodes["/with"], 0)).unwrap().1;
    let (_, block) = Window::decode(&window).unwrap().iter().next().unwrap();
    base.apply(Batch { freed: vec![Run { start: block.at, count: 1 }], ..Batch::default() }).unwrap();
    drop(tree);
    Arc::into_inner(base).unwrap().close().unwrap();
    world.settle();
    before
}

/// What each path becomes by the repair of [`damaged`].
fn expected(before: &BTreeMap<String, (Kind, u64, String)>) -> BTreeMap<String, (Kind, u64, String)> {
    let lost = |path: &str| format!("/lost+found/#{}", before[path].1);
    let moved = |at: &String| {
        for path in ["/d/f", "/d/e", "/d"] {
            if let Some(rest) = at.strip_prefix(path)
                && (rest.is_empty() || rest.starts_with('/'))
            {
                return format!("{}{rest}", lost(path));
            }
        }
        at.clone()
    };
    before.iter().map(|(at, what)| (moved(at), what.clone())).collect()
}

fn repaired(world: &CrashWorld) -> adit_core::Result<Vec<String>> {
    let base = Arc::new(open_in(world, options())?);
    let tree = Arc::new(Tree::open(base.clone(), base.clone(), NameHash::new(base.info().secret))?);
    let report = checked(&tree, &*base, true, MEMORY)?;
    drop(tree);
    base.checkpoint()?;
    Ok(lines(&report.problems))
}

#[test]
fn a_repair_that_a_crash_cuts_off_is_gone_on_with() {
    for seed in seeds(1) {
        for (mode, data) in
            [(Mode::Kill, Data::Inline), (Mode::Adversarial, Data::Inline), (Mode::Journalled, Data::Folder)]
        {
            let mut rng = Rng::new(seed);
            let world = CrashWorld::new(mode);
            let expected = expected(&damaged(&world, data));
            let plan = CrashPlan { points_max: 10, randoms: 2 };
            crash_everywhere(&world, &plan, &mut rng, repaired, |done, point, left| {
                let what = format!("{mode:?}, {data:?}, {point:?}, ADIT_TEST_SEED={seed}");
                // What was said to be mended is, whatever came then.
                if done.is_ok() {
                    let base = Arc::new(open_in(&left, options()).unwrap_or_else(|e| panic!("{what}: {e}")));
                    let report = checked(&tree_of(&base), &*base, false, MEMORY).unwrap();
                    assert_eq!(lines(&report.problems), [""; 0], "{what}");
                }
                let told = repaired(&left).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(told, [""; 0], "{what}");
                let base = Arc::new(open_in(&left, options()).unwrap());
                let tree = tree_of(&base);
                let mut now = shown(&main_of(&tree));
                now.remove("/lost+found").unwrap_or_else(|| panic!("{what}: no lost+found"));
                assert_eq!(now, expected, "{what}");
                let used: BTreeSet<u64> = base.allocated().iter().flat_map(Run::blocks).collect();
                assert_eq!(tree.verify().unwrap().blocks, used, "{what}");
            });
        }
    }
}

#[test]
fn a_full_volume_is_repaired() {
    let world = Grown::in_file(Data::Inline);
    let inodes = sample(&world.branch(MAIN));
    let planter = Planter { table: &*world.table, hash: world.hash, ids: vec![1] };
    planter.unlink(1, "d");
    planter.edit(inodes["/a"], |inode| inode.nlink = 7);
    let store = world.branch(MAIN);
    let fill = |n: usize, bytes: &[u8]| {
        let (_, file) = store.create(Ino::ROOT, plant::name(&format!("fill {n}")), &support::new(0o644))?;
        file.write_at(&[(0, bytes)])
    };
    // First with blocks, then with records.
    let mut count = 0;
    for bytes in [vec![5; 100_000], vec![5; 2000]] {
        let full = loop {
            count += 1;
            if let Err(e) = fill(count, &bytes) {
                break e;
            }
        };
        assert_eq!(full.kind(), ErrorKind::NoSpace);
    }
    drop(store);
    let report = world.check(true);
    assert_eq!(lines(&report.problems), [""; 0]);
    assert_eq!(world.tree.verify().unwrap().blocks, world.used());
    let lost = format!("/lost+found/#{}/f", inodes["/d"]);
    assert_eq!(shown(&world.branch(MAIN))[&lost].1, inodes["/d/f"]);
}
