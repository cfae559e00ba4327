//! The services that hand out credentials, on the loopback, and a process that asks them.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use adit_testkit::objects::{FaultyS3, HttpRequest, HttpResponse, LoopbackService};
use reqsign_core::time::Timestamp;
use serde_json::{Value, json};

/// Where the process that asks finds the store.
pub const ENDPOINT: &str = "ADIT_TEST_ENDPOINT";
/// The profile that it names for the store.
pub const PROFILE: &str = "ADIT_TEST_PROFILE";
/// Credentials that end within this are asked for again at each request, and good until then.
pub const SHORT_SECS: i64 = 100;

/// What the services know, and what came to them.
pub struct State {
    /// How long credentials are good, in seconds.
    pub life_secs: i64,
    /// Who got some, in turn.
    pub given: Vec<String>,
    /// The token of single sign-on that is good, and the one that renews it.
    pub sso_token: String,
    pub refresh_token: String,
    /// What containers and web identities say.
    pub container_token: String,
    pub web_token: String,
}

/// A key of the `number`th credentials that a source gave, as long as keys of AWS are.
pub fn key(source: &str, number: usize) -> String {
    format!("{source:_<12}{number:04}")
}

/// A time so many seconds from now, as services write it.
pub fn time_in(secs: i64) -> String {
    Timestamp::from_second(Timestamp::now().as_second() + secs).unwrap().format_rfc3339_zulu()
}

impl State {
    fn give(&mut self, source: &str) -> (String, String) {
        self.given.push(source.to_owned());
        let number = self.given.iter().filter(|given| *given == source).count();
        (key(source, number), time_in(self.life_secs))
    }

    fn answer(&mut self, request: &HttpRequest) -> HttpResponse {
        let refused = |status: u16| HttpResponse::new(status, "{\"message\": \"no\"}");
        let header = |name: &str, value: &str| request.header(name) == Some(value);
        let keys = |(key, end): (String, String)| {
            let keys =
                json!({"Code": "Success", "AccessKeyId": key, "SecretAccessKey": "s", "Token": "t", "Expiration": end});
            HttpResponse::new(200, keys.to_string())
        };
        match (request.method.as_str(), request.path()) {
            ("PUT", "latest/api/token") if header("x-aws-ec2-metadata-token-ttl-seconds", "21600") => {
                HttpResponse::new(200, "metadata-token")
            }
            ("GET", path) if path.starts_with("latest/") && !header("x-aws-ec2-metadata-token", "metadata-token") => {
                refused(401)
            }
            ("GET", "latest/meta-data/iam/security-credentials/") => HttpResponse::new(200, "a-role"),
            ("GET", "latest/meta-data/iam/security-credentials/a-role") => keys(self.give("MACHINE")),
            ("GET", "container") if header("authorization", &self.container_token) => keys(self.give("CONTAINER")),
            (_, "") => self.assume(request),
            ("GET", "federation/credentials") => {
                let asked = ["role_name", "account_id"].map(|name| request.query_value(name).unwrap());
                if !header("x-amz-sso_bearer_token", &self.sso_token) {
                    return refused(401);
                } else if asked != ["Artist+1", "123456789012"] {
                    return refused(403);
                }
                let (key, _) = self.give("SSO");
                let end = (Timestamp::now().as_second() + self.life_secs) * 1000;
                let keys = json!({"accessKeyId": key, "secretAccessKey": "s", "sessionToken": "t", "expiration": end});
                HttpResponse::new(200, json!({ "roleCredentials": keys }).to_string())
            }
            ("POST", "token") => self.renew(request),
            _ => refused(404),
        }
    }

    /// The token service, for a role.
    fn assume(&mut self, request: &HttpRequest) -> HttpResponse {
        let value = |name: &str| request.query_value(name).or_else(|| request.form_value(name)).unwrap_or_default();
        let action = value("Action");
        let source = match action.as_str() {
            "AssumeRole" if request.access_key().is_some_and(|key| key == "SOURCE" || key.ends_with("_0001")) => "ROLE",
            "AssumeRoleWithWebIdentity" if value("WebIdentityToken") == self.web_token => "WEB",
            _ => {
                let error = "<Type>Sender</Type><Code>AccessDenied</Code><Message>a message</Message>";
                return HttpResponse::new(403, format!("<ErrorResponse><Error>{error}</Error></ErrorResponse>"));
            }
        };
        assert_eq!((value("RoleArn").as_str(), value("RoleSessionName").as_str()), (ROLE, "adit"));
        let (key, end) = self.give(source);
        HttpResponse::new(
            200,
            format!(
                "<{action}Response><{action}Result><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s\
                 </SecretAccessKey><SessionToken>t</SessionToken><Expiration>{end}</Expiration></Credentials>\
                 </{action}Result></{action}Response>"
            ),
        )
    }

    /// A new token of single sign-on for the one that renews it, which is worth nothing afterwards.
    fn renew(&mut self, request: &HttpRequest) -> HttpResponse {
        let asked: Value = serde_json::from_slice(&request.body).unwrap();
        let right = json!({
            "grantType": "refresh_token", "clientId": "client", "clientSecret": "secret", "refreshToken": self.refresh_token,
        });
        if asked != right {
            return HttpResponse::new(400, "{\"error\": \"invalid_grant\"}");
        }
        self.given.push("TOKEN".to_owned());
        (self.sso_token, self.refresh_token) = (format!("{}+", self.sso_token), format!("{}+", self.refresh_token));
        let new = json!({"accessToken": self.sso_token, "refreshToken": self.refresh_token, "expiresIn": 3600});
        HttpResponse::new(200, new.to_string())
    }
}

/// The role that everybody asks for.
pub const ROLE: &str = "arn:aws:iam::123456789012:role/a-role";

/// A store, the services, and a home directory.
pub struct World {
    pub store: FaultyS3,
    pub state: Arc<Mutex<State>>,
    services: LoopbackService,
    home: tempfile::TempDir,
}

impl World {
    pub fn new() -> World {
        let state = Arc::new(Mutex::new(State {
            life_secs: SHORT_SECS,
            given: Vec::new(),
            sso_token: "sso-token".to_owned(),
            refresh_token: "refresh-token".to_owned(),
            container_token: "container-token".to_owned(),
            web_token: "web-token".to_owned(),
        }));
        let services = LoopbackService::start({
            let state = state.clone();
            move |request| state.lock().unwrap().answer(request)
        });
        let (store, home) = (FaultyS3::start().unwrap(), tempfile::tempdir().unwrap());
        World { store, state, services: services.unwrap(), home }
    }

    /// Where the services are, as a URL.
    pub fn services(&self) -> String {
        self.services.endpoint()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Writes a file in the home directory, and tells where it is.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A process with these variables, and no others of AWS than those that lead to the services.
    pub fn client(&self, variables: &[(&str, &str)]) -> Client {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture"]).env_clear();
        command.env(ENDPOINT, self.store.endpoint()).env("HOME", self.home.path()).env("NO_PROXY", "127.0.0.1");
        for name in ["AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL_SSO", "AWS_ENDPOINT_URL_SSO_OIDC"] {
            command.env(name, self.services());
        }
        command.env("AWS_EC2_METADATA_SERVICE_ENDPOINT", self.services()).env("AWS_EC2_METADATA_DISABLED", "true");
        command.envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (asks, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Client { child, asks, answers }
    }

    /// The keys that requests to the store were signed with, in turn.
    pub fn signed_with(&self) -> Vec<String> {
        self.store.log().into_iter().map(|request| request.access_key.unwrap_or_default()).collect()
    }

    /// How often credentials were given.
    pub fn given(&self) -> Vec<String> {
        self.state.lock().unwrap().given.clone()
    }

    /// Credentials that are about to end are asked for again, and no request fails; those that are not are kept.
    pub fn check_renewal(&self, source: &str, variables: &[(&str, &str)]) {
        self.check_renewal_after(source, variables, || {});
    }

    /// The same, with something that happens between two requests.
    pub fn check_renewal_after(&self, source: &str, variables: &[(&str, &str)], between: impl FnOnce()) {
        let keys = [key(source, 1), key(source, 2)];
        keys.iter().for_each(|key| self.store.accept_key(key));
        let mut client = self.client(variables);
        assert_eq!(client.ask(), "ok", "{source}");
        self.store.expire_key(&keys[0]);
        between();
        self.state.lock().unwrap().life_secs = 3600;
        assert_eq!(client.ask(), "ok", "{source}");
        assert_eq!(client.ask(), "ok", "{source}");
        assert_eq!(
            self.signed_with(),
            [&*keys[0], &*keys[1], &*keys[1]],
            "{source}: no request fails, and none too many asks"
        );
    }
}

/// A process that makes a request whenever it is asked to.
pub struct Client {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Client {
    /// What came of a request for a listing: `ok`, or the kind and text of its error.
    pub fn ask(&mut self) -> String {
        self.ask_for("list")
    }

    /// The same of another request: `put`, `read`.
    pub fn ask_for(&mut self, what: &str) -> String {
        writeln!(self.asks, "{what}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the process has ended");
            if let Some(answer) = line.strip_prefix("> ") {
                return answer.trim_end().to_owned();
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Nothing is lost with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
