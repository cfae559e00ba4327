//! The folder for workers of AWS Deadline Cloud: installed, installed again, and not over anything else.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::Bench;

const SCRIPT: &str = "vfs/scripts/production/al2/run_deadline_vfs_al2.sh";

#[test]
fn an_installation_has_what_the_official_library_calls_and_is_replaced() {
    let bench = Bench::bare();
    let told = bench.run(["worker", "install", "vfs"]).expect(0).text();
    assert_eq!(told, format!("installed; give the worker agent DEADLINE_VFS_PATH={}\n", bench.path("vfs").display()));
    let program = bench.path("vfs/bin/deadline_vfs");
    assert!(program.is_symlink() && bench.path(SCRIPT).metadata().unwrap().permissions().mode() & 0o777 == 0o755);
    assert_eq!(bench.path("vfs/link/fusermount3").canonicalize().unwrap(), program.canonicalize().unwrap());
    bench.run(["worker", "install", "vfs", "--copy", "-o", "strict,cache_dir=/x y", "-o", "quiet"]).expect(0);
    assert!(!program.is_symlink() && program.metadata().unwrap().permissions().mode() & 0o111 == 0o111);
    let script = fs::read_to_string(bench.path(SCRIPT)).unwrap();
    assert!(script.ends_with("-o 'strict,cache_dir=/x y' -o 'quiet'\n"), "{script}");
    // It works wherever the folder lies, and by whatever relative name it is called.
    fs::rename(bench.path("vfs"), bench.path("moved to")).unwrap();
    let script = bench.path("moved to").join(SCRIPT.strip_prefix("vfs/").unwrap());
    let mut help = bench.command_of(script.to_str().unwrap());
    help.arg("--help").current_dir("/");
    assert!(common::run(help, b"").expect(0).text().contains("--casprefix"));
    let mut version = bench.command_of(bench.path("moved to/link/fusermount3").to_str().unwrap());
    version.arg("-V").env("PATH", format!("{}:/usr/bin:/bin", bench.path("moved to/link").display()));
    // The system's answers, and not this one again and again.
    let version = common::run(version, b"");
    assert!(version.code == Some(0) || version.stderr.contains("fusermount3 is not installed"), "{version:?}");
}

#[test]
fn what_is_not_of_an_installation_is_left_alone() {
    let bench = Bench::bare();
    for name in ["vfs/bin/deadline_vfs", SCRIPT] {
        fs::create_dir_all(bench.path(name).parent().unwrap()).unwrap();
        fs::write(bench.path(name), "#!/bin/sh\n").unwrap();
        bench.run(["worker", "install", "vfs"]).expect(1).says(name);
        assert_eq!(fs::read(bench.path(name)).unwrap(), b"#!/bin/sh\n");
    }
    for bad in ["nonsense", "cache_size=x", "writable"] {
        bench.run(["worker", "install", "new", "-o", bad]).expect(2);
        assert!(!bench.path("new").exists());
    }
}
