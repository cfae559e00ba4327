//! The nodes of up to 32 neighbouring inode numbers, packed into one allocation of exactly their size.
//!
//! Hosts number files that were made together one after the other, so a [`Group`] is mostly well filled, and a node
//! costs little more than its name. An entry is a byte (low bits of the number, kind, whether it has a place), and with a
//! place its directory's number and the name's length, both in groups of seven bits, and the name. Searching decodes
//! from the start: a few nanoseconds an entry, nothing beside the calls of the host around it.

use std::ops::Range;

use adit_core::types::{Ino, Kind};

const LOW_BITS: u32 = 5;
const LOW_MASK: u8 = (1 << LOW_BITS) - 1;
const KIND_SHIFT: u32 = LOW_BITS;
const KIND_MASK: u8 = 3;
const PLACED: u8 = 0x80;
const KINDS: [Kind; 3] = [Kind::File, Kind::Directory, Kind::Symlink];

/// Which group an inode belongs to.
pub(super) fn group_of(ino: Ino) -> u64 {
    ino.0 >> LOW_BITS
}

/// A node, as it is packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Node<'a> {
    pub kind: Kind,
    /// Number of the directory, and the name in it.
    pub place: Option<(u32, &'a str)>,
}

/// See the module's notes.
#[derive(Default)]
pub(super) struct Group(Box<[u8]>);

impl Group {
    /// The node of `ino`, which belongs to this group.
    pub fn get(&self, ino: Ino) -> Option<Node<'_>> {
        self.find(ino).map(|(node, _)| node)
    }

    /// Makes the node of `ino` this one; true if there was none.
    pub fn set(&mut self, ino: Ino, node: Node<'_>) -> bool {
        let old = self.find(ino).map(|(_, range)| range);
        let (place_len, mut head) = (node.place.map_or(0, |(_, name)| name.len()), Vec::with_capacity(11));
        encode_head(ino, &node, &mut head);
        let kept = self.0.len() - old.as_ref().map_or(0, |range| range.len());
        let mut packed = Vec::with_capacity(kept + head.len() + place_len);
        self.keep(old.as_ref(), &mut packed);
        packed.extend_from_slice(&head);
        packed.extend_from_slice(node.place.map_or(&[], |(_, name)| name.as_bytes()));
        self.0 = packed.into_boxed_slice();
        old.is_none()
    }

    /// Takes the node of `ino` out; false if there was none.
    pub fn remove(&mut self, ino: Ino) -> bool {
        let Some((_, range)) = self.find(ino) else { return false };
        let mut packed = Vec::with_capacity(self.0.len() - range.len());
        self.keep(Some(&range), &mut packed);
        self.0 = packed.into_boxed_slice();
        true
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Everything but the range.
    fn keep(&self, without: Option<&Range<usize>>, into: &mut Vec<u8>) {
        let range = without.cloned().unwrap_or(self.0.len()..self.0.len());
        into.extend_from_slice(self.0.get(..range.start).unwrap_or_default());
        into.extend_from_slice(self.0.get(range.end..).unwrap_or_default());
    }

    fn find(&self, ino: Ino) -> Option<(Node<'_>, Range<usize>)> {
        let mut rest = &*self.0;
        while let [tag, after @ ..] = rest {
            let start = self.0.len() - rest.len();
            let mut place = None;
            rest = after;
            if tag & PLACED != 0 {
                let dir = decode(&mut rest)?;
                let name_len = decode(&mut rest)? as usize;
                let (name, after) = rest.split_at_checked(name_len)?;
                rest = after;
                place = Some((dir, name));
            }
            if tag & LOW_MASK == ino.0 as u8 & LOW_MASK {
                let kind = *KINDS.get((tag >> KIND_SHIFT & KIND_MASK) as usize)?;
                let place = match place {
                    Some((dir, name)) => Some((dir, std::str::from_utf8(name).ok()?)),
                    None => None,
                };
                return Some((Node { kind, place }, start..self.0.len() - rest.len()));
            }
        }
        None
    }
}

fn encode_head(ino: Ino, node: &Node<'_>, out: &mut Vec<u8>) {
    let kind = KINDS.iter().position(|kind| *kind == node.kind).unwrap_or_default() as u8;
    let placed = if node.place.is_some() { PLACED } else { 0 };
    out.push(ino.0 as u8 & LOW_MASK | kind << KIND_SHIFT | placed);
    if let Some((dir, name)) = node.place {
        encode(dir, out);
        // Names are of a few hundred bytes: it fits.
        encode(name.len() as u32, out);
    }
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
fn encode(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn decode(from: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in (0..u32::BITS).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn nodes_come_back_as_they_were_put() {
        let mut group = Group::default();
        let mut model: HashMap<u64, (Kind, Option<(u32, String)>)> = HashMap::new();
        let mut state = 1_u64;
        for step in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            let ino = Ino((1 << 40) + random % 32);
            let kind = KINDS[(random >> 8) as usize % 3];
            let name = "é".repeat((random >> 12) as usize % 400);
            let dir = (random as u32).wrapping_mul(0x9e37_79b9) >> (random >> 5 & 31);
            match random >> 16 & 3 {
                0 => assert_eq!(group.remove(ino), model.remove(&ino.0).is_some(), "step {step}"),
                1 => {
                    let new = group.set(ino, Node { kind, place: None });
                    assert_eq!(new, model.insert(ino.0, (kind, None)).is_none(), "step {step}");
                }
                _ => {
                    let new = group.set(ino, Node { kind, place: Some((dir, &name)) });
                    assert_eq!(new, model.insert(ino.0, (kind, Some((dir, name)))).is_none(), "step {step}");
                }
            }
            for low in 0..32 {
                let ino = (1 << 40) + low;
                let expected = model.get(&ino).map(|(kind, place)| Node {
                    kind: *kind,
                    place: place.as_ref().map(|(dir, name)| (*dir, name.as_str())),
                });
                assert_eq!(group.get(Ino(ino)), expected, "step {step}");
            }
            assert_eq!(group.is_empty(), model.is_empty());
        }
    }
}
