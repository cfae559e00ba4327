//! What a job will take, from what jobs took: [`Fit`]. Pure numbers, no clock.
//!
//! Amounts are sorted into classes, each twice as large as the one before. Of each class the mean of amount and time is kept, in which
//! new observations count more than old ones. Through these points goes a line (what any job takes, and what each unit takes);
//! where a class has been observed itself, the line is moved to its mean.

use serde::{Deserialize, Serialize};

/// How much of a mean the last observation is, at least.
const NEW_SHARE: f64 = 0.2;
/// An observation that is so many times what was expected, or its inverse, is strange. One that is alone does not count: a machine
/// that slept is no slow device. Two in a row, and all that is known of the engine was so much wrong.
const STRANGE: f64 = 2.0;

/// The mean of what was observed of one class.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
struct Point {
    class: u8,
    amount: f64,
    secs: f64,
    seen: u32,
}

/// What jobs of one kind took on one engine.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Fit {
    points: Vec<Point>,
    /// How many times what was expected the last one was, if it was strange. It is kept: a command has one job, and ends.
    #[serde(default)]
    strange: Option<f64>,
}

/// In which class an amount is.
pub(super) fn class_of(amount: u64) -> u8 {
    amount.max(1).ilog2() as u8
}

impl Fit {
    /// Whether nothing was observed.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Whether numbers that came from a file can be right.
    pub fn is_sound(&self) -> bool {
        let rises = self.points.is_sorted_by(|a, b| a.class < b.class);
        rises
            && self.strange.is_none_or(|ratio| ratio.is_finite() && ratio > 0.0)
            && self.points.iter().all(|point| {
                let right = |number: f64| number.is_finite() && number > 0.0;
                point.class < 64 && point.seen > 0 && right(point.amount) && right(point.secs)
            })
    }

    /// A job of so much took so long.
    pub fn observe(&mut self, amount: u64, secs: f64) {
        if !secs.is_finite() || secs <= 0.0 {
            return;
        }
        let class = class_of(amount);
        let expected = self.predict(amount);
        let amount = amount.max(1) as f64;
        let at = match self.points.binary_search_by_key(&class, |point| point.class) {
            Ok(at) => at,
            Err(at) => return self.points.insert(at, Point { class, amount, secs, seen: 1 }),
        };
        if self.points[at].seen > 1
            && let Some(ratio) = expected.map(|expected| secs / expected)
            && !(1.0 / STRANGE..=STRANGE).contains(&ratio)
        {
            return self.wonder(ratio);
        }
        self.strange = None;
        let point = &mut self.points[at];
        point.seen = point.seen.saturating_add(1);
        let share = NEW_SHARE.max(1.0 / f64::from(point.seen));
        point.amount += share * (amount - point.amount);
        point.secs += share * (secs - point.secs);
    }

    /// A job took so many times what was expected.
    fn wonder(&mut self, ratio: f64) {
        match self.strange.take() {
            Some(before) if (before > 1.0) == (ratio > 1.0) => {
                for point in &mut self.points {
                    point.secs *= (before * ratio).sqrt();
                    // It is not as sure as it was.
                    point.seen = point.seen.min(2);
                }
            }
            _ => self.strange = Some(ratio),
        }
    }

    /// What any job takes, and what each unit takes, in seconds.
    pub fn line(&self) -> Option<(f64, f64)> {
        let mut sums = [0.0; 5];
        for point in &self.points {
            // By relative errors: a small job counts as much as a large one.
            let weight = f64::from(point.seen.min(8)) / (point.secs * point.secs);
            let (x, y) = (point.amount, point.secs);
            for (sum, term) in sums.iter_mut().zip([1.0, x, y, x * x, x * y]) {
                *sum += weight * term;
            }
        }
        let [w, x, y, xx, xy] = sums;
        if w <= 0.0 {
            return None;
        }
        let spread = w * xx - x * x;
        if spread <= 1e-9 * w * xx {
            // One amount only: all of it is taken for work, so that more takes longer.
            return Some((0.0, if x > 0.0 { y / x } else { 0.0 }));
        }
        let per = (w * xy - x * y) / spread;
        let fixed = (y - per * x) / w;
        Some(match (fixed > 0.0, per > 0.0) {
            (true, true) => (fixed, per),
            (false, _) => (0.0, xy / xx),
            (_, false) => (y / w, 0.0),
        })
    }

    /// How long a job of so much will take, in seconds. None if nothing is known.
    pub fn predict(&self, amount: u64) -> Option<f64> {
        let (fixed, per) = self.line()?;
        let along = |amount: f64| fixed + per * amount;
        let line = along(amount as f64);
        let class = class_of(amount);
        let own = self.points.binary_search_by_key(&class, |point| point.class).ok().map(|at| self.points[at]);
        match own {
            Some(point) if along(point.amount) > 0.0 => Some(point.secs * line / along(point.amount)),
            _ => Some(line),
        }
    }
}
