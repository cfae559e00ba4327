//! Plans: the steps of the host that move or remove an object of a vault.
//!
//! A folder moves by a rename. overlayfs renames no folder that lies in a lower layer (`EXDEV`), other hosts none to where
//! another quota or disk is: there a new folder is made and gets what is in the old one.

use std::sync::Arc;

use adit_core::{ErrorKind, Result};

use super::Shared;
use super::change::temporary;
use super::entries::{Found, Sealed, Shape};
use super::nodes::DirNode;
use crate::format::names::{CONTENTS_FILE, DIR_FILE, DIRID_FILE, NAME_FILE, SYMLINK_FILE};
use crate::journal::{Op, Step};

/// How folders of the host move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Folders {
    /// By a rename.
    Whole,
    /// File by file, into a new one.
    ByTheFile,
}

/// The steps of a plan.
pub(super) struct Steps {
    folders: Folders,
    steps: Vec<Step>,
    /// Those that only remove: they come last.
    rest: Vec<Step>,
    essential: usize,
}

/// An object on its way: where it lies, how, and whether it is a folder with a hash for a name.
pub(super) struct Relocation<'a> {
    path: &'a str,
    shape: &'a Shape,
    long: bool,
    name: &'a str,
}

impl<'a> Relocation<'a> {
    pub fn of(found: &'a Found) -> Relocation<'a> {
        Relocation { path: &found.path, shape: &found.shape, long: found.long, name: &found.full }
    }

    /// The same, where it was put.
    pub fn at(self, path: &'a str) -> Relocation<'a> {
        Relocation { path, ..self }
    }

    /// The files in its folder.
    fn parts(&self) -> Vec<&'static str> {
        let main = match self.shape {
            Shape::PlainFile => return Vec::new(),
            Shape::LongFile => CONTENTS_FILE,
            Shape::Symlink => SYMLINK_FILE,
            Shape::Directory(_) => DIR_FILE,
        };
        if self.long { vec![main, NAME_FILE] } else { vec![main] }
    }
}

/// A name that an object gets.
pub(super) struct Target<'a> {
    pub dir: &'a DirNode,
    pub sealed: &'a Sealed,
}

/// Runs what `plan` says. If the host does not move folders that lie there, once more, file by file.
pub(super) fn run(shared: &Shared, op: &Op<'_>, plan: impl Fn(&mut Steps)) -> Result<()> {
    let run = |folders| -> Result<()> {
        let mut steps = Steps { folders, steps: Vec::new(), rest: Vec::new(), essential: 0 };
        plan(&mut steps);
        let left = op.run_plan(&steps.steps, steps.essential)?;
        left.into_iter().for_each(|folder| shared.leftovers.note(folder));
        Ok(())
    };
    match run(Folders::Whole) {
        Err(e) if e.kind() == ErrorKind::CrossDevice => run(Folders::ByTheFile),
        other => other,
    }
}

fn rename(from: impl Into<String>, to: impl Into<String>) -> Step {
    Step::Rename { from: from.into(), to: to.into() }
}

fn name_file(folder: &str) -> String {
    format!("{folder}/{NAME_FILE}")
}

impl Steps {
    /// What was put here so far makes the plan; what follows only removes.
    pub fn are_essential(&mut self) {
        self.essential = self.steps.len();
        self.steps.append(&mut self.rest);
    }

    /// Moves the object to a name of passage in its directory `dir`, which it returns.
    pub fn put_aside(&mut self, found: &Found, dir: &DirNode) -> String {
        let aside = temporary(dir);
        let object = Relocation::of(found);
        self.move_whole(&object, &found.path, &aside, dir, &object.parts());
        aside
    }

    /// Moves a file, or the folder of an object with these files in it, as it is.
    fn move_whole(&mut self, object: &Relocation<'_>, from: &str, to: &str, dir: &DirNode, parts: &[&str]) {
        if self.folders == Folders::Whole || *object.shape == Shape::PlainFile {
            self.steps.push(rename(from, to));
            return;
        }
        let fresh = temporary(dir);
        self.steps.push(Step::MakeDir { path: fresh.clone() });
        let moves = parts.iter().map(|part| rename(format!("{from}/{part}"), format!("{fresh}/{part}")));
        self.steps.extend(moves);
        self.steps.push(Step::RemoveDir { path: from.to_owned() });
        self.steps.push(rename(fresh, to));
    }

    /// Moves an object to a free name.
    pub fn move_object(&mut self, object: &Relocation<'_>, to: &Target<'_>) {
        let Relocation { path, shape, long, name } = *object;
        let target = format!("{}/{}", to.dir.hash, to.sealed.stored);
        let full = || to.sealed.full.clone().into_bytes();
        let parts = object.parts();
        match (shape, long, to.sealed.long) {
            (_, false, false) => self.move_whole(object, path, &target, to.dir, &parts),
            (Shape::PlainFile, false, true) => {
                let folder = temporary(to.dir);
                self.steps.push(Step::MakeDir { path: folder.clone() });
                self.steps.push(Step::Write { path: name_file(&folder), bytes: full() });
                self.steps.push(rename(path, format!("{folder}/{CONTENTS_FILE}")));
                self.steps.push(rename(folder, target));
            }
            (_, false, true) => {
                self.steps.push(Step::Write { path: name_file(path), bytes: full() });
                self.move_whole(object, path, &target, to.dir, &[&parts[..], &[NAME_FILE]].concat());
            }
            (Shape::PlainFile | Shape::LongFile, true, false) => {
                let folder = temporary(to.dir);
                self.steps.push(rename(format!("{path}/{CONTENTS_FILE}"), target));
                self.move_whole(object, path, &folder, to.dir, &[NAME_FILE]);
                self.rest.push(Step::RemoveFile { path: name_file(&folder) });
                self.rest.push(Step::RemoveDir { path: folder });
            }
            (_, true, false) => {
                self.move_whole(object, path, &target, to.dir, &parts);
                self.rest.push(Step::RemoveFile { path: name_file(&target) });
            }
            (_, true, true) => {
                let old = name.as_bytes().to_vec();
                self.steps.push(Step::Rewrite { path: name_file(path), bytes: full(), old });
                self.move_whole(object, path, &target, to.dir, &parts);
            }
        }
    }

    /// Removes an object that was put aside as `trash`.
    pub fn remove(&mut self, shared: &Shared, trash: &str, target: &Found) {
        if target.shape == Shape::PlainFile {
            self.steps.push(Step::RemoveFile { path: trash.to_owned() });
            return;
        }
        if let Shape::Directory(id) = &target.shape {
            let content = shared.names.dir_hash(id).path();
            self.steps.push(Step::RemoveFile { path: format!("{content}/{DIRID_FILE}") });
            self.steps.push(Step::RemoveDir { path: content });
        }
        let file = |part: &str| Step::RemoveFile { path: format!("{trash}/{part}") };
        self.steps.extend(Relocation::of(target).parts().into_iter().map(file));
        self.steps.push(Step::RemoveDir { path: trash.to_owned() });
    }
}

/// Removes an object whose folder the host does not move.
pub(super) fn remove(shared: &Shared, op: &Op<'_>, dir: &Arc<DirNode>, found: &Found) -> Result<()> {
    super::rename::settle_entries(shared, dir, Some(found))?;
    run(shared, op, |steps| {
        let trash = steps.put_aside(found, dir);
        steps.are_essential();
        steps.remove(shared, &trash, found);
    })
}
