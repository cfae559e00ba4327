//! The command line: [`low`] is what was typed, [`mount_options`] and [`secrets`](Secrets) what it means.

pub mod low;
pub mod mount_options;
pub mod units;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Parser;

use crate::secrets::Origin;

pub use low::{Command, LowArgs};

/// The name under which `mount -t fuse.adit` calls this program.
const MOUNT_HELPER_NAME: &str = "mount.fuse.adit";

/// Parses the arguments, the program's name first. Called as `mount.fuse.adit`, they mean `mount`.
///
/// # Errors
/// What clap says, which includes the text of `--help` and `--version`.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<LowArgs, clap::Error> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let called_as = args.first().and_then(|name| Path::new(name).file_name());
    if called_as == Some(OsStr::new(MOUNT_HELPER_NAME)) {
        args = as_mount(args);
    }
    LowArgs::try_parse_from(args)
}

/// `mount.fuse.adit SOURCE DIR [-sfnv] [-N NS] [-t TYPE] [-o OPTS]` (mount(8), "External helpers") as `adit mount`.
fn as_mount(args: Vec<OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = vec!["adit".into(), "mount".into()];
    let mut args = args.into_iter().skip(1);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            // Sloppy, no mtab, and a type with subtype that says what our name says already.
            Some("-s" | "-n") => {}
            Some("-N" | "-t") => drop(args.next()),
            Some("-f") => out.push("--fake".into()),
            _ => out.push(arg),
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
