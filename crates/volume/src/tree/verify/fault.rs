//! What a check of the tree can find.

use crate::format::keys::{Id, Key, Parts};
use crate::format::records::Place;
use crate::table::{BLOCK_LEN_BYTES, Run};
use adit_core::types::Kind;

/// Something that is wrong with a tree. Numbers are of inodes unless said otherwise; `counted` is what the check counted.
#[allow(missing_docs, reason = "each variant says what its fields are")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A key that is none of the tree's.
    BadKey(Vec<u8>),
    /// A record that cannot be decoded, of the version that `id` wrote.
    Damaged { key: Key, id: Id, why: &'static str },
    /// A version of an id that does not exist.
    NoOwner { key: Key, id: Id },
    /// A version that nobody sees, or a tombstone that hides nothing.
    Unseen { key: Key, id: Id },
    /// An id wrote the key, and its list does not say so.
    NotListed { key: Key, id: Id },
    /// A key of the table that says that something was written which was not.
    NeedlessNote(Vec<u8>),
    /// Inode numbers up to this are in use, and not behind the counter.
    Numbers { used: u64 },
    /// Blocks that a window of a file refers to, and that are free.
    FreeBlocks { run: Run, ino: u64, window: u64 },
    /// Blocks of a window, `count` of them and the one at place `first` the foremost, that seem to be younger than they are: a
    /// branch that overwrites them would free what others have.
    LateBirth { ino: u64, window: u64, first: u64, count: u64 },
    /// A block that several windows refer to, which are different files' or at different places.
    SharedBlock { block: u64, keys: Vec<Key> },

    /// An entry that leads to an inode that is not there.
    DanglingEntry { place: Place, ino: u64 },
    /// An entry that says that its inode is something else than it is.
    EntryKind { place: Place, ino: u64, kind: Kind },
    /// An entry in what is no directory: most likely it is one, and its record is wrong. Nothing of it is mended.
    EntryOfFile { place: Place, ino: u64 },
    /// An entry that is not found by its name: it lies elsewhere, or another one has the name.
    HiddenEntry { place: Place, ino: u64 },
    /// A directory that has another name already, or the root.
    FurtherParent { place: Place, ino: u64 },
    /// Directories that hold each other; `ino` is one of them.
    Loop { ino: u64 },
    /// An inode that nothing leads to, and that was not removed; with as many links as it should have.
    Unreachable { ino: u64, kind: Kind, recorded: u32, counted: u64 },
    /// Content, or entries, of an inode that is not there, with what can be known of it.
    Headless { ino: u64, kind: Kind, links: u64, size: u64, blocks: u64, place: Option<Place>, has_xattrs: bool },
    /// A wrong number of links.
    LinkCount { ino: u64, kind: Kind, recorded: u32, counted: u64 },
    /// A wrong number of entries.
    EntryCount { ino: u64, recorded: u64, counted: u64 },
    /// A wrong number of blocks.
    BlockCount { ino: u64, recorded: u64, counted: u64 },
    /// The inode says that it has its first name where it has none; `right` is one that it has.
    FirstName { ino: u64, kind: Kind, right: Option<Place> },
    /// The inode does not know one of its names.
    NameNotKnown { ino: u64, place: Place },
    /// The inode knows a name that it has not, or knows it twice.
    NeedlessName { ino: u64, place: Place },
    /// Noted as removed, and it has names, or is not there.
    NeedlessOrphan { ino: u64 },
    /// Cut, with blocks behind its end, and not noted as such.
    CutNotNoted { ino: u64 },
    /// It has extended attributes and does not say so.
    XattrFlag { ino: u64 },
    /// Extended attributes of an inode that is not there.
    StrayXattrs { ino: u64 },
    /// Blocks behind the end of a file that was not cut.
    BehindEnd { ino: u64 },
    /// Content of something that has none.
    NoContent { ino: u64 },
    /// The root is no directory.
    Root { kind: Kind },
}

/// A fault, and where it shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The snapshot or branch; `None`: the volume as a whole.
    pub part: Option<Id>,
    /// Whether that is a snapshot, in which nothing is changed.
    pub is_frozen: bool,
    /// What it is.
    pub fault: Fault,
}

impl Fault {
    /// Whether a repair knows what to do about it, where something may be changed.
    pub fn is_mendable(&self) -> bool {
        !matches!(
            self,
            Fault::BadKey(_)
                | Fault::Damaged { .. }
                | Fault::NoOwner { .. }
                | Fault::SharedBlock { .. }
                | Fault::EntryOfFile { .. }
                | Fault::BehindEnd { .. }
                | Fault::NoContent { .. }
                | Fault::Root { .. }
        )
    }

    /// Whether it says that something of the tree may be unknown, or that to drop it could take blocks from others: then nothing is
    /// dropped because nobody seems to have it.
    pub fn hides_something(&self) -> bool {
        matches!(
            self,
            Fault::BadKey(_)
                | Fault::Damaged { .. }
                | Fault::NoOwner { .. }
                | Fault::SharedBlock { .. }
                | Fault::FreeBlocks { .. }
                | Fault::LateBirth { .. }
        )
    }

    /// The entry that it is about, or else the inode.
    pub fn subject(&self) -> (Option<Place>, Option<u64>) {
        match self {
            Fault::DanglingEntry { place, ino }
            | Fault::EntryKind { place, ino, .. }
            | Fault::EntryOfFile { place, ino }
            | Fault::HiddenEntry { place, ino }
            | Fault::FurtherParent { place, ino } => (Some(*place), Some(*ino)),
            Fault::Unreachable { ino, .. }
            | Fault::Headless { ino, .. }
            | Fault::LinkCount { ino, .. }
            | Fault::EntryCount { ino, .. }
            | Fault::BlockCount { ino, .. }
            | Fault::FirstName { ino, .. }
            | Fault::NameNotKnown { ino, .. }
            | Fault::NeedlessName { ino, .. }
            | Fault::NeedlessOrphan { ino }
            | Fault::CutNotNoted { ino }
            | Fault::XattrFlag { ino }
            | Fault::StrayXattrs { ino }
            | Fault::BehindEnd { ino }
            | Fault::NoContent { ino }
            | Fault::FreeBlocks { ino, .. }
            | Fault::LateBirth { ino, .. } => (None, Some(*ino)),
            Fault::Root { .. } => (None, Some(crate::tree::ROOT_INO)),
            Fault::Damaged { key, .. } | Fault::NoOwner { key, .. } => (None, ino_of(key)),
            Fault::SharedBlock { keys, .. } => (None, keys.first().and_then(ino_of)),
            // No path leads to what holds itself, however long one looks.
            Fault::Loop { .. }
            | Fault::BadKey(_)
            | Fault::Unseen { .. }
            | Fault::NotListed { .. }
            | Fault::NeedlessNote(_)
            | Fault::Numbers { .. } => (None, None),
        }
    }
}

/// The inode that a key belongs to; of an entry, its directory.
fn ino_of(key: &Key) -> Option<u64> {
    match key.parts()? {
        Parts::Inode(ino)
        | Parts::Xattr(ino, _)
        | Parts::Entry(ino, _)
        | Parts::Name(ino, ..)
        | Parts::Window(ino, _)
        | Parts::Orphan(ino) => Some(ino),
    }
}

/// A key in words.
fn key_words(key: &Key) -> String {
    match key.parts() {
        Some(Parts::Inode(ino)) => format!("inode {ino}"),
        Some(Parts::Xattr(ino, name)) => format!("the attribute {} of inode {ino}", name.escape_ascii()),
        Some(Parts::Entry(dir, cookie)) => format!("entry {cookie:#x} of directory {dir}"),
        Some(Parts::Name(ino, dir, cookie)) => format!("the name of inode {ino} at entry {cookie:#x} of {dir}"),
        Some(Parts::Window(ino, index)) => {
            format!("the content of inode {ino} from byte {} on", u128::from(index) << 20)
        }
        Some(Parts::Orphan(ino)) => format!("the note that inode {ino} is to be dropped"),
        None => format!("key {}", key.as_bytes().escape_ascii()),
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places = |place: &Place| format!("entry {:#x} of directory {}", place.cookie, place.dir);
        match self {
            Fault::BadKey(key) => write!(f, "{} is no key", key.escape_ascii()),
            Fault::Damaged { key, id, why } => {
                write!(f, "{}, written under id {id}: a malformed record ({why})", key_words(key))
            }
            Fault::NoOwner { key, id } => {
                write!(f, "{} has a version of id {id}, which does not exist", key_words(key))
            }
            Fault::Unseen { key, id } => write!(f, "{} has a version of id {id} that nobody sees", key_words(key)),
            Fault::NotListed { key, id } => {
                write!(f, "id {id} wrote {}, and its list does not say so", key_words(key))
            }
            Fault::NeedlessNote(key) => {
                write!(f, "{} says that something was written which was not", key.escape_ascii())
            }
            Fault::Numbers { used } => write!(f, "inode {used} is in use, and its number would be given out again"),
            Fault::FreeBlocks { run, ino, window } => {
                let (count, from) = (run.count, u128::from(*window) << 20);
                write!(f, "inode {ino} has {count} blocks from {} on behind byte {from}, which are free", run.start)
            }
            Fault::LateBirth { ino, window, first, count } => {
                let from = (u128::from(*window) << 20) + u128::from(*first) * BLOCK_LEN_BYTES as u128;
                write!(
                    f,
                    "inode {ino} has {count} blocks from byte {from} on that seem younger than they are, and would be freed \
                     while others have them"
                )
            }
            Fault::SharedBlock { block, keys } => {
                let keys: Vec<String> = keys.iter().map(key_words).collect();
                write!(f, "block {block} belongs to {}: copy these files, and use the copies", keys.join(" and "))
            }
            Fault::DanglingEntry { ino, .. } => write!(f, "the entry leads to inode {ino}, which is not there"),
            Fault::EntryKind { ino, kind, .. } => {
                write!(f, "the entry does not say that inode {ino} is a {}", kind.as_str())
            }
            Fault::EntryOfFile { place, ino } => {
                write!(f, "inode {ino} has a name in inode {}, which is no directory", place.dir)
            }
            Fault::HiddenEntry { ino, .. } => write!(f, "the entry of inode {ino} is not found by its name"),
            Fault::FurtherParent { ino: crate::tree::ROOT_INO, .. } => write!(f, "the entry leads to the root"),
            Fault::FurtherParent { ino, .. } => write!(f, "directory {ino} has this name and another one"),
            Fault::Loop { ino } => write!(f, "directory {ino} holds itself, and the root does not lead there"),
            Fault::Unreachable { ino, kind, .. } => write!(f, "{} {ino} has no name", kind.as_str()),
            Fault::Headless { ino, kind: Kind::Directory, .. } => {
                write!(f, "inode {ino} is not there, and has entries")
            }
            Fault::Headless { ino, .. } => write!(f, "inode {ino} is not there, and has content"),
            Fault::LinkCount { ino, recorded, counted, .. } => {
                write!(f, "inode {ino} counts {recorded} links and has {counted}")
            }
            Fault::EntryCount { ino, recorded, counted } => {
                write!(f, "directory {ino} counts {recorded} entries and has {counted}")
            }
            Fault::BlockCount { ino, recorded, counted } => {
                write!(f, "inode {ino} counts {recorded} blocks and has {counted}")
            }
            Fault::FirstName { ino, kind: Kind::Directory, .. } => {
                write!(f, "directory {ino} does not know where it is")
            }
            Fault::FirstName { ino, .. } => write!(f, "inode {ino} does not know its first name"),
            Fault::NameNotKnown { ino, place } => write!(f, "inode {ino} does not know its name at {}", places(place)),
            Fault::NeedlessName { ino, place } => {
                write!(f, "inode {ino} is said to have a further name at {}", places(place))
            }
            Fault::NeedlessOrphan { ino } => write!(f, "inode {ino} is noted as removed, and is not"),
            Fault::CutNotNoted { ino } => {
                write!(f, "inode {ino} was cut, and what is left behind its end is not noted")
            }
            Fault::XattrFlag { ino } => write!(f, "inode {ino} has attributes and does not say so"),
            Fault::StrayXattrs { ino } => write!(f, "inode {ino} is not there, and has attributes"),
            Fault::BehindEnd { ino } => {
                write!(f, "inode {ino} has content behind its end: cut it to the length that it should have")
            }
            Fault::NoContent { ino } => write!(f, "inode {ino} has blocks of content, and cannot have any"),
            Fault::Root { kind } => write!(f, "the root is a {}", kind.as_str()),
        }
    }
}
