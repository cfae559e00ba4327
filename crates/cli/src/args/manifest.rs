//! What was typed of manifests, as clap sees it. The text here is the help and the manual.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::low::SourceArgs;

/// A version of the format.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormatArg {
    /// 2023-03-03, which the official tools read: files only
    V2023,
    /// The beta of 2025: also folders, symbolic links, exec bits and deletions
    V2025,
}

/// `manifest …`
#[derive(Subcommand, Debug)]
pub enum ManifestCommand {
    /// Make a manifest of a folder, or of any other source
    #[command(after_long_help = "\
Every file is read and hashed, unless it was before and is as it was then: inode number, length, mtime and ctime, and left alone for \
some seconds when it was read. These hashes are kept in the cache directory, for folders of this machine. A file that changes while it \
is read is read again; if it goes on changing, or cannot be read, nothing is written.

v2023 has files only: symbolic links are followed where they stay inside, folders that are empty and exec bits are lost. v2025 keeps \
all of these. Neither has sockets, FIFOs, devices and links that lead outside: a line tells each that is left out.

Patterns are those of a shell, of paths below the root: `*` stays within a name, `**` does not. One that fits a folder takes all that is \
in it.

With --parent M the manifest is a diff, v2025: what changed since M, deletions included.

Examples:
  adit manifest snapshot ~/work -o work.manifest
  adit manifest snapshot ~/work -o work.manifest --exclude '**/*.tmp'
  adit manifest snapshot ~/work -o changes.manifest --parent work.manifest
  adit manifest snapshot box.adit --path /.snapshots/monday -o m --format v2025")]
    Snapshot(ManifestSnapshotArgs),
    /// List what differs between two manifests, or between a manifest and a source
    #[command(after_long_help = "\
A and B are manifests, folders or other sources; what is no manifest is read as `manifest snapshot` does. Each line says how a path of B \
differs from A: added, changed (its content), attributes (only its time or exec bit) or removed.

Examples:
  adit manifest diff before.manifest after.manifest
  adit manifest diff work.manifest ~/work
  adit manifest diff before.manifest after.manifest -o changes.manifest")]
    Diff(ManifestDiffArgs),
    /// Make one manifest of several, each over those before it
    #[command(after_long_help = "\
The last one wins, path by path; a diff's deletions are applied before what it adds. That a diff belongs to what it is put on is checked \
where that is a single manifest: its bytes must be those that the diff names.

Example:
  adit manifest merge base.manifest changes.manifest -o result.manifest")]
    Merge(ManifestMergeArgs),
}

/// Which files of a source, and how they are read.
#[derive(Args, Debug, Clone)]
pub struct ScanArgs {
    /// Only what fits one of these patterns
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Not what fits one of these patterns
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Read every file, whatever was hashed before
    #[arg(long)]
    pub rehash: bool,
    /// Where hashes are kept, instead of $XDG_CACHE_HOME/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache_dir: Option<PathBuf>,
}

/// `manifest snapshot`
#[derive(Args, Debug)]
pub struct ManifestSnapshotArgs {
    /// The source.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The manifest to write, replaced if it is there; `-` for standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// The folder in SOURCE that is the root
    #[arg(long, value_name = "PATH", default_value = "/", value_hint = ValueHint::Other)]
    pub path: OsString,
    /// The version of the format [default: v2023; v2025 with --parent]
    #[arg(long, value_enum)]
    pub format: Option<FormatArg>,
    /// Make a diff against this manifest
    #[arg(long, value_name = "MANIFEST", value_hint = ValueHint::FilePath)]
    pub parent: Option<PathBuf>,
    /// Which files.
    #[command(flatten)]
    pub scan: ScanArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `manifest diff`
#[derive(Args, Debug)]
pub struct ManifestDiffArgs {
    /// What was
    #[arg(value_name = "A", value_hint = ValueHint::AnyPath)]
    pub before: OsString,
    /// What is
    #[arg(value_name = "B", value_hint = ValueHint::AnyPath)]
    pub after: OsString,
    /// Write the diff as a manifest (v2025) as well; `-` for standard output, instead of the list
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Which files of a source.
    #[command(flatten)]
    pub scan: ScanArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `manifest merge`
#[derive(Args, Debug)]
pub struct ManifestMergeArgs {
    /// The manifests, the oldest first
    #[arg(value_name = "MANIFEST", required = true, value_hint = ValueHint::FilePath)]
    pub manifests: Vec<OsString>,
    /// The manifest to write, replaced if it is there; `-` for standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// The version of the format [default: that of the first manifest, in the dialect that adit writes]
    #[arg(long, value_enum)]
    pub format: Option<FormatArg>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
