//! `index info` and `index check`.

use std::os::unix::ffi::OsStrExt;

use adit_core::ErrorKind;
use adit_core::types::Kind;
use adit_index::layout::Section;
use adit_index::scan::UNREADABLE;
use adit_index::{NodeId, Segment};
use adit_manifest::store::Identity;
use serde_json::{Value, json};

use super::ask::mounted;
use crate::args::index::IndexReadArgs;
use crate::args::low::GlobalArgs;
use crate::args::units::show_size;
use crate::asked::Asked;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::open::index::{IndexFile, only_file};
use crate::output::{self, Output, add_name, counted_entries};
use crate::progress::Progress;
use crate::question::Question;

/// `adit index info`
pub fn info(args: &IndexReadArgs, global: &GlobalArgs) -> Result<()> {
    if let Some(asked) = Asked::of(&args.index, true)? {
        return mounted::about(&asked, &Question::Info, args.json);
    }
    let index = only_file(&args.index, &args.secret, global.quiet)?;
    let told = described(&index).map_err(|e| index.failure(&e))?;
    let mut out = Output::new();
    if args.json {
        out.json(&told)?;
        return out.finish();
    }
    let mut told = told;
    if let Value::Object(fields) = &mut told {
        fields.retain(|name, value| !name.ends_with("_raw") && !value.is_null());
    }
    output::human(&mut out, &told, 0)?;
    out.finish()
}

fn described(index: &IndexFile) -> adit_core::Result<Value> {
    let segment = &*index.segment;
    let mut told = json!({
        "entries": segment.len(),
        "kinds": kinds(segment)?,
        "file_bytes": index.file_len,
        "encrypted": index.is_sealed,
    });
    sections(segment, &mut told);
    add_name(&mut told, "path", index.path.as_os_str().as_bytes());
    match index.origin() {
        Some(origin) => {
            told["kind"] = origin.kind.as_str().into();
            told["root"] = String::from_utf8_lossy(&origin.path).into();
            told["hashed"] = origin.hashed.into();
            told["one_file_system"] = origin.one_file_system.into();
            told["unreadable"] = origin.unreadable.into();
            told["unread_contents"] = origin.unread_contents.into();
            told["made"] = output::iso_text(u64::try_from(origin.begun_ns).unwrap_or(0) / 1_000_000_000).into();
            add_name(&mut told, "source", &origin.source);
            if !origin.snapshot.is_empty() {
                add_name(&mut told, "snapshot", &origin.snapshot);
            }
        }
        None => {
            // One that a mount has made for itself.
            let manifest = Identity::of(segment).is_ok();
            told["kind"] = if manifest { "manifest".into() } else { Value::Null };
        }
    }
    Ok(told)
}

/// How many there are of each kind, and what they come to.
fn kinds(segment: &Segment) -> adit_core::Result<Value> {
    let mut counts = [(Kind::File, 0u64), (Kind::Directory, 0), (Kind::Symlink, 0)];
    let (mut others, mut size, mut hashes, mut incomplete) = (0u64, 0u64, 0u64, 0u64);
    for id in (0..segment.len()).map(NodeId) {
        let node = segment.node(id)?;
        match counts.iter_mut().find(|(kind, _)| *kind == node.kind) {
            Some((_, count)) => *count += 1,
            None => others += 1,
        }
        if node.kind == Kind::File {
            size = size.saturating_add(node.size);
        }
        hashes += u64::from(segment.hash(id)?.is_some());
        incomplete += u64::from(node.kind == Kind::Directory && segment.extra(id)?.starts_with(UNREADABLE));
    }
    let [files, directories, symlinks] = counts.map(|(_, count)| count);
    Ok(json!({
        "files": files,
        "directories": directories,
        "symlinks": symlinks,
        "others": others,
        "size_bytes": size,
        "hashes": hashes,
        "incomplete_directories": incomplete,
    }))
}

/// What the parts of the file take, and what that is for each entry.
fn sections(segment: &Segment, told: &mut Value) {
    let sum = |is_in: &dyn Fn(Section) -> bool| -> u64 {
        segment.sections().filter(|(section, _)| is_in(*section)).map(|(_, len)| len).sum()
    };
    let is_data = |section: Section| {
        use Section::{Extra, ExtraEntries, Hashes, Names, Stamps};
        matches!(section, Names | Hashes | Stamps | ExtraEntries | Extra)
    };
    let per_entry = |bytes: u64| (bytes as f64 / f64::from(segment.len()) * 100.0).round() / 100.0;
    let columns = sum(&|section| !section.is_table() && !is_data(section));
    let tables = sum(&Section::is_table);
    told["columns"] = json!({ "size_bytes": columns, "per_entry": per_entry(columns) });
    told["tables"] = json!({ "size_bytes": tables, "per_entry": per_entry(tables) });
    told["names_bytes"] = sum(&|of| of == Section::Names).into();
    // A hash, and of which file it is.
    told["hashes_bytes"] = sum(&|of| matches!(of, Section::Hashes | Section::Stamps)).into();
    told["extra_bytes"] = sum(&|of| matches!(of, Section::Extra | Section::ExtraEntries)).into();
}

/// `adit index check`
pub fn check(args: &IndexReadArgs, global: &GlobalArgs) -> Result<()> {
    interrupt::watch();
    let index = only_file(&args.index, &args.secret, global.quiet)?;
    let mut progress = Progress::new("check", global.quiet);
    let verified = index.segment.verify(&mut |step| progress.step(step));
    progress.finish()?;
    let problem = match verified {
        Ok(()) => None,
        Err(e) if e.kind() == ErrorKind::Corrupt => Some(e.cause().map_or_else(|| e.to_string(), ToString::to_string)),
        Err(e) => return Err(index.failure(&e)),
    };
    let mut out = Output::new();
    let path = index.path.display().to_string();
    if args.json {
        let problems: Vec<Value> =
            problem.iter().map(|detail| json!({ "kind": "damaged-index", "path": path, "detail": detail })).collect();
        out.json(&json!({ "problems": problems, "entries": index.segment.len(), "bytes": index.file_len }))?;
    } else {
        if let Some(detail) = &problem {
            out.line(format_args!("damaged-index: {path}\n  {detail}"))?;
        }
        let entries = counted_entries(index.segment.len().into());
        let problems = if problem.is_some() { "1 problem" } else { "no problems" };
        out.line(format_args!("{entries} ({}): {problems}", show_size(index.file_len)))?;
    }
    out.finish()?;
    problem.map_or(Ok(()), |_| Err(Failure::said(Code::ProblemsFound)))
}
