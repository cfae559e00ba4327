//! The bodies of the fuzz targets, so that a stable toolchain can replay their corpora.
//!
//! Each takes any bytes, must not panic, and asserts what has to hold for whatever is read.

use std::io;

use adit_core::error::ErrorKind;

use super::entry::{Dialect, Entry, Format, PathStyle};
use super::path::{EntryPath, LinkTarget};
use super::{Body, Manifest, decode, header, wtf8};

/// The body of a target.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 2] = [("manifest", fuzz_manifest), ("manifest_path", fuzz_path)];

/// Any bytes as a manifest: what is read whole is written again and read as the same; what is streamed is safe.
pub fn fuzz_manifest(data: &[u8]) {
    let mut streamed = 0;
    let outcome = decode(data, &mut |entry: Entry<'_>| {
        streamed += 1;
        assert!(entry.path.components().all(|name| !matches!(name, b"" | b"." | b"..") && !name.contains(&0)));
        assert!(wtf8::is_wtf8(entry.path.as_wtf8()));
        Ok(())
    });
    if let Ok(summary) = &outcome {
        assert_eq!(header(data).expect("it was read"), summary.header);
        assert_eq!(summary.len_bytes, data.len() as u64);
        let totals = summary.totals;
        assert_eq!(totals.files + totals.directories + totals.symlinks + totals.deletions, streamed);
    }
    let Ok((manifest, summary)) = Manifest::read(data) else { return };
    assert_eq!(Ok(summary), outcome.map_err(|e| e.to_string()));
    let format = match summary.header.format {
        Format::V2023 => Format::V2023,
        Format::V2025(_) => Format::V2025(Dialect::G),
    };
    let mut written = Vec::new();
    let told = match manifest.encode(format, &mut written) {
        Err(e) if e.kind() == ErrorKind::NotSupported => return, // a target with no room for "./"
        told => told.expect("what was read can be written"),
    };
    let (again, summary) = Manifest::read(&written[..]).expect("what was written can be read");
    assert_eq!(
        (told.hash, told.len_bytes, told.total_size_bytes),
        (summary.hash, written.len() as u64, summary.totals.size_bytes)
    );
    for (path, body) in manifest.entries() {
        let other = again.get(path).expect("no entry is lost");
        match (body, other) {
            // A target that looks like a reference goes through ".".
            (Body::Symlink(target), Body::Symlink(other)) => {
                let through = [&b"./"[..], target.as_wtf8()].concat();
                assert!(other == target || target.as_wtf8().starts_with(b"$") && *other.as_wtf8() == *through);
            }
            (body, other) => assert_eq!(body, other),
        }
    }
    // A deletion below a name with "$" needs that directory listed.
    assert!(manifest.deletions().all(|gone| again.deletions().any(|other| other == gone)));
    let mut twice = Vec::new();
    again.encode(format, &mut twice).expect("what was read can be written");
    assert_eq!(twice, written, "the canonical form is written as it was read");
    let _ = manifest.encode(Format::V2023, io::sink());
}

/// Any bytes as a path, and, cut in two, as a link and its target.
pub fn fuzz_path(data: &[u8]) {
    for style in [PathStyle::Relative, PathStyle::Absolute] {
        if let Ok(path) = EntryPath::parse(data, style) {
            assert!(path.ancestors().count() < path.components().count());
            if let Ok(host) = path.to_host() {
                assert_eq!(path.comes_back(), *wtf8::from_host(&host) == *path.as_wtf8());
            }
        }
    }
    if let Ok(path) = EntryPath::from_host(data) {
        assert_eq!(&*path.to_host().expect("it is a host's"), data);
        assert!(path.comes_back());
    }
    let (link, target) = data.split_at(data.len() / 2);
    assert_eq!(wtf8::cmp_utf16(link, target), wtf8::cmp_utf16(target, link).reverse());
    if let Ok(link) = EntryPath::parse(link, PathStyle::Relative)
        && let Ok(target) = LinkTarget::parse(target, &link)
    {
        // From the link's directory it never gets above the root.
        let mut depth = link.components().count() - 1;
        for name in target.as_wtf8().split(|&byte| byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => depth = depth.checked_sub(1).expect("below the root"),
                _ => depth += 1,
            }
        }
    }
}
