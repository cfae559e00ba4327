// As above, over whole paths: a level of the tree at a time, from the state in which its directory's path ended.

// Of each directory, behind its path and a slash.
@group(1) @binding(3) var<storage, read_write> states: array<u32>;

@compute @workgroup_size(64)
fn scan_paths(
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
            var state = search.start;
            if (node > 0u) {
                state = over_name(states[a_parent(node)], place, len);
            }
            tell(node, state);
            if (a_is_directory(node)) {
                // The root has no slash behind it: paths begin below.
                if (node > 0u && state > search.accept) {
                    state = step(state, search.slash_class);
                }
                states[node] = state;
            }
        }
        place = past(place, len + 1u);
    }
}
