//! The base's own records in the key-value store: how far it has come, and which blocks of a segment are in use.
//! `docs/formats/volume.md` has the bytes, in "The space of the key-value store".

use crate::table::OWN_PREFIX;

/// The version of the values, their first byte.
const VERSION: u8 = 1;

/// The key under which the store holds the number of the last batch in it.
pub const APPLIED_KEY: [u8; 1] = [OWN_PREFIX];

/// The key of a segment's bitmap.
pub fn bitmap_key(segment: u32) -> [u8; 5] {
    let mut key = [OWN_PREFIX; 5];
    key[1..].copy_from_slice(&segment.to_be_bytes());
    key
}

/// Puts the version in front.
pub fn own_value(bytes: &[u8]) -> Vec<u8> {
    [&[VERSION], bytes].concat()
}

/// One of the records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own<'a> {
    /// The number of the last batch that is in the store.
    Applied(u64),
    /// A segment, and the bytes of its bitmap, of which only a geometry tells whether they are one.
    Bitmap(u32, &'a [u8]),
}

impl<'a> Own<'a> {
    /// What `key`, which begins as the base's own do, and `value` say; else what is wrong with them.
    pub fn decode(key: &[u8], value: &'a [u8]) -> Result<Own<'a>, &'static str> {
        let bytes = match value.split_first() {
            Some((&VERSION, bytes)) => bytes,
            _ => return Err("a record of an unknown version"),
        };
        match key.get(1..) {
            Some([]) => match bytes.try_into() {
                Ok(number) => Ok(Own::Applied(u64::from_le_bytes(number))),
                Err(_) => Err("the number of the last batch is none"),
            },
            Some(segment) => match segment.try_into() {
                Ok(segment) => Ok(Own::Bitmap(u32::from_be_bytes(segment), bytes)),
                Err(_) => Err("an unknown record"),
            },
            None => Err("an unknown record"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let value = own_value(&7_u64.to_le_bytes());
        assert_eq!(Own::decode(&APPLIED_KEY, &value), Ok(Own::Applied(7)));
        let value = own_value(&[3; 8]);
        assert_eq!(bitmap_key(0x0102_0304), [b'F', 1, 2, 3, 4]);
        assert_eq!(Own::decode(&bitmap_key(9), &value), Ok(Own::Bitmap(9, &[3; 8])));
        let refused = |key: &[u8], value: &[u8]| assert!(Own::decode(key, value).is_err(), "{key:?} {value:?}");
        refused(&APPLIED_KEY, &own_value(&[0; 7]));
        refused(&APPLIED_KEY, &[2, 0, 0, 0, 0, 0, 0, 0, 0]);
        refused(&APPLIED_KEY, &[]);
        refused(b"F123", &value);
        refused(b"F12345", &value);
        refused(b"", &value);
    }
}
