//! Values of the tree, as bytes. `docs/formats/volume.md` has the tables.
//!
//! Every value begins with its type and version, and decodes wholly or not at all. Integers are little-endian.

use std::ops::Range;

use adit_core::types::{Caller, Kind, Timestamp};

use super::keys::Id;

/// A value that is not what its key says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a malformed record ({})", self.0)
    }
}

impl std::error::Error for Malformed {}

type Decoded<T> = Result<T, Malformed>;

const VERSION: u8 = 1;

mod tag {
    pub const TOMBSTONE: u8 = 0;
    pub const INODE: u8 = b'i';
    pub const XATTR: u8 = b'x';
    pub const ENTRY: u8 = b'd';
    pub const NAME: u8 = b'l';
    pub const WINDOW: u8 = b'e';
    pub const ORPHAN: u8 = b'o';
    pub const SNAPSHOT: u8 = b's';
    pub const TOUCHED: u8 = b't';
    pub const META: u8 = b'm';
}

/// The value that hides older versions of its key.
pub const TOMBSTONE: [u8; 2] = [tag::TOMBSTONE, VERSION];

/// The value of a touched key.
pub const TOUCHED: [u8; 2] = [tag::TOUCHED, VERSION];

/// The value of a further name.
pub const NAME: [u8; 2] = [tag::NAME, VERSION];

/// Whether the value hides older ones.
pub fn is_tombstone(value: &[u8]) -> bool {
    value.first() == Some(&tag::TOMBSTONE)
}

/// What is left to decode.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn of(bytes: &'a [u8], tag: u8, what: &'static str) -> Decoded<Self> {
        match bytes {
            [t, VERSION, rest @ ..] if *t == tag => Ok(Fields(rest)),
            _ => Err(Malformed(what)),
        }
    }

    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed("too short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Decoded<u8> {
        self.array::<1>().map(|[b]| b)
    }
    fn u16(&mut self) -> Decoded<u16> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Decoded<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Decoded<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn time(&mut self) -> Decoded<Timestamp> {
        let (secs, nanos) = (self.array().map(i64::from_le_bytes)?, self.u32()?);
        if nanos < 1_000_000_000 { Ok(Timestamp { secs, nanos }) } else { Err(Malformed("nanoseconds")) }
    }

    fn take(&mut self, len: usize) -> Decoded<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed("too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn end(self) -> Decoded<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("too long")) }
    }
}

fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&time.secs.to_le_bytes());
    out.extend_from_slice(&time.nanos.to_le_bytes());
}

const KINDS: [Kind; 7] =
    [Kind::File, Kind::Directory, Kind::Symlink, Kind::BlockDevice, Kind::CharDevice, Kind::Fifo, Kind::Socket];

fn kind_number(kind: Kind) -> u8 {
    KINDS.iter().position(|&k| k == kind).map_or(0, |at| at as u8 + 1)
}

fn kind_of(number: u8) -> Decoded<Kind> {
    usize::from(number).checked_sub(1).and_then(|at| KINDS.get(at)).copied().ok_or(Malformed("kind"))
}

/// Longest content that is kept in the inode's record, in bytes.
pub const INLINE_LEN_MAX_BYTES: usize = 2048;

/// Longest target of a symbolic link, in bytes.
pub const TARGET_LEN_MAX_BYTES: usize = 4095;

/// Where an inode has a name: directory and cookie. (0, 0): nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The directory.
    pub dir: u64,
    /// The entry in it.
    pub cookie: u64,
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// What it is.
    pub kind: Kind,
    /// Permission bits with set-id and sticky.
    pub perm: u16,
    /// Whether it has extended attributes.
    pub has_xattrs: bool,
    /// Whether content is in windows; else it is in `inline`.
    pub in_windows: bool,
    /// Whether there may be windows behind the end, which a cut left to be dropped. Nothing is written before they are.
    pub is_cut: bool,
    /// Number of names; 2 and one for each directory in it for a directory that has one.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Length in bytes; for a directory the number of entries.
    pub size: u64,
    /// Blocks of content that it refers to.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// When it was made.
    pub btime: Timestamp,
    /// One of its names. The others have records of their own.
    pub place: Place,
    /// The content of a small file, the target of a symbolic link.
    pub inline: Vec<u8>,
}

impl Inode {
    /// A new one, made `now`, with no content, and no place yet.
    pub fn new(kind: Kind, perm: u16, owner: Caller, now: Timestamp) -> Inode {
        Inode {
            kind,
            perm: perm & 0o7777,
            has_xattrs: false,
            in_windows: false,
            is_cut: false,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            uid: owner.uid,
            gid: owner.gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            place: Place::default(),
            inline: Vec::new(),
        }
    }

    const XATTRS: u8 = 1;
    const WINDOWS: u8 = 2;
    const CUT: u8 = 4;

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(120 + self.inline.len());
        let flags = [(self.has_xattrs, Self::XATTRS), (self.in_windows, Self::WINDOWS), (self.is_cut, Self::CUT)];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
        out.extend_from_slice(&[tag::INODE, VERSION, kind_number(self.kind), flags]);
        out.extend_from_slice(&self.perm.to_le_bytes());
        for number in [self.nlink, self.uid, self.gid, self.rdev] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.size, self.blocks] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            put_time(&mut out, time);
        }
        for number in [self.place.dir, self.place.cookie] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.inline);
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Decoded<Inode> {
        let mut f = Fields::of(bytes, tag::INODE, "not an inode")?;
        let (kind, flags) = (kind_of(f.u8()?)?, f.u8()?);
        if flags & !(Self::XATTRS | Self::WINDOWS | Self::CUT) != 0 {
            return Err(Malformed("flags"));
        }
        let inode = Inode {
            kind,
            has_xattrs: flags & Self::XATTRS != 0,
            in_windows: flags & Self::WINDOWS != 0,
            is_cut: flags & Self::CUT != 0,
            perm: f.u16()?,
            nlink: f.u32()?,
            uid: f.u32()?,
            gid: f.u32()?,
            rdev: f.u32()?,
            size: f.u64()?,
            blocks: f.u64()?,
            atime: f.time()?,
            mtime: f.time()?,
            ctime: f.time()?,
            btime: f.time()?,
            place: Place { dir: f.u64()?, cookie: f.u64()? },
            inline: f.0.to_vec(),
        };
        let inline_len = inode.inline.len();
        let fits = match kind {
            Kind::File if inode.in_windows => inline_len == 0 && inode.size <= i64::MAX as u64,
            Kind::File => inline_len as u64 == inode.size && inline_len <= INLINE_LEN_MAX_BYTES,
            Kind::Symlink => {
                inline_len as u64 == inode.size && (1..=TARGET_LEN_MAX_BYTES).contains(&inline_len) && !inode.in_windows
            }
            _ => inline_len == 0 && !inode.in_windows,
        };
        if fits && inode.perm <= 0o7777 && (inode.in_windows || !inode.is_cut) {
            Ok(inode)
        } else {
            Err(Malformed("length or permissions"))
        }
    }
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The inode.
    pub ino: u64,
    /// What it is.
    pub kind: Kind,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> Entry<'a> {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(11 + self.name.len());
        out.extend_from_slice(&[tag::ENTRY, VERSION, kind_number(self.kind)]);
        out.extend_from_slice(&self.ino.to_le_bytes());
        out.extend_from_slice(self.name);
        out
    }

    /// From bytes.
    pub fn decode(bytes: &'a [u8]) -> Decoded<Entry<'a>> {
        let mut f = Fields::of(bytes, tag::ENTRY, "not an entry")?;
        let (kind, ino) = (kind_of(f.u8()?)?, f.u64()?);
        if ino == 0 || adit_core::types::FileName::new(f.0).is_err() {
            return Err(Malformed("entry"));
        }
        Ok(Entry { ino, kind, name: f.0 })
    }
}

/// The value of an extended attribute, as bytes.
pub fn encode_xattr(value: &[u8]) -> Vec<u8> {
    [&[tag::XATTR, VERSION], value].concat()
}

/// The value of an extended attribute, from bytes.
pub fn decode_xattr(bytes: &[u8]) -> Decoded<&[u8]> {
    Fields::of(bytes, tag::XATTR, "not an extended attribute").map(|f| f.0)
}

/// Checks the value of a further name.
pub fn decode_name(bytes: &[u8]) -> Decoded<()> {
    Fields::of(bytes, tag::NAME, "not a name")?.end()
}

/// Blocks in a window of 1 MiB.
pub const WINDOW_LEN_BLOCKS: usize = 256;

/// Where a block of content lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Its number in the data space.
    pub at: u64,
    /// Under which id it was written.
    pub birth: Id,
    /// CRC-32C of its 4 KiB.
    pub sum: u32,
}

/// A window of a file's content: for each block where it lies, or that it is a hole.
#[derive(Clone, PartialEq, Eq)]
pub struct Window {
    blocks: Box<[Option<Block>; WINDOW_LEN_BLOCKS]>,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Default for Window {
    fn default() -> Self {
        Window { blocks: Box::new([None; WINDOW_LEN_BLOCKS]) }
    }
}

impl Window {
    /// The block `at`, below [`WINDOW_LEN_BLOCKS`].
    pub fn get(&self, at: usize) -> Option<Block> {
        self.blocks.get(at).copied().flatten()
    }

    /// Puts a block or a hole there, and returns what was.
    pub fn set(&mut self, at: usize, block: Option<Block>) -> Option<Block> {
        self.blocks.get_mut(at).and_then(|slot| std::mem::replace(slot, block))
    }

    /// Its blocks, without the holes.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Block)> + '_ {
        self.blocks.iter().enumerate().filter_map(|(at, block)| block.map(|b| (at, b)))
    }

    /// How many blocks it has.
    pub fn count(&self) -> u64 {
        self.iter().count() as u64
    }

    /// As bytes: fragments, each of blocks that lie one behind the other and have one birth.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![tag::WINDOW, VERSION];
        let mut at = 0;
        while at < WINDOW_LEN_BLOCKS {
            let Some(first) = self.get(at) else {
                at += 1;
                continue;
            };
            let follows = |i: usize| {
                let block = self.get(at + i)?;
                (block.birth == first.birth && first.at.checked_add(i as u64) == Some(block.at)).then_some(block.sum)
            };
            let sums: Vec<u32> = (0..WINDOW_LEN_BLOCKS - at).map_while(follows).collect();
            out.extend_from_slice(&[at as u8, (sums.len() - 1) as u8]);
            out.extend_from_slice(&first.at.to_le_bytes());
            out.extend_from_slice(&first.birth.to_le_bytes());
            for sum in &sums {
                out.extend_from_slice(&sum.to_le_bytes());
            }
            at += sums.len();
        }
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Decoded<Window> {
        let mut window = Window::default();
        for fragment in Fragments::of(bytes)? {
            for (at, block) in fragment?.blocks(0..WINDOW_LEN_BLOCKS) {
                window.set(at, Some(block));
            }
        }
        let mut numbers: Vec<u64> = window.iter().map(|(_, block)| block.at).collect();
        if !numbers.is_sorted() {
            numbers.sort_unstable();
        }
        if numbers.windows(2).any(|two| two[0] == two[1]) {
            return Err(Malformed("one block at two places"));
        }
        Ok(window)
    }
}

/// A part of a window, decoded without the rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WindowPart {
    from: usize,
    blocks: Vec<Option<Block>>,
}

impl WindowPart {
    /// The blocks `range` of a window, from its bytes. Of the others it is only looked at where they are, and not whether one block
    /// is at two places: each is read with its checksum.
    pub fn decode(bytes: &[u8], range: Range<usize>) -> Decoded<WindowPart> {
        let mut part = WindowPart { from: range.start, blocks: vec![None; range.len()] };
        for fragment in Fragments::of(bytes)? {
            for (at, block) in fragment?.blocks(range.clone()) {
                if let Some(slot) = part.blocks.get_mut(at - range.start) {
                    *slot = Some(block);
                }
            }
        }
        Ok(part)
    }

    /// The block `at` of the window; `None` also outside of the part.
    pub fn get(&self, at: usize) -> Option<Block> {
        self.blocks.get(at.checked_sub(self.from)?).copied().flatten()
    }
}

/// Blocks of a window that lie one behind the other and have one birth.
struct Fragment<'a> {
    start: usize,
    at: u64,
    birth: Id,
    /// Four bytes a block.
    sums: &'a [u8],
}

impl Fragment<'_> {
    /// Those of its blocks that are in `range`, with their places in the window.
    fn blocks(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Block)> + '_ {
        let (sums, _) = self.sums.as_chunks::<4>();
        let skipped = range.start.saturating_sub(self.start);
        let left = range.end.saturating_sub(self.start);
        let sums = sums.iter().enumerate().take(left).skip(skipped);
        sums.map(|(i, sum)| {
            let block = Block { at: self.at + i as u64, birth: self.birth, sum: u32::from_le_bytes(*sum) };
            (self.start + i, block)
        })
    }
}

/// The fragments of a window's record, ascending and apart.
struct Fragments<'a> {
    left: Fields<'a>,
    free: usize,
}

impl<'a> Fragments<'a> {
    fn of(bytes: &'a [u8]) -> Decoded<Self> {
        Ok(Fragments { left: Fields::of(bytes, tag::WINDOW, "not a window")?, free: 0 })
    }

    fn step(&mut self) -> Decoded<Fragment<'a>> {
        let f = &mut self.left;
        let (start, count) = (usize::from(f.u8()?), usize::from(f.u8()?) + 1);
        let (at, birth) = (f.u64()?, f.u32()?);
        if start < self.free || start + count > WINDOW_LEN_BLOCKS || at.checked_add(count as u64).is_none() {
            return Err(Malformed("fragment"));
        }
        self.free = start + count;
        Ok(Fragment { start, at, birth, sums: f.take(4 * count)? })
    }
}

impl<'a> Iterator for Fragments<'a> {
    type Item = Decoded<Fragment<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.left.0.is_empty()).then(|| {
            let fragment = self.step();
            if fragment.is_err() {
                self.left = Fields(&[]);
            }
            fragment
        })
    }
}

/// What is to be dropped of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Orphan {
    /// All of it: it has no name any more. Else what is behind its end, as its record says.
    pub removed: bool,
}

impl Orphan {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        vec![tag::ORPHAN, VERSION, u8::from(self.removed)]
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Decoded<Orphan> {
        let mut f = Fields::of(bytes, tag::ORPHAN, "not an orphan")?;
        let removed = match f.u8()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed("orphan")),
        };
        f.end().map(|()| Orphan { removed })
    }
}

/// What a snapshot id stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// A branch: what is written now is written under this id.
    Live,
    /// A snapshot: frozen.
    Frozen,
    /// A snapshot that was deleted while others descend from it. They still see what it wrote.
    Nameless,
    /// As `Nameless`, and what its only child hides of it is being dropped.
    Merging,
    /// Nobody descends from it: all that it wrote is being dropped.
    Dropping,
    /// A branch that is being built. After a crash it is dropped.
    Staging,
}

const STATES: [State; 6] =
    [State::Live, State::Frozen, State::Nameless, State::Merging, State::Dropping, State::Staging];

/// A snapshot, a branch, or what is left of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// What it is.
    pub state: State,
    /// Whose child it is; 0 for the first.
    pub parent: Id,
    /// When it was made.
    pub created: Timestamp,
    /// Its name, for `Live` and `Frozen`; else what it was called.
    pub name: String,
    /// For `Merging`: the last touched key (with its id) that is done.
    pub done: Vec<u8>,
}

/// Longest name of a snapshot or branch, in bytes.
pub const SNAPSHOT_NAME_LEN_MAX_BYTES: usize = 255;

impl Snapshot {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let state = STATES.iter().position(|&s| s == self.state).map_or(0, |at| at as u8 + 1);
        let name = &self.name.as_bytes()[..self.name.len().min(SNAPSHOT_NAME_LEN_MAX_BYTES)];
        let mut out = vec![tag::SNAPSHOT, VERSION, state];
        out.extend_from_slice(&self.parent.to_le_bytes());
        put_time(&mut out, self.created);
        out.push(name.len() as u8);
        out.extend_from_slice(name);
        out.extend_from_slice(&self.done);
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Decoded<Snapshot> {
        let mut f = Fields::of(bytes, tag::SNAPSHOT, "not a snapshot")?;
        let state = usize::from(f.u8()?).checked_sub(1).and_then(|at| STATES.get(at)).copied();
        let (parent, created, len) = (f.u32()?, f.time()?, f.u8()?);
        let name = std::str::from_utf8(f.take(usize::from(len))?).map_err(|_| Malformed("name"))?;
        let state = state.ok_or(Malformed("state"))?;
        Ok(Snapshot { state, parent, created, name: name.to_owned(), done: f.0.to_vec() })
    }
}

/// A counter, as bytes.
pub fn encode_meta(value: u64) -> Vec<u8> {
    [&[tag::META, VERSION][..], &value.to_le_bytes()].concat()
}

/// A counter, from bytes.
pub fn decode_meta(bytes: &[u8]) -> Decoded<u64> {
    let mut f = Fields::of(bytes, tag::META, "not a counter")?;
    let value = f.u64()?;
    f.end().map(|()| value)
}

#[cfg(test)]
mod tests;
