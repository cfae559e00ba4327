//! What threads of a walk still have to do: directories to list, and groups of files to read.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::listing::Known;
use super::unfinished::Unfinished;
use crate::segment::NodeId;

/// A group is handed over with so many files, or so many bytes.
const GROUP_FILES: usize = 64;
const GROUP_LEN_BYTES: u64 = 8 << 20;
/// So many groups wait for each thread.
const GROUPS_PER_THREAD: usize = 4;

/// A directory in which others wait.
pub(super) struct Parent {
    /// This directory or, if it is deep, one above it, open.
    pub anchor: Arc<OwnedFd>,
    /// The way from there, empty for itself.
    pub rest: Vec<u8>,
    /// Its path, empty for the root.
    pub path: Vec<u8>,
    pub depth: usize,
    pub unfinished: Unfinished,
}

/// A file that is to be read. There are few of them at once.
#[derive(Clone, Copy)]
struct Item {
    name_at: usize,
    known: Known,
    node: Option<NodeId>,
}

/// A directory that waits. One directory may have millions: so what else is known of it is looked up again when it is opened.
#[derive(Clone, Copy)]
struct Place {
    name_at: usize,
    /// By which it is known again.
    key: u64,
    node: Option<NodeId>,
}

// `docs/semantics.md` says so.
const _: () = assert!(size_of::<Place>() == 24);

/// Directories of one directory that are still to be listed.
pub(super) struct Siblings {
    parent: Arc<Parent>,
    names: Vec<u8>,
    items: Vec<Place>,
    /// The last of them, if it is open already.
    last: Option<OwnedFd>,
}

impl Siblings {
    pub fn new(parent: Arc<Parent>) -> Siblings {
        Siblings { parent, names: Vec::new(), items: Vec::new(), last: None }
    }

    /// One that is open.
    pub fn one(parent: Arc<Parent>, name: &[u8], key: u64, node: Option<NodeId>, fd: OwnedFd) -> Siblings {
        let mut siblings = Siblings::new(parent);
        siblings.push(name, key, node);
        siblings.last = Some(fd);
        siblings
    }

    /// The root: without a name, in itself.
    pub fn of_root(root: Arc<Parent>, node: Option<NodeId>) -> Siblings {
        let mut siblings = Siblings::new(root);
        // Nothing else is in its place, whatever it is called.
        siblings.push(b"", 0, node);
        siblings
    }

    /// One with this [key](super::unfinished::dir_key).
    pub fn push(&mut self, name: &[u8], key: u64, node: Option<NodeId>) {
        self.items.push(Place { name_at: self.names.len(), key, node });
        self.names.extend(name);
    }

    fn pop(&mut self) -> Option<Dir> {
        let Place { name_at, key, node } = self.items.pop()?;
        let name = self.names.split_off(name_at);
        // What a million took is not kept for the last of them.
        if self.names.capacity() > 2 * self.names.len() + 4096 {
            self.names.shrink_to(self.names.len());
            self.items.shrink_to(self.items.len());
        }
        Some(Dir { parent: self.parent.clone(), name, key, node, fd: self.last.take() })
    }
}

/// A directory that is to be listed.
pub(super) struct Dir {
    pub parent: Arc<Parent>,
    /// Empty for the root, which is its parent.
    pub name: Vec<u8>,
    /// By which it was noted when it was listed.
    pub key: u64,
    pub node: Option<NodeId>,
    /// If it is open already.
    pub fd: Option<OwnedFd>,
}

/// Files of one directory that are to be read.
pub(super) struct Group {
    fd: Arc<OwnedFd>,
    dir: Arc<Parent>,
    names: Vec<u8>,
    items: Vec<Item>,
    len_bytes: u64,
}

impl Group {
    pub fn new(fd: Arc<OwnedFd>, dir: Arc<Parent>) -> Group {
        Group { fd, dir, names: Vec::new(), items: Vec::new(), len_bytes: 0 }
    }

    /// An empty one of the same directory.
    pub fn next(&self) -> Group {
        Group::new(self.fd.clone(), self.dir.clone())
    }

    pub fn push(&mut self, name: &[u8], known: Known, node: Option<NodeId>) {
        self.items.push(Item { name_at: self.names.len(), known, node });
        self.names.extend(name);
        self.len_bytes = self.len_bytes.saturating_add(known.size);
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.items.len() >= GROUP_FILES || self.len_bytes >= GROUP_LEN_BYTES
    }

    /// The directory, open.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub fn dir(&self) -> &Arc<Parent> {
        &self.dir
    }

    /// Name, what was known when it was listed, and the node that it was before.
    pub fn files(&self) -> impl Iterator<Item = (&[u8], Known, Option<NodeId>)> {
        self.items.iter().enumerate().map(|(at, item)| {
            let end = self.items.get(at + 1).map_or(self.names.len(), |next| next.name_at);
            (&self.names[item.name_at..end], item.known, item.node)
        })
    }
}

/// Something for one thread.
pub(super) enum Task {
    Directory(Dir),
    Files(Group),
}

#[derive(Default)]
struct State {
    stack: Vec<Siblings>,
    groups: VecDeque<Group>,
    busy: usize,
}

/// All that is to be done. A thread takes a task, adds what it finds, and says that it is done; when nobody is at work and nothing is
/// left, all of them are told that this is the end.
pub(super) struct Work {
    state: Mutex<State>,
    more: Condvar,
    stopped: AtomicBool,
    groups_max: usize,
}

impl Work {
    pub fn new(threads: usize) -> Work {
        let groups_max = threads * GROUPS_PER_THREAD;
        Work { state: Mutex::default(), more: Condvar::new(), stopped: AtomicBool::new(false), groups_max }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task, which is waited for as long as somebody may still add one. `None` at the end.
    pub fn next(&self) -> Option<Task> {
        let mut state = self.state();
        loop {
            if self.is_stopped() {
                return None;
            }
            if let Some(group) = state.groups.pop_front() {
                state.busy += 1;
                return Some(Task::Files(group));
            }
            while let Some(siblings) = state.stack.last_mut() {
                if let Some(dir) = siblings.pop() {
                    state.busy += 1;
                    return Some(Task::Directory(dir));
                }
                state.stack.pop();
            }
            if state.busy == 0 {
                self.more.notify_all();
                return None;
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The task that was taken is done.
    pub fn done(&self) {
        let mut state = self.state();
        state.busy -= 1;
        if state.busy == 0 {
            self.more.notify_all();
        }
    }

    /// Adds directories, which are under way in their own until they were opened.
    pub fn push(&self, siblings: Siblings) {
        if !siblings.items.is_empty() {
            siblings.parent.unfinished.enter(siblings.items.len());
            self.state().stack.push(siblings);
            self.more.notify_all();
        }
    }

    /// Adds files, unless enough of them wait: then they come back.
    pub fn offer(&self, group: Group) -> Option<Group> {
        let mut state = self.state();
        if state.groups.len() >= self.groups_max {
            return Some(group);
        }
        state.groups.push_back(group);
        self.more.notify_one();
        None
    }

    /// Ends it: nobody takes anything any more.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
        // Under the lock, so that nobody begins to wait between the look and the call.
        let _state = self.state();
        self.more.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }
}
