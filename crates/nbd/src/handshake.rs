// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server's side of the fixed newstyle handshake, as a function from bytes to bytes.
//!
//! ```text
//!  greeting ──▶ Flags ──client flags──▶ Options ─┬─ EXPORT_NAME, GO ──▶ Step::Ready
//!                                          ▲     ├─ ABORT, malformed ──▶ Step::End
//!                                          ├─────┼─ STARTTLS ──▶ Step::StartTls
//!                                          └─────┴─ any other option: answered
//! ```
use std::rc::Rc;
use std::sync::Arc;

use block::latency::Latencies;
use block::{BlockDevice, ErrorKind, Limits};

use crate::export::{Context, Export, Exports};
use crate::option::{
    HEADER_BYTES, Header, InfoRequest, Malformed, MetaRequest, parse_export_name, reply,
    reply_context, reply_error, reply_info_block_size, reply_info_export, reply_info_text,
    reply_server,
};
use crate::wire::{
    Cursor, ExportFlags, HandshakeFlags, INIT_MAGIC, NAME_BYTES_MAX, OPTION_BYTES_MAX,
    OPTION_MAGIC, REQUEST_BYTES_MAX, info, opt, rep,
};

/// Options of one handshake; a client needs about five, a curious one some more.
const OPTIONS_MAX: u32 = 1024;

/// Largest preferred request that is sent: larger ones are no faster.
const PREFERRED_BYTES_MAX: u32 = 4 << 20;

/// The negotiated session.
pub struct Session {
    /// The export in use.
    pub export: Rc<dyn Export>,
    /// Its device.
    pub device: Rc<dyn BlockDevice>,
    /// The same device with another opener, for flushes that the server sends itself: an error that
    /// they report must still be reported to the client's FLUSH.
    pub device_fua: Rc<dyn BlockDevice>,
    /// What was negotiated.
    pub terms: SessionTerms,
}

/// What was negotiated for a session, by any export of the device.
#[derive(Clone)]
pub struct SessionTerms {
    /// The device's limits when the session began.
    pub limits: Limits,
    /// The flags of the export, as sent to the client.
    pub flags: ExportFlags,
    /// Whether replies to READ and BLOCK_STATUS are structured.
    pub structured: bool,
    /// Where the times of requests are recorded.
    pub latencies: Option<Arc<Latencies>>,
    /// Contexts of block status, by [`Context::ALL`].
    pub contexts: [bool; Context::ALL.len()],
}

impl SessionTerms {
    /// The session by this export.
    pub(crate) fn with(self, export: Box<dyn Export>) -> Session {
        let device = export.device();
        let (export, device_fua) = (Rc::from(export), device.clone());
        Session { export, device, device_fua, terms: self }
    }
}

block::debug_as!(Session, s => "Session({} {:?})", s.device.name(), s.terms.flags);

/// The result of [`Handshake::step`]. The caller must send the appended output first.
#[derive(Debug)]
pub enum Step {
    /// The input must have this many bytes before the next step.
    More(usize),
    /// This many bytes were consumed; step again with the rest.
    Consumed(usize),
    /// This many bytes were consumed, and the handshake is complete: requests follow.
    Ready(usize, Session),
    /// This many bytes were consumed, and the client begins TLS: the next step has what comes by
    /// it.
    StartTls(usize),
    /// The connection ends.
    End,
}

/// Whether the connection has TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    /// It can't have any.
    Plain,
    /// It must before anything else.
    Required,
    /// It has.
    Tls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Flags,
    Options,
}

/// One connection's handshake.
#[derive(Debug)]
pub struct Handshake {
    stage: Stage,
    flags: HandshakeFlags,
    protection: Protection,
    structured: bool,
    options: u32,
    /// Contexts of the last SET_META_CONTEXT, and the export they are for.
    contexts: [bool; Context::ALL.len()],
    contexts_of: String,
}

impl Default for Handshake {
    fn default() -> Handshake {
        Handshake::new()
    }
}

impl Handshake {
    /// A handshake whose greeting has been sent.
    pub fn new() -> Handshake {
        Handshake {
            stage: Stage::Flags,
            flags: HandshakeFlags::empty(),
            protection: Protection::Plain,
            structured: false,
            options: 0,
            contexts: [false; Context::ALL.len()],
            contexts_of: String::new(),
        }
    }

    /// The same for a connection that must have TLS.
    pub fn with_tls() -> Handshake {
        Handshake { protection: Protection::Required, ..Handshake::new() }
    }

    /// The server's first message.
    pub fn greeting() -> [u8; 18] {
        let mut out = [0; 18];
        let flags = HandshakeFlags::all().bits();
        out[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[16..].copy_from_slice(&u16::try_from(flags).expect("two low bits").to_be_bytes());
        out
    }

    /// Consumes at most one message of `input` and appends the answer to `out`.
    pub fn step(&mut self, input: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Step {
        if self.stage == Stage::Flags {
            return self.client_flags(input);
        }
        let head = match Header::parse(input) {
            Ok(Some(head)) => head,
            Ok(None) => return Step::More(HEADER_BYTES),
            Err(Malformed) => return Step::End,
        };
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Step::End;
        }
        let len = usize::try_from(head.len).unwrap_or(usize::MAX);
        if len > OPTION_BYTES_MAX {
            // Skipping up to 4 GiB for a client that can't be right is not worth it.
            reply_error(out, head.option, rep::ERR_TOO_BIG, "option longer than 64 KiB");
            return Step::End;
        }
        let total = HEADER_BYTES + len;
        let Some(payload) = input.get(HEADER_BYTES..total) else {
            self.options -= 1; // it is the same option when it comes whole
            return Step::More(total);
        };
        if !self.flags.contains(HandshakeFlags::FIXED_NEWSTYLE) && head.option != opt::EXPORT_NAME {
            return Step::End;
        }
        self.option(head.option, payload, total, exports, out)
    }

    fn client_flags(&mut self, input: &[u8]) -> Step {
        let Some(bits) = Cursor(input).be32() else { return Step::More(4) };
        let Some(flags) = HandshakeFlags::from_bits(bits) else { return Step::End };
        self.flags = flags;
        self.stage = Stage::Options;
        Step::Consumed(4)
    }

    fn option(
        &mut self,
        option: u32,
        payload: &[u8],
        total: usize,
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Step {
        if self.protection == Protection::Required {
            match option {
                opt::STARTTLS if payload.is_empty() => {
                    // NB-T3: nothing else was negotiated, as all else is refused.
                    self.protection = Protection::Tls;
                    reply(out, option, rep::ACK, &[]);
                    return Step::StartTls(total);
                }
                // It knows no error reply.
                opt::EXPORT_NAME => return Step::End,
                opt::STARTTLS | opt::ABORT => {}
                _ => {
                    reply_error(out, option, rep::ERR_TLS_REQD, "STARTTLS comes first");
                    return Step::Consumed(total);
                }
            }
        }
        let done = match option {
            opt::EXPORT_NAME => return self.export_name(payload, total, exports, out),
            opt::GO => match self.info(option, payload, exports, out) {
                Ok(Some(session)) => return Step::Ready(total, session),
                Ok(None) => Ok(()),
                Err(e) => Err(e),
            },
            opt::INFO => self.info(option, payload, exports, out).map(drop),
            opt::ABORT => {
                reply(out, option, rep::ACK, &[]);
                return Step::End;
            }
            opt::LIST => list(option, payload, exports, out),
            opt::STRUCTURED_REPLY if !payload.is_empty() => Err(Malformed),
            opt::STRUCTURED_REPLY => {
                self.structured = true;
                reply(out, option, rep::ACK, &[]);
                Ok(())
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                self.meta_context(option, payload, exports, out)
            }
            opt::STARTTLS if self.protection != Protection::Plain => Err(Malformed),
            opt::STARTTLS => {
                reply_error(out, option, rep::ERR_POLICY, "there is no TLS at this address");
                Ok(())
            }
            _ => {
                reply_error(out, option, rep::ERR_UNSUP, "unknown option");
                Ok(())
            }
        };
        if done == Err(Malformed) {
            reply_error(out, option, rep::ERR_INVALID, "malformed payload");
        }
        Step::Consumed(total)
    }

    fn export_name(
        &mut self,
        payload: &[u8],
        total: usize,
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Step {
        // This option knows no error reply: the connection just ends.
        let Ok(name) = parse_export_name(payload) else { return Step::End };
        let Ok(export) = exports.open(name) else { return Step::End };
        let session = self.session(name, export);
        out.extend_from_slice(&session.terms.limits.capacity.bytes().to_be_bytes());
        out.extend_from_slice(&session.terms.flags.bits().to_be_bytes());
        if !self.flags.contains(HandshakeFlags::NO_ZEROES) {
            out.extend_from_slice(&[0; 124]);
        }
        Step::Ready(total, session)
    }

    fn info(
        &mut self,
        option: u32,
        payload: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Malformed> {
        let request = InfoRequest::parse(payload)?;
        let Some(export) = open(option, request.name, exports, out) else { return Ok(None) };
        let session = self.session(request.name, export);
        let size = session.terms.limits.capacity.bytes();
        reply_info_export(out, option, size, session.terms.flags.bits());
        if request.wants(info::NAME) {
            reply_info_text(out, option, info::NAME, &session.export.name());
        }
        let description = session.export.description();
        if request.wants(info::DESCRIPTION) && !description.is_empty() {
            reply_info_text(out, option, info::DESCRIPTION, &description);
        }
        // Sent to every client: one that ignores it loses nothing.
        reply_info_block_size(out, option, block_sizes(&session.terms.limits));
        reply(out, option, rep::ACK, &[]);
        Ok(Some(session))
    }

    fn meta_context(
        &mut self,
        option: u32,
        payload: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            self.contexts = Default::default(); // a failed choice leaves none
        }
        let request = MetaRequest::parse(payload)?;
        if set && !self.structured {
            reply_error(out, option, rep::ERR_INVALID, "structured replies come first");
            return Ok(());
        }
        let Some(export) = open(option, request.name, exports, out) else { return Ok(()) };
        let mut contexts = [false; Context::ALL.len()];
        for (context, chosen) in Context::ALL.into_iter().zip(&mut contexts) {
            let asked = match set {
                true => request.queries().any(|q| q == context.name()),
                false => {
                    let all = request.count() == 0;
                    all || request.queries().any(|q| matches_list(q, context.name()))
                }
            };
            *chosen = asked && export.offers(context);
            if *chosen {
                reply_context(out, option, context.id(), context.name());
            }
        }
        if set {
            self.contexts = contexts;
            request.name.clone_into(&mut self.contexts_of);
        }
        reply(out, option, rep::ACK, &[]);
        Ok(())
    }

    fn session(&self, name: &str, export: Box<dyn Export>) -> Session {
        let limits = export.device().limits();
        let read_only = export.read_only();
        let mut flags = ExportFlags::HAS_FLAGS | ExportFlags::CAN_MULTI_CONN;
        let writes = ExportFlags::TRIM | ExportFlags::WRITE_ZEROES;
        // Where nothing is kept, a flush would promise what it can't hold. Who sends one all the
        // same is answered.
        flags.set(ExportFlags::FLUSH, limits.keeps);
        flags.set(ExportFlags::FUA, limits.keeps && !read_only);
        flags.set(ExportFlags::READ_ONLY, read_only);
        flags.set(writes | ExportFlags::FAST_ZERO, !read_only);
        flags.set(ExportFlags::ROTATIONAL, limits.rotational);
        flags.set(ExportFlags::DF, self.structured);
        let structured = self.structured;
        // Chosen for one export, they do not hold for another.
        let same = self.contexts_of == name;
        let contexts = if same { self.contexts } else { Default::default() };
        let latencies = export.latencies();
        SessionTerms { limits, flags, structured, latencies, contexts }.with(export)
    }
}

/// LIST takes a namespace (`base:`) for all that is in it, or a whole name.
fn matches_list(query: &str, name: &str) -> bool {
    query == name || (query.ends_with(':') && name.starts_with(query))
}

/// Smallest, preferred and largest request: the protocol wants powers of two, or multiples.
fn block_sizes(limits: &Limits) -> [u32; 3] {
    let min = limits.logical_block_bytes;
    let preferred = limits.physical_block_bytes.max(limits.io_opt_bytes).max(4096).max(min);
    let preferred = preferred.min(PREFERRED_BYTES_MAX).next_power_of_two();
    [min, preferred, REQUEST_BYTES_MAX]
}

fn open(
    option: u32,
    name: &str,
    exports: &dyn Exports,
    out: &mut Vec<u8>,
) -> Option<Box<dyn Export>> {
    match exports.open(name) {
        Ok(export) => Some(export),
        Err(e) => {
            let unknown = e.kind() == ErrorKind::NotFound;
            let kind = if unknown { rep::ERR_UNKNOWN } else { rep::ERR_POLICY };
            reply_error(out, option, kind, &e.to_string());
            None
        }
    }
}

fn list(
    option: u32,
    payload: &[u8],
    exports: &dyn Exports,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    if !payload.is_empty() {
        return Err(Malformed);
    }
    for name in exports.list().iter().filter(|n| n.len() <= NAME_BYTES_MAX) {
        reply_server(out, option, name);
    }
    reply(out, option, rep::ACK, &[]);
    Ok(())
}
