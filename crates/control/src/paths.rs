// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paths of the REST API and the percent coding of names in them.

/// All mapped devices.
pub const DEVICES: &str = "/v1/devices";
/// The target types that tables may name.
pub const TARGETS: &str = "/v1/targets";
/// Version and process of the daemon.
pub const VERSION: &str = "/v1/version";
/// The clients of the doors.
pub const CLIENTS: &str = "/v1/clients";
/// Read the configuration file again.
pub const RELOAD: &str = "/v1/reload";
/// Hand over to another process of the program.
pub const UPGRADE: &str = "/v1/upgrade";
/// A configuration file with the devices as they are now.
pub const CONFIG: &str = "/v1/config";
/// End the daemon.
pub const STOP: &str = "/v1/stop";
/// The same, answered at the end.
pub const STOP_AND_WAIT: &str = "/v1/stop?wait=true";
/// Counters, in Prometheus' text format.
pub const METRICS: &str = "/metrics";

/// Path of a device.
pub fn device(name: &str) -> String {
    format!("{DEVICES}/{}", encode(name))
}

/// Path of something a device has or does: `status`, `load`, `attributes/mm_stat`, ...
pub fn of_device(name: &str, what: &str) -> String {
    format!("{}/{what}", device(name))
}

/// Path of one attribute. Attribute names may hold slashes (`queue/wbt_lat_usec`); they stay.
pub fn attribute(name: &str, attr: &str) -> String {
    let attr: Vec<String> = attr.split('/').map(encode).collect();
    of_device(name, &format!("attributes/{}", attr.join("/")))
}

/// Path of a client.
pub fn client(id: &str) -> String {
    format!("{CLIENTS}/{}", encode(id))
}

/// Path of all clients of a device.
pub fn clients_of(device: &str) -> String {
    format!("{CLIENTS}?device={}", encode(device))
}

/// Codes everything but RFC 3986's unreserved characters.
pub fn encode(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    for b in word.bytes() {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

/// Undoes [`encode`]; nothing when a code is broken or the result is not UTF-8.
pub fn decode(word: &str) -> Option<String> {
    let mut out = Vec::with_capacity(word.len());
    let mut bytes = word.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let hex = [bytes.next()?, bytes.next()?];
            if !hex.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            out.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
        } else {
            out.push(b);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_odd_characters_round_trip() {
        for name in ["wc", "a b", "x#1+y=z@:", "ö", "100%", "..", ""] {
            assert_eq!(decode(&encode(name)).as_deref(), Some(name));
        }
    }

    #[test]
    fn broken_codes_are_refused() {
        for bad in ["%", "%4", "%zz", "%+1", "%ff"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn attribute_keeps_its_slashes() {
        assert_eq!(attribute("a/b", "queue/x y"), "/v1/devices/a%2Fb/attributes/queue/x%20y");
    }
}
