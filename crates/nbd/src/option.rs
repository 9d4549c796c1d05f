// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options and option replies: parsed from bytes, encoded into bytes, nothing decided.
//!
//! ```text
//!  option  "IHAVEOPT" 8 │ option 4 │ length 4 │ payload
//!  reply   magic 8      │ option 4 │ type 4   │ length 4 │ payload
//! ```
use crate::wire::{Cursor, NAME_BYTES_MAX, OPTION_MAGIC, OPTION_REPLY_MAGIC, info, rep};

/// Bytes of an option before its payload.
pub const HEADER_BYTES: usize = 16;

/// Head of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the option.
    pub option: u32,
    /// Length of the payload.
    pub len: u32,
}

/// The peer violates the protocol: nothing after this can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Header {
    /// `None` when more bytes are needed.
    pub fn parse(input: &[u8]) -> Result<Option<Header>, Malformed> {
        let mut c = Cursor(input);
        let Some(magic) = c.be64() else { return Ok(None) };
        if magic != OPTION_MAGIC {
            return Err(Malformed);
        }
        Ok(c.be32().zip(c.be32()).map(|(option, len)| Header { option, len }))
    }
}

fn name(bytes: &[u8]) -> Result<&str, Malformed> {
    if bytes.len() > NAME_BYTES_MAX {
        return Err(Malformed);
    }
    std::str::from_utf8(bytes).map_err(|_| Malformed)
}

/// Payload of EXPORT_NAME: the whole of it is the name.
pub fn parse_export_name(payload: &[u8]) -> Result<&str, Malformed> {
    name(payload)
}

/// Payload of INFO and GO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export.
    pub name: &'a str,
    kinds: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Name behind its length, then the information types behind their number.
    pub fn parse(payload: &'a [u8]) -> Result<InfoRequest<'a>, Malformed> {
        let mut c = Cursor(payload);
        let name = name(c.string().ok_or(Malformed)?)?;
        let count = c.be16().ok_or(Malformed)?;
        if c.0.len() != usize::from(count) * 2 {
            return Err(Malformed);
        }
        Ok(InfoRequest { name, kinds: c.0 })
    }

    /// Whether the client asked for information of this type.
    pub fn wants(&self, kind: u16) -> bool {
        self.kinds.as_chunks().0.iter().any(|&k| u16::from_be_bytes(k) == kind)
    }
}

/// Payload of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export.
    pub name: &'a str,
    count: u32,
    queries: &'a [u8],
}

impl<'a> MetaRequest<'a> {
    /// Name behind its length, then as many queries as announced, each behind its length.
    pub fn parse(payload: &'a [u8]) -> Result<MetaRequest<'a>, Malformed> {
        let mut c = Cursor(payload);
        let export = name(c.string().ok_or(Malformed)?)?;
        let count = c.be32().ok_or(Malformed)?;
        let queries = c.0;
        for _ in 0..count {
            // Each query takes at least four bytes, so the payload bounds the loop.
            name(c.string().ok_or(Malformed)?)?;
        }
        if !c.0.is_empty() {
            return Err(Malformed);
        }
        Ok(MetaRequest { name: export, count, queries })
    }

    /// The queries in order.
    pub fn queries(&self) -> impl Iterator<Item = &'a str> {
        let mut c = Cursor(self.queries);
        (0..self.count).filter_map(move |_| c.string().and_then(|q| name(q).ok()))
    }

    /// Number of queries.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// The text, cut between characters to the longest string of the protocol.
fn head(text: &str) -> &[u8] {
    let fits = |&(at, c): &(usize, char)| at + c.len_utf8() <= NAME_BYTES_MAX;
    let end = text.char_indices().take_while(fits).last().map_or(0, |(at, c)| at + c.len_utf8());
    &text.as_bytes()[..end]
}

/// Appends an option reply whose payload is `parts` one after the other.
pub fn reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    let len = u32::try_from(len).expect("names and messages are bounded");
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends an error reply; `message` is for people.
pub fn reply_error(out: &mut Vec<u8>, option: u32, kind: u32, message: &str) {
    reply(out, option, kind, &[head(message)]);
}

/// Appends one export of a LIST.
pub fn reply_server(out: &mut Vec<u8>, option: u32, name: &str) {
    let len = u32::try_from(name.len()).expect("names are bounded");
    reply(out, option, rep::SERVER, &[&len.to_be_bytes(), name.as_bytes()]);
}

/// Appends size and flags of an export.
pub fn reply_info_export(out: &mut Vec<u8>, option: u32, size: u64, flags: u16) {
    let kind = info::EXPORT.to_be_bytes();
    reply(out, option, rep::INFO, &[&kind, &size.to_be_bytes(), &flags.to_be_bytes()]);
}

/// Appends name or description.
pub fn reply_info_text(out: &mut Vec<u8>, option: u32, kind: u16, text: &str) {
    reply(out, option, rep::INFO, &[&kind.to_be_bytes(), head(text)]);
}

/// Appends smallest, preferred and largest request.
pub fn reply_info_block_size(out: &mut Vec<u8>, option: u32, sizes: [u32; 3]) {
    let [min, preferred, max] = sizes.map(u32::to_be_bytes);
    reply(out, option, rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), &min, &preferred, &max]);
}

/// Appends one metadata context.
pub fn reply_context(out: &mut Vec<u8>, option: u32, id: u32, name: &str) {
    reply(out, option, rep::META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_needs_sixteen_bytes_and_the_magic() {
        let bytes = b"IHAVEOPT\x00\x00\x00\x07\x00\x00\x00\x06";
        for n in 0..16 {
            assert_eq!(Header::parse(&bytes[..n]), Ok(None));
        }
        assert_eq!(Header::parse(bytes), Ok(Some(Header { option: 7, len: 6 })));
        assert_eq!(Header::parse(b"IHAVEOPX"), Err(Malformed));
    }

    #[test]
    fn go_carries_a_name_and_the_types_asked_for() {
        let payload = b"\x00\x00\x00\x03abc\x00\x02\x00\x01\x00\x03";
        let go = InfoRequest::parse(payload).unwrap();
        assert_eq!(go.name, "abc");
        assert!(go.wants(info::NAME) && go.wants(info::BLOCK_SIZE));
        assert!(!go.wants(info::DESCRIPTION));
        for n in 0..payload.len() {
            assert_eq!(InfoRequest::parse(&payload[..n]), Err(Malformed), "cut at {n}");
        }
    }

    #[test]
    fn a_name_length_beyond_the_payload_is_malformed() {
        assert_eq!(InfoRequest::parse(b"\xff\xff\xff\xffabc\x00\x00"), Err(Malformed));
        assert_eq!(InfoRequest::parse(b"\x00\x00\x00\x02\xff\xfe\x00\x00"), Err(Malformed));
    }

    #[test]
    fn the_longest_name_is_taken_and_one_more_byte_is_not() {
        assert!(parse_export_name(&[b'a'; NAME_BYTES_MAX]).is_ok());
        assert_eq!(parse_export_name(&[b'a'; NAME_BYTES_MAX + 1]), Err(Malformed));
    }

    #[test]
    fn meta_queries_are_counted_and_bounded_by_the_payload() {
        let payload = b"\x00\x00\x00\x01x\x00\x00\x00\x02\x00\x00\x00\x05base:\x00\x00\x00\x00";
        let meta = MetaRequest::parse(payload).unwrap();
        assert_eq!(meta.name, "x");
        assert_eq!(meta.queries().collect::<Vec<_>>(), ["base:", ""]);
        let lying = b"\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00";
        assert_eq!(MetaRequest::parse(lying), Err(Malformed));
    }

    #[test]
    fn an_info_export_reply_is_as_the_protocol_draws_it() {
        let mut out = Vec::new();
        reply_info_export(&mut out, 7, 0x0102_0304, 0x016d);
        let want =
            b"\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x03\x00\x00\x00\x0c\
                     \x00\x00\x00\x00\x00\x00\x01\x02\x03\x04\x01\x6d";
        assert_eq!(out, want);
    }
}
