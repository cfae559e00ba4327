// From paths to nodes: by the hash of the whole path where there is a table and the path is clean, else name by name.

const SLASH = 47u;
const DOT = 46u;
// The node of a slot that is empty.
const EMPTY = 0xffffffffu;
// What a batch that is told no more than nodes has for a miss, and for what the processor is to answer.
const NONE = 0xffffffffu;
const ASK = 0xfffffffeu;
// What else is told: the words are these, a node and a place in the path.
const FOUND = 0u;
const NOT_FOUND = 1u;
const NOT_DIRECTORY = 2u;
const LINK = 3u;
const ASK_THE_PROCESSOR = 4u;

fn tell(question: u32, what: u32, node: u32, at: u32) {
    if ((asked.flags & 2u) != 0u) {
        answers[3u * question] = what;
        answers[3u * question + 1u] = node;
        answers[3u * question + 2u] = at;
    } else {
        answers[question] = select(select(NONE, ASK, what == ASK_THE_PROCESSOR), node, what == FOUND);
    }
}

// Whether a node's name is these bytes of the paths.
fn is_name(node: u32, begin: u32, end: u32) -> bool {
    let place = a_name_place(node);
    other_at = begin;
    return compare(place, a_name_len(node, place), end - begin) == 0;
}

// Whether the path that is stored for a directory is these bytes: 1 if so, 0 if not, 2 if none is stored.
fn is_stored(dir: u32, begin: u32, end: u32) -> u32 {
    let rank = a_at.ranks + 4u * (dir >> 6u);
    let low = a_word(rank);
    let bit = dir & 31u;
    let in_high = (dir & 32u) != 0u;
    let bits = select(low, a_word(rank + 1u), in_high);
    if (((bits >> bit) & 1u) == 0u) {
        return 2u;
    }
    var place = a_word(rank + 2u) + countOneBits(bits & ((1u << bit) - 1u));
    if (in_high) {
        place += countOneBits(low);
    }
    let position = a_at.positions + 2u * place;
    let from_low = a_word(position);
    // Lengths fit 16 bits, so the low halves are enough for them.
    let len = a_word(position + 2u) - from_low;
    if (len != end - begin) {
        return 0u;
    }
    let word = a_at.arena + ((from_low >> 2u) | (a_word(position + 1u) << 30u));
    let first = from_low & 3u;
    for (var at = 0u; at < len; at += 4u) {
        let byte = first + at;
        let shift = (byte & 3u) * 8u;
        var one = a_word(word + (byte >> 2u));
        if (shift != 0u) {
            one = (one >> shift) | (a_word(word + (byte >> 2u) + 1u) << (32u - shift));
        }
        var different = one ^ path_four(begin + at);
        if (len - at < 4u) {
            different &= (1u << ((len - at) * 8u)) - 1u;
        }
        if (different != 0u) {
            return 0u;
        }
    }
    return 1u;
}

// Where the last name of these bytes begins.
fn last_name(begin: u32, end: u32) -> u32 {
    var at = end;
    while (at > begin && path_byte(at - 1u) != SLASH) {
        at -= 1u;
    }
    return at;
}

// Whether these bytes are the path of a node, below the root.
fn is_path(node: u32, begin: u32, path_end: u32) -> bool {
    if (node >= a_at.nodes) {
        return false;
    }
    var at = node;
    var end = path_end;
    // A path has at most 4096 names; the root has none.
    for (var names = 0u; names < 4100u; names += 1u) {
        if (at == 0u || end <= begin) {
            return false;
        }
        let name = last_name(begin, end);
        if (name == end || !is_name(at, name, end)) {
            return false;
        }
        at = a_parent(at);
        if (name == begin) {
            return at == 0u;
        }
        end = name - 1u;
        if (at == 0u) {
            return false;
        }
        let stored = is_stored(at, begin, end);
        if (stored != 2u) {
            return stored == 1u;
        }
    }
    return false;
}

// Whether there is no empty name among these bytes, none that begins with a dot, and no zero byte.
fn is_plain(begin: u32, end: u32) -> bool {
    var before = SLASH;
    for (var at = begin; at < end; at += 1u) {
        let byte = path_byte(at);
        if (byte == 0u || (before == SLASH && (byte == SLASH || byte == DOT))) {
            return false;
        }
        before = byte;
    }
    return before != SLASH;
}

// The node in the table of these bytes; EMPTY if there is none, and ASK if the table does not know.
fn in_table(begin: u32, end: u32) -> u32 {
    let hash = path_hash(begin, end - begin);
    let home = wide(hash.y, a_at.bucket_count).y;
    for (var step = 0u; step < PROBE_MAX; step += 1u) {
        let bucket = a_at.buckets + 16u * (home + step);
        for (var slot = 0u; slot < 8u; slot += 1u) {
            if (a_word(bucket + slot) == hash.x) {
                let node = a_word(bucket + 8u + slot);
                if (is_path(node, begin, end)) {
                    return node;
                }
            }
        }
        if (a_word(bucket + 15u) == EMPTY) {
            return EMPTY;
        }
    }
    return ASK;
}

fn walk(question: u32, from_node: u32, begin: u32, end: u32) {
    var node = from_node;
    var name = begin;
    loop {
        var name_end = name;
        while (name_end < end && path_byte(name_end) != SLASH) {
            name_end += 1u;
        }
        let len = name_end - name;
        // Before the slash of an absolute path there is nothing; the empty path is where it starts.
        if (len > 0u || name > begin) {
            let kind = a_kind(node);
            if (kind != 1u) {
                tell(question, select(NOT_DIRECTORY, LINK, kind == 2u), node, name - begin);
                return;
            }
            let dots = len <= 2u && (len == 0u || path_byte(name) == DOT) && (len < 2u || path_byte(name + 1u) == DOT);
            if (dots) {
                if (len == 2u) {
                    node = a_parent(node);
                }
            } else {
                other_at = name;
                let child = lookup(node, len);
                if (child == 0u) {
                    tell(question, NOT_FOUND, node, name - begin);
                    return;
                }
                node = child;
            }
        }
        if (name_end >= end) {
            break;
        }
        name = name_end + 1u;
    }
    tell(question, FOUND, node, 0u);
}

@compute @workgroup_size(64)
fn resolve(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let question = item(group, groups, local);
    if (question >= asked.count) {
        return;
    }
    let begin = bounds[question];
    let end = bounds[question + 1u];
    let is_absolute = begin < end && path_byte(begin) == SLASH;
    var start = 0u;
    if ((asked.flags & 1u) != 0u && !is_absolute) {
        start = starts[question];
        if (start >= a_at.nodes || a_kind(start) != 1u) {
            tell(question, ASK_THE_PROCESSOR, 0u, 0u);
            return;
        }
    }
    let below = begin + select(0u, 1u, is_absolute);
    if (start == 0u && a_at.bucket_count > 0u && below < end && end - below <= 240u) {
        let node = in_table(below, end);
        if (node < ASK) {
            tell(question, FOUND, node, 0u);
            return;
        }
        if (node == EMPTY && (asked.flags & 2u) == 0u && is_plain(below, end)) {
            tell(question, NOT_FOUND, 0u, 0u);
            return;
        }
    }
    walk(question, start, begin, end);
}
