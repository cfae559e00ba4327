//! Vaults without a mount: making them, their passwords, and those that other programs made.

mod common;

use std::fs;

use common::{Bench, PASSWORD, run};

#[test]
fn cli_nothing_of_the_content_is_in_the_vault() {
    let bench = Bench::new();
    fs::write(bench.path("secret-name.txt"), "secret content").unwrap();
    bench.open("put", &["secret-name.txt", "/"]).expect(0);
    let mut todo = vec![bench.vault(), bench.path("state")];
    while let Some(path) = todo.pop() {
        assert!(!path.file_name().unwrap().to_str().unwrap().contains("secret"));
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else {
            let bytes = fs::read(&path).unwrap();
            assert!(!bytes.windows(6).any(|w| w == b"secret"), "{}", path.display());
        }
    }
}

#[test]
fn cli_passwords_come_from_everywhere_but_arguments() {
    let bench = Bench::new();
    let vault = bench.vault_str();
    bench.run_with(["ls", vault, "--password-stdin"], PASSWORD.as_bytes()).expect(0);
    bench.run_with(["ls", vault, "--password-stdin"], format!("{PASSWORD}\n").as_bytes()).expect(0);
    bench.run_with(["ls", vault, "--password-stdin"], format!("{PASSWORD}\n\n").as_bytes()).expect(3);
    bench.run(["ls", vault, "--password-command", "cat password"]).expect(0);
    // Where there is nothing to read is a matter of the command line, wherever it was to come from.
    for nothing in [["--password-command", "exit 9"], ["--password-env", "UNSET"], ["--password-file", "missing"]] {
        bench.run(["ls", vault].into_iter().chain(nothing)).expect(2).says("no password: ");
        bench.run(["mount", vault, "run"].into_iter().chain(nothing)).expect(2).says("no password: ");
    }
    let mut command = bench.command();
    command.args(["ls", vault, "--password-env", "P"]).env("P", PASSWORD);
    run(command, b"").expect(0);
    bench.run(["ls", vault, "--password", PASSWORD]).expect(2);
    // An empty password is one; an existing vault may have it.
    fs::write(bench.path("empty"), "\n").unwrap();
    for empty in [&["--password-stdin"][..], &["--password-command", "true"], &["--password-file", "empty"]] {
        bench.run(["ls", vault].iter().chain(empty)).expect(3).says("the password that was given is empty");
        bench.run(["vault", "init", "new"].iter().chain(empty)).expect(2).says("empty");
    }
    bench.run_with(["vault", "init", "new", "--password-stdin"], b"\n").expect(2).says("empty");
}

#[test]
fn cli_passwd_changes_the_password_and_keeps_a_backup() {
    let bench = Bench::new();
    let vault = bench.vault_str();
    let key_file = fs::read(bench.vault().join("masterkey.cryptomator")).unwrap();
    let change = ["vault", "passwd", vault, "--password-stdin", "--new-password-stdin"];
    bench.run_with(change, b"wrong\nanother one\n").expect(3);
    bench.run_with(change, b"no second line").expect(2);
    assert_eq!(fs::read(bench.vault().join("masterkey.cryptomator")).unwrap(), key_file);
    bench.run_with(change, format!("{PASSWORD}\nanother one\n").as_bytes()).expect(0).says(".bkup");
    bench.open("ls", &[]).expect(3);
    bench.run_with(["ls", vault, "--password-stdin"], b"another one").expect(0);
    let names: Vec<String> = fs::read_dir(bench.vault())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.starts_with("masterkey.cryptomator.") && n.ends_with(".bkup"))
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(names[0].len(), "masterkey.cryptomator.".len() + 8 + ".bkup".len());
    assert_eq!(fs::read(bench.vault().join(&names[0])).unwrap(), key_file);
    // One variable for both: the key file is made anew for the same password.
    let mut same = bench.command();
    same.args(["vault", "passwd", vault, "--password-env", "PW", "--new-password-env", "PW"]);
    same.env("PW", "another one");
    common::run(same, b"").expect(0);
    bench.run_with(["ls", vault, "--password-stdin"], b"another one").expect(0);
}

#[test]
fn cli_init_overwrites_nothing() {
    let bench = Bench::new();
    let again = ["vault", "init", bench.vault_str(), "--password-file", bench.password_str()];
    bench.run(again).expect(1).says("a vault already");
    fs::create_dir(bench.path("full")).unwrap();
    fs::write(bench.path("full/file"), "x").unwrap();
    bench.run(["vault", "init", "full", "--password-file", "password"]).expect(1).says("not empty");
    assert_eq!(fs::read_dir(bench.path("full")).unwrap().count(), 1);
    bench.run(["vault", "init", "new"]).expect(2);
    assert!(!bench.path("new").exists(), "a failed attempt leaves no folder");
    bench.run_with(["vault", "init", "short", "--password-stdin"], b"short\n").expect(0).says("fewer than 8");
}

#[test]
fn cli_vaults_of_other_kinds_are_named() {
    for (name, says, code) in [
        ("config-format-7", "vault format 7 is not supported", 10),
        ("config-format-9", "vault format 9 is not supported", 10),
        ("config-hub", "this is a Cryptomator Hub vault", 10),
        ("config-unknown-cipher", "cipher combination", 10),
        ("masterkey-cut", "masterkey file is malformed", 4),
        ("config-missing", "vault.cryptomator: corrupt data: the file is missing", 4),
    ] {
        let bench = fixture(&format!("vault-broken/{name}")).expect("the fixture is there");
        let info = bench.run(["vault", "info", bench.vault_str(), "--json"]).expect(code).says(says);
        assert!(info.json()["path"].is_string(), "{name}: it is described all the same");
        assert_eq!(info.json()["key"].is_string(), name != "config-missing", "{name}");
        // No password is asked for that could not help.
        bench.run(["ls", bench.vault_str()]).expect(code).says(says);
        bench.run(["mount", bench.vault_str(), "run"]).expect(code).says(says);
    }
}

/// A vault from before format 8 has a key file that says its format, and no configuration.
#[test]
fn cli_vaults_of_old_formats_are_named_with_their_format() {
    for format in [3, 5, 6, 7] {
        let bench = Bench::new();
        fs::remove_file(bench.vault().join("vault.cryptomator")).unwrap();
        let key = bench.vault().join("masterkey.cryptomator");
        let json = fs::read_to_string(&key).unwrap().replace("\"version\": 999", &format!("\"version\": {format}"));
        fs::write(&key, json).unwrap();
        let says = format!("the vault has format {format}; upgrade it to format 8 with Cryptomator first");
        // No password is asked for that could not help.
        for verb in [
            &["ls", bench.vault_str()][..],
            &["mount", bench.vault_str(), "run"],
            &["vault", "info", bench.vault_str()],
        ] {
            bench.run(verb).expect(10).says(&says);
        }
        let check = ["vault", "check", bench.vault_str(), "--password-file", bench.password_str()];
        bench.run(check).expect(10).says(&says);
    }
}

/// A copy of a frozen vault of the official library, in place of the bench's own.
fn fixture(name: &str) -> Option<Bench> {
    let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name).join("vault");
    let bench = Bench::bare();
    let copied = std::process::Command::new("cp").arg("-r").arg(from).arg(bench.vault()).status().unwrap();
    copied.success().then_some(bench)
}

#[test]
fn cli_reads_vaults_of_the_official_library() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/vault");
    let passwords: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("PASSWORDS.json")).unwrap()).unwrap();
    for (name, password) in passwords.as_object().unwrap() {
        let bench = fixture(&format!("vault/{name}")).expect("the fixture is there");
        let password = password.as_str().unwrap();
        let list = ["ls", bench.vault_str(), "-R", "--json", "--password-stdin"];
        let listed = bench.run_with(list, password.as_bytes()).expect(0).json();
        let mut found: Vec<String> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|e| {
                let (path, kind) = (e["path"].as_str().unwrap(), e["kind"].as_str().unwrap());
                let size = if kind == "file" { e["size"].as_u64() } else { None };
                format!("{path} {kind} {size:?} {:?}", e["target"].as_str())
            })
            .collect();
        let expected = fs::read_to_string(folder.join(name).join("expected.jsonl")).unwrap();
        let mut expected: Vec<String> = expected
            .lines()
            .map(|line| {
                let e: serde_json::Value = serde_json::from_str(line).unwrap();
                let kind = match e["kind"].as_str().unwrap() {
                    "dir" => "directory",
                    "link" => "symlink",
                    other => other,
                };
                format!("{} {kind} {:?} {:?}", e["path"].as_str().unwrap(), e["size"].as_u64(), e["target"].as_str())
            })
            .collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{name}");
        fs::write(bench.path("password"), password).unwrap();
        bench.run(["vault", "check", bench.vault_str(), "--password-file", bench.password_str()]).expect(0);
        bench.open("get", &["/", "out"]).expect(0);
    }
}
