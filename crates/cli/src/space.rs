//! Where there was no space left, and what to do about it.

use std::path::{Path, PathBuf};

use adit_core::FsError;
use adit_volume::CapacityUsed;

use crate::commands::volume::{data_dir_of, superblock_of};

/// Where a command needs space.
#[derive(Clone, Debug)]
pub enum Room {
    /// In the volume in this file.
    Volume(PathBuf),
    /// On the disks that these lie on.
    Disks(Vec<PathBuf>),
}

impl Room {
    /// What to do where there is none, as `error` says.
    pub fn advice(&self, error: &FsError) -> String {
        match self {
            Room::Volume(file) if is_of_the_volume(error) => format!(
                "the volume is full: delete something, also of its snapshots, or make it larger: adit volume resize {} SIZE",
                file.display()
            ),
            // What lies in a data folder counts for the capacity.
            Room::Volume(file) => {
                let data = superblock_of(file).and_then(|superblock| data_dir_of(file, &superblock));
                disk_is_full([Some(file.clone()), data].into_iter().flatten())
            }
            Room::Disks(places) => disk_is_full(places.iter().cloned()),
        }
    }
}

/// Whether the volume has used up its capacity; else its host gave no more.
fn is_of_the_volume(error: &FsError) -> bool {
    error.cause().is_some_and(|cause| {
        cause.is::<CapacityUsed>() || cause.downcast_ref::<FsError>().is_some_and(is_of_the_volume)
    })
}

fn disk_is_full(places: impl Iterator<Item = PathBuf>) -> String {
    let fullest = places.min_by_key(|place| available(place).unwrap_or(u64::MAX));
    // What it shows as free says nothing: a quota of a project, or a thin pool below it, ends first, and what did not fit is removed again.
    fullest.map_or_else(
        || "make room there, and try again".to_owned(),
        |place| {
            format!("the disk with {} is full, or a quota or pool there: make room, and try again", place.display())
        },
    )
}

/// What this user may still write to the disk that something lies on, in bytes; the folder above it counts where that is not there.
fn available(place: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(place).or_else(|_| rustix::fs::statvfs(place.parent().unwrap_or(place))).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
