// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text from outside that becomes a part of a request: is it a URL, or the value of a header?
//!
//! The library and those below it panic where it is not, and a panic ends the daemon with all its
//! devices. So every text is checked before they see it (OC-C5), more strictly than they need.
use std::net::Ipv6Addr;

/// Longest text that is taken. Chosen: tokens have some thousand bytes, and three times as many
/// when they are encoded in a URL, which may have 65,534.
pub(crate) const TEXT_BYTES_MAX: usize = 16 << 10;
/// Longest URL that is taken, and longest name of an object. Chosen: that of a key in S3.
pub(crate) const URL_BYTES_MAX: usize = 1024;

/// Why a text is refused, for a message after its name.
pub(crate) type Reason = &'static str;

/// A key, a token, a name: what may be the value of a header. Blanks only within.
pub(crate) fn check_word(text: &str) -> Result<(), Reason> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.contains(['\n', '\r']) {
        return Err("has a line break");
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err("is longer than 16 KiB");
    }
    if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err("has characters that are not ASCII text");
    }
    if text.starts_with(' ') || text.ends_with(' ') {
        return Err("begins or ends with a blank");
    }
    Ok(())
}

/// A part of a host's name, or of a path.
pub(crate) fn check_label(text: &str) -> Result<(), Reason> {
    check_word(text)?;
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Err("has characters other than letters, digits and -_.");
    }
    if text.len() > 255 { Err("is longer than 255 bytes") } else { Ok(()) }
}

/// The path of a URL, with a query or without.
pub(crate) fn check_path(text: &str) -> Result<(), Reason> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/?&=%+,:".contains(&byte);
    if text.len() > URL_BYTES_MAX {
        return Err("is longer than 1024 bytes");
    }
    if !text.starts_with('/') || !text.bytes().all(is_plain) {
        return Err("is not the path of a URL");
    }
    Ok(())
}

/// The host of a URL that [`check_url`] has accepted.
pub(crate) fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or_default()
}

/// `http://HOST[:PORT][/PATH]`, or `https`.
pub(crate) fn check_url(text: &str) -> Result<(), Reason> {
    check_word(text)?;
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("has no scheme: https://HOST[:PORT]");
    };
    if scheme != "http" && scheme != "https" {
        return Err("is neither http:// nor https://");
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (address, port) = v6.split_once(']').ok_or("has no valid host")?;
            address.parse::<Ipv6Addr>().map_err(|_| "has no valid host")?;
            ("v6", port)
        }
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    check_label(host).map_err(|_| "has no valid host")?;
    if !port.is_empty() {
        let number = port.strip_prefix(':').and_then(|digits| digits.parse::<u16>().ok());
        if port.starts_with(":+") || number.is_none_or(|number| number == 0) {
            return Err("has no valid port");
        }
    }
    if path.starts_with('/') {
        check_path(path)?;
    } else if !path.is_empty() {
        return Err("has a query and no path");
    }
    // Names of hosts have rules beyond these characters.
    if reqwest::Url::parse(text).is_err() {
        return Err("has no valid host");
    }
    if text.len() > URL_BYTES_MAX { Err("is longer than 1024 bytes") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_scheme_a_host_and_a_port_that_is_one() {
        for url in [
            "http://127.0.0.1:9000",
            "https://s3.example",
            "https://a_b.example:65535/path/x",
            "http://[::1]:9000/",
            "http://h/credentials?id=1",
        ] {
            assert_eq!(check_url(url), Ok(()), "{url}");
        }
        for url in [
            "",
            " ",
            "storage",
            "storage:9000",
            "127.0.0.1:9000",
            "://x",
            "http://",
            "https://",
            "http:///x",
            "http://[::1",
            "http://[x]",
            "http://a b",
            "http://a:",
            "http://a:0",
            "http://a:+1",
            "http://a:99999",
            "http://user@host",
            "http://h?x=y",
            "http://h/a#b",
            "http://h\n",
            "http://h ",
            "\"http://h\"",
            "http://1.2.3.4.5",
            "http://xn--zzzzzz.example",
            "ftp://h",
            "http://\u{fc}.example",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn words_are_one_line_of_ascii() {
        assert_eq!(check_word("Basic a/b+c=="), Ok(()));
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        for word in ["", "a\n", "a\r\n", "\u{e4}", "a\tb", " a", "a ", &long] {
            assert!(check_word(word).is_err(), "{word:?}");
        }
    }
}
