//! `index measure`.

use crate::args::index_ask::{DeviceArgs, IndexMeasureArgs};
use crate::devices;
use crate::failure::Result;
use crate::open::index::only_file;
use crate::output::Output;

/// `adit index measure`
pub fn measure(args: &IndexMeasureArgs) -> Result<()> {
    // A program asks for it as a rule, and nobody looks on.
    let index = only_file(&args.index, &args.secret, true)?;
    let found = devices::measure(&index, &DeviceArgs { device: args.device.clone(), explain: false }, args.again)?;
    let mut out = Output::new();
    if args.json {
        out.json(&found.json())?;
    } else {
        out.line(found.summary())?;
        found.lines().iter().try_for_each(|line| out.line(line))?;
    }
    out.finish()
}
