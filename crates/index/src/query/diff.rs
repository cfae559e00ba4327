//! What is different between two trees: [`Diff`].
//!
//! Both trees are walked at once, directory by directory; names are in the same order in both, so each is read once. The walk goes
//! down before it goes on, so changes come in the order of paths. On each level of a tree it passes nodes in the order of their numbers, so
//! a place in the names is kept for each level, and goes forwards only.

use std::cmp::Ordering;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use adit_core::error::Result;
use adit_core::types::Kind;

use super::find::Query;
use super::known::Joined;
use super::levels;
use super::renames;
use super::view::{Cursor, View};
use crate::segment::{Columns, NodeId, Segment};

/// So many directories are looked at between two looks at whether to stop.
const STEP: u32 = 1 << 12;

/// What decides whether a file that is in both trees was changed. A symbolic link was, if its extra bytes are others where both
/// have some; everything else by size and time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Content {
    /// The hash of its content where both have one; else size and time. For trees whose hashes are of the same kind.
    #[default]
    Best,
    /// Size and time of the last change.
    SizeAndTime,
    /// Size alone.
    Size,
}

/// Compares two trees.
#[derive(Clone, Debug)]
pub struct Diff {
    content: Content,
    perm: bool,
    renames: bool,
    time_step_ns: i64,
    query: Query,
}

/// What is other than it was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct What {
    /// It is of another kind: a directory in place of a file, say.
    pub kind: bool,
    /// Both have a hash, and it is another one; or a link's extra bytes are others.
    pub hash: bool,
    /// The size. Directories have none.
    pub size: bool,
    /// The time of the last change.
    pub mtime: bool,
    /// Permission bits.
    pub perm: bool,
}

/// A change from the first tree to the second. The numbers are those of the trees that they are in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// It is in the second tree only.
    Added(NodeId),
    /// It is in the first tree only.
    Removed(NodeId),
    /// It is in both, and not the same.
    Changed {
        /// In the first tree.
        before: NodeId,
        /// In the second.
        after: NodeId,
        /// What is different.
        what: What,
    },
    /// A file of the first tree that is there no more, and one of the second that was not there, of the same size and hash.
    Renamed {
        /// In the first tree.
        before: NodeId,
        /// In the second.
        after: NodeId,
        /// What is different beside the path.
        what: What,
    },
}

/// How much is different.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiffSummary {
    /// Only in the second tree.
    pub added: u64,
    /// Only in the first tree.
    pub removed: u64,
    /// In both, and not the same.
    pub changed: u64,
    /// In both under different paths.
    pub renamed: u64,
    /// In both, and the same as far as was asked. The root is not counted.
    pub same: u64,
}

impl Default for Diff {
    fn default() -> Self {
        Self::new()
    }
}

impl Diff {
    /// By content as [`Content::Best`] says, without permissions, with renames.
    pub fn new() -> Diff {
        Diff { content: Content::Best, perm: false, renames: true, time_step_ns: 1, query: Query::new() }
    }

    /// What decides whether a file was changed.
    #[must_use]
    pub fn content(mut self, content: Content) -> Diff {
        self.content = content;
        self
    }

    /// Whether other permissions are a change.
    #[must_use]
    pub fn perm(mut self, yes: bool) -> Diff {
        self.perm = yes;
        self
    }

    /// Whether a file that is added is looked for among those that are removed: by size and hash; empty ones are not. Where several are
    /// equal, those with the same last name belong together, then the first with the first. Without, a change is told as soon as it is
    /// met; with, all changes are kept until the end, 16 bytes for each.
    #[must_use]
    pub fn renames(mut self, yes: bool) -> Diff {
        self.renames = yes;
        self
    }

    /// How exact times are compared, in nanoseconds: two that are rounded down to the same multiple of this are the same. For trees of which one
    /// keeps times less exactly. 1 unless it is said, and at least.
    #[must_use]
    pub fn time_step_ns(mut self, step: u32) -> Diff {
        self.time_step_ns = i64::from(step.max(1));
        self
    }

    /// As [`Query::stop_when`].
    #[must_use]
    pub fn stop_when(mut self, stop: Arc<AtomicBool>) -> Diff {
        self.query = self.query.stop_when(stop);
        self
    }

    /// Gives each change to `sink` in the order of paths, name by name: of a directory before those in it; of a rename by the path that it has
    /// now. All that is in a directory that was added or removed is told too. [`ControlFlow::Break`] ends it; the summary then is of what was given.
    ///
    /// # Errors
    /// `Corrupt` where something is wrong with one of them; `Interrupted` as [`Query::stop_when`] says.
    pub fn run(
        &self,
        before: &Segment,
        after: &Segment,
        sink: &mut dyn FnMut(Change) -> ControlFlow<()>,
    ) -> Result<DiffSummary> {
        self.give(before, after, None, sink)
    }

    /// As [`Diff::run`], where it is known already which nodes have the same path.
    ///
    /// # Errors
    /// As [`Diff::run`].
    pub fn run_known(
        &self,
        before: &Segment,
        after: &Segment,
        joined: &Joined,
        sink: &mut dyn FnMut(Change) -> ControlFlow<()>,
    ) -> Result<DiffSummary> {
        self.give(before, after, Some(joined), sink)
    }

    fn give(
        &self,
        before: &Segment,
        after: &Segment,
        joined: Option<&Joined>,
        sink: &mut dyn FnMut(Change) -> ControlFlow<()>,
    ) -> Result<DiffSummary> {
        let (a, b) = (before.columns()?, after.columns()?);
        let (views_a, views_b) = (View::new(before, &(0..before.len()))?, View::new(after, &(0..after.len()))?);
        let (side_a, side_b) = (Side::new(a, &views_a)?, Side::new(b, &views_b)?);
        let mut walk = Walk { diff: self, joined, a: side_a, b: side_b, same: 0, stack: Vec::new() };
        let mut summary = DiffSummary::default();
        let mut give = |change: Change| {
            match change {
                Change::Added(_) => summary.added += 1,
                Change::Removed(_) => summary.removed += 1,
                Change::Changed { .. } => summary.changed += 1,
                Change::Renamed { .. } => summary.renamed += 1,
            }
            sink(change)
        };
        if self.renames {
            let mut changes = Vec::new();
            walk.run(&mut |change| {
                changes.push(change);
                ControlFlow::Continue(())
            })?;
            let what = |old, new| Ok(compare(&a, &b, old, new, self.time_step_ns)?.0);
            let changes = renames::joined(&a, &b, changes, &what)?;
            let _ = changes.into_iter().try_for_each(&mut give);
        } else {
            walk.run(&mut give)?;
        }
        summary.same = walk.same;
        before.expect_whole()?;
        after.expect_whole()?;
        Ok(summary)
    }

    /// Whether a node of both trees was changed, and what of it.
    fn change(&self, a: &Columns<'_>, b: &Columns<'_>, old: u32, new: u32) -> Result<Option<What>> {
        let (what, has_content) = compare(a, b, old, new, self.time_step_ns)?;
        let is_dir = a.mode(old).is_some_and(|mode| mode.kind() == Kind::Directory);
        let is_changed = match self.content {
            _ if what.kind || what.perm && self.perm => true,
            _ if is_dir => false,
            Content::Best if has_content => what.hash || what.size,
            Content::Best | Content::SizeAndTime => what.size || what.mtime,
            Content::Size => what.size,
        };
        Ok(is_changed.then_some(what))
    }
}

/// What is different between two nodes, and whether their content was compared.
fn compare(a: &Columns<'_>, b: &Columns<'_>, old: u32, new: u32, time_step_ns: i64) -> Result<(What, bool)> {
    let mode_a = a.mode(old).ok_or_else(|| a.damaged(old))?;
    let mode_b = b.mode(new).ok_or_else(|| b.damaged(new))?;
    let time = |tree: &Columns<'_>, node| tree.mtime_ns(node).map(|ns| ns.div_euclid(time_step_ns));
    let mut what = What {
        kind: mode_a.kind() != mode_b.kind(),
        hash: false,
        size: a.size(old) != b.size(new),
        mtime: time(a, old) != time(b, new),
        perm: mode_a.perm() != mode_b.perm(),
    };
    let mut has_content = mode_a.has_hash() && mode_b.has_hash();
    if has_content {
        what.hash = a.hash(old) != b.hash(new);
    } else if mode_a.kind() == Kind::Symlink && mode_b.kind() == Kind::Symlink {
        let (extra_a, extra_b) = (a.segment().extra(NodeId(old))?, b.segment().extra(NodeId(new))?);
        has_content = !extra_a.is_empty() && !extra_b.is_empty();
        what.hash = has_content && extra_a != extra_b;
    }
    Ok((what, has_content))
}

/// One of the two trees.
struct Side<'v, 'a> {
    columns: Columns<'a>,
    levels: Vec<Range<u32>>,
    /// On each level the place of the node that comes next.
    cursors: Vec<Cursor<'v, 'a>>,
}

impl<'v, 'a> Side<'v, 'a> {
    fn new(columns: Columns<'a>, view: &'v View<'a>) -> Result<Self> {
        let levels = levels::below(columns.segment(), NodeId::ROOT, &(1..u32::MAX))?;
        let at_start = |level: &Range<u32>| {
            let mut cursor = view.cursor();
            cursor.go_to(level.start).map(|()| cursor)
        };
        let cursors = levels.iter().map(at_start).collect::<Result<_>>()?;
        Ok(Side { columns, levels, cursors })
    }

    /// The name of the first of these nodes of a level, if there is one.
    #[inline]
    fn name(&mut self, depth: usize, nodes: &Range<u32>) -> Result<Option<&'a [u8]>> {
        if nodes.is_empty() {
            return Ok(None);
        }
        let cursor = &mut self.cursors[depth];
        if cursor.node != nodes.start {
            cursor.go_to(nodes.start)?;
        }
        cursor.name().map(Some)
    }

    /// What is in a node of the level above `depth`; nothing if it is no directory. It was not given out before, and lies on its level: so
    /// no walk is longer than the tree.
    #[inline]
    fn children(&mut self, depth: usize, node: Option<u32>) -> Result<Range<u32>> {
        let columns = &self.columns;
        let Some(dir) = node.filter(|node| columns.mode(*node).is_some_and(|mode| mode.kind() == Kind::Directory))
        else {
            return Ok(0..0);
        };
        let children = columns.children(dir).ok_or_else(|| columns.damaged(dir))?;
        if children.is_empty() {
            return Ok(0..0);
        }
        let is_there = |level: &&mut Range<u32>| level.start <= children.start && children.end <= level.end;
        let Some(level) = self.levels.get_mut(depth).filter(is_there) else {
            return Err(columns.segment().damaged(dir, "its children are not where they should be"));
        };
        level.start = children.end;
        Ok(children)
    }
}

/// What is still to be looked at of a directory: of each tree that has it.
struct Frame {
    a: Range<u32>,
    b: Range<u32>,
}

struct Walk<'d, 'v, 'a> {
    diff: &'d Diff,
    /// What need not be asked of the names.
    joined: Option<&'d Joined>,
    a: Side<'v, 'a>,
    b: Side<'v, 'a>,
    same: u64,
    /// The directories that are being looked at, the root first.
    stack: Vec<Frame>,
}

impl Walk<'_, '_, '_> {
    fn run(&mut self, sink: &mut dyn FnMut(Change) -> ControlFlow<()>) -> Result<()> {
        self.enter(Some(0), Some(0))?;
        let mut steps = 0_u32;
        while let Some(depth) = self.stack.len().checked_sub(1) {
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(STEP) {
                self.diff.query.check_stop()?;
            }
            let Some(order) = self.order(depth)? else {
                self.stack.pop();
                continue;
            };
            let frame = &mut self.stack[depth];
            let old = if order.is_le() { frame.a.next() } else { None };
            let new = if order.is_ge() { frame.b.next() } else { None };
            if self.tell(old, new, sink)?.is_break() {
                return Ok(());
            }
            self.enter(old, new)?;
        }
        Ok(())
    }

    /// Which of the next nodes of the directory at `depth` comes first; `None` if there is none left.
    #[inline]
    fn order(&mut self, depth: usize) -> Result<Option<Ordering>> {
        let Frame { a, b } = &self.stack[depth];
        let known = match self.joined {
            Some(joined) if !a.is_empty() && !b.is_empty() => joined.order(a.start, b.start),
            _ => None,
        };
        if known.is_some() {
            return Ok(known);
        }
        Ok(match (self.a.name(depth, a)?, self.b.name(depth, b)?) {
            (None, None) => None,
            (Some(_), None) => Some(Ordering::Less),
            (None, Some(_)) => Some(Ordering::Greater),
            (Some(a), Some(b)) => Some(a.cmp(b)),
        })
    }

    /// Tells what a node of one path is, if that is a change.
    fn tell(
        &mut self,
        old: Option<u32>,
        new: Option<u32>,
        sink: &mut dyn FnMut(Change) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let change = match (old, new) {
            (Some(old), Some(new)) => {
                let what = self.diff.change(&self.a.columns, &self.b.columns, old, new)?;
                what.map(|what| Change::Changed { before: NodeId(old), after: NodeId(new), what })
            }
            (old, new) => old.map(|old| Change::Removed(NodeId(old))).or(new.map(|new| Change::Added(NodeId(new)))),
        };
        self.same += u64::from(change.is_none());
        Ok(change.map_or(ControlFlow::Continue(()), sink))
    }

    /// Goes down into what is a directory.
    fn enter(&mut self, old: Option<u32>, new: Option<u32>) -> Result<()> {
        let depth = self.stack.len();
        let frame = Frame { a: self.a.children(depth, old)?, b: self.b.children(depth, new)? };
        if !(frame.a.is_empty() && frame.b.is_empty()) {
            self.stack.push(frame);
        }
        Ok(())
    }
}
