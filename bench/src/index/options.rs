//! Options of an index whose defaults are chosen by what they cost.

use std::time::Instant;

use adit_index::{Batch, Index, Segment};
use anyhow::{Result, ensure};

use super::tree::Tree;
use crate::RunArgs;
use crate::report::{Aim, Report, Row, Unit};

/// Paths that one thread takes at once; 4096 is the default.
const BATCH_SIZES: [(&str, usize); 5] =
    [("256", 256), ("1024", 1024), ("4096", 4096), ("16384", 16_384), ("65536", 65_536)];
/// Batches of so many paths.
const BATCHES: [(usize, Row); 3] =
    [(3_000, row("a batch of 3,000")), (100_000, row("a batch of 100,000")), (1_000_000, row("a batch of 1,000,000"))];

const fn row(name: &'static str) -> Row {
    Row { name, unit: Unit::Nanos, aim: Aim::None }
}

pub fn run(args: &RunArgs, tree: &Tree, segment: &Segment, about: &str, size: &str, report: &mut Report) -> Result<()> {
    let group = format!("options-{size}");
    let about = format!(
        "{about} Batches of paths that are there, in random order, under way in the background (`Index::lookup_async`), by how many paths a \
         thread takes at once (`IndexOptions::batch_size`). By the clock, from the call to the answers; nanoseconds for one path. The threads of an index \
         that is idle have to be started."
    );
    report.group(&group, &about);
    let indexes = BATCH_SIZES
        .iter()
        .map(|(name, paths)| Ok((*name, Index::options().batch_size(*paths).open(segment.file_path())?)))
        .collect::<Result<Vec<_>>>()?;
    for (count, row) in &BATCHES {
        let questions = tree.questions(*count, false);
        for round in 0..args.rounds() as usize {
            for at in 0..indexes.len() {
                let (side, index) = &indexes[(at + round) % indexes.len()];
                let batch: Batch = questions.iter().collect();
                let started = Instant::now();
                let answers = index.lookup_async(batch).wait()?;
                let took = started.elapsed();
                ensure!(answers.iter().all(Option::is_some), "all of them are there");
                report.add(&group, row, side, took.as_secs_f64() * 1e9 / *count as f64);
            }
        }
    }
    Ok(())
}
