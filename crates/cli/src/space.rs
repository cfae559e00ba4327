//! What is full where there was no space left, and what to do about it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::commands::volume::{data_dir_of, superblock_of, taken_by};

/// Where a command needs space.
#[derive(Clone, Debug)]
pub enum Room {
    /// In the volume in this file.
    Volume(PathBuf),
    /// On the disks that these lie on.
    Disks(Vec<PathBuf>),
}

impl Room {
    /// What to do where there is none.
    pub fn advice(&self) -> String {
        match self {
            Room::Volume(file) => match disk_that_ends_first(file) {
                Some(place) => disk_is_full(&place),
                None => format!(
                    "the volume is full: delete something, also of its snapshots, or make it larger: adit volume resize {} SIZE",
                    file.display()
                ),
            },
            Room::Disks(places) => {
                let fullest = places.iter().min_by_key(|place| available(place).unwrap_or(u64::MAX));
                fullest.map_or_else(|| "make room there, and try again".to_owned(), |place| disk_is_full(place))
            }
        }
    }
}

fn disk_is_full(place: &Path) -> String {
    format!("the disk with {} is full: make room there, and try again", place.display())
}

/// What lies on the fuller disk of the host, the volume's file or its data folder, if that has less room than the volume may still
/// take: then that is what ends first. What was removed again because it did not fit makes no difference, for a volume keeps the
/// space for a while.
fn disk_that_ends_first(file: &Path) -> Option<PathBuf> {
    let superblock = superblock_of(file)?;
    // What lies in a data folder counts for the capacity.
    let data = data_dir_of(file, &superblock);
    let taken = file.metadata().map_or(0, |meta| meta.blocks() * 512) + data.as_deref().map_or(0, taken_by);
    let left = superblock.capacity.saturating_sub(taken);
    let disks = [Some(file), data.as_deref()].into_iter().flatten();
    let (least, place) = disks.filter_map(|place| Some((available(place)?, place))).min_by_key(|(least, _)| *least)?;
    (least < left).then(|| place.to_owned())
}

/// What this user may still write to the disk that something lies on, in bytes; the folder above it counts where that is not there.
fn available(place: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(place).or_else(|_| rustix::fs::statvfs(place.parent().unwrap_or(place))).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
