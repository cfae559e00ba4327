//! Nodes, level by level, into the columns of a segment's file.
//!
//! Of many nodes the columns are written by two threads, each of which reads all levels; and so are the tables. What is written does not depend on that.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use adit_core::error::FsError;
use adit_core::types::Kind;

use super::heap::Heap;
use super::levels::{LevelNode, Levels};
use super::record::Facts;
#[cfg(feature = "sealed")]
use super::scratch::ScratchFile;
use super::tables::{self, How};
use super::tree::Totals;
use crate::cores::cores_up_to;
use crate::layout::{
    self, ALIGN_BYTES, BLOCK_LEN_BYTES, EXTRA_ENTRY_LEN_BYTES, FLAG_REQUIRED, GROUP_LEN, Header, Mode, NAME_IS_LONG,
    Section, SectionEntry, pack_children, unpack_children,
};
use crate::progress::{Progress, Report, Stage};
use crate::segment::Segment;

/// So many nodes are written between two reports.
const STEP: u32 = 1 << 14;
/// How long another thread is waited for between two reports.
const WAIT_STEP: Duration = Duration::from_millis(100);
/// So many nodes are worth a second thread.
const NODES_FOR_TWO: u32 = 1 << 16;

/// Why a segment was not written.
pub(crate) enum WriteError {
    /// Whoever is told of the progress ended it.
    Interrupted,
    Io(io::Error),
    /// What was written cannot be read.
    Index(FsError),
}

impl From<FsError> for WriteError {
    fn from(e: FsError) -> Self {
        WriteError::Index(e)
    }
}

impl From<io::Error> for WriteError {
    fn from(e: io::Error) -> Self {
        WriteError::Io(e)
    }
}

/// Where a segment is written.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// The file that it becomes, or is copied from.
    File(&'a File),
    /// A scratch file, for what must not lie on a disk as it is.
    #[cfg(feature = "sealed")]
    Scratch(&'a ScratchFile),
}

impl Target<'_> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Target::File(file) => file.write_all_at(bytes, offset),
            #[cfg(feature = "sealed")]
            Target::Scratch(file) => file.write_all_at(bytes, offset),
        }
    }

    /// The columns that were written, as far as tables are made of them.
    fn columns(&self, header: &Header) -> Result<Segment, WriteError> {
        match self {
            Target::File(file) => Ok(Segment::unfinished(file, header.clone())?),
            #[cfg(feature = "sealed")]
            Target::Scratch(file) => {
                // Where nothing is written a file in memory takes none: hashes, for one, are not in it.
                let clear = crate::sealed::memory_file()?;
                let mut piece = vec![0; BLOCK_LEN_BYTES as usize];
                for entry in Section::OF_TABLES.iter().filter_map(|section| header.section(*section)) {
                    for at in (0..entry.len).step_by(piece.len()) {
                        let piece = &mut piece[..(entry.len - at).min(BLOCK_LEN_BYTES) as usize];
                        file.read_exact_at(piece, entry.offset + at)?;
                        clear.write_all_at(piece, entry.offset + at)?;
                    }
                }
                let end = header.sections.iter().map(|entry| entry.offset + entry.len).max().unwrap_or_default();
                clear.set_len(end)?;
                Ok(Segment::unfinished(&clear, header.clone())?)
            }
        }
    }
}

/// A section that is written from its beginning to its end: a block at a time, with its checksum.
struct Column<'a> {
    file: Target<'a>,
    section: Section,
    offset: u64,
    /// What it has so far, in bytes.
    len: u64,
    /// What is not written yet, less than a block.
    block: Vec<u8>,
    sums: Vec<u64>,
}

impl<'a> Column<'a> {
    /// An empty one. `capacity` is how long it will be at least, in bytes.
    fn new(file: Target<'a>, section: Section, offset: u64, capacity: u64) -> Self {
        let block = Vec::with_capacity(BLOCK_LEN_BYTES.min(capacity) as usize);
        Column { file, section, offset, len: 0, block, sums: Vec::new() }
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = BLOCK_LEN_BYTES as usize - self.block.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.block.extend(now);
            self.len += now.len() as u64;
            if self.block.len() == BLOCK_LEN_BYTES as usize {
                self.write_block()?;
            }
            bytes = later;
        }
        Ok(())
    }

    fn write_block(&mut self) -> io::Result<()> {
        let at = self.offset + self.sums.len() as u64 * BLOCK_LEN_BYTES;
        self.file.write_all_at(&self.block, at)?;
        self.sums.push(layout::block_sum(&self.block));
        self.block.clear();
        Ok(())
    }

    /// Writes the rest. The entry of the header, and the checksums of the blocks.
    fn end(mut self) -> io::Result<(SectionEntry, Vec<u64>)> {
        if !self.block.is_empty() {
            self.write_block()?;
        }
        let entry = SectionEntry {
            kind: self.section as u32,
            flags: if self.section.is_required() { FLAG_REQUIRED } else { 0 },
            offset: self.offset,
            len: self.len,
            check: layout::section_check(&self.sums),
        };
        assert_eq!(entry.blocks(), self.sums.len() as u64, "a section has the blocks that were written");
        Ok((entry, self.sums))
    }
}

/// The columns of one kind.
trait Columns {
    /// Takes the next node.
    fn node(&mut self, parent: u32, facts: &Facts, name: &[u8]) -> io::Result<()>;
}

/// Columns by their sections.
struct Sections<'a>(Vec<Column<'a>>);

impl<'a> Sections<'a> {
    /// Plans where each section lies, before so many tables.
    fn plan(file: Target<'a>, totals: &Totals, identity_len: usize, tables: usize) -> Self {
        let len_of = |section: Section| match section {
            Section::Names => Some(totals.names_len),
            Section::Hashes if totals.hashes == 0 => None,
            Section::Stamps if totals.stamps == 0 => None,
            Section::ExtraEntries => (totals.extras > 0).then(|| u64::from(totals.extras) * EXTRA_ENTRY_LEN_BYTES),
            Section::Extra => (totals.extras > 0).then_some(totals.extra_len),
            section if section.is_table() => None,
            section => section.len_for(totals.nodes),
        };
        let planned: Vec<_> = Section::ALL.iter().filter_map(|section| Some((*section, len_of(*section)?))).collect();
        let mut end = layout::header_len(planned.len() + tables, identity_len) as u64;
        let column = |(section, len): (Section, u64)| {
            let offset = end.next_multiple_of(ALIGN_BYTES);
            end = offset + len;
            Column::new(file, section, offset, len)
        };
        Sections(planned.into_iter().map(column).collect())
    }

    /// The columns of these sections, and the others.
    fn part(self, wanted: &[Section]) -> (Self, Self) {
        let (wanted, others) = self.0.into_iter().partition(|column| wanted.contains(&column.section));
        (Sections(wanted), Sections(others))
    }

    fn put(&mut self, section: Section, bytes: &[u8]) -> io::Result<()> {
        let column = self.0.iter_mut().find(|column| column.section == section);
        column.map_or(Ok(()), |column| column.put(bytes))
    }
}

/// Where nodes are in the tree, and what they are called.
struct Places<'a> {
    sections: Sections<'a>,
    node: u32,
    name_at: u64,
}

impl Places<'_> {
    const SECTIONS: [Section; 4] = [Section::Parents, Section::NameLengths, Section::NamePositions, Section::Names];
}

impl Columns for Places<'_> {
    fn node(&mut self, parent: u32, _: &Facts, name: &[u8]) -> io::Result<()> {
        let sections = &mut self.sections;
        sections.put(Section::Parents, &parent.to_le_bytes())?;
        let len = u8::try_from(name.len()).unwrap_or(NAME_IS_LONG);
        sections.put(Section::NameLengths, &[len])?;
        if self.node.is_multiple_of(GROUP_LEN) {
            sections.put(Section::NamePositions, &self.name_at.to_le_bytes())?;
        }
        sections.put(Section::Names, name)?;
        sections.put(Section::Names, &[0])?;
        self.name_at += name.len() as u64 + 1;
        self.node += 1;
        Ok(())
    }
}

/// What is known of nodes.
struct Details<'a> {
    sections: Sections<'a>,
    heap: Option<&'a Heap>,
    node: u32,
    extra_at: u64,
}

impl Columns for Details<'_> {
    fn node(&mut self, _: u32, facts: &Facts, _: &[u8]) -> io::Result<()> {
        let sections = &mut self.sections;
        let Mode(mode) = facts.mode;
        sections.put(Section::Modes, &mode.to_le_bytes())?;
        sections.put(Section::Sizes, &facts.size.to_le_bytes())?;
        sections.put(Section::Times, &facts.mtime_ns.to_le_bytes())?;
        sections.put(Section::Hashes, &facts.hash)?;
        sections.put(Section::Stamps, &facts.stamp)?;
        if let (Some(extra), Some(heap)) = (facts.extra, self.heap) {
            sections.put(Section::ExtraEntries, &self.node.to_le_bytes())?;
            sections.put(Section::ExtraEntries, &extra.len.to_le_bytes())?;
            sections.put(Section::ExtraEntries, &self.extra_at.to_le_bytes())?;
            heap.read(extra, &mut |bytes| sections.put(Section::Extra, bytes))?;
            self.extra_at += u64::from(extra.len);
        }
        self.node += 1;
        Ok(())
    }
}

/// Writes a whole segment into an empty file, with tables if it is said how. Its length in bytes.
pub(crate) fn write(
    file: Target<'_>,
    (levels, totals): &(Levels, Totals),
    heap: Option<&Heap>,
    identity: &[u8],
    tables: Option<How<'_>>,
    report: &mut Report<'_>,
) -> Result<u64, WriteError> {
    let count = tables.as_ref().map_or(0, |_| Section::TABLES.len());
    let (places, details) = Sections::plan(file, totals, identity.len(), count).part(&Places::SECTIONS);
    let mut places = Places { sections: places, node: 0, name_at: 0 };
    let mut details = Details { sections: details, heap, node: 0, extra_at: 0 };
    let by_two = cores_up_to((totals.nodes / NODES_FOR_TWO) as usize + 1) > 1;
    write_columns(levels, totals.nodes, &mut places, &mut details, by_two, report)?;
    let mut header = Header { nodes: totals.nodes, identity: identity.to_owned(), ..Header::default() };
    let mut sums = Vec::new();
    let mut columns: Vec<Column<'_>> = places.sections.0.into_iter().chain(details.sections.0).collect();
    columns.sort_by_key(|column| column.offset);
    for column in columns {
        let (entry, of_blocks) = column.end()?;
        header.sections.push(entry);
        sums.extend(of_blocks);
    }
    if let Some(how) = tables {
        write_tables(file, &how, by_two, &mut header, &mut sums, report)?;
    }
    Ok(finish(file, header, &sums)?)
}

/// Writes all nodes into both, by two threads if that is wanted. It ends as soon as one of them does.
fn write_columns(
    levels: &Levels,
    nodes: u32,
    places: &mut Places<'_>,
    details: &mut (dyn Columns + Send),
    by_two: bool,
    report: &mut Report<'_>,
) -> Result<(), WriteError> {
    if !by_two {
        return write_nodes(levels, &mut [places, details], &mut |done| go_on(report, Stage::Write, done, nodes));
    }
    in_two(
        &mut |is_over| {
            write_nodes(levels, &mut [places], &mut |done| {
                end_if(is_over)?;
                go_on(report, Stage::Write, done, nodes)
            })
        },
        &mut |is_over| write_nodes(levels, &mut [details], &mut |_| end_if(is_over)),
    )
}

/// Runs both, the second one in another thread. Each is to end when the flag is set, as one does that fails.
///
/// # Errors
/// Of who failed by itself.
fn in_two(
    here: &mut dyn FnMut(&AtomicBool) -> Result<(), WriteError>,
    there: &mut (dyn FnMut(&AtomicBool) -> Result<(), WriteError> + Send),
) -> Result<(), WriteError> {
    let is_over = &AtomicBool::new(false);
    let end = |done: Result<(), WriteError>| done.inspect_err(|_| is_over.store(true, Relaxed));
    let ended = thread::scope(|scope| {
        let there = thread::Builder::new().spawn_scoped(scope, || {
            let _end = EndIfBroken(is_over);
            end(there(is_over))
        });
        let there = there.ok()?;
        let here = end(here(is_over));
        Some((here, there.join().expect("it does not panic")))
    });
    // The host has no more threads. Who is here may wait for the other one.
    let Some((here, there)) = ended else {
        there(is_over)?;
        return here(is_over);
    };
    match (here, there) {
        // Who was ended by the other one.
        (Err(WriteError::Interrupted), Err(e)) | (Err(e), _) | (Ok(()), Err(e)) => Err(e),
        (Ok(()), Ok(())) => Ok(()),
    }
}

/// Ends the other thread if this one breaks down: it may wait for what never comes.
struct EndIfBroken<'a>(&'a AtomicBool);

impl Drop for EndIfBroken<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Relaxed);
        }
    }
}

fn end_if(is_over: &AtomicBool) -> Result<(), WriteError> {
    if is_over.load(Relaxed) { Err(WriteError::Interrupted) } else { Ok(()) }
}

/// Writes all nodes into some columns. `tick` is told how many there were now and then, and may end it.
fn write_nodes(
    levels: &Levels,
    columns: &mut [&mut dyn Columns],
    tick: &mut dyn FnMut(u32) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let counts = levels.counts();
    let mut node = LevelNode { parent: 0, facts: Facts::NOTHING, name: Vec::new() };
    // The first nodes of the level above, of this one and of the one below.
    let (mut above, mut here, mut done) = (0_u32, 0_u32, 0_u32);
    for (depth, count) in counts.iter().enumerate() {
        // Nodes are counted in 32 bits: all of them were before.
        let below = here + count;
        let mut nodes = levels.nodes(depth);
        while nodes.next(&mut node)? {
            if done.is_multiple_of(STEP) {
                tick(done)?;
            }
            done += 1;
            if node.facts.mode.kind() == Kind::Directory {
                let (first, count) = unpack_children(node.facts.size);
                node.facts.size = pack_children(below + first, count);
            }
            for columns in &mut *columns {
                columns.node(above + node.parent, &node.facts, &node.name)?;
            }
        }
        (above, here) = (here, below);
    }
    Ok(())
}

fn go_on(report: &mut Report<'_>, stage: Stage, done: u32, total: u32) -> Result<(), WriteError> {
    match report(Progress { stage, done: done.into(), total: total.into() }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(WriteError::Interrupted),
    }
}

/// Makes the tables out of the columns that were written, and appends them.
fn write_tables(
    file: Target<'_>,
    how: &How<'_>,
    by_two: bool,
    header: &mut Header,
    sums: &mut Vec<u64>,
    report: &mut Report<'_>,
) -> Result<(), WriteError> {
    let segment = file.columns(header)?;
    let columns = segment.columns_unchecked();
    let begin = header.sections.last().map_or(0, |entry| entry.offset + entry.len);
    let write = |section, end: u64, is_over: &AtomicBool| {
        let mut column = Column::new(file, section, end.next_multiple_of(ALIGN_BYTES), 0);
        let made = tables::make(section, &columns, how, &mut |bytes| match is_over.load(Relaxed) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => column.put(bytes),
        });
        end_if(is_over)?;
        made?;
        Ok::<_, WriteError>(column.end()?)
    };
    let all = Section::TABLES.len() as u32;
    if !by_two {
        let (mut end, never) = (begin, AtomicBool::new(false));
        for (number, section) in (0..).zip(Section::TABLES) {
            go_on(report, Stage::Tables, number, all)?;
            let (entry, of_blocks) = write(section, end, &never)?;
            end = entry.offset + entry.len;
            header.sections.push(entry);
            sums.extend(of_blocks);
        }
        return Ok(segment.expect_whole()?);
    }
    // That of whole paths takes the most, and how long it is, is known before.
    let [first, others @ ..] = Section::TABLES;
    let (mut made, mut made_first) = (Vec::new(), None);
    let (done, told) = channel();
    let mut the_others = |is_over: &AtomicBool| {
        let mut end = begin.next_multiple_of(ALIGN_BYTES) + first.len_for(columns.len()).unwrap_or_default();
        for section in others {
            end_if(is_over)?;
            let (entry, of_blocks) = write(section, end, is_over)?;
            end = entry.offset + entry.len;
            made.push((entry, of_blocks));
            // Who hears of it waits for the end.
            let _ = done.send(());
        }
        Ok(())
    };
    let mut the_first = |is_over: &AtomicBool| {
        go_on(report, Stage::Tables, 0, all)?;
        made_first = Some(write(first, begin, is_over)?);
        let mut count = 1;
        // Whoever is told may end it as long as the other thread is at work.
        while count < all {
            end_if(is_over)?;
            go_on(report, Stage::Tables, count, all)?;
            count += u32::from(told.recv_timeout(WAIT_STEP).is_ok());
        }
        go_on(report, Stage::Tables, count, all)
    };
    in_two(&mut the_first, &mut the_others)?;
    for (entry, of_blocks) in made_first.into_iter().chain(made) {
        header.sections.push(entry);
        sums.extend(of_blocks);
    }
    Ok(segment.expect_whole()?)
}

/// What is known last and lies around the sections: zeros between them, the checksums, and the header.
fn finish(file: Target<'_>, mut header: Header, sums: &[u64]) -> io::Result<u64> {
    let end = header.sections.last().map_or(0, |entry| entry.offset + entry.len);
    header.sums_offset = end.next_multiple_of(ALIGN_BYTES);
    let sums: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    header.file_len = header.sums_offset + sums.len() as u64;
    file.write_all_at(&sums, header.sums_offset)?;
    let front = header.encode();
    file.write_all_at(&front, 0)?;
    let mut end = front.len() as u64;
    for next in header.sections.iter().map(|entry| (entry.offset, entry.len)).chain([(header.sums_offset, 0)]) {
        // What a scratch file has where nothing was written need not be zeros.
        file.write_all_at(&[0; ALIGN_BYTES as usize][..(next.0 - end) as usize], end)?;
        end = next.0 + next.1;
    }
    Ok(header.file_len)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn one_of_two_that_fails_or_breaks_down_ends_the_other() {
        let waits = |is_over: &AtomicBool| -> Result<(), WriteError> {
            loop {
                end_if(is_over)?;
                thread::yield_now();
            }
        };
        let full = || Err(WriteError::Io(io::ErrorKind::StorageFull.into()));
        for failed in [in_two(&mut { waits }, &mut |_| full()), in_two(&mut |_| full(), &mut { waits })] {
            assert!(matches!(failed, Err(WriteError::Io(e)) if e.kind() == io::ErrorKind::StorageFull));
        }
        let ended = in_two(&mut |_| Err(WriteError::Interrupted), &mut { waits });
        assert!(matches!(ended, Err(WriteError::Interrupted)));
        let broken = catch_unwind(AssertUnwindSafe(|| in_two(&mut { waits }, &mut |_| panic!("on purpose"))));
        assert!(broken.is_err());
    }
}
