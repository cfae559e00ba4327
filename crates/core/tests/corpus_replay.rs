//! Replays the fuzz corpora (`fuzz/corpus/TARGET`) through the targets' bodies on a stable toolchain.

use std::fs;
use std::path::Path;

use adit_core::overlay::fuzzing::TARGETS;

#[test]
fn every_corpus_replays() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    for (name, body) in TARGETS {
        assert!(fuzz.join("fuzz_targets").join(name).with_extension("rs").is_file(), "{name}");
        let mut inputs = 0;
        for entry in fs::read_dir(fuzz.join("corpus").join(name)).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display()); // shown if the body panics
            body(&fs::read(&path).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "no corpus for {name}");
    }
}
