//! `snapshot …` and `clone …`: of a volume's file, or through the mount of one.

use std::ffi::OsStr;
use std::time::Duration;

use serde_json::{Value, json};

use super::mount::overlay::notes;
use super::{bytes, confirm};
use crate::args::low::GlobalArgs;
use crate::args::volume::{
    CloneCommand, SnapshotCommand, SnapshotCreateArgs, SnapshotDeleteArgs, SnapshotDiffArgs, SnapshotRestoreArgs,
    VolumeListArgs,
};
use crate::exit_code::Code;
use crate::failure::{Failure, Failures, Result};
use crate::output::{self, Output, printable};
use crate::state_dir;
use crate::volume_work::{Asked, Named};

/// Writing back what the kernel held is worth a line from here on.
const WORTH_TELLING: Duration = Duration::from_secs(1);

/// `adit snapshot …`
pub fn snapshot(command: &SnapshotCommand, global: &GlobalArgs) -> Result<()> {
    match command {
        SnapshotCommand::Create(args) => create(args, global),
        SnapshotCommand::Delete(args) => delete(args, global),
        SnapshotCommand::List(args) => list(args, false),
        SnapshotCommand::Restore(args) => restore(args, global),
        SnapshotCommand::Diff(args) => diff(args),
    }
}

/// `adit clone …`
pub fn clone(command: &CloneCommand) -> Result<()> {
    match command {
        CloneCommand::Create(args) => {
            let asked = Asked::Clone { snapshot: args.snapshot.clone(), name: args.branch.clone() };
            Named::find(&args.volume, &args.data)?.ask(&asked)?;
            if !args.json {
                return Ok(());
            }
            let mut out = Output::new();
            out.json(&json!({"name": args.branch, "branch": true, "origin": args.snapshot}))?;
            out.finish()
        }
        CloneCommand::List(args) => list(args, true),
        CloneCommand::Delete(args) => {
            let named = Named::find(&args.volume, &args.data)?;
            let question = format!("Delete branch {} of {} with everything in it?", args.branch, named.subject);
            confirm(&question, args.yes)?;
            named.ask(&Asked::DeleteClone { name: args.branch.clone() }).map(drop)
        }
    }
}

fn create(args: &SnapshotCreateArgs, global: &GlobalArgs) -> Result<()> {
    let named = Named::find(&args.of.volume, &args.of.data)?;
    let branch = named.branch(args.of.branch.as_deref())?;
    let made = named.ask(&Asked::Snapshot { branch, name: args.name.clone() })?;
    if args.json {
        let mut out = Output::new();
        out.json(&made)?;
        return out.finish();
    }
    let flushed = Duration::try_from_secs_f64(made["flush_secs"].as_f64().unwrap_or(0.0)).unwrap_or_default();
    if !global.quiet && flushed >= WORTH_TELLING {
        eprintln!("adit: {}: {:.1} s to write back what was in memory", named.subject, flushed.as_secs_f64());
    }
    Ok(())
}

fn delete(args: &SnapshotDeleteArgs, global: &GlobalArgs) -> Result<()> {
    let named = Named::find(&args.volume, &args.data)?;
    let state = state_dir::locate(global.state_dir.as_deref()).ok();
    // What may go is known before anybody is asked.
    let (mut failures, mut names) = (Failures::default(), Vec::new());
    for name in &args.names {
        match notes::refuse_below(&named, name, state.as_deref()) {
            Ok(()) => names.push(name),
            Err(failure) => failures.add(&failure),
        }
    }
    if names.is_empty() {
        return failures.result();
    }
    let which: Vec<String> = names.iter().map(|name| printable(name.as_bytes())).collect();
    let noun = if which.len() == 1 { "snapshot" } else { "snapshots" };
    confirm(&format!("Delete {noun} {} of {} for good?", which.join(", "), named.subject), args.yes)?;
    for name in names {
        if let Err(failure) = named.ask(&Asked::DeleteSnapshot { name: name.clone() }) {
            failures.add(&failure);
        }
    }
    failures.result()
}

fn list(args: &VolumeListArgs, branches: bool) -> Result<()> {
    let named = Named::find(&args.volume, &args.data)?;
    let mut listed = named.ask(&Asked::List)?;
    let mut shown: Vec<Value> = Vec::new();
    for entry in listed.as_array_mut().into_iter().flatten() {
        let Some(fields) = entry.as_object_mut() else { continue };
        if fields.remove("branch") == Some(Value::Bool(branches)) {
            shown.push(entry.take());
        }
    }
    let mut out = Output::new();
    if args.json {
        out.json(&shown)?;
        return out.finish();
    }
    for entry in &shown {
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        let name = printable(text("name").as_bytes());
        let since = output::iso_for_people(text("created"));
        match text("origin") {
            "" => out.line(format_args!("{name}  {since}"))?,
            origin => out.line(format_args!("{name}  {since}, from {}", printable(origin.as_bytes())))?,
        }
    }
    out.finish()
}

/// The names of a path from the root; `.` and `..` make no sense here.
fn names(path: &OsStr) -> Result<Vec<Vec<u8>>> {
    // As an unset variable gives it: the root must be asked for, be it by leaving the path out.
    if path.is_empty() {
        return Err(Failure::usage("the path is empty").hint("leave it out to restore everything"));
    }
    let parts = bytes(path).split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".");
    let names: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    match names.iter().any(|name| name == b"..") {
        true => Err(Failure::usage(format!("{}: name the path from the root of the volume", path.display()))),
        false => Ok(names),
    }
}

fn restore(args: &SnapshotRestoreArgs, global: &GlobalArgs) -> Result<()> {
    let named = Named::find(&args.of.volume, &args.of.data)?;
    let branch = named.branch(args.of.branch.as_deref())?;
    let path = args.path.as_deref().map(names).transpose()?.unwrap_or_default();
    if !path.is_empty() && named.is_overlay() {
        let what = format!("{}: only all that an overlay's upper layer holds can be set back", named.subject);
        return Err(Failure::new(Code::NotSupported, what).hint("leave out the path"));
    }
    let what = match &args.path {
        Some(path) if !bytes(path).iter().all(|&b| b == b'/') => format!("{} in ", printable(bytes(path))),
        _ => String::new(),
    };
    let question = format!(
        "Set {what}branch {branch} of {} back to snapshot {}? What was changed there since is lost",
        named.subject, args.name
    );
    confirm(&format!("{question}."), args.yes)?;
    if named.mount().is_some() {
        // The command itself is not to be what keeps a folder there in use. All paths are absolute by now.
        std::env::set_current_dir("/").map_err(|e| Failure::io("/", &e))?;
    }
    let mut done =
        named.ask(&Asked::Restore { branch: branch.clone(), name: args.name.clone(), path, touch: args.touch })?;
    if !global.quiet {
        for separated in done["separated"].as_array().into_iter().flatten() {
            let path = printable(separated["path"].as_str().unwrap_or_default().as_bytes());
            eprintln!(
                "adit: {}: {path} is a file of its own now: under its other names the file stays as it is, and they are not this one's \
                 any more",
                named.subject
            );
        }
        match done["separated_omitted"].as_u64() {
            Some(count) if count > 0 => eprintln!("adit: {}: so are {count} more", named.subject),
            _ => {}
        }
    }
    if done["unannounced"].as_u64().is_some_and(|count| count > 0) && !global.quiet {
        eprintln!(
            "adit: {}: programs that watch folders there (inotify) may not have heard of all changes: have them look again",
            named.subject
        );
    }
    if !args.json {
        return Ok(());
    }
    // A process of an earlier version tells nothing of it.
    if done.is_null() {
        done = json!({});
    }
    done["snapshot"] = args.name.as_str().into();
    done["branch"] = branch.into();
    let mut out = Output::new();
    out.json(&done)?;
    out.finish()
}

fn diff(args: &SnapshotDiffArgs) -> Result<()> {
    let named = Named::find(&args.of.volume, &args.of.data)?;
    let new = match &args.name2 {
        Some(name) => name.clone(),
        None => named.branch(args.of.branch.as_deref())?,
    };
    let found = named.ask(&Asked::Diff { old: args.name.clone(), new })?;
    let mut out = Output::new();
    if args.json {
        out.json(&found)?;
        return out.finish();
    }
    output::differences(&mut out, &found)?;
    out.finish()
}
