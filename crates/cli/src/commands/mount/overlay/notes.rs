//! Notes of which volumes have changes on top of which snapshot, in the state directory.
//!
//! A snapshot that an overlay lies on is only read, and knows nothing of that. So whoever mounts such an overlay notes it here,
//! and whoever deletes a snapshot looks here first: without it the changes would be of no use. A note is no more than a hint, and
//! what it says is asked of the upper itself. One that was moved since it was mounted last is not known.
//!
//! `STATE/uppers/LOWER-UPPER` is a note: hashes of the identity of what lies below, and of the path of the upper, as 32
//! hexadecimal digits each. In the file is that path, as bytes.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use adit_core::overlay::LowerIdentity;
use xxhash_rust::xxh3::xxh3_128;

use super::place;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::state_dir;
use crate::volume_work::Named;

/// The folder of notes in the state directory.
const NOTES_DIR: &str = "uppers";
/// What the name of a note ends with that is not whole yet.
const UNFINISHED: &str = "new";

/// The names of notes about what lies on `lower` begin so.
fn prefix(lower: &LowerIdentity) -> String {
    format!("{:032x}-", xxh3_128(&lower.id))
}

/// Notes that the volume in `upper`, an absolute path, has changes of `lower`.
///
/// # Errors
/// `Failure` without a state directory; the host's.
pub fn note(state: Option<&Path>, lower: &LowerIdentity, upper: &Path) -> Result<()> {
    let state = state.ok_or_else(|| Failure::new(Code::Failure, "nothing says where the state directory is"))?;
    let dir = state.join(NOTES_DIR);
    state_dir::create(&dir)?;
    let text = upper.as_os_str().as_bytes();
    let path = dir.join(format!("{}{:032x}", prefix(lower), xxh3_128(text)));
    if fs::read(&path).is_ok_and(|noted| noted == text) {
        return Ok(());
    }
    // Whole under its name, or not there.
    let unfinished = path.with_extension(format!("{}.{UNFINISHED}", std::process::id()));
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &path));
    written.map_err(|e| Failure::io(path.display(), &e))
}

/// The notes about `lower`, and the uppers that they name.
fn noted(state: &Path, lower: &LowerIdentity) -> Result<Vec<(PathBuf, PathBuf)>> {
    let dir = state.join(NOTES_DIR);
    let failed = |e: &io::Error| Failure::io(dir.display(), e);
    let entries = match fs::read_dir(&dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| failed(&e))?,
    };
    let prefix = prefix(lower);
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| failed(&e))?.path();
        let is_note = |name: &str| name.starts_with(&prefix) && !name.ends_with(UNFINISHED);
        if path.file_name().and_then(OsStr::to_str).is_some_and(is_note) {
            let text = fs::read(&path).map_err(|e| Failure::io(path.display(), &e))?;
            found.push((path, PathBuf::from(OsStr::from_bytes(&text))));
        }
    }
    found.sort();
    Ok(found)
}

/// The volumes that have changes of `lower`, as far as this user's mounts have noted. One that cannot be asked is among them.
fn uppers(state: Option<&Path>, lower: &LowerIdentity) -> Result<Vec<PathBuf>> {
    let noted = state.map_or_else(|| Ok(Vec::new()), |state| noted(state, lower))?;
    // That in the cache directory needs no note.
    let mut found: Vec<PathBuf> = place::first_place(None, lower).ok().into_iter().collect();
    for (note, upper) in noted {
        if !upper.exists() {
            // It is gone; if not for good, its next mount notes it again.
            let _ = fs::remove_file(note);
        } else if !found.contains(&upper) {
            found.push(upper);
        }
    }
    found.retain(|upper| {
        place::belongs(upper, lower).unwrap_or_else(|failure| {
            tracing::info!("{}", failure.text());
            true
        })
    });
    Ok(found)
}

/// Refuses to delete a snapshot that changes of an overlay lie on. `state` is the state directory.
///
/// # Errors
/// `Busy`, naming the uppers; what [`Named::ask`] says.
pub fn refuse_below(named: &Named, snapshot: &str, state: Option<&Path>) -> Result<()> {
    // That there is none, who deletes it says.
    let Some(lower) = super::snapshot_identity(named, snapshot)? else { return Ok(()) };
    let uppers = uppers(state, &lower)?;
    let Some(first) = uppers.first() else { return Ok(()) };
    let paths: Vec<String> = uppers.iter().map(|upper| upper.display().to_string()).collect();
    let what = format!(
        "{}: snapshot {snapshot} lies below the changes that are in {}, which are of no use without it",
        named.subject,
        paths.join(" and in ")
    );
    let (volume, upper) = (named.file().display(), first.display());
    let is_cached = place::uppers_dir(None).is_ok_and(|dir| first.parent() == Some(&dir));
    let delete = if is_cached { format!("adit volume uppers delete {upper}") } else { format!("rm {upper}") };
    Err(Failure::new(Code::Busy, what).hint(format!(
        "to see them: adit mount {volume} MOUNTPOINT --snapshot {snapshot} --upper {upper}, then copy what is needed; once they are \
         not needed any more: {delete}, and delete the snapshot then"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_found_by_what_lies_below() {
        let state = tempfile::tempdir().unwrap();
        let lower = |id: &[u8]| LowerIdentity { id: id.to_vec(), text: String::new() };
        let (one, other) = (lower(b"one"), lower(b"other"));
        let found = |lower: &LowerIdentity| -> Vec<PathBuf> {
            noted(state.path(), lower).unwrap().into_iter().map(|(_, upper)| upper).collect()
        };
        assert_eq!(found(&one), [] as [PathBuf; 0], "also without the folder");
        let odd = Path::new(OsStr::from_bytes(b"/odd\xff\n"));
        for upper in [Path::new("/a"), odd, odd] {
            note(Some(state.path()), &one, upper).unwrap();
        }
        note(Some(state.path()), &other, Path::new("/b")).unwrap();
        let mut both = found(&one);
        both.sort();
        assert_eq!(both, [Path::new("/a"), odd]);
        assert_eq!(found(&other), [Path::new("/b")]);
        assert!(note(None, &one, odd).is_err());
    }
}
