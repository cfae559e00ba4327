//! Notes about lost content: text files in `/lost+found`, encrypted like every file, whose first line is the cleartext
//! path of a directory that a repair made again empty.
//!
//! A note is known by its place and its name. Whoever has restored the content, or given it up, removes the file.

use adit_core::Result;
use adit_core::media::HostDir;
use xxhash_rust::xxh3::xxh3_64;

use super::Place;
use super::moves::{LOST_AND_FOUND, Mover};
use super::walk::Walk;
use crate::format::content::object;
use crate::format::{ContentCipher, DirId};
use crate::journal::recover::read_small;

/// What the name of a note begins with.
const PREFIX: &str = "content-lost-";
/// What it ends with.
const SUFFIX: &str = ".txt";
/// Bytes of a directory's name that become part of the note's.
const STEM_LEN_MAX_BYTES: usize = 80;
/// Notes that a report tells of one by one; a vault with more has lost nearly everything.
const LOST_MAX: usize = 10_000;

/// A directory that a repair made again without its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Its cleartext path when it was repaired; None if that was not known, or the note cannot be read.
    pub path: Option<String>,
    /// Cleartext path of the note, which is to be removed when the content is restored or given up.
    pub note: String,
}

/// The name of the note about the directory `id`: the same in each attempt.
fn name_of(id: &DirId, path: Option<&str>) -> String {
    let mut stem = path.and_then(|path| path.rsplit('/').next()).unwrap_or_default().to_owned();
    while stem.len() > STEM_LEN_MAX_BYTES {
        stem.pop();
    }
    let between = if stem.is_empty() { "" } else { "-" };
    format!("{PREFIX}{stem}{between}{:016x}{SUFFIX}", xxh3_64(id.as_str().as_bytes()))
}

fn text(place: &Place, content_dir: &str) -> String {
    let first = place.known().unwrap_or_default();
    let which = match (place.known(), place.path.as_deref()) {
        (None, Some(folder)) => format!("A directory in {folder}, whose name was not known,"),
        (None, None) => "A directory whose path was not known".to_owned(),
        _ => "The directory named above".to_owned(),
    };
    format!(
        "{first}\n\n\
         {which} had lost its content when this vault was repaired: the folder\n\
         {content_dir}\n\
         was missing from the vault, with everything that the directory held. It was made again, empty.\n\n\
         If the vault is synchronised, the content may still be on another device or on the server; otherwise look for\n\
         the folder in a backup, and copy what it holds into the one in the vault. Remove this note when that is done,\n\
         or when the content is given up: until then each check tells of it.\n"
    )
}

/// Puts the note about the directory `id` into `/lost+found`, unless it is there already.
pub(super) fn leave_note(mover: &mut Mover<'_>, id: &DirId, place: &Place) -> Result<String> {
    let name = name_of(id, place.known());
    let lost = mover.lost_and_found()?;
    let content_dir = mover.names.dir_hash_path(id);
    // Taken means: by an earlier attempt.
    mover.put_file(&lost, &name, text(place, &content_dir).as_bytes())?;
    Ok(format!("/{LOST_AND_FOUND}/{name}"))
}

/// Whether a directory of the root with this name is one for things that were found: `lost+found`, or the same with a
/// number, behind `-` (repair) or `.` (recovery).
fn is_lost_and_found(name: &str) -> bool {
    name.strip_prefix(LOST_AND_FOUND).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix(['-', '.']).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// Whether the file at this cleartext path is a note.
fn is_note(path: &str) -> bool {
    let Some((folder, name)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else { return false };
    is_lost_and_found(folder) && name.starts_with(PREFIX) && name.ends_with(SUFFIX) && !name.contains('/')
}

/// The first line of the note at the ciphertext path `at`, if it can be read and names a path.
fn first_line(root: &dyn HostDir, content: &ContentCipher, at: &str) -> Option<String> {
    let bytes = read_small(root, at, object::max_encoded_bytes(content)).ok()??;
    let text = String::from_utf8(object::decode(content, &bytes).ok()?).ok()?;
    let line = text.lines().next()?;
    line.starts_with('/').then(|| line.to_owned())
}

impl Walk<'_> {
    /// Reminds of what recovery and repair have saved, if the directory `at` is the place for it. Its notes, of which the
    /// report tells one by one, do not count.
    pub(super) fn tell_of_rescues(&mut self, at: u32, content: &str, entries: usize) {
        let Some(name) = self.name_in_root(at).filter(|name| is_lost_and_found(name)).map(str::to_owned) else {
            return;
        };
        let folder = format!("/{name}/");
        let own = self.report.lost.iter().filter(|lost| lost.note.starts_with(&folder)).count();
        let entries = entries.saturating_sub(own);
        if entries > 0 {
            let what = if entries == 1 { "1 entry".to_owned() } else { format!("{entries} entries") };
            let detail = format!("/{name} holds {what} that recovery or repair has saved; look through it");
            self.note(content.to_owned(), detail);
        }
    }

    /// Takes note of the file whose content is at `at`, if it is a note.
    pub(super) fn look_for_note(&mut self, path: Option<&str>, at: &str) {
        let Some(note) = path.filter(|path| is_note(path)) else { return };
        if self.report.lost.len() < LOST_MAX {
            let path = first_line(self.root, &self.content, at);
            self.report.lost.push(Lost { path, note: note.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_known_by_place_and_name() {
        let id = DirId::generate();
        for path in [None, Some("/"), Some("/a/b"), Some("/grüße")] {
            let name = name_of(&id, path);
            assert!(is_note(&format!("/lost+found/{name}")) && is_note(&format!("/lost+found-2/{name}")), "{name}");
            assert!(!is_note(&format!("/{name}")) && !is_note(&format!("/lost+found/d/{name}")), "{name}");
        }
        assert!(name_of(&id, Some(&format!("/{}", "ü".repeat(200)))).len() < 130);
        assert!(
            is_lost_and_found("lost+found") && is_lost_and_found("lost+found.2") && !is_lost_and_found("lost+found~")
        );
        assert!(!is_note("/lost+found/file-1") && !is_note("/lost+founds/content-lost-x.txt"));
    }
}
