use super::*;
use crate::format::fuzzing::masterkey;
use crate::format::names::DirId;
use proptest::prelude::*;

const COMBOS: [CipherCombo; 2] = [CipherCombo::SivGcm, CipherCombo::SivCtrmac];
const CHUNK: usize = CHUNK_CLEAR_BYTES as usize;

fn cipher(combo: CipherCombo) -> ContentCipher {
    ContentCipher::new(&masterkey(), combo).unwrap()
}

fn sealed(file: &FileCipher, chunk: u64, clear: &[u8]) -> Vec<u8> {
    let mut out = vec![0; clear.len() + file.layout().overhead() as usize];
    assert_eq!(file.encrypt_chunk(chunk, clear, &mut out), Ok(out.len()));
    out
}

#[test]
fn headers_and_chunks_round_trip() {
    for combo in COMBOS {
        let cipher = cipher(combo);
        let (file, header) = cipher.create_file().unwrap();
        assert_eq!(header.len(), cipher.layout().header_len as usize);
        let again = cipher.open_file(&header).unwrap();
        assert_eq!(again.header_nonce(), &header[..again.header_nonce().len()]);
        for len in [0, 1, 15, 16, 17, CHUNK - 1, CHUNK] {
            let clear: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let mut bytes = sealed(&file, 5, &clear);
            let mut out = vec![0xaa; CHUNK];
            assert_eq!(again.decrypt_chunk(5, &bytes, &mut out), Ok(len));
            assert_eq!(out[..len], clear);
            assert_eq!(again.decrypt_chunk(4, &bytes, &mut out), Err(FormatError::ChunkAuth { chunk: 4 }));
            bytes.push(0);
            assert_eq!(again.decrypt_chunk(5, &bytes, &mut out), Err(FormatError::ChunkAuth { chunk: 5 }));
        }
        assert_ne!(sealed(&file, 0, b"x"), sealed(&file, 0, b"x"), "nonces are fresh");
    }
}

#[test]
fn every_changed_or_missing_byte_is_noticed() {
    for combo in COMBOS {
        let cipher = cipher(combo);
        let (file, header) = cipher.create_file().unwrap();
        for at in 0..header.len() {
            let mut changed = header.to_vec();
            changed[at] ^= 0x10;
            assert_eq!(cipher.decrypt_header(&changed).unwrap_err(), FormatError::HeaderAuth, "{combo} byte {at}");
            assert!(matches!(cipher.decrypt_header(&header[..at]), Err(FormatError::Length { .. })));
        }
        let chunk = sealed(&file, 1, b"seventeen bytes..");
        let mut out = [0; 32];
        for at in 0..chunk.len() {
            let mut changed = chunk.clone();
            changed[at] ^= 0x01;
            let error = FormatError::ChunkAuth { chunk: 1 };
            assert_eq!(file.decrypt_chunk(1, &changed, &mut out), Err(error.clone()), "{combo} byte {at}");
            assert_eq!(file.decrypt_chunk(1, &chunk[..at], &mut out), Err(error), "{combo} cut at {at}");
        }
    }
}

#[test]
fn chunks_belong_to_their_file_vault_and_combination() {
    for combo in COMBOS {
        let cipher = cipher(combo);
        let (a, _) = cipher.create_file().unwrap();
        let (b, header_b) = cipher.create_file().unwrap();
        let mut out = [0; 8];
        assert!(b.decrypt_chunk(0, &sealed(&a, 0, b"mine"), &mut out).is_err());
        let foreign = ContentCipher::new(&Masterkey::generate().unwrap(), combo).unwrap();
        assert_eq!(foreign.decrypt_header(&header_b).unwrap_err(), FormatError::HeaderAuth);
    }
}

#[test]
fn buffers_of_the_wrong_length_are_errors() {
    let (file, header) = cipher(CipherCombo::SivGcm).create_file().unwrap();
    let is_length = |result: Result<usize>| matches!(result, Err(FormatError::Length { .. }));
    let mut small = [0; 30];
    assert!(is_length(file.encrypt_chunk(0, b"abc", &mut small)));
    assert!(is_length(file.encrypt_chunk(0, &vec![0; CHUNK + 1], &mut vec![0; CHUNK + 100])));
    let chunk = sealed(&file, 0, b"abc");
    assert!(is_length(file.decrypt_chunk(0, &chunk, &mut [0; 2])));
    assert!(cipher(CipherCombo::SivCtrmac).decrypt_header(&header).is_err());
}

#[test]
fn sizes_around_every_border() {
    for combo in COMBOS {
        let layout = Layout::of(combo);
        let (header, overhead) = (u64::from(layout.header_len), u64::from(layout.overhead()));
        let full = u64::from(layout.chunk_cipher());
        for chunks in [0u64, 1, 2, 1000] {
            let border = header + chunks * full;
            assert_eq!(layout.cleartext_size(border), Ok(chunks * 32768));
            for tail in 1..=overhead {
                let found = border + tail;
                let error = FormatError::Tail { found, tail: tail as u32, overhead: overhead as u32 };
                assert_eq!(layout.cleartext_size(found), Err(error));
            }
            assert_eq!(layout.cleartext_size(border + overhead + 1), Ok(chunks * 32768 + 1));
            assert_eq!(layout.cleartext_size(border + full - 1), Ok(chunks * 32768 + 32767));
            for clear in (chunks * 32768).saturating_sub(2)..chunks * 32768 + 3 {
                let size = layout.ciphertext_size(clear).unwrap();
                assert_eq!(layout.cleartext_size(size), Ok(clear));
            }
        }
        for size in 0..header {
            let error = FormatError::ShorterThanHeader { found: size, header_len: layout.header_len };
            assert_eq!(layout.cleartext_size(size), Err(error));
        }
        assert_eq!(layout.ciphertext_size(0), Ok(header));
    }
    assert_eq!(Layout::GCM.ciphertext_size(32768), Ok(68 + 32796));
    assert_eq!(Layout::CTRMAC.ciphertext_size(32769), Ok(88 + 32816 + 49));
}

#[test]
fn offsets_beyond_a_file_are_errors() {
    for combo in COMBOS {
        let layout = Layout::of(combo);
        let most = layout.max_cleartext_size();
        let size = layout.ciphertext_size(most).unwrap();
        assert!(i64::try_from(size).is_ok());
        assert!(i64::MAX as u64 - size <= u64::from(layout.overhead()));
        for wrong in [most + 1, 1 << 63, u64::MAX] {
            assert!(matches!(layout.ciphertext_size(wrong), Err(FormatError::TooLarge { .. })));
            assert!(layout.chunk_spans(wrong, 0).is_err());
        }
        assert!(layout.chunk_spans(1, u64::MAX).is_err());
        assert!(layout.chunk_range(most, 1).is_err());
        assert!(layout.cleartext_size(u64::MAX).is_err());
        assert!(layout.chunk_offset(u64::MAX).is_err());
        assert!(layout.clear_offset(u64::MAX / 32768).is_err());
        assert_eq!(layout.chunk_clear_len(u64::MAX, most), 0);
        let last = layout.chunk_of(most);
        assert_eq!(layout.chunk_offset(last).unwrap() + layout.chunk_cipher_len(last, most) as u64, size);
    }
}

#[test]
fn spans_of_a_range() {
    let layout = Layout::GCM;
    let spans = |offset, len| layout.chunk_spans(offset, len).unwrap().collect::<Vec<_>>();
    let span = |chunk, start, len| ChunkSpan { chunk, start, len };
    assert_eq!(spans(0, 0), []);
    assert_eq!(spans(32768, 0), []);
    assert_eq!(spans(0, 1), [span(0, 0, 1)]);
    assert_eq!(spans(32767, 2), [span(0, 32767, 1), span(1, 0, 1)]);
    assert_eq!(spans(32768, 32768), [span(1, 0, 32768)]);
    assert_eq!(spans(10, 70_000), [span(0, 10, 32758), span(1, 0, 32768), span(2, 0, 4474)]);
    assert_eq!(layout.chunk_range(10, 70_000), Ok(0..3));
    assert_eq!(layout.chunk_range(32768, 0), Ok(1..1));
    assert_eq!((layout.chunk_of(32768), layout.offset_in_chunk(32769)), (1, 1));
    assert_eq!((layout.clear_offset(2), layout.chunk_offset(2)), (Ok(65536), Ok(68 + 2 * 32796)));
}

#[test]
fn small_objects() {
    for combo in COMBOS {
        let cipher = cipher(combo);
        let layout = cipher.layout();
        let root = object::encode_dir_id(&cipher, &DirId::root()).unwrap();
        assert_eq!(root.len(), (layout.header_len + layout.overhead()) as usize);
        assert_eq!(object::decode_dir_id(&cipher, &root).unwrap(), DirId::root());
        let header_only = &root[..layout.header_len as usize];
        assert_eq!(object::decode_dir_id(&cipher, header_only).unwrap(), DirId::root());
        let id = DirId::generate();
        let bytes = object::encode_dir_id(&cipher, &id).unwrap();
        assert_eq!(bytes.len(), if combo == CipherCombo::SivGcm { 132 } else { 172 });
        assert_eq!(object::decode_dir_id(&cipher, &bytes).unwrap(), id);
        for cut in 0..bytes.len() {
            let result = object::decode_dir_id(&cipher, &bytes[..cut]);
            assert_eq!(result.is_ok(), cut == layout.header_len as usize, "{combo} cut at {cut}");
        }

        let longest = "x".repeat(object::MAX_SYMLINK_BYTES);
        for target in ["a", "../ä/", &longest] {
            let bytes = object::encode_symlink(&cipher, target).unwrap();
            assert!(bytes.len() <= object::max_encoded_bytes(&cipher));
            assert_eq!(object::decode_symlink(&cipher, &bytes).unwrap(), target);
        }
        assert!(matches!(object::encode_symlink(&cipher, ""), Err(FormatError::Length { .. })));
        assert!(matches!(object::encode_symlink(&cipher, &format!("{longest}x")), Err(FormatError::Length { .. })));
        assert!(matches!(object::decode_symlink(&cipher, header_only), Err(FormatError::Malformed { .. })));
        for hostile in [b"\xff".as_slice(), b"a\0b", &[b'x'; CHUNK]] {
            let bytes = object::encode(&cipher, hostile).unwrap();
            assert!(matches!(object::decode_symlink(&cipher, &bytes), Err(FormatError::Malformed { .. })));
        }
        let mut two_chunks = object::encode(&cipher, &vec![0; CHUNK]).unwrap();
        two_chunks.push(0);
        assert!(matches!(object::decode(&cipher, &two_chunks), Err(FormatError::Malformed { .. })));
        let bad_id = object::encode(&cipher, b"not\nan id").unwrap();
        assert!(matches!(object::decode_dir_id(&cipher, &bad_id), Err(FormatError::DirId { .. })));
    }
}

#[test]
fn ciphers_are_shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<ContentCipher>();
    check::<FileCipher>();
    check::<Header>();
}

#[test]
fn nothing_prints_keys() {
    for combo in COMBOS {
        let cipher = cipher(combo);
        let key = zeroize::Zeroizing::new([0x61; 32]);
        let nonce = vec![1; cipher.layout().nonce_len as usize];
        let (header, _) = cipher.create_header_from(&nonce, key).unwrap();
        let file = cipher.file_cipher(&header).unwrap();
        let shown = format!("{cipher:?} {header:?} {file:?}");
        assert!(!shown.contains("6161") && !shown.contains("97, 97") && !shown.contains("aaaa"), "{shown}");
    }
}

proptest! {
    #![proptest_config(adit_testkit::proptest_config(256))]

    #[test]
    fn sizes_are_inverse(size in 0..u64::MAX) {
        for combo in COMBOS {
            let layout = Layout::of(combo);
            if let Ok(clear) = layout.cleartext_size(size) {
                prop_assert_eq!(layout.ciphertext_size(clear), Ok(size));
            }
            if let Ok(cipher) = layout.ciphertext_size(size) {
                prop_assert_eq!(layout.cleartext_size(cipher), Ok(size));
            }
        }
    }

    #[test]
    fn spans_cover_the_range(offset in 0u64..1 << 40, len in 0u64..300_000) {
        let mut at = offset;
        let mut chunks = Layout::GCM.chunk_range(offset, len).unwrap();
        for span in Layout::GCM.chunk_spans(offset, len).unwrap() {
            prop_assert_eq!(span.chunk * 32768 + span.start as u64, at);
            prop_assert_eq!(chunks.next(), Some(span.chunk));
            prop_assert!(span.len > 0 && span.start + span.len <= 32768);
            at += span.len as u64;
        }
        prop_assert_eq!(at, offset + len);
        prop_assert!(chunks.is_empty());
    }

    #[test]
    fn any_content_round_trips(clear in prop::collection::vec(any::<u8>(), 0..3000), chunk in any::<u64>()) {
        for combo in COMBOS {
            let (file, _) = cipher(combo).create_file().unwrap();
            let bytes = sealed(&file, chunk, &clear);
            let mut out = vec![0; clear.len()];
            prop_assert_eq!(file.decrypt_chunk(chunk, &bytes, &mut out), Ok(clear.len()));
            prop_assert_eq!(&out, &clear);
        }
    }

    #[test]
    fn foreign_bytes_are_errors(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for combo in COMBOS {
            let cipher = cipher(combo);
            prop_assert!(cipher.decrypt_header(&bytes).is_err());
            prop_assert!(object::decode(&cipher, &bytes).is_err());
        }
    }
}
