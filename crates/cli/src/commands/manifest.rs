//! `manifest snapshot|diff|merge|index`: manifests of sources, compared and put together.

mod commit;
mod download;
mod failed;
mod outputs;
mod scan;
mod sizing;
mod upload;
mod verify;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use adit_core::FsError;
use adit_core::host;
use adit_core::path::Tree;
use adit_manifest::format::{
    Body, ContentHash, Dialect, EntryPath, Format, FormatError, Header, Losses, MTIME_TOLERANCE_MICROS, Manifest,
    Removed, Rule, Written,
};
use adit_manifest::snapshot::Filter;
use adit_manifest::store::Identity;
use serde_json::{Value, json};

use self::failed::ended;
use self::scan::scan;
use super::bytes;
use crate::args::low::{GlobalArgs, PasswordArgs, SourceArgs};
use crate::args::manifest::{
    CasArgs, ContentArgs, FormatArg, ManifestCommand, ManifestDiffArgs, ManifestIndexArgs, ManifestMergeArgs,
    ManifestSnapshotArgs, StoreArgs,
};
use crate::args::units::show_size;
use crate::args::volume::DataArgs;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::logging;
use crate::open::{self, Purpose};
use crate::output::{Output, add_name, counted, differences};
use crate::process;
use crate::source::{Source, is_url, manifest_if_one};

/// In the place of a file: standard output.
const STANDARD_STREAM: &str = "-";

/// `adit manifest …`
pub fn manifest(command: &ManifestCommand, global: &GlobalArgs) -> Result<()> {
    logging::about_manifests();
    match command {
        ManifestCommand::Snapshot(args) => snapshot(args, global),
        ManifestCommand::Diff(args) => diff(args, global),
        ManifestCommand::Merge(args) => merge(args, global),
        ManifestCommand::Download(args) => download::download(args, global),
        ManifestCommand::Verify(args) => verify::verify(args, global),
        ManifestCommand::Upload(args) => upload::upload(args, global),
        ManifestCommand::Commit(args) => commit::commit(args, global),
        ManifestCommand::Index(args) => index(args, global),
    }
}

impl FormatArg {
    fn format(self) -> Format {
        match self {
            FormatArg::V2023 => Format::V2023,
            FormatArg::V2025 => Format::V2025(Dialect::G),
        }
    }
}

/// A manifest with what its bytes have as hash.
struct Read {
    manifest: Manifest,
    hash: ContentHash,
    canonical: OnceCell<ContentHash>,
}

impl Read {
    fn new(manifest: Manifest, hash: ContentHash) -> Read {
        Read { manifest, hash, canonical: OnceCell::new() }
    }

    /// The hash of its canonical form, by which a diff names it.
    fn canonical_hash(&self) -> ContentHash {
        *self.canonical.get_or_init(|| match self.manifest.header().format {
            // Who writes this dialect has other bytes for the same.
            Format::V2025(Dialect::L) => self.hash,
            format => self.manifest.encode(format, io::sink()).map_or(self.hash, |written| written.hash),
        })
    }

    /// Whether a diff of it may name this: some writers take the hash of its bytes as they are.
    fn has_hash(&self, hash: ContentHash) -> bool {
        self.hash == hash || self.canonical_hash() == hash
    }
}

fn snapshot(args: &ManifestSnapshotArgs, global: &GlobalArgs) -> Result<()> {
    let parent = match &args.parent {
        None => None,
        Some(_) if args.format == Some(FormatArg::V2023) => {
            return Err(Failure::usage("v2023 has no diffs").hint("leave out --format, or --parent"));
        }
        Some(name) => {
            let read = read_manifest(name.as_os_str(), &args.source.cas.store)?;
            expect_whole(name.as_os_str(), &read)?;
            Some(read)
        }
    };
    let format = args
        .format
        .map_or_else(|| if parent.is_some() { FormatArg::V2025.format() } else { Format::V2023 }, FormatArg::format);
    only_one_on_output(&args.output, args.json)?;
    let inputs: Vec<&OsStr> =
        std::iter::once(&*args.source.source).chain(args.parent.as_ref().map(|parent| parent.as_os_str())).collect();
    check_manifest_output(&args.output, &inputs)?;
    // For a diff, as the parent was made: what that could not hold does not differ.
    let seen_as = parent.as_ref().map_or(format, |parent| parent.manifest.header().format);
    // Where a manifest has its content from; where that of another source goes.
    let mut source = args.source.clone();
    let goes_to = match Source::recognise(&source.source)? {
        Source::Manifest(_) => None,
        _ => source.cas.cas.take(),
    };
    // Before hours of hashing.
    goes_to.as_deref().map_or(Ok(()), |url| open::manifest::expect_store(url, &source.cas.store))?;
    let opened = open::source(&source, global, Purpose::Read)?;
    // What an earlier run has written is no part of the source, nor is a store in it.
    let own: Vec<&Path> = [Some(&*args.output), goes_to.as_deref().map(Path::new)].into_iter().flatten().collect();
    let scanned = scan(&source, &opened, bytes(&args.path), seen_as, (&args.scan, &own), (args.json, global))?
        .whole(args.json)?;
    let (_, opened) = opened;
    let manifest = match &parent {
        Some(parent) => {
            let now = as_read(scanned.manifest.clone(), seen_as)?;
            now.manifest.diff(&parent.manifest, parent.canonical_hash()).map_err(|e| Failure::fs("diff", &e))?
        }
        None => scanned.manifest,
    };
    let uploaded = match &goes_to {
        Some(url) => {
            let (tree, root) = (&Tree::new(&*opened.store), bytes(&args.path));
            let (cas, store, advice) = (&**url, &source.cas.store, &opened.advice);
            // What was not wanted is not in the manifest.
            let (filter, json) = (&Filter::default(), args.json);
            let cache_dir = source.cas.cache_dir.as_deref();
            let verb = "snapshot";
            let bringing =
                upload::Bringing { tree, root, cas, store, filter, cache_dir, verify: false, advice, json, verb };
            let upload::Brought { uploaded, failed, finished } =
                bringing.bring(&manifest, &mut HashSet::new(), global)?;
            let told = || json!({"uploaded": upload::describe(&uploaded), "failures": failed.into_json()});
            finished.map_err(|failure| ended(&told(), failure, args.json))?;
            Some(uploaded)
        }
        None => None,
    };
    let written = write(&manifest, format, &args.output)?;
    let mut told = describe(&manifest, format, &written, &args.output);
    if let Some(uploaded) = &uploaded {
        told["uploaded"] = upload::describe(uploaded);
    }
    let (empty_folders, followed) = scanned.not_kept;
    told["lost"]["directories"] = empty_folders.into();
    told["followed"] = followed.into();
    told["known_files"] = scanned.known_files.into();
    told["hashed_bytes"] = scanned.hashed_bytes.into();
    told["left_out"] = scanned.left_out.into();
    told["failures"] = json!([]);
    tell(&told, &args.output, args.json, global)
}

fn diff(args: &ManifestDiffArgs, global: &GlobalArgs) -> Result<()> {
    let (before, after) = (read_if_manifest(&args.before, &args.store)?, read_if_manifest(&args.after, &args.store)?);
    // A source is looked at as the manifest that it is compared with was made: what that could not hold does not differ.
    let format =
        before.as_ref().or(after.as_ref()).map_or(FormatArg::V2025.format(), |known| known.manifest.header().format);
    let of = |name: &OsStr| {
        let source = SourceArgs {
            source: name.to_owned(),
            password: PasswordArgs::default(),
            data: DataArgs::default(),
            cas: CasArgs { cache_dir: args.cache_dir.clone(), ..CasArgs::default() },
        };
        let opened = open::source(&source, global, Purpose::Read)?;
        as_read(
            scan(&source, &opened, b"/", format, (&args.scan, &[]), (false, global))?.whole(false)?.manifest,
            format,
        )
    };
    let before = before.map_or_else(|| of(&args.before), Ok)?;
    let after = after.map_or_else(|| of(&args.after), Ok)?;
    expect_whole(&args.before, &before)?;
    expect_whole(&args.after, &after)?;
    differ(&before, &after, args, global)
}

/// Refuses a diff where a whole tree is compared.
fn expect_whole(name: &OsStr, read: &Read) -> Result<()> {
    let Some(parent) = read.manifest.header().kind.parent() else { return Ok(()) };
    let name = Path::new(name).display();
    let what = format!(
        "{name}: it tells only what changed since the manifest whose hash is {parent}, and a whole tree is compared"
    );
    Err(Failure::usage(what).hint(format!("`adit manifest merge THAT_MANIFEST {name} -o FILE` makes one of both")))
}

/// A manifest as it comes back after it was written in this version.
fn as_read(manifest: Manifest, format: Format) -> Result<Read> {
    let mut text = Vec::new();
    match manifest.encode(format, &mut text) {
        Ok(_) => {
            let (manifest, summary) = Manifest::read(&text[..]).map_err(|e| Failure::fs("diff", &e))?;
            Ok(Read::new(manifest, summary.hash))
        }
        // The version of 2023 has no manifest of nothing, but a folder can be empty.
        Err(e) if FormatError::of(&e).is_some_and(|e| e.rule == Rule::NoEntries) => {
            Ok(Read::new(Manifest::new(Header::snapshot(format)), ContentHash::of(b"")))
        }
        Err(e) => Err(Failure::fs("diff", &e)),
    }
}

fn differ(before: &Read, after: &Read, args: &ManifestDiffArgs, global: &GlobalArgs) -> Result<()> {
    if let Some(output) = &args.output {
        only_one_on_output(output, args.json)?;
        check_manifest_output(output, &[&args.before, &args.after])?;
    }
    let failed = |e: FsError| Failure::fs("diff", &e);
    if let Some(output) = &args.output {
        let changes = after.manifest.diff(&before.manifest, before.canonical_hash()).map_err(failed)?;
        write(&changes, FormatArg::V2025.format(), output)?;
        if output.as_os_str() == STANDARD_STREAM {
            return Ok(());
        }
    }
    // What one of both cannot hold does not differ.
    let (was, now) = Manifest::comparable(&before.manifest, &after.manifest);
    if (matches!(was, Cow::Owned(_)) || matches!(now, Cow::Owned(_))) && !global.quiet {
        eprintln!(
            "adit: diff: one of both is v2023: folders, links and exec bits are not compared, and files of more than 256 MiB \
             by length and time"
        );
    }
    let changes = now.diff(&was, before.canonical_hash()).map_err(failed)?;
    let mut found: Vec<(&EntryPath<'_>, &str, &str)> = Vec::new();
    for (path, body) in changes.entries() {
        let change = match was.get(path) {
            None => "added",
            Some(was) => what_changed(was, body),
        };
        found.push((path, kind(body), change));
    }
    for (path, removed) in changes.deletions() {
        // What something else took the place of is told as changed.
        if changes.get(path).is_none() {
            found.push((path, if removed == Removed::Directory { "directory" } else { "file" }, "removed"));
        }
    }
    found.sort();
    let found: Vec<Value> = found
        .into_iter()
        .map(|(path, kind, change)| {
            let mut object = json!({ "kind": kind, "change": change });
            add_name(&mut object, "path", &[b"/", &path.to_listing()[..]].concat());
            object
        })
        .collect();
    let mut out = Output::new();
    match args.json {
        true => out.json(&found)?,
        false => differences(&mut out, &found.into())?,
    }
    out.finish()
}

fn what_changed(was: &Body<'_>, now: &Body<'_>) -> &'static str {
    match (was, now) {
        (Body::File(was), Body::File(now)) if was.size_bytes == now.size_bytes && was.content == now.content => {
            debug_assert!(
                was.runnable != now.runnable || was.mtime_micros.abs_diff(now.mtime_micros) > MTIME_TOLERANCE_MICROS
            );
            "attributes"
        }
        _ => "changed",
    }
}

fn kind(body: &Body<'_>) -> &'static str {
    match body {
        Body::Directory => "directory",
        Body::Symlink(_) => "symlink",
        Body::File(_) | Body::Deleted(_) => "file",
    }
}

fn merge(args: &ManifestMergeArgs, global: &GlobalArgs) -> Result<()> {
    only_one_on_output(&args.output, args.json)?;
    let inputs: Vec<&OsStr> = args.manifests.iter().map(|name| name.as_os_str()).collect();
    check_manifest_output(&args.output, &inputs)?;
    let read_all: Vec<Read> =
        args.manifests.iter().map(|name| read_manifest(name, &args.store)).collect::<Result<_>>()?;
    let merged = put_together(&args.manifests, &read_all)?;
    let format = args.format.map_or(merged.header().format, FormatArg::format);
    let written = write(&merged, format, &args.output)?;
    tell(&describe(&merged, format, &written, &args.output), &args.output, args.json, global)
}

/// The manifests of these names, the oldest first, as one.
///
/// # Errors
/// Usage, for a diff that is not of what is before it, or is of what comes after it.
fn put_together(names: &[OsString], read_all: &[Read]) -> Result<Manifest> {
    for (at, (name, next)) in names.iter().zip(read_all).enumerate().skip(1) {
        // Put on top of its own changes, it would take them back.
        let of_next = |(_, one): &(&OsString, &Read)| {
            one.manifest.header().kind.parent().is_some_and(|parent| next.has_hash(parent))
        };
        if let Some((diff, _)) = names.iter().zip(&read_all[..at]).find(of_next) {
            let what = format!("{}: {}, which is named before it, is a diff of it", name.display(), diff.display());
            return Err(
                Failure::usage(what).hint("name the manifests in the order in which they were made, the oldest first")
            );
        }
        let Some(parent) = next.manifest.header().kind.parent() else { continue };
        let before = &read_all[..at];
        if !before.iter().any(|one| one.has_hash(parent)) && !is_merged(before, parent)? {
            let what = format!("{}: a diff of another manifest: of one whose hash is {parent}", name.display());
            return Err(
                Failure::usage(what).hint("name the manifests in the order in which they were made, the oldest first")
            );
        }
    }
    Manifest::merge(read_all.iter().map(|read| &read.manifest)).map_err(|e| Failure::fs("merge", &e))
}

fn index(args: &ManifestIndexArgs, global: &GlobalArgs) -> Result<()> {
    let Some(file) = manifest_if_one(&args.manifest)? else {
        let what = format!("{}: not a manifest", Path::new(&args.manifest).display());
        return Err(Failure::new(Code::NotSupported, what));
    };
    let content = ContentArgs { cas: None, store: args.store.clone() };
    let args_settled = open::manifest::settled(&content.with(&args.cache), &file)?;
    let segment = open::manifest::index(&file, &args_settled, global.quiet)?;
    let Identity { hash, totals, .. } =
        Identity::of(&segment).map_err(|e| Failure::fs(segment.file_path().display(), &e))?;
    let mut out = Output::new();
    if args.json {
        out.json(&json!({
            "manifest": file.to_string_lossy(),
            "xxh128": hash.to_string(),
            "files": totals.files,
            "directories": totals.directories,
            "symlinks": totals.symlinks,
            "size_bytes": totals.size_bytes,
        }))?;
    } else if !global.quiet {
        let what = format!("{}, {}", counted(totals.files, "file"), show_size(totals.size_bytes));
        out.line(format_args!("{}: indexed: {what}", file.display()))?;
    }
    out.finish()
}

/// Whether these manifests merged have the hash `parent`, in one of the versions.
fn is_merged(manifests: &[Read], parent: ContentHash) -> Result<bool> {
    let merged = Manifest::merge(manifests.iter().map(|read| &read.manifest)).map_err(|e| Failure::fs("merge", &e))?;
    let has =
        |format: FormatArg| merged.encode(format.format(), io::sink()).is_ok_and(|written| written.hash == parent);
    Ok(has(FormatArg::V2023) || has(FormatArg::V2025))
}

/// The manifest that is named, whatever it looks like.
fn read_manifest(name: &OsStr, store: &StoreArgs) -> Result<Read> {
    read(Path::new(crate::source::without_prefix(name)), store)
}

/// The manifest in `file`, or at that URL.
fn read(file: &Path, store: &StoreArgs) -> Result<Read> {
    let read = if is_url(file) {
        Manifest::read(&open::manifest::document(file, store)?)
    } else {
        let opened = File::open(file).map_err(|e| Failure::io(file.display(), &e))?;
        if !opened.metadata().is_ok_and(|meta| meta.is_file()) {
            let what = format!("{}: not a manifest: it is not a file", file.display());
            return Err(Failure::new(Code::NotSupported, what));
        }
        Manifest::read(&opened)
    };
    let (manifest, summary) = read.map_err(|e| open::manifest::failure(file, &e))?;
    Ok(Read::new(manifest, summary.hash))
}

fn read_if_manifest(name: &OsStr, store: &StoreArgs) -> Result<Option<Read>> {
    manifest_if_one(name)?.map(|file| read(&file, store)).transpose()
}

/// Refuses the manifest and the description of it in one stream.
fn only_one_on_output(output: &Path, json: bool) -> Result<()> {
    match json && output.as_os_str() == STANDARD_STREAM {
        true => Err(Failure::usage("standard output cannot have both the manifest and what --json prints")),
        false => Ok(()),
    }
}

/// As [`check_output`], for a manifest: what is there already is replaced only if it is one, or empty.
fn check_manifest_output(output: &Path, inputs: &[&OsStr]) -> Result<()> {
    check_output(output, inputs)?;
    let Ok(meta) = fs::metadata(output) else { return Ok(()) };
    let may_go = output.as_os_str() == STANDARD_STREAM || !meta.is_file() || meta.len() == 0;
    if may_go || matches!(Source::recognise(output.as_os_str()), Ok(Source::Manifest(_))) {
        return Ok(());
    }
    let what = format!("{}: it is no manifest, and would be replaced", output.display());
    Err(Failure::usage(what).hint("name another file with -o, or remove this one first"))
}

/// Refuses an output that cannot be written, before long work, and one that is among what is read.
pub fn check_output(output: &Path, inputs: &[&OsStr]) -> Result<()> {
    if output.as_os_str() == STANDARD_STREAM {
        return Ok(());
    }
    let Ok(meta) = fs::metadata(output) else {
        let dir = folder_of(output);
        let meta = fs::metadata(dir).map_err(|e| Failure::io(output.display(), &e))?;
        return match meta.is_dir() {
            true => Ok(()),
            false => Err(Failure::new(Code::Failure, format!("{}: not a folder", dir.display()))),
        };
    };
    if meta.is_dir() {
        return Err(Failure::new(Code::Failure, format!("{}: is a folder", output.display())));
    }
    for input in inputs {
        let input = Path::new(crate::source::without_prefix(input));
        if fs::metadata(input).is_ok_and(|read| (read.dev(), read.ino()) == (meta.dev(), meta.ino())) {
            let what = format!("{}: it is {} itself, which is read", output.display(), input.display());
            return Err(Failure::usage(what).hint("name another file with -o"));
        }
    }
    let kept = [&b"vault.cryptomator"[..], b"masterkey.cryptomator"];
    if output.file_name().is_some_and(|name| kept.contains(&name.as_bytes())) || is_volume(output) {
        let what = format!("{}: it is part of a vault or a volume, and would be replaced", output.display());
        return Err(Failure::usage(what).hint("name another file with -o"));
    }
    Ok(())
}

fn is_volume(file: &Path) -> bool {
    matches!(Source::recognise(file.as_os_str()), Ok(Source::Volume(_)))
}

/// The folder that a file lies in.
fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// Writes the manifest whole or not at all.
fn write(manifest: &Manifest, format: Format, output: &Path) -> Result<Written> {
    let failed = |e: FsError| match FormatError::of(&e) {
        // It was not read from anywhere: it is what the version cannot hold.
        Some(why) => {
            let failure = Failure::new(Code::NotSupported, format!("{}: not written: {why}", output.display()));
            if format == Format::V2023 { failure.hint("--format v2025 may hold it") } else { failure }
        }
        None => Failure::fs(output.display(), &e),
    };
    if output.as_os_str() == STANDARD_STREAM {
        let mut text = Vec::new();
        let written = manifest.encode(format, &mut text).map_err(failed)?;
        let mut out = Output::new();
        out.bytes(&text)?;
        out.finish()?;
        return Ok(written);
    }
    let io_failed = |e: io::Error| Failure::io(output.display(), &e);
    // A pipe or a device is written to, and never replaced.
    if fs::metadata(output).is_ok_and(|meta| !meta.is_file()) {
        let mut text = Vec::new();
        let written = manifest.encode(format, &mut text).map_err(failed)?;
        let mut stream = File::options().write(true).open(output).map_err(io_failed)?;
        return stream.write_all(&text).map(|()| written).map_err(io_failed);
    }
    // Where a link leads, the link stays.
    let target = match fs::symlink_metadata(output) {
        Ok(_) => output.canonicalize().map_err(io_failed)?,
        Err(_) => output.to_owned(),
    };
    let dir = folder_of(&target);
    let perm = Permissions::from_mode(0o666 & !process::umask());
    let mut file = tempfile::Builder::new().prefix(".adit-").permissions(perm).tempfile_in(dir).map_err(io_failed)?;
    let written = {
        let mut out = BufWriter::new(file.as_file_mut());
        let written = manifest.encode(format, &mut out).map_err(failed)?;
        out.flush().map_err(io_failed)?;
        written
    };
    file.as_file().sync_all().map_err(io_failed)?;
    file.persist(&target).map_err(|e| io_failed(e.error))?;
    host::open_folder(dir).and_then(host::sync_entries).map_err(|e| io_failed(e.into()))?;
    Ok(written)
}

/// What a manifest has, as JSON.
fn describe(manifest: &Manifest, format: Format, written: &Written, output: &Path) -> Value {
    let (mut files, mut directories, mut symlinks) = (0u64, 0u64, 0u64);
    for (_, body) in manifest.entries() {
        match body {
            Body::Directory => directories += 1,
            Body::Symlink(_) => symlinks += 1,
            Body::File(_) | Body::Deleted(_) => files += 1,
        }
    }
    let lost = if format == Format::V2023 { manifest.losses() } else { Losses::default() };
    let mut object = json!({
        "format": match format {
            Format::V2023 => "v2023",
            Format::V2025(_) => "v2025",
        },
        "files": files,
        "directories": directories - lost.directories,
        "symlinks": symlinks - lost.symlinks,
        "deletions": manifest.deletions().count() as u64 - lost.deletions,
        "lost": {
            "directories": lost.directories,
            "symlinks": lost.symlinks,
            "runnable": lost.runnable,
            "deletions": lost.deletions,
        },
        "size": written.total_size_bytes,
        "hash": written.hash.to_string(),
    });
    add_name(&mut object, "path", output.as_os_str().as_bytes());
    object
}

/// Says what was written, to people on standard error, for standard output may be the manifest.
fn tell(told: &Value, output: &Path, json: bool, global: &GlobalArgs) -> Result<()> {
    let is_stream = output.as_os_str() == STANDARD_STREAM;
    if json {
        let mut out = Output::new();
        out.json(told)?;
        return out.finish();
    }
    if global.quiet {
        return Ok(());
    }
    let count = |key: &str, one: &str, many: &str| {
        let count = told[key].as_u64().unwrap_or(0);
        (count > 0).then(|| format!("{count} {}", if count == 1 { one } else { many }))
    };
    let parts = [
        count("files", "file", "files").or(Some("no files".into())),
        count("directories", "folder", "folders"),
        count("symlinks", "link", "links"),
        count("deletions", "deletion", "deletions"),
        Some(show_size(told["size"].as_u64().unwrap_or(0))),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let place = if is_stream { "standard output".to_owned() } else { output.display().to_string() };
    eprintln!("adit: {place}: {}; hash {}", parts.join(", "), told["hash"].as_str().unwrap_or_default());
    let folders = if told["followed"].is_null() { "folders" } else { "empty folders" };
    let kinds =
        [("directories", folders), ("symlinks", "links"), ("runnable", "exec bits"), ("deletions", "deletions")];
    let lost = kinds.into_iter().filter_map(|(key, words)| {
        let count = told["lost"][key].as_u64().filter(|count| *count > 0)?;
        let words = if count == 1 { words.trim_end_matches('s') } else { words };
        Some(format!("{count} {words}"))
    });
    let lost: Vec<String> = lost.collect();
    let lost = (!lost.is_empty()).then(|| format!("not kept: {}", lost.join(", ")));
    let followed = told["followed"].as_u64().filter(|count| *count > 0);
    let said = [lost, followed.map(|count| format!("links that were followed: {count}"))];
    let said: Vec<String> = said.into_iter().flatten().collect();
    if !said.is_empty() {
        let (why, way_out) = match told["format"].as_str() {
            Some("v2023") => ("v2023 has files only", "--format v2025 keeps all of it"),
            // A diff has what its parent could have.
            _ => ("the parent is v2023, which has files only", "the diff of a parent in v2025 keeps all of it"),
        };
        eprintln!("adit: {place}: {why}; {}; {way_out}", said.join("; "));
    }
    Ok(())
}
