//! Nodes by the level of the tree that they are on, in memory and, when that is used up, in a scratch file.
//!
//! Entries come in the order of the tree, depth first; a segment numbers its nodes level by level. On each level both orders
//! agree. So a node's number is how many are above its level, which is known in the end, and how many came before it on its
//! level, which is known at once; and that is all that parents and children need.

use std::io::{self, BufReader, Read};

use adit_core::types::Kind;

use super::record::{Facts, array};
use super::scratch::{Place, ScratchFile};
use crate::layout::{pack_children, unpack_children};

/// What is read of a level at once, in bytes.
const READ_LEN: usize = 256 << 10;
/// Where the size is in a record: behind the parent and the length of the name.
const SIZE_AT: usize = 6;
/// Most memory that is used, in bytes: one stretch of a level has a length of 32 bits.
const LIMIT_MAX: usize = 1 << 30;
/// Least memory that is used, in bytes: the last record of each level stays, whatever its name.
const LIMIT_MIN: usize = 512 << 10;

/// A node of a level.
pub(crate) struct LevelNode {
    /// How many nodes on the level above are before its directory.
    pub parent: u32,
    /// Of a directory, `size` has how many nodes on the level below are before its first child, and how many children it has.
    pub facts: Facts,
    pub name: Vec<u8>,
}

#[derive(Default)]
struct Level {
    nodes: u32,
    /// Where the stretches are that went to the file, and how long they are.
    stretches: Vec<(u64, u32)>,
    /// What came after them.
    tail: Vec<u8>,
    /// Where the last record begins in `tail`, if it is a directory: more children of it may come.
    last_dir: Option<usize>,
}

/// All levels. The last record of each is kept in memory, where its children are counted.
pub(crate) struct Levels {
    levels: Vec<Level>,
    buffered: usize,
    limit: usize,
    place: Place,
    file: Option<ScratchFile>,
    file_len: u64,
}

impl Levels {
    /// Takes about twice `limit` bytes of memory, because buffers double as they grow; at least [`LIMIT_MIN`]. Its file lies in `place`.
    pub fn new(place: Place, limit: usize) -> Levels {
        let limit = limit.clamp(LIMIT_MIN, LIMIT_MAX);
        Levels { levels: Vec::new(), buffered: 0, limit, place, file: None, file_len: 0 }
    }

    /// How many nodes each level has.
    pub fn counts(&self) -> Vec<u32> {
        self.levels.iter().map(|level| level.nodes).collect()
    }

    /// Appends a node on the level `depth`, in the last directory of the level above.
    pub fn push(&mut self, depth: usize, name: &[u8], facts: &Facts) -> io::Result<()> {
        if depth == self.levels.len() {
            self.levels.push(Level::default());
        }
        self.settle(depth);
        let parent = depth.checked_sub(1).map_or(0, |above| self.levels[above].nodes - 1);
        let below = self.levels.get(depth + 1).map_or(0, |level| level.nodes);
        let level = &mut self.levels[depth];
        let start = level.tail.len();
        let mut facts = *facts;
        level.last_dir = None;
        if facts.mode.kind() == Kind::Directory {
            facts.size = pack_children(below, 0);
            level.last_dir = Some(start);
        }
        level.tail.extend(parent.to_le_bytes());
        level.tail.extend((name.len() as u16).to_le_bytes());
        facts.write(&mut level.tail);
        level.tail.extend(name);
        level.nodes += 1;
        self.buffered += level.tail.len() - start;
        if self.buffered > self.limit {
            self.spill()?;
        }
        Ok(())
    }

    /// No more nodes come.
    pub fn end(&mut self) {
        (0..self.levels.len()).for_each(|depth| self.settle(depth));
    }

    /// Notes how many children the last node of a level has, if it is a directory: another one comes.
    fn settle(&mut self, depth: usize) {
        let below = self.levels.get(depth + 1).map_or(0, |level| level.nodes);
        let level = &mut self.levels[depth];
        let Some(start) = level.last_dir.take() else { return };
        let size = level.tail[start + SIZE_AT..].first_chunk_mut::<8>().expect("a record begins here");
        let (first, _) = unpack_children(u64::from_le_bytes(*size));
        *size = pack_children(first, below - first).to_le_bytes();
    }

    /// Writes to the file what is finished, of those levels that have much of it: that is at least half, in long stretches.
    fn spill(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => empty.insert(self.place.file()?),
        };
        let enough = self.buffered / (2 * self.levels.len());
        self.buffered = 0;
        for level in &mut self.levels {
            let finished = level.last_dir.unwrap_or(level.tail.len());
            if finished > 0 && finished >= enough {
                file.write_all_at(&level.tail[..finished], self.file_len)?;
                level.stretches.push((self.file_len, finished as u32));
                self.file_len += finished as u64;
                level.tail = level.tail.split_off(finished);
                level.last_dir = level.last_dir.map(|_| 0);
            }
            self.buffered += level.tail.len();
        }
        Ok(())
    }

    /// The nodes of a level, in order.
    pub fn nodes(&self, depth: usize) -> LevelReader<'_> {
        let level = &self.levels[depth];
        let stretches = Stretches { file: self.file.as_ref(), left: &level.stretches, done: 0, tail: &level.tail };
        LevelReader { input: BufReader::with_capacity(READ_LEN, stretches), left: level.nodes }
    }
}

/// The nodes of a level that are still to come.
pub(crate) struct LevelReader<'a> {
    input: BufReader<Stretches<'a>>,
    left: u32,
}

impl LevelReader<'_> {
    /// Reads the next node into `node`; false if there is none.
    pub fn next(&mut self, node: &mut LevelNode) -> io::Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        node.parent = u32::from_le_bytes(array(&mut self.input)?);
        let len = u16::from_le_bytes(array(&mut self.input)?);
        node.facts = Facts::read(&mut self.input)?;
        node.name.resize(len.into(), 0);
        self.input.read_exact(&mut node.name)?;
        Ok(true)
    }
}

/// The bytes of a level: its stretches of the file, then its tail.
struct Stretches<'a> {
    file: Option<&'a ScratchFile>,
    left: &'a [(u64, u32)],
    /// How much of the first stretch was read.
    done: u32,
    tail: &'a [u8],
}

impl Read for Stretches<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let (Some(file), Some((&(at, len), rest))) = (self.file, self.left.split_first()) else {
            return self.tail.read(buf);
        };
        let wanted = buf.len().min((len - self.done) as usize);
        file.read_exact_at(&mut buf[..wanted], at + u64::from(self.done))?;
        self.done += wanted as u32;
        if self.done == len {
            (self.left, self.done) = (rest, 0);
        }
        Ok(wanted)
    }
}
