//! How what an overlay shows differs from what it showed when a snapshot of its upper was made: in the paths that users see.

mod overlay;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use adit_core::overlay::{Change, Changed, Overlay};
use adit_core::store::Store;
use adit_core::types::{Access, FileName, Ino, Kind, RenameFlags, SetAttr, SetTime, Timestamp, XattrName, XattrSet};
use adit_testkit::model::MemoryStore;
use adit_testkit::ops::{Mismatch, Plan, fuzz};
use adit_volume::tree::{Differing, MAIN};
use adit_volume::{Source, VolumeStore};
use overlay::volume::{World, name};
use overlay::{Words, fill, identity, limits, over, run};

/// A lower, of which each overlay has a store of its own, and an upper.
struct Pair {
    below: World,
    upper: World,
}

impl Pair {
    fn new(make: impl FnOnce(&VolumeStore)) -> Pair {
        let below = World::new();
        make(&below.main());
        below.tree.snapshot(MAIN, "lower").unwrap();
        Pair { below, upper: World::new() }
    }

    fn lower(&self) -> Arc<dyn Store> {
        Arc::new(snapshot(&self.below, "lower"))
    }

    fn open(&self) -> Overlay {
        over(&self.lower(), &self.upper)
    }

    fn at_snapshot(&self, name: &str) -> Overlay {
        Overlay::open(self.lower(), Arc::new(snapshot(&self.upper, name)), &identity("the lower")).unwrap()
    }

    fn differences(&self, old: &str, new: &str) -> Result<Vec<Change>, String> {
        let upper: Vec<Change> = self.upper.tree.diff(old, new).unwrap().iter().map(of_upper).collect();
        let view = |name: &str| if name == MAIN { self.open() } else { self.at_snapshot(name) };
        view(new).differences(&view(old), &upper).map_err(|e| e.to_string())
    }

    /// A line for each.
    fn told(&self, old: &str, new: &str) -> Vec<String> {
        self.differences(old, new).unwrap().iter().map(line).collect()
    }
}

fn snapshot(world: &World, name: &str) -> VolumeStore {
    VolumeStore::open(&world.tree, Source::Snapshot(world.tree.find_snapshot(name).unwrap())).unwrap()
}

fn of_upper(difference: &adit_volume::tree::Difference) -> Change {
    let what = match &difference.what {
        Differing::Added => Changed::Added,
        Differing::Changed => Changed::Content,
        Differing::Removed => Changed::Removed,
        Differing::Renamed(from) => Changed::Renamed(from.clone()),
    };
    Change { path: difference.path.clone(), kind: difference.kind, what }
}

fn line(change: &Change) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let what = match &change.what {
        Changed::Renamed(from) => format!("from {}", text(from)),
        what => format!("{what:?}"),
    };
    format!("{} {} {what}", text(&change.path), change.kind.as_str())
}

#[test]
fn paths_are_those_that_are_shown() {
    let pair = Pair::new(|lower| {
        for path in ["d", "d/e", "d/e/below", "gone", "same", "other"] {
            lower.dir(path);
        }
        for path in ["d/a", "d/b", "d/e/deep", "d/e/below/x", "f", "g", "h", "same/x", "gone/y", "other/z"] {
            lower.put(path, &[1; 9000]);
        }
        let linked = lower.put("linked", b"l");
        lower.link(linked, lower.at("d"), name("linked")).unwrap();
    });
    {
        let overlay = pair.open();
        overlay.put("new", b"new");
        overlay.dir("made");
        overlay.put("made/in", b"in");
        overlay.file("f").write_at(&[(0, b"before")]).unwrap();
        overlay.rm("h");
    }
    pair.upper.tree.snapshot(MAIN, "s").unwrap();
    assert_eq!(pair.told("s", MAIN), [""; 0]);
    {
        let overlay = pair.open();
        overlay.mv("d/e", "moved").unwrap();
        overlay.mv("moved/below", "moved/above").unwrap();
        overlay.file("moved/above/x").write_at(&[(0, b"x")]).unwrap();
        overlay.rm("moved/deep");
        overlay.put("moved/fresh", b"");
        overlay.mv("new", "newer").unwrap();
        overlay.mv("made", "kept").unwrap();
        overlay.file("kept/in").write_at(&[(0, b"on")]).unwrap();
        overlay.file("f").write_at(&[(5000, b"after")]).unwrap();
        overlay.rm("g");
        overlay.put("h", b"again");
        overlay.mv("gone/y", "y").unwrap();
        overlay.rmdir(Ino::ROOT, name("gone")).unwrap();
        overlay.rm("d/b");
        overlay.dir("d/b");
        overlay.file("linked").set_len(0).unwrap();
        overlay.setattr(overlay.at("same"), &SetAttr { perm: Some(0o700), ..SetAttr::default() }).unwrap();
        // What is only copied differs in nothing.
        overlay.set_xattr(overlay.at("other/z"), XattrName::new(b"user.a").unwrap(), b"a", XattrSet::Either).unwrap();
        overlay.remove_xattr(overlay.at("other/z"), XattrName::new(b"user.a").unwrap()).unwrap();
        overlay.rename(Ino::ROOT, name("same"), Ino::ROOT, name("other"), RenameFlags::EXCHANGE).unwrap();
        overlay.put("same/in", b"");
    }
    let told = [
        "/d/b directory Added",
        "/d/b file Removed",
        "/d/linked file Content",
        "/f file Content",
        "/g file Removed",
        "/gone directory Removed",
        "/h file Added",
        "/kept directory from /made",
        "/kept/in file Content",
        "/linked file Content",
        "/moved directory from /d/e",
        "/d/e/deep file Removed",
        "/moved/above directory from /d/e/below",
        "/moved/above/x file Content",
        "/moved/fresh file Added",
        "/newer file from /new",
        "/other directory Attributes",
        "/other directory from /same",
        "/same directory from /other",
        "/same/in file Added",
        "/y file from /gone/y",
    ];
    let told: BTreeSet<String> = told.map(str::to_owned).into();
    assert_eq!(pair.told("s", MAIN).into_iter().collect::<BTreeSet<_>>(), told);
    pair.upper.tree.snapshot(MAIN, "t").unwrap();
    assert_eq!(pair.told("s", "t").into_iter().collect::<BTreeSet<_>>(), told);
    assert_eq!(pair.told("t", MAIN), [""; 0]);
    // Back again.
    let back = pair.told("t", "s");
    for line in
        ["/d/b file Added", "/h file Removed", "/new file from /newer", "/made directory from /kept", "/f file Content"]
    {
        assert!(back.iter().any(|told| told == line), "{line}: {back:?}");
    }
}

/// What a name leads to.
#[derive(Clone, PartialEq, Debug)]
struct Facts {
    ino: Ino,
    kind: Kind,
    path: String,
    looks: String,
    ctime: Timestamp,
}

/// All names that a store shows, by directory and name.
fn facts(store: &dyn Store) -> BTreeMap<(Ino, Vec<u8>), Facts> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(Ino::ROOT, String::new())];
    while let Some((dir, above)) = todo.pop() {
        let mut names = Vec::new();
        let listed = store.read_dir(dir, 0, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            ControlFlow::Continue(())
        });
        listed.unwrap();
        for last in names {
            let attr = store.lookup(dir, FileName::new(&last).unwrap()).unwrap();
            let path = format!("{above}/{}", String::from_utf8_lossy(&last));
            let mut xattrs = BTreeMap::new();
            for key in store.xattr_names(attr.ino).unwrap().split(|&b| b == 0).filter(|key| !key.is_empty()) {
                xattrs.insert(key.to_vec(), store.xattr(attr.ino, XattrName::new(key).unwrap()).unwrap());
            }
            let mut content = Vec::new();
            if attr.kind == Kind::File {
                let file = store.open(attr.ino, Access::Read).unwrap();
                content = vec![0; file.len().unwrap() as usize];
                file.read_at(0, &mut content).unwrap();
            }
            let times = (attr.kind != Kind::Directory).then_some((attr.size, attr.mtime));
            let looks =
                format!("{:o} {} {} {} {times:?} {xattrs:?} {content:?}", attr.perm, attr.uid, attr.gid, attr.rdev);
            if attr.kind == Kind::Directory {
                todo.push((attr.ino, path.clone()));
            }
            let facts = Facts { ino: attr.ino, kind: attr.kind, path, looks, ctime: attr.ctime };
            found.insert((dir, last), facts);
        }
    }
    let inodes: BTreeSet<Ino> = found.values().map(|facts| facts.ino).collect();
    inodes.into_iter().for_each(|ino| store.forget(ino));
    found
}

/// Waits for the next tick of the clock that ctimes come from, so that they tell what was changed before from what is after.
fn await_tick() {
    let before = Timestamp::of_tick();
    while Timestamp::of_tick() == before {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Compares what was told with both trees, name by name.
fn check(old: &dyn Store, new: &dyn Store, told: &[Change]) -> Result<(), String> {
    let (old, new) = (facts(old), facts(new));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut left: BTreeSet<String> = told.iter().filter(|change| change.path != b"/").map(line).collect();
    let mut took = |what: String| left.remove(&what);
    let names = |of: &BTreeMap<(Ino, Vec<u8>), Facts>, ino: Ino| of.values().filter(|facts| facts.ino == ino).count();
    let changed =
        |path: &str, kind: Kind| ["Content", "Attributes"].map(|what| format!("{path} {} {what}", kind.as_str()));
    let (mut gone, mut came): (Vec<&Facts>, Vec<&Facts>) = (Vec::new(), Vec::new());
    let mut replaced = BTreeSet::new();
    for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        match (old.get(key), new.get(key)) {
            (Some(a), Some(b)) if a.ino == b.ino => {
                let was_told = changed(&b.path, b.kind).into_iter().filter(|what| took(what.clone())).count() > 0;
                // Only a file can have been written with the bytes that it had. The tick between the states shows that in the ctime.
                if a.looks == b.looks && was_told && (b.kind != Kind::File || a.ctime == b.ctime) {
                    return Err(format!("{} did not change", b.path));
                }
                if a.looks != b.looks && !was_told {
                    return Err(format!("{} changed", b.path));
                }
            }
            (Some(a), Some(b)) if a.kind == b.kind && b.kind != Kind::Directory => {
                if !took(format!("{} {} Content", b.path, b.kind.as_str())) {
                    return Err(format!("{} is another", b.path));
                }
                replaced.insert(a.ino);
            }
            (a, b) => {
                gone.extend(a);
                came.extend(b);
            }
        }
    }
    for b in came {
        let from = told.iter().find_map(|change| match &change.what {
            Changed::Renamed(from) if text(&change.path) == b.path => Some(text(from)),
            _ => None,
        });
        let kind = b.kind.as_str();
        let Some(from) = from else {
            if !took(format!("{} {kind} Added", b.path)) {
                return Err(format!("{} came", b.path));
            }
            // What gave its name to something else is told by that.
            if names(&old, b.ino) == 1 && names(&new, b.ino) == 1 && !replaced.contains(&b.ino) {
                return Err(format!("{} was there before", b.path));
            }
            continue;
        };
        let Some(at) = gone.iter().position(|a| a.path == from && a.ino == b.ino) else {
            return Err(format!("{} was not {from}", b.path));
        };
        let a = gone.swap_remove(at);
        took(format!("{} {kind} from {from}", b.path));
        let was_told = changed(&b.path, b.kind).into_iter().filter(|what| took(what.clone())).count() > 0;
        if a.looks != b.looks && !was_told {
            return Err(format!("{} changed beside", b.path));
        }
    }
    for a in gone {
        if !took(format!("{} {} Removed", a.path, a.kind.as_str())) {
            return Err(format!("{} went", a.path));
        }
    }
    if left.is_empty() { Ok(()) } else { Err(format!("nobody knows of {left:?}")) }
}

/// What the lower has in a directory that goes or comes back, the upper says nothing of; nor does it know the names that the lower
/// has for a file.
#[test]
fn directories_that_come_back_and_names_in_one_that_moved_are_told_all() {
    let pair = Pair::new(|lower| {
        for path in ["d", "d/e", "d/kept", "m", "m/n", "p"] {
            lower.dir(path);
        }
        for path in ["d/a", "d/e/deep", "d/out", "d/kept/k"] {
            lower.put(path, &[1; 9000]);
        }
        let ino = lower.put("m/one", &[1; 9000]);
        for path in ["m/n/two", "p/three", "four"] {
            let (dir, last) = lower.place(path);
            lower.link(ino, dir, last).unwrap();
        }
    });
    {
        let overlay = pair.open();
        overlay.mv("m", "moved").unwrap();
        overlay.rm("four");
    }
    pair.upper.tree.snapshot(MAIN, "s").unwrap();
    {
        let overlay = pair.open();
        overlay.mv("d/out", "out").unwrap();
        overlay.mv("d/kept", "kept").unwrap();
        for path in ["d/a", "d/e/deep"] {
            overlay.rm(path);
        }
        overlay.rmdir(overlay.at("d"), name("e")).unwrap();
        overlay.rmdir(Ino::ROOT, name("d")).unwrap();
        overlay.mv("moved", "again").unwrap();
        overlay.file("again/n/two").write_at(&[(0, b"x")]).unwrap();
    }
    let told = [
        "/again directory from /moved",
        "/again/n/two file Content",
        "/again/one file Content",
        "/d directory Removed",
        "/d/a file Removed",
        "/d/e directory Removed",
        "/d/e/deep file Removed",
        "/kept directory from /d/kept",
        "/out file from /d/out",
        "/p/three file Content",
    ];
    assert_eq!(pair.told("s", MAIN), told);
    let back = [
        "/d directory Added",
        "/d/a file Added",
        "/d/e directory Added",
        "/d/e/deep file Added",
        "/d/kept directory from /kept",
        "/d/out file from /out",
        "/moved directory from /again",
        "/moved/n/two file Content",
        "/moved/one file Content",
        "/p/three file Content",
    ];
    assert_eq!(pair.told(MAIN, "s"), back);
}

/// The upper tells that a copy changed if the count of its names did. That is no change of what they lead to; but other content is,
/// also if it is as long as before and has its time.
#[test]
fn a_name_that_came_is_no_change_of_the_others() {
    let pair = Pair::new(|lower| {
        for path in ["f", "g"] {
            let ino = lower.put(path, &[1; 9000]);
            lower.link(ino, Ino::ROOT, name(&format!("{path}2"))).unwrap();
        }
    });
    {
        let overlay = pair.open();
        for path in ["f", "g"] {
            overlay.mv(path, &format!("{path}3")).unwrap();
            overlay.file(&format!("{path}3")).write_at(&[(0, b"before")]).unwrap();
            overlay.mv(&format!("{path}3"), path).unwrap();
        }
    }
    pair.upper.tree.snapshot(MAIN, "s").unwrap();
    {
        let overlay = pair.open();
        for path in ["f", "g"] {
            overlay.link(overlay.at(path), Ino::ROOT, name(&format!("{path}4"))).unwrap();
        }
        let before = overlay.getattr(overlay.at("g")).unwrap().mtime;
        overlay.file("g").write_at(&[(0, b"behind")]).unwrap();
        let set = SetAttr { mtime: Some(SetTime::At(before)), ..SetAttr::default() };
        overlay.setattr(overlay.at("g"), &set).unwrap();
    }
    assert_eq!(pair.told("s", MAIN), ["/f4 file Added", "/g file Content", "/g2 file Content", "/g4 file Added"]);
}

#[test]
fn what_is_told_is_what_differs() {
    for unit in [700, 9000] {
        let plan = Plan { seeds: 12, ops: 450, limits: limits(unit) };
        fuzz(&plan, |ops| {
            let model = MemoryStore::new(limits(unit));
            let third = ops.len() / 3;
            let below = World::new();
            fill(&below.main(), &model, &ops[..third])?;
            below.tree.snapshot(MAIN, "lower").unwrap();
            let pair = Pair { below, upper: World::new() };
            drop(pair.open());
            run(&|| pair.open(), &model, (third, &ops[third..2 * third]), 60)?;
            pair.upper.tree.snapshot(MAIN, "s").unwrap();
            await_tick();
            run(&|| pair.open(), &model, (2 * third, &ops[2 * third..]), 60)?;
            for (old, new) in [("s", MAIN), (MAIN, "s")] {
                let fail = |what: String| Mismatch { step: ops.len(), what: format!("{old} to {new}: {what}") };
                let told = pair.differences(old, new).map_err(fail)?;
                let (before, now) = (pair.at_snapshot("s"), pair.open());
                let (before, now) = if old == MAIN { (&now, &before) } else { (&before, &now) };
                let lines: Vec<String> = told.iter().map(line).collect();
                check(before, now, &told).map_err(|what| fail(format!("{what}; told: {lines:#?}")))?;
            }
            Ok(())
        });
    }
}
