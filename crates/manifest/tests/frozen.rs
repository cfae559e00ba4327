//! The manifests of `fixtures/manifests`: the sound ones are written in their canonical form, the broken ones refused by the rule
//! that they are named after.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use adit_manifest::format::{ContentHash, Dialect, Format, FormatError, Manifest, Rule, decode};

/// Rules that take more than a fixture: `format::decode` has tests of its own for them.
const WITHOUT_FIXTURE: [Rule; 2] = [Rule::TooManyEntries, Rule::TooManyDirectories];

fn fixtures(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/manifests").join(folder);
    let mut files: Vec<_> =
        fs::read_dir(&folder).expect("the fixtures").map(|file| file.expect("a file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(!files.is_empty());
    files
}

#[test]
fn sound_ones_are_written_in_their_canonical_form() {
    for file in fixtures("sound") {
        let canonical = fs::read(file.with_extension("canonical")).expect("the canonical form");
        for source in [fs::read(&file).expect("a fixture"), canonical.clone()] {
            let (manifest, summary) = Manifest::read(&source[..]).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            assert_eq!(summary.hash, ContentHash::of(&source));
            let format = match summary.header.format {
                Format::V2023 => Format::V2023,
                Format::V2025(_) => Format::V2025(Dialect::G),
            };
            let mut written = Vec::new();
            let told = manifest.encode(format, &mut written).expect("it can be written");
            assert_eq!(text(&written), text(&canonical), "{}", file.display());
            assert_eq!((told.hash, told.len_bytes), (ContentHash::of(&canonical), canonical.len() as u64));
            assert_eq!(told.total_size_bytes, summary.totals.size_bytes);
        }
    }
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("ASCII")
}

#[test]
fn broken_ones_are_refused_by_name() {
    let mut shown = BTreeSet::new();
    for file in fixtures("broken") {
        let name = file.file_stem().expect("a name").to_str().expect("ASCII");
        let rule = name.split('@').next().expect("a rule");
        let source = fs::read(&file).expect("a fixture");
        let error = Manifest::read(&source[..]).expect_err(name);
        let refused = FormatError::of(&error).unwrap_or_else(|| panic!("{name}: {error}"));
        assert_eq!(refused.rule.name(), rule, "{name}: {error}");
        assert!(error.to_string().contains(&format!("refused by rule {rule}: ")), "{error}");
        shown.insert(rule.to_owned());
        if !matches!(refused.rule, Rule::DuplicatePath | Rule::FileAgainstDirectory) {
            let streamed = decode(&source[..], &mut |_: adit_manifest::format::Entry<'_>| Ok(())).expect_err(name);
            assert_eq!(streamed.to_string(), error.to_string());
        }
    }
    let rules = Rule::ALL.into_iter().filter(|rule| !WITHOUT_FIXTURE.contains(rule));
    let all: BTreeSet<_> = rules.map(|rule| rule.name().to_owned()).collect();
    assert_eq!(shown, all, "every rule has a fixture, and every fixture a rule");
}

#[test]
fn an_unknown_version_is_told_with_those_that_are_read() {
    for text in [
        r#"{"hashAlg":"xxh128","manifestVersion":"2022-06-06","paths":[]}"#,
        r#"{"dirs":5,"files":[],"hashAlg":"sha1","specificationVersion":"2031-01"}"#,
    ] {
        let error = Manifest::read(text.as_bytes()).expect_err("unknown").to_string();
        assert!(error.starts_with("not supported: refused by rule unknown-"), "{error}");
    }
    let error = Manifest::read(&br#"{"manifestVersion":"2022-06-06"}"#[..]).expect_err("unknown").to_string();
    for read in ["2022-06-06", "2023-03-03", "2025-12-04-beta", "-beta-2025-12"] {
        assert!(error.contains(read), "{error}");
    }
}

#[test]
fn a_path_is_named_in_the_message() {
    let text = r#"{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":[
        {"hash":"xyz","mtime":1,"path":"shots/010/pl\u00e4te.exr","size":1}],"totalSize":1}"#;
    let error = Manifest::read(text.as_bytes()).expect_err("no hash").to_string();
    assert!(error.contains(r#"rule hash-text: "shots/010/pläte.exr": has a hash "xyz""#), "{error}");
}

/// `docs/formats/manifest.md`: its examples are canonical and have the hashes and lengths that it says, and it has every rule.
#[test]
fn the_page_of_the_format_is_right() {
    let page = include_str!("../../../docs/formats/manifest.md");
    let mut examples = 0;
    for (before, rest) in page.match_indices("```json\n").map(|(at, fence)| page.split_at(at + fence.len())) {
        let example = rest.split('\n').next().expect("a line").as_bytes();
        let (manifest, summary) = Manifest::read(example).expect("an example");
        let mut written = Vec::new();
        manifest.encode(summary.header.format, &mut written).expect("it can be written");
        assert_eq!(text(&written), text(example));
        let said = before.lines().rfind(|line| line.contains("*Example*")).expect("what is said of it");
        assert!(said.contains(&format!("{} bytes", example.len())), "{said}");
        let said = &before[before.rfind("*Example*").expect("what is said of it")..];
        assert!(said.contains(&format!("`{}`", summary.hash)), "{said}: {}", summary.hash);
        examples += 1;
    }
    assert_eq!(examples, 2);
    for rule in Rule::ALL {
        assert!(page.contains(&format!("\n| `{rule}` | ")), "{rule}");
    }
}
