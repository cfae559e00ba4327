//! Text with lone surrogates, as manifests have it, and the bytes of names on a host.
//!
//! A JSON string is a sequence of UTF-16 units, and Python keeps a surrogate that stands alone. WTF-8 is UTF-8 in which such a
//! surrogate has its three bytes; a pair is always one character of four bytes. Names on a host are bytes: Python
//! (`os.fsencode`, PEP 383) writes a byte that is no UTF-8 as U+DC80 to U+DCFF, and back. Any other lone surrogate has no
//! bytes on a host.

use std::borrow::Cow;
use std::cmp::Ordering;

/// The first byte of a surrogate in WTF-8, and of the characters U+D000 to U+D7FF.
const SURROGATE_LEAD: u8 = 0xed;

/// Whether `bytes` are WTF-8.
#[must_use]
pub fn is_wtf8(bytes: &[u8]) -> bool {
    let mut last_was_high = false;
    let mut rest = bytes;
    loop {
        match str::from_utf8(rest) {
            Ok(_) => return true,
            Err(e) => {
                let (valid, invalid) = rest.split_at(e.valid_up_to());
                let Some(surrogate) = surrogate(invalid) else { return false };
                let is_high = surrogate < 0xdc00;
                // A pair would be one character.
                if valid.is_empty() && last_was_high && !is_high {
                    return false;
                }
                last_was_high = is_high;
                rest = &invalid[3..];
            }
        }
    }
}

/// The surrogate that `bytes` begin with.
fn surrogate(bytes: &[u8]) -> Option<u32> {
    match *bytes {
        [SURROGATE_LEAD, second @ 0xa0..=0xbf, third @ 0x80..=0xbf, ..] => {
            Some(0xd000 | u32::from(second & 0x3f) << 6 | u32::from(third & 0x3f))
        }
        _ => None,
    }
}

/// The byte that U+DC80 to U+DCFF, with which `bytes` begin, stand for.
fn escaped_byte(bytes: &[u8]) -> Option<u8> {
    match surrogate(bytes)? {
        point @ 0xdc80..=0xdcff => Some((point & 0xff) as u8),
        _ => None,
    }
}

/// The code points of WTF-8, lone surrogates included. Bytes that are no WTF-8 give some code points, and no panic.
pub fn code_points(wtf8: &[u8]) -> impl Iterator<Item = u32> {
    let mut rest = wtf8;
    std::iter::from_fn(move || {
        let (&first, after) = rest.split_first()?;
        let (bits, more) = match first {
            0..0xc0 => (u32::from(first), 0),
            0xc0..0xe0 => (u32::from(first & 0x1f), 1),
            0xe0..0xf0 => (u32::from(first & 0x0f), 2),
            _ => (u32::from(first & 0x07), 3),
        };
        let (continued, after) = after.split_at(more.min(after.len()));
        rest = after;
        Some(continued.iter().fold(bits, |bits, &byte| bits << 6 | u32::from(byte & 0x3f)))
    })
}

/// The UTF-16 units of WTF-8.
fn units(wtf8: &[u8]) -> impl Iterator<Item = u16> {
    code_points(wtf8).flat_map(|point| {
        let pair = match point.checked_sub(0x1_0000) {
            None => [Some(point as u16), None],
            Some(above) => [Some(0xd800 | (above >> 10 & 0x3ff) as u16), Some(0xdc00 | (above & 0x3ff) as u16)],
        };
        pair.into_iter().flatten()
    })
}

/// Orders as the UTF-16BE bytes of both would be: the order of paths in a manifest. It differs from that of the bytes where
/// characters above U+FFFF meet U+E000 to U+FFFF or a lone surrogate.
#[must_use]
pub fn cmp_utf16(a: &[u8], b: &[u8]) -> Ordering {
    let mut same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    // Back to where a character begins; of what is no WTF-8, in either, so that the order of two does not depend on which is first.
    while same > 0 && [a, b].iter().any(|text| text.get(same).is_some_and(|byte| byte & 0xc0 == 0x80)) {
        same -= 1;
    }
    match (a.get(same), b.get(same)) {
        (Some(0..0x80), Some(_)) | (Some(_), Some(0..0x80)) | (None, _) | (_, None) => a[same..].cmp(&b[same..]),
        _ => units(&a[same..]).cmp(units(&b[same..])),
    }
}

/// A host's name or path as text: bytes that are no UTF-8 become U+DC80 to U+DCFF (`os.fsdecode`).
#[must_use]
pub fn from_host(bytes: &[u8]) -> Cow<'_, [u8]> {
    if str::from_utf8(bytes).is_ok() {
        return Cow::Borrowed(bytes);
    }
    let mut wtf8 = Vec::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        wtf8.extend_from_slice(chunk.valid().as_bytes());
        for byte in chunk.invalid() {
            wtf8.extend([SURROGATE_LEAD, 0xb0 | byte >> 6, 0x80 | byte & 0x3f]);
        }
    }
    Cow::Owned(wtf8)
}

/// The bytes under which a text is listed: those of the host, and lone surrogates that have none there in WTF-8.
#[must_use]
pub fn to_listing(wtf8: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = wtf8.iter().position(|&byte| byte == SURROGATE_LEAD) else { return Cow::Borrowed(wtf8) };
    let mut bytes = wtf8[..first].to_vec();
    let mut rest = &wtf8[first..];
    while let [byte, after @ ..] = rest {
        match escaped_byte(rest) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &rest[3..];
            }
            None => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    Cow::Owned(bytes)
}

/// The text of bytes that [`to_listing`] gave: as of [`from_host`], but that what stands there for a lone surrogate is one. (A host's own name
/// of these bytes is another text, with an escape for each of them. Which it is, only the manifest knows that it was listed from.)
#[must_use]
pub fn from_listing(bytes: &[u8]) -> Cow<'_, [u8]> {
    if str::from_utf8(bytes).is_ok() {
        return Cow::Borrowed(bytes);
    }
    let mut wtf8 = Vec::with_capacity(bytes.len() + 16);
    let mut rest = bytes;
    while let Err(e) = str::from_utf8(rest) {
        let (valid, invalid) = rest.split_at(e.valid_up_to());
        wtf8.extend_from_slice(valid);
        let (len, is_text) = lone_surrogates(invalid);
        let (taken, after) = invalid.split_at(len);
        match is_text {
            true => wtf8.extend_from_slice(taken),
            false => wtf8.extend(taken.iter().flat_map(|byte| [SURROGATE_LEAD, 0xb0 | byte >> 6, 0x80 | byte & 0x3f])),
        }
        rest = after;
    }
    wtf8.extend_from_slice(rest);
    Cow::Owned(wtf8)
}

/// How many of these bytes, which begin with what is no UTF-8, are taken together, and whether they are surrogates that were listed as such.
fn lone_surrogates(bytes: &[u8]) -> (usize, bool) {
    let is_high = |bytes: &[u8]| surrogate(bytes).is_some_and(|point| point < 0xdc00);
    let highs = bytes.chunks(3).take_while(|three| is_high(three)).count();
    if highs > 0 {
        // Whatever else comes next, a low one or the escape of a byte, would make one character with the last of them, which is listed as
        // that: so they are bytes of a host.
        let mut after = bytes[highs * 3..].utf8_chunks();
        return (highs * 3, after.next().is_none_or(|chunk| !chunk.valid().is_empty()));
    }
    // Those that stand for bytes are never listed so.
    if surrogate(bytes).is_some() && escaped_byte(bytes).is_none() { (3, true) } else { (1, false) }
}

/// Length in bytes of what [`to_listing`] gives.
#[must_use]
pub fn listing_len(wtf8: &[u8]) -> usize {
    wtf8.len() - 2 * wtf8.windows(3).filter(|three| escaped_byte(three).is_some()).count()
}

/// The host's bytes of a text (`os.fsencode`), or none if a lone surrogate has none there.
#[must_use]
pub fn to_host(wtf8: &[u8]) -> Option<Cow<'_, [u8]>> {
    has_host_bytes(wtf8).then(|| to_listing(wtf8))
}

/// Whether [`to_host`] gives bytes.
#[must_use]
pub fn has_host_bytes(wtf8: &[u8]) -> bool {
    wtf8.windows(3).all(|three| surrogate(three).is_none() || escaped_byte(three).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// WTF-8 of UTF-16 units, by the definition.
    fn from_units(units: &[u16]) -> Vec<u8> {
        let mut wtf8 = Vec::new();
        for unit in char::decode_utf16(units.iter().copied()) {
            match unit {
                Ok(c) => wtf8.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
                Err(e) => {
                    let unit = e.unpaired_surrogate();
                    wtf8.extend([
                        0xe0 | (unit >> 12) as u8,
                        0x80 | (unit >> 6 & 0x3f) as u8,
                        0x80 | (unit & 0x3f) as u8,
                    ]);
                }
            }
        }
        wtf8
    }

    fn any_unit() -> impl Strategy<Value = u16> {
        prop_oneof![0_u16..0x80, 0xd780_u16..0xe080, 0xd800_u16..0xe000, 0xfb00_u16.., any::<u16>()]
    }

    /// Surrogates, whole and cut, among bytes and letters.
    fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0xed), Just(0xa0), Just(0xb0), Just(0x80), Just(b'a'), any::<u8>()];
        let whole = prop_oneof![Just(vec![0xed, 0xa0, 0x80]), Just(vec![0xed, 0xb0, 0x80])];
        let piece = prop_oneof![byte.prop_map(|byte| vec![byte]), whole];
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    fn be_bytes(units: &[u16]) -> Vec<u8> {
        units.iter().flat_map(|unit| unit.to_be_bytes()).collect()
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_utf16_be(
            common in prop::collection::vec(any_unit(), 0..4),
            a in prop::collection::vec(any_unit(), 0..4),
            b in prop::collection::vec(any_unit(), 0..4),
        ) {
            let (a, b) = ([common.clone(), a].concat(), [common, b].concat());
            prop_assert_eq!(cmp_utf16(&from_units(&a), &from_units(&b)), be_bytes(&a).cmp(&be_bytes(&b)));
        }

        #[test]
        fn units_come_back(units in prop::collection::vec(any_unit(), 0..12)) {
            let wtf8 = from_units(&units);
            prop_assert!(is_wtf8(&wtf8));
            prop_assert_eq!(super::units(&wtf8).collect::<Vec<_>>(), units);
            prop_assert_eq!(listing_len(&wtf8), to_listing(&wtf8).len());
            prop_assert_eq!(to_host(&wtf8).is_some(), has_host_bytes(&wtf8));
        }

        #[test]
        fn what_is_listed_comes_back(units in prop::collection::vec(any_unit(), 0..12)) {
            // But for escapes of bytes that are text, or a surrogate, together with what is beside them.
            let wtf8 = from_units(&units);
            let listing = to_listing(&wtf8);
            let found = from_listing(&listing);
            prop_assert!(is_wtf8(&found));
            prop_assert_eq!(&*to_listing(&found), &*listing);
            if !units.iter().any(|unit| (0xdc80..=0xdcff).contains(unit)) {
                prop_assert_eq!(&*found, &wtf8[..]);
            }
        }

        #[test]
        fn bytes_of_a_host_come_back(bytes in prop::collection::vec(any::<u8>(), 0..24)) {
            let text = from_host(&bytes);
            prop_assert!(is_wtf8(&text));
            let host = to_host(&text);
            prop_assert_eq!(host.as_deref(), Some(&bytes[..]));
        }

        #[test]
        fn any_bytes_are_survived(bytes in any_bytes(), other in any_bytes()) {
            let _ = (is_wtf8(&bytes), code_points(&bytes).count(), to_listing(&bytes));
            let text = from_listing(&bytes);
            prop_assert!(is_wtf8(&text));
            let without_escapes = !bytes.windows(3).any(|three| escaped_byte(three).is_some());
            prop_assert!(!without_escapes || *to_listing(&text) == *bytes);
            prop_assert_eq!(cmp_utf16(&bytes, &other), cmp_utf16(&other, &bytes).reverse());
        }
    }

    #[test]
    fn astral_characters_come_before_the_last_of_the_basic_plane() {
        let (smile, ligature) = ("\u{1f600}", "\u{fb00}");
        assert_eq!(cmp_utf16(smile.as_bytes(), ligature.as_bytes()), Ordering::Less);
        assert_eq!(smile.cmp(ligature), Ordering::Greater);
    }

    #[test]
    fn pairs_are_no_wtf8() {
        assert!(is_wtf8(b"\xed\xb0\x80\xed\xa0\x80"), "low, then high");
        assert!(is_wtf8(b"\xed\xa0\x80/\xed\xb0\x80"), "apart");
        assert!(!is_wtf8(b"\xed\xa0\x80\xed\xb0\x80"), "a pair");
        assert!(!is_wtf8(b"\xff") && !is_wtf8(b"\xed\xa0") && !is_wtf8(b"\xc0\x80"));
    }

    /// What no text is listed as has one all the same, and it is listed as that.
    #[test]
    fn surrogates_and_bytes_in_a_row_are_no_pair() {
        for listing in [
            &b"\xed\xa0\x80\x80"[..],
            b"\xed\xa0\x80\xed\xb0\x80",
            b"\xed\xa0\x80\xed\xa0\x80\xff/",
            b"\xed\xa0\x80\xed\xa0",
        ] {
            let text = from_listing(listing);
            assert!(is_wtf8(&text), "{listing:x?}");
            assert_eq!(&*to_listing(&text), listing);
            assert!(!text.windows(3).any(|three| three == [0xed, 0xa0, 0x80]), "{listing:x?}");
        }
        for listing in [&b"\xed\xa0\x80"[..], b"\xed\xa0\x80\xed\xa0\x80a", b"\xff\xed\xb0\x80\xed\xa0\x80/\xff"] {
            assert!(from_listing(listing).windows(3).any(|three| three == [0xed, 0xa0, 0x80]), "{listing:x?}");
            assert_eq!(&*to_listing(&from_listing(listing)), listing);
        }
    }

    #[test]
    fn the_byte_escapes_are_those_of_python() {
        // os.fsdecode(b"caf\xe9") == "caf\udce9"
        assert_eq!(&*from_host(b"caf\xe9"), b"caf\xed\xb3\xa9");
        assert_eq!(to_host(b"caf\xed\xb3\xa9").as_deref(), Some(&b"caf\xe9"[..]));
        // os.fsdecode(b"\xed\xa0\x80") == "\udced\udca0\udc80", not "\ud800".
        assert_eq!(&*from_host(b"\xed\xa0\x80"), b"\xed\xb3\xad\xed\xb2\xa0\xed\xb2\x80");
        assert_eq!(to_host(b"\xed\xa0\x80"), None);
        assert_eq!(&*to_listing(b"\xed\xa0\x80"), b"\xed\xa0\x80");
        // U+DC7F and U+DD00 are no bytes.
        assert_eq!(to_host(b"\xed\xb1\xbf"), None);
        assert_eq!(to_host(b"\xed\xb4\x80"), None);
        // U+D7FF begins with the same byte, and is a character.
        assert_eq!(to_host("\u{d7ff}".as_bytes()).as_deref(), Some("\u{d7ff}".as_bytes()));
    }
}
