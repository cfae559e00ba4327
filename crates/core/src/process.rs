//! The number of a process, with the namespace in which it means that process.
//!
//! A number alone says nothing: a process in a pid namespace of its own (a container, `unshare --pid`, bubblewrap) writes one into files and messages
//! that is another process's here. [`ProcessNumber`] is for what people read. Nobody is signalled or waited for by it.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

/// The number of a process, as the process itself knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessNumber {
    pid: u32,
    namespace: Option<u64>,
}

impl ProcessNumber {
    /// That of this process.
    pub fn own() -> ProcessNumber {
        ProcessNumber { pid: std::process::id(), namespace: own_namespace() }
    }

    /// `pid` in the pid namespace with the number `namespace`, as `/proc/PID/ns/pid` has it; `None` where that is not known.
    pub fn new(pid: u32, namespace: Option<u64>) -> ProcessNumber {
        ProcessNumber { pid, namespace }
    }

    /// The number in its own namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The number of its namespace, where it is known.
    pub fn namespace(&self) -> Option<u64> {
        self.namespace
    }

    /// The number, if it means the same process here: as long as that process lives, no other namespace has the number of its own.
    pub fn here(&self) -> Option<u32> {
        (self.namespace.is_some() && self.namespace == own_namespace()).then_some(self.pid)
    }

    /// The command that sends it a signal (`KILL`), and where to give it.
    pub fn kill_line(&self, signal: Option<&str>) -> String {
        let signal = signal.map_or_else(String::new, |signal| format!("-{signal} "));
        match self.here() {
            Some(pid) => format!("kill {signal}{pid}"),
            None => format!("kill {signal}{} in its pid namespace", self.pid),
        }
    }
}

impl fmt::Display for ProcessNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.here() {
            Some(pid) => write!(f, "process {pid}"),
            None => write!(f, "a process of another pid namespace ({} there)", self.pid),
        }
    }
}

/// As a lock file has it: the number, and that of its namespace.
impl FromStr for ProcessNumber {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<ProcessNumber, Self::Err> {
        let mut fields = text.split_ascii_whitespace();
        let pid = fields.next().unwrap_or_default().parse()?;
        Ok(ProcessNumber { pid, namespace: fields.next().map(str::parse).transpose()? })
    }
}

/// The pid namespace of this process. Looked up each time: the child of a fork may be in another one than its parent.
fn own_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|meta| meta.ino())
}

/// The number that this process has in `/proc`.
pub fn number_in_proc() -> Option<u32> {
    std::fs::read_link("/proc/self").ok()?.to_str()?.parse().ok()
}

/// Whether the numbers of `/proc` are those of this process's own namespace. A process in a new one may still have the `/proc` of another.
pub fn proc_is_ours() -> bool {
    number_in_proc() == Some(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_another_namespace_is_none_here() {
        let own = ProcessNumber::own();
        let pid = std::process::id();
        assert_eq!(
            (own.here(), own.to_string(), own.kill_line(None)),
            (Some(pid), format!("process {pid}"), format!("kill {pid}"))
        );
        let namespace = own.namespace().expect("a pid namespace");
        for other in [ProcessNumber::new(pid, Some(namespace + 1)), ProcessNumber::new(pid, None)] {
            assert_eq!(other.here(), None, "{other:?}");
            assert!(!other.to_string().contains(&format!("process {pid}")), "{other}");
            assert_eq!(other.kill_line(Some("KILL")), format!("kill -KILL {pid} in its pid namespace"));
            assert_ne!(other, own);
        }
        assert!(proc_is_ours());
    }

    #[test]
    fn a_lock_file_without_a_namespace_is_read() {
        assert_eq!("77 4026531836".parse(), Ok(ProcessNumber::new(77, Some(4_026_531_836))));
        assert_eq!("77\n".parse(), Ok(ProcessNumber::new(77, None)));
        for text in ["", "x", "7 x"] {
            assert!(text.parse::<ProcessNumber>().is_err(), "{text}");
        }
    }
}
