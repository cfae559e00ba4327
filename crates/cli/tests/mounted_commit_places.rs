//! Where a commit puts its manifest: nobody's is replaced unless that is asked for, the mounted one never; and what a manifest has no place
//! for is told.

#[path = "common/commits.rs"]
mod commits;
mod common;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use commits::World;
use serde_json::{Value, json};

/// The same manifest, mounted at the same place on two machines (two cache directories stand for them), and committed by both.
#[test]
fn commits_of_two_hosts_are_both_there() {
    let Some(w) = World::new("v2025") else { return };
    let mut places = Vec::new();
    for cache in ["one", "two"] {
        w.run(&["mount", "job", "mnt", "--writable", "--cas", "store", "--cache-dir", cache]).expect(0);
        fs::write(w.at("a"), cache).unwrap();
        let told = w.told(&[]);
        assert_eq!(told["manifests"][0]["written"], true, "{told}");
        places.push(told["manifests"][0]["place"].clone());
        // And again: its own is there, whatever the other one did.
        let again = w.told(&[]);
        assert_eq!(again["manifests"], json!([{"place": places.last(), "written": false}]));
        w.umount();
    }
    assert_ne!(places[0], places[1]);
    assert_eq!(w.manifests().len(), 2);
    for (place, content) in places.iter().zip(["one", "two"]) {
        let place = place.as_str().unwrap();
        w.run(&["manifest", "merge", "job", place, "-o", "merged"]).expect(0);
        w.run(&["manifest", "download", "merged", content, "--cas", "store", "--cache-dir", "hashes"]).expect(0);
        assert_eq!(fs::read_to_string(w.bench.path(content).join("a")).unwrap(), content);
    }
}

#[test]
fn another_manifest_in_the_place_stays_unless_it_is_to_be_replaced() {
    let Some(w) = World::new("v2025") else { return };
    w.mount();
    let place = ["--manifest-prefix", "P", "--manifest-name", "n"];
    let there = "store/Manifests/P/n";
    fs::create_dir_all(w.bench.path("store/Manifests/P")).unwrap();
    fs::write(w.bench.path(there), "somebody's").unwrap();
    fs::write(w.at("a"), "edited").unwrap();
    w.commit(&place).expect(1).says("another manifest is there").says("--replace");
    assert_eq!(w.read(there), b"somebody's");
    assert_eq!(w.state("a"), "modified", "its content is in the store: it did not fail");
    let replace = [&place[..], &["--replace"]].concat();
    assert_eq!(w.told(&replace)["manifests"][0]["written"], true);
    let first = w.read(there);
    assert_eq!(w.told(&place)["manifests"][0]["written"], false, "it is there already");
    // Its own of before is another one, too.
    fs::write(w.at("a"), "edited again").unwrap();
    w.commit(&place).expect(1);
    assert!(w.read(there) == first);
    w.commit(&replace).expect(0);
    assert!(w.read(there) != first);
    w.commit(&["--replace"]).expect(2).says("--replace");
    w.umount();
}

/// A link to the store, and to the manifest: the place is the mounted manifest's all the same.
#[test]
fn the_mounted_manifest_is_known_whatever_way_leads_there() {
    let Some(w) = World::new("v2025") else { return };
    let there = "store/Manifests/P/job";
    fs::create_dir_all(w.bench.path("store/Manifests/P")).unwrap();
    fs::copy(w.bench.path("job"), w.bench.path(there)).unwrap();
    symlink("store", w.bench.path("link")).unwrap();
    symlink(there, w.bench.path("elsewhere")).unwrap();
    w.run(&["mount", "elsewhere", "mnt", "--writable", "--cas", "store", "--cache-dir", "cache"]).expect(0);
    fs::write(w.at("a"), "edited").unwrap();
    let place = ["--manifest-prefix", "P", "--manifest-name", "job", "--replace"];
    for cas in ["store", "link"] {
        w.commit(&[&place[..], &["--cas", cas]].concat()).expect(2).says("the manifest that is mounted");
    }
    w.commit(&["-o", "link/Manifests/P/job"]).expect(2).says("itself");
    // A copy of it elsewhere may be the only one soon.
    fs::copy(w.path("store/Manifests/P/job"), w.path("copy")).unwrap();
    let before = fs::read(w.path("copy")).unwrap();
    w.commit(&["-o", "copy"]).expect(2).says("it is the manifest that is mounted");
    assert!(fs::read(w.path("copy")).unwrap() == before);
    assert_eq!(w.read(there), w.read("job"));
    // By default it lies beside the mounted one.
    w.run(&["manifest", "index", there, "--cache-dir", "cache"]).expect(0);
    let place = w.told(&[])["manifests"][0]["place"].as_str().unwrap().to_owned();
    assert!(place.starts_with(&w.bench.str("store/Manifests/P/2")), "{place}");
    w.umount();
}

#[test]
fn what_a_manifest_has_no_place_for_is_told() {
    let Some(w) = World::new("v2023") else { return };
    w.mount();
    let nothing = "nothing that the manifest has a place for was changed: nothing is written";
    fs::create_dir(w.at("made")).unwrap();
    fs::set_permissions(w.at("b"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(w.at("c"), PermissionsExt::from_mode(0o600)).unwrap();
    let words = "not kept: 1 empty folder, 1 exec bit, 1 change of permissions, owners or extended attributes";
    w.commit(&[]).expect(0).says(words).says(nothing);
    let lost = json!({"deletions": 0, "directories": 1, "runnable": 1, "attributes": 1});
    assert_eq!(w.told(&[])["lost"], lost);
    // A folder that has something in it is told with that.
    fs::write(w.at("made/x"), "x").unwrap();
    fs::write(w.at("b"), "edited").unwrap();
    w.commit(&[]).expect(0).says("not kept: 1 exec bit, 1 change").says("2 files");
    w.umount();

    let Some(w) = World::new("v2025") else { return };
    w.mount();
    fs::set_permissions(w.at("c"), PermissionsExt::from_mode(0o600)).unwrap();
    let words = "keeps exec bits alone; not kept: 1 change of permissions, owners or extended attributes";
    w.commit(&[]).expect(0).says(words).says(nothing);
    fs::create_dir(w.at("made")).unwrap();
    w.commit(&[]).expect(0).says("1 folder").says("not kept: 1 change");
    w.umount();
}

/// With `-o -` standard output has the manifest, and nothing else; where else it is, standard error tells.
#[test]
fn standard_output_has_the_manifest_alone() {
    let Some(w) = World::new("v2025") else { return };
    w.mount();
    let none = w.commit(&["-o", "-"]).expect(0).says("nothing was changed: nothing is written");
    assert!(none.stdout.is_empty());
    fs::write(w.at("a"), "edited").unwrap();
    w.commit(&["-o", "file"]).expect(0);
    for _ in 0..2 {
        let ran = w.commit(&["-o", "-"]).expect(0);
        assert_eq!(ran.text().into_bytes(), w.read("file"));
        assert!(!ran.stderr.contains("nothing is written"), "{}", ran.stderr);
        let both = w.commit(&["-o", "-", "--manifest-prefix", "P", "--manifest-name", "n"]).expect(0);
        assert_eq!(both.text().into_bytes(), w.read("file"));
        both.says("Manifests/P/n");
    }
    let dry = w.commit(&["-o", "-", "--dry-run"]).expect(0);
    assert_eq!(dry.text(), "standard output\n");
    let json: Value = w.commit(&["-o", "file", "--json"]).expect(0).json();
    assert_eq!(json["files"], 1);
    w.umount();
}
