//! The extra bytes of all entries, in the order in which they were given, in a scratch file.

use std::io::{self, BufWriter, Write};

use super::record::Stretch;
use super::scratch::ScratchFile;

/// What is written to the file at once, in bytes.
const BUFFER_LEN: usize = 64 << 10;

pub(crate) struct Heap {
    out: BufWriter<ScratchFile>,
    len: u64,
}

impl Heap {
    pub fn new(file: ScratchFile) -> Heap {
        Heap { out: BufWriter::with_capacity(BUFFER_LEN, file), len: 0 }
    }

    /// Keeps `bytes`, which have a length of 32 bits.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<Stretch> {
        let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.out.write_all(bytes)?;
        let stretch = Stretch { at: self.len, len };
        self.len += u64::from(len);
        Ok(stretch)
    }

    /// Writes all that was kept, so that it can be read.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Hands the bytes of a stretch to `sink`, in order and in pieces.
    pub fn read(&self, stretch: Stretch, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_LEN.min(stretch.len as usize)];
        let mut done = 0;
        while done < u64::from(stretch.len) {
            let piece = buffer.len().min((u64::from(stretch.len) - done) as usize);
            self.out.get_ref().read_exact_at(&mut buffer[..piece], stretch.at + done)?;
            sink(&buffer[..piece])?;
            done += piece as u64;
        }
        Ok(())
    }
}
