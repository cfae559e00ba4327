//! Requests of uploads in parts on their way to the store, and what is noted of their answers.

use http::header::{CONTENT_TYPE, ETAG};
use http::{Method, Request, Response, StatusCode};
use opendal_core::{Buffer, Error, ErrorKind, HttpBody, Result};

use super::super::body::Whole;
use super::{Begun, PartContent, key_at_work};

/// Names of user metadata begin so. An upload with some may have had other ones when it was begun.
const METADATA: &str = "x-amz-meta-";

/// What a request is to an upload in parts.
enum Step {
    /// It begins one of this key, or gives up one that was left.
    Begin {
        key: String,
        is_given_up: bool,
    },
    Part {
        id: String,
        number: u32,
        content: PartContent,
    },
    Complete {
        id: String,
    },
    GiveUp {
        id: String,
    },
}

impl Step {
    fn of(request: &Request<Buffer>) -> Option<Step> {
        let query = request.uri().query()?;
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(found, _)| *found == name).map(|(_, value)| decoded(value))
        };
        let id = value("uploadId");
        match (request.method(), id) {
            (&Method::POST, None) if query.split('&').any(|pair| matches!(pair, "uploads" | "uploads=")) => {
                let (key, is_given_up) = key_at_work()?;
                let has_metadata = request.headers().keys().any(|name| name.as_str().starts_with(METADATA));
                (!has_metadata).then_some(Step::Begin { key, is_given_up })
            }
            (&Method::PUT, Some(id)) => {
                let number = value("partNumber")?.parse().ok()?;
                Some(Step::Part { id, number, content: PartContent::of(request.body()) })
            }
            (&Method::POST, Some(id)) => Some(Step::Complete { id }),
            (&Method::DELETE, Some(id)) => Some(Step::GiveUp { id }),
            _ => None,
        }
    }
}

impl Begun {
    /// Has `send` send a request, unless the answer is known; and notes what it is.
    pub async fn pass<F>(
        &self,
        request: Request<Buffer>,
        send: impl FnOnce(Request<Buffer>) -> F,
    ) -> Result<Response<HttpBody>>
    where
        F: Future<Output = Result<Response<HttpBody>>>,
    {
        let Some(step) = Step::of(&request) else { return send(request).await };
        match &step {
            Step::Begin { key, is_given_up } => match self.resume(key, *is_given_up) {
                Some(id) => return Ok(begun_already(&request, &id)),
                None if *is_given_up => return Err(given_up()),
                None => {}
            },
            Step::Part { id, .. } if self.is_given_up(id) => return Err(given_up()),
            Step::Part { id, number, content } => {
                if let Some(tag) = self.tag(id, *number, *content) {
                    return sent_already(&request, &tag);
                }
            }
            Step::Complete { .. } | Step::GiveUp { .. } => {}
        }
        let answer = send(request).await;
        match step {
            Step::Begin { key, .. } => return self.note_begun(&key, answer?).await,
            Step::Part { id, number, content } => {
                let tag = answer.as_ref().ok().filter(|answer| answer.status() == StatusCode::OK);
                let tag = tag.and_then(|answer| answer.headers().get(ETAG)?.to_str().ok());
                if let Some(tag) = tag {
                    self.sent(&id, number, content, tag);
                }
            }
            Step::Complete { id } => return self.note_completed(&id, answer?).await,
            Step::GiveUp { id } => match &answer {
                Ok(answer) if answer.status().is_success() || answer.status() == StatusCode::NOT_FOUND => {
                    self.ended(&id);
                }
                // Whoever comes next tells the store.
                _ => self.let_go(&id),
            },
        }
        answer
    }

    async fn note_begun(&self, key: &str, answer: Response<HttpBody>) -> Result<Response<HttpBody>> {
        let (answer, text) = whole(answer).await?;
        let id = text.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once("</UploadId>"));
        if let Some((id, _)) = id.filter(|_| answer.status() == StatusCode::OK) {
            self.begin(key, id);
        }
        Ok(answer)
    }

    async fn note_completed(&self, id: &str, answer: Response<HttpBody>) -> Result<Response<HttpBody>> {
        let (answer, text) = whole(answer).await?;
        // An error may come with 200, too. What failed is given up by whoever sent it.
        if answer.status() == StatusCode::OK && text.contains("<CompleteMultipartUploadResult") {
            self.ended(id);
        }
        Ok(answer)
    }
}

/// The answer with all of its body, and that as text. It is short: the transport has seen to that.
async fn whole(answer: Response<HttpBody>) -> Result<(Response<HttpBody>, String)> {
    let (head, mut body) = answer.into_parts();
    let body = body.to_buffer().await?;
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let len = body.len() as u64;
    Ok((Response::from_parts(head, HttpBody::new(Whole(Some(body)), Some(len))), text))
}

/// The answer to the beginning of an upload that was begun before.
fn begun_already(request: &Request<Buffer>, id: &str) -> Response<HttpBody> {
    let text = format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>");
    let len = text.len() as u64;
    let mut answer = Response::new(HttpBody::new(Whole(Some(Buffer::from(text))), Some(len)));
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/xml"));
    answer.extensions_mut().insert(request.uri().clone());
    answer
}

/// The answer to a part that was sent before.
fn sent_already(request: &Request<Buffer>, tag: &str) -> Result<Response<HttpBody>> {
    let mut answer = Response::new(HttpBody::new(Whole(None), Some(0)));
    let tag = http::HeaderValue::from_str(tag)
        .map_err(|e| Error::new(ErrorKind::Unexpected, "a noted tag cannot be one").set_source(e))?;
    answer.headers_mut().insert(ETAG, tag);
    answer.extensions_mut().insert(request.uri().clone());
    Ok(answer)
}

fn given_up() -> Error {
    Error::new(ErrorKind::Unexpected, "the upload is given up")
}

/// Undoes percent encoding of what is ASCII.
fn decoded(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut decoded = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let byte = piece.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(u8::is_ascii);
        match byte {
            Some(byte) => {
                decoded.push(char::from(byte));
                decoded.push_str(&piece[2..]);
            }
            None => {
                decoded.push('%');
                decoded.push_str(piece);
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_were_told() {
        assert_eq!(decoded("a%2Fb%3D%3d-_.~"), "a/b==-_.~");
        assert_eq!(decoded("%zz%"), "%zz%");
    }
}
