//! The births of blocks. A branch frees what was born under its own id without asking who else has it
//! ([`Draft::free`](crate::tree::draft::Draft::free)), so a block must never seem younger than it is. To seem older does no harm:
//! then the other versions of its window are asked.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use super::stream::Group;
use super::{Checked, Fault, Ids};
use crate::format::keys::{Id, Parts};
use crate::format::records::{State, Window};
use crate::tree::topology::{FIRST_ID, Topology};

/// A block that may seem younger than it is.
struct Suspect {
    /// Its place in the window.
    at: usize,
    birth: Id,
    /// Whether it cannot be as young, whoever has it.
    is_later: bool,
    /// Whether another version has it, too.
    is_shared: bool,
    /// The least of the ids that have it, and of those under which they say that it was born.
    oldest: Id,
}

/// Checks all versions of one window, for each snapshot and branch that sees one of them.
pub(super) fn check(topology: &Topology, ids: &Ids, group: &Group, checked: &mut Checked) {
    let Some(Parts::Window(ino, window)) = group.key.parts() else { return };
    let versions = &group.versions;
    for &(owner, _) in versions.iter().filter(|(id, _)| topology.node(*id).is_ok()) {
        let found = too_young(topology, versions, owner);
        let Some(&(first, _)) = found.first() else { continue };
        for &(v, is_frozen) in &ids.shown {
            let nearest = versions.iter().find(|(w, _)| topology.sees(v, *w));
            if nearest.is_some_and(|(w, _)| *w == owner) {
                let (first, count) = (first as u64, found.len() as u64);
                checked.add(Some((v, is_frozen)), Fault::LateBirth { ino, window, first, count });
            }
        }
    }
}

/// In the version of a window that `owner` wrote: the places of the blocks that seem younger than they are, ascending, and for
/// each an id that is early enough. `versions` are all versions of the window, as they are stored.
pub(in crate::tree) fn too_young(topology: &Topology, versions: &[(Id, Vec<u8>)], owner: Id) -> Vec<(usize, Id)> {
    let value = versions.iter().find(|(id, _)| *id == owner).map(|(_, value)| value);
    let Some(window) = value.and_then(|value| Window::decode(value).ok()) else { return Vec::new() };
    let is_alone =
        |id: Id| topology.node(id).is_ok_and(|node| node.record.state == State::Live && node.children.is_empty());
    // A branch writes over the version that its chain has, whose id is less than its own.
    let end = LazyCell::new(|| chain_end(topology, owner));
    let is_later = |birth: Id| birth > owner && !(topology.sees(*end, birth) && topology.sees(birth, owner));
    let mut suspects: BTreeMap<u64, Suspect> = BTreeMap::new();
    let mut last: Option<(Id, bool, bool)> = None;
    for (at, block) in window.iter() {
        // Most blocks have the birth of the one before.
        let birth = block.birth;
        let (_, is_later, is_alone) =
            last.filter(|(id, ..)| *id == birth).unwrap_or_else(|| (birth, is_later(birth), is_alone(birth)));
        last = Some((birth, is_later, is_alone));
        if is_later || (is_alone && versions.len() > 1) {
            let suspect = Suspect { at, birth, is_later, is_shared: false, oldest: birth.min(owner) };
            suspects.insert(block.at, suspect);
        }
    }
    if suspects.is_empty() {
        return Vec::new();
    }
    for (id, value) in versions.iter().filter(|(id, _)| *id != owner) {
        let Ok(other) = Window::decode(value) else { continue };
        for (_, block) in other.iter() {
            if let Some(suspect) = suspects.get_mut(&block.at) {
                suspect.is_shared = true;
                suspect.oldest = suspect.oldest.min(*id).min(block.birth);
            }
        }
    }
    let wrong = suspects.values().filter(|suspect| suspect.is_later || suspect.is_shared);
    let mut found: Vec<(usize, Id)> = wrong
        .filter_map(|suspect| {
            let oldest = suspect.oldest.max(FIRST_ID);
            let parent = || topology.node(oldest).map_or(FIRST_ID, |node| node.record.parent.max(FIRST_ID));
            let early = if suspect.is_shared && is_alone(oldest) { parent() } else { oldest };
            (early < suspect.birth).then_some((suspect.at, early))
        })
        .collect();
    found.sort_unstable();
    found
}

/// The last id of the chain that `id` is in.
fn chain_end(topology: &Topology, id: Id) -> Id {
    let mut at = id;
    while let Ok(node) = topology.node(at)
        && matches!(node.record.state, State::Nameless | State::Merging)
        && let [child] = node.children.as_slice()
    {
        at = *child;
    }
    at
}
