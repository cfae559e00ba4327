//! What was typed of indexes, as clap sees it. The text here is the help and the manual.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::index_ask::{
    IndexDiffArgs, IndexDuArgs, IndexDupesArgs, IndexFindArgs, IndexMeasureArgs, IndexResolveArgs, IndexTopArgs,
};
use super::low::{PasswordArgs, SourceArgs};
use super::manifest::CasArgs;
use super::units;
use super::volume::DataArgs;

/// `index …`
#[derive(Subcommand, Debug)]
pub enum IndexCommand {
    /// Make the index of a source
    #[command(after_long_help = "\
An index is one file that answers questions about millions of paths without the source. It holds path, kind, size, time and \
mode of everything, where links lead, and the hash of each file's content where that is known: of a manifest always, else with --hash, which reads every \
file.

The index of a vault is encrypted by a key of the vault; questions to it need --vault and the vault's password.

Something that cannot be read ends it, and no index is written. With --keep-going the rest is indexed, the exit code is that of what failed, and \
a question about what is below says that it is not known.

Examples:
  adit index build ~/src -o src.idx
  adit index build ~/Vault -o vault.idx --hash
  adit index build box.adit --snapshot monday -o monday.idx
  adit index build job.manifest -o job.idx")]
    Build(IndexBuildArgs),
    /// Bring an index up to date with its source
    #[command(after_long_help = "\
Files of the same size and times, whose inode was not changed since, keep their hash; the others are read if the index was made with --hash. A manifest or \
snapshot that is the same is not read at all. The new index takes the place of the old one when it is complete.

SOURCE is known from the index, and is only named if it was moved. `adit index update SOURCE -o FILE` means the same.

Examples:
  adit index update src.idx
  adit index update src.idx /mnt/moved/src")]
    Update(IndexUpdateArgs),
    /// Describe an index
    Info(IndexReadArgs),
    /// Compare all of an index with its checksums, and look whether what it says fits together
    #[command(after_long_help = "\
The exit code is 5 if something is wrong, and 4 if it cannot even be opened. An index that is damaged is built again from its source.")]
    Check(IndexReadArgs),
    /// Find paths
    #[command(after_long_help = "\
PATTERN is text that the name has in it, with --glob the whole name, with --regex a regular expression that matches some of it. One that has a slash, or --full-path, is \
compared with the whole path below the root, without a slash in front. Names are bytes: one that is not UTF-8 is found like any other.

What is found comes at once, by level of the tree, unless it is sorted. `X` is an index that `adit index build` made.

Examples:
  adit index find src.idx report -i
  adit index find src.idx --glob 'src/**/*.rs' --exclude target
  adit index find src.idx -t file --min-size 1G --sort size --reverse
  adit index find src.idx --newer 2d -0 | xargs -0 ls -d")]
    Find(IndexFindArgs),
    /// Tell which paths exist
    #[command(after_long_help = "\
The path of each that is there is printed, without `.`, `..` and what else may be left out; of each other, standard error says how far it leads and why no further. \
Links are not followed. The exit code is 1 if one is missing.

With --json there is an object for each in order: `asked` and `found`; then what `ls` tells, or `why` (not-found, not-directory, link; not-known: the folder \
could not be read when the index was made), `reached`, how far it leads, and `missing`, the rest.

Examples:
  adit index resolve src.idx src/main.rs ../outside
  find . -print0 | adit index resolve src.idx -0 >there 2>missing")]
    Resolve(IndexResolveArgs),
    /// Tell which files have the same content, by their hashes
    #[command(after_long_help = "\
Groups of paths, with an empty line (with -0 one more zero byte) after each; what wastes most comes first. A file without a hash is in none, and that is told: \
`adit index update FILE --hash` reads them.

Example:
  adit index dupes photos.idx --min-size 1M")]
    Dupes(IndexDupesArgs),
    /// Tell what is different between two indexes
    #[command(after_long_help = "\
Lines as those of `adit snapshot diff`: added, removed, changed, renamed (a file of the same content under another path, where both have its hash), unknown \
(what one index has in a folder that could not be read for the other), and with --perm attributes. With -0: the word, a space, the old path of what was renamed and a zero byte, the path and a zero byte.

Example:
  adit index diff monday.idx tuesday.idx")]
    Diff(IndexDiffArgs),
    /// Add up what is in a folder
    Du(IndexDuArgs),
    /// Tell the largest files and folders
    Top(IndexTopArgs),
    /// Measure how fast the processor and graphics processors answer questions to an index
    #[command(after_long_help = "\
What was measured is kept in the cache directory, by device and driver, and `adit doctor` shows it. By it find, resolve, dupes and diff choose who answers, unless \
--device says so, and they learn from what they do. What is known already is not measured again.

It need not be called: a question to an index of more than 262144 paths has it done in the background when it was answered, once, and drivers are asked \
again after 30 days. Not so that of a vault's index, which takes the password, nor with ADIT_DEVICE=cpu.

Example:
  adit index measure src.idx")]
    Measure(IndexMeasureArgs),
}

/// How an index is made.
#[derive(Args, Debug, Clone)]
pub struct IndexMakeArgs {
    /// Index what can be read, and tell what cannot
    #[arg(long)]
    pub keep_going: bool,
    /// Memory to sort in, such as 64M; what does not fit is sorted on disk [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub memory: Option<u64>,
    /// Threads that read [default: as many as there are processors, 8 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `index build`
#[derive(Args, Debug)]
pub struct IndexBuildArgs {
    /// The source.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The index to write, replaced if it is there
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Read every file, for the hash of its content
    #[arg(long)]
    pub hash: bool,
    /// Index this snapshot of a volume
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
    /// The folder in SOURCE that is the root
    #[arg(long, value_name = "PATH", default_value = "/", value_hint = ValueHint::Other)]
    pub path: OsString,
    /// Leave what other filesystems are mounted on in a folder empty
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Without the tables that make questions fast, for a smaller file
    #[arg(long)]
    pub no_tables: bool,
    /// How it is made.
    #[command(flatten)]
    pub make: IndexMakeArgs,
}

/// `index update`
#[derive(Args, Debug)]
pub struct IndexUpdateArgs {
    /// The index; with -o, its source
    #[arg(value_name = "FILE", value_hint = ValueHint::AnyPath, value_parser = units::path())]
    pub file: OsString,
    /// Where its source is now
    #[arg(value_name = "SOURCE", value_hint = ValueHint::AnyPath, value_parser = units::path(), conflicts_with = "output")]
    pub source: Option<OsString>,
    /// The index, where the source is named first
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Read files for their hashes from now on, if it was made without
    #[arg(long)]
    pub hash: bool,
    /// The vault of an encrypted index
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub vault: Option<PathBuf>,
    /// How it is made.
    #[command(flatten)]
    pub make: IndexMakeArgs,
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

/// How an index that is encrypted is opened.
#[derive(Args, Debug, Clone)]
pub struct IndexSecretArgs {
    /// The vault that the index is of
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub vault: Option<PathBuf>,
    /// Its password.
    #[command(flatten)]
    pub password: PasswordArgs,
}

/// `index info`, `index check`
#[derive(Args, Debug)]
pub struct IndexReadArgs {
    /// The index
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub index: PathBuf,
    /// Its vault.
    #[command(flatten)]
    pub secret: IndexSecretArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
