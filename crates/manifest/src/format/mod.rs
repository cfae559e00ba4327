//! Codecs of manifests: what their bytes mean, and which of them are refused.
//!
//! [`decode`] streams any manifest to a [`Sink`], one [`Entry`] at a time, in memory that does not grow with the number of
//! files. [`Manifest`] holds a whole one, for the tools: it knows duplicates and conflicts, [compares](Manifest::diff),
//! [merges](Manifest::merge) and [writes](Manifest::encode). [`v2023::Writer`] and [`v2025::Writer`] write entries that come in
//! order, without a whole one in memory.
//!
//! Whatever a [`Rule`] forbids is refused, with the rule's name in the message: what comes out of here is safe to put below a
//! root. Two rules need the whole tree ([`Rule::DuplicatePath`], [`Rule::FileAgainstDirectory`]): [`Manifest`] has them, and
//! whoever builds a tree from a stream has to. Formats: `docs/formats/manifest.md`.

mod decode;
mod directories;
mod entry;
mod fields;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hash;
mod json;
pub mod limits;
mod manifest;
mod operations;
mod path;
mod rule;
mod source;
pub mod v2023;
pub mod v2025;
pub mod wtf8;

pub use decode::{Sink, Summary, Totals, decode, header};
pub use entry::{Body, Content, Dialect, Entry, File, Format, Header, Kind, PathStyle, Removed};
pub(crate) use fields::Text;
pub use hash::ContentHash;
pub(crate) use hash::Hasher;
pub(crate) use json::push_string;
pub use manifest::{Losses, Manifest};
pub use operations::MTIME_TOLERANCE_MICROS;
pub use path::{EntryPath, LinkTarget};
pub use rule::{FormatError, Rule};
pub use source::Source;

use std::io::{self, Write};

use adit_core::error::Result;

/// What a writer has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// xxh128 of the manifest's bytes: its name where others refer to it (`inputManifestHash`, `parentManifestHash`).
    pub hash: ContentHash,
    /// Length of the manifest in bytes.
    pub len_bytes: u64,
    /// Its `totalSize`: bytes of all files, each counted as often as it is named.
    pub total_size_bytes: u64,
}

/// Collects small pieces, and hashes what goes through.
struct Output<W: Write> {
    out: W,
    pending: Vec<u8>,
    hash: Hasher,
    len_bytes: u64,
}

/// Bytes that are collected before they are written.
const OUTPUT_BUFFER_LEN_BYTES: usize = 64 << 10;

impl<W: Write> Output<W> {
    fn new(out: W) -> Self {
        Output {
            out,
            pending: Vec::with_capacity(OUTPUT_BUFFER_LEN_BYTES + 4096),
            hash: Hasher::default(),
            len_bytes: 0,
        }
    }

    /// Where the next piece goes; to be followed by [`settle`](Self::settle).
    fn piece(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    fn settle(&mut self) -> Result<()> {
        if self.pending.len() >= OUTPUT_BUFFER_LEN_BYTES { Ok(self.drain()?) } else { Ok(()) }
    }

    fn drain(&mut self) -> io::Result<()> {
        self.out.write_all(&self.pending)?;
        self.hash.update(&self.pending);
        self.len_bytes += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    fn finish(mut self, total_size_bytes: u64) -> Result<Written> {
        self.drain()?;
        self.out.flush()?;
        Ok(Written { hash: self.hash.finish(), len_bytes: self.len_bytes, total_size_bytes })
    }
}
