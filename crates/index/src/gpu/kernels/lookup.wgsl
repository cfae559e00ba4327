// A name in a directory of segment `a`. What is looked for is read by `other_four`, which comes with the kernel.

// The name at a place beside the one that is looked for: below 0 if it is before that, 0 if it is that.
fn compare(place: Place, len: u32, other_len: u32) -> i32 {
    let both = min(len, other_len);
    for (var at = 0u; at < both; at += 4u) {
        var one = a_four(place, at);
        var other = other_four(at);
        if (both - at < 4u) {
            let mask = (1u << ((both - at) * 8u)) - 1u;
            one &= mask;
            other &= mask;
        }
        if (one != other) {
            let shift = firstTrailingBit(one ^ other) & 24u;
            return select(1, -1, ((one >> shift) & 255u) < ((other >> shift) & 255u));
        }
    }
    if (len == other_len) {
        return 0;
    }
    return select(1, -1, len < other_len);
}

// The number of the child, or 0, which is nobody's child. Groups of 16 names are halved first, then one is gone through.
fn lookup(dir: u32, other_len: u32) -> u32 {
    let range = a_children(dir);
    if (range.x == range.y) {
        return 0u;
    }
    let first = (range.x + 15u) >> 4u;
    var low = first;
    var high = max((range.y + 15u) >> 4u, first);
    while (low < high) {
        let middle = low + (high - low) / 2u;
        let place = a_group_place(middle);
        let order = compare(place, a_name_len(middle * 16u, place), other_len);
        if (order == 0) {
            return middle * 16u;
        }
        if (order < 0) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    var node = range.x;
    if (low != first) {
        node = (low - 1u) * 16u;
    }
    let end = min(low * 16u, range.y);
    if (node >= end) {
        return 0u;
    }
    var place = a_name_place(node);
    while (node < end) {
        let len = a_name_len(node, place);
        let order = compare(place, len, other_len);
        if (order == 0) {
            return node;
        }
        if (order > 0) {
            return 0u;
        }
        place = past(place, len + 1u);
        node += 1u;
    }
    return 0u;
}
