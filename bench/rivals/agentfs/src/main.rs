//! AgentFS, called through its own library: one round of what `bench/src/micro/library.rs` does with adit, and in the same
//! order. Prints a JSON object of row names and microseconds of one call.
//!
//! `agentfs-bench DATABASE FILES`

use std::collections::BTreeMap;
use std::env;
use std::time::Instant;

use agentfs_sdk::{AgentFS, AgentFSOptions};
use anyhow::{Context, Result, ensure};

const FILE_LEN: usize = 4096;
const FILES_A_DIR: usize = 100;
const DEPTH: usize = 10;
/// Calls of what has one subject alone.
const REPEATS: usize = 200;
const REGULAR: u32 = 0o100_644;

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let database = arguments.next().context("usage: agentfs-bench DATABASE FILES")?;
    let files: usize = arguments.next().context("usage: agentfs-bench DATABASE FILES")?.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rows = runtime.block_on(round(&database, files))?;
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}

fn path(number: usize) -> String {
    format!("/directory {}/file {number}.txt", number / FILES_A_DIR)
}

async fn open(database: &str) -> Result<AgentFS> {
    Ok(AgentFS::open(AgentFSOptions::with_path(database)).await?)
}

/// Microseconds of one of `count` calls since `started`.
fn micros(started: Instant, count: usize) -> f64 {
    started.elapsed().as_secs_f64() * 1e6 / count as f64
}

async fn round(database: &str, files: usize) -> Result<BTreeMap<&'static str, f64>> {
    let mut rows = BTreeMap::new();
    let agent = open(database).await?;
    let mut content = vec![b'c'; FILE_LEN];
    for dir in 0..files.div_ceil(FILES_A_DIR) {
        agent.fs.mkdir(&format!("/directory {dir}"), 0, 0).await?;
    }
    let started = Instant::now();
    for number in 0..files {
        content[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let (_, file) = agent.fs.create_file(&path(number), REGULAR, 0, 0).await?;
        file.pwrite(0, &content).await?;
    }
    rows.insert("create", micros(started, files));
    agent.fs.fsync("/").await?;
    rows.insert("create-synced", micros(started, files));
    let mut deep = String::new();
    for level in 0..DEPTH - 1 {
        deep += &format!("/level {level}");
        agent.fs.mkdir(&deep, 0, 0).await?;
    }
    deep += "/file";
    agent.fs.create_file(&deep, REGULAR, 0, 0).await?;
    drop(agent);

    let agent = open(database).await?;
    for name in ["stat", "stat-again"] {
        let started = Instant::now();
        for number in 0..files {
            let found = agent.fs.lstat(&path(number)).await?.context("a file is missing")?;
            ensure!(found.size == FILE_LEN as i64, "wrong length");
        }
        rows.insert(name, micros(started, files));
    }
    let started = Instant::now();
    agent.fs.lstat(&deep).await?.context("the deep file is missing")?;
    rows.insert("path", micros(started, 1));
    let started = Instant::now();
    for _ in 0..REPEATS {
        agent.fs.lstat(&deep).await?.context("the deep file is missing")?;
    }
    rows.insert("path-again", micros(started, REPEATS));
    let dir = agent.fs.lstat("/directory 0").await?.context("a directory is missing")?.ino;
    let started = Instant::now();
    for _ in 0..REPEATS {
        let names = agent.fs.readdir(dir).await?.context("a directory is missing")?;
        ensure!(names.len() == files.min(FILES_A_DIR), "entries are missing");
    }
    rows.insert("list", micros(started, REPEATS));
    let started = Instant::now();
    for number in 0..files {
        let found = agent.fs.read_file(&path(number)).await?.context("a file is missing")?;
        ensure!(found.len() == FILE_LEN, "wrong length");
    }
    rows.insert("read", micros(started, files));
    let started = Instant::now();
    for number in 0..files {
        agent.fs.remove(&path(number)).await?;
    }
    rows.insert("remove", micros(started, files));
    Ok(rows)
}
