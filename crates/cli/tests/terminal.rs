//! The program at a terminal of its own: what it asks, and how often.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Bench, PASSWORD};

/// No dialogue takes longer, unless it hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A process with a terminal, and our end of that.
struct Terminal {
    child: Child,
    ours: File,
    said: String,
}

impl Terminal {
    fn start(mut command: Command) -> Terminal {
        let (mut ours, mut theirs) = (0, 0);
        // SAFETY: both descriptors are written before they are read, and the other pointers may be null.
        let made = unsafe {
            libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut())
        };
        assert_eq!(made, 0, "a terminal can be made");
        // SAFETY: openpty gave us both, and nobody else has them.
        let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let end = || Stdio::from(theirs.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: only system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // Prompts are read from the controlling terminal.
                match libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 {
                    true => Ok(()),
                    false => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().unwrap();
        drop((command, theirs));
        // SAFETY: a plain system call on a descriptor of ours.
        assert_eq!(unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&ours), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        Terminal { child, ours, said: String::new() }
    }

    /// Waits until it has said `what` since the last answer, and forgets that.
    #[track_caller]
    fn hear(&mut self, what: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.said.contains(what) {
            assert!(Instant::now() < deadline, "{what:?} was not said: {:?}", self.said);
            self.listen();
        }
        let end = self.said.find(what).unwrap() + what.len();
        self.said.drain(..end);
    }

    fn listen(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.ours.read(&mut bytes) {
            Ok(len) if len > 0 => self.said.push_str(&String::from_utf8_lossy(&bytes[..len])),
            // The last process that had it is gone.
            Err(e) if e.raw_os_error() == Some(libc::EIO) => return false,
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
        true
    }

    fn type_line(&mut self, line: &str) {
        self.ours.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The exit code, and what was said since the last answer.
    fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let more = self.listen();
            if let Some(status) = self.child.try_wait().unwrap() {
                while more && self.listen() {}
                return (status.code(), std::mem::take(&mut self.said));
            }
            assert!(Instant::now() < deadline, "it does not end: {:?}", self.said);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(bench: &Bench, args: &[&str]) -> Terminal {
    let mut command = bench.command();
    command.args(args);
    Terminal::start(command)
}

#[test]
fn terminal_a_person_may_try_three_times() {
    let bench = Bench::new();
    let mut terminal = start(&bench, &["mkdir", bench.vault_str(), "/made"]);
    for _ in 0..2 {
        terminal.hear("Password for");
        terminal.type_line("a wrong one");
        terminal.hear("wrong password; try again");
    }
    terminal.hear("Password for");
    terminal.type_line(PASSWORD);
    assert_eq!(terminal.end().0, Some(0));
    assert_eq!(bench.open("ls", &[]).expect(0).text(), "made\n");

    let mut terminal = start(&bench, &["ls", bench.vault_str()]);
    for _ in 0..3 {
        terminal.hear("Password for");
        terminal.type_line("a wrong one");
    }
    let (code, said) = terminal.end();
    assert_eq!(code, Some(3), "{said}");
    assert!(!said.contains("Password for"), "a fourth time: {said}");
}

#[test]
fn terminal_a_password_that_was_given_is_not_asked_for_again() {
    let bench = Bench::new();
    std::fs::write(bench.path("wrong"), "wrong").unwrap();
    for origin in [["--password-file", "wrong"], ["--password-command", "cat wrong"], ["--password-env", "HOME"]] {
        let terminal = start(&bench, &[&["ls", bench.vault_str()], &origin[..]].concat());
        let (code, said) = terminal.end();
        assert_eq!(code, Some(3), "{origin:?}: {said}");
        assert!(!said.contains("Password for"), "{origin:?}: {said}");
    }
}

#[test]
fn terminal_rm_looks_before_it_asks() {
    let bench = Bench::new();
    bench.open("mkdir", &["--parents", "/a/b", "/c"]).expect(0);
    let mut terminal = start(&bench, &["rm", "--recursive", bench.vault_str(), "/a", "/missing"]);
    terminal.hear("Password for");
    terminal.type_line(PASSWORD);
    terminal.hear("/missing: not found");
    terminal.hear("Remove the folder /a with everything in it for good?");
    terminal.type_line("n");
    let (code, said) = terminal.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(!said.contains("Password for"), "asked twice: {said}");
    assert_eq!(bench.open("ls", &[]).expect(0).text(), "a\nc\n");

    let mut terminal = start(&bench, &["rm", "--recursive", bench.vault_str(), "/a"]);
    terminal.hear("Password for");
    terminal.type_line(PASSWORD);
    terminal.hear("for good?");
    terminal.type_line("y");
    assert_eq!(terminal.end().0, Some(0));
    assert_eq!(bench.open("ls", &[]).expect(0).text(), "c\n");
}

#[test]
fn terminal_a_wrong_password_is_told_before_a_new_one_is_asked_for() {
    let bench = Bench::new();
    let mut terminal = start(&bench, &["vault", "passwd", bench.vault_str()]);
    terminal.hear("Password for");
    terminal.type_line("a wrong one");
    terminal.hear("try again");
    terminal.hear("Password for");
    terminal.type_line(PASSWORD);
    for _ in 0..2 {
        terminal.hear("ew password for");
        terminal.type_line("another password");
    }
    terminal.hear("password changed");
    assert_eq!(terminal.end().0, Some(0));
    bench.run_with(["ls", bench.vault_str(), "--password-stdin"], b"another password").expect(0);
}
