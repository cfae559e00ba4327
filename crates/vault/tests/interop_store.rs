//! The store and the official library on the same vaults: each opens what the other made, after arbitrary edits by
//! either in turns, and the official health checks find nothing.
//!
//! `cargo xtask test --only interop` starts the oracle; see `support/oracle.rs`. The seed of the random edits is in
//! every message; `ADIT_TEST_SEED` runs one.

#[path = "support/oracle.rs"]
mod oracle;
#[path = "support/vault.rs"]
mod vault;

use std::collections::BTreeMap;
use std::path::Path;

use adit_core::store::Store;
use adit_core::types::{Access, Ino, RenameFlags, SetAttr, SetTime, Timestamp};
use adit_media::HostDirectory;
use adit_testkit::Rng;
use adit_vault::VaultStore;
use adit_vault::format::{CipherCombo, ScryptParams};
use serde_json::{Value, json};
use unicode_normalization::UnicodeNormalization;

use oracle::{Entry, Init, Oracle, content, second_opinion};
use vault::{
    COMBOS, PASSWORD, Seen, THRESHOLDS, Tree, Vault, find, name, new, open_or_create, parent_of, sha256, tree,
};

fn nfc(text: &str) -> String {
    text.nfc().collect()
}

/// What an oracle saw.
fn seen(entries: &[Entry]) -> Tree {
    let one = |e: &Entry| match (e.kind.as_str(), &e.error) {
        ("dir", None) => Seen::Directory,
        ("file", None) => Seen::File { size: e.size.unwrap(), sha256: e.sha256.clone().unwrap() },
        ("symlink", None) => Seen::Symlink(e.target.clone().unwrap()),
        (kind, error) => panic!("{}: {kind}, {error:?}", e.path),
    };
    entries.iter().map(|e| (e.path.clone(), one(e))).collect()
}

/// Compares in a way that names the first difference and not two whole trees.
fn assert_same(got: &Tree, wanted: &Tree, what: &str) {
    for path in wanted.keys().chain(got.keys()) {
        assert_eq!(got.get(path), wanted.get(path), "{what}: {path} (right: what it must be)");
    }
}

/// The official library reads `wanted` in the vault at `path` and finds nothing wrong with it.
fn assert_official(oracle: &mut Oracle, path: &Path, password: &str, wanted: &Tree, what: &str) {
    assert_same(&seen(&oracle.dump(path, password).unwrap()), wanted, what);
    let findings = oracle.health(path, password).unwrap();
    assert!(findings.is_empty(), "{what}: {findings:?}");
}

/// pycryptomator agrees, on a vault that it can read; it skips links.
fn assert_second_opinion(path: &Path, password: &str, wanted: &Tree, what: &str) {
    let Some(entries) = second_opinion(path, password) else { return };
    let entries = entries.unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut wanted = wanted.clone();
    wanted.retain(|_, seen| !matches!(seen, Seen::Symlink(_)));
    let mut got = seen(&entries);
    got.retain(|_, seen| !matches!(seen, Seen::Symlink(_)));
    assert_same(&got, &wanted, what);
}

/// Makes an edit of the oracle's language through the store; `exchange` is ours.
fn apply_here(store: &VaultStore, op: &Value) {
    let text = |key: &str| op[key].as_str().unwrap();
    let number = |key: &str| op[key].as_i64().or(op[key].as_u64().map(|n| n as i64)).unwrap_or(0) as u64;
    let path = text("path");
    let (dir, last) = parent_of(store, path);
    match text("op") {
        "mkdir" => drop(store.mkdir(dir, last, &new(0o755)).unwrap()),
        "symlink" => drop(store.symlink(dir, last, text("target").as_bytes(), new(0).caller).unwrap()),
        "write" => {
            let bytes = match op["hex"].as_str() {
                Some(hex) => data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap(),
                None => content(number("seed"), number("len") as usize),
            };
            open_or_create(store, path).write_at(&[(number("offset"), &bytes)]).unwrap();
        }
        "truncate" => open_or_create(store, path).set_len(number("size")).unwrap(),
        "rm" => match find(store, path).unwrap().kind {
            adit_core::types::Kind::Directory => store.rmdir(dir, last).unwrap(),
            _ => store.unlink(dir, last).unwrap(),
        },
        kind @ ("mv" | "exchange") => {
            let (to, to_name) = parent_of(store, text("to"));
            let flags = if kind == "mv" { RenameFlags::empty() } else { RenameFlags::EXCHANGE };
            store.rename(dir, last, to, to_name, flags).unwrap();
        }
        "settime" => {
            let ms = number("mtime_ms") as i64;
            let at = Timestamp { secs: ms.div_euclid(1000), nanos: ms.rem_euclid(1000) as u32 * 1_000_000 };
            let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
            store.setattr(find(store, path).unwrap().ino, &set).unwrap();
        }
        other => panic!("unknown edit {other}"),
    }
}

const OFFICIAL: [(&str, CipherCombo); 2] = [("SIV_GCM", CipherCombo::SivGcm), ("SIV_CTRMAC", CipherCombo::SivCtrmac)];

#[test]
fn official_vaults_open_here() {
    let Some(mut oracle) = Oracle::start() else { return };
    for (cipher, _) in OFFICIAL {
        for threshold in THRESHOLDS {
            let temp = tempfile::tempdir().unwrap();
            let path = temp.path().join("vault");
            oracle.init(&path, PASSWORD, Init { cipher, threshold, ..Init::default() });
            oracle.populate(&path, PASSWORD, 11, "full");
            let wanted = oracle.dump(&path, PASSWORD).unwrap();
            let vault = Vault::adopt(temp, PASSWORD);
            let what = format!("{cipher} {threshold}");
            assert_same(&tree(&vault.open_read_only()), &seen(&wanted), &what);
            let store = vault.open();
            for entry in &wanted {
                let attr = find(&store, &entry.path).unwrap();
                let ms = entry.mtime_ms.unwrap();
                assert_eq!((attr.mtime.as_nanos() / 1_000_000) as i64, ms, "{what}: mtime of {}", entry.path);
            }
            drop(store);
            assert_official(&mut oracle, &vault.path, PASSWORD, &seen(&wanted), &what);
        }
    }
}

/// The standard tree of the oracle, made by the store in a vault that is all ours.
#[test]
fn vaults_made_here_open_there() {
    let Some(mut oracle) = Oracle::start() else { return };
    let script = oracle.script(23, "full");
    assert!(script.len() > 50, "{}", script.len());
    for combo in COMBOS {
        for threshold in THRESHOLDS {
            let what = format!("{combo:?} {threshold}");
            let vault = Vault::create(combo, threshold);
            assert_official(&mut oracle, &vault.path, PASSWORD, &Tree::new(), &what);
            let store = vault.open();
            script.iter().for_each(|op| apply_here(&store, op));
            let wanted = tree(&store);
            drop(store);
            assert_same(&tree(&vault.open_read_only()), &wanted, &what);
            assert_official(&mut oracle, &vault.path, PASSWORD, &wanted, &what);
            let times = oracle.dump(&vault.path, PASSWORD).unwrap();
            let store = vault.open_read_only();
            for entry in times {
                let attr = find(&store, &entry.path).unwrap();
                assert_eq!(entry.mtime_ms, Some((attr.mtime.as_nanos() / 1_000_000) as i64), "{what}: {}", entry.path);
            }
            if combo == CipherCombo::SivGcm {
                assert_second_opinion(&vault.path, PASSWORD, &wanted, &what);
            }
            // The same edits by the official library lead to the same tree.
            let temp = tempfile::tempdir().unwrap();
            let (cipher, _) = OFFICIAL.into_iter().find(|(_, c)| *c == combo).unwrap();
            let path = temp.path().join("theirs");
            oracle.init(&path, PASSWORD, Init { cipher, threshold, ..Init::default() });
            oracle.apply(&path, PASSWORD, &script).unwrap();
            assert_same(&wanted, &seen(&oracle.dump(&path, PASSWORD).unwrap()), &what);
        }
    }
}

#[derive(Clone)]
enum Node {
    Directory,
    File(Vec<u8>),
    Link(String),
}

/// What both sides must show; paths in NFC.
struct Model {
    nodes: BTreeMap<String, Node>,
    rng: Rng,
    names: Vec<String>,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut names: Vec<String> =
            ["a", "b", "c.txt", "with space", "日本語", "caf\u{e9}", "cafe\u{301}", "o\u{308}ffnen", "🦀", "CON", "x."]
                .map(str::to_owned)
                .to_vec();
        // On both sides of where names shorten at a threshold of 220 (147 bytes), and as long as they get.
        for len in [20, 146, 147, 200, 250] {
            names.push("n".repeat(len));
        }
        names.push("é".repeat(125));
        names.push("e\u{301}".repeat(80));
        Model { nodes: BTreeMap::new(), rng: Rng::new(seed), names }
    }

    fn tree(&self) -> Tree {
        let one = |node: &Node| match node {
            Node::Directory => Seen::Directory,
            Node::File(bytes) => Seen::File { size: bytes.len() as u64, sha256: sha256(bytes) },
            Node::Link(target) => Seen::Symlink(target.clone()),
        };
        self.nodes.iter().map(|(path, node)| (path.clone(), one(node))).collect()
    }

    fn some(&mut self, fits: impl Fn(&Node) -> bool) -> Option<String> {
        let paths: Vec<String> = self.nodes.iter().filter(|(_, n)| fits(n)).map(|(p, _)| p.clone()).collect();
        (!paths.is_empty()).then(|| self.rng.pick(&paths).clone())
    }

    fn is_empty_dir(&self, path: &str) -> bool {
        let below = format!("{path}/");
        !self.nodes.keys().any(|p| p.starts_with(&below))
    }

    /// A path in some directory, as it is typed, not always in NFC; taken or not.
    fn place(&mut self) -> String {
        let mut dirs: Vec<String> =
            self.nodes.iter().filter(|(_, n)| matches!(n, Node::Directory)).map(|(p, _)| p.clone()).collect();
        dirs.retain(|d| d.split('/').count() < 14);
        dirs.extend([String::new(), String::new()]);
        // Deep trees grow if new ones like to be where the last ones are.
        let dir = if self.rng.percent(25) {
            dirs.iter().max_by_key(|d| d.split('/').count()).cloned().unwrap_or_default()
        } else {
            self.rng.pick(&dirs).clone()
        };
        let few = if self.rng.percent(60) { 8 } else { self.names.len() };
        let last = self.names[self.rng.below(few as u64) as usize].clone();
        format!("{dir}/{last}")
    }

    fn vacant(&mut self) -> Option<String> {
        for _ in 0..10 {
            let path = self.place();
            if !self.nodes.contains_key(&nfc(&path)) {
                return Some(path);
            }
        }
        None
    }

    fn offset(&mut self) -> usize {
        let border = self.rng.below(4) as usize * vault::CHUNK;
        match self.rng.below(5) {
            0 => 0,
            1 => border + self.rng.below(3) as usize,
            2 => border.saturating_sub(1 + self.rng.below(2) as usize),
            3 => self.rng.below(200) as usize,
            _ => self.rng.below(3 * vault::CHUNK as u64) as usize,
        }
    }

    /// The next edit, which the model has made already. `None` if this draw fits nothing.
    fn edit(&mut self, official: bool) -> Option<Value> {
        match self.rng.below(100) {
            0..14 => {
                let path = self.vacant()?;
                self.nodes.insert(nfc(&path), Node::Directory);
                Some(json!({"op": "mkdir", "path": path}))
            }
            14..20 => {
                let path = self.vacant()?;
                let target = ["../else/where", "a", "/abs/olute", "ünïcode"][self.rng.below(4) as usize];
                self.nodes.insert(nfc(&path), Node::Link(target.to_owned()));
                Some(json!({"op": "symlink", "path": path, "target": target}))
            }
            20..32 => {
                // A new file, empty at times.
                let path = self.vacant()?;
                let (len, seed) = (self.offset(), self.rng.below(1 << 40));
                self.nodes.insert(nfc(&path), Node::File(content(seed, len)));
                Some(json!({"op": "write", "path": path, "offset": 0, "len": len, "seed": seed}))
            }
            32..50 => {
                let path = self.some(|n| matches!(n, Node::File(_)))?;
                let (offset, len, seed) = (self.offset(), self.offset() / 2 + 1, self.rng.below(1 << 40));
                let Some(Node::File(bytes)) = self.nodes.get_mut(&path) else { unreachable!() };
                bytes.resize(bytes.len().max(offset + len), 0);
                bytes[offset..offset + len].copy_from_slice(&content(seed, len));
                Some(json!({"op": "write", "path": path, "offset": offset, "len": len, "seed": seed}))
            }
            50..58 => {
                let path = self.some(|n| matches!(n, Node::File(_)))?;
                let size = self.offset();
                let Some(Node::File(bytes)) = self.nodes.get_mut(&path) else { unreachable!() };
                bytes.resize(size, 0);
                Some(json!({"op": "truncate", "path": path, "size": size}))
            }
            58..70 => {
                let path = self.some(|_| true)?;
                if !self.is_empty_dir(&path) {
                    return None;
                }
                self.nodes.remove(&path);
                Some(json!({"op": "rm", "path": path}))
            }
            70..88 => self.rename(official),
            _ if !official => self.exchange(),
            _ => None,
        }
    }

    fn rename(&mut self, official: bool) -> Option<Value> {
        let from = self.some(|_| true)?;
        let to = if self.rng.percent(30) { self.some(|_| true)? } else { self.place() };
        let key = nfc(&to);
        if key == from || key.starts_with(&format!("{from}/")) || from.starts_with(&format!("{key}/")) {
            return None;
        }
        let replace = match (&self.nodes[&from], self.nodes.get(&key)) {
            (_, None) => false,
            // It goes on with the content directory that it has just removed.
            (Node::Directory, Some(_)) if official => return None,
            (Node::Directory, Some(Node::Directory)) => self.is_empty_dir(&key),
            (Node::Directory, Some(_)) | (_, Some(Node::Directory)) => return None,
            (Node::File(_), Some(Node::File(_))) => true,
            // Its own moves over links fail.
            _ if official => return None,
            _ => true,
        };
        if !replace && self.nodes.contains_key(&key) {
            return None;
        }
        self.nodes.remove(&key);
        self.carry(&from, &key);
        Some(json!({"op": "mv", "path": from, "to": to, "replace": replace}))
    }

    fn exchange(&mut self) -> Option<Value> {
        let (a, b) = (self.some(|_| true)?, self.some(|_| true)?);
        if a == b || a.starts_with(&format!("{b}/")) || b.starts_with(&format!("{a}/")) {
            return None;
        }
        self.carry(&a, "\u{0}aside");
        self.carry(&b, &a);
        self.carry("\u{0}aside", &b);
        Some(json!({"op": "exchange", "path": a, "to": b}))
    }

    fn carry(&mut self, from: &str, to: &str) {
        let below = format!("{from}/");
        let moved: Vec<String> = self.nodes.keys().filter(|p| *p == from || p.starts_with(&below)).cloned().collect();
        for path in moved {
            let node = self.nodes.remove(&path).unwrap();
            self.nodes.insert(format!("{to}{}", &path[from.len()..]), node);
        }
    }

    fn edits(&mut self, count: usize, official: bool) -> Vec<Value> {
        let mut edits = Vec::new();
        while edits.len() < count {
            edits.extend(self.edit(official));
        }
        edits
    }
}

#[test]
fn edits_in_turns_lead_to_the_same_tree() {
    let Some(mut oracle) = Oracle::start() else { return };
    for seed in adit_testkit::seeds(1) {
        // Each combination has edits of its own.
        let mut of_each = Rng::new(seed);
        for (cipher, combo) in OFFICIAL {
            for threshold in THRESHOLDS {
                for theirs in [true, false] {
                    let edits = of_each.next_u64();
                    let vault = if theirs {
                        let temp = tempfile::tempdir().unwrap();
                        let path = temp.path().join("vault");
                        oracle.init(&path, PASSWORD, Init { cipher, threshold, ..Init::default() });
                        Vault::adopt(temp, PASSWORD)
                    } else {
                        Vault::create(combo, threshold)
                    };
                    let what = format!("ADIT_TEST_SEED={seed} {cipher} {threshold}, made there: {theirs}");
                    turns(&mut oracle, &vault, edits, &what);
                    if combo == CipherCombo::SivGcm {
                        assert_second_opinion(&vault.path, PASSWORD, &tree(&vault.open_read_only()), &what);
                    }
                }
            }
        }
    }
}

fn turns(oracle: &mut Oracle, vault: &Vault, seed: u64, what: &str) {
    let mut model = Model::new(seed);
    // Half of the time the vault stays mounted here while the other side edits it.
    let mut kept: Option<VaultStore> = None;
    for round in 0..8 {
        let what = format!("{what}, round {round}");
        let store = kept.take().unwrap_or_else(|| vault.open());
        for op in model.edits(30, false) {
            apply_here(&store, &op);
        }
        assert_same(&tree(&store), &model.tree(), &format!("{what}: ours, seen here"));
        if round % 2 == 0 {
            kept = Some(store)
        } else {
            drop(store)
        };
        assert_official(oracle, &vault.path, PASSWORD, &model.tree(), &format!("{what}: ours, seen there"));
        let ops = model.edits(30, true);
        oracle.apply(&vault.path, PASSWORD, &ops).unwrap_or_else(|e| panic!("{what}: {e:?} in {ops:#?}"));
        let store = kept.take().unwrap_or_else(|| vault.open());
        assert_same(&tree(&store), &model.tree(), &format!("{what}: theirs, seen here"));
        kept = Some(store).filter(|_| round % 3 == 0);
    }
}

#[test]
fn a_changed_password_is_changed_for_both() {
    let Some(mut oracle) = Oracle::start() else { return };
    for (cipher, combo) in OFFICIAL {
        for theirs in [true, false] {
            let vault = if theirs {
                let temp = tempfile::tempdir().unwrap();
                let path = temp.path().join("vault");
                oracle.init(&path, PASSWORD, Init { cipher, ..Init::default() });
                Vault::adopt(temp, PASSWORD)
            } else {
                Vault::create(combo, 220)
            };
            let store = vault.open();
            open_or_create(&store, "/file").write_at(&[(0, b"kept")]).unwrap();
            let wanted = tree(&store);
            drop(store);
            let root = HostDirectory::open(&vault.path).unwrap();
            // Both forms of one password are one password.
            let (typed, same) = ("cafe\u{301} ☕", "caf\u{e9} ☕");
            let scrypt = ScryptParams { cost: 1 << 10, block_size: 8 };
            let backup = adit_vault::change_password(&root, PASSWORD, typed, scrypt).unwrap();
            assert!(vault.path.join(backup).is_file());
            // The official library leaves the normalising to its applications.
            assert_official(&mut oracle, &vault.path, same, &wanted, cipher);
            for password in [typed, same] {
                adit_vault::unlock(&root, password).unwrap();
            }
            let refused = oracle.dump(&vault.path, PASSWORD).unwrap_err();
            assert_eq!(refused.error, "InvalidPassphraseException");
            if combo == CipherCombo::SivGcm {
                assert_second_opinion(&vault.path, same, &wanted, cipher);
            }
        }
    }
}

/// Read handles that stay open while the other side rewrites the file see its new content, and no damage.
#[test]
fn open_files_follow_what_the_other_side_writes() {
    let Some(mut oracle) = Oracle::start() else { return };
    for combo in COMBOS {
        let vault = Vault::create(combo, 220);
        let store = vault.open();
        let file = open_or_create(&store, "/f");
        file.write_at(&[(0, &content(1, 100_000))]).unwrap();
        file.sync(false).unwrap();
        let reader = store.open(find(&store, "/f").unwrap().ino, Access::Read).unwrap();
        oracle
            .apply(
                &vault.path,
                PASSWORD,
                &[json!({"op": "write", "path": "/f", "offset": 40_000, "len": 90_000, "seed": 5})],
            )
            .unwrap();
        let mut wanted = content(1, 40_000);
        wanted.extend(content(5, 90_000));
        let mut buf = vec![0; 200_000];
        let n = reader.read_at(0, &mut buf).unwrap();
        assert!(buf[..n] == wanted, "{combo:?}");
        assert_eq!(store.getattr(find(&store, "/f").unwrap().ino).unwrap().size, 130_000);
        file.write_at(&[(130_000, b"more")]).unwrap();
        oracle.apply(&vault.path, PASSWORD, &[json!({"op": "truncate", "path": "/f", "size": 10})]).unwrap();
        assert_eq!(reader.read_at(0, &mut buf).unwrap(), 10);
        file.write_at(&[(10, b"end")]).unwrap();
        let mut wanted = content(1, 10);
        wanted.extend(b"end");
        let official = seen(&oracle.dump(&vault.path, PASSWORD).unwrap());
        assert_eq!(official["/f"], Seen::File { size: 13, sha256: sha256(&wanted) });
        // A name that the other side took away is gone here, and what is open is still open.
        oracle.apply(&vault.path, PASSWORD, &[json!({"op": "rm", "path": "/f"})]).unwrap();
        assert!(store.lookup(Ino::ROOT, name("f")).unwrap_err().is_not_found());
        assert_eq!(reader.read_at(0, &mut buf).unwrap(), 13);
    }
}
