//! What the signatures of names leave to be looked at: [`narrowed`].

use std::collections::BTreeSet;
use std::ops::Range;

use adit_core::error::Result;

use super::find::{Query, Strategy};
use super::scan::names;
use crate::layout::Section;
use crate::layout::signatures::{SIGNATURE_NODES, STRIPE_SIGNATURES, slice_of};
use crate::segment::Segment;

/// More bits leave little more out, and each one is a look at memory.
const BITS_MAX: usize = 24;
/// If one in so many signatures or more is left, all names are searched: that goes from the first to the last, and costs no more.
const MANY: u64 = 3;

/// The nodes of these ranges whose names may have what the query's patterns ask for, in order; `None` if the signatures do not tell, or
/// leave too many.
pub(super) fn narrowed(query: &Query, segment: &Segment, ranges: &[Range<u32>]) -> Result<Option<Vec<Range<u32>>>> {
    let bits: BTreeSet<u32> = names(query).flat_map(|(_, pattern)| pattern.signature_bits().iter().copied()).collect();
    let has_signatures = segment.sections().any(|(section, _)| section == Section::NameSignatures);
    if bits.is_empty() || !has_signatures || query.strategy == Strategy::Each {
        return Ok(None);
    }
    let bits: Vec<u32> = bits.into_iter().take(BITS_MAX).collect();
    let all: u64 = ranges.iter().map(|range| range.len() as u64).sum();
    let mut left = Vec::new();
    let mut left_len = 0;
    for range in ranges {
        query.check_stop()?;
        let mut put = |nodes: Range<u32>| {
            left_len += nodes.len() as u64;
            match left.last_mut() {
                Some(Range { end, .. }) if *end == nodes.start => *end = nodes.end,
                _ => left.push(nodes),
            }
        };
        narrow(segment, range, &bits, &mut put)?;
        if left_len > all / MANY {
            return Ok(None);
        }
    }
    Ok(Some(left))
}

/// Gives `put` those nodes of a range whose signature has all of these bits.
fn narrow(segment: &Segment, range: &Range<u32>, bits: &[u32], put: &mut impl FnMut(Range<u32>)) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let (first, last) = (range.start / SIGNATURE_NODES, (range.end - 1) / SIGNATURE_NODES);
    let mut have: Vec<u8> = Vec::new();
    for stripe in first / STRIPE_SIGNATURES..=last / STRIPE_SIGNATURES {
        let base = stripe * STRIPE_SIGNATURES;
        // Of this stripe, in bytes: those before are of others.
        let from = first.saturating_sub(base) / 8;
        let end = ((last - base) / 8 + 1).min(STRIPE_SIGNATURES / 8);
        have.clear();
        have.resize((end - from) as usize, u8::MAX);
        for bit in bits {
            let (at, _) = slice_of(segment.len(), stripe, *bit);
            let slice = segment.section_bytes(Section::NameSignatures, at + u64::from(from), have.len())?;
            have.iter_mut().zip(slice).for_each(|(have, more)| *have &= more);
        }
        for (byte, have) in have.iter().enumerate().filter(|(_, have)| **have != 0) {
            for bit in (0..8).filter(|bit| have >> bit & 1 != 0) {
                let signature = base + (from + byte as u32) * 8 + bit;
                let start = (signature * SIGNATURE_NODES).max(range.start);
                let end = signature.saturating_add(1).saturating_mul(SIGNATURE_NODES).min(range.end);
                if start < end {
                    put(start..end);
                }
            }
        }
    }
    Ok(())
}
