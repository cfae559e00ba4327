//! Devices: which ones there are, what they can do, and how a job is given to one. [`adapters`], [`Adapter`], [`Device`].
//!
//! The driver is found when the program runs. A thread of its own watches each open device, in the order of the jobs, and hands
//! their words over; it ends with the device. Any number of threads may give jobs to a device at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::GpuError;
use super::pending::Landing;
use super::pool::Pool;
use super::shader::{Kernel, Pipeline};
use crate::wait::block_on;

/// No buffer that kernels see is longer, also where a device allows it: 2 GiB − 1 is the limit of Vulkan and DX12.
pub const SHARD_LEN_MAX_BYTES: u64 = 1 << 30;
/// A device that takes longer for one job is taken for lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);

/// How a device is used. The defaults are meant for all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Longest buffer that holds a part of a segment, in bytes; a power of two, at most [`SHARD_LEN_MAX_BYTES`]. Smaller ones are
    /// for tests.
    pub shard_len_max_bytes: u64,
    /// Most bytes of free buffers that are kept for the next job.
    pub pool_len_max_bytes: u64,
    /// Most paths that go to the device at once; a larger batch is divided.
    pub batch_paths: u32,
    /// Most batches of one call that are under way at once.
    pub batches_in_flight: usize,
    /// So many hits have room at once; of more there is a second run.
    pub hits: u32,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions {
            shard_len_max_bytes: SHARD_LEN_MAX_BYTES,
            pool_len_max_bytes: 256 << 20,
            batch_paths: 1 << 18,
            batches_in_flight: 3,
            hits: 1 << 14,
        }
    }
}

/// What a driver says of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct AdapterFacts {
    /// Its name.
    pub name: String,
    /// `vulkan`, `metal` or `dx12`.
    pub backend: String,
    /// The driver, with its version where it says one.
    pub driver: String,
    /// It is a program on the processor that plays a device: right, and never faster.
    pub software: bool,
    /// Longest buffer that kernels can see, in bytes.
    pub binding_len_max_bytes: u64,
    /// Most buffers that a kernel can see at once.
    pub bindings_max: u32,
    /// Device and driver in one word: what was measured of one says nothing of another.
    pub id: String,
}

/// A device that a driver offers.
#[derive(Debug)]
pub struct Adapter {
    inner: wgpu::Adapter,
    facts: AdapterFacts,
}

/// All devices that drivers offer, software ones behind the others. None where there is no driver.
pub fn adapters() -> Vec<Adapter> {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    // Without validation layers, also in a debug build: kernels are tested against the processor's answers.
    descriptor.flags = wgpu::InstanceFlags::empty();
    let instance = wgpu::Instance::new(descriptor);
    let found = block_on(instance.enumerate_adapters(backends));
    let mut all: Vec<Adapter> = found.into_iter().map(|inner| Adapter { facts: facts_of(&inner), inner }).collect();
    all.sort_by_key(|adapter| adapter.facts.software);
    all
}

fn facts_of(adapter: &wgpu::Adapter) -> AdapterFacts {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let driver = format!("{} {}", info.driver, info.driver_info).trim().to_owned();
    let backend = info.backend.to_string();
    AdapterFacts {
        software: info.device_type == wgpu::DeviceType::Cpu,
        binding_len_max_bytes: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
        bindings_max: limits.max_storage_buffers_per_shader_stage,
        id: format!("{backend}:{:04x}:{:04x}:{}:{driver}", info.vendor, info.device, info.device_pci_bus_id),
        name: info.name,
        backend,
        driver,
    }
}

impl Adapter {
    /// What the driver says of it.
    pub fn facts(&self) -> &AdapterFacts {
        &self.facts
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`GpuError::Open`] with what the driver says.
    pub fn open(&self, options: &DeviceOptions) -> Result<Device, GpuError> {
        let limits = self.inner.limits();
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("adit"),
            required_limits: limits.clone(),
            // Segments lie in buffers of their own; large blocks to divide would only be more memory.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = block_on(self.inner.request_device(&descriptor));
        let open = |why: String| GpuError::Open { adapter: self.facts.name.clone(), why };
        let (device, queue) = opened.map_err(|e| open(e.to_string()))?;
        let (jobs, watched) = channel();
        let trouble = Arc::new(Trouble { adapter: self.facts.name.clone(), ..Trouble::default() });
        let (watcher, seen) = (device.clone(), trouble.clone());
        let watching = thread::Builder::new()
            .name("adit-gpu".into())
            .spawn(move || watch(&watcher, &seen, &watched))
            .map_err(|e| open(e.to_string()))?;
        let ending = Ending(Arc::new(Mutex::new(Some(watching))));
        let options = DeviceOptions {
            shard_len_max_bytes: shard_len(options, self.facts.binding_len_max_bytes),
            ..options.clone()
        };
        let pool = Arc::new(Pool::new(options.pool_len_max_bytes));
        report_to(&trouble, &device);
        let facts = self.facts.clone();
        let pipelines = Mutex::default();
        let groups_max = limits.max_compute_workgroups_per_dimension;
        Ok(Device(Arc::new(Inner {
            device,
            queue,
            facts,
            options,
            groups_max,
            pool,
            trouble,
            pipelines,
            jobs,
            ending: WaitedFor(ending),
        })))
    }
}

/// The longest power of two that options and device allow.
fn shard_len(options: &DeviceOptions, binding_len_max: u64) -> u64 {
    let most = options.shard_len_max_bytes.min(SHARD_LEN_MAX_BYTES).min(binding_len_max).max(4096);
    1 << most.ilog2()
}

/// What went wrong where nobody was waiting.
#[derive(Default)]
pub(super) struct Trouble {
    adapter: String,
    is_lost: AtomicBool,
    lost: Mutex<Option<String>>,
    refused: Mutex<Option<String>>,
}

fn report_to(trouble: &Arc<Trouble>, device: &wgpu::Device) {
    let of_loss = trouble.clone();
    device.set_device_lost_callback(move |reason, why| of_loss.lose(format!("{reason:?}: {why}")));
    let of_error = trouble.clone();
    device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
        of_error.refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e.to_string());
    }));
}

impl Trouble {
    fn lose(&self, why: String) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.is_lost.store(true, Relaxed);
    }

    fn lost(&self) -> Option<GpuError> {
        if !self.is_lost.load(Relaxed) {
            return None;
        }
        let why = self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
        Some(GpuError::Lost { adapter: self.adapter.clone(), why })
    }

    fn refused(&self, why: impl ToString) -> GpuError {
        GpuError::Refused { adapter: self.adapter.clone(), why: why.to_string() }
    }

    /// What is wrong with the device, if anything is.
    pub fn any(&self) -> Option<GpuError> {
        let refused = || self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.lost().or_else(|| refused().map(|why| self.refused(why)))
    }
}

/// A job that the watching thread waits for.
pub(super) struct Watched {
    pub index: wgpu::SubmissionIndex,
    pub landing: Arc<Landing>,
}

/// Waits for one job after the other. Ends when the device is dropped, which is none of its own: who drops it waits for this thread.
fn watch(device: &wgpu::Device, trouble: &Trouble, jobs: &Receiver<Watched>) {
    while let Ok(job) = jobs.recv() {
        let wait = wgpu::PollType::Wait { submission_index: Some(job.index), timeout: Some(ANSWER_TIME_MAX) };
        if let Err(e) = device.poll(wait) {
            trouble.lose(e.to_string());
        }
        // The words have landed in the call above, or another thread that waited has taken it upon itself to hand them over, and is
        // about to. Of a device that is in trouble they may never come.
        if let Some(trouble) = trouble.any() {
            job.landing.land(Err(trouble));
        }
    }
}

pub(super) struct Inner {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub facts: AdapterFacts,
    pub options: DeviceOptions,
    /// Most workgroups of one dimension of a dispatch.
    pub groups_max: u32,
    pub pool: Arc<Pool>,
    trouble: Arc<Trouble>,
    pub pipelines: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
    /// To the thread that waits for them, which ends when this is dropped.
    jobs: Sender<Watched>,
    /// Dropped behind all else.
    ending: WaitedFor,
}

/// The end of a device, for which whoever drops it waits. The thread that waits for jobs has the device, too, and is the last to give it back
/// to the driver: perhaps while the program ends, which unloads the driver under it. Then one run of tests in fifty crashed at its end.
struct WaitedFor(Ending);

impl Drop for WaitedFor {
    fn drop(&mut self) {
        // Whoever waits as well waits for this lock.
        let mut watching = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        // That thread itself, if it drops what a job held, goes on to its end.
        let other = watching.take_if(|watching| watching.thread().id() != thread::current().id());
        // If it has panicked it is over, too.
        let _ = other.map(thread::JoinHandle::join);
    }
}

/// The end of a device: when all is given back to its driver, and nothing of that runs any more.
#[derive(Clone, Debug)]
pub struct Ending(Arc<Mutex<Option<thread::JoinHandle<()>>>>);

impl Ending {
    /// Waits for it. A program that ends while a driver is at work may crash. It comes when the last [`Device`], and all that lies on it, has
    /// been dropped: who holds one of them waits for ever. Whoever drops the last one waits as well, so this is for jobs whose answers
    /// nobody waited for.
    pub fn wait(self) {
        let watching = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // If it has panicked it is over, too.
        let _ = watching.map(thread::JoinHandle::join);
    }
}

impl Inner {
    pub fn lost(&self) -> Option<GpuError> {
        self.trouble.lost()
    }

    pub fn refused(&self, why: impl ToString) -> GpuError {
        self.trouble.refused(why)
    }

    /// What is wrong with the device, if anything is.
    pub fn trouble(&self) -> Option<GpuError> {
        self.trouble.any()
    }

    /// Waits until the device has done a job, and all before it.
    pub fn wait_for(&self, index: wgpu::SubmissionIndex) -> Result<(), GpuError> {
        let wait = wgpu::PollType::Wait { submission_index: Some(index), timeout: Some(ANSWER_TIME_MAX) };
        if let Err(e) = self.device.poll(wait) {
            self.trouble.lose(e.to_string());
        }
        self.lost().map_or(Ok(()), Err)
    }

    /// A new buffer.
    pub fn allocate(&self, size: u64, usage: wgpu::BufferUsages, mapped: bool) -> Result<wgpu::Buffer, GpuError> {
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: mapped };
        let buffer = self.device.create_buffer(&descriptor);
        match block_on(memory.pop()) {
            None => self.trouble().map_or(Ok(buffer), Err),
            Some(_) => Err(GpuError::OutOfMemory { adapter: self.facts.name.clone(), bytes: size }),
        }
    }
}

/// An open device. Costs nothing to clone; it is closed when the last one, and all that lies on it, is dropped. Whoever drops it
/// waits for that, but not for jobs whose answers nobody waited for: these have what they use, and [`Ending::wait`] waits for them.
#[derive(Clone)]
pub struct Device(pub(super) Arc<Inner>);

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Device").field(&self.0.facts.name).finish()
    }
}

impl Device {
    /// Opens the device whose name contains `wanted` (in any case), or that has this number in [`adapters`].
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`], and as [`Adapter::open`].
    pub fn named(wanted: &str, options: &DeviceOptions) -> Result<Device, GpuError> {
        let all = adapters();
        let fits = |adapter: &&Adapter| adapter.facts.name.to_lowercase().contains(&wanted.to_lowercase());
        let by_number = wanted.parse().ok().and_then(|number: usize| all.get(number));
        let found = by_number.or_else(|| all.iter().find(fits));
        found.ok_or_else(|| GpuError::NoAdapter { wanted: wanted.to_owned() })?.open(options)
    }

    /// What the driver says of it.
    pub fn facts(&self) -> &AdapterFacts {
        &self.0.facts
    }

    /// How it is used; the length of shards as the device allows it.
    pub fn options(&self) -> &DeviceOptions {
        &self.0.options
    }

    /// Its end, which can be waited for.
    pub fn ending(&self) -> Ending {
        self.0.ending.0.clone()
    }

    /// Has a job waited for; false if nobody does any more.
    pub(super) fn watch(&self, job: Watched) -> bool {
        self.0.jobs.send(job).is_ok()
    }

    /// Why it is of no use any more, if that is so.
    pub fn lost(&self) -> Option<GpuError> {
        self.0.lost()
    }

    /// Gives the device back to the driver, as if it were lost: jobs under way and all later ones end with
    /// [`GpuError::Lost`].
    pub fn destroy(&self) {
        self.0.trouble.lose("it was given back".into());
        self.0.device.destroy();
    }
}
