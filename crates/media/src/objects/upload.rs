//! Storing an object in a bucket: at once, or in parts.

use std::collections::HashMap;
use std::time::Duration;

use adit_core::media::{Content, Objects, PutOptions, Stored, Tag, Withheld};
use adit_core::{ErrorKind, FsError, Result};
use bytes::Bytes;
use opendal_core::options::WriteOptions;
use opendal_core::{Error, ErrorKind as Kind, Operator, Writer};
use tokio::time::{Instant, sleep, timeout_at};

use super::begun::{giving_up, storing};
use super::calls::Outcome;
use super::cancel::Cancel;
use super::failure::{explained, failed, is_not_implemented, wants_new_upload};
use super::s3::S3Objects;
use super::transport::{JOINED_AS_BYTES, Tries, Trouble};

/// What a put is called in errors.
const OP: &str = "store object";

/// Most parts of an upload: what S3 takes.
const PARTS_MAX: u64 = 10_000;

/// Most attempts to store one object, where the store wants it to begin anew.
const ATTEMPTS_MAX: u32 = 3;

/// A part, as the library has it at least; of an upload that is given up.
const PIECE_LEN: usize = 5 << 20;

/// How long an upload is given up, when all is to end: as long as the store has time to finish the parts that it was at.
const GIVE_UP_MAX: Duration = Duration::from_secs(5);

/// How an attempt to store ended.
enum Attempt {
    Stored(Option<Tag>),
    /// There was an object of that key, and the condition says that there may be none.
    Taken,
    /// It is to begin anew, with a look at what is there now.
    Again(Error),
}

impl S3Objects {
    /// Stores a checked object.
    pub(super) fn upload(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> Result<Stored> {
        let part_len = self.part_len(content.len());
        let small = content.len() <= part_len as u64;
        let metadata = options.metadata.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let metadata = (!options.metadata.is_empty()).then(|| metadata.collect::<HashMap<_, _>>());
        let (mut attempts, mut if_absent) = (1, options.if_absent);
        loop {
            let (look, condition) = if if_absent { self.condition() } else { (false, false) };
            // Of a large object, a store that heeds the condition says so when everything is there already.
            if (look || if_absent && !small)
                && let Some(len) = self.len_of_present(key, !look, condition)?
            {
                return Ok(Stored::AlreadyThere { len });
            }
            let user_metadata = metadata.clone();
            let write = WriteOptions { if_not_exists: condition, user_metadata, ..Default::default() };
            let attempt = match small {
                true => self.put_small(key, content, write),
                false => self.put_parts(key, content, part_len, &write),
            };
            match attempt? {
                Attempt::Stored(tag) => return Ok(Stored::New(tag)),
                Attempt::Taken => match self.len_of_present(key, false, false)? {
                    Some(len) => return Ok(Stored::AlreadyThere { len }),
                    // To the condition, a store may count what it shows to nobody, as the mark of a deletion.
                    None => if_absent = false,
                },
                Attempt::Again(e) if attempts == ATTEMPTS_MAX => return Err(failed(OP, &self.subject(key), &e)),
                Attempt::Again(_) => attempts += 1,
            }
        }
    }

    /// The length of the object, if there is one. With `decided_later`, it is no matter if we may not look: the store decides at the end. With `may_decide`,
    /// that is tried where looking does not tell.
    fn len_of_present(&self, key: &str, decided_later: bool, may_decide: bool) -> Result<Option<u64>> {
        match self.head(key) {
            Ok(object) => Ok(Some(object.len)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) if decided_later && e.kind() == ErrorKind::PermissionDenied => Ok(None),
            Err(e) if may_decide && Withheld::is_behind(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Stores an object in one request, or in two where nobody knows yet whether the store heeds the condition.
    fn put_small(&self, key: &str, content: Content<'_>, write: WriteOptions) -> Result<Attempt> {
        let bytes = match content {
            Content::Bytes(bytes) => Bytes::copy_from_slice(bytes),
            Content::Source(_) => self.piece(key, content, 0, content.len() as usize)?,
        };
        let probes = write.if_not_exists && self.if_absent_is_atomic().is_none();
        let first = self.put_once(key, bytes.clone(), write.clone())?;
        match first {
            Attempt::Taken => self.condition_was(true),
            // The same again: a store that heeds the condition refuses, another one stores what is there already. If that
            // fails, the object is stored nevertheless.
            Attempt::Stored(_) if probes => match self.put_once(key, bytes, write) {
                Ok(Attempt::Taken) => self.condition_was(true),
                Ok(Attempt::Stored(tag)) => {
                    self.condition_was(false);
                    return Ok(Attempt::Stored(tag));
                }
                Ok(Attempt::Again(_)) | Err(_) => {}
            },
            Attempt::Stored(_) | Attempt::Again(_) => {}
        }
        Ok(first)
    }

    /// The length of a part of an object.
    fn part_len(&self, len: u64) -> usize {
        let least = usize::try_from(len.div_ceil(PARTS_MAX)).unwrap_or(usize::MAX);
        self.settings.options.part_len_bytes.max(least.next_multiple_of(1 << 20))
    }

    fn piece(&self, key: &str, content: Content<'_>, offset: u64, len: usize) -> Result<Bytes> {
        let mut bytes = vec![0; len];
        let read = content.read_exact_at(offset, &mut bytes);
        read.map_err(|e| FsError::from(e).on("read what is to be stored as", self.subject(key)))?;
        Ok(bytes.into())
    }

    fn put_once(&self, key: &str, bytes: Bytes, write: WriteOptions) -> Result<Attempt> {
        let (path, options, condition) = (key.to_owned(), self.settings.options.clone(), write.if_not_exists);
        let attempt = self.call((OP, key), bytes.len() as u64, !condition, move |operator, deadline| {
            let (path, bytes, write, mut tries) = (path.clone(), bytes.clone(), write.clone(), Tries::new(&options));
            async move {
                loop {
                    let e = match attempt(operator.write_options(&path, bytes.clone(), write.clone()).await) {
                        Err(e) if e.kind() == Kind::Conflict => e,
                        Err(e) if write.if_not_exists && is_not_implemented(&e) => return Ok(Attempt::Again(e)),
                        attempt => return attempt,
                    };
                    // Another put of the same key is at work; the store asks to come again.
                    match tries.next_pause(Duration::ZERO, deadline) {
                        Some(pause) => sleep(pause).await,
                        None => return Err(e),
                    }
                }
            }
        })?;
        if condition && matches!(attempt, Attempt::Again(_)) {
            self.condition_was(false);
        }
        Ok(attempt)
    }

    fn put_parts(&self, key: &str, content: Content<'_>, part_len: usize, write: &WriteOptions) -> Result<Attempt> {
        let mut ways = self.ways(!write.if_not_exists);
        let stored = loop {
            match self.try_parts(ways.operator(), key, content, part_len, write)? {
                Err(e) if ways.go_on(&e) => {}
                stored => break stored,
            }
        };
        match stored {
            Ok(attempt) => Ok(attempt),
            Err(e) if write.if_not_exists && is_not_implemented(&e) => {
                self.condition_was(false);
                Ok(Attempt::Again(e))
            }
            Err(e) if wants_new_upload(&e) => Ok(Attempt::Again(e)),
            Err(e) => Err(failed(OP, &self.subject(key), &e)),
        }
    }

    /// Stores in parts. This thread reads them, and waits while as many as may be are on their way. An upload that fails is
    /// given up, so that its parts take no room in the store.
    fn try_parts(
        &self,
        operator: Operator,
        key: &str,
        content: Content<'_>,
        part_len: usize,
        write: &WriteOptions,
    ) -> Result<Outcome<Attempt>> {
        let at_once = self.settings.options.parts_at_once_max;
        let write = WriteOptions { concurrent: at_once, chunk: Some(part_len), ..write.clone() };
        let path = key.to_owned();
        let opened = self.run(0, |_| async move { operator.writer_options(&path, write).await })?;
        let mut writer = match opened {
            Ok(writer) => writer,
            Err(e) => return Ok(Err(e)),
        };
        let mut offset = 0;
        while offset < content.len() {
            let len = part_len.min(usize::try_from(content.len() - offset).unwrap_or(usize::MAX));
            let bytes = match self.piece(key, content, offset, len) {
                Ok(bytes) => bytes,
                Err(e) => {
                    self.give_up(writer);
                    return Err(e);
                }
            };
            offset += len as u64;
            // It may wait for the part that is longest on its way.
            let time = 2 * part_len as u64;
            let (cancel, stored) = (self.calls.cancel().clone(), key.to_owned());
            let step = |deadline| async move {
                let written = storing(stored, in_time(deadline, &cancel, writer.write(bytes))).await;
                Ok((writer, written))
            };
            let (same, written) = self.run_to_end(time, step)?.map_err(|e| failed(OP, &self.subject(key), &e))?;
            writer = same;
            if let Err(e) = written {
                self.give_up(writer);
                return Ok(Err(explained(e, &self.why)));
            }
        }
        let (cancel, stored) = (self.calls.cancel().clone(), key.to_owned());
        let step = |deadline| async move {
            // With few parts, it is this that begins the upload.
            let closed = storing(stored, in_time(deadline, &cancel, writer.close())).await;
            Ok((writer, closed))
        };
        let parts = content.len().div_ceil(part_len as u64);
        let time = (at_once + 1) as u64 * part_len as u64 + parts * JOINED_AS_BYTES;
        let (writer, closed) = self.run_to_end(time, step)?.map_err(|e| failed(OP, &self.subject(key), &e))?;
        let attempt = attempt(closed.map_err(|e| explained(e, &self.why)));
        if !matches!(attempt, Ok(Attempt::Stored(_))) {
            self.give_up(writer);
        }
        Ok(attempt)
    }

    /// Tells the store to forget the parts of an upload.
    fn give_up(&self, mut writer: Writer) {
        let is_hurried = self.calls.cancel().is_cancelled();
        // What failed before is what is told. Parts that stay are for the bucket's own rules.
        let _ = self.run_to_end(0, |deadline| async move {
            let until = if is_hurried { deadline.min(Instant::now() + GIVE_UP_MAX) } else { deadline };
            timeout_at(until, writer.abort()).await.unwrap_or(Ok(()))
        });
    }
}

impl S3Objects {
    /// Has the store forget the parts of all uploads that were noted, and that nobody goes on with.
    pub(super) fn give_up_left_uploads(&self) -> Result<()> {
        let keys = self.begun.as_ref().map(|begun| begun.left_keys()).unwrap_or_default();
        keys.iter().try_for_each(|key| {
            // Several of one key, as of processes that were killed one after the other.
            while self.begun.as_ref().is_some_and(|begun| begun.left_keys().contains(key)) {
                if !self.give_up_left(key)? {
                    break;
                }
            }
            Ok(())
        })
    }

    /// The same of one of `key`; whether that came about. The library knows how to sign the end of an upload, but of its own only: so one is begun,
    /// which is the one that was left, and no part of it is sent.
    fn give_up_left(&self, key: &str) -> Result<bool> {
        let operator = self.ways(false).operator();
        let (path, cancel, piece) = (key.to_owned(), self.calls.cancel().clone(), Bytes::from(vec![0; PIECE_LEN]));
        let ended = self.run_to_end(0, |deadline| async move {
            let mut writer = operator.writer(&path).await?;
            let begin = async {
                writer.write(piece.clone()).await?;
                writer.write(piece).await
            };
            // It fails: nothing is stored.
            let _ = giving_up(path, in_time(deadline, &cancel, begin)).await;
            in_time(deadline, &cancel, writer.abort()).await
        })?;
        match ended {
            Ok(()) => Ok(!self.begun.as_ref().is_some_and(|begun| begun.left_keys().iter().any(|left| left == key))),
            Err(e) => Err(failed("give up what was left of", &self.subject(key), &e)),
        }
    }
}

/// A step of an upload, which ends at the deadline, or when it is told to, whatever becomes of it, so that the upload can be given up.
async fn in_time<T>(deadline: Instant, cancel: &Cancel, step: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let ended = timeout_at(deadline, cancel.or(step)).await;
    ended.unwrap_or_else(|_| Err(Trouble::TimedOut("it took too long").into_error()))
}

fn attempt(written: Outcome<opendal_core::Metadata>) -> Outcome<Attempt> {
    match written {
        Ok(metadata) => Ok(Attempt::Stored(metadata.etag().map(Tag::new))),
        Err(e) if e.kind() == Kind::ConditionNotMatch => Ok(Attempt::Taken),
        Err(e) => Err(e),
    }
}
