//! Requests over HTTP, with limits: how long one takes, how often it is tried, how many there are at a time.
//!
//! [`Transport`] is what the library sends everything through, requests for credentials too. So each of them, every part of an
//! upload among them, has the same time-outs and tries, and one place looks at what an answer says before anyone believes it:
//! an answer to a range has to be that range.
//!
//! A request is tried again when no connection came about, when it broke before the answer began, when no answer came in time,
//! and when the answer is one of a store that is busy or broken (408, 429, 499, 5xx but 501 and 505). The pause before doubles each
//! time, and half of it is random, so that many clients do not come back together. Only an answer to a range is handed on while
//! it comes; what breaks within that is the reader's, who alone knows how far it came. All others are short, and waited for.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use adit_core::FsError;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE, RETRY_AFTER};
use http::uri::Authority;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use opendal_core::{Buffer, Error, ErrorKind, HttpBody, HttpTransport, Result};
use parking_lot::Mutex;
use reqwest::{Client, ClientBuilder};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

use super::begun::Begun;
use super::body::{Asked, Counted, Incoming, Outgoing, Progress, Whole};
use super::near::Place;
use super::options::{ObjectsOptions, Process};
use super::{Notice, proxy, tls};

/// Bytes a second that a slow line moves at least.
const RATE_MIN_BYTES: u64 = 64 << 10;
/// What the end of an upload gets for each part, as bytes that move: a second. A store may copy all of them into one file
/// before it answers.
pub const JOINED_AS_BYTES: u64 = RATE_MIN_BYTES;
/// Bytes that may wait in the buffers of the system when all of a body was handed on.
const BUFFERED_MAX_BYTES: u64 = 256 << 10;
/// Longest answer that is waited for as a whole: a page of a listing takes a tenth of it.
const WHOLE_LEN_MAX_BYTES: u64 = 16 << 20;
/// Longest answer that is looked at for an error, and how far into one the document begins.
const ERROR_LEN_MAX_BYTES: usize = 16 << 10;
/// A request that is tried for so long is told.
const NOTICE_AFTER: Duration = Duration::from_secs(3);
/// Longest wait for an answer of the services in [`Place::Metadata`]. They are near, or not there at all.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// When the call that a request belongs to began, and when it ends.
    static CALL: (Instant, Instant);
}

/// Runs the requests of one call, which ends at `deadline`.
pub async fn until<T>(deadline: Instant, call: impl Future<Output = T>) -> T {
    CALL.scope((Instant::now(), deadline), call).await
}

/// When the call ends that asks for this, if it has an end.
pub fn deadline() -> Option<Instant> {
    CALL.try_with(|(_, deadline)| *deadline).ok()
}

/// When the call began that asks for this, if it is one.
pub fn began() -> Option<Instant> {
    CALL.try_with(|(began, _)| *began).ok()
}

/// The time that moving so many bytes may take on a slow line.
pub fn time_for(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / RATE_MIN_BYTES)
}

/// What is wrong with an exchange, where it is more than the library's own errors tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// No answer, or the rest of one, came in time.
    TimedOut(&'static str),
    /// The store cannot be reached, or the connection broke.
    Broken(String),
    /// The answer is not one to the request.
    Contradiction(String),
    /// The answer is that of something else than a store.
    Elsewhere(&'static str),
    /// Whoever waited was told to stop.
    Interrupted,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::TimedOut(what) | Trouble::Elsewhere(what) => f.write_str(what),
            Trouble::Broken(what) | Trouble::Contradiction(what) => f.write_str(what),
            Trouble::Interrupted => f.write_str("it was told to stop"),
        }
    }
}

impl std::error::Error for Trouble {}

impl Trouble {
    /// As an error of the library, which carries it to whoever made the call.
    pub fn into_error(self) -> Error {
        // Even a contradiction may be the doing of something in between, which is gone the next time.
        Error::new(ErrorKind::Unexpected, self.to_string()).set_source(self).set_temporary()
    }

    /// The trouble that an error comes from.
    pub fn behind<'e>(e: &'e (dyn std::error::Error + 'static)) -> Option<&'e Trouble> {
        let mut next = e.source();
        while let Some(e) = next {
            if let Some(trouble) = e.downcast_ref::<Trouble>() {
                return Some(trouble);
            }
            next = e.source();
        }
        None
    }
}

/// How often something is tried, and how long the pauses between are.
#[derive(Clone, Debug)]
pub struct Tries {
    left: u32,
    pause: Duration,
    pause_max: Duration,
}

impl Tries {
    pub fn new(options: &ObjectsOptions) -> Tries {
        Tries { left: options.tries_max, pause: options.pause_min, pause_max: options.pause_max }
    }

    /// The pause before another try, at least `least` long; none if there is to be no other, or if it would end after
    /// `deadline`.
    pub fn next_pause(&mut self, least: Duration, deadline: Instant) -> Option<Duration> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            return None;
        }
        let half = self.pause.min(self.pause_max) / 2;
        self.pause = self.pause.saturating_mul(2).min(self.pause_max);
        // The keys of this hasher are random for each one.
        let random = RandomState::new().build_hasher().finish() % 1024;
        let pause = (half + half.mul_f64(random as f64 / 1024.0)).max(least.min(self.pause_max));
        (Instant::now() + pause < deadline).then_some(pause)
    }
}

/// Pauses after which an upload is given up again, of which a part was on its way. What the store had not received whole ends with its
/// connection, so it has little left to do.
const GIVEN_UP_AGAIN: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(750)];

/// Requests with limits.
pub struct Transport {
    client: Client,
    /// The same without a proxy, once something near is asked.
    direct: OnceLock<std::result::Result<Client, String>>,
    options: ObjectsOptions,
    permits: Arc<Semaphore>,
    /// Uploads of which a part was on its way when nobody waited for it any more.
    cut_off: Mutex<HashSet<String>>,
    /// The beginning of the names of headers that only a store sends, if there are such.
    header_of_stores: Option<&'static str>,
    notice: Notice,
    /// A request has been tried for long, and none had an answer since.
    waits: AtomicBool,
    /// Where uploads in parts are noted, if they are.
    begun: Option<Arc<Begun>>,
}

/// A part on its way, whose upload is noted if it goes before it has its answer.
struct Part<'t> {
    upload: Option<String>,
    transport: &'t Transport,
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            self.transport.cut_off.lock().insert(upload);
        }
    }
}

/// Marks a request whose answer is handed on while it comes, though it is none to a range.
#[derive(Clone, Copy, Debug)]
pub struct AsItComes;

/// Marks a request for a range of whose answer it is looked after whether it is all of the object.
#[derive(Clone, Copy, Debug)]
pub struct WholeMayCome;

/// Marks a request that is made while its caller holds an answer that is not read yet, and is a part of that: with permits for both,
/// callers that have one each would wait for each other.
#[derive(Clone, Copy, Debug)]
pub struct WithAnother;

/// How one try went.
enum Attempt {
    Answered(Response<HttpBody>),
    /// The store is busy, or broken.
    Busy(Response<HttpBody>),
    /// It may go better another time.
    Failed(Trouble),
}

impl Transport {
    /// Requests with the limits of `options`. Who `may_be_plain` can do without certificates.
    pub fn new(
        options: &ObjectsOptions,
        may_be_plain: bool,
        (header_of_stores, notice): (Option<&'static str>, Notice),
        begun: Option<Arc<Begun>>,
    ) -> adit_core::Result<Transport> {
        let options = options.clone();
        let client = client(&options, may_be_plain, |builder| builder)?;
        let permits = Arc::new(Semaphore::new(options.requests_at_once_max));
        let (direct, cut_off) = (OnceLock::new(), Mutex::default());
        let waits = AtomicBool::new(false);
        Ok(Transport { client, direct, options, permits, cut_off, header_of_stores, notice, waits, begun })
    }

    /// The client for a URL. What stays on the machine is not for a proxy: there may be tokens and keys in it.
    fn client(&self, uri: &http::Uri) -> Result<&Client> {
        if Place::of(uri) == Place::Away {
            let sound = proxy::expect_sound(uri, &Process);
            return sound.map(|()| &self.client).map_err(|e| Error::new(ErrorKind::ConfigInvalid, e.to_string()));
        }
        let make = || client(&self.options, true, ClientBuilder::no_proxy).map_err(|e| e.to_string());
        let made = self.direct.get_or_init(make).as_ref();
        made.map_err(|why| Error::new(ErrorKind::Unexpected, why.as_str()))
    }

    /// Sends the end of an upload that was given up again, if that is needed. The answer to the first one is what counts.
    async fn give_up_again(&self, request: &Request<Buffer>, deadline: Instant) {
        let Some(upload) = upload_of(request, &Method::DELETE) else { return };
        if !self.cut_off.lock().remove(&upload) {
            return;
        }
        for pause in GIVEN_UP_AGAIN {
            sleep(pause).await;
            // Mostly there is none any more. Anything else is for the bucket's own rules.
            let _ = self.attempt(request, self.options.answer_timeout, deadline).await;
        }
    }

    /// One try, until `deadline`. It ends when for `quiet_max` nothing was sent and no answer began.
    async fn attempt(&self, request: &Request<Buffer>, quiet_max: Duration, deadline: Instant) -> Result<Attempt> {
        let progress = Progress::start();
        let len = request.body().len() as u64;
        let outgoing = || reqwest::Body::wrap(Outgoing::new(request.body().clone(), progress.clone()));
        let body = (len > 0).then(|| (outgoing(), len));
        self.exchange(request, body, (&progress, quiet_max, deadline)).await
    }

    /// The same with a body of this length, which notes its progress.
    async fn exchange(
        &self,
        request: &Request<Buffer>,
        body: Option<(reqwest::Body, u64)>,
        (progress, quiet_max, deadline): (&Progress, Duration, Instant),
    ) -> Result<Attempt> {
        let invalid = |e: reqwest::Error| Error::new(ErrorKind::Unexpected, "the request is none").set_source(e);
        let client = self.client(request.uri())?;
        let mut sending = client.request(request.method().clone(), request.uri().to_string());
        sending = sending.headers(request.headers().clone());
        let mut waits = quiet_max;
        if let Some((body, len)) = body {
            waits += time_for(BUFFERED_MAX_BYTES.min(len));
            sending = sending.body(body);
        }
        let mut answer = pin!(client.execute(sending.build().map_err(invalid)?));
        loop {
            let until = deadline.min(progress.last() + waits);
            match timeout_at(until, &mut answer).await {
                Ok(Ok(answer)) => {
                    let accepted = timeout_at(deadline, self.accept(request, answer)).await;
                    return Ok(accepted.unwrap_or(Attempt::Failed(Trouble::TimedOut("the answer takes too long"))));
                }
                Ok(Err(e)) => return Ok(Attempt::Failed(Trouble::Broken(innermost(&e)))),
                // Something was sent meanwhile.
                Err(_) if Instant::now() < deadline.min(progress.last() + waits) => {}
                Err(_) => return Ok(Attempt::Failed(Trouble::TimedOut("no answer came in time"))),
            }
        }
    }
}

impl HttpTransport for Transport {
    async fn fetch(&self, request: Request<Buffer>) -> Result<Response<HttpBody>> {
        match &self.begun {
            Some(begun) => begun.pass(request, |request| self.send(request)).await,
            None => self.send(request).await,
        }
    }
}

impl Transport {
    /// Sends a request, with all its tries.
    async fn send(&self, request: Request<Buffer>) -> Result<Response<HttpBody>> {
        let near = Place::of(request.uri()) == Place::Metadata;
        let default = || Instant::now() + self.options.deadline + time_for(request.body().len() as u64);
        let deadline = deadline().unwrap_or_else(default);
        let permit = match request.extensions().get::<WithAnother>() {
            Some(WithAnother) => None,
            None => match timeout_at(deadline, self.permits.clone().acquire_owned()).await {
                Ok(Ok(permit)) => Some(permit),
                _ => return Err(Trouble::TimedOut("other requests kept this one waiting").into_error()),
            },
        };
        let quiet_max = match near {
            true => METADATA_TIMEOUT,
            false => self.options.answer_timeout + time_for(parts_to_join(&request) * JOINED_AS_BYTES),
        };
        let mut tries = Tries::new(&self.options);
        let mut part = Part { upload: upload_of(&request, &Method::PUT), transport: self };
        let began = Instant::now();
        loop {
            let attempt = self.attempt(&request, quiet_max, deadline).await?;
            let least = match &attempt {
                Attempt::Busy(answer) => Some(retry_after(answer.headers())),
                Attempt::Answered(_) | Attempt::Failed(Trouble::Elsewhere(_)) => None,
                Attempt::Failed(_) => Some(Duration::ZERO),
            };
            let again = least.filter(|_| !near).and_then(|least| tries.next_pause(least, deadline));
            match (attempt, again) {
                (attempt, Some(pause)) => {
                    if began.elapsed() >= NOTICE_AFTER {
                        self.note_wait(&request, &attempt);
                    }
                    sleep(pause).await;
                }
                (Attempt::Failed(trouble), None) => return Err(trouble.into_error()),
                (Attempt::Answered(answer) | Attempt::Busy(answer), None) => {
                    part.upload = None;
                    self.waits.store(false, Ordering::Relaxed);
                    self.give_up_again(&request, deadline).await;
                    let is_whole = answer.status() == StatusCode::OK;
                    if !(is_whole && request.extensions().get::<WholeMayCome>().is_some()) {
                        check_range(request.method(), request.headers(), answer.status(), answer.headers())
                            .map_err(Trouble::into_error)?;
                    }
                    return Ok(
                        answer.map(|body| body.map_inner(|stream| Box::new(Counted { stream, _permit: permit })))
                    );
                }
            }
        }
    }
}

impl Transport {
    /// Tells once that a store is waited for, until it answers again.
    fn note_wait(&self, request: &Request<Buffer>, attempt: &Attempt) {
        if self.waits.swap(true, Ordering::Relaxed) {
            return;
        }
        let what = match attempt {
            Attempt::Failed(trouble) => trouble.to_string(),
            Attempt::Answered(answer) | Attempt::Busy(answer) => format!("it answers {}", answer.status()),
        };
        let place = request.uri().authority().map_or("the store", Authority::as_str);
        self.notice.0(&format!("{place}: {what}; it is tried again for a while (--store-timeout)"));
    }
}

impl Transport {
    /// Sends a request once, whose body is read while it goes: to try it again is for who reads that.
    pub async fn send_once<T: Send + 'static>(
        &self,
        request: Request<Buffer>,
        body: Asked<T>,
        deadline: Instant,
    ) -> Result<Response<HttpBody>> {
        let Ok(Ok(_permit)) = timeout_at(deadline, self.permits.acquire()).await else {
            return Err(Trouble::TimedOut("other requests kept this one waiting").into_error());
        };
        let (progress, len) = (body.progress(), http_body::Body::size_hint(&body).lower());
        let body = Some((reqwest::Body::wrap(body), len));
        match self.exchange(&request, body, (&progress, self.options.answer_timeout, deadline)).await? {
            Attempt::Answered(answer) | Attempt::Busy(answer) => Ok(answer),
            Attempt::Failed(trouble) => Err(trouble.into_error()),
        }
    }
}

impl Transport {
    /// The answer as the library takes it: with all of its body, unless it may be long.
    async fn accept(&self, request: &Request<Buffer>, mut answer: reqwest::Response) -> Attempt {
        let len = answer.headers().get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
        // What an answer to HEAD says is not about its own body.
        let len = len.filter(|_| *request.method() != Method::HEAD);
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        if status.is_success() && self.header_of_stores.is_some_and(|own| is_page(request, &headers, own)) {
            return Attempt::Failed(Trouble::Elsewhere(PAGE));
        }
        let may_be_long = request.headers().contains_key(RANGE) || request.extensions().get::<AsItComes>().is_some();
        let is_long = status.is_success() && may_be_long;
        let left = if is_long { u64::MAX } else { WHOLE_LEN_MAX_BYTES };
        let mut body = HttpBody::new(Incoming::new(answer, left, self.options.answer_timeout), len);
        let mut is_busy = may_go_better(status);
        if !is_long {
            let whole = match body.to_buffer().await {
                Ok(whole) => whole,
                Err(e) => {
                    let trouble = Trouble::behind(&e).cloned();
                    return Attempt::Failed(trouble.unwrap_or_else(|| Trouble::Broken(e.message().to_owned())));
                }
            };
            is_busy |= says_busy(request.method(), status, &whole);
            if let Err(trouble) = check_document(request, status, &whole) {
                return Attempt::Failed(trouble);
            }
            let len = whole.len() as u64;
            body = HttpBody::new(Whole(Some(whole)), Some(len));
        }
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response.extensions_mut().insert(request.uri().clone());
        if is_busy { Attempt::Busy(response) } else { Attempt::Answered(response) }
    }
}

/// Whether an answer with this status may be another one later.
pub fn may_go_better(status: StatusCode) -> bool {
    match status.as_u16() {
        408 | 429 | 499 => true,
        501 | 505 => false,
        other => other >= 500,
    }
}

/// The upload in parts that a request of this method is about.
fn upload_of(request: &Request<Buffer>, method: &Method) -> Option<String> {
    let query = if request.method() == method { request.uri().query()? } else { return None };
    query.split('&').find_map(|pair| pair.strip_prefix("uploadId=")).map(str::to_owned)
}

/// How many parts the end of an upload names.
fn parts_to_join(request: &Request<Buffer>) -> u64 {
    const NAMED: &[u8] = b"<PartNumber>";
    let is_end =
        *request.method() == Method::POST && request.uri().query().is_some_and(|query| query.contains("uploadId="));
    let body = if is_end { request.body().to_bytes() } else { bytes::Bytes::new() };
    body.windows(NAMED.len()).filter(|part| *part == NAMED).count() as u64
}

/// Whether a store says that it is busy in the body alone: it begins its answer to the end of an upload before it knows how
/// that went, and a request that came too slowly is a bad one.
fn says_busy(method: &Method, status: StatusCode, body: &Buffer) -> bool {
    const CODES: [&str; 5] = ["InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown", "OperationAborted"];
    let may_say = (*method == Method::POST && status == StatusCode::OK) || status == StatusCode::BAD_REQUEST;
    if !may_say || body.len() > ERROR_LEN_MAX_BYTES {
        return false;
    }
    let body = body.to_bytes();
    let text = String::from_utf8_lossy(&body);
    text.contains("<Error>") && CODES.iter().any(|code| text.contains(&format!("<Code>{code}</Code>")))
}

/// Refuses an answer that went well and is not the document that was asked for, or not all of it. The library would take it
/// for an empty one: a listing without objects.
fn check_document(request: &Request<Buffer>, status: StatusCode, body: &Buffer) -> std::result::Result<(), Trouble> {
    let query = request.uri().query().unwrap_or_default();
    let has = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
    let root = match *request.method() {
        Method::GET if has("list-type") => "ListBucketResult",
        Method::POST if has("uploads") => "InitiateMultipartUploadResult",
        Method::POST if has("uploadId") => "CompleteMultipartUploadResult",
        _ => return Ok(()),
    };
    let body = body.to_bytes();
    let is_whole = |root: &str| {
        let (open, close) = (format!("<{root}"), format!("</{root}>"));
        body.windows(open.len()).take(ERROR_LEN_MAX_BYTES).any(|part| part == open.as_bytes())
            && body.trim_ascii_end().ends_with(close.as_bytes())
    };
    if status != StatusCode::OK || is_whole(root) || (*request.method() == Method::POST && is_whole("Error")) {
        return Ok(());
    }
    let begin = body.trim_ascii_start();
    let begins = |with: &str| begin.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with.as_bytes()));
    if ["<!doctype html", "<html"].into_iter().any(begins) {
        return Err(Trouble::Elsewhere(PAGE));
    }
    Err(Trouble::Contradiction(format!("the answer is no {root}")))
}

/// The words for a page.
const PAGE: &str = "a page for people is what comes (HTML)";

/// True if an answer about an object is a page for people, as a web server, a console or a portal sends it whatever is asked for: it would be
/// taken for the object, or for word that one was stored. A store shows by headers of its own that it is one.
fn is_page(request: &Request<Buffer>, headers: &HeaderMap, own: &str) -> bool {
    let path = request.uri().path().to_ascii_lowercase();
    let is_about_object = match *request.method() {
        Method::GET => request.headers().contains_key(RANGE),
        ref method => [Method::HEAD, Method::PUT, Method::DELETE].contains(method),
    };
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    let is_html = kind.starts_with("text/html") || kind.starts_with("application/xhtml");
    let is_named_so = path.ends_with(".html") || path.ends_with(".htm");
    let is_near = Place::of(request.uri()) == Place::Metadata;
    is_about_object && is_html && !is_named_so && !is_near && !headers.keys().any(|name| name.as_str().starts_with(own))
}

/// A client of HTTP, changed by `change`; one that `may_be_plain` needs no certificates.
fn client(
    options: &ObjectsOptions,
    may_be_plain: bool,
    change: impl Fn(ClientBuilder) -> ClientBuilder,
) -> adit_core::Result<Client> {
    let builder = Client::builder()
        .tls_backend_preconfigured(tls::config(options.ca_bundle.as_deref(), may_be_plain)?)
        .connect_timeout(options.connect_timeout)
        // A redirected request would carry a signature for another host.
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("adit/", env!("CARGO_PKG_VERSION")));
    let builder = change(builder);
    builder.build().map_err(|e| FsError::new(adit_core::ErrorKind::Io).on("set up", "TLS").because(innermost(&e)))
}

/// The pause that a store asks for, in the form that is a number of seconds.
fn retry_after(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

/// What is behind all wrappers: `Connection refused` rather than `error sending request`.
pub fn innermost(e: &(dyn std::error::Error + 'static)) -> String {
    let mut last = e;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

/// Refuses an answer to a range that is another range: its bytes would be taken for those that were asked for.
fn check_range(
    method: &Method,
    asked: &HeaderMap,
    status: StatusCode,
    answer: &HeaderMap,
) -> std::result::Result<(), Trouble> {
    let text = |headers: &HeaderMap, name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let Some(range) = text(asked, RANGE).filter(|_| *method == Method::GET) else { return Ok(()) };
    let pair = |text: &str| {
        let (first, last) = text.split_once('-')?;
        Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?))
    };
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(pair) else { return Ok(()) };
    let len = text(answer, CONTENT_LENGTH).and_then(|len| len.parse::<u64>().ok());
    let wrong = |what: String| Err(Trouble::Contradiction(what));
    match status {
        StatusCode::PARTIAL_CONTENT => {
            let told = text(answer, CONTENT_RANGE).unwrap_or_default();
            let parsed = told.strip_prefix("bytes ").and_then(|told| told.split_once('/'));
            let parsed = parsed.and_then(|(range, total)| Some((pair(range)?, total.parse::<u64>().ok()?)));
            match parsed {
                Some(((from, to), total))
                    if from == first
                        && to == last.min(total.saturating_sub(1))
                        && from <= to
                        && len.is_none_or(|len| len == to - from + 1) =>
                {
                    Ok(())
                }
                _ => wrong(format!("bytes {first}-{last} were asked for, and the answer is `{told}`")),
            }
        }
        // A store without ranges sends all of it; that is the same only if all of it was asked for.
        StatusCode::OK if first != 0 || len.is_none_or(|len| len > last + 1) => {
            wrong(format!("bytes {first}-{last} were asked for, and the whole object came"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(http::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn an_answer_to_a_range_is_that_range() {
        let check = |range: &str, status: u16, answer: &[(http::HeaderName, &str)]| {
            let status = StatusCode::from_u16(status).unwrap();
            check_range(&Method::GET, &headers(&[(RANGE, range)]), status, &headers(answer)).is_ok()
        };
        let partial = |range, told, len| check(range, 206, &[(CONTENT_RANGE, told), (CONTENT_LENGTH, len)]);
        assert!(partial("bytes=0-9", "bytes 0-9/100", "10"));
        assert!(partial("bytes=90-109", "bytes 90-99/100", "10"));
        assert!(!partial("bytes=0-9", "bytes 1-10/100", "10"), "another range");
        assert!(!partial("bytes=0-9", "bytes 0-4/100", "5"), "a part of it");
        assert!(!partial("bytes=0-9", "bytes 0-19/100", "20"), "more than it");
        assert!(!partial("bytes=0-9", "bytes 0-9/100", "9"), "a length that is not the range's");
        assert!(!partial("bytes=0-9", "bytes 9-0/100", "10"));
        assert!(!partial("bytes=100-200", "bytes 100-49/50", "10"));
        assert!(!partial("bytes=0-9", "bytes 0-9/0", "10"));
        assert!(!partial("bytes=0-9", "nonsense", "10"));
        assert!(!check("bytes=0-9", 206, &[]));
        assert!(check("bytes=0-9", 200, &[(CONTENT_LENGTH, "10")]));
        assert!(check("bytes=0-9", 200, &[(CONTENT_LENGTH, "3")]));
        assert!(!check("bytes=0-9", 200, &[(CONTENT_LENGTH, "11")]));
        assert!(!check("bytes=1-9", 200, &[(CONTENT_LENGTH, "5")]));
        assert!(!check("bytes=0-9", 200, &[]));
        assert!(check("bytes=0-9", 416, &[]));
    }

    #[test]
    fn pauses_grow_to_a_limit_and_end() {
        let options = ObjectsOptions {
            tries_max: 5,
            pause_min: Duration::from_millis(100),
            pause_max: Duration::from_millis(300),
            ..Default::default()
        };
        let later = Instant::now() + Duration::from_secs(3600);
        let mut tries = Tries::new(&options);
        for (least, most) in [(50, 100), (100, 200), (150, 300), (150, 300)] {
            let pause = tries.next_pause(Duration::ZERO, later).unwrap();
            assert!((least..=most).contains(&(pause.as_millis() as u64)), "{pause:?}");
        }
        assert_eq!(tries.next_pause(Duration::ZERO, later), None, "five tries have four pauses between them");

        let pause = Tries::new(&options).next_pause(Duration::from_secs(60), later).unwrap();
        assert_eq!(pause, options.pause_max, "nobody can make us wait longer than the limit");
        assert_eq!(Tries::new(&options).next_pause(Duration::ZERO, Instant::now()), None, "nothing is tried too late");
    }

    #[test]
    fn a_page_for_people_is_no_object() {
        let is = |method: Method, path: &str, range: bool, kind: &str, header: &'static str| {
            let request = Request::builder().method(method).uri(format!("http://h{path}"));
            let request = if range { request.header(RANGE, "bytes=0-9") } else { request };
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
            headers.insert(header, "x".parse().unwrap());
            is_page(&request.body(Buffer::new()).unwrap(), &headers, "x-amz")
        };
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE] {
            assert!(is(method, "/bucket/Data/0.xxh128", true, "Text/HTML; charset=utf-8", "etag"));
        }
        assert!(!is(Method::GET, "/bucket/k", true, "text/html", "x-amz-request-id"), "the store has it as such");
        assert!(!is(Method::GET, "/bucket/k.HTML", true, "text/html", "etag"));
        assert!(!is(Method::GET, "/bucket/k", true, "application/octet-stream", "etag"));
        assert!(!is(Method::GET, "/bucket", false, "text/html", "etag"), "a document is looked into");
        assert!(!is(Method::POST, "/", false, "text/html", "etag"), "and this is for others");
        let document = |text: &'static str| {
            let request = Request::builder().uri("http://h/bucket?list-type=2").body(Buffer::new()).unwrap();
            check_document(&request, StatusCode::OK, &Buffer::from(text))
        };
        assert_eq!(document("\n<!DOCTYPE html><html></html>"), Err(Trouble::Elsewhere(PAGE)));
        assert!(matches!(document("<ListBucketResult>"), Err(Trouble::Contradiction(_))), "it is cut off");
        assert_eq!(document("<ListBucketResult></ListBucketResult>"), Ok(()));
    }

    #[test]
    fn only_what_may_go_better_is_tried_again() {
        for status in [408, 429, 500, 502, 503, 504] {
            assert!(may_go_better(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [200, 206, 301, 400, 403, 404, 409, 412, 416, 501] {
            assert!(!may_go_better(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }
}
