//! What the official packages bring to a bucket, `adit manifest download` brings back; what `adit manifest upload` brings there, they do.
//!
//! `cargo xtask test --only interop` runs it on versitygw, and again on moto.

mod common;
#[path = "../../manifest/tests/support/official.rs"]
mod official;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use adit_servers::S3Server;
use common::{Bench, Ran, pattern, run};
use official::{Official, Queue, Task};

const QUEUE: Queue<'_> = Queue { bucket: "attachments", root: "DeadlineCloud", farm: "farm-1", queue: "queue-1" };
const STORE: &str = "s3://attachments/DeadlineCloud";

/// Names in many scripts, astral characters, such that are no UTF-8 (lone surrogates in a manifest), and contents of several lengths.
const NAMES: [&[u8]; 12] = [
    b"plain.txt",
    "日本語/ファイル.exr".as_bytes(),
    "العربية/ملف".as_bytes(),
    "हिन्दी/Ελληνικά/кириллица".as_bytes(),
    "emoji \u{1f600}/\u{fb00}".as_bytes(),
    "e\u{301} and é".as_bytes(),
    b"deep/er/and/deeper still/x",
    b"quote\" back\\slash\ttab",
    b"empty",
    b"caf\xe9",
    b"\xed\xa0\x80/\xff",
    b"large",
];

struct World {
    official: Official,
    server: S3Server,
    bench: Bench,
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> Option<World> {
        let bench = Bench::bare();
        // Where there are extended attributes.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let server = S3Server::of_environment(&dir.path().join("server"))?;
        server.create_bucket(QUEUE.bucket).unwrap();
        let official = Official::start(bench.dir.path(), Some(&server))?;
        Some(World { official, server, bench, _dir: dir })
    }

    fn adit(&self, args: &[&str]) -> Ran {
        let mut command = self.bench.command();
        command.envs(self.server.variables()).args(args);
        run(command, b"")
    }

    /// A folder of the bench with these names; its absolute path.
    fn tree(&self, name: &str) -> PathBuf {
        let root = self.bench.path(name);
        for (number, bytes) in NAMES.into_iter().enumerate() {
            let path = root.join(OsStr::from_bytes(bytes));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let content = match bytes {
                b"empty" => Vec::new(),
                b"large" => pattern(20 << 20),
                _ => vec![number as u8; 100_000 + number],
            };
            fs::write(path, content).unwrap();
        }
        root
    }
}

/// Every file below, with its content and its time in microseconds.
fn files(root: &Path) -> BTreeMap<Vec<u8>, (Vec<u8>, i64)> {
    let (mut found, mut todo) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::metadata(&path).unwrap();
            if meta.is_dir() {
                todo.push(path);
                continue;
            }
            let micros = meta.mtime() * 1_000_000 + meta.mtime_nsec() / 1000;
            let name = path.strip_prefix(root).unwrap().to_owned().into_os_string().into_vec();
            found.insert(name, (fs::read(&path).unwrap(), micros));
        }
    }
    found
}

/// Compares two folders; they give times within a microsecond.
fn expect_same(one: &Path, other: &Path) {
    let (one, other) = (files(one), files(other));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for ((name, (content, micros)), (found, found_micros)) in one.iter().zip(other.values()) {
        let name = String::from_utf8_lossy(name);
        assert!(content == found, "{name}: other content");
        assert!(micros.abs_diff(*found_micros) <= 1, "{name}: another time");
    }
}

#[test]
fn what_they_upload_we_download() {
    let Some(mut w) = World::new() else { return };
    let root = w.tree("tree");
    let attachments = w.official.submit_inputs(QUEUE, &root);
    let url = format!("{STORE}/Manifests/{}", attachments["manifests"][0]["inputManifestPath"].as_str().unwrap());
    let told = w.adit(&["manifest", "download", &url, "dest", "--json"]).expect(0).json();
    assert_eq!(told["written"], NAMES.len());
    expect_same(&root, &w.bench.path("dest"));
    let again = w.adit(&["manifest", "download", &url, "dest", "--json"]).expect(0).json();
    assert_eq!((&again["written"], &again["present"]), (&0.into(), &NAMES.len().into()));
    // Into their folder as well, where nothing is to be done.
    let same = w.adit(&["manifest", "download", &url, "tree", "--conflict", "overwrite", "--json"]).expect(0).json();
    assert_eq!(same["present"], NAMES.len());
}

#[test]
fn what_we_upload_they_download() {
    let Some(mut w) = World::new() else { return };
    let root = w.tree("tree");
    let root_text = root.to_str().unwrap().to_owned();
    let name = format!("{}_input", w.official.root_hash(&root_text));
    w.adit(&["manifest", "snapshot", "tree", "-o", &name]).expect(0);
    let upload = ["manifest", "upload", &name, "--root", "tree", "--cas", STORE, "--manifest-prefix", "P/q"];
    w.adit(&upload).expect(0).says("Manifests/P/q");
    let key = format!("DeadlineCloud/Manifests/P/q/{name}");
    assert_eq!(w.official.get_object(QUEUE.bucket, &key), fs::read_to_string(w.bench.path(&name)).unwrap());
    let metadata = &w.official.objects(QUEUE.bucket, &key)[&key].metadata;
    assert_eq!(metadata, &BTreeMap::from([("asset-root".to_owned(), root_text)]));

    let (to, rules) = (w.bench.path("downloaded"), w.bench.path("rules.json"));
    let rule = serde_json::json!([{"source_path_format": "posix", "source_path": root, "destination_path": to}]);
    fs::write(&rules, rule.to_string()).unwrap();
    let (manifest, rules) = (w.bench.str(&name), rules.to_str().unwrap().to_owned());
    let line = ["attachment", "download", "-m", &manifest, "--s3-root-uri", STORE, "--path-mapping-rules", &rules];
    let ran = w.official.deadline(&[&line[..], &["--profile", "default", "--json"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.output);
    expect_same(&root, &to);
}

/// What their worker leaves of several tasks, some of them run again, we find as their own download does.
#[test]
fn outputs_of_their_worker_are_found_and_merged_as_theirs() {
    let Some(mut w) = World::new() else { return };
    let root = "/projects/ü 日本";
    for (task, action, name, content) in [
        ("task-a", "1", "f1", "old"),
        ("task-b", "2", "f2", "b"),
        ("task-a", "3", "f3", "new"),
        ("task-c", "4", "both", "c"),
    ] {
        let rendered = w.bench.path(&format!("rendered-{action}"));
        fs::create_dir(&rendered).unwrap();
        fs::write(rendered.join(name), content).unwrap();
        fs::write(rendered.join("both"), content).unwrap();
        let action = format!("sessionaction-1-{action}");
        let task = Task { job: "job-1", step: "step-1", task, action: &action };
        w.official.worker_outputs(QUEUE, task, root, &rendered, &w.bench.path(&format!("session-{action}")));
    }
    let theirs = w.bench.path("theirs");
    w.official.download_outputs(QUEUE, "job-1", &[(root, &theirs)]).unwrap();
    let url = format!("{STORE}/Manifests/farm-1/queue-1/job-1/");
    let told = w.adit(&["manifest", "download", &url, "ours", "--json"]).expect(0).json();
    assert_eq!((told["asset_root"].as_str(), &told["manifests"]), (Some(root), &3.into()));
    expect_same(&theirs, &w.bench.path("ours"));
    assert!(!w.bench.path("ours/out/f1").exists(), "an action that another one came after");
    let of_task = format!("{url}step-1/task-b/");
    w.adit(&["manifest", "download", &of_task, "task"]).expect(0);
    assert_eq!(fs::read(w.bench.path("task/out/both")).unwrap(), b"b");
}

#[test]
fn outputs_of_ours_are_found_by_their_download() {
    let Some(mut w) = World::new() else { return };
    let root = w.tree("projects");
    let root_text = root.to_str().unwrap().to_owned();
    let name = format!("{}_output", w.official.root_hash(&root_text));
    w.adit(&["manifest", "snapshot", "projects", "-o", &name]).expect(0);
    let prefix = "farm-1/queue-1/job-1/step-1/task-1/2026-11-22T18:00:00.000001Z_sessionaction-1-0";
    w.adit(&["manifest", "upload", &name, "--root", "projects", "--cas", STORE, "--manifest-prefix", prefix]).expect(0);
    let found = w.official.outputs(QUEUE, "job-1", None, None);
    assert_eq!(found.keys().collect::<Vec<_>>(), [&root_text]);
    let to = w.bench.path("downloaded");
    w.official.download_outputs(QUEUE, "job-1", &[(&root_text, &to)]).unwrap();
    expect_same(&root, &to);
}
