//! The limit of memory that the control groups of this process set.
//!
//! It is the least of those of its group and of all above it that this process sees: in a container the group is the root of what is seen. Version 1
//! and 2 are read where systems have them, below `/sys/fs/cgroup`. A limit that comes later is not seen by who asked before.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Where systems mount the trees of groups.
const ROOT: &str = "/sys/fs/cgroup";
/// From here on a number means that there is no limit (version 1 has one for that).
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// The limit, in bytes; `None` without one.
pub fn memory_limit_bytes() -> Option<u64> {
    limit_of(&fs::read_to_string("/proc/self/cgroup").ok()?, Path::new(ROOT))
}

/// The limit by the lines of `/proc/PID/cgroup` (cgroups(7)): number, controllers, path.
fn limit_of(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, Path::new(fields.next()?));
        match controllers {
            // Beside version 1, version 2 has a folder of its own.
            "" => [root.join("unified"), root.to_owned()]
                .iter()
                .filter_map(|tree| least(tree, path, &["memory.max", "memory.high"]))
                .min(),
            _ if controllers.split(',').any(|name| name == "memory") => {
                least(&root.join("memory"), path, &["memory.limit_in_bytes"])
            }
            _ => None,
        }
    });
    limits.min()
}

/// The least limit in a tree of groups, from its root to the group at `path`.
fn least(tree: &Path, path: &Path, files: &[&str]) -> Option<u64> {
    let mut group = PathBuf::from(tree);
    let steps = path.components().filter(|part| matches!(part, Component::Normal(_)));
    let groups = std::iter::once(group.clone()).chain(steps.map(|part| {
        group.push(part);
        group.clone()
    }));
    let read = |group: PathBuf| {
        let limit = |file: &&str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        files.iter().filter_map(limit).min()
    };
    groups.filter_map(read).filter(|&limit| limit < NO_LIMIT_BYTES).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn the_least_limit_on_the_way_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let v1 = "12:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n";
        assert_eq!(limit_of(v1, root), None);
        write(root, "memory/memory.limit_in_bytes", "9223372036854771712\n");
        write(root, "memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit_of(v1, root), None, "the number for none");
        write(root, "memory/a/memory.limit_in_bytes", "104857600\n");
        assert_eq!(limit_of(v1, root), Some(100 << 20));
        write(root, "memory/a/b/memory.limit_in_bytes", "67108864\n");
        assert_eq!(limit_of(v1, root), Some(64 << 20));
        // A container sees its group as the root, whatever the path says.
        assert_eq!(limit_of("4:memory:/docker/0123\n", root), None);
        write(root, "memory/memory.limit_in_bytes", "1048576\n");
        assert_eq!(limit_of("4:memory:/docker/0123\n", root), Some(1 << 20));
    }

    #[test]
    fn version_2_has_two_limits() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let v2 = "0::/user.slice/app\n";
        write(root, "user.slice/memory.max", "max\n");
        write(root, "user.slice/app/memory.max", "268435456\n");
        write(root, "user.slice/app/memory.high", "max\n");
        assert_eq!(limit_of(v2, root), Some(256 << 20));
        write(root, "user.slice/app/memory.high", "134217728\n");
        assert_eq!(limit_of(v2, root), Some(128 << 20));
        write(root, "unified/user.slice/app/memory.max", "8388608\n");
        assert_eq!(limit_of(v2, root), Some(8 << 20), "beside version 1");
        for text in ["", "0", "0:", "garbage\n", "x:memory:"] {
            assert_eq!(limit_of(text, root), None, "{text}");
        }
    }
}
