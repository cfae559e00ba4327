//! The numbers under which an overlay shows what its layers number: even ones are the lower's, odd ones the upper's.
//!
//! So no two are one, nothing has to be noted, and they stay below [`NUMBERS_END`] if those of the layers are below half of that.
//! Beside each other small numbers also differ in their low 32 bits, which is all that some archives keep.

use crate::numbers::NUMBERS_END;
use crate::types::Ino;

/// `None` for one that is too large.
pub fn of_lower(below: Ino) -> Option<Ino> {
    match below {
        Ino::ROOT => Some(below),
        _ => (below.0 < NUMBERS_END / 2).then_some(Ino(below.0 * 2)),
    }
}

/// `None` for one that is too large. The root of the upper is never shown.
pub fn of_upper(above: Ino) -> Option<Ino> {
    (above.0 < NUMBERS_END / 2).then_some(Ino(above.0 * 2 + 1))
}

/// What is shown so has this number in the lower; `None` for the root, and for what was made above.
pub fn in_lower(shown: Ino) -> Option<Ino> {
    shown.0.is_multiple_of(2).then_some(Ino(shown.0 / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_things_have_one_number_and_the_lowers_is_found_again() {
        let most = NUMBERS_END / 2 - 1;
        for number in [2, 3, 1 << 31, most] {
            let (below, above) = (of_lower(Ino(number)).unwrap(), of_upper(Ino(number)).unwrap());
            assert!(below.0 < NUMBERS_END && above.0 < NUMBERS_END);
            assert_ne!(below.0 as u32, above.0 as u32, "not even in 32 bits");
            assert_eq!((in_lower(below), in_lower(above)), (Some(Ino(number)), None));
        }
        assert_eq!((of_lower(Ino(most + 1)), of_upper(Ino(most + 1))), (None, None));
        assert_eq!((of_lower(Ino::ROOT), in_lower(Ino::ROOT)), (Some(Ino::ROOT), None));
        assert_ne!(of_upper(Ino::ROOT), Some(Ino::ROOT));
    }
}
