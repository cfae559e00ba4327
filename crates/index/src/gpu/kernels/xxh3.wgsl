// XXH3-64 of up to 240 bytes, with seed 0 and the secret of the specification. Numbers of 64 bits are two of 32, the low one first.

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn right64(a: vec2<u32>, by: u32) -> vec2<u32> {
    if (by == 32u) {
        return vec2<u32>(a.y, 0u);
    }
    if (by > 32u) {
        return vec2<u32>(a.y >> (by - 32u), 0u);
    }
    return vec2<u32>((a.x >> by) | (a.y << (32u - by)), a.y >> by);
}

// By 1 to 31.
fn turn64(a: vec2<u32>, by: u32) -> vec2<u32> {
    let back = 32u - by;
    return vec2<u32>((a.x << by) | (a.y >> back), (a.y << by) | (a.x >> back));
}

// All 64 bits of a product.
fn wide(a: u32, b: u32) -> vec2<u32> {
    let a_low = a & 0xffffu;
    let a_high = a >> 16u;
    let b_low = b & 0xffffu;
    let b_high = b >> 16u;
    let low = a_low * b_low;
    let cross = a_high * b_low + (low >> 16u);
    let other = a_low * b_high + (cross & 0xffffu);
    return vec2<u32>((other << 16u) | (low & 0xffffu), a_high * b_high + (cross >> 16u) + (other >> 16u));
}

// The low 64 bits of a product.
fn times64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = wide(a.x, b.x);
    return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}

// The two halves of a product of 128 bits, one over the other.
fn fold64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = wide(a.x, b.x);
    let cross = add64(wide(a.x, b.y), vec2<u32>(low.y, 0u));
    let other = add64(wide(a.y, b.x), vec2<u32>(cross.x, 0u));
    let high = add64(wide(a.y, b.y), add64(vec2<u32>(cross.y, 0u), vec2<u32>(other.y, 0u)));
    return vec2<u32>(low.x, other.x) ^ high;
}

fn swap32(a: u32) -> u32 {
    return (a << 24u) | ((a & 0xff00u) << 8u) | ((a >> 8u) & 0xff00u) | (a >> 24u);
}

const PRIME64_1 = vec2<u32>(0x85ebca87u, 0x9e3779b1u);
const PRIME64_2 = vec2<u32>(0x27d4eb4fu, 0xc2b2ae3du);
const PRIME64_3 = vec2<u32>(0x9e3779f9u, 0x165667b1u);
const PRIME_MX1 = vec2<u32>(0x9e3779f9u, 0x16566791u);
const PRIME_MX2 = vec2<u32>(0x1e98df25u, 0x9fb21c65u);

fn secret32(at: u32) -> u32 {
    let word = at >> 2u;
    let shift = (at & 3u) * 8u;
    let low = asked.secret[word >> 2u][word & 3u];
    if (shift == 0u) {
        return low;
    }
    let next = word + 1u;
    return (low >> shift) | (asked.secret[next >> 2u][next & 3u] << (32u - shift));
}

fn secret64(at: u32) -> vec2<u32> {
    return vec2<u32>(secret32(at), secret32(at + 4u));
}

fn path64(at: u32) -> vec2<u32> {
    return vec2<u32>(path_four(at), path_four(at + 4u));
}

fn mix16(at: u32, secret: u32) -> vec2<u32> {
    return fold64(path64(at) ^ secret64(secret), path64(at + 8u) ^ secret64(secret + 8u));
}

fn avalanche(a: vec2<u32>) -> vec2<u32> {
    let b = times64(a ^ right64(a, 37u), PRIME_MX1);
    return b ^ right64(b, 32u);
}

fn avalanche64(a: vec2<u32>) -> vec2<u32> {
    let b = times64(a ^ right64(a, 33u), PRIME64_2);
    let c = times64(b ^ right64(b, 29u), PRIME64_3);
    return c ^ right64(c, 32u);
}

fn hash_to_16(at: u32, len: u32) -> vec2<u32> {
    if (len > 8u) {
        let low = path64(at) ^ secret64(24u) ^ secret64(32u);
        let high = path64(at + len - 8u) ^ secret64(40u) ^ secret64(48u);
        let turned = vec2<u32>(swap32(low.y), swap32(low.x));
        return avalanche(add64(add64(vec2<u32>(len, 0u), turned), add64(high, fold64(low, high))));
    }
    if (len >= 4u) {
        let both = vec2<u32>(path_four(at + len - 4u), path_four(at));
        let a = both ^ secret64(8u) ^ secret64(16u);
        // Turned by 49 and by 24 bits.
        let b = times64(a ^ turn64(a.yx, 17u) ^ turn64(a, 24u), PRIME_MX2);
        let c = times64(b ^ add64(right64(b, 35u), vec2<u32>(len, 0u)), PRIME_MX2);
        return c ^ right64(c, 28u);
    }
    if (len > 0u) {
        let first = path_byte(at);
        let middle = path_byte(at + (len >> 1u));
        let last = path_byte(at + len - 1u);
        let all = (first << 16u) | (middle << 24u) | last | (len << 8u);
        return avalanche64(vec2<u32>(all ^ secret32(0u) ^ secret32(4u), 0u));
    }
    return avalanche64(secret64(56u) ^ secret64(64u));
}

fn hash_to_128(at: u32, len: u32) -> vec2<u32> {
    var sum = times64(vec2<u32>(len, 0u), PRIME64_1);
    let pairs = (len - 1u) / 32u;
    for (var pair = 0u; pair <= pairs; pair += 1u) {
        sum = add64(sum, mix16(at + 16u * pair, 32u * pair));
        sum = add64(sum, mix16(at + len - 16u * (pair + 1u), 32u * pair + 16u));
    }
    return avalanche(sum);
}

fn hash_to_240(at: u32, len: u32) -> vec2<u32> {
    var sum = times64(vec2<u32>(len, 0u), PRIME64_1);
    for (var round = 0u; round < 8u; round += 1u) {
        sum = add64(sum, mix16(at + 16u * round, 16u * round));
    }
    sum = avalanche(sum);
    for (var round = 8u; round < len / 16u; round += 1u) {
        sum = add64(sum, mix16(at + 16u * round, 16u * (round - 8u) + 3u));
    }
    return avalanche(add64(sum, mix16(at + len - 16u, 119u)));
}

// Of `len` bytes of the paths, at most 240, from `at` on.
fn path_hash(at: u32, len: u32) -> vec2<u32> {
    if (len <= 16u) {
        return hash_to_16(at, len);
    }
    if (len <= 128u) {
        return hash_to_128(at, len);
    }
    return hash_to_240(at, len);
}
