// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page: one file without outside parts, and the headers that let it do no more than it needs.
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

use crate::http::response;

const PAGE: &str = include_str!("page.html");

/// The hashes are those of the page's script and style: a browser names the right ones in its
/// console, and runs neither before they are here.
const POLICY: &str = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; \
     script-src 'sha256-tVdqiBigWSSpUJJ5xWgeA+bY48owK//+R/FTbi00+WQ='; \
     style-src 'sha256-bJvnq9b/EVf03JE74Jq/DHypIaWGfDZs5eWksb0GIDw='";

/// The answer to `GET /`.
pub(super) fn page() -> Response<Full<Bytes>> {
    let mut page = response(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-store"),
    ] {
        page.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_has_no_outside_parts() {
        assert!(PAGE.len() <= 100_000, "{} bytes", PAGE.len());
        for outside in ["src=", "@import", "url(", "https:", "innerHTML", "document.write"] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
        assert!(PAGE.contains("name=\"viewport\""));
    }
}
