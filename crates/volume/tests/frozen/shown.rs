//! All that a volume shows, as text.

use std::fmt::Write;
use std::ops::ControlFlow;

use adit_core::store::Store;
use adit_core::types::{Access, Attr, FileName, Ino, Kind, XattrName};
use adit_volume::{Volume, VolumeStore};

/// A line for each snapshot and branch, and below it one for each path, sorted.
pub fn shown(volume: &Volume) -> String {
    let mut out = String::new();
    for info in volume.snapshots() {
        let what = if info.is_branch { "branch" } else { "snapshot" };
        let origin = info.origin.as_deref().unwrap_or("-");
        writeln!(out, "{what} {} of {origin}", info.name).unwrap();
        let store = if info.is_branch { volume.branch(&info.name) } else { volume.snapshot(&info.name) }.unwrap();
        let root = store.getattr(Ino::ROOT).unwrap();
        below(&store, "/", root, &mut out);
    }
    out
}

fn below(store: &VolumeStore, path: &str, attr: Attr, out: &mut String) {
    line(store, path, attr, out);
    if attr.kind != Kind::Directory {
        return;
    }
    let mut names: Vec<Vec<u8>> = Vec::new();
    let list = store.read_dir(attr.ino, 0, &mut |entry| {
        names.push(entry.name.as_bytes().to_vec());
        ControlFlow::Continue(())
    });
    list.unwrap();
    names.sort();
    for name in names {
        let found = store.lookup(attr.ino, FileName::new(&name).unwrap()).unwrap();
        let sep = if path == "/" { "" } else { "/" };
        below(store, &format!("{path}{sep}{}", name.escape_ascii()), found, out);
        store.forget(found.ino);
    }
}

fn line(store: &VolumeStore, path: &str, attr: Attr, out: &mut String) {
    write!(out, "  {path} {} {:04o} {}:{}", attr.kind.as_str(), attr.perm, attr.uid, attr.gid).unwrap();
    write!(out, " links {} size {}", attr.nlink, attr.size).unwrap();
    for (what, time) in [("atime", attr.atime), ("mtime", attr.mtime), ("ctime", attr.ctime)] {
        write!(out, " {what} {}.{:09}", time.secs, time.nanos).unwrap();
    }
    match attr.kind {
        Kind::File => {
            let mut bytes = vec![0; attr.size.min(1 << 20) as usize];
            let read = store.open(attr.ino, Access::Read).unwrap().read_at(0, &mut bytes).unwrap();
            write!(out, " crc32c {:08x} blocks {}", crc32c::crc32c(&bytes[..read]), attr.blocks).unwrap();
        }
        Kind::Symlink => write!(out, " -> {}", store.readlink(attr.ino).unwrap().escape_ascii()).unwrap(),
        Kind::BlockDevice | Kind::CharDevice => write!(out, " device {:#x}", attr.rdev).unwrap(),
        _ => {}
    }
    let names = store.xattr_names(attr.ino).unwrap();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let value = store.xattr(attr.ino, XattrName::new(name).unwrap()).unwrap();
        write!(out, " {}={}", name.escape_ascii(), value.escape_ascii()).unwrap();
    }
    out.push('\n');
}
