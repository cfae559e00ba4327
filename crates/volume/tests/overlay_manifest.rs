//! Random operations on an overlay over a manifest, compared with the naive model: the first half of each sequence makes a tree that a manifest
//! can hold, the other half changes what is shown of it.

mod overlay;

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::types::{Ino, Kind, RenameFlags};
use adit_index::Segment;
use adit_manifest::cache::{Cache, CacheOptions, Fetch, ObjectId};
use adit_manifest::format::{
    Body, Content, ContentHash, Dialect, Entry, EntryPath, File, Format, Header, LinkTarget, Manifest,
};
use adit_manifest::store::{BuildPlace, ManifestStore, StoreOptions, build_segment};
use adit_media::HostDirectory;
use adit_testkit::model::MemoryStore;
use adit_testkit::ops::{Mismatch, Op, Plan, Snapshot, StoreSubject, Subject, fuzz};
use overlay::volume::World;
use overlay::{limits, over, run};

/// Block of the cache: most files have several.
const BLOCK_LEN: u32 = 4096;

/// The content of all files, as the store of objects.
struct Contents(BTreeMap<ContentHash, Vec<u8>>);

impl Fetch for Contents {
    fn fetch(
        &self,
        id: &ObjectId,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> adit_core::Result<()>,
    ) -> adit_core::Result<()> {
        let content = self.0.get(&id.hash).ok_or(ErrorKind::NotFound)?;
        sink(&content[range.start as usize..range.end as usize])
    }
}

/// What of an operation a manifest can hold; none if it holds nothing of it.
fn for_manifest(op: &Op) -> Option<Op> {
    Some(match op {
        Op::Create(place, perm) => Op::Create(place.clone(), if perm & 0o100 == 0 { 0o644 } else { 0o755 }),
        Op::Mkdir(place, _) => Op::Mkdir(place.clone(), 0o755),
        Op::Symlink(place, _) => Op::Symlink(place.clone(), b"no-such-target".to_vec()),
        // It leaves a device.
        Op::Rename(_, _, flags) if flags.contains(RenameFlags::WHITEOUT) => return None,
        Op::Rename(..) | Op::Unlink(_) | Op::Rmdir(_) | Op::Write(..) | Op::Truncate(..) => op.clone(),
        _ => return None,
    })
}

/// The manifest of a tree, as a store whose cache and index lie in `dir`.
fn manifest_of(tree: &Snapshot, owner: (u32, u32), dir: &Path, verify_first_bytes: u64) -> ManifestStore {
    let mut manifest = Manifest::new(Header::snapshot(Format::V2025(Dialect::G)));
    let mut contents = BTreeMap::new();
    for (place, found) in tree.0.iter().filter(|(place, _)| !place.0.is_empty()) {
        let bytes = place.0.join(&b"/"[..]);
        let path = EntryPath::from_host(&bytes).unwrap().into_owned();
        let body = match found.seen.kind {
            Kind::Directory => Body::Directory,
            Kind::Symlink => Body::Symlink(LinkTarget::from_host(&found.content, &path).unwrap().into_owned()),
            _ => {
                let hash = ContentHash::of(&found.content);
                contents.insert(hash, found.content.clone());
                Body::File(File {
                    size_bytes: found.content.len() as u64,
                    mtime_micros: 1_700_000_000_000_000,
                    runnable: found.seen.perm & 0o100 != 0,
                    content: Content::Whole(hash),
                })
            }
        };
        manifest.insert(Entry { path, body }).unwrap();
    }
    let mut text = Vec::new();
    manifest.encode(manifest.header().format, &mut text).unwrap();
    let out = dir.join("segment");
    let place = BuildPlace { out: &out, scratch_dir: dir, memory_limit_bytes: 0 };
    build_segment(&text[..], place, &mut |_| ControlFlow::Continue(())).unwrap();
    std::fs::create_dir(dir.join("cache")).unwrap();
    let host = HostDirectory::open(&dir.join("cache")).unwrap();
    let options = CacheOptions { block_len: BLOCK_LEN, workers: 0, verify_first_bytes, ..CacheOptions::default() };
    let cache = Cache::open(Arc::new(host), options).unwrap();
    let options = StoreOptions { read_ahead_bytes: 0, ..StoreOptions::owned_by(owner.0, owner.1) };
    ManifestStore::new(Segment::open(&out).unwrap(), Arc::new(cache), Arc::new(Contents(contents)), options).unwrap()
}

#[test]
fn over_a_manifest() {
    for (unit, verify_first_bytes) in [(4096, 0), (9000, 0), (9000, u64::MAX)] {
        let plan = Plan { seeds: 8, ops: 500, limits: limits(unit) };
        fuzz(&plan, |ops| {
            let model = MemoryStore::new(plan.limits);
            let half = ops.len() / 2;
            let tree = {
                let mut subject = StoreSubject::new(&model);
                for op in ops[..half].iter().filter_map(for_manifest) {
                    subject.run(&op);
                }
                subject.snapshot().map_err(|what| Mismatch { step: half, what })?
            };
            let root = model.getattr(Ino::ROOT).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let lower: Arc<dyn Store> =
                Arc::new(manifest_of(&tree, (root.uid, root.gid), dir.path(), verify_first_bytes));
            let upper = World::new();
            run(&|| over(&lower, &upper), &model, (half, &ops[half..]), 60)?;
            let report = upper.tree.verify().unwrap();
            match report.problems.is_empty() {
                true => Ok(()),
                false => Err(Mismatch { step: ops.len(), what: report.problems.join("; ") }),
            }
        });
    }
}
