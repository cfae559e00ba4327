//! Paths to nodes, beside a map of path strings.

use std::hint::black_box;

use adit_index::{Index, NodeId, Question, Resolver, ResolverOptions, Segment};
use anyhow::{Result, ensure};

use super::tree::{Texts, Tree};
use crate::RunArgs;
use crate::micro::cpu_time;
use crate::report::{ADIT, Aim, Report, Row, Unit};

/// The map of path strings.
const MAP: &str = "hashbrown";
/// Most paths that are asked for in a sample.
const QUESTIONS_MAX: usize = 1_000_000;

pub fn run(args: &RunArgs, tree: &Tree, segment: &Segment, about: &str, size: &str, report: &mut Report) -> Result<()> {
    let group = format!("resolve-{size}");
    let asked = QUESTIONS_MAX.min(tree.paths.len().max(100_000));
    let about = format!(
        "{about} {asked} questions in random order, all hits or all misses; a miss differs from a path in one byte of its name. \
         One thread; nanoseconds of its processor time for one path. `in memory`: the index is read into memory with huge \
         pages; else it is mapped."
    );
    report.group(&group, &about);
    let bound = |small: f64, medium: f64, large: f64| match size {
        "10k" => Aim::Bound(small),
        "1m" => Aim::Bound(medium),
        _ => Aim::Bound(large),
    };
    let row = |name, aim| Row { name, unit: Unit::Nanos, aim };
    let options = one_thread();
    let mapped = Resolver::with(segment, options)?;
    let loaded = Segment::load(segment.file_path())?;
    let loaded = Resolver::with(&loaded, options)?;
    let map: std::collections::HashMap<Box<[u8]>, u32, hashbrown::DefaultHashBuilder> =
        tree.paths.iter().enumerate().map(|(at, path)| (path.into(), at as u32)).collect();
    for (kind, missing) in [("hit", false), ("miss", true)] {
        let questions = tree.questions(asked, missing);
        let expected = if missing { 0 } else { asked };
        let batch: Vec<Question<'_>> = questions.iter().map(Question::from).collect();
        let mut answers = vec![None; batch.len()];
        let (single, many) = match kind {
            "hit" => (
                (
                    row("one at a time, hit", bound(100.0, 250.0, f64::INFINITY)),
                    row("one at a time, hit, in memory", Aim::None),
                ),
                (
                    row("in batches, hit", bound(100.0, 1e9 / 8.5e6, 1e9 / 6.5e6)),
                    row("in batches, hit, in memory", bound(100.0, 1e9 / 8.5e6, 1e9 / 6.5e6)),
                ),
            ),
            _ => (
                (row("one at a time, miss", Aim::None), row("one at a time, miss, in memory", Aim::None)),
                (
                    row("in batches, miss", bound(100.0, 1e9 / 15e6, f64::INFINITY)),
                    row("in batches, miss, in memory", bound(100.0, 1e9 / 15e6, f64::INFINITY)),
                ),
            ),
        };
        for _ in 0..args.rounds() {
            let find = |resolver: &Resolver<'_>| {
                sample(asked, expected, || {
                    one_by_one(&questions, |path| resolver.find(NodeId::ROOT, path).ok().flatten().is_some())
                })
            };
            report.add(&group, &single.0, ADIT, find(&mapped)?);
            report.add(&group, &single.1, ADIT, find(&loaded)?);
            let of_map = sample(asked, expected, || one_by_one(&questions, |path| map.contains_key(path)))?;
            for row in [&single.0, &single.1, &many.0, &many.1] {
                report.add(&group, row, MAP, of_map);
            }
            let mut in_batches = |resolver: &Resolver<'_>| {
                sample(asked, expected, || {
                    let found = resolver.find_into(&batch, &mut answers);
                    found.map_or(usize::MAX, |()| answers.iter().filter(|answer| answer.is_some()).count())
                })
            };
            report.add(&group, &many.0, ADIT, in_batches(&mapped)?);
            report.add(&group, &many.1, ADIT, in_batches(&loaded)?);
        }
    }
    let hot = tree.questions(1000, false);
    let row = Row { name: "one of 1000 paths again and again", unit: Unit::Nanos, aim: Aim::None };
    let cached_row =
        Row { name: "one of 1000 paths again and again, by the path cache", unit: Unit::Nanos, aim: Aim::Bound(100.0) };
    let cached = Index::options().cache_known(true).threads(1).open(segment.file_path())?;
    for _ in 0..args.rounds() {
        let again =
            |has: &dyn Fn(&[u8]) -> bool| sample(100_000, 100_000, || (0..100).map(|_| one_by_one(&hot, has)).sum());
        report.add(&group, &row, ADIT, again(&|path| mapped.find(NodeId::ROOT, path).ok().flatten().is_some())?);
        report.add(&group, &row, MAP, again(&|path| map.contains_key(path))?);
        report.add(&group, &cached_row, ADIT, again(&|path| cached.resolve(path).is_ok_and(|found| found.is_ok()))?);
        report.add(&group, &cached_row, MAP, again(&|path| map.contains_key(path))?);
    }
    Ok(())
}

fn one_thread() -> ResolverOptions {
    let mut options = ResolverOptions::default();
    options.threads = 1;
    options
}

/// How many of the paths are there.
fn one_by_one(paths: &Texts, has: impl Fn(&[u8]) -> bool) -> usize {
    paths.iter().filter(|path| black_box(has(path))).count()
}

/// Nanoseconds of this thread for one of so many.
fn sample(count: usize, expected: usize, work: impl FnOnce() -> usize) -> Result<f64> {
    let started = cpu_time();
    let found = work();
    let took = cpu_time() - started;
    ensure!(found == expected, "{found} of {count} paths were found, and {expected} are there");
    Ok(took.as_secs_f64() * 1e9 / count as f64)
}
