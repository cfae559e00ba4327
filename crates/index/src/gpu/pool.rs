//! Buffers that are used again: making one costs a device more than many a job takes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::GpuError;
use super::device::Inner;

/// Smallest buffer, in bytes.
const LEN_MIN_BYTES: u64 = 4096;

/// What a buffer is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Use {
    /// The processor writes to it, the device copies from it.
    Upload,
    /// Kernels read and write it.
    Work,
    /// The device copies to it, the processor reads it.
    Answer,
}

impl Use {
    fn usages(self) -> wgpu::BufferUsages {
        use wgpu::BufferUsages as U;
        match self {
            Use::Upload => U::MAP_WRITE | U::COPY_SRC,
            Use::Work => U::STORAGE | U::UNIFORM | U::COPY_DST | U::COPY_SRC,
            Use::Answer => U::MAP_READ | U::COPY_DST,
        }
    }
}

/// Free buffers by use and length. Those for uploads are mapped.
pub(super) struct Pool {
    free: Mutex<Free>,
    kept_max_bytes: u64,
}

#[derive(Default)]
struct Free {
    buffers: HashMap<(Use, u64), Vec<wgpu::Buffer>>,
    len_bytes: u64,
}

impl Pool {
    pub fn new(kept_max_bytes: u64) -> Pool {
        Pool { free: Mutex::default(), kept_max_bytes }
    }

    /// The length of the buffer that one of `len` bytes gets: the next power of two, or half of one above.
    pub fn class(len: u64) -> u64 {
        let class = len.max(LEN_MIN_BYTES).next_power_of_two();
        if len <= class / 4 * 3 && class > LEN_MIN_BYTES { class / 4 * 3 } else { class }
    }

    fn take(&self, of: Use, class: u64) -> Option<wgpu::Buffer> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = free.buffers.get_mut(&(of, class))?.pop()?;
        free.len_bytes -= class;
        Some(buffer)
    }

    fn put(&self, of: Use, buffer: wgpu::Buffer) {
        let class = buffer.size();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // What is too much is dropped, and the device has its memory again.
        if free.len_bytes + class <= self.kept_max_bytes {
            free.len_bytes += class;
            free.buffers.entry((of, class)).or_default().push(buffer);
        }
    }
}

/// A buffer that goes back to its pool. What is in it is what the last job left there.
pub(super) struct Pooled {
    of: Use,
    buffer: Option<wgpu::Buffer>,
    home: Arc<Inner>,
}

impl Pooled {
    /// One of at least `len` bytes.
    pub fn new(home: &Arc<Inner>, of: Use, len: u64) -> Result<Pooled, GpuError> {
        let class = Pool::class(len);
        let buffer = match home.pool.take(of, class) {
            Some(buffer) => buffer,
            None => home.allocate(class, of.usages(), of == Use::Upload)?,
        };
        Ok(Pooled { of, buffer: Some(buffer), home: home.clone() })
    }

    pub fn buffer(&self) -> &wgpu::Buffer {
        self.buffer.as_ref().expect("it is taken out only when it goes home")
    }

    /// Writes pieces into one for uploads, zeros behind them up to `padded` bytes, and gives it to the device.
    pub fn fill(&self, pieces: &[&[u8]], padded: usize) -> Result<(), GpuError> {
        {
            let mut view = self.buffer().get_mapped_range_mut(..padded as u64).map_err(|e| self.home.refused(e))?;
            let mut at = 0;
            for piece in pieces {
                view.slice(at..at + piece.len()).copy_from_slice(piece);
                at += piece.len();
            }
            view.slice(at..padded).fill(0);
        }
        self.buffer().unmap();
        Ok(())
    }

    /// As a binding of its first `len` bytes.
    pub fn binding(&self, len: u64) -> wgpu::BindingResource<'_> {
        let size = std::num::NonZeroU64::new(len.next_multiple_of(4).max(4));
        wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: self.buffer(), offset: 0, size })
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        if self.home.lost().is_some() {
            return;
        }
        if self.of != Use::Upload {
            return self.home.pool.put(self.of, buffer);
        }
        // It is mapped again when the device has read it, and free only then.
        let (pool, again) = (Arc::downgrade(&self.home.pool), buffer.clone());
        buffer.map_async(wgpu::MapMode::Write, .., move |mapped| {
            if let (Ok(()), Some(pool)) = (mapped, pool.upgrade()) {
                pool.put(Use::Upload, again);
            }
        });
    }
}
