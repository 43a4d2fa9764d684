//! The messages that are about the connection, not about blocks.

use terrace_types::limits::NAMESPACE_LEN_MAX;

use crate::bytes::Reader;
use crate::error::{ErrorCode, Limit, WireError};
use crate::frame::{Flags, FrameWriter};
use crate::limits::{ERROR_TEXT_LEN_MAX, NAMESPACES_MAX};
use crate::request::NamespaceNumber;
use crate::verb::Verb;

/// Why a side ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum GoodbyeReason {
    /// It has nothing more to ask.
    Done = 1,
    /// The node stops.
    Draining = 2,
    /// Nothing came for a while.
    Idle = 3,
}

/// The announcement that a side sends no new requests, or takes none.
//= docs/wire-protocol.md#WP-15
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goodbye {
    /// Why.
    pub reason: GoodbyeReason,
    /// Milliseconds until its sender closes the connection.
    pub close_ms: u32,
}

/// Credit that a node gives on top of what there is.
//= docs/wire-protocol.md#WP-12
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Bytes of frames.
    pub bytes: u64,
    /// Requests.
    pub requests: u32,
}

/// The answer to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong {
    /// Grows with every start of the node.
    pub node_epoch: u64,
    /// Grows with every change of the shard map.
    pub map_epoch: u64,
}

/// The wish to call a namespace by a number from here on.
//= docs/wire-protocol.md#WP-16
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenNamespace<'a> {
    /// The number.
    pub number: NamespaceNumber,
    /// The name, 1 to 255 bytes without control characters.
    pub name: &'a str,
}

/// The end of a request, or of the connection.
//= docs/wire-protocol.md#WP-25
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorFrame<'a> {
    /// Why.
    pub code: ErrorCode,
    /// The number of the verb that it answers; 0 for none.
    pub verb_number: u8,
    /// What [`ErrorCode`] says.
    pub argument: u64,
    /// What to do, for a person. Longer than 512 bytes it is cut.
    pub text: &'a str,
}

impl Goodbye {
    pub(crate) fn read(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("goodbye", body);
        let reason = match reader.u16()? {
            1 => GoodbyeReason::Done,
            2 => GoodbyeReason::Draining,
            3 => GoodbyeReason::Idle,
            other => return Err(reader.wrong("reason", other.into(), Limit::AtMost(3))),
        };
        reader.reserved(2)?;
        let close_ms = reader.u32()?;
        Ok(Self { reason, close_ms })
    }

    /// Writes its frame; the bytes of it.
    ///
    /// # Errors
    /// [`WireError::NoRoom`] when `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut frame = FrameWriter::new(Verb::Goodbye, Flags::NONE, 0, out);
        frame.body.u16(self.reason as u16);
        frame.body.zeros(2);
        frame.body.u32(self.close_ms);
        frame.finish(0)
    }
}

impl Credit {
    pub(crate) fn read(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("credit", body);
        let bytes = reader.u64()?;
        let requests = reader.u32()?;
        reader.reserved(4)?;
        Ok(Self { bytes, requests })
    }

    /// Writes its frame; the bytes of it.
    ///
    /// # Errors
    /// [`WireError::NoRoom`] when `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut frame = FrameWriter::new(Verb::Credit, Flags::REPLY, 0, out);
        frame.body.u64(self.bytes);
        frame.body.u32(self.requests);
        frame.body.zeros(4);
        frame.finish(0)
    }
}

impl Pong {
    pub(crate) fn read(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("pong", body);
        Ok(Self {
            node_epoch: reader.u64()?,
            map_epoch: reader.u64()?,
        })
    }

    /// Writes its frame; the bytes of it.
    ///
    /// # Errors
    /// [`WireError::NoRoom`] when `out` is too short.
    pub fn encode(&self, request_id: u64, out: &mut [u8]) -> Result<usize, WireError> {
        let mut frame = FrameWriter::new(Verb::Ping, Flags::REPLY, request_id, out);
        frame.body.u64(self.node_epoch);
        frame.body.u64(self.map_epoch);
        frame.finish(0)
    }
}

impl<'a> OpenNamespace<'a> {
    const NAME: &'static str = "namespace";

    pub(crate) fn read(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(Self::NAME, body);
        let number = reader.u16()?;
        let below = Limit::AtMost(u64::from(NAMESPACES_MAX) - 1);
        reader.check("number", number.into(), below)?;
        let len = reader.u16()?;
        reader.check_range("name length", len.into(), 1, NAMESPACE_LEN_MAX as u64)?;
        reader.reserved(4)?;
        Ok(Self {
            number: NamespaceNumber(number),
            name: reader.text("name", len.into())?,
        })
    }

    /// Writes its frame; the bytes of it.
    ///
    /// # Errors
    /// [`WireError::Field`] when number or name are not allowed, [`WireError::NoRoom`] when `out` is
    /// too short.
    pub fn encode(&self, request_id: u64, out: &mut [u8]) -> Result<usize, WireError> {
        let mut frame = FrameWriter::new(Verb::OpenNamespace, Flags::NONE, request_id, out);
        let (name, len) = (Self::NAME, self.name.len() as u64);
        let below = Limit::AtMost(u64::from(NAMESPACES_MAX) - 1);
        let body = &mut frame.body;
        body.check(name, "number", self.number.0.into(), below);
        body.check_range(name, "name length", len, (1, NAMESPACE_LEN_MAX as u64));
        if self.name.chars().any(char::is_control) {
            let limit = Limit::Is("UTF-8 without control characters");
            body.check(name, "name", len, limit);
        }
        body.u16(self.number.0);
        body.u16(self.name.len() as u16);
        body.zeros(4);
        body.padded(self.name.as_bytes());
        frame.finish(0)
    }
}

impl<'a> ErrorFrame<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("error", body);
        let code = ErrorCode::try_from(reader.u16()?)?;
        let len = reader.u16()?;
        let limit = Limit::AtMost(ERROR_TEXT_LEN_MAX as u64);
        reader.check("text length", len.into(), limit)?;
        let verb_number = reader.u8()?;
        reader.reserved(3)?;
        Ok(Self {
            code,
            verb_number,
            argument: reader.u64()?,
            text: reader.text("text", len.into())?,
        })
    }

    /// Writes its frame; the bytes of it. 560 bytes are enough for any. Control characters in the
    /// text end it.
    ///
    /// # Errors
    /// [`WireError::NoRoom`] when `out` is too short.
    pub fn encode(&self, request_id: u64, out: &mut [u8]) -> Result<usize, WireError> {
        let mut frame = FrameWriter::new(Verb::Error, Flags::REPLY, request_id, out);
        let end = self.text.find(char::is_control).unwrap_or(self.text.len());
        let end = self.text.floor_char_boundary(end.min(ERROR_TEXT_LEN_MAX));
        let text = self.text.get(..end).unwrap_or_default();
        frame.body.u16(self.code.number());
        frame.body.u16(text.len() as u16);
        frame.body.u8(self.verb_number);
        frame.body.zeros(3);
        frame.body.u64(self.argument);
        frame.body.padded(text.as_bytes());
        frame.finish(0)
    }
}
