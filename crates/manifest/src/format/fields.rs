//! The values of JSON that manifests have, as seeds of serde: without a tree of values, and strings as WTF-8.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Unexpected, Visitor};

use super::hash::ContentHash;
use super::limits::CHUNKS_PER_FILE_MAX;
use super::rule::Quoted;

/// A key of an object, as a number that the caller chose; none for keys that are ignored.
#[derive(Clone, Copy)]
pub(crate) struct Key<T: 'static>(pub(crate) &'static [(&'static str, T)]);

impl<'de, T: Copy> DeserializeSeed<'de> for Key<T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl<T: Copy> Visitor<'_> for Key<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Option<T>, E> {
        Ok(self.0.iter().find(|(name, _)| name.as_bytes() == bytes).map(|(_, key)| *key))
    }
}

/// A string, put into a buffer as WTF-8.
pub(crate) struct Text<'a>(pub(crate) &'a mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<(), E> {
        self.0.clear();
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// A hash, or the text that is none: what it belongs to may not be known yet.
pub(crate) type ReadHash = Result<ContentHash, String>;

/// A hash in its text.
#[derive(Clone, Copy)]
pub(crate) struct Hash;

impl<'de> DeserializeSeed<'de> for Hash {
    type Value = ReadHash;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ReadHash, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl Visitor<'_> for Hash {
    type Value = ReadHash;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a hash")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<ReadHash, E> {
        Ok(ContentHash::parse(bytes).ok_or_else(|| Quoted(bytes).to_string()))
    }
}

/// Hashes of chunks, into a buffer: all of them, or the first text that is none. Not more than one above the limit are kept.
pub(crate) struct Chunks<'a>(pub(crate) &'a mut Vec<ContentHash>);

impl<'de> DeserializeSeed<'de> for Chunks<'_> {
    type Value = Result<(), String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Chunks<'_> {
    type Value = Result<(), String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of hashes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        self.0.clear();
        let mut outcome = Ok(());
        while let Some(hash) = array.next_element_seed(Hash)? {
            match hash {
                Ok(hash) if self.0.len() <= CHUNKS_PER_FILE_MAX => self.0.push(hash),
                Ok(_) => {}
                Err(text) => outcome = outcome.and(Err(text)),
            }
        }
        Ok(outcome)
    }
}

/// A number that is an integer of 64 bits, with sign or without; else none, also for one that is too large.
#[derive(Clone, Copy)]
pub(crate) struct Integer;

impl<'de> DeserializeSeed<'de> for Integer {
    type Value = Option<i128>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<i128>, D::Error> {
        deserializer.deserialize_i64(self)
    }
}

impl Visitor<'_> for Integer {
    type Value = Option<i128>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Option<i128>, E> {
        Ok(Some(number.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Option<i128>, E> {
        Ok(Some(number.into()))
    }

    /// Fractions, exponents, and integers of more than 64 bits.
    fn visit_f64<E: Error>(self, _: f64) -> Result<Option<i128>, E> {
        Ok(None)
    }
}

/// `true` or `false`.
#[derive(Clone, Copy)]
pub(crate) struct Flag;

impl<'de> DeserializeSeed<'de> for Flag {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_bool(self)
    }
}

impl Visitor<'_> for Flag {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true or false")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<bool, E> {
        Ok(flag)
    }
}

/// A value, or `null` for none.
pub(crate) struct OrNull<S>(pub(crate) S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for OrNull<S> {
    type Value = Option<S::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for OrNull<S> {
    type Value = Option<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or null")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.0.deserialize(deserializer).map(Some)
    }
}

/// What a symbolic link is: an object with one key that counts.
pub(crate) struct Symlink<'a>(pub(crate) &'a mut Vec<u8>);

const SYMLINK_KEYS: &[(&str, ())] = &[("target", ()), ("name", ())];

impl<'de> DeserializeSeed<'de> for Symlink<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Symlink<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"target\" (or \"name\")")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(key) = object.next_key_seed(Key(SYMLINK_KEYS))? {
            match key {
                Some(()) if found => return Err(A::Error::custom("two targets of one symbolic link")),
                Some(()) => {
                    object.next_value_seed(Text(self.0))?;
                    found = true;
                }
                None => {
                    object.next_value::<serde::de::IgnoredAny>()?;
                }
            }
        }
        if found { Ok(()) } else { Err(A::Error::invalid_value(Unexpected::Map, &"an object with \"target\"")) }
    }
}
