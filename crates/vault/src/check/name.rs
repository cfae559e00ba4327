//! What a stored name says.

use adit_core::types::{FileName, NAME_LEN_MAX_BYTES};
use data_encoding::BASE64URL;

use super::{Fix, ProblemKind};
use crate::format::names::{C9R, C9S, DIRID_FILE, DirContext, is_long, nfc, shorten};
use crate::format::{DirId, FormatError, NameCipher};
use crate::version::{self, part_of_copy};

/// Fewest base64 characters that make a foreign name look like an encrypted one: an empty name's tag has more.
const SEALED_LEN_MIN: usize = 20;
/// Longest part of `name.c9s` that is searched for the right name.
pub(crate) const NAME_FILE_LEN_MAX_BYTES: usize = 16 << 10;
/// As much of a name that is too long is shown.
const NAME_SHOWN_CHARS: usize = 40;
/// Ends of `.c9r` in a damaged `name.c9s` that are tried.
const CANDIDATES_MAX: usize = 64;

/// What is known of an entry's name.
#[derive(Debug)]
pub(crate) enum Naming {
    /// All is well.
    Sound(String),
    /// The name is known, its storage is wrong.
    Wrong { clear: String, kind: ProblemKind, detail: String, fix: Fix },
    /// The name is not known.
    Broken { kind: ProblemKind, detail: String },
    /// It is in a content directory whose id is not known.
    Sealed,
    /// It is another program's: a note says what.
    Foreign(String),
    /// It is a second version, as sync programs make them.
    Version(Version),
}

/// A second version of an entry.
#[derive(Debug)]
pub(crate) struct Version {
    /// The cleartext name of the entry.
    pub clear: String,
    /// How that is encrypted, however long.
    pub full: String,
    /// Under which name the entry is stored.
    pub first: String,
    /// What stands behind the entry's name in that of this one.
    pub suffix: String,
}

impl Version {
    /// The name under which it is shown: the entry's, where there is no such entry, else the first one that is free. `is_taken` tells of
    /// a cleartext name, and how it is stored, whether it is another entry's.
    pub fn shown(
        &self,
        reading: &Reading<'_>,
        is_there: bool,
        mut is_taken: impl FnMut(&str, &str) -> bool,
    ) -> Option<String> {
        let (_, context) = reading.dir?;
        if !is_there && !is_taken(&self.clear, &self.first) {
            return Some(self.clear.clone());
        }
        let len_max_bytes = match is_long(&self.full, reading.threshold) {
            true => NAME_LEN_MAX_BYTES,
            false => version::clear_len_max_bytes(reading.threshold),
        };
        version::shown_names(&self.clear, &self.suffix, len_max_bytes).find(|name| {
            let full = reading.names.encrypt_name_in(name, context);
            let stored = full.map(|full| if is_long(&full, reading.threshold) { shorten(&full) } else { full });
            stored.is_ok_and(|stored| *name != self.clear && !is_taken(name, &stored))
        })
    }
}

/// Reads names of one directory.
pub(crate) struct Reading<'a> {
    pub names: &'a NameCipher,
    /// None in a content directory whose id is not known.
    pub dir: Option<(&'a DirId, DirContext)>,
    pub threshold: u32,
}

impl Reading<'_> {
    /// Of a name that ends in `.c9r`.
    pub fn short(&self, stored: &str) -> Naming {
        let Some((dir, context)) = self.dir else {
            return if looks_sealed(stored) { Naming::Sealed } else { Naming::Foreign(NOT_OURS.to_owned()) };
        };
        // Hidden files are no entries to any client: a Mac's `._NAME.c9r` is what it keeps of the file NAME.
        if stored.starts_with('.') {
            return Naming::Foreign(NOT_OURS.to_owned());
        }
        if part_of_copy(stored) == Some(DIRID_FILE) {
            return Naming::Foreign(COPY_OF_DIRID.to_owned());
        }
        let unauthentic = match self.names.decrypt_name_in(stored, context) {
            Ok(clear) => return self.judge(dir, stored, clear, false),
            Err(FormatError::NameInvalid { reason }) => return invalid(reason),
            Err(e) => e,
        };
        if let Some(clear) = self.without_padding(stored, context) {
            let fix = Fix::Rename { dir: dir.clone(), name: clear.clone() };
            let detail = "the encrypted name has lost its padding".to_owned();
            return Naming::Wrong { clear, kind: ProblemKind::UnauthenticName, detail, fix };
        }
        if let Some(version) = self.copied_from(stored, context) {
            return version;
        }
        if looks_sealed(stored) {
            return Naming::Broken { kind: ProblemKind::UnauthenticName, detail: unauthentic.to_string() };
        }
        Naming::Foreign(NOT_OURS.to_owned())
    }

    /// Of a folder that ends in `.c9s`, with what its `name.c9s` holds. `taken` tells whether a stored name exists.
    pub fn long(&self, stored: &str, name_file: Option<&[u8]>, taken: &dyn Fn(&str) -> bool) -> Naming {
        let is_hash = stored
            .strip_suffix(C9S)
            .and_then(|stem| BASE64URL.decode(stem.as_bytes()).ok())
            .is_some_and(|hash| hash.len() == 20);
        let broken = |detail: &str| Naming::Broken { kind: ProblemKind::BrokenLongName, detail: detail.to_owned() };
        let Some(bytes) = name_file else {
            return if is_hash { broken("name.c9s is missing") } else { Naming::Foreign(NOT_OURS.to_owned()) };
        };
        if let Some((full, exact)) = proven(stored, bytes) {
            let Some((dir, context)) = self.dir else { return Naming::Sealed };
            return match self.names.decrypt_name_in(full, context) {
                Ok(clear) if exact => self.judge(dir, full, clear, true),
                Ok(clear) => Naming::Wrong {
                    clear,
                    kind: ProblemKind::BrokenLongName,
                    detail: "name.c9s holds more than the name".to_owned(),
                    fix: Fix::WriteName { full: full.to_owned() },
                },
                Err(FormatError::NameInvalid { reason }) => invalid(reason),
                Err(e) => Naming::Broken { kind: ProblemKind::UnauthenticName, detail: e.to_string() },
            };
        }
        let guess = std::str::from_utf8(bytes).ok().map(str::trim);
        let Some((guess, (dir, context))) = guess.zip(self.dir) else {
            return match self.dir {
                None => Naming::Sealed,
                Some(_) => broken("name.c9s is not the name whose hash the folder has"),
            };
        };
        let own = shorten(guess);
        match self.names.decrypt_name_in(guess, context) {
            Ok(clear) if own.strip_suffix(C9S).is_some_and(|stem| stored.contains(stem)) => {
                let behind =
                    own.strip_suffix(C9S).and_then(|stem| stored.split_once(stem)).map_or("", |(_, rest)| rest);
                let suffix = behind.strip_suffix(C9S).unwrap_or(behind).to_owned();
                Naming::Version(Version { clear, full: guess.to_owned(), first: own, suffix })
            }
            Ok(clear) if !taken(&own) && FileName::new(clear.as_bytes()).is_ok() => Naming::Wrong {
                fix: Fix::Rename { dir: dir.clone(), name: clear.clone() },
                clear,
                kind: ProblemKind::BrokenLongName,
                detail: "the folder's name is not the hash of its name.c9s".to_owned(),
            },
            Ok(_) => broken("name.c9s holds the name of another entry"),
            Err(_) if is_hash => broken("name.c9s is not the name whose hash the folder has"),
            Err(_) => Naming::Foreign(NOT_OURS.to_owned()),
        }
    }

    /// Of an authentic name: whether it may be one, and whether it is stored as it should be.
    fn judge(&self, dir: &DirId, full: &str, clear: String, shortened: bool) -> Naming {
        if clear.len() > NAME_LEN_MAX_BYTES {
            return too_long(&clear);
        }
        if let Err(e) = FileName::new(clear.as_bytes()) {
            return invalid(&e.to_string());
        }
        let (kind, detail) = if *nfc(&clear) != *clear {
            (ProblemKind::NotNfcName, "the name was not normalised (NFC) before its encryption")
        } else if shortened && !is_long(full, self.threshold) {
            (ProblemKind::NeedlesslyShortenedName, "the name is shortened, but within the vault's threshold")
        } else if !shortened && is_long(full, self.threshold) {
            (ProblemKind::NotShortenedName, "the name is beyond the vault's threshold, but not shortened")
        } else {
            return Naming::Sound(clear);
        };
        let fix = Fix::Rename { dir: dir.clone(), name: clear.clone() };
        Naming::Wrong { clear, kind, detail: detail.to_owned(), fix }
    }

    fn without_padding(&self, stored: &str, context: DirContext) -> Option<String> {
        let stem = stored.strip_suffix(C9R)?.trim_end_matches('=');
        let padding = "=".repeat((4 - stem.len() % 4) % 4);
        let clear = self.names.decrypt_name_in(&format!("{stem}{padding}{C9R}"), context).ok()?;
        FileName::new(clear.as_bytes()).ok().map(|_| ())?;
        Some(clear)
    }

    /// What a conflict copy is a copy of: its authentic name is a part of the stored one.
    fn copied_from(&self, stored: &str, context: DirContext) -> Option<Naming> {
        let stem = stored.strip_suffix(C9R)?;
        let found = version::sealed_part(stem, |c9r| self.names.decrypt_name_in(c9r, context).ok())?;
        FileName::new(found.clear.as_bytes()).ok()?;
        let full = format!("{}{C9R}", found.sealed);
        let first = if is_long(&full, self.threshold) { shorten(&full) } else { full.clone() };
        Some(Naming::Version(Version { clear: found.clear, full, first, suffix: found.suffix.to_owned() }))
    }

    /// Whether the name of a foreign file, with any ending, has an authentic name of this directory in it: it may be somebody's version of
    /// that entry.
    pub fn holds_authentic(&self, stored: &str) -> bool {
        let Some((_, context)) = self.dir else { return true };
        version::sealed_part(stored, |c9r| self.names.decrypt_name_in(c9r, context).ok()).is_some()
    }
}

const NOT_OURS: &str = "not an entry of the vault";
const COPY_OF_DIRID: &str = "a second version of dirid.c9r, which tells what the first one tells; it can be removed";

fn invalid(reason: &str) -> Naming {
    Naming::Broken { kind: ProblemKind::InvalidName, detail: format!("the name is authentic, but no file's: {reason}") }
}

/// A name that another client made, where its system allows more. What it names is sound.
fn too_long(clear: &str) -> Naming {
    let (len, start) = (clear.len(), clear.chars().take(NAME_SHOWN_CHARS).collect::<String>());
    Naming::Broken {
        kind: ProblemKind::TooLongName,
        detail: format!(
            "the name has {len} bytes, and no mount can show more than {NAME_LEN_MAX_BYTES}: rename it with the client \
             that made it; a repair moves it to /lost+found under another name. It begins with {start:?}"
        ),
    }
}

/// The name in `bytes` whose hash is `stored`, and whether it is all that they hold.
fn proven<'a>(stored: &str, bytes: &'a [u8]) -> Option<(&'a str, bool)> {
    if let Ok(all) = std::str::from_utf8(bytes)
        && shorten(all) == stored
    {
        return Some((all, true));
    }
    let ends = bytes.windows(C9R.len()).enumerate().filter(|(_, w)| *w == C9R.as_bytes());
    ends.take(CANDIDATES_MAX).find_map(|(at, _)| {
        let candidate = std::str::from_utf8(bytes.get(..at + C9R.len())?).ok()?.trim_start();
        (shorten(candidate) == stored).then_some((candidate, false))
    })
}

/// Whether a name is, or was once, an encrypted one.
fn looks_sealed(stored: &str) -> bool {
    let (start, end) = longest_run(stored);
    end - start >= SEALED_LEN_MIN
}

/// The longest run of base64url characters, with up to two of padding behind it.
fn longest_run(stored: &str) -> (usize, usize) {
    let bytes = stored.strip_suffix(C9R).unwrap_or(stored).as_bytes();
    let is_sealed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let (mut best, mut at) = ((0, 0), 0);
    while at < bytes.len() {
        let run = bytes[at..].iter().take_while(|&&b| is_sealed(b)).count();
        let padding = bytes[at + run..].iter().take(2).take_while(|&&b| b == b'=').count();
        if run > 0 && run + padding > best.1 - best.0 {
            best = (at, at + run + padding);
        }
        at += run.max(1);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_anywhere() {
        assert_eq!(longest_run("abc== (1).c9r"), (0, 5));
        assert_eq!(longest_run("(1) abcd=x.c9r"), (4, 9));
        assert_eq!(longest_run("éé.c9r"), (0, 0));
        assert_eq!(longest_run(""), (0, 0));
        assert!(!looks_sealed("notes.c9r"));
    }

    #[test]
    fn a_name_is_proven_by_its_hash() {
        let stored = shorten("abc.c9r");
        assert_eq!(proven(&stored, b"abc.c9r"), Some(("abc.c9r", true)));
        assert_eq!(proven(&stored, b"abc.c9r\n"), Some(("abc.c9r", false)));
        assert_eq!(proven(&stored, b"abc.c9r\xff\xff.c9r"), Some(("abc.c9r", false)));
        assert_eq!(proven(&stored, b"abd.c9r"), None);
        assert_eq!(proven(&stored, b""), None);
    }
}
