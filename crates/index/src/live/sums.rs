//! Adding up a live index: how much is below a directory, what is largest.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::ControlFlow;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;

use super::base::Facts;
use super::changes::LiveId;
use super::view::View;

/// How much something comes to. A file with several names counts once for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Links, devices, pipes, sockets.
    pub others: u64,
    /// What they hold together, in bytes.
    pub bytes: u64,
}

impl Sums {
    fn of(facts: &Facts) -> Sums {
        let mut sums = Sums { bytes: facts.size, ..Sums::default() };
        match facts.kind {
            Kind::File => sums.files = 1,
            Kind::Directory => sums.directories = 1,
            _ => sums.others = 1,
        }
        sums
    }

    fn add(&mut self, other: &Sums) {
        self.files += other.files;
        self.directories += other.directories;
        self.others += other.others;
        self.bytes += other.bytes;
    }
}

/// What [`du`] tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Du {
    /// Of all that is below the directory; of anything else, itself.
    pub total: Sums,
    /// Of each entry in it, by name.
    pub children: Vec<(LiveId, Sums)>,
}

/// How much is below a directory, and below each entry of it. `is_over` is asked now and then.
///
/// # Errors
/// `Corrupt` if the base is damaged; `Interrupted`.
pub fn du(view: &View, id: LiveId, is_over: &mut dyn FnMut() -> bool) -> Result<Du> {
    let mut du = Du { total: Sums::default(), children: Vec::new() };
    let depth_of_id = depth(&view.path(id)?);
    let mut looks = Looks::new(is_over);
    view.walk(id, &mut |at, path, facts| {
        looks.look()?;
        let (sums, depth) = (Sums::of(facts), depth(path) - depth_of_id);
        // The directory itself is not below itself.
        if depth > 0 || facts.kind != Kind::Directory {
            du.total.add(&sums);
        }
        match depth {
            0 => {}
            1 => du.children.push((at, sums)),
            _ => {
                if let Some((_, child)) = du.children.last_mut() {
                    child.add(&sums);
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(du)
}

/// The largest entries below a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Top {
    /// Files with their sizes in bytes, the largest first.
    pub files: Vec<(LiveId, u64)>,
    /// Directories with what is below each of them (itself not counted), those of most bytes first.
    pub directories: Vec<(LiveId, Sums)>,
}

/// The `count` largest files and directories below `dir`, which is not among them.
///
/// # Errors
/// As [`du`].
pub fn top(view: &View, dir: LiveId, count: usize, is_over: &mut dyn FnMut() -> bool) -> Result<Top> {
    let (mut files, mut directories) = (Largest::new(count), Largest::new(count));
    // The way down to the entry at hand, with what was met below.
    let mut way: Vec<(LiveId, Sums)> = Vec::new();
    let above = depth(&view.path(dir)?);
    let mut looks = Looks::new(is_over);
    view.walk(dir, &mut |id, path, facts| {
        looks.look()?;
        let below = depth(path) - above;
        up_to(&mut way, below, &mut directories);
        if let Some((_, above)) = way.last_mut() {
            above.add(&Sums::of(facts));
        }
        match facts.kind {
            Kind::Directory => way.push((id, Sums::default())),
            Kind::File => files.push(id, Sums::of(facts)),
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })?;
    up_to(&mut way, 1, &mut directories);
    let files = files.sorted().into_iter().map(|(id, sums)| (id, sums.bytes)).collect();
    Ok(Top { files, directories: directories.sorted() })
}

/// Leaves the directories that are deeper than that.
fn up_to(way: &mut Vec<(LiveId, Sums)>, depth: usize, directories: &mut Largest) {
    while way.len() > depth.max(1) {
        if let Some((id, sums)) = way.pop() {
            directories.push(id, sums);
            if let Some((_, above)) = way.last_mut() {
                above.add(&sums);
            }
        }
    }
}

/// The largest few.
struct Largest {
    count: usize,
    /// The smallest of them on top; of equal ones that with the higher number.
    heap: BinaryHeap<Reverse<(u64, Reverse<LiveId>)>>,
    /// Of those that are in it.
    sums: HashMap<LiveId, Sums>,
}

impl Largest {
    fn new(count: usize) -> Largest {
        Largest { count, heap: BinaryHeap::new(), sums: HashMap::new() }
    }

    fn push(&mut self, id: LiveId, sums: Sums) {
        self.heap.push(Reverse((sums.bytes, Reverse(id))));
        self.sums.insert(id, sums);
        if self.heap.len() > self.count
            && let Some(Reverse((_, Reverse(id)))) = self.heap.pop()
        {
            self.sums.remove(&id);
        }
    }

    fn sorted(mut self) -> Vec<(LiveId, Sums)> {
        let sorted = std::mem::take(&mut self.heap).into_sorted_vec().into_iter();
        sorted.map(|Reverse((_, Reverse(id)))| (id, self.sums.remove(&id).unwrap_or_default())).collect()
    }
}

/// Asks now and then whether it is to end.
struct Looks<'a> {
    is_over: &'a mut dyn FnMut() -> bool,
    entries: u32,
}

impl<'a> Looks<'a> {
    fn new(is_over: &'a mut dyn FnMut() -> bool) -> Looks<'a> {
        Looks { is_over, entries: 0 }
    }

    fn look(&mut self) -> Result<()> {
        self.entries = self.entries.wrapping_add(1);
        match self.entries.is_multiple_of(1 << 14) && (self.is_over)() {
            true => Err(FsError::new(ErrorKind::Interrupted)),
            false => Ok(()),
        }
    }
}

/// How many names a path has.
fn depth(path: &[u8]) -> usize {
    if path.is_empty() { 0 } else { 1 + path.iter().filter(|byte| **byte == b'/').count() }
}
