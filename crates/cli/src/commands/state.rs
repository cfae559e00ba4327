//! `status MOUNTPOINT PATH…`: how single files of a manifest's mount fare.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use adit_core::overlay::STATE_XATTR;
use adit_mount::control::Registry;
use rustix::io::Errno;
use serde_json::{Value, json};

use super::mount::answered;
use crate::args::low::StatusArgs;
use crate::exit_code::Code;
use crate::failure::{Failure, Failures, Result};
use crate::output::{Output, add_name, printable};

/// Longest word of a state, in bytes.
const STATE_LEN_MAX: usize = 32;

/// `adit status MOUNTPOINT PATH…`
pub fn states(args: &StatusArgs) -> Result<()> {
    let mount = Registry::of_this_user().find(&args.mountpoint).map_err(|e| answered(&e))?;
    let mut out = Output::new();
    let (mut told, mut failures): (Vec<Value>, _) = (Vec::new(), Failures::default());
    for path in &args.paths {
        let below = below(path)?;
        let mut sink = |path: &Path, state: &str| -> Result<()> {
            let name = [b"/", path.as_os_str().as_bytes()].concat();
            if args.json {
                let mut object = json!({ "state": state });
                add_name(&mut object, "path", &name);
                told.push(object);
                return Ok(());
            }
            out.line(format_args!("{state:<9}  {}", printable(&name)))
        };
        if let Err(failure) = each_file(&args.mountpoint, &below, &mount.kind, &mut sink) {
            failures.add(&failure);
        }
    }
    if args.json {
        out.json(&told)?;
    }
    out.finish()?;
    failures.result()
}

/// A path below the mountpoint without a slash in front.
fn below(path: &Path) -> Result<PathBuf> {
    let mut below = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => below.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Failure::usage(format!("{}: name the path from the root of the mount", path.display())));
            }
        }
    }
    Ok(below)
}

/// Tells the state of the file at `path`, or of those in a folder, by name.
fn each_file(
    mountpoint: &Path,
    path: &Path,
    kind: &str,
    sink: &mut dyn FnMut(&Path, &str) -> Result<()>,
) -> Result<()> {
    let at = if path == Path::new("") { mountpoint.to_owned() } else { mountpoint.join(path) };
    let failed = |e: &io::Error| Failure::io(at.display(), e);
    let meta = fs::symlink_metadata(&at).map_err(|e| failed(&e))?;
    if meta.is_dir() {
        let entries = fs::read_dir(&at).map_err(|e| failed(&e))?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>();
        let mut names = names.map_err(|e| failed(&e))?;
        names.sort();
        return names
            .iter()
            .try_for_each(|name: &std::ffi::OsString| each_file(mountpoint, &path.join(name), kind, sink));
    }
    if !meta.is_file() {
        return Ok(());
    }
    let mut state = [0; STATE_LEN_MAX];
    match rustix::fs::lgetxattr(&at, STATE_XATTR, &mut state[..]) {
        Ok(len) => sink(path, &OsStr::from_bytes(state.get(..len).unwrap_or_default()).to_string_lossy()),
        Err(Errno::NODATA | Errno::NOTSUP) => {
            let what = format!("{}: a mount of a {kind} has no states of single files", mountpoint.display());
            Err(Failure::new(Code::NotSupported, what).hint("a mount of a manifest has"))
        }
        Err(e) => Err(failed(&e.into())),
    }
}
