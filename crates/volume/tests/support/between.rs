//! Whether what is told to be forgotten before a path is set back is all that changes by it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use adit_core::store::{DirEntry, Store};
use adit_core::types::{Attr, Ino, Kind};
use adit_volume::VolumeStore;
use adit_volume::tree::Between;

/// What a kernel could know of a branch: where names lead, and attributes.
pub struct Seen {
    names: BTreeMap<(u64, Vec<u8>), u64>,
    inodes: BTreeMap<u64, Attr>,
}

impl Seen {
    /// All of a branch.
    pub fn of(store: &VolumeStore) -> Seen {
        let mut seen = Seen { names: BTreeMap::new(), inodes: BTreeMap::new() };
        let mut todo = vec![Ino::ROOT];
        while let Some(ino) = todo.pop() {
            let attr = store.getattr(ino).unwrap();
            seen.inodes.insert(ino.0, attr);
            if attr.kind != Kind::Directory {
                continue;
            }
            let mut sink = |entry: DirEntry<'_>| {
                seen.names.insert((ino.0, entry.name.as_bytes().to_vec()), entry.ino.0);
                todo.push(entry.ino);
                ControlFlow::Continue(())
            };
            store.read_dir(ino, 0, &mut sink).unwrap();
        }
        seen
    }

    /// What became something else, and is not told.
    pub fn untold(&self, after: &Seen, told: &Between) -> Vec<String> {
        let mut untold = Vec::new();
        let known = after.names.keys().filter(|(dir, _)| self.inodes.contains_key(dir));
        for name in self.names.keys().chain(known) {
            let is_told = told.entries.contains(name) || told.files.contains(name);
            if self.names.get(name) != after.names.get(name) && !is_told {
                untold.push(format!("{} in {}", name.1.escape_ascii(), name.0));
            }
        }
        for (ino, attr) in &self.inodes {
            let now = after.inodes.get(ino);
            let is_other = |now: &Attr| (now.kind, now.size, now.mtime) != (attr.kind, attr.size, attr.mtime);
            let needs = match now {
                Some(now) if now == attr => continue,
                Some(now) => attr.kind == Kind::File && is_other(now),
                None => attr.kind == Kind::File,
            };
            match told.inodes.get(ino) {
                None => untold.push(format!("{attr:?}, now {now:?}")),
                Some(false) if needs => untold.push(format!("may be known: {attr:?}, now {now:?}")),
                Some(_) => {}
            }
        }
        untold
    }
}
