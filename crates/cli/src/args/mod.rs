//! The command line: [`low`] and [`volume`] are what was typed, [`mount_options`] and [`secrets`](Secrets) what it means.

pub mod index;
pub mod index_ask;
pub mod low;
pub mod manifest;
pub mod manifest_commit;
pub mod mount_options;
pub mod units;
pub mod volume;
pub mod worker;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use clap::{CommandFactory, FromArgMatches};

use crate::exit_code;
use crate::secrets::Origin;

pub use low::{Command, LowArgs};

/// The name under which `mount -t fuse.adit` calls this program.
const MOUNT_HELPER_NAME: &str = "mount.fuse.adit";

/// What the section of the help with the exit codes begins with.
pub const EXIT_CODES_TITLE: &str = "Exit codes:";

/// Parses the arguments, the program's name first. Called as `mount.fuse.adit`, they mean `mount`; other names are those by which
/// workers call ([`worker`]).
///
/// # Errors
/// What clap says, which includes the text of `--help` and `--version`.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<LowArgs, clap::Error> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let called_as = args.first().and_then(|name| Path::new(name).file_name());
    match called_as.and_then(OsStr::to_str) {
        Some(MOUNT_HELPER_NAME) => args = as_mount(args),
        Some(worker::VFS_NAME) => args = worker::vfs_as_mount(args, std::env::var_os(worker::CACHE_VARIABLE))?,
        Some(worker::FUSERMOUNT_NAME) => args = worker::fusermount_as_verb(args),
        _ => {}
    }
    LowArgs::from_arg_matches(&command().try_get_matches_from(args)?)
}

/// The definition of the command line, with the exit codes on every page of the help.
pub fn command() -> clap::Command {
    with_codes(LowArgs::command())
}

fn with_codes(command: clap::Command) -> clap::Command {
    let before = command.get_after_long_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    let mut command = command.after_long_help(format!("{before}{}", exit_codes()));
    let names: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, with_codes);
    }
    command
}

/// The table of the exit codes as a section of the help.
fn exit_codes() -> String {
    let mut text = String::from(EXIT_CODES_TITLE);
    for (code, meaning) in exit_code::TABLE {
        text.push_str(&format!("\n  {:2}  {meaning}", code as u8));
    }
    text.push_str("\n\n");
    text.push_str(&exit_code::of_several());
    text
}

/// `mount.fuse.adit SOURCE DIR [-sfnv] [-N NS] [-t TYPE] [-o OPTS]` (mount(8), "External helpers") as `adit mount`.
///
/// Its letters are not those of `adit mount` (`-f` is a fake mount, and not one in the foreground), may stand in one
/// word, and the last one of a word may have its value there or in the next.
fn as_mount(args: Vec<OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = vec!["adit".into(), "mount".into(), "--helper".into()];
    let mut args = args.into_iter().skip(1);
    while let Some(arg) = args.next() {
        let letters = match arg.as_bytes() {
            [b'-', b'-', ..] => None,
            [b'-', letters @ ..] if !letters.is_empty() => Some(letters.to_vec()),
            _ => None,
        };
        let Some(letters) = letters else {
            out.push(arg);
            continue;
        };
        for (at, letter) in letters.iter().enumerate() {
            let rest = letters.get(at + 1..).unwrap_or_default();
            let mut value = || match rest.is_empty() {
                true => args.next(),
                false => Some(OsString::from_vec(rest.to_vec())),
            };
            match letter {
                // No mtab: it is always so.
                b'n' => continue,
                b's' => out.push("--sloppy".into()),
                b'f' => out.push("--fake".into()),
                b'v' => out.push("--verbose".into()),
                b'r' => out.push("--read-only".into()),
                b'w' => out.extend(["-o".into(), "rw".into()]),
                b'o' => {
                    out.push("-o".into());
                    out.extend(value());
                    break;
                }
                // The namespace was entered already, and the type says what our name says.
                b'N' | b't' => {
                    value();
                    break;
                }
                // Ours, such as -h: clap says whether it is one.
                letter => out.push(OsString::from_vec(vec![b'-', *letter])),
            }
        }
    }
    out
}

/// Where the current password comes from, as typed.
impl low::PasswordArgs {
    /// The origin; a person is asked if none was named.
    pub fn origin(&self) -> Origin {
        origin(self.password_stdin, &self.password_file, &self.password_command, &self.password_env)
    }
}

impl low::NewPasswordArgs {
    /// The origin; a person is asked if none was named.
    pub fn origin(&self) -> Origin {
        origin(self.new_password_stdin, &self.new_password_file, &self.new_password_command, &self.new_password_env)
    }
}

fn origin(
    stdin: bool,
    file: &Option<std::path::PathBuf>,
    command: &Option<OsString>,
    env: &Option<OsString>,
) -> Origin {
    match (stdin, file, command, env) {
        (true, ..) => Origin::Stdin,
        (_, Some(file), ..) => Origin::File(file.clone()),
        (.., Some(command), _) => Origin::Command(command.clone()),
        (.., Some(name)) => Origin::Env(name.clone()),
        _ => Origin::Ask,
    }
}

#[cfg(test)]
mod tests;
