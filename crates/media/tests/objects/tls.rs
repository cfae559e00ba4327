//! Who is trusted on an encrypted connection. The certificates are like those of `openssl req -x509`, but valid from 2000 to 2100, and `expired.pem` for a day.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use adit_core::media::Objects;
use adit_core::{ErrorKind, Result};
use adit_media::objects::{ObjectsOptions, S3Objects, WebDavCollection, WebDavObjects};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, Stream};

use super::support::*;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/objects/certificates").join(name)
}

/// A server that has an object of four bytes under each key, and its port.
fn serve(certificate: &str) -> u16 {
    let chain = vec![CertificateDer::from_pem_file(file(certificate)).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file("key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(chain, key).unwrap());
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (Ok(mut socket), Ok(mut connection)) = (socket, ServerConnection::new(config.clone())) else {
                continue;
            };
            let mut stream = Stream::new(&mut connection, &mut socket);
            let (mut head, mut byte) = (Vec::new(), [0]);
            // Who does not trust it goes away.
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
                head.push(byte[0]);
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nETag: \"1\"\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    port
}

/// Asks for an object of a server that has the certificate, by who trusts those of the bundle.
fn ask(certificate: &str, bundle: &str) -> Result<u64> {
    keys();
    let endpoint = Some(format!("https://127.0.0.1:{}", serve(certificate)));
    let options = ObjectsOptions { endpoint, ca_bundle: Some(file(bundle)), tries_max: 1, ..ObjectsOptions::default() };
    S3Objects::open("bucket", "root", &options)?.head("object").map(|object| object.len)
}

#[test]
fn what_the_bundle_has_itself_is_trusted() {
    for (certificate, bundle) in [
        ("authority.pem", "authority.pem"),
        ("leaf.pem", "leaf.pem"),
        ("issued.pem", "issued.pem"),
        ("issued.pem", "issuer.pem"),
    ] {
        assert_eq!(ask(certificate, bundle).unwrap_or_else(|e| panic!("{certificate}: {e}")), 4);
    }
}

#[test]
fn its_names_and_its_time_count_all_the_same() {
    for (certificate, bundle, advice) in [
        ("other-name.pem", "other-name.pem", "subjectAltName"),
        ("common-name.pem", "common-name.pem", "subjectAltName"),
        ("expired.pem", "expired.pem", "have it made anew"),
        ("leaf.pem", "issuer.pem", "AWS_CA_BUNDLE can name a file with it"),
        // Of the same key and name, and not the same.
        ("expired.pem", "authority.pem", ""),
        ("authority.pem", "expired.pem", ""),
    ] {
        let e = ask(certificate, bundle).unwrap_err();
        assert!(e.kind() == ErrorKind::Network && e.to_string().contains(advice), "{certificate}: {e}");
    }
}

#[test]
fn a_server_on_webdav_is_trusted_likewise() {
    keys();
    let options = ObjectsOptions { ca_bundle: Some(file("authority.pem")), tries_max: 1, ..ObjectsOptions::default() };
    let collection = WebDavCollection {
        tls: true,
        authority: format!("127.0.0.1:{}", serve("authority.pem")),
        root: "root".to_owned(),
    };
    let e = WebDavObjects::open(&collection, &options).unwrap().head("object").unwrap_err();
    assert!(!e.to_string().contains("certificate"), "{e}");
}
