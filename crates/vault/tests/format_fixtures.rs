//! The codecs against vaults that the official library made (`fixtures/vault`), and against damaged ones.
//!
//! Walks `d/` with nothing but `std::fs` and the pure codecs: every name, content, symlink and directory id is
//! decrypted and compared with what the official library read (`expected.jsonl`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use adit_vault::format::content::object;
use adit_vault::format::{ContentCipher, DirId, FormatError, Masterkey, MasterkeyFile, NameCipher, VaultConfig, names};
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn unlock(vault: &Path, password: &str) -> Result<(Masterkey, VaultConfig), FormatError> {
    let token = fs::read(vault.join("vault.cryptomator")).unwrap();
    let peeked = VaultConfig::peek(&token)?;
    let key_file = fs::read(vault.join(peeked.key_id.masterkey_file_name()?)).unwrap();
    let masterkey = MasterkeyFile::parse(&key_file)?.unlock(password)?;
    let config = peeked.verify(&masterkey)?;
    Ok((masterkey, config))
}

/// What `expected.jsonl` says of one entry: kind, then size and digest, or target.
type Seen = BTreeMap<String, String>;

struct Walk<'a> {
    vault: &'a Path,
    threshold: u32,
    names: NameCipher,
    content: ContentCipher,
    seen: Seen,
}

impl Walk<'_> {
    fn directory(&mut self, id: &DirId, cleartext: &str) {
        let dir = self.vault.join(self.names.dir_hash_path(id));
        let context = self.names.dir_context(id);
        if let Ok(backup) = fs::read(dir.join(names::DIRID_FILE)) {
            assert_eq!(&object::decode_dir_id(&self.content, &backup).unwrap(), id, "{cleartext}");
        }
        // An empty directory's content directory need not be in git; it then has no entries.
        for entry in fs::read_dir(&dir).into_iter().flatten() {
            let entry = entry.unwrap();
            let on_disk = entry.file_name().into_string().unwrap();
            if on_disk == names::DIRID_FILE {
                continue;
            }
            let long = on_disk.ends_with(names::C9S);
            let sealed = if long {
                let sealed = fs::read_to_string(entry.path().join(names::NAME_FILE)).unwrap();
                assert_eq!(names::shorten(&sealed), on_disk);
                sealed
            } else {
                on_disk
            };
            assert_eq!(names::is_long(&sealed, self.threshold), long, "{sealed}");
            let name = self.names.decrypt_name_in(&sealed, context).unwrap();
            assert_eq!(self.names.encrypt_name(&name, id).unwrap(), sealed);
            self.entry(&entry.path(), long, &format!("{cleartext}/{name}"));
        }
    }

    fn entry(&mut self, on_disk: &Path, long: bool, cleartext: &str) {
        let file = if long { on_disk.join(names::CONTENTS_FILE) } else { on_disk.to_owned() };
        let seen = if file.is_file() {
            let clear = self.decrypted(&fs::read(file).unwrap());
            let sha256 = HEXLOWER.encode(digest(&SHA256, &clear).as_ref());
            format!("file {} {sha256}", clear.len())
        } else if let Ok(link) = fs::read(on_disk.join(names::SYMLINK_FILE)) {
            format!("symlink {}", object::decode_symlink(&self.content, &link).unwrap())
        } else {
            let id = DirId::parse(&fs::read(on_disk.join(names::DIR_FILE)).unwrap()).unwrap();
            self.directory(&id, cleartext);
            "dir".to_owned()
        };
        assert_eq!(self.seen.insert(cleartext.to_owned(), seen), None);
    }

    fn decrypted(&self, bytes: &[u8]) -> Vec<u8> {
        let layout = self.content.layout();
        let size = layout.cleartext_size(bytes.len() as u64).unwrap();
        let file = self.content.open_file(&bytes[..layout.header_len as usize]).unwrap();
        let mut clear = vec![0; usize::try_from(size).unwrap()];
        for span in layout.chunk_spans(0, size).unwrap() {
            let from = usize::try_from(layout.chunk_offset(span.chunk).unwrap()).unwrap();
            let sealed = &bytes[from..from + layout.chunk_cipher_len(span.chunk, size)];
            let at = usize::try_from(layout.clear_offset(span.chunk).unwrap()).unwrap();
            let len = file.decrypt_chunk(span.chunk, sealed, &mut clear[at..]).unwrap();
            assert_eq!(len, span.len);
        }
        clear
    }
}

fn expected(path: &Path) -> Seen {
    let text = fs::read_to_string(path).unwrap();
    let mut seen = Seen::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let field = |name: &str| line[name].as_str().unwrap_or_else(|| panic!("{name} in {line}"));
        let what = match field("kind") {
            "file" => format!("file {} {}", line["size"], field("sha256")),
            "dir" => "dir".to_owned(),
            kind => format!("{kind} {}", field("target")),
        };
        seen.insert(field("path").to_owned(), what);
    }
    seen
}

fn password_of(name: &str) -> String {
    let text = fs::read_to_string(fixtures().join("vault/PASSWORDS.json")).unwrap();
    let passwords: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
    passwords[name].clone()
}

#[test]
fn every_vault_of_the_official_library_reads_the_same_here() {
    let mut vaults = 0;
    for entry in fs::read_dir(fixtures().join("vault")).unwrap() {
        let path = entry.unwrap().path();
        let vault = path.join("vault");
        if !vault.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let (masterkey, config) = unlock(&vault, &password_of(name)).unwrap();
        assert!(name.starts_with(match config.cipher_combo {
            adit_vault::format::CipherCombo::SivGcm => "gcm",
            adit_vault::format::CipherCombo::SivCtrmac => "ctrmac",
        }));
        let mut walk = Walk {
            vault: &vault,
            threshold: config.shortening_threshold,
            names: NameCipher::new(&masterkey),
            content: ContentCipher::new(&masterkey, config.cipher_combo).unwrap(),
            seen: Seen::new(),
        };
        walk.directory(&DirId::root(), "");
        assert_eq!(walk.seen, expected(&path.join("expected.jsonl")), "{name}");
        vaults += 1;
    }
    assert!(vaults >= 7, "{vaults} vaults found");
}

#[test]
fn a_wrong_password_is_called_that() {
    let vault = fixtures().join("vault/ctrmac-220/vault");
    assert_eq!(unlock(&vault, "wrong").unwrap_err(), FormatError::WrongPassword);
}

/// The damages of the two files in the vault's root, by name.
#[test]
fn damaged_roots_get_their_named_error() {
    let error = |name: &str| {
        let dir = fixtures().join("vault-broken").join(name);
        let what: Value = serde_json::from_slice(&fs::read(dir.join("what.json")).unwrap()).unwrap();
        unlock(&dir.join("vault"), what["password"].as_str().unwrap()).unwrap_err()
    };
    assert!(matches!(error("config-alg-none"), FormatError::SignatureAlgorithm { .. }));
    assert_eq!(error("config-bad-signature"), FormatError::Signature);
    assert_eq!(error("config-format-7"), FormatError::UnsupportedFormat { found: 7, expected: 8 });
    assert_eq!(error("config-format-9"), FormatError::UnsupportedFormat { found: 9, expected: 8 });
    assert!(matches!(error("config-hub"), FormatError::HubVault { .. }));
    assert!(matches!(error("config-kid-escape"), FormatError::KeyId { .. }));
    assert!(matches!(error("config-unknown-cipher"), FormatError::CipherCombo { .. }));
    assert!(matches!(error("masterkey-cut"), FormatError::Malformed { .. }));
    assert!(matches!(error("masterkey-huge-cost"), FormatError::ScryptParams { .. }));
    assert!(matches!(error("masterkey-version-mac"), FormatError::VersionMac { .. }));
}
