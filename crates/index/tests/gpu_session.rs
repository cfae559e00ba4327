//! What a [`Session`] answers with a device is what the processor answers alone: searches, duplicates, differences. On a machine without
//! a device these tests say so; where `CI` is set they fail.
#![cfg(feature = "gpu")]

mod query_support;
mod support;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use adit_index::gpu::{Device, GpuError, adapters, jobs_submitted};
use adit_index::query::{Change, Content, Diff, DiffSummary, Dupes, DupesSummary, Group, Pattern, Query};
use adit_index::resolve::{Question, Resolver};
use adit_index::router::{Ahead, Choice, Engine, Job, Reason, Router, RouterOptions, Work};
use adit_index::session::{Session, SessionOptions};
use adit_index::{Index, NodeId};
use adit_testkit::{Rng, seeds};
use query_support::{Asked, altered, expected};
use support::{Item, Place, items, model};

fn has_device() -> bool {
    if !adapters().is_empty() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "no driver offers a device: install mesa-vulkan-drivers and libvulkan1");
    eprintln!("not run: no driver offers a device (Debian: mesa-vulkan-drivers, libvulkan1)");
    false
}

/// A device has to be asked, whatever it is.
fn forced() -> SessionOptions {
    SessionOptions::default().choice(Choice::Gpu).software(true)
}

/// One that divides segments into small shards, and has little room for hits.
fn narrow() -> SessionOptions {
    let mut options = forced().batch_paths(100);
    options.device.shard_len_max_bytes = 16 << 10;
    options.device.hits = 3;
    options
}

fn found(session: &Session, query: &Query) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    let given = session.search(query, &mut |hit| {
        nodes.push(hit.node);
        ControlFlow::Continue(())
    });
    assert_eq!(given.unwrap(), nodes.len() as u64);
    nodes
}

#[test]
fn a_search_tells_what_the_processor_tells() {
    if !has_device() {
        return;
    }
    for seed in seeds(8) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [0, 5, 400, 2500][rng.below(4) as usize];
        let items = items(&mut rng, count);
        let place = Place::new();
        let segment = Arc::new(place.segment_with_tables(&items));
        let model = model(&items, 0o755, 0);
        let sessions = [forced(), narrow()].map(|options| Session::new(segment.clone(), options));
        for _ in 0..40 {
            let asked = Asked::random(&mut rng, &model);
            let query = asked.query(&segment);
            let (nodes, count) = (query.collect(&segment).unwrap(), query.count(&segment).unwrap());
            for session in &sessions {
                assert_eq!(found(session, &query), nodes, "{asked:?}");
                assert_eq!(session.count(&query).unwrap(), count, "{asked:?}");
            }
            let paths: Vec<_> = nodes.iter().map(|node| segment.path(*node).unwrap()).collect();
            assert_eq!(paths, expected(&model, &asked), "{asked:?}");
        }
    }
}

#[test]
fn who_has_seen_enough_ends_a_search() {
    if !has_device() {
        return;
    }
    let place = Place::new();
    place.build(&items(&mut Rng::new(3), 1000));
    let index = Index::open(&place.out()).unwrap();
    let (segment, session) = (index.segment(), index.session(forced()));
    let query = Query::new().pattern(Pattern::substring(b"n").unwrap());
    let mut seen = Vec::new();
    let given = session.search(&query, &mut |hit| {
        seen.push(hit.node);
        if seen.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((given.unwrap(), &seen[..]), (3, &query.collect(segment).unwrap()[..3]));
}

#[test]
fn a_device_does_what_it_can_and_the_processor_the_rest() {
    if !has_device() {
        return;
    }
    let place = Place::new();
    let segment = Arc::new(place.segment(&items(&mut Rng::new(4), 500)));
    let session = Session::new(segment.clone(), forced());
    let none = session.explain(Work::Substring);
    assert!(none.is_none(), "nobody has asked");
    let search = |query: &Query, work, engine: bool, reason| {
        let before = jobs_submitted();
        assert_eq!(found(&session, query), query.collect(&segment).unwrap());
        let explained = session.explain(work).unwrap();
        assert_eq!((explained.route.engine > 0, explained.route.reason), (engine, reason), "{explained}");
        // Others may ask a device at the same time.
        assert!(!engine || jobs_submitted() != before, "{explained}");
        explained
    };
    let pattern = |text| Query::new().pattern(Pattern::regex(text).unwrap());
    let substring = Query::new().pattern(Pattern::substring(b"n1").unwrap());
    let explained = search(&substring, Work::Substring, true, Reason::Asked);
    assert!(explained.took.is_some() && explained.jobs_of_devices == 1, "{explained}");
    assert!(explained.to_string().contains("because it was asked for"), "{explained}");
    search(&pattern("^[a-p]+[^a]$"), Work::States, true, Reason::Asked);
    search(&pattern("n1.*/n"), Work::Paths, true, Reason::Asked);
    // A word's border in Unicode is in no table, and without a pattern there is nothing to look for.
    search(&pattern(r"\b[n-z][a-m]"), Work::States, false, Reason::NoWay);
    search(&Query::new(), Work::States, false, Reason::NoWay);
}

/// Where signatures leave little to be looked at, the processor looks at that, whatever it was measured to take for all names; a device that was
/// asked for looks at all.
#[test]
fn what_signatures_leave_the_processor_looks_at() {
    if !has_device() {
        return;
    }
    let items: Vec<Item> = (0..20_000).map(|n| Item::file(format!("d{}/file_{n:05}", n % 30).as_bytes())).collect();
    let place = Place::new();
    let segment = Arc::new(place.segment_with_tables(&items));
    let rare = Query::new().pattern(Pattern::substring(b"e_12345").unwrap());
    let often = Query::new().pattern(Pattern::substring(b"file_").unwrap());
    assert!(rare.nodes_left(&segment).unwrap() < 2000);
    assert_eq!(often.nodes_left(&segment).unwrap(), u64::from(segment.len() - 1));
    for choice in [Choice::Auto, Choice::Gpu] {
        let session = Session::new(segment.clone(), forced().choice(choice));
        assert_eq!(found(&session, &rare), rare.collect(&segment).unwrap());
        assert_eq!(session.count(&rare).unwrap(), 1);
        let route = session.explain(Work::Substring).unwrap().route;
        let expected = match choice {
            Choice::Gpu => (true, Reason::Asked),
            // A program that plays a device is none that could be left out.
            _ if !session.router().has_devices() => (false, Reason::Only),
            _ => (false, Reason::LeftOut),
        };
        assert_eq!((route.engine > 0, route.reason), expected, "{route}");
        assert_eq!(session.count(&often).unwrap(), 20_000);
        assert_ne!(session.explain(Work::Substring).unwrap().route.reason, Reason::LeftOut);
    }
}

#[test]
fn what_is_left_to_choose_is_not_given_to_a_program() {
    let place = Place::new();
    let segment = Arc::new(place.segment(&items(&mut Rng::new(5), 500)));
    let session = Session::new(segment.clone(), SessionOptions::default().software(true));
    let query = Query::new().pattern(Pattern::substring(b"n1").unwrap());
    assert_eq!(found(&session, &query), query.collect(&segment).unwrap());
    let explained = session.explain(Work::Substring).unwrap();
    assert_eq!((explained.route.engine, explained.route.reason), (0, Reason::Only), "{explained}");
    session.dupes(&Dupes::new(), &mut |_| ControlFlow::Continue(())).unwrap();
    session.diff(&Diff::new(), &segment, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(session.explain(Work::Twins).unwrap().route.engine, 0);
    assert_eq!(session.explain(Work::Pairs).unwrap().route.engine, 0);
    assert!(session.devices().is_empty());
    assert_eq!(session.explain_all().len(), 3);
}

fn groups(run: impl FnOnce(&mut dyn FnMut(&Group) -> ControlFlow<()>) -> DupesSummary) -> (Vec<Group>, DupesSummary) {
    let mut groups = Vec::new();
    let summary = run(&mut |group| {
        groups.push(group.clone());
        ControlFlow::Continue(())
    });
    (groups, summary)
}

#[test]
fn equal_files_are_told_as_the_processor_tells_them() {
    if !has_device() {
        return;
    }
    for seed in seeds(6) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [0, 5, 400, 2500][rng.below(4) as usize];
        let mut items = items(&mut rng, count);
        for item in items.iter_mut() {
            item.size = [0, 1, 1, 3, 1 << 40][rng.below(5) as usize];
            item.hash = item.hash.map(|_| {
                let mut hash = [7; 16];
                hash[rng.below(16) as usize] = rng.below(8) as u8;
                hash
            });
        }
        let place = Place::new();
        let segment = Arc::new(place.segment(&items));
        let dirs: Vec<NodeId> = (0..segment.len())
            .map(NodeId)
            .filter(|node| segment.kind(*node).unwrap() == adit_core::types::Kind::Directory)
            .collect();
        for options in [forced(), narrow()] {
            let session = Session::new(segment.clone(), options);
            for min_size in [0, 1, 2, 1 << 40] {
                for below in [NodeId::ROOT, *rng.pick(&dirs)] {
                    let dupes = Dupes::new().min_size(min_size).below(below);
                    let of_processor = groups(|sink| dupes.run(&segment, sink).unwrap());
                    assert_eq!(groups(|sink| session.dupes(&dupes, sink).unwrap()), of_processor, "{dupes:?}");
                }
            }
        }
    }
}

fn changes(run: impl FnOnce(&mut dyn FnMut(Change) -> ControlFlow<()>) -> DiffSummary) -> (Vec<Change>, DiffSummary) {
    let mut changes = Vec::new();
    let summary = run(&mut |change| {
        changes.push(change);
        ControlFlow::Continue(())
    });
    (changes, summary)
}

#[test]
fn differences_are_told_as_the_processor_tells_them() {
    if !has_device() {
        return;
    }
    for seed in seeds(6) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [0, 5, 400, 2000][rng.below(4) as usize];
        let old = items(&mut rng, count);
        let places = [Place::new(), Place::new(), Place::new()];
        let before = Arc::new(places[0].segment(&old));
        let others = [&places[1], &places[2]].map(|place| Arc::new(place.segment(&altered(&mut rng, &old))));
        for options in [forced(), narrow()] {
            let session = Session::new(before.clone(), options);
            // One after the other has to make room; a tree is as it is itself.
            for after in [&others[0], &others[1], &before, &others[0]] {
                for content in [Content::Best, Content::SizeAndTime, Content::Size] {
                    let diff = Diff::new().content(content).perm(rng.percent(50)).renames(rng.percent(50));
                    let of_processor = changes(|sink| diff.run(&before, after, sink).unwrap());
                    let told = changes(|sink| session.diff(&diff, after, sink).unwrap());
                    assert_eq!(told, of_processor, "{diff:?}");
                }
            }
            assert!(session.explain(Work::Pairs).unwrap().jobs_of_devices > 0);
        }
    }
}

#[test]
fn a_directory_in_place_of_a_file_is_told_all_the_same() {
    if !has_device() {
        return;
    }
    let (one, other) = (Place::new(), Place::new());
    let files = |names: &[&str]| names.iter().map(|name| Item::file(name.as_bytes())).collect::<Vec<_>>();
    let before = Arc::new(one.segment(&files(&["a", "b/x", "b/y", "c/1", "d", "f/z"])));
    let after = Arc::new(other.segment(&files(&["a/x", "a/y", "b", "c/0", "c/1", "c/2", "e", "f/y", "f/z"])));
    for (from, to) in [(&before, &after), (&after, &before)] {
        let session = Session::new(from.clone(), forced());
        let diff = Diff::new().renames(false);
        let of_processor = changes(|sink| diff.run(from, to, sink).unwrap());
        assert_eq!(changes(|sink| session.diff(&diff, to, sink).unwrap()), of_processor);
    }
}

#[test]
fn a_device_that_is_lost_in_between_costs_no_answer() {
    if !has_device() {
        return;
    }
    let place = Place::new();
    let segment = Arc::new(place.segment(&items(&mut Rng::new(6), 800)));
    let query = Query::new().pattern(Pattern::substring(b"n1").unwrap());
    let dupes = groups(|sink| Dupes::new().run(&segment, sink).unwrap());
    let session = Session::new(segment.clone(), forced());
    assert_eq!(found(&session, &query), query.collect(&segment).unwrap());
    assert_eq!(session.devices().len(), 1);
    session.devices().iter().for_each(Device::destroy);
    for _ in 0..2 {
        assert_eq!(found(&session, &query), query.collect(&segment).unwrap());
        assert_eq!(groups(|sink| session.dupes(&Dupes::new(), sink).unwrap()), dupes);
    }
    let explained = session.explain(Work::Substring).unwrap();
    assert!(explained.to_string().contains("the processor answered in its place"), "{explained}");
}

#[test]
fn a_session_that_is_closed_has_ended() {
    if !has_device() {
        return;
    }
    let place = Place::new();
    let segment = Arc::new(place.segment(&items(&mut Rng::new(9), 300)));
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name =
            |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
        tasks.filter_map(name).filter(|name| name.trim() == "adit-gpu").count()
    };
    // Other tests have devices, too: of those that come and go here, none is left over.
    for destroyed in [false, true].repeat(4) {
        let session = Session::new(segment.clone(), forced());
        let questions = [Question::from(&b"n1"[..])];
        session.find(&questions).wait().unwrap();
        // One is under way, and nobody wants it any more.
        drop(session.find(&questions));
        let ending = session.devices()[0].ending();
        if destroyed {
            session.devices().iter().for_each(Device::destroy);
        }
        assert!(threads() > 0);
        session.close();
        // It has been waited for.
        ending.wait();
    }
}

#[test]
fn more_memory_than_was_allowed_is_not_taken() {
    if !has_device() {
        return;
    }
    let place = Place::new();
    let segment = Arc::new(place.segment(&items(&mut Rng::new(7), 300)));
    let session = Session::new(segment.clone(), forced().resident_len_max_bytes(1000));
    let query = Query::new().pattern(Pattern::substring(b"n1").unwrap());
    assert_eq!(found(&session, &query), query.collect(&segment).unwrap());
    let explained = session.explain(Work::Substring).unwrap();
    assert!(explained.to_string().contains("memory of a device for indexes"), "{explained}");
    assert_eq!(explained.jobs_of_devices, 0);
}

/// A file that knows these devices, all of which are fast, once a job has come to them.
fn known(state: &Path, devices: &[Engine]) {
    let engines = std::iter::once(Engine::processor()).chain(devices.iter().cloned()).collect::<Vec<_>>();
    let count = engines.len();
    let router = Router::new(engines, RouterOptions::default());
    for engine in 0..count {
        for amount in [1 << 6, 1 << 20] {
            let job = Job { work: Work::Resolve, amount };
            let micros = if engine == 0 { amount } else { 60 + amount / 61 };
            router.learn(engine, job, std::time::Duration::from_micros(micros));
        }
    }
    router.save(state, Some(1)).unwrap();
}

#[test]
fn a_device_that_a_file_knows_is_opened_when_it_is_chosen() {
    if !has_device() {
        return;
    }
    let place = Place::new();
    let segment = Arc::new(place.segment_with_tables(&items(&mut Rng::new(8), 800)));
    let state = place.dir.path().join("devices.json");
    let adapter = adapters().remove(0);
    let facts = adapter.facts();
    // The file calls it a real one, so it is taken as one.
    let there = Engine { name: facts.name.clone(), id: facts.id.clone(), software: false };
    let paths: Vec<Vec<u8>> = (0..segment.len()).map(|node| segment.path(NodeId(node)).unwrap()).collect();
    let questions: Vec<Question<'_>> = paths.iter().map(|path| Question::from(&path[..])).collect();
    let answers = Resolver::new(&segment).unwrap().find_batch(&questions).unwrap();
    let options = SessionOptions::default().state(&state).ask_drivers(false);
    // Without the file nothing is known, and no driver is asked.
    let session = Session::new(segment.clone(), options.clone());
    assert_eq!((session.router().engines().len(), session.router().has_devices()), (1, false));
    known(&state, std::slice::from_ref(&there));
    let session = Session::new(segment.clone(), options.clone());
    assert!(session.devices().is_empty());
    assert_eq!(session.router().engines()[1], there);
    assert_eq!(session.find(&questions).wait().unwrap(), answers);
    let explained = session.explain(Work::Resolve).unwrap();
    assert_eq!((explained.route.engine, explained.route.reason), (1, Reason::Fastest), "{explained}");
    assert_eq!((session.devices().len(), explained.jobs_of_devices), (1, 1));
    // What such a session has learned is kept, and the devices that are known stay.
    session.save().unwrap();
    assert_eq!(Session::new(segment.clone(), options.clone()).router().engines()[1], there);
    // One that was taken out since.
    known(&state, &[Engine { id: "another driver".into(), ..there }]);
    let session = Session::new(segment, options);
    assert_eq!(session.find(&questions).wait().unwrap(), answers);
    let explained = session.explain(Work::Resolve).unwrap();
    assert!(explained.to_string().contains("there is no device"), "{explained}");
}

/// The way to a device takes longer than the answer: nobody opens one for that, however fast it is. It needs none to be there: who opened it would
/// hear that.
#[test]
fn one_path_never_goes_to_a_device() {
    let place = Place::new();
    let segment = Arc::new(place.segment_with_tables(&items(&mut Rng::new(10), 800)));
    let state = place.dir.path().join("devices.json");
    let card = Engine { name: "a fast card".into(), id: "no driver has it".into(), software: false };
    known(&state, std::slice::from_ref(&card));
    let session = Session::new(segment.clone(), SessionOptions::default().state(&state).ask_drivers(false));
    assert!(session.router().has_devices());
    let path = segment.path(NodeId(segment.len() - 1)).unwrap();
    let questions = [Question::from(&path[..])];
    for _ in 0..2 {
        assert_eq!(session.find(&questions).wait().unwrap(), [Some(NodeId(segment.len() - 1))]);
        let explained = session.explain(Work::Resolve).unwrap();
        assert_eq!((explained.route.engine, explained.route.reason), (0, Reason::Small), "{explained}");
        assert_eq!(explained.jobs_of_devices, 0, "{explained}");
        assert!(session.devices().is_empty() && session.router().is_usable(1), "{explained}");
    }
}

#[test]
fn who_asks_for_a_device_and_has_only_a_program_hears_of_it() {
    if !has_device() {
        return;
    }
    let place = Place::new();
    let segment = Arc::new(place.segment(&[Item::file(b"a")]));
    let software = adapters().into_iter().find(|adapter| adapter.facts().software);
    let Some(software) = software else { return };
    let options = SessionOptions::default().choice(Choice::Gpu).only(&software.facts().name);
    let query = Query::new().pattern(Pattern::substring(b"a").unwrap());
    let session = Session::new(segment.clone(), options.clone());
    assert!(matches!(session.count(&query), Err(GpuError::OnlySoftware { .. })));
    assert_eq!(Session::new(segment, options.software(true)).count(&query).unwrap(), 1);
}

#[test]
fn what_has_to_be_done_first_is_told() {
    let ahead = Ahead { open: true, bytes: 5 };
    let engine = |name: &str| Engine { name: name.into(), id: name.into(), software: false };
    let router = Router::new(vec![engine("processor"), engine("device")], RouterOptions::default());
    let job = Job { work: Work::States, amount: 1000 };
    let route = router.route_to_processor(job, Reason::EndsEarly, |_| ahead);
    let text = route.to_string();
    assert!(text.contains("it may end before all was looked at") && text.contains("not measured yet"), "{text}");
}
