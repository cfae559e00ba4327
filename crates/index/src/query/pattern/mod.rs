//! Patterns: what a name or a path has to look like. [`Pattern`] is one that is ready; [`PatternBuilder`] makes it.
//!
//! All three syntaxes become one expression over bytes (`regex_syntax::hir`), and that two automata: one for single names
//! and paths, and one that runs over the names' arena, where a zero byte is the end of a name. Neither of them takes longer than
//! linear time, whatever the pattern.
//!
//! Names need not be UTF-8. A class that has all characters beyond ASCII (`.`, `?`, `[^/]`) has single bytes beyond ASCII too, so
//! that such names are matched; and `(?-u:\xff)` in a regex names a byte. No automaton sees whether a name is UTF-8, in which a
//! character is one: where that matters, what it finds is looked at once more ([`Compiled::characters`]).
//!
//! A path has no slash in front, and yet is printed with one: so a slash with which a pattern begins is also the beginning of a path
//! (`hir::rooted`).

mod glob;
mod grams;
mod hir;

use std::fmt;
use std::sync::{Arc, OnceLock};

use adit_core::error::{ErrorKind, FsError, Result};
use memchr::memmem::Finder;
use regex_automata::dfa::dense;
use regex_automata::meta;
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::{MatchKind, dfa::StartKind};
use regex_syntax::hir::Hir;

/// Longest pattern, in bytes.
pub const PATTERN_LEN_MAX_BYTES: usize = 64 << 10;
/// Most memory that the program of a pattern takes, in bytes.
const PROGRAM_LEN_MAX_BYTES: usize = 10 << 20;
/// Most memory of a table of all its states, and of making it, in bytes. Beyond that, states are made as they are met.
const TABLE_LEN_MAX_BYTES: usize = 4 << 20;
const TABLE_WORK_MAX_BYTES: usize = 16 << 20;

/// How a pattern is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syntax {
    /// Bytes that occur somewhere. A slash in front of them is one of the path, or its beginning: `/a` finds `a/b` and `b/a`.
    Substring,
    /// A glob that matches the whole: `?` one character, `*` any but `/`, `**` between slashes any number of directories,
    /// `[a-z]`, `[!a-z]`, `{a,b}`; a backslash takes the meaning from the next character.
    Glob,
    /// A regular expression in the syntax of the crate `regex`, that matches somewhere; `.` is any character, a line feed too.
    /// A slash with which it begins is that of a substring; behind `^` it says nothing: `^/a` is `^a`.
    Regex,
}

/// What a pattern is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// The last name of a path.
    Name,
    /// All of the path below the root, names with a slash between, none in front. A pattern may begin with one all the same.
    Path,
}

/// Makes a [`Pattern`].
#[derive(Clone, Debug)]
pub struct PatternBuilder {
    syntax: Syntax,
    ignore_case: bool,
    full_path: bool,
}

impl PatternBuilder {
    /// Of a pattern in this syntax, that tells large letters from small ones.
    pub fn new(syntax: Syntax) -> PatternBuilder {
        PatternBuilder { syntax, ignore_case: false, full_path: false }
    }

    /// Whether large letters are small ones: by Unicode's simple folding, one character for one; of bytes that are not UTF-8,
    /// and where a regex says `(?-u)`, by that of ASCII.
    pub fn ignore_case(&mut self, yes: bool) -> &mut PatternBuilder {
        self.ignore_case = yes;
        self
    }

    /// Whether it is compared with whole paths also if it has no slash.
    pub fn full_path(&mut self, yes: bool) -> &mut PatternBuilder {
        self.full_path = yes;
        self
    }

    /// The pattern `text`.
    ///
    /// # Errors
    /// `InvalidInput` with a [`BadPattern`] as the cause.
    pub fn build(&self, text: &[u8]) -> Result<Pattern> {
        let read = self.read(text).and_then(|one| self.compile(text, one.target, one.literal, one.hir));
        read.map_err(|bad| bad_pattern(text, bad))
    }

    /// The pattern that matches what any of `texts` does, each by itself; without any of them it matches nothing. All are one automaton: it takes
    /// as long as one of them, as long as that is not too large. If one is compared with paths, so is the whole, and the others with the last
    /// name of these.
    ///
    /// # Errors
    /// As [`PatternBuilder::build`]; `InvalidInput` also for regular expressions of which some have a slash and some do not.
    pub fn build_any<T: AsRef<[u8]>>(&self, texts: &[T]) -> Result<Pattern> {
        if let [text] = texts {
            return self.build(text.as_ref());
        }
        let each = |text: &T| self.read(text.as_ref()).map_err(|bad| bad_pattern(text.as_ref(), bad));
        let all = texts.iter().map(each).collect::<Result<Vec<Read>>>()?;
        let text = texts.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(&b'\n');
        let target = if all.iter().any(|one| one.target == Target::Path) { Target::Path } else { Target::Name };
        let hirs = all.into_iter().map(|one| match target {
            Target::Name => Some(one.hir),
            Target::Path => one.as_path,
        });
        let hirs = hirs.collect::<Option<Vec<Hir>>>().ok_or(BadPattern::Mixed);
        let compiled = hirs.and_then(|hirs| self.compile(&text, target, None, Hir::alternation(hirs)));
        compiled.map_err(|bad| bad_pattern(&text, bad))
    }

    /// What one text says.
    fn read(&self, text: &[u8]) -> Result<Read, BadPattern> {
        if text.len() > PATTERN_LEN_MAX_BYTES {
            return Err(BadPattern::TooLong);
        }
        // In a path, where it is compared with the last name alone; a regex cannot be told where that begins.
        let mut as_path = None;
        let mut target = if self.full_path || text.contains(&b'/') { Target::Path } else { Target::Name };
        let (mut literal, hir) = match self.syntax {
            Syntax::Substring if self.ignore_case => {
                as_path = Some(hir::in_last_name(hir::folded(text)));
                (None, hir::folded(text))
            }
            Syntax::Substring => {
                as_path = Some(hir::in_last_name(Hir::literal(text)));
                let literal = (!text.starts_with(b"/")).then(|| Finder::new(text).into_owned());
                (literal, Hir::literal(text))
            }
            Syntax::Glob => {
                let text = std::str::from_utf8(text).map_err(|_| BadPattern::NotUtf8)?;
                let glob = glob::Glob::parse(text)?;
                // Below any directories: that is to say of the last name alone.
                if glob.is_of_names() && !self.full_path {
                    target = Target::Name;
                }
                if target == Target::Name {
                    as_path = Some(match (glob.is_of_names(), text) {
                        (true, _) => glob.hir(Target::Path, self.ignore_case),
                        // No name is empty.
                        (false, "") => Hir::fail(),
                        (false, _) => glob::Glob::parse(&format!("**/{text}"))?.hir(Target::Path, self.ignore_case),
                    });
                }
                (glob.literal(target, self.ignore_case), glob.hir(target, self.ignore_case))
            }
            Syntax::Regex => {
                let text = std::str::from_utf8(text).map_err(|_| BadPattern::NotUtf8)?;
                (None, hir::parse(text, self.ignore_case)?)
            }
        };
        let hir = match (self.syntax, target) {
            (Syntax::Substring | Syntax::Regex, Target::Path) => hir::rooted(&hir::open(&hir)),
            _ => hir::open(&hir),
        };
        if literal.as_ref().is_some_and(|literal| literal.needle().contains(&0)) {
            literal = None;
        }
        let as_path = match target {
            Target::Path => Some(hir.clone()),
            Target::Name => as_path.map(|hir| hir::open(&hir)),
        };
        Ok(Read { target, literal, hir, as_path })
    }

    fn compile(
        &self,
        text: &[u8],
        target: Target,
        literal: Option<Finder<'static>>,
        hir: Hir,
    ) -> Result<Pattern, BadPattern> {
        let characters = hir;
        let hir = hir::with_bytes(&characters);
        let whole = regex(&hir, b'\n')?;
        let characters = if characters == hir { None } else { Some(regex(&characters, b'\n')?) };
        // A line of a name is not one of the arena.
        let arena = match target {
            Target::Name if !hir.properties().look_set().contains_anchor_line() => Some(regex(&hir::by_name(&hir), 0)?),
            _ => None,
        };
        let signature_bits = if target == Target::Name { grams::signature_bits(&hir) } else { Vec::new() };
        let (syntax, ignore_case) = (self.syntax, self.ignore_case);
        let text = text.to_owned();
        Ok(Pattern(Arc::new(Compiled {
            text,
            syntax,
            ignore_case,
            target,
            literal,
            hir,
            signature_bits,
            whole,
            characters,
            arena,
            table: OnceLock::new(),
        })))
    }
}

/// What a text says before anything is made of it.
struct Read {
    target: Target,
    literal: Option<Finder<'static>>,
    /// For what it is compared with.
    hir: Hir,
    /// The same for paths; none if that cannot be said.
    as_path: Option<Hir>,
}

fn bad_pattern(text: &[u8], bad: BadPattern) -> FsError {
    let shown = String::from_utf8_lossy(&text[..text.len().min(200)]);
    FsError::new(ErrorKind::InvalidInput).on("read the pattern", format!("{shown:?}")).because(bad)
}

/// A pattern that is ready. Cheap to clone, and to be used from any number of threads.
#[derive(Clone)]
pub struct Pattern(Arc<Compiled>);

struct Compiled {
    text: Vec<u8>,
    syntax: Syntax,
    ignore_case: bool,
    target: Target,
    /// What it is, if it is nothing but that these bytes occur somewhere.
    literal: Option<Finder<'static>>,
    hir: Hir,
    /// What the signature of a name has that is matched.
    signature_bits: Vec<u32>,
    whole: meta::Regex,
    /// What matches UTF-8, if that is less than what the others do, for which a character may be several.
    characters: Option<meta::Regex>,
    arena: Option<meta::Regex>,
    table: OnceLock<Option<dense::DFA<Vec<u32>>>>,
}

impl Compiled {
    /// Whether a text that the automata match is matched.
    fn has_characters(&self, text: &[u8]) -> bool {
        self.characters.as_ref().is_none_or(|regex| std::str::from_utf8(text).is_err() || regex.is_match(text))
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.0.text);
        f.debug_struct("Pattern").field("text", &text).field("syntax", &self.0.syntax).finish_non_exhaustive()
    }
}

impl Pattern {
    /// A substring, compared byte by byte. See [`PatternBuilder::build`] for errors.
    pub fn substring(text: &[u8]) -> Result<Pattern> {
        PatternBuilder::new(Syntax::Substring).build(text)
    }

    /// A glob. See [`PatternBuilder::build`] for errors.
    pub fn glob(text: &str) -> Result<Pattern> {
        PatternBuilder::new(Syntax::Glob).build(text.as_bytes())
    }

    /// A regular expression. See [`PatternBuilder::build`] for errors.
    pub fn regex(text: &str) -> Result<Pattern> {
        PatternBuilder::new(Syntax::Regex).build(text.as_bytes())
    }

    /// As it was written.
    pub fn text(&self) -> &[u8] {
        &self.0.text
    }

    /// How it was written.
    pub fn syntax(&self) -> Syntax {
        self.0.syntax
    }

    /// Whether large letters are small ones.
    pub fn is_case_ignored(&self) -> bool {
        self.0.ignore_case
    }

    /// What it is compared with.
    pub fn target(&self) -> Target {
        self.0.target
    }

    /// Whether a name or a path ([`Pattern::target`] says which) is matched. Whoever asks often has a [`Matcher`].
    pub fn is_match(&self, text: &[u8]) -> bool {
        match &self.0.literal {
            Some(literal) => literal.find(text).is_some(),
            None => self.0.whole.is_match(text) && self.0.has_characters(text),
        }
    }

    /// Whether what the [table](Pattern::table) finds is a match. Else it is as a rule, and [`Pattern::is_match`] decides: in UTF-8 the table
    /// takes a character for several.
    pub fn is_exact(&self) -> bool {
        self.0.characters.is_none()
    }

    /// Whether the path, and so its last name, is matched.
    pub fn is_path_match(&self, path: &[u8]) -> bool {
        match self.0.target {
            Target::Path => self.is_match(path),
            Target::Name => self.is_match(last_name(path)),
        }
    }

    /// Compares one text after the other.
    pub fn matcher(&self) -> Matcher {
        Matcher { cache: self.0.whole.create_cache(), pattern: self.clone() }
    }

    /// The bytes whose occurrence is all that is asked for, if that is so.
    pub fn literal(&self) -> Option<&[u8]> {
        self.finder().map(Finder::needle)
    }

    /// Whether it has bytes to look for, which is faster than to take one byte of a name after the other.
    pub fn has_landmarks(&self) -> bool {
        self.0.literal.is_some() || self.0.arena.as_ref().is_some_and(meta::Regex::is_accelerated)
    }

    pub(super) fn finder(&self) -> Option<&Finder<'static>> {
        self.0.literal.as_ref()
    }

    /// The bits that the signature of each name has that is matched; none if it is compared with paths.
    pub(crate) fn signature_bits(&self) -> &[u32] {
        &self.0.signature_bits
    }

    /// What finds names in the arena; `None` if that cannot be done there.
    pub(super) fn arena(&self) -> Option<&meta::Regex> {
        self.0.arena.as_ref()
    }

    /// The pattern as a table of states that is searched with from the beginning of a text, without anchor (`StartKind::Unanchored`);
    /// where a match state is entered, or one follows the text's end, the text is matched, if [`Pattern::is_exact`]. `None` if the table is too
    /// large. Made at the first question.
    pub fn table(&self) -> Option<&dense::DFA<Vec<u32>>> {
        self.0.table.get_or_init(|| table(&self.0.hir)).as_ref()
    }
}

/// The last name of a path.
pub(crate) fn last_name(path: &[u8]) -> &[u8] {
    memchr::memrchr(b'/', path).map_or(path, |at| &path[at + 1..])
}

/// Whether a name that is longer ends with `end`, large letters as small ones: by Unicode's simple folding, as in a [`PatternBuilder`].
pub(super) fn ends_with_folded(name: &[u8], end: &[u8]) -> bool {
    let (Some(from), true) = (name.len().checked_sub(end.len()), end.is_ascii()) else {
        return ends_with_characters(name, end);
    };
    from > 0 && name[from..].eq_ignore_ascii_case(end)
}

/// The same of text beyond ASCII, of which the two cases may differ in length.
fn ends_with_characters(name: &[u8], end: &[u8]) -> bool {
    let (Ok(name), Ok(end)) = (std::str::from_utf8(name), std::str::from_utf8(end)) else {
        return name.len() > end.len() && name[name.len() - end.len()..].eq_ignore_ascii_case(end);
    };
    let mut rest = name.chars().rev();
    let same = end.chars().rev().all(|c| rest.next().is_some_and(|other| hir::is_same_letter(c, other)));
    same && rest.next().is_some()
}

/// A pattern with the memory that comparing takes: for one thread.
pub struct Matcher {
    pattern: Pattern,
    cache: meta::Cache,
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Matcher").field(&self.pattern).finish()
    }
}

impl Matcher {
    /// The pattern.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// As [`Pattern::is_match`].
    pub fn is_match(&mut self, text: &[u8]) -> bool {
        match &self.pattern.0.literal {
            Some(literal) => literal.find(text).is_some(),
            None => {
                let input = regex_automata::Input::new(text).earliest(true);
                self.pattern.0.whole.search_half_with(&mut self.cache, &input).is_some()
                    && self.pattern.0.has_characters(text)
            }
        }
    }
}

fn regex(hir: &Hir, line_terminator: u8) -> Result<meta::Regex, BadPattern> {
    // Without any, where a match ends is not told.
    let config = meta::Config::new()
        .utf8_empty(false)
        .which_captures(WhichCaptures::Implicit)
        .nfa_size_limit(Some(PROGRAM_LEN_MAX_BYTES))
        .line_terminator(line_terminator);
    meta::Builder::new().configure(config).build_from_hir(hir).map_err(|e| match e.size_limit() {
        Some(_) => BadPattern::TooLarge,
        None => BadPattern::Syntax(e.to_string()),
    })
}

fn table(hir: &Hir) -> Option<dense::DFA<Vec<u32>>> {
    let config = thompson::Config::new()
        .utf8(false)
        .which_captures(WhichCaptures::None)
        .nfa_size_limit(Some(PROGRAM_LEN_MAX_BYTES));
    let nfa = thompson::Compiler::new().configure(config).build_from_hir(hir).ok()?;
    let config = dense::Config::new()
        .accelerate(false)
        .match_kind(MatchKind::LeftmostFirst)
        .start_kind(StartKind::Unanchored)
        .dfa_size_limit(Some(TABLE_LEN_MAX_BYTES))
        .determinize_size_limit(Some(TABLE_WORK_MAX_BYTES));
    dense::Builder::new().configure(config).build_from_nfa(&nfa).ok()
}

/// Why a pattern is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadPattern {
    /// It is too long.
    #[error("it is longer than {PATTERN_LEN_MAX_BYTES} bytes; search with several shorter ones")]
    TooLong,
    /// What it is made into is too large.
    #[error(
        "it takes more than {} MiB when it is made ready; use smaller numbers of repetitions, (?-u) where bytes will do, or fewer patterns at \
         once",
        PROGRAM_LEN_MAX_BYTES >> 20
    )]
    TooLarge,
    /// A glob or a regex is not text.
    #[error("a glob or a regex has to be UTF-8; search for a substring, or write the bytes in a regex, as (?-u:\\xff)")]
    NotUtf8,
    /// A glob cannot be understood.
    #[error("at character {at}: {what}")]
    Glob {
        /// Number of the character, from 1.
        at: usize,
        /// What is wrong there, and what would be right.
        what: &'static str,
    },
    /// Of several regexes some are compared with names and some with paths.
    #[error(
        "some of these regular expressions have a slash, and some do not; search twice, or compare all with the whole path"
    )]
    Mixed,
    /// A regex cannot be understood.
    #[error("{0}; search for a substring if it is meant literally")]
    Syntax(String),
}
