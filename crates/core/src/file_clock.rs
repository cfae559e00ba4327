//! The clock of file times: what the kernel would stamp a file with now.
//!
//! Since Linux 6.13 that is not the time of the last tick alone: where a filesystem gave out a finer stamp, nothing that is stamped later
//! anywhere is older, though no clock shows that. So an object of the kernel's own is stamped, and asked: a pipe that nobody else has. What is
//! stamped by us then is never older than what the kernel stamped before, nor newer than what it stamps after.

use std::io::PipeReader;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::fs::{Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::types::Timestamp;

/// A pipe, and what tells it from others.
struct StampPipe {
    pipe: PipeReader,
    identity: (u64, u64),
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl StampPipe {
    fn new() -> Option<StampPipe> {
        let (pipe, _) = std::io::pipe().ok()?;
        let identity = identity(&rustix::fs::fstat(&pipe).ok()?);
        Some(StampPipe { pipe, identity })
    }

    fn now(&self) -> Option<Timestamp> {
        // A program that has this library in it may close descriptors that it does not know, and open others.
        if identity(&rustix::fs::fstat(&self.pipe).ok()?) != self.identity {
            return None;
        }
        let unchanged = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times =
            Timestamps { last_access: unchanged, last_modification: Timespec { tv_nsec: UTIME_NOW, ..unchanged } };
        rustix::fs::futimens(self.pipe.as_fd(), &times).ok()?;
        let stat = rustix::fs::fstat(&self.pipe).ok()?;
        Some(Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 })
    }
}

/// The time that the kernel would stamp a file with; that of the last tick where it does not say.
pub(crate) fn now() -> Timestamp {
    static PIPE: OnceLock<Option<StampPipe>> = OnceLock::new();
    PIPE.get_or_init(StampPipe::new).as_ref().and_then(StampPipe::now).unwrap_or_else(|| {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Timestamp { secs: time.tv_sec, nanos: time.tv_nsec as u32 }
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn modified(file: &File) -> Timestamp {
        let stat = rustix::fs::fstat(file).unwrap();
        Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 }
    }

    #[test]
    fn it_is_never_behind_a_file_that_was_written_before() {
        let file = tempfile::tempfile().unwrap();
        for n in 0..2000 {
            rustix::io::pwrite(&file, &[0], n).unwrap();
            // The one after a look is a fine one, where there are such.
            let written = modified(&file);
            assert!(now() >= written, "{n}");
        }
    }

    #[test]
    fn it_never_goes_back() {
        let mut last = now();
        for _ in 0..2000 {
            let time = now();
            assert!(time >= last);
            last = time;
        }
        assert!(Timestamp::now() >= last);
    }
}
