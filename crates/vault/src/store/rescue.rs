//! What recovery could not put back goes into `lost+found` in the vault's root, one file per object.
//!
//! Recovery that is cut off does this again, under the same names, and goes on with what it finds there.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use adit_core::store::{NewNode, StoreFile};
use adit_core::types::{Access, Attr, Caller, FileName, Ino, Kind};
use adit_core::{ErrorKind, FsError, Result};
use zeroize::Zeroizing;

use super::{Shared, change, open_file};
use crate::format::names::CONTENTS_FILE;
use crate::journal::recover::Rescue;
use crate::perm;

/// Characters of the ciphertext name that the name of a rescued file repeats.
const STEM_LEN: usize = 24;

/// The directory `lost+found` in the vault's root, or one beside it if that name is another object's.
fn lost_and_found(shared: &Arc<Shared>, caller: Caller) -> Result<Attr> {
    let mut name = "lost+found".to_owned();
    for n in 1u32.. {
        let found = FileName::new(name.as_bytes())?;
        let perm = perm::folder(&*shared.root, 0);
        match change::mkdir(shared, Ino::ROOT, found, &NewNode { perm, umask: 0, caller }) {
            Err(e) if e.kind() == ErrorKind::Exists => {
                let attr = shared.find(&shared.root_dir, found)?.attr;
                if attr.kind == Kind::Directory {
                    return Ok(attr);
                }
            }
            other => return other,
        }
        name = format!("lost+found.{n}");
    }
    Err(ErrorKind::Exists.into())
}

/// Keeps the pieces of one file, one after the other, in a file named after it and the first offset. If they are not one
/// run, a second file, `….offsets`, tells where each belongs: offset and length, a line for each.
pub(super) fn keep(shared: &Arc<Shared>, lost: &Rescue<'_>) -> Result<()> {
    // Nobody asks for it: it is for whoever has the vault.
    let root = shared.root_dir.hash.path();
    let owner = shared.root.stat(Path::new(&root)).map_err(|e| FsError::from(e).on("rescue into", &root))?;
    let caller = Caller { uid: owner.uid, gid: owner.gid };
    let dir = lost_and_found(shared, caller)?.ino;
    let entry = lost.path.strip_suffix(CONTENTS_FILE).map_or(lost.path, |folder| folder.trim_end_matches('/'));
    let stem: String = entry.rsplit('/').next().unwrap_or_default().chars().take(STEM_LEN).collect();
    let name = format!("recovered-{stem}-at-{}.{}", lost.pieces[0].0, lost.tag);
    let lens: Vec<u64> = lost.pieces.iter().map(|&(_, len)| len).collect();
    let kept = keep_file(shared, dir, caller, &name, &lens, lost.read)?;
    if lost.pieces.windows(2).any(|w| w[0].0 + w[0].1 != w[1].0) {
        let mut lines = String::new();
        for (offset, len) in lost.pieces {
            let _ = writeln!(lines, "{offset} {len}"); // a String takes all
        }
        let whole = |_| Ok(Zeroizing::new(lines.clone().into_bytes()));
        keep_file(shared, dir, caller, &format!("{kept}.offsets"), &[lines.len() as u64], &whole)?;
    }
    Ok(())
}

/// Keeps pieces of these lengths as the file `name`, or one beside it if that is something else. Returns its name.
fn keep_file(
    shared: &Arc<Shared>,
    dir: Ino,
    caller: Caller,
    name: &str,
    lens: &[u64],
    read: &dyn Fn(usize) -> Result<Zeroizing<Vec<u8>>>,
) -> Result<String> {
    let mut tried = name.to_owned();
    for n in 1u32.. {
        let file_name = FileName::new(tried.as_bytes())?;
        let file = match change::create(shared, dir, file_name, &NewNode { perm: 0o600, umask: 0, caller }) {
            Ok((_, file, _)) => Some(file),
            Err(e) if e.kind() == ErrorKind::Exists => {
                let attr = shared.find(&shared.directory(dir)?, file_name)?.attr;
                let there =
                    (attr.kind == Kind::File).then(|| open_file(shared, attr.ino, Access::Write)).transpose()?;
                // What an earlier attempt had written before it was cut off is the beginning of it.
                there.map(|file| begins(&*file, lens, read).map(|is| is.then_some(file))).transpose()?.flatten()
            }
            Err(e) => return Err(e),
        };
        if let Some(file) = file {
            complete(&*file, lens, read)?;
            return Ok(tried);
        }
        tried = format!("{name}.{n}");
    }
    Err(ErrorKind::Exists.into())
}

/// Whether `file` holds the beginning of the pieces, or all of them, and nothing else.
fn begins(file: &dyn StoreFile, lens: &[u64], read: &dyn Fn(usize) -> Result<Zeroizing<Vec<u8>>>) -> Result<bool> {
    let (len, mut at) = (file.len()?, 0);
    for (n, piece_len) in lens.iter().enumerate() {
        if at >= len {
            break;
        }
        let want = read(n)?;
        let mut found = Zeroizing::new(vec![0; want.len()]);
        let got = file.read_at(at, &mut found)?;
        if found[..got] != want[..got] {
            return Ok(false);
        }
        at += piece_len;
    }
    Ok(len <= lens.iter().sum())
}

/// Writes the pieces that `file` does not hold yet.
fn complete(file: &dyn StoreFile, lens: &[u64], read: &dyn Fn(usize) -> Result<Zeroizing<Vec<u8>>>) -> Result<()> {
    let (len, mut at) = (file.len()?, 0);
    for (n, piece_len) in lens.iter().enumerate() {
        if at + piece_len > len {
            file.write_at(&[(at, &read(n)?)])?;
        }
        at += piece_len;
    }
    Ok(())
}
