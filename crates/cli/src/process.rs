//! What the process does to itself before anything else: no core dumps, enough descriptors, and its umask known.

use std::io;

use rustix::process::{Resource, Rlimit};

/// Most descriptors asked for; trees are copied with one open directory per level.
const DESCRIPTORS_MAX: u64 = 65_536;

/// Keeps keys and passwords out of core dumps and other processes' hands, and raises the limit of open files.
///
/// Call it first, while the process has one thread.
pub fn harden() {
    // A dump of this process would hold keys. Neither call can fail for a reason that we could mend, and the program is
    // still right without them: the pages with keys are left out of dumps one by one as well.
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let files = rustix::process::getrlimit(Resource::Nofile);
    let wanted = files.maximum.map_or(DESCRIPTORS_MAX, |most| most.min(DESCRIPTORS_MAX));
    if files.current.is_some_and(|now| now < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: files.maximum };
        let _ = rustix::process::setrlimit(Resource::Nofile, raised);
    }
}

/// The process's umask. It can only be read by setting it, so call this while there is one thread.
pub fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::RWXU);
    rustix::process::umask(mask);
    mask.as_raw_mode()
}

/// Ends as `SIGPIPE` ends a program whose reader has gone: silently, and so that the shell knows.
///
/// The Rust runtime ignores the signal, which is right for a daemon that writes to sockets; only this brings it back.
pub fn die_of_sigpipe() -> ! {
    die_of(libc::SIGPIPE)
}

/// Ends as the signal ends a program that does not handle it.
pub fn die_of(signal: i32) -> ! {
    // SAFETY: plain system calls without pointers; restoring a default action cannot break an invariant.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    // Only if the signal is blocked: the code that a shell would have shown.
    std::process::exit(128 + signal)
}

/// Whether both standard input and standard error are terminals, so that a person can be asked.
pub fn can_ask() -> bool {
    use io::IsTerminal;
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_umask_is_read_and_kept() {
        let mask = umask();
        assert!(mask <= 0o777);
        assert_eq!(umask(), mask);
    }
}
