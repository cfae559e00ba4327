//! Standard output: text for people, JSON for programs.

use std::io::{self, BufWriter, StdoutLock, Write};

use adit_core::path::{Node, show};
use adit_core::types::{Kind, Timestamp};
use serde::Serialize;
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::terminal::inert;
pub use crate::terminal::printable;

/// Buffered standard output. A reader that went away ends the program quietly.
pub struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    /// Locks standard output.
    pub fn new() -> Output {
        Output(BufWriter::with_capacity(64 * 1024, io::stdout().lock()))
    }

    /// Writes bytes as they are: no text for people.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).map_err(|e| Failure::output(&e))
    }

    /// Writes a line.
    pub fn line(&mut self, line: impl std::fmt::Display) -> Result<()> {
        self.text(&format!("{line}\n"))
    }

    /// Writes a whole JSON document, indented.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        self.line(serde_json::to_string_pretty(value).map_err(|e| Failure::output(&e.into()))?)
    }

    fn text(&mut self, text: &str) -> Result<()> {
        self.bytes(inert(text).as_bytes())
    }

    /// Writes what is buffered. Call it at the end: errors on drop are lost.
    pub fn finish(mut self) -> Result<()> {
        self.0.flush().map_err(|e| Failure::output(&e))
    }

    /// Writes what is buffered, and goes on.
    pub fn flush(&mut self) -> Result<()> {
        self.0.flush().map_err(|e| Failure::output(&e))
    }
}

/// A list of JSON objects, written one by one, so that a million entries need no memory.
pub struct JsonList {
    any: bool,
}

impl JsonList {
    /// Begins the list.
    pub fn begin(out: &mut Output) -> Result<Self> {
        out.bytes(b"[")?;
        Ok(JsonList { any: false })
    }

    /// Adds an object.
    pub fn add(&mut self, out: &mut Output, item: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(item).map_err(|e| Failure::output(&e.into()))?;
        out.bytes(if self.any { b",\n " } else { b"\n " })?;
        self.any = true;
        out.text(&text)
    }

    /// Ends the list.
    pub fn end(self, out: &mut Output) -> Result<()> {
        out.bytes(if self.any { b"\n]\n" } else { b"]\n" })
    }
}

/// What the field `NAME_raw` beside a field `NAME` of JSON is: the bytes of a path or a name that is not UTF-8, as numbers. It is
/// there only then, for `NAME` is the whole truth otherwise.
pub fn raw(name: &[u8]) -> Option<Vec<u8>> {
    std::str::from_utf8(name).is_err().then(|| name.to_vec())
}

/// A number with its noun: "1 file", "2 files".
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `1 entry`, `2 entries`
pub fn counted_entries(count: u64) -> String {
    if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") }
}

/// Adds a path or a name to an object of JSON, as text, and as bytes where it is not UTF-8; see [`raw`].
pub fn add_name(object: &mut Value, field: &str, name: &[u8]) {
    object[field] = String::from_utf8_lossy(name).into();
    if let Some(raw) = raw(name) {
        object[format!("{field}_raw")] = raw.into();
    }
}

/// An entry of `ls` and `tree`. Fields are only ever added.
#[derive(Serialize, Debug)]
pub struct EntryJson {
    /// From the root of the source, with a leading slash; bytes that are not UTF-8 are replaced.
    path: String,
    /// All bytes of it, if there are such; see [`raw`].
    #[serde(skip_serializing_if = "Option::is_none")]
    path_raw: Option<Vec<u8>>,
    /// `file`, `directory`, `symlink`, or what else a volume holds.
    kind: &'static str,
    /// Bytes.
    size: u64,
    /// Permission bits as a number.
    mode: u16,
    /// Nanoseconds since 1970.
    mtime_ns: i64,
    /// Where a symbolic link leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// All bytes of it, if there are some that are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_raw: Option<Vec<u8>>,
    /// Of a file in an index, the hash of its content, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
}

impl EntryJson {
    /// Describes `node`.
    pub fn new(node: &Node<'_>, target: Option<&[u8]>) -> EntryJson {
        let attr = node.attr();
        EntryJson {
            path: show(node.path()),
            path_raw: raw(&[b"/", node.path()].concat()),
            kind: attr.kind.as_str(),
            size: attr.size,
            mode: attr.perm,
            // The years 1678 to 2262 fit; a time beyond is shown as the end of that span.
            mtime_ns: attr.mtime.as_nanos().clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64,
            target: target.map(|t| String::from_utf8_lossy(t).into_owned()),
            target_raw: target.and_then(raw),
            hash: None,
        }
    }

    /// Describes a node of an index, whose path has a slash in front.
    pub fn of_node(path: &[u8], node: &adit_index::Node, target: Option<&[u8]>, hash: Option<String>) -> EntryJson {
        EntryJson {
            path: String::from_utf8_lossy(path).into_owned(),
            path_raw: raw(path),
            kind: node.kind.as_str(),
            size: node.size,
            mode: node.perm,
            mtime_ns: node.mtime_ns,
            target: target.map(|t| String::from_utf8_lossy(t).into_owned()),
            target_raw: target.and_then(raw),
            hash,
        }
    }
}

/// `drwxr-xr-x`, as `ls -l` writes it.
pub fn mode_text(kind: Kind, perm: u16) -> String {
    let first = match kind {
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::BlockDevice => 'b',
        Kind::CharDevice => 'c',
        Kind::Socket => 's',
        Kind::File => '-',
    };
    let mut text = String::from(first);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = perm >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (perm & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `2024-05-06 07:08` in UTC.
pub fn time_text(time: Timestamp) -> String {
    let days = time.secs.div_euclid(86_400);
    let of_day = time.secs.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", of_day / 3600, of_day / 60 % 60)
}

/// `2024-05-06T07:08:09Z` (ISO 8601) of a time in seconds since 1970.
pub fn iso_text(secs: u64) -> String {
    let time = Timestamp { secs: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 };
    format!("{}:{:02}Z", time_text(time).replace(' ', "T"), secs % 60)
}

/// `2024-05-06 07:08 UTC, 5 minutes ago` of a time in seconds since 1970.
pub fn since_text(secs: u64) -> String {
    let time = Timestamp { secs: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 };
    let elapsed = u64::try_from(Timestamp::now().secs).unwrap_or(0).saturating_sub(secs);
    format!("{} UTC, {} ago", time_text(time), span_text(elapsed))
}

/// `2024-05-06T07:08:09Z` as `2024-05-06 07:08 UTC`; other texts stay.
pub fn iso_for_people(text: &str) -> String {
    match (text.get(..16), text.ends_with('Z')) {
        (Some(minute), true) => format!("{} UTC", minute.replace('T', " ")),
        _ => text.to_owned(),
    }
}

/// `5 minutes`: the largest unit that fits.
pub fn span_text(secs: u64) -> String {
    let (count, unit) = match secs {
        0..60 => (secs, "second"),
        60..3600 => (secs / 60, "minute"),
        3600..86_400 => (secs / 3600, "hour"),
        _ => (secs / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// The Gregorian date of a day counted from 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, of_year - (153 * shifted + 2) / 5 + 1)
}

/// Prints a JSON object as aligned lines for people; nested objects are indented.
pub fn human(out: &mut Output, value: &Value, indent: usize) -> Result<()> {
    let Value::Object(fields) = value else { return out.line(scalar(value)) };
    let label = |key: &str| match fields.contains_key(&format!("{key}_bytes")) {
        // Of a cache: the size in bytes has the short name already.
        true => "entries".to_owned(),
        false => key.strip_suffix("_secs").or(key.strip_suffix("_bytes")).unwrap_or(key).replace('_', " "),
    };
    let width = fields.keys().map(|key| label(key).len()).max().unwrap_or(0);
    for (key, field) in fields {
        let label = label(key);
        if field.is_object() {
            out.line(format_args!("{:indent$}{label}", ""))?;
            human(out, field, indent + 2)?;
        } else {
            out.line(format_args!("{:indent$}{label:width$}  {}", "", sized(key, field)))?;
        }
    }
    Ok(())
}

fn sized(key: &str, value: &Value) -> String {
    match (value.as_u64(), value.as_f64()) {
        (Some(bytes), _) if key.ends_with("_bytes") => crate::args::units::show_size(bytes),
        (Some(secs), _) if key.ends_with("_secs") => span_text(secs),
        (_, Some(secs)) if key.ends_with("_secs") => format!("{secs} s"),
        _ => scalar(value),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// Prints a list of objects with `path`, `kind`, `change`, `from` and, of what could not be compared, `error`: a line for each.
pub fn differences(out: &mut Output, found: &Value) -> Result<()> {
    for difference in found.as_array().into_iter().flatten() {
        let text = |key: &str| printable(difference[key].as_str().unwrap_or_default().as_bytes());
        let folder = if difference["kind"] == "directory" { "/" } else { "" };
        match difference["change"].as_str().unwrap_or_default() {
            "renamed" => out.line(format_args!("renamed  {}{folder} -> {}{folder}", text("from"), text("path")))?,
            change if difference["error"].is_string() => {
                out.line(format_args!("{change:<8} {}{folder}: {}", text("path"), text("error")))?;
            }
            change => out.line(format_args!("{change:<8} {}{folder}", text("path")))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_times_read_as_in_ls() {
        assert_eq!(mode_text(Kind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(mode_text(Kind::File, 0o4640), "-rwSr-----");
        assert_eq!(mode_text(Kind::Symlink, 0o1777), "lrwxrwxrwt");
        let special = [(Kind::Fifo, 'p'), (Kind::BlockDevice, 'b'), (Kind::CharDevice, 'c'), (Kind::Socket, 's')];
        for (kind, letter) in special {
            assert_eq!(mode_text(kind, 0o600), format!("{letter}rw-------"));
        }
        for (secs, text) in [
            (0, "1970-01-01 00:00"),
            (-1, "1969-12-31 23:59"),
            (951_825_600, "2000-02-29 12:00"),
            (1_795_305_599, "2026-11-21 23:59"),
        ] {
            assert_eq!(time_text(Timestamp { secs, nanos: 0 }), text);
        }
    }

    #[test]
    fn spans_and_moments_are_for_people_or_for_programs() {
        assert_eq!(iso_text(951_825_609), "2000-02-29T12:00:09Z");
        assert_eq!(iso_text(0), "1970-01-01T00:00:00Z");
        for (secs, text) in [(0, "0 seconds"), (1, "1 second"), (119, "1 minute"), (7200, "2 hours"), (86_400, "1 day")]
        {
            assert_eq!(span_text(secs), text);
        }
        assert_eq!(iso_for_people("2000-02-29T12:00:09Z"), "2000-02-29 12:00 UTC");
        assert!(since_text(951_825_609).starts_with("2000-02-29 12:00 UTC, "));
    }
}
