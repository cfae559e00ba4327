//! The codecs of the vault format, content beside the AEAD library's own rate on the same bytes.

use std::hint::black_box;

use adit_vault::format::{CipherCombo, ContentCipher, DirId, Masterkey, NameCipher};
use anyhow::{Result, anyhow};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::{SAMPLES, one_sample, samples};
use crate::report::{ADIT, Aim, Report, Row, Unit};

const CHUNK: usize = 32 << 10;
const CHUNKS: usize = 32;
/// Nonce and tag.
const OVERHEAD: usize = 12 + 16;
const NAMES: usize = 1000;
/// The side of the library's own rate.
const LIBRARY: &str = "library";

const NAME_DECRYPT: Row = Row { name: "one name of 20 bytes decrypted", unit: Unit::Nanos, aim: Aim::Bound(600.0) };
const NAME_ENCRYPT: Row = Row { name: "one name of 20 bytes encrypted", unit: Unit::Nanos, aim: Aim::None };
const OPEN: Row = Row { name: "content decrypted, AES-256-GCM", unit: Unit::MibPerSec, aim: Aim::Library(0.8) };
const SEAL: Row = Row { name: "content encrypted, AES-256-GCM", unit: Unit::MibPerSec, aim: Aim::Library(0.8) };
const OPEN_CTRMAC: Row =
    Row { name: "content decrypted, AES-256-CTR with HMAC", unit: Unit::MibPerSec, aim: Aim::None };

/// Measures the codecs. What is decrypted in the timed loops has been made here, so its results are not looked at there.
pub fn run(report: &mut Report) -> Result<()> {
    let title = "micro-format: codecs, one core";
    report.group(
        title,
        "Content: 32 chunks of 32 KiB; the library's side seals and opens the same bytes with one key and nothing around it.",
    );
    names(report, title)?;
    gcm(report, title)?;
    ctrmac(report, title)
}

fn names(report: &mut Report, title: &str) -> Result<()> {
    let cipher = NameCipher::new(&Masterkey::generate()?);
    let dir = cipher.dir_context(&DirId::generate());
    let clear: Vec<String> = (0..NAMES).map(|number| format!("document {number:07}.txt")).collect();
    let sealed = clear.iter().map(|name| cipher.encrypt_name_in(name, dir)).collect::<Result<Vec<_>, _>>()?;
    let decrypt = || sealed.iter().for_each(|name| drop(black_box(cipher.decrypt_name_in(name, dir))));
    for sample in samples(NAMES, decrypt) {
        report.add(title, &NAME_DECRYPT, ADIT, sample);
    }
    let encrypt = || clear.iter().for_each(|name| drop(black_box(cipher.encrypt_name_in(name, dir))));
    for sample in samples(NAMES, encrypt) {
        report.add(title, &NAME_ENCRYPT, ADIT, sample);
    }
    Ok(())
}

/// A rate from the nanoseconds of one chunk.
fn rate(nanos: f64) -> f64 {
    CHUNK as f64 / f64::from(1 << 20) / (nanos * 1e-9)
}

fn gcm(report: &mut Report, title: &str) -> Result<()> {
    let (cipher, _) = ContentCipher::new(&Masterkey::generate()?, CipherCombo::SivGcm)?.create_file()?;
    let clear = vec![7; CHUNK];
    let mut sealed = vec![vec![0; CHUNK + OVERHEAD]; CHUNKS];
    for (number, out) in sealed.iter_mut().enumerate() {
        cipher.encrypt_chunk(number as u64, &clear, out)?;
    }
    let key = UnboundKey::new(&AES_256_GCM, &[9; 32]).map_err(|_| anyhow!("the library refuses a key"))?;
    let key = LessSafeKey::new(key);
    let nonce = || Nonce::assume_unique_for_key([1; NONCE_LEN]);
    let aad = || Aad::from([2; 20]);
    let mut library_sealed = vec![(clear.clone(), [0; 16]); CHUNKS];
    for (body, tag) in &mut library_sealed {
        let made = key.seal_in_place_separate_tag(nonce(), aad(), body).map_err(|_| anyhow!("seal"))?;
        tag.copy_from_slice(made.as_ref());
    }

    let mut out = vec![0; CHUNK * CHUNKS];
    // In turns, so that a change of the clock rate meets both.
    for _ in 0..SAMPLES {
        let nanos = one_sample(CHUNKS, &mut || {
            for ((number, chunk), out) in sealed.iter().enumerate().zip(out.chunks_exact_mut(CHUNK)) {
                let _ = black_box(cipher.decrypt_chunk(number as u64, chunk, out));
            }
        });
        report.add(title, &OPEN, ADIT, rate(nanos));
        let nanos = one_sample(CHUNKS, &mut || {
            for ((body, tag), out) in library_sealed.iter().zip(out.chunks_exact_mut(CHUNK)) {
                let _ = black_box(key.open_separate_gather(nonce(), aad(), body, tag, out));
            }
        });
        report.add(title, &OPEN, LIBRARY, rate(nanos));
    }
    for _ in 0..SAMPLES {
        let nanos = one_sample(CHUNKS, &mut || {
            for (number, out) in sealed.iter_mut().enumerate() {
                let _ = black_box(cipher.encrypt_chunk(number as u64, &clear, out));
            }
        });
        report.add(title, &SEAL, ADIT, rate(nanos));
        let nanos = one_sample(CHUNKS, &mut || {
            for (body, _) in &mut library_sealed {
                let _ = black_box(key.seal_in_place_separate_tag(nonce(), aad(), body));
            }
        });
        report.add(title, &SEAL, LIBRARY, rate(nanos));
    }
    Ok(())
}

fn ctrmac(report: &mut Report, title: &str) -> Result<()> {
    let (cipher, _) = ContentCipher::new(&Masterkey::generate()?, CipherCombo::SivCtrmac)?.create_file()?;
    let mut sealed = vec![0; CHUNK + cipher.layout().overhead() as usize];
    cipher.encrypt_chunk(0, &vec![7; CHUNK], &mut sealed)?;
    let mut out = vec![0; CHUNK];
    let decrypt = || {
        let _ = black_box(cipher.decrypt_chunk(0, &sealed, &mut out));
    };
    for nanos in samples(1, decrypt) {
        report.add(title, &OPEN_CTRMAC, ADIT, rate(nanos));
    }
    Ok(())
}
