//! What a path looks like, before anything is looked up.

/// How a path may be looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Clean<'p> {
    /// By the hash of these bytes: all of the path but a slash in front.
    Whole(&'p [u8]),
    /// So, once `.` and surplus slashes are taken out.
    Squeeze,
    /// Only name by name: it has `..` in it, or a byte that no name has.
    Walk,
}

/// What a path is.
pub(super) fn clean(path: &[u8]) -> Clean<'_> {
    let rest = path.strip_prefix(b"/").unwrap_or(path);
    if is_plain(rest) { Clean::Whole(rest) } else { look_closer(rest) }
}

/// So many bytes are looked at at once.
const LANES: usize = 32;

/// Whether there is no empty name, none that begins with a dot, and no byte that ends a name in an index: what nearly every
/// path is. The empty one is.
#[inline]
pub(super) fn is_plain(path: &[u8]) -> bool {
    let (Some(first), Some((last, before))) = (path.first(), path.split_last()) else { return true };
    let mut odd = u8::from(matches!(first, b'/' | b'.')) | u8::from(matches!(last, b'/' | 0));
    let after = &path[1..];
    // Whole vectors, and the last one once more where it is not full: what was seen twice is as odd as before.
    if let (Some(end), Some(end_after)) = (before.last_chunk(), after.last_chunk()) {
        let pairs = before.as_chunks::<LANES>().0.iter().zip(after.as_chunks::<LANES>().0);
        odd |= pairs.fold(odd_pairs(end, end_after), |odd, (a, b)| odd | odd_pairs(a, b));
    } else {
        odd |= before.iter().zip(after).fold(0, |odd, (a, b)| odd | odd_pair(*a, *b));
    }
    odd == 0
}

/// Not 0 if one of these bytes, before the one at the same place of the other, is where a path is not plain.
#[inline]
fn odd_pairs(before: &[u8; LANES], after: &[u8; LANES]) -> u8 {
    let mut odd = [0; LANES];
    for (lane, (before, after)) in odd.iter_mut().zip(before.iter().zip(after)) {
        *lane = odd_pair(*before, *after);
    }
    odd.iter().fold(0, |odd, lane| odd | lane)
}

#[inline]
fn odd_pair(before: u8, after: u8) -> u8 {
    u8::from(before == 0) | (u8::from(before == b'/') & (u8::from(after == b'/') | u8::from(after == b'.')))
}

#[cold]
fn look_closer(rest: &[u8]) -> Clean<'_> {
    if rest.contains(&0) {
        return Clean::Walk;
    }
    let mut form = Clean::Whole(rest);
    for name in rest.split(|byte| *byte == b'/') {
        match name {
            b".." => return Clean::Walk,
            b"" | b"." => form = Clean::Squeeze,
            _ => {}
        }
    }
    form
}

/// Puts the names of `path` behind what is in `whole`, with one slash between. Whether it has to be a directory.
pub(super) fn join(path: &[u8], whole: &mut Vec<u8>) -> bool {
    for name in path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
        whole.extend((!whole.is_empty()).then_some(b'/'));
        whole.extend(name);
    }
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    matches!(last, b"" | b".") && !path.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_as_it_is_where_that_may_be() {
        for path in ["", "a", "a/b", "a/.b", "...", ".a", "a/..b", "a.", "a/b."] {
            assert_eq!(clean(path.as_bytes()), Clean::Whole(path.as_bytes()), "{path}");
            assert_eq!(clean(format!("/{path}").as_bytes()), Clean::Whole(path.as_bytes()), "/{path}");
        }
        for path in ["a/", "a//b", ".", "./a", "a/.", "a/./b", "//a", "//", "/."] {
            assert_eq!(clean(path.as_bytes()), Clean::Squeeze, "{path}");
        }
        for path in ["a\0b", "a\0", "\0", "..", "../a", "a/..", "a/../b", "/..", "//.."] {
            assert_eq!(clean(path.as_bytes()), Clean::Walk, "{path}");
        }
    }

    #[test]
    fn what_is_odd_is_found_wherever_it_is() {
        for len in 1..100 {
            let plain: Vec<u8> = (0..len).map(|at| if at % 7 == 3 && at + 1 < len { b'/' } else { b'a' }).collect();
            assert!(is_plain(&plain), "{len}");
            for at in 0..len {
                let with = |byte| {
                    let mut path = plain.clone();
                    path[at] = byte;
                    is_plain(&path)
                };
                let next_to_slash = at == 0 || at + 1 == len || plain[at - 1] == b'/' || plain[at + 1] == b'/';
                assert_eq!((with(0), with(b'/')), (false, plain[at] == b'/' || !next_to_slash), "{len} {at}");
                assert_eq!(with(b'.'), at > 0 && plain[at - 1] != b'/', "{len} {at}");
            }
        }
    }

    #[test]
    fn names_are_joined_with_one_slash_between() {
        let joined = |start: &str, path: &str| {
            let mut whole = start.as_bytes().to_vec();
            let is_dir = join(path.as_bytes(), &mut whole);
            (String::from_utf8(whole).unwrap(), is_dir)
        };
        assert_eq!(joined("", "a//b"), ("a/b".into(), false));
        assert_eq!(joined("x/y", "./a/./b/"), ("x/y/a/b".into(), true));
        assert_eq!(joined("x", "."), ("x".into(), true));
        assert_eq!(joined("x", ""), ("x".into(), false));
    }
}
