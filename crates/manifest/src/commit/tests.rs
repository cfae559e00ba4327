use super::*;

const CHUNK: u64 = CHUNK_LEN_BYTES;

fn hash(number: u8) -> ContentHash {
    ContentHash([number; 16])
}

fn one(range: Range<u64>) -> [Range<u64>; 1] {
    [range]
}

fn chunked(size_bytes: u64) -> Lower {
    let count = size_bytes.div_ceil(CHUNK) as u8;
    let hashes: Vec<ContentHash> = (0..count).map(hash).collect();
    Lower { size_bytes, content: Content::chunks(hashes.into(), size_bytes).expect("chunks") }
}

#[test]
fn only_what_was_written_has_to_be_read() {
    let lower = chunked(3 * CHUNK + 5);
    let all = |fresh: &[Range<u64>], size| kept(&lower, fresh, size, Layout::Chunks);
    let is = |numbers: [Option<u8>; 4]| numbers.map(|number| number.map(hash)).to_vec();
    assert_eq!(all(&[], 3 * CHUNK + 5), is([Some(0), Some(1), Some(2), Some(3)]));
    assert_eq!(all(&one(CHUNK - 1..CHUNK), 3 * CHUNK + 5), is([None, Some(1), Some(2), Some(3)]));
    assert_eq!(all(&one(CHUNK..CHUNK + 1), 3 * CHUNK + 5), is([Some(0), None, Some(2), Some(3)]));
    assert_eq!(all(&[1..2, CHUNK - 1..2 * CHUNK + 1], 3 * CHUNK + 5), is([None, None, None, Some(3)]));
    assert_eq!(all(&one(3 * CHUNK + 4..3 * CHUNK + 5), 3 * CHUNK + 5), is([Some(0), Some(1), Some(2), None]));
    // Cut or made longer: the last one is another.
    assert_eq!(all(&[], 3 * CHUNK + 4), is([Some(0), Some(1), Some(2), None]));
    assert_eq!(all(&one(3 * CHUNK + 5..3 * CHUNK + 6), 3 * CHUNK + 6), is([Some(0), Some(1), Some(2), None]));
    // A file of one chunk has the hash of that.
    assert_eq!(kept(&lower, &[], CHUNK, Layout::Whole), [Some(hash(0))]);
    assert_eq!(kept(&lower, &[], 3 * CHUNK + 5, Layout::Whole), [None]);
}

#[test]
fn a_file_of_one_object_is_as_it_was_or_is_read() {
    let whole = |size_bytes| Lower { size_bytes, content: Content::Whole(hash(7)) };
    assert_eq!(kept(&whole(9), &[], 9, Layout::Whole), [Some(hash(7))]);
    assert_eq!(kept(&whole(9), &one(8..9), 9, Layout::Whole), [None]);
    assert_eq!(kept(&whole(9), &[], 8, Layout::Whole), [None]);
    assert_eq!(kept(&whole(0), &[], 0, Layout::Whole), [Some(hash(7))]);
    // Longer than a chunk, in the version of 2023.
    let long = whole(2 * CHUNK + 1);
    assert_eq!(kept(&long, &[], 2 * CHUNK + 1, Layout::Whole), [Some(hash(7))]);
    assert_eq!(kept(&long, &[], 2 * CHUNK + 1, Layout::Chunks), [None, None, None]);
    // As long as a chunk, and then longer.
    assert_eq!(kept(&whole(CHUNK), &one(CHUNK..CHUNK + 1), CHUNK + 1, Layout::Chunks), [Some(hash(7)), None]);
}

#[test]
fn what_lies_below_another_path_is_looked_at_with_that() {
    let of = |paths: &[&str]| {
        let paths: Vec<Vec<u8>> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        topmost(&paths).into_iter().map(|path| String::from_utf8(path).expect("text")).collect::<Vec<_>>()
    };
    assert_eq!(of(&["a/b", "a", "a.b", "a/b/c", "b/c", "", "a"]), ["a", "a.b", "b/c"]);
}
