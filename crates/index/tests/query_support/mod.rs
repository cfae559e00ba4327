//! Questions by chance, and their answers from a list of paths.
#![allow(dead_code)] // No test uses all of it.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use adit_core::types::Kind;
use adit_index::query::{Order, Pattern, PatternBuilder, Query, Syntax};
use adit_index::{NodeId, Segment};
use adit_testkit::Rng;
use regex_automata::meta;
use regex_automata::util::syntax;

use crate::support::{Item, Model, items};

/// What an error and its causes say.
pub fn said(e: &dyn std::error::Error) -> String {
    let mut words = e.to_string();
    let mut cause = e.source();
    while let Some(e) = cause {
        words += &format!(": {e}");
        cause = e.source();
    }
    words
}

/// The node of a path that is there.
pub fn node(segment: &Segment, names: &[Vec<u8>]) -> NodeId {
    names.iter().fold(NodeId::ROOT, |at, name| segment.lookup(at, name).unwrap().unwrap())
}

#[derive(Clone, Debug)]
struct AskedPattern {
    syntax: Syntax,
    text: Vec<u8>,
    ignore_case: bool,
    full: bool,
    /// Of a regex: the same of bytes.
    regex: Option<meta::Regex>,
}

impl AskedPattern {
    fn pattern(&self) -> Pattern {
        PatternBuilder::new(self.syntax).ignore_case(self.ignore_case).full_path(self.full).build(&self.text).unwrap()
    }

    fn random(rng: &mut Rng, model: &Model) -> AskedPattern {
        let all: Vec<Vec<u8>> = model.keys().map(|names| names.join(&b'/')).collect();
        let path = rng.pick(&all).clone();
        let start = rng.below(path.len() as u64) as usize;
        let piece = path[start..path.len().min(start + rng.below(6) as usize)].to_vec();
        let (syntax, text) = match rng.below(3) {
            0 if rng.percent(20) => {
                let whole = &path[..path.len().min(piece.len() + 3)];
                (Syntax::Substring, [&b"/"[..], if rng.percent(50) { whole } else { &piece }].concat())
            }
            0 => (Syntax::Substring, if rng.percent(80) { piece } else { rng.pick(&[&b"zz"[..], b"n", b""]).to_vec() }),
            1 => (Syntax::Glob, glob(rng, &piece)),
            _ => (Syntax::Regex, rng.pick(REGEXES).0.into()),
        };
        let (ignore_case, full) = (rng.percent(30), rng.percent(20));
        let regex = (syntax == Syntax::Regex).then(|| {
            let syntax = syntax::Config::new().utf8(false).case_insensitive(ignore_case);
            let meant = REGEXES.iter().find(|(regex, _)| regex.as_bytes() == text).unwrap().1;
            let pattern = format!("(?s-u){meant}");
            meta::Builder::new().syntax(syntax).build(&pattern).unwrap()
        });
        AskedPattern { syntax, text, ignore_case, full, regex }
    }

    /// By the letter of the documentation.
    fn matches(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap();
        let of_path = self.full || self.text.contains(&b'/');
        let fold = |text: &[u8]| if self.ignore_case { text.to_ascii_lowercase() } else { text.to_vec() };
        let text = fold(if of_path { path } else { name });
        match self.syntax {
            Syntax::Substring => {
                let needle = fold(&self.text);
                // As a path is printed, with a slash in front: only a needle that begins with one can begin there.
                let text = if of_path { [&b"/"[..], &text].concat() } else { text };
                needle.is_empty() || text.windows(needle.len()).any(|part| part == needle)
            }
            Syntax::Glob => glob_matches(std::str::from_utf8(&fold(&self.text)).unwrap(), &text),
            Syntax::Regex => self.regex.as_ref().unwrap().is_match(if of_path { path } else { name }),
        }
    }
}

/// A glob that may match what this piece is of.
fn glob(rng: &mut Rng, piece: &[u8]) -> Vec<u8> {
    let mut glob = String::new();
    if rng.percent(70) {
        glob += *rng.pick(&["*", "**/", "**/*", "*/", "?", "**"]);
    }
    for c in String::from_utf8_lossy(piece).chars().filter(|c| *c != char::REPLACEMENT_CHARACTER) {
        match rng.below(8) {
            0 => glob.push('?'),
            1 => glob.push('*'),
            2 if c == '/' => glob += "/**/",
            3 if c != '/' && !"[]\\-^!{},".contains(c) => glob += &format!("[x{c}]"),
            4 => glob += "[!z]",
            5 if !",{}/".contains(c) && c != '\\' && !"*?[".contains(c) => glob += &format!("{{{c},b*}}"),
            _ if "*?[]{}\\".contains(c) => glob += &format!("\\{c}"),
            _ => glob.push(c),
        }
    }
    glob += *rng.pick(&["", "*", "*", "/**", "/*"]);
    // A path does not end with a slash.
    glob.trim_end_matches('/').to_owned().into_bytes()
}

/// Regexes that mean the same of bytes and of characters, and what they mean of a text without a slash in front.
const REGEXES: &[(&str, &str)] = &[
    ("n[0-9]$", "n[0-9]$"),
    ("^n1", "^n1"),
    ("a.b", "a.b"),
    ("^n(1|2)[0-9]?$", "^n(1|2)[0-9]?$"),
    ("[0-3]{2}", "[0-3]{2}"),
    ("n1.*/n2", "n1.*/n2"),
    ("/n3", "(^|/)n3"),
    ("^/n3", "^n3"),
    ("^/n1/n", "^n1/n"),
    ("^(/n1|/n2)/", "^(n1|n2)/"),
    ("^(/n1|n2)[0-9]*$", "^(n1|n2)[0-9]*$"),
    ("(/n1|n2$)", "((^|/)n1|n2$)"),
    ("/(n1|n2)/", "(^|/)(n1|n2)/"),
    ("^/?n1/", "^n1/"),
    ("/?n4$", "n4$"),
    ("/", "^|/"),
    ("^/$", "^$"),
    ("^[^/]+/n", "^[^/]+/n"),
    ("^n[0-9]+/n", "^n[0-9]+/n"),
    ("^$", "^$"),
    ("", ""),
    ("l{250}", "l{250}"),
    ("1$|2$", "1$|2$"),
    ("(n4/)+", "(n4/)+"),
    ("x?3", "x?3"),
    ("^[^/]*/[^/]*$", "^[^/]*/[^/]*$"),
    ("\\n", "\\n"),
    ("n.*3.*$", "n.*3.*$"),
];

/// Whether a glob matches, in the plainest way.
pub fn glob_matches(glob: &str, text: &[u8]) -> bool {
    let glob = glob.strip_prefix('/').unwrap_or(glob);
    let is_text = std::str::from_utf8(text).is_ok();
    each_choice(glob).iter().any(|glob| plain(&glob.chars().collect::<Vec<_>>(), text, true, is_text))
}

/// The glob without braces, once for each choice.
fn each_choice(glob: &str) -> Vec<String> {
    let mut escaped = false;
    let (mut start, mut depth, mut bounds) = (None, 0, Vec::new());
    for (at, c) in glob.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => {
                start = start.or(Some(at));
                depth += 1;
                if depth == 1 {
                    bounds.push(at);
                }
            }
            ',' if depth == 1 => bounds.push(at),
            '}' => {
                depth -= 1;
                if depth == 0 {
                    bounds.push(at);
                    let choices = bounds.windows(2).map(|pair| &glob[pair[0] + 1..pair[1]]);
                    let whole = choices.map(|one| format!("{}{one}{}", &glob[..bounds[0]], &glob[at + 1..]));
                    return whole.flat_map(|glob| each_choice(&glob)).collect();
                }
            }
            _ => {}
        }
    }
    vec![glob.to_owned()]
}

/// Where the first character of `text` ends, in each way to read it; of what is text as a whole there is one.
fn ends(text: &[u8], is_text: bool) -> Vec<(Option<char>, usize)> {
    let mut ends = Vec::new();
    for len in 1..=text.len().min(4) {
        if let Ok(one) = std::str::from_utf8(&text[..len]) {
            ends.push((one.chars().next(), len));
            break;
        }
    }
    if !is_text && text.first().is_some_and(|byte| !byte.is_ascii()) {
        ends.push((None, 1));
    }
    ends
}

fn plain(glob: &[char], text: &[u8], begins: bool, is_text: bool) -> bool {
    let one = |glob: &[char], is: &dyn Fn(Option<char>) -> bool| {
        ends(text, is_text)
            .into_iter()
            .any(|(c, len)| c != Some('/') && is(c) && plain(glob, &text[len..], false, is_text))
    };
    match glob {
        [] => text.is_empty(),
        ['*', '*', '/', rest @ ..] if begins => {
            let deeper = (0..text.len()).filter(|at| text[*at] == b'/');
            plain(rest, text, true, is_text) || deeper.into_iter().any(|at| plain(rest, &text[at + 1..], true, is_text))
        }
        ['*', '*'] if begins => !text.is_empty(),
        ['*', ..] => {
            let stars = glob.iter().take_while(|c| **c == '*').count();
            let end = text.iter().position(|byte| *byte == b'/').unwrap_or(text.len());
            (0..=end).any(|at| plain(&glob[stars..], &text[at..], false, is_text))
        }
        ['?', rest @ ..] => one(rest, &|_| true),
        ['[', rest @ ..] => {
            let close = rest.iter().skip(1 + usize::from(rest[0] == '!')).position(|c| *c == ']').unwrap();
            let close = close + 1 + usize::from(rest[0] == '!');
            let set = &rest[..close];
            match set {
                ['!', set @ ..] => one(&rest[close + 1..], &|c| c.is_none_or(|c| !set.contains(&c))),
                set => one(&rest[close + 1..], &|c| c.is_some_and(|c| set.contains(&c))),
            }
        }
        ['\\', c, rest @ ..] | [c, rest @ ..] => {
            let mut bytes = [0; 4];
            let bytes = c.encode_utf8(&mut bytes).as_bytes();
            text.starts_with(bytes) && plain(rest, &text[bytes.len()..], *c == '/', is_text)
        }
    }
}

/// A question.
#[derive(Clone, Debug)]
pub struct Asked {
    patterns: Vec<AskedPattern>,
    excludes: Vec<AskedPattern>,
    kinds: Option<Vec<Kind>>,
    extensions: Vec<&'static str>,
    sizes: Option<RangeInclusive<u64>>,
    times: Option<RangeInclusive<i64>>,
    start: Vec<Vec<u8>>,
    depths: Option<RangeInclusive<u32>>,
    limit: Option<u64>,
    order: Option<(Order, bool)>,
}

impl Asked {
    pub fn random(rng: &mut Rng, model: &Model) -> Asked {
        let all: Vec<(&Vec<Vec<u8>>, &Item)> = model.iter().collect();
        let dirs: Vec<_> = all.iter().filter(|(_, item)| item.kind == Kind::Directory).collect();
        let some = |rng: &mut Rng, percent| if rng.percent(percent) { 1 + rng.below(2) as usize } else { 0 };
        let patterns = if rng.percent(80) { 1 + rng.below(3) as usize / 2 } else { 0 };
        let (one, other) = (rng.pick(&all).1, rng.pick(&all).1);
        Asked {
            patterns: (0..patterns).map(|_| AskedPattern::random(rng, model)).collect(),
            excludes: (0..some(rng, 20)).map(|_| AskedPattern::random(rng, model)).collect(),
            kinds: rng.percent(20).then(|| vec![*rng.pick(&[Kind::File, Kind::Directory, Kind::Fifo]), Kind::Symlink]),
            extensions: (0..some(rng, 5)).map(|_| *rng.pick(&[".", "5", "\\"])).collect(),
            sizes: rng.percent(10).then(|| one.size.min(other.size)..=one.size.max(other.size)),
            times: rng.percent(10).then(|| one.mtime_ns.min(other.mtime_ns)..=one.mtime_ns.max(other.mtime_ns)),
            start: if rng.percent(30) { rng.pick(&dirs).0.clone() } else { Vec::new() },
            depths: rng.percent(20).then(|| rng.below(4) as u32..=rng.below(6) as u32),
            limit: rng.percent(20).then(|| rng.below(20)),
            order: rng
                .percent(40)
                .then(|| (*rng.pick(&[Order::Path, Order::Name, Order::Size, Order::Time]), rng.percent(50))),
        }
    }

    pub fn query(&self, segment: &Segment) -> Query {
        let mut query = Query::new().below(node(segment, &self.start));
        query = self.patterns.iter().fold(query, |query, pattern| query.pattern(pattern.pattern()));
        query = self.excludes.iter().fold(query, |query, pattern| query.exclude(pattern.pattern()));
        query = self.extensions.iter().fold(query, |query, extension| query.extension(extension.as_bytes()));
        if let Some(kinds) = &self.kinds {
            query = query.kinds(kinds);
        }
        if let Some(sizes) = &self.sizes {
            query = query.size(sizes.clone());
        }
        if let Some(times) = &self.times {
            query = query.mtime_ns(times.clone());
        }
        if let Some(depths) = &self.depths {
            query = query.depth(depths.clone());
        }
        if let Some(limit) = self.limit {
            query = query.limit(limit);
        }
        if let Some((order, reverse)) = self.order {
            query = query.sort(order, reverse);
        }
        query
    }

    /// Whether an entry is found, `start` names below the root being where the search begins.
    pub fn accepts(&self, names: &[Vec<u8>], item: &Item, start: usize) -> bool {
        let path = names.join(&b'/');
        let name = names.last().unwrap();
        let has = |extension: &&str| {
            let end = [b".", extension.trim_start_matches('.').as_bytes()].concat();
            name.len() > end.len() && name.ends_with(&end)
        };
        self.patterns.iter().all(|pattern| pattern.matches(&path))
            && !(start + 1..=names.len())
                .any(|len| self.excludes.iter().any(|exclude| exclude.matches(&names[..len].join(&b'/'))))
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&item.kind))
            && (self.extensions.is_empty() || self.extensions.iter().any(has))
            && self.sizes.as_ref().is_none_or(|sizes| item.kind != Kind::Directory && sizes.contains(&item.size))
            && self.times.as_ref().is_none_or(|times| times.contains(&item.mtime_ns))
    }
}

/// The paths that are to be found, in order.
pub fn expected(model: &Model, asked: &Asked) -> Vec<Vec<u8>> {
    let start = asked.start.len();
    let depths = asked.depths.clone().unwrap_or(1..=u32::MAX);
    let is_there = |names: &Vec<Vec<u8>>| {
        names.len() > start && names.starts_with(&asked.start) && depths.contains(&((names.len() - start) as u32))
    };
    let found = model.iter().filter(|(names, item)| is_there(names) && asked.accepts(names, item, start));
    let mut found: Vec<(&Vec<Vec<u8>>, &Item)> = found.collect();
    found.sort_by_key(|(names, _)| names.len());
    if let Some((order, reverse)) = asked.order {
        found.sort_by(|a, b| {
            let order = match order {
                Order::Path => a.0.cmp(b.0),
                Order::Name => a.0.last().cmp(&b.0.last()),
                Order::Size => a.1.size.cmp(&b.1.size),
                Order::Time => a.1.mtime_ns.cmp(&b.1.mtime_ns),
            };
            if reverse { order.reverse() } else { order }
        });
    }
    found.truncate(asked.limit.unwrap_or(u64::MAX).try_into().unwrap_or(usize::MAX));
    found.into_iter().map(|(names, _)| names.join(&b'/')).collect()
}

/// The second tree: the first with some entries taken away, some changed and some new.
pub fn altered(rng: &mut Rng, old: &[Item]) -> Vec<Item> {
    let mut new: Vec<Item> = old.iter().filter(|_| rng.percent(85)).cloned().collect();
    for item in &mut new {
        match rng.below(12) {
            0 => item.perm ^= 1,
            1 => item.mtime_ns ^= 1,
            2 if item.kind == Kind::File => item.size ^= 1,
            3 if item.kind == Kind::File => item.hash = Some([rng.below(256) as u8; 16]),
            4 => item.hash = None,
            5 => item.extra.push(1),
            _ => {}
        }
    }
    let taken: BTreeSet<Vec<u8>> = new.iter().map(|item| item.path.clone()).collect();
    let files: BTreeSet<Vec<u8>> =
        new.iter().filter(|item| item.kind != Kind::Directory).map(|item| item.path.clone()).collect();
    for mut item in items(rng, 1 + old.len() / 5) {
        let above = (0..item.path.len()).filter(|at| item.path[*at] == b'/').any(|at| files.contains(&item.path[..at]));
        let is_above =
            taken.iter().any(|path| path.len() > item.path.len() && path.starts_with(&[&item.path[..], b"/"].concat()));
        // Some have the content of one that is gone.
        if let Some(gone) = old.iter().find(|gone| gone.kind == Kind::File && !taken.contains(&gone.path))
            && rng.percent(40)
            && item.kind == Kind::File
        {
            (item.size, item.hash) = (gone.size, gone.hash);
        }
        if !(above || is_above || taken.contains(&item.path) || item.path.is_empty()) {
            new.push(item);
        }
    }
    new
}
