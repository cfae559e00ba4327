//! Any object store, with chosen calls that fail, lie or take their time.
//!
//! [`ObjectFaults`] is the switch and the counter, shared by all stores that it wraps. Faults are rules, tried in the order in
//! which they were added; the first that fits a call, and has not been used up, decides it.

use std::sync::Arc;
use std::time::Duration;

use adit_core::media::{Content, Fetched, ObjectInfo, ObjectPage, Objects, PutOptions, Stored, Tag, Withheld};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::{Condvar, Mutex};

use super::WAIT_MAX;

/// A kind of call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum ObjectCall {
    /// `read_at`.
    Read,
    /// `head`.
    Head,
    /// `put`.
    Put,
    /// `delete`.
    Delete,
    /// `list`.
    List,
}

impl ObjectCall {
    /// All of them.
    pub const ALL: [ObjectCall; 5] =
        [ObjectCall::Read, ObjectCall::Head, ObjectCall::Put, ObjectCall::Delete, ObjectCall::List];
}

/// What happens to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectFault {
    /// It fails, and nothing is done.
    Fail(ErrorKind),
    /// It is done, and then fails: an answer that was lost.
    DoneAndFail(ErrorKind),
    /// It takes this much longer.
    Delay(Duration),
    /// It waits until [`ObjectFaults::release`].
    Hold,
    /// A read fills the first half of the buffer, and fails as a connection that breaks.
    BreakOff,
    /// A read tells that the object ends in the middle of what was asked for.
    CutShort,
    /// One bit of what is read is flipped.
    FlipBit,
    /// A read or head tells another tag.
    WrongTag,
    /// A read or head tells one byte more than the object has.
    WrongLen,
}

impl ObjectFault {
    /// The credentials are refused (403).
    pub const FORBIDDEN: ObjectFault = ObjectFault::Fail(ErrorKind::PermissionDenied);
    /// No such object (404).
    pub const MISSING: ObjectFault = ObjectFault::Fail(ErrorKind::NotFound);
    /// The store failed, or was busy, until the tries were used up (500, 503).
    pub const UNAVAILABLE: ObjectFault = ObjectFault::Fail(ErrorKind::Network);
    /// The deadline passed.
    pub const TIMED_OUT: ObjectFault = ObjectFault::Fail(ErrorKind::TimedOut);
}

struct Rule {
    fault: ObjectFault,
    calls: Vec<ObjectCall>,
    /// Only calls whose key or prefix contains this.
    key: String,
    /// Calls to let through first.
    skip: u64,
    /// Calls to decide then.
    times: u64,
}

/// What went through, of all stores of one switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectStats {
    /// Calls of `read_at`.
    pub reads: u64,
    /// Calls of `head`.
    pub heads: u64,
    /// Calls of `put`.
    pub puts: u64,
    /// Calls of `delete`.
    pub deletes: u64,
    /// Calls of `list`.
    pub lists: u64,
    /// Bytes that reads gave.
    pub bytes_read: u64,
    /// Bytes of objects that were stored; none for one that was there already.
    pub bytes_stored: u64,
    /// Most calls at work at one time.
    pub calls_at_once_max: u64,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    stats: ObjectStats,
    at_work: u64,
    fired: Vec<String>,
    held: u64,
    /// Whether absence is told as a refusal, and nothing is listed.
    hides_absence: bool,
    /// Counts the releases, so that a call held before one goes on, and one held after it does not.
    releases: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The switch of the faults of all stores that it wraps. Clones are the same switch.
#[derive(Clone, Default)]
pub struct ObjectFaults {
    shared: Arc<Shared>,
}

impl ObjectFaults {
    /// A switch that is off.
    pub fn new() -> Self {
        ObjectFaults::default()
    }

    /// `inner` with the faults of this switch.
    pub fn wrap(&self, inner: Arc<dyn Objects>) -> FaultyObjects {
        FaultyObjects { inner, faults: self.clone() }
    }

    /// From now on, of the calls of `calls` on keys that contain `key` (all, if it is empty), lets `skip` through and does
    /// `fault` to the next `times`.
    pub fn add(&self, fault: ObjectFault, calls: &[ObjectCall], key: &str, skip: u64, times: u64) {
        let rule = Rule { fault, calls: calls.to_vec(), key: key.to_owned(), skip, times };
        self.shared.state.lock().rules.push(rule);
    }

    /// From now on, does `fault` to every call of `calls`.
    pub fn always(&self, fault: ObjectFault, calls: &[ObjectCall]) {
        self.add(fault, calls, "", 0, u64::MAX);
    }

    /// From now on, answers as S3 does to who may not list: of what is missing it says that it may not be had, and lists nothing.
    pub fn forbid_listing(&self) {
        self.shared.state.lock().hides_absence = true;
    }

    /// No more faults; calls that are held go on.
    pub fn clear(&self) {
        self.shared.state.lock().rules.clear();
        self.release();
    }

    /// Lets the calls go on that [`ObjectFault::Hold`] holds at this moment.
    pub fn release(&self) {
        self.shared.state.lock().releases += 1;
        self.shared.changed.notify_all();
    }

    /// Waits until this many calls are held.
    ///
    /// # Panics
    /// If they do not come within a minute.
    pub fn wait_for_held(&self, calls: u64) {
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while_for(&mut state, |state| state.held < calls, WAIT_MAX);
        assert!(state.held >= calls, "{} calls are held, not {calls}", state.held);
    }

    /// Faults that happened, each as a line.
    pub fn fired(&self) -> Vec<String> {
        self.shared.state.lock().fired.clone()
    }

    /// What went through so far.
    pub fn stats(&self) -> ObjectStats {
        self.shared.state.lock().stats
    }

    /// Begins to count anew.
    pub fn reset_stats(&self) {
        let mut state = self.shared.state.lock();
        state.stats = ObjectStats { calls_at_once_max: state.at_work, ..ObjectStats::default() };
    }

    /// Counts a call, and tells what is to happen to it. A delay is over when this returns.
    fn enter(&self, call: ObjectCall, key: &str) -> AtWork<'_> {
        let mut state = self.shared.state.lock();
        let stats = &mut state.stats;
        let counter = match call {
            ObjectCall::Read => &mut stats.reads,
            ObjectCall::Head => &mut stats.heads,
            ObjectCall::Put => &mut stats.puts,
            ObjectCall::Delete => &mut stats.deletes,
            ObjectCall::List => &mut stats.lists,
        };
        *counter += 1;
        state.at_work += 1;
        state.stats.calls_at_once_max = state.stats.calls_at_once_max.max(state.at_work);
        let fault = state.decide(call, key);
        match fault {
            Some(ObjectFault::Delay(time)) => {
                drop(state);
                std::thread::sleep(time);
            }
            Some(ObjectFault::Hold) => {
                let until = state.releases;
                state.held += 1;
                self.shared.changed.notify_all();
                while state.releases == until {
                    self.shared.changed.wait(&mut state);
                }
                state.held -= 1;
            }
            _ => {}
        }
        AtWork { faults: self, fault }
    }
}

impl State {
    fn decide(&mut self, call: ObjectCall, key: &str) -> Option<ObjectFault> {
        for rule in &mut self.rules {
            if !rule.calls.contains(&call) || !key.contains(&rule.key) || rule.times == 0 {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.times -= 1;
            self.fired.push(format!("{call:?} {key} {:?}", rule.fault));
            return Some(rule.fault);
        }
        None
    }
}

/// A call that is at work, until this is dropped.
struct AtWork<'a> {
    faults: &'a ObjectFaults,
    fault: Option<ObjectFault>,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.faults.shared.state.lock().at_work -= 1;
    }
}

impl AtWork<'_> {
    fn error(&self, kind: ErrorKind, key: &str) -> FsError {
        FsError::new(kind).on("reach object", key).because("an injected fault")
    }

    /// Does the call, unless the fault comes instead of it.
    fn run<T>(&self, key: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.fault {
            Some(ObjectFault::Fail(kind)) => Err(self.error(kind, key)),
            Some(ObjectFault::DoneAndFail(kind)) => call().and_then(|_| Err(self.error(kind, key))),
            _ => call(),
        }
    }

    /// What who may not list hears of an error.
    fn told(&self, e: FsError, key: &str) -> FsError {
        match e.is_not_found() && self.faults.shared.state.lock().hides_absence {
            true => {
                FsError::new(ErrorKind::PermissionDenied).on("reach object", key).because(Withheld::new("the test kit"))
            }
            false => e,
        }
    }

    fn lie(&self, object: &mut ObjectInfo) {
        match self.fault {
            Some(ObjectFault::WrongTag) => object.tag = Some(Tag::new("\"not-this-one\"")),
            Some(ObjectFault::WrongLen) => object.len += 1,
            _ => {}
        }
    }
}

/// A store with the faults of a switch.
pub struct FaultyObjects {
    inner: Arc<dyn Objects>,
    faults: ObjectFaults,
}

impl Objects for FaultyObjects {
    fn read_at(&self, key: &str, offset: u64, buf: &mut [u8], tag: Option<&Tag>) -> Result<Fetched> {
        let call = self.faults.enter(ObjectCall::Read, key);
        let part = match call.fault {
            Some(ObjectFault::BreakOff | ObjectFault::CutShort) => buf.len() / 2,
            _ => buf.len(),
        };
        let read = call.run(key, || self.inner.read_at(key, offset, &mut buf[..part], tag));
        let mut fetched = read.map_err(|e| call.told(e, key))?;
        self.faults.shared.state.lock().stats.bytes_read += fetched.count as u64;
        match call.fault {
            Some(ObjectFault::BreakOff) => return Err(call.error(ErrorKind::Network, key)),
            Some(ObjectFault::CutShort) => fetched.object.len = offset + fetched.count as u64,
            Some(ObjectFault::FlipBit) => {
                if let Some(byte) = buf[..fetched.count].get_mut(fetched.count / 2) {
                    *byte ^= 1;
                }
            }
            _ => {}
        }
        call.lie(&mut fetched.object);
        Ok(fetched)
    }

    fn head(&self, key: &str) -> Result<ObjectInfo> {
        let call = self.faults.enter(ObjectCall::Head, key);
        let mut object = call.run(key, || self.inner.head(key)).map_err(|e| call.told(e, key))?;
        call.lie(&mut object);
        Ok(object)
    }

    fn put(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> Result<Stored> {
        let call = self.faults.enter(ObjectCall::Put, key);
        let stored = call.run(key, || {
            let stored = self.inner.put(key, content, options)?;
            if matches!(stored, Stored::New(_)) {
                self.faults.shared.state.lock().stats.bytes_stored += content.len();
            }
            Ok(stored)
        })?;
        Ok(stored)
    }

    fn delete(&self, key: &str) -> Result<()> {
        let call = self.faults.enter(ObjectCall::Delete, key);
        call.run(key, || self.inner.delete(key))
    }

    fn list(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ObjectPage> {
        let call = self.faults.enter(ObjectCall::List, prefix);
        if self.faults.shared.state.lock().hides_absence {
            return Err(call.error(ErrorKind::PermissionDenied, prefix));
        }
        call.run(prefix, || self.inner.list(prefix, after, max))
    }

    fn if_absent_is_atomic(&self) -> Option<bool> {
        self.inner.if_absent_is_atomic()
    }

    fn give_up_left(&self) -> Result<()> {
        self.inner.give_up_left()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{MemoryObjects, check_objects};

    fn store() -> (ObjectFaults, FaultyObjects) {
        let faults = ObjectFaults::new();
        let objects = faults.wrap(Arc::new(MemoryObjects::new()));
        objects.put("a/b", Content::Bytes(b"0123456789"), &PutOptions::default()).unwrap();
        (faults, objects)
    }

    #[test]
    fn both_pass_the_suite_without_faults() {
        check_objects(&MemoryObjects::new());
        check_objects(&ObjectFaults::new().wrap(Arc::new(MemoryObjects::new())));
    }

    #[test]
    fn rules_are_used_up_in_their_order() {
        let (faults, objects) = store();
        faults.add(ObjectFault::FORBIDDEN, &[ObjectCall::Head], "a/", 1, 1);
        faults.add(ObjectFault::UNAVAILABLE, &ObjectCall::ALL, "a/", 0, 1);
        let kinds: Vec<_> = (0..4).map(|_| objects.head("a/b").err().map(|e| e.kind())).collect();
        assert_eq!(kinds, [Some(ErrorKind::Network), Some(ErrorKind::PermissionDenied), None, None]);
        assert_eq!(faults.fired().len(), 2);
        assert_eq!(faults.stats().heads, 4);
    }

    #[test]
    fn reads_are_broken_cut_flipped_and_lied_about() {
        let (faults, objects) = store();
        let whole = objects.head("a/b").unwrap();
        let mut buf = [0; 8];
        let mut read = |fault| {
            faults.add(fault, &[ObjectCall::Read], "", 0, 1);
            objects.read_at("a/b", 1, &mut buf, None).map(|fetched| (fetched, buf))
        };
        assert_eq!(read(ObjectFault::BreakOff).unwrap_err().kind(), ErrorKind::Network);
        let (cut, _) = read(ObjectFault::CutShort).unwrap();
        assert_eq!((cut.count, cut.object.len), (4, 5));
        assert_eq!(read(ObjectFault::FlipBit).unwrap().1, *b"12344678");
        assert_ne!(read(ObjectFault::WrongTag).unwrap().0.object.tag, whole.tag);
        assert_eq!(read(ObjectFault::WrongLen).unwrap().0.object.len, whole.len + 1);
        assert_eq!(read(ObjectFault::Delay(Duration::ZERO)).unwrap().1, *b"12345678");
        assert_eq!(faults.stats().bytes_read, 4 + 4 + 4 * 8);
    }

    #[test]
    fn an_answer_is_lost_after_the_deed() {
        let (faults, objects) = store();
        faults.add(ObjectFault::DoneAndFail(ErrorKind::TimedOut), &[ObjectCall::Put], "", 0, 1);
        let put = || objects.put("new", Content::Bytes(b"x"), &PutOptions { if_absent: true, ..Default::default() });
        assert_eq!(put().unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(put().unwrap(), Stored::AlreadyThere { len: 1 });
    }

    #[test]
    fn held_calls_wait_for_their_release() {
        let (faults, objects) = store();
        faults.always(ObjectFault::Hold, &[ObjectCall::Head]);
        std::thread::scope(|scope| {
            let heads: Vec<_> = (0..3).map(|_| scope.spawn(|| objects.head("a/b").unwrap().len)).collect();
            faults.wait_for_held(3);
            assert_eq!(faults.stats().calls_at_once_max, 3);
            faults.clear();
            for head in heads {
                assert_eq!(head.join().unwrap(), 10);
            }
        });
    }
}
