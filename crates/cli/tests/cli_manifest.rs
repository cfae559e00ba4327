//! `adit manifest snapshot|diff|merge`.

mod common;
#[path = "common/peak.rs"]
mod peak;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use adit_testkit::objects::{FaultyS3, FaultyWebDav, HttpFault, WebDavHabits};
use common::{Bench, Ran, Start, eventually};
use peak::Peak;
use serde_json::Value;

/// A folder `work` with some files.
fn bench() -> Bench {
    let bench = Bench::bare();
    fs::create_dir_all(bench.path("work/sub/empty")).unwrap();
    for (name, text) in [("a", "one"), ("sub/b", "two"), ("sub/tool", "#!/bin/sh\n")] {
        fs::write(bench.path("work").join(name), text).unwrap();
    }
    fs::set_permissions(bench.path("work/sub/tool"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("sub/b", bench.path("work/link")).unwrap();
    bench
}

fn manifest(bench: &Bench, args: &[&str]) -> Ran {
    let cache = bench.str("cache");
    let verb: Vec<&str> = args.iter().take(1).copied().collect();
    let rest = &args[1..];
    let more: &[&str] = if ["merge", "upload"].contains(&verb[0]) { &[] } else { &["--cache-dir", &cache] };
    bench.run(["manifest"].iter().chain(&verb).chain(rest).chain(more))
}

/// `change path` for each difference.
fn changes(ran: Ran) -> Vec<String> {
    let list = ran.expect(0).json();
    let text = |of: &Value, key: &str| of[key].as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(|one| format!("{} {}", text(one, "change"), text(one, "path"))).collect()
}

/// A vault cannot be opened there, and that is said.
#[test]
fn what_a_url_names_has_no_password() {
    let bench = Bench::bare();
    for line in [["ls", "s3://bucket/vault"], ["tree", "davs://host/vault"]] {
        let password = ["--password-file", bench.password_str()];
        bench.run(line.iter().chain(&password)).expect(2).says("only a manifest").says("to open a vault there");
    }
}

#[test]
fn a_snapshot_is_what_the_official_package_writes() {
    let bench = Bench::bare();
    fs::create_dir(bench.path("work")).unwrap();
    for (name, text) in [("é", "x"), ("b", ""), ("z.txt", "zz")] {
        let path = bench.path("work").join(name);
        fs::write(&path, text).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
        File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
    }
    manifest(&bench, &["snapshot", "work", "-o", "m"]).expect(0).says("3 files");
    let expected = concat!(
        r#"{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":["#,
        r#"{"hash":"99aa06d3014798d86001c324468d497f","mtime":1700000000123456,"path":"b","size":0},"#,
        r#"{"hash":"HASH_ZZ","mtime":1700000000123456,"path":"z.txt","size":2},"#,
        r#"{"hash":"HASH_X","mtime":1700000000123456,"path":"\u00e9","size":1}"#,
        r#"],"totalSize":3}"#
    );
    let hash = |text: &[u8]| format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text));
    let expected = expected.replace("HASH_ZZ", &hash(b"zz")).replace("HASH_X", &hash(b"x"));
    assert_eq!(fs::read_to_string(bench.path("m")).unwrap(), expected);
    let printed = manifest(&bench, &["snapshot", "work", "-o", "-"]).expect(0);
    assert_eq!(printed.text(), expected);
    manifest(&bench, &["snapshot", "work", "-o", "-", "--json"]).expect(2).says("both");
    let told = manifest(&bench, &["snapshot", "work", "-o", "m", "--json"]).expect(0).json();
    assert_eq!((&told["files"], &told["size"], &told["known_files"]), (&3.into(), &3.into(), &0.into()));
    assert_eq!(told["hash"], hash(expected.as_bytes()));
}

#[test]
fn what_a_version_cannot_hold_is_told() {
    let bench = bench();
    let lost = manifest(&bench, &["snapshot", "work", "-o", "m"])
        .expect(0)
        .says("4 files")
        .says("not kept: 1 empty folder, 1 exec bit; links that were followed: 1");
    assert!(lost.text().is_empty());
    manifest(&bench, &["snapshot", "work", "-o", "m", "--format", "v2025"])
        .expect(0)
        .says("3 files, 2 folders, 1 link");
    let told = manifest(&bench, &["snapshot", "work", "-o", "m", "--json"]).expect(0).json();
    assert_eq!((&told["lost"]["directories"], &told["followed"]), (&1.into(), &1.into()));
    // What is not asked for is not missed.
    let part = ["snapshot", "work", "-o", "m", "--include", "a"];
    assert!(!manifest(&bench, &part).expect(0).stderr.contains("not kept"));
    symlink("/etc/passwd", bench.path("work/out")).unwrap();
    let told = manifest(&bench, &["snapshot", "work", "-o", "m", "--format", "v2025", "--json"]);
    let told = told.expect(0).says("/out").json();
    assert_eq!((told["left_out"][0]["path"].as_str(), &told["symlinks"]), (Some("/out"), &1.into()));
}

#[test]
fn what_cannot_be_read_writes_nothing() {
    let bench = bench();
    // A path that is as long as a manifest's may be, and one name more.
    let deep: std::path::PathBuf = std::iter::repeat_n("d", 513).collect();
    fs::create_dir_all(bench.path("deep").join(deep)).unwrap();
    manifest(&bench, &["snapshot", "deep", "-o", "m", "--format", "v2025"]).expect(10).says("512");
    assert!(!bench.path("m").exists());
    // A link to a folder gives a file's name things below it.
    fs::create_dir(bench.path("empty")).unwrap();
    manifest(&bench, &["snapshot", "empty", "-o", "m"]).expect(10).says("--format v2025");
    assert!(!bench.path("m").exists());
    manifest(&bench, &["snapshot", "none", "-o", "m"]).expect(1).says("none");
    manifest(&bench, &["snapshot", "work", "-o", "no/m"]).expect(1).says("no/m");
    manifest(&bench, &["snapshot", "work", "-o", "m", "--include", "a[b"]).expect(2).says("a[b");
    manifest(&bench, &["snapshot", "work", "-o", "m", "--path", "/a"]).expect(1).says("/a");
    assert!(!bench.path("m").exists());
}

/// A slip of the hand costs no file, and none is put together wrongly.
#[test]
fn outputs_and_inputs_that_cannot_be_meant_are_refused() {
    let bench = bench();
    manifest(&bench, &["snapshot", "work", "-o", "before", "--format", "v2025"]).expect(0);
    for output in ["work/a", "work/sub/tool"] {
        let kept = fs::read(bench.path(output)).unwrap();
        for verb in [&["snapshot", "work"][..], &["merge", "before"], &["diff", "before", "work"]] {
            let refused = manifest(&bench, &[verb, &["-o", output]].concat()).expect(2);
            refused.says(output).says("it is no manifest, and would be replaced");
        }
        assert_eq!(fs::read(bench.path(output)).unwrap(), kept);
    }
    // An empty file is one that was made for it.
    fs::write(bench.path("changes"), "").unwrap();
    fs::write(bench.path("work/a"), "other").unwrap();
    fs::remove_file(bench.path("work/sub/b")).unwrap();
    manifest(&bench, &["snapshot", "work", "-o", "changes", "--parent", "before"]).expect(0);
    manifest(&bench, &["snapshot", "work", "-o", "changes", "--parent", "before"]).expect(0);
    // On top of its own changes a manifest would take them back.
    manifest(&bench, &["merge", "changes", "before", "-o", "m"]).expect(2).says("changes").says("the oldest first");
    // The same manifest in other bytes is the same one, which a diff names by its canonical form.
    let text: Value = serde_json::from_slice(&fs::read(bench.path("before")).unwrap()).unwrap();
    fs::write(bench.path("loose"), serde_json::to_vec_pretty(&text).unwrap()).unwrap();
    manifest(&bench, &["merge", "changes", "loose", "-o", "m"]).expect(2).says("changes").says("the oldest first");
    manifest(&bench, &["merge", "loose", "changes", "-o", "of-loose"]).expect(0);
    manifest(&bench, &["merge", "before", "changes", "-o", "of-canonical"]).expect(0);
    assert_eq!(fs::read(bench.path("of-loose")).unwrap(), fs::read(bench.path("of-canonical")).unwrap());
    for verb in [&["snapshot", "work", "--parent", "loose"][..], &["diff", "loose", "work"]] {
        manifest(&bench, &[verb, &["-o", "of-its-bytes"]].concat()).expect(0);
        let named = |file: &str| -> Value { serde_json::from_slice(&fs::read(bench.path(file)).unwrap()).unwrap() };
        assert_eq!(named("of-its-bytes")["parentManifestHash"], named("changes")["parentManifestHash"]);
    }
    manifest(&bench, &["merge", "before", "changes", "-o", "m"]).expect(0);
    // A diff is no tree to compare.
    for verb in [&["diff", "before", "changes"][..], &["snapshot", "work", "-o", "n", "--parent", "changes"]] {
        manifest(&bench, verb).expect(2).says("changes: it tells only what changed").says("merge");
    }
    assert!(!bench.path("n").exists());
}

/// As an archive is not taken into itself.
#[test]
fn what_the_command_itself_writes_is_no_part_of_a_snapshot() {
    let bench = bench();
    fs::create_dir(bench.path("work/store")).unwrap();
    let taken = || {
        let args = ["snapshot", "work", "-o", "work/sub/[own]", "--cas", "work/store", "--format", "v2025", "--json"];
        manifest(&bench, &args).expect(0).json()["files"].clone()
    };
    assert_eq!((taken(), taken()), (3.into(), 3.into()));
    assert_ne!(fs::read_dir(bench.path("work/store")).unwrap().count(), 0);
    // Another one is.
    let args = ["snapshot", "work", "-o", "m", "--include", "sub", "--json"];
    assert_eq!(manifest(&bench, &args).expect(0).json()["files"], 3);
}

#[test]
fn patterns_that_fit_nothing_are_told() {
    let bench = bench();
    let none = ["snapshot", "work", "-o", "m", "--include", "*.exr"];
    manifest(&bench, &none).expect(10).says("nothing in it fits").says("**/");
    manifest(&bench, &[&none[..], &["--format", "v2025"]].concat()).expect(0).says("nothing in it fits");
    // What the parent could not hold is not said to be the version's fault that is written.
    manifest(&bench, &["snapshot", "work", "-o", "old"]).expect(0);
    let said = manifest(&bench, &["snapshot", "work", "-o", "changes", "--parent", "old"]).expect(0);
    said.says("the parent is v2023");
}

#[test]
fn an_upload_takes_the_patterns_of_a_snapshot() {
    let bench = bench();
    fs::create_dir(bench.path("store")).unwrap();
    manifest(&bench, &["snapshot", "work", "-o", "m", "--format", "v2025"]).expect(0);
    let upload = |more: &[&str]| {
        let args = ["upload", "m", "--root", "work", "--cas", "store", "--json"];
        manifest(&bench, &[&args[..], more].concat())
    };
    upload(&["--include", "a[b"]).expect(2).says("a[b");
    // The manifest is stored with all of its content, or not at all.
    upload(&["--include", "sub", "--manifest-prefix", "p"]).expect(2).says("--manifest-prefix");
    let none = upload(&["--include", "*.exr"]).expect(0).says("nothing in it fits");
    assert_eq!(none.json()["stored"], 0);
    let some = upload(&["--include", "sub", "--exclude", "sub/tool"]).expect(0).json();
    let all = upload(&[]).expect(0).json();
    assert_eq!((&some["stored"], &some["present"], &all["present"]), (&1.into(), &0.into(), &1.into()), "{all}");
    assert_eq!(all["stored"], 2);
}

#[test]
fn differences_are_listed_and_written_and_merged() {
    let bench = bench();
    manifest(&bench, &["snapshot", "work", "-o", "before", "--format", "v2025"]).expect(0);
    assert_eq!(changes(manifest(&bench, &["diff", "before", "work", "--json"])), [""; 0]);
    fs::write(bench.path("work/a"), "other").unwrap();
    fs::write(bench.path("work/new"), "").unwrap();
    fs::remove_file(bench.path("work/sub/b")).unwrap();
    fs::remove_dir(bench.path("work/sub/empty")).unwrap();
    fs::set_permissions(bench.path("work/sub/tool"), PermissionsExt::from_mode(0o644)).unwrap();
    let expected = ["changed /a", "added /new", "removed /sub/b", "removed /sub/empty", "attributes /sub/tool"];
    assert_eq!(changes(manifest(&bench, &["diff", "before", "work", "--json"])), expected);
    manifest(&bench, &["snapshot", "work", "-o", "after", "--format", "v2025"]).expect(0);
    assert_eq!(changes(manifest(&bench, &["diff", "before", "after", "--json"])), expected);
    let lines = manifest(&bench, &["diff", "before", "after", "-o", "changes"]).expect(0).text();
    assert!(lines.contains("removed  /sub/empty/\n") && lines.contains("changed  /a\n"), "{lines}");
    // The same diff, made in one step.
    manifest(&bench, &["snapshot", "work", "-o", "made", "--parent", "before"]).expect(0).says("2 deletions");
    assert_eq!(fs::read(bench.path("made")).unwrap(), fs::read(bench.path("changes")).unwrap());
    manifest(&bench, &["merge", "before", "changes", "-o", "merged"]).expect(0);
    assert_eq!(fs::read(bench.path("merged")).unwrap(), fs::read(bench.path("after")).unwrap());
    // A diff of something else, and in the wrong order.
    manifest(&bench, &["merge", "after", "changes", "-o", "wrong"]).expect(2).says("a diff of another manifest");
    assert!(!bench.path("wrong").exists());
    // A chain: the second diff is of what the first one leads to.
    fs::write(bench.path("work/third"), "3").unwrap();
    manifest(&bench, &["snapshot", "work", "-o", "more", "--parent", "after"]).expect(0);
    manifest(&bench, &["snapshot", "work", "-o", "end", "--format", "v2025"]).expect(0);
    manifest(&bench, &["merge", "before", "changes", "more", "-o", "merged"]).expect(0);
    assert_eq!(fs::read(bench.path("merged")).unwrap(), fs::read(bench.path("end")).unwrap());
}

#[test]
fn a_manifest_of_2023_is_compared_in_what_it_has() {
    let bench = bench();
    manifest(&bench, &["snapshot", "work", "-o", "before"]).expect(0);
    assert_eq!(changes(manifest(&bench, &["diff", "before", "work", "--json"])), [""; 0]);
    fs::write(bench.path("work/sub/b"), "more").unwrap();
    // Also under the name of the link to it.
    assert_eq!(changes(manifest(&bench, &["diff", "before", "work", "--json"])), ["changed /link", "changed /sub/b"]);
    manifest(&bench, &["snapshot", "work", "-o", "d", "--parent", "before"]).expect(0).says("2 files");
    manifest(&bench, &["snapshot", "work", "-o", "d", "--parent", "before", "--format", "v2023"]).expect(2);
    fs::remove_dir_all(bench.path("work")).unwrap();
    fs::create_dir(bench.path("work")).unwrap();
    let gone = ["removed /a", "removed /link", "removed /sub/b", "removed /sub/tool"];
    assert_eq!(changes(manifest(&bench, &["diff", "before", "work", "--json"])), gone);
}

#[test]
fn manifests_of_both_versions_are_compared_in_what_both_can_hold() {
    let bench = bench();
    manifest(&bench, &["snapshot", "work", "-o", "old"]).expect(0);
    manifest(&bench, &["snapshot", "work", "-o", "new", "--format", "v2025"]).expect(0);
    let ran = manifest(&bench, &["diff", "old", "new", "--json"]).expect(0).says("one of both is v2023");
    assert_eq!(changes(ran), [""; 0]);
    assert!(manifest(&bench, &["diff", "new", "new", "--json"]).expect(0).stderr.is_empty());
}

#[test]
fn a_store_that_is_none_is_told_before_the_work() {
    let bench = bench();
    manifest(&bench, &["snapshot", "work", "-o", "m", "--cas", "none"]).expect(1).says("none");
    let nobody = ["--cas", "s3://bucket/x", "--endpoint-url", "http://127.0.0.1:9", "--no-sign-request"];
    let line = ["snapshot", "work", "-o", "m", "--request-timeout", "1s", "--json"];
    manifest(&bench, &[&line[..], &nobody].concat()).expect(9).says("s3://bucket/x");
    assert!(!bench.path("m").exists() && !bench.path("cache").exists(), "nothing was hashed");
    manifest(&bench, &[&["snapshot", "work", "-o", "m", "--request-timeout", "0"], &nobody[..]].concat())
        .expect(2)
        .says("no time");
    manifest(&bench, &["snapshot", "work", "-o", "m"]).expect(0);
    fs::create_dir(bench.path("empty")).unwrap();
    manifest(&bench, &["download", "m", "dest", "--cas", "empty"]).expect(1).says("no folder Data");
    assert!(!bench.path("dest").exists());
    // To be written to, it is a store.
    manifest(&bench, &["upload", "m", "--root", "work", "--cas", "empty"]).expect(0);
    manifest(&bench, &["download", "m", "dest", "--cas", "empty"]).expect(0);
    let only: &[&str] = &["verify", "m", "--cas", "empty", "--strict"];
    manifest(&bench, only).expect(2).says("--strict");
}

#[test]
fn a_server_on_webdav_is_a_store() {
    let bench = bench();
    let server = FaultyWebDav::start().unwrap();
    let cas = server.url();
    let run = |line: &[&str]| manifest(&bench, &[line, &["--cas", &cas]].concat());
    manifest(&bench, &["snapshot", "work", "-o", "m"]).expect(0);
    run(&["download", "m", "dest"]).expect(1).says("not a store");
    run(&["upload", "m", "--root", "work", "--manifest-prefix", "me"]).expect(0);
    let stored = server.files();
    assert!(stored.iter().any(|path| path.starts_with("root/Data/")), "{stored:?}");
    assert!(stored.iter().any(|path| path.starts_with("root/Manifests/me/")), "{stored:?}");
    run(&["verify", "m"]).expect(0);
    run(&["download", "m", "dest"]).expect(0);
    for name in ["a", "sub/b", "sub/tool"] {
        assert_eq!(fs::read(bench.path("dest").join(name)).unwrap(), fs::read(bench.path("work").join(name)).unwrap());
    }
    // The manifest itself, at its URL.
    let name = stored.iter().find(|path| path.contains("/Manifests/")).unwrap();
    let url = format!("{}{}", cas, name.strip_prefix("root").unwrap());
    manifest(&bench, &["diff", &url, "work"]).expect(0);

    let gone = ["verify", "m", "--cas", "dav://127.0.0.1:1/x", "--request-timeout", "100ms"];
    manifest(&bench, &gone).expect(9).says("dav://127.0.0.1:1/x");
    let other = format!("{cas}/nowhere");
    manifest(&bench, &["snapshot", "work", "-o", "n", "--cas", &other]).expect(1).says("there is no such collection");
}

#[test]
fn secrets_of_a_server_on_webdav_are_neither_typed_nor_shown() {
    let bench = bench();
    manifest(&bench, &["snapshot", "work", "-o", "m"]).expect(0);
    for url in ["dav://me:secret@127.0.0.1:9/x", "davs://secret@host/x"] {
        for line in [
            &["verify", "m", "--cas", url][..],
            &["upload", "m", "--root", "work", "--cas", url],
            &["download", "m", "dest", "--cas", url],
            &["diff", &format!("{url}/Manifests/m"), "work"],
            &["download", &format!("{url}/Manifests/m/"), "dest"],
        ] {
            let ran = manifest(&bench, line).expect(2).says("--webdav-password-file");
            assert!(!ran.stderr.contains("secret") && !ran.text().contains("secret"), "{line:?}: {}", ran.stderr);
        }
    }
    let mut command = bench.command();
    command.env("ADIT_WEBDAV_USER", "me").env("ADIT_WEBDAV_PASSWORD", "secret");
    command.args(["manifest", "verify", "m", "--cas", "dav://example.org/x", "--cache-dir", &bench.str("cache")]);
    let ran = common::run(command, b"").expect(2).says("in the clear");
    assert!(!ran.stderr.contains("secret"), "{}", ran.stderr);
    fs::write(bench.path("password"), "secret\n").unwrap();
    let server = FaultyWebDav::start().unwrap();
    server.set_habits(WebDavHabits { authorization: Some("Basic bWU6c2VjcmV0"), ..WebDavHabits::default() });
    let (cas, password) = (server.url(), bench.str("password"));
    let upload = ["upload", "m", "--root", "work", "--cas", &cas];
    manifest(&bench, &upload).expect(1).says("401").says("ADIT_WEBDAV_USER");
    let who = ["--webdav-user", "me", "--webdav-password-file", &password];
    manifest(&bench, &[&upload[..], &who].concat()).expect(0);
}

#[test]
fn who_has_to_log_in_is_told_how() {
    let bench = bench();
    manifest(&bench, &["snapshot", "work", "-o", "m"]).expect(0);
    let profile = "[profile farm]\nsso_session = s\nsso_account_id = 123456789012\nsso_role_name = Artist\n";
    let session = "[sso-session s]\nsso_start_url = https://example.awsapps.com/start\nsso_region = us-west-2\n";
    fs::write(bench.path("config"), format!("{profile}{session}")).unwrap();
    for line in [&["verify", "m"][..], &["upload", "m", "--root", "work"], &["download", "m", "dest"]] {
        let mut command = bench.command();
        command.env("HOME", bench.path("home")).env("AWS_CONFIG_FILE", bench.path("config"));
        command.env("AWS_SHARED_CREDENTIALS_FILE", bench.path("none"));
        // Nobody listens there, and nothing is sent.
        command.arg("manifest").args(line).args(["--cas", "s3://bucket/Queue", "--endpoint-url", "http://127.0.0.1:9"]);
        command.args(["--profile", "farm"]);
        common::run(command, b"").expect(1).says("run `aws sso login --profile farm`");
    }
}

#[test]
fn who_has_the_credentials_and_does_not_answer_is_the_network() {
    let bench = bench();
    manifest(&bench, &["snapshot", "work", "-o", "m"]).expect(0);
    let profile = "[profile farm]\nrole_arn = arn:aws:iam::123456789012:role/a\nsource_profile = keys\n";
    let keys = "[profile keys]\naws_access_key_id = access\naws_secret_access_key = secret\n";
    fs::write(bench.path("config"), format!("{profile}{keys}")).unwrap();
    for line in [&["verify", "m"][..], &["upload", "m", "--root", "work"], &["download", "m", "dest"]] {
        let mut command = bench.command();
        command.env("HOME", bench.path("home")).env("AWS_CONFIG_FILE", bench.path("config"));
        command.env("AWS_SHARED_CREDENTIALS_FILE", bench.path("none")).env("AWS_MAX_ATTEMPTS", "1");
        command.env("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1");
        command.arg("manifest").args(line).args(["--cas", "s3://bucket/Queue", "--endpoint-url", "http://127.0.0.1:9"]);
        command.args(["--profile", "farm"]);
        common::run(command, b"")
            .expect(9)
            .says("has the credentials does not answer")
            .says("the role of profile farm");
    }
}

/// An object that is archived, or whose key is disabled, says nothing of others.
#[test]
fn objects_that_do_not_come_are_told_with_the_others() {
    let bench = bench();
    let server = FaultyS3::start().unwrap();
    let run = |line: &[&str]| {
        let mut command = bench.command();
        command.env("AWS_ACCESS_KEY_ID", "access").env("AWS_SECRET_ACCESS_KEY", "secret").env("AWS_MAX_ATTEMPTS", "1");
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_ENDPOINT_URL", server.endpoint());
        command.arg("manifest").args(line).args(["--cas", "s3://bucket/Queue"]);
        common::run(command, b"")
    };
    run(&["snapshot", "work", "-o", "m", "--cache-dir", "cache"]).expect(0);
    let key = |text: &[u8]| format!("Queue/Data/{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(text));
    assert!(server.remove(&key(b"two")));
    for (status, code) in [(403, "InvalidObjectState"), (400, "KMS.DisabledException")] {
        server.clear();
        server.add(HttpFault::Status(status, code), "GET", &key(b"one"), 0, u64::MAX);
        let told = run(&["verify", "m", "--json"]).expect(5).json();
        let paths: Vec<_> = told["problems"].as_array().unwrap().iter().map(|one| one["path"].as_str()).collect();
        // What the link leads to is in the manifest twice.
        assert_eq!(paths, [Some("/a"), Some("/link"), Some("/sub/b")], "{code}");
        assert!(told["problems"][0]["detail"].as_str().unwrap().contains(code), "{told}");
        let told = run(&["verify", "--json"]).expect(5).json();
        assert_eq!((told["objects"].as_u64(), told["problems"].as_array().unwrap().len()), (Some(2), 1), "{code}");
        // What is missing is stored, and what cannot be compared is told.
        let ran = run(&["upload", "m", "--root", "work", "--verify"]).expect(5).says(code).says("a: ");
        assert!(server.remove(&key(b"two")), "{}", ran.stderr);
    }
}

#[test]
fn hashes_are_kept_for_files_that_were_left_alone() {
    let bench = bench();
    let known = |args: &[&str]| {
        let all = [&["snapshot", "work", "-o", "m", "--json"], args].concat();
        manifest(&bench, &all).expect(0).json()["known_files"].as_u64().unwrap()
    };
    let touch = |at| {
        for name in ["a", "sub/b", "sub/tool"] {
            File::options().write(true).open(bench.path("work").join(name)).unwrap().set_modified(at).unwrap();
        }
    };
    // They stay written a moment ago, however slow the machine is.
    touch(SystemTime::now() + Duration::from_secs(3600));
    assert_eq!(known(&[]), 0);
    assert_eq!(known(&[]), 0, "nobody can tell whether they were written since");
    touch(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    std::thread::sleep(Duration::from_millis(3500));
    assert_eq!(known(&[]), 0);
    assert_eq!(known(&[]), 4);
    assert_eq!(known(&["--rehash"]), 0);
    fs::write(bench.path("work/a"), "two").unwrap();
    assert_eq!(known(&[]), 3);
    // Damage of the cache costs time only.
    fs::write(bench.path("cache/hashes.redb"), vec![1; 10_000]).unwrap();
    assert_eq!(known(&[]), 0);
    assert!(known(&[]) > 0);
}

#[test]
fn any_source_has_a_manifest() {
    let bench = bench();
    bench.run(["volume", "init", "box.adit"]).expect(0);
    bench.run(["put", "box.adit", "work", "/"]).expect(0);
    bench.run(["snapshot", "create", "box.adit", "monday"]).expect(0);
    bench.run(["rm", "-ry", "box.adit", "/work/sub"]).expect(0);
    manifest(&bench, &["snapshot", "work", "-o", "host", "--format", "v2025"]).expect(0);
    let path = "/.snapshots/monday/work";
    manifest(&bench, &["snapshot", "box.adit", "--path", path, "-o", "monday", "--format", "v2025"]).expect(0);
    assert_eq!(fs::read(bench.path("monday")).unwrap(), fs::read(bench.path("host")).unwrap());
    manifest(&bench, &["snapshot", "box.adit", "--path", "/work", "-o", "now", "--format", "v2025"]).expect(0);
    assert_eq!(
        changes(manifest(&bench, &["diff", "monday", "now", "--json"])),
        ["removed /sub", "removed /sub/b", "removed /sub/empty", "removed /sub/tool"]
    );
    // A manifest as a source has its content from a store.
    manifest(&bench, &["snapshot", "monday", "-o", "x"]).expect(1).says("--cas");
    assert!(!bench.path("x").exists());
    manifest(&bench, &["upload", "monday", "--root", "work", "--cas", "store"]).expect(1).says("store");
    fs::create_dir(bench.path("store")).unwrap();
    manifest(&bench, &["upload", "monday", "--root", "work"]).expect(2).says("--cas");
    manifest(&bench, &["upload", "monday", "--root", "work", "--cas", "store"]).expect(0).says("3 objects stored");
    manifest(&bench, &["snapshot", "monday", "-o", "x", "--cas", "store", "--format", "v2025"]).expect(0);
    assert_eq!(changes(manifest(&bench, &["diff", "monday", "x", "--json"])), [""; 0]);
    // Nobody answers there, and a name is no bucket.
    let endpoint = ["--endpoint-url", "http://127.0.0.1:9", "--no-sign-request", "--request-timeout", "1s"];
    manifest(&bench, &[&["diff", "s3://bucket/m", "work"], &endpoint[..]].concat()).expect(9).says("s3://bucket/m");
    manifest(&bench, &["diff", "s3://b/m", "work"]).expect(2).says("bucket");
}

#[test]
fn what_is_read_is_never_written_over_and_devices_are_not_replaced() {
    let bench = bench();
    bench.run(["volume", "init", "box.adit"]).expect(0);
    bench.run(["put", "box.adit", "work", "/"]).expect(0);
    let before = fs::read(bench.path("box.adit")).unwrap();
    manifest(&bench, &["snapshot", "box.adit", "-o", "box.adit"]).expect(2).says("itself");
    manifest(&bench, &["snapshot", "work", "-o", "box.adit"]).expect(2).says("a volume");
    assert!(fs::read(bench.path("box.adit")).unwrap() == before);
    manifest(&bench, &["snapshot", "work", "-o", "one"]).expect(0);
    fs::hard_link(bench.path("one"), bench.path("same")).unwrap();
    for args in [&["merge", "one", "-o", "same"][..], &["diff", "one", "work", "-o", "same"]] {
        manifest(&bench, args).expect(2).says("itself");
    }
    // A link stays, and what it leads to is replaced; a device is written to.
    symlink("one", bench.path("link")).unwrap();
    fs::write(bench.path("work/more"), "more").unwrap();
    manifest(&bench, &["snapshot", "work", "-o", "link"]).expect(0).says("5 files");
    assert!(bench.path("link").is_symlink() && fs::read_to_string(bench.path("one")).unwrap().contains("more"));
    symlink("/dev/null", bench.path("null")).unwrap();
    manifest(&bench, &["snapshot", "work", "-o", "null"]).expect(0);
    assert!(bench.path("null").is_symlink());
    manifest(&bench, &["snapshot", "work", "-o", "work"]).expect(1).says("is a folder");
}

#[test]
fn manifests_of_any_length_are_known_and_broken_ones_say_what_to_do() {
    let bench = Bench::bare();
    fs::create_dir(bench.path("work")).unwrap();
    for n in 0..200 {
        fs::write(bench.path(&format!("work/file-{n}")), "").unwrap();
    }
    manifest(&bench, &["snapshot", "work", "-o", "m", "--format", "v2025"]).expect(0);
    assert_eq!(changes(manifest(&bench, &["diff", "m", "work", "--json"])), [""; 0]);
    fs::write(bench.path("bad"), r#"{"manifestVersion":"2023-03-03","hashAlg":"xxh128","paths":[]}"#).unwrap();
    let said = manifest(&bench, &["merge", "bad", "-o", "x"]).expect(4).says("get it again");
    assert!(!said.text().contains("vault check"));
    // One that was cut off anywhere, or has lost all of it, is a broken manifest, and no unknown source.
    let whole = fs::read(bench.path("m")).unwrap();
    for cut in [0, 5, 20, whole.len() / 2, whole.len() - 1] {
        fs::write(bench.path("cut"), &whole[..cut]).unwrap();
        for line in
            [&["merge", "cut", "-o", "x"][..], &["diff", "cut", "m"], &["diff", "work", "cut"], &["index", "cut"]]
        {
            manifest(&bench, line).expect(4).says("cut: ");
        }
        fs::write(bench.path("cut.json"), &whole[..cut]).unwrap();
        bench.run(["ls", "cut.json", "--cas", "work"]).expect(4).says("cut.json: ");
    }
}

/// A wrong bucket, prefix or key is told once, and not for each object; and before anything is made.
#[test]
fn a_store_of_something_else_is_told_once() {
    let bench = bench();
    let server = FaultyS3::start().unwrap();
    let run = |args: &[&str], key: &str| {
        let mut command = bench.command();
        command.env("AWS_ACCESS_KEY_ID", key).env("AWS_SECRET_ACCESS_KEY", "secret").env("AWS_MAX_ATTEMPTS", "1");
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_ENDPOINT_URL", server.endpoint());
        command.args(args).args(["--request-timeout", "1s"]);
        common::run(command, b"")
    };
    let cas = format!("s3://{}/Queue", server.bucket());
    manifest(&bench, &["snapshot", "work", "-o", "m"]).expect(0);
    let upload = ["manifest", "upload", "m", "--root", "work", "--cas"];
    run(&[&upload[..], &[&cas]].concat(), "access").expect(0);
    let other_prefix = format!("s3://{}/Other", server.bucket());
    let download = ["manifest", "download", "m", "dest", "--cas"];
    let verify = ["manifest", "verify", "m", "--cas"];
    let whole = ["manifest", "verify", "--cas"];
    run(&[&whole[..], &[&cas]].concat(), "access").expect(0);
    let (gone, no_bucket) = (&*cas, "s3://another/Queue");
    let told = [
        (&download[..], &*other_prefix, "access", 1, "no object below Data/"),
        (&verify, &other_prefix, "access", 1, "no object below Data/"),
        (&download, no_bucket, "access", 1, "bucket"),
        (&verify, no_bucket, "access", 1, "bucket"),
        (&upload, no_bucket, "access", 1, "bucket"),
        (&download, &cas, "nobody", 1, "credentials"),
        (&verify, &cas, "nobody", 1, "credentials"),
        (&upload, &cas, "nobody", 1, "credentials"),
        (&whole, &other_prefix, "access", 1, "no object below Data/"),
        (&whole, no_bucket, "access", 1, "bucket"),
        (&whole, &cas, "nobody", 1, "credentials"),
    ];
    let once = |line: &[&str], cas: &str, key: &str, code: i32, why: &str| {
        let ran = run(&[line, &[cas]].concat(), key).expect(code).says(why);
        let lines = ran.stderr.lines().filter(|line| line.starts_with("adit: ")).count();
        assert_eq!(lines, 1, "{line:?} {cas}: {}", ran.stderr);
        assert!(!ran.stderr.contains("vault"), "{}", ran.stderr);
        assert!(ran.stdout.is_empty() && !bench.path("dest").exists());
    };
    told.iter().for_each(|(line, cas, key, code, why)| once(line, cas, key, *code, why));
    run(&["manifest", "verify", &format!("{cas}/Manifests/none"), "--cas", &cas], "access").expect(1).says("none");
    server.go_down();
    [&download[..], &verify, &upload, &whole].iter().for_each(|line| once(line, gone, "access", 9, "s3://"));
}

/// What is wrong with a place in the store or on the disk is told with what to do about it.
#[test]
fn places_that_cannot_be_are_told_with_what_to_do() {
    let bench = bench();
    fs::create_dir(bench.path("store")).unwrap();
    manifest(&bench, &["snapshot", "work", "-o", "m", "--cas", "store"]).expect(0);
    let upload = ["upload", "m", "--root", "work", "--cas", "store", "--manifest-prefix"];
    for prefix in ["../..", "a//b", "."] {
        let ran = manifest(&bench, &[&upload[..], &[prefix]].concat()).expect(2);
        ran.says(&format!("Manifests/{prefix}/m: cannot be the key of a manifest: a part")).says("farm-1/queue-1");
    }
    fs::write(bench.path("file"), "").unwrap();
    bench.run(["ls", "m", "--cas", "store", "--cache-dir", "file/x"]).expect(1).says("--cache-dir");
}

/// Many files that fail for one reason: some are told, and how many more there are; for programs all.
#[test]
fn a_flood_of_failures_is_folded() {
    let bench = Bench::bare();
    fs::create_dir(bench.path("work")).unwrap();
    fs::create_dir(bench.path("store")).unwrap();
    for n in 0..60 {
        fs::write(bench.path(&format!("work/file-{n}")), format!("{n}")).unwrap();
    }
    manifest(&bench, &["snapshot", "work", "-o", "m", "--cas", "store"]).expect(0);
    for n in 0..59 {
        let hash = xxhash_rust::xxh3::xxh3_128(format!("{n}").as_bytes());
        fs::remove_file(bench.path(&format!("store/Data/{hash:032x}.xxh128"))).unwrap();
    }
    let ran = manifest(&bench, &["download", "m", "dest", "--cas", "store"]).expect(1).says("and 39 more");
    assert_eq!(ran.stderr.lines().filter(|line| line.contains("not in the store")).count(), 20, "{}", ran.stderr);
    ran.says("1 file written").says("59 failed");
    let told = manifest(&bench, &["download", "m", "dest", "--cas", "store", "--json"]).expect(1).json();
    let failures = told["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 59, "{told}");
    let names = |one: &Value| one["error"].as_str().is_some_and(|e| e.contains(one["path"].as_str().unwrap()));
    assert!(failures.iter().all(names), "{told}");
}

/// Without a manifest all that the store has is compared, also what no manifest needs any more.
#[test]
fn a_store_is_verified_without_a_manifest() {
    let bench = bench();
    let none = ["manifest", "verify", "--cas", "store"];
    bench.run(none).expect(1).says("store");
    fs::create_dir(bench.path("store")).unwrap();
    bench.run(none).expect(1).says("no folder Data");
    // A folder that is there and has nothing is another one than was meant, as a prefix of a bucket is.
    fs::create_dir(bench.path("store/Data")).unwrap();
    bench.run(none).expect(1).says("no object below Data/");
    manifest(&bench, &["snapshot", "work", "-o", "m", "--cas", "store"]).expect(0);
    assert_eq!(bench.run(none).expect(0).text(), "3 objects (16 B): no problems\n");
    let name = |text: &[u8]| format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text));
    let data = bench.path("store/Data");
    let key = format!("Data/{}.xxh128", name(b"one"));
    fs::write(bench.path("store").join(&key), "eno").unwrap();
    let bare = format!("Data/{}", name(b"no manifest needs it"));
    fs::write(bench.path("store").join(&bare), "cut").unwrap();
    fs::write(data.join("notes.txt"), "not an object").unwrap();
    let told = bench.run(none).expect(5).text();
    assert!(told.contains(&format!("object: {key}: ")) && told.contains(&format!("object: {bare}: ")), "{told}");
    assert!(told.contains("unknown: Data/notes.txt: "), "{told}");
    assert!(told.ends_with("4 objects (19 B): 2 problems\n"), "{told}");
    let told = bench.run(none.into_iter().chain(["--json"])).expect(5).json();
    let mut keys = [key, bare];
    keys.sort_unstable_by_key(|key| key.replace(".xxh128", ""));
    let problems = told["problems"].as_array().unwrap();
    assert_eq!(problems.iter().map(|one| one["key"].as_str().unwrap()).collect::<Vec<_>>(), keys);
    assert_eq!((&told["objects"], &told["unknown"]), (&Value::from(4), &Value::from(1)));
    assert_eq!(told["unknown_keys"], serde_json::json!(["Data/notes.txt"]));
    // Nothing is mended that way.
    bench.run(none.into_iter().chain(["--repair"])).expect(2).says("--cas");
}

/// Of a store that has nothing, each object is a problem: that takes little more than the manifest itself.
#[test]
fn what_is_missing_of_a_large_manifest_is_told_in_little_memory() {
    const FILES: usize = 200_000;
    const MEMORY_MAX_BYTES: u64 = 192 << 20;
    let bench = Bench::bare();
    fs::create_dir_all(bench.path("store/Data")).unwrap();
    let mut text = r#"{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":["#.to_owned();
    for n in 0..FILES {
        let comma = if n > 0 { "," } else { "" };
        write!(text, r#"{comma}{{"hash":"{n:032x}","mtime":1700000000000000,"path":"folder/{n:06}.exr","size":9}}"#)
            .unwrap();
    }
    write!(text, r#"],"totalSize":{}}}"#, FILES * 9).unwrap();
    fs::write(bench.path("m"), text).unwrap();
    for json in [false, true] {
        let mut command = bench.command();
        command.args(["manifest", "verify", "m", "--cas", "store", "--cache-dir", "cache", "--quiet"]);
        command.args(json.then_some("--json")).stderr(Stdio::null());
        let peak = Peak::of(command.stdout(File::create(bench.path("told")).unwrap()), 5);
        assert!(peak.all < MEMORY_MAX_BYTES, "it took {peak:?}");
        let told = fs::read_to_string(bench.path("told")).unwrap();
        if json {
            let told: Value = serde_json::from_str(&told).unwrap();
            let problems = told["problems"].as_array().unwrap();
            assert_eq!((told["objects"].as_u64(), problems.len()), (Some(FILES as u64), FILES));
            let last = &problems[FILES - 1];
            assert_eq!(last["object"], format!("{:032x}", FILES - 1));
            assert!(last["detail"].as_str().unwrap().contains(&format!("{:032x}", FILES - 1)), "{last}");
        } else {
            assert_eq!(told.lines().count(), FILES + 1);
            assert!(told.lines().next().unwrap().starts_with("object: /folder/000000.exr: "));
        }
    }
}

/// What is said of parts and requests is what the store sees.
#[test]
fn large_objects_go_in_parts_of_the_length_that_was_said() {
    let bench = Bench::bare();
    let server = FaultyS3::start().unwrap();
    fs::create_dir(bench.path("work")).unwrap();
    fs::write(bench.path("work/large"), vec![7; 12 << 20]).unwrap();
    manifest(&bench, &["snapshot", "work", "-o", "m"]).expect(0);
    let key = format!("Queue/Data/{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(&vec![7; 12 << 20]));
    let cas = format!("s3://{}/Queue", server.bucket());
    let upload = |more: &[&str]| {
        server.clear_log();
        let mut command = bench.command();
        command.env("AWS_ACCESS_KEY_ID", "access").env("AWS_SECRET_ACCESS_KEY", "secret");
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_ENDPOINT_URL", server.endpoint());
        command.args(["manifest", "upload", "m", "--root", "work", "--cas", &cas]).args(more);
        common::run(command, b"")
    };
    // Begun and completed by a request each; what goes in one is sent twice at first, to learn whether the store decides who is first.
    for (line, puts, posts) in [
        (&["--part-size", "5M", "--parts", "1", "--requests", "1"][..], 3, 2),
        (&["--part-size", "6M"], 2, 2),
        (&["--part-size", "12M"], 2, 0),
    ] {
        upload(line).expect(0).says("1 object stored");
        let count = |method| server.log().iter().filter(|request| request.method == method).count();
        assert_eq!((count("PUT"), count("POST")), (puts, posts), "{line:?}");
        if puts == 3 {
            assert_eq!(server.requests_at_once_max(), 1);
        }
        assert!(server.bytes(&key).is_some_and(|bytes| bytes.len() == 12 << 20));
        assert!(server.remove(&key));
    }
    for (line, why) in [
        (["--part-size", "4M"], "5M to 1G"),
        (["--parts", "0"], "from 1 to 64"),
        (["--parts", "65"], "from 1 to 64"),
        (["--requests", "many"], "from 1 to 1024"),
    ] {
        upload(&line).expect(2).says(why);
        assert!(server.log().is_empty(), "{line:?}");
    }
    upload(&["--part-size", "1G", "--parts", "3"]).expect(2).says("3.0 GiB of one object").says("2.0 GiB are the most");
    assert!(server.log().is_empty());
}

/// What the store has of a large object is noted in the cache directory that was named.
#[test]
fn an_upload_goes_on_with_the_parts_that_are_noted_in_its_cache_directory() {
    let bench = Bench::bare();
    let server = FaultyS3::start().unwrap();
    fs::create_dir(bench.path("work")).unwrap();
    File::create(bench.path("work/large")).unwrap().set_len((10 << 20) + 1).unwrap();
    manifest(&bench, &["snapshot", "work", "-o", "m"]).expect(0);
    let cas = format!("s3://{}/Queue", server.bucket());
    let upload = |cache: &str| {
        server.clear_log();
        let mut command = bench.command();
        command.env("AWS_ACCESS_KEY_ID", "access").env("AWS_SECRET_ACCESS_KEY", "secret");
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_ENDPOINT_URL", server.endpoint());
        command.args(["manifest", "upload", "m", "--root", "work", "--cas", &cas, "--part-size", "5M"]);
        command.args(["--parts", "1", "--cache-dir", cache]);
        command
    };
    server.add(HttpFault::Stall, "PUT", "Data/", 1, u64::MAX);
    let mut killed = upload("named").stdout(Stdio::null()).stderr(Stdio::null()).start().unwrap();
    let notes = || fs::read_dir(bench.path("named/uploads")).into_iter().flatten().flatten();
    // Four lines are about the upload, and one about the part.
    let lines = |path: std::path::PathBuf| fs::read_to_string(path).map_or(0, |text| text.lines().count());
    eventually("the part is noted", || notes().any(|note| lines(note.path()) == 5));
    killed.kill().unwrap();
    killed.wait().unwrap();
    // The next part was on its way: it counts for the one that was killed.
    server.wait_until_left();
    server.clear();
    common::run(upload("named"), b"").expect(0).says("1 object stored");
    assert_eq!(server.log().iter().filter(|request| request.method == "PUT").count(), 2, "of three parts");
    assert_eq!((server.open_uploads(), notes().count()), (0, 0));
}
