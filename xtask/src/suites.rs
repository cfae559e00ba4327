//! The suites of others that run against a mounted vault, volume, overlay and writable manifest: pjdfstest, fsx, fio with verification.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::mounted::{self, Kind, Mounted};
use crate::stage::{Outcome, Run};
use crate::{apt, process, tools, workplace};

/// The suites' time limit: many times what they take, so that only a hang meets it.
const SUITE_LIMIT: Duration = Duration::from_secs(1200);

/// A vault with the cipher combination that it has if nobody chose another, and with the other one.
const VAULT: Kind = Kind::Vault("siv-gcm");
const OTHER_VAULT: Kind = Kind::Vault("siv-ctrmac");

/// pjdfstest's tests that a source cannot pass, with the reason.
fn pjdfstest_expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Vault(_) => "xtask/suites/pjdfstest-vault.expected",
        Kind::Volume | Kind::VolumeWithFolder | Kind::Overlay | Kind::Manifest => {
            "xtask/suites/pjdfstest-volume.expected"
        }
    }
}

/// pjdfstest's tests that run on no source here, with the reason.
const PJDFSTEST_SKIPPED: &str = "xtask/suites/pjdfstest.skipped";

/// Runs pjdfstest on each kind of mount, with both cipher combinations: a failure that the list does not expect is red, and so is an expected one
/// that passes or that no longer runs, and a test that is skipped without being listed as such, or the reverse.
pub fn pjdfstest(_: &Run) -> Result<Outcome> {
    if let Some(why) = workplace::mount_obstacle() {
        return Ok(Outcome::NotRun(why.to_owned()));
    }
    apt::ensure(apt::ACL.iter().chain([&apt::FUSE]))?;
    let program = tools::PJDFSTEST.ensure()?;
    let adit = mounted::build_debug()?;
    for kind in [VAULT, OTHER_VAULT, Kind::Volume, Kind::VolumeWithFolder, Kind::Overlay, Kind::Manifest] {
        pjdfstest_on(&adit, kind, &program)?;
    }
    Ok(Outcome::Passed)
}

fn pjdfstest_on(adit: &Path, kind: Kind, program: &Path) -> Result<()> {
    let list = pjdfstest_expected(kind);
    let (expected, skipped) = (read_expected(list)?, read_expected(PJDFSTEST_SKIPPED)?);
    let mount = Mounted::start(adit, "pjdfstest", kind, &[])?;
    let config = mount.scratch().join("pjdfstest.toml");
    fs::write(&config, pjdfstest_config(&expected))?;
    let elsewhere = mount.scratch().join("elsewhere");
    fs::create_dir(&elsewhere)?;
    let report = mount.scratch().join("pjdfstest.out");
    let mut suite = Command::new(program);
    suite.arg("-c").arg(&config).arg("-p").arg(mount.mountpoint()).arg("-s").arg(&elsewhere);
    suite.env("NO_COLOR", "1").stdout(File::create(&report)?);
    eprintln!("$ {}", process::shown(&suite));
    let status = process::status(&mut suite, SUITE_LIMIT)?;
    let report = fs::read_to_string(&report)?;
    print!("{}", worth_showing(&report));
    let absent = not_failed_as_expected(&report, &expected);
    if !absent.is_empty() {
        bail!("{list} lists tests that did not fail as expected: {}", absent.join(", "));
    }
    let otherwise = skipped_otherwise(&report, &skipped);
    if !otherwise.is_empty() {
        bail!("{PJDFSTEST_SKIPPED} is not what was skipped: {}", otherwise.join(", "));
    }
    if !status.success() {
        bail!("pjdfstest: {status}; the mount's log:\n{}", mount.log_tail());
    }
    mount.finish()
}

fn read_expected(list: &str) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(workplace::root().join(list)).with_context(|| format!("cannot read {list}"))?;
    parse_expected(list, &text)
}

/// Reads the lines `test::name  # reason`; a line without a reason is an error.
fn parse_expected(list: &str, text: &str) -> Result<BTreeMap<String, String>> {
    let mut expected = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, reason) = line.split_once('#').unwrap_or((line, ""));
        let (name, reason) = (name.trim(), reason.trim());
        if name.is_empty() || reason.is_empty() {
            bail!("{list}:{}: expected `test::name  # reason`", number + 1);
        }
        if expected.insert(name.to_owned(), reason.to_owned()).is_some() {
            bail!("{list}:{}: {name} is listed twice", number + 1);
        }
    }
    Ok(expected)
}

fn pjdfstest_config(expected: &BTreeMap<String, String>) -> String {
    let mut failures = String::new();
    for name in expected.keys() {
        // Writing to a String cannot fail.
        let _ = writeln!(failures, "  {name:?},");
    }
    // Below 0.01 s of naptime, timestamp tests fail on ext4 itself.
    format!(
        r#"[features]
posix_fallocate = {{}}
rename_ctime = {{}}
utime_now = {{}}
utimensat = {{}}

[settings]
naptime = 0.01
allow_remount = false
expected_failures = [
{failures}]

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#
    )
}

/// The report without the tests that passed, so that what is left can be read.
fn worth_showing(report: &str) -> String {
    let mut text = String::new();
    for line in report.lines().filter(|line| !line.trim_end().ends_with(" ok")) {
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn not_failed_as_expected(report: &str, expected: &BTreeMap<String, String>) -> Vec<String> {
    let failed = |name: &str| {
        report.lines().any(|line| {
            line.split_once(char::is_whitespace)
                .is_some_and(|(test, verdict)| test == name && verdict.trim() == "failed as expected")
        })
    };
    expected.keys().filter(|name| !failed(name)).cloned().collect()
}

/// What was skipped and is not listed, and what is listed and was not skipped.
fn skipped_otherwise(report: &str, listed: &BTreeMap<String, String>) -> Vec<String> {
    let verdicts = report.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let skipped: BTreeSet<&str> =
        verdicts.filter(|(_, verdict)| verdict.trim() == "skipped").map(|(test, _)| test).collect();
    let unlisted = skipped.iter().filter(|test| !listed.contains_key(**test)).map(|test| format!("{test} was skipped"));
    let run = listed.keys().filter(|test| !skipped.contains(test.as_str())).map(|test| format!("{test} was not"));
    unlisted.chain(run).collect()
}

/// Every operation of fsx that a vault offers, mmap among them, on a file of 32 chunks. Left out: `punch_hole`, which a
/// vault refuses (EOPNOTSUPP), for every chunk of it is encrypted.
const FSX_CONFIG: &str = "flen = 1048576

[opsize]
min = 0
max = 131072

[weights]
close_open = 1.0
invalidate = 1.0
mapread = 5.0
mapwrite = 5.0
read = 10.0
write = 10.0
truncate = 3.0
fsync = 0.5
fdatasync = 0.5
posix_fallocate = 1.0
sendfile = 1.0
posix_fadvise = 1.0
copy_file_range = 2.0
";

/// What a volume offers besides.
const FSX_PUNCHING: &str = "punch_hole = 3.0\n";

/// Runs fsx with several seeds: on a vault through the default mount, through an exclusive one (kernel write-back), and with
/// the other cipher combination; on a volume, also one with a data folder; on an overlay; and on a writable manifest.
pub fn fsx(run: &Run) -> Result<Outcome> {
    if let Some(why) = workplace::mount_obstacle() {
        return Ok(Outcome::NotRun(why.to_owned()));
    }
    apt::ensure([&apt::FUSE])?;
    let program = tools::FSX.ensure()?;
    let adit = mounted::build_debug()?;
    let (seeds, operations) = if run.long { (10, 100_000) } else { (3, 4_000 * u64::from(run.scale)) };
    let exclusive = &["-o", "exclusive"][..];
    let mounts = [
        (VAULT, &[][..]),
        (VAULT, exclusive),
        (OTHER_VAULT, &[]),
        (Kind::Volume, &[]),
        (Kind::VolumeWithFolder, &[]),
        (Kind::Overlay, &[]),
        (Kind::Manifest, &[]),
    ];
    for (kind, options) in mounts {
        let mount = Mounted::start(&adit, "fsx", kind, options)?;
        // To keep CI short: all but where blocks lie is the code of a volume in one file, and all but what lies below that of an overlay.
        let seeds = if matches!(kind, Kind::VolumeWithFolder | Kind::Manifest) && !run.long { 1 } else { seeds };
        for seed in 1..=seeds {
            fsx_once(&program, &mount, kind, seed, operations)?;
        }
        mount.finish()?;
    }
    Ok(Outcome::Passed)
}

fn fsx_once(program: &Path, mount: &Mounted, kind: Kind, seed: u64, operations: u64) -> Result<()> {
    let config = mount.scratch().join("fsx.toml");
    let more = if matches!(kind, Kind::Vault(_)) { "" } else { FSX_PUNCHING };
    fs::write(&config, format!("{FSX_CONFIG}{more}"))?;
    let mut command = Command::new(program);
    command.arg("-f").arg(&config).arg("-P").arg(mount.scratch());
    command.args(["-S", &seed.to_string(), "-N", &operations.to_string()]);
    command.arg(mount.mountpoint().join(format!("fsx-{seed}")));
    process::run(&mut command, SUITE_LIMIT)
        .with_context(|| format!("fsx with seed {seed}; the mount's log:\n{}", mount.log_tail()))
}

/// Runs fio with verification: random reads and writes, through system calls and through mmap.
pub fn fio(run: &Run) -> Result<Outcome> {
    if let Some(why) = workplace::mount_obstacle() {
        return Ok(Outcome::NotRun(why.to_owned()));
    }
    apt::ensure([&apt::FUSE, &apt::FIO])?;
    let adit = mounted::build_debug()?;
    for kind in [VAULT, OTHER_VAULT, Kind::Volume] {
        let mount = Mounted::start(&adit, "fio", kind, &[])?;
        let size = format!("--size={}m", if run.long { 512 } else { 64 });
        for engine in ["psync", "mmap"] {
            fio_once(&mount, engine, &size)?;
        }
        mount.finish()?;
    }
    Ok(Outcome::Passed)
}

fn fio_once(mount: &Mounted, engine: &str, size: &str) -> Result<()> {
    let mut fio = Command::new("fio");
    fio.args(["--rw=randrw", "--bs=4k-64k", "--numjobs=2"]);
    fio.args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1"]);
    fio.arg(format!("--name={engine}")).arg(format!("--ioengine={engine}")).arg(size);
    fio.arg(format!("--directory={}", mount.mountpoint().display()));
    // Its report is of no interest unless it fails. The state files that fio leaves belong to the scratch folder.
    let report = mount.scratch().join("fio.out");
    fio.arg("--output").arg(&report).current_dir(mount.scratch());
    process::run(&mut fio, SUITE_LIMIT)
        .with_context(|| format!("fio with {engine}; the mount's log:\n{}", mount.log_tail()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expected_failure_needs_a_reason() {
        let parsed = parse_expected("list", "# head\n\nlink::enoent  # no hard links\n").expect("well-formed");
        assert_eq!(parsed["link::enoent"], "no hard links");
        assert!(parse_expected("list", "link::enoent\n").is_err());
        assert!(parse_expected("list", "link::enoent #\n").is_err());
        assert!(parse_expected("list", "a # x\na # y\n").is_err());
    }

    #[test]
    fn a_listed_test_must_have_failed() {
        let expected = parse_expected("list", "a::b # r\nc::d # r\ne # r\n").expect("well-formed");
        let report = "a::b       failed as expected\nc::d    PASSED UNEXPECTEDLY\n";
        assert_eq!(not_failed_as_expected(report, &expected), ["c::d", "e"]);
    }

    #[test]
    fn what_is_skipped_must_be_listed_and_the_reverse() {
        let listed = parse_expected("list", "a::b # r\nc # r\n").expect("well-formed");
        let report = "a::b       skipped\n\trequires features: x\nc    ok\nd  skipped\n";
        assert_eq!(skipped_otherwise(report, &listed), ["d was skipped", "c was not"]);
        assert_eq!(skipped_otherwise("a::b skipped\nc  skipped\n", &listed), [""; 0]);
    }
}
