//! Globs.
//!
//! Own ones, because those of the crate `globset` see `?` and `[é]` as bytes, while they are characters to who writes them.

use memchr::memmem::Finder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, Look, Repetition};

use super::hir::character;
use super::{BadPattern, Target};

/// What `[:name:]` means in a class, as a regular expression: as a shell has it, for all of Unicode.
const EXPRESSIONS: [(&str, &str); 12] = [
    ("alnum", r"[\p{Alphabetic}\p{Nd}]"),
    ("alpha", r"\p{Alphabetic}"),
    ("blank", r"[\t\p{Zs}]"),
    ("cntrl", r"\p{Cc}"),
    ("digit", "[0-9]"),
    ("graph", r"[^\p{Z}\p{C}]"),
    ("lower", r"\p{Lowercase}"),
    ("print", r"[^\p{C}\p{Zl}\p{Zp}]"),
    ("punct", r"[\p{P}\p{S}]"),
    ("space", r"\s"),
    ("upper", r"\p{Uppercase}"),
    ("xdigit", "[0-9A-Fa-f]"),
];

/// So many braces one may lie in the other.
const NEST_MAX: usize = 32;

/// A part of a glob.
#[derive(Clone, PartialEq, Debug)]
enum Part {
    Character(char),
    /// `?`
    One,
    /// `*`
    Any,
    /// `**/`, at the beginning or behind a slash.
    Directories,
    /// `/**` at the end; or `**` alone.
    Below,
    /// `[a-z]`; and whether that is what it is not.
    Class(Vec<(char, char)>, bool),
    /// `{a,b}`
    Either(Vec<Vec<Part>>),
}

/// A glob, read.
#[derive(Debug)]
pub struct Glob {
    parts: Vec<Part>,
    /// Whether it begins with `**/` and has no slash behind that.
    is_of_names: bool,
}

impl Glob {
    pub fn parse(text: &str) -> Result<Glob, BadPattern> {
        // Paths have neither slash nor dot in front; a glob that has one says the same as without.
        let below = text.trim_start_matches("./");
        let characters: Vec<char> = below.strip_prefix('/').unwrap_or(below).chars().collect();
        let mut reader = Reader { offset: text.chars().count() - characters.len(), characters, at: 0 };
        if text.ends_with('/') && !text.ends_with("\\/") {
            return Err(
                reader.bad(reader.characters.len().saturating_sub(1), "a path does not end with a slash; leave it out")
            );
        }
        let mut parts = reader.parts(0, true)?;
        let rest = text.strip_prefix("**/").unwrap_or("/");
        let is_of_names = !rest.contains('/') && rest != "**" && !rest.is_empty();
        if is_of_names {
            parts.remove(0);
        }
        Ok(Glob { parts, is_of_names })
    }

    /// Whether it asks for the last name alone.
    pub fn is_of_names(&self) -> bool {
        self.is_of_names
    }

    /// The bytes whose occurrence in a name is all that it asks for, if that is so: `*bytes*`.
    pub fn literal(&self, target: Target, ignore_case: bool) -> Option<Finder<'static>> {
        let [Part::Any, literal @ .., Part::Any] = &self.parts[..] else { return None };
        if ignore_case || target != Target::Name {
            return None;
        }
        let character = |part: &Part| if let Part::Character(c) = part { Some(*c) } else { None };
        let literal: Option<String> = literal.iter().map(character).collect();
        literal.map(|literal| Finder::new(literal.as_bytes()).into_owned())
    }

    /// What it means. In a name no slash can be met: what is any in front or behind need not be looked at.
    pub fn hir(&self, target: Target, ignore_case: bool) -> Hir {
        let mut parts = &self.parts[..];
        let (mut start, mut end) = (Hir::look(Look::Start), Hir::look(Look::End));
        if target == Target::Name {
            if let [Part::Any | Part::Below, rest @ ..] = parts {
                (parts, start) = (rest, Hir::empty());
            }
            if let [rest @ .., Part::Any | Part::Below] = parts {
                (parts, end) = (rest, Hir::empty());
            }
        } else if self.is_of_names {
            start = Hir::concat(vec![start, part(&Part::Directories, true, ignore_case)]);
        }
        Hir::concat(vec![start, all(parts, true, ignore_case), end])
    }
}

/// What parts mean, one behind the other; `first` if they are at the beginning.
fn all(parts: &[Part], first: bool, ignore_case: bool) -> Hir {
    let each = parts.iter().enumerate().map(|(at, p)| part(p, first && at == 0, ignore_case));
    Hir::concat(each.collect())
}

fn part(part: &Part, first: bool, ignore_case: bool) -> Hir {
    match part {
        Part::Character(c) => character(*c, ignore_case),
        Part::One => class(&[('/', '/')], true, false),
        Part::Any => many(class(&[('/', '/')], true, false)),
        Part::Directories => {
            let directories = Hir::concat(vec![many(class(&[], true, false)), Hir::literal(*b"/")]);
            Hir::repetition(Repetition { min: 0, max: Some(1), greedy: true, sub: Box::new(directories) })
        }
        // What is below a directory has a name.
        Part::Below if first => many(class(&[], true, false)),
        Part::Below => {
            let any = class(&[], true, false);
            Hir::repetition(Repetition { min: 1, max: None, greedy: true, sub: Box::new(any) })
        }
        Part::Class(ranges, negated) => class(ranges, *negated, ignore_case),
        Part::Either(each) => Hir::alternation(each.iter().map(|parts| all(parts, first, ignore_case)).collect()),
    }
}

fn many(hir: Hir) -> Hir {
    Hir::repetition(Repetition { min: 0, max: None, greedy: true, sub: Box::new(hir) })
}

/// One character of these, or none of them; a slash is in none that names ranges.
fn class(ranges: &[(char, char)], negated: bool, ignore_case: bool) -> Hir {
    let mut class = ClassUnicode::new(ranges.iter().map(|(from, to)| ClassUnicodeRange::new(*from, *to)));
    if ignore_case {
        class.case_fold_simple();
    }
    if negated {
        class.negate();
    }
    if !ranges.is_empty() {
        class.difference(&ClassUnicode::new([ClassUnicodeRange::new('/', '/')]));
    }
    Hir::class(Class::Unicode(class))
}

struct Reader {
    characters: Vec<char>,
    at: usize,
    /// How many characters were before the first.
    offset: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    fn bad(&self, at: usize, what: &'static str) -> BadPattern {
        BadPattern::Glob { at: self.offset + at + 1, what }
    }

    /// Parts up to the end, or, within braces, up to a comma or the closing one. `begins`: before them there is nothing, or a slash.
    fn parts(&mut self, depth: usize, begins: bool) -> Result<Vec<Part>, BadPattern> {
        let mut parts = Vec::new();
        while let Some(c) = self.peek() {
            let start = self.at;
            match c {
                ',' | '}' if depth > 0 => break,
                '}' => return Err(self.bad(start, "nothing was opened that this closes; write \\} for the character")),
                _ => self.at += 1,
            }
            let begins = parts.last().map_or(begins, |part| matches!(part, Part::Character('/') | Part::Directories));
            parts.push(match c {
                '?' => Part::One,
                '*' => self.stars(depth, begins),
                '[' => self.class(start)?,
                '{' => self.either(start, depth + 1, begins)?,
                '\\' => {
                    let what = "the backslash has nothing behind it; write \\\\ for the character";
                    Part::Character(self.next().ok_or_else(|| self.bad(start, what))?)
                }
                c => Part::Character(c),
            });
        }
        Ok(parts)
    }

    /// Behind a star: how many there are, and whether they are all between two slashes.
    fn stars(&mut self, depth: usize, begins: bool) -> Part {
        let start = self.at;
        while self.peek() == Some('*') {
            self.at += 1;
        }
        if self.at - start != 1 || !begins {
            return Part::Any;
        }
        match self.peek() {
            Some('/') => {
                self.at += 1;
                Part::Directories
            }
            None => Part::Below,
            Some(',' | '}') if depth > 0 => Part::Below,
            Some(_) => Part::Any,
        }
    }

    /// Behind an opening bracket.
    fn class(&mut self, start: usize) -> Result<Part, BadPattern> {
        let unclosed = "the bracket is not closed; write \\[ for the character";
        let negated = matches!(self.peek(), Some('!' | '^'));
        self.at += usize::from(negated);
        let first = self.at;
        let mut ranges = Vec::new();
        loop {
            let c = self.next().ok_or_else(|| self.bad(start, unclosed))?;
            if c == ']' && self.at - 1 > first {
                return Ok(Part::Class(ranges, negated));
            }
            if c == '['
                && let Some(kind @ (':' | '.' | '=')) = self.peek()
            {
                ranges.extend(self.named(kind)?);
                continue;
            }
            let from = self.unescaped(c).ok_or_else(|| self.bad(start, unclosed))?;
            let is_range = self.peek() == Some('-') && self.characters.get(self.at + 1).is_some_and(|c| *c != ']');
            if !is_range {
                ranges.push((from, from));
                continue;
            }
            self.at += 1;
            let at = self.at;
            let to = self.next().and_then(|c| self.unescaped(c)).ok_or_else(|| self.bad(start, unclosed))?;
            if from > to {
                return Err(self.bad(at, "the range ends before it begins; turn it round"));
            }
            ranges.push((from, to));
        }
    }

    /// Within a class, behind `[` and at what is behind that: the characters that `[:name:]` means.
    fn named(&mut self, kind: char) -> Result<Vec<(char, char)>, BadPattern> {
        let start = self.at - 1;
        self.at += 1;
        let rest = &self.characters[self.at..];
        let len = rest.windows(2).position(|pair| *pair == [kind, ']']);
        let len =
            len.ok_or_else(|| self.bad(start, "the name of a class is not closed; write \\[ for the character"))?;
        let name: String = rest[..len].iter().collect();
        self.at += len + 2;
        let expression = EXPRESSIONS.iter().find(|(known, _)| kind == ':' && *known == name);
        let Some((_, expression)) = expression else {
            return Err(self.bad(start, "no class has that name; there are alnum, alpha, blank, cntrl, digit, graph, lower, print, punct, space, upper, xdigit"));
        };
        match regex_syntax::parse(expression).map(regex_syntax::hir::Hir::into_kind) {
            Ok(regex_syntax::hir::HirKind::Class(Class::Unicode(class))) => {
                Ok(class.iter().map(|range| (range.start(), range.end())).collect())
            }
            _ => Err(self.bad(start, "this class is not known; name its characters")),
        }
    }

    /// The character, or that behind the backslash.
    fn unescaped(&mut self, c: char) -> Option<char> {
        if c == '\\' { self.next() } else { Some(c) }
    }

    /// Behind an opening brace.
    fn either(&mut self, start: usize, depth: usize, begins: bool) -> Result<Part, BadPattern> {
        if depth > NEST_MAX {
            return Err(self.bad(start, "too many braces within each other"));
        }
        let mut each = Vec::new();
        loop {
            each.push(self.parts(depth, begins)?);
            match self.next() {
                Some(',') => {}
                Some(_) => return Ok(Part::Either(each)),
                None => return Err(self.bad(start, "the brace is not closed; write \\{ for the character")),
            }
        }
    }
}
