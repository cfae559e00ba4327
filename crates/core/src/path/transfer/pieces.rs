//! What is copied of a file's content: the parts that hold data, in order.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Content that is handed out in pieces.
pub(super) trait Pieces {
    /// Fills `buffer` with the next piece; its offset and length, or nothing at the end.
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Option<(u64, usize)>>;

    /// Length of the whole in bytes, once all pieces were handed out; what is in none of them is zeros.
    fn len(&self) -> u64;
}

/// A stream: it has no holes.
pub(super) struct Stream<'a> {
    pub(super) from: &'a mut dyn Read,
    pub(super) offset: u64,
}

impl Pieces for Stream<'_> {
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Option<(u64, usize)>> {
        let len = fill(self.from, buffer)?;
        let offset = self.offset;
        self.offset += len as u64;
        Ok((len > 0).then_some((offset, len)))
    }

    fn len(&self) -> u64 {
        self.offset
    }
}

/// A file of the host, whose holes are passed over.
pub(super) struct Sparse {
    file: File,
    offset: u64,
    /// Where the data ends that `offset` is in.
    data_end: u64,
    len: u64,
}

impl Sparse {
    pub(super) fn new(file: File) -> Sparse {
        Sparse { file, offset: 0, data_end: 0, len: 0 }
    }

    /// Goes to the next data; false if there is none.
    fn seek(&mut self) -> io::Result<bool> {
        // Before the question, so that no zeros are made of what is appended after it.
        self.len = self.file.metadata()?.len();
        self.offset = match rustix::fs::seek(&self.file, SeekFrom::Data(self.offset)) {
            Ok(offset) => offset,
            Err(Errno::NXIO) => return Ok(false),
            // A host that knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                self.data_end = u64::MAX;
                return Ok(true);
            }
            Err(e) => return Err(e.into()),
        };
        self.data_end = rustix::fs::seek(&self.file, SeekFrom::Hole(self.offset)).unwrap_or(u64::MAX);
        Ok(true)
    }
}

impl Pieces for Sparse {
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Option<(u64, usize)>> {
        if self.offset >= self.data_end && !self.seek()? {
            return Ok(None);
        }
        let want = usize::try_from(self.data_end - self.offset).unwrap_or(usize::MAX).min(buffer.len());
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..want).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, self.offset + done as u64) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let offset = self.offset;
        self.offset += done as u64;
        if done == 0 {
            // The end, of a file that is shorter by now or of a host without holes.
            self.len = offset;
        }
        Ok((done > 0).then_some((offset, done)))
    }

    fn len(&self) -> u64 {
        self.len
    }
}

/// Reads until the buffer is full or the file ends, so that a store sees whole units.
fn fill(from: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match from.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(len)
}
