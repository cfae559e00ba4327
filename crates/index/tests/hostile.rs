//! Names that were made to do harm, through every question: paths to nodes, patterns, equal content, differences, sums. Each answer is
//! compared with what is plainly right.

mod support;

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use adit_index::layout::PATH_LEN_MAX_BYTES;
use adit_index::layout::tables::path_hash;
use adit_index::query::{Change, Diff, Dupes, Pattern, PatternBuilder, Query, Syntax};
use adit_index::{Batch, ContentHash, Index, Miss, MissKind, NodeId};
use support::paths::same_hash;
use support::{Item, Place};

/// What is hostile, by what it attacks.
fn hostile() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let long = |len: usize| -> Vec<u8> {
        // Names of 255 bytes, as long as hosts have them, down to that length.
        let mut path: Vec<u8> = (0..len).map(|at| if at % 256 == 255 { b'/' } else { b'd' }).collect();
        *path.last_mut().unwrap() = b'e';
        path
    };
    vec![
        ("lines", [&b"\n"[..], b"a\nb", b"a\n", b"\nb", b"a\r\nb", b"dir\n/in it\n"].map(<[u8]>::to_vec).into()),
        (
            "no text",
            [&b"\xff"[..], b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"ok\x80", b"\xf5/\xff\xff"]
                .map(<[u8]>::to_vec)
                .into(),
        ),
        ("paths of 4 KiB and more", vec![long(4095), long(4096), long(4097), long(PATH_LEN_MAX_BYTES)]),
        (
            "names of 255 bytes and more",
            [254, 255, 256, 4096].map(|len| [vec![b'n'; len], b"!".to_vec()].concat()).into(),
        ),
        ("equal hashes", (0..200).map(same_hash).collect()),
        (
            "what means something elsewhere",
            [
                &b"-rf"[..],
                b"--",
                b"*",
                b"?",
                b"[a",
                b"{a,b}",
                b"\\",
                b"...",
                b" ",
                b"\x1b[2J",
                b"\x01",
                b"%s%n",
                b"$(x)",
                b"a\x7f",
            ]
            .map(<[u8]>::to_vec)
            .into(),
        ),
        ("folded", ["É", "é", "ß", "SS", "İ", "ı", "K", "K"].map(|name| name.as_bytes().to_vec()).into()),
    ]
}

/// Each a file of its own directory, so that no two sets meet. Files of one set have one content.
fn items() -> Vec<Item> {
    let sets = hostile();
    let file = |(set, path): (usize, &Vec<u8>)| {
        let hash: ContentHash = [set as u8 + 1; 16];
        Item { hash: Some(hash), size: 10 + set as u64, ..Item::file(path) }
    };
    let mut items: Vec<Item> =
        sets.iter().enumerate().flat_map(|(set, (_, paths))| paths.iter().map(move |path| file((set, path)))).collect();
    // Two of the long paths begin alike.
    items.sort_by(|a, b| a.path.cmp(&b.path));
    items.dedup_by(|a, b| a.path == b.path);
    items
}

fn indexes(place: &Place, items: &[Item]) -> Vec<Index> {
    place.segment_with_tables(items);
    let mut all =
        vec![Index::open(&place.out()).unwrap(), Index::options().large_pages(true).open(&place.out()).unwrap()];
    let other = Place::new();
    other.segment(items);
    all.push(Index::options().cache_size(8 << 10).open(&other.out()).unwrap());
    all.push(Index::options().make_tables(true).open(&other.out()).unwrap());
    all
}

#[test]
fn every_path_leads_where_it_says_and_no_other_does() {
    let items = items();
    assert!(items.iter().filter(|item| item.path.len() >= 4096).count() >= 3);
    assert_eq!(path_hash(&same_hash(0)), path_hash(&same_hash(199)));
    let paths: BTreeSet<&[u8]> = items.iter().map(|item| &item.path[..]).collect();
    for index in indexes(&Place::new(), &items) {
        let mut asked: Vec<Vec<u8>> = items.iter().map(|item| item.path.clone()).collect();
        // What is nearly one of them, and what has the hash of others.
        for item in &items {
            asked.extend([[&item.path[..], b"\n"].concat(), [&item.path[..], b"\xff"].concat()]);
            let shorter = &item.path[..item.path.len() - 1];
            // That one leads elsewhere, as it should.
            asked.extend((shorter != b"..").then(|| shorter.to_vec()));
        }
        asked.extend((200..400).map(same_hash));
        let batch: Batch = asked.iter().collect();
        let (resolved, looked_up) = (index.resolve_batch(&batch).unwrap(), index.lookup_batch(&batch).unwrap());
        let flying = index.resolve_async(batch).wait().unwrap();
        assert_eq!(resolved, flying);
        for ((path, answer), found) in asked.iter().zip(resolved).zip(looked_up) {
            assert_eq!((index.resolve(path).unwrap(), found), (answer, answer.ok()), "{}", path.escape_ascii());
            match answer {
                Ok(node) => {
                    let own = index.path(node).unwrap();
                    // A slash at the end leads to the same directory.
                    assert_eq!(own, path.strip_suffix(b"/").unwrap_or(path), "{}", path.escape_ascii());
                }
                Err(_) => assert!(!paths.contains(&path[..]), "{}", path.escape_ascii()),
            }
        }
        // How far a path leads is told, however many have the hash of what it goes on with.
        let miss = Miss { reached: NodeId::ROOT, at: 0, why: MissKind::NotFound };
        assert_eq!(index.resolve(same_hash(999)).unwrap(), Err(miss));
    }
}

/// What a search finds, by paths.
fn found(index: &Index, pattern: Pattern) -> BTreeSet<Vec<u8>> {
    index.paths(&Query::new().pattern(pattern)).unwrap().into_iter().collect()
}

#[test]
fn every_name_is_found_by_its_own_bytes() {
    let items = items();
    for index in indexes(&Place::new(), &items) {
        for item in &items {
            let last = item.path.rsplit(|byte| *byte == b'/').next().unwrap();
            let by_name = |name: &[u8]| name.windows(last.len()).any(|part| part == last);
            let all = index.paths(&Query::new()).unwrap();
            let expected: BTreeSet<Vec<u8>> =
                all.into_iter().filter(|path| by_name(path.rsplit(|byte| *byte == b'/').next().unwrap())).collect();
            assert!(expected.contains(&item.path));
            assert_eq!(found(&index, Pattern::substring(last).unwrap()), expected, "{}", last.escape_ascii());
            let escaped: String = item.path.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            // A pattern may be long; one made of four times as many bytes may be too long, and says so.
            if let Ok(pattern) =
                PatternBuilder::new(Syntax::Regex).full_path(true).build(format!("^(?-u:{escaped})$").as_bytes())
            {
                assert_eq!(found(&index, pattern), BTreeSet::from([item.path.clone()]), "{}", item.path.escape_ascii());
            } else {
                assert!(item.path.len() > 10_000, "{}", item.path.escape_ascii());
            }
        }
        assert_eq!(index.count(&Query::new()).unwrap(), u64::from(index.segment().len()) - 1);
    }
}

#[test]
fn equal_content_and_differences_are_told_under_any_name() {
    let items = items();
    let sets = hostile();
    for index in indexes(&Place::new(), &items) {
        let mut groups = BTreeSet::new();
        index
            .dupes(&Dupes::new(), &mut |group| {
                let files: BTreeSet<Vec<u8>> = group.nodes.iter().map(|node| index.path(*node).unwrap()).collect();
                groups.insert((usize::from(group.hash[0]) - 1, files));
                ControlFlow::Continue(())
            })
            .unwrap();
        let expected: BTreeSet<(usize, BTreeSet<Vec<u8>>)> =
            sets.iter().enumerate().map(|(set, (_, paths))| (set, paths.iter().cloned().collect())).collect();
        assert_eq!(groups, expected);
        assert_eq!(index.du(NodeId::ROOT).unwrap().total.files, items.len() as u64);
    }
    // Every second one goes, every third is moved below a name that is no better, the others stay.
    let to = |path: &[u8]| [b"\xff\n*/", &path[..path.len().min(60_000)]].concat();
    let after: Vec<Item> = items
        .iter()
        .enumerate()
        .filter(|(at, _)| at % 2 == 0)
        .map(|(at, item)| match at % 3 {
            0 => Item { path: to(&item.path), hash: Some([at as u8; 16]), size: 1 << 20 | at as u64, ..item.clone() },
            _ => item.clone(),
        })
        .collect();
    let before: Vec<Item> = items
        .iter()
        .enumerate()
        .map(|(at, item)| match at % 6 {
            0 => Item { hash: Some([at as u8; 16]), size: 1 << 20 | at as u64, ..item.clone() },
            _ => item.clone(),
        })
        .collect();
    let (old, new) = (Place::new(), Place::new());
    for (a, b) in indexes(&old, &before).iter().zip(indexes(&new, &after)) {
        let (mut removed, mut renamed) = (BTreeSet::new(), BTreeSet::new());
        let files = |index: &Index, node: NodeId| {
            let is_file = index.node(node).unwrap().kind == adit_core::types::Kind::File;
            is_file.then(|| index.path(node).unwrap())
        };
        a.diff(&b, &Diff::new(), &mut |change| {
            match change {
                Change::Removed(node) => removed.extend(files(a, node)),
                Change::Renamed { before, after, .. } => {
                    renamed.insert((a.path(before).unwrap(), b.path(after).unwrap()));
                }
                Change::Added(node) => assert_eq!(files(&b, node), None, "all that is new was moved"),
                Change::Changed { .. } => panic!("nothing has changed where it was"),
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        let moved = items.iter().step_by(6).map(|item| (item.path.clone(), to(&item.path)));
        assert_eq!(renamed, moved.collect());
        assert_eq!(removed, items.iter().skip(1).step_by(2).map(|item| item.path.clone()).collect());
    }
}
