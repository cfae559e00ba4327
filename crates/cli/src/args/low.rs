//! What was typed, as clap sees it. The text here is the help and the manual.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

use super::index::IndexCommand;
use super::manifest::{CasArgs, ManifestCommand};
use super::units;
use super::volume::{CloneCommand, DataArgs, DurabilityArg, SnapshotCommand, VolumeCommand};
use super::worker::WorkerCommand;

/// Mount encrypted vaults and volumes, and work in them without a mount
///
/// adit opens Cryptomator vaults (format 8) as ordinary folders. Other Cryptomator clients may use the same vault at the
/// same time. What is written is encrypted at once; nothing readable is kept on disk. A volume is a whole filesystem in one
/// file, with snapshots, clones and rollback.
#[derive(Parser, Debug)]
#[command(name = "adit", version, after_long_help = AFTER_HELP, max_term_width = 110)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct LowArgs {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

// In these texts a paragraph is one line, which the help wraps to the terminal; lists and examples stay within 80 columns.

const AFTER_HELP: &str = "\
Examples:
  adit vault init ~/Vault            create a vault; asks for a password twice
  adit mount ~/Vault ~/Private       work in it as in any folder
  adit umount ~/Private              write everything back and close it
  adit put ~/Vault photos/ /         copy a folder in, without a mount
  adit ls ~/Vault /photos --long     list, without a mount
  adit vault check ~/Vault           look for damage

  adit volume init box.adit          make a volume: a filesystem in one file
  adit mount box.adit ~/box          work in it
  adit snapshot create ~/box monday  keep it as it is now
  adit snapshot diff ~/box monday    see what has changed since

Passwords:
A password is asked for on the terminal, where you may try three times, or read with --password-stdin, \
--password-file FILE, --password-command COMMAND or --password-env NAME. It is never an argument. One trailing newline \
is removed. Where there is nothing to read (no such file or variable, a command that fails) the exit code is 2. An empty \
password is tried like any other (exit code 3 if it is wrong); a new password must not be empty (2).

Environment:
  ADIT_DEVICE      who answers questions to an index: cpu, gpu, gpu:NAME
                   or auto (as --device)
  ADIT_LOG         what to log, such as debug or adit_vault=trace (as --log)
  NO_COLOR         no colours
  XDG_STATE_HOME   where journals and the log are kept, in adit/ there;
                   ~/.local/state otherwise";

/// Options of every command.
#[derive(Args, Debug, Clone)]
pub struct GlobalArgs {
    /// Say more about what happens; twice for debugging
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to log: error, warn, info, debug, trace, or a filter such as adit_vault=debug
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<String>,
    /// No progress and no remarks on standard error
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Where journals and the log are kept, instead of $XDG_STATE_HOME/adit
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub state_dir: Option<PathBuf>,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Mount a vault, a volume or a manifest on a folder
    #[command(after_long_help = MOUNT_HELP)]
    Mount(MountArgs),
    /// Write everything back and unmount
    #[command(alias = "unmount", after_long_help = MANY_HELP)]
    Umount(UmountArgs),
    /// List what is mounted
    #[command(after_long_help = MOUNTS_HELP)]
    Mounts(JsonArgs),
    /// Show counters of a mount: inodes, memory, cache hits
    Stats(StatsArgs),
    /// Show the state of a mount, or of single files of a manifest's mount
    #[command(after_long_help = STATUS_HELP)]
    Status(StatusArgs),
    /// Show what was changed on an overlay: what its upper volume holds
    #[command(after_long_help = DIFF_HELP)]
    Diff(DiffArgs),
    /// List a folder in a source, without a mount
    Ls(LsArgs),
    /// Show a folder in a source as a tree, without a mount
    Tree(TreeArgs),
    /// Print files of a source, without a mount
    Cat(CatArgs),
    /// Copy out of a source, without a mount
    #[command(after_long_help = GET_HELP)]
    Get(GetArgs),
    /// Copy into a source, without a mount
    #[command(after_long_help = PUT_HELP)]
    Put(PutArgs),
    /// Create folders in a source, without a mount
    #[command(after_long_help = MANY_HELP)]
    Mkdir(MkdirArgs),
    /// Rename or move in a source, without a mount
    Mv(MvArgs),
    /// Remove from a source, without a mount
    #[command(after_long_help = MANY_HELP)]
    Rm(RmArgs),
    /// Create, describe and check vaults
    #[command(subcommand)]
    Vault(VaultCommand),
    /// Create, describe and check volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Keep a volume as it is, compare it with that, and set it back
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Make writable branches of a volume that begin as a snapshot
    #[command(subcommand)]
    Clone(CloneCommand),
    /// Make, compare and merge manifests of job attachments, and bring their content to a store
    #[command(subcommand)]
    Manifest(ManifestCommand),
    /// Make indexes of sources, and ask them about millions of paths at once
    #[command(subcommand)]
    Index(IndexCommand),
    /// Serve the workers of a render farm
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// Look for what could keep mounts from working here, and for devices that answer questions to an index
    Doctor(JsonArgs),
    /// Print a completion script for a shell
    #[command(after_long_help = "\
Example:
  adit completions bash > ~/.local/share/bash-completion/completions/adit")]
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the manual, or write all its pages
    #[command(after_long_help = "\
Examples:
  adit man | man -l -
  adit man --dir /usr/local/share/man/man1")]
    Man {
        /// The page of this verb, such as `mount` or `vault check`
        verb: Vec<String>,
        /// Write a page for each verb into this folder
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "verb")]
        dir: Option<PathBuf>,
    },
}

const SOURCE_HELP: &str = "A vault's folder, a volume's file, a manifest's file or any other folder; `vault:`, `volume:`, `manifest:` or `dir:` in front says which it is";

const MOUNT_HELP: &str = "\
The command returns when the mount is usable; otherwise its exit code and message say why it is not. The files are \
visible to you alone unless --allow-other is given. The mount ends with `adit umount`, SIGTERM or SIGINT, and writes \
everything back first.

A folder that is not empty is not mounted on, because its content would be hidden; -o nonempty says that this is meant.

A vault on a read-only filesystem, or one that you may not write to, is mounted read-only, and a line says why.

--read-only refuses changes through the mount. What an earlier mount that was killed has left in its journal is written \
back into the vault all the same, because the files are not whole without it; `adit ls`, `cat` and `get` do so too.

A volume is mounted by one process at a time, which keeps others from its file. Its snapshots and branches can be mounted \
beside it: each further mount joins that process, which ends with the last of its mounts. One that a mount \
with --read-only has opened is open to reading only, until that mount ends.

A folder of this machine is mounted with --read-only, or as an overlay: --upper VOLUME puts a volume on top of it that \
takes what is changed, and the folder stays as it is. So it is with a snapshot (--snapshot NAME). --writable does the same \
with a volume in the cache directory (`adit volume uppers` lists those), which is found again wherever the folder is mounted; one of \
--upper-dir belongs to its mountpoint as well. `adit diff` shows what was changed. A folder that was \
moved is told with --rebind. Nothing else may change what lies below meanwhile: \
what others change there can end in an error (ESTALE).

A manifest is mounted to be read: its files have their content from the store that --cas names, which is fetched when it is read, compared \
with its hash, and kept in the cache directory for all mounts.

Mount options:
  (after -o, with commas between them; a backslash before a comma keeps it)
  ro, rw                  read-only or not
  allow_other             let other users in, as the file modes allow
  nosuid, nodev, noexec   as in mount(8); the first two are the default
  attr_timeout=SECS       how long attributes may be stale when another client
                          changes the vault
  entry_timeout=SECS      the same for names
  negative_timeout=SECS   the same for names that do not exist
  prefetch=COUNT|off      most entries of a listing to look up before they are
                          asked for, where a lookup takes long
  exclusive               nobody else changes the vault: the kernel may collect
                          writes
  nonempty                cover a folder that holds something
  threads=N               threads that serve the mount
  index                   make the index of `adit index find MOUNTPOINT` at
                          once, and not at the first question
  passthrough=auto|off    whether the kernel may read files of a manifest by
                          itself that are complete in the cache
  memory=SIZE, idle=DURATION, foreground, state_dir=DIR
  snapshot=NAME, branch=NAME, durability=sync|fsync, data=DIR
                          of a volume
  upper=VOLUME, rebind, writable, upper_dir=DIR, cache_dir=DIR
                          an overlay on a snapshot, folder or manifest
  cas=URL, cache_size=SIZE, cache_block=SIZE, strict,
  verify_first=SIZE,
  endpoint_url=URL, region=NAME, profile=NAME, path_style,
  no_sign_request, request_payer, connect_timeout=DURATION,
  request_timeout=DURATION, store_timeout=DURATION,
  webdav_user=NAME,
  webdav_password_file=FILE, requests=COUNT, part_size=SIZE,
  parts=COUNT
                          of a manifest
  log=LEVEL, log_file=FILE, verbose, quiet
  password_file=FILE, password_command=COMMAND, password_env=NAME,
  password_stdin
  _netdev, nofail, noauto, user and x-* are for others, and ignored;
  auto_unmount, allow_root, max_read and the like of libfuse change
  nothing, and a line says so; X-mount.idmap is refused

In /etc/fstab:
  # This needs a link /sbin/mount.fuse.adit to adit.
  /srv/vault /mnt/private fuse.adit noauto,user,password_file=/root/.pw 0 0

Examples:
  adit mount ~/Vault ~/Private
  adit mount --read-only --password-command 'pass show vault' ~/Vault ~/Private
  adit mount --foreground -v ~/Vault ~/Private
  adit mount ~/src ~/work --upper work.adit
  adit mount box.adit ~/try --snapshot monday --writable
  adit mount job.manifest ~/job --cas /srv/store/DeadlineCloud";

const MOUNTS_HELP: &str = "\
A mount whose process was killed is shown as dead: its mountpoint is in the way until `adit umount` clears it. One that \
was detached (`adit umount --lazy`) is shown as long as files on it are open; `adit status` tells which processes have \
them. So is a volume whose file was moved or removed, and one that an error has made read-only.";

const DIFF_HELP: &str = "\
Each line says how a path differs from the folder or snapshot below: added, changed (its content), attributes (only mode, \
owner, times or extended attributes), removed, or renamed with its old path. What lies in a folder that was renamed moved \
with it and is not listed. A file with several names is listed under each.

Where the folder below does not have any more what was changed, a line says `unknown`, and why; the rest is listed, and the exit \
code is 1.

Examples:
  adit mount ~/src ~/work --upper work.adit
  adit diff ~/work";

const GET_HELP: &str = "\
If DEST is a folder, the copy goes into it; PATH `/` copies what the vault holds into it. Modes, modification times and \
symbolic links are kept. Existing files are replaced when their copy is complete; folders are merged. Nothing is written \
through a symbolic link, nor outside of DEST. With DEST `-` a file goes to standard output. A FIFO, socket or device is left \
out, with a line that names it, and the exit code is 1. Owners are not kept: a set-id \
bit stays only where the copy has the same owner, otherwise a line tells that it went.

Examples:
  adit get ~/Vault /photos/2024 .
  adit get ~/Vault / /mnt/restore
  adit get ~/Vault /backup.tar - | tar -t";

const PUT_HELP: &str = "\
If PATH is a folder, the copies go into it; otherwise it is the name of the one copy. Modes, modification times and \
symbolic links are kept. Existing files are replaced when their copy is complete; folders are merged. With HOST `-` \
standard input becomes the file PATH.

Owners are not kept: a set-id bit stays only where the copy has the same owner, otherwise a line tells that it went.

A FIFO, socket or device that is named is refused (exit code 10); below a folder it is left out, with a remark.

A put that is killed leaves what it had not finished under a name such as .adit-1f-2e-0.part; your next put into SOURCE removes it.

Examples:
  adit put ~/Vault letter.odt /letters
  adit put ~/Vault ~/photos ~/films /
  tar -c ~/mail | adit put --password-file ~/.pw ~/Vault - /mail.tar";

const STATUS_HELP: &str = "\
With a PATH, each file of a manifest's mount has a state: remote (its content is in the store), cached (it is all on this machine), modified (it \
was changed here), uploading (a commit is at it), uploaded (it was committed, and not changed since), error (its object could not be read last, because it is missing, refused or wrong, or a commit could not go on). The \
extended attribute user.adit.state tells the same.

Examples:
  adit status ~/job
  adit status ~/job /                every file
  adit status ~/job scenes/shot.ma --json";

const MANY_HELP: &str = "\
One that fails does not keep the others from being done; each failure is told, and the exit code is that of the worst, \
whatever their order.";

/// Where the password comes from.
#[derive(Args, Debug, Clone, Default)]
#[group(multiple = false)]
pub struct PasswordArgs {
    /// Read the password from standard input
    #[arg(long, help_heading = "Password")]
    pub password_stdin: bool,
    /// Read the password from a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Password")]
    pub password_file: Option<PathBuf>,
    /// Run a shell command that prints the password
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, help_heading = "Password")]
    pub password_command: Option<OsString>,
    /// Take the password from an environment variable
    #[arg(long, value_name = "NAME", help_heading = "Password")]
    pub password_env: Option<OsString>,
}

/// Where a new password comes from.
#[derive(Args, Debug, Clone, Default)]
#[group(multiple = false)]
pub struct NewPasswordArgs {
    /// Read the new password from standard input (its second line, if the current one comes from there too)
    #[arg(long, help_heading = "New password")]
    pub new_password_stdin: bool,
    /// Read the new password from a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "New password")]
    pub new_password_file: Option<PathBuf>,
    /// Run a shell command that prints the new password
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, help_heading = "New password")]
    pub new_password_command: Option<OsString>,
    /// Take the new password from an environment variable
    #[arg(long, value_name = "NAME", help_heading = "New password")]
    pub new_password_env: Option<OsString>,
}

/// A source and how it is opened.
#[derive(Args, Debug, Clone)]
pub struct SourceArgs {
    #[arg(value_name = "SOURCE", value_hint = ValueHint::AnyPath, help = SOURCE_HELP, value_parser = units::path())]
    /// The vault.
    pub source: OsString,
    /// Its password.
    #[command(flatten)]
    pub password: PasswordArgs,
    /// Its data folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// Its content.
    #[command(flatten)]
    pub cas: CasArgs,
}

/// `mount`
#[derive(Args, Debug)]
pub struct MountArgs {
    #[arg(value_name = "SOURCE", value_hint = ValueHint::AnyPath, help = SOURCE_HELP, value_parser = units::path())]
    /// The vault.
    pub source: OsString,
    /// The folder to mount on
    #[arg(value_name = "MOUNTPOINT", value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Options as of mount(8); see below
    #[arg(short = 'o', value_name = "OPT,…", action = clap::ArgAction::Append)]
    pub options: Vec<OsString>,
    /// Stay in the foreground and log to standard error
    #[arg(short, long)]
    pub foreground: bool,
    /// Refuse changes
    #[arg(short, long, visible_alias = "ro")]
    pub read_only: bool,
    /// Let other users in, as the file modes allow
    #[arg(long)]
    pub allow_other: bool,
    /// Unmount when unused for so long, such as 10m; 0 is never
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    pub idle: Option<Duration>,
    /// Mount this snapshot of a volume, to read
    #[arg(long, value_name = "NAME", conflicts_with = "branch")]
    pub snapshot: Option<String>,
    /// Mount this branch of a volume instead of its main one
    #[arg(long, value_name = "NAME")]
    pub branch: Option<String>,
    /// Its data folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// Let this volume take what is changed of a snapshot or a folder, which stay as they are; made if it does not exist
    #[arg(long, value_name = "VOLUME", value_hint = ValueHint::FilePath, conflicts_with = "writable")]
    pub upper: Option<PathBuf>,
    /// The same with a volume in the cache directory, which is found again at the next mount
    #[arg(long)]
    pub writable: bool,
    /// The same with a volume in this folder that belongs to the mountpoint alone, whatever else is mounted
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with_all = ["upper", "writable"])]
    pub upper_dir: Option<PathBuf>,
    /// Bind the volume of --upper to this folder, which was moved since; what it has noted of it is compared first
    #[arg(long)]
    pub rebind: bool,
    /// Its content.
    #[command(flatten)]
    pub cas: CasArgs,
    /// When changes of a volume are safe from a power cut, instead of what it says itself
    #[arg(long, value_enum)]
    pub durability: Option<DurabilityArg>,
    /// Most memory to use, such as 128M [default: 256M, or a quarter of what the control group may have]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub memory: Option<u64>,
    /// Write the log to this file, which everybody may read; in the foreground as well as to standard error
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log_file: Option<PathBuf>,
    /// Check everything, and do not mount (mount -f)
    #[arg(long, hide = true)]
    pub fake: bool,
    /// Do not mind unknown options (mount -s)
    #[arg(long, hide = true)]
    pub sloppy: bool,
    /// Called by mount(8) as its helper
    #[arg(long, hide = true)]
    pub helper: bool,
    /// Its password.
    #[command(flatten)]
    pub password: PasswordArgs,
}

/// `umount`
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Where it is mounted
    #[arg(value_name = "MOUNTPOINT", required = true, value_hint = ValueHint::DirPath)]
    pub mountpoints: Vec<PathBuf>,
    /// Take it out of the tree now; open files go on until they are closed
    #[arg(short, long)]
    pub lazy: bool,
    /// End it at once without writing back what is still in memory; needs --yes or asks
    #[arg(long)]
    pub no_flush: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// A reading command without arguments.
#[derive(Args, Debug)]
pub struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `stats`
#[derive(Args, Debug)]
pub struct StatsArgs {
    /// Where it is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print again every second (one JSON object a line with --json) until interrupted
    #[arg(short, long)]
    pub watch: bool,
}

/// `status`
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Where it is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Of a manifest: files there, and folders with all files in them, from the root of the mount; what cannot be told of one is said, and the
    /// others come all the same (exit code 1)
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `diff`
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// Where the overlay is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `ls`
#[derive(Args, Debug)]
pub struct LsArgs {
    /// The vault.
    #[command(flatten)]
    pub source: SourceArgs,
    /// A folder or file in it [default: its root]
    #[arg(value_parser = units::path())]
    pub path: Option<OsString>,
    /// With mode, size and time
    #[arg(short, long)]
    pub long: bool,
    /// With everything below
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tree`
#[derive(Args, Debug)]
pub struct TreeArgs {
    /// The vault.
    #[command(flatten)]
    pub source: SourceArgs,
    /// A folder in it [default: its root]
    #[arg(value_parser = units::path())]
    pub path: Option<OsString>,
    /// Go so many levels down
    #[arg(short = 'L', long, value_name = "N")]
    pub depth: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `cat`
#[derive(Args, Debug)]
pub struct CatArgs {
    /// The vault.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Files in it
    #[arg(required = true, value_parser = units::path())]
    pub paths: Vec<OsString>,
}

/// `get`
#[derive(Args, Debug)]
pub struct GetArgs {
    /// The vault.
    #[command(flatten)]
    pub source: SourceArgs,
    /// A file, folder or link in it
    #[arg(value_parser = units::path())]
    pub path: OsString,
    /// Where to, on this machine; `-` for standard output
    #[arg(value_hint = ValueHint::AnyPath)]
    pub dest: PathBuf,
    /// Fail for files that exist instead of replacing them
    #[arg(short, long)]
    pub no_replace: bool,
}

/// `put`
#[derive(Args, Debug)]
pub struct PutArgs {
    /// The vault.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Files and folders of this machine; `-` for standard input
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub host: Vec<PathBuf>,
    /// Where to, in the vault
    #[arg(value_parser = units::path())]
    pub path: OsString,
    /// Fail for files that exist instead of replacing them
    #[arg(short, long)]
    pub no_replace: bool,
}

/// `mkdir`
#[derive(Args, Debug)]
pub struct MkdirArgs {
    /// The vault.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Folders to create
    #[arg(required = true, value_parser = units::path())]
    pub paths: Vec<OsString>,
    /// Create the folders above as well, and do not mind those that exist
    #[arg(short, long)]
    pub parents: bool,
}

/// `mv`
#[derive(Args, Debug)]
pub struct MvArgs {
    /// The vault.
    #[command(flatten)]
    pub source: SourceArgs,
    /// What to move
    #[arg(value_parser = units::path())]
    pub from: OsString,
    /// Its new path, or the folder to move it into
    #[arg(value_parser = units::path())]
    pub to: OsString,
    /// Fail if there is something already
    #[arg(short, long, conflicts_with = "yes")]
    pub no_replace: bool,
    /// Replace what is there without asking
    #[arg(short, long)]
    pub yes: bool,
}

/// `rm`
#[derive(Args, Debug)]
pub struct RmArgs {
    /// The vault.
    #[command(flatten)]
    pub source: SourceArgs,
    /// What to remove
    #[arg(required = true, value_parser = units::path())]
    pub paths: Vec<OsString>,
    /// Folders too, with everything in them
    #[arg(short, long)]
    pub recursive: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// `vault …`
#[derive(Subcommand, Debug)]
pub enum VaultCommand {
    /// Create a vault in a new or empty folder
    #[command(after_long_help = "\
The folder may then be synchronised or copied like any other. Without the password nobody can read it, and nobody can \
restore a lost password.

Examples:
  adit vault init ~/Vault
  adit vault init ~/Vault --password-file ~/.vault-password")]
    Init(InitArgs),
    /// Describe a vault; needs no password
    #[command(after_long_help = "\
The exit code says whether this program could open it, given the password: 10 for another format, unknown ciphers or a \
Hub vault, 4 for a key file that is missing or damaged.")]
    Info(InfoArgs),
    /// Change the password
    #[command(after_long_help = "\
The old key file is kept beside the new one as masterkey.cryptomator.<8 hex digits>.bkup. It still opens with the old \
password: remove it when it must not.

Examples:
  adit vault passwd ~/Vault
  adit vault passwd ~/Vault --new-password-command 'pass show vault'
  printf 'old\\nnew\\n' |
    adit vault passwd ~/Vault --password-stdin --new-password-stdin")]
    Passwd(PasswdArgs),
    /// Look for damage, and repair what can be
    #[command(after_long_help = "\
Exit code 5 says that problems were found. --repair moves what it cannot join back to a folder of its own and restores \
names where the vault still tells them; it never deletes. It refuses a vault that any process of this machine has open \
(exit code 7).

A folder whose content is gone is made again, empty. A note in /lost+found in the vault then says so, and every check \
tells of it (exit code 5) until you remove the note.")]
    Check(VaultCheckArgs),
    /// List second versions that sync programs made, and keep one of two
    #[command(after_long_help = "\
A sync program that finds two versions of a file keeps the second one under a name of its own, and cannot know that the name is \
encrypted. A mount shows such a version beside the first, where you can read, rename and remove it. What you do not see in a mount is \
the second version of a file with a long name, of a link, or of a folder that two devices made; it is listed here as well.

--keep names one of the two paths that are listed. What lies there gets the entry's name, and all other versions go to /lost+found \
in the vault; nothing is deleted. It refuses a vault that any process of this machine has open (exit code 7).

Examples:
  adit vault conflicts ~/Vault
  adit vault conflicts ~/Vault --keep '/notes (conflicted copy).txt'")]
    Conflicts(ConflictsArgs),
}

/// How contents are encrypted.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cipher {
    /// AES-256-GCM, what Cryptomator itself uses today
    SivGcm,
    /// AES-256-CTR with HMAC-SHA256, as in older vaults
    SivCtrmac,
}

/// `vault init`
#[derive(Args, Debug)]
pub struct InitArgs {
    /// The folder; created if it does not exist
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// How contents are encrypted
    #[arg(long, value_enum, default_value_t = Cipher::SivGcm)]
    pub cipher: Cipher,
    /// Encrypted names longer than this are shortened
    #[arg(long, value_name = "CHARACTERS", default_value_t = 220, value_parser = clap::value_parser!(u32).range(36..=220))]
    pub shortening_threshold: u32,
    /// Its password.
    #[command(flatten)]
    pub password: PasswordArgs,
}

/// `vault info`
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// The vault's folder
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `vault passwd`
#[derive(Args, Debug)]
pub struct PasswdArgs {
    /// The vault's folder
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// The current password.
    #[command(flatten)]
    pub password: PasswordArgs,
    /// The new one.
    #[command(flatten)]
    pub new_password: NewPasswordArgs,
}

/// `vault check`
#[derive(Args, Debug)]
pub struct VaultCheckArgs {
    /// The vault's folder
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// How to check it.
    #[command(flatten)]
    pub how: CheckArgs,
    /// Its password.
    #[command(flatten)]
    pub password: PasswordArgs,
}

/// `vault conflicts`
#[derive(Args, Debug)]
pub struct ConflictsArgs {
    /// The vault's folder
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Keep the version at this path in the vault; may be given more than once
    #[arg(long, value_name = "PATH")]
    pub keep: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Its password.
    #[command(flatten)]
    pub password: PasswordArgs,
}

/// What every check takes.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Mend what can be mended; nothing is deleted, but things may be moved
    #[arg(long)]
    pub repair: bool,
    /// Do not read what files hold
    #[arg(long)]
    pub no_contents: bool,
    /// Do not ask before repairing
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
