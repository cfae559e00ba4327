//! The command of a profile (`credential_process`): its words as boto3 takes them from the line, and the process.
//!
//! No shell is between. The process leads a group of its own, and all of the group ends with the call that needs it: at its deadline, or when
//! nobody waits for it any more.

use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::try_join;
use reqsign_core::{CommandExecute, CommandOutput, Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::time::{Instant, timeout_at};

use crate::objects::transport::{Trouble, deadline};

/// Longest output that is read, in bytes; credentials have some 2 KiB.
const OUTPUT_LEN_MAX_BYTES: u64 = 1 << 20;

/// A command of a profile.
pub struct Command {
    program: String,
    arguments: Vec<String>,
    /// Longest time outside of any call.
    limit: Duration,
}

// Its arguments may have secrets.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Command {
    /// The command in a line, which runs at most `limit` where no call has a deadline.
    ///
    /// # Errors
    /// The reason for which the line is none.
    pub fn parse(line: &str, limit: Duration) -> std::result::Result<Command, &'static str> {
        let mut words = split(line)?.into_iter();
        let program = words.next().ok_or("there is no program in it")?;
        Ok(Command { program, arguments: words.collect(), limit })
    }
}

impl CommandExecute for Command {
    /// The library takes the line apart at white space, and knows no quotes: its words are left out.
    async fn command_execute(&self, _: &str, _: &[&str]) -> Result<CommandOutput> {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.arguments).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let until = deadline().unwrap_or_else(|| Instant::now() + self.limit);
        let failed = |e: std::io::Error| Error::unexpected(format!("{} cannot be run: {e}", self.program));
        let mut group = Group(command.spawn().map_err(failed)?);
        let output = timeout_at(until, group.output()).await;
        drop(group);
        let Ok(output) = output else {
            let trouble = Trouble::TimedOut("it did not end in time");
            return Err(Error::unexpected(format!("{} was ended", self.program)).with_source(trouble));
        };
        let output = output.map_err(failed)?;
        if output.success() && !are_credentials(&output.stdout) {
            // The words of the library would have parts of it, and there may be secrets in any.
            return Err(Error::unexpected("its output is not what it should be"));
        }
        Ok(output)
    }
}

/// A process and the group that it leads, which ends with this unless the process has ended before.
struct Group(Child);

impl Group {
    /// All output of the process, and how it ended. As long as its output is open it is not reaped, so its number is its own.
    async fn output(&mut self) -> std::io::Result<CommandOutput> {
        let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
        let (stdout, stderr) = try_join(all_of(stdout), all_of(stderr)).await?;
        let status = self.0.wait().await?;
        Ok(CommandOutput { status: status.code().unwrap_or(-1), stdout, stderr })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // None once it was reaped.
        let leader = self.0.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(leader) = leader {
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

async fn all_of(from: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(OUTPUT_LEN_MAX_BYTES).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// True if the library can read the output of a command.
fn are_credentials(output: &[u8]) -> bool {
    let Ok(Value::Object(fields)) = serde_json::from_slice(output) else { return false };
    let has = |name: &str| fields.get(name).is_some_and(Value::is_string);
    let may_have = |name: &str| fields.get(name).is_none_or(|value| value.is_string() || value.is_null());
    fields.get("Version").and_then(Value::as_u64).is_some_and(|version| u32::try_from(version).is_ok())
        && ["AccessKeyId", "SecretAccessKey"].into_iter().all(has)
        && ["SessionToken", "Expiration"].into_iter().all(may_have)
}

/// The words of a line by the rules of Python's `shlex.split`: white space parts them; nothing within single quotes means anything; within
/// double quotes a backslash takes its meaning from a quote and from a backslash, elsewhere from any character.
fn split(line: &str) -> std::result::Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => {
                let next = characters.next().ok_or("a backslash at its end has nothing after it")?;
                let word = word.get_or_insert_default();
                if quote.is_some() && next != '"' && next != '\\' {
                    word.push(c);
                }
                word.push(next);
            }
            (None, ' ' | '\t' | '\r' | '\n') => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed");
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::future::{Either, select};

    use super::*;
    use crate::objects::runtime::Threads;
    use crate::objects::transport;

    /// Each expected value is what `shlex.split` of Python 3.11 gives.
    #[test]
    fn words_are_those_of_boto3() {
        for (line, expected) in [
            (" a  b\tc\n", &["a", "b", "c"][..]),
            ("\"/my  dir/p.sh\" --x", &["/my  dir/p.sh", "--x"]),
            ("a\"b c\"d", &["ab cd"]),
            ("'a\\b' \"a\\b\" \"a\\\"b\" \"a\\\\b\" a\\b", &["a\\b", "a\\b", "a\"b", "a\\b", "ab"]),
            ("a '' \"\"", &["a", "", ""]),
            ("a#b #c $HOME `x` ~ a|b >f", &["a#b", "#c", "$HOME", "`x`", "~", "a|b", ">f"]),
            ("'\"' \"'\"", &["\"", "'"]),
            ("a\\ b", &["a b"]),
            ("é\u{a0}ü", &["é\u{a0}ü"]),
            ("", &[]),
        ] {
            assert_eq!(split(line).unwrap(), expected, "{line}");
        }
        for bad in ["'a", "\"a\\\"", "a\\", "\"a\\"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_command_ends_with_all_that_it_began() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let script = format!("sleep 100 & echo $$ $! >{0}.new; mv {0}.new {0}; wait", pids.display());
        let command = Command::parse(&format!("/bin/sh -c '{script}'"), Duration::from_secs(60)).unwrap();
        assert!(!format!("{command:?}").contains("sleep"));
        let begun = pids.clone();
        let ran = async move {
            // The wait ends once it has begun its child.
            let run = command.command_execute("", &[]);
            let seen = async {
                while !begun.exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            assert!(matches!(select(pin!(seen), pin!(run)).await, Either::Left(_)));
            Ok(())
        };
        Threads::start().unwrap().wait(ran).unwrap();
        for pid in std::fs::read_to_string(&pids).unwrap().split_whitespace() {
            ended(pid);
        }
        let command = Command::parse("/bin/sleep 100", Duration::from_secs(60)).unwrap();
        let ran = async move { Ok(transport::until(Instant::now(), command.command_execute("", &[])).await) };
        let e = Threads::start().unwrap().wait(ran).unwrap().unwrap_err();
        assert_eq!(Trouble::behind(&e), Some(&Trouble::TimedOut("it did not end in time")));
    }

    /// Waits until a process has ended, or is one that nobody has asked after.
    fn ended(pid: &str) {
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let runs =
            |stat: String| stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']));
        while state().is_some_and(runs) {
            std::thread::yield_now();
        }
    }
}
