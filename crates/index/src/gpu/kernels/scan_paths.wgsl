// Whole paths: a level of the tree at a time, from the state in which its directory's path ended.

// Of each directory, behind its path and a slash.
@group(1) @binding(3) var<storage, read_write> states: array<u32>;

fn look(node: u32, place: Place, len: u32) {
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
