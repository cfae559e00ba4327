//! S3 servers for tests and benchmarks: [`S3Server`] starts versitygw or moto on a free port of the loopback, waits until it answers,
//! and ends it with its owner, even if that is killed; so does [`WebDavServer`] with Apache.
//!
//! The programs are brought by `cargo xtask test`, which tells them in [`Kind::variable`]. This crate needs no other of the
//! workspace, so that xtask can use it as well. It is no part of the product.

mod guard;
mod webdav;

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use guard::Guarded;
pub use webdav::{APACHE, WebDavServer};

/// The variable that tells tests which server to use, by [`Kind::name`]; versitygw where it is not set.
pub const ENV_KIND: &str = "ADIT_S3_SERVER";

/// The variable of versitygw that has it keep connections, as stores do; handed on to it. It closes them otherwise, which tests want.
pub const ENV_KEEP_ALIVE: &str = "VGW_KEEP_ALIVE";

/// How long a server may take until it answers. moto imports for seconds where others use the machine.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How often a starting server is asked.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// How long it may take to answer once.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Ports that are tried: another process may take one between its choice and the server's start.
const PORTS_MAX: u32 = 5;
/// The end of a server's log that an error shows.
const LOG_SHOWN_BYTES: usize = 2000;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A gateway to a folder: objects are files, a bucket's objects survive [`S3Server::restart`].
    Versitygw,
    /// A simulation of AWS in Python, which holds everything in memory and forgets it when it ends.
    Moto,
}

impl Kind {
    /// Every server, the one that tests use first.
    pub const ALL: [Kind; 2] = [Kind::Versitygw, Kind::Moto];

    /// The name that [`ENV_KIND`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Versitygw => "versitygw",
            Kind::Moto => "moto",
        }
    }

    /// The variable that tells tests the path of its program.
    pub fn variable(self) -> &'static str {
        match self {
            Kind::Versitygw => "ADIT_VERSITYGW",
            Kind::Moto => "ADIT_MOTO",
        }
    }
}

/// The access key of every server. It is also the account's number: AWS counts accounts in twelve digits, moto has this one unless told
/// otherwise, and to versitygw an account is its access key.
pub const ACCESS_KEY: &str = "123456789012";
/// The secret key of every server.
pub const SECRET_KEY: &str = "a-key-for-tests-on-loopback";
/// The region of every server.
pub const REGION: &str = "us-west-2";

/// A running server, killed when this is dropped.
#[derive(Debug)]
pub struct S3Server {
    kind: Kind,
    program: PathBuf,
    dir: PathBuf,
    address: SocketAddr,
    process: Guarded,
}

impl S3Server {
    /// Starts the server of `kind`, whose program lies at `program`, and waits until it answers.
    ///
    /// `dir` gets the objects (`data`) and the server's log. On versitygw's side it needs extended attributes.
    pub fn start(kind: Kind, program: &Path, dir: &Path) -> io::Result<S3Server> {
        fs::create_dir_all(dir.join("data"))?;
        for _ in 0..PORTS_MAX {
            let address = free_address()?;
            match start_at(kind, program, dir, address) {
                // Whoever else has the port now is why it did not start.
                Err(_) if TcpListener::bind(address).is_err() => {}
                Err(error) => return Err(error),
                Ok(process) => {
                    return Ok(S3Server {
                        kind,
                        program: program.to_path_buf(),
                        dir: dir.to_path_buf(),
                        address,
                        process,
                    });
                }
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("{PORTS_MAX} free ports were taken before {} was", kind.name()),
        ))
    }

    /// Starts the server that the environment names, with `dir` as in [`S3Server::start`].
    ///
    /// `None`, with a line on standard error, where it names none and this is not CI: there that is a panic.
    pub fn of_environment(dir: &Path) -> Option<S3Server> {
        let wanted = env::var(ENV_KIND).unwrap_or_else(|_| Kind::Versitygw.name().to_owned());
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == wanted);
        let kind = kind.unwrap_or_else(|| panic!("{ENV_KIND} is {wanted:?}: there is no such server"));
        S3Server::named(kind, dir)
    }

    /// Starts the server of `kind` with the program that the environment names, else as [`S3Server::of_environment`].
    pub fn named(kind: Kind, dir: &Path) -> Option<S3Server> {
        let program = program(kind)?;
        let server = S3Server::start(kind, &program, dir);
        Some(server.unwrap_or_else(|error| panic!("cannot start {}: {error}", kind.name())))
    }

    /// Which server it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it listens: always on the loopback.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as a URL, without a slash at the end. Buckets are a part of the path.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The folder that holds versitygw's objects: `data()/bucket/key`. moto leaves it empty.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// What a program of AWS's libraries needs to reach it, and nothing else: no file of the user, no service that hands out credentials.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        variables(&self.endpoint(), &self.dir)
    }

    /// Makes a bucket, which is an error if it is there.
    pub fn create_bucket(&self, name: &str) -> io::Result<()> {
        let refused = match self.kind {
            // Its own client, which signs the request.
            Kind::Versitygw => {
                let mut admin = Command::new(&self.program);
                admin.env_clear().args(["admin", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION]);
                admin.args([
                    "--endpoint-url",
                    &self.endpoint(),
                    "create-bucket",
                    "--owner",
                    ACCESS_KEY,
                    "--bucket",
                    name,
                ]);
                let output = admin.output()?;
                (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
            }
            // It takes whoever asks.
            Kind::Moto => {
                let answer = exchange(self.address, &format!("PUT /{name}"))?;
                (!answer.starts_with("HTTP/1.1 200 ")).then_some(answer)
            }
        };
        match refused {
            None => Ok(()),
            Some(why) => Err(io::Error::other(format!("{} makes no bucket {name}: {why}", self.kind.name()))),
        }
    }

    /// Kills it. Connections break off, as they do when a host goes down; what was answered stays on the disk.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again at the same address, with the same data in versitygw's case. Kills it first if it still runs.
    pub fn restart(&mut self) -> io::Result<()> {
        self.process.kill();
        self.process = start_at(self.kind, &self.program, &self.dir, self.address)?;
        Ok(())
    }
}

/// The variables that reach the server at `endpoint`; `home` is a folder for what AWS's libraries would keep in the user's.
fn variables(endpoint: &str, home: &Path) -> Vec<(&'static str, String)> {
    let home = |name: &str| home.join(name).to_string_lossy().into_owned();
    vec![
        ("AWS_ENDPOINT_URL", endpoint.to_owned()),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
        ("AWS_ACCOUNT_ID", ACCESS_KEY.to_owned()),
        ("AWS_REGION", REGION.to_owned()),
        ("AWS_DEFAULT_REGION", REGION.to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ("AWS_CONFIG_FILE", home("aws-config")),
        ("AWS_SHARED_CREDENTIALS_FILE", home("aws-credentials")),
        // Where programs go through a proxy to reach the world, the loopback is not in it.
        ("NO_PROXY", Ipv4Addr::LOCALHOST.to_string()),
        ("ADIT_S3_ENDPOINT", endpoint.to_owned()),
        ("ADIT_S3_ACCESS_KEY", ACCESS_KEY.to_owned()),
        ("ADIT_S3_SECRET_KEY", SECRET_KEY.to_owned()),
        ("ADIT_S3_REGION", REGION.to_owned()),
    ]
}

/// The program that the environment names for `kind`.
fn program(kind: Kind) -> Option<PathBuf> {
    let variable = kind.variable();
    if let Some(program) = env::var_os(variable).filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(program));
    }
    let in_ci = env::var_os("CI").is_some_and(|value| value == "true" || value == "1");
    assert!(!in_ci, "{variable} is not set: run by `cargo xtask test`");
    // Straight to stderr: what a test prints is shown only if it fails.
    let _ = writeln!(io::stderr(), "NOT RUN: {variable} is not set; `cargo xtask test --only interop` sets it");
    None
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

fn start_at(kind: Kind, program: &Path, dir: &Path, address: SocketAddr) -> io::Result<Guarded> {
    let log = dir.join("server.log");
    let process = Guarded::start(
        &command(kind, program, dir, address),
        &OpenOptions::new().append(true).create(true).open(&log)?,
    )?;
    answering(kind.name(), process, address, &log)
}

/// Waits until a process answers at `address`.
fn answering(name: &str, mut process: Guarded, address: SocketAddr, log: &Path) -> io::Result<Guarded> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        // Asked last: an answer counts only if it came while the program ran.
        let answers = answers(address);
        if let Some(status) = process.ended()? {
            let message = format!("{name} ended at once ({status}): {}", tail(log));
            return Err(io::Error::other(message));
        }
        if answers {
            return Ok(process);
        }
        if Instant::now() >= deadline {
            let message = format!("{name} does not answer after {} s: {}", START_LIMIT.as_secs(), tail(log));
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        thread::sleep(ASK_EVERY);
    }
}

fn command(kind: Kind, program: &Path, dir: &Path, address: SocketAddr) -> Command {
    let mut command = Command::new(program);
    command.current_dir(dir);
    match kind {
        Kind::Versitygw => {
            command.env("ROOT_ACCESS_KEY", ACCESS_KEY).env("ROOT_SECRET_KEY", SECRET_KEY);
            // Without it the server closes each connection after one answer.
            command.envs(env::var_os(ENV_KEEP_ALIVE).map(|value| (ENV_KEEP_ALIVE, value)));
            command
                .args(["--quiet", "--region", REGION, "--port", &address.to_string(), "posix"])
                .arg(dir.join("data"));
        }
        Kind::Moto => {
            command.args(["-H", &address.ip().to_string(), "-p", &address.port().to_string()]);
        }
    }
    command
}

/// True if a web server answers anything at all.
fn answers(address: SocketAddr) -> bool {
    exchange(address, "GET /").is_ok_and(|answer| answer.starts_with("HTTP/"))
}

/// Sends a request without a body, and returns the answer as text.
fn exchange(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The end of a log, for an error.
fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let from = text.len().saturating_sub(LOG_SHOWN_BYTES);
    String::from_utf8_lossy(&text[from..]).trim().to_owned()
}
