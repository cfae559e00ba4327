//! What was typed of manifests, as clap sees it. The text here is the help and the manual.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use serde::{Deserialize, Serialize};

use super::low::{PasswordArgs, SourceArgs};
use super::manifest_commit::{COMMIT_HELP, ManifestCommitArgs};
use super::units;

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

Patterns are those of a shell, of whole paths below the root: `*` stays within a name, `**` does not. So '*.tmp' is of the root only, and '**/*.tmp' of \
all folders. One that fits a folder takes all that is in it.

With --parent M the manifest is a diff, v2025: what changed since M, deletions included.

With --cas the content of its files is brought into that store first, as `manifest upload` does; the manifest is written when all of it is there. \
(Where SOURCE is a manifest itself, --cas says where its content is read.)

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
The last one wins, path by path; a diff's deletions are applied before what it adds. A diff that names neither the manifest before it nor what \
those before it make together is refused: it names them by the hash of their canonical form, whatever their bytes are.

Example:
  adit manifest merge base.manifest changes.manifest -o result.manifest")]
    Merge(ManifestMergeArgs),
    /// Bring the content of a manifest's files into a store
    #[command(after_long_help = "\
The files are looked for in the folder --root, by their paths in the manifest. What the store has already is not sent again, so an \
upload that was interrupted goes on when it is started again. A file that is no more what the manifest says is told and not sent; the \
exit code is 1 then.

That an object is there is told by its length. --verify has it fetched and compared with its hash, and replaces what is wrong: this mends \
what `adit manifest verify` finds, as long as the files are there. A mount that met what was wrong asks for it again after 30 seconds.

With --manifest-prefix the manifest is stored, too, when all of its content is there: by its file name in the folder Manifests/PREFIX of the store, \
with the root's path beside it, as `deadline attachment upload --upload-manifest-path` does.

--include and --exclude are those of `manifest snapshot`, of the paths in the manifest. With them not all of its content goes, and so the manifest is not \
stored.

Examples:
  adit manifest upload job.manifest --root ~/work --cas s3://bucket/Queue
  adit manifest upload m --root ~/work --cas s3://b/Queue --manifest-prefix me
  adit manifest upload job.manifest --root ~/work --cas /srv/store --verify
  adit manifest upload m --root ~/work --cas s3://b/Queue --include textures
  adit manifest snapshot ~/work -o job.manifest --cas /srv/store")]
    Upload(ManifestUploadArgs),
    /// Bring what was changed on a writable mount to the store, with a manifest of it
    #[command(after_long_help = COMMIT_HELP)]
    Commit(ManifestCommitArgs),
    /// Bring the files of a manifest from a store into a folder
    #[command(after_long_help = "\
A file is written beside its place, compared with its hash as it is written, and gets its name only when it is right: whatever is under a name of \
the manifest is whole. One whose content is wrong or missing in the store is told, and the others come. What is there already with the \
right content is not fetched again, so a download that was interrupted goes on when it is started again; that removes what the first one \
left unfinished.

Several manifests are put together as `manifest merge` does, the oldest first. Nothing of DEST is deleted, also where one of them is a diff \
that deletes something: that takes away what those before it would have brought. A manifest that lies in a store is named by its URL, and \
its content is looked for in that store then.

A MANIFEST that is a folder of outputs, with a slash at its end, means what a job's tasks left: of each task all that its last session \
action wrote, put together in the order in which the store got them. Names of their manifests are as for the official tools: step-…/…/…output…, or \
anything that ends in _output. It may be that of a job, of a step or of a task. If they have several roots, \
--asset-root says which.

Where something else is in the place of a file, --conflict copy (as the official tools) leaves it, and the file comes as `name (1).ext`; \
a copy that is there already is not made again. skip leaves it, whatever is in it; overwrite replaces files and links, and never a \
folder. What is in the place of a folder stays with each of them, and what would lie in that is told. No link in DEST is followed.

Examples:
  adit manifest download job.manifest ~/work --cas s3://bucket/Queue
  adit manifest download base.manifest changes.manifest ~/work --cas /srv/store
  adit manifest download s3://b/Queue/Manifests/farm/queue/job/ ~/outputs
  adit manifest download job.manifest ~/work --cas /srv/store --dry-run")]
    Download(ManifestDownloadArgs),
    /// Compare the objects of a store, or of the cache, with their hashes
    #[command(after_long_help = "\
With a manifest every object that it needs is fetched from the store, past the cache, and compared; what is missing or wrong is listed \
with the files that need it. The store is that of --cas, or the one in which a manifest with a URL lies. With --cas alone every object in Data/ of the store is fetched and compared with the hash that is its name, whoever \
needs it; what has another name is only told. That lists the store, and fetches all of it. Without both, what is in the cache directory is \
compared; --repair removes what is damaged there, which is fetched again when it is read. The exit code is 5 if something is wrong.

Examples:
  adit manifest verify job.manifest --cas s3://bucket/Queue
  adit manifest verify s3://bucket/Queue/Manifests/farm/queue/job.json
  adit manifest verify --cas /srv/store
  adit manifest verify --cache-dir /var/cache/adit --repair")]
    Verify(ManifestVerifyArgs),
    /// Build the index of a manifest, which its first mount does otherwise
    #[command(after_long_help = "\
Example:
  adit manifest index s3://bucket/DeadlineCloud/Manifests/farm/queue/job.json")]
    Index(ManifestIndexArgs),
}

/// What is done where something else is in the place of a file.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ConflictArg {
    /// It stays, whatever is in it, and nothing is fetched
    Skip,
    /// It is replaced; a folder never is
    Overwrite,
    /// It stays, and the file comes beside it as `name (1).ext`
    #[default]
    Copy,
}

/// `manifest download`
#[derive(Args, Debug)]
pub struct ManifestDownloadArgs {
    /// The manifests, the oldest first: files or their URLs; or folders of outputs in a store, with a slash at the end
    #[arg(value_name = "MANIFEST", required = true, value_hint = ValueHint::AnyPath, value_parser = units::path())]
    pub manifests: Vec<OsString>,
    /// The folder for the files, which is made if it is not there
    #[arg(value_name = "DEST", value_hint = ValueHint::DirPath, value_parser = units::path())]
    pub dest: OsString,
    /// What to do where something else is in the place of a file
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub conflict: ConflictArg,
    /// Only what fits one of these patterns
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Not what fits one of these patterns
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Read what is there to compare it, whatever was hashed before
    #[arg(long)]
    pub rehash: bool,
    /// Of outputs with several roots, those of this one
    #[arg(long, value_name = "PATH")]
    pub asset_root: Option<OsString>,
    /// Tell what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The store.
    #[command(flatten)]
    pub content: ContentArgs,
    /// Where hashes are kept.
    #[command(flatten)]
    pub cache: CacheDirArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `manifest verify`
#[derive(Args, Debug)]
pub struct ManifestVerifyArgs {
    /// The manifest: a file or its URL
    #[arg(value_name = "MANIFEST", value_hint = ValueHint::AnyPath, value_parser = units::path())]
    pub manifest: Option<OsString>,
    /// The store.
    #[command(flatten)]
    pub content: ContentArgs,
    /// The cache.
    #[command(flatten)]
    pub cache: CacheDirArgs,
    /// Remove what is damaged in the cache
    #[arg(long, conflicts_with = "cas")]
    pub repair: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `manifest upload`
#[derive(Args, Debug)]
pub struct ManifestUploadArgs {
    /// The manifest: a file or its URL
    #[arg(value_name = "MANIFEST", value_hint = ValueHint::AnyPath, value_parser = units::path())]
    pub manifest: OsString,
    /// The folder, or any other source, that has the files
    #[arg(long, value_name = "SOURCE", value_hint = ValueHint::AnyPath, value_parser = units::path())]
    pub root: OsString,
    /// Its password.
    #[command(flatten)]
    pub password: PasswordArgs,
    /// Only what fits one of these patterns
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Not what fits one of these patterns
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Fetch what the store has already as well, and send again what is wrong there
    #[arg(long)]
    pub verify: bool,
    /// Store the manifest as well, when all of its content is there: as Manifests/PREFIX/ and its file name, with the root beside it
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["include", "exclude"])]
    pub manifest_prefix: Option<String>,
    /// The store.
    #[command(flatten)]
    pub content: ContentArgs,
    /// Where it is kept which parts of large objects the store has, so that the next run goes on with them, instead of $XDG_CACHE_HOME/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = STORE)]
    pub cache_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `manifest index`
#[derive(Args, Debug)]
pub struct ManifestIndexArgs {
    /// The manifest: a file or its URL
    #[arg(value_name = "MANIFEST", value_hint = ValueHint::AnyPath, value_parser = units::path())]
    pub manifest: OsString,
    /// Where the index is kept.
    #[command(flatten)]
    pub cache: CacheDirArgs,
    /// How a store is reached, of a manifest that lies in one.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Where the content of a manifest's files comes from, and where it is kept.
#[derive(Args, Debug, Clone, Default)]
pub struct CasArgs {
    /// Where the content of a manifest's files lies, the folder above Data/: s3://BUCKET/PREFIX, davs://HOST/PATH (WebDAV), or a folder of this machine
    #[arg(long, value_name = "URL", value_hint = ValueHint::AnyPath, help_heading = STORE)]
    pub cas: Option<OsString>,
    /// Where what is fetched, hashes, indexes and the volumes of --writable are kept, instead of $XDG_CACHE_HOME/adit; where another user
    /// keeps such, in uid-NUMBER below it
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = STORE)]
    pub cache_dir: Option<PathBuf>,
    /// Most space for what is fetched, such as 50G [default: what the disk has]; whatever it is, the twentieth of the disk is left free, at
    /// least 64M (or the fourth of a small disk) and at most 1G
    #[arg(long, value_name = "SIZE", value_parser = units::size, help_heading = STORE)]
    pub cache_size: Option<u64>,
    /// How much of an object is fetched at least, and has a checksum of its own in the cache; a power of two from 64K to 64M, and of
    /// more than 1M at most a 128th of --memory [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = units::cache_block, help_heading = STORE)]
    pub cache_block: Option<u32>,
    /// Hand out no byte before all of its object (a file of v2023, 256 MiB of one of v2025) was compared with its hash
    #[arg(long, help_heading = STORE)]
    pub strict: bool,
    /// Before a part of a file is changed, fetch and compare its object (see --strict) whole if it is no longer than this; of a longer one
    /// that is done when a commit needs it, or all of it was read [default: 8M]
    #[arg(long, value_name = "SIZE", value_parser = units::size, help_heading = STORE)]
    pub verify_first: Option<u64>,
    /// How the store is talked to.
    #[command(flatten)]
    pub store: StoreArgs,
}

const STORE: &str = "Content of a manifest";

/// Where content lies, for verbs that keep none of it.
#[derive(Args, Debug, Clone, Default)]
pub struct ContentArgs {
    /// Where the content of a manifest's files lies, the folder above Data/: s3://BUCKET/PREFIX, davs://HOST/PATH (WebDAV), or a folder of this
    /// machine [default: the store of a manifest that is named by its URL]
    #[arg(long, value_name = "URL", value_hint = ValueHint::AnyPath, help_heading = STORE)]
    pub cas: Option<OsString>,
    /// How the store is talked to.
    #[command(flatten)]
    pub store: StoreArgs,
}

/// The cache directory, for verbs that need a part of it.
#[derive(Args, Debug, Clone, Default)]
pub struct CacheDirArgs {
    /// Where what is fetched, hashes and indexes are kept, instead of $XDG_CACHE_HOME/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = STORE)]
    pub cache_dir: Option<PathBuf>,
}

impl ContentArgs {
    /// With a cache directory: what a mount would be told.
    pub fn with(&self, cache: &CacheDirArgs) -> CasArgs {
        let (cas, store) = (self.cas.clone(), self.store.clone());
        CasArgs { cas, store, cache_dir: cache.cache_dir.clone(), ..CasArgs::default() }
    }
}

/// How an object store is talked to, where the variables AWS_* and the profile do not say it.
#[derive(Args, Debug, Clone, Default)]
pub struct StoreArgs {
    /// The S3 server, as http://HOST:PORT [default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's, or AWS]
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, help_heading = STORE)]
    pub endpoint_url: Option<String>,
    /// Its region [default: AWS_REGION, the profile's, or us-east-1]
    #[arg(long, value_name = "NAME", help_heading = STORE)]
    pub region: Option<String>,
    /// The profile of ~/.aws/config that says how to reach it [default: AWS_PROFILE]
    #[arg(long, value_name = "NAME", help_heading = STORE)]
    pub profile: Option<String>,
    /// Name the bucket in the path of a request, not in its host; so it is with an endpoint of your own
    #[arg(long, help_heading = STORE)]
    pub path_style: bool,
    /// Send requests without credentials, to a public bucket or server
    #[arg(long, help_heading = STORE)]
    pub no_sign_request: bool,
    /// Pay for the requests to a bucket whose requester pays
    #[arg(long, help_heading = STORE)]
    pub request_payer: bool,
    /// The user of a server on WebDAV [default: ADIT_WEBDAV_USER, or a token in ADIT_WEBDAV_TOKEN]
    #[arg(long, value_name = "NAME", help_heading = STORE)]
    pub webdav_user: Option<String>,
    /// The file with that user's password in its first line [default: the password is in ADIT_WEBDAV_PASSWORD]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = STORE)]
    pub webdav_password_file: Option<PathBuf>,
    /// Longest time to a connection [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = units::duration, help_heading = STORE)]
    pub connect_timeout: Option<Duration>,
    /// Longest time without an answer, before a request is sent again [default: 20s]
    #[arg(long, value_name = "DURATION", value_parser = units::duration, help_heading = STORE)]
    pub request_timeout: Option<Duration>,
    /// How long a store that hangs, fails or cannot be reached is tried before what waits for it fails [default: 60s, or three times
    /// --request-timeout]; AWS_MAX_ATTEMPTS, and max_attempts and retry_mode of the profile, limit the number of tries
    #[arg(long, value_name = "DURATION", value_parser = units::duration, help_heading = STORE)]
    pub store_timeout: Option<Duration>,
    /// How much goes at a time.
    #[command(flatten)]
    pub transfer: TransferArgs,
}

/// How much goes to an object store at a time.
#[derive(Args, Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferArgs {
    /// Most requests at a time, 1 to 1024 [default: 64]
    #[arg(long, value_name = "COUNT", value_parser = units::requests, help_heading = STORE)]
    pub requests: Option<u16>,
    /// Length of the parts in which a large object is sent, 5M to 1G; PARTS of each are in memory [default: 8M]
    #[arg(long, value_name = "SIZE", value_parser = units::part_size, help_heading = STORE)]
    pub part_size: Option<u64>,
    /// Most parts of one large object that are sent at a time, 1 to 64 [default: 4]
    #[arg(long, value_name = "COUNT", value_parser = units::parts, help_heading = STORE)]
    pub parts: Option<u16>,
}

impl CasArgs {
    /// What is said here, and what `others` say where this says nothing.
    pub fn or(self, others: CasArgs) -> CasArgs {
        let (of, or) = (self.store, others.store);
        CasArgs {
            cas: self.cas.or(others.cas),
            cache_dir: self.cache_dir.or(others.cache_dir),
            cache_size: self.cache_size.or(others.cache_size),
            cache_block: self.cache_block.or(others.cache_block),
            strict: self.strict || others.strict,
            verify_first: self.verify_first.or(others.verify_first),
            store: StoreArgs {
                endpoint_url: of.endpoint_url.or(or.endpoint_url),
                region: of.region.or(or.region),
                profile: of.profile.or(or.profile),
                path_style: of.path_style || or.path_style,
                no_sign_request: of.no_sign_request || or.no_sign_request,
                request_payer: of.request_payer || or.request_payer,
                webdav_user: of.webdav_user.or(or.webdav_user),
                webdav_password_file: of.webdav_password_file.or(or.webdav_password_file),
                connect_timeout: of.connect_timeout.or(or.connect_timeout),
                request_timeout: of.request_timeout.or(or.request_timeout),
                store_timeout: of.store_timeout.or(or.store_timeout),
                transfer: TransferArgs {
                    requests: of.transfer.requests.or(or.transfer.requests),
                    part_size: of.transfer.part_size.or(or.transfer.part_size),
                    parts: of.transfer.parts.or(or.transfer.parts),
                },
            },
        }
    }
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
}

/// `manifest snapshot`
#[derive(Args, Debug)]
pub struct ManifestSnapshotArgs {
    /// The source.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The manifest to write, replaced if it is there and a manifest; `-` for standard output
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
    /// Where hashes are kept, instead of $XDG_CACHE_HOME/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache_dir: Option<PathBuf>,
    /// How a store is reached, of manifests that lie in one.
    #[command(flatten)]
    pub store: StoreArgs,
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
    /// The manifest to write, replaced if it is there and a manifest; `-` for standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// The version of the format [default: that of the first manifest, in the dialect that adit writes]
    #[arg(long, value_enum)]
    pub format: Option<FormatArg>,
    /// How a store is reached, of manifests that lie in one.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
