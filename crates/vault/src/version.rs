//! Second versions: what sync programs make of an entry that two devices changed.
//!
//! They keep the one under its name and give the other a name that they make of it: with text behind it, mostly (`X (conflicted copy).c9r`,
//! `X.sync-conflict-….c9r`, `X-LAPTOP7.c9r`), or in front. Such text can be of the characters that encrypted names are made of, so the
//! authentic name in it is searched for ([`sealed_part`]). A second version is shown beside the first as Cryptomator's own clients show it
//! ([`shown_names`]; `C9rConflictResolver` of cryptofs renames it so). Second versions of the files that make up an entry
//! ([`part_of_copy`]) are told only.

use adit_core::types::NAME_LEN_MAX_BYTES;

use crate::format::names::{C9R, CONTENTS_FILE, DIR_FILE, DIRID_FILE, NAME_FILE, SYMLINK_FILE, nfc};
use crate::format::siv::SIV_TAG_BYTES;

/// Fewest base64 characters of an encrypted name: a tag of 16 bytes and one of text.
const SEALED_LEN_MIN: usize = 24;
/// Longest name of the host that is searched.
const STORED_LEN_MAX_BYTES: usize = 512;
/// Numbers that are tried where the name is another entry's. Cryptomator's clients end at 9, and leave the version out.
const NUMBERS: std::ops::RangeInclusive<u32> = 1..=99;

/// An authentic name in the name of a file of the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SealedPart<'a> {
    /// As encrypted, without its ending.
    pub sealed: &'a str,
    /// Its cleartext.
    pub clear: String,
    /// What stands behind it.
    pub suffix: &'a str,
}

/// The authentic name in `stem`, a host's name without its ending. `decrypt` reads one that is given with `.c9r`. Every part that can be one is
/// tried: those that begin first go first, and of these the longest.
pub(crate) fn sealed_part<'a>(stem: &'a str, decrypt: impl Fn(&str) -> Option<String>) -> Option<SealedPart<'a>> {
    let bytes = stem.as_bytes();
    if bytes.len() > STORED_LEN_MAX_BYTES {
        return None;
    }
    let is_sealed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (0..bytes.len()).find_map(|start| {
        let run = bytes[start..].iter().take_while(|&&b| is_sealed(b)).count();
        let padding = bytes[start + run..].iter().take(2).take_while(|&&b| b == b'=').count();
        let padded = (padding > 0 && (run + padding).is_multiple_of(4)).then_some(run + padding);
        let lens = padded.into_iter().chain((SEALED_LEN_MIN..=run / 4 * 4).rev().step_by(4));
        lens.filter(|&len| len >= SEALED_LEN_MIN).find_map(|len| {
            let sealed = stem.get(start..start + len)?;
            let clear = decrypt(&format!("{sealed}{C9R}"))?;
            Some(SealedPart { sealed, clear, suffix: stem.get(start + len..)? })
        })
    })
}

/// The names under which a second version of `clear` may be shown, in order: with the text that the sync program put behind the name, before
/// the extension, or with a number. `len_max_bytes` is how long a name may be.
pub(crate) fn shown_names<'a>(
    clear: &'a str,
    suffix: &'a str,
    len_max_bytes: usize,
) -> impl Iterator<Item = String> + 'a {
    let (base, extension) = match clear.rfind('.') {
        Some(at) if at > 0 => clear.split_at(at),
        _ => (clear, ""),
    };
    let room = len_max_bytes.min(NAME_LEN_MAX_BYTES).saturating_sub(extension.len());
    let with = move |suffix: &str| {
        let suffix = start_of(suffix, room / 2);
        let base = start_of(base, room - suffix.len().max(" (9)".len()).min(room));
        nfc(&format!("{base}{suffix}{extension}")).into_owned()
    };
    let named = (!suffix.is_empty() && !suffix.contains(['/', '\0'])).then(|| with(suffix));
    named.into_iter().chain(NUMBERS.map(move |n| with(&format!(" ({n})"))))
}

/// As much of `text` as fits.
fn start_of(text: &str, len_max_bytes: usize) -> &str {
    let mut end = text.len().min(len_max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// How long the name of a second version may be in a vault with this shortening threshold, so that it is none that is shortened.
pub(crate) fn clear_len_max_bytes(threshold: u32) -> usize {
    ((threshold as usize).saturating_sub(C9R.len()) / 4 * 3).saturating_sub(SIV_TAG_BYTES)
}

/// Of which part of an entry, or of `dirid.c9r`, the file `name` is a second version.
pub(crate) fn part_of_copy(name: &str) -> Option<&'static str> {
    [CONTENTS_FILE, DIR_FILE, SYMLINK_FILE, NAME_FILE, DIRID_FILE].into_iter().find(|part| {
        // `dir` and `dirid` begin alike: what stands behind is no letter.
        suffix_of(part, name).chars().next().is_some_and(|c| !c.is_alphanumeric())
    })
}

/// What stands behind the name of `part` in that of its second version.
pub(crate) fn suffix_of<'a>(part: &str, name: &'a str) -> &'a str {
    let (stem, ending) = part.split_at(part.len() - C9R.len());
    name.strip_suffix(ending).and_then(|name| name.strip_prefix(stem)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that sync programs make, as their documentation and their users tell: what stands behind a name, and in front of it.
    const PATTERNS: [(&str, &str); 24] = [
        ("", " (host's conflicted copy 2026-11-25)"),
        ("", " (1)"),
        ("", "(1)"),
        ("", " (Konfliktkopie von Änne 2026-11-25)"),
        ("", ".sync-conflict-20261125-120000-ABCDEFG"),
        ("", "~20261125-120000"),
        ("", "-LAPTOP7"),
        ("", "-DESKTOP-AB12CD3-2"),
        ("", "_DiskStation_Nov-25-120000-2026_Conflict"),
        ("", "_conflict-20261125-120000"),
        ("", " (conflicted copy 2026-11-25 120000)"),
        ("", " (case clash from host)"),
        ("", "-bak"),
        ("", ".conflict1"),
        ("", "..path1"),
        ("", ".orig"),
        ("", " 2"),
        ("", " - Copy"),
        ("", " [Conflict]"),
        ("", "_1"),
        ("", "20261125120000"),
        ("Conflict of ", ""),
        ("Copy of ", ""),
        ("SyncConflict_", "_from_host"),
    ];

    #[test]
    fn an_authentic_name_is_found_whatever_stands_around_it() {
        // Of all lengths of padding, and with what separates words in it.
        for sealed in ["abcd-efgh_ijkl-mnop_qrst", "Abcdefghijklmnopqrstuvwxyz0=", "_bcd-efghijklmnopqrstuvwx-=="] {
            assert!(sealed.len() >= SEALED_LEN_MIN && sealed.len().is_multiple_of(4));
            for (prefix, suffix) in PATTERNS {
                let stem = format!("{prefix}{sealed}{suffix}");
                let decrypt = |c9r: &str| (c9r == format!("{sealed}{C9R}")).then(|| "clear".to_owned());
                let found = sealed_part(&stem, decrypt).unwrap_or_else(|| panic!("{stem}"));
                assert_eq!((found.sealed, found.suffix), (sealed, suffix), "{stem}");
            }
        }
        assert_eq!(sealed_part("", |_| panic!("too short")), None);
        assert_eq!(sealed_part("too short for one", |_| panic!("too short")), None);
        assert_eq!(sealed_part(&"x".repeat(255), |_| None), None);
    }

    #[test]
    fn names_are_those_of_the_official_clients() {
        fn first(clear: &str, suffix: &str) -> String {
            shown_names(clear, suffix, 146).next().unwrap()
        }
        assert_eq!(first("notes.txt", " (conflict)"), "notes (conflict).txt");
        assert_eq!(first("notes", "-LAPTOP"), "notes-LAPTOP");
        assert_eq!(first(".profile", " (1)"), ".profile (1)");
        assert_eq!(first("a.tar.gz", "_x"), "a.tar_x.gz");
        assert_eq!(first("notes.txt", ""), "notes (1).txt");
        assert_eq!(shown_names("f.c", "x", 146).take(3).collect::<Vec<_>>(), ["fx.c", "f (1).c", "f (2).c"]);
        let long = first(&format!("{}.txt", "n".repeat(142)), " (conflict)");
        assert_eq!((long.len(), long.ends_with("n (conflict).txt")), (146, true));
        let both = first("nnnnnnnn.txt", &"s".repeat(300));
        assert_eq!(both, format!("nnnnnnnn{}.txt", "s".repeat(71)));
        assert_eq!(first(&"ü".repeat(200), "-x").len(), 144, "room for a number is kept");
        assert_eq!(shown_names("a", "b", 0).next().unwrap(), "");
        assert_eq!((clear_len_max_bytes(220), clear_len_max_bytes(0)), (146, 0));
    }

    #[test]
    fn copies_of_parts_are_told_from_parts_and_from_others() {
        assert_eq!(part_of_copy("contents (conflicted copy).c9r"), Some(CONTENTS_FILE));
        assert_eq!(part_of_copy("dir.sync-conflict-20261125-120000-ABCDEFG.c9r"), Some(DIR_FILE));
        assert_eq!(part_of_copy("dirid-LAPTOP.c9r"), Some(DIRID_FILE));
        assert_eq!(part_of_copy("symlink_conflict-1.c9r"), Some(SYMLINK_FILE));
        assert_eq!(part_of_copy("name (1).c9s"), Some(NAME_FILE));
        for name in ["dir.c9r", "dirid.c9r", "name.c9s", "named.c9s", "dirs.c9r", ".DS_Store", "dir (1)", "c9r"] {
            assert_eq!(part_of_copy(name), None, "{name}");
        }
    }
}
