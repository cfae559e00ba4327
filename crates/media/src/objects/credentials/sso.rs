//! Single sign-on of AWS (IAM Identity Center): from the token that `aws sso login` left to the keys of a role.
//!
//! [`SingleSignOn`] is what a profile says of it, by the name of a session (`sso_session`) or with the older keys. The library
//! knows the older keys alone, and renews nothing.
//!
//! The token lies in `~/.aws/sso/cache`, in a file named by the SHA-1 of the session's name, or of the start URL. One that is
//! about to end is renewed if there is what that needs, and written back for the other programs of AWS, as they do. Where only
//! a person can help, the error says what to type. No error has a token in it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use adit_core::media::{HostDir, NewFile};
use adit_core::types::{Kind, RenameFlags};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, StatusCode};
use parking_lot::Mutex;
use reqsign_aws_v4::Credential;
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, ProvideCredential, Result};
use reqwest::Url;
use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};

use super::super::endpoint::domain;
use super::super::options::{Surroundings, is_region};
use super::super::profile::ProfileFile;
use super::{cleaned, trouble_of, words};
use crate::HostDirectory;

/// How long before its end a token is renewed.
const RENEWED_BEFORE: Duration = Duration::from_secs(300);
/// When a token ends, in its file.
const END: &str = "expiresAt";
/// What a token needs to be renewed.
const FOR_RENEWAL: [&str; 3] = ["clientId", "clientSecret", "refreshToken"];
/// The stores of this process take turns: of two that renew the same token, one would fail.
static RENEWING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
/// Tokens that could not be written back, by their files: what renewed them is worth nothing any more.
static UNWRITTEN: Mutex<BTreeMap<PathBuf, Token>> = Mutex::new(BTreeMap::new());
/// Longest word of a service in a message, in bytes.
const WORD_LEN_MAX: usize = 60;

/// Waits until nobody renews a token.
pub async fn renewals_end() {
    drop(RENEWING.lock().await);
}

/// The single sign-on of a profile.
#[derive(Clone, Debug)]
pub struct SingleSignOn {
    profile: String,
    /// The session's name, or the start URL: the token's file is named by it.
    named_by: String,
    start_url: String,
    region: String,
    account_id: String,
    role_name: String,
    /// Endpoints of the two services, as URLs.
    portal: String,
    oidc: String,
    around: Arc<dyn Surroundings>,
}

impl SingleSignOn {
    /// What `file` says of it; none if nothing. What is half said is an error.
    pub fn of(profile: &str, file: &ProfileFile, around: &Arc<dyn Surroundings>) -> Result<Option<SingleSignOn>> {
        let (account_id, role_name) = (file.value("sso_account_id"), file.value("sso_role_name"));
        // A session alone is for other programs, which need a token and no keys.
        if account_id.is_none() && role_name.is_none() {
            return Ok(None);
        }
        let missing = |what: &str| Error::config_invalid(format!("there is no {what}"));
        let session = file.value("sso_session");
        let of_session = |name: &str| match (&session, file.session_value(name), file.value(name)) {
            (None, _, value) => value.ok_or_else(|| missing(name)),
            (Some(session), None, _) => Err(missing(&format!("{name} in [sso-session {session}]"))),
            (Some(session), Some(value), Some(other)) if value != other => {
                Err(Error::config_invalid(format!("{name} is another than in [sso-session {session}]")))
            }
            (Some(_), Some(value), _) => Ok(value),
        };
        let (start_url, region) = (of_session("sso_start_url")?, of_session("sso_region")?);
        if !is_region(&region) {
            return Err(Error::config_invalid("sso_region is no name of a region"));
        }
        let endpoint = |service: &str, host: &str| {
            let named = file.endpoint_of(service, &**around).map_err(|e| Error::config_invalid(e.to_string()))?;
            Ok::<_, Error>(named.unwrap_or_else(|| format!("https://{host}.{region}.{}", domain(&region))))
        };
        Ok(Some(SingleSignOn {
            profile: profile.to_owned(),
            named_by: session.unwrap_or_else(|| start_url.clone()),
            account_id: account_id.ok_or_else(|| missing("sso_account_id"))?,
            role_name: role_name.ok_or_else(|| missing("sso_role_name"))?,
            portal: endpoint("sso", "portal.sso")?,
            oidc: endpoint("sso_oidc", "oidc")?,
            start_url,
            region,
            around: around.clone(),
        }))
    }

    /// What is said where only a person can help.
    fn log_in(&self, why: &str) -> Error {
        Error::credential_invalid(format!("{why}: run `aws sso login --profile {}`", self.profile))
    }

    /// The file of the token.
    fn path(&self) -> Option<PathBuf> {
        let home = PathBuf::from(self.around.set_variable("HOME")?);
        Some(home.join(".aws/sso/cache").join(file_name(&self.named_by)))
    }

    /// The token of the file, whether it is good or not. Without one, nobody is logged in.
    fn cached(&self) -> Option<Token> {
        let path = self.path()?;
        let token = Token::parse(&self.around.file(&path)?)?;
        let newer = UNWRITTEN.lock().get(&path).filter(|other| other.time(END) > token.time(END)).cloned();
        Some(newer.unwrap_or(token))
    }

    /// A token that is good now.
    async fn token(&self, context: &Context) -> Result<Token> {
        let Some(old) = self.cached() else { return Err(self.log_in("nobody has logged in")) };
        if old.is_good_for(RENEWED_BEFORE) {
            return Ok(old);
        }
        if !old.can_be_renewed() {
            return if old.is_good_for(Duration::ZERO) { Ok(old) } else { Err(self.log_in("the login has ended")) };
        }
        let turn = RENEWING.lock().await;
        let (own, context) = (self.clone(), context.clone());
        // Whoever waits may stop waiting. Between the service, for which the old token is worth nothing any more, and the file
        // the new one is not to be lost.
        let renewal = tokio::spawn(async move {
            let _turn = turn;
            own.renewed(&context).await
        });
        renewal.await.map_err(|_| Error::unexpected("the renewal of the token ended without a result"))?
    }

    /// The token of the file, renewed. Only who has the turn may ask for it.
    async fn renewed(&self, context: &Context) -> Result<Token> {
        // Somebody may have had the turn before, or another program was at work: it is what there is now that is renewed.
        let Some(old) = self.cached() else { return Err(self.log_in("nobody has logged in")) };
        if old.is_good_for(RENEWED_BEFORE) {
            return Ok(old);
        }
        let failure = match old.can_be_renewed() {
            true => match self.renew(context, &old).await {
                Ok(new) => return Ok(new),
                Err(e) => Some(e),
            },
            false => None,
        };
        // Another program may have been faster: what renews the old one is worth nothing then.
        if let Some(token) = self.cached().filter(|token| token.is_good_for(Duration::ZERO)) {
            return Ok(token);
        }
        let Some(e) = failure else { return Err(self.log_in("the login has ended")) };
        Err(match trouble_of(&e) {
            Some(trouble) => Error::unexpected("the login has ended, and cannot be renewed").with_source(trouble),
            None => self.log_in(&format!("the login has ended, and cannot be renewed ({})", words(&e))),
        })
    }

    /// A new token for an old one.
    async fn renew(&self, context: &Context, old: &Token) -> Result<Token> {
        let mut body = json!({ "grantType": "refresh_token" });
        for name in FOR_RENEWAL {
            body[name] = old.0.get(name).cloned().unwrap_or_default();
        }
        let request = Request::post(format!("{}/token", self.oidc)).header(CONTENT_TYPE, "application/json");
        let answer = context.http_send(request.body(Bytes::from(body.to_string()))?).await?;
        let said: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        if answer.status() != StatusCode::OK {
            return Err(Error::unexpected(format!("{}{}", answer.status().as_u16(), word_of(&said, "error"))));
        }
        let (Some(access), Some(seconds)) = (said["accessToken"].as_str(), said["expiresIn"].as_u64()) else {
            return Err(Error::unexpected("the answer has no token"));
        };
        // A sum beyond all times would panic.
        let end = Timestamp::now() + Duration::from_secs(seconds.min(u64::from(u32::MAX)));
        let new = old.renewed(access, end, said["refreshToken"].as_str(), (&self.start_url, &self.region));
        if let Some(path) = self.path() {
            let (file, text) = (path.clone(), new.to_text());
            let written = tokio::task::spawn_blocking(move || replace(&file, text.as_bytes())).await;
            // Where it cannot be written, in a container say, it serves this process.
            if !matches!(written, Ok(Ok(()))) {
                UNWRITTEN.lock().insert(path, new.clone());
            }
        }
        Ok(new)
    }

    /// The keys of the role, for a token.
    async fn role_keys(&self, context: &Context, token: &Token) -> Result<Credential> {
        let url = Url::parse(&format!("{}/federation/credentials", self.portal));
        let mut url = url.map_err(|_| Error::config_invalid("the endpoint of the portal is no URL"))?;
        url.query_pairs_mut().append_pair("role_name", &self.role_name).append_pair("account_id", &self.account_id);
        let bearer = HeaderValue::from_str(token.access().unwrap_or_default());
        let mut bearer = bearer.map_err(|_| self.log_in("the token is no token"))?;
        bearer.set_sensitive(true);
        let request = Request::get(url.as_str()).header("x-amz-sso_bearer_token", bearer);
        let answer = context.http_send(request.body(Bytes::new())?).await?;
        let said: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED => return Err(self.log_in("the login is not valid any more")),
            status => {
                let (role, account) = (&self.role_name, &self.account_id);
                let what = format!("role {role} of account {account} was refused with {}", status.as_u16());
                return Err(Error::unexpected(format!("{what}{}", word_of(&said, "message"))));
            }
        }
        let keys = &said["roleCredentials"];
        let text = |name: &str| keys[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let end = keys["expiration"].as_i64().and_then(|end| Timestamp::from_millisecond(end).ok());
        match (text("accessKeyId"), text("secretAccessKey"), text("sessionToken"), end) {
            (Some(access_key_id), Some(secret_access_key), session_token @ Some(_), expires_in @ Some(_)) => {
                Ok(Credential { access_key_id, secret_access_key, session_token, expires_in })
            }
            _ => Err(Error::unexpected("the answer has no keys")),
        }
    }
}

impl ProvideCredential for SingleSignOn {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        let token = self.token(context).await?;
        self.role_keys(context, &token).await.map(Some)
    }
}

/// What is in the file of a token, all of it: other programs have fields of their own. It has no `Debug`, because it is a secret.
#[derive(Clone)]
struct Token(Map<String, Value>);

impl Token {
    fn parse(text: &str) -> Option<Token> {
        let Value::Object(fields) = serde_json::from_str(text).ok()? else { return None };
        Some(Token(fields)).filter(|token| token.access().is_some())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str().filter(|text| !text.is_empty())
    }

    fn access(&self) -> Option<&str> {
        self.text("accessToken")
    }

    fn time(&self, name: &str) -> Option<Timestamp> {
        let text = self.text(name)?;
        // As old versions of the AWS CLI wrote it.
        let text = text.strip_suffix("UTC").map_or_else(|| text.to_owned(), |time| format!("{time}Z"));
        text.parse().ok()
    }

    fn is_good_for(&self, time: Duration) -> bool {
        self.time(END).is_some_and(|end| end > Timestamp::now() + time)
    }

    fn can_be_renewed(&self) -> bool {
        let is_over = self.time("registrationExpiresAt").is_some_and(|end| end <= Timestamp::now());
        !is_over && FOR_RENEWAL.iter().all(|name| self.text(name).is_some())
    }

    fn renewed(&self, access: &str, end: Timestamp, refresh: Option<&str>, session: (&str, &str)) -> Token {
        let mut fields = self.0.clone();
        // One that was used may be worth nothing.
        fields.remove("refreshToken");
        let end = end.format_rfc3339_zulu();
        let (start_url, region) = session;
        let new = [("accessToken", access), (END, &end), ("startUrl", start_url), ("region", region)];
        for (name, value) in new.into_iter().chain(refresh.map(|refresh| ("refreshToken", refresh))) {
            fields.insert(name.to_owned(), value.into());
        }
        Token(fields)
    }

    fn to_text(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }
}

/// The name of the file of a token.
fn file_name(named_by: &str) -> String {
    let hash = Sha1::digest(named_by.as_bytes());
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits}.json")
}

/// What a service says of an error, with a space before, or nothing.
fn word_of(said: &Value, name: &str) -> String {
    let word = cleaned(said[name].as_str().unwrap_or_default());
    match word.char_indices().nth(WORD_LEN_MAX) {
        _ if word.is_empty() => String::new(),
        Some((end, _)) => format!(" {}", &word[..end]),
        None => format!(" {word}"),
    }
}

/// Replaces a file in one step, for its owner alone to read. A link stays one.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = std::fs::canonicalize(path)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let folder = HostDirectory::open(folder)?;
    let mut new = name.to_owned();
    // The keys of this hasher are random for each one.
    new.push(format!(".{:016x}", RandomState::new().build_hasher().finish()));
    let new = PathBuf::from(new);
    folder.publish(&new, &NewFile { content, perm: 0o600, owner: None, durable: true })?;
    folder.rename(&new, name.as_ref(), RenameFlags::empty()).inspect_err(|_| {
        // It has secrets, and nobody would look for it.
        let _ = folder.remove(&new, Kind::File);
    })
}

#[cfg(test)]
mod tests {
    use reqsign_core::HttpSend;
    use tokio::sync::Notify;

    use super::super::super::runtime::Threads;
    use super::*;

    #[test]
    fn files_of_tokens_are_named_as_by_the_aws_cli() {
        // `printf my-sso | sha1sum`, and the same of a start URL.
        assert_eq!(file_name("my-sso"), "0ad374308c5a4e22f723adf10145eafad7c4031c.json");
        assert_eq!(file_name("https://example.awsapps.com/start"), "e8be5486177c5b5392bd9aa76563515b29358e6e.json");
    }

    #[test]
    fn times_are_read_as_old_and_new_programs_write_them() {
        let token = |end: &str| Token::parse(&format!("{{\"accessToken\": \"t\", \"expiresAt\": \"{end}\"}}")).unwrap();
        for end in ["2099-11-14T04:05:45Z", "2099-11-14T04:05:45UTC", "2099-11-14T04:05:45+00:00"] {
            assert!(token(end).is_good_for(RENEWED_BEFORE), "{end}");
        }
        for end in ["2019-11-14T04:05:45Z", "2019-11-14T04:05:45UTC", "tomorrow", ""] {
            assert!(!token(end).is_good_for(Duration::ZERO), "{end}");
        }
        for text in
            ["", "[]", "{}", "{\"accessToken\": \"\"}", "{\"accessToken\": 1}", "{\"accessToken\": \"t\"", "null"]
        {
            assert!(Token::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn what_could_not_be_renamed_is_not_left() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        assert!(replace(&taken, b"token").is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// A home directory in which the file of a token is another one at each look, until the last.
    #[derive(Debug)]
    struct Looks {
        home: String,
        texts: Mutex<Vec<String>>,
    }

    impl Surroundings for Looks {
        fn variable(&self, name: &str) -> Option<String> {
            (name == "HOME").then(|| self.home.clone())
        }

        fn file(&self, _: &Path) -> Option<String> {
            let mut texts = self.texts.lock();
            if texts.len() > 1 { Some(texts.remove(0)) } else { texts.first().cloned() }
        }
    }

    /// Who renews tokens: the one whose secret is `refresh-1`, when it may.
    #[derive(Clone, Debug)]
    struct Renews {
        entered: Arc<Notify>,
        may: Arc<Notify>,
    }

    impl HttpSend for Renews {
        async fn http_send(&self, request: Request<Bytes>) -> Result<http::Response<Bytes>> {
            self.entered.notify_one();
            self.may.notified().await;
            let asked: Value = serde_json::from_slice(request.body()).unwrap();
            let mut answer = http::Response::new(Bytes::from("{\"accessToken\": \"new\", \"expiresIn\": 3600}"));
            if asked["refreshToken"] != "refresh-1" {
                *answer.status_mut() = StatusCode::BAD_REQUEST;
            }
            Ok(answer)
        }
    }

    fn ends_in(seconds: i64, access: &str, refresh: &str) -> String {
        let end = Timestamp::from_second(Timestamp::now().as_second() + seconds).unwrap().format_rfc3339_zulu();
        let secrets = ("client", "secret", refresh);
        json!({
            "accessToken": access, END: end, FOR_RENEWAL[0]: secrets.0, FOR_RENEWAL[1]: secrets.1, FOR_RENEWAL[2]: secrets.2,
        })
        .to_string()
    }

    fn single_sign_on(home: &str, texts: &[String]) -> (SingleSignOn, Renews, Context) {
        let around = Arc::new(Looks { home: home.to_owned(), texts: Mutex::new(texts.to_vec()) });
        let sso = SingleSignOn {
            profile: "p".to_owned(),
            named_by: "s".to_owned(),
            start_url: "u".to_owned(),
            region: "r".to_owned(),
            account_id: "1".to_owned(),
            role_name: "n".to_owned(),
            portal: "https://portal".to_owned(),
            oidc: "https://oidc".to_owned(),
            around,
        };
        let renews = Renews { entered: Arc::default(), may: Arc::default() };
        (sso, renews.clone(), Context::new().with_http_send(renews))
    }

    #[test]
    fn it_is_the_newest_token_that_is_renewed_and_used() {
        let (old, newer) = (ends_in(-60, "old", "refresh-0"), ends_in(-60, "newer", "refresh-1"));
        let good_for_now = ends_in(100, "good", "refresh-0");
        for (home, looks, expected) in [
            // Another program was faster, long ago.
            ("/renewed", vec![old.clone(), newer], "new"),
            // The same, while this one was refused.
            ("/used", vec![old.clone(), old, good_for_now], "good"),
        ] {
            let (sso, renews, context) = single_sign_on(home, &looks);
            renews.may.notify_one();
            let asked = async move {
                let token = sso.token(&context).await;
                Ok(token.map(|token| token.access().unwrap().to_owned()).map_err(|e| e.to_string()))
            };
            assert_eq!(Threads::start().unwrap().wait(asked).unwrap().as_deref(), Ok(expected), "{home}");
        }
    }

    #[test]
    fn a_renewal_ends_though_nobody_waits_for_it() {
        let home = tempfile::tempdir().unwrap();
        let (sso, renews, context) = single_sign_on(home.path().to_str().unwrap(), &[ends_in(-60, "old", "refresh-1")]);
        let path = sso.path().unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "old").unwrap();
        let (threads, may) = (Threads::start().unwrap(), renews.may.clone());
        let left = async move {
            let call = tokio::spawn(async move { sso.token(&context).await.is_ok() });
            renews.entered.notified().await;
            call.abort();
            assert!(call.await.unwrap_err().is_cancelled());
            Ok(())
        };
        threads.wait(left).unwrap();
        may.notify_one();
        // The last store of the process goes.
        drop(threads);
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(Token::parse(&written).unwrap().access(), Some("new"));
    }
}
