//! All that a world's roots hold, live and durable, and the calls that change it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;

use adit_core::ErrorKind;
use adit_core::types::{Attr, Caller, Kind, RenameFlags, SetAttr, Timestamp};

use super::Mode;
use super::file::{Content, Seq};
use super::names::{self, Change, Entries, NameOp, Tie};
use crate::tree::{self, Body, NodeId, Tree, errno_of};

/// Longest file, in bytes.
const FILE_LEN_MAX_BYTES: u64 = 1 << 30;

/// A call that changes or syncs something, its paths resolved.
#[derive(Clone)]
pub(super) enum Call {
    Publish { dir: NodeId, name: Vec<u8>, content: Vec<u8>, perm: u16, owner: Caller, durable: bool },
    MakeDir { dir: NodeId, name: Vec<u8>, perm: u16, owner: Caller },
    Remove { dir: NodeId, name: Vec<u8>, kind: Kind },
    Rename { dir: NodeId, name: Vec<u8>, new_dir: NodeId, new_name: Vec<u8>, flags: RenameFlags },
    SetAttr { id: NodeId, set: SetAttr },
    Write { id: NodeId, offset: u64, bytes: Vec<u8> },
    SetLen { id: NodeId, len: u64 },
    Punch { id: NodeId, offset: u64, len: u64 },
    SyncFile { id: NodeId, data_only: bool },
    SyncDir { id: NodeId },
    SyncAll { root: NodeId },
}

impl Call {
    /// A durable publishing whose sync is left out.
    pub fn without_sync(self) -> Call {
        match self {
            Call::Publish { dir, name, content, perm, owner, .. } => {
                Call::Publish { dir, name, content, perm, owner, durable: false }
            }
            other => other,
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Publish { dir, name, content, durable, .. } => {
                write!(f, "publish {dir}/{} {} bytes, durable {durable}", name.escape_ascii(), content.len())
            }
            Call::MakeDir { dir, name, .. } => write!(f, "mkdir {dir}/{}", name.escape_ascii()),
            Call::Remove { dir, name, kind } => write!(f, "remove {} {dir}/{}", kind.as_str(), name.escape_ascii()),
            Call::Rename { dir, name, new_dir, new_name, flags } => {
                let (name, new_name) = (name.escape_ascii(), new_name.escape_ascii());
                write!(f, "rename {dir}/{name} to {new_dir}/{new_name} {flags:?}")
            }
            Call::SetAttr { id, set } => write!(f, "set attributes of {id}: {set:?}"),
            Call::Write { id, offset, bytes } => write!(f, "write {id} at {offset}, {} bytes", bytes.len()),
            Call::SetLen { id, len } => write!(f, "set length of {id} to {len}"),
            Call::Punch { id, offset, len } => write!(f, "punch {id} at {offset}, {len} bytes"),
            Call::SyncFile { id, data_only } => write!(f, "sync file {id}, data only {data_only}"),
            Call::SyncDir { id } => write!(f, "sync directory {id}"),
            Call::SyncAll { root } => write!(f, "sync all of {root}"),
        }
    }
}

/// What a call gives.
pub(super) enum Reply {
    Done,
    /// The file that was made.
    Made(NodeId),
}

#[derive(Clone)]
pub(super) struct Disk {
    pub mode: Mode,
    pub power_cuts: u64,
    pub tree: Tree<Content>,
    pub roots: BTreeMap<String, NodeId>,
    /// The root that each node was made in.
    pub home: BTreeMap<NodeId, NodeId>,
    pub seq: Seq,
    pub log: Vec<NameOp>,
    pub durable: Entries,
    /// Attributes on disk, of nodes whose attributes were set since.
    pub old_attrs: BTreeMap<NodeId, Attr>,
}

pub(super) fn error(kind: ErrorKind) -> io::Error {
    io::Error::from_raw_os_error(errno_of(kind))
}

impl Disk {
    pub fn new(mode: Mode) -> Self {
        Disk {
            mode,
            power_cuts: 0,
            tree: Tree::new(),
            roots: BTreeMap::new(),
            home: BTreeMap::new(),
            seq: 0,
            log: Vec::new(),
            durable: Entries::new(),
            old_attrs: BTreeMap::new(),
        }
    }

    pub fn root(&mut self, name: &str) -> NodeId {
        if let Some(&id) = self.roots.get(name) {
            return id;
        }
        let id = self.tree.add_root(0o755, crate::own_caller());
        self.roots.insert(name.to_owned(), id);
        self.home.insert(id, id);
        self.durable.insert(id, BTreeMap::new());
        id
    }

    pub fn attr(&self, id: NodeId) -> io::Result<Attr> {
        self.tree.attr(id, |f| f.live.len() as u64).map_err(error)
    }

    pub fn content(&self, id: NodeId) -> io::Result<&Content> {
        match &self.tree.node(id).map_err(error)?.body {
            Body::File(content) => Ok(content),
            _ => Err(error(ErrorKind::IsDirectory)),
        }
    }

    fn content_mut(&mut self, id: NodeId) -> io::Result<(&mut Content, &mut Seq)> {
        self.content(id)?;
        let node = self.tree.node_mut(id);
        match &mut node.body {
            Body::File(content) => Ok((content, &mut self.seq)),
            _ => Err(error(ErrorKind::IsDirectory)),
        }
    }

    /// The live entries of every directory, removed ones too.
    pub fn entries(&self) -> Entries {
        let directory = |(&id, node): (&NodeId, &tree::Node<Content>)| match &node.body {
            Body::Directory { entries, .. } => Some((id, entries.clone())),
            _ => None,
        };
        self.tree.nodes.iter().filter_map(directory).collect()
    }

    pub fn apply(&mut self, call: &Call) -> io::Result<Reply> {
        match call {
            Call::Publish { dir, name, content, perm, owner, durable } => {
                return self.publish(*dir, name, content, tree::fresh(Kind::File, *perm, *owner), *durable);
            }
            Call::MakeDir { dir, name, perm, owner } => {
                let attr = tree::fresh(Kind::Directory, *perm, *owner);
                let id = self.insert(*dir, name, attr, tree::empty_directory())?;
                self.durable.insert(id, BTreeMap::new());
            }
            Call::Remove { dir, name, kind: Kind::Directory } => {
                self.tree.rmdir(*dir, name).map_err(error)?;
                self.record(*dir, vec![Change::new(*dir, name, None)], Tie::Whole);
            }
            Call::Remove { dir, name, .. } => {
                self.tree.unlink(*dir, name).map_err(error)?;
                self.record(*dir, vec![Change::new(*dir, name, None)], Tie::Whole);
            }
            Call::Rename { dir, name, new_dir, new_name, flags } => {
                self.rename(*dir, name, *new_dir, new_name, *flags)?;
            }
            Call::SetAttr { id, set } => self.set_attr(*id, set)?,
            Call::Write { id, offset, bytes } => {
                let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= FILE_LEN_MAX_BYTES);
                end.ok_or_else(|| error(ErrorKind::FileTooLarge))?;
                let (content, seq) = self.content_mut(*id)?;
                content.write_at(seq, *offset as usize, bytes);
                self.touch(*id);
            }
            Call::SetLen { id, len } => self.set_len(*id, *len)?,
            Call::Punch { id, offset, len } => {
                let (content, seq) = self.content_mut(*id)?;
                let offset = usize::try_from(*offset).unwrap_or(usize::MAX);
                content.punch(seq, offset, usize::try_from(*len).unwrap_or(usize::MAX));
            }
            Call::SyncFile { id, data_only } => {
                self.content_mut(*id)?.0.sync();
                if !data_only {
                    self.old_attrs.remove(id);
                }
            }
            Call::SyncDir { id } => self.sync_dir(*id)?,
            Call::SyncAll { root } => self.sync_root(*root),
        }
        Ok(Reply::Done)
    }

    /// The sync `call` fails.
    pub fn fail_sync(&mut self, call: &Call) {
        let ids: Vec<NodeId> = match call {
            Call::SyncFile { id, .. } => vec![*id],
            Call::SyncAll { root } => self.home.iter().filter(|(_, r)| *r == root).map(|(id, _)| *id).collect(),
            // An unnamed file is gone with its failed sync, and a directory's entries stay as pending as they were.
            _ => Vec::new(),
        };
        for id in ids {
            if let Ok((content, _)) = self.content_mut(id) {
                content.fail_sync();
            }
        }
    }

    fn touch(&mut self, id: NodeId) {
        let attr = &mut self.tree.node_mut(id).attr;
        attr.mtime = Timestamp::now();
        attr.ctime = attr.mtime;
    }

    fn record(&mut self, dir: NodeId, changes: Vec<Change>, tie: Tie) {
        self.seq += 1;
        let root = self.home[&dir];
        self.log.push(NameOp { seq: self.seq, root, changes, tie });
    }

    fn insert(&mut self, dir: NodeId, name: &[u8], attr: Attr, body: Body<Content>) -> io::Result<NodeId> {
        let id = self.tree.insert(dir, name, attr, body).map_err(error)?;
        self.home.insert(id, self.home[&dir]);
        self.record(dir, vec![Change::new(dir, name, Some(id))], Tie::Whole);
        Ok(id)
    }

    fn publish(&mut self, dir: NodeId, name: &[u8], bytes: &[u8], attr: Attr, durable: bool) -> io::Result<Reply> {
        let id = self.insert(dir, name, attr, Body::File(Content::default()))?;
        let (content, seq) = self.content_mut(id)?;
        if durable {
            *content = Content::settled(bytes.to_vec());
        } else {
            content.write_at(seq, 0, bytes);
        }
        Ok(Reply::Made(id))
    }

    fn rename(
        &mut self,
        dir: NodeId,
        name: &[u8],
        new_dir: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> io::Result<()> {
        let id = self.tree.lookup(dir, name).map_err(error)?;
        let target = self.tree.lookup(new_dir, new_name).ok();
        self.tree.rename(dir, name, new_dir, new_name, flags).map_err(error)?;
        if target == Some(id) {
            return Ok(());
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let old = Change::new(dir, name, target.filter(|_| exchange));
        let new = Change::new(new_dir, new_name, Some(id));
        let moves_directory =
            self.tree.is_directory(id) || (exchange && target.is_some_and(|t| self.tree.is_directory(t)));
        let tie = match (dir == new_dir, moves_directory) {
            (false, true) => Tie::DirectoryMove,
            (false, false) if !exchange => Tie::FileMove,
            _ => Tie::Whole,
        };
        self.record(dir, vec![new, old], tie);
        Ok(())
    }

    fn set_len(&mut self, id: NodeId, len: u64) -> io::Result<()> {
        if len > FILE_LEN_MAX_BYTES {
            return Err(error(ErrorKind::FileTooLarge));
        }
        let (content, seq) = self.content_mut(id)?;
        content.set_len(seq, len as usize);
        self.touch(id);
        Ok(())
    }

    fn set_attr(&mut self, id: NodeId, set: &SetAttr) -> io::Result<()> {
        if let Some(len) = set.size {
            self.set_len(id, len)?;
        }
        let attr = &mut self.tree.node_mut(id).attr;
        self.old_attrs.entry(id).or_insert(*attr);
        tree::apply(attr, set);
        Ok(())
    }

    fn sync_dir(&mut self, id: NodeId) -> io::Result<()> {
        self.tree.entries(id).map_err(error)?;
        self.old_attrs.remove(&id);
        let live = self.entries();
        names::sync_dir(self.mode, &mut self.log, &mut self.durable, &live, self.home[&id], &self.home, id);
        Ok(())
    }

    /// Everything in `root`, files and names.
    fn sync_root(&mut self, root: NodeId) {
        let ids: Vec<NodeId> = self.home.iter().filter(|(_, r)| **r == root).map(|(id, _)| *id).collect();
        for id in ids {
            self.old_attrs.remove(&id);
            match &mut self.tree.node_mut(id).body {
                Body::File(content) => content.sync(),
                Body::Directory { entries, .. } => {
                    self.durable.insert(id, entries.clone());
                }
                _ => {}
            }
        }
        self.log.retain(|op| op.root != root);
    }

    /// Everything, and nothing is in doubt.
    pub fn settle(&mut self) {
        for root in self.roots.values().copied().collect::<Vec<_>>() {
            self.sync_root(root);
        }
        for node in self.tree.nodes.values_mut() {
            if let Body::File(content) = &mut node.body {
                content.settle();
            }
        }
    }

    /// The numbers of all changes that are not durable.
    pub fn pending(&self) -> BTreeSet<Seq> {
        let mut seqs: BTreeSet<Seq> = self.log.iter().map(|op| op.seq).collect();
        for node in self.tree.nodes.values() {
            if let Body::File(content) = &node.body {
                seqs.extend(content.sectors.values().flatten().map(|v| v.seq));
                seqs.extend(content.lens.iter().map(|(seq, _)| *seq));
            }
        }
        seqs
    }

    /// The numbers of those that changed the length of a file.
    pub fn lengths(&self) -> BTreeSet<Seq> {
        let files = self.tree.nodes.values().filter_map(|node| match &node.body {
            Body::File(content) => Some(content),
            _ => None,
        });
        files.flat_map(|content| &content.lens).map(|(seq, _)| *seq).collect()
    }
}
