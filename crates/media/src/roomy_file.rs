//! A file for which somebody makes room where its disk is full.

use std::io;

use adit_core::media::BlockFile;

/// How often room is made for one call: what others write meanwhile may take what was made.
const ROUNDS_MAX: u32 = 4;

/// Makes room for so many bytes; whether there is more than before.
type MakeRoom = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// Tells how many bytes could be made free, about.
type Evictable = Box<dyn Fn() -> u64 + Send + Sync>;

/// A [`BlockFile`] whose writes are tried again when there was no space for them, after room was made. Only when none can be made do they fail.
pub struct RoomyFile<F> {
    inner: F,
    make_room: MakeRoom,
    evictable: Evictable,
}

impl<F: BlockFile> RoomyFile<F> {
    /// `make_room` is asked for so many bytes, by whatever thread writes, and says whether another try is worth it; `evictable` says how many there
    /// are to be had in that way.
    pub fn new(
        inner: F,
        make_room: impl Fn(u64) -> bool + Send + Sync + 'static,
        evictable: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        RoomyFile { inner, make_room: Box::new(make_room), evictable: Box::new(evictable) }
    }

    fn with_room(&self, bytes: u64, call: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut result = call();
        for _ in 0..ROUNDS_MAX {
            let is_full = |e: &io::Error| matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            if !result.as_ref().is_err_and(is_full) || !(self.make_room)(bytes) {
                break;
            }
            result = call();
        }
        result
    }
}

impl<F: BlockFile> BlockFile for RoomyFile<F> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.with_room(bytes.len() as u64, || self.inner.write_at(offset, bytes))
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with_room(0, || self.inner.set_len(len))
    }

    fn sync(&self) -> io::Result<()> {
        // After a failed one nothing is known, and a second says nothing.
        self.inner.sync()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.punch(offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.with_room(len, || self.inner.allocate(offset, len))
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        self.inner.start_writeback(offset, len);
    }

    fn host_room_bytes(&self) -> u64 {
        self.inner.host_room_bytes().saturating_add((self.evictable)())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.inner.try_lock()
    }
}
