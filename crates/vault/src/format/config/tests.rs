use super::*;
use crate::format::fuzzing::masterkey;
use serde_json::json;

fn config() -> VaultConfig {
    VaultConfig::new(CipherCombo::SivGcm, 220)
}

fn header() -> Value {
    json!({"kid": "masterkeyfile:masterkey.cryptomator", "typ": "JWT", "alg": "HS256"})
}

fn payload() -> Value {
    json!({"jti": "an-id", "format": 8, "cipherCombo": "SIV_GCM", "shorteningThreshold": 220})
}

fn token(header: &Value, payload: &Value) -> String {
    sign(header, payload, hmac::HMAC_SHA256, &masterkey())
}

#[test]
fn round_trips() {
    for combo in [CipherCombo::SivGcm, CipherCombo::SivCtrmac] {
        for threshold in [0, 36, 220, 255, i32::MAX.cast_unsigned()] {
            let config = VaultConfig::new(combo, threshold);
            let text = config.encode(&masterkey());
            assert_eq!(VaultConfig::decode(text.as_bytes(), &masterkey()).unwrap(), config);
            let spaced = format!(" {text}\r\n");
            let peeked = VaultConfig::peek(spaced.as_bytes()).unwrap();
            assert_eq!(peeked.key_id.masterkey_file_name(), Ok("masterkey.cryptomator"));
            assert_eq!(peeked.alleged_format, Some(8));
            assert_eq!(peeked.alleged_cipher_combo.as_deref(), Some(combo.as_str()));
            assert_eq!(peeked.alleged_shortening_threshold, Some(threshold));
            assert_eq!(peeked.verify(&masterkey()).unwrap(), config);
        }
    }
    assert_ne!(config().id, config().id);
}

#[test]
fn all_three_algorithms_are_read() {
    for (name, algorithm) in [("HS256", hmac::HMAC_SHA256), ("HS384", hmac::HMAC_SHA384), ("HS512", hmac::HMAC_SHA512)]
    {
        let mut header = header();
        header["alg"] = name.into();
        let token = sign(&header, &payload(), algorithm, &masterkey());
        assert_eq!(VaultConfig::decode(token.as_bytes(), &masterkey()).unwrap().id, "an-id");
        // The same bytes under another algorithm's name do not verify.
        header["alg"] = if name == "HS256" { "HS512" } else { "HS256" }.into();
        let token = sign(&header, &payload(), algorithm, &masterkey());
        assert_eq!(VaultConfig::decode(token.as_bytes(), &masterkey()), Err(FormatError::Signature));
    }
    for alg in [json!("none"), json!("RS256"), json!("hs256"), json!("")] {
        let mut header = header();
        header["alg"] = alg;
        let error = VaultConfig::peek(token(&header, &payload()).as_bytes()).unwrap_err();
        assert!(matches!(error, FormatError::SignatureAlgorithm { .. }));
    }
}

#[test]
fn the_signature_comes_before_every_claim() {
    let other = Masterkey::from_keys(&[1; 32], &[2; 32]);
    for (claim, value) in [
        ("format", json!(7)),
        ("format", json!("8")),
        ("cipherCombo", json!("NONE")),
        ("shorteningThreshold", json!(-1)),
        ("jti", json!(null)),
    ] {
        let mut payload = payload();
        payload[claim] = value;
        let token = token(&header(), &payload);
        assert_eq!(VaultConfig::decode(token.as_bytes(), &other), Err(FormatError::Signature), "{claim}");
        assert!(VaultConfig::decode(token.as_bytes(), &masterkey()).is_err(), "{claim}");
    }
}

#[test]
fn every_changed_character_is_noticed() {
    let token = token(&header(), &payload());
    for at in 0..token.len() {
        let mut changed = token.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        assert!(VaultConfig::decode(&changed, &masterkey()).is_err(), "character {at}");
        let mut short = token.clone().into_bytes();
        short.truncate(at);
        assert!(VaultConfig::decode(&short, &masterkey()).is_err(), "cut at {at}");
    }
}

#[test]
fn authentic_claims_are_still_checked() {
    let error = |claim: &str, value: Value| {
        let mut payload = payload();
        payload[claim] = value;
        VaultConfig::decode(token(&header(), &payload).as_bytes(), &masterkey()).unwrap_err()
    };
    assert_eq!(error("format", json!(7)), FormatError::UnsupportedFormat { found: 7, expected: 8 });
    assert_eq!(error("format", json!(9)), FormatError::UnsupportedFormat { found: 9, expected: 8 });
    assert_eq!(error("cipherCombo", json!("SIV_X")), FormatError::CipherCombo { found: "SIV_X".into() });
    let claim = |claim, found: &str| FormatError::Claim { claim, found: found.to_owned() };
    assert_eq!(error("shorteningThreshold", json!(-1)), claim("shorteningThreshold", "-1"));
    assert_eq!(error("shorteningThreshold", json!(1u64 << 40)), claim("shorteningThreshold", "1099511627776"));
    assert_eq!(error("format", json!("8")), claim("format", "\"8\""));
    assert_eq!(error("jti", json!("")), claim("jti", "\"\""));
    assert_eq!(error("jti", json!("a\nb")), claim("jti", "\"a\\nb\""));
    assert!(matches!(error("jti", json!("x".repeat(200))), FormatError::Claim { claim: "jti", .. }));
    let bare = token(&header(), &json!({"format": 8}));
    assert_eq!(VaultConfig::decode(bare.as_bytes(), &masterkey()), Err(claim("cipherCombo", "absent")));
}

#[test]
fn key_ids() {
    let name = |kid: &str| KeyId::parse(kid).and_then(|id| id.masterkey_file_name().map(str::to_owned));
    assert_eq!(name("masterkeyfile:masterkey.cryptomator").unwrap(), "masterkey.cryptomator");
    assert_eq!(name("masterkeyfile:my%20key").unwrap(), "my key");
    for kid in [
        "masterkeyfile:",
        "masterkeyfile:.",
        "masterkeyfile:..",
        "masterkeyfile:../masterkey.cryptomator",
        "masterkeyfile:/etc/passwd",
        "masterkeyfile:%2Fetc%2Fpasswd",
        "masterkeyfile:%2e%2e",
        "masterkeyfile:..%5cx",
        "masterkeyfile:a%00b",
        "masterkeyfile:a%0",
        "masterkeyfile:a%zz",
        "masterkeyfile:%ff",
        "masterkeyfile:a\nb",
        "file:///etc/passwd",
        "masterkey.cryptomator",
        "",
    ] {
        assert!(matches!(name(kid), Err(FormatError::KeyId { .. })), "{kid}");
    }
    assert!(matches!(name(&format!("masterkeyfile:{}", "x".repeat(256))), Err(FormatError::KeyId { .. })));
    for kid in ["hub+https://hub.example.org/api/vaults/1", "hub+http://localhost/"] {
        assert_eq!(name(kid), Err(FormatError::HubVault { key_id: kid.to_owned() }));
    }
    let odd = KeyId::MasterkeyFile("ä key%".to_owned());
    assert_eq!(KeyId::parse(&odd.to_kid()), Ok(odd));
}

#[test]
fn hostile_tokens_are_refused() {
    let long = "A".repeat(MAX_FILE_BYTES + 1);
    let crit = {
        let mut header = header();
        header["crit"] = json!(["exp"]);
        token(&header, &payload())
    };
    let no_kid = token(&json!({"alg": "HS256"}), &payload());
    let array = token(&json!(["x"]), &payload());
    let four = format!("{}.x", token(&header(), &payload()));
    let padded = format!("{}=", token(&header(), &payload()));
    for text in ["", ".", "..", "...", "a.b", "a.b.c", "e30.e30.", &long, &crit, &no_kid, &array, &four, &padded] {
        let error = VaultConfig::peek(text.as_bytes()).unwrap_err();
        let typed = matches!(error, FormatError::Malformed { .. } | FormatError::Length { .. });
        assert!(typed, "{}: {error:?}", shortened(text));
    }
    assert!(VaultConfig::peek(b"\xff\xfe").is_err());
}
