//! The thread that keeps an index: what it waits for, what it asks, and what it does with the answers.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Builder as Thread;
use std::time::{Duration, Instant};

use adit_core::engine::Engine;
use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::{FileName, Ino};

use super::base::{Base, Facts, Keys};
use super::kept::{Namespace, Shared, Waiting};
use super::make::Lies;
use super::noticed;
use super::queue::{Dirty, Names, Pending};
use super::source::{Known, NotRead, Source, Unread, name, over};
use super::{Change, LiveIndex};
use crate::progress::Progress;

/// How long changes are collected when nobody waits for an answer.
const COLLECT: Duration = Duration::from_millis(50);
/// So many that they are not collected any longer.
pub(super) const ENOUGH: usize = 4096;
/// How long renames that are under way are waited for.
const RENAMES_PATIENCE: Duration = Duration::from_secs(1);
/// After so many times the memory that the differences may take, the index is given up until somebody asks again.
const GIVE_UP_AT: u64 = 4;

/// Hands freed memory back to the host. What a base is made of, and what is folded into one, comes in many small pieces and goes at once; the C
/// library keeps their pages for the thread that had them, who may need them again after a hundred thousand changes. It takes milliseconds.
fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches memory that is free only, under the allocator's locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// That a directory could not be read, unless it is gone.
fn not_read(dir: u64, e: &FsError) -> Option<NotRead> {
    let is_gone = matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Stale | ErrorKind::NotDirectory);
    (!is_gone).then(|| NotRead::new(dir, e))
}

impl Shared {
    pub(super) fn run(self: Arc<Self>) {
        noticed::this_thread_asks();
        while !self.is_over.load(Relaxed) {
            self.wait_for_work();
            let (ticket, folded) = {
                let mut queue = self.queue.lock();
                (queue.asked, queue.folded.take())
            };
            if let Some((number, folded)) = folded {
                self.take_over(number, folded);
                give_back_freed();
            }
            let Some(engine) = self.engine.upgrade() else { break };
            let settled = self.settle(&engine, ticket);
            engine.count_index(self.memory_bytes());
            drop(engine);
            if settled.is_ok() {
                self.clone().fold_if_due();
            }
            self.answer(ticket, settled);
        }
        self.end();
        let mut queue = self.queue.lock();
        queue.pending.give_up();
        let released = std::mem::take(&mut queue.pending.released);
        drop(queue);
        self.forget(&released);
        self.queue.lock().has_ended = true;
        self.done.notify_all();
    }

    /// Waits until there is something to do, and a little longer for more of it if nobody waits.
    fn wait_for_work(&self) {
        let mut queue = self.queue.lock();
        while !self.is_over.load(Relaxed) && queue.settled == queue.asked && queue.folded.is_none() {
            match queue.since {
                Some(_) if !queue.pending.released.is_empty() => return,
                // That everything is to be walked again waits for a question.
                Some(_) if queue.pending.everything => self.work.wait(&mut queue),
                Some(since) => {
                    let until = since + COLLECT;
                    if queue.pending.len() >= ENOUGH || Instant::now() >= until {
                        return;
                    }
                    self.work.wait_until(&mut queue, until);
                }
                None => self.work.wait(&mut queue),
            }
        }
    }

    /// Those who asked up to `ticket` have their answer.
    fn answer(&self, ticket: u64, settled: Result<()>) {
        let mut queue = self.queue.lock();
        if let Err(e) = settled {
            if e.kind() != ErrorKind::Interrupted {
                tracing::warn!(error = %e, "the index of the mount cannot be kept; the next question tries again");
            }
            let why = e.cause().map_or_else(|| e.to_string(), ToString::to_string);
            queue.failed = Some((ticket, e.kind(), why));
            queue.pending.give_up();
            queue.since = Some(Instant::now());
            self.drop_tree();
        }
        queue.settled = ticket;
        self.done.notify_all();
    }

    /// Brings the tree to where the store is. If it is to be walked again, and nobody has asked (up to `ticket`), it waits for that.
    fn settle(&self, engine: &Arc<Engine>, ticket: u64) -> Result<()> {
        let is_over = || self.is_over.load(Relaxed);
        let contents = self.options.contents.as_deref();
        let source = Source { engine, closed: &self.closed, contents, is_over: &is_over };
        loop {
            self.compare_listings();
            let (pending, batch, unread) = self.ask_names(&source);
            if pending.everything {
                self.forget(&pending.released);
                self.drop_tree();
                let mut queue = self.queue.lock();
                if queue.settled == ticket {
                    queue.pending.give_up();
                    queue.since = Some(Instant::now());
                    return Ok(());
                }
                drop(queue);
                self.walk(&source)?;
                // What changed meanwhile.
                continue;
            }
            let unlisted = self.apply(batch, unread)?;
            self.list_new(&source, unlisted)?;
            // By then paths are right.
            self.ask_attrs(&source, &pending)?;
            self.forget(&pending.kept().collect::<Vec<_>>());
            if !self.queue.lock().pending.everything {
                return Ok(());
            }
        }
    }

    /// Notes what others were told is in directories, and is not known here.
    fn compare_listings(&self) {
        let listings = self.queue.lock().noticed.take();
        if listings.is_empty() {
            return;
        }
        let Some(view) = self.tree.lock().live.as_ref().map(LiveIndex::view) else { return };
        for (dir, listing) in listings {
            let mut news: Vec<Box<[u8]>> = Vec::new();
            if let Err(e) = view.news_in(dir, &listing, &mut |name| news.push(name.as_bytes().into())) {
                tracing::debug!(error = %e, "a listing cannot be compared with the index");
            }
            let mut queue = self.queue.lock();
            for name in news {
                if let Ok(name) = FileName::new(&name) {
                    self.note(&mut queue, Ino(dir), name);
                }
            }
        }
    }

    /// Asks for attributes that may have changed: those of directories with changed names among them.
    fn ask_attrs(&self, source: &Source<'_>, pending: &Pending) -> Result<()> {
        let (mut batch, mut again) = (Vec::new(), Vec::new());
        for ino in pending.attrs.iter().chain(&pending.attrs_again).chain(pending.dirs.keys()) {
            match source.attrs(*ino).or_else(|| self.attrs_by_path(source, *ino)) {
                Some(facts) => batch.push(Change::Attrs(facts)),
                None if pending.attrs.contains(ino) => again.push(*ino),
                None => {}
            }
        }
        if !again.is_empty() {
            let mut queue = self.queue.lock();
            queue.pending.attrs_again.extend(again);
            queue.since.get_or_insert_with(Instant::now);
        }
        self.apply(batch, Vec::new()).map(drop)
    }

    /// Lists directories that nobody knew, and those in them: made a moment ago, with something in them perhaps, or come from elsewhere.
    fn list_new(&self, source: &Source<'_>, mut unlisted: Vec<u64>) -> Result<()> {
        while let Some(dir) = unlisted.pop() {
            if (source.is_over)() {
                return Err(over());
            }
            let (mut entries, mut unread) = (Vec::new(), Vec::new());
            if let Some(_known) = self.known_dir(source, dir)? {
                match source.list(dir, &mut |found, facts| entries.push((name(found), facts))) {
                    Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
                    Err(e) => {
                        tracing::debug!(error = %e, "a new directory cannot be listed");
                        unread.extend(not_read(dir, &e));
                    }
                    Ok(some) => unread.extend(some),
                }
            }
            unlisted.extend(self.apply(vec![Change::Listing { dir, entries }], unread)?);
        }
        Ok(())
    }

    /// Asks what is at each name that was noted, while no rename is under way.
    fn ask_names(&self, source: &Source<'_>) -> (Pending, Vec<Change>, Vec<NotRead>) {
        let mut queue = self.queue.lock();
        queue.waiting = Some(Waiting::Settling);
        queue.no_renames = true;
        let patience = Instant::now() + RENAMES_PATIENCE;
        while queue.renames > 0 && !self.done.wait_until(&mut queue, patience).timed_out() {}
        let pending = std::mem::take(&mut queue.pending);
        queue.since = (!queue.noticed.is_empty()).then(Instant::now);
        drop(queue);
        let (mut batch, mut unread) = (Vec::new(), Vec::new());
        for (dir, dirty) in &pending.dirs {
            unread.extend(self.ask_in(source, *dir, dirty, &mut batch));
        }
        let mut queue = self.queue.lock();
        queue.no_renames = false;
        queue.waiting = None;
        self.done.notify_all();
        (pending, batch, unread)
    }

    /// Says of the directory if something in it cannot be told.
    fn ask_in(&self, source: &Source<'_>, dir: u64, dirty: &Dirty, batch: &mut Vec<Change>) -> Option<NotRead> {
        let mut unread = None;
        let _known = match dirty.is_kept {
            true => None,
            // It was not known when something in it changed; perhaps it can be found.
            false => self.known_dir(source, dir).ok().flatten(),
        };
        match &dirty.names {
            Names::Some(names) => {
                for found_name in names {
                    match source.lookup(dir, found_name) {
                        Ok(found) => {
                            let found = found.map(|(facts, _)| facts);
                            batch.push(Change::Entry { dir, name: name(found_name), found });
                        }
                        // It may be there, and cannot be read: what is known of it stays.
                        Err(e) => {
                            tracing::debug!(error = %e, "what a changed name leads to cannot be told");
                            unread = unread.or_else(|| not_read(dir, &e));
                        }
                    }
                }
            }
            Names::All => {
                let mut entries = Vec::new();
                match source.list(dir, &mut |found, facts| entries.push((name(found), facts))) {
                    Ok(some) => {
                        unread = some;
                        batch.push(Change::Listing { dir, entries });
                    }
                    Err(e) => {
                        tracing::debug!(error = %e, "a directory with many changes cannot be listed");
                        unread = not_read(dir, &e);
                    }
                }
            }
        }
        unread
    }

    /// Makes a directory known, by its path if it is not.
    fn known_dir<'a>(&self, source: &Source<'a>, dir: u64) -> Result<Option<Known<'a>>> {
        if source.engine.keep_known(Ino(dir)) {
            return Ok(Some(Known(source.engine, Ino(dir))));
        }
        let view = self.tree.lock().live.as_ref().map(LiveIndex::view);
        let Some(view) = view else { return Ok(None) };
        let Some(id) = view.dir_of_key(dir)? else { return Ok(None) };
        let found = source.resolve(&view.path(id)?)?;
        Ok(found.filter(|(facts, _)| facts.key == dir).map(|(_, known)| known))
    }

    /// The attributes of what the engine does not know any more.
    fn attrs_by_path(&self, source: &Source<'_>, ino: u64) -> Option<Facts> {
        let view = self.tree.lock().live.as_ref().map(LiveIndex::view)?;
        let id = *view.of_key(ino).ok()?.first()?;
        let found = source.resolve(&view.path(id).ok()?).ok()??;
        Some(found.0).filter(|facts| facts.key == ino)
    }

    /// Applies a batch, in which each listing is whole but those of directories that are `unread`.
    fn apply(&self, batch: Vec<Change>, unread: Vec<NotRead>) -> Result<Vec<u64>> {
        if batch.is_empty() && unread.is_empty() {
            return Ok(Vec::new());
        }
        let mut tree = self.tree.lock();
        let Some(live) = &mut tree.live else { return Ok(Vec::new()) };
        let applied = live.apply(&batch)?;
        let listed = |change: &Change| if let Change::Listing { dir, .. } = change { Some(*dir) } else { None };
        if tree.state.unread.count > 0 || !unread.is_empty() {
            let known = Arc::make_mut(&mut tree.state.unread);
            batch.iter().filter_map(listed).for_each(|dir| known.clear(dir));
            // A name that cannot be told is asked for whenever somebody lists its directory, and is counted once.
            for not_read in unread {
                if !known.has(not_read.dir) {
                    known.note(not_read);
                }
            }
        }
        if let Some((_, log)) = &mut tree.log {
            log.push(batch);
        }
        drop(tree);
        if applied.lost {
            self.queue.lock().pending.give_up();
        }
        Ok(applied.unlisted)
    }

    /// Walks the whole tree, and begins anew with what is found. Where the store has its namespace as a segment, that is all of it.
    fn walk(&self, source: &Source<'_>) -> Result<()> {
        if let Some(Namespace { segment, directories_mtime_ns }) = &self.options.namespace {
            let keys = Keys::OfNodes { directories_mtime_ns: *directories_mtime_ns };
            let base = Base::new(segment.clone(), keys)?;
            let mut tree = self.tree.lock();
            (tree.live, tree.log) = (Some(LiveIndex::new(Arc::new(base))), None);
            return Ok(());
        }
        let mut builder = self.options.making.builder()?;
        let mut unread = Unread::default();
        self.entries.store(0, Relaxed);
        source.walk(&mut builder, &|entries| self.entries.store(entries, Relaxed), &mut unread)?;
        let entries = builder.len();
        let limit = self.options.base_bytes;
        let too_large = |bytes: u64| {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            let why = format!(
                "the index of {entries} entries takes {} MiB of memory, and may take {}; mount with a larger --memory",
                mib(bytes),
                mib(limit)
            );
            FsError::new(ErrorKind::Exhausted).on("index", "the mount").because(why)
        };
        // What a node takes without its name: more than the columns and the table do.
        let least = entries * self.least_bytes();
        if least > limit {
            return Err(too_large(least));
        }
        let base = self.options.making.finish(builder, &mut |progress| self.tell(progress))?;
        let bytes = base.memory_bytes() + self.in_memory(&base);
        if bytes > limit {
            return Err(too_large(bytes));
        }
        let mut tree = self.tree.lock();
        tree.live = Some(LiveIndex::new(Arc::new(base.with_contents(self.options.contents.clone()))));
        tree.log = None;
        tree.state.walks += 1;
        tree.state.unread = Arc::new(unread);
        drop(tree);
        give_back_freed();
        Ok(())
    }

    fn least_bytes(&self) -> u64 {
        match self.options.making.lies {
            Lies::InMemory => 45,
            Lies::OnDisk(_) => 5,
        }
    }

    fn tell(&self, progress: Progress) -> ControlFlow<()> {
        self.queue.lock().waiting = Some(Waiting::Making(progress));
        if self.is_over.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// There is no index any more.
    fn drop_tree(&self) {
        let mut tree = self.tree.lock();
        (tree.live, tree.log) = (None, None);
    }

    /// Has a new base made if the differences take too much memory.
    fn fold_if_due(self: Arc<Self>) {
        let limit = self.options.changes_bytes;
        let mut tree = self.tree.lock();
        let Some(live) = &tree.live else { return };
        let bytes = live.changes_bytes();
        if tree.log.is_some() && bytes + tree.folding_bytes() > limit.saturating_mul(GIVE_UP_AT) {
            tracing::warn!("more changes than the index of the mount can follow; it is made anew at the next question");
            (tree.live, tree.log) = (None, None);
            drop(tree);
            let mut queue = self.queue.lock();
            queue.pending.give_up();
            queue.since.get_or_insert_with(Instant::now);
            return;
        }
        if tree.log.is_some() || bytes <= limit {
            return;
        }
        let view = live.view();
        tree.begun += 1;
        let number = tree.begun;
        (tree.log, tree.folded_bytes) = (Some((number, Vec::new())), bytes);
        drop(tree);
        let folder = self.clone();
        let spawned = Thread::new().name("adit-index-fold".into()).spawn(move || {
            let folded = folder.options.making.fold(&view, &mut |_| {
                if folder.is_over.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            drop(view);
            folder.queue.lock().folded = Some((number, folded));
            folder.work.notify_one();
        });
        if let Err(e) = spawned {
            tracing::warn!(error = %e, "no thread for a new base of the mount's index");
            self.tree.lock().log = None;
        }
    }

    /// Goes over to a new base.
    fn take_over(&self, number: u64, folded: Result<Base>) {
        let mut tree = self.tree.lock();
        // Else the tree was walked again meanwhile.
        let Some((_, log)) = tree.log.take_if(|(begun, _)| *begun == number) else { return };
        let remade = folded.and_then(|base| {
            let mut live = LiveIndex::new(Arc::new(base));
            log.iter().try_for_each(|batch| live.apply(batch).map(drop))?;
            Ok(live)
        });
        match remade {
            Ok(mut live) => {
                let before = tree.live.as_ref().map_or(0, LiveIndex::generation);
                live.continue_from(before);
                tree.live = Some(live);
                tree.state.folds += 1;
            }
            Err(e) => {
                tracing::warn!(error = %e, "no new base for the mount's index; it is made anew at the next question");
                tree.live = None;
                drop(tree);
                self.queue.lock().pending.give_up();
            }
        }
    }
}
