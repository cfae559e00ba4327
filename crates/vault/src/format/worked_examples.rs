//! The worked examples of `docs/formats/vault.md`, encoded here and looked up there.

#[test]
fn placeholder_list() {}
