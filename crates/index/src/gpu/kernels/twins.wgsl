// Files of the same size and hash. All of them go into a table of nodes; who meets an equal one there marks both.

struct Wanted {
    nodes: u32,
    size_min_low: u32,
    size_min_high: u32,
    // Slots of the table, less one; a power of two less one.
    slots_mask: u32,
    // Of so many parts, less one, the one that this run is for.
    parts_mask: u32,
    part: u32,
    // Not known to who made the hashes.
    seed: u32,
    spare: u32,
}

@group(1) @binding(0) var<uniform> wanted: Wanted;
// Nodes, plus one; 0 is an empty slot.
@group(1) @binding(1) var<storage, read_write> slots: array<atomic<u32>>;
// A word that is not 0 if the table was too small, then a bit for each node.
@group(1) @binding(2) var<storage, read_write> marks: array<atomic<u32>>;

fn hash_word(node: u32, word: u32) -> u32 {
    return a_word(a_at.hashes + 4u * node + word);
}

fn is_equal(one: u32, other: u32) -> bool {
    for (var word = 0u; word < 4u; word += 1u) {
        if (hash_word(one, word) != hash_word(other, word)) {
            return false;
        }
    }
    return a_word(a_at.sizes + 2u * one) == a_word(a_at.sizes + 2u * other)
        && a_word(a_at.sizes + 2u * one + 1u) == a_word(a_at.sizes + 2u * other + 1u);
}

fn mixed(node: u32) -> u32 {
    var mix = wanted.seed;
    for (var word = 0u; word < 4u; word += 1u) {
        mix = (mix ^ hash_word(node, word)) * 0x9e3779b1u;
        mix ^= mix >> 15u;
    }
    mix = (mix ^ a_word(a_at.sizes + 2u * node)) * 0x85ebca77u;
    return mix ^ (mix >> 13u);
}

fn mark(node: u32) {
    atomicOr(&marks[1u + (node >> 5u)], 1u << (node & 31u));
}

@compute @workgroup_size(64)
fn twins(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let node = item(group, groups, local);
    // A file, with a hash.
    if (node >= wanted.nodes || (a_mode(node) & 0xf000u) != 0x8000u) {
        return;
    }
    let size_low = a_word(a_at.sizes + 2u * node);
    let size_high = a_word(a_at.sizes + 2u * node + 1u);
    if (size_high < wanted.size_min_high || (size_high == wanted.size_min_high && size_low < wanted.size_min_low)) {
        return;
    }
    let mix = mixed(node);
    if (((mix >> 24u) & wanted.parts_mask) != wanted.part) {
        return;
    }
    var slot = mix * 0xc2b2ae3du;
    slot = (slot ^ (slot >> 16u)) & wanted.slots_mask;
    var steps = 0u;
    loop {
        if (steps > wanted.slots_mask) {
            atomicOr(&marks[0], 1u);
            return;
        }
        var there = atomicLoad(&slots[slot]);
        if (there == 0u) {
            let exchange = atomicCompareExchangeWeak(&slots[slot], 0u, node + 1u);
            if (exchange.exchanged) {
                return;
            }
            there = exchange.old_value;
        }
        // A weak exchange may fail where nobody was: then once more.
        if (there != 0u) {
            if (is_equal(there - 1u, node)) {
                mark(there - 1u);
                mark(node);
                return;
            }
            slot = (slot + 1u) & wanted.slots_mask;
            steps += 1u;
        }
    }
}
