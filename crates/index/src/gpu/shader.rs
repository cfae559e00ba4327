//! Kernels: their text, put together for as many shards as a segment has, and compiled once for a device.

use std::fmt::Write;
use std::sync::{Arc, PoisonError};

use super::device::Device;
use crate::layout::tables::PROBE_MAX;

/// Invocations of a workgroup, as the kernels say.
pub(super) const WORKGROUP_LEN: u32 = 64;

/// How a segment is divided: so many shards of 2^`shift` words. Kernels are compiled for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Division {
    pub shards: u32,
    pub shift: u32,
}

/// What runs on a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kernel {
    /// A pattern over the last names.
    ScanNames(Division),
    /// A pattern over whole paths.
    ScanPaths(Division),
    /// From paths to nodes.
    Resolve(Division),
    /// Files of the same size and hash.
    Twins(Division),
    /// Nodes of two segments with the same path.
    Pairs(Division, Division),
}

/// How a kernel sees one of its job's parts.
#[derive(Clone, Copy)]
enum Seen {
    /// Its parameters.
    Numbers,
    /// As [`Seen::Numbers`], of a row of them.
    NumbersAt,
    Read,
    Written,
}

impl Kernel {
    fn segments(self) -> Vec<Division> {
        match self {
            Kernel::ScanNames(a) | Kernel::ScanPaths(a) | Kernel::Resolve(a) | Kernel::Twins(a) => vec![a],
            Kernel::Pairs(a, b) => vec![a, b],
        }
    }

    fn entry(self) -> &'static str {
        match self {
            Kernel::ScanNames(_) | Kernel::ScanPaths(_) => "scan",
            Kernel::Resolve(_) => "resolve",
            Kernel::Twins(_) => "twins",
            Kernel::Pairs(..) => "pair",
        }
    }

    fn body(self) -> &'static [&'static str] {
        match self {
            Kernel::ScanNames(_) => &[include_str!("kernels/scan.wgsl"), include_str!("kernels/scan_names.wgsl")],
            Kernel::ScanPaths(_) => &[include_str!("kernels/scan.wgsl"), include_str!("kernels/scan_paths.wgsl")],
            Kernel::Resolve(_) => &[
                include_str!("kernels/paths.wgsl"),
                include_str!("kernels/xxh3.wgsl"),
                include_str!("kernels/lookup.wgsl"),
                include_str!("kernels/resolve.wgsl"),
            ],
            Kernel::Twins(_) => &[include_str!("kernels/twins.wgsl")],
            Kernel::Pairs(..) => &[include_str!("kernels/lookup.wgsl"), include_str!("kernels/pairs.wgsl")],
        }
    }

    fn parts(self) -> &'static [Seen] {
        match self {
            Kernel::ScanNames(_) => &[Seen::Numbers, Seen::Read, Seen::Written],
            Kernel::ScanPaths(_) => &[Seen::NumbersAt, Seen::Read, Seen::Written, Seen::Written],
            Kernel::Resolve(_) => &[Seen::Numbers, Seen::Read, Seen::Read, Seen::Read, Seen::Written],
            Kernel::Twins(_) => &[Seen::Numbers, Seen::Written, Seen::Written],
            Kernel::Pairs(..) => &[Seen::NumbersAt, Seen::Written],
        }
    }

    /// Its text.
    fn source(self) -> String {
        let mut text = format!("const PROBE_MAX = {PROBE_MAX}u;\n");
        text.push_str(include_str!("kernels/shared.wgsl"));
        for (at, (division, letter)) in self.segments().into_iter().zip(["a_", "b_"]).enumerate() {
            text.push_str(&shards_source(at, division).replace('$', letter));
            text.push_str(&include_str!("kernels/segment.wgsl").replace('$', letter));
        }
        self.body().iter().for_each(|body| text.push_str(body));
        text
    }
}

/// The declarations of a segment's shards, and how a word of them is read.
fn shards_source(group: usize, division: Division) -> String {
    let mut text = String::new();
    let Division { shards, shift } = division;
    for shard in 0..shards {
        let _ = writeln!(text, "@group({group}) @binding({shard}) var<storage, read> $shard_{shard}: array<u32>;");
    }
    let _ = writeln!(text, "@group({group}) @binding({shards}) var<uniform> $at: Sections;");
    text.push_str("fn $word(at: u32) -> u32 {\n");
    if shards == 1 {
        text.push_str("    return $shard_0[at];\n}\n");
        return text;
    }
    let _ = writeln!(text, "    let within = at & {:#x}u;\n    switch (at >> {shift}u) {{", (1u32 << shift) - 1);
    for shard in 1..shards {
        let _ = writeln!(text, "        case {shard}u: {{ return $shard_{shard}[within]; }}");
    }
    text.push_str("        default: { return $shard_0[within]; }\n    }\n}\n");
    text
}

/// A kernel that is compiled.
pub(super) struct Pipeline {
    pipeline: wgpu::ComputePipeline,
    own: wgpu::BindGroupLayout,
}

impl Pipeline {
    pub fn of(&self) -> &wgpu::ComputePipeline {
        &self.pipeline
    }

    pub fn own_layout(&self) -> &wgpu::BindGroupLayout {
        &self.own
    }
}

impl Device {
    /// A kernel, compiled when it is first asked for.
    pub(super) fn pipeline(&self, kernel: Kernel) -> Arc<Pipeline> {
        let mut known = self.0.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(kernel).or_insert_with(|| Arc::new(self.compile(kernel))).clone()
    }

    fn compile(&self, kernel: Kernel) -> Pipeline {
        let device = &self.0.device;
        let source = wgpu::ShaderSource::Wgsl(kernel.source().into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: Some(kernel.entry()), source });
        let mut layouts: Vec<_> = kernel.segments().into_iter().map(|division| self.segment_layout(division)).collect();
        let own =
            kernel.parts().iter().enumerate().map(|(at, seen)| layout_entry(at as u32, *seen)).collect::<Vec<_>>();
        let own = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &own });
        layouts.push(own.clone());
        let layouts: Vec<_> = layouts.iter().map(Some).collect();
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &layouts,
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.entry()),
            layout: Some(&layout),
            module: &module,
            entry_point: Some(kernel.entry()),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        Pipeline { pipeline, own }
    }

    /// How kernels see a segment that is divided like this.
    pub(super) fn segment_layout(&self, division: Division) -> wgpu::BindGroupLayout {
        let shards = (0..division.shards).map(|shard| layout_entry(shard, Seen::Read));
        let entries: Vec<_> = shards.chain([layout_entry(division.shards, Seen::Numbers)]).collect();
        let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
        self.0.device.create_bind_group_layout(&descriptor)
    }
}

fn layout_entry(binding: u32, seen: Seen) -> wgpu::BindGroupLayoutEntry {
    let ty = match seen {
        Seen::Numbers | Seen::NumbersAt => wgpu::BufferBindingType::Uniform,
        Seen::Read => wgpu::BufferBindingType::Storage { read_only: true },
        Seen::Written => wgpu::BufferBindingType::Storage { read_only: false },
    };
    let has_dynamic_offset = matches!(seen, Seen::NumbersAt);
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None },
        count: None,
    }
}
