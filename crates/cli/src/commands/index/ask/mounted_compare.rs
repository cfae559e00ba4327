//! `index dupes` and `index diff` of mounts.
//!
//! The index of a mount has hashes only where its store knows them, which is a manifest's. So files of equal size are read through the mountpoint
//! and compared by the hash of what was read; and a difference goes by size and time where a hash is missing, as between files without hashes.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, read_link};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use adit_core::types::Kind;
use adit_index::live::{Lies, Making};
use adit_index::query::DupesSummary;
use adit_index::{ContentHash, Entry};
use rustix::fs::OFlags;
use serde::Deserialize;
use xxhash_rust::xxh3::Xxh3;

use super::compare::{Equal, end_of_dupes};
use super::mounted::rooted;
use crate::args::index_ask::IndexDupesArgs;
use crate::args::low::GlobalArgs;
use crate::args::units::show_size;
use crate::asked::Asked;
use crate::commands::mount::indexed::{is_secret, scratch_dir};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::open::index::{IndexFile, on};
use crate::output::{JsonList, Output, printable};
use crate::question::{About, Hit, Piece, Question, kind_of};

/// What is read of a file at once, in bytes.
const READ_LEN_BYTES: usize = 256 << 10;
/// Memory while the tree of a mount is made into a segment, in bytes.
const MAKING_LEN_BYTES: u64 = 64 << 20;

/// `adit index dupes MOUNTPOINT`
pub fn dupes(asked: &Asked, args: &IndexDupesArgs, global: &GlobalArgs) -> Result<()> {
    interrupt::watch();
    let question = Question::SameSize { path: args.below.as_bytes().to_vec(), min_bytes: args.min_size };
    let mut candidates: Vec<Vec<Hit>> = Vec::new();
    asked.ask(&question, &mut |piece| {
        if let Piece::Groups(groups) = piece {
            candidates.extend(groups);
        }
        Ok(())
    })?;
    let unread = || candidates.iter().flatten().filter(|hit| hit.hash.is_none());
    let (files, bytes) = (unread().count(), unread().map(|hit| hit.size).sum::<u64>());
    if files > 0 && !global.quiet {
        let (mountpoint, size) = (asked.mountpoint().display(), show_size(bytes));
        eprintln!("adit: {mountpoint}: reads {files} files ({size}) that have the size of another one");
    }
    let mut summary = DupesSummary::default();
    let mut equal = Vec::new();
    for hits in candidates {
        groups_of(asked, hits, &mut summary, &mut equal)?;
    }
    equal.sort_by(|one, other| {
        let key = |equal: &Equal| (equal.wasted_bytes(), equal.size);
        key(other).cmp(&key(one)).then_with(|| one.paths.cmp(&other.paths))
    });
    summary.groups = equal.len() as u64;
    summary.duplicates = equal.iter().map(|equal| equal.paths.len() as u64).sum();
    summary.wasted_bytes = equal.iter().map(Equal::wasted_bytes).sum();
    let mut out = Output::new();
    let shown = equal.iter().take(args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)));
    if args.print.json {
        out.bytes(b"{\"groups\": ")?;
        let mut list = JsonList::begin(&mut out)?;
        shown.map(Equal::json).try_for_each(|told| list.add(&mut out, &told))?;
        list.end(&mut out)?;
        end_of_dupes(&summary, &mut out)?;
    } else {
        shown.into_iter().try_for_each(|equal| equal.print(args.print.print0, &mut out))?;
    }
    out.finish()?;
    if summary.unhashed > 0 && !global.quiet {
        let (files, size) = (summary.unhashed, show_size(summary.unhashed_bytes));
        eprintln!("adit: {}: {files} files ({size}) were not compared", asked.mountpoint().display());
    }
    Ok(())
}

/// Tells those of the files of one size that hold the same. One that is gone meanwhile is passed over; one that cannot be read, or changes while
/// it is, is told and not compared.
fn groups_of(asked: &Asked, hits: Vec<Hit>, summary: &mut DupesSummary, equal: &mut Vec<Equal>) -> Result<()> {
    let mut by_hash: HashMap<(u64, ContentHash), Vec<Vec<u8>>> = HashMap::new();
    for hit in hits {
        let known = hit.hash.as_deref().and_then(|hash| u128::from_str_radix(hash, 16).ok());
        let content = match known {
            Some(hash) => Ok(Some((hit.size, hash.to_be_bytes()))),
            None => read(&asked.mountpoint().join(OsStr::from_bytes(&hit.path))),
        };
        match content {
            Ok(Some((size, hash))) => {
                summary.hashed += 1;
                by_hash.entry((size, hash)).or_default().push(rooted(&hit.path));
            }
            Ok(None) => {}
            Err(why) => {
                if interrupt::came() {
                    return Err(Failure::new(Code::Failure, "interrupted"));
                }
                eprintln!("adit: {}: {why}", printable(&rooted(&hit.path)));
                summary.unhashed += 1;
                summary.unhashed_bytes += hit.size;
            }
        }
    }
    let groups = by_hash.into_iter().filter(|(_, paths)| paths.len() > 1);
    equal.extend(groups.map(|((size, hash), paths)| Equal { size, hash, paths }));
    Ok(())
}

/// Length and hash of a file's content; `None` if there is no such file.
fn read(path: &Path) -> std::result::Result<Option<(u64, ContentHash)>, String> {
    let failed = |e: std::io::Error| e.to_string();
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut file = match File::options().read(true).custom_flags(flags).open(path) {
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
pub fn whole(asked: &Asked, quiet: bool) -> Result<IndexFile> {
    interrupt::watch();
    let failed = |e: adit_core::FsError| Failure::fs(asked.mountpoint().display(), &e);
    let lies = if is_secret(asked.kind()) { Lies::InMemory } else { Lies::OnDisk };
    let making = Making { scratch_dir: scratch_dir().map_err(failed)?, lies, memory_bytes: MAKING_LEN_BYTES };
    let mut builder = making.builder().map_err(failed)?;
    asked.ask(&Question::Find(Box::default()), &mut |piece| {
        let Piece::Hits(hits) = piece else { return Ok(()) };
        hits.iter()
            .try_for_each(|hit| {
                let hash = hit.hash.as_deref().and_then(|hash| u128::from_str_radix(hash, 16).ok());
                // A difference goes by where a link leads as well, which the index of a mount has not.
                let target = match hit.kind == Kind::Symlink.as_str() {
                    true => read_link(asked.mountpoint().join(OsStr::from_bytes(&hit.path)))
                        .unwrap_or_default()
                        .into_os_string(),
                    false => OsString::new(),
                };
                builder.add(&Entry {
                    path: &hit.path,
                    kind: kind_of(&hit.kind).unwrap_or(Kind::File),
                    perm: hit.perm,
                    size: hit.size,
                    mtime_ns: hit.mtime_ns,
                    hash: hash.map(u128::to_be_bytes),
                    extra: target.as_bytes(),
                })
            })
            .map_err(failed)
    })?;
    let segment = making.segment(builder, &mut on).map_err(failed)?;
    let about = About::deserialize(&asked.ask(&Question::Info, &mut |_| Ok(()))?).unwrap_or_default();
    if about.unread > 0 && !quiet {
        let mountpoint = asked.mountpoint().display();
        eprintln!(
            "adit: {mountpoint}: not whole: {} things could not be read, and may be missing in the answer",
            about.unread
        );
    }
    let file_len = segment.file_len();
    Ok(IndexFile { path: asked.mountpoint().to_owned(), segment: Arc::new(segment), is_sealed: false, file_len })
}
