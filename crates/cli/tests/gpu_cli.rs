//! `--device`, `--explain`, `adit index measure` and what `adit doctor` says of devices, as a user meets them. Whatever the machine has: what is
//! printed is the same with a device and without.

mod common;

use std::fs;
use std::ops::ControlFlow;

use adit_core::types::Kind;
use adit_index::{Builder, Entry};
use common::{Bench, Ran};

/// A folder `work` of some hundred files, and its index `i`; `j` is of the same folder later.
fn bench() -> Bench {
    let bench = Bench::bare();
    for number in 0..300 {
        let dir = bench.path("work").join(format!("d{}", number % 7)).join(format!("e{}", number % 3));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("n{number}.txt")), vec![b'x'; number % 5]).unwrap();
    }
    index(&bench, &["build", "work", "-o", "i", "--hash"]).expect(0);
    for number in (0..300).step_by(11) {
        let dir = bench.path("work").join(format!("d{}", number % 7)).join(format!("e{}", number % 3));
        fs::rename(dir.join(format!("n{number}.txt")), dir.join(format!("m{number}.txt"))).unwrap();
    }
    index(&bench, &["build", "work", "-o", "j", "--hash"]).expect(0);
    bench
}

fn index(bench: &Bench, args: &[&str]) -> Ran {
    bench.run(["index"].iter().chain(args))
}

/// The name of a program that plays a device, if the machine has one.
fn software(bench: &Bench) -> Option<String> {
    let told = bench.run(["doctor", "--json"]).json();
    let devices = told["index_devices"]["devices"].as_array().unwrap();
    let Some(played) = devices.iter().find(|device| device["software"] == true) else {
        assert!(
            std::env::var_os("CI").is_none(),
            "no driver offers a program: install mesa-vulkan-drivers and libvulkan1"
        );
        eprintln!("not run: no driver offers a device");
        return None;
    };
    Some(played["name"].as_str().unwrap().to_owned())
}

/// Questions that a device has a part in.
const QUESTIONS: [&[&str]; 9] = [
    &["find", "i", "n1"],
    &["find", "i", "--glob", "d1/**/n*5.txt"],
    &["find", "i", "--regex", "[a-m]/n[0-9]{2}\\.", "--full-path", "--json"],
    &["find", "i", "n1", "--below", "/d3", "--sort", "name", "-n", "5"],
    &["find", "i", "-i", "TXT", "--count"],
    &["resolve", "i", "d1/e1/n1.txt", "d1/../d2/e2/n2.txt", "d1/none/x", "d1/e1/n1.txt/x", "--json"],
    &["dupes", "i"],
    &["dupes", "i", "--below", "d2", "--json"],
    &["diff", "i", "j"],
];

#[test]
fn a_device_prints_what_the_processor_prints() {
    let bench = bench();
    let Some(name) = software(&bench) else { return };
    let device = format!("gpu:{name}");
    for question in QUESTIONS {
        let by = |device: &str| index(&bench, &[question, &["--device", device]].concat());
        let (processor, device) = (by("cpu"), by(&device));
        assert_eq!((device.code, &device.stdout), (processor.code, &processor.stdout), "{question:?}");
        assert_eq!(device.stderr, processor.stderr, "{question:?}");
        assert_eq!(by("auto").stdout, processor.stdout, "{question:?}");
    }
    let explained = index(&bench, &["find", "i", "n1", "--device", &device, "--explain"]).expect(0);
    for words in ["because it was asked for", &name, "it took", "the processor"] {
        assert!(explained.stderr.contains(words), "{words}: {}", explained.stderr);
    }
    // From standard input, with what leads nowhere.
    let mut resolve = bench.command();
    resolve.args(["index", "resolve", "i", "--explain", "--device", &device]);
    let ran = common::run(resolve, b"d1/e1/n1.txt\nnone\n").expect(1).says("none: not found");
    assert_eq!(ran.text(), "/d1/e1/n1.txt\n");
    assert!(ran.stderr.contains("2 paths to find"), "{}", ran.stderr);
    // A program is none that `gpu` alone takes.
    let real = bench.run(["doctor", "--json"]).json();
    if real["index_devices"]["devices"].as_array().unwrap().iter().all(|device| device["software"] == true) {
        index(&bench, &["find", "i", "n1", "--device", "gpu"]).expect(10).says("a program that plays one");
    }
}

#[test]
fn who_answers_is_said_and_chosen() {
    let bench = bench();
    let explained = index(&bench, &["find", "i", "n1", "--device", "cpu", "--explain"]).expect(0);
    explained.says("because it was asked for");
    // Nobody has asked a driver yet, and nobody does for so little.
    let explained = index(&bench, &["dupes", "i", "--explain"]).expect(0);
    explained.says("no other engine can be taken").says("drivers were not asked yet");
    index(&bench, &["diff", "i", "j", "--explain"]).expect(0).says("nodes to pair by path");
    let none = index(&bench, &["find", "i", "n1", "--device", "gpu:nothing is called that"]).expect(10);
    assert_eq!(none.says("nothing is called that").text(), "");
    index(&bench, &["find", "i", "n1", "--device", "abacus"]).expect(2).says("none of cpu, gpu");
    // By the environment, unless an argument says something else.
    let with = |variable: &str, args: &[&str]| {
        let mut command = bench.command();
        command.env("ADIT_DEVICE", variable).args(["index", "find", "i", "n12"]).args(args);
        common::run(command, b"")
    };
    with("gpu:nothing is called that", &[]).expect(10);
    with("gpu:nothing is called that", &["--device", "cpu"]).expect(0);
    with("abacus", &[]).expect(2).says("ADIT_DEVICE");
    assert_eq!(with("", &[]).expect(0).text(), with("cpu", &[]).expect(0).text());
    assert!(!bench.path(".cache/adit").exists(), "nothing was measured for so little");
}

#[test]
fn what_was_measured_is_kept_and_told() {
    let bench = bench();
    let Some(name) = software(&bench) else { return };
    bench.run(["doctor"]).text_says("devices for an index").text_says("nothing was measured yet");
    // Figures of a few hundred paths would stand for all indexes.
    index(&bench, &["measure", "i"]).expect(2).says("too few to measure with").says("16384");
    assert!(!bench.path(".cache/adit/devices.json").exists());
    large(&bench, "large", 20_000);
    // Of a program only if it is named.
    let device = format!("gpu:{name}");
    let told = index(&bench, &["measure", "large", "--json", "--device", &device]).expect(0).json();
    let works = |told: &serde_json::Value| {
        let measured = told["devices"][0]["measured"].as_array().unwrap();
        measured.iter().map(|one| one["work"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let expected = ["resolve", "substring", "names", "states", "paths", "twins", "pairs", "upload", "open"];
    assert_eq!(works(&told), expected);
    assert!(bench.path(".cache/adit/devices.json").exists());
    let doctor = bench.run(["doctor", "--json"]).json();
    let devices = doctor["index_devices"]["devices"].as_array().unwrap();
    let kept = devices.iter().find(|device| device["name"] == name.as_str()).unwrap();
    assert_eq!(kept["measured"].as_array().unwrap().len(), expected.len());
    assert!(kept["binding_len_max_bytes"].as_u64().unwrap() > 0);
    let doctor = bench.run(["doctor"]).text_says("paths to find").text();
    assert!(!doctor.contains("0.0ns") && !doctor.contains(" 0 ns"), "{doctor}");
    assert!(doctor.lines().any(|line| line.contains("device to open: ") && line.ends_with("s each")), "{doctor}");
    // Known is known, until it is to be measured again.
    let kept = || fs::read(bench.path(".cache/adit/devices.json")).unwrap();
    let first = kept();
    let seen = |kept: &[u8]| -> Vec<u64> {
        let told: serde_json::Value = serde_json::from_slice(kept).unwrap();
        let works =
            told["engines"].as_object().unwrap().values().filter_map(|works| works["resolve"]["points"].as_array());
        works.flatten().map(|point| point["seen"].as_u64().unwrap()).collect()
    };
    index(&bench, &["measure", "large", "--device", &device]).expect(0);
    assert_eq!(seen(&kept()), seen(&first));
    index(&bench, &["measure", "large", "--device", &device, "--again"]).expect(0);
    assert_ne!(kept(), first, "measured again");
    assert_eq!(seen(&kept()), seen(&first), "and not beside what was known");
    // Known, and yet not chosen: it is a program.
    let explained = index(&bench, &["find", "i", "n1", "--explain"]).expect(0);
    assert!(!explained.stderr.contains("because it is predicted"), "{}", explained.stderr);
}

/// An index of so many files.
fn large(bench: &Bench, name: &str, files: u32) {
    let mut builder = Builder::new(&bench.path("."), 64 << 20);
    for number in 0..files {
        let path = format!("d{}/n{number}", number % 1000);
        let entry = Entry {
            path: path.as_bytes(),
            kind: Kind::File,
            perm: 0o644,
            size: 1,
            mtime_ns: 0,
            hash: Some([number as u8; 16]),
            stamp: None,
            extra: &[],
        };
        builder.add(&entry).unwrap();
    }
    builder.finish(&bench.path(name), &mut |_| ControlFlow::Continue(())).unwrap();
}

#[test]
fn a_large_index_has_devices_measured_in_the_background() {
    let bench = Bench::bare();
    large(&bench, "large", 300_000);
    let kept = bench.path(".cache/adit/devices.json");
    // Who says that the processor is to answer has nothing looked for.
    index(&bench, &["find", "large", "n299999", "--device", "cpu"]).expect(0);
    assert!(!bench.path(".cache").exists());
    // Its pipes are not held by what goes on: this returns although that may still be at work.
    assert_eq!(index(&bench, &["find", "large", "n299999"]).expect(0).text(), "/d999/n299999\n");
    common::eventually("devices are looked for", || kept.exists());
    // What it says of devices is what `doctor` sees.
    let told: serde_json::Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    let doctor = bench.run(["doctor", "--json"]).json();
    let names = |list: &serde_json::Value| {
        list.as_array().unwrap().iter().map(|device| device["name"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&told["devices"]), names(&doctor["index_devices"]["devices"]));
    // Known for now: no driver is asked again, unless there is a real one of which something is not known yet.
    let tried = bench.path(".cache/adit/devices.tried");
    fs::remove_file(&tried).unwrap();
    let explained = index(&bench, &["find", "large", "n299999", "--explain"]).expect(0);
    let has_real = told["devices"].as_array().unwrap().iter().any(|device| device["software"] == false);
    assert!(has_real || explained.stderr.contains("no other engine can be taken"), "{}", explained.stderr);
    assert!(has_real || !tried.exists());
}

trait TextSays {
    fn text_says(self, what: &str) -> Self;
}

impl TextSays for Ran {
    #[track_caller]
    fn text_says(self, what: &str) -> Ran {
        assert!(self.text().contains(what), "{what:?} is not in: {}", self.text());
        self
    }
}
