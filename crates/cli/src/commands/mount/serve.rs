//! What every mount has: an engine over its store, a session with the kernel, an entry in the registry, and the answers that
//! its process gives on its socket.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use adit_core::engine::{CacheStats, Engine, EngineOptions, WorthStats};
use adit_core::store::Store;
use adit_core::types::Ino;
use adit_core::{ErrorKind, FsError};
use adit_index::live::{Contents, Namespace};
use adit_mount::control::{self, ControlError, MountInfo, Parts, Registered, Registry};
use adit_mount::{MountError, MountOptions, Session, SessionHandle, Until, sightings};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::indexed::Indexed;
use super::volume::Place;
use super::{answered, mount_failure, overlay};
use crate::args::manifest::CasArgs;
use crate::args::mount_options::{Part, Timeouts};
use crate::exit_code::NOT_A_MOUNT;
use crate::failure::{Failure, Result};
use crate::question::INDEX_VERB;
use crate::{live, logging, output};

/// Memory of each serving thread that is not in the engine's budget: its receive buffer and stack, in bytes.
const THREAD_LEN_BYTES: u64 = 2 << 20;
/// Memory of the process besides budget and threads, in bytes.
const BASE_LEN_BYTES: u64 = 12 << 20;

/// How long an answer about the end of the mount is waited for; whoever asked then waits for the process's end.
const OUTCOME_PATIENCE: Duration = Duration::from_secs(90);
/// How often it is looked whether what was unmounted has ended.
const LOOK: Duration = Duration::from_millis(500);
/// How long the end is waited for where it is still mounted elsewhere: whoever starts a process in a namespace of its own has a copy for a moment.
const COPIES_PATIENCE: Duration = Duration::from_secs(3);
/// The time limit where the reason for which the kernel still holds it is unknown.
const UNSEEN_PATIENCE: Duration = Duration::from_secs(30);

/// The request for what was met that is damaged, missing or out of reach ([`Damaged`]).
pub const DAMAGE_VERB: &str = "damage";

/// The request to have everything be on the disk.
pub const FLUSH_VERB: &str = "flush";

/// What is asked with [`DAMAGE_VERB`].
#[derive(Serialize, Deserialize)]
pub struct Damaged {
    /// How many requests had met damage when whoever asks began.
    pub since: u64,
    /// Of these inodes.
    pub inodes: Vec<u64>,
}

/// What a mount's process says of it.
pub struct About {
    /// What is mounted: its place.
    pub source: String,
    /// Nobody else changes it.
    pub exclusive: bool,
    /// Why nothing can be changed, where nobody asked for that.
    pub why_read_only: Option<String>,
    /// Where warnings are; none in the foreground.
    pub log: Option<PathBuf>,
    /// When it was mounted.
    pub began: Instant,
    /// What of a volume is mounted.
    pub part: Option<Part>,
    /// The volume that takes the changes, of an overlay.
    pub upper: Option<PathBuf>,
    /// Where the content of a manifest's files lies, if it is one, or lies on one.
    pub content: Option<CasArgs>,
    /// It is there for one verb alone.
    pub hidden: bool,
    /// The segment that its store answers from, if it does.
    pub namespace: Option<Namespace>,
    /// Who knows the content of files that nobody changed.
    pub contents: Option<Arc<dyn Contents>>,
}

/// A mount that is usable.
pub struct Served {
    engine: Arc<Engine>,
    session: Session,
    registered: Registered,
    indexed: Arc<Indexed>,
    source: String,
}

/// Mounts `store` and announces it. `place` is its place in the process that has a volume open.
///
/// # Errors
/// What [`Session::mount`] says; nothing stays mounted then.
pub fn serve(
    store: Arc<dyn Store>,
    mountpoint: &Path,
    options: &MountOptions,
    engine: EngineOptions,
    mut about: About,
    place: Option<Place>,
) -> Result<Served> {
    let engine = Engine::new(store, engine);
    let session = Session::mount(engine.clone(), mountpoint, options).map_err(|e| mount_failure(&e))?;
    let mut info = MountInfo::new(&about.source, &options.kind, session.mountpoint(), options.read_only);
    info.hidden = about.hidden;
    let place_raw = options.place_raw.clone();
    info.source_raw = place_raw.filter(|raw| String::from_utf8_lossy(raw) == about.source);
    if let Some(upper) = &about.upper {
        info = info.over(upper);
    }
    info.file_id = place.as_ref().and_then(Place::file_id);
    match &about.part {
        Some(Part::Snapshot(name)) => info.snapshot = Some(name.clone()),
        Some(Part::Branch(name)) => info.branch = Some(name.clone()),
        Some(Part::Live) => info.branch = Some(adit_volume::tree::MAIN.to_owned()),
        None => {}
    }
    let source = about.source.clone();
    tracing::info!("{source} is mounted on {}", session.mountpoint().display());
    // Weak: the control thread may outlive the mount, and must not keep the source open.
    let indexed = Arc::new(Indexed::new(&engine, &options.kind, about.namespace.take(), about.contents.take()));
    let verbs = Verbs {
        engine: Arc::downgrade(&engine),
        session: session.handle(),
        info: info.clone(),
        about,
        place,
        indexed: indexed.clone(),
    };
    // A mount that takes no request, and whose end cannot be waited for, is taken away again.
    let registered = Registry::of_this_user().register(&info, verbs).map_err(|e| answered(&e))?;
    registered.put_up(&session.handle());
    if let Some(e) = registered.unannounced() {
        tracing::warn!("announced in no folder, and found by its mountpoint alone: {e}");
    }
    if options.index
        && let Err(e) = indexed.start()
    {
        tracing::warn!("no index of {source} yet: {e}");
    }
    Ok(Served { engine, session, registered, indexed, source })
}

impl Served {
    /// Ends it from another thread.
    pub fn handle(&self) -> SessionHandle {
        self.session.handle()
    }

    /// Its engine.
    pub fn engine(&self) -> Weak<Engine> {
        Arc::downgrade(&self.engine)
    }

    /// Serves until it is unmounted, and everything is written back. `released` runs when its store is given back, and
    /// before those who asked for the end have their answer.
    pub fn wait(self, until: Until, released: impl FnOnce()) -> Result<()> {
        let mountpoint = self.session.mountpoint().to_owned();
        let ended = self.session.wait(until);
        // Nothing is to be asked of the store once it is given back.
        self.indexed.stop();
        drop(self.engine);
        released();
        // Waits until those who asked for the end have their answer.
        drop(self.registered);
        let ended = ended.map_err(|e| Failure::fs(mountpoint.display(), &e))?;
        tracing::info!("{} is no longer mounted on {} ({ended:?})", self.source, mountpoint.display());
        Ok(())
    }
}

/// The engine's options; `ttl` is how long names and attributes are believed where nobody else changes the source.
pub fn engine_options(
    timeouts: &Timeouts,
    memory_bytes: u64,
    options: &MountOptions,
    ttl: Option<Duration>,
) -> EngineOptions {
    let defaults = EngineOptions::default();
    let others = BASE_LEN_BYTES + threads_bytes(options);
    EngineOptions {
        attr_ttl: timeouts.attr.or(ttl).unwrap_or(defaults.attr_ttl),
        entry_ttl: timeouts.entry.or(ttl).unwrap_or(defaults.entry_ttl),
        negative_ttl: timeouts.negative.or(ttl).unwrap_or(defaults.negative_ttl),
        // The process as a whole is to stay within what was asked for; caches get at least half of it.
        memory_bytes: memory_bytes.saturating_sub(others).max(memory_bytes / 2),
        shared_memory: None,
        read_only: options.read_only,
        kernel_writeback: false,
        ahead_max: timeouts.prefetch.unwrap_or(defaults.ahead_max),
        ahead_from: defaults.ahead_from,
    }
}

/// Memory of a mount that is not in the engine's budget, in bytes.
pub fn threads_bytes(options: &MountOptions) -> u64 {
    options.threads.get() as u64 * THREAD_LEN_BYTES
}

/// What a mount's process answers on its socket.
struct Verbs {
    engine: Weak<Engine>,
    session: SessionHandle,
    info: MountInfo,
    about: About,
    place: Option<Place>,
    indexed: Arc<Indexed>,
}

impl control::Verbs for Verbs {
    fn stream(&self, verb: &str, args: &Value, parts: &mut Parts<'_>) -> Option<Result<Value, ControlError>> {
        (verb == INDEX_VERB).then(|| self.indexed.answer(args, parts))
    }

    fn call(&self, verb: &str, args: &Value) -> Option<Result<Value, ControlError>> {
        match verb {
            "stats" => Some(self.stats()),
            "status" => Some(self.status()),
            DAMAGE_VERB => Some(self.damage(args)),
            FLUSH_VERB => {
                let flushed = self.write_back(true);
                Some(
                    flushed.and_then(|done| done.map_err(|e| ControlError::answer(e.kind(), &e))).map(|()| Value::Null),
                )
            }
            "umount" => Some(self.umount(args["lazy"].as_bool().unwrap_or(false))),
            verb => self.place.as_ref()?.call(verb, args),
        }
    }
}

impl Verbs {
    /// The errors that requests met last and their errno hides.
    fn errors(&self) -> Vec<Value> {
        let errors = self.session.errors().into_iter();
        errors.map(|met| json!({"op": met.op, "error": met.text, "count": met.count})).collect()
    }

    /// How many requests met damage, and what it was that one about these inodes met after the first so many.
    fn damage(&self, args: &Value) -> Result<Value, ControlError> {
        let asked = Damaged::deserialize(args).map_err(|e| ControlError::answer(ErrorKind::InvalidInput, e))?;
        let inodes: Vec<Ino> = asked.inodes.into_iter().map(Ino).collect();
        let (kind, what) = self.session.damage_since(asked.since, &inodes).unzip();
        Ok(json!({"count": self.session.damage_count(), "what": what, "kind": kind.map(|kind| format!("{kind:?}"))}))
    }

    fn engine(&self) -> Result<Arc<Engine>, ControlError> {
        self.engine.upgrade().ok_or_else(|| ControlError::answer(ErrorKind::Stale, "the mount is ending"))
    }

    fn stats(&self) -> Result<Value, ControlError> {
        let stats = self.engine()?.stats();
        let cache = |c: CacheStats| {
            json!({
                "hits": c.hits,
                "misses": c.misses,
                "size": c.entries,
                "size_bytes": c.bytes,
                "max_bytes": c.max_bytes,
                "hit_rate": c.hit_rate().map(|rate| (rate * 1e4).round() / 1e4),
            })
        };
        let named = |pairs: &mut dyn Iterator<Item = (&'static str, u64)>| {
            Value::Object(pairs.map(|(name, value)| (name.to_owned(), json!(value))).collect::<Map<_, _>>())
        };
        let mut told = json!({
            "inodes": stats.inodes,
            "inode_bytes": stats.inode_bytes,
            "rss_bytes": rss_bytes(),
            "budget_bytes": stats.budget_bytes,
            "used_bytes": stats.used_bytes,
            // With the other mounts of this process, which share the budget.
            "used_by_all_bytes": stats.used_by_all_bytes,
            "dirty_bytes": stats.dirty_bytes,
            "open_files": stats.open_files,
            "open_dirs": stats.open_dirs,
            "passthrough_opens": self.session.passed_opens(),
            "caches": {
                "attributes": cache(stats.attrs),
                "dentries": cache(stats.dentries),
                "negative": cache(stats.negatives),
                "listings": cache(stats.listings),
                "content": cache(stats.units),
            },
            "requests": named(&mut self.session.requests_by_kind().into_iter()),
            "operations": named(&mut stats.ops.iter()),
            "store": named(&mut stats.store.iter().copied()),
        });
        let worth = |told: &mut Value, worth: &WorthStats| {
            told["on"] = worth.is_on.into();
            told["rate_percent"] = worth.rate_percent.into();
            told["least_rate_percent"] = worth.least_percent.into();
            told["switched_off"] = worth.switched_off.into();
        };
        if let Some(paths) = &stats.paths {
            told["caches"]["paths"] = cache(paths.directories);
            worth(&mut told["caches"]["paths"], &paths.worth);
        }
        if let Some(ahead) = &stats.ahead {
            told["prefetch"] = json!({
                "prefetched": ahead.fetched,
                "used": ahead.used,
                "unused": ahead.unused,
                "held": ahead.held,
                "lookup_us": ahead.lookup_ns / 1000,
                "least_lookup_us": ahead.least_ns / 1000,
            });
            worth(&mut told["prefetch"], &ahead.worth);
        }
        // Once there is one.
        if let Some(about) = self.indexed.about() {
            told["index"] = json!(about);
        }
        Ok(told)
    }

    fn status(&self) -> Result<Value, ControlError> {
        let engine = self.engine()?;
        let (stats, options) = (engine.stats(), engine.options());
        let failure = self.place.as_ref().and_then(Place::failure);
        let counter = |name: &str| stats.store.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let mut status = json!({
            "source": self.info.source,
            "kind": self.info.kind,
            "mountpoint": self.info.mountpoint,
            "state": if self.info.is_attached() { "mounted" } else { "detached" },
            "read_only": self.info.read_only || failure.is_some() || self.session.is_read_only(),
            "read_only_because": failure.as_ref().or(self.about.why_read_only.as_ref()),
            "started": output::iso_text(self.info.started),
            "uptime_secs": self.about.began.elapsed().as_secs(),
            "file_missing": live::is_file_missing(&self.info),
            "snapshot": self.info.snapshot,
            "branch": self.info.branch,
            "upper": self.info.upper,
            "exclusive": self.about.exclusive,
            "attr_timeout_secs": options.attr_ttl.as_secs_f64(),
            "entry_timeout_secs": options.entry_ttl.as_secs_f64(),
            "negative_timeout_secs": options.negative_ttl.as_secs_f64(),
            "open_files": stats.open_files,
            "dirty_bytes": stats.dirty_bytes,
            // Among them: entries that are left out of their folders, such as conflict copies of sync programs.
            "warnings": logging::warnings(),
            "errors": self.errors(),
            "log": self.about.log.as_ref().map(|log| log.to_string_lossy()),
        });
        if let Some(CasArgs { cas, cache_dir, cache_size, strict, .. }) = &self.about.content {
            status["cas"] = cas.as_ref().map(|cas| cas.to_string_lossy()).into();
            let dir = overlay::place::cache_dir(cache_dir.as_deref()).ok();
            status["cache_dir"] = dir.map(|dir| dir.to_string_lossy().into_owned()).into();
            // Without one it is what the disk has.
            status["cache_limit_bytes"] = (*cache_size).into();
            status["cache_keep_free_bytes"] = counter("cache_keep_free_bytes").into();
            status["cache_used_bytes"] = counter("cache_used_bytes").into();
            status["strict"] = (*strict).into();
        }
        Ok(status)
    }

    /// Unmounts. Unless `lazy`, it answers when everything is written back, or why that failed, whether the process goes on with other mounts,
    /// and whether with this one, which is still held (`held`): by a copy in another namespace, for one.
    fn umount(&self, lazy: bool) -> Result<Value, ControlError> {
        // What is detached is written back when it ends, and before that as always; nobody waits for it.
        let synced = if lazy {
            self.engine().map(|_| Ok(()))?
        } else {
            self.write_back(sightings::of(self.session.device()).seen.len() > 1)?
        };
        if let Err(e) = &synced
            && can_be_mended(e.kind())
        {
            return Err(ControlError::answer(e.kind(), format!("{e}; it stays mounted, so that you can make room")));
        }
        self.session.unmount(lazy).map_err(|e| match e {
            MountError::NotAMount(_) => ControlError::Answered { kind: NOT_A_MOUNT.to_owned(), message: e.to_string() },
            other => ControlError::answer(other.kind(), &other),
        })?;
        let what =
            "it is unmounted, but not all of it may be on the disk; the next mount recovers what is in the journal";
        let unsafe_because = |e: FsError| ControlError::answer(e.kind(), format!("{e}; {what}"));
        if !lazy && self.is_held_elsewhere()? {
            self.write_back(true)?.map_err(unsafe_because)?;
            return Ok(json!({"goes_on": true, "held": true}));
        }
        let goes_on = !lazy && self.place.as_ref().is_some_and(Place::left);
        synced.map(|()| json!({"goes_on": goes_on})).map_err(unsafe_because)
    }

    /// Has everything be on the disk. The kernel gives what it holds by itself when its last mount goes; if there are others, it is asked for that.
    fn write_back(&self, is_elsewhere: bool) -> Result<Result<(), FsError>, ControlError> {
        let engine = self.engine()?;
        if self.info.read_only {
            return Ok(Ok(()));
        }
        if is_elsewhere {
            let flushed = self.session.flush_kernel(&engine.open_for_writing());
            if let Err(e) = flushed {
                return Ok(Err(FsError::from(e).on("flush", self.session.mountpoint().display())));
            }
        }
        Ok(engine.store().sync_all())
    }

    /// Waits for the end of what was unmounted. True if that does not come, because the kernel still holds the filesystem.
    ///
    /// # Errors
    /// The words of its last flush.
    fn is_held_elsewhere(&self) -> Result<bool, ControlError> {
        let began = Instant::now();
        while began.elapsed() < OUTCOME_PATIENCE {
            if let Some(ended) = self.session.outcome(LOOK) {
                return ended.map(|_| false).map_err(|e| ControlError::answer(e.kind(), &e));
            }
            if !self.session.is_held() || began.elapsed() < COPIES_PATIENCE {
                continue;
            }
            let is_seen = !sightings::of(self.session.device()).seen.is_empty();
            if is_seen || began.elapsed() >= UNSEEN_PATIENCE {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether an unmount that meets this failure is better refused, because its user can do something while the mount lives.
/// After a failed sync nothing gets better by staying.
fn can_be_mended(kind: ErrorKind) -> bool {
    kind.is_refusal()
}

/// Memory that is this process's own (RssAnon + RssShmem of proc(5)), in bytes; 0 if the system does not tell.
fn rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    1024 * (kib("RssAnon:").unwrap_or(0) + kib("RssShmem:").unwrap_or(0))
}
