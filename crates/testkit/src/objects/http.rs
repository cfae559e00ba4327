//! Requests and answers of HTTP/1.1, as far as the servers of the test kit need them.

use std::io::{self, BufRead, Read, Write};

/// Longest line of a head, in bytes.
const LINE_LEN_MAX: u64 = 16 << 10;

/// A request with its body.
#[derive(Clone)]
pub struct Request {
    /// `GET`, `PUT`, …
    pub method: String,
    /// Decoded, without the leading `/`.
    path: String,
    /// What comes after the `?`, as it came.
    pub query: String,
    headers: Vec<(String, String)>,
    /// All of the body.
    pub body: Vec<u8>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.take(LINE_LEN_MAX).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// Undoes percent encoding.
pub fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| *byte == b'%') {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// A value of pairs as a query or a form has them, decoded.
fn value_of(pairs: &str, name: &str) -> Option<String> {
    let pairs = pairs.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| decode(&value.replace('+', " "))).next()
}

impl Request {
    /// The next request of a connection; none at its end.
    pub fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
        let first = read_line(reader)?;
        if first.is_empty() {
            return Ok(None);
        }
        let mut words = first.split(' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return Err(bad("request line")) };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut headers = Vec::new();
        loop {
            let line = read_line(reader)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad("header"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut request = Request {
            method: method.to_owned(),
            path: decode(path.trim_start_matches('/')),
            query: query.to_owned(),
            headers,
            body: Vec::new(),
        };
        if request.header("transfer-encoding").is_some() {
            return Err(bad("a chunked body"));
        }
        let len = request.header("content-length").map_or(Ok(0), |len| len.parse().map_err(|_| bad("length")))?;
        request.body = vec![0; len];
        reader.read_exact(&mut request.body)?;
        Ok(Some(request))
    }

    /// A header, by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    /// Headers that begin with `prefix`, without it.
    pub fn headers_of(&self, prefix: &str) -> Vec<(String, String)> {
        let of = |(name, value): &(String, String)| Some((name.strip_prefix(prefix)?.to_owned(), value.clone()));
        self.headers.iter().filter_map(of).collect()
    }

    /// The path, decoded, without the leading `/`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The bucket.
    pub fn bucket(&self) -> &str {
        self.path.split_once('/').map_or(&self.path, |(bucket, _)| bucket)
    }

    /// The key in the bucket, empty for the bucket itself.
    pub fn key(&self) -> &str {
        self.path.split_once('/').map_or("", |(_, key)| key)
    }

    /// A value of the query, decoded.
    pub fn query_value(&self, name: &str) -> Option<String> {
        value_of(&self.query, name)
    }

    /// A value of a form in the body, decoded.
    pub fn form_value(&self, name: &str) -> Option<String> {
        value_of(std::str::from_utf8(&self.body).ok()?, name)
    }

    /// The access key of the signature.
    pub fn access_key(&self) -> Option<&str> {
        self.signed_with().next()
    }

    /// The region of the signature.
    pub fn region(&self) -> Option<&str> {
        self.signed_with().nth(2)
    }

    /// The access key, the day, the region, and what else the signature is for.
    fn signed_with(&self) -> impl Iterator<Item = &str> {
        let signed = self.header("authorization").and_then(|signed| signed.split_once("Credential="));
        signed.into_iter().flat_map(|(_, rest)| rest.split('/'))
    }

    /// The first and the last byte that are asked for.
    pub fn range(&self) -> Option<(u64, Option<u64>)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()))
    }

    /// The same request for the whole object.
    pub fn without_range(&self) -> Request {
        let mut request = self.clone();
        request.headers.retain(|(name, _)| name != "range");
        request
    }

    /// The same request for bytes one further on.
    pub fn with_range_moved(&self) -> Request {
        let mut request = self.without_range();
        if let Some((first, last)) = self.range() {
            let last = last.map_or(String::new(), |last| (last + 1).to_string());
            request.headers.push(("range".to_owned(), format!("bytes={}-{last}", first + 1)));
        }
        request
    }
}

/// An answer.
pub struct Response {
    status: u16,
    headers: Vec<(&'static str, String)>,
    /// All of the body.
    pub body: Vec<u8>,
    /// What `HEAD` says of the body that it does not send.
    head_len: Option<u64>,
}

impl Response {
    /// An answer without headers of its own.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Response {
        Response { status, headers: Vec::new(), body: body.into(), head_len: None }
    }

    /// An error as the protocol has it.
    pub fn error(status: u16, code: &str) -> Response {
        Response::error_that_says(status, code, "a message")
    }

    /// The same with a message.
    pub fn error_that_says(status: u16, code: &str, message: &str) -> Response {
        let body = format!("<Error><Code>{code}</Code><Message>{message}</Message><RequestId>1</RequestId></Error>");
        Response::new(status, body).with("Content-Type", "application/xml")
    }

    /// The answer of `HEAD` for a body of this length.
    pub fn head(len: u64) -> Response {
        Response { head_len: Some(len), ..Response::new(200, "") }
    }

    /// The same with a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Response {
        self.set(name, value);
        self
    }

    /// Sets a header.
    pub fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.headers.retain(|(header, _)| *header != name);
        self.headers.push((name, value.into()));
    }

    /// Adds headers whose names are not known before.
    pub fn with_metadata(mut self, metadata: &[(String, String)]) -> Response {
        for (name, value) in metadata {
            self.headers.push(("x-amz-meta", format!("{name}\u{1f}{value}")));
        }
        self
    }

    /// What goes out of the body: nothing after `HEAD`, and `part` bytes at most.
    pub fn sent_of_body(&self, head: bool, part: Option<usize>) -> &[u8] {
        if head { &[] } else { &self.body[..part.unwrap_or(usize::MAX).min(self.body.len())] }
    }

    /// Writes the answer, with `body` for its body.
    pub fn write(&self, to: &mut impl Write, body: &[u8]) -> io::Result<()> {
        let len = self.head_len.unwrap_or(self.body.len() as u64);
        let mut bytes = format!("HTTP/1.1 {} Status\r\nContent-Length: {len}\r\n", self.status);
        for (name, value) in &self.headers {
            match value.split_once('\u{1f}') {
                Some((rest, value)) => bytes.push_str(&format!("{name}-{rest}: {value}\r\n")),
                None => bytes.push_str(&format!("{name}: {value}\r\n")),
            }
        }
        bytes.push_str("\r\n");
        to.write_all(bytes.as_bytes())?;
        to.write_all(body)?;
        to.flush()
    }
}
