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
An index is one file, which its owner alone may read unless he changes that, that answers questions about millions of paths without the source. It holds path, kind, size, time and \
mode of everything, where links lead, and the hash of each file's content where that is known: of a manifest always, else with --hash, which reads every \
file.

The index of a vault is encrypted by a key of the vault; questions to it need --vault and the vault's password.

Something that cannot be read ends it, and no index is written. With --keep-going the rest is indexed, the exit code is that of what failed, and \
questions to the index say that it is not whole, with exit code 1. Where only the content of files could not be read, that is so of `dupes` and `diff` alone.

Examples:
  adit index build ~/src -o src.idx
  adit index build ~/Vault -o vault.idx --hash
  adit index build box.adit --snapshot monday -o monday.idx
  adit index build job.manifest -o job.idx")]
    Build(IndexBuildArgs),
    /// Bring an index up to date with its source
    #[command(after_long_help = "\
Files of the same size and times, whose inode is the same and was not changed since, keep their hash; the others are read if the index was made with --hash. A manifest or \
snapshot that is the same is not read at all. The new index takes the place of the old one when it is complete.

SOURCE is known from the index, and is only named if it was moved; of another one than the index knows, no hash is kept. `adit index update SOURCE -o FILE` means the same.

Examples:
  adit index update src.idx
  adit index update src.idx /mnt/moved/src")]
    Update(IndexUpdateArgs),
    /// Describe an index
    #[command(after_long_help = "\
Of a mountpoint, what its process has of an index so far; none is made for that.

With --json there is an object. Of a file: path, kind and source of what it is of, root, snapshot, made (when), entries (the root, which `find` does not tell, is one), kinds (how many of each, with size_bytes, hashes and \
incomplete_directories), unreadable (how much could not be read), unread_contents (of how many files the content could not be read), hashed, one_file_system, encrypted, file_bytes, and what its parts take: columns and tables (size_bytes, per_entry), \
names_bytes, hashes_bytes, extra_bytes. Of a mount: ready, entries, changed, walks, folds, generation, mapped, in_memory, memory_bytes, base_bytes, unread, first_unread, mountpoint.")]
    Info(IndexReadArgs),
    /// Compare all of an index with its checksums, and look whether what it says fits together
    #[command(after_long_help = "\
The exit code is 5 if something is wrong, 4 if it cannot even be opened, and 10 if it is no index at all. An index that is damaged is built again from its source.

With --json there is an object: problems, a list of objects with kind, path and detail, entries and bytes.")]
    Check(IndexReadArgs),
    /// Find paths
    #[command(after_long_help = "\
PATTERN is text that the name has in it, with --glob the whole name, with --regex a regular expression that matches some of it. One that has a slash, or --full-path, is \
compared with the whole path below the root: src/main.rs, not /src/main.rs. All the same a pattern may begin with a slash. In text, /src finds what a folder or file at the \
root begins with as well as lib/src; in a regular expression likewise, and ^/src is ^src; a glob is compared with the whole path anyway. Names are bytes: one that is not \
UTF-8 is found like any other.

With --patterns-from there are many, one in each line (with -0, each ended by a zero byte), all read as the options say; empty ones are none. What any of them matches is found, once. \
They are one automaton, so twenty thousand texts take about as long as one. Regular expressions of which some have a slash and some do not are asked apart, or with --full-path.

What is found comes at once, by level of the tree, unless it is sorted. The exit code is 0 also if nothing is found, and 1 if the index does not know all of its source, because \
something could not be read when it was made: what is missing may be there.

With --json there is a list of objects as those of `ls --json`: path, kind (file, directory, symlink, fifo, socket, block-device, char-device), size (that of a folder is 0; `adit \
index du` adds up what is in it), mode (permission bits), mtime_ns; target of a link, where the index is a file; hash, where it is known; and path_raw or target_raw, a list of bytes, \
where that is not UTF-8. With --count an object with count.

Examples:
  adit index find src.idx report -i
  adit index find ~/mnt/photos --ext jpg --newer 7d
  adit index find src.idx --glob 'src/**/*.rs' --exclude target
  adit index find src.idx -t file --min-size 1G --sort size --reverse
  adit index find src.idx --patterns-from names.txt --count
  adit index find src.idx --newer 2d -0 | xargs -0 ls -d")]
    Find(IndexFindArgs),
    /// Tell which paths exist
    #[command(after_long_help = "\
The path of each that is there is printed, without `.`, `..` and what else may be left out; of each other, standard error says how far it leads and why no further. \
Links are not followed. An empty line is no path, and missing; the root is /. The exit code is 1 if one is missing.

With --json there is an object for each in order: asked and found; then what `index find --json` tells, or why (not-found, not-directory, link; empty: it is no path; not-known: the \
folder could not be read when the index was made), reached, how far it leads, and missing, the rest.

Examples:
  adit index resolve src.idx src/main.rs ../outside
  find . -print0 | adit index resolve src.idx -0 >there 2>missing")]
    Resolve(IndexResolveArgs),
    /// Tell which files have the same content, by their hashes
    #[command(after_long_help = "\
Groups of paths, with an empty line (with -0 one more zero byte) after each; what wastes most comes first. A file without a hash is in none, and that is told: \
`adit index update FILE --hash` reads them.

With --json there is an object: groups, a list of objects with size (of each file), hash, wasted_bytes (of all but one) and files, a list of objects with path; then, of all files that were \
looked at, hashed, unhashed and unhashed_bytes, and, of all groups, count, duplicates and wasted_bytes.

Example:
  adit index dupes photos.idx --min-size 1M")]
    Dupes(IndexDupesArgs),
    /// Tell what is different between two indexes
    #[command(after_long_help = "\
Lines as those of `adit snapshot diff`: added, removed, changed, renamed (a file of the same content under another path, where both have its hash), unknown \
(what one index has in a folder that could not be read for the other), and with --perm attributes. With -0: the word, a space, the old path of what was renamed and a zero byte, the path and a zero byte.

With --json there is a list of objects: change, kind, path, and from, the old path of what was renamed, else null.

Example:
  adit index diff monday.idx tuesday.idx")]
    Diff(IndexDiffArgs),
    /// Add up what is in a folder
    #[command(after_long_help = "\
A line for each thing in the folder, and the last for all of it: sizes as the entries say them, not what they take on a disk. A folder has no size of its own.

Of several folders, one that is not there is told and passed over, and the exit code is 1.

With --json there is an object: path, kind, files, directories and others, how many there are, size, the bytes of all of them, and children, a list of such objects without children \
(none with --summarize). Of several folders, and with --paths-from, there is a list of such objects.

Examples:
  adit index du src.idx /target
  adit index find s.idx -td target -0 | adit index du s.idx -s0 --paths-from -")]
    Du(IndexDuArgs),
    /// Tell the largest files and folders
    #[command(after_long_help = "\
The largest files first, then the folders with the most in them.

With --json there is an object: files, a list of objects as those of `index find --json`, and directories, a list of such as those of `index du --json` without children. Of a mount, both \
are of the second kind.

Example:
  adit index top src.idx -n 20 --below /target")]
    Top(IndexTopArgs),
    /// Measure how fast the processor and graphics processors answer questions to an index
    #[command(after_long_help = "\
What was measured is kept in the cache directory, by device and driver, and `adit doctor` shows it. By it find, resolve, dupes and diff choose who answers, unless \
--device says so, and they learn from what they do. What is known already is not measured again without --again.

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
