//! Bytes that somebody keeps before their object was compared with its hash.

use std::time::Duration;

use adit_core::error::{ErrorKind, Result};
use adit_core::store::{Proof, Unproved};
use adit_manifest::cache::{CacheOptions, CachedObject};

use crate::support::*;

fn lazily() -> CacheOptions {
    CacheOptions { verify_first_bytes: 0, retry_after: Duration::from_millis(10), ..options() }
}

fn keep(object: &CachedObject, offset: u64, len: usize, source: &Source) -> Result<(Vec<u8>, Vec<Unproved>)> {
    let (mut buf, mut unproved) = (vec![0xee; len], Vec::new());
    let read = object.read_to_keep(offset, &mut buf, source, &mut unproved)?;
    buf.truncate(read);
    Ok((buf, unproved))
}

fn prove(object: &CachedObject, what: &Unproved, fetch: Option<&Source>) -> Result<Proof> {
    object.prove(what.offset..what.offset + what.len, what.sum, fetch.map(|source| source as _))
}

#[test]
fn a_few_bytes_cost_their_block_and_are_proved_when_all_is_there() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(5000, 1);
    let told = {
        let cache = open(host(&dir), lazily());
        let object = cache.object(id);
        let (bytes, told) = keep(&object, 1500, 100, &source).unwrap();
        assert!(bytes == source.content(id)[1500..1600] && source.fetched_bytes() == 1024);
        assert!(matches!(&told[..], [Unproved { offset: 1024, len: 1024, .. }]), "{told:?}");
        assert_eq!(keep(&object, 1100, 2000, &source).unwrap().1.len(), 3);
        assert_eq!(prove(&object, &told[0], None).unwrap(), Proof::Open);
        told[0]
    };
    // Another process, which has a part of it.
    let cache = open(host(&dir), lazily());
    let object = cache.object(id);
    assert_eq!(prove(&object, &told, None).unwrap(), Proof::Open);
    source.fetched();
    assert_eq!(prove(&object, &told, Some(&source)).unwrap(), Proof::Right);
    assert_eq!(source.fetched_bytes(), 5000 - 3 * 1024);
    assert_eq!(prove(&object, &told, None).unwrap(), Proof::Right);
    assert_eq!(prove(&object, &Unproved { sum: told.sum ^ 1, ..told }, None).unwrap(), Proof::Wrong);
    assert!(keep(&object, 1500, 100, &source).unwrap().1.is_empty(), "it is known now");
    // What another block length told, or nobody.
    for (range, proof) in [(0..5001, Proof::Wrong), (7..7, Proof::Wrong), (1024..1536, Proof::Wrong)] {
        assert_eq!(object.prove(range, told.sum, Some(&source)).unwrap(), proof);
    }
}

/// All of it goes, and comes again: what counts is what it was.
#[test]
fn what_was_wrong_when_it_was_read_stays_so() {
    for is_gone in [false, true] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(5000, 1);
        let cache = open(host(&dir), lazily());
        source.act(&[Act::Flip]);
        let wrong = keep(&cache.object(id), 1500, 100, &source).unwrap().1[0];
        let right = keep(&cache.object(id), 3000, 50, &source).unwrap().1[0];
        if is_gone {
            drop(cache);
            std::fs::remove_dir_all(dir.path().join("objects")).unwrap();
        } else {
            // Whoever reads it to its end finds it out; from then on it is doubtful, and the next one fetches it again.
            for at in (0..5000).step_by(1000) {
                drop(read(&cache.object(id), at, 1000, &source));
            }
            assert_eq!(prove(&cache.object(id), &right, None).unwrap(), Proof::Suspect);
            drop(cache);
        }
        let cache = open(host(&dir), lazily());
        assert_eq!(prove(&cache.object(id), &wrong, Some(&source)).unwrap(), Proof::Wrong);
        assert_eq!(prove(&cache.object(id), &right, Some(&source)).unwrap(), Proof::Right);
    }
}

#[test]
fn what_stays_wrong_is_an_error() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(5000, 1);
    let cache = open(host(&dir), lazily());
    let told = keep(&cache.object(id), 1500, 100, &source).unwrap().1[0];
    source.always(Act::Flip);
    assert_eq!(prove(&cache.object(id), &told, Some(&source)).unwrap_err().kind(), ErrorKind::Corrupt);
    // Nothing of it is handed out any more that was not compared.
    assert_eq!(keep(&cache.object(id), 1500, 100, &source).unwrap_err().kind(), ErrorKind::Corrupt);
    source.always(Act::Right);
    eventually("it is asked for again", || keep(&cache.object(id), 1500, 100, &source).is_ok());
    assert_eq!(prove(&cache.object(id), &told, None).unwrap(), Proof::Right);
}

/// Short ones, and all with `strict`, are compared first. So is what a full folder cannot hold: its checksums are in memory then.
#[test]
fn what_is_compared_at_once_is_never_doubtful() {
    let all = [
        CacheOptions { strict: true, ..lazily() },
        CacheOptions { verify_first_bytes: 5000, ..lazily() },
        CacheOptions { limit_bytes: 0, ..lazily() },
    ];
    for options in all {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(5000, 1);
        let cache = open(host(&dir), options);
        let (bytes, told) = keep(&cache.object(id), 1500, 100, &source).unwrap();
        assert!(bytes == source.content(id)[1500..1600] && told.is_empty());
        assert!(source.fetched_bytes() >= 5000);
        let block =
            Unproved { offset: 1024, len: 1024, sum: xxhash_rust::xxh3::xxh3_64(&source.content(id)[1024..2048]) };
        assert_eq!(prove(&cache.object(id), &block, None).unwrap(), Proof::Right);
    }
    let (dir, source) = (folder(), Source::new());
    let id = source.add(600, 1);
    let cache = open(host(&dir), lazily());
    assert!(keep(&cache.object(id), 10, 100, &source).unwrap().1.is_empty());
    let whole = Unproved { offset: 0, len: 600, sum: xxhash_rust::xxh3::xxh3_64(&source.content(id)) };
    assert_eq!(prove(&cache.object(id), &whole, Some(&source)).unwrap(), Proof::Right);
}

/// A folder that holds a part of it at a time: the checksums of all of it are taken in one pass.
#[test]
fn an_object_larger_than_the_folder_is_proved_in_one_pass() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(300_000, 1);
    let cache = open(host(&dir), CacheOptions { limit_bytes: 128 << 10, ..lazily() });
    let told = keep(&cache.object(id), 200_000, 100, &source).unwrap().1[0];
    source.fetched();
    assert_eq!(prove(&cache.object(id), &told, None).unwrap(), Proof::Open);
    assert_eq!(prove(&cache.object(id), &told, Some(&source)).unwrap(), Proof::Right);
    assert!(source.fetched_bytes() <= 300_000 + 2 * 1024);
}
