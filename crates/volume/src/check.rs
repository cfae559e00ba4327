//! The check of a whole volume: pages, tree, ownership of blocks, content; and what of it can be repaired.
//!
//! Everything is compared with something else that was written: pages and blocks with their checksums, the tree with its own
//! rules ([`Tree::check`]), the blocks that it refers to with those that are not free. A repair mends what contradicts itself
//! ([`Tree::mend`]), checks again until there is nothing left that it can mend, and gives back blocks that belong to nobody.
//! It drops nothing that somebody has stored, and changes no snapshot. Memory does not grow with the volume. The volume must
//! not be in use.

mod contents;
mod repair;

use adit_core::{ErrorKind, FsError, Result};

use crate::format::records::Block;
use crate::table::Allocation;
use crate::tree::verify::{Fault, Finding, MEMORY_DEFAULT_BYTES};
use crate::tree::{SnapshotInfo, Source, Tree};
use crate::volume::Volume;

/// Most problems that are told one by one.
const PROBLEMS_MAX: usize = 1000;

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
    /// Blocks seem younger than they are: a branch that overwrites them would free what a snapshot or another branch has.
    BlockBirth,
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
            ProblemKind::BlockBirth => "block-birth",
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
            Fault::LateBirth { .. } => ProblemKind::BlockBirth,
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
    /// Where, if it is about one path; bytes that are not UTF-8 are replaced.
    pub path: Option<String>,
    /// All bytes of that, if there are some that are not UTF-8.
    pub path_raw: Option<Vec<u8>>,
    /// The snapshot or branch in which it is, or has that path.
    pub part: Option<String>,
    /// Of damaged content, the other snapshots and branches that have it as well.
    pub also_in: Vec<String>,
    /// More, in words.
    pub detail: String,
    /// Whether a repair may mend it. After one: whether it did.
    pub is_repairable: bool,
}

impl Problem {
    fn new(kind: ProblemKind, detail: impl std::fmt::Display) -> Problem {
        Problem {
            kind,
            path: None,
            path_raw: None,
            part: None,
            also_in: Vec::new(),
            detail: detail.to_string(),
            is_repairable: false,
        }
    }

    fn at(self, path: Option<Vec<u8>>, part: Option<String>) -> Problem {
        let shown = path.as_deref().map(|path| String::from_utf8_lossy(path).into_owned());
        Problem { path: shown, path_raw: path.filter(|path| std::str::from_utf8(path).is_err()), part, ..self }
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

/// A check, or a repair, that an error ended.
#[derive(Debug)]
pub struct Unfinished {
    /// The error.
    pub error: FsError,
    /// What was found and repaired before it. What was repaired is durable, unless its `detail` says otherwise.
    pub report: Report,
}

impl std::fmt::Display for Unfinished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Unfinished {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
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
/// What keeps the check from going on, with what it did before; damage is in the report.
pub fn check(
    volume: &Volume,
    options: Options,
    progress: &mut dyn FnMut(Progress),
) -> std::result::Result<Report, Unfinished> {
    let mut report = Report::default();
    match check_into(volume, options, &mut report, progress) {
        Ok(()) => Ok(report),
        Err(error) => Err(Unfinished { error, report }),
    }
}

fn check_into(
    volume: &Volume,
    options: Options,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    for page in volume.base().damaged_pages() {
        let detail = format!("page {page} of the metadata does not have its checksum");
        push(&mut report.problems, Problem::new(ProblemKind::DamagedPage, detail));
    }
    // With pages missing, what is left contradicts itself without being wrong.
    let repair = options.repair && report.problems.is_empty();
    superblocks(volume, options.repair, report);
    let options = Options { repair, ..options };
    check_tree(volume.tree(), volume.base(), options, MEMORY_DEFAULT_BYTES, report, progress)?;
    if options.repair { volume.sync() } else { Ok(()) }
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
/// What keeps the check from going on. What it did before is in `report`.
pub fn check_tree(
    tree: &Tree,
    allocation: &dyn Allocation,
    options: Options,
    memory_bytes: usize,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let checked = match options.repair {
        true => repair::repair(tree, allocation, memory_bytes, report),
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
        let more = format!("there are at least {} more like these", checked.omitted);
        let problem = Problem { is_repairable: true, ..Problem::new(ProblemKind::More, more) };
        push(&mut report.problems, told(problem));
    }
    if checked.lost_blocks > 0 {
        let problem = Problem { is_repairable: checked.is_whole(), ..lost_blocks(checked.lost_blocks) };
        push(&mut report.problems, told(problem));
    }
    if options.contents {
        contents::check(tree, report, progress)?;
    }
    Ok(())
}

fn lost_blocks(count: u64) -> Problem {
    let detail = format!("{count} blocks are not free and belong to nobody");
    Problem::new(ProblemKind::LostBlocks, detail)
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
    fn path_of(&self, ino: u64) -> Option<(Vec<u8>, String)> {
        self.all.iter().find_map(|info| Some((self.path_in(info, ino)?, info.name.clone())))
    }

    fn path_in(&self, info: &SnapshotInfo, ino: u64) -> Option<Vec<u8>> {
        self.tree.view(&Self::source(info)).and_then(|view| view.path_bytes_of(ino)).ok().flatten()
    }

    /// The snapshots and branches in which a block is at a place of a file.
    fn with_block(&self, ino: u64, window: u64, block: (usize, Block)) -> impl Iterator<Item = &SnapshotInfo> {
        let has = move |info: &&SnapshotInfo| {
            let found = self.tree.view(&Self::source(info)).and_then(|view| view.window(ino, window));
            found.is_ok_and(|(_, found)| found.is_some_and(|found| found.iter().any(|have| have == block)))
        };
        self.all.iter().filter(has)
    }

    /// A finding as it is told.
    fn problem(&self, finding: &Finding) -> Problem {
        let fault = &finding.fault;
        let info = finding.part.and_then(|id| self.all.iter().find(|info| info.id == id));
        let (place, ino) = fault.subject();
        let (path, part) = match info {
            Some(info) => {
                let path = self.tree.view(&Self::source(info)).and_then(|view| match (place, ino) {
                    (Some(place), _) => view.path_to(place),
                    (None, Some(ino)) => view.path_bytes_of(ino),
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
        let told = Problem::new(ProblemKind::of(fault), format!("{fault}{advice}"));
        Problem { is_repairable, ..told.at(path, part) }
    }
}
