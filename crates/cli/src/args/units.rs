//! Sizes and durations as people type them.

use std::ffi::OsString;
use std::time::Duration;

use adit_core::types::{FileName, NAME_LEN_MAX_BYTES, NameError};
use adit_volume::volume::{CAPACITY_MAX_BYTES, CAPACITY_MIN_BYTES};
use clap::builder::{OsStringValueParser, TypedValueParser};

/// Bytes: a number with an optional `K`, `M`, `G`, `T` or `P` (powers of 1024; `KiB` and `KB` mean the same).
pub fn size(text: &str) -> Result<u64, String> {
    let invalid = || format!("'{text}' is not a size; write for example 4096, 64K, 256M or 1.5G");
    let (number, unit) = split(text).ok_or_else(invalid)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        _ => return Err(invalid()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(invalid);
    }
    let bytes = number.parse::<f64>().map_err(|_| invalid())? * (1u64 << shift) as f64;
    // Beyond 2^53 a fraction makes no sense, and below it the conversion is exact.
    if bytes < 9e15 { Ok(bytes as u64) } else { Err(invalid()) }
}

/// The capacity of a volume in bytes, as [`size`].
pub fn capacity(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < CAPACITY_MIN_BYTES => {
            Err(format!("a volume needs at least {}", show_size(CAPACITY_MIN_BYTES)))
        }
        bytes if bytes > CAPACITY_MAX_BYTES => {
            Err(format!("a volume has room for less than {}", show_size(CAPACITY_MAX_BYTES + 1)))
        }
        bytes => Ok(bytes),
    }
}

/// The name of a snapshot or a branch: one that a folder could have.
pub fn name(text: &str) -> Result<String, String> {
    match FileName::new(text.as_bytes()) {
        Ok(_) => Ok(text.to_owned()),
        Err(NameError::TooLong) => Err(format!("a name has at most {NAME_LEN_MAX_BYTES} bytes")),
        Err(NameError::Invalid) if text.is_empty() => Err("a name has at least one character".to_owned()),
        Err(NameError::Invalid) => {
            Err("it must be a name that a folder could have: no '/', not '.' or '..'".to_owned())
        }
    }
}

/// A path, which has at least one character: an empty one is what an unset variable gives, and would be the root without this.
pub fn path() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|path| match path.is_empty() {
        true => Err("the path is empty"),
        false => Ok(path),
    })
}

/// Requests to a store at a time.
pub fn requests(text: &str) -> Result<u16, String> {
    count(text, 1024)
}

/// Parts of an object that are sent at a time.
pub fn parts(text: &str) -> Result<u16, String> {
    count(text, 64)
}

fn count(text: &str, most: u16) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=most).contains(count))
        .ok_or_else(|| format!("it is a number from 1 to {most}"))
}

/// Length of a part: S3 has none shorter, but for the last, and some of them are in memory.
pub fn part_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if (5 << 20..=1 << 30).contains(&bytes) { Ok(bytes) } else { Err("a part has 5M to 1G".to_owned()) }
}

/// Length of a block of what is kept of objects.
pub fn cache_block(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    let fits = bytes.is_power_of_two() && (64 << 10..=64 << 20).contains(&bytes);
    let len = if fits { u32::try_from(bytes).ok() } else { None };
    len.ok_or_else(|| "a block has a power of two from 64K to 64M".to_owned())
}

/// A span of time: a number with an optional `ms`, `s`, `m`, `h` or `d`; seconds without one.
pub fn duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("'{text}' is not a duration; write for example 500ms, 10s, 5m or 1h");
    let (number, unit) = split(text).ok_or_else(invalid)?;
    let unit_secs = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(invalid()),
    };
    let number: f64 = number.parse().map_err(|_| invalid())?;
    Duration::try_from_secs_f64(number * unit_secs).map_err(|_| invalid())
}

/// A moment in nanoseconds since 1970: a day of UTC, a time in it of UTC or with its offset (RFC 3339), or how long it is ago.
pub fn moment(text: &str) -> Result<i64, String> {
    const NANOS: i64 = 1_000_000_000;
    let invalid = || {
        let examples = "2024-05-06, 2024-05-06T07:08:09Z, 2024-05-06T09:08:09+02:00, or 2d for two days ago";
        format!("'{text}' is no time; write for example {examples}")
    };
    // A number alone may be meant as a year.
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    if let Some(span) = duration(text).ok().filter(|_| has_unit) {
        let ago = i64::try_from(span.as_nanos()).map_err(|_| invalid())?;
        let now = adit_core::types::Timestamp::now().as_nanos();
        return Ok(i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(ago));
    }
    let (day, (time, offset_secs)) = match text.split_once('T') {
        Some((day, time)) => (day, offset(time).ok_or_else(invalid)?),
        None => (text, ("00:00:00", 0)),
    };
    let fields = |text: &str, separator: char, widths: [usize; 3]| -> Option<[i64; 3]> {
        let parts: Vec<&str> = text.split(separator).collect();
        let parts: [&str; 3] = parts.try_into().ok()?;
        let is_number =
            |(part, width): (&&str, &usize)| part.len() == *width && part.bytes().all(|b| b.is_ascii_digit());
        let all = parts.iter().zip(&widths).all(is_number);
        all.then(|| parts.map(|part| part.parse().unwrap_or(0)))
    };
    let [year, month, day] = fields(day, '-', [4, 2, 2]).ok_or_else(invalid)?;
    let [hour, minute, second] = fields(time, ':', [2, 2, 2]).ok_or_else(invalid)?;
    if !(1..=12).contains(&month) || hour >= 24 || minute >= 60 || second >= 61 {
        return Err(invalid());
    }
    let next_month = if month == 12 { days_to(year + 1, 1, 1) } else { days_to(year, month + 1, 1) };
    if day < 1 || days_to(year, month, day) >= next_month {
        return Err(format!("'{text}' is no time: that month has no day {day}"));
    }
    let secs = days_to(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset_secs;
    secs.checked_mul(NANOS).ok_or_else(invalid)
}

/// A time of a day without what says of where it is, and the seconds by which that is ahead of UTC.
fn offset(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix('Z') {
        return Some((time, 0));
    }
    let (time, ahead) = time.split_at_checked(time.find(['+', '-'])?)?;
    let (sign, digits) = (if ahead.starts_with('-') { -1 } else { 1 }, ahead.get(1..)?);
    let (hours, minutes) = digits.split_once(':').or_else(|| digits.split_at_checked(2))?;
    let two = |digits: &str| digits.parse::<u8>().ok().filter(|_| digits.len() == 2 && !digits.starts_with('+'));
    let (hours, minutes) = (two(hours).filter(|hours| *hours < 24)?, two(minutes).filter(|minutes| *minutes < 60)?);
    Some((time, sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60)))
}

/// Days from 1970-01-01 to a Gregorian date (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn days_to(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// A number without sign or exponent, and what comes after it.
fn split(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.starts_with(|c: char| c.is_ascii_digit())).then_some((number, unit.trim_start()))
}

/// Bytes for people: `1.5 MiB`.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let good = [("0", 0), ("4096", 4096), ("64K", 65_536), ("64KiB", 65_536), ("1.5M", 3 << 19), ("2 g", 2 << 30)];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "K", "-1", "1e9", "1X", "1.2.3", "99999999999P", "1.5.K", "NaN", ".5"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!((show_size(1023), show_size(3 << 19)), ("1023 B".into(), "1.5 MiB".into()));
    }

    #[test]
    fn capacities_and_names() {
        assert_eq!(capacity("4M"), Ok(4 << 20));
        assert!(capacity("1K").unwrap_err().contains("4.0 MiB"));
        assert_eq!(capacity("7.5P"), Ok(15 << 49));
        for bad in ["8P", "900P"] {
            assert!(capacity(bad).unwrap_err().contains("less than 8.0 PiB"), "{bad}");
        }
        for good in ["monday", "a b", "-x", "...", "ü"] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", "a/b", "/", &"x".repeat(256)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn moments() {
        const NANOS: i64 = 1_000_000_000;
        for (text, secs) in [
            ("1970-01-01", 0),
            ("2000-02-29T12:00:09Z", 951_825_609),
            ("1969-12-31T23:59:59Z", -1),
            ("2026-11-21", 1_795_219_200),
            ("2000-02-29T14:00:09+02:00", 951_825_609),
            ("2000-02-29T06:30:09-0530", 951_825_609),
            ("2000-03-01T00:00:09+12:00", 951_825_609),
            ("1972-12-31", 94_608_000),
        ] {
            assert_eq!(moment(text), Ok(secs * NANOS), "{text}");
        }
        let ago = moment("2d").unwrap();
        assert!((moment("1d").unwrap() - ago - 86_400 * NANOS).abs() < 60 * NANOS);
        for bad in
            ["", "tomorrow", "2024", "2024-5-6", "2024-13-01", "2024-05-06T07:08", "2024-05-06T25:00:00Z", "9999-01-01"]
        {
            assert!(moment(bad).is_err(), "{bad}");
        }
        for bad in ["2025-02-31", "2025-02-29", "1900-02-29", "2024-04-31", "2024-12-32", "2024-12-00"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
        for bad in ["+2:00", "+02", "+24:00", "+02:60", "+", "-é", "+02:00Z", "Z+02:00", ""] {
            let bad = format!("2024-05-06T07:08:09{bad}");
            assert!(moment(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        let good = [("10", 10_000), ("10s", 10_000), ("500ms", 500), ("5m", 300_000), ("1.5h", 5_400_000), ("0", 0)];
        for (text, millis) in good {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "s", "-1", "1w", "1e400", "1x", "99999999999999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
