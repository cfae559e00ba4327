//! A byte of a file, mapped into memory.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The first byte of a file that is not empty, mapped so that what is written to it is written to the file.
pub struct MappedByte(*mut u8);

impl MappedByte {
    /// Maps it. The file is not made empty meanwhile.
    pub fn of(path: &Path) -> MappedByte {
        let file = File::options().read(true).write(true).open(path).expect("a file to write to");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else refers to it.
        let at = unsafe { mmap(std::ptr::null_mut(), 1, protection, MapFlags::SHARED, file.as_fd(), 0) };
        MappedByte(at.expect("it can be mapped").cast())
    }

    /// Writes it, without a system call.
    pub fn write(&self, byte: u8) {
        // SAFETY: it is mapped for as long as `self` lives.
        unsafe { self.0.write_volatile(byte) }
    }
}

impl Drop for MappedByte {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.0.cast(), 1) };
    }
}
