//! Making an index, what it takes, and how two differ.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use adit_index::Segment;
use adit_index::layout::Section;
use adit_index::query::Diff;
use anyhow::{Result, ensure};

use super::find::{make_files, output};
use super::tree::Tree;
use crate::report::{ADIT, Aim, Report, Row, Unit};
use crate::{RunArgs, rivals};

const PLOCATE: &str = "plocate";
/// Larger trees are not made of real files.
const REAL_FILES_MAX: usize = 1_000_000;
/// What the builder may take, in bytes.
const MEMORY: u64 = 512 << 20;

const FROM_LIST: Row = Row { name: "from a list", unit: Unit::Seconds, aim: Aim::None };
const FROM_FOLDER: Row = Row { name: "from a folder", unit: Unit::Seconds, aim: Aim::Side(PLOCATE, 1.0) };
const BYTES: Row = Row { name: "bytes a file, in all", unit: Unit::Bytes, aim: Aim::None };
const COLUMNS: Row = Row { name: "bytes a file: columns", unit: Unit::Bytes, aim: Aim::Bound(24.0) };
const TABLES: Row = Row { name: "bytes a file: tables", unit: Unit::Bytes, aim: Aim::Bound(16.0) };
const NAMES: Row = Row { name: "bytes a file: names", unit: Unit::Bytes, aim: Aim::None };
const HASHES: Row = Row { name: "bytes a file: hashes", unit: Unit::Bytes, aim: Aim::None };

pub fn run(args: &RunArgs, tree: &Tree, about: &str, size: &str, work: &Path, report: &mut Report) -> Result<()> {
    let group = format!("build-{size}");
    let about = format!(
        "{about} The list: adit's builder takes it from memory, in its order, with sizes, times and hashes, and {} MiB for \
         itself; plocate-build reads paths from a file. The folder: empty files, warm; `adit index build` and `updatedb`.",
        MEMORY >> 20
    );
    report.group(&group, &about);
    rivals::path_searchers()?;
    let (list, index, database) = (work.join("list"), work.join("built"), work.join("plocate.db"));
    tree.paths.write_lines(&list)?;
    let count = tree.paths.len() as f64;
    let rounds = if size == "10m" { args.rounds().min(3) } else { args.rounds() };
    for _ in 0..rounds {
        let started = Instant::now();
        let segment = tree.index(&index, MEMORY, |_| Some(false))?;
        report.add(&group, &FROM_LIST, ADIT, started.elapsed().as_secs_f64());
        let started = Instant::now();
        output(Command::new("plocate-build").arg("--plaintext").arg(&list).arg(&database))?;
        report.add(&group, &FROM_LIST, PLOCATE, started.elapsed().as_secs_f64());
        report.add(&group, &BYTES, ADIT, segment.file_len() as f64 / count);
        report.add(&group, &BYTES, PLOCATE, fs::metadata(&database)?.len() as f64 / count);
        let sum = |wanted: &dyn Fn(Section) -> bool| {
            segment.sections().filter(|(section, _)| wanted(*section)).map(|(_, len)| len).sum::<u64>() as f64
                / f64::from(segment.len())
        };
        let is_column = |section| !matches!(section, Section::Names | Section::Hashes) && !section.is_table();
        report.add(&group, &COLUMNS, ADIT, sum(&is_column));
        report.add(&group, &TABLES, ADIT, sum(&Section::is_table));
        report.add(&group, &NAMES, ADIT, sum(&|section| section == Section::Names));
        report.add(&group, &HASHES, ADIT, sum(&|section| section == Section::Hashes));
    }
    if tree.paths.len() <= REAL_FILES_MAX {
        from_folder(args, tree, &group, work, report)?;
    }
    Ok(())
}

fn from_folder(args: &RunArgs, tree: &Tree, group: &str, work: &Path, report: &mut Report) -> Result<()> {
    let adit = args.adit.clone().map_or_else(rivals::adit, Ok)?;
    let real = make_files(tree, work)?;
    let (index, database) = (work.join("built"), work.join("plocate.db"));
    for round in 0..=args.rounds() {
        // What is there already would be brought up to date, and not made.
        let _ = fs::remove_file(&index);
        let _ = fs::remove_file(&database);
        let started = Instant::now();
        output(Command::new(&adit).args(["index", "build"]).arg(&real).arg("-o").arg(&index))?;
        let ours = started.elapsed().as_secs_f64();
        let started = Instant::now();
        let mut updatedb = Command::new("updatedb");
        updatedb.args(["--require-visibility", "0", "--prunepaths", "", "--prunefs", "", "--prune-bind-mounts", "no"]);
        output(updatedb.arg("-U").arg(&real).arg("-o").arg(&database))?;
        // The first round warms the caches.
        if round > 0 {
            report.add(group, &FROM_FOLDER, ADIT, ours);
            report.add(group, &FROM_FOLDER, PLOCATE, started.elapsed().as_secs_f64());
        }
    }
    fs::remove_dir_all(&real)?;
    Ok(())
}

/// One in a hundred files changed, one in a hundred removed, one in a hundred new.
pub fn diff(args: &RunArgs, tree: &Tree, after: &Segment, about: &str, work: &Path, report: &mut Report) -> Result<()> {
    let group = "diff-1m";
    let about =
        format!("{about} One in a hundred changed, one in fifty is in one of the two alone. In this process, warm.");
    report.group(group, &about);
    let kept = |at: usize| match at % 100 {
        17 => Some(true),
        23 | 24 => None,
        _ => Some(false),
    };
    let before = tree.index(&work.join("before"), MEMORY, kept)?;
    let expected = |wanted: fn(usize) -> bool| (0..tree.paths.len()).filter(|at| wanted(at % 100)).count() as u64;
    for (row, renames) in [("two trees", false), ("two trees, renames told", true)] {
        let row = Row { name: row, unit: Unit::Seconds, aim: Aim::Bound(0.3) };
        for _ in 0..args.rounds() {
            let started = Instant::now();
            let summary = Diff::new().renames(renames).run(&before, after, &mut |_| ControlFlow::Continue(()))?;
            report.add(group, &row, ADIT, started.elapsed().as_secs_f64());
            ensure!(summary.changed == expected(|at| at == 17), "{summary:?}");
            ensure!(summary.added >= expected(|at| matches!(at, 23 | 24)), "{summary:?}");
        }
    }
    Ok(())
}
