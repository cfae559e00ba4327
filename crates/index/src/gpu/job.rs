//! One job for a device: what goes up, which kernels run over it, and what comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::GpuError;
use super::device::{Device, Watched};
use super::pending::{Landing, Words};
use super::pool::{Pooled, Use};
use super::shader::{Kernel, Pipeline, WORKGROUP_LEN};

/// A job while it is put together.
pub(super) struct Job {
    device: Device,
    encoder: wgpu::CommandEncoder,
    /// All that has to stay until the device is done with it.
    held: Vec<Pooled>,
}

/// Bytes in the device's memory that belong to a job.
pub(super) struct Part {
    buffer: Pooled,
    len: u64,
}

impl Part {
    pub fn binding(&self) -> wgpu::BindingResource<'_> {
        self.buffer.binding(self.len)
    }

    /// The first bytes of it only, from where a dynamic offset says.
    pub fn binding_of(&self, len: u64) -> wgpu::BindingResource<'_> {
        self.buffer.binding(len)
    }
}

impl Job {
    pub fn new(device: &Device) -> Result<Job, GpuError> {
        if let Some(trouble) = device.0.trouble() {
            return Err(trouble);
        }
        let encoder = device.0.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        Ok(Job { device: device.clone(), encoder, held: Vec::new() })
    }

    /// Room for `len` bytes. What is there first is what was left by another job.
    pub fn room(&mut self, what: &'static str, len: u64) -> Result<Part, GpuError> {
        let limit = self.device.0.facts.binding_len_max_bytes.min(2 * super::device::SHARD_LEN_MAX_BYTES - 4);
        if len > limit {
            return Err(GpuError::Unfit { what, needs: len, limit });
        }
        Ok(Part { buffer: Pooled::new(&self.device.0, Use::Work, len)?, len })
    }

    /// Room full of zeros.
    pub fn zeros(&mut self, what: &'static str, len: u64) -> Result<Part, GpuError> {
        let part = self.room(what, len)?;
        self.zero(&part, len);
        Ok(part)
    }

    /// Puts zeros into the first bytes of a part.
    pub fn zero(&mut self, part: &Part, len: u64) {
        self.encoder.clear_buffer(part.buffer.buffer(), 0, Some(len.next_multiple_of(4)));
    }

    /// Sends bytes up; zeros are added to the next multiple of four.
    pub fn send(&mut self, what: &'static str, pieces: &[&[u8]]) -> Result<Part, GpuError> {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let part = self.room(what, len.max(4))?;
        let padded = len.next_multiple_of(4).max(4);
        let staging = Pooled::new(&self.device.0, Use::Upload, padded)?;
        staging.fill(pieces, padded as usize)?;
        self.encoder.copy_buffer_to_buffer(staging.buffer(), 0, part.buffer.buffer(), 0, padded);
        self.held.push(staging);
        Ok(part)
    }

    /// The numbers that a kernel gets as its parameters.
    pub fn numbers(&mut self, numbers: &[u32]) -> Result<Part, GpuError> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.send("parameters", &[&bytes])
    }

    /// Runs a kernel with an invocation for each of `items`, over the job's own parts.
    pub fn run(
        &mut self,
        kernel: Kernel,
        segments: &[&wgpu::BindGroup],
        parts: &[&Part],
        items: u64,
    ) -> Result<(), GpuError> {
        let pipeline = self.device.pipeline(kernel);
        let own = self.bind(&pipeline, parts.iter().map(|part| part.binding()));
        self.run_bound(&pipeline, segments, &own, &[(items, 0)], false)
    }

    /// The job's own parts as a kernel sees them.
    pub fn bind<'p>(
        &self,
        pipeline: &Pipeline,
        parts: impl Iterator<Item = wgpu::BindingResource<'p>>,
    ) -> wgpu::BindGroup {
        let entries: Vec<_> =
            parts.enumerate().map(|(at, resource)| wgpu::BindGroupEntry { binding: at as u32, resource }).collect();
        let layout = pipeline.own_layout();
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries };
        self.device.0.device.create_bind_group(&descriptor)
    }

    /// Runs a kernel once for each of `runs`: how many items, and where its parameters begin.
    pub fn run_bound(
        &mut self,
        pipeline: &Pipeline,
        segments: &[&wgpu::BindGroup],
        own: &wgpu::BindGroup,
        runs: &[(u64, u32)],
        offsets: bool,
    ) -> Result<(), GpuError> {
        let groups_max = u64::from(self.device.0.groups_max);
        let mut pass = self.encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(pipeline.of());
        for (at, segment) in segments.iter().enumerate() {
            pass.set_bind_group(at as u32, *segment, &[]);
        }
        for (items, offset) in runs {
            let groups = items.div_ceil(u64::from(WORKGROUP_LEN));
            let rows = groups.div_ceil(groups_max);
            if rows > groups_max || *items > u64::from(u32::MAX) {
                return Err(GpuError::Unfit { what: "items of one run", needs: *items, limit: u32::MAX.into() });
            }
            let dynamic: &[u32] = if offsets { std::slice::from_ref(offset) } else { &[] };
            pass.set_bind_group(segments.len() as u32, own, dynamic);
            pass.dispatch_workgroups(groups.div_ceil(rows.max(1)) as u32, rows as u32, 1);
        }
        Ok(())
    }

    /// Gives a job to the device that only brings something up, and waits for it.
    pub fn bring_up(self) -> Result<(), GpuError> {
        let inner = self.device.0.clone();
        let index = inner.queue.submit([self.encoder.finish()]);
        inner.wait_for(index)?;
        inner.trouble().map_or(Ok(()), Err)
    }

    /// Gives the job to the device. The first `len` bytes of `part` come back, and `keep` stays until they do.
    pub fn submit(mut self, part: Part, len: u64, keep: Vec<Part>) -> Result<Arc<Landing>, GpuError> {
        let len = len.next_multiple_of(4).max(4);
        let answer = Pooled::new(&self.device.0, Use::Answer, len)?;
        self.encoder.copy_buffer_to_buffer(part.buffer.buffer(), 0, answer.buffer(), 0, len);
        let inner = self.device.0.clone();
        let index = inner.queue.submit([self.encoder.finish()]);
        let landing = Arc::new(Landing::default());
        let buffer = answer.buffer().clone();
        // Dropped when the words have landed: from then on another job may have the buffers.
        let held = (self.held, keep, part, answer);
        let lands = landing.clone();
        let weak = Arc::downgrade(&inner);
        buffer.clone().map_async(wgpu::MapMode::Read, ..len, move |mapped| {
            let words = match (mapped, weak.upgrade().and_then(|inner| inner.trouble())) {
                (_, Some(trouble)) => Err(trouble),
                (Ok(()), None) => read(&buffer, len),
                (Err(e), None) => Err(GpuError::Refused { adapter: String::new(), why: e.to_string() }),
            };
            buffer.unmap();
            drop(held);
            lands.land(words);
        });
        let watched = Watched { index, landing: landing.clone() };
        if !self.device.watch(watched) {
            let why = "the thread that watches it has ended".to_owned();
            return Err(GpuError::Lost { adapter: inner.facts.name.clone(), why });
        }
        JOBS.fetch_add(1, Relaxed);
        Ok(landing)
    }
}

/// How many jobs devices were given in this process.
static JOBS: AtomicU32 = AtomicU32::new(0);

/// How many jobs devices were given in this process, up to 2^32 and then from 0: what tests and statistics ask for.
pub fn jobs_submitted() -> u32 {
    JOBS.load(Relaxed)
}

fn read(buffer: &wgpu::Buffer, len: u64) -> Words {
    let refused = |e: wgpu::MapRangeError| GpuError::Refused { adapter: String::new(), why: e.to_string() };
    let view = buffer.get_mapped_range(..len).map_err(refused)?;
    Ok(view.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}
