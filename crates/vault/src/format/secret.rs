//! Memory for long-lived keys: own pages, locked against swapping, left out of core dumps, wiped on drop.
//!
//! [`Locked`] is a box for one value. Locking is best effort: where `RLIMIT_MEMLOCK` forbids it, the value is still
//! wiped and excluded from dumps. It protects the bytes *inside* the value only, so `T` must hold its keys inline.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;

use zeroize::Zeroize;

/// Pages are locked and advised whole; 4 KiB divides every page size in use, and larger pages only share.
const FALLBACK_PAGE_BYTES: usize = 4096;

/// One value on pages of its own that are not swapped and not dumped. Wiped after the value's own drop.
pub(crate) struct Locked<T> {
    value: NonNull<T>,
    layout: Layout,
}

// SAFETY: `Locked` owns its value like a `Box` does and adds no shared state.
unsafe impl<T: Send> Send for Locked<T> {}
// SAFETY: as above; only `&T` is handed out.
unsafe impl<T: Sync> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// Moves `value` into locked pages. The caller wipes what remains of it on the stack, if that matters.
    pub(crate) fn new(value: T) -> Self {
        let page = page_bytes();
        let size = size_of::<T>().max(1).next_multiple_of(page);
        let layout =
            Layout::from_size_align(size, page.max(align_of::<T>())).expect("a few pages fit the address space");
        // SAFETY: the layout has a nonzero size.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(value_at) = NonNull::new(raw.cast::<T>()) else { handle_alloc_error(layout) };
        // SAFETY: the range is exactly this allocation, page-aligned; both calls only set attributes of its pages.
        // Failure is tolerated: see the module's first paragraph.
        unsafe {
            libc::mlock(raw.cast(), size);
            libc::madvise(raw.cast(), size, libc::MADV_DONTDUMP);
        }
        // SAFETY: fresh, large enough and aligned for T.
        unsafe { value_at.as_ptr().write(value) };
        Self { value: value_at, layout }
    }
}

impl<const N: usize> Locked<[u8; N]> {
    /// Key bytes written where they stay, so that no copy is left on the stack.
    pub(crate) fn try_fill<E>(fill: impl FnOnce(&mut [u8; N]) -> Result<(), E>) -> Result<Self, E> {
        let mut locked = Self::new([0; N]);
        // SAFETY: this is the only reference to a value that `locked` owns.
        fill(unsafe { locked.value.as_mut() })?;
        Ok(locked)
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: initialised in `new`, freed only in `drop`.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        let raw = self.value.as_ptr().cast::<u8>();
        let size = self.layout.size();
        // SAFETY: the value is initialised and dropped once; after that its bytes are plain memory of this
        // allocation, which was zeroed when it was made and so is initialised throughout.
        unsafe {
            self.value.as_ptr().drop_in_place();
            std::slice::from_raw_parts_mut(raw, size).zeroize();
            libc::madvise(raw.cast(), size, libc::MADV_DODUMP);
            libc::munlock(raw.cast(), size);
            dealloc(raw, self.layout);
        }
    }
}

fn page_bytes() -> usize {
    // SAFETY: sysconf reads a constant of the system.
    let found = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    match usize::try_from(found) {
        Ok(size) if size.is_power_of_two() => size,
        _ => FALLBACK_PAGE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// The flags of the mapping that holds this address, as `/proc/self/smaps` has them.
    fn flags_at(address: usize) -> Vec<String> {
        let map = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut here = false;
        for line in map.lines() {
            let mut words = line.split_ascii_whitespace();
            let first = words.next().unwrap_or_default();
            if let Some((start, end)) = first.split_once('-') {
                let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).unwrap());
                here = (start..end).contains(&address);
            } else if here && first == "VmFlags:" {
                return words.map(str::to_owned).collect();
            }
        }
        panic!("{address:x} is not mapped");
    }

    #[test]
    fn is_locked_and_left_out_of_dumps_page_by_page() {
        let locked = Locked::new([7u8; 5000]);
        let at = std::ptr::from_ref(&*locked).addr();
        for address in [at, at + 4999] {
            let flags = flags_at(address);
            assert!(["lo", "dd"].iter().all(|flag| flags.iter().any(|f| f == flag)), "{flags:?}");
        }
        let beside = Box::new(7u8);
        assert!(!flags_at(std::ptr::from_ref(&*beside).addr()).iter().any(|flag| flag == "lo"));
    }

    #[test]
    fn holds_and_drops_its_value_once() {
        let witness = Arc::new(());
        let locked = Locked::new((witness.clone(), [7u8; 5000]));
        assert_eq!(locked.1[4999], 7);
        assert_eq!(std::ptr::from_ref(&*locked).addr() % page_bytes(), 0);
        assert_eq!(Arc::strong_count(&witness), 2);
        drop(locked);
        assert_eq!(Arc::strong_count(&witness), 1);
    }
}
