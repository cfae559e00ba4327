//! Damage in a volume that is mounted: a verb that works through the mount tells it as on a closed one.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use common::pattern;
use mounts::{Mounts, force_off};

const BLOCK: usize = 4096;

/// Flips a bit of the block in the volume's file that is that block of `content`.
fn flip(m: &Mounts, content: &[u8], block: usize) {
    let file = m.bench.path("box");
    let (bytes, wanted) = (fs::read(&file).unwrap(), &content[block * BLOCK..][..BLOCK]);
    let at = bytes.chunks(BLOCK).position(|chunk| chunk == wanted).expect("it lies as it is") * BLOCK + 1234;
    OpenOptions::new().write(true).open(file).unwrap().write_all_at(&[bytes[at] ^ 0x10], at as u64).unwrap();
}

/// A volume with a file of which a block will be damaged, and one that stays whole.
fn volume() -> Option<(Mounts, Vec<u8>)> {
    let m = Mounts::volume(&["--capacity", "1G"])?;
    let mut content = pattern(1 << 20);
    // No two blocks are equal, so that the one that is meant is found.
    for (number, block) in content.chunks_mut(BLOCK).enumerate() {
        block[..8].copy_from_slice(&number.to_le_bytes());
    }
    fs::write(m.bench.path("f"), &content).unwrap();
    fs::write(m.bench.path("whole"), "whole").unwrap();
    m.bench.run(["mkdir", "box", "/d"]).expect(0);
    m.bench.run(["put", "box", "f", "whole", "/d"]).expect(0);
    m.bench.run(["snapshot", "create", "box", "s"]).expect(0);
    Some((m, content))
}

fn verbs_tell_it(m: &Mounts, content: &[u8]) {
    let ran = m.bench.run(["cat", "box", "/d/f"]).expect(4).says("/d/f").says("corrupt data").says("at offset 409600");
    assert!(content.starts_with(&ran.stdout), "damage is never returned as data");
    m.bench.run(["cat", "box", "/d/whole", "/d/f"]).expect(4).says("/d/f");
    m.bench.run(["get", "box", "/d/f", "out"]).expect(4).says("corrupt data");
    m.bench.run(["get", "box", "/d", "all"]).expect(4);
    assert_eq!(fs::read(m.bench.path("all/whole")).unwrap(), b"whole");
    assert!(!m.bench.path("all/f").exists() && !m.bench.path("out").exists());
    fs::remove_dir_all(m.bench.path("all")).unwrap();
    // What is whole, and what fails for another reason, is none.
    m.bench.run(["cat", "box", "/d/whole"]).expect(0);
    m.bench.run(["ls", "box", "-R"]).expect(0);
    m.bench.run(["cat", "box", "/none"]).expect(1);
    m.bench.run(["cat", "box", "/d"]).expect(1);
}

#[test]
fn a_flipped_bit_is_told_by_verbs_on_a_mounted_volume() {
    let Some((m, content)) = volume() else { return };
    m.mount(&[]).expect(0);
    flip(&m, &content, 100);
    verbs_tell_it(&m, &content);
    let error = fs::read(m.at("d/f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "for others it is an error of input and output");
    m.umount();
    verbs_tell_it(&m, &content);
    m.bench.run(["volume", "check", "box"]).expect(5);
}

#[test]
fn a_flipped_bit_is_told_over_a_mount_for_one_verb() {
    let Some((m, content)) = volume() else { return };
    m.mount(&["--snapshot", "s"]).expect(0);
    flip(&m, &content, 100);
    verbs_tell_it(&m, &content);
    m.umount();
    let private = fs::read_dir(m.bench.path("run/adit")).into_iter().flatten().flatten();
    let left: Vec<_> = private.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    left.iter().for_each(|path| force_off(path));
    assert!(left.is_empty(), "{left:?}");
}
