//! The check of a whole volume: pages, tree, ownership of blocks, content; and what of it can be repaired.
//!
//! Everything is compared with something else that was written: pages and blocks with their checksums, the tree with its own
//! rules ([`Tree::check`]), the blocks that it refers to with those that are not free. A repair mends what contradicts itself
//! ([`Tree::mend`]), checks again until there is nothing left that it can mend, and gives back blocks that belong to nobody.
//! It drops nothing that somebody has stored, and changes no snapshot. Memory does not grow with the volume. The volume must
//! not be in use.

use std::collections::HashSet;
use std::ops::ControlFlow;

use adit_core::{ErrorKind, Result};

use crate::format::keys::{self, Id, Key, Parts, space};
use crate::format::records::{self, WINDOW_LEN_BLOCKS, Window};
use crate::table::{Allocation, BLOCK_LEN_BYTES};
use crate::tree::verify::{Checked, Fault, Finding, MEMORY_DEFAULT_BYTES};
use crate::tree::{SnapshotInfo, Source, Tree};
use crate::volume::Volume;

/// Most problems that are told one by one.
const PROBLEMS_MAX: usize = 1000;
/// Versions of windows that are read at once.
const WINDOWS_AT_ONCE: usize = 256;
/// Checks of a repair: each mends some thousands of faults, and those that the ones before hid.
const ROUNDS_MAX: usize = 1000;

/// How thoroughly to look.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether to read what files hold.
    pub contents: bool,
    /// Whether to repair what can be.
    pub repair: bool,
}

/// Kinds of problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProblemKind {
    /// One of the two copies of the superblock is damaged.
    DamagedSuperblock,
    /// A page of the metadata does not have its checksum.
    DamagedPage,
    /// The tree breaks a rule.
    Tree,
    /// A record of the metadata cannot be read.
    DamagedRecord,
    /// A block of a file does not have its checksum, or cannot be read.
    DamagedContent,
    /// Blocks that are not free belong to nobody.
    LostBlocks,
    /// Blocks that a file refers to are free.
    FreeBlocks,
    /// A block belongs to several files, or to several places of one.
    SharedBlocks,
    /// An entry leads to nothing.
    DanglingEntry,
    /// An entry says that something is of another kind than it is.
    EntryKind,
    /// An entry is not found by its name, or lies in what is no directory.
    MisplacedEntry,
    /// Nothing leads to an inode, or its record is gone.
    Unreachable,
    /// A directory has several names.
    SeveralParents,
    /// Directories hold each other.
    DirectoryLoop,
    /// An inode counts another number of links than it has.
    LinkCount,
    /// An inode does not know its names: a directory, where it is.
    Names,
    /// Another number of entries, blocks or inodes is counted than there are.
    Accounting,
    /// What is noted as to be dropped is not, or the reverse.
    Orphans,
    /// Extended attributes that are not told, or that nobody has.
    Attributes,
    /// The list of what a snapshot or branch wrote is not what it wrote, or there is something that nobody sees.
    TouchedIndex,
    /// There is more than can be told.
    More,
}

impl ProblemKind {
    /// The word in `--json` output.
    pub fn as_str(self) -> &'static str {
        match self {
            ProblemKind::DamagedSuperblock => "damaged-superblock",
            ProblemKind::DamagedPage => "damaged-page",
            ProblemKind::Tree => "tree",
            ProblemKind::DamagedRecord => "damaged-record",
            ProblemKind::DamagedContent => "damaged-content",
            ProblemKind::LostBlocks => "lost-blocks",
            ProblemKind::FreeBlocks => "free-blocks",
            ProblemKind::SharedBlocks => "shared-blocks",
            ProblemKind::DanglingEntry => "dangling-entry",
            ProblemKind::EntryKind => "entry-kind",
            ProblemKind::MisplacedEntry => "misplaced-entry",
            ProblemKind::Unreachable => "unreachable",
            ProblemKind::SeveralParents => "several-parents",
            ProblemKind::DirectoryLoop => "directory-loop",
            ProblemKind::LinkCount => "link-count",
            ProblemKind::Names => "names",
            ProblemKind::Accounting => "accounting",
            ProblemKind::Orphans => "orphans",
            ProblemKind::Attributes => "attributes",
            ProblemKind::TouchedIndex => "touched-index",
            ProblemKind::More => "more",
        }
    }

    fn of(fault: &Fault) -> ProblemKind {
        match fault {
            Fault::BadKey(_) | Fault::Damaged { .. } => ProblemKind::DamagedRecord,
            Fault::NoOwner { .. } | Fault::Root { .. } | Fault::BehindEnd { .. } | Fault::NoContent { .. } => {
                ProblemKind::Tree
            }
            Fault::Unseen { .. } | Fault::NotListed { .. } | Fault::NeedlessNote(_) => ProblemKind::TouchedIndex,
            Fault::Numbers { .. } | Fault::EntryCount { .. } | Fault::BlockCount { .. } => ProblemKind::Accounting,
            Fault::FreeBlocks { .. } => ProblemKind::FreeBlocks,
            Fault::SharedBlock { .. } => ProblemKind::SharedBlocks,
            Fault::DanglingEntry { .. } => ProblemKind::DanglingEntry,
            Fault::EntryKind { .. } => ProblemKind::EntryKind,
            Fault::EntryOfFile { .. } | Fault::HiddenEntry { .. } => ProblemKind::MisplacedEntry,
            Fault::FurtherParent { .. } => ProblemKind::SeveralParents,
            Fault::Loop { .. } => ProblemKind::DirectoryLoop,
            Fault::Unreachable { .. } | Fault::Headless { .. } => ProblemKind::Unreachable,
            Fault::LinkCount { .. } => ProblemKind::LinkCount,
            Fault::FirstName { .. } | Fault::NameNotKnown { .. } | Fault::NeedlessName { .. } => ProblemKind::Names,
            Fault::NeedlessOrphan { .. } | Fault::CutNotNoted { .. } => ProblemKind::Orphans,
            Fault::XattrFlag { .. } | Fault::StrayXattrs { .. } => ProblemKind::Attributes,
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What it is.
    pub kind: ProblemKind,
    /// Where, if it is about one path.
    pub path: Option<String>,
    /// The snapshot or branch in which it is, or has that path.
    pub part: Option<String>,
    /// More, in words.
    pub detail: String,
    /// Whether a repair may mend it. After one: whether it did.
    pub is_repairable: bool,
}

impl Problem {
    fn new(kind: ProblemKind, detail: impl std::fmt::Display) -> Problem {
        Problem { kind, path: None, part: None, detail: detail.to_string(), is_repairable: false }
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong, after the repair.
    pub problems: Vec<Problem>,
    /// What was repaired.
    pub repaired: Vec<Problem>,
    /// Inodes, each version counted.
    pub inodes: u64,
    /// Blocks that files refer to.
    pub blocks: u64,
    /// Bytes of content that were read.
    pub bytes: u64,
}

/// Adds one, or says once that there are more.
fn push(problems: &mut Vec<Problem>, problem: Problem) {
    match problems.len() {
        PROBLEMS_MAX => {
            let more = format!("there are more than {PROBLEMS_MAX}; the others are not told");
            problems.push(Problem::new(ProblemKind::More, more));
        }
        count if count < PROBLEMS_MAX => problems.push(problem),
        _ => {}
    }
}

/// How far a check is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Windows of files that were looked at.
    pub windows: u64,
    /// Bytes of content that were read.
    pub bytes: u64,
}

/// Checks `volume`, which is not in use. What was repaired is durable when this returns.
///
/// # Errors
/// What keeps the check from going on; damage is in the report.
pub fn check(volume: &Volume, options: Options, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
    let mut report = Report::default();
    for page in volume.base().damaged_pages() {
        let detail = format!("page {page} of the metadata does not have its checksum");
        push(&mut report.problems, Problem::new(ProblemKind::DamagedPage, detail));
    }
    // With pages missing, what is left contradicts itself without being wrong.
    let repair = options.repair && report.problems.is_empty();
    superblocks(volume, options.repair, &mut report);
    let options = Options { repair, ..options };
    check_tree(volume.tree(), volume.base(), options, MEMORY_DEFAULT_BYTES, &mut report, progress)?;
    if options.repair {
        volume.sync()?;
    }
    Ok(report)
}

/// Looks at both copies of the superblock. Whoever opens a volume to change it has written them again.
fn superblocks(volume: &Volume, repair: bool, report: &mut Report) {
    let (before, now) = volume.base().damaged_superblocks();
    let problem = |offset: &u64| {
        let detail = format!("the copy of the superblock at byte {offset} of the file is damaged");
        Problem { is_repairable: true, ..Problem::new(ProblemKind::DamagedSuperblock, detail) }
    };
    for offset in &now {
        push(&mut report.problems, Problem { is_repairable: !repair, ..problem(offset) });
    }
    for offset in before.iter().filter(|offset| repair && !now.contains(offset)) {
        let mended = problem(offset);
        let detail = format!("{}: written again from the other one", mended.detail);
        push(&mut report.repaired, Problem { detail, ..mended });
    }
}

/// As [`check`], of what lies above the pages, with about `memory_bytes` of memory for what has to be joined.
///
/// # Errors
/// As [`check`].
pub fn check_tree(
    tree: &Tree,
    allocation: &dyn Allocation,
    options: Options,
    memory_bytes: usize,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let checked = match options.repair {
        true => repair(tree, allocation, memory_bytes, report),
        false => tree.check(allocation, memory_bytes),
    };
    let checked = match checked {
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            let detail = format!("it cannot be read as a whole: {e}");
            push(&mut report.problems, Problem::new(ProblemKind::Tree, detail));
            return Ok(());
        }
        checked => checked?,
    };
    (report.inodes, report.blocks) = (checked.inodes, checked.blocks);
    // What is left after a repair it could not mend.
    let told = |problem: Problem| Problem { is_repairable: problem.is_repairable && !options.repair, ..problem };
    let parts = Named::of(tree);
    for finding in &checked.findings {
        push(&mut report.problems, told(parts.problem(finding)));
    }
    if checked.omitted > 0 {
        let more = format!("there are {} more like these", checked.omitted);
        let problem = Problem { is_repairable: true, ..Problem::new(ProblemKind::More, more) };
        push(&mut report.problems, told(problem));
    }
    if checked.lost_blocks > 0 {
        let problem = Problem { is_repairable: checked.is_whole(), ..lost_blocks(&checked) };
        push(&mut report.problems, told(problem));
    }
    if options.contents {
        contents(tree, report, progress)?;
    }
    Ok(())
}

fn lost_blocks(checked: &Checked) -> Problem {
    let detail = format!("{} blocks are not free and belong to nobody", checked.lost_blocks);
    Problem::new(ProblemKind::LostBlocks, detail)
}

/// Mends until nothing more can be mended. What the last check found.
fn repair(tree: &Tree, allocation: &dyn Allocation, memory_bytes: usize, report: &mut Report) -> Result<Checked> {
    let mut is_cleared = false;
    let mut refused = None;
    for _ in 0..ROUNDS_MAX {
        let checked = tree.check(allocation, memory_bytes)?;
        if mend_all(tree, allocation, &checked, report, &mut refused)? {
            tree.table.sync()?;
            continue;
        }
        if let Some(problem) = refused.take() {
            push(&mut report.problems, problem);
            return Ok(checked);
        }
        if !checked.is_whole() {
            return Ok(checked);
        }
        // Only now: what was noted by mistake as to be dropped is not any more.
        if !is_cleared && (checked.has_orphans || !tree.is_collected()) {
            is_cleared = true;
            tree.reap_unused()?;
            match tree.collect() {
                Err(e) if e.kind() == ErrorKind::Corrupt => tracing::warn!("what was deleted still takes space: {e}"),
                collected => collected?,
            }
            continue;
        }
        if checked.lost.is_empty() {
            return Ok(checked);
        }
        tree.free_lost(&checked.lost)?;
        tree.table.sync()?;
        push(&mut report.repaired, Problem { is_repairable: true, ..lost_blocks(&checked) });
    }
    tree.check(allocation, memory_bytes)
}

/// Mends what one check found; whether anything was. `refused` is the last that there was no space for.
fn mend_all(
    tree: &Tree,
    allocation: &dyn Allocation,
    checked: &Checked,
    report: &mut Report,
    refused: &mut Option<Problem>,
) -> Result<bool> {
    *refused = None;
    let parts = Named::of(tree);
    // Blocks first: until they are the files' own again, what is freed may be taken from under them.
    let is_first = |finding: &&Finding| matches!(finding.fault, Fault::FreeBlocks { .. });
    let (first, others) = (checked.findings.iter().filter(is_first), checked.findings.iter().filter(|f| !is_first(f)));
    let (mut mended, mut last_unseen) = (false, None);
    for finding in first.chain(others).filter(|finding| finding.is_mendable()) {
        if let Fault::Unseen { key, .. } = &finding.fault {
            // What goes with this may be another file's, or be needed by what cannot be read. And one version of a key at a
            // time: without it, another one may be seen.
            if !checked.is_whole() || last_unseen == Some(key) {
                continue;
            }
            last_unseen = Some(key);
        }
        let problem = parts.problem(finding);
        match tree.mend(allocation, finding) {
            Ok(Some(done)) => {
                mended = true;
                let detail = format!("{}: {done}", problem.detail);
                push(&mut report.repaired, Problem { detail, ..problem });
            }
            Ok(None) => {}
            // The others may need less, and what was done is told.
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                let detail = format!("{}: not mended: {e}", problem.detail);
                *refused = Some(Problem { detail, is_repairable: false, ..problem });
            }
            Err(e) => return Err(e),
        }
    }
    Ok(mended)
}

/// What findings are named by.
struct Named<'t> {
    tree: &'t Tree,
    all: Vec<SnapshotInfo>,
}

impl<'t> Named<'t> {
    fn of(tree: &'t Tree) -> Self {
        Named { tree, all: tree.snapshots() }
    }

    fn source(info: &SnapshotInfo) -> Source {
        if info.is_branch { Source::Branch(info.name.clone()) } else { Source::Snapshot(info.id) }
    }

    /// A path of an inode, and the first snapshot or branch in which it has one.
    fn path_of(&self, ino: u64) -> Option<(String, String)> {
        let path_in = |info| self.tree.view(&Self::source(info)).and_then(|view| view.path_of(ino)).ok().flatten();
        self.all.iter().find_map(|info| Some((path_in(info)?, info.name.clone())))
    }

    /// A finding as it is told.
    fn problem(&self, finding: &Finding) -> Problem {
        let fault = &finding.fault;
        let info = finding.part.and_then(|id| self.all.iter().find(|info| info.id == id));
        let (place, ino) = fault.subject();
        let (path, part) = match info {
            Some(info) => {
                let path = self.tree.view(&Self::source(info)).and_then(|view| match (place, ino) {
                    (Some(place), _) => {
                        Ok(view.path_to(place)?.map(|path| String::from_utf8_lossy(&path).into_owned()))
                    }
                    (None, Some(ino)) => view.path_of(ino),
                    (None, None) => Ok(None),
                });
                // Where it leads nowhere, the numbers of the inodes tell what it is about.
                (path.ok().flatten(), Some(info.name.clone()))
            }
            None => ino.and_then(|ino| self.path_of(ino)).unzip(),
        };
        let advice = if finding.is_frozen {
            "; nothing is changed in a snapshot: delete it, or make a branch of it and repair that"
        } else {
            ""
        };
        let is_repairable = finding.is_mendable();
        Problem { kind: ProblemKind::of(fault), path, part, detail: format!("{fault}{advice}"), is_repairable }
    }
}

/// A version of a window, with the inode and its number.
type Found = (u64, u64, Id, Window);

/// Reads each block that a file refers to, once.
fn contents(tree: &Tree, report: &mut Report, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    let parts = Named::of(tree);
    // A block belongs to one window only, of which several versions may have it; with its sum, for one of them may be wrong.
    let (mut read, mut told) = (HashSet::new(), HashSet::new());
    let (mut block, mut windows, mut last) = (vec![0; BLOCK_LEN_BYTES], 0, (0, 0));
    let mut start = vec![space::WINDOW];
    loop {
        let (batch, next) = some_windows(tree, &start)?;
        for (ino, index, id, window) in batch {
            windows += 1;
            if (ino, index) != last {
                read.clear();
            }
            if ino != last.0 {
                told.clear();
            }
            last = (ino, index);
            for (at, place) in window.iter() {
                if !read.insert((place.at, place.sum)) {
                    continue;
                }
                let why = match tree.extents.read(place.at, &mut block) {
                    Ok(()) if crc32c::crc32c(&block) == place.sum => {
                        report.bytes += BLOCK_LEN_BYTES as u64;
                        continue;
                    }
                    Ok(()) => format!("block {} does not have its checksum", place.at),
                    Err(e) => format!("block {} cannot be read: {e}", place.at),
                };
                // One for each file is enough to know that it is damaged.
                if told.insert(id) {
                    let first = u128::from(index) * WINDOW_LEN_BLOCKS as u128;
                    let offset = (first + at as u128) * BLOCK_LEN_BYTES as u128;
                    push(&mut report.problems, damaged(&parts, ino, offset, &why));
                }
            }
            progress(Progress { windows, bytes: report.bytes });
        }
        match next {
            Some(next) => start = next,
            None => return Ok(()),
        }
    }
}

/// Versions of windows from the key `start` on, and where to go on. Damaged ones are the tree's to tell.
fn some_windows(tree: &Tree, start: &[u8]) -> Result<(Vec<Found>, Option<Vec<u8>>)> {
    let (mut found, mut next) = (Vec::new(), None);
    tree.table.scan(start, &[space::WINDOW + 1], &mut |bytes, value| {
        if found.len() == WINDOWS_AT_ONCE {
            next = Some(bytes.to_vec());
            return ControlFlow::Break(());
        }
        let key = keys::split(bytes).and_then(|(logical, id)| Some((Key::from_logical(logical)?, id)));
        if let Some((key, id)) = key
            && let Some(Parts::Window(ino, index)) = key.parts()
            && !records::is_tombstone(value)
            && let Ok(window) = Window::decode(value)
        {
            found.push((ino, index, id, window));
        }
        ControlFlow::Continue(())
    })?;
    Ok((found, next))
}

/// What is wrong at `offset` of a file, named by a path that it has in a snapshot or branch.
fn damaged(parts: &Named<'_>, ino: u64, offset: u128, why: &str) -> Problem {
    let (path, part) = parts.path_of(ino).unzip();
    let detail = format!("inode {ino}, from byte {offset} on: {why}");
    Problem { path, part, ..Problem::new(ProblemKind::DamagedContent, detail) }
}
