//! `vault check [--repair]`: looks for damage, and mends what can be mended without deleting anything.

use std::path::Path;

use adit_media::HostDirectory;
use adit_vault::Unlocked;
use adit_vault::check::{self as vault_check, Options, Problem, Repair, Report};
use serde::Serialize;
use serde_json::{Value, json};

use super::confirm;
use crate::args::low::{GlobalArgs, VaultCheckArgs};
use crate::args::units::show_size;
use crate::exit_code::Code;
use crate::failure::{Failure, Failures, Result};
use crate::open::{self, Purpose};
use crate::output::{Output, printable};
use crate::progress::Progress;
use crate::{live, source, state_dir};

/// `adit vault check`
pub fn check(args: &VaultCheckArgs, global: &GlobalArgs) -> Result<()> {
    let dir = source::vault_dir(args.dir.as_os_str())?;
    let subject = dir.display().to_string();
    match live::of_source(&dir).as_slice() {
        mounts @ [_, ..] if args.how.repair => {
            let mut failures = Failures::default();
            mounts.iter().for_each(|mount| failures.add(&live::in_the_way(&dir, mount, "mounted", "")));
            return failures.result();
        }
        mounts @ [_, ..] if !global.quiet => {
            let places: Vec<&str> = mounts.iter().map(|mount| mount.mountpoint.as_str()).collect();
            let places = places.join(", ");
            eprintln!("adit: {subject}: mounted on {places}; what changes meanwhile may show as a problem");
        }
        [] if !args.how.repair && !global.quiet && open::vault::is_in_use(&dir) => {
            eprintln!("adit: {subject}: another process has it open; what changes meanwhile may show as a problem");
        }
        _ => {}
    }
    if args.how.repair {
        confirm(&format!("Repair {subject}? Nothing is deleted, but things may be moved."), args.how.yes)?;
    }
    let (password, keys) = open::vault::password(&dir, &args.password.origin())?;
    drop(password);
    if !args.how.repair {
        // What a dead process left in its journal is written back first, as by whatever else reads the vault: half-made things
        // are not problems. A vault too damaged to be opened is looked at as it is.
        let state = state_dir::locate(global.state_dir.as_deref());
        drop(open::vault::unlocked(&dir, &keys, state, Purpose::Read, false));
    }
    let options = Options { contents: !args.how.no_contents };
    let found =
        if args.how.repair { repair(&dir, &keys, options, global)? } else { look(&dir, &keys, options, global)? };
    print(&found, args.how.json)?;
    match found.report.is_clean() && found.report.lost.is_empty() && found.failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::said(Code::ProblemsFound)),
    }
}

/// What a check, or the check after a repair, found.
struct Found {
    report: Report,
    repairing: bool,
    done: Vec<Repair>,
    failed: Vec<Repair>,
}

fn look(dir: &Path, keys: &Unlocked, options: Options, global: &GlobalArgs) -> Result<Found> {
    let root = HostDirectory::open(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let mut progress = Progress::new("check", global.quiet);
    let report = vault_check::check(&root, keys, options, &mut |p| progress.reached(entries(&p), p.bytes));
    progress.finish()?;
    let report = report.map_err(|e| Failure::fs(dir.display(), &e))?;
    Ok(Found { report, repairing: false, done: Vec::new(), failed: Vec::new() })
}

fn repair(dir: &Path, keys: &Unlocked, options: Options, global: &GlobalArgs) -> Result<Found> {
    let state = state_dir::locate(global.state_dir.as_deref());
    // Until the end, also where the vault cannot be opened.
    let claim = open::vault::claim(dir, keys, state, Purpose::Alone, false)?;
    // First what dead mounts left in their journals: it is newer than what lies in the vault, and tells what is half-made
    // there on purpose. A vault too damaged to be opened is repaired without a store, once no journal waits for it.
    let _store = match open::vault::claimed_alone(dir, keys, &claim) {
        Ok(store) => Some(store),
        Err(failure) if failure.code() == Code::Corrupt && !claim.has_journals() => None,
        Err(failure) => return Err(failure),
    };
    let root = HostDirectory::open(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let mut progress = Progress::new("repair", global.quiet);
    let report = vault_check::repair(&root, keys, options, &mut |p| progress.reached(entries(&p), p.bytes));
    progress.finish()?;
    let report = report.map_err(|e| Failure::fs(dir.display(), &e))?;
    Ok(Found { report: report.after, repairing: true, done: report.done, failed: report.failed })
}

fn entries(progress: &vault_check::Progress) -> u64 {
    progress.files + progress.directories + progress.symlinks
}

/// A problem in `--json` output. Fields are only ever added.
#[derive(Serialize)]
struct ProblemJson<'a> {
    kind: &'static str,
    /// Where `name_known` is false, the folder that it is in, as far as names are known, ending in `/`; or null.
    path: Option<&'a str>,
    name_known: bool,
    ciphertext_path: &'a str,
    detail: &'a str,
    repairable: bool,
}

/// A step of a repair in `--json` output. Fields are only ever added.
#[derive(Serialize)]
struct RepairJson<'a> {
    kind: &'static str,
    path: Option<&'a str>,
    name_known: bool,
    ciphertext_path: &'a str,
    action: &'a str,
}

fn problem_json(problem: &Problem) -> ProblemJson<'_> {
    ProblemJson {
        kind: problem.kind.as_str(),
        path: problem.path.as_deref(),
        name_known: problem.name_known,
        ciphertext_path: &problem.ciphertext_path,
        detail: &problem.detail,
        repairable: problem.repairable,
    }
}

fn repair_json(repair: &Repair) -> RepairJson<'_> {
    RepairJson {
        kind: repair.kind.as_str(),
        path: repair.path.as_deref(),
        name_known: repair.name_known,
        ciphertext_path: &repair.ciphertext_path,
        action: &repair.action,
    }
}

fn print(found: &Found, as_json: bool) -> Result<()> {
    let mut out = Output::new();
    if as_json {
        out.json(&document(found))?;
        return out.finish();
    }
    let report = &found.report;
    for (what, steps) in [("repaired", &found.done), ("NOT repaired", &found.failed)] {
        for step in steps {
            let place = place(step.path.as_deref(), step.name_known, &step.ciphertext_path);
            out.line(format_args!("{what}: {}: {place}\n  {}", step.kind, printable(step.action.as_bytes())))?;
        }
    }
    for problem in &report.problems {
        let place = place(problem.path.as_deref(), problem.name_known, &problem.ciphertext_path);
        let more = if problem.repairable && !found.repairing { " (--repair can mend it)" } else { "" };
        out.line(format_args!("{}: {place}\n  {}{more}", problem.kind, printable(problem.detail.as_bytes())))?;
    }
    for lost in &report.lost {
        let place = lost.path.as_deref().unwrap_or("a folder whose path is not known");
        let (place, note) = (printable(place.as_bytes()), printable(lost.note.as_bytes()));
        out.line(format_args!(
            "content lost: {place}\n  a repair made it again, empty; {note} says more, and is to be removed when the content is \
             restored or given up"
        ))?;
    }
    for note in &report.notes {
        let place = place(note.path.as_deref(), true, &note.ciphertext_path);
        out.line(format_args!("note: {place}: {}", printable(note.detail.as_bytes())))?;
    }
    let problems = match report.problems.len() as u64 + report.problems_omitted {
        0 => "no problems".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    let lost = match report.lost.len() {
        0 => String::new(),
        1 => ", the content of 1 folder is lost".to_owned(),
        count => format!(", the content of {count} folders is lost"),
    };
    let (files, folders, links) = (report.files, report.directories, report.symlinks);
    out.line(format_args!(
        "{files} files ({}), {folders} folders, {links} links: {problems}{lost}",
        show_size(report.bytes)
    ))?;
    out.finish()
}

/// Where something is: its cleartext path as far as that is known, and its place in the vault's folder.
fn place(path: Option<&str>, name_known: bool, ciphertext_path: &str) -> String {
    match path {
        Some(folder) if !name_known => {
            format!("{}<name unknown> ({})", printable(folder.as_bytes()), printable(ciphertext_path.as_bytes()))
        }
        Some(path) => format!("{} ({})", printable(path.as_bytes()), printable(ciphertext_path.as_bytes())),
        None => printable(ciphertext_path.as_bytes()),
    }
}

fn document(found: &Found) -> Value {
    let report = &found.report;
    let notes: Vec<Value> = report
        .notes
        .iter()
        .map(|n| json!({"path": n.path, "ciphertext_path": n.ciphertext_path, "detail": n.detail}))
        .collect();
    let mut document = json!({
        "problems": report.problems.iter().map(problem_json).collect::<Vec<_>>(),
        "problems_omitted": report.problems_omitted,
        "lost": report.lost.iter().map(|l| json!({"path": l.path, "note": l.note})).collect::<Vec<_>>(),
        "notes": notes,
        "notes_omitted": report.notes_omitted,
        "files": report.files,
        "directories": report.directories,
        "symlinks": report.symlinks,
        "bytes": report.bytes,
    });
    if found.repairing {
        document["repaired"] = json!(found.done.iter().map(repair_json).collect::<Vec<_>>());
        document["failed"] = json!(found.failed.iter().map(repair_json).collect::<Vec<_>>());
    }
    document
}
