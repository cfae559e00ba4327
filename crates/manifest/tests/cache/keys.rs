//! An object is known by all of its hash, and by its length.

use adit_manifest::format::ContentHash;

use crate::support::*;

/// Hashes of which nobody knows bytes that have them: so they are read in part, and never compared.
#[test]
fn objects_that_share_half_of_a_hash_have_their_own_bytes() {
    const LEN: usize = 8 * BLOCK as usize;
    let hash = ContentHash::of(b"one of them");
    let but = |range: std::ops::Range<usize>| {
        let mut other = hash;
        other.0[range].iter_mut().for_each(|byte| *byte ^= 0x5a);
        other
    };
    // The same low half, the same high half, and both but for one byte.
    let hashes = [hash, but(0..8), but(8..16), but(0..1), but(15..16)];
    let (dir, source) = (folder(), Source::new());
    let mut ids: Vec<_> = (0..).zip(hashes).map(|(seed, hash)| source.add_as(hash, LEN, seed)).collect();
    // And one that has all of its hash, and another length.
    ids.push(source.add_as(hash, LEN - 1, 9));
    // Each block of each in turn, but for the last, which would end in a comparison; once more from what is kept, and again by another
    // process.
    for fetches in [ids.len() * 7, 0] {
        let cache = open(host(&dir), options());
        let objects: Vec<_> = ids.iter().map(|id| cache.object(*id)).collect();
        for _ in 0..2 {
            for at in (0..7 * BLOCK as usize).step_by(BLOCK as usize) {
                for (object, id) in objects.iter().zip(&ids) {
                    let read = read(object, at as u64 + 3, 500, &source).unwrap();
                    assert!(read == source.content(*id)[at + 3..at + 503], "{id} at {at}");
                }
            }
        }
        assert_eq!(source.fetched().len(), fetches);
        assert_eq!(cache.stats().damaged, 0);
    }
}
