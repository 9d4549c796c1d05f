// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client's side of the fixed newstyle handshake, as a function from bytes to bytes.
//!
//! ```text
//!  Greeting ──flags, STRUCTURED_REPLY──▶ Structured ──GO──▶ Go ─┬─ ACK ──▶ Ready
//!     │                                       ▲                 └─ unknown to the server:
//!     └─flags, STARTTLS──▶ StartTls ──by TLS──┘              EXPORT_NAME ──▶ Old ──▶ Ready
//! ```
use block::{ErrorKind, is_control_char};

use crate::client::export_info::ExportInfo;
use crate::option::Malformed;
use crate::wire::{
    Cursor, ExportFlags, HandshakeFlags, INIT_MAGIC, OPTION_BYTES_MAX, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, info, opt, rep,
};

const GREETING_BYTES: usize = 18;
const REPLY_BYTES: usize = 20;
/// Replies to our two options; a server sends about five.
const REPLIES_MAX: u32 = 1024;
/// Longest text of a server in a message.
const TEXT_CHARS_MAX: usize = 200;

/// The result of a step. The caller must send the appended output first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// The input must have this many bytes before the next step.
    More(usize),
    /// This many bytes were consumed; step again with the rest.
    Consumed(usize),
    /// This many bytes were consumed, and the server waits for TLS. Once it is there,
    /// [`ClientHandshake::go_on_by_tls`] has the next messages.
    StartTls(usize),
    /// This many bytes were consumed, and the handshake is complete: requests may follow.
    Ready(usize, ExportInfo),
}

/// Why the handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The message.
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    StartTls,
    Structured,
    Go,
    Old,
}

/// One handshake.
#[derive(Debug)]
pub struct ClientHandshake {
    export: String,
    wants_tls: bool,
    stage: Stage,
    no_zeroes: bool,
    structured: bool,
    replies: u32,
    info: Option<(u64, u16)>,
    block: Option<[u32; 3]>,
}

fn broken(why: &str) -> HandshakeError {
    HandshakeError { kind: ErrorKind::Io, why: format!("not the NBD protocol: {why}") }
}

impl From<Malformed> for HandshakeError {
    fn from(_: Malformed) -> HandshakeError {
        broken("a reply is malformed")
    }
}

/// The server's text without control characters, bounded.
fn printable(text: &[u8]) -> String {
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

impl ClientHandshake {
    /// A handshake for `export`, of at most [`crate::wire::NAME_BYTES_MAX`] bytes; the server
    /// speaks first.
    pub fn new(export: &str) -> ClientHandshake {
        assert!(export.len() <= crate::wire::NAME_BYTES_MAX, "an export name of the protocol");
        ClientHandshake {
            export: export.to_owned(),
            wants_tls: false,
            stage: Stage::Greeting,
            no_zeroes: false,
            structured: false,
            replies: 0,
            info: None,
            block: None,
        }
    }

    /// The same by TLS, and not without it.
    pub fn with_tls(export: &str) -> ClientHandshake {
        ClientHandshake { wants_tls: true, ..ClientHandshake::new(export) }
    }

    /// Appends what follows once there is TLS.
    pub fn go_on_by_tls(&mut self, out: &mut Vec<u8>) {
        option(out, opt::STRUCTURED_REPLY, &[]);
        self.stage = Stage::Structured;
    }

    /// The message that the server must send next, for error texts.
    pub fn awaited(&self) -> &'static str {
        match self.stage {
            Stage::Greeting => "its greeting",
            Stage::StartTls => "its part of TLS",
            Stage::Structured => "its answer to STRUCTURED_REPLY",
            Stage::Go => "its answer to GO",
            Stage::Old => "its answer to EXPORT_NAME",
        }
    }

    /// Consumes at most one message of `input` and appends our messages to `out`.
    ///
    /// # Errors
    /// The server refuses the export, or violates the protocol.
    pub fn step(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, HandshakeError> {
        match self.stage {
            Stage::Greeting => self.greeting(input, out),
            Stage::StartTls | Stage::Structured | Stage::Go => self.reply(input, out),
            Stage::Old => Ok(self.old(input)),
        }
    }

    fn greeting(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, HandshakeError> {
        let mut c = Cursor(input);
        let fields = (|| Some((c.be64()?, c.be64()?, c.be16()?)))();
        let Some((init, second, flags)) = fields else {
            return Ok(HandshakeStep::More(GREETING_BYTES));
        };
        if init != INIT_MAGIC {
            return Err(broken("the server does not say NBDMAGIC"));
        }
        let flags = HandshakeFlags::from_bits_truncate(u32::from(flags));
        if second != OPTION_MAGIC || !flags.contains(HandshakeFlags::FIXED_NEWSTYLE) {
            let why = "the server knows only the old handshake".to_owned();
            return Err(HandshakeError { kind: ErrorKind::NotSupported, why });
        }
        self.no_zeroes = flags.contains(HandshakeFlags::NO_ZEROES);
        let ours = flags & (HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES);
        out.extend_from_slice(&ours.bits().to_be_bytes());
        if self.wants_tls {
            option(out, opt::STARTTLS, &[]);
            self.stage = Stage::StartTls;
        } else {
            option(out, opt::STRUCTURED_REPLY, &[]);
            self.stage = Stage::Structured;
        }
        Ok(HandshakeStep::Consumed(GREETING_BYTES))
    }

    fn reply(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<HandshakeStep, HandshakeError> {
        let mut c = Cursor(input);
        let fields = (|| Some((c.be64()?, c.be32()?, c.be32()?, c.be32()?)))();
        let Some((magic, of, kind, len)) = fields else {
            return Ok(HandshakeStep::More(REPLY_BYTES));
        };
        if magic != OPTION_REPLY_MAGIC {
            return Err(broken("an option's answer has another magic number"));
        }
        let asked = match self.stage {
            Stage::StartTls => opt::STARTTLS,
            Stage::Structured => opt::STRUCTURED_REPLY,
            Stage::Greeting | Stage::Go | Stage::Old => opt::GO,
        };
        if of != asked {
            return Err(broken("an answer to what was not asked"));
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > OPTION_BYTES_MAX {
            return Err(broken("an option's answer is longer than 64 KiB")); // NB-C2
        }
        let total = REPLY_BYTES + len;
        let Some(payload) = input.get(REPLY_BYTES..total) else {
            return Ok(HandshakeStep::More(total));
        };
        self.replies += 1;
        if self.replies > REPLIES_MAX {
            return Err(broken("no end of answers"));
        }
        let failed = kind & rep::FLAG_ERROR != 0;
        match (self.stage, kind) {
            (Stage::StartTls, rep::ACK) => return Ok(HandshakeStep::StartTls(total)),
            (Stage::StartTls, _) if failed => {
                let text = printable(payload);
                let said = if text.is_empty() { text } else { format!(": it says `{text}`") };
                let why = format!("the server does not agree to TLS{said}");
                return Err(HandshakeError { kind: ErrorKind::Denied, why });
            }
            (Stage::Structured, rep::ACK) => self.ask(true, out),
            // The server has no structured replies.
            (Stage::Structured, _) if failed => self.ask(false, out),
            (Stage::Go, rep::INFO) => self.info(payload)?,
            (Stage::Go, rep::ACK) => {
                let Some((size, flags)) = self.info else {
                    return Err(broken("the export's size is missing"));
                };
                return Ok(HandshakeStep::Ready(total, self.export_info(size, flags)));
            }
            (Stage::Go, rep::ERR_UNSUP) => {
                option(out, opt::EXPORT_NAME, &[self.export.as_bytes()]);
                self.stage = Stage::Old;
            }
            (_, _) if failed => return Err(self.refused(kind, payload)),
            (_, _) => return Err(broken("an answer of an unknown type")),
        }
        Ok(HandshakeStep::Consumed(total))
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

    fn refused(&self, kind: u32, text: &[u8]) -> HandshakeError {
        let text = printable(text);
        let (kind, what) = match kind {
            rep::ERR_UNKNOWN => (ErrorKind::NotFound, "no such export"),
            rep::ERR_POLICY => (ErrorKind::Denied, "the server does not allow it"),
            rep::ERR_TLS_REQD => {
                (ErrorKind::Denied, "the server wants TLS: the address must begin with nbds")
            }
            rep::ERR_SHUTDOWN => (ErrorKind::Io, "the server is shutting down"),
            rep::ERR_BLOCK_SIZE_REQD => (ErrorKind::Io, "the server insists on request sizes"),
            _ => (ErrorKind::Io, "the server refuses"),
        };
        let said = if text.is_empty() { text } else { format!(": it says `{text}`") };
        HandshakeError { kind, why: format!("export `{}`: {what}{said}", self.export) }
    }

    /// The reply to EXPORT_NAME; a server without such an export closes the connection.
    fn old(&mut self, input: &[u8]) -> HandshakeStep {
        let total = 10 + if self.no_zeroes { 0 } else { 124 };
        let mut c = Cursor(input);
        match (c.be64(), c.be16()) {
            (Some(size), Some(flags)) if input.len() >= total => {
                HandshakeStep::Ready(total, self.export_info(size, flags))
            }
            _ => HandshakeStep::More(total),
        }
    }

    fn export_info(&self, size: u64, flags: u16) -> ExportInfo {
        let flags = ExportFlags::from_bits_truncate(flags);
        ExportInfo { size, flags, block: self.block, structured: self.structured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::option::{reply, reply_error, reply_info_block_size, reply_info_export};

    const GREETING: &[u8; 18] = b"NBDMAGICIHAVEOPT\x00\x03";

    /// Feeds the answers whole, and again byte by byte: the same must come of it.
    fn talk(answers: &[Vec<u8>]) -> (Result<HandshakeStep, HandshakeError>, Vec<u8>) {
        let feed = |step: usize| {
            let (mut handshake, mut out) = (ClientHandshake::new("disk"), Vec::new());
            let all: Vec<u8> = GREETING.iter().copied().chain(answers.concat()).collect();
            let (mut start, mut end) = (0, step.min(all.len()));
            loop {
                match handshake.step(&all[start..end], &mut out) {
                    Ok(HandshakeStep::Consumed(n)) => start += n,
                    Ok(HandshakeStep::More(_)) if end < all.len() => {
                        end = (end + step).min(all.len());
                    }
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
        let Ok(HandshakeStep::Ready(_, export_info)) = said else { panic!("{said:?}") };
        assert_eq!((export_info.size, export_info.block), (1 << 20, Some([512, 4096, 1 << 25])));
        assert!(export_info.structured && export_info.flags.contains(ExportFlags::FUA));
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
        let Ok(HandshakeStep::Ready(_, export_info)) = said else { panic!("{said:?}") };
        assert_eq!(
            (export_info.size, export_info.structured, export_info.block),
            (1 << 20, false, None)
        );
        assert!(out.ends_with(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk"));
    }

    #[test]
    fn a_refusal_is_reported_with_the_servers_text() {
        let mut go = answers(&[(opt::STRUCTURED_REPLY, rep::ACK)]);
        reply_error(&mut go, opt::GO, rep::ERR_UNKNOWN, "ask\x1b[2Jsomebody else");
        let refused = talk(&[go]).0.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NotFound);
        let want = "export `disk`: no such export: it says `ask [2Jsomebody else`";
        assert_eq!(refused.why, want);
    }

    #[test]
    fn invalid_messages_end_the_handshake() {
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
        let mut handshake = ClientHandshake::new("");
        assert!(
            handshake.step(b"SSH-2.0-OpenSSH_9", &mut Vec::new()) == Ok(HandshakeStep::More(18))
        );
        assert!(handshake.step(b"SSH-2.0-OpenSSH_9.2", &mut Vec::new()).is_err());
        let oldstyle = b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0";
        assert!(handshake.step(oldstyle, &mut Vec::new()).is_err());
    }
}
