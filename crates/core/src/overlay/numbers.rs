//! The numbers under which an overlay shows what its layers number: the lower's as they are, the upper's counted down from
//! [`NUMBERS_END`].
//!
//! So no two are one, nothing has to be noted, and they stay below [`NUMBERS_END`] if those of the layers are below half of that.
//! Programs that keep 32 bits of a number (git, archives of cpio) find those of the lower unchanged; and as both layers count from 1, the
//! numbers of both also differ in these bits, as long as there are fewer than 2^32.

use crate::numbers::NUMBERS_END;
use crate::types::Ino;

/// No layer has a number from here on.
const LAYER_END: u64 = NUMBERS_END / 2;

/// `None` for one that is too large.
pub fn of_lower(below: Ino) -> Option<Ino> {
    (below.0 < LAYER_END).then_some(below)
}

/// `None` for one that is too large. The root of the upper is never shown.
pub fn of_upper(above: Ino) -> Option<Ino> {
    (above.0 < LAYER_END).then(|| Ino(NUMBERS_END - above.0))
}

/// What is shown so has this number in the lower; `None` for the root, and for what was made above.
pub fn in_lower(shown: Ino) -> Option<Ino> {
    (shown != Ino::ROOT && shown.0 < LAYER_END).then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_things_have_one_number_and_the_lowers_is_found_again() {
        let most = LAYER_END - 1;
        for number in [2, 3, 1 << 31, most] {
            let (below, above) = (of_lower(Ino(number)).unwrap(), of_upper(Ino(number)).unwrap());
            assert!(below.0 < NUMBERS_END && above.0 < NUMBERS_END);
            assert_ne!(below, above);
            assert_eq!((in_lower(below), in_lower(above)), (Some(Ino(number)), None));
        }
        assert_eq!((of_lower(Ino(most + 1)), of_upper(Ino(most + 1))), (None, None));
        assert_eq!((of_lower(Ino::ROOT), in_lower(Ino::ROOT)), (Some(Ino::ROOT), None));
        assert_ne!(of_upper(Ino::ROOT), Some(Ino::ROOT));
    }

    #[test]
    fn the_lower_keeps_its_32_bits_and_the_upper_has_others() {
        let mut seen = std::collections::HashSet::new();
        for number in 2..5000 {
            let (below, above) = (of_lower(Ino(number)).unwrap(), of_upper(Ino(number)).unwrap());
            assert_eq!(below.0 as u32, number as u32);
            assert!(seen.insert(below.0 as u32) && seen.insert(above.0 as u32), "{number}");
        }
        // Until they meet.
        let [below, above] = [of_lower(Ino(1 << 31)), of_upper(Ino((1 << 31) - 1))].map(|ino| ino.unwrap().0 as u32);
        assert_eq!(above - below, 1);
    }
}
