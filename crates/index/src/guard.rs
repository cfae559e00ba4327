//! Mapped files that somebody cuts, or whose disk fails: a page that cannot be had is not the end of the process.
//!
//! To read such a page is the signal SIGBUS, and nothing that reads could catch it where it reads. So each mapping is watched: where its memory
//! faults, all of it becomes zeros, and it is lost, which whoever read from it sees afterwards ([`Guard::is_lost`]). Faults anywhere else are
//! passed on to who handled them before, and end the process as they always did. Decision 37 says why.
//!
//! The handler takes no lock and allocates nothing. The places of mappings are in a list that only grows; one that is free is taken again.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence};

/// The beginnings of places that are no mapping: nothing is mapped, or somebody is about to write down what is.
const FREE: usize = 0;
const TAKEN: usize = 1;

/// The list of places; the newest first.
static FIRST: AtomicPtr<Place> = AtomicPtr::new(null_mut());

/// The handler of SIGBUS before this one, once this one is there.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A place in the list, which stays for ever.
struct Place {
    /// The address where a mapping begins; or [`FREE`], or [`TAKEN`].
    start: AtomicUsize,
    /// Its length in bytes. Changes only while the place is [`TAKEN`].
    len: AtomicUsize,
    is_lost: AtomicBool,
    next: *const Place,
}

// SAFETY: `next` is written before the place is in the list, and never again; all else is atomic.
unsafe impl Sync for Place {}

/// Watches a mapping as long as it lives.
pub(crate) struct Guard(&'static Place);

impl Guard {
    /// Watches the mapping of `len` bytes at `start`.
    ///
    /// # Safety
    /// That has to be a mapping of whole pages that is only read, and lives longer than the guard.
    pub unsafe fn new(start: *const c_void, len: usize) -> io::Result<Guard> {
        handle_faults()?;
        let place = free_place();
        place.len.store(len, Relaxed);
        place.is_lost.store(false, Relaxed);
        place.start.store(start as usize, Release);
        Ok(Guard(place))
    }

    /// True if a part of it could not be read so far: what was read of it before this call may be zeros.
    #[inline]
    pub fn is_lost(&self) -> bool {
        // Not before what was read: the handler sets it before the zeros come.
        fence(Acquire);
        self.0.is_lost.load(Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.start.store(FREE, Release);
    }
}

/// A place that nobody has, for the caller alone.
fn free_place() -> &'static Place {
    if let Some(place) = places().find(|place| place.start.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok()) {
        return place;
    }
    let (start, len, is_lost) = (AtomicUsize::new(TAKEN), AtomicUsize::new(0), AtomicBool::new(false));
    let place = Box::leak(Box::new(Place { start, len, is_lost, next: FIRST.load(Acquire) }));
    let shared: *mut Place = place;
    loop {
        // SAFETY: it is in the list only once this has succeeded; until then nobody else knows of it.
        let next = unsafe { (*shared).next };
        match FIRST.compare_exchange(next.cast_mut(), shared, Release, Acquire) {
            // SAFETY: it is never freed, and from here on only read but for its atomics.
            Ok(_) => return unsafe { &*shared },
            // SAFETY: as above.
            Err(first) => unsafe { (*shared).next = first },
        }
    }
}

fn places() -> impl Iterator<Item = &'static Place> {
    let mut next = FIRST.load(Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: a place in the list is never freed; the list ends with null.
        let place = unsafe { next.as_ref() }?;
        next = place.next;
        Some(place)
    })
}

impl Place {
    /// The mapping here, if it has this address.
    fn mapping_with(&self, address: usize) -> Option<(usize, usize)> {
        let start = self.start.load(Acquire);
        let len = self.len.load(Relaxed);
        fence(Acquire);
        // One that changes meanwhile is not the one that somebody reads from.
        let is_it = start > TAKEN && start == self.start.load(Relaxed) && address.checked_sub(start)? < len;
        is_it.then_some((start, len))
    }

    /// Has the mapping with this address be zeros, and lost. False if there is none here, or it cannot be.
    fn give_up(&self, address: usize) -> bool {
        let Some((start, len)) = self.mapping_with(address) else { return false };
        self.is_lost.store(true, SeqCst);
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the range is that of the mapping, which the guard's owner keeps, and only reads; bytes of it become zeros, of which `is_lost` tells.
        let at = unsafe { libc::mmap(start as *mut c_void, len, libc::PROT_READ, flags, -1, 0) };
        at != libc::MAP_FAILED
    }
}

/// Sees to it that faults come here first, for the rest of the process's life.
fn handle_faults() -> io::Result<()> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let is_installed = INSTALLED.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zeroed is a valid `sigaction`, which the call fills in; nothing is changed by it.
        let before = unsafe {
            if libc::sigaction(libc::SIGBUS, null(), before.as_mut_ptr()) != 0 {
                return false;
            }
            before.assume_init()
        };
        let _ = BEFORE.set(before);
        let mut action = before;
        action.sa_sigaction = on_fault as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `on_fault` has the type that a handler with SA_SIGINFO needs, and is async-signal-safe; `action` lives.
        unsafe {
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, null_mut()) == 0
        }
    });
    if *is_installed { Ok(()) } else { Err(io::Error::other("faults of memory cannot be handled")) }
}

/// Async-signal-safe: atomic loads and stores, and mmap(2); the interrupted code finds its errno unchanged.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: this thread's errno is saved and restored.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel gives what SA_SIGINFO says; the address is there for a fault, of which the code is not negative or zero.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
    let is_ours = address.is_some_and(|address| places().any(|place| place.give_up(address)));
    if !is_ours {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// A fault that is none of a watched mapping.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: plain system calls. The signal is blocked as long as its handler runs, and ends the process then.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    let with_info = before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: whoever set this handler said of which of the two types it is.
    unsafe {
        if with_info {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use rustix::mm::{MapFlags, ProtFlags, mmap};

    use super::*;
    use crate::map::Map;

    fn cut_file() -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 16).unwrap();
        file
    }

    #[test]
    fn what_cannot_be_read_is_zeros_and_lost() {
        let files: Vec<_> = (0..20).map(|_| cut_file()).collect();
        // SAFETY: nobody writes to the files.
        let maps: Vec<_> = files.iter().map(|file| unsafe { Map::new(file, 1 << 16) }.unwrap()).collect();
        files[7].set_len(0).unwrap();
        std::thread::scope(|scope| {
            for at in [0, 1 << 12, (1 << 16) - 1] {
                let map = &maps[7];
                scope.spawn(move || assert_eq!(std::hint::black_box(map.bytes()[at]), 0));
            }
        });
        let lost: Vec<bool> = maps.iter().map(Map::is_lost).collect();
        assert!(lost.iter().enumerate().all(|(number, lost)| *lost == (number == 7)), "{lost:?}");
        // A place that was given back is taken again, and nothing of it is lost.
        drop(maps);
        // SAFETY: nobody writes to the file.
        assert!(!unsafe { Map::new(&files[0], 1 << 16) }.unwrap().is_lost());
    }

    /// In a process of its own, which it ends.
    #[test]
    fn a_fault_anywhere_else_ends_the_process() {
        const NAME: &str = "guard::tests::a_fault_anywhere_else_ends_the_process";
        const ALONE: &str = "ADIT_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let ended = alone.args(["--exact", NAME, "--test-threads", "1"]).env(ALONE, "1").output().unwrap();
            assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{}", String::from_utf8_lossy(&ended.stdout));
            return;
        }
        let (watched, other) = (cut_file(), cut_file());
        // SAFETY: nobody writes to the file.
        let _watched = unsafe { Map::new(&watched, 1 << 16) }.unwrap();
        // SAFETY: a new mapping, whose file is cut on purpose: the test expects the signal.
        let byte = unsafe {
            let at = mmap(null_mut(), 1 << 16, ProtFlags::READ, MapFlags::SHARED, &other, 0).unwrap();
            other.set_len(0).unwrap();
            std::ptr::read_volatile(at.cast::<u8>())
        };
        panic!("it was read: {byte}");
    }
}
