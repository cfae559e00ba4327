// A search in names, or in paths: a table of transitions runs over each of them. State 0 is one that no more bytes lead out of without
// a match, the next one (at `accept`) one that is a match whatever comes. `look` comes with what is searched.

struct Search {
    // Nodes that are looked at.
    first: u32,
    end: u32,
    // Nodes that are told.
    told_first: u32,
    told_end: u32,
    start: u32,
    accept: u32,
    // Classes of bytes: that of the end of a name, and that of `/`.
    end_class: u32,
    slash_class: u32,
    // How many hits there is room for.
    room: u32,
    spare_0: u32,
    spare_1: u32,
    spare_2: u32,
}

@group(1) @binding(0) var<uniform> search: Search;
// 64 words with the classes of all bytes, then the transitions: states are the places of their rows.
@group(1) @binding(1) var<storage, read> table: array<u32>;
// How many hits there are, then the hits.
@group(1) @binding(2) var<storage, read_write> hits: array<atomic<u32>>;

fn class_of(byte: u32) -> u32 {
    return (table[byte >> 2u] >> ((byte & 3u) * 8u)) & 255u;
}

fn step(state: u32, class_number: u32) -> u32 {
    return table[64u + state + class_number];
}

fn over_name(from_state: u32, place: Place, len: u32) -> u32 {
    var state = from_state;
    var at = 0u;
    while (at < len && state > search.accept) {
        var four = a_four(place, at);
        let end = min(at + 4u, len);
        while (at < end && state > search.accept) {
            state = step(state, class_of(four & 255u));
            four >>= 8u;
            at += 1u;
        }
    }
    return state;
}

fn tell(node: u32, state: u32) {
    if (node < search.told_first || node >= search.told_end || step(state, search.end_class) != search.accept) {
        return;
    }
    let at = atomicAdd(&hits[0], 1u);
    if (at < search.room) {
        atomicStore(&hits[1u + at], node);
    }
}

// An invocation goes through the names of a group of 16 nodes.
@compute @workgroup_size(64)
fn scan(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let own = item(group, groups, local) + (search.first >> 4u);
    if (own > ((search.end - 1u) >> 4u)) {
        return;
    }
    var place = a_group_place(own);
    let end = min(own * 16u + 16u, search.end);
    for (var node = own * 16u; node < end; node += 1u) {
        let len = a_name_len(node, place);
        if (node >= search.first) {
            look(node, place, len);
        }
        place = past(place, len + 1u);
    }
}
