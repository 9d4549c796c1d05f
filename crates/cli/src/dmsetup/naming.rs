// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a command line names devices: by name, path, UUID or numbers.
use std::path::Path;

use control::api;

use crate::client::Client;
use crate::dmsetup::command_error::CommandError;
use crate::dmsetup::options::{Opt, Options};
use crate::requests;

/// The device that `-u` or `-j` and `-m` name, if they are there.
pub(crate) async fn of_options(
    client: &Client,
    options: &Options,
) -> Result<Option<String>, CommandError> {
    if let Some(uuid) = options.get(Opt::Uuid) {
        let all = requests::devices(client).await?;
        let meant = dm::unmangle(uuid);
        let found = all.into_iter().find(|d| d.uuid.as_ref() == Some(&meant));
        let missing = || CommandError::does_not_exist(&format!("with UUID {uuid}"));
        return found.map(|d| Some(d.name)).ok_or_else(missing);
    }
    let Some((major, minor)) = numbers(options)? else { return Ok(None) };
    by_numbers(client, |d| (d.major, d.minor) == (major, minor), &format!("{major}:{minor}"))
        .await
        .map(Some)
}

/// `-j` and `-m`, which go together.
pub(crate) fn numbers(options: &Options) -> Result<Option<(u32, u32)>, CommandError> {
    let number = |what: &str, value: &str| {
        value.parse::<u32>().map_err(|_| {
            CommandError::command_line(format!("{what} number `{value}`: must be a decimal number"))
        })
    };
    match (options.get(Opt::Major), options.get(Opt::Minor)) {
        (None, None) => Ok(None),
        (Some(major), Some(minor)) => Ok(Some((number("major", major)?, number("minor", minor)?))),
        (Some(_), None) | (None, Some(_)) => {
            Err(CommandError::command_line("Please specify both major number and minor number."))
        }
    }
}

/// The name that a word means: a name is one, a path has one in it.
pub(crate) async fn of_word(client: &Client, word: &str) -> Result<String, CommandError> {
    if !word.contains('/') {
        check_length(word)?;
        return Ok(word.to_owned());
    }
    let path = Path::new(word);
    let part = |p: Option<&std::ffi::OsStr>| p.and_then(|p| p.to_str()).map(str::to_owned);
    let (file, folder) = (part(path.file_name()), part(path.parent().and_then(Path::file_name)));
    let (Some(file), Some(folder)) = (file, folder) else { return Err(not_found(word)) };
    let minor = file.strip_prefix("dm-").and_then(|n| n.parse::<u32>().ok());
    match (&*folder, minor) {
        ("mapper", _) => Ok(file),
        ("dev", Some(minor)) => by_numbers(client, |d| d.minor == minor, word).await,
        ("dev", None) => Ok(file),
        _ => Err(not_found(word)),
    }
}

/// dmsetup's own refusal, before it asks the kernel.
pub(crate) fn check_length(name: &str) -> Result<(), CommandError> {
    if name.len() > dm::NAME_BYTES_MAX {
        return Err(CommandError::failed(format!("Name \"{name}\" too long.")));
    }
    Ok(())
}

fn not_found(word: &str) -> CommandError {
    CommandError::failed(format!("Device {word} not found"))
}

async fn by_numbers(
    client: &Client,
    is_it: impl Fn(&api::Device) -> bool,
    shown: &str,
) -> Result<String, CommandError> {
    let all = requests::devices(client).await?;
    let found = all.into_iter().find(|d| is_it(d));
    found.map(|d| d.name).ok_or_else(|| CommandError::does_not_exist(shown))
}

/// The devices that the words name; without words that of the options; else nothing.
pub(crate) async fn of_all(
    client: &Client,
    options: &Options,
    words: &[String],
) -> Result<Option<Vec<String>>, CommandError> {
    if words.is_empty() {
        return Ok(of_options(client, options).await?.map(|name| vec![name]));
    }
    let mut names = Vec::new();
    for word in words {
        names.push(of_word(client, word).await?);
    }
    Ok(Some(names))
}

/// The device of a command that takes one and other words behind it: those.
pub(crate) async fn of_first<'a>(
    client: &Client,
    options: &Options,
    words: &'a [String],
) -> Result<(String, &'a [String]), CommandError> {
    if let Some(name) = of_options(client, options).await? {
        return Ok((name, words));
    }
    match words {
        [first, rest @ ..] => Ok((of_word(client, first).await?, rest)),
        [] => Err(CommandError::failed("No device specified.")),
    }
}
