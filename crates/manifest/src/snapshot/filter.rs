//! Which paths of a tree are wanted.

use adit_core::error::Result;
use adit_index::query::{Pattern, PatternBuilder, Syntax};

/// Patterns of paths below the root, as of a shell: `*` and `?` stay within a name, `**` goes across. A pattern that fits a folder fits
/// all that is in it. What is excluded is so whatever else says.
#[derive(Clone, Default)]
pub struct Filter {
    /// None: everything.
    include: Option<Inclusion>,
    exclude: Option<Pattern>,
    /// Folders of which all that is in them is excluded.
    emptied: Option<Pattern>,
    /// Paths that are left out as they are, whatever characters they have.
    apart: Vec<Vec<u8>>,
}

#[derive(Clone)]
struct Inclusion {
    pattern: Pattern,
    /// Folders in which something may be that is included.
    above: Option<Pattern>,
}

impl Filter {
    /// From patterns; with none to include, everything is.
    ///
    /// # Errors
    /// `InvalidInput` for a pattern that is none, with its text.
    pub fn new<S: AsRef<str>>(include: &[S], exclude: &[S]) -> Result<Self> {
        let (include, exclude) = (trimmed(include), trimmed(exclude));
        let above: Vec<String> = include.iter().flat_map(|pattern| above(pattern)).collect();
        let all_in = exclude.iter().filter_map(|text| text.strip_suffix("/**").or(text.strip_suffix("/*")));
        let emptied: Vec<&str> = all_in.collect();
        let (include, above) = (any(&include)?, any(&above)?);
        let include = include.map(|pattern| Inclusion { pattern, above });
        Ok(Filter { include, exclude: any(&exclude)?, emptied: any(&emptied)?, apart: Vec::new() })
    }

    /// Leaves these paths out as well, and what is in them; they are no patterns.
    #[must_use]
    pub fn apart_from(self, paths: Vec<Vec<u8>>) -> Self {
        Filter { apart: paths, ..self }
    }

    /// Whether the entry at `path` is left out, with all that is in it. What it lies in was asked for before.
    pub(super) fn excludes(&self, path: &[u8]) -> bool {
        fits(&self.exclude, path) || self.apart.iter().any(|apart| apart == path)
    }

    /// Whether all that is in the folder `path` is left out. What it lies in was asked for before.
    pub(super) fn empties(&self, path: &[u8]) -> bool {
        fits(&self.emptied, path)
    }

    /// Whether the entry at `path` is wanted, of which nothing was asked before.
    pub fn wants(&self, path: &[u8]) -> bool {
        self.includes(path) && !prefixes(path).any(|prefix| self.excludes(prefix))
    }

    /// Whether the entry at `path` or something that it lies in was asked for.
    pub(super) fn includes(&self, path: &[u8]) -> bool {
        let Some(include) = &self.include else { return true };
        prefixes(path).any(|prefix| include.pattern.is_match(prefix))
    }

    /// Whether the entry at `path` is to be looked at: it is wanted, or something may be that is in it. What it lies in was asked for before.
    pub(super) fn reaches(&self, path: &[u8]) -> bool {
        let leads = |include: &Inclusion| self.includes(path) || fits(&include.above, path);
        !self.excludes(path) && self.include.as_ref().is_none_or(leads)
    }
}

/// The path, and those of the folders that it lies in.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    ends.chain([path.len()]).map(|end| &path[..end])
}

fn fits(pattern: &Option<Pattern>, path: &[u8]) -> bool {
    pattern.as_ref().is_some_and(|pattern| pattern.is_match(path))
}

/// A slash at the end means what is in the folder, and so the folder.
fn trimmed<S: AsRef<str>>(patterns: &[S]) -> Vec<&str> {
    let texts = patterns.iter().map(AsRef::as_ref);
    texts.map(|text| text.trim_end_matches('/').trim_start_matches("./").trim_start_matches('/')).collect()
}

/// What fits one of the patterns; nothing does if there are none.
fn any<S: AsRef<str>>(patterns: &[S]) -> Result<Option<Pattern>> {
    let texts: Vec<&[u8]> = patterns.iter().map(|pattern| pattern.as_ref().as_bytes()).collect();
    let build = || PatternBuilder::new(Syntax::Glob).full_path(true).build_any(&texts);
    if texts.is_empty() { Ok(None) } else { build().map(Some) }
}

/// Patterns of the folders on the way to what `pattern` fits.
fn above(pattern: &str) -> Vec<String> {
    let (mut folders, mut start, mut depth, mut escaped) = (Vec::new(), 0, 0, false);
    // What a class begins with, or the end of that, closes none.
    let mut class: Option<usize> = None;
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => {}
            '!' | '^' if class == Some(at) => class = Some(at + 1),
            ']' if class.is_some_and(|first| at > first) => class = None,
            _ if class.is_some() => {}
            '[' => class = Some(at + 1),
            '{' => depth += 1,
            '}' => depth -= 1,
            // Of several that are nested nothing is told apart.
            '/' if depth > 0 => {
                folders.push(format!("{}**", &pattern[..start]));
                return folders;
            }
            '/' => {
                folders.push(pattern[..at].to_owned());
                if &pattern[start..at] == "**" {
                    return folders;
                }
                start = at + 1;
            }
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    folders
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
        // A character is one, as in a shell.
        let of_two = Filter::new(&["??", "[é]*"], &["[à-ç]*"]).expect("patterns");
        let wanted = |path: &str| of_two.wants(path.as_bytes());
        assert!(wanted("ab") && wanted("日本") && wanted("é") && !wanted("è") && !wanted("€") && !wanted("àb"));
        let odd = Filter::new(&["\u{fffd}*", "?"], &[]).expect("patterns");
        assert!(!odd.includes(b"ab"));
    }

    /// Whatever stands in the way where nothing is wanted is not looked at.
    #[test]
    fn folders_that_lead_nowhere_are_told_before_they_are_looked_at() {
        let filter =
            Filter::new(&["a", "src/**/x.rs", "d/e?/f", "[!]/]z/t"], &["no/**", "m/*", "gone"]).expect("patterns");
        for (path, reached) in [
            ("a", true),
            ("a/b/c", true),
            ("b", false),
            ("src", true),
            ("src/x/y", true),
            ("d", true),
            ("d/e1", true),
            ("d/e12", false),
            ("d/e1/f", true),
            ("d/e1/g", false),
            ("gone", false),
        ] {
            assert_eq!(filter.reaches(path.as_bytes()), reached, "{path}");
        }
        for (path, emptied) in [("no", true), ("m", true), ("no/x", false), ("gone", false), ("a", false)] {
            assert_eq!(filter.empties(path.as_bytes()), emptied, "{path}");
        }
        let nested = Filter::new(&["a/{p,q/r}/s"], &[]).expect("patterns");
        for (path, reached) in [("a", true), ("a/p", true), ("a/q/r", true), ("b", false)] {
            assert_eq!(nested.reaches(path.as_bytes()), reached, "{path}");
        }
        assert!(Filter::default().reaches(b"any") && !Filter::default().empties(b"any"));
    }
}
