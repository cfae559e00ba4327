//! Who is trusted on an encrypted connection: whoever a certificate that is trusted has issued one, and whoever has one that is trusted itself.
//!
//! The library for the former takes no certificate of an authority for a server's own, as `openssl req -x509` makes them, and none by itself whose
//! issuer is not there. curl and the AWS tools do: what the file of trusted certificates has, byte for byte, is trusted, for its names and in its time.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use adit_core::{ErrorKind, FsError, Result};
use reqsign_core::time::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// How connections are encrypted, with the certificates of a file, or else of the system: of the files that `SSL_CERT_FILE` and `SSL_CERT_DIR` name,
/// if they do. Who `may_be_plain` can do without any.
///
/// # Errors
/// Those of the file; that there are no certificates.
pub fn config(ca_bundle: Option<&Path>, may_be_plain: bool) -> Result<ClientConfig> {
    let trusted = match ca_bundle {
        Some(path) => of_file(path)?,
        None => of_system(may_be_plain)?,
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    let issuers = match roots.is_empty() {
        true => None,
        false => {
            let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
            Some(built.map_err(|e| set_up(e.to_string()))?)
        }
    };
    let config = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let config = config.map_err(|e| set_up(e.to_string()))?;
    let verifier = Arc::new(Verifier { issuers, trusted, provider });
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn set_up(why: String) -> FsError {
    FsError::new(ErrorKind::Io).on("set up", "TLS").because(why)
}

/// The certificates of a file.
fn of_file(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = std::fs::read(path).map_err(FsError::from).and_then(|bytes| {
        let invalid = || FsError::new(ErrorKind::InvalidInput).because("it has no certificates in PEM");
        let certificates: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        certificates.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(invalid)
    });
    read.map_err(|e| e.on("read certificates", path.display()))
}

/// Those of the system.
fn of_system(may_be_none: bool) -> Result<Vec<CertificateDer<'static>>> {
    let found = rustls_native_certs::load_native_certs();
    if !found.certs.is_empty() || may_be_none {
        return Ok(found.certs);
    }
    let why = found.errors.first().map_or_else(|| "this machine has no certificates".to_owned(), ToString::to_string);
    Err(set_up(format!("{why}; AWS_CA_BUNDLE can name a file with certificates")))
}

/// Decides whether a server is who it says it is.
struct Verifier {
    /// Those that issue certificates; none if there are none.
    issuers: Option<Arc<WebPkiServerVerifier>>,
    /// All that are trusted.
    trusted: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("trusted", &self.trusted.len()).finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let unknown = || Err(CertificateError::UnknownIssuer.into());
        let issued = self.issuers.as_ref().map_or_else(unknown, |issuers| {
            issuers.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        });
        match issued {
            Err(_) if self.trusted.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                expect_in_its_time(end_entity, now)?;
                Ok(ServerCertVerified::assertion())
            }
            issued => issued,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn expect_in_its_time(certificate: &[u8], now: UnixTime) -> std::result::Result<(), CertificateError> {
    let (begin, end) = validity(certificate).ok_or(CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    match now {
        now if now < begin => Err(CertificateError::NotValidYet),
        now if now > end => Err(CertificateError::Expired),
        _ => Ok(()),
    }
}

/// The first and the last second in which a certificate is valid, since 1970 (RFC 5280, 4.1).
fn validity(certificate: &[u8]) -> Option<(i64, i64)> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let of = |tag: u8, (found, content): (u8, _)| (found == tag).then_some(content);
    let mut certificate = of(SEQUENCE, element(&mut &*certificate)?)?;
    let mut signed = of(SEQUENCE, element(&mut certificate)?)?;
    // The serial number, or the version before it.
    if element(&mut signed)?.0 == VERSION {
        element(&mut signed)?;
    }
    let (_algorithm, _issuer) = (element(&mut signed)?, element(&mut signed)?);
    let mut validity = of(SEQUENCE, element(&mut signed)?)?;
    Some((time(element(&mut validity)?)?, time(element(&mut validity)?)?))
}

/// Takes the next element of DER: its tag, and what is in it.
fn element<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk()?;
    let (len, rest) = match first {
        0..0x80 => (usize::from(first), rest),
        _ => {
            let (len, rest) = rest.split_at_checked(usize::from(first & 0x7f)).filter(|(len, _)| len.len() <= 4)?;
            (len.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
    };
    let (content, rest) = rest.split_at_checked(len)?;
    *bytes = rest;
    Some((tag, content))
}

/// A time of a certificate, in seconds since 1970.
fn time((tag, content): (u8, &[u8])) -> Option<i64> {
    const SHORT: u8 = 0x17;
    const LONG: u8 = 0x18;
    let text =
        std::str::from_utf8(content).ok()?.strip_suffix('Z').filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    let text = match (tag, text.len()) {
        (SHORT, 12) if text < "5" => format!("20{text}"),
        (SHORT, 12) => format!("19{text}"),
        (LONG, 14) => text.to_owned(),
        _ => return None,
    };
    let part = |at: usize, len: usize| &text[at..at + len];
    let (year, month, day) = (part(0, 4), part(4, 2), part(6, 2));
    let time = format!("{year}-{month}-{day}T{}:{}:{}Z", part(8, 2), part(10, 2), part(12, 2));
    time.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_both_forms() {
        assert_eq!(time((0x17, b"700101000001Z")), Some(1));
        assert_eq!(time((0x17, b"491231235959Z")), Some(2_524_607_999));
        assert_eq!(time((0x17, b"500101000000Z")), Some(-631_152_000));
        assert_eq!(time((0x18, b"20500101000000Z")), Some(2_524_608_000));
        for (tag, text) in [
            (0x17, &b"20500101000000Z"[..]),
            (0x18, b"700101000001Z"),
            (0x17, b"700101000001"),
            (0x17, b"701301000001Z"),
        ] {
            assert_eq!(time((tag, text)), None);
        }
        for bytes in
            [&b""[..], b"\x30", b"\x30\x85\x01\x01\x01\x01\x01", b"\x30\x84\xff\xff\xff\xff", b"\x30\x02\x30\x01"]
        {
            assert_eq!(validity(bytes), None);
        }
    }
}
