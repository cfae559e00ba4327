//! What a device answers is what the processor answers, byte for byte. On a machine without a device these tests say so; where
//! `CI` is set they fail.
#![cfg(feature = "gpu")]

mod support;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use adit_core::types::Kind;
use adit_index::gpu::{Against, Device, DeviceOptions, GpuError, Resident, Table, adapters};
use adit_index::resolve::{Question, Resolver};
use adit_index::router::{Ahead, Choice, Job, Reason, Work};
use adit_index::session::{Session, SessionOptions};
use adit_index::{NodeId, Segment};
use adit_testkit::Rng;
use regex_automata::dfa::dense;
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use support::paths::same_hash;
use support::{Item, Place, items};

/// The first device that there is: on most machines Mesa's, which is a program.
fn device_with(options: &DeviceOptions) -> Option<Device> {
    match adapters().first() {
        Some(adapter) => Some(adapter.open(options).unwrap()),
        None if std::env::var_os("CI").is_some() => {
            panic!("no driver offers a device: install mesa-vulkan-drivers and libvulkan1")
        }
        None => {
            eprintln!("not run: no driver offers a device (Debian: mesa-vulkan-drivers, libvulkan1)");
            None
        }
    }
}

fn device() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    DEVICE.get_or_init(|| device_with(&DeviceOptions::default())).clone()
}

/// One that divides segments into small shards, and has little room for hits.
fn narrow() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    let mut options = DeviceOptions::default();
    options.shard_len_max_bytes = 16 << 10;
    options.batch_paths = 100;
    options.hits = 3;
    DEVICE.get_or_init(|| device_with(&options)).clone()
}

fn table(pattern: &str) -> Arc<Table> {
    let dfa = dense::Builder::new()
        .syntax(syntax::Config::new().utf8(false).unicode(false))
        .thompson(thompson::Config::new().utf8(false))
        .build(pattern)
        .unwrap();
    Arc::new(Table::new(&dfa).unwrap())
}

fn resident(device: &Device, items: &[Item]) -> (Place, Resident) {
    let place = Place::new();
    let segment = Arc::new(place.segment(items));
    let resident = Resident::new(device, segment).unwrap();
    (place, resident)
}

/// The nodes that a pattern matches, one after the other.
fn naive(segment: &Segment, table: &Table, against: Against) -> Vec<NodeId> {
    let matches = |node: &NodeId| match against {
        Against::Names => table.is_match(segment.name(*node).unwrap()),
        Against::Paths => table.is_match(&segment.path(*node).unwrap()),
    };
    (0..segment.len()).map(NodeId).filter(matches).collect()
}

const PATTERNS: [&str; 13] = [
    "",
    "a",
    "^n1",
    "n1[0-9]$",
    r"\n",
    r"^\.",
    "^$",
    "[^a-z0-9]",
    "l{250}",
    "v{300,}",
    "n3?/n",
    r"^n\d+(/n\d+)*$",
    r"\xff",
];

#[test]
fn a_search_finds_what_the_processor_finds() {
    let (Some(whole), Some(narrow)) = (device(), narrow()) else { return };
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let items = items(&mut rng, 2500);
        for device in [&whole, &narrow] {
            let (_place, resident) = resident(device, &items);
            for pattern in PATTERNS {
                let table = table(pattern);
                for against in [Against::Names, Against::Paths] {
                    let expected = naive(resident.segment(), &table, against);
                    let found = resident.search(&table, against, 0..u32::MAX).wait().unwrap();
                    assert_eq!(found, expected, "seed {seed}, {pattern:?} in {against:?} on {device:?}");
                }
            }
        }
    }
}

#[test]
fn a_search_tells_of_the_nodes_that_were_asked_for() {
    let Some(device) = narrow() else { return };
    let (_place, resident) = resident(&device, &items(&mut Rng::new(7), 500));
    let table = table("n");
    let mut rng = Rng::new(8);
    let all = naive(resident.segment(), &table, Against::Paths);
    for _ in 0..20 {
        let start = rng.below(resident.segment().len().into()) as u32;
        let end = start + rng.below(200) as u32;
        let found = resident.search(&table, Against::Paths, start..end).wait().unwrap();
        let expected: Vec<NodeId> = all.iter().copied().filter(|node| (start..end).contains(&node.0)).collect();
        assert_eq!(found, expected, "{start}..{end}");
    }
}

/// Files that share size and hash with another one, by comparing each with each.
fn naive_twins(segment: &Segment, size_min: u64) -> Vec<NodeId> {
    let key = |node: NodeId| {
        let about = segment.node(node).unwrap();
        let hash = segment.hash(node).unwrap().filter(|_| about.kind == Kind::File && about.size >= size_min);
        hash.map(|hash| (about.size, hash))
    };
    let mut counts = BTreeMap::new();
    let keys: Vec<_> = (0..segment.len()).map(|node| key(NodeId(node))).collect();
    keys.iter().flatten().for_each(|key| *counts.entry(key).or_insert(0) += 1);
    (0..segment.len()).map(NodeId).filter(|node| keys[node.0 as usize].is_some_and(|key| counts[&key] > 1)).collect()
}

#[test]
fn equal_files_are_those_that_the_processor_finds() {
    let (Some(whole), Some(narrow)) = (device(), narrow()) else { return };
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let mut items = items(&mut rng, 3000);
        for item in &mut items {
            // Many that are equal, and many that are so only nearly.
            item.size = [0, 1, 1, 1 << 40, (1 << 40) + 1][rng.below(5) as usize];
            item.hash = item.hash.map(|_| {
                let mut hash = [7; 16];
                hash[rng.below(16) as usize] = rng.below(30) as u8;
                hash
            });
        }
        for device in [&whole, &narrow] {
            let (_place, resident) = resident(device, &items);
            for size_min in [0, 1, 1 << 40, u64::MAX] {
                let expected = naive_twins(resident.segment(), size_min);
                assert_eq!(resident.twins(size_min).wait().unwrap(), expected, "seed {seed}, from {size_min} bytes");
            }
        }
    }
}

#[test]
fn a_segment_without_hashes_has_no_equal_files() {
    let Some(device) = device() else { return };
    let (_place, resident) = resident(&device, &[Item::file(b"a"), Item::file(b"b")]);
    assert_eq!(resident.twins(0).wait().unwrap(), []);
}

#[test]
fn nodes_of_two_trees_are_paired_by_their_paths() {
    let (Some(whole), Some(narrow)) = (device(), narrow()) else { return };
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let all = items(&mut rng, 2500);
        // Both have most of them; a directory may be implied in one of them, or missing with all that is in it.
        let part = |rng: &mut Rng| all.iter().filter(|_| rng.percent(80)).cloned().collect::<Vec<_>>();
        let (one, mut other) = (part(&mut rng), part(&mut rng));
        other.retain(|item| !item.path.starts_with(b"n1"));
        for device in [&whole, &narrow] {
            let ((_a, first), (_b, second)) = (resident(device, &one), resident(device, &other));
            let pairs = first.pairs(&second).wait().unwrap();
            let known: BTreeMap<Vec<u8>, NodeId> = (0..first.segment().len())
                .map(|node| (first.segment().path(NodeId(node)).unwrap(), NodeId(node)))
                .collect();
            for node in (0..second.segment().len()).map(NodeId) {
                let path = second.segment().path(node).unwrap();
                assert_eq!(pairs.first(node), known.get(&path).copied(), "seed {seed}, {path:?}");
            }
        }
    }
}

#[test]
fn several_jobs_are_under_way_at_once() {
    let Some(device) = device() else { return };
    let (_place, resident) = resident(&device, &items(&mut Rng::new(3), 1000));
    let tables: Vec<_> = PATTERNS.iter().map(|pattern| table(pattern)).collect();
    let flying: Vec<_> = tables.iter().map(|table| resident.search(table, Against::Names, 0..u32::MAX)).collect();
    // Those given last are asked first; some are given up.
    for (at, (table, pending)) in tables.iter().zip(flying).enumerate().rev() {
        if at % 3 != 0 {
            assert_eq!(pending.wait().unwrap(), naive(resident.segment(), table, Against::Names));
        }
    }
    std::thread::scope(|scope| {
        for table in &tables {
            let resident = &resident;
            scope.spawn(move || {
                let found = resident.search(table, Against::Paths, 0..u32::MAX).wait().unwrap();
                assert_eq!(found, naive(resident.segment(), table, Against::Paths));
            });
        }
    });
}

#[test]
fn a_device_that_is_lost_says_so() {
    let Some(device) = device_with(&DeviceOptions::default()) else { return };
    let (_place, resident) = resident(&device, &items(&mut Rng::new(1), 300));
    let table = table("a");
    let under_way = resident.search(&table, Against::Names, 0..u32::MAX);
    device.destroy();
    // What was under way may have ended before.
    assert!(matches!(under_way.wait(), Ok(_) | Err(GpuError::Lost { .. })));
    let later = resident.search(&table, Against::Names, 0..u32::MAX).wait();
    assert!(matches!(later, Err(GpuError::Lost { .. })), "{later:?}");
    assert!(matches!(Resident::new(&device, resident.segment().clone()), Err(GpuError::Lost { .. })));
}

/// Paths that are there, nearly there, and written in all ways.
fn questions(rng: &mut Rng, segment: &Segment, count: usize) -> Vec<(NodeId, Vec<u8>)> {
    let any = |rng: &mut Rng| NodeId(rng.below(segment.len().into()) as u32);
    (0..count)
        .map(|_| {
            let node = any(rng);
            let mut path = segment.path(node).unwrap();
            let mut start = NodeId::ROOT;
            match rng.below(12) {
                0..4 => {}
                4 => path.insert(0, b'/'),
                5 => path.extend(b"/"),
                6 => path.extend(*rng.pick(&[&b"/.."[..], b"/.", b"//", b"/x", b"\0", b"/../.."])),
                7 => {
                    let at = rng.below(path.len() as u64 + 1) as usize;
                    path.insert(at, *rng.pick(b"/.n\0a"));
                }
                8 => drop(path.pop()),
                9 => path = [&b"./"[..], &path, b"/../", segment.name(node).unwrap()].concat(),
                10 => {
                    // From a directory above it, or from anywhere.
                    let up = segment.parent(node).unwrap();
                    start = if rng.percent(80) { up } else { any(rng) };
                    if segment.node(start).unwrap().kind != Kind::Directory {
                        start = NodeId::ROOT;
                    }
                    path = segment.name(node).unwrap().to_vec();
                }
                _ => path = name_of_len(rng),
            }
            (start, path)
        })
        .collect()
}

/// A path of one or two names, of any length up to some thousand bytes.
fn name_of_len(rng: &mut Rng) -> Vec<u8> {
    let most = *rng.pick(&[20, 130, 260, 6000]);
    let len = rng.below(most) as usize;
    (0..len).map(|at| if at == 40 { b'/' } else { b'a' + rng.below(20) as u8 }).collect()
}

fn compare_paths(resident: &Resident, asked: &[(NodeId, Vec<u8>)]) {
    let resolver = Resolver::new(resident.segment()).unwrap();
    let asked: Vec<Question<'_>> = asked.iter().map(|(start, path)| Question { start: *start, path }).collect();
    let (found, resolved) = (resident.find(&asked), resident.resolve(&asked));
    let (found, resolved) = (found.wait().unwrap(), resolved.wait().unwrap());
    assert_eq!((found.len(), resolved.len()), (asked.len(), asked.len()));
    for ((question, found), resolved) in asked.iter().zip(found).zip(resolved) {
        assert_eq!(found, resolver.find(question.start, question.path).unwrap(), "{question:?}");
        assert_eq!(resolved, resolver.resolve(question.start, question.path).unwrap(), "{question:?}");
    }
}

#[test]
fn paths_lead_where_the_processor_says() {
    let (Some(whole), Some(narrow)) = (device(), narrow()) else { return };
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let items = items(&mut rng, 2500);
        for (device, tables) in [(&whole, true), (&whole, false), (&narrow, true)] {
            let place = Place::new();
            let mut builder = place.builder();
            builder.set_tables(tables);
            items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
            builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
            let segment = Arc::new(Segment::open(&place.out()).unwrap());
            let resident = Resident::new(device, segment.clone()).unwrap();
            compare_paths(&resident, &questions(&mut rng, &segment, 4000));
            compare_paths(&resident, &[]);
        }
    }
}

#[test]
fn a_path_of_any_length_is_hashed_as_the_processor_does() {
    let Some(device) = device() else { return };
    // Each length that the hash has a way of its own for, and those around; all of them are there.
    let mut items = Vec::new();
    for len in 1..300usize {
        let path: Vec<u8> =
            (0..len).map(|at| if at % 90 == 89 && at + 1 < len { b'/' } else { b'a' + (at * 7 % 26) as u8 }).collect();
        let last = [&path[..len - 1], &[b'0' + (len % 10) as u8]].concat();
        items.extend([Item::file(&last)]);
    }
    let place = Place::new();
    let mut builder = place.builder();
    builder.set_tables(true);
    items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
    builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
    let resident = Resident::new(&device, Arc::new(Segment::open(&place.out()).unwrap())).unwrap();
    let asked: Vec<(NodeId, Vec<u8>)> = items.iter().map(|item| (NodeId::ROOT, item.path.clone())).collect();
    compare_paths(&resident, &asked);
}

/// More paths of one hash than a bucket has room for, and one more of it that is not there: each is told apart by its bytes, also where the
/// same question is in a batch many times, and where many batches are under way.
#[test]
fn equal_hashes_and_equal_questions_are_answered_each() {
    let (Some(whole), Some(narrow)) = (device(), narrow()) else { return };
    let items: Vec<Item> = (0..200).map(|n| Item::file(&same_hash(n))).collect();
    let place = Place::new();
    let segment = Arc::new(place.segment_with_tables(&items));
    let alike: Vec<(NodeId, Vec<u8>)> = (0..201).map(|n| (NodeId::ROOT, same_hash(n))).collect();
    let same: Vec<(NodeId, Vec<u8>)> = (0..1000).map(|n| alike[if n % 7 == 0 { 200 } else { 3 }].clone()).collect();
    for device in [&whole, &narrow] {
        let resident = Resident::new(device, segment.clone()).unwrap();
        compare_paths(&resident, &alike);
        compare_paths(&resident, &same);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (resident, asked) = (&resident, if thread % 2 == 0 { &alike } else { &same });
                scope.spawn(move || compare_paths(resident, asked));
            }
        });
    }
}

/// A match may begin and end anywhere: at each place around the borders of words, lines and work groups.
#[test]
fn a_match_is_found_wherever_it_lies() {
    let (Some(whole), Some(narrow)) = (device(), narrow()) else { return };
    let items: Vec<Item> = (0..200_usize)
        .map(|before| Item::file(&[&vec![b'a' + (before % 20) as u8; before][..], b"<needle>"].concat()))
        .chain([Item::file(b"<needl"), Item::file(b"e>"), Item::file(b"needle>")])
        .collect();
    for device in [&whole, &narrow] {
        let (_place, resident) = resident(device, &items);
        for (pattern, count) in [("<needle>", 200), ("^<needle>$", 1), ("e>$", 202), ("<needl", 201)] {
            let table = table(pattern);
            for against in [Against::Names, Against::Paths] {
                let found = resident.search(&table, against, 0..u32::MAX).wait().unwrap();
                assert_eq!(found, naive(resident.segment(), &table, against), "{pattern}");
                assert_eq!(found.len(), count, "{pattern}");
            }
        }
    }
}

#[test]
fn what_no_device_is_sent_the_processor_answers() {
    let Some(device) = device() else { return };
    let (_place, resident) = resident(&device, &[Item::file(b"dir/file")]);
    let long = [&b"./".repeat(1 << 20)[..], b"dir/file"].concat();
    let asked = [(NodeId::ROOT, long), (NodeId::ROOT, b"dir".to_vec()), (NodeId(1), b"file".to_vec())];
    compare_paths(&resident, &asked);
    for start in [NodeId(2), NodeId(99)] {
        let question = [Question { start, path: b"x" }];
        let expected = Resolver::new(resident.segment()).unwrap().find(start, b"x").unwrap_err();
        match resident.find(&question).wait() {
            Err(GpuError::Segment(e)) => assert_eq!(e.to_string(), expected.to_string()),
            other => panic!("{other:?}"),
        }
        // A slash in front needs no place to start.
        let absolute = [Question { start, path: b"/dir" }];
        assert_eq!(resident.find(&absolute).wait().unwrap(), [Some(NodeId(1))]);
    }
}

fn session(segment: &Arc<Segment>, choice: Choice, change: impl FnOnce(&mut SessionOptions)) -> Session {
    let mut options = SessionOptions::default();
    options.router.choice = choice;
    // On most machines there is no other one.
    options.router.software = true;
    change(&mut options);
    Session::new(segment.clone(), options)
}

/// A segment with its table, and paths to ask for.
fn asked(place: &Place, seed: u64) -> (Arc<Segment>, Vec<(NodeId, Vec<u8>)>) {
    let mut rng = Rng::new(seed);
    let mut builder = place.builder();
    builder.set_tables(true);
    items(&mut rng, 2000).iter().for_each(|item| builder.add(&item.entry()).unwrap());
    builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
    let segment = Arc::new(Segment::open(&place.out()).unwrap());
    let asked = questions(&mut rng, &segment, 1000);
    (segment, asked)
}

fn as_questions(asked: &[(NodeId, Vec<u8>)]) -> Vec<Question<'_>> {
    asked.iter().map(|(start, path)| Question { start: *start, path }).collect()
}

#[test]
fn a_session_answers_the_same_whoever_is_asked() {
    if device().is_none() {
        return;
    }
    let place = Place::new();
    let (segment, asked) = asked(&place, 11);
    let questions = as_questions(&asked);
    let expected = Resolver::new(&segment).unwrap().find_batch(&questions).unwrap();
    for choice in [Choice::Cpu, Choice::Gpu, Choice::Auto] {
        let session = session(&segment, choice, |_| {});
        // Several are under way before one is waited for.
        let (first, second, misses) = (session.find(&questions), session.find(&questions), session.resolve(&questions));
        assert_eq!(second.wait().unwrap(), expected);
        assert_eq!(first.wait().unwrap(), expected);
        for (question, answer) in questions.iter().zip(misses.wait().unwrap()) {
            let resolver = Resolver::new(&segment).unwrap();
            assert_eq!(answer, resolver.resolve(question.start, question.path).unwrap(), "{question:?}");
        }
        let route = session.explain(Work::Resolve).unwrap().route;
        let reason = if choice == Choice::Auto { Reason::Only } else { Reason::Asked };
        // Of a real device nothing was measured here, and a program is never taken unless it is asked for.
        assert_eq!((route.engine > 0, route.reason), (choice == Choice::Gpu, reason), "{route}");
        assert_eq!(session.devices().len(), usize::from(choice == Choice::Gpu));
    }
}

#[test]
fn when_a_device_is_lost_the_processor_answers() {
    if device().is_none() {
        return;
    }
    let place = Place::new();
    let (segment, asked) = asked(&place, 12);
    let questions = as_questions(&asked);
    let expected = Resolver::new(&segment).unwrap().find_batch(&questions).unwrap();
    let session = session(&segment, Choice::Gpu, |_| {});
    assert_eq!(session.find(&questions).wait().unwrap(), expected);
    let under_way = session.find(&questions);
    session.devices().iter().for_each(Device::destroy);
    assert_eq!(under_way.wait().unwrap(), expected);
    for _ in 0..3 {
        assert_eq!(session.find(&questions).wait().unwrap(), expected);
    }
    let given_up = (1..session.router().engines().len()).filter_map(|engine| session.router().given_up(engine)).next();
    assert!(given_up.unwrap().contains("was lost"));
    let explained = session.explain(Work::Resolve).unwrap();
    assert!(explained.to_string().contains("not taken"), "{explained}");
    assert_eq!(explained.jobs, 5);
}

#[test]
fn who_asks_for_a_device_that_is_not_there_hears_of_it() {
    let place = Place::new();
    let segment = Arc::new(place.segment(&[Item::file(b"a")]));
    let session = session(&segment, Choice::Gpu, |options| options.only = Some("no device is called that".into()));
    let questions = [Question { start: NodeId::ROOT, path: b"a" }];
    let refused = session.find(&questions).wait();
    assert!(matches!(refused, Err(GpuError::NoAdapter { .. })), "{refused:?}");
    assert!(Device::named("no device is called that", &DeviceOptions::default()).is_err());
}

#[test]
fn what_engines_take_is_measured_once() {
    if device().is_none() {
        return;
    }
    let place = Place::new();
    let (segment, asked) = asked(&place, 13);
    let state = place.dir.path().join("measured.json");
    let made = || session(&segment, Choice::Gpu, |options| options.state = Some(state.clone()));
    let first = made();
    first.measure().unwrap();
    first.save().unwrap();
    for engine in 0..first.router().engines().len() {
        for work in Work::QUESTIONS {
            assert!(first.router().is_measured(engine, work), "{engine}, {work:?}");
        }
        assert_eq!(first.router().is_measured(engine, Work::Open), engine > 0);
    }
    let second = made();
    assert!(second.router().is_measured(1, Work::Resolve));
    let route = second.router().route(Job { work: Work::Resolve, amount: asked.len() as u64 }, |_| Ahead::default());
    assert!(route.to_string().contains("predicted"), "{route}");
    second.measure().unwrap();
    assert!(second.devices().is_empty(), "a device was opened to be measured twice");
}
