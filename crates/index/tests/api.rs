//! [`Index`]: however it is opened and asked, it says what the naive model says; batches and searches under way at once, given up and waited for;
//! and what its cache of paths is worth.

mod query_support;
mod support;

use std::fs;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

use adit_core::error::ErrorKind;
use adit_core::types::Kind;
use adit_index::fuzzing::{opened, resealed};
use adit_index::layout::{Header, Section};
use adit_index::query::{Pattern, Query};
use adit_index::{Batch, Index, IndexOptions, Miss, MissKind, NodeId, Segment};
use adit_testkit::{Rng, seeds};
use query_support::Asked as Searched;
use support::paths::{expected, question};
use support::{Item, Place, items, model};

/// Any way to open an index.
fn options(rng: &mut Rng) -> IndexOptions<'static> {
    Index::options()
        .cache_size(*rng.pick(&[0, 1, 4 << 10, 4 << 20]))
        .cache_known(rng.percent(50))
        .batch_size(*rng.pick(&[0, 1, 7, 100, 4096]))
        .threads(rng.below(4) as usize)
        .make_tables(rng.percent(30))
        .large_pages(rng.percent(30))
        .verify(rng.percent(30))
}

type Asked = Vec<(NodeId, Vec<u8>, Result<NodeId, Miss>)>;

/// Paths, and where they lead as the model says.
fn asked(rng: &mut Rng, segment: &Segment, items: &[Item], count: usize) -> Asked {
    let model = model(items, 0o755, 0);
    let keys: Vec<_> = model.keys().collect();
    let dirs: Vec<_> = model.iter().filter(|(_, item)| item.kind == Kind::Directory).map(|(key, _)| key).collect();
    let id = |names: &[Vec<u8>]| names.iter().fold(NodeId::ROOT, |at, name| segment.lookup(at, name).unwrap().unwrap());
    let one = |rng: &mut Rng| {
        let start = if rng.percent(50) { &Vec::new() } else { *rng.pick(&dirs) };
        let path = question(rng, &keys);
        let answer = match expected(&model, start, &path) {
            Ok(names) => Ok(id(&names)),
            Err((names, at, why)) => Err(Miss { reached: id(&names), at, why }),
        };
        (id(start), path, answer)
    };
    (0..count).map(|_| one(rng)).collect()
}

fn batch_of(asked: &Asked) -> Batch {
    let mut batch = Batch::with_capacity(asked.len(), 0);
    asked.iter().for_each(|(start, path, _)| batch.push_from(*start, path));
    batch
}

#[test]
fn every_way_to_open_and_to_ask_says_what_the_model_says() {
    for seed in seeds(40) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [0, 1, 5, 40, 400, 2000][rng.below(6) as usize];
        let items = items(&mut rng, count);
        let place = Place::new();
        let segment = if rng.percent(50) { place.segment(&items) } else { place.segment_with_tables(&items) };
        let asked = asked(&mut rng, &segment, &items, 300);
        let (batch, precise) = (batch_of(&asked), asked.iter().map(|(_, _, answer)| *answer));
        for _ in 0..4 {
            let options = options(&mut rng);
            println!("{options:?}");
            let index = if rng.percent(80) {
                options.open(&place.out()).unwrap()
            } else {
                options.over(Arc::new(Segment::open(&place.out()).unwrap())).unwrap()
            };
            // Twice, so that what is cached is asked for too.
            for (start, path, answer) in asked.iter().chain(&asked) {
                assert_eq!(index.resolve_from(*start, path).unwrap(), *answer, "{start:?} {}", path.escape_ascii());
                if *start == NodeId::ROOT {
                    assert_eq!(index.resolve(path).unwrap(), *answer);
                }
            }
            assert!(index.resolve_batch(&batch).unwrap().into_iter().eq(precise.clone()));
            assert!(index.lookup_batch(&batch).unwrap().into_iter().eq(precise.clone().map(Result::ok)));
            let (resolved, looked_up) = (index.resolve_async(batch.clone()), index.lookup_async(batch.clone()));
            assert!(looked_up.wait().unwrap().into_iter().eq(precise.clone().map(Result::ok)));
            assert!(resolved.wait().unwrap().into_iter().eq(precise.clone()));
        }
    }
}

#[test]
fn many_threads_ask_one_index_at_once() {
    let mut rng = Rng::new(seeds(1).next().unwrap());
    let items = items(&mut rng, 3000);
    let place = Place::new();
    let segment = place.segment(&items);
    let asked = asked(&mut rng, &segment, &items, 1000);
    // So small that what one thread keeps drives out what another one needs.
    let index = Index::options().cache_size(20 << 10).batch_size(50).threads(3).open(&place.out()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (index, asked) = (index.clone(), &asked);
            scope.spawn(move || {
                for round in 0..3 {
                    for (start, path, answer) in asked.iter().skip(thread * 100).step_by(round + 1) {
                        assert_eq!(index.resolve_from(*start, path).unwrap(), *answer);
                    }
                    let flying: Vec<_> = (0..5).map(|_| index.resolve_async(batch_of(asked))).collect();
                    for (at, answers) in flying.into_iter().enumerate() {
                        // Some are given up.
                        if at % 2 == 0 {
                            let answers = answers.wait().unwrap();
                            assert!(answers.into_iter().eq(asked.iter().map(|(_, _, answer)| *answer)));
                        }
                    }
                }
            });
        }
    });
    let stats = index.cache_stats();
    assert!(stats.bytes <= stats.max_bytes && stats.hits > 0 && stats.misses > 0, "{stats:?}");
    no_thread_stays();
}

/// Threads of indexes in this process.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.map(name).filter(|name| name.starts_with("adit-index-ask")).count()
}

/// Waits until there are none: tests beside this one have some for a moment.
fn no_thread_stays() {
    while threads() > 0 {
        std::thread::yield_now();
    }
}

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// An executor of a few lines: asks each future again when it was woken, and nobody else.
#[test]
fn batches_are_futures_for_any_executor() {
    let items: Vec<Item> = (0..5000).map(|n| Item::file(format!("d{}/{n}", n % 7).as_bytes())).collect();
    let place = Place::new();
    place.segment_with_tables(&items);
    let index = Index::options().batch_size(100).threads(2).open(&place.out()).unwrap();
    let batch = |from: usize, len: usize| -> Batch { items[from..from + len].iter().map(|item| &item.path).collect() };
    type Flying = Pin<Box<dyn Future<Output = adit_core::Result<Vec<Option<NodeId>>>>>>;
    let lens: Vec<usize> = (0..60).map(|n| [0, 1, 3000, 99, 100, 101][n % 6]).collect();
    let mut flying: Vec<Option<(Arc<Woken>, u32, Flying)>> = lens
        .iter()
        .enumerate()
        .map(|(n, len)| {
            Some((Arc::new(Woken(AtomicU32::new(1))), 0, Box::pin(index.lookup_async(batch(n, *len))) as _))
        })
        .collect();
    let mut left = flying.len();
    while left > 0 {
        for (n, place) in flying.iter_mut().enumerate() {
            let Some((woken, seen, future)) = place else { continue };
            let now = woken.0.load(Relaxed);
            if now == *seen {
                continue;
            }
            *seen = now;
            let waker = Waker::from(woken.clone());
            if let Poll::Ready(answers) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                let found: Vec<_> =
                    answers.unwrap().into_iter().map(|node| index.path(node.unwrap()).unwrap()).collect();
                assert!(found.iter().eq(items[n..n + lens[n]].iter().map(|item| &item.path)), "{n}");
                (*place, left) = (None, left - 1);
            }
        }
        std::thread::yield_now();
    }
    no_thread_stays();
}

#[test]
fn what_is_given_up_costs_nothing_and_leaves_no_thread() {
    let items: Vec<Item> = (0..20_000).map(|n| Item::file(format!("a directory/{n}").as_bytes())).collect();
    let place = Place::new();
    place.segment(&items);
    let index = Index::options().batch_size(10).threads(1).cache_size(0).open(&place.out()).unwrap();
    let batch: Batch = items.iter().map(|item| &item.path).collect();
    // Begun and never asked, asked once, and one in the middle that is waited for.
    let mut never: Vec<_> = (0..50).map(|_| index.resolve_async(batch.clone())).collect();
    let waited = index.resolve_async(batch.clone());
    for answers in never.iter_mut().take(25) {
        let _ = pin!(answers).poll(&mut Context::from_waker(Waker::noop()));
    }
    drop(never);
    assert_eq!(waited.wait().unwrap().len(), items.len());
    // The last handle goes while a batch is under way.
    let last = index.resolve_async(batch);
    drop(index);
    assert!(last.wait().unwrap().iter().all(Result::is_ok));
    no_thread_stays();
}

/// Several at once, some of which nobody waits for.
#[test]
fn searches_that_go_on_meanwhile_find_what_the_model_has() {
    for seed in seeds(15) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [1, 40, 400, 2000][rng.below(4) as usize];
        let items = items(&mut rng, count);
        let model = model(&items, 0o755, 0);
        let place = Place::new();
        let segment = if rng.percent(50) { place.segment(&items) } else { place.segment_with_tables(&items) };
        let index = options(&mut rng).over(Arc::new(segment)).unwrap();
        let asked: Vec<Searched> = (0..20).map(|_| Searched::random(&mut rng, &model)).collect();
        let begin = |asked: &Searched| {
            let query = asked.query(index.segment());
            (index.find_async(&query), index.count_async(&query))
        };
        let flying: Vec<_> = asked.iter().map(|asked| (begin(asked), begin(asked))).collect();
        for (asked, (first, (nodes, count))) in asked.iter().zip(flying) {
            // Before the others are waited for.
            drop(first);
            let paths: Vec<_> = nodes.wait().unwrap().into_iter().map(|node| index.path(node).unwrap()).collect();
            assert_eq!(paths, query_support::expected(&model, asked), "{asked:?}");
            assert_eq!(count.wait().unwrap(), paths.len() as u64, "{asked:?}");
        }
    }
    no_thread_stays();
}

/// The last handle goes while searches are under way, and so do they.
#[test]
fn a_search_whose_future_is_dropped_leaves_no_thread() {
    let items: Vec<Item> = (0..20_000).map(|n| Item::file(format!("a directory/{n}").as_bytes())).collect();
    let place = Place::new();
    place.segment(&items);
    let index = Index::options().threads(2).open(&place.out()).unwrap();
    let query = Query::new().pattern(Pattern::regex("y/[0-9]*7$").unwrap());
    let mut flying: Vec<_> = (0..50).map(|_| index.find_async(&query)).collect();
    let waited = flying.pop().unwrap();
    for search in flying.iter_mut().take(25) {
        let _ = pin!(search).poll(&mut Context::from_waker(Waker::noop()));
    }
    drop((flying, index));
    assert_eq!(waited.wait().unwrap().len(), 2000);
    no_thread_stays();
}

#[test]
fn an_error_in_a_batch_is_that_of_its_first_path() {
    let place = Place::new();
    let items: Vec<Item> = (0..1000).map(|n| Item::file(format!("{n}").as_bytes())).collect();
    place.segment_with_tables(&items);
    let index = Index::options().batch_size(10).threads(2).open(&place.out()).unwrap();
    let mut batch: Batch = items.iter().map(|item| &item.path).collect();
    batch.push_from(NodeId(1), "x");
    batch.extend(items.iter().map(|item| &item.path));
    batch.push_from(NodeId(9999), "x");
    for _ in 0..20 {
        let kinds = [
            index.resolve_batch(&batch).unwrap_err().kind(),
            index.lookup_batch(&batch).unwrap_err().kind(),
            index.resolve_async(batch.clone()).wait().unwrap_err().kind(),
            index.lookup_async(batch.clone()).wait().unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::NotDirectory; 4]);
    }
}

#[test]
fn damage_is_an_error_of_every_question_that_it_concerns() {
    let place = Place::new();
    let items: Vec<Item> = (0..30_000).map(|n| Item::file(format!("some directory/{n}").as_bytes())).collect();
    place.segment_with_tables(&items);
    let mut bytes = fs::read(place.out()).unwrap();
    let header = Header::decode(&bytes[..4096]).unwrap();
    bytes[header.section(Section::Names).unwrap().offset as usize + 70_000] ^= 1;
    fs::write(place.out(), &bytes).unwrap();
    let index = Index::open(&place.out()).unwrap();
    let batch = || -> Batch { items.iter().take(1000).map(|item| &item.path).collect() };
    let kinds = [
        index.resolve("some directory/1").unwrap_err().kind(),
        index.resolve_batch(&batch()).unwrap_err().kind(),
        index.resolve_async(batch()).wait().unwrap_err().kind(),
        index.paths(&Query::new().pattern(Pattern::substring(b"7").unwrap())).unwrap_err().kind(),
        index.count_async(&Query::new().pattern(Pattern::substring(b"7").unwrap())).wait().unwrap_err().kind(),
        index.verify(&mut |_| ControlFlow::Continue(())).unwrap_err().kind(),
        Index::options().verify(true).open(&place.out()).unwrap_err().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::Corrupt; 7]);
    // Checksums that are right again say nothing of what they are of: a look at all of it does.
    let lying = resealed(&bytes).map(|bytes| Arc::new(opened(&bytes).unwrap())).unwrap();
    assert_eq!(Index::options().verify(true).over(lying).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn the_cache_holds_what_is_walked_and_no_more_than_it_may() {
    let items: Vec<Item> = (0..2000).map(|n| Item::file(format!("a/b/c/{n}").as_bytes())).collect();
    let place = Place::new();
    place.segment(&items);
    let index = Index::options().cache_size(64 << 10).open(&place.out()).unwrap();
    let dir = index.resolve("a/b").unwrap().unwrap();
    let stats = index.cache_stats();
    assert_eq!((stats.hits, stats.misses, stats.entries, stats.hit_rate()), (0, 1, 1, Some(0.0)));
    // The same bytes from another directory are another path.
    let miss = Miss { reached: NodeId::ROOT, at: 0, why: MissKind::NotFound };
    for _ in 0..3 {
        assert_eq!(index.resolve("c/7").unwrap(), Err(miss));
        let node = index.resolve_from(dir, "c/7").unwrap().unwrap();
        assert_eq!(index.path(node).unwrap(), b"a/b/c/7");
        assert_eq!(index.resolve_from(dir, "/a/b/c/7").unwrap(), Ok(node));
        assert_eq!(index.resolve("/a/b/c/7").unwrap(), Ok(node));
    }
    let stats = index.cache_stats();
    assert_eq!((stats.entries, stats.negative_entries), (4, 1));
    assert_eq!((stats.hits, stats.negative_hits, stats.misses), (9, 2, 4));
    for item in items.iter().chain(&items) {
        index.resolve(&item.path).unwrap().unwrap();
    }
    let stats = index.cache_stats();
    assert!(stats.bytes <= stats.max_bytes && stats.bytes > stats.max_bytes / 2, "{stats:?}");
    assert!(stats.entries < 1000 && stats.entries > 100, "{stats:?}");
    // Without one, nothing is counted, and all is as right.
    let index = Index::options().cache_size(0).open(&place.out()).unwrap();
    assert!(index.resolve("a/b/c/1").unwrap().is_ok());
    assert_eq!(index.cache_stats(), Default::default());
}

#[test]
fn what_a_table_knows_takes_no_room_in_the_cache() {
    let items: Vec<Item> = (0..100).map(|n| Item::file(format!("a/b/{n}").as_bytes())).collect();
    let place = Place::new();
    place.segment_with_tables(&items);
    // Unless that is said.
    let keeps_all = Index::options().cache_known(true).open(&place.out()).unwrap();
    for _ in 0..3 {
        assert!(keeps_all.resolve("a/b/7").unwrap().is_ok() && keeps_all.resolve("a/b/none").unwrap().is_err());
    }
    let stats = keeps_all.cache_stats();
    assert_eq!((stats.entries, stats.misses, stats.hits, stats.negative_hits), (2, 2, 4, 2));
    let index = Index::open(&place.out()).unwrap();
    let dir = index.resolve("a").unwrap().unwrap();
    for path in ["a/b/1", "/a/b/1", "a//b/1", "./a", "a/b/none", "none/at/all", "a/b/1/x", "a/"] {
        let _ = index.resolve(path).unwrap();
        let _ = index.resolve_from(dir, path).unwrap();
    }
    let stats = index.cache_stats();
    assert_eq!((stats.hits, stats.misses, stats.entries), (0, 0, 0));
    for _ in 0..2 {
        assert!(index.resolve("a/b/../b/1").unwrap().is_ok());
    }
    let stats = index.cache_stats();
    assert_eq!((stats.hits, stats.misses, stats.entries), (1, 1, 1));
}
