//! Why a device did not answer. All but [`GpuError::Segment`] mean that the processor has to.

use adit_core::error::{ErrorKind, FsError};

/// What is wrong with a device, or with a job for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No driver offers a device of this name or number.
    #[error("there is no device {wanted:?}; `adit doctor` lists those that drivers offer")]
    NoAdapter {
        /// What was asked for.
        wanted: String,
    },
    /// All that drivers offer are programs on the processor that play a device, which nobody asked for.
    #[error("there is no graphics processor here, only {adapter}, a program that plays one")]
    OnlySoftware {
        /// The first of them.
        adapter: String,
    },
    /// The driver does not let it be used.
    #[error("{adapter} cannot be opened: {why}")]
    Open {
        /// The device.
        adapter: String,
        /// As the driver says.
        why: String,
    },
    /// It was reset, taken out, or does not answer any more: all that lay on it is gone.
    #[error("{adapter} was lost: {why}")]
    Lost {
        /// The device.
        adapter: String,
        /// As the driver says.
        why: String,
    },
    /// It has not enough memory for this.
    #[error("{adapter} has no {bytes} bytes of memory left")]
    OutOfMemory {
        /// The device.
        adapter: String,
        /// What was asked for at once.
        bytes: u64,
    },
    /// The job goes over a limit of the device, or of what these kernels can address.
    #[error("{what}: it needs {needs}, and {limit} is the limit")]
    Unfit {
        /// What is limited.
        what: &'static str,
        /// What the job needs.
        needs: u64,
        /// What there is.
        limit: u64,
    },
    /// The driver refused a call: a fault of this program, or of the driver.
    #[error("{adapter} refused a call: {why}")]
    Refused {
        /// The device.
        adapter: String,
        /// As the driver says.
        why: String,
    },
    /// The segment cannot be read. The processor would meet the same.
    #[error(transparent)]
    Segment(#[from] FsError),
}

impl GpuError {
    /// Whether the device is of no use any more.
    pub fn is_lost(&self) -> bool {
        matches!(self, GpuError::Lost { .. } | GpuError::Refused { .. })
    }

    /// Whether the processor can answer in its place.
    pub fn is_of_the_device(&self) -> bool {
        !matches!(self, GpuError::Segment(_))
    }
}

impl From<GpuError> for FsError {
    fn from(e: GpuError) -> FsError {
        let kind = match e {
            GpuError::Segment(e) => return e,
            GpuError::NoAdapter { .. } | GpuError::OnlySoftware { .. } => ErrorKind::NotFound,
            GpuError::Unfit { .. } => ErrorKind::OutOfRange,
            _ => ErrorKind::Io,
        };
        FsError::new(kind).because(e)
    }
}
