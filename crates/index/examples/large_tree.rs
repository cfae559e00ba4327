//! Builds a segment of a made-up tree and asks it, with the time that each step takes.
//!
//! `cargo run --release -p adit-index --example large_tree -- [NODES] [sorted|shuffled] [MEMORY_MIB] [FOLDER]`

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use adit_core::types::Kind;
use adit_index::layout::Section;
use adit_index::{Builder, Entry, NodeId, Segment};

/// A number that looks random, for each number another one.
fn mixed(n: u64) -> u64 {
    let z = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The path of file number `n`: 71 bytes, in a directory of 100 files on the fifth level.
fn path(n: u64, path: &mut Vec<u8>) {
    use std::io::Write;
    path.clear();
    let (project, shot, layer) = (n / 1_000_000, n / 10_000 % 100, n / 100 % 100);
    write!(path, "projects/project_{project:03}/sequence_{shot:04}/layer_{layer:03}_beauty/frame_{n:09}.exr")
        .expect("there is memory");
}

/// KiB of memory that are in use now, without pages of files.
fn memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default: &str| arguments.get(at).map_or(default.to_owned(), Clone::clone);
    let files: u64 = argument(0, "1000000").parse()?;
    let is_shuffled = argument(1, "sorted") == "shuffled";
    let memory_bytes = argument(2, "256").parse::<u64>()? << 20;
    let folder = PathBuf::from(argument(3, &std::env::temp_dir().to_string_lossy()));
    let out = folder.join(format!("large_tree-{}.adit-index", std::process::id()));

    // Has no divisor in common with a power of ten: each number comes once, far from the one before.
    const STRIDE: u64 = 6_180_339_887;
    let start = Instant::now();
    let mut builder = Builder::new(&folder, memory_bytes);
    let mut bytes = Vec::new();
    let mut peak = 0;
    for n in 0..files {
        let n = if is_shuffled { (n as u128 * STRIDE as u128 % files as u128) as u64 } else { n };
        path(n, &mut bytes);
        let hash = Some(u128::from(mixed(n)).to_le_bytes());
        let mtime_ns = 1_700_000_000_000_000_000 + n as i64;
        let size = mixed(n) >> 40;
        builder.add(&Entry {
            path: &bytes,
            kind: Kind::File,
            perm: 0o644,
            size,
            mtime_ns,
            hash,
            stamp: None,
            extra: b"",
        })?;
        if n % 100_000 == 0 {
            peak = peak.max(memory_kib().unwrap_or(0));
        }
    }
    println!("added    {:8.2} s", start.elapsed().as_secs_f64());
    let built = builder.finish(&out, &mut |_| {
        peak = peak.max(memory_kib().unwrap_or(0));
        ControlFlow::Continue(())
    })?;
    println!(
        "built    {:8.2} s in all, {} nodes, {} KiB of memory at most",
        start.elapsed().as_secs_f64(),
        built.nodes,
        peak
    );

    let start = Instant::now();
    let segment = Segment::open(&out)?;
    println!("opened   {:8.3} ms", start.elapsed().as_secs_f64() * 1e3);
    for (section, len) in segment.sections() {
        println!("         {:6.2} bytes a node: {}", len as f64 / f64::from(built.nodes), section.words());
    }
    let beside = |section| matches!(section, Section::Names | Section::Hashes);
    let columns: u64 = segment.sections().filter(|(section, _)| !beside(*section)).map(|(_, len)| len).sum();
    println!("         {:6.2} bytes a node without names and hashes", columns as f64 / f64::from(built.nodes));

    for (what, seed) in [("first", 0), ("again", 0), ("others", 1 << 40)] {
        let start = Instant::now();
        let (count, mut found) = (200_000, 0_u64);
        for n in 0..count {
            path(mixed(n + seed) % files, &mut bytes);
            let mut at = NodeId::ROOT;
            for name in bytes.split(|byte| *byte == b'/') {
                at = segment.lookup(at, name)?.ok_or("a path that was added is not there")?;
                found += 1;
            }
            std::hint::black_box(segment.node(at)?);
        }
        let nanoseconds = start.elapsed().as_nanos() as f64;
        println!(
            "looked up {what}: {:.0} ns a path, {:.0} ns a name",
            nanoseconds / count as f64,
            nanoseconds / found as f64
        );
    }
    let start = Instant::now();
    segment.verify(&mut |_| ControlFlow::Continue(()))?;
    println!("verified {:8.2} s, {} bytes", start.elapsed().as_secs_f64(), segment.file_len());
    std::fs::remove_file(&out)?;
    Ok(())
}
