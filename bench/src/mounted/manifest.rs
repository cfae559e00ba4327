//! Content that lies in S3: its first bytes, all of it, the cache of it, many small files, and what is sent back.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::bytes::Stream;
use super::{Group, Turn, timed};
use crate::remote::{self, Distance, LARGE_MIB, Tree, remote};
use crate::report::{Aim, Row, Unit};
use crate::sides::{self, Mounted};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
/// Ranges that curl asks for at once, of [`RANGE_MIB`] each.
const RANGES_AT_ONCE: usize = 8;
const RANGE_MIB: u64 = 8;
/// Reads at random of a cold file.
const RANDOM_COLD: u64 = 32;
/// Reads at random of a warm one.
const RANDOM_WARM: u64 = 20_000;
/// How often somebody else looks while a file is read.
const LOOK_EVERY: Duration = Duration::from_millis(5);

const fn row(name: &'static str, unit: Unit, aim: Aim) -> Row {
    Row { name, unit, aim }
}

static FIRST_NEAR_COLD: Row = row("first 4 KiB, first request of the mount", Unit::Millis, Aim::None);
static FIRST_NEAR: Row = row("first 4 KiB, connection warm", Unit::Millis, Aim::None);
static FIRST_FAR_COLD: Row = row("first 4 KiB, first request of the mount, 20 ms away", Unit::Millis, Aim::None);
/// One and a half round trips and 5 ms.
static FIRST_FAR: Row = row("first 4 KiB, connection warm, 20 ms away", Unit::Millis, Aim::Bound(35.0));

/// The first bytes of a large file that nobody has read.
pub const FIRST: Group = Group {
    name: "first-byte",
    about: |_| {
        format!(
            "4 KiB at the start of a file of {LARGE_MIB} MiB that is in no cache: as the first request of the mount, and after another \
             file was read. curl asks for that range, in a process and with a connection of its own."
        )
    },
    takes: |side| side.is_remote() && !side.is_relayed() && side.name != "curl-parallel",
    once: false,
    on_request: false,
    prepare: |args, dir| remote::prepare(args, dir, Tree::Large),
    script: first,
};

fn first(turn: &mut Turn<'_>) -> Result<()> {
    for (distance, cold, warm) in
        [(Distance::Near, &FIRST_NEAR_COLD, &FIRST_NEAR), (Distance::Far, &FIRST_FAR_COLD, &FIRST_FAR)]
    {
        if turn.side.is_curl() {
            let mut curl = remote::curl();
            curl.args(["--range", "0-4095", "-o", "/dev/null", &remote()?.large_object(distance)?]);
            let took = timed(|| remote::run(&mut curl))?;
            turn.sample(cold, took.as_secs_f64() * 1e3);
            continue;
        }
        for (is_warm, row) in [(false, cold), (true, warm)] {
            let mounted = mount_empty(turn, distance)?;
            if is_warm {
                ensure!(fs::read(mounted.root().join("small"))?.len() == BLOCK, "wrong length");
            }
            let path = mounted.root().join("large");
            // Not part of the row: the names, which a cold `ls` measures.
            fs::metadata(&path)?;
            let mut block = [0; BLOCK];
            let took = timed(|| Ok(File::open(&path)?.read_exact_at(&mut block, 0)?))?;
            turn.sample(row, took.as_secs_f64() * 1e3);
            turn.unmount(mounted)?;
        }
    }
    Ok(())
}

static READ_NEAR: Row = row("sequential read, cold", Unit::MibPerSec, Aim::Best("curl", 0.9));
static READ_FAR: Row = row("sequential read, cold, 20 ms away", Unit::MibPerSec, Aim::Best("curl", 0.9));
static READ_REQUESTS: Row = row("requests of it", Unit::Count, Aim::None);
static READ_BYTES: Row = row("bytes fetched over bytes read", Unit::Count, Aim::Bound(1.05));
static LOOK_NEAR: Row = row("longest `ls -l` beside it", Unit::Millis, Aim::Bound(20.0));
static LOOK_FAR: Row = row("longest `ls -l` beside it, 20 ms away", Unit::Millis, Aim::Bound(20.0));
static RANDOM_RATE: Row = row("4 KiB at random, cold, 20 ms away", Unit::PerSec, Aim::None);
static RANDOM_BYTES: Row = row("MiB fetched for each of these", Unit::Mib, Aim::Bound(1.0));

/// All of a large file that nobody has read.
pub const COLD: Group = Group {
    name: "cold-read",
    about: |_| {
        format!(
            "A file of {LARGE_MIB} MiB that is in no cache, in calls of 1 MiB, while another thread lists the folder every {} ms; then, of an \
             empty cache again, {RANDOM_COLD} reads of 4 KiB at random. curl-parallel has {RANGES_AT_ONCE} ranges of {RANGE_MIB} MiB under way.",
            LOOK_EVERY.as_millis()
        )
    },
    takes: |side| side.is_remote() && !side.is_relayed(),
    once: false,
    on_request: false,
    prepare: |args, dir| remote::prepare(args, dir, Tree::Large),
    script: cold,
};

fn cold(turn: &mut Turn<'_>) -> Result<()> {
    let large = (LARGE_MIB << 20) as f64;
    for (distance, rate, look) in [(Distance::Near, &READ_NEAR, &LOOK_NEAR), (Distance::Far, &READ_FAR, &LOOK_FAR)] {
        let before = remote()?.traffic();
        if turn.side.is_curl() {
            let took = curl_whole(turn.side.name == "curl-parallel", distance, turn.dir)?;
            turn.sample(rate, LARGE_MIB as f64 / took.as_secs_f64());
        } else {
            let mounted = mount_empty(turn, distance)?;
            fs::metadata(mounted.root().join("large"))?;
            let done = AtomicBool::new(false);
            let (took, longest) = thread::scope(|scope| {
                let looker = scope.spawn(|| look_again(mounted.root(), &done));
                let took = timed(|| read_whole(&mounted.root().join("large")));
                done.store(true, Relaxed);
                (took, looker.join())
            });
            turn.sample(rate, LARGE_MIB as f64 / took?.as_secs_f64());
            let longest = longest.map_err(|_| anyhow::anyhow!("the thread that looks panicked"))??;
            turn.sample(look, longest.as_secs_f64() * 1e3);
            turn.unmount(mounted)?;
        }
        if distance == Distance::Far {
            let after = remote()?.traffic();
            turn.sample(&READ_REQUESTS, (after.requests - before.requests) as f64);
            turn.sample(&READ_BYTES, (after.answered_bytes - before.answered_bytes) as f64 / large);
        }
    }
    if turn.side.is_curl() {
        return Ok(());
    }
    let (rate, mib) = random_cold(turn)?;
    turn.sample(&RANDOM_RATE, rate);
    turn.sample(&RANDOM_BYTES, mib);
    Ok(())
}

/// Reads at random of a large file far away that is in no cache: how many a second, and MiB fetched for each.
fn random_cold(turn: &mut Turn<'_>) -> Result<(f64, f64)> {
    let mounted = mount_empty(turn, Distance::Far)?;
    let file = File::open(mounted.root().join("large"))?;
    // Reads that the kernel does not widen, as of a program that knows what it wants.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    let before = remote()?.traffic();
    let places = Stream::new(23).permutation((LARGE_MIB << 20) / BLOCK as u64);
    let mut block = [0; BLOCK];
    let took = timed(|| {
        for place in places.iter().take(RANDOM_COLD as usize) {
            file.read_exact_at(&mut block, place * BLOCK as u64)?;
        }
        Ok(())
    })?;
    let bytes = remote()?.traffic().answered_bytes - before.answered_bytes;
    drop(file);
    turn.unmount(mounted)?;
    let count = RANDOM_COLD as f64;
    Ok((count / took.as_secs_f64(), bytes as f64 / count / MIB as f64))
}

/// What each length of a block is told by.
struct OfBlock {
    len: &'static str,
    first: Row,
    near: Row,
    far: Row,
    random: Row,
    fetched: Row,
}

macro_rules! of_block {
    ($len:literal) => {
        OfBlock {
            len: $len,
            first: row(concat!($len, ": first 4 KiB, 20 ms away"), Unit::Millis, Aim::None),
            near: row(concat!($len, ": sequential read"), Unit::MibPerSec, Aim::None),
            far: row(concat!($len, ": sequential read, 20 ms away"), Unit::MibPerSec, Aim::None),
            random: row(concat!($len, ": 4 KiB at random, 20 ms away"), Unit::PerSec, Aim::None),
            fetched: row(concat!($len, ": MiB fetched for each of these"), Unit::Mib, Aim::None),
        }
    };
}

static OF_BLOCKS: [OfBlock; 5] =
    [of_block!("128K"), of_block!("256K"), of_block!("512K"), of_block!("1M"), of_block!("4M")];

/// Blocks of several lengths.
pub const BLOCKS: Group = Group {
    name: "cold-read-blocks",
    about: |_| {
        format!(
            "The same file in no cache, with blocks of several lengths (`--cache-block`), each round beginning with another one: its first \
             4 KiB with the connection warm, all of it in calls of 1 MiB, and {RANDOM_COLD} reads of 4 KiB at random."
        )
    },
    takes: |side| side.is_served() && !side.is_relayed() && !side.is_rival(),
    once: false,
    on_request: true,
    prepare: |args, dir| remote::prepare(args, dir, Tree::Large),
    script: |turn| {
        for at in 0..OF_BLOCKS.len() {
            let of = &OF_BLOCKS[(at + turn.round as usize) % OF_BLOCKS.len()];
            turn.place.wanted.block.set(Some(of.len));
            let mounted = mount_empty(turn, Distance::Far)?;
            fs::read(mounted.root().join("small"))?;
            let large = mounted.root().join("large");
            fs::metadata(&large)?;
            let mut block = [0; BLOCK];
            let took = timed(|| Ok(File::open(&large)?.read_exact_at(&mut block, 0)?))?;
            turn.sample(&of.first, took.as_secs_f64() * 1e3);
            turn.unmount(mounted)?;
            for (distance, row) in [(Distance::Near, &of.near), (Distance::Far, &of.far)] {
                let mounted = mount_empty(turn, distance)?;
                let large = mounted.root().join("large");
                fs::metadata(&large)?;
                let took = timed(|| read_whole(&large))?;
                turn.sample(row, LARGE_MIB as f64 / took.as_secs_f64());
                turn.unmount(mounted)?;
            }
            let (rate, mib) = random_cold(turn)?;
            turn.sample(&of.random, rate);
            turn.sample(&of.fetched, mib);
        }
        Ok(())
    },
};

/// Reads a file in calls of 1 MiB.
fn read_whole(path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    let mut block = vec![0; MIB];
    let mut total = 0;
    loop {
        let len = file.read(&mut block)?;
        if len == 0 {
            break;
        }
        total += len as u64;
    }
    ensure!(total == LARGE_MIB << 20, "the file has {total} bytes");
    Ok(())
}

/// Lists a folder, with what `ls -l` asks of each entry, until `done`; returns the longest time that took.
fn look_again(root: &Path, done: &AtomicBool) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    while !done.load(Relaxed) {
        let took = timed(|| {
            for entry in fs::read_dir(root)? {
                entry?.metadata()?;
            }
            Ok(())
        })?;
        longest = longest.max(took);
        thread::sleep(LOOK_EVERY);
    }
    Ok(longest)
}

/// The object by curl: in one request, or in ranges, several at once.
fn curl_whole(is_parallel: bool, distance: Distance, dir: &Path) -> Result<Duration> {
    let url = remote()?.large_object(distance)?;
    let mut curl = remote::curl();
    if is_parallel {
        // As a file: a range belongs to one transfer, and the command line has no other way to say it so often.
        let ranges = (0..LARGE_MIB).step_by(usize::try_from(RANGE_MIB)?).map(|at| {
            let (from, to) = (at << 20, ((at + RANGE_MIB).min(LARGE_MIB) << 20) - 1);
            format!("url = \"{url}\"\nrange = \"{from}-{to}\"\noutput = \"/dev/null\"\nfail\n")
        });
        let path = dir.join("curl-ranges");
        fs::write(&path, ranges.collect::<Vec<_>>().join("next\n"))?;
        curl.args(["--parallel", "--parallel-immediate", "--parallel-max", &RANGES_AT_ONCE.to_string()]);
        curl.arg("--config").arg(path);
    } else {
        curl.args(["-o", "/dev/null", &url]);
    }
    timed(|| remote::run(&mut curl))
}

static WARM_DISK: Row = row("sequential read, in the cache on the disk", Unit::MibPerSec, Aim::Host(0.85));
static WARM_PAGES: Row = row("sequential read, in the page cache", Unit::MibPerSec, Aim::Host(0.95));
static WARM_RANDOM_DISK: Row = row("4 KiB at random, in the cache on the disk", Unit::PerSec, Aim::None);
static WARM_RANDOM: Row = row("4 KiB at random, in the page cache", Unit::PerSec, Aim::Host(0.95));
/// 45 % less than without passthrough.
static WARM_CPU: Row = row(
    "processor time of server and reader for a GiB from the disk",
    Unit::Seconds,
    Aim::Side(crate::sides::RELAYED, 1.0 / 0.55),
);
static WARM_CPU_SERVER: Row = row("of that, the server's", Unit::Seconds, Aim::None);

/// A large file that was read before.
pub const WARM: Group = Group {
    name: "warm-read",
    about: |_| {
        format!(
            "The same file after it was read to its end, and the page cache was made to forget it, on the mount and below: all of it in calls of 1 MiB, \
             {} reads of 4 KiB at random; and both again out of the page cache ({RANDOM_WARM} reads).",
            RANDOM_WARM / 8
        )
    },
    takes: |side| !side.is_curl(),
    once: false,
    on_request: false,
    prepare: |args, dir| remote::prepare(args, dir, Tree::Large),
    script: warm,
};

fn warm(turn: &mut Turn<'_>) -> Result<()> {
    let mounted = mount_empty(turn, Distance::Near)?;
    let path = mounted.root().join("large");
    read_whole(&path)?;
    // What was read is compared with its hash in the background, if the reader came faster than that.
    thread::sleep(Duration::from_secs(1));
    sides::sync_fs(turn.dir)?;
    // On the mount, or the plain folder, and what lies below it.
    let forget = || sides::evict(&path).and_then(|()| sides::evict(&turn.place.work));
    forget()?;
    // The memory into which it is read is used just before, so that nobody waits for it.
    read_whole(&path)?;
    forget()?;
    let cpu = || (mounted.cpu(), own_cpu());
    let (server, reader) = cpu();
    let took = timed(|| read_whole(&path))?;
    let (server, reader) = (mounted.cpu() - server, own_cpu() - reader);
    turn.sample(&WARM_DISK, LARGE_MIB as f64 / took.as_secs_f64());
    let of_a_gib = |used: Duration| used.as_secs_f64() * 1024.0 / LARGE_MIB as f64;
    turn.sample(&WARM_CPU, of_a_gib(server + reader));
    if turn.side.is_served() {
        turn.sample(&WARM_CPU_SERVER, of_a_gib(server));
    }
    let took = timed(|| read_whole(&path))?;
    turn.sample(&WARM_PAGES, LARGE_MIB as f64 / took.as_secs_f64());
    let places = Stream::new(24).permutation((LARGE_MIB << 20) / BLOCK as u64);
    let file = File::open(&path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    let random = |count: u64| -> Result<f64> {
        let mut block = [0; BLOCK];
        let took = timed(|| {
            for place in places.iter().take(count as usize) {
                file.read_exact_at(&mut block, place * BLOCK as u64)?;
            }
            Ok(())
        })?;
        Ok(count as f64 / took.as_secs_f64())
    };
    turn.sample(&WARM_RANDOM, random(RANDOM_WARM)?);
    forget()?;
    turn.sample(&WARM_RANDOM_DISK, random(RANDOM_WARM / 8)?);
    drop(file);
    turn.unmount(mounted)
}

/// Processor time of this process.
fn own_cpu() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}

static TINY_LIST_COLD: Row = row("`ls -lR`, cold", Unit::Seconds, Aim::None);
static TINY_LIST: Row = row("`ls -lR`, warm", Unit::Seconds, Aim::None);
static TINY_READ: Row = row("read of each, in no cache", Unit::Seconds, Aim::None);
static TINY_AGAIN: Row = row("read of each, again", Unit::Seconds, Aim::None);

/// Many files of one byte.
pub const TINY: Group = Group {
    name: "tiny-files",
    about: |args| {
        format!(
            "{} files of one byte: listed, and read, each opened and closed. Adit's store has 256 objects of them, the others' bucket one for each file.",
            args.scaled(Tree::Tiny.files())
        )
    },
    takes: |side| !side.is_curl() && !side.is_relayed(),
    once: false,
    on_request: false,
    prepare: |args, dir| remote::prepare(args, dir, Tree::Tiny),
    script: |turn| {
        turn.place.wanted.tree.set(Tree::Tiny);
        let mounted = mount_empty(turn, Distance::Near)?;
        turn.seconds(&TINY_LIST_COLD, || list(mounted.root()))?;
        turn.seconds(&TINY_LIST, || list(mounted.root()))?;
        let count = turn.args.scaled(Tree::Tiny.files());
        for row in [&TINY_READ, &TINY_AGAIN] {
            turn.seconds(row, || {
                for path in remote::paths(mounted.root(), count) {
                    ensure!(fs::read(path)?.len() == 1, "wrong length");
                }
                Ok(())
            })?;
        }
        turn.unmount(mounted)
    },
};

static WIDE_MOUNT: Row = row("from the command to the mount, index built", Unit::Seconds, Aim::None);
static WIDE_AGAIN: Row = row("the same with the index there", Unit::Seconds, Aim::Bound(1.0));
static WIDE_COLD: Row = row("`ls -lR`, cold", Unit::Seconds, Aim::Host(0.5));
static WIDE_WARM: Row = row("`ls -lR`, warm", Unit::Seconds, Aim::Host(0.9));

/// A long listing.
pub const WIDE: Group = Group {
    name: "list-100000",
    about: |args| format!("A manifest of {} files is mounted, and listed.", args.scaled(Tree::Wide.files())),
    takes: |side| !side.is_curl() && !side.is_relayed() && !side.is_rival(),
    once: false,
    on_request: false,
    prepare: |args, dir| remote::prepare(args, dir, Tree::Wide),
    script: |turn| {
        turn.place.wanted.tree.set(Tree::Wide);
        let started = Instant::now();
        let mounted = turn.side.mount(turn.place)?;
        if turn.side.is_served() {
            turn.sample(&WIDE_MOUNT, started.elapsed().as_secs_f64());
        }
        turn.unmount(mounted)?;
        sides::sync_fs(turn.dir)?;
        sides::drop_caches()?;
        let started = Instant::now();
        let mounted = turn.side.mount(turn.place)?;
        if turn.side.is_served() {
            turn.sample(&WIDE_AGAIN, started.elapsed().as_secs_f64());
        }
        turn.seconds(&WIDE_COLD, || list(mounted.root()))?;
        turn.seconds(&WIDE_WARM, || list(mounted.root()))?;
        turn.unmount(mounted)
    },
};

static WRITE: Row = row("three files of 300 MiB, written and synced", Unit::MibPerSec, Aim::None);
static COMMIT: Row = row("commit of them", Unit::MibPerSec, Aim::None);
static COMMIT_AGAIN: Row = row("commit without a change", Unit::Seconds, Aim::None);

/// Files written to a manifest, and brought to the store.
pub const WRITES: Group = Group {
    name: "write-commit",
    about: |args| {
        format!(
            "Three files of {} MiB are written to a writable mount, in calls of 1 MiB, each ending with an fsync; then `adit manifest commit`.",
            args.scaled(LARGE_MIB)
        )
    },
    takes: |side| !side.is_curl() && !side.is_relayed() && !side.is_rival(),
    once: false,
    on_request: false,
    prepare: |args, dir| remote::prepare(args, dir, Tree::Large),
    script: writes,
};

fn writes(turn: &mut Turn<'_>) -> Result<()> {
    turn.place.wanted.writable.set(true);
    let mib = turn.args.scaled(LARGE_MIB);
    let mounted = mount_empty(turn, Distance::Near)?;
    let took = timed(|| {
        for number in 0..3 {
            super::large::write_file(&mounted.root().join(format!("new {number}")), mib)?;
        }
        Ok(())
    })?;
    turn.sample(&WRITE, 3.0 * mib as f64 / took.as_secs_f64());
    if let Some(mut commit) = turn.side.commit_command(turn.place)? {
        let took = timed(|| remote::run(&mut commit))?;
        turn.sample(&COMMIT, 3.0 * mib as f64 / took.as_secs_f64());
        let took = timed(|| remote::run(&mut commit))?;
        turn.sample(&COMMIT_AGAIN, took.as_secs_f64());
    }
    turn.unmount(mounted)
}

/// Mounts with an empty cache, and cold ones of the kernel.
fn mount_empty(turn: &Turn<'_>, distance: Distance) -> Result<Mounted> {
    let wanted = &turn.place.wanted;
    wanted.distance.set(distance);
    wanted.cache.set(wanted.cache.get() + 1);
    turn.mount_cold()
}

fn list(root: &Path) -> Result<()> {
    let status = Command::new("ls").arg("-lR").arg(root).stdout(Stdio::null()).status().context("ls")?;
    ensure!(status.success(), "ls failed ({status})");
    Ok(())
}
