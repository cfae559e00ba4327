// Which node of segment `a` has the path of a node of segment `b`: level by level, from that of its directory.

const NONE = 0xffffffffu;

struct Level {
    first: u32,
    end: u32,
    spare_0: u32,
    spare_1: u32,
}

@group(2) @binding(0) var<uniform> level: Level;
@group(2) @binding(1) var<storage, read_write> pairs: array<u32>;

// Where the name that is looked for begins.
var<private> other_place: Place;

fn other_four(at: u32) -> u32 {
    return b_four(other_place, at);
}

@compute @workgroup_size(64)
fn pair(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let node = level.first + item(group, groups, local);
    if (node >= level.end) {
        return;
    }
    if (node == 0u) {
        pairs[0] = 0u;
        return;
    }
    let dir = pairs[b_parent(node)];
    var found = NONE;
    if (dir != NONE && a_is_directory(dir)) {
        other_place = b_name_place(node);
        let child = lookup(dir, b_name_len(node, other_place));
        found = select(child, NONE, child == 0u);
    }
    pairs[node] = found;
}
