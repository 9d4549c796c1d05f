// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bucket of S3 as the library has it, with the guard between it and everything outside.
use std::sync::Arc;
use std::time::Duration;

use block::Error;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey as Key};
use object_store::client::HttpConnector;
use object_store::{BackoffConfig, ClientConfigKey, PutMode, RetryConfig};

use crate::guard::{CheckedKeys, GuardedConnector, NO_TOKEN};
use crate::outcome;
use crate::request::REQUEST_TIME;
use crate::variables::{Settings, Variables};

/// How long a connection may take.
const CONNECT_TIME: &str = "10 seconds";

/// A client of a bucket, as these variables have it (OC-C5): it sends nothing yet. Public for a
/// fuzz target only, which has another `http`.
///
/// # Errors
/// `Invalid` names the variable that is not right.
pub fn bucket(
    name: &str,
    variables: &Variables,
    http: Arc<dyn HttpConnector>,
) -> Result<AmazonS3, Error> {
    let settings = Arc::new(Settings::read(name, variables)?);
    let mut builder = AmazonS3Builder::new();
    for (key, value) in settings.taken() {
        // The guard reads them, each time.
        let is_token =
            key == Key::ContainerAuthorizationTokenFile || key == Key::WebIdentityTokenFile;
        builder = builder.with_config(key, if is_token { NO_TOKEN } else { value });
    }
    let seconds = |time: Duration| format!("{} seconds", time.as_secs());
    let client = |key| Key::Client(key);
    let builder = builder
        .with_bucket_name(name)
        .with_config(client(ClientConfigKey::Timeout), seconds(REQUEST_TIME))
        .with_config(client(ClientConfigKey::ConnectTimeout), CONNECT_TIME)
        // One DELETE for each object: not every store has the other way.
        .with_config(Key::DisableBulkDelete, "true")
        .with_retry(RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 0,
            retry_timeout: REQUEST_TIME,
        })
        .with_http_connector(GuardedConnector { inner: http, settings });
    let built =
        |builder: AmazonS3Builder| builder.build().map_err(|e| Error::invalid(outcome::text(&e)));
    let keys = built(builder.clone())?.credentials().clone();
    built(builder.with_credentials(Arc::new(CheckedKeys(keys))))
}

/// Whether creates are conditional.
pub(crate) fn mode(variables: &Variables) -> PutMode {
    let is_disabled = |(name, value): &(String, String)| {
        name.eq_ignore_ascii_case("AWS_CONDITIONAL_PUT") && value == "disabled"
    };
    if variables.iter().any(is_disabled) { PutMode::Overwrite } else { PutMode::Create }
}
