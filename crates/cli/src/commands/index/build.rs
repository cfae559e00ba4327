//! `index build`.

use std::path::Path;

use adit_index::publish::InPlace;
use adit_index::scan::{Origin, SourceKind};

use super::from::{From, Wanted};
use super::make::{Making, expect_index_or_nothing, now_ns};
use crate::args::index::IndexBuildArgs;
use crate::args::low::GlobalArgs;
use crate::commands::{bytes, manifest};
use crate::failure::{Failure, Result};

/// `adit index build`
pub fn build(args: &IndexBuildArgs, global: &GlobalArgs) -> Result<()> {
    manifest::check_output(&args.output, &[&args.source.source])?;
    expect_index_or_nothing(&args.output)?;
    let output = absolute(&args.output)?;
    let in_place = InPlace::at(&output).map_err(|e| Failure::io(output.display(), &e))?;
    let begun_ns = now_ns();
    let wanted = Wanted { source: &args.source, path: bytes(&args.path), snapshot: args.snapshot.as_deref() };
    let from = From::open(&wanted, global)?;
    let origin = Origin {
        kind: from.kind,
        // Those of a manifest are known.
        hashed: args.hash || from.kind == SourceKind::Manifest,
        one_file_system: args.one_file_system,
        no_tables: args.no_tables,
        begun_ns,
        unreadable: 0,
        unread_contents: 0,
        state: from.state,
        source: bytes(from.place.as_os_str()).to_vec(),
        path: bytes(&args.path).to_vec(),
        snapshot: args.snapshot.clone().unwrap_or_default().into_bytes(),
    };
    Making { output: &output, from: &from, origin, earlier: None, in_place, args: &args.make }.make(global)
}

/// `path` without anything that is relative; where a link leads, the link stays.
pub fn absolute(path: &Path) -> Result<std::path::PathBuf> {
    let failed = |e: std::io::Error| Failure::io(path.display(), &e);
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => path.canonicalize().map_err(failed),
        _ => std::path::absolute(path).map_err(failed),
    }
}
