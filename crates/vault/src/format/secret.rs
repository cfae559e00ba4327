//! [`Locked`]: a box for one value with keys, in memory that is locked, not dumped, and wiped ([`crate::memory`]).
//!
//! It protects the bytes *inside* the value only, so `T` must hold its keys inline.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;

use crate::memory;

/// One value in locked memory. Wiped after the value's own drop.
pub(crate) struct Locked<T> {
    value: NonNull<T>,
}

// SAFETY: `Locked` owns its value like a `Box` does and adds no shared state.
unsafe impl<T: Send> Send for Locked<T> {}
// SAFETY: as above; only `&T` is handed out.
unsafe impl<T: Sync> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// Moves `value` into locked memory. The caller wipes what remains of it on the stack, if that matters.
    pub(crate) fn new(value: T) -> Self {
        const { assert!(size_of::<T>() <= memory::ALLOCATION_MAX_BYTES && align_of::<T>() <= 16) };
        let Some(at) = memory::allocate(size_of::<T>()) else { handle_alloc_error(Layout::new::<T>()) };
        let at = at.cast::<T>();
        // SAFETY: fresh, large enough and aligned for T.
        unsafe { at.write(value) };
        Self { value: at }
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
        // SAFETY: the value is initialised and dropped once; its memory comes from `allocate` and is given back once.
        unsafe {
            self.value.drop_in_place();
            memory::free(self.value.cast());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn holds_and_drops_its_value_once() {
        let witness = Arc::new(());
        let locked = Locked::new((witness.clone(), [7u8; 3000]));
        assert_eq!(locked.1[2999], 7);
        assert_eq!(Arc::strong_count(&witness), 2);
        drop(locked);
        assert_eq!(Arc::strong_count(&witness), 1);
    }
}
