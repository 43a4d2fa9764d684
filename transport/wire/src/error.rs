//! What is wrong with bytes that were received, or cannot be sent; and the codes of error frames.

pub use terrace_types::Limit;

/// Why bytes are not a message, or a message cannot be made bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Whoever is on the other side speaks something else.
    #[error("the bytes {found:02x?} begin no frame; frames begin with `TERW`")]
    NotOurs {
        /// The first bytes, or as many as there are, then zeros.
        found: [u8; 4],
    },
    /// The head or the body of a frame is not as it was sent.
    #[error("{part}: checksum is {actual:#010x}, its bytes have {expected:#010x}")]
    Checksum {
        /// Which of them.
        part: &'static str,
        /// The checksum of the bytes.
        expected: u32,
        /// The checksum that the head has.
        actual: u32,
    },
    /// A frame is longer than its receiver takes.
    #[error("{field} is {value}, the limit is {limit}")]
    OverLimit {
        /// The field, in the words of the protocol's document.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The receiver's limit.
        limit: u64,
    },
    /// The verb is none of this version.
    #[error("verb {verb} is none of version 1")]
    UnknownVerb {
        /// Its number.
        verb: u8,
    },
    /// The request has options that its verb does not have.
    #[error("{verb} has no options {bits:#x}")]
    UnknownOptions {
        /// The verb's name.
        verb: &'static str,
        /// The bits that it does not have.
        bits: u32,
    },
    /// A field has a value that it cannot have.
    #[error("{message}: {field} is {value}, it has to be {limit}")]
    Field {
        /// What was decoded or encoded.
        message: &'static str,
        /// The field, in the words of the protocol's document.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What it would have to be.
        limit: Limit,
    },
    /// The memory given to encode into is too short.
    #[error("the frame needs {needed} bytes, {given} were given")]
    NoRoom {
        /// Bytes of the frame without its values.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
}

impl WireError {
    /// The code by which a node answers such bytes.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotOurs { .. } | Self::Checksum { .. } => ErrorCode::MalformedFrame,
            Self::OverLimit { .. } => ErrorCode::FrameOverLimit,
            Self::UnknownVerb { .. } => ErrorCode::UnknownVerb,
            Self::UnknownOptions { .. } => ErrorCode::UnknownOption,
            Self::Field { message, .. } => match message.as_bytes() {
                b"frame head" => ErrorCode::MalformedFrame,
                _ => ErrorCode::MalformedBody,
            },
            Self::NoRoom { .. } => ErrorCode::Internal,
        }
    }

    /// Whether the frames behind this one can still be read: only the request is wrong.
    #[must_use]
    pub const fn is_of_request(&self) -> bool {
        !self.code().ends_connection()
    }
}

macro_rules! error_codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal,)+) => {
        /// What an error frame says. Up to 31 the connection ends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ErrorCode {
            $($(#[doc = $doc])+ $name = $code,)+
        }

        impl ErrorCode {
            /// All codes, by number.
            pub const ALL: &[Self] = &[$(Self::$name,)+];
        }

        impl TryFrom<u16> for ErrorCode {
            type Error = WireError;

            fn try_from(code: u16) -> Result<Self, WireError> {
                match code {
                    $($code => Ok(Self::$name),)+
                    _ => Err(WireError::Field {
                        message: "error",
                        field: "code",
                        value: u64::from(code),
                        limit: Limit::Is("one of version 1"),
                    }),
                }
            }
        }
    };
}

error_codes! {
    /// The bytes are no frame.
    MalformedFrame = 1,
    /// There is no common version. The argument has the node's lowest one, and its highest one
    /// times 2^16.
    Version = 2,
    /// The token or the certificate is missing or wrong.
    NotAuthenticated = 3,
    /// Something else came before the hello, or a second hello.
    HelloExpected = 4,
    /// The request's id is not above those before.
    RequestId = 5,
    /// More was sent than the credit covers.
    OverCredit = 6,
    /// The frame is longer than the node takes. The argument has the limit.
    FrameOverLimit = 7,
    /// Nothing came for too long.
    Silent = 8,
    /// The node has as many connections as it takes. The argument has the limit.
    TooManyConnections = 9,
    /// A request came after the sender's goodbye.
    AfterGoodbye = 10,
    /// The body is not one of its verb.
    MalformedBody = 32,
    /// The verb is none of the version in force.
    UnknownVerb = 33,
    /// The verb has no such option. The argument has the bits.
    UnknownOption = 34,
    /// No namespace has the number on this connection, or it is taken.
    NamespaceNumber = 35,
    /// The name is not allowed, or there are as many namespaces as the node keeps.
    NamespaceRefused = 36,
    /// The client may not do this.
    NotPermitted = 37,
    /// The verb belongs to a feature that is not in force.
    FeatureNotInForce = 38,
    /// The node takes no new requests.
    Draining = 39,
    /// No streamed put has this id, or it expects another part.
    NoSuchPut = 40,
    /// The node failed to answer.
    Internal = 41,
    /// There are no rails for this client now, or those it had are gone: it may ask again, or read
    /// by `get`.
    NoRails = 42,
}

impl ErrorCode {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Whether the connection ends with it.
    #[must_use]
    pub const fn ends_connection(self) -> bool {
        self.number() < 32
    }

    /// Whether the same request may succeed on another connection or later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Silent | Self::TooManyConnections | Self::Draining | Self::Internal
        )
    }
}
