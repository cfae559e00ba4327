//! What was typed of questions to an index, as clap sees it. The text here is the help and the manual.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::index::IndexSecretArgs;
use super::units;

/// What is asked, and how it is opened.
#[derive(Args, Debug, Clone)]
pub struct IndexedArgs {
    /// The index: a file; or where its source is mounted, or a folder in that, which is where the question then begins
    #[arg(value_name = "X", value_hint = ValueHint::AnyPath)]
    pub index: PathBuf,
    /// Its vault.
    #[command(flatten)]
    pub secret: IndexSecretArgs,
}

/// What is printed.
#[derive(Args, Debug, Clone, Copy)]
pub struct PrintArgs {
    /// End each path with a zero byte, and print it as it is
    #[arg(short = '0', long, conflicts_with = "json")]
    pub print0: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Who answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// The processor.
    Cpu,
    /// A graphics processor: one whose name has this in it, else any that is no program.
    Gpu(Option<String>),
    /// Whoever is faster.
    Auto,
}

impl Device {
    /// As it is typed: `cpu`, `gpu`, `gpu:NAME` or `auto`.
    pub fn parse(text: &str) -> Result<Device, String> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(Device::Cpu),
            None if text == "gpu" => Ok(Device::Gpu(None)),
            None if text == "auto" => Ok(Device::Auto),
            Some(("gpu", name)) if !name.is_empty() => Ok(Device::Gpu(Some(name.to_owned()))),
            _ => Err(format!("'{text}' is none of cpu, gpu, gpu:NAME and auto")),
        }
    }
}

/// Who answers.
#[derive(Args, Debug, Clone)]
pub struct DeviceArgs {
    /// Who answers: cpu; gpu, or gpu:NAME for a device of that name; auto, whoever is predicted to be faster [default: $ADIT_DEVICE, else auto]
    #[arg(long, value_name = "WHO", value_parser = Device::parse)]
    pub device: Option<Device>,
    /// Say on standard error who answered, why, and how long it took
    #[arg(long)]
    pub explain: bool,
}

/// A kind of entry.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum KindArg {
    /// A regular file
    #[value(alias = "f")]
    File,
    /// A folder
    #[value(alias = "d", alias = "dir")]
    Directory,
    /// A symbolic link
    #[value(alias = "l", alias = "link")]
    Symlink,
    /// A pipe, a socket or a device
    Other,
}

/// By what hits are sorted.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SortArg {
    /// A folder, then what is in it
    Path,
    /// The last name
    Name,
    /// The smallest first; a folder counts as 0
    Size,
    /// The oldest first
    Time,
}

/// `index find`
#[derive(Args, Debug)]
pub struct IndexFindArgs {
    /// The index.
    #[command(flatten)]
    pub of: IndexedArgs,
    /// What the name has in it, or the path if there is a slash in it [default: everything]
    #[arg(value_name = "PATTERN")]
    pub pattern: Option<OsString>,
    /// Patterns in a file, or on standard input with -, one in each line (with -0, each ended by a zero byte): what any of them matches
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "pattern")]
    pub patterns_from: Option<PathBuf>,
    /// PATTERN is the whole name, with *, ?, [..], {a,b} and ** for any folders
    #[arg(short, long, conflicts_with_all = ["regex", "fixed"])]
    pub glob: bool,
    /// PATTERN is a regular expression
    #[arg(short, long, conflicts_with = "fixed")]
    pub regex: bool,
    /// PATTERN is text; so it is without the other two
    #[arg(short = 'F', long)]
    pub fixed: bool,
    /// In PATTERN and --exclude, large letters are small ones
    #[arg(short, long)]
    pub ignore_case: bool,
    /// Compare PATTERN with the whole path, also without a slash in it
    #[arg(short = 'p', long)]
    pub full_path: bool,
    /// Not what this glob matches, nor what is below; may be repeated
    #[arg(short = 'E', long, value_name = "GLOB")]
    pub exclude: Vec<OsString>,
    /// Only this kind; may be repeated
    #[arg(short = 't', long = "type", value_enum, value_name = "KIND")]
    pub kinds: Vec<KindArg>,
    /// Only names that end with a dot and this, in large or small letters; may be repeated
    #[arg(short, long = "ext", value_name = "EXT")]
    pub extensions: Vec<OsString>,
    /// Only what has at least this size; a folder has none
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub min_size: Option<u64>,
    /// Only what has at most this size; a folder has none
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub max_size: Option<u64>,
    /// Only what changed then or since: 2024-05-06, 2024-05-06T07:08:09Z or with +02:00, or so long ago, such as 2d
    #[arg(long, value_name = "TIME", value_parser = units::moment)]
    pub newer: Option<i64>,
    /// Only what changed before
    #[arg(long, value_name = "TIME", value_parser = units::moment)]
    pub older: Option<i64>,
    /// Only what is below this folder
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = units::path())]
    pub below: OsString,
    /// Only so many levels down
    #[arg(short = 'd', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_depth: Option<u32>,
    /// So many at most
    #[arg(short = 'n', long, value_name = "N")]
    pub limit: Option<u64>,
    /// Sort them; what is found is printed at once otherwise
    #[arg(long, value_enum, value_name = "BY")]
    pub sort: Option<SortArg>,
    /// The last first; needs --sort
    #[arg(long, requires = "sort")]
    pub reverse: bool,
    /// Print how many there are, and nothing else
    #[arg(short, long)]
    pub count: bool,
    /// Who answers.
    #[command(flatten)]
    pub by: DeviceArgs,
    /// What is printed.
    #[command(flatten)]
    pub print: PrintArgs,
}

impl IndexFindArgs {
    /// The first and the last time that are asked for, in nanoseconds since 1970; `None` if any is good. What is newer and what is older part all.
    pub fn mtime_ns(&self) -> Option<(i64, i64)> {
        let any = self.newer.is_none() && self.older.is_none();
        let last = self.older.map_or(i64::MAX, |older| older.saturating_sub(1));
        (!any).then(|| (self.newer.unwrap_or(i64::MIN), last))
    }
}

/// `index resolve`
#[derive(Args, Debug)]
pub struct IndexResolveArgs {
    /// The index.
    #[command(flatten)]
    pub of: IndexedArgs,
    /// Paths from its root; read from standard input if there are none, one a line, with -0 each ended by a zero byte
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
    /// Where paths begin that do not begin with a slash
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub start: OsString,
    /// Who answers.
    #[command(flatten)]
    pub by: DeviceArgs,
    /// What is printed.
    #[command(flatten)]
    pub print: PrintArgs,
}

/// `index dupes`
#[derive(Args, Debug)]
pub struct IndexDupesArgs {
    /// The index.
    #[command(flatten)]
    pub of: IndexedArgs,
    /// Only files of at least this size
    #[arg(long, value_name = "SIZE", value_parser = units::size, default_value = "1")]
    pub min_size: u64,
    /// Only files below this folder
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = units::path())]
    pub below: OsString,
    /// So many groups at most
    #[arg(short = 'n', long, value_name = "N")]
    pub limit: Option<u64>,
    /// Who answers.
    #[command(flatten)]
    pub by: DeviceArgs,
    /// What is printed.
    #[command(flatten)]
    pub print: PrintArgs,
}

/// What decides whether a file was changed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ContentArg {
    /// Its hash where both have one, else size and time
    #[default]
    Best,
    /// Size and time
    Time,
    /// Size alone
    Size,
}

/// `index diff`
#[derive(Args, Debug)]
pub struct IndexDiffArgs {
    /// What was: an index
    #[arg(value_name = "A", value_hint = ValueHint::FilePath)]
    pub before: PathBuf,
    /// What is: an index
    #[arg(value_name = "B", value_hint = ValueHint::FilePath)]
    pub after: PathBuf,
    /// What decides whether a file was changed
    #[arg(long, value_enum, value_name = "BY", default_value_t)]
    pub content: ContentArg,
    /// Tell other permissions as well
    #[arg(long)]
    pub perm: bool,
    /// Do not look for files that were renamed, by their hash
    #[arg(long)]
    pub no_renames: bool,
    /// Their vault.
    #[command(flatten)]
    pub secret: IndexSecretArgs,
    /// Who answers.
    #[command(flatten)]
    pub by: DeviceArgs,
    /// What is printed.
    #[command(flatten)]
    pub print: PrintArgs,
}

/// `index du`
#[derive(Args, Debug)]
pub struct IndexDuArgs {
    /// The index.
    #[command(flatten)]
    pub of: IndexedArgs,
    /// The folders
    #[arg(value_name = "PATH", default_value = "/", value_parser = units::path())]
    pub paths: Vec<OsString>,
    /// Folders named in a file, or on standard input with -, one in each line (with -0, each ended by a zero byte)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "paths")]
    pub paths_from: Option<PathBuf>,
    /// Tell of each folder the sum alone, not what is in it
    #[arg(short, long)]
    pub summarize: bool,
    /// What is printed.
    #[command(flatten)]
    pub print: PrintArgs,
}

/// `index top`
#[derive(Args, Debug)]
pub struct IndexTopArgs {
    /// The index.
    #[command(flatten)]
    pub of: IndexedArgs,
    /// So many files, and so many folders
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub count: usize,
    /// Only below this folder
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = units::path())]
    pub below: OsString,
    /// What is printed.
    #[command(flatten)]
    pub print: PrintArgs,
}

/// `index measure`
#[derive(Args, Debug)]
pub struct IndexMeasureArgs {
    /// The index to measure with: a file of 16384 paths at least, better of some hundred thousand
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub index: PathBuf,
    /// Its vault.
    #[command(flatten)]
    pub secret: IndexSecretArgs,
    /// Which devices: gpu, or gpu:NAME for one of that name [default: all but programs that play one]
    #[arg(long, value_name = "WHO", value_parser = Device::parse)]
    pub device: Option<Device>,
    /// Measure what is known already as well
    #[arg(long)]
    pub again: bool,
    /// Begun by a command that has ended: lets others go first, and holds nothing of it.
    #[arg(long, hide = true)]
    pub background: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
