// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What requests do to devices: nothing, a change, or a wait for writeback (`changes`).
use control::{api, attr};

use crate::routes::{DeviceVerb, Route, parse};

impl Route {
    /// Whether it may change devices or clients.
    pub(crate) fn changes_something(&self) -> bool {
        match self {
            Route::Create | Route::Reload | Route::Disconnect(_) => true,
            Route::Devices
            | Route::Targets
            | Route::Version
            | Route::Metrics
            | Route::Config
            | Route::Upgrade
            | Route::Stop(_)
            | Route::Clients => false,
            Route::Device(_, verb) => match verb {
                DeviceVerb::Remove(_)
                | DeviceVerb::Load
                | DeviceVerb::Clear
                | DeviceVerb::Suspend
                | DeviceVerb::Resume
                | DeviceVerb::Rename
                | DeviceVerb::Message
                | DeviceVerb::Flush
                | DeviceVerb::Uncache
                | DeviceVerb::ReplaceCache
                | DeviceVerb::Resize
                | DeviceVerb::SetAttribute(_) => true,
                DeviceVerb::Info
                | DeviceVerb::Status
                | DeviceVerb::Table(_)
                | DeviceVerb::Deps
                | DeviceVerb::Wait(_)
                | DeviceVerb::Attributes
                | DeviceVerb::GetAttribute(_) => false,
            },
        }
    }
}

/// Whether a request only waits for writeback. It may be sent again: what it asks for is then
/// there, or comes.
pub(crate) fn only_waits(route: &Route, body: &[u8]) -> bool {
    let Route::Device(_, verb) = route else { return false };
    let is_drain = |attr: &str| attr == attr::DRAIN;
    let is_flush = |words: &[String]| matches!(words, [one] if one.eq_ignore_ascii_case("flush"));
    // What is no body of this request has its error later.
    *verb == DeviceVerb::Flush
        || *verb == DeviceVerb::Message
            && parse::<api::Message>(body).is_ok_and(|message| is_flush(&message.words))
        || matches!(verb, DeviceVerb::SetAttribute(attr) if is_drain(attr))
            && parse::<api::Attribute>(body).is_ok_and(|new| new.value.to_string() != "stop")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_and_a_drain_only_wait() {
        let of = |verb| Route::Device("wc".into(), verb);
        let attribute = |name: &str| DeviceVerb::SetAttribute(name.into());
        for (verb, body, waits) in [
            (DeviceVerb::Flush, "", true),
            (DeviceVerb::Message, r#"{"words": ["FLUSH"]}"#, true),
            (DeviceVerb::Message, r#"{"words": ["cleaner"]}"#, false),
            (DeviceVerb::Message, r#"{"words": ["flush", "now"]}"#, false),
            (attribute("drain"), r#"{"value": "within=5"}"#, true),
            (attribute("drain"), r#"{"value": "stop"}"#, false),
            (attribute("high_watermark"), r#"{"value": 5}"#, false),
            (DeviceVerb::Uncache, "", false),
        ] {
            assert_eq!(only_waits(&of(verb.clone()), body.as_bytes()), waits, "{verb:?} {body}");
        }
        assert!(!only_waits(&Route::Create, b""));
    }
}
