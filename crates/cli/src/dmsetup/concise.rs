// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The concise form of tables: `NAME,UUID,MINOR,FLAGS,TABLE[,TABLE...][;...]`.
use crate::dmsetup::command_error::CommandError;

/// One device of a concise list. An empty field means nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) uuid: Option<String>,
    pub(crate) minor: Option<u32>,
    pub(crate) table: String,
}

/// Reads a list. All of it is read before any device is made.
pub(crate) fn parse(list: &str) -> Result<Vec<Spec>, CommandError> {
    let list = list.trim_end().trim_end_matches(';');
    if list.is_empty() {
        return Ok(Vec::new());
    }
    split(list).into_iter().map(|fields| spec(&fields)).collect()
}

/// Devices as lists of fields: a backslash makes the next character part of the field.
fn split(list: &str) -> Vec<Vec<String>> {
    let mut devices = vec![vec![String::new()]];
    let mut chars = list.chars();
    while let Some(c) = chars.next() {
        let fields = devices.last_mut().expect("there is a device from the start");
        match c {
            ';' => devices.push(vec![String::new()]),
            ',' => fields.push(String::new()),
            _ => {
                let c = if c == '\\' { chars.next().unwrap_or(c) } else { c };
                fields.last_mut().expect("a device has a field from the start").push(c);
            }
        }
    }
    devices
}

fn spec(fields: &[String]) -> Result<Spec, CommandError> {
    let [name, uuid, minor, flags, table @ ..] = fields else {
        return Err(too_few(fields));
    };
    let lines: Vec<&str> = table.iter().map(|l| l.trim()).collect();
    if name.trim().is_empty() || lines.iter().all(|l| l.is_empty()) {
        return Err(too_few(fields));
    }
    let name = name.trim().to_owned();
    let wrong = |why: String| Err(CommandError::failed(format!("{name}: {why}")));
    match flags.trim() {
        "" | "rw" => {}
        "ro" => {
            return Err(CommandError::not_supported(
                &format!("{name}: flag `ro`"),
                "`millpond set NAME ro 1` makes the device read-only for clients",
            ));
        }
        other => {
            let message =
                format!("Invalid flags parameter '{other}' must be 'ro' or 'rw' or empty.");
            return Err(CommandError::failed(message));
        }
    }
    let minor = match minor.trim() {
        "" => None,
        number => match number.parse() {
            Ok(minor) => Some(minor),
            Err(_) => return wrong(format!("minor number `{number}`: must be a decimal number")),
        },
    };
    let uuid = Some(uuid.trim().to_owned()).filter(|u| !u.is_empty());
    Ok(Spec { name, uuid, minor, table: lines.join("\n") })
}

fn too_few(fields: &[String]) -> CommandError {
    CommandError::failed(format!(
        "Five comma-separated fields are required for each device\nParsed {} fields: {}",
        fields.len(),
        fields.join(",")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_devices_is_read_field_by_field() {
        let one = |name: &str, uuid: Option<&str>, minor, table: &str| Spec {
            name: name.into(),
            uuid: uuid.map(str::to_owned),
            minor,
            table: table.into(),
        };
        assert_eq!(
            parse("a,,,,0 8 zero;b\\,c,u,5,rw,0 8 zero,8 8 linear mem:4M\\,x 0\n").unwrap(),
            [
                one("a", None, None, "0 8 zero"),
                one("b,c", Some("u"), Some(5), "0 8 zero\n8 8 linear mem:4M,x 0"),
            ]
        );
        assert_eq!(
            parse(" a , , 3 , rw , 0 8 zero ;").unwrap(),
            [one("a", None, Some(3), "0 8 zero")]
        );
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn what_is_no_device_is_refused() {
        for (list, part) in [
            ("bad", "Five comma-separated fields are required"),
            ("a,,,", "Parsed 4 fields: a,,,"),
            ("a,,,,", "Parsed 5 fields"),
            ("a,,,,0 8 zero;;b,,,,0 8 zero", "Parsed 1 fields"),
            ("a,,,xx,0 8 zero", "Invalid flags parameter 'xx' must be 'ro' or 'rw' or empty."),
            ("a,,,ro,0 8 zero", "flag `ro`: not supported"),
            ("a,,-1,,0 8 zero", "minor number `-1`"),
            ("\\", "Parsed 1 fields: \\"),
        ] {
            let e = parse(list).unwrap_err().text();
            assert!(e.contains(part), "{list}: {e}");
        }
    }
}
