//! Makes the frozen segments that are missing. What exists is never made again.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use adit_core::types::Kind;
use adit_index::layout::{Header, Mode, Section, pack_children};
use adit_index::{Builder, Entry, Segment};

use crate::support::paths::same_hash;
use crate::{harm, outcome, shown};

const PLAIN: Entry<'static> =
    Entry { path: b"", kind: Kind::File, perm: 0o644, size: 1, mtime_ns: 0, hash: None, stamp: None, extra: b"" };

/// A segment that is frozen: what it is called, and all that it is built of.
pub struct Sound<'a> {
    pub name: &'static str,
    pub identity: &'a [u8],
    pub tables: bool,
    pub entries: &'a [Entry<'a>],
}

/// Builds it as this version does.
pub fn build(sound: &Sound<'_>, scratch: &Path, out: &Path) {
    let mut builder = Builder::new(scratch, 0);
    builder.set_identity(sound.identity).unwrap();
    builder.set_implied(0o711, 1_700_000_000_000_000_000);
    builder.set_tables(sound.tables);
    sound.entries.iter().for_each(|entry| builder.add(entry).unwrap());
    builder.finish(out, &mut |_| ControlFlow::Continue(())).unwrap();
}

fn freeze(fixtures: &Path, sound: &Sound<'_>) {
    let to = fixtures.join("sound").join(sound.name);
    if to.exists() {
        return;
    }
    fs::create_dir_all(&to).unwrap();
    build(sound, &to, &to.join("segment"));
    let segment = Segment::open(&to.join("segment")).unwrap();
    fs::write(to.join("expected.txt"), shown(&segment).unwrap()).unwrap();
}

fn broken(fixtures: &Path, at: &str, why: &str, lines: impl FnOnce(&Header) -> Vec<String>) {
    broken_of(fixtures, "tree", at, why, lines);
}

fn broken_of(fixtures: &Path, of: &str, at: &str, why: &str, lines: impl FnOnce(&Header) -> Vec<String>) {
    let to = fixtures.join("broken").join(format!("{at}.txt"));
    if to.exists() {
        return;
    }
    fs::create_dir_all(fixtures.join("broken")).unwrap();
    let mut bytes = fs::read(fixtures.join("sound").join(of).join("segment")).unwrap();
    let lines = lines(&Header::decode(&bytes[..4096.min(bytes.len())]).unwrap());
    lines.iter().for_each(|line| harm(&mut bytes, line));
    let text = [vec![format!("# {why}"), format!("of {of}")], lines, vec![outcome(&bytes)]].concat();
    fs::write(to, text.join("\n") + "\n").unwrap();
}

/// Gives each sound one to `take`.
pub fn each_sound(take: &mut dyn FnMut(&Sound<'_>)) {
    let long: Vec<String> = (0..40).map(|n| format!("long/{n}{}", "l".repeat(100 * n))).collect();
    let many: Vec<String> = (0..40).map(|n| format!("many/{n}")).collect();
    let mut entries = vec![
        Entry { kind: Kind::Directory, perm: 0o755, mtime_ns: -1, ..PLAIN },
        Entry { path: b"implied/also/file", size: u64::MAX, mtime_ns: i64::MAX, hash: Some([0xab; 16]), ..PLAIN },
        Entry { path: b"empty", kind: Kind::Directory, perm: 0o1777, hash: Some([0; 16]), ..PLAIN },
        Entry { path: b"link", kind: Kind::Symlink, perm: 0o777, size: 6, extra: b"target", ..PLAIN },
        Entry { path: b"nodes/block", kind: Kind::BlockDevice, ..PLAIN },
        Entry { path: b"nodes/char", kind: Kind::CharDevice, ..PLAIN },
        Entry { path: b"nodes/fifo", kind: Kind::Fifo, ..PLAIN },
        Entry { path: b"nodes/socket", kind: Kind::Socket, perm: 0o7777, mtime_ns: i64::MIN, ..PLAIN },
        Entry { path: b"names/\n", ..PLAIN },
        Entry { path: b"names/\xff\xfe", extra: b"\0\xff", ..PLAIN },
        Entry { path: b"names/\xed\xb2\x80", ..PLAIN },
        Entry { path: "names/é🎬".as_bytes(), ..PLAIN },
        Entry { path: b"names/...", ..PLAIN },
        Entry { path: b"names/a", kind: Kind::Directory, ..PLAIN },
        Entry { path: b"names/a/b", ..PLAIN },
        Entry { path: b"names/a.b", ..PLAIN },
        Entry { path: b"names/a\x01", ..PLAIN },
    ];
    entries.extend(long.iter().chain(&many).map(|path| Entry { path: path.as_bytes(), ..PLAIN }));
    take(&Sound { name: "tree", identity: b"the identity of a source", tables: false, entries: &entries });
    take(&Sound { name: "root", identity: b"", tables: false, entries: &[] });
    let plain = [Entry { path: b"a/b", ..PLAIN }, Entry { path: b"c", ..PLAIN }];
    take(&Sound { name: "plain", identity: &[7; 1024], tables: false, entries: &plain });

    // More paths of one hash than have room in its bucket, and directories with enough in them to have their path by itself.
    let alike: Vec<Vec<u8>> = (0..12).map(same_hash).collect();
    let deep: Vec<String> = (0..60).map(|n| format!("many/of a/deep directory/{n:02}/{}", n % 3)).collect();
    let paths = alike.iter().map(Vec::as_slice).chain(deep.iter().map(String::as_bytes));
    entries.extend(paths.map(|path| Entry { path, hash: Some([path.len() as u8; 16]), ..PLAIN }));
    take(&Sound { name: "signatures", identity: b"with tables", tables: true, entries: &entries });

    // A stamp without a hash is not kept.
    for (number, entry) in entries.iter_mut().enumerate() {
        entry.stamp = Some([number as u8 + 1, 2, 3, 4, 5, 6, 7, 8]);
    }
    take(&Sound { name: "stamps", identity: b"with stamps", tables: true, entries: &entries });
}

pub fn all(fixtures: &Path) {
    each_sound(&mut |sound| freeze(fixtures, sound));
    all_broken(fixtures);
}

fn all_broken(fixtures: &Path) {
    let line = |text: String| vec![text];
    let offset = |header: &Header, section| header.section(section).unwrap().offset;
    let sealed = |lines: Vec<String>| [lines, vec!["seal".to_owned()]].concat();
    broken(fixtures, "no-index", "It begins with other bytes.", |_| line("xor 0 1".to_owned()));
    broken(fixtures, "header", "A bit of the header flipped.", |_| line("xor 30 1".to_owned()));
    broken(fixtures, "cut", "The last byte is lost.", |header| line(format!("cut {}", header.file_len - 1)));
    broken(fixtures, "cut-in-header", "Nearly all is lost.", |_| line("cut 100".to_owned()));
    broken(fixtures, "empty", "All is lost.", |_| line("cut 0".to_owned()));
    broken(fixtures, "checksums", "A bit of a checksum flipped.", |header| {
        line(format!("xor {} 1", header.sums_offset))
    });
    broken(fixtures, "gap", "Something lies between two sections.", |header| {
        line(format!("xor {} 1", header.sections[0].offset - 1))
    });
    for (at, section) in [
        ("parents", Section::Parents),
        ("sizes", Section::Sizes),
        ("hashes", Section::Hashes),
        ("extra", Section::Extra),
    ] {
        let why = format!("A bit of {} flipped.", section.words());
        broken(fixtures, at, &why, |header| line(format!("xor {} 1", offset(header, section))));
    }
    broken(fixtures, "second-block", "A bit of the second block of the names flipped.", |header| {
        line(format!("xor {} 1", offset(header, Section::Names) + 70_000))
    });
    broken(fixtures, "loop", "A directory is in itself. The checksums are right.", |header| {
        sealed(line(format!("write {} 02000000", offset(header, Section::Parents) + 8)))
    });
    broken(fixtures, "children-loop", "A directory is among its children. The checksums are right.", |header| {
        let size = pack_children(0, 2).to_le_bytes();
        let hex: String = size.iter().map(|byte| format!("{byte:02x}")).collect();
        sealed(line(format!("write {} {hex}", offset(header, Section::Sizes))))
    });
    broken(fixtures, "dot-dot", "A name leads out. The checksums are right.", |header| {
        // The first name behind that of the root.
        sealed(vec![
            format!("write {} 2e2e00", offset(header, Section::Names) + 1),
            format!("write {} 02", offset(header, Section::NameLengths) + 1),
        ])
    });
    broken(fixtures, "not-sorted", "Names are not in order. The checksums are right.", |header| {
        sealed(line(format!("write {} 7a", offset(header, Section::Names) + 1)))
    });
    broken(fixtures, "root-is-a-file", "The root is a file. The checksums are right.", |header| {
        let Mode(mode) = Mode::new(Kind::File, 0o644, false);
        let [low, high] = mode.to_le_bytes();
        sealed(line(format!("write {} {low:02x}{high:02x}", offset(header, Section::Modes))))
    });
    for (at, section) in [
        ("name-lengths", Section::NameLengths),
        ("name-positions", Section::NamePositions),
        ("modes", Section::Modes),
        ("times", Section::Times),
        ("names", Section::Names),
        ("extra-entries", Section::ExtraEntries),
        ("buckets", Section::Buckets),
        ("directory-ranks", Section::DirectoryRanks),
        ("directory-positions", Section::DirectoryPositions),
        ("directory-paths", Section::DirectoryPaths),
        ("name-signatures", Section::NameSignatures),
        ("stamps", Section::Stamps),
    ] {
        let of = match section {
            Section::NameSignatures => "signatures",
            Section::Stamps => "stamps",
            section if section.is_table() => "tables",
            _ => "tree",
        };
        let why = format!("A bit of {} flipped.", section.words());
        broken_of(fixtures, of, at, &why, |header| line(format!("xor {} 1", offset(header, section))));
        if section.is_table() {
            let why = format!("A bit of {} flipped. The checksums are right.", section.words());
            let flip = |header: &Header| sealed(line(format!("xor {} 1", offset(header, section))));
            broken_of(fixtures, of, &format!("{at}-sealed"), &why, flip);
        }
    }
}
