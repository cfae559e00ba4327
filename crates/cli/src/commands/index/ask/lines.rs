//! Paths and patterns that come by standard input or in a file, one after the other.

use std::fmt;
use std::io::{self, BufRead, Read};

use crate::failure::{Failure, Result};

/// Longest path that is looked up, in bytes. None in an index is nearly as long.
pub const PATH_LEN_MAX_BYTES: usize = 1 << 20;

/// What came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// A path.
    Path,
    /// One of so many bytes, which is too long.
    TooLong(u64),
    /// There are no more.
    End,
}

/// Appends the next path to `path`, without the byte `end` that ends it: of one that is too long, as much as one may have.
///
/// # Errors
/// Those of reading.
pub fn next(input: &mut dyn BufRead, end: u8, path: &mut Vec<u8>) -> Result<Line> {
    read(input, end, path).map_err(|e| Failure::io("standard input", &e))
}

/// All that `input` has, of which `name` is the name.
///
/// # Errors
/// Those of reading; usage for one that is too long.
pub fn all(input: &mut dyn BufRead, end: u8, name: &dyn fmt::Display) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    loop {
        let mut one = Vec::new();
        match read(input, end, &mut one).map_err(|e| Failure::io(name, &e))? {
            Line::Path => all.push(one),
            Line::TooLong(len_bytes) => {
                let number = all.len() + 1;
                return Err(Failure::usage(format!(
                    "{name}: line {number} has {len_bytes} bytes; {PATH_LEN_MAX_BYTES} are the most"
                )));
            }
            Line::End => return Ok(all),
        }
    }
}

fn read(input: &mut dyn BufRead, end: u8, path: &mut Vec<u8>) -> io::Result<Line> {
    let before = path.len();
    let len = Read::take(&mut *input, PATH_LEN_MAX_BYTES as u64 + 1).read_until(end, path)?;
    if len == 0 {
        return Ok(Line::End);
    }
    if path.last() == Some(&end) {
        path.pop();
        return Ok(Line::Path);
    }
    if len <= PATH_LEN_MAX_BYTES {
        return Ok(Line::Path);
    }
    path.truncate(before + PATH_LEN_MAX_BYTES);
    // The rest of it is no path of its own.
    let mut len_bytes = len as u64;
    loop {
        let piece = match input.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            piece => piece?,
        };
        let ends = piece.iter().position(|byte| *byte == end);
        let (taken, is_last) = (ends.unwrap_or(piece.len()), ends.is_some() || piece.is_empty());
        input.consume(taken + usize::from(ends.is_some()));
        len_bytes += taken as u64;
        if is_last {
            return Ok(Line::TooLong(len_bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_too_long_is_passed_over_and_the_next_one_is_whole() {
        let max = PATH_LEN_MAX_BYTES;
        for lens in [vec![1, max, max + 1, 2, max + 2, 3 * max, 0, 3], vec![max + 1], vec![max], vec![]] {
            for is_ended in [true, false] {
                let mut bytes = lens.iter().map(|len| vec![b'x'; *len]).collect::<Vec<_>>().join(&0);
                bytes.extend(is_ended.then_some(0).filter(|_| !lens.is_empty()));
                let mut input = io::BufReader::with_capacity(1000, &bytes[..]);
                for len in &lens {
                    let mut path = b"before".to_vec();
                    let expected = if *len > max { Line::TooLong(*len as u64) } else { Line::Path };
                    assert_eq!(read(&mut input, 0, &mut path).unwrap(), expected, "{len} of {lens:?}");
                    assert_eq!(path.len(), 6 + max.min(*len));
                }
                assert_eq!(read(&mut input, 0, &mut Vec::new()).unwrap(), Line::End);
            }
        }
    }
}
