//! A volume whose data folder was moved by itself: each command is told where it is now.

mod common;

use std::fs;

use common::{Bench, Ran, pattern};

/// A bench with a volume `box`, whose folder is the one that was named last.
struct Moved {
    bench: Bench,
    data: String,
    moves: usize,
}

impl Moved {
    fn new() -> Moved {
        let bench = Bench::bare();
        bench.run(["volume", "init", "box", "--capacity", "256M", "--data", "data"]).expect(0);
        fs::write(bench.path("big"), pattern(1 << 20)).unwrap();
        bench.run(["put", "box", "big", "/big"]).expect(0);
        bench.run(["snapshot", "create", "box", "s"]).expect(0);
        Moved { bench, data: "data".to_owned(), moves: 0 }
    }

    fn again(&mut self) {
        self.moves += 1;
        let next = format!("moved-{}", self.moves);
        fs::rename(self.bench.path(&self.data), self.bench.path(&next)).unwrap();
        self.data = next;
    }

    fn run(&self, line: &str) -> Ran {
        self.bench.run(line.split(' '))
    }

    fn told(&self, line: &str) -> Ran {
        self.run(&format!("{line} --data {}", self.data))
    }
}

#[test]
fn who_reads_is_told_each_time() {
    let mut moved = Moved::new();
    moved.again();
    for line in [
        "ls box",
        "tree box",
        "cat box /big",
        "get box /big copy",
        "volume info box",
        "snapshot list box",
        "clone list box",
        "snapshot diff box s",
    ] {
        moved.told(line).expect(0);
        moved.run(line).expect(1).says("--data DIR");
    }
    assert_eq!(fs::read(moved.bench.path("copy")).unwrap(), pattern(1 << 20));
    let info = moved.told("volume info box --json").expect(0).json();
    assert!(info["data_dir"].as_str().unwrap().starts_with(&moved.bench.str(&moved.data)), "{info}");
    assert!(info["allocated_bytes"].as_u64().unwrap() > 1 << 20, "{info}");
    // Without the folder it says what the file alone can tell.
    let outline = moved.run("volume info box --json").expect(1).says("--data DIR").json();
    for field in ["path", "kind", "format", "uuid", "capacity_bytes", "segment_len_bytes", "durability", "data"] {
        assert_eq!(outline[field], info[field], "{field}: {outline}");
    }
    let expected = moved.bench.path("").canonicalize().unwrap().join("data").join(info["uuid"].as_str().unwrap());
    assert_eq!(outline["data_dir"], expected.to_str().unwrap());
    assert!(moved.run("volume info box").expect(1).text().contains("256.0 MiB"));
}

#[test]
fn what_changes_the_volume_has_it_remember_the_place() {
    let mut moved = Moved::new();
    for line in [
        "put box big /d",
        "mkdir box /made",
        "mv box /made /there",
        "rm box /there -ry",
        "snapshot create box t",
        "clone create box t b",
        "snapshot restore box t -y",
        "clone delete box b -y",
        "snapshot delete box t -y",
        "volume gc box",
        "volume resize box 300M",
        "volume check box --repair -y",
    ] {
        moved.again();
        moved.run(line).expect(1);
        moved.told(line).expect(0);
        moved.run("cat box /big").expect(0);
    }
    moved.run("volume check box").expect(0);
}

#[test]
fn a_wrong_folder_is_refused() {
    let mut moved = Moved::new();
    fs::create_dir(moved.bench.path("empty")).unwrap();
    moved.run("volume init other --data others").expect(0);
    moved.again();
    moved.run("ls box --data nowhere").expect(1).says("is not there");
    moved.run("ls box --data empty").expect(1).says("no data of the volume").says("volume init --data");
    moved.run("put box big /x --data others").expect(1).says("no data of the volume");
    // Another volume's blocks under this one's name.
    let part = |dir: &str| fs::read_dir(moved.bench.path(dir)).unwrap().next().unwrap().unwrap().file_name();
    let (own, other) = (part(&moved.data), part("others"));
    fs::rename(moved.bench.path("others").join(&other), moved.bench.path("others").join(&own)).unwrap();
    moved.run("ls box --data others").expect(1).says("another volume");
    // A copy of the file from before the folder was changed last.
    fs::copy(moved.bench.path("box"), moved.bench.path("old")).unwrap();
    moved.told("put box big /later").expect(0);
    moved.told("put old big /x").expect(1).says("has changed since");
    moved.run("cat box /later").expect(0);
    // What has none.
    moved.run("volume init plain").expect(0);
    moved.told("ls plain").expect(1).says("in the volume's own file");
    moved.told("put plain big /").expect(1).says("in the volume's own file");
    moved.told("ls .").expect(2).says("no data folder");
}
