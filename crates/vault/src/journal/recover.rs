//! Recovery: what a dead mount left half-made is completed or cut away, from the segments that it left.
//!
//! In this order: plans are completed; overwritten chunks that are torn are written again; files that were growing are
//! cut at the last chunk that authenticates, never below their floor; content directories named by an intent are
//! searched for objects of that epoch that never became whole. Every step can be repeated: a crash in the middle of
//! recovery is recovered from by the next one. An object that cannot be dealt with now (the disk is full, or fails at that
//! place) does not keep the others of its stage waiting; the stages after it, which rest on it, and the removal of the
//! segments wait for the next recovery. A chunk that someone else wrote since is left alone, and ours is handed
//! to the caller as a [`Rescue`]. What never became whole is moved to [`ASIDE_DIR`]; nothing is deleted but folders under
//! names of passage ([`super::temporary`]), of creations that nobody was promised and removals that were asked for.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::media::{HostDir, HostEntry, HostFile, NewFile, SyncTarget};
use adit_core::types::{Access, Attr, Kind, RenameFlags};
use adit_core::{ErrorKind, FsError, Result};
use zeroize::Zeroizing;

use super::record::Step;
use super::temporary::{self, is_hidden_by_host};
use super::{
    ModeLoan, VaultId, make_prefix, make_step, open_as_owner, owner_beside, parent_of, segment_name, segment_number,
};
use crate::format::content::{CHUNK_CLEAR_BYTES, object};
use crate::format::names::{C9R, C9S, CONTENTS_FILE, DIR_FILE, DIRID_FILE, NAME_FILE, SYMLINK_FILE, shorten};
use crate::format::{ContentCipher, DirId, FileCipher, NameCipher};
use crate::perm;

/// How far the clocks may differ that an epoch and the vault's files took their times from.
const CLOCK_SLACK_SECS: i64 = 120;

pub(super) mod story;
#[cfg(test)]
mod tests;

use story::{ChunkState, FileState, Story};

/// Where objects go that never became whole: a folder beside `d`, which other clients leave alone.
pub(crate) const ASIDE_DIR: &str = "adit-lost+found";

/// What recovery did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Segments that were found, of mounts that ended without an unmount.
    pub segments: usize,
    /// Chunks that were written again.
    pub chunks_rewritten: u64,
    /// Files that were cut to their last whole chunk.
    pub files_cut: u64,
    /// Renames that were completed.
    pub plans_completed: u64,
    /// Directories whose content folder or id file was made again.
    pub directories_completed: u64,
    /// Folders of objects that were being made or removed, removed.
    pub folders_removed: u64,
    /// Objects that never became whole: their ciphertext paths, and where they were moved to.
    pub moved_aside: Vec<(String, String)>,
    /// Ciphertext paths of files that someone else changed or removed since; our unwritten chunks were saved.
    pub conflicts: Vec<String>,
}

/// What is ours of one file and has no place in the vault any more.
pub(crate) struct Rescue<'a> {
    /// Ciphertext path of the file.
    pub path: &'a str,
    /// The same whenever this is rescued again, because recovery was cut off; another one for anything else.
    pub tag: String,
    /// Its pieces: cleartext offset in the file and length, in bytes, in ascending order. Never empty.
    pub pieces: &'a [(u64, u64)],
    /// Reads the piece of this index.
    pub read: &'a dyn Fn(usize) -> Result<Zeroizing<Vec<u8>>>,
}

/// A segment that some mount left behind.
pub(crate) struct Leftover {
    state: Arc<dyn HostDir>,
    /// Which of the state directories that are recovered together.
    slot: usize,
    name: PathBuf,
    number: u64,
}

/// Whether a file of a state directory is a segment of a journal.
pub(crate) fn is_journal(name: &[u8]) -> bool {
    segment_number(name).is_some()
}

/// Segments in `state`, which is number `slot` of those that are recovered together, oldest first.
pub(crate) fn leftovers(state: &Arc<dyn HostDir>, slot: usize) -> Result<Vec<Leftover>> {
    let mut numbers = Vec::new();
    state
        .list(Path::new(""), &mut |e| numbers.extend(segment_number(e.name)))
        .map_err(|e| FsError::from(e).on("list", "the state directory"))?;
    numbers.sort_unstable();
    let leftover = |number| Leftover { state: state.clone(), slot, name: segment_name(number), number };
    Ok(numbers.into_iter().map(leftover).collect())
}

/// Recovers from `leftovers` and removes them when all is durable in the vault.
///
/// # Errors
/// The first of what could not be recovered, all of which are logged: then the segments stay, and the next recovery goes
/// on from there. `Corrupt` if a segment is another vault's.
pub(crate) fn recover(
    vault: &dyn HostDir,
    content: &ContentCipher,
    names: &NameCipher,
    id: VaultId,
    leftovers: &[Leftover],
    rescue: &mut dyn FnMut(Rescue<'_>) -> Result<()>,
) -> Result<RecoveryReport> {
    let mut report = RecoveryReport::default();
    if leftovers.is_empty() {
        return Ok(report);
    }
    let (mut story, segments) = Story::of(leftovers, id, content.layout().nonce_len as usize)?;
    report.segments = segments;
    let (handled, lost) = (HashSet::new(), BTreeMap::new());
    let (buf, clear) = (Vec::new(), Zeroizing::new(Vec::new()));
    let lost_since = story.lost_since(vault.incarnation());
    let failed = Failed::default();
    let mut work = Work { vault, content, names, report, lost_since, handled, lost, failed, buf, clear };
    work.plans(&mut story)?;
    work.failed.stage_ends()?;
    for state in story.files.values() {
        if let Err(e) = work.file(&story, state) {
            work.failed.note(e);
        }
    }
    // A file whose first header could not be written again would look like one that never became whole.
    work.failed.stage_ends()?;
    work.intents(&mut story);
    // A file that was not found may be in a directory that could not be searched.
    work.failed.stage_ends()?;
    for (nonce, state) in &story.files {
        work.give_up(&story, nonce, state)?;
    }
    work.rescue(&story, rescue)?;
    let report = work.report;
    vault.sync(SyncTarget::All).map_err(|e| FsError::from(e).on("sync", "the vault"))?;
    retire(&mut story, leftovers)?;
    Ok(report)
}

/// Removes the segments, durably, now that all that they tell is durable in the vault.
fn retire(story: &mut Story, leftovers: &[Leftover]) -> Result<()> {
    let last = story.recovered()?;
    let others = (0..leftovers.len()).filter(|&n| Some(n) != last);
    for left in others.chain(last).map(|n| &leftovers[n]) {
        tracing::info!("recovered from journal segment {}", left.number);
        left.state
            .remove(&left.name, Kind::File)
            .and_then(|()| left.state.sync(SyncTarget::Dir(Path::new(""))))
            .map_err(|e| FsError::from(e).on("retire", left.name.display()))?;
    }
    Ok(())
}

/// What could not be recovered now.
#[derive(Default)]
struct Failed {
    first: Option<FsError>,
    count: u64,
}

impl Failed {
    fn note(&mut self, e: FsError) {
        tracing::error!("cannot be recovered now: {e}");
        self.count += 1;
        self.first.get_or_insert(e);
    }

    /// Fails with the first error, if there was one.
    fn stage_ends(&mut self) -> Result<()> {
        let Some(e) = self.first.take() else { return Ok(()) };
        tracing::error!("{} objects cannot be recovered now; the journal stays for the next recovery", self.count);
        Err(e)
    }
}

struct Work<'a> {
    vault: &'a dyn HostDir,
    content: &'a ContentCipher,
    names: &'a NameCipher,
    report: RecoveryReport,
    /// See [`Story::lost_since`].
    lost_since: Option<i64>,
    /// Header nonces of the files that were found and dealt with.
    handled: HashSet<Vec<u8>>,
    /// Chunks of ours that have no place any more, by header nonce.
    lost: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    failed: Failed,
    buf: Vec<u8>,
    clear: Zeroizing<Vec<u8>>,
}

/// None for what is not there.
pub(super) fn absent<T>(r: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match r {
        Ok(v) => Ok(Some(v)),
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether an object that is not whole may be one of ours. We make objects whole, so a kill leaves no other; after a loss
/// of unsynced writes, it must have changed since the first epoch that lost some. Anything else is another client's, and
/// perhaps still on its way.
fn may_be_ours(lost_since: Option<i64>, object: &Attr) -> bool {
    lost_since.is_some_and(|since| object.ctime.secs >= since.saturating_sub(CLOCK_SLACK_SECS))
}

impl Work<'_> {
    /// Completes the plans that were cut off. One that meets what someone else did since is given up: what it moved lies
    /// under temporary names then, where `check` finds it.
    fn plans(&mut self, story: &mut Story) -> Result<()> {
        for (key, (steps, done)) in std::mem::take(&mut story.plans) {
            let mut made = done as usize;
            while let Some(step) = steps.get(made) {
                if let Err(e) = self.allowed(step).and_then(|()| make_step(self.vault, step).map(drop)) {
                    if !matches!(
                        e.kind(),
                        ErrorKind::Exists
                            | ErrorKind::NotFound
                            | ErrorKind::NotEmpty
                            | ErrorKind::NotDirectory
                            | ErrorKind::IsDirectory
                            // The host never moves that folder: it was about to be taken back.
                            | ErrorKind::CrossDevice
                    ) {
                        self.failed.note(e);
                        break;
                    }
                    tracing::error!("a rename that was cut off cannot be completed: {e}");
                    self.report.conflicts.push(e.subject().unwrap_or("a rename").to_owned());
                    story.progress(key, steps.len() as u32)?;
                    break;
                }
                made += 1;
                story.progress(key, made as u32)?;
            }
            self.report.plans_completed += u64::from(made == steps.len() && made > done as usize);
        }
        Ok(())
    }

    /// A directory that was to be replaced, because it was empty, may not be empty any more.
    fn allowed(&self, step: &Step) -> Result<()> {
        let Step::RemoveFile { path } = step else { return Ok(()) };
        let Some(dir) = path.strip_suffix(DIRID_FILE) else { return Ok(()) };
        let mut others = 0;
        let listed = self.vault.list(Path::new(dir.trim_end_matches('/')), &mut |e| {
            let is_other = e.name != DIRID_FILE.as_bytes() && !is_hidden_by_host(&String::from_utf8_lossy(e.name));
            others += usize::from(is_other);
        });
        absent(listed)?;
        if others > 0 { Err(FsError::new(ErrorKind::NotEmpty).on("remove", path)) } else { Ok(()) }
    }

    /// The file at one of its places, newest first, if its header is still the one that we know; else one of this epoch
    /// whose header never reached the disk.
    fn find(&mut self, state: &FileState, fresh: bool) -> Result<Option<(String, Box<dyn HostFile>)>> {
        let mut without_header = None;
        for path in state.paths.iter().rev() {
            let _permitted = ModeLoan::to_owner(self.vault, parent_of(path), 0o700);
            let opened = match open_as_owner(self.vault, Path::new(path), Access::Write) {
                Err(e) if e.kind() == std::io::ErrorKind::IsADirectory => continue,
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    tracing::warn!("{path}: {e}");
                    continue;
                }
                other => absent(other).map_err(|e| FsError::from(e).on("open", path))?,
            };
            let Some(file) = opened else { continue };
            let mut header = vec![0; state.header.len()];
            let got = file.read_at(0, &mut header).map_err(|e| FsError::from(e).on("read", path))?;
            if header == state.header {
                return Ok(Some((path.clone(), file)));
            }
            let blank = got < header.len() || header.iter().all(|&b| b == 0);
            let stat = file.stat().map_err(|e| FsError::from(e).on("read", path))?;
            if fresh && blank && may_be_ours(self.lost_since, &stat) {
                // Not yet: where it was to go may lie another one without a header, and this one elsewhere with its own.
                without_header.get_or_insert((path.clone(), file));
            }
        }
        if let Some((path, file)) = &without_header {
            file.write_at(0, &state.header).map_err(|e| FsError::from(e).on("write", path))?;
        }
        Ok(without_header)
    }

    fn file(&mut self, story: &Story, state: &FileState) -> Result<()> {
        let nonce = &state.header[..self.content.layout().nonce_len as usize];
        let fresh = story.session.contains_key(nonce);
        let Ok(cipher) = self.content.open_file(&state.header) else { return Ok(()) };
        match self.find(state, fresh)? {
            Some((path, file)) => self.mend(story, state, &cipher, &path, &*file),
            None => Ok(()), // not where the journal says: its last move may not be durable, see `intents`
        }
    }

    /// Saves what the journal has of a file that is nowhere.
    fn give_up(&mut self, story: &Story, nonce: &[u8], state: &FileState) -> Result<()> {
        // A file of this epoch may never have come into being; if it did, all but a call in flight is in it.
        if self.handled.contains(nonce) || state.unlinked || story.session.contains_key(nonce) {
            return Ok(());
        }
        let Ok(cipher) = self.content.open_file(&state.header) else { return Ok(()) };
        for &chunk in state.chunks.keys() {
            self.save(state, &cipher, chunk);
        }
        Ok(())
    }

    /// Mends a file that was found.
    fn mend(
        &mut self,
        story: &Story,
        state: &FileState,
        cipher: &FileCipher,
        path: &str,
        file: &dyn HostFile,
    ) -> Result<()> {
        self.handled.insert(cipher.header_nonce().to_vec());
        for (&chunk, at) in &state.chunks {
            self.chunk(story, state, cipher, (path, file), chunk, at)?;
        }
        self.cut(path, file, cipher, state.floor)
    }

    fn save(&mut self, state: &FileState, cipher: &FileCipher, chunk: u64) {
        let path = state.paths.last().cloned().unwrap_or_default();
        if !self.report.conflicts.contains(&path) {
            self.report.conflicts.push(path);
        }
        self.lost.entry(cipher.header_nonce().to_vec()).or_default().insert(chunk);
    }

    /// Hands out what has no place any more, file by file.
    fn rescue(&self, story: &Story, rescue: &mut dyn FnMut(Rescue<'_>) -> Result<()>) -> Result<()> {
        for (nonce, chunks) in &self.lost {
            let Some(state) = story.files.get(nonce) else { continue };
            let Ok(cipher) = self.content.open_file(&state.header) else { continue };
            let overhead = u64::from(cipher.layout().overhead());
            let (mut found, mut pieces) = (Vec::new(), Vec::new());
            for (&chunk, at) in state.chunks.iter().filter(|(chunk, _)| chunks.contains(chunk)) {
                let at = at.newest();
                let (Some(offset), (_, data)) = (chunk.checked_mul(u64::from(CHUNK_CLEAR_BYTES)), at.at) else {
                    continue;
                };
                found.push((chunk, at));
                pieces.push((offset, u64::from(data.len).saturating_sub(overhead)));
            }
            // The newest of all: segments are removed only when all of them are recovered, so it is there until then.
            let Some(newest) = found.iter().map(|(_, tip)| tip).max_by_key(|tip| (tip.at.0, tip.at.1.offset)) else {
                continue;
            };
            let tag = data_encoding::HEXLOWER.encode(&newest.nonce);
            let read = |n: usize| {
                let (chunk, tip) = &found[n];
                let sealed = story.data(tip.at)?;
                let mut clear = Zeroizing::new(vec![0; sealed.len()]);
                let path = || state.paths.last().cloned().unwrap_or_default();
                let len = cipher
                    .decrypt_chunk(*chunk, &sealed, &mut clear)
                    .map_err(|e| FsError::new(ErrorKind::Corrupt).on("rescue", path()).because(e))?;
                clear.truncate(len);
                Ok(clear)
            };
            let path = state.paths.last().map_or("", String::as_str);
            rescue(Rescue { path, tag: tag.chars().take(12).collect(), pieces: &pieces, read: &read })?;
        }
        Ok(())
    }

    /// Writes our newest version of one chunk again, unless it is there or someone else's is.
    fn chunk(
        &mut self,
        story: &Story,
        state: &FileState,
        cipher: &FileCipher,
        (path, file): (&str, &dyn HostFile),
        chunk: u64,
        at: &ChunkState,
    ) -> Result<()> {
        let layout = cipher.layout();
        let fresh = story.session.contains_key(cipher.header_nonce());
        let failed = |e: std::io::Error| FsError::from(e).on("recover", path);
        let Ok(offset) = layout.chunk_offset(chunk) else { return Ok(()) };
        let versions = at.tips.iter().map(|tip| story.data(tip.at)).collect::<Result<Vec<_>>>()?;
        let full = layout.chunk_cipher() as usize;
        self.buf.resize(full, 0);
        let got = file.read_at(offset, &mut self.buf).map_err(failed)?;
        let found = &self.buf[..got];
        let new = if let Some(new) = versions.iter().find(|new| found.starts_with(new)) {
            new
        } else {
            self.clear.resize(full, 0);
            let authentic = cipher.decrypt_chunk(chunk, found, &mut self.clear).is_ok();
            let nonce = found.get(..layout.nonce_len as usize).unwrap_or_default();
            let durable = chunk * u64::from(CHUNK_CLEAR_BYTES) < state.floor;
            let new = match authentic {
                true => at.tips.iter().rposition(|tip| tip.replaces(nonce)).map(|n| &versions[n]),
                // Torn by the writer of one of them: the one that it has most of. Where a mount cut the file and it grew
                // again, a chunk that has nothing of another mount's version is newer than that.
                false => {
                    let has_part = |n: usize| at.tips[n].has_begun(found) || has_part_of(&versions[n], found);
                    let of_cut = |n: usize| !durable && at.tips[n].cut_elsewhere && !has_part(n);
                    let candidates = (0..versions.len()).filter(|&n| !of_cut(n));
                    candidates.max_by_key(|&n| alike(&versions[n], found)).map(|n| &versions[n])
                }
            };
            let beyond = file.stat().map_err(failed)?.size <= offset;
            if new.is_none() && (fresh || !durable || at.settled.iter().any(|settled| settled == nonce)) {
                // Not every version of such a chunk is recorded: of a file of this epoch this may be a later one, and
                // above the floor one from before the file was cut. What was promised, it keeps. Nor is it someone else's
                // if another mount of ours has made it durable.
                return Ok(());
            }
            let Some(new) = new.filter(|_| !(beyond && durable)) else {
                self.save(state, cipher, chunk);
                return Ok(());
            };
            if beyond {
                return Ok(()); // it grew on ground that was not durable, and that is gone
            }
            file.write_at(offset, new).map_err(failed)?;
            self.report.chunks_rewritten += 1;
            new
        };
        // A short chunk was the last one; anything behind it is what a cut had not removed yet.
        let end = offset + new.len() as u64;
        if new.len() < full && file.stat().map_err(failed)?.size > end {
            file.set_len(end).map_err(failed)?;
            self.report.files_cut += 1;
        }
        Ok(())
    }

    /// Cuts the file at the first chunk that does not authenticate, at or above `floor` only.
    fn cut(&mut self, path: &str, file: &dyn HostFile, cipher: &FileCipher, floor: u64) -> Result<()> {
        let layout = cipher.layout();
        let failed = |e: std::io::Error| FsError::from(e).on("recover", path);
        let size = file.stat().map_err(failed)?.size;
        let full = layout.chunk_cipher() as usize;
        let mut chunk = layout.chunk_of(floor);
        loop {
            let Ok(offset) = layout.chunk_offset(chunk) else { return Ok(()) };
            if offset >= size {
                return Ok(());
            }
            self.buf.resize(full, 0);
            self.clear.resize(full, 0);
            let got = file.read_at(offset, &mut self.buf).map_err(failed)?;
            let empty = got == layout.overhead() as usize;
            if empty || cipher.decrypt_chunk(chunk, &self.buf[..got], &mut self.clear).is_err() {
                if chunk * u64::from(CHUNK_CLEAR_BYTES) < floor {
                    tracing::error!("{path}: chunk {chunk} does not authenticate");
                    chunk += 1;
                    continue;
                }
                self.report.files_cut += 1;
                return file.set_len(offset).map_err(failed);
            }
            chunk += 1;
        }
    }

    fn intents(&mut self, story: &mut Story) {
        let mut queue: Vec<String> = story.intents.clone();
        let mut seen = HashSet::new();
        while let Some(dir) = queue.pop() {
            if !seen.insert(dir.clone()) {
                continue;
            }
            let _permitted = ModeLoan::to_owner(self.vault, Path::new(&dir), 0o700);
            let mut entries = Vec::new();
            let listed = self.vault.list(Path::new(&dir), &mut |e| {
                if let Ok(name) = std::str::from_utf8(e.name) {
                    entries.push((name.to_owned(), e.kind));
                }
            });
            match absent(listed) {
                Ok(Some(())) => {}
                Ok(None) => continue,
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    // What is ours we can read: that we may not says nothing of the disk, now or at the next recovery.
                    tracing::warn!("{dir}: left as it is, for it is somebody else's: {e}");
                    continue;
                }
                Err(e) => {
                    self.failed.note(FsError::from(e).on("list", &dir));
                    continue;
                }
            }
            for (name, kind) in entries {
                let path = format!("{dir}/{name}");
                let of_passage = story.seeds.iter().any(|seed| temporary::is_of(seed, &name));
                if name == DIRID_FILE || !(of_passage || name.ends_with(C9R) || name.ends_with(C9S)) {
                    continue;
                }
                let kind = match kind {
                    Some(kind) => Some(kind),
                    None => match absent(self.vault.stat(Path::new(&path))) {
                        Ok(attr) => attr.map(|a| a.kind),
                        Err(e) => {
                            self.failed.note(FsError::from(e).on("look up", &path));
                            continue;
                        }
                    },
                };
                if of_passage {
                    if kind == Some(Kind::Directory) {
                        self.clear_away(&path);
                    }
                    continue;
                }
                let looked = match kind {
                    Some(Kind::File) => self.new_file(story, &path, &path).map(|()| None),
                    Some(Kind::Directory) => self.folder(story, &path),
                    _ => Ok(None),
                };
                match looked {
                    Ok(below) => queue.extend(below),
                    // Someone else's, then: what is ours we can read and change.
                    Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::NotPermitted) => {
                        tracing::warn!("left as it is: {e}");
                    }
                    Err(e) => self.failed.note(e),
                }
            }
        }
    }

    /// Removes a folder under a name of passage of a dead mount. What cannot be removed stays, for `check`.
    fn clear_away(&mut self, path: &str) {
        match temporary::sweep(self.vault, self.names, path) {
            Ok(true) => self.report.folders_removed += 1,
            Ok(false) => tracing::warn!("{path}: an interrupted operation left it, and it is not empty; it stays"),
            Err(e) => tracing::warn!("{path}: an interrupted operation left it, and it stays: {e}"),
        }
    }

    /// Looks at a file in an unsettled directory; `object` is what to move aside if the file was never whole.
    fn new_file(&mut self, story: &Story, path: &str, object: &str) -> Result<()> {
        let failed = |e: std::io::Error| FsError::from(e).on("recover", path);
        let Some(file) = absent(open_as_owner(self.vault, Path::new(path), Access::Read)).map_err(failed)? else {
            return Ok(());
        };
        let layout = self.content.layout();
        let mut header = vec![0; layout.header_len as usize];
        let got = file.read_at(0, &mut header).map_err(failed)?;
        if got < header.len() || header.iter().all(|&b| b == 0) {
            let stat = file.stat().map_err(failed)?;
            drop(file);
            return self.aside_if_ours(object, &stat);
        }
        let nonce = &header[..layout.nonce_len as usize];
        let known = story.files.get(nonce).filter(|state| state.header == header);
        if (known.is_none() && !story.session.contains_key(nonce)) || self.handled.contains(nonce) {
            return Ok(());
        }
        let Ok(cipher) = self.content.open_file(&header) else { return self.aside(object) };
        let file = open_as_owner(self.vault, Path::new(path), Access::Write).map_err(failed)?;
        match known {
            // It was not where the journal said: its last move was not in there yet.
            Some(state) => self.mend(story, state, &cipher, path, &*file),
            None => self.cut(path, &*file, &cipher, 0),
        }
    }

    /// Looks at a folder in an unsettled directory. Returns the content directory to search next, if it is new too.
    fn folder(&mut self, story: &mut Story, path: &str) -> Result<Option<String>> {
        let has = |name: &str| absent(self.vault.stat(Path::new(&format!("{path}/{name}")))).map(|a| a.is_some());
        if path.ends_with(C9S) && !self.is_named(path)? {
            // Its name was durable before the folder got here, so it was being taken apart.
            self.folder_aside(path)?;
            return Ok(None);
        }
        if has(CONTENTS_FILE)? {
            self.new_file(story, &format!("{path}/{CONTENTS_FILE}"), path)?;
            return Ok(None);
        }
        if has(SYMLINK_FILE)? {
            return Ok(None);
        }
        let id = read_small(self.vault, &format!("{path}/{DIR_FILE}"), 256)?;
        let blank = id.as_ref().is_none_or(|id| id.iter().all(|&b| b == 0));
        if blank {
            self.folder_aside(path)?;
            return Ok(None);
        }
        let Ok(id) = DirId::parse(&id.unwrap_or_default()) else { return Ok(None) };
        self.content_dir(story, &id, path)
    }

    fn is_named(&self, path: &str) -> Result<bool> {
        let name = read_small(self.vault, &format!("{path}/{NAME_FILE}"), 16 << 10)?;
        let name = name.and_then(|bytes| String::from_utf8(bytes).ok());
        Ok(name.is_some_and(|full| path.ends_with(&format!("/{}", shorten(&full)))))
    }

    /// Makes the content directory of `id`, which the folder `entry` names, whole. Returns its path if its entries may be
    /// new as well.
    fn content_dir(&mut self, story: &mut Story, id: &DirId, entry: &str) -> Result<Option<String>> {
        let hash = self.names.dir_hash(id);
        let dir = hash.path();
        let id_path = format!("{dir}/{DIRID_FILE}");
        let failed = |e: std::io::Error| FsError::from(e).on("recover", &dir);
        let known = read_small(self.vault, &id_path, object::max_encoded_bytes(self.content))?;
        if let Some(bytes) = &known {
            if let Ok(found) = object::decode_dir_id(self.content, bytes) {
                let ours = bytes
                    .get(..self.content.layout().nonce_len as usize)
                    .is_some_and(|n| story.session.contains_key(n));
                return Ok((ours && found == *id).then_some(dir));
            }
            if bytes.iter().any(|&b| b != 0) || self.lost_since.is_none() {
                return Ok(None); // damaged, but not by us
            }
        }
        if self.lost_since.is_none() {
            return Ok(None); // another client is at it: we make the content directory first
        }
        // Its new id file will not show that it is of a lost epoch: should recovery be cut off, the next one must know.
        story.intent(&dir)?;
        if known.is_some() {
            self.vault.remove(Path::new(&id_path), Kind::File).map_err(failed)?;
        }
        let exists_is_fine = |r: std::io::Result<()>| match r {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        };
        // The folder's owner is the directory's.
        let owner = owner_beside(self.vault, &format!("{entry}/{DIR_FILE}"));
        make_prefix(self.vault, &format!("d/{}", hash.prefix()), 0).map_err(failed)?;
        exists_is_fine(self.vault.make_dir(Path::new(&dir), perm::folder(self.vault, 0), owner)).map_err(failed)?;
        let bytes = object::encode_dir_id(self.content, id)
            .map_err(|e| FsError::new(ErrorKind::Io).on("recover", &dir).because(e))?;
        // Durable with everything else before the segments go.
        let new = NewFile { content: &bytes, perm: perm::file(self.vault, 0), owner, durable: false };
        self.vault.publish(Path::new(&id_path), &new).map_err(failed)?;
        self.report.directories_completed += 1;
        Ok(Some(dir))
    }

    /// Moves a folder aside that is not whole, if it may be ours.
    fn folder_aside(&mut self, path: &str) -> Result<()> {
        let failed = |e: std::io::Error| FsError::from(e).on("recover", path);
        let Some(stat) = absent(self.vault.stat(Path::new(path))).map_err(failed)? else { return Ok(()) };
        let mut foreign = false;
        let parts = [NAME_FILE, CONTENTS_FILE, DIR_FILE, SYMLINK_FILE];
        let mut look = |e: HostEntry<'_>| foreign |= !parts.iter().any(|part| part.as_bytes() == e.name);
        absent(self.vault.list(Path::new(path), &mut look)).map_err(failed)?;
        if foreign {
            tracing::warn!("{path}: not whole, and not made by us");
            return Ok(());
        }
        self.aside_if_ours(path, &stat)
    }

    /// `object`, which lies at `path`, is not whole.
    fn aside_if_ours(&mut self, path: &str, object: &Attr) -> Result<()> {
        if may_be_ours(self.lost_since, object) {
            return self.aside(path);
        }
        tracing::warn!("{path}: not whole, and not made by us");
        Ok(())
    }

    fn aside(&mut self, path: &str) -> Result<()> {
        let failed = |e: std::io::Error| FsError::from(e).on("move aside", path);
        let owner = owner_beside(self.vault, ASIDE_DIR);
        match self.vault.make_dir(Path::new(ASIDE_DIR), perm::folder(self.vault, 0), owner) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        for n in 0u32.. {
            let to = format!("{ASIDE_DIR}/{name}.{n}");
            match self.vault.rename(Path::new(path), Path::new(&to), RenameFlags::NOREPLACE) {
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) if e.kind() == std::io::ErrorKind::CrossesDevices => {
                    tracing::warn!("{path}: never became whole, and stays, for its host does not move it: {e}");
                    break;
                }
                Err(e) => return Err(failed(e)),
                Ok(()) => {
                    tracing::warn!("{path}: never became whole, and lies in {to} now");
                    self.report.moved_aside.push((path.to_owned(), to));
                    break;
                }
            }
        }
        Ok(())
    }
}

/// How many bytes of the one are those of the other. Of what has nothing to do with it, one in 256.
fn alike(version: &[u8], found: &[u8]) -> usize {
    version.iter().zip(found).filter(|(a, b)| a == b).count()
}

/// Whether some bytes of the version lie where they belong: more than chance puts there.
fn has_part_of(version: &[u8], found: &[u8]) -> bool {
    let mut run = 0;
    version.iter().zip(found).any(|(a, b)| {
        run = if a == b { run + 1 } else { 0 };
        run >= 8
    })
}

/// The content of a small file, or None if it is not there; at most `max` bytes.
pub(crate) fn read_small(vault: &dyn HostDir, path: &str, max: usize) -> Result<Option<Vec<u8>>> {
    let failed = |e: std::io::Error| FsError::from(e).on("read", path);
    let Some(file) = absent(vault.open(Path::new(path), Access::Read)).map_err(failed)? else { return Ok(None) };
    let mut bytes = vec![0; max + 1];
    let got = file.read_at(0, &mut bytes).map_err(failed)?;
    bytes.truncate(got.min(max + 1));
    Ok(Some(bytes))
}
