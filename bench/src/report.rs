//! Samples, their medians, and the tables.
//!
//! A [`Row`] is one quantity, a sample belongs to a row and a side. An [`Aim`] compares adit's median with that of another
//! side of the same row, so both come from one run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

/// The side whose figures are judged.
pub const ADIT: &str = "adit";
/// The plain host folder.
pub const HOST: &str = "ext4";
/// How the names of its versions start.
const GOCRYPTFS: &str = "gocryptfs";
/// The server that does nothing.
pub const NULL: &str = "null";
/// JuiceFS with its metadata in SQLite.
pub const JUICEFS_SQLITE: &str = "juicefs-sqlite";
/// rclone's mount.
pub const RCLONE: &str = "rclone";
/// Rivals that get a column of ratios, by how the names of their sides start.
const RIVALS: [&str; 5] = [GOCRYPTFS, JUICEFS_SQLITE, RCLONE, "hashbrown", "plocate"];

/// What a figure counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Seconds; fewer are better.
    Seconds,
    /// Milliseconds; fewer are better.
    Millis,
    /// Microseconds for one operation; fewer are better.
    Micros,
    /// Nanoseconds for one operation; fewer are better.
    Nanos,
    /// 2^20 bytes a second; more are better.
    MibPerSec,
    /// Operations a second; more are better.
    PerSec,
    /// 2^20 bytes of memory; fewer are better.
    Mib,
    /// Bytes of memory; fewer are better.
    Bytes,
    /// A count; fewer are better.
    Count,
}

impl Unit {
    fn text(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::Millis => "ms",
            Unit::Micros => "µs",
            Unit::Nanos => "ns",
            Unit::MibPerSec => "MiB/s",
            Unit::PerSec => "/s",
            Unit::Mib => "MiB",
            Unit::Bytes => "bytes",
            Unit::Count => "",
        }
    }

    fn more_is_better(self) -> bool {
        matches!(self, Unit::MibPerSec | Unit::PerSec)
    }

    /// How many times as good `a` is as `b`.
    fn ratio(self, a: f64, b: f64) -> f64 {
        if self.more_is_better() { a / b } else { b / a }
    }
}

/// What adit is to reach in a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Aim {
    /// Nothing is promised.
    None,
    /// So many times as good as the better gocryptfs.
    Gocryptfs(f64),
    /// So many times as good as the plain folder.
    Host(f64),
    /// So many times as good as the null server (1/1.3: at most 1.3 times its time).
    Null(f64),
    /// So many times as good as the library below, the side `library`.
    Library(f64),
    /// So many times as good as the side of that name.
    Side(&'static str, f64),
    /// So many times as good as the best of the sides whose names start so.
    Best(&'static str, f64),
    /// The figure itself, in the row's unit.
    Bound(f64),
}

/// One quantity.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What was done.
    pub name: &'static str,
    /// In which unit.
    pub unit: Unit,
    /// What adit is to reach.
    pub aim: Aim,
}

#[derive(Default)]
struct Group {
    name: String,
    about: String,
    rows: Vec<(Row, BTreeMap<String, Vec<f64>>)>,
}

/// Everything measured in this run.
#[derive(Default)]
pub struct Report {
    facts: Vec<(&'static str, String)>,
    groups: Vec<Group>,
    sides: Vec<String>,
    failures: Vec<String>,
}

/// Median, smallest and largest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    median: f64,
    min: f64,
    max: f64,
}

impl Summary {
    fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Summary { median, min, max })
    }

    fn text(&self) -> String {
        if self.min == self.max {
            return digits(self.median);
        }
        format!("{} ({}–{})", digits(self.median), digits(self.min), digits(self.max))
    }
}

/// Three significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 0.1 => format!("{value:.3}"),
        v if v >= 0.01 => format!("{value:.4}"),
        v if v > 0.0 => format!("{value:.5}"),
        _ => "0".into(),
    }
}

impl Report {
    /// A line of the head.
    pub fn fact(&mut self, name: &'static str, text: String) {
        self.facts.push((name, text));
    }

    /// Starts a group of rows, or goes on with it.
    pub fn group(&mut self, name: &str, about: &str) {
        if self.groups.iter().all(|group| group.name != name) {
            self.groups.push(Group { name: name.into(), about: about.into(), rows: Vec::new() });
        }
    }

    /// A sample of `side` in a row of the group, which was started before.
    pub fn add(&mut self, group: &str, row: &Row, side: &str, value: f64) {
        if self.sides.iter().all(|known| known != side) {
            self.sides.push(side.into());
        }
        let Some(group) = self.groups.iter_mut().find(|known| known.name == group) else {
            return;
        };
        let at = match group.rows.iter().position(|(known, _)| known.name == row.name) {
            Some(at) => at,
            None => {
                group.rows.push((*row, BTreeMap::new()));
                group.rows.len() - 1
            }
        };
        group.rows[at].1.entry(side.into()).or_default().push(value);
    }

    /// Remembers that a side could not be measured.
    pub fn failed(&mut self, text: String) {
        self.failures.push(text);
    }

    /// What could not be measured.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// The head, a table for each group, and what falls short of its aim, worst first.
    pub fn to_markdown(&self) -> String {
        let mut out = String::new();
        for (name, text) in &self.facts {
            let _ = writeln!(out, "- {name}: {text}");
        }
        let mut short = Vec::new();
        for group in &self.groups {
            self.group_to_markdown(group, &mut out, &mut short);
        }
        let _ = writeln!(out, "\n### Short of the aim, worst first\n");
        short.sort_by(|a: &(f64, String), b| a.0.total_cmp(&b.0));
        for (_, text) in &short {
            let _ = writeln!(out, "- {text}");
        }
        if short.is_empty() {
            let _ = writeln!(out, "None of the rows above.");
        }
        if !self.failures.is_empty() {
            let _ = writeln!(out, "\n### Not measured\n");
            for text in &self.failures {
                let _ = writeln!(out, "- {text}");
            }
        }
        out
    }

    fn group_to_markdown(&self, group: &Group, out: &mut String, short: &mut Vec<(f64, String)>) {
        let sides: Vec<&String> =
            self.sides.iter().filter(|side| group.rows.iter().any(|(_, all)| all.contains_key(*side))).collect();
        let _ = writeln!(out, "\n### {}\n\n{}\n", group.name, group.about);
        let _ = write!(out, "| row | unit |");
        for side in &sides {
            let _ = write!(out, " {side} |");
        }
        let others: Vec<&str> = RIVALS.into_iter().chain([HOST]).filter(|other| is_among(other, &sides)).collect();
        for other in &others {
            let _ = write!(out, " adit : {other} |");
        }
        let columns = sides.len() + others.len() + 1;
        let _ = writeln!(out, " aim |\n|---|---|{}", "---:|".repeat(columns));
        for (row, samples) in &group.rows {
            let _ = write!(out, "| {} | {} |", row.name, row.unit.text());
            for side in &sides {
                let cell = samples.get(*side).and_then(|s| Summary::of(s));
                let _ = write!(out, " {} |", cell.map_or_else(|| "–".into(), |s| s.text()));
            }
            let medians = Medians::of(samples);
            for other in &others {
                let _ = write!(out, " {} |", medians.ratio_text(row.unit, medians.best(other, row.unit)));
            }
            let verdict = medians.judge(row);
            let _ = writeln!(out, " {} |", verdict.text);
            if let Some(worth) = verdict.worth.filter(|worth| *worth < 1.0) {
                short.push((worth, format!("{}: {}: {}", group.name, row.name, verdict.text)));
            }
        }
    }

    /// Writes all samples.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let groups: Vec<_> = self
            .groups
            .iter()
            .map(|group| {
                let rows: Vec<_> = group
                    .rows
                    .iter()
                    .map(|(row, samples)| {
                        json!({
                            "row": row.name,
                            "unit": row.unit.text(),
                            "more_is_better": row.unit.more_is_better(),
                            "samples": samples,
                        })
                    })
                    .collect();
                json!({ "group": group.name, "about": group.about, "rows": rows })
            })
            .collect();
        let facts: BTreeMap<_, _> = self.facts.iter().cloned().collect();
        let all = json!({ "facts": facts, "groups": groups, "failures": self.failures });
        let text = serde_json::to_string_pretty(&all)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Whether a side's name is `other` or, for the versions of one program, starts with it.
fn is_among(other: &str, sides: &[&String]) -> bool {
    sides.iter().any(|side| side.starts_with(other))
}

/// The medians of one row.
struct Medians(BTreeMap<String, f64>);

struct Verdict {
    text: String,
    /// How much of the aim was reached; None without an aim or without a figure.
    worth: Option<f64>,
}

impl Medians {
    fn of(samples: &BTreeMap<String, Vec<f64>>) -> Medians {
        let medians = samples.iter().filter_map(|(side, samples)| Some((side.clone(), Summary::of(samples)?.median)));
        Medians(medians.collect())
    }

    fn side(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// The best of the sides whose names start so: all versions of one program.
    fn best(&self, prefix: &str, unit: Unit) -> Option<f64> {
        let versions = self.0.iter().filter(|(side, _)| side.starts_with(prefix));
        versions.map(|(_, median)| *median).reduce(|a, b| if unit.ratio(a, b) >= 1.0 { a } else { b })
    }

    fn ratio_text(&self, unit: Unit, other: Option<f64>) -> String {
        match (self.side(ADIT), other) {
            (Some(adit), Some(other)) => format!("{} ×", digits(unit.ratio(adit, other))),
            _ => "–".into(),
        }
    }

    fn judge(&self, row: &Row) -> Verdict {
        let nothing = |text: &str| Verdict { text: text.into(), worth: None };
        let (other, factor, name) = match row.aim {
            Aim::None => return nothing(""),
            Aim::Gocryptfs(factor) => (self.best(GOCRYPTFS, row.unit), factor, GOCRYPTFS),
            Aim::Host(factor) => (self.side(HOST), factor, HOST),
            Aim::Null(factor) => (self.side(NULL), factor, "null server"),
            Aim::Library(factor) => (self.side("library"), factor, "library"),
            Aim::Side(name, factor) => (self.side(name), factor, name),
            Aim::Best(start, factor) => (self.best(start, row.unit), factor, start),
            Aim::Bound(bound) if bound.is_infinite() => return nothing(""),
            Aim::Bound(bound) => (Some(bound), 1.0, "bound"),
        };
        let (Some(adit), Some(other)) = (self.side(ADIT), other) else {
            return nothing("–");
        };
        // Nothing of nothing is allowed.
        let ratio = if adit == other { 1.0 } else { row.unit.ratio(adit, other) };
        let worth = ratio / factor;
        let mark = if worth >= 1.0 { "met" } else { "SHORT" };
        let text = if let Aim::Bound(bound) = row.aim {
            let most = if row.unit.more_is_better() { "at least" } else { "at most" };
            format!("{mark}: {} of {most} {} {}", digits(adit), digits(bound), row.unit.text())
        } else {
            format!("{mark}: {} of {} × {name}", digits(ratio), digits(factor))
        };
        Verdict { text, worth: Some(worth) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(aim: Aim, unit: Unit, samples: &[(&str, &[f64])]) -> String {
        let mut report = Report::default();
        report.group("g", "about");
        let row = Row { name: "r", unit, aim };
        for (side, values) in samples {
            for value in *values {
                report.add("g", &row, side, *value);
            }
        }
        report.to_markdown()
    }

    #[test]
    fn medians_of_odd_and_even_counts() {
        let summary = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((summary.median, summary.min, summary.max), (2.0, 1.0, 3.0));
        assert_eq!(Summary::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn the_better_gocryptfs_is_the_one_to_beat() {
        let sides: &[(&str, &[f64])] = &[("gocryptfs-2.3", &[3.0]), ("gocryptfs-2.6.1", &[2.0]), ("adit", &[1.0])];
        assert!(report(Aim::Gocryptfs(1.5), Unit::Seconds, sides).contains("met: 2.00 of 1.50"));
        // As rates the same figures mean the opposite, and the other version is the better one.
        assert!(report(Aim::Gocryptfs(1.0), Unit::PerSec, sides).contains("SHORT: 0.333 of 1.00"));
    }

    #[test]
    fn each_rival_that_took_part_has_a_column() {
        let sides: &[(&str, &[f64])] = &[("ext4", &[1.0]), ("juicefs-sqlite", &[40.0]), ("adit", &[2.0])];
        let text = report(Aim::Side(JUICEFS_SQLITE, 10.0), Unit::Seconds, sides);
        assert!(text.contains("| adit : juicefs-sqlite | adit : ext4 | aim |"), "{text}");
        assert!(text.contains("| 20.0 × | 0.500 × | met: 20.0 of 10.0 × juicefs-sqlite |"), "{text}");
    }

    #[test]
    fn a_row_without_the_other_side_is_not_judged() {
        let text = report(Aim::Null(1.0), Unit::Nanos, &[("adit", &[1.0])]);
        assert!(text.contains("None of the rows above."));
    }

    #[test]
    fn a_bound_is_kept_or_not() {
        assert!(report(Aim::Bound(10.0), Unit::Nanos, &[("adit", &[9.0])]).contains("met: 9.00 of at most 10.0 ns"));
        assert!(report(Aim::Bound(10.0), Unit::Nanos, &[("adit", &[11.0])]).contains("SHORT"));
    }
}
