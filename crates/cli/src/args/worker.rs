//! What the workers of AWS Deadline Cloud call: `deadline_vfs` and `fusermount3`, and the verb that installs both.
//!
//! The lines are those of `VFSProcessManager` of the official package; they are translated into verbs of `adit`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};

/// The name under which workers call this program to mount.
pub const VFS_NAME: &str = "deadline_vfs";
/// The name under which they call it to unmount.
pub const FUSERMOUNT_NAME: &str = "fusermount3";
/// The folder of the session that newer workers name with `--cachedir`.
const CACHE_DIR: &str = ".vfs_object_cache";
/// The variable with which the machine of a worker names another one for what is fetched, which sessions share.
pub const CACHE_VARIABLE: &str = "DEADLINE_VFS_CACHE";
/// The folder of the session in which workers look for the log when a mount fails, and its name there.
const LOGS_DIR: &str = ".vfs_logs";
const LOG_NAME: &str = "vfs_log.txt";
/// The last part of a prefix of objects, below the root of the store.
const DATA: &str = "Data";

/// `worker …`
#[derive(Subcommand, Debug)]
pub enum WorkerCommand {
    /// Install the folder from which workers of AWS Deadline Cloud mount job attachments
    #[command(after_long_help = "\
Workers look for it in /opt/deadline_vfs, or where the variable DEADLINE_VFS_PATH of the worker agent says. The folder has what the official \
library calls: scripts/production/al2/run_deadline_vfs_al2.sh, bin/deadline_vfs and link/fusermount3. Each job session is then an overlay \
on its manifest: inputs are fetched when they are read, and what a task writes is in files below the mountpoint, where the worker looks \
for outputs. It lies in the session's folder and goes with it.

Fetched content is kept there as well, or in the folder that DEADLINE_VFS_CACHE of the worker's environment names, or cache_dir of OPT, which \
sessions then share.

The program is linked, so that it is updated with adit; --copy puts a copy there. Jobs run as other users, who must be able to run it, and \
to mount: /etc/fuse.conf needs the line `user_allow_other`.

An installation of before is replaced. What is in the way and is not ours is left alone (exit code 1).

Examples:
  adit worker install /opt/deadline_vfs --copy
  adit worker install ~/vfs -o strict,cache_size=50G
  adit worker install /opt/deadline_vfs -o cache_dir=/var/cache/jobs")]
    Install(WorkerInstallArgs),
    /// Unmount as fusermount3 does, which the system's one does for others' mounts
    #[command(hide = true)]
    Fusermount(FusermountArgs),
}

/// `worker install`
#[derive(Args, Debug)]
pub struct WorkerInstallArgs {
    /// The folder, which is made if it does not exist
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Copy the program instead of linking it
    #[arg(long)]
    pub copy: bool,
    /// Options of every mount, as of `adit mount -o`; cache_dir is for what is fetched, which sessions of one user then share
    #[arg(short = 'o', value_name = "OPT,…", action = clap::ArgAction::Append)]
    pub options: Vec<OsString>,
}

/// `worker fusermount`
#[derive(Args, Debug)]
pub struct FusermountArgs {
    /// As fusermount3 has them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

/// Mount a manifest as the workers of AWS Deadline Cloud ask for it
#[derive(Parser, Debug)]
#[command(name = VFS_NAME, version, max_term_width = 110)]
struct VfsArgs {
    /// The folder to mount on
    mountpoint: PathBuf,
    /// Stay in the foreground
    #[arg(short = 'f')]
    foreground: bool,
    /// Say more about what happens
    #[arg(short = 'd')]
    debug: bool,
    /// Of libfuse, and ignored
    #[arg(short = 's')]
    _single: bool,
    /// Options as of mount(8), and those of `adit mount -o`
    #[arg(short = 'o', action = clap::ArgAction::Append)]
    options: Vec<OsString>,
    /// Who calls; ignored
    #[arg(long = "clienttype")]
    _client_type: Option<OsString>,
    /// The bucket with the content
    #[arg(long)]
    bucket: String,
    /// The manifest
    #[arg(long)]
    manifest: PathBuf,
    /// The bucket's region
    #[arg(long)]
    region: Option<String>,
    /// The prefix of the objects in the bucket, ROOT/Data
    #[arg(long = "casprefix", default_value = DATA)]
    cas_prefix: String,
    /// Where what is fetched and what is written is kept [default: .vfs_object_cache]
    #[arg(long = "cachedir")]
    cache_dir: Option<PathBuf>,
}

/// The line of `deadline_vfs` as one of `adit mount`; `cache` is the value of [`CACHE_VARIABLE`].
///
/// # Errors
/// What clap says; that the prefix is none of the official layout.
pub fn vfs_as_mount(args: Vec<OsString>, cache: Option<OsString>) -> Result<Vec<OsString>, clap::Error> {
    let args = VfsArgs::try_parse_from(args)?;
    let Some(root) = root_of(&args.cas_prefix) else {
        let what = format!("--casprefix={}: it does not end in {DATA}, as the prefix of a queue does", args.cas_prefix);
        return Err(VfsArgs::command().error(ErrorKind::ValueValidation, what));
    };
    let upper_dir = args.cache_dir.unwrap_or_else(|| CACHE_DIR.into());
    let shared = cache.filter(|cache| !cache.is_empty()).map(PathBuf::from);
    if let Some(odd) = shared.as_ref().filter(|cache| !cache.is_absolute()) {
        crate::open::remark(&format!(
            "{CACHE_VARIABLE}={}: passed over, for it is no path from the root",
            odd.display()
        ));
    }
    let cache_dir = shared.filter(|cache| cache.is_absolute()).unwrap_or_else(|| upper_dir.clone());
    let mut line: Vec<OsString> = vec!["adit".into(), "mount".into()];
    line.extend(args.foreground.then(|| "--foreground".into()));
    line.extend(args.debug.then(|| "--verbose".into()));
    let slash = if root.is_empty() { "" } else { "/" };
    line.extend(["--cas".into(), format!("s3://{}{slash}{root}", args.bucket).into()]);
    // What Python writes of no region.
    let region = args.region.filter(|name| !name.is_empty() && name != "None");
    line.extend(region.into_iter().flat_map(|name| ["--region".into(), name.into()]));
    // As libfuse, which mounts on whatever is there. Those that were typed come later, and win.
    line.extend(["-o".into(), "nonempty".into()]);
    line.extend(["-o".into(), option("cache_dir", &cache_dir), "-o".into(), option("upper_dir", &upper_dir)]);
    if Path::new(LOGS_DIR).is_dir() {
        line.extend(["-o".into(), option("log_file", &Path::new(LOGS_DIR).join(LOG_NAME))]);
    }
    line.extend(args.options.into_iter().flat_map(|list| ["-o".into(), list]));
    let mut source = OsString::from("manifest:");
    source.push(&args.manifest);
    line.extend(["--".into(), source, args.mountpoint.into()]);
    Ok(line)
}

/// The root of a store in whose `Data/` folder objects with this prefix lie.
fn root_of(prefix: &str) -> Option<&str> {
    let root = prefix.trim_matches('/').strip_suffix(DATA)?;
    if root.is_empty() { Some(root) } else { root.strip_suffix('/') }
}

/// What `fusermount3` is asked for, if it is to unmount one folder: that, and whether lazily.
pub fn unmount_of(arguments: &[OsString]) -> Option<(PathBuf, bool)> {
    let (mut unmounts, mut lazy, mut only_paths, mut mountpoint) = (false, false, false, None);
    for argument in arguments {
        match argument.as_bytes() {
            b"--" if !only_paths => only_paths = true,
            [b'-', letters @ ..] if !only_paths && !letters.is_empty() => {
                for letter in letters {
                    match letter {
                        b'u' => unmounts = true,
                        b'z' => lazy = true,
                        b'q' => {}
                        _ => return None,
                    }
                }
            }
            _ if mountpoint.is_some() => return None,
            _ => mountpoint = Some(PathBuf::from(argument)),
        }
    }
    mountpoint.filter(|_| unmounts).map(|mountpoint| (mountpoint, lazy))
}

/// The line of `fusermount3` as one of `adit`.
pub fn fusermount_as_verb(args: Vec<OsString>) -> Vec<OsString> {
    let verb = ["adit", "worker", "fusermount", "--"].map(OsString::from);
    verb.into_iter().chain(args.into_iter().skip(1)).collect()
}

/// A path as a value in a list of options, in which commas and backslashes are special.
fn option(key: &str, path: &Path) -> OsString {
    let mut option = format!("{key}=").into_bytes();
    for byte in path.as_os_str().as_bytes() {
        option.extend(matches!(byte, b',' | b'\\').then_some(b'\\'));
        option.push(*byte);
    }
    OsString::from_vec(option)
}
