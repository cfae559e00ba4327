//! A store made of two: a lower one that is only read, and an upper one that takes every change.
//!
//! [`Overlay`] is a [`Store`]. What nobody changed comes from the lower; what was changed is in the upper, and hides what the
//! lower has there. Nothing is copied but what changes: of a file its attributes and the blocks of 4 KiB that are written,
//! of a renamed directory its own entry. What the upper keeps for that is in `docs/formats/volume.md`; why it is so, in
//! `docs/decisions/0013-overlay.md`.
//!
//! **Numbers.** What the lower has is shown under its number there, also when it was copied up, renamed, or mounted again; what
//! was made above under that in the upper. [`numbers`] keeps them apart.
//!
//! **Steps.** Each change is one transaction of the upper, and what is copied up for it goes into the same one, or into one
//! before it that nobody can see.
//!
//! **Locks**, in this order: a file's writer ([`content`]); the names (shared by who looks names up, alone for whatever
//! changes a name or copies something up); that of [`anchor`]s; a layer's [`layer::Learning`]; the locks of the stores; a node's state and a file's
//! map, for moments. No call of a stranger is made with one of them held, and nothing within a transaction calls a store:
//! the lower may be a snapshot of the volume that is the upper. Content is read without any.

mod anchor;
mod attributes;
mod changes;
mod compare;
mod content;
mod copy_up;
mod create;
mod doubts;
mod file;
mod find;
mod fresh;
mod layer;
mod listing;
mod map;
mod names_below;
mod node;
mod numbers;
mod proof;
mod ranges;
mod rebind;
mod record;
mod remove;
mod rename;
mod shift;
mod states;
mod store;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, RwLock};

pub use changes::{Change, Changed, Unknown};
pub use fresh::Fresh;
pub use rebind::Fit;
pub use shift::Told;
pub use states::{AtWork, FileVersion, STATE_XATTR, WorkEnd};

use crate::error::{ErrorKind, FsError, Result};
use crate::store::{NewNode, Store};
use crate::transaction::{Transaction, Transactional};
use crate::types::{Caller, FileName, Ino, Kind, XattrName, XattrSet};
use layer::{Held, Layer};
use listing::LowerListings;
use node::{Below, Identity, Node, State, Table};
use record::{Fingerprint, Origin, Own, Way};

/// The kind of store that it is, as its capabilities tell.
const KIND: &str = "overlay";

/// The unit in which content is copied up, in bytes.
const BLOCK: u64 = 4096;

/// Entries of the lower's root whose numbers are looked at first.
const NUMBERS_CHECKED: u32 = 128;

/// Names in the upper's root.
mod names {
    pub const TREE: &[u8] = b"tree";
    pub const INDEX: &[u8] = b"index";
    pub const WHITEOUT: &[u8] = b"whiteout";
    /// Made by the first commit; see [`super::states`].
    pub const COMMITTED: &[u8] = b"committed";
    /// What becomes that.
    pub const COMMITTED_NEW: &[u8] = b"committed.new";
}

/// The fuzz target of what an overlay keeps in its upper, for `fuzz/` and for the replay of its corpus.
///
/// Behind no feature: all is built on this crate, and would be built twice.
#[doc(hidden)]
pub mod fuzzing {
    /// The body of a target.
    pub type Body = fn(&[u8]);

    /// The targets by name.
    pub const TARGETS: [(&str, Body); 1] = [("overlay_record", fuzz_record)];

    /// Any bytes as a value of one of the overlay's attributes.
    pub fn fuzz_record(data: &[u8]) {
        super::record::fuzz(data);
    }
}

/// Which store the lower is: noted in the upper, and compared when the two are put together again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LowerIdentity {
    /// Bytes that tell it from any other: a snapshot's number with its volume's id, a manifest's hash, a path and device.
    pub id: Vec<u8>,
    /// The same for messages.
    pub text: String,
}

impl LowerIdentity {
    /// The attribute that the root of an upper has, and nothing else: which lower it belongs to. Who opens an upper as what it
    /// is otherwise should not change it: what the overlay has noted would no longer fit.
    pub fn attribute() -> XattrName<'static> {
        Own::Root.name()
    }

    /// What the value of that attribute says.
    ///
    /// # Errors
    /// `Corrupt`; `NotSupported` for an overlay of another version.
    pub fn from_attribute(value: &[u8]) -> Result<LowerIdentity> {
        record::decode_root(value)
    }
}

/// What something is copied up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Change,
    /// Something is taken away: that works on a full upper as well, which keeps space back for it.
    Removal,
}

/// What the overlay has for itself in the upper.
struct Layout {
    index: Held,
    whiteout: Held,
}

/// Counted for `adit stats`.
#[derive(Default)]
struct Counters {
    copied_up: AtomicU64,
    blocks_fetched: AtomicU64,
}

/// What files and the store share; see the module's notes.
struct Shared {
    upper: Arc<Layer>,
    lower: Arc<Layer>,
    /// The upper once more, to join operations.
    joined: Arc<dyn Transactional>,
    /// Whether others may change the lower meanwhile.
    lower_changes: bool,
    lower_xattrs: bool,
    layout: Layout,
    table: Arc<Table>,
    root: Arc<Node>,
    names: RwLock<()>,
    listings: Mutex<LowerListings>,
    counters: Arc<Counters>,
    /// What commits do with files.
    work: Arc<Mutex<states::Work>>,
    /// Held while what commits brought is noted in the upper.
    noting: Arc<Mutex<()>>,
    /// Held while an anchor is noted in the upper.
    noting_anchors: Mutex<()>,
    /// Whether everything that is read of the lower has to be verified.
    reads_verified: bool,
}

/// See the module's notes. Cheap to clone: clones share one filesystem.
///
/// What they share is made anew when the upper becomes something else as a whole: see [`shift`].
#[derive(Clone)]
pub struct Overlay(Arc<RwLock<Arc<Shared>>>);

fn name_of(name: &[u8]) -> Result<FileName<'_>> {
    Ok(FileName::new(name)?)
}

/// Who owns what the overlay makes for itself.
const OWN: NewNode = NewNode { perm: 0o700, umask: 0, caller: Caller { uid: 0, gid: 0 } };

impl Overlay {
    /// Whether `upper` is empty: [`Overlay::open`] would begin a new overlay in it.
    ///
    /// # Errors
    /// `InvalidInput` for one that holds something, and no overlay.
    pub fn is_new(upper: &dyn Store) -> Result<bool> {
        match upper.xattr(Ino::ROOT, Own::Root.name()) {
            Ok(_) => return Ok(false),
            Err(e) if e.kind() == ErrorKind::NoAttribute => {}
            Err(e) => return Err(e),
        }
        let mut first = None;
        upper.read_dir(Ino::ROOT, 0, &mut |entry| {
            first = Some(entry.name.display().into_owned());
            ControlFlow::Break(())
        })?;
        match first {
            None => Ok(true),
            Some(name) => {
                let why = format!("it holds '{name}', and is not the upper layer of an overlay: give an empty volume");
                Err(FsError::new(ErrorKind::InvalidInput).on("open", "the upper layer").because(why))
            }
        }
    }

    /// The number under which what has this number in the lower is shown, whether it was copied up or not. `None` if it cannot be.
    pub fn number_of(below: Ino) -> Option<Ino> {
        numbers::of_lower(below)
    }

    /// Puts `upper` over `lower`, which must not change from now on. An upper that is empty becomes this lower's.
    ///
    /// The upper is for the overlay alone. Its `seek_data` must find every block of 4 KiB that was ever written and not cut
    /// off or punched, also one of zeros.
    ///
    /// # Errors
    /// `InvalidInput` for an upper that holds something else, or belongs to another lower; `NotSupported` for one of another
    /// version, or stores that cannot be put together.
    pub fn open(lower: Arc<dyn Store>, upper: Arc<dyn Transactional>, identity: &LowerIdentity) -> Result<Overlay> {
        Self::open_with(lower, upper, identity, false)
    }

    /// As [`Overlay::open`]; whatever is read of the lower is verified by it before it is handed out
    /// ([`StoreFile::read_verified_at`](crate::store::StoreFile::read_verified_at)): for whoever makes something of it that stays.
    ///
    /// # Errors
    /// As of [`Overlay::open`].
    pub fn open_verified(
        lower: Arc<dyn Store>,
        upper: Arc<dyn Transactional>,
        identity: &LowerIdentity,
    ) -> Result<Overlay> {
        Self::open_with(lower, upper, identity, true)
    }

    fn open_with(
        lower: Arc<dyn Store>,
        upper: Arc<dyn Transactional>,
        identity: &LowerIdentity,
        reads_verified: bool,
    ) -> Result<Overlay> {
        let caps = upper.capabilities();
        if !caps.xattrs || !caps.stable_cookies {
            let why = "the upper layer has to keep extended attributes, and to number entries for good";
            return Err(FsError::new(ErrorKind::NotSupported).on("open", "overlay").because(why));
        }
        check_lower(&*lower)?;
        if Self::is_new(&*upper)? {
            format(&*lower, &*upper, identity)?;
        }
        let layers = (Layer::new(lower), Layer::new(upper.clone()));
        let shared = Shared::begin(layers, upper, identity, reads_verified)?;
        Ok(Overlay(Arc::new(RwLock::new(Arc::new(shared)))))
    }

    /// What the clones share, as it is now.
    fn shared(&self) -> Arc<Shared> {
        self.0.read().clone()
    }
}

/// Refuses what cannot be a lower: an overlay, whose cookies leave no room for those of another one; and, by its first numbers, what numbers
/// its inodes too high. It would be refused at each access.
fn check_lower(lower: &dyn Store) -> Result<()> {
    let refused =
        |why: String| Err(FsError::new(ErrorKind::NotSupported).on("open", "the layer below an overlay").because(why));
    if lower.capabilities().kind == KIND {
        return refused("it is an overlay itself".to_owned());
    }
    let (mut large, mut left) = (None, NUMBERS_CHECKED);
    let listed = lower.read_dir(Ino::ROOT, 0, &mut |entry| {
        large = numbers::of_lower(entry.ino).is_none().then_some(entry.ino);
        left -= 1;
        if large.is_some() || left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match (large, listed) {
        (Some(large), Ok(())) => refused(format!("one of its inode numbers is {}, {TOO_LARGE}", large.0)),
        // One that cannot be listed may be of use all the same; whoever lists it is told.
        _ => Ok(()),
    }
}

/// What is wrong with an inode number, and what to do.
const TOO_LARGE: &str = "more than the 52 bits that an overlay has for the numbers of a layer: mount that read-only, or copy it \
                         into a folder or a volume (`adit put`) and put the overlay on that";

/// Why nothing can be shown of an inode.
fn too_large(ino: Ino, layer: &str) -> FsError {
    let why = format!("its number is {TOO_LARGE}");
    FsError::new(ErrorKind::NotSupported).on("look up", format!("inode {} of {layer}", ino.0)).because(why)
}

/// Begins an overlay in an empty upper.
fn format(lower: &dyn Store, upper: &dyn Transactional, identity: &LowerIdentity) -> Result<()> {
    let root = copy_up::Looks::of(lower, Ino::ROOT)?;
    root.check_len(upper)?;
    let identity = record::encode_root(identity)?;
    let origin = Origin { print: Fingerprint::of(&root.attr), opaque: false, way: Way::default() }.encode();
    upper.transact(&mut |tx| {
        tx.mkdir(Ino::ROOT, name_of(names::INDEX)?, &OWN)?;
        tx.mknod(Ino::ROOT, name_of(names::WHITEOUT)?, Kind::CharDevice, 0, &OWN)?;
        let tree = tx.mkdir(Ino::ROOT, name_of(names::TREE)?, &OWN)?.ino;
        tx.set_xattr(tree, Own::Origin.name(), &origin, XattrSet::Create)?;
        root.apply(tx, tree)?;
        tx.set_xattr(Ino::ROOT, Own::Root.name(), &identity, XattrSet::Create)
    })
}

impl Shared {
    /// An overlay that nobody has looked at yet, on layers whose upper one is an overlay's.
    fn begin(
        (below, above): (Arc<Layer>, Arc<Layer>),
        joined: Arc<dyn Transactional>,
        identity: &LowerIdentity,
        reads_verified: bool,
    ) -> Result<Shared> {
        let found = record::decode_root(&joined.xattr(Ino::ROOT, Own::Root.name())?)?;
        if found.id != identity.id {
            let why = format!(
                "it holds changes of {}, and this is {}: give the layer below that it belongs to, or an empty volume",
                found.text, identity.text
            );
            return Err(FsError::new(ErrorKind::InvalidInput).on("open", "the upper layer").because(why));
        }
        let lower_caps = below.store.capabilities();
        let part = |name: &'static [u8], kind| -> Result<Held> {
            let damaged = |why: String| {
                let subject = format!("'{}' of the upper layer", String::from_utf8_lossy(name));
                FsError::new(ErrorKind::Corrupt).on("open", subject).because(why)
            };
            match above.find(Ino::ROOT, name_of(name)?)? {
                Some((attr, held)) if attr.kind == kind => Ok(held),
                Some(_) => Err(damaged(format!("it is no {}", kind.as_str()))),
                None => Err(damaged("it is missing".to_owned())),
            }
        };
        let tree = part(names::TREE, Kind::Directory)?;
        let index = part(names::INDEX, Kind::Directory)?;
        let whiteout = part(names::WHITEOUT, Kind::CharDevice)?;
        let layout = Layout { index, whiteout };
        let table = Arc::new(Table::default());
        let print = Fingerprint::of(&below.store.getattr(Ino::ROOT)?);
        let root_below = Below { held: below.root(), print };
        let root = Identity { ino: Ino::ROOT, kind: Kind::Directory, linked: false, from_lower: true };
        let root = table.get_or_make(root, Some(tree), Some(root_below), State::default()).ok_or(ErrorKind::Stale)?;
        Ok(Shared {
            upper: above,
            lower: below,
            joined,
            lower_changes: lower_caps.shared,
            lower_xattrs: lower_caps.xattrs,
            layout,
            table,
            root,
            names: RwLock::default(),
            listings: Mutex::default(),
            counters: Arc::default(),
            work: Arc::default(),
            noting: Arc::default(),
            noting_anchors: Mutex::default(),
            reads_verified,
        })
    }

    /// The node of a number that the engine knows.
    fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        if ino == Ino::ROOT {
            return Ok(self.root.clone());
        }
        self.table.get(ino).ok_or_else(|| ErrorKind::Stale.into())
    }

    fn directory(&self, ino: Ino) -> Result<Arc<Node>> {
        let node = self.node(ino)?;
        if node.is_directory() { Ok(node) } else { Err(ErrorKind::NotDirectory.into()) }
    }

    /// Ends an operation: what nobody uses any more is forgotten. Call it with nothing locked.
    fn settle(&self) {
        self.upper.settle();
        self.lower.settle();
    }

    /// Runs one transaction. Whoever makes inodes known in it holds the upper's [`layer::Learning`].
    fn transact(&self, work: &mut dyn FnMut(&mut dyn Transaction) -> Result<()>) -> Result<()> {
        self.joined.transact(work)
    }

    /// As [`Shared::transact`], for a purpose.
    fn transact_for(&self, purpose: Purpose, work: &mut dyn FnMut(&mut dyn Transaction) -> Result<()>) -> Result<()> {
        self.joined.transact(&mut |tx| {
            if purpose == Purpose::Removal {
                tx.takes_away();
            }
            work(tx)
        })
    }

    /// As [`Shared::transact`], for what takes something away.
    fn transact_removal(&self, work: &mut dyn FnMut(&mut dyn Transaction) -> Result<()>) -> Result<()> {
        self.transact_for(Purpose::Removal, work)
    }

    /// The number under which the lower's `ino` is shown.
    fn number_of_lower(&self, ino: Ino) -> Result<Ino> {
        numbers::of_lower(ino).ok_or_else(|| too_large(ino, "the layer below"))
    }

    /// An attribute of the overlay's own.
    fn own_xattr(&self, upper: Ino, own: Own) -> Result<Option<Vec<u8>>> {
        match self.upper.store.xattr(upper, own.name()) {
            Ok(value) => Ok(Some(value)),
            Err(e) if e.kind() == ErrorKind::NoAttribute => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Which object of the lower an inode of the upper stands for.
    fn origin(&self, upper: Ino) -> Result<Option<Origin>> {
        let Some(value) = self.own_xattr(upper, Own::Origin)? else { return Ok(None) };
        Origin::decode(&value, &format!("inode {} of the upper layer", upper.0)).map(Some)
    }

    fn is_private(name: XattrName<'_>) -> bool {
        name.as_bytes().starts_with(record::PRIVATE)
    }
}
