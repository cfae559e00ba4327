//! Replays the fuzz corpora (`fuzz/corpus/TARGET`) through the targets' bodies on a stable toolchain.

#[test]
fn every_corpus_replays() {
    adit_testkit::replay_corpora(&adit_manifest::format::fuzzing::TARGETS);
}
