//! What was typed of volumes, their snapshots and branches, as clap sees it. The text here is the help and the manual.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::low::CheckArgs;
use super::units;

/// When changes of a volume are safe from a power cut.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum DurabilityArg {
    /// Each before it is acknowledged
    Sync,
    /// At fsync, else within a second
    Fsync,
}

/// Where the data folder of a volume is, for who has moved it.
#[derive(Args, Debug, Clone, Default)]
pub struct DataArgs {
    /// Where the volume's data folder is now, if it was moved; a command that changes the volume has it remember that
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
}

/// `volume …`
#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    /// Create a volume in a new file
    #[command(after_long_help = "\
The file grows with what it holds, up to its capacity; free space in it is given back to the host by `adit volume gc`. While \
nobody has it open, a copy of it is a backup.

Examples:
  adit volume init box.adit
  adit volume init box.adit --capacity 20G --durability sync
  adit volume init box.adit --data box.data

With --data DIR, what files hold lies in DIR, and the rest in FILE: both together are the volume. Where DIR lies beside FILE, or \
below its folder, both can be moved together. If DIR alone was moved, --data tells every command where it is now.")]
    Init(VolumeInitArgs),
    /// Describe a volume
    Info(VolumeInfoArgs),
    /// Look for damage, and repair what can be
    #[command(after_long_help = "\
Everything is read and compared: the pages of its metadata, the tree with all snapshots and branches, who owns which block, and \
what files hold with its checksums. Exit code 5 says that problems were found. A volume that a process has open is refused \
(exit code 7).

--repair mends what contradicts itself, in all branches: counts, names, entries that lead nowhere, directories that hold each \
other, who owns which block. Files and directories that have no name any more get one in /lost+found. It tells each thing that it \
did, and deletes nothing that is stored. It leaves snapshots as they are, and cannot bring back what is damaged: both are told.

The upper volume of an overlay is checked as any other, by its file, while the overlay is not mounted: `adit volume uppers list` \
tells those that `mount --writable` has made. What lies below is looked at by its own check: `adit volume check` of a snapshot's \
volume, beside the overlay too, and nothing of a folder.

Examples:
  adit volume check box.adit
  adit volume check box.adit --repair
  adit volume check ~/.cache/adit/overlays/VOLUME")]
    Check(VolumeCheckArgs),
    /// Give the space of what was deleted back to the host
    Gc(VolumeGcArgs),
    /// Change how large a volume may become
    #[command(after_long_help = "\
It grows at once, and takes no more of the host's disk by that. It shrinks as far as what it holds allows, snapshots included: \
otherwise nothing changes (exit code 8). Mounts of it go on, and `df` shows the new size.

Examples:
  adit volume resize box.adit 2T
  adit volume resize ~/box 500G")]
    Resize(VolumeResizeArgs),
    /// List and delete the volumes that `adit mount --writable` made in the cache directory
    #[command(subcommand)]
    Uppers(UppersCommand),
}

/// `volume uppers …`
#[derive(Subcommand, Debug)]
pub enum UppersCommand {
    /// List them: which folder or snapshot each belongs to, what it takes, and when it was used last
    #[command(after_long_help = "\
`adit mount --writable` finds the volume of a folder or snapshot by itself, as long as that is where it was. One of a folder \
that was moved is named once with --upper, as it is listed here, and with --rebind, and found by itself from then on.

Examples:
  adit volume uppers list
  adit mount ~/moved ~/work --upper ~/.cache/adit/overlays/VOLUME --rebind
  adit volume uppers delete VOLUME")]
    List(UppersListArgs),
    /// Delete some of them, with all that was changed
    Delete(UppersDeleteArgs),
}

/// `volume uppers list`
#[derive(Args, Debug)]
pub struct UppersListArgs {
    /// The cache directory, instead of $XDG_CACHE_HOME/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `volume uppers delete`
#[derive(Args, Debug)]
pub struct UppersDeleteArgs {
    /// The volumes, by path or by file name, as they are listed
    #[arg(value_name = "VOLUME", required = true, value_hint = ValueHint::FilePath)]
    pub volumes: Vec<PathBuf>,
    /// The cache directory, instead of $XDG_CACHE_HOME/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache_dir: Option<PathBuf>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// `volume init`
#[derive(Args, Debug)]
pub struct VolumeInitArgs {
    /// The file, which must not exist yet
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// How large it may become, such as 20G [default: 1T]
    #[arg(long, value_name = "SIZE", value_parser = units::capacity)]
    pub capacity: Option<u64>,
    /// When changes are safe from a power cut, unless a mount says otherwise
    #[arg(long, value_enum, default_value_t = DurabilityArg::Fsync)]
    pub durability: DurabilityArg,
    /// Keep what files hold in this folder instead; it is made if it is not there
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
}

/// `volume info`
#[derive(Args, Debug)]
pub struct VolumeInfoArgs {
    /// The volume's file
    #[arg(value_hint = ValueHint::FilePath, value_parser = units::path())]
    pub file: OsString,
    /// Its data folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `volume check`
#[derive(Args, Debug)]
pub struct VolumeCheckArgs {
    /// The volume's file
    #[arg(value_hint = ValueHint::FilePath, value_parser = units::path())]
    pub file: OsString,
    /// How to check it.
    #[command(flatten)]
    pub how: CheckArgs,
    /// Where its data folder is now, if that was moved; with --repair, the volume remembers it
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
}

/// `volume gc`
#[derive(Args, Debug)]
pub struct VolumeGcArgs {
    /// The volume's file, or where it is mounted
    #[arg(value_hint = ValueHint::AnyPath, value_parser = units::path())]
    pub volume: OsString,
    /// Its data folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `volume resize`
#[derive(Args, Debug)]
pub struct VolumeResizeArgs {
    /// The volume's file, or where it is mounted
    #[arg(value_hint = ValueHint::AnyPath, value_parser = units::path())]
    pub volume: OsString,
    /// Its data folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// How large it may become, such as 20G
    #[arg(value_parser = units::capacity)]
    pub size: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const X_HELP: &str = "The volume's file, or where it is mounted";

/// A volume, and which branch of it is meant.
#[derive(Args, Debug, Clone)]
pub struct BranchArgs {
    #[arg(value_name = "VOLUME", value_hint = ValueHint::AnyPath, help = X_HELP, value_parser = units::path())]
    /// The volume.
    pub volume: OsString,
    /// Its data folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// Which branch [default: the one that is mounted there, else the main one]
    #[arg(long, value_name = "NAME")]
    pub branch: Option<String>,
}

/// `snapshot …`
#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Keep the volume as it is now
    #[command(after_long_help = "\
All changes are in it that returned before. Of a volume that is mounted, what the kernel has not handed over yet is written \
first, and a line tells how long that took; the snapshot itself is one step, whatever the volume holds. A snapshot costs \
nothing but what is changed after it.

Examples:
  adit snapshot create box.adit monday
  adit snapshot create ~/box before-upgrade
  adit mount --snapshot monday box.adit ~/monday")]
    Create(SnapshotCreateArgs),
    /// Delete snapshots; what only they hold is given back
    #[command(after_long_help = "\
One that an overlay lies on (`adit mount --snapshot NAME` with --upper or --writable) is not deleted as long as the volume with \
the overlay's changes is where it was mounted last (exit code 7): without the snapshot nobody could use them.")]
    Delete(SnapshotDeleteArgs),
    /// List the snapshots
    List(VolumeListArgs),
    /// Set the volume, or a folder or file in it, back to a snapshot
    #[command(after_long_help = "\
It is one step, also after a power cut: either nothing or all of it has happened. What was not there then is gone. A branch \
that is mounted stays mounted, and whoever works there goes on; while a file is open that would change, it is refused (exit \
code 7). What an overlay holds is set back as a whole only, without a path.

What changes has the time of change of the restore, so that incremental backups see it, and the time of modification that it had in the \
snapshot. With --touch that is now as well, and `make` and `ninja` build what depends on it.

With a path, nothing changes under any other name. A file there that has a further name elsewhere, and was changed since, is one of \
its own then: a line names each.

Single files can also be copied back: each snapshot is a folder in .snapshots of a mounted branch.

Examples:
  adit snapshot restore box.adit monday
  adit snapshot restore box.adit monday /etc/passwd")]
    Restore(SnapshotRestoreArgs),
    /// List what differs between a snapshot and now, or another snapshot
    #[command(after_long_help = "\
Paths are told as added, changed, removed or renamed. What is in a folder that was renamed moved with it, and is not told.

Examples:
  adit snapshot diff box.adit monday
  adit snapshot diff box.adit monday tuesday --json")]
    Diff(SnapshotDiffArgs),
}

/// `snapshot create`
#[derive(Args, Debug)]
pub struct SnapshotCreateArgs {
    /// Of what.
    #[command(flatten)]
    pub of: BranchArgs,
    /// Its name
    #[arg(value_parser = units::name)]
    pub name: String,
    /// Print what it cost as JSON
    #[arg(long)]
    pub json: bool,
}

/// `snapshot delete`
#[derive(Args, Debug)]
pub struct SnapshotDeleteArgs {
    #[arg(value_name = "VOLUME", value_hint = ValueHint::AnyPath, help = X_HELP, value_parser = units::path())]
    /// The volume.
    pub volume: OsString,
    /// Its data folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// Their names
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// `snapshot list`, `clone list`
#[derive(Args, Debug)]
pub struct VolumeListArgs {
    #[arg(value_name = "VOLUME", value_hint = ValueHint::AnyPath, help = X_HELP, value_parser = units::path())]
    /// The volume.
    pub volume: OsString,
    /// Its data folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `snapshot restore`
#[derive(Args, Debug)]
pub struct SnapshotRestoreArgs {
    /// What.
    #[command(flatten)]
    pub of: BranchArgs,
    /// The snapshot
    pub name: String,
    /// A folder or file in it [default: everything]
    pub path: Option<OsString>,
    /// Let what changes be modified now, as after `git checkout`
    #[arg(long)]
    pub touch: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Print what came of it as JSON
    #[arg(long)]
    pub json: bool,
}

/// `snapshot diff`
#[derive(Args, Debug)]
pub struct SnapshotDiffArgs {
    /// Of what.
    #[command(flatten)]
    pub of: BranchArgs,
    /// The older one
    pub name: String,
    /// The newer one: a snapshot or a branch [default: the branch]
    pub name2: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `clone …`
#[derive(Subcommand, Debug)]
pub enum CloneCommand {
    /// Make a branch that begins as a snapshot
    #[command(after_long_help = "\
It shares all that it has with the snapshot, and takes space only for what is changed. Snapshots and branches have names of \
their own, all different.

Examples:
  adit clone create box.adit monday experiment
  adit mount --branch experiment box.adit ~/experiment")]
    Create(CloneCreateArgs),
    /// List the branches
    List(VolumeListArgs),
    /// Delete a branch with everything in it
    Delete(CloneDeleteArgs),
}

/// `clone create`
#[derive(Args, Debug)]
pub struct CloneCreateArgs {
    #[arg(value_name = "VOLUME", value_hint = ValueHint::AnyPath, help = X_HELP, value_parser = units::path())]
    /// The volume.
    pub volume: OsString,
    /// Its data folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// The snapshot that it begins as
    pub snapshot: String,
    /// Its name
    #[arg(value_parser = units::name)]
    pub branch: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `clone delete`
#[derive(Args, Debug)]
pub struct CloneDeleteArgs {
    #[arg(value_name = "VOLUME", value_hint = ValueHint::AnyPath, help = X_HELP, value_parser = units::path())]
    /// The volume.
    pub volume: OsString,
    /// Its data folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// Its name
    pub branch: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}
