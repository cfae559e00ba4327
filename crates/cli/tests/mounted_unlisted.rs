//! Buckets that these credentials may not list: of an object that is missing the store says, as S3 does, that it may not be had. That
//! stops nothing but what needs that object.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/s3.rs"]
mod s3;

use std::fs;

use common::pattern;
use s3::{Bucket, STORE};

const FILES: [(&str, usize); 3] = [("a", 3000), ("b", 5000), ("c", 70_000)];
/// What a message says of an object that may be missing.
const SAYS: &str = "missing, or not allowed";

fn content(name: &str, len: usize) -> Vec<u8> {
    let mut content = pattern(len);
    content[..name.len()].copy_from_slice(name.as_bytes());
    content
}

fn key_of(content: &[u8]) -> String {
    format!("Queue/Data/{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(content))
}

/// A bucket with a manifest and its content, of which some is taken away; then nobody may list it any more.
fn without(mountpoints: &[&str], lacking: &[&str]) -> Option<Bucket> {
    let b = Bucket::new(mountpoints)?;
    for (name, len) in FILES {
        b.write(name, &content(name, len));
    }
    b.snapshot("job", "v2025");
    for (name, len) in FILES.iter().filter(|(name, _)| lacking.contains(name)) {
        assert!(b.server.remove(&key_of(&content(name, *len))));
    }
    b.server.forbid_listing();
    Some(b)
}

/// The first objects are missing, others are there: it is mounted, and what is there is read.
#[test]
fn a_mount_needs_one_object_that_can_be_seen() {
    let Some(b) = without(&["mnt"], &["a", "b"]) else { return };
    b.run(&["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache"]).expect(0);
    assert!(fs::read(b.path("mnt/c")).unwrap() == content("c", 70_000));
    let e = fs::read(b.path("mnt/a")).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EACCES));
    let cat = b.run(&["cat", "--cas", STORE, "--cache-dir", "cache2", "job", "/a"]).expect(1);
    cat.says(SAYS);
    b.run(&["umount", "mnt"]).expect(0);
}

/// An object that lies under the key without suffix is one that can be seen, and it is read.
#[test]
fn objects_under_the_older_key_are_found_without_a_listing() {
    let Some(b) = without(&["mnt"], &["a", "b", "c"]) else { return };
    let one = content("b", 5000);
    let bare = key_of(&one).replace(".xxh128", "");
    b.server.store(&bare, &one);
    b.run(&["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache"]).expect(0);
    assert!(fs::read(b.path("mnt/b")).unwrap() == one);
    b.run(&["umount", "mnt"]).expect(0);
}

/// Where nothing can be seen, nobody can tell good credentials from bad ones; but for a manifest that lies in the store, which was read.
#[test]
fn a_mount_without_anything_to_be_seen_is_refused_unless_its_manifest_was() {
    let Some(b) = without(&["mnt"], &["a", "b", "c"]) else { return };
    let refused = b.run(&["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache"]).expect(1);
    refused.says(SAYS);
    b.server.store("Queue/Manifests/x/job", &fs::read(b.path("job")).unwrap());
    let url = format!("{STORE}/Manifests/x/job");
    b.run(&["mount", &url, "mnt", "--cache-dir", "cache"]).expect(0);
    assert_eq!(fs::read(b.path("mnt/a")).unwrap_err().raw_os_error(), Some(libc::EACCES));
    b.run(&["umount", "mnt"]).expect(0);
}

/// Credentials that are none are told from objects that are missing.
#[test]
fn wrong_credentials_are_said_to_be_wrong() {
    let Some(b) = without(&[], &[]) else { return };
    let mut command = b.command_of(env!("CARGO_BIN_EXE_adit"));
    command.env("AWS_ACCESS_KEY_ID", "nobody").args(["manifest", "verify", "job", "--cas", STORE]);
    let refused = common::run(command, b"").expect(1);
    refused.says("InvalidAccessKeyId");
}

/// `verify` and `download` tell of each object that cannot be had, and do the rest.
#[test]
fn verify_and_download_tell_of_what_may_be_missing_and_go_on() {
    let Some(b) = without(&[], &["a", "b"]) else { return };
    let verified = b.run(&["manifest", "verify", "job", "--cas", STORE]).expect(5);
    assert_eq!(verified.text().matches(SAYS).count(), 2, "{}", verified.text());
    assert!(verified.text().contains("2 problems"), "{}", verified.text());
    let brought = b.run(&["manifest", "download", "job", "dest", "--cas", STORE, "--cache-dir", "cache"]).expect(1);
    brought.says(SAYS);
    assert!(fs::read(b.path("dest/c")).unwrap() == content("c", 70_000));
    assert!(!b.path("dest/a").exists() && !b.path("dest/b").exists());
}

/// What cannot be told to be there is stored; what is there is not sent again.
#[test]
fn an_upload_stores_what_it_cannot_see() {
    let Some(b) = without(&[], &["a", "b"]) else { return };
    let args = ["manifest", "upload", "job", "--root", "work", "--cas", STORE, "--json"];
    let uploaded = b.run(&args).expect(0).json();
    assert_eq!((&uploaded["stored"], &uploaded["present"]), (&2.into(), &1.into()), "{uploaded}");
    for (name, len) in FILES {
        assert!(b.server.bytes(&key_of(&content(name, len))).as_deref() == Some(&content(name, len)[..]));
    }
    let again = b.run(&args).expect(0).json();
    assert_eq!((&again["stored"], &again["present"]), (&0.into(), &3.into()), "{again}");
}

/// A commit into such a bucket is as any other.
#[test]
fn a_commit_stores_what_it_cannot_see() {
    let Some(b) = without(&["mnt"], &[]) else { return };
    b.run(&["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache", "--writable"]).expect(0);
    fs::write(b.path("mnt/new"), b"new").unwrap();
    let dry = b.run(&["manifest", "commit", "mnt", "--dry-run"]).expect(0);
    assert!(b.server.bytes(&key_of(b"new")).is_none(), "{}", dry.stderr);
    b.run(&["manifest", "commit", "mnt"]).expect(0);
    assert_eq!(b.server.bytes(&key_of(b"new")).as_deref(), Some(&b"new"[..]));
    b.run(&["umount", "mnt"]).expect(0);
}
