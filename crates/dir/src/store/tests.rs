//! Hosts that lack something.

use std::fs;

use adit_core::host::free_name::Links;
use adit_core::store::Store;
use adit_core::types::RenameFlags;

use super::*;

/// sshfs, mergerfs and rclone know no flags of a rename, and their links are other files, or none.
#[test]
fn a_rename_to_a_free_name_needs_no_flags_of_the_host() {
    for links in [Links::OneFile, Links::TwoFiles, Links::Missing] {
        let folder = tempfile::tempdir().unwrap();
        let mut store = DirStore::open(folder.path(), false).unwrap();
        Arc::get_mut(&mut store.inner).unwrap().names = FreeNames::without_flags(links);
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "file").unwrap();
        fs::create_dir(path("dir")).unwrap();
        fs::write(path("dir/inside"), "inside").unwrap();
        fs::write(path("taken"), "taken").unwrap();
        let name = |name: &'static str| FileName::new(name.as_bytes()).unwrap();
        let rename = |from, to| store.rename(Ino::ROOT, name(from), Ino::ROOT, name(to), RenameFlags::NOREPLACE);
        for (from, to) in [("file", "new"), ("dir", "newdir")] {
            let ino = store.lookup(Ino::ROOT, name(from)).unwrap().ino;
            assert_eq!(rename(from, "taken").unwrap_err().kind(), ErrorKind::Exists, "{from}, {links:?}");
            rename(from, to).unwrap();
            assert_eq!(store.lookup(Ino::ROOT, name(to)).unwrap().ino, ino, "{from}, {links:?}");
        }
        let contents = ["new", "newdir/inside", "taken"].map(|name| fs::read_to_string(path(name)).unwrap());
        assert_eq!(contents, ["file", "inside", "taken"], "{links:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "{links:?}");
    }
}
