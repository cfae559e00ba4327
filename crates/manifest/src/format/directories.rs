//! The directories that a manifest of 2025 lists, for the `$N` that refer to them.

use super::limits::Counts;
use super::rule::{FormatError, Quoted, Rule};

/// No directory.
const NONE: u32 = u32::MAX;

/// The directories by number, each as what it adds to an earlier one: eight bytes and its last name, mostly.
#[derive(Default)]
pub(crate) struct Directories {
    /// The directory that the text begins with, and where its own text ends.
    entries: Vec<(u32, u32)>,
    texts: Vec<u8>,
    limits: Counts,
}

/// A text, split at its reference.
struct Referring<'a> {
    directory: u32,
    rest: &'a [u8],
}

impl Directories {
    pub(crate) fn new(limits: Counts) -> Self {
        Directories { limits, ..Directories::default() }
    }

    /// Adds the next directory, as it is written.
    ///
    /// # Errors
    /// [`Rule::DirectoryReference`], [`Rule::TooManyDirectories`].
    pub(crate) fn push(&mut self, text: &[u8]) -> Result<(), FormatError> {
        let refuse = |detail: String| Err(FormatError::new(Rule::TooManyDirectories, detail));
        let most = self.limits.directories;
        if self.entries.len() >= most {
            return refuse(format!("more than {most} directories"));
        }
        let Referring { directory, rest } = self.split(text)?;
        let end = self.texts.len() + rest.len();
        match u32::try_from(end) {
            Ok(end) if end as usize <= self.limits.directory_names_bytes => {
                self.texts.extend_from_slice(rest);
                self.entries.push((directory, end));
                Ok(())
            }
            _ => {
                let most = self.limits.directory_names_bytes;
                refuse(format!("names of directories with more than {most} bytes together"))
            }
        }
    }

    /// Puts the full text of what is written as `text` into `out`.
    ///
    /// # Errors
    /// [`Rule::DirectoryReference`].
    pub(crate) fn expand(&self, text: &[u8], out: &mut Vec<u8>) -> Result<(), FormatError> {
        out.clear();
        let Referring { mut directory, rest } = self.split(text)?;
        if directory == NONE {
            out.extend_from_slice(rest);
            return Ok(());
        }
        // From the end to the beginning: the names, reversed, then all of it turned round.
        out.extend(rest.iter().rev());
        while let Some((outer, own)) = self.entry(directory) {
            out.push(b'/');
            out.extend(own.iter().rev());
            directory = outer;
        }
        out.reverse();
        Ok(())
    }

    fn entry(&self, directory: u32) -> Option<(u32, &[u8])> {
        let at = directory as usize;
        let &(outer, end) = self.entries.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.entries[before].1);
        Some((outer, &self.texts[start as usize..end as usize]))
    }

    /// A text with `$N/` in front refers to directory `N`. Any other text that begins with `$` and has a `/` is refused: other
    /// readers cannot tell it from a reference.
    fn split<'a>(&self, text: &'a [u8]) -> Result<Referring<'a>, FormatError> {
        let whole = Referring { directory: NONE, rest: text };
        let Some(reference) = text.strip_prefix(b"$") else { return Ok(whole) };
        let Some(slash) = reference.iter().position(|&byte| byte == b'/') else { return Ok(whole) };
        let (digits, rest) = (&reference[..slash], &reference[slash + 1..]);
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        let number = str::from_utf8(digits).ok().filter(|_| is_number).and_then(|digits| digits.parse::<u32>().ok());
        match number.filter(|&number| (number as usize) < self.entries.len()) {
            Some(directory) => Ok(Referring { directory, rest }),
            None => {
                let detail = format!("{} refers to no directory before it ({} are)", Quoted(text), self.entries.len());
                Err(FormatError::new(Rule::DirectoryReference, detail))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Directories {
        let mut directories = Directories::default();
        texts.iter().for_each(|text| directories.push(text.as_bytes()).expect("a directory"));
        directories
    }

    fn expanded(directories: &Directories, text: &str) -> Result<String, Rule> {
        let mut out = b"old".to_vec();
        directories.expand(text.as_bytes(), &mut out).map_err(|e| e.rule)?;
        Ok(String::from_utf8(out).expect("text"))
    }

    #[test]
    fn references_are_followed() {
        let directories = of(&["a", "$0/bé", "$1/c/d", "x", "$3/", "$lonely"]);
        for (text, full) in [
            ("f", "f"),
            ("$0/f", "a/f"),
            ("$1/f", "a/bé/f"),
            ("$2/f/g", "a/bé/c/d/f/g"),
            ("$3/", "x/"),
            ("$4/f", "x//f"),
            ("$5/f", "$lonely/f"),
            ("$", "$"),
            ("$0", "$0"),
            ("a/$0/b", "a/$0/b"),
        ] {
            assert_eq!(expanded(&directories, text).as_deref(), Ok(full), "{text}");
        }
        for text in
            ["$6/f", "$/f", "$HOME/f", "$-1/f", "$+1/f", "$ 1/f", "$1 /f", "$99999999999999999999/f", "$4294967295/f"]
        {
            assert_eq!(expanded(&directories, text), Err(Rule::DirectoryReference), "{text}");
        }
    }

    #[test]
    fn a_directory_refers_to_earlier_ones_only() {
        let mut directories = of(&["a"]);
        assert!(directories.push(b"$1/b").is_err(), "to itself");
        assert!(directories.push(b"$0/b").is_ok());
        assert!(Directories::default().push(b"$0/b").is_err(), "there is none");
    }
}
