// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Variables of the environment that say how a bucket is reached: which are taken, and what each
//! may hold.
//!
//! ```text
//!   AWS_…  ─ known to the library? ─ taken? ─ checked by its kind ─ together ─▶ Settings
//!               no: nobody's           no: refused, unless it changes nothing
//! ```
//!
//! A variable that is refused is named. Its value is not repeated: it may be a secret.
use block::Error;
use object_store::ClientConfigKey as Http;
use object_store::aws::AmazonS3ConfigKey as Key;

use crate::outside_text::{Reason, check_label, check_path, check_url, check_word, host_of};
use crate::token_file::TokenFile;

/// Variables of an environment.
pub type Variables = Vec<(String, String)>;

/// Those of this process that concern S3: `AWS_ACCESS_KEY_ID` and others.
pub fn variables() -> Variables {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("AWS_")).collect()
}

/// What a variable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Word,
    Region,
    Url,
    Path,
    Flag,
    File,
    /// Changes nothing that a volume does.
    Idle,
    /// Would change what a request means.
    Refused,
}

#[expect(clippy::wildcard_enum_match_arm, reason = "what the library learns later is refused")]
fn kind(key: &Key) -> Kind {
    match key {
        Key::AccessKeyId
        | Key::SecretAccessKey
        | Key::Token
        | Key::RoleArn
        | Key::RoleSessionName
        | Key::ConditionalPut
        | Key::RequestPayer
        | Key::Encryption(_) => Kind::Word,
        Key::Region | Key::DefaultRegion => Kind::Region,
        Key::Endpoint
        | Key::S3Endpoint
        | Key::StsEndpoint
        | Key::MetadataEndpoint
        | Key::ContainerCredentialsFullUri => Kind::Url,
        Key::ContainerCredentialsRelativeUri => Kind::Path,
        Key::ContainerAuthorizationTokenFile | Key::WebIdentityTokenFile => Kind::File,
        Key::VirtualHostedStyleRequest
        | Key::ImdsV1Fallback
        | Key::Client(Http::AllowHttp | Http::AllowInvalidCertificates) => Kind::Flag,
        // The bucket is in the URL of the volume, and the client has its own times.
        Key::Bucket
        | Key::CopyIfNotExists
        | Key::DisableTagging
        | Key::DisableBulkDelete
        | Key::Client(Http::ConnectTimeout | Http::Timeout) => Kind::Idle,
        // `AWS_UNSIGNED_PAYLOAD` and its like; and whatever the library learns later.
        _ => Kind::Refused,
    }
}

/// As the library reads it.
fn flag(value: &str) -> Result<bool, Reason> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Ok(true),
        "0" | "false" | "off" | "no" | "n" => Ok(false),
        _ => Err("is neither true nor false"),
    }
}

/// The variables that are taken, checked: each one, and what they say together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    taken: Vec<(Key, String, String)>,
    /// The file with the token for the agent that gives out keys, if that is asked.
    pub(crate) agent_token: Option<TokenFile>,
    /// The file with the token for a role, if that is asked for.
    pub(crate) role_token: Option<TokenFile>,
}

fn refused(name: &str, why: &str) -> Error {
    Error::invalid(format!("the variable {name} {why}"))
}

impl Settings {
    /// Checks the variables for a bucket (OC-C5). It reads the files of tokens.
    ///
    /// # Errors
    /// `Invalid` names the variable.
    pub(crate) fn read(bucket: &str, variables: &Variables) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        for (name, value) in variables {
            let Ok(key) = name.to_ascii_lowercase().parse() else { continue };
            let checked = match kind(&key) {
                Kind::Idle => continue,
                Kind::Refused if flag(value) == Ok(false) => continue,
                Kind::Refused => {
                    let why = "is not taken for volumes: unset it, or set it to false; the manual \
                               of objvol lists those that are taken";
                    return Err(refused(name, why));
                }
                Kind::Word | Kind::File => check_word(value),
                Kind::Region => check_label(value),
                Kind::Url => check_url(value),
                Kind::Path => check_path(value),
                Kind::Flag => flag(value).map(drop),
            };
            checked.map_err(|why| refused(name, why))?;
            settings.taken.push((key, name.clone(), value.clone()));
        }
        check_label(bucket).map_err(|why| Error::invalid(format!("the bucket's name {why}")))?;
        settings.check_endpoint(bucket)?;
        settings.check_credentials()?;
        Ok(settings)
    }

    /// Each with its value.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (Key, &str)> {
        self.taken.iter().map(|(key, _, value)| (*key, value.as_str()))
    }

    /// Name and value: the last one counts, as for the library.
    fn find(&self, wanted: Key) -> Option<(&str, &str)> {
        let is_it = |(key, _, _): &&(Key, String, String)| *key == wanted;
        self.taken.iter().rev().find(is_it).map(|(_, name, value)| (name.as_str(), value.as_str()))
    }

    fn is_set(&self, wanted: Key) -> bool {
        self.find(wanted).is_some_and(|(_, value)| flag(value) == Ok(true))
    }

    fn region(&self) -> &str {
        let region = self.find(Key::Region).or_else(|| self.find(Key::DefaultRegion));
        region.map_or("us-east-1", |(_, region)| region)
    }

    fn check_endpoint(&self, bucket: &str) -> Result<(), Error> {
        let endpoint = self.find(Key::S3Endpoint).or_else(|| self.find(Key::Endpoint));
        let is_virtual = self.is_set(Key::VirtualHostedStyleRequest);
        let region = self.region();
        let base = match (endpoint, is_virtual) {
            (Some((name, url)), true) => {
                // The library takes it as it is: the first part of the prefix would be the bucket.
                if !host_of(url).starts_with(&format!("{bucket}.")) {
                    let why = format!(
                        "must have the bucket in its host, https://{bucket}.HOST, where \
                         AWS_VIRTUAL_HOSTED_STYLE_REQUEST is true"
                    );
                    return Err(refused(name, &why));
                }
                url.to_owned()
            }
            (Some((_, url)), false) => format!("{}/{bucket}", url.trim_end_matches('/')),
            (None, true) => format!("https://{bucket}.s3.{region}.amazonaws.com"),
            (None, false) => format!("https://s3.{region}.amazonaws.com/{bucket}"),
        };
        check_url(&base).map_err(|why| Error::invalid(format!("the bucket's URL {base} {why}")))?;
        // What is added to them would be a part of it.
        let with_query = |url: &(_, &str)| url.1.contains('?');
        let metadata = self.find(Key::MetadataEndpoint);
        if let Some((name, _)) = [endpoint, metadata].into_iter().flatten().find(with_query) {
            return Err(refused(name, "has a query"));
        }
        if let Some((name, url)) = endpoint {
            let allows_http = self.is_set(Key::Client(Http::AllowHttp));
            if url.starts_with("http://") && !allows_http {
                let why = "is http://, which encrypts neither data nor credentials: set \
                           AWS_ALLOW_HTTP=true, if that is meant";
                return Err(refused(name, why));
            }
        }
        Ok(())
    }

    /// The library takes the first of these that is there.
    fn check_credentials(&mut self) -> Result<(), Error> {
        let needs = |name: &str, other: &str| Err(refused(name, &format!("needs {other}")));
        match (self.find(Key::AccessKeyId), self.find(Key::SecretAccessKey)) {
            (Some(_), Some(_)) => return Ok(()),
            (Some((name, _)), None) => return needs(name, "AWS_SECRET_ACCESS_KEY"),
            (None, Some((name, _))) => return needs(name, "AWS_ACCESS_KEY_ID"),
            (None, None) => {}
        }
        match (self.find(Key::WebIdentityTokenFile), self.find(Key::RoleArn)) {
            (Some((name, file)), Some(_)) => {
                let default = format!("https://sts.{}.amazonaws.com", self.region());
                let sts = self.find(Key::StsEndpoint);
                let (sts_name, url) = sts.unwrap_or(("AWS_REGION", &default));
                check_url(url).map_err(|why| refused(sts_name, why))?;
                if !url.starts_with("https://") || url.contains('?') {
                    return Err(refused(sts_name, "is not https://HOST[:PORT]"));
                }
                self.role_token = Some(TokenFile::of(name, file)?);
                return Ok(());
            }
            (Some((name, _)), None) => return needs(name, "AWS_ROLE_ARN"),
            (None, _) => {}
        }
        if self.find(Key::ContainerCredentialsRelativeUri).is_some() {
            return Ok(());
        }
        let file = self.find(Key::ContainerAuthorizationTokenFile);
        match (self.find(Key::ContainerCredentialsFullUri), file) {
            (Some(_), Some((name, file))) => {
                self.agent_token = Some(TokenFile::of(name, file)?);
                Ok(())
            }
            (Some((name, _)), None) => needs(name, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bucket: &str, variables: &[(&str, &str)]) -> Result<Settings, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let all = variables.iter().map(owned).collect();
        Settings::read(bucket, &all).map_err(|e| e.to_string())
    }

    /// Each was taken, and ended the daemon while a request was built, or with that request.
    #[test]
    fn a_value_that_no_request_can_carry_is_refused_by_its_name() {
        for (name, value) in [
            ("AWS_ENDPOINT_URL", ""),
            ("AWS_ENDPOINT_URL", "storage:9000"),
            ("AWS_ENDPOINT_URL_S3", "http://"),
            ("AWS_ENDPOINT", "http://127.0.0.1:99999"),
            ("AWS_REGION", "eu-1\n"),
            ("AWS_DEFAULT_REGION", "eu 1"),
            ("AWS_ACCESS_KEY_ID", "key\n"),
            ("AWS_SECRET_ACCESS_KEY", "secret\n"),
            ("AWS_SESSION_TOKEN", "a\nb"),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "nonsense"),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "nonsense"),
            ("AWS_METADATA_ENDPOINT", "169.254.169.254"),
            ("AWS_ENDPOINT_URL_STS", "sts"),
            ("AWS_ROLE_ARN", "arn\n"),
            ("AWS_SSE_KMS_KEY_ID", "key\n"),
            ("AWS_ALLOW_HTTP", "perhaps"),
        ] {
            let e = read("bucket", &[(name, value)]).unwrap_err();
            assert!(e.starts_with(&format!("the variable {name} ")), "{name}: {e}");
        }
    }

    #[test]
    fn what_would_change_a_put_is_refused() {
        for name in [
            "AWS_UNSIGNED_PAYLOAD",
            "AWS_SKIP_SIGNATURE",
            "AWS_CHECKSUM_ALGORITHM",
            "AWS_S3_EXPRESS",
            "AWS_PROXY_URL",
        ] {
            let e = read("bucket", &[(name, "true")]).unwrap_err();
            assert!(e.starts_with(&format!("the variable {name} is not taken")), "{e}");
            assert!(read("bucket", &[(name, "false")]).is_ok(), "{name}");
        }
        // Nobody's: other programs have variables of this prefix.
        assert!(read("bucket", &[("AWS_PROFILE", "a\n"), ("AWS_PAGER", "")]).is_ok());
    }

    #[test]
    fn http_is_for_who_allows_it() {
        let url = ("AWS_ENDPOINT_URL", "http://h:1");
        let e = read("bucket", &[url]).unwrap_err();
        assert!(e.contains("AWS_ENDPOINT_URL") && e.contains("AWS_ALLOW_HTTP=true"), "{e}");
        assert!(read("bucket", &[url, ("AWS_ALLOW_HTTP", "true")]).is_ok());
    }

    /// Behind a query, the path of a request was not one: an answer went unchecked to the library.
    #[test]
    fn what_is_added_to_must_have_no_query() {
        for name in ["AWS_ENDPOINT_URL", "AWS_METADATA_ENDPOINT"] {
            let e = read("bucket", &[(name, "https://s3.example/a?b")]).unwrap_err();
            assert!(e.contains(name) && e.contains("has a query"), "{e}");
        }
    }

    /// The first part of the prefix became the bucket: two volumes of one URL.
    #[test]
    fn a_bucket_in_the_host_must_be_in_the_endpoint() {
        let is_virtual = ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true");
        for (url, is_taken) in [("https://s3.example", false), ("https://bucket.s3.example", true)]
        {
            let found = read("bucket", &[("AWS_ENDPOINT_URL", url), is_virtual]);
            assert_eq!(found.is_ok(), is_taken, "{url}: {found:?}");
        }
        assert!(read("bucket", &[is_virtual]).is_ok(), "in the endpoint of AWS");
    }

    #[test]
    fn half_of_a_pair_is_refused_with_the_other_half() {
        let uri = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
        for (name, value, other) in [
            ("AWS_ACCESS_KEY_ID", "a", "AWS_SECRET_ACCESS_KEY"),
            ("AWS_SECRET_ACCESS_KEY", "a", "AWS_ACCESS_KEY_ID"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/none", "AWS_ROLE_ARN"),
            (uri, "http://h/x", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        ] {
            let e = read("bucket", &[(name, value)]).unwrap_err();
            assert_eq!(e, format!("the variable {name} needs {other}"));
        }
    }
}
