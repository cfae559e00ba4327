//! Trees of a lower that are so deep that the upper notes where things lie in pieces.

mod overlay;

use std::ops::Range;
use std::sync::Arc;

use adit_core::ErrorKind;
use adit_core::overlay::{Change, Changed, Overlay};
use adit_core::store::Store;
use adit_core::types::{Access, FileName, Ino, SetAttr};
use overlay::volume::{name, new};
use overlay::{Pair, Words};

/// With names of 200 bytes: a path of 30 KB.
const LEVELS: usize = 150;
/// The level of a directory that moves.
const MOVED: usize = 100;

fn step(level: usize) -> String {
    format!("{level:0>200}")
}

/// The directory that lies so many levels below `from`, known from now on.
fn down(store: &dyn Store, from: Ino, levels: Range<usize>) -> Ino {
    levels.fold(from, |at, level| store.lookup(at, name(&step(level))).unwrap().ino)
}

/// In the deepest directory `gone`, `moved`, and `leaf`, which is `twin` as well.
fn deep() -> Pair {
    Pair::new(|lower| {
        let mut at = Ino::ROOT;
        for level in 0..LEVELS {
            at = lower.mkdir(at, name(&step(level)), &new(0o755)).unwrap().ino;
        }
        for file in ["gone", "leaf", "moved"] {
            let (attr, content) = lower.create(at, name(file), &new(0o644)).unwrap();
            content.write_at(&[(0, file.as_bytes())]).unwrap();
            if file == "leaf" {
                lower.link(attr.ino, at, name("twin")).unwrap();
            }
        }
    })
}

fn read(store: &dyn Store, dir: Ino, file: &str) -> String {
    let ino = store.lookup(dir, name(file)).unwrap().ino;
    let mut bytes = [0; 100];
    let len = store.open(ino, Access::Read).unwrap().read_at(0, &mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

fn names(store: &dyn Store, dir: Ino) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let listed = store.read_dir(dir, 0, &mut |entry| {
        names.push(entry.name.as_bytes().to_vec());
        std::ops::ControlFlow::Continue(())
    });
    listed.unwrap();
    names
}

#[test]
fn what_lies_deep_is_changed_found_again_and_removed() {
    let pair = deep();
    {
        let overlay = pair.open();
        let dir = down(&overlay, Ino::ROOT, 0..LEVELS);
        // Of several names: no directory above it has a copy then.
        let twin = overlay.lookup(dir, name("twin")).unwrap().ino;
        overlay.open(twin, Access::Write).unwrap().write_at(&[(0, b"LE")]).unwrap();
        let moved = overlay.lookup(dir, name("moved")).unwrap().ino;
        overlay.setattr(moved, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
        overlay.rename(dir, name("moved"), Ino::ROOT, name("moved"), Default::default()).unwrap();
        overlay.create(dir, name("new"), &new(0o644)).unwrap();
        overlay.unlink(dir, name("gone")).unwrap();
        let above = down(&overlay, Ino::ROOT, 0..MOVED);
        overlay.rename(above, name(&step(MOVED)), Ino::ROOT, name("shifted"), Default::default()).unwrap();
    }
    {
        let upper = Arc::new(pair.upper.main());
        let fit = Overlay::fit(pair.lower.clone(), upper).unwrap();
        assert!(fit.same as usize > LEVELS && fit.other.is_empty() && fit.unremoved.is_empty(), "{fit:?}");
    }
    let overlay = pair.open();
    let shifted = overlay.at("shifted");
    let dir = down(&overlay, shifted, MOVED + 1..LEVELS);
    assert_eq!((read(&overlay, dir, "leaf"), read(&overlay, dir, "twin")), ("LEaf".to_owned(), "LEaf".to_owned()));
    assert_eq!((read(&overlay, Ino::ROOT, "moved"), overlay.stat("moved").perm), ("moved".to_owned(), 0o600));
    let mut shown = names(&overlay, dir);
    shown.sort_unstable();
    assert_eq!(shown, [b"leaf".to_vec(), b"new".to_vec(), b"twin".to_vec()]);

    let mut told = Vec::new();
    let unknown = overlay.changes(&mut |Change { path, what, .. }| told.push((path.len(), what))).unwrap();
    assert!(unknown.is_empty(), "{unknown:?}");
    let deepest = LEVELS * 201;
    let from = |what: &Changed| if let Changed::Renamed(from) = what { from.len() } else { 0 };
    let moves: Vec<usize> = told.iter().map(|(_, what)| from(what)).filter(|&len| len > 0).collect();
    assert_eq!(moves, [deepest + "/moved".len(), (MOVED + 1) * 201]);
    assert!(told.iter().any(|(len, what)| (*len, what) == (deepest + "/gone".len(), &Changed::Removed)), "{told:?}");
    assert_eq!(told.iter().filter(|(_, what)| *what == Changed::Content).count(), 2, "under both names");

    for file in ["leaf", "new", "twin"] {
        overlay.unlink(dir, name(file)).unwrap();
    }
    for level in (MOVED + 1..LEVELS).rev() {
        overlay.rmdir(down(&overlay, shifted, MOVED + 1..level), name(&step(level))).unwrap();
    }
    overlay.rmdir(Ino::ROOT, name("shifted")).unwrap();
    for level in (0..MOVED).rev() {
        overlay.rmdir(down(&overlay, Ino::ROOT, 0..level), name(&step(level))).unwrap();
    }
    overlay.unlink(Ino::ROOT, name("moved")).unwrap();
    drop(overlay);
    assert_eq!(names(&pair.open(), Ino::ROOT), [b""; 0]);
    assert_eq!(pair.upper.tree.verify().unwrap().problems, [""; 0]);
}

/// The first change of all is a removal, as `rm -rf` begins.
#[test]
fn what_lies_deep_is_removed_where_nothing_was_changed() {
    let pair = deep();
    {
        let overlay = pair.open();
        let dir = down(&overlay, Ino::ROOT, 0..LEVELS);
        for file in ["twin", "gone", "leaf", "moved"] {
            overlay.unlink(dir, name(file)).unwrap();
        }
        for level in (0..LEVELS).rev() {
            overlay.rmdir(down(&overlay, Ino::ROOT, 0..level), name(&step(level))).unwrap();
        }
    }
    assert_eq!(names(&pair.open(), Ino::ROOT), [b""; 0]);
}

#[test]
fn a_piece_of_a_path_that_is_missing_is_damage() {
    let pair = deep();
    {
        let overlay = pair.open();
        overlay.create(down(&overlay, Ino::ROOT, 0..LEVELS), name("new"), &new(0o644)).unwrap();
    }
    let upper = pair.upper.main();
    let index = upper.at("index");
    let pieces = names(&upper, index);
    assert!((5..20).contains(&pieces.len()), "one for each 4 KiB of the path: {}", pieces.len());
    for piece in pieces {
        upper.unlink(index, FileName::new(&piece).unwrap()).unwrap();
    }
    drop(upper);
    let overlay = pair.open();
    let dir = down(&overlay, Ino::ROOT, 0..LEVELS);
    assert_eq!(overlay.lookup(dir, name("leaf")).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(overlay.lookup(dir, name("new")).is_ok(), "what is above is shown");
}
