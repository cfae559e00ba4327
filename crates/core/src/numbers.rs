//! Inode numbers as programs see them: below 2^53, so that a double holds each of them exactly.
//!
//! JavaScript and others keep numbers as doubles, where larger neighbours become one; a program that finds hard links by number
//! then takes one file for another. What a store shows is below half of [`NUMBERS_END`], to leave an overlay room for two of them.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::error::{ErrorKind, FsError, Result};
use crate::types::Ino;

/// No number that is shown is as large.
pub const NUMBERS_END: u64 = 1 << 53;

/// Numbers of a host below it are kept, apart from the device.
const KEPT_BITS: u32 = 43;
/// Devices besides the first have a place from 1 on in the 8 bits above.
const PLACES: u64 = 1 << 8;
/// From here on are the numbers of what the host numbers higher.
const LARGE: u64 = PLACES << KEPT_BITS;

/// Spreads what begins at 0 in many places over 32 bits, so that numbers of several places also differ in these (Knuth's
/// multiplicative hash: the multiples of the golden ratio are far from each other).
pub const SPREAD: u64 = 0x9e37_79b1;

/// Numbers for objects of several devices of a host, whose own numbers may be large: no two objects get the same one, and one gets the
/// same again and again, also from another [`Numbering`], but for rare chances.
///
/// Numbers of the first device below 2^43 stay; those of others get a place above. For each number from 2^43 on a note of 32 bytes
/// is kept. Lock: one table, held for moments.
#[derive(Debug)]
pub struct Numbering {
    device: u64,
    /// Numbers of `device` below it are kept.
    kept_end: u64,
    given: Mutex<Given>,
}

#[derive(Default, Debug)]
struct Given {
    /// Devices and their places.
    places: HashMap<u64, u64>,
    /// What each large number was given to: its device and its number there.
    large: HashMap<u64, (u64, u64)>,
}

/// A number that looks like chance, but is the same for the same one (SplitMix64, Steele et al. 2014).
pub fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The number of the entry `name` in the directory with the number `parent`, for a host that has none of its own: it is a large one of a host, which
/// only chance gives twice.
pub fn of_path(parent: Ino, name: &[u8]) -> u64 {
    let piece = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let start = mixed(parent.0 ^ mixed(name.len() as u64));
    name.chunks(8).fold(start, |number, bytes| mixed(number ^ piece(bytes))) | 1 << 63
}

impl Numbering {
    /// Numbers of `device` are kept as they are, if they are not large.
    pub fn new(device: u64) -> Numbering {
        Numbering { device, kept_end: 1 << KEPT_BITS, given: Mutex::default() }
    }

    /// Numbers of `device` are kept as they are, for it is a mount of this program, which shows none from [`NUMBERS_END`] on.
    pub fn of_mount(device: u64) -> Numbering {
        Numbering { kept_end: NUMBERS_END, ..Numbering::new(device) }
    }

    /// The number of what the host numbers `ino` on `device`.
    ///
    /// # Errors
    /// `NotSupported` for more than 256 devices.
    pub fn number(&self, device: u64, ino: u64) -> Result<Ino> {
        if device == self.device || ino >= 1 << KEPT_BITS {
            return Ok(self.of(device, ino));
        }
        let place = self.given.lock().place(device)?;
        Ok(Ino(place << KEPT_BITS | ino.wrapping_add(place * SPREAD) & ((1 << KEPT_BITS) - 1)))
    }

    /// The number of what the first device numbers `ino`: below 2^43, or from 2^51 on.
    pub fn own(&self, ino: u64) -> Ino {
        self.of(self.device, ino)
    }

    fn of(&self, device: u64, ino: u64) -> Ino {
        let is_kept = device == self.device && ino < self.kept_end;
        Ino(if is_kept { ino } else { self.given.lock().large_number(device, ino) })
    }
}

impl Given {
    /// The place depends on the device, not on the order in which they are met, unless two have the same.
    fn place(&mut self, device: u64) -> Result<u64> {
        if let Some(place) = self.places.get(&device) {
            return Ok(*place);
        }
        let first = mixed(device);
        let free = (0..PLACES - 1)
            .map(|step| first.wrapping_add(step) % (PLACES - 1) + 1)
            .find(|place| !self.places.values().any(|taken| taken == place));
        let place =
            free.ok_or_else(|| FsError::new(ErrorKind::NotSupported).because("too many devices in one folder"))?;
        self.places.insert(device, place);
        Ok(place)
    }

    fn large_number(&mut self, device: u64, ino: u64) -> u64 {
        let mut number = mixed(device ^ mixed(ino));
        loop {
            number = LARGE | number & (LARGE - 1);
            let owner = *self.large.entry(number).or_insert((device, ino));
            if owner == (device, ino) {
                return number;
            }
            number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_objects_share_a_number_whatever_the_hosts_are() {
        let numbering = Numbering::new(7);
        let inos = [2, 77, (1 << 31) + 5, (1 << 43) - 1, 1 << 43, 1 << 52, 1 << 53, (1 << 53) + 1, 1 << 63, u64::MAX];
        let number = |device, ino| numbering.number(device, ino).unwrap();
        let mut seen = HashSet::new();
        for device in 7..60 {
            for ino in inos.into_iter().chain((0..200).map(|n| u64::MAX - 1 - n)) {
                let given = number(device, ino);
                assert!(given.0 < NUMBERS_END / 2, "{given:?}");
                assert!(seen.insert(given), "{given:?} twice");
                assert_eq!(number(device, ino), given);
            }
        }
        assert_eq!(number(7, 77), Ino(77));
    }

    #[test]
    fn the_order_in_which_devices_are_met_does_not_matter() {
        let (one, other) = (Numbering::new(7), Numbering::new(7));
        let asked = [(8, 5), (9, 5), (8, 1 << 60), (9, 1 << 60)];
        let numbers = |numbering: &Numbering, asked: &mut dyn Iterator<Item = (u64, u64)>| {
            asked
                .map(|(device, ino)| ((device, ino), numbering.number(device, ino).unwrap()))
                .collect::<HashMap<_, _>>()
        };
        assert_eq!(numbers(&one, &mut asked.into_iter()), numbers(&other, &mut asked.into_iter().rev()));
    }

    /// As cpio's usual formats keep them.
    #[test]
    fn files_of_several_devices_differ_in_32_bits() {
        let numbering = Numbering::new(0);
        let mut seen = HashSet::new();
        for device in 0..20 {
            for ino in 1..2000 {
                assert!(seen.insert(numbering.number(device, ino).unwrap().0 as u32), "{ino} of {device}");
            }
        }
    }

    #[test]
    fn numbers_of_paths_depend_on_all_of_them() {
        let names: [&[u8]; 7] = [b"a", b"b", b"a\0", b"12345678", b"123456789", b"12345678\0", "é".as_bytes()];
        let numbering = Numbering::new(0);
        let number = |parent, name| numbering.own(of_path(Ino(parent), name));
        let numbers: HashSet<Ino> = (1..100).flat_map(|parent| names.map(|name| number(parent, name))).collect();
        assert_eq!(numbers.len(), 99 * names.len());
        assert!(numbers.iter().all(|number| number.0 >= LARGE && number.0 < NUMBERS_END / 2));
        // It is noted in uppers for good.
        assert_eq!(of_path(Ino(1), b"frame0001.exr"), 0x924a_c1d5_0257_18eb);
    }

    #[test]
    fn a_mount_keeps_its_numbers() {
        let numbering = Numbering::of_mount(7);
        for ino in [1, 77, 1 << 43, NUMBERS_END - 5] {
            assert_eq!((numbering.own(ino), numbering.number(7, ino).unwrap()), (Ino(ino), Ino(ino)));
        }
        assert!(numbering.own(NUMBERS_END).0 < NUMBERS_END);
    }

    /// Two that chance gives one number.
    #[test]
    fn what_would_be_one_number_is_two() {
        let mut given = Given::default();
        let first = given.large_number(1, 1 << 60);
        given.large.insert(first, (2, 2));
        assert_eq!(given.large_number(1, 1 << 60), (first + 1) | LARGE);
    }

    #[test]
    fn there_are_not_too_many_devices() {
        let numbering = Numbering::new(0);
        assert!((1..PLACES).all(|device| numbering.number(device, 1).is_ok()));
        assert_eq!(numbering.number(PLACES, 1).unwrap_err().kind(), ErrorKind::NotSupported);
    }
}
