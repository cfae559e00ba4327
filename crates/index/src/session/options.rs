//! How a session works: [`SessionOptions`].

use std::path::PathBuf;

use crate::gpu::DeviceOptions;
use crate::router::{Choice, RouterOptions};

/// How a session works. Each part has a default that is meant for all; what is set one by one here is what programs have a reason to set.
///
/// ```
/// use adit_index::router::Choice;
/// use adit_index::session::SessionOptions;
///
/// let options = SessionOptions::default().choice(Choice::Gpu).batch_paths(1 << 16).batches_in_flight(2);
/// assert_eq!(options.device.batch_paths, 1 << 16);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Who answers, and when that changes.
    pub router: RouterOptions,
    /// How devices are used.
    pub device: DeviceOptions,
    /// Only devices whose name contains this, in any case. All by default.
    pub only: Option<String>,
    /// The file in which measurements are kept. None: they are forgotten.
    pub state: Option<PathBuf>,
    /// Whether drivers are asked which devices there are when the session is made, which takes some tens of milliseconds. Otherwise those
    /// are known that [`SessionOptions::state`] names, and a driver is loaded when one of them is chosen. Yes by default.
    pub ask_drivers: bool,
    /// Most bytes of the memory of one device that segments may take. No limit by default but that of the device.
    pub resident_len_max_bytes: u64,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            router: RouterOptions::default(),
            device: DeviceOptions::default(),
            only: None,
            state: None,
            ask_drivers: true,
            resident_len_max_bytes: u64::MAX,
        }
    }
}

impl SessionOptions {
    /// Who answers.
    #[must_use]
    pub fn choice(mut self, choice: Choice) -> Self {
        self.router.choice = choice;
        self
    }

    /// Whether [`Choice::Gpu`] may take a program that plays a device: see [`RouterOptions::software`].
    #[must_use]
    pub fn software(mut self, yes: bool) -> Self {
        self.router.software = yes;
        self
    }

    /// Smaller jobs are the processor's: see [`RouterOptions::least`].
    #[must_use]
    pub fn least(mut self, amount: u64) -> Self {
        self.router.least = amount;
        self
    }

    /// By how much another engine has to be faster: see [`RouterOptions::hysteresis`].
    #[must_use]
    pub fn hysteresis(mut self, share: f64) -> Self {
        self.router.hysteresis = share;
        self
    }

    /// Most paths that go to a device at once.
    #[must_use]
    pub fn batch_paths(mut self, paths: u32) -> Self {
        self.device.batch_paths = paths;
        self
    }

    /// Most batches of one call that are under way at once: while a device works on one, the next is brought up.
    #[must_use]
    pub fn batches_in_flight(mut self, batches: usize) -> Self {
        self.device.batches_in_flight = batches;
        self
    }

    /// Most bytes of a device's memory for segments.
    #[must_use]
    pub fn resident_len_max_bytes(mut self, bytes: u64) -> Self {
        self.resident_len_max_bytes = bytes;
        self
    }

    /// Most bytes of free buffers of a device that are kept for the next job.
    #[must_use]
    pub fn pool_len_max_bytes(mut self, bytes: u64) -> Self {
        self.device.pool_len_max_bytes = bytes;
        self
    }

    /// Only devices whose name contains this.
    #[must_use]
    pub fn only(mut self, name: impl Into<String>) -> Self {
        self.only = Some(name.into());
        self
    }

    /// The file in which measurements are kept.
    #[must_use]
    pub fn state(mut self, file: impl Into<PathBuf>) -> Self {
        self.state = Some(file.into());
        self
    }

    /// See [`SessionOptions::ask_drivers`].
    #[must_use]
    pub fn ask_drivers(mut self, yes: bool) -> Self {
        self.ask_drivers = yes;
        self
    }
}
