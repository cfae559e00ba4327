//! What lies in a volume's file, as pure functions between bytes and values: no I/O, no panic on any input.
//!
//! [`container`]: the superblock. [`data`]: the label of a folder of blocks. [`log`]: the records of the log. [`own`]: what the base keeps
//! in the key-value store. [`keys`] and [`records`]: what the tree keeps in the table.
//! Integers are little-endian, but big-endian in keys.

pub mod container;
pub mod data;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod keys;
pub mod log;
pub(crate) mod own;
pub mod records;

/// Reads integers off the front of bytes; `None` once they are used up.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
