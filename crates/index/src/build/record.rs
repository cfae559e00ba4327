//! What is known of a node on its way into a segment, as bytes in memory and in scratch files. Not a format: what one process
//! writes it reads itself.

use std::io::{self, Read};

use crate::ContentHash;
use crate::layout::Mode;

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
    pub extra: Option<Stretch>,
}

const FIXED_LEN: usize = 19;
/// Most bytes of [`Facts`].
pub(crate) const FACTS_LEN_MAX: usize = FIXED_LEN + 16 + 12;

impl Facts {
    /// Appends the bytes. The first eight are the size.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.size.to_le_bytes());
        out.extend(self.mtime_ns.to_le_bytes());
        out.extend(self.mode.0.to_le_bytes());
        out.push(self.extra.is_some().into());
        if self.mode.has_hash() {
            out.extend(self.hash);
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
        let [has_extra] = array(input)?;
        let hash = if mode.has_hash() { array(input)? } else { [0; 16] };
        let extra = if has_extra != 0 {
            let at = u64::from_le_bytes(array(input)?);
            Some(Stretch { at, len: u32::from_le_bytes(array(input)?) })
        } else {
            None
        };
        Ok(Facts { size, mtime_ns, mode, hash, extra })
    }
}

/// The next bytes of `input`.
pub(crate) fn array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}
