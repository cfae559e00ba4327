//! `volume uppers …`: the volumes that `mount --writable` made in the cache directory.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::Serialize;

use super::confirm;
use super::mount::overlay::place;
use crate::args::low::GlobalArgs;
use crate::args::units::show_size;
use crate::args::volume::{DataArgs, UppersCommand, UppersDeleteArgs, UppersListArgs};
use crate::exit_code::Code;
use crate::failure::{Failure, Failures, Result};
use crate::live;
use crate::open::{self, Purpose};
use crate::output::{self, Output, printable};
use crate::volume_work::{Asked, Named};

/// One as `list --json` prints it. Fields are only ever added.
#[derive(Serialize)]
struct UpperJson {
    /// Its file.
    path: String,
    /// What lies below; null if that cannot be told.
    lower: Option<String>,
    /// Whether the folder below is not there any more; null if it is none.
    lower_missing: Option<bool>,
    /// What it takes of the host's disk, in bytes.
    allocated_bytes: u64,
    /// When it was used last, in UTC (ISO 8601): opened to be changed, or changed.
    last_used: String,
    /// Where its overlay is mounted, if it is.
    mountpoint: Option<String>,
    /// Why it cannot be told what it is.
    error: Option<String>,
    #[serde(skip)]
    last_used_secs: u64,
}

/// `adit volume uppers …`
pub fn uppers(command: &UppersCommand, global: &GlobalArgs) -> Result<()> {
    match command {
        UppersCommand::List(args) => list(args),
        UppersCommand::Delete(args) => delete(args, global),
    }
}

fn list(args: &UppersListArgs) -> Result<()> {
    let dir = place::uppers_dir(args.cache_dir.as_deref())?;
    // One that was deleted meanwhile is none.
    let listed =
        place::uppers_in(&dir)?.iter().filter_map(|file| describe(file).transpose()).collect::<Result<Vec<_>>>()?;
    let mut out = Output::new();
    if args.json {
        out.json(&listed)?;
        return out.finish();
    }
    for upper in &listed {
        let shown = |text: &str| printable(text.as_bytes());
        let (path, size) = (shown(&upper.path), show_size(upper.allocated_bytes));
        let lower = match (&upper.lower, &upper.error) {
            (Some(lower), _) if upper.lower_missing == Some(true) => format!("{}, which is not there", shown(lower)),
            (Some(lower), _) => shown(lower),
            (None, Some(error)) => format!("unknown: {}", shown(error)),
            (None, None) => "nothing".to_owned(),
        };
        let used = match &upper.mountpoint {
            Some(mountpoint) => format!("mounted on {}", shown(mountpoint)),
            None => format!("used {}", output::since_text(upper.last_used_secs)),
        };
        out.line(format_args!("{path}\n  on {lower}\n  {size}, {used}"))?;
    }
    out.finish()
}

/// `None` if it is gone.
fn describe(file: &Path) -> Result<Option<UpperJson>> {
    let meta = match file.metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        meta => meta.map_err(|e| Failure::io(file.display(), &e))?,
    };
    // Whoever has it open is asked.
    let asked = Named::find(file.as_os_str(), &DataArgs::default()).and_then(|named| named.ask(&Asked::Info));
    let (lower, error) = match asked {
        Ok(info) => {
            (info["upper_of"].as_str().map(str::to_owned), info["upper_error"]["message"].as_str().map(str::to_owned))
        }
        Err(failure) => (None, Some(failure.text())),
    };
    let last_used_secs =
        meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_secs());
    let folder = lower.as_deref().map(Path::new).filter(|lower| lower.is_absolute());
    Ok(Some(UpperJson {
        path: file.display().to_string(),
        lower_missing: folder.map(|folder| !folder.is_dir()),
        lower,
        // In units of 512 bytes, whatever the filesystem; see stat(2).
        allocated_bytes: meta.blocks() * 512,
        last_used: output::iso_text(last_used_secs),
        mountpoint: live::of_source(file).first().map(|mount| mount.mountpoint.clone()),
        error,
        last_used_secs,
    }))
}

fn delete(args: &UppersDeleteArgs, global: &GlobalArgs) -> Result<()> {
    let dir = place::uppers_dir(args.cache_dir.as_deref())?;
    let mut failures = Failures::default();
    for named in &args.volumes {
        if let Err(failure) = located(&dir, named).and_then(|file| delete_one(&file, args.yes, global)) {
            failures.add(&failure);
        }
    }
    failures.result()
}

/// The file of the one that was named: nothing but what `list` lists is deleted.
fn located(dir: &Path, named: &Path) -> Result<PathBuf> {
    let is_name = named.parent() == Some(Path::new(""));
    let path = if is_name { dir.join(named) } else { named.to_owned() };
    let file = path.canonicalize().map_err(|e| Failure::io(path.display(), &e))?;
    if file.parent() == Some(dir) && place::is_upper_name(&file) {
        return Ok(file);
    }
    let what = format!("{}: it is none of the volumes that --writable made in {}", named.display(), dir.display());
    Err(Failure::usage(what).hint("`adit volume uppers list` names those; remove any other file with rm"))
}

fn delete_one(file: &Path, yes: bool, global: &GlobalArgs) -> Result<()> {
    // Held while it is removed: nobody mounts it meanwhile.
    let (volume, lower) = match open::volume::open_with_data(file, None, Purpose::Write) {
        Ok(volume) => {
            let lower = open::volume::upper_of(&volume, adit_volume::tree::MAIN).ok().flatten();
            (Some(volume), lower.map(|lower| lower.text))
        }
        // In use, or of a later version.
        Err(failure) if [Code::Busy, Code::NotSupported].contains(&failure.code()) => return Err(failure),
        // What is damaged, or no volume at all, can go as well. Of what cannot be read nobody knows what would go.
        Err(failure) => {
            let read = std::fs::File::open(file).and_then(|mut file| file.read(&mut [0; 1 << 12]));
            read.map_err(|e| Failure::io(file.display(), &e))?;
            tracing::info!("{}", failure.text());
            (None, None)
        }
    };
    let size = file.metadata().map_or(0, |meta| meta.blocks() * 512);
    let what = lower.map_or_else(
        || "what it holds, which cannot be told,".to_owned(),
        |lower| format!("all that was changed on {lower}"),
    );
    confirm(&format!("Delete {} ({}) with {what} for good?", file.display(), show_size(size)), yes)?;
    std::fs::remove_file(file).map_err(|e| Failure::io(file.display(), &e))?;
    drop(volume);
    if !global.quiet {
        open::remark(&format!("{}: deleted", file.display()));
    }
    Ok(())
}
