//! What was typed of `manifest commit`. The text here is the help and the manual.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::manifest::StoreArgs;

/// What the help says after the options.
pub const COMMIT_HELP: &str = "\
What is committed is the mount as it is when the command begins: programs may go on working there. Changed files are hashed (of a file \
of several chunks in v2025, those chunks alone that were written to), what the store does not have yet is stored, and when all of it is \
there, the manifest is written. So there is never a manifest without its data, and a commit that was interrupted goes on where it was \
when it is started again. The mount shows the same before and after it.

The manifest has the version of the one that is mounted. In v2025 it is a diff of that one, deletions included. In v2023 it has the files that \
were added or changed, as the outputs of a task do: that version cannot tell what was deleted, and a line says how much that is. Each commit \
tells everything since the mounted manifest, not since the last commit; with no change nothing is written. --full writes the whole \
tree instead.

It goes to Manifests/PREFIX/NAME in the store, with the path of the tree as the official tools note it. Another manifest that is there \
stays, and the commit fails, unless --replace is said. Without -o, --manifest-prefix, --manifest-name and --task-output each commit has a \
folder of its own, TIME_upper-ID by the time and the id of the volume with the changes: beside the mounted manifest, if that is in the \
store, else (and where it is the output of a task) in Manifests/commits/HASH, by the hash of the mounted one.

Examples:
  adit manifest commit ~/job --dry-run
  adit manifest commit ~/job
  adit manifest commit ~/job -o changes.manifest
  adit manifest commit ~/job --manifest-prefix farm-1/queue-1/edits
  adit manifest commit ~/job --asset-root /projects/shot \\
    --task-output farm-1/queue-1/job-1/step-1/task-1 \\
    --session-action sessionaction-1-0";

/// `manifest commit`
#[derive(Args, Debug)]
pub struct ManifestCommitArgs {
    /// Where the manifest is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Say what would go, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Write the manifest to this file (as well, if a place in the store is named), replaced if it is there and a manifest; `-` for standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Write it to Manifests/PREFIX/NAME in the store
    #[arg(long, value_name = "PREFIX", conflicts_with = "task_output")]
    pub manifest_prefix: Option<String>,
    /// The NAME there [default: the hash of the location and the root, and _output]
    #[arg(long, value_name = "NAME", conflicts_with = "task_output")]
    pub manifest_name: Option<String>,
    /// Replace another manifest that is at that place in the store, but never the one that is mounted
    #[arg(long)]
    pub replace: bool,
    /// Write it where the output of a task is looked for: FARM/QUEUE/JOB/STEP/TASK, or without TASK that of a step. Of v2023 only: none of v2025
    /// is read there
    #[arg(long, value_name = "FOLDER", requires = "session_action")]
    pub task_output: Option<String>,
    /// The session action that made it, for the folder of that name
    #[arg(long, value_name = "ID", requires = "task_output")]
    pub session_action: Option<String>,
    /// The path of the tree, for whoever downloads it [default: the mountpoint]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub asset_root: Option<OsString>,
    /// The file system location that the tree belongs to
    #[arg(long, value_name = "NAME")]
    pub file_system_location_name: Option<String>,
    /// Write a manifest of the whole tree, and not only of what changed
    #[arg(long)]
    pub full: bool,
    /// Read every changed file, whatever was hashed before
    #[arg(long)]
    pub rehash: bool,
    /// Another store than that of the mount, which then gets all that the manifest names
    #[arg(long, value_name = "URL", value_hint = ValueHint::AnyPath)]
    pub cas: Option<OsString>,
    /// How it is reached, where the mount does not say it.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
