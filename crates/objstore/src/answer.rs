// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a store says about a request that it has not done, in a line for an operator.

/// Longest text that is shown of an answer that is not XML.
const SHOWN: usize = 200;

/// The text of the first element of this name.
fn element<'x>(xml: &'x str, name: &str) -> Option<&'x str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text.trim()).filter(|text| !text.is_empty())
}

fn plain(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    let text = text.replace("&apos;", "'").replace("&amp;", "&");
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(SHOWN).collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `CODE: MESSAGE (endpoint, region)` of an error of S3; else the beginning of what came.
pub(crate) fn words(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let Some(code) = element(&text, "Code") else { return plain(&text) };
    let mut words = plain(code);
    if let Some(message) = element(&text, "Message") {
        words = format!("{words}: {}", plain(message));
    }
    for (name, label) in [("Endpoint", "endpoint"), ("Region", "region")] {
        if let Some(place) = element(&text, name) {
            words = format!("{words} ({label} {})", plain(place));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_s3_is_its_code_its_message_and_the_place() {
        for (body, shown) in [
            ("<Error><Code>NoSuchBucket</Code></Error>", "NoSuchBucket"),
            (
                "<?xml version=\"1.0\"?>\n<Error><Code>PermanentRedirect</Code><Message>use &lt;it\
                 &gt;\n now</Message><Endpoint>s3.eu</Endpoint></Error>",
                "PermanentRedirect: use <it> now (endpoint s3.eu)",
            ),
            ("bad\x1b[31m gateway", "bad [31m gateway"),
            ("<Error><Code></Code></Error>", "<Error><Code></Code></Error>"),
            ("", ""),
        ] {
            assert_eq!(words(body.as_bytes()), shown);
        }
    }
}
