//! A proxy that moves a server away: each request takes so much longer, as over a network with that round trip.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// What is handed on at once: large, so that the proxy itself costs little beside the server.
const BUFFER_BYTES: usize = 256 << 10;

/// Stands between clients of HTTP/1.1 and their server, on the loopback. Bytes are handed on as they are; the first of each request wait.
///
/// A request begins with whatever a client sends after bytes of the server, so connections that send several requests without
/// waiting for answers ("pipelining", which no client of S3 does) have one wait for all of them. Connecting costs a round trip as well, as it
/// does over a network.
#[derive(Debug)]
pub struct DistantServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    round_trip: Duration,
    requests: AtomicU64,
    connections: AtomicU64,
    answered_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    ends: AtomicBool,
}

/// What went through a [`DistantServer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests.
    pub requests: u64,
    /// Connections that clients opened.
    pub connections: u64,
    /// Bytes from the server, heads of answers included.
    pub answered_bytes: u64,
    /// Bytes to the server, heads of requests included.
    pub sent_bytes: u64,
}

impl DistantServer {
    /// Listens on a port of its own for `server`, whose answers come `round_trip` later than they would.
    pub fn start(server: SocketAddr, round_trip: Duration) -> io::Result<DistantServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server,
            round_trip,
            requests: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            answered_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if of_thread.ends.load(Relaxed) {
                    return;
                }
                let Ok(client) = client else { continue };
                let shared = of_thread.clone();
                thread::spawn(move || serve(&client, &shared));
            }
        });
        Ok(DistantServer { address, shared })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as a URL, without a slash at the end.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What went through it until now.
    pub fn traffic(&self) -> Traffic {
        let shared = &self.shared;
        Traffic {
            requests: shared.requests.load(Relaxed),
            connections: shared.connections.load(Relaxed),
            answered_bytes: shared.answered_bytes.load(Relaxed),
            sent_bytes: shared.sent_bytes.load(Relaxed),
        }
    }
}

impl Drop for DistantServer {
    /// Takes no more connections; those that are there end with their clients.
    fn drop(&mut self) {
        self.shared.ends.store(true, Relaxed);
        // Whoever waits for a client looks up.
        let _ = TcpStream::connect(self.address);
    }
}

/// Hands on both directions of a connection until both have ended.
fn serve(client: &TcpStream, shared: &Shared) {
    shared.connections.fetch_add(1, Relaxed);
    thread::sleep(shared.round_trip);
    let Ok(server) = TcpStream::connect(shared.server) else { return };
    // What is handed on in pieces is not to wait for more.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let is_asked = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            hand_on(&server, client, |len| {
                is_asked.store(false, Relaxed);
                shared.answered_bytes.fetch_add(len, Relaxed);
            });
        });
        hand_on(client, &server, |len| {
            shared.sent_bytes.fetch_add(len, Relaxed);
            if !is_asked.swap(true, Relaxed) {
                shared.requests.fetch_add(1, Relaxed);
                thread::sleep(shared.round_trip);
            }
        });
    });
}

/// Hands on what comes until it ends or cannot be handed on; `seen` is told the length of each piece before.
fn hand_on(mut from: &TcpStream, mut to: &TcpStream, mut seen: impl FnMut(u64)) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(len) = from.read(&mut buffer) {
        if len == 0 {
            break;
        }
        seen(len as u64);
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    // The other direction learns of it by its next call. Either may be gone.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::time::Instant;

    use super::*;

    /// Answers each line with a line.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    for line in BufReader::new(client.try_clone().unwrap()).lines().map_while(Result::ok) {
                        writeln!(&client, "{line}").unwrap();
                    }
                });
            }
        });
        address
    }

    #[test]
    fn each_request_waits_and_is_counted() {
        let round_trip = Duration::from_millis(20);
        let server = DistantServer::start(echo(), round_trip).unwrap();
        let client = TcpStream::connect(server.address()).unwrap();
        let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
        let started = Instant::now();
        for request in 0..3 {
            writeln!(&client, "{request}").unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), request.to_string());
        }
        // One for the connection.
        assert!(started.elapsed() >= 4 * round_trip, "{:?}", started.elapsed());
        assert_eq!(server.traffic(), Traffic { requests: 3, connections: 1, answered_bytes: 6, sent_bytes: 6 });
    }
}
