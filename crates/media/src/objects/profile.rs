//! What the shared files of the AWS tools say of a profile.

use std::path::{Path, PathBuf};

use adit_core::{ErrorKind, FsError, Result};

use super::ini::{Ini, Section};
use super::near::may_have_secrets;
use super::options::{Surroundings, check_endpoint, is_true, says_true};

/// What the shared files say of one profile.
#[derive(Debug, Default)]
pub struct ProfileFile {
    /// Of the file `credentials`, which goes before the other one.
    credentials: Section,
    config: Section,
    /// Of the section that its `services` names.
    services: Section,
    /// Of the section that its `sso_session` names.
    session: Section,
    /// No file has a section of this profile.
    is_missing: bool,
}

/// Keys that a file has.
pub struct Keys {
    /// Which one it is.
    pub id: String,
    /// What is signed with; none if the file does not say it.
    pub secret: Option<String>,
    /// Of those that run out.
    pub token: Option<String>,
}

impl ProfileFile {
    /// Reads both files, which need not be there.
    ///
    /// # Errors
    /// `InvalidInput` for one that is not of their form, with the file and the line, or that names a section which is not there; those of the host
    /// for one that cannot be read.
    pub fn of(around: &dyn Surroundings, profile: &str) -> Result<ProfileFile> {
        let config = read(around, "AWS_CONFIG_FILE", "config")?;
        let of_config = config.named("profile", profile).cloned();
        let mut is_missing = of_config.is_none();
        let of_config = of_config.unwrap_or_default();
        let of_config = match config.section("default").filter(|_| profile == "default") {
            // Both spellings are one profile.
            Some(default) => {
                is_missing = false;
                default.iter().map(|(name, value)| (name.clone(), value.clone())).chain(of_config).collect()
            }
            None => of_config,
        };
        let credentials = read(around, "AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
        let credentials = credentials.section(profile).cloned();
        is_missing &= credentials.is_none();
        let credentials = credentials.unwrap_or_default();
        let mut file = ProfileFile { credentials, config: of_config, is_missing, ..ProfileFile::default() };
        let section = |kind: &str, value: &str| {
            let Some(name) = file.value(value) else { return Ok(Section::default()) };
            config.named(kind, &name).cloned().ok_or_else(|| {
                let why = format!("it says {value} = {name}, and there is no section [{kind} {name}]");
                FsError::new(ErrorKind::InvalidInput)
                    .on("read configuration", format!("profile {profile}"))
                    .because(why)
            })
        };
        let (services, session) = (section("services", "services")?, section("sso-session", "sso_session")?);
        (file.services, file.session) = (services, session);
        Ok(file)
    }

    /// Whether no file has the profile.
    pub fn is_missing(&self) -> bool {
        self.is_missing
    }

    /// A value that is not empty.
    pub fn value(&self, name: &str) -> Option<String> {
        set(&self.credentials, name).or_else(|| set(&self.config, name))
    }

    /// Whether a value is `true`.
    pub fn is_true(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| says_true(&value))
    }

    /// A value of the section `[sso-session …]` that it names.
    pub fn session_value(&self, name: &str) -> Option<String> {
        set(&self.session, name)
    }

    /// The keys of one file, with what belongs to them.
    pub fn keys(&self) -> Option<Keys> {
        [&self.credentials, &self.config].into_iter().find_map(|of| {
            let id = set(of, "aws_access_key_id")?;
            let token = set(of, "aws_session_token").or_else(|| set(of, "aws_security_token"));
            Some(Keys { id, secret: set(of, "aws_secret_access_key"), token })
        })
    }

    /// Where the store is.
    pub fn endpoint(&self) -> Option<String> {
        set(&self.services, "s3.endpoint_url").or_else(|| self.value("endpoint_url"))
    }

    /// Whether endpoints that somebody has set up are not to be used.
    pub fn ignores_endpoints(&self, around: &dyn Surroundings) -> bool {
        is_true(around, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") || self.is_true("ignore_configured_endpoint_urls")
    }

    /// Where another service of AWS than the store is, if it was named: `sts`, `sso`, `sso_oidc`. What is said of all services
    /// (`AWS_ENDPOINT_URL`) means the store alone: whoever keeps the objects is to get no token that is for AWS. Tokens and
    /// keys go there, so it is encrypted or near.
    pub fn endpoint_of(&self, service: &str, around: &dyn Surroundings) -> Result<Option<String>> {
        if self.ignores_endpoints(around) {
            return Ok(None);
        }
        let of_variable = around.set_variable(&format!("AWS_ENDPOINT_URL_{}", service.to_ascii_uppercase()));
        let of_service = || set(&self.services, &format!("{service}.endpoint_url"));
        let endpoint = of_variable.or_else(of_service).map(|endpoint| check_endpoint(&endpoint)).transpose()?;
        match endpoint {
            Some(endpoint) if !may_have_secrets(&endpoint) => {
                let why = "tokens and keys go there: it has to be https://, or a service of this machine";
                Err(FsError::new(ErrorKind::InvalidInput).on("read endpoint", endpoint.escape_debug()).because(why))
            }
            endpoint => Ok(endpoint),
        }
    }
}

/// A value that is not empty.
fn set(section: &Section, name: &str) -> Option<String> {
    section.get(name).filter(|value| !value.is_empty()).cloned()
}

/// One of the two files: that which `variable` names, else that of this name in the home directory.
fn read(around: &dyn Surroundings, variable: &str, name: &str) -> Result<Ini> {
    let home = around.set_variable("HOME").map(PathBuf::from);
    let named = around.variable(variable);
    let path = match (&named, &home) {
        // Set to nothing, it names no file.
        (Some(named), _) if named.is_empty() => return Ok(Ini::default()),
        (Some(named), home) => expanded(named, home.as_deref(), around),
        (None, Some(home)) => home.join(".aws").join(name),
        (None, None) => return Ok(Ini::default()),
    };
    let failed = |e: FsError| e.on("read configuration", path.display());
    let bytes = around.configuration(&path, named.is_some()).map_err(failed)?.unwrap_or_default();
    Ini::parse(&bytes).map_err(|e| failed(FsError::new(ErrorKind::InvalidInput).because(e)))
}

/// A path with its variables and its `~`, which no shell has seen.
fn expanded(path: &str, home: Option<&Path>, around: &dyn Surroundings) -> PathBuf {
    let mut pieces = path.split('$');
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let braced = piece.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let end = piece.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(piece.len());
        let (name, rest) = braced.unwrap_or_else(|| piece.split_at(end));
        match around.variable(name).filter(|_| !name.is_empty()) {
            Some(value) => whole.extend([value.as_str(), rest]),
            None => whole.extend(["$", piece]),
        }
    }
    let whole = PathBuf::from(whole);
    match (whole.strip_prefix("~"), home) {
        (Ok(below), Some(home)) => home.join(below),
        _ => whole,
    }
}
