//! The published exit codes, and the one table from kinds of error to them.

use std::process::ExitCode;

use adit_core::ErrorKind;

/// What the program ends with. Numbers are a contract: never reused, never changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Code {
    /// Done.
    Done = 0,
    /// Failed in a way that has no code of its own.
    Failure = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// Wrong password.
    WrongPassword = 3,
    /// Stored data is corrupt.
    Corrupt = 4,
    /// A check found problems.
    ProblemsFound = 5,
    /// Nothing of ours is mounted there.
    NotAMount = 6,
    /// In use.
    Busy = 7,
    /// Out of space.
    NoSpace = 8,
    /// The network failed.
    Network = 9,
    /// Not supported here.
    NotSupported = 10,
}

/// Every code with its meaning, for help and manual pages.
pub const TABLE: [(Code, &str); 11] = [
    (Code::Done, "done"),
    (Code::Failure, "failure of another kind: not found, permission denied, exists already, input/output error"),
    (Code::Usage, "usage: the command line makes no sense, or no password or --yes was given"),
    (Code::WrongPassword, "wrong password"),
    (Code::Corrupt, "corrupt data"),
    (Code::ProblemsFound, "a check found problems, or lost content of which an earlier repair left a note"),
    (Code::NotAMount, "not a mount of adit"),
    (Code::Busy, "busy: in use by another process"),
    (Code::NoSpace, "out of space"),
    (Code::Network, "network failure"),
    (Code::NotSupported, "not supported: another kind of source, another vault format, a Hub vault, a device file"),
];

/// Of several failures of one command, the one that it ends with: the first of these that is among them.
///
/// Damage is the news that matters most; then what has to be done before it can be tried again, from the cause that is
/// least likely to go away by itself; last what is a mistake of the command line only.
const WORST_FIRST: [Code; 10] = [
    Code::Corrupt,
    Code::ProblemsFound,
    Code::Busy,
    Code::NoSpace,
    Code::Network,
    Code::WrongPassword,
    Code::NotSupported,
    Code::NotAMount,
    Code::Usage,
    Code::Failure,
];

/// The rule for several failures, for help, manual and README.
pub fn of_several() -> String {
    let numbers: Vec<String> = WORST_FIRST.iter().map(|code| (*code as u8).to_string()).collect();
    format!(
        "A command that does several things goes on after one that fails, and ends with the worst: the first of {} that \
         occurred.",
        numbers.join(", ")
    )
}

/// The word of a mount's process for [`Code::NotAMount`], which is no [`ErrorKind`].
pub const NOT_A_MOUNT: &str = "NotAMount";
/// The word of a mount's process that is about to end, for what it does not take any more: [`Code::Busy`], and it passes.
pub const ENDING: &str = "Ending";
/// What the word of a code begins with.
const EXIT: &str = "exit ";

impl Code {
    /// The code for a kind of error.
    pub fn of(kind: ErrorKind) -> Code {
        match kind {
            ErrorKind::WrongPassword => Code::WrongPassword,
            ErrorKind::Corrupt => Code::Corrupt,
            ErrorKind::Busy => Code::Busy,
            ErrorKind::NoSpace | ErrorKind::QuotaExceeded => Code::NoSpace,
            ErrorKind::Network | ErrorKind::TimedOut => Code::Network,
            ErrorKind::NotSupported => Code::NotSupported,
            _ => Code::Failure,
        }
    }

    /// The code for a kind of error that another process named; see [`adit_mount::control::ControlError::Answered`].
    pub fn of_word(word: &str) -> Code {
        match word {
            NOT_A_MOUNT => Code::NotAMount,
            ENDING => Code::Busy,
            word => match word.strip_prefix(EXIT).and_then(|number| number.parse().ok()) {
                Some(number) => Code::from_number(number),
                None => ErrorKind::from_word(word).map_or(Code::Failure, Code::of),
            },
        }
    }

    /// The word for a failure of a mount's process that has a code and no kind: [`Code::of_word`] reads it.
    pub fn word(self) -> String {
        format!("{EXIT}{}", self as u8)
    }

    /// Of two failures of one command, the one that it ends with; see [`of_several`].
    #[must_use]
    pub fn worse(self, other: Code) -> Code {
        WORST_FIRST.into_iter().find(|code| [self, other].contains(code)).unwrap_or(Code::Done)
    }

    /// The code with this number, as a child process or a daemon gave it; `Failure` for any other.
    pub fn from_number(number: u8) -> Code {
        TABLE.iter().map(|(code, _)| *code).find(|code| *code as u8 == number).unwrap_or(Code::Failure)
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> ExitCode {
        ExitCode::from(code as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_numbers_do_not_change() {
        let numbers: Vec<u8> = TABLE.iter().map(|(code, _)| *code as u8).collect();
        assert_eq!(numbers, (0..=10).collect::<Vec<u8>>());
        assert_eq!(Code::of(ErrorKind::WrongPassword) as u8, 3);
        assert_eq!(Code::of(ErrorKind::Corrupt) as u8, 4);
        assert_eq!(Code::of(ErrorKind::Busy) as u8, 7);
        assert_eq!(Code::of(ErrorKind::NoSpace) as u8, 8);
        assert_eq!(Code::of(ErrorKind::Network) as u8, 9);
        assert_eq!(Code::of(ErrorKind::NotSupported) as u8, 10);
        assert_eq!(Code::of(ErrorKind::NotFound) as u8, 1);
    }

    #[test]
    fn words_and_kinds_lead_to_the_same_codes() {
        for kind in ErrorKind::ALL {
            assert_eq!(Code::of_word(&format!("{kind:?}")), Code::of(kind), "{kind:?}");
        }
        assert_eq!(Code::of_word(NOT_A_MOUNT), Code::NotAMount);
        assert_eq!(Code::of_word("something new"), Code::Failure);
        for (code, _) in TABLE {
            assert_eq!(Code::of_word(&code.word()), code);
        }
    }

    #[test]
    fn the_worst_of_several_wins() {
        assert_eq!(Code::Failure.worse(Code::Busy), Code::Busy);
        assert_eq!(Code::Busy.worse(Code::NoSpace), Code::Busy);
        assert_eq!(Code::Busy.worse(Code::Corrupt), Code::Corrupt);
        assert_eq!(Code::Corrupt.worse(Code::Failure), Code::Corrupt);
        // Whatever their order, and for every code but that of success.
        for (a, _) in TABLE {
            for (b, _) in TABLE {
                assert_eq!(a.worse(b), b.worse(a), "{a:?} {b:?}");
            }
            assert_eq!(a.worse(Code::Done), a);
        }
        assert_eq!(Code::NotAMount.worse(Code::Busy), Code::Busy);
        assert!(of_several().contains("the first of 4, 5, 7, 8, 9, 3, 10, 6, 2, 1 that"));
    }

    #[test]
    fn a_number_finds_its_code() {
        assert_eq!(Code::from_number(7), Code::Busy);
        assert_eq!(Code::from_number(99), Code::Failure);
    }
}
