use super::*;

const CHEAP: ScryptParams = ScryptParams { cost: 2, block_size: 8 };

fn keys() -> Masterkey {
    crate::format::fuzzing::masterkey()
}

fn locked(password: &str) -> MasterkeyFile {
    MasterkeyFile::lock(&keys(), password, CHEAP).unwrap()
}

fn edited(file: &MasterkeyFile, field: &str, value: serde_json::Value) -> Result<MasterkeyFile> {
    let mut json: serde_json::Value = serde_json::from_str(&file.to_json()).unwrap();
    json[field] = value;
    MasterkeyFile::parse(json.to_string().as_bytes())
}

/// From the tests of the official cryptolib (`MasterkeyFileAccessTest`): all-zero keys, password "asd", version 3.
#[test]
fn official_known_answer() {
    let json = r#"{"version":3,"scryptSalt":"AAAAAAAAAAA=","scryptCostParam":2,"scryptBlockSize":8,
        "primaryMasterKey":"mM+qoQ+o0qvPTiDAZYt+flaC3WbpNAx1sTXaUzxwpy0M9Ctj6Tih/Q==",
        "hmacMasterKey":"mM+qoQ+o0qvPTiDAZYt+flaC3WbpNAx1sTXaUzxwpy0M9Ctj6Tih/Q==",
        "versionMac":"iUmRRHITuyJsJbVNqGNw+82YQ4A3Rma7j/y1v0DCVLA="}"#;
    let file = MasterkeyFile::parse(json.as_bytes()).unwrap();
    assert_eq!(file.legacy_format(), Some(3));
    assert_eq!(file.unlock("asd").unwrap().raw(), &[0; 64]);
    assert_eq!(file.unlock("qwe").unwrap_err(), FormatError::WrongPassword);
}

#[test]
fn round_trip_with_the_official_layout() {
    let file = locked("pässword");
    let json = file.to_json();
    let order = [
        "\"version\": 999,",
        "scryptSalt",
        "\"scryptCostParam\": 2",
        "scryptBlockSize",
        "primaryMasterKey",
        "hmacMasterKey",
        "versionMac",
    ];
    let places: Vec<_> = order.iter().map(|field| json.find(field).unwrap_or_else(|| panic!("{field}"))).collect();
    assert!(places.is_sorted());
    let again = MasterkeyFile::parse(json.as_bytes()).unwrap();
    assert_eq!(again, file);
    assert_eq!(again.legacy_format(), None);
    assert_eq!(again.unlock("pässword").unwrap().raw(), keys().raw());
    // The same word, decomposed.
    assert_eq!(again.unlock("pa\u{308}ssword").unwrap().raw(), keys().raw());
    assert_eq!(again.unlock("passwort").unwrap_err(), FormatError::WrongPassword);
    assert_eq!(again.unlock("").unwrap_err(), FormatError::WrongPassword);
}

#[test]
fn generated_keys_and_salts_differ() {
    assert_ne!(Masterkey::generate().unwrap().raw(), Masterkey::generate().unwrap().raw());
    assert_ne!(locked("x").scrypt_salt, locked("x").scrypt_salt);
}

#[test]
fn relock_keeps_unknown_fields() {
    let file = edited(&locked("old"), "vendor", serde_json::json!({"a": [1, 2]})).unwrap();
    let masterkey = file.unlock("old").unwrap();
    let new = file.relock(&masterkey, "new", CHEAP).unwrap();
    let new = MasterkeyFile::parse(new.to_json().as_bytes()).unwrap();
    assert_eq!(new.unknown["vendor"]["a"][1], 2);
    assert_eq!(new.unlock("new").unwrap().raw(), masterkey.raw());
    assert_eq!(new.unlock("old").unwrap_err(), FormatError::WrongPassword);
}

#[test]
fn altered_version_is_noticed() {
    let file = edited(&locked("x"), "version", 8.into()).unwrap();
    assert_eq!(file.unlock("x").unwrap_err(), FormatError::VersionMac { version: 8 });
    let file = edited(&locked("x"), "versionMac", "".into()).unwrap();
    assert_eq!(file.unlock("x").unwrap_err(), FormatError::VersionMac { version: 999 });
}

#[test]
fn a_damaged_second_key_is_not_called_a_wrong_password() {
    let mut file = locked("x");
    file.hmac_master_key[3] ^= 1;
    assert!(matches!(file.unlock("x").unwrap_err(), FormatError::Malformed { .. }));
    file.primary_master_key[3] ^= 1;
    assert_eq!(file.unlock("x").unwrap_err(), FormatError::WrongPassword);
}

#[test]
fn hostile_scrypt_parameters_are_refused_before_any_work() {
    let file = locked("x");
    for (field, value) in [
        ("scryptCostParam", 0u32),
        ("scryptCostParam", 1),
        ("scryptCostParam", 3),
        ("scryptCostParam", 1 << 31),
        ("scryptCostParam", 1 << 21),
        ("scryptBlockSize", 0),
        ("scryptBlockSize", u32::MAX),
    ] {
        let error = edited(&file, field, value.into()).unwrap_err();
        assert!(matches!(error, FormatError::ScryptParams { .. }), "{field}={value}: {error}");
    }
    for (field, value) in [("scryptCostParam", -2), ("scryptBlockSize", -8), ("scryptCostParam", 1i64 << 40)] {
        let error = edited(&file, field, value.into()).unwrap_err();
        assert!(matches!(error, FormatError::Malformed { .. }), "{field}={value}: {error}");
    }
    // The largest allowed cost passes the check (and is not computed here).
    assert!(edited(&file, "scryptCostParam", (1 << 20).into()).is_ok());
    let too_much = ScryptParams { cost: 1 << 21, block_size: 8 };
    assert!(matches!(MasterkeyFile::lock(&keys(), "x", too_much), Err(FormatError::ScryptParams { .. })));
}

#[test]
fn hostile_json_is_refused() {
    let file = locked("x");
    for (field, value) in [
        ("primaryMasterKey", serde_json::json!("")),
        ("primaryMasterKey", serde_json::json!("AAAA")),
        ("hmacMasterKey", serde_json::json!("A".repeat(1000))),
        ("hmacMasterKey", serde_json::json!("*".repeat(56))),
        ("hmacMasterKey", serde_json::Value::Null),
        ("scryptSalt", serde_json::json!("A".repeat(4000))),
        ("scryptSalt", serde_json::json!([1, 2])),
        ("version", serde_json::json!("999")),
        ("version", serde_json::json!(999.5)),
        ("scryptCostParam", serde_json::json!(2.0)),
    ] {
        let error = edited(&file, field, value.clone()).unwrap_err();
        let typed = matches!(error, FormatError::Malformed { .. } | FormatError::Length { .. });
        assert!(typed, "{field}={value}: {error:?}");
    }
    let twice = file.to_json().replacen('{', "{\"version\": 999,", 1);
    assert!(matches!(MasterkeyFile::parse(twice.as_bytes()), Err(FormatError::Malformed { .. })));
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    for junk in [b"".as_slice(), b"{}", b"null", b"\xff\xfe", b"{\"version\":", deep.as_bytes()] {
        assert!(matches!(MasterkeyFile::parse(junk), Err(FormatError::Malformed { .. })));
    }
    let large = vec![b' '; MAX_FILE_BYTES + 1];
    assert!(matches!(MasterkeyFile::parse(&large), Err(FormatError::Length { .. })));
}

#[test]
fn nothing_prints_keys() {
    let shown = format!("{:?}", keys());
    assert_eq!(shown, "Masterkey(..)");
}

/// RFC 3394, 4.6: 256 bits of key data with a 256-bit key.
#[test]
fn key_wrap_rfc_3394() {
    let hex = |text: &str| data_encoding::HEXUPPER.decode(text.as_bytes()).unwrap();
    let kek: [u8; 32] = hex("000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F").try_into().unwrap();
    let key = hex("00112233445566778899AABBCCDDEEFF000102030405060708090A0B0C0D0E0F");
    let wrapped = hex("28C9F404C4B810F4CBCCB35CFB87F8263F5786E2D80ED326CBC7F0E71A99F43BFB988B9B7A02DD21");
    assert_eq!(wrap(&kek, &key).unwrap(), wrapped);
    let mut back = [0; 32];
    unwrap(&kek, &wrapped, &mut back).unwrap();
    assert_eq!(back.as_slice(), key);
}

/// RFC 7914, 12: N = 1024, r = 8, p = 16 is not ours (p = 1), so the p = 1 vector with N = 16, r = 1.
#[test]
fn kek_rfc_7914() {
    let kek = derive_kek("", b"", ScryptParams { cost: 16, block_size: 1 }).unwrap();
    let expected = "77d6576238657b203b19ca42c18a0497f16b4844e3074ae8dfdffa3fede21442";
    assert_eq!(data_encoding::HEXLOWER.encode(kek.as_slice()), expected);
}
