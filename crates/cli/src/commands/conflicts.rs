//! `vault conflicts [--keep PATH]`: second versions that sync programs made, and the choice between them.

use std::path::Path;

use adit_media::HostDirectory;
use adit_vault::Unlocked;
use adit_vault::check::{self as vault_check, Conflict, Options, Resolution};
use serde_json::{Value, json};

use crate::args::low::{ConflictsArgs, GlobalArgs};
use crate::failure::{Failure, Failures, Result};
use crate::open::{self, Purpose};
use crate::output::{Output, printable};
use crate::progress::Progress;
use crate::{live, source, state_dir};

/// `adit vault conflicts`
pub fn conflicts(args: &ConflictsArgs, global: &GlobalArgs) -> Result<()> {
    let dir = source::vault_dir(args.dir.as_os_str())?;
    let mounts = live::of_source(&dir);
    if !args.keep.is_empty() && !mounts.is_empty() {
        let mut failures = Failures::default();
        mounts.iter().for_each(|mount| failures.add(&live::in_the_way(&dir, mount, "mounted", "")));
        return failures.result();
    }
    let (password, keys) = open::vault::password(&dir, &args.password.origin())?;
    drop(password);
    let state = state_dir::locate(global.state_dir.as_deref());
    let purpose = if args.keep.is_empty() { Purpose::Read } else { Purpose::Alone };
    // What a dead process left in its journal is written back first; the claim lasts until the end.
    let claim = match purpose {
        Purpose::Alone => Some(open::vault::claim(&dir, &keys, state, purpose, false)?),
        _ => {
            drop(open::vault::unlocked(&dir, &keys, state, purpose, false));
            None
        }
    };
    let _store = claim.as_ref().map(|claim| open::vault::claimed_alone(&dir, &keys, claim)).transpose()?;
    let root = HostDirectory::open(&dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let mut done = Vec::new();
    for path in &args.keep {
        let found = find(&root, &dir, &keys, global)?;
        done.extend(vault_check::keep(&root, &keys, &found, path).map_err(|e| match e.is_not_found() {
            true => Failure::fs(dir.display(), &e).hint("name a path that `adit vault conflicts` prints"),
            false => Failure::fs(dir.display(), &e),
        })?);
    }
    print(&find(&root, &dir, &keys, global)?, &done, args.json)
}

/// The second versions in the vault.
fn find(root: &HostDirectory, dir: &Path, keys: &Unlocked, global: &GlobalArgs) -> Result<Vec<Conflict>> {
    let mut progress = Progress::new("conflicts", global.quiet);
    let options = Options { contents: false };
    let report = vault_check::check(root, keys, options, &mut |p| {
        progress.reached(p.files + p.directories + p.symlinks, p.bytes);
    });
    progress.finish()?;
    let report = report.map_err(|e| Failure::fs(dir.display(), &e))?;
    if !report.is_clean() && !global.quiet {
        eprintln!(
            "adit: {}: there is damage, and not all may have been found; `adit vault check` tells more",
            dir.display()
        );
    }
    Ok(report.conflicts)
}

fn print(found: &[Conflict], done: &[Resolution], as_json: bool) -> Result<()> {
    let mut out = Output::new();
    if as_json {
        out.json(&document(found, done))?;
        return out.finish();
    }
    for Resolution { ciphertext_path, action } in done {
        out.line(format_args!("{}: {}", printable(ciphertext_path.as_bytes()), printable(action.as_bytes())))?;
    }
    for conflict in found {
        let path = conflict.path.as_deref().unwrap_or("an entry whose path is not known");
        let of = conflict.part().map_or(String::new(), |part| format!(" (of its {part}; no mount shows it)"));
        let version = match (&conflict.shown, conflict.same) {
            (_, true) => "the same once more; it can be removed".to_owned(),
            (Some(shown), _) => printable(shown.as_bytes()),
            (None, _) => "without a name of its own".to_owned(),
        };
        let at = printable(conflict.ciphertext_path.as_bytes());
        out.line(format_args!("{}\n  {version}{of}\n  {at}", printable(path.as_bytes())))?;
    }
    let count = match found.len() {
        0 => "no second versions".to_owned(),
        1 => "1 second version".to_owned(),
        count => format!("{count} second versions"),
    };
    out.line(format_args!("{count}"))?;
    out.finish()
}

fn document(found: &[Conflict], done: &[Resolution]) -> Value {
    let conflict = |c: &Conflict| {
        json!({
            "path": c.path,
            "version": c.shown,
            "ciphertext_path": c.ciphertext_path,
            "part": c.part(),
            "same": c.same,
        })
    };
    let resolution = |r: &Resolution| json!({"ciphertext_path": r.ciphertext_path, "action": r.action});
    json!({
        "conflicts": found.iter().map(conflict).collect::<Vec<_>>(),
        "done": done.iter().map(resolution).collect::<Vec<_>>(),
    })
}
