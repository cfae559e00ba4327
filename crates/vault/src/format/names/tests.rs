use super::*;
use crate::format::fuzzing::masterkey;
use proptest::prelude::*;

fn cipher() -> NameCipher {
    NameCipher::new(&masterkey())
}

#[test]
fn round_trips_of_awkward_names() {
    let cipher = cipher();
    let dir = DirId::generate();
    for name in
        ["a", "0123456789abcde", "0123456789abcdef", "0123456789abcdefg", "日本語", "a b", "-", "\u{1f600}", "\n"]
    {
        let sealed = cipher.encrypt_name(name, &dir).unwrap();
        assert!(sealed.ends_with(".c9r"));
        assert_eq!(cipher.decrypt_name(&sealed, &dir).unwrap(), name);
        assert_eq!(cipher.decrypt_name(&sealed, &DirId::root()), Err(FormatError::NameAuth));
    }
    let longest = "x".repeat(MAX_NAME_BYTES);
    let sealed = cipher.encrypt_name(&longest, &dir).unwrap();
    assert_eq!(cipher.decrypt_name(&sealed, &dir).unwrap(), longest);
}

#[test]
fn nfd_becomes_nfc_before_encryption() {
    let cipher = cipher();
    let root = DirId::root();
    let nfc_name = "\u{e4}\u{1e69}";
    let nfd_name = "a\u{308}s\u{323}\u{307}";
    assert_eq!(cipher.encrypt_name(nfc_name, &root), cipher.encrypt_name(nfd_name, &root));
    assert_eq!(nfc(nfd_name), nfc_name);
    assert!(matches!(nfc("plain"), Cow::Borrowed("plain")));
    assert!(matches!(nfc(nfc_name), Cow::Borrowed(_)));
    // Hangul that might compose: the quick check says "maybe", the text is kept.
    assert!(matches!(nfc("\u{308}"), Cow::Borrowed(_)));
}

#[test]
fn nfc_agrees_with_unicode_for_every_pair_around_its_fast_path() {
    let near: Vec<char> = ('\u{1}'..'\u{370}').collect();
    for &first in &near {
        for second in ['a', '\u{e4}', '\u{2ff}', '\u{300}', '\u{301}', '\u{308}', '\u{345}'] {
            let text: String = [first, second].iter().collect();
            assert_eq!(nfc(&text), text.nfc().collect::<String>(), "{text:?}");
        }
    }
}

#[test]
fn impossible_names_are_refused_in_both_directions() {
    let cipher = cipher();
    let root = DirId::root();
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    for name in ["", ".", "..", "a/b", "a\0", &long] {
        assert!(matches!(cipher.encrypt_name(name, &root), Err(FormatError::NameInvalid { .. })), "{name}");
    }
    // Authentic, but hostile: made with the vault's keys by something else.
    for name in [b"..".as_slice(), b"../../x", b"a\0b", b"\xff\xfe"] {
        let mut sealed = vec![0; name.len() + SIV_TAG_BYTES];
        cipher.siv.encrypt(cipher.dir_context(&root).0, name, &mut sealed);
        let text = format!("{}.c9r", BASE64URL.encode(&sealed));
        assert!(matches!(cipher.decrypt_name(&text, &root), Err(FormatError::NameInvalid { .. })), "{name:?}");
    }
}

#[test]
fn foreign_files_are_not_names() {
    let cipher = cipher();
    let root = DirId::root();
    let good = cipher.encrypt_name("x", &root).unwrap();
    let conflict = good.replace(".c9r", " (conflict).c9r");
    let unpadded = good.replace('=', "");
    let huge = format!("{}.c9r", "A".repeat(100_000));
    let tag_only = format!("{}.c9r", BASE64URL.encode(&[0; 16]));
    for name in [
        "",
        ".c9r",
        "x",
        ".DS_Store",
        "dir.c9r",
        "AAAA.c9r",
        "ä.c9r",
        &conflict,
        &unpadded,
        &huge,
        &tag_only,
        &good[1..],
    ] {
        assert!(matches!(cipher.decrypt_name(name, &root), Err(FormatError::NameEncoding { .. })), "{name:.40}");
    }
}

#[test]
fn every_changed_character_of_a_name_is_noticed() {
    let cipher = cipher();
    let root = DirId::root();
    let good = cipher.encrypt_name("some name.txt", &root).unwrap();
    for at in 0..good.len() {
        for with in [b'A', b'B', b'_', b'='] {
            let mut changed = good.clone().into_bytes();
            if changed[at] != with {
                changed[at] = with;
                let changed = String::from_utf8(changed).unwrap();
                assert!(cipher.decrypt_name(&changed, &root).is_err(), "{changed}");
            }
        }
    }
}

#[test]
fn dir_ids() {
    assert_eq!(DirId::parse(b""), Err(FormatError::DirId { len: 0, reason: "empty" }));
    assert_eq!(DirId::parse_backup(b"").unwrap(), DirId::root());
    assert!(DirId::root().is_root());
    assert_eq!(DirId::parse(b"any text").unwrap().as_str(), "any text");
    assert!(DirId::parse(&[b'x'; MAX_DIR_ID_BYTES]).is_ok());
    for bad in [b"\n".as_slice(), b"a\0", b"\xc3\xa4", b"\xff", &[b'x'; MAX_DIR_ID_BYTES + 1]] {
        assert!(matches!(DirId::parse(bad), Err(FormatError::DirId { .. })), "{bad:?}");
    }
    let new = DirId::generate();
    assert_eq!(new.as_str().len(), 36);
    assert_eq!(new.as_str(), new.as_str().to_ascii_lowercase());
    assert_ne!(new, DirId::generate());
}

#[test]
fn dir_hashes_are_paths() {
    let hash = cipher().dir_hash(&DirId::generate());
    assert_eq!(hash.path(), format!("d/{}/{}", hash.prefix(), hash.rest()));
    assert_eq!(DirHash::from_parts(hash.prefix(), hash.rest()), Some(hash));
    assert_eq!(DirHash::from_parts("AA", "A"), None);
    assert_eq!(DirHash::from_parts("aa", hash.rest()), None);
    assert_eq!(DirHash::from_parts("ä", hash.rest()), None);
}

#[test]
fn shortening_counts_the_suffix() {
    let root = DirId::root();
    // Default threshold: 146 bytes stay, 147 are shortened.
    let stays = cipher().encrypt_name(&"x".repeat(146), &root).unwrap();
    let long = cipher().encrypt_name(&"x".repeat(147), &root).unwrap();
    assert_eq!((stays.len(), long.len()), (220, 224));
    assert!(!is_long(&stays, 220));
    assert!(is_long(&long, 220));
    let short = shorten(&long);
    assert_eq!(short.len(), 28 + 4);
    assert!(short.ends_with(".c9s"));
    assert_ne!(short, shorten(&stays));
}

#[test]
fn is_shared_between_threads() {
    fn check<T: Send + Sync + Clone>() {}
    check::<NameCipher>();
}

proptest! {
    #![proptest_config(adit_testkit::proptest_config(256))]

    #[test]
    fn any_name_round_trips(name in "[^/\\x00]{1,120}", id in "[ -~]{0,40}") {
        let dir = DirId::parse_backup(id.as_bytes()).unwrap();
        let cipher = cipher();
        if let Ok(sealed) = cipher.encrypt_name(&name, &dir) {
            prop_assert_eq!(&*cipher.decrypt_name(&sealed, &dir).unwrap(), &*nfc(&name));
        } else {
            prop_assert!(name == "." || name == "..");
        }
    }

    #[test]
    fn any_text_is_a_name_or_an_error(text in ".{0,80}(\\.c9r)?") {
        let _ = cipher().decrypt_name(&text, &DirId::root());
    }
}
