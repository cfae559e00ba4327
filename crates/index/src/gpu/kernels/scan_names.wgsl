// An invocation goes through the names of a group of 16 nodes, each name for itself.
@compute @workgroup_size(64)
fn scan_names(
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
            tell(node, over_name(search.start, place, len));
        }
        place = past(place, len + 1u);
    }
}
