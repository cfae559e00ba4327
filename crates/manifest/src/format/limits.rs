//! Limits of what is read: each far beyond real manifests, and small enough that no manifest can take the reader down.

/// Longest component of a path in bytes, as it lies on a host (POSIX `NAME_MAX` on Linux).
pub const NAME_LEN_MAX_BYTES: usize = adit_core::types::NAME_LEN_MAX_BYTES;

/// Longest path in bytes, as it lies on a host (`PATH_MAX` on Linux): a longer one cannot be opened by its path.
pub const PATH_LEN_MAX_BYTES: usize = 4096;

/// Most components of a path. Real trees have a tenth of it; whoever walks a tree needs room for each level.
pub const PATH_DEPTH_MAX: usize = 512;

/// Longest target of a symbolic link in bytes (`PATH_MAX` on Linux, less its NUL).
pub const TARGET_LEN_MAX_BYTES: usize = PATH_LEN_MAX_BYTES - 1;

/// Deepest nesting of the JSON text. The formats need four levels; the rest is for keys that are ignored.
pub const JSON_DEPTH_MAX: u32 = 32;

/// Longest string of the JSON text in bytes, as it is written there. The longest path takes 24,576: each of its bytes as an
/// escape of six characters.
pub const JSON_STRING_LEN_MAX_BYTES: u32 = 32 << 10;

/// Most entries. Nodes of an index have numbers of 32 bits, and directories that are only implied take some of them.
pub const ENTRIES_MAX: u64 = 1 << 30;

/// Most directories that a manifest may list: `$N` refers to them by number, so they are kept in memory while it is read, with
/// some 20 bytes each.
pub const DIRECTORIES_MAX: usize = 1 << 24;

/// Most bytes of names in the list of directories, all together, for the same reason.
pub const DIRECTORY_NAMES_MAX_BYTES: usize = 1 << 30;

/// Largest file in bytes: what an offset can hold (`off_t`).
pub const FILE_SIZE_MAX_BYTES: u64 = i64::MAX as u64;

/// Largest sum of the sizes of all files.
pub const TOTAL_SIZE_MAX_BYTES: u64 = i64::MAX as u64;

/// Length in bytes of every chunk of a chunked file but its last, 256 MiB.
pub const CHUNK_LEN_BYTES: u64 = 256 << 20;

/// Most chunks of a file: 64 TiB, four times the largest file of ext4. Their hashes, 4 MiB, are in memory together.
pub const CHUNKS_PER_FILE_MAX: usize = 1 << 18;

/// The limits of what takes memory or numbers, so that tests can have smaller ones.
#[derive(Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) entries: u64,
    pub(crate) directories: usize,
    pub(crate) directory_names_bytes: usize,
}

impl Default for Counts {
    fn default() -> Self {
        Counts { entries: ENTRIES_MAX, directories: DIRECTORIES_MAX, directory_names_bytes: DIRECTORY_NAMES_MAX_BYTES }
    }
}
