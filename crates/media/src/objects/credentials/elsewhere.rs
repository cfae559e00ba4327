//! Requests of the library to those who hand out credentials.
//!
//! [`SignElsewhere`] and [`SendElsewhere`] bring them to another endpoint than the one that they are made for: the library knows
//! none but those of AWS. [`Services`] tells a service that is busy from one that refuses.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use parking_lot::Mutex;
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, HttpSend, Result, SignRequest};

use crate::objects::transport::{Trouble, may_go_better};

/// The same request to `endpoint`, a URL without a `/` at its end.
fn moved(uri: &Uri, endpoint: &str) -> Result<Uri> {
    let rest = uri.path_and_query().map_or("/", |rest| rest.as_str());
    format!("{endpoint}{rest}").parse().map_err(|_| Error::config_invalid(format!("{endpoint} is no endpoint")))
}

/// Moves a request before it is signed: a signature holds for one host.
#[derive(Debug)]
pub struct SignElsewhere {
    pub signer: RequestSigner,
    pub endpoint: String,
}

impl SignRequest for SignElsewhere {
    type Credential = Credential;

    fn required_valid_until(&self, credential: &Credential, expires_in: Option<Duration>) -> Timestamp {
        self.signer.required_valid_until(credential, expires_in)
    }

    async fn sign_request(
        &self,
        context: &Context,
        request: &mut http::request::Parts,
        credential: Option<&Credential>,
        expires_in: Option<Duration>,
    ) -> Result<()> {
        let mut elsewhere = request.clone();
        elsewhere.uri = moved(&request.uri, &self.endpoint)?;
        self.signer.sign_request(context, &mut elsewhere, credential, expires_in).await?;
        *request = elsewhere;
        Ok(())
    }
}

/// Sends requests that are not signed elsewhere.
#[derive(Debug)]
pub struct SendElsewhere {
    pub context: Context,
    pub endpoint: String,
}

impl HttpSend for SendElsewhere {
    async fn http_send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>> {
        *request.uri_mut() = moved(request.uri(), &self.endpoint)?;
        self.context.http_send(request).await
    }
}

/// Sends requests to services that may be busy, or not there. The library takes some answers for a refusal, and does not hand on
/// each error.
#[derive(Debug)]
pub struct Services {
    pub context: Context,
    /// What was wrong with the last one.
    pub trouble: Arc<Mutex<Option<Trouble>>>,
}

impl HttpSend for Services {
    async fn http_send(&self, request: Request<Bytes>) -> Result<Response<Bytes>> {
        let answer = self.context.http_send(request).await;
        let answer = answer.inspect_err(|e| *self.trouble.lock() = Trouble::behind(e).cloned())?;
        if !may_go_better(answer.status()) {
            return Ok(answer);
        }
        // What else is in it may be what was sent.
        let trouble = Trouble::Broken(format!("it answers {}", answer.status()));
        *self.trouble.lock() = Some(trouble.clone());
        Err(Error::unexpected("the service is busy").with_source(trouble).set_retryable(true))
    }
}
