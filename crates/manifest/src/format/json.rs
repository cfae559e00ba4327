//! What lies around the JSON parser: a reader that checks the text before the parser sees it, and the canonical writer.
//!
//! serde_json reads a string into bytes as WTF-8, lone surrogates and all. In that way it checks neither that the text is UTF-8
//! nor that it has no control characters, and it holds a string of any length; so [`Guard`] does these.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use super::hash::{ContentHash, Hasher};
use super::limits::{JSON_DEPTH_MAX, JSON_STRING_LEN_MAX_BYTES};
use super::rule::{FormatError, Rule};
use super::wtf8;

/// Where in the text a byte is.
enum Lexed {
    Outside,
    InString,
    /// Behind the `\` of a string.
    Escaped,
}

/// Passes a text on, and refuses what is no UTF-8, too deep, or has a string that is too long or not allowed to be as it is.
pub(crate) struct Guard<R> {
    inner: R,
    lexed: Lexed,
    depth: u32,
    string_len: u32,
    /// Bytes of a character whose rest has not come.
    partial: Vec<u8>,
    position: Rc<Cell<u64>>,
    hash: Hasher,
}

impl<R: Read> Guard<R> {
    pub(crate) fn new(inner: R) -> Self {
        Guard {
            inner,
            lexed: Lexed::Outside,
            depth: 0,
            string_len: 0,
            partial: Vec::with_capacity(4),
            position: Rc::default(),
            hash: Hasher::default(),
        }
    }

    /// Bytes that were passed on, also while the parser has the guard.
    pub(crate) fn position(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.position)
    }

    /// Of all bytes that were passed on.
    pub(crate) fn hash(&self) -> ContentHash {
        self.hash.finish()
    }

    fn check(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.check_utf8(bytes)?;
        for (at, &byte) in bytes.iter().enumerate() {
            let refuse = |rule, detail: String| {
                let position = self.position.get() + at as u64;
                Err(FormatError::new(rule, format!("{detail}, at byte {position}")))
            };
            match self.lexed {
                Lexed::Outside => match byte {
                    b'"' => (self.lexed, self.string_len) = (Lexed::InString, 0),
                    b'{' | b'[' if self.depth == JSON_DEPTH_MAX => {
                        return refuse(Rule::JsonDepth, format!("nested more than {JSON_DEPTH_MAX} deep"));
                    }
                    b'{' | b'[' => self.depth += 1,
                    // Whether brackets fit together is the parser's to say.
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                },
                Lexed::InString => match byte {
                    b'"' => self.lexed = Lexed::Outside,
                    0..0x20 => return refuse(Rule::JsonText, format!("control character {byte:#04x} in a string")),
                    _ if self.string_len >= JSON_STRING_LEN_MAX_BYTES => {
                        return refuse(
                            Rule::JsonString,
                            format!("string of more than {JSON_STRING_LEN_MAX_BYTES} bytes"),
                        );
                    }
                    b'\\' => (self.lexed, self.string_len) = (Lexed::Escaped, self.string_len + 1),
                    _ => self.string_len += 1,
                },
                Lexed::Escaped => (self.lexed, self.string_len) = (Lexed::InString, self.string_len + 1),
            }
        }
        Ok(())
    }

    fn check_utf8(&mut self, mut bytes: &[u8]) -> Result<(), FormatError> {
        let refuse = |position: u64| Err(FormatError::new(Rule::JsonText, format!("no UTF-8, at byte {position}")));
        let position = self.position.get();
        let total = bytes.len();
        while !self.partial.is_empty() {
            let Some((&byte, rest)) = bytes.split_first() else { return Ok(()) };
            self.partial.push(byte);
            bytes = rest;
            match str::from_utf8(&self.partial) {
                Ok(_) => self.partial.clear(),
                Err(e) if e.error_len().is_none() => {}
                Err(_) => return refuse(position),
            }
        }
        match str::from_utf8(bytes) {
            Ok(_) => Ok(()),
            Err(e) if e.error_len().is_none() => {
                self.partial.extend_from_slice(&bytes[e.valid_up_to()..]);
                Ok(())
            }
            Err(e) => refuse(position + (total - bytes.len() + e.valid_up_to()) as u64),
        }
    }
}

impl<R: Read> Read for Guard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = loop {
            match self.inner.read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => break done?,
            }
        };
        let bytes = &buffer[..len];
        self.check(bytes).map_err(io::Error::other)?;
        if len == 0 && !self.partial.is_empty() && !buffer.is_empty() {
            return Err(io::Error::other(FormatError::new(Rule::JsonText, "ends inside a character")));
        }
        self.hash.update(bytes);
        self.position.set(self.position.get() + len as u64);
        Ok(len)
    }
}

/// Appends a string as Python's `json.dumps` with `ensure_ascii` writes it: everything outside of 0x20 to 0x7e is escaped,
/// characters above U+FFFF as a pair, lone surrogates as they are. `/` is not escaped.
pub(crate) fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    let mut rest = text;
    while !rest.is_empty() {
        let plain = rest.iter().take_while(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')).count();
        out.extend_from_slice(&rest[..plain]);
        rest = &rest[plain..];
        let special =
            rest.iter().take_while(|byte| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\')).count();
        wtf8::code_points(&rest[..special]).for_each(|point| push_escaped(out, point));
        rest = &rest[special..];
    }
    out.push(b'"');
}

fn push_escaped(out: &mut Vec<u8>, point: u32) {
    let short = match point {
        0x22 => b'"',
        0x5c => b'\\',
        0x08 => b'b',
        0x0c => b'f',
        0x0a => b'n',
        0x0d => b'r',
        0x09 => b't',
        0x1_0000.. => {
            let above = point - 0x1_0000;
            push_escaped(out, 0xd800 | above >> 10 & 0x3ff);
            push_escaped(out, 0xdc00 | above & 0x3ff);
            return;
        }
        _ => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            let digit = |shift: u32| DIGITS[(point >> shift & 0xf) as usize];
            out.extend([b'\\', b'u', digit(12), digit(8), digit(4), digit(0)]);
            return;
        }
    };
    out.extend([b'\\', short]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &[u8]) -> String {
        let mut out = Vec::new();
        push_string(&mut out, text);
        String::from_utf8(out).expect("ASCII")
    }

    fn read(text: &[u8], step: usize) -> Result<Vec<u8>, FormatError> {
        struct Steps<'a>(&'a [u8], usize);
        impl Read for Steps<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let len = self.1.min(buffer.len());
                self.0.read(&mut buffer[..len])
            }
        }
        let mut out = Vec::new();
        let mut guard = Guard::new(Steps(text, step));
        match guard.read_to_end(&mut out) {
            Ok(_) => {
                assert_eq!(guard.hash(), ContentHash::of(text));
                Ok(out)
            }
            Err(e) => Err(*e.into_inner().expect("a refusal").downcast::<FormatError>().expect("a refusal")),
        }
    }

    #[test]
    fn strings_are_those_of_python() {
        // json.dumps of each, Python 3.11.
        assert_eq!(written(b"a/b \x7e"), r#""a/b ~""#);
        assert_eq!(written(b"\"\\\x08\x0c\n\r\t"), r#""\"\\\b\f\n\r\t""#);
        assert_eq!(written(b"\x00\x01\x1f\x7f"), r#""\u0000\u0001\u001f\u007f""#);
        assert_eq!(written("\u{80}é€\u{ffff}".as_bytes()), r#""\u0080\u00e9\u20ac\uffff""#);
        assert_eq!(written("😀\u{10ffff}".as_bytes()), r#""\ud83d\ude00\udbff\udfff""#);
        assert_eq!(written(b"x\xed\xb8\x8ay\xed\xa0\x80"), r#""x\ude0ay\ud800""#);
        assert_eq!(written(b""), r#""""#);
    }

    /// What the codec relies on in serde_json.
    #[test]
    fn the_parser_gives_lone_surrogates_as_wtf8() {
        struct Bytes;
        impl serde::de::Visitor<'_> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        for text in [
            &b"\xed\xb8\x8a"[..],
            b"\xed\xa0\x80",
            b"\xed\xa0\x80\xed\xa0\x80",
            b"\xed\xb0\x80\xed\xa0\x80",
            b"\xed\xa0\x80x\xed\xb0\x80",
            b"\xed\xa0\x80\n",
            b"\xed\xa0\x80\xf0\x9f\x98\x80",
            "😀/é".as_bytes(),
        ] {
            let json = written(text);
            let mut parser = serde_json::Deserializer::from_reader(json.as_bytes());
            let read = serde::Deserializer::deserialize_bytes(&mut parser, Bytes).expect("it reads what was written");
            assert_eq!(read, text, "{json}");
        }
    }

    #[test]
    fn text_passes_whatever_the_steps() {
        let text = "{\"é😀\\\"[[[\\\\\": [1, {\"x\": []}]}\n".as_bytes();
        for step in 1..=text.len() {
            assert_eq!(read(text, step).as_deref(), Ok(text), "{step}");
        }
    }

    #[test]
    fn bad_text_is_refused_whatever_the_steps() {
        let deep = b"[".repeat(JSON_DEPTH_MAX as usize + 1);
        let long = [b"\"", &b"x".repeat(JSON_STRING_LEN_MAX_BYTES as usize + 1)[..], b"\""].concat();
        for (text, rule) in [
            (&b"\"\xff\""[..], Rule::JsonText),
            (b"\"\xed\xa0\x80\"", Rule::JsonText),
            (b"\"\xe2\x82", Rule::JsonText),
            (b"\"\xe2\x82\"", Rule::JsonText),
            (b"\"a\nb\"", Rule::JsonText),
            (b"\"\x1f\"", Rule::JsonText),
            (&deep, Rule::JsonDepth),
            (&long, Rule::JsonString),
        ] {
            for step in [1, 2, 3, 1 << 20] {
                assert_eq!(read(text, step).map_err(|e| e.rule), Err(rule), "{step}");
            }
        }
        assert!(read(&deep[1..], 7).is_ok());
        assert!(read(&long[1..], 7).is_ok(), "not in a string");
        let fits = [b"\"", &b"x".repeat(JSON_STRING_LEN_MAX_BYTES as usize)[..], b"\""].concat();
        assert!(read(&fits, 4096).is_ok());
    }
}
