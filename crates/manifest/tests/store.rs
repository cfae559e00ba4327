//! A manifest as a store: its tree, its content, and what happens when the objects behind it are not what they should be.

#[path = "store/build.rs"]
mod build;
#[path = "store/calls.rs"]
mod calls;
#[path = "store/content.rs"]
mod content;
#[path = "store/faults.rs"]
mod faults;
#[path = "store/segments.rs"]
mod segments;
#[path = "store/support.rs"]
mod support;
#[path = "store/tree.rs"]
mod tree;
