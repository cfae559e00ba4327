// The paths of a batch.

struct Asked {
    count: u32,
    // 1: each has a directory to start from. 2: a miss is told precisely.
    flags: u32,
    spare_0: u32,
    spare_1: u32,
    // Of XXH3.
    secret: array<vec4<u32>, 12>,
}

@group(1) @binding(0) var<uniform> asked: Asked;
// Where each begins among the bytes, and where the last one ends.
@group(1) @binding(1) var<storage, read> bounds: array<u32>;
@group(1) @binding(2) var<storage, read> starts: array<u32>;
@group(1) @binding(3) var<storage, read> paths: array<u32>;
@group(1) @binding(4) var<storage, read_write> answers: array<u32>;

fn path_byte(at: u32) -> u32 {
    return (paths[at >> 2u] >> ((at & 3u) * 8u)) & 255u;
}

fn path_four(at: u32) -> u32 {
    let word = at >> 2u;
    let shift = (at & 3u) * 8u;
    if (shift == 0u) {
        return paths[word];
    }
    return (paths[word] >> shift) | (paths[word + 1u] << (32u - shift));
}

// Where the name that is looked for begins.
var<private> other_at: u32;

fn other_four(at: u32) -> u32 {
    return path_four(other_at + at);
}
