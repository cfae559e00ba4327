//! Looking up ahead of a listing: what it gains by how long a lookup takes, and by how far it goes.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_core::engine::{Engine, EngineOptions, SinkFlow};
use adit_core::store::{NewNode, Store};
use adit_core::types::{Caller, FileName, Ino};
use adit_testkit::model::{Limits, MemoryStore};
use adit_testkit::{Asked, Hooked};
use anyhow::{Result, ensure};

use crate::RunArgs;
use crate::report::{Aim, Report, Row, Unit};

pub const GROUP: &str = "micro-ahead";

/// What a lookup does.
#[derive(Clone, Copy)]
enum Lookup {
    /// Nothing, for so long: it waits for a host or a network.
    Waits(Duration),
    /// The processor works for so long.
    Works(Duration),
}

/// By what a lookup does: of how many entries.
const LOOKUPS: [(Lookup, usize, Row); 10] = [
    (Lookup::Works(Duration::from_micros(5)), 4000, row("a lookup works 5 µs")),
    (Lookup::Works(Duration::from_micros(20)), 4000, row("a lookup works 20 µs")),
    (Lookup::Works(Duration::from_micros(50)), 2000, row("a lookup works 50 µs")),
    (Lookup::Works(Duration::from_micros(100)), 2000, row("a lookup works 100 µs")),
    (Lookup::Waits(Duration::from_micros(20)), 2000, row("a lookup waits 20 µs")),
    (Lookup::Waits(Duration::from_micros(50)), 2000, row("a lookup waits 50 µs")),
    (Lookup::Waits(Duration::from_micros(100)), 2000, row("a lookup waits 100 µs")),
    (Lookup::Waits(Duration::from_micros(200)), 2000, row("a lookup waits 200 µs")),
    (Lookup::Waits(Duration::from_millis(1)), 1000, row("a lookup waits 1 ms")),
    (Lookup::Waits(Duration::from_millis(5)), 400, row("a lookup waits 5 ms")),
];
/// Entries that may be ahead of their use; 1024 is the default.
const DEPTHS: [(&str, usize); 5] = [("off", 0), ("16", 16), ("128", 128), ("1024", 1024), ("4096", 4096)];

const fn row(name: &'static str) -> Row {
    Row { name, unit: Unit::Micros, aim: Aim::None }
}

/// Measures each wait with each depth.
pub fn run(args: &RunArgs, report: &mut Report) -> Result<()> {
    report.group(
        GROUP,
        "A directory is listed with the attributes of its entries, by one caller, in a store whose lookups wait (asleep, as for a host or a network) or work (as where the host has \
         all in memory), by how many entries may be looked up ahead (`-o prefetch`), however short a lookup is. By the clock; microseconds for one entry. `off` has the wait, \
         and what waking up takes beside it.",
    );
    for round in 0..args.rounds() as usize {
        for (lookup, entries, row) in &LOOKUPS {
            for at in 0..DEPTHS.len() {
                let (side, depth) = DEPTHS[(at + round) % DEPTHS.len()];
                let took = list(*lookup, *entries, depth)?;
                report.add(GROUP, row, side, took.as_secs_f64() * 1e6 / *entries as f64);
            }
        }
    }
    Ok(())
}

impl Lookup {
    fn run(self) {
        match self {
            Lookup::Waits(time) => wait(time),
            Lookup::Works(time) => {
                let started = Instant::now();
                while started.elapsed() < time {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

/// Waits on the dot: by itself the kernel lets a thread sleep up to 50 µs longer.
fn wait(time: Duration) {
    thread_local!(static IS_EXACT: Cell<bool> = const { Cell::new(false) });
    if !IS_EXACT.replace(true) {
        // SAFETY: sets a number of this thread.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    }
    std::thread::sleep(time);
}

fn list(lookup: Lookup, entries: usize, depth: usize) -> Result<Duration> {
    let store = MemoryStore::new(Limits { slow_names: true, shared: true, ..Limits::default() });
    let new = NewNode { perm: 0o755, umask: 0, caller: Caller { uid: 0, gid: 0 } };
    let dir = store.mkdir(Ino::ROOT, FileName::new(b"dir")?, &new)?.ino;
    for n in 0..entries {
        store.create(dir, FileName::new(format!("file {n:05}").as_bytes())?, &new)?;
    }
    let store = Hooked::new(store, move |asked| {
        if let Asked::Name(..) = asked {
            lookup.run();
        }
    });
    let hour = Duration::from_secs(3600);
    let options = EngineOptions {
        attr_ttl: hour,
        entry_ttl: hour,
        // However short a lookup is.
        ahead_from: Duration::ZERO,
        ahead_max: depth,
        ..EngineOptions::default()
    };
    let engine = Engine::new(Arc::new(store), options);
    let dir = engine.lookup(Ino::ROOT, FileName::new(b"dir")?)?.attr.ino;
    let started = Instant::now();
    let handle = engine.opendir(dir)?;
    let mut found = 0;
    engine.read_dir_plus(handle, 0, &mut |_, with| {
        found += usize::from(with.is_some());
        SinkFlow::More
    })?;
    let took = started.elapsed();
    engine.releasedir(handle)?;
    ensure!(found == entries, "{found} of {entries} entries came");
    engine.shutdown()?;
    Ok(took)
}
