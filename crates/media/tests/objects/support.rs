//! Stores over the server of the test kit.

use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

use adit_core::media::{Content, ObjectInfo, Objects, PutOptions};
use adit_media::objects::{ObjectsOptions, S3Objects};
use adit_testkit::Rng;
use adit_testkit::objects::FaultyS3;

pub const IF_ABSENT: PutOptions<'static> = PutOptions { if_absent: true, metadata: &[] };

/// The file with the keys of profiles, which one test changes.
pub fn credentials_file() -> PathBuf {
    std::env::temp_dir().join(format!("adit-objects-{}.credentials", std::process::id()))
}

/// Gives this process the keys of the server of the test kit.
pub fn keys() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: every test calls this before it starts a thread or asks for a variable, and `Once` makes the others wait.
        unsafe {
            std::env::set_var("AWS_ACCESS_KEY_ID", "access");
            std::env::set_var("AWS_SECRET_ACCESS_KEY", "secret");
            std::env::set_var("AWS_CONFIG_FILE", "/dev/null");
            // The server is on this machine, whatever leads out of it.
            std::env::set_var("NO_PROXY", "127.0.0.1");
            std::env::set_var("AWS_SHARED_CREDENTIALS_FILE", credentials_file());
        }
    });
}

/// Short times, so that a test of the end of patience is soon over.
pub fn options(server: &FaultyS3) -> ObjectsOptions {
    ObjectsOptions {
        endpoint: Some(server.endpoint()),
        instance_metadata: false,
        answer_timeout: Duration::from_secs(1),
        deadline: Duration::from_secs(10),
        tries_max: 4,
        pause_min: Duration::from_millis(2),
        pause_max: Duration::from_millis(20),
        part_len_bytes: 5 << 20,
        ..Default::default()
    }
}

pub fn open(server: &FaultyS3, options: &ObjectsOptions) -> S3Objects {
    S3Objects::open(server.bucket(), "root", options).unwrap()
}

pub fn store() -> (FaultyS3, S3Objects) {
    keys();
    let server = FaultyS3::start().unwrap();
    let objects = open(&server, &options(&server));
    (server, objects)
}

/// A store with one object of `len` random bytes.
pub fn store_with(len: usize) -> (FaultyS3, S3Objects, Vec<u8>) {
    let (server, objects) = store();
    let mut bytes = vec![0; len];
    Rng::new(len as u64).fill(&mut bytes);
    objects.put("object", Content::Bytes(&bytes), &PutOptions::default()).unwrap();
    server.clear_log();
    (server, objects, bytes)
}

pub fn read(objects: &S3Objects, offset: u64, len: usize) -> adit_core::Result<(Vec<u8>, ObjectInfo)> {
    let mut buf = vec![0; len];
    let fetched = objects.read_at("object", offset, &mut buf, None)?;
    buf.truncate(fetched.count);
    Ok((buf, fetched.object))
}

pub fn requests(server: &FaultyS3) -> Vec<String> {
    server.log().iter().map(|request| format!("{} {}", request.method, request.key)).collect()
}
