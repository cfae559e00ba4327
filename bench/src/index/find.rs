//! Searches: in this process, and the program beside plocate, fd and ripgrep.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use adit_index::Segment;
use adit_index::query::{Pattern, Query};
use anyhow::{Context, Result, ensure};

use super::tree::Tree;
use crate::micro::cpu_time;
use crate::report::{ADIT, Aim, Report, Row, Unit};
use crate::{RunArgs, rivals};

const PLOCATE: &str = "plocate";
const FD: &str = "fd";
const RIPGREP: &str = "ripgrep";
/// Larger trees are not made of real files.
const REAL_FILES_MAX: usize = 1_000_000;

/// A question in the words of each program.
struct Asked {
    row: &'static str,
    /// Which of `adit index`.
    verb: &'static str,
    /// Its arguments behind the index.
    adit: Vec<String>,
    /// Of `plocate`: names are compared, as the others do. It and `fd` look for one path at a time.
    plocate: Option<Vec<String>>,
    fd: Option<Vec<String>>,
    /// Of `rg`, whose lines are paths.
    ripgrep: Vec<String>,
    /// Nothing is found, which most of the programs end with 1 for.
    is_miss: bool,
}

fn questions(tree: &Tree) -> Vec<Asked> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let one = one_name(tree);
    let path = |at| String::from_utf8_lossy(tree.paths.get(at)).into_owned();
    let middle = path(tree.paths.len() / 2);
    // A byte differs.
    let missing = middle.replace('.', "_");
    let thousand: Vec<String> = (0..1000).map(|at| path(at * (tree.paths.len() / 1000))).collect();
    vec![
        Asked {
            row: "one path",
            verb: "resolve",
            adit: words(&[&middle]),
            plocate: Some(words(&[&middle])),
            fd: Some(words(&["--full-path", "--fixed-strings", &middle])),
            ripgrep: words(&["-F", "-x", &middle]),
            is_miss: false,
        },
        Asked {
            row: "one path that is not there",
            verb: "resolve",
            adit: words(&[&missing]),
            plocate: Some(words(&[&missing])),
            fd: Some(words(&["--full-path", "--fixed-strings", &missing])),
            ripgrep: words(&["-F", "-x", &missing]),
            is_miss: true,
        },
        Asked {
            row: "1000 paths",
            verb: "resolve",
            adit: thousand.clone(),
            plocate: None,
            fd: None,
            ripgrep: [words(&["-F", "-x"]), thousand.into_iter().flat_map(|path| ["-e".to_owned(), path]).collect()]
                .concat(),
            is_miss: false,
        },
        Asked {
            row: "substring, one hit",
            verb: "find",
            adit: words(&["--fixed", &one]),
            plocate: Some(words(&["-b", &one])),
            fd: Some(words(&["--fixed-strings", &one])),
            ripgrep: words(&["-F", &one]),
            is_miss: false,
        },
        Asked {
            row: "substring, one hit, any case",
            verb: "find",
            adit: words(&["--fixed", "-i", &one.to_uppercase()]),
            plocate: Some(words(&["-b", "-i", &one.to_uppercase()])),
            fd: Some(words(&["--fixed-strings", "--ignore-case", &one.to_uppercase()])),
            ripgrep: words(&["-F", "-i", &one.to_uppercase()]),
            is_miss: false,
        },
        Asked {
            row: "substring, one hit in sixteen",
            verb: "find",
            adit: words(&["--fixed", "camera_", "--type", "file"]),
            plocate: Some(words(&["-b", "camera_"])),
            fd: Some(words(&["--fixed-strings", "--type", "file", "camera_"])),
            ripgrep: words(&["/camera_[^/]*$"]),
            is_miss: false,
        },
        Asked {
            row: "glob",
            verb: "find",
            adit: words(&["--glob", "shader_*99.exr"]),
            plocate: Some(words(&["-b", "shader_*99.exr"])),
            fd: Some(words(&["--glob", "shader_*99.exr"])),
            ripgrep: words(&[r"/shader_[^/]*99\.exr$"]),
            is_miss: false,
        },
        Asked {
            row: "regular expression",
            verb: "find",
            adit: words(&["--regex", r"^(camera|session)_[0-9]*77[0-9]\.(rs|png)$"]),
            plocate: Some(words(&["-b", "--regex", r"^(camera|session)_[0-9]*77[0-9]\.(rs|png)$"])),
            fd: Some(words(&["--regex", r"^(camera|session)_[0-9]*77[0-9]\.(rs|png)$"])),
            ripgrep: words(&[r"/(camera|session)_[0-9]*77[0-9]\.(rs|png)$"]),
            is_miss: false,
        },
    ]
}

/// The name of a file in the middle, without its extension: no other has it.
fn one_name(tree: &Tree) -> String {
    let path = String::from_utf8_lossy(tree.paths.get(tree.paths.len() / 2)).into_owned();
    let name = path.rsplit('/').next().unwrap_or_default();
    name.split('.').next().unwrap_or_default().to_owned()
}

pub fn run(
    args: &RunArgs,
    tree: &Tree,
    segment: &Segment,
    about: &str,
    size: &str,
    work: &Path,
    report: &mut Report,
) -> Result<()> {
    let group = format!("find-{size}");
    let about = format!(
        "{about} In this process: on one thread where it says so, warm. Programs: from start to end with the clock, caches warm, output to \
         /dev/null; plocate and ripgrep search a list of the files, fd real files, up to {REAL_FILES_MAX} of them."
    );
    report.group(&group, &about);
    in_process(args, tree, segment, &group, size, report)?;
    programs(args, tree, segment, &group, work, report)
}

fn in_process(
    args: &RunArgs,
    tree: &Tree,
    segment: &Segment,
    group: &str,
    size: &str,
    report: &mut Report,
) -> Result<()> {
    let one = one_name(tree);
    let selective = Query::new().pattern(Pattern::substring(one.as_bytes())?);
    let first = Row {
        name: "first hit of a selective substring",
        unit: Unit::Millis,
        aim: if size == "10m" { Aim::Bound(10.0) } else { Aim::None },
    };
    let all = Row { name: "all hits of a selective substring", unit: Unit::Millis, aim: Aim::None };
    let scan = Row {
        name: "substring of two bytes, scan by one thread",
        unit: Unit::MibPerSec,
        aim: Aim::Bound(6e9 / f64::from(1 << 20)),
    };
    let regex =
        Row { name: "regular expression without a literal, scan by one thread", unit: Unit::MibPerSec, aim: Aim::None };
    let names = segment.columns()?.names().len() as f64 / f64::from(1 << 20);
    // What no name has: all of them are looked at, and no table tells beforehand.
    let rare = Query::new().pattern(Pattern::substring(b"\x01\x02")?).threads(1);
    let automaton = Query::new().pattern(Pattern::regex("^[a-f]+_[0-4]+[13579]\\.[^.]*$")?).threads(1);
    for _ in 0..args.rounds() {
        let started = Instant::now();
        let mut found = 0;
        selective.clone().limit(1).run(segment, &mut |_| {
            found += 1;
            ControlFlow::Continue(())
        })?;
        report.add(group, &first, ADIT, started.elapsed().as_secs_f64() * 1e3);
        ensure!(found == 1, "{one} was not found");
        let started = Instant::now();
        ensure!(selective.count(segment)? == 1, "{one} was found more than once");
        report.add(group, &all, ADIT, started.elapsed().as_secs_f64() * 1e3);
        for (row, query) in [(&scan, &rare), (&regex, &automaton)] {
            let started = cpu_time();
            query.count(segment)?;
            report.add(group, row, ADIT, names / (cpu_time() - started).as_secs_f64());
        }
    }
    Ok(())
}

fn programs(
    args: &RunArgs,
    tree: &Tree,
    segment: &Segment,
    group: &str,
    work: &Path,
    report: &mut Report,
) -> Result<()> {
    let adit = args.adit.clone().map_or_else(rivals::adit, Ok)?;
    rivals::path_searchers()?;
    let list = work.join("list");
    tree.paths.write_lines(&list)?;
    let database = work.join("plocate.db");
    output(
        Command::new("plocate-build").args(["--plaintext", "--require-visibility", "no"]).arg(&list).arg(&database),
    )?;
    let real = (tree.paths.len() <= REAL_FILES_MAX).then(|| make_files(tree, work)).transpose()?;
    for asked in questions(tree) {
        let aim = if asked.plocate.is_some() { Aim::Side(PLOCATE, 1.0) } else { Aim::Side(RIPGREP, 1.0) };
        let row = Row { name: asked.row, unit: Unit::Millis, aim };
        let mut sides: Vec<(&str, Command)> = Vec::new();
        let mut ours = Command::new(&adit);
        ours.args(["index", asked.verb]).arg(segment.file_path()).args(&asked.adit);
        sides.push((ADIT, ours));
        if let Some(words) = &asked.plocate {
            let mut plocate = Command::new("plocate");
            plocate.arg("-d").arg(&database).args(words);
            sides.push((PLOCATE, plocate));
        }
        if let (Some(real), Some(words)) = (&real, &asked.fd) {
            let mut fd = Command::new("fdfind");
            fd.args(["--no-ignore", "--hidden"]).args(words).arg(".").current_dir(real);
            fd.args(["--base-directory"]).arg(real);
            sides.push((FD, fd));
        }
        let mut ripgrep = Command::new("rg");
        ripgrep.args(["--no-filename", "--no-line-number"]).args(&asked.ripgrep).arg(&list);
        sides.push((RIPGREP, ripgrep));
        let mut found = Vec::new();
        for (side, command) in &mut sides {
            let said = output_of(command, asked.is_miss)?;
            found.push((*side, said.iter().filter(|byte| **byte == b'\n').count()));
        }
        ensure!(found.iter().all(|(_, count)| *count == found[0].1), "{}: not the same hits: {found:?}", asked.row);
        ensure!((found[0].1 == 0) == asked.is_miss, "{}: {found:?}", asked.row);
        for _ in 0..args.rounds() {
            for (side, command) in &mut sides {
                let started = Instant::now();
                let command = command.stdout(Stdio::null());
                let command = if asked.is_miss { command.stderr(Stdio::null()) } else { command };
                let status = command.status().with_context(|| format!("cannot start {side}"))?;
                report.add(group, &row, side, started.elapsed().as_secs_f64() * 1e3);
                ensure!(status.success() || asked.is_miss && status.code() == Some(1), "{side} failed: {status}");
            }
        }
    }
    if let Some(real) = &real {
        fs::remove_dir_all(real)?;
    }
    Ok(())
}

/// What a program prints.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    output_of(command, false)
}

/// Likewise; one that finds nothing may end with 1 for that.
fn output_of(command: &mut Command, is_miss: bool) -> Result<Vec<u8>> {
    let done = command.stderr(Stdio::piped()).stdout(Stdio::piped()).output();
    let done = done.with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    let is_told = is_miss && done.status.code() == Some(1) && (said.is_empty() || said.contains("not found"));
    ensure!(done.status.success() || is_told, "{command:?}: {}: {said}", done.status);
    Ok(done.stdout)
}

/// A folder with all files of a tree, empty.
pub fn make_files(tree: &Tree, work: &Path) -> Result<PathBuf> {
    let real = work.join("real");
    let mut made = std::collections::HashSet::new();
    for path in tree.paths.iter() {
        let path = real.join(std::str::from_utf8(path)?);
        let dir = path.parent().context("a file is in a folder")?;
        if made.insert(dir.to_owned()) {
            fs::create_dir_all(dir)?;
        }
        fs::File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    Ok(real)
}
