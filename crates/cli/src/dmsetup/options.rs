// SPDX-License-Identifier: Apache-2.0 OR MIT
//! dmsetup's command line, as getopt_long reads it: options anywhere, long ones shortened, short
//! ones in a bunch, `--` before words that begin with a dash.
use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::dmsetup::command_error::CommandError;

/// An option that is accepted or deliberately ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Opt {
    Columns,
    Concise,
    Deferred,
    Exec,
    Fields,
    Force,
    Help,
    Inactive,
    Major,
    ManglingMode,
    Minor,
    NamePrefixes,
    NoFlush,
    NoHeadings,
    NoTable,
    ReadOnly,
    Retry,
    Rows,
    Select,
    Separator,
    SetUuid,
    Sort,
    Table,
    TableFile,
    Target,
    Tree,
    Unquoted,
    Uuid,
    Verbose,
    Version,
    /// Changes nothing here: there are no device nodes, no udev, no file systems to freeze, no
    /// read-ahead and no keys.
    Ignored,
}

/// Long name, short name, whether a value follows, meaning.
const OPTIONS: [(&str, Option<char>, bool, Opt); 46] = [
    ("addnodeoncreate", None, false, Opt::Ignored),
    ("addnodeonresume", None, false, Opt::Ignored),
    ("checks", None, false, Opt::Ignored),
    ("columns", Some('c'), false, Opt::Columns),
    ("columns", Some('C'), false, Opt::Columns),
    ("concise", None, false, Opt::Concise),
    ("deferred", None, false, Opt::Deferred),
    ("exec", None, true, Opt::Exec),
    ("force", Some('f'), false, Opt::Force),
    ("gid", Some('G'), true, Opt::Ignored),
    ("help", Some('h'), false, Opt::Help),
    ("inactive", None, false, Opt::Inactive),
    ("major", Some('j'), true, Opt::Major),
    ("manglename", None, true, Opt::ManglingMode),
    ("minor", Some('m'), true, Opt::Minor),
    ("mode", Some('M'), true, Opt::Ignored),
    ("nameprefixes", None, false, Opt::NamePrefixes),
    ("noflush", None, false, Opt::NoFlush),
    ("noheadings", None, false, Opt::NoHeadings),
    ("nolockfs", None, false, Opt::Ignored),
    ("noopencount", None, false, Opt::Ignored),
    ("notable", Some('n'), false, Opt::NoTable),
    ("noudevrules", None, false, Opt::Ignored),
    ("noudevsync", None, false, Opt::Ignored),
    ("options", Some('o'), true, Opt::Fields),
    ("readahead", None, true, Opt::Ignored),
    ("readonly", Some('r'), false, Opt::ReadOnly),
    ("retry", None, false, Opt::Retry),
    ("rows", None, false, Opt::Rows),
    ("select", Some('S'), true, Opt::Select),
    ("separator", None, true, Opt::Separator),
    ("setuuid", None, false, Opt::SetUuid),
    ("showkeys", None, false, Opt::Ignored),
    ("sort", Some('O'), true, Opt::Sort),
    ("table", None, true, Opt::Table),
    ("table-file", None, true, Opt::TableFile),
    ("target", None, true, Opt::Target),
    ("tree", None, false, Opt::Tree),
    ("udevcookie", None, true, Opt::Ignored),
    ("uid", Some('U'), true, Opt::Ignored),
    ("unbuffered", None, false, Opt::Ignored),
    ("unquoted", None, false, Opt::Unquoted),
    ("uuid", Some('u'), true, Opt::Uuid),
    ("verbose", Some('v'), false, Opt::Verbose),
    ("version", None, false, Opt::Version),
    ("yes", Some('y'), false, Opt::Ignored),
];
/// An option without effect, so that an abbreviated `--verify` is not taken for `--version`.
const VERIFY: (&str, Opt) = ("verifyudev", Opt::Ignored);

/// A command line that was understood.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    given: BTreeMap<Opt, String>,
    /// The verb and what follows it.
    pub(crate) words: Vec<String>,
}

impl Options {
    /// Reads arguments; the program's name is not among them. A later option wins.
    pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Options, CommandError> {
        let mut options = Options::default();
        let mut args = args.into_iter().enumerate().map(|(nth, arg)| {
            arg.into_string().map_err(|arg| {
                let shown = arg.to_string_lossy().into_owned();
                CommandError::command_line(format!("argument {} `{shown}`: not UTF-8", nth + 1))
            })
        });
        while let Some(arg) = args.next() {
            let arg = arg?;
            let mut value = || {
                let missing = || format!("option `{arg}` requires an argument");
                args.next().unwrap_or_else(|| Err(CommandError::command_line(missing())))
            };
            if arg == "--" {
                for rest in args {
                    options.words.push(rest?);
                }
                break;
            } else if let Some(long) = arg.strip_prefix("--") {
                options.long(long, &mut value)?;
            } else if arg.len() > 1 && arg.starts_with('-') {
                options.short(&arg[1..], &mut value)?;
            } else {
                options.words.push(arg);
            }
        }
        Ok(options)
    }

    fn long(
        &mut self,
        arg: &str,
        next: &mut dyn FnMut() -> Result<String, CommandError>,
    ) -> Result<(), CommandError> {
        let (name, given) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (arg, None),
        };
        let (takes, opt) = long_option(name)?;
        let value = match (takes, given) {
            (true, Some(value)) => value,
            (true, None) => next()?,
            (false, None) => String::new(),
            // Ours: dmsetup's has no value.
            (false, Some(token)) if opt == Opt::Force => token,
            (false, Some(_)) => {
                let message = format!("option `--{name}` doesn't allow an argument");
                return Err(CommandError::command_line(message));
            }
        };
        self.given.insert(opt, value);
        Ok(())
    }

    fn short(
        &mut self,
        bunch: &str,
        next: &mut dyn FnMut() -> Result<String, CommandError>,
    ) -> Result<(), CommandError> {
        for (at, c) in bunch.char_indices() {
            let found = OPTIONS.iter().find(|(_, short, ..)| *short == Some(c));
            let Some((_, _, takes, opt)) = found else {
                return Err(CommandError::command_line(format!("invalid option -- '{c}'")));
            };
            if *takes {
                let rest = &bunch[at + c.len_utf8()..];
                let value = if rest.is_empty() { next()? } else { rest.to_owned() };
                self.given.insert(*opt, value);
                return Ok(());
            }
            self.given.insert(*opt, String::new());
        }
        Ok(())
    }

    pub(crate) fn has(&self, opt: Opt) -> bool {
        self.given.contains_key(&opt)
    }

    /// The token of `--force=TOKEN`.
    pub(crate) fn token(&self) -> Option<String> {
        self.get(Opt::Force).filter(|token| !token.is_empty()).map(str::to_owned)
    }

    pub(crate) fn get(&self, opt: Opt) -> Option<&str> {
        self.given.get(&opt).map(String::as_str)
    }
}

/// The option of this long name, or the only one that begins so: whether a value follows, and what
/// it means.
fn long_option(name: &str) -> Result<(bool, Opt), CommandError> {
    let all = OPTIONS.iter().map(|(long, _, takes, opt)| (*long, *takes, *opt));
    let mut found: Vec<_> =
        all.chain([(VERIFY.0, false, VERIFY.1)]).filter(|o| o.0.starts_with(name)).collect();
    found.dedup_by_key(|o| o.0);
    if let Some((_, takes, opt)) = found.iter().find(|o| o.0 == name) {
        return Ok((*takes, *opt));
    }
    match found.as_slice() {
        [(_, takes, opt)] => Ok((*takes, *opt)),
        [] => Err(CommandError::command_line(format!("unrecognized option `--{name}`"))),
        many => {
            let many: Vec<_> = many.iter().map(|o| format!("--{}", o.0)).collect();
            let message =
                format!("option `--{name}` is ambiguous; possibilities: {}", many.join(" "));
            Err(CommandError::command_line(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn parse(args: &[&str]) -> Result<Options, CommandError> {
        Options::parse(args.iter().map(OsString::from))
    }

    #[test]
    fn options_stand_anywhere_short_and_long() {
        let o = parse(&["-c", "info", "--noheadings", "top", "-oname", "--sep=|"]).unwrap();
        assert_eq!(o.words, ["info", "top"]);
        assert!(o.has(Opt::Columns) && o.has(Opt::NoHeadings));
        assert_eq!(o.get(Opt::Fields), Some("name"));
        assert_eq!(o.get(Opt::Separator), Some("|"));
        let o = parse(&["-fvu", "U", "x", "-o", "a", "-o", "b", "--col", "--", "-c"]).unwrap();
        assert_eq!(o.words, ["x", "-c"]);
        assert_eq!((o.get(Opt::Uuid), o.get(Opt::Fields)), (Some("U"), Some("b")));
        assert!(o.has(Opt::Force) && o.has(Opt::Verbose) && o.has(Opt::Columns));
        // A lone dash is a word, and an option's name may be another's beginning.
        let o = parse(&["-", "--table", "0 8 zero"]).unwrap();
        assert_eq!(
            (o.words, o.given.get(&Opt::Table).map(String::as_str)),
            (vec!["-".into()], Some("0 8 zero"))
        );
    }

    #[test]
    fn what_getopt_refuses_is_refused() {
        for (args, part) in [
            (&["--bogus"][..], "unrecognized option `--bogus`"),
            (&["--no"], "ambiguous; possibilities: --noflush --noheadings --nolockfs"),
            (&["--noheadings=1"], "doesn't allow an argument"),
            (&["-ct"], "invalid option -- 't'"),
            (&["-5"], "invalid option -- '5'"),
            (&["-ö"], "invalid option -- 'ö'"),
            (&["-u"], "`-u` requires an argument"),
            (&["--exec"], "`--exec` requires an argument"),
        ] {
            let e = parse(args).unwrap_err().text();
            assert!(e.contains(part) && e.ends_with("Couldn't process command line.\n"), "{e}");
        }
        let not_text = OsString::from_vec(vec![b'a', 0xff]);
        let e = Options::parse(["info".into(), not_text]).unwrap_err().text();
        assert!(e.contains("argument 2") && e.contains("not UTF-8"), "{e}");
    }

    #[test]
    fn the_table_of_options_is_in_order_and_unambiguous() {
        assert!(OPTIONS.windows(2).all(|w| w[0].0 <= w[1].0));
        let shorts: Vec<char> = OPTIONS.iter().filter_map(|o| o.1).collect();
        assert!(shorts.iter().all(|s| shorts.iter().filter(|t| *t == s).count() == 1));
    }
}
