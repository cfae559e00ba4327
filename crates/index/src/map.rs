//! A file mapped into memory to be read.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// All of a file, mapped. Its pages are the page cache's: they are nobody's memory, and come and go as they are used.
pub(crate) struct Map {
    at: NonNull<c_void>,
    len: usize,
}

// SAFETY: the mapping is read-only and belongs to no thread; it goes when the last reference to it has gone.
unsafe impl Send for Map {}
// SAFETY: as above; reading from several threads at once changes nothing.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes of `file`, which are not none.
    ///
    /// # Safety
    /// Nobody may write to the file or cut it as long as the mapping lives.
    pub unsafe fn new(file: &File, len: usize) -> io::Result<Map> {
        // SAFETY: a new mapping at an address of the kernel's choice, so no other memory is touched.
        let at = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        let at = NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Map { at, len })
    }

    /// The bytes. To read beyond the end of a file that somebody cut is SIGBUS; see [`Map::new`].
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as many bytes are mapped for as long as `self` lives, and nobody writes to them (`Map::new`).
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is what `mmap` returned, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.at.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours is one");
    }
}
