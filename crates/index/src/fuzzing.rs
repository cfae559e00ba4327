//! The body of the fuzz target, so that a stable toolchain can replay its corpus; and what tests need to break segments.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::layout::{self, BLOCK_LEN_BYTES, Header};
use crate::query::{self, Diff, Dupes, Order, Pattern, Query, Strategy};
use crate::resolve::{Question, Resolver, ResolverOptions};
use crate::segment::{NodeId, Segment};

/// The body of a target.
pub type Body = fn(&[u8]);

/// The targets by name.
pub const TARGETS: &[(&str, Body)] = &[
    ("index_segment", fuzz_segment),
    #[cfg(feature = "sealed")]
    ("index_sealed", fuzz_sealed),
];

/// Most nodes that are asked for, and most children of each.
const NODES: u32 = 300;

/// Any bytes as a segment; also with right checksums, so that what they cover is reached.
pub fn fuzz_segment(data: &[u8]) {
    for sealed in [Some(data.to_vec()), resealed(data)].into_iter().flatten() {
        if let Ok(segment) = opened(&sealed) {
            ask(&segment);
        }
    }
}

/// Any bytes as an encrypted index, and as what is in one.
#[cfg(feature = "sealed")]
pub fn fuzz_sealed(data: &[u8]) {
    use crate::sealed::format::{BLOCK_LEN_BYTES, HEADER_LEN_BYTES, Header, SealKey};

    let key = SealKey::new(zeroize::Zeroizing::new(std::array::from_fn(|at| at.max(1) as u8)));
    if let Ok(header) = Header::decode(data) {
        assert_eq!(data.get(..HEADER_LEN_BYTES), Some(&header.encode()[..]));
        assert!(header.file_len() > HEADER_LEN_BYTES as u64);
        let last = header.blocks() - 1;
        let (at, len) = header.clear_range(last);
        assert!(header.sealed_at(last) + len as u64 + 16 == header.file_len() && len <= BLOCK_LEN_BYTES);
        assert!(len > 0 || at == 0);
        if let Some(file_key) = header.key(&key).expect("there is a cipher") {
            let mut block = data.get(HEADER_LEN_BYTES..).unwrap_or_default().to_vec();
            // Nobody can make one without the key.
            let _ = file_key.open_block(&header, 0, &mut block);
        }
    }
    let salt = std::array::from_fn(|at| data.get(at).copied().unwrap_or(0));
    let (header, file_key) = Header::with_salt(&key, data.len() as u64, salt).expect("it is not too long");
    for number in 0..header.blocks() {
        let (at, len) = header.clear_range(number);
        let clear = &data[at as usize..at as usize + len];
        let mut block = clear.to_vec();
        file_key.seal_block(&header, number, &mut block).expect("there is a cipher");
        file_key.open_block(&header, number, &mut block).expect("it was written so");
        assert_eq!(block, clear);
    }
}

/// Opens bytes as a segment.
pub fn opened(bytes: &[u8]) -> Result<Segment> {
    let file = File::from(memfd_create(c"segment", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all_at(bytes, 0).expect("it takes bytes");
    Segment::from_file(file, Path::new("segment"))
}

/// The same bytes with the checksums that belong to them, if there is a header that says where.
pub fn resealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let len = u32::from_le_bytes(*bytes.get(16..)?.first_chunk()?) as usize;
    let mut header = Header::fields(bytes.get(..len.checked_sub(8)?)?)?;
    let mut out = bytes.get(..usize::try_from(header.sums_offset).ok()?)?.to_vec();
    let mut all = Vec::new();
    for entry in &mut header.sections {
        let (start, len) = (usize::try_from(entry.offset).ok()?, usize::try_from(entry.len).ok()?);
        let section = bytes.get(start..start.checked_add(len)?)?;
        let sums: Vec<u64> = section.chunks(BLOCK_LEN_BYTES as usize).map(layout::block_sum).collect();
        entry.check = layout::section_check(&sums);
        all.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
    }
    out.extend(all);
    header.file_len = out.len() as u64;
    let front = header.encode();
    out.get_mut(..front.len())?.copy_from_slice(&front);
    Some(out)
}

/// Asks a segment all that there is to ask. Where it says that it is sound, the answers must fit together.
pub fn ask(segment: &Segment) {
    let sound = segment.verify(&mut |_| ControlFlow::Continue(())).is_ok();
    for id in (0..segment.len()).take(NODES as usize).map(NodeId) {
        let asked = (|| {
            let node = segment.node(id)?;
            let (name, path) = (segment.name(id)?, segment.path(id)?);
            assert!(path.ends_with(name) && (id == NodeId::ROOT) == path.is_empty());
            let _ = (segment.hash(id)?, segment.stamp(id)?, segment.extra(id)?);
            assert_eq!(segment.lookup(node.parent, name)?.filter(|_| sound), Some(id).filter(|_| sound && id.0 > 0));
            Ok::<_, FsError>(node)
        })();
        match asked {
            Ok(node) => children(segment, id, node.kind, sound),
            Err(e) => assert!(!sound || is_too_long(&e), "{e}"),
        }
    }
    columns(segment, sound);
    resolve(segment, sound);
    queries(segment, sound);
    let none = segment.node(NodeId(segment.len())).expect_err("there is no such node");
    assert_eq!(none.kind(), ErrorKind::InvalidInput);
}

/// A path may be longer than what is allowed, though each name is not.
fn is_too_long(e: &FsError) -> bool {
    e.to_string().contains("its path is too long")
}

/// The columns say what the segment says, where it says something.
fn columns(segment: &Segment, sound: bool) {
    let Ok(columns) = segment.columns() else {
        assert!(!sound);
        return;
    };
    let mut path = Vec::new();
    for node in (0..segment.len() + 1).take(NODES as usize) {
        let id = NodeId(node);
        let name = columns.name(node);
        if let Ok(expected) = segment.name(id) {
            assert_eq!(name, Some(expected));
        }
        if let Ok(expected) = segment.node(id) {
            let found = (columns.parent(node), columns.size(node), columns.mtime_ns(node));
            assert_eq!(found, (Some(expected.parent.0), Some(expected.size), Some(expected.mtime_ns)));
        }
        assert_eq!(segment.child_range(id).ok(), columns.children(node));
        if let Some(range) = columns.name_range(node)
            && let (true, Some(last)) = (sound, columns.node_at(range.end))
        {
            assert_eq!((last, columns.node_at(range.start)), (node, Some(node)));
        }
        path.clear();
        let said = columns.path_into(node, &mut path);
        if let Ok(expected) = segment.path(id) {
            assert_eq!((said, &path), (Some(()), &expected));
        }
    }
    let _ = columns.node_at(columns.names().len() / 2);
}

/// A path leads to the node that has it, by the tables of the segment, by those that are made, and by its names.
fn resolve(segment: &Segment, sound: bool) {
    let ways = [(false, false), (true, false), (false, true)];
    for (make_tables, walk) in ways.into_iter().take(if sound { 3 } else { 1 }) {
        let options = ResolverOptions::default().make_tables(make_tables).walk(walk).threads(1);
        let Ok(resolver) = Resolver::with(segment, options) else {
            assert!(!sound);
            continue;
        };
        for id in (0..segment.len()).take(NODES as usize).map(NodeId) {
            let Ok(path) = segment.path(id) else { continue };
            let asked = [Question::from(&path[..]), Question { start: id, path: b"../." }];
            let (found, batch) = (resolver.find(NodeId::ROOT, &path), resolver.find_batch(&asked[..1]));
            let _ = resolver.find_batch(&asked);
            if sound {
                assert_eq!((found.unwrap(), batch.unwrap()), (Some(id), vec![Some(id)]));
            }
        }
    }
}

/// Questions about all nodes end, and where it is sound every way to an answer has the same.
fn queries(segment: &Segment, sound: bool) {
    let regex = Pattern::regex("[0-9]|e.*t").expect("it is one");
    let path = Pattern::glob("*/**/*[!x]").expect("it is one");
    let literal = Pattern::substring(b"e").expect("it is one");
    for pattern in [regex, path, literal] {
        let query = Query::new().pattern(pattern).threads(1).limit(NODES.into());
        let each = query.clone().strategy(Strategy::Each).collect(segment);
        for (order, size) in [(None, 0), (Some(Order::Path), 0), (Some(Order::Name), 0), (None, 1)] {
            let query = order.map_or(query.clone(), |order| query.clone().sort(order, false));
            let query = if size > 0 { query.size(size..=u64::MAX) } else { query };
            let found = query.collect(segment);
            assert!(!sound || found.is_ok() || found.as_ref().is_err_and(is_too_long));
            if let (Ok(found), Ok(each), None, 0, true) = (&found, &each, order, size, sound) {
                assert_eq!(found, each);
            }
        }
    }
    for dir in (0..segment.len()).take(4).map(NodeId) {
        let (added, largest) = (query::du(segment, dir), query::top(segment, dir, 3));
        assert!(
            !sound || added.is_ok() && (largest.is_ok() || segment.kind(dir).is_ok_and(|kind| kind != Kind::Directory))
        );
    }
    let dupes = Dupes::new().threads(1).run(segment, &mut |group| {
        assert!(group.nodes.len() > 1);
        ControlFlow::Continue(())
    });
    let diff = Diff::new().run(segment, segment, &mut |_| ControlFlow::Continue(()));
    if sound {
        assert!(dupes.is_ok());
        let same = diff.expect("it is sound");
        assert_eq!((same.same, same.added + same.removed + same.changed), (u64::from(segment.len()) - 1, 0));
    }
}

fn children(segment: &Segment, dir: NodeId, kind: Kind, sound: bool) {
    let children = match segment.children(dir, 0) {
        Ok(children) => children,
        Err(e) => {
            assert!(!sound || kind != Kind::Directory && e.kind() == ErrorKind::NotDirectory, "{e}");
            return;
        }
    };
    let mut before = None;
    for child in children.take(NODES as usize) {
        match child {
            Ok(child) => {
                assert!(child.id > dir);
                if sound {
                    assert!(before < Some(child.name));
                    assert_eq!(segment.parent(child.id).expect("it is sound"), dir);
                    assert_eq!(segment.lookup(dir, child.name).expect("it is sound"), Some(child.id));
                }
                before = Some(child.name);
            }
            Err(e) => assert!(!sound, "{e}"),
        }
    }
}
