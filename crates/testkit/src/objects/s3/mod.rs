//! A server of the S3 protocol on loopback, with one bucket in memory, as far as a client of objects needs it: it knows
//! ranges, conditions, multipart uploads and listings, and checks which access key a request is signed with (not the
//! signature: `xtask` runs the same tests against real servers).
//!
//! What it is for are [`HttpFault`]s: answers and ends of connections that no well-behaved server has.

mod answer;

use std::collections::{BTreeMap, BTreeSet};
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
    /// The answer comes after [`FaultyS3::release`].
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

/// What the server makes of `If-None-Match` and `If-Match`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Conditions {
    /// What the protocol says.
    #[default]
    Heeded,
    /// Nothing, in silence.
    Ignored,
    /// A write with `If-None-Match` is answered with 501, `NotImplemented`; `If-Match` is heeded.
    NotImplemented,
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
    /// The access key that it is signed with.
    pub access_key: Option<String>,
}

#[derive(Clone)]
struct Object {
    bytes: Arc<[u8]>,
    tag: String,
    metadata: Vec<(String, String)>,
}

struct Upload {
    key: String,
    metadata: Vec<(String, String)>,
    parts: BTreeMap<u32, Arc<[u8]>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<u64, Upload>,
    numbers: u64,
    rules: Vec<Rule>,
    log: Vec<RequestLog>,
    bytes_sent: u64,
    at_work: u64,
    at_work_max: u64,
    access_keys: BTreeSet<String>,
    expired_keys: BTreeSet<String>,
    conditions: Conditions,
    /// Whether nobody may list: then nobody hears either that an object is missing.
    unlisted: bool,
    bucket: &'static str,
    down: bool,
    ended: bool,
    released: bool,
    connections: Vec<TcpStream>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The server. It ends when this is dropped.
pub struct FaultyS3 {
    shared: Arc<Shared>,
    bucket: &'static str,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl FaultyS3 {
    /// A server with an empty bucket, that takes requests signed with the access key `access`.
    pub fn start() -> io::Result<FaultyS3> {
        FaultyS3::with_bucket("bucket")
    }

    /// The same with a bucket of another name.
    pub fn with_bucket(bucket: &'static str) -> io::Result<FaultyS3> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        {
            let mut state = shared.state.lock();
            state.bucket = bucket;
            state.access_keys.insert("access".to_owned());
        }
        let acceptor = std::thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        Ok(FaultyS3 { shared, bucket, address, acceptor: Some(acceptor) })
    }

    /// Its endpoint, as a URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The name of its bucket.
    pub fn bucket(&self) -> &'static str {
        self.bucket
    }

    /// From now on, of the requests with `method` on keys that contain `key`, lets `skip` through and does `fault` to the
    /// next `times`. Rules are tried in their order, the first that fits decides. A listing is `GET` of the empty key, parts
    /// of an upload are `PUT`, its beginning and its end `POST`.
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
            |state: &State| state.log.iter().any(|request| request.method == method && request.key.contains(key));
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while_for(&mut state, |state| !came(state), WAIT_MAX);
        assert!(came(&state), "no {method} of {key} came");
    }

    /// Takes requests that are signed with this access key, too.
    pub fn accept_key(&self, access_key: &str) {
        let mut state = self.shared.state.lock();
        state.expired_keys.remove(access_key);
        state.access_keys.insert(access_key.to_owned());
    }

    /// From now on, an access key is answered with `ExpiredToken`.
    pub fn expire_key(&self, access_key: &str) {
        let mut state = self.shared.state.lock();
        state.access_keys.remove(access_key);
        state.expired_keys.insert(access_key.to_owned());
    }

    /// From now on, does this with conditions.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.shared.state.lock().conditions = conditions;
    }

    /// From now on, nobody may list the bucket. An object that is missing is answered as one that may not be had, as S3 does.
    pub fn forbid_listing(&self) {
        self.shared.state.lock().unlisted = true;
    }

    /// Puts an object there.
    pub fn store(&self, key: &str, bytes: &[u8]) {
        self.shared.state.lock().store(key, bytes.into(), Vec::new());
    }

    /// Takes an object away.
    pub fn remove(&self, key: &str) -> bool {
        self.shared.state.lock().objects.remove(key).is_some()
    }

    /// As if the process was killed: connections break, and no new one is answered, until [`FaultyS3::come_back`].
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

    /// The bytes of an object.
    pub fn bytes(&self, key: &str) -> Option<Arc<[u8]>> {
        self.shared.state.lock().objects.get(key).map(|object| object.bytes.clone())
    }

    /// Forgets all of these, as a rule of the bucket does after some days.
    pub fn forget_uploads(&self) {
        self.shared.state.lock().uploads.clear();
    }

    /// Multipart uploads that were begun, and neither completed nor given up.
    pub fn open_uploads(&self) -> usize {
        self.shared.state.lock().uploads.len()
    }
}

impl Drop for FaultyS3 {
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

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
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
        drop(state);
        let shared = shared.clone();
        std::thread::spawn(move || {
            // A client that goes away, or a fault that ends the connection.
            let _ = serve(&connection, &shared);
            let _ = connection.shutdown(Shutdown::Both);
        });
    }
}

/// Serves the requests of one connection until it ends.
fn serve(connection: &TcpStream, shared: &Shared) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection);
    while let Some(request) = Request::read(&mut reader)? {
        let fault = {
            let mut state = shared.state.lock();
            state.at_work += 1;
            state.at_work_max = state.at_work_max.max(state.at_work);
            state.log.push(RequestLog {
                method: request.method.clone(),
                key: request.key().to_owned(),
                query: request.query.clone(),
                range: request.header("range").map(str::to_owned),
                access_key: request.access_key().map(str::to_owned),
            });
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
fn answer_with(
    mut connection: &TcpStream,
    shared: &Shared,
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
        Some(HttpFault::IgnoreRange) => shared.state.lock().answer(&request.without_range()),
        Some(HttpFault::WrongRange) => shared.state.lock().answer(&request.with_range_moved()),
        _ => shared.state.lock().answer(request),
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

impl State {
    fn decide(&mut self, request: &Request) -> Option<HttpFault> {
        for rule in &mut self.rules {
            if rule.method != request.method || !request.key().contains(&rule.key) || rule.times == 0 {
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
