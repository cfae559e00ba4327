//! What a mount is asked for: flags and `-o` keys brought together.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use adit_core::cgroup;
use adit_manifest::cache::CacheOptions;
use adit_mount::options::{Applied, MountOptions};
use adit_volume::volume::Durability;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::low::{GlobalArgs, MountArgs, PasswordArgs};
use super::manifest::CasArgs;
use super::units;
use super::volume::DurabilityArg;
use crate::failure::{Failure, Result};
use crate::secrets::Origin;

/// Most memory that a mount uses unless told otherwise, in bytes.
pub const MEMORY_DEFAULT_BYTES: u64 = 256 << 20;
/// Less than this cannot hold the buffers of one mount.
pub const MEMORY_MIN_BYTES: u64 = 24 << 20;
/// The part of a control group's memory that the process of a mount takes by itself: what the kernel holds of what was written takes some, and the mount's users.
const MEMORY_SHARE: u64 = 4;

/// Most memory that a mount takes, in bytes, where nothing was said: less than the usual in a control group with little.
pub fn memory_default_bytes(limit_bytes: Option<u64>) -> u64 {
    let most = |limit: u64| (limit / MEMORY_SHARE).clamp(MEMORY_MIN_BYTES, MEMORY_DEFAULT_BYTES);
    limit_bytes.map_or(MEMORY_DEFAULT_BYTES, most)
}
/// What part of its memory the blocks of its cache may have at most. An object of one block is fetched into memory as a whole, some 80 at a
/// time.
const BLOCK_SHARE: u64 = 128;

/// A mount, as it is meant.
#[derive(Debug)]
pub struct MountRequest {
    /// What the user named as the source.
    pub source: OsString,
    /// Where to.
    pub mountpoint: PathBuf,
    /// What every mount has.
    pub options: MountOptions,
    /// How long the kernel and the engine believe what they know; `None` is the default.
    pub timeouts: Timeouts,
    /// What of a volume is mounted.
    pub part: Part,
    /// Where the data folder of the volume is now.
    pub data: Option<PathBuf>,
    /// The volume that takes the changes of what is mounted.
    pub upper: Option<PathBuf>,
    /// Whether a volume in the cache directory does.
    pub writable: bool,
    /// The folder of a volume that does, one for each mountpoint.
    pub upper_dir: Option<PathBuf>,
    /// Whether the volume that was named is bound to another place of what is mounted.
    pub rebind: bool,
    /// Where the content of a manifest lies, and the cache directory, if it is named.
    pub cas: CasArgs,
    /// When changes of a volume are safe from a power cut, if the mount says so.
    pub durability: Option<Durability>,
    /// Nobody else changes the vault.
    pub exclusive: bool,
    /// Whether a folder that holds something may be covered.
    pub nonempty: bool,
    /// Whether writing was asked for in so many words.
    pub rw: bool,
    /// Memory budget in bytes.
    pub memory_bytes: u64,
    /// Unmount when unused for so long.
    pub idle: Option<Duration>,
    /// Whether to stay in the foreground.
    pub foreground: bool,
    /// Whether to stop before mounting.
    pub fake: bool,
    /// True for a request of root through mount(8), which names neither `dev` nor `suid`: both are given unless an option takes them away.
    pub is_granted: bool,
    /// State directory named by `-o`.
    pub state_dir: Option<PathBuf>,
    /// Where the password comes from.
    pub password: Origin,
    /// Where the log goes, besides standard error in the foreground.
    pub log_file: Option<PathBuf>,
    /// What to log, where the options say so.
    pub log: Option<String>,
    /// How much more to say.
    pub verbose: u8,
    /// Say nothing.
    pub quiet: bool,
}

/// What of a volume is mounted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Its main branch.
    #[default]
    Live,
    /// A snapshot, to read.
    Snapshot(String),
    /// Another branch.
    Branch(String),
}

/// What the caches of names and attributes go by; see [`MountRequest::timeouts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Timeouts {
    /// Of attributes.
    pub attr: Option<Duration>,
    /// Of names.
    pub entry: Option<Duration>,
    /// Of names that do not exist.
    pub negative: Option<Duration>,
    /// Entries of a listing that are looked up before anybody asks for them, at most.
    #[serde(default)]
    pub prefetch: Option<usize>,
}

impl MountRequest {
    /// Brings flags and `-o` keys together; flags that only switch something on add to the keys.
    ///
    /// # Errors
    /// Usage: an unknown key, a value that makes no sense, more than one password.
    pub fn new(args: MountArgs) -> Result<MountRequest> {
        let mut request = MountRequest {
            source: args.source,
            mountpoint: args.mountpoint,
            options: MountOptions::default(),
            timeouts: Timeouts::default(),
            part: Part::Live,
            data: None,
            upper: None,
            writable: false,
            upper_dir: None,
            rebind: false,
            cas: CasArgs::default(),
            durability: None,
            exclusive: false,
            nonempty: false,
            rw: false,
            memory_bytes: memory_default_bytes(cgroup::memory_limit_bytes()),
            idle: None,
            foreground: false,
            fake: args.fake,
            is_granted: args.helper && rustix::process::geteuid().is_root(),
            state_dir: None,
            password: Origin::Ask,
            log_file: None,
            log: None,
            verbose: 0,
            quiet: false,
        };
        request.options.source = request.source.to_string_lossy().into_owned();
        request.options.kind = "vault".to_owned();
        (request.options.dev, request.options.suid) = (request.is_granted, request.is_granted);
        let mut password = args.password;
        for list in &args.options {
            for option in split_options(list) {
                request.apply(&option, &mut password, args.sloppy)?;
            }
        }
        request.rw &= !request.options.read_only;
        request.options.read_only |= args.read_only;
        request.options.allow_other |= args.allow_other;
        request.foreground |= args.foreground;
        // Zero, as elsewhere, is never.
        request.idle = args.idle.or(request.idle).filter(|idle| !idle.is_zero());
        request.options.counts_opens = request.idle.is_some();
        request.durability = args.durability.map(Durability::from).or(request.durability);
        for part in [args.snapshot.map(Part::Snapshot), args.branch.map(Part::Branch)].into_iter().flatten() {
            request.choose(part)?;
        }
        request.data = args.data.data.or(request.data);
        request.upper = args.upper.or(request.upper);
        request.writable |= args.writable;
        request.upper_dir = args.upper_dir.or(request.upper_dir);
        request.log_file = args.log_file.or(request.log_file);
        request.rebind |= args.rebind;
        request.cas = args.cas.or(request.cas);
        if request.upper.is_some() && request.writable {
            return Err(Failure::usage("--upper names the volume that takes the changes; leave out --writable"));
        }
        if request.upper_dir.is_some() && (request.upper.is_some() || request.writable) {
            return Err(Failure::usage(
                "--upper-dir says where the volume that takes the changes lies; leave out --upper and --writable",
            ));
        }
        if request.rebind && request.upper.is_none() {
            return Err(Failure::usage("--rebind binds a volume to the folder: name it with --upper")
                .hint("`adit volume uppers list` names those of --writable"));
        }
        request.memory_bytes = args.memory.unwrap_or(request.memory_bytes);
        if request.memory_bytes < MEMORY_MIN_BYTES {
            let least = units::show_size(MEMORY_MIN_BYTES);
            return Err(Failure::usage(format!("--memory: at least {least} are needed")));
        }
        request.expect_room_for_blocks()?;
        let given = [
            password.password_stdin,
            password.password_file.is_some(),
            password.password_command.is_some(),
            password.password_env.is_some(),
        ];
        if given.into_iter().filter(|&on| on).count() > 1 {
            return Err(Failure::usage("more than one source of the password"));
        }
        request.password = password.origin();
        Ok(request)
    }

    /// Only one part is mounted.
    fn choose(&mut self, part: Part) -> Result<()> {
        if self.part != Part::Live {
            return Err(Failure::usage("more than one snapshot or branch to be mounted"));
        }
        self.part = part;
        Ok(())
    }

    /// Refuses blocks that would not leave the memory at what was said. Those of the usual length go with any.
    fn expect_room_for_blocks(&self) -> Result<()> {
        let Some(block) = self.cas.cache_block.map(u64::from) else { return Ok(()) };
        let most = (self.memory_bytes / BLOCK_SHARE).max(CacheOptions::default().block_len.into());
        if block <= most {
            return Ok(());
        }
        let sizes = [block, self.memory_bytes, 1 << most.ilog2(), block * BLOCK_SHARE];
        let [block, memory, most, needed] = sizes.map(units::show_size);
        let what = format!("--cache-block and --memory: blocks of {block} are too long for a mount within {memory}");
        Err(Failure::usage(what).hint(format!("say --memory {needed}, or have blocks of at most {most}")))
    }

    /// Whether a volume takes the changes of what is mounted.
    pub fn is_overlay(&self) -> bool {
        self.upper.is_some() || self.writable || self.upper_dir.is_some()
    }

    /// What was said of the log, in flags and options. The flags win.
    pub fn global(&self, flags: &GlobalArgs) -> GlobalArgs {
        GlobalArgs {
            verbose: flags.verbose.saturating_add(self.verbose),
            log: flags.log.clone().or_else(|| self.log.clone()),
            quiet: flags.quiet || self.quiet,
            state_dir: flags.state_dir.clone(),
        }
    }

    fn apply(&mut self, option: &OsStr, password: &mut PasswordArgs, sloppy: bool) -> Result<()> {
        let (key, value) = match option.as_bytes().iter().position(|&b| b == b'=') {
            Some(at) => {
                (OsStr::from_bytes(&option.as_bytes()[..at]), Some(OsStr::from_bytes(&option.as_bytes()[at + 1..])))
            }
            None => (option, None),
        };
        let text = value.and_then(OsStr::to_str);
        let bad = |why: String| Failure::usage(format!("-o {}: {why}", option.display()));
        let duration = || units::duration(text.unwrap_or("")).map_err(bad);
        match (key.to_str().unwrap_or(""), value) {
            ("attr_timeout", Some(_)) => self.timeouts.attr = Some(duration()?),
            ("entry_timeout", Some(_)) => self.timeouts.entry = Some(duration()?),
            ("negative_timeout", Some(_)) => self.timeouts.negative = Some(duration()?),
            ("prefetch", Some(_)) => {
                let count = match text.unwrap_or("") {
                    "off" => Ok(0),
                    count => count.parse().map_err(|_| bad("it is a number of entries, or off".to_owned())),
                };
                self.timeouts.prefetch = Some(count?);
            }
            ("idle", Some(_)) => self.idle = Some(duration()?),
            ("memory", Some(_)) => self.memory_bytes = units::size(text.unwrap_or("")).map_err(bad)?,
            ("snapshot", Some(_)) => self.choose(Part::Snapshot(name_of(text, option)?))?,
            ("branch", Some(_)) => self.choose(Part::Branch(name_of(text, option)?))?,
            ("durability", Some(_)) => {
                let word = text.unwrap_or("");
                let known = DurabilityArg::from_str(word, false).map_err(|_| bad("it is sync or fsync".to_owned()))?;
                self.durability = Some(known.into());
            }
            ("data", Some(dir)) => self.data = Some(dir.into()),
            ("upper", Some(volume)) => self.upper = Some(volume.into()),
            ("writable", None) => self.writable = true,
            ("upper_dir" | "upper-dir", Some(dir)) => self.upper_dir = Some(dir.into()),
            ("log_file" | "log-file", Some(file)) => self.log_file = Some(file.into()),
            ("rebind", None) => self.rebind = true,
            ("cache_dir" | "cache-dir", Some(dir)) => self.cas.cache_dir = Some(dir.into()),
            ("cas", Some(url)) => self.cas.cas = Some(url.into()),
            ("cache_size" | "cache-size", Some(_)) => {
                self.cas.cache_size = Some(units::size(text.unwrap_or("")).map_err(bad)?);
            }
            ("cache_block" | "cache-block", Some(_)) => {
                self.cas.cache_block = Some(units::cache_block(text.unwrap_or("")).map_err(bad)?);
            }
            ("endpoint_url" | "endpoint-url", Some(_)) => self.cas.store.endpoint_url = Some(name_of(text, option)?),
            ("region", Some(_)) => self.cas.store.region = Some(name_of(text, option)?),
            ("profile", Some(_)) => self.cas.store.profile = Some(name_of(text, option)?),
            ("strict", None) => self.cas.strict = true,
            ("verify_first" | "verify-first", Some(_)) => {
                self.cas.verify_first = Some(units::size(text.unwrap_or("")).map_err(bad)?);
            }
            ("path_style" | "path-style", None) => self.cas.store.path_style = true,
            ("no_sign_request" | "no-sign-request", None) => self.cas.store.no_sign_request = true,
            ("request_payer" | "request-payer", None) => self.cas.store.request_payer = true,
            ("webdav_user" | "webdav-user", Some(_)) => self.cas.store.webdav_user = Some(name_of(text, option)?),
            ("webdav_password_file" | "webdav-password-file", Some(file)) => {
                self.cas.store.webdav_password_file = Some(file.into());
            }
            ("connect_timeout" | "connect-timeout", Some(_)) => self.cas.store.connect_timeout = Some(duration()?),
            ("request_timeout" | "request-timeout", Some(_)) => self.cas.store.request_timeout = Some(duration()?),
            ("store_timeout" | "store-timeout", Some(_)) => self.cas.store.store_timeout = Some(duration()?),
            ("requests", Some(_)) => {
                self.cas.store.transfer.requests = Some(units::requests(text.unwrap_or("")).map_err(bad)?);
            }
            ("part_size" | "part-size", Some(_)) => {
                self.cas.store.transfer.part_size = Some(units::part_size(text.unwrap_or("")).map_err(bad)?);
            }
            ("parts", Some(_)) => self.cas.store.transfer.parts = Some(units::parts(text.unwrap_or("")).map_err(bad)?),
            ("exclusive", None) => self.exclusive = true,
            ("nonempty", None) => self.nonempty = true,
            ("foreground", None) => self.foreground = true,
            ("log", Some(level)) => self.log = Some(level.to_string_lossy().into_owned()),
            ("verbose", None) => self.verbose += 1,
            ("quiet", None) => self.quiet = true,
            ("read_only" | "read-only", None) => self.options.read_only = true,
            ("allow-other", None) => self.options.allow_other = true,
            ("state_dir" | "state-dir", Some(dir)) => self.state_dir = Some(dir.into()),
            ("password_stdin" | "password-stdin", None) => password.password_stdin = true,
            ("password_file" | "password-file", Some(file)) => password.password_file = Some(file.into()),
            ("password_command" | "password-command", Some(c)) => password.password_command = Some(c.into()),
            ("password_env" | "password-env", Some(name)) => password.password_env = Some(name.into()),
            _ => return self.apply_general(option, sloppy),
        }
        Ok(())
    }

    /// Keys that every mount has, and those of other programs; unknown ones too, if `sloppy` (mount(8), `-s`).
    fn apply_general(&mut self, option: &OsStr, sloppy: bool) -> Result<()> {
        let shown = option.display();
        let applied = option.to_str().map_or(Applied::Unknown, |option| self.options.apply(option));
        self.rw |= option == "rw";
        match applied {
            Applied::Taken | Applied::Ignored => Ok(()),
            Applied::Noted(note) => {
                crate::open::remark(&format!("-o {shown}: {note}"));
                Ok(())
            }
            Applied::Refused(reason) => {
                Err(Failure::usage(format!("-o {shown}: {reason}")).hint("leave the option out"))
            }
            Applied::Unknown if sloppy => Ok(()),
            Applied::Unknown => {
                Err(Failure::usage(format!("-o {shown}: no such option")).hint("see `adit mount --help`"))
            }
            Applied::BadValue => Err(Failure::usage(format!("-o {shown}: the value makes no sense"))),
        }
    }
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Durability {
        match arg {
            DurabilityArg::Sync => Durability::Sync,
            DurabilityArg::Fsync => Durability::Fsync,
        }
    }
}

/// The name of a snapshot or branch, which is text.
fn name_of(text: Option<&str>, option: &OsStr) -> Result<String> {
    let named = text.filter(|name| !name.is_empty()).map(str::to_owned);
    named.ok_or_else(|| Failure::usage(format!("-o {}: the name makes no sense", option.display())))
}

/// Splits at commas; a backslash keeps the comma or backslash after it.
pub fn split_options(list: &OsStr) -> Vec<OsString> {
    let mut options = Vec::new();
    let mut current = Vec::new();
    let mut bytes = list.as_bytes().iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if matches!(bytes.peek(), Some(b',' | b'\\')) => current.extend(bytes.next()),
            b',' => options.push(OsString::from_vec(std::mem::take(&mut current))),
            byte => current.push(byte),
        }
    }
    options.push(OsString::from_vec(current));
    options.retain(|option| !option.is_empty());
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_split_at_plain_commas() {
        assert_eq!(split_options(OsStr::new(r"ro,,a=b\,c,d=\\x\y,")), ["ro", "a=b,c", r"d=\x\y"]);
    }
}
