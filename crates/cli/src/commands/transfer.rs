//! `get` and `put`: copying between a source and this machine, without a mount.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use adit_core::path::transfer::{
    CopyOptions, Event, HostPlace, Kept, Outward, copy_in, copy_out, copy_stream_in, open_dir,
};
use adit_core::path::{Last, Node, Step, Tree, Visit};
use adit_core::types::Kind;
use adit_core::{ErrorKind, FsError};

use super::bytes;
use crate::args::low::{GetArgs, GlobalArgs, PutArgs};
use crate::drafts::{self, Drafts};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::live;
use crate::open::{self, Opened, Purpose};
use crate::progress::Progress;
use crate::secrets::Origin;
use crate::state_dir;

/// In the place of a file of this machine: standard input or output. A file of that name is `./-`.
pub const STANDARD_STREAM: &str = "-";

/// `adit get`
pub fn get(args: &GetArgs, global: &GlobalArgs) -> Result<()> {
    let (dir, opened) = open::source(&args.source, global, Purpose::Read)?;
    let tree = Tree::new(&*opened.store);
    if args.dest == Path::new(STANDARD_STREAM) {
        return super::browse::print_file(&tree, &opened, bytes(&args.path));
    }
    live::expect_answers(&args.dest)?;
    let start = tree.resolve(bytes(&args.path), Last::Keep).map_err(|e| opened.failure(dir.display(), &e))?;
    let to = destination(&args.dest, &start).map_err(|e| match e.is_not_found() {
        true => Failure::fs("get", &e).hint("the folder for the copy must be there: make it first"),
        false => Failure::fs("get", &e),
    })?;
    let options = CopyOptions { replace: !args.no_replace, ..CopyOptions::default() };
    interrupt::watch();
    // What has no space is the copy.
    let advice = opened.advice.copying_to(&args.dest);
    let mut progress = Progress::new("get", global.quiet).whole().advising(&advice);
    if progress.is_watched() {
        measure(&tree, &start, (0, 0), &mut progress).into_iter().for_each(|(_, bytes)| progress.learn_total(bytes));
    }
    let done = copy_out(&tree, start, to, &options, &mut |event| progress.event(event));
    let finished = progress.finish_with_sum();
    done.map_err(|e| advice.failure("get", &e))?;
    finished
}

/// Entries and bytes at `start` and below, added to those that were counted `before`. `None` if that was interrupted, or `start` cannot be read.
/// What else cannot be looked at is told by who copies it.
fn measure(tree: &Tree<'_>, start: &Node<'_>, before: (u64, u64), progress: &mut Progress) -> Option<(u64, u64)> {
    let (mut entries, mut bytes) = before;
    let start = tree.resolve(start.path(), Last::Keep).ok()?;
    let walked = tree.walk(start, &mut |visit| {
        if interrupt::came() {
            return Err(ErrorKind::Interrupted.into());
        }
        if let Visit::Entry { node, .. } = visit {
            entries += 1;
            bytes += if node.kind() == Kind::File { node.attr().size } else { 0 };
            progress.measured(entries, bytes);
        }
        Ok(Step::Into)
    });
    walked.ok().map(|()| (entries, bytes))
}

/// The same of what lies at these places of this machine.
fn measure_hosts(hosts: &[PathBuf], progress: &mut Progress) -> Option<(u64, u64)> {
    hosts.iter().try_fold((0, 0), |(entries, bytes), host| {
        let found = host.symlink_metadata().ok()?;
        if !found.is_dir() {
            let len = if found.is_file() { found.len() } else { 0 };
            return Some((entries + 1, bytes + len));
        }
        let store = open::dir(host, true).ok()?;
        let tree = Tree::new(&*store);
        let root = tree.root().ok()?;
        measure(&tree, &root, (entries, bytes), progress)
    })
}

/// Into `dest` if it is a folder, else as it. The root has no name: what it holds goes into `dest`.
fn destination(dest: &Path, start: &Node<'_>) -> Result<Outward, FsError> {
    if dest.is_dir() {
        return Ok(match start.name() {
            b"" => Outward::Into(open_dir(dest)?),
            name => Outward::As(HostPlace::of(&dest.join(OsStr::from_bytes(name)))?),
        });
    }
    if start.kind() != Kind::Directory && dest.as_os_str().as_bytes().ends_with(b"/") {
        return Err(FsError::new(ErrorKind::NotFound).on("open", dest.display()));
    }
    Ok(Outward::As(HostPlace::of(dest)?))
}

/// `adit put`
pub fn put(args: &PutArgs, global: &GlobalArgs) -> Result<()> {
    if args.host.iter().any(|host| host == Path::new(STANDARD_STREAM)) {
        return put_stream(args, global);
    }
    args.host.iter().try_for_each(|host| live::expect_answers(host))?;
    let (dir, opened) = open::source(&args.source, global, Purpose::Write)?;
    let tree = Tree::new(&*opened.store);
    let fail = |e: FsError| opened.failure(dir.display(), &e);
    let own = std::fs::metadata(&dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let options = CopyOptions { replace: !args.no_replace, leave_out: Some((own.dev(), own.ino())) };
    let path = bytes(&args.path);
    let into = match tree.resolve(path, Last::Follow) {
        Ok(node) if node.kind() == Kind::Directory => Some(node),
        Err(e) if !e.is_not_found() => return Err(fail(e)),
        _ if args.host.len() > 1 || path.ends_with(b"/") => {
            let error = FsError::new(ErrorKind::NotDirectory).on("put", args.path.display());
            return Err(fail(error).hint("to copy several things into a new folder, make it first: adit mkdir"));
        }
        _ => None,
    };
    interrupt::watch();
    let mut log = PutLog::begin(&dir, &opened, &tree, global);
    if log.progress.is_watched() {
        let measured = measure_hosts(&args.host, &mut log.progress);
        measured.into_iter().for_each(|(_, bytes)| log.progress.learn_total(bytes));
    }
    let mut kept = Kept::default();
    let mut result = Ok(());
    for host in &args.host {
        let target = match &into {
            Some(folder) => Target::Into(folder),
            None => Target::As(path),
        };
        let from = match host_place(host) {
            Ok(from) => from,
            Err(e) => {
                log.progress.failed(&Failure::fs("put", &e));
                continue;
            }
        };
        match put_one(&tree, &from, target, &options, &mut kept, &mut log) {
            Ok(()) => {}
            Err(e) if is_final(&e) => {
                result = Err(fail(e));
                break;
            }
            Err(e) => log.progress.failed(&fail(e)),
        }
    }
    drop(kept);
    let synced = opened.sync_all().map_err(fail);
    log.end(result.and(synced))
}

/// Hears of what a `put` does.
struct PutLog {
    progress: Progress,
    drafts: Option<Drafts>,
}

impl PutLog {
    /// Before anything is made in the source, what others have left goes.
    fn begin(dir: &Path, opened: &Opened, tree: &Tree<'_>, global: &GlobalArgs) -> PutLog {
        let state = || state_dir::locate(global.state_dir.as_deref());
        let removed = drafts::sweep(state(), dir, tree);
        if removed > 0 {
            open::remark(&format!(
                "{}: removed what a put that was killed had not finished ({removed})",
                dir.display()
            ));
        }
        let progress = Progress::new("put", global.quiet).advising(&opened.advice);
        PutLog { progress, drafts: Drafts::begin(state(), dir) }
    }

    fn event(&mut self, tree: &Tree<'_>, event: Event<'_>) -> ControlFlow<()> {
        if let (Some(drafts), Event::Drafts { folder }) = (&mut self.drafts, &event) {
            drafts.folder(tree, folder);
        }
        self.progress.event(event)
    }

    /// Ends the display; fails as `done`, which ended all of it, or if an entry did.
    fn end(self, done: Result<()>) -> Result<()> {
        let finished = self.progress.finish_with_sum();
        let done = done.and(finished);
        self.drafts.into_iter().for_each(|drafts| drafts.end(done.is_ok()));
        done
    }
}

/// `adit put SOURCE - PATH`: what standard input gives becomes the file PATH.
fn put_stream(args: &PutArgs, global: &GlobalArgs) -> Result<()> {
    if args.host.len() > 1 {
        return Err(
            Failure::usage("put: standard input (-) can only be put alone").hint("a file with that name is ./-")
        );
    }
    if args.source.password.origin() == Origin::Stdin {
        return Err(Failure::usage("put: standard input cannot give both the password and the file"));
    }
    let perm = 0o666 & !crate::process::umask() as u16;
    let (dir, opened) = open::source(&args.source, global, Purpose::Write)?;
    let tree = Tree::new(&*opened.store);
    let fail = |e: FsError| opened.failure(dir.display(), &e);
    let path = bytes(&args.path);
    match tree.resolve(path, Last::Follow) {
        Ok(node) if node.kind() == Kind::Directory => {
            let error = FsError::new(ErrorKind::IsDirectory).on("put", args.path.display());
            return Err(fail(error).hint("what comes from standard input has no name: PATH must name the file"));
        }
        Err(e) if !e.is_not_found() => return Err(fail(e)),
        _ => {}
    }
    let (parent, name) = tree.resolve_parent(path).map_err(fail)?;
    let options = CopyOptions { replace: !args.no_replace, ..CopyOptions::default() };
    interrupt::watch();
    let mut log = PutLog::begin(&dir, &opened, &tree, global);
    let mut stream = interrupt::Input;
    let mut tell = |event: Event<'_>| log.event(&tree, event);
    let done = copy_stream_in(&tree, &mut stream, &parent, &name, perm, &options, &mut tell);
    log.end(done.and_then(|_| opened.sync_all()).map_err(fail))
}

/// Where one thing goes.
#[derive(Clone, Copy)]
enum Target<'a> {
    Into(&'a Node<'a>),
    As(&'a [u8]),
}

fn put_one<'t>(
    tree: &'t Tree<'t>,
    from: &HostPlace,
    target: Target<'_>,
    options: &CopyOptions,
    kept: &mut Kept<'t>,
    log: &mut PutLog,
) -> Result<(), FsError> {
    let mut tell = |event: Event<'_>| log.event(tree, event);
    match target {
        Target::Into(folder) => {
            // The folder again, as a node of this tree; by its path, which holds no links.
            let folder = tree.resolve(folder.path(), Last::Keep)?;
            copy_in(tree, from, &folder, from.name().as_bytes(), options, kept, &mut tell).map(drop)
        }
        Target::As(path) => {
            let (parent, name) = tree.resolve_parent(path)?;
            copy_in(tree, from, &parent, &name, options, kept, &mut tell).map(drop)
        }
    }
}

/// The place on this machine; `.`, `..` and a trailing slash mean the folder itself.
fn host_place(host: &Path) -> Result<HostPlace, FsError> {
    let names_itself = matches!(host.components().next_back(), Some(std::path::Component::Normal(_)));
    if names_itself && !host.as_os_str().as_bytes().ends_with(b"/") {
        return HostPlace::of(host);
    }
    let real = host.canonicalize().map_err(|e| FsError::from(e).on("open", host.display()))?;
    HostPlace::of(&real)
}

/// Whether every further copy would fail in the same way.
fn is_final(error: &FsError) -> bool {
    use ErrorKind::*;
    matches!(error.kind(), NoSpace | QuotaExceeded | ReadOnly | Network | Interrupted | Exhausted | TooManyFiles)
}
