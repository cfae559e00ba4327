//! Replays what the fuzzers found worth keeping, without a fuzzer.

use std::fs;
use std::path::Path;

/// The name of a target, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Runs each target, by its name in `fuzz/fuzz_targets`, on all of `fuzz/corpus/NAME`. Panics as the body does, after saying on
/// which input, and for a target without a program or a corpus.
pub fn replay_corpora(targets: &[Target]) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    for (name, body) in targets {
        assert!(fuzz.join("fuzz_targets").join(name).with_extension("rs").is_file(), "{name}");
        let corpus = fuzz.join("corpus").join(name);
        let mut inputs = 0;
        for entry in fs::read_dir(&corpus).unwrap_or_else(|e| panic!("{}: {e}", corpus.display())) {
            let path = entry.expect("an entry").path();
            println!("{}", path.display()); // shown if the body panics
            body(&fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())));
            inputs += 1;
        }
        assert!(inputs > 0, "no corpus for {name}");
    }
}
