//! What an overlay keeps in its upper beside names: the values of its private attributes.
//!
//! The bytes are in `docs/formats/volume.md`, section "What an overlay keeps in its upper". A value that is not as said
//! there is damage.

use super::doubts::Doubts;
use super::ranges::BlockRanges;
use super::{BLOCK, LowerIdentity};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::Unproved;
use crate::types::{Attr, FileName, Ino, Kind, Timestamp, XattrName};

/// Names of attributes that begin so are the engine's own: they are neither shown nor taken.
pub(super) const PRIVATE: &[u8] = b"trusted.adit.";

const VERSION: u8 = 1;

/// A number of the lower in the format is below it.
const INOS_END: u64 = 1 << 62;

/// Longest value that is written, in bytes: what the volume has room for.
const VALUE_LEN_MAX_BYTES: usize = 8000;

/// Longest names of a [`Way`], each with its length, in bytes. No path that a program can name at once takes more.
const WAY_LEN_MAX_BYTES: usize = 4096;

/// Attributes of the overlay's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Own {
    /// On the upper's root: version and lower.
    Root,
    /// Which object of the lower this inode is, or is merged with.
    Origin,
    /// How much of the content is the lower's.
    Content,
    /// How many names are shown.
    Links,
    /// Of which blocks it is not known whether they were copied up as they should be.
    Unproved,
    /// On an anchor: where its directory lies in the lower.
    Anchor,
}

impl Own {
    pub fn name(self) -> XattrName<'static> {
        let name: &[u8] = match self {
            Own::Root => b"trusted.adit.overlay.root",
            Own::Origin => b"trusted.adit.overlay.origin",
            Own::Content => b"trusted.adit.overlay.content",
            Own::Links => b"trusted.adit.overlay.links",
            Own::Unproved => b"trusted.adit.overlay.unproved",
            Own::Anchor => b"trusted.adit.overlay.anchor",
        };
        XattrName::new(name).expect("a literal without NUL")
    }
}

/// What tells whether an object of the lower is still the one that it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fingerprint {
    pub ino: Ino,
    pub kind: Kind,
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

impl Fingerprint {
    pub fn of(attr: &Attr) -> Fingerprint {
        Fingerprint { ino: attr.ino, kind: attr.kind, size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
    }

    /// Whether `now` is of the same object, unchanged. Of a directory entries may come and go: only what it is counts.
    pub fn matches(&self, now: &Fingerprint) -> bool {
        match self.kind {
            Kind::Directory => (now.kind, now.ino) == (self.kind, self.ino),
            _ => self == now,
        }
    }

    /// In which way `now` is not of the same object, unchanged.
    pub fn difference(&self, now: &Fingerprint) -> String {
        if (now.ino, now.kind) != (self.ino, self.kind) {
            return format!("it is another {}", now.kind.as_str());
        }
        if now.size != self.size {
            return format!("it had {} bytes, and has {}", self.size, now.size);
        }
        let times = if now.mtime != self.mtime { "it was written" } else { "its attributes or names changed" };
        times.to_owned()
    }
}

/// The number of an anchor, which is its name too: see [`super::anchor`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct AnchorId(pub u64);

/// Where something lies in the lower.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Way {
    /// The anchor of the directory from which the names lead; `None`: the root.
    pub anchor: Option<AnchorId>,
    pub names: Vec<Vec<u8>>,
}

/// An object of the lower that an inode of the upper stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    pub print: Fingerprint,
    /// Names of the lower directory are not shown any more.
    pub opaque: bool,
    /// Where it lies in the lower.
    pub way: Way,
}

/// How much of a file's content is still the lower's.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Extent {
    /// What lies behind it was never, or is no more, the lower's. It only shrinks. At most a block: nothing was written yet,
    /// and all of it is the lower's.
    pub valid: u64,
    /// Blocks before it that are zeros where the upper has none.
    pub zeros: BlockRanges,
}

const KINDS: [Kind; 7] =
    [Kind::File, Kind::Directory, Kind::Symlink, Kind::BlockDevice, Kind::CharDevice, Kind::Fifo, Kind::Socket];

const OPAQUE: u8 = 1;
const ANCHORED: u8 = 2;

/// Bytes that are read front to back.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn time(&mut self) -> Option<Timestamp> {
        let secs = self.array().map(i64::from_le_bytes)?;
        self.u32().filter(|&nanos| nanos < 1_000_000_000).map(|nanos| Timestamp { secs, nanos })
    }

    fn version(&mut self) -> Option<()> {
        self.u8().filter(|&version| version == VERSION).map(drop)
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

fn damage(own: Own, subject: &str) -> FsError {
    let why = format!("the attribute {} is not what an overlay writes", own.name().display());
    FsError::new(ErrorKind::Corrupt).on("read", subject).because(why)
}

fn time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend(time.secs.to_le_bytes());
    out.extend(time.nanos.to_le_bytes());
}

/// The value on the upper's root.
///
/// # Errors
/// `InvalidInput` for an identity that does not fit.
pub(super) fn encode_root(lower: &LowerIdentity) -> Result<Vec<u8>> {
    let mut out = vec![VERSION];
    for part in [&lower.id[..], lower.text.as_bytes()] {
        let len = u16::try_from(part.len()).map_err(|_| ErrorKind::InvalidInput)?;
        out.extend(len.to_le_bytes());
        out.extend(part);
    }
    if out.len() > VALUE_LEN_MAX_BYTES { Err(ErrorKind::InvalidInput.into()) } else { Ok(out) }
}

/// The lower that the value names.
///
/// # Errors
/// `Corrupt`; `NotSupported` for another version.
pub(super) fn decode_root(value: &[u8]) -> Result<LowerIdentity> {
    if let Some(&version) = value.first()
        && version != VERSION
    {
        let why = format!("its version is {version}, and this program knows {VERSION}");
        return Err(FsError::new(ErrorKind::NotSupported).on("open", "the overlay in the upper").because(why));
    }
    let parse = || {
        let mut from = Reader(value);
        from.version()?;
        let len = from.u16()?;
        let id = from.take(len.into())?.to_vec();
        let len = from.u16()?;
        let text = std::str::from_utf8(from.take(len.into())?).ok()?.to_owned();
        from.end()?;
        Some(LowerIdentity { id, text })
    };
    parse().ok_or_else(|| damage(Own::Root, "the root of the upper"))
}

impl Way {
    /// Whether a further name fits into it. Only one without names has room for every name.
    pub fn has_room(&self, name: &[u8]) -> bool {
        self.names.iter().map(|name| 1 + name.len()).sum::<usize>() + 1 + name.len() <= WAY_LEN_MAX_BYTES
    }

    fn flags(&self) -> u8 {
        if self.anchor.is_some() { ANCHORED } else { 0 }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.anchor.iter().flat_map(|anchor| anchor.0.to_le_bytes()));
        // Of names for which there is room there are not too many.
        out.extend((self.names.len() as u16).to_le_bytes());
        for name in &self.names {
            // A name has at most 255 bytes.
            out.push(name.len() as u8);
            out.extend(name);
        }
    }

    /// The rest of a value that began with these flags.
    fn take(from: &mut Reader<'_>, flags: u8) -> Option<Way> {
        let anchor = if flags & ANCHORED == 0 { None } else { Some(AnchorId(from.u64()?)) };
        let mut names = Vec::new();
        for _ in 0..from.u16()? {
            let len = from.u8()?;
            names.push(FileName::new(from.take(len.into())?).ok()?.as_bytes().to_vec());
        }
        from.end()?;
        Some(Way { anchor, names })
    }

    /// The value of an anchor.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.flags()];
        self.put(&mut out);
        out
    }

    /// # Errors
    /// `Corrupt`, of `subject`.
    pub fn decode(value: &[u8], subject: &str) -> Result<Way> {
        let parse = || {
            let mut from = Reader(value);
            from.version()?;
            let flags = from.u8().filter(|&flags| flags & !ANCHORED == 0)?;
            Way::take(&mut from, flags)
        };
        parse().ok_or_else(|| damage(Own::Anchor, subject))
    }
}

impl Origin {
    /// Its value.
    pub fn encode(&self) -> Vec<u8> {
        let kind = KINDS.iter().position(|&kind| kind == self.print.kind).unwrap_or(0) as u8 + 1;
        let mut out = vec![VERSION, kind, self.way.flags() | if self.opaque { OPAQUE } else { 0 }];
        out.extend(self.print.ino.0.to_le_bytes());
        out.extend(self.print.size.to_le_bytes());
        time(&mut out, self.print.mtime);
        time(&mut out, self.print.ctime);
        self.way.put(&mut out);
        out
    }

    /// # Errors
    /// `Corrupt`, of `subject`.
    pub fn decode(value: &[u8], subject: &str) -> Result<Origin> {
        let parse = || {
            let mut from = Reader(value);
            from.version()?;
            let kind = *KINDS.get(usize::from(from.u8()?).checked_sub(1)?)?;
            let flags = from.u8().filter(|&flags| flags & !(OPAQUE | ANCHORED) == 0)?;
            let ino = from.u64().filter(|&ino| ino != 0 && ino < INOS_END).map(Ino)?;
            let (size, mtime, ctime) = (from.u64()?, from.time()?, from.time()?);
            let print = Fingerprint { ino, kind, size, mtime, ctime };
            Some(Origin { print, opaque: flags & OPAQUE != 0, way: Way::take(&mut from, flags)? })
        };
        parse().ok_or_else(|| damage(Own::Origin, subject))
    }
}

impl Extent {
    /// Bytes that may still be the lower's.
    pub fn len(&self) -> u64 {
        let bytes = |blocks: &std::ops::Range<u64>| (blocks.end * BLOCK).min(self.valid) - blocks.start * BLOCK;
        self.valid - self.zeros.iter().map(bytes).sum::<u64>()
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.valid.to_le_bytes());
        out.extend((self.zeros.len() as u16).to_le_bytes());
        for range in self.zeros.iter() {
            out.extend(range.start.to_le_bytes());
            out.extend(range.end.to_le_bytes());
        }
        out
    }

    /// # Errors
    /// `Corrupt`, of `subject`.
    pub fn decode(value: &[u8], subject: &str) -> Result<Extent> {
        let parse = || {
            let mut from = Reader(value);
            from.version()?;
            let valid = from.u64().filter(|&valid| valid > 0 && i64::try_from(valid).is_ok())?;
            let mut zeros = BlockRanges::default();
            let mut last = 0;
            for _ in 0..from.u16()? {
                let (start, end) = (from.u64()?, from.u64()?);
                let ascends = zeros.is_empty() || start > last;
                if !ascends || start >= end || end > valid.div_ceil(BLOCK) {
                    return None;
                }
                zeros.insert(start..end);
                last = end;
            }
            from.end()?;
            Some(Extent { valid, zeros })
        };
        parse().ok_or_else(|| damage(Own::Content, subject))
    }
}

impl Doubts {
    /// Its value; `None` if there is too much for one.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = vec![VERSION];
        out.extend(u16::try_from(self.len()).ok()?.to_le_bytes());
        for (what, blocks) in self.iter() {
            let first = what.offset / BLOCK;
            out.extend(what.offset.to_le_bytes());
            out.extend(u32::try_from(what.len).ok()?.to_le_bytes());
            out.extend(what.sum.to_le_bytes());
            out.extend(u16::try_from(blocks.len()).ok()?.to_le_bytes());
            for range in blocks.iter() {
                for block in [range.start, range.end] {
                    out.extend(u16::try_from(block.checked_sub(first)?).ok()?.to_le_bytes());
                }
            }
        }
        (out.len() <= VALUE_LEN_MAX_BYTES).then_some(out)
    }

    /// # Errors
    /// `Corrupt`, of `subject`.
    pub fn decode(value: &[u8], subject: &str) -> Result<Doubts> {
        let parse = || {
            let mut from = Reader(value);
            from.version()?;
            let (mut doubts, mut last) = (Doubts::default(), None);
            for _ in 0..from.u16()? {
                let (offset, len, sum) = (from.u64()?, u64::from(from.u32()?), from.u64()?);
                let end = offset.checked_add(len).filter(|&end| len > 0 && i64::try_from(end).is_ok())?;
                let what = Unproved { offset, len, sum };
                let count = from.u16().filter(|&count| count > 0 && last.is_none_or(|last| last < what))?;
                let (first, mut behind) = (offset / BLOCK, None);
                for _ in 0..count {
                    let (start, stop) = (first + u64::from(from.u16()?), first + u64::from(from.u16()?));
                    let ascends = behind.is_none_or(|behind| start > behind);
                    if !ascends || start >= stop || stop > end.div_ceil(BLOCK) {
                        return None;
                    }
                    doubts.add(what, start..stop);
                    behind = Some(stop);
                }
                last = Some(what);
            }
            from.end()?;
            Some(doubts)
        };
        parse().ok_or_else(|| damage(Own::Unproved, subject))
    }
}

pub(super) fn encode_links(count: u32) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend(count.to_le_bytes());
    out
}

/// # Errors
/// `Corrupt`, of `subject`.
pub(super) fn decode_links(value: &[u8], subject: &str) -> Result<u32> {
    let parse = || {
        let mut from = Reader(value);
        from.version()?;
        let count = from.u32()?;
        from.end().map(|()| count)
    };
    parse().ok_or_else(|| damage(Own::Links, subject))
}

/// The body of the fuzz target `overlay_record`: any bytes as each of the values. What decodes is written again as it was read.
pub(super) fn fuzz(data: &[u8]) {
    if let Ok(lower) = decode_root(data) {
        assert!(encode_root(&lower).map_or(data.len() > VALUE_LEN_MAX_BYTES, |value| value == data));
    }
    if let Ok(origin) = Origin::decode(data, "fuzz") {
        assert_eq!(origin.encode(), data);
    }
    if let Ok(way) = Way::decode(data, "fuzz") {
        assert_eq!(way.encode(), data);
    }
    if let Ok(extent) = Extent::decode(data, "fuzz") {
        assert_eq!(extent.encode(), data);
    }
    if let Ok(doubts) = Doubts::decode(data, "fuzz") {
        assert!(doubts.encode().map_or(data.len() > VALUE_LEN_MAX_BYTES, |value| value == data));
    }
    if let Ok(count) = decode_links(data, "fuzz") {
        assert_eq!(encode_links(count), data);
    }
}

/// The name in the index of a copy of what has several names in the lower: its number there, and what proves that no other object has it.
pub(super) fn index_name(print: &Fingerprint) -> String {
    let time = |time: Timestamp| format!("{:016x}{:08x}", time.secs, time.nanos);
    format!("{:016x}-{:x}-{}-{}", print.ino.0, print.size, time(print.mtime), time(print.ctime))
}

/// The one that copies had before.
pub(super) fn index_name_by_number(ino: Ino) -> String {
    format!("{:016x}", ino.0)
}

/// A path of the lower, for messages.
pub(super) fn shown(path: &[Vec<u8>]) -> String {
    let names: Vec<_> = path.iter().map(|name| String::from_utf8_lossy(name)).collect();
    format!("/{}", names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn origin() -> Origin {
        let time = |secs, nanos| Timestamp { secs, nanos };
        let (mtime, ctime) = (time(1, 2), time(-1, 3));
        let print = Fingerprint { ino: Ino(0x1234), kind: Kind::File, size: 5000, mtime, ctime };
        Origin { print, opaque: false, way: Way { anchor: None, names: vec![b"d".to_vec(), b"name".to_vec()] } }
    }

    #[test]
    fn values_are_those_of_the_format() {
        let origin = origin();
        let value = origin.encode();
        let expected = "010100341200000000000088130000000000000100000000000000\
                        02000000ffffffffffffffff0300000002000164046e616d65";
        assert_eq!(hex(&value), expected);
        assert_eq!(Origin::decode(&value, "x").unwrap(), origin);
        let key = "0000000000001234-1388-000000000000000100000002-ffffffffffffffff00000003";
        assert_eq!(index_name(&origin.print), key);
        assert_eq!(index_name_by_number(origin.print.ino), key[..16]);

        let way = Way { anchor: Some(AnchorId(0x77)), names: vec![b"name".to_vec()] };
        assert_eq!(hex(&way.encode()), "010277000000000000000100046e616d65");
        assert_eq!(Way::decode(&way.encode(), "x").unwrap(), way);
        let origin = Origin { way, opaque: true, ..origin };
        let value = origin.encode();
        let expected = "010103341200000000000088130000000000000100000000000000\
                        02000000ffffffffffffffff0300000077000000000000000100046e616d65";
        assert_eq!(hex(&value), expected);
        assert_eq!(Origin::decode(&value, "x").unwrap(), origin);

        let mut extent = Extent { valid: 20000, ..Extent::default() };
        extent.zeros.insert(1..3);
        assert_eq!(hex(&extent.encode()), "01204e000000000000010001000000000000000300000000000000");
        assert_eq!(Extent::decode(&extent.encode(), "x").unwrap(), extent);

        let mut doubts = Doubts::default();
        let what = Unproved { offset: 0x10_0000, len: 0x10_0000, sum: 0x1234 };
        [0x100..0x101, 0x105..0x108].into_iter().for_each(|blocks| doubts.add(what, blocks));
        let value = doubts.encode().unwrap();
        assert_eq!(hex(&value), "0101000000100000000000000010003412000000000000020000000100050008".to_owned() + "00");
        assert_eq!(Doubts::decode(&value, "x").unwrap(), doubts);

        assert_eq!(hex(&encode_links(3)), "0103000000");
        assert_eq!(decode_links(&encode_links(3), "x").unwrap(), 3);

        let lower = LowerIdentity { id: vec![1, 2], text: "s".to_owned() };
        let value = encode_root(&lower).unwrap();
        assert_eq!(hex(&value), "0102000102010073");
        assert_eq!(decode_root(&value).unwrap(), lower);
    }

    fn decode_origin(value: &[u8]) -> Result<()> {
        Origin::decode(value, "x").map(drop)
    }

    fn decode_doubts(value: &[u8]) -> Result<()> {
        Doubts::decode(value, "x").map(drop)
    }

    fn decode_extent(value: &[u8]) -> Result<()> {
        Extent::decode(value, "x").map(drop)
    }

    /// Every shorter value, and every one with a byte more or another version, is damage, and none is a panic.
    #[test]
    fn what_is_not_whole_is_damage() {
        let corrupt = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt);
        let mut extent = Extent { valid: 20000, ..Extent::default() };
        extent.zeros.insert(1..3);
        let (value, content) = (origin().encode(), extent.encode());
        let anchor = Way { anchor: Some(AnchorId(7)), ..origin().way }.encode();
        let mut doubts = Doubts::default();
        doubts.add(Unproved { offset: 4096, len: 9000, sum: 1 }, 2..4);
        let unproved = doubts.encode().unwrap();
        type Decode = fn(&[u8]) -> Result<()>;
        let values: [(_, Decode); 4] = [
            (&value, decode_origin),
            (&content, decode_extent),
            (&unproved, decode_doubts),
            (&anchor, |value| Way::decode(value, "x").map(drop)),
        ];
        for (value, decode) in values {
            (0..value.len()).for_each(|len| corrupt(decode(&value[..len])));
            corrupt(decode(&[&value[..], &[0]].concat()));
            corrupt(decode(&[&[2][..], &value[1..]].concat()));
        }
        corrupt(decode_links(&[1, 2, 3, 4], "x").map(drop));
        corrupt(decode_links(&[1, 2, 3, 4, 5, 6], "x").map(drop));
        corrupt(decode_root(&[1, 9, 0]).map(drop));
        assert_eq!(decode_root(&[2]).unwrap_err().kind(), ErrorKind::NotSupported);
        for at in 0..value.len() {
            for bit in 0..8 {
                let mut flipped = value.clone();
                flipped[at] ^= 1 << bit;
                drop(Origin::decode(&flipped, "x"));
            }
        }
        // Blocks behind the valid part, and ranges that do not ascend.
        let zeros = |start: u64, end: u64| [start.to_le_bytes(), end.to_le_bytes()].concat();
        for bad in [zeros(0, 6), zeros(2, 2), zeros(3, 2), [zeros(2, 3), zeros(1, 2)].concat()] {
            let count = (bad.len() / 16) as u16;
            let value = [&[1][..], &20000_u64.to_le_bytes(), &count.to_le_bytes(), &bad].concat();
            corrupt(Extent::decode(&value, "x").map(drop));
        }
    }

    #[test]
    fn doubts_are_of_blocks_in_their_stretch_and_there_are_not_too_many() {
        let stretch = |ranges: &[(u16, u16)]| {
            let mut value = vec![1, 1, 0];
            value.extend(8192_u64.to_le_bytes());
            value.extend(8192_u32.to_le_bytes());
            value.extend(1_u64.to_le_bytes());
            value.extend((ranges.len() as u16).to_le_bytes());
            ranges.iter().for_each(|(start, end)| value.extend([start.to_le_bytes(), end.to_le_bytes()].concat()));
            value
        };
        decode_doubts(&stretch(&[(0, 2)])).unwrap();
        for bad in [&[][..], &[(0, 3)], &[(1, 1)], &[(1, 2), (0, 1)], &[(0, 1), (1, 2)]] {
            assert_eq!(decode_doubts(&stretch(bad)).unwrap_err().kind(), ErrorKind::Corrupt, "{bad:?}");
        }
        let mut doubts = Doubts::default();
        for n in 0..400 {
            doubts.add(Unproved { offset: n << 20, len: 1 << 20, sum: n }, n << 8..(n << 8) + 1);
        }
        assert!(doubts.encode().is_none());
    }

    /// A value has room for a way that is full, and for all that was ever written as one.
    #[test]
    fn a_way_that_has_room_fits_into_a_value() {
        let mut way = Way { anchor: Some(AnchorId(7)), names: Vec::new() };
        assert!(way.has_room(&[b'n'; 255]));
        while way.has_room(b"n") {
            way.names.push(b"n".to_vec());
        }
        assert_eq!(way.names.len(), WAY_LEN_MAX_BYTES / 2);
        assert!(Origin { way, ..origin() }.encode().len() < VALUE_LEN_MAX_BYTES);
        let way = Way { anchor: None, names: vec![vec![b'n'; 255]; 31] };
        let origin = Origin { way, ..origin() };
        assert_eq!(Origin::decode(&origin.encode(), "x").unwrap(), origin);
        assert!(!origin.way.has_room(b"n"));
    }

    #[test]
    fn zeros_are_not_the_lowers() {
        let mut extent = Extent { valid: 5 * BLOCK + 1, ..Extent::default() };
        assert_eq!(extent.len(), 5 * BLOCK + 1);
        extent.zeros.insert(1..3);
        extent.zeros.insert(5..6);
        assert_eq!(extent.len(), 3 * BLOCK);
    }
}
