//! Services that are near: on this machine, or on what it runs on.
//!
//! What is sent there in the clear stays there, so it never goes through a proxy, and it may have a secret in it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;

/// Addresses of the services that hand out credentials to machines and containers: IMDS, ECS, EKS.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
];

/// Where the host of a URL is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On this machine, which says at once that nobody is there. Who is there may have to ask a person.
    Here,
    /// A service of what the machine runs on. It answers at once, or is not there, and nothing tells that.
    Metadata,
    /// On the network.
    Away,
}

impl Place {
    pub fn of(uri: &Uri) -> Place {
        let host = uri.host().unwrap_or_default();
        match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(address) if address.is_loopback() => Place::Here,
            Ok(address) if METADATA.contains(&address) => Place::Metadata,
            Err(_) if host.eq_ignore_ascii_case("localhost") => Place::Here,
            _ => Place::Away,
        }
    }
}

/// Whether what is sent to `url` is encrypted, or stays near.
pub fn may_have_secrets(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    match uri.scheme_str() {
        Some("https") => uri.host().is_some_and(|host| !host.is_empty()),
        Some("http") => Place::of(&uri) != Place::Away,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_places() {
        for (url, place) in [
            ("http://127.0.0.1:1/x", Place::Here),
            ("http://127.9.9.9", Place::Here),
            ("http://[::1]:1/x", Place::Here),
            ("http://LocalHost:1", Place::Here),
            ("http://169.254.169.254/latest", Place::Metadata),
            ("http://169.254.170.2/x", Place::Metadata),
            ("http://169.254.170.23/x", Place::Metadata),
            ("http://[fd00:ec2::254]/x", Place::Metadata),
            ("http://[FD00:EC2:0::23]/x", Place::Metadata),
            ("http://169.254.1.1/x", Place::Away),
            ("http://127.0.0.1.example.com/x", Place::Away),
            ("http://localhost.example.com/x", Place::Away),
            ("/x", Place::Away),
        ] {
            assert_eq!(Place::of(&url.parse().unwrap()), place, "{url}");
        }
    }
}
