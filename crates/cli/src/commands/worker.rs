//! `worker …`: the folder from which the workers of AWS Deadline Cloud mount job attachments, and what they call in it.
//!
//! The official library finds three things in the folder: a script that starts the mount, the program `deadline_vfs`, next to which it
//! looks for the rest, and `fusermount3`, which ends the mount. The latter two are this program under other names
//! ([`crate::args::worker`] has the lines).

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use adit_mount::{MountError, mountpoint};

use super::doctor;
use super::mount::mount_failure;
use super::umount::umount;
use crate::args::low::{GlobalArgs, UmountArgs};
use crate::args::mount_options::MountRequest;
use crate::args::worker::{FUSERMOUNT_NAME, FusermountArgs, VFS_NAME, WorkerCommand, WorkerInstallArgs, unmount_of};
use crate::args::{self, Command as Verb};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open::remark;
use crate::output::Output;

/// Where the official library looks if no variable says otherwise.
const DEFAULT_DIR: &str = "/opt/deadline_vfs";
/// The variable that says otherwise.
const DIR_VARIABLE: &str = "DEADLINE_VFS_PATH";
/// What the library starts, in the folder.
const SCRIPT: &str = "scripts/production/al2/run_deadline_vfs_al2.sh";
/// The script's first line but one, by which an installation of ours is known.
const MARK: &str = "# Made by `adit worker install`, which replaces it.";
/// Drafts of what is put in its place when it is whole end with this.
const DRAFT_END: &str = ".adit-new";

/// `adit worker …`
pub fn worker(command: &WorkerCommand, global: &GlobalArgs) -> Result<()> {
    match command {
        WorkerCommand::Install(args) => install(args),
        WorkerCommand::Fusermount(args) => fusermount(args, global),
    }
}

fn install(args: &WorkerInstallArgs) -> Result<()> {
    check_options(&args.options)?;
    let dir = std::path::absolute(&args.dir).map_err(|e| Failure::io(args.dir.display(), &e))?;
    let (script, program, helper) =
        (dir.join(SCRIPT), dir.join("bin").join(VFS_NAME), dir.join("link").join(FUSERMOUNT_NAME));
    expect_ours(&script, &[&program, &helper])?;
    let own = std::env::current_exe().and_then(fs::canonicalize).map_err(|e| Failure::io("adit", &e))?;
    for place in [&script, &program, &helper] {
        let above = place.parent().unwrap_or(&dir);
        fs::create_dir_all(above).map_err(|e| Failure::io(above.display(), &e))?;
    }
    // First what the next installation knows it by, should this one be interrupted.
    replace(&script, |draft| {
        let mut file = File::create(draft)?;
        file.write_all(&script_with(&args.options))?;
        file.set_permissions(Permissions::from_mode(0o755))
    })?;
    match args.copy {
        true => replace(&program, |draft| fs::copy(&own, draft).map(drop))?,
        false => replace(&program, |draft| symlink(&own, draft))?,
    }
    // The one beside it, so that the folder may be moved.
    replace(&helper, |draft| symlink(Path::new("../bin").join(VFS_NAME), draft))?;
    advise(&program);
    let mut out = Output::new();
    match dir == Path::new(DEFAULT_DIR) {
        true => out.line(format!("installed in {DEFAULT_DIR}, where workers look for it"))?,
        false => out.line(format!("installed; give the worker agent {DIR_VARIABLE}={}", dir.display()))?,
    }
    out.finish()
}

/// Refuses options with which no mount would come about.
fn check_options(options: &[OsString]) -> Result<()> {
    let line = [VFS_NAME, "/mountpoint", "--bucket=bucket", "--manifest=/manifest"].map(OsString::from).into_iter();
    let with_options = line.chain(options.iter().flat_map(|list| ["-o".into(), list.clone()]));
    let parsed = args::parse(with_options).map_err(|e| Failure::usage(e.to_string().trim_end()))?;
    match parsed.command {
        Verb::Mount(mount) => MountRequest::new(mount).map(drop),
        _ => Err(Failure::usage("options of a mount are expected")),
    }
}

/// Refuses to replace what another program has put there.
fn expect_ours(script: &Path, others: &[&Path]) -> Result<()> {
    let foreign = match fs::read(script) {
        Ok(text) if text.split(|&byte| byte == b'\n').any(|line| line == MARK.as_bytes()) => None,
        Ok(_) => Some(script),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            others.iter().copied().find(|path| path.symlink_metadata().is_ok() && !is_adit(path))
        }
        Err(e) => return Err(Failure::io(script.display(), &e)),
    };
    match foreign {
        None => Ok(()),
        Some(path) => {
            Err(Failure::new(Code::Failure, format!("{}: it is not of an installation by adit", path.display()))
                .hint("remove what is there, or name another folder"))
        }
    }
}

/// Whether a path leads to this program.
fn is_adit(path: &Path) -> bool {
    let own = std::env::current_exe().and_then(fs::canonicalize);
    matches!((own, path.canonicalize()), (Ok(own), Ok(there)) if own == there)
}

/// Puts what `make` makes in the place of whatever is there: a mount that is being started sees the one or the other.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(DRAFT_END);
    let draft = PathBuf::from(draft);
    // Of an installation that was interrupted.
    let _ = fs::remove_file(&draft);
    make(&draft).and_then(|()| fs::rename(&draft, path)).map_err(|e| Failure::io(path.display(), &e))
}

/// The script that workers start. It is found by its own name, so that the folder may be moved.
///
/// The worker's own folder for sockets means nothing to the user of the job, nor to who unmounts: both are to look in the same one.
fn script_with(options: &[OsString]) -> Vec<u8> {
    let mut text = format!(
        "#!/bin/sh\n{MARK}\nset -eu\nhere=$(CDPATH='' cd -- \"$(dirname -- \"$0\")/../../..\" && pwd)\nunset XDG_RUNTIME_DIR\n\
         exec \"$here/bin/{VFS_NAME}\" \"$@\""
    )
    .into_bytes();
    for list in options {
        text.extend_from_slice(b" -o ");
        text.extend(quoted(list));
    }
    text.push(b'\n');
    text
}

/// A word of the shell that means these bytes.
fn quoted(word: &OsString) -> Vec<u8> {
    let mut text = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => text.extend_from_slice(br"'\''"),
            byte => text.push(*byte),
        }
    }
    text.push(b'\'');
    text
}

/// What keeps jobs of other users from mounting, told now and not by a job that fails.
fn advise(program: &Path) {
    let target = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let allows = |path: &Path, bit: u32| path.metadata().is_ok_and(|meta| meta.permissions().mode() & bit == bit);
    let closed = target.ancestors().skip(1).find(|folder| !allows(folder, 0o001));
    if let Some(closed) = closed.or_else(|| (!allows(&target, 0o005)).then_some(target.as_path())) {
        remark(&format!(
            "{}: other users cannot run it, for they have no right to {}: install with --copy, or in another place",
            program.display(),
            closed.display()
        ));
    }
    if !doctor::users_may_allow_others() {
        remark("jobs of users other than root cannot mount: add the line `user_allow_other` to /etc/fuse.conf");
    }
}

/// What a worker calls to unmount, and what this program's own mounts meet first on the `PATH` of a worker. All that is not the
/// end of a mount of ours is the system's.
fn fusermount(args: &FusermountArgs, global: &GlobalArgs) -> Result<()> {
    if let Some((path, lazy)) = unmount_of(&args.arguments) {
        let resolved = mountpoint::resolve(&path).unwrap_or_else(|_| path.clone());
        if mountpoint::find(&resolved).is_some_and(|entry| entry.fs_type == mountpoint::FS_TYPE) {
            return umount(&UmountArgs { mountpoints: vec![path], lazy, no_flush: false, yes: false }, global);
        }
    }
    let helpers = mountpoint::helpers();
    let Some(helper) = helpers.first() else { return Err(mount_failure(&MountError::NoHelper)) };
    // It takes the place of this process, and its code is ours.
    let error = Command::new(helper).args(&args.arguments).exec();
    Err(Failure::io(helper.display(), &error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn options_are_words_of_the_shell() {
        let word = OsString::from_vec(b"a='b c'\xff$x".to_vec());
        assert_eq!(quoted(&word), b"'a='\\''b c'\\''\xff$x'");
        let script = script_with(&["strict".into(), "cache_dir=/a b".into()]);
        assert!(script.ends_with(b"\"$@\" -o 'strict' -o 'cache_dir=/a b'\n"));
    }
}
