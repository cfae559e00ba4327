//! Permissions of what carries an entry: the folders and small files beside its content. Nobody asks for their modes.
//!
//! They are made as Cryptomator makes them, with all that the umask leaves, so that whoever shares a folder can use what others
//! made in it. Whom an entry's own mode lets in is let through to it besides: what leads to it can then be read, and changed
//! where the entry can be.

use std::path::Path;

use adit_core::media::HostDir;
use adit_core::types::SetAttr;

/// Bits of a mode that are no permissions of anybody.
const SPECIAL: u16 = 0o7000;
/// To list what is in a folder, and to go through it.
const THROUGH: u16 = 0o055;
/// To make and remove what is in a folder.
const WRITE: u16 = 0o022;
/// Where the bits of the group and of others are.
const OTHERS: [u16; 2] = [3, 0];

/// Of a folder; `entry` are the permissions of the entry that it leads to, or 0.
pub(crate) fn folder(host: &dyn HostDir, entry: u16) -> u16 {
    0o700 | 0o777 & !host.umask() | reach(entry)
}

/// Of the folder `path` of several entries, of which this is one.
pub(crate) fn shared_folder(host: &dyn HostDir, path: &str, entry: u16) -> u16 {
    folder(host, 0) | way(host, path, entry)
}

/// Of a small file.
pub(crate) fn file(host: &dyn HostDir, entry: u16) -> u16 {
    folder(host, entry) & 0o666
}

/// Who is let in by `entry`, as far as a folder on the way is concerned.
fn reach(entry: u16) -> u16 {
    let of = |shift: u16| match entry >> shift & 7 {
        0 => 0,
        class => (class & 2 | 5) << shift,
    };
    OTHERS.into_iter().map(of).sum()
}

/// Whom `entry` lets into a folder of several entries: they go through it, and its others are none of their business. To remove an entry there takes
/// more: it has who may change the entry and the folder above as well, and could put that folder away.
fn way(host: &dyn HostDir, path: &str, entry: u16) -> u16 {
    let reach = reach(entry);
    let above = || host.stat(Path::new(path).parent().unwrap_or(Path::new(""))).map_or(0, |above| above.perm);
    reach & THROUGH | if reach & WRITE == 0 { 0 } else { reach & WRITE & above() }
}

/// Lets those through a folder of several entries whom `entry` lets in.
pub(crate) fn open_way(host: &dyn HostDir, path: &str, found: u16, entry: u16) {
    let wanted = found | way(host, path, entry);
    if wanted != found {
        set(host, path, wanted);
    }
}

/// Gives what carries an entry the permissions `perm`. It may be somebody else's, or gone: then the entry is as it was made.
pub(crate) fn follow(host: &dyn HostDir, path: &str, perm: u16) {
    let Ok(found) = host.stat(Path::new(path)) else { return };
    let wanted = found.perm & SPECIAL | perm;
    if wanted != found.perm {
        set(host, path, wanted);
    }
}

fn set(host: &dyn HostDir, path: &str, perm: u16) {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    if let Err(e) = host.set_attr(Path::new(path), &set) {
        tracing::debug!("{path}: its permissions stay: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::reach;

    #[test]
    fn whom_an_entry_lets_in_is_let_through_to_it() {
        for (entry, expected) in
            [(0o000, 0), (0o700, 0), (0o2770, 0o070), (0o640, 0o050), (0o711, 0o055), (0o777, 0o077)]
        {
            assert_eq!(reach(entry), expected, "{entry:o}");
        }
    }
}
