//! What is known of a node on its way into a segment, as bytes in memory and in scratch files. Not a format: what one process
//! writes it reads itself.

use std::io::{self, Read};

use crate::layout::Mode;
use crate::{ContentHash, Stamp};

/// Bytes of the [`Heap`](super::heap::Heap) that go with a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub at: u64,
    pub len: u32,
}

/// What is known of a node but its name and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Size in bytes; of a directory its children, once they are counted.
    pub size: u64,
    pub mtime_ns: i64,
    pub mode: Mode,
    /// Zeros where `mode` says that there is none.
    pub hash: ContentHash,
    /// Zeros where there is none.
    pub stamp: Stamp,
    pub extra: Option<Stretch>,
}

const FIXED_LEN: usize = 19;
/// Most bytes of [`Facts`].
pub(crate) const FACTS_LEN_MAX: usize = FIXED_LEN + 16 + 8 + 12;
/// What comes behind the hash.
const HAS_EXTRA: u8 = 1;
const HAS_STAMP: u8 = 2;

impl Facts {
    /// Of a node of which nothing is known yet.
    pub const NOTHING: Facts = Facts { size: 0, mtime_ns: 0, mode: Mode(0), hash: [0; 16], stamp: [0; 8], extra: None };

    pub fn has_stamp(&self) -> bool {
        self.stamp != [0; 8]
    }

    /// Appends the bytes. The first eight are the size.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.size.to_le_bytes());
        out.extend(self.mtime_ns.to_le_bytes());
        out.extend(self.mode.0.to_le_bytes());
        let extra = if self.extra.is_some() { HAS_EXTRA } else { 0 };
        out.push(extra | if self.has_stamp() { HAS_STAMP } else { 0 });
        if self.mode.has_hash() {
            out.extend(self.hash);
        }
        if self.has_stamp() {
            out.extend(self.stamp);
        }
        if let Some(extra) = self.extra {
            out.extend(extra.at.to_le_bytes());
            out.extend(extra.len.to_le_bytes());
        }
    }

    /// Reads what [`Facts::write`] wrote.
    pub fn read(input: &mut impl Read) -> io::Result<Facts> {
        let size = u64::from_le_bytes(array(input)?);
        let mtime_ns = i64::from_le_bytes(array(input)?);
        let mode = Mode(u16::from_le_bytes(array(input)?));
        let [has] = array(input)?;
        let hash = if mode.has_hash() { array(input)? } else { [0; 16] };
        let stamp = if has & HAS_STAMP != 0 { array(input)? } else { [0; 8] };
        let extra = if has & HAS_EXTRA != 0 {
            let at = u64::from_le_bytes(array(input)?);
            Some(Stretch { at, len: u32::from_le_bytes(array(input)?) })
        } else {
            None
        };
        Ok(Facts { size, mtime_ns, mode, hash, stamp, extra })
    }
}

/// The next bytes of `input`.
pub(crate) fn array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}
