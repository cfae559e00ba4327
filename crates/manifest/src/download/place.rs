//! What is in the place of an entry, and what becomes of it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use adit_core::error::{ErrorKind, FsError};
use adit_core::path::show;
use adit_core::types::{Attr, Kind};

use super::draft::Draft;
use super::work::Shared;
use super::{Conflict, Fault, Outcome, on_host};

/// Copies that are tried before a name is given up.
const COPIES_MAX: u32 = 10_000;

/// Where a file or link goes that is not there yet.
#[derive(Debug)]
pub(super) struct Target {
    /// Its path below the folder.
    pub path: PathBuf,
    /// Whether what is there is replaced.
    pub replace: bool,
    /// What became of it, when it is there.
    pub outcome: Outcome,
}

impl Target {
    /// In the place itself, where nothing is.
    pub fn free(path: &[u8]) -> Target {
        Target { path: on_host(path), replace: false, outcome: Outcome::New }
    }
}

/// What is decided about an entry in whose place something else is: where it goes, or that nothing is done.
///
/// `is_it` tells whether what lies at a path, which may be a copy from before, is what the manifest has.
///
/// # Errors
/// What cannot be replaced; the host's.
pub(super) fn settle(
    shared: &Shared<'_>,
    path: &[u8],
    there: &Attr,
    is_it: &dyn Fn(&Path, &Attr) -> Result<bool, Fault>,
) -> Result<Result<Target, Outcome>, Fault> {
    match shared.conflict {
        Conflict::Skip => Ok(Err(Outcome::Skipped)),
        Conflict::Overwrite => {
            replaceable(there).map_err(|e| Fault::Entry(e.on("write", show(path))))?;
            Ok(Ok(Target { path: on_host(path), replace: true, outcome: Outcome::Replaced }))
        }
        Conflict::Copy => {
            let Some(host) = shared.host else { return Ok(Ok(Target::free(path))) };
            for number in 1..=COPIES_MAX {
                let copy = copy_name(path, number);
                // What the manifest has under that name is to come there, and nothing else.
                if shared.has(&copy) {
                    continue;
                }
                let at = on_host(&copy);
                match host.stat(&at) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        return Ok(Ok(Target { path: at, replace: false, outcome: Outcome::Copied(copy) }));
                    }
                    Err(e) => return Err(Fault::of_host(&copy, e)),
                    Ok(attr) if is_it(&at, &attr)? => return Ok(Err(Outcome::Present(Some(copy)))),
                    Ok(_) => {}
                }
            }
            let too_many = FsError::new(ErrorKind::Exists).because("there are 10000 copies of it already");
            Err(Fault::Entry(too_many.on("write", show(path))))
        }
    }
}

/// Refuses what is never replaced.
fn replaceable(there: &Attr) -> Result<(), FsError> {
    match there.kind {
        Kind::File | Kind::Symlink => Ok(()),
        Kind::Directory => Err(FsError::new(ErrorKind::IsDirectory).because("a folder is in its place; move it away")),
        _ => Err(FsError::new(ErrorKind::NotSupported).because("a device, FIFO or socket is in its place")),
    }
}

/// `dir/name (2).ext` for `dir/name.ext`.
fn copy_name(path: &[u8], number: u32) -> Vec<u8> {
    let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    // A dot at the beginning or at the end begins no extension.
    let dot = path[name..].iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0 && name + at + 1 < path.len());
    let (stem, extension) = path.split_at(dot.map_or(path.len(), |at| name + at));
    [stem, format!(" ({number})").as_bytes(), extension].concat()
}

/// Makes a symbolic link, in the directory that it lies in, which is there.
pub(super) fn link(shared: &Shared<'_>, path: &[u8], target: &[u8]) -> Result<Outcome, Fault> {
    let Some(host) = shared.host else { return Ok(Outcome::New) };
    let failed = |e: io::Error| Fault::of_host(path, e);
    let is_it = |at: &Path, attr: &Attr| -> Result<bool, Fault> {
        Ok(attr.kind == Kind::Symlink && host.read_link(at).map_err(failed)? == target)
    };
    loop {
        let there = host.stat(&on_host(path));
        if let Ok(attr) = &there {
            shared.found(host, attr, path)?;
        }
        let goes_to = match there {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Target::free(path),
            Err(e) => return Err(failed(e)),
            Ok(attr) if is_it(&on_host(path), &attr)? => return Ok(Outcome::Present(None)),
            Ok(attr) => match settle(shared, path, &attr, &is_it)? {
                Ok(target) => target,
                Err(outcome) => return Ok(outcome),
            },
        };
        if shared.dry_run {
            return Ok(goes_to.outcome);
        }
        let make = || match goes_to.replace {
            false => host.make_link(&goes_to.path, target),
            true => Draft::link(host, &goes_to.path, target).and_then(|mut draft| draft.place(&goes_to.path, true)),
        };
        match shared.place(host, &goes_to, make)? {
            Ok(()) => return Ok(goes_to.outcome),
            // Somebody made something there in between.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(e)),
        }
    }
}

/// A path of the host as bytes.
pub(super) fn bytes(path: &Path) -> &[u8] {
    OsStr::as_bytes(path.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::copy_name;

    #[test]
    fn copies_are_named_as_by_the_official_package() {
        for (path, expected) in [
            ("a.txt", "a (1).txt"),
            ("d.x/a", "d.x/a (1)"),
            ("d/a.tar.gz", "d/a.tar (1).gz"),
            (".hidden", ".hidden (1)"),
            ("d/.hidden.x", "d/.hidden (1).x"),
            ("end.", "end. (1)"),
        ] {
            assert_eq!(String::from_utf8(copy_name(path.as_bytes(), 1)).unwrap(), expected);
        }
        assert_eq!(copy_name(b"\xff.\xfe", 12), b"\xff (12).\xfe");
    }
}
