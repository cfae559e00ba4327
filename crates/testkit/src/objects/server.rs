//! A server on the loopback that does what a [`Backend`] says, but for what [`HttpFault`]s make of it.

use std::io::{self, BufReader};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::WAIT_MAX;
use super::http::{Request, Response};

/// What happens to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HttpFault {
    /// This status comes with this error code, and nothing is done.
    Status(u16, &'static str),
    /// The connection closes, and nothing is done.
    Close,
    /// It is done, and the connection closes without an answer.
    DoneAndClose,
    /// No answer comes, ever; the connection stays.
    Stall,
    /// The head of the answer and this many bytes of the body come, and the connection closes.
    BreakBody(usize),
    /// The head of the answer and this many bytes of the body come, and nothing more.
    StallBody(usize),
    /// The answer comes after this time.
    Delay(Duration),
    /// The answer comes after [`FaultyServer::release`].
    Hold,
    /// A ranged request is answered with the whole object.
    IgnoreRange,
    /// A ranged request is answered with the range one byte further on.
    WrongRange,
    /// The body ends before this many bytes, and the head says so too.
    Shorten(usize),
    /// One bit of the body is flipped.
    FlipBit,
    /// Another entity tag, in the head.
    WrongTag,
    /// A body that is not what the protocol says.
    Nonsense,
}

struct Rule {
    fault: HttpFault,
    method: &'static str,
    key: String,
    skip: u64,
    times: u64,
}

/// A request that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestLog {
    /// `GET`, `PUT`, …
    pub method: String,
    /// The key, decoded; empty for the bucket.
    pub key: String,
    /// The query as it came.
    pub query: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// The access key that it is signed with; of WebDAV, what the header `Authorization` has.
    pub access_key: Option<String>,
    /// It says that its maker pays for it.
    pub is_paid: bool,
}

/// What answers requests that no fault keeps from it.
pub trait Backend: Send + 'static {
    /// What a request is about, by which faults choose theirs.
    fn key(request: &Request) -> &str;

    /// What is noted of a request.
    fn log(request: &Request) -> RequestLog;

    /// Answers a request.
    fn answer(&mut self, request: &Request) -> Response;
}

pub(super) struct State<B> {
    pub(super) backend: B,
    rules: Vec<Rule>,
    log: Vec<RequestLog>,
    bytes_sent: u64,
    at_work: u64,
    at_work_max: u64,
    /// Connections that are read.
    served: u64,
    down: bool,
    ended: bool,
    released: bool,
    connections: Vec<TcpStream>,
}

pub(super) struct Shared<B> {
    pub(super) state: Mutex<State<B>>,
    changed: Condvar,
}

/// The server. It ends when this is dropped.
pub struct FaultyServer<B: Backend> {
    pub(super) shared: Arc<Shared<B>>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl<B: Backend> FaultyServer<B> {
    /// A server without faults, on a port of its own.
    pub(super) fn with(backend: B) -> io::Result<FaultyServer<B>> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let state = State {
            backend,
            rules: Vec::new(),
            log: Vec::new(),
            bytes_sent: 0,
            at_work: 0,
            at_work_max: 0,
            served: 0,
            down: false,
            ended: false,
            released: false,
            connections: Vec::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let acceptor = std::thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        Ok(FaultyServer { shared, address, acceptor: Some(acceptor) })
    }

    /// What it answers with, to look at it or to change it.
    pub(super) fn backend<T>(&self, with: impl FnOnce(&mut B) -> T) -> T {
        with(&mut self.shared.state.lock().backend)
    }

    /// From now on, of the requests with `method` on keys that contain `key`, lets `skip` through and does `fault` to the
    /// next `times`. Rules are tried in their order, the first that fits decides.
    pub fn add(&self, fault: HttpFault, method: &'static str, key: &str, skip: u64, times: u64) {
        let mut state = self.shared.state.lock();
        state.released &= fault != HttpFault::Hold;
        state.rules.push(Rule { fault, method, key: key.to_owned(), skip, times });
    }

    /// No more faults.
    pub fn clear(&self) {
        self.shared.state.lock().rules.clear();
    }

    /// Every request so far.
    pub fn log(&self) -> Vec<RequestLog> {
        self.shared.state.lock().log.clone()
    }

    /// Forgets the requests so far, and what was counted.
    pub fn clear_log(&self) {
        let mut state = self.shared.state.lock();
        state.log.clear();
        state.bytes_sent = 0;
        state.at_work_max = state.at_work;
    }

    /// Bytes of bodies that went out.
    pub fn bytes_sent(&self) -> u64 {
        self.shared.state.lock().bytes_sent
    }

    /// Most requests at work at one time.
    pub fn requests_at_once_max(&self) -> u64 {
        self.shared.state.lock().at_work_max
    }

    /// Lets the requests go on that [`HttpFault::Hold`] holds, and holds no others until that is added again.
    pub fn release(&self) {
        self.shared.state.lock().released = true;
        self.shared.changed.notify_all();
    }

    /// Waits until this many requests are at work.
    ///
    /// # Panics
    /// If they do not come within a minute: requests that nothing holds may have come and gone before anybody looked.
    pub fn wait_for_requests(&self, requests: u64) {
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while_for(&mut state, |state| state.at_work < requests, WAIT_MAX);
        assert!(state.at_work >= requests, "{} requests are at work, not {requests}", state.at_work);
    }

    /// Waits until a request with `method` on a key that contains `key` came since the log was cleared.
    ///
    /// # Panics
    /// If none comes within a minute.
    pub fn wait_for_request(&self, method: &str, key: &str) {
        let came =
            |state: &State<B>| state.log.iter().any(|request| request.method == method && request.key.contains(key));
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while_for(&mut state, |state| !came(state), WAIT_MAX);
        assert!(came(&state), "no {method} of {key} came");
    }

    /// Waits until no client is connected: whatever those sent that have gone, killed ones too, came, and will not come later.
    ///
    /// # Panics
    /// If some stay connected for a minute.
    pub fn wait_until_left(&self) {
        // Connections are taken in their order: when this one is, all before it are.
        let last = TcpStream::connect(self.address).and_then(|mut last| {
            last.shutdown(Shutdown::Write)?;
            io::Read::read(&mut last, &mut [0])
        });
        last.expect("a connection of its own");
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while_for(&mut state, |state| state.served > 0, WAIT_MAX);
        assert_eq!(state.served, 0, "clients are connected");
    }

    /// As if the process was killed: connections break, and no new one is answered, until [`FaultyServer::come_back`].
    pub fn go_down(&self) {
        let mut state = self.shared.state.lock();
        state.down = true;
        for connection in state.connections.drain(..) {
            // One that has gone already is as good.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Serves again, with the objects that there were.
    pub fn come_back(&self) {
        self.shared.state.lock().down = false;
    }

    /// Its endpoint, as a URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl<B: Backend> Drop for FaultyServer<B> {
    fn drop(&mut self) {
        self.go_down();
        // The acceptor looks for the end whenever somebody comes.
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
        let last = TcpStream::connect(self.address);
        if let (Ok(_), Some(acceptor)) = (last, self.acceptor.take()) {
            let _ = acceptor.join();
        }
    }
}

fn accept<B: Backend>(listener: &TcpListener, shared: &Arc<Shared<B>>) {
    for connection in listener.incoming() {
        let mut state = shared.state.lock();
        if state.ended {
            return;
        }
        let Ok(connection) = connection else { continue };
        if state.down {
            continue;
        }
        let Ok(copy) = connection.try_clone() else { continue };
        state.connections.push(copy);
        state.served += 1;
        drop(state);
        let shared = shared.clone();
        std::thread::spawn(move || {
            let _served = Served(&shared);
            // A client that goes away, or a fault that ends the connection.
            let _ = serve(&connection, &shared);
            let _ = connection.shutdown(Shutdown::Both);
        });
    }
}

/// A connection that is served, also if that breaks down.
struct Served<'a, B>(&'a Shared<B>);

impl<B> Drop for Served<'_, B> {
    fn drop(&mut self) {
        self.0.state.lock().served -= 1;
        self.0.changed.notify_all();
    }
}

/// Serves the requests of one connection until it ends.
fn serve<B: Backend>(connection: &TcpStream, shared: &Shared<B>) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection);
    while let Some(request) = Request::read(&mut reader)? {
        let fault = {
            let mut state = shared.state.lock();
            state.at_work += 1;
            state.at_work_max = state.at_work_max.max(state.at_work);
            state.log.push(B::log(&request));
            shared.changed.notify_all();
            state.decide(&request)
        };
        let goes_on = answer_with(connection, shared, &request, fault.as_ref());
        shared.state.lock().at_work -= 1;
        if !goes_on? {
            break;
        }
    }
    Ok(())
}

/// Answers, and tells whether the connection goes on.
fn answer_with<B: Backend>(
    mut connection: &TcpStream,
    shared: &Shared<B>,
    request: &Request,
    fault: Option<&HttpFault>,
) -> io::Result<bool> {
    match fault {
        Some(HttpFault::Close) => return Ok(false),
        Some(HttpFault::Stall) => return wait_for_end(connection),
        Some(HttpFault::Delay(time)) => std::thread::sleep(*time),
        Some(HttpFault::Hold) => {
            let mut state = shared.state.lock();
            while !(state.released || state.ended) {
                shared.changed.wait(&mut state);
            }
        }
        _ => {}
    }
    let mut response = match fault {
        Some(HttpFault::Status(status, code)) => Response::error(*status, code),
        Some(HttpFault::IgnoreRange) => shared.state.lock().backend.answer(&request.without_range()),
        Some(HttpFault::WrongRange) => shared.state.lock().backend.answer(&request.with_range_moved()),
        _ => shared.state.lock().backend.answer(request),
    };
    let mut part = None;
    match fault {
        Some(HttpFault::DoneAndClose) => return Ok(false),
        Some(HttpFault::BreakBody(bytes) | HttpFault::StallBody(bytes)) => part = Some(*bytes),
        Some(HttpFault::Shorten(bytes)) => response.body.truncate(*bytes),
        Some(HttpFault::FlipBit) => {
            let middle = response.body.len() / 2;
            if let Some(byte) = response.body.get_mut(middle) {
                *byte ^= 1;
            }
        }
        Some(HttpFault::WrongTag) => response.set("ETag", "\"not-this-one\""),
        Some(HttpFault::Nonsense) => response.body = b"<html>what?</html>".to_vec(),
        _ => {}
    }
    let body = response.sent_of_body(request.method == "HEAD", part);
    // Before the client can see them.
    shared.state.lock().bytes_sent += body.len() as u64;
    response.write(&mut connection, body)?;
    match fault {
        Some(HttpFault::BreakBody(_)) => Ok(false),
        Some(HttpFault::StallBody(_)) => wait_for_end(connection),
        _ => Ok(true),
    }
}

/// Waits until the client, or the end of the server, closes the connection.
fn wait_for_end(mut connection: &TcpStream) -> io::Result<bool> {
    let mut rest = [0; 512];
    while io::Read::read(&mut connection, &mut rest)? > 0 {}
    Ok(false)
}

impl<B: Backend> State<B> {
    fn decide(&mut self, request: &Request) -> Option<HttpFault> {
        for rule in &mut self.rules {
            if rule.method != request.method || !B::key(request).contains(&rule.key) || rule.times == 0 {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.times -= 1;
            return Some(rule.fault.clone());
        }
        None
    }
}
