//! `volume init|info|check|gc|resize`; `volume uppers` is in [`uppers`].

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use adit_core::path::this_process;
use adit_core::types::Access;
use adit_volume::Volume;
use adit_volume::check::{self, Options, Problem, Report, Unfinished};
use adit_volume::format::container::{
    DataLocation, FORMAT_VERSION, SLOT_LEN_BYTES, SLOT_OFFSETS, Superblock, SuperblockError, newest,
};
use adit_volume::volume::{CreateOptions, OpenOptions};
use serde_json::{Value, json};

use super::{confirm, uppers};
use crate::args::low::{CheckArgs, GlobalArgs};
use crate::args::units::show_size;
use crate::args::volume::{
    VolumeCheckArgs, VolumeCommand, VolumeGcArgs, VolumeInfoArgs, VolumeInitArgs, VolumeResizeArgs,
};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open::{self, Purpose};
use crate::output::{self, Output, printable};
use crate::progress::Progress;
use crate::volume_work::{Asked, DATA_DIR_RAW, Named, UPPER_ID};
use crate::{source, volume_work};

/// The field with all bytes of the path of a volume whose path is not text; see [`output::raw`].
const PATH_RAW: &str = "path_raw";

/// `adit volume …`
pub fn volume(command: &VolumeCommand, global: &GlobalArgs) -> Result<()> {
    match command {
        VolumeCommand::Init(args) => init(args, global),
        VolumeCommand::Info(args) => info(args),
        VolumeCommand::Check(args) => check(args, global),
        VolumeCommand::Gc(args) => gc(args, global),
        VolumeCommand::Resize(args) => resize(args, global),
        VolumeCommand::Uppers(command) => uppers::uppers(command, global),
    }
}

fn init(args: &VolumeInitArgs, global: &GlobalArgs) -> Result<()> {
    let perm = 0o777 & !crate::process::umask() as u16;
    let new = CreateOptions {
        capacity_bytes: args.capacity,
        durability: args.durability.into(),
        owner: this_process(),
        perm,
    };
    let options = OpenOptions { background: false, ..OpenOptions::new(Access::Write) };
    let fail = |e| Failure::fs(args.file.display(), &e);
    let volume =
        Volume::create_with_data(&args.file, args.data.as_deref(), &new, &options).map_err(|e| match e.kind() {
            adit_core::ErrorKind::Exists => fail(e).hint("nothing was changed; name a file that does not exist yet"),
            _ => fail(e),
        })?;
    volume.close().map_err(fail)?;
    if !global.quiet {
        let capacity = show_size(volume.info().capacity_bytes);
        eprintln!("adit: {}: volume created, with room for {capacity}", args.file.display());
    }
    Ok(())
}

fn info(args: &VolumeInfoArgs) -> Result<()> {
    let named = Named::find(&args.file, &args.data)?;
    let (mut info, failure) = match named.ask(&Asked::Info) {
        Ok(info) => (info, None),
        // What its first bytes tell is told all the same.
        Err(failure) => match outline(named.file()) {
            Some(info) => (info, Some(failure)),
            None => return Err(failure),
        },
    };
    let meta = std::fs::metadata(named.file()).map_err(|e| Failure::io(named.file().display(), &e))?;
    output::add_name(&mut info, "path", named.file().as_os_str().as_bytes());
    info["file_bytes"] = meta.len().into();
    // In units of 512 bytes, whatever the filesystem; see stat(2).
    info["allocated_bytes"] = (meta.blocks() * 512 + in_folder(&info)).into();
    info["mountpoint"] = named.mount().map(|mount| mount.mountpoint.clone()).into();
    let mut out = Output::new();
    if args.json {
        out.json(&info)?;
    } else {
        if let Value::Object(fields) = &mut info {
            // For programs.
            [DATA_DIR_RAW, PATH_RAW, UPPER_ID].iter().for_each(|field| drop(fields.remove(*field)));
        }
        output::human(&mut out, &info, 0)?;
    }
    out.finish()?;
    failure.map_or(Ok(()), Err)
}

/// The superblock of the volume in `file`, whoever has that open.
pub fn superblock_of(file: &Path) -> Option<Superblock> {
    let bytes = File::open(file).ok()?;
    let slots = SLOT_OFFSETS.map(|offset| {
        let mut slot = vec![0; SLOT_LEN_BYTES];
        match bytes.read_exact_at(&mut slot, offset) {
            Ok(()) => Superblock::decode(&slot),
            Err(_) => Err(SuperblockError::NotAVolume),
        }
    });
    newest(slots).ok()
}

/// The data folder of the volume in `file`, where its superblock says that it is; none if it has none.
pub fn data_dir_of(file: &Path, superblock: &Superblock) -> Option<PathBuf> {
    let beside = file.parent()?.join(OsStr::from_bytes(&superblock.data_path));
    (superblock.data == DataLocation::External).then(|| beside.join(volume_work::hex(&superblock.uuid)))
}

/// What the superblock of the volume in `file` says, where that cannot be opened: without its data folder, or damaged.
fn outline(file: &Path) -> Option<Value> {
    let superblock = superblock_of(file)?;
    let mut told = json!({
        "path": file.display().to_string(),
        "kind": "volume",
        "format": FORMAT_VERSION,
        "uuid": volume_work::hex(&superblock.uuid),
        "capacity_bytes": superblock.capacity,
        "segment_len_bytes": superblock.segment_len,
        "durability": volume_work::durability_word(superblock.durability),
        "data": if superblock.data == DataLocation::External { "folder" } else { "inline" },
    });
    if let Some(dir) = data_dir_of(file, &superblock) {
        output::add_name(&mut told, "data_dir", dir.as_os_str().as_bytes());
    }
    Some(told)
}

/// What the data folder of a volume takes of the host's disk, in bytes, if it has one.
fn in_folder(info: &Value) -> u64 {
    volume_work::data_dir(info).map_or(0, |dir| taken_by(&dir))
}

/// What the files in a folder take of the host's disk, in bytes.
pub fn taken_by(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let each = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => taken_by(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    });
    each.sum()
}

fn gc(args: &VolumeGcArgs, global: &GlobalArgs) -> Result<()> {
    let named = Named::find(&args.volume, &args.data)?;
    let info = named.ask(&Asked::Info)?;
    let allocated = || std::fs::metadata(named.file()).map_or(0, |meta| meta.blocks() * 512) + in_folder(&info);
    let before = allocated();
    let mut report = named.ask(&Asked::Gc)?;
    let after = allocated();
    report["allocated_bytes_before"] = before.into();
    report["allocated_bytes"] = after.into();
    if args.json {
        let mut out = Output::new();
        out.json(&report)?;
        return out.finish();
    }
    if !global.quiet {
        let (before, after) = (show_size(before), show_size(after));
        eprintln!("adit: {}: it took {before} of the host's disk, and takes {after} now", named.subject);
    }
    Ok(())
}

fn resize(args: &VolumeResizeArgs, global: &GlobalArgs) -> Result<()> {
    let named = Named::find(&args.volume, &args.data)?;
    named.ask(&Asked::Resize { bytes: args.size })?;
    if args.json {
        let mut out = Output::new();
        out.json(&json!({"capacity_bytes": args.size}))?;
        return out.finish();
    }
    if !global.quiet {
        eprintln!("adit: {}: room for {}", named.subject, show_size(args.size));
    }
    Ok(())
}

fn check(args: &VolumeCheckArgs, global: &GlobalArgs) -> Result<()> {
    let file = source::volume_file(&args.file)?;
    let subject = file.display().to_string();
    if args.how.repair {
        confirm(&format!("Repair {subject}? Nothing is deleted, but things may be moved."), args.how.yes)?;
    }
    let purpose = if args.how.repair { Purpose::Alone } else { Purpose::Read };
    // The advice to check it would not help.
    let beyond = |failure: Failure| match failure.code() {
        Code::Corrupt => failure.hint("it cannot be read as a whole, nor repaired: restore it from a backup"),
        _ => failure,
    };
    let volume = open::volume::in_turn(&file, args.data.as_deref(), purpose).map_err(beyond)?;
    let options = Options { contents: !args.how.no_contents, repair: args.how.repair };
    let mut progress = Progress::new("check", global.quiet);
    let checked = check::check(&volume, options, &mut |p| progress.reached(p.windows, p.bytes));
    progress.finish()?;
    let closed = volume.close();
    let (report, error) = match checked {
        Ok(report) => (report, closed.err()),
        Err(Unfinished { error, report }) => (report, Some(error)),
    };
    let failure = error.map(|e| beyond(open::volume::failure(&file, &e)));
    print(&report, failure.as_ref(), &args.how)?;
    match failure {
        Some(failure) => Err(failure),
        None if report.problems.is_empty() => Ok(()),
        None => Err(Failure::said(Code::ProblemsFound)),
    }
}

fn problem_json(problem: &Problem) -> Value {
    let mut told = json!({
        "kind": problem.kind.as_str(),
        "path": problem.path,
        "in": problem.part,
        "also_in": problem.also_in,
        "detail": problem.detail,
        "repairable": problem.is_repairable,
    });
    if let Some(raw) = &problem.path_raw {
        told[PATH_RAW] = raw.as_slice().into();
    }
    told
}

/// Prints what was found and repaired, also if a failure ended that; what the failure is, goes to standard error as well.
fn print(report: &Report, failure: Option<&Failure>, how: &CheckArgs) -> Result<()> {
    let mut out = Output::new();
    if how.json {
        let mut document = json!({
            "problems": report.problems.iter().map(problem_json).collect::<Vec<_>>(),
            "inodes": report.inodes,
            "bytes": report.bytes,
            "blocks": report.blocks,
        });
        if how.repair {
            document["repaired"] = report.repaired.iter().map(problem_json).collect();
        }
        if let Some(failure) = failure {
            document["error"] = failure.message().into();
        }
        out.json(&document)?;
        return out.finish();
    }
    for problem in &report.repaired {
        let detail = printable(problem.detail.as_bytes());
        out.line(format_args!("repaired: {}: {}\n  {detail}", problem.kind.as_str(), place(problem)))?;
    }
    for problem in &report.problems {
        let more = if problem.is_repairable { " (--repair can mend it)" } else { "" };
        let detail = printable(problem.detail.as_bytes());
        out.line(format_args!("{}: {}\n  {detail}{more}", problem.kind.as_str(), place(problem)))?;
    }
    if failure.is_some() {
        let (done, found) = (report.repaired.len(), report.problems.len());
        out.line(format_args!("not finished: {done} repaired and {found} problems found before an error ended it"))?;
        return out.finish();
    }
    let problems = match report.problems.len() {
        0 => "no problems".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    out.line(format_args!("{} inodes ({} of content read): {problems}", report.inodes, show_size(report.bytes)))?;
    out.finish()
}

/// Where a problem is, as far as that is known.
fn place(problem: &Problem) -> String {
    let name = |name: &str| printable(name.as_bytes());
    match (&problem.path, &problem.part) {
        (Some(path), Some(part)) => format!("{} in {}", name(path), name(part)),
        (Some(known), None) | (None, Some(known)) => name(known),
        (None, None) => "the volume".to_owned(),
    }
}
