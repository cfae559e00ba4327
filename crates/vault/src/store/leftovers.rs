//! Folders that are nobody's any more and could not be removed.
//!
//! Some hosts keep a removed file that is open under another name in its folder (NFS, many of FUSE), and with it the folder. It
//! is tried again: by the store's thread four times a second, when the store ends, and when the next one begins, which finds
//! a list in the journal's folder.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_core::media::{HostDir, NewFile};
use adit_core::types::{Access, Kind};
use parking_lot::Mutex;

use crate::format::names::{CONTENTS_FILE, DATA_DIR, DIR_FILE, NAME_FILE, SYMLINK_FILE};
use crate::journal::temporary::{is_hidden_by_host, whose};

/// Folders remembered. Others wait for `check`.
const FOLDERS_MAX: usize = 1024;
/// The list in the journal's folder: a path in each line.
const LIST: &str = "leftovers";
/// Longest list that is read.
const LIST_LEN_MAX_BYTES: usize = 1 << 20;
/// How long the end of a store waits for a host that was told a moment ago that files are closed, and how often it looks.
const END_MAX: Duration = Duration::from_secs(2);
const END_LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The folders. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Leftovers {
    folders: Mutex<HashSet<String>>,
}

impl Leftovers {
    /// `folder` could not be removed.
    pub fn note(&self, folder: String) {
        let mut folders = self.folders.lock();
        if folders.len() < FOLDERS_MAX {
            folders.insert(folder);
        }
    }

    /// Whether the folder is one of them.
    pub fn contains(&self, folder: &str) -> bool {
        self.folders.lock().contains(folder)
    }

    /// Tries to remove each once more.
    pub fn retry(&self, vault: &dyn HostDir) {
        let folders: Vec<String> = self.folders.lock().iter().cloned().collect();
        for folder in folders.iter().filter(|folder| remove(vault, folder)) {
            self.folders.lock().remove(folder);
        }
    }

    /// Tries for a moment, and writes down in `state` what stays.
    pub fn end(&self, vault: &dyn HostDir, state: &dyn HostDir) {
        let deadline = Instant::now() + END_MAX;
        let waits = || {
            let folders = self.folders.lock().clone();
            folders.iter().any(|folder| !hidden_in(vault, folder).is_empty())
        };
        while waits() && Instant::now() < deadline {
            std::thread::sleep(END_LOOK_INTERVAL);
        }
        self.retry(vault);
        if self.folders.lock().is_empty() {
            return;
        }
        let list: String = self.folders.lock().iter().map(|folder| format!("{folder}\n")).collect();
        let new = NewFile { content: list.as_bytes(), perm: 0o600, owner: None, durable: false };
        if let Err(e) = state.publish(Path::new(LIST), &new) {
            tracing::warn!("{LIST}: folders that could not be removed wait for `adit vault check --repair`: {e}");
        }
    }

    /// Takes up what an earlier store wrote down in `state`.
    pub fn begin(&self, vault: &dyn HostDir, state: &dyn HostDir) {
        let Ok(file) = state.open(Path::new(LIST), Access::Read) else { return };
        let mut bytes = vec![0; LIST_LEN_MAX_BYTES];
        let Ok(len) = file.read_at(0, &mut bytes) else { return };
        drop(file);
        bytes.truncate(len);
        let list = String::from_utf8_lossy(&bytes);
        for folder in list.lines().filter(|folder| is_plain(folder)) {
            // Nobody has them open any more: the host was to forget them, and was cut off.
            hidden_in(vault, folder).iter().for_each(|file| drop(vault.remove(Path::new(file), Kind::File)));
            self.note(folder.to_owned());
        }
        let _ = state.remove(Path::new(LIST), Kind::File);
        self.retry(vault);
    }
}

/// A path below `d` that leaves it nowhere.
fn is_plain(path: &str) -> bool {
    path.strip_prefix(DATA_DIR).is_some_and(|rest| rest.starts_with('/'))
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// The files in a folder that its host keeps.
fn hidden_in(vault: &dyn HostDir, folder: &str) -> Vec<String> {
    let mut hidden = Vec::new();
    let listed = vault.list(Path::new(folder), &mut |e| {
        let name = String::from_utf8_lossy(e.name);
        hidden.extend(is_hidden_by_host(&name).then(|| format!("{folder}/{name}")));
    });
    if listed.is_ok() { hidden } else { Vec::new() }
}

/// Removes a folder that no entry names: with the parts of an entry, if that is one under a temporary name. False if it is
/// still there.
pub(super) fn remove(vault: &dyn HostDir, folder: &str) -> bool {
    if folder.rsplit('/').next().is_some_and(|name| whose(name).is_some()) {
        for part in [NAME_FILE, CONTENTS_FILE, DIR_FILE, SYMLINK_FILE] {
            let _ = vault.remove(Path::new(&format!("{folder}/{part}")), Kind::File);
        }
    }
    match vault.remove(Path::new(folder), Kind::Directory) {
        Ok(()) => true,
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn a_list_leads_nowhere_else() {
        assert!(is_plain("d/AB/CDEF") && is_plain("d/AB/CDEF/.adit-1.tmp"));
        for path in ["d", "d/", "/d/AB", "d//AB", "d/../x", "d/AB/./x", "dd/AB", "masterkey.cryptomator", ""] {
            assert!(!is_plain(path), "{path:?}");
        }
    }
}
