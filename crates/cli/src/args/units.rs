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
