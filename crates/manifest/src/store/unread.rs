//! Objects that could not be read last: what `user.adit.state` calls `error`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use adit_core::error::{ErrorKind, FsError};
use parking_lot::Mutex;

use crate::cache::ObjectId;

/// Objects that are remembered: some MiB of memory. Of more, the rest counts as not fetched yet.
const OBJECTS_MAX: usize = 1 << 16;

/// Objects whose last reader got an error that is about the object, and not about the way to it.
#[derive(Default)]
pub(super) struct Unread {
    objects: Mutex<HashSet<ObjectId>>,
    /// How many, for who would take one out: mostly there is none.
    count: AtomicUsize,
}

impl Unread {
    /// Notes how a read of an object ended. That a network is silent says nothing of the object.
    pub fn note(&self, id: ObjectId, error: Option<&FsError>) {
        let Some(error) = error else {
            if self.count.load(Ordering::Relaxed) > 0 {
                let objects = &mut *self.objects.lock();
                objects.remove(&id);
                self.count.store(objects.len(), Ordering::Relaxed);
            }
            return;
        };
        if matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::PermissionDenied) {
            let objects = &mut *self.objects.lock();
            if objects.len() < OBJECTS_MAX {
                objects.insert(id);
                self.count.store(objects.len(), Ordering::Relaxed);
            }
        }
    }

    /// Whether it could not be read last.
    pub fn has(&self, id: ObjectId) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.objects.lock().contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ContentHash;

    #[test]
    fn what_could_not_be_read_is_kept_until_it_can() {
        let unread = Unread::default();
        let [one, other] = [1, 2].map(|byte| ObjectId { hash: ContentHash([byte; 16]), len: 5 });
        unread.note(one, None);
        unread.note(one, Some(&FsError::new(ErrorKind::Network)));
        assert!(!unread.has(one));
        unread.note(one, Some(&FsError::new(ErrorKind::Io)));
        unread.note(one, Some(&FsError::new(ErrorKind::TimedOut)));
        assert!(unread.has(one) && !unread.has(other));
        unread.note(other, None);
        assert!(unread.has(one));
        unread.note(one, None);
        assert!(!unread.has(one));
        for number in 0..=OBJECTS_MAX as u64 {
            let id = ObjectId { hash: ContentHash([9; 16]), len: number };
            unread.note(id, Some(&FsError::new(ErrorKind::Corrupt)));
        }
        assert_eq!(unread.objects.lock().len(), OBJECTS_MAX);
    }
}
