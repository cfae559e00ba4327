//! `index update`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use adit_index::publish::InPlace;
use adit_index::scan::{Origin, SourceKind};
use serde_json::json;

use super::ask::mounted;
use super::build::absolute;
use super::from::{From, Wanted};
use super::make::{Earlier, Making, now_ns, say};
use crate::args::index::{IndexSecretArgs, IndexUpdateArgs};
use crate::args::low::{GlobalArgs, SourceArgs};
use crate::asked::Asked;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open::index::{IndexFile, Opener};
use crate::output::add_name;
use crate::question::Question;
use crate::source::is_url;

/// `adit index update`
pub fn update(args: &IndexUpdateArgs, global: &GlobalArgs) -> Result<()> {
    let (path, named) = match &args.output {
        Some(output) => (output.clone(), Some(&args.file)),
        None => (PathBuf::from(&args.file), args.source.as_ref()),
    };
    if let Some(asked) = Asked::of(&path, global.quiet)? {
        return mounted::about(&asked, &Question::Update, args.make.json);
    }
    let path = absolute(&path)?;
    let in_place = InPlace::at(&path).map_err(|e| Failure::io(path.display(), &e))?;
    let begun_ns = now_ns();
    let index = Opener::new(&secret(args, named)?, global.quiet).without_tables().open(&path)?;
    let origin = index.origin().ok_or_else(|| {
        Failure::new(Code::NotSupported, format!("{}: not made by `adit index build`", path.display()))
            .hint("it cannot be updated: build it again")
    })?;
    let source = source_of(&path, &origin, named)?;
    let source = SourceArgs { source, password: args.password.clone(), data: args.data.clone(), cas: args.cas.clone() };
    let snapshot = String::from_utf8_lossy(&origin.snapshot).into_owned();
    let snapshot = (!snapshot.is_empty()).then_some(&*snapshot);
    let from = From::open(&Wanted { source: &source, path: &origin.path, snapshot }, global);
    let from = from.map_err(|failure| match named.is_none() && is_gone(&origin) {
        true => failure.hint(format!("if it lies elsewhere now: adit index update {} SOURCE", path.display())),
        false => failure,
    })?;
    expect_same_kind(&path, &index, &origin, &from)?;
    expect_something(&path, &index, named.is_some(), &from)?;
    let is_of_this_place = from.place.as_os_str().as_bytes() == origin.source;
    // One that lies elsewhere now is noted, so that the next update finds it.
    if is_of_this_place
        && from.is_as(&origin)
        && origin.unreadable == 0
        && origin.unread_contents == 0
        && origin.hashed >= args.hash
    {
        return nothing_to_do(&path, &index, &from, args, global);
    }
    let earlier = Earlier { segment: index.segment, begun_ns: origin.begun_ns, is_of_this_place };
    let origin = Origin {
        hashed: origin.hashed || args.hash,
        begun_ns,
        unreadable: 0,
        unread_contents: 0,
        state: from.state,
        source: from.place.as_os_str().as_bytes().to_vec(),
        ..origin
    };
    Making { output: &path, from: &from, origin, earlier: Some(earlier), in_place, args: &args.make }.make(global)
}

/// Whether there is nothing any more where the source lay.
fn is_gone(origin: &Origin) -> bool {
    let place = Path::new(OsStr::from_bytes(&origin.source));
    !is_url(place) && place.try_exists().is_ok_and(|exists| !exists)
}

/// An empty folder in the place of one that was not is where something else was mounted: its index is not to be lost. Whoever names the folder means it.
fn expect_something(path: &Path, index: &IndexFile, is_named: bool, from: &From) -> Result<()> {
    let had_entries = index.segment.len() > 1;
    let is_empty = || std::fs::read_dir(&from.place).is_ok_and(|mut entries| entries.next().is_none());
    if from.kind != SourceKind::Folder || is_named || !had_entries || !is_empty() {
        return Ok(());
    }
    let (index, place) = (path.display(), from.place.display());
    Err(Failure::new(Code::Failure, format!("{place}: it is empty, and {index} is of a folder that was not")).hint(format!(
        "if something is to be mounted there, mount it first; if it is empty now: `adit index update {index} {place}`"
    )))
}

/// How the old index is opened. The vault may be named as the source.
fn secret(args: &IndexUpdateArgs, named: Option<&OsString>) -> Result<IndexSecretArgs> {
    let vault = args.vault.clone().or_else(|| {
        let named = crate::source::without_prefix(named?);
        Path::new(named).is_dir().then(|| named.into())
    });
    Ok(IndexSecretArgs { vault, password: args.password.clone() })
}

/// What it is made from: what was named, else what it says itself.
fn source_of(path: &Path, origin: &Origin, named: Option<&OsString>) -> Result<OsString> {
    if let Some(named) = named {
        return Ok(named.clone());
    }
    if origin.source.is_empty() || origin.path.is_empty() {
        let what = format!("{}: its source has so long a path that it does not know it", path.display());
        return Err(Failure::usage(what).hint("name the source: adit index update FILE SOURCE"));
    }
    // A place may have become something else meanwhile: then that is told.
    let prefix = format!("{}:", origin.kind.as_str());
    let source = [prefix.as_bytes(), &origin.source].concat();
    Ok(OsString::from_vec(source))
}

fn expect_same_kind(path: &Path, index: &IndexFile, origin: &Origin, from: &From) -> Result<()> {
    if (from.kind, index.is_sealed) == (origin.kind, from.key.is_some()) {
        return Ok(());
    }
    let what =
        format!("{}: the index of a {}, and not of a {}", path.display(), origin.kind.as_str(), from.kind.as_str());
    Err(Failure::usage(what).hint("build another one: adit index build"))
}

fn nothing_to_do(
    path: &Path,
    index: &IndexFile,
    from: &From,
    args: &IndexUpdateArgs,
    global: &GlobalArgs,
) -> Result<()> {
    if !args.make.json {
        if !global.quiet {
            let what = if from.kind == SourceKind::Manifest { "the manifest" } else { "the snapshot" };
            eprintln!("adit: {}: nothing to do: {what} is the same", path.display());
        }
        return Ok(());
    }
    let mut told = json!({
        "kind": from.kind.as_str(),
        "entries": index.segment.len(),
        "file_bytes": index.file_len,
        "encrypted": index.is_sealed,
        "updated": false,
        "added": 0,
        "changed": 0,
        "removed": 0,
    });
    add_name(&mut told, "path", OsStr::as_bytes(path.as_os_str()));
    add_name(&mut told, "source", from.place.as_os_str().as_bytes());
    say(&told, true, global)
}
