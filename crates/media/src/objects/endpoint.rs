//! Where a bucket of AWS is: the domain of its partition, and the endpoints that were asked for.

use adit_core::{ErrorKind, FsError, Result};

use super::options::is_region;

/// Domains of the partitions of AWS, by what the names of their regions begin with; the first that fits.
const DOMAINS: [(&str, &str); 7] = [
    ("cn-", CHINA),
    ("eusc-", "amazonaws.eu"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-isof-", "csp.hci.ic.gov"),
    ("us-iso-", "c2s.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
    ("", WORLD),
];
const CHINA: &str = "amazonaws.com.cn";
const WORLD: &str = "amazonaws.com";

/// The domain of AWS that has a region.
pub fn domain(region: &str) -> &'static str {
    DOMAINS.iter().find(|(begin, _)| region.starts_with(begin)).map_or(WORLD, |(_, domain)| domain)
}

/// Whether the name of a bucket can be that of a host, of which no certificate has to know more than one part: others are in the path.
pub fn is_host(bucket: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    bucket.len() <= 63 && bucket.bytes().all(is_plain) && !bucket.starts_with('-') && !bucket.ends_with('-')
}

/// The endpoints of a service of AWS that were asked for, instead of the usual one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Variant {
    /// With validated cryptography (`AWS_USE_FIPS_ENDPOINT`).
    pub fips: bool,
    /// Over IPv6, too (`AWS_USE_DUALSTACK_ENDPOINT`).
    pub dual_stack: bool,
    /// By the nearest place of AWS (`use_accelerate_endpoint`).
    pub accelerate: bool,
}

impl Variant {
    /// Refuses what an endpoint of one's own, or a kind of bucket, cannot be.
    pub fn expect_none(self, why: &str) -> Result<()> {
        if self == Variant::default() { Ok(()) } else { Err(self.refused(why)) }
    }

    /// The endpoint of S3 in `region` for `bucket`, as a URL; its bucket is not in it.
    ///
    /// # Errors
    /// `InvalidInput` for endpoints that AWS does not have: a request would go elsewhere than was asked for.
    pub fn endpoint(self, region: &str, bucket: &str) -> Result<String> {
        let domain = domain(region);
        let dual_stack = if self.dual_stack { ".dualstack" } else { "" };
        let fips = if self.fips { "-fips" } else { "" };
        let host = match self.accelerate {
            true if self.fips => return Err(self.refused("there is no accelerated endpoint with FIPS")),
            true if domain != WORLD || region.starts_with("us-gov-") => {
                return Err(self.refused(&format!("nothing is accelerated in {region}")));
            }
            true if !is_host(bucket) => {
                return Err(
                    self.refused("only a bucket whose name can be that of a host, without dots, is accelerated")
                );
            }
            true => format!("s3-accelerate{dual_stack}.{domain}"),
            false if self.fips && domain == CHINA => {
                return Err(self.refused(&format!("there is no endpoint with FIPS in {region}")));
            }
            false => format!("s3{fips}{dual_stack}.{region}.{domain}"),
        };
        Ok(format!("https://{host}"))
    }

    fn refused(self, why: &str) -> FsError {
        let asked = [
            (self.fips, "AWS_USE_FIPS_ENDPOINT"),
            (self.dual_stack, "AWS_USE_DUALSTACK_ENDPOINT"),
            (self.accelerate, "use_accelerate_endpoint"),
        ];
        let asked: Vec<&str> = asked.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, name)| name).collect();
        let why = format!("{why}; unset it, or the same in the profile");
        FsError::new(ErrorKind::InvalidInput).on("heed", asked.join(" and ")).because(why)
    }
}

/// A region as it was written, and whether that asks for FIPS, as `fips-us-gov-west-1` does. `aws-global` is none: what is asked for there goes to the
/// first region and is signed for that.
///
/// # Errors
/// `InvalidInput` if it cannot be the name of one.
pub fn region(text: &str) -> Result<(String, bool)> {
    let plain = text.strip_prefix("fips-").or_else(|| text.strip_suffix("-fips"));
    let region = match plain.unwrap_or(text) {
        "aws-global" => "us-east-1",
        region => region,
    };
    if !is_region(region) {
        let why = "a region is a name like us-west-2";
        return Err(FsError::new(ErrorKind::InvalidInput).on("read region", text.escape_debug()).because(why));
    }
    Ok((region.to_owned(), plain.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_lie_in_their_domains() {
        let domains = ["us-east-1", "us-gov-west-1", "cn-north-1", "eusc-de-east-1", "us-isob-east-1"].map(domain);
        assert_eq!(domains, [WORLD, WORLD, CHINA, "amazonaws.eu", "sc2s.sgov.gov"]);
    }

    #[test]
    fn endpoints_are_those_that_were_asked_for_or_none() {
        let none = Variant::default();
        let (fips, dual_stack) = (Variant { fips: true, ..none }, Variant { dual_stack: true, ..none });
        let accelerate = Variant { accelerate: true, ..none };
        for (variant, region, host) in [
            (none, "us-east-1", "s3.us-east-1.amazonaws.com"),
            (none, "cn-north-1", "s3.cn-north-1.amazonaws.com.cn"),
            (none, "eusc-de-east-1", "s3.eusc-de-east-1.amazonaws.eu"),
            (fips, "us-gov-west-1", "s3-fips.us-gov-west-1.amazonaws.com"),
            (dual_stack, "cn-north-1", "s3.dualstack.cn-north-1.amazonaws.com.cn"),
            (Variant { fips: true, ..dual_stack }, "us-east-1", "s3-fips.dualstack.us-east-1.amazonaws.com"),
            (accelerate, "us-west-2", "s3-accelerate.amazonaws.com"),
            (Variant { accelerate: true, ..dual_stack }, "us-west-2", "s3-accelerate.dualstack.amazonaws.com"),
        ] {
            assert_eq!(variant.endpoint(region, "bucket").unwrap(), format!("https://{host}"));
        }
        for (variant, region, bucket, why) in [
            (fips, "cn-north-1", "bucket", "AWS_USE_FIPS_ENDPOINT"),
            (accelerate, "cn-north-1", "bucket", "nothing is accelerated"),
            (accelerate, "us-gov-west-1", "bucket", "nothing is accelerated"),
            (accelerate, "us-east-1", "my.bucket", "without dots"),
            (Variant { fips: true, ..accelerate }, "us-east-1", "bucket", "use_accelerate_endpoint"),
        ] {
            let e = variant.endpoint(region, bucket).unwrap_err();
            assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains(why), "{e}");
        }
        assert!(none.expect_none("x").is_ok() && fips.expect_none("x").is_err());
    }

    #[test]
    fn buckets_that_can_be_hosts_are() {
        for (bucket, expected) in [
            ("bucket", true),
            ("b-1", true),
            ("MyBucket", false),
            ("my_bucket", false),
            ("my.bucket", false),
            ("-b", false),
        ] {
            assert_eq!(is_host(bucket), expected, "{bucket}");
        }
        assert!(!is_host(&"b".repeat(64)));
    }

    #[test]
    fn regions_may_ask_for_fips() {
        assert_eq!(region("us-east-1").unwrap(), ("us-east-1".to_owned(), false));
        assert_eq!(region("fips-us-gov-west-1").unwrap(), ("us-gov-west-1".to_owned(), true));
        assert_eq!(region("us-gov-west-1-fips").unwrap(), ("us-gov-west-1".to_owned(), true));
        assert_eq!(region("aws-global").unwrap(), ("us-east-1".to_owned(), false));
        assert!(region("us east").is_err());
    }
}
