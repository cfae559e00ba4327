//! Repairing: the fixes of a report, in an order in which one makes room for the next, until nothing changes.

use adit_core::media::{HostDir, SyncTarget};
use adit_core::types::FileName;
use adit_core::{ErrorKind, FsError, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::lost;
use super::moves::{Mover, Shape};
use super::walk::Listing;
use super::{Fix, Options, Place, Problem, ProblemKind, Progress, Report, check};
use crate::format::names::{C9R, C9S, CONTENTS_FILE, DIR_FILE, DIRID_FILE, NAME_FILE, SYMLINK_FILE, nfc};
use crate::format::{ContentCipher, DirId, NameCipher};
use crate::vault::Unlocked;

/// Rounds of check and repair. What one round uncovers (what lay below an orphan), the next one mends.
const ROUNDS_MAX: usize = 8;
/// Longest name, in bytes, that still has room for a number behind it.
const NAME_LEN_ROOM_BYTES: usize = 240;

/// Bytes of a folder's name that become part of a made-up one.
const FOLDER_LEN_MAX_BYTES: usize = 80;

/// One thing that a repair did, or could not do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repair {
    /// The problem that it was for.
    pub kind: ProblemKind,
    /// Its cleartext path, as [`Problem::path`].
    pub path: Option<String>,
    /// As [`Problem::name_known`].
    pub name_known: bool,
    /// Its ciphertext path, as it was.
    pub ciphertext_path: String,
    /// What was done, or why nothing was: a sentence for people.
    pub action: String,
}

/// What a repair found, did, and left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// The check before it.
    pub before: Report,
    /// What was done, in order.
    pub done: Vec<Repair>,
    /// What was tried and is as it was.
    pub failed: Vec<Repair>,
    /// The check after it. Contents are read once, before: unreadable chunks are carried over while their file is
    /// in its place.
    pub after: Report,
}

/// Checks the vault in `root`, mends what can be mended, and checks again. The vault must not be mounted: the caller
/// sees to that, and has recovered the journals of dead mounts before.
///
/// Files whose header or chunks are not authentic stay where they are. Running it again is harmless.
///
/// # Errors
/// As [`check`]; what the host says if what was done cannot be made durable. A step that fails is in the report.
pub fn repair(
    root: &dyn HostDir,
    keys: &Unlocked,
    options: Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<RepairReport> {
    let content = ContentCipher::new(&keys.masterkey, keys.config.cipher_combo)
        .map_err(|e| FsError::new(ErrorKind::Io).on("repair", "the vault").because(e))?;
    let before = check(root, keys, options, progress)?;
    let mut report = RepairReport { after: before.clone(), before, ..RepairReport::default() };
    for _ in 0..ROUNDS_MAX {
        let mover =
            Mover::new(root, NameCipher::new(&keys.masterkey), content.clone(), keys.config.shortening_threshold);
        report.failed.clear();
        let nameless = Nameless::among(&report.after.problems);
        let mut round = Round { mover, nameless, done: Vec::new(), failed: Vec::new() };
        round.all(&report.after.problems);
        let changed = !round.done.is_empty();
        report.failed.append(&mut round.failed);
        report.done.append(&mut round.done);
        if !changed {
            break;
        }
        root.sync(SyncTarget::All).map_err(|e| FsError::from(e).on("sync", "the vault"))?;
        report.after = check(root, keys, Options { contents: false }, progress)?;
    }
    carry_over(root, &mut report);
    Ok(report)
}

/// Bad chunks that only the first check looked for are still bad, where their files are still in place.
fn carry_over(root: &dyn HostDir, report: &mut RepairReport) {
    if report.done.is_empty() {
        return;
    }
    for problem in &report.before.problems {
        let told = |p: &Problem| p.kind == problem.kind && p.ciphertext_path == problem.ciphertext_path;
        if problem.kind == ProblemKind::UnreadableChunk
            && root.stat(std::path::Path::new(&problem.ciphertext_path)).is_ok()
            && !report.after.problems.iter().any(told)
        {
            report.after.problems.push(problem.clone());
        }
    }
}

/// What is known of the names that directories without an entry had: entries whose id is lost go aside in the same round
/// as the directories whose entry is lost are entered anew, and the ones were those of the others.
#[derive(Default)]
struct Nameless {
    /// Cleartext paths of the entries.
    entries: Vec<String>,
    /// How many directories there are for them.
    orphans: usize,
}

impl Nameless {
    fn among(problems: &[Problem]) -> Self {
        let lost_its_id = |p: &&Problem| {
            let kind =
                matches!(p.kind, ProblemKind::BadDirFile | ProblemKind::UnknownEntry | ProblemKind::BrokenLongName);
            kind && matches!(p.fix, Some(Fix::Aside))
        };
        let orphans = problems.iter().filter(|p| matches!(p.fix, Some(Fix::LinkOrphan(_)))).count();
        Nameless {
            entries: problems
                .iter()
                .filter(lost_its_id)
                .filter(|p| p.name_known)
                .filter_map(|p| p.path.clone())
                .collect(),
            orphans,
        }
    }

    /// The name of the only directory that it can be.
    fn only(&self) -> Option<&str> {
        let [path] = self.entries.as_slice() else { return None };
        path.rsplit('/').next().filter(|name| self.orphans == 1 && !name.is_empty())
    }

    /// What an entry that was made for one of the directories may have been, for people; empty if nothing is known.
    fn tell(&self) -> String {
        const SHOWN_MAX: usize = 10;
        let shown = self.entries.iter().take(SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        match (self.entries.len(), self.only()) {
            (0, _) => String::new(),
            (_, Some(_)) => format!("; it is most likely {shown}, whose entry had lost its id"),
            (count, None) if count > SHOWN_MAX => {
                format!(
                    "; it may be one of these, whose entries had lost their ids: {shown} and {} more",
                    count - SHOWN_MAX
                )
            }
            _ => format!("; it may be one of these, whose entries had lost their ids: {shown}"),
        }
    }
}

struct Round<'a> {
    mover: Mover<'a>,
    nameless: Nameless,
    done: Vec<Repair>,
    failed: Vec<Repair>,
}

/// What came of a fix.
enum Outcome {
    Done(String),
    /// There is nothing to do any more: an earlier fix took it along.
    Settled,
    /// It is left as it is.
    Left(String),
}

fn phase(fix: &Fix) -> u8 {
    match fix {
        Fix::MakeContentDir(_) | Fix::WriteDirId(_) => 0,
        Fix::Aside => 1,
        Fix::WriteName { .. } | Fix::WriteDirFile(_) | Fix::Rename { .. } => 2,
        Fix::Adopt | Fix::Split { .. } => 3,
        Fix::LinkOrphan(_) | Fix::EmptyOrphan => 4,
    }
}

impl Round<'_> {
    fn all(&mut self, problems: &[Problem]) {
        for wanted in 0..=4 {
            for problem in problems {
                let Some(fix) = problem.fix.as_ref().filter(|fix| phase(fix) == wanted) else { continue };
                let told = |action| Repair {
                    kind: problem.kind,
                    path: problem.path.clone(),
                    name_known: problem.name_known,
                    ciphertext_path: problem.ciphertext_path.clone(),
                    action,
                };
                let place = Place { path: problem.path.clone(), name_known: problem.name_known };
                match self.one(fix, &problem.ciphertext_path, &place) {
                    Ok(Outcome::Done(action)) => self.done.push(told(action)),
                    Ok(Outcome::Settled) => {}
                    Ok(Outcome::Left(why)) => self.failed.push(told(why)),
                    Err(e) if e.is_not_found() => {}
                    Err(e) => self.failed.push(told(e.to_string())),
                }
            }
        }
    }

    fn one(&mut self, fix: &Fix, at: &str, place: &Place) -> Result<Outcome> {
        let mover = &mut self.mover;
        Ok(Outcome::Done(match fix {
            Fix::MakeContentDir(id) => {
                // Before, so that a repair that ends in between is not taken for one that found nothing. Only the root
                // comes first: lost+found lies in it.
                if id.is_root() {
                    mover.make_content(id)?;
                }
                let note = lost::leave_note(mover, id, place)?;
                format!(
                    "made the empty directory {}; what was in it is not in this vault: if a sync is still running, its \
                     files may come yet, else they are lost; the note {note} keeps this in mind",
                    mover.make_content(id)?
                )
            }
            Fix::WriteDirId(id) => format!("wrote {}", mover.write_dir_id(id)?),
            Fix::Aside => format!("moved to {}", mover.aside(at)?),
            Fix::WriteName { full } => {
                mover.write_part(at, NAME_FILE, full.as_bytes())?;
                format!("wrote its {NAME_FILE} again")
            }
            Fix::WriteDirFile(id) => {
                mover.write_part(at, DIR_FILE, id.as_str().as_bytes())?;
                format!("wrote its {DIR_FILE} again")
            }
            Fix::Rename { dir, name } => match mover.move_entry(at, dir, &nfc(name))? {
                Some(to) => format!("renamed to {to}"),
                None => format!(
                    "moved to {}",
                    mover.put_in_lost_and_found(&room(name), |m, dir, n| m.move_entry(at, dir, n))?
                ),
            },
            Fix::Adopt => return self.adopt(at, place),
            Fix::Split { name } => return self.split(at, name.as_deref(), place),
            Fix::LinkOrphan(id) => {
                let by_id =
                    Some(id.as_str()).filter(|n| FileName::new(n.as_bytes()).is_ok() && n.len() <= NAME_LEN_ROOM_BYTES);
                let name = match (self.nameless.only(), by_id) {
                    (Some(name), _) => room(name),
                    (None, Some(id)) => id.to_owned(),
                    (None, None) => made_up("directory", at),
                };
                let to = mover.put_in_lost_and_found(&name, |m, dir, n| m.link_dir(id, dir, n))?;
                format!("entered as {to}{}", self.nameless.tell())
            }
            Fix::EmptyOrphan => return self.empty_orphan(at, place),
        }))
    }

    /// Moves an entry without a known name to lost+found, if it holds anything authentic.
    fn adopt(&mut self, at: &str, place: &Place) -> Result<Outcome> {
        let Some(shape) = self.mover.shape(at)? else { return Ok(Outcome::Settled) };
        let fault = match shape {
            Shape::File => self.mover.reader.file(at, true, &mut |_| {}),
            Shape::LongFile => self.mover.reader.file(&format!("{at}/{CONTENTS_FILE}"), true, &mut |_| {}),
            Shape::Link => match self.mover.reader.link(&format!("{at}/{SYMLINK_FILE}")) {
                Some(Err(fault)) => Some(fault),
                _ => None,
            },
            Shape::Directory if self.mover.directory_at(at)?.is_some() => None,
            Shape::Directory | Shape::Nothing => {
                return Ok(Outcome::Left("left: it holds nothing to be saved".to_owned()));
            }
        };
        if let Some((kind, detail)) = fault {
            if kind == ProblemKind::HostError {
                return Err(FsError::new(ErrorKind::Io).on("read", at).because(detail));
            }
            return Ok(Outcome::Left(format!("left: its name is unknown and its content bad ({kind}: {detail})")));
        }
        let kind = match shape {
            Shape::Directory => "directory",
            Shape::Link => "link",
            _ => "file",
        };
        let put = |m: &Mover<'_>, dir: &DirId, name: &str| m.move_entry(at, dir, name);
        let to = self.mover.put_in_lost_and_found(&found_in(place, &made_up(kind, at)), put)?;
        Ok(Outcome::Done(format!("moved to {to}")))
    }

    /// Leaves a folder the part that the store shows.
    fn split(&mut self, at: &str, name: Option<&str>, place: &Place) -> Result<Outcome> {
        let order = match at.ends_with(C9S) {
            true => [CONTENTS_FILE, DIR_FILE, SYMLINK_FILE],
            false => [DIR_FILE, SYMLINK_FILE, CONTENTS_FILE],
        };
        let mut there = Vec::new();
        for part in order {
            if self.mover.find(&format!("{at}/{part}"))?.is_some() {
                there.push(part);
            }
        }
        let mut moved = Vec::new();
        for part in there.into_iter().skip(1) {
            let path = format!("{at}/{part}");
            let sound = match part {
                CONTENTS_FILE => self.mover.reader.file(&path, true, &mut |_| {}).is_none(),
                SYMLINK_FILE => matches!(self.mover.reader.link(&path), Some(Ok(_))),
                _ => true,
            };
            let name = |kind| name.map_or_else(|| found_in(place, &made_up(kind, at)), room);
            let to = match part {
                CONTENTS_FILE if sound => {
                    self.mover.put_in_lost_and_found(&name("file"), |m, d, n| m.move_entry(&path, d, n))?
                }
                SYMLINK_FILE if sound => {
                    self.mover.put_in_lost_and_found(&name("link"), |m, d, n| m.move_link(&path, d, n))?
                }
                DIR_FILE => {
                    let id = self.mover.directory_at(at)?;
                    let aside = self.mover.aside(&path)?;
                    match id {
                        Some(id) => {
                            self.mover.put_in_lost_and_found(&name("directory"), |m, d, n| m.link_dir(&id, d, n))?
                        }
                        None => aside,
                    }
                }
                _ => self.mover.aside(&path)?,
            };
            moved.push(format!("moved its {part} to {to}"));
        }
        Ok(if moved.is_empty() { Outcome::Settled } else { Outcome::Done(moved.join("; ")) })
    }

    /// Takes everything authentic out of a content directory that does not tell its id, and moves the rest aside.
    fn empty_orphan(&mut self, at: &str, place: &Place) -> Result<Outcome> {
        let listing = Listing::read(self.mover.root, at).map_err(|e| FsError::from(e).on("list", at))?;
        let mut saved = 0;
        for (name, _) in listing.iter() {
            if name != DIRID_FILE
                && (name.ends_with(C9R) || name.ends_with(C9S))
                && let Outcome::Done(_) = self.adopt(&format!("{at}/{name}"), place)?
            {
                saved += 1;
            }
        }
        let to = self.mover.aside(at)?;
        Ok(Outcome::Done(format!("moved {saved} entries to /lost+found under made-up names, the folder to {to}")))
    }
}

/// A name for something that has lost its own: the same in each attempt.
fn made_up(kind: &str, ciphertext_path: &str) -> String {
    format!("{kind}-{:016x}", xxh3_64(ciphertext_path.as_bytes()))
}

/// A made-up name with the one of the folder that the nameless thing was in, so that it tells also later where it is from.
fn found_in(place: &Place, name: &str) -> String {
    let folder = place.path.as_deref().filter(|_| !place.name_known).unwrap_or_default();
    let folder = match folder.trim_end_matches('/').rsplit('/').next() {
        Some(folder) if !folder.is_empty() => folder,
        _ if folder == "/" => "the root",
        _ => return name.to_owned(),
    };
    let mut from = nfc(folder).into_owned();
    while from.len() > FOLDER_LEN_MAX_BYTES {
        from.pop();
    }
    format!("{name} (from {from})")
}

/// The name in NFC, cut so that a number fits behind it.
fn room(name: &str) -> String {
    let mut name = nfc(name).into_owned();
    while name.len() > NAME_LEN_ROOM_BYTES {
        name.pop();
    }
    name
}
