//! Where a store on WebDAV is, and who asks: what was typed, and the variables `ADIT_WEBDAV_*`.

use std::fmt;
use std::path::Path;

use adit_core::media::check_object_key;
use adit_core::{ErrorKind, FsError, Result};
use data_encoding::BASE64;
use http::{HeaderValue, Uri};

use super::super::near::Place;
use super::super::options::{ObjectsOptions, Surroundings, bundle_of_others};
use super::super::profile::ProfileFile;

/// The user and the password, and the token that may be there instead.
const USER: &str = "ADIT_WEBDAV_USER";
const PASSWORD: &str = "ADIT_WEBDAV_PASSWORD";
const TOKEN: &str = "ADIT_WEBDAV_TOKEN";

/// What can be done where credentials are not as they should be.
pub const HOW_TO_SAY_WHO: &str = "name them by --webdav-user and --webdav-password-file, or by the variables ADIT_WEBDAV_USER and \
                                  ADIT_WEBDAV_PASSWORD, or a token by ADIT_WEBDAV_TOKEN";

/// A collection on a server, as it was typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Collection {
    /// Whether it is encrypted.
    pub tls: bool,
    /// Host, and port if it is not the usual one.
    pub authority: String,
    /// Its path, decoded, without a `/` at either end; perhaps empty.
    pub root: String,
}

impl Collection {
    /// Reads what comes after `dav://` or `davs://`. The path is written as it is, not percent-encoded, as that of any store.
    pub fn parse(tls: bool, rest: &str) -> std::result::Result<Collection, String> {
        let (authority, root) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(format!("a user and a password do not belong into a URL, which others see; {HOW_TO_SAY_WHO}"));
        }
        let (scheme, usual) = if tls { ("https", ":443") } else { ("http", ":80") };
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']');
        let uri = format!("{scheme}://{authority}/").parse::<Uri>().ok().filter(|_| authority.bytes().all(is_plain));
        let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.contains(']'));
        let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
        if uri.and_then(|uri| Some(!uri.host()?.is_empty() && is_port)) != Some(true) {
            return Err("write it as davs://HOST/PATH or dav://HOST:PORT/PATH".to_owned());
        }
        let root = root.strip_suffix('/').unwrap_or(root);
        if !root.is_empty() {
            check_object_key(root).map_err(|e| e.to_string())?;
        }
        let authority = authority.strip_suffix(usual).unwrap_or(authority).to_ascii_lowercase();
        Ok(Collection { tls, authority, root: root.to_owned() })
    }

    /// The same as a URL of HTTP, without a path.
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", if self.tls { "davs" } else { "dav" }, self.authority, self.root)
    }
}

/// What comes of a collection, the options and the variables.
pub struct WebDavSettings {
    pub collection: Collection,
    /// What is sent with each request to tell who asks: a secret.
    pub authorization: Option<HeaderValue>,
    pub options: ObjectsOptions,
}

impl WebDavSettings {
    pub fn resolve(
        collection: &Collection,
        options: &ObjectsOptions,
        around: &dyn Surroundings,
    ) -> Result<WebDavSettings> {
        let mut options = options.clone();
        // A profile is for the AWS tools.
        options.complete(around, &ProfileFile::default())?;
        let ca_bundle = options.ca_bundle.take().or_else(|| around.set_variable("AWS_CA_BUNDLE").map(Into::into));
        options.ca_bundle = ca_bundle.or_else(|| bundle_of_others(around));
        let refuse =
            |why: String| FsError::new(ErrorKind::InvalidInput).on("open object store", collection).because(why);
        let said = if options.anonymous { None } else { authorization(&options, around).map_err(refuse)? };
        let place = collection.origin().parse::<Uri>().map(|uri| Place::of(&uri));
        if said.is_some() && !collection.tls && !matches!(place, Ok(Place::Here)) {
            let why = "credentials would go over the network in the clear; write davs://, or leave them out \
                       (--no-sign-request)";
            return Err(refuse(why.to_owned()));
        }
        let header = |said: String| {
            let mut value = HeaderValue::from_str(&said)
                .map_err(|_| refuse("the credentials have a character that no header takes".to_owned()))?;
            value.set_sensitive(true);
            Ok::<_, FsError>(value)
        };
        let authorization = said.map(header).transpose()?;
        Ok(WebDavSettings { collection: collection.clone(), authorization, options })
    }
}

/// What tells who asks. What is given explicitly goes before the variables.
fn authorization(options: &ObjectsOptions, around: &dyn Surroundings) -> std::result::Result<Option<String>, String> {
    let is_given = options.webdav_user.is_some() || options.webdav_password_file.is_some();
    let user = options.webdav_user.clone().or_else(|| around.set_variable(USER));
    let password = match options.webdav_password_file.as_deref() {
        Some(file) => Some(password_in(file, around)?),
        None => around.set_variable(PASSWORD),
    };
    let token = around.set_variable(TOKEN).filter(|_| !is_given);
    match (token, user, password) {
        (Some(_), Some(_), _) => Err(format!("{TOKEN} and {USER} are both set; unset the one that is not meant")),
        (Some(token), None, _) => Ok(Some(format!("Bearer {token}"))),
        (None, None, None) => Ok(None),
        (None, Some(_), None) => Err(format!("there is a user and no password; {HOW_TO_SAY_WHO}")),
        (None, None, Some(_)) => Err(format!("there is a password and no user; {HOW_TO_SAY_WHO}")),
        (None, Some(user), Some(_)) if user.contains(':') || user.chars().any(char::is_control) => {
            Err("a user's name has no colon and no control character".to_owned())
        }
        (None, Some(user), Some(password)) => {
            Ok(Some(format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes()))))
        }
    }
}

/// The first line of a file.
fn password_in(file: &Path, around: &dyn Surroundings) -> std::result::Result<String, String> {
    let text =
        around.file(file).ok_or_else(|| format!("the file with the password cannot be read: {}", file.display()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("the file with the password has none in its first line: {}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Default)]
    struct Given(BTreeMap<&'static str, &'static str>);

    impl Surroundings for Given {
        fn variable(&self, name: &str) -> Option<String> {
            self.0.get(name).map(|value| (*value).to_owned())
        }

        fn file(&self, path: &Path) -> Option<String> {
            self.variable(path.to_str()?)
        }
    }

    fn resolve(url: &str, variables: &[(&'static str, &'static str)], flags: (&str, &str)) -> Result<Option<String>> {
        let (scheme, rest) = url.split_once("://").unwrap();
        let collection = Collection::parse(scheme == "davs", rest).unwrap();
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let options = ObjectsOptions {
            webdav_user: given(flags.0),
            webdav_password_file: given(flags.1).map(Into::into),
            ..Default::default()
        };
        let settings = WebDavSettings::resolve(&collection, &options, &Given(variables.iter().copied().collect()))?;
        Ok(settings.authorization.map(|value| {
            assert!(value.is_sensitive());
            value.to_str().unwrap().to_owned()
        }))
    }

    #[test]
    fn who_asks_is_told_by_flags_or_variables() {
        let basic = |text: &str| Some(format!("Basic {}", BASE64.encode(text.as_bytes())));
        let (user, password) = ((USER, "u"), (PASSWORD, "p"));
        let (token, file) = ((TOKEN, "t"), ("/file", "of file\nmore"));
        assert_eq!(resolve("davs://h/x", &[], ("", "")).unwrap(), None);
        assert_eq!(resolve("davs://h/x", &[user, password], ("", "")).unwrap(), basic("u:p"));
        assert_eq!(resolve("davs://h/x", &[token], ("", "")).unwrap(), Some("Bearer t".to_owned()));
        assert_eq!(resolve("davs://h/x", &[token, file], ("me", "/file")).unwrap(), basic("me:of file"));
        assert_eq!(resolve("davs://h/x", &[user, file], ("", "/file")).unwrap(), basic("u:of file"));
        assert_eq!(resolve("davs://h/x", &[user, password], ("me", "")).unwrap(), basic("me:p"));
        let secret = (PASSWORD, "secret");
        for (variables, flags, why) in [
            (&[user][..], ("", ""), "no password"),
            (&[secret], ("", ""), "no user"),
            (&[user, secret, token], ("", ""), "both set"),
            (&[secret], ("a:b", ""), "colon"),
            (&[(PASSWORD, "secret\n"), (TOKEN, "secret\n")], ("", ""), "header"),
            (&[("/file", "\nsecret")], ("u", "/file"), "first line"),
            (&[], ("u", "/none"), "cannot be read"),
        ] {
            let e = resolve("davs://h/x", variables, flags).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput);
            assert!(e.to_string().contains(why) && !e.to_string().contains("secret"), "{e}");
        }
    }

    #[test]
    fn credentials_go_over_the_network_encrypted_only() {
        let who = [(USER, "u"), (PASSWORD, "secret")];
        for url in ["dav://127.0.0.1:80/x", "dav://[::1]:8080/x", "dav://localhost/x", "davs://example.org/x"] {
            assert!(resolve(url, &who, ("", "")).unwrap().is_some(), "{url}");
        }
        for url in
            ["dav://example.org/x", "dav://192.0.2.1:8080/x", "dav://127.0.0.1.example.org/x", "dav://169.254.169.254/"]
        {
            let e = resolve(url, &who, ("", "")).unwrap_err();
            assert!(e.to_string().contains("in the clear") && !e.to_string().contains("secret"), "{e}");
            assert_eq!(resolve(url, &[], ("", "")).unwrap(), None, "who has none may ask");
        }
    }
}
