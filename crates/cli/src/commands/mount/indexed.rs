//! The index that a mount's process keeps of what it shows, and the answers out of it.
//!
//! It is made at the first question, or when it is mounted with `-o index`; until then nothing is kept and nothing listens. The base of a
//! vault's index is in memory only. What it takes is counted as the mount's: it is a part of `--memory`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use adit_core::engine::Engine;
use adit_core::types::{Ino, Kind};
use adit_core::{ErrorKind, FsError};
use adit_index::live::{
    self, Contents, Facts, Found, Kept, KeptOptions, Lies, LiveHit, LiveId, Making, Namespace, Search as LiveSearch,
    Sums, View, Waiting as LiveWaiting,
};
use adit_index::query::{Order, Pattern, PatternBuilder, Query, Syntax};
use adit_mount::control::{ControlError, Parts, Watch};
use adit_volume::snapshots_dir::SNAPSHOTS_INO;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::question::{
    About, Answer, Count, End, Hit, Piece, Question, Reading, Search, SortBy, Sum, Waiting, Wording, kind_of,
};

/// Hits of one piece, and how long they are kept back at most.
const PIECE_LEN: usize = 256;
const PIECE_AGE: Duration = Duration::from_millis(20);
/// Parts of the mount's memory: what differs from the base, the base, and its making.
const CHANGES_SHARE: u64 = 8;
const BASE_SHARE: u64 = 2;
const MAKING_SHARE: u64 = 16;
const MAKING_MIN_BYTES: u64 = 4 << 20;
const MAKING_MAX_BYTES: u64 = 64 << 20;

type Result<T> = std::result::Result<T, FsError>;

/// See the module's notes.
pub struct Indexed {
    engine: Weak<Engine>,
    /// Whether names may not lie on a disk.
    is_secret: bool,
    /// Directories that it does not go into: the snapshots of a volume.
    closed: Vec<Ino>,
    /// Of a manifest: the segment that its store answers from.
    namespace: Option<Namespace>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: Option<Arc<Kept>>,
    /// Who knows the content of files that nobody changed. It holds the store, and goes when the mount ends.
    contents: Option<Arc<dyn Contents>>,
    is_over: bool,
}

impl Indexed {
    /// Of what `engine` shows, which is a source of this kind.
    pub fn new(
        engine: &Arc<Engine>,
        kind: &str,
        namespace: Option<Namespace>,
        contents: Option<Arc<dyn Contents>>,
    ) -> Indexed {
        let closed = if kind == "volume" { vec![SNAPSHOTS_INO] } else { Vec::new() };
        let (engine, is_secret) = (Arc::downgrade(engine), is_secret(kind));
        let state = Mutex::new(State { contents, ..State::default() });
        Indexed { engine, is_secret, closed, namespace, state }
    }

    /// Begins to keep it, if that has not begun.
    ///
    /// # Errors
    /// `Stale` while the mount ends; the host's.
    pub fn start(&self) -> Result<Arc<Kept>> {
        let mut state = self.state.lock();
        if let Some(kept) = &state.kept {
            return Ok(kept.clone());
        }
        let engine = self.engine.upgrade().filter(|_| !state.is_over);
        let engine = engine.ok_or_else(|| FsError::new(ErrorKind::Stale).because("the mount is ending"))?;
        let memory_bytes = engine.options().memory_bytes;
        let lies = match &self.namespace {
            _ if self.is_secret => Lies::InMemory,
            // Nothing is ever made.
            Some(_) => Lies::OnDisk(PathBuf::new()),
            None => Lies::OnDisk(scratch_dir()?),
        };
        let making =
            Making { lies, memory_bytes: (memory_bytes / MAKING_SHARE).clamp(MAKING_MIN_BYTES, MAKING_MAX_BYTES) };
        let options = KeptOptions {
            changes_bytes: memory_bytes / CHANGES_SHARE,
            base_bytes: memory_bytes / BASE_SHARE,
            closed: self.closed.clone(),
            namespace: self.namespace.clone(),
            contents: state.contents.clone(),
            making,
        };
        let kept = Arc::new(Kept::start(&engine, options)?);
        state.kept = Some(kept.clone());
        Ok(kept)
    }

    /// Ends it: when this returns, it asks nothing of the engine any more.
    pub fn stop(&self) {
        let kept = {
            let mut state = self.state.lock();
            (state.is_over, state.contents) = (true, None);
            state.kept.take()
        };
        if let Some(kept) = kept {
            kept.stop();
        }
    }

    /// Answers a question, in pieces.
    ///
    /// # Errors
    /// What the index says, as an answer.
    pub fn answer(&self, args: &Value, parts: &mut Parts<'_>) -> std::result::Result<Value, ControlError> {
        let question = Question::deserialize(args).map_err(|e| ControlError::answer(ErrorKind::InvalidInput, e))?;
        self.answered(question, &mut Teller::new(parts)).map_err(|e| {
            let said = e.cause().filter(|_| e.subject().is_none()).map_or_else(|| e.to_string(), ToString::to_string);
            ControlError::answer(e.kind(), said)
        })
    }

    fn answered(&self, question: Question, teller: &mut Teller<'_, '_>) -> Result<Value> {
        if let Question::Info = &question {
            // To ask how it is does not make one.
            return Ok(json!(self.about().unwrap_or_default()));
        }
        let kept = self.start()?;
        if let Question::Update = &question {
            kept.walk_again();
        }
        let view = kept.view(&mut |waiting| teller.waiting(waiting))?;
        let end = End { unread: view.unread_count(), is_root_unread: view.is_unread(LiveId::ROOT)? };
        let mut told = match question {
            Question::Find(search) => find(&view, &search, teller),
            Question::Resolve { start, paths } => resolve(&view, &start, &paths, teller),
            Question::Du { path } => du(&view, &path, teller),
            Question::Top { path, count } => top(&view, &path, count, teller),
            Question::Info | Question::Update => return Ok(json!(self.about().unwrap_or_default())),
        }?;
        if let (Value::Object(told), Value::Object(end)) = (&mut told, json!(end)) {
            told.extend(end);
        }
        Ok(told)
    }

    /// What there is to say of it, once somebody has asked something.
    pub fn about(&self) -> Option<About> {
        let kept = self.state.lock().kept.clone()?;
        let state = kept.state();
        Some(About {
            ready: state.is_ready,
            entries: state.entries,
            base_entries: state.base_entries.into(),
            base_bytes: state.base_len,
            in_memory: self.is_secret,
            changed: state.changed as u64,
            memory_bytes: state.memory_bytes,
            generation: state.generation,
            mapped: state.is_mapped,
            walks: state.walks,
            folds: state.folds,
            unread: state.unread.count,
            first_unread: state.unread.first.clone(),
        })
    }
}

/// Names of a vault are encrypted where they are stored. Of what is not known, that is not known.
pub fn is_secret(kind: &str) -> bool {
    !matches!(kind, "volume" | "manifest" | "dir" | "overlay")
}

/// Where scratch files lie: in the cache directory, on a disk, and not in a folder that lies in memory perhaps.
///
/// # Errors
/// `NotFound` if there is none; the host's.
pub fn scratch_dir() -> Result<PathBuf> {
    let why = "neither XDG_CACHE_HOME nor a home directory is known; set XDG_CACHE_HOME, of a mount when it is mounted";
    let failed = |_| FsError::new(ErrorKind::NotFound).on("find", "a folder for scratch files").because(why);
    let dir = super::overlay::place::cache_dir(None).map_err(failed)?;
    std::fs::create_dir_all(&dir).map_err(|e| FsError::from(e).on("make", dir.display()))?;
    Ok(dir)
}

/// Sends pieces, and notices when nobody wants them any more.
struct Teller<'a, 'p> {
    parts: &'a mut Parts<'p>,
    hits: Vec<Hit>,
    since: Instant,
}

impl<'a, 'p> Teller<'a, 'p> {
    fn new(parts: &'a mut Parts<'p>) -> Self {
        Teller { parts, hits: Vec::new(), since: Instant::now() }
    }

    fn send(&mut self, piece: &Piece) -> ControlFlow<()> {
        match serde_json::to_value(piece) {
            Ok(value) => self.parts.send(&value),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn sent(&mut self, piece: &Piece) -> Result<()> {
        if self.send(piece).is_break() { Err(FsError::new(ErrorKind::Interrupted)) } else { Ok(()) }
    }

    fn waiting(&mut self, waiting: LiveWaiting) -> ControlFlow<()> {
        let (doing, done, total) = match waiting {
            LiveWaiting::Walking(entries) => ("indexing", entries, 0),
            LiveWaiting::Making(progress) => ("sorting", progress.done, progress.total),
            LiveWaiting::Settling => ("catching up", 0, 0),
        };
        if !self.parts.is_wanted() {
            return ControlFlow::Break(());
        }
        self.send(&Piece::Waiting(Waiting { doing: doing.to_owned(), done, total }))
    }

    fn hit(&mut self, hit: Hit) -> ControlFlow<()> {
        self.hits.push(hit);
        if self.hits.len() >= PIECE_LEN || self.since.elapsed() >= PIECE_AGE {
            self.flush()
        } else {
            ControlFlow::Continue(())
        }
    }

    fn flush(&mut self) -> ControlFlow<()> {
        self.since = Instant::now();
        let hits = std::mem::take(&mut self.hits);
        if hits.is_empty() { ControlFlow::Continue(()) } else { self.send(&Piece::Hits(hits)) }
    }
}

fn hit_of(view: &View, id: LiveId, path: &[u8], facts: &Facts) -> Result<Hit> {
    let (kind, size, perm, mtime_ns) = (facts.kind.as_str().to_owned(), facts.size, facts.perm, facts.mtime_ns);
    let hash = view.hash(id)?.map(|hash| format!("{:032x}", u128::from_be_bytes(hash)));
    Ok(Hit { path: path.to_vec(), kind, size, perm, mtime_ns, hash, is_unread: view.is_unread(id)? })
}

/// The directory at `path`.
fn directory(view: &View, path: &[u8]) -> Result<LiveId> {
    let shown = || adit_core::path::show(path);
    match view.resolve(LiveId::ROOT, path)? {
        Found::Entry(id) if view.kind(id)? == Kind::Directory => Ok(id),
        Found::Missing { deepest, .. } => Err(missing(view, deepest, path)?),
        _ => Err(FsError::new(ErrorKind::NotDirectory).on("find", shown())),
    }
}

/// Why there is nothing at `path`, of which `deepest` is as far as it leads.
fn missing(view: &View, deepest: LiveId, path: &[u8]) -> Result<FsError> {
    let e = FsError::new(ErrorKind::NotFound).on("find", adit_core::path::show(path));
    Ok(match view.is_unread(deepest)? {
        true => {
            let folder = adit_core::path::show(&view.path(deepest)?);
            e.because(format!("not known: {folder} could not be read when the index was made"))
        }
        false => e,
    })
}

fn pattern_of(wording: &Wording) -> Result<Pattern> {
    let syntax = match wording.syntax {
        Reading::Substring => Syntax::Substring,
        Reading::Glob => Syntax::Glob,
        Reading::Regex => Syntax::Regex,
    };
    let texts: Vec<&[u8]> = [&wording.text].into_iter().chain(&wording.others).map(Vec::as_slice).collect();
    PatternBuilder::new(syntax).ignore_case(wording.ignore_case).full_path(wording.full_path).build_any(&texts)
}

fn search_of(view: &View, search: &Search) -> Result<LiveSearch> {
    let mut query = Query::new();
    if !search.kinds.is_empty() {
        let unknown = || FsError::new(ErrorKind::InvalidInput).because("there is no such kind of file");
        let kinds = search.kinds.iter().map(|word| kind_of(word).ok_or_else(unknown)).collect::<Result<Vec<_>>>()?;
        query = query.kinds(&kinds);
    }
    query = search.extensions.iter().fold(query, |query, extension| query.extension(extension));
    if let Some((least, most)) = search.size {
        query = query.size(least..=most);
    }
    if let Some((from, to)) = search.mtime_ns {
        query = query.mtime_ns(from..=to);
    }
    let mut found = LiveSearch::new(query).below(directory(view, &search.below)?);
    for wording in &search.patterns {
        found = found.pattern(pattern_of(wording)?);
    }
    for wording in &search.excludes {
        found = found.exclude(pattern_of(wording)?);
    }
    if let Some((least, most)) = search.depth {
        found = found.depth(least..=most);
    }
    if let Some(limit) = search.limit {
        found = found.limit(limit);
    }
    if let Some((by, reverse)) = search.sort {
        let order = match by {
            SortBy::Path => Order::Path,
            SortBy::Name => Order::Name,
            SortBy::Size => Order::Size,
            SortBy::Time => Order::Time,
        };
        found = found.sort(order, reverse);
    }
    Ok(found)
}

/// How often it is looked whether somebody still wants the answer, while there is nothing to send.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs `work`, and tells it to end when nobody listens to `teller` any more. That is looked at by a thread of its own: a search may find nothing
/// for long.
fn watched<T>(watch: Watch<'_>, stop: &AtomicBool, work: impl FnOnce() -> T) -> T {
    /// However the work ends.
    struct Done<'a>(&'a AtomicBool, Thread);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
            self.1.unpark();
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Relaxed) {
                std::thread::park_timeout(LOOK_EVERY);
                if !watch.is_wanted() {
                    stop.store(true, Relaxed);
                    return;
                }
            }
        });
        let _done = Done(&done, watcher.thread().clone());
        work()
    })
}

fn find(view: &View, search: &Search, teller: &mut Teller<'_, '_>) -> Result<Value> {
    let stop = Arc::new(AtomicBool::new(false));
    let wanted = search_of(view, search)?.stop_when(stop.clone());
    let watch = teller.parts.watch();
    let mut failed = None;
    let mut each = |LiveHit { id, path, facts }: LiveHit<'_>| match hit_of(view, id, path, facts) {
        Ok(hit) => teller.hit(hit),
        Err(e) => {
            failed = Some(e);
            ControlFlow::Break(())
        }
    };
    let count = watched(watch, &stop, || match search.count_only {
        true => wanted.count(view),
        false => wanted.run(view, &mut each),
    })?;
    let _ = teller.flush();
    if let Some(e) = failed {
        return Err(e);
    }
    Ok(json!(Count { count }))
}

fn resolve(view: &View, start: &[u8], paths: &[Vec<u8>], teller: &mut Teller<'_, '_>) -> Result<Value> {
    let start = directory(view, start)?;
    for paths in paths.chunks(PIECE_LEN) {
        let answers = paths.iter().map(|path| answer_of(view, start, path)).collect::<Result<Vec<_>>>()?;
        teller.sent(&Piece::Answers(answers))?;
    }
    Ok(json!(Count { count: paths.len() as u64 }))
}

fn answer_of(view: &View, start: LiveId, path: &[u8]) -> Result<Answer> {
    Ok(match view.resolve(start, path)? {
        Found::Entry(id) => Answer::Found(hit_of(view, id, &view.path(id)?, &view.facts(id)?)?),
        Found::Missing { deepest, component } => {
            Answer::Missing { deepest: view.path(deepest)?, component, is_unread: view.is_unread(deepest)? }
        }
        Found::NotDirectory { at, component } => {
            let is_link = view.kind(at)? == Kind::Symlink;
            Answer::NotDirectory { at: view.path(at)?, component, is_link }
        }
    })
}

fn sum_of(view: &View, id: LiveId, sums: &Sums) -> Result<Sum> {
    let Sums { files, directories, others, bytes } = *sums;
    Ok(Sum { path: view.path(id)?, kind: view.kind(id)?.as_str().to_owned(), files, directories, others, bytes })
}

fn du(view: &View, path: &[u8], teller: &mut Teller<'_, '_>) -> Result<Value> {
    let id = match view.resolve(LiveId::ROOT, path)? {
        Found::Entry(id) => id,
        Found::Missing { deepest, .. } => return Err(missing(view, deepest, path)?),
        Found::NotDirectory { .. } => {
            return Err(FsError::new(ErrorKind::NotFound).on("find", adit_core::path::show(path)));
        }
    };
    let du = live::du(view, id, &mut || !teller.parts.is_wanted())?;
    for children in du.children.chunks(PIECE_LEN) {
        let sums = children.iter().map(|(id, sums)| sum_of(view, *id, sums)).collect::<Result<Vec<_>>>()?;
        teller.sent(&Piece::Sums(sums))?;
    }
    Ok(json!(sum_of(view, id, &du.total)?))
}

fn top(view: &View, path: &[u8], count: usize, teller: &mut Teller<'_, '_>) -> Result<Value> {
    let dir = directory(view, path)?;
    let top = live::top(view, dir, count, &mut || !teller.parts.is_wanted())?;
    let files = top.files.iter().map(|(id, bytes)| (*id, Sums { files: 1, bytes: *bytes, ..Sums::default() }));
    for largest in [files.collect(), top.directories.clone()] {
        let sums = largest.iter().map(|(id, sums)| sum_of(view, *id, sums)).collect::<Result<Vec<_>>>()?;
        teller.sent(&Piece::Sums(sums))?;
    }
    Ok(json!(Count { count: (top.files.len() + top.directories.len()) as u64 }))
}
