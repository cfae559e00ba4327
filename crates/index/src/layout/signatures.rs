//! Signatures of names, as pure functions: which runs of four bytes ("grams") the names of some nodes have, a bit for each, so that a
//! search need not look at names that lack one. They follow from the names, so a reader may ignore them.
//!
//! A signature file in bit slices: C. Faloutsos and S. Christodoulakis, "Signature files", ACM TOIS 2(4), 1984; with hashed grams as
//! B. Goodwin et al., "BitFunnel", SIGIR 2017, have it for terms. `docs/formats/index.md` has the bytes,
//! `docs/decisions/0031-name-signatures.md` why they are so.

/// So many nodes share a signature.
pub const SIGNATURE_NODES: u32 = 64;
/// Bits of a signature.
pub const SIGNATURE_BITS: u32 = 1280;
/// So many signatures lie together, bit by bit: one bit of all of them, then the next.
pub const STRIPE_SIGNATURES: u32 = 1 << 16;
/// Bytes of a gram.
pub const GRAM_LEN_BYTES: usize = 4;

/// The sign of the kelvin, and the long s: what the letters k and s of ASCII are in other case.
const KELVIN: &[u8] = "\u{212a}".as_bytes();
const LONG_S: &[u8] = "\u{17f}".as_bytes();

/// How many signatures so many nodes have.
pub fn signature_count(nodes: u32) -> u32 {
    nodes.div_ceil(SIGNATURE_NODES)
}

/// Length of the section in bytes.
pub fn signatures_len(nodes: u32) -> u64 {
    let count = signature_count(nodes);
    let whole = u64::from(count / STRIPE_SIGNATURES) * stripe_len(STRIPE_SIGNATURES);
    whole + stripe_len(count % STRIPE_SIGNATURES)
}

/// Bytes of a stripe of so many signatures.
fn stripe_len(signatures: u32) -> u64 {
    u64::from(SIGNATURE_BITS) * u64::from(signatures.div_ceil(8))
}

/// Where a bit of the signatures of a stripe begins in the section, and how many bytes it takes: a bit for each, the first the lowest.
/// The section is that of so many nodes, the stripe one of it.
pub fn slice_of(nodes: u32, stripe: u32, bit: u32) -> (u64, usize) {
    let count = signature_count(nodes) - stripe * STRIPE_SIGNATURES;
    let width = count.min(STRIPE_SIGNATURES).div_ceil(8);
    let at = u64::from(stripe) * stripe_len(STRIPE_SIGNATURES) + u64::from(bit) * u64::from(width);
    (at, width as usize)
}

/// Which bit stands for a gram, whose first byte is the lowest, without large letters.
#[inline]
pub fn bit_of(gram: u32) -> u32 {
    ((u64::from(gram.wrapping_mul(0x9e37_79b1)) * u64::from(SIGNATURE_BITS)) >> 32) as u32
}

/// Gives `put` the bit of each gram of these bytes; large letters of ASCII are small ones.
#[inline]
pub fn bits_of_text(text: &[u8], mut put: impl FnMut(u32)) {
    let mut gram = 0;
    for (at, byte) in text.iter().enumerate() {
        gram = gram >> 8 | u32::from(byte.to_ascii_lowercase()) << 24;
        if at + 1 >= GRAM_LEN_BYTES {
            put(bit_of(gram));
        }
    }
}

/// Gives `put` each bit that the signature of a name has: those of its text, and of the text in which the two letters beyond ASCII that are one
/// of ASCII in other case are that one.
#[inline]
pub fn bits_of_name(name: &[u8], mut put: impl FnMut(u32)) {
    bits_of_text(name, &mut put);
    if !name.is_ascii()
        && let Some(folded) = folded(name)
    {
        bits_of_text(&folded, put);
    }
}

/// The text with ASCII letters for the two that are the same without regard to case; `None` if it has none of them.
fn folded(text: &[u8]) -> Option<Vec<u8>> {
    let mut folded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(byte) = rest.first() {
        let (len, plain) = if rest.starts_with(KELVIN) {
            (KELVIN.len(), b'k')
        } else if rest.starts_with(LONG_S) {
            (LONG_S.len(), b's')
        } else {
            (1, *byte)
        };
        folded.push(plain);
        rest = &rest[len..];
    }
    (folded.len() < text.len()).then_some(folded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(name: &str) -> Vec<u32> {
        let mut bits = Vec::new();
        bits_of_name(name.as_bytes(), |bit| bits.push(bit));
        bits
    }

    #[test]
    fn the_worked_example() {
        // Of docs/formats/index.md.
        assert_eq!(u32::from_le_bytes(*b"read"), 0x6461_6572);
        assert_eq!(bits("READme"), [bit_of(0x6461_6572), bit_of(0x6d64_6165), bit_of(0x656d_6461)]);
        assert_eq!(bits("READme"), [758, 435, 339]);
        assert_eq!(bits("abc"), [0; 0]);
    }

    #[test]
    fn two_letters_are_those_of_ascii_as_well() {
        let kelvin = bits("273\u{212a} mi\u{17f}t");
        assert!(bits("273k mist").iter().all(|bit| kelvin.contains(bit)));
        assert_eq!(bits("né\u{e9}e").len(), 3);
    }

    #[test]
    fn slices_follow_each_other_up_to_the_end() {
        for nodes in [1, 64, 65, 64 * 9, 64 * STRIPE_SIGNATURES, 64 * STRIPE_SIGNATURES + 1, 200 * STRIPE_SIGNATURES] {
            let mut end = 0;
            for stripe in 0..signature_count(nodes).div_ceil(STRIPE_SIGNATURES) {
                for bit in 0..SIGNATURE_BITS {
                    let (at, len) = slice_of(nodes, stripe, bit);
                    assert_eq!(at, end);
                    end += len as u64;
                }
            }
            assert_eq!(end, signatures_len(nodes), "{nodes}");
        }
    }
}
