//! The content of one file: what the process sees, what is durable, and every version in between.

use std::collections::BTreeMap;

/// The unit that a disk writes as a whole.
pub(super) const SECTOR_LEN: usize = 512;
/// The unit in which the page cache writes back.
const PAGE_LEN: usize = 4096;

/// The number of an unsynced change, in the order of their making.
pub(super) type Seq = u64;

#[derive(Clone)]
pub(super) struct Version {
    pub seq: Seq,
    /// Whether it is the first sector of its write.
    pub head: bool,
    /// Whether a sync failed over it: neither on disk for sure, nor to be written by the next sync.
    pub in_doubt: bool,
    pub bytes: [u8; SECTOR_LEN],
}

#[derive(Clone, Default)]
pub(super) struct Content {
    pub live: Vec<u8>,
    /// As of the last completed sync, in whole sectors, zeros after the length.
    pub durable: Vec<u8>,
    pub durable_len: usize,
    /// Later versions by sector number, oldest first.
    pub sectors: BTreeMap<usize, Vec<Version>>,
    /// Later lengths, oldest first.
    pub lens: Vec<(Seq, usize)>,
}

impl Content {
    /// A file that has been durable since long ago.
    pub fn settled(bytes: Vec<u8>) -> Self {
        let mut content = Content { live: bytes, ..Content::default() };
        content.settle();
        content
    }

    /// Everything that ever was is on disk.
    pub fn settle(&mut self) {
        self.sectors.clear();
        self.lens.clear();
        self.durable_len = self.live.len();
        self.durable = self.live.clone();
        self.durable.resize(self.live.len().next_multiple_of(SECTOR_LEN), 0);
    }

    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> usize {
        let from = self.live.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let len = buf.len().min(self.live.len() - from);
        buf[..len].copy_from_slice(&self.live[from..from + len]);
        len
    }

    pub fn write_at(&mut self, seqs: &mut Seq, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        if end > self.live.len() {
            self.change_len(seqs, end);
        }
        self.live[offset..end].copy_from_slice(bytes);
        self.note(seqs, offset, end);
    }

    pub fn set_len(&mut self, seqs: &mut Seq, len: usize) {
        if len != self.live.len() {
            self.change_len(seqs, len);
        }
    }

    /// Zeros the range, as far as the file goes.
    pub fn punch(&mut self, seqs: &mut Seq, offset: usize, len: usize) {
        let end = offset.saturating_add(len).min(self.live.len());
        if offset < end {
            self.live[offset..end].fill(0);
            self.note(seqs, offset, end);
        }
    }

    fn change_len(&mut self, seqs: &mut Seq, len: usize) {
        let old = self.live.len();
        self.live.resize(len, 0);
        *seqs += 1;
        self.lens.push((*seqs, len));
        if len < old {
            // The page cache clears the rest of the last page, and that may reach the disk before the length does.
            let page_end = len.next_multiple_of(PAGE_LEN).min(old);
            if page_end > len {
                self.note(seqs, len, page_end);
            }
        } else {
            // What an earlier, longer file left beyond the old end is zero now.
            let left = self.sectors.last_key_value().map_or(0, |(last, _)| (last + 1) * SECTOR_LEN);
            let left = left.max(self.durable.len()).min(len);
            if left > old {
                self.note(seqs, old, left);
            }
        }
    }

    /// Records the live state of the sectors that `from..to` touches as one more version of each.
    fn note(&mut self, seqs: &mut Seq, from: usize, to: usize) {
        *seqs += 1;
        let first = from / SECTOR_LEN;
        for sector in first..to.div_ceil(SECTOR_LEN) {
            let mut bytes = [0; SECTOR_LEN];
            let start = (sector * SECTOR_LEN).min(self.live.len());
            let end = (start + SECTOR_LEN).min(self.live.len());
            bytes[..end - start].copy_from_slice(&self.live[start..end]);
            let version = Version { seq: *seqs, head: sector == first, in_doubt: false, bytes };
            self.sectors.entry(sector).or_default().push(version);
        }
    }

    /// A sync completes.
    pub fn sync(&mut self) {
        self.durable_len = self.live.len();
        self.lens.clear();
        self.durable.resize(self.live.len().next_multiple_of(SECTOR_LEN), 0);
        let durable = &mut self.durable;
        self.sectors.retain(|&sector, versions| {
            let start = sector * SECTOR_LEN;
            // Beyond the end: given back.
            let Some(place) = durable.get_mut(start..start + SECTOR_LEN) else { return false };
            match versions.last() {
                Some(last) if last.in_doubt => true,
                Some(last) => {
                    place.copy_from_slice(&last.bytes);
                    false
                }
                None => false,
            }
        });
    }

    /// A sync fails: its pages count as clean, whatever is on disk.
    pub fn fail_sync(&mut self) {
        for version in self.sectors.values_mut().flatten() {
            version.in_doubt = true;
        }
    }
}
