//! What a `put` leaves that is killed, and who removes it.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::io::Write;
use std::process::Stdio;

use common::{Bench, Killed, Start, eventually, pattern};
use mounts::Points;

/// So much of a stream was taken that the copy has been begun.
const TAKEN: usize = 4 << 20;

/// `put SOURCE - PATH` that has begun and waits for the rest of standard input.
fn begun(bench: &Bench, source: &[&str], path: &str) -> Killed {
    let mut command = bench.command();
    command.arg("put").args(source).args(["-", path]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut put = Killed(command.start().unwrap());
    put.0.stdin.as_mut().expect("piped").write_all(&pattern(TAKEN)).unwrap();
    put
}

fn listed(bench: &Bench, source: &[&str]) -> Vec<String> {
    let listed = bench.run([&["ls", source[0], "-R"], &source[1..]].concat()).expect(0).text();
    listed.lines().map(str::to_owned).collect()
}

fn parts(bench: &Bench, source: &[&str]) -> Vec<String> {
    listed(bench, source).into_iter().filter(|name| name.ends_with(".part")).collect()
}

/// The next `put` removes what a killed one left, in whatever folder, and nothing else that looks like it.
fn next_put_removes(bench: &Bench, source: &[&str]) {
    let run = |args: &[&str]| bench.run([&[args[0], source[0]], &args[1..], &source[1..]].concat());
    fs::write(bench.path(".adit-1-2-3.part"), "mine").unwrap();
    fs::write(bench.path("host"), "host").unwrap();
    run(&["mkdir", "/other", "/secretly-named"]).expect(0);
    run(&["mkdir", "/secretly-named/deep"]).expect(0);
    run(&["put", ".adit-1-2-3.part", "/secretly-named/deep"]).expect(0);
    drop(begun(bench, source, "/secretly-named/deep/x"));
    let mine = "secretly-named/deep/.adit-1-2-3.part";
    let is_left = |left: &[String]| left.len() == 2 && left.iter().any(|name| name == mine);
    let left = parts(bench, source);
    assert!(is_left(&left) && left.iter().all(|name| name.starts_with("secretly-named/deep/")), "{left:?}");
    let state = bench.path("state");
    let grep = bench.command_of("grep").args(["-r", "secretly-named"]).arg(state).start_and_wait().unwrap();
    assert_eq!(grep.code(), Some(1), "no name of what is in the source is noted");
    // Removed by one that is killed as well.
    drop(begun(bench, source, "/y"));
    let left = parts(bench, source);
    assert!(is_left(&left) && left.iter().any(|name| name.starts_with(".adit-")), "{left:?}");
    run(&["mkdir", "/more"]).expect(0);
    assert_eq!(parts(bench, source), left, "whoever names one means it");
    run(&["put", "host", "/other"]).expect(0).says("had not finished (1)");
    assert_eq!(parts(bench, source), [mine]);
    let again = run(&["put", "host", "/other"]).expect(0);
    assert_eq!(again.remarks(), "");
    assert_eq!(fs::read_dir(bench.path("state/adit/puts")).unwrap().count(), 0);
}

#[test]
fn the_next_put_removes_what_a_killed_one_left_in_a_volume() {
    let bench = Bench::bare();
    bench.run(["volume", "init", "box"]).expect(0);
    next_put_removes(&bench, &["box"]);
}

#[test]
fn the_next_put_removes_what_a_killed_one_left_in_a_vault() {
    let bench = Bench::new();
    next_put_removes(&bench, &["vault", "--password-file", bench.password_str()]);
}

#[test]
fn the_next_put_removes_what_a_killed_one_left_in_a_mounted_volume() {
    let Some(points) = Points::new(&["mnt"]) else { return };
    points.bench.run(["volume", "init", "box"]).expect(0);
    points.bench.run(["mount", "box", "mnt"]).expect(0);
    next_put_removes(&points.bench, &["box"]);
    // One that is killed beside a mount is cleared away without it, too.
    drop(begun(&points.bench, &["box"], "/other/z"));
    assert_eq!(parts(&points.bench, &["box"]).len(), 2);
    points.bench.run(["umount", "mnt"]).expect(0);
    points.bench.run(["put", "box", "host", "/"]).expect(0).says("had not finished (1)");
}

/// One that is at work beside others loses nothing.
#[test]
fn a_put_that_is_at_work_is_left_alone() {
    let bench = Bench::bare();
    fs::create_dir(bench.path("folder")).unwrap();
    fs::write(bench.path("host"), "host").unwrap();
    let mut slow = begun(&bench, &["folder"], "/slow");
    let ran = bench.run(["put", "folder", "host", "/"]).expect(0);
    assert_eq!(ran.remarks(), "");
    assert_eq!(parts(&bench, &["folder"]).len(), 1);
    drop(slow.0.stdin.take());
    eventually("it ends", || slow.0.try_wait().unwrap().is_some());
    assert_eq!(fs::read(bench.path("folder/slow")).unwrap(), pattern(TAKEN));
    assert!(parts(&bench, &["folder"]).is_empty());
}
