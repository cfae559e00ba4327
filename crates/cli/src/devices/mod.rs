//! Who answers bulk questions to an index: the processor, or a graphics processor. [`Answerer`] asks, whoever it is; [`Found`] is what
//! `doctor` tells of devices.
//!
//! A build without the feature `gpu` has the processor alone, and says so to who asks for more.

#[cfg(feature = "gpu")]
mod background;
#[cfg(not(feature = "gpu"))]
mod plain;
#[cfg(feature = "gpu")]
mod routed;
#[cfg(feature = "gpu")]
mod tell;

use crate::args::index_ask::{Device, DeviceArgs};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};

#[cfg(not(feature = "gpu"))]
pub use plain::{Answerer, Found, is_driver_at_work, measure};
#[cfg(feature = "gpu")]
pub use routed::{Answerer, measure};
#[cfg(feature = "gpu")]
pub use tell::{Found, is_driver_at_work};

/// The variable that says who answers where no argument does.
const DEVICE_VARIABLE: &str = "ADIT_DEVICE";

/// Who was asked for: by an argument, else by the environment.
fn wanted(args: &DeviceArgs) -> Result<Device> {
    if let Some(device) = &args.device {
        return Ok(device.clone());
    }
    match std::env::var(DEVICE_VARIABLE) {
        Ok(text) if !text.is_empty() => {
            Device::parse(&text).map_err(|why| Failure::usage(format!("{DEVICE_VARIABLE}: {why}")))
        }
        _ => Ok(Device::Auto),
    }
}

/// For the index of a mount, whose own process answers. What the environment asks for is meant for every command, and no failure of one
/// that cannot follow it: that is said.
///
/// # Errors
/// `NotSupported` if an argument asks for a device; usage, if the environment asks for nonsense.
pub fn of_mount(args: &DeviceArgs, quiet: bool) -> Result<()> {
    let what = "the process of a mount answers with the processor";
    let hint = "for a device, make an index file: adit index build SOURCE -o FILE";
    match (&args.device, wanted(args)?) {
        (Some(_), Device::Gpu(_)) => return Err(Failure::new(Code::NotSupported, what).hint(hint)),
        (None, Device::Gpu(_)) if !quiet => {
            let asked = std::env::var(DEVICE_VARIABLE).unwrap_or_default();
            eprintln!("adit: {DEVICE_VARIABLE}={asked} is not heeded: {what}\n  {hint}");
        }
        _ => {}
    }
    if args.explain {
        eprintln!("the process of the mount answers, with the processor");
    }
    Ok(())
}

/// Keeps a layer of Mesa's drivers from saying on standard error that there is no display, which nobody needs. Call it while the process has
/// one thread.
pub fn quiet_drivers() {
    // SAFETY: no other thread reads or writes the environment, because there is none.
    #[cfg(feature = "gpu")]
    unsafe {
        std::env::set_var("NODEVICE_SELECT", "1");
    }
}
