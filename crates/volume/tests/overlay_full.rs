//! An overlay whose upper has no space left: what the layer below has is taken away all the same.

mod overlay;
#[path = "support/volume.rs"]
mod place;

use std::sync::Arc;

use adit_core::ErrorKind;
use adit_core::overlay::Overlay;
use adit_core::store::Store;
use adit_core::types::{Ino, SetAttr, XattrName, XattrSet};
use adit_testkit::model::MemoryStore;
use adit_volume::Volume;
use overlay::volume::{name, new};
use overlay::{Words, identity};
use place::Place;

/// Of the uppers, in bytes. One eighth is kept back.
const CAPACITY: u64 = 32 << 20;

fn over(lower: &Arc<dyn Store>, upper: &Volume) -> Overlay {
    Overlay::open(lower.clone(), Arc::new(upper.live().unwrap()), &identity("the lower")).unwrap()
}

/// Puts content into `full` until there is no room, not even for a name.
fn fill(overlay: &Overlay) {
    overlay.put("full", b"");
    let (file, piece) = (overlay.file("full"), vec![7; 256 << 10]);
    let mut end = 0;
    let full = loop {
        match file.write_at(&[(end, &piece)]) {
            Ok(()) => end += piece.len() as u64,
            Err(e) => break e,
        }
        assert!(end < CAPACITY);
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    let named = (0..100_000).find_map(|at| overlay.mkdir(Ino::ROOT, name(&format!("d{at}")), &new(0o755)).err());
    assert_eq!(named.expect("names take room too").kind(), ErrorKind::NoSpace);
}

/// Takes away what [`fill`] put there; its space comes back when nobody knows it any more.
fn make_room(overlay: &Overlay) {
    let full = overlay.at("full");
    overlay.rm("full");
    overlay.forget(full);
}

#[test]
fn a_full_upper_lets_go_of_what_is_below() {
    let memory = overlay::memory();
    for dir in ["deep", "deep/er", "deep/empty", "empty"] {
        memory.dir(dir);
    }
    for file in ["top", "kept", "deep/er/f", "deep/er/g", "one"] {
        memory.put(file, &[9; 9000]);
    }
    memory.link(memory.at("one"), Ino::ROOT, name("two")).unwrap();
    let lower: Arc<dyn Store> = Arc::new(memory);
    let (place, upper) = Place::with(CAPACITY);
    {
        let overlay = over(&lower, &upper);
        fill(&overlay);
        let refused = overlay.file("kept").write_at(&[(5000, b"x")]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "what only adds is refused");
        // Of directories of the lower nothing was copied so far.
        overlay.rm("deep/er/f");
        overlay.rm("top");
        overlay.rm("one");
        overlay.rmdir(overlay.at("deep"), name("empty")).unwrap();
        overlay.rmdir(Ino::ROOT, name("empty")).unwrap();
        assert_eq!(overlay.stat("two").nlink, 1, "one of two names");
    }
    upper.close().unwrap();
    drop(upper);
    let upper = place.open();
    let overlay = over(&lower, &upper);
    assert_eq!((overlay.names("deep"), overlay.names("deep/er")), (vec!["er".to_owned()], vec!["g".to_owned()]));
    for gone in ["top", "one", "empty"] {
        assert_eq!(overlay.find(gone).unwrap_err().kind(), ErrorKind::NotFound, "{gone}");
    }
    assert_eq!(overlay.content("two"), [9; 9000]);
    make_room(&overlay);
    upper.gc().unwrap();
    overlay.put("after", &[1; 100_000]);
    drop(overlay);
    place::check(&upper);
}

/// Each whiteout takes a little of what is kept back, and only a part of that is for them: the rest stays for what gives
/// space back.
#[test]
fn whiteouts_use_up_no_more_than_their_part_of_what_is_kept_back() {
    const FILES: usize = 30_000;
    let lower = MemoryStore::new(overlay::limits(4096));
    let long = |at: usize| format!("{at:0>240}");
    for at in 0..FILES {
        lower.create(Ino::ROOT, name(&long(at)), &new(0o644)).unwrap();
    }
    let lower: Arc<dyn Store> = Arc::new(lower);
    let (_place, upper) = Place::with(CAPACITY);
    let overlay = over(&lower, &upper);
    fill(&overlay);
    let remove = |at: usize| overlay.unlink(Ino::ROOT, name(&long(at)));
    let (first, full) = (0..FILES).find_map(|at| remove(at).err().map(|e| (at, e))).expect("it has an end");
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    assert!(first > 100, "{first} were removed");
    assert!(overlay.find(&long(first)).is_ok() && overlay.find(&long(first - 1)).is_err());
    make_room(&overlay);
    upper.gc().unwrap();
    (first..first + 1000).for_each(|at| remove(at).unwrap());
    drop(overlay);
    place::check(&upper);
}

/// Together they are more than a segment of the upper's log holds, and of one file more than the upper takes at once.
#[test]
fn many_long_attributes_go_up_with_the_file_or_nothing_does() {
    const FILES: [(&str, usize); 2] = [("some", 12), ("many", 70)];
    let value = vec![7; 64 << 10];
    let names = |count: usize| (0..count).map(|i| format!("user.{i}"));
    let memory = overlay::memory();
    for (at, count) in FILES {
        memory.put(at, b"content");
        for name in names(count) {
            let name = XattrName::new(name.as_bytes()).unwrap();
            memory.set_xattr(memory.at(at), name, &value, XattrSet::Either).unwrap();
        }
    }
    let lower: Arc<dyn Store> = Arc::new(memory);
    let (place, upper) = Place::with(64 << 20);
    let set = SetAttr { perm: Some(0o640), ..SetAttr::default() };
    {
        let overlay = over(&lower, &upper);
        overlay.setattr(overlay.at("some"), &set).unwrap();
        let e = overlay.setattr(overlay.at("many"), &set).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        assert!(e.to_string().contains("extended attributes"), "{e}");
    }
    upper.close().unwrap();
    drop(upper);
    let upper = place.open();
    let overlay = over(&lower, &upper);
    assert_eq!((overlay.stat("some").perm, overlay.stat("many").perm == 0o640), (0o640, false));
    for (at, count) in FILES {
        for name in names(count) {
            let name = XattrName::new(name.as_bytes()).unwrap();
            assert_eq!(overlay.xattr(overlay.at(at), name).unwrap(), value);
        }
    }
    drop(overlay);
    place::check(&upper);
}
