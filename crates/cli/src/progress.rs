//! Progress of long work: a bar on a terminal, a line every few seconds otherwise, nothing when quiet.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use adit_core::FsError;
use adit_core::path::transfer::Event;
use adit_index::{Progress as Step, Stage};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::units::show_size;
use crate::exit_code::Code;
use crate::failure::{Advice, Failure};
use crate::interrupt;
use crate::output::{counted_entries, printable, span_text};

/// Between two lines when standard error is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Hears about a copy or a removal, and shows it. Errors of single entries are printed as they come.
pub struct Progress {
    verb: &'static str,
    /// About the source of what fails.
    advice: Advice,
    bar: Option<ProgressBar>,
    lines: bool,
    /// Whether to say what is worth knowing, though nothing failed.
    remarks: bool,
    entries: u64,
    bytes: u64,
    /// Of so many, where that is known.
    total: Option<u64>,
    /// Likewise of the entries, and whether there may be some more or less.
    entries_total: Option<(u64, bool)>,
    /// What comes behind the entries, and how far that is.
    stage: Option<(Stage, String)>,
    /// Bytes that were there, and took no time.
    at_once: u64,
    began: Instant,
    last_line: Instant,
    /// Whether what is left out counts as failed.
    is_whole: bool,
    /// The worst code of the entries that failed.
    worst: Option<Code>,
    /// Whether the same failure of many entries is told of some.
    folds: bool,
    /// Of each kind of failure: how many there were.
    failures: BTreeMap<String, u64>,
}

/// Failures of one kind that are told one by one, where they are folded.
const TOLD_MAX: u64 = 20;

impl Progress {
    /// Shows nothing but errors if `quiet`.
    pub fn new(verb: &'static str, quiet: bool) -> Progress {
        let terminal = stderr().is_terminal();
        let bar = (terminal && !quiet).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {bytes} ({bytes_per_sec})") {
                bar.set_style(style);
            }
            bar
        });
        let now = Instant::now();
        let lines = !terminal && !quiet;
        let advice = Advice::default();
        let is_whole = false;
        Progress {
            verb,
            advice,
            bar,
            lines,
            remarks: !quiet,
            entries: 0,
            bytes: 0,
            total: None,
            entries_total: None,
            stage: None,
            at_once: 0,
            began: now,
            last_line: now,
            is_whole,
            worst: None,
            folds: false,
            failures: BTreeMap::new(),
        }
    }

    /// Of work on many entries that may fail for the same reason: after some of these, only their number is told.
    pub fn folding(self) -> Progress {
        Progress { folds: true, ..self }
    }

    /// Of work that is done when all of it is there: an entry that is left out counts as failed.
    pub fn whole(self) -> Progress {
        Progress { is_whole: true, ..self }
    }

    /// Of work whose bytes are known: it is told how long it will take.
    pub fn of_bytes(mut self, total: u64) -> Progress {
        self.learn_total(total);
        self
    }

    /// Likewise, of work that has begun before they were known.
    pub fn learn_total(&mut self, total: u64) {
        if self.total.replace(total).is_some() {
            return;
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            let template = "{spinner} {msg}  {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left)";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
        }
    }

    /// Of work on so many entries; `is_about` if they were counted before, and may have become more or less.
    pub fn of_entries(self, total: u64, is_about: bool) -> Progress {
        Progress { entries_total: Some((total, is_about)), ..self }
    }

    /// Whether somebody watches, for whom it is worth to measure what is to be done before.
    pub fn is_watched(&self) -> bool {
        self.bar.is_some()
    }

    /// So many entries of what is to be done are measured, with so many bytes.
    pub fn measured(&mut self, entries: u64, bytes: u64) {
        self.entries_total = Some((entries, false));
        let text = format!("measuring: {}, {}", counted_entries(entries), show_size(bytes));
        self.bar.iter().for_each(|bar| bar.set_message(text.clone()));
    }

    /// Whether anybody sees how far it is.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some() || self.lines
    }

    /// With what to advise about damage in the source that the work is about.
    pub fn advising(self, advice: &Advice) -> Progress {
        Progress { advice: advice.clone(), ..self }
    }

    /// Takes an event of a copy; ends it once a signal came.
    pub fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Begin { path, .. } => self.entry(path),
            Event::Drafts { .. } => {}
            Event::Bytes(count) => {
                self.bytes += count;
                self.bar.iter().for_each(|bar| bar.inc(count));
                self.tick();
            }
            Event::Failed(error) => self.failed_with(error),
            Event::LeftOut { path, why } => {
                let what = format!("{}: left out: {}: {why}", self.verb, printable(path.as_bytes()));
                match self.is_whole {
                    true => self.failed(&Failure::new(Code::Failure, what)),
                    false => self.remark(&format!("adit: {what}")),
                }
            }
            Event::Altered { path, what } => {
                self.remark(&format!("adit: {}: {}: {what}", self.verb, printable(path.as_bytes())));
            }
            Event::Lost { what } => self.remark(&format!("adit: {}: {what}", self.verb)),
        }
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// An entry begins.
    pub fn entry(&mut self, path: &str) {
        self.entries += 1;
        let text = format!("{}  {}", self.entries_text(), printable(path.as_bytes()));
        self.bar.iter().for_each(|bar| bar.set_message(text.clone()));
        self.tick();
    }

    /// So much is done, of work that counts for itself.
    pub fn reached(&mut self, entries: u64, bytes: u64) {
        // What is read twice counts once.
        let bytes = bytes.min(self.total.unwrap_or(u64::MAX));
        (self.entries, self.bytes) = (entries, bytes);
        if let Some(bar) = &self.bar {
            bar.set_message(self.entries_text());
            bar.set_position(bytes);
        }
        self.tick();
    }

    /// Work on an index is so far; ends it once a signal came.
    pub fn step(&mut self, step: Step) -> ControlFlow<()> {
        let text = step_text(step);
        if let Some(bar) = &self.bar {
            let is_new = self.stage.as_ref().is_none_or(|(stage, _)| *stage != step.stage);
            // The bytes that were read before say nothing of it.
            if is_new && let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar.set_message(text.clone());
        }
        self.stage = Some((step.stage, text));
        self.tick();
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// So many bytes of one file are read, whose length is known as a rule.
    pub fn read_of(&mut self, bytes: u64, total: Option<u64>) {
        if let Some(total) = total {
            self.learn_total(total);
        }
        self.reached(self.entries, bytes);
    }

    /// So much is done, of which `at_once` bytes were there already: these say nothing of the time that the rest takes.
    pub fn reached_of(&mut self, entries: u64, bytes: u64, at_once: u64) {
        if let Some(bar) = self.bar.as_ref().filter(|_| at_once > self.at_once) {
            // Past them, and the time that is left is told by what comes after.
            bar.set_position(bytes);
            bar.reset_eta();
        }
        self.at_once = at_once;
        self.reached(entries, bytes);
    }

    /// So many bytes more need not be read: as in [`Progress::reached_of`].
    pub fn passed(&mut self, bytes: u64) {
        if bytes > 0 {
            self.reached_of(self.entries, self.bytes + bytes, self.at_once + bytes);
        }
    }

    /// An entry failed; the work goes on.
    pub fn failed(&mut self, failure: &Failure) {
        self.say(&format!("adit: {}", failure.text()));
        self.worst = Some(self.worst.map_or(failure.code(), |worst| worst.worse(failure.code())));
    }

    /// Likewise, with an error of the source.
    pub fn failed_with(&mut self, error: &FsError) {
        let failure = self.advice.failure(self.verb, error);
        self.failed_as(&reason(error), &failure);
    }

    /// Likewise, of a failure that has this reason, as many others may.
    pub fn failed_as(&mut self, reason: &str, failure: &Failure) {
        let count = self.failures.entry(reason.to_owned()).or_default();
        *count += 1;
        if self.folds && *count > TOLD_MAX {
            self.worst = Some(self.worst.map_or(failure.code(), |worst| worst.worse(failure.code())));
            return;
        }
        self.failed(failure);
    }

    /// Tells what was done, and ends as [`Progress::finish`] does.
    pub fn finish_with_sum(self) -> crate::failure::Result<()> {
        if self.entries > self.failures.values().sum() {
            self.remark(&self.sum(self.began.elapsed()));
        }
        self.finish()
    }

    /// What was done in that time.
    fn sum(&self, took: Duration) -> String {
        let failed = self.failures.values().sum::<u64>();
        let mut text = format!("adit: {}: {}", self.verb, counted_entries(self.entries.saturating_sub(failed)));
        text += &format!(", {}", show_size(self.bytes));
        if took >= Duration::from_secs(1) {
            let rate = show_size((self.bytes as f64 / took.as_secs_f64()) as u64);
            text += &format!(" in {}, {rate}/s", span_text(took.as_secs()));
        }
        if failed > 0 {
            text += &format!("; {failed} failed");
        }
        text
    }

    /// Ends the display; fails if an entry did.
    pub fn finish(self) -> crate::failure::Result<()> {
        self.bar.iter().for_each(|bar| bar.finish_and_clear());
        let folded = self.failures.iter().filter(|(_, count)| self.folds && **count > TOLD_MAX);
        for (reason, count) in folded {
            eprintln!("adit: {}: and {} more: {reason}", self.verb, count - TOLD_MAX);
        }
        self.worst.map_or(Ok(()), |code| Err(Failure::said(code)))
    }

    fn remark(&self, line: &str) {
        if self.remarks {
            self.say(line);
        }
    }

    /// Prints a line without tearing the bar.
    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    fn tick(&mut self) {
        if self.lines && self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            eprintln!("{}", self.line(self.began.elapsed()));
        }
    }

    /// How many entries there were, and of how many.
    fn entries_text(&self) -> String {
        match self.entries_total {
            Some((total, is_about)) if self.entries <= total => {
                let about = if is_about { "about " } else { "" };
                format!("{} of {about}{}", self.entries, counted_entries(total))
            }
            _ => counted_entries(self.entries),
        }
    }

    /// How far it is after that time.
    fn line(&self, took: Duration) -> String {
        if let Some((_, text)) = &self.stage {
            return format!("adit: {}: {text}", self.verb);
        }
        let rate = (self.bytes.saturating_sub(self.at_once) as f64 / took.as_secs_f64()) as u64;
        let bytes = match self.total {
            Some(total) => format!("{} of {}", show_size(self.bytes), show_size(total)),
            None => show_size(self.bytes),
        };
        let left = self.total.and_then(|total| total.saturating_sub(self.bytes).checked_div(rate));
        let left = left.map_or_else(String::new, |secs| format!(", {} left", span_text(secs)));
        let (verb, entries, rate) = (self.verb, self.entries_text(), show_size(rate));
        format!("adit: {verb}: {entries}, {bytes}, {rate}/s{left}")
    }
}

/// What is done of an index, and how far it is, in what the stage counts.
fn step_text(Step { stage, done, total }: Step) -> String {
    let name = match stage {
        Stage::Merge => "merging",
        Stage::Sort => "sorting",
        Stage::Write => "writing",
        Stage::Tables => "making tables",
        Stage::Read => "reading",
        Stage::Verify => "comparing",
        Stage::Encrypt => "encrypting",
        Stage::Decrypt => "decrypting",
        _ => "working",
    };
    match stage {
        Stage::Merge | Stage::Sort | Stage::Write | Stage::Verify => {
            format!("{name}: {done} of {}", counted_entries(total))
        }
        Stage::Read | Stage::Encrypt | Stage::Decrypt => format!("{name}: {} of {}", show_size(done), show_size(total)),
        _ => format!("{name}: {done} of {total}"),
    }
}

/// Why something failed, without what it happened to: the kind of the innermost error.
pub fn reason(error: &FsError) -> String {
    match error.cause().and_then(|cause| cause.downcast_ref::<FsError>()) {
        Some(below) => reason(below),
        None => FsError::new(error.kind()).to_string(),
    }
}

#[cfg(test)]
impl Progress {
    /// One that is shown, whatever standard error is.
    pub fn shown_in_test() -> Progress {
        Progress { lines: true, ..Progress::new("test", true) }
    }

    /// How much it is of, if that is known.
    pub fn total(&self) -> Option<u64> {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_core::ErrorKind;

    #[test]
    fn a_failed_entry_makes_the_code_and_corruption_wins() {
        let mut progress = Progress::new("get", true);
        let _ = progress.event(Event::Failed(&FsError::new(ErrorKind::PermissionDenied)));
        let _ = progress.event(Event::Failed(&FsError::new(ErrorKind::Corrupt)));
        let _ = progress.event(Event::Failed(&FsError::new(ErrorKind::NotFound)));
        assert_eq!(progress.finish().unwrap_err().code(), Code::Corrupt);
        assert!(Progress::new("get", true).finish().is_ok());
    }

    #[test]
    fn many_failures_of_one_kind_are_counted_and_their_code_is_kept() {
        let mut progress = Progress::new("get", true).folding();
        let inner = FsError::new(ErrorKind::Corrupt).on("read object", "x");
        for number in 0..=TOLD_MAX {
            let error = FsError::new(ErrorKind::Io).on("fetch", format!("/{number}")).because(inner_of(&inner));
            progress.failed_with(&error);
        }
        assert_eq!(progress.failures.values().copied().collect::<Vec<_>>(), [TOLD_MAX + 1]);
        assert_eq!(progress.finish().unwrap_err().code(), Code::Failure);
    }

    #[test]
    fn what_need_not_be_read_says_nothing_of_the_time_that_is_left() {
        let mut progress = Progress::shown_in_test();
        let _ = progress.event(Event::Bytes(40 << 20));
        let took = Duration::from_secs(4);
        assert!(!progress.line(took).contains("left"), "{}", progress.line(took));
        progress.passed(100 << 20);
        progress.learn_total(240 << 20);
        let line = progress.line(took);
        assert!(line.contains("10.0 MiB/s, 10 seconds left"), "{line}");
        assert!(line.contains("140"), "{line}");
    }

    #[test]
    fn a_copy_is_told_as_a_whole_when_it_is_over() {
        let mut progress = Progress::shown_in_test().of_bytes(40 << 20);
        progress.measured(3, 40 << 20);
        for path in ["/a", "/b", "/c"] {
            progress.entry(path);
        }
        let _ = progress.event(Event::Bytes(20 << 20));
        let took = Duration::from_secs(4);
        assert_eq!(progress.line(took), "adit: test: 3 of 3 entries, 20.0 MiB of 40.0 MiB, 5.0 MiB/s, 4 seconds left");
        assert_eq!(progress.sum(took), "adit: test: 3 entries, 20.0 MiB in 4 seconds, 5.0 MiB/s");
        let _ = progress.event(Event::Failed(&FsError::new(ErrorKind::PermissionDenied)));
        assert_eq!(progress.sum(Duration::from_millis(5)), "adit: test: 2 entries, 20.0 MiB; 1 failed");
    }

    /// As the first mount of a large manifest reads it.
    #[test]
    fn of_a_file_that_is_read_the_rate_and_the_time_left_are_told() {
        let mut progress = Progress::shown_in_test();
        progress.read_of(40 << 20, None);
        assert!(!progress.line(Duration::from_secs(4)).contains("left"));
        progress.read_of(40 << 20, Some(140 << 20));
        let line = progress.line(Duration::from_secs(4));
        assert!(line.contains("40.0 MiB of 140.0 MiB, 10.0 MiB/s, 10 seconds left"), "{line}");
    }

    /// As an update of an index tells it, from the walk to the end.
    #[test]
    fn each_stage_of_an_index_is_told_with_how_much_of_it_is_done() {
        let mut progress = Progress::shown_in_test().of_entries(2000, true);
        progress.reached(500, 0);
        let took = Duration::from_secs(5);
        assert_eq!(progress.line(took), "adit: test: 500 of about 2000 entries, 0 B, 0 B/s");
        // There are more than there were.
        progress.reached(2500, 0);
        assert_eq!(progress.line(took), "adit: test: 2500 entries, 0 B, 0 B/s");
        let mut exact = Progress::shown_in_test().of_entries(1, false);
        exact.reached(1, 0);
        assert_eq!(exact.line(took), "adit: test: 1 of 1 entry, 0 B, 0 B/s");
        for (stage, done, total, text) in [
            (Stage::Merge, 1, 1, "merging: 1 of 1 entry"),
            (Stage::Sort, 0, 2500, "sorting: 0 of 2500 entries"),
            (Stage::Write, 2000, 2500, "writing: 2000 of 2500 entries"),
            (Stage::Tables, 2, 5, "making tables: 2 of 5"),
            (Stage::Encrypt, 1 << 20, 3 << 20, "encrypting: 1.0 MiB of 3.0 MiB"),
            (Stage::Decrypt, 0, 3 << 20, "decrypting: 0 B of 3.0 MiB"),
            (Stage::Read, 1 << 20, 3 << 20, "reading: 1.0 MiB of 3.0 MiB"),
            (Stage::Verify, 1, 2500, "comparing: 1 of 2500 entries"),
        ] {
            assert!(progress.step(Step { stage, done, total }).is_continue());
            assert_eq!(progress.line(took), format!("adit: test: {text}"));
        }
    }

    fn inner_of(error: &FsError) -> FsError {
        FsError::new(error.kind()).on("read object", "x")
    }
}
