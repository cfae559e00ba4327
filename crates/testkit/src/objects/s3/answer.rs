//! What the server does with a request.

use std::fmt::Write as _;
use std::sync::Arc;

use super::super::http::{Request, Response};
use super::super::server::{Backend, RequestLog};
use super::{Bucket, Checksums, Conditions, Object, Upload, log_of};

/// Most keys on a page of a listing.
const PAGE_LEN_MAX: usize = 1000;
/// Least length of a part that is not the last, in bytes.
const PART_LEN_MIN: usize = 5 << 20;

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The texts of all elements of that name.
fn texts(xml: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let inner = |rest: &str| rest.split_once(close.as_str()).map(|(text, _)| text.replace("&quot;", "\""));
    xml.split(open.as_str()).skip(1).filter_map(inner).collect()
}

impl Backend for Bucket {
    fn key(request: &Request) -> &str {
        request.key()
    }

    fn log(request: &Request) -> RequestLog {
        log_of(request)
    }

    fn answer(&mut self, request: &Request) -> Response {
        match request.access_key() {
            Some(key) if self.expired_keys.contains(key) => return Response::error(400, "ExpiredToken"),
            Some(key) if self.access_keys.contains(key) => {}
            Some(_) => return Response::error(403, "InvalidAccessKeyId"),
            None => return Response::error(403, "AccessDenied"),
        }
        if request.bucket() != self.name {
            return Response::error(404, "NoSuchBucket");
        }
        if let Some(region) = self.region.filter(|region| request.region() != Some(*region)) {
            // The one is told by the host of another region, the other by one for several.
            let (status, code) = match request.method.as_str() {
                "GET" => (400, "AuthorizationHeaderMalformed"),
                _ => (301, "PermanentRedirect"),
            };
            return Response::error(status, code).with("x-amz-bucket-region", region);
        }
        if let Some(refused) = self.without_checksum(request) {
            return refused;
        }
        let upload = request.query_value("uploadId").map(|id| id.parse::<u64>().unwrap_or(u64::MAX));
        match (request.method.as_str(), request.key(), upload) {
            ("GET", "", _) if self.unlisted => Response::error(403, "AccessDenied"),
            ("GET", "", _) => self.list(request),
            ("GET" | "HEAD", _, _) => self.get(request),
            ("PUT", _, Some(upload)) => self.put_part(request, upload),
            ("PUT", _, None) => self.put(request),
            ("POST", key, None) if request.query_value("uploads").is_some() => {
                let number = self.number();
                let metadata = request.headers_of("x-amz-meta-");
                let upload = Upload { key: key.to_owned(), metadata, parts: Default::default() };
                self.uploads.insert(number, upload);
                Response::new(
                    200,
                    format!(
                        "<InitiateMultipartUploadResult><Bucket>{}</Bucket><Key>{}</Key><UploadId>{number}</UploadId>\
                         </InitiateMultipartUploadResult>",
                        self.name,
                        escape(key)
                    ),
                )
            }
            ("POST", _, Some(upload)) => self.complete(request, upload),
            ("DELETE", _, Some(upload)) => {
                self.uploads.remove(&upload);
                Response::new(204, "")
            }
            ("DELETE", key, None) => {
                self.objects.remove(key);
                Response::new(204, "")
            }
            _ => Response::error(405, "MethodNotAllowed"),
        }
    }
}

impl Bucket {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Refuses a write whose checksum is missing, or is not known.
    fn without_checksum(&self, request: &Request) -> Option<Response> {
        let has_checksum = !request.headers_of("x-amz-checksum-").is_empty();
        match self.checksums {
            Checksums::Needed if request.method == "PUT" && !has_checksum => {
                let message =
                    "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock";
                Some(Response::error_that_says(400, "InvalidRequest", message))
            }
            Checksums::NotImplemented if has_checksum => Some(Response::error(501, "NotImplemented")),
            _ => None,
        }
    }

    /// Refuses what the conditions of the request forbid.
    fn forbidden(&self, request: &Request) -> Option<Response> {
        let if_none_match = request.header("if-none-match");
        match self.conditions {
            Conditions::Ignored => return None,
            Conditions::NotImplemented if if_none_match.is_some() => {
                return Some(Response::error(501, "NotImplemented"));
            }
            Conditions::Heeded | Conditions::NotImplemented => {}
        }
        let object = self.objects.get(request.key());
        let taken = if_none_match == Some("*") && (object.is_some() || self.deleted.contains(request.key()));
        let other = request.header("if-match").is_some_and(|tag| object.is_some_and(|object| object.tag != tag));
        (taken || other).then(|| Response::error(412, "PreconditionFailed"))
    }

    fn get(&self, request: &Request) -> Response {
        let Some(object) = self.objects.get(request.key()) else {
            return match self.unlisted {
                true => Response::error(403, "AccessDenied"),
                false => Response::error(404, "NoSuchKey"),
            };
        };
        if let Some(refused) = self.forbidden(request) {
            return refused;
        }
        let len = object.bytes.len() as u64;
        let response = match request.range().filter(|_| request.method == "GET") {
            None if request.method == "HEAD" => Response::head(len),
            None => Response::new(200, &object.bytes[..]),
            Some((first, _)) if first >= len => {
                return Response::error(416, "InvalidRange").with("Content-Range", format!("bytes */{len}"));
            }
            Some((first, last)) => {
                let last = last.unwrap_or(u64::MAX).min(len - 1);
                let body = &object.bytes[first as usize..=last as usize];
                Response::new(206, body).with("Content-Range", format!("bytes {first}-{last}/{len}"))
            }
        };
        response
            .with("ETag", &*object.tag)
            .with("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            .with("Accept-Ranges", "bytes")
            .with_metadata(&object.metadata)
    }

    fn put(&mut self, request: &Request) -> Response {
        if let Some(refused) = self.forbidden(request) {
            return refused;
        }
        let metadata = request.headers_of("x-amz-meta-");
        let tag = self.store(request.key(), request.body.clone().into(), metadata);
        Response::new(200, "").with("ETag", tag)
    }

    pub(super) fn store(&mut self, key: &str, bytes: Arc<[u8]>, metadata: Vec<(String, String)>) -> String {
        let tag = format!("\"{:032x}\"", self.number());
        self.objects.insert(key.to_owned(), Object { bytes, tag: tag.clone(), metadata });
        tag
    }

    fn put_part(&mut self, request: &Request, upload: u64) -> Response {
        let number = request.query_value("partNumber").and_then(|number| number.parse().ok());
        let (Some(upload), Some(number)) = (self.uploads.get_mut(&upload), number) else {
            return Response::error(404, "NoSuchUpload");
        };
        upload.parts.insert(number, request.body.clone().into());
        Response::new(200, "").with("ETag", format!("\"part-{number}-{}\"", request.body.len()))
    }

    fn complete(&mut self, request: &Request, id: u64) -> Response {
        let Some(upload) = self.uploads.get(&id) else { return Response::error(404, "NoSuchUpload") };
        if upload.key != request.key() {
            return Response::error(404, "NoSuchUpload");
        }
        if let Some(refused) = self.forbidden(request) {
            return refused;
        }
        let body = String::from_utf8_lossy(&request.body);
        let (numbers, tags) = (texts(&body, "PartNumber"), texts(&body, "ETag"));
        if self.checksums == Checksums::Needed && texts(&body, "ChecksumCRC32C").len() != numbers.len() {
            return Response::error(400, "InvalidPart");
        }
        let mut bytes = Vec::new();
        for (at, (number, tag)) in numbers.iter().zip(&tags).enumerate() {
            let Some(part) = number.parse().ok().and_then(|number: u32| upload.parts.get(&number)) else {
                return Response::error(400, "InvalidPart");
            };
            if *tag != format!("\"part-{number}-{}\"", part.len()) {
                return Response::error(400, "InvalidPart");
            }
            if part.len() < PART_LEN_MIN && at + 1 < numbers.len() {
                return Response::error(400, "EntityTooSmall");
            }
            bytes.extend_from_slice(part);
        }
        let metadata = upload.metadata.clone();
        self.uploads.remove(&id);
        let tag = self.store(request.key(), bytes.into(), metadata);
        Response::new(
            200,
            format!(
                "<CompleteMultipartUploadResult><Location>x</Location><Bucket>{}</Bucket><Key>{}</Key><ETag>{}</ETag>\
                 </CompleteMultipartUploadResult>",
                self.name,
                escape(request.key()),
                escape(&tag)
            ),
        )
    }

    fn list(&self, request: &Request) -> Response {
        let prefix = request.query_value("prefix").unwrap_or_default();
        let token = request.query_value("continuation-token").filter(|token| !token.is_empty());
        let after = token.or_else(|| request.query_value("start-after")).unwrap_or_default();
        let max = request.query_value("max-keys").and_then(|max| max.parse().ok()).unwrap_or(PAGE_LEN_MAX);
        let mut found = self
            .objects
            .range(prefix.clone()..)
            .take_while(|(key, _)| key.starts_with(&prefix))
            .filter(|(key, _)| after.is_empty() || **key > after);
        let mut contents = String::new();
        let (mut last, mut count) = (String::new(), 0);
        for (key, object) in found.by_ref().take(max.min(PAGE_LEN_MAX)) {
            (last, count) = (key.clone(), count + 1);
            // Writing to a string does not fail.
            let _ = write!(
                contents,
                "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{}</ETag>\
                 <Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
                escape(key),
                escape(&object.tag),
                object.bytes.len()
            );
        }
        let more = match found.next() {
            Some(_) => format!(
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>",
                escape(&last)
            ),
            None => "<IsTruncated>false</IsTruncated>".to_owned(),
        };
        Response::new(
            200,
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><Name>{}</Name><Prefix>{}</Prefix>\
                 <KeyCount>{count}</KeyCount><MaxKeys>1000</MaxKeys>{more}{contents}</ListBucketResult>",
                self.name,
                escape(&prefix)
            ),
        )
        .with("Content-Type", "application/xml")
    }
}
