//! Every row of `docs/semantics.md` names tests, and they exist.

use std::fs;
use std::path::Path;

/// `crate/file::test` in a row: of an integration test, or of the module `file` itself.
fn references(row: &str) -> Vec<(&str, &str, &str)> {
    let words = row.split(|c: char| !(c.is_ascii_alphanumeric() || "_/:".contains(c)));
    words
        .filter_map(|word| {
            let (place, test) = word.split_once("::")?;
            let (krate, file) = place.split_once('/')?;
            Some((krate, file, test))
        })
        .collect()
}

#[test]
fn each_promise_is_run_by_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above this crate");
    let page = fs::read_to_string(root.join("docs/semantics.md")).expect("the page is there");
    let mut rows = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| tests |")) {
        let tests = references(row);
        assert!(!tests.is_empty(), "no test is named in: {row}");
        for (krate, file, test) in tests {
            let places = [format!("crates/{krate}/tests/{file}.rs"), format!("crates/{krate}/src/{file}/tests.rs")];
            let found = places.iter().map(|place| root.join(place)).find(|path| path.exists());
            let path = found.unwrap_or_else(|| root.join(&places[0]));
            let source = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(source.contains(&format!("fn {test}(")), "{krate}/{file}::{test} is not there");
        }
        rows += 1;
    }
    assert!(rows > 30, "only {rows} rows were found");
}
