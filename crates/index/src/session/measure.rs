//! What engines take, measured over the segment at hand, once for each driver.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::Session;
use crate::gpu::{GpuError, Resident};
use crate::resolve::{Question, Resolver};
use crate::router::{Choice, Job, Work};
use crate::segment::NodeId;

/// Batches that are measured: the smallest tells what any job takes.
const BATCHES: [usize; 3] = [1 << 8, 1 << 12, 1 << 16];
/// A smaller segment fits the processor's caches, and says nothing of others.
const NODES_MIN: u32 = 1 << 14;

impl Session {
    /// Measures what was not measured before, in a thread of its own, and keeps it. Nothing is done where no real device is, or the
    /// segment is so small that none would ever be asked.
    ///
    /// # Errors
    /// What the host says if there can be no thread.
    pub fn measure_in_background(self: &Arc<Self>) -> std::io::Result<Option<thread::JoinHandle<()>>> {
        if self.segment.len() < NODES_MIN || self.unmeasured().is_empty() {
            return Ok(None);
        }
        let own = self.clone();
        let thread = thread::Builder::new().name("adit-measure".into()).spawn(move || {
            // What cannot be measured is not chosen, and what cannot be kept is measured the next time.
            let _ = own.measure();
            let _ = own.save();
        })?;
        Ok(Some(thread))
    }

    /// Engines of which nothing is known, programs that play a device only if they are asked for.
    fn unmeasured(&self) -> Vec<usize> {
        let router = self.router();
        let real = |engine: &usize| !router.engines()[*engine].software || router.options().choice == Choice::Gpu;
        let devices: Vec<usize> = (1..router.engines().len()).filter(real).collect();
        if devices.is_empty() {
            return devices;
        }
        let unknown = |engine: &usize| !router.is_measured(*engine, Work::Resolve);
        std::iter::once(0).chain(devices).filter(unknown).collect()
    }

    /// Measures what was not measured before, and waits for it. A device that fails is given up.
    ///
    /// # Errors
    /// [`GpuError::Segment`] where the segment is damaged.
    pub fn measure(&self) -> Result<(), GpuError> {
        let paths = self.sample(BATCHES[BATCHES.len() - 1])?;
        for engine in self.unmeasured() {
            let measured = match engine {
                0 => self.measure_processor(&paths),
                engine => self.resident(engine).and_then(|resident| self.measure_device(engine, &resident, &paths)),
            };
            match measured {
                Err(e) if e.is_of_the_device() => self.failed(engine, &e),
                other => other?,
            }
        }
        Ok(())
    }

    /// Paths from all over the segment; one in four is not there.
    fn sample(&self, count: usize) -> Result<Vec<Vec<u8>>, GpuError> {
        let nodes = u64::from(self.segment.len());
        let node = |at: u64| NodeId((at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % nodes) as u32);
        (0..count as u64)
            .map(|at| -> Result<Vec<u8>, GpuError> {
                let mut path = self.segment.path(node(at))?;
                if at % 4 == 3 {
                    path.extend(b"?");
                }
                Ok(path)
            })
            .collect()
    }

    fn measure_processor(&self, paths: &[Vec<u8>]) -> Result<(), GpuError> {
        let questions: Vec<Question<'_>> = paths.iter().map(|path| path.as_slice().into()).collect();
        let resolver = Resolver::new(&self.segment)?;
        self.batches(0, &questions, |part| Ok(resolver.find_batch(part).map(drop)?))
    }

    fn measure_device(&self, engine: usize, resident: &Resident, paths: &[Vec<u8>]) -> Result<(), GpuError> {
        let questions: Vec<Question<'_>> = paths.iter().map(|path| path.as_slice().into()).collect();
        self.batches(engine, &questions, |part| resident.find(part).wait().map(drop))
    }

    /// Each size once to warm up, and once to measure.
    fn batches(
        &self,
        engine: usize,
        questions: &[Question<'_>],
        run: impl Fn(&[Question<'_>]) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        for len in BATCHES {
            let part = &questions[..len.min(questions.len())];
            run(part)?;
            let begun = Instant::now();
            run(part)?;
            self.router.learn(engine, Job { work: Work::Resolve, amount: part.len() as u64 }, begun.elapsed());
        }
        Ok(())
    }
}
