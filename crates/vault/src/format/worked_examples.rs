//! Encodes every worked example of `docs/formats/vault.md` and compares it with the page.
//!
//! An example is a fenced block whose info string is `example NAME`; white space in it does not count.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use zeroize::Zeroizing;

use super::config::{CipherCombo, KeyId, VaultConfig};
use super::content::{ContentCipher, object};
use super::error::VAULT_FORMAT;
use super::fuzzing::masterkey;
use super::masterkey::{MasterkeyFile, ScryptParams};
use super::names::{DirId, NameCipher, shorten};

const PAGE: &str = include_str!("../../../../docs/formats/vault.md");
const DIR_ID: &[u8] = b"a1b2c3d4-0123-4567-89ab-cdef01234567";

fn on_page() -> BTreeMap<&'static str, String> {
    let mut examples = BTreeMap::new();
    let mut open: Option<(&str, String)> = None;
    for line in PAGE.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(info), None) => {
                open = Some((info.strip_prefix("example ").unwrap_or(""), String::new()));
            }
            (Some(_), Some(_)) => {
                let (name, text) = open.take().unwrap();
                if !name.is_empty() {
                    assert_eq!(examples.insert(name, text), None, "two examples called {name}");
                }
            }
            (None, Some((_, text))) => text.extend(line.split_whitespace()),
            (None, None) => {}
        }
    }
    examples
}

fn files(combo: CipherCombo) -> [String; 3] {
    let cipher = ContentCipher::new(&masterkey(), combo).unwrap();
    let nonce_len = cipher.layout().nonce_len as usize;
    let content_key = Zeroizing::new(std::array::from_fn(|i| 0x60 + i as u8));
    let (header, bytes) = cipher.create_header_from(&[0x40; 16][..nonce_len], content_key).unwrap();
    let file = cipher.file_cipher(&header).unwrap();
    let clear = b"Hello, vault!";
    let mut chunk = vec![0; clear.len() + cipher.layout().overhead() as usize];
    file.encrypt_chunk_from(&[0x50; 16][..nonce_len], 0, clear, &mut chunk).unwrap();
    let root = object::encode_from(&file, &bytes, &[0x51; 16][..nonce_len], b"").unwrap();

    // And back, by the public way.
    assert_eq!(cipher.open_file(&bytes).unwrap().decrypt_chunk(0, &chunk, &mut [0; 13]), Ok(13));
    assert!(object::decode_dir_id(&cipher, &root).unwrap().is_root());
    [&bytes, &chunk[..], &root[bytes.len()..]].map(|bytes| HEXLOWER.encode(bytes))
}

fn encoded() -> BTreeMap<&'static str, String> {
    let masterkey = masterkey();
    let salt = [0, 1, 2, 3, 4, 5, 6, 7];
    let file = MasterkeyFile::lock_with_salt(&masterkey, "pässword", ScryptParams::default(), &salt);
    let config = VaultConfig {
        id: "8b6d2f0e-7c1a-4f5e-9d3c-2b1a09f8e7d6".to_owned(),
        format: VAULT_FORMAT,
        cipher_combo: CipherCombo::SivGcm,
        shortening_threshold: 220,
        key_id: KeyId::default_masterkey_file(),
    };
    let names = NameCipher::new(&masterkey);
    let (root, dir) = (DirId::root(), DirId::parse(DIR_ID).unwrap());
    let long = names.encrypt_name(&"x".repeat(147), &root).unwrap();
    let [gcm_header, gcm_chunk, gcm_root] = files(CipherCombo::SivGcm);
    let [ctrmac_header, ctrmac_chunk, ctrmac_root] = files(CipherCombo::SivCtrmac);
    BTreeMap::from([
        ("masterkey-file", file.unwrap().to_json().split_whitespace().collect()),
        ("vault-config", config.encode(&masterkey)),
        ("dir-hash-root", names.dir_hash_path(&root)),
        ("dir-hash", names.dir_hash_path(&dir)),
        ("name-in-root", names.encrypt_name("hello.txt", &root).unwrap()),
        ("name-in-directory", names.encrypt_name("hello.txt", &dir).unwrap()),
        ("name-nfd", names.encrypt_name("A\u{308}", &root).unwrap()),
        ("long-name-folder", shorten(&long)),
        ("gcm-header", gcm_header),
        ("gcm-chunk", gcm_chunk),
        ("gcm-empty-chunk", gcm_root),
        ("ctrmac-header", ctrmac_header),
        ("ctrmac-chunk", ctrmac_chunk),
        ("ctrmac-empty-chunk", ctrmac_root),
    ])
}

#[test]
fn the_page_shows_what_is_encoded() {
    assert_eq!(on_page(), encoded());
}
