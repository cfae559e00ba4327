//! Memory for keys and passwords: locked against swapping, left out of core dumps, wiped when it is given back.
//!
//! [`LockedBytes`] is a buffer with mappings of its own, for passwords. Keys lie in slots of locked slabs
//! (`format::secret::Locked`), and so does, after [`hold_crypto_library`], whatever the crypto library allocates: key
//! schedules of open files come by the thousand, and a page for each would use up the limit of locked memory.
//!
//! Locking is best effort: where `RLIMIT_MEMLOCK` forbids it, all works as before, and [`is_locked`] says so. A child of
//! `fork(2)` inherits no locks: it calls [`lock_again`]. Invariant: an allocation is preceded by its length, so it is
//! known when it is freed which slots it came from. What this is not: stacks and registers hold keys while they are used.

use std::ffi::{c_char, c_int, c_void};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use parking_lot::Mutex;
use zeroize::Zeroize;

/// What is mapped and locked at a time, for slots of one length. A multiple of every page length in use but the largest.
const SLAB_BYTES: usize = 16 << 10;
/// In front of each allocation; keeps it aligned as `malloc` does.
const PREFIX_BYTES: usize = 16;
/// Lengths of slots, prefix included. The steps are small where key schedules are: AES-256-GCM takes about 600 bytes.
const SLOT_BYTES: [usize; 12] = [64, 128, 192, 256, 384, 512, 640, 768, 1024, 1536, 2048, 4096];
/// Longest allocation that gets a slot. The crypto library's longer ones (its source of entropy) are no keys.
pub(crate) const ALLOCATION_MAX_BYTES: usize = SLOT_BYTES[SLOT_BYTES.len() - 1] - PREFIX_BYTES;

/// An address that is ours, wherever it is used.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Address(NonNull<u8>);

// SAFETY: only the address is shared; who may use what lies there is decided by the arena's lock.
unsafe impl Send for Address {}

struct Arena {
    /// Free slots by length.
    free: [Vec<Address>; SLOT_BYTES.len()],
    /// All that is mapped, and how long it is.
    mapped: Vec<(Address, usize)>,
    /// Some of it could not be locked.
    refused: bool,
}

static ARENA: Mutex<Arena> =
    Mutex::new(Arena { free: [const { Vec::new() }; SLOT_BYTES.len()], mapped: Vec::new(), refused: false });

impl Arena {
    /// Maps `len` zeroed bytes.
    fn map(&mut self, len: usize) -> Option<Address> {
        // SAFETY: a new private mapping touches nothing that exists.
        let at = unsafe {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0)
        };
        let at = Address(NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED)?);
        // SAFETY: the range is exactly the mapping above, which is private memory: leaving it out of dumps harms nobody.
        unsafe { libc::madvise(at.0.as_ptr().cast(), len, libc::MADV_DONTDUMP) };
        self.lock((at, len));
        self.mapped.push((at, len));
        Some(at)
    }

    fn lock(&mut self, (at, len): (Address, usize)) {
        // SAFETY: mlock changes no content, whatever lies there.
        self.refused |= unsafe { libc::mlock(at.0.as_ptr().cast(), len) } != 0;
    }

    /// Unmaps what [`map`](Self::map) gave, which is wiped already.
    fn unmap(&mut self, at: Address, len: usize) {
        self.mapped.retain(|&(mapped, _)| mapped != at);
        // SAFETY: a whole mapping that the caller owns and gives up.
        unsafe { libc::munmap(at.0.as_ptr().cast(), len) };
    }

    fn take(&mut self, class: usize) -> Option<Address> {
        if self.free[class].is_empty() {
            let slab = self.map(SLAB_BYTES)?;
            let slots = SLAB_BYTES / SLOT_BYTES[class];
            // SAFETY: every slot lies within the slab that was mapped above.
            self.free[class].extend((0..slots).map(|n| Address(unsafe { slab.0.add(n * SLOT_BYTES[class]) })));
        }
        self.free[class].pop()
    }
}

/// The slots for an allocation of `len` bytes.
fn class_of(len: usize) -> Option<usize> {
    SLOT_BYTES.iter().position(|&slot| len <= slot - PREFIX_BYTES)
}

/// Memory for `len` bytes, aligned to 16; locked if it is no longer than [`ALLOCATION_MAX_BYTES`]. `None` without memory.
pub(crate) fn allocate(len: usize) -> Option<NonNull<u8>> {
    let start = match class_of(len) {
        Some(class) => ARENA.lock().take(class)?.0,
        // SAFETY: any length may be asked for.
        None => NonNull::new(unsafe { libc::malloc(len.checked_add(PREFIX_BYTES)?) }.cast::<u8>())?,
    };
    // SAFETY: the slot, or the block, has room for the prefix and `len` bytes, and is aligned to 16.
    unsafe {
        start.cast::<usize>().write(len);
        Some(start.add(PREFIX_BYTES))
    }
}

/// The length of an allocation.
///
/// # Safety
/// `at` comes from [`allocate`] and was not freed.
unsafe fn len_of(at: NonNull<u8>) -> usize {
    // SAFETY: `allocate` wrote it there.
    unsafe { at.sub(PREFIX_BYTES).cast::<usize>().read() }
}

/// Wipes an allocation and gives it back.
///
/// # Safety
/// `at` comes from [`allocate`], was not freed, and is not used afterwards.
pub(crate) unsafe fn free(at: NonNull<u8>) {
    // SAFETY: by the caller's promise the allocation is whole and nobody else's. Its bytes may never have been written,
    // so they are wiped through a pointer and not as a slice.
    unsafe {
        let (len, start) = (len_of(at), at.sub(PREFIX_BYTES));
        wipe(at, len);
        match class_of(len) {
            Some(class) => ARENA.lock().free[class].push(Address(start)),
            None => libc::free(start.as_ptr().cast()),
        }
    }
}

/// Overwrites with zeros, which no compiler leaves out.
///
/// # Safety
/// `len` bytes at `at` may be written.
unsafe fn wipe(at: NonNull<u8>, len: usize) {
    // SAFETY: by the caller's promise; written once, the bytes are initialised and may be seen as a slice.
    unsafe {
        ptr::write_bytes(at.as_ptr(), 0, len);
        std::slice::from_raw_parts_mut(at.as_ptr(), len).zeroize();
    }
}

/// Whether all of it could be locked.
#[must_use]
pub fn is_locked() -> bool {
    !ARENA.lock().refused
}

/// Locks all of it again: in the child of a fork, which inherits no locks.
pub fn lock_again() {
    let mut arena = ARENA.lock();
    arena.refused = false;
    for at in 0..arena.mapped.len() {
        let mapping = arena.mapped[at];
        arena.lock(mapping);
    }
}

/// Has the crypto library take its memory here from now on. Returns whether it does.
///
/// # Safety
/// Call it before anything else of this crate, in a process that uses the crypto library (aws-lc) through nothing else:
/// what it allocated before would be freed here.
#[must_use]
pub unsafe fn hold_crypto_library() -> bool {
    // SAFETY: the three belong together, keep what the C library promises of malloc, realloc and free, never call into the
    // crypto library, and never unwind.
    unsafe { aws_lc_sys::CRYPTO_set_mem_functions(Some(c_malloc), Some(c_realloc), Some(c_free)) == 1 }
}

extern "C" fn c_malloc(len: usize, _file: *const c_char, _line: c_int) -> *mut c_void {
    allocate(len).map_or(ptr::null_mut(), |at| at.as_ptr().cast())
}

unsafe extern "C" fn c_realloc(old: *mut c_void, len: usize, file: *const c_char, line: c_int) -> *mut c_void {
    let Some(old) = NonNull::new(old.cast::<u8>()) else { return c_malloc(len, file, line) };
    let Some(new) = allocate(len) else { return ptr::null_mut() };
    // SAFETY: the library gives back what it got here; both allocations are that long, and are two.
    unsafe {
        ptr::copy_nonoverlapping(old.as_ptr(), new.as_ptr(), len.min(len_of(old)));
        free(old);
    }
    new.as_ptr().cast()
}

unsafe extern "C" fn c_free(at: *mut c_void, _file: *const c_char, _line: c_int) {
    if let Some(at) = NonNull::new(at.cast()) {
        // SAFETY: the library gives back, once, what it got here.
        unsafe { free(at) };
    }
}

/// Bytes on pages of their own that are locked and not dumped. Wiped on drop, printed by nothing.
pub struct LockedBytes {
    at: Address,
    mapped_len: usize,
    len: usize,
}

// SAFETY: it owns its mapping as a `Vec` owns its buffer.
unsafe impl Send for LockedBytes {}
// SAFETY: as above; shared, it only gives out `&[u8]`.
unsafe impl Sync for LockedBytes {}

impl LockedBytes {
    /// `len` zeros.
    ///
    /// # Panics
    /// Without memory, as a `Vec` does.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let mapped_len = len.max(1);
        let at = ARENA.lock().map(mapped_len).expect("memory for a few pages");
        LockedBytes { at, mapped_len, len }
    }

    /// Forgets, and wipes, what is behind `len`.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            self[len..].zeroize();
            self.len = len;
        }
    }
}

impl From<&[u8]> for LockedBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut locked = LockedBytes::zeroed(bytes.len());
        locked.copy_from_slice(bytes);
        locked
    }
}

impl Deref for LockedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is ours, at least that long, and was zeroed by the kernel.
        unsafe { std::slice::from_raw_parts(self.at.0.as_ptr(), self.len) }
    }
}

impl DerefMut for LockedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.0.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for LockedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LockedBytes(…)")
    }
}

impl Drop for LockedBytes {
    fn drop(&mut self) {
        self.zeroize();
        ARENA.lock().unmap(self.at, self.mapped_len);
    }
}

#[cfg(test)]
mod tests;
