//! The memory of a serving process, sampled while it runs.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often it is looked at.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(25);

/// The most memory that a server used, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Memory {
    /// Peak resident set (`VmHWM`), program text and mapped files included.
    pub resident: u64,
    /// Largest sample of `RssAnon` + `RssShmem`: what it allocated.
    pub anonymous: u64,
}

/// A thread that looks at a process's memory.
pub struct Watch {
    pid: u32,
    stop: Arc<AtomicBool>,
    anonymous: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to look at the process.
    pub fn start(pid: u32) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let anonymous = Arc::new(AtomicU64::new(0));
        let thread = {
            let (stop, anonymous) = (stop.clone(), anonymous.clone());
            thread::spawn(move || {
                while !stop.load(Relaxed) {
                    if let Some(memory) = memory_of(pid) {
                        anonymous.fetch_max(memory.anonymous, Relaxed);
                    }
                    thread::park_timeout(SAMPLE_INTERVAL);
                }
            })
        };
        Watch { pid, stop, anonymous, thread: Some(thread) }
    }

    /// What it used until now.
    pub fn look(&self) -> Memory {
        let now = memory_of(self.pid).unwrap_or_default();
        Memory { resident: now.resident, anonymous: self.anonymous.load(Relaxed).max(now.anonymous) }
    }
}

impl Watch {
    /// Processor time that it used until now.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.pid).unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It holds nothing that a panic of it could spoil.
            let _ = thread.join();
        }
    }
}

/// Time of all threads in user and kernel mode: fields 14 and 15 of `/proc/PID/stat`, in hundredths of a second.
fn cpu_of(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
}

/// Peak resident set, and anonymous memory now.
fn memory_of(pid: u32) -> Option<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().ok()?;
        Some(kib << 10)
    };
    Some(Memory { resident: field("VmHWM")?, anonymous: field("RssAnon")? + field("RssShmem")? })
}
