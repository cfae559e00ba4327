//! What can be wrong with an object, and how one reader's error becomes that of those that waited for it.

use std::time::Duration;

use adit_core::error::{ErrorKind, FsError};

use super::id::ObjectId;
use crate::format::ContentHash;

/// What is wrong with an object. The cause of an [`FsError`]; that names the object.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ObjectFault {
    /// It came with other content than its hash says, and so it did when it was fetched again.
    #[error(
        "the store holds content with the xxh128 {found} under this name, also when asked again; \
         upload the object again, or use a manifest that does not need it"
    )]
    Mismatch {
        /// The hash of what came.
        found: ContentHash,
    },
    /// The store gave less than was asked for.
    #[error("the store gave {got} of {expected} bytes; compare the object's length in the store with {len}")]
    Short {
        /// Bytes that came.
        got: u64,
        /// Bytes that were asked for.
        expected: u64,
        /// How long the object is by its manifest.
        len: u64,
    },
    /// The store gave more than was asked for.
    #[error("the store gave more than the {expected} bytes that were asked for")]
    Long {
        /// Bytes that were asked for.
        expected: u64,
    },
    /// The store has an object of another length under this name.
    #[error("the store has {found} bytes under this name, and it should be {expected}; upload the object again")]
    Length {
        /// Its length in bytes.
        found: u64,
        /// How long the object is by its manifest.
        expected: u64,
    },
    /// The store has no such object.
    #[error(
        "it is not in the store ({store}{}); upload it again, or check that this is the store of the manifest",
        .answer.as_ref().map_or(String::new(), |answer| format!(": {answer}"))
    )]
    Missing {
        /// The store.
        store: String,
        /// What the store said, if it said why: that there is no such bucket, for one.
        answer: Option<String>,
    },
    /// Somebody else fetches the same bytes, and for so long nothing came.
    #[error("another reader waits for the same bytes, and none came for {} s", .waited.as_secs())]
    Waited {
        /// How long.
        waited: Duration,
    },
    /// Somebody else's fetch of the same bytes ended without a word.
    #[error("the fetch that this waited for has ended without a result")]
    Abandoned,
}

impl ObjectFault {
    /// As the error of a read of `id`.
    pub(super) fn error(self, id: &ObjectId) -> FsError {
        let kind = match self {
            ObjectFault::Waited { .. } => ErrorKind::TimedOut,
            ObjectFault::Abandoned | ObjectFault::Missing { .. } => ErrorKind::Io,
            _ => ErrorKind::Corrupt,
        };
        FsError::new(kind).because(self).on("read object", id)
    }
}

/// An error that can be told to several.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    kind: ErrorKind,
    cause: Cause,
}

#[derive(Clone, Debug)]
enum Cause {
    Fault(ObjectFault),
    Text(String),
}

impl Failure {
    pub fn of(e: &FsError) -> Failure {
        let cause = match e.cause().and_then(|cause| cause.downcast_ref::<ObjectFault>()) {
            Some(fault) => Cause::Fault(fault.clone()),
            None => Cause::Text(e.to_string()),
        };
        Failure { kind: e.kind(), cause }
    }

    /// Whether somebody wanted no more of it.
    pub fn is_interrupted(&self) -> bool {
        self.kind == ErrorKind::Interrupted
    }

    pub fn error(&self, id: &ObjectId) -> FsError {
        let e = FsError::new(self.kind).on("read object", id);
        match &self.cause {
            Cause::Fault(fault) => e.because(fault.clone()),
            Cause::Text(text) => e.because(text.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_is_told_what_happened() {
        let id = ObjectId { hash: ContentHash::of(b"x"), len: 1 };
        let fault = ObjectFault::Short { got: 1, expected: 2, len: 3 };
        let told = Failure::of(&fault.clone().error(&id)).error(&id);
        assert_eq!(told.kind(), ErrorKind::Corrupt);
        assert_eq!(told.subject(), Some(id.to_string().as_str()));
        assert_eq!(told.cause().and_then(|c| c.downcast_ref()), Some(&fault));
        let other = FsError::new(ErrorKind::Network).on("get", "key").because("no route");
        let told = Failure::of(&other).error(&id);
        assert_eq!(told.kind(), ErrorKind::Network);
        assert!(told.to_string().ends_with("get key: network failure: no route"), "{told}");
    }
}
