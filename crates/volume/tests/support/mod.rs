//! Random batches on a base, and the model that says what must be there after each of them.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use adit_core::Result;
use adit_core::media::BlockFile;
use adit_core::types::Access;
use adit_media::ExtentFolder;
use adit_testkit::Rng;
use adit_testkit::crash::CrashWorld;
use adit_volume::table::{BLOCK_LEN_BYTES, Folder, NewFolder};
use adit_volume::{Base, Batch, Extents, NewVolume, Options, Run, Table};

/// A file in a world.
pub fn file(world: &CrashWorld) -> Arc<dyn BlockFile> {
    Arc::new(world.dir("host").block_file(Path::new("volume")).unwrap())
}

/// Where the blocks of files are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    Inline,
    Folder,
}

fn extents(folder: std::io::Result<ExtentFolder>) -> Result<Folder> {
    Ok(Folder { objects: Arc::new(folder?), name: "data".into() })
}

/// Makes a small volume in a world.
pub fn create_in(world: &CrashWorld, data: Data, options: Options) -> Result<Base> {
    let make = |_, label: &[u8]| extents(ExtentFolder::create(Arc::new(world.dir("data")), "v", 0o600, label));
    let folder = NewFolder { path: b"data".to_vec(), make: &make };
    Base::create_with(file(world), "volume", &small(), (data == Data::Folder).then_some(folder), options)
}

/// Opens the volume in a world, wherever its blocks are.
pub fn open_in(world: &CrashWorld, options: Options) -> Result<Base> {
    open_file(file(world), world, options)
}

/// As [`open_in`], with a file that does something else to the one of the world.
pub fn open_file(file: Arc<dyn BlockFile>, world: &CrashWorld, options: Options) -> Result<Base> {
    let access = if options.read_only { Access::Read } else { Access::Write };
    let find = |_, path: &[u8]| extents(ExtentFolder::open(Arc::new(world.dir(str_of(path))), "v", access));
    Base::open_with(file, "volume", &find, options)
}

fn str_of(path: &[u8]) -> &str {
    std::str::from_utf8(path).unwrap()
}

/// A small volume.
pub fn small() -> NewVolume {
    NewVolume { segment_len: Some(128 << 10), ..NewVolume::new(8 << 20) }
}

/// No thread, so that the same calls are made each time, and a checkpoint now and then.
pub fn options() -> Options {
    Options { background: false, log_bytes_max: Some(12 << 10), cache_bytes: 1 << 20, ..Options::default() }
}

/// What is in a base: keys with values, and blocks with the checksum of what is in them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    pub map: BTreeMap<Vec<u8>, Vec<u8>>,
    pub blocks: BTreeMap<u64, u32>,
}

/// All keys and values of a table.
pub fn scan_all(base: &dyn Table) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut map = BTreeMap::new();
    let mut last: Option<Vec<u8>> = None;
    base.scan(&[0], &[0xff; 4], &mut |key, value| {
        assert!(last.as_deref().is_none_or(|last| last < key), "ascending");
        last = Some(key.to_vec());
        map.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(map)
}

/// What an open base holds; blocks are read.
pub fn state_of(base: &Base) -> Result<State> {
    let mut state = State { map: scan_all(base)?, ..State::default() };
    let mut bytes = vec![0; BLOCK_LEN_BYTES];
    for block in base.allocated().iter().flat_map(Run::blocks) {
        base.read(block, &mut bytes)?;
        state.blocks.insert(block, crc32c::crc32c(&bytes));
    }
    Ok(state)
}

/// What a run of the script was told.
pub struct Told {
    /// What was there at first, and after each batch. One more than acknowledged if the last was not.
    pub states: Vec<State>,
    /// Batches that were acknowledged.
    pub acknowledged: usize,
    /// Batches that a sync was acknowledged for.
    pub synced: usize,
}

impl Told {
    /// Which of the states from the `least` one on `state` is, the last if several are.
    pub fn place(&self, state: &State, least: usize) -> Option<usize> {
        (least..self.states.len()).rev().find(|k| self.states[*k] == *state)
    }
}

/// A random batch, its blocks reserved and written, with the state after it.
pub fn random_batch(base: &dyn Extents, state: &State, rng: &mut Rng) -> Result<(Batch, State)> {
    let mut after = state.clone();
    let mut batch = Batch::default();
    for _ in 0..rng.below(5) {
        let key = format!("key {:02}", rng.below(30)).into_bytes();
        if rng.percent(25) {
            after.map.remove(&key);
            batch.writes.push((key, None));
        } else {
            let len = if rng.percent(10) { 3000 } else { 60 };
            let mut value = vec![0; rng.below(len) as usize];
            rng.fill(&mut value);
            after.map.insert(key.clone(), value.clone());
            batch.writes.push((key, Some(value)));
        }
    }
    if rng.percent(40) && !state.blocks.is_empty() {
        for _ in 0..1 + rng.below(4) {
            let Some(block) = after.blocks.keys().nth(rng.below(after.blocks.len() as u64) as usize).copied() else {
                break;
            };
            after.blocks.remove(&block);
            batch.freed.push(Run { start: block, count: 1 });
        }
    }
    if rng.percent(50) {
        let hint = rng.percent(50).then(|| state.blocks.keys().last().map_or(32, |last| last + 1));
        for run in base.reserve(1 + rng.below(4) as u32, hint, false)? {
            let mut bytes = vec![0; run.count as usize * BLOCK_LEN_BYTES];
            bytes.chunks_mut(64).for_each(|part| rng.fill(&mut part[..8]));
            base.write(run.start, &bytes)?;
            let sums: Vec<u32> = bytes.chunks(BLOCK_LEN_BYTES).map(crc32c::crc32c).collect();
            after.blocks.extend(run.blocks().zip(sums.iter().copied()));
            batch.allocated.push((run, sums));
        }
    }
    Ok((batch, after))
}

/// Does so many random things, until an error ends it.
pub fn run_script(base: &Base, start: State, steps: usize, rng: &mut Rng) -> Told {
    let mut told = Told { states: vec![start], acknowledged: 0, synced: 0 };
    for _ in 0..steps {
        let done = match rng.below(100) {
            0..12 => base.sync().map(|()| told.synced = told.acknowledged),
            12..16 => base.checkpoint().map(|()| told.synced = told.acknowledged),
            16..18 => base.gc().map(|()| told.synced = told.acknowledged),
            18..21 => base.reserve(2, None, false).map(|runs| base.release(&runs)),
            _ => random_batch(base, told.states.last().unwrap(), rng).and_then(|(batch, after)| {
                told.states.push(after);
                base.apply(batch)?;
                told.acknowledged += 1;
                Ok(())
            }),
        };
        if done.is_err() {
            break;
        }
    }
    told
}
