//! Finding in a live index is looking at each entry, however much moved, and adding up is adding.

mod toy;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::types::{Ino, Kind};
use adit_index::live::{
    self, Base, Change, Contents, Facts, Found, Keys, Lies, LiveId, LiveIndex, Making, Search, View,
};
use adit_index::query::{Candidate, Order, Pattern, PatternBuilder, Query, Syntax};
use adit_index::{Builder, Entry, Segment};
use adit_testkit::{Rng, seeds};
use toy::{Toy, directory, file};

fn index_of(dir: &tempfile::TempDir, toy: &Toy) -> LiveIndex {
    let making = Making { lies: Lies::OnDisk(dir.path().to_owned()), memory_bytes: 4 << 20 };
    let mut builder = making.builder().unwrap();
    toy.paths().iter().for_each(|(path, facts)| builder.add(&facts.entry(path)).unwrap());
    LiveIndex::new(Arc::new(making.finish(builder, &mut |_| ControlFlow::Continue(())).unwrap()))
}

fn catch_up(index: &mut LiveIndex, toy: &Toy, noted: &[(u64, Vec<u8>)], attrs: &[u64]) {
    let entry = |(dir, name): &(u64, Vec<u8>)| {
        let found = toy.lookup(*dir, name);
        Change::Entry { dir: *dir, name: name[..].into(), found }
    };
    let mut batch: Vec<Change> = noted.iter().map(entry).collect();
    batch.extend(attrs.iter().filter_map(|key| toy.facts(*key)).map(Change::Attrs));
    let mut unlisted = index.apply(&batch).unwrap().unlisted;
    while let Some(dir) = unlisted.pop() {
        let entries = toy.list(dir).into_iter().map(|(name, facts)| (name.into(), facts)).collect();
        unlisted.extend(index.apply(&[Change::Listing { dir, entries }]).unwrap().unlisted);
    }
}

/// What a search is to find.
struct Asked {
    patterns: Vec<Pattern>,
    excludes: Vec<Pattern>,
    query: Query,
    below: Vec<u8>,
    depth: (u32, u32),
}

fn pattern(rng: &mut Rng) -> Pattern {
    let (syntax, text) = *rng.pick(&[
        (Syntax::Substring, &b"a"[..]),
        (Syntax::Substring, b"."),
        (Syntax::Substring, b"a/b"),
        (Syntax::Substring, b"\xff"),
        (Syntax::Glob, b"*d"),
        (Syntax::Glob, b"**/b/*"),
        (Syntax::Glob, b"{a,b}/**"),
        (Syntax::Regex, b"^[ab]$"),
        (Syntax::Regex, b"d/.*c$"),
    ]);
    PatternBuilder::new(syntax).ignore_case(rng.below(4) == 0).full_path(rng.below(4) == 0).build(text).unwrap()
}

fn asked(rng: &mut Rng, toy: &Toy) -> Asked {
    let mut query = Query::new();
    if rng.below(4) == 0 {
        query = query.kinds(&[*rng.pick(&[Kind::File, Kind::Directory])]);
    }
    if rng.below(5) == 0 {
        query = query.size(30..=200);
    }
    if rng.below(6) == 0 {
        query = query.extension(b"txt");
    }
    let dirs: Vec<Vec<u8>> =
        toy.paths().into_iter().filter(|(_, facts)| facts.kind == Kind::Directory).map(|(path, _)| path).collect();
    let below = if rng.below(3) == 0 { rng.pick(&dirs).clone() } else { Vec::new() };
    let depth = if rng.below(4) == 0 { (1 + rng.below(2) as u32, 1 + rng.below(3) as u32) } else { (1, u32::MAX) };
    let some = |rng: &mut Rng, odds: u64| (0..u64::from(rng.below(odds) == 0)).map(|_| pattern(rng)).collect();
    let odds = 1 + rng.below(2);
    let (patterns, excludes) = (some(rng, odds), some(rng, 6));
    Asked { patterns, excludes, query, below, depth }
}

impl Asked {
    fn search(&self, view: &View) -> Search {
        let Found::Entry(below) = view.resolve(LiveId::ROOT, &self.below).unwrap() else { panic!("it is there") };
        let search = Search::new(self.query.clone()).below(below).depth(self.depth.0..=self.depth.1);
        let search = self.patterns.iter().cloned().fold(search, Search::pattern);
        self.excludes.iter().cloned().fold(search, Search::exclude)
    }

    /// Each entry looked at by itself.
    fn naive(&self, paths: &BTreeMap<Vec<u8>, Facts>) -> Vec<Vec<u8>> {
        let query = self.patterns.iter().cloned().fold(self.query.clone(), Query::pattern);
        let accepts = |path: &[u8], facts: &Facts| {
            let rest = match &self.below[..] {
                b"" => Some(path),
                below => path.strip_prefix(below).and_then(|rest| rest.strip_prefix(b"/")),
            };
            let Some(rest) = rest.filter(|rest| !rest.is_empty()) else { return false };
            let names = 1 + rest.iter().filter(|byte| **byte == b'/').count() as u32;
            let Facts { kind, size, mtime_ns, .. } = *facts;
            // Only from where the search begins.
            let ends = (self.below.len() + 1..=path.len()).filter(|end| *end == path.len() || path[*end] == b'/');
            if ends.into_iter().any(|end| self.excludes.iter().any(|exclude| exclude.is_path_match(&path[..end]))) {
                return false;
            }
            (self.depth.0..=self.depth.1).contains(&names) && query.accepts(&Candidate { path, kind, size, mtime_ns })
        };
        paths.iter().filter(|(path, facts)| accepts(path, facts)).map(|(path, _)| path.clone()).collect()
    }
}

fn found(search: &Search, view: &View) -> Vec<Vec<u8>> {
    let mut hits = Vec::new();
    let count = search
        .run(view, &mut |hit| {
            assert_eq!((view.path(hit.id).unwrap(), view.facts(hit.id).unwrap()), (hit.path.to_vec(), *hit.facts));
            hits.push(hit.path.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(count, hits.len() as u64);
    hits
}

#[test]
fn it_is_what_looking_at_each_entry_finds() {
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut toy = Toy::random(&mut rng, 80);
        let mut index = index_of(&dir, &toy);
        for _ in 0..8 {
            let (mut noted, mut attrs) = (Vec::new(), Vec::new());
            for _ in 0..rng.below(6) {
                toy.change(&mut rng, &mut noted, &mut attrs);
            }
            catch_up(&mut index, &toy, &noted, &attrs);
            let (view, paths) = (index.view(), toy.paths());
            for _ in 0..6 {
                let asked = asked(&mut rng, &toy);
                let (search, naive) = (asked.search(&view), asked.naive(&paths));
                let mut hits = found(&search, &view);
                hits.sort();
                let mut sorted = naive.clone();
                sorted.sort();
                let what = format!("{search:?}");
                assert_eq!(hits, sorted, "{what}");
                assert_eq!(search.count(&view).unwrap(), naive.len() as u64, "{what}");
                let limit = 1 + rng.below(4);
                assert_eq!(found(&search.clone().limit(limit), &view).len() as u64, limit.min(naive.len() as u64));
                let names = |path: &Vec<u8>| path.split(|b| *b == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>();
                let mut by_name = naive.clone();
                by_name.sort_by_key(names);
                assert_eq!(found(&search.clone().sort(Order::Path, false), &view), by_name, "{what}");
                let sizes: Vec<u64> =
                    found(&search.clone().sort(Order::Size, true), &view).iter().map(|p| paths[p].size).collect();
                assert!(sizes.is_sorted_by(|one, other| one >= other));
            }
        }
    }
}

#[test]
fn sums_are_those_of_what_is_there() {
    for seed in seeds(20) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut toy = Toy::random(&mut rng, 60);
        let mut index = index_of(&dir, &toy);
        let (mut noted, mut attrs) = (Vec::new(), Vec::new());
        (0..20).for_each(|_| toy.change(&mut rng, &mut noted, &mut attrs));
        catch_up(&mut index, &toy, &noted, &attrs);
        let (view, paths) = (index.view(), toy.paths());
        let below = |top: &[u8], path: &[u8]| match top {
            b"" => !path.is_empty(),
            top => path.strip_prefix(top).is_some_and(|rest| rest.starts_with(b"/")),
        };
        let bytes_of =
            |top: &[u8]| paths.iter().filter(|(path, _)| below(top, path)).map(|(_, facts)| facts.size).sum::<u64>();
        for (path, facts) in &paths {
            let Found::Entry(id) = view.resolve(LiveId::ROOT, path).unwrap() else { panic!("it is there") };
            let du = live::du(&view, id, &mut || false).unwrap();
            let expected = if facts.kind == Kind::Directory { bytes_of(path) } else { facts.size };
            assert_eq!(du.total.bytes, expected, "{path:?}");
            let in_it = paths
                .keys()
                .filter(|other| below(path, other) && !other[path.len()..].iter().skip(1).any(|b| *b == b'/'));
            let in_it = if path.is_empty() {
                paths.keys().filter(|p| !p.is_empty() && !p.contains(&b'/')).count()
            } else {
                in_it.count()
            };
            assert_eq!(du.children.len(), in_it);
            let sum = du.children.iter().map(|(_, sums)| sums.bytes).sum::<u64>();
            assert_eq!(sum, if facts.kind == Kind::Directory { expected } else { 0 });
        }
        let top = live::top(&view, LiveId::ROOT, 3, &mut || false).unwrap();
        let largest = |kind: Kind, size: &dyn Fn(&[u8], &Facts) -> u64| {
            let of = paths.iter().filter(|(path, facts)| facts.kind == kind && !path.is_empty());
            let mut sizes: Vec<u64> = of.map(|(path, facts)| size(path, facts)).collect();
            sizes.sort_by(|one, other| other.cmp(one));
            sizes.truncate(3);
            sizes
        };
        let bytes = |found: &[(LiveId, u64)]| found.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>();
        assert_eq!(bytes(&top.files), largest(Kind::File, &|_, facts| facts.size));
        let directories: Vec<(LiveId, u64)> = top.directories.iter().map(|(id, sums)| (*id, sums.bytes)).collect();
        assert_eq!(bytes(&directories), largest(Kind::Directory, &|path, _| bytes_of(path)));
        for (id, sums) in &top.directories {
            assert_eq!(*sums, live::du(&view, *id, &mut || false).unwrap().total);
        }
    }
}

#[test]
fn a_search_that_is_told_to_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::default();
    let top = toy.make(1, b"top", directory);
    (0..5000).for_each(|n| _ = toy.make(top, format!("{n}").as_bytes(), file));
    let mut index = index_of(&dir, &toy);
    let mut noted = Vec::new();
    toy.rename((1, b"top"), (1, b"other"), false, &mut noted);
    catch_up(&mut index, &toy, &noted, &[]);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let search = Search::new(Query::new()).pattern(Pattern::substring(b"no/such").unwrap()).stop_when(stop);
    let e = search.run(&index.view(), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(e.kind(), adit_core::ErrorKind::Interrupted);
}

/// The namespace of a manifest: nodes are numbers of the store, directories have a time that is not in the segment, and hashes are of content.
#[test]
fn a_segment_that_is_a_namespace_answers_as_its_store() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(dir.path(), 4 << 20);
    let entry = |path, mtime_ns, hash| Entry {
        path,
        kind: Kind::File,
        perm: 0o644,
        size: 3,
        mtime_ns,
        hash,
        stamp: None,
        extra: b"",
    };
    builder.add(&entry(b"a/deep/one", 5, Some([7; 16]))).unwrap();
    builder.add(&entry(b"a/two", 6, None)).unwrap();
    let out = dir.path().join("segment");
    builder.finish(&out, &mut |_| ControlFlow::Continue(())).unwrap();
    let segment = Arc::new(Segment::open(&out).unwrap());
    let base = Base::new(segment.clone(), Keys::OfNodes { directories_mtime_ns: 9 }).unwrap();
    assert_eq!(base.memory_bytes(), 0);
    let view = LiveIndex::new(Arc::new(base)).view();
    let id = |path: &[u8]| match view.resolve(LiveId::ROOT, path).unwrap() {
        Found::Entry(id) => id,
        other => panic!("{other:?}"),
    };
    let (one, two, deep) = (id(b"a/deep/one"), id(b"a/two"), id(b"a/deep"));
    assert_eq!(
        (view.hash(one).unwrap(), view.hash(two).unwrap(), view.hash(deep).unwrap()),
        (Some([7; 16]), None, None)
    );
    for (path, time) in [(&b"a/deep/one"[..], 5), (b"a/two", 6), (b"a", 9), (b"a/deep", 9)] {
        let facts = view.facts(id(path)).unwrap();
        assert_eq!(facts.mtime_ns, time);
        assert_eq!(view.of_key(facts.key).unwrap(), [id(path)], "by its number");
    }
    // A search by time goes by what is told, and not by what the columns say.
    let found = |query: Query| {
        let mut paths = Vec::new();
        let search = Search::new(query).sort(Order::Path, false);
        search
            .run(&view, &mut |hit| {
                paths.push(String::from_utf8(hit.path.to_vec()).unwrap());
                ControlFlow::Continue(())
            })
            .unwrap();
        paths
    };
    assert_eq!(found(Query::new().mtime_ns(6..=9)), ["a", "a/deep", "a/two"]);
    assert_eq!(found(Query::new().mtime_ns(0..=5)), ["a/deep/one"]);
    assert_eq!(found(Query::new()), ["a", "a/deep", "a/deep/one", "a/two"]);
}

/// Whoever was as it was keeps its hash over renames, other attributes and a new base, and loses it with its content.
#[test]
fn hashes_of_what_a_store_knows_go_with_the_content() {
    struct OfSeven;
    impl Contents for OfSeven {
        fn is_original(&self, _: Ino) -> bool {
            unreachable!("an index that is told everything asks nobody")
        }

        fn original(&self, ino: Ino) -> adit_core::Result<Option<adit_index::ContentHash>> {
            Ok((ino.0 != 7).then_some([ino.0 as u8; 16]))
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let facts = |key, is_original| Facts { is_original, ..file(key) };
    let making = Making { lies: Lies::OnDisk(dir.path().to_owned()), memory_bytes: 4 << 20 };
    let mut builder = making.builder().unwrap();
    let of_base =
        [(&b""[..], directory(1)), (b"kept", facts(5, true)), (b"own", facts(6, false)), (b"no", facts(7, true))];
    of_base.iter().for_each(|(path, facts)| builder.add(&facts.entry(path)).unwrap());
    let base = making.finish(builder, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut index = LiveIndex::new(Arc::new(base.with_contents(Some(Arc::new(OfSeven)))));
    let hash = |index: &LiveIndex, path: &[u8]| match index.view().resolve(LiveId::ROOT, path).unwrap() {
        Found::Entry(id) => index.view().hash(id).unwrap().map(|hash| hash[0]),
        other => panic!("{other:?}"),
    };
    let hashes = |index: &LiveIndex, names: [&str; 3]| names.map(|name| hash(index, name.as_bytes()));
    assert_eq!(hashes(&index, ["kept", "own", "no"]), [Some(5), None, None]);
    let entry = |name: &[u8], found| Change::Entry { dir: 1, name: name.into(), found };
    let moved = Facts { perm: 0o600, ..facts(5, true) };
    let new = facts(300, true);
    index.apply(&[entry(b"kept", None), entry(b"moved", Some(moved)), entry(b"new", Some(new))]).unwrap();
    assert_eq!(hashes(&index, ["moved", "own", "new"]), [Some(5), None, Some(300_u64 as u8)]);
    let folded = making.fold(&index.view(), &mut |_| ControlFlow::Continue(())).unwrap();
    let mut index = LiveIndex::new(Arc::new(folded));
    assert_eq!(hashes(&index, ["moved", "own", "new"]), [Some(5), None, Some(300_u64 as u8)]);
    index.apply(&[Change::Attrs(facts(5, false))]).unwrap();
    assert_eq!(hashes(&index, ["moved", "own", "new"]), [None, None, Some(300_u64 as u8)]);
}
