//! What every match of an expression has in it, as bits of a signature: [`signature_bits`].

use regex_syntax::hir::{Class, Hir, HirKind};

use crate::layout::signatures::bits_of_text;

/// Texts that follow from a class: so many characters at most are looked at.
const CHARACTERS_MAX: usize = 4;

/// The bits that the signature of a name has which the expression matches somewhere ([`super::hir::open`] has made it).
pub fn signature_bits(hir: &Hir) -> Vec<u32> {
    let mut grams = Grams::default();
    grams.walk(hir);
    grams.end();
    grams.bits.sort_unstable();
    grams.bits.dedup();
    grams.bits
}

/// Bits so far, and the text that the last match has last.
#[derive(Default)]
struct Grams {
    bits: Vec<u32>,
    /// Without large letters of ASCII.
    text: Vec<u8>,
    /// Whether the text has a letter that may be one beyond ASCII in the name: the signature has such a name without those beyond ASCII, too, but
    /// no mixture of both.
    is_folded: bool,
}

impl Grams {
    fn walk(&mut self, hir: &Hir) {
        match hir.kind() {
            // They take no room in the text.
            HirKind::Empty | HirKind::Look(_) => {}
            HirKind::Literal(literal) => self.add(&literal.0, false),
            HirKind::Class(class) => self.class(class),
            HirKind::Capture(capture) => self.walk(&capture.sub),
            HirKind::Concat(subs) => subs.iter().for_each(|sub| self.walk(sub)),
            HirKind::Repetition(repetition) => {
                self.end();
                if repetition.min > 0 {
                    self.walk(&repetition.sub);
                    self.end();
                }
            }
            // Each match has one of them, and nobody knows which.
            HirKind::Alternation(_) => self.end(),
        }
    }

    fn class(&mut self, class: &Class) {
        let characters: Vec<char> = match class {
            Class::Unicode(class) => {
                class.iter().flat_map(|range| range.start()..=range.end()).take(CHARACTERS_MAX).collect()
            }
            Class::Bytes(class) => {
                let bytes: Vec<u8> =
                    class.iter().flat_map(|range| range.start()..=range.end()).take(CHARACTERS_MAX).collect();
                match bytes[..] {
                    [byte] => return self.add(&[byte], false),
                    // A byte beyond ASCII is no character.
                    _ => bytes.into_iter().map(|byte| if byte.is_ascii() { byte.into() } else { '\u{fffd}' }).collect(),
                }
            }
        };
        let plain = |c: &char| match c {
            '\u{212a}' => 'k',
            '\u{17f}' => 's',
            c => c.to_ascii_lowercase(),
        };
        match &characters[..] {
            [c] => self.add(c.encode_utf8(&mut [0; 4]).as_bytes(), false),
            [first, rest @ ..] if plain(first).is_ascii() && rest.iter().all(|c| plain(c) == plain(first)) => {
                let is_folded = characters.iter().any(|c| !c.is_ascii());
                self.add(plain(first).encode_utf8(&mut [0; 4]).as_bytes(), is_folded);
            }
            _ => self.end(),
        }
    }

    /// The match goes on with this text.
    fn add(&mut self, text: &[u8], is_folded: bool) {
        let both = (self.is_folded && !text.is_ascii()) || (is_folded && !self.text.is_ascii());
        if both {
            self.end();
        }
        self.is_folded |= is_folded;
        self.text.extend(text);
    }

    /// Nothing is known of what follows.
    fn end(&mut self) {
        bits_of_text(&self.text, |bit| self.bits.push(bit));
        self.text.clear();
        self.is_folded = false;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PatternBuilder, Syntax};
    use super::*;

    fn of(syntax: Syntax, ignore_case: bool, text: &str) -> Vec<u32> {
        let mut builder = PatternBuilder::new(syntax);
        builder.ignore_case(ignore_case);
        builder.build(text.as_bytes()).unwrap().signature_bits().to_vec()
    }

    fn texts(texts: &[&str]) -> Vec<u32> {
        let mut bits = Vec::new();
        texts.iter().for_each(|text| bits_of_text(text.as_bytes(), |bit| bits.push(bit)));
        bits.sort_unstable();
        bits.dedup();
        bits
    }

    #[test]
    fn what_has_to_be_there_is_known() {
        use Syntax::{Glob, Regex, Substring};
        assert_eq!(of(Substring, false, "Shot_01"), texts(&["shot_01"]));
        assert_eq!(of(Substring, true, "Shot_01"), texts(&["shot_01"]));
        assert_eq!(of(Substring, true, "kiosk"), texts(&["kiosk"]));
        assert_eq!(of(Glob, false, "shot*.exr"), texts(&["shot", ".exr"]));
        assert_eq!(of(Regex, false, "^(camera|session)_0*7+frame[0-9]{4}(xyzw)+$"), texts(&["frame", "xyzw"]));
        assert_eq!(of(Regex, false, "x?abcd|efgh"), [0; 0]);
        assert_eq!(of(Regex, false, r"abcd\befgh"), texts(&["abcdefgh"]));
        assert_eq!(of(Regex, false, "(abcd)?efgh"), texts(&["efgh"]));
        assert_eq!(of(Regex, true, "\u{e9}tude"), texts(&["tude"]));
        assert_eq!(of(Regex, false, "\u{e9}tude"), texts(&["\u{e9}tude"]));
        assert_eq!(of(Substring, false, "abc"), [0; 0]);
        // Either of both kinds may be in a name: grams of both at once are in no signature.
        assert_eq!(of(Regex, false, "\u{212a}\u{e9}(?i)mask"), texts(&["\u{212a}\u{e9}ma"]));
    }
}
