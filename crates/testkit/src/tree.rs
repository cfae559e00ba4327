//! Nodes and names with the rules of POSIX, in plain maps. The memory store and the crash model are both made of it.
//!
//! A [`Tree`] knows nothing of what a file's content is: that is its parameter `F`. Errors are bare [`ErrorKind`]s.

use std::collections::BTreeMap;

use adit_core::ErrorKind;
use adit_core::types::{Attr, Caller, Ino, Kind, RenameFlags, SetAttr, SetTime, Timestamp};

pub(crate) type NodeId = u64;

/// Result of the tree's operations.
pub(crate) type TreeResult<T> = std::result::Result<T, ErrorKind>;

#[derive(Clone, Debug)]
pub(crate) enum Body<F> {
    File(F),
    Directory {
        entries: BTreeMap<Vec<u8>, NodeId>,
        /// `None` for a root, and for a directory that was removed.
        parent: Option<NodeId>,
    },
    Symlink(Vec<u8>),
    Special,
}

/// `attr` holds what is not computed: `size`, `blocks` and a directory's `nlink` are.
#[derive(Clone, Debug)]
pub(crate) struct Node<F> {
    pub attr: Attr,
    pub body: Body<F>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Tree<F> {
    pub nodes: BTreeMap<NodeId, Node<F>>,
    next: NodeId,
}

/// The stored attributes of a new node.
pub(crate) fn fresh(kind: Kind, perm: u16, owner: Caller) -> Attr {
    let now = Timestamp::now();
    Attr {
        ino: Ino(0),
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        kind,
        perm: perm & 0o7777,
        nlink: 0,
        uid: owner.uid,
        gid: owner.gid,
        rdev: 0,
    }
}

pub(crate) fn empty_directory<F>() -> Body<F> {
    Body::Directory { entries: BTreeMap::new(), parent: None }
}

/// Applies `set` to stored attributes, `size` excepted.
pub(crate) fn apply(attr: &mut Attr, set: &SetAttr) {
    let now = Timestamp::now();
    let time = |t: SetTime| match t {
        SetTime::At(t) => t,
        SetTime::Now => now,
    };
    attr.perm = set.perm.map_or(attr.perm, |p| p & 0o7777);
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
    attr.atime = set.atime.map_or(attr.atime, time);
    attr.mtime = set.mtime.map_or(attr.mtime, time);
    attr.ctime = set.ctime.unwrap_or(now);
}

impl<F> Tree<F> {
    /// A tree without nodes.
    pub fn new() -> Self {
        Tree { nodes: BTreeMap::new(), next: 1 }
    }

    /// Adds a directory that has no parent.
    pub fn add_root(&mut self, perm: u16, owner: Caller) -> NodeId {
        let id = self.add(fresh(Kind::Directory, perm, owner), empty_directory());
        self.node_mut(id).attr.nlink = 1;
        id
    }

    fn add(&mut self, mut attr: Attr, body: Body<F>) -> NodeId {
        let id = self.next;
        self.next += 1;
        attr.ino = Ino(id);
        self.nodes.insert(id, Node { attr, body, xattrs: BTreeMap::new() });
        id
    }

    /// The node `id`, which the caller knows to exist.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node<F> {
        self.nodes.get_mut(&id).expect("a node that an entry or handle refers to exists")
    }

    /// The node `id`.
    pub fn node(&self, id: NodeId) -> TreeResult<&Node<F>> {
        self.nodes.get(&id).ok_or(ErrorKind::Stale)
    }

    /// The entries of the directory `id`.
    pub fn entries(&self, id: NodeId) -> TreeResult<&BTreeMap<Vec<u8>, NodeId>> {
        match &self.node(id)?.body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(ErrorKind::NotDirectory),
        }
    }

    fn entries_mut(&mut self, id: NodeId) -> &mut BTreeMap<Vec<u8>, NodeId> {
        let node = self.node_mut(id);
        node.attr.mtime = Timestamp::now();
        node.attr.ctime = node.attr.mtime;
        match &mut node.body {
            Body::Directory { entries, .. } => entries,
            _ => unreachable!("checked to be a directory"),
        }
    }

    pub fn is_directory(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|n| n.attr.kind == Kind::Directory)
    }

    /// The entry `name` of `dir`.
    pub fn lookup(&self, dir: NodeId, name: &[u8]) -> TreeResult<NodeId> {
        self.entries(dir)?.get(name).copied().ok_or(ErrorKind::NotFound)
    }

    /// A directory that can take new entries, with room for `name`.
    fn check_vacant(&self, dir: NodeId, name: &[u8]) -> TreeResult<()> {
        match self.lookup(dir, name) {
            Ok(_) => Err(ErrorKind::Exists),
            Err(ErrorKind::NotFound) if self.nodes[&dir].attr.nlink == 0 => Err(ErrorKind::NotFound),
            Err(ErrorKind::NotFound) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn attach(&mut self, dir: NodeId, name: &[u8], id: NodeId) {
        self.entries_mut(dir).insert(name.to_vec(), id);
        let node = self.node_mut(id);
        node.attr.nlink += 1;
        node.attr.ctime = Timestamp::now();
        if let Body::Directory { parent, .. } = &mut node.body {
            *parent = Some(dir);
        }
    }

    fn detach(&mut self, dir: NodeId, name: &[u8]) {
        let id = self.entries_mut(dir).remove(name).expect("the caller looked it up");
        let node = self.node_mut(id);
        node.attr.nlink -= 1;
        node.attr.ctime = Timestamp::now();
        if let Body::Directory { parent, .. } = &mut node.body {
            *parent = None;
        }
    }

    /// Adds a node under a name that is free.
    pub fn insert(&mut self, dir: NodeId, name: &[u8], attr: Attr, body: Body<F>) -> TreeResult<NodeId> {
        self.check_vacant(dir, name)?;
        let id = self.add(attr, body);
        self.attach(dir, name, id);
        Ok(id)
    }

    /// Gives a node that is not a directory a further name.
    pub fn link(&mut self, id: NodeId, dir: NodeId, name: &[u8]) -> TreeResult<()> {
        self.check_vacant(dir, name)?;
        if self.node(id)?.attr.kind == Kind::Directory {
            return Err(ErrorKind::NotPermitted);
        }
        if self.node(id)?.attr.nlink == 0 {
            return Err(ErrorKind::NotFound);
        }
        self.attach(dir, name, id);
        Ok(())
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&mut self, dir: NodeId, name: &[u8]) -> TreeResult<NodeId> {
        let id = self.lookup(dir, name)?;
        if self.is_directory(id) {
            return Err(ErrorKind::IsDirectory);
        }
        self.detach(dir, name);
        Ok(id)
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, dir: NodeId, name: &[u8]) -> TreeResult<NodeId> {
        let id = self.lookup(dir, name)?;
        if !self.entries(id)?.is_empty() {
            return Err(ErrorKind::NotEmpty);
        }
        self.detach(dir, name);
        Ok(id)
    }

    /// Whether `id` is `below` or one of the directories above it.
    fn holds(&self, id: NodeId, below: NodeId) -> bool {
        let mut at = Some(below);
        while let Some(here) = at {
            if here == id {
                return true;
            }
            at = match &self.nodes[&here].body {
                Body::Directory { parent, .. } => *parent,
                _ => None,
            };
        }
        false
    }

    /// `renameat2(2)`, with the order in which Linux checks.
    pub fn rename(
        &mut self,
        dir: NodeId,
        name: &[u8],
        new_dir: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> TreeResult<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT) {
            return Err(ErrorKind::InvalidInput);
        }
        self.entries(new_dir)?;
        let id = self.lookup(dir, name)?;
        let target = self.entries(new_dir)?.get(new_name).copied();
        if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err(ErrorKind::Exists);
        }
        if target.is_none() && (exchange || self.nodes[&new_dir].attr.nlink == 0) {
            return Err(ErrorKind::NotFound);
        }
        if self.holds(id, new_dir) {
            return Err(ErrorKind::InvalidInput);
        }
        if target.is_some_and(|t| self.holds(t, dir)) {
            return Err(if exchange { ErrorKind::InvalidInput } else { ErrorKind::NotEmpty });
        }
        if target == Some(id) {
            return Ok(()); // Two names of one inode: POSIX asks for nothing to happen.
        }
        if exchange {
            let target = target.expect("checked above");
            self.detach(dir, name);
            self.detach(new_dir, new_name);
            self.attach(dir, name, target);
            self.attach(new_dir, new_name, id);
            return Ok(());
        }
        if let Some(target) = target {
            match (self.is_directory(id), self.is_directory(target)) {
                (true, false) => return Err(ErrorKind::NotDirectory),
                (false, true) => return Err(ErrorKind::IsDirectory),
                (true, true) if !self.entries(target)?.is_empty() => return Err(ErrorKind::NotEmpty),
                _ => self.detach(new_dir, new_name),
            }
        }
        self.detach(dir, name);
        self.attach(new_dir, new_name, id);
        if flags.contains(RenameFlags::WHITEOUT) {
            let whiteout = self.add(fresh(Kind::CharDevice, 0, Caller { uid: 0, gid: 0 }), Body::Special);
            self.attach(dir, name, whiteout);
        }
        Ok(())
    }

    /// The attributes as `stat` shows them; `file_len` gives a file's length.
    pub fn attr(&self, id: NodeId, file_len: impl FnOnce(&F) -> u64) -> TreeResult<Attr> {
        let node = self.node(id)?;
        let mut attr = node.attr;
        match &node.body {
            Body::File(f) => attr.size = file_len(f),
            Body::Symlink(target) => attr.size = target.len() as u64,
            Body::Special => {}
            Body::Directory { entries, .. } if attr.nlink > 0 => {
                attr.nlink = 2 + entries.values().filter(|&&e| self.is_directory(e)).count() as u32;
            }
            Body::Directory { .. } => {}
        }
        attr.blocks = attr.size.div_ceil(512);
        Ok(attr)
    }
}

/// The errno of a kind, as Linux would have it.
pub(crate) fn errno_of(kind: ErrorKind) -> i32 {
    use ErrorKind::*;
    match kind {
        NotFound => libc::ENOENT,
        Exists => libc::EEXIST,
        NotDirectory => libc::ENOTDIR,
        IsDirectory => libc::EISDIR,
        NotEmpty => libc::ENOTEMPTY,
        InvalidInput => libc::EINVAL,
        NameTooLong => libc::ENAMETOOLONG,
        IllegalName => libc::EILSEQ,
        PermissionDenied | WrongPassword => libc::EACCES,
        NotPermitted => libc::EPERM,
        ReadOnly => libc::EROFS,
        NoSpace => libc::ENOSPC,
        QuotaExceeded => libc::EDQUOT,
        FileTooLarge => libc::EFBIG,
        NotSupported => libc::EOPNOTSUPP,
        Stale => libc::ESTALE,
        Busy => libc::EBUSY,
        TooManyLinks => libc::EMLINK,
        Loop => libc::ELOOP,
        CrossDevice => libc::EXDEV,
        NoAttribute => libc::ENODATA,
        OutOfRange => libc::ERANGE,
        Interrupted => libc::EINTR,
        TimedOut => libc::ETIMEDOUT,
        Exhausted => libc::ENOMEM,
        TooManyFiles => libc::ENFILE,
        NoData => libc::ENXIO,
        _ => libc::EIO,
    }
}
