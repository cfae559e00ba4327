//! Change times of files that a kernel keeps itself (`-o exclusive`).
//!
//! Such a kernel stamps a file when it is changed, shows that, and sends it when it writes the file back. Modification times are the host's to
//! set, change times are not: the host's is the moment of the writing back, and would be shown once the kernel has forgotten the file. So
//! what the kernel showed is kept here, with the change time that the host's file had then. It counts for as long as the file has that
//! one: whatever changes the file on the host moves it.
//!
//! A list in the journal's folder has them for the next mount, see [`NAME`]; a record is appended to it with each time that is sent.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use adit_core::media::{HostDir, HostFile, NewFile};
use adit_core::types::{Access, Attr, Kind, Timestamp};
use hashbrown::HashMap;
use parking_lot::Mutex;

/// The list: [`MAGIC`], then records of the host's inode number and two times in nanoseconds since 1970, the host's and the one that is shown,
/// each a little-endian 64-bit number. Of two records of one number the later one counts.
const NAME: &str = "change-times";
const MAGIC: &[u8; 8] = b"adit-ct1";
const RECORD_LEN_BYTES: usize = 24;
/// Files of which a time is kept: the latest, this many at least and twice as many at most.
const FILES_MAX: usize = 128 << 10;
/// Records in the list before it is written anew.
const RECORDS_MAX: usize = 4 * FILES_MAX;

#[derive(Clone, Copy)]
struct Times {
    host_ns: i64,
    shown_ns: i64,
}

#[derive(Default)]
struct Table {
    /// Those that were sent last.
    young: HashMap<u64, Times>,
    /// Those before them.
    old: HashMap<u64, Times>,
    list: Option<List>,
}

/// The list, open to be appended to.
struct List {
    file: Box<dyn HostFile>,
    records: usize,
}

/// See the module's notes. Its lock is a leaf, but for the list.
#[derive(Default)]
pub(super) struct ChangeTimes {
    table: Mutex<Table>,
    len: AtomicUsize,
}

impl ChangeTimes {
    /// Takes up the list in `state`.
    pub fn begin(&self, state: &dyn HostDir) {
        let mut table = self.table.lock();
        let Ok(file) = state.open(Path::new(NAME), Access::Write) else { return };
        let Some(records) = read(&*file) else { return };
        for (ino, times) in &records {
            table.put(*ino, *times);
        }
        self.len.store(table.len(), Ordering::Release);
        match records.len() > table.len() {
            true => table.list = rewrite(&table, state),
            false => table.list = Some(List { file, records: records.len() }),
        }
    }

    /// The attributes `host` of a file, as the host tells them, with the change time that was shown of it.
    pub fn shown(&self, host: Attr) -> Attr {
        if host.kind != Kind::File || self.len.load(Ordering::Acquire) == 0 {
            return host;
        }
        let ctime = self.table.lock().get(host.ino.0).filter(|times| Some(times.host_ns) == ns_of(host.ctime));
        Attr { ctime: ctime.map_or(host.ctime, |times| timestamp_of(times.shown_ns)), ..host }
    }

    /// A kernel shows `shown` as the change time of the file that has the attributes `host` now.
    pub fn note(&self, state: &dyn HostDir, host: &Attr, shown: Timestamp) {
        let Some((host_ns, shown_ns)) = ns_of(host.ctime).zip(ns_of(shown)) else { return };
        let (ino, times) = (host.ino.0, Times { host_ns, shown_ns });
        let mut table = self.table.lock();
        table.put(ino, times);
        self.len.store(table.len(), Ordering::Release);
        if table.list.as_ref().is_none_or(|list| list.records >= RECORDS_MAX) {
            // With this one.
            table.list = rewrite(&table, state);
        } else if let Some(list) = &mut table.list {
            let at = (MAGIC.len() + list.records * RECORD_LEN_BYTES) as u64;
            match list.file.write_at(at, &record(ino, times)) {
                Ok(()) => list.records += 1,
                Err(e) => tracing::debug!("{NAME}: {e}; change times may move at the next mount"),
            }
        }
    }
}

impl Table {
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn get(&self, ino: u64) -> Option<Times> {
        self.young.get(&ino).or_else(|| self.old.get(&ino)).copied()
    }

    fn put(&mut self, ino: u64, times: Times) {
        self.old.remove(&ino);
        self.young.insert(ino, times);
        if self.young.len() >= FILES_MAX {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

fn record(ino: u64, times: Times) -> [u8; RECORD_LEN_BYTES] {
    let mut bytes = [0; RECORD_LEN_BYTES];
    bytes[..8].copy_from_slice(&ino.to_le_bytes());
    bytes[8..16].copy_from_slice(&times.host_ns.to_le_bytes());
    bytes[16..].copy_from_slice(&times.shown_ns.to_le_bytes());
    bytes
}

/// What a list holds; None if it is none.
fn read(file: &dyn HostFile) -> Option<Vec<(u64, Times)>> {
    let len = usize::try_from(file.stat().ok()?.size).ok()?;
    let mut bytes = vec![0; len.min(MAGIC.len() + 2 * RECORDS_MAX * RECORD_LEN_BYTES)];
    let got = file.read_at(0, &mut bytes).ok()?;
    let records = bytes.get(..got)?.strip_prefix(MAGIC)?.as_chunks::<8>().0.as_chunks::<3>().0;
    let number = |bytes: [u8; 8]| u64::from_le_bytes(bytes);
    Some(
        records
            .iter()
            .map(|[ino, host, shown]| {
                let times = Times { host_ns: number(*host).cast_signed(), shown_ns: number(*shown).cast_signed() };
                (number(*ino), times)
            })
            .collect(),
    )
}

/// Writes the list anew. None if that fails: then the next mount shows what the host has.
fn rewrite(table: &Table, state: &dyn HostDir) -> Option<List> {
    let mut bytes = MAGIC.to_vec();
    table.old.iter().chain(&table.young).for_each(|(ino, times)| bytes.extend(record(*ino, *times)));
    let path = Path::new(NAME);
    let _ = state.remove(path, Kind::File);
    let new = NewFile { content: &bytes, perm: 0o600, owner: None, durable: false };
    match state.publish(path, &new) {
        Ok(file) => Some(List { file, records: table.len() }),
        Err(e) => {
            tracing::warn!("{NAME}: {e}; change times of files may move at the next mount");
            None
        }
    }
}

/// None beyond the year 2262.
fn ns_of(time: Timestamp) -> Option<i64> {
    time.secs.checked_mul(1_000_000_000)?.checked_add(i64::from(time.nanos))
}

fn timestamp_of(ns: i64) -> Timestamp {
    Timestamp { secs: ns.div_euclid(1_000_000_000), nanos: ns.rem_euclid(1_000_000_000) as u32 }
}

#[cfg(test)]
mod tests {
    use adit_core::types::Ino;
    use adit_media::HostDirectory;

    use super::*;

    #[test]
    fn times_are_kept_for_what_has_not_changed_since() {
        let dir = tempfile::tempdir().unwrap();
        let state = HostDirectory::open(dir.path()).unwrap();
        let any = state.stat(Path::new("")).unwrap();
        let attr = |ino, ctime| Attr { ino: Ino(ino), kind: Kind::File, ctime: timestamp_of(ctime), ..any };
        let shown = |times: &ChangeTimes, ino, host| ns_of(times.shown(attr(ino, host)).ctime).unwrap();
        let times = ChangeTimes::default();
        times.begin(&state);
        assert!(!dir.path().join(NAME).exists(), "nothing is made for nobody");
        times.note(&state, &attr(1, 2_000_000_001), timestamp_of(1_999_999_999));
        times.note(&state, &attr(2, 20), timestamp_of(10));
        times.note(&state, &attr(2, 21), timestamp_of(11));
        times.note(&state, &attr(3, -20), timestamp_of(-1_000_000_021));
        for times in [times, ChangeTimes::default()] {
            times.begin(&state);
            assert_eq!(shown(&times, 1, 2_000_000_001), 1_999_999_999);
            assert_eq!((shown(&times, 2, 20), shown(&times, 2, 21)), (20, 11));
            assert_eq!((shown(&times, 3, -20), shown(&times, 4, 7)), (-1_000_000_021, 7));
        }
        // Cut off in the midst of a record, and appended to.
        let list = || std::fs::read(dir.path().join(NAME)).unwrap();
        let whole = list();
        assert_eq!(whole.len(), 8 + 3 * RECORD_LEN_BYTES, "written anew without what counts no more");
        std::fs::write(dir.path().join(NAME), &whole[..whole.len() - 1]).unwrap();
        let times = ChangeTimes::default();
        times.begin(&state);
        times.note(&state, &attr(9, 90), timestamp_of(80));
        let times = ChangeTimes::default();
        times.begin(&state);
        assert_eq!((shown(&times, 9, 90), list().len()), (80, whole.len()));
        for bad in [&b""[..], b"adit", b"another file, of no meaning to anybody here"] {
            std::fs::write(dir.path().join(NAME), bad).unwrap();
            let times = ChangeTimes::default();
            times.begin(&state);
            assert_eq!(shown(&times, 1, 5), 5);
            times.note(&state, &attr(1, 5), timestamp_of(4));
            assert_eq!(shown(&times, 1, 5), 4);
        }
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let mut table = Table::default();
        for ino in 0..5 * FILES_MAX as u64 / 2 {
            table.put(ino, Times { host_ns: 1, shown_ns: 2 });
        }
        assert!(
            table.len() <= 2 * FILES_MAX && table.get(0).is_none() && table.get(3 * FILES_MAX as u64 / 2).is_some()
        );
    }
}
