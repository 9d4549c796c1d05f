// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client's side of the fixed newstyle handshake, as a function from bytes to bytes.
//!
//! ```text
//!  Greeting ──flags, STRUCTURED_REPLY──▶ Structured ──GO──▶ Go ─┬─ ACK ──▶ Said::Go
//!                                                               └─ unknown to the server:
//!                                                          EXPORT_NAME ──▶ Old ──▶ Said::Go
//! ```
use block::{ErrorKind, is_control_char};

use crate::client::terms::Terms;
use crate::option::Malformed;
use crate::wire::{
    Cursor, ExportFlags, HandshakeFlags, INIT_MAGIC, OPTION_BYTES_MAX, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, info, opt, rep,
};

const GREETING_BYTES: usize = 18;
const REPLY_BYTES: usize = 20;
/// Answers to our two options; a server sends about five.
const REPLIES_MAX: u32 = 1024;
/// What is shown of a server's words.
const TEXT_CHARS_MAX: usize = 200;

/// What came of a step. Whatever was appended to the output is sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The input must have this many bytes before the next step.
    More(usize),
    /// This many bytes are used up; step again with the rest.
    Took(usize),
    /// This many bytes are used up; requests may follow.
    Go(usize, Terms),
}

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What sort of failure.
    pub kind: ErrorKind,
    /// For people.
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Structured,
    Go,
    Old,
}

/// One handshake.
#[derive(Debug)]
pub struct Hello {
    export: String,
    stage: Stage,
    no_zeroes: bool,
    structured: bool,
    replies: u32,
    info: Option<(u64, u16)>,
    block: Option<[u32; 3]>,
}

fn broken(why: &str) -> Refused {
    Refused { kind: ErrorKind::Io, why: format!("not the NBD protocol: {why}") }
}

impl From<Malformed> for Refused {
    fn from(_: Malformed) -> Refused {
        broken("a reply is malformed")
    }
}

/// A server's words as far as they can be shown.
fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let plain = text.chars().map(|c| if is_control_char(c) { ' ' } else { c });
    plain.take(TEXT_CHARS_MAX).collect()
}

fn option(out: &mut Vec<u8>, option: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&u32::try_from(len).expect("a name is bounded").to_be_bytes());
    parts.iter().for_each(|p| out.extend_from_slice(p));
}

impl Hello {
    /// A handshake for `export`, of at most [`crate::wire::NAME_BYTES_MAX`] bytes; the server
    /// speaks first.
    pub fn new(export: &str) -> Hello {
        assert!(export.len() <= crate::wire::NAME_BYTES_MAX, "an export name of the protocol");
        Hello {
            export: export.to_owned(),
            stage: Stage::Greeting,
            no_zeroes: false,
            structured: false,
            replies: 0,
            info: None,
            block: None,
        }
    }

    /// What the server has to say next, for people.
    pub fn waits_for(&self) -> &'static str {
        match self.stage {
            Stage::Greeting => "its greeting",
            Stage::Structured => "its answer to STRUCTURED_REPLY",
            Stage::Go => "its answer to GO",
            Stage::Old => "its answer to EXPORT_NAME",
        }
    }

    /// Takes at most one message off `input` and appends what is to be said to `out`.
    ///
    /// # Errors
    /// What the server said, or that it does not speak the protocol.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Said, Refused> {
        match self.stage {
            Stage::Greeting => self.greeting(input, out),
            Stage::Structured | Stage::Go => self.reply(input, out),
            Stage::Old => Ok(self.old(input)),
        }
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Said, Refused> {
        let mut c = Cursor(input);
        let fields = (|| Some((c.be64()?, c.be64()?, c.be16()?)))();
        let Some((init, second, flags)) = fields else { return Ok(Said::More(GREETING_BYTES)) };
        if init != INIT_MAGIC {
            return Err(broken("the server does not say NBDMAGIC"));
        }
        let flags = HandshakeFlags::from_bits_truncate(u32::from(flags));
        if second != OPTION_MAGIC || !flags.contains(HandshakeFlags::FIXED_NEWSTYLE) {
            let why = "the server knows only the old handshake".to_owned();
            return Err(Refused { kind: ErrorKind::NotSupported, why });
        }
        self.no_zeroes = flags.contains(HandshakeFlags::NO_ZEROES);
        let ours = flags & (HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES);
        out.extend_from_slice(&ours.bits().to_be_bytes());
        option(out, opt::STRUCTURED_REPLY, &[]);
        self.stage = Stage::Structured;
        Ok(Said::Took(GREETING_BYTES))
    }

    fn reply(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Said, Refused> {
        let mut c = Cursor(input);
        let fields = (|| Some((c.be64()?, c.be32()?, c.be32()?, c.be32()?)))();
        let Some((magic, of, kind, len)) = fields else { return Ok(Said::More(REPLY_BYTES)) };
        if magic != OPTION_REPLY_MAGIC {
            return Err(broken("an option's answer has another magic number"));
        }
        let asked = if self.stage == Stage::Structured { opt::STRUCTURED_REPLY } else { opt::GO };
        if of != asked {
            return Err(broken("an answer to what was not asked"));
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > OPTION_BYTES_MAX {
            return Err(broken("an option's answer is longer than 64 KiB")); // C2
        }
        let total = REPLY_BYTES + len;
        let Some(payload) = input.get(REPLY_BYTES..total) else { return Ok(Said::More(total)) };
        self.replies += 1;
        if self.replies > REPLIES_MAX {
            return Err(broken("no end of answers"));
        }
        let failed = kind & rep::FLAG_ERROR != 0;
        match (self.stage, kind) {
            (Stage::Structured, rep::ACK) => self.ask(true, out),
            // It does without.
            (Stage::Structured, _) if failed => self.ask(false, out),
            (Stage::Go, rep::INFO) => self.info(payload)?,
            (Stage::Go, rep::ACK) => {
                let Some((size, flags)) = self.info else {
                    return Err(broken("the export's size is missing"));
                };
                return Ok(Said::Go(total, self.terms(size, flags)));
            }
            (Stage::Go, rep::ERR_UNSUP) => {
                option(out, opt::EXPORT_NAME, &[self.export.as_bytes()]);
                self.stage = Stage::Old;
            }
            (_, _) if failed => return Err(self.refused(kind, payload)),
            (_, _) => return Err(broken("an answer of an unknown type")),
        }
        Ok(Said::Took(total))
    }

    fn ask(&mut self, structured: bool, out: &mut Vec<u8>) {
        self.structured = structured;
        let name = self.export.as_bytes();
        let len = u32::try_from(name.len()).expect("a name is bounded").to_be_bytes();
        let kinds = [1_u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()];
        option(out, opt::GO, &[&len, name, &kinds[0], &kinds[1]]);
        self.stage = Stage::Go;
    }

    fn info(&mut self, payload: &[u8]) -> Result<(), Malformed> {
        let mut c = Cursor(payload);
        match c.be16().ok_or(Malformed)? {
            info::EXPORT => {
                let size = c.be64().ok_or(Malformed)?;
                self.info = Some((size, c.be16().ok_or(Malformed)?));
            }
            info::BLOCK_SIZE => {
                let mut next = || c.be32().ok_or(Malformed);
                self.block = Some([next()?, next()?, next()?]);
            }
            _ => return Ok(()), // more than was asked for
        }
        if c.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }

    fn refused(&self, kind: u32, text: &[u8]) -> Refused {
        let text = shown(text);
        let (kind, what) = match kind {
            rep::ERR_UNKNOWN => (ErrorKind::NotFound, "no such export"),
            rep::ERR_POLICY => (ErrorKind::Denied, "the server does not allow it"),
            rep::ERR_TLS_REQD => {
                (ErrorKind::NotSupported, "the server wants TLS, which is not here")
            }
            rep::ERR_SHUTDOWN => (ErrorKind::Io, "the server is shutting down"),
            rep::ERR_BLOCK_SIZE_REQD => (ErrorKind::Io, "the server insists on request sizes"),
            _ => (ErrorKind::Io, "the server refuses"),
        };
        let said = if text.is_empty() { text } else { format!(": it says `{text}`") };
        Refused { kind, why: format!("export `{}`: {what}{said}", self.export) }
    }

    /// The answer to EXPORT_NAME; a server that does not know the name just goes.
    fn old(&mut self, input: &[u8]) -> Said {
        let total = 10 + if self.no_zeroes { 0 } else { 124 };
        let mut c = Cursor(input);
        match (c.be64(), c.be16()) {
            (Some(size), Some(flags)) if input.len() >= total => {
                Said::Go(total, self.terms(size, flags))
            }
            _ => Said::More(total),
        }
    }

    fn terms(&self, size: u64, flags: u16) -> Terms {
        let flags = ExportFlags::from_bits_truncate(flags);
        Terms { size, flags, block: self.block, structured: self.structured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::option::{reply, reply_error, reply_info_block_size, reply_info_export};

    const GREETING: &[u8; 18] = b"NBDMAGICIHAVEOPT\x00\x03";

    /// Feeds the answers whole, and again byte by byte: the same must come of it.
    fn talk(answers: &[Vec<u8>]) -> (Result<Said, Refused>, Vec<u8>) {
        let feed = |step: usize| {
            let (mut hello, mut out) = (Hello::new("disk"), Vec::new());
            let all: Vec<u8> = GREETING.iter().copied().chain(answers.concat()).collect();
            let (mut start, mut end) = (0, step.min(all.len()));
            loop {
                match hello.step(&all[start..end], &mut out) {
                    Ok(Said::Took(n)) => start += n,
                    Ok(Said::More(_)) if end < all.len() => end = (end + step).min(all.len()),
                    other => return (other, out),
                }
            }
        };
        let whole = feed(usize::MAX >> 1);
        assert_eq!(whole, feed(1));
        whole
    }

    fn answers(of: &[(u32, u32)]) -> Vec<u8> {
        let mut out = Vec::new();
        of.iter().for_each(|&(option, kind)| reply(&mut out, option, kind, &[]));
        out
    }

    #[test]
    fn a_modern_server_is_asked_for_chunks_and_sizes() {
        let mut go = Vec::new();
        reply_info_export(&mut go, opt::GO, 1 << 20, 0x6d);
        reply_info_block_size(&mut go, opt::GO, [512, 4096, 1 << 25]);
        reply(&mut go, opt::GO, rep::ACK, &[]);
        let (said, out) = talk(&[answers(&[(opt::STRUCTURED_REPLY, rep::ACK)]), go]);
        let Ok(Said::Go(_, terms)) = said else { panic!("{said:?}") };
        assert_eq!((terms.size, terms.block), (1 << 20, Some([512, 4096, 1 << 25])));
        assert!(terms.structured && terms.flags.contains(ExportFlags::FUA));
        let want = b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0\
                     IHAVEOPT\0\0\0\x07\0\0\0\x0c\0\0\0\x04disk\0\x01\0\x03";
        assert_eq!(out, want);
    }

    #[test]
    fn a_server_that_knows_little_is_asked_the_old_way() {
        let unknown =
            answers(&[(opt::STRUCTURED_REPLY, rep::ERR_UNSUP), (opt::GO, rep::ERR_UNSUP)]);
        let old = b"\0\0\0\0\0\x10\0\0\0\x05".to_vec();
        let (said, out) = talk(&[unknown, old]);
        let Ok(Said::Go(_, terms)) = said else { panic!("{said:?}") };
        assert_eq!((terms.size, terms.structured, terms.block), (1 << 20, false, None));
        assert!(out.ends_with(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk"));
    }

    #[test]
    fn what_a_server_refuses_is_told_in_its_words() {
        let mut go = answers(&[(opt::STRUCTURED_REPLY, rep::ACK)]);
        reply_error(&mut go, opt::GO, rep::ERR_UNKNOWN, "ask\x1b[2Jsomebody else");
        let refused = talk(&[go]).0.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NotFound);
        let want = "export `disk`: no such export: it says `ask [2Jsomebody else`";
        assert_eq!(refused.why, want);
    }

    #[test]
    fn lies_end_the_handshake() {
        let info = |bytes: &[u8]| {
            let mut out = answers(&[(opt::STRUCTURED_REPLY, rep::ACK)]);
            reply(&mut out, opt::GO, rep::INFO, &[bytes]);
            out
        };
        let mut long = answers(&[(opt::STRUCTURED_REPLY, rep::ACK)]);
        long.truncate(16);
        long.extend(u32::MAX.to_be_bytes());
        for lie in [
            answers(&[(opt::GO, rep::ACK)]),
            answers(&[(opt::STRUCTURED_REPLY, rep::INFO)]),
            answers(&[(opt::STRUCTURED_REPLY, rep::ACK), (opt::GO, rep::ACK)]),
            answers(&[(opt::STRUCTURED_REPLY, rep::ACK), (opt::GO, rep::SERVER)]),
            info(b""),
            info(b"\0\0\0"),
            info(b"\0\x03\0\0\x02\0"),
            info(b"\0\0\0\0\0\0\0\0\0\0\0\0\0"),
            long,
            vec![0; 20],
        ] {
            let (said, _) = talk(std::slice::from_ref(&lie));
            assert!(said.is_err(), "{lie:02x?}: {said:?}");
        }
        let mut hello = Hello::new("");
        assert!(hello.step(b"SSH-2.0-OpenSSH_9", &mut Vec::new()) == Ok(Said::More(18)));
        assert!(hello.step(b"SSH-2.0-OpenSSH_9.2", &mut Vec::new()).is_err());
        let oldstyle = b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0";
        assert!(hello.step(oldstyle, &mut Vec::new()).is_err());
    }
}
