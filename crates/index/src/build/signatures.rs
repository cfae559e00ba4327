//! The signatures of names, out of the columns: a stripe at a time, by all threads.

use std::ops::Range;
use std::thread;

use adit_core::error::FsError;

use super::output::WriteError;
use super::tables::Sink;
use crate::cores::cores_up_to;
use crate::layout::signatures::{SIGNATURE_BITS, SIGNATURE_NODES, STRIPE_SIGNATURES, bits_of_name, signature_count};
use crate::segment::Columns;

/// So many signatures are a byte of each bit.
const BYTE: u32 = 8;
/// So many bytes of each bit are filled before they are put where they belong: they stay in a processor's cache meanwhile.
const TILE: usize = 64;
/// Most threads. A stripe has no more work than that.
const THREADS_MAX: usize = 16;

/// Hands the bytes of the section to `sink`. Takes memory for a stripe, 10 MiB.
pub(super) fn make(columns: &Columns<'_>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
    let count = signature_count(columns.len());
    for first in (0..count).step_by(STRIPE_SIGNATURES as usize) {
        let parts = stripe(columns, first..first.saturating_add(STRIPE_SIGNATURES).min(count))?;
        for bit in 0..SIGNATURE_BITS as usize {
            for part in &parts {
                sink(part.slice(bit))?;
            }
        }
    }
    Ok(())
}

/// Some signatures of a stripe, bit by bit.
struct Part {
    bytes: Vec<u8>,
    width: usize,
}

impl Part {
    fn slice(&self, bit: usize) -> &[u8] {
        &self.bytes[bit * self.width..(bit + 1) * self.width]
    }
}

/// The signatures of a stripe, in parts of which each thread makes one.
fn stripe(columns: &Columns<'_>, signatures: Range<u32>) -> Result<Vec<Part>, FsError> {
    let tile = BYTE * TILE as u32;
    let tiles = signatures.len().div_ceil(tile as usize);
    let each = tiles.div_ceil(cores_up_to(tiles.min(THREADS_MAX))) * tile as usize;
    let parts = signatures.clone().step_by(each).map(|first| first..(first + each as u32).min(signatures.end));
    thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || signed(columns, part))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// These signatures, of which the first is the lowest bit of a byte.
fn signed(columns: &Columns<'_>, signatures: Range<u32>) -> Result<Part, FsError> {
    let width = signatures.len().div_ceil(BYTE as usize);
    let mut bytes = vec![0; SIGNATURE_BITS as usize * width];
    let mut tile = vec![[0; TILE]; SIGNATURE_BITS as usize];
    let mut node = signatures.start * SIGNATURE_NODES;
    let end = signatures.end.saturating_mul(SIGNATURE_NODES).min(columns.len());
    let mut names = columns.names_from(node);
    for at in (0..width).step_by(TILE) {
        let here = TILE.min(width - at);
        tile.fill([0; TILE]);
        'tile: for signature in 0..here * BYTE as usize {
            let (byte, bit) = (signature / BYTE as usize, signature % BYTE as usize);
            for _ in 0..SIGNATURE_NODES {
                if node == end {
                    break 'tile;
                }
                let name = names.next().flatten().ok_or_else(|| columns.damaged(node))?;
                bits_of_name(name, |gram| tile[gram as usize][byte] |= 1 << bit);
                node += 1;
            }
        }
        for (slice, from) in bytes.chunks_exact_mut(width).zip(&tile) {
            slice[at..at + here].copy_from_slice(&from[..here]);
        }
    }
    Ok(Part { bytes, width })
}
