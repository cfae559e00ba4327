//! Where an object store is, and how it is talked to: what was typed, the variables `AWS_*` and the profile's files, read in
//! this one place.
//!
//! [`StoreUrl`] is what was typed, [`ObjectsOptions`] what may be chosen beside it, [`S3Settings`] what comes of both. What is
//! given explicitly goes before a variable, a variable before a profile. Credentials are not read here: the library's chain
//! reads them when a request is signed, and again when they run out.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_core::{ErrorKind, FsError, Result};

use super::near::may_have_secrets;
use super::webdav::Collection;

/// Region of a store that does not say which: what stores other than AWS expect in a signature.
const REGION_OF_OTHERS: &str = "us-east-1";

/// An object store as it is typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreUrl {
    /// `s3://bucket` or `s3://bucket/prefix`.
    S3 {
        /// The bucket.
        bucket: String,
        /// What all keys begin with, without a `/` at either end; perhaps empty.
        prefix: String,
    },
    /// `davs://host/path`, or `dav://host:port/path` without encryption.
    WebDav(Collection),
    /// A path, or `file:///path`.
    Folder(PathBuf),
}

impl StoreUrl {
    /// Reads what was typed. Whatever has no `://` is a path.
    pub fn parse(text: &str) -> Result<StoreUrl> {
        // Whatever is before an `@` may be a secret.
        let shown = text.rsplit('@').next().unwrap_or_default();
        let refuse = |kind, why: String| Err(FsError::new(kind).on("read store", shown.escape_debug()).because(why));
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text {
                "" => refuse(
                    ErrorKind::InvalidInput,
                    "it is empty; give s3://BUCKET/PREFIX, davs://HOST/PATH or a folder".to_owned(),
                ),
                path => Ok(StoreUrl::Folder(path.into())),
            };
        };
        match scheme.to_ascii_lowercase().as_str() {
            "s3" => {}
            // RFC 8089: an authority of a file is empty or the own host.
            "file" => {
                return match rest.strip_prefix("localhost").unwrap_or(rest) {
                    path if path.starts_with('/') => Ok(StoreUrl::Folder(decode_path(path))),
                    _ => refuse(ErrorKind::InvalidInput, "write it as file:///PATH".to_owned()),
                };
            }
            scheme @ ("dav" | "davs") => {
                return match Collection::parse(scheme == "davs", rest) {
                    Ok(collection) => Ok(StoreUrl::WebDav(collection)),
                    Err(why) => refuse(ErrorKind::InvalidInput, why),
                };
            }
            other => {
                return refuse(
                    ErrorKind::NotSupported,
                    format!("`{other}` is not known; s3://, davs:// and folders are"),
                );
            }
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if !(3..=255).contains(&bucket.len()) || !bucket.bytes().all(plain) || bucket.starts_with('.') {
            let why = "the bucket is not the name of one: 3 or more of a-z, 0-9, `-` and `.`";
            return refuse(ErrorKind::InvalidInput, why.to_owned());
        }
        if !prefix.is_empty() {
            adit_core::media::check_object_key(prefix)?;
        }
        Ok(StoreUrl::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

/// Undoes percent encoding; a path is bytes.
fn decode_path(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let value = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match value.filter(|_| *byte == b'%') {
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
    PathBuf::from(std::ffi::OsString::from_vec(decoded))
}

/// What may be chosen of an object store. The times and numbers hold for what is on a network; a folder has none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectsOptions {
    /// Endpoint, as a URL. Default: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, the profile's, else AWS.
    pub endpoint: Option<String>,
    /// Region. Default: `AWS_REGION`, `AWS_DEFAULT_REGION`, the profile's, else `us-east-1`.
    pub region: Option<String>,
    /// Profile of the shared files. Default: `AWS_PROFILE`, `AWS_DEFAULT_PROFILE`, else `default`.
    pub profile: Option<String>,
    /// Whether the bucket is in the path of a URL rather than in its host. Default: with an endpoint of one's own, or a bucket
    /// whose name has a dot (no certificate fits it), or if the profile says so.
    pub path_style: Option<bool>,
    /// The certificates that are trusted instead of the system's, as a file in PEM. Default: `AWS_CA_BUNDLE`, the profile's.
    pub ca_bundle: Option<PathBuf>,
    /// The user of a store on WebDAV. Default: `ADIT_WEBDAV_USER`, unless there is a token in `ADIT_WEBDAV_TOKEN`.
    pub webdav_user: Option<String>,
    /// The file with that user's password in its first line. Default: the password is in `ADIT_WEBDAV_PASSWORD`.
    pub webdav_password_file: Option<PathBuf>,
    /// Whether requests go unsigned, for public buckets, and without credentials. Default: no.
    pub anonymous: bool,
    /// Whether the metadata service of a machine in EC2 is asked for credentials. Default: yes, unless
    /// `AWS_EC2_METADATA_DISABLED` is `true`.
    pub instance_metadata: bool,
    /// Longest time to a connection, name and handshake included. Default: 5 s.
    pub connect_timeout: Duration,
    /// Longest time without an answer once a request is sent, and between two pieces of one. Default: 20 s.
    pub answer_timeout: Duration,
    /// Longest time of a call with all its tries. What it moves adds a second for every 64 KiB of at most one part, so that
    /// a slow line is no dead one. Default: 60 s.
    pub deadline: Duration,
    /// Most tries of a request. Default: `AWS_MAX_ATTEMPTS`, else 6.
    pub tries_max: u32,
    /// Pause after the first try that failed; it doubles with each, and half of it is random. Default: 100 ms.
    pub pause_min: Duration,
    /// Longest pause between two tries. Default: 5 s.
    pub pause_max: Duration,
    /// Most requests at a time, of all callers. Default: 64.
    pub requests_at_once_max: usize,
    /// Length of a part of a multipart upload in bytes, and the longest object that is stored in one request. A part is
    /// longer where 10,000 of them would not do. At least 5 MiB. Default: 8 MiB.
    pub part_len_bytes: usize,
    /// Most parts of one upload on their way at a time; so many are in memory. Default: 4.
    pub parts_at_once_max: usize,
}

impl Default for ObjectsOptions {
    fn default() -> Self {
        ObjectsOptions {
            endpoint: None,
            region: None,
            profile: None,
            path_style: None,
            ca_bundle: None,
            webdav_user: None,
            webdav_password_file: None,
            anonymous: false,
            instance_metadata: true,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(20),
            deadline: Duration::from_secs(60),
            tries_max: 0,
            pause_min: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
            requests_at_once_max: 64,
            part_len_bytes: 8 << 20,
            parts_at_once_max: 4,
        }
    }
}

impl ObjectsOptions {
    /// Gives the limits that were left open, and keeps them within what makes sense.
    pub(super) fn complete(&mut self, around: &dyn Surroundings) {
        if self.tries_max == 0 {
            let given = around.set_variable("AWS_MAX_ATTEMPTS").and_then(|tries| tries.parse().ok());
            self.tries_max = given.unwrap_or(TRIES).clamp(1, 100);
        }
        self.part_len_bytes = self.part_len_bytes.max(PART_LEN_MIN_BYTES);
        self.parts_at_once_max = self.parts_at_once_max.max(1);
        self.requests_at_once_max = self.requests_at_once_max.max(1);
    }
}

/// Tries of a request, where nobody says how many.
const TRIES: u32 = 6;
/// Least length of a part that is not the last, in bytes: what S3 takes.
const PART_LEN_MIN_BYTES: usize = 5 << 20;

/// What comes of the options, the variables and the profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct S3Settings {
    pub bucket: String,
    pub prefix: String,
    pub endpoint: Option<String>,
    pub region: String,
    /// Only if one was named: without, the chain may use any source.
    pub profile: Option<String>,
    pub path_style: bool,
    pub options: ObjectsOptions,
}

/// Where the variables and files come from: the process, or a test.
pub(super) trait Surroundings: fmt::Debug + Send + Sync {
    fn variable(&self, name: &str) -> Option<String>;
    fn file(&self, path: &Path) -> Option<String>;

    /// A variable that is set to something.
    fn set_variable(&self, name: &str) -> Option<String> {
        self.variable(name).filter(|value| !value.is_empty())
    }
}

/// This process.
#[derive(Debug)]
pub(super) struct Process;

impl Surroundings for Process {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &Path) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }
}

impl S3Settings {
    pub fn resolve(
        bucket: &str,
        prefix: &str,
        options: &ObjectsOptions,
        around: &dyn Surroundings,
    ) -> Result<S3Settings> {
        let mut options = options.clone();
        let variable = |names: &[&str]| names.iter().find_map(|name| around.set_variable(name));
        let profile = options.profile.clone().or_else(|| variable(&["AWS_PROFILE", "AWS_DEFAULT_PROFILE"]));
        let file = ProfileFile::of(around, profile.as_deref().unwrap_or("default"));

        let ignored = is_true(around, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
        let endpoint = options.endpoint.clone().or_else(|| {
            let of_variable = || variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
            of_variable().or_else(|| file.endpoint()).filter(|_| !ignored)
        });
        let endpoint = endpoint.map(|endpoint| check_endpoint(&endpoint)).transpose()?;
        let region = options.region.clone().or_else(|| variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
        let region = region.or_else(|| file.value("region")).unwrap_or_else(|| REGION_OF_OTHERS.to_owned());
        if !is_region(&region) {
            let why = "a region is a name like us-west-2";
            return Err(FsError::new(ErrorKind::InvalidInput).on("read region", region.escape_debug()).because(why));
        }
        let path_style = options.path_style.unwrap_or_else(|| match file.value("s3.addressing_style").as_deref() {
            Some("path") => true,
            Some("virtual") => false,
            _ => endpoint.is_some() || bucket.contains('.') || bucket.contains('_'),
        });

        let ca_bundle = options.ca_bundle.take().or_else(|| variable(&["AWS_CA_BUNDLE"]).map(PathBuf::from));
        options.ca_bundle = ca_bundle.or_else(|| file.value("ca_bundle").map(PathBuf::from));
        options.instance_metadata &= !is_true(around, "AWS_EC2_METADATA_DISABLED");
        options.complete(around);
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
        Ok(S3Settings { bucket, prefix, endpoint, region, profile, path_style, options })
    }
}

fn is_true(around: &dyn Surroundings, name: &str) -> bool {
    around.variable(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Whether it may stand in the name of a host.
pub(super) fn is_region(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// An endpoint without a `/` at its end. One with a password in it would end up in messages.
fn check_endpoint(endpoint: &str) -> Result<String> {
    let rest = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.contains(['@', '?', '#']) && !rest.contains(char::is_whitespace) => {
            Ok(endpoint.trim_end_matches('/').to_owned())
        }
        _ => {
            // Whatever is before an `@` may be a secret.
            let shown = endpoint.rsplit('@').next().unwrap_or_default();
            let why = "write it as http://HOST:PORT or https://HOST, without a user";
            Err(FsError::new(ErrorKind::InvalidInput).on("read endpoint", shown.escape_debug()).because(why))
        }
    }
}

/// What the shared files say of one profile.
pub(super) struct ProfileFile {
    values: BTreeMap<String, String>,
    /// Of the section that its `services` names.
    services: BTreeMap<String, String>,
    /// Of the section that its `sso_session` names.
    session: BTreeMap<String, String>,
}

impl ProfileFile {
    pub fn of(around: &dyn Surroundings, profile: &str) -> ProfileFile {
        let home = around.set_variable("HOME").map(PathBuf::from);
        let read = |variable: &str, name: &str| {
            let given = around.set_variable(variable).map(PathBuf::from);
            let path = given.or_else(|| Some(home.as_ref()?.join(".aws").join(name)))?;
            // `~/` is not the shell's to expand here.
            let path = match (path.strip_prefix("~"), &home) {
                (Ok(below), Some(home)) => home.join(below),
                _ => path,
            };
            around.file(&path)
        };
        let config = read("AWS_CONFIG_FILE", "config").unwrap_or_default();
        let named = [format!("profile {profile}"), profile.to_owned()];
        let sections = if profile == "default" { &named[..] } else { &named[..1] };
        let mut values = BTreeMap::new();
        for section in sections {
            values.append(&mut section_of(&config, section));
        }
        if let Some(credentials) = read("AWS_SHARED_CREDENTIALS_FILE", "credentials") {
            for (name, value) in section_of(&credentials, profile) {
                values.entry(name).or_insert(value);
            }
        }
        let section = |kind: &str, value: &str| {
            let name = values.get(value).filter(|name| !name.is_empty());
            name.map(|name| section_of(&config, &format!("{kind} {name}"))).unwrap_or_default()
        };
        let (services, session) = (section("services", "services"), section("sso-session", "sso_session"));
        ProfileFile { values, services, session }
    }

    /// Whether no file has the profile, or nothing in it.
    pub fn is_missing(&self) -> bool {
        self.values.is_empty()
    }

    /// A value that is not empty.
    pub fn value(&self, name: &str) -> Option<String> {
        self.values.get(name).filter(|value| !value.is_empty()).cloned()
    }

    /// A value of the section `[sso-session …]` that it names.
    pub fn session_value(&self, name: &str) -> Option<String> {
        self.session.get(name).filter(|value| !value.is_empty()).cloned()
    }

    /// Where another service of AWS than the store is, if it was named: `sts`, `sso`, `sso_oidc`. What is said of all services
    /// (`AWS_ENDPOINT_URL`) means the store alone: whoever keeps the objects is to get no token that is for AWS. Tokens and
    /// keys go there, so it is encrypted or near.
    pub fn endpoint_of(&self, service: &str, around: &dyn Surroundings) -> Result<Option<String>> {
        if is_true(around, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") {
            return Ok(None);
        }
        let of_variable = around.set_variable(&format!("AWS_ENDPOINT_URL_{}", service.to_ascii_uppercase()));
        let of_service =
            || self.services.get(&format!("{service}.endpoint_url")).filter(|url| !url.is_empty()).cloned();
        let endpoint = of_variable.or_else(of_service).map(|endpoint| check_endpoint(&endpoint)).transpose()?;
        match endpoint {
            Some(endpoint) if !may_have_secrets(&endpoint) => {
                let why = "tokens and keys go there: it has to be https://, or a service of this machine";
                Err(FsError::new(ErrorKind::InvalidInput).on("read endpoint", endpoint.escape_debug()).because(why))
            }
            endpoint => Ok(endpoint),
        }
    }

    fn endpoint(&self) -> Option<String> {
        let of_service = self.services.get("s3.endpoint_url").filter(|value| !value.is_empty()).cloned();
        of_service.or_else(|| self.value("endpoint_url"))
    }
}

/// The values of a section; one that is indented below `name =` is `name.its-own`.
fn section_of(text: &str, wanted: &str) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let (mut inside, mut parent) = (false, None);
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            // Names with spaces are quoted.
            let section = section.0.replace(['"', '\''], " ");
            inside = section.split_whitespace().eq(wanted.split_whitespace());
            continue;
        }
        let Some((name, value)) = trimmed.split_once('=').filter(|_| inside) else { continue };
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        match &parent {
            Some(parent) if line.starts_with([' ', '\t']) => values.insert(format!("{parent}.{name}"), value),
            _ => {
                parent = Some(name.clone());
                values.insert(name, value)
            }
        };
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Given {
        variables: BTreeMap<&'static str, &'static str>,
        files: BTreeMap<&'static str, &'static str>,
    }

    impl Surroundings for Given {
        fn variable(&self, name: &str) -> Option<String> {
            self.variables.get(name).map(|value| (*value).to_owned())
        }

        fn file(&self, path: &Path) -> Option<String> {
            self.files.get(path.to_str()?).map(|text| (*text).to_owned())
        }
    }

    fn resolve(options: &ObjectsOptions, variables: &[(&'static str, &'static str)]) -> Result<S3Settings> {
        const CONFIG: &str = "[default]\nregion = eu-west-1\n\n# a comment\n[profile farm]\nregion=ap-south-1\n\
            services = local\ns3 =\n    addressing_style = virtual\nendpoint_url = http://not-this-one\n\
            [services local]\ns3 =\n  endpoint_url = http://127.0.0.1:9000/\n";
        let mut variables = BTreeMap::from_iter(variables.iter().copied());
        variables.insert("HOME", "/home/u");
        let files = [("/home/u/.aws/config", CONFIG), ("/c", "[farm]\nregion = us-gov-1\n"), ("/d", "")];
        S3Settings::resolve("bucket", "root", options, &Given { variables, files: files.into() })
    }

    #[test]
    fn what_is_typed_is_a_bucket_or_a_folder() {
        let dav = |tls: bool, authority: &str, root: &str| {
            StoreUrl::WebDav(Collection { tls, authority: authority.to_owned(), root: root.to_owned() })
        };
        let s3 = |bucket: &str, prefix: &str| StoreUrl::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() };
        for (text, url) in [
            ("s3://bucket", s3("bucket", "")),
            ("S3://bucket/", s3("bucket", "")),
            ("s3://my.bucket/Deadline Cloud/x/", s3("my.bucket", "Deadline Cloud/x")),
            ("davs://Host:443/a b/c@d/", dav(true, "host", "a b/c@d")),
            ("dav://127.0.0.1:8080", dav(false, "127.0.0.1:8080", "")),
            ("DAV://[::1]:8080/", dav(false, "[::1]:8080", "")),
            ("/a/b", StoreUrl::Folder("/a/b".into())),
            ("relative", StoreUrl::Folder("relative".into())),
            ("file:///a%20b/%zz", StoreUrl::Folder("/a b/%zz".into())),
            ("file://localhost/a", StoreUrl::Folder("/a".into())),
        ] {
            assert_eq!(StoreUrl::parse(text).unwrap(), url, "{text}");
        }
        for (text, kind) in [
            ("", ErrorKind::InvalidInput),
            ("s3://", ErrorKind::InvalidInput),
            ("s3://user:secret@bucket/x", ErrorKind::InvalidInput),
            ("dav://user:secret@host/x", ErrorKind::InvalidInput),
            ("davs://user@host/x", ErrorKind::InvalidInput),
            ("davs://", ErrorKind::InvalidInput),
            ("davs:///x", ErrorKind::InvalidInput),
            ("davs://host:/x", ErrorKind::InvalidInput),
            ("davs://host:99999/x", ErrorKind::InvalidInput),
            ("davs://ho st/x", ErrorKind::InvalidInput),
            ("davs://host?/x", ErrorKind::InvalidInput),
            ("davs://host/a/../b", ErrorKind::InvalidInput),
            ("s3://bucket/a/../b", ErrorKind::InvalidInput),
            ("s3://bucket//a", ErrorKind::InvalidInput),
            ("file://host/a", ErrorKind::InvalidInput),
            ("gs://bucket", ErrorKind::NotSupported),
        ] {
            let e = StoreUrl::parse(text).unwrap_err();
            assert_eq!(e.kind(), kind, "{text}");
            assert!(!e.to_string().contains("secret"), "{e}");
        }
    }

    #[test]
    fn explicit_goes_before_variable_before_profile() {
        let plain = resolve(&ObjectsOptions::default(), &[]).unwrap();
        assert_eq!((plain.region.as_str(), plain.endpoint.as_deref(), plain.path_style), ("eu-west-1", None, false));
        assert_eq!((plain.options.tries_max, plain.options.instance_metadata), (TRIES, true));

        let farm = resolve(&ObjectsOptions::default(), &[("AWS_PROFILE", "farm")]).unwrap();
        assert_eq!((farm.region.as_str(), farm.endpoint.as_deref()), ("ap-south-1", Some("http://127.0.0.1:9000")));
        assert_eq!((farm.profile.as_deref(), farm.path_style), (Some("farm"), false));

        let variables = [
            ("AWS_PROFILE", "farm"),
            ("AWS_REGION", "us-west-2"),
            ("AWS_ENDPOINT_URL", "https://e"),
            ("AWS_EC2_METADATA_DISABLED", "True"),
            ("AWS_MAX_ATTEMPTS", "3"),
        ];
        let by_variable = resolve(&ObjectsOptions::default(), &variables).unwrap();
        assert_eq!((by_variable.region.as_str(), by_variable.endpoint.as_deref()), ("us-west-2", Some("https://e")));
        assert_eq!((by_variable.options.tries_max, by_variable.options.instance_metadata), (3, false));

        let options = ObjectsOptions {
            region: Some("x-1".to_owned()),
            endpoint: Some("http://h:1/".to_owned()),
            profile: Some("default".to_owned()),
            tries_max: 1,
            ..Default::default()
        };
        let explicit = resolve(&options, &variables).unwrap();
        assert_eq!((explicit.region.as_str(), explicit.endpoint.as_deref()), ("x-1", Some("http://h:1")));
        assert_eq!((explicit.profile.as_deref(), explicit.options.tries_max), (Some("default"), 1));
        assert!(explicit.path_style, "an endpoint of one's own has the bucket in its paths");
    }

    #[test]
    fn variables_name_the_files_and_turn_endpoints_off() {
        let variables = [("AWS_PROFILE", "farm"), ("AWS_CONFIG_FILE", "/d"), ("AWS_SHARED_CREDENTIALS_FILE", "/c")];
        assert_eq!(resolve(&ObjectsOptions::default(), &variables).unwrap().region, "us-gov-1");
        let off = [("AWS_ENDPOINT_URL", "http://e"), ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")];
        assert_eq!(resolve(&ObjectsOptions::default(), &off).unwrap().endpoint, None);
        assert_eq!(resolve(&ObjectsOptions::default(), &[("AWS_REGION", "")]).unwrap().region, "eu-west-1");
    }

    #[test]
    fn names_with_spaces_are_quoted() {
        const CONFIG: &str =
            "[profile \"my farm\"]\nregion = r\nsso_session = my sso\n[sso-session 'my sso']\nsso_region = q\n";
        let given = Given { variables: [("AWS_CONFIG_FILE", "/c")].into(), files: [("/c", CONFIG)].into() };
        let file = ProfileFile::of(&given, "my farm");
        assert_eq!(
            (file.value("region").as_deref(), file.session_value("sso_region").as_deref()),
            (Some("r"), Some("q"))
        );
    }

    #[test]
    fn other_services_have_endpoints_of_their_own() {
        let endpoint = |variables: &[(&'static str, &'static str)], service: &str| {
            const CONFIG: &str = "[default]\nservices = s\nendpoint_url = http://all\n[services s]\nsts =\n  endpoint_url = https://sts/\n";
            let variables = variables.iter().copied().chain([("AWS_CONFIG_FILE", "/c")]).collect();
            let given = Given { variables, files: [("/c", CONFIG)].into() };
            ProfileFile::of(&given, "default").endpoint_of(service, &given).unwrap()
        };
        let general = [("AWS_ENDPOINT_URL", "http://all"), ("AWS_ENDPOINT_URL_SSO", "https://sso")];
        assert_eq!(endpoint(&general, "sts").as_deref(), Some("https://sts"));
        assert_eq!(endpoint(&general, "sso").as_deref(), Some("https://sso"));
        assert_eq!(endpoint(&general, "sso_oidc"), None, "the store's is not theirs");
        assert_eq!(endpoint(&[("AWS_ENDPOINT_URL_STS", "https://own")], "sts").as_deref(), Some("https://own"));
        assert_eq!(endpoint(&[("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")], "sts"), None);
    }

    #[test]
    fn tokens_are_sent_in_the_clear_to_this_machine_only() {
        let endpoint = |url: &'static str| {
            let given = Given { variables: [("AWS_ENDPOINT_URL_STS", url)].into(), files: BTreeMap::new() };
            ProfileFile::of(&given, "default").endpoint_of("sts", &given)
        };
        for url in ["https://sts.example", "http://127.0.0.1:4566", "http://[::1]:4566", "http://localhost"] {
            assert_eq!(endpoint(url).unwrap().as_deref(), Some(url));
        }
        for url in ["http://sts.example", "http://192.0.2.1", "http://127.0.0.1.example.com", "https://"] {
            let e = endpoint(url).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}: {e}");
        }
    }

    #[test]
    fn an_endpoint_tells_no_secret() {
        for endpoint in ["http://user:secret@host", "host:9000", "http://", "ftp://host", "http://host/?key=secret@"] {
            let options = ObjectsOptions { endpoint: Some(endpoint.to_owned()), ..Default::default() };
            let e = resolve(&options, &[]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput);
            assert!(!e.to_string().contains("secret"), "{e}");
        }
    }
}
