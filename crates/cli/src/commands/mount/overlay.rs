//! An overlay: a folder, a snapshot or a manifest that a volume on top of it makes writable.
//!
//! The process of the mount is the one that has the upper volume open; it opens the lower beside that ([`Lower`]). Which upper
//! belongs to which lower is in the upper ([`LowerIdentity`]), so that it is found again ([`place`]), and never put on another
//! one. A snapshot is only read, and knows nothing of what lies on it: that is noted elsewhere ([`notes`]).

pub mod notes;
pub mod place;

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Weak};

use adit_core::engine::Engine;
use adit_core::overlay::{LowerIdentity, Overlay};
use adit_core::path::this_process;
use adit_core::store::Store;
use adit_core::types::{Access, Ino};
use adit_core::{ErrorKind, FsError};
use adit_dir::DirStore;
use adit_index::live::Contents;
use adit_index::{ContentHash, NodeId, Segment};
use adit_manifest::cache::ObjectId;
use adit_manifest::store::ManifestStore;
use adit_mount::SessionHandle;
use adit_mount::control::Registry;
use adit_mount::mountpoint;
use adit_volume::tree::MAIN;
use adit_volume::volume::{CreateOptions, Durability, OpenOptions};
use adit_volume::{Volume, VolumeStore};
use serde_json::Value;

use super::wrong::{Watching, Wrong};
use super::{Plan, manifest, volume};
use crate::args::low::GlobalArgs;
use crate::args::manifest::CasArgs;
use crate::args::mount_options::{MountRequest, Part};
use crate::args::volume::DataArgs;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open::mounted::Private;
use crate::open::turn;
use crate::open::{self, remark};
use crate::process::Inherited;
use crate::source::Source;
use crate::volume_work::{Asked, Named};
use crate::{live, output};

/// More than a new volume takes of its disk, in bytes.
const NEW_UPPER_LEN: u64 = 16 << 20;
/// Most paths that a message names.
const NAMED_MAX: usize = 5;

/// What lies below, open for as long as this lives.
pub struct Lower {
    /// Its store; nothing is changed through it.
    pub store: Arc<dyn Store>,
    /// Which it is.
    pub identity: LowerIdentity,
    /// Its place.
    pub source: String,
    /// The snapshot, if it is one.
    pub snapshot: Option<String>,
    /// It goes after the store: fields drop in order.
    held: Held,
}

/// What keeps a lower open.
enum Held {
    Nothing,
    Volume(Volume),
    Mounted(Private),
    /// With where its content is, and who is told of objects that are wrong.
    Manifest(ManifestStore, CasArgs, Arc<Wrong>),
}

impl Lower {
    /// Another store of the same: two overlays must not share one, for each tells it what to forget.
    ///
    /// # Errors
    /// As when it was opened.
    pub fn another(&self) -> Result<Arc<dyn Store>> {
        match &self.held {
            Held::Nothing => {
                let path = Path::new(&self.source);
                let store = DirStore::open_as_lower(path).map_err(|e| Failure::fs(path.display(), &e))?;
                Ok(Arc::new(store))
            }
            Held::Volume(volume) => {
                let name = self.snapshot.as_deref().unwrap_or_default();
                let store = volume.snapshot(name).map_err(|e| open::volume::failure(Path::new(&self.source), &e))?;
                Ok(Arc::new(store))
            }
            Held::Mounted(private) => Ok(private.store()?),
            // Nothing of it is ever forgotten.
            Held::Manifest(store, ..) => Ok(Arc::new(store.clone())),
        }
    }

    /// The manifest that it is, if it is one, and where its content is.
    pub fn manifest(&self) -> Option<(&ManifestStore, &CasArgs)> {
        match &self.held {
            Held::Manifest(store, cas, _) => Some((store, cas)),
            _ => None,
        }
    }

    /// The manifest's store, if what it fetches lies on the disk of `upper`, and can make room there.
    pub fn room_beside(&self, upper: &Path) -> Option<ManifestStore> {
        let (store, cas) = self.manifest()?;
        let device = |path: &Path| path.metadata().ok().map(|meta| meta.dev());
        let objects = open::manifest::objects_place(cas).ok()?;
        (device(upper).is_some() && device(upper) == device(&objects)).then(|| store.clone())
    }

    /// What `overlay`, which lies on it, need not read of files that are as they were: a manifest has their hashes.
    pub fn contents(&self, overlay: &Overlay) -> Option<Arc<dyn Contents>> {
        let (store, _) = self.manifest()?;
        Some(Arc::new(OfManifest { overlay: overlay.clone(), segment: store.segment().clone() }))
    }

    /// Has the kernel and the engine drop what they keep of a file below that turns out to be wrong, where that can be.
    pub fn watch(&self, session: SessionHandle, engine: Weak<Engine>) -> Option<Watching> {
        let Held::Manifest(store, _, wrong) = &self.held else { return None };
        let store = store.clone();
        let files = move |object: &ObjectId| {
            let below = store.files_of(object)?;
            Ok(below.into_iter().filter_map(Overlay::number_of).collect())
        };
        Some(wrong.watch(files, session, engine))
    }
}

/// The hashes that a manifest has, for the files of an overlay on it that hold what it says.
struct OfManifest {
    overlay: Overlay,
    segment: Arc<Segment>,
}

impl Contents for OfManifest {
    fn is_original(&self, ino: Ino) -> bool {
        // What cannot be told is to be read.
        self.overlay.has_lower_content(ino).unwrap_or(false)
    }

    fn original(&self, ino: Ino) -> Result<Option<ContentHash>, FsError> {
        let number = Overlay::lower_ino(ino).and_then(|lower| lower.0.checked_sub(Ino::ROOT.0));
        let node = number.and_then(|number| u32::try_from(number).ok()).filter(|node| *node < self.segment.len());
        node.map_or(Ok(None), |node| self.segment.hash(NodeId(node)))
    }
}

/// Mounts what `plan` names with a volume on top of it.
pub(super) fn mount(mut plan: Plan, global: &GlobalArgs, inherited: Inherited) -> Result<()> {
    let (source, part) = (plan.source.clone(), std::mem::take(&mut plan.request.part));
    check(&source, &part, &plan.request)?;
    refuse_overlay(&source)?;
    open::no_password(&source, &plan.request.password)?;
    let identity = match &source {
        Source::Manifest(file) => of_manifest(file, &manifest::prepare(&mut plan.request, file, global)?),
        _ => identify(&source, &part, plan.request.data.as_deref())?,
    };
    let upper = place::upper(&plan.request, &identity, &plan.mountpoint)?;
    refuse_inside(&source, &upper)?;
    // One that ends is waited for.
    turn::take(&upper, |seen| match seen.mounts.first() {
        Some(mount) => Err(live::in_the_way(&upper, mount, "mounted", "")),
        None => Ok(()),
    })?;
    if plan.request.options.read_only && !upper.exists() {
        let what = format!("{}: there is no such upper, and a mount to read makes none", upper.display());
        return Err(Failure::new(Code::Failure, what)
            .hint("leave out --upper, --upper-dir and --writable to see what lies below, or --read-only to begin to change it"));
    }
    if plan.request.fake {
        return Ok(());
    }
    plan.request.options.kind = "overlay".to_owned();
    // Nobody named it, and it is found by content: whoever mounts a copy of a manifest may not expect what was changed on the other one.
    let is_chosen =
        plan.request.upper.is_none() && plan.request.upper_dir.is_none() && matches!(source, Source::Manifest(_));
    volume::mount_overlay(plan, global, inherited, upper.clone(), move |plan| {
        let has_changes = upper.exists();
        let opened = open_lower(&source, &part, &plan.request, has_changes)?;
        if opened.identity != identity {
            let what = format!("{}: it was replaced in this moment", source.path().display());
            return Err(Failure::new(Code::Busy, what).hint("try again"));
        }
        // Not earlier: where it is refused nothing is left, least of all what would look like changes to the next try.
        if !has_changes {
            create_beside(&opened, &upper)?;
        } else if is_chosen {
            remark(&format!("{}: goes on with the changes in it", upper.display()));
        }
        if matches!(part, Part::Snapshot(_)) {
            // Without the note it can be mounted all the same.
            if let Err(failure) = notes::note(plan.state.as_deref(), &identity, &upper) {
                let what = "`adit snapshot delete` will not know that this volume needs the snapshot";
                remark(&format!("{}: {what}: {}", upper.display(), failure.text()));
            }
        }
        Ok((opened, !has_changes))
    })
}

/// Refuses what cannot be a lower, and options that contradict each other.
fn check(source: &Source, part: &Part, request: &MountRequest) -> Result<()> {
    let at = source.path().display();
    match (source, part) {
        (Source::Dir(_) | Source::Manifest(_), Part::Live) | (Source::Volume(_), Part::Snapshot(_)) => {}
        (Source::Dir(_), _) => return Err(Failure::usage(format!("{at}: a folder has no snapshots or branches"))),
        (Source::Manifest(_), _) => {
            return Err(Failure::usage(format!("{at}: a manifest has no snapshots or branches")));
        }
        (Source::Volume(_), _) => {
            return Err(Failure::usage(format!("{at}: a branch of a volume is writable as it is"))
                .hint("--upper and --writable make a snapshot writable: say which with --snapshot"));
        }
        (Source::Vault(_), _) => {
            return Err(
                Failure::usage(format!("{at}: a vault is writable as it is")).hint("leave out --upper and --writable")
            );
        }
    }
    if request.exclusive {
        return Err(Failure::usage("-o exclusive is for vaults"));
    }
    let known_by = match source {
        Source::Manifest(_) => Some("a manifest is known by its content"),
        _ if *part != Part::Live => Some("a snapshot is known wherever its volume lies"),
        _ => None,
    };
    if let Some(known_by) = known_by.filter(|_| request.rebind) {
        return Err(Failure::usage(format!("{at}: {known_by}: leave out --rebind")));
    }
    Ok(())
}

/// Refuses a folder on an overlay of this user: what is changed there would change below the other one.
fn refuse_overlay(source: &Source) -> Result<()> {
    let Source::Dir(dir) = source else { return Ok(()) };
    let Some(entry) = dir.ancestors().find_map(mountpoint::find) else { return Ok(()) };
    let mounts = Registry::of_this_user().list();
    let found = mounts.iter().find(|mount| mount.device == entry.device && mount.upper.is_some());
    let Some(mount) = found.filter(|_| entry.fs_type == mountpoint::FS_TYPE) else { return Ok(()) };
    let upper = mount.upper.as_deref().unwrap_or_default();
    let what = format!(
        "{}: it lies on the overlay on {}, and an overlay cannot lie below another one",
        dir.display(),
        mount.mountpoint
    );
    Err(Failure::new(Code::NotSupported, what).hint(format!(
        "make what lies below that one ({}) writable by another volume; to begin with its changes, unmount it, and name a copy of \
         {upper} with --upper",
        mount.source
    )))
}

/// Which lower it is. `data` says where the data folder of a volume is now, if that was moved.
fn identify(source: &Source, part: &Part, data: Option<&Path>) -> Result<LowerIdentity> {
    let path = source.path();
    let Part::Snapshot(name) = part else {
        let store = DirStore::open_as_lower(path).map_err(|e| Failure::fs(path.display(), &e))?;
        return Ok(of_dir(path, store.identity().ino));
    };
    // Asked of the process that has it open, if there is one.
    let named = Named::find(path.as_os_str(), &DataArgs { data: data.map(Path::to_owned) })?;
    snapshot_identity(&named, name)?.ok_or_else(|| {
        Failure::new(Code::Failure, format!("{}: it has no snapshot {name}", path.display()))
            .hint(format!("`adit snapshot list {}` names them", path.display()))
    })
}

/// Which snapshot of a volume has this name, if one has.
fn snapshot_identity(named: &Named, name: &str) -> Result<Option<LowerIdentity>> {
    let info = named.ask(&Asked::Info)?;
    let listed = named.ask(&Asked::List)?;
    let mut snapshots = listed.as_array().into_iter().flatten().filter(|entry| entry["branch"] == false);
    let Some(found) = snapshots.find(|entry| entry["name"] == *name) else { return Ok(None) };
    let at = named.file().display();
    let made = snapshot_made(&info, found).ok_or_else(|| {
        let what = format!("{at}: the process that has it open does not say which snapshot {name} is");
        Failure::new(Code::Failure, what).hint("unmount it, and mount it anew with this version of adit")
    })?;
    Ok(Some(of_snapshot(named.file(), name, &made)))
}

/// A folder by its canonical path and its inode. Not by its device: many filesystems have another one after each boot. Where the host makes
/// inode numbers up, by what the host is mounted of.
fn of_dir(path: &Path, ino: Option<u64>) -> LowerIdentity {
    let mut id = match ino {
        Some(ino) => format!("dir {ino} ").into_bytes(),
        None => b"dir - ".to_vec(),
    };
    id.extend_from_slice(path.as_os_str().as_bytes());
    if ino.is_none()
        && let Some(host) = path.ancestors().find_map(mountpoint::find)
    {
        id.extend([b"\0", host.fs_type.as_bytes(), b" ", host.source.as_bytes()].concat());
    }
    LowerIdentity { id, text: path.display().to_string() }
}

/// The number of the folder that an identity is of, if it is of one that has a number; see [`of_dir`].
fn folder_number(identity: &LowerIdentity) -> Option<u64> {
    let mut words = identity.id.strip_prefix(b"dir ")?.split(|&byte| byte == b' ');
    std::str::from_utf8(words.next()?).ok()?.parse().ok()
}

/// The path of the folder that an identity is of, if it is of one.
fn folder_path(identity: &LowerIdentity) -> Option<&Path> {
    let path = identity.id.strip_prefix(b"dir ")?.splitn(2, |&byte| byte == b' ').nth(1)?;
    Some(Path::new(OsStr::from_bytes(path)))
}

/// Whether a folder is the one that an identity is of, for its number alone, which is one filesystem's and may be given again: nothing
/// is in the old place, what is above that is on the device of the folder, and the folder is not the root of a mount, whose number
/// many filesystems share.
fn was_moved(before: &LowerIdentity, now: &LowerIdentity) -> bool {
    let (Some(from), Some(to)) = (folder_path(before), folder_path(now)) else { return false };
    let device = |path: &Path| path.metadata().map(|meta| meta.dev()).ok();
    let above = from.ancestors().skip(1).find_map(device);
    is_same_folder(before, now)
        && from
            .symlink_metadata()
            .is_err_and(|e| matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
        && above.is_some()
        && above == device(to)
        && mountpoint::find(to).is_none()
}

/// Sees to it that the upper in `file` belongs to `lower`. With `--rebind` it is bound to that, where it is the folder that it belonged
/// to, in another place.
///
/// # Errors
/// `InvalidInput` if it belongs to another one; what the volume says.
pub fn settle(file: &Path, volume: &Volume, lower: &Lower, request: &MountRequest) -> Result<()> {
    let fail = |e: FsError| open::volume::failure(file, &e);
    let Some(before) = open::volume::upper_of(volume, MAIN).map_err(fail)? else { return Ok(()) };
    if before.id == lower.identity.id {
        return Ok(());
    }
    let (old, new) = (folder_number(&before), folder_number(&lower.identity));
    if !request.rebind || old.is_none() || new.is_none() {
        let what =
            format!("{}: it holds changes of {}, and this is {}", file.display(), before.text, lower.identity.text);
        let failure = Failure::new(Code::Failure, what);
        return Err(match old.is_some() && new.is_some() {
            true => failure.hint(format!(
                "if that folder was moved to {} since, bind it to it: --upper {} --rebind; else give the folder that it belongs to, or \
                 an empty volume",
                lower.identity.text,
                file.display()
            )),
            false if before.text == lower.identity.text => failure.hint(
                "another filesystem is mounted there than when it was made, or its inode numbers were those of one mount: give it the one that it \
                 belongs to, or an empty volume",
            ),
            false => failure.hint("give the layer below that it belongs to, or an empty volume"),
        });
    }
    let upper = Arc::new(volume.live().map_err(fail)?);
    let fit = Overlay::fit(lower.store.clone(), upper.clone()).map_err(fail)?;
    let differing = named(&fit.other);
    if !fit.other.is_empty() && (old != new || fit.same == 0) {
        let what = format!(
            "{}: {} is not the folder that it belongs to, {}: what was changed is not there, or not as it was: {differing}",
            file.display(),
            lower.identity.text,
            before.text
        );
        return Err(Failure::new(Code::Failure, what).hint(
            "a copy is another folder, whatever it holds: only one that was moved within its filesystem is the same",
        ));
    }
    // Of directories little is compared, and numbers of young filesystems are alike.
    if fit.same_files == 0 && !(fit.unremoved.is_empty() && was_moved(&before, &lower.identity)) {
        let why = match fit.unremoved.is_empty() {
            true => "no file of it was changed, and neither its inode number nor its old place shows that it was moved"
                .to_owned(),
            false => format!("what was removed of that is not there: {}", named(&fit.unremoved)),
        };
        let what = format!(
            "{}: nothing shows that {} is the folder that it belongs to, {}: {why}",
            file.display(),
            lower.identity.text,
            before.text
        );
        return Err(Failure::new(Code::Failure, what).hint(format!(
            "if it is, move it back to {0}, or show it there by `mount --bind`, and mount {0}",
            before.text
        )));
    }
    Overlay::bind(&*upper, &lower.identity).map_err(fail)?;
    let compared = match (fit.same, fit.other.len()) {
        (0, 0) => "its inode number is the same; nothing that lies below was changed".to_owned(),
        (same, 0) => format!("what was changed of it is as it was ({same} compared)"),
        (same, other) => {
            let all = same + other as u64;
            format!(
                "{same} of the {all} things that were changed of it are as they were; these are not, and what is needed of them is ESTALE: \
                 {differing}"
            )
        }
    };
    open::remark(&format!(
        "{}: bound to {} now, no more to {}: {compared}",
        file.display(),
        lower.identity.text,
        before.text
    ));
    if let Some(other) = place::in_the_way(file, request.cas.cache_dir.as_deref(), &lower.identity) {
        open::remark(&format!(
            "{}: `mount --writable` has made another one for {}, and goes on to find that; once nothing in it is needed: adit volume \
             uppers delete {}",
            file.display(),
            lower.identity.text,
            other.display()
        ));
    }
    Ok(())
}

/// Binds an upper again that was set back to what it was when the folder below lay elsewhere.
///
/// # Errors
/// What the store says.
pub fn settle_again(upper: &VolumeStore, lower: &Lower) -> Result<(), FsError> {
    match identity_in(upper)? {
        Some(before) if before.id != lower.identity.id && is_same_folder(&before, &lower.identity) => {
            Overlay::bind(upper, &lower.identity)
        }
        _ => Ok(()),
    }
}

/// Refuses a state of an upper over `lower` that holds something else than changes of that.
///
/// # Errors
/// `InvalidInput`; what the store says.
pub fn refuse_another(upper: &VolumeStore, lower: &Lower) -> Result<(), FsError> {
    match identity_in(upper)? {
        Some(own) if own.id != lower.identity.id && !is_same_folder(&own, &lower.identity) => {
            let why = format!("it holds changes of {}, and this is {}", own.text, lower.identity.text);
            Err(FsError::new(ErrorKind::InvalidInput).because(why))
        }
        Some(_) => Ok(()),
        None => Overlay::is_new(upper).map(drop),
    }
}

/// Under which identity a state of an upper is opened over `lower`: its own, where that is of the same folder in another place.
///
/// # Errors
/// What the store says.
pub fn identity_for(upper: &VolumeStore, lower: &Lower) -> Result<LowerIdentity, FsError> {
    let own = identity_in(upper)?.filter(|own| is_same_folder(own, &lower.identity));
    Ok(own.unwrap_or_else(|| lower.identity.clone()))
}

fn identity_in(upper: &VolumeStore) -> Result<Option<LowerIdentity>, FsError> {
    match upper.xattr(Ino::ROOT, LowerIdentity::attribute()) {
        Ok(value) => LowerIdentity::from_attribute(&value).map(Some),
        Err(e) if e.kind() == ErrorKind::NoAttribute => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether two identities that one upper had are of one folder. Of another one it was never bound to the number alone: see [`settle`].
fn is_same_folder(a: &LowerIdentity, b: &LowerIdentity) -> bool {
    folder_number(a).is_some() && folder_number(a) == folder_number(b)
}

/// Some paths, for a message.
fn named(paths: &[String]) -> String {
    let mut text =
        paths.iter().take(NAMED_MAX).map(|path| output::printable(path.as_bytes())).collect::<Vec<_>>().join(", ");
    if paths.len() > NAMED_MAX {
        text.push_str(&format!(" and {} more", paths.len() - NAMED_MAX));
    }
    text
}

/// Which snapshot it is, whatever it is called: the volume's id and its own, and when it was made, for ids are given again.
fn snapshot_made(info: &Value, entry: &Value) -> Option<String> {
    let (uuid, id) = (info["uuid"].as_str()?, entry["id"].as_u64()?);
    Some(format!("{uuid} {id} {} {}", entry["created"].as_str()?, entry["created_nanos"].as_u64()?))
}

fn of_snapshot(file: &Path, name: &str, made: &str) -> LowerIdentity {
    let text = format!("snapshot {name} of {}", file.display());
    LowerIdentity { id: format!("snapshot {made}").into_bytes(), text }
}

/// A manifest by its content, wherever it lies.
fn of_manifest(place: &Path, hash: &str) -> LowerIdentity {
    LowerIdentity { id: format!("manifest {hash}").into_bytes(), text: format!("manifest {}", place.display()) }
}

/// An upper that is its own lower, or lies in it, would change the lower with each change.
fn refuse_inside(source: &Source, upper: &Path) -> Result<()> {
    let lower = source.path();
    let place = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    if upper == lower || (upper.exists() && place(upper) == place(lower)) {
        return Err(Failure::usage(format!("{}: a volume cannot lie on its own snapshot", upper.display()))
            .hint("name another volume with --upper; a writable branch of this one is made by `adit clone create`"));
    }
    if upper.starts_with(lower) {
        let what =
            format!("{}: it lies in {}, which must not change while it is mounted", upper.display(), lower.display());
        return Err(Failure::usage(what).hint("choose another place with --upper or --cache-dir"));
    }
    Ok(())
}

/// Makes the volume that takes the changes, and says so.
fn create(upper: &Path) -> Result<()> {
    let new = CreateOptions { capacity_bytes: None, durability: Durability::Fsync, owner: this_process(), perm: 0o700 };
    let options = OpenOptions { background: false, ..OpenOptions::new(Access::Write) };
    if let Some(dir) = upper.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    }
    let fail = |e| Failure::fs(upper.display(), &e);
    Volume::create(upper, &new, &options).and_then(|volume| volume.close()).map_err(fail)?;
    remark(&format!("{}: volume created, which takes what is changed", upper.display()));
    Ok(())
}

/// The same where the disk may be full of what was fetched of `lower`: that makes way.
fn create_beside(lower: &Lower, upper: &Path) -> Result<()> {
    let created = create(upper);
    let is_full = created.as_ref().is_err_and(|failure| failure.code() == Code::NoSpace);
    // Some folder above it is there.
    let above = || upper.ancestors().skip(1).find(|dir| dir.exists());
    let beside = is_full.then(above).flatten().and_then(|dir| lower.room_beside(dir));
    match beside {
        Some(store) if store.make_room_for(NEW_UPPER_LEN) => create(upper),
        _ => created,
    }
}

/// Opens the lower, to read. `has_changes` says whether something was changed on top of it before.
fn open_lower(source: &Source, part: &Part, request: &MountRequest, has_changes: bool) -> Result<Lower> {
    let path = source.path();
    let place = path.display().to_string();
    if matches!(source, Source::Manifest(_)) {
        let wrong = Arc::new(Wrong::default());
        let store = open::manifest::watched_store(path, &request.cas, true, request.memory_bytes, Some(wrong.clone()))?;
        open::manifest::expect_answers(path, &request.cas, &store, has_changes)?;
        let identity = of_manifest(path, &store.identity().hash.to_string());
        let held = Held::Manifest(store.clone(), request.cas.clone(), wrong);
        return Ok(Lower { store: Arc::new(store), identity, source: place, snapshot: None, held });
    }
    let Part::Snapshot(name) = part else {
        let store = DirStore::open_as_lower(path).map_err(|e| Failure::fs(path.display(), &e))?;
        let identity = of_dir(path, store.identity().ino);
        let store = Arc::new(store);
        return Ok(Lower { store, identity, source: place, snapshot: None, held: Held::Nothing });
    };
    let data = request.data.as_deref();
    let identity = identify(source, part, data)?;
    let snapshot = Some(name.clone());
    if let Some(process) = volume::process_of(path) {
        // That process alone has the file; what it mounts for us is read like a folder.
        let (store, private) = open::mounted::snapshot(path, &process, name)?;
        return Ok(Lower { store, identity, source: place, snapshot, held: Held::Mounted(private) });
    }
    let options = OpenOptions { memory_bytes: request.memory_bytes / 8, ..OpenOptions::new(Access::Read) };
    let volume = open::volume::opened(path, data, &options)?;
    let store = Arc::new(volume.snapshot(name).map_err(|e| open::volume::failure(path, &e))?);
    Ok(Lower { store, identity, source: place, snapshot, held: Held::Volume(volume) })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    #[test]
    fn each_lower_has_an_upper_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let of = |identity: &LowerIdentity| -> PathBuf { place::in_cache(Some(folder.path()), identity).unwrap() };
        let (a, b) = (of_dir(Path::new("/a"), Some(2)), of_dir(Path::new("/b"), Some(2)));
        assert_eq!(of(&a), of(&a));
        let snapshot = |file: &str, name: &str, created: &str, nanos: u64| {
            let entry = json!({"id": 4, "created": created, "created_nanos": nanos});
            let made = snapshot_made(&json!({"uuid": "00"}), &entry).unwrap();
            of_snapshot(Path::new(file), name, &made)
        };
        let others = [
            of(&a),
            of(&b),
            of(&of_dir(Path::new("/a"), Some(3))),
            of(&of_dir(Path::new("/a"), None)),
            of(&snapshot("/a", "s", "then", 5)),
            of(&snapshot("/a", "s", "then", 6)),
            of(&snapshot("/a", "s", "later", 5)),
        ];
        for (at, one) in others.iter().enumerate() {
            assert!(others[at + 1..].iter().all(|other| other != one));
        }
        // A snapshot is the same wherever its file lies, and whatever it is called.
        assert_eq!(of(&snapshot("/a", "s", "then", 5)), of(&snapshot("/b", "t", "then", 5)));
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is made before it is needed");
    }
}
