//! `diff`: what the upper volume of an overlay holds.

use adit_mount::control::{ControlError, Registry};
use serde_json::Value;

use super::mount::answered;
use super::mount::volume::DIFF_VERB;
use crate::args::low::DiffArgs;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::output::{self, Output};
use crate::volume_work::UNKNOWN;

/// `adit diff`
pub fn diff(args: &DiffArgs) -> Result<()> {
    let registry = Registry::of_this_user();
    let mount = registry.find(&args.mountpoint).map_err(|e| answered(&e))?;
    if mount.kind != "overlay" {
        let what = format!("{}: a mount of a {}, and no overlay", args.mountpoint.display(), mount.kind);
        let failure = Failure::new(Code::NotSupported, what);
        return Err(match mount.kind.as_str() {
            "volume" => failure.hint(format!(
                "`adit snapshot diff {} NAME` tells what changed since a snapshot",
                args.mountpoint.display()
            )),
            _ => failure,
        });
    }
    let mut waiting = || registry.ping(&mount);
    let found = registry.call_patiently(&mount, DIFF_VERB, &Value::Null, &mut waiting).map_err(|e| match e {
        ControlError::Answered { kind, message } => Failure::new(Code::of_word(&kind), message),
        e => answered(&e),
    })?;
    let mut out = Output::new();
    match args.json {
        true => out.json(&found)?,
        false => output::differences(&mut out, &found)?,
    }
    out.finish()?;
    let unknown = found.as_array().into_iter().flatten().filter(|told| told["change"] == UNKNOWN).count();
    if unknown == 0 {
        return Ok(());
    }
    let paths = if unknown == 1 { "1 path".to_owned() } else { format!("{unknown} paths") };
    let what = format!("{}: what was listed is not all: {paths} could not be compared", args.mountpoint.display());
    Err(Failure::new(Code::Failure, what).hint(format!("put back what went or changed in {}", mount.source)))
}
