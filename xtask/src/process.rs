//! Child processes with a time limit, so that a hung mount ends a stage instead of hanging CI.

use std::fs;
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How often a running child is looked at.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Runs `command` with its output passed through, and fails if it fails or runs past `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<()> {
    eprintln!("$ {}", shown(command));
    let status = status(command, limit)?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs `command` and returns what it prints; its errors are passed through. Fails if it fails or runs past `limit`.
pub fn output(command: &mut Command, limit: Duration) -> Result<String> {
    let shown = shown(command);
    eprintln!("$ {shown}");
    // A file rather than a pipe, which would have to be read while the time is watched.
    let mut said = tempfile::tempfile().context("cannot make a file for what a program prints")?;
    command.stdout(said.try_clone()?);
    let status = status(command, limit)?;
    said.rewind()?;
    let mut text = String::new();
    said.read_to_string(&mut text).with_context(|| format!("`{shown}` prints more than text"))?;
    if !status.success() {
        bail!("`{shown}` failed: {status}: {}", text.trim());
    }
    Ok(text)
}

/// Starts `command`, waits for it for at most `limit`, and returns its exit status.
///
/// Past the limit the child and everything that it started are killed.
pub fn status(command: &mut Command, limit: Duration) -> Result<ExitStatus> {
    let mut child = command.spawn().with_context(|| format!("cannot start `{}`", shown(command)))?;
    match wait(&mut child, limit)? {
        Some(status) => Ok(status),
        None => {
            kill_tree(&mut child);
            bail!("`{}` ran past its limit of {} s and was killed", shown(command), limit.as_secs());
        }
    }
}

/// Waits for `child` for at most `limit`; `None` if it still runs then.
pub fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child process")? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(POLL_EVERY);
    }
}

/// Kills `child` and all its descendants, and reaps the child.
pub fn kill_tree(child: &mut Child) {
    let mut doomed = vec![child.id()];
    let mut next = 0;
    while let Some(&pid) = doomed.get(next) {
        doomed.extend(children_of(pid));
        next += 1;
    }
    for pid in doomed {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // It may have ended meanwhile, which is what was wanted.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let _ = child.wait();
}

fn children_of(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for task in tasks.flatten() {
        let listed = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(listed.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    found
}

/// The command as one would type it, for messages.
pub fn shown(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    if let Some(name) = line.rsplit('/').next() {
        line = name.to_owned();
    }
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
