//! So many at a time, the others wait.

use parking_lot::{Condvar, Mutex};

/// Turns to be taken, and given back.
pub(crate) struct Turns {
    left: Mutex<u32>,
    given_back: Condvar,
}

impl Turns {
    /// So many.
    pub fn new(count: u32) -> Turns {
        Turns { left: Mutex::new(count), given_back: Condvar::new() }
    }

    /// Waits until there is one.
    pub fn take(&self) -> Turn<'_> {
        let mut left = self.left.lock();
        while *left == 0 {
            self.given_back.wait(&mut left);
        }
        *left -= 1;
        Turn(self)
    }
}

/// Given back when it is dropped.
pub(crate) struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.left.lock() += 1;
        self.0.given_back.notify_one();
    }
}
