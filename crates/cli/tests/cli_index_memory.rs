//! The memory of `adit index build`: bounded by `--memory`, whatever the source has. Ten million entries with a scale of 10.

mod common;
#[path = "common/peak.rs"]
mod peak;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::process::Stdio;

use adit_index::{Index, NodeId};
use adit_testkit::scaled;
use common::Bench;
use peak::Peak;

/// What a process has beside the memory that it sorts in: the program, buffers, threads, and what reading a manifest takes.
const FIXED_BYTES: u64 = 64 << 20;

/// A manifest of so many files, with their paths as a renderer numbers them, of some day.
fn write_manifest(bench: &Bench, count: usize, day: usize) {
    let mut out = BufWriter::new(File::create(bench.path("m")).unwrap());
    let mut total = 0;
    write!(out, r#"{{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":["#).unwrap();
    for n in 0..count {
        let (comma, hash, size) = (if n > 0 { "," } else { "" }, n as u128 * 0x9e37_79b9_7f4a_7c15, n % 100_000);
        let (shot, version, mtime) = (n / 5000, n / 200 % 25, 1_700_000_000_000_000 + day * 86_400_000_000 + n);
        let path = format!("shots/shot {shot:04}/version {version:03}/frame.{n:08}.exr");
        write!(out, r#"{comma}{{"hash":"{hash:032x}","mtime":{mtime},"path":"{path}","size":{size}}}"#).unwrap();
        total += size;
    }
    write!(out, r#"],"totalSize":{total}}}"#).unwrap();
    out.into_inner().unwrap();
}

#[test]
fn a_large_source_is_indexed_in_the_memory_that_it_may_take() {
    let bench = Bench::bare();
    let count = scaled(1_000_000);
    let cache = bench.str("cache");
    for (day, (verb, memory)) in
        [("build", 32 << 20), ("build", 256 << 20), ("update", 32 << 20)].into_iter().enumerate()
    {
        write_manifest(&bench, count, day);
        let limit = format!("{}M", memory >> 20);
        let what: &[&str] = if verb == "build" { &["build", "m", "-o", "i"] } else { &["update", "i"] };
        let how = ["--quiet", "--memory", &limit, "--cache-dir", &cache];
        let args: Vec<&str> = ["index"].iter().chain(what).chain(&how).copied().collect();
        let peak = Peak::of(bench.command().args(&args).stdout(Stdio::null()), 0);
        let file_len = fs::metadata(bench.path("i")).unwrap().len();
        println!(
            "{verb} of {count} entries with {limit}: {} MiB of its own, {} MiB in all, for {} MiB of index",
            peak.own >> 20,
            peak.all >> 20,
            file_len >> 20
        );
        assert!(peak.own <= memory + FIXED_BYTES, "{peak:?}");
        // What is mapped of files is the page cache's, which has it whoever maps it.
        assert!(peak.all <= memory + FIXED_BYTES + 2 * file_len, "{peak:?}");
        if count <= 10_000_000 {
            assert!(peak.all < 1 << 30, "{peak:?}");
        }
    }
    let index = Index::open(&bench.path("i")).unwrap();
    assert_eq!(index.du(NodeId::ROOT).unwrap().total.files, count as u64);
    let last = count - 1;
    let path = format!("shots/shot {:04}/version {:03}/frame.{last:08}.exr", last / 5000, last / 200 % 25);
    assert_eq!(index.node(index.resolve(&path).unwrap().unwrap()).unwrap().size, last as u64 % 100_000);
}
