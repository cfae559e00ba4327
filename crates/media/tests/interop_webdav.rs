//! Servers on WebDAV that others wrote pass the suite of all object stores.
//!
//! `ADIT_WEBDAV_URLS` names collections on them, `dav://HOST:PORT/PATH` each, separated by spaces; they take whoever asks.
#![cfg(feature = "objects")]

use std::io::Write as _;

use adit_media::objects::{ObjectsOptions, open_objects};
use adit_testkit::objects::check_objects;

#[test]
fn real_servers_pass_the_suite() {
    let Some(urls) = std::env::var("ADIT_WEBDAV_URLS").ok().filter(|urls| !urls.trim().is_empty()) else {
        let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true" || value == "1");
        assert!(!in_ci, "ADIT_WEBDAV_URLS is not set: run by `cargo xtask test`");
        // Straight to stderr: what a test prints is shown only if it fails.
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN: ADIT_WEBDAV_URLS is not set; `cargo xtask test --only interop` sets it"
        );
        return;
    };
    for url in urls.split_whitespace() {
        let options = ObjectsOptions { anonymous: true, part_len_bytes: 5 << 20, ..Default::default() };
        let objects = open_objects(url, &options).unwrap();
        eprintln!("{}", objects.describe());
        check_objects(&*objects);
    }
}
