//! A segment in the memory of a device: [`Resident`]. The bytes are the file's own, section behind section, divided into shards of
//! the length that kernels can see at once.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::GpuError;
use super::device::{Device, Inner};
use super::pool::{Pooled, Use};
use super::shader::Division;
use crate::layout::tables::home_buckets;
use crate::layout::{ALIGN_BYTES, DEPTH_MAX, Section};
use crate::segment::Segment;

/// So many bytes go up at once.
const CHUNK_LEN_BYTES: u64 = 8 << 20;
/// So many chunks may be under way.
const CHUNKS_IN_FLIGHT: usize = 4;
/// Kernels count words of a segment in 32 bits.
const ADDRESS_MAX_BYTES: u64 = 16 << 30;
/// Storage buffers that a kernel needs beside the shards.
const OTHER_BINDINGS: u32 = 6;

/// What lies where in the shards: `Sections` of the kernels.
const PLACES: usize = 16;

/// Which bytes of a segment a kernel needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Share {
    /// All that names, paths and lookups need.
    Tree,
    /// Sizes, modes and hashes of content.
    Content,
}

impl Share {
    fn sections(self) -> &'static [(Section, usize)] {
        match self {
            Share::Tree => &[
                (Section::Parents, 1),
                (Section::NameLengths, 2),
                (Section::NamePositions, 3),
                (Section::Modes, 4),
                (Section::Sizes, 5),
                (Section::Names, 6),
                (Section::Buckets, 8),
                (Section::DirectoryRanks, 10),
                (Section::DirectoryPositions, 11),
                (Section::DirectoryPaths, 12),
            ],
            Share::Content => &[(Section::Modes, 4), (Section::Sizes, 5), (Section::Hashes, 13)],
        }
    }
}

impl Share {
    fn len_of(self, segment: &Segment) -> u64 {
        let is_of_it = |of: &Section| self.sections().iter().any(|(section, _)| section == of);
        segment.sections().filter(|(section, _)| is_of_it(section)).map(|(_, len)| len).sum()
    }
}

/// Some sections of a segment on a device.
pub(super) struct Shards {
    pub division: Division,
    pub group: wgpu::BindGroup,
    len: u64,
}

/// A segment whose columns lie on a device. Its bytes were compared with their checksums on the way.
///
/// Costs nothing to clone. What it takes there is given back when the last one is dropped, and no job needs it any more.
#[derive(Clone)]
pub struct Resident(pub(super) Arc<Held>);

pub(super) struct Held {
    pub device: Device,
    pub segment: Arc<Segment>,
    pub tree: Shards,
    content: Mutex<Option<Arc<Shards>>>,
    pub levels: Vec<Range<u32>>,
    upload_time: Duration,
}

impl std::fmt::Debug for Resident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resident").field("device", &self.0.device).field("segment", &self.0.segment).finish()
    }
}

impl Resident {
    /// Brings a segment up: reads it once, and compares it with its checksums.
    ///
    /// # Errors
    /// [`GpuError::Unfit`] if it is too long for what kernels can see, [`GpuError::OutOfMemory`], [`GpuError::Lost`];
    /// [`GpuError::Segment`] where it is damaged.
    pub fn new(device: &Device, segment: Arc<Segment>) -> Result<Resident, GpuError> {
        let begun = Instant::now();
        let tree = Shards::new(device, &segment, Share::Tree)?;
        let upload_time = begun.elapsed();
        let levels = levels(&segment)?;
        let content = Mutex::default();
        Ok(Resident(Arc::new(Held { device: device.clone(), segment, tree, content, levels, upload_time })))
    }

    /// Where it lies.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// What lies there.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.0.segment
    }

    /// How many bytes of the device it takes, without hashes of content.
    pub fn len_bytes(&self) -> u64 {
        self.0.tree.len
    }

    /// How long it took to bring it up, checksums included.
    pub fn upload_time(&self) -> Duration {
        self.0.upload_time
    }

    /// How many bytes of a segment would go up for questions about names and paths.
    pub fn len_of(segment: &Segment) -> u64 {
        Share::Tree.len_of(segment)
    }

    /// How many bytes more go up with the first question about content.
    pub fn content_len_of(segment: &Segment) -> u64 {
        Share::Content.len_of(segment)
    }

    /// Whether what questions about content need is there already.
    pub fn has_content(&self) -> bool {
        self.0.content.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// What questions about content need: brought up when the first one comes.
    pub(super) fn content(&self) -> Result<Arc<Shards>, GpuError> {
        let mut content = self.0.content.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shards) = &*content {
            return Ok(shards.clone());
        }
        let shards = Arc::new(Shards::new(&self.0.device, &self.0.segment, Share::Content)?);
        *content = Some(shards.clone());
        Ok(shards)
    }
}

/// The nodes of each level of the tree.
fn levels(segment: &Segment) -> Result<Vec<Range<u32>>, GpuError> {
    let columns = segment.columns()?;
    let parents = columns.parents();
    let mut levels: Vec<Range<u32>> = std::iter::once(0..1).collect();
    let mut end = 1u32;
    while end < columns.len() {
        let rest = &parents[end as usize..];
        let count = rest.partition_point(|parent| u32::from_le_bytes(*parent) < end) as u32;
        if count == 0 || levels.len() > DEPTH_MAX {
            return Err(columns.damaged(end).into());
        }
        levels.push(end..end + count);
        end += count;
    }
    Ok(levels)
}

impl Shards {
    fn new(device: &Device, segment: &Segment, share: Share) -> Result<Shards, GpuError> {
        let wanted: Vec<Section> = share.sections().iter().map(|(section, _)| *section).collect();
        segment.check_sections(&wanted)?;
        let mut places = [0u32; PLACES];
        places[0] = segment.len();
        // Tables are there all, or not at all.
        let has_tables =
            Section::PATH_TABLES.iter().all(|table| segment.sections().any(|(section, _)| section == *table));
        if has_tables {
            places[9] = home_buckets(segment.len());
        }
        let mut pieces = Vec::new();
        let mut len = 0u64;
        for (section, place) in share.sections() {
            let bytes = segment.section(*section);
            places[*place] = word(len)?;
            if *section == Section::Names {
                places[7] = word(bytes.len().div_ceil(4) as u64 * 4)?;
            }
            pieces.push((len, bytes));
            len = (len + bytes.len() as u64).next_multiple_of(ALIGN_BYTES);
        }
        let shard_len = device.options().shard_len_max_bytes;
        let count = len.div_ceil(shard_len).max(1);
        let room = u64::from(device.facts().bindings_max.saturating_sub(OTHER_BINDINGS));
        if count > room {
            return Err(GpuError::Unfit { what: "shards of a segment", needs: count, limit: room });
        }
        let division = Division { shards: count as u32, shift: (shard_len / 4).ilog2() };
        let buffers = upload(device, &pieces, len, shard_len)?;
        let group = bind(device, division, &buffers, &places)?;
        Ok(Shards { division, group, len })
    }
}

/// A place in words, which kernels count in 32 bits.
fn word(at: u64) -> Result<u32, GpuError> {
    let too_long = || GpuError::Unfit { what: "bytes of a segment", needs: at, limit: ADDRESS_MAX_BYTES };
    u32::try_from(at / 4).map_err(|_| too_long())
}

fn bind(
    device: &Device,
    division: Division,
    buffers: &[wgpu::Buffer],
    places: &[u32; PLACES],
) -> Result<wgpu::BindGroup, GpuError> {
    let bytes: Vec<u8> = places.iter().flat_map(|place| place.to_le_bytes()).collect();
    let usages = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
    let sections = device.0.allocate(bytes.len() as u64, usages, false)?;
    device.0.queue.write_buffer(&sections, 0, &bytes);
    let entries: Vec<_> = buffers
        .iter()
        .chain([&sections])
        .enumerate()
        .map(|(at, buffer)| wgpu::BindGroupEntry { binding: at as u32, resource: buffer.as_entire_binding() })
        .collect();
    let layout = device.segment_layout(division);
    let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries };
    let group = device.0.device.create_bind_group(&descriptor);
    device.0.trouble().map_or(Ok(group), Err)
}

/// Brings pieces up, each to its place. What lies between them is zero, as all new memory of a device.
fn upload(device: &Device, pieces: &[(u64, &[u8])], len: u64, shard_len: u64) -> Result<Vec<wgpu::Buffer>, GpuError> {
    let usages = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
    let mut shards = Vec::new();
    let mut left = len.max(ALIGN_BYTES);
    while left > 0 {
        let own = left.min(shard_len);
        shards.push(device.0.allocate(own, usages, false)?);
        left -= own;
    }
    let mut flying = Vec::new();
    for (start, bytes) in pieces {
        let mut done = 0u64;
        while done < bytes.len() as u64 {
            let at = start + done;
            let room = shard_len - at % shard_len;
            let own = (bytes.len() as u64 - done).min(CHUNK_LEN_BYTES).min(room);
            let chunk = &bytes[done as usize..(done + own) as usize];
            flying.push(send_chunk(&device.0, chunk, &shards[(at / shard_len) as usize], at % shard_len)?);
            done += own;
            if flying.len() >= CHUNKS_IN_FLIGHT {
                settle(&device.0, &mut flying)?;
            }
        }
    }
    settle(&device.0, &mut flying)?;
    Ok(shards)
}

type Chunk = (wgpu::SubmissionIndex, Pooled);

/// Sends bytes to a place of a shard, which is a multiple of four. Up to three zeros go behind them.
fn send_chunk(inner: &Arc<Inner>, chunk: &[u8], shard: &wgpu::Buffer, at: u64) -> Result<Chunk, GpuError> {
    let padded = chunk.len().next_multiple_of(4);
    let staging = Pooled::new(inner, Use::Upload, padded as u64)?;
    staging.fill(&[chunk], padded)?;
    let mut encoder = inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(staging.buffer(), 0, shard, at, padded as u64);
    let index = inner.queue.submit([encoder.finish()]);
    inner.trouble().map_or(Ok((index, staging)), Err)
}

/// Waits for all chunks that are under way.
fn settle(inner: &Arc<Inner>, flying: &mut Vec<Chunk>) -> Result<(), GpuError> {
    let Some((last, _)) = flying.last() else { return Ok(()) };
    inner.wait_for(last.clone())?;
    flying.clear();
    // What has come home is mapped again, and can be used, from here on.
    let _ = inner.device.poll(wgpu::PollType::Poll);
    inner.trouble().map_or(Ok(()), Err)
}
