// What all kernels share.

// Which item an invocation is for; more workgroups than one dimension has room for are rows.
fn item(group: vec3<u32>, groups: vec3<u32>, local: u32) -> u32 {
    return (group.y * groups.x + group.x) * 64u + local;
}

// A place in an arena of bytes: its word, and the byte within. In words, because there are more bytes than 2^32.
struct Place {
    word: u32,
    byte: u32,
}

fn past(place: Place, len: u32) -> Place {
    let byte = place.byte + len;
    return Place(place.word + (byte >> 2u), byte & 3u);
}

// Where the sections of a segment begin, in words, and how many there are of what.
struct Sections {
    nodes: u32,
    parents: u32,
    name_lengths: u32,
    name_positions: u32,
    modes: u32,
    sizes: u32,
    names: u32,
    names_words: u32,
    buckets: u32,
    bucket_count: u32,
    ranks: u32,
    positions: u32,
    arena: u32,
    hashes: u32,
    spare_0: u32,
    spare_1: u32,
}
