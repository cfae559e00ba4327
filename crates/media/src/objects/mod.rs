//! Object stores: the seam [`Objects`](adit_core::media::Objects) over a folder of this machine.

mod folder;

pub use folder::FolderObjects;
