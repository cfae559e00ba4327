// A segment, as it lies in its file. `$` is its letter; `$word` comes with the shards that it is divided into.

fn $byte(section: u32, at: u32) -> u32 {
    return ($word(section + (at >> 2u)) >> ((at & 3u) * 8u)) & 255u;
}

// A byte of the names, `at` bytes behind a place.
fn $char(place: Place, at: u32) -> u32 {
    let byte = place.byte + at;
    return ($word($at.names + place.word + (byte >> 2u)) >> ((byte & 3u) * 8u)) & 255u;
}

// Four bytes of the names, the first in the lowest bits.
fn $four(place: Place, at: u32) -> u32 {
    let byte = place.byte + at;
    let word = $at.names + place.word + (byte >> 2u);
    let shift = (byte & 3u) * 8u;
    let low = $word(word);
    if (shift == 0u) {
        return low;
    }
    return (low >> shift) | ($word(word + 1u) << (32u - shift));
}

// The length of a node's name, which begins at `place`. 255 means that or more, up to the zero byte.
fn $name_len(node: u32, place: Place) -> u32 {
    let len = $byte($at.name_lengths, node);
    if (len < 255u) {
        return len;
    }
    for (var at = 255u; at < 65536u; at += 1u) {
        if ($char(place, at) == 0u) {
            return at;
        }
    }
    return 65536u;
}

// Where the name of the first node of a group of 16 begins.
fn $group_place(group: u32) -> Place {
    let low = $word($at.name_positions + 2u * group);
    let high = $word($at.name_positions + 2u * group + 1u);
    return Place((low >> 2u) | (high << 30u), low & 3u);
}

// Where a node's name begins. Lengths are added up four at a time, but for those that do not fit their byte.
fn $name_place(node: u32) -> Place {
    var place = $group_place(node >> 4u);
    var before = node & 0xfffffff0u;
    while (before < node) {
        let four = $word($at.name_lengths + (before >> 2u));
        let inverse = ~four;
        let has_long = ((inverse - 0x01010101u) & four & 0x80808080u) != 0u;
        if (before + 4u <= node && !has_long) {
            let pairs = (four & 0x00ff00ffu) + ((four >> 8u) & 0x00ff00ffu);
            place = past(place, (pairs & 0xffffu) + (pairs >> 16u) + 4u);
            before += 4u;
        } else {
            place = past(place, $name_len(before, place) + 1u);
            before += 1u;
        }
    }
    return place;
}

fn $parent(node: u32) -> u32 {
    return $word($at.parents + node);
}

fn $mode(node: u32) -> u32 {
    return ($word($at.modes + (node >> 1u)) >> ((node & 1u) * 16u)) & 0xffffu;
}

// 0 file, 1 directory, 2 symbolic link, and so on; a directory that no entry named is one.
fn $kind(node: u32) -> u32 {
    let kind = ($mode(node) >> 12u) & 7u;
    return select(kind, 1u, kind == 7u);
}

fn $is_directory(node: u32) -> bool {
    return $kind(node) == 1u;
}

// The nodes in a directory: the first, and the one behind the last. None if what it says cannot be.
fn $children(dir: u32) -> vec2<u32> {
    let first = $word($at.sizes + 2u * dir);
    let count = $word($at.sizes + 2u * dir + 1u);
    let end = first + count;
    if (count == 0u || first <= dir || end < first || end > $at.nodes) {
        return vec2<u32>(0u, 0u);
    }
    return vec2<u32>(first, end);
}
