//! After `repair`, the official library's own health checks find nothing, and it reads what was saved.

#[path = "support/oracle.rs"]
mod oracle;

use std::fs;

use adit_media::HostDirectory;
use adit_vault::check::{Options, repair};
use adit_vault::unlock;
use oracle::{Oracle, copy_tree, fixtures};

#[test]
fn the_official_health_checks_find_nothing_after_a_repair() {
    let Some(mut oracle) = Oracle::start() else {
        return;
    };
    let (mut count, mut wrong) = (0, Vec::new());
    for case in fs::read_dir(fixtures().join("vault-broken")).unwrap() {
        let case = case.unwrap().path();
        let name = case.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("config-") || name.starts_with("masterkey-") {
            continue; // such a vault does not open
        }
        let what: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(case.join("what.json")).unwrap()).unwrap();
        let password = what["password"].as_str().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        copy_tree(&case.join("vault"), scratch.path());
        let readable = |entries: Vec<oracle::Entry>| {
            let mut sums: Vec<_> = entries.into_iter().filter_map(|e| e.sha256.or(e.target)).collect();
            sums.sort();
            sums.dedup();
            sums
        };
        // A loop of directories is too much for it.
        let before = readable(oracle.dump(scratch.path(), password).unwrap_or_default());
        let root = HostDirectory::open(scratch.path()).unwrap();
        let keys = unlock(&root, password).unwrap();
        let repaired = repair(&root, &keys, Options::default(), &mut |_| {}).unwrap();
        let findings = oracle.health(scratch.path(), password).unwrap();
        if !findings.is_empty() {
            wrong.push(format!("{name}: {findings:#?}\n{:#?}", repaired.done));
        }
        let dump = oracle.dump(scratch.path(), password).unwrap();
        let kind = what["finding"].as_str().unwrap_or_default();
        let unmended = kind == "unreadable-header" || kind == "unreadable-chunk";
        wrong.extend(dump.iter().filter(|e| e.error.is_some() && !unmended).map(|e| format!("{name}: {e:?}")));
        // What it could read before, even twice by two names for one directory, it reads still, wherever that lies now.
        let after = readable(dump);
        let lost = before.iter().filter(|sum| after.binary_search(sum).is_err());
        wrong.extend(lost.map(|sum| format!("{name}: the content {sum} cannot be read any more")));
        count += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 40, "only {count} fixtures");
}
