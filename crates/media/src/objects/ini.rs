//! Files in the form of the AWS tools (`config`, `credentials`), read as botocore reads them.
//!
//! That is the form of Python's `configparser`: sections in brackets, `name = value` or `name: value` below them, and lines that are indented
//! deeper than the name, which go on with its value. A value that begins on such a line is a list of pairs. What is not of that form is an error that
//! has its line: passed over, a request would go elsewhere than the file says.

use std::collections::BTreeMap;
use std::fmt;

/// The values of a section, by their names in small letters. One of a list of pairs is called `list.name`.
pub type Section = BTreeMap<String, String>;

/// What a file says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ini {
    /// By what is between the brackets, in the order of the file.
    sections: Vec<(String, Section)>,
}

/// A line that is not of the form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyntaxError {
    /// Its number, from 1.
    line: usize,
    why: &'static str,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for SyntaxError {}

/// A value that is being read.
struct Open {
    name: String,
    lines: Vec<String>,
    /// Where it begins.
    at: usize,
}

impl Ini {
    /// Reads all of a file.
    ///
    /// # Errors
    /// The first line that is not of the form.
    pub fn parse(bytes: &[u8]) -> Result<Ini, SyntaxError> {
        if bytes.starts_with(b"\xef\xbb\xbf") {
            return Err(SyntaxError { line: 1, why: "it begins with a byte order mark: save it without one" });
        }
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let before = &bytes[..e.valid_up_to()];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            SyntaxError { line, why: "a byte of it is not UTF-8" }
        })?;
        // A line may end as on old Macs.
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let mut ini = Ini::default();
        let (mut open, mut indent): (Option<Open>, usize) = (None, 0);
        for (line, at) in text.lines().zip(1..) {
            let value = line.trim();
            if value.is_empty() || value.starts_with(['#', ';']) {
                continue;
            }
            let own_indent = line.chars().take_while(|c| c.is_whitespace()).count();
            if let Some(open) = open.as_mut().filter(|_| own_indent > indent) {
                open.lines.push(value.to_owned());
                continue;
            }
            indent = own_indent;
            ini.close(open.take())?;
            open = ini.begin(value, at)?;
        }
        ini.close(open)?;
        Ok(ini)
    }

    /// Takes the head of a section, or the beginning of a value.
    fn begin(&mut self, line: &str, at: usize) -> Result<Option<Open>, SyntaxError> {
        let malformed = |why| Err(SyntaxError { line: at, why });
        let head = line.strip_prefix('[').and_then(|rest| rest.rsplit_once(']')).filter(|(head, _)| !head.is_empty());
        if let Some((head, _)) = head {
            if self.sections.iter().any(|(name, _)| name == head) {
                return malformed("there is a section of that name already");
            }
            self.sections.push((head.to_owned(), Section::new()));
            return Ok(None);
        }
        let Some((_, section)) = self.sections.last() else {
            return malformed("it is below no section, as [default]");
        };
        let Some((name, value)) = line.split_once(['=', ':']).filter(|(name, _)| !name.trim().is_empty()) else {
            return malformed("it is neither [SECTION] nor NAME = VALUE");
        };
        let name = name.trim().to_lowercase();
        if section.contains_key(&name) {
            return malformed("its section has that name already");
        }
        Ok(Some(Open { name, lines: vec![value.trim().to_owned()], at }))
    }

    /// Takes a value whose last line was read.
    fn close(&mut self, open: Option<Open>) -> Result<(), SyntaxError> {
        let (Some(Open { name, lines, at }), Some((_, section))) = (open, self.sections.last_mut()) else {
            return Ok(());
        };
        if lines.len() > 1 && lines[0].is_empty() {
            for pair in &lines[1..] {
                let why = "what is indented below it is not NAME = VALUE";
                let (inner, value) = pair.split_once('=').ok_or(SyntaxError { line: at, why })?;
                section.insert(format!("{name}.{}", inner.trim()), value.trim().to_owned());
            }
        }
        section.insert(name, lines.join("\n").trim().to_owned());
        Ok(())
    }

    /// The section with this between its brackets.
    pub fn section(&self, head: &str) -> Option<&Section> {
        self.sections.iter().find(|(found, _)| found == head).map(|(_, section)| section)
    }

    /// The section of a kind with this name: `[profile name]`, or with quotes. The last one counts.
    pub fn named(&self, kind: &str, name: &str) -> Option<&Section> {
        let is_it = |head: &str| words(head).is_some_and(|words| words == [kind, name]);
        self.sections.iter().rev().find(|(head, _)| is_it(head)).map(|(_, section)| section)
    }
}

/// The words of a head, as a shell would take them; none where a quote is open.
fn words(head: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote): (_, Option<String>, _) = (Vec::new(), None, None);
    let mut chars = head.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => word.get_or_insert_default().push(chars.next()?),
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, head: &str, name: &str) -> Option<String> {
        Ini::parse(text.as_bytes()).unwrap().section(head)?.get(name).cloned()
    }

    #[test]
    fn values_are_those_of_configparser() {
        for (text, name, expected) in [
            ("[s]\nregion = a\n", "region", "a"),
            ("[s]\r\nregion=a b \r\n", "region", "a b"),
            ("[s]\rother = b\rregion = a\r", "region", "a"),
            ("[s]\n    region = a\n    other = b\n", "other", "b"),
            ("  [s]\n  region = a\n", "region", "a"),
            ("[s] rest\nregion: a=b\n", "region", "a=b"),
            ("[s]\nREGION = A\n", "region", "A"),
            ("# c\n[s]\n ; c\nregion = a # no comment\n", "region", "a # no comment"),
            ("[s]\nregion =\n", "region", ""),
            ("[s]\nlong = a\n  b\n\n  c\nregion = d\n", "long", "a\nb\nc"),
            ("[s]\nlong = a\n  b = c\nregion = d\n", "region", "d"),
            ("[s]\ns3 =\n  a = b\n\tc=d\nregion = e\n", "s3.c", "d"),
            ("[s]\n  s3 =\n    a = b\n  region = e\n", "region", "e"),
        ] {
            assert_eq!(value(text, "s", name).as_deref(), Some(expected), "{text:?}");
        }
        assert_eq!(value("[s]\n[t]\nregion = a\n", "s", "region"), None);
    }

    #[test]
    fn sections_have_names_as_a_shell_reads_them() {
        for head in ["profile a b", "profile", "profile \"a b", "Profile \"a b\"", "profile a\\ bc"] {
            let ini = Ini::parse(format!("[{head}]\nregion = a\n").as_bytes()).unwrap();
            assert!(ini.named("profile", "a b").is_none() && ini.section(head).is_some(), "{head}");
        }
        for head in ["profile \"a b\"", "profile   'a b'", "profile a\\ b", "\tprofile a' 'b "] {
            let ini = Ini::parse(format!("[{head}]\nregion = a\n").as_bytes()).unwrap();
            assert!(ini.named("profile", "a b").is_some(), "{head}");
        }
    }

    #[test]
    fn what_is_not_of_the_form_is_told_with_its_line() {
        for (text, line) in [
            (&b"\xef\xbb\xbf[default]\n"[..], 1),
            (b"[default]\n# caf\xe9\n", 2),
            (b"region = a\n", 1),
            (b"[default]\nregion\n", 2),
            (b"[default]\n = a\n", 2),
            (b"[default\nregion = a\n", 1),
            (b"[default]\nregion = a\nRegion = b\n", 3),
            (b"[default]\n\n[default]\n", 3),
            (b"[default]\ns3 =\n  nonsense\n", 2),
            (b"[]\n", 1),
        ] {
            assert_eq!(Ini::parse(text).unwrap_err().line, line, "{}", String::from_utf8_lossy(text));
        }
        assert_eq!(Ini::parse(b"").unwrap(), Ini::default());
    }
}
