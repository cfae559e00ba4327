//! Replays the fuzz corpora (`fuzz/corpus/TARGET`) through the targets' bodies on a stable toolchain.

#[test]
fn every_corpus_replays() {
    adit_testkit::replay_corpora(adit_index::fuzzing::TARGETS);
}

/// It was written by a script that follows `docs/formats/index.md`, but for the checksums.
#[test]
fn a_tree_that_another_program_wrote_is_sound() {
    use adit_index::fuzzing::{opened, resealed};
    use std::ops::ControlFlow;

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/index_segment/tree");
    let segment = opened(&resealed(&std::fs::read(path).unwrap()).unwrap()).unwrap();
    segment.verify(&mut |_| ControlFlow::Continue(())).unwrap();
    let link = segment.lookup(adit_index::NodeId::ROOT, b"link").unwrap().unwrap();
    assert_eq!((segment.len(), segment.extra(link).unwrap()), (27, &b"target"[..]));
}
