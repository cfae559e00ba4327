use super::*;

fn header() -> Header {
    let required: Vec<Section> = Section::ALL.into_iter().filter(|section| !section.is_optional()).collect();
    header_of(&required)
}

fn header_of(sections: &[Section]) -> Header {
    let mut header = Header { nodes: 2, identity: b"id".to_vec(), ..Header::default() };
    let mut end = header_len(sections.len(), 2) as u64;
    for section in sections.iter().copied() {
        let offset = end.next_multiple_of(ALIGN_BYTES);
        let len = section.len_for(2).unwrap_or(3);
        header.sections.push(SectionEntry { kind: section as u32, flags: FLAG_REQUIRED, offset, len, check: 9 });
        end = offset + len;
    }
    header.sums_offset = end.next_multiple_of(ALIGN_BYTES);
    header.file_len = header.sums_offset + sections.len() as u64 * 8;
    header
}

fn refused(change: impl FnOnce(&mut Header)) -> Damage {
    let mut changed = header();
    change(&mut changed);
    Header::decode(&changed.encode()).expect_err("it cannot be")
}

#[test]
fn a_header_is_read_as_it_was_written() {
    let header = header();
    let mut bytes = header.encode();
    assert_eq!(bytes.len(), header_len(7, 2));
    assert_eq!(Header::decode(&bytes), Ok(header.clone()));
    bytes.resize(HEADER_LEN_MAX_BYTES, 0xaa);
    assert_eq!(Header::decode(&bytes), Ok(header));
}

/// The example of `docs/formats/index.md`.
#[test]
fn the_worked_example() {
    let bytes = header().encode();
    let hex =
        |range: std::ops::Range<usize>| -> String { bytes[range].iter().map(|byte| format!("{byte:02x}")).collect() };
    assert_eq!(hex(0..24), "414449544944583101000000000000002001000002000000");
    assert_eq!(hex(24..48), "380300000000000000030000000000000700000002000000");
    assert_eq!(hex(48..80), "0100000001000000400100000000000008000000000000000900000000000000");
    assert_eq!(hex(272..280), "6964000000000000");
}

#[test]
fn a_header_that_cannot_be_is_refused() {
    let what = |damage| match damage {
        Damage::Header(what) => what,
        other => panic!("{other}"),
    };
    assert_eq!(what(refused(|header| header.nodes = 0)), "the number of nodes");
    assert_eq!(what(refused(|header| header.nodes = u32::MAX)), "the number of nodes");
    assert_eq!(what(refused(|header| header.nodes = 3)), "the length of a section");
    assert_eq!(what(refused(|header| header.sections[1].offset += 1)), "where a section begins");
    assert_eq!(what(refused(|header| header.sections[1].offset += ALIGN_BYTES)), "where a section begins");
    assert_eq!(what(refused(|header| header.sections[1].offset = 0)), "where a section begins");
    assert_eq!(what(refused(|header| header.sections[6].len = u64::MAX)), "the length of a section");
    assert_eq!(what(refused(|header| header.sections[1].kind = 1)), "a section is there twice");
    assert_eq!(what(refused(|header| header.sums_offset += 8)), "where the checksums begin");
    assert_eq!(what(refused(|header| header.file_len += 8)), "the length of the file");
    let few = header_of(&Section::ALL[..6]).encode();
    assert_eq!(what(Header::decode(&few).unwrap_err()), "a section is missing");
    let lone = header_of(&[&Section::ALL[..7], &[Section::Extra]].concat()).encode();
    let words = "extra bytes without their index, or the other way round";
    assert_eq!(what(Header::decode(&lone).unwrap_err()), words);
    assert_eq!(refused(|header| header.sections[6].kind = 1000), Damage::UnknownSection(1000));
    // Unknown, and of no need: but another one is missing now.
    let unknown = |header: &mut Header| (header.sections[6].kind, header.sections[6].flags) = (1000, 0);
    assert_eq!(what(refused(unknown)), "a section is missing");
}

#[test]
fn a_mode_is_what_it_was_made_of() {
    let kinds =
        [Kind::File, Kind::Directory, Kind::Symlink, Kind::BlockDevice, Kind::CharDevice, Kind::Fifo, Kind::Socket];
    for kind in kinds {
        for perm in 0..=0o7777 {
            for has_hash in [false, true] {
                let mode = Mode::new(kind, perm, has_hash);
                let is = (mode.kind(), mode.perm(), mode.has_hash(), mode.is_implied());
                assert_eq!(is, (kind, perm, has_hash, false));
            }
        }
    }
    let implied = Mode::implied(0o17755);
    let is = (implied.kind(), implied.perm(), implied.has_hash(), implied.is_implied());
    assert_eq!(is, (Kind::Directory, 0o7755, false, true));
    assert_eq!([Mode::new(Kind::File, 0o644, true).0, Mode::new(Kind::Symlink, 0o777, false).0], [0x81a4, 0x21ff]);
}

#[test]
fn names_are_told_from_what_is_none() {
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; PATH_LEN_MAX_BYTES + 1]] {
        assert!(!is_name(bad));
    }
    for good in [&b"..."[..], b"\n", b"\xff", &[b'x'; PATH_LEN_MAX_BYTES]] {
        assert!(is_name(good));
    }
    assert_eq!(unpack_children(pack_children(7, u32::MAX - 1)), (7, u32::MAX - 1));
}
