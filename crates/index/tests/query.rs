//! `find` against a list of paths that is gone through one by one, and patterns against what they should be.

mod query_support;
mod support;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use adit_core::error::ErrorKind;
use adit_core::types::Kind;
use adit_index::query::{Candidate, Order, Paths, Pattern, PatternBuilder, Query, Strategy, Syntax, Target};
use adit_index::{NodeId, Segment};
use adit_testkit::{Rng, scaled, seeds};
use query_support::{Asked, expected, glob_matches, said};
use support::{Item, Place, items, model};

fn paths(segment: &Segment, query: &Query) -> Vec<Vec<u8>> {
    let mut paths = Paths::new(segment);
    let mut found = Vec::new();
    let given = query.run(segment, &mut |hit| {
        found.push(paths.of(hit.node).unwrap().to_vec());
        ControlFlow::Continue(())
    });
    assert_eq!(given.unwrap(), found.len() as u64);
    found
}

#[test]
fn every_way_finds_what_a_list_of_paths_has() {
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [0, 1, 5, 40, 400, 3000][rng.below(6) as usize];
        let items = items(&mut rng, count);
        let place = Place::new();
        let segment = if rng.percent(50) { place.segment(&items) } else { place.segment_with_tables(&items) };
        let model = model(&items, 0o755, 0);
        for _ in 0..12 {
            let asked = Asked::random(&mut rng, &model);
            let expected = expected(&model, &asked);
            for strategy in [Strategy::Best, Strategy::Each, Strategy::NoTable] {
                for threads in [1, 3] {
                    let query = asked.query(&segment).strategy(strategy).threads(threads);
                    assert_eq!(paths(&segment, &query), expected, "{asked:?} {strategy:?} {threads}");
                    assert_eq!(query.count(&segment).unwrap(), expected.len() as u64, "{asked:?}");
                }
            }
            // One by one, as those that are in no segment.
            let query = asked.query(&segment);
            for (names, item) in model.iter().filter(|(names, _)| !names.is_empty()) {
                let path = names.join(&b'/');
                let candidate = Candidate { path: &path, kind: item.kind, size: item.size, mtime_ns: item.mtime_ns };
                assert_eq!(query.accepts(&candidate), asked.accepts(names, item, 0), "{asked:?}");
            }
        }
    }
}

/// Letters of which two are one without regard to case, though one of them is beyond ASCII; bytes that are no text; and names that differ in one
/// place only.
const LETTERS: [&[u8]; 14] = [
    b"k",
    b"K",
    "\u{212a}".as_bytes(),
    b"s",
    b"S",
    "\u{17f}".as_bytes(),
    "\u{e9}".as_bytes(),
    "\u{c9}".as_bytes(),
    b"\xe2",
    b"\x84\xaa",
    b"0",
    b"1",
    b".",
    b"a",
];

/// What the signatures of names leave out has nothing of what is asked for.
#[test]
fn signatures_leave_out_nothing_that_is_asked_for() {
    let (mut asked, mut narrowed) = (0_u64, 0_u64);
    for seed in seeds(20) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let text =
            |rng: &mut Rng, len: u64| (0..1 + rng.below(len)).flat_map(|_| *rng.pick(&LETTERS)).copied().collect();
        let names: Vec<Vec<u8>> = (0..3000)
            .map(|n: u32| {
                let mut name: Vec<u8> = text(&mut rng, 12);
                name.extend(format!("_{n:04}").bytes());
                name
            })
            .collect();
        let items: Vec<Item> =
            names.iter().map(|name| Item::file(&[format!("d{}/", rng.below(7)).as_bytes(), name].concat())).collect();
        let place = Place::new();
        let segment = place.segment_with_tables(&items);
        for _ in 0..60 {
            let name = rng.pick(&names).clone();
            let start = rng.below(name.len() as u64) as usize;
            let end = name.len().min(start + 1 + rng.below(12) as usize);
            let mut part = name[start..end].to_vec();
            if rng.percent(20) {
                // In other case, or as nobody is called.
                let at = rng.below(part.len() as u64) as usize;
                part[at] = if rng.percent(50) { part[at].to_ascii_uppercase() } else { b'x' };
            }
            let ignore_case = rng.percent(50);
            let text = String::from_utf8(part.clone());
            let (syntax, text) = match (rng.below(4), &text) {
                (0, Ok(text)) => (Syntax::Glob, format!("*{}*", text.replace('0', "?")).into_bytes()),
                (1, Ok(text)) => (Syntax::Regex, text.replace('.', "[.]").replace('1', "(1|7)").into_bytes()),
                (2, Ok(text)) => {
                    let (head, tail) = text.split_at(text.ceil_char_boundary(text.len() / 2));
                    let (head, tail) = (head.replace('.', "[.]"), tail.replace('.', "[.]"));
                    (Syntax::Regex, format!("(?i:{head}){tail}").into_bytes())
                }
                _ => (Syntax::Substring, part),
            };
            let pattern = PatternBuilder::new(syntax).ignore_case(ignore_case).build(&text).unwrap();
            let said = format!("{syntax:?} {} {ignore_case}", text.escape_ascii());
            let query = Query::new().pattern(pattern);
            let expected = query.clone().strategy(Strategy::Each).collect(&segment).unwrap();
            for threads in [1, 3] {
                assert_eq!(query.clone().threads(threads).collect(&segment).unwrap(), expected, "{said}");
            }
            asked += 1;
            narrowed += u64::from(query.nodes_left(&segment).unwrap() < u64::from(segment.len()));
        }
    }
    assert!(narrowed * 3 > asked, "{narrowed} of {asked} had anything left out");
}

/// What any of several patterns matches is what each of them matches by itself, whatever they are compared with.
#[test]
fn any_of_several_patterns_is_each_of_them() {
    let (mut hits, mut mixed) = (0, 0);
    for seed in seeds(40) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let letters: [&[u8]; 8] = [b"a", b"B", b"b", b"\xff", b"\n", "\u{e9}".as_bytes(), b".", b"/"];
        let text = |rng: &mut Rng| -> Vec<u8> {
            let len = 1 + rng.below(9);
            (0..len).flat_map(|_| *rng.pick(&letters)).copied().collect()
        };
        let is_path = |path: &Vec<u8>| path.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b".."));
        let mut names: Vec<Vec<u8>> = (0..300).map(|_| text(&mut rng)).filter(is_path).collect();
        names.sort();
        names.dedup();
        // No file is a folder, too.
        let items: Vec<Item> = names.iter().map(|name| Item::file(&[name, &b".f"[..]].concat())).collect();
        let place = Place::new();
        let segment = place.segment_with_tables(&items);
        let all = Query::new().collect(&segment).unwrap();
        let mut of = Paths::new(&segment);
        let paths: Vec<Vec<u8>> = all.iter().map(|node| of.of(*node).unwrap().to_vec()).collect();
        for _ in 0..20 {
            let (ignore_case, full) = (rng.percent(40), rng.percent(20));
            let syntax = *rng.pick(&[Syntax::Substring, Syntax::Glob, Syntax::Regex]);
            let texts = (0..rng.below(6)).map(|_| {
                let name = rng.pick(&names);
                let start = rng.below(name.len() as u64) as usize;
                let part = &name[start..name.len().min(start + 1 + rng.below(4) as usize)];
                match syntax {
                    Syntax::Substring => part.to_vec(),
                    Syntax::Glob => {
                        format!("*{}*", String::from_utf8_lossy(part).replace('\u{fffd}', "?")).into_bytes()
                    }
                    Syntax::Regex => {
                        format!("^.?{}", String::from_utf8_lossy(part).replace(['.', '\u{fffd}'], "(?s-u:.)"))
                            .into_bytes()
                    }
                }
            });
            let texts: Vec<Vec<u8>> = texts.collect();
            let mut builder = PatternBuilder::new(syntax);
            builder.ignore_case(ignore_case).full_path(full);
            let each: Vec<Pattern> = texts.iter().map(|text| builder.build(text).unwrap()).collect();
            let some = |target| each.iter().any(|pattern| pattern.target() == target);
            let is_mixed = some(Target::Name) && some(Target::Path);
            let any = match builder.build_any(&texts) {
                Err(e) if is_mixed && syntax == Syntax::Regex => {
                    assert!(e.to_string().contains("some do not"), "{e}");
                    continue;
                }
                any => any.unwrap(),
            };
            mixed += u32::from(is_mixed);
            let is_hit = |path: &Vec<u8>| each.iter().any(|pattern| pattern.is_path_match(path));
            let expected: Vec<_> =
                all.iter().zip(&paths).filter(|(_, path)| is_hit(path)).map(|(node, _)| *node).collect();
            hits += expected.len();
            for strategy in [Strategy::Best, Strategy::Each, Strategy::NoTable] {
                let found = Query::new().pattern(any.clone()).strategy(strategy).collect(&segment).unwrap();
                assert_eq!(found, expected, "{syntax:?} {ignore_case} {full} {strategy:?} {texts:?}");
            }
        }
    }
    assert!(hits > 1000 && mixed > 20, "{hits} hits, {mixed} lists for names and paths");
    // Many at once, as a list of names is.
    let many: Vec<String> = (0..20_000).map(|n| format!("name_{n:07}")).collect();
    let any = PatternBuilder::new(Syntax::Substring).build_any(&many).unwrap();
    assert!(any.is_match(b"a name_0019999.exr") && !any.is_match(b"name_0020000"));
}

/// Several pieces of work for each thread, names of every length, and hits on both sides of every border.
#[test]
fn threads_and_pieces_change_nothing() {
    let mut rng = Rng::new(7);
    let files = scaled(90_000);
    let items: Vec<Item> = (0..files)
        .map(|n| {
            let long = if rng.percent(1) { "x".repeat(rng.below(400) as usize) } else { String::new() };
            let mut item = Item::file(format!("d{}/e{}/{n}{long}", n % 7, n % 1000).as_bytes());
            item.size = rng.below(1000);
            item
        })
        .collect();
    let place = Place::new();
    let segment = place.segment(&items);
    for (name, full) in [("77", false), ("x", false), ("9$", false), ("", false), ("d3/e.*5", true), ("e1/", true)] {
        let pattern = PatternBuilder::new(Syntax::Regex).full_path(full).build(name.as_bytes()).unwrap();
        let query = Query::new().pattern(pattern);
        let one = query.clone().strategy(Strategy::Each).threads(1).collect(&segment).unwrap();
        assert!(!one.is_empty());
        assert!(one.is_sorted());
        for threads in [1, 2, 5, 40] {
            let query = query.clone().threads(threads);
            assert_eq!(query.collect(&segment).unwrap(), one, "{name} {threads}");
            let limited = query.clone().limit(100).collect(&segment).unwrap();
            assert_eq!(limited, one[..one.len().min(100)]);
        }
        for order in [Order::Path, Order::Name, Order::Size, Order::Time] {
            let all = query.clone().sort(order, false).collect(&segment).unwrap();
            let limited = query.clone().sort(order, false).limit(33).collect(&segment).unwrap();
            assert_eq!(limited, all[..all.len().min(33)], "{order:?}");
            let mut back = all.clone();
            back.sort_unstable();
            assert_eq!(back, one);
            if order == Order::Path {
                let names = |node: &NodeId| {
                    let path = segment.path(*node).unwrap();
                    path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>()
                };
                assert!(all.iter().map(names).is_sorted());
            }
        }
    }
}

fn named(name: &[u8], syntax: Syntax, text: &str) -> bool {
    let pattern = PatternBuilder::new(syntax).build(text.as_bytes()).unwrap();
    // In the arena as well as alone.
    let place = Place::new();
    let dir = if pattern.target() == Target::Path { &b"zz"[..] } else { b"dir" };
    let segment = place.segment(&[Item::file(name), Item::dir(dir)]);
    let all: Vec<Vec<u8>> = paths(&segment, &Query::new().pattern(pattern.clone()).kinds(&[Kind::File]));
    let alone = pattern.is_path_match(name);
    assert_eq!(pattern.matcher().is_match(name), pattern.is_match(name));
    assert_eq!(all == [name], alone, "{text:?} in the segment and alone");
    alone
}

#[test]
fn globs_mean_what_is_written() {
    let yes = [
        ("*.exr", "a.exr"),
        ("*", "a"),
        ("**", "a"),
        ("a*", "a"),
        ("*a*", "bab"),
        ("a?c", "abc"),
        ("a?c", "a\nc"),
        ("caf?", "café"),
        ("[é-ï]", "ê"),
        ("[!a-c]x", "dx"),
        ("[^a-c]x", "éx"),
        ("[]]", "]"),
        ("[!]]", "a"),
        ("[a-]", "-"),
        ("[\\]]", "]"),
        ("\\*", "*"),
        ("{a,b}c", "bc"),
        ("{a,}c", "c"),
        ("{a,{b,c}d}", "cd"),
        ("a,b", "a,b"),
        ("*.{jpg,png}", "x.png"),
        ("a**b", "axb"),
        ("**/a", "a"),
        ("**/*.c", "x.c"),
        ("/a", "a"),
        ("./a", "a"),
        ("[[:digit:]]*", "7up"),
        ("[[:alpha:]_]?", "é1"),
        ("[![:upper:][:digit:]]x", "éx"),
        ("[[:space:]]", " "),
        ("[[]", "["),
        ("[[:]]", ":]"),
    ];
    for (glob, name) in yes {
        assert!(named(name.as_bytes(), Syntax::Glob, glob), "{glob} {name}");
    }
    let no = [
        ("*.exr", "a.exr2"),
        ("a?c", "ac"),
        ("a?c", "abbc"),
        ("[a-c]", "d"),
        ("[!a]", "a"),
        ("[!a]", "bb"),
        ("{a,b}c", "c"),
        ("\\*", "a"),
        ("A", "a"),
        ("", "a"),
        ("[[:digit:]]*", "up"),
        ("[[:upper:]]", "é"),
        ("[![:alpha:]]", "é"),
    ];
    for (glob, name) in no {
        assert!(!named(name.as_bytes(), Syntax::Glob, glob), "{glob} {name}");
    }
    let paths = [
        ("a/*.c", "a/x.c", true),
        ("a/*.c", "a/b/x.c", false),
        ("a/**/x", "a/x", true),
        ("a/**/x", "a/b/c/x", true),
        ("a/**/x", "ab/x", false),
        ("a/**", "a/b", true),
        ("a/**", "a", false),
        ("**/b/*", "a/b/c", true),
        ("**/b/*", "b/c", true),
        ("**/b/*", "ab/c", false),
        ("*/c", "a/b/c", false),
        ("{a,b/c}", "b/c", true),
        ("{a/**,x}", "a/b/c", true),
        ("a?b", "a/b", false),
        ("a[!x]b", "a/b", false),
        ("**/x", "a/b/x", true),
        ("./a/*.c", "a/x.c", true),
        ("./*.c", "a/x.c", false),
    ];
    for (glob, path, is_match) in paths {
        let pattern = Pattern::glob(glob).unwrap();
        assert_eq!(pattern.is_path_match(path.as_bytes()), is_match, "{glob} {path}");
        let full = PatternBuilder::new(Syntax::Glob).full_path(true).build(glob.as_bytes()).unwrap();
        assert_eq!(full.is_match(path.as_bytes()), is_match, "{glob} {path}");
        assert_eq!(glob_matches(glob, path.as_bytes()), is_match, "{glob} {path}: the one that tests compare with");
    }
    assert_eq!(Pattern::glob("**/*.c").unwrap().target(), Target::Name);
    assert_eq!(Pattern::glob("*ab*").unwrap().literal(), Some(&b"ab"[..]));
}

/// As a path is printed it has a slash in front.
#[test]
fn a_slash_in_front_is_the_beginning_of_a_path() {
    let place = Place::new();
    let all = [&b"crates/cli/a"[..], b"crates2/x", b"old/crates/cli/b", b"Crates", b"top"];
    let segment = place.segment(&all.map(Item::file));
    let found = |syntax, text: &str, ignore_case| {
        let pattern = PatternBuilder::new(syntax).ignore_case(ignore_case).build(text.as_bytes()).unwrap();
        let query = Query::new().pattern(pattern.clone()).kinds(&[Kind::File]);
        let mut found = paths(&segment, &query);
        found.sort();
        let alone: Vec<&[u8]> = all.into_iter().filter(|path| pattern.is_path_match(path)).collect();
        let mut alone: Vec<Vec<u8>> = alone.into_iter().map(<[u8]>::to_vec).collect();
        alone.sort();
        assert_eq!(found, alone, "{text}");
        found.into_iter().map(|path| String::from_utf8(path).unwrap()).collect::<Vec<_>>()
    };
    for text in ["/crates/cli", "/crates/cli/"] {
        assert_eq!(found(Syntax::Substring, text, false), ["crates/cli/a", "old/crates/cli/b"], "{text}");
        assert_eq!(found(Syntax::Regex, text, false), ["crates/cli/a", "old/crates/cli/b"], "{text}");
    }
    assert_eq!(found(Syntax::Substring, "/CRATES", true), ["Crates", "crates/cli/a", "crates2/x", "old/crates/cli/b"]);
    assert_eq!(found(Syntax::Substring, "//top", false), [""; 0]);
    assert_eq!(found(Syntax::Substring, "/", false).len(), all.len());
    for text in ["^/crates/", "^(/crates/|/none)", r"\A/crates/[a-z]", "^crates/"] {
        assert_eq!(found(Syntax::Regex, text, false), ["crates/cli/a"], "{text}");
    }
    assert_eq!(found(Syntax::Regex, "/(top|Crates)$", false), ["Crates", "top"]);
    assert_eq!(found(Syntax::Regex, "^//top", false), [""; 0]);
    assert_eq!(found(Syntax::Glob, "/crates/**", false), ["crates/cli/a"]);
}

#[test]
fn names_need_not_be_text() {
    assert!(named(b"caf\xe9.txt", Syntax::Glob, "caf?.txt"));
    assert!(named(b"caf\xe9.txt", Syntax::Glob, "*.txt"));
    assert!(named(b"caf\xe9.txt", Syntax::Glob, "caf[!a].txt"));
    assert!(named(b"caf\xe9.txt", Syntax::Regex, "^caf.\\.txt$"));
    assert!(named(b"caf\xe9.txt", Syntax::Regex, "^.*$"));
    assert!(named(b"\xff\xfe", Syntax::Regex, "^.+$"));
    assert!(named(b"\xff\xfe", Syntax::Regex, "(?-u:\\xff)"));
    assert!(named(b"\xc3\xa9\xff", Syntax::Glob, "??"));
    assert!(named("é🎬".as_bytes(), Syntax::Regex, "^..$"));
    assert!(!named("é🎬".as_bytes(), Syntax::Regex, "^.$"));
    assert!(named(b"a\nb", Syntax::Regex, "a.b"));
    assert!(named(b"a\nb", Syntax::Regex, "(?m)a$"));
    assert!(!named(b"a\nb", Syntax::Regex, "a$"));
    assert!(named("a b".as_bytes(), Syntax::Regex, r"\bb\b"));
    assert!(named("éb".as_bytes(), Syntax::Regex, r"\bé"));
    assert!(!named("éb".as_bytes(), Syntax::Regex, r"\bb"));
    assert!(named(b"a\xffb", Syntax::Regex, "[^x]b$"));
    let pattern = Pattern::substring(b"\xfe").unwrap();
    assert!(pattern.is_match(b"\xff\xfe"));
}

/// As fnmatch and fd have it, in each way to find: where names lie, on the way down, one by one, and of what is in no index.
#[test]
fn a_character_is_one_in_every_way_to_find_it() {
    let place = Place::new();
    let all = ["é", "€", "😀", "ab", "日本", "x/é", "x/日本", "aé"];
    let segment = place.segment(&all.map(|path| Item::file(path.as_bytes())));
    let asked: [(Syntax, &str, &[&str]); 9] = [
        (Syntax::Glob, "??", &["ab", "aé", "x/日本", "日本"]),
        (Syntax::Glob, "???", &[]),
        (Syntax::Glob, "[!x]?", &["ab", "aé", "x/日本", "日本"]),
        (Syntax::Glob, "x/?", &["x/é"]),
        (Syntax::Glob, "**/??", &["ab", "aé", "x/日本", "日本"]),
        (Syntax::Regex, "^.{3}$", &[]),
        (Syntax::Regex, "^[^a][^b]$", &["x/日本", "日本"]),
        (Syntax::Regex, "^.+.+$", &["ab", "aé", "x/日本", "日本"]),
        (Syntax::Regex, "x/.$", &["x/é"]),
    ];
    for (syntax, text, expected) in asked {
        for several in [false, true] {
            let texts = if several { vec![text, "nothing/that/is?there"] } else { vec![text] };
            if several && syntax == Syntax::Regex && !text.contains('/') {
                continue;
            }
            let pattern = PatternBuilder::new(syntax).build_any(&texts).unwrap();
            let alone: Vec<&str> = all.into_iter().filter(|path| pattern.is_path_match(path.as_bytes())).collect();
            assert_eq!(alone.iter().collect::<std::collections::BTreeSet<_>>(), expected.iter().collect(), "{text}");
            for strategy in [Strategy::Best, Strategy::Each, Strategy::NoTable] {
                let query = Query::new().pattern(pattern.clone()).kinds(&[Kind::File]).strategy(strategy);
                let mut found = paths(&segment, &query);
                found.sort();
                let expected: Vec<Vec<u8>> = expected.iter().map(|path| path.as_bytes().to_vec()).collect();
                assert_eq!(found, expected, "{text} {strategy:?}");
                assert_eq!(query.count(&segment).unwrap(), expected.len() as u64, "{text} {strategy:?}");
            }
        }
    }
    let excluded = Query::new().exclude(Pattern::glob("??").unwrap()).kinds(&[Kind::File]);
    assert_eq!(excluded.count(&segment).unwrap(), 4, "é, €, 😀 and x/é");
}

#[test]
fn an_extension_is_one_in_large_and_in_small_letters() {
    let place = Place::new();
    let all = ["a.É", "b.é", "c.e", "é", "d.\u{17f}"];
    let segment = place.segment(&all.map(|path| Item::file(path.as_bytes())));
    for extension in ["é", "É"] {
        let found = paths(&segment, &Query::new().extension(extension.as_bytes()));
        assert_eq!(found, ["a.É", "b.é"].map(|path| path.as_bytes().to_vec()), "{extension}");
    }
}

#[test]
fn large_letters_are_small_ones_if_that_is_asked() {
    for syntax in [Syntax::Substring, Syntax::Glob, Syntax::Regex] {
        let build = |ignore| PatternBuilder::new(syntax).ignore_case(ignore).build("Müsk".as_bytes()).unwrap();
        assert!(build(true).is_match("mÜSK".as_bytes()));
        assert!(build(true).is_match("mü\u{17f}\u{212a}".as_bytes()), "long s and the sign of Kelvin");
        assert!(!build(false).is_match("mÜSK".as_bytes()));
        assert!(!build(true).is_match(b"musk"));
    }
    let bytes = PatternBuilder::new(Syntax::Substring).ignore_case(true).build(b"A\xffb").unwrap();
    assert!(bytes.is_match(b"xa\xffB"));
    assert!(!bytes.is_match(b"xa\xdfB"));
    let class = PatternBuilder::new(Syntax::Glob).ignore_case(true).build(b"[a-c][!x]").unwrap();
    assert!(class.is_match(b"BY") && !class.is_match(b"BX"));
}

#[test]
fn patterns_that_are_none_say_why() {
    let error = |syntax, text: &[u8]| {
        let e = PatternBuilder::new(syntax).build(text).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        said(&e)
    };
    for (syntax, text, words) in [
        (Syntax::Glob, "[a", "at character 1: the bracket is not closed"),
        (Syntax::Glob, "x[b-a]", "at character 5: the range ends before it begins"),
        (Syntax::Glob, "é{a", "at character 2: the brace is not closed"),
        (Syntax::Glob, "a}", "at character 2: nothing was opened"),
        (Syntax::Glob, "/a\\", "at character 3: the backslash has nothing behind it"),
        (Syntax::Glob, "a/", "a path does not end with a slash"),
        (Syntax::Regex, "(a", "unclosed group at byte 0; search for a substring"),
        (Syntax::Regex, "a{100000}{100000}", "repetition"),
    ] {
        let said = error(syntax, text.as_bytes());
        assert!(said.contains(words), "{text}: {said}");
    }
    assert!(error(Syntax::Glob, b"\xff").contains("UTF-8"));
    assert!(error(Syntax::Regex, b"\xff").contains("(?-u:\\xff)"));
    assert!(error(Syntax::Substring, &vec![b'a'; 1 << 20]).contains("shorter"));
    assert!(error(Syntax::Glob, "{".repeat(1000).as_bytes()).contains("braces"));
    assert!(error(Syntax::Regex, "(".repeat(1000).as_bytes()).contains("group"));
}

/// Exponential states, and states by the thousand: an answer or an error, soon.
#[test]
fn patterns_of_any_size_end() {
    let place = Place::new();
    let name = "a".repeat(255);
    let segment = place.segment(&[Item::file(format!("{name}/{name}").as_bytes()), Item::file(b"x/b")]);
    for text in [
        "(a|b)*a(a|b){20}".to_owned(),
        format!("(x/)?{}", "(a*)*".repeat(10)),
        r"(?i)\w{0,50}/\pL{0,50}\b".to_owned(),
        "(a?){200}a{200}".to_owned(),
        r"^(\w+\s?)*$".to_owned(),
        "[[:alpha:]]{1,1000}/[[:alpha:]]{1,1000}".to_owned(),
    ] {
        for full in [false, true] {
            let pattern = PatternBuilder::new(Syntax::Regex).full_path(full).build(text.as_bytes()).unwrap();
            let each = Query::new().pattern(pattern.clone()).strategy(Strategy::Each).collect(&segment).unwrap();
            assert_eq!(Query::new().pattern(pattern).collect(&segment).unwrap(), each, "{text}");
        }
    }
    let huge = Pattern::regex(r"\pL{1000}\pL{1000}").unwrap_err();
    assert!(said(&huge).contains("MiB"), "{}", said(&huge));
    let many = format!("{{{}}}", vec!["*a*b*c*"; 500].join(","));
    assert_eq!(Query::new().pattern(Pattern::glob(&many).unwrap()).collect(&segment).unwrap(), []);
}

#[test]
fn names_as_long_as_they_may_be() {
    let place = Place::new();
    let long = vec![b'x'; 65_000];
    let paths = [&long[..], b"a/b", &[b'y'; 254], &[b'y'; 255], &[b'y'; 256]];
    let items: Vec<Item> = paths.iter().map(|path| Item::file(path)).collect();
    let segment = place.segment(&items);
    let count = |query: Query| query.count(&segment).unwrap();
    assert_eq!(count(Query::new().pattern(Pattern::regex("^x{2}").unwrap())), 1);
    assert_eq!(count(Query::new().pattern(Pattern::regex("y$").unwrap())), 3);
    assert_eq!(count(Query::new().pattern(Pattern::substring(&[b'y'; 256]).unwrap())), 1);
    assert_eq!(count(Query::new().pattern(Pattern::substring(b"b").unwrap())), 1);
    assert_eq!(count(Query::new().pattern(Pattern::substring(b"").unwrap())), 6);
}

#[test]
fn a_search_ends_when_it_is_said() {
    let place = Place::new();
    let items: Vec<Item> = (0..20_000).map(|n| Item::file(format!("{n}").as_bytes())).collect();
    let segment = place.segment(&items);
    let stop = Arc::new(AtomicBool::new(false));
    for threads in [1, 4] {
        let query = Query::new().threads(threads).stop_when(stop.clone());
        let mut seen = 0;
        let given = query.run(&segment, &mut |_| {
            seen += 1;
            if seen == 17 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((given.unwrap(), seen), (17, 17));
        assert_eq!(query.clone().limit(0).collect(&segment).unwrap(), []);
        stop.store(true, Relaxed);
        assert_eq!(query.collect(&segment).unwrap_err().kind(), ErrorKind::Interrupted);
        let path = Query::new().pattern(Pattern::substring(b"a/b").unwrap()).stop_when(stop.clone());
        assert_eq!(path.collect(&segment).unwrap_err().kind(), ErrorKind::Interrupted);
        stop.store(false, Relaxed);
    }
    let file = segment.lookup(NodeId::ROOT, b"7").unwrap().unwrap();
    let e = Query::new().below(file).collect(&segment).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotDirectory);
    let e = Query::new().below(NodeId(1 << 30)).count(&segment).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
}

#[test]
#[should_panic(expected = "of the caller")]
fn a_panic_does_not_leave_threads_waiting() {
    let place = Place::new();
    let items: Vec<Item> = (0..100_000).map(|n| Item::file(format!("{n}").as_bytes())).collect();
    let segment = place.segment(&items);
    let _ = Query::new().threads(3).run(&segment, &mut |_| panic!("of the caller"));
}
