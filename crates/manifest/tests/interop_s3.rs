//! What either the official job-attachment packages or this crate puts in a bucket, the other finds; and what a worker mounts with.
//!
//! `cargo xtask test --only interop` runs it on versitygw, and again on moto.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use adit_manifest::format::{ContentHash, Format, Header, Manifest};
use adit_servers::S3Server;
use support::manifests::{assert_of_tree, assert_same, file, make_tree, micros, read, scratch, with, written};
use support::official::{Official, Queue, Task};

const QUEUE: Queue<'_> = Queue { bucket: "attachments", root: "DeadlineCloud", farm: "farm-1", queue: "queue-1" };

/// A folder, and the official packages with it as their home.
fn official() -> Option<(Official, tempfile::TempDir)> {
    let dir = scratch();
    let official = Official::start(dir.path(), None)?;
    Some((official, dir))
}

/// The official packages beside a server with the queue's bucket.
fn official_on_s3() -> Option<(Official, S3Server, tempfile::TempDir)> {
    let dir = scratch();
    let server = S3Server::of_environment(&dir.path().join("server"))?;
    server.create_bucket(QUEUE.bucket).unwrap();
    let official = Official::start(dir.path(), Some(&server))?;
    Some((official, server, dir))
}

#[test]
fn a_folder_that_they_snapshot_is_read() {
    let Some((mut official, dir)) = official() else {
        return;
    };
    let (root, to) = (dir.path().join("tree"), dir.path().join("snapshot"));
    let made = make_tree(&root);
    let attachments = official.snapshot(QUEUE, &root, &to);

    let manifest = &attachments["manifests"][0];
    let key = manifest["inputManifestPath"].as_str().unwrap();
    let text = fs::read_to_string(to.join("Manifests").join(key)).unwrap();
    let read = read(&text);
    assert_of_tree(&read, &made, &root);
    assert_same(&written(&read), &text, "the snapshot");

    let root_text = root.to_str().unwrap();
    assert_eq!(manifest["rootPath"].as_str(), Some(root_text));
    assert_eq!(manifest["inputManifestHash"].as_str().unwrap(), ContentHash::of(text.as_bytes()).to_string());
    assert!(key.ends_with(&format!("/{}_input", ContentHash::of(root_text.as_bytes()))), "{key}");
    for content in made.values() {
        let data = to.join(format!("Data/{}.xxh128", ContentHash::of(content)));
        assert_eq!(&fs::read(data).unwrap(), content);
    }
}

#[test]
fn what_they_upload_lies_where_we_look_for_it() {
    let Some((mut official, _server, dir)) = official_on_s3() else {
        return;
    };
    let root = dir.path().join("tree");
    let made = make_tree(&root);
    let attachments = official.submit_inputs(QUEUE, &root);
    let path = attachments["manifests"][0]["inputManifestPath"].as_str().unwrap();

    let objects = official.objects(QUEUE.bucket, "");
    let mut keys: BTreeSet<String> =
        made.values().map(|content| format!("DeadlineCloud/Data/{}.xxh128", ContentHash::of(content))).collect();
    keys.insert(format!("DeadlineCloud/Manifests/{path}"));
    assert_eq!(objects.keys().cloned().collect::<BTreeSet<_>>(), keys);
    for content in made.values() {
        let object = &objects[&format!("DeadlineCloud/Data/{}.xxh128", ContentHash::of(content))];
        assert_eq!(object.size, content.len() as u64);
        assert!(object.metadata.is_empty(), "{object:?}");
    }
    let parts: Vec<&str> = path.split('/').collect();
    assert_eq!((parts[0], parts[1], parts[2], parts[3].len()), ("farm-1", "queue-1", "Inputs", 32), "{path}");
    let text = official.get_object(QUEUE.bucket, &format!("DeadlineCloud/Manifests/{path}"));
    assert_of_tree(&read(&text), &made, &root);
}

#[test]
fn their_command_line_and_ours_agree_on_a_folder() {
    let Some((mut official, _server, dir)) = official_on_s3() else {
        return;
    };
    let (root, local) = (dir.path().join("tree"), dir.path().join("manifests"));
    let made = make_tree(&root);
    fs::create_dir(&local).unwrap();
    let (root_text, local_text) = (root.to_str().unwrap(), local.to_str().unwrap());
    let ran = official.deadline(&[
        "manifest",
        "snapshot",
        "--root",
        root_text,
        "--destination",
        local_text,
        "--name",
        "n",
        "--json",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.output);
    let manifest = fs::read_dir(&local).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&manifest).unwrap();
    assert_of_tree(&read(&text), &made, &root);

    let uri = format!("s3://{}/{}", QUEUE.bucket, QUEUE.root);
    let manifest_text = manifest.to_str().unwrap();
    let upload = [
        "attachment",
        "upload",
        "-m",
        manifest_text,
        "-r",
        root_text,
        "--s3-root-uri",
        &uri,
        "--upload-manifest-path",
        "P",
    ];
    let ran = official.deadline(&[&upload[..], &["--profile", "default", "--json"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.output);
    let key = format!("DeadlineCloud/Manifests/P/{}", manifest.file_name().unwrap().to_str().unwrap());
    assert_same(&official.get_object(QUEUE.bucket, &key), &text, "the uploaded manifest");
    assert_eq!(official.objects(QUEUE.bucket, &key)[&key].metadata["asset-root"], root_text);

    // And back: their download of the manifest that we wrote.
    let rewritten = local.join(format!("{}_input", ContentHash::of(root_text.as_bytes())));
    fs::write(&rewritten, written(&read(&text))).unwrap();
    let (to, rules) = (dir.path().join("downloaded"), dir.path().join("rules.json"));
    let rule = serde_json::json!([{"source_path_format": "posix", "source_path": root, "destination_path": to}]);
    fs::write(&rules, rule.to_string()).unwrap();
    let download = ["attachment", "download", "-m", rewritten.to_str().unwrap(), "--s3-root-uri", &uri];
    let more = ["--path-mapping-rules", rules.to_str().unwrap(), "--profile", "default", "--json"];
    let ran = official.deadline(&[&download[..], &more].concat());
    assert_eq!(ran.code, 0, "{}", ran.output);
    for (path, content) in &made {
        let path = OsStr::from_bytes(path);
        assert_eq!(&fs::read(to.join(path)).unwrap(), content, "{}", path.display());
        let micros = |root: &Path| micros(&root.join(path));
        assert!(micros(&to).abs_diff(micros(&root)) <= 1, "{}: the time is another", path.display());
    }
}

#[test]
fn what_their_worker_leaves_is_where_we_look_for_it() {
    let Some((mut official, _server, dir)) = official_on_s3() else {
        return;
    };
    let rendered = dir.path().join("rendered");
    let made = make_tree(&rendered);
    // The root's name is not ASCII in one of them.
    for root in ["/projects/plain", "/projects/ü 日本"] {
        let task = Task { job: "job-1", step: "step-1", task: "task-1", action: "sessionaction-1-0" };
        let session = dir.path().join(format!("session{}", root.len()));
        official.worker_outputs(QUEUE, task, root, &rendered, &session);
        let prefix = "DeadlineCloud/Manifests/farm-1/queue-1/job-1/step-1/task-1/";
        let name = format!("{}_output", ContentHash::of(root.as_bytes()));
        let objects = official.objects(QUEUE.bucket, prefix);
        let key = objects.keys().find(|key| key.ends_with(&name)).unwrap_or_else(|| panic!("{objects:?}"));
        let folder = key.strip_prefix(prefix).unwrap().split('/').next().unwrap();
        let (time, action) = folder.split_once('_').unwrap();
        assert_eq!((time.len(), time.ends_with('Z'), action), (27, true, "sessionaction-1-0"), "{folder}");
        let metadata = &objects[key].metadata;
        if root.is_ascii() {
            assert_eq!(metadata, &BTreeMap::from([("asset-root".to_owned(), root.to_owned())]));
        } else {
            let json = r#""/projects/\u00fc \u65e5\u672c""#.to_owned();
            let both = [("asset-root".to_owned(), json.clone()), ("asset-root-json".to_owned(), json)];
            assert_eq!(metadata, &BTreeMap::from(both));
        }
        let text = official.get_object(QUEUE.bucket, key);
        let read = read(&text);
        assert_same(&written(&read), &text, root);
        let paths: BTreeSet<Vec<u8>> = read.entries().map(|(path, _)| path.to_host().unwrap().into_owned()).collect();
        assert_eq!(paths, made.keys().map(|path| [b"out/", &path[..]].concat()).collect());
    }
}

#[test]
fn output_manifests_of_ours_are_found_and_downloaded() {
    let Some((mut official, _server, dir)) = official_on_s3() else {
        return;
    };
    let content = "what was rendered";
    let hash = ContentHash::of(content.as_bytes());
    official.put_object(QUEUE.bucket, &format!("DeadlineCloud/Data/{hash}.xxh128"), content, &[]);
    let root = "/projects/ü";
    let mut tasks = Vec::new();
    for (task, action, frame) in [("task-a", "1", "0001"), ("task-b", "2", "0002"), ("task-a", "3", "0003")] {
        let mut manifest = Manifest::new(Header::snapshot(Format::V2023));
        let body = file(hash, content.len() as u64, 1_700_000_000_000_001);
        with(&mut manifest, format!("renders/日本/{frame}.exr").as_bytes(), body);
        let folder = format!("2026-11-22T18:00:0{action}.000000Z_sessionaction-1-{action}");
        let name = ContentHash::of(root.as_bytes());
        let key = format!("DeadlineCloud/Manifests/farm-1/queue-1/job-1/step-1/{task}/{folder}/{name}_output");
        // Non-ASCII roots: JSON in both, as the official uploader writes them.
        let json = r#""/projects/\u00fc""#;
        let metadata = [("asset-root", json), ("asset-root-json", json)];
        official.put_object(QUEUE.bucket, &key, &written(&manifest), &metadata);
        tasks.push((task, written(&manifest)));
    }

    // Of each task its last action alone.
    let found = official.outputs(QUEUE, "job-1", Some("step-1"), Some("task-a"));
    assert_eq!(found, BTreeMap::from([(root.to_owned(), vec![tasks[2].1.clone()])]));
    let found = official.outputs(QUEUE, "job-1", None, None);
    assert_eq!(found.keys().collect::<Vec<_>>(), [root]);
    let merged: Vec<String> = read(&found[root][0]).entries().map(|(path, _)| path.to_string()).collect();
    assert_eq!(merged.len(), 2, "{merged:?}");

    let to = dir.path().join("downloaded");
    let paths = official.download_outputs(QUEUE, "job-1", &[(root, &to)]).unwrap();
    assert_eq!(paths, ["renders/日本/0002.exr", "renders/日本/0003.exr"]);
    for path in paths {
        assert_eq!(fs::read_to_string(to.join(path)).unwrap(), content);
    }
}

/// A folder like the one that workers have installed; its program writes down its arguments, and mounts something.
fn stand_in(vfs: &Path) {
    let scripts: [(&str, &str); 3] = [
        (
            "scripts/production/al2/run_deadline_vfs_al2.sh",
            "printf '%s\\n' \"$@\" >\"$DEADLINE_VFS_PATH/line\"\nexec mount -t tmpfs none \"$1\"",
        ),
        ("bin/deadline_vfs", ""),
        ("link/fusermount3", "exec umount \"$2\""),
    ];
    for (path, body) in scripts {
        let path = vfs.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// The line that a worker runs is the contract that the installable folder of ours keeps.
#[test]
fn a_worker_mounts_with_the_line_that_we_know() {
    let dir = scratch();
    let vfs = dir.path().join("vfs");
    stand_in(&vfs);
    let Some(mut official) = Official::start_with(dir.path(), None, &[("DEADLINE_VFS_PATH", &vfs)]) else {
        return;
    };
    let line = official.vfs_command(
        "bucket",
        Path::new("/s/m.json"),
        Path::new("/s/root"),
        "DeadlineCloud/Data",
        Path::new("/s/cache"),
    );
    let expected = format!(
        "sudo -E -u root {}/scripts/production/al2/run_deadline_vfs_al2.sh /s/root -f --clienttype=deadline --bucket=bucket \
         --manifest=/s/m.json --region={} -oallow_other --casprefix=DeadlineCloud/Data --cachedir=/s/cache",
        vfs.display(),
        adit_servers::REGION
    );
    assert_eq!(line, expected);
}

/// Unmounts what a failed test left.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        if fs::read_to_string("/proc/self/mounts").is_ok_and(|mounts| mounts.contains(&*self.0.to_string_lossy())) {
            let _ = Command::new("umount").arg(self.0).status();
        }
    }
}

/// The worker's own code starts what is installed there, waits for the mount, and ends it.
#[test]
fn a_worker_drives_an_installed_folder() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "mounting needs root");
        let _ = writeln!(std::io::stderr(), "NOT RUN: mounting needs root");
        return;
    }
    let dir = scratch();
    let (vfs, mount, session) = (dir.path().join("vfs"), dir.path().join("mnt"), dir.path().join("session"));
    stand_in(&vfs);
    let Some(mut official) = Official::start_with(dir.path(), None, &[("DEADLINE_VFS_PATH", &vfs)]) else {
        return;
    };
    let mut manifest = Manifest::new(Header::snapshot(Format::V2023));
    with(&mut manifest, "日本/a".as_bytes(), file(ContentHash([1; 16]), 1, 1));
    let path = dir.path().join("manifest");
    fs::write(&path, written(&manifest)).unwrap();

    let _unmounted = Unmounted(&mount);
    let mounted = official.vfs_mount(QUEUE, &path, &mount, &session);
    let is_mounted = || fs::read_to_string("/proc/self/mounts").unwrap().contains(mount.to_str().unwrap());
    let was_mounted = is_mounted();
    let ended = official.vfs_unmount(&session);
    assert!(mounted.is_ok() && was_mounted && ended.is_ok() && !is_mounted(), "{mounted:?}, {was_mounted}, {ended:?}");

    let line = fs::read_to_string(vfs.join("line")).unwrap();
    let arguments: Vec<&str> = line.lines().collect();
    let [
        at,
        "-f",
        "--clienttype=deadline",
        "--bucket=attachments",
        given,
        "--region=us-west-2",
        "-oallow_other",
        cas,
        cache,
    ] = arguments[..]
    else {
        panic!("{arguments:?}")
    };
    assert_eq!((Path::new(at), cas), (mount.as_path(), "--casprefix=DeadlineCloud/Data"));
    assert!(cache.starts_with("--cachedir=/"), "{cache}");
    let given = fs::read_to_string(given.strip_prefix("--manifest=").unwrap()).unwrap();
    assert_same(&written(&manifest), &given, "the manifest that a worker hands over");
}
