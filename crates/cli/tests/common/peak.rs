//! The most memory that a command takes.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::common::{Killed, Start};

/// The most memory of a process, in bytes: what is its own, and with it all that it has mapped of files.
///
/// It is looked at for as long as the process runs. What wait4(2) tells in the end (`ru_maxrss`) begins with the memory of whoever started the process, which
/// exec(2) takes over (Linux: `exec_mmap`): that of a test program, and of all the tests in it.
#[derive(Default, Debug)]
pub struct Peak {
    pub own: u64,
    pub all: u64,
}

impl Peak {
    /// Runs a command to its end, which is this exit code, and looks at its memory all the while. What it had at most in all the kernel keeps; of its
    /// own memory each look tells what it is then.
    #[track_caller]
    pub fn of(command: &mut Command, code: i32) -> Peak {
        let mut child = Killed(command.start().unwrap());
        let mut peak = Peak::default();
        let status = loop {
            let text = fs::read_to_string(format!("/proc/{}/status", child.0.id())).unwrap_or_default();
            let of = |key: &str| -> u64 {
                let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
                line.map_or(0, |line| line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() << 10)
            };
            peak.own = peak.own.max(of("RssAnon") + of("RssShmem"));
            peak.all = peak.all.max(of("VmHWM"));
            match child.0.try_wait().unwrap() {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(3)),
            }
        };
        assert_eq!(status.code(), Some(code), "{command:?}: {status}");
        peak
    }
}
