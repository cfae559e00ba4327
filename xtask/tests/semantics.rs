//! Every row of `docs/semantics.md` names tests, and they exist and are run.

use std::fs;
use std::path::Path;

/// `crate/file::test` in a row: of an integration test, or of the module `file` itself or its `tests`.
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

/// Whether the function of this name has the attribute of a test, and none that leaves it out. None if it is not there.
fn is_run(source: &str, test: &str) -> Option<bool> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.starts_with(&format!("fn {test}(")))?;
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let attributes: Vec<_> = above.filter(|line| line.starts_with("#[")).collect();
    let left_out = |line: &&&str| line.starts_with("#[ignore") || line.starts_with("#[cfg");
    Some(attributes.iter().any(|line| **line == "#[test]") && !attributes.iter().any(left_out))
}

#[test]
fn a_function_that_is_not_run_is_no_test() {
    let is_run = |above: &str| is_run(&format!("fn other() {{}}\n\n{above}\n    fn it() {{\n"), "it");
    assert_eq!(is_run("/// Why.\n    #[test]\n    // Also.\n    #[allow(x)]"), Some(true));
    assert_eq!(is_run("#[test]\nfn before() {}\n"), Some(false));
    assert_eq!(is_run("#[test]\n#[ignore = \"slow\"]"), Some(false));
    assert_eq!(is_run("#[cfg(any())]\n#[test]"), Some(false));
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
            let places = ["tests/{}.rs", "tests/{}/main.rs", "src/{}/tests.rs", "src/{}.rs"];
            let places = places.map(|place| format!("crates/{krate}/{}", place.replace("{}", file)));
            let found = places.iter().map(|place| root.join(place)).find(|path| path.exists());
            let path = found.unwrap_or_else(|| root.join(&places[0]));
            let source = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_eq!(is_run(&source, test), Some(true), "{krate}/{file}::{test} is no test that runs");
        }
        rows += 1;
    }
    assert!(rows > 30, "only {rows} rows were found");
}
