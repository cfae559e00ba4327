//! A program that ends with its owner, however that ends.

use std::fs::File;
use std::io;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

/// Runs the program given as its arguments, and kills it, by its id, when its own standard input ends.
///
/// The other end of that is held by the owner, so it ends with the owner, even by SIGKILL. Signals of a terminal reach the whole group;
/// they are left to the owner, or this shell would be gone before the program. Without `exec` a shell gives a background job
/// /dev/null to read, so the descriptor is named.
const WATCH: &str = r#"
trap '' INT HUP TERM
exec 3<&0
"$@" 3<&- </dev/null &
program=$!
(read -r _ <&3; kill -KILL "$program") 2>/dev/null &
reader=$!
exec 3<&-
wait "$program"
status=$?
kill -KILL "$reader" 2>/dev/null
exit "$status"
"#;

/// A running program, killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Guarded {
    shell: Child,
    lifeline: Option<ChildStdin>,
}

impl Guarded {
    /// Starts `program`, whose output goes to `log`.
    pub(crate) fn start(program: &Command, log: &File) -> io::Result<Guarded> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", WATCH, "sh"]).arg(program.get_program()).args(program.get_args());
        // Nothing of whoever started the tests is to reach the server, its credentials least of all.
        shell.env_clear();
        shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(dir) = program.get_current_dir() {
            shell.current_dir(dir);
        }
        shell.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        let mut shell = shell.spawn()?;
        let lifeline = shell.stdin.take();
        Ok(Guarded { shell, lifeline })
    }

    /// How the program ended; `None` while it runs.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.shell.try_wait()
    }

    /// Kills the program and waits until it is gone. It may have ended before.
    pub(crate) fn kill(&mut self) {
        drop(self.lifeline.take());
        let _ = self.shell.wait();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.kill();
    }
}
