//! A file in memory to be read: mapped, or a copy.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::thread;

use crate::guard::Guard;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};

/// A large page of most processors: a copy is as long as some of them.
const HUGE_LEN: usize = 2 << 20;
/// The shortest page of any processor.
const PAGE_LEN: usize = 4096;
/// What one thread reads of a file, at least.
const READ_LEN: usize = 8 << 20;

/// All of a file. Of a mapped one the pages are the page cache's: they are nobody's memory, and come and go as they are used.
pub(crate) struct Map {
    at: NonNull<c_void>,
    /// What is mapped, and what of it is the file's.
    mapped: usize,
    len: usize,
    /// Of what is mapped; a copy needs none.
    guard: Option<Guard>,
}

// SAFETY: the mapping is read-only and belongs to no thread; it goes when the last reference to it has gone.
unsafe impl Send for Map {}
// SAFETY: as above; reading from several threads at once changes nothing.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes of `file`, which are not none.
    ///
    /// # Safety
    /// Nobody may write to the file as long as the mapping lives.
    pub unsafe fn new(file: &File, len: usize) -> io::Result<Map> {
        // SAFETY: a new mapping at an address of the kernel's choice, so no other memory is touched.
        let at = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        let at = NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut map = Map { at, mapped: len, len, guard: None };
        // SAFETY: it was just mapped to be read, and goes with the map, whose guard goes first.
        map.guard = Some(unsafe { Guard::new(at.as_ptr(), len) }?);
        Ok(map)
    }

    /// Reads the first `len` bytes of `file`, which are not none, into memory of this process, in large pages where the host has them.
    pub fn copy(file: &File, len: usize) -> io::Result<Map> {
        let mapped = len.checked_next_multiple_of(HUGE_LEN).ok_or(io::ErrorKind::OutOfMemory)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice, so no other memory is touched.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, protection, flags) }?;
        let map = Map { at: NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?, mapped, len, guard: None };
        // SAFETY: the range was just mapped. A kernel without large pages says no, and nothing is lost.
        let _ = unsafe { madvise(at, mapped, Advice::LinuxHugepage) };
        // SAFETY: as many bytes are mapped, they are zeros, and nobody else knows of them yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(map.at.as_ptr().cast::<u8>(), len) };
        let cores = crate::cores::cores();
        let each = len.div_ceil(cores).next_multiple_of(HUGE_LEN).max(READ_LEN);
        thread::scope(|scope| {
            let read = |number: usize, part: &mut [u8]| file.read_exact_at(part, (number * each) as u64);
            let mut parts = bytes.chunks_mut(each).enumerate();
            let own = parts.next();
            let others: Vec<_> = parts.map(|(number, part)| scope.spawn(move || read(number, part))).collect();
            let done = own.map_or(Ok(()), |(number, part)| read(number, part));
            others.into_iter().fold(done, |done, thread| done.and(thread.join().expect("it does not panic")))
        })?;
        // SAFETY: the range is the mapping's, whose bytes nobody writes to from here on.
        unsafe { mprotect(map.at.as_ptr(), mapped, rustix::mm::MprotectFlags::READ) }?;
        Ok(map)
    }

    /// Whether the bytes are a copy, which does not change with the file.
    pub fn is_copy(&self) -> bool {
        self.guard.is_none()
    }

    /// True if a part of the file could not be read from the mapping: whatever was read before this call may be zeros, and all that is read later is.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }

    /// Has the bytes of a part be in memory; [`Map::is_lost`] says if they could be read.
    #[inline]
    pub fn touch(&self, part: &[u8]) {
        if self.is_copy() {
            return;
        }
        for page in part.chunks(PAGE_LEN) {
            std::hint::black_box(page.first());
        }
        std::hint::black_box(part.last());
    }

    /// The bytes. Those of a file that somebody cut may be zeros: see [`Map::is_lost`].
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as many bytes are mapped for as long as `self` lives, and nobody writes to them (`Map::new`, `Map::copy`).
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // The next mapping at this address is another one's to watch.
        self.guard = None;
        // SAFETY: the range is what `mmap` returned, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.at.as_ptr(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours is one");
    }
}
