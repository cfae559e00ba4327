//! The verbs, one module for each family.

pub mod browse;
pub mod change;
pub mod check;
pub mod conflicts;
pub mod diff;
pub mod doctor;
pub mod generate;
pub mod index;
pub mod manifest;
pub mod mount;
pub mod mounts;
pub mod snapshot;
pub mod state;
pub mod transfer;
pub mod umount;
pub mod uppers;
pub mod vault;
pub mod volume;
pub mod worker;

use std::ffi::OsStr;
use std::io::{self, BufRead};

use crate::failure::{Failure, Result};

/// Asks on the terminal, unless `yes`. Without a terminal the answer must be `--yes`.
pub fn confirm(question: &str, yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !crate::process::can_ask() {
        return Err(Failure::usage(format!("{question} There is no terminal to ask on")).hint("say --yes to go on"));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(|e| Failure::io("terminal", &e))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(crate::exit_code::Code::Failure, "nothing was changed")),
    }
}

/// A path in a store as bytes.
fn bytes(path: &OsStr) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path)
}
