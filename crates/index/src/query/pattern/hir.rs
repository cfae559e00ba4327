//! Expressions over bytes: how they come to be, and what is made of them.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{
    Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition,
};

use super::BadPattern;

/// Of so many groups one may lie in the other.
const NEST_MAX: u32 = 200;

/// A regular expression as the crate `regex` writes it.
pub fn parse(text: &str, ignore_case: bool) -> Result<Hir, BadPattern> {
    ParserBuilder::new()
        .utf8(false)
        .dot_matches_new_line(true)
        .case_insensitive(ignore_case)
        .nest_limit(NEST_MAX)
        .build()
        .parse(text)
        .map_err(|e| BadPattern::Syntax(words(&e)))
}

/// What is wrong with a regex, without the picture of where.
fn words(e: &regex_syntax::Error) -> String {
    match e {
        regex_syntax::Error::Parse(e) => format!("{} at byte {}", e.kind(), e.span().start.offset),
        regex_syntax::Error::Translate(e) => format!("{} at byte {}", e.kind(), e.span().start.offset),
        e => e.to_string(),
    }
}

/// These bytes, in large or small letters.
pub fn folded(text: &[u8]) -> Hir {
    match std::str::from_utf8(text) {
        Ok(text) => Hir::concat(text.chars().map(|c| character(c, true)).collect()),
        Err(_) => Hir::concat(text.iter().map(|byte| either_byte(*byte)).collect()),
    }
}

/// A character, or that in either case.
pub fn character(c: char, ignore_case: bool) -> Hir {
    let mut class = ClassUnicode::new([ClassUnicodeRange::new(c, c)]);
    if ignore_case {
        class.case_fold_simple();
    }
    Hir::class(Class::Unicode(class))
}

/// Whether two characters are one, or one letter in its cases.
pub fn is_same_letter(one: char, other: char) -> bool {
    let class = || {
        let mut class = ClassUnicode::new([ClassUnicodeRange::new(one, one)]);
        class.case_fold_simple();
        class.iter().any(|range| (range.start()..=range.end()).contains(&other))
    };
    one == other || class()
}

fn either_byte(byte: u8) -> Hir {
    let both = [byte.to_ascii_lowercase(), byte.to_ascii_uppercase()];
    Hir::class(Class::Bytes(ClassBytes::new(both.map(|byte| ClassBytesRange::new(byte, byte)))))
}

/// The expression for UTF-8 without a zero byte, without groups. For other texts there is [`with_bytes`].
pub fn open(hir: &Hir) -> Hir {
    match hir.kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) if literal.0.contains(&0) => Hir::fail(),
        HirKind::Literal(literal) => Hir::literal(literal.0.clone()),
        HirKind::Class(class) => open_class(class),
        HirKind::Look(look) => Hir::look(*look),
        HirKind::Repetition(repetition) => open_repetition(repetition),
        HirKind::Capture(capture) => open(&capture.sub),
        HirKind::Concat(subs) => Hir::concat(subs.iter().map(open).collect()),
        HirKind::Alternation(subs) => Hir::alternation(subs.iter().map(open).collect()),
    }
}

fn open_class(class: &Class) -> Hir {
    match class {
        Class::Bytes(class) => {
            let mut class = class.clone();
            class.difference(&ClassBytes::new([ClassBytesRange::new(0, 0)]));
            Hir::class(Class::Bytes(class))
        }
        Class::Unicode(class) => {
            let mut characters = class.clone();
            characters.difference(&ClassUnicode::new([ClassUnicodeRange::new('\0', '\0')]));
            Hir::class(Class::Unicode(characters))
        }
    }
}

/// Any number of characters, where that is any number of bytes, is that: in UTF-8 what follows begins at a character all the same, and the
/// automaton has one state instead of ten.
fn open_repetition(repetition: &Repetition) -> Hir {
    let any = bytes_of(repetition).filter(|_| repetition.min == 0);
    any.unwrap_or_else(|| Hir::repetition(repetition.with(open(&repetition.sub))))
}

/// As a repetition of bytes, if it is one of so many characters as there are, of a class with all beyond ASCII.
fn bytes_of(repetition: &Repetition) -> Option<Hir> {
    if let (HirKind::Class(Class::Unicode(class)), 0 | 1, None) =
        (repetition.sub.kind(), repetition.min, repetition.max)
        && has_all_beyond_ascii(class)
    {
        let ascii = class.iter().filter(|range| range.start().is_ascii());
        let ascii = ascii.map(|range| ClassBytesRange::new(range.start() as u8, (range.end() as u32).min(0x7f) as u8));
        let mut bytes = ClassBytes::new(ascii.chain([ClassBytesRange::new(0x80, 0xff)]));
        bytes.difference(&ClassBytes::new([ClassBytesRange::new(0, 0)]));
        return Some(Hir::repetition(repetition.with(Hir::class(Class::Bytes(bytes)))));
    }
    None
}

/// The expression for texts that need not be UTF-8, of one that [`open`] has made: a class that has all characters beyond ASCII has single
/// bytes beyond ASCII, too. So it also matches UTF-8 of which it takes a character for several: the other one decides that.
pub fn with_bytes(hir: &Hir) -> Hir {
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) if has_all_beyond_ascii(class) => {
            let bytes = ClassBytes::new([ClassBytesRange::new(0x80, 0xff)]);
            Hir::alternation(vec![hir.clone(), Hir::class(Class::Bytes(bytes))])
        }
        HirKind::Repetition(repetition) => {
            bytes_of(repetition).unwrap_or_else(|| Hir::repetition(repetition.with(with_bytes(&repetition.sub))))
        }
        HirKind::Concat(subs) => Hir::concat(subs.iter().map(with_bytes).collect()),
        HirKind::Alternation(subs) => Hir::alternation(subs.iter().map(with_bytes).collect()),
        _ => hir.clone(),
    }
}

fn has_all_beyond_ascii(class: &ClassUnicode) -> bool {
    class.iter().any(|range| range.start() <= '\u{80}' && range.end() == char::MAX)
}

/// The expression for paths, which have no slash in front: a slash that it begins with is also the beginning of a path, and one behind
/// the beginning is that alone. What only may begin with a slash (`/?a`, `.*/a`) stays as it is.
pub fn rooted(hir: &Hir) -> Hir {
    match hir.kind() {
        HirKind::Alternation(subs) => Hir::alternation(subs.iter().map(rooted).collect()),
        HirKind::Concat(subs) => match &subs[..] {
            [first, rest @ ..] if *first.kind() == HirKind::Look(Look::Start) => {
                Hir::concat(vec![first.clone(), below(&Hir::concat(rest.to_vec()))])
            }
            [first, rest @ ..] => Hir::concat([&[rooted(first)], rest].concat()),
            [] => hir.clone(),
        },
        HirKind::Literal(literal) if literal.0.starts_with(b"/") => {
            let slash = Hir::alternation(vec![Hir::look(Look::Start), Hir::literal(*b"/")]);
            Hir::concat(vec![slash, Hir::literal(&literal.0[1..])])
        }
        _ => hir.clone(),
    }
}

/// What is behind the beginning of a path, where no slash can be: without the one that it begins with.
fn below(hir: &Hir) -> Hir {
    match hir.kind() {
        HirKind::Alternation(subs) => Hir::alternation(subs.iter().map(below).collect()),
        HirKind::Concat(subs) => match &subs[..] {
            [first, rest @ ..] => Hir::concat([&[below(first)], rest].concat()),
            [] => hir.clone(),
        },
        HirKind::Literal(literal) => Hir::literal(literal.0.strip_prefix(b"/").unwrap_or(&literal.0)),
        _ => hir.clone(),
    }
}

/// The expression for paths whose last name has in it what `hir` says, which has neither slash nor anchor.
pub fn in_last_name(hir: Hir) -> Hir {
    let mut rest = ClassBytes::new([ClassBytesRange::new(0, 0xff)]);
    rest.difference(&ClassBytes::new([ClassBytesRange::new(b'/', b'/')]));
    let rest = Hir::class(Class::Bytes(rest));
    let rest = Hir::repetition(Repetition { min: 0, max: None, greedy: true, sub: Box::new(rest) });
    Hir::concat(vec![hir, rest, Hir::look(Look::End)])
}

/// The expression for many names with zero bytes between: their beginnings and ends are those of lines that end with zero bytes.
pub fn by_name(hir: &Hir) -> Hir {
    match hir.kind() {
        HirKind::Look(Look::Start) => Hir::look(Look::StartLF),
        HirKind::Look(Look::End) => Hir::look(Look::EndLF),
        HirKind::Repetition(repetition) => Hir::repetition(repetition.with(by_name(&repetition.sub))),
        HirKind::Concat(subs) => Hir::concat(subs.iter().map(by_name).collect()),
        HirKind::Alternation(subs) => Hir::alternation(subs.iter().map(by_name).collect()),
        _ => hir.clone(),
    }
}
