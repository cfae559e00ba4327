//! Which paths of a tree are wanted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use globset::{Error, GlobBuilder, GlobSet, GlobSetBuilder};

/// Patterns of paths below the root, as of a shell: `*` and `?` stay within a name, `**` goes across. A pattern that fits a folder fits
/// all that is in it. What is excluded is so whatever else says.
#[derive(Clone, Default)]
pub struct Filter {
    /// None: everything.
    include: Option<GlobSet>,
    exclude: GlobSet,
    /// Paths that are left out as they are, whatever characters they have.
    apart: Vec<Vec<u8>>,
}

impl Filter {
    /// From patterns; with none to include, everything is.
    ///
    /// # Errors
    /// For a pattern that is none, with its text.
    pub fn new<S: AsRef<str>>(include: &[S], exclude: &[S]) -> Result<Self, Error> {
        let include = if include.is_empty() { None } else { Some(set(include)?) };
        Ok(Filter { include, exclude: set(exclude)?, apart: Vec::new() })
    }

    /// Leaves these paths out as well, and what is in them; they are no patterns.
    #[must_use]
    pub fn apart_from(self, paths: Vec<Vec<u8>>) -> Self {
        Filter { apart: paths, ..self }
    }

    /// Whether the entry at `path` is left out, with all that is in it. What it lies in was asked for before.
    pub(super) fn excludes(&self, path: &[u8]) -> bool {
        self.exclude.is_match(OsStr::from_bytes(path)) || self.apart.iter().any(|apart| apart == path)
    }

    /// Whether the entry at `path` is wanted, of which nothing was asked before.
    pub fn wants(&self, path: &[u8]) -> bool {
        let mut ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
        self.includes(path) && !ends.any(|end| self.excludes(&path[..end]))
    }

    /// Whether the entry at `path` or something that it lies in was asked for.
    pub(super) fn includes(&self, path: &[u8]) -> bool {
        let Some(include) = &self.include else { return true };
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).any(|end| include.is_match(OsStr::from_bytes(&path[..end])))
    }
}

fn set<S: AsRef<str>>(patterns: &[S]) -> Result<GlobSet, Error> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        // With a slash at its end, it means what is in the folder, and so the folder.
        let pattern = pattern.as_ref().trim_end_matches('/').trim_start_matches("./").trim_start_matches('/');
        set.add(GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build()?);
    }
    set.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_of_whole_paths_and_folders_take_what_is_in_them() {
        let filter = Filter::new(&["src", "*.txt", "**/keep/"], &["**/*.o", "src/tmp"]).expect("patterns");
        let filter = filter.apart_from(vec![b"src/[own]".to_vec()]);
        for (path, wanted) in [
            ("src", true),
            ("src/a/b.rs", true),
            ("src/a/b.o", false),
            ("src/tmp", false),
            ("src/[own]", false),
            ("src/o", true),
            ("readme.txt", true),
            ("doc/readme.txt", false),
            ("x/keep/y", true),
            ("other", false),
        ] {
            let found = filter.includes(path.as_bytes()) && !filter.excludes(path.as_bytes());
            assert_eq!(found, wanted, "{path}");
        }
        assert!(!filter.wants(b"src/[own]/in it"));
        assert!(filter.wants(b"src/a/b.rs") && !filter.wants(b"src/tmp/b.rs") && !filter.wants(b"other/x"));
        assert!(Filter::default().includes(b"\xff") && !Filter::default().excludes(b"\xff"));
        assert!(Filter::new(&["a[b"], &[]).is_err());
        let odd = Filter::new(&["\u{fffd}*", "?"], &[]).expect("patterns");
        assert!(!odd.includes(b"ab"));
    }
}
