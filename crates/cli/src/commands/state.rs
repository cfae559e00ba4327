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
/// The state of a file in JSON that nobody can tell.
const UNKNOWN: &str = "unknown";

/// `adit status MOUNTPOINT PATH…`
pub fn states(args: &StatusArgs) -> Result<()> {
    let mount = Registry::of_this_user().find(&args.mountpoint).map_err(|e| answered(&e))?;
    let mut out = Output::new();
    let (mut told, mut failures): (Vec<Value>, _) = (Vec::new(), Failures::default());
    let mut sink = |path: &Path, state: Result<String>| -> Result<()> {
        let name = [b"/", path.as_os_str().as_bytes()].concat();
        let (state, error) = match state {
            Ok(state) => (state, None),
            Err(failure) => {
                failures.add(&failure);
                (UNKNOWN.to_owned(), Some(failure.message().to_owned()))
            }
        };
        if args.json {
            let mut object = json!({ "state": state });
            if let Some(error) = error {
                object["error"] = error.into();
            }
            add_name(&mut object, "path", &name);
            told.push(object);
            return Ok(());
        }
        // A line on standard error has told it.
        if error.is_some() { Ok(()) } else { out.line(format_args!("{state:<9}  {}", printable(&name))) }
    };
    let mut walk = Walk { mountpoint: &args.mountpoint, kind: &mount.kind, state_of: &state_of, sink: &mut sink };
    let mut refused = Failures::default();
    for path in &args.paths {
        if let Err(failure) = walk.look_at(&below(path)?, true) {
            refused.add(&failure);
        }
    }
    if args.json {
        out.json(&told)?;
    }
    out.finish()?;
    failures.result().and_then(|()| refused.result())
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

/// What the mount says of the file at a path of this machine.
fn state_of(at: &Path) -> rustix::io::Result<String> {
    let mut state = [0; STATE_LEN_MAX];
    let len = rustix::fs::lgetxattr(at, STATE_XATTR, &mut state[..])?;
    Ok(OsStr::from_bytes(state.get(..len).unwrap_or_default()).to_string_lossy().into_owned())
}

/// Whether there is nothing any more under a path that a listing had.
fn is_gone(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Who looks at files below a mountpoint.
struct Walk<'a> {
    mountpoint: &'a Path,
    /// What is mounted there.
    kind: &'a str,
    state_of: &'a dyn Fn(&Path) -> rustix::io::Result<String>,
    /// Takes a path below the mountpoint, and the state of the file there, or why nobody can tell it.
    sink: &'a mut dyn FnMut(&Path, Result<String>) -> Result<()>,
}

impl Walk<'_> {
    /// Tells the state of the file at `path`, or of those in a folder, by name. What cannot be looked at is told, and the others come all the
    /// same. The mount goes on being changed: what is gone is told only where it was `named`.
    ///
    /// # Errors
    /// That such a mount has no states; those of what is told.
    fn look_at(&mut self, path: &Path, named: bool) -> Result<()> {
        let at = if path == Path::new("") { self.mountpoint.to_owned() } else { self.mountpoint.join(path) };
        let meta = match fs::symlink_metadata(&at) {
            Ok(meta) => meta,
            Err(e) => return self.failed(path, &at, &e, named),
        };
        if meta.is_dir() {
            let entries = fs::read_dir(&at).and_then(|entries| {
                let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
                names.collect::<io::Result<Vec<_>>>()
            });
            let mut names = match entries {
                Ok(names) => names,
                Err(e) => return self.failed(path, &at, &e, named),
            };
            names.sort();
            return names.iter().try_for_each(|name| self.look_at(&path.join(name), false));
        }
        if !meta.is_file() {
            // In a folder they are passed over: it is asked for files.
            let what = if meta.is_symlink() { "a symbolic link" } else { "no file" };
            let none = || {
                Failure::new(Code::Failure, format!("{}: {what}, which has no state", at.display()))
                    .hint("files have one")
            };
            return if named { (self.sink)(path, Err(none())) } else { Ok(()) };
        }
        match (self.state_of)(&at) {
            Ok(state) => (self.sink)(path, Ok(state)),
            Err(Errno::NODATA | Errno::NOTSUP) => {
                let what =
                    format!("{}: a mount of a {} has no states of single files", self.mountpoint.display(), self.kind);
                Err(Failure::new(Code::NotSupported, what).hint("a mount of a manifest has"))
            }
            Err(e) => self.failed(path, &at, &e.into(), named),
        }
    }

    fn failed(&mut self, path: &Path, at: &Path, e: &io::Error, named: bool) -> Result<()> {
        match is_gone(e) && !named {
            true => Ok(()),
            false => (self.sink)(path, Err(Failure::io(at.display(), e))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is deleted between the listing and the look at it is no failure, and hides nothing of the rest.
    #[test]
    fn what_goes_meanwhile_is_not_told_and_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("c/in")).unwrap();
        fs::create_dir_all(at("d")).unwrap();
        for name in ["a", "b", "c/in/f", "d/f", "e", "f", "g"] {
            fs::write(at(name), name).unwrap();
        }
        let state_of = |path: &Path| {
            match path.file_name().unwrap().to_str().unwrap() {
                "a" => {
                    fs::remove_file(at("b")).unwrap();
                    fs::remove_dir_all(at("c")).unwrap();
                }
                // Between the two looks at it.
                "e" => return Err(Errno::NOENT),
                "f" if path == at("f") => return Err(Errno::ILSEQ),
                _ => {}
            }
            Ok("cached".to_owned())
        };
        let mut told = Vec::new();
        let mut sink = |path: &Path, state: Result<String>| {
            told.push((path.to_str().unwrap().to_owned(), state.map_err(|failure| failure.code())));
            Ok(())
        };
        let mut walk = Walk { mountpoint: dir.path(), kind: "manifest", state_of: &state_of, sink: &mut sink };
        walk.look_at(Path::new(""), true).unwrap();
        walk.look_at(Path::new("b"), true).unwrap();
        // Only who is named is answered.
        std::os::unix::fs::symlink("a", at("link")).unwrap();
        walk.look_at(Path::new("link"), false).unwrap();
        walk.look_at(Path::new("link"), true).unwrap();
        let cached = |name: &str| (name.to_owned(), Ok("cached".to_owned()));
        let failed = |name: &str| (name.to_owned(), Err(Code::Failure));
        assert_eq!(told, [cached("a"), cached("d/f"), failed("f"), cached("g"), failed("b"), failed("link")]);
    }
}
