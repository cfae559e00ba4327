//! Where uppers lie: the one that was named, or one in the cache directory, which is found by what it belongs to.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use adit_core::overlay::LowerIdentity;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::args::mount_options::MountRequest;
use crate::args::volume::DataArgs;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open::remark;
use crate::volume_work::{Asked, Named};
use crate::{source, volume_work};

/// The folder of uppers in the cache directory.
const UPPERS_DIR: &str = "overlays";
/// The folder of those that belong to a mountpoint as well: whoever mounts elsewhere does not look there.
const OF_MOUNTPOINTS_DIR: &str = "mountpoints";
/// What lies in a cache directory, by which it is told whose that is.
const PARTS: [&str; 6] = ["objects", "indexes", "uploads", UPPERS_DIR, OF_MOUNTPOINTS_DIR, "hashes.redb"];
/// What the names of their files end with.
const UPPER_EXTENSION: &str = "adit";

/// The file of the upper, absolute; it need not exist.
///
/// # Errors
/// Usage, if it has no name, or nothing says where it is; the host's.
pub fn upper(request: &MountRequest, identity: &LowerIdentity, mountpoint: &Path) -> Result<PathBuf> {
    if let Some(dir) = &request.upper_dir {
        return of_mountpoint(&resolved(&cache_dir(Some(dir))?.join(OF_MOUNTPOINTS_DIR))?, identity, mountpoint);
    }
    let Some(given) = &request.upper else {
        return in_cache(request.cas.cache_dir.as_deref(), identity);
    };
    let given = Path::new(source::without_prefix(given.as_os_str()));
    if given.exists() {
        return source::volume_file(given.as_os_str());
    }
    let above = match given.parent() {
        Some(above) if above != Path::new("") => above,
        _ => Path::new("."),
    };
    let name =
        given.file_name().ok_or_else(|| Failure::usage(format!("{}: not the name of a file", given.display())))?;
    let above = above.canonicalize().map_err(|e| Failure::io(above.display(), &e))?;
    Ok(above.join(name))
}

/// The upper in `dir` of a lower and a mountpoint: one half of its name is told by each. Says so if other lowers were changed there
/// before, whose uppers are left alone.
fn of_mountpoint(dir: &Path, identity: &LowerIdentity, mountpoint: &Path) -> Result<PathBuf> {
    let half = format!("{:016x}", xxh3_64(mountpoint.as_os_str().as_bytes()));
    let own = dir.join(format!("{half}{:016x}.{UPPER_EXTENSION}", xxh3_64(&identity.id)));
    if !own.exists() {
        let is_here =
            |file: &&PathBuf| file.file_name().is_some_and(|name| name.as_bytes().starts_with(half.as_bytes()));
        for other in uppers_in(dir)?.iter().filter(is_here) {
            remark(&format!(
                "{}: what was changed there over something else before stays in {}, and is not shown",
                mountpoint.display(),
                other.display()
            ));
        }
    }
    Ok(own)
}

/// The upper of a lower in the cache directory, which may be `given`. Nothing is made: the cache directory may lie in the lower.
///
/// It has the name that the lower gives it, unless it was bound to that later: then it has the name of an older place, and the others
/// are asked which of them it is. That is done only where a new one would be made.
///
/// # Errors
/// As [`uppers_dir`]; the host's.
pub fn in_cache(given: Option<&Path>, identity: &LowerIdentity) -> Result<PathBuf> {
    let own = first_place(given, identity)?;
    if own.exists() {
        return Ok(own);
    }
    for file in own.parent().map_or_else(|| Ok(Vec::new()), uppers_in)? {
        match belongs(&file, identity) {
            Ok(true) => return Ok(file),
            Ok(false) => {}
            Err(failure) => remark(&format!("it cannot be told what this upper belongs to: {}", failure.text())),
        }
    }
    Ok(own)
}

/// Another upper in the cache directory, which may be `given`, that `--writable` finds for a lower before the one in `file`.
pub fn in_the_way(file: &Path, given: Option<&Path>, identity: &LowerIdentity) -> Option<PathBuf> {
    let own = first_place(given, identity).ok()?;
    (file.parent() == own.parent() && own != file && own.exists()).then_some(own)
}

/// Where in the cache directory, which may be `given`, the upper of a lower is made.
///
/// # Errors
/// As [`uppers_dir`].
pub fn first_place(given: Option<&Path>, identity: &LowerIdentity) -> Result<PathBuf> {
    Ok(uppers_dir(given)?.join(format!("{:032x}.{UPPER_EXTENSION}", xxh3_128(&identity.id))))
}

/// The files in the folder of uppers that have the name of one, by name; the folder need not exist.
///
/// # Errors
/// The host's.
pub fn uppers_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: io::Error| Failure::io(dir.display(), &e);
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let mut files: Vec<PathBuf> = paths.into_iter().filter(|path| is_upper_name(path)).collect();
    files.sort();
    Ok(files)
}

/// The folder of uppers in the cache directory, which may be `given`; absolute, without links. It need not exist.
///
/// # Errors
/// Usage, if nothing says where it is; the host's.
pub fn uppers_dir(given: Option<&Path>) -> Result<PathBuf> {
    resolved(&cache_dir(given)?.join(UPPERS_DIR))
}

/// The cache directory, which may be `given`; absolute. It need not exist. Where another user keeps things in it, this one has a part of it to
/// itself: what is in a cache is for its user alone, and nobody else's is believed.
///
/// # Errors
/// Usage, if nothing says where it is; the host's; that the part is somebody else's.
pub fn cache_dir(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(given) => own_part(std::path::absolute(given).map_err(|e| Failure::io(given.display(), &e))?),
        None => default_cache(),
    }
}

/// The part of a cache directory that is this user's: all of it, unless somebody else was there before. An administrator has all of it as well.
fn own_part(dir: PathBuf) -> Result<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let is_of_others = |name: &str| match dir.join(name).symlink_metadata() {
        Ok(meta) => meta.uid() != own,
        // Whoever may not look has nothing there.
        Err(e) => e.kind() == io::ErrorKind::PermissionDenied,
    };
    if own == 0 || !PARTS.iter().any(|name| is_of_others(name)) {
        return Ok(dir);
    }
    let part = dir.join(format!("uid-{own}"));
    match part.symlink_metadata() {
        Ok(meta) if !meta.is_dir() || meta.uid() != own => {
            let what = format!("{}: it is not a folder of this user, {own}", part.display());
            Err(Failure::new(Code::Failure, what).hint("name another cache directory with --cache-dir"))
        }
        _ => Ok(part),
    }
}

/// Whether a file in that folder has the name of an upper.
pub fn is_upper_name(path: &Path) -> bool {
    let is_hash = |stem: &str| stem.len() == 32 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
    path.extension().is_some_and(|extension| extension == UPPER_EXTENSION)
        && path.file_stem().and_then(|stem| stem.to_str()).is_some_and(is_hash)
}

/// Whether the volume in `file` has changes of `lower`. What is not there, or no volume, has none.
///
/// # Errors
/// Why that cannot be told.
pub fn belongs(file: &Path, lower: &LowerIdentity) -> Result<bool> {
    match file.metadata() {
        Ok(_) => {}
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(false),
        Err(e) => return Err(Failure::io(file.display(), &e)),
    }
    // Whoever has it open is asked.
    match Named::find(file.as_os_str(), &DataArgs::default()) {
        // Something else has come to its place.
        Err(failure) if failure.code() == Code::NotSupported => Ok(false),
        named => volume_work::is_upper_of(&named?.ask(&Asked::Info)?, lower),
    }
}

/// Where an absolute path leads, also if the last of its folders are not there yet.
fn resolved(path: &Path) -> Result<PathBuf> {
    for above in path.ancestors() {
        let mut found = match above.canonicalize() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(|e| Failure::io(above.display(), &e))?,
        };
        for part in path.strip_prefix(above).unwrap_or(path).components() {
            match part {
                // Of what is not there nothing is a link.
                Component::ParentDir => drop(found.pop()),
                part => found.push(part),
            }
        }
        return Ok(found);
    }
    Err(Failure::io(path.display(), &io::ErrorKind::NotFound.into()))
}

/// `$XDG_CACHE_HOME/adit`, else `~/.cache/adit`.
fn default_cache() -> Result<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    std::env::var_os("XDG_CACHE_HOME")
        .and_then(|base| absolute(base.into()))
        .or_else(|| Some(absolute(std::env::home_dir()?)?.join(".cache")))
        .map(|base| base.join("adit"))
        .ok_or_else(|| {
            Failure::usage("no place for what is changed: neither XDG_CACHE_HOME nor a home directory is known")
                .hint("name one with --cache-dir DIR, or the volume with --upper VOLUME")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_resolved_as_far_as_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("d")).unwrap();
        std::os::unix::fs::symlink("d", real.join("link")).unwrap();
        let of = |path: &str| resolved(&real.join(path)).unwrap();
        assert_eq!(of("link/new/x"), real.join("d/new/x"));
        assert_eq!(of("new/a/../../link2"), real.join("link2"));
        assert_eq!(of("link"), real.join("d"));
    }
}
