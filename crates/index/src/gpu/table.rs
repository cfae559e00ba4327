//! Patterns as a device runs them: [`Table`], the transitions of an automaton in words.

use std::collections::HashMap;

use regex_automata::dfa::{Automaton, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::{Anchored, Input};

use super::GpuError;

/// Most words of transitions: 64 MiB of them are far more than a pattern has that is of use.
const WORDS_MAX: usize = 16 << 20;

/// Row 0: no match, whatever comes.
const DEAD: u32 = 0;
/// Row 1: a match, whatever comes.
const ACCEPT: u32 = 1;

/// An automaton that says whether a name matches: classes of bytes, and a row of transitions for each state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// The classes of the 256 bytes, four in a word, then the rows. A state is the place of its row behind the classes.
    pub(super) words: Vec<u32>,
    pub(super) start: u32,
    pub(super) accept: u32,
    pub(super) end_class: u32,
    pub(super) slash_class: u32,
}

impl Table {
    /// Of an automaton that was built for searches without an anchor. Each name is a haystack of its own.
    ///
    /// # Errors
    /// [`GpuError::Unfit`] if it has too many states, or gives up on some bytes (a Unicode word boundary): such patterns are for
    /// the processor.
    pub fn new(dfa: &dense::DFA<Vec<u32>>) -> Result<Table, GpuError> {
        let unfit = |needs: usize| GpuError::Unfit {
            what: "transitions of a pattern",
            needs: needs as u64,
            limit: WORDS_MAX as u64,
        };
        let input = Input::new(b"").anchored(Anchored::No);
        let start = dfa.start_state_forward(&input).map_err(|_| unfit(usize::MAX))?;
        let classes = dfa.byte_classes();
        let stride = classes.alphabet_len();
        let mut rows = Rows { numbers: HashMap::new(), states: Vec::new() };
        let first = rows.number(dfa, start).ok_or_else(|| unfit(usize::MAX))?;
        let mut words = classes_of(dfa);
        words.extend(std::iter::repeat_n(DEAD, stride));
        words.extend(std::iter::repeat_n(ACCEPT * stride as u32, stride));
        let mut done = 0;
        while let Some(state) = rows.states.get(done).copied() {
            for unit in classes.representatives(..) {
                let next = match unit.as_u8() {
                    Some(byte) => dfa.next_state(state, byte),
                    None => dfa.next_eoi_state(state),
                };
                let row = rows.number(dfa, next).ok_or_else(|| unfit(usize::MAX))?;
                words.push(row * stride as u32);
            }
            done += 1;
            if words.len() > WORDS_MAX {
                return Err(unfit(words.len()));
            }
        }
        Ok(Table {
            words,
            start: first * stride as u32,
            accept: ACCEPT * stride as u32,
            // The end of the haystack is the last class.
            end_class: stride as u32 - 1,
            slash_class: u32::from(classes.get(b'/')),
        })
    }

    /// Whether it matches these bytes: what the kernels do, on the processor.
    pub fn is_match(&self, haystack: &[u8]) -> bool {
        let step = |state: u32, class: u32| self.words[64 + (state + class) as usize];
        let class = |byte: &u8| self.words[usize::from(byte / 4)] >> (u32::from(byte % 4) * 8) & 255;
        let last = haystack.iter().fold(self.start, |state, byte| step(state, class(byte)));
        step(last, self.end_class) == self.accept
    }
}

/// Numbers for states in the order in which they are met.
struct Rows {
    numbers: HashMap<StateID, u32>,
    states: Vec<StateID>,
}

impl Rows {
    fn number(&mut self, dfa: &dense::DFA<Vec<u32>>, state: StateID) -> Option<u32> {
        if dfa.is_quit_state(state) {
            return None;
        }
        if dfa.is_dead_state(state) {
            return Some(DEAD);
        }
        // Whether, not where: what follows a match changes nothing.
        if dfa.is_match_state(state) {
            return Some(ACCEPT);
        }
        let next = 2 + self.states.len() as u32;
        let states = &mut self.states;
        Some(*self.numbers.entry(state).or_insert_with(|| {
            states.push(state);
            next
        }))
    }
}

/// The classes of all bytes, four in a word.
fn classes_of(dfa: &dense::DFA<Vec<u32>>) -> Vec<u32> {
    let classes = dfa.byte_classes();
    let four = |word: u8| (0..4).map(|at| u32::from(classes.get(word * 4 + at)) << (8 * at)).sum();
    (0..64).map(four).collect()
}
