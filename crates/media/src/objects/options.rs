//! Where an object store is, and how it is talked to: what was typed, the variables `AWS_*` and the profile's files, read in
//! this one place.
//!
//! [`StoreUrl`] is what was typed, [`ObjectsOptions`] what may be chosen beside it, [`S3Settings`] what comes of both. What is
//! given explicitly goes before a variable, a variable before a profile. Credentials are not read here: the library's chain
//! reads them when a request is signed, and again when they run out.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_core::{ErrorKind, FsError, Result};
use http::Uri;
use http::uri::Authority;

use super::endpoint::{self, Variant, is_host};
use super::profile::ProfileFile;
use super::webdav::Collection;

/// Longest file with settings that is read, in bytes.
const CONFIGURATION_LEN_MAX: u64 = 16 << 20;
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
        if rest.starts_with("arn:") {
            let why = "buckets are known by their names, and no ARN; an access point has an alias that is like one (…-s3alias)";
            return refuse(ErrorKind::NotSupported, why.to_owned());
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
    /// Region. One that asks for FIPS (`fips-us-gov-west-1`) does so. Default: `AWS_REGION`, `AWS_DEFAULT_REGION`, the profile's, else `us-east-1`.
    pub region: Option<String>,
    /// Profile of the shared files. Default: `AWS_PROFILE`, `AWS_DEFAULT_PROFILE`, else `default`.
    pub profile: Option<String>,
    /// Whether the bucket is in the path of a URL rather than in its host. Default: with an endpoint of one's own, or a bucket
    /// whose name has a dot (no certificate fits it), or if the profile says so. A name that is none of a host, as one with capitals,
    /// always is: it would be that of another bucket.
    pub path_style: Option<bool>,
    /// The certificates that are trusted instead of the system's, as a file in PEM. Default: `AWS_CA_BUNDLE`, the profile's, and
    /// `REQUESTS_CA_BUNDLE` where neither `SSL_CERT_FILE` nor `SSL_CERT_DIR` names the system's.
    pub ca_bundle: Option<PathBuf>,
    /// The user of a store on WebDAV. Default: `ADIT_WEBDAV_USER`, unless there is a token in `ADIT_WEBDAV_TOKEN`.
    pub webdav_user: Option<String>,
    /// The file with that user's password in its first line. Default: the password is in `ADIT_WEBDAV_PASSWORD`.
    pub webdav_password_file: Option<PathBuf>,
    /// Whether requests go unsigned, for public buckets, and without credentials. Default: no.
    pub anonymous: bool,
    /// Requests say that their maker pays for them, as some buckets want it. Default: no.
    pub request_payer: bool,
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
    /// Most tries of a request. Default: `AWS_MAX_ATTEMPTS`, `max_attempts` of the profile, what `AWS_RETRY_MODE` or its `retry_mode` means, else
    /// as many as the deadline has room for.
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
            request_payer: false,
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
    ///
    /// # Errors
    /// `InvalidInput` for a number of tries that is none.
    pub(super) fn complete(&mut self, around: &dyn Surroundings, file: &ProfileFile) -> Result<()> {
        if self.tries_max == 0 {
            self.tries_max = tries_max(around, file)?;
        }
        self.part_len_bytes = self.part_len_bytes.max(PART_LEN_MIN_BYTES);
        self.parts_at_once_max = self.parts_at_once_max.max(1);
        self.requests_at_once_max = self.requests_at_once_max.max(1);
        Ok(())
    }
}

/// Most tries of a request by the settings of the AWS tools, of which a mode that is named has a number of its own, as in boto3.
fn tries_max(around: &dyn Surroundings, file: &ProfileFile) -> Result<u32> {
    let said = |variable: &'static str, value: &'static str| match around.set_variable(variable) {
        Some(said) => Some((variable, said)),
        None => file.value(value).map(|said| (value, said)),
    };
    let refused = |(name, said): (&'static str, String), why: &'static str| {
        Err(FsError::new(ErrorKind::InvalidInput)
            .on("read setting", format!("{name}={}", said.escape_debug()))
            .because(why))
    };
    let mode = match said("AWS_RETRY_MODE", "retry_mode") {
        None => u32::MAX,
        Some((name, mode)) => match mode.to_ascii_lowercase().as_str() {
            "legacy" => TRIES_LEGACY,
            "standard" | "adaptive" => TRIES_STANDARD,
            _ => return refused((name, mode), "it is legacy, standard or adaptive"),
        },
    };
    match said("AWS_MAX_ATTEMPTS", "max_attempts") {
        None => Ok(mode),
        Some((name, count)) => match count.trim().parse() {
            Ok(count @ 1..) => Ok(count),
            _ => refused((name, count), "it is a number from 1 on"),
        },
    }
}

/// Tries of a request that boto3 makes in its modes.
const TRIES_LEGACY: u32 = 5;
const TRIES_STANDARD: u32 = 3;
/// Least length of a part that is not the last, in bytes: what S3 takes.
const PART_LEN_MIN_BYTES: usize = 5 << 20;

/// What comes of the options, the variables and the profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct S3Settings {
    pub bucket: String,
    pub prefix: String,
    /// One of one's own.
    pub endpoint: Option<String>,
    /// Which of those of AWS, without.
    variant: Variant,
    /// Whether what is stored goes with a checksum though nobody has asked for one.
    pub has_checksums: bool,
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

    /// All of a file with settings; none if there is none. One that `is_named` has to be such that it can be looked for.
    fn configuration(&self, path: &Path, _is_named: bool) -> Result<Option<Vec<u8>>> {
        Ok(self.file(path).map(String::into_bytes))
    }

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

    fn configuration(&self, path: &Path, is_named: bool) -> Result<Option<Vec<u8>>> {
        // A pipe without a writer would be waited for.
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        let opened = match opened {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
            // As it may be for who runs with somebody else's home directory.
            Err(_) if !is_named && path.symlink_metadata().is_err() => return Ok(None),
            opened => opened?,
        };
        let kind = opened.metadata()?.file_type();
        if kind.is_char_device() {
            return Ok(None);
        }
        if !kind.is_file() {
            return Err(FsError::new(ErrorKind::InvalidInput).because("it is no file"));
        }
        let mut bytes = Vec::new();
        opened.take(CONFIGURATION_LEN_MAX).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
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
        let file = ProfileFile::of(around, profile.as_deref().unwrap_or("default"))?;
        if let Some(profile) = profile.as_deref().filter(|_| file.is_missing()) {
            // Region and endpoint would be others than those that somebody has written down.
            let why = "the files of the AWS tools have no such profile; correct the name, or AWS_PROFILE";
            return Err(FsError::new(ErrorKind::InvalidInput).on("read profile", profile.escape_debug()).because(why));
        }

        let ignored = file.ignores_endpoints(around);
        let endpoint = options.endpoint.clone().or_else(|| {
            let of_variable = || variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
            of_variable().or_else(|| file.endpoint()).filter(|_| !ignored)
        });
        let endpoint = endpoint.map(|endpoint| check_endpoint(&endpoint)).transpose()?;
        let region = options.region.clone().or_else(|| variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
        let region = region.or_else(|| file.value("region")).unwrap_or_else(|| REGION_OF_OTHERS.to_owned());
        let (region, asks_for_fips) = endpoint::region(&region)?;
        let path_style = options.path_style.unwrap_or_else(|| match file.value("s3.addressing_style").as_deref() {
            Some("path") => true,
            Some("virtual") => !is_host(&bucket.replace('.', "-")),
            _ => endpoint.is_some() || !is_host(bucket),
        });
        let is_on = |name: &str, value: &str| match variable(&[name]) {
            Some(said) => says_true(&said),
            None => file.is_true(value),
        };
        let dual_stack = is_on("AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint");
        let variant = Variant {
            fips: asks_for_fips || is_on("AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint"),
            dual_stack: dual_stack || file.is_true("s3.use_dualstack_endpoint"),
            accelerate: file.is_true("s3.use_accelerate_endpoint"),
        };

        let ca_bundle = options.ca_bundle.take().or_else(|| variable(&["AWS_CA_BUNDLE"]).map(PathBuf::from));
        let ca_bundle = ca_bundle.or_else(|| file.value("ca_bundle").map(PathBuf::from));
        options.ca_bundle = ca_bundle.or_else(|| bundle_of_others(around));
        options.instance_metadata &= !is_true(around, "AWS_EC2_METADATA_DISABLED");
        options.complete(around, &file)?;
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
        let checksums = variable(&["AWS_REQUEST_CHECKSUM_CALCULATION"]);
        let checksums = checksums.or_else(|| file.value("request_checksum_calculation"));
        let has_checksums = checksums.is_none_or(|when| !when.eq_ignore_ascii_case("when_required"));
        let settings =
            S3Settings { bucket, prefix, endpoint, variant, has_checksums, region, profile, path_style, options };
        // What is asked for has to be there.
        settings.endpoint_in(&settings.region)?;
        Ok(settings)
    }

    /// Where requests go for a bucket that lies in `region`, as a URL; none if that is for the library to say.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such endpoint as was asked for.
    pub fn endpoint_in(&self, region: &str) -> Result<Option<String>> {
        if let Some(own) = &self.endpoint {
            self.variant.expect_none("an endpoint of one's own is used as it is")?;
            return Ok(Some(own.clone()));
        }
        // Directory buckets lie on hosts of their zone.
        if self.bucket.ends_with("--x-s3") {
            self.variant.expect_none("a directory bucket has no such endpoint")?;
            return Ok(None);
        }
        self.variant.endpoint(region, &self.bucket).map(Some)
    }
}

/// The certificates that programs in Python trust, unless what the system trusts was named.
pub(super) fn bundle_of_others(around: &dyn Surroundings) -> Option<PathBuf> {
    let is_named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().any(|name| around.set_variable(name).is_some());
    around.set_variable("REQUESTS_CA_BUNDLE").filter(|_| !is_named).map(PathBuf::from)
}

/// Whether a variable is `true`.
pub(super) fn is_true(around: &dyn Surroundings, name: &str) -> bool {
    around.variable(name).is_some_and(|value| says_true(&value))
}

pub(super) fn says_true(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

/// Whether there is a host, and the port is one, if there is one.
pub(super) fn is_place(authority: &Authority) -> bool {
    let host = authority.host();
    // There may be a user before.
    let place = authority.as_str().rsplit('@').next().unwrap_or_default();
    let port = place.get(host.len()..).unwrap_or_default();
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    !host.is_empty() && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// Whether it may stand in the name of a host.
pub(super) fn is_region(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// An endpoint without a `/` at its end. One with a password in it would end up in messages.
pub(super) fn check_endpoint(endpoint: &str) -> Result<String> {
    let rest = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    let is_plain = |rest: &&str| !rest.contains(['@', '?', '#']) && !rest.contains(char::is_whitespace);
    match rest.filter(is_plain).and_then(|_| endpoint.parse::<Uri>().ok()) {
        Some(uri) if uri.authority().is_some_and(is_place) => Ok(endpoint.trim_end_matches('/').to_owned()),
        _ => {
            // Whatever is before an `@` may be a secret.
            let shown = endpoint.rsplit('@').next().unwrap_or_default();
            let why = "write it as http://HOST:PORT or https://HOST, without a user";
            Err(FsError::new(ErrorKind::InvalidInput).on("read endpoint", shown.escape_debug()).because(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
            ("s3://arn:aws:s3:us-east-1:123456789012:accesspoint/a/x", ErrorKind::NotSupported),
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
        assert_eq!((plain.options.tries_max, plain.options.instance_metadata), (u32::MAX, true));

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
    fn tries_are_those_of_the_aws_tools() {
        let tries = |config: &'static str, variables: &[(&'static str, &'static str)]| {
            let variables = variables.iter().copied().chain([("AWS_CONFIG_FILE", "/c")]).collect();
            let given = Given { variables, files: [("/c", config)].into() };
            S3Settings::resolve("bucket", "", &ObjectsOptions::default(), &given).map(|found| found.options.tries_max)
        };
        for (config, variables, expected) in [
            ("", &[][..], u32::MAX),
            ("[default]\nmax_attempts = 40\n", &[], 40),
            ("[default]\nmax_attempts = 40\n", &[("AWS_MAX_ATTEMPTS", "2")], 2),
            ("[default]\nretry_mode = standard\n", &[], 3),
            ("[default]\nretry_mode = legacy\n", &[], 5),
            ("[default]\nretry_mode = legacy\nmax_attempts = 9\n", &[("AWS_RETRY_MODE", "Adaptive")], 9),
            ("[default]\nretry_mode = legacy\n", &[("AWS_RETRY_MODE", "adaptive")], 3),
        ] {
            assert_eq!(tries(config, variables).unwrap(), expected, "{config} {variables:?}");
        }
        for (config, name) in [
            ("max_attempts = many", "max_attempts=many"),
            ("retry_mode = brave", "retry_mode=brave"),
            ("max_attempts = 0", "max_attempts=0"),
        ] {
            let e = tries(format!("[default]\n{config}\n").leak(), &[]).unwrap_err();
            assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains(name), "{e}");
        }
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
        let file = ProfileFile::of(&given, "my farm").unwrap();
        assert_eq!(
            (file.value("region").as_deref(), file.session_value("sso_region").as_deref()),
            (Some("r"), Some("q"))
        );
    }

    #[test]
    fn a_section_that_is_named_has_to_be_there() {
        let refused = |config: &'static str, variables: &[(&'static str, &'static str)]| {
            let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_CONFIG_FILE", "/c")];
            let given =
                Given { variables: variables.iter().copied().chain(keys).collect(), files: [("/c", config)].into() };
            S3Settings::resolve("bucket", "", &ObjectsOptions::default(), &given).err().map(|e| e.to_string())
        };
        let services = refused("[default]\nservices = none\n[services other]\n", &[]).unwrap();
        assert!(services.contains("services = none"), "{services}");
        let session = refused("[default]\nsso_session = none\n", &[]).unwrap();
        assert!(session.contains("[sso-session none]"), "{session}");
        let profile = refused("[default]\nregion = r\n", &[("AWS_PROFILE", "none")]).unwrap();
        assert!(profile.contains("no such profile"), "{profile}");
        assert_eq!(refused("[profile empty]\n", &[("AWS_PROFILE", "empty")]), None, "nothing in it is something");
    }

    #[test]
    fn other_services_have_endpoints_of_their_own() {
        let endpoint = |variables: &[(&'static str, &'static str)], service: &str| {
            const CONFIG: &str = "[default]\nservices = s\nendpoint_url = http://all\n[services s]\nsts =\n  endpoint_url = https://sts/\n";
            let variables = variables.iter().copied().chain([("AWS_CONFIG_FILE", "/c")]).collect();
            let given = Given { variables, files: [("/c", CONFIG)].into() };
            ProfileFile::of(&given, "default").unwrap().endpoint_of(service, &given).unwrap()
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
            ProfileFile::of(&given, "default").unwrap().endpoint_of("sts", &given)
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
    fn a_bucket_that_is_no_host_is_in_the_path() {
        let of = |bucket: &str, style: &'static str| {
            let config: &str = if style.is_empty() { "" } else { "[default]\ns3 =\n  addressing_style = virtual\n" };
            let variables = [("AWS_CONFIG_FILE", "/c")].into();
            let given = Given { variables, files: [("/c", config)].into() };
            S3Settings::resolve(bucket, "", &ObjectsOptions::default(), &given).unwrap().path_style
        };
        for (bucket, style, expected) in [
            ("mybucket", "", false),
            ("MyBucket", "", true),
            ("my_bucket", "", true),
            ("my.bucket", "", true),
            ("my.bucket", "virtual", false),
            ("MyBucket", "virtual", true),
        ] {
            assert_eq!(of(bucket, style), expected, "{bucket} {style}");
        }
    }

    #[test]
    fn endpoints_of_aws_are_those_that_were_asked_for() {
        let endpoint = |config: &'static str, variables: &[(&'static str, &'static str)]| {
            let variables = variables.iter().copied().chain([("AWS_CONFIG_FILE", "/c")]).collect();
            let given = Given { variables, files: [("/c", config)].into() };
            let settings = S3Settings::resolve("bucket", "", &ObjectsOptions::default(), &given)?;
            settings.endpoint_in(&settings.region).map(Option::unwrap)
        };
        for (config, variables, expected) in [
            ("", &[][..], "https://s3.us-east-1.amazonaws.com"),
            ("", &[("AWS_USE_FIPS_ENDPOINT", "true")], "https://s3-fips.us-east-1.amazonaws.com"),
            ("", &[("AWS_REGION", "fips-us-gov-west-1")], "https://s3-fips.us-gov-west-1.amazonaws.com"),
            ("[default]\nuse_dualstack_endpoint = True\n", &[], "https://s3.dualstack.us-east-1.amazonaws.com"),
            (
                "[default]\nuse_fips_endpoint = true\n",
                &[("AWS_USE_FIPS_ENDPOINT", "false")],
                "https://s3.us-east-1.amazonaws.com",
            ),
            ("[default]\ns3 =\n  use_accelerate_endpoint = true\n", &[], "https://s3-accelerate.amazonaws.com"),
            (
                "[default]\nendpoint_url = http://own\nignore_configured_endpoint_urls = true\n",
                &[],
                "https://s3.us-east-1.amazonaws.com",
            ),
        ] {
            assert_eq!(endpoint(config, variables).unwrap(), expected);
        }
        let own = [("AWS_ENDPOINT_URL", "http://own"), ("AWS_USE_FIPS_ENDPOINT", "true")];
        let e = endpoint("", &own).unwrap_err();
        assert!(e.to_string().contains("AWS_USE_FIPS_ENDPOINT"), "{e}");
    }

    #[test]
    fn certificates_are_those_that_were_named_for_aws_first() {
        let bundle = |variables: &[(&'static str, &'static str)]| {
            let bundle = resolve(&ObjectsOptions::default(), variables).unwrap().options.ca_bundle;
            bundle.map(|path| path.display().to_string())
        };
        let (aws, others, system) = (("AWS_CA_BUNDLE", "/a"), ("REQUESTS_CA_BUNDLE", "/r"), ("SSL_CERT_FILE", "/s"));
        assert_eq!(bundle(&[aws, others, system]).as_deref(), Some("/a"));
        assert_eq!(bundle(&[others]).as_deref(), Some("/r"));
        assert_eq!(bundle(&[others, system]), None, "the system's");
    }

    #[test]
    fn files_are_found_as_by_botocore() {
        let region = |variables: &[(&'static str, &'static str)]| {
            let files =
                [("/home/u/.aws/config", "[default]\nregion = home\n"), ("/home/u/c", "[default]\nregion = c\n")];
            let variables = variables.iter().copied().chain([("HOME", "/home/u")]).collect();
            let given = Given { variables, files: files.into() };
            S3Settings::resolve("bucket", "", &ObjectsOptions::default(), &given).unwrap().region
        };
        assert_eq!(region(&[]), "home");
        assert_eq!(region(&[("AWS_CONFIG_FILE", "")]), REGION_OF_OTHERS, "set to nothing, it names no file");
        for path in ["/home/u/c", "~/c", "$HOME/c", "${HOME}/c", "$HOME${NO}/c"] {
            let found = region(&[("AWS_CONFIG_FILE", path)]);
            assert_eq!(found, if path.contains("NO") { REGION_OF_OTHERS } else { "c" }, "{path}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let read = |is_named| Process.configuration(&path, is_named);
        assert_eq!(read(true).unwrap(), None);
        std::fs::create_dir(&path).unwrap();
        assert!(read(false).unwrap_err().to_string().contains("no file"));
        std::fs::remove_dir(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(false).unwrap_err().to_string().contains("no file"), "and nobody waits for a writer");
        assert_eq!(Process.configuration(Path::new("/dev/null"), true).unwrap(), None);
        let given =
            Given { variables: [("AWS_CONFIG_FILE", "/c")].into(), files: [("/c", "[default]\nregion\n")].into() };
        let e = S3Settings::resolve("bucket", "", &ObjectsOptions::default(), &given).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        assert!(e.to_string().contains("/c") && e.to_string().contains("line 2"), "{e}");
    }

    #[test]
    fn an_endpoint_tells_no_secret() {
        for endpoint in [
            "http://user:secret@host",
            "host:9000",
            "http://",
            "ftp://host",
            "http://host/?key=secret@",
            "http://host:99999",
            "http://host:",
            "http://host:0",
            "http://:80",
            "http://ho st",
        ] {
            let options = ObjectsOptions { endpoint: Some(endpoint.to_owned()), ..Default::default() };
            let e = resolve(&options, &[]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput);
            assert!(!e.to_string().contains("secret"), "{e}");
        }
    }
}
