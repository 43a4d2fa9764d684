//! The head of a frame, and how a frame is found in a stream and written.

use xxhash_rust::xxh3::xxh3_64;

use crate::bytes::{Reader, Writer};
use crate::error::{Limit, WireError};
use crate::limits::{BODY_LEN_MAX, HELLO_LEN_MAX, VALUES_LEN_MAX};
use crate::verb::Verb;

/// Length of a frame's head in bytes, in all versions.
pub const FRAME_HEAD_LEN: usize = 32;

const MAGIC: [u8; 4] = *b"TERW";
const LAYOUT: u8 = 1;
const NAME: &str = "frame head";

/// What a sender says of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

impl Flags {
    /// None: a request.
    pub const NONE: Self = Self(0);
    /// A reply.
    pub const REPLY: Self = Self(1);
    /// More frames of this reply follow.
    pub const MORE: Self = Self(1 << 1);
    /// The node holds the credit of the request that ends.
    pub const HELD: Self = Self(1 << 2);

    /// The flags that have to be understood, and are.
    const KNOWN: u16 = 0b111;
    /// The flags that have to be understood.
    const MUST: u16 = 0xff;

    /// Whether it has all of `others`.
    #[must_use]
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Both together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The longest frame that its receiver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Most bytes of a body.
    pub body_len_max: u32,
    /// Most bytes of values.
    pub values_len_max: u32,
}

impl FrameLimits {
    /// Those of a node before the hello.
    //= docs/wire-protocol.md#WP-7
    pub const BEFORE_HELLO: Self = Self {
        body_len_max: HELLO_LEN_MAX,
        values_len_max: 0,
    };
}

impl Default for FrameLimits {
    /// The highest that the protocol has.
    fn default() -> Self {
        Self {
            body_len_max: BODY_LEN_MAX,
            values_len_max: VALUES_LEN_MAX,
        }
    }
}

/// Something that may not have arrived whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partial<T> {
    /// It has.
    Whole(T),
    /// At least so many more bytes have to come.
    Needs(usize),
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// The verb's number; [`FrameHead::verb`] tells whether this version has it.
    pub verb_number: u8,
    /// Flags.
    pub flags: Flags,
    /// Id of the request that the frame belongs to; 0 for none.
    pub request_id: u64,
    /// Bytes of the body.
    pub body_len: u32,
    /// Bytes of the values behind the body.
    pub values_len: u32,
    body_checksum: u32,
}

/// The lower half of the hash.
fn checksum(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}

impl FrameHead {
    /// The head that `bytes` begin with. Bytes of something else are refused at the first one
    /// that differs.
    ///
    /// # Errors
    /// [`WireError::NotOurs`], [`WireError::Checksum`], [`WireError::Field`] when it is none;
    /// [`WireError::OverLimit`] when the frame is longer than `limits`. The stream has no further
    /// frames then.
    pub fn parse(bytes: &[u8], limits: &FrameLimits) -> Result<Partial<Self>, WireError> {
        //= docs/wire-protocol.md#WP-1
        let given = bytes.len().min(MAGIC.len());
        if bytes[..given] != MAGIC[..given] {
            let mut found = [0; 4];
            found[..given].copy_from_slice(&bytes[..given]);
            return Err(WireError::NotOurs { found });
        }
        let Some(bytes) = bytes.get(..FRAME_HEAD_LEN) else {
            return Ok(Partial::Needs(FRAME_HEAD_LEN - bytes.len()));
        };
        let head = Self::decode(bytes)?;
        for (field, value, limit) in [
            ("body length", head.body_len, limits.body_len_max),
            ("values length", head.values_len, limits.values_len_max),
        ] {
            if value > limit {
                let (value, limit) = (u64::from(value), u64::from(limit));
                return Err(WireError::OverLimit {
                    field,
                    value,
                    limit,
                });
            }
        }
        Ok(Partial::Whole(head))
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(NAME, bytes);
        reader.take(MAGIC.len())?;
        let layout = reader.u8()?;
        reader.check("layout", layout.into(), Limit::Exactly(LAYOUT.into()))?;
        let head = Self {
            verb_number: reader.u8()?,
            flags: Flags(reader.u16()?),
            request_id: reader.u64()?,
            body_len: reader.u32()?,
            values_len: reader.u32()?,
            body_checksum: reader.u32()?,
        };
        let expected = checksum(reader.since(0));
        let actual = reader.u32()?;
        if actual != expected {
            let part = NAME;
            return Err(WireError::Checksum {
                part,
                expected,
                actual,
            });
        }
        reader.check("body length", head.body_len.into(), Limit::MultipleOf(8))?;
        //= docs/wire-protocol.md#WP-5
        let unknown = head.flags.0 & Flags::MUST & !Flags::KNOWN;
        reader.check("unknown flags", unknown.into(), Limit::Exactly(0))?;
        Ok(head)
    }

    /// The verb.
    ///
    /// # Errors
    /// [`WireError::UnknownVerb`] when version 1 has none of that number.
    pub fn verb(&self) -> Result<Verb, WireError> {
        Verb::try_from(self.verb_number)
    }

    /// Whether the frame is a reply.
    #[must_use]
    pub const fn is_reply(&self) -> bool {
        self.flags.has(Flags::REPLY)
    }

    /// Bytes of the whole frame, values included.
    #[must_use]
    pub const fn frame_len(&self) -> u64 {
        FRAME_HEAD_LEN as u64 + self.body_len as u64 + self.values_len as u64
    }

    /// The body, which `bytes` begin with, once it is compared with its checksum.
    ///
    /// # Errors
    /// [`WireError::Field`] when there are too few bytes, [`WireError::Checksum`] when it is not as
    /// it was sent.
    pub fn body<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], WireError> {
        let body = Reader::new(NAME, bytes).take(self.body_len as usize)?;
        //= docs/wire-protocol.md#WP-2
        let expected = checksum(body);
        if self.body_checksum == expected {
            return Ok(body);
        }
        Err(WireError::Checksum {
            part: "body",
            expected,
            actual: self.body_checksum,
        })
    }
}

/// A frame that is being written: its body goes to [`FrameWriter::body`].
pub(crate) struct FrameWriter<'a> {
    pub(crate) body: Writer<'a>,
    verb: Verb,
    flags: Flags,
    request_id: u64,
}

impl<'a> FrameWriter<'a> {
    pub(crate) fn new(verb: Verb, flags: Flags, request_id: u64, out: &'a mut [u8]) -> Self {
        let mut body = Writer::new(out);
        body.zeros(FRAME_HEAD_LEN);
        Self {
            body,
            verb,
            flags,
            request_id,
        }
    }

    /// Writes the head before what became the body. Returns the bytes of both; `values_len` bytes
    /// of values have to follow them.
    pub(crate) fn finish(self, values_len: u64) -> Result<usize, WireError> {
        let mut body = self.body;
        let len = (body.at() - FRAME_HEAD_LEN) as u64;
        body.check(NAME, "body length", len, Limit::AtMost(BODY_LEN_MAX.into()));
        let values_max = Limit::AtMost(VALUES_LEN_MAX.into());
        body.check(NAME, "values length", values_len, values_max);
        let mut head = [0; FRAME_HEAD_LEN];
        let mut writer = Writer::new(&mut head);
        writer.put(&MAGIC);
        writer.u8(LAYOUT);
        writer.u8(self.verb.number());
        writer.u16(self.flags.0);
        writer.u64(self.request_id);
        writer.u32(len as u32);
        writer.u32(values_len as u32);
        writer.u32(checksum(body.written(FRAME_HEAD_LEN)));
        writer.u32(checksum(writer.written(0)));
        body.patch(0, &head);
        body.finish()
    }
}
