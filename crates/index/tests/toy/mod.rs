//! A tree as plain maps, whose changes are noted as an engine reports them.

use std::collections::BTreeMap;

use adit_core::types::Kind;
use adit_index::live::Facts;
use adit_testkit::Rng;

/// What a new entry is.
pub type Kinds = fn(u64) -> Facts;

pub fn directory(key: u64) -> Facts {
    Facts::directory(key)
}

pub fn file(key: u64) -> Facts {
    Facts {
        key,
        kind: Kind::File,
        perm: 0o644,
        size: key * 10,
        mtime_ns: key as i64,
        is_original: key.is_multiple_of(3),
    }
}

/// See the module's notes. Directories and files by their keys; a key is given again once it is free.
pub struct Toy {
    facts: BTreeMap<u64, Facts>,
    children: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
    clock: u64,
}

impl Default for Toy {
    fn default() -> Self {
        Toy { facts: [(1, directory(1))].into(), children: [(1, BTreeMap::new())].into(), clock: 0 }
    }
}

type Noted = Vec<(u64, Vec<u8>)>;

impl Toy {
    pub fn random(rng: &mut Rng, ops: u64) -> Toy {
        let mut toy = Toy::default();
        for _ in 0..ops {
            toy.change(rng, &mut Vec::new(), &mut Vec::new());
        }
        toy
    }

    pub fn paths(&self) -> BTreeMap<Vec<u8>, Facts> {
        let mut found = BTreeMap::new();
        let mut todo = vec![(Vec::new(), 1)];
        while let Some((path, key)) = todo.pop() {
            found.insert(path.clone(), self.facts[&key]);
            for (name, child) in self.children.get(&key).into_iter().flatten() {
                let below = if path.is_empty() { name.clone() } else { [&path[..], b"/", name].concat() };
                todo.push((below, *child));
            }
        }
        found
    }

    pub fn lookup(&self, dir: u64, name: &[u8]) -> Option<Facts> {
        Some(self.facts[self.children.get(&dir)?.get(name)?])
    }

    pub fn list(&self, dir: u64) -> Vec<(Vec<u8>, Facts)> {
        let entries = self.children.get(&dir).into_iter().flatten();
        entries.map(|(name, key)| (name.clone(), self.facts[key])).collect()
    }

    pub fn facts(&self, key: u64) -> Option<Facts> {
        self.facts.get(&key).copied()
    }

    pub fn make(&mut self, dir: u64, name: &[u8], kind: Kinds) -> u64 {
        let key = (2..).find(|key| !self.facts.contains_key(key)).unwrap();
        self.facts.insert(key, kind(key));
        if self.facts[&key].kind == Kind::Directory {
            self.children.insert(key, BTreeMap::new());
        }
        self.children.get_mut(&dir).unwrap().insert(name.to_vec(), key);
        key
    }

    /// Another time of what has this key.
    #[allow(dead_code)] // Not all tests that have toys set one.
    pub fn set_time(&mut self, key: u64, mtime_ns: i64) {
        self.facts.get_mut(&key).unwrap().mtime_ns = mtime_ns;
    }

    /// Renames or exchanges as rename(2) would, or does nothing.
    pub fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool, noted: &mut Noted) {
        let Some(&moved) = self.children[&from.0].get(from.1) else { return };
        let there = self.children[&to.0].get(to.1).copied();
        if Some(moved) == there || self.is_below(to.0, moved) {
            return;
        }
        match there {
            Some(there) if exchange => {
                if self.is_below(from.0, there) {
                    return;
                }
                self.children.get_mut(&from.0).unwrap().insert(from.1.to_vec(), there);
            }
            None if exchange => return,
            Some(there) => {
                let (is_dir, over_dir) = (self.is_dir(moved), self.is_dir(there));
                if is_dir != over_dir || over_dir && !self.children[&there].is_empty() {
                    return;
                }
                self.children.get_mut(&from.0).unwrap().remove(from.1);
                self.children.get_mut(&to.0).unwrap().insert(to.1.to_vec(), moved);
                self.drop_if_free(there);
            }
            None => drop(self.children.get_mut(&from.0).unwrap().remove(from.1)),
        }
        self.children.get_mut(&to.0).unwrap().insert(to.1.to_vec(), moved);
        noted.extend([(from.0, from.1.to_vec()), (to.0, to.1.to_vec())]);
    }

    pub fn remove(&mut self, dir: u64, name: &[u8], noted: &mut Noted) {
        let Some(&key) = self.children[&dir].get(name) else { return };
        if self.children.get(&key).is_some_and(|below| !below.is_empty()) {
            return;
        }
        self.children.get_mut(&dir).unwrap().remove(name);
        self.drop_if_free(key);
        noted.push((dir, name.to_vec()));
    }

    pub fn remove_all(&mut self, dir: u64, name: &[u8], noted: &mut Noted) {
        let Some(&key) = self.children[&dir].get(name) else { return };
        let below: Vec<Vec<u8>> = self.children.get(&key).into_iter().flatten().map(|(name, _)| name.clone()).collect();
        below.iter().for_each(|name| self.remove_all(key, name, noted));
        self.remove(dir, name, noted);
    }

    fn is_dir(&self, key: u64) -> bool {
        self.facts[&key].kind == Kind::Directory
    }

    fn is_below(&self, at: u64, top: u64) -> bool {
        at == top || self.children.get(&top).into_iter().flatten().any(|(_, key)| self.is_below(at, *key))
    }

    fn drop_if_free(&mut self, key: u64) {
        if !self.children.values().any(|names| names.values().any(|other| *other == key)) {
            self.facts.remove(&key);
            self.children.remove(&key);
        }
    }

    /// A random change.
    pub fn change(&mut self, rng: &mut Rng, noted: &mut Noted, attrs: &mut Vec<u64>) {
        let dirs: Vec<u64> = self.children.keys().copied().collect();
        let mut pick = || dirs[rng.below(dirs.len() as u64) as usize];
        let (dir, other) = (pick(), pick());
        // Few names, so that they meet.
        let names = [&b"a"[..], b"b", b"c", b"\xff\n", b"dd", b"a.txt"];
        let name = names[rng.below(names.len() as u64) as usize];
        let new_name = names[rng.below(names.len() as u64) as usize];
        let is_free = !self.children[&dir].contains_key(name);
        match rng.below(14) {
            0..3 if is_free => drop(self.make(dir, name, file)),
            3..6 if is_free => drop(self.make(dir, name, directory)),
            6 => return self.remove(dir, name, noted),
            7 => return self.remove_all(dir, name, noted),
            8..11 => return self.rename((dir, name), (other, new_name), false, noted),
            11 => return self.rename((dir, name), (other, new_name), true, noted),
            12 => {
                // A hard link.
                let Some(key) = self.children[&dir].get(name).copied().filter(|key| !self.is_dir(*key)) else { return };
                if self.children[&other].contains_key(new_name) {
                    return;
                }
                self.children.get_mut(&other).unwrap().insert(new_name.to_vec(), key);
                return noted.push((other, new_name.to_vec()));
            }
            13 => {
                let Some(key) = self.children[&dir].get(name).copied() else { return };
                self.clock += 1;
                let facts = self.facts.get_mut(&key).unwrap();
                facts.mtime_ns = 1_000_000 + self.clock as i64;
                facts.perm ^= 0o100;
                facts.is_original &= !self.clock.is_multiple_of(4);
                return attrs.push(key);
            }
            _ => return,
        }
        noted.push((dir, name.to_vec()));
    }
}
