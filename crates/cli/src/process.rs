//! What the process does to itself before anything else: no core dumps, enough descriptors, errors for limits, and its umask known.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, Rlimit};

/// Most descriptors asked for; trees are copied with one open directory per level.
const DESCRIPTORS_MAX: u64 = 65_536;

/// From this length on a piece of memory is large, in bytes: longer than what is read and written at once, for which asking the host each time would cost.
#[cfg(target_env = "gnu")]
const LARGE_LEN_BYTES: libc::c_int = 2 << 20;

/// The first descriptor that is neither standard input, output nor error.
const FIRST_OTHER: RawFd = 3;

/// The descriptors besides standard input, output and error that were open when the program started: the caller's, such
/// as a lock or the end of a pipe that somebody reads.
#[derive(Debug)]
pub struct Inherited(Vec<RawFd>);

impl Inherited {
    /// Looks for them. Call it before anything else, so that none of this program's own is among them.
    pub fn note() -> Inherited {
        let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
        let numbers = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let open: Vec<RawFd> = numbers.filter(|&fd| fd >= FIRST_OTHER).collect();
        // The one that listed them was among them, and is closed by now.
        // SAFETY: a plain system call without pointers; a number that is no descriptor is an error.
        Inherited(open.into_iter().filter(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0).collect())
    }

    /// Closes them: a process that outlives its caller must not keep the caller's locks and pipes.
    pub fn close(self) {
        for fd in self.0 {
            // SAFETY: it was open before this program opened anything, which never takes such a number for its own, and is
            // closed once, because this takes the list.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

/// Keeps keys and passwords out of core dumps, swap and other processes' hands, and raises the limit of open files.
///
/// Call it first, while the process has one thread.
pub fn harden() {
    // A dump of this process would hold keys. Neither call can fail for a reason that we could mend, and the program is
    // still right without them: the pages with keys are left out of dumps by themselves as well.
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // A write beyond the limit of file sizes (`ulimit -f`) is an error then, which whoever wrote is told. By default it ends the process, and all
    // its mounts.
    // SAFETY: a plain system call: to ignore a signal breaks no invariant.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    // SAFETY: this is the first thing that the process does, and nothing but the vault's crate uses the crypto library.
    let held = unsafe { adit_vault::memory::hold_crypto_library() };
    debug_assert!(held, "called once");
    let _ = adit_mount::descriptors::limit(DESCRIPTORS_MAX);
}

/// Has large pieces of memory go back to the host when they are freed: for a process that stays.
///
/// Tables that grow free ever larger pieces. The GNU C library takes the largest one that was freed, up to 32 MiB, for the length below which it keeps
/// pieces for the thread that had them: so a mount held half as much memory again as all that is counted. Whoever sets that length sets what is kept
/// behind the last piece of a thread to 128 KiB as well, so buffers would go and come with each request: it is set to one large piece.
pub fn hand_back_large_pieces() {
    #[cfg(target_env = "gnu")]
    for (what, len) in [(libc::M_MMAP_THRESHOLD, LARGE_LEN_BYTES), (libc::M_TRIM_THRESHOLD, LARGE_LEN_BYTES)] {
        // SAFETY: it sets a number, under the allocator's locks.
        let _is_set = unsafe { libc::mallopt(what, len) };
    }
}

/// Hands the host what was freed in small pieces, which the C library keeps for the thread that had them: after work that took much
/// for a moment, in a process that stays. It takes milliseconds.
pub fn hand_back_small_pieces() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches memory that is free only, under the allocator's locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Takes the processor where others leave it. A little only: what is measured then would be of no use otherwise.
pub fn let_others_go_first() {
    // It is as right without.
    let _ = rustix::process::nice(5);
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

/// Ends without what libraries do when a program ends, for which nothing of them may be at work. All output was flushed.
pub fn end_at_once(code: u8) -> ! {
    // SAFETY: a plain system call; nothing of this process runs after it.
    unsafe { libc::_exit(code.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the test of this name has a process of its own, for other tests have pieces of memory, too. Else it is run in one.
    fn is_alone(name: &str) -> bool {
        const ALONE: &str = "ADIT_TEST_ALONE";
        let is_alone = std::env::var_os(ALONE).is_some();
        if !is_alone {
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let ended = alone.args(["--exact", name, "--test-threads", "1"]).env(ALONE, "1").output().unwrap();
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        }
        is_alone
    }

    /// One that is left behind them keeps them.
    #[test]
    fn small_pieces_of_memory_go_back_when_they_are_to() {
        // Other C libraries hand nothing back on request.
        if cfg!(not(target_env = "gnu")) || !is_alone("process::tests::small_pieces_of_memory_go_back_when_they_are_to")
        {
            return;
        }
        let resident_kib = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.split_ascii_whitespace().next().unwrap().parse().unwrap()
        };
        let mut pieces: Vec<Vec<u8>> = (0..64 << 10).map(|_| vec![1; 1000]).collect();
        let last = pieces.pop();
        drop(pieces);
        let before = resident_kib();
        hand_back_small_pieces();
        let after = resident_kib();
        assert!(after + (32 << 10) < before, "{after} KiB of {before}");
        drop(last);
    }

    /// What was freed before makes no difference.
    #[test]
    fn a_large_piece_of_memory_is_mapped_by_itself_and_goes_back() {
        if !is_alone("process::tests::a_large_piece_of_memory_is_mapped_by_itself_and_goes_back") {
            return;
        }
        hand_back_large_pieces();
        // SAFETY: it fills in numbers, under the allocator's locks.
        #[cfg(target_env = "gnu")]
        let mapped = || unsafe { libc::mallinfo2() }.hblks;
        // Other libraries have no length that grows.
        #[cfg(not(target_env = "gnu"))]
        let mapped = || 0_usize;
        let before = mapped();
        for len in [16 << 20, 4 << 20, 16 << 20, 4 << 20] {
            let piece = std::hint::black_box(vec![1_u8; len]);
            #[cfg(target_env = "gnu")]
            assert_eq!(mapped(), before + 1, "{len}");
            drop(piece);
            assert_eq!(mapped(), before, "{len}");
        }
    }

    #[test]
    fn the_umask_is_read_and_kept() {
        let mask = umask();
        assert!(mask <= 0o777);
        assert_eq!(umask(), mask);
    }
}
