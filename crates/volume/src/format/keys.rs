//! Keys of the tree, as bytes. `docs/formats/volume.md` has the table.
//!
//! A [`Key`] is *logical*: what it is about, without a version. In the table it stands with the inverted id of the snapshot
//! or branch that wrote it behind it ([`Key::at`]), so that versions of one key are neighbours, newest id first. No logical
//! key is the beginning of another one.

/// The number of a snapshot, a branch or what is left of one. 0 is never used.
pub type Id = u32;

/// Bytes of the inverted id behind a logical key.
pub const VERSION_LEN_BYTES: usize = 4;

/// The first byte of a key.
pub mod space {
    /// Attributes and inline content of an inode.
    pub const INODE: u8 = b'I';
    /// An extended attribute.
    pub const XATTR: u8 = b'X';
    /// An entry of a directory.
    pub const ENTRY: u8 = b'D';
    /// A further name of an inode that has several.
    pub const NAME: u8 = b'L';
    /// A window of a file's content.
    pub const WINDOW: u8 = b'E';
    /// An inode whose content is to be dropped, wholly or in part.
    pub const ORPHAN: u8 = b'O';
    /// A snapshot or branch. Not versioned.
    pub const SNAPSHOT: u8 = b'S';
    /// A key that was written under an id. Not versioned.
    pub const TOUCHED: u8 = b'T';
    /// Counters of the volume. Not versioned.
    pub const META: u8 = b'M';
}

/// A logical key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(Vec<u8>);

impl Key {
    fn of(space: u8, numbers: &[u64]) -> Key {
        let mut bytes = Vec::with_capacity(1 + numbers.len() * 8 + VERSION_LEN_BYTES);
        bytes.push(space);
        for number in numbers {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        Key(bytes)
    }

    /// The inode `ino`.
    pub fn inode(ino: u64) -> Key {
        Key::of(space::INODE, &[ino])
    }

    /// The entry of `dir` with that cookie.
    pub fn entry(dir: u64, cookie: u64) -> Key {
        Key::of(space::ENTRY, &[dir, cookie])
    }

    /// The further name of `ino` that the entry of `dir` with that cookie is.
    pub fn name(ino: u64, dir: u64, cookie: u64) -> Key {
        Key::of(space::NAME, &[ino, dir, cookie])
    }

    /// The window of that number in the content of `ino`.
    pub fn window(ino: u64, window: u64) -> Key {
        Key::of(space::WINDOW, &[ino, window])
    }

    /// What is to be dropped of `ino`.
    pub fn orphan(ino: u64) -> Key {
        Key::of(space::ORPHAN, &[ino])
    }

    /// An extended attribute of `ino`. `name` has at most 255 bytes, or is cut.
    pub fn xattr(ino: u64, name: &[u8]) -> Key {
        let name = &name[..name.len().min(255)];
        let mut key = Key::of(space::XATTR, &[ino]);
        key.0.push(name.len() as u8);
        key.0.extend_from_slice(name);
        key
    }

    /// The logical key in those bytes, if they are one.
    pub fn from_logical(bytes: &[u8]) -> Option<Key> {
        Parts::parse(bytes).map(|_| Key(bytes.to_vec()))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key in the table of the version that `id` wrote.
    pub fn at(&self, id: Id) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() + VERSION_LEN_BYTES);
        bytes.extend_from_slice(&self.0);
        bytes.extend_from_slice(&(!id).to_be_bytes());
        bytes
    }

    /// Behind all versions.
    pub fn end(&self) -> Vec<u8> {
        self.at(0)
    }

    /// What it is about; `None` for a key that this module did not make.
    pub fn parts(&self) -> Option<Parts<'_>> {
        Parts::parse(&self.0)
    }
}

/// A logical key, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parts<'a> {
    /// An inode.
    Inode(u64),
    /// Inode and name.
    Xattr(u64, &'a [u8]),
    /// Directory and cookie.
    Entry(u64, u64),
    /// Inode, directory and cookie.
    Name(u64, u64, u64),
    /// Inode and number.
    Window(u64, u64),
    /// An inode.
    Orphan(u64),
}

impl<'a> Parts<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Parts<'a>> {
        let (&space, rest) = bytes.split_first()?;
        let (numbers, tail) = rest.as_chunks::<8>();
        let number = |at: usize| numbers.get(at).map(|n| u64::from_be_bytes(*n));
        match (space, numbers.len(), tail.is_empty()) {
            (space::INODE, 1, true) => Some(Parts::Inode(number(0)?)),
            (space::ORPHAN, 1, true) => Some(Parts::Orphan(number(0)?)),
            (space::ENTRY, 2, true) => Some(Parts::Entry(number(0)?, number(1)?)),
            (space::WINDOW, 2, true) => Some(Parts::Window(number(0)?, number(1)?)),
            (space::NAME, 3, true) => Some(Parts::Name(number(0)?, number(1)?, number(2)?)),
            (space::XATTR, 1.., _) => {
                let (&len, name) = rest.get(8..)?.split_first()?;
                (usize::from(len) == name.len() && len > 0).then_some(())?;
                Some(Parts::Xattr(number(0)?, name))
            }
            _ => None,
        }
    }
}

/// A versioned key of the table as logical key and id; `None` if it is none.
pub fn split(bytes: &[u8]) -> Option<(&[u8], Id)> {
    let (logical, version) = bytes.split_last_chunk::<VERSION_LEN_BYTES>()?;
    let id = !u32::from_be_bytes(*version);
    (id != 0 && Parts::parse(logical).is_some()).then_some((logical, id))
}

/// The key in the table of the snapshot or branch `id`.
pub fn snapshot(id: Id) -> Vec<u8> {
    let mut bytes = vec![space::SNAPSHOT];
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes
}

/// The id in such a key.
pub fn parse_snapshot(bytes: &[u8]) -> Option<Id> {
    match bytes {
        [space::SNAPSHOT, id @ ..] => Some(u32::from_be_bytes(id.try_into().ok()?)).filter(|&id| id != 0),
        _ => None,
    }
}

/// Where the keys that `id` touched begin.
pub fn touched_start(id: Id) -> Vec<u8> {
    let mut bytes = vec![space::TOUCHED];
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes
}

/// Behind the keys that `id` touched.
pub fn touched_end(id: Id) -> Vec<u8> {
    match id.checked_add(1) {
        Some(next) => touched_start(next),
        None => vec![space::TOUCHED + 1],
    }
}

/// The key in the table that says that `id` touched `logical`.
pub fn touched(id: Id, logical: &[u8]) -> Vec<u8> {
    let mut bytes = touched_start(id);
    bytes.extend_from_slice(logical);
    bytes
}

/// Id and logical key of such a key.
pub fn parse_touched(bytes: &[u8]) -> Option<(Id, &[u8])> {
    let rest = bytes.strip_prefix(&[space::TOUCHED])?;
    let (id, logical) = rest.split_first_chunk::<4>()?;
    Parts::parse(logical).map(|_| (u32::from_be_bytes(*id), logical))
}

/// The key in the table of a counter of the volume.
pub fn meta(name: &str) -> Vec<u8> {
    let mut bytes = vec![space::META];
    bytes.extend_from_slice(name.as_bytes());
    bytes
}

/// Where the keys of one space with that first number begin, and where they end. (Logical and in the table alike.)
pub fn range_of(space: u8, first: u64) -> (Vec<u8>, Vec<u8>) {
    let start = Key::of(space, &[first]).0;
    let end = match first.checked_add(1) {
        Some(next) => Key::of(space, &[next]).0,
        None => vec![space + 1],
    };
    (start, end)
}

/// A name's place in its directory: the upper 55 bits of 63 are its hash, the lower 8 tell names with one hash apart.
///
/// Between 2^8 and 2^63 - 513, so that a front end has room for `.` and `..`, and 0 means the beginning.
pub mod cookie {
    /// Slots for names with one hash.
    pub const SLOTS: u64 = 256;

    const HASH_BITS: u32 = 55;

    /// The first cookie of names with `hash`, of which 55 bits count.
    pub fn first(hash: u64) -> u64 {
        let hash = hash >> (64 - HASH_BITS);
        hash.clamp(1, (1 << HASH_BITS) - 3) << 8
    }
}

/// SipHash-2-4 of names, under a secret of the volume: nobody can choose names that collide.
#[derive(Clone, Copy)]
pub struct NameHash {
    secret: (u64, u64),
    mask: u64,
}

impl NameHash {
    /// Under that secret.
    pub fn new(secret: [u8; 16]) -> Self {
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| secret[at + i]));
        NameHash { secret: (half(0), half(8)), mask: u64::MAX }
    }

    /// For tests: one that keeps only the topmost `bits`, so that names collide.
    #[must_use]
    pub fn weakened(mut self, bits: u32) -> Self {
        self.mask = !u64::MAX.checked_shr(bits).unwrap_or(0);
        self
    }

    /// The first cookie at which `name` may be.
    pub fn cookie(&self, name: &[u8]) -> u64 {
        cookie::first(siphash(self.secret, name) & self.mask)
    }
}

fn siphash((k0, k1): (u64, u64), bytes: &[u8]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let round = |v: &mut [u64; 4]| {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    };
    let take = |v: &mut [u64; 4], word: u64| {
        v[3] ^= word;
        round(v);
        round(v);
        v[0] ^= word;
    };
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        take(&mut v, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    take(&mut v, u64::from_le_bytes(last));
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_siphash_2_4() {
        // Vectors of the reference implementation: key 00..0f, input 00..n.
        let secret: [u8; 16] = std::array::from_fn(|i| i as u8);
        let input: Vec<u8> = (0..64).collect();
        let hash = |len: usize| siphash(NameHash::new(secret).secret, &input[..len]);
        assert_eq!(hash(0), 0x726f_db47_dd0e_0e31);
        assert_eq!(hash(1), 0x74f8_39c5_93dc_67fd);
        assert_eq!(hash(8), 0x93f5_f579_9a93_2462);
        assert_eq!(hash(15), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn cookies_leave_room_on_both_sides() {
        for hash in [0, 1, 511, 512, u64::MAX, u64::MAX - 600, 1 << 63] {
            let cookie = cookie::first(hash);
            assert!(cookie >= 256 && cookie + cookie::SLOTS - 1 <= i64::MAX as u64 - 2, "{hash:x} {cookie:x}");
            assert_eq!(cookie % cookie::SLOTS, 0);
        }
    }

    #[test]
    fn keys_come_apart_as_they_were_put_together() {
        for (key, parts) in [
            (Key::inode(5), Parts::Inode(5)),
            (Key::xattr(5, b"user.a"), Parts::Xattr(5, b"user.a")),
            (Key::entry(1, 256), Parts::Entry(1, 256)),
            (Key::name(9, 1, 256), Parts::Name(9, 1, 256)),
            (Key::window(7, u64::MAX), Parts::Window(7, u64::MAX)),
            (Key::orphan(7), Parts::Orphan(7)),
        ] {
            assert_eq!(key.parts(), Some(parts));
            assert_eq!(split(&key.at(3)), Some((key.as_bytes(), 3)));
            assert_eq!(parse_touched(&touched(3, key.as_bytes())), Some((3, key.as_bytes())));
            assert!(key.at(9) < key.at(8) && key.at(1) < key.end());
        }
        assert_eq!(parse_snapshot(&snapshot(77)), Some(77));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut rng = 88172645463325252_u64;
        for _ in 0..20_000 {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            let mut bytes = vec![*b"IXDLEOSTM".get(rng as usize % 9).unwrap()];
            bytes.extend((0..rng % 40).map(|i| (rng >> (i % 57)) as u8));
            split(&bytes);
            parse_touched(&bytes);
            parse_snapshot(&bytes);
        }
    }

    /// The worked examples of `docs/formats/volume.md`.
    #[test]
    fn worked_examples() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(hex(&Key::inode(1).at(1)), "490000000000000001fffffffe");
        assert_eq!(hex(&Key::entry(1, 0x1234_5600).at(2)), "4400000000000000010000000012345600fffffffd");
        assert_eq!(hex(&Key::xattr(2, b"user.x").at(1)), "58000000000000000206757365722e78fffffffe");
        assert_eq!(hex(&touched(2, Key::inode(1).as_bytes())), "5400000002490000000000000001");
    }
}
