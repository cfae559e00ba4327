//! The program `adit`.
//!
//! - [`args`]: what was typed, and what it means;
//! - [`commands`]: a module for each family of verbs;
//! - [`source`], [`secrets`], [`open`], [`live`]: from a name and a password to an open source, beside those that have it
//!   mounted; [`volume_work`]: what is asked of a volume, whoever has it open; [`drafts`]: what a killed `put` left;
//! - [`devices`]: who answers bulk questions;
//! - [`terminal`], [`output`], [`progress`], [`failure`], [`exit_code`], [`space`]: what the user gets to see;
//! - [`process`], [`interrupt`], [`logging`], [`state_dir`]: the process itself.
//!
//! Terminal, home and environment are touched here only; the libraries below know none of them.

#[macro_use]
mod terminal;

mod args;
mod asked;
mod commands;
mod devices;
mod drafts;
mod exit_code;
mod failure;
mod interrupt;
mod live;
mod logging;
mod open;
mod output;
mod process;
mod progress;
mod question;
mod secrets;
mod source;
mod space;
mod state_dir;
mod volume_work;

use std::process::ExitCode;

use args::index::IndexCommand;
use args::index_ask::IndexMeasureArgs;
use args::{Command, LowArgs};
use exit_code::Code;
use failure::{Failure, Result};

fn main() -> ExitCode {
    let inherited = process::Inherited::note();
    process::harden();
    let args = match args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    // A mount shows its warnings itself, or logs them.
    let global = (!matches!(args.command, Command::Mount(_))).then(|| args.global.clone());
    let result = run(args, inherited);
    interrupt::obey();
    global.iter().for_each(logging::tell_unseen);
    let code = match result {
        Ok(()) => Code::Done,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    };
    if devices::is_driver_at_work() {
        process::end_at_once(code as u8);
    }
    code.into()
}

/// Help and version are answers; anything else is a mistake.
fn usage(error: &clap::Error) -> ExitCode {
    match (error.use_stderr(), error.print()) {
        // Standard error may be closed; there is nowhere to say so.
        (true, _) => Code::Usage.into(),
        (false, Err(e)) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            let failure = Failure::io("standard output", &e);
            failure.print();
            failure.code().into()
        }
        (false, _) => Code::Done.into(),
    }
}

fn run(args: LowArgs, inherited: process::Inherited) -> Result<()> {
    let global = &args.global;
    open::be_quiet(global.quiet);
    if let Command::Mount(mount) = args.command {
        // It sets up its log itself, after the fork.
        return commands::mount::mount(mount, global, inherited);
    }
    if let Command::Index(_) | Command::Doctor(_) = args.command {
        devices::quiet_drivers();
    }
    if let Command::Index(IndexCommand::Measure(IndexMeasureArgs { background: true, .. })) = args.command {
        inherited.close();
        process::let_others_go_first();
    }
    logging::of_verb(global)?;
    match &args.command {
        Command::Mount(_) => Ok(()),
        Command::Umount(args) => commands::umount::umount(args, global),
        Command::Mounts(args) => commands::mounts::mounts(args),
        Command::Stats(args) => commands::mounts::stats(args),
        Command::Status(args) => commands::mounts::status(args),
        Command::Diff(args) => commands::diff::diff(args),
        Command::Ls(args) => commands::browse::ls(args, global),
        Command::Tree(args) => commands::browse::tree(args, global),
        Command::Cat(args) => commands::browse::cat(args, global),
        Command::Get(args) => commands::transfer::get(args, global),
        Command::Put(args) => commands::transfer::put(args, global),
        Command::Mkdir(args) => commands::change::mkdir(args, global),
        Command::Mv(args) => commands::change::mv(args, global),
        Command::Rm(args) => commands::change::rm(args, global),
        Command::Vault(command) => commands::vault::vault(command, global),
        Command::Volume(command) => commands::volume::volume(command, global),
        Command::Snapshot(command) => commands::snapshot::snapshot(command, global),
        Command::Clone(command) => commands::snapshot::clone(command),
        Command::Manifest(command) => commands::manifest::manifest(command, global),
        Command::Index(command) => commands::index::index(command, global),
        Command::Worker(command) => commands::worker::worker(command, global),
        Command::Doctor(args) => commands::doctor::doctor(args, global),
        Command::Completions { shell } => commands::generate::completions(*shell),
        Command::Man { verb, dir } => commands::generate::man(verb, dir.as_deref()),
    }
}
