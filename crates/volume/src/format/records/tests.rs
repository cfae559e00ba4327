use super::*;

fn time(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 999_999_999 }
}

fn inode(kind: Kind, inline: &[u8]) -> Inode {
    Inode {
        kind,
        perm: 0o4755,
        has_xattrs: true,
        in_windows: false,
        is_cut: false,
        nlink: 2,
        uid: 1000,
        gid: 100,
        rdev: 0x0103,
        size: inline.len() as u64,
        blocks: 0,
        atime: time(-1),
        mtime: time(2),
        ctime: time(3),
        btime: time(4),
        place: Place { dir: 1, cookie: 256 },
        inline: inline.to_vec(),
    }
}

fn window() -> Window {
    let mut window = Window::default();
    for at in 3..9 {
        window.set(at, Some(Block { at: 100 + at as u64, birth: 2, sum: at as u32 }));
    }
    window.set(9, Some(Block { at: 109, birth: 3, sum: 7 }));
    window.set(255, Some(Block { at: 1, birth: 3, sum: 8 }));
    window
}

fn examples() -> Vec<Vec<u8>> {
    let snapshot =
        Snapshot { state: State::Merging, parent: 4, created: time(9), name: "monday".into(), done: b"Tkey".to_vec() };
    vec![
        inode(Kind::File, b"content").encode(),
        inode(Kind::Directory, b"").encode(),
        Entry { ino: 5, kind: Kind::Fifo, name: b"pipe" }.encode(),
        encode_xattr(b"value"),
        window().encode(),
        Orphan { removed: true }.encode(),
        snapshot.encode(),
        encode_meta(77),
        TOMBSTONE.to_vec(),
        NAME.to_vec(),
    ]
}

fn decode_all(bytes: &[u8]) -> bool {
    // Not short-circuiting: each has to cope.
    Inode::decode(bytes).is_ok()
        | Entry::decode(bytes).is_ok()
        | decode_xattr(bytes).is_ok()
        | Window::decode(bytes).is_ok()
        | Orphan::decode(bytes).is_ok()
        | Snapshot::decode(bytes).is_ok()
        | decode_meta(bytes).is_ok()
        | decode_name(bytes).is_ok()
        | is_tombstone(bytes)
}

#[test]
fn records_come_back_as_they_were() {
    for kind in KINDS {
        let inline: &[u8] = if matches!(kind, Kind::File | Kind::Symlink) { b"content" } else { b"" };
        let inode = inode(kind, inline);
        assert_eq!(Inode::decode(&inode.encode()), Ok(inode));
        let entry = Entry { ino: 7, kind, name: b"name" };
        assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
    }
    let cut = Inode { in_windows: true, is_cut: true, ..inode(Kind::File, b"") };
    assert_eq!(Inode::decode(&cut.encode()), Ok(cut));
    assert_eq!(Window::decode(&window().encode()), Ok(window()));
    assert_eq!(window().count(), 8);
    for state in STATES {
        let snapshot = Snapshot { state, parent: 1, created: time(5), name: "n".into(), done: vec![1, 2] };
        assert_eq!(Snapshot::decode(&snapshot.encode()), Ok(snapshot));
    }
    let orphan = Orphan { removed: false };
    assert_eq!(Orphan::decode(&orphan.encode()), Ok(orphan));
    assert_eq!(decode_meta(&encode_meta(9)), Ok(9));
    assert_eq!(decode_xattr(&encode_xattr(b"")), Ok(&b""[..]));
}

#[test]
fn a_part_of_a_window_has_the_same_blocks() {
    let (whole, bytes) = (window(), window().encode());
    for range in [0..1, 0..256, 3..9, 4..4, 5..255, 9..10, 250..256] {
        let part = WindowPart::decode(&bytes, range.clone()).unwrap();
        for at in 0..WINDOW_LEN_BLOCKS {
            assert_eq!(part.get(at), whole.get(at).filter(|_| range.contains(&at)), "{at} of {range:?}");
        }
    }
    (0..bytes.len()).for_each(|len| {
        // Cut between two fragments it is another window.
        let (part, whole) = (WindowPart::decode(&bytes[..len], 0..256), Window::decode(&bytes[..len]));
        assert_eq!(part.is_ok(), whole.is_ok(), "{len}");
    });
}

#[test]
fn the_fullest_window_is_a_value() {
    let mut window = Window::default();
    for at in 0..WINDOW_LEN_BLOCKS {
        window.set(at, Some(Block { at: at as u64 * 2, birth: 1, sum: 0 }));
    }
    let bytes = window.encode();
    assert!(bytes.len() <= crate::table::VALUE_LEN_MAX_BYTES, "{}", bytes.len());
    assert_eq!(Window::decode(&bytes), Ok(window));
}

#[test]
fn what_contradicts_itself_is_refused() {
    let mut bytes = inode(Kind::File, b"abc").encode();
    bytes.pop();
    assert!(Inode::decode(&bytes).is_err(), "inline content is cut");
    assert!(Inode::decode(&Inode { in_windows: true, ..inode(Kind::File, b"abc") }.encode()).is_err());
    assert!(Inode::decode(&Inode { is_cut: true, ..inode(Kind::File, b"abc") }.encode()).is_err());
    assert!(Inode::decode(&inode(Kind::Symlink, b"").encode()).is_err());
    assert!(Inode::decode(&inode(Kind::Fifo, b"x").encode()).is_err());
    assert!(Entry::decode(&Entry { ino: 7, kind: Kind::File, name: b".." }.encode()).is_err());
    assert!(Entry::decode(&Entry { ino: 0, kind: Kind::File, name: b"a" }.encode()).is_err());
    // Fragments that overlap, reach over the window's end, or beyond all numbers.
    let fragment = |start: u8, count: u8, at: u64| {
        let mut out = vec![start, count - 1];
        out.extend_from_slice(&at.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.resize(out.len() + usize::from(count) * 4, 0);
        out
    };
    let window = |fragments: &[Vec<u8>]| Window::decode(&[&[b'e', 1][..], &fragments.concat()].concat());
    assert!(window(&[fragment(0, 2, 5), fragment(2, 1, 9)]).is_ok());
    assert!(window(&[fragment(0, 2, 5), fragment(1, 1, 9)]).is_err());
    assert!(window(&[fragment(255, 2, 5)]).is_err());
    assert!(window(&[fragment(0, 2, 5), fragment(2, 1, 6)]).is_err(), "one block at two places");
    assert!(window(&[fragment(0, 2, u64::MAX - 1)]).is_err());
}

#[test]
fn garbage_never_panics() {
    let mut rng = adit_testkit::Rng::new(7);
    for example in examples() {
        assert!(decode_all(&example));
        for len in 0..example.len() {
            decode_all(&example[..len]);
        }
        for _ in 0..3000 {
            let mut bytes = example.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize + 2);
            decode_all(&bytes);
        }
    }
    for _ in 0..20_000 {
        let mut bytes = vec![0; rng.below(200) as usize];
        rng.fill(&mut bytes);
        decode_all(&bytes);
    }
}

/// The worked examples of `docs/formats/volume.md`.
#[test]
fn worked_examples() {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(hex(&Entry { ino: 2, kind: Kind::File, name: b"a" }.encode()), "640101020000000000000061");
    let mut window = Window::default();
    window.set(1, Some(Block { at: 7, birth: 1, sum: 0x1234 }));
    window.set(2, Some(Block { at: 8, birth: 1, sum: 0x5678 }));
    assert_eq!(hex(&window.encode()), "6501010107000000000000000100000034120000".to_owned() + "78560000");
    assert_eq!(hex(&Orphan { removed: true }.encode()), "6f0101");
}
