//! Rails: how a client reaches memory of the node by itself, and the node memory of the client.
//!
//! Both sides have a transfer engine; `docs/transfer.md` of the project tells what goes between
//! them. What is said here is who may open which.

use std::fmt;

use crate::bytes::Reader;
use crate::error::{Limit, WireError};
use crate::frame::{Flags, FrameWriter};
use crate::hello::Endpoint;
use crate::limits::RAILS_MAX;
use crate::records::{self, Records};
use crate::verb::Verb;

const REQUEST: &str = "rails wanted";
const REPLY: &str = "rails";

/// What a client says to get rails.
//= docs/wire-protocol.md#WP-28
#[derive(Clone, Copy, PartialEq)]
pub struct RailsWanted<'a> {
    /// What the node shows to the client's transfer engine; zeros for nothing.
    pub ticket: [u8; 16],
    /// Where that listens; nowhere when the node is to open nothing.
    pub endpoints: Records<'a, Endpoint<'a>>,
}

impl fmt::Debug for RailsWanted<'_> {
    // The ticket stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RailsWanted")
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

/// What the memory is that a client may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reach {
    /// The blocks themselves.
    Arena = 1,
    /// Copies of leased blocks, in memory for this client alone.
    Staged = 2,
}

/// What a client may open, and the region in which descriptors of this connection lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RailsTerms {
    /// What the client shows to the node's transfer engine.
    pub ticket: [u8; 16],
    /// The region's id in that engine: its slot, and its epoch.
    pub slot: u32,
    /// See `slot`.
    pub epoch: u64,
    /// What it is.
    pub reach: Reach,
    /// Length of the region in bytes.
    pub len: u64,
}

impl fmt::Debug for RailsTerms {
    // The ticket stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RailsTerms")
            .field("slot", &self.slot)
            .field("epoch", &self.epoch)
            .field("reach", &self.reach)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The rails that a client gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rails<'a> {
    /// The terms.
    pub terms: RailsTerms,
    /// Where the node's transfer engine listens.
    pub endpoints: Records<'a, Endpoint<'a>>,
}

impl<'a> RailsWanted<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(REQUEST, body);
        let ticket = reader.array()?;
        let count = reader.u16()?;
        let limit = Limit::AtMost(RAILS_MAX.into());
        reader.check("count of endpoints", count.into(), limit)?;
        reader.reserved(6)?;
        let endpoints = Records::read(&mut reader, count.into())?;
        Ok(Self { ticket, endpoints })
    }
}

/// Writes the frame by which a client asks for rails; the bytes of it.
///
/// # Errors
/// [`WireError::Field`] when there are too many endpoints, [`WireError::NoRoom`] when `out` is too
/// short.
pub fn encode_wanted<'e>(
    request_id: u64,
    ticket: &[u8; 16],
    endpoints: impl IntoIterator<Item = Endpoint<'e>>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let mut frame = FrameWriter::new(Verb::Rails, Flags::NONE, request_id, out);
    let body = &mut frame.body;
    body.put(ticket);
    let count_at = body.at();
    body.u16(0);
    body.zeros(6);
    let (count, _) = records::write(endpoints, body);
    let limit = Limit::AtMost(RAILS_MAX.into());
    body.check(REQUEST, "count of endpoints", count.into(), limit);
    body.patch(count_at, &(count as u16).to_le_bytes());
    frame.finish(0)
}

impl<'a> Rails<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(REPLY, body);
        let ticket = reader.array()?;
        let slot = reader.u32()?;
        let reach = match reader.u8()? {
            1 => Reach::Arena,
            2 => Reach::Staged,
            other => return Err(reader.wrong("kind", other.into(), Limit::AtMost(2))),
        };
        reader.reserved(3)?;
        let terms = RailsTerms {
            ticket,
            slot,
            reach,
            epoch: reader.u64()?,
            len: reader.u64()?,
        };
        let count = reader.u16()?;
        reader.check_range("count of endpoints", count.into(), 1, RAILS_MAX.into())?;
        reader.reserved(14)?;
        let endpoints = Records::read(&mut reader, count.into())?;
        Ok(Self { terms, endpoints })
    }
}

/// Writes the frame that answers a client's wish for rails; the bytes of it.
///
/// # Errors
/// [`WireError::Field`] when there are no endpoints or too many, [`WireError::NoRoom`] when `out` is
/// too short.
pub fn encode<'e>(
    request_id: u64,
    terms: &RailsTerms,
    endpoints: impl IntoIterator<Item = Endpoint<'e>>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let mut frame = FrameWriter::new(Verb::Rails, Flags::REPLY, request_id, out);
    let body = &mut frame.body;
    body.put(&terms.ticket);
    body.u32(terms.slot);
    body.u8(terms.reach as u8);
    body.zeros(3);
    body.u64(terms.epoch);
    body.u64(terms.len);
    let count_at = body.at();
    body.u16(0);
    body.zeros(14);
    let (count, _) = records::write(endpoints, body);
    let range = (1, RAILS_MAX.into());
    body.check_range(REPLY, "count of endpoints", count.into(), range);
    body.patch(count_at, &(count as u16).to_le_bytes());
    frame.finish(0)
}
