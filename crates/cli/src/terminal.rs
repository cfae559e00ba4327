//! Text for people: nothing in it gives orders to a terminal, or shows characters in another order than they have.
//!
//! All text that leaves the program passes through [`inert`]: [`Output`](crate::output::Output), the macros [`eprint!`] and
//! [`eprintln!`] of this crate, which stand in front of those of the standard library, and log lines ([`InertLines`]). Only the
//! content of a file and names that end with a zero byte are written as they are.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// As the macro of the standard library; the text is [inert](inert), and a closed standard error is no failure.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::terminal::tell(&format!("{}\n", format_args!($($text)*))) };
}

/// Likewise, without the end of the line.
macro_rules! eprint {
    ($($text:tt)*) => { $crate::terminal::tell(&format!($($text)*)) };
}

/// A name within text: on one line, and [inert](inert). Bytes that are not UTF-8 are replaced.
pub fn printable(name: &[u8]) -> String {
    escaped(&String::from_utf8_lossy(name), |c| is_order(c) || matches!(c, '\n' | '\t')).into_owned()
}

/// Text of several lines, in which each character that a terminal obeys is an escape sequence of JSON: `\u001b`. So a JSON
/// document stays what it is.
pub fn inert(text: &str) -> Cow<'_, str> {
    escaped(text, is_order)
}

/// Prints inert text to standard error.
pub fn tell(text: &str) {
    // It may be closed; there is nowhere to say so.
    let _ = io::stderr().write_all(inert(text).as_bytes());
}

/// Control characters but for the end of a line and the tabulator, the characters that turn the direction of writing, and the
/// other ends of a line.
fn is_order(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' => true,
        c => c.is_control(),
    }
}

fn escaped(text: &str, is_meant: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_meant) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        let written = match c {
            '\n' if is_meant(c) => safe.write_str("\\n"),
            '\t' if is_meant(c) => safe.write_str("\\t"),
            c if is_meant(c) => write!(safe, "\\u{:04x}", u32::from(c)),
            c => safe.write_char(c),
        };
        debug_assert!(written.is_ok(), "a string takes everything");
    }
    safe.into()
}

/// Log lines on their way to `W`, each in one write. The colours that the log itself gives them stay if it has some; it escapes
/// other escape sequences itself then.
#[derive(Debug)]
pub struct InertLines<W> {
    to: W,
    has_colours: bool,
}

impl<W> InertLines<W> {
    /// Writes to `to`.
    pub fn new(to: W, has_colours: bool) -> Self {
        InertLines { to, has_colours }
    }
}

impl<W: Write> Write for InertLines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let safe = escaped(&text, |c| is_order(c) && !(self.has_colours && c == '\u{1b}'));
        self.to.write_all(safe.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_no_orders_to_a_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\nc\td\r\x7f"), "a\\u001b[2Jb\\nc\\td\\u000d\\u007f");
        assert_eq!(
            printable("\u{202e}fdp.exe\u{2066}\u{2028}\u{9b}".as_bytes()),
            "\\u202efdp.exe\\u2066\\u2028\\u009b"
        );
        assert_eq!(printable("ü 日本 👩\u{200d}💻".as_bytes()), "ü 日本 👩\u{200d}💻");
    }

    #[test]
    fn text_keeps_its_lines_and_json_its_meaning() {
        assert_eq!(inert("a\n\tb\x1b[0m"), "a\n\tb\\u001b[0m");
        let value = serde_json::json!({"name": "\u{202e}x\u{9b}\n"});
        let text = value.to_string();
        assert!(!inert(&text).contains('\u{202e}'));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&inert(&text)).unwrap(), value);
    }

    #[test]
    fn log_lines_keep_only_their_own_colours() {
        for (has_colours, expected) in [(false, "\\u001b[31m\\u202e\n"), (true, "\x1b[31m\\u202e\n")] {
            let mut lines = InertLines::new(Vec::new(), has_colours);
            lines.write_all("\x1b[31m\u{202e}\n".as_bytes()).unwrap();
            assert_eq!(String::from_utf8(lines.to).unwrap(), expected);
        }
    }
}
