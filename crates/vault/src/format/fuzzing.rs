//! The bodies of the fuzz targets in `fuzz/`, as plain functions, so that a stable test replays their corpora.
//!
//! Each takes any bytes, must not panic, and asserts what has to hold for whatever parses: it is written again as it
//! was read, and a change of it is noticed. Keys are fixed, so that a corpus can hold authentic inputs.

use super::config::{CipherCombo, UnverifiedConfig};
use super::content::{CHUNK_CLEAR_BYTES, ContentCipher, Layout, object};
use super::masterkey::{Masterkey, MasterkeyFile};
use super::names::{DirId, NameCipher, nfc};

/// Name, body. The name is that of the target and of its corpus folder.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 7] = [
    ("masterkey_file", fuzz_masterkey_file),
    ("vault_config", fuzz_vault_config),
    ("header", fuzz_header),
    ("chunk", fuzz_chunk),
    ("name", fuzz_name),
    ("dir_id", fuzz_dir_id),
    ("journal", fuzz_journal),
];

/// The keys of all targets and of the worked examples: 00 01 … 1f, and 20 21 … 3f.
#[must_use]
pub fn masterkey() -> Masterkey {
    let enc = std::array::from_fn(|i| i as u8);
    let mac = std::array::from_fn(|i| 32 + i as u8);
    Masterkey::from_keys(&enc, &mac)
}

fn content(combo: CipherCombo) -> ContentCipher {
    ContentCipher::new(&masterkey(), combo).expect("any 32 bytes are a key")
}

/// A masterkey file; cheap ones are unlocked as well, with a password that some of the corpus has.
pub fn fuzz_masterkey_file(data: &[u8]) {
    const CHEAP_SCRYPT: u64 = 64 * 1024;
    let Ok(file) = MasterkeyFile::parse(data) else {
        return;
    };
    let again = MasterkeyFile::parse(file.to_json().as_bytes()).expect("what was parsed is written parseably");
    assert_eq!(again, file);
    let params = file.scrypt_params();
    if 128 * u64::from(params.cost) * u64::from(params.block_size) <= CHEAP_SCRYPT {
        let _ = file.unlock("fuzz");
    }
}

/// A vault config, verified with the fixed keys.
pub fn fuzz_vault_config(data: &[u8]) {
    let Ok(peeked) = UnverifiedConfig::parse(data) else {
        return;
    };
    let _ = peeked.key_id.masterkey_file_name();
    let masterkey = masterkey();
    if let Ok(config) = peeked.verify(&masterkey) {
        let again = UnverifiedConfig::parse(config.encode(&masterkey).as_bytes()).expect("our own token parses");
        assert_eq!(again.verify(&masterkey).expect("our own token verifies"), config);
    }
}

/// A file header, or a small object, under both combinations; and sizes made of the first eight bytes.
pub fn fuzz_header(data: &[u8]) {
    for combo in [CipherCombo::SivGcm, CipherCombo::SivCtrmac] {
        let cipher = content(combo);
        if let Ok(header) = cipher.decrypt_header(data) {
            assert_eq!(header.nonce(), &data[..header.nonce().len()]);
        }
        let _ = object::decode_dir_id(&cipher, data);
        let _ = object::decode_symlink(&cipher, data);
        if let Some(size) = data.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) {
            fuzz_layout(cipher.layout(), size);
        }
    }
}

fn fuzz_layout(layout: Layout, size: u64) {
    if let Ok(clear) = layout.cleartext_size(size) {
        assert_eq!(layout.ciphertext_size(clear), Ok(size));
    }
    if let Ok(cipher) = layout.ciphertext_size(size) {
        assert_eq!(layout.cleartext_size(cipher), Ok(size));
        let last = layout.chunk_count(size).saturating_sub(1);
        assert_eq!(layout.chunk_offset(last).map(|at| at + layout.chunk_cipher_len(last, size) as u64), Ok(cipher));
    }
    if let Ok(range) = layout.chunk_range(size, u64::from(CHUNK_CLEAR_BYTES)) {
        assert!(range.end - range.start <= 2);
    }
}

/// A combination, a chunk number (8 bytes) and a chunk of a file with fixed keys; what does not authenticate is
/// then encrypted as cleartext and must come back.
pub fn fuzz_chunk(data: &[u8]) {
    let Some((&selector, rest)) = data.split_first() else {
        return;
    };
    let Some((number, chunk)) = rest.split_first_chunk() else {
        return;
    };
    let number = u64::from_be_bytes(*number);
    let combo = if selector & 1 == 0 { CipherCombo::SivGcm } else { CipherCombo::SivCtrmac };
    let cipher = content(combo);
    let nonce = [0x40; 16];
    let (header, _) = cipher
        .create_header_from(&nonce[..cipher.layout().nonce_len as usize], zeroize::Zeroizing::new([0x60; 32]))
        .expect("fixed keys make a header");
    let file = cipher.file_cipher(&header).expect("any 32 bytes are a key");
    let mut clear = vec![0; CHUNK_CLEAR_BYTES as usize];
    if file.decrypt_chunk(number, chunk, &mut clear).is_err() {
        let mut sealed = vec![0; cipher.layout().chunk_cipher() as usize];
        let Ok(sealed_len) = file.encrypt_chunk(number, chunk, &mut sealed) else {
            assert!(chunk.len() > CHUNK_CLEAR_BYTES as usize);
            return;
        };
        assert_eq!(file.decrypt_chunk(number, &sealed[..sealed_len], &mut clear), Ok(chunk.len()));
        assert_eq!(&clear[..chunk.len()], chunk);
        assert!(file.decrypt_chunk(number ^ 1, &sealed[..sealed_len], &mut clear).is_err());
    }
}

/// An entry name: as ciphertext in the root, then as cleartext.
pub fn fuzz_name(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let cipher = NameCipher::new(&masterkey());
    let root = DirId::root();
    if let Ok(clear) = cipher.decrypt_name(text, &root)
        && nfc(&clear) == clear
    {
        assert_eq!(cipher.encrypt_name(&clear, &root).as_deref(), Ok(text));
    }
    if let Ok(sealed) = cipher.encrypt_name(text, &root) {
        assert_eq!(cipher.decrypt_name(&sealed, &root).as_deref(), Ok(&*nfc(text)));
        let elsewhere = DirId::parse(b"elsewhere").expect("printable ASCII");
        assert!(cipher.decrypt_name(&sealed, &elsewhere).is_err());
    }
}

/// Records of the redo journal, alone and in sequence.
pub fn fuzz_journal(data: &[u8]) {
    crate::journal::fuzzing::fuzz(data);
}

/// The content of a `dir.c9r`.
pub fn fuzz_dir_id(data: &[u8]) {
    let Ok(id) = DirId::parse(data) else { return };
    assert_eq!(id.as_str().as_bytes(), data);
    let masterkey = masterkey();
    let hash = NameCipher::new(&masterkey).dir_hash(&id);
    assert_eq!(super::names::DirHash::from_parts(hash.prefix(), hash.rest()), Some(hash));
    let cipher = ContentCipher::new(&masterkey, CipherCombo::SivGcm).expect("any 32 bytes are a key");
    let sealed = object::encode_dir_id(&cipher, &id).expect("an id fits a chunk");
    assert_eq!(object::decode_dir_id(&cipher, &sealed), Ok(id));
}
