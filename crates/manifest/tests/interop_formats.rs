//! Both directions with the official job-attachment packages: what either writes, the other reads and writes again byte for byte;
//! hashes, differences and merges are the same. Where they part, `docs/formats/manifest.md` says so.
//!
//! The official packages know version 2023-03-03 alone; a test tells when that changes.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use adit_manifest::format::{
    Body, Content, ContentHash, EntryPath, Format, FormatError, Header, Manifest, PathStyle, Removed, Rule, wtf8,
};
use adit_testkit::{Rng, seeds};
use support::folders::{edit, of_folder, plant};
use support::manifests::{assert_same, file, read, scratch, with, written};
use support::official::{Changes, Official};

/// Entries of a random manifest.
const ENTRIES_COUNT: usize = 10_000;

/// Names that codecs get wrong: order, escapes, case, composition, surrogates. UTF-16 units, as JSON has them.
const HARD_NAMES: [&[u16]; 20] = [
    // U+1F600 and U+FB00: the order of UTF-16 is not that of the characters.
    &[0xd83d, 0xde00],
    &[0xfb00],
    &[0xe000],
    &[0xffff],
    // Surrogates that stand alone, at their borders, and those that stand for bytes.
    &[0xd800],
    &[0xdbff, b'a' as u16],
    &[0xdc00],
    &[0xdc7f],
    &[0xdc80],
    &[0xdcff, b'.' as u16],
    &[0xdfff],
    // The wrong way round, they are two.
    &[0xdc00, 0xd800],
    &[b'"' as u16, b'\\' as u16, b' ' as u16],
    &[0x08, 0x09, 0x0a, 0x0c, 0x0d],
    &[0x01, 0x1f, 0x7f, 0x80, 0xa0],
    &[0x2028, 0x2029, 0xfeff],
    // é in one character and in two.
    &[0xe9],
    &[b'e' as u16, 0x301],
    &[b'A' as u16],
    &[b'a' as u16],
];

/// A folder, and the official packages with it as their home.
fn official() -> Option<(Official, tempfile::TempDir)> {
    let dir = scratch();
    let official = Official::start(dir.path(), None)?;
    Some((official, dir))
}

/// A name in WTF-8 from UTF-16.
fn name(units: &[u16]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for unit in char::decode_utf16(units.iter().copied()) {
        match unit {
            Ok(character) => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(alone) => {
                let point = alone.unpaired_surrogate();
                bytes.extend([0xed, 0x80 | (point >> 6 & 0x3f) as u8, 0x80 | (point & 0x3f) as u8]);
            }
        }
    }
    assert!(wtf8::is_wtf8(&bytes));
    bytes
}

/// A few UTF-16 units of any kind, and a number that makes the name unique.
fn random_name(rng: &mut Rng, number: usize) -> Vec<u8> {
    let mut units: Vec<u16> = (0..1 + rng.below(8))
        .map(|_| match rng.below(4) {
            0 => 0x20 + rng.below(0x5f) as u16,
            1 => 0xd7f0 + rng.below(0x820) as u16,
            _ => 1 + rng.below(0xffff) as u16,
        })
        .filter(|unit| *unit != u16::from(b'/'))
        .collect();
    units.extend(format!("-{number}").encode_utf16());
    name(&units)
}

/// Paths of which none is in another's way.
fn random_paths(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let path = |number: usize| {
        // A folder of its own for each hundred.
        let mut path = random_name(rng, number / 100);
        path.push(b'/');
        path.extend(random_name(rng, number));
        path
    };
    (0..count).map(path).collect()
}

fn random_file(rng: &mut Rng) -> Body<'static> {
    let hash = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
    let (size_bytes, mtime) = (rng.next_u64() >> rng.below(64).max(24), rng.next_u64() >> 12);
    file(ContentHash(hash.to_be_bytes()), size_bytes, mtime as i64)
}

#[test]
fn random_manifests_of_theirs_are_written_again_byte_for_byte() {
    let Some((mut official, _dir)) = official() else {
        return;
    };
    for seed in seeds(3) {
        let theirs = official.random_manifest(seed, ENTRIES_COUNT);
        let manifest = read(&theirs);
        assert!(manifest.entries().count() > ENTRIES_COUNT * 9 / 10, "seed {seed}: few entries");
        assert_same(&written(&manifest), &theirs, &format!("seed {seed}"));
    }
}

#[test]
fn random_manifests_of_ours_are_canonical_to_them() {
    let Some((mut official, _dir)) = official() else {
        return;
    };
    for seed in seeds(3) {
        let mut rng = Rng::new(seed);
        let mut manifest = Manifest::new(Header::snapshot(Format::V2023));
        for path in random_paths(&mut rng, ENTRIES_COUNT) {
            with(&mut manifest, &path, random_file(&mut rng));
        }
        let ours = written(&manifest);
        let theirs = official.recode(&ours).unwrap_or_else(|refused| panic!("seed {seed}: {refused:?}"));
        assert_same(&ours, &theirs, &format!("seed {seed}"));
    }
}

#[test]
fn hard_names_are_the_same_on_both_sides() {
    let Some((mut official, _dir)) = official() else {
        return;
    };
    let mut manifest = Manifest::new(Header::snapshot(Format::V2023));
    for (number, units) in HARD_NAMES.into_iter().enumerate() {
        with(&mut manifest, &name(units), file(ContentHash([number as u8; 16]), number as u64, -1));
        let body = file(ContentHash([0xff; 16]), 1 << 50, 1 << 52);
        with(&mut manifest, &[b"d/".as_slice(), &name(units)].concat(), body);
    }
    let ours = written(&manifest);
    let theirs = official.recode(&ours).unwrap();
    assert_same(&ours, &theirs, "hard names");
    assert_eq!(read(&theirs), manifest);
}

/// The fixtures of a folder: their names, and their texts where these are UTF-8.
fn fixtures(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/manifests").join(folder);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_text = path.extension().is_some_and(|extension| extension == "json");
        if let Some(text) = is_text.then(|| String::from_utf8(fs::read(&path).unwrap()).ok()).flatten() {
            found.push((path.file_stem().unwrap().to_str().unwrap().to_owned(), text));
        }
    }
    found
}

#[test]
fn our_sound_fixtures_have_their_canonical_form_and_those_of_2025_are_unknown_to_them() {
    let Some((mut official, _dir)) = official() else {
        return;
    };
    let (mut same, mut unknown) = (0, 0);
    for (name, text) in fixtures("sound") {
        match official.recode(&text) {
            Ok(theirs) => {
                assert_same(&written(&read(&text)), &theirs, &name);
                assert!(name.starts_with("v2023-"), "they read {name}: compare the versions of 2025 as well");
                same += 1;
            }
            Err(refused) => {
                assert!(!name.starts_with("v2023-"), "{name}: {refused:?}");
                assert_eq!(refused.error, "ManifestDecodeValidationError", "{name}: {refused:?}");
                assert!(refused.message.contains("manifest version") || refused.message.contains("manifestVersion"));
                unknown += 1;
            }
        }
    }
    assert!(same >= 7 && unknown >= 14, "{same} and {unknown} fixtures");
}

/// The rules of which `docs/formats/manifest.md` says that the official decoder does not have them.
fn rules_of_our_own() -> BTreeSet<&'static str> {
    let page = include_str!("../../../docs/formats/manifest.md");
    let (_, list) = page.split_once("The official decoder does not have the rules").expect("the page lists them");
    let (list, _) = list.split_once("What they forbid").expect("and says why");
    list.split('`').skip(1).step_by(2).filter(|name| *name != "NaN").collect()
}

#[test]
fn what_they_read_and_we_refuse_is_by_the_rules_that_the_page_lists() {
    let Some((mut official, _dir)) = official() else {
        return;
    };
    let mut shown = BTreeSet::new();
    for (name, text) in fixtures("broken") {
        let error = Manifest::read(text.as_bytes()).expect_err(&name);
        let rule = FormatError::of(&error).unwrap_or_else(|| panic!("{name}: {error}")).rule;
        if official.recode(&text).is_ok() {
            shown.insert(rule.name());
        }
    }
    assert_eq!(shown, rules_of_our_own());
}

#[test]
fn hashes_are_theirs() {
    let Some((mut official, dir)) = official() else {
        return;
    };
    let folder = dir.path().join("files");
    fs::create_dir(&folder).unwrap();
    for seed in seeds(1) {
        let mut rng = Rng::new(seed);
        // Borders of the algorithm's blocks, and of buffers.
        let borders = [0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025, 8192, 1 << 20];
        let any = (0..60).map(|_| rng.below(100_000)).collect::<Vec<_>>();
        let mut ours = BTreeMap::new();
        for len in borders.into_iter().chain(any) {
            let mut content = vec![0; len as usize];
            rng.fill(&mut content);
            fs::write(folder.join(len.to_string()), &content).unwrap();
            ours.insert(len.to_string(), ContentHash::of(&content).to_string());
        }
        assert_eq!(official.hashes(&folder), ours, "seed {seed}");

        for number in 0..60 {
            let root = format!("/{}", String::from_utf8_lossy(&random_name(&mut rng, number)));
            assert_eq!(
                official.root_hash(&root),
                ContentHash::of(root.as_bytes()).to_string(),
                "seed {seed}: {root:?}"
            );
        }
    }
}

/// A manifest of some of `paths`, with files that now and then are those of `like`, or nearly so.
fn of_some(rng: &mut Rng, paths: &[Vec<u8>], like: Option<&Manifest>) -> Manifest {
    let mut manifest = Manifest::new(Header::snapshot(Format::V2023));
    for (number, path) in paths.iter().enumerate() {
        // At least one.
        if number > 0 && rng.percent(30) {
            continue;
        }
        let before = EntryPath::parse(path, PathStyle::Relative).unwrap();
        let mut body = random_file(rng);
        if let Some(Body::File(before)) = like.and_then(|like| like.get(&before)).filter(|_| rng.percent(80)) {
            let mut near = before.clone();
            match rng.below(4) {
                0 => near.mtime_micros += 1,
                1 => near.mtime_micros += 2 + rng.below(1_000_000) as i64,
                2 => near.content = Content::Whole(ContentHash([7; 16])),
                _ => {}
            }
            body = Body::File(near);
        }
        with(&mut manifest, path, body);
    }
    manifest
}

#[test]
fn merges_are_theirs() {
    let Some((mut official, _dir)) = official() else {
        return;
    };
    for seed in seeds(4) {
        let mut rng = Rng::new(seed);
        let paths = random_paths(&mut rng, 1000);
        let all: Vec<Manifest> = (0..1 + rng.below(4)).map(|_| of_some(&mut rng, &paths, None)).collect();
        let ours = written(&Manifest::merge(&all).unwrap());
        let texts: Vec<String> = all.iter().map(written).collect();
        assert_same(&ours, &official.merge(&texts), &format!("seed {seed}"));
    }
}

/// Of files in each other's way theirs keeps both, which is a tree that nobody can have; ours keeps the last.
#[test]
fn a_merge_of_files_in_each_others_way_is_theirs_and_no_tree() {
    let Some((mut official, _dir)) = official() else {
        return;
    };
    let one = |path: &[u8]| {
        let mut manifest = Manifest::new(Header::snapshot(Format::V2023));
        with(&mut manifest, path, file(ContentHash([1; 16]), 1, 1));
        manifest
    };
    let (below, above) = (one(b"a/b"), one(b"a"));
    let theirs = official.merge(&[written(&below), written(&above)]);
    let error = Manifest::read(theirs.as_bytes()).unwrap_err();
    assert_eq!(FormatError::of(&error).unwrap().rule, Rule::FileAgainstDirectory);
    assert_eq!(Manifest::merge([&below, &above]).unwrap(), above);
    assert_eq!(Manifest::merge([&above, &below]).unwrap(), below);
}

/// Paths in WTF-8.
type Paths = BTreeSet<Vec<u8>>;

/// The paths that a diff has anew or otherwise than before, those that it has with another time or size alone, and those that go.
fn changes(diff: &Manifest, before: &Manifest) -> (Paths, Paths, Paths) {
    let (mut other, mut touched) = (Paths::new(), Paths::new());
    for (path, body) in diff.entries() {
        let is_touched = match (before.get(path), body) {
            (Some(Body::File(before)), Body::File(now)) => before.content == now.content,
            _ => false,
        };
        if is_touched { &mut touched } else { &mut other }.insert(path.as_wtf8().to_vec());
    }
    let gone = diff.deletions().filter(|(_, removed)| *removed == Removed::File);
    (other, touched, gone.map(|(path, _)| path.as_wtf8().to_vec()).collect())
}

/// Their comparison of two manifests looks at hashes alone. Ours has the same, and files whose time or size changed.
#[test]
fn differences_of_manifests_are_theirs_and_changed_times() {
    let Some((mut official, _dir)) = official() else {
        return;
    };
    for seed in seeds(4) {
        let mut rng = Rng::new(seed);
        let paths = random_paths(&mut rng, 1000);
        let before = of_some(&mut rng, &paths, None);
        let now = of_some(&mut rng, &paths, Some(&before));
        let text = written(&before);
        let diff = now.diff(&before, ContentHash::of(text.as_bytes())).unwrap();
        let (other, touched, gone) = changes(&diff, &before);
        assert!(!other.is_empty() && !touched.is_empty() && !gone.is_empty(), "seed {seed}");

        let theirs = official.compare(&text, &written(&now));
        assert_eq!(theirs.deleted, gone, "seed {seed}");
        assert_eq!(theirs.written(), other, "seed {seed}");
        for path in &touched {
            assert!(theirs.unchanged.contains(path), "seed {seed}: {}", String::from_utf8_lossy(path));
        }
    }
}

/// `deadline manifest snapshot`: the manifest's path and its text.
fn snapshot(official: &mut Official, root: &Path, to: &Path) -> (PathBuf, String) {
    fs::create_dir(to).unwrap();
    let (root, folder) = (root.to_str().unwrap(), to.to_str().unwrap());
    let line = ["manifest", "snapshot", "--root", root, "--destination", folder, "--name", "n", "--json"];
    let ran = official.deadline(&line);
    assert_eq!(ran.code, 0, "{}", ran.output);
    let manifest = fs::read_dir(to).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&manifest).unwrap();
    (manifest, text)
}

#[test]
fn random_folders_and_what_changes_in_them_are_the_same_on_both_sides() {
    let Some((mut official, dir)) = official() else {
        return;
    };
    for seed in seeds(3) {
        let mut rng = Rng::new(seed);
        let place = dir.path().join(seed.to_string());
        let root = place.join("tree");
        let files = plant(&mut rng, &root);
        let before = of_folder(&root);
        let (manifest, text) = snapshot(&mut official, &root, &place.join("before"));
        assert_same(&written(&before), &text, &format!("seed {seed}"));
        assert_eq!(read(&text), before, "seed {seed}");

        edit(&mut rng, &files);
        let now = of_folder(&root);
        let (_, text) = snapshot(&mut official, &root, &place.join("now"));
        assert_same(&written(&now), &text, &format!("seed {seed}, edited"));

        let diff = now.diff(&before, ContentHash::of(text.as_bytes())).unwrap();
        let (mut other, touched, gone) = changes(&diff, &before);
        assert!(!touched.is_empty() && !gone.is_empty(), "seed {seed}");
        let Changes { new, modified, deleted, .. } = official.folder_diff(&manifest, &root);
        other.extend(touched);
        assert_eq!(deleted, gone, "seed {seed}");
        assert_eq!(&new | &modified, other, "seed {seed}");
        assert!(new.iter().all(|path| !before.entries().any(|(known, _)| known.as_wtf8() == path)), "seed {seed}");
        fs::remove_dir_all(&place).unwrap();
    }
}
