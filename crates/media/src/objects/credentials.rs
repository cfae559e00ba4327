//! Where the keys of S3 come from: the library's sources in the order of the AWS tools, and those that it has no way for.
//!
//! [`Credentials`] asks the variables, the profile, a web identity, the container and the machine. A profile has a role to be
//! assumed with what another profile or a web identity has, or single sign-on ([`sso`]), or keys in the files, or a command.
//! The first source that has credentials ends it, and so does one that is set up and fails, a profile, a web identity or a
//! container: whoever did that does not mean what the machine has. The error tells what went wrong at each, and is one of the
//! network if somebody who may have some could not be asked.
//!
//! It is asked again two minutes before what it gave runs out. If nobody answers then, the old ones are good until they do,
//! and the sources have a rest in between.

mod asked;
mod command;
mod elsewhere;
mod sso;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reqsign_aws_v4::{
    AssumeRoleCredentialProvider, AssumeRoleWithWebIdentityCredentialProvider, Credential, ECSCredentialProvider,
    EnvCredentialProvider, IMDSv2CredentialProvider, ProcessCredentialProvider, RequestSigner,
    StaticCredentialProvider,
};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, ProvideCredential, Result, Signer, SigningCredential};
use tokio::time::Instant as TokioInstant;

pub use self::asked::{Lacking, NONE_SET_UP, Why};
pub use self::sso::renewals_end;

use self::asked::{Asked, cleaned, trouble_of, words};
use self::command::Command;
use self::elsewhere::{SendElsewhere, SignElsewhere};
use self::sso::SingleSignOn;
use super::endpoint::domain;
use super::near::may_have_secrets;
use super::options::{S3Settings, Surroundings};
use super::profile::{Keys, ProfileFile};
use super::transport::began;

/// Most profiles of which each is the source of the one before.
const SOURCES_MAX: u32 = 8;
/// How long the sources are not asked again, when they had nothing newer.
const REST: Duration = Duration::from_secs(10);
/// How a role is called in the logs of AWS, where nobody says it.
const SESSION_NAME: &str = "adit";

/// The sources of one store.
#[derive(Clone, Debug)]
pub struct Credentials {
    profile: Option<String>,
    /// Whether it was named for this store, and not by a variable.
    is_explicit: bool,
    instance_metadata: bool,
    region: String,
    around: Arc<dyn Surroundings>,
    /// Longest time of a command that is asked outside of any call.
    deadline: Duration,
    last: Arc<Mutex<Option<Last>>>,
    /// When it was found that nobody has any, and why.
    failed: Arc<Mutex<Option<(TokioInstant, Lacking)>>>,
    why: Why,
}

/// What the sources gave last, and whether they are to be asked again.
#[derive(Clone, Debug)]
struct Last {
    found: Credential,
    rest_until: Option<Instant>,
}

impl Credentials {
    pub fn new(settings: &S3Settings, around: Arc<dyn Surroundings>, why: Why) -> Credentials {
        Credentials {
            profile: settings.profile.clone(),
            is_explicit: settings.options.profile.is_some(),
            instance_metadata: settings.options.instance_metadata,
            region: settings.region.clone(),
            around,
            deadline: settings.options.deadline,
            last: Arc::default(),
            failed: Arc::default(),
            why,
        }
    }

    async fn find(&self, context: &Context, asked: &mut Asked) -> Option<Credential> {
        // Who names a profile for a store means it, whatever is in the variables.
        if !self.is_explicit {
            let [id, secret] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
            if self.around.set_variable(id).is_some() && self.around.set_variable(secret).is_none() {
                asked.failed(format!("{id} is set, and {secret} is not: set both, or neither"));
                return None;
            }
            if let Some(found) = asked.of("the variables", EnvCredentialProvider::new(), context).await {
                return Some(found);
            }
        }
        let name = self.profile.as_deref().unwrap_or("default");
        let file = self.file(name, asked)?;
        if self.profile.is_some() && file.is_missing() {
            // Whoever wrote it wrong does not mean what the machine has.
            asked.failed(format!("there is no profile {name} in the files of the AWS tools"));
            return None;
        }
        let web = self.web_identity();
        // As in the AWS tools, it is a variable like the keys.
        if let Some(web) = web.clone().filter(|_| !self.is_explicit) {
            return self.with_web_identity(context, "the web identity", (web, &self.region), &file, asked).await;
        }
        let failures = asked.failures();
        if let Some(found) = self.of_profile(context, name, SOURCES_MAX, asked).await {
            return Some(found);
        }
        if asked.failures() > failures {
            return None;
        }
        if let Some(web) = web {
            return self.with_web_identity(context, "the web identity", (web, &self.region), &file, asked).await;
        }
        match self.container() {
            Ok(None) => {}
            container => return asked.of_set_up("the container", container, context).await,
        }
        if !self.instance_metadata {
            return None;
        }
        let (machine, is_named) = self.machine(&file);
        let found = asked.of("the machine", machine, context).await;
        if !is_named && self.last.lock().is_none() {
            // Nobody said that it is one of EC2, and most are not.
            asked.forget_trouble();
        }
        found
    }

    /// What the variables say of a web identity.
    fn web_identity(&self) -> Option<AssumeRoleWithWebIdentityCredentialProvider> {
        let role = self.around.set_variable("AWS_ROLE_ARN")?;
        let token_file = self.around.set_variable("AWS_WEB_IDENTITY_TOKEN_FILE")?;
        let session = self.around.set_variable("AWS_ROLE_SESSION_NAME");
        Some(web_identity(role, token_file, session, self.region.clone()))
    }

    /// What the files say of a profile. One that is not as it should be ends the search.
    fn file(&self, profile: &str, asked: &mut Asked) -> Option<ProfileFile> {
        ProfileFile::of(&*self.around, profile).map_err(|e| asked.failed(e.to_string())).ok()
    }

    /// The service that hands out roles, where it is not the one that the library knows in `region`.
    fn sts(&self, file: &ProfileFile, region: &str) -> adit_core::Result<Option<String>> {
        let elsewhere = || (domain(region) != domain("")).then(|| format!("https://sts.{region}.{}", domain(region)));
        Ok(file.endpoint_of("sts", &*self.around)?.or_else(elsewhere))
    }

    /// What `web` gets from the service that the variables or the profile name, else from that of AWS in this region.
    async fn with_web_identity(
        &self,
        context: &Context,
        name: &str,
        (web, region): (AssumeRoleWithWebIdentityCredentialProvider, &str),
        file: &ProfileFile,
        asked: &mut Asked,
    ) -> Option<Credential> {
        match self.sts(file, region) {
            Ok(None) => asked.of(name, web, context).await,
            Ok(Some(endpoint)) => {
                let elsewhere = SendElsewhere { context: context.clone(), endpoint };
                asked.of(name, web, &context.clone().with_http_send(elsewhere)).await
            }
            Err(e) => {
                asked.failed(format!("{name}: {e}"));
                None
            }
        }
    }

    /// The service of a container, as its variables tell it; none if they do not.
    fn container(&self) -> Result<Option<ECSCredentialProvider>> {
        let variable = |name: &str| self.around.set_variable(&format!("AWS_CONTAINER_{name}"));
        let mut container = match (variable("CREDENTIALS_RELATIVE_URI"), variable("CREDENTIALS_FULL_URI")) {
            (Some(path), _) => ECSCredentialProvider::new().with_relative_uri(path),
            (None, Some(uri)) if may_have_secrets(&uri) => ECSCredentialProvider::new().with_endpoint(uri),
            (None, Some(_)) => {
                let why = "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https:// nor a service of this machine";
                return Err(Error::config_invalid(why));
            }
            (None, None) => return Ok(None),
        };
        // A file is there where the token changes.
        if let Some(path) = variable("AUTHORIZATION_TOKEN_FILE") {
            container = container.with_auth_token_file(path);
        }
        Ok(Some(container))
    }

    /// The metadata service of the machine, and whether somebody said where it is.
    fn machine(&self, file: &ProfileFile) -> (IMDSv2CredentialProvider, bool) {
        let said = |variable: &str, value: &str| self.around.set_variable(variable).or_else(|| file.value(value));
        let endpoint = said("AWS_EC2_METADATA_SERVICE_ENDPOINT", "ec2_metadata_service_endpoint");
        let mode = said("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ec2_metadata_service_endpoint_mode");
        let is_named = endpoint.is_some() || mode.is_some();
        let endpoint = endpoint.as_deref().unwrap_or(match mode {
            Some(mode) if mode.eq_ignore_ascii_case("ipv6") => "http://[fd00:ec2::254]",
            _ => "http://169.254.169.254",
        });
        (IMDSv2CredentialProvider::new().with_endpoint(endpoint.trim_end_matches('/')), is_named)
    }

    /// What a profile has, by way of at most `depth` others.
    fn of_profile<'a>(
        &'a self,
        context: &'a Context,
        name: &'a str,
        depth: u32,
        asked: &'a mut Asked,
    ) -> Pin<Box<dyn Future<Output = Option<Credential>> + Send + 'a>> {
        Box::pin(async move {
            let file = self.file(name, asked)?;
            match (file.value("role_arn"), file.value("web_identity_token_file")) {
                (Some(role), Some(token_file)) => {
                    let region = file.value("region").unwrap_or_else(|| self.region.clone());
                    let web = web_identity(role, token_file, file.value("role_session_name"), region.clone());
                    let source = format!("the web identity of profile {name}");
                    return self.with_web_identity(context, &source, (web, &region), &file, asked).await;
                }
                (Some(role), None) => return self.of_role(context, name, &role, &file, depth, asked).await,
                (None, _) => {}
            }
            let failures = asked.failures();
            let sso = SingleSignOn::of(name, &file, &self.around);
            let found = asked.of_set_up(&format!("the single sign-on of profile {name}"), sso, context).await;
            if found.is_some() || asked.failures() > failures {
                return found;
            }
            let found = keys_of(name, &file, asked);
            if found.is_some() || asked.failures() > failures {
                return found;
            }
            let line = file.value("credential_process")?;
            let source = format!("the command of profile {name}");
            match Command::parse(&line, self.deadline) {
                Ok(command) => {
                    let context = context.clone().with_command_execute(command);
                    asked.of(&source, ProcessCredentialProvider::new().with_command(line), &context).await
                }
                Err(why) => {
                    asked.failed(format!("{source}: {why}"));
                    None
                }
            }
        })
    }

    /// What a role is assumed with.
    async fn of_source(
        &self,
        context: &Context,
        name: &str,
        file: &ProfileFile,
        depth: u32,
        asked: &mut Asked,
    ) -> Option<Credential> {
        let failures = asked.failures();
        let found = match (file.value("source_profile"), file.value("credential_source").as_deref()) {
            // Its own keys, not its role again.
            (Some(source), _) if source == name => keys_of(name, file, asked),
            (Some(_), _) if depth == 0 => {
                asked.failed(format!("profile {name}: too many profiles have each other as their source"));
                None
            }
            (Some(source), _) => self.of_profile(context, &source, depth - 1, asked).await,
            (None, Some("Environment")) => asked.of("the variables", EnvCredentialProvider::new(), context).await,
            (None, Some("EcsContainer")) => asked.of_set_up("the container", self.container(), context).await,
            (None, Some("Ec2InstanceMetadata")) if self.instance_metadata => {
                asked.of("the machine", self.machine(file).0, context).await
            }
            (None, Some("Ec2InstanceMetadata")) => {
                asked.failed(format!("profile {name}: the machine is not to be asked (AWS_EC2_METADATA_DISABLED)"));
                None
            }
            (None, _) => {
                asked.failed(format!("profile {name}: it has a role_arn, and no source_profile"));
                None
            }
        };
        if found.is_none() && asked.failures() == failures {
            asked.failed(format!("profile {name}: the source of its role has no credentials"));
        }
        found
    }

    async fn of_role(
        &self,
        context: &Context,
        name: &str,
        role: &str,
        file: &ProfileFile,
        depth: u32,
        asked: &mut Asked,
    ) -> Option<Credential> {
        if file.value("mfa_serial").is_some() {
            asked.failed(format!("profile {name}: its role needs a code that only a person has (mfa_serial)"));
            return None;
        }
        let source = self.of_source(context, name, file, depth, asked).await?;
        let mut own = StaticCredentialProvider::new(&source.access_key_id, &source.secret_access_key);
        if let Some(token) = &source.session_token {
            own = own.with_session_token(token);
        }
        let region = file.value("region").unwrap_or_else(|| self.region.clone());
        let signer = RequestSigner::new("sts", &region);
        let signer = match self.sts(file, &region) {
            Ok(None) => Signer::new(context.clone(), own, signer),
            Ok(Some(endpoint)) => Signer::new(context.clone(), own, SignElsewhere { signer, endpoint }),
            Err(e) => {
                asked.failed(format!("the role of profile {name}: {e}"));
                return None;
            }
        };
        let session = file.value("role_session_name").unwrap_or_else(|| SESSION_NAME.to_owned());
        let mut assumed = AssumeRoleCredentialProvider::new(role.to_owned(), signer)
            .with_role_session_name(session)
            .with_region(region)
            .with_regional_sts_endpoint();
        if let Some(id) = file.value("external_id") {
            assumed = assumed.with_external_id(id);
        }
        if let Some(seconds) = file.value("duration_seconds").and_then(|seconds| seconds.parse().ok()) {
            assumed = assumed.with_duration_seconds(seconds);
        }
        asked.of(&format!("the role of profile {name}"), assumed, context).await
    }
}

impl ProvideCredential for Credentials {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        // Whoever asks holds what keeps all others from asking.
        let last = self.last.lock().clone().filter(|last| last.found.is_valid_at(Timestamp::now()));
        if let Some(last) = &last
            && last.rest_until.is_some_and(|until| Instant::now() < until)
        {
            return Ok(Some(last.found.clone()));
        }
        // A call that waited for this turn meanwhile would begin the same wait anew.
        let is_of_this = |at: &TokioInstant| began().is_some_and(|began| began < *at);
        let failed = self.failed.lock().clone().filter(|(at, _)| last.is_none() && is_of_this(at));
        if let Some((_, lacking)) = failed {
            let why = lacking.to_string();
            *self.why.lock() = Some(lacking);
            return Err(Error::credential_invalid(why));
        }
        let mut asked = Asked::default();
        match (self.find(context, &mut asked).await, last) {
            (Some(found), last) => {
                *self.why.lock() = None;
                // A source may have nothing newer until the last minute.
                let is_same = last.is_some_and(|last| last.found.expires_in == found.expires_in);
                let rest_until = is_same.then(|| Instant::now() + REST);
                *self.last.lock() = Some(Last { found: found.clone(), rest_until });
                Ok(Some(found))
            }
            (None, Some(Last { found, .. })) => {
                *self.why.lock() = None;
                let rest_until = Some(Instant::now() + REST);
                *self.last.lock() = Some(Last { found: found.clone(), rest_until });
                Ok(Some(found))
            }
            (None, None) => {
                let lacking = asked.lacking();
                let why = lacking.to_string();
                *self.failed.lock() = Some((TokioInstant::now(), lacking.clone()));
                *self.why.lock() = Some(lacking);
                Err(Error::credential_invalid(why))
            }
        }
    }
}

/// The keys that the files have for a profile.
fn keys_of(profile: &str, file: &ProfileFile, asked: &mut Asked) -> Option<Credential> {
    let Keys { id, secret, token } = file.keys()?;
    let Some(secret_access_key) = secret else {
        asked.failed(format!(
            "the keys of profile {profile}: there is an aws_access_key_id, and no aws_secret_access_key"
        ));
        return None;
    };
    Some(Credential { access_key_id: id, secret_access_key, session_token: token, expires_in: None })
}

fn web_identity(
    role: String,
    token_file: String,
    session: Option<String>,
    region: String,
) -> AssumeRoleWithWebIdentityCredentialProvider {
    AssumeRoleWithWebIdentityCredentialProvider::with_config(role, token_file.into())
        .with_region(region)
        .with_regional_sts_endpoint()
        .with_role_session_name(session.unwrap_or_else(|| SESSION_NAME.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};
    use std::path::Path;

    use bytes::Bytes;
    use reqsign_core::{FileRead, HttpSend, StaticEnv};

    use super::super::options::ObjectsOptions;
    use super::super::runtime::Threads;
    use super::super::transport::Trouble;
    use super::*;

    /// Files and variables that a test gives.
    #[derive(Clone, Debug, Default)]
    struct Given {
        variables: HashMap<String, String>,
        files: BTreeMap<String, String>,
    }

    impl Surroundings for Given {
        fn variable(&self, name: &str) -> Option<String> {
            self.variables.get(name).cloned()
        }

        fn file(&self, path: &Path) -> Option<String> {
            self.files.get(path.to_str()?).cloned()
        }
    }

    impl FileRead for Given {
        async fn file_read(&self, path: &str) -> Result<Vec<u8>> {
            let file = self.files.get(path).ok_or_else(|| Error::unexpected("no such file"))?;
            Ok(file.clone().into_bytes())
        }
    }

    /// A token service that gives a role to whoever asks, and tells who asked in the key.
    #[derive(Debug)]
    struct Tokens;

    impl HttpSend for Tokens {
        async fn http_send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
            let uri = request.uri().to_string();
            assert!(uri.starts_with("https://sts.ap-south-1.amazonaws.com/"), "{uri}");
            let signed =
                request.headers().get("authorization").map_or("", |signed| signed.to_str().unwrap_or_default());
            let asked = format!("{uri}&{}", String::from_utf8_lossy(request.body()));
            let after = |text: &str, name: &str, end: char| {
                text.split_once(name).and_then(|(_, rest)| rest.split(end).next()).map(str::to_owned)
            };
            let by = after(signed, "Credential=", '/').or_else(|| after(&asked, "WebIdentityToken=", '&')).unwrap();
            let action = after(&asked, "Action=", '&').unwrap();
            let role = after(&asked, "RoleArn=", '&').unwrap();
            let role = role.rsplit("%2F").next().unwrap();
            // Such a key has sixteen characters at least.
            let key = format!("{:_<16}", format!("{role}_by_{}", by.trim_end_matches('_')));
            let body = format!(
                "<{action}Response><{action}Result><Credentials><AccessKeyId>{key}</AccessKeyId>\
                 <SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
                 <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></{action}Result></{action}Response>"
            );
            Ok(http::Response::new(body.into()))
        }
    }

    fn credentials(profile: &str) -> (Credentials, Context) {
        const CONFIG: &str = "[profile keys]\naws_access_key_id = KEYS\naws_secret_access_key = s\n\
            [profile one]\nrole_arn = arn:aws:iam::123456789012:role/one\nsource_profile = keys\n\
            [profile two]\nrole_arn = arn:aws:iam::123456789012:role/two\nsource_profile = one\nregion = ap-south-1\n\
            [profile own]\nrole_arn = arn:aws:iam::123456789012:role/own\nsource_profile = own\naws_access_key_id = OWN\n\
            aws_secret_access_key = s\n[profile environment]\nrole_arn = arn:aws:iam::123456789012:role/env\n\
            credential_source = Environment\n[profile a]\nrole_arn = x\nsource_profile = b\n\
            [profile b]\nrole_arn = x\nsource_profile = a\n[profile code]\nrole_arn = x\nmfa_serial = y\n\
            source_profile = keys\n[profile metal]\nrole_arn = x\ncredential_source = Ec2InstanceMetadata\n[profile poor]\nrole_arn = x\nsource_profile = nobody\n[profile half]\nrole_arn = x\n\
            [profile command]\ncredential_process = /bin/echo \
            '{\"Version\":1,\"AccessKeyId\":\"COMMAND\",\"SecretAccessKey\":\"s\"}'\n\
            [profile web]\nrole_arn = arn:aws:iam::123456789012:role/web\nweb_identity_token_file = /token\n\
            [profile broken]\ncredential_process = /no/such/program\n";
        let variables = [
            ("AWS_ACCESS_KEY_ID", "VARIABLE"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("AWS_CONFIG_FILE", "/config"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/none"),
        ];
        let given = Given {
            variables: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            files: [("/config".to_owned(), CONFIG.to_owned()), ("/token".to_owned(), "token".to_owned())].into(),
        };
        let options = ObjectsOptions {
            profile: Some(profile.to_owned()).filter(|profile| !profile.is_empty()),
            region: Some("ap-south-1".to_owned()),
            instance_metadata: false,
            ..Default::default()
        };
        let settings = S3Settings::resolve("bucket", "", &options, &given).unwrap();
        let context = Context::new()
            .with_file_read(given.clone())
            .with_http_send(Tokens)
            .with_env(StaticEnv { home_dir: None, envs: given.variables.clone() });
        (Credentials::new(&settings, Arc::new(given), Why::default()), context)
    }

    fn ask((credentials, context): (Credentials, Context)) -> Result<Option<Credential>> {
        let asked = async move { Ok(credentials.provide_credential(&context).await) };
        Threads::start().unwrap().wait(asked).unwrap()
    }

    fn find(profile: &str) -> Result<Option<Credential>> {
        ask(credentials(profile))
    }

    #[test]
    fn profiles_have_keys_roles_and_commands() {
        for (profile, key) in [
            ("", "VARIABLE"),
            ("keys", "KEYS"),
            ("one", "one_by_KEYS"),
            ("two", "two_by_one_by_KEYS"),
            ("own", "own_by_OWN"),
            ("environment", "env_by_VARIABLE"),
            ("command", "COMMAND"),
            ("web", "web_by_token"),
        ] {
            let found = find(profile).unwrap_or_else(|e| panic!("{profile}: {e}")).expect("some");
            assert_eq!(found.access_key_id.trim_end_matches('_'), key, "{profile}");
        }
    }

    #[test]
    fn old_credentials_are_good_until_they_end() {
        let old = |secs| Credential {
            access_key_id: "OLD".to_owned(),
            secret_access_key: "s".to_owned(),
            session_token: None,
            expires_in: Some(Timestamp::from_second(Timestamp::now().as_second() + secs).unwrap()),
        };
        let key = |profile, found, rest_until| {
            let credentials = credentials(profile);
            let last = credentials.0.last.clone();
            *last.lock() = Some(Last { found, rest_until });
            let found = ask(credentials).map(|found| found.unwrap().access_key_id.trim_end_matches('_').to_owned());
            (found.ok(), last.lock().clone().is_some_and(|last| last.rest_until.is_some()))
        };
        let old_one = Some("OLD".to_owned());
        assert_eq!(key("broken", old(60), None), (old_one.clone(), true), "nobody answers: the old ones, and a rest");
        assert_eq!(key("broken", old(-1), None), (None, false), "not beyond their end");
        assert_eq!(key("keys", old(60), None), (Some("KEYS".to_owned()), false), "new ones as soon as there are any");
        let now = Instant::now();
        assert_eq!(key("keys", old(60), Some(now + Duration::from_secs(3600))), (old_one, true), "not in the rest");
        assert_eq!(key("keys", old(60), Some(now)), (Some("KEYS".to_owned()), false), "but after it");
        assert_eq!(key("one", find("one").unwrap().unwrap(), None), (Some("one_by_KEYS".to_owned()), true), "the same");
    }

    /// A network on which nobody answers.
    #[derive(Debug)]
    struct Nobody;

    impl HttpSend for Nobody {
        async fn http_send(&self, _: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
            Err(Error::unexpected("not sent").with_source(Trouble::TimedOut("no answer came in time")))
        }
    }

    #[test]
    fn a_machine_that_nobody_named_need_not_have_credentials() {
        let trouble = |endpoint: &str, last: Option<Last>| {
            let variables = [("AWS_EC2_METADATA_SERVICE_ENDPOINT".to_owned(), endpoint.to_owned())].into();
            let given = Given { variables, files: BTreeMap::new() };
            let settings = S3Settings::resolve("bucket", "", &ObjectsOptions::default(), &given).unwrap();
            let why = Why::default();
            let credentials = Credentials::new(&settings, Arc::new(given), why.clone());
            *credentials.last.lock() = last;
            ask((credentials, Context::new().with_http_send(Nobody))).unwrap_err();
            let lacking = why.lock().take().unwrap();
            assert!(lacking.to_string().contains("no answer came in time"), "{lacking}");
            Trouble::behind(&lacking).cloned()
        };
        let timed_out = Some(Trouble::TimedOut("no answer came in time"));
        assert_eq!(trouble("", None), None);
        assert_eq!(trouble("http://127.0.0.1:1", None), timed_out);
        let found = Credential { expires_in: Some(Timestamp::default()), ..Credential::default() };
        assert_eq!(trouble("", Some(Last { found, rest_until: None })), timed_out, "it has given some before");
    }

    #[test]
    fn what_went_wrong_is_told() {
        for (profile, why) in [
            ("a", "too many profiles"),
            ("code", "mfa_serial"),
            ("half", "no source_profile"),
            ("metal", "the machine is not to be asked"),
            ("poor", "the source of its role has no credentials"),
            ("broken", "/no/such/program"),
        ] {
            let e = find(profile).unwrap_err().to_string();
            assert!(e.contains(NONE_SET_UP) && e.contains(why), "{profile}: {e}");
        }
    }
}
