//! Inodes that the engine holds of its own accord, a bounded number of them for a bounded time, so that what its caches know of them
//! stays.
//!
//! [`Held`] only remembers; whoever has it pins and unpins. Each inode is in it once. What was put in first goes first.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::clock::Tick;
use crate::types::Ino;

/// Inodes that were taken out and are still in the order, besides as many as are there.
const TAKEN_MAX: usize = 64;

/// See the module's notes. `T` is what is remembered with an inode.
pub(super) struct Held<T> {
    by_ino: HashMap<Ino, (u64, T)>,
    /// In the order in which they came, with the number that they had then: one that was taken and came again is there twice.
    order: VecDeque<(Ino, u64, Tick)>,
    next: u64,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Held { by_ino: HashMap::new(), order: VecDeque::new(), next: 0 }
    }
}

impl<T> Held<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_ino.len()
    }

    /// Puts one in, until `until`. False if it was there: its holder has one pin too many.
    pub fn put(&mut self, ino: Ino, with: T, until: Tick) -> bool {
        match self.by_ino.entry(ino) {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                vacant.insert((self.next, with));
                self.order.push_back((ino, self.next, until));
                self.next += 1;
                self.compact();
                true
            }
        }
    }

    /// Those that were taken do not stay for ever behind one that is not.
    fn compact(&mut self) {
        if self.order.len() > 2 * self.by_ino.len() + TAKEN_MAX {
            let by_ino = &self.by_ino;
            self.order.retain(|(ino, number, _)| by_ino.get(ino).is_some_and(|(since, _)| since == number));
        }
    }

    /// Takes one out.
    pub fn take(&mut self, ino: Ino) -> Option<T> {
        self.by_ino.remove(&ino).map(|(_, with)| with)
    }

    /// Takes out one that is to go: those whose time is over at `now`, and the oldest while there are more than `max`.
    pub fn pop(&mut self, now: Tick, max: usize) -> Option<(Ino, T)> {
        loop {
            let &(ino, number, until) = self.order.front()?;
            let is_there = self.by_ino.get(&ino).is_some_and(|(since, _)| *since == number);
            if is_there && until > now && self.by_ino.len() <= max {
                return None;
            }
            self.order.pop_front();
            if is_there {
                return self.by_ino.remove(&ino).map(|(_, with)| (ino, with));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_each_goes_once() {
        let mut held = Held::default();
        for ino in 2..6 {
            assert!(held.put(Ino(ino), ino, 10));
        }
        assert!(!held.put(Ino(3), 0, 90), "it is there");
        assert_eq!(held.take(Ino(2)), Some(2));
        assert!(held.put(Ino(2), 22, 20), "it came again");
        assert_eq!((held.len(), held.pop(5, 4)), (4, None));
        assert_eq!(held.pop(5, 3), Some((Ino(3), 3)));
        assert_eq!(held.pop(5, 3), None);
        assert_eq!([held.pop(10, 3), held.pop(10, 3), held.pop(10, 3)], [Some((Ino(4), 4)), Some((Ino(5), 5)), None]);
        assert_eq!((held.pop(20, 3), held.pop(20, 3), held.len()), (Some((Ino(2), 22)), None, 0));
    }
}
