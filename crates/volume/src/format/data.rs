//! The label of a folder of blocks: whose they are, and since when. `docs/formats/volume.md` has the bytes.

use super::Reader;

/// The first bytes.
pub const MAGIC: [u8; 8] = *b"ADITDATA";
/// The version that this code writes, and the only one that it reads.
pub const VERSION: u32 = 1;
/// Length of a label in bytes.
pub const LABEL_LEN_BYTES: usize = 48;
/// Where the two labels of a folder are: that of an epoch that is begun, and that of one that is about to be.
pub const LABEL_OFFSETS: [u64; 2] = [0, 512];

/// What a label says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// The volume that the blocks belong to.
    pub uuid: [u8; 16],
    /// Length of a segment, and so of an object at most, in bytes.
    pub segment_len: u32,
    /// The volume's epoch when this was written.
    pub epoch: u64,
    /// Whether the superblock of that epoch was still to be written.
    pub opening: bool,
}

impl Label {
    /// Its bytes.
    pub fn encode(&self) -> [u8; LABEL_LEN_BYTES] {
        let mut out = [0; LABEL_LEN_BYTES];
        let fields: [&[u8]; 6] = [
            &MAGIC,
            &VERSION.to_le_bytes(),
            &self.segment_len.to_le_bytes(),
            &self.uuid,
            &self.epoch.to_le_bytes(),
            &[u8::from(self.opening)],
        ];
        let content = fields.concat();
        out[..content.len()].copy_from_slice(&content);
        let (content, sum) = out.split_at_mut(LABEL_LEN_BYTES - 4);
        sum.copy_from_slice(&crc32c::crc32c(content).to_le_bytes());
        out
    }

    /// Where it is written: so that a crash leaves the other one.
    pub fn offset(&self) -> u64 {
        LABEL_OFFSETS[usize::from(self.opening)]
    }

    /// The newer of the labels in `bytes`, those of a folder, if one is whole.
    pub fn newest(bytes: &[u8]) -> Option<Label> {
        let at = |offset: u64| bytes.get(offset as usize..)?.get(..LABEL_LEN_BYTES).and_then(Label::decode);
        LABEL_OFFSETS.into_iter().filter_map(at).max_by_key(|label| (label.epoch, !label.opening))
    }

    /// What `bytes` say, if they are a label of this version.
    pub fn decode(bytes: &[u8]) -> Option<Label> {
        let (content, sum) = bytes.split_last_chunk::<4>()?;
        let mut fields = Reader(content);
        let known = fields.array() == Some(MAGIC) && fields.u32() == Some(VERSION);
        if !known || bytes.len() != LABEL_LEN_BYTES || crc32c::crc32c(content) != u32::from_le_bytes(*sum) {
            return None;
        }
        let segment_len = fields.u32()?;
        let uuid = fields.array()?;
        let epoch = fields.u64()?;
        let opening = match fields.u32()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Label { uuid, segment_len, epoch, opening })
    }

    /// Whether a volume of this epoch may use what the label is on. A file that says an earlier one is a copy from before; one
    /// that says a later one, a file whose folder is the copy.
    pub fn fits(&self, epoch: u64) -> bool {
        self.epoch == epoch || (self.opening && self.epoch == epoch.wrapping_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of docs/formats/volume.md.
    #[test]
    fn the_worked_example() {
        let label = Label { uuid: *b"0123456789abcdef", segment_len: 4 << 20, epoch: 3, opening: true };
        let bytes = label.encode();
        assert_eq!(bytes[..44], *b"ADITDATA\x01\0\0\0\0\0\x40\x000123456789abcdef\x03\0\0\0\0\0\0\0\x01\0\0\0");
        assert_eq!(Label::decode(&bytes), Some(label));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Label::decode(&bytes), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Label::decode(&bytes[..len]), None);
        }
    }

    #[test]
    fn the_newer_one_that_is_whole_counts() {
        let label = |epoch, opening| Label { uuid: [1; 16], segment_len: 4 << 20, epoch, opening };
        let mut bytes = vec![0; 560];
        let mut write = |label: Label| {
            bytes[label.offset() as usize..][..LABEL_LEN_BYTES].copy_from_slice(&label.encode());
            Label::newest(&bytes)
        };
        for (epoch, opening) in [(0, false), (1, true), (1, false), (2, true)] {
            assert_eq!(write(label(epoch, opening)), Some(label(epoch, opening)));
        }
        bytes[520] ^= 1;
        assert_eq!(Label::newest(&bytes), Some(label(1, false)));
        assert_eq!((Label::newest(&bytes[..47]), Label::newest(&[])), (None, None));
    }

    #[test]
    fn a_copy_from_before_does_not_fit() {
        let label = Label { uuid: [0; 16], segment_len: 4 << 20, epoch: 3, opening: true };
        assert!(label.fits(3) && label.fits(2) && !label.fits(1) && !label.fits(4));
        let done = Label { opening: false, ..label };
        assert!(done.fits(3) && !done.fits(2) && !done.fits(4));
    }
}
