//! The servers start, answer, are killed and come back; nothing of them is left over.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use adit_servers::{APACHE, Kind, S3Server, WebDavServer};

/// The server of `kind` in a folder of the build, which has extended attributes where /tmp may have none.
fn start(kind: Kind) -> Option<(S3Server, tempfile::TempDir)> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let server = S3Server::named(kind, dir.path())?;
    Some((server, dir))
}

/// The status line of an answer to a request without credentials.
fn status_line(server: &S3Server, request: &str) -> std::io::Result<String> {
    status_line_of(server.address(), request)
}

fn status_line_of(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn versitygw_keeps_its_objects_over_a_kill_and_wants_credentials() {
    let Some((mut server, _dir)) = start(Kind::Versitygw) else {
        return;
    };
    server.create_bucket("bucket").unwrap();
    assert!(server.data().join("bucket").is_dir());
    let refused = status_line(&server, "GET /bucket?list-type=2").unwrap();
    assert!(refused.contains("403"), "{refused}");

    let address = server.address();
    server.kill();
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    server.restart().unwrap();
    assert_eq!(server.address(), address);
    assert!(server.data().join("bucket").is_dir());
    let refused = server.create_bucket("bucket").unwrap_err();
    assert!(refused.to_string().contains("Bucket"), "{refused}");
}

#[test]
fn moto_forgets_everything_over_a_kill() {
    let Some((mut server, _dir)) = start(Kind::Moto) else {
        return;
    };
    server.create_bucket("bucket").unwrap();
    let found = status_line(&server, "HEAD /bucket").unwrap();
    assert!(found.contains("200"), "{found}");
    server.restart().unwrap();
    let missing = status_line(&server, "HEAD /bucket").unwrap();
    assert!(missing.contains("404"), "{missing}");
}

#[test]
fn apache_speaks_webdav_until_it_is_dropped() {
    if !Path::new(APACHE).exists() {
        let in_ci = env::var_os("CI").is_some_and(|value| value == "true" || value == "1");
        assert!(!in_ci, "{APACHE} is missing: run by `cargo xtask test`");
        // Straight to stderr: what a test prints is shown only if it fails.
        let _ =
            writeln!(std::io::stderr(), "NOT RUN: {APACHE} is missing; `cargo xtask test --only interop` installs it");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Started by root, it runs as somebody else.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let server = WebDavServer::start(dir.path()).unwrap();
    let address = server.address();
    assert_eq!(server.url(), format!("dav://{address}/root"));
    let made = status_line_of(address, "MKCOL /root/new").unwrap();
    assert!(made.contains("201"), "{made}");
    assert!(dir.path().join("data/root/new").is_dir());
    drop(server);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_program_that_ends_at_once_is_an_error_with_its_last_words() {
    let dir = tempfile::tempdir().unwrap();
    // It does not know the options of a server.
    let error = S3Server::start(Kind::Versitygw, Path::new("/bin/ls"), dir.path()).unwrap_err();
    assert!(error.to_string().contains("--quiet"), "{error}");
    assert!(error.to_string().contains("exit status: 2"), "{error}");
}

/// Run as a process of its own by the next test: starts a server and waits to be killed.
#[test]
#[ignore = "a part of a_server_ends_with_an_owner_that_is_killed"]
fn owner() {
    let dir = env::var_os("OWNER_DIR").unwrap();
    let server = S3Server::named(Kind::Versitygw, Path::new(&dir)).unwrap();
    println!("LISTENS {}", server.address());
    std::io::stdout().flush().unwrap();
    thread::sleep(Duration::from_secs(300));
}

#[test]
fn a_server_ends_with_an_owner_that_is_killed() {
    let Some((_, dir)) = start(Kind::Versitygw) else {
        return;
    };
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "owner"])
        .env("OWNER_DIR", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stdout = owner.stdout.take().unwrap();
    let mut buffer = [0; 256];
    let address = loop {
        let len = stdout.read(&mut buffer).unwrap();
        assert_ne!(len, 0, "the owner ended: {said}");
        said.push_str(&String::from_utf8_lossy(&buffer[..len]));
        let line = said.lines().find_map(|line| line.split_once("LISTENS ")?.1.parse().ok());
        if let (Some(address), true) = (line, said.contains('\n')) {
            break address;
        }
    };
    let address: std::net::SocketAddr = address;
    assert!(TcpStream::connect(address).is_ok());
    owner.kill().unwrap();
    owner.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < deadline, "the server at {address} outlives its owner");
        thread::sleep(Duration::from_millis(20));
    }
}
