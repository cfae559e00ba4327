//! Requests of the library to another endpoint than the one that it makes them for: it knows none but those of AWS.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, HttpSend, Result, SignRequest};

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
