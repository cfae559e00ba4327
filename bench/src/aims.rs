//! What adit is to reach in a row where that depends on the store: rows carry the aims of the vault.

use crate::Subject;
use crate::report::{Aim, JUICEFS_SQLITE, Row};

/// The aim of a row.
pub fn of(subject: Subject, row: &Row) -> Aim {
    match subject {
        Subject::Vault | Subject::Manifest | Subject::Index => row.aim,
        Subject::Volume => of_volume(row),
    }
}

/// Of the volume, by the row's name.
fn of_volume(row: &Row) -> Aim {
    match row.name {
        "create + clean unmount + syncfs of the disk" => Aim::Side(JUICEFS_SQLITE, 20.0),
        "unlink + clean unmount + syncfs of the disk" => Aim::Side(JUICEFS_SQLITE, 10.0),
        "stat of each, warm"
        | "`ls -lR`, warm"
        | "fstat of an open file"
        | "4 KiB pread of an open file, warm"
        | "random 4 KiB read, warm"
        | "sequential read, warm" => Aim::Host(0.9),
        "`ls -lR`, cold" | "untar + clean unmount + syncfs of the disk" => Aim::Host(0.5),
        "sequential write, fsync included" | "sequential read, cold" | "random 4 KiB read, cold" => Aim::Host(0.7),
        // The same whatever the store.
        _ if matches!(row.aim, Aim::Gocryptfs(_)) => Aim::None,
        _ => row.aim,
    }
}
