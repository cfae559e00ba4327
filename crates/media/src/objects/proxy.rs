//! The proxy that the variables name, before anything is sent: the library passes over one that it cannot read, and goes without.

use adit_core::{ErrorKind, FsError, Result};
use http::Uri;

use super::options::{Surroundings, is_place};

/// Refuses a request to `uri` that is for a proxy whose variable makes no sense.
///
/// # Errors
/// `InvalidInput`, with the name of the variable: there may be a password in its value.
pub fn expect_sound(uri: &Uri, around: &dyn Surroundings) -> Result<()> {
    let of_scheme =
        if uri.scheme_str() == Some("https") { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    let set = |name: &'static str| Some((name, around.set_variable(name)?));
    let Some((name, proxy)) = of_scheme.into_iter().chain(["ALL_PROXY", "all_proxy"]).find_map(set) else {
        return Ok(());
    };
    let excluded = around.set_variable("NO_PROXY").or_else(|| around.set_variable("no_proxy")).unwrap_or_default();
    if is_proxy(&proxy) || excluded.split(',').any(|entry| is_of(entry.trim(), uri.host().unwrap_or_default())) {
        return Ok(());
    }
    let why = "it is no proxy: write it as http://HOST:PORT, or name the host in NO_PROXY";
    Err(FsError::new(ErrorKind::InvalidInput).on("read", name).because(why))
}

fn is_proxy(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let is_known =
        matches!(uri.scheme_str(), None | Some("http" | "https" | "socks4" | "socks4a" | "socks5" | "socks5h"));
    is_known && uri.authority().is_some_and(is_place)
}

/// Whether an entry of `NO_PROXY` is of a host: `*`, its name, or a domain that it is in.
fn is_of(entry: &str, host: &str) -> bool {
    let domain = entry.trim_start_matches('.').to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    let is_below = || host.strip_suffix(&domain).is_some_and(|rest| rest.ends_with('.'));
    entry == "*" || !domain.is_empty() && (host == domain || is_below())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    #[derive(Debug)]
    struct Given(BTreeMap<&'static str, &'static str>);

    impl Surroundings for Given {
        fn variable(&self, name: &str) -> Option<String> {
            self.0.get(name).map(|value| (*value).to_owned())
        }

        fn file(&self, _: &Path) -> Option<String> {
            None
        }
    }

    #[test]
    fn a_proxy_that_is_none_is_not_passed_over() {
        let check = |variables: &[(&'static str, &'static str)]| {
            let uri = "https://bucket.s3.us-east-1.amazonaws.com/key".parse().unwrap();
            expect_sound(&uri, &Given(variables.iter().copied().collect()))
        };
        for proxy in ["http://proxy:3128", "proxy:3128", "https://u:p@proxy", "socks5h://proxy:1080", "http://[::1]:1/"]
        {
            check(&[("HTTPS_PROXY", proxy)]).unwrap_or_else(|e| panic!("{proxy}: {e}"));
        }
        for proxy in ["http//secret", "http://secret host", "ftp://secret", "http://u:secret@proxy:99999", "/secret"] {
            for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
                let e = check(&[(name, proxy)]).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::InvalidInput);
                assert!(e.to_string().contains(name) && !e.to_string().contains("secret"), "{e}");
            }
            for excluded in ["*", "a, .amazonaws.com", "AMAZONAWS.com", "bucket.s3.us-east-1.amazonaws.com"] {
                assert!(check(&[("HTTPS_PROXY", proxy), ("NO_PROXY", excluded)]).is_ok(), "{excluded}");
            }
            assert!(check(&[("HTTPS_PROXY", proxy), ("NO_PROXY", "aws.com,s3")]).is_err());
        }
        assert!(check(&[("HTTP_PROXY", "ftp://x"), ("HTTPS_PROXY", "")]).is_ok());
    }
}
