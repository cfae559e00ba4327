//! Which path of the manifest each file and directory of the host is for. Two names of a manifest can be one on the host, which
//! may take capitals and small letters, or two spellings of an accent, for the same: the second would replace the first.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use adit_core::error::{ErrorKind, FsError};
use adit_core::media::HostDir;
use adit_core::path::show;
use adit_core::types::Ino;
use xxhash_rust::xxh3::xxh3_64;

use super::on_host;
use super::place::bytes;
use crate::format::Manifest;

/// By inode number, the hash of the path that came first: a path for each would take more memory than the manifest.
#[derive(Default)]
pub(super) struct Claims(Mutex<HashMap<Ino, u64>>);

impl Claims {
    /// What was found at `path`, with the number `ino`, is for that path from now on.
    ///
    /// # Errors
    /// `Exists` if it is for another path of the manifest, of which this is another name there.
    pub fn found(&self, host: &dyn HostDir, manifest: &Manifest, ino: Ino, path: &[u8]) -> Result<(), FsError> {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        check(&claims, host, manifest, ino, path)?;
        claims.entry(ino).or_insert_with(|| xxh3_64(path));
        Ok(())
    }

    /// Has `place` put something at `path`, if it `replaces` in the place of what is there now, which nobody else puts there meanwhile.
    ///
    /// # Errors
    /// As [`Claims::found`]; the inner ones are those of `place`.
    pub fn place(
        &self,
        host: &dyn HostDir,
        manifest: &Manifest,
        path: &[u8],
        replaces: bool,
        place: impl FnOnce() -> io::Result<()>,
    ) -> Result<io::Result<()>, FsError> {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let there = if replaces { host.stat(&on_host(path)).ok() } else { None };
        if let Some(there) = &there {
            check(&claims, host, manifest, there.ino, path)?;
        }
        let placed = place();
        if placed.is_ok() {
            // Its number may come again.
            if let Some(there) = &there {
                claims.remove(&there.ino);
            }
            claims.extend(host.stat(&on_host(path)).ok().map(|made| (made.ino, xxh3_64(path))));
        }
        Ok(placed)
    }
}

fn check(
    claims: &HashMap<Ino, u64>,
    host: &dyn HostDir,
    manifest: &Manifest,
    ino: Ino,
    path: &[u8],
) -> Result<(), FsError> {
    let Some(first) = claims.get(&ino).filter(|first| **first != xxh3_64(path)) else { return Ok(()) };
    let Some(first) = path_of(manifest, *first) else { return Ok(()) };
    // Further names of one file, and what is mounted there, have their own entries.
    let failed = |e: io::Error| FsError::from(e).on("list", show(path));
    if is_listed(host, &first).map_err(failed)? && is_listed(host, path).map_err(failed)? {
        return Ok(());
    }
    Err(FsError::new(ErrorKind::Exists).on("write", show(path)).because(format!(
        "it has the same name on this host as {} of the manifest, which stays; download it to another folder",
        show(&first)
    )))
}

/// Whether the directory that holds `path` has an entry that is spelt so.
fn is_listed(host: &dyn HostDir, path: &[u8]) -> io::Result<bool> {
    let path = on_host(path);
    let Some(name) = path.file_name() else { return Ok(false) };
    let mut found = false;
    host.list(path.parent().unwrap_or(Path::new("")), &mut |entry| found |= entry.name == bytes(Path::new(name)))?;
    Ok(found)
}

/// The path with this hash: of an entry, or of a directory that one lies in.
fn path_of(manifest: &Manifest, hash: u64) -> Option<Vec<u8>> {
    manifest.entries().find_map(|(path, _)| {
        let path = path.to_host().ok()?.into_owned();
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
        ends.map(|end| &path[..end]).find(|part| xxh3_64(part) == hash).map(<[u8]>::to_vec)
    })
}
