//! Paths that lead somewhere, nearly, or not at all; and the plain code that says where.

use adit_core::types::Kind;
use adit_index::MissKind;
use adit_testkit::Rng;

use super::Model;

pub type Names = Vec<Vec<u8>>;

/// What POSIX says of a path below `start`, on a map: the names of the node, or of the last one that was reached, the place and why.
pub fn expected(model: &Model, start: &[Vec<u8>], path: &[u8]) -> Result<Names, (Names, usize, MissKind)> {
    let mut at = if path.first() == Some(&b'/') { Vec::new() } else { start.to_vec() };
    let mut place = 0;
    for name in path.split(|byte| *byte == b'/') {
        let begins = place;
        place += name.len() + 1;
        if begins == 0 && name.is_empty() {
            continue;
        }
        match model[&at].kind {
            Kind::Directory => {}
            Kind::Symlink => return Err((at, begins, MissKind::Link)),
            _ => return Err((at, begins, MissKind::NotDirectory)),
        }
        match name {
            b"" | b"." => {}
            b".." => drop(at.pop()),
            name => {
                at.push(name.to_vec());
                if !model.contains_key(&at) {
                    at.pop();
                    return Err((at, begins, MissKind::NotFound));
                }
            }
        }
    }
    Ok(at)
}

/// A path that leads somewhere, nearly, or not at all.
pub fn question(rng: &mut Rng, model: &[&Vec<Vec<u8>>]) -> Vec<u8> {
    let mut names = model[rng.below(model.len() as u64) as usize].clone();
    for _ in 0..[0, 0, 0, 1, 1, 2, 4][rng.below(7) as usize] {
        let at = rng.below(names.len() as u64 + 1) as usize;
        match rng.below(8) {
            0 => names.insert(at, b".".to_vec()),
            1 => names.insert(at, b"..".to_vec()),
            2 => names.insert(at, Vec::new()),
            3 => names.truncate(at),
            4 => names.push(b"x".to_vec()),
            5 if at < names.len() => names[at].push(b"a\0"[rng.below(2) as usize]),
            6 if at < names.len() && !names[at].is_empty() => drop(names[at].pop()),
            _ => names.extend(model[rng.below(model.len() as u64) as usize].clone()),
        }
    }
    let mut path = names.join(&b'/');
    if rng.below(3) == 0 {
        path.insert(0, b'/');
    }
    if rng.below(8) == 0 {
        path.push(b'/');
    }
    path
}

/// XXH3 multiplies what is in a block of 16 bytes by a constant that everyone knows. Where the first half of it is that constant, the product
/// is zero whatever the other half is: so all these names have the same hash.
pub fn same_hash(number: u64) -> Vec<u8> {
    let secret = [0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe];
    let digits = format!("{number:08}");
    [&secret[..], digits.as_bytes(), b"the same of them"].concat()
}
