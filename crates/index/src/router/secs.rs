//! Times for people: [`Secs`] and [`Cost`], the one way in which they are written.

use std::fmt;

/// Seconds, with the unit that fits: what a byte takes is less than a nanosecond, and what a driver takes may be a second.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Secs(pub f64);

impl fmt::Display for Secs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // So that nothing is written as 1000.0 of a unit.
        let units = [(0.99995, 1.0, "s"), (0.99995e-3, 1e3, "ms"), (0.99995e-6, 1e6, "µs")];
        match units.into_iter().find(|(least, ..)| self.0 >= *least) {
            Some((_, times, unit)) => write!(f, "{:.1} {unit}", self.0 * times),
            None if self.0 >= 9.9995e-9 => write!(f, "{:.1} ns", self.0 * 1e9),
            None if self.0 > 0.0 => write!(f, "{:.3} ns", self.0 * 1e9),
            None => f.write_str("0 ns"),
        }
    }
}

/// What any job takes, and what each unit of it takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cost {
    /// What any job takes, in seconds.
    pub job: f64,
    /// What each unit takes, in seconds.
    pub each: f64,
}

impl fmt::Display for Cost {
    /// Without what takes nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.job > 0.0, self.each > 0.0) {
            (true, true) => write!(f, "{} a job, {} each", Secs(self.job), Secs(self.each)),
            (true, false) => write!(f, "{} a job, however large", Secs(self.job)),
            (false, _) => write!(f, "{} each", Secs(self.each)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_fits() {
        for (secs, text) in [
            (0.0, "0 ns"),
            (1.2345e-10, "0.123 ns"),
            (9.9999e-9, "10.0 ns"),
            (1.5e-8, "15.0 ns"),
            (0.999_99e-6, "1.0 µs"),
            (4.56e-4, "456.0 µs"),
            (0.072_367_661, "72.4 ms"),
            (0.999_99, "1.0 s"),
            (61.25, "61.2 s"),
        ] {
            assert_eq!(Secs(secs).to_string(), text, "{secs}");
        }
        let cost = |job, each| Cost { job, each }.to_string();
        assert_eq!(cost(2e-5, 3e-9), "20.0 µs a job, 3.000 ns each");
        assert_eq!(cost(0.0, 0.072_367_661), "72.4 ms each");
        assert_eq!(cost(0.5, 0.0), "500.0 ms a job, however large");
    }
}
