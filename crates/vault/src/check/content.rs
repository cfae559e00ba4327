//! Whether a file's ciphertext is authentic.

use std::fmt::Write as _;
use std::path::Path;

use adit_core::media::HostDir;
use adit_core::types::Access;
use adit_core::{ErrorKind, FsError};
use zeroize::Zeroizing;

use super::ProblemKind;
use crate::format::content::object;
use crate::format::{ContentCipher, FormatError};
use crate::journal::recover::read_small;

/// Chunks that one call reads.
const CHUNKS_PER_READ: usize = 32;
/// Ranges of bad chunks that are told one by one.
const RANGES_TOLD: usize = 16;

/// What is wrong with an object, and the sentence about it.
pub(super) type Fault = (ProblemKind, String);

/// Reads files. Its buffers serve one file after the other.
pub(super) struct Reader<'a> {
    root: &'a dyn HostDir,
    content: ContentCipher,
    sealed: Vec<u8>,
    clear: Zeroizing<Vec<u8>>,
}

impl<'a> Reader<'a> {
    pub fn new(root: &'a dyn HostDir, content: ContentCipher) -> Self {
        Reader { root, content, sealed: Vec::new(), clear: Zeroizing::new(Vec::new()) }
    }

    /// Checks the file at `path`: its header and length, and with `chunks` all of it. Ciphertext bytes are told to
    /// `seen` as they are read. A file that is gone is sound.
    pub fn file(&mut self, path: &str, chunks: bool, seen: &mut dyn FnMut(u64)) -> Option<Fault> {
        self.try_file(path, chunks, seen).unwrap_or_else(|e| match e.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => None,
            _ => Some(fault_of(&e.into())),
        })
    }

    fn try_file(&mut self, path: &str, chunks: bool, seen: &mut dyn FnMut(u64)) -> std::io::Result<Option<Fault>> {
        let layout = self.content.layout();
        let file = self.root.open(Path::new(path), Access::Read)?;
        let size = file.stat()?.size;
        let header_len = layout.header_len as usize;
        self.sealed.resize(CHUNKS_PER_READ * layout.chunk_cipher() as usize, 0);
        self.clear.resize(layout.chunk_clear() as usize, 0);
        let got = file.read_at(0, &mut self.sealed[..header_len])?;
        if got < header_len {
            let why = FormatError::ShorterThanHeader { found: got as u64, header_len: layout.header_len };
            return Ok(Some((ProblemKind::UnreadableHeader, why.to_string())));
        }
        seen(header_len as u64);
        let cipher = match self.content.open_file(&self.sealed[..header_len]) {
            Ok(cipher) => cipher,
            Err(e) => return Ok(Some((ProblemKind::UnreadableHeader, e.to_string()))),
        };
        let tail = layout.cleartext_size(size).err();
        if !chunks {
            seen(size.saturating_sub(header_len as u64));
            return Ok(tail.map(|e| (ProblemKind::UnreadableChunk, e.to_string())));
        }
        let (mut bad, mut chunk) = (BadChunks::default(), 0u64);
        while let Ok(offset) = layout.chunk_offset(chunk) {
            let got = file.read_at(offset, &mut self.sealed)?;
            for sealed in self.sealed[..got].chunks(layout.chunk_cipher() as usize) {
                let stray = sealed.len() <= layout.overhead() as usize;
                if stray || cipher.decrypt_chunk(chunk, sealed, &mut self.clear).is_err() {
                    bad.add(chunk);
                }
                chunk += 1;
            }
            seen(got as u64);
            if got < self.sealed.len() {
                break;
            }
        }
        Ok(bad.describe(chunk, tail).map(|detail| (ProblemKind::UnreadableChunk, detail)))
    }

    /// The text of a link, or what is wrong with it; None if it is gone.
    pub fn link(&self, path: &str) -> Option<Result<String, Fault>> {
        let bytes = match read_small(self.root, path, object::max_encoded_bytes(&self.content)) {
            Ok(bytes) => bytes?,
            Err(e) => return Some(Err(fault_of(&e))),
        };
        Some(object::decode_symlink(&self.content, &bytes).map_err(|e| {
            let kind = match &e {
                FormatError::ShorterThanHeader { .. } | FormatError::HeaderAuth => ProblemKind::UnreadableHeader,
                FormatError::Malformed { what: "symlink target", .. } => ProblemKind::BadLink,
                _ => ProblemKind::UnreadableChunk,
            };
            (kind, e.to_string())
        }))
    }
}

/// What an error of the host says of the thing that it was to read.
pub(super) fn fault_of(e: &FsError) -> Fault {
    match e.kind() {
        ErrorKind::IsDirectory | ErrorKind::InvalidInput | ErrorKind::Loop | ErrorKind::NoData => {
            (ProblemKind::UnknownEntry, format!("not a regular file: {e}"))
        }
        _ => (ProblemKind::HostError, e.to_string()),
    }
}

/// Numbers of bad chunks, as ranges.
#[derive(Default)]
struct BadChunks {
    ranges: Vec<(u64, u64)>,
    count: u64,
}

impl BadChunks {
    fn add(&mut self, chunk: u64) {
        self.count += 1;
        let told = self.ranges.len();
        match self.ranges.last_mut() {
            Some((_, last)) if *last + 1 == chunk => *last = chunk,
            _ if told <= RANGES_TOLD => self.ranges.push((chunk, chunk)),
            _ => {}
        }
    }

    /// None if all is well.
    fn describe(&self, chunks: u64, tail: Option<FormatError>) -> Option<String> {
        if self.count == 0 {
            return tail.map(|e| e.to_string());
        }
        let mut text = format!("{} of {chunks} chunks do not authenticate: ", self.count);
        for (n, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            // Writing to a string cannot fail.
            let _ = match (n == RANGES_TOLD, first == last) {
                (true, _) => write!(text, "{comma}…"),
                (_, true) => write!(text, "{comma}{first}"),
                (_, false) => write!(text, "{comma}{first}-{last}"),
            };
        }
        if let Some(e) = tail {
            let _ = write!(text, "; {e}");
        }
        Some(text)
    }
}
