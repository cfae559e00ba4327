//! Makes the frozen volumes. What is there already stays as it is: a frozen volume is of no use once it is made anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::store::{NewNode, Store, StoreFile};
use adit_core::types::{Access, Caller, FileName, Ino, Kind, SetAttr, SetTime, Timestamp, XattrName, XattrSet};
use adit_volume::format::container::Superblock;
use adit_volume::volume::{CreateOptions, Durability};
use adit_volume::{Volume, VolumeStore};

use crate::pack;
use crate::shown::shown;
use crate::{findings, options};

const OWNER: Caller = Caller { uid: 1000, gid: 100 };

fn name(text: &[u8]) -> FileName<'_> {
    FileName::new(text).unwrap()
}

fn new(perm: u16) -> NewNode {
    NewNode { perm, umask: 0, caller: OWNER }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / 4096) as u8 ^ seed).collect()
}

fn write(store: &VolumeStore, dir: Ino, at: &[u8], bytes: &[u8]) -> (Ino, Arc<dyn StoreFile>) {
    let (attr, file) = store.create(dir, name(at), &new(0o640)).unwrap();
    file.write_at(&[(0, bytes)]).unwrap();
    (attr.ino, file)
}

fn create(dir: &Path, data: bool) -> Volume {
    let new = CreateOptions { capacity_bytes: Some(8 << 20), durability: Durability::Fsync, owner: OWNER, perm: 0o755 };
    let folder = dir.join("data");
    let folder = data.then_some(folder.as_path());
    Volume::create_with_data(&dir.join("volume"), folder, &new, &options(Access::Write)).unwrap()
}

/// Everything that a tree can hold.
fn fill(store: &VolumeStore) {
    let dir = store.mkdir(Ino::ROOT, name(b"dir"), &new(0o2750)).unwrap().ino;
    let deep = store.mkdir(dir, name("unter-\u{e4}".as_bytes()), &new(0o1777)).unwrap().ino;
    store.mkdir(dir, name(b"empty"), &new(0o700)).unwrap();
    let (inline, _) = write(store, dir, b"inline", b"marker of an inline file, which lies in a page of the store\n");
    write(store, deep, b"empty", b"");
    write(store, deep, &[0xff, b'\n', b' '], b"its name is no text");
    write(store, deep, &[b'n'; 255], &pattern(2048, 1));
    write(store, Ino::ROOT, b"blocks", &pattern(20_000, 2));
    let (_, sparse) = write(store, Ino::ROOT, b"sparse", &pattern(100, 3));
    sparse.write_at(&[(3 << 20, &pattern(5000, 4))]).unwrap();
    sparse.write_at(&[(1 << 40, b"far")]).unwrap();
    let (_, cut) = write(store, Ino::ROOT, b"cut", &pattern(30_000, 5));
    cut.set_len(9_000).unwrap();
    store.link(inline, Ino::ROOT, name(b"second-name")).unwrap();
    store.link(inline, deep, name(b"third-name")).unwrap();
    store.symlink(Ino::ROOT, name(b"link"), b"dir/inline", OWNER).unwrap();
    store.symlink(dir, name(b"dangling"), &[b't'; 3000], OWNER).unwrap();
    let kinds = [
        (&b"block"[..], Kind::BlockDevice, 0x0801),
        (b"char", Kind::CharDevice, 0x0103),
        (b"fifo", Kind::Fifo, 0),
        (b"socket", Kind::Socket, 0),
    ];
    for (at, kind, rdev) in kinds {
        store.mknod(dir, name(at), kind, rdev, &new(0o4644)).unwrap();
    }
    for (at, value) in [(&b"user.empty"[..], &b""[..]), (b"user.text", b"a value"), (b"trusted.bytes", &[0, 0xff])] {
        store.set_xattr(inline, XattrName::new(at).unwrap(), value, XattrSet::Create).unwrap();
    }
    let times = [(b"past", -5_000_000_000, 1), (b"late", 20_000_000_000, 999_999_999)];
    for (at, secs, nanos) in times {
        let (ino, _) = write(store, Ino::ROOT, at, b"time");
        let time = Some(SetTime::At(Timestamp { secs, nanos }));
        store.setattr(ino, &SetAttr { atime: time, mtime: time, uid: Some(7), ..SetAttr::default() }).unwrap();
    }
    for n in 0..40 {
        write(store, dir, format!("entry-{n:02}").as_bytes(), &pattern(n, 6));
    }
}

fn find(store: &VolumeStore, at: &[u8]) -> Ino {
    store.lookup(Ino::ROOT, name(at)).unwrap().ino
}

/// Snapshots, one of them deleted; branches; what was changed in between.
fn live(volume: &Volume) {
    let store = volume.live().unwrap();
    fill(&store);
    volume.create_snapshot("main", "first").unwrap();
    let blocks = store.open(find(&store, b"blocks"), Access::Write).unwrap();
    blocks.write_at(&[(8192, &pattern(100, 7)), (40_000, b"more")]).unwrap();
    store.unlink(Ino::ROOT, name(b"past")).unwrap();
    volume.create_snapshot("main", "deleted").unwrap();
    store.rename(find(&store, b"dir"), name(b"inline"), Ino::ROOT, name(b"moved"), Default::default()).unwrap();
    volume.create_snapshot("main", "second").unwrap();
    write(&store, Ino::ROOT, b"only-in-main", &pattern(10_000, 8));
    volume.create_clone("first", "branch").unwrap();
    let branch = volume.branch("branch").unwrap();
    branch.unlink(Ino::ROOT, name(b"late")).unwrap();
    write(&branch, Ino::ROOT, b"only-in-branch", &pattern(10_000, 9));
    drop((blocks, store, branch));
    volume.delete_snapshot("deleted").unwrap();
}

/// In the log and not in the store; one file is open without a name.
fn killed(dir: &Path) {
    let volume = create(dir, false);
    let store = volume.live().unwrap();
    write(&store, Ino::ROOT, b"stored", &pattern(10_000, 1));
    volume.sync().unwrap();
    volume.close().unwrap();
    write(&store, Ino::ROOT, b"logged", b"marker of what only the log holds");
    write(&store, Ino::ROOT, b"logged-blocks", &pattern(9_000, 2));
    volume.sync().unwrap();
    let open = write(&store, Ino::ROOT, b"orphan", &pattern(9_000, 3));
    store.unlink(Ino::ROOT, name(b"orphan")).unwrap();
    write(&store, Ino::ROOT, b"last", b"not synced");
    // As a kill: nobody closes anything.
    std::mem::forget((open, store, volume));
}

/// Makes a sound one, if it is missing.
fn sound(fixtures: &Path, at: &str, make: impl FnOnce(&Path)) {
    let to = fixtures.join("sound").join(at);
    if to.exists() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    pack::pack(dir.path(), &to);
    let again = tempfile::tempdir().unwrap();
    pack::unpack(&to, again.path());
    let volume = Volume::open(&again.path().join("volume"), &options(Access::Read)).unwrap();
    fs::write(to.join("expected.txt"), shown(&volume)).unwrap();
}

/// How it ends to open and check the volume in `file`.
pub fn outcome(file: &Path) -> Vec<String> {
    let volume = match Volume::open(file, &options(Access::Read)) {
        Ok(volume) => volume,
        Err(e) => {
            let words = e.to_string();
            // Without the place, which is another one each time.
            let words = words.rsplit(": ").next().unwrap_or_default();
            return vec![format!("refused {:?} {words}", e.kind())];
        }
    };
    let found: Vec<String> = findings(&volume).iter().map(|line| format!("finding {line}")).collect();
    if found.is_empty() { vec!["sound as before".to_owned()] } else { found }
}

/// Makes a broken one, if it is missing: that of `of`, with this done to it.
fn broken(fixtures: &Path, at: &str, why: &str, of: &str, harm: impl FnOnce(&Path) -> Vec<String>) {
    let to = fixtures.join("broken").join(format!("{at}.txt"));
    if to.exists() {
        return;
    }
    fs::create_dir_all(fixtures.join("broken")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    pack::unpack(&fixtures.join("sound").join(of), dir.path());
    let lines = harm(dir.path());
    lines.iter().for_each(|line| pack::harm(dir.path(), line));
    let text = [vec![format!("# {why}"), format!("of {of}")], lines, outcome(&dir.path().join("volume"))].concat();
    fs::write(to, text.join("\n") + "\n").unwrap();
}

/// The last place of `bytes` in a file of the volume.
fn place(file: &Path, bytes: &[u8]) -> usize {
    fs::read(file).unwrap().windows(bytes.len()).rposition(|part| part == bytes).expect("it is there")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A change of both superblocks, with the right checksum.
fn in_both_slots(dir: &Path, at: usize, new: &[u8]) -> Vec<String> {
    let bytes = fs::read(dir.join("volume")).unwrap();
    let mut lines = Vec::new();
    for slot in [0, 64 << 10] {
        let len = u32::from_le_bytes(bytes[slot + 16..slot + 20].try_into().unwrap()) as usize;
        let mut changed = bytes[slot..slot + len - 4].to_vec();
        changed[at..at + new.len()].copy_from_slice(new);
        let sum = crc32c::crc32c(&changed).to_le_bytes();
        lines.push(format!("write volume {} {}", slot + at, hex(new)));
        lines.push(format!("write volume {} {}", slot + len - 4, hex(&sum)));
    }
    lines
}

/// Where the objects are, from the volume's place on.
fn objects(dir: &Path) -> Vec<PathBuf> {
    let uuid = fs::read_dir(dir.join("data")).unwrap().next().unwrap().unwrap().path();
    let folder = uuid.join("000000");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| path.strip_prefix(dir).unwrap().to_owned()).collect()
}

pub fn all(fixtures: &Path) {
    sound(fixtures, "tree", |dir| {
        let volume = create(dir, false);
        fill(&volume.live().unwrap());
        volume.close().unwrap();
    });
    sound(fixtures, "snapshots", |dir| {
        let volume = create(dir, false);
        live(&volume);
        volume.close().unwrap();
    });
    sound(fixtures, "data-folder", |dir| {
        let volume = create(dir, true);
        live(&volume);
        volume.close().unwrap();
    });
    sound(fixtures, "killed", killed);
    let superblock = |dir: &Path| Superblock::decode(&fs::read(dir.join("volume")).unwrap()).unwrap();
    let line = |text: &str| vec![text.to_owned()];

    broken(fixtures, "no-volume", "The first bytes of both superblocks are others.", "tree", |_| {
        vec!["zero volume 0 8".to_owned(), "zero volume 65536 8".to_owned()]
    });
    broken(fixtures, "first-superblock", "The first superblock is damaged.", "tree", |_| line("xor volume 100 1"));
    broken(fixtures, "second-superblock", "The second superblock is damaged.", "tree", |_| line("xor volume 65600 1"));
    broken(fixtures, "both-superblocks", "Both superblocks are damaged.", "tree", |_| {
        vec!["xor volume 100 1".to_owned(), "xor volume 65600 1".to_owned()]
    });
    broken(fixtures, "later-version", "It is of format 2.", "tree", |dir| in_both_slots(dir, 8, &[2]));
    broken(fixtures, "unknown-feature", "It has a feature that nobody knows.", "tree", |dir| {
        in_both_slots(dir, 12, &[1])
    });
    broken(fixtures, "log-beyond-the-end", "The log begins behind the end of the file.", "tree", |dir| {
        in_both_slots(dir, 84, &[0xff, 0xff])
    });
    broken(fixtures, "page", "A bit of a page with an inode flipped.", "tree", |dir| {
        let at = place(&dir.join("volume"), b"marker of an inline file");
        line(&format!("xor volume {at} 64"))
    });
    broken(fixtures, "page-checksums", "The checksums of a segment of pages are lost.", "tree", |dir| {
        let superblock = superblock(dir);
        let run = superblock.kv_segments.iter().find(|run| run.start > 0).unwrap();
        line(&format!("zero volume {} 4096", u64::from(run.start) * u64::from(superblock.segment_len)))
    });
    broken(fixtures, "extent", "A bit of a file's block flipped.", "snapshots", |dir| {
        let at = place(&dir.join("volume"), &pattern(4096, 2));
        line(&format!("xor volume {} 2", at + 1000))
    });
    broken(fixtures, "log-record", "A record of the log flipped that was durable.", "killed", |dir| {
        let at = place(&dir.join("volume"), b"marker of what only the log");
        line(&format!("xor volume {at} 1"))
    });
    broken(fixtures, "log-end", "The end of the log is lost, which was not durable.", "killed", |dir| {
        let at = place(&dir.join("volume"), b"not synced");
        line(&format!("zero volume {at} 10"))
    });
    broken(fixtures, "cut", "The second half of the file is lost.", "snapshots", |dir| {
        let len = fs::metadata(dir.join("volume")).unwrap().len();
        line(&format!("cut volume {}", len / 2))
    });
    broken(fixtures, "cut-to-nothing", "The file is empty.", "tree", |_| line("cut volume 0"));
    broken(fixtures, "data-folder-missing", "The data folder is not there.", "data-folder", |_| line("remove data"));
    broken(fixtures, "data-folder-empty", "The data folder holds nothing of the volume.", "data-folder", |dir| {
        let mine = objects(dir)[0].iter().take(2).collect::<PathBuf>();
        line(&format!("remove {}", mine.display()))
    });
    broken(fixtures, "data-folder-foreign", "The data folder is another volume's.", "data-folder", |dir| {
        label_of(dir, |label| label.uuid[0] ^= 1)
    });
    broken(
        fixtures,
        "data-folder-later",
        "The data folder has changed since the file was copied.",
        "data-folder",
        |dir| label_of(dir, |label| label.epoch += 1),
    );
    broken(fixtures, "object-missing", "An object of the data folder is missing.", "data-folder", |dir| {
        line(&format!("remove {}", objects(dir)[0].display()))
    });
    broken(fixtures, "object-cut", "An object of the data folder is cut.", "data-folder", |dir| {
        line(&format!("cut {} 4096", objects(dir)[0].display()))
    });
}

/// Writes both labels of the data folder anew, changed.
fn label_of(dir: &Path, change: impl Fn(&mut adit_volume::format::data::Label)) -> Vec<String> {
    use adit_volume::format::data::{LABEL_LEN_BYTES, LABEL_OFFSETS, Label};
    let path = objects(dir)[0].iter().take(2).collect::<PathBuf>().join("label");
    let bytes = fs::read(dir.join(&path)).unwrap();
    let each = LABEL_OFFSETS.map(|offset| {
        let mut label = Label::decode(&bytes[offset as usize..][..LABEL_LEN_BYTES]).unwrap();
        change(&mut label);
        format!("write {} {offset} {}", path.display(), hex(&label.encode()))
    });
    each.to_vec()
}
