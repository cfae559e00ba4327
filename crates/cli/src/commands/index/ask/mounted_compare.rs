//! `index dupes` and `index diff` of mounts.
//!
//! The index of a mount has hashes only where its store knows them: those of a manifest's files, also below an overlay until they are changed. Other files
//! of equal size are read through the mountpoint and compared by the hash of what was read; and a difference goes by size and time where a hash is missing,
//! as between files without hashes.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adit_core::FsError;
use adit_core::types::Kind;
use adit_index::live::{Lies, Making};
use adit_index::query::{Dupes, Paths, SameSize, same_size};
use adit_index::scan::UNREADABLE;
use adit_index::{Builder, ContentHash, Entry, Node, NodeId};
use serde::Deserialize;
use xxhash_rust::xxh3::Xxh3;

use super::compare::tell_dupes;
use super::mounted::rooted;
use super::{deep, expect_whole};
use crate::args::index_ask::IndexDupesArgs;
use crate::args::low::GlobalArgs;
use crate::args::units::show_size;
use crate::asked::Asked;
use crate::commands::mount::indexed::{is_secret, scratch_dir};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::open::index::{IndexFile, on};
use crate::output::{counted, printable};
use crate::question::{End, Hit, Piece, Question, Search, kind_of};

/// What is read of a file at once, in bytes.
const READ_LEN_BYTES: usize = 256 << 10;
/// Memory while the tree of a mount is made into a segment, in bytes.
const MAKING_LEN_BYTES: u64 = 64 << 20;

/// `adit index dupes MOUNTPOINT`
///
/// However many files there are, it takes the memory of making an index: they are listed into one, those that have to be read are read
/// in its order, and with the hashes it is one that answers as any file does.
pub fn dupes(asked: &Asked, args: &IndexDupesArgs, global: &GlobalArgs) -> Result<()> {
    interrupt::watch();
    let search = Search {
        kinds: vec![Kind::File.as_str().to_owned()],
        size: Some((args.min_size, u64::MAX)),
        below: asked.path_of_mount(&args.below),
        ..Search::default()
    };
    let making = making(asked)?;
    let listed = listed(asked, &making, search)?;
    let candidates = same_size(&listed.segment, args.min_size).map_err(|e| listed.failure(&e))?;
    let (mut files, mut bytes, mut unique_size) = (0_u64, 0_u64, 0_u64);
    each_file(&listed, args.min_size, &mut |node, facts, hash| {
        match (hash, candidates.contains(node)) {
            (Some(_), _) => {}
            (None, true) => (files, bytes) = (files + 1, bytes.saturating_add(facts.size)),
            (None, false) => unique_size += 1,
        }
        Ok(())
    })?;
    if files > 0 && !global.quiet {
        let (mountpoint, size) = (asked.mountpoint().display(), show_size(bytes));
        let (what, have) = (counted(files, "file"), if files == 1 { "has" } else { "have" });
        eprintln!("adit: {mountpoint}: reads {what} ({size}) that {have} the size of another one");
    }
    let compared = compared(asked, &making, &listed, args.min_size, &candidates)?;
    let known = expect_whole(&listed);
    drop(listed);
    let question = Dupes::new().min_size(args.min_size);
    let summary = tell_dupes(&compared, args, unique_size, &mut |sink| {
        question.run(&compared.segment, sink).map_err(|e| compared.failure(&e))
    })?;
    if summary.unhashed > 0 && !global.quiet {
        let (files, size) = (counted(summary.unhashed, "file"), show_size(summary.unhashed_bytes));
        let were = if summary.unhashed == 1 { "was" } else { "were" };
        eprintln!("adit: {}: {files} ({size}) {were} not compared", asked.mountpoint().display());
    }
    known
}

/// Gets files, with their hashes where there are some.
type EachFile<'e> = dyn FnMut(NodeId, &Node, Option<ContentHash>) -> Result<()> + 'e;

/// Hands the files of so many bytes at least to `each`.
fn each_file(index: &IndexFile, min_size: u64, each: &mut EachFile<'_>) -> Result<()> {
    for node in (0..index.segment.len()).map(NodeId) {
        let facts = index.segment.node(node).map_err(|e| index.failure(&e))?;
        if facts.kind == Kind::File && facts.size >= min_size {
            each(node, &facts, index.segment.hash(node).map_err(|e| index.failure(&e))?)?;
        }
    }
    Ok(())
}

/// The files of `listed` whose hash the mount knew, and the `candidates`, which are read for it. One that is gone meanwhile is passed over; one
/// that cannot be read, or changes while it is, is told and has none.
fn compared(
    asked: &Asked,
    making: &Making,
    listed: &IndexFile,
    min_size: u64,
    candidates: &SameSize,
) -> Result<IndexFile> {
    let mut builder = making.builder().map_err(|e| failed(asked, &e))?;
    let mut paths = Paths::new(&listed.segment);
    each_file(listed, min_size, &mut |node, facts, known| {
        if known.is_none() && !candidates.contains(node) {
            return Ok(());
        }
        let path = paths.of(node).map_err(|e| listed.failure(&e))?;
        let (size, hash) = match known {
            Some(hash) => (facts.size, Some(hash)),
            None => match read(asked.mountpoint(), path) {
                Ok(Some((size, hash))) => (size, Some(hash)),
                Ok(None) => return Ok(()),
                Err(_) if interrupt::came() => return Err(Failure::new(Code::Failure, "interrupted")),
                Err(why) => {
                    eprintln!("adit: {}: {why}", printable(&rooted(path)));
                    (facts.size, None)
                }
            },
        };
        let (kind, perm, mtime_ns) = (facts.kind, facts.perm, facts.mtime_ns);
        builder
            .add(&Entry { path, kind, perm, size, mtime_ns, hash, stamp: None, extra: b"" })
            .map_err(|e| failed(asked, &e))
    })?;
    made(asked, making, builder)
}

/// Length and hash of the content of the file at `path` in a mount; `None` if there is no such file.
fn read(mountpoint: &Path, path: &[u8]) -> std::result::Result<Option<(u64, ContentHash)>, String> {
    let failed = |e: std::io::Error| e.to_string();
    let mut file = match deep::open(mountpoint, path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let state = |file: &File| {
        let meta = file.metadata().map_err(failed)?;
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        Ok::<_, String>((meta.is_file(), meta.len(), times))
    };
    let before = state(&file)?;
    if !before.0 {
        return Ok(None);
    }
    let (mut hasher, mut len, mut buffer) = (Xxh3::new(), 0, vec![0; READ_LEN_BYTES]);
    loop {
        if interrupt::came() {
            return Err("interrupted".to_owned());
        }
        let got = file.read(&mut buffer).map_err(failed)?;
        let Some(piece) = buffer.get(..got).filter(|piece| !piece.is_empty()) else { break };
        hasher.update(piece);
        len += got as u64;
    }
    match state(&file)? == before && len == before.1 {
        true => Ok(Some((len, hasher.digest128().to_be_bytes()))),
        false => Err("it changed while it was read".to_owned()),
    }
}

/// All that a mount has now, as an index that nobody else sees; that of a vault in memory only.
///
/// # Errors
/// Those of the process of the mount; of making it.
pub fn whole(asked: &Asked) -> Result<IndexFile> {
    interrupt::watch();
    listed(asked, &making(asked)?, Search::default())
}

fn failed(asked: &Asked, e: &FsError) -> Failure {
    Failure::fs(asked.mountpoint().display(), e)
}

/// How an index of what a mount shows is made: names of a vault reach no disk.
fn making(asked: &Asked) -> Result<Making> {
    let lies = match is_secret(asked.kind()) {
        true => Lies::InMemory,
        false => Lies::OnDisk(scratch_dir().map_err(|e| failed(asked, &e))?),
    };
    Ok(Making { lies, memory_bytes: MAKING_LEN_BYTES })
}

/// What the mount finds, as an index.
fn listed(asked: &Asked, making: &Making, search: Search) -> Result<IndexFile> {
    let mut builder = making.builder().map_err(|e| failed(asked, &e))?;
    let mut unread_links = 0;
    let end = asked.ask(&Question::Find(Box::new(search)), &mut |piece| {
        let Piece::Hits(hits) = piece else { return Ok(()) };
        hits.iter().try_for_each(|hit| add(asked, &mut builder, hit, &mut unread_links)).map_err(|e| failed(asked, &e))
    })?;
    let End { unread, is_root_unread } = End::deserialize(&end).unwrap_or_default();
    if is_root_unread {
        let (path, kind, extra) = (&b""[..], Kind::Directory, UNREADABLE);
        let root = Entry { path, kind, perm: 0o755, size: 0, mtime_ns: 0, hash: None, stamp: None, extra };
        builder.add(&root).map_err(|e| failed(asked, &e))?;
    }
    Ok(IndexFile { unread: unread + unread_links, ..made(asked, making, builder)? })
}

/// In place of where a link leads that could not be read. No link leads to a zero byte.
pub(super) const UNREAD_LINK: &[u8] = b"\0";

/// What stands in place of where a link leads that could not be read: of each another one, so that no two of them are taken for the same.
fn unread_link() -> Vec<u8> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    [UNREAD_LINK, &COUNT.fetch_add(1, Relaxed).to_le_bytes()].concat()
}

/// Links that cannot be read are told, and counted.
fn add(asked: &Asked, builder: &mut Builder, hit: &Hit, unread_links: &mut u64) -> adit_core::Result<()> {
    let hash = hit.hash.as_deref().and_then(|hash| u128::from_str_radix(hash, 16).ok());
    // A difference goes by where a link leads as well, which the index of a mount has not.
    let target = match hit.kind == Kind::Symlink.as_str() {
        true => deep::read_link(asked.mountpoint(), &hit.path).unwrap_or_else(|e| {
            eprintln!("adit: {}: {e}", printable(&rooted(&hit.path)));
            *unread_links += 1;
            unread_link()
        }),
        // As the index of a folder is marked, so that nobody takes what is not in it for absent.
        false if hit.is_unread => UNREADABLE.to_vec(),
        false => Vec::new(),
    };
    builder.add(&Entry {
        path: &hit.path,
        kind: kind_of(&hit.kind).unwrap_or(Kind::File),
        perm: hit.perm,
        size: hit.size,
        mtime_ns: hit.mtime_ns,
        hash: hash.map(u128::to_be_bytes),
        stamp: None,
        extra: &target,
    })
}

fn made(asked: &Asked, making: &Making, builder: Builder) -> Result<IndexFile> {
    let segment = making.segment(builder, &mut on).map_err(|e| failed(asked, &e))?;
    let (path, file_len) = (asked.mountpoint().to_owned(), segment.file_len());
    let is_in_micros = asked.is_of_manifest();
    Ok(IndexFile { path, segment: Arc::new(segment), is_sealed: false, file_len, unread: 0, is_in_micros })
}
