//! Paths and patterns that come by standard input or in a file, one after the other.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::interrupt::Input;

/// Longest path that is looked up, in bytes. None in an index is nearly as long.
pub const PATH_LEN_MAX_BYTES: usize = 1 << 20;

/// What is read at once, in bytes.
const BUFFER_LEN_BYTES: usize = 1 << 20;

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

/// Paths or patterns that are read one after the other.
pub struct Lines {
    input: Box<dyn BufRead>,
    end: u8,
    name: String,
}

impl Lines {
    /// Those of standard input: each ended by a zero byte, or else one in each line.
    pub fn of_stdin(print0: bool) -> Lines {
        let input = Box::new(BufReader::with_capacity(BUFFER_LEN_BYTES, Input));
        Lines { input, end: end_of(print0), name: "standard input".to_owned() }
    }

    /// Those of a file, or of standard input for `-`.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn open(file: &Path, print0: bool) -> Result<Lines> {
        if file.as_os_str() == "-" {
            return Ok(Lines::of_stdin(print0));
        }
        let name = file.display().to_string();
        let opened = File::open(file).map_err(|e| Failure::io(&name, &e))?;
        Ok(Lines { input: Box::new(BufReader::with_capacity(BUFFER_LEN_BYTES, opened)), end: end_of(print0), name })
    }

    /// Appends the next one to `path`, without the byte that ends it: of one that is too long, as much as one may have.
    ///
    /// # Errors
    /// Those of reading.
    pub fn next(&mut self, path: &mut Vec<u8>) -> Result<Line> {
        read(&mut *self.input, self.end, path).map_err(|e| Failure::io(&self.name, &e))
    }

    /// All of them.
    ///
    /// # Errors
    /// Those of reading; usage for one that is too long.
    pub fn all(mut self) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        loop {
            let mut one = Vec::new();
            match self.next(&mut one)? {
                Line::Path => all.push(one),
                Line::TooLong(len_bytes) => {
                    let (name, number) = (self.name, all.len() + 1);
                    return Err(Failure::usage(format!(
                        "{name}: line {number} has {len_bytes} bytes; {PATH_LEN_MAX_BYTES} are the most"
                    )));
                }
                Line::End => return Ok(all),
            }
        }
    }
}

fn end_of(print0: bool) -> u8 {
    if print0 { 0 } else { b'\n' }
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
