//! The two files of an object that is kept in blocks: its data, as long as the object at most and with holes where nothing was
//! fetched yet, and its [map](super::map).
//!
//! A [`Generation`] is one such pair, open. Its data file belongs to its map by a number in both, so that files of different
//! times never meet. Invariants: a block's bytes are written before its record, by whoever holds the lock on that record; a block
//! that has a record is not written again, unless its bytes were found damaged and the object has no verdict; files are removed
//! by name only, so that whoever has them open may go on to read.
//!
//! What a process reads it has compared with the block's checksum once (`checked`), or has written itself.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use adit_core::error::{ErrorKind, kind_of_io};
use adit_core::media::{HostDir, HostFile, NewFile};
use adit_core::types::{Access, Kind, SetAttr, SetTime};
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use super::bits::Bits;
use super::id::{Name, OBJECTS, ObjectId, shard_path};
use super::map::{
    HEADER_LEN, Header, RECORD_LEN, VERDICT_OFFSET, digest_in, record, record_offset, sum_in, verdict, verdict_len,
};
use super::want::Want;

/// Bytes of data that are read and hashed at a time.
const PIECE_LEN: usize = 32 << 10;
/// Records that are read at a time.
const RECORDS_AT_ONCE: u64 = 1024;

/// Who may read what is in the folder.
pub(super) const FILE_PERM: u16 = 0o600;
/// Who may see what is in it.
pub(super) const DIR_PERM: u16 = 0o700;

/// What is known of the object as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Trust {
    /// Nothing.
    None,
    /// The blocks' checksums are those of an object that had its hash, as somebody found out before.
    BySums,
    /// This process found that it has its hash.
    Verified,
}

/// What a look at a block finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// It is there.
    Good,
    /// It is not what was written.
    Bad,
    /// It is not there.
    Absent,
}

/// The hash of the blocks that were written in order, from the first on.
struct InOrder {
    blocks: u64,
    whole: Xxh3,
    /// Of their checksums.
    sums: Xxh3,
}

impl InOrder {
    fn new() -> Self {
        InOrder { blocks: 0, whole: Xxh3::new(), sums: Xxh3::new() }
    }
}

/// What [`Generation::verify`] finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The object has its hash.
    Good,
    /// It has this one.
    Mismatch(u128),
    /// Not all of it is there, or somebody changed it meanwhile.
    Incomplete,
    /// This block is not what was written.
    Damaged(u64),
}

/// What [`Generation::look`] finds.
pub(super) enum Opened {
    There(Box<Generation>),
    Absent,
    /// Something that is not a map and its data.
    Foreign,
}

/// What [`Generation::audit`] finds.
#[derive(Default)]
pub(super) struct Audit {
    /// Bytes that were compared with a checksum.
    pub bytes: u64,
    /// Blocks that are not what was written.
    pub bad: Vec<u64>,
    /// The hash, if all blocks are there.
    pub hash: Option<u128>,
}

/// An open pair of files of an object.
pub(super) struct Generation {
    header: Header,
    key: u64,
    data: Box<dyn HostFile>,
    map: Box<dyn HostFile>,
    /// Blocks with a record, as far as this process knows.
    known: Bits,
    /// Blocks that this process has written, or compared with their checksum.
    checked: Bits,
    trust: AtomicU8,
    gone: AtomicBool,
    in_order: Mutex<InOrder>,
    /// Whether somebody is at [`Generation::advance`].
    advancing: AtomicBool,
    /// Held by who verifies.
    verifying: Mutex<()>,
}

impl Generation {
    fn new(header: Header, data: Box<dyn HostFile>, map: Box<dyn HostFile>) -> Self {
        let blocks = header.blocks();
        Generation {
            header,
            key: header.key(),
            data,
            map,
            known: Bits::new(blocks),
            checked: Bits::new(blocks),
            trust: AtomicU8::new(Trust::None as u8),
            gone: AtomicBool::new(false),
            in_order: Mutex::new(InOrder::new()),
            advancing: AtomicBool::new(false),
            verifying: Mutex::new(()),
        }
    }

    /// Opens what there is of an object to change it. What cannot be it is taken out of the way.
    pub fn open(host: &dyn HostDir, id: ObjectId) -> io::Result<Option<Generation>> {
        match Generation::look(host, id, Access::Write)? {
            Opened::There(generation) => Ok(Some(*generation)),
            Opened::Absent => Ok(None),
            // Without its map the data is nothing, and is swept.
            Opened::Foreign => remove_file(host, &Name::Map(id)).map(|()| None),
        }
    }

    /// Opens what there is of an object, and changes nothing.
    pub fn look(host: &dyn HostDir, id: ObjectId, access: Access) -> io::Result<Opened> {
        let map = match open_regular(host, &Name::Map(id), access)? {
            Ok(map) => map,
            Err(missing) => return Ok(missing),
        };
        let mut header = [0; HEADER_LEN];
        let len = map.read_at(0, &mut header)?;
        let Some(header) = header.get(..len).and_then(|header| Header::decode(header, id)) else {
            return Ok(Opened::Foreign);
        };
        let data = match open_regular(host, &Name::Data(id, header.nonce), access)? {
            Ok(data) if data.stat()?.size <= id.len => data,
            _ => return Ok(Opened::Foreign),
        };
        let generation = Generation::new(header, data, map);
        if let Some(digest) = generation.survey()? {
            let mut bytes = [0; verdict_len()];
            let len = generation.map.read_at(VERDICT_OFFSET, &mut bytes)?;
            if bytes.get(..len).and_then(|bytes| digest_in(generation.key, bytes)) == Some(digest) {
                generation.set_trust(Trust::BySums);
            }
        }
        Ok(Opened::There(Box::new(generation)))
    }

    /// Makes an empty one, or opens the one that somebody else made at that moment. `Unsupported` for an object that cannot be
    /// kept in blocks of this length.
    pub fn create(host: &dyn HostDir, id: ObjectId, block_len: u32) -> io::Result<Generation> {
        let header = Header::new(id, block_len, fresh_nonce()).ok_or(io::ErrorKind::Unsupported)?;
        let data_name = Name::Data(id, header.nonce);
        let data = publish(host, &data_name, &[])?;
        let e = match publish(host, &Name::Map(id), &header.encode()) {
            Ok(map) => return Ok(Generation::new(header, data, map)),
            Err(e) => e,
        };
        // Nobody knows of the data file.
        let _ = host.remove(&data_name.path(), Kind::File);
        match e.kind() {
            io::ErrorKind::AlreadyExists => Generation::open(host, id)?.ok_or(e),
            _ => Err(e),
        }
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.header.blocks()
    }

    /// The block that a byte is in.
    pub fn block_of(&self, at: u64) -> u64 {
        at / u64::from(self.header.block_len)
    }

    /// The bytes of a block.
    pub fn range(&self, block: u64) -> Range<u64> {
        let len = u64::from(self.header.block_len);
        block * len..((block + 1) * len).min(self.header.id.len)
    }

    pub fn trust(&self) -> Trust {
        match self.trust.load(Ordering::Acquire) {
            0 => Trust::None,
            1 => Trust::BySums,
            _ => Trust::Verified,
        }
    }

    fn set_trust(&self, trust: Trust) {
        self.trust.store(trust as u8, Ordering::Release);
    }

    /// Whether this process knows that each byte is the object's.
    pub fn is_verified(&self) -> bool {
        match self.trust() {
            Trust::None => false,
            Trust::BySums => self.checked.all(),
            Trust::Verified => true,
        }
    }

    /// Whether all blocks have a record, as far as this process knows.
    pub fn is_complete(&self) -> bool {
        self.known.all()
    }

    /// Whether a block has a record, as far as this process knows.
    pub fn is_known(&self, block: u64) -> bool {
        self.known.get(block)
    }

    /// Whether a block may be read without another look at its checksum.
    pub fn is_checked(&self, block: u64) -> bool {
        self.checked.get(block)
    }

    /// Notes that its names were taken away.
    pub fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Notes that its names are about to be taken away. False if that was noted before.
    pub fn start_removal(&self) -> bool {
        !self.gone.swap(true, Ordering::AcqRel)
    }

    /// Whether they were, by whomever, as of the last look.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Looks whether they were.
    pub fn look_if_gone(&self) -> io::Result<bool> {
        if !self.is_gone() && self.map.stat()?.nlink == 0 {
            self.set_gone();
        }
        Ok(self.is_gone())
    }

    /// Takes the files' names away. What is open of them stays readable.
    pub fn remove(&self, host: &dyn HostDir) -> io::Result<()> {
        self.set_gone();
        let id = self.header.id;
        // The map first: without it the data is nothing.
        let map = remove_file(host, &Name::Map(id));
        map.and(remove_file(host, &Name::Data(id, self.header.nonce)))
    }

    /// Notes that the object was used, for whoever chooses what to remove.
    pub fn touch(&self) -> io::Result<()> {
        self.map.set_attr(&SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() })
    }

    /// The host's number and the length of the data file.
    pub fn data_identity(&self) -> io::Result<(u64, u64)> {
        let attr = self.data.stat()?;
        Ok((attr.ino.0, attr.size))
    }

    /// The checksum of a block, if it has a record.
    pub fn sum(&self, block: u64) -> io::Result<Option<u64>> {
        let mut bytes = [0; RECORD_LEN];
        let len = self.map.read_at(record_offset(block), &mut bytes)?;
        let sum = bytes.get(..len).and_then(|bytes| sum_in(self.key, block, bytes));
        match sum {
            Some(_) => self.known.set(block),
            None => self.forget(block),
        }
        Ok(sum)
    }

    fn forget(&self, block: u64) {
        self.known.clear(block);
        self.checked.clear(block);
    }

    /// Reads all records, and returns the digest of the checksums if there are all.
    pub fn survey(&self) -> io::Result<Option<u128>> {
        let mut digest = Some(Xxh3::new());
        let mut buffer = vec![0; RECORDS_AT_ONCE.min(self.blocks()) as usize * RECORD_LEN];
        let mut block = 0;
        while block < self.blocks() {
            let count = RECORDS_AT_ONCE.min(self.blocks() - block);
            let bytes = &mut buffer[..count as usize * RECORD_LEN];
            let len = self.map.read_at(record_offset(block), bytes)?;
            bytes[len..].fill(0);
            for record in bytes.chunks_exact(RECORD_LEN) {
                match sum_in(self.key, block, record) {
                    Some(sum) => {
                        self.known.set(block);
                        if let Some(digest) = &mut digest {
                            digest.update(&sum.to_le_bytes());
                        }
                    }
                    None => digest = None,
                }
                block += 1;
            }
        }
        Ok(digest.map(|digest| digest.digest128()))
    }

    /// Fills `part`, which starts at `at`, with bytes of blocks that are checked. False if they are there no more.
    pub fn read(&self, at: u64, part: &mut [u8]) -> io::Result<bool> {
        Ok(self.data.read_at(at, part)? == part.len())
    }

    /// Compares a block with its checksum, and takes what is wanted of it by the way.
    pub fn check(&self, block: u64, want: Option<&mut Want<'_>>) -> io::Result<Found> {
        let Some(sum) = self.sum(block)? else { return Ok(Found::Absent) };
        let mut hash = Xxh3::new();
        let whole = self.each_piece(block, want, |piece| hash.update(piece))?;
        if !whole || hash.digest() != sum {
            return Ok(Found::Bad);
        }
        self.checked.set(block);
        Ok(Found::Good)
    }

    /// Hands a block's bytes to `sink`, read into where they are wanted if they are. False if the file ends before it.
    fn each_piece(&self, block: u64, mut want: Option<&mut Want<'_>>, mut sink: impl FnMut(&[u8])) -> io::Result<bool> {
        let Range { start: mut at, end } = self.range(block);
        let mut scratch = [0; PIECE_LEN];
        while at < end {
            let wanted = want.as_ref().map_or(end..end, |want| want.start().max(at)..want.end().min(end));
            let piece = match &mut want {
                Some(want) if wanted.start == at && at < wanted.end => {
                    want.part(at..wanted.end.min(at + PIECE_LEN as u64))
                }
                _ => {
                    // Up to what is wanted, or to the end if nothing is from here on.
                    let to = if wanted.is_empty() { end } else { wanted.start };
                    &mut scratch[..(to - at).min(PIECE_LEN as u64) as usize]
                }
            };
            if self.data.read_at(at, piece)? < piece.len() {
                return Ok(false);
            }
            sink(piece);
            at += piece.len() as u64;
        }
        Ok(true)
    }

    /// Writes bytes of blocks whose lock the caller has.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.data.write_at(at, bytes)
    }

    /// Says that a block, whose lock the caller has, is written.
    pub fn set_record(&self, block: u64, sum: u64) -> io::Result<()> {
        self.map.write_at(record_offset(block), &record(self.key, block, sum))?;
        self.known.set(block);
        self.checked.set(block);
        Ok(())
    }

    /// Takes a block's record away, whose lock the caller has.
    pub fn clear_record(&self, block: u64) -> io::Result<()> {
        self.forget(block);
        // What was hashed of it is not what will be there.
        *self.in_order.lock() = InOrder::new();
        self.map.write_at(record_offset(block), &[0; RECORD_LEN])
    }

    /// Takes the records of `blocks` for this process alone, if no other one has any of them. Within the process it is the
    /// [flights](super::flight) that keep them apart.
    pub fn lock(&self, blocks: Range<u64>) -> io::Result<Option<BlockLock<'_>>> {
        let offset = record_offset(blocks.start);
        let len = record_offset(blocks.end) - offset;
        Ok(self.map.try_lock_range(offset, len)?.then_some(BlockLock { generation: self, offset, len }))
    }

    /// The hash up to `block`, if it is the next one in order.
    pub fn whole_before(&self, block: u64) -> Option<Xxh3> {
        let in_order = self.in_order.lock();
        (in_order.blocks == block).then(|| in_order.whole.clone())
    }

    /// Notes the hash up to `block` with it, which now has a record with `sum`.
    pub fn set_whole_after(&self, block: u64, whole: Xxh3, sum: u64) {
        let mut in_order = self.in_order.lock();
        if in_order.blocks == block {
            in_order.whole = whole;
            in_order.sums.update(&sum.to_le_bytes());
            in_order.blocks += 1;
        }
    }

    /// Hashes blocks that came out of order, as far as there are no gaps: so little is left to be done when the last one has come, for which
    /// a reader waits. One thread at a time, which is none that a reader waits for.
    pub fn advance(&self) -> io::Result<()> {
        if self.advancing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let advanced = self.advance_alone();
        self.advancing.store(false, Ordering::Release);
        advanced
    }

    fn advance_alone(&self) -> io::Result<()> {
        loop {
            let (block, mut whole) = {
                let in_order = self.in_order.lock();
                (in_order.blocks, in_order.whole.clone())
            };
            if block >= self.blocks() || !self.is_checked(block) || self.is_gone() {
                return Ok(());
            }
            let Some(sum) = self.sum(block)? else { return Ok(()) };
            let mut hash = Xxh3::new();
            let is_whole = self.each_piece(block, None, |piece| {
                hash.update(piece);
                whole.update(piece);
            })?;
            // What it is then, whoever verifies finds out.
            if !is_whole || hash.digest() != sum {
                return Ok(());
            }
            self.set_whole_after(block, whole, sum);
        }
    }

    /// Compares the object with its hash. Reads what was not hashed when it was written; nobody waits for it but who verifies
    /// the same object.
    pub fn verify(&self) -> io::Result<Verdict> {
        let _turn = self.verifying.lock();
        if self.trust() == Trust::Verified {
            return Ok(Verdict::Good);
        }
        let (first, mut whole, mut sums) = {
            let in_order = self.in_order.lock();
            (in_order.blocks, in_order.whole.clone(), in_order.sums.clone())
        };
        for block in first..self.blocks() {
            let Some(sum) = self.sum(block)? else { return Ok(Verdict::Incomplete) };
            let mut hash = Xxh3::new();
            let is_whole = self.each_piece(block, None, |piece| {
                hash.update(piece);
                whole.update(piece);
            })?;
            if !is_whole || hash.digest() != sum {
                return Ok(Verdict::Damaged(block));
            }
            sums.update(&sum.to_le_bytes());
        }
        let digest = sums.digest128();
        // Records that are not of what was hashed: another process found damage, and repaired it.
        if self.survey()? != Some(digest) {
            *self.in_order.lock() = InOrder::new();
            return Ok(Verdict::Incomplete);
        }
        let found = whole.digest128();
        if found.to_be_bytes() != self.header.id.hash.0 {
            return Ok(Verdict::Mismatch(found));
        }
        for block in first..self.blocks() {
            self.checked.set(block);
        }
        self.set_trust(Trust::Verified);
        // Lost with a power cut, or now: then it is found out again.
        self.map.write_at(VERDICT_OFFSET, &verdict(self.key, digest))?;
        Ok(Verdict::Good)
    }

    /// Reads all that is there. Changes nothing.
    pub fn audit(&self) -> io::Result<Audit> {
        let mut audit = Audit::default();
        let mut whole = Some(Xxh3::new());
        for block in 0..self.blocks() {
            let Some(sum) = self.sum(block)? else {
                whole = None;
                continue;
            };
            let mut hash = Xxh3::new();
            let is_whole = self.each_piece(block, None, |piece| {
                hash.update(piece);
                if let Some(whole) = &mut whole {
                    whole.update(piece);
                }
            })?;
            let range = self.range(block);
            audit.bytes += range.end - range.start;
            if !is_whole || hash.digest() != sum {
                audit.bad.push(block);
                whole = None;
            }
        }
        audit.hash = whole.map(|whole| whole.digest128());
        Ok(audit)
    }

    /// Compares all blocks with their checksums that this process did not compare yet. Returns a damaged one.
    pub fn check_all(&self) -> io::Result<Option<u64>> {
        for block in 0..self.blocks() {
            if !self.is_checked(block) && self.check(block, None)? != Found::Good {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

/// Records that this process has for itself.
pub(super) struct BlockLock<'a> {
    generation: &'a Generation,
    offset: u64,
    len: u64,
}

impl Drop for BlockLock<'_> {
    fn drop(&mut self) {
        self.generation.map.unlock_range(self.offset, self.len);
    }
}

/// A number that no other generation of an object has.
pub(super) fn fresh_nonce() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Opens a file, or says why there is none.
fn open_regular(host: &dyn HostDir, name: &Name, access: Access) -> io::Result<Result<Box<dyn HostFile>, Opened>> {
    match host.open(&name.path(), access) {
        Ok(file) => Ok(Ok(file)),
        Err(e) => match kind_of_io(&e) {
            ErrorKind::NotFound => Ok(Err(Opened::Absent)),
            // A link, a pipe: nothing that we made.
            ErrorKind::Loop | ErrorKind::InvalidInput => Ok(Err(Opened::Foreign)),
            _ => Err(e),
        },
    }
}

/// Opens a file to change it. What is no regular file is removed, and absent.
pub(super) fn open_file(host: &dyn HostDir, name: &Name) -> io::Result<Option<Box<dyn HostFile>>> {
    match open_regular(host, name, Access::Write)? {
        Ok(file) => Ok(Some(file)),
        Err(Opened::Foreign) => remove_file(host, name).map(|()| None),
        Err(_) => Ok(None),
    }
}

/// Removes a file, if it is there.
pub(super) fn remove_file(host: &dyn HostDir, name: &Name) -> io::Result<()> {
    match host.remove(&name.path(), Kind::File) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Makes a file, and the folders that it lies in.
pub(super) fn publish(host: &dyn HostDir, name: &Name, content: &[u8]) -> io::Result<Box<dyn HostFile>> {
    let (path, new) = (name.path(), NewFile { content, perm: FILE_PERM, owner: None, durable: false });
    match host.publish(&path, &new) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            make_dir(host, OBJECTS.as_ref())?;
            make_dir(host, &shard_path(name.shard()))?;
            host.publish(&path, &new)
        }
        result => result,
    }
}

/// Makes a folder, unless it is there.
pub(super) fn make_dir(host: &dyn HostDir, path: &std::path::Path) -> io::Result<()> {
    match host.make_dir(path, DIR_PERM, None) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}
