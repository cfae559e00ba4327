//! An object store in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use adit_core::media::{
    Content, Fetched, ListedObject, ObjectInfo, ObjectPage, Objects, PutOptions, Stored, Tag, check_object_key,
    check_object_prefix, check_user_metadata,
};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::Mutex;

struct Object {
    bytes: Arc<[u8]>,
    tag: Tag,
    metadata: Vec<(String, String)>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    stored: u64,
}

/// An object store in memory. Clones are the same store.
#[derive(Clone, Default)]
pub struct MemoryObjects {
    state: Arc<Mutex<State>>,
}

impl MemoryObjects {
    /// An empty store.
    pub fn new() -> Self {
        MemoryObjects::default()
    }

    /// The bytes of an object.
    pub fn bytes(&self, key: &str) -> Option<Arc<[u8]>> {
        self.state.lock().objects.get(key).map(|object| object.bytes.clone())
    }

    /// Every key, in order.
    pub fn keys(&self) -> Vec<String> {
        self.state.lock().objects.keys().cloned().collect()
    }

    /// Changes the bytes of an object and nothing else, as a disk that rots: the tag stays. False if there is none.
    pub fn rot(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut state = self.state.lock();
        let Some(object) = state.objects.get_mut(key) else { return false };
        let mut bytes = object.bytes.to_vec();
        change(&mut bytes);
        object.bytes = bytes.into();
        true
    }

    fn missing(key: &str) -> FsError {
        FsError::new(ErrorKind::NotFound).on("read object", format!("memory/{key}"))
    }
}

impl Objects for MemoryObjects {
    fn read_at(&self, key: &str, offset: u64, buf: &mut [u8], tag: Option<&Tag>) -> Result<Fetched> {
        check_object_key(key)?;
        let state = self.state.lock();
        let object = state.objects.get(key).ok_or_else(|| Self::missing(key))?;
        if tag.is_some_and(|tag| *tag != object.tag) {
            return Err(FsError::new(ErrorKind::Stale).on("read object", format!("memory/{key}")));
        }
        let rest = usize::try_from(offset).ok().and_then(|offset| object.bytes.get(offset..)).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        let object =
            ObjectInfo { len: object.bytes.len() as u64, tag: Some(object.tag.clone()), ..ObjectInfo::default() };
        Ok(Fetched { count, object })
    }

    fn head(&self, key: &str) -> Result<ObjectInfo> {
        check_object_key(key)?;
        let state = self.state.lock();
        let object = state.objects.get(key).ok_or_else(|| Self::missing(key))?;
        Ok(ObjectInfo {
            len: object.bytes.len() as u64,
            tag: Some(object.tag.clone()),
            metadata: object.metadata.clone(),
            modified: None,
        })
    }

    fn put(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> Result<Stored> {
        check_object_key(key)?;
        check_user_metadata(options.metadata)?;
        let taken = |state: &State| {
            let object = state.objects.get(key).filter(|_| options.if_absent)?;
            Some(Stored::AlreadyThere { len: object.bytes.len() as u64 })
        };
        if let Some(taken) = taken(&self.state.lock()) {
            return Ok(taken);
        }
        let mut bytes = vec![0; content.len() as usize];
        content
            .read_exact_at(0, &mut bytes)
            .map_err(|e| FsError::from(e).on("store object", format!("memory/{key}")))?;
        let mut metadata: Vec<_> =
            options.metadata.iter().map(|(name, value)| (String::from(*name), String::from(*value))).collect();
        metadata.sort();
        let mut state = self.state.lock();
        if let Some(taken) = taken(&state) {
            return Ok(taken);
        }
        state.stored += 1;
        let tag = Tag::new(format!("\"{}\"", state.stored));
        state.objects.insert(key.to_owned(), Object { bytes: bytes.into(), tag: tag.clone(), metadata });
        Ok(Stored::New(Some(tag)))
    }

    fn delete(&self, key: &str) -> Result<()> {
        check_object_key(key)?;
        self.state.lock().objects.remove(key);
        Ok(())
    }

    fn list(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ObjectPage> {
        check_object_prefix(prefix)?;
        let state = self.state.lock();
        let mut found = state
            .objects
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
        let listed = |(key, object): (&String, &Object)| ListedObject {
            key: key.clone(),
            len: object.bytes.len() as u64,
            tag: Some(object.tag.clone()),
        };
        let objects = found.by_ref().take(max).map(listed).collect();
        Ok(ObjectPage { objects, more: found.next().is_some() })
    }

    fn if_absent_is_atomic(&self) -> Option<bool> {
        Some(true)
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}
